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
