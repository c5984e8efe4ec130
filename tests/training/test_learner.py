"""The loop: guards, steps and epochs, precision, the schedule."""
import pytest
import torch
from helpers.pseudo_labels import LENGTHS, Net, Points, PseudoLabels, start

from reid_lab.meta.camera_batchnorm import CBNStep
from reid_lab.recipes.finetune import finetune_optimiser, finetune_settings
from reid_lab.recipes.reid import ReidTrain, reid_optimiser
from reid_lab.recipes.text import TextTrain, text_optimiser
from reid_lab.training.learner import Callback, Learner, NotFiniteLoss, Plain, fuse
from reid_lab.training.schedules import ByEpoch
from reid_lab.training.speedups import GradCache


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


class Lengths(Callback):
    "Notes the batches of each epoch, and what callbacks are told about the whole"
    def __init__(self): self.done, self.planned, self.numbers = [], [], []
    def before_epoch(self, learn): self.numbers.append((learn.epoch, learn.number))
    def after_step(self, learn):
        self.number = learn.number
        self.planned.append(learn.n_steps)
    def after_epoch(self, learn): self.done.append(self.number)


def test_epochs_count_passes_of_loaders_that_differ_in_length(ToyModel, ToyBatches):
    class Growing(ToyBatches):
        def n_batches(self, e): return self.n + e
        def epoch(self, e, start=0): return ToyBatches(self.n_batches(e)).epoch(e, start)
    seen = Lengths()
    learn = Learner(ToyModel(), Growing(2), callbacks=[seen], device="cpu").fit(epochs=3)
    assert seen.done == [2, 3, 4] and (learn.step, learn.n_steps) == (9, 9)
    assert seen.planned == [6]*2 + [8]*3 + [9]*4        # exact in the last epoch


def test_a_loader_that_says_another_length_still_ends_its_epochs(ToyModel, ToyBatches):
    class Uneven(ToyBatches):
        def epoch(self, e, start=0): return ToyBatches(self.n + (1, -1, -1)[e]).epoch(e, start)
    seen = Lengths()
    learn = Learner(ToyModel(), Uneven(3), callbacks=[seen], device="cpu").fit(epochs=3)
    assert seen.done == [4, 2, 2] and learn.n_steps == learn.step == 8


def test_a_loader_is_set_before_an_epoch_and_the_old_one_closed():
    seen, first = Lengths(), start()
    learn = Learner(Net(), first, callbacks=[PseudoLabels(), seen], device="cpu").fit(epochs=3)
    assert seen.done == LENGTHS and seen.numbers == [(0, 0), (1, 0), (2, 0)]
    assert first.closed and learn.first_loader is first and not learn.loader.closed


def test_an_epoch_that_goes_on_is_prepared_again_and_draws_the_same():
    class Stop(Callback):
        def after_step(self, learn): learn.stop = learn.step in (1, 4)
    whole = Learner(Net(), start(), callbacks=[PseudoLabels()], lr=.05, device="cpu").fit(epochs=3)
    seen = Lengths()
    halted = Learner(Net(), start(), callbacks=[Stop(), PseudoLabels(), seen], lr=.05, device="cpu")
    for _ in range(3):
        halted.stop = False
        halted.fit(epochs=3)
    assert seen.numbers == [(0, 0), (0, 1), (1, 0), (1, 2), (2, 0)] and seen.done == LENGTHS
    assert all(torch.equal(a, b) for a, b in zip(whole.net.state_dict().values(), halted.net.state_dict().values()))


class Sets(Callback):
    "Sets a loader, or returns something"
    def __init__(self, loader=None, returned=None): self.new, self.returned = loader, returned
    def before_epoch(self, learn):
        if self.new is not None: learn.loader = self.new
        return self.returned


@pytest.mark.parametrize("callback, error, why", [
    (Sets(Points([], [])), ValueError, "gave no batch in epoch 0.*leave learn.loader as it is, or set learn.stop"),
    (Sets(returned=[1]), TypeError, "Sets.before_epoch returned a list.*sets learn.loader"),
    (Sets([1, 2]), TypeError, "loader is a list without epoch; give one with a length"),
    (Sets(iter([])), TypeError, "without __len__ and epoch")])
def test_what_no_epoch_can_be_read_from(callback, error, why):
    with pytest.raises(error, match=why): Learner(Net(), start(), callbacks=[callback], device="cpu").fit(epochs=1)


def test_errors_of_before_epoch_name_who_raised():
    class Broken(Plain):
        def before_epoch(self, learn): raise KeyError("labels")
    with pytest.raises(KeyError) as e: Learner(Net(), start(), Broken(), device="cpu").fit(steps=1)
    assert e.value.__notes__ == ["in strategy Broken.before_epoch (epoch 0, step 0)"]


def test_a_callback_that_finds_nothing_may_end_the_training():
    class Enough(Callback):
        def before_epoch(self, learn): learn.stop = learn.epoch == 2
    learn = Learner(Net(), start(), callbacks=[Enough()], device="cpu").fit(epochs=9)
    assert (learn.epoch, learn.step) == (2, 6)


def test_strategies_and_callbacks_of_before_need_no_before_epoch():
    class Old:
        def __init__(self): self.n = 0
        def before_fit(self, learn): pass
        def step(self, learn, batch): return learn.update(batch)
        def finish(self, learn): pass
        after_step = after_all = after_epoch = after_fit = before_fit
    assert Learner(Net(), start(), Old(), [Old()], device="cpu").fit(epochs=2).step == 6


def test_a_schedule_of_epochs_moves_when_they_end():
    rates = []
    class Rates(Callback):
        def after_step(self, learn): rates.append(round(learn.opt.param_groups[0]["lr"], 6))
    Learner(Net(), start(), callbacks=[PseudoLabels(), Rates()], lr=1., schedule=ByEpoch(lambda e: 1/(1 + e)),
            device="cpu").fit(epochs=3)
    assert rates == [1.]*2 + [.5]*5 + [.333333]*4


class Doubled(Plain):
    "Losses of its own"
    def forward(self, learn, batch): return dict(twice_loss=2*learn.model(batch)["id_loss"])


@pytest.mark.parametrize("wrapped", [lambda s: s, CBNStep, lambda s: GradCache(2, s, ["scores"])])
def test_a_step_uses_the_forward_of_the_strategy(wrapped):
    learn = Learner(Net(), start(), wrapped(Doubled()), device="cpu")
    assert list(learn.own_forward(next(start().epoch(0)))) == ["twice_loss"]
    assert Learner(Net(), start(), wrapped(Plain()), device="cpu").own_forward is None
    if wrapped(1) == 1: assert list(learn.fit(steps=1).logs) == ["twice_loss"]


@pytest.mark.parametrize("wrapped", [CBNStep, lambda s: GradCache(2, s, ["scores"])])
def test_a_strategy_within_another_prepares_epochs(wrapped):
    class Notes(Plain):
        def before_epoch(self, learn): self.told = learn.epoch
    inner = Notes()
    wrapped(inner).before_epoch(Learner(Net(), start(), device="cpu"))
    assert inner.told == 0


# ---- one kernel for all parameters

def four(): return Points(torch.arange(4), torch.zeros(4).long())


OPTIMISERS = {
    "the default": lambda model: Learner(model, four(), device="cpu").opt.optimizer,
    "images, AdamW": lambda model: reid_optimiser(model, ReidTrain()),
    "images, Adam": lambda model: reid_optimiser(model, ReidTrain(optimiser="adam")),
    "captions, AdamW": lambda model: text_optimiser(model, TextTrain()),
    "captions, Adam": lambda model: text_optimiser(model, TextTrain(optimiser="adam")),
    "fine-tuning": lambda model: finetune_optimiser(model, finetune_settings("smoke"))}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_adam_of_every_recipe_is_fused_on_a_gpu_and_only_there(name):
    opt = OPTIMISERS[name](Net())
    for device in ("cpu", "mps"):
        fuse(opt, device)
        assert not any(group["fused"] for group in opt.param_groups)
    fuse(opt, "cuda:1")
    assert all(group["fused"] for group in opt.param_groups)


def test_what_an_optimiser_says_of_its_steps_stays():
    for own in (dict(foreach=True), dict(capturable=True), dict(fused=False)):
        opt = torch.optim.AdamW(Net().parameters(), **own)
        fuse(opt, "cuda")
        assert not opt.param_groups[0]["fused"]
    sgd = torch.optim.SGD(Net().parameters(), .1)
    fuse(sgd, "cuda")
    assert not sgd.param_groups[0]["fused"]


def test_a_training_asks_for_the_kernel_behind_the_move(monkeypatch):
    asked = []
    def ask(opt, device): asked.append((type(opt).__name__, device))
    monkeypatch.setattr("reid_lab.training.learner.fuse", ask)
    Learner(Net(), four(), device="cpu")
    assert asked == [("AdamW", "cpu")]


def test_steps_of_the_kernel_are_those_of_the_loop():
    "Its CPU form"
    def weights(fused):
        net = Net()
        opt = torch.optim.AdamW(net.parameters(), lr=.1, betas=(.9, .98), weight_decay=.01, fused=fused)
        for seed in range(4):
            torch.manual_seed(seed)
            opt.zero_grad()
            net.scores(torch.randn(8, 3)).square().mean().backward()
            opt.step()
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    torch.testing.assert_close(weights(True), weights(False), rtol=0, atol=1e-6)
