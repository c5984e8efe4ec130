"Parameters, run folders, notebooks through papermill, sweeps"
import getpass
import importlib
import importlib.util
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Literal, Optional

import nbformat
import pytest
from helpers.notebooks import RECORD, notebook
from nbformat.v4 import new_markdown_cell

from reid_lab.experiments import notebooks, params, run as run_folders, sweep
from reid_lab.results.rows import load_results


class Demo(params.Params):
    "Parameters of the tests"
    preset: Literal["smoke", "quick"] = "quick"
    lr: float = 1e-3
    steps: int = 10
    root: Optional[str] = None
    k: Optional[int] = None
    ks: tuple[int, ...] = (1, 5)
    amp: bool = False


def train(gain, seed):
    "A job of a sweep"
    if gain == "die": os._exit(1)
    if gain == "fail": raise ArithmeticError("no luck")
    return [dict(split="val", R1=seed), dict(split="test", R1=seed + gain)]


def quick_train(gain, seed): return dict(R1=gain + seed, threads=os.environ.get("OMP_NUM_THREADS"))


@pytest.mark.parametrize("given, want", [
    (dict(lr="1e-4"), 1e-4), (dict(steps="1e3"), 1000), (dict(steps=7.0), 7), (dict(root="None"), None),
    (dict(root="a/b"), "a/b"), (dict(k="none"), None), (dict(k="2e1"), 20), (dict(ks="1,10"), (1, 10)),
    (dict(ks="[1, 2]"), (1, 2)), (dict(ks=[3]), (3,)), (dict(amp="True"), True), (dict(amp="0"), False)])


def test_values_from_a_command_line(given, want):
    value = getattr(Demo(**given), next(iter(given)))
    assert value == want and type(value) is type(want)


@pytest.mark.parametrize("given, message", [
    (dict(prest="smoke"), "Did you mean 'preset'"), (dict(preset="full"), "preset='full'"),
    (dict(steps="many"), "steps='many'"), (dict(steps=1.5), "steps=1.5"), (dict(lr=None), "lr=None"),
    (dict(ks="1,x"), "ks.1='x'"), (dict(amp="maybe"), "amp='maybe'")])


def test_wrong_values_are_named(given, message):
    with pytest.raises(ValueError, match=message): Demo(**given)


def test_parameters_are_frozen():
    with pytest.raises(ValueError, match="frozen"): Demo().lr = 2.


def test_a_plain_papermill_typo_is_fatal_in_the_notebook():
    assert Demo.from_notebook(dict(preset="smoke", _i="x", In=[], Demo=Demo)).preset == "smoke"
    with pytest.raises(ValueError, match="parameter='prest' is not known"):
        Demo.from_notebook(dict(preset="quick", prest="smoke"))


def test_parameters_cell(tmp_path):
    assert params.notebook_parameters(notebook(tmp_path/"a.ipynb")) == dict(preset="quick", seed=0, out_dir="")
    for bad, message in ((dict(tags=()), "0 cells tagged"), (dict(parameters="x = f()"), "'x' is not a literal")):
        with pytest.raises(ValueError, match=message): params.notebook_parameters(notebook(tmp_path/"b.ipynb", **bad))


def test_an_experiment_is_its_notebook(tmp_path):
    cell = ("preset = 'quick'      # smoke, quick\nlr: float = 1e-3\nname = '#1'  # of the run # or not\n"
            "sizes = (1,\n    2)  # two lines")
    nb = nbformat.read(notebook(tmp_path/"run_new.ipynb", parameters=cell), 4)
    x = notebooks.read_experiment(tmp_path/"run_new.ipynb")
    assert (x.name, x.title, x.about, x.studies) == ("new", "run_new", "", {})
    assert x.parameters == dict(preset="quick", lr=1e-3, name="#1", sizes=(1, 2))
    assert x.notes == dict(preset="smoke, quick", name="of the run # or not", sizes="two lines")
    nb.cells.insert(0, new_markdown_cell("# A title\n> And a line"))
    nbformat.write(nb, tmp_path/"run_new.ipynb")
    assert notebooks.read_experiment(tmp_path/"run_new.ipynb").describe().splitlines()[:3] == [
        "new: A title", "And a line", "parameters:"]


def test_a_new_notebook_needs_no_list(tmp_path, monkeypatch, capsys):
    from reid_lab.cli.commands import main
    (tmp_path/"nbs"/"experiments").mkdir(parents=True); (tmp_path/"settings.ini").write_text("")
    notebook(tmp_path/"nbs"/"experiments"/"run_new.ipynb"); notebook(tmp_path/"nbs"/"experiments"/"some_maps.ipynb")
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    assert list(notebooks.experiments()) == ["new", "some_maps"] and notebooks.find_notebook("new") == notebooks.experiments()["new"].path
    with pytest.raises(SystemExit): main(["run", "--help"])
    assert "some_maps" in capsys.readouterr().out
    assert main(["list", "experiments", "new"]) == 0 and "preset = 'quick'" in capsys.readouterr().out


@pytest.mark.parametrize("name", notebooks.experiments())
def test_records_of_the_experiments(name):
    x = notebooks.experiments()[name]
    assert notebooks.find_notebook(name) == x.path and x.title != x.path.stem and x.about and x.parameters["preset"] == "quick"
    assert set(x.notes) == set(x.parameters), "each parameter says behind it what it is"
    recipe = importlib.util.find_spec(f"reid_lab.recipes.{name}")
    studies = getattr(importlib.import_module(recipe.name), "STUDIES", None) if recipe else None
    assert list(x.studies) == list(studies or ())
    assert (f"studies: {', '.join(x.studies)}" in x.describe()) == bool(studies)


def test_a_run_leaves_what_it_says(tmp_path):
    with run_folders.start_run("run_demo", dict(preset="quick", seed=3, lr=.1), tmp_path/"r", results=tmp_path/"runs.csv") as run:
        run.log(step=0, loss=1.)
        run.record(dict(R1=50.), dataset="world", variant="a", selection="val R1", images_seen=64, eps=.5)
        run.record(dict(R1=51.), dataset="world", variant="b", seed=9)
        assert not (tmp_path/"runs.csv").exists()  # only a finished run enters the results
    frame = load_results(tmp_path/"runs.csv")
    assert frame.seed.tolist() == [3, 9] and frame.parameters[0] == dict(preset="quick", seed=3, lr=.1, eps=.5)
    assert frame.env[0]["python"] and frame.selection[0] == "val R1" and frame.wall_s[0] >= 0
    saved = json.loads((tmp_path/"r"/"metrics.json").read_text())
    assert saved["status"] == "finished" and [r["metrics"]["R1"] for r in saved["rows"]] == [50, 51]
    assert run.finish() == [] and len(load_results(tmp_path/"runs.csv")) == 2


def test_result_rows_name_no_folder_of_the_machine(tmp_path):
    given = dict(preset="quick", seed=0, data_root=f"{tmp_path/'cuhk'},{tmp_path/'icfg'}", out_dir=str(tmp_path/"r"),
                 models=["bot_tiny", str(tmp_path/"mine")])
    with run_folders.start_run("run_demo", given, results=tmp_path/"runs.csv") as run:
        run.record(dict(R1=50.), dataset="world", weights=str(tmp_path/"vit.pth"))
    assert load_results(tmp_path/"runs.csv").parameters[0] == dict(
        preset="quick", seed=0, data_root="cuhk,icfg", models=["bot_tiny", "mine"], weights="vit.pth")
    assert json.loads((tmp_path/"r"/"metrics.json").read_text())["params"] == given


def test_a_failed_run_keeps_its_numbers_but_adds_no_row(tmp_path):
    with pytest.raises(RuntimeError), run_folders.start_run("run_demo", {}, tmp_path/"r", results=tmp_path/"runs.csv") as run:
        run.record(dict(R1=50.), dataset="world")
        raise RuntimeError("loss is NaN")
    saved = json.loads((tmp_path/"r"/"metrics.json").read_text())
    assert saved["status"] == "failed: RuntimeError: loss is NaN" and saved["rows"][0]["metrics"] == dict(R1=50)
    assert not (tmp_path/"runs.csv").exists()


def test_a_folder_used_again_starts_a_new_log(tmp_path):
    for _ in range(2): run_folders.start_run("run_demo", {}, tmp_path).log(step=0)
    assert len((tmp_path/"log.jsonl").read_text().splitlines()) == 1
    run_folders.start_run("run_demo", {}, tmp_path, resume=True).log(step=1)
    assert len((tmp_path/"log.jsonl").read_text().splitlines()) == 2


def test_smoke_runs_stay_out_of_the_results(tmp_path, monkeypatch):
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    monkeypatch.delenv("REID_LAB_RESULTS", raising=False)
    for preset in ("smoke", "quick"):
        with run_folders.start_run("run_demo", dict(preset=preset)) as run: run.record(dict(R1=1.), dataset="world")
        assert run.folder.parent == tmp_path/"runs"
    assert not (tmp_path/"results").exists()   # ours, to which no run adds
    assert load_results().preset.tolist() == ["quick"]
    assert run_folders.start_run("run_demo", {}).folder != run_folders.start_run("run_demo", {}).folder


def test_environment_names_no_host_user_or_folder(monkeypatch):
    "On a machine whose names are unmistakable"
    host, user, u = "host-of-the-test", "user-of-the-test", platform.uname()
    told = platform.uname_result(u.system, host, u.release, u.version, u.machine)
    monkeypatch.setattr(platform, "uname", lambda: told)
    monkeypatch.setattr(platform, "_platform_cache", {})
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(sysname=u.system, nodename=host, machine=u.machine))
    for name in ("USER", "LOGNAME", "USERNAME"): monkeypatch.setenv(name, user)
    monkeypatch.setenv("HOME", f"/{user}")
    assert platform.node() == host and getpass.getuser() == user     # the disguise works
    found = run_folders.environment()
    text = json.dumps(found)
    for private in (host, user, sys.prefix, sys.executable): assert private not in text
    assert found["python"] == platform.python_version() and found["cores"] >= 1 and found["cpu"]
    assert found["platform"].startswith(platform.system()) and "torch" in found


def test_the_commit_of_a_checkout(tmp_path):
    "Ten digits, a `+` for edited files, results and new files apart; nothing outside a checkout"
    def git(*args):
        how = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        out = subprocess.run(["git", "-C", str(tmp_path), *how, *args], capture_output=True, text=True, check=True)
        return out.stdout.strip()
    if not shutil.which("git"): pytest.skip("git is not installed")
    assert run_folders.git_commit(tmp_path) == ""
    git("init", "-q")
    assert run_folders.git_commit(tmp_path) == ""     # no commit yet
    (tmp_path/"results").mkdir()
    for name in ("code.py", "results/runs.csv"): (tmp_path/name).write_text("1")
    git("add", "."); git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")[:10]
    assert run_folders.git_commit(tmp_path) == head
    (tmp_path/"results"/"runs.csv").write_text("2"); (tmp_path/"new.py").write_text("1")
    assert run_folders.git_commit(tmp_path) == head
    (tmp_path/"code.py").write_text("2")
    assert run_folders.git_commit(tmp_path) == head + "+"


def test_running_a_notebook(tmp_path):
    done = notebooks.run_notebook(notebook(tmp_path/"n.ipynb", RECORD), tmp_path/"out", preset="smoke", params=dict(seed=2),
                          threads=1)
    assert done.rows == [dict(variant="", dataset="world-smoke", split="test", R1=42)]
    assert done.path == tmp_path/"out"/"n.ipynb" and done.metrics["params"]["preset"] == "smoke"
    with pytest.raises(ValueError, match="Did you mean 'preset'"): notebooks.run_notebook(tmp_path/"n.ipynb", prest="smoke")


@pytest.mark.parametrize("end, why", [("os.kill(os.getpid(), 9)", "out of memory"),
                                      ("os.kill(os.getpid(), 15); input()", "ended from outside .SIGTERM"),
                                      ("os._exit(9)", "exit status 9")])


def test_what_ended_a_kernel_is_told_by_its_status(end, why, tmp_path):
    with pytest.raises(RuntimeError, match=why):
        notebooks.run_notebook(notebook(tmp_path/"n.ipynb", f"import os; {end}"), tmp_path/"o")


def test_sweep_resumes_and_collects_failures(tmp_path):
    first = sweep.sweep(train, dict(gain=[1, "fail"]), seeds=(0, 1), n_jobs=1, folder=tmp_path)
    assert first.status.tolist() == ["ok"]*4 + ["failed"]*2 and "no luck" in first.error.iloc[-1]
    assert first[first.split == "test"].R1.tolist() == [1, 2]
    kept = {f: f.stat().st_mtime_ns for f in tmp_path.iterdir() if '"ok"' in f.read_text()}
    more = sweep.sweep(train, dict(gain=[1]), seeds=(0, 1, 2), n_jobs=1, folder=tmp_path)
    assert more[more.split == "test"].R1.tolist() == [1, 2, 3]
    assert all(f.stat().st_mtime_ns == t for f, t in kept.items())
    sweep.sweep(train, dict(gain=[1]), seeds=(0,), n_jobs=1, folder=tmp_path, fresh=True)
    assert sum(f.stat().st_mtime_ns == t for f, t in kept.items()) == len(kept) - 1


def undefined(seed): return dict(R1=.5, nmi=float("nan"))


def test_a_metric_that_no_run_defines_is_nan(tmp_path):
    "JSON holds null in its place; a column of None would be no number to `record`"
    for _ in "ab":                                                       # run, then read again
        f = sweep.sweep(undefined, [{}], seeds=(0, 1), n_jobs=1, folder=tmp_path)
        assert f.nmi.dtype == float and f.nmi.isna().all() and f.R1.tolist() == [.5, .5]


def test_sweep_in_processes_survives_one_that_dies(tmp_path):
    good = sweep.sweep(quick_train, dict(gain=[1, 2]), seeds=(0,), n_jobs=2, folder=tmp_path/"a")
    assert good.R1.tolist() == [1, 2] and set(good.threads.astype(str)) == {"1"}
    bad = sweep.sweep(train, [dict(gain="die")], seeds=(0,), n_jobs=2, folder=tmp_path/"b")
    assert bad.status.tolist() == ["lost"] and "out of memory" in bad.error[0]


def test_sweep_of_a_notebook_in_processes(tmp_path):
    frame = sweep.sweep(notebook(tmp_path/"n.ipynb", RECORD), [{}], seeds=(1, 2), n_jobs=2, folder=tmp_path/"s",
                    preset="smoke")
    assert frame.R1.tolist() == [41, 42] and frame.status.tolist() == ["ok", "ok"]
    with pytest.raises(ValueError, match="parameter='rl'"):
        sweep.sweep(tmp_path/"n.ipynb", dict(rl=[1]), folder=tmp_path/"s")
