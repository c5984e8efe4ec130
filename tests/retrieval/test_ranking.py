"""Ranked lists: the order of the definition, labels that agree with the metrics, and rivals."""
from dataclasses import replace

import numpy as np
import pytest
from helpers.protocols import features, is_junk, naive_draws, some_table, table_for

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS, Measure
from reid_lab.retrieval.ranking import RetrievalResult, rank, retrieve, rivals
from reid_lab.retrieval.rerank import rerank_itm, rerank_k_reciprocal
from reid_lab.retrieval.scores import MatrixScores
from reid_lab.retrieval.shards import Shards, write_shards
from reid_lab.retrieval.tracklets import pool_tracks


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


def test_rank_leaves_a_given_matrix_alone(people):
    sim = np.random.default_rng(0).normal(size=(4, 9)).astype("float32")
    before = sim.copy()
    q, g = people(4, 0), people(9, 1)
    rank(q, g, 3, scores=MatrixScores(sim))
    again = rerank_itm(q, g, lambda i, j: sim[i, j], k_test=3, scores=MatrixScores(sim))
    again.block(0, 4)
    assert np.array_equal(sim, before)
    s64 = sim.astype("float64")
    rerank_itm(q, g, lambda i, j: s64[i, j], k_test=3, scores=MatrixScores(s64)).block(0, 4)
    assert np.array_equal(s64, before.astype("float64"))


def test_result_agrees_with_the_metrics(people):
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
def test_result_is_validated(people, change, message):
    q, g = people(8, 0), people(30, 1)
    with pytest.raises(ValueError, match=message): RetrievalResult(*change(*rank(q, g, 4)), q, g)


def labelled(e, pid=None, cam=None):
    "The same vectors with one label for all"
    every = lambda own, one: own if one is None else np.full(len(e), one)
    return Embeddings(e.emb, every(e.pid, pid), every(e.cam, cam))


@pytest.mark.parametrize("pid, cam", [(-1, None), (-1, 0), (0, 0), (0, None), (None, 0)])
def test_retrieval_needs_no_labels(people, pid, cam):
    "No person, one person or one camera known: the lists are those of the features"
    q, g = people(20, 0), people(80, 1)
    want = rank(q, g, 8, junk="none")
    got = rank(*(labelled(e, pid, cam) for e in (q, g)), 8)
    assert (got[0] == want[0]).all() and (got[1] == want[1]).all()
    known = rank(labelled(q, pid, cam), g, 8)[0]   # a gallery with labels and its junk
    junk = Embeddings(g.emb, np.where(np.arange(80) < 40, -1, g.pid), g.cam)
    assert (rank(labelled(q, -1), junk, 8)[0] >= 40).all() and (known >= 0).all()


def test_ranked_lists_of_unlabelled_queries_claim_nothing(people):
    q, g = people(20, 0), people(80, 1)
    r = retrieve(labelled(q, -1), labelled(g, -1), k=5)
    assert not r.correct.any() and len(r.failures()) == 0 and "no labels" in repr(r) and len(r.ranked_list(3)) == 5
    half = Embeddings(q.emb, np.where(np.arange(20) < 10, -1, q.pid), q.cam)
    whole = retrieve(q, g)
    r = retrieve(half, g)
    assert set(r.failures()) == {i for i in whole.failures() if i >= 10}
    assert f"R1 {100*whole.correct[10:, 0].mean():.1f}" in repr(r)


def test_an_empty_list_is_said(people):
    q, g = labelled(people(6, 0), 0, 0), labelled(people(9, 1), 0, 0)
    with pytest.warns(UserWarning, match="6 of 6 queries have an empty list.*junk='none'"):
        assert (rank(q, g, 3, junk="cam")[0] == -1).all()


def test_queries_of_a_wider_type_are_not_cut(people):
    q, g = people(10, 0), people(40, 1)
    wide = q.with_emb(q.emb.double()*1e200)
    assert rerank_k_reciprocal(wide, g).block(0, 10).isfinite().all()
    assert (rank(wide, g, 5)[0] == rank(q, g, 5)[0]).all()


@pytest.mark.parametrize("junk", ["cam", "none"])
def test_rivals_are_those_of_the_definition(junk):
    rng = np.random.default_rng(5)
    for trial in range(20):
        Q, G = 6, int(rng.integers(2, 40))
        sim = (rng.integers(0, 5, (Q, G))/4).astype("float32")
        q = Embeddings(np.zeros((Q, 1)), rng.integers(-1, 4, Q), rng.integers(0, 2, Q))
        g = Embeddings(np.zeros((G, 1)), rng.integers(-1, 4, G), rng.integers(0, 2, G))
        if (g.pid == -1).all(): continue
        got = rivals(q, g, junk=junk, scores=MatrixScores(sim), chunk=int(rng.integers(1, 6)))
        for i, row in got.iterrows():
            own = (g.pid == q.pid[i]) & (q.pid[i] != -1)
            hidden = own & (g.cam == q.cam[i]) if junk == "cam" else np.zeros(G, bool)
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


def test_rivals_of_an_unlabelled_gallery_are_everybody(people):
    q, g = labelled(people(4, 0), -1), labelled(people(9, 1), -1)
    near, best = rivals(q, g), rank(q, g, 1)
    assert (near.right == -1).all() and (near.wrong == best[0][:, 0]).all()
    assert np.allclose(near.wrong_score, best[1][:, 0])
    with pytest.raises(ValueError, match="g has no rows"): rivals(q, g[:0])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, draw", [("market", 0), ("ltcc.cc", 0), ("sysu.all", 9), ("prcc.single-changed", 4),
                                        ("vehicleid.small", 2), ("llcm.v2i-released", 7), ("mars.torchreid", 0)])
def test_lists_of_a_draw_against_a_plain_loop(name, draw, tmp_path):
    f = table_for(name, draw + 2, 120)
    q, g, protocol = features(f, roles=True), features(f, seed=2, roles=True), PROTOCOLS[name]
    if protocol.without_queries: q = q[:50]
    asks, searched = naive_draws(protocol, f[:len(q)], f)[draw]
    sim, rows = (q.unit().emb @ g.unit().emb.T).numpy(), f.to_dict("records")
    on_disk = Shards(write_shards(g, tmp_path/"g", "float32", rows=50))
    index, score = rank(q, g, 6, protocol=name, draw=draw)
    far, _ = rank(q, on_disk, 6, protocol=name, draw=draw)
    np.testing.assert_array_equal(far, index)
    for i in range(len(q)):
        kept = [j for j in sorted(searched) if rows[j]["pid"] != -1 and not is_junk(protocol.junk, rows[i], rows[j])
                ] if i in asks else []
        want = sorted(kept, key=lambda j: -sim[i, j])[:6]
        assert index[i].tolist() == want + [-1]*(6 - len(want)) and (score[i] > -np.inf).sum() == len(want)
    lists = retrieve(q, g, 6, protocol=name, draw=draw)
    np.testing.assert_array_equal(lists.index, index[sorted(asks)])
    found = retrieval_metrics(q, g, protocol=replace(protocol, measure=Measure()), scoring=Scoring(ties="order"))
    n = found.draws[draw]["n_query"]
    assert 100*lists.correct[:, 0].sum()/n == pytest.approx(found.draws[draw]["R1"])


@pytest.mark.filterwarnings("ignore")
def test_lists_take_scores_of_each_draw_and_refuse_what_does_not_fit():
    f, _ = some_table(3, 120)
    e = features(f, roles=True)
    scores = rerank_k_reciprocal(e, e, k1=5, k2=2, protocol="sysu.all")
    part = scores.parts[4]
    local = rank(part.sides.q, part.sides.g, 5, junk=part.sides.junk, scores=part.scores)[0]
    for kw in (dict(protocol="sysu.all"), {}):
        got = rank(e, e, 5, scores=scores, draw=4, **kw)[0][part.sides.rows.queries]
        np.testing.assert_array_equal(got, np.where(local >= 0, part.sides.rows.gallery[local], -1))
    tracks = Embeddings(np.eye(4, dtype="float32"), [0, 0, 0, 0], [0, 0, 1, 1], columns=dict(track=[0, 0, 1, 1]))
    for kw, says in ((dict(draw=1), "draw=1 is of a protocol"), (dict(protocol="sysu.all", draw=10), "draw=10"),
                     (dict(protocol="market", junk="cam"), "give one of the two"),
                     (dict(protocol="sysu.indoor", scores=scores), "make them with the same")):
        with pytest.raises(ValueError, match=says): rank(e, e, **kw)
    with pytest.raises(ValueError, match="pool_tracks\\(q, 'max'\\)"): rank(tracks, tracks, protocol="mars.official")
    pooled = pool_tracks(tracks, "max")
    assert rank(pooled, pooled, 1, protocol="mars.official")[0].tolist() == [[1], [0]]
