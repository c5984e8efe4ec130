"""Word effects, masked captions, heat maps of one image: naive references, planted truths, hostile text"""
import io

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.text import Text
from PIL import Image
from torch import nn

from reid_lab.analysis.explain.places import Score
from reid_lab.analysis.explain.evidence import (map_evidence, measured_maps, one_map, read_positions, telling, verdict,
    word_saliency)
from reid_lab.analysis.explain.word_masking import effect_table, masked_copies, masked_lists, word_effects, word_kinds
from reid_lab.data.table import ReidTable
from reid_lab.data.text import WordPiece
from reid_lab.retrieval.embeddings import Embeddings, embed_texts
from reid_lab.figures.style import COLOURS
from reid_lab.figures.explain import map_card
from reid_lab.models.zoo import create_model
from reid_lab.widgets.attention import AttentionView, trust_lines
from reid_lab.widgets.scene import RankedList
from reid_lab.widgets.scene import Scene
from reid_lab.widgets.page import page_html
from reid_lab.widgets.words import NO_MODEL, NO_WORDS, OWN, TextScene, WordLab

SAID = ["a man in a red coat with a bag", "a woman in a green coat", "a man in blue jeans with a red bag", "a person"]
EVIL = "<img src=x onerror=alert(1)> red"


class Reader(nn.Module):
    "Counts words; an image is what its name says"
    size, vocab = (8, 4), sorted({w for s in SAID for w in s.split()})
    def __init__(self): super().__init__(); self.one = nn.Parameter(torch.zeros(1))
    def tokenizer(self, texts): return torch.tensor([[t.split().count(w) for w in self.vocab] for t in texts]).long()
    def encode_text(self, tokens): return nn.functional.normalize(tokens.float() + .01, dim=1)


@pytest.fixture(scope="module")
def model(): return Reader().eval()


def sets(model):
    frame = pd.DataFrame(dict(caption=[SAID[i % 4] for i in range(8)], pid=np.arange(8) % 4))
    q = embed_texts(model, frame, quiet=True)
    rng = np.random.default_rng(0)
    noise = torch.tensor(.05*rng.normal(size=(24, q.dim)), dtype=torch.float32)
    g = Embeddings(q.emb.repeat(3, 1) + noise, np.tile(q.pid, 3), np.arange(24) % 3,
                   path=[f"{i}.jpg" for i in range(24)])
    return frame, q, g


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
        assert scene.said(2) == left and scene.said(3) == SAID[3]
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
    lab.heard(dict(select=dict(words=[4, 5])))
    assert lab.effects(2)["now"] != e["now"] and lab.picture() != before and "2 of 9 words masked" in repr(lab)


def test_the_list_follows_the_words(model):
    frame, q, g = sets(model)
    scene = TextScene(model, q, g, query=0)
    lab, ranked = WordLab(scene), RankedList(scene)
    ranked.front(); ranked.heard(dict(shown=1))
    before = ranked.front().now
    lab.heard(dict(select=dict(words=[4, 5, 8])))
    now = ranked.front().now
    assert [i["row"] for i in now["items"]] != [i["row"] for i in before["items"]] and "[UNK]" in now["query"]["text"]
    lab.heard(dict(ui=dict(text="")))
    lab.heard(dict(ui=dict(text=EVIL)))
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


def test_effects_of_kinds_against_a_loop(model):
    frame, q, g = sets(model)
    images = ReidTable(pd.DataFrame(dict(path=list("0123"), pid=range(4), captions=[[s] for s in SAID])), None,
                       reader=lambda paths: [])
    found = word_effects(model, images, "kind", gallery=g, quiet=True)
    for r in found.itertuples():
        def margin(text):
            v = model.encode_text(model.tokenizer([text]))
            s = nn.functional.cosine_similarity(v, g.emb).numpy()
            return s[g.pid == r.pid].max() - s[g.pid != r.pid].max()
        assert r.effect == pytest.approx(margin(SAID[r.query]) - margin(r.caption), abs=1e-5)
        assert r.margin == pytest.approx(margin(SAID[r.query]), abs=1e-5)
    assert set(found[found["query"] == 0].kind) == {"person", "upper colour", "upper", "bag"}
    table = effect_table(found, least=1)
    assert table.effect.is_monotonic_decreasing and set(table.helps) <= {"helps", "harms", ""}


def test_kinds_of_words():
    want = ["", "person", "", "", "other", "", "lower colour", "lower"]
    assert word_kinds("A man, with no bag and Blue jeans!") == want
    copies = masked_copies(pd.DataFrame(dict(caption=["red", "", "red coat"], pid=[0, 1, 2])), "word", "delete")
    assert copies.caption.tolist() == ["coat", "red"]


def test_lists_while_words_go_begin_with_the_whole_caption(model):
    frame, q, g = sets(model)
    said, rows = masked_lists(model, g, SAID[0], range(4), k=30)
    assert said[0] == SAID[0] and rows.shape == (4, 24) and [s.count("[UNK]") for s in said] == [0, 1, 2, 3]


# --- maps ------------------------------------------------------------------------------------------------------------

TOK = WordPiece.train(SAID*3, vocab_size=80, context_length=14)


@pytest.fixture(scope="module")
def clip():
    torch.manual_seed(0)
    return create_model("clip_tiny", tokenizer=TOK, size=(64, 32)).eval()


def planted(img): return img[:, 0, 8:24, 8:24].mean((1, 2))


def test_evidence_for_a_planted_map_and_against_its_reverse():
    torch.manual_seed(0)
    img = torch.rand(1, 3, 64, 32)*.3
    img[:, 0, 8:24, 8:24] = 1
    heat = np.zeros((64, 32)); heat[8:24, 8:24] = 1
    good = map_evidence(planted, img, heat, "deletion", n=19)["deletion"]
    bad = map_evidence(planted, img, -heat, "deletion", n=19)["deletion"]
    assert verdict(good["beats"], 19)[0] and not verdict(bad["beats"], 19)[0]
    assert verdict(bad["beats"], 19)[1].startswith("not better than random")
    assert good["own"][0] == pytest.approx(1)
    assert (good["low"] <= good["mean"]).all() and (good["mean"] <= good["high"]).all()
    assert [verdict(b/19, 19)[0] for b in (18, 18.5, 19)] == [False, False, True]


def test_a_word_is_found_where_the_tokenizer_reads_it(clip):
    text = "A man, in a red coat!"
    said, at = read_positions(TOK, text)
    assert len(at) == 6 and telling(text) == [1, 4, 5] and [said.split()[j] for j in at[4]] == ["red"]
    with torch.no_grad(): to = clip.encode_text(TOK(["red bag"]))[0]
    for how in ("occlusion", "gradients"): assert word_saliency(clip, text, to, how).shape == (6,)
    img = torch.rand(1, 3, 64, 32)
    heat, score = one_map(clip, img, "occlusion", text, 4)
    with torch.no_grad():
        t = clip.encode_text(TOK([said, said.replace("red ", "")]))
        want = clip.encode_image(img) @ (t[0] - t[1])
    assert isinstance(score, Score) and torch.allclose(score(img), want, atol=1e-5)


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
        assert panel["believed"] is False and panel["trust"] == "known"      # 4 random maps can never give 1 in 20
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
    assert scene.said(0).split()[view._place(0, 4)] == "red" and view._place(0, 2) is None
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


@pytest.mark.parametrize("name, own", [("irra_tiny", "cross-attention"), ("cfam_tiny", "queries"),
                                       ("cfan_tiny", "queries")])
def test_all_maps_of_models_that_are_not_shipped_are_measured(name, own):
    told, known = trust_lines(measured_maps(), name), measured_maps().set_index(["model", "method"]).loc[name]
    assert set(told) == {"gradcam", "hirescam", "layercam", "occlusion", "rollout", own, "centre"}
    assert (known.n >= 500).all() and known.believed["occlusion"] and told["occlusion"].startswith("believed over 620")
    assert (known.pointing < known.chance_person)[own] and told[own].startswith("not believed over 620")
    assert told[own].endswith("not shown to beat a blob in the centre")


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
