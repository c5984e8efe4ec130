"Means and intervals against plain loops and scipy: what is drawn is people, not queries"
import math

import numpy as np
import pytest
from scipy import stats

from reid_lab.core.basics import stream
from reid_lab.core.statistics import (
    half_of,
    mean_interval,
    paired_gain,
    percent_interval,
    resampled_means,
    weighted_mean,
    wilson,
)


def test_a_weighted_mean_is_the_mean_over_all_queries():
    rng = np.random.default_rng(0)
    parts = [rng.random(n) for n in (3, 8, 1)]
    means, n = [*(p.mean() for p in parts), math.nan], [*map(len, parts), 0]
    assert weighted_mean(means, n) == pytest.approx(np.concatenate(parts).mean())
    with pytest.raises(ValueError, match="no camera has a query"): weighted_mean([math.nan], [0])


@pytest.mark.parametrize("hits, n", [(0, 5), (3, 5), (5, 5), (480, 500)])
def test_wilson_is_the_interval_of_scipy(hits, n):
    want = stats.binomtest(hits, n).proportion_ci(.95, "wilson")
    assert wilson(hits/n, n, stats.norm.ppf(.975)) == pytest.approx((want.low, want.high), abs=1e-9)


def test_people_are_drawn_with_all_their_values():
    "The draws of the same stream, person by person"
    rng = np.random.default_rng(1)
    values = [rng.random((k, 2)) for k in (4, 1, 7)]
    total, n = np.array([v.sum(0) for v in values]), np.array([len(v) for v in values])
    means = resampled_means(total, n, draws=50, seed=3)
    drawn = stream(3, "people", 3).integers(3, size=(50, 3))
    want = [np.concatenate([values[p] for p in people]).mean(0) for people in drawn]
    np.testing.assert_allclose(means, want, rtol=1e-12)


def test_memory_changes_no_draw():
    "400,000 people are drawn in two blocks of two; the first draws are those of a smaller call"
    n = np.ones(400_000)
    total = np.arange(400_000.)[:, None]
    assert (resampled_means(total, n, 4, 0)[:2] == resampled_means(total, n, 2, 0)).all()


def test_several_intervals_together_are_wider():
    means = np.arange(10_001)/10_000
    assert percent_interval(means) == pytest.approx((2.5, 97.5))
    assert percent_interval(means, tests=5) == pytest.approx((.5, 99.5))


def test_a_gain_is_the_mean_over_queries_with_a_match():
    diff, pid = np.array([.1, .3, np.nan, -.2]), np.array([1, 1, 2, 3])
    mean, low, high = paired_gain(diff, pid)
    assert mean == pytest.approx(100*(.1 + .3 - .2)/3) and low < mean < high
    alone = paired_gain([.1, .3], [1, 1])       # one person has no spread
    assert alone[1:] == (-np.inf, np.inf)


@pytest.mark.parametrize("n", [2, 7, 100])
def test_halves_divide_people(n):
    pid = np.random.default_rng(n).permutation(np.repeat(np.arange(n)*3, 4))
    half = half_of(pid, split=1)
    sides = [set(pid[half == side]) for side in (0, 1)]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == n and len(sides[1]) == -(-n//2)
    assert n == 2 or (half != half_of(pid, split=2)).any()


def test_an_interval_of_groups_is_at_least_that_of_student():
    values, groups = np.random.default_rng(0).normal(5, 1, 12), np.repeat(list("abc"), 4)
    found = mean_interval(values, groups)
    means = values.reshape(3, 4).mean(1)
    low, high = stats.t.interval(.95, 2, means.mean(), stats.sem(means))
    assert found["mean"] == pytest.approx(means.mean()) and (found["n"], found["groups"]) == (12, 3)
    assert found["low"] <= low + 1e-9 and found["high"] >= high - 1e-9
    assert mean_interval([3.])["low"] == -math.inf and math.isnan(mean_interval([])["mean"])
