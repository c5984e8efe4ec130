"""The loop: guards, steps and epochs, precision, the schedule."""
import pytest
import torch

from reid_lab.training.learner import Callback, Learner, NotFiniteLoss


def test_nan_names_loss_and_images(ToyModel, ToyBatches):
    with pytest.raises(NotFiniteLoss, match=r"id_loss is not finite in epoch 0, batch 0.*0-0-0\.jpg"):
        Learner(ToyModel(float("nan")), ToyBatches(), device="cpu").fit(steps=1)


def test_steps_and_epochs_agree(ToyModel, ToyBatches):
    a = Learner(ToyModel(), ToyBatches(), lr=.01, device="cpu").fit(epochs=2)
    b = Learner(ToyModel(), ToyBatches(), lr=.01, device="cpu").fit(steps=12)
    assert torch.equal(a.net.lin.weight, b.net.lin.weight) and a.epoch == b.epoch == 2


def test_fitting_in_two_calls_equals_one(ToyModel, ToyBatches):
    a = Learner(ToyModel(), ToyBatches(), lr=.01, device="cpu").fit(steps=10)
    b = Learner(ToyModel(), ToyBatches(), lr=.01, device="cpu").fit(steps=6)
    b.fit(steps=10)
    assert torch.equal(a.net.lin.weight, b.net.lin.weight)


def test_a_stop_in_an_epoch_that_is_longer_than_the_first_skips_nothing(ToyModel, ToyBatches):
    class Growing(ToyBatches):
        def n_batches(self, e): return self.n + e
        def epoch(self, e, start=0): return ToyBatches(self.n_batches(e)).epoch(e, start)

    class StopAt6(Callback):
        def after_step(self, learn): learn.stop = learn.step == 6

    whole = Learner(ToyModel(), Growing(3), lr=.01, device="cpu").fit(steps=9)
    halted = Learner(ToyModel(), Growing(3), lr=.01, device="cpu", callbacks=[StopAt6()])
    halted.fit(steps=9)
    assert (halted.epoch, halted.number) == (1, 3)      # of four; the first epoch had three
    halted.stop = False
    halted.fit(steps=9)
    assert torch.equal(whole.net.lin.weight, halted.net.lin.weight)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_precision(precision, ToyModel, ToyBatches):
    "Products in bfloat16 if asked, weights in float32 always"
    class Watched(ToyModel):
        def forward(self, b):
            self.seen = self.lin(b["img"]).dtype
            return super().forward(b)
    before = ToyModel().lin.weight.detach()
    learn = Learner(Watched(), ToyBatches(), lr=.05, precision=precision, device="cpu").fit(epochs=1)
    assert learn.net.seen == dict(no=torch.float32, bf16=torch.bfloat16)[precision]
    assert learn.net.lin.weight.dtype == torch.float32 and learn.net.lin.weight.isfinite().all()
    assert not torch.equal(learn.net.lin.weight, before)


def test_an_update_may_leave_the_schedule_where_it_is():
    "Strategies with several updates a batch step the schedule once"
    model = torch.nn.Linear(2, 1)
    model.forward = lambda b: dict(x_loss=torch.nn.functional.linear(b["img"], model.weight).sum())
    learn = Learner(model, [], lr=1., device="cpu", schedule=lambda s: 1/(1 + s))
    before = model.weight.detach().clone()
    learn.update(dict(img=torch.ones(3, 2)), advance=False)
    assert learn.sched.get_last_lr()[0] == 1 and not torch.equal(model.weight, before) and learn.images == 3
    learn.update(dict(img=torch.ones(3, 2)))
    assert learn.sched.get_last_lr()[0] == .5
