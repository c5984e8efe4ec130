"Contracts of every interactive view: with nothing selected, odd labels, and when it is saved"
import base64
import json
import re
import subprocess
import sys

import nbformat
import pytest
from helpers import ROOT
from helpers.views import LABELS, VIEWS, make_scene, write_notebook

from reid_lab.widgets.maps import ScatterMap
from reid_lab.widgets.scene import RankedList, SceneView
from reid_lab.widgets.view import Board, View, mime_bundle

UNRANKED = {"search", "words"}   # they say the same whatever ranks the scene: a calibrated threshold, a list of words
ONE = "seen only by their own camera|single camera"
SAID = {"one camera": dict(failures="all images are of one camera", cameras=ONE, pairs=ONE),
        "one of each": dict(failures="nobody but the queries' own persons", cameras=ONE, pairs=ONE),
        "one identity": dict(failures="nobody but the queries' own persons", cameras="AP 1.00 → 1.00"),
        "unknown identities": dict(list="identity unknown", failures="pid -1", cameras="mAP is not defined",
                                   attention="id unknown", map=r"(3\.jpg|query 3 \(cam 3\)), 10 neighbours$"),
        "no cameras": dict(cameras="have no camera numbers", pairs="have no camera numbers")}


def subclasses(cls): return {s for c in cls.__subclasses__() for s in (c, *subclasses(c))}


def test_every_view_is_under_contract():
    ours = {c for c in subclasses(View) if c.__module__.startswith("reid_lab.widgets.")}
    assert ours - {SceneView, Board, ScatterMap} == {cls for cls, _ in VIEWS.values()}  # it has tests of its own


@pytest.mark.parametrize("labels", LABELS)
def test_odd_labels_give_a_picture_and_words(make, labels):
    view = make(make_scene(labels))
    pictures = set()
    for query in (None, 3):
        view.selection.query = query
        content = view.content(query)
        json.dumps(content, allow_nan=False)
        assert content["label"] and repr(view).endswith(content["label"])
        pictures.add(view.picture())
    assert len(pictures) == 2 and all(p.startswith(b"\x89PNG") and len(p) < 60_000 for p in pictures)


@pytest.mark.filterwarnings("ignore:every query and every image has pid 0")
@pytest.mark.parametrize("captions", [None, ["a man in red"]*20], ids=["images", "captions"])
@pytest.mark.parametrize("labels", LABELS)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_says_what_it_cannot_show(name, labels, captions):
    "Nothing selected, one camera, one identity, identities or cameras unknown"
    scene = make_scene(labels, captions=captions)
    view, cams = VIEWS[name][1](scene), scene.selection.cameras
    def says():
        content = view.content(scene.selection.query)
        return " ".join(str(content.get(key, "")) for key in ("message", "remarks", "label"))
    assert re.search("no query selected|nothing (was measured|asked)", says())
    for selected in (dict(query=3), dict(gallery=[2, 5]), dict(camera=cams[0] if cams else None), dict(gallery=[])):
        scene.selection.set(**selected)
        assert re.search(SAID.get(labels, {}).get(name, "."), says()), says()
    assert not captions or view.picture().startswith(b"\x89PNG")
    scene.selection.set(query=None, camera=None)
    assert re.search("no query selected|nothing (was measured|asked)", says())


def test_the_picture_stands_alone_where_nobody_is_live(make):
    view = make(make_scene(query=1))
    bundle = mime_bundle(view)
    assert set(bundle) == {"text/plain", "image/png"} and base64.b64decode(bundle["image/png"]) == view.picture()
    assert view._front is None, "no widget may be made"


def test_the_widget_stands_beside_the_picture_where_somebody_is(make, monkeypatch):
    monkeypatch.setenv("REID_LAB_WIDGETS", "on")
    view = make(make_scene(query=1))
    bundle = mime_bundle(view)
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == view.front().model_id
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert len(json.dumps([view.front().now, view.front().fixed])) < 100_000
    view.front().close()


def test_state_can_be_set_and_is_checked(make):
    view = make(make_scene(query=1), title="one")
    before = view.picture()
    view.title = "another"
    assert view.picture() != before and view.state()["title"] == "another"
    with pytest.raises(ValueError, match="Did you mean 'title'"): view.set(titel="x")
    with pytest.raises(ValueError, match="choose one of"): make(make_scene(), size=3)
    view.receive(dict(ui=dict(title="from the browser"), select=dict(query=7)))
    assert (view.title, view.selection.query) == ("from the browser", 7)
    for select in (dict(query=99), dict(camera=77)): view.receive(dict(select=select))
    for ui in (dict(title=3), dict(a=1)): view.receive(dict(ui=ui))
    assert (view.title, view.selection.query, view.selection.camera) == ("from the browser", 7, None)


def test_a_change_of_the_selection_reaches_all_views_once():
    scene = make_scene(query=1)
    views, told = [make(scene) for _, make in VIEWS.values()], []
    for view in views:
        view.front()
        view.receive(dict(shown=1))
        view._front.observe(lambda change: told.append(change["new"]["label"]), "now")
    views[0].receive(dict(select=dict(query=4)))
    assert len(told) == len(views) and all("4.jpg" in t for t in told)
    assert all(v.front().select["query"] == 4 for v in views)
    scene.scores = -scene.ranker.scores.block(0, 20).clone()
    fixed = len(UNRANKED)   # which say the same of any image
    assert len(told) == 2*len(views) - fixed, "another ranking is told too"
    views[0].selection.gallery = (2,)
    maps = [v for v in views if "gallery" in v.follows]
    assert len(told) == 2*len(views) - fixed + len(maps) and all(v.front().select["gallery"] == [2] for v in views)
    for view in views: view.front().close()


def test_boards_share_one_selection():
    scene = make_scene(query=1)
    board = Board(*(make(scene) for _, make in VIEWS.values()))
    before = board.picture()
    scene.selection.query = 2
    assert board.picture() != before and len(re.findall(r"\b2\.jpg", repr(board))) == len(VIEWS)
    with pytest.raises(ValueError, match=r"views\[1\] has another selection"):
        Board(RankedList(scene), RankedList(make_scene()))


@pytest.mark.whole
def test_a_plain_papermill_run_stores_a_picture_and_no_widget(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out = tmp_path/"out.ipynb"
    subprocess.run([sys.executable, "-m", "papermill", "-k", "python3", "--no-progress-bar",
                    str(write_notebook(tmp_path/"in.ipynb")), str(out)], check=True, capture_output=True, timeout=600)
    nb = nbformat.read(out, 4)
    (shown,) = nb.cells[1].outputs
    assert "widgets" not in nb.metadata and set(shown.data) == {"text/plain", "image/png"}
    assert base64.b64decode(shown.data["image/png"]).startswith(b"\x89PNG") and out.stat().st_size < 300_000
    print(f"saved notebook: {out.stat().st_size/1000:.0f} kB")
