"""Contracts of every interactive view: with nothing selected, odd labels, hostile text, and when it is saved"""
import base64
import gc
import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pytest
from helpers.views import EVIL, LABELS, VIEWS, embedded, lost_files, make_scene, write_notebook
from matplotlib.text import Text

from reid_lab.analysis.bias.maps import project_pair
from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.tags import read_tags, tag
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.cameras import AdaptedScene, CameraBars, cockpit
from reid_lab.widgets.failures import FailureBrowser, _shown
from reid_lab.widgets.maps import FeatureMap, ScatterMap
from reid_lab.widgets.page import page_html
from reid_lab.widgets.scene import RankedList, Scene, SceneView
from reid_lab.widgets.search import SearchPage
from reid_lab.widgets.selection import Selection
from reid_lab.widgets.view import Board, View, mime_bundle

ROOT = Path(__file__).resolve().parents[2]
UNRANKED = {"search", "words"}   # they say the same whatever ranks the scene: a calibrated threshold, a list of words
ONE = "seen only by their own camera|single camera"
SAID = {"one camera": dict(failures=ONE, cameras=ONE, pairs=ONE),
        "one of each": dict(failures=ONE, cameras=ONE, pairs=ONE),
        "one identity": dict(failures="nobody but the queries' own persons", cameras="AP 1.00 → 1.00"),
        "unknown identities": dict(list="identity unknown", failures="pid -1", cameras="mAP is not defined",
                                   attention="id unknown", map="query 3, 10 neighbours$"),
        "no cameras": dict(cameras="have no camera numbers", pairs="have no camera numbers")}


@pytest.fixture(params=VIEWS)
def make(request): return VIEWS[request.param][1]


def subclasses(cls): return {s for c in cls.__subclasses__() for s in (c, *subclasses(c))}


def test_every_view_is_under_contract():
    ours = {c for c in subclasses(View) if c.__module__.startswith("reid_lab.widgets.")}
    assert ours - {SceneView, Board, ScatterMap} == {cls for cls, _ in VIEWS.values()}  # it has tests of its own


@pytest.mark.parametrize("labels", LABELS)
def test_a_map_of_another_library_says_what_the_map_says(labels):
    "All points, with jupyter-scatter: marks and words follow, odd labels are no traceback, hostile text is text"
    scene = make_scene(labels)
    frame = project_pair(scene.q, scene.g, "pca").assign(site=EVIL)
    plain, big = FeatureMap(scene, frame, title=EVIL), ScatterMap(scene, frame, title=EVIL)
    big.front()
    for selected in ({}, dict(query=3), dict(gallery=[2, 5]), dict(camera=next(iter(scene.selection.cameras), None)),
                     dict(query=None)):
        scene.selection.set(**selected)
        assert big.content(scene.selection.query) == plain.content(scene.selection.query)
        assert big._plot.widget.selection.tolist() == big.marked().tolist()
        assert "&lt;img" in big._said.value and "<img" not in big._said.value
    for colour in big.choices(): big.colour = colour
    plain.colour = colour
    assert big.picture() == plain.picture()
    big.front().close()


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
    says = lambda: " ".join(str(view.content(scene.selection.query).get(k, "")) for k in ("message", "said", "label"))
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
    view.heard(dict(ui=dict(title="from the browser"), select=dict(query=7)))
    assert (view.title, view.selection.query) == ("from the browser", 7)
    for select in (dict(query=99), dict(camera=77)): view.heard(dict(select=select))
    for ui in (dict(title=3), dict(a=1)): view.heard(dict(ui=ui))
    assert (view.title, view.selection.query, view.selection.camera) == ("from the browser", 7, None)


def test_a_change_of_the_selection_reaches_all_views_once():
    scene = make_scene(query=1)
    views, told = [make(scene) for _, make in VIEWS.values()], []
    for view in views:
        view.front()
        view.heard(dict(shown=1))
        view._front.observe(lambda change: told.append(change["new"]["label"]), "now")
    views[0].heard(dict(select=dict(query=4)))
    assert len(told) == len(views) and all("query 4" in t for t in told)
    assert all(v.front().select["query"] == 4 for v in views)
    scene.scores = -scene.ranker.scores.block(0, 20).clone()
    fixed = len(UNRANKED)   # which say the same of any image
    assert len(told) == 2*len(views) - fixed, "another ranking is told too"
    views[0].selection.gallery = (2,)
    maps = [v for v in views if "gallery" in v.follows]
    assert len(told) == 2*len(views) - fixed + len(maps) and all(v.front().select["gallery"] == [2] for v in views)
    for view in views: view.front().close()


def test_views_that_are_gone_are_not_told():
    scene, told = make_scene(query=1), []
    class Told(RankedList):
        def _selected(self, new): told.append(new)
    view = Told(scene)
    scene.selection.query = 2
    del view
    gc.collect()
    scene.selection.query = 3
    assert told == [dict(query=2)]


def test_hostile_text_stays_text(make):
    e = embedded()
    text = Embeddings(e.emb[:20], e.pid[:20], caption=[f"a man {EVIL} in red"]*20)
    gallery = Embeddings(e.emb[20:], e.pid[20:], e.cam[20:], path=[f"{EVIL}{i}.jpg" for i in range(40)],
                         columns=dict(site=np.array([EVIL]*40)))
    view = make(Scene(text, gallery, query=3), title=EVIL)
    page = page_html([view], title=EVIL, queries=[3])
    assert "<img" not in page and "&lt;img" in page and "\\u003cimg" in page
    assert page.count("</script>") == page.count("<script") and view.picture().startswith(b"\x89PNG")


def test_front_ends_write_text_only():
    for path in (ROOT/"reid_lab"/"resources"/"front").glob("*.js"):
        text = path.read_text(encoding="utf-8")
        found = [w for w in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "http:", "https:")
                 if w in text]
        assert not found, (path.name, found)


def test_a_lost_image_is_a_box_with_its_name(tmp_path):
    from PIL import Image
    files = [tmp_path/f"crop{i}.png" for i in range(40)]
    for f in files: Image.new("RGB", (32, 64), "red").save(f)
    e = embedded()
    view = RankedList(Scene(e[:20], e[20:], files, query=0))
    first, second = (it["row"] for it in view.content(0)["items"][:2])
    files[first].unlink()
    files[second].write_text("<html>")
    view = RankedList(Scene(e[:20], e[20:], files, query=0))
    thumbs = [it["thumb"] for it in view.content(0)["items"][:3]]
    assert thumbs[0] == dict(missing=f"crop{first}.png") and thumbs[1] == dict(missing=f"crop{second}.png")
    assert thumbs[2]["uri"].startswith("data:image/jpeg;base64,") and view.picture().startswith(b"\x89PNG")


@pytest.mark.parametrize("name, place", [("list", "items"), ("search", "items"), ("failures", "one"),
                                         ("attention", "panels")])


def test_a_lost_image_is_named_in_every_view(name, place, tmp_path):
    view = VIEWS[name][1](lost_files(tmp_path))
    content = view.content(0)
    first = view.scene.ranker(0, 1)[0][0]
    assert f'{{"missing": "crop{20 + first}.png"}}' in json.dumps(content[place]) and "uri" not in json.dumps(content)
    drawn = [t.get_text() for t in view.draw().findobj(Text)]
    assert any(f"crop{20 + first}" in t.replace("\n", "") for t in drawn) and view.picture().startswith(b"\x89PNG")


def test_a_page_needs_nothing_else(make, tmp_path):
    view = make(make_scene(query=1))
    page = view.to_html(tmp_path/"page.html", queries=range(3)).read_text(encoding="utf-8")
    ours = page.split('<script type="text/plain"')[0]
    assert "default-src 'none'" in page and "http:" not in ours and "https:" not in ours
    assert not [a for a in ('src="', 'href="', "@import", "url(") if a in ours]
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]
    with pytest.raises(ValueError, match="theme='blue'"): view.to_html(tmp_path/"other.html", theme="blue")
    assert not (tmp_path/"other.html").exists()


def test_boards_share_one_selection():
    scene = make_scene(query=1)
    board = Board(*(make(scene) for _, make in VIEWS.values()))
    before = board.picture()
    scene.selection.query = 2
    assert board.picture() != before and repr(board).count("query 2") == len(VIEWS)
    with pytest.raises(ValueError, match=r"views\[1\] has another selection"):
        Board(RankedList(scene), RankedList(make_scene()))


def test_a_follower_may_go_while_others_are_told():
    scene, told = make_scene(query=1), []
    class Told(RankedList):
        def _selected(self, new): told.append(new)
        def refresh(self): told.append("ranking")
    class Drops(Told):
        def _selected(self, new): later.clear(); gc.collect()
        refresh = lambda self: self._selected(None)
    first, later = Drops(scene), [Told(scene)]
    scene.selection.query = 2
    later.append(Told(scene))
    scene.scores = -scene.ranker.scores.block(0, 20).clone()
    assert not told and isinstance(first, Drops)


def failing_scene(**kw):
    "Queries of which some fail, because they lie near another person"
    e = embedded()
    emb = e.emb.clone()
    emb[:6] = emb[21:27]                                            # rows 20 to 59 are the gallery
    moved = Embeddings(emb, e.pid, e.cam, path=e.path)
    return Scene(moved[:20], moved[20:], **kw)


def test_failures_are_marked_in_a_file_that_others_write_too(tmp_path):
    path, scene = tmp_path/"tags.csv", failing_scene()
    view, said = FailureBrowser(scene, tags=path, by="ann"), []
    worst = view.frame["query"].iloc[:2].tolist()
    assert view.frame.failed[:2].all() and view.frame.AP.is_monotonic_increasing
    view.heard(dict(mark=dict(query=worst[0], mark="tick")))
    tag(path, view.frame.key[0], "bob", "cross", comment="=no")
    view.heard(dict(mark=dict(query=worst[0], comment="both wear red")))
    rows = read_tags(path).set_index("by")
    assert rows.mark.to_dict() == dict(ann="tick", bob="cross") and rows.comment["ann"] == "both wear red"
    one = view.content(worst[0])["one"]
    assert one["note"]["mark"] == "tick" and one["others"] == ["bob: cross =no"]
    assert view.rows("tick")["query"].tolist() == worst[:1] and worst[0] not in view.rows("open")["query"].tolist()
    view.say = said.append
    for wrong in (dict(query=worst[0], mark="maybe"), dict(query=99, mark="tick")): view.heard(dict(mark=wrong))
    assert len(said) == 2 and "maybe" in said[0] and len(read_tags(path)) == 2
    path.write_text("damaged")
    view.heard(dict(mark=dict(query=worst[1], mark="tick")))
    assert path.read_text() == "damaged" and "tags.csv" in said[2]      # said, not overwritten
    view.heard(dict(figure=1))
    assert {p.name for p in tmp_path.glob("failures.*")} == {"failures.pdf", "failures.png"}, said


def test_failures_are_those_of_the_ranking():
    view = FailureBrowser(failing_scene(query=0))
    scene, before = view.scene, view.frame.failed.sum()
    reason = view.rates.reason[0]
    view.set(show="all", reason=reason)
    assert set(view.rows()["query"]) == set(view.frame["query"][view.frame[f"{reason} holds"]])
    assert [_shown(*x) for x in ((1., "0 or 1"), (.966, "share of other people"), (1., "share"), (1., "attributes"),
                                 (2., "identities"), (.6449, "of the median"))] == [
        "yes", "97 % of other people", "100 %", "1 attribute", "2 identities", "0.645 of the median"]
    scene.scores = (scene.q.pid[:, None] == scene.g.pid[None]).astype("f4")
    view.set(show="failures", reason="")
    assert "0 of" in view.content(0)["summary"] and not len(view.rows()) and before > 0
    assert view.picture().startswith(b"\x89PNG")


def test_a_lost_image_leaves_the_other_reasons(tmp_path):
    from PIL import Image
    from reid_lab.data.images import read_image
    for i in range(60): Image.new("RGB", (32, 64), (4*i, 9, 200 - 3*i)).save(tmp_path/f"{i}.jpg")
    scene, facts = failing_scene(query=0), dict(read=lambda paths: [read_image(tmp_path/Path(p).name) for p in paths])
    assert "same colours" in set(FailureBrowser(scene, facts).rates.reason)
    for i in range(20, 60): (tmp_path/f"{i}.jpg").unlink()
    view = FailureBrowser(scene, facts)
    assert "same colours" not in set(view.rates.reason) and "same camera" in set(view.rates.reason)
    assert "not measured" in view.content(0)["summary"] and view.picture().startswith(b"\x89PNG")


def test_a_point_under_the_mouse_shows_its_image(tmp_path):
    from PIL import Image
    files = [tmp_path/f"crop{i}.png" for i in range(40)]
    for f in files[1:]: Image.new("RGB", (32, 64), "red").save(f)
    e = embedded()
    text = Embeddings(e.emb[:20], e.pid[:20], caption=[EVIL]*20)
    view, sent = VIEWS["map"][1](Scene(text, e[20:], files, query=0)), []
    view.front().send = sent.append
    for asked in (["gallery", 3], ["gallery", 0], ["query", 2], ["gallery", 40], ["query", -1], ["both", 1]):
        view.heard(dict(image=asked))
    images, said = [m for m in sent if "image" in m], [m["said"] for m in sent if "said" in m]
    assert [m["of"] for m in images] == ["gallery 3", "gallery 0", "query 2"] and len(said) == 3
    assert images[0]["image"]["thumb"]["uri"].startswith("data:")
    assert images[1]["image"]["thumb"] == dict(missing="crop0.png")
    assert images[2]["image"] == dict(caption=EVIL)
    view.front().close()


def test_a_search_page_says_what_it_cannot_do():
    scene = make_scene(query=1)
    page = SearchPage(scene, threshold=Threshold(2., .1, .1, 40, 12, gallery=40))
    assert page.content(1)["present"] is False and "calibrated" not in page.content(1)["said"]
    assert "searches without the person" in page.content(1)["said"]
    assert not any(i["accepted"] for i in page.content(1)["items"])
    page.heard(dict(ui=dict(question="a man")))
    assert "No model was given" in page.content(1)["message"] and "no answer" in repr(page)
    scene.selection.query = 5
    assert page.question == "" and "query 5" in repr(page)
    pairs = SearchPage(scene, threshold=Threshold(.1, .1, .1, 9, 9, "fmr"))
    assert "threshold is one for pairs" in pairs.content(1)["message"]


def test_selection_refuses_and_stays():
    sel = Selection(3, 5, [0, 2], n_words=[4, 0, 2], query=0, words=[3])
    for wrong in (dict(query=3), dict(query=True), dict(gallery=[5]), dict(camera=1), dict(camera=(0, 1)),
                  dict(words=[4]), dict(query=1, words=[0]), dict(query=2, gallery=[1], camera="all")):
        with pytest.raises((ValueError, TypeError), match="choose|one of|remain|words|integers"): sel.set(**wrong)
        assert sel.state() == dict(query=0, gallery=[], camera=None, words=[3]), wrong
    sel.query = np.int64(2)
    assert sel.state() == dict(query=2, gallery=[], camera=None, words=[])


@pytest.mark.parametrize("labels", LABELS)
def test_the_cockpit_with_odd_labels(labels, tmp_path):
    "Bars, maps and matrices, or a message; whatever is selected, and as a page"
    board = cockpit(make_scene(labels), n=50)
    for selected in (dict(query=None), dict(query=3), dict(gallery=[2, 5]), dict(camera=0), dict(query=None)):
        if "camera" not in selected or 0 in board.selection.cameras: board.selection.set(**selected)
        assert board.picture().startswith(b"\x89PNG")
    said = [v.content(None)["label"] for v in board.views]
    if labels in ("one camera", "one of each"): assert "single camera" in said[0]
    elif labels == "no cameras": assert "have no camera numbers" in said[0]
    elif labels == "unknown identities": assert "mAP is not defined" in said[0] and "by chance" in said[3]
    else: assert " → " in said[0] and len(said) == 5
    assert board.to_html(tmp_path/"page.html", queries=[3]).stat().st_size > 10_000


def test_a_setting_moves_bars_map_and_pairs_and_a_bad_one_nothing():
    board = cockpit(make_scene(query=1), n=60, batch=8, tau=5., rate=.05)
    bars, _, after, _, pairs = board.views
    look = lambda: [v.content(1) | v.fixed() | dict(status="", run=0) for v in (bars, after, pairs)]
    old, still = look(), [board.views[i].fixed() for i in (1, 3)]
    for wrong in (dict(tau=0), dict(tau=float("nan")), dict(k=50), dict(method="dart"), dict(batch=2.5),
                  dict(steps=-1)):
        bars.heard(dict(ui=wrong))
    assert look() == old
    bars.heard(dict(ui=dict(method="No adaptation")))
    assert all(a != b for a, b in zip(look(), old)) and bars.scene.found()["method"] == "No adaptation"
    bars.heard(dict(ui=dict(method="DART3-LITE", rate=.1, steps=5)))
    assert look()[1]["x"] != old[1]["x"], "queries are elsewhere on the map"
    assert [board.views[i].fixed() for i in (1, 3)] == still, "before is before"


def test_each_camera_is_shown_as_soon_as_it_is_there():
    bars, told = CameraBars(AdaptedScene(make_scene(query=1))), []
    bars.front()
    bars.heard(dict(shown=1))
    bars._front.observe(lambda change: told.append(sum(c["done"] for c in change["new"]["cams"])), "fixed")
    bars.heard(dict(ui=dict(tau=2., batch=8)))
    assert told[:5] == [1, 2, 3, 4, 5] and bars._front.fixed["nmi"]["after"] is not None
    told.clear()
    bars.heard(dict(ui=dict(tau=2.)))
    assert not told, "the same again is no run"
    bars.front().close()


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
