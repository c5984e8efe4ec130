"Word masking: what is masked, and what the curve of a model that reads words looks like."
import random

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.readers import SAID, sets
from torch import nn

from reid_lab.analysis.explain import word_masking as module
from reid_lab.analysis.explain.word_masking import (
    EffectSearch,
    MaskedSearch,
    effect_table,
    masked_copies,
    masked_lists,
    masked_queries,
    word_effects,
    word_kinds,
    word_masking,
)
from reid_lab.core.basics import stream
from reid_lab.data.table import ReidTable
from reid_lab.data.text import mask_words

CAPTIONS = ["A man in a red coat.", "A woman with green boots and a blue bag."]


def test_masked_words_are_nested_and_belong_to_the_caption():
    f = pd.DataFrame(dict(caption=CAPTIONS, pid=[0, 1]))
    assert masked_queries(f, 0).caption.tolist() == CAPTIONS
    for seed in range(5):
        left = [set(masked_queries(f, m, seed).caption[1].replace(".", "").split()) for m in range(4)]
        for more, less in zip(left, left[1:]): assert less - {"[UNK]"} < more
        for m in range(4): assert masked_queries(f, m, seed).caption[1].count("[UNK]") == m
        assert masked_queries(f, 2, seed).caption[0] == masked_queries(f[:1], 2, seed).caption[0]
        assert {"A", "with", "and", "a"} <= left[-1]  # stop words stay
    assert len({masked_queries(f, 2, s).caption[1] for s in range(8)}) > 2
    gone = masked_queries(f, 2, 0, "delete").caption[1]
    assert "[UNK]" not in gone and len(gone.split()) == len(CAPTIONS[1].split()) - 2
    assert masked_queries(pd.DataFrame(dict(caption=["red"])), 5, 0, "delete").caption[0] == "red"
    with pytest.raises(ValueError, match="variant='mask'"): masked_queries(f, 1, 0, "mask")


class Colours:
    "Reads colours from words and pixels"
    size, words = (2, 2), ["red", "green", "blue"]
    def tokenizer(self, texts): return torch.tensor([[w in t for w in self.words] for t in texts]).long()
    def encode_image(self, img): return torch.nn.functional.normalize(img.mean((2, 3)), dim=1)
    def encode_text(self, tokens): return torch.nn.functional.normalize(tokens.float() + .01, dim=1)


def table():
    rgb = np.eye(3, dtype=np.uint8)*255
    frame = pd.DataFrame(dict(path=list("012"), pid=[0, 1, 2], captions=[[f"a {c} coat"] for c in Colours.words]))
    return ReidTable(frame, None, reader=lambda ps: [np.tile(rgb[int(p)], (2, 2, 1)) for p in ps], name="flags")


def test_curve():
    t = word_masking(Colours(), table(), n_masked=[0, 1, 2], seeds=range(4), quiet=True)
    assert list(t.n_masked) == [0]*4 + [1]*4 + [2]*4 and list(t.seed) == list(range(4))*3
    by = t.groupby("n_masked").R1.mean()
    assert by[0] == 100 and by[2] == pytest.approx(100/3) and by[2] < by[1] < 100  # colour and coat both gone at 2
    again = word_masking(Colours(), table(), n_masked=[0, 1, 2], seeds=range(4), quiet=True)
    pd.testing.assert_frame_equal(t, again)


def test_words_are_drawn_once_for_all_numbers(monkeypatch):
    "The order of the words of a caption does not depend on how many are masked; captions are those of `mask_words`"
    drawn, frames = [], []
    order = module.mask_order
    monkeypatch.setattr(module, "mask_order", lambda text, rng: drawn.append(text) or order(text, rng))
    def evaluate(frame):
        frames.append(frame.caption.tolist())
        return dict(R1=0.)
    search = MaskedSearch(evaluate=evaluate)
    word_masking(Colours(), table(), n_masked=range(4), seeds=[0, 1], search=search, quiet=True)
    texts = table().text_queries("test").caption.tolist()
    assert drawn == 2*texts
    for m, seed, found in zip([0, 1, 1, 2, 2, 3, 3], [0, 0, 1, 0, 1, 0, 1], frames):
        draws = stream(seed, "mask words").integers(2**62, size=len(texts)).tolist()
        assert found == [mask_words(text, m, random.Random(draw)) for text, draw in zip(texts, draws)]


def test_own_evaluation_is_called_once_for_the_whole_captions():
    seen = []
    def evaluate(frame):
        seen.append(frame.caption.tolist())
        return dict(R1=float(len(seen)), n_query=3)
    t = word_masking(Colours(), table(), n_masked=[0, 1], seeds=[0, 1], search=MaskedSearch(evaluate=evaluate),
                     quiet=True)
    assert len(seen) == 3 and t.R1.tolist() == [1, 1, 2, 3] and "n_query" not in t
    with pytest.raises(ValueError, match="at least one of each"): word_masking(Colours(), table(), seeds=[])


def test_effects_of_kinds_against_a_loop(model):
    frame, q, g = sets(model)
    images = ReidTable(pd.DataFrame(dict(path=list("0123"), pid=range(4), captions=[[s] for s in SAID])), None,
                       reader=lambda paths: [])
    found = word_effects(model, images, "kind", search=EffectSearch(gallery=g), quiet=True)
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


def test_parameters_of_the_last_release_are_taken_with_a_warning():
    g = Colours(), table()
    new = word_masking(*g, n_masked=[0, 1], seeds=[0], search=MaskedSearch(split="test"), quiet=True)
    with pytest.warns(DeprecationWarning, match=r"split= belongs into search=MaskedSearch"):
        old = word_masking(*g, n_masked=[0, 1], seeds=[0], split="test", quiet=True)
    pd.testing.assert_frame_equal(old, new)
    with pytest.warns(DeprecationWarning, match=r"n= and seed= belong into search=EffectSearch"):
        old = word_effects(*g, n=2, seed=3, quiet=True)
    pd.testing.assert_frame_equal(old, word_effects(*g, search=EffectSearch(n=2, seed=3), quiet=True))
