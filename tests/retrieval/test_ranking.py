"""Top-k lists and re-ranking."""
import numpy as np
import pytest
import torch

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.scores import EmbeddingScores, MatrixScores
from reid_lab.retrieval.metrics import metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.ranking import RetrievalResult, rank, retrieve, rivals
from reid_lab.retrieval.rerank import rerank_itm, rerank_k_reciprocal


def people(n, seed, ids=10, cams=3, dim=8):
    rng = np.random.default_rng(seed)
    centre = np.random.default_rng(9).normal(size=(ids, dim)); pid = np.arange(n) % ids
    return Embeddings((centre[pid] + 1.5*rng.normal(size=(n, dim))).astype("float32"), pid, rng.integers(0, cams, n))


def test_rank_is_the_order_of_the_definition():
    rng = np.random.default_rng(0)
    for trial in range(20):
        Q, G, k = 5, int(rng.integers(1, 40)), int(rng.integers(1, 12))
        sim = (rng.integers(0, 4, (Q, G))/3).astype("float32")
        q = Embeddings(np.zeros((Q, 1)), rng.integers(0, 4, Q), rng.integers(0, 2, Q))
        g = Embeddings(np.zeros((G, 1)), rng.integers(-1, 4, G), rng.integers(0, 2, G))
        index, score = rank(q, g, k, scores=MatrixScores(sim), chunk=int(rng.integers(1, 6)))
        assert index.shape == score.shape == (Q, k)
        for i in range(Q):
            drop = (g.pid == -1) | ((g.pid == q.pid[i]) & (g.cam == q.cam[i]))
            want = [j for j in np.argsort(-sim[i], kind="stable") if not drop[j]][:k]
            assert index[i].tolist() == want + [-1]*(k - len(want))
            assert (score[i, :len(want)] == sim[i, want]).all() and (score[i, len(want):] == -np.inf).all()


def test_rank_leaves_a_given_matrix_alone():
    sim = np.random.default_rng(0).normal(size=(4, 9)).astype("float32"); before = sim.copy()
    q, g = people(4, 0), people(9, 1)
    rank(q, g, 3, scores=MatrixScores(sim))
    again = rerank_itm(q, g, lambda i, j: sim[i, j], k_test=3, scores=MatrixScores(sim))
    again.block(0, 4)
    assert np.array_equal(sim, before)
    s64 = sim.astype("float64")
    rerank_itm(q, g, lambda i, j: s64[i, j], k_test=3, scores=MatrixScores(s64)).block(0, 4)
    assert np.array_equal(s64, before.astype("float64"))


def test_result_agrees_with_the_metrics():
    q, g = people(40, 0), people(300, 1)
    r, m = retrieve(q, g, k=10), retrieval_metrics(q, g)
    for k in (1, 5, 10): assert 100*r.correct[:, :k].any(1).mean() == pytest.approx(m[f"R{k}"])
    assert len(r.failures()) == round(40*(1 - m["R1"]/100))
    s = r.score[r.failures(), 0]
    assert (np.diff(s) <= 0).all()
    first = r.ranked_list(0)
    assert first["row"].tolist() == r.index[0].tolist() and first["pid"].tolist() == g.pid[r.index[0]].tolist()


@pytest.mark.parametrize("change, message", [
    (lambda i, s: (i + 1000, s), "positions 0 to"), (lambda i, s: (i, s[:, ::-1].copy()), "score must fall"),
    (lambda i, s: (i[:3], s[:3]), "one row per query"), (lambda i, s: (i - 5000, s), "positions 0 to")])
def test_result_is_validated(change, message):
    q, g = people(8, 0), people(30, 1)
    with pytest.raises(ValueError, match=message): RetrievalResult(*change(*rank(q, g, 4)), q, g)


def test_itm_oracle(oracles):
    o = oracles["itc_topk_itm_rerank"]; i, want = o["inputs"], o["expected"]
    sim, logit = np.array(i["sim"]), np.array(i["itm_logit_match"])
    asked = []
    def itm(a, b): asked.extend(zip(a, b)); return logit[a, b]
    s = rerank_itm(None, None, itm, k_test=i["k_test"], tie_weight=i["tie_weight"], scores=MatrixScores(sim))
    assert s.index.tolist() == want["topk"] and len(asked) == 6
    assert s.block(0, 2).numpy() == pytest.approx(np.array(want["score"]), abs=1e-6)
    assert s.block(0, 2).argsort(dim=1, descending=True, stable=True).tolist() == want["order"]


def test_itm_in_pieces_is_itm_at_once():
    q, g = people(30, 0), people(200, 1)
    noise = np.random.default_rng(5).normal(size=(30, 200))
    itm = lambda a, b: torch.from_numpy((q.pid[a] == g.pid[b]) + noise[a, b])
    texts = Embeddings(q.emb, q.pid)
    whole = rerank_itm(texts, g, itm, k_test=20, pairs_per_call=10**9)
    full = whole.block(0, 30).numpy()
    # the definition, with matrices
    cos = EmbeddingScores(q.emb, g.emb).block(0, 30).double().numpy()
    m = np.full(cos.shape, np.nan); top = np.argsort(-cos, 1, kind="stable")[:, :20]
    np.put_along_axis(m, top, itm(np.arange(30)[:, None], top).numpy(), 1)
    m = np.where(np.isnan(m), np.nanmin(m, 1, keepdims=True), m)
    unit = lambda x: (x - x.min())/(x.max() - x.min())
    assert full == pytest.approx(unit(m) + .002*unit(cos), abs=1e-6)
    want = metrics_from_similarity(full, q.pid, g.pid, span=whole.span)
    for kw in (dict(chunk=1), dict(chunk=7), dict(chunk=None)):
        pieces = rerank_itm(texts, g, itm, k_test=20, pairs_per_call=13, chunk=kw["chunk"])
        got = retrieval_metrics(texts, g, scores=pieces, **kw)
        for k in want: assert got[k] == pytest.approx(want[k], abs=1e-4), k
    assert want["R1"] > retrieval_metrics(texts, g)["R1"]
    index, _ = rank(texts, g, 20, scores=whole)
    assert (np.sort(index, 1) == np.sort(top, 1)).mean() > .6  # mostly the matched images, reordered


def test_itm_refuses_bad_heads():
    q, g = people(3, 0), people(9, 1)
    with pytest.raises(ValueError, match="one match logit per pair"):
        rerank_itm(q, g, lambda a, b: np.zeros((len(a), 2)))
    with pytest.raises(ValueError, match="NaN or infinite logits .query 0"): rerank_itm(q, g, lambda a, b: a*np.nan)


def test_k_reciprocal_oracle(oracles):
    o = oracles["k_reciprocal_rerank"]; i, want = o["inputs"], o["expected"]
    q, g = (Embeddings(np.array(i[k]), np.zeros(len(i[k]), int)) for k in "qg")
    s = rerank_k_reciprocal(q, g, k1=i["k1"], k2=i["k2"], lam=i["lambda"], distance="euclidean")
    assert -s.block(0, 2).numpy() == pytest.approx(np.array(want["final_distance"]), abs=2e-6)
    assert rank(q, g, 6, scores=s)[0].tolist() == want["order_after"]


def plain_k_reciprocal(x, nq, k1, k2, lam):
    "Set by set, as in the paper"
    D = ((x[:, None] - x[None])**2).sum(2); D /= D.max(1, keepdims=True)
    N = np.argsort(D, 1, kind="stable"); n = len(x); V = np.zeros((n, n))
    R = lambda i, k: [j for j in N[i, :k + 1] if i in N[j, :k + 1]]
    for i in range(n):
        own = set(R(i, k1)); S = set(own)
        for c in R(i, k1):
            r = set(R(c, int(np.around(k1/2))))
            if len(r & own) > 2/3*len(r): S |= r
        S = sorted(S); V[i, S] = np.exp(-D[i, S]); V[i] /= V[i].sum()
    if k2 > 1: V = np.stack([V[N[i, :k2]].mean(0) for i in range(n)])
    m = np.minimum(V[:nq, None], V[None, nq:]).sum(2)
    return (1 - lam)*(1 - m/(2 - m)) + lam*D[:nq, nq:]


@pytest.mark.parametrize("k1, k2, lam", [(20, 6, .3), (7, 1, .3), (5, 3, 0.), (3, 2, 1.), (30, 6, .5)])
def test_k_reciprocal_equals_the_dense_form(k1, k2, lam):
    q, g = people(15, 0), people(90, 1)
    q, g = Embeddings(q.emb.double(), q.pid, q.cam), Embeddings(g.emb.double(), g.pid, g.cam)
    x = np.concatenate([q.unit().numpy(), g.unit().numpy()])
    want = plain_k_reciprocal(x, 15, k1, k2, lam)
    s = rerank_k_reciprocal(q, g, k1, k2, lam, chunk=17)
    assert -s.block(0, 15).numpy() == pytest.approx(want, abs=1e-9)
    assert -s.block(4, 6).numpy() == pytest.approx(want[4:6], abs=1e-9)


def test_k_reciprocal_helps_and_survives_tiny_galleries():
    q, g = people(60, 0), people(400, 1)
    assert retrieval_metrics(q, g, scores=rerank_k_reciprocal(q, g))["mAP"] > retrieval_metrics(q, g)["mAP"]
    assert rerank_k_reciprocal(q[:1], g[:2]).block(0, 1).isfinite().all()
    for kw in (dict(k1=0), dict(k2=0), dict(lam=2)):
        with pytest.raises(ValueError, match="needs k1 >= 1"): rerank_k_reciprocal(q, g, **kw)
    with pytest.raises(ValueError, match="distance='l2'"): rerank_k_reciprocal(q, g, distance="l2")


def labelled(e, pid=None, cam=None):
    "The same vectors with one label for all"
    every = lambda own, one: own if one is None else np.full(len(e), one)
    return Embeddings(e.emb, every(e.pid, pid), every(e.cam, cam))


@pytest.mark.parametrize("pid, cam", [(-1, None), (-1, 0), (0, 0), (0, None), (None, 0)])
def test_retrieval_needs_no_labels(pid, cam):
    "No person, one person or one camera known: the lists are those of the features"
    q, g = people(20, 0), people(80, 1); want = rank(q, g, 8, same_camera="keep")
    got = rank(*(labelled(e, pid, cam) for e in (q, g)), 8)
    assert (got[0] == want[0]).all() and (got[1] == want[1]).all()
    known = rank(labelled(q, pid, cam), g, 8)[0]   # a gallery with labels and its junk
    junk = Embeddings(g.emb, np.where(np.arange(80) < 40, -1, g.pid), g.cam)
    assert (rank(labelled(q, -1), junk, 8)[0] >= 40).all() and (known >= 0).all()


def test_ranked_lists_of_unlabelled_queries_claim_nothing():
    q, g = people(20, 0), people(80, 1)
    r = retrieve(labelled(q, -1), labelled(g, -1), k=5)
    assert not r.correct.any() and len(r.failures()) == 0 and "no labels" in repr(r) and len(r.ranked_list(3)) == 5
    half = Embeddings(q.emb, np.where(np.arange(20) < 10, -1, q.pid), q.cam); whole = retrieve(q, g)
    r = retrieve(half, g)
    assert set(r.failures()) == {i for i in whole.failures() if i >= 10}
    assert f"R1 {100*whole.correct[10:, 0].mean():.1f}" in repr(r)


def test_an_empty_list_is_said():
    q, g = labelled(people(6, 0), 0, 0), labelled(people(9, 1), 0, 0)
    with pytest.warns(UserWarning, match="6 of 6 queries have an empty list.*same_camera='keep'"):
        assert (rank(q, g, 3, same_camera="drop")[0] == -1).all()


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("scale, dtype", [(1e-25, "float32"), (1e25, "float32"), (1e-200, "float64"),
                                          (1e200, "float64")])
def test_re_ranking_at_any_scale(distance, scale, dtype):
    q, g = (e.with_emb(e.emb.to(getattr(torch, dtype))) for e in (people(20, 0), people(80, 1)))
    far = [e.with_emb(e.emb*scale) for e in (q, g)]
    want, got = (rerank_k_reciprocal(*e, distance=distance).block(0, 20) for e in ((q, g), far))
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    logits = lambda s: rerank_itm(q, g, lambda i, j: s*np.sin(i + 3.*j), k_test=9).block(0, 20)
    torch.testing.assert_close(logits(1e300), logits(1.)); torch.testing.assert_close(logits(1e-300), logits(1.))


def test_queries_of_a_wider_type_are_not_cut():
    q, g = people(10, 0), people(40, 1)
    wide = q.with_emb(q.emb.double()*1e200)
    assert rerank_k_reciprocal(wide, g).block(0, 10).isfinite().all()
    assert (rank(wide, g, 5)[0] == rank(q, g, 5)[0]).all()


@pytest.mark.parametrize("same_camera", ["drop", "keep"])
def test_rivals_are_those_of_the_definition(same_camera):
    rng = np.random.default_rng(5)
    for trial in range(20):
        Q, G = 6, int(rng.integers(2, 40))
        sim = (rng.integers(0, 5, (Q, G))/4).astype("float32")
        q = Embeddings(np.zeros((Q, 1)), rng.integers(-1, 4, Q), rng.integers(0, 2, Q))
        g = Embeddings(np.zeros((G, 1)), rng.integers(-1, 4, G), rng.integers(0, 2, G))
        if (g.pid == -1).all(): continue
        got = rivals(q, g, same_camera=same_camera, scores=MatrixScores(sim), chunk=int(rng.integers(1, 6)))
        for i, row in got.iterrows():
            own = (g.pid == q.pid[i]) & (q.pid[i] != -1)
            hidden = own & (g.cam == q.cam[i]) if same_camera == "drop" else np.zeros(G, bool)
            right, wrong = np.flatnonzero(own & ~hidden), np.flatnonzero(~own & (g.pid != -1))
            if len(right):
                best = right[np.argsort(-sim[i, right], kind="stable")][0]
                assert (row.right, row.right_score) == (best, sim[i, best])
                assert row["first"] == 1 + (sim[i, wrong] >= sim[i, best]).sum()
            else: assert (row.right, row.right_score, row["first"]) == (-1, -np.inf, 0)
            if len(wrong):
                best = wrong[np.argsort(-sim[i, wrong], kind="stable")][0]
                assert (row.wrong, row.wrong_score) == (best, sim[i, best])
            else: assert (row.wrong, row.wrong_score) == (-1, -np.inf)


def test_rivals_of_an_unlabelled_gallery_are_everybody():
    q, g = labelled(people(4, 0), -1), labelled(people(9, 1), -1)
    near, best = rivals(q, g), rank(q, g, 1)
    assert (near.right == -1).all() and (near.wrong == best[0][:, 0]).all()
    assert np.allclose(near.wrong_score, best[1][:, 0])
    with pytest.raises(ValueError, match="g has no rows"): rivals(q, g[:0])
