"""Cameras of one's own: any table, the cameras that are trained on by number, and what cannot be scored."""
from dataclasses import replace

import numpy as np
import pytest

from reid_lab.data.table import ReidTable
from reid_lab.datasets.export import export_world
from reid_lab.datasets.protocols import camera_cases as C
from reid_lab.datasets.protocols.cameras import make_case, new_network, world_table
from reid_lab.datasets.protocols.dg_splits import write_manifest
from reid_lab.datasets.registry import DATASETS
from reid_lab.recipes import dart3 as D
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics


@pytest.fixture(scope="module")
def world(): return world_table("smoke", 3, "iid").where(split=["train", "test"])


def changed(world, **columns): return ReidTable(world.frame.assign(**columns), world.root, world.reader, "mine")


@pytest.fixture(scope="module")
def folders(world, tmp_path_factory):
    "The World as a manifest, as a saved table and in the layout of Market-1501"
    d = tmp_path_factory.mktemp("own")
    subset = world.frame.split.map(dict(train="train", test="test-a"))
    write_manifest(changed(world, subset=subset, scenario="street"), d/"list.csv", images=True)
    paths = [f"images/{i:07d}.png" for i in range(len(world))]
    ReidTable(world.frame.assign(path=paths), d).save(d/"table.csv")
    export_world(world, "market1501", d/"market", renumber=True)
    return d


@pytest.mark.parametrize("dataset, root", [("list.csv", None), ("table.csv", None), ("market1501", "market")])
def test_a_case_from_disk_is_that_of_the_table(world, folders, dataset, root):
    name = dataset if root else str(folders/dataset)
    case = C.camera_case("smoke", 3, name, root and folders/root, seen="2,0")
    want = C.own_cameras(world, (2, 0))
    assert (case.seen, case.cams) == ((2, 0), (1, 3, 4)) and set(case.train.frame.cam) == {0, 2}
    assert sorted(case.q.frame.cam) == sorted(want.q.frame.cam) and len(case.g) == len(want.g)
    assert not set(case.train.frame.pid) & set(case.q.frame.pid) and len(case.train) == len(want.train)
    assert not C.case_notes(case) and C.case_cameras(case).scored.sum() == len(case.q)


def test_a_registered_dataset_of_ones_own(world, monkeypatch):
    mine = replace(DATASETS["market1501"], title="Mine", load=lambda root=None: changed(world), folder="", check=None)
    monkeypatch.setitem(DATASETS, "mine", mine)
    case = C.camera_case("smoke", 0, "mine", seen=(0, 1))
    assert case.cams == (2, 3, 4) and case.name == "mine seen 0,1"


def test_without_seen_it_is_the_case_of_the_papers(world):
    a, b = C.camera_case("smoke", 3), make_case("smoke", 3)
    assert a.name == b.name and a.q.frame.path.tolist() == b.q.frame.path.tolist()
    own = C.camera_case("smoke", 3, seen=",".join(map(str, b.seen)))
    assert own.q.frame.path.tolist() == b.q.frame.path.tolist()
    assert own.train.frame.path.tolist() == b.train.frame.path.tolist()


def test_what_is_scored_is_what_the_metrics_score(world):
    f = world.frame
    test = f.split == "test"
    some = f.pid[test].unique()
    alone = test & f.pid.isin(some[:4]) & (f.cam != 2)                   # four people under camera 2 only
    role = f.role.where(~(test & (f.cam == 4)), "gallery")               # camera 4 has no query
    gone = test & f.pid.isin(some[4:6]) & (f.cam != 3)                   # two under camera 3 ...
    role = role.where(~(test & f.pid.isin(some[4:6]) & (f.cam == 3)), "query")   # ... without a gallery image
    case = C.own_cameras(changed(world, role=role).take(np.flatnonzero(~(alone | gone))), [0, 1])
    told = C.case_cameras(case).set_index("cam")
    assert told.own_camera.to_dict() == {2: 4, 3: 0} and told.absent.to_dict() == {2: 0, 3: 4}   # two images each
    rng = np.random.default_rng(0)
    q, g = (Embeddings(rng.normal(size=(len(t), 4)), t["pid"], t["cam"]) for t in (case.q, case.g))
    m = retrieval_metrics(q, g, per_query=True)
    for c in case.cams: assert told.scored[c] == (m["per_query"]["n_match"][q.cam == c] > 0).sum()
    assert told.own_camera.sum() == m["skipped"]["same_camera"] and told.absent.sum() == m["skipped"]["absent"]
    text = " ".join(C.case_notes(case))
    assert "Cameras [4] were not trained on and have no query" in text and "of people without a gallery image" in text
    n = told.queries[2]
    assert f"Camera 2: {n - 4} of {n} queries count; 4 of people whom the gallery shows under this camera only" in text


def test_a_camera_that_cannot_be_scored_at_all(world):
    f = world.frame
    test = f.split == "test"
    late = test & (f.cam == 4) & f.pid.isin(f.pid[test].unique()[5:])
    some = changed(world, pid=f.pid.where(~late, f.pid + 5000)).take(np.flatnonzero(~(test & (f.cam == 4) & ~late)))
    case = C.own_cameras(some, [0, 1])
    assert any(n == "Camera 4 is not scored: none of its queries counts." for n in C.case_notes(case))
    with pytest.raises(ValueError, match="no query of .* can be scored. Camera 4"):
        C.own_cameras(some.take(np.flatnonzero((some["split"] == "train") | (some["cam"] == 4))), [0, 1])


@pytest.mark.parametrize("seen, words", [
    ("0,9", r"seen=0,9: 'mine' has no camera 9; choose of \[0, 1, 2, 3, 4\] and leave at least one out"),
    ("0,1,2,3,4", "are all cameras of 'mine' with queries .* leave at least one"),
    ("", "seen is empty; name the cameras"),
    ("zero", "seen='zero' is no list of camera numbers; write them with commas"), ("1,1", "names a camera twice"),
    ("3,4", r"no training image of 'mine' is of these cameras; .* 'train' are \[0, 1, 2\]")])
def test_cameras_that_are_no_case(world, seen, words):
    with pytest.raises(ValueError, match=words): C.own_cameras(changed(world), seen)


def test_tables_that_are_no_case(world, folders):
    for columns, words in ((dict(cam=0), "'mine' has one camera, 0, for all .*or no camera labels.*the column cam"),
                           (dict(role="gallery"), "no query in its split 'test'; set role")):
        with pytest.raises(ValueError, match=words): C.own_cameras(changed(world, **columns), "0")
    bare = folders/"bare.csv"
    bare.write_text("path,pid,split\na.jpg,1,test\n")
    for dataset, kw, words in ((bare, dict(seen="0"), "'bare.csv' has no camera labels .*add the column cam"),
                               (folders/"gone.csv", dict(seen="0"), "is no file; name the .csv or .parquet"),
                               (folders/"list.csv", {}, "is a table of your own: name the cameras"),
                               ("marcet", dict(seen="0"), "neither a registered dataset .* nor a .csv.*'market1501'"),
                               ("cuhk-pedes", dict(seen="0"), "has no cameras, no image queries"),
                               ("world", dict(seen="0", protocol="source"), "protocol='source'; leave seen out")):
        with pytest.raises(ValueError, match=words): C.camera_case("smoke", 0, str(dataset), folders, **kw)


@pytest.mark.parametrize("dataset, root", [("list.csv", None), ("market1501", "market")])
def test_a_study_on_own_cameras(folders, dataset, root):
    where = dict(dataset=dataset if root else str(folders/dataset), data_root=root and folders/root, seen="0,1")
    rows = D.run_study([dict(name="No adaptation"), dict(name="Norm")], "smoke", 3, train=dict(steps=4), **where)
    assert [r["variant"] for r in rows] == ["No adaptation", "Norm"] and rows[0]["case"].endswith("seen 0,1")
    assert rows[0]["n_query"] > 0 and 0 < rows[0]["mAP"] < 100


def test_camera_numbers_of_a_new_network_mean_other_cameras():
    "Unless they are said to be the same, as the released programs take them"
    one, two = (world_table("smoke", seed, "iid") for seed in (3, 4))
    assert [new_network(one, two, same=same).same for same in (None, True, False)] == [False, True, False]
    assert new_network(one, one).same
