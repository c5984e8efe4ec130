"Queries of several vectors: expansion against a loop, in memory and on disk; parts against their means"
import numpy as np
import pytest
import torch

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.queries import Expansion, as_expansion, expand_queries, one_question
from reid_lab.retrieval.ranking import rank


def unit(x): return x/np.linalg.norm(x, axis=-1, keepdims=True)


def naive_expansion(q, g, k, alpha, same=()):
    "Query by query, image by image"
    q, g, rows = unit(q.numpy().astype(float)), unit(g.numpy().astype(float)), []
    for i, one in enumerate(q):
        scores = [-np.inf if (i, j) in same else float(one @ x) for j, x in enumerate(g)]
        first = sorted(range(len(g)), key=lambda j: -scores[j])[:k]
        total = one.copy()
        for j in first:
            if scores[j] > -np.inf: total = total + max(scores[j], 0)**alpha*g[j]
        rows.append(unit(total))
    return np.stack(rows)


@pytest.mark.parametrize("k, alpha", [(1, 0.), (5, 0.), (5, 3.), (40, 1.)])
def test_expansion_is_the_formula(noisy, k, alpha):
    q, g = noisy(30, 1), noisy(40, 2)
    for chunk in (7, 256):
        got = expand_queries(q, g, Expansion(k, alpha), chunk)
        assert np.abs(got.numpy() - naive_expansion(q, g, k, alpha)).max() < 1e-6
    assert (got.pid == q.pid).all() and got.meta["expanded"] == k


def test_labels_and_cameras_play_no_part(noisy):
    q, g = noisy(30, 1), noisy(200, 2)
    bare_q, bare_g = Embeddings(q.emb, [-1]*30), Embeddings(g.emb, [-1]*200)
    want = expand_queries(bare_q, bare_g, Expansion(5)).emb
    assert torch.equal(expand_queries(q, g, Expansion(5)).emb, want)
    junk = g.with_emb(g.emb)
    junk.pid[:100] = -1
    assert torch.equal(expand_queries(q, junk, Expansion(5)).emb, want)


def test_a_query_is_not_its_own_result(noisy):
    g = noisy(20, 3)
    got = expand_queries(g[[4, 9]], g, Expansion(20, 2.)).numpy()
    assert np.abs(got - naive_expansion(g[[4, 9]], g, 20, 2., {(0, 4), (1, 9)})).max() < 1e-6


def test_a_gallery_on_disk(noisy, on_disk, tmp_path):
    q, g = noisy(30, 1), noisy(300, 2)
    shards = on_disk(g, tmp_path/"g", rows=70, dtype="float32")
    want, got = (expand_queries(q, x, Expansion(6, 3.)) for x in (g, shards))
    assert torch.allclose(got.emb, want.emb, atol=1e-6)
    assert (rank(got, shards, 5)[0] == rank(want, g, 5)[0]).all()


def test_what_cannot_be_added(noisy):
    with pytest.raises(ValueError, match="expand=9, but the gallery has 8 images"):
        expand_queries(noisy(2, 0), noisy(8, 1), Expansion(9))
    assert as_expansion(None) is None and as_expansion(0) is None and as_expansion(Expansion(2)) == Expansion(2)
    for wrong in (True, 2.5, "3", -1):
        with pytest.raises(ValueError, match="expand="): as_expansion(wrong)


def test_parts_have_their_weight_whatever_their_number(noisy):
    images, words = noisy(5, 4), noisy(2, 5)
    directions = [unit(unit(e.numpy().astype(float)).mean(0)) for e in (images, words)]
    for weights in ([.5, .5], [.2, .8], [1., 0.]):
        want = unit(sum(w*d for w, d in zip(weights, directions)))
        got = one_question([images, words], weights)
        assert np.abs(got.numpy()[0] - want).max() < 1e-6 and got.pid.tolist() == [-1]
    alone = one_question([images]).numpy()[0]
    assert np.abs(alone - directions[0]).max() < 1e-6
    long = images.with_emb(images.emb*torch.tensor([[1.], [100.], [1.], [1.], [1.]]))   # lengths say nothing
    assert np.abs(one_question([long]).numpy()[0] - alone).max() < 1e-6


def test_parts_of_two_models(noisy):
    a, b = noisy(2, 0), noisy(2, 1)
    a.meta["model"], b.meta["model"] = "A", "B"
    with pytest.raises(ValueError, match="features of A, the gallery of B"): one_question([a, b])
