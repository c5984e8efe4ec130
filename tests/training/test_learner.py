"""The loop: exact resume after a kill or a full disk, selection, guards, averages."""
import errno
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

from reid_lab.training.callbacks import Average
from reid_lab.training.learner import Callback, Learner, NotFiniteLoss
from reid_lab.training.checkpoints import Checkpoint, load_state, save_state
from reid_lab.training.callbacks import Validate
from reid_lab.training.logs import Log

SCRIPT = """
import sys, time, torch
from reid_lab.learner import Checkpoint, Learner, save_weights
from reid_lab.logs import Log
from reid_lab.meta.dual_speed import DualSpeed
from reid_lab.meta.memory import ErrorMemory
from reid_lab.meta.dual_speed import Task
from reid_lab.models.zoo import create_model, sample_batch

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


class Blobs:
    def __init__(self, n=6): self.n = n
    def __len__(self): return self.n
    def epoch(self, e, start=0):
        for i in range(start, self.n):
            g = torch.Generator().manual_seed(10 * e + i)
            y = torch.randint(0, 2, (16,), generator=g)
            yield dict(img=torch.randn(16, 2, generator=g) + 2 * y[:, None], pid=y,
                       path=[f"{e}-{i}-{j}.jpg" for j in range(16)])


class Net(torch.nn.Module):
    def __init__(self, scale=1.):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.scale = torch.nn.Linear(2, 2), scale
    def forward(self, b):
        return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(b["img"]) * self.scale, b["pid"]))


def test_nan_names_loss_and_images():
    with pytest.raises(NotFiniteLoss, match=r"id_loss is not finite in epoch 0, batch 0.*0-0-0\.jpg"):
        Learner(Net(float("nan")), Blobs(), device="cpu").fit(steps=1)


def test_nan_leaves_the_last_checkpoint_alone(tmp_path):
    class Poison(Callback):
        def after_step(self, learn):
            if learn.step == 3: learn.net.scale = float("nan")
    ck = Checkpoint(tmp_path, every=1)
    with pytest.raises(NotFiniteLoss): Learner(Net(), Blobs(), callbacks=[ck, Poison()], device="cpu").fit(epochs=2)
    learn = Learner(Net(), Blobs(), callbacks=[ck, Poison()], device="cpu")
    assert ck.resume(learn) and learn.step == 3
    assert all(p.isfinite().all() for p in learn.net.parameters())


def test_full_disk_leaves_no_half_checkpoint(tmp_path, monkeypatch):
    "The disk fills while step 4 is written: nothing of it remains; resumed at 3, it ends where a whole run does"
    whole = Learner(Net(), Blobs(), lr=.01, device="cpu").fit(epochs=2)
    ck = Checkpoint(tmp_path, every=1)
    real = torch.save
    def full(obj, path):
        if obj["counts"]["step"] < 4: return real(obj, path)
        path.write_bytes(b"PK half of a state")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left") as e:
        Learner(Net(), Blobs(), callbacks=[ck], lr=.01, device="cpu").fit(epochs=2)
    assert e.value.errno == errno.ENOSPC and "Checkpoint.after_all" in e.value.__notes__[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]
    monkeypatch.undo()
    learn = Learner(Net(), Blobs(), callbacks=[ck], lr=.01, device="cpu")
    assert ck.resume(learn) and (learn.step, learn.number) == (3, 3)
    assert torch.equal(learn.fit(epochs=2).net.lin.weight, whole.net.lin.weight)


def test_steps_and_epochs_agree():
    a = Learner(Net(), Blobs(), lr=.01, device="cpu").fit(epochs=2)
    b = Learner(Net(), Blobs(), lr=.01, device="cpu").fit(steps=12)
    assert torch.equal(a.net.lin.weight, b.net.lin.weight) and a.epoch == b.epoch == 2


def test_fitting_in_two_calls_equals_one():
    a = Learner(Net(), Blobs(), lr=.01, device="cpu").fit(steps=10)
    b = Learner(Net(), Blobs(), lr=.01, device="cpu").fit(steps=6)
    b.fit(steps=10)
    assert torch.equal(a.net.lin.weight, b.net.lin.weight)


def test_validation_keeps_the_best_and_never_trains_on_it():
    scores = iter([10., 30., 20., 5.])
    seen = []
    def score(model):
        assert not model.training
        seen.append(model.lin.weight.clone())
        return dict(mAP=next(scores))
    learn = Learner(Net(), Blobs(), callbacks=[Validate(score)], lr=.05, device="cpu").fit(epochs=3)
    assert torch.equal(learn.net.lin.weight, seen[1])


def test_missing_metric_is_named():
    with pytest.raises(KeyError, match="key='mAP' is not among them"):
        Learner(Net(), Blobs(), callbacks=[Validate(lambda m: dict(R1=1.))], device="cpu").fit(epochs=1)


def test_log_lines_are_json_and_complete(tmp_path):
    Learner(Net(), Blobs(), callbacks=[Log(tmp_path / "l.jsonl", every=4, quiet=True)], device="cpu").fit(steps=10)
    rows = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [4, 8, 10] and rows[-1]["images"] == 160


def test_a_resumed_log_holds_no_step_twice(tmp_path):
    "Killed at step 7 after a row at 6, resumed from step 4: the row is made again and stands once"
    class Kill(Callback):
        def after_step(self, learn):
            if learn.step == 7: raise KeyboardInterrupt
    def cbs(): return [Log(tmp_path/"l.jsonl", every=2, quiet=True), Checkpoint(tmp_path/"state", every=4)]
    with pytest.raises(KeyboardInterrupt):
        Learner(Net(), Blobs(), callbacks=[*cbs(), Kill()], device="cpu").fit(epochs=2)
    again = Learner(Net(), Blobs(), callbacks=[*cbs(), Callback()], device="cpu")
    assert again.cbs[1].resume(again) and again.step == 4
    again.fit(epochs=2)
    rows = [json.loads(line) for line in (tmp_path/"l.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [2, 4, 6, 8, 10, 12]


class Late(Blobs):
    "Each batch arrives 20 ms late"
    def epoch(self, e, start=0):
        for batch in super().epoch(e, start):
            time.sleep(.02)
            yield batch


def test_throughput_and_waiting_are_logged():
    log = Log(every=3, quiet=True)
    learn = Learner(Net(), Late(), callbacks=[log], device="cpu").fit(epochs=1)
    a, b = log.rows
    assert .06 <= a["wait_s"] <= b["wait_s"] - .06 and b["wait_s"] <= b["seconds"]
    assert b["wait_s"] == round(learn.wait, 3)
    assert b["images_per_s"] == pytest.approx((b["images"] - a["images"])/(b["seconds"] - a["seconds"]), rel=.05)
    assert 0 < b["images_per_s"] <= 16/.02


def test_wait_survives_a_restart_and_old_states_load(tmp_path):
    learn = Learner(Net(), Late(), device="cpu").fit(epochs=1)
    save_state(learn, tmp_path / "s")
    again = load_state(Learner(Net(), Late(), device="cpu"), tmp_path / "s")
    assert again.wait == learn.wait >= .12
    state = torch.load(tmp_path / "s" / "state.pt", weights_only=True)
    del state["counts"]["wait"]
    torch.save(state, tmp_path / "s" / "state.pt")
    (tmp_path / "s" / "sums.json").unlink()
    old = load_state(Learner(Net(), Late(), device="cpu"), tmp_path / "s")
    assert (old.wait, old.step) == (0, 6)


def test_state_needs_the_same_callbacks(tmp_path):
    learn = Learner(Net(), Blobs(), callbacks=[Log(quiet=True)], device="cpu").fit(steps=2)
    save_state(learn, tmp_path / "s")
    with pytest.raises(ValueError, match="1 callbacks, this one has 0"):
        load_state(Learner(Net(), Blobs(), device="cpu"), tmp_path / "s")


def test_swa_is_the_mean_of_its_snapshots():
    kept = []
    class Keep(Callback):
        def after_epoch(self, learn): kept.append(learn.net.lin.weight.detach().clone())
    learn = Learner(Net(), Blobs(), callbacks=[Keep(), Average(2, "swa")], lr=.05, device="cpu").fit(epochs=6)
    assert torch.allclose(learn.net.lin.weight, torch.stack(kept[1::2]).mean(0), atol=1e-6)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_precision(precision):
    "Products in bfloat16 if asked, weights in float32 always"
    class Watched(Net):
        def forward(self, b):
            self.seen = self.lin(b["img"]).dtype
            return super().forward(b)
    before = Net().lin.weight.detach()
    learn = Learner(Watched(), Blobs(), lr=.05, precision=precision, device="cpu").fit(epochs=1)
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
