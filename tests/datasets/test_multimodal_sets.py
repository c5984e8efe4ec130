"ORBench: a folder written by hand as its read-me and loader describe it, and every way in which it is wrong"
import json

import numpy as np
import pytest
from helpers.by_hand import picture

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.multimodal_sets import KEYS, orbench_questions, orbench_rows, unfit_orbench
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.retrieval.combinations import ask_together
from reid_lab.retrieval.embeddings import Embeddings, caption_frame
from reid_lab.retrieval.protocols import PROTOCOLS
from reid_lab.retrieval.queries import as_one

pytestmark = pytest.mark.usefixtures("no_user_settings")

# Zplusdragon/ReID5o_ORBench:README.md, ReID5o/datasets/orbench.py: annotations count people of training from 1, other
# images of training are all of a person's folder, and a row of a list is a person and a part for each word of its key
TRAIN = [dict(id=1, file_path="vis/0001/a.jpg", caption=["A man in red.", "He has a bag."]),
         dict(id=1, file_path="vis/0001/b.jpg", caption="A man from behind."),
         dict(id=2, file_path="vis/0002/a.jpg", caption=["A woman in blue."])]
GALLERY = [[7, "vis/0007/a.jpg"], [7, "vis/0007/b.jpg"], [9, "vis/0009/a.jpg"]]
TEST = {"RGB_GALLERY": GALLERY,
        "NIR": [[7, "nir/0007/1.jpg"], [7, "nir/0007/2.jpg"], [9, "nir/0009/1.jpg"]],
        "CP": [[7, "cp/0007/1.jpg"], [9, "cp/0009/1.jpg"]], "SK": [[7, "sk/0007/1.jpg"]],
        "TEXT": [[7, "He runs."], [7, "A red hat."], [7, "Seen from behind."], [9, "She waits."]],
        "NIR+CP": [[7, "nir/0007/1.jpg", "cp/0007/1.jpg"], [9, "nir/0009/1.jpg", "cp/0009/1.jpg"]],
        "TEXT+NIR+CP": [[7, "A red hat.", "nir/0007/2.jpg", "cp/0007/1.jpg"],
                        [9, "She waits.", "nir/0009/1.jpg", "cp/0009/1.jpg"]]}
OTHERS = ["nir/0001/x.jpg", "cp/0001/x.jpg", "cp/0001/y.jpg", "sk/0002/x.jpg"]


def images():
    listed = [row[1] for key in ("RGB_GALLERY", "NIR", "CP", "SK") for row in TEST[key]]
    return [r["file_path"] for r in TRAIN] + listed + OTHERS


@pytest.fixture
def orbench(tmp_path):
    root = tmp_path/"ORBench"
    for name in [*images(), "sk/0009/not asked.jpg"]: picture(root/name)
    (root/"train_annos.json").write_text(json.dumps(TRAIN))
    (root/"test_gallery_and_queries.json").write_text(json.dumps(TEST))
    return root


def edit(root, change, name="test_gallery_and_queries.json"):
    held = json.loads((root/name).read_text())
    change(held)
    (root/name).write_text(json.dumps(held))


def error(root):
    with pytest.raises(TableError) as e: load_dataset("orbench", root)
    return str(e.value)


def test_rows(orbench):
    t = load_dataset("orbench", orbench.parent, check="all")
    got = {path: rest for path, *rest in zip(t["path"], t["pid"], t["modality"], t["split"], t["role"], t["captions"])}
    assert sorted(got) == sorted(images()) and t.further == ["modality"]
    assert got["vis/0001/a.jpg"] == [0, "visible", "train", "both", ["A man in red.", "He has a bag."]]
    assert got["cp/0001/y.jpg"] == [0, "colour pencil", "train", "both", []]
    assert got["sk/0002/x.jpg"] == [1, "sketch", "train", "both", []]
    assert got["vis/0007/a.jpg"] == [6, "visible", "test", "gallery", ["He runs.", "Seen from behind."]]
    assert got["vis/0007/b.jpg"][-1] == ["A red hat."] and got["nir/0009/1.jpg"][:4] == [8, "infrared", "test", "query"]
    report = doctor("orbench", orbench)
    assert report.ok and "left out: 1 images that no list names" in str(report)
    assert "query: 2 ids, 6 images; published: unstated, 24825" in str(report)
    assert "gallery: 2 ids, 3 images, 4 captions; published: unstated, unstated, 18050" in str(report)


def test_sentences_are_of_modality_text(orbench):
    "And not of that of the image that they lie beside"
    t = load_dataset("orbench", orbench)
    f = caption_frame(t.where(split="test"))
    assert f.modality.tolist() == ["text"]*4 and f.pid.tolist() == [6, 6, 6, 8]
    assert "modality" not in caption_frame(tiny_table())


def test_questions_are_the_lists(orbench):
    t = load_dataset("orbench", orbench)
    asked = orbench_questions(orbench, "orbench.text+infrared+colour-pencil")
    assert asked.values.tolist() == [
        [0, 6, "text", "A red hat."], [0, 6, "infrared", "nir/0007/2.jpg"], [0, 6, "colour pencil", "cp/0007/1.jpg"],
        [1, 8, "text", "She waits."], [1, 8, "infrared", "nir/0009/1.jpg"], [1, 8, "colour pencil", "cp/0009/1.jpg"]]
    rng = np.random.default_rng(0)
    test = t.where(split="test")
    images = Embeddings(rng.normal(size=(len(test), 4)), test["pid"].to_numpy(), path=test["path"].tolist(),
                        columns=dict(modality=test["modality"].to_numpy(str)))
    f = caption_frame(test)
    texts = Embeddings(rng.normal(size=(len(f), 4)), f.pid.to_numpy(), path=f.path.tolist(), caption=f.caption.tolist(),
                       columns=dict(modality=f.modality.to_numpy(str)))
    q = ask_together(as_one([images, texts]), PROTOCOLS["orbench.text+infrared+colour-pencil"].together, asked)
    of = {name: x/x.norm() for name, x in [*zip(images.path, images.emb), *zip(texts.caption, texts.emb)]}
    want = of["A red hat."] + of["nir/0007/2.jpg"] + of["cp/0007/1.jpg"]
    assert q.pid.tolist() == [6, 8] and q.emb[0].numpy() == pytest.approx((want/want.norm()).numpy(), abs=1e-6)
    with pytest.raises(TableError, match="key 'CP.SK' is missing"):
        orbench_questions(orbench, "orbench.colour-pencil+sketch")
    with pytest.raises(ValueError, match="protocol='orbench.nir' is not known"):
        orbench_questions(orbench, "orbench.nir")


@pytest.mark.parametrize("change, says", [
    (lambda d: d.pop("SK"), "key 'SK' is missing"),
    (lambda d: d.update({"IR": []}), "key 'IR' is no combination of NIR, CP, SK, TEXT"),
    (lambda d: d["NIR+CP"].append([7, "nir/0007/1.jpg"]), r"row 2 of NIR.CP is not \[person, part, part\]"),
    (lambda d: d["NIR"].append(["x", "nir/0007/1.jpg"]), r"row 3 of NIR is not \[person, part\]"),
    (lambda d: d["NIR"].append([7, "nir/0009/1.jpg"]), "person 7 has images in the folders 0007 and 0009"),
    (lambda d: d["NIR"].append([7, "cp/0007/1.jpg"]), "'cp/0007/1.jpg' is no path of infrared"),
    (lambda d: d["TEXT"].append([3, "Who?"]), "person 3 is described and has no gallery image")])
def test_faults_of_the_lists(orbench, change, says):
    edit(orbench, change)
    with pytest.raises(TableError, match=says): load_dataset("orbench", orbench)
    assert not doctor("orbench", orbench).ok


def test_faults_of_the_folder(orbench):
    edit(orbench, lambda rows: rows.append(dict(id=2, file_path="vis/0001/b.jpg", caption="x")), "train_annos.json")
    assert "person 2 has images in the folders 0002 and 0001" in error(orbench)
    (orbench/"train_annos.json").write_text(json.dumps(TRAIN))
    (orbench/"cp").rename(orbench/"pencil")
    assert "the folder 'cp' is missing" in error(orbench)
    (orbench/"pencil").rename(orbench/"cp")
    (orbench/"nir/0009/1.jpg").unlink()
    assert "do not exist" in error(orbench) or "missing" in error(orbench)
    (orbench/"train_annos.json").unlink()
    assert "the file 'train_annos.json' is missing" in error(orbench)


def test_written_lists_ask_as_the_published_ones_do(tmp_path):
    "Each row of the first modality once, and only parts of one person; people without a part do not ask"
    t = tiny_table(8, 6, 1).where(split=["train", "test"])
    kinds = ["visible", "visible", "infrared", "infrared", "colour pencil", "sketch"]
    t = orbench_rows(t.assign(modality=kinds*(len(t)//6)))
    first = t["pid"].max()
    t = t.take(~((t["pid"] == first) & (t["modality"] == "sketch")).to_numpy())
    root = export_world(t, "orbench", tmp_path/"ORBench")
    held = json.loads((root/"test_gallery_and_queries.json").read_text())
    assert set(held) == {"RGB_GALLERY", *KEYS}
    test = t.where(split="test")
    rows = {"NIR": "infrared", "CP": "colour pencil", "SK": "sketch"}
    people = test["pid"].nunique()
    assert people == 2 and len(held["SK"]) == 1 and len(held["NIR"]) == 4 == len(held["NIR+CP"])
    assert len(held["NIR+SK"]) == 2 and len(held["TEXT+NIR+CP+SK"]) == 2 and len(held["TEXT"]) == 4
    for key, found in held.items():
        for number, *parts in found:
            for word, part in zip(key.split("+"), parts):
                if word in rows: assert part.split("/")[:2] == [dict(NIR="nir", CP="cp", SK="sk")[word], f"{number:04}"]
    wrong = t.assign(modality="thermal")
    assert "a modality has no folder" in str(unfit_orbench(wrong)[0])
    alone = t.where(modality=["infrared", "sketch"])
    assert "people of a split without a visible image" in str(unfit_orbench(alone)[-1])
    assert len(orbench_rows(alone)) == 0 and unfit_orbench(orbench_rows(t)) == []


def test_the_record():
    spec = DATASETS["orbench"]
    assert set(spec.protocols) == {name for name in PROTOCOLS if name.startswith("orbench.")}
    images = ("orbench.infrared", "orbench.colour-pencil", "orbench.sketch")
    queries = [PROTOCOLS[name].counts.queries for name in images]
    assert spec.counts["query"] == (None, sum(queries))
    assert spec.counts["gallery"][2] == PROTOCOLS["orbench.text"].counts.queries
