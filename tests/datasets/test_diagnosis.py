"The doctor: wrong records, wrong files, and folders in any state"
from dataclasses import replace

import pandas as pd
import pytest
from helpers.layouts import FROM_DISK, small
from PIL import Image

from reid_lab.data.table import ReidTable
from reid_lab.datasets.diagnosis import _check_shared_captions, doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS

pytestmark = pytest.mark.usefixtures("no_user_settings")


@pytest.mark.parametrize("fact", ["captions", "cameras", "image_queries"])
def test_the_doctor_sees_a_wrong_record(fact, written, monkeypatch):
    monkeypatch.setitem(DATASETS, "rstpreid",
                        replace(DATASETS["rstpreid"], **{fact: not getattr(DATASETS["rstpreid"], fact)}))
    report = doctor("rstpreid", written["rstpreid"])
    assert f"{fact.replace('_', ' ')}: {fact != 'image_queries'}, registered: {fact == 'image_queries'}" in str(report)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_doctor_likes_what_export_wrote(layout, written):
    report = doctor(LAYOUTS[layout].dataset, written[layout])
    assert report.ok and len(report.table) == len(small(layout))
    unstated = ("p-dukemtmc-reid", "synth-pedes", "luperson")
    level = "ok" if LAYOUTS[layout].dataset in unstated else "warn"   # whose counts nobody states
    assert any(f.level == level and "published" in f.what for f in report.findings)  # 16 images are not 40 206
    assert set(report.frame().columns) == {"level", "what", "where", "remedy"}
    assert "<table>" in report._repr_html_() and LAYOUTS[layout].dataset in repr(report)


@pytest.mark.parametrize("name", FROM_DISK)
def test_doctor_never_raises_over_the_state_of_a_folder(name, tmp_path):
    for root in (None, tmp_path, tmp_path / "nowhere"):
        report = doctor(name, root)
        assert not report.ok and report.table is None and "REID_LAB_DATA" in str(report)


def test_the_doctor_finds_one_file_among_many_and_says_what_it_did_not_look_at(tmp_path):
    root = export_world(tiny_table(60, 5), "cuhk-pedes", tmp_path / "many")
    images = sorted((root / "imgs").rglob("*.jpg"))
    images[7].write_bytes(b"")
    images[150].write_text("<html>")
    images[222].write_bytes(images[222].read_bytes()[:-40])
    Image.new("RGB", (1, 128)).save(images[100])
    Image.new("RGB", (3, 2)).save(images[101])
    report = str(doctor("cuhk-pedes", root, n=3))
    for words in ("1 of 300 image files is empty", "1 of 300 image files is an HTML page", images[150].name,
                  "2 degenerate crops", "1 x 128", "3 x 2", "decoded 3 of 300 images; --all decodes every one"):
        assert words in report
    assert "cut short" not in report
    report = str(doctor("cuhk-pedes", root, check="all"))
    assert "cut short" in report and images[222].name in report and "decoded 298 of 300 images, all whose" in report


def test_captions_of_other_identities():
    t = tiny_table(n_ids=8)
    assert _check_shared_captions(t)[0].level == "ok"
    same = ReidTable(t.frame.assign(captions=pd.Series([["A person."]]*len(t))), None, t.reader)
    found = _check_shared_captions(same)[0]
    assert found.level == "warn" and "train 100.0%" in found.what and "4 identities of train" in found.where


def test_remedies_are_options_of_the_command(tmp_path):
    from reid_lab.datasets.diagnosis import command_remedy, doctor, loader_options
    from reid_lab.datasets.image_sets import tiny_table, write_image_set
    write_image_set(tiny_table(8, 2, 0, roles=True).where(split=["train", "test"]), tmp_path, "market1501")
    (tmp_path/"query"/"photo.jpg").write_bytes(b"x")
    assert "pass -p skip=True" in doctor("market1501", tmp_path).text(command=True)
    assert doctor("market1501", tmp_path, skip=True).ok
    options = loader_options("market1501")
    assert command_remedy("load with drop_bad=True", options) == "in Python load with drop_bad=True"


def _said(*rows):
    "What the doctor finds on captions of (split, person, caption) rows"
    frame = pd.DataFrame([dict(path=f"{i}.jpg", pid=pid, split=split, captions=[*captions])
                          for i, (split, pid, *captions) in enumerate(rows)])
    found = _check_shared_captions(ReidTable(frame, "nowhere"))
    return found[0] if found else None


def test_one_sentence_for_all_of_a_split_is_found_in_that_split():
    found = _said(("train", 0, "a man"), ("train", 1, "a woman"), ("test", 2, "a person"), ("test", 3, "a person"))
    assert found.level == "warn" and "train 0.0%, test 100.0%" in found.what
    assert found.where == "'a person' is said of 2 identities of test"


def test_one_sentence_for_all_images_of_one_person_is_fine():
    found = _said(("test", 0, "a man", "a man"), ("test", 0, "a man"), ("test", 1, "a woman"))
    assert found.level == "ok" and "test 0.0%" in found.what


@pytest.mark.parametrize("other", ["A man in red", "a  man in\tred", " a man in red\n", "A MAN IN RED"])
def test_capital_letters_and_spaces_make_no_other_sentence(other):
    found = _said(("val", 0, "a man in red"), ("val", 1, other), ("val", 2, "a man in blue"), ("val", 2, "a hat"))
    assert found.level == "warn" and "val 50.0%" in found.what and "of 2 identities of val" in found.where


def test_a_sentence_of_two_splits_is_no_shared_one():
    found = _said(("train", 0, "a man"), ("test", 1, "a man"), ("val", 2, "a man"), ("test", 2, "a coat"))
    assert found.level == "ok" and "train 0.0%, val 0.0%, test 0.0%" in found.what


def test_few_shared_sentences_are_counted_without_a_warning():
    rows = [("test", i, f"person number {i}") for i in range(48)]
    assert _said(*rows, ("test", 48, "a man"), ("test", 49, "a man")).level == "ok"
    found = _said(*rows[:30], ("test", 48, "a man"), ("test", 49, "a man"))
    assert found.level == "warn" and "test 6.2%" in found.what


def test_captions_of_nobody_are_not_compared():
    assert _said(("test", -1, "a man"), ("test", -1, "a man")) is None
    assert _said(("test", -1, "a man"), ("test", 0, "a man"), ("test", 1, "a hat")).level == "ok"
    assert _said(("test", 0), ("test", 1)) is None
