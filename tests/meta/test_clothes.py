"CAL's step: classifier first, then the encoder; when it begins, what it saves, and what it refuses"
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from reid_lab.data.table import ReidTable
from reid_lab.losses.clothes import clothes_adversarial, clothes_classification
from reid_lab.meta.clothes import CALStep, clothes_owners
from reid_lab.training.checkpoints import load_state, save_state
from reid_lab.training.learner import Learner, Plain
from reid_lab.training.settings import plain_settings

OWNER = np.array([0, 0, 1, 1])


class Toy(nn.Module):
    "A linear tower"
    def __init__(self):
        super().__init__()
        self.tower = nn.Linear(3, 5)

    def forward(self, batch):
        emb = self.tower(batch["img"])
        return dict(id_loss=(emb.sum(1) - batch["pid"]).square().mean(), emb=emb)


class Four:
    "Four batches an epoch"
    def __len__(self): return 4

    def epoch(self, e, start=0):
        for i in range(start, 4):
            img = torch.randn(8, 3, generator=torch.Generator().manual_seed(10*e + i))
            yield dict(img=img, pid=torch.arange(8)//4, clothes=torch.arange(8)//2)


def learner(strategy, **how):
    torch.manual_seed(0)
    return Learner(Toy(), Four(), strategy, device="cpu", **how)


def test_the_classifier_moves_first_and_the_encoder_reads_the_new_one():
    strategy = CALStep(OWNER, weight=2., lr=.1)
    learn, batch = learner(strategy), next(Four().epoch(0))
    strategy.forward(learn, batch)
    before = strategy._classifier.weight.detach().clone()
    out = strategy.forward(learn, batch)
    after = strategy._classifier.weight.detach()
    emb, clothes = out["emb"], batch["clothes"]
    assert not torch.equal(before, after)
    assert out["clothes_error"].item() == pytest.approx(clothes_classification(emb, clothes, before).item())
    by_hand = 2*clothes_adversarial(emb, clothes, after, torch.as_tensor(OWNER)).item()
    assert out["clothes_adversarial_loss"].item() == pytest.approx(by_hand)
    grad = strategy._classifier.weight.grad.clone()
    assert learn.net.tower.weight.grad is None          # the classifier's step does not reach the tower
    out["clothes_adversarial_loss"].backward()
    assert torch.equal(strategy._classifier.weight.grad, grad) and learn.net.tower.weight.grad.abs().sum() > 0


def weights_after(strategy, epochs=2):
    return learner(strategy).fit(epochs=epochs).net.tower.weight.detach()


def test_it_begins_at_an_epoch_and_without_weight_the_encoder_is_trained_as_usual():
    plain = weights_after(Plain())
    assert torch.equal(weights_after(CALStep(OWNER, begin=2)), plain)
    torch.testing.assert_close(weights_after(CALStep(OWNER, weight=0.)), plain)
    late, early = weights_after(CALStep(OWNER, begin=1)), weights_after(CALStep(OWNER))
    assert not torch.allclose(late, plain) and not torch.allclose(late, early)


def test_losses_that_the_training_was_too_short_for_are_named_at_its_end():
    with pytest.warns(UserWarning, match="begin with epoch 2.*clothes_adversarial_loss was never active"):
        weights_after(CALStep(OWNER, begin=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights_after(CALStep(OWNER, begin=1))


@pytest.mark.parametrize("begin", [0, 1])
def test_a_training_that_goes_on_ends_as_one_without_a_stop(tmp_path, begin):
    def made(): return learner(CALStep(OWNER, begin=begin, lr=.1))

    whole = made().fit(steps=7)
    first = made().fit(epochs=1)
    save_state(first, tmp_path/"state")
    again = load_state(made(), tmp_path/"state").fit(steps=7)
    assert torch.equal(whole.net.tower.weight, again.net.tower.weight)
    for name, saved in whole.strategy.state_dict()["classifier"].items():
        assert torch.equal(saved, again.strategy.state_dict()["classifier"][name])


def test_owners_are_people_of_the_table():
    frame = pd.DataFrame(dict(path=list("abcde"), pid=[4, 2, 2, 4, 4], clothes=[1, 1, 2, 1, 2]))
    assert clothes_owners(ReidTable(frame, ".")).tolist() == [2, 2, 4, 4]
    with pytest.raises(ValueError, match="no column 'clothes'.*World with outfits=2"):
        clothes_owners(ReidTable(frame.drop(columns="clothes"), "."))
    with pytest.raises(ValueError, match="2 rows have no clothes"):
        clothes_owners(ReidTable(frame.assign(clothes=[None, 1, 2, 1, None]), "."))


def test_a_training_with_other_owners_does_not_go_on_unseen():
    "An array beyond 64 values is described by its shape alone"
    many, swapped = np.arange(100), np.arange(100)[::-1].copy()
    facts = [plain_settings(strategy=CALStep(owner)) for owner in (many, many.copy(), swapped)]
    assert facts[0] == facts[1] != facts[2]


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="accumulate=2: the classifier would be trained on each part"):
        learner(CALStep(OWNER), accumulate=2).fit(steps=1)
    batch = next(Four().epoch(0))
    with pytest.raises(ValueError, match="the batch has no 'clothes'"):
        CALStep(OWNER).forward(learner(CALStep(OWNER)), {k: v for k, v in batch.items() if k != "clothes"})
    with pytest.raises(ValueError, match="eps=2 must be a number between 0 and 1"): CALStep(OWNER, eps=2)
