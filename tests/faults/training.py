"""Trainings, their states and weights, and the folders of runs."""
import contextlib
import functools
import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from fault import bad, clutter, cut, empty, flip, interruption, killed, warned

from reid_lab.core.files import atomic_path, locked
from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.data.text import WordPiece
from reid_lab.models.zoo import create_model
from reid_lab.recipes.camel import load_run, save_run
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.training import fit as fitting
from reid_lab.training.callbacks import Average, Validate
from reid_lab.training.checkpoints import Checkpoint, load_state, save_state
from reid_lab.training.fit import Ends, fit
from reid_lab.training.folder import Trained, claim, load_trained
from reid_lab.training.learner import Callback, Learner, Plain
from reid_lab.training.logs import Log


class Blobs:
    "Two classes in three batches an epoch"
    def __len__(self): return 3
    def epoch(self, e, start=0):
        for i in range(start, 3):
            g = torch.Generator().manual_seed(10*e + i)
            y = torch.randint(0, 2, (8,), generator=g)
            yield dict(img=torch.randn(8, 3, generator=g) + y[:, None], pid=y)


class Net(torch.nn.Module):
    "A linear classifier behind dropout"
    def __init__(self, width=3):
        super().__init__()
        torch.manual_seed(0)
        self.lin, self.drop = torch.nn.Linear(width, 2), torch.nn.Dropout(.2)
    def forward(self, b):
        return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(self.drop(b["img"])), b["pid"]))


def _learner(folder, checkpoint=(), **kw):
    "Checkpoint first, then callbacks whose state it must not miss"
    score = lambda m: dict(mAP=-float(m(next(Blobs().epoch(9)))["id_loss"].detach()))
    cbs = [*checkpoint, Average(1, "ema", .5), Validate(score, unit="step"),
           Log(folder/"log.jsonl", 2, quiet=True, trackers="none")]
    return Learner(Net(), Blobs(), callbacks=kw.pop("callbacks", cbs), device="cpu", **{"lr": .1, **kw})


def _train(folder, steps=5):
    "A script with a state at every step -> final weights and rows of the log"
    save = Checkpoint(folder/"state", every=1)
    learn = _learner(folder, [save])
    if not save.resume(learn): (folder/"log.jsonl").unlink(missing_ok=True)
    learn.fit(steps=steps)
    rows = [json.loads(line) for line in (folder/"log.jsonl").read_text().splitlines()]
    return learn.net.state_dict(), [(r["step"], r["id_loss"]) for r in rows]


@functools.cache
def _whole():
    import tempfile
    with tempfile.TemporaryDirectory() as d: return _train(Path(d))


def _exact(folder):
    "Train to the end; nothing may differ from a training without interruption, and no remains may be left"
    with warned() as said: weights, rows = _train(folder)
    true, true_rows = _whole()
    assert all(torch.equal(weights[k], true[k]) for k in true) and rows == true_rows, (rows, true_rows)
    assert not clutter(folder) and len(Checkpoint(folder/"state").saved()) == 2
    return "\n".join(said)


def _dies(at, nth=1, after=False):
    "Die there, train again: exact"
    def check(folder):
        killed(lambda: _train(folder), at, nth, after)
        _exact(folder)
        return "exact"
    return check


def _dies_twice(folder):
    "Die in the fourth state, then when the log loses the rows after the third"
    killed(lambda: _train(folder), "reid_lab.training.checkpoints.save_state", 4)
    killed(lambda: _train(folder), "reid_lab.training.logs.Log.load_state_dict", after=True)
    _exact(folder)
    return "exact"


def _newest(folder, file):
    "Train three of five steps -> a file of the newest state"
    _train(folder, 3)
    return Checkpoint(folder/"state").saved()[-1]/file


def _harmed(file, harm):
    "Damage a file of the newest state: the older one is used"
    def check(folder):
        harm(_newest(folder, file))
        return _exact(folder)
    return check


def _poisoned(folder):
    "NaN weights with right checksums, as a training writes that has diverged"
    state = _newest(folder, "state.pt").parent
    learn = _learner(folder, [Checkpoint(folder/"state", every=1)])
    load_state(learn, state)
    learn.net.lin.weight.data[0] = float("nan")
    save_state(learn, state)
    return _exact(folder)


def _all_damaged(folder):
    _train(folder, 3)
    for state in Checkpoint(folder/"state").saved(): empty(state/"state.pt")
    return _exact(folder)


def _damaged_is_replaced(folder):
    "Steps are reached again: the damaged folder of step 3 holds a whole state afterwards"
    path = _newest(folder, "state.pt")
    cut(path)
    with warned(): _train(folder, 3)
    load_state(_learner(folder, [Checkpoint(folder/"state")]), path.parent)
    return "whole"


def _no_state_yet(folder):
    "Rows of a try that saved no state are not in the log twice"
    class Die(Callback):
        def after_step(self, learn):
            if learn.step == stop: raise KeyboardInterrupt
    for stop in (4, 0):
        with contextlib.suppress(KeyboardInterrupt):
            fit(Net(), Blobs(), 6, folder/"t", dict(lr=.1), callbacks=[Die()], quiet=True, device="cpu", lr=.1)
    rows = [json.loads(line)["step"] for line in (folder/"t"/"log.jsonl").read_text().splitlines()]
    assert rows == [1, 2, 3, 4, 5, 6], rows
    return "6 rows"


def _prepare_again(folder):
    "All states are damaged: what comes before the first step is done again too"
    done = []
    def run():
        often = lambda folder, every, **options: Checkpoint(folder, 1, **options)
        with mock.patch.object(fitting, "Checkpoint", often), warned() as said:
            ends = Ends(prepare=lambda m: done.append(1))
            fit(Net(), Blobs(), 3, folder/"t", {}, ends=ends, quiet=True, device="cpu")
        return said
    run()
    run()
    assert done == [1]
    for state in (folder/"t"/"state").iterdir(): (state/"state.pt").unlink()
    said = run()
    assert done == [1, 1]
    return said[-1]


def _interrupted_between_renames(folder):
    "Ctrl-C when the old folder has lost its name: the new one takes it"
    def write(text):
        with atomic_path(folder/"x", replace=True) as tmp:
            tmp.mkdir()
            (tmp/"a").write_text(text)
    write("old")
    true, stopped = Path.rename, []
    def stop(self, to):
        true(self, to)
        if not stopped.append(1) and len(stopped) == 1: raise KeyboardInterrupt
    with contextlib.suppress(KeyboardInterrupt), mock.patch.object(Path, "rename", stop): write("new")
    assert (folder/"x"/"a").read_text() == "new" and not clutter(folder)
    return "new"


def _sweeper_dies(folder):
    "Killed while it removes the remains of a killed writer: the next one removes them"
    def write():
        with atomic_path(folder/"x", replace=True) as tmp:
            tmp.mkdir()
            (tmp/"a").write_text("new")
    killed(write, "reid_lab.core.files._sync")
    killed(write, "os.rmdir")
    write()
    assert (folder/"x"/"a").read_text() == "new" and not clutter(folder)
    return "new"


def _emb(n): return Embeddings(np.eye(n, 3, dtype="f4") + .1, np.arange(n))


def _embeddings_die(at, nth=1, after=False):
    "The folder holds the old or the new Embeddings, whole, and can be saved again"
    def check(folder):
        _emb(2).save(folder/"q")
        killed(lambda: _emb(3).save(folder/"q"), at, nth, after)
        if (folder/"q").exists(): assert len(Embeddings.load(folder/"q")) in (2, 3)
        _emb(3).save(folder/"q")
        assert len(Embeddings.load(folder/"q")) == 3 and not clutter(folder)
        return "3 rows"
    return check


def _run(folder, n=2):
    "Keep a run as CAMeL's recipe does"
    e = dict(q=_emb(n), g=_emb(n + 1), top=np.zeros((n, 1), int))
    data = SimpleNamespace(tokenizer=WordPiece.train(["a man in a red coat"]*3, vocab_size=60))
    save_run(dict(evals=dict(zeroshot=e), row=dict(mAP=1.), logs={}), data, folder)


def _run_dies(at, nth=1, after=False):
    "Killed while a run is kept: the same run is kept later, whatever was there"
    def check(folder):
        if nth > 1: _run(folder)
        killed(lambda: _run(folder), at, nth, after)
        _run(folder)
        assert load_run(folder, ())["row"] == dict(mAP=1.) and not clutter(folder)
        assert len(Embeddings.load(folder/"zeroshot-queries")) == 2
        return "kept"
    return check


KEY = dict(model="bot_tiny", model_kw=dict(size=[32, 16], n_ids=2), lr=.1, seed=0)


def _trained(folder, **change):
    model = create_model("bot_tiny", size=(32, 16), n_ids=2)
    done = Trained(model, [], 1, 8, 1., {**KEY, **change})
    done.save(folder)
    return folder


def _finish_dies(folder):
    "Killed between weights and `done.json`: not finished, and saved again by the next try"
    killed(lambda: _trained(folder/"t"), "reid_lab.training.folder.atomic_path", 2)
    try: load_trained(folder/"t")
    except FileNotFoundError as e: said = str(e)
    assert load_trained(_trained(folder/"t"), KEY).steps == 1
    return said


def _two_trainings(folder):
    "The second is refused with the number of the first; when that is dead, the folder is free"
    def train(): fit(Net(), Blobs(), 1, folder/"t", {}, quiet=True, device="cpu")
    class Both(Callback):
        def after_step(self, learn): train()
    try: fit(Net(), Blobs(), 1, folder/"t", {}, callbacks=[Both()], quiet=True, device="cpu")
    except RuntimeError as e: said = str(e)
    assert f"process {os.getpid()}" in said
    killed(train, "reid_lab.training.learner.Learner.update")
    assert clutter(folder) == ["t/.lock"]
    train()
    assert not clutter(folder)
    return said


def _two_runs(folder):
    with locked(folder/"camel-0"/".lock"): # as the first run holds it
        from reid_lab.recipes import camel
        with mock.patch.object(camel, "load_data", lambda *a, **kw: None):
            camel.run_variant("camel", "smoke", keep=folder)


INTERRUPTIONS = [
    ("in the weights of the first state", _dies("safetensors.torch.save_file")),
    ("in the weights of a later state", _dies("safetensors.torch.save_file", 4, True)),
    ("in the optimiser's state", _dies("torch.save", 3)),
    ("before the checksums of a state", _dies("reid_lab.training.checkpoints.write_sums", 3)),
    ("before a state is on the disk", _dies("reid_lab.core.files._sync", 5)),
    ("before a state has its name", _dies("pathlib.Path.replace", 9)),
    ("while an old state is deleted", _dies("os.rmdir", 9)),
    ("before the callbacks see a step", _dies("reid_lab.training.learner.Learner.__call__", 4)),
    ("between the callbacks and the state of a step", _dies("reid_lab.training.learner.Learner.__call__", 7)),
    ("between the last step and the end of its epoch", _dies("reid_lab.training.callbacks.Average.after_epoch", 2)),
    ("in the last validation", _dies("reid_lab.training.callbacks.Validate.after_fit")),
    ("while the log is cut back on resuming", _dies_twice)]
HARMS = [("state.pt", cut, "bytes instead of"), ("state.pt", empty, "has 0 bytes"),
         ("state.pt", Path.unlink, "'state.pt' is missing"), ("state.pt", flip, "'state.pt' has other contents"),
         ("model.safetensors", cut, "bytes instead of"), ("model.safetensors", flip, "has other contents"),
         ("model.safetensors", Path.unlink, "'model.safetensors' is missing")]


def _weights(data, model=Net):
    "Load a file of these bytes as weights"
    def call(folder):
        (folder/"w.safetensors").write_bytes(data)
        load_weights(model(), folder/"w.safetensors")
    return call


def _saved(change, model=Net):
    "Save weights, change the model or the file, load"
    def call(folder):
        net, path = Net(), folder/"w.safetensors"
        change(net, path)
        load_weights(model(), path)
    return call


def _value(v):
    def change(net, path):
        net.lin.bias.data[1] = v
        save_weights(net, path)
    return change


def _flipped(net, path):
    save_weights(net, path)
    flip(path)


def _other(**kw):
    "A state loaded by a learner with other arguments"
    def call(folder):
        save_state(_learner(folder).fit(steps=2), folder/"s")
        load_state(_learner(folder, **kw), folder/"s")
    return call


class Twice(Plain):
    "Another strategy"


class Odd(Callback):
    "Its state could not be loaded again"
    def state_dict(self): return dict(best=[{1, 2}])


def _swapped(folder):
    score = Validate(lambda m: dict(mAP=0.))
    save_state(_learner(folder, callbacks=[score, Average()]).fit(steps=1), folder/"s")
    load_state(_learner(folder, callbacks=[Average(), score]), folder/"s")


def _without_resume(folder):
    _train(folder, 3)
    _learner(folder, [Checkpoint(folder/"state", every=1)]).fit(steps=5)


def _spoilt(name, text):
    "A trained folder with other contents of one file"
    def call(folder):
        (_trained(folder/"t")/name).write_text(text)
        load_trained(folder/"t")
    return call


def _nameless(folder):
    (folder/"state").mkdir()
    claim(folder, KEY)


def _foreign_folder(name, text=""):
    def call(folder):
        _emb(2).save(folder/"q")
        (folder/"q"/name).write_text(text)
        _emb(2).save(folder/"q")
    return call


def _broken_run(folder):
    _run(folder)
    cut(folder/"run.json")
    load_run(folder, ())


FAULTS = [
    *(interruption(f"training: killed {when}", f"a training dies {when}", "trained again, it ends bit for bit the same",
                   check, "exact") for when, check in INTERRUPTIONS),
    *(interruption(f"state: {file} {harm.__name__}", f"{harm.__name__} of {file} in the newest state",
                   "a warning names it and training goes on from the older state", _harmed(file, harm), "step-00000003",
                   "goes on from step-00000002", word) for file, harm, word in HARMS),
    interruption("state: NaN weights", "the newest state holds NaN with right checksums", "the older state is used",
                 _poisoned, "NaN or infinite values in 1", "goes on from step-00000002"),
    interruption("state: all damaged", "both states are empty", "training starts anew, with a warning for each",
                 _all_damaged, "step-00000003 is left out", "step-00000002 is left out and training starts anew"),
    interruption("state: damaged and reached again", "the newest state is cut", "its step writes a whole one",
                 _damaged_is_replaced, "whole"),
    interruption("trained folder: killed before the first state", "a try dies with rows in its log", "rows stand once",
                 _no_state_yet, "6 rows"),
    interruption("trained folder: all states damaged", "no state can be loaded", "what comes before is done again",
                 _prepare_again, "'state.pt' is missing", "training starts anew"),
    interruption("trained folder: killed before it is finished", "weights are there, done.json is not",
                 "loading says so, saving again works", _finish_dies, "no finished training", "done.json"),
    interruption("trained folder: two trainings", "a folder is trained in twice at once", "the second is refused",
                 _two_trainings, "the trained folder", "in use by process"),
    interruption("folder: Ctrl-C between two renames", "a writer is interrupted between its renames", "new is there",
                 _interrupted_between_renames, "new"),
    interruption("folder: killed while sweeping", "who removes remains dies too", "the next one removes them",
                 _sweeper_dies, "new"),
    *(interruption(f"embeddings: killed {when}", f"a saved folder is replaced by a writer that dies {when}",
                   "it can be loaded, and saved again", check, "3 rows") for when, check in (
        ("in the vectors", _embeddings_die("safetensors.numpy.save_file")),
        ("before the new folder is on the disk", _embeddings_die("reid_lab.core.files._sync")),
        ("between two renames", _embeddings_die("pathlib.Path.rename", after=True)))),
    *(interruption(f"run: killed {when}", f"a run is kept by a process that dies {when}", "it is kept by the next",
                   check, "kept") for when, check in (
        ("in its tokenizer", _run_dies("reid_lab.data.text.atomic_path")),
        ("in its first Embeddings", _run_dies("reid_lab.core.files._sync", 5)),
        ("between two names of its Embeddings", _run_dies("pathlib.Path.rename", 2, True)),
        ("in run.json", _run_dies("reid_lab.recipes.camel.atomic_path")))),

    bad("state: a torch file", "a .pth is given", _weights(b"PK\3\4 archive/data.pkl"), "w.safetensors",
        "is a torch file", "expected a safetensors file", "copy or train it again"),
    bad("state: a pickle", "an old .pth is given", _weights(b"\x80\2}q"), "a Python pickle", "expected"),
    bad("state: an empty file", "0 bytes", _weights(b""), "w.safetensors' is empty", "expected a safetensors file"),
    bad("state: a web page", "a download page was saved", _weights(b"<!doctype html>"), "an HTML page", "expected"),
    bad("state: JSON", "a JSON file is given", _weights(b'{"lr": 1}'), "is JSON text", "expected a safetensors file"),
    bad("state: Git LFS", "the pointer, not the file", _weights(b"version https://git-lfs"), "Git LFS pointer"),
    bad("state: half a file", "truncated", _saved(lambda net, path: (save_weights(net, path), cut(path))),
        "is damaged", "copy or train it again"),
    bad("state: a flipped bit", "one bit of a weight", _saved(_flipped), "other weights than were written",
        "checksum", "copy or train it again"),
    bad("state: NaN", "one NaN", _saved(_value(float("nan"))), "(first 'lin.bias')", "lower lr"),
    bad("state: infinite", "one infinite", _saved(_value(float("inf"))), "(first 'lin.bias')"),
    bad("state: of another model", "another width", _saved(_value(0.), lambda: Net(4)), "holds a Net, not this Net",
        "(2, 3) in the file, (2, 4) in the model", "settings it was trained with"),
    bad("state: a folder", "the folder of the file", lambda tmp: load_weights(Net(), tmp), "is a folder",
        "give the .safetensors file in it"),
    bad("state: missing", "no file", lambda tmp: load_weights(Net(), tmp/"w"), "no checkpoint at 'w'",
        error=FileNotFoundError),
    bad("state: another rate", "lr is doubled", _other(lr=.2), "other settings (there, here)", "initial_lr",
        "start from the weights alone"),
    bad("state: another seed", "seed 1", _other(seed=1), "'seed': (0, 1)"),
    bad("state: another clip", "clip is set", _other(clip=2.), "'clip': (None, 2.0)"),
    bad("state: another strategy", "a subclass", _other(strategy=Twice()), "'strategy': ('Plain', 'Twice')"),
    bad("state: another schedule", "the rate decays", _other(schedule=lambda s: 1/(1 + s)), "rate by the schedule"),
    bad("state: another order of callbacks", "two are swapped", _swapped, "'callback 0': ('Validate', 'Average')"),
    bad("state: what cannot be loaded again", "a callback keeps a set",
        lambda tmp: save_state(_learner(tmp, callbacks=[Odd()]), tmp/"s"),
        "the state of callback Odd['best'][0] is set", error=TypeError),
    bad("checkpoint: every=0", "no interval", lambda tmp: Checkpoint(tmp, every=0), "every=0 must be at least 1"),
    bad("checkpoint: keep=0", "nothing kept", lambda tmp: Checkpoint(tmp, keep=0), "keep=0 must be at least 1"),
    bad("checkpoint: not resumed", "a new training over old states", _without_resume, "holds states up to step 3",
        "call resume(learn) before fit, or give another folder"),
    bad("trained folder: no key", "fit without a key", lambda tmp: fit(Net(), Blobs(), 1, tmp), "needs a key"),
    bad("trained folder: another training", "another rate",
        lambda tmp: claim(_trained(tmp/"t"), {**KEY, "lr": .2}), "holds another training", "'lr': (0.1, 0.2)"),
    bad("trained folder: loaded as another", "another seed",
        lambda tmp: load_trained(_trained(tmp/"t"), {**KEY, "seed": 3}), "trained otherwise", "'seed': (0, 3)"),
    bad("trained folder: states without a key", "training.json was deleted", _nameless, "holds ['state'] without",
        "nobody can tell what was trained"),
    bad("trained folder: done.json damaged", "half a file", _spoilt("done.json", '{"log": ['), "done.json' is damaged",
        "give the folder of another run"),
    bad("trained folder: training.json foreign", "a list", _spoilt("training.json", "[1]"), "is no record",
        "['model', 'model_kw']"),
    bad("trained folder: weights are text", "a note", _spoilt("model.safetensors", "{}"), "JSON text", "expected"),
    bad("run: not finished", "no run.json", lambda tmp: load_run(tmp), "no finished run", "goes on from what is there",
        error=FileNotFoundError),
    bad("run: run.json damaged", "half a file", _broken_run, "run.json' is damaged", "give the folder of another run"),
    bad("run: in use", "two runs in one folder", _two_runs, "the run folder", "in use by process", error=RuntimeError),
    bad("embeddings: a folder with other files", "notes in it", _foreign_folder("notes.txt"), "did not write",
        "['notes.txt']", "choose a new name", error=FileExistsError),
    bad("embeddings: a folder of another program", "its own table", _foreign_folder("table.json", '[{"pid": 1}]'),
        "did not write", error=FileExistsError),
]
