"The best scores of random sentences: reproducible, for any tokenizer, and not read off rounded numbers"
import numpy as np
import pytest
import torch

from reid_lab.analysis import random_sentences as R
from reid_lab.analysis.random_sentences import OF_PEOPLE, OF_WORDS, ByChance, random_sentences, scores_by_chance
from reid_lab.data.text import SPECIAL, ClipBPE, WordPiece
from reid_lab.models.dual import dual_tiny
from reid_lab.retrieval.embeddings import Embeddings


@pytest.fixture
def model():
    torch.manual_seed(0)
    words = WordPiece.train(random_sentences(None, 200).texts, 400, min_frequency=1)
    return dual_tiny(tokenizer=words, size=(16, 16), widths=(2, 2, 4, 4), text_width=4).eval()


def gallery(model, n=30):
    rng = np.random.default_rng(0)
    return Embeddings(rng.normal(size=(n, model.dim)).astype("f4"), np.arange(n))


def test_sentences_fit_the_tokenizer():
    assert random_sentences(ClipBPE()).source == OF_PEOPLE and random_sentences(None).source == OF_PEOPLE
    other = WordPiece([*SPECIAL, "ein", "mann", "mit", "hut", "##en"])
    drawn = random_sentences(other, 7)
    assert drawn.source == OF_WORDS and len(drawn.texts) == 7
    assert {word for text in drawn.texts for word in text.split()} <= {"ein", "mann", "mit", "hut"}
    assert random_sentences(other, 7) == drawn != random_sentences(other, 7, seed=1)
    assert random_sentences(WordPiece([*SPECIAL, "男", "人"]), 3).source == OF_WORDS
    with pytest.raises(ValueError, match="n=0"): random_sentences(other, 0)


@pytest.mark.filterwarnings("ignore::reid_lab.data.text.UnreadText")
def test_scores_are_those_of_a_plain_loop(model):
    g = gallery(model)
    q = R.embed_texts(model, list(random_sentences(model.tokenizer, 40).texts), quiet=True)
    want = torch.nn.functional.cosine_similarity(q.emb[:, None], g.emb[None], dim=2).amax(1).sort().values
    chance = scores_by_chance(model, g, n=40)
    assert np.allclose(chance.best, want, atol=1e-5) and len(chance) == 40
    junk = Embeddings(g.emb, [-1]*len(g))
    assert np.allclose(scores_by_chance(model, junk, n=40).best, want, atol=1e-5)


def test_a_gallery_is_searched_once_and_a_changed_model_again(model, monkeypatch):
    g, calls = gallery(model), []
    embed = R.embed_texts
    monkeypatch.setattr(R, "embed_texts", lambda *args, **kw: calls.append(1) or embed(*args, **kw))
    first = scores_by_chance(model, g, n=20)
    assert scores_by_chance(model, g, n=20) is first and len(calls) == 1
    assert scores_by_chance(model, gallery(model), n=20) is not first and len(calls) == 1
    with torch.no_grad():
        for p in model.parameters(): p.add_(.1*torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
    assert not np.allclose(scores_by_chance(model, g, n=20).best, first.best) and len(calls) == 2


def test_slow_encoders_keep_their_features_on_disk(model, monkeypatch, tmp_path):
    monkeypatch.setenv("REID_LAB_CACHE", str(tmp_path))
    scores_by_chance(model, gallery(model), n=5)
    assert not list(tmp_path.rglob("*.safetensors"))
    monkeypatch.setattr(R, "_SLOW", -1.)
    want = scores_by_chance(model, gallery(model), n=6).best
    file, = tmp_path.rglob("*.safetensors")
    R._of_model.clear()
    monkeypatch.setattr(R, "_embedded", lambda *args: pytest.fail("they are on the disk"))
    assert np.allclose(scores_by_chance(model, gallery(model), n=6).best, want)
    R._of_model.clear()
    file.write_bytes(b"damaged")
    monkeypatch.undo()
    monkeypatch.setenv("REID_LAB_CACHE", str(tmp_path))
    assert np.allclose(scores_by_chance(model, gallery(model), n=6).best, want)


def test_rounding_gives_neither_none_nor_all():
    c = ByChance(np.linspace(.1, .9, 200), OF_PEOPLE)
    assert c.sentence(.95).endswith("higher than that of all 200 random sentences")
    assert c.sentence(.05).endswith("lower than that of all 200 random sentences")
    assert "99.5 % of 200" in c.sentence(c.best[-1] - .001) and "0.5 % of 200" in c.sentence(c.best[0] + .001)
    same = ByChance(np.full(200, .7) + np.random.default_rng(0).normal(size=200)*1e-7, OF_PEOPLE)
    assert same.below(.7) == 100 and "say nothing" in same.sentence(.7)
    assert c.below(c.best[3] + 3e-8) == 3.5
