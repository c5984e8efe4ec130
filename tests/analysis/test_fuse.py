"Fusion: choices from one half of the people, gain on the other, against a run by hand"
import numpy as np
import pytest
from helpers.compare import bootstrap_by_loop, model
from sklearn.isotonic import IsotonicRegression

from reid_lab.analysis.compare import CompareSettings, ModelFeatures, shared_labels
from reid_lab.analysis.fuse import fuse_features, halves
from reid_lab.core.statistics import half_of
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics

SETTINGS = CompareSettings(draws=300, seed=2)


@pytest.fixture(scope="module")
def three(): return [model("A", 1.4, 0), model("B", 1.2, 1), model("C", 1.4, 2)]


@pytest.fixture(scope="module")
def fused(three): return fuse_features(three, SETTINGS, "steps")


def average_precision(sim, q, g, i):
    "Of one query from a row of scores, own camera left out"
    counts = ~((g.pid == q.pid[i]) & (g.cam == q.cam[i]))
    order = np.argsort(-sim[counts], kind="stable")
    ranks = 1 + np.flatnonzero((g.pid[counts] == q.pid[i])[order])
    return np.mean(np.arange(1, len(ranks) + 1)/ranks)


def by_hand(features):
    "Fusion from the definitions, with matrices; scores are those of the library"
    from reid_lab.retrieval.scores import scores_of
    q, g = features[0].q, features[0].g
    half = half_of(q.pid, SETTINGS.seed)
    choose, test = np.flatnonzero(half == 0), np.flatnonzero(half == 1)
    seen = np.flatnonzero(~np.isin(g.pid, q.pid[test]))

    def cosines(f, rows, images):
        return scores_of(f.q[rows], f.g[images], "cosine").block(0, len(rows)).double().numpy().copy()

    small, large = [cosines(f, choose, seen) for f in features], [cosines(f, test, np.arange(len(g))) for f in features]
    counts = ~((q.pid[choose, None] == g.pid[seen]) & (q.cam[choose, None] == g.cam[seen]))
    match = (q.pid[choose, None] == g.pid[seen])[counts]
    fits = [IsotonicRegression(out_of_bounds="clip").fit(s[counts], match) for s in small]

    def calibrated(tables): return [f.predict(s.ravel()).reshape(s.shape) + 1e-6*s for f, s in zip(fits, tables)]

    small, large = calibrated(small), calibrated(large)

    def mean_ap(weights, tables, rows, gallery):
        mixed = sum(w*t for w, t in zip(weights, tables))
        return np.array([average_precision(row, q[rows], gallery, i) for i, row in enumerate(mixed)])

    grid = [(a/10, b/10, (10 - a - b)/10) for a in range(11) for b in range(11 - a)]
    scores = {w: mean_ap(w, small, choose, g[seen]).mean() for w in grid}
    top = max(scores.values())
    weights = min((w for w in grid if scores[w] > top - 1e-11), key=lambda w: sum(x*x for x in w))
    best = max(range(3), key=lambda m: scores[tuple(float(m == k) for k in range(3))])
    alone = mean_ap([float(m == best) for m in range(3)], large, test, g)
    return weights, best, mean_ap(weights, large, test, g) - alone, q.pid[test]


def test_fusion_is_that_of_the_definitions(three, fused):
    weights, best, gain, pid = by_hand(three)
    assert fused.chosen.weights.tolist() == pytest.approx(weights) and fused.best == "ABC"[best] == "B"
    of_ap = fused.gain[1]
    assert of_ap.diff == pytest.approx(100*gain.mean(), abs=1e-6)
    assert (of_ap.low, of_ap.high) == pytest.approx(bootstrap_by_loop(gain, pid, 300, 2), abs=1e-6)
    assert fused.counts == (15, 45, 15, 45) and of_ap.verdict == "higher"


def test_the_test_half_has_no_part_in_the_choice(three, fused):
    half = half_of(three[0].q.pid, SETTINGS.seed)
    strangers = np.unique(three[0].q.pid[half == 1])

    def noisy(e):
        x = e.numpy().copy()
        some = np.isin(e.pid, strangers)
        x[some] = np.random.default_rng(9).normal(size=(some.sum(), x.shape[1]))
        return e.with_emb(x)

    other = fuse_features([ModelFeatures(f.label, noisy(f.q), noisy(f.g)) for f in three], SETTINGS, "steps")
    assert other.chosen.weights.tolist() == fused.chosen.weights.tolist() and other.best == fused.best
    for a, b in zip(other.scores.calibrations, fused.scores.calibrations):
        assert np.array_equal(a.score, b.score) and np.array_equal(a.probability, b.probability)
    assert other.fused.mean[1] < fused.fused.mean[1] - 10


def test_halves_share_nobody(three):
    f = three[0]
    labels = shared_labels(three)
    for split in range(3):
        first, second = halves(labels, np.ones(len(f.q), bool), split)
        assert not set(f.q.pid[first.queries]) & set(f.q.pid[second.queries])
        assert not set(f.g.pid[first.images]) & set(f.q.pid[second.queries]) and len(second.images) == len(f.g)
    assert first.n_people + second.n_people == 30


def test_the_scores_serve_all_queries(three, fused):
    q, g = three[0].q, three[0].g
    assert fused.scores.shape == (len(q), len(g))
    alone = [retrieval_metrics(f.q, f.g)["mAP"] for f in three]
    assert retrieval_metrics(q, g, scores=fused.scores)["mAP"] > max(alone)


def test_copies_gain_nothing_and_junk_plays_no_part(three):
    copies = [ModelFeatures(name, three[0].q, three[0].g) for name in "XY"]
    found = fuse_features(copies, SETTINGS)
    assert {d.verdict for d in found.gain} == {"equal"} and "mAP: equal" in str(found)
    rng = np.random.default_rng(0)

    def with_junk(f):
        more = Embeddings(rng.normal(size=(40, f.g.dim)).astype("f4"), [-1]*40, [0]*40, [f"j/{i}" for i in range(40)])
        return ModelFeatures(f.label, f.q, Embeddings.concat([f.g, more]))

    a, b = fuse_features(three, SETTINGS), fuse_features([with_junk(f) for f in three], SETTINGS)
    assert a.chosen.weights.tolist() == b.chosen.weights.tolist() and a.gain == b.gain


def test_too_few_people(three):
    few = [ModelFeatures(f.label, f.q[f.q.pid < 3], f.g) for f in three]
    with pytest.raises(ValueError, match="3 have queries that count; it needs two in each half"): fuse_features(few)
    with pytest.raises(ValueError, match="two models at least, and there is 1"): fuse_features(three[:1])
