"Fused scores against a loop over pairs, calibration against scikit-learn and a count, grids of weights"
from fractions import Fraction

import numpy as np
import pytest
import torch

from reid_lab.retrieval.fusion import (
    MOST_WEIGHTS,
    TIE_WEIGHT,
    Calibration,
    FusedScores,
    ScoredPairs,
    calibrate_scores,
    pair_scores,
    weight_grid,
)
from reid_lab.retrieval.metrics import IdentityPairs, retrieval_metrics
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.scores import EmbeddingScores, MatrixScores
from reid_lab.retrieval.sides import SameImages


def curve(seed, n=9):
    rng = np.random.default_rng(seed)
    return Calibration(np.sort(rng.uniform(-.8, .8, n)), np.sort(rng.random(n)))


def probability(c, s):
    "The curve at one score, point by point"
    if s <= c.score[0]: return c.probability[0]
    for k in range(1, len(c.score)):
        if s <= c.score[k]:
            part = (s - c.score[k - 1])/(c.score[k] - c.score[k - 1])
            return c.probability[k - 1] + part*(c.probability[k] - c.probability[k - 1])
    return c.probability[-1]


@pytest.mark.parametrize("weights", [[.5, .3, .2], [0., 1., 0.], [1., 1., 2.]])
def test_fused_scores_are_the_loop(weights):
    sims = np.random.default_rng(1).uniform(-1, 1, (3, 12, 30))
    curves = [curve(seed) for seed in range(3)]
    fused = FusedScores([MatrixScores(sim) for sim in sims], curves, weights)
    want = np.zeros((12, 30))
    for i in range(12):
        for j in range(30):
            for w, c, sim in zip(weights, curves, sims):
                want[i, j] += w/sum(weights)*(probability(c, sim[i, j]) + TIE_WEIGHT*sim[i, j])
    assert np.abs(fused.block(0, 12).numpy() - want).max() < 1e-12
    assert np.abs(fused.block(5, 9).numpy() - want[5:9]).max() < 1e-12
    low, high = fused.span
    assert low <= want.min() and want.max() <= high


def test_one_model_keeps_its_order(people):
    q, g = people(40, 0), people(150, 1)
    scores = EmbeddingScores(q.emb, g.emb)
    pairs = IdentityPairs(q.pid, g.pid, q.cam, g.cam, True)
    for form in ("centred", "steps"):
        calibration = calibrate_scores(pair_scores(scores, pairs), form)
        alone = FusedScores([scores], [calibration], [3.])
        assert (rank(q, g, 20, scores=alone)[0] == rank(q, g, 20)[0]).mean() > .999     # rounding of float32
        assert retrieval_metrics(q, g, scores=alone)["mAP"] == pytest.approx(retrieval_metrics(q, g)["mAP"], abs=.01)


def naive_pairs(sim, q_pid, g_pid, q_cam, g_cam, same):
    found = []
    for i, row in enumerate(sim):
        for j, s in enumerate(row):
            if (i, j) in same or (q_pid[i] == g_pid[j] and q_cam[i] == g_cam[j]): continue
            found.append((float(s), bool(q_pid[i] == g_pid[j])))
    return sorted(found)


def test_pairs_that_count_for_no_query_are_in_no_calibration():
    rng = np.random.default_rng(0)
    q_pid, g_pid, q_cam, g_cam = (rng.integers(0, n, k) for n, k in ((6, 20), (6, 50), (3, 20), (3, 50)))
    sim, same = rng.normal(size=(20, 50)), SameImages.of_pairs([3, 7], [10, 40])
    pairs = IdentityPairs(q_pid, g_pid, q_cam, g_cam, True, same)
    found = pair_scores(MatrixScores(sim), pairs)
    assert sorted(zip(found.score.tolist(), found.match.tolist())) == naive_pairs(sim, q_pid, g_pid, q_cam, g_cam,
                                                                                  {(3, 10), (7, 40)})
    assert (found.weight == 1).all()
    some = [pair_scores(MatrixScores(sim), pairs, most=300, seed=seed) for seed in range(40)]
    assert np.mean([s.weight.sum() for s in some]) == pytest.approx(found.weight.sum(), rel=.05)
    assert all(s.match.sum() == found.match.sum() for s in some)


def test_calibration_is_isotonic_regression():
    from sklearn.isotonic import IsotonicRegression
    rng = np.random.default_rng(2)
    score = rng.normal(size=400)
    pairs = ScoredPairs(score, rng.random(400) < 1/(1 + np.exp(-3*score)), rng.uniform(.5, 3, 400))
    fit = IsotonicRegression(out_of_bounds="clip").fit(score, pairs.match, pairs.weight)
    at = np.linspace(-4, 4, 101)
    steps = calibrate_scores(pairs, "steps")
    assert np.abs(steps(torch.from_numpy(at)).numpy() - fit.predict(at)).max() < 1e-12
    centred = calibrate_scores(pairs)
    assert (np.diff(centred.score) > 0).all() and (np.diff(centred.probability) > 0).all()
    fitted = fit.predict(score)
    for s, p in zip(centred.score, centred.probability):    # each step by a count
        step = np.isclose(fitted, p, atol=1e-12)
        assert s == pytest.approx(np.average(score[step], weights=pairs.weight[step]), abs=1e-9)
        assert p == pytest.approx(np.average(pairs.match[step], weights=pairs.weight[step]), abs=1e-9)
    with pytest.raises(ValueError, match="0 of 400 pairs are of one person"):
        calibrate_scores(ScoredPairs(score, np.zeros(400, bool), pairs.weight))


@pytest.mark.parametrize("n, parts", [(2, 4), (3, 3), (4, 2)])
def test_all_weights_of_a_grid_are_there_once(n, parts):
    def sums(n, left):
        if n == 1: return [(left,)]
        return [(k, *rest) for k in range(left + 1) for rest in sums(n - 1, left - k)]

    grid = [tuple(Fraction(w).limit_denominator(100) for w in row) for row in weight_grid(n, parts)]
    assert sorted(grid) == sorted(tuple(Fraction(k, parts) for k in row) for row in sums(n, parts))
    squares = [sum(w*w for w in row) for row in grid]
    assert squares == sorted(squares)     # of weights that are as good, the more equal ones are taken


def test_grids_stay_small():
    for n in range(2, 13):
        grid = weight_grid(n)
        assert len(grid) <= MOST_WEIGHTS and np.eye(n).tolist() == sorted(grid[grid.max(1) == 1].tolist())[::-1]
    with pytest.raises(ValueError, match="n_models=13 must be a whole number from 2 to 12"): weight_grid(13)
