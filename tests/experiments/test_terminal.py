"""Sessions in a terminal: what somebody who waits for a run sees, in a clone whose path has a space and an accent"""
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from reid_lab.experiments.run import check_folder
from reid_lab.experiments.terminal import Display

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.kill, pytest.mark.skipif(os.name != "posix" or not (ROOT/"Makefile").exists(),
                                                    reason="needs a terminal and the tree")]


@pytest.fixture(scope="module")
def terminal(tool):
    "tools/terminal.py as a module"
    return tool("terminal")


def git(folder, *args):
    how = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "-c", "core.quotepath=false"]
    return subprocess.run(["git", "-C", str(folder), *how, *args], capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    "A committed copy of the tree in `a b é/reid lab`, with an environment that holds a Python and nothing else"
    if not shutil.which("git") or not shutil.which("make"): pytest.skip("needs git and make")
    folder = tmp_path_factory.mktemp("clones")/"a b é"/"reid lab"
    names = ("Makefile", "settings.ini", "setup.py", "pyproject.toml", ".gitignore", "README.md", "results", "nbs",
             "reid_lab")
    for name in names:
        folder.mkdir(parents=True, exist_ok=True)
        if (ROOT/name).is_file(): shutil.copy(ROOT/name, folder)
        else: shutil.copytree(ROOT/name, folder/name, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    python = folder/".venv"/"bin"/"python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{folder}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    sums = subprocess.run("{ cat settings.ini setup.py; pwd; } | cksum | tr ' ' '-'", shell=True, cwd=folder,
                          capture_output=True, text=True).stdout.strip()
    (folder/".venv"/f".installed-{sums}").touch()
    return folder


@pytest.fixture
def env(private_cache, tmp_path, outside_make):
    gone = ("CI", "REID_LAB_QUIET", "REID_LAB_RESULTS", "REID_LAB_HOME", "PYTHONPATH")
    env = {k: v for k, v in outside_make.items() if k not in gone}
    return dict(env, TERM="xterm-256color", REID_LAB_CACHE=str(private_cache), OMP_NUM_THREADS="1", LC_ALL="C.UTF-8",
                IPYTHONDIR=str(tmp_path/"ipython"))


SLOW = """
import asyncio, sys
from jupyter_client.manager import AsyncKernelManager
at_once = AsyncKernelManager.cleanup_resources
async def later(self, restart=False):
    await asyncio.sleep(2.5)
    await at_once(self, restart)
AsyncKernelManager.cleanup_resources = later
from reid_lab.cli.commands import main
sys.exit(main(sys.argv[1:]))
"""
STUBBORN = """
import time
for _ in range(9):
    try: time.sleep(60)
    except KeyboardInterrupt: pass
"""


def kernels(folder, seconds=10):
    "Kernels whose working folder is below a folder and that do not end soon: what an interrupted run may leave"
    end = time.monotonic() + seconds
    while (found := running(folder)) and time.monotonic() < end: time.sleep(.1)
    return found


def running(folder):
    "Processes of Python whose working folder is below a folder"
    found = []
    for p in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in os.readlink(p/"cwd") and b"python" in (p/"cmdline").read_bytes(): found.append(p.name)
        except OSError: continue
    return found


@pytest.mark.parametrize("name", ["camel", "dart3"])
def test_a_run_is_never_silent(name, clone, terminal, env):
    run = [str(clone/".venv/bin/python"), "-m", "reid_lab", "run", name, "-p", "preset=smoke", "-p", "seeds=4"]
    command = ["make", "camel", "PRESET=smoke"] if name == "camel" else run     # seeds: one is trained within a second
    done = terminal.record(command, cwd=clone, env=env)
    screen = done.screen()
    assert done.code == 0, done.text[-3000:]
    assert done.gap()[0] < 10, done.gap()  # on an idle machine 1 to 2 s; a run without display is silent for 15 or more
    assert done.warnings() == []
    run = next((clone/"runs").glob(f"run_{name}-*"))
    shown = f"runs/{run.name}"
    assert done.first(shown) < done.first("Setting up") < done.first("Training") < float("inf")
    assert " left" in done.text and "loss" not in screen
    last = screen[[s.startswith("finished in ") for s in screen].index(True):]
    assert f"notebook: {shown}/run_{name}.ipynb" in last and f"rows:     {shown}/results.csv" in last
    assert sum(s.startswith(f"figure:   {shown}/figures/{name}_main_") for s in last) == 2
    seconds = [int(part) for part in last[0].removeprefix("finished in ").split(":")]
    whole = done.first(last[0])                                 # the clock of the command, kernel and imports included
    if name == "dart3": assert whole - 5 < 60*seconds[0] + seconds[1] <= whole + 1    # `make` starts before the command
    end = screen[screen.index(next(s for s in screen if s.startswith("variant"))) - 1:]
    assert any(s.startswith("preset=smoke is a test of plumbing") for s in end) and end[2].startswith("chance")
    assert len([*end]) <= 24 and not any("gain" in s or "Resolved" in s for s in end)
    assert sum("✓" in s for s in screen) >= 4 and not [s for s in screen if "●" in s or "\x1b" in s]
    assert json.loads((run/"metrics.json").read_text())["status"] == "finished"
    nb = json.loads((run/f"run_{name}.ipynb").read_text())
    said = "".join("".join(o.get("text", "")) for c in nb["cells"] for o in c.get("outputs", []))
    assert not re.search(r"\d s left", said), "progress belongs to the terminal, not to the notebook"
    assert git(clone, "status", "--porcelain") == ""


def test_ctrl_c_is_one_line(clone, terminal, env):
    out = clone/"runs"/"stopped"
    command = [str(clone/".venv/bin/python"), "-m", "reid_lab", "run", "camel", "-p", "preset=smoke", "--out", str(out)]
    done = terminal.record(command, cwd=clone, env=env, interrupt="The data")
    screen = [s for s in done.screen() if s]
    assert done.code == 130 and done.warnings() == []
    assert screen[-1] == "reid_lab run: interrupted; what is done is kept, and continued with --out runs/stopped"
    assert sum("interrupt" in s.lower() for s in screen) == 1 and done.text.count("\x1b[?25h") == 1
    assert json.loads((out/"metrics.json").read_text())["status"] == "interrupted"
    assert kernels(clone) == []
    assert git(clone, "status", "--porcelain") == ""


def test_ctrl_c_is_one_line_where_a_kernel_takes_long_to_end(tmp_path, terminal, env):
    "The notebook client then notices that the kernel is dead, and must not complain of it"
    cells = [nbformat.v4.new_code_cell("preset = 'smoke'\nout_dir = ''", metadata=dict(tags=["parameters"])),
             nbformat.v4.new_markdown_cell("## Waiting"), nbformat.v4.new_code_cell(STUBBORN)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path/"wait.ipynb")
    out = tmp_path/"out"
    command = [sys.executable, "-c", SLOW, "run", "wait.ipynb", "--out", str(out)]
    done = terminal.record(command, cwd=tmp_path, env=dict(env, PYTHONPATH=str(ROOT)), interrupt="Waiting")
    screen = [s for s in done.screen() if s]
    assert done.code == 130 and done.warnings() == []
    assert screen[-1] == "reid_lab run: interrupted; what is done is kept, and continued with --out out"
    assert kernels(tmp_path) == []
    assert [p.name for p in out.iterdir() if p.name[0] != "."] == ["wait.ipynb"]
    check_folder(out, "wait", dict(preset="smoke", out_dir=str(out)))  # may be continued, as the line says
    with pytest.raises(FileExistsError, match="a run with other parameters"):
        check_folder(out, "wait", dict(preset="quick", out_dir=str(out)))
    shutil.copy(out/"wait.ipynb", tmp_path/"wait.ipynb")
    with pytest.raises(FileExistsError, match="files that no run made"): check_folder(tmp_path, "wait", {})


def test_a_log_has_lines_and_no_control_characters():
    from reid_lab.core.reporting import progress, report
    log = io.StringIO()
    with Display(file=log, quiet=False, every=.2):
        report("Title", run="runs/a")
        for _ in progress(range(4), "pretrain", every=0): time.sleep(.15)
    lines = log.getvalue().splitlines()
    assert lines[:2] == ["Title", "runs/a"] and "\x1b" not in log.getvalue()
    assert sum("pretrain" in s and s.startswith("[0:0") for s in lines) >= 2


def test_a_pipe_that_closes_ends_quietly(env):
    command = f'"{sys.executable}" -m reid_lab published camel I --format markdown | head -n 1'
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, cwd=ROOT,
                          env=dict(env, PYTHONPATH=str(ROOT)))
    assert done.stdout.count("\n") == 1 and done.stderr == "" and done.returncode in (0, 141)


def test_the_recorder_sees_what_a_terminal_shows(terminal, env):
    code = "import time; print('a\\nb', flush=True); time.sleep(.5); print('\\x1b[1Ac\\x1b[K\\nd')"
    done = terminal.record([sys.executable, "-c", code], env=env)
    assert done.screen() == ["a", "c", "d", ""] and done.gap()[0] > .3 and done.code == 0
