"One vector a tracklet, against plain loops"
import numpy as np
import pytest
import torch

from reid_lab.core.basics import unit_norm
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.protocols import POOLED
from reid_lab.retrieval.tracklets import POOLINGS, WEIGHTS, attention_weights, pool_tracklets, pool_tracks


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
        if how in ("mean", "max", "attention"): out.append(_naive_pool(unit, how))
        else:
            closeness = [sum(float(a@b) for b in unit) for a in unit]
            out.append(e.emb[rows[int(np.argmax(closeness))]])
    return torch.stack(out)


def _naive_weights(scores, how):
    "Gao and Nevatia 2018, section 3.2, frame by frame"
    gates = [np.exp(s) if how == "softmax" else 1/(1 + np.exp(-s)) for s in scores]
    return [gate/sum(gates) for gate in gates]


def _naive_pool(vectors, how):
    "One vector of several, dimension by dimension"
    x = np.array([v.tolist() for v in vectors])
    if how == "mean": return torch.tensor([sum(column)/len(column) for column in x.T], dtype=torch.float32)
    if how == "max": return torch.tensor([max(column) for column in x.T], dtype=torch.float32)
    unit = [v/np.linalg.norm(v) for v in x]
    mean = sum(unit)/len(unit)
    weights = _naive_weights([10*v@mean/np.linalg.norm(mean) for v in unit], "softmax")
    return torch.tensor(sum(w*v for w, v in zip(weights, x)), dtype=torch.float32)


@pytest.mark.parametrize("how", WEIGHTS)
@pytest.mark.parametrize("seed", range(5))
def test_weights_of_frames_equal_the_formula(how, seed):
    scores = np.random.default_rng(seed).normal(size=7)*3
    weights = attention_weights(torch.tensor(scores), how)
    assert np.allclose(weights, _naive_weights(scores, how)) and abs(float(weights.sum()) - 1) < 1e-9


@pytest.mark.parametrize("how", ["mean", "max", "attention"])
@pytest.mark.parametrize("seed", range(5))
def test_tracks_are_pooled_as_plain_loops_do(how, seed):
    "Vectors as they are; a row of no track stays"
    rng = np.random.default_rng(seed)
    track, emb = rng.integers(-1, 5, 30), rng.normal(size=(30, 4)).astype("f4")
    pooled = pool_tracks(Embeddings(emb, track, columns=dict(track=track)), how)
    keys = [number if number >= 0 else f"row {i}" for i, number in enumerate(track.tolist())]
    for key, got in zip(dict.fromkeys(keys), pooled.emb, strict=True):
        rows = [i for i, other in enumerate(keys) if other == key]
        assert torch.allclose(got, _naive_pool(torch.tensor(emb[rows]), how), atol=1e-5)


def test_protocols_and_commands_know_every_pooling():
    from reid_lab.cli.commands import parser
    assert POOLED == ("", *POOLINGS)
    words = ["embed", "x", "--model", "bot_tiny", "--out", "y", "--tracklets"]
    for how in POOLINGS: assert parser().parse_args([*words, how]).tracklets == how


@pytest.mark.parametrize("how", POOLINGS)
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
