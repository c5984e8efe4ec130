"Annotations: every public parameter and result has one, and a type checker in its loose mode finds no fault"
import ast
import subprocess
import sys
from pathlib import Path

import pytest

import reid_lab

ROOT = Path(__file__).parents[2]
MODULES = sorted(p for p in (ROOT/"reid_lab").rglob("*.py") if p.name != "_modidx.py")
# The text of these rooms names the caches of Worlds, so that they are left as they are.
FROZEN = {f"world/{name}.py" for name in ("people", "captions", "bodies", "places", "render")}


def public_functions(body):
    "Functions and methods that are part of the interface, constructors too"
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"): yield from public_functions(node.body)
        if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"): yield node


def untyped(text):
    "Names of parameters and functions without an annotation; a constructor returns nothing that could have one"
    for function in public_functions(ast.parse(text).body):
        a = function.args
        for parameter in (*a.posonlyargs, *a.args, *a.kwonlyargs):
            if parameter.annotation is None and parameter.arg not in ("self", "cls"):
                yield f"{function.name}({parameter.arg})"
        if function.returns is None and function.name != "__init__": yield f"{function.name} ->"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT/"reid_lab").as_posix())
def test_public_parameters_and_results_have_types(path):
    if path.relative_to(ROOT/"reid_lab").as_posix() in FROZEN: pytest.skip("its text names the caches of Worlds")
    assert not list(untyped(path.read_text(encoding="utf-8")))


def test_what_has_no_type_is_found():
    text = "class A:\n    def __init__(self, a, b: int): ...\n    def c(self): ...\ndef _d(e): ...\n"
    assert list(untyped(text)) == ["__init__(a)", "c ->"]


def wraps_without_type(text):
    "Decorators whose functions lose their type: what they return is written as nothing, or as any callable"
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef): continue
        inner = [n for n in ast.walk(node) if isinstance(n, ast.FunctionDef) and n is not node]
        decorators = [ast.unparse(d) for n in inner for d in n.decorator_list]
        if not any(text.startswith("functools.wraps(") for text in decorators): continue
        if node.name == "decorate": continue    # of a decorator with arguments, which has the type
        if node.returns is None or ast.unparse(node.returns) == "Callable": yield node.name


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT/"reid_lab").as_posix())
def test_decorated_functions_keep_their_type(path):
    assert not list(wraps_without_type(path.read_text(encoding="utf-8")))


def test_a_decorator_without_a_type_is_found():
    text = """
def plain(function):
    @functools.wraps(function)
    def call(): ...
def with_arguments(x) -> Callable:
    def decorate(function):
        @functools.wraps(function)
        def call(): ...
def typed(function: F) -> F:
    @functools.wraps(function)
    def call(): ...
"""
    assert list(wraps_without_type(text)) == ["plain", "with_arguments"]


def test_what_is_loaded_late_is_there_for_type_checkers():
    "The names of `import reid_lab as rl`, each imported from its home"
    body = ast.parse((ROOT/"reid_lab"/"__init__.py").read_text(encoding="utf-8")).body
    block = next(node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    seen = {alias.asname or alias.name: f"{node.module}:{alias.name}" for node in block.body for alias in node.names}
    home = {name: place if ":" in place else f"{place}:{name}" for name, place in reid_lab._HOME.items()}
    assert seen == home and reid_lab.__all__ == [*home]


@pytest.mark.whole
def test_type_checker_finds_nothing(tmp_path):
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr
