"What is named as files, folders or models: opened as it is, refused where it does not fit"
import numpy as np
import pytest
from helpers.compare import model
from PIL import Image

from reid_lab.analysis.compare import CompareSettings
from reid_lab.recipes.compare import Entry, SetOptions, compare, distinct, kind_of, open_set, read_entry
from reid_lab.recipes.crops import embed_once
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.shards import write_shards


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    "Features of two models: files of both sides, pairs of files, folders and shards, and a folder by dataset"
    root = tmp_path_factory.mktemp("store")
    for name, noise in (("small", 1.6), ("large", 1.2)):
        f = model(name, noise, len(name))
        both = {f"{side}_feat": getattr(f, side).numpy() for side in "qg"}
        for side in "qg":
            both |= {f"{side}_pid": getattr(f, side).pid, f"{side}_cam": getattr(f, side).cam}
            getattr(f, side).save(root/f"{name}_{side}.npz")
        np.savez(root/f"{name}.npz", **both)
        f.g.save(root/f"{name}_folder")
        (root/"sets"/name).mkdir(parents=True)
        for side, full in (("q", "query"), ("g", "gallery")):
            getattr(f, side).save(root/"sets"/name/f"{full}.safetensors")
    return root


def test_all_forms_of_features_give_the_same_scores(store):
    pair = f"{store}/large_q.npz,{store}/large_g.npz"
    forms = [store/"large.npz", pair, f"folder={store}/large_q.npz,{store}/large_folder"]
    scores = [compare([str(form)]).scores() for form in forms]
    for other in scores[1:]: assert other.mAP[0] == pytest.approx(scores[0].mAP[0], abs=1e-9)
    assert [s.model[0] for s in scores] == ["large", "large", "folder"]
    of_sets = compare([str(store/"sets")], ["large", "small"]).scores()
    assert of_sets.dataset.tolist() == ["large", "small"]
    assert of_sets.mAP[0] == pytest.approx(scores[0].mAP[0], abs=1e-9)
    memory = compare(dict(m=tuple(Embeddings.load(store/f"large_{side}.npz") for side in "qg"))).scores()
    assert memory.mAP[0] == pytest.approx(scores[0].mAP[0], abs=1e-9)


def test_a_gallery_of_shards(store, tmp_path):
    pytest.importorskip("pyarrow")
    write_shards(Embeddings.load(store/"large_g.npz"), tmp_path/"s", dtype="float32", rows=50)
    got = compare([f"{store}/large_q.npz,{tmp_path}/s", str(store/"small.npz")])
    assert got.scores().mAP[0] == pytest.approx(compare([str(store/"large.npz")]).scores().mAP[0], abs=1e-9)


def test_labels():
    assert read_entry("ours=x/y.npz") == Entry("ours", "x/y.npz")
    given = "clip_tiny", "clip_tiny", "clip_tiny (2)=bot_tiny", "clip_tiny"
    names = [e.label for e in distinct([read_entry(text) for text in given])]
    assert names == ["clip_tiny", "clip_tiny (2)", "clip_tiny (2) (2)", "clip_tiny (3)"]


def test_a_file_with_an_equals_sign_is_that_file(store, tmp_path):
    place = tmp_path/"a=b.npz"
    Embeddings.load(store/"large_g.npz").save(place)
    assert read_entry(str(place)) == Entry("a=b", str(place)) and kind_of(read_entry(str(place))) == "features"


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    "Twelve crops of four people, once in one folder, once as query and gallery"
    root, rng = tmp_path_factory.mktemp("people"), np.random.default_rng(0)
    for i in range(12):
        block = Image.fromarray(rng.integers(0, 256, (8, 4, 3), "u1")).resize((32, 64), Image.Resampling.NEAREST)
        for folder in (root/"all", root/"sides"/("query" if i % 3 == 0 else "gallery")):
            (folder/f"p{i//3}").mkdir(parents=True, exist_ok=True)
            block.save(folder/f"p{i//3}"/f"{i}.png")
    return root


def test_folders_of_people(people):
    alone = open_set(people/"all")
    assert alone.query is alone.gallery and len(alone.gallery) == 12
    sides = open_set(people/"sides")
    assert (len(sides.query), len(sides.gallery)) == (4, 8)
    got = compare(["bot_tiny", "clip_tiny"], [people/"all", people/"sides"])
    assert [s.each_asks for s in got.sets] == [True, False] and [s.n_images for s in got.sets] == [12, 8]
    assert got.scores().image_ms.notna().all() and got.scores().queries.tolist() == [12, 12, 4, 4]


def test_features_of_the_images_that_a_model_embeds(people, tmp_path):
    e = embed_once(people/"all", "bot_tiny")
    e.save(tmp_path/"e.npz")
    got = compare(["bot_tiny", str(tmp_path/"e.npz")], [people/"all"])
    assert {d.verdict for d in got.sets[0].differences} == {"equal"}    # which knows nobody, and has the same vectors
    assert np.isnan(got.scores().image_ms[1]) and not np.isnan(got.scores().image_ms[0])
    other = Embeddings(e.emb, e.pid, path=[f"x/{p}" for p in e.path])
    other.save(tmp_path/"o.npz")
    with pytest.raises(ValueError, match="no path in common"):
        compare(["bot_tiny", str(tmp_path/"o.npz")], [people/"all"])


def test_captions_ask_for_images():
    sets = SetOptions(loading=(("preset", "smoke"),), captions=True)
    got = compare(["clip_tiny"], "world", sets=sets)
    assert got.scores().queries[0] == 500 and got.scores().ask_ms[0] > 0 and not got.sets[0].drops_camera
    with pytest.raises(ValueError, match="reads no captions"): compare(["bot_tiny"], "world", sets=sets)


@pytest.mark.parametrize("entries, on, message", [
    (["clip_tiny"], [], "clip_tiny is a model: on=DATASET"), (["small.npz"], ["world"], "of one set; leave it out"),
    (["clip_tiny", "small.npz"], ["world", "people"], "small is of one set, and 2 datasets"),
    (["sets"], [], "a folder without features of its own"), (["sets"], ["other"], "holds no features of 'other'"),
    (["small.npz,gone.npz"], [], "gone.npz' does not exist"), (["gone.npz"], [], "'gone.npz' does not exist"),
    (["clip_tinny"], ["world"], "Did you mean 'clip_tiny'"), ([], [], "nothing to compare"),
    (["clip_tiny"], ["nowhere"], "on='nowhere' is no dataset and does not exist"),
    (["small.npz,"], [], "write the features of queries and gallery as QUERY,GALLERY")])
def test_what_does_not_fit(store, monkeypatch, entries, on, message):
    monkeypatch.chdir(store)
    with pytest.raises((ValueError, FileNotFoundError), match=message): compare(entries, on)


def test_a_rule_of_another_benchmark_is_refused():
    f = model("a", .5, 0)
    sides = [e.assign(modality=[kind]*len(e)).with_emb(e.emb, data="regdb")
             for e, kind in ((f.q, "infrared"), (f.g, "visible"))]
    found = compare(dict(a=tuple(sides)), settings=CompareSettings(protocol="regdb.t2v"))
    assert "split: unknown" in " ".join(found.remarks())
    with pytest.raises(ValueError, match="sysu.all' is of sysu-mm01, and these are features of regdb"):
        compare(dict(a=tuple(sides)), settings=CompareSettings(protocol="sysu.all"))


@pytest.mark.parametrize("protocol, says", [("sysu.all", "is of sysu-mm01, and these are features of regdb"),
                                            ("wildlife", "asks for animals, and these are features of regdb")])
def test_a_rule_of_another_benchmark_is_refused_by_the_name_of_the_set(tmp_path, protocol, says):
    "Files that do not note their data, in the folder of a dataset"
    f, folder = model("a", .5, 0), tmp_path/"ours"/"regdb"
    for side, e, kind in (("query", f.q, "infrared"), ("gallery", f.g, "visible")):
        e.assign(modality=[kind]*len(e)).save(folder/side)
    how = dict(entries=[f"ours={tmp_path/'ours'}"], on=["regdb"])
    assert compare(**how, settings=CompareSettings(protocol="regdb.t2v")).scores().queries[0] > 0
    with pytest.raises(ValueError, match=says): compare(**how, settings=CompareSettings(protocol=protocol))
