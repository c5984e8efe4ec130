"Images that are lost are named"
import json

import numpy as np
import pytest
from helpers.protocols import features, table_for
from helpers.views import VIEWS, embedded, lost_files, make_scene
from matplotlib.text import Text

from reid_lab.retrieval.draw_scores import score_draws
from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.scores import MatrixScores
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.scene import RankedList, Scene


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
    page = view.to_html(tmp_path/"page.html", queries=[0]).read_text(encoding="utf-8")
    assert '<p class="note"' in page and "could not be read" in page and view.page_notes()
    drawn = [t.get_text() for t in view.draw().findobj(Text)]
    assert any(f"crop{20 + first}" in t.replace("\n", "") for t in drawn) and view.picture().startswith(b"\x89PNG")


def test_an_unknown_camera_has_no_number():
    scene = make_scene("some cameras unknown")
    assert [scene.cams("g", i) for i in range(5)] == [None, 0, 1, 2, 3]
    with pytest.raises(ValueError, match="choose one of"): scene.selection.set(camera=-1)
    assert make_scene("unknown cameras").selection.cameras == []


def test_a_crop_of_a_frame_is_called_by_its_file_and_place():
    e = embedded()
    e.path = [f"videos/walk.mp4#frame={i}&xywh={i}.4,20,30,80" for i in range(len(e))]
    view = RankedList(Scene(e[:20], e[20:], query=0))
    item = view.content(0)["items"][0]
    row = item["row"] + 20
    assert item["name"] == f"walk.mp4, frame {row}, at {row},20" and item["thumb"] == dict(missing=item["name"])


OF_DRAWS = [("market", 0), ("market.trapezoid", 0), ("ltcc.same-clothes", 0), ("sysu.all", 3),
            ("prcc.single-changed", 9), ("vehicleid.small", 1), ("llcm.v2i-released", 2)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, draw", OF_DRAWS)
def test_a_scene_of_a_protocol_lists_and_fails_as_its_draw(name, draw):
    e = features(table_for(name, 7, 160), roles=True)
    pixels = np.arange(160, dtype=np.uint8)[:, None, None, None]*np.ones((1, 4, 2, 3), np.uint8)
    scene = Scene(e, e, pixels, pixels, protocol=name, draw=draw)
    asks, searched = scene.sides.rows
    lists, _ = rank(e, e, 5, protocol=name, draw=draw)
    for i, row in enumerate(asks):
        found = searched[scene.ranker(i, 5)[0]]
        assert found.tolist() == lists[row][lists[row] >= 0].tolist()
        assert scene.q_thumb.name(i) == e.path[row] and scene.q_thumb.image(i).flat[0] == row
        assert [scene.g_thumb.image(g).flat[0] for g in scene.ranker(i, 2)[0]] == found[:2].tolist()
    view = FailureBrowser(scene)
    measured = retrieval_metrics(e, e, protocol=name, scoring=Scoring(ties="order"))
    alone = measured.draws[draw]
    assert 100*view.frame.AP.mean() == pytest.approx(alone["mAP"])
    assert 100 - 100*view.frame.failed.mean() == pytest.approx(alone["R1"])
    assert scene.by in view.content(None)["summary"] and scene.by in RankedList(scene).content(0)["label"]
    notes = " ".join(scene.protocol_notes())
    assert f"R1 {measured['R1']:.1f}, mAP {measured['mAP']:.1f}" in notes
    if PROTOCOLS[name].n_draws > 1:
        assert f"this is draw {draw} alone: R1 {alone['R1']:.1f}, mAP {alone['mAP']:.1f}" in notes


@pytest.mark.filterwarnings("ignore")
def test_scores_of_all_rows_or_of_each_draw_rank_a_scene_of_a_protocol(tmp_path):
    e = features(table_for("sysu.all", 3, 160), roles=True)
    turned = MatrixScores(-(e.unit().emb @ e.unit().emb.T))
    of_draws = score_draws(e, e, "sysu.all", lambda q, g: MatrixScores(-(q.unit().emb @ g.unit().emb.T)))
    by_all = Scene(e, e, scores=turned, protocol="sysu.all", draw=2)
    by_draw = Scene(e, e, scores=of_draws, draw=2)          # scores of draws know their protocol
    of_part = Scene(e, e, protocol="sysu.all", draw=2)
    of_part.scores = of_draws.parts[2].scores
    lists = [[scene.ranker(i, 4)[0].tolist() for i in range(len(scene.q))] for scene in (by_all, by_draw, of_part)]
    assert lists[0] == lists[1] == lists[2]
    assert by_all.protocol_notes() == by_draw.protocol_notes()
    assert "Scores of what is shown" in of_part.protocol_notes()[2]
    page = RankedList(by_draw).to_html(tmp_path/"page.html", queries=[0]).read_text(encoding="utf-8")
    assert "means over its 10 draws" in page
    with pytest.raises(ValueError, match="have shape"): by_all.scores = np.zeros((3, 3))
    with pytest.raises(ValueError, match="a table for each of 10 draws"): Scene(e, e).scores = of_draws
    with pytest.raises(ValueError, match="pools the vectors of a track"):
        tracks = e.assign(track=np.arange(160)//2)
        Scene(tracks, tracks, protocol="mars.official")
