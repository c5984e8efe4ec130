"Maps with odd labels, all points, and the image under the mouse"
import numpy as np
import pytest
from helpers.views import EVIL, LABELS, VIEWS, embedded, make_scene

from reid_lab.analysis.bias.maps import project_pair
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.maps import FeatureMap, ScatterMap, point_groups
from reid_lab.widgets.scene import Scene


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
        assert "&lt;img" in big._line.value and "<img" not in big._line.value
    for colour in big.choices(): big.colour = colour
    plain.colour = colour
    assert big.picture() == plain.picture()
    big.front().close()


def test_a_point_under_the_mouse_shows_its_image(tmp_path):
    from PIL import Image
    files = [tmp_path/f"crop{i}.png" for i in range(40)]
    for f in files[1:]: Image.new("RGB", (32, 64), "red").save(f)
    e = embedded()
    text = Embeddings(e.emb[:20], e.pid[:20], caption=[EVIL]*20)
    view, sent = VIEWS["map"][1](Scene(text, e[20:], files, query=0)), []
    view.front().send = sent.append
    for asked in (["gallery", 3], ["gallery", 0], ["query", 2], ["gallery", 40], ["query", -1], ["both", 1]):
        view.receive(dict(image=asked))
    images, said = [m for m in sent if "image" in m], [m["status"] for m in sent if "status" in m]
    assert [m["of"] for m in images] == ["gallery 3", "gallery 0", "query 2"] and len(said) == 3
    assert images[0]["image"]["thumb"]["uri"].startswith("data:")
    assert images[1]["image"]["thumb"] == dict(missing="crop0.png")
    assert images[2]["image"] == dict(caption=EVIL)
    view.front().close()


def luminance(colour):
    "Relative luminance of WCAG 2"
    parts = (int(colour[i:i + 2], 16)/255 for i in (1, 3, 5))
    linear = (p/12.92 if p <= .04045 else ((p + .055)/1.055)**2.4 for p in parts)
    return sum(share*p for share, p in zip((.2126, .7152, .0722), linear))


def test_colours_of_groups_are_seen_on_a_dark_and_on_a_white_page():
    colours = point_groups(np.repeat(np.arange(14), 3), "camera")["colours"]

    def least(page, some):
        lights = [sorted([luminance(page), luminance(colour)]) for colour in some]
        return min((bright + .05)/(dark + .05) for dark, bright in lights)

    assert least("#15181c", colours) > 3 and least("#ffffff", colours[:7]) > 3      # the pale half has names beside it
