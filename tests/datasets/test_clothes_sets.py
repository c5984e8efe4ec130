"Clothes-changing sets on folders written by hand, after the loaders and pages that the records cite"
import pytest
from helpers.by_hand import plain_pictures, values

from reid_lab.data.table import TableError
from reid_lab.datasets.clothes_sets import CLOTHES_SETS, OUTFITS
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.protocols import PROTOCOLS

# guxinqian/Simple-CCReID:data/datasets/prcc.py; in testing the same base names are in all folders
PRCC = [*(f"rgb/train/001/{cam}_cropped_rgb001.jpg" for cam in "ABC"),
        "rgb/train/003/A_cropped_rgb010.jpg", "rgb/train/003/C_cropped_rgb011.jpg", "rgb/val/001/A_cropped_rgb002.jpg",
        "rgb/val/003/C_cropped_rgb012.jpg",
        *(f"rgb/test/{cam}/{pid}/cropped_rgb001.jpg" for cam in "ABC" for pid in ("002", "074")),
        "rgb/test/A/002/cropped_rgb002.jpg", "sketch/train/001/A_cropped_sketch001.jpg"]
# naiq/naiq.github.io:LTCC_Perosn_ReID.html: person, outfit of this person, camera, number
LTCC = ["train/000_1_c1_000100.png", "train/000_2_c12_000200.png", "train/004_1_c3_000300.png",
        "query/103_1_c9_017008.png", "query/103_3_c2_017100.png", "query/151_1_c1_020000.png",
        "test/103_1_c4_017009.png", "test/103_3_c9_017101.png", "test/151_1_c1_020001.png", "test/151_1_c5_020002.png"]
# Huang-3/Celeb-reID:reid/data_loader_1stream.py: person, number of the image, a field without meaning;
# in testing people are counted from 1 again
CELEB = ["train/1_1_0.jpg", "train/1_25_0.jpg", "train/2_3_1.jpg", "query/1_12_0.jpg", "query/2_7_0.jpg",
         "gallery/1_13_0.jpg", "gallery/1_20_0.jpg", "gallery/2_8_0.jpg"]
FILES = {"prcc": PRCC, "ltcc": LTCC, "celeb-reid": CELEB, "celeb-reid-light": CELEB}


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory):
    "One folder a set"
    base = tmp_path_factory.mktemp("clothes")
    return {name: plain_pictures(base / DATASETS[name].folder, files) for name, files in FILES.items()}


def test_prcc_has_cameras_of_names_and_of_folders_and_the_clothes_that_follow(by_hand):
    t = load_dataset("prcc", by_hand["prcc"], check="all")
    assert len(t) == len(PRCC) - 1   # without the sketch
    assert values(t.where(split="train"), "pid", "cam", "cam_name", "clothes") == [
        (1, 0, "A", 1001), (1, 1, "B", 1001), (1, 2, "C", 1002), (3, 0, "A", 3001), (3, 2, "C", 3002)]
    assert set(t.where(split="val")["pid"]) == set(t.where(split="train")["pid"])   # the same people by design
    assert values(t.query(), "pid", "cam_name", "clothes") == [
        (2, "B", 2001), (74, "B", 74001), (2, "C", 2002), (74, "C", 74002)]
    assert values(t.gallery(), "pid", "cam_name", "clothes") == [(2, "A", 2001), (2, "A", 2001), (74, "A", 74001)]
    names = t.where(split="test")["path"]
    assert names.nunique() == 7 and names.str.rpartition("/")[2].nunique() == 2
    assert t.further == ["clothes"]


def test_ltcc_counts_outfits_for_each_person_and_the_table_over_people(by_hand):
    t = load_dataset("ltcc", by_hand["ltcc"], check="all")
    assert values(t.query(), "pid", "cam", "clothes") == [(103, 8, 103001), (103, 1, 103003), (151, 0, 151001)]
    assert (t["clothes"] // OUTFITS == t["pid"]).all()
    assert values(t.where(split="train"), "pid", "cam", "clothes") == [(0, 0, 1), (0, 11, 2), (4, 2, 4001)]


@pytest.mark.parametrize("name", ["celeb-reid", "celeb-reid-light"])
def test_celeb_counts_test_people_on_and_knows_no_camera(name, by_hand):
    t = load_dataset(name, by_hand[name], check="all")
    assert values(t.where(split="train"), "pid") == [(1,), (1,), (2,)]
    assert values(t.query(), "pid", "first_digit") == [(3, 1), (4, 7)]
    assert values(t.gallery(), "pid", "first_digit") == [(3, 1), (3, 2), (4, 8)]
    assert (t["cam"] == -1).all() and "clothes" not in t.frame
    alone = load_dataset(name, by_hand[name], subsets=["query", "gallery"])
    assert values(alone, "path", "pid") == values(t.where(split="test"), "path", "pid")   # whatever is read beside them


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_again_is_the_same_table(name, by_hand, tmp_path):
    t = load_dataset(name, by_hand[name])
    again = load_dataset(name, export_world(t, name, tmp_path / DATASETS[name].folder), check="all")
    columns = [c for c in t.frame if c not in ("captions", "attrs")]
    assert values(again, *columns) == values(t, *columns)   # names as well
    assert (again.root / t["path"][0]).read_bytes() == (t.root / t["path"][0]).read_bytes()


@pytest.mark.parametrize("name", FILES)
def test_records_name_protocols_that_there_are(name):
    spec = CLOTHES_SETS[name]
    assert DATASETS[name] is spec and set(spec.protocols) <= set(PROTOCOLS) and spec.source
    counts = PROTOCOLS[spec.protocols[0]].counts
    assert counts.people in (spec.counts["query"][0], None)


PLANTED = {
    "prcc": [("rgb/test/C", "the folder 'rgb/test/C' is missing", None),
             ("rgb/train/001/A_cropped_rgb001.jpg", "expected such as rgb/train/001/A_cropped_rgb001.jpg",
              "rgb/train/001/D_cropped_rgb001.jpg"),
             ("rgb/test/A/002/cropped_rgb001.jpg", "expected such as rgb/test/A/001/cropped_rgb001.jpg",
              "rgb/test/A/002/A_cropped_rgb001.jpg")],
    "ltcc": [("test", "the folder 'test' is missing", None),
             ("test/103_1_c4_017009.png", "test/0103_c4_f017009.png", "test/0103_c4_f017009.png")],
    "celeb-reid": [("train", "the folder 'train' is missing", None),
                   ("query/1_12_0.jpg", "query/0001_c1s1.jpg", "query/0001_c1s1.jpg")]}


@pytest.mark.parametrize("name, at, words, instead", [(n, *fault) for n, faults in PLANTED.items() for fault in faults])
def test_doctor_names_what_is_missing_and_what_does_not_fit(name, at, words, instead, tmp_path):
    folder = plain_pictures(tmp_path / DATASETS[name].folder, FILES[name])
    (folder / at).rename(folder / instead if instead else tmp_path / "gone")
    report = doctor(name, folder)
    error, = [f for f in report.findings if f.level == "error"]
    assert words in f"{error.what} {error.where}" and error.remedy
    if not instead: return
    assert "-p skip=True" in report.text(command=True)
    assert len(load_dataset(name, folder, skip=True)) == len([n for n in FILES[name] if "sketch" not in n]) - 1


def test_doctor_compares_counts_and_tells_outfits(by_hand):
    text = str(doctor("prcc", by_hand["prcc"]))
    assert "train: 2 ids, 5 images; published: 150, 17896" in text
    assert "query: 2 ids, 4 images; published: 71, 7416" in text
    assert "clothes: 8 outfits, 4 of 4 identities in several" in text
    assert "clothes: 6 outfits, 2 of 4 identities in several" in str(doctor("ltcc", by_hand["ltcc"]))
    assert "registered" not in text + str(doctor("celeb-reid", by_hand["celeb-reid"]))   # facts are borne out


def test_export_needs_the_clothes_and_says_what_has_no_place(tmp_path):
    t = tiny_table(8, 4, 0, roles=True)
    with pytest.raises(TableError, match="the layout needs the column 'clothes'") as e:
        export_world(t, "prcc", tmp_path / "a")
    assert "table.assign(clothes=[...])" in str(e.value) and "the table has ['path', 'pid'" in str(e.value)
    dressed = t.assign(clothes=t["pid"])
    with pytest.raises(TableError) as e: export_world(dressed, "prcc", tmp_path / "a")
    for words in ("have no folder in this layout", "split='test', role='query', cam=0", "LAYOUTS['prcc'].rows(table)",
                  "do not wear one outfit for cameras A and B"): assert words in str(e.value), words
    far = dressed.assign(pid=dressed["pid"] + 2000)
    with pytest.raises(TableError, match="do not fit into a file name"): export_world(far, "ltcc", tmp_path / "a")
    assert not (tmp_path / "a").exists()
    fit = LAYOUTS["ltcc"].rows(dressed)   # without the split val
    written = load_dataset("ltcc", export_world(fit, "ltcc", tmp_path / "b"))
    assert sorted(written["clothes"] % OUTFITS) == [1] * len(fit)


@pytest.mark.parametrize("protocol, asks, searched, draws", [
    ("prcc.all-changed", 2, 3, 1), ("prcc.all-same", 2, 3, 1), ("prcc.single-changed", 2, 2, 10),
    ("ltcc.standard", 3, 4, 1), ("ltcc.cc", 3, 4, 1), ("ltcc.cc-filtered", 2, 2, 1),
    ("celeb.none", 2, 3, 1), ("celeb.official", 2, 3, 1)])
def test_rows_that_take_part_in_a_protocol(protocol, asks, searched, draws, by_hand):
    name = protocol.partition(".")[0].replace("celeb", "celeb-reid")
    t = load_dataset(name, by_hand[name])
    plan = apply_protocol(t.query().frame, t.gallery().frame, protocol)
    assert [(len(d.queries), len(d.gallery)) for d in plan.draws] == [(asks, searched)] * draws
