"""Image losses against test vectors, naive loops, degenerate batches, and pytorch-metric-learning.

The library's losses are compared where the definitions are the same.
"""
import math

import pytest
import torch
import torch.nn.functional as F
from helpers.losses import assert_close, naive_cos, naive_logsoftmax, t64
from pytorch_metric_learning import distances, losses as library, miners, reducers

from reid_lab.losses.basics import cosine
from reid_lab.losses.image import center, circle, label_smoothing, supcon, triplet, weighted_triplet

# --- test vectors ---------------------------------------------------------------------------------------------------

def test_label_smoothing(oracles):
    i, e = oracles["label_smoothing"]["inputs"], oracles["label_smoothing"]["expected"]
    x, y = t64(i["logits"]), torch.tensor(i["labels"])
    assert_close(label_smoothing(x, y, i["eps"]), e["eps_over_C"])
    assert_close(label_smoothing(x, y, i["eps"], over="others"), e["eps_over_C_minus_1"])
    assert_close(label_smoothing(x, y, 0.), e["no_smoothing"])


@pytest.mark.parametrize("name", ["triplet_batch_hard", "triplet_batch_hard_2"])
def test_triplet(oracles, name):
    i, e = oracles[name]["inputs"], oracles[name]["expected"]
    X, pid = t64(i["X"]), torch.tensor(i["pid"])
    assert_close(triplet(X, pid, i["margin"]), e["margin_loss"])
    assert_close(triplet(X, pid, None), e["soft_margin_loss"])


def test_other_metric_losses(oracles):
    o = oracles["weighted_regularised_triplet"]
    X, pid = t64(o["inputs"]["X"]), torch.tensor(o["inputs"]["pid"])
    assert_close(weighted_triplet(X, pid), o["expected"]["loss_excluding_self"])
    assert_close(weighted_triplet(X, pid, include_self=True), o["expected"]["loss_including_self"])
    o = oracles["center_loss"]
    i, e = o["inputs"], o["expected"]
    assert_close(center(t64(i["X"]), torch.tensor(i["pid"]), t64(i["centers"])), e["sum_over_batch_div_B"])
    assert_close(center(t64(i["X"]), torch.tensor(i["pid"]), t64(i["centers"]), "half_sum"), e["half_sum"])


@pytest.mark.parametrize("name", ["circle_loss_pairwise", "circle_loss_pairwise_gamma8"])
def test_circle(oracles, name):
    i, e = oracles[name]["inputs"], oracles[name]["expected"]
    assert_close(circle(t64(i["F_l2"]), torch.tensor(i["pid"]), i["m"], i["gamma"]), e["loss"])


# --- naive loops ----------------------------------------------------------------------------------------------------

def naive_metric(X, ids):
    d = [[math.sqrt(max(sum((p - q)**2 for p, q in zip(a, b)), 1e-12)) for b in X] for a in X]
    rows = []
    for i in range(len(X)):
        pos = [d[i][j] for j in range(len(X)) if ids[j] == ids[i] and j != i]
        neg = [d[i][j] for j in range(len(X)) if ids[j] != ids[i]]
        rows.append((pos, neg))
    return rows


def test_metric_losses_naive(batch):
    X, _, pid = batch
    rows = naive_metric(X.tolist(), pid.tolist())
    gaps = [max(pos + [1e-6]) - min(neg) for pos, neg in rows if neg]
    assert_close(triplet(X, pid, .3), sum(max(0, g + .3) for g in gaps)/len(gaps), 1e-5)
    assert_close(triplet(X, pid, None), sum(math.log1p(math.exp(g)) for g in gaps)/len(gaps), 1e-5)

    def mean(d, sign):
        w = [math.exp(sign*x) for x in d]
        return sum(a*b for a, b in zip(w, d))/sum(w)
    terms = [math.log1p(math.exp(mean(pos, 1) - mean(neg, -1))) for pos, neg in rows if pos and neg]
    assert_close(weighted_triplet(X, pid), sum(terms)/len(terms))


@pytest.mark.parametrize("scale", [1., 10., 40.])
def test_the_public_weighted_triplet_loses_far_negatives(batch, scale):
    "Its weights are exp(d) and exp(-d) over their sum + 1e-6: beyond a distance of 14 the negatives weigh less than 1"
    X, _, pid = batch
    X, rows = X.detach()*scale, []
    for i in range(len(X)):
        far = [(X[i] - X[j]).norm().item() if j != i else 1e-6 for j in range(len(X))]
        pos = [d for d, p in zip(far, pid) if p == pid[i]]
        neg = [d for d, p in zip(far, pid) if p != pid[i]]
        if not neg: continue
        e_pos, e_neg = [math.exp(d - max(pos)) for d in pos], [math.exp(-d) for d in neg]
        mean = [sum(e*d for e, d in zip(es, ds))/(sum(es) + 1e-6) for es, ds in ((e_pos, pos), (e_neg, neg))]
        rows.append(max(0., mean[0] - mean[1]) + math.log1p(math.exp(-abs(mean[0] - mean[1]))))
    found = weighted_triplet(X, pid, include_self=True, eps=1e-6)
    assert_close(found, sum(rows)/len(rows), 1e-5)
    ours = weighted_triplet(X, pid, include_self=True)
    if scale == 1: assert_close(found, ours.item(), 1e-4)
    if scale == 40: assert found > ours + 1
    x = X.clone().requires_grad_()
    weighted_triplet(x, pid, eps=1e-6).backward()
    assert x.grad.isfinite().all()


def test_circle_naive(batch):
    X, _, pid = batch
    x, ids, m, g = X.tolist(), pid.tolist(), .25, 8.
    terms = []
    for i in range(7):
        p = [naive_cos(x[i], x[j]) for j in range(7) if ids[j] == ids[i] and j != i]
        n = [naive_cos(x[i], x[j]) for j in range(7) if ids[j] != ids[i]]
        if not p or not n: continue
        near = sum(math.exp(g*max(0, s + m)*(s - m)) for s in n)
        terms.append(math.log1p(near*sum(math.exp(-g*max(0, 1 + m - s)*(s - 1 + m)) for s in p)))
    assert_close(circle(X, pid, m, g), sum(terms)/len(terms))


def test_circle_weights_are_constants_of_the_gradient():
    X = t64([[1, .1], [.9, .3], [.2, 1], [.6, .8]]).requires_grad_()
    pid, g, m = torch.tensor([0, 0, 1, 1]), 8., .25
    got, = torch.autograd.grad(circle(X, pid, m, g), X)
    s = cosine(X, X)
    w = s.detach()
    pos = (pid[:, None] == pid) & ~torch.eye(4, dtype=torch.bool)
    neg = pid[:, None] != pid
    rows = [F.softplus(torch.logsumexp((g*(w + m).relu()*(s - m))[i][neg[i]], 0)
                       + torch.logsumexp((-g*(1 + m - w).relu()*(s - 1 + m))[i][pos[i]], 0)) for i in range(4)]
    want, = torch.autograd.grad(sum(rows)/4, X)
    assert_close(got, want.tolist())


def test_center_and_smoothing_naive(batch):
    X, C, pid = batch
    d2 = [sum((a - b)**2 for a, b in zip(x, C.tolist()[p])) for x, p in zip(X.tolist(), pid.tolist())]
    assert_close(center(X, pid, C), sum(d2)/7)
    assert_close(center(X, pid, C, "half_sum"), sum(d2)/2)
    for over, n in (("all", 5), ("others", 4)):
        total = 0
        for row, y in zip(X.tolist(), pid.tolist()):
            lp = naive_logsoftmax(row)
            total -= sum(((.9 if c == y else 0) + (.1/n if over == "all" or c != y else 0))*lp[c] for c in range(5))
        assert_close(label_smoothing(X, pid, .1, over), total/7)
    assert_close(label_smoothing(X, pid, .1), F.cross_entropy(X, pid, label_smoothing=.1).item())


# --- degenerate batches and gradients -------------------------------------------------------------------------------

SINGLE = {"triplet": triplet, "soft": lambda x, p: triplet(x, p, None), "weighted": weighted_triplet,
          "weighted_self": lambda x, p: weighted_triplet(x, p, True), "circle": circle}


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("name", SINGLE)
def test_metric_losses_without_negatives_cost_nothing(name, n):
    x = torch.randn(n, 3, requires_grad=True)
    loss = SINGLE[name](x, torch.zeros(n, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["weighted", "circle"])
def test_anchors_without_positives_are_left_out(name):
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert SINGLE[name](x, torch.arange(5)).item() == 0
    loss = SINGLE[name](x, torch.tensor([0, 0, 1, 2, 3]))
    loss.backward()
    assert loss > 0 and x.grad.isfinite().all()


@pytest.mark.parametrize("name", SINGLE)
def test_coincident_points_keep_finite_gradients(name):
    x = torch.ones(4, 3, requires_grad=True)
    SINGLE[name](x, torch.tensor([0, 0, 1, 1])).backward()
    assert x.grad.isfinite().all()


def test_gradients_agree_with_finite_differences(batch):
    x, _, pid = batch
    for name in ("soft", "weighted", "weighted_self"):
        assert torch.autograd.gradcheck(lambda a: SINGLE[name](a, pid), (x,), atol=1e-4)
    assert torch.autograd.gradgradcheck(lambda a: triplet(a, pid, None), (x,), atol=1e-4)


def test_empty_batches_cost_nothing():
    x, none = torch.randn(0, 2, requires_grad=True), torch.zeros(0, dtype=torch.long)
    for loss in (label_smoothing(x, none), center(x, none, torch.ones(3, 2))):
        loss.backward()
        assert loss.item() == 0


def test_errors_name_the_argument():
    a = torch.randn(4, 3)
    with pytest.raises(ValueError, match="scale='half' is not known"):
        center(a, torch.zeros(4, dtype=torch.long), a, scale="half")


# --- pytorch-metric-learning ----------------------------------------------------------------------------------------

@pytest.fixture(params=[0, 1, 2])
def clusters(request):
    "Twelve features of four identities"
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
def test_batch_hard_triplet_of_the_library(clusters, margin):
    "With its miner, unnormalised Euclidean distances and the mean over all anchors"
    x, pid = clusters
    d = distances.LpDistance(normalize_embeddings=False)
    mine = miners.BatchHardMiner(distance=d)
    theirs = library.TripletMarginLoss(margin, distance=d, reducer=reducers.MeanReducer())
    same(lambda x: triplet(x, pid, margin), lambda x: theirs(x, pid, mine(x, pid)), x)


@pytest.mark.parametrize("m, gamma", [(.25, 128), (.4, 80), (.25, 8)])
def test_circle_of_the_library(clusters, m, gamma):
    x, pid = clusters
    theirs = library.CircleLoss(m, gamma)
    same(lambda x: circle(x, pid, m, gamma), lambda x: theirs(x, pid), x)


@pytest.mark.parametrize("tau", [.1, 1.])
def test_supervised_contrast_between_modalities(clusters, tau):
    "The library scales to unit length; ours takes dot products as they are (CLIP-ReID)"
    x, pid = clusters
    y = torch.randn(12, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    theirs = library.SupConLoss(tau)
    same(lambda x: supcon(F.normalize(x, dim=1), F.normalize(y, dim=1), pid, tau=tau),
         lambda x: theirs(x, pid, ref_emb=y, ref_labels=pid.clone()), x)


def test_where_the_definitions_differ(clusters):
    "By default the library leaves out anchors without a loss; ours is the mean over all anchors, as in the papers"
    x, pid = clusters
    d = distances.LpDistance(normalize_embeddings=False)
    mine = miners.BatchHardMiner(distance=d)
    x = torch.cat([x[:3] + 50, x[3:]])       # the first identity is far away: no loss
    theirs = library.TripletMarginLoss(.3, distance=d)(x, pid, mine(x, pid))
    assert triplet(x, pid, .3) == pytest.approx(theirs.item()*9/12) and theirs > 0
