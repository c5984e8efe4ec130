"""The four uses of the read-me, as somebody goes through them in a shell: no data, crops, features, and carrying on.

The first three run the installed package, in an empty folder and with an empty home; the last works in a clone.
Seconds of each step, by the clock and of the processor, are printed (`-s`) and written to `four_uses.txt` in the
temporary folder of the session; no test asserts them.
"""
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.whole, pytest.mark.slow,
              pytest.mark.skipif(not (ROOT/"setup.py").exists(), reason="needs the source tree")]
OUTSIDE = ("PYTHONPATH", "REID_LAB_CACHE", "REID_LAB_HOME", "REID_LAB_RESULTS", "REID_LAB_DATA", "REID_LAB_QUIET",
           "MPLBACKEND")


def cpu_of_children():
    "Seconds that all processes which this one has started and that have ended spent computing"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Shell:
    "Commands in a folder, each timed"
    def __init__(self, use, folder, report, **env):
        self.use = use
        self.folder = folder
        self.report = report
        self.seconds = []
        self.printed = ""       # by the last command, without its notes
        self.env = {name: value for name, value in os.environ.items() if name not in OUTSIDE} | env
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self.env['PATH']}"

    def run(self, *words, code=0):
        "A command that has to end with this code, and what it printed; reid_lab is that of the tested tree"
        shown = shlex.join(map(str, words))
        program = [sys.executable, "-m", "reid_lab"] if words[0] == "reid_lab" else [str(words[0])]
        began, worked = time.perf_counter(), cpu_of_children()
        done = subprocess.run([*program, *map(str, words[1:])], cwd=self.folder, env=self.env, capture_output=True,
                              text=True)
        self.seconds.append((time.perf_counter() - began, cpu_of_children() - worked, shown))
        assert done.returncode == code and "Traceback" not in done.stderr, \
            f"{shown}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        self.printed = done.stdout
        return done.stdout + done.stderr

    def python(self, text):
        "Lines that a user types into Python, and what they print"
        (self.folder/"typed.py").write_text(text)
        self.run("python", "typed.py")
        return self.printed

    def tell(self):
        "The seconds of each step"
        total, worked = (sum(step[i] for step in self.seconds) for i in range(2))
        lines = [f"{self.use}: {total:.1f} s, {worked:.1f} s of them computing"]
        lines += [f"  {seconds:5.1f}  {cpu:5.1f}  {shown[:90]}" for seconds, cpu, shown in self.seconds]
        with self.report.open("a") as file: file.write("\n".join(lines) + "\n\n")
        print("\n" + "\n".join(lines))


@pytest.fixture(scope="module")
def report(tmp_path_factory): return tmp_path_factory.getbasetemp()/"four_uses.txt"


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    "The folder that the wheel is installed in"
    folder = tmp_path_factory.mktemp("site")
    wheel.extractall(folder)
    return folder


@pytest.fixture
def shell(request, site, report, tmp_path):
    "A shell in an empty folder, with the installed package and an empty home"
    for name in ("home", "here"): (tmp_path/name).mkdir()
    found = Shell(request.node.name.removeprefix("test_"), tmp_path/"here", report, PYTHONPATH=str(site),
                  HOME=str(tmp_path/"home"), HF_HUB_OFFLINE="1")
    yield found
    found.tell()


def first_example():
    "The first lines of Python in the read-me, and what it says that they print"
    text = (ROOT/"README.md").read_text(encoding="utf-8")
    code, printed = re.search(r"```python\n(.*?)```\n\n((?: {4}[^\n]*\n)+)", text, re.S).groups()
    return code, [line.split() for line in printed.splitlines()]


def files_named(printed, word):
    "Files that the end of a run names"
    return [Path(found) for found in re.findall(rf"^{word}: +(\S.*)$", printed, re.M)]


def said_in_page(found): return int(re.search(r"with all ([\d,]+) images in it", found)[1].replace(",", ""))
def pictures_in(page): return page.read_text(encoding="utf-8").count("data:image/")


def test_no_data(shell):
    "The read-me's first example, an experiment from the list to its results, and a search in the World"
    code, expected = first_example()
    printed = shell.python(code).splitlines()[-len(expected):]      # before it, how far the rendering is
    assert [line.split() for line in printed] == expected
    assert "dart3" in shell.run("reid_lab", "list", "experiments")
    assert "preset = 'quick'" in shell.run("reid_lab", "list", "experiments", "dart3")
    ended = shell.run("reid_lab", "run", "dart3", "--preset", "smoke")
    assert "a test of plumbing" in ended and re.search(r"^chance +[\d.]+", ended, re.M)
    named = [file for word in ("notebook", "figure", "rows") for file in files_named(ended, word)]
    assert len(named) == 4 and all((shell.folder/file).is_file() for file in named)
    run = shell.folder/named[0].parent
    assert run.parent == shell.folder/"runs"
    listed = shell.run("reid_lab", "results")       # a smoke run is in no store; the remedy shows its scores
    remedy = re.search("`(reid_lab results table [^`]+)`", listed)[1]
    assert str(run.name) in remedy and "Norm" in shell.run(*shlex.split(remedy))
    assert "@misc{dart3" in shell.run("reid_lab", "cite", run.relative_to(shell.folder))
    found = shell.run("reid_lab", "search", "people", "a woman with a white bag", "--html", "page.html")
    assert "cannot be read" not in found and pictures_in(shell.folder/"page.html") == said_in_page(found)


def write_photographs(folder, people=24):
    "Crops as cameras of a shop would write them: a folder for each person, the camera in the name of the file"
    from PIL import Image

    from reid_lab.world.world import World
    table, rng = World("smoke", task="reid", seed=3).table().where(split="test"), np.random.default_rng(0)
    for row in np.flatnonzero(np.isin(table["pid"], np.unique(table["pid"])[:people])):
        height, width = (int(side*rng.uniform(1.2, 2.5)) for side in table.image(row).shape[:2])
        name = folder/f"anna {table['pid'][row]}"/f"c{table['cam'][row]}_{row:04d}.jpg"
        name.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(table.image(row)).resize((width, height)).save(name, quality=int(rng.integers(70, 95)))


def write_marks(file, paths):
    "As the button of the page writes them: two images are one person, two are not"
    other = next(path for path in paths if path.split("/")[0] != paths[0].split("/")[0])
    marks = [dict(kind="same", a=paths[0], b=paths[1]), dict(kind="different", a=paths[0], b=other)]
    file.write_text("".join(json.dumps(mark | dict(time="2026-01-31T12:00:00.000+00:00")) + "\n" for mark in marks))


FAILURES = """import reid_lab as rl
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.scene import RankedList, Scene
from reid_lab.widgets.search import images_of
from reid_lab.widgets.view import Board

features = rl.Embeddings.load('features')
pictures = images_of(features, 'crops')
scene = Scene(features, features, pictures, pictures)
failures = FailureBrowser(scene, tags='tags.json')
print(len(failures.rows()), 'failures of', len(features))
scene.selection.query = int(failures.rows()['query'].iloc[0])
Board(failures, RankedList(scene)).to_html('failures.html', title='Failures')
"""


def test_crops(shell):
    "A folder of photographs: what it holds, features, a sentence, cameras, marks of a page, and failures"
    write_photographs(shell.folder/"crops")
    n = len(list(shell.folder.glob("crops/*/*.jpg")))
    pattern = r"(?P<pid>[^/]+)/c(?P<cam>\d)"
    known = shell.run("reid_lab", "doctor", "crops", "-p", f"pattern={pattern}")
    assert f"{n} images, 24 people, 5 cameras" in known and "reid_lab embed crops" in known
    embedded = shell.run("reid_lab", "embed", "crops", "--model", "clip_tiny", "--pattern", pattern, "--out",
                         "features")
    assert f"{n} images" in embedded and "24 identities, 5 cameras" in embedded
    found = shell.run("reid_lab", "search", "features", "a woman with a white bag", "--html", "page.html")
    assert "page: page.html" in found and pictures_in(shell.folder/"page.html") == said_in_page(found)
    audited = shell.run("reid_lab", "bias", "features", "features", "--out", "report")
    assert "24 of 24 people are scored" in audited and (shell.folder/"report"/"report.html").is_file()
    paths = sorted(path.relative_to(shell.folder/"crops").as_posix() for path in shell.folder.glob("crops/*/*.jpg"))
    write_marks(shell.folder/"marks.jsonl", paths)
    assert "2" in shell.run("reid_lab", "labels", "show", "marks.jsonl")
    shell.run("reid_lab", "labels", "apply", "features", "marks.jsonl", "--out", "people.csv")
    assert len((shell.folder/"people.csv").read_text().splitlines()) == n + 1
    told = shell.python(FAILURES)
    assert f"failures of {n}" in told and pictures_in(shell.folder/"failures.html") > 10


def write_features(folder):
    "Two models of another program, the second with less camera in it: .npz, and numbers with a sheet of labels"
    rng, n = np.random.default_rng(0), 240
    pid, cam = np.arange(n) % 40, rng.integers(0, 4, n)
    person, camera = rng.normal(size=(40, 32)), rng.normal(size=(4, 32))
    for name, share in dict(first=1.5, second=.5).items():
        emb = (person[pid] + share*camera[cam] + rng.normal(size=(n, 32))).astype("float32")
        for side, rows in dict(query=slice(0, 80), gallery=slice(80, n)).items():
            np.savez(folder/f"{name}_{side}.npz", emb=emb[rows], pid=pid[rows], cam=cam[rows])
            if name == "second": continue
            labels = np.c_[pid[rows], cam[rows]]
            np.savetxt(folder/f"sheet_{side}.csv", np.c_[labels, emb[rows]], delimiter=",", comments="",
                       header="pid,cam," + ",".join(f"f{i}" for i in range(32)))


def test_features(shell):
    "Features of other code, in .npz and in sheets: scores, a comparison, a report on cameras, and pairs"
    write_features(shell.folder)
    sides = [[f"{name}_{side}.npz" for side in ("query", "gallery")] for name in ("first", "second")]
    scores = shell.run("reid_lab", "metrics", *sides[0])
    assert re.search(r"^mAP +\d", scores, re.M)
    refused = shell.run("reid_lab", "metrics", "sheet_query.csv", "sheet_gallery.csv", code=2)
    for side in ("query", "gallery"):       # the lines that the message gives make the files
        lines = re.search(r": (import .*)", refused)[1].replace("; ", "\n").replace("sheet_query", f"sheet_{side}")
        shell.python(lines)
    assert shell.run("reid_lab", "metrics", "sheet_query.npz", "sheet_gallery.npz") == scores
    names = ("first", "second")
    compared = shell.run("reid_lab", "compare", *(f"{name}={','.join(both)}" for name, both in zip(names, sides)))
    assert re.search(r"second +mAP +\+.*higher", compared)
    report = shell.run("reid_lab", "bias", *sides[0], "--out", "report")
    assert "Mean subtraction by cosine helps" in report and (shell.folder/"report"/"report.html").is_file()
    assert "each other's best" in shell.run("reid_lab", "match", *sides[0], "--out", "pairs.csv")
    assert len((shell.folder/"pairs.csv").read_text().splitlines()) == 81


# --- carrying the project on ------------------------------------------------------------------------------------------

def clone(folder):
    "The tree as it is now, as the first commit of a repository"
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True)
    if listed.returncode: pytest.skip("needs a git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if not (ROOT/name).is_file(): continue
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT/name, folder/name)


def edit(notebook, old, new):
    "Change one place of one cell"
    text = notebook.read_text(encoding="utf-8")
    assert text.count(old) == 1
    notebook.write_text(text.replace(old, new), encoding="utf-8")


OLD, NEW = "Expected scores of a random order", "Expected scores of a gallery in random order"


def test_carrying_on(report, tmp_path):
    "In a clone: a cell is edited, exported, checked and tested; a module gets another place; the checks of a commit"
    folder = tmp_path/"reid_lab"
    folder.mkdir()
    clone(folder)
    shell = Shell("carrying on", folder, report, PYTHONPATH=str(folder), VENV=sys.prefix, GIT_CONFIG_GLOBAL=os.devnull)
    try:
        shell.run("git", "init", "-q", ".")
        shell.run("git", "add", "-A")
        shell.run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "clone")
        chance = "nbs/06_retrieval/55_chance.ipynb"
        edit(folder/chance, OLD, NEW)
        shell.run("nbdev_export")
        assert NEW in (folder/"reid_lab"/"retrieval"/"chance.py").read_text(encoding="utf-8")
        shell.run("python", "tools/check_nbs.py", "--quiet", chance)
        assert " passed" in shell.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider",
                                      "tests/retrieval/test_chance.py")
        shell.run("python", "tools/move.py", "06_retrieval/55_chance=06_retrieval/57_chance")
        assert not (folder/chance).exists()
        shell.run("nbdev_export")
        shell.run("nbdev_clean")
        shell.run("python", "tools/layout.py", "--quiet")
        shell.run("python", "tools/readme.py")
        shell.run("git", "add", "-A")
        checked = shell.run("bash", ".ci/hook", "all")
        assert checked.count("== ") == 6
    finally: shell.tell()
