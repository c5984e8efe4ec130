"PKU-Sketch: a folder written by hand as its ReadMe.txt describes it, and every way in which it is wrong"
import numpy as np
import pytest
from helpers.by_hand import picture

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.datasets.sketch_sets import sketch_rows, sketch_test_people, unfit_sketch
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.protocols import PROTOCOLS

pytestmark = pytest.mark.usefixtures("no_user_settings")

# ReadMe.txt of the archive: sketch '1.jpg', photo '1_05_356.jpg', 'a_46.txt' with 46 people of style a; people
# and frames are those of BV003/ReIDBaseline:data/PKUSketchRE-ID_V1/idx
PHOTOS = ["1_05_356.jpg", "1_07_10697.jpg", "8_07_20433.jpg", "8_03_3301.jpg", "56_03_28740.jpg", "56_05_3435.jpg",
          "113_04_10254.jpg", "113_06_22087.jpg"]
STYLES = {"a": [1, 113], "c": [8, 56]}
LISTS = {"train": [1, 8, 56], "test": [113]}


@pytest.fixture
def pku(tmp_path):
    root = tmp_path/"PKUSketchRE-ID_V1"
    for name in PHOTOS: picture(root/"photo"/name)
    for pid in (1, 8, 56, 113): picture(root/"sketch"/f"{pid}.jpg")
    (root/"styleAnnotation").mkdir()
    for letter, people in STYLES.items():
        (root/"styleAnnotation"/f"{letter}_{len(people)}.txt").write_text("".join(f"{pid}\r\n" for pid in people))
    return root


def write_lists(root, trial=1, lists=LISTS):
    (root/"idx").mkdir(exist_ok=True)
    for split, people in lists.items():
        text = "".join(f"sketch/{pid}.jpg {pid} 0 1\n" for pid in people)
        (root/f"idx/{split}_sketch_{trial}.txt").write_text(text)


def test_rows_by_the_lists(pku):
    write_lists(pku)
    t = load_dataset("pku-sketch", pku.parent, check="all")
    got = {path: rest for path, *rest in zip(t["path"], t["pid"], t["cam_name"], t["modality"], t["style"], t["role"])}
    assert len(got) == 12 and t.further == ["modality", "style"]
    assert got["photo/8_07_20433.jpg"] == [8, "7", "visible", "c", "both"]
    assert got["sketch/113.jpg"] == [113, "0", "sketch", "a", "query"]
    assert got["photo/113_04_10254.jpg"][-1] == "gallery"
    test = t.where(split="test")
    plan = apply_protocol(test.frame, test.frame, "pku-sketch")
    assert test["path"][plan.queries()].tolist() == ["sketch/113.jpg"]
    assert test["path"][plan.gallery()].tolist() == ["photo/113_04_10254.jpg", "photo/113_06_22087.jpg"]
    report = str(doctor("pku-sketch", pku))
    assert "8 photographs, 4 sketches; styles: a 2, c 2" in report
    assert "query: 1 ids, 1 images; published: 50, 50" in report
    write_lists(pku, 1, dict(train=[1], test=[113]))
    assert "left out: 2 people that the lists of trial 1 do not name" in str(doctor("pku-sketch", pku))


def test_people_of_a_trial_without_lists(pku):
    "A quarter of the people, as even over the styles as can be; trials differ and are the same each time"
    tests = [set(load_dataset("pku-sketch", pku, trial=k).where(split="test")["pid"]) for k in range(1, 11)]
    assert all(len(people) == 1 for people in tests) and len({min(people) for people in tests}) > 1
    styles = dict(enumerate("a"*46 + "b"*20 + "c"*79 + "d"*33 + "e"*22, 1))   # the sizes that the archive has
    for trial in range(1, 11):
        tested = sketch_test_people(styles, trial)
        counts = {letter: sum(styles[pid] == letter for pid in tested) for letter in "abcde"}
        assert counts == dict(a=11, b=5, c=20, d=8, e=6) and tested == sketch_test_people(styles, trial)
    rng = np.random.default_rng(0)
    for _ in range(20):
        some = {pid: "abc"[k] for pid, k in enumerate(rng.integers(0, 3, rng.integers(4, 40)))}
        tested = sketch_test_people(some, 1)
        assert len(tested) == len(some)//4
        for letter in set(some.values()):
            share = sum(value == letter for value in some.values())*(len(some)//4)/len(some)
            assert abs(sum(some[pid] == letter for pid in tested) - share) < 1
    with pytest.raises(ValueError, match="trial=11 is not known"): load_dataset("pku-sketch", pku, trial=11)


@pytest.mark.parametrize("fault, says", [
    (lambda root: (root/"photo").rename(root/"photos"), "the folder 'photo' is missing"),
    (lambda root: picture(root/"photo"/"1.jpg"), r"1 names do not parse .expected such as photo/1_05_356.jpg"),
    (lambda root: (root/"styleAnnotation/b_1.txt").write_text("8\n"), "person 8 is drawn in the styles b and c"),
    (lambda root: (root/"styleAnnotation/a_2.txt").write_text("one\n"), "a line has no number in field 1 .'one'"),
    (lambda root: write_lists(root, 1, dict(train=[1], test=[1])), "person 1 is in both lists of trial 1")])
def test_faults(pku, fault, says):
    fault(pku)
    with pytest.raises(TableError, match=says): load_dataset("pku-sketch", pku)
    assert not doctor("pku-sketch", pku).ok


def test_what_is_written_has_a_sketch_a_person(tmp_path):
    t = tiny_table(8, 4, 0).where(split=["train", "test"])
    t = t.assign(modality=["visible", "visible", "sketch", "sketch"]*(len(t)//4))
    assert "have no sketch, or several" in str(unfit_sketch(t)[0])
    rows = sketch_rows(t)
    assert unfit_sketch(rows) == [] and (rows["modality"] == "sketch").sum() == rows["pid"].nunique() == 6
    root = export_world(rows, "pku-sketch", tmp_path/"PKUSketchRE-ID_V1")
    assert sorted(p.name for p in (root/"styleAnnotation").iterdir()) == ["a_6.txt"]
    assert len(load_dataset("pku-sketch", root).where(split="test")) == 6
    (root/"sketch/0.jpg").unlink()
    (root/"idx/train_sketch_1.txt").unlink()
    assert "1 people lack a sketch or photographs" in str(doctor("pku-sketch", root))


def test_the_record():
    spec, protocol = DATASETS["pku-sketch"], PROTOCOLS["pku-sketch"]
    assert spec.protocols == (protocol.name,) and protocol.splits == 10
    assert (protocol.counts.queries, protocol.counts.gallery) == (spec.counts["query"][1], spec.counts["gallery"][1])
