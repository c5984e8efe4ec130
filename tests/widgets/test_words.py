"The word lab: what is left of a caption is searched, and what a word adds is what the search loses"
import numpy as np
from helpers.readers import EVIL, SAID, sets
from torch import nn

from reid_lab.widgets.page import page_html
from reid_lab.widgets.scene import RankedList
from reid_lab.widgets.words import OWN, TextScene, WordLab


def naive_rank(vector, g, pid):
    "Rank of the first right image, by sorting"
    sims = [float(nn.functional.cosine_similarity(vector, row, dim=0)) for row in g.emb]
    order = sorted(range(len(sims)), key=lambda i: -sims[i])
    return next(r for r, i in enumerate(order, 1) if g.pid[i] == pid), max(s for s, p in zip(sims, g.pid) if p == pid)


def test_a_scene_searches_with_what_is_left_of_a_caption(model):
    frame, q, g = sets(model)
    scene = TextScene(model, q, g, query=2)
    assert len(scene.q) == 9 and scene.q.pid[8] == -1 and scene.q.caption[8] == OWN
    for words, variant in (((), "unk"), ((4, 5), "unk"), ((4,), "delete"), (tuple(range(9)), "delete")):
        scene.variant = variant
        scene.selection.words = words
        kept = [(i, w) for i, w in enumerate(SAID[2].split()) if variant == "unk" or i not in words]
        left = " ".join("[UNK]" if i in words else w for i, w in kept)
        assert scene.caption(2) == left and scene.caption(3) == SAID[3]
        sims = nn.functional.cosine_similarity(model.encode_text(model.tokenizer([left])), g.emb)
        rows, scores = scene.ranker(2, 24)
        assert np.allclose(scores, sims.sort(descending=True).values.numpy(), atol=1e-5)
        other = nn.functional.cosine_similarity(q.emb[3:4], g.emb).max()
        assert np.allclose(scene.ranker(3, 24)[1][0], other, atol=1e-5)
    scene.selection.words = ()
    scene.text = SAID[1]
    assert scene.selection.query == 8 and np.array_equal(scene.ranker(8, 5)[0], scene.ranker(1, 5)[0])
    assert scene.selection.words_of(8) == 6


def test_what_a_word_adds_is_what_the_search_loses(model):
    frame, q, g = sets(model)
    lab = WordLab(TextScene(model, q, g, query=2))
    e = lab.effects(2)
    whole = naive_rank(q.emb[2], g, 2)
    assert e["whole"] == e["now"] == dict(rank=whole[0], score=round(whole[1], 4))
    for i, w in enumerate(SAID[2].split()):
        left = " ".join("[UNK]" if j == i else v for j, v in enumerate(SAID[2].split()))
        assert e["ranks"][i] == naive_rank(model.encode_text(model.tokenizer([left]))[0], g, 2)[0], w
    words = dict(zip(SAID[2].split(), e["alone"]))
    assert words["jeans"] > .01 and abs(words["jeans"] - words["blue"]) < .02       # both said by one caption alone
    before = lab.picture()
    lab.receive(dict(select=dict(words=[4, 5])))
    assert lab.effects(2)["now"] != e["now"] and lab.picture() != before and "2 of 9 words masked" in repr(lab)


def test_the_list_follows_the_words(model):
    frame, q, g = sets(model)
    scene = TextScene(model, q, g, query=0)
    lab, ranked = WordLab(scene), RankedList(scene)
    ranked.front()
    ranked.receive(dict(shown=1))
    before = ranked.front().now
    lab.receive(dict(select=dict(words=[4, 5, 8])))
    now = ranked.front().now
    assert [i["row"] for i in now["items"]] != [i["row"] for i in before["items"]] and "[UNK]" in now["query"]["text"]
    lab.receive(dict(ui=dict(text="")))
    lab.receive(dict(ui=dict(text=EVIL)))
    assert scene.text == EVIL and ranked.front().now["query"]["text"] == EVIL
    ranked.front().close()


def test_a_page_holds_single_words_and_leaves_the_selection(model):
    frame, q, g = sets(model)
    scene = TextScene(model, q, g, query=1, words=[3])
    told = []
    scene.selection.follow(told.append)
    lab, ranked = WordLab(scene), RankedList(scene)
    pages = ranked.pages([0, 1], masks=True)
    assert set(pages) == {"none", "0", "1", *(f"0/{w}" for w in range(9)), *(f"1/{w}" for w in range(6))}
    assert "[UNK]" not in pages["1"]["query"]["text"] and pages["1/3"]["query"]["text"] == "a woman in [UNK] green coat"
    assert scene.selection.state() == dict(query=1, gallery=[], camera=None, words=[3]) and not told
    scene.text = EVIL
    assert told and "<img" not in page_html([lab, ranked], queries=[8])
