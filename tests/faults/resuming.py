"""Sweeps and trainings that stop and go on: seeds, signals, dead loaders, folders and files that change in between."""
import functools
import os
import signal
from pathlib import Path
from unittest import mock

import nbformat
import torch
import training as trainings
from fault import bad, clutter, cut, empty, flip, interruption, killed, refused
from nbformat.v4 import new_code_cell, new_notebook

from reid_lab.core.scratch import Scratch, remove_dead
from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable
from reid_lab.experiments import notebooks, run as run_folders
from reid_lab.experiments.sweep import grid_points, sweep
from reid_lab.models.weights.shipped import shipped
from reid_lab.recipes.reid import reid_key, reid_settings
from reid_lab.training import fit as fitting
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.fit import fit
from reid_lab.training.folder import claim
from reid_lab.training.learner import Plain
from reid_lab.world.world import World


def _job(seed=0, gain=0): return dict(R1=40. + gain + seed)


def _notebook(tmp):
    "A notebook with a seed that does nothing"
    given = new_code_cell("seed = 0\nlr = .1\nout_dir = ''", metadata=dict(tags=["parameters"]))
    nbformat.write(new_notebook(cells=[given]), tmp/"n.ipynb")
    return tmp/"n.ipynb"


def _command(*args): return lambda tmp: refused("sweep", _notebook(tmp), "--out", tmp/"s", *args)
def _variable(name, value):
    "Start a run under an environment variable"
    def call(tmp):
        with mock.patch.dict(os.environ, {name: value}): refused("run", _notebook(tmp), "--out", tmp/"r")
    return call


def _experiment(name, *args):
    "A sweep that must be refused before it has a folder"
    def call(tmp):
        try: refused("sweep", name, "--out", tmp/"s", *args)
        finally: assert not (tmp/"s").exists()
    return call


def _sweep(*args, **how): return lambda tmp: sweep(_job, *args, folder=tmp/"s", n_jobs=1, **how)


SEEDS = [
    bad("sweep: a seed twice", "seeds=[0, 0]", _sweep({}, seeds=[0, 0]), "twice", "{'seed': 0}", "each seed once"),
    bad("sweep: a seed of the grid twice", "grid seed=[5, 5]", _sweep(dict(seed=[5, 5])), "twice", "name each value"),
    bad("sweep: a value twice", "grid gain=[1, 1]", _sweep(dict(gain=[1, 1])), "{'gain': 1, 'seed': 0} twice"),
    bad("sweep: a point twice", "two equal dicts", _sweep([dict(gain=1), dict(gain=1)]), "twice"),
    bad("sweep: seeds and a seed in the grid", "both", _sweep(dict(seed=[5]), seeds=[1]), "seeds=[1]", "are both given",
        "--seeds", "-p seed="),
    bad("sweep: seeds and a seed in a point", "both", _sweep([dict(seed=5)], seeds=[1]), "are both given"),
    bad("sweep: seeds and seed=", "both", _sweep({}, seeds=[1], seed=5), "are both given"),
    bad("sweep: seed= and a seed in the grid", "both", _sweep(dict(seed=[1]), seed=5), "are both given"),
    bad("sweep: a parameter twice", "gain= and a grid of gains", _sweep(dict(gain=[1]), gain=2), "gain=2",
        "give gain once"),
    bad("sweep: several seeds as one", "seed=[1, 2]", _sweep({}, seed=[1, 2]), "seed=[1, 2] must be a whole number",
        "seeds=[0, 1]"),
    *(bad(f"sweep: seed {value!r}", "no seed of NumPy", lambda tmp, value=value: grid_points({}, [value]), *words)
      for value, *words in ((-1, "between 0 and 4294967295"), (2**32, "seed=4294967296", "2**32 - 1"),
                            (1.5, "whole number"), ("1", "seed='1'", "whole number"), (True, "seed=True"),
                            (None, "seed=None"))),
    bad("command: sweep with one value in two spellings", "--grid lr=1,1.0", _command("--grid", "lr=1,1.0"), "twice"),
    bad("command: sweep with out_dir", "--grid out_dir=a,b", _command("--grid", "out_dir=a,b"), "out_dir is chosen",
        "--out"),
    bad("command: sweep with out_dir for all", "-p out_dir=a", _command("-p", "out_dir=a"), "out_dir is chosen"),
    *(bad(f"command: sweep of {name} with {' '.join(given)}", "judged before a job starts", _experiment(name, *given),
          *words)
      for name, given, *words in (
          ("dart3", ("--grid", "dataset=world,wrld"), "dataset='wrld' is not known"),
          ("dmg", ("-p", "device=tpu"), "device='tpu'"),
          ("camel", ("--grid", "preset=smoke,quik"), "preset='quik'", "Did you mean"),
          ("dart3", ("--grid", "scene=skew,skewed"), "scene='skewed'"),
          ("dart3", ("--seeds", "0", "499", "500"), "trained on already"),
          ("cfan", ("--grid", "model=clip_tiny"), "model='clip_tiny'"),
          ("cfam", ("--grid", "methods=cfam,nope"), "methods='nope'"),
          ("dart3", ("--grid", "weights=none,nope"), "nope"))),
    bad("command: sweep with a seed twice", "--seeds 0 0", _command("--seeds", "0", "0"), "twice"),
    bad("command: sweep with a seed of the grid twice", "--grid seed=5,5", _command("--grid", "seed=5,5"), "twice"),
    bad("command: sweep with --seeds and --grid seed", "both", _command("--seeds", "1", "--grid", "seed=5"),
        "both given"),
    bad("command: sweep with --seeds and -p seed", "both", _command("--seeds", "1", "-p", "seed=5"), "both given"),
    bad("command: sweep with a negative seed", "--seeds -1", _command("--seeds", "-1"),
        "--seeds: '-1' must be a whole number from 0 to 4294967295"),
    bad("command: sweep with a seed that is too large", "-p seed=4294967296", _command("-p", "seed=4294967296"),
        "seed=4294967296 must lie between"),
]


VARIABLES = [bad(f"variable: {name}={value}", "an environment variable", _variable(name, value), *words)
             for name, value, *words in (
    ("REID_LAB_WORKERS", "x", "REID_LAB_WORKERS='x'", "from 0 to 1024"),
    ("REID_LAB_PROCESSES", "0", "REID_LAB_PROCESSES='0'", "from 1 to 1024"),
    ("REID_LAB_SPEED", "fp17", "REID_LAB_SPEED='fp17'", "fp16"),
    ("REID_LAB_THREADS", "x", "REID_LAB_THREADS='x'", "whole number from 1 to 1024"),
    ("REID_LAB_THREADS", "0", "REID_LAB_THREADS='0'", "unset it"),
    ("REID_LAB_WIDGETS", "3", "REID_LAB_WIDGETS='3'", "'on', 'off'"))]


# --- trainings whose settings, weights or data changed between two parts ----------------------------------------------

class Scaled(Plain):
    def __init__(self, factor): self.factor = factor


class Noisy(trainings.Blobs):
    def __init__(self, noise): self.noise = noise


class Margin(trainings.Net):
    def __init__(self, margin):
        super().__init__()
        self.margin = margin


def _fit(folder, model=None, loader=None, steps=3, **how):
    "A training with a state at every step"
    often = lambda folder, every, **options: Checkpoint(folder, 1, **options)
    with mock.patch.object(fitting, "Checkpoint", often):
        return fit(model or trainings.Net(), loader or trainings.Blobs(), steps, folder/"t", dict(lr=.1), lr=.1,
                   quiet=True, device="cpu", **how)


def _fit_twice(first, then):
    def call(tmp):
        _fit(tmp, **first())
        _fit(tmp, **then(), steps=6)
    return call


@functools.cache
def _people(): return World("smoke", task="reid").table()


def _other_weights(change):
    "The file that a training starts from is another one in its second part"
    def call(tmp):
        file = tmp/"start.safetensors"
        file.write_bytes(shipped()["bot_tiny"][1].read_bytes())
        settings = reid_settings("smoke", weights=str(file))
        claim(tmp/"t", reid_key(_people(), settings, 0))
        change(file)
        claim(tmp/"t", reid_key(_people(), settings, 0))
    return call


def _other_rows(change):
    "The split that is trained on is another one in the second part"
    def call(tmp):
        settings = reid_settings("smoke")
        claim(tmp/"t", reid_key(_people(), settings, 0))
        table = _people()
        changed = ReidTable(change(table.frame.copy()), table.root, name=table.name, reader=table.reader)
        claim(tmp/"t", reid_key(changed, settings, 0))
    return call


def _swap_ids(frame):
    "Two identities are exchanged"
    own = frame.index[frame.split == "train"]
    a, b = frame.pid[own[0]], next(p for p in frame.pid[own] if p != frame.pid[own[0]])
    frame["pid"] = frame.pid.map(lambda p: {a: b, b: a}.get(p, p))
    return frame


CHANGED = [
    bad("trained folder: another factor", "the strategy has another attribute",
        _fit_twice(lambda: dict(strategy=Scaled(1.)), lambda: dict(strategy=Scaled(.5))),
        "other settings (there, here)", "'strategy.factor': (1.0, 0.5)", "use a new folder"),
    bad("trained folder: another strategy", "another class",
        _fit_twice(lambda: dict(strategy=Scaled(1.)), dict), "'strategy': ('Scaled', None)"),
    bad("trained folder: another loader", "another attribute",
        _fit_twice(lambda: dict(loader=Noisy(1.)), lambda: dict(loader=Noisy(2.))), "'loader.noise': (1.0, 2.0)"),
    bad("trained folder: another loss", "another margin of the model",
        _fit_twice(lambda: dict(model=Margin(.3)), lambda: dict(model=Margin(.5))), "'model.margin': (0.3, 0.5)"),
    *(bad(f"start: {harm.__name__} between two parts", "the weights file is another one", _other_weights(harm),
          "holds another training", "start", "start.safetensors") for harm in (cut, flip, empty)),
    bad("split: a row less between two parts", "a training image is gone", _other_rows(lambda f: f.drop(
        f.index[f.split == "train"][:1]).reset_index(drop=True)), "holds another training", "'images'"),
    bad("split: identities exchanged between two parts", "two people", _other_rows(_swap_ids), "'images'"),
    bad("split: a camera changed between two parts", "of one image",
        _other_rows(lambda f: f.assign(cam=[f.cam[0] + 1, *f.cam[1:]]) if f.split[0] == "train" else
                    f.assign(cam=f.cam + 1)), "'images'"),
]


# --- states -----------------------------------------------------------------------------------------------------------

def _without_sums(harm):
    "The checksums of the newest state are gone or unreadable, and its state is damaged, too"
    def check(tmp):
        state = trainings._newest(tmp, "state.pt")
        harm(state.with_name("sums.json"))
        cut(state)
        return trainings._exact(tmp)
    return check


# --- a process that loads images dies ---------------------------------------------------------------------------------

class Colour(torch.nn.Module):
    "A classifier of mean colours"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 64)
    def forward(self, b):
        return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(b["img"].mean((2, 3))), b["label"]))


class Killer:
    "Part of making a batch: kills the worker at its `nth` batch, as often as there are marks"
    def __init__(self, folder, nth): self.folder, self.nth, self.count = folder, nth, 0
    key_settings = {}   # none: it leaves batches as they are
    def __call__(self, batch, rng):
        self.count += 1
        marks = list(self.folder.glob("mark-*"))
        if marks and self.count == self.nth:
            marks[0].unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def _loader_dies(nth, times=1):
    "A worker is killed, the same call goes on, and the weights are those of a training without it"
    def check(tmp):
        rows = _people().where(split="train")
        def train(name):
            loader = Batches(rows, 16, (8, 4), workers=1, extras=[Killer(tmp, nth)])
            (tmp/name).mkdir(exist_ok=True)
            return _fit(tmp/name, Colour(), loader, 5).model.lin.weight.detach()
        whole = train("whole")
        for i in range(times): (tmp/f"mark-{i}").touch()
        told = []
        for _ in range(times):
            try: train("again")
            except RuntimeError as e: told.append(str(e))
        assert len(told) == times and torch.equal(train("again"), whole)
        return told[0]
    return check


# --- sweeps under signals ---------------------------------------------------------------------------------------------

def _in_a_copy(call):
    "Run `call` in a copy of this process -> its exit code"
    pid = os.fork()
    if pid == 0:
        try: call()
        except KeyboardInterrupt: os._exit(130)
        finally: os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _counted(tmp, stop=None):
    "A job that leaves a mark for each call, and stops at a seed"
    def job(seed=0):
        (tmp/f"call-{seed}-{len(list(tmp.glob(f'call-{seed}-*')))}").touch()
        if seed == stop and not (tmp/"go on").exists(): os.kill(os.getpid(), sign)
        return dict(R1=40. + seed)
    sign = signal.SIGINT
    return job


def _calls(tmp): return {s: len(list(tmp.glob(f"call-{s}-*"))) for s in range(3)}


def _sweep_interrupted(tmp):
    "Ctrl-C in the second of three runs; only what is missing is run"
    go = lambda: sweep(_counted(tmp, 1), {}, range(3), 1, tmp/"s")
    def begin():
        signal.signal(signal.SIGINT, signal.default_int_handler)
        go()
    assert _in_a_copy(begin) == 130
    (tmp/"go on").touch()
    assert go().R1.tolist() == [40, 41, 42] and _calls(tmp) == {0: 1, 1: 2, 2: 1}
    return "one run again"


def _sweep_killed(at, nth, calls, **how):
    def check(tmp):
        go = lambda: sweep(_counted(tmp), {}, range(3), 1, tmp/"s")
        killed(go, at, nth, **how)
        frame = go()
        assert frame.R1.tolist() == [40, 41, 42] and frame.status.tolist() == ["ok"]*3 and not clutter(tmp)
        assert _calls(tmp) == calls, _calls(tmp)
        return "three rows"
    return check


def _fresh_sweep(tmp):
    "Killed in a sweep that begins anew; the same call goes on with what it had begun"
    go = lambda: sweep(_counted(tmp), {}, range(3), 1, tmp/"s", fresh=True)
    go()
    killed(go, "reid_lab.experiments.sweep.write_json", 2)
    assert go().R1.tolist() == [40, 41, 42]
    assert _calls(tmp) == {0: 2, 1: 3, 2: 2}, _calls(tmp)
    go()
    assert _calls(tmp) == {0: 3, 1: 4, 2: 3} and not clutter(tmp)
    return "begun once"


def _fresh_sweep_of_other_points(tmp):
    go = lambda seeds: sweep(_counted(tmp), {}, seeds, 1, tmp/"s", fresh=True)
    killed(lambda: go([0, 1]), "reid_lab.experiments.sweep.write_json", 2)
    assert go([0, 2]).R1.tolist() == [40, 42]
    assert _calls(tmp)[0] == 2
    return "anew"


def _sweep_folder_removed(tmp):
    import shutil
    def job(seed=0):
        shutil.rmtree(tmp/"s")
        return dict(R1=1.)
    sweep(job, {}, [0], 1, tmp/"s")


# --- run folders ------------------------------------------------------------------------------------------------------

def _held(tmp, do, fresh=False, lr=.1):
    "What `run_notebook` does around the cells of a notebook"
    source, folder = _notebook(tmp), tmp/"o"
    folder.mkdir(exist_ok=True)
    params = dict(lr=lr, seed=0, out_dir=str(folder))
    with mock.patch.dict(os.environ, REID_LAB_RUN=str(folder)):
        with notebooks._locked_run(source, folder, params, fresh, True, "") as seen:
            run = run_folders.start_run("n", params, results=tmp/"r.csv", resume=True)
            nb = nbformat.read(source, 4)
            nb.metadata["papermill"] = dict(parameters=params)
            nbformat.write(nb, folder/"n.ipynb")
            notebooks._note_files(folder, seen)
            do(folder)
            notebooks._note_files(folder, seen)
            run.record(dict(R1=1.), "world")
            run.finish()


def _section(folder):
    "A part of a run that is skipped if it is there"
    (folder/"models").mkdir(exist_ok=True)
    (folder/"models"/f"part-{len(list((folder/'models').iterdir()))}").touch()


def _stop(folder):
    _section(folder)
    raise KeyboardInterrupt


def _parts(tmp): return len(list((tmp/"o"/"models").iterdir()))


def _interrupt(tmp, **how):
    try: _held(tmp, _stop, **how)
    except KeyboardInterrupt: return
    raise AssertionError("not interrupted")


def _fresh_run(tmp):
    "An interrupted call with --fresh is continued by the same call, and by the same only"
    _held(tmp, _section)
    _interrupt(tmp, fresh=True)
    assert _parts(tmp) == 1
    _interrupt(tmp, fresh=True)
    assert _parts(tmp) == 2             # went on
    _held(tmp, _section, fresh=True)
    assert _parts(tmp) == 3
    _held(tmp, _section, fresh=True)    # a finished one begins anew
    assert _parts(tmp) == 1 and clutter(tmp) == [f"o/{run_folders.RUN_FILE}"]
    return "went on"


def _fresh_run_with_others(tmp):
    _held(tmp, _section)
    _interrupt(tmp, fresh=True)
    _interrupt(tmp, fresh=True, lr=.2)
    assert _parts(tmp) == 1
    return "anew"


def _killed_while_it_begins_anew(tmp):
    "Dead between the files that it removes: neither a foreign folder nor a finished run afterwards"
    _held(tmp, _section)
    killed(lambda: _held(tmp, _section, fresh=True), "shutil.rmtree", after=True)
    assert run_folders.earlier_run(tmp/"o")["status"] == "finished"
    _held(tmp, _section, fresh=True)
    assert _parts(tmp) == 1
    return "anew"


def _removed(do):
    def call(tmp): _held(tmp, lambda folder: do(folder))
    return call


def _all(folder):
    import shutil
    shutil.rmtree(folder)
    folder.mkdir()


def _gone(folder):
    import shutil
    shutil.rmtree(folder)


# --- temporary folders ------------------------------------------------------------------------------------------------

def _dead_scratch(tmp):
    killed(lambda: [Scratch("kernel", tmp), os.getpgid(0)], "os.getpgid")
    mine = Scratch("kernel", tmp)
    assert [p for p in tmp.iterdir()] == [mine.path]
    mine.cleanup()
    return "one"


def _living_and_foreign_scratch(tmp):
    "Those of a living process, without a lock, with another name, and links stay"
    mine = Scratch("", tmp)
    for name in ("reid_lab-old", "kernel-old", "reid_lab-file"): (tmp/name).mkdir()
    (tmp/"elsewhere").mkdir()
    (tmp/"elsewhere"/".lock").write_text("999999999")
    (tmp/"reid_lab-link").symlink_to(tmp/"elsewhere")
    (tmp/"reid_lab-text").mkdir()
    (tmp/"reid_lab-text"/".lock").write_text("mine")
    assert remove_dead(tmp) == 0 and mine.path.exists() and len(list(tmp.iterdir())) == 7
    mine.cleanup()
    return "all"


def _kernel_that_lives(tmp):
    "The process that started a kernel is dead, the kernel is not"
    killed(lambda: [(Scratch("kernel", tmp).path/"pid").write_text(str(os.getppid())), os.getpgid(0)], "os.getpgid")
    assert remove_dead(tmp) == 0
    (next(tmp.iterdir())/"pid").write_text("999999999")
    assert remove_dead(tmp) == 1 and not list(tmp.iterdir())
    return "kept"


# --- processes that share a training ----------------------------------------------------------------------------------

def _rank_fails(how):
    "One of two processes fails: its own lines are the message, and come last"
    def call(tmp):
        from reid_lab.core.distributed import torchrun
        (tmp/"p.py").write_text(
            "import os, sys\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
            "print('process', dist.get_rank(), 'loads images', file=sys.stderr, flush=True)\n"
            f"if dist.get_rank(): {how}\ndist.barrier()\n")
        torchrun(2, tmp/"p.py", capture=False)
    return call


FAULTS = [
    *SEEDS, *VARIABLES, *CHANGED,
    bad("sweep: its folder is removed", "by a run", _sweep_folder_removed, "the sweep folder", "was removed",
        "outcomes are lost", error=RuntimeError),
    *(bad(f"run: {what} while it runs", does, _removed(do), "the run folder", "removed while the run wrote there", word,
          error=RuntimeError) for what, does, do, word in (
        ("its folder is removed", "rm -r OUT", _gone, "Run again"),
        ("its folder is made anew", "rm -r OUT; mkdir OUT", _all, "Run again"))),
    bad("processes: one of two is killed", "SIGKILL", _rank_fails("os.kill(os.getpid(), 9)"), "2 processes of p.py",
        "process 1 was ended by signal 9", "lack of memory", "process 1 loads images", error=RuntimeError),
    bad("processes: one of two raises", "an error", _rank_fails("raise ValueError('a bad image')"),
        "process 1 ended with 1",
        "ValueError: a bad image", error=RuntimeError),
    bad("processes: one of two ends at once", "exit status 3", _rank_fails("os._exit(3)"),
        "process 1 ended with 3",
        "process 1 loads images", error=RuntimeError),
    *(interruption(f"state: sums.json {harm.__name__}, state.pt cut", "no checksum can be read, and the state is cut",
                   "the older state is used, or training starts anew: exact", _without_sums(harm), "step-00000003",
                   "goes on from step-00000002") for harm in (Path.unlink, cut, empty)),
    interruption("loader: its process is killed in the first batch", "SIGKILL", "the call goes on, exact",
                 _loader_dies(1), "a process that loads images died", "--workers 0", "call again"),
    interruption("loader: its process is killed in the third batch", "SIGKILL", "the call goes on, exact",
                 _loader_dies(3), "a process that loads images died", "workers=0"),
    interruption("loader: its process is killed twice", "SIGKILL in two calls", "the third goes on, exact",
                 _loader_dies(2, 2), "a process that loads images died"),
    interruption("sweep: Ctrl-C in a run", "SIGINT in the second of three", "that one is run again, no other",
                 _sweep_interrupted, "one run again"),
    interruption("sweep: killed before an outcome is written", "dead in the second of three", "it is run again",
                 _sweep_killed("reid_lab.experiments.sweep.write_json", 2, {0: 1, 1: 2, 2: 1}), "three rows"),
    interruption("sweep: killed in an outcome", "dead before it has its name", "it is run again",
                 _sweep_killed("reid_lab.core.files._install", 2, {0: 2, 1: 1, 2: 1}), "three rows"),
    interruption("sweep: killed in the list of its code", "dead before it has its name", "it is written again",
                 _sweep_killed("reid_lab.core.files._install", 1, {0: 1, 1: 1, 2: 1}), "three rows"),
    interruption("sweep: killed after an outcome", "dead before the next begins", "none is run twice",
                 _sweep_killed("reid_lab.experiments.sweep.write_json", 3, {0: 1, 1: 1, 2: 1}, after=True),
                 "three rows"),
    interruption("sweep: killed in a fresh call", "dead in the second outcome of --fresh", "it goes on, not anew",
                 _fresh_sweep, "begun once"),
    interruption("sweep: killed in a fresh call of other points", "other seeds in the next", "begins anew",
                 _fresh_sweep_of_other_points, "anew"),
    interruption("run: interrupted twice in a fresh call", "Ctrl-C in two calls with --fresh", "the third ends it",
                 _fresh_run, "went on"),
    interruption("run: interrupted in a fresh call, then others", "another rate in the next", "begins anew",
                 _fresh_run_with_others, "anew"),
    interruption("run: killed while a fresh call removes files", "dead after the first", "the next begins anew",
                 _killed_while_it_begins_anew, "anew"),
    interruption("scratch: its process is killed", "SIGKILL", "the next process removes it", _dead_scratch, "one"),
    interruption("scratch: of others", "alive, without a lock, links", "all stay", _living_and_foreign_scratch, "all"),
    interruption("scratch: a kernel lives on", "the process that started it is dead", "kept until both are",
                 _kernel_that_lives, "kept"),
]
