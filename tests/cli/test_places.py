"What is to be written is tried before the work: no command computes first and then finds that it may not write"
import contextlib
import importlib
import os
import pkgutil
from pathlib import Path

import pytest
from helpers.small_place import write_small_place

import reid_lab
from reid_lab.cli.commands import main
from reid_lab.core.files import check_writable

CLOSED = Path("/proc")  # takes no files, whoever asks
pytestmark = pytest.mark.skipif(not CLOSED.is_dir(), reason="no folder that nobody may write to is known here")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    "Crops, features of them, weights, marks and frames with boxes"
    folder = tmp_path_factory.mktemp("place")
    write_small_place(folder)
    (folder/"marks.json").write_text("{}")
    (folder/"boxes.csv").write_text("path,x,y,w,h\n0.png,0,0,9,9\n")
    return folder


TWO = ["features", "features"]
WRITING = {
    "embed": ["embed", "crops", "--model", "bot_tiny", "--out", "{}/new"],
    "embed, shards": ["embed", "crops", "--model", "bot_tiny", "--shards", "--out", "{}/new"],
    "search": ["search", "features", "--image", "crops/0.png", "--html", "{}/new.html"],
    "match": ["match", *TWO, "--out", "{}/new.csv"],
    "match, page": ["match", *TWO, "--html", "{}/new.html"],
    "calibrate": ["calibrate", *TWO, "--out", "{}/new.json"],
    "crops": ["crops", "crops", "--boxes", "boxes.csv", "--out", "{}/new"],
    "detect": ["detect", "crops", "--weights", "osnet.pth", "--out", "{}/new.csv"],
    "pack": ["pack", "crops", "--out", "{}/new"],
    "compare": ["compare", "features", "features", "--out", "{}/new.md"],
    "compare, figure": ["compare", "features", "features", "--figure", "{}/new.pdf"],
    "labels": ["labels", "apply", "features", "marks.json", "--out", "{}/new.csv"],
    "bias": ["bias", *TWO, "--out", "{}/new"],
    "weights convert": ["weights", "convert", "osnet.pth", "{}/new.safetensors", "--model", "bot_tiny"],
    "weights export": ["weights", "export", "bot_tiny", "--format", "reid", "--out", "{}/new"],
    "results page": ["results", "page", "{}/new.html"],
    "reproduce": ["reproduce", "run", "bot-market1501", "--weights", "osnet.pth", "--data", "crops", "--out",
                  "{}/new.json"],
    "run": ["run", "camel", "-p", "preset=smoke", "--out", "{}/new"],
    "sweep": ["sweep", "camel", "-p", "preset=smoke", "--out", "{}/new"]}


@pytest.fixture(scope="module")
def imported():
    "Every module, before a function is replaced: one that is imported meanwhile would keep the replacement"
    for found in pkgutil.walk_packages(reid_lab.__path__, "reid_lab."):
        if not found.name.endswith("__main__"): importlib.import_module(found.name)


@pytest.mark.parametrize("words", WRITING.values(), ids=WRITING)
def test_a_folder_that_takes_no_files_is_refused_before_the_work(words, place, imported, monkeypatch, capsys):
    monkeypatch.chdir(place)
    def works(*args, **kw): raise AssertionError("the work had begun")
    for target in ("reid_lab.recipes.crops.open_embedder", "reid_lab.recipes.exporting.open_embedder",
                   "reid_lab.recipes.crops.open_features", "reid_lab.data.crops.crops_table",
                   "reid_lab.datasets.wildlife_frames.crops_or_frame", "reid_lab.models.detectors.open_detector",
                   "reid_lab.models.convert.inspect_weights", "reid_lab.results.rows.load_results",
                   "reid_lab.recipes.reproduce.reproduce", "reid_lab.experiments.notebooks._execute"):
        monkeypatch.setattr(target, works)
    with contextlib.suppress(SystemExit): assert main([word.format(CLOSED) for word in words]) == 2
    said = capsys.readouterr().err
    assert "'/proc' cannot be written to" in said and "choose another place" in said, said
    assert "Traceback" not in said and "work had begun" not in said


def test_a_file_in_the_way_and_a_folder_with_its_name(place, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["match", *TWO, "--out", "boxes.csv/new.csv"]) == 2
    assert "boxes.csv' is a file, and no folder" in capsys.readouterr().err
    (tmp_path/"x.csv").mkdir()
    assert main(["match", *TWO, "--fresh", "--out", str(tmp_path/"x.csv")]) == 2
    assert "is a folder; name a file in it" in capsys.readouterr().err


def test_the_trial_leaves_nothing_and_looks_into_a_folder_that_is_there(tmp_path, monkeypatch):
    check_writable(tmp_path/"a"/"b"/"new.csv")
    assert not [*tmp_path.iterdir()]
    tried = []
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: tried.append(dir) or open(os.devnull))
    (tmp_path/"there").mkdir()
    check_writable(tmp_path/"there")
    assert tried == [tmp_path, tmp_path/"there"]    # it may be replaced, or added to
    with pytest.raises(PermissionError, match="^--out x: the folder '/proc' cannot be written to"):
        monkeypatch.undo()
        check_writable(CLOSED/"x", "--out x")
