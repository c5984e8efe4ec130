"""Selection on scores, and averages of weights."""
import pytest
import torch

from reid_lab.training.callbacks import Average, Validate
from reid_lab.training.learner import Callback, Learner


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
