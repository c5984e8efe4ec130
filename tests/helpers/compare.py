"Features of several models of the same images; scores and bootstraps by loops"
import numpy as np

from reid_lab.analysis.compare import ModelFeatures
from reid_lab.core.basics import stream
from reid_lab.retrieval.embeddings import Embeddings


def model(name, noise, seed, n=(90, 160), ids=30, dim=16):
    "Features of one model: people around centres, cameras, paths"
    rng, centre = np.random.default_rng(seed), np.random.default_rng(7).normal(size=(ids, dim))
    sides = []
    for side, count in zip("qg", n):
        pid = np.arange(count)*7 % ids
        emb = (centre[pid] + noise*rng.normal(size=(count, dim))).astype("f4")
        sides.append(Embeddings(emb, pid, np.arange(count)//ids, [f"{side}/{i}.jpg" for i in range(count)]))
    return ModelFeatures(name, *sides)


def naive_scores(q, g, itself=False):
    "(Q,3) hit, AP and INP of each query from its sorted list, own camera (and own row, if `itself`) left out"
    rows, x = [], g.unit().numpy()
    for i, one in enumerate(q.unit().numpy()):
        counts = ~((g.pid == q.pid[i]) & (g.cam == q.cam[i]))
        if itself: counts[i] = False
        order = np.argsort(-(x @ one)[counts], kind="stable")
        ranks = 1 + np.flatnonzero((g.pid[counts] == q.pid[i])[order])
        rows.append([float(ranks[0] == 1), np.mean(np.arange(1, len(ranks) + 1)/ranks), len(ranks)/ranks[-1]])
    return np.array(rows)


def bootstrap_by_loop(values, groups, draws, seed):
    "Percentiles of means, draw by draw and group by group"
    names, means = np.unique(groups), []
    drawn = stream(seed, "people", len(names)).integers(len(names), size=(draws, len(names)))
    for row in drawn:
        taken = [value for k in row for value in values[groups == names[k]]]
        means.append(100*sum(taken)/len(taken))
    return tuple(np.quantile(means, [.025, .975]))
