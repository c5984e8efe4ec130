"""Tutorials 01 to 03 followed to the letter in a copy of the repository: what they print is what works"""
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs"/"tutorials").is_dir(), reason="needs the source tree")
FOLDERS = ("nbs", "reid_lab", "tests", "tools", "figures")
FILES = ("settings.ini", "setup.py", "pyproject.toml", "pytest.ini", "README.md", "LICENSE")
GENERATED = {"reid_lab/_modidx.py", "nbs/docs/00_architecture.ipynb", "figures/layout.svg"}
PLACE = r"nbs/(?:\d\d_\w+/)+\d\d_\w+\.ipynb"           # of a library notebook
FENCE = re.compile(r"^```(\w+)\n(.*?)\n```$", re.M | re.S)


# --- reading a tutorial -----------------------------------------------------------------------------------------------

def read_json(path): return json.loads(path.read_text(encoding="utf-8"))


def source(cell): return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def record(cells):
    "The entry of the registry: what stands between the first and the last line of the cell tagged `record`"
    cell, = [c for c in cells if "record" in c["metadata"].get("tags", [])]
    first, *lines, last = source(cell).splitlines()
    return first.split(".")[0], lines, (first, last)


def in_library(block, lines):
    "(imports, record) of a registry in the library: an import beside the session's record, or a record of its own"
    return (block, lines) if block.startswith("from ") else ("", block.splitlines())


class Tutorial:
    "The cells of a tutorial and the steps under `## Into the library`"
    def __init__(self, name):
        self.cells = json.loads((ROOT/"nbs"/"tutorials"/name).read_text(encoding="utf-8"))["cells"]
        self.steps = next(source(c) for c in self.cells if "## Into the library" in source(c))
        blocks = FENCE.findall(self.steps)
        self.title = next(t for kind, t in blocks if kind == "markdown")
        self.default_exp, self.last, self.registered = [t for kind, t in blocks if kind == "python"]
        self.commands = next(t for kind, t in blocks if kind == "bash").splitlines()
        self.notebook = re.search(rf"Write `({PLACE})`", self.steps)[1]
        text = re.search(r"all cells of the sections (.*?) of this\s+tutorial", self.steps, re.S)[1]
        self.sections = re.findall(r"\*([^*]+)\*", text)
        target = re.search(r"^2\. In \[[\w.]+\]\(\.\./(\S+\.ipynb)\)", self.steps, re.M)[1]
        self.registry = f"nbs/{target}"

    def record(self): return record(self.cells)

    def moved(self):
        "The cells of the sections that move to the new notebook"
        out, here = [], False
        for cell in self.cells:
            head = re.search(r"^## (.+)", source(cell), re.M) if cell["cell_type"] == "markdown" else None
            if head: here = head[1].strip() in self.sections
            if here: out.append(cell)
        return out


def new_cell(kind, text, n):
    cell = dict(cell_type=kind, id=f"{n:08x}", metadata={}, source=text)
    return cell if kind == "markdown" else dict(cell, execution_count=None, outputs=[])


def constant(s): return isinstance(s, ast.Assign) and all(isinstance(t, ast.Name) and t.id.isupper() for t in s.targets)


def exported(text):
    "Whether a cell only imports, or only defines what is not a helper of its demonstration"
    body = ast.parse(text).body
    return all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in body) or all(
        isinstance(s, (ast.FunctionDef, ast.ClassDef)) or constant(s) for s in body)


def build(tutorial):
    "The notebook that a tutorial asks for"
    cells = [("markdown", tutorial.title), ("code", tutorial.default_exp)]
    for c in tutorial.moved():
        mark = "#| export\n" if c["cell_type"] == "code" and exported(source(c)) else ""
        cells.append((c["cell_type"], mark + source(c)))
    return notebook([*cells, ("code", tutorial.last)])


def notebook(cells):
    "A notebook of (kind, text) pairs; the cell that assigns `preset` first is papermill's"
    cells = [new_cell(kind, text, i) for i, (kind, text) in enumerate(cells)]
    for c in cells:
        if c["source"].startswith("preset ="): c["metadata"]["tags"] = ["parameters"]
    return dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5)


class PaperTutorial:
    "The files and commands of a tutorial whose sections are whole files"
    def __init__(self, name):
        self.cells = json.loads((ROOT/"nbs"/"tutorials"/name).read_text(encoding="utf-8"))["cells"]
        self.files, self.edits, here = {}, {}, None
        for cell in self.cells:
            text, prose = source(cell), cell["cell_type"] == "markdown"
            blocks = FENCE.findall(text) if prose else []
            head = re.search(r"^## (?:(File|Edit): (\S+)|.*)", FENCE.sub("", text), re.M) if prose else None
            if head: here = self.files.setdefault(head[2], []) if head[1] == "File" else None
            if head and head[1] == "Edit": self.edits[head[2]], = [t for kind, t in blocks if kind == "python"]
            if here is None: pass
            elif blocks: here += [("markdown" if kind == "markdown" else "code", t) for kind, t in blocks]
            elif prose: here.append(("markdown", text))
            else: here.append(("code", ("#| export\n" if exported(text) else "") + text))
        blocks = [b for c in self.cells for b in FENCE.findall(source(c))]
        self.commands, = [t.splitlines() for kind, t in blocks if kind == "bash"]

    def table(self, first):
        "Files that the table of the opening names in rows that begin with `first`"
        rows = [line for line in source(self.cells[1]).splitlines() if line.startswith(f"| {first} |")]
        return {f for r in rows for f in re.findall(r"`([\w./]+/[\w.]+)`", r.split("|")[2])}


# --- the copy ---------------------------------------------------------------------------------------------------------

class Copy:
    "A copy of the source tree, and commands that run in it"
    def __init__(self, root):
        self.root = root
        ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "_modidx.py.bak")
        for name in FOLDERS: shutil.copytree(ROOT/name, root/name, ignore=ignore)
        for name in FILES: shutil.copy(ROOT/name, root/name)
        self.env = {**os.environ, "PYTHONPATH": str(root), "REID_LAB_HOME": str(root), "OMP_NUM_THREADS": "1"}

    def python(self, *args):
        args = [sys.executable, *map(str, args)]
        run = subprocess.run(args, cwd=self.root, env=self.env, capture_output=True, text=True)
        assert run.returncode == 0, f"{args}\n{run.stdout[-4000:]}\n{run.stderr[-4000:]}"
        return run.stdout

    def snapshot(self):
        "Digest of every file"
        files = [p for p in self.root.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        return {p.relative_to(self.root).as_posix(): hashlib.sha256(p.read_bytes()).digest() for p in files}

    def write(self, path, cells):
        "A new file: the cells of a notebook, or the only text of anything else"
        assert not (self.root/path).exists(), f"{path} is there already; name a free number"
        if path.endswith(".ipynb"): text = json.dumps(notebook(cells), indent=1, ensure_ascii=False)
        else: (_, text), = cells
        (self.root/path).write_text(text + "\n", encoding="utf-8")

    def edit(self, path, change):
        "Change the source of exactly one cell of a notebook"
        nb = json.loads((self.root/path).read_text(encoding="utf-8"))
        new = [change(source(c)) if c["cell_type"] == "code" else None for c in nb["cells"]]
        (i, text), = [(i, t) for i, t in enumerate(new) if t is not None]
        nb["cells"][i]["source"] = text
        (self.root/path).write_text(json.dumps(nb, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def command(self, line, tests):
        "A line of the tutorial's shell block; of all tests those that are given"
        line = line.split("#")[0].strip()
        if line == "make export":
            self.python("-c", "import nbdev; from nbdev.clean import nbdev_clean; nbdev.nbdev_export(); nbdev_clean()")
        elif line == "make readme": self.python("tools/layout.py", "--quiet"), self.python("tools/readme.py")
        elif line == "make test":
            added = (found := lint(self.root)) and found - lint(ROOT)
            assert not added, "\n".join(sorted(added))
            assert " passed" in self.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
        elif line.startswith("reid_lab "): self.python("-m", *line.split())
        else:
            first, *args = line.split()
            assert first == "python" and (self.root/args[0]).is_file(), f"no such command here: {line}"
            self.python(*args)


def lint(root):
    "Errors of the house rules in a tree"
    run = subprocess.run([sys.executable, "tools/check_nbs.py", "--quiet"], cwd=root, capture_output=True, text=True)
    assert "errors" in run.stdout, run.stderr
    return {line for line in run.stdout.splitlines() if line.startswith("ERROR")}


def register(copy, path, imports, registry, lines):
    "Add an import and a record to the notebook of a registry"
    first_export = iter([True])
    def add_import(t):
        if re.match(r"#\| export\n(?:import|from) ", t) and next(first_export, False): return f"{t}\n{imports}"
    def add_record(t):
        start = re.search(rf"^{registry} = (dict\(|{{)", t, re.M)
        if start is None: return None
        end, = [s.end_lineno for s in ast.parse(t).body
                if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == registry]
        rows = t.splitlines()
        last = rows[end - 1]
        assert last[-1] in ")}", last
        head = last[:-1].rstrip()
        rows[end - 1:end] = [*([head if head.endswith(",") else f"{head},"] if head else []), *lines, last[-1]]
        return "\n".join(rows)
    if imports: copy.edit(path, add_import)
    copy.edit(path, add_record)


def follow(name, root, tests):
    "Do what a tutorial says"
    tutorial, copy = Tutorial(name), Copy(root)
    assert not (copy.root/tutorial.notebook).exists(), f"{tutorial.notebook} is taken; name a free number"
    text = json.dumps(build(tutorial), indent=1, ensure_ascii=False)
    (copy.root/tutorial.notebook).write_text(text + "\n", encoding="utf-8")
    registry, lines, _ = tutorial.record()
    imports, lines = in_library(tutorial.registered, lines)
    register(copy, tutorial.registry, imports, registry, lines)
    for line in tutorial.commands: copy.command(line, tests)
    return tutorial, copy


# --- the tests --------------------------------------------------------------------------------------------------------

@pytest.mark.whole
def test_add_a_model(tmp_path):
    _, copy = follow("02_add_a_model.ipynb", tmp_path/"copy",
                     ["tests/models/test_zoo.py", "-k", "stripes or listed or readme"])
    said = copy.python("-c", """
import reid_lab
from reid_lab.models.zoo import MODELS, create_model, list_models
print(reid_lab.__file__)
print('stripes_tiny' in list_models('image'), 'stripes_tiny' in list_models('text'), MODELS['stripes_tiny'].size)
print(create_model('stripes_tiny', n_ids=4).n_ids)
from reid_lab.cli.commands import main
main(['list', 'models', 'stripes_tiny'])""").splitlines()
    assert said[:3] == [str(copy.root/"reid_lab"/"__init__.py"), "True False tiny", "4"]
    assert said[3] == "stripes_tiny: PCB, ECCV 2018; tiny, reads images; needs n_ids"
    copy.python("-c", """
import sys
from reid_lab.cli.commands import main
main(['list', 'models'])
assert 'torch' not in sys.modules""")
    runs = {run["notebook"]: run for run in map(read_json, copy.root.glob("runs/*/metrics.json"))}
    assert {"run_dart3", "run_dmg"} == {*runs}
    for run in runs.values():
        assert run["status"] == "finished" and {row["extra"]["model"] for row in run["rows"]} == {"stripes_tiny"}
    page = (copy.root/"nbs"/"docs"/"00_architecture.ipynb").read_text(encoding="utf-8")
    assert "`bot`, `stripes`, `transreid`" in page          # in the order of their numbers


@pytest.mark.whole
def test_add_a_dataset(tmp_path):
    tutorial, copy = follow("01_add_a_dataset.ipynb", tmp_path/"copy",
                            ["tests/datasets/test_registry.py", "-k", "harbour or kept_beside"])
    small = next(source(c) for c in tutorial.moved() if "def small_harbour" in source(c))
    copy.python("-c", f"from pathlib import Path\n{small}\nPath('harbour').mkdir(); small_harbour('harbour')")
    said = copy.python("-c", """
from reid_lab.datasets.registry import list_datasets, load_dataset
t = load_dataset('harbour', 'harbour', check='all')
print(len(t), t['pid'].nunique(), t['cam'].nunique(), t['captions'].map(len).sum())
print('harbour' in list_datasets(captions=True, cameras=True, image_queries=True))""").splitlines()
    assert said == ["9 3 3 9", "True"]
    cli = "import sys; from reid_lab.cli.commands import main; sys.exit(main(sys.argv[1:]))"
    doctor = copy.python("-c", cli, "doctor", "harbour", "--root", ".")
    assert "0 error" in doctor and "train: 2 ids, 6 images, 6 captions; published: 10, 60, 60" in doctor
    assert "registered:" not in doctor and "Harbour" in copy.python("-c", cli, "datasets")


@pytest.mark.whole
def test_add_a_paper(tmp_path):
    page, copy = PaperTutorial("03_add_a_paper.ipynb"), Copy(tmp_path/"copy")
    before = copy.snapshot()
    for path, cells in page.files.items(): copy.write(path, cells)
    registry, lines, _ = record(page.cells)
    for path, block in page.edits.items():
        imports, in_place = in_library(block, lines)
        register(copy, path, imports, registry, in_place)
    tests = [f"tests/{n}.py" for n in ("models/test_cmpm", "models/test_zoo", "results/test_published",
                                       "project/test_layout", "project/test_readme", "experiments/test_smoke")]
    chosen = "cmpm or left_out or no_rule or every_module or up_to_date"
    for line in page.commands: copy.command(line, [*tests, "-k", chosen])
    after = copy.snapshot()
    new, edited = after.keys() - before.keys(), {p for p in before if after.get(p) != before[p]}
    assert new == page.table("new") and len(new) <= 7, sorted(new)
    assert edited - GENERATED == page.table("edited") and len(edited - GENERATED) <= 2, sorted(edited - GENERATED)
    said = copy.python("-c", """
from reid_lab.cli.commands import main
from reid_lab.results.published import published_table
print(published_table('cmpm', 'cited').R1.tolist(), main(['list', 'experiments']))""")
    assert re.search(r"\n  cmpm +CMPM: two losses on the same towers\. CMPM against ITC", said)
    assert "[49.37, 43.51] 0\n" in said


def number(notebook): return int(Path(notebook).name[:2])


def assert_free(notebook, said, layout):
    "A place is among `71 to 74`, or `71 alone`: none is taken in its folder, those next to them are; no namesake"
    first, last = map(int, (re.match(r"(\d\d)\s+to\s+(\d\d)\b", said) or re.match(r"((\d\d)) alone", said)).groups())
    taken = {number(p) for p in (ROOT/notebook).parent.glob("[0-9][0-9]_*")}
    assert first <= number(notebook) <= last
    assert not taken & set(range(first, last + 1)) and {first - 1, last + 1} <= taken, said
    assert Path(notebook).name not in {p.name for p in layout.library_notebooks()}


def by_name(lines, module):
    "The session's record with its constructor by module and name, as it stands in the library, on one line"
    place = module.removeprefix("models.")
    return re.sub(r"(\w+)=ModelInfo\((\w+),", rf"\1=ModelInfo('{place}:\2',", " ".join(" ".join(lines).split()))


def below_nbs(path): return Path(path).relative_to("nbs")


@pytest.fixture(scope="module")
def layout(tool):
    "tools/layout.py as a module"
    return tool("layout")


@pytest.mark.parametrize("name", ["01_add_a_dataset.ipynb", "02_add_a_model.ipynb"])
def test_the_steps_can_be_read(name, layout):
    t = Tutorial(name)
    registry, lines, (first, last) = t.record()
    assert re.fullmatch(rf"{registry}\.update\(\{{?", first) and last in (")", "})") and lines
    assert first in t.steps.replace("`", "") and registry in t.steps and t.title.count("\n") == 1
    free = re.search(r"The number is free in the folder \(([^)]*)\)", t.steps)[1]
    assert_free(t.notebook, free, layout)
    module = t.default_exp.split()[-1]
    assert layout.module_of(below_nbs(t.notebook)) == module
    imports, _ = in_library(t.registered, lines)
    if imports: assert imports.startswith(f"from reid_lab.{module} import ")
    else: assert by_name(lines, module) == " ".join(t.registered.split())
    assert layout.order(below_nbs(t.notebook)) < layout.order(below_nbs(t.registry))
    assert f"lower than the {number(t.registry)} of" in t.steps
    heads = re.findall(r"^## (.+)", "\n".join(source(c) for c in t.cells if c["cell_type"] == "markdown"), re.M)
    assert set(t.sections) <= set(heads) and len(t.sections) >= 2


def test_the_files_of_a_paper_can_be_read(layout):
    page = PaperTutorial("03_add_a_paper.ipynb")
    exports = {f"reid_lab/{m}.py" for m in ("models/cmpm", "recipes/cmpm", "models/zoo")}
    assert set(page.files) == page.table("new") - exports and set(page.edits) == page.table("edited") - exports
    assert len(page.table("new")) == 7 and len(page.table("edited")) == 2
    assert not [f for f in page.table("new") if (ROOT/f).exists()]
    library = [f for f in page.files if re.fullmatch(PLACE, f)]
    assert [layout.module_of(below_nbs(f)) for f in library] == ["models.cmpm", "recipes.cmpm"]
    said = re.findall(r"(\d\d) is free\s+\(([^)]*)\)", "\n".join(map(source, page.cells)))
    assert [int(n) for n, _ in said] == [number(f) for f in library]
    for f, (_, free) in zip(library, said): assert_free(f, free, layout)
    (registry, block), = page.edits.items()
    _, lines, _ = record(page.cells)
    assert by_name(lines, "models.cmpm") == " ".join(block.split())
    assert layout.order(below_nbs(library[0])) < layout.order(below_nbs(registry))
    kinds = {path: [kind for kind, _ in cells] for path, cells in page.files.items()}
    assert all(k[0] == "markdown" for f, k in kinds.items() if f.endswith(".ipynb"))
    assert [k for f, k in kinds.items() if not f.endswith(".ipynb")] == [["code"], ["code"]]


# --- stored outputs ---------------------------------------------------------------------------------------------------

def tutorials():
    "Cases: of those with measured results, the first is run by each check, the others by `make test-studies`"
    paths = sorted((ROOT/"nbs"/"tutorials").glob("*.ipynb"))
    _, *further = [path for path in paths if "_measured_" in path.name]
    return [pytest.param(path, id=path.stem, marks=[pytest.mark.study] if path in further else []) for path in paths]


@pytest.mark.whole
@pytest.mark.parametrize("path", tutorials())
def test_stored_scores_are_those_of_a_run(path, monkeypatch, tool, tmp_path):
    "What a tutorial shows is what it prints today, with the thread that it sets itself; a training within a tolerance"
    import nbformat
    execute_nbs = tool("execute_nbs")
    (tmp_path/"results").symlink_to(ROOT/"results")           # our measurements; figures and runs go to this folder
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("REID_LAB_THREADS", raising=False)
    def looks(): return {p.name: p.stat().st_mtime_ns for p in (ROOT/"figures").iterdir()}
    before = looks()
    found = execute_nbs.moved(nbformat.read(path, 4), execute_nbs.run(path))
    assert not found, "\n".join(found)
    drawn = {p.name for p in tmp_path.glob("figures/*")}
    assert looks() == before and drawn <= set(before) and bool(drawn) == ("formats='svg'" in path.read_text("utf-8"))


def test_a_moved_number_is_found(tool):
    import nbformat
    moved, v4 = tool("execute_nbs").moved, nbformat.v4
    def page(*texts): return v4.new_notebook(cells=[
        v4.new_code_cell("score()", outputs=[v4.new_output("stream", text=t)]) for t in texts])
    told, cpu = "scores {'R1': 40.0, 'mAP': 40.9}\n12 pairs a second", "1 thread, AVX512"
    assert moved(page(told), page(told.replace("12 pairs", "99 pairs"))) == []
    ended = "Finished 13 s after the run was opened; its folder has the rest."
    assert moved(page(ended), page(ended.replace("13 s", "94 s"))) == []
    assert "35.2, stored: 40.9" in moved(page(told), page(told.replace("40.9", "35.2")))[0]
    assert "failed" in moved(page(told), page(told.replace("scores", "failed")))[0]
    assert "2 outputs" in moved(page(told), page(told, told))[0]
    trained = (told, f"{told}\n{cpu}", told)          # what follows a training depends on how a processor rounds
    for i in (1, 2):
        def again(score, cpu=cpu): return page(*(t.replace("40.9", score).replace("AVX512", cpu) if i == n else t
                                                 for n, t in enumerate(trained)))
        assert moved(page(*trained), again("35.2")) == [] == moved(page(*trained), again("35.2", "AVX2"))
        assert f"cell {i}: 2.1, stored: 40.9" in moved(page(*trained), again("2.1"))[0]
    assert "35.2, stored: 40.9" in moved(page(*trained), page(told.replace("40.9", "35.2"), *trained[1:]))[0]
