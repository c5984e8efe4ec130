"Chance against a loop over drawn orders and over all orders, with junk, cameras and images that are both sides"
from itertools import permutations

import numpy as np
import pytest

from reid_lab.retrieval.chance import Lists, chance_metrics, chance_of, list_counts
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity
from reid_lab.retrieval.sides import SameImages


def naive_scores(matches, ks=(1, 5, 10)):
    "Scores of one order, given as a list of truth values"
    ranks = [i for i, right in enumerate(matches, 1) if right]
    ap = sum((k + 1)/rank for k, rank in enumerate(ranks))/len(ranks)
    return dict(mAP=100*ap, mINP=100*len(ranks)/ranks[-1], **{f"R{k}": 100.*(ranks[0] <= k) for k in ks})


def test_one_list_is_the_mean_over_all_its_orders():
    for n, m in ((1, 1), (2, 1), (5, 2), (6, 3), (6, 6)):
        every = [naive_scores(order) for order in permutations([True]*m + [False]*(n - m))]
        found = chance_of(Lists(np.array([n]), np.array([m])))
        for name in every[0]: assert found[name] == pytest.approx(np.mean([s[name] for s in every])), (n, m, name)


def naive_lists(q, g, same, drop):
    "Counts of each list by loops"
    n_images, n_match = [], []
    for i, (pid, cam) in enumerate(zip(*q)):
        images = [j for j, p in enumerate(g[0]) if p != -1 and (i, j) not in same
                  and not (drop and p == pid and g[1][j] == cam and cam != -1 and pid != -1)]
        n_images.append(len(images))
        n_match.append(sum(g[0][j] == pid for j in images) if pid != -1 else 0)
    return n_images, n_match


@pytest.mark.parametrize("drop", [True, False])
def test_lists_leave_out_what_metrics_leave_out(drop):
    "Junk, unknown cameras and images that are query and gallery, against loops and against equal scores"
    for seed in range(5):
        rng = np.random.default_rng(seed)
        q, g = ((rng.integers(-1, 6, n), rng.integers(-1, 3, n)) for n in (25, 40))
        same = {(int(i), int(j)) for i, j in zip(rng.integers(0, 25, 12), rng.integers(0, 40, 12))}
        pairs = SameImages.of_pairs(*map(list, zip(*same)))
        how = dict(junk="cam" if drop else "none")
        lists = list_counts(q[0], g[0], q[1], g[1], same=pairs, **how)
        assert (lists.n_images.tolist(), lists.n_match.tolist()) == naive_lists(q, g, same, drop)
        scoring = Scoring(ties="expected", **how)
        tied = metrics_from_similarity(np.zeros((25, 40)), q[0], g[0], q[1], g[1], scoring=scoring, same=pairs)
        found = chance_metrics(q[0], g[0], q[1], g[1], same=pairs, **how)
        for name in found: assert found[name] == pytest.approx(tied[name], abs=1e-8), name


def test_chance_is_where_drawn_orders_are():
    rng = np.random.default_rng(0)
    pid, cam = np.repeat(np.arange(8), 4), np.tile(np.arange(4), 8)
    drawn = [metrics_from_similarity(rng.random((32, 32)), pid, pid, cam, cam) for _ in range(300)]
    found = chance_metrics(pid, pid, cam, cam)
    for name in ("R1", "R5", "mAP", "mINP"):
        values = [d[name] for d in drawn]
        assert abs(np.mean(values) - found[name]) < 4*np.std(values)/300**.5, name


def test_without_a_match_there_is_no_chance():
    with pytest.raises(ValueError, match="none of the 2 queries has a match in the gallery of 2: .*'same_camera': 1"):
        chance_metrics([1, 3], [1, 2], [0, 0], [0, 0], junk="cam")
    with pytest.raises(ValueError, match="ks=0"): chance_metrics([1], [1], ks=(0,))
