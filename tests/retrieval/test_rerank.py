"""Re-ranking: test vectors, the definitions with matrices, and features at any scale."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.rerank import (
    MatchBatches,
    NearPairs,
    jaccard_distances,
    jaccard_pairs,
    rerank_itm,
    rerank_k_reciprocal,
)
from reid_lab.retrieval.scores import EmbeddingScores, MatrixScores


def test_itm_oracle(oracles):
    o = oracles["itc_topk_itm_rerank"]
    i, want = o["inputs"], o["expected"]
    sim, logit = np.array(i["sim"]), np.array(i["itm_logit_match"])
    asked = []
    def itm(a, b):
        asked.extend(zip(a, b))
        return logit[a, b]
    s = rerank_itm(None, None, itm, k_test=i["k_test"], tie_weight=i["tie_weight"], scores=MatrixScores(sim))
    assert s.index.tolist() == want["topk"] and len(asked) == 6
    assert s.block(0, 2).numpy() == pytest.approx(np.array(want["score"]), abs=1e-6)
    assert s.block(0, 2).argsort(dim=1, descending=True, stable=True).tolist() == want["order"]


def test_itm_in_pieces_is_itm_at_once(people):
    q, g = people(30, 0), people(200, 1)
    noise = np.random.default_rng(5).normal(size=(30, 200))
    itm = lambda a, b: torch.from_numpy((q.pid[a] == g.pid[b]) + noise[a, b])
    texts = Embeddings(q.emb, q.pid)
    whole = rerank_itm(texts, g, itm, k_test=20, batches=MatchBatches(10**9))
    full = whole.block(0, 30).numpy()
    # the definition, with matrices
    cos = EmbeddingScores(q.emb, g.emb).block(0, 30).double().numpy()
    m = np.full(cos.shape, np.nan)
    top = np.argsort(-cos, 1, kind="stable")[:, :20]
    np.put_along_axis(m, top, itm(np.arange(30)[:, None], top).numpy(), 1)
    m = np.where(np.isnan(m), np.nanmin(m, 1, keepdims=True), m)
    unit = lambda x: (x - x.min())/(x.max() - x.min())
    assert full == pytest.approx(unit(m) + .002*unit(cos), abs=1e-6)
    want = metrics_from_similarity(full, q.pid, g.pid, scoring=Scoring(span=whole.span))
    for chunk in (1, 7, None):
        pieces = rerank_itm(texts, g, itm, k_test=20, batches=MatchBatches(13, chunk))
        got = retrieval_metrics(texts, g, scores=pieces, scoring=Scoring(chunk=chunk))
        for k in want: assert got[k] == pytest.approx(want[k], abs=1e-4), k
    assert want["R1"] > retrieval_metrics(texts, g)["R1"]
    index, _ = rank(texts, g, 20, scores=whole)
    assert (np.sort(index, 1) == np.sort(top, 1)).mean() > .6  # mostly the matched images, reordered


def test_itm_refuses_bad_heads(people):
    q, g = people(3, 0), people(9, 1)
    with pytest.raises(ValueError, match="one match logit per pair"):
        rerank_itm(q, g, lambda a, b: np.zeros((len(a), 2)))
    with pytest.raises(ValueError, match="NaN or infinite logits .query 0"): rerank_itm(q, g, lambda a, b: a*np.nan)


def test_k_reciprocal_oracle(oracles):
    o = oracles["k_reciprocal_rerank"]
    i, want = o["inputs"], o["expected"]
    q, g = (Embeddings(np.array(i[k]), np.zeros(len(i[k]), int)) for k in "qg")
    s = rerank_k_reciprocal(q, g, k1=i["k1"], k2=i["k2"], lam=i["lambda"], distance="euclidean")
    assert -s.block(0, 2).numpy() == pytest.approx(np.array(want["final_distance"]), abs=2e-6)
    assert rank(q, g, 6, scores=s)[0].tolist() == want["order_after"]


def plain_k_reciprocal(x, nq, k1, k2, lam):
    "Set by set, as in the paper"
    D = ((x[:, None] - x[None])**2).sum(2)
    D /= D.max(1, keepdims=True)
    N, n = np.argsort(D, 1, kind="stable"), len(x)
    V = np.zeros((n, n))
    R = lambda i, k: [j for j in N[i, :k + 1] if i in N[j, :k + 1]]
    for i in range(n):
        own = set(R(i, k1))
        S = set(own)
        for c in R(i, k1):
            r = set(R(c, int(np.around(k1/2))))
            if len(r & own) > 2/3*len(r): S |= r
        S = sorted(S)
        V[i, S] = np.exp(-D[i, S])
        V[i] /= V[i].sum()
    if k2 > 1: V = np.stack([V[N[i, :k2]].mean(0) for i in range(n)])
    m = np.minimum(V[:nq, None], V[None, nq:]).sum(2)
    return (1 - lam)*(1 - m/(2 - m)) + lam*D[:nq, nq:]


@pytest.mark.parametrize("k1, k2, lam", [(20, 6, .3), (7, 1, .3), (5, 3, 0.), (3, 2, 1.), (30, 6, .5)])
def test_k_reciprocal_equals_the_dense_form(people, k1, k2, lam):
    q, g = people(15, 0), people(90, 1)
    q, g = Embeddings(q.emb.double(), q.pid, q.cam), Embeddings(g.emb.double(), g.pid, g.cam)
    x = np.concatenate([q.unit().numpy(), g.unit().numpy()])
    want = plain_k_reciprocal(x, 15, k1, k2, lam)
    s = rerank_k_reciprocal(q, g, k1, k2, lam, chunk=17)
    assert -s.block(0, 15).numpy() == pytest.approx(want, abs=1e-9)
    assert -s.block(4, 6).numpy() == pytest.approx(want[4:6], abs=1e-9)


def test_k_reciprocal_helps_and_survives_tiny_galleries(people):
    q, g = people(60, 0), people(400, 1)
    assert retrieval_metrics(q, g, scores=rerank_k_reciprocal(q, g))["mAP"] > retrieval_metrics(q, g)["mAP"]
    assert rerank_k_reciprocal(q[:1], g[:2]).block(0, 1).isfinite().all()
    for kw in (dict(k1=0), dict(k2=0), dict(lam=2)):
        with pytest.raises(ValueError, match="needs k1 >= 1"): rerank_k_reciprocal(q, g, **kw)
    with pytest.raises(ValueError, match="distance='l2'"): rerank_k_reciprocal(q, g, distance="l2")


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("scale, dtype", [(1e-25, "float32"), (1e25, "float32"), (1e-200, "float64"),
                                          (1e200, "float64")])
def test_re_ranking_at_any_scale(people, distance, scale, dtype):
    q, g = (e.with_emb(e.emb.to(getattr(torch, dtype))) for e in (people(20, 0), people(80, 1)))
    far = [e.with_emb(e.emb*scale) for e in (q, g)]
    want, got = (rerank_k_reciprocal(*e, distance=distance).block(0, 20) for e in ((q, g), far))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    logits = lambda s: rerank_itm(q, g, lambda i, j: s*np.sin(i + 3.*j), k_test=9).block(0, 20)
    torch.testing.assert_close(logits(1e300), logits(1.))
    torch.testing.assert_close(logits(1e-300), logits(1.))


def test_itm_takes_single_settings_of_the_last_release(people):
    q, g = people(5, 0), people(20, 1)
    def matched(**how): return rerank_itm(q, g, lambda i, j: np.sin(i + 3.*j), k_test=9, **how).block(0, 5)
    with pytest.warns(DeprecationWarning, match=r"batches=MatchBatches\(pairs=..., queries") as caught:
        old = matched(pairs_per_call=4, chunk=2)
    assert caught[0].filename == __file__ and torch.equal(old, matched(batches=MatchBatches(4, 2)))
    for wrong in (dict(pairs=0), dict(queries=0)):
        with pytest.raises(ValueError, match="whole number of at least 1"): MatchBatches(**wrong)


# --- distances within one set -----------------------------------------------------------------------------------------

def plain_jaccard(x, k1, k2, form):
    "Distances within one set, image by image"
    n = len(x)
    D = ((x[:, None] - x[None])**2).sum(2)
    lists = []
    for i in range(n):
        others = [j for j in np.argsort(D[i], kind="stable") if j != i]
        lists.append([i, *others])
    if form == "cluster_contrast": lists = [a[:k1] for a in lists]
    else: D = D/np.maximum(D.max(1, keepdims=True), 1e-300)

    def reciprocal(i, k): return {j for j in lists[i][:k + 1] if i in lists[j][:k + 1]}

    V = np.zeros((n, n))
    for i in range(n):
        own = reciprocal(i, k1)
        members = set(own)
        for c in own:
            further = reciprocal(c, round(k1/2))
            if len(further & own) > 2/3*len(further): members |= further
        members = sorted(members)
        weight = np.exp(-D[i, members])
        V[i, members] = weight/weight.sum()
    if k2 > 1: V = np.stack([V[lists[i][:k2]].mean(0) for i in range(n)])
    out = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            shared = np.minimum(V[i], V[j]).sum()
            if i != j: out[i, j] = 1 - shared/(2 - shared)
    return out


def a_set(n, seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    pid = rng.integers(0, max(1, n//5), n)
    x = rng.normal(size=(n, 6))[pid] + .8*rng.normal(size=(n, 6))
    return Embeddings(x.astype(dtype), pid, np.arange(n) % 3)


@pytest.mark.parametrize("form", ["reranking", "cluster_contrast"])
@pytest.mark.parametrize("k1, k2", [(20, 6), (30, 6), (7, 1), (5, 3), (2, 9), (1, 1)])
def test_distances_within_a_set_are_those_of_a_loop(form, k1, k2):
    for n in (2, 3, 17, 60):
        e = a_set(n, n)
        want = plain_jaccard(e.unit().numpy(), k1, k2, form)
        assert jaccard_distances(e, k1, k2, form) == pytest.approx(want, abs=1e-6), n
    assert jaccard_distances(e[:1], k1, k2, form).tolist() == [[0]]
    single = e.with_emb(e.emb.float())
    assert jaccard_distances(single, k1, k2, form) == pytest.approx(want, abs=1e-5)


def test_both_forms_of_the_distances_within_a_set():
    "The list of cluster contrast is one image shorter, and its distances are not divided by the maximum of the row"
    e = a_set(60, 4)
    reranking, contrast = (jaccard_distances(e, 20, 6, form=form) for form in ("reranking", "cluster_contrast"))
    assert abs(reranking - contrast).max() > .02
    with_itself = -rerank_k_reciprocal(e, e, 20, 6, lam=0.).block(0, 60).numpy()
    np.fill_diagonal(with_itself, 0)
    assert reranking == pytest.approx(with_itself, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 40), k1=st.integers(1, 45), k2=st.integers(1, 10), seed=st.integers(0, 999),
       form=st.sampled_from(["reranking", "cluster_contrast"]), within=st.floats(0, .99))
def test_what_holds_for_all_distances_within_a_set(n, k1, k2, seed, form, within):
    e = a_set(n, seed)
    d = jaccard_distances(e, k1, k2, form)
    assert d.dtype == np.float32 and d.shape == (n, n)
    assert (d == d.T).all() and (d.diagonal() == 0).all() and d.min() >= 0 and d.max() <= 1
    assert jaccard_distances(e, k1, k2, form, chunk=3) == pytest.approx(d, abs=1e-6)
    near = jaccard_pairs(e, within, k1, k2, form)
    kept = near.distances.toarray() != 0
    assert isinstance(near, NearPairs) and len(near) == n and near.within == within
    assert (near.distances.toarray()[kept] == d[kept]).all() and near.distances.nnz == (d <= within).sum()
    order = np.random.default_rng(seed).permutation(n)
    assert jaccard_distances(e[order], k1, k2, form) == pytest.approx(d[order][:, order], abs=1e-6)


@pytest.mark.parametrize("form", ["reranking", "cluster_contrast"])
def test_copies_within_a_set_are_images_of_their_own(form):
    e = a_set(30, 1)
    copies = e[np.r_[np.zeros(40, int), np.arange(30)]]       # more copies than a list is long
    d = jaccard_distances(copies, 20, 6, form)
    assert np.isfinite(d).all() and (d == d.T).all() and (d.diagonal() == 0).all()
    assert d[:41, :41].max() < .5
    two = jaccard_distances(e[np.r_[np.arange(30), 4]], 8, 3, form)
    assert two[4, 30] == two[4][np.arange(31) != 4].min() and two[4, 30] < .35


@pytest.mark.parametrize("scale, dtype", [(1e-25, "float32"), (1e25, "float32"), (1e200, "float64")])
def test_distances_within_a_set_at_any_scale(scale, dtype):
    e = a_set(50, 2, dtype)
    for form in ("reranking", "cluster_contrast"):
        far = jaccard_distances(e.with_emb(e.emb*scale), 10, 3, form)
        assert far == pytest.approx(jaccard_distances(e, 10, 3, form), abs=1e-4)
