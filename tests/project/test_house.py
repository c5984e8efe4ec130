"The notebooks and scripts keep the house rules, and the lint that says so can fail"
import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs").is_dir(), reason="needs the source tree")


@pytest.fixture(scope="module")
def lint(tool):
    "tools/check_nbs.py as a module"
    return tool("check_nbs")


@pytest.fixture(scope="module")
def found(lint): return lint.check()


def errors(found, *starts): return [str(f) for f in found if f.error and f.where.startswith(starts)]


@pytest.mark.whole
def test_notebooks_keep_the_house_rules(found):
    bad = errors(found, "nbs/", "reid_lab/")
    assert not bad, "\n".join(["", *bad])


@pytest.mark.whole
@pytest.mark.parametrize("folder", ["tests", "benchmarks", "tools"])
def test_scripts_keep_the_house_rules(found, lint, folder):
    assert folder in lint.SCRIPTS and list((ROOT/folder).rglob("*.py"))
    bad = errors(found, folder + "/")
    assert not bad, "\n".join(["", *bad])


def test_ruff_finds_nothing():
    "Undefined and unused names, order of imports, statements on a line: the rules in pyproject.toml"
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "."]
    run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 0, run.stdout + run.stderr


# --- the lint itself ------------------------------------------------------------------------------------------------

def cell(source, outputs=(), tags=()):
    if source.startswith("# ") and "\n> " in source or source.startswith("## "):
        return {"cell_type": "markdown", "metadata": {}, "source": source}
    return {"cell_type": "code", "metadata": {"tags": list(tags)} if tags else {}, "source": source,
            "outputs": list(outputs), "execution_count": None}


def text(t): return {"output_type": "stream", "name": "stdout", "text": t}


ADD = """#| export
def add(a:int, # One number
    b:int=0, # Another
    ) -> int: # Their sum
    "Add two numbers"
    return a + b"""
GOOD = [cell("# Sums\n> Adding things"), cell("#| default_exp base.sums"), cell("#| export\nimport math"),
        cell("## Add"),
        cell(ADD), cell("assert add(1, 2) == 3\nadd(1, 2)", [text("3")]), cell("## Edge cases"),
        cell("#| hide\nassert add(0) == 0"), cell("#| hide\nimport nbdev; nbdev.nbdev_export()")]
EXPERIMENT = [cell("# Run\n> An experiment"), cell('preset = "quick"\nlr = -1e-3\nseed = None', tags=["parameters"]),
              cell("## Go"), cell("print(preset)")]


@pytest.fixture
def tree(tmp_path):
    "A function that writes notebooks and returns a small project"
    (tmp_path/"lib"/"base").mkdir(parents=True)
    (tmp_path/"lib"/"__init__.py").write_text("")

    def write(name, cells, **meta):
        path = tmp_path/"nbs"/name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}
        path.write_text(cells if isinstance(cells, str) else json.dumps(whole))
        return tmp_path
    write("00_base/10_sums.ipynb", GOOD)
    write("experiments/run.ipynb", EXPERIMENT)
    return write


def rules(lint, root): return {f.rule for f in lint.check(root, package="lib")}


def swap(old, new, cells=GOOD):
    "`cells` with the one that starts with `old` replaced"
    out = [new if c["source"].startswith(old) else c for c in cells]
    assert out != cells
    return out


def test_a_good_project_passes(lint, tree): assert rules(lint, tree("00_base/10_sums.ipynb", GOOD)) == set()


def plus(*sources, at=5): return GOOD[:at] + [cell(s) if isinstance(s, str) else s for s in sources] + GOOD[at:]


def made(body, head='#| export\nclass C:\n    "C"\n    '): return head + body


WIDGET = {"output_type": "display_data", "data": {"application/vnd.jupyter.widget-view+json": {}}}
HOME, BASE = "/ho" + "me/me/x.png", "/ro" + "ot/data.csv"     # in two parts, lest the lint finds them here
BAD = {
    "title": swap("# Sums", cell("# Sums\n> " + "x"*91)),
    "title ": swap("# Sums", cell("# Sums\n> Adding\n\nMore text that nbdev would swallow")),
    "default-exp": swap("#| default_exp", cell("x = 1")),
    "name": swap("#| default_exp", cell("#| default_exp other")),
    "order": swap("#| export\nimport", cell("#| export\nfrom lib.late.later import thing")),
    "line-length": swap("assert", cell("add(1, 2) # " + "x"*120, [text("3")])),
    "docstring": swap("#| export\ndef", cell("#| export\ndef add(a, # One\n    b, # Two\n    ):\n    return a + b")),
    "docments": swap("#| export\ndef", cell('#| export\ndef add(a, b, # Two\n    ):\n    "Add"\n    return a + b')),
    "docments ": plus(made("def __init__(self, size, c=2): self.c = c"), "C(2)"),
    "hidden-share": plus(*["#| hide\nassert add(1) == 1"]*2, at=7),
    "hidden": plus("#| hide\nadd(3, 4)"),
    "star": swap("#| export\nimport", cell("#| export\nfrom math import *")),
    "star ": plus("from fastcore.test import *", at=3),
    "import-cell": swap("#| export\nimport", cell("#| export\nimport math\nroot = math.sqrt(2)")),
    "except": plus("try: add(1)\nexcept: print(1)"),
    "except ": plus("try: add(1)\nexcept (OSError, Exception) as e: print(e)"),
    "except  ": plus("import builtins\ntry: add(1)\nexcept builtins.Exception as e: print(e)"),
    "swallow": plus("#| export\ntry: _a = 1\nexcept ValueError: pass", at=4),
    "dead-code": plus("# old = add(1, 2)\nadd(2, 3)"),
    "dead-code ": plus("# for i in range(3):\nadd(2, 3)"),
    "merge": plus("## x\n<<<<<<< HEAD"),
    "merge ": plus("## x\n`>>>>>>> theirs`"),
    "syntax": plus("add(1,"),
    "output-size": swap("assert", cell("add(1, 2)", [text("x"*62_000)])),
    "notebook-size": plus(*[cell("add(1, 2)", [text("x"*52_000)])]*6),
    "output-error": swap("assert", cell("add(1, 2)", [{"output_type": "error", "ename": "ValueError"}])),
    "output-path": swap("assert", cell("add(1, 2)", [text(f"saved to {HOME}")])),
    "source-path": swap("assert", cell(f"add(1, 2)\nopen('{BASE}')", [text("3")])),
    "no-output": swap("assert", cell("add(1, 2)")),
    "widget-state": swap("assert", cell("add(1, 2)", [WIDGET])),
    "last-cell": GOOD[:-1],
    "used": swap("assert", cell("print(3)", [text("3")])),
    "used by name": swap("assert", cell("print(add.__name__, add)", [text("3")])),
    "used by type": swap("assert", cell("assert callable(add)", [text("3")])),
    "used by import": swap("assert", cell("from lib.base.sums import add", [text("3")])),
    "used by namesake": swap("assert", cell("{1}.add(2)", [text("3")])),
    "used class": plus(made("def __init__(self): self.c = 1"), "assert isinstance(1, C)"),
    "used values": plus('#| export\n@dataclass\nclass C:\n    "C"\n    c: int = 1', "assert isinstance(1, C)"),
    "weak-assert": plus("assert isinstance(add(1, 2), int)"),
    "weak-assert ": plus("assert add(1, 2) is not None and hasattr(add, 'x'), 'none'"),
    "weak-assert  ": plus("assert all(callable(f) for f in (add, len))"),
    "vacuous": plus("assert add(1, 2) == 4 or True"),
    "prose": [c for c in GOOD if not c["source"].startswith("## ")] + GOOD[-1:],
    "eval-false": plus("#| eval: false\nadd(1)"),
    "docments-method": plus(made("def go(self, size, c=2): return c"), "C().go(1)"),
    "json": "<<<<<<< HEAD\n{}",
}


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_fires(lint, tree, rule):
    root = tree("00_base/10_sums.ipynb", BAD[rule])
    tree("90_late/10_later.ipynb", later("late.later"))
    assert rules(lint, root) >= {rule.split(" ")[0]}


def later(name): return [cell("# Later\n> Later"), cell(f"#| default_exp {name}"), cell("## x"), GOOD[-1]]


def test_the_same_number_is_not_lower(lint, tree):
    root = tree("00_base/10_twin.ipynb", later("base.twin"))
    assert rules(lint, root) == {"number"}
    tree("00_base/10_sums.ipynb", swap("#| export\nimport", cell("#| export\nfrom lib.base.twin import thing")))
    assert rules(lint, root) == {"number", "order"}
    (root/"nbs"/"tutorials").mkdir()
    (root/"nbs"/"00_base"/"10_twin.ipynb").rename(root/"nbs"/"tutorials"/"10_twin.ipynb")    # counts for itself
    assert rules(lint, root) == {"exports"}


def test_folders_are_numbered_too(lint, tree):
    tree("00_other/20_later.ipynb", later("other.later"))
    assert rules(lint, tree("05_more/20_last.ipynb", later("more.last"))) == {"number"}


def test_a_name_without_its_folder_tells_notebooks_apart(lint, tree):
    assert rules(lint, tree("05_more/10_sums.ipynb", later("more.sums"))) == {"namesake"}


def test_a_package_within_a_package_comes_by_its_number(lint, tree):
    root = tree("00_base/05_inner/10_deep.ipynb", later("base.inner.deep"))
    tree("00_base/10_sums.ipynb", swap("#| export\nimport", cell("#| export\nfrom lib.base.inner.deep import thing")))
    assert rules(lint, root) == set()
    (root/"nbs"/"00_base"/"05_inner").rename(root/"nbs"/"00_base"/"15_inner")
    assert rules(lint, root) == {"order"}


@pytest.mark.parametrize("cells", [
    swap("assert", cell("add(1, 2)\n"*40 + "assert add(1) == 1", [text("3")])),
    plus("#| hide\nassert add(1) == 1", at=7),
    swap("assert", cell("assert add(1, 2) == 3", [text("x"*61_000)])),
    plus(*[cell("assert add(1, 2) == 3", [text("x"*50_000)])]*4),
    plus("add(3)"),
    plus("#| export\nLIMIT = 3", "assert add(LIMIT) == 3"),
    plus('#| export\n@dataclass\nclass C:\n    "C"\n    c: int = 1', "assert C.c == 1"),
    plus('#| export\nclass C:\n    "C"', '#| export\ndef make() -> C:\n    "Make"', "assert make() == 1"),
    plus('#| export\nclass C:\n    "C"', '#| export\nclass D(C):\n    "D"', "assert D().c == 1"),
    plus("for f in (add, max): assert f(1, 0) == 1"),
    plus("test_eq(add(1), 1)"),
    plus("assert isinstance(add(1), int) and add(1) == 1")])
def test_at_the_limit_is_well(lint, tree, cells): assert rules(lint, tree("00_base/10_sums.ipynb", cells)) == set()


BAD_EXPERIMENTS = {
    "no tag": swap("preset", cell('preset = "quick"'), EXPERIMENT),
    "two tags": EXPERIMENT + [cell("a = 1", tags=["parameters"])],
    "not plain": swap("preset", cell("ks = [1, 2]", tags=["parameters"]), EXPERIMENT),
    "computed": swap("preset", cell("a = 1 + 2", tags=["parameters"]), EXPERIMENT),
    "too many": swap("preset", cell("\n".join(f"a{i} = {i}" for i in range(19)), tags=["parameters"]), EXPERIMENT),
}


@pytest.mark.parametrize("name", BAD_EXPERIMENTS)
def test_parameters_cells_are_checked(lint, tree, name):
    assert "parameters" in rules(lint, tree("experiments/run.ipynb", BAD_EXPERIMENTS[name]))


def test_experiments_are_stored_without_outputs(lint, tree):
    cells = swap("print", cell("print(1)", [text("1")]), EXPERIMENT)
    assert "experiment-output" in rules(lint, tree("experiments/run.ipynb", cells))


def test_only_library_notebooks_export(lint, tree):
    last = cell("#| hide\nimport nbdev\n\nnbdev.nbdev_export()")
    assert "exports" in rules(lint, tree("tutorials/first.ipynb", [EXPERIMENT[0], last]))
    assert "exports" not in rules(lint, tree("tutorials/first.ipynb", EXPERIMENT[:1]))


def test_modules_need_a_notebook(lint, tree):
    root, made = tree("00_base/10_sums.ipynb", GOOD), "# AUTOGENERATED! DO NOT EDIT! File to edit: ../../nbs/"
    (root/"lib"/"base"/"sums.py").write_text(f"{made}00_base/10_sums.ipynb.\n")
    (root/"lib"/"moved.py").write_text("x = 1\n")         # at the root: written by hand
    assert rules(lint, root) == set()
    (root/"lib"/"base"/"gone.py").write_text(f"{made}00_base/90_gone.ipynb.\n")
    (root/"lib"/"base"/"moved.py").write_text("x = 1\n")
    (root/"lib"/"loose.py").write_text("x = 1\n")
    assert sorted(f.where for f in lint.check(root, package="lib")) == [
        "lib/base/gone.py", "lib/base/moved.py", "lib/loose.py"]


def test_prose_comments_are_not_dead_code(lint):
    for line in ("# long: one table", "# the mean, not the sum", "# (B,D)", "# see above", "#| hide", "# x",
                 "# shape: (B, D)", "x = 1 # y = 2", "x = '''\n# y = 2\n'''"):
        assert not list(lint.dead_code(line)), line
    for line in ("# x = 1", "    # return x", "# print(x)", "# import os", "# if x > 3:"):
        assert [text for _, text in lint.dead_code(line)] == [line.strip("# ")], line


def test_a_finding_says_where_and_what_to_do(lint, tree):
    found = lint.check(tree("00_base/10_sums.ipynb", BAD["line-length"]), package="lib")
    one, = [f for f in found if f.rule == "line-length"]
    assert str(one) == ("ERROR nbs/00_base/10_sums.ipynb, cell 6 [line-length] line 1 has 132: "
                        "break the line at 120 characters")


# --- assertions -----------------------------------------------------------------------------------------------------

VACUOUS = ["True", "1", "'x'", "(f(x), 'message')", "x == 1 or True", "x == 1 if c else True", "1 + 2 == 3", "[f(x)]",
           "all(r['n'] > 0 if 'n' in r else True for r in rows)", "lambda: x == 1", "(x == 1 for x in xs)", "x == x",
           "len(x) >= 0", "{'a': x}", "True and 3", "x.a <= x.a"]
WEAK = ["isinstance(x, int)", "callable(f)", "hasattr(x, 'a')", "x is not None", "isinstance(x, int) and x is not None",
        "x == 1 or callable(f)", "all(isinstance(x, int) for x in xs)", "issubclass(A, B)", "f(x) is not None",
        "all([callable(f) for f in fs])"]
TELLING = ["x == 1", "f(x)", "not x", "isinstance(x, int) and x > 1", "x is None", "report.ok", "x in y", "xs[0]",
           "all(x > 1 for x in xs)", "x > 0 if c else x < 0", "a < b < c", "not hasattr(x, 'a')", "len(x) > 0",
           "x != y", "f(x) == f(x)"]


@pytest.mark.parametrize("source", [*VACUOUS, *WEAK, *TELLING, "x", "x and y", "x == 1 or y", "False"])
def test_what_an_assertion_says(lint, source):
    test = ast.parse(f"assert {source}").body[0].test
    assert (lint.vacuous(test), lint.weak(test) and not lint.vacuous(test)) == (source in VACUOUS, source in WEAK)
    assert lint.telling(test) == (source in TELLING or source == "False")


# --- scripts --------------------------------------------------------------------------------------------------------

SCRIPT = '"""What it is for"""\nimport pytest\n\n\ndef close(a, b): assert a == b\n\n\n'
BAD_SCRIPTS = {
    "module-docstring": "x = 1\n",
    "syntax": '"Doc"\nx = (\n',
    "line-length": SCRIPT + "x = 1  # " + "x"*120,
    "except": SCRIPT + "try: x = 1\nexcept Exception as e: print(e)\n",
    "dead-code": SCRIPT + "# x = close(1, 2)\n",
    "source-path": SCRIPT + f"open('{HOME}')\n",
    "source-path ": SCRIPT + f"# as in {BASE}\n",
    "star": SCRIPT + "from fastcore.test import *\n",
    "vacuous": SCRIPT + "def test_x(): assert close(1, 1) or True\n",
    "raises": SCRIPT + "def test_x():\n    with pytest.raises(Exception, match='root'): close(1, 2)\n",
    "raises ": SCRIPT + "def test_x():\n    with pytest.raises((ValueError, BaseException)): close(1, 2)\n",
    "raises  ": SCRIPT + "def test_x():\n    with pytest.raises(ValueError, match='.*'): close(1, 2)\n",
    "weak-assert": SCRIPT + "def test_x():\n    for f in (len, max): assert callable(f)\n",
    "weak-assert ": SCRIPT + "class TestX:\n    def test_x(self): assert make() is not None\n",
    "no-assert": SCRIPT + "def test_x(): repr(3)\n",
    "no-assert ": SCRIPT + "def test_x():\n    ok = len('a') == 1\n    assert ok\n",
}
GOOD_SCRIPTS = [
    "def test_x(): close(1, 1)", "def test_x(): check_model(1)",
    "def test_x(): assert isinstance(1, int) and 1 + x == 2",
    "def both(a): close(a, a)\n\n\ndef test_x(): both(1)", "def test_x(): np.testing.assert_allclose(1, 1)",
    "def test_x():\n    with pytest.raises(ValueError): int('x')",
    "def test_x():\n    if len('a') == 2: pytest.fail('no')",
    "try: x = 1\nexcept Exception as e: raise ValueError from e"]


@pytest.mark.parametrize("folder", ["tests", "tools", "benchmarks"])
@pytest.mark.parametrize("rule", BAD_SCRIPTS)
def test_each_rule_for_scripts_fires(lint, tree, rule, folder):
    root = tree("00_base/10_sums.ipynb", GOOD)
    (root/folder).mkdir()
    (root/folder/"test_a.py").write_text(BAD_SCRIPTS[rule])
    assert rules(lint, root) == {rule.strip()}
    (root/folder/"test_a.py").write_text(SCRIPT)
    assert rules(lint, root) == set()


@pytest.mark.parametrize("source", GOOD_SCRIPTS)
def test_good_scripts_pass(lint, tree, source):
    root = tree("00_base/10_sums.ipynb", GOOD)
    (root/"tests").mkdir()
    (root/"tests"/"test_a.py").write_text(SCRIPT + source)
    assert rules(lint, root) == set()


def test_a_finding_in_a_script_names_the_line(lint, tree):
    root = tree("00_base/10_sums.ipynb", GOOD)
    (root/"tools").mkdir()
    (root/"tools"/"a.py").write_text(BAD_SCRIPTS["dead-code"])
    one, = lint.check(root, package="lib")
    assert str(one).startswith("ERROR tools/a.py:8 [dead-code] `x = close(1, 2)`: delete")
    assert lint.check(root, [root/"nbs"/"00_base/10_sums.ipynb"], "lib") == []
    assert lint.check(root, [root/"tools"/"a.py"], "lib") == [one]


def test_no_rule_goes_untested(lint):
    tested = {r.split(" ")[0] for r in (*BAD, *BAD_SCRIPTS)}
    of_their_own = {"number", "namesake", "parameters", "exports", "experiment-output", "orphan"}
    assert tested.isdisjoint(of_their_own) and tested | of_their_own == set(lint.RULES)


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_fails_on_a_bad_notebook(lint, tree, monkeypatch, capsys):
    root = tree("00_base/10_sums.ipynb", BAD["star"])
    monkeypatch.setattr(lint, "ROOT", root)
    monkeypatch.setattr(lint.check, "__defaults__", (root, None, "lib"))
    assert lint.main(["--quiet"]) == 1 and "[star]" in capsys.readouterr().out
    tree("00_base/10_sums.ipynb", GOOD)
    assert lint.main([]) == 0
