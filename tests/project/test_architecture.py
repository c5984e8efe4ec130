"How modules depend on each other, read from their syntax trees"
import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs").is_dir(), reason="needs the source tree")


def is_private(name): return name.startswith("_") and not name.startswith("__")


def private_uses(text, package="reid_lab"):
    "Private names that a module takes from another module of the package, as `line: name`"
    tree, modules, found = ast.parse(text), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").split(".")[0] == package):
            found += [f"{node.lineno}: {a.name}" for a in node.names if is_private(a.name)]
            found += [f"{node.lineno}: {node.module}" for part in (node.module or "").split(".") if is_private(part)]
            modules |= {a.asname or a.name for a in node.names if not is_private(a.name) and a.name.islower()}
        elif isinstance(node, ast.Import):
            modules |= {a.asname for a in node.names if a.asname and a.name.split(".")[0] == package}
    own = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for node in ast.walk(tree): # module._name, where `module` came by an import
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and is_private(node.attr):
            if node.value.id in modules - own: found.append(f"{node.lineno}: {node.value.id}.{node.attr}")
    return found


FILES = [*sorted((ROOT/"reid_lab").rglob("*.py")), *sorted((ROOT/"benchmarks").glob("*.py"))]


@pytest.mark.parametrize("path", [str(p.relative_to(ROOT)) for p in FILES if p.name != "_modidx.py"])
def test_no_private_name_crosses_a_module(path):
    "What another module needs is public and documented"
    assert private_uses((ROOT/path).read_text("utf-8")) == []


@pytest.mark.parametrize("text, found", [
    ("from reid_lab.retrieval.metrics import rank, _blocks", ["1: _blocks"]),
    ("from .base import _figure as figure", ["1: _figure"]),
    ("from ..figures import base\nbase._figure(1, 2)", ["2: base._figure"]),
    ("import reid_lab.results.rows as r\nr._plain(1)", ["2: r._plain"]),
    ("from reid_lab._hidden import name", ["1: reid_lab._hidden"]), ("from joblib import _store", []),
    ("self._x = torch._C", []), ("from reid_lab import __version__", []),
    ("from .core import stream\ndef f(self): return self._cache", [])])
def test_private_uses_are_found(text, found): assert private_uses(text) == found


# --- the environment --------------------------------------------------------------------------------------------------

# How a run is executed is an argument. Modules that may look at the environment, and the variables if not all.
OPEN = ("reid_lab/core/", "reid_lab/experiments/", "reid_lab/cli/")   # folders, threads, terminal, ranks; the boundary
OF_LIBRARIES = {"reid_lab/training/logs.py": {"WANDB_MODE", "MLFLOW_TRACKING_URI"}} # which belong to the trackers


def environment_uses(text):
    "Where a module looks at the environment, as `line: variable`, `?` where no text names it"
    tree, found = ast.parse(text), []
    names = {a.asname or a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module == "os"
             for a in n.names if a.name in ("environ", "environb", "getenv", "putenv", "unsetenv")}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
        if attribute: name = node.attr
        elif isinstance(node, ast.Name) and node.id in names: name = node.id
        else: continue
        if attribute and name not in ("environ", "environb", "getenv", "putenv", "unsetenv"): continue
        variable, above = None, parents[node]
        if isinstance(above, ast.Attribute): above = parents[above] # os.environ.get(...)
        if isinstance(above, ast.Call) and above.args: variable = above.args[0]
        elif isinstance(above, ast.Subscript): variable = above.slice
        elif isinstance(above, ast.Compare): variable = above.left
        text_of_it = isinstance(variable, ast.Constant) and isinstance(variable.value, str)
        found.append(f"{node.lineno}: {variable.value if text_of_it else '?'}")
    return sorted(found, key=lambda f: int(f.partition(":")[0]))


LIBRARY = [str(p.relative_to(ROOT)) for p in FILES if p.is_relative_to(ROOT/"reid_lab") and p.name != "_modidx.py"]


@pytest.mark.parametrize("path", [p for p in LIBRARY if not p.startswith(OPEN)])
def test_the_environment_is_read_at_the_boundary(path):
    "Below the command line and the experiments, only `core` reads it"
    found = environment_uses((ROOT/path).read_text("utf-8"))
    assert [f for f in found if f.partition(": ")[2] not in OF_LIBRARIES.get(path, ())] == []


def test_what_may_read_the_environment_is_there():
    assert all(any(p.startswith(part) for p in LIBRARY) for part in OPEN) and {*OF_LIBRARIES} <= {*LIBRARY}


@pytest.mark.parametrize("text, found", [
    ("import os\nn = os.environ.get('REID_LAB_SPEED', '')", ["2: REID_LAB_SPEED"]),
    ("import os\ndef f(): return os.getenv('A')", ["2: A"]), ("from os import environ\nx = environ['B']", ["2: B"]),
    ("from os import getenv as g\nx = g('C')", ["2: C"]), ("import os\nx = 'D' in os.environ", ["2: D"]),
    ("import os\nx = {**os.environ}", ["2: ?"]), ("import os\nx = os.environ.get(k)", ["2: ?"]),
    ("import os\nos.getpid()", []), ("environ = {}\nx = environ['E']", [])])
def test_uses_of_the_environment_are_found(text, found): assert environment_uses(text) == found


# --- what is left out ------------------------------------------------------------------------------------------------

# One rule says which pairs of a query and an image are junk, and only it compares cameras of both sides.
# Others that do, with the reason:
COMPARE_CAMERAS = {
    "reid_lab/recipes/dart3.py": "asks whether people of a camera are seen by another one, before anything is searched"}
RULE = "reid_lab/retrieval/left_out.py"
SIDES = ({"q", "query", "queries", "question"}, {"g", "gallery", "image", "images"})


def words_of(node):
    "Words of the names within an expression: `self.q.cam[rows]` -> self, q, cam, rows"
    nodes = [*ast.walk(node)]
    names = [n.id for n in nodes if isinstance(n, ast.Name)] + [n.attr for n in nodes if isinstance(n, ast.Attribute)]
    names += [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]
    return {word for name in names for word in name.split("_")}


def side_of(node):
    "0 for cameras of queries, 1 for those of a gallery, None for anything else"
    words = words_of(node)
    if not words & {"cam", "cams", "camera", "cameras"}: return None
    sides = [bool(words & names) for names in SIDES]
    return None if sides[0] == sides[1] else sides.index(True)


def camera_comparisons(text):
    "Lines that compare cameras of queries with cameras of a gallery: ==, !=, in, isin, equal"
    tree, found = ast.parse(text), []
    sides = {}      # local name -> side: own = q.cam[rows]
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.Compare) or side_of(node.value) is None: continue
            sides[node.targets[0].id] = side_of(node.value)

    def of(node):
        if isinstance(node, ast.Name) and node.id in sides: return sides[node.id]
        return side_of(node)

    for node in ast.walk(tree):
        compared = []
        if isinstance(node, ast.Compare): compared = [node.left, *node.comparators]
        elif isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("isin", "equal", "array_equal", "intersect1d"): compared = [*node.args]
            if name in ("isin", "equal") and isinstance(node.func, ast.Attribute): compared.append(node.func.value)
        if {0, 1} <= {of(part) for part in compared}: found.append(node.lineno)
    return sorted({*found})


@pytest.mark.parametrize("path", [p for p in LIBRARY if p != RULE])
def test_only_the_rule_of_junk_compares_cameras_of_both_sides(path):
    "`reid_lab.retrieval.left_out` judges; all others ask it"
    found = camera_comparisons((ROOT/path).read_text("utf-8"))
    if path in COMPARE_CAMERAS: assert found, f"{path} compares no cameras any more: take it off the list"
    else: assert found == [], f"{path}: ask reid_lab.retrieval.left_out, apply_junk or, for a column, codes_of"


@pytest.mark.parametrize("text, found", [
    ("own = (q.cam[row] == g.cam[col]) & (g.cam != -1)", [1]), ("x = s.g.cam[s.near.wrong] == s.q.cam", [1]),
    ("own = q_cam[rows]\nout = (g_cam[col] == own) & (own != -1)", [2]), ("np.isin(g.cam, q.cam)", [1]),
    ("f = query['cam'] != gallery['cam']", [1]), ("q.cam == 3", []), ("q.pid == g.pid", []), ("q.cam == cam", []),
    ("of_query = q.cam\nx = g.cams.isin(of_query)", [2]), ("codes_of('cam', q.cam, g.cam).equal(i, j)", [])])
def test_comparisons_of_cameras_are_found(text, found): assert camera_comparisons(text) == found
