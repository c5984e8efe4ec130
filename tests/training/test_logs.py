"Logs of trainings: what is killed and resumed stands once everywhere; names and libraries of trackers are checked"
import importlib.util
import json
import sys
import warnings

import pytest
import torch

from reid_lab.core.basics import stream
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.fit import fit
from reid_lab.training.folder import Trained
from reid_lab.training.learner import Callback, Learner
from reid_lab.training.logs import INACTIVE, TIMES, TRACKERS, Log, find_trackers, inactive_losses, peak_memory
from reid_lab.training.options import Execution


class Blobs:
    "Two classes in six batches an epoch"
    def __len__(self): return 6
    def epoch(self, e, start=0):
        for i in range(start, 6):
            x = torch.from_numpy(stream(0, e, i).normal(size=(8, 3))).float()
            yield dict(img=x, pid=(x[:, 0] > 0).long())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 2)
    def forward(self, b): return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(b["img"]), b["pid"]))


class Kill(Callback):
    def __init__(self, at): self.at = at
    def after_step(self, learn):
        if learn.step == self.at: raise KeyboardInterrupt


def train(folder, kill=0):
    log, save = Log(folder/"log.jsonl", 2, quiet=True), Checkpoint(folder/"state", every=4)
    learn = Learner(Net(), Blobs(), callbacks=[log, save, Kill(kill)], lr=.1, device="cpu")
    save.resume(learn)
    learn.fit(epochs=3)
    return log


class Margins(Net):
    "With a triplet loss whose margin is always met, one that begins late, one that ends, and one that is tiny"
    def forward(self, b):
        self.n = getattr(self, "n", 0) + 1
        out = super().forward(b)
        zero = 0*out["id_loss"]
        out |= dict(met_loss=zero, ends_loss=zero + (self.n == 1), tiny_loss=zero + 1e-9)
        return out | (dict(late_loss=zero + 1) if self.n > 10 else {}) | dict(zero_accuracy=zero)


def rows_of(steps, **kw):
    "Rows of a training of `Margins`, and the warnings at its end"
    log = Log(every=5, quiet=True, **kw)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Learner(Margins(), Blobs(), callbacks=[log], lr=.1, device="cpu").fit(steps=steps)
    return log, [str(w.message) for w in found if "never active" in str(w.message)]


def test_a_loss_that_was_never_above_0_is_named_at_the_end_and_no_other():
    log, said = rows_of(INACTIVE, label="stage one")
    assert inactive_losses(log.rows) == ["met_loss"]
    assert len(said) == 1
    assert said[0].startswith(f"stage one: met_loss was exactly 0 in all {INACTIVE} steps: never active")
    assert [row["tiny_loss"] for row in log.rows] == [1e-9]*4 and [row["met_loss"] for row in log.rows] == [0]*4
    assert rows_of(INACTIVE - 1)[1] == []       # few steps prove nothing


def test_a_training_that_is_stopped_says_nothing_and_a_resumed_one_looks_at_all_its_rows():
    class Stop(Callback):
        def after_step(self, learn): learn.stop = learn.step == 15
    log = Log(every=5, quiet=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Learner(Margins(), Blobs(), callbacks=[log, Stop()], lr=.1, device="cpu").fit(steps=30)
    again = Log(every=5, quiet=True)
    again.load_state_dict(log.state_dict())
    assert inactive_losses(again.rows) == ["met_loss"]
    assert inactive_losses([dict(row, met_loss=.1) if row["step"] == 5 else row for row in again.rows]) == []


def test_a_trained_model_names_its_losses_that_never_acted(tmp_path):
    log, _ = rows_of(4)
    done = Trained(Margins(), log.rows, 4, 32, 1.)
    assert "\n  met_loss was exactly 0 in all 4 steps: never active" in repr(done)
    assert "never active" not in repr(Trained(Margins(), [dict(step=4, id_loss=.1)], 4, 32, 1.))


def points(folder, tag):
    "What TensorBoard reads of a tag, all restarts included"
    board = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    seen = board.EventAccumulator(str(folder/"tensorboard"), purge_orphaned_data=False).Reload()
    return [(e.step, round(e.value, 5)) for e in seen.Scalars(tag)]


@pytest.mark.parametrize("kill", [3, 6, 7, 13, 18])
def test_killed_and_resumed_no_point_stands_twice(tmp_path, kill):
    "Before the first state, at the end of an epoch, behind rows that are made again, at the last step"
    whole = train(tmp_path/"whole")
    with pytest.raises(KeyboardInterrupt): train(tmp_path/"cut", kill)
    log = train(tmp_path/"cut")
    bare = lambda rows: [{k: v for k, v in r.items() if k not in TIMES} for r in rows]
    assert bare(log.rows) == bare(whole.rows) and bare(log.epochs) == bare(whole.epochs)
    assert [r["epoch"] for r in log.epochs] == [0, 1, 2]
    lines = [json.loads(line) for line in (tmp_path/"cut"/"log.jsonl").read_text().splitlines()]
    assert lines == log.rows
    assert [s for s, _ in points(tmp_path/"cut", "training/id_loss")] == list(range(2, 19, 2))
    for tag in ("training/id_loss", "epoch/id_loss"):
        assert points(tmp_path/"cut", tag) == points(tmp_path/"whole", tag)


def test_rows_measure_waiting_memory_and_time_left(tmp_path):
    log = train(tmp_path)
    for rows in (log.rows, log.epochs):
        assert all(0 <= r["wait_share"] <= 1 and 50 < r["peak_MB"] < 1e6 and r["images_per_s"] > 0 for r in rows)
        left = [r["left_s"] for r in rows]
        assert left[-1] == 0 and min(left[:-1]) >= 0
    waits = sum(r["wait_share"]*8*6/r["images_per_s"] for r in log.epochs)
    assert waits == pytest.approx(log.rows[-1]["wait_s"], abs=.02)
    assert log._note().startswith("id_loss 0.") and "images/s" in log._note() and "waiting" in log._note()


def test_memory_grows_with_what_is_held():
    before = peak_memory("cpu")["peak_MB"]
    held = torch.ones(int(before/8*1e6*1.2), dtype=torch.float64) # more than all that was held so far
    assert peak_memory("cpu")["peak_MB"] > 1.1*before and len(held)


def test_a_trained_folder_has_a_board_only_if_asked(tmp_path):
    key = dict(lr=.1)
    fit(Net(), Blobs(), 6, tmp_path/"a", key, quiet=True, device="cpu", lr=.1)
    assert [s for s, _ in points(tmp_path/"a", "training/id_loss")] == [1, 2, 3, 4, 5, 6]
    fit(Net(), Blobs(), 6, tmp_path/"b", key, quiet=True, device="cpu", lr=.1, execution=Execution(trackers="none"))
    assert not (tmp_path/"b"/"tensorboard").exists()


def test_without_the_library_nothing_is_said_unless_it_was_named(tmp_path, monkeypatch):
    found = importlib.util.find_spec
    gone = lambda name, *a: None if name in ("tensorboard", "wandb") else found(name, *a)
    monkeypatch.setattr(importlib.util, "find_spec", gone)
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    assert find_trackers() == [] and train(tmp_path).rows and not (tmp_path/"tensorboard").exists()
    for name in ("tensorboard", "wandb"):
        with pytest.raises(ModuleNotFoundError, match=f"pip install {name}"): find_trackers(name)


def test_trainings_of_one_process_have_their_own_store(tmp_path, monkeypatch):
    "MLflow writes the address it is given into the environment, where the next training would find it"
    import os
    from types import SimpleNamespace
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    told = []
    def set_uri(uri):
        told.append(uri)
        os.environ["MLFLOW_TRACKING_URI"] = uri
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(set_tracking_uri=set_uri))
    for name in "ab": TRACKERS["mlflow"].options(tmp_path/name, "training", None)
    assert told == [f"sqlite:///{tmp_path/n}/mlflow.db" for n in "ab"] and "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert TRACKERS["mlflow"].options(tmp_path/"c", "training", "r")["run_id"] == "r" and len(told) == 2


def test_runs_are_named_after_their_folder(tmp_path, monkeypatch):
    from reid_lab.training import logs
    titles = []
    class Silent:
        def __init__(self, name, folder, title, config): titles.append(title)
        def send(self, *a): pass
        def close(self): pass
    monkeypatch.setattr(logs, "Outside", Silent)
    monkeypatch.setattr(logs, "find_trackers", lambda names: ["mlflow"])
    for folder in ("dmg-0/model", "mine"):
        (tmp_path/folder).mkdir(parents=True)
        log = Log(tmp_path/folder/"log.jsonl", 2, "bot_tiny, seed 0", True, "mlflow")
        Learner(Net(), Blobs(), callbacks=[log], lr=.1, device="cpu").fit(epochs=1)
    assert titles == ["dmg-0: bot_tiny, seed 0", "mine: bot_tiny, seed 0"]


def test_log_lines_are_json_and_complete(tmp_path, ToyModel, ToyBatches):
    log = Log(tmp_path/"l.jsonl", every=4, quiet=True)
    Learner(ToyModel(), ToyBatches(), callbacks=[log], device="cpu").fit(steps=10)
    rows = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [4, 8, 10] and rows[-1]["images"] == 160


def test_a_resumed_log_holds_no_step_twice(tmp_path, ToyModel, ToyBatches):
    "Killed at step 7 after a row at 6, resumed from step 4: the row is made again and stands once"
    class Kill(Callback):
        def after_step(self, learn):
            if learn.step == 7: raise KeyboardInterrupt
    def cbs(): return [Log(tmp_path/"l.jsonl", every=2, quiet=True), Checkpoint(tmp_path/"state", every=4)]
    with pytest.raises(KeyboardInterrupt):
        Learner(ToyModel(), ToyBatches(), callbacks=[*cbs(), Kill()], device="cpu").fit(epochs=2)
    again = Learner(ToyModel(), ToyBatches(), callbacks=[*cbs(), Callback()], device="cpu")
    assert again.cbs[1].resume(again) and again.step == 4
    again.fit(epochs=2)
    rows = [json.loads(line) for line in (tmp_path/"l.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [2, 4, 6, 8, 10, 12]


def test_throughput_and_waiting_are_logged(ToyModel, LateBatches):
    log = Log(every=3, quiet=True)
    learn = Learner(ToyModel(), LateBatches(), callbacks=[log], device="cpu").fit(epochs=1)
    a, b = log.rows
    assert .06 <= a["wait_s"] <= b["wait_s"] - .06 and b["wait_s"] <= b["seconds"]
    assert b["wait_s"] == round(learn.wait, 3)
    assert b["images_per_s"] == pytest.approx((b["images"] - a["images"])/(b["seconds"] - a["seconds"]), rel=.05)
    assert 0 < b["images_per_s"] <= 16/.02


def test_long_waiting_is_told_with_its_remedy():
    "Not of a training of seconds, nor where little was waited"
    def warnings_of(seconds, wait):
        log = Log(every=2, quiet=True)
        class Clock(Callback):
            def after_step(self, learn): learn.seconds, learn.wait = seconds, wait
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Learner(Net(), Blobs(), callbacks=[Clock(), log], device="cpu").fit(steps=4)
        return [str(w.message) for w in found if "waited for data" in str(w.message)]

    assert warnings_of(50, 40) == warnings_of(500, 40) == []
    (said,) = warnings_of(500, 200)
    assert said.startswith("training: 40% of the time waited for data") and "--workers N" in said
