"Images that are lost are named"
import json

import pytest
from helpers.views import VIEWS, embedded, lost_files, make_scene
from matplotlib.text import Text

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
