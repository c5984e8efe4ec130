"CAL's losses by hand, against loops over their formulas, and their gradients"
import math

import pytest
import torch
from helpers.losses import assert_close

from reid_lab.losses.clothes import clothes_adversarial, clothes_classification

OWNER = torch.tensor([0, 0, 1, 2, 2, 2])


def drawn(seed, n=7):
    g = torch.Generator().manual_seed(seed)
    emb, weight = (torch.randn(m, 4, generator=g, dtype=torch.float64) for m in (n, len(OWNER)))
    return emb, torch.randint(len(OWNER), (n,), generator=g), weight


def cosines(x, weight): return [float(x @ w/(x.norm()*w.norm())) for w in weight]


def naive_adversarial(emb, clothes, weight, owner, tau, eps):
    "The formula, image by image and class by class"
    total = 0.
    for x, y in zip(emb, clothes.tolist()):
        e = [math.exp(s/tau) for s in cosines(x, weight)]
        own = [c for c in range(len(e)) if owner[c] == owner[y]]
        others = sum(e[c] for c in range(len(e)) if owner[c] != owner[y])
        for c in own:
            q = eps/len(own) + (1 - eps if c == y else 0.)
            total -= q*math.log(e[c]/(e[c] + others))
    return total/len(emb)


def naive_classification(emb, clothes, weight, tau):
    total = 0.
    for x, y in zip(emb, clothes.tolist()):
        e = [math.exp(s/tau) for s in cosines(x, weight)]
        total -= math.log(e[y]/sum(e))
    return total/len(emb)


def test_one_feature_by_hand():
    "Cosines 1, 0, 0; the first two clothes are the person's, so shares are e/(e + 1) and 1/2"
    weight, owner, clothes = torch.eye(3, dtype=torch.float64), torch.tensor([0, 0, 1]), torch.tensor([0])
    emb, right = 7*weight[:1], math.log(math.e + 1) - 1
    assert_close(clothes_classification(emb, clothes, weight, tau=1), math.log(math.e + 2) - 1)
    for eps, by_hand in {0.: right, .1: .95*right + .05*math.log(2), 1.: .5*right + .5*math.log(2)}.items():
        assert_close(clothes_adversarial(emb, clothes, weight, owner, tau=1, eps=eps), by_hand)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("tau, eps", [(1/16, .1), (.5, 0.), (1., 1.)])
def test_the_losses_are_their_formulas(seed, tau, eps):
    emb, clothes, weight = drawn(seed)
    assert_close(clothes_classification(emb, clothes, weight, tau), naive_classification(emb, clothes, weight, tau))
    by_loop = naive_adversarial(emb, clothes, weight, OWNER, tau, eps)
    assert_close(clothes_adversarial(emb, clothes, weight, OWNER, tau, eps), by_loop)


def test_gradients_are_right():
    emb, clothes, weight = drawn(0)
    assert torch.autograd.gradcheck(lambda x: clothes_adversarial(x, clothes, weight, OWNER), emb.requires_grad_())
    emb = emb.detach()
    assert torch.autograd.gradcheck(lambda w: clothes_classification(emb, clothes, w), weight.requires_grad_())


def test_with_one_outfit_each_both_losses_are_one():
    emb, clothes, weight = drawn(3)
    one_each = torch.arange(len(weight))
    classified = clothes_classification(emb, clothes, weight).item()
    assert_close(clothes_adversarial(emb, clothes, weight, one_each), classified)


def test_nobody_else_and_nothing_at_all():
    emb, clothes, weight = drawn(1)
    alone = clothes_adversarial(emb.requires_grad_(), clothes, weight, torch.zeros(6, dtype=torch.long))
    alone.backward()
    assert alone == 0 and emb.grad.isfinite().all()
    assert clothes_adversarial(emb[:0], clothes[:0], weight, OWNER) == 0
    with pytest.raises(ValueError, match="owner has 5 entries for 6 clothes"):
        clothes_adversarial(emb, clothes, weight, OWNER[:5])
    with pytest.raises(ValueError, match="tau=0 is a temperature"): clothes_classification(emb, clothes, weight, 0)
    with pytest.raises(ValueError, match="eps=1.5 is a share"):
        clothes_adversarial(emb, clothes, weight, OWNER, eps=1.5)
