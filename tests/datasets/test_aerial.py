"""Aerial sets: loaders and writers, broken annotations, triplets, bridges and what they draw"""
import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch

from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets import diagnosis, registry
from reid_lab.datasets.aerial import (
    AERI,
    AERI_VERSIONS,
    SOURCES,
    Bridges,
    aerial_table,
    cross_view,
    load_aeri,
    triplets,
)
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.datasets.text_sets import write_json
from reid_lab.retrieval.metrics import retrieval_metrics

pytestmark = pytest.mark.usefixtures("no_user_settings")
FILE = dict(train=AERI["sampled"], complete=AERI["complete"], test=AERI["test"])


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    base = tmp_path_factory.mktemp("aerial")
    return {n: export_world(aerial_table(), n, base / DATASETS[n].folder) for n in ("aeri-pedes", "tbapr")}


@pytest.fixture
def aeri(written, tmp_path): return shutil.copytree(written["aeri-pedes"], tmp_path / "AERI-PEDES")


@pytest.fixture
def tbapr(written, tmp_path): return shutil.copytree(written["tbapr"], tmp_path / "TBAPR")


def edit(path, change):
    records = json.loads(path.read_text())
    out = change(records)
    path.write_text(json.dumps(records if out is None else out))


def error(name, folder, **kw):
    with pytest.raises(TableError) as e: load_dataset(name, folder, **kw)
    assert not doctor(name, folder, **{k: v for k, v in kw.items() if k == "form"}).ok
    return str(e.value)


# ---- layouts

def test_records_are_those_of_the_published_form(aeri):
    train, full, test = (json.loads((aeri / FILE[k]).read_text()) for k in ("train", "complete", "test"))
    assert list(train[0]) == ["pid", "split", "aerial_img", "ground_img", "caption"] and len(train) == 16
    assert min(r["pid"] for r in train) == 1 and train[0]["aerial_img"].startswith("AERI-PEDES/")
    assert list(test[0]) == ["pid", "split", "captions", "file_paths", "ground_file_paths"] and len(test) == 2
    assert list(full[0]) == ["id", "split", "captions", "file_paths", "ground_file_paths"] and len(full) == 4


@pytest.mark.parametrize("name", ["aeri-pedes", "tbapr"])
def test_triplets_come_back(name, written):
    got, want = load_dataset(name, written[name], check="all"), aerial_table()
    names = dict(zip(want["path"], got["path"]))
    for split in ("train", "test"):
        a, b = triplets(got, split), triplets(want, split)
        assert a.caption.tolist() == b.caption.tolist() and a.pid.tolist() == b.pid.tolist()
        assert a.aerial.tolist() == [names[p] for p in b.aerial]
        if name == "tbapr" or split == "train": assert a.ground.tolist() == [names[p] for p in b.ground]
    assert got["role"].tolist() == ["gallery" if v == "aerial" else "none" for v in got["view"]]
    assert len(got.text_queries("test")) == 8 and len(got.gallery()) == 4 and len(got.query()) == 0


def test_both_forms_of_training(aeri):
    few, whole = load_dataset("aeri-pedes", aeri), load_dataset("aeri-pedes", aeri, form="complete")
    key = lambda t: sorted(zip(t["path"], t["pid"], t["view"]))
    assert key(few) == key(whole) and (triplets(whole).ground == "").all() and (triplets(few).ground != "").all()
    assert sorted(triplets(whole).caption) == sorted(triplets(few).caption)
    edit(aeri / FILE["train"], lambda rs: rs[:3])            # fewer triplets were drawn
    assert len(triplets(load_aeri(aeri))) == 3 and len(triplets(load_aeri(aeri, "complete"))) == 16
    (aeri / FILE["complete"]).unlink()
    with pytest.raises(ValueError, match="complete_caption.json.*form='sampled'"): load_aeri(aeri, "complete")
    with pytest.raises(ValueError, match="form='all'"): load_aeri(aeri, "all")


@pytest.mark.parametrize("value", [None, ""])
def test_triplets_without_a_ground_image(aeri, value):
    edit(aeri / FILE["train"], lambda rs: [{**r, "ground_img": value} if r["pid"] == 1 else r for r in rs])
    t = load_dataset("aeri-pedes", aeri)
    got = triplets(t)
    assert (got.ground == "").tolist() == (got.pid == 0).tolist()
    assert "4 of them without a ground image; 1 identities without any" in str(doctor("aeri-pedes", aeri))
    again = export_world(t, "aeri-pedes", aeri.parent / "again")
    assert [r["ground_img"] for r in json.loads((again / FILE["train"]).read_text())][:5] == [None]*4 + [
        "AERI-PEDES/train/ground/00001_000008.jpg"]


def test_more_captions_than_images_and_the_reverse(aeri):
    def change(rs):
        rs[0]["captions"] += ["A fifth caption."]
        rs[1]["captions"] = ["One only."]
    edit(aeri / FILE["test"], change)
    t = load_dataset("aeri-pedes", aeri).where(split="test", view="aerial")
    assert t["captions"].map(len).tolist() == [3, 2, 1, 0] and len(t.text_queries("test")) == 6
    assert t["captions"].iloc[0][-1] == "A fifth caption."


def test_numbers_of_test_identities_are_moved_only_where_they_meet(aeri):
    raw = load_aeri(aeri)
    assert raw.where(split="test")["pid"].tolist() == raw.where(split="test")["raw_pid"].tolist()
    edit(aeri / FILE["test"], lambda rs: [{**r, "pid": i + 1} for i, r in enumerate(rs)])
    t = load_dataset("aeri-pedes", aeri)                     # 1 and 2 are taken by training
    assert sorted(t.where(split="test")["pid"].unique()) == [5, 6] and set(t["raw_pid"]) >= {1, 2}
    assert sorted(t.where(split="train")["pid"].unique()) == [0, 1, 2, 3]


def test_identities_of_two_sources(tmp_path):
    t = aerial_table()
    t = t._with(t.frame.assign(source=np.where(t["pid"] % 2, "G2APS-AG", "AG-ReID")))
    root = export_world(t, "tbapr", tmp_path / "TBAPR")
    for path in root.rglob("*.json"):                        # both sources count from 1
        def change(d):
            if isinstance(d, list): return [[1 + (r[0] > 1), *r[1:]] for r in d]
            return {**d, "image_pids": [1 for _ in d["image_pids"]], "caption_pids": [1 for _ in d["caption_pids"]]}
        edit(path, change)
    got = load_dataset("tbapr", root)
    ids = {k: sorted(g.pid.unique()) for k, g in got.frame.groupby(["split", "source"])}
    assert ids == {("train", "AG-ReID"): [0, 1], ("train", "G2APS-AG"): [2, 3], ("test", "AG-ReID"): [4],
                   ("test", "G2APS-AG"): [5]}
    shutil.rmtree(root / "G2APS-AG")
    assert set(load_dataset("tbapr", root)["source"]) == {"AG-ReID"}


def test_validation_of_tbapr_shares_identities(tbapr):
    d = json.loads((tbapr / "AG-ReID/agtext_test.json").read_text())
    for kind in ("img_paths", "pair_img_paths"):
        for p, f in d[kind]:
            new = tbapr / p.replace("test", "val") / f
            new.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(tbapr / p / f, new)
    val = {k: [[p.replace("test", "val"), f] for p, f in v] if k.endswith("paths") else v for k, v in d.items()}
    (tbapr / "AG-ReID/agtext_val.json").write_text(json.dumps(val))
    assert "val" not in set(load_dataset("tbapr", tbapr)["split"])
    t = load_dataset("tbapr", tbapr, with_val=True)
    assert set(t.where(split="val")["pid"]) == set(t.where(split="test")["pid"]) == {4, 5}
    assert "val: 2 ids" in str(doctor("tbapr", tbapr, with_val=True))


def test_image_paths_may_start_from_the_folder_of_the_source(tbapr):
    cut = lambda v: [v[0].removeprefix("AG-ReID/"), v[1]]
    edit(tbapr / "AG-ReID/agtext_train.json", lambda rs: [[r[0], r[1], cut(r[2]), cut(r[3]), r[4]] for r in rs])
    t = load_dataset("tbapr", tbapr, check="all")
    assert t["path"].str.startswith("AG-ReID/").all()


# ---- broken inputs: the error names the entry and the file

def drop(key): return lambda rs: rs[3].pop(key)
def put(i, key, value): return lambda rs: rs[i].update({key: value})


@pytest.mark.parametrize("file, change, words", [
    ("train", drop("aerial_img"), ["key 'aerial_img' is missing", "train_caption.json row 3"]),
    ("train", drop("ground_img"), ["key 'ground_img' is missing", "train_caption.json row 3"]),
    ("train", drop("caption"), ["key 'caption' is missing", "train_caption.json row 3"]),
    ("train", put(2, "pid", "x1"), ["pid='x1' is not a whole number", "train_caption.json row 2"]),
    ("train", put(2, "ground_img", 7), ["ground_img='7' is not a string or null", "train_caption.json row 2"]),
    ("train", put(2, "aerial_img", "../../etc/1.jpg"), ["'../../etc/1.jpg' leaves", "train_caption.json row 2"]),
    ("train", put(2, "ground_img", "/etc/1.jpg"), ["'/etc/1.jpg' leaves", "train_caption.json row 2"]),
    ("train", put(2, "aerial_img", " "), ["an empty aerial path", "train_caption.json row 2"]),
    ("train", put(9, "pid", 1), ["has pid 3 in another entry and 1 here", "train_caption.json row 9"]),
    ("test", lambda rs: rs[1].pop("file_paths"), ["key 'file_paths' is missing", "test_caption.json row 1"]),
    ("test", lambda rs: rs[0].pop("split"), ["key 'split' is missing", "test_caption.json row 0"]),
    ("test", put(1, "file_paths", []), ["id 5 has no aerial image", "test_caption.json row 1"]),
    ("test", put(0, "captions", "A man."), ["captions='A man.' is not a list", "test_caption.json row 0"]),
    ("test", put(0, "ground_file_paths", ["..\\..\\a.jpg"]), ["'../../a.jpg' leaves", "test_caption.json row 0"]),
    ("complete", put(2, "file_paths", []), ["id 3 has no aerial image", "complete_caption.json row 2"])])
def test_broken_annotations_of_aeri(aeri, file, change, words):
    edit(aeri / FILE[file], lambda rs: change(rs) and None)
    text = error("aeri-pedes", aeri, **(dict(form="complete") if file == "complete" else {}))
    for w in words: assert w in text, text


@pytest.mark.parametrize("form, other", [("sampled", "complete"), ("complete", "train")])
def test_the_doctor_reads_both_files_of_training(aeri, form, other):
    "Whichever of them is loaded, a fault of the other is found"
    said = str(doctor("aeri-pedes", aeri, form=form))
    for f in ("train_caption.json, form 'sampled'", "complete_caption.json, form 'complete'"):
        assert f"{f}: 4 ids, 8 aerial and 4 ground images, 16 captions" in said
    edit(aeri / FILE[other], lambda rs: rs[2].pop("split" if other == "train" else "captions") and None)
    report = doctor("aeri-pedes", aeri, form=form)
    assert not report.ok and f"{FILE[other]} row 2" in str(report)
    assert len(load_dataset("aeri-pedes", aeri, form=form)) == 18
    (aeri / FILE[other]).unlink()
    assert doctor("aeri-pedes", aeri, form=form).ok


def test_both_versions_of_the_training_file_are_known(aeri, monkeypatch):
    "The paper prints 3,659 identities, the released file has 3,522; which of them it is, is said"
    frame = lambda ids: pd.DataFrame(dict(path=[f"{i}.jpg" for i in range(ids)], pid=range(ids), cam=0, split="train",
                                          captions=[["a man"]]*ids))
    level = lambda ids: {f.what.partition(":")[0]: f.level for f in diagnosis._check_counts(
        ReidTable(frame(ids), None, lambda paths: None), registry._aeri_counts())}["train"]
    assert [level(n) for n in (3659, 3522, 3600)] == ["ok", "ok", "warn"]
    monkeypatch.setitem(AERI_VERSIONS, 4, "as in a test")
    said = str(doctor("aeri-pedes", aeri))
    assert "form 'sampled': 4 ids, 8 aerial and 4 ground images, 16 captions: as in a test" in said
    assert "form 'complete': 4 ids, 8 aerial and 4 ground images, 16 captions\n" in said


@pytest.mark.parametrize("file, change, words", [
    ("train", lambda d: d[4].pop(), ["is no triplet", "agtext_train.json row 4"]),
    ("train", lambda d: d[4].__setitem__(2, "a/1.jpg"), ["is no triplet", "agtext_train.json row 4"]),
    ("train", lambda d: d[1].__setitem__(2, ["../..", "1.jpg"]), ["leaves the dataset", "agtext_train.json row 1"]),
    ("test", lambda d: d.pop("caption_pids"), ["key 'caption_pids' is missing", "agtext_test.json"]),
    ("test", lambda d: d["captions"].pop(), ["8 caption_pids and 7 captions", "agtext_test.json"]),
    ("test", lambda d: d["img_paths"].__setitem__(1, ["a"]), ["['a']", "agtext_test.json key 'img_paths', entry 1"]),
    ("test", lambda d: d["caption_pids"].__setitem__(1, 99), ["id 99", "no aerial image", "agtext_test.json"])])
def test_broken_annotations_of_tbapr(tbapr, file, change, words):
    edit(tbapr / f"AG-ReID/agtext_{file}.json", lambda d: change(d) and None)
    text = error("tbapr", tbapr)
    for w in words: assert w in text, text


@pytest.mark.parametrize("content, says", [("", "the file is empty"), ('{"image_pids": [1', "truncated"),
                                           ("[1]", "expected a dict, found list"), ("{}", "'image_pids' is missing")])
def test_a_test_file_of_the_wrong_shape(tbapr, content, says):
    (tbapr / "AG-ReID/agtext_test.json").write_text(content)
    assert says in error("tbapr", tbapr)


def test_an_image_that_is_no_image_and_one_that_is_missing(aeri):
    path = aeri / load_aeri(aeri)["path"].iloc[3]
    path.write_text("no image")
    assert path.name in error("aeri-pedes", aeri, check="all")
    path.unlink()
    assert path.name in error("aeri-pedes", aeri)
    with pytest.warns(UserWarning, match="dropped 1 of 18 images"):
        t = load_dataset("aeri-pedes", aeri, drop_bad=True)
    assert len(t) == 17


def test_a_link_that_leaves_the_folder(aeri, tmp_path):
    path = aeri / load_aeri(aeri)["path"].iloc[0]
    (tmp_path / "other.jpg").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "other.jpg")
    assert "leaves the root" in error("aeri-pedes", aeri)
    assert len(load_dataset("aeri-pedes", aeri, follow_links=True, check="all")) == 18


@pytest.mark.parametrize("name", ["aeri-pedes", "tbapr"])
def test_what_cannot_be_written_leaves_nothing(name, tmp_path):
    t = aerial_table()
    put = lambda **columns: t._with(t.frame.assign(**columns))
    ground, first = t.frame.view == "ground", t.frame.pid == 0
    said = [["A man."] if g else c for g, c in zip(ground, t["captions"])]
    for bad, says in ((tiny_table(), "ids without an aerial image"), (put(captions=said), "captions belong to aerial"),
                      (put(split=t["split"].mask(first, "val")), "no validation split"),
                      (put(captions=[[], *t["captions"][1:]]), "without a caption")):
        with pytest.raises(TableError, match=says): export_world(bad, name, tmp_path / "w")
    def fails(paths): raise RuntimeError("disk")
    with pytest.raises(RuntimeError, match="disk"):
        export_world(ReidTable(t.frame, None, fails, "t"), name, tmp_path / "w")
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == []


def test_an_annotation_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "new" / "a.json"
    write_json([dict(a=1), dict(a=2)], path)
    before = path.read_bytes()
    assert json.loads(before) == [dict(a=1), dict(a=2)] and before.count(b"\n") == 2
    with pytest.raises(TypeError): write_json([dict(a=object())], path)
    monkeypatch.setattr("pathlib.Path.write_text", lambda *a, **k: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"): write_json([dict(a=3)], path)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["a.json"]


# ---- two views of any table

def world_like(per_view=(3, 2)):
    "4 identities, aerial and ground images with two captions each"
    t = tiny_table(8, sum(per_view))
    f = t.frame[t.frame.split != "val"].reset_index(drop=True)
    return ReidTable(f.assign(view=np.where(f.cam < per_view[0], "aerial", "ground")), None, t.reader, "w")


def test_captions_move_from_ground_to_aerial_images():
    t = world_like()
    got, old = cross_view(t), t.frame.set_index("path")
    for split, n in (("train", 4), ("test", 4)):
        rows = triplets(got, split)
        assert all(c in old.captions[g] and old.view[g] == "ground" and old.pid[g] == p
                   for p, g, c in zip(rows.pid, rows.ground, rows.caption))
        told = [c for cs in t.where(split=split, view="ground")["captions"] for c in cs]
        assert sorted(rows.caption) == sorted(told)          # each once: more captions than aerial images
    assert (got.where(split="train", view="aerial")["captions"].map(len) >= 1).all()
    assert got.where(view="ground")["captions"].map(len).sum() == 0
    few = cross_view(world_like((6, 1)))                     # two captions for six images: repeated in training only
    assert few.where(split="train", view="aerial")["captions"].map(len).tolist() == [1]*24
    assert len(few.text_queries("test")) == 4
    own = cross_view(t, "aerial")
    assert own.where(view="aerial")["captions"].tolist() == t.where(view="aerial")["captions"].tolist()
    assert all(old.pid[g] == p and old.view[g] == "ground" for p, g in zip(triplets(own).pid, triplets(own).ground))
    with pytest.raises(ValueError, match="captions_of='above'"): cross_view(t, "above")


def test_identities_of_one_view_only():
    t = world_like()
    f = t.frame
    no_ground, no_aerial = f.pid.eq(0) & f.view.eq("ground"), f.pid.eq(1) & f.view.eq("aerial")
    got = cross_view(t._with(f[~no_ground & ~no_aerial]))
    assert set(triplets(got).pid) == {2, 3}
    own = triplets(cross_view(t._with(f[~no_ground & ~no_aerial]), "aerial"))
    assert set(own.pid) == {0, 2, 3} and ((own.ground == "") == (own.pid == 0)).all()


# ---- bridges

def batches(table, *extras, n=8, **kw):
    return Batches(table.where(split="train", view="aerial"), n, unit="caption", extras=extras, **kw)


@pytest.mark.parametrize("source", SOURCES)
def test_bridges_are_of_the_same_person_and_the_right_view(source):
    t = cross_view(world_like())
    b = batches(t, Bridges(t, source)).batch(0, 0)
    if source == "none":
        assert not {"img_bridge", "has_bridge"} & set(b)
        return
    assert b["has_bridge"].all() and b["img_bridge"].shape == b["img"].shape
    f, pixels = t.frame, torch.from_numpy(t.images()).permute(0, 3, 1, 2).float()/255
    pair = {(a, c): g for a, g, c in triplets(t)[["aerial", "ground", "caption"]].itertuples(index=False)}
    for img, pid, path, said in zip(b["img_bridge"], b["pid"], b["path"], b["caption"]):
        hit, = ((pixels - img).abs().amax((1, 2, 3)) < 1e-6).nonzero()
        assert f.pid[hit.item()] == pid and f.view[hit.item()] == ("aerial" if source == "aerial" else "ground")
        assert f.path[hit.item()] != path
        if source == "pair": assert f.path[hit.item()] == pair[path, said]


def test_the_lowest_aerial_image_of_the_person():
    t = cross_view(world_like())
    t = t._with(t.frame.assign(elevation=np.random.default_rng(0).random(len(t))))
    b, f, rng = Bridges(t, "aerial"), t.frame, np.random.default_rng(0)
    for i in np.flatnonzero((f.view == "aerial") & (f.split == "train")):
        j = b.choose(f.path[i], "", rng)
        own = f[(f.pid == f.pid[i]) & (f.view == "aerial")]
        lowest = own.elevation.idxmin()
        assert j == (lowest if lowest != i else -1)     # never from higher up


def test_a_record_of_another_split_is_refused(aeri):
    edit(aeri / "train_caption.json", put(2, "split", "test"))
    said = error("aeri-pedes", aeri)
    assert "split='test' in a file of split 'train'" in said and "train_caption.json row 2" in said


def test_a_ground_image_that_was_dropped_is_no_bridge():
    t = cross_view(world_like())
    kept = t.take(np.flatnonzero(t["view"] != "ground"))
    b = batches(kept, Bridges(kept, "pair"), n=8).batch(0, 0)
    assert not b["has_bridge"].any()


def test_samples_without_a_bridge():
    t = cross_view(world_like())
    f = t.frame.assign(grounds=[[""]*len(g) if p == 0 else g for p, g in zip(t["pid"], t["grounds"])])
    b = batches(t._with(f), Bridges(t._with(f), "pair"), n=16).batch(0, 0)
    assert torch.equal(b["has_bridge"], b["pid"] != 0) and (b["pid"] == 0).any()
    assert b["img_bridge"][~b["has_bridge"]].abs().sum() == 0
    with pytest.raises(ValueError, match="no column 'grounds'"): Bridges(world_like(), "pair")
    with pytest.raises(ValueError, match="source='grund'"): Bridges(t, "grund")
    with pytest.raises(ValueError, match="augment='lite'"): Bridges(t, "ground", augment="lite")


def test_bridges_change_nothing_else_and_are_reproducible():
    t, seen = cross_view(world_like()), []
    def noise(batch, rng): seen.append(rng.integers(1 << 30))
    plain = batches(t, noise, augment="light").batch(1, 0)
    for source in SOURCES[1:]:
        loader = batches(t, noise, Bridges(t, source, augment="light"), augment="light")
        a, b = loader.batch(1, 0), loader.batch(1, 0)
        assert torch.equal(a["img"], plain["img"]) and a["caption"] == plain["caption"]
        assert torch.equal(a["img_bridge"], b["img_bridge"])
    assert len(set(seen)) == 1


def test_workers_prepare_the_same_bridges():
    t = cross_view(world_like())
    a, b = (list(batches(t, Bridges(t, "ground"), workers=w).epoch(0)) for w in (0, 1))
    assert len(a) == len(b) == 2 and all(torch.equal(x["img_bridge"], y["img_bridge"]) for x, y in zip(a, b))


def test_a_model_trains_on_them_and_rsum_is_reported():
    from reid_lab.data.text import WordPiece
    from reid_lab.models.cfan import cfan_tiny
    from reid_lab.retrieval.embeddings import embed_images, embed_texts
    t = cross_view(world_like())
    tok = WordPiece.train([c for cs in t["captions"] for c in cs], 80, context_length=16, min_frequency=1)
    torch.manual_seed(0)
    model = cfan_tiny(tok, size=(64, 32), max_len=16)
    b = batches(t, Bridges(t, "pair"), tokenizer=tok).batch(0, 0)
    b["img"], b["img_bridge"] = (torch.nn.functional.interpolate(b[k], (64, 32)) for k in ("img", "img_bridge"))
    assert all(v.isfinite() for v in model(b).values())
    assert not torch.equal(model(b)["cda_loss"], model({**b, "has_bridge": ~b["has_bridge"]})["cda_loss"])
    found = retrieval_metrics(embed_texts(model, t.text_queries("test")), embed_images(model, t.gallery()))
    assert found["RSum"] == pytest.approx(found["R1"] + found["R5"] + found["R10"])
