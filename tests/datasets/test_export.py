"Every layout comes back as it was written; what has no place is refused, and an interruption leaves nothing"
from pathlib import Path

import numpy as np
import pytest
from helpers.layouts import TEXT, small
from PIL import Image

from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import load_dataset

pytestmark = pytest.mark.usefixtures("no_user_settings")


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_round_trip(layout, written):
    spec, want = LAYOUTS[layout], small(layout)
    got = load_dataset(spec.dataset, written[layout], check="all")
    assert isinstance(got, ReidTable) and got.name == spec.dataset and len(got) == len(want)
    for c in set(spec.keeps) - {"attrs"}: assert got[c].tolist() == want[c].tolist(), c
    assert np.abs(got.images().astype(int) - want.images()).mean() < 8
    start = {".jpg": b"\xff\xd8", ".jpeg": b"\xff\xd8", ".png": b"\x89P", ".bmp": b"BM"}
    assert got["path"].is_unique
    assert all((got.root / p).read_bytes()[:2] == start[Path(p).suffix] for p in got["path"])
    assert len(got.gallery(got["split"].iloc[-1])) > 0


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_second_export_is_the_same(layout, written, tmp_path):
    "JPEG files are copied and the annotation is written alike"
    again = export_world(load_dataset(LAYOUTS[layout].dataset, written[layout]), layout, tmp_path / "again")
    files = lambda root: {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    assert files(again) == files(written[layout])


@pytest.mark.parametrize("layout", TEXT)
def test_world_survives_each_layout(layout, tmp_path):
    w = load_dataset("world", preset="smoke").where(captions=len)
    spec = LAYOUTS[layout]
    if layout == "ufine3c":
        with pytest.raises(TableError, match="this layout is a test set"): export_world(w, layout, tmp_path / "w")
        w = w.where(split="test")
    w = w.take(np.sort(np.random.default_rng(0).permutation(len(w))[:40]))
    got = load_dataset(spec.dataset, export_world(w, layout, tmp_path / "w"), check="all")
    key = lambda t, first: sorted(zip(t["split"] if "split" in spec.keeps else t["cam"] * 0,
                                      t["captions"].map(lambda c: c[:1] if first else c)), key=str)
    assert key(got, layout == "mals") == key(w, layout == "mals") and doctor(spec.dataset, tmp_path / "w").ok


def test_export_refuses_what_would_be_lost(tmp_path):
    t = tiny_table()
    with pytest.raises(ValueError, match="layout='market' is not known"): export_world(t, "market", tmp_path / "x")
    silent = ReidTable(t.frame.assign(captions=[[]] * 12), None, t.reader)
    for layout in set(TEXT) - {"ufine3c"}:
        spec = LAYOUTS[layout]
        if spec.needs_caption:
            with pytest.raises(TableError, match="without a caption"): export_world(silent, layout, tmp_path / layout)
        else: assert len(load_dataset(spec.dataset, export_world(silent, layout, tmp_path / layout))) == 12
    junk = ReidTable(t.frame.assign(pid=[-1] + t.frame.pid.tolist()[1:], split="test"), None, t.reader)
    with pytest.raises(TableError, match="junk"): export_world(junk, "rstpreid", tmp_path / "y")
    assert sorted(p.name for p in tmp_path.iterdir() if p.name in "xy") == []


def test_export_can_number_people_as_the_benchmarks_do(tmp_path):
    t = tiny_table(8, 2)
    t = ReidTable(t.frame.assign(pid=97 - 3 * t.frame.pid), None, t.reader).take(range(15, -1, -1))
    got = load_dataset("cuhk-pedes", export_world(t, "cuhk-pedes", tmp_path / "c", renumber=True))
    first = {s: got["pid"][got["split"] == s] for s in ("train", "val", "test")}
    assert sorted(set(first["train"])) == [0, 1, 2, 3] and sorted(set(first["val"])) == [4, 5]
    assert set(first["test"]) == {6, 7}
    assert len(set(zip(t["pid"], got["pid"]))) == 8 and got["captions"].tolist() == t["captions"].tolist()


def test_export_leaves_existing_folders_alone(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/a.txt").write_text("keep")
    with pytest.raises(ValueError, match="exists and is not empty"):
        export_world(tiny_table(), "mals", tmp_path / "mine")
    assert (tmp_path / "mine/a.txt").read_text() == "keep"
    (tmp_path / "empty").mkdir()
    assert len(load_dataset("mals", export_world(tiny_table(), "mals", tmp_path / "empty"))) == 12


@pytest.mark.parametrize("exception", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_interrupted_export_leaves_nothing(tmp_path, monkeypatch, exception):
    calls = []
    def save(self, *a, **kw):
        calls.append(1)
        if len(calls) == 5: raise exception
        return whole(self, *a, **kw)
    whole = Image.Image.save
    monkeypatch.setattr(Image.Image, "save", save)
    with pytest.raises(type(exception)): export_world(tiny_table(), "cuhk-pedes", tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir() if p.name != "home"] == []
