"The attention view: maps follow words and rows; lost images and hostile text"
import io

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.readers import EVIL, SAID, TOK
from matplotlib.text import Text
from PIL import Image

from reid_lab.analysis.explain.evidence import telling
from reid_lab.figures.explain import map_card
from reid_lab.figures.style import COLOURS
from reid_lab.retrieval.embeddings import Embeddings, embed_texts
from reid_lab.widgets.attention import AttentionView, trust_lines
from reid_lab.widgets.page import page_html
from reid_lab.widgets.scene import Scene
from reid_lab.widgets.words import NO_MODEL, NO_WORDS, TextScene, WordLab


def gallery(n=6):
    rng = np.random.default_rng(0)
    return rng.integers(0, 255, (n, 64, 32, 3)).astype(np.uint8)


def test_the_map_follows_words_and_rows_and_says_when_not_to_believe(clip):
    crops = gallery()
    e = Embeddings(torch.randn(6, clip.encode_text(TOK(["a"])).shape[1]).numpy(), np.arange(6))
    q = embed_texts(clip, pd.DataFrame(dict(caption=SAID, pid=range(4))), quiet=True)
    scene = TextScene(clip, q, e, crops, query=0)
    view = AttentionView(scene, clip, dict(gradcam="known"), method="gradcam", n=4)
    seen = {}
    for name, do in dict(whole={}, word=dict(word=4), row=dict(gallery=(3,)), masked=dict(words=(5,))).items():
        view.set(**do) if name == "word" else scene.selection.set(**do)
        now = view.content(0)
        (panel,) = now["panels"]
        seen[name] = panel["heat"]["data"]
        assert panel["believed"] is False   # 4 random maps can never give 1 in 20
        assert panel["trust"].startswith("known. This")
        assert panel["verdict"] == "4 random maps are too few to tell" and panel["verdict"] in repr(view)
    pixels = np.asarray(Image.open(io.BytesIO(view.picture())).convert("RGB")).astype(int)
    for line in COLOURS[0], COLOURS[2]:             # deletion and insertion keep their colours among few
        assert np.abs(pixels - [int(line[i:i + 2], 16) for i in (1, 3, 5)]).sum(2).min() < 20
    assert len(set(seen.values())) == 4 and now["words"][5] == dict(text="coat", gone=True, stop=False)
    assert view.row(0) == 3 and view.picture().startswith(b"\x89PNG")
    scene.selection.query = 1
    assert view.word == -1
    scene.selection.gallery = ()
    assert view.row(1) == scene.ranker(1, 1)[0][0]
    keys = view.pages([0, 3])
    assert set(keys) == {"none", "0", "3", "3@1", *(f"0@{w}" for w in telling(SAID[0]))}


def test_removed_words_shift_the_positions(clip):
    q = embed_texts(clip, pd.DataFrame(dict(caption=SAID, pid=range(4))), quiet=True)
    scene = TextScene(clip, q, Embeddings(q.emb, q.pid), gallery(4), query=0, variant="delete")
    view = AttentionView(scene, clip, n=2, method="gradcam", word=4)
    scene.selection.words = (1, 2)
    assert scene.caption(0).split()[view._place(0, 4)] == "red" and view._place(0, 2) is None
    assert view.content(0)["panels"][0]["head"].endswith("red")


def test_a_lost_image_and_hostile_text_in_maps_and_words(clip, tmp_path):
    q = embed_texts(clip, pd.DataFrame(dict(caption=[EVIL, *SAID[1:]], pid=range(4))), quiet=True)
    scene = TextScene(clip, q, Embeddings(q.emb, q.pid), [tmp_path/"<b>lost.png"]*4, query=0)
    view, lab = AttentionView(scene, clip, n=2), WordLab(scene)
    now = view.content(0)
    assert now["panels"][0]["thumb"] == dict(missing="<b>lost.png") and "cannot be read" in now["message"]
    page = page_html([view, lab], queries=[0])
    assert "<img" not in page and "<b>lost" not in page and page.count("<script") == page.count("</script>")
    assert view.picture().startswith(b"\x89PNG") and lab.content(0)["words"][0]["text"] == "<img"
    plain = Scene(q, Embeddings(q.emb, q.pid), query=0)
    assert WordLab(plain).content(0)["message"] == NO_MODEL
    assert WordLab(Scene(Embeddings(q.emb, q.pid), Embeddings(q.emb, q.pid), query=0)).content(0)["message"] == NO_WORDS
    with pytest.raises(ValueError, match="no captions"): TextScene(clip, *[Embeddings(q.emb, q.pid)]*2)
    with pytest.raises(ValueError, match="type a caption"): scene.text = " "


def test_trust_is_said_as_it_was_measured():
    row = dict(model="m", method="gradcam", n=500, pointing=.3, chance_person=.2, deletion_beats=.4, beyond=False,
               believed=False)
    rows = [row, row | dict(method="occlusion", beyond=True, believed=True), row | dict(model="other")]
    told = trust_lines(pd.DataFrame(rows), "m")
    assert set(told) == {"gradcam", "occlusion"}
    assert told["gradcam"].startswith("not believed over 500 true masks of Worlds: hottest point on the mask 30 %")
    assert told["gradcam"].endswith("40 % of random maps, not shown to beat a blob in the centre")
    assert told["occlusion"].startswith("believed over") and told["occlusion"].endswith("40 % of random maps")
    panel = dict(head="", image=gallery(1)[0], over=gallery(1)[0], verdict=f"19 of 19; {told['gradcam']}")
    for panels in ([panel], [panel]*2):             # two side by side leave half the room, and nothing is cut off
        drawn = [t.get_text().replace("\n", " ") for t in map_card(panels).findobj(Text)]
        assert drawn.count(panel["verdict"]) == len(panels)


def test_evidence_of_worlds_is_not_said_of_photographs(clip):
    crops = gallery()
    q = embed_texts(clip, pd.DataFrame(dict(caption=SAID, pid=range(4))), quiet=True)
    vectors = torch.randn(6, q.dim).numpy()
    lines = {}
    for data in ("world quick text seed 3", "market1501", ""):
        e = Embeddings(vectors, np.arange(6), meta=dict(data=data))
        scene = TextScene(clip, q, e, crops, query=0)
        lines[data] = AttentionView(scene, clip, dict(gradcam="believed"), method="gradcam", n=4).trust_line()
    assert lines["world quick text seed 3"] == "believed"
    assert lines["market1501"] == "believed. This is evidence of Worlds; for photographs nothing is measured"
    assert "for these images nothing is measured" in lines[""]
    bare = AttentionView(scene, clip, method="gradcam", n=4)
    assert bare.trust_line() == "nothing is measured over many images: the evidence is of this image alone"
