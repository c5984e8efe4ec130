"""Our image losses against those of pytorch-metric-learning, where the definitions are the same."""
import pytest
import torch
import torch.nn.functional as F
from pytorch_metric_learning import distances, miners, reducers
from pytorch_metric_learning import losses as library

from reid_lab.losses import image as ours


@pytest.fixture(params=[0, 1, 2])
def batch(request):
    g = torch.Generator().manual_seed(request.param)
    return torch.randn(12, 16, generator=g, dtype=torch.float64).abs(), torch.arange(12) // 3


def gradients(f, x):
    x = x.clone().requires_grad_()
    value = f(x)
    return value.detach(), torch.autograd.grad(value, x)[0]


def same(a, b, x):
    (v, g), (w, h) = gradients(a, x), gradients(b, x)
    assert v > 0 and torch.allclose(v, w, atol=1e-6) and torch.allclose(g, h, atol=1e-6)


@pytest.mark.parametrize("margin", [.3, 1.])
def test_batch_hard_triplet(batch, margin):
    "With its miner, unnormalised Euclidean distances and the mean over all anchors"
    x, pid = batch
    d = distances.LpDistance(normalize_embeddings=False)
    mine = miners.BatchHardMiner(distance=d)
    theirs = library.TripletMarginLoss(margin, distance=d, reducer=reducers.MeanReducer())
    same(lambda x: ours.triplet(x, pid, margin), lambda x: theirs(x, pid, mine(x, pid)), x)


@pytest.mark.parametrize("m, gamma", [(.25, 128), (.4, 80), (.25, 8)])
def test_circle(batch, m, gamma):
    x, pid = batch
    theirs = library.CircleLoss(m, gamma)
    same(lambda x: ours.circle(x, pid, m, gamma), lambda x: theirs(x, pid), x)


@pytest.mark.parametrize("tau", [.1, 1.])
def test_supervised_contrast_between_modalities(batch, tau):
    "The library scales to unit length; ours takes dot products as they are (CLIP-ReID)"
    x, pid = batch
    y = torch.randn(12, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    theirs = library.SupConLoss(tau)
    same(lambda x: ours.supcon(F.normalize(x, dim=1), F.normalize(y, dim=1), pid, tau=tau),
         lambda x: theirs(x, pid, ref_emb=y, ref_labels=pid.clone()), x)


def test_where_the_definitions_differ(batch):
    "By default the library leaves out anchors without a loss; ours is the mean over all anchors, as in the papers"
    x, pid = batch
    d = distances.LpDistance(normalize_embeddings=False)
    mine = miners.BatchHardMiner(distance=d)
    x = torch.cat([x[:3] + 50, x[3:]])       # the first identity is far away: no loss
    theirs = library.TripletMarginLoss(.3, distance=d)(x, pid, mine(x, pid))
    assert ours.triplet(x, pid, .3) == pytest.approx(theirs.item()*9/12) and theirs > 0
