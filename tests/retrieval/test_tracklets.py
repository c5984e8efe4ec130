"One vector a tracklet, against plain loops"
import numpy as np
import pytest
import torch

from reid_lab.core.basics import unit_norm
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.tracklets import pool_tracklets


def _features(n=40, seed=0):
    rng = np.random.default_rng(seed)
    names = np.array(["", "a#1", "a#2", "b#1"])[rng.integers(0, 4, n)]
    emb = torch.from_numpy(rng.normal(size=(n, 6)).astype("f4"))*torch.from_numpy(rng.uniform(.1, 9, (n,
            1)).astype("f4"))
    paths = [f"v.mp4#frame={k}&xywh=0,0,9,9" for k in range(n)]
    return Embeddings(emb, [-1]*n, path=paths, columns=dict(tracklet=names, frame=np.arange(n)), meta=dict(model="m"))


def _naive(e, how):
    "One row a tracklet in the order of first crops; a crop without a tracklet stands for itself"
    order, out = [], []
    for i, name in enumerate(e.columns["tracklet"]):
        key = name or f"crop {i}"
        if key not in order: order.append(key)
    for key in order:
        rows = [i for i, name in enumerate(e.columns["tracklet"]) if (name or f"crop {i}") == key]
        unit = [e.emb[i]/e.emb[i].norm() for i in rows]
        if how == "mean": out.append(sum(unit)/len(unit))
        else:
            closeness = [sum(float(a@b) for b in unit) for a in unit]
            out.append(e.emb[rows[int(np.argmax(closeness))]])
    return torch.stack(out)


@pytest.mark.parametrize("how", ["mean", "medoid"])
@pytest.mark.parametrize("seed", range(5))
def test_pooling_equals_plain_loops(how, seed):
    e = _features(seed=seed)
    assert torch.allclose(pool_tracklets(e, how).emb, _naive(e, how), atol=1e-6)


def test_a_pooled_row_keeps_its_labels_and_says_what_it_is_made_of():
    pooled = pool_tracklets(_features())
    assert int(pooled.columns["n_crops"].sum()) == 40
    assert pooled.meta["tracklets"] == "mean" and pooled.meta["model"] == "m"
    assert len(set(pooled.path)) == len(pooled)


def test_one_crop_is_its_own_tracklet():
    e = _features(12)[[0]]
    e.columns["tracklet"] = np.array(["a#1"])
    assert torch.allclose(pool_tracklets(e).emb, unit_norm(e.emb))
    assert torch.equal(pool_tracklets(e, "medoid").emb, e.emb)


def test_tracklets_of_two_videos_of_one_name_are_not_joined():
    a, b = _features(8), _features(8, seed=1)
    a.meta["root"], b.meta["root"] = "/one/cam", "/two/cam"
    with pytest.raises(ValueError, match="two videos of one name"): Embeddings.concat([a, b])
    b.meta["root"] = "/one/cam"
    assert len(Embeddings.concat([a, b])) == 16
