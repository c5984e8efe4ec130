"The cockpit: odd labels, settings that move every view, bad ones that move nothing"
import numpy as np
import pytest
import torch
from helpers.bias import scene as biased
from helpers.views import LABELS, make_scene

from reid_lab.analysis.bias.audit import AuditSettings, bias_report
from reid_lab.analysis.bias.reruns import COCKPIT_METHODS
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.cameras import AdaptedScene, CameraBars, cockpit
from reid_lab.widgets.scene import Scene

pytestmark = pytest.mark.filterwarnings("ignore:.*have an unknown camera")


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
    elif labels == "unknown cameras": assert "cameras of the queries are unknown" in said[0]
    elif labels == "unknown identities": assert "mAP is not defined" in said[0] and "by chance" in said[3]
    else: assert " → " in said[0] and len(said) == 5
    assert board.to_html(tmp_path/"page.html", queries=[3]).stat().st_size > 10_000


def test_a_setting_moves_bars_map_and_pairs_and_a_bad_one_nothing():
    board = cockpit(make_scene(query=1), n=60, method="DART3-LITE", batch=8, tau=5., rate=.05)
    bars, _, after, _, pairs = board.views
    look = lambda: [v.content(1) | v.fixed() | dict(status="", run=0) for v in (bars, after, pairs)]
    old, still = look(), [board.views[i].fixed() for i in (1, 3)]
    for wrong in (dict(tau=0), dict(tau=float("nan")), dict(k=50), dict(method="dart"), dict(batch=2.5),
                  dict(steps=-1)):
        bars.receive(dict(ui=wrong))
    assert look() == old
    bars.receive(dict(ui=dict(method="No adaptation")))
    assert all(a != b for a, b in zip(look(), old)) and bars.scene.found()["method"] == "No adaptation"
    bars.receive(dict(ui=dict(method="DART3-LITE", rate=.1, steps=5)))
    assert look()[1]["x"] != old[1]["x"], "queries are elsewhere on the map"
    assert [board.views[i].fixed() for i in (1, 3)] == still, "before is before"


def test_each_camera_is_shown_as_soon_as_it_is_there():
    bars, told = CameraBars(AdaptedScene(make_scene(query=1))), []
    bars.front()
    bars.receive(dict(shown=1))
    bars._front.observe(lambda change: told.append(sum(c["done"] for c in change["new"]["cams"])), "fixed")
    bars.receive(dict(ui=dict(tau=2., batch=8)))
    assert told[:5] == [1, 2, 3, 4, 5] and bars._front.fixed["nmi"]["after"] is not None
    told.clear()
    bars.receive(dict(ui=dict(tau=2.)))
    assert not told, "the same again is no run"
    bars.front().close()


def test_an_unknown_camera_is_none_of_the_cameras():
    board = cockpit(make_scene("some cameras unknown", query=1), n=50)
    bars, pairs = board.views[0], board.views[3]
    assert board.selection.cameras == [0, 1, 2, 3]
    assert [c["cam"] for c in bars.fixed()["cams"]] == [0, 1, 2, 3]
    assert bars.fixed()["status"].startswith("4 cameras and 4 queries of unknown ones")
    assert bars.content(5)["query"]["cam"] is None and "5.jpg of an unknown camera" in bars.content(5)["label"]
    for query in range(10):
        row, near = pairs.content(query)["row"], pairs.near()[query]
        cams = bars.scene.g.cam[near]
        assert row == (None if query % 5 == 0 else query % 5 - 1), "its row in the matrix, which knows four cameras"
        assert pairs.content(query)["own"] == [int((cams == c).sum()) for c in range(4)]
        assert "camera -1" not in pairs.content(query)["label"] + bars.content(query)["label"]


def test_the_cockpit_and_the_report_say_the_same():
    "Cameras mixed in the order of the queries, fewer queries a camera than a batch, distractors"
    rng = np.random.default_rng(0)
    person, shift = rng.normal(size=(31, 8)), 2*rng.normal(size=(5, 8))

    def side(n):
        pid, cam = rng.integers(0, 31, n), rng.integers(0, 5, n)
        emb = np.float32(person[pid] + shift[cam] + .6*rng.normal(size=(n, 8)))
        return Embeddings(emb, pid, cam, meta=dict(data="market1501"))

    q, g = side(200), side(300)
    report = bias_report(q, g, distance="euclidean", map_method="none", quiet=True).summary
    report = report[report.distance == "euclidean"].set_index("method")
    after = AdaptedScene(Scene(q, g))
    for method in COCKPIT_METHODS:
        after.want(method, "euclidean")
        found = after.found()
        nmi = [found["nmi"][of] for of in ("camera", "chance", "identity")]
        assert nmi == pytest.approx(report.loc[method, ["nmi_camera", "nmi_chance", "nmi_identity"]].tolist()), method
        assert 100*np.nanmean(found["AP"]) == pytest.approx(report.mAP[method], abs=.01), method
    learned = after.runs.run("DART3-LITE")
    assert not np.allclose(torch.cat([s.emb for s in learned]), torch.cat([s.emb for s in after.runs.run("Norm")]))


def test_a_cockpit_says_when_nothing_is_learned_and_when_nmi_is_of_a_sample():
    bars = cockpit(make_scene(query=1), n=50, method="DART3-LITE").views[0]
    assert "learns nothing (one batch and one step)" in bars.status() and "NMI of 50 of 60 images" in bars.status()
    bars.set(batch=8)
    assert "learns nothing" not in bars.status()
    bars.set(steps=0)
    assert "learns nothing (no step)" in bars.status()
    assert "NMI of" not in cockpit(make_scene(query=1)).views[0].status()


def shifted(seed, shift, lengths=False, n=60, cams=4, dim=16):
    "Queries and gallery whose cameras shift every dimension; perhaps vectors of odd lengths"
    rng = np.random.default_rng(seed)
    person, move = rng.normal(size=(n, dim)), shift*rng.normal(size=(cams, dim))
    pid, cam = np.tile(np.arange(n), cams), np.repeat(np.arange(cams), n)

    def side():
        emb = person[pid] + rng.normal(size=(len(pid), dim)) + move[cam]
        if lengths: emb *= rng.uniform(.5, 2, (len(emb), 1))
        return Embeddings(np.float32(emb), pid, cam)

    return side(), side()


OPENINGS = {  # features -> (both sides, distance, what the report advises; None: nothing)
    "no bias": (lambda: biased(0.), "cosine", None),
    "scales and shifts": (lambda: biased(2.), "cosine", ("Norm", "cosine")),
    "shifts": (lambda: shifted(1, 1.), "cosine", ("Mean subtraction", "cosine")),
    "shifts by Euclidean distance": (lambda: shifted(2, 1.), "euclidean", ("Mean subtraction", "cosine")),
    "odd lengths": (lambda: shifted(4, 0., True), "euclidean", ("No adaptation", "cosine"))}


@pytest.mark.parametrize("name", OPENINGS)
def test_the_first_view_is_the_ranking_that_the_report_advises(name):
    make, distance, advised = OPENINGS[name]
    q, g = make()
    report = bias_report(q, g, distance=distance, map_method="none", quiet=True,
                         audit=AuditSettings(splits=0, open_images=0))
    assert report.verdict.advised == advised
    take = report.verdict.take
    bars = cockpit(Scene(q, g, distance=distance), n=60).views[0]
    assert (bars.method, bars.by) == (bars.scene.method, bars.scene.by) == take
    assert bars.scene.verdict() == report.verdict, "the same gains, intervals and steps"
    assert 100*np.nanmean(bars.scene.found()["AP"]) == pytest.approx(report.verdict.mAP[take], abs=.01)
    assert bars.fixed()["advice"].startswith("advised: none helps" if advised is None else f"advised: {take.method} by")
    given = cockpit(Scene(q, g, distance=distance), n=60, advice=report.verdict).views[0]
    assert (given.method, given.by, given.advice) == (bars.method, bars.by, bars.advice)


def test_a_cockpit_without_advice_says_so_and_a_chosen_method_is_kept():
    bars = cockpit(make_scene("unknown identities"), n=50).views[0]
    assert (bars.method, bars.by) == ("No adaptation", "cosine") and bars.advice.startswith("no advice: no query has")
    chosen = cockpit(make_scene(), n=50, method="Norm", by="cosine").views[0]
    assert (chosen.scene.method, chosen.scene.by, chosen.advice) == ("Norm", "cosine", "")
