"Sets with covered people on folders written by hand, after the loaders and lists that the records cite"
import pytest
from helpers.by_hand import plain_pictures, values

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.occluded_sets import OCCLUDED_SETS
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.retrieval.protocols import PROTOCOLS

# names of lightas/Occluded-DukeMTMC-Dataset:Occluded_Duke/*.list
DUKE = ["bounding_box_train/0001_c2_f0046182.jpg", "bounding_box_train/0001_c5_f0051341.jpg",
        "bounding_box_train/7140_c8_f0160000.jpg", "query/0005_c2_f0046985.jpg", "query/0008_c1_f0050000.jpg",
        "bounding_box_test/0005_c5_f0051781.jpg", "bounding_box_test/0008_c2_f0050100.jpg",
        "bounding_box_test/0023_c1_f0047000.jpg"]
# VlSomers/bpbreid:torchreid/data/datasets/image/occluded_reid.py (.tif), hh23333/PVPM (.jpg)
REID = [f"{kind}_body_images/{pid:03d}/{pid:03d}_{n:02d}.tif" for kind, first in (("occluded", 1), ("whole", 6))
        for pid in (1, 2) for n in (first, first + 1)]
# hh23333/PVPM:torchreid/data/datasets/image/pduke_reid.py
P_DUKE = [f"{part}/{kind}_body_images/{pid:04d}/{pid:04d}_c{cam}_f{46000 + pid:07d}.jpg"
          for part, people in (("train", (1, 9)), ("test", (5, 7))) for kind, cam in (("occluded", 2), ("whole", 8))
          for pid in people]
FILES = {"occluded-duke": DUKE, "occluded-reid": REID, "p-dukemtmc-reid": P_DUKE}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    "One folder a set"
    base = tmp_path_factory.mktemp("occluded")
    return {name: plain_pictures(base / DATASETS[name].folder, files) for name, files in FILES.items()}


def test_queries_of_occluded_duke_are_covered_and_of_others_nobody_says(by_hand):
    t = load_dataset("occluded-duke", by_hand["occluded-duke"], check="all")
    assert values(t.query(), "pid", "cam", "occluded") == [(5, 1, True), (8, 0, True)]
    assert values(t.gallery(), "pid", "cam", "occluded") == [(5, 4, None), (8, 1, None), (23, 0, None)]
    assert t.where(split="train")["pid"].tolist() == [1, 1, 7140] and t.further == ["occluded"]
    report = doctor("occluded-duke", by_hand["occluded-duke"])
    assert "gallery: 2 images of the query identities, 1 of others" in str(report)


@pytest.mark.parametrize("ending", [".tif", ".jpg"])
def test_occluded_reid_is_read_in_either_format(ending, tmp_path):
    folder = plain_pictures(tmp_path / "Occluded_REID", [name.replace(".tif", ending) for name in REID])
    t = load_dataset("occluded-reid", tmp_path, check="all")
    assert values(t.query(), "pid", "occluded") == [(1, True)] * 2 + [(2, True)] * 2
    assert values(t.gallery(), "pid", "occluded") == [(1, False)] * 2 + [(2, False)] * 2
    assert (t["cam"] == -1).all() and set(t["split"]) == {"test"}
    assert "query: 2 ids, 4 images; published: 200, 1000" in str(doctor("occluded-reid", folder))


@pytest.mark.parametrize("spelling", ["P-DukeMTMC-reid", "P-DukeMTMC-reID", "p_dukemtmc_reid"])
def test_p_duke_is_found_in_its_spellings_with_the_cameras_of_its_names(spelling, tmp_path):
    plain_pictures(tmp_path / spelling, P_DUKE)
    t = load_dataset("p-dukemtmc-reid", tmp_path, check="all")
    assert values(t.query(), "pid", "cam", "occluded") == [(5, 1, True), (7, 1, True)]
    assert values(t.gallery(), "pid", "cam", "occluded") == [(5, 7, False), (7, 7, False)]
    assert sorted(values(t.where(split="train"), "pid", "occluded")) == [(1, False), (1, True), (9, False), (9, True)]


def test_p_duke_without_cameras_in_its_names(tmp_path):
    plain_pictures(tmp_path / "P-DukeMTMC-reid", [name.replace("_c2", "").replace("_c8", "") for name in P_DUKE])
    t = load_dataset("p-dukemtmc-reid", tmp_path)
    assert (t["cam"] == -1).all() and len(t) == len(P_DUKE)
    again = load_dataset("p-dukemtmc-reid", export_world(t, "p-dukemtmc-reid", tmp_path / "again"))
    assert values(again, "path", "pid", "occluded") == values(t, "path", "pid", "occluded")


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_again_is_the_same_table(name, by_hand, tmp_path):
    t = load_dataset(name, by_hand[name])
    again = load_dataset(name, export_world(t, name, tmp_path / DATASETS[name].folder), check="all")
    columns = [c for c in t.frame if c not in ("captions", "attrs", "path")]
    assert values(again, *columns) == values(t, *columns)
    assert again["path"].tolist() == t["path"].str.replace(".tif", ".jpg").tolist()   # written in one format


@pytest.mark.parametrize("name", FILES)
def test_records_name_protocols_that_there_are(name):
    spec = OCCLUDED_SETS[name]
    assert DATASETS[name] is spec and set(spec.protocols) <= set(PROTOCOLS) and spec.source
    counts = PROTOCOLS[spec.protocols[0]].counts
    if counts.known: assert (counts.people, counts.queries) == spec.counts["query"]
    if counts.known: assert counts.gallery == spec.counts["gallery"][1]


def test_doctor_names_a_missing_folder_and_names_of_another_set(tmp_path):
    folder = plain_pictures(tmp_path / "Occluded_Duke", DUKE)
    (folder / "query").rename(tmp_path / "gone")
    (folder / DUKE[0]).rename(folder / "bounding_box_train" / "0002_c1s1_000451_03.jpg")
    what = [f.what for f in doctor("occluded-duke", folder).findings if f.level == "error"]
    assert what == ["1 of 3 file names do not parse (expected such as bounding_box_train/0001_c2_f0046182.jpg)",
                    "the folder 'query' is missing"]
    with pytest.raises(TableError, match="'query' is missing"): load_dataset("occluded-duke", folder, skip=True)
    assert len(load_dataset("occluded-duke", folder, skip=True, subsets=["train", "gallery"])) == 5


def test_counts_that_nobody_states_are_no_fault_and_no_match(by_hand):
    text = str(doctor("p-dukemtmc-reid", by_hand["p-dukemtmc-reid"]))
    assert "query: 2 ids, 2 images; no published number is recorded" in text and "as published" not in text


def test_export_needs_to_know_who_is_covered(tmp_path):
    t = tiny_table(8, 4, 0, roles=True).where(split=["train", "test"])
    with pytest.raises(TableError, match="the layout needs the column 'occluded'"):
        export_world(t, "occluded-duke", tmp_path / "a")
    with pytest.raises(TableError, match="2 rows have no folder"):   # the queries of two people are not covered
        export_world(t.assign(occluded=False), "occluded-duke", tmp_path / "a")


def test_a_level_above_0_is_covered_and_an_unknown_one_has_no_place(tmp_path):
    t = tiny_table(8, 4, 0, roles=True).where(split="test")
    levels = t["cam"].map({0: .4, 1: 0., 2: 0., 3: None})
    assert len(LAYOUTS["occluded-reid"].rows(t.assign(occluded=levels))) == 6   # of 8, without the unknown ones
    with pytest.raises(TableError, match="2 rows have no folder"):
        export_world(t.assign(occluded=levels), "occluded-reid", tmp_path / "a")
    fit = LAYOUTS["occluded-reid"].rows(t.assign(occluded=levels))
    back = load_dataset("occluded-reid", export_world(fit, "occluded-reid", tmp_path / "b"))
    assert (back.query()["occluded"].tolist(), back.gallery()["occluded"].tolist()) == ([True] * 2, [False] * 4)
