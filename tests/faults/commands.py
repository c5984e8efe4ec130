"""The command line and runs: wrong options, folders of others, values that cannot be stored, interruptions."""
import os
import subprocess
import sys

import nbformat
import numpy as np
from fault import bad, interruption, killed, refused
from nbformat.v4 import new_code_cell, new_notebook

from reid_lab.core import basics as core_basics, reporting
from reid_lab.experiments import run as run_folders, sweep


def _notebook(tmp, body="pass", tags=("parameters",)):
    parameters = "seed = 0\nlr = 1e-3\nname = ''\non = True\nout_dir = ''"
    path = tmp/"demo.ipynb"
    cells = [new_code_cell(parameters, metadata=dict(tags=list(tags))), new_code_cell(body)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def _run(tmp, *args, **nb): return refused("run", _notebook(tmp, **nb), *args)


def _run_of(tmp, status="finished", notebook="demo"):
    "A folder that an earlier run left"
    folder = tmp/"run"
    folder.mkdir(exist_ok=True)
    run_folders.write_json(folder/"metrics.json", dict(run="run", notebook=notebook, status=status, params={}, rows=[]))
    return folder


def _interrupted(tmp, **given):
    "A folder that an interrupted run of the notebook left, with the parameters that papermill was given"
    folder = _run_of(tmp, "interrupted")
    nb = nbformat.read(_notebook(tmp), 4)
    nb.metadata["papermill"] = dict(parameters=given)
    nbformat.write(nb, folder/"demo.ipynb")
    return folder


def _features(tmp, **change):
    "Two feature files; `change` replaces arrays of the queries"
    for name, more in (("q", change), ("g", {})):
        arrays = dict(emb=np.eye(4, 3, dtype="f4") + .1, pid=np.arange(4), cam=np.array([0, 1, 0, 1])) | more
        np.savez(tmp/f"{name}.npz", **{k: v for k, v in arrays.items() if v is not None})
    return tmp/"q.npz", tmp/"g.npz"


def _no_rows():
    "Arrays of an empty feature file"
    return dict(emb=np.zeros((0, 3), "f4"), pid=np.zeros(0, int), cam=np.zeros(0, int))


def _mine(tmp):
    "A folder of the user's own results is named; it is refused and untouched"
    (tmp/"results.csv").write_text("mine")
    (tmp/"log.jsonl").write_text("mine")
    try: run_folders.start_run("run_demo", {}, tmp)
    finally:
        assert sorted(p.name for p in tmp.iterdir()) == ["log.jsonl", "results.csv"]
        assert (tmp/"results.csv").read_text() == "mine"


def _record(tmp, **metrics):
    with run_folders.start_run("run_demo", {}, tmp/"r", results=tmp/"runs.csv") as run:
        try: run.record(metrics, dataset="world")
        finally: assert run.rows == []


def _status(folder): return run_folders.earlier_run(folder)["status"]


def _two_runs(tmp):
    with run_folders.start_run("run_demo", {}, tmp/"r"):
        call = f"from reid_lab.experiments.run import start_run; start_run('run_demo', {{}}, {str(tmp/'r')!r})"
        done = subprocess.run([sys.executable, "-c", call], capture_output=True, text=True)
        raise RuntimeError(done.stderr.replace(str(os.getpid()), "OURS"))


def _home_is_a_file(tmp):
    (tmp/"home").write_text("")
    before = os.environ.get("REID_LAB_HOME")
    os.environ["REID_LAB_HOME"] = str(tmp/"home")
    try: core_basics.project_root()
    finally:
        if before is None: del os.environ["REID_LAB_HOME"]
        else: os.environ["REID_LAB_HOME"] = before


def _one(seed, gain=0): return dict(R1=float("inf") if gain == "inf" else [1, 2] if gain == "list" else 40 + seed)


def _number(seed): return 3


def _failed(tmp, gain):
    "A sweep whose job returns what cannot be stored: one row, failed, with the reason"
    frame = sweep.sweep(_one, [dict(gain=gain)], seeds=[0], n_jobs=1, folder=tmp/"s")
    assert frame.status.tolist() == ["failed"] and len(frame) == 1
    raise ValueError(frame.error[0])


def _failed_number(tmp):
    frame = sweep.sweep(_number, {}, seeds=[0], n_jobs=1, folder=tmp/"s")
    assert frame.status.tolist() == ["failed"]
    raise ValueError(frame.error[0])


# --- interruptions ----------------------------------------------------------------------------------------------------

def _ctrl_c_in_a_block(tmp):
    try:
        with run_folders.start_run("run_demo", {}, tmp/"r", results=tmp/"runs.csv") as run:
            run.record(dict(R1=1.), dataset="world")
            raise KeyboardInterrupt
    except KeyboardInterrupt: pass
    assert not (tmp/"runs.csv").exists() and run_folders.earlier_run(tmp/"r")["rows"]
    before = _status(tmp/"r")
    with run_folders.start_run("run_demo", {}, tmp/"r", results=tmp/"runs.csv"): assert _status(tmp/"r") == "running"
    return before


def _a_process_that_ends(tmp):
    "A notebook that papermill alone runs, and stops in the middle"
    code = f"from reid_lab.experiments.run import start_run; run = start_run('run_demo', {{}}, {str(tmp/'r')!r})"
    subprocess.run([sys.executable, "-c", code], check=True)
    return _status(tmp/"r")


def _killed_run(tmp):
    "A run that was killed is continued in its folder; the lock is free"
    killed(lambda: run_folders.start_run("run_demo", {}, tmp/"r").log(step=0), "reid_lab.experiments.run.Run.log")
    assert _status(tmp/"r") == "running"
    run_folders.start_run("run_demo", {}, tmp/"r", results=tmp/"runs.csv").finish()
    return _status(tmp/"r")


def _truncated_outcome(tmp):
    jobs = dict(n_jobs=1, folder=tmp/"s", seeds=[0, 1])
    sweep.sweep(_one, {}, **jobs)
    file = sorted((tmp/"s").glob("*.json"))[0]
    file.write_text(file.read_text()[:40])
    again = sweep.sweep(_one, {}, **jobs)
    assert again.R1.tolist() == [40, 41]
    return " ".join(again.status)


def _results_cannot_be_written(tmp):
    "The disk refuses the rows: the run says so, its numbers stay"
    run = run_folders.start_run("run_demo", {}, tmp/"r", results=tmp/"folder")
    (tmp/"folder").mkdir()
    run.record(dict(R1=1.), dataset="world")
    try: run.finish()
    except OSError: pass
    assert run_folders.earlier_run(tmp/"r")["rows"][0]["metrics"] == dict(R1=1.)
    return _status(tmp/"r")


def _reader_gone(tmp):
    "Progress is reported to a process that has ended"
    os.environ["REID_LAB_PROGRESS"] = str(tmp/"gone"/"progress.jsonl")
    try:
        told = reporting.report("training", 1, 2)
        return str(told) + "".join(str(i) for i in reporting.progress(range(2), every=0, quiet=True))
    finally: del os.environ["REID_LAB_PROGRESS"]


FAULTS = [
    bad("command: parameter without a value", "`-p preset`", lambda tmp: _run(tmp, "-p", "seed"), "is not name=value"),
    bad("command: parameter given twice", "`-p seed=1 -p seed=2`", lambda tmp: _run(tmp, "-p", "seed=1", "-p",
        "seed=2"),
        "['seed'] given more than once"),
    bad("command: misspelt parameter", "`-p sed=1`", lambda tmp: _run(tmp, "-p", "sed=1"), "'sed' is not known",
        "Did you mean 'seed'"),
    bad("command: text for a whole number", "`-p seed=one`", lambda tmp: _run(tmp, "-p", "seed=one"),
        "parameter seed='one' must be a whole number", "default 0"),
    bad("command: fraction for a whole number", "`-p seed=1.5`", lambda tmp: _run(tmp, "-p", "seed=1.5"),
        "seed=1.5 must be a whole number"),
    bad("command: text for a number", "`-p lr=fast`", lambda tmp: _run(tmp, "-p", "lr=fast"),
        "lr='fast' must be a number"),
    bad("command: neither true nor false", "`-p on=maybe`", lambda tmp: _run(tmp, "-p", "on=maybe"), "on='maybe'",
        "'yes', 'no'"),
    bad("command: unknown experiment", "`run caml`", lambda tmp: refused("run", "caml"), "experiment='caml'",
        "choose one of"),
    bad("command: notebook that does not exist", "`run x.ipynb`", lambda tmp: refused("run", tmp/"x.ipynb"),
        "no notebook", "experiments by name"),
    bad("command: notebook without parameters", "its tag is lost", lambda tmp: _run(tmp, tags=()),
        "0 cells tagged 'parameters', needs exactly one"),
    bad("command: --out is a file", "`--out notes.txt`", lambda tmp: [(tmp/"a.txt").write_text(""),
        _run(tmp, "--out", tmp/"a.txt")], "--out", "a.txt is a file", "name a folder"),
    bad("command: --out below a file", "`--out notes.txt/x`", lambda tmp: [(tmp/"a.txt").write_text(""),
        _run(tmp, "--out", tmp/"a.txt"/"x")], "is a file, and no folder"),
    bad("command: --out with files of others", "`--out .`", lambda tmp: _run(tmp, "--out", tmp),
        "holds files that no run made: ['demo.ipynb']", "name a new or an empty folder"),
    bad("command: --out with a finished run", "the same command again",
        lambda tmp: _run(tmp, "--out", _run_of(tmp)), "holds a finished run", "run again with --fresh"),
    bad("command: --out with another experiment", "`run a --out runs/b`",
        lambda tmp: _run(tmp, "--out", _run_of(tmp, "interrupted", "run_other")), "a run of run_other, not of demo"),
    bad("command: --out with another seed", "an interrupted run, continued with `-p seed=1`",
        lambda tmp: _run(tmp, "-p", "seed=1", "--out", _interrupted(tmp)), "a run with other parameters (there, here)",
        "{'seed': (0, 1)}"),
    bad("command: --out with another rate", "it was given `lr=1`, and now is not",
        lambda tmp: _run(tmp, "--out", _interrupted(tmp, lr=1.)), "{'lr': (1.0, 0.001)}"),
    bad("command: a notebook that fails", "an error in a cell", lambda tmp: _run(tmp, "--out", tmp/"o", body="1/0"),
        "demo.ipynb failed: ZeroDivisionError: division by zero", "cell 2", "line 1 of the cell: 1/0", "the rest: "),
    bad("command: sweep with --grid and -p", "the same name in both", lambda tmp: refused("sweep", _notebook(tmp),
        "--grid",
        "seed=1", "-p", "seed=2"), "seed is given by --grid and by -p"),
    bad("command: sweep over a misspelt parameter", "`--grid sed=1`",
        lambda tmp: refused("sweep", _notebook(tmp), "--grid", "sed=1"), "'sed' is not known"),
    bad("command: sweep over text for numbers", "`--grid lr=a,b`",
        lambda tmp: refused("sweep", _notebook(tmp), "--grid", "lr=a,b", "--out", tmp/"s"), "lr='a' must be a number"),
    bad("command: sweep folder is a file", "`sweep --out notes.txt`", lambda tmp: [(tmp/"a.txt").write_text(""),
        refused("sweep", _notebook(tmp), "--out", tmp/"a.txt")], "is a file; name a folder"),
    bad("command: metrics without the arrays", "other names in the file",
        lambda tmp: refused("metrics", *_features(tmp, emb=None, mine=np.eye(4))), "has no ['emb']",
        "--key emb=features"),
    bad("command: metrics without cameras", "no cam, `--junk cam`",
        lambda tmp: refused("metrics", *_features(tmp, cam=None), "--junk", "cam"), "q.npz has no column 'cam'",
        "--junk auto leaves out what can be judged", "--junk none nothing", "--key cam=NAME"),
    bad("command: metrics without the column of a rule", "no clothes, `--junk cam,clothes`",
        lambda tmp: refused("metrics", *_features(tmp), "--junk", "cam,clothes"), "q.npz has no column 'clothes'",
        "It has cam, pid", "--junk none"),
    bad("command: half a rule of junk", "`--junk cam=3`",
        lambda tmp: refused("metrics", *_features(tmp), "--junk", "cam=3"), "is no pair", "such as cam=3:2"),
    bad("command: two rules of junk", "`--junk none --same-camera drop`",
        lambda tmp: refused("metrics", *_features(tmp), "--junk", "none", "--same-camera", "drop"),
        "give --junk alone"),
    bad("command: metrics of nobody and without cameras", "no cam, pid -1 in all rows",
        lambda tmp: refused("metrics", *_features(tmp, cam=None, pid=-np.ones(4, int))), "q.npz knows nobody"),
    bad("command: metrics of a file without rows", "arrays of length 0",
        lambda tmp: refused("metrics", *_features(tmp, **_no_rows())), "q.npz holds no rows"),
    bad("command: bias of a file without rows", "arrays of length 0",
        lambda tmp: refused("bias", _features(tmp, **_no_rows())[0]), "q.npz holds no rows"),
    bad("command: calibrate on nobody", "pid -1 in all rows of the queries", lambda tmp: refused("calibrate",
        *_features(tmp, pid=-np.ones(4, int)), "--out", tmp/"t"), "q.npz knows nobody", "--folders identity"),
    bad("command: calibrate on some unknown people", "pid -1 in a row of the queries", lambda tmp: refused("calibrate",
        *_features(tmp, pid=np.array([0, 1, -1, 3])), "--out", tmp/"t"), "1 of 4 rows of", "embed it again without"),
    bad("command: metrics of a file that is gone", "no such file", lambda tmp: refused("metrics", tmp/"a.npz",
        tmp/"b.npz"),
        "reid_lab metrics:", "does not exist"),
    bad("command: bias report into an existing folder", "`bias --out .`",
        lambda tmp: refused("bias", *_features(tmp), "--out", tmp), "exists; give --out a new folder"),
    bad("command: key that is no pair", "`--key features`", lambda tmp: refused("metrics", *_features(tmp), "--key",
        "emb"),
        "'emb' is not name=value, for example emb=features"),
    bad("command: a map that nothing shows", "`bias --map tsne`", lambda tmp: refused("bias", *_features(tmp), "--map",
        "tsne"), "--map", "give --out or --open"),
    bad("command: --dirty for a list", "`results --dirty`", lambda tmp: refused("results", "--dirty"), "--dirty is for",
        "publish"),
    bad("command: a model to inspect with", "`weights inspect --model m`", lambda tmp: refused("weights", "inspect",
        _features(tmp)[0], "--model", "bot_r50"), "--model is for", "convert"),
    bad("command: a file to inspect into", "`weights inspect a b`", lambda tmp: refused("weights", "inspect",
        *_features(tmp)), "inspect writes no file"),
    bad("command: a cache that is not there", "`cache missing`", lambda tmp: refused("cache", tmp/"missing"),
        "missing is no folder"),
    bad("command: unknown list entry", "`list models bot_tine`", lambda tmp: refused("list", "models", "bot_tine"),
        "Did you mean 'bot_tiny'"),
    bad("command: unknown World preset", "`world --preset quik`", lambda tmp: refused("world", "--preset", "quik"),
        "Did you mean 'quick'"),
    bad("run: the user's own results", "out_dir holds results.csv and log.jsonl", _mine, "no run made",
        "['log.jsonl', 'results.csv']", error=FileExistsError),
    bad("run: infinite metric", "R1 is inf", lambda tmp: _record(tmp, R1=float("inf")), "metric 'R1' is inf",
        "give NaN"),
    bad("run: list as a metric", "R1 is [1, 2]", lambda tmp: _record(tmp, R1=[1, 2]), "metric 'R1' is [1, 2]"),
    bad("run: None as a metric", "R1 is None", lambda tmp: _record(tmp, R1=None), "metric 'R1' is None",
        "give NaN"),
    bad("run: no metric at all", "an empty dict", lambda tmp: _record(tmp), "metrics={}", "at least one name"),
    bad("run: two in one folder", "a second process opens it", _two_runs, "is in use by process OURS",
        "choose another folder", error=RuntimeError),
    bad("sweep: seeds=3", "a number for a list", lambda tmp: sweep.sweep(_one, {}, seeds=3, folder=tmp),
        "seeds=3 must be a list",
        "range(3)"),
    bad("sweep: seeds=-1", "a negative number", lambda tmp: sweep.sweep(_one, {}, seeds=-1, folder=tmp),
        "seeds=-1 must be a list"),
    bad("sweep: a grid of text", "order='fixed'", lambda tmp: sweep.sweep(_one, dict(order="fixed"), folder=tmp),
        "must be a list of values"),
    bad("sweep: no value", "an empty list", lambda tmp: sweep.sweep(_one, dict(gain=[]), folder=tmp), "give no run"),
    bad("sweep: a job that returns inf", "metrics are infinite", lambda tmp: _failed(tmp, "inf"), "cannot be stored"),
    bad("sweep: a job that returns a number", "not a dict", _failed_number, "a dict or a list of dicts, not '3'"),
    bad("home: a file", "REID_LAB_HOME names a file", _home_is_a_file, "REID_LAB_HOME=", "is a file, not a folder",
        error=NotADirectoryError),
    interruption("run: Ctrl-C in a block", "KeyboardInterrupt in `with start_run`",
                 "status `interrupted`, numbers kept, no row added, the folder can be used again", _ctrl_c_in_a_block,
                 "interrupted"),
    interruption("run: its process ends", "a process ends without `finish`", "status `interrupted`",
        _a_process_that_ends,
                 "interrupted"),
    interruption("run: killed", "a process dies while it logs", "the folder is free and the run continues", _killed_run,
                 "finished"),
    interruption("run: results cannot be written", "the results are a folder", "status `failed`, numbers kept",
                 _results_cannot_be_written, "failed: its rows could not be added"),
    interruption("sweep: an outcome is cut short", "a process died while writing it",
        "that run is made again, no row is lost",
                 _truncated_outcome, "ok ok"),
    interruption("progress: its reader is gone", "the file that is followed cannot be written", "the loop goes on",
                 _reader_gone, "False01"),
]
