"""Algorithm 1 against its worked trace and its limits; the released program line by line."""
import numpy as np
import pytest
import torch

from reid_lab.meta.dual_speed import DualSpeed, Lookahead, ReleasedDualSpeed, Rounds, Task, TaskCycle
from reid_lab.meta.memory import ContrastMemory, TermSchedule
from reid_lab.meta.stylise import Illumination, ReleasedTask, Style, StyleTask
from reid_lab.training.checkpoints import load_state, save_state
from reid_lab.training.learner import Callback, Learner


@pytest.mark.parametrize("name, sequential", [("sequential", True), ("independent_reptile_variant", False)])
def test_algorithm_1_trace(oracles, name, sequential):
    i, expected = oracles["camel_algorithm1"]["inputs"], oracles["camel_algorithm1"]["expected"][name]
    n = len(i["task_deltas_per_meta_epoch"][0])
    every = n * i["slow_every_meta_epochs"]
    ds = DualSpeed([Task()] * n, i["eps_fast"], i["eps_slow"], every, Rounds(sequential=sequential))
    w = [torch.full((1,), i["theta"], dtype=torch.float64)]
    ds.begin(w)
    for deltas, row in zip(i["task_deltas_per_meta_epoch"], expected):
        iterates, slow_before = [], ds.theta_slow[0].clone()
        for d in deltas:
            w[0] += d
            iterates.append(w[0].item())
            ds.end_task(w)
        assert iterates == pytest.approx(row["theta_i"], abs=1e-6)
        assert w[0].item() == pytest.approx(row["fast"], abs=1e-6)
        assert ds.theta_slow[0].item() == pytest.approx(row["slow"], abs=1e-6)
        assert (ds.theta_slow[0] != slow_before).item() == row["slow_update"]


def naive_algorithm_1(theta, deltas, eps_fast, eps_slow, k):
    "The listing of the paper, on one number"
    slow, done = theta, 0
    for row in deltas:
        start, iterates = theta, []
        for d in row:
            theta = theta + d
            iterates.append(theta)
            done += 1
        theta = start + eps_fast * sum(t - start for t in iterates) / len(iterates)
        if done % k == 0:
            slow = slow + eps_slow * (theta - slow)
            theta = slow
    return theta, slow


@pytest.mark.parametrize("seed", range(5))
def test_against_the_listing(seed):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    deltas, ef, es = rng.normal(size=(7, n)), rng.uniform(.1, 1), rng.uniform(.1, 1)
    ds = DualSpeed([Task()] * n, ef, es, slow_every_tasks=n * k)
    w = [torch.zeros(1, dtype=torch.float64)]
    ds.begin(w)
    for row in deltas:
        for d in row:
            w[0] += d
            ds.end_task(w)
    want = naive_algorithm_1(0., deltas, ef, es, n * k)
    assert (w[0].item(), ds.theta_slow[0].item()) == pytest.approx(want, abs=1e-9)


def test_rates_that_mean_plain_training():
    "eps_slow = 1 after every round without eq. 4: training with the tasks in turn; k = N and eps_slow = 1: eq. 4 alone"
    deltas = np.random.default_rng(0).normal(size=(4, 3))
    def end(**kw):
        ds, w = DualSpeed([Task()] * 3, slow_every_tasks=3, **kw), [torch.zeros(1, dtype=torch.float64)]
        ds.begin(w)
        for row in deltas:
            for d in row:
                w[0] += d
                ds.end_task(w)
        return w[0].item()
    assert end(fast=False, eps_slow=1.) == pytest.approx(deltas.sum())
    assert end(eps_slow=1.) == pytest.approx(end(slow=False))


@pytest.mark.parametrize("kw, message",
                         [(dict(slow_every_tasks=5), "multiple of the 3 tasks"),
                          (dict(rounds=Rounds(order="any")), "order='any'"),
                          (dict(rounds=Rounds(iters_per_task=0)), "at least 1")])
def test_bad_settings(kw, message):
    with pytest.raises(ValueError, match=message): DualSpeed([Task()] * 3, **kw)


FACTORS, TARGETS = (.5, 1., 3.), [1., -2., .5, 4., 2., -1., 3., .25]


class Scaled(Task):
    "The target times a factor"
    def __init__(self, factor): self.factor = factor
    def __call__(self, batch, rng): return {**batch, "pid": batch["pid"]*self.factor}


class Parabola(torch.nn.Module):
    "One weight that should equal the target, and a running mean of the targets"
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.float64))
        self.asked = []

    def forward(self, batch):
        self.asked.append(batch.get("contrast"))
        self.seen.mul_(.9).add_(.1*batch["pid"])
        entry = dict(img=batch["pid"][:, None], txt=batch["pid"][:, None], pid=batch["pid"].long())
        return dict(square_loss=((self.w - batch["pid"])**2).sum(), memory_entry=entry)


class StopAt(Callback):
    "End the training in the middle"
    def __init__(self, step): self.at = step
    def after_step(self, learn): learn.stop = learn.step == self.at


class Targets:
    "One target a batch, four batches a pass"
    def __len__(self): return 4
    def epoch(self, e, start=0):
        for i in range(start, 4):
            y = torch.tensor([TARGETS[(4*e + i) % 8]], dtype=torch.float64)
            yield dict(img=y, pid=y)


def released_learner(steps=8, **kw):
    return Learner(Parabola(), Targets(), ReleasedDualSpeed([Scaled(f) for f in FACTORS], **kw), device="cpu",
                   schedule=lambda s: 1 - s/10, opt=lambda m: torch.optim.SGD(m.parameters(), lr=.1)), steps


def naive_released(steps, meta_lr, k, alpha, slow_from="creation", meta_epochs=99, epoch_steps=4):
    "The program on one weight, line by line"
    w = seen = None
    w, seen, slow, count = 1., 0., None, 0
    for b in range(steps):
        rate, y = .1*(1 - b/10), TARGETS[b % 8]
        if b % epoch_steps == 0: slow, count = (w if slow_from == "creation" else None), 0
        in_tasks, start, old = b//epoch_steps < meta_epochs, w, seen
        total = moved = 0.
        for f in FACTORS if in_tasks else (1.,):
            v = start - rate*2*(start - f*y)
            count += 1
            if slow is None: slow = v
            elif (count if slow_from == "creation" else count - 1) % k == 0: slow = v = slow + alpha*(v - slow)
            total, moved, last = total + v - start, moved + .9*old + .1*f*y - old, v
        w = start + meta_lr*total if in_tasks else last
        seen = old + meta_lr*moved if in_tasks else .9*old + .1*y
    return w, seen


@pytest.mark.parametrize("slow_from", ["creation", "first step"])
@pytest.mark.parametrize("kw", [dict(), dict(epoch_steps=3), dict(meta_epochs=1), dict(meta_epochs=0, epoch_steps=5),
                                dict(k=2, alpha=.8), dict(k=1, meta_lr=.5)])
def test_released_program_line_by_line(kw, slow_from):
    "Weights and running statistics: one start for all tasks, one rate a batch, a new Lookahead every epoch"
    kw = dict(dict(meta_lr=.3, k=6, alpha=.5), **kw, slow_from=slow_from)
    ours = {n: v for n, v in kw.items() if n not in ("k", "alpha", "slow_from")}
    learn, steps = released_learner(lookahead=Lookahead(kw["k"], kw["alpha"], slow_from), **ours)
    learn.fit(steps=steps)
    assert (learn.net.w.item(), learn.net.seen.item()) == pytest.approx(naive_released(steps, **kw), abs=1e-12)


def test_one_step_of_the_schedule_a_batch():
    learn, steps = released_learner(meta_epochs=1)
    learn.fit(steps=steps)
    assert learn.images == 4*3 + 4 and learn.sched.last_epoch == steps == learn.step
    assert learn.sched.get_last_lr() == pytest.approx([.1*.2])


def test_tasks_are_told_the_epoch():
    seen = []
    class Spy(Task):
        def __call__(self, batch, rng):
            seen.append(batch["epoch"])
            return batch
    learn = Learner(Parabola(), Targets(), ReleasedDualSpeed([Spy()], epoch_steps=3), lr=.1, device="cpu")
    learn.fit(steps=8)
    assert seen == [0, 0, 0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("stop", [2, 5, 7])
@pytest.mark.parametrize("slow_from", ["creation", "first step"])
def test_released_program_resumes(tmp_path, stop, slow_from):
    kw = dict(meta_epochs=1, epoch_steps=3, lookahead=Lookahead(slow_from=slow_from))
    memory = lambda: ContrastMemory(4, torch.float64, schedule=TermSchedule(start=1, wait=0, every=1))
    whole, steps = released_learner(memory=memory(), **kw)
    whole.fit(steps=steps)
    half, _ = released_learner(memory=memory(), **kw)
    half.cbs.append(StopAt(stop))
    half.fit(steps=steps)
    save_state(half, tmp_path / "state")
    again, _ = released_learner(memory=memory(), **kw)
    again.cbs.append(Callback())
    load_state(again, tmp_path / "state").fit(steps=steps)
    assert torch.equal(whole.net.w, again.net.w) and torch.equal(whole.net.seen, again.net.seen)
    a, b = (x.strategy.memory.read() for x in (whole, again))
    assert torch.equal(a["txt"], b["txt"])


def test_memory_term_is_asked_for_when_due():
    "Ordinary steps only, from its epoch on, after the wait, every second step; emptied with each epoch"
    learn, _ = released_learner(meta_epochs=1, epoch_steps=6,
                                memory=ContrastMemory(3, torch.float64, TermSchedule(2, 2, 2, weight=.2, ramp=2)))
    learn.fit(steps=24)
    asked = learn.net.asked[5*3 + 3:]          # after the first epoch's tasks
    due = [i + 6 for i, a in enumerate(asked) if a]
    assert due == [14, 16, 20, 22]
    given = [a for a in asked if a]
    assert [a["weight"] for a in given] == pytest.approx([.1, .1, .2, .2])
    assert [None if a["txt"] is None else len(a["txt"]) for a in given] == [None, 1, None, 1]


def test_memory_term_never_meets_the_tasks():
    "The program's settings: tasks until epoch 9, the term from epoch 12 and step 500"
    memory, rd = ContrastMemory(), ReleasedDualSpeed([Task()], meta_epochs=10)
    assert not any(memory.term(e, i) for e in range(rd.meta_epochs) for i in range(600))
    assert not any(memory.term(e, i) for e in range(30) for i in range(243))      # CUHK-PEDES on four GPUs
    assert memory.capacity == 560 and memory.dtype == torch.float16


@pytest.mark.parametrize("kw, message", [
    (dict(meta_lr=-1.), "meta_lr=-1.0"), (dict(meta_epochs=-1), "meta_epochs=-1"),
    (dict(epoch_steps=0), "epoch_steps=0")])
def test_bad_settings_of_the_released_program(kw, message):
    with pytest.raises(ValueError, match=message): ReleasedDualSpeed([Task()], **kw)


@pytest.mark.parametrize("kw, message", [(dict(eps_slow=1.5), "eps_slow=1.5"),
                                         (dict(eps_fast=float("nan")), "eps_fast=nan")])
def test_bad_rates(kw, message):
    with pytest.raises(ValueError, match=message): DualSpeed([Task()] * 3, **kw)


def test_random_order_is_the_same_again_and_covers_all():
    def orders(seed, order="random"):
        "Which task has its turn, slot by slot, in six rounds"
        cycle, out = TaskCycle([Task(), Task(), Task()], order=order), []
        for cycle.round in range(6):
            turns = []
            for cycle.slot in range(3): turns.append(cycle.tasks.index(cycle.task(seed)))
            out.append(turns)
        return out
    assert orders(3) == orders(3) != orders(4) and len({tuple(o) for o in orders(3)}) > 1
    assert all(sorted(o) == [0, 1, 2] for o in orders(3)) and orders(3, "fixed") == [[0, 1, 2]]*6


def test_settings_of_the_last_release_are_taken_one_by_one():
    "Keywords of 0.3.0 mean what they meant, with a warning at the caller"
    tasks, tokenizer = [Task()]*3, len
    cases = [(lambda: DualSpeed(tasks, order="random", iters_per_task=2, sequential=False, final_slow_step=True),
              DualSpeed(tasks, rounds=Rounds("random", 2, False, True)), r"rounds=Rounds\(order"),
             (lambda: ReleasedDualSpeed(tasks, lookahead_steps=2, lookahead_alpha=.3, slow_from="first step"),
              ReleasedDualSpeed(tasks, lookahead=Lookahead(2, .3, "first step")), r"lookahead=Lookahead\(steps"),
             (lambda: ContrastMemory(9, start=1, wait=0, every=3, weight=.2, ramp=2, top=8),
              ContrastMemory(9, schedule=TermSchedule(1, 0, 3, .2, 2), top=8), r"schedule=TermSchedule\(start"),
             (lambda: StyleTask("memory", tokenizer, mix="embed", delta=.5, alpha=0., strength=.1),
              StyleTask("memory", tokenizer, style=Style(.5, "embed", strength=.1, alpha=0.)), r"style=Style\(mix"),
             (lambda: ReleasedTask("blur", early=(.9, 1.), early_epochs=5),
              ReleasedTask("blur", illumination=Illumination((.9, 1.), early_epochs=5)), "=Illumination")]
    for old, now, message in cases:
        with pytest.warns(DeprecationWarning, match=message) as caught: made = old()
        assert len(caught) == 1 and caught[0].filename == __file__
        assert vars(made) == vars(now)
    with pytest.raises(TypeError, match="rounds='fixed' is of type str"): DualSpeed(tasks, 1., .5, 6, "fixed")
    for record, wrong, message in ((Lookahead, dict(steps=0), "lookahead_steps=0"),
                                   (TermSchedule, dict(every=0), "every=0"),
                                   (Lookahead, dict(slow_from="start"), "slow_from='start'"),
                                   (Rounds, dict(sequential=2), "sequential=2"), (Style, dict(alpha=2.), "alpha=2.0")):
        with pytest.raises(ValueError, match=message): record(**wrong)
