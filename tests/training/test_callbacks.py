"""Selection on scores, and averages of weights."""
import pytest
import torch

from reid_lab.training.callbacks import Average, Validate, refresh_batchnorm
from reid_lab.training.learner import Callback, Learner, Plain


@pytest.mark.parametrize("select", [True, False])
def test_validation_keeps_the_best_and_never_trains_on_it(select, ToyModel, ToyBatches):
    scores = iter([10., 30., 20., 5.])
    seen = []
    def score(model):
        assert not model.training
        seen.append(model.lin.weight.clone())
        return dict(mAP=next(scores))
    learn = Learner(ToyModel(), ToyBatches(), callbacks=[Validate(score, select=select)], lr=.05, device="cpu")
    learn.fit(epochs=3)
    assert torch.equal(learn.net.lin.weight, seen[1 if select else 3]) and not torch.equal(seen[1], seen[3])


def test_missing_metric_is_named(ToyModel, ToyBatches):
    with pytest.raises(KeyError, match="key='mAP' is not among them"):
        Learner(ToyModel(), ToyBatches(), callbacks=[Validate(lambda m: dict(R1=1.))], device="cpu").fit(epochs=1)


def test_swa_is_the_mean_of_its_snapshots(ToyModel, ToyBatches):
    kept = []
    class Keep(Callback):
        def after_epoch(self, learn): kept.append(learn.net.lin.weight.detach().clone())
    learn = Learner(ToyModel(), ToyBatches(), callbacks=[Keep(), Average(2, "swa")], lr=.05, device="cpu").fit(epochs=6)
    assert torch.allclose(learn.net.lin.weight, torch.stack(kept[1::2]).mean(0), atol=1e-6)


class Normed(torch.nn.Module):
    "BatchNorm of two numbers, and dropout from the global generator"
    def __init__(self):
        super().__init__()
        self.bn, self.drop = torch.nn.BatchNorm1d(2), torch.nn.Dropout(.5)
    def forward(self, b): return dict(x_loss=self.drop(self.bn(b["img"])).sum())


class Brighter(Plain):
    "A step that sees other numbers than the batch holds"
    def __init__(self, factor): self.factor = factor
    def forward(self, learn, batch): return learn.model({**batch, "img": self.factor*batch["img"]})


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_statistics_are_those_of_the_forward_of_the_strategy(precision, ToyBatches):
    learn = Learner(Normed(), ToyBatches(), Brighter(3.), precision=precision, device="cpu").fit(steps=1)
    draws = torch.get_rng_state()
    refresh_batchnorm(learn.net, learn.loader, n=6, forward=learn.own_forward)
    seen = torch.stack([b["img"].mean(0) for b in ToyBatches().epoch(0)]).mean(0)
    assert torch.allclose(learn.net.bn.running_mean, 3*seen, atol=.05 if precision == "bf16" else 1e-5)
    assert torch.equal(torch.get_rng_state(), draws)


def test_statistics_of_an_average_too(ToyBatches):
    learn = Learner(Normed(), ToyBatches(), Brighter(3.), [Average(1, "swa")], device="cpu").fit(epochs=1)
    seen = torch.stack([b["img"].mean(0) for b in ToyBatches().epoch(0)]).mean(0)
    assert torch.allclose(learn.net.bn.running_mean, 3*seen, atol=1e-5)


def test_the_last_epoch_is_scored_whatever_its_length(ToyModel, ToyBatches):
    class Growing(ToyBatches):
        def n_batches(self, e): return self.n + e
        def epoch(self, e, start=0): return ToyBatches(self.n_batches(e)).epoch(e, start)
    val = Validate(lambda m: dict(mAP=1.), every=2, select=False)
    Learner(ToyModel(), Growing(2), callbacks=[val], device="cpu").fit(epochs=3)
    assert [row["step"] for row in val.rows] == [5, 9, 9]     # the second, the last, and the end
