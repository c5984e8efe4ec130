"`fit` in a folder: bit for bit the same after an interruption, refused for switches and keys that do not fit"
import json
import os
import random
import signal

import numpy as np
import pytest
import torch
from helpers import pseudo_labels
from helpers.small_training import Blobs, Net, Scaled

from reid_lab.core.stopping import StoppedTraining
from reid_lab.training.callbacks import Average
from reid_lab.training.fit import Ends, Records, check_switches, fit, refuse_ema
from reid_lab.training.learner import Callback
from reid_lab.training.options import Execution, read_switches


class Stop(Callback):
    def __init__(self, at): self.at = at
    only_watches = True
    def after_step(self, learn):
        if learn.step == self.at: raise KeyboardInterrupt


KEY = dict(lr=.1)


def train(folder=None, stop=0, steps=60, key=KEY, **how):
    return fit(Net(), Blobs(), steps, folder, key, lr=.1, device="cpu", quiet=True, callbacks=[Stop(stop)], **how)


@pytest.mark.parametrize("strategy", [None, Scaled(.5)])
def test_interrupted_after_a_state_it_ends_the_same(tmp_path, strategy):
    whole = train(tmp_path/"whole", strategy=strategy)
    with pytest.raises(KeyboardInterrupt): train(tmp_path/"t", 55, strategy=strategy)
    again = train(tmp_path/"t", strategy=strategy)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters()))
    assert [r["step"] for r in again.log] == [r["step"] for r in whole.log]
    done = json.loads((tmp_path/"t"/"done.json").read_text())
    assert done["steps"] == 60 and not list(tmp_path.rglob(".lock"))


def test_a_folder_needs_a_key_made_for_the_same_switches(tmp_path):
    with pytest.raises(ValueError, match="needs a key"): train(tmp_path, key=None)
    with pytest.raises(ValueError, match="hand the same execution"): train(tmp_path, execution=Execution(speed="bf16"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("switches, how, why", [("fp16", {}, "needs a GPU"), ("tf32", {}, "NVIDIA cards"),
                                                ("compiled", {}, "no repeated blocks"),
                                                ("ema=.9", dict(callbacks=[Average()]), "averages its weights already"),
                                                ("gradcache=4", {}, "name its towers")])
def test_switches_that_cannot_be_honoured(switches, how, why):
    with pytest.raises(ValueError, match=why): check_switches(read_switches(switches), Net(), device="cpu", **how)


def test_a_later_part_may_refuse_an_average():
    with pytest.raises(ValueError, match="leave it out"): refuse_ema(Execution(speed="ema=.9"), "tuning averages")
    refuse_ema(Execution(), "tuning averages")


def test_what_is_in_records_now_may_stand_alone_as_in_the_last_release():
    with pytest.warns(DeprecationWarning, match="belong into records=Records"):
        old = train(rows=6, label="old", refresh=False)
    new = train(records=Records("new", 6), ends=Ends(refresh=False))
    assert [row["step"] for row in old.log] == [row["step"] for row in new.log] and len(new.log) == 6
    assert all(torch.equal(a, b) for a, b in zip(old.model.parameters(), new.model.parameters()))


def on_pseudo_labels(folder=None, stop=0, epochs=18):
    labels = pseudo_labels.PseudoLabels()
    done = fit(pseudo_labels.Net(), pseudo_labels.start(), folder=folder, key=KEY, epochs=epochs, lr=.05, device="cpu",
               quiet=True, callbacks=[labels, Stop(stop)])
    return done, labels.state_dict()


@pytest.mark.parametrize("stop", [52, 57])
def test_epochs_that_differ_in_length_are_resumed_in_a_folder(tmp_path, stop):
    "A state is at step 50, in the middle of the 14th epoch; statistics are estimated with the last loader"
    np.random.seed(0)
    random.seed(0)
    whole, labels = on_pseudo_labels(tmp_path/"whole")
    assert whole.steps == 18//3*sum(pseudo_labels.LENGTHS)
    np.random.seed(0)
    random.seed(0)
    with pytest.raises(KeyboardInterrupt): on_pseudo_labels(tmp_path/"t", stop)
    again, its_labels = on_pseudo_labels(tmp_path/"t")
    same = [torch.equal(a, b) for a, b in zip(whole.model.state_dict().values(), again.model.state_dict().values())]
    assert all(same) and labels == its_labels
    assert [r["step"] for r in again.log] == [r["step"] for r in whole.log] and whole.log[-1]["step"] == whole.steps


@pytest.mark.parametrize("stop, state", [(3, 2), (9, 7), (12, 11)])
def test_a_short_training_by_epochs_has_a_state_at_the_end_of_each(tmp_path, stop, state):
    "Epochs have 2, 5 and 4 batches, and a killed training goes on with the labels of the epoch in which it was"
    np.random.seed(0)
    random.seed(0)
    whole, labels = on_pseudo_labels(epochs=4)
    np.random.seed(0)
    random.seed(0)
    with pytest.raises(KeyboardInterrupt): on_pseudo_labels(tmp_path/"t", stop, epochs=4)
    assert max((tmp_path/"t"/"state").glob("step-*")).name == f"step-{state:08d}"
    again, its_labels = on_pseudo_labels(tmp_path/"t", epochs=4)
    same = [torch.equal(a, b) for a, b in zip(whole.model.state_dict().values(), again.model.state_dict().values())]
    assert all(same) and labels == its_labels


@pytest.mark.parametrize("steps, epochs, every", [(30, 6, 1), (400, 50, 5), (499, 9, 1), (500, 10, None),
                                                  (30, None, None)])
def test_states_at_the_end_of_epochs(steps, epochs, every):
    assert Records().save_epochs(steps, epochs) == every


def test_epochs_are_as_many_steps_where_they_do_not_differ():
    steps, epochs = train(steps=6), fit(Net(), Blobs(), epochs=2, lr=.1, device="cpu", quiet=True)
    assert all(torch.equal(a, b) for a, b in zip(steps.model.parameters(), epochs.model.parameters()))


@pytest.mark.parametrize("how", [{}, dict(steps=3, epochs=1)])
def test_steps_or_epochs(how):
    with pytest.raises(ValueError, match="give either steps or epochs"): fit(Net(), Blobs(), **how)


class Signal(Callback):
    only_watches = True
    def __init__(self, at): self.at = at
    def after_step(self, learn):
        if learn.step == self.at: os.kill(os.getpid(), signal.SIGTERM)


def test_stopped_by_its_hours_and_by_a_signal_it_ends_the_same(tmp_path):
    "At its first step, at the fifth one, and at the last one, where it ends"
    whole = train(tmp_path/"whole")
    def part(at=0, hours=None):
        return fit(Net(), Blobs(), 60, tmp_path/"t", KEY, lr=.1, device="cpu", quiet=True, callbacks=[Signal(at)],
                   execution=Execution(max_hours=hours))
    with pytest.raises(StoppedTraining, match="after step 1 of 60, since its hours are over"): part(hours=1e-6)
    with pytest.raises(StoppedTraining, match="after step 5 of 60, since SIGTERM came"): part(at=5)
    assert not (tmp_path/"t"/"done.json").exists() and not list(tmp_path.rglob(".lock"))
    again = part(at=60)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters()))
    timeless = [{name: row[name] for name in ("step", "epoch", "images", "id_loss", "lr")} for row in again.log]
    assert timeless == [{name: row[name] for name in timeless[0]} for row in whole.log]


def test_without_a_folder_nothing_is_stopped():
    "There would be nothing to go on from"
    done = fit(Net(), Blobs(), 6, lr=.1, device="cpu", quiet=True, execution=Execution(max_hours=1e-6))
    assert done.steps == 6
