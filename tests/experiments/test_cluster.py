"Sweeps on a Dask cluster of two workers and through submitit: killed workers lose and double no row"
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reid_lab.cli.commands import main
from reid_lab.experiments import sweep as X
from reid_lab.experiments.cluster import read_backend

pytestmark = pytest.mark.kill

RECORD = """import time
from reid_lab.experiments.run import start_run
with start_run('demo', dict(preset=preset, seed=seed), out_dir) as run:
    run.record(dict(R1=40. + seed), dataset='world-smoke', selection='none')"""


def leave_trace(folder, what, seed):
    "A further line with this process's number; a reader never finds the file without its last line"
    path = Path(folder)/f"{what}-{seed}"
    earlier = path.read_text() if path.exists() else ""
    new = Path(folder)/f".{what}-{seed}"
    new.write_text(f"{earlier}{os.getpid()}\n")
    new.replace(path)


def slow(gain, seed, trace):
    "Leaves a trace when it begins and when it ends"
    leave_trace(trace, "begun", seed)
    time.sleep(.4)
    leave_trace(trace, "ended", seed)
    return [dict(split="val", R1=seed), dict(split="test", R1=seed + gain)]


def die(seed):
    os.kill(os.getpid(), signal.SIGKILL) if seed == 1 else None
    return dict(R1=seed)


def notebook(path):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook
    given = "preset = 'quick'\nseed: int | None = 0\nout_dir = ''"
    parameters = new_code_cell(given, metadata=dict(tags=["parameters"]))
    nbformat.write(new_notebook(cells=[parameters, new_code_cell(RECORD)]), path)
    return path


@pytest.fixture(scope="module")
def cluster():
    "Two worker processes on this machine; the session's default client"
    distributed = pytest.importorskip("distributed")
    how = dict(threads_per_worker=1, memory_limit=0, dashboard_address=None)
    with distributed.LocalCluster(2, **how) as made, distributed.Client(made) as client: yield client


def test_a_worker_killed_in_the_middle_loses_and_doubles_no_row(cluster, tmp_path):
    trace = tmp_path/"trace"
    trace.mkdir()
    def kill():
        "One of the two that work, when a third point has begun"
        working = []
        while not working:
            time.sleep(.01)
            begun = sorted(trace.glob("begun-*"))
            if len(begun) >= 3:
                working = [p for p in begun if not (trace/p.name.replace("begun", "ended")).exists()]
        seed, pid = working[-1].name.split("-")[1], working[-1].read_text().split()[-1]
        killed.append((int(seed), int(pid)))
        os.kill(int(pid), signal.SIGKILL)
    killed, killer = [], threading.Thread(target=kill)
    killer.start()
    frame = X.sweep(slow, dict(gain=[5]), seeds=range(8), folder=tmp_path/"s", backend="dask", trace=str(trace))
    killer.join(10)
    assert frame.status.tolist() == ["ok"]*16
    assert list(zip(frame.seed, frame.split, frame.R1)) == [
        (s, split, s + gain) for s in range(8) for split, gain in (("val", 0), ("test", 5))]
    pids = {int(p.name.split("-")[1]): p.read_text().split() for p in trace.glob("begun-*")}
    seed, pid = killed[0]
    assert len(pids[seed]) == 2 and pids[seed][0] == str(pid) and len(set(sum(pids.values(), []))) >= 2
    assert len(list((tmp_path/"s").glob("*.json"))) == 8
    again = X.sweep(slow, dict(gain=[5]), seeds=range(8), folder=tmp_path/"s", trace=str(trace))
    assert again.equals(frame) and len(list(trace.glob("ended-*"))) == 8


def test_a_point_that_kills_its_workers_costs_no_other(cluster, tmp_path):
    frame = X.sweep(die, {}, seeds=range(3), folder=tmp_path/"s", backend="dask")
    assert frame.status.tolist() == ["ok", "lost", "ok"] and frame.R1.tolist()[::2] == [0, 2]
    assert "KilledWorker" in frame.error[1] and "call again" in frame.error[1]


def test_notebooks_on_dask(cluster, tmp_path):
    how = dict(folder=tmp_path/"s", backend="dask", preset="smoke")
    frame = X.sweep(notebook(tmp_path/"n.ipynb"), [{}], seeds=(1, 2), **how)
    assert frame.R1.tolist() == [41, 42] and frame.status.tolist() == ["ok", "ok"]


def test_jobs_through_submitit_from_the_command_line(tmp_path, capsys):
    pytest.importorskip("submitit")
    args = ["sweep", str(notebook(tmp_path/"n.ipynb")), "--seeds", "3", "--out", str(tmp_path/"s"),
            "-p", "preset=smoke", "--backend", "slurm:cluster=local,poll=0.1,timeout_min=5"]
    assert main(args) == 0 and "43.0" in capsys.readouterr().out
    (outcome,) = (tmp_path/"s").glob("*.json")
    assert json.loads(outcome.read_text())["status"] == "ok" and any((tmp_path/"s"/"slurm").iterdir())


@pytest.mark.parametrize("starts, restarts, code", [(0, 1, 143), (0, 0, 0), (1, 1, 0), (1, 2, 143)])
def test_a_preempted_job_answers_only_if_it_does_not_start_again(tmp_path, starts, restarts, code):
    "SIGTERM has ended the kernel, too, whose answer is a failure; `scontrol` counts the starts"
    slurm = tmp_path/"scontrol"
    slurm.write_text(f'#!/bin/sh\n[ "$*" = "show job 7" ] && echo "JobId=7 Restarts={restarts} BatchFlag=1"\n')
    slurm.chmod(0o755)
    script = ("import os, signal\nfrom reid_lab.experiments.cluster import Requeued\n"
              "print(Requeued(lambda: os.kill(os.getpid(), signal.SIGTERM) or 'died')())")
    env = dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}", SLURM_JOB_ID="7", SLURM_RESTART_COUNT=str(starts))
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env)
    assert (run.returncode, run.stdout.strip()) == (code, "" if code else "died"), run.stderr


def test_what_cannot_be_used_says_why(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="slurm:cluster=local"):
        X.sweep(die, {}, seeds=[0], folder=tmp_path/"s", backend="slurm")
    with pytest.raises(ValueError, match="Did you mean 'dask'"): X.sweep(die, {}, folder=tmp_path/"s", backend="dusk")
    found = importlib.util.find_spec
    gone = lambda name, *a: None if name in ("distributed", "submitit") else found(name, *a)
    monkeypatch.setattr(importlib.util, "find_spec", gone)
    for name, library in (("dask", "distributed"), ("slurm", "submitit")):
        line = rf"{library}: pip install 'reid_lab\[cluster\]'"
        with pytest.raises(ModuleNotFoundError, match=line): read_backend(name)
    with pytest.raises(ModuleNotFoundError):
        X.sweep(die, {}, seeds=[0], folder=tmp_path/"s", execution="--backend slurm")
    monkeypatch.setenv("REID_LAB_BACKEND", "slurm")
    with pytest.raises(ModuleNotFoundError), pytest.warns(DeprecationWarning, match="--backend slurm"):
        X.sweep(die, {}, seeds=[0], folder=tmp_path/"s")
    assert read_backend("loky") == ("loky", {})
