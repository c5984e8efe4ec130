"""Trainings that are killed, run out of disk or diverge, and go on bit for bit as if nothing had happened."""
import errno
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from helpers import pseudo_labels
from safetensors.torch import load_file

from reid_lab.core.stopping import StopWatch
from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable
from reid_lab.meta.dmg import DMGStep
from reid_lab.meta.dual_speed import DualSpeed, ReleasedDualSpeed, Rounds, Task, TaskCycle
from reid_lab.meta.memory import ErrorMemory
from reid_lab.training import checkpoints
from reid_lab.training.callbacks import Average, Validate
from reid_lab.training.checkpoints import Checkpoint, load_state, save_state
from reid_lab.training.learner import Callback, Learner, NotFiniteLoss, Plain, labels_sum
from reid_lab.training.logs import TIMES, Log
from reid_lab.training.schedules import ByEpoch

CASES, STEPS, DIED = 40, 11, 137


class Blobs:
    "Two classes in either half; epochs differ in length, as those of PK batches do"
    def __len__(self): return 4
    def epoch(self, e, start=0):
        for i in range(start, 4 + (0, 1, -1)[e % 3]):
            g = torch.Generator().manual_seed(10*e + i)
            y = torch.cat([torch.randperm(4, generator=g) % 2 for _ in range(2)])
            yield dict(img=torch.randn(8, 3, generator=g) + 2*y[:, None], pid=y)


class Net(torch.nn.Module):
    "BatchNorm, dropout (global generator) and, where a task gives it one, a memory"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.bn, self.drop = torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(.3)
        self.b = torch.nn.Linear(6, 2)

    def forward(self, batch):
        h = self.drop(self.bn(self.a(batch["img"])).relu())
        out = dict(id_loss=torch.nn.functional.cross_entropy(self.b(h), batch["pid"]))
        if "memory" in batch: out["memory_loss"] = .1*(h @ batch["memory"]["img"].T).square().mean()
        return {**out, "emb": h, "memory_entry": dict(img=h.detach(), pid=batch["pid"], mask=torch.ones(len(h), 3))}


class Noise(Task):
    "Draws from the step's own generator"
    def __call__(self, batch, rng): return {**batch, "img": batch["img"]*float(rng.uniform(.5, 1.5))}


class Remember(Noise):
    "Noise with a memory of past samples"
    def __init__(self): self.memory = ErrorMemory(11)
    def __call__(self, batch, rng):
        memory = dict(memory=self.memory.read()) if len(self.memory) else {}
        return {**super().__call__(batch, rng), **memory}
    def after(self, out): self.memory.push(out["memory_entry"])
    def state_dict(self): return dict(memory=self.memory.state_dict())
    def load_state_dict(self, state): self.memory.load_state_dict(state["memory"])


def tasks(): return [Task(), Noise(), Remember()]


STRATEGIES = [
    Plain, lambda: TaskCycle(tasks(), iters_per_task=1), lambda: TaskCycle(tasks(), "random", 2),
    lambda: TaskCycle(tasks()), lambda: DualSpeed(tasks(), rounds=Rounds(iters_per_task=1)),
    lambda: DualSpeed(tasks(), .5, .3, 3, Rounds(order="random", iters_per_task=1)),
    lambda: DualSpeed(tasks(), rounds=Rounds(iters_per_task=1), fast=False),
    lambda: DualSpeed(tasks(), slow_every_tasks=3, rounds=Rounds(iters_per_task=1, sequential=False), slow=False),
    lambda: DualSpeed(tasks(), slow_every_tasks=3, rounds=Rounds(iters_per_task=1, final_slow_step=True)),
    lambda: ReleasedDualSpeed(tasks()), DMGStep, lambda: DMGStep(support=.5, second_order=True)]


class Clock:
    "Moments at which the process may die"
    def __init__(self, die_at): self.now, self.die_at = 0, die_at
    def __call__(self, *args, **kw):
        self.now += 1
        if self.now == self.die_at: os._exit(DIED)

    def around(self, owner, name, halve=False):
        "Moments before and after a function, and, for a function that writes a file, in the middle"
        true = getattr(owner, name)

        def timed(*args, **kw):
            self()
            out = true(*args, **kw)
            if halve and self.now + 1 == self.die_at: os.truncate(args[1], os.path.getsize(args[1])//2)
            self()
            return out
        setattr(owner, name, timed)

    def everywhere(self):
        os.fsync = self # also faster
        for owner, name in ((Learner, "update"), (pathlib.Path, "rename"), (pathlib.Path, "replace"),
                            (pathlib.Path, "unlink"), (pathlib.Path, "mkdir"), (shutil, "rmtree")):
            self.around(owner, name)
        for owner, name in ((torch, "save"), (safetensors.torch, "save_file")): self.around(owner, name, halve=True)


class Tick(Callback):
    "A moment between two callbacks"
    def __init__(self, clock):
        for event in ("before_fit", "before_epoch", "after_step", "after_all", "after_epoch", "after_fit"):
            setattr(self, event, clock)


def score(model):
    g = torch.Generator().manual_seed(7)
    x, y = torch.randn(16, 3, generator=g), torch.randint(0, 2, (16,), generator=g)
    return dict(mAP=-float(model(dict(img=x + 2*y[:, None], pid=y))["id_loss"].detach()))


def train(case, folder, clock):
    "One training, as a script would start it again -> everything that must not depend on kills"
    rng = random.Random(case)
    log, checkpoint = Log(folder/"log.jsonl", 3, quiet=True, trackers="none"), Checkpoint(folder/"state", every=1)
    named = dict(log=log, ema=Average(rng.choice([1, 2]), "ema", .7), swa=Average(1, "swa"),
                 steps=Validate(score, every=2, unit="step", select=case % 2), epochs=Validate(score, select=case % 3),
                 checkpoint=checkpoint)
    cbs = [named[k] for k in rng.sample(sorted(named), len(named))]
    cbs = [c for cb in cbs for c in (Tick(clock), cb)] + [Tick(clock)]
    learn = Learner(Net(), Blobs(), STRATEGIES[case % len(STRATEGIES)](), cbs, lr=.03, clip=1., device="cpu", seed=case,
                    schedule=lambda s: min(1., (s + 1)/4)*max(.1, 1 - s/40))
    checkpoint.resume(learn)
    learn.fit(steps=STEPS)
    timeless = lambda r: {k: v for k, v in r.items() if k not in TIMES}
    return dict(weights=learn.net.state_dict(), opt=learn.opt.state_dict(), sched=learn.sched.state_dict(),
                strategy=learn.strategy.state_dict(), rng=torch.get_rng_state(),
                counts=[learn.epoch, learn.number, learn.step, learn.images],
                log=[timeless(r) for r in log.rows],
                file=[timeless(json.loads(line)) for line in log.path.read_text().splitlines()],
                **{k: named[k].state_dict() for k in ("ema", "swa", "steps", "epochs")})


def start(case, folder, die_at=0):
    "Train in a copy of this process that dies at some moment -> whether it reached the end"
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            warnings.simplefilter("ignore")
            save, clock = torch.save, Clock(die_at)
            clock.everywhere()
            done = train(case, folder, clock)
            save(dict(done=done, moments=clock.now), folder/"done.pt")
            os._exit(0)
        finally:
            (folder/"error.txt").write_text(traceback.format_exc())
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    error = folder/"error.txt"
    assert code in (0, DIED), f"training {case} ended with {code}: {error.read_text() if error.exists() else ''}"
    return code == 0


def same(a, b):
    "Equality of nested states, bit by bit"
    if isinstance(a, torch.Tensor): return torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict): return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)): return len(a) == len(b) and all(map(same, a, b))
    return a == b


def killed_and_resumed(case, folder):
    "Kill a training up to four times, sometimes damage its newest state, and compare -> names of what differs"
    whole, cut, rng = folder/"whole", folder/"cut", random.Random(1000 + case)
    for f in (whole, cut): f.mkdir(parents=True)
    assert start(case, whole)
    true = torch.load(whole/"done.pt", weights_only=False)
    left, kills = true["moments"], 0
    while kills < 4 and not start(case, cut, rng.randint(1, left)):
        kills += 1
        states = Checkpoint(cut/"state").saved()
        if states and rng.random() < .3: os.truncate(states[-1]/rng.choice(["state.pt", "model.safetensors"]), 40)
        left = max(2, left*2//3)
    if not (cut/"done.pt").exists(): assert start(case, cut)
    got = torch.load(cut/"done.pt", weights_only=False)["done"]
    hidden = [p.name for p in cut.rglob(".*")]
    return kills, [k for k in true["done"] if not same(true["done"][k], got[k])] + hidden


@pytest.mark.kill
def test_forty_trainings_survive_kills_bit_for_bit(tmp_path):
    Learner(Net(), Blobs(), device="cpu").fit(steps=1) # imports, before the copies
    wrong, kills = {}, 0
    for case in range(CASES):
        n, differs = killed_and_resumed(case, tmp_path/str(case))
        kills += n
        if differs: wrong[case] = differs
    print(f"{CASES - len(wrong)} of {CASES} trainings are exact after {kills} kills")
    assert wrong == {} and kills >= CASES


class Fading(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.drop = torch.nn.Linear(6, 4), torch.nn.Dropout(.5)
    def forward(self, b):
        x = self.drop(b["img"].mean((2, 3)).repeat(1, 2))
        return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(x), b["label"]))


@pytest.mark.parametrize("workers", [0, 1])
def test_worker_processes_change_nothing(tmp_path, workers):
    "Stopped in the middle of an epoch and resumed with workers, dropout draws what it drew without them"
    images = np.random.default_rng(0).integers(0, 255, (12, 8, 4, 3), dtype=np.uint8)
    frame = pd.DataFrame(dict(path=[f"{i:02d}.jpg" for i in range(12)], pid=np.arange(12) % 4, cam=0, split="train"))
    table = ReidTable(frame, None, lambda paths: [images[int(p[:2])] for p in paths])

    def train(workers, folder=None, stop=0):
        class Stop(Callback):
            def after_step(self, learn): learn.stop = learn.step == stop
        save = [Checkpoint(folder, every=1)] if folder else []
        learn = Learner(Fading(), Batches(table, 3, workers=workers), callbacks=[*save, Stop()], lr=.1, device="cpu")
        for s in save: s.resume(learn)
        return learn.fit(steps=7).net.lin.weight
    train(workers, tmp_path, stop=2)
    assert torch.equal(train(workers, tmp_path), train(0))


SCRIPT = """
import sys, time, torch
from reid_lab.core.weight_files import save_weights
from reid_lab.meta.dual_speed import DualSpeed, Task
from reid_lab.models.zoo import create_model, sample_batch
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.learner import Learner
from reid_lab.training.logs import Log

class Noise(Task):
    "Draws from the step's own generator"
    def __call__(self, batch, rng): return {**batch, 'img': batch['img']*float(rng.uniform(.5, 1.5))}

class Loader:
    def __len__(self): return 5
    def epoch(self, e, start=0):
        for i in range(start, 5):
            if slow: time.sleep(.15)
            yield sample_batch((32, 16), seed=100*e + i)

folder, slow = sys.argv[1], sys.argv[2] == 'slow'
torch.manual_seed(0)
model = create_model('camel_tiny', vocab_size=60, size=(32, 16), dropout=.1)
ck = Checkpoint(folder, every=1)
strategy = DualSpeed([Noise()]*3, iters_per_task=2, order='random')
learn = Learner(model, Loader(), strategy, [Log(), ck], lr=1e-3, clip=1., device='cpu', seed=4)
print('resumed' if ck.resume(learn) else 'fresh', learn.step, flush=True)
learn.fit(epochs=4)
save_weights(learn.net, folder + '/end.safetensors')
print('done', learn.step, flush=True)
"""


def run_script(tmp_path, folder, mode):
    path = tmp_path / "job.py"
    path.write_text(SCRIPT)
    env = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.Popen([sys.executable, str(path), str(folder), mode], stdout=subprocess.PIPE, text=True, env=env)


@pytest.mark.kill
def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    "SIGKILL at some step, start again: the same weights bit for bit, with dropout, DualSpeed and random order"
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run_script(tmp_path, whole, "fast").communicate(timeout=300)[0].startswith("fresh 0")
    job = run_script(tmp_path, cut, "slow")
    end = time.time() + 120
    while len(list(cut.glob("step-*"))) == 0 or max(int(p.name[5:]) for p in cut.glob("step-*")) < 7:
        assert time.time() < end and job.poll() is None, "the job did not get far enough to be killed"
        time.sleep(.02)
    os.kill(job.pid, signal.SIGKILL)
    job.communicate()
    out = run_script(tmp_path, cut, "fast").communicate(timeout=300)[0]
    assert out.startswith("resumed") and out.strip().endswith("done 20")
    a, b = (load_file(f / "end.safetensors") for f in (whole, cut))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_nan_leaves_the_last_checkpoint_alone(tmp_path, ToyModel, ToyBatches):
    class Poison(Callback):
        def after_step(self, learn):
            if learn.step == 3: learn.net.scale = float("nan")
    ck = Checkpoint(tmp_path, every=1)
    def learner(): return Learner(ToyModel(), ToyBatches(), callbacks=[ck, Poison()], device="cpu")
    with pytest.raises(NotFiniteLoss): learner().fit(epochs=2)
    learn = learner()
    assert ck.resume(learn) and learn.step == 3
    assert all(p.isfinite().all() for p in learn.net.parameters())


def test_full_disk_leaves_no_half_checkpoint(tmp_path, monkeypatch, ToyModel, ToyBatches):
    "The disk fills while step 4 is written: nothing of it remains; resumed at 3, it ends where a whole run does"
    whole = Learner(ToyModel(), ToyBatches(), lr=.01, device="cpu").fit(epochs=2)
    ck = Checkpoint(tmp_path, every=1)
    real = torch.save
    def full(obj, path):
        if obj["counts"]["step"] < 4: return real(obj, path)
        path.write_bytes(b"PK half of a state")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left") as e:
        Learner(ToyModel(), ToyBatches(), callbacks=[ck], lr=.01, device="cpu").fit(epochs=2)
    assert e.value.errno == errno.ENOSPC and "Checkpoint.after_all" in e.value.__notes__[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    monkeypatch.undo()
    learn = Learner(ToyModel(), ToyBatches(), callbacks=[ck], lr=.01, device="cpu")
    assert ck.resume(learn) and (learn.step, learn.number) == (3, 3)
    assert torch.equal(learn.fit(epochs=2).net.lin.weight, whole.net.lin.weight)


def test_wait_survives_a_restart_and_old_states_load(tmp_path, ToyModel, LateBatches):
    learn = Learner(ToyModel(), LateBatches(), device="cpu").fit(epochs=1)
    save_state(learn, tmp_path / "s")
    again = load_state(Learner(ToyModel(), LateBatches(), device="cpu"), tmp_path / "s")
    assert again.wait == learn.wait >= .12
    state = torch.load(tmp_path / "s" / "state.pt", weights_only=True)
    del state["counts"]["wait"]
    torch.save(state, tmp_path / "s" / "state.pt")
    (tmp_path / "s" / "sums.json").unlink()
    old = load_state(Learner(ToyModel(), LateBatches(), device="cpu"), tmp_path / "s")
    assert (old.wait, old.step) == (0, 6)


def test_state_needs_the_same_callbacks(tmp_path, ToyModel, ToyBatches):
    learn = Learner(ToyModel(), ToyBatches(), callbacks=[Log(quiet=True)], device="cpu").fit(steps=2)
    save_state(learn, tmp_path / "s")
    with pytest.raises(ValueError, match="1 callbacks, this one has 0"):
        load_state(Learner(ToyModel(), ToyBatches(), device="cpu"), tmp_path / "s")


class Killed(Exception): pass


class KillAt(Callback):
    "The end of a process after a step, or before the event of an epoch"
    def __init__(self, step=0, epoch=0): self.at, self.of_epoch = step, epoch
    def after_all(self, learn):
        if learn.step == self.at: raise Killed
    def after_epoch(self, learn):
        if learn.epoch == self.of_epoch: raise Killed


def pseudo_labelled(folder, kill, remembers=True):
    "Three epochs of 2, 5 and 4 batches with a state a step, as a script would start them again"
    save, labels = Checkpoint(folder/"state", every=1), pseudo_labels.PseudoLabels(remembers)
    val = Validate(lambda m: dict(mAP=-float(m.lin.weight.detach().abs().sum())), every=2)
    log = Log(folder/"log.jsonl", 2, quiet=True, trackers="none")
    learn = Learner(pseudo_labels.Net(), pseudo_labels.start(), None, [log, labels, val, save, kill], lr=.05,
                    clip=1., device="cpu", schedule=ByEpoch(lambda e: 1/(1 + e)))
    save.resume(learn)
    learn.fit(epochs=3)
    return dict(weights=learn.net.state_dict(), opt=learn.opt.state_dict(), sched=learn.sched.state_dict(),
                labels=labels.state_dict(), scores=val.state_dict(), rng=torch.get_rng_state(),
                numpy=np.random.get_state()[1].tolist(), python=random.getstate(),
                counts=[learn.epoch, learn.number, learn.step, learn.images, learn.n_steps, len(learn.loader)],
                log=[{k: v for k, v in r.items() if k not in TIMES} for r in log.rows])


def seeded(*args, **kw):
    "In a process of its own: nothing has been drawn before"
    np.random.seed(0)
    random.seed(0)
    return pseudo_labelled(*args, **kw)


KILLS = [dict(step=n) for n in range(1, 12)] + [dict(epoch=n) for n in (1, 2, 3)]


def test_pseudo_labels_are_resumed_at_every_step_of_epochs_that_differ_in_length(tmp_path):
    whole, wrong = seeded(tmp_path/"whole", KillAt()), {}
    assert whole["counts"] == [3, 0, 11, whole["counts"][3], 11, 4]
    for kill in KILLS:
        folder = tmp_path/str(kill)
        with pytest.raises(Killed): seeded(folder, KillAt(**kill))
        torch.manual_seed(99)
        again = pseudo_labelled(folder, KillAt())
        differs = [name for name in whole if not same(whole[name], again[name])]
        if differs: wrong[str(kill)] = differs
    assert wrong == {}


def test_labels_that_no_state_holds_are_missed(tmp_path):
    with pytest.raises(Killed): seeded(tmp_path, KillAt(4), remembers=False)
    with pytest.raises(ValueError, match="epoch 1 had 5 batches, of which 2 are done.*belongs in the state_dict"):
        pseudo_labelled(tmp_path, KillAt(), remembers=False)


def forgetful():
    "After a restart it has as many labels, and other ones; the class has the name that is in the state"
    class PseudoLabels(pseudo_labels.PseudoLabels):
        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.labels = [1 - label for label in self.labels]
    return PseudoLabels()


def test_other_labels_in_a_loader_of_the_same_length_are_noticed(tmp_path):
    def train(labels, stop=None):
        save = Checkpoint(tmp_path, every=1)
        learn = Learner(pseudo_labels.Net(), pseudo_labels.start(), None, [labels, save, KillAt(stop)], device="cpu")
        save.resume(learn)
        learn.fit(epochs=2)
    with pytest.raises(Killed): train(pseudo_labels.PseudoLabels(), 4)
    with pytest.raises(ValueError, match="epoch 1 goes on after 2 batches.*other labels"): train(forgetful())
    train(pseudo_labels.PseudoLabels())


def test_the_first_loader_is_known_by_its_labels(tmp_path):
    def learner(labels):
        return Learner(pseudo_labels.Net(), pseudo_labels.Points(torch.arange(12), labels), device="cpu")

    save_state(learner(pseudo_labels.TRUE[:12]).fit(steps=2), tmp_path/"s")
    load_state(learner(pseudo_labels.TRUE[:12]), tmp_path/"s")
    with pytest.raises(ValueError, match="other settings.*'labels'"):
        load_state(learner(1 - pseudo_labels.TRUE[:12]), tmp_path/"s")


class Held:
    "A loader's attributes"
    def __init__(self, **values): vars(self).update(values)


@pytest.mark.parametrize("one, other, same", [
    (dict(pid=np.array([1, 2])), dict(pid=np.array([2, 1])), False),
    (dict(pid=torch.tensor([1, 2])), dict(pid=torch.tensor([1, 3])), False),
    (dict(path=np.array(["a", "b"], object)), dict(path=np.array(["b", "a"], object)), False),
    (dict(captions=[["a"], ["b", "c"]]), dict(captions=[["a", "b"], ["c"]]), False),
    (dict(x=np.ones(3)), dict(x=np.ones(3) + 1e-7), True),         # another machine rounds otherwise
    (dict(x=np.ones(3)), dict(x=np.ones(4)), False),
    (dict(extras=[print]), dict(extras=[len, repr]), True),
    (dict(_seen=[1]), dict(_seen=[2]), True)])
def test_what_tells_the_labels_of_a_loader(one, other, same):
    assert (labels_sum(Held(**one)) == labels_sum(Held(**other))) is same
    assert labels_sum(Held(**one)) == labels_sum(Held(**one))


def test_a_callback_that_does_not_set_its_loader_again_is_refused(tmp_path):
    class Once(pseudo_labels.PseudoLabels):
        def before_epoch(self, learn):
            if learn.number == 0: super().before_epoch(learn)
    def train(stop=None):
        save = Checkpoint(tmp_path, every=1)
        learn = Learner(pseudo_labels.Net(), pseudo_labels.start(), None, [Once(), save, KillAt(stop)], device="cpu")
        save.resume(learn)
        learn.fit(epochs=2)
    with pytest.raises(Killed): train(4)
    with pytest.raises(ValueError, match="goes on with the first loader"): train()


def test_states_from_before_epochs_could_differ_load(tmp_path, ToyModel, ToyBatches):
    save_state(Learner(ToyModel(), ToyBatches(), device="cpu").fit(steps=4), tmp_path/"s")
    state = torch.load(tmp_path/"s"/"state.pt", weights_only=True)
    del state["counts"]["length"]
    torch.save(state, tmp_path/"s"/"state.pt")
    (tmp_path/"s"/"sums.json").unlink()
    assert load_state(Learner(ToyModel(), ToyBatches(), device="cpu"), tmp_path/"s").length is None


def test_a_state_goes_on_by_the_kernel_that_it_was_trained_with(tmp_path, ToyModel, ToyBatches):
    "On a GPU Adam steps by one kernel; a state of before, or of a CPU, is no other training"
    def learner(fused):
        def opt(model): return torch.optim.AdamW(model.parameters(), lr=.05, fused=fused)
        return Learner(ToyModel(), ToyBatches(), device="cpu", opt=opt)

    for name, fused in (("plain", None), ("fused", True)):
        save_state(learner(fused).fit(steps=4), tmp_path/name)
        ends = [load_state(learner(other), tmp_path/name).fit(steps=9) for other in (None, True)]
        assert [end.opt.param_groups[0]["fused"] for end in ends] == [fused, fused]
        assert torch.equal(*(end.net.lin.weight for end in ends))


@pytest.mark.parametrize("world, seconds, asked", [(1, .01, 300), (2, .01, 4), (2, .2, 61), (2, 3., 300)])
def test_several_processes_agree_about_once_a_second_whether_to_stop(world, seconds, asked, tmp_path, monkeypatch):
    "At the first two steps, then as many later as fit into a second, a hundred at most; one process asks itself always"
    now, exchanged = [0.], []
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(checkpoints, "longest", lambda n: exchanged.append(n) or n)
    watch = StopWatch()
    questions = []
    monkeypatch.setattr(watch, "reason", lambda ahead=0.: questions.append(ahead) or "")
    checkpoint = Checkpoint(tmp_path, watch=watch)
    for step in range(1, 301):
        now[0] += seconds
        checkpoint._why_stop(SimpleNamespace(world=world, step=step, n_steps=1000))
    assert len(questions) == asked and len(exchanged) == (0 if world == 1 else 2*asked - 1)
    assert {*questions} == ({0.} if world == 1 else {1.})


def test_hours_end_before_the_next_question_would_come_too_late():
    watch = StopWatch(deadline=time.time() + 5)
    assert not watch.reason(ahead=1.) and watch.reason(ahead=6.) == "its hours are over"
