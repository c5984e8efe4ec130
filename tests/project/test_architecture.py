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
