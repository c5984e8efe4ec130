"Saliency of words: complete, exact for a bag of words, one value a word"
import numpy as np
import pytest
import torch
from helpers.towers import SAID, TEXT, TOK, hooks, tiny
from torch import nn

from reid_lab.analysis.explain.visibility import read_words, token_words
from reid_lab.analysis.explain.word_maps import PLAIN, integrated_gradients, text_score, word_occlusion, word_values
from reid_lab.data.text import ClipBPE


@pytest.mark.parametrize("name", TEXT + ["frozen_pair"])
@pytest.mark.parametrize("plain", PLAIN)
def test_integrated_gradients_are_complete(name, plain, img):
    model = tiny(name)
    tok = model.tokenizer
    with torch.no_grad(): to = model.eval().encode_image(img)
    values, score, start = integrated_gradients(model, SAID, to, steps=48, plain=plain)
    with torch.no_grad(): assert np.allclose(score, (model.encode_text(tok(SAID))*to).sum(1), atol=1e-5)
    assert np.abs(values.sum(1) - (score - start)).max() < 2e-3*max(1, np.abs(score - start).max())
    fixed = torch.isin(tok(SAID), torch.tensor([tok.cls_id, tok.sep_id, tok.pad_id])).numpy()
    assert (values[fixed] == 0).all() and np.abs(values[~fixed]).max() > 0 and hooks(model) == 0
    if plain == "unk":
        with torch.no_grad():
            ids = tok(SAID)
            ids[torch.as_tensor(~fixed)] = tok.unk_id
            assert np.allclose(start, (model.encode_text(ids)*to).sum(1), atol=1e-4)


class Bag(nn.Module):
    "Captions are the sum of their words: attribution is exact"
    def __init__(self):
        super().__init__()
        self.tokenizer, self.token_embedding = TOK, nn.Embedding(TOK.vocab_size, 4)

    def encode_text(self, tokens): return self.token_embedding(tokens).sum(1)


def test_saliency_of_a_bag_of_words_is_exact():
    torch.manual_seed(0)
    model, to = Bag(), torch.randn(4)
    values, score, start = integrated_gradients(model, SAID[0], to, steps=1, plain="zero")
    ids = TOK(SAID[0])[0]
    worth = (model.token_embedding.weight @ to).detach().numpy()
    inner = range(1, 1 + len(TOK.ids(SAID[0])))
    assert np.allclose([values[0, i] for i in inner], worth[ids[list(inner)]], atol=1e-5)
    per_word = word_values(TOK, SAID[0], values[0])
    gone = word_occlusion(text_score(model, to), SAID[0])
    pad = worth[TOK.pad_id]
    pieces = np.array([len(t) for _, t in token_words(TOK, SAID[0])])
    assert np.allclose(gone, per_word - pieces*pad, atol=1e-4)   # a removed token leaves room for padding
    unk = word_occlusion(text_score(model, to), SAID[0], "unk")
    assert np.allclose(unk, gone - (worth[TOK.unk_id] - pad), atol=1e-4)


def test_word_scores_of_pairs(img):
    model = tiny("camel_tiny").eval()
    one = text_score(model, None, match_img=img[:1])
    with torch.no_grad():
        _, x, mask = model.text_states(TOK(SAID))
        two = model.match_logit(x, mask, model.image_states(img[:1])[1].expand(3, -1, -1))
    assert torch.allclose(one(SAID), two[:, 1] - two[:, 0], atol=1e-5)
    with pytest.raises(TypeError, match="reads no captions"): text_score(tiny("bot_tiny"), torch.zeros(2))


@pytest.mark.parametrize("tok", [TOK, ClipBPE(12)])
@pytest.mark.parametrize("text", ["a man in a red coat", "A T-shirt, unheard of!", "", "a [UNK] coat " + "fox "*20])
def test_tokens_of_words(tok, text):
    words, row = token_words(tok, text), tok(text)[0].tolist()
    assert [w for w, _ in words] == read_words(tok, text).split()
    flat = [i for _, at in words for i in at]
    inside = [i for i, t in enumerate(row) if t not in (tok.cls_id, tok.sep_id) and 0 < i < row.index(tok.sep_id)]
    assert flat == inside
    for w, at in words:
        if at and max(at) < tok.context_length - 2: assert [row[i] for i in at] == tok.ids(w)
