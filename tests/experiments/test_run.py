"Runs: what they leave behind, what they keep to themselves, and what they ran on"
import gc
import getpass
import importlib
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from IPython.core.formatters import DisplayFormatter

import reid_lab.experiments.run as runs
from reid_lab.experiments.notebooks import Finished
from reid_lab.experiments.run import RUN_FILE, environment, git_commit, own_version, start_run
from reid_lab.results.endings import end_markdown
from reid_lab.results.rows import load_results


def test_a_run_leaves_what_it_says(tmp_path):
    with start_run("run_demo", dict(preset="quick", seed=3, lr=.1), tmp_path/"r", results=tmp_path/"runs.csv") as run:
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


def shown(x):
    "What a notebook shows of a value, as Markdown and as text"
    data, _ = DisplayFormatter().format(x)
    return data["text/markdown"], data["text/plain"]


def test_a_run_shows_itself_in_a_notebook(tmp_path):
    "While it runs, when it has failed and when it is finished; never its parameters, which may name folders"
    run = start_run("run_demo", dict(preset="quick", seed=3, data_root=str(tmp_path)), tmp_path/"r",
                    results=tmp_path/"runs.csv")
    for variant, score in (("BoT", 50.), ("BoT + A", 53.)):
        run.record(dict(mAP=score), dataset="world-quick", variant=variant, selection="none")
    assert shown(run) == ("Run `r`: running, 2 rows.", "Run('r', 'running')")
    run.finish()
    markdown, text = shown(run)
    assert markdown.startswith("Run `r`: finished, 2 rows.\n\n") and end_markdown(run.ending) in markdown
    assert "53.0" in markdown and str(tmp_path) not in markdown + text
    kept = Finished(tmp_path/"x.ipynb", run.folder, json.loads((tmp_path/"r"/"metrics.json").read_text()))
    assert shown(kept) == (markdown, "Finished('r')")
    failed = start_run("run_demo", {}, tmp_path/"f")
    failed.end("failed: ValueError: no <b>image</b>")
    assert "<b>" not in shown(failed)[0] and shown(failed)[0].startswith("Run `f`: failed: ValueError: no ")


def test_result_rows_name_no_folder_of_the_machine(tmp_path):
    given = dict(preset="quick", seed=0, data_root=f"{tmp_path/'cuhk'},{tmp_path/'icfg'}", out_dir=str(tmp_path/"r"),
                 models=["bot_tiny", str(tmp_path/"mine")])
    with start_run("run_demo", given, results=tmp_path/"runs.csv") as run:
        run.record(dict(R1=50.), dataset="world", weights=str(tmp_path/"vit.pth"))
    assert load_results(tmp_path/"runs.csv").parameters[0] == dict(
        preset="quick", seed=0, data_root="cuhk,icfg", models=["bot_tiny", "mine"], weights="vit.pth")
    assert json.loads((tmp_path/"r"/"metrics.json").read_text())["params"] == dict(
        given, data_root="cuhk,icfg", models=["bot_tiny", "mine"], out_dir="r")
    assert json.loads((tmp_path/"r"/RUN_FILE).read_text())["params"] == given     # for a rerun


def test_a_failed_run_keeps_its_numbers_but_adds_no_row(tmp_path):
    with pytest.raises(RuntimeError), start_run("run_demo", {}, tmp_path/"r", results=tmp_path/"runs.csv") as run:
        run.record(dict(R1=50.), dataset="world")
        raise RuntimeError("loss is NaN")
    saved = json.loads((tmp_path/"r"/"metrics.json").read_text())
    assert saved["status"] == "failed: RuntimeError: loss is NaN" and saved["rows"][0]["metrics"] == dict(R1=50)
    assert not (tmp_path/"runs.csv").exists()


def test_a_folder_used_again_starts_a_new_log(tmp_path):
    for _ in range(2): start_run("run_demo", {}, tmp_path).log(step=0)
    assert len((tmp_path/"log.jsonl").read_text().splitlines()) == 1
    start_run("run_demo", {}, tmp_path, resume=True).log(step=1)
    assert len((tmp_path/"log.jsonl").read_text().splitlines()) == 2


def test_smoke_runs_stay_out_of_the_results(tmp_path, monkeypatch):
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    monkeypatch.delenv("REID_LAB_RESULTS", raising=False)
    for preset in ("smoke", "quick"):
        with start_run("run_demo", dict(preset=preset)) as run: run.record(dict(R1=1.), dataset="world")
        assert run.folder.parent == tmp_path/"runs"
    assert not (tmp_path/"results").exists()   # ours, to which no run adds
    assert load_results().preset.tolist() == ["quick"]
    assert start_run("run_demo", {}).folder != start_run("run_demo", {}).folder


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
    found = environment()
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
    assert git_commit(tmp_path) == ""
    git("init", "-q")
    assert git_commit(tmp_path) == ""     # no commit yet
    (tmp_path/"results").mkdir()
    for name in ("code.py", "results/runs.csv"): (tmp_path/name).write_text("1")
    git("add", ".")
    git("commit", "-qm", "one")
    head = git("rev-parse", "HEAD")[:10]
    assert git_commit(tmp_path) == head
    (tmp_path/"results"/"runs.csv").write_text("2")
    (tmp_path/"new.py").write_text("1")
    assert git_commit(tmp_path) == head
    (tmp_path/"code.py").write_text("2")
    assert git_commit(tmp_path) == head + "+"


def test_a_notebook_that_was_run_and_saved_is_no_changed_file(tmp_path):
    "Outputs, counts, values of parameters and an empty last cell are none of the code; a changed cell is"
    if not shutil.which("git"): pytest.skip("git is not installed")
    def git(*args):
        how = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", "-C", str(tmp_path), *how, *args], capture_output=True, check=True)
    def code(source, **more):
        empty = dict(cell_type="code", execution_count=None, id="a", metadata={}, outputs=[])
        return {**empty, "source": source, **more}
    def save(*cells):
        text = json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5))
        (tmp_path/"nbs"/"é.ipynb").write_text(text, encoding="utf-8")
    parameters = dict(tags=["parameters"])
    (tmp_path/"nbs").mkdir()
    save(code("seed = 0", metadata=parameters), code(["a = 1\n", "b = 2"]))
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    run = dict(execution_count=3, outputs=[dict(output_type="stream", name="stdout", text="1")])
    save(code("seed = 5", metadata=parameters), code("a = 1\nb = 2", **run), code("", id="new"))
    assert not git_commit(tmp_path).endswith("+") and not git_commit(tmp_path/"nbs").endswith("+")
    git("add", ".")
    assert not git_commit(tmp_path).endswith("+")       # staged neither
    for cells in ([code("seed = 5", metadata=parameters), code("a = 1\nb = 3")],
                  [code("seed = 0", metadata=parameters)], [code("seed = 0"), code("a = 1\nb = 2")]):
        save(*cells)
        assert git_commit(tmp_path).endswith("+"), cells
    (tmp_path/"nbs"/"é.ipynb").unlink()
    assert git_commit(tmp_path).endswith("+")


@pytest.fixture
def cell(monkeypatch):
    "A kernel, and how another of its cells begins"
    shell = SimpleNamespace(execution_count=1)
    monkeypatch.setattr(runs, "_shell", lambda: shell)
    def begin(): shell.execution_count += 1
    return begin


def test_a_cell_that_is_run_again_replaces_its_rows(tmp_path, cell):
    run = start_run("run_demo", dict(preset="quick", seed=3), tmp_path/"r", results=tmp_path/"runs.csv")
    for mAP in (40., 50.):
        cell()
        for seed in (0, 0, 1): run.record(dict(mAP=mAP), dataset="world", variant="a", seed=seed)
        run.notes += ["one camera"]
    assert [row["metrics"]["mAP"] for row in run.rows] == [50, 50, 50]     # two in one cell are two
    cell()
    run.record(dict(mAP=60.), dataset="world", variant="b")
    run.finish()
    assert load_results(tmp_path/"runs.csv").mAP.tolist() == [50, 50, 50, 60]
    assert json.loads((tmp_path/"r"/"metrics.json").read_text())["notes"] == ["one camera"]


def test_two_cells_that_score_one_variant_with_other_parameters_are_two_rows(tmp_path, monkeypatch):
    "`extra` may hold seconds, so that a cell is known by its name in the editor, or by its source"
    shell = SimpleNamespace(execution_count=0, user_ns=dict(In=[""]), cell_id="")
    shell.get_parent = lambda: dict(metadata=dict(cellId=shell.cell_id) if shell.cell_id else {})
    monkeypatch.setattr(runs, "_shell", lambda: shell)
    run = start_run("run_demo", dict(preset="quick", seed=0), tmp_path/"r", results=tmp_path/"runs.csv")

    def run_cell(source, mAP, cell_id="", **extra):
        shell.execution_count += 1
        shell.user_ns["In"].append(source)
        shell.cell_id = cell_id
        run.record(dict(mAP=mAP), dataset="world", variant="a", **extra)
        return [row["metrics"]["mAP"] for row in run.rows]
    assert run_cell("first", 40., k=1) == [40]
    assert run_cell("second", 50., k=2) == [40, 50]         # another cell, other parameters
    assert run_cell("first", 41., k=1) == [41, 50]
    assert run_cell("second", 51., k=2, train_s=3.) == [41, 51]     # the same cell took other seconds
    assert run_cell("first, edited", 42., k=1) == [42, 51]
    assert run_cell("third", 60., "x", k=3) == [42, 51, 60]
    assert run_cell("third, edited", 61., "x", k=4) == [42, 51, 61]     # JupyterLab says which cell it is


def test_the_next_command_keeps_what_was_chosen(tmp_path):
    from helpers.notebooks import notebook
    folder = tmp_path/"r"
    given = dict(preset="smoke", seed=0, model="bot_r50", data_root=str(tmp_path), methods=(), out_dir=str(folder))
    run = start_run("run_demo", given, folder, results=tmp_path/"runs.csv")
    cell = "preset = 'quick'\nseed = 0\nmodel = ''\ndata_root = ''\nmethods = ''\nout_dir = ''"
    notebook(folder/"run_demo.ipynb", parameters=cell)
    run.record(dict(mAP=40.), dataset="world", variant="a")
    run.finish()
    assert run.ending.command == "reid_lab run demo -p preset=quick -p model=bot_r50 -p data_root=FOLDER"


def test_rows_of_a_program_are_never_replaced(tmp_path):
    run = start_run("run_demo", {}, tmp_path/"r", results=tmp_path/"runs.csv")
    for mAP in (40., 50.): run.record(dict(mAP=mAP), dataset="world")
    assert len(run.rows) == 2


def test_a_notebook_that_is_run_again_takes_a_folder_beside(tmp_path, cell, capsys):
    "Rows of the first run stay, and none is added under its name"
    def whole(**more):
        run = start_run("run_demo", dict(preset="quick", seed=0, out_dir=str(tmp_path/"r"), **more),
                        results=tmp_path/"runs.csv")
        run.record(dict(mAP=40.), dataset="world")
        return run
    whole().finish()
    run = whole()
    assert run.folder.name == "r-2" and run.params["out_dir"] == str(run.folder)
    assert "the run in r is finished and stays as it is; this one is in r-2" in capsys.readouterr().out
    assert whole().folder.name == "r-2", "it was not finished, and the parameters are the same"
    other = whole(k=3)
    assert other.folder.name == "r-3", "r-2 has other parameters"
    other.finish()
    assert load_results(tmp_path/"runs.csv").run.tolist() == ["r", "r-3"]
    mine = tmp_path/"mine"
    mine.mkdir()
    (mine/"table.csv").write_text("mine")
    with pytest.raises(FileExistsError, match="no run made"): start_run("run_demo", {}, mine)


def test_a_run_whose_cell_is_run_again_does_not_seem_to_go_on(tmp_path, cell):
    run = start_run("run_demo", {}, tmp_path/"a")
    run = start_run("run_demo", {}, tmp_path/"b")
    gc.collect()
    status = {name: json.loads((tmp_path/name/"metrics.json").read_text())["status"] for name in "ab"}
    assert status == dict(a="interrupted", b="running") and run.status == "running"


@pytest.mark.parametrize("slow", ["rev-parse", "diff"])
def test_a_git_that_does_not_answer_leaves_the_commit_unknown(slow, monkeypatch, tmp_path):
    def run(command, timeout, **how):
        if slow in command: raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, 0, "0123456789\n", "")
    monkeypatch.setattr(subprocess, "run", run)
    assert git_commit(tmp_path) == ""


def test_a_finished_run_is_added_to_by_the_parameter_that_is_named(tmp_path):
    folder = tmp_path/"r"
    start_run("demo", dict(preset="smoke"), out_dir=folder).finish()
    with pytest.raises(FileExistsError, match=r"holds a finished run; name a new folder.*start_run\(resume=True\)"):
        start_run("demo", dict(preset="smoke"), out_dir=folder)
    start_run("demo", dict(preset="smoke"), out_dir=folder, resume=True).finish()


def test_the_names_of_the_last_release(tmp_path):
    from reid_lab.experiments import run as module
    with pytest.warns(DeprecationWarning, match="RECORD is called RUN_FILE"): assert module.RECORD == RUN_FILE
    with pytest.warns(DeprecationWarning, match="fresh= is called may_be_finished="):
        module.check_folder(tmp_path, "demo", fresh=True)


def test_the_version_of_the_users_code(tmp_path):
    (tmp_path/"mylab").mkdir()
    file = tmp_path/"mylab"/"losses.py"
    file.write_text("RATE = 1.\n")
    def git(*args): subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *args], cwd=tmp_path/"mylab",
                                   check=True, capture_output=True)
    alone = own_version([file])
    assert re.fullmatch(r"losses.py #[0-9a-f]{8}", alone) and own_version([file, file]) == alone
    file.write_text("RATE = 2.\n")
    assert own_version([file]) != alone and own_version([]) == own_version([__file__]) == ""    # in this checkout
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "a")
    assert re.fullmatch(r"mylab [0-9a-f]{10}", own_version([file]))
    (tmp_path/"mylab"/"new.py").write_text("")
    assert own_version([tmp_path/"mylab"/"new.py"]).endswith("+")       # nobody has committed it
    file.write_text("RATE = 3.\n")
    assert re.fullmatch(r"mylab [0-9a-f]{10}\+", own_version([file]))


def test_a_row_carries_the_version_of_the_users_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path/"mine_in_a_row.py").write_text("RATE = 1.\n")
    importlib.import_module("mine_in_a_row")
    try:
        with start_run("n", dict(preset="quick"), tmp_path/"r", tmp_path/"r.csv") as run:
            run.record(dict(mAP=1.), "world")
    finally: del sys.modules["mine_in_a_row"]
    assert "mine_in_a_row.py #" in load_results(tmp_path/"r.csv").env[0]["own"]


def test_a_base_that_is_not_there_loses_no_row(tmp_path):
    run = start_run("n", dict(preset="quick"), tmp_path/"run", results=tmp_path/"r.csv")
    run.record(dict(mAP=50., R1=40.), "world-quick", variant="ours")
    assert len(run.finish(base="typo")) == 1 and len(load_results(tmp_path/"r.csv")) == 1
    assert any("base='typo'" in note for note in run.ending.notes)
