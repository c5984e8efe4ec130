"Statistics of cameras, and clusters of features at any scale"
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.sparse import coo_matrix

from reid_lab.retrieval.cameras import CameraStats, camera_rows, cluster, nmi
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.rerank import NearPairs, jaccard_distances, jaccard_pairs


def test_clusters_at_any_scale():
    x = np.concatenate([np.random.default_rng(0).normal(size=(20, 3)) + 9*i for i in range(3)])
    want = cluster(x, 3)
    for s in (1e-30, 1e30, 1e200): assert (cluster(x*s, 3) == want).all()
    assert (cluster(x*1e25, 3, "dbscan", eps=None) == cluster(x, 3, "dbscan", eps=None)).all()


def test_statistics_are_those_of_each_camera():
    rng = np.random.default_rng(0)
    cam = np.array([7, 2, 7, 2, 2, 7, 7, 9])
    emb = torch.from_numpy(rng.normal(size=(8, 3)))
    stats = CameraStats(emb, cam)
    for row, c in enumerate((2, 7)):
        own = emb[torch.from_numpy(cam == c)]
        torch.testing.assert_close(stats.mean[row], own.mean(0))
        torch.testing.assert_close(stats.std[row], own.std(0, correction=0))
    assert stats.std[2].tolist() == [1, 1, 1]       # a single image
    torch.testing.assert_close(CameraStats(emb, cam, single="global").std[2], emb.std(0, correction=0))
    assert stats.rows([9, 2, 5]).tolist() == camera_rows(np.array([2, 7, 9]), [9, 2, 5]).tolist() == [2, 0, 3]
    unknown = stats.normalise(emb[:1], [5])         # by the statistics of all images
    torch.testing.assert_close(unknown, (emb[:1] - emb.mean(0))/emb.std(0, correction=0))


def test_mutual_information_of_labels():
    assert nmi([0, 0, 1, 1], ["b", "b", "a", "a"]) == 1 and abs(nmi([0, 0, 1, 1], [0, 1, 0, 1])) < 1e-9


# --- clusters of distances --------------------------------------------------------------------------------------------

def plain_dbscan(d, eps, min_samples):
    "From image to image: what is near a core image joins its cluster"
    near = [np.flatnonzero(row <= eps).tolist() for row in d]
    core = [len(found) >= min_samples for found in near]
    label = np.full(len(d), -1)
    number = 0
    for start in range(len(d)):
        if not core[start] or label[start] != -1: continue
        waiting = [start]
        while waiting:
            i = waiting.pop()
            if label[i] != -1: continue
            label[i] = number
            if core[i]: waiting += near[i]
        number += 1
    return label


def _one_set(n=80, seed=0):
    rng = np.random.default_rng(seed)
    pid = np.arange(n) % (n//8)
    x = 2*rng.normal(size=(n//8, 12))[pid] + rng.normal(size=(n, 12))
    return Embeddings(x.astype("float32"), pid, rng.integers(0, 3, n))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), eps=st.floats(0, 1), min_samples=st.integers(1, 6), seed=st.integers(0, 999))
def test_clusters_of_given_distances_are_those_of_a_loop(n, eps, min_samples, seed):
    d = np.random.default_rng(seed).random((n, n))
    d = (d + d.T)/2
    np.fill_diagonal(d, 0)
    how = dict(how="dbscan", metric="precomputed", min_samples=min_samples)
    want = plain_dbscan(d, max(eps, 1e-12), min_samples)
    assert (cluster(d, eps=eps, **how) == want).all()
    assert (cluster(torch.from_numpy(d), eps=eps, **how) == want).all()
    near = np.where(d <= eps, d, 0)
    for sparse in (coo_matrix(near), coo_matrix(near).tocsr()): assert (cluster(sparse, eps=eps, **how) == want).all()
    assert (cluster(NearPairs(coo_matrix(near).tocsr(), eps), **how) == want).all()


@pytest.mark.parametrize("form", ["reranking", "cluster_contrast"])
def test_clusters_of_jaccard_distances(form):
    e = _one_set()
    d = jaccard_distances(e, 10, 3, form)
    label = cluster(d, how="dbscan", metric="precomputed", eps=.5, min_samples=4)
    assert (label == plain_dbscan(d, .5, 4)).all() and label.max() > 3
    kept = label >= 0
    assert .5 < kept.mean() and nmi(label[kept], e.pid[kept]) > .8
    near = jaccard_pairs(e, .5, 10, 3, form)
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    for _ in range(2): assert (cluster(near, how="dbscan", metric="precomputed") == label).all()
    assert (cluster(jaccard_pairs(e, .7, 10, 3, form), how="dbscan", metric="precomputed", eps=.5) == label).all()
    assert torch.equal(state[0], torch.get_rng_state()) and (state[1] == np.random.get_state()[1]).all()


def test_clusters_by_cosine():
    e = _one_set()
    unit = e.unit().numpy().astype(float)
    own = plain_dbscan(1 - unit @ unit.T, .3, 4)
    by_cosine = dict(how="dbscan", metric="cosine")
    for features in (e, e.emb, e.numpy(), e.emb*1e20):
        assert (cluster(features, eps=.3, **by_cosine) == own).all()
    lengths = torch.linspace(.1, 9, len(e))[:, None]
    assert (cluster(e.emb*lengths, eps=.3, **by_cosine) == own).all() and own.max() > 3
    assert (cluster(e.emb*lengths, 10, metric="cosine") == cluster(e.unit().emb, 10)).all()
    pairs = np.sort((1 - unit @ unit.T)[np.triu_indices(len(e), 1)])
    usual = pairs[round(.0016*len(pairs)) - 1]
    assert (cluster(e, **by_cosine, min_samples=2) == plain_dbscan(1 - unit @ unit.T, usual + 1e-6, 2)).all()


def test_a_radius_is_in_units_of_the_features():
    e = _one_set()
    want = cluster(e, how="dbscan", eps=4.5)
    assert want.max() > 3
    for scale in (2.**-40, 2.**40): assert (cluster(e.emb*scale, how="dbscan", eps=4.5*scale) == want).all()


def test_what_is_no_distance_is_refused():
    e = _one_set()
    d = jaccard_distances(e, 10, 3)
    def refused(message, emb=d, **changed):
        with pytest.raises(ValueError, match=message):
            cluster(emb, **{"how": "dbscan", "metric": "precomputed", "eps": .5, **changed})
    cosine = e.unit().numpy() @ e.unit().numpy().T
    refused("has shape .80, 12.", e.emb)
    refused("has 1 on its diagonal.*take 1 - emb", cosine)
    refused("among its distances", -d)
    refused("not symmetric", d*np.arange(1, 81))
    refused("not symmetric", coo_matrix(np.triu(d)))
    refused("NaN or infinite", np.where(d == d[3, 5], np.nan, d))
    refused("eps=None", eps=None)
    refused("eps=nan must be a number", eps=float("nan"))
    refused("eps=.0.1 must be a number", eps=-.1)
    refused("min_samples=0 must be a whole number", min_samples=0)
    refused("write how='dbscan'", how="kmeans")
    refused("metric='jaccard' is not known", metric="jaccard")
    refused(r"jaccard_pairs\(e, within=0.6\)", jaccard_pairs(e, .5, 10, 3), eps=.6)
    refused("write metric='precomputed'", jaccard_pairs(e, .5, 10, 3), metric="cosine")
    refused("n_clusters=None", e, how="kmeans", metric="cosine")
