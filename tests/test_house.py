"The notebooks keep the house rules, and the lint that says so can fail"
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs").is_dir(), reason="needs the source tree")


@pytest.fixture(scope="module")
def lint():
    "tools/check_nbs.py as a module"
    spec = importlib.util.spec_from_file_location("check_nbs", ROOT/"tools"/"check_nbs.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_nbs"] = module
    spec.loader.exec_module(module)
    return module


def test_notebooks_keep_the_house_rules(lint):
    errors = [str(f) for f in lint.check() if f.error]
    assert not errors, "\n".join(["", *errors])


def test_no_undefined_names():
    "pyflakes over what is not checked by running it"
    files = [*(ROOT/"reid_lab").rglob("*.py"), *(ROOT/"tools").glob("*.py"), *(ROOT/"tests").glob("*.py"), *(ROOT/"benchmarks").glob("*.py")]
    run = subprocess.run([sys.executable, "-m", "pyflakes", *map(str, files)], capture_output=True, text=True)
    ignore = ("imported but unused", "redefinition of unused", "f-string is missing placeholders")
    bad = [line for line in run.stdout.splitlines() if not any(i in line for i in ignore)]
    assert not bad and not run.stderr, "\n".join(bad) + run.stderr


# --- the lint itself ------------------------------------------------------------------------------------------------

def cell(source, outputs=(), tags=()):
    if source.startswith("# ") and "\n> " in source or source.startswith("## "):
        return {"cell_type": "markdown", "metadata": {}, "source": source}
    return {"cell_type": "code", "metadata": {"tags": list(tags)} if tags else {}, "source": source, "outputs": list(outputs),
            "execution_count": None}


def text(t): return {"output_type": "stream", "name": "stdout", "text": t}


GOOD = [cell("# Sums\n> Adding things"), cell("#| default_exp sums"), cell("#| export\nimport math"), cell("## Add"),
        cell('#| export\ndef add(a:int, # One number\n    b:int=0, # Another\n    ) -> int: # Their sum\n    "Add two numbers"\n    return a + b'),
        cell("assert add(1, 2) == 3\nadd(1, 2)", [text("3")]), cell("## Edge cases"), cell("#| hide\nassert add(0) == 0"),
        cell("#| hide\nimport nbdev; nbdev.nbdev_export()")]
EXPERIMENT = [cell("# Run\n> An experiment"), cell('preset = "quick"\nlr = -1e-3\nseed = None', tags=["parameters"]), cell("## Go"), cell("print(preset)")]


@pytest.fixture
def tree(tmp_path):
    "A function that writes notebooks and returns a small project"
    (tmp_path/"lib").mkdir()
    (tmp_path/"nbs"/"experiments").mkdir(parents=True)
    (tmp_path/"lib"/"__init__.py").write_text("")

    def write(name, cells, **meta):
        path = tmp_path/"nbs"/name
        path.write_text(cells if isinstance(cells, str) else json.dumps({"cells": cells, "metadata": meta, "nbformat": 4, "nbformat_minor": 5}))
        return tmp_path
    write("10_sums.ipynb", GOOD)
    write("experiments/run.ipynb", EXPERIMENT)
    return write


def rules(lint, root): return {f.rule for f in lint.check(root, package="lib")}


def swap(old, new, cells=GOOD):
    "`cells` with the one that starts with `old` replaced"
    out = [new if c["source"].startswith(old) else c for c in cells]
    assert out != cells
    return out


def test_a_good_project_passes(lint, tree): assert rules(lint, tree("10_sums.ipynb", GOOD)) == set()


LONG = "#| export\ndef long(x:int): # A number\n    \"Long\"\n" + "    x += 1\n"*60 + "    return x"
PLUS = cell("#| export\n_x = [1]")
BAD = {
    "title": swap("# Sums", cell("# Sums\n> " + "x"*91)),
    "title ": swap("# Sums", cell("# Sums\n> Adding\n\nMore text that nbdev would swallow")),
    "default-exp": swap("#| default_exp", cell("x = 1")),
    "name": swap("#| default_exp", cell("#| default_exp other")),
    "order": swap("#| export\nimport", cell("#| export\nfrom lib.later import thing")),
    "export-length": GOOD[:5] + [cell(LONG), cell("long(1)")] + GOOD[5:],
    "demo-length": swap("assert", cell("add(1, 2)\n"*26, [text("3")])),
    "line-length": swap("assert", cell("add(1, 2) # " + "x"*120, [text("3")])),
    "docstring": swap("#| export\ndef", cell("#| export\ndef add(a, # One\n    b, # Two\n    ):\n    return a + b")),
    "docments": swap("#| export\ndef", cell('#| export\ndef add(a, b, # Two\n    ):\n    "Add"\n    return a + b')),
    "docments ": GOOD[:5] + [cell('#| export\nclass C:\n    "C"\n    def __init__(self, size, c=2): self.c = c'), cell("C(2)")] + GOOD[5:],
    "hidden-share": GOOD[:7] + [cell("#| hide\nassert add(1) == 1")]*4 + GOOD[7:],
    "hidden": GOOD[:5] + [cell("#| hide\nadd(3, 4)")] + GOOD[5:],
    "star": swap("#| export\nimport", cell("#| export\nfrom math import *")),
    "star ": GOOD[:3] + [cell("from fastcore.test import *")] + GOOD[3:],
    "import-cell": swap("#| export\nimport", cell("#| export\nimport math\nroot = math.sqrt(2)")),
    "except": GOOD[:5] + [cell("try: add(1)\nexcept: print(1)")] + GOOD[5:],
    "except ": GOOD[:5] + [cell("try: add(1)\nexcept (OSError, Exception) as e: print(e)")] + GOOD[5:],
    "swallow": GOOD[:4] + [cell("#| export\ntry: _a = 1\nexcept ValueError: pass")] + GOOD[4:],
    "dead-code": GOOD[:5] + [cell("# old = add(1, 2)\nadd(2, 3)")] + GOOD[5:],
    "dead-code ": GOOD[:5] + [cell("# for i in range(3):\nadd(2, 3)")] + GOOD[5:],
    "merge": GOOD[:5] + [cell("## x\n<<<<<<< HEAD")] + GOOD[5:],
    "merge ": GOOD[:5] + [cell("## x\n`>>>>>>> theirs`")] + GOOD[5:],
    "syntax": GOOD[:5] + [cell("add(1,")] + GOOD[5:],
    "output-size": swap("assert", cell("add(1, 2)", [text("x"*130_000)])),
    "notebook-size": GOOD[:5] + [cell("add(1, 2)", [text("x"*100_000)])]*8 + GOOD[5:],
    "output-error": swap("assert", cell("add(1, 2)", [{"output_type": "error", "ename": "ValueError"}])),
    "output-path": swap("assert", cell("add(1, 2)", [text("saved to /home/me/x.png")])),
    "source-path": swap("assert", cell("add(1, 2)\nopen('/root/data.csv')", [text("3")])),
    "no-output": swap("assert", cell("add(1, 2)")),
    "widget-state": swap("assert", cell("add(1, 2)", [{"output_type": "display_data", "data": {"application/vnd.jupyter.widget-view+json": {}}}])),
    "last-cell": GOOD[:-1],
    "used": swap("assert", cell("print(3)", [text("3")])),
    "prose": [c for c in GOOD if not c["source"].startswith("## ")] + [cell("#| hide\nimport nbdev; nbdev.nbdev_export()")],
    "eval-false": GOOD[:5] + [cell("#| eval: false\nadd(1)")] + GOOD[5:],
    "export-lengths": GOOD[:5] + [cell(LONG.replace("    x += 1\n"*60, "    x += 1\n"*30)), cell("long(1)")] + GOOD[5:],
    "docments-method": GOOD[:5] + [cell('#| export\nclass C:\n    "C"\n    def go(self, size, c=2): return c'), cell("C().go(1)")] + GOOD[5:],
    "json": "<<<<<<< HEAD\n{}",
}


@pytest.mark.parametrize("rule", BAD)
def test_each_rule_fires(lint, tree, rule):
    root = tree("10_sums.ipynb", BAD[rule])
    tree("90_later.ipynb", [cell("# Later\n> Later"), cell("#| default_exp later"), cell("## x"), GOOD[-1]])
    assert rules(lint, root) >= {rule.strip()}


BAD_EXPERIMENTS = {
    "no tag": swap("preset", cell('preset = "quick"'), EXPERIMENT),
    "two tags": EXPERIMENT + [cell("a = 1", tags=["parameters"])],
    "not plain": swap("preset", cell("ks = [1, 2]", tags=["parameters"]), EXPERIMENT),
    "computed": swap("preset", cell("a = 1 + 2", tags=["parameters"]), EXPERIMENT),
    "too many": swap("preset", cell("\n".join(f"a{i} = {i}" for i in range(15)), tags=["parameters"]), EXPERIMENT),
}


@pytest.mark.parametrize("name", BAD_EXPERIMENTS)
def test_parameters_cells_are_checked(lint, tree, name):
    assert "parameters" in rules(lint, tree("experiments/run.ipynb", BAD_EXPERIMENTS[name]))


def test_experiments_are_stored_without_outputs(lint, tree):
    assert "experiment-output" in rules(lint, tree("experiments/run.ipynb", swap("print", cell("print(1)", [text("1")]), EXPERIMENT)))


def test_modules_need_a_notebook(lint, tree):
    root = tree("10_sums.ipynb", GOOD)
    (root/"lib"/"sums.py").write_text("# AUTOGENERATED! DO NOT EDIT! File to edit: ../nbs/10_sums.ipynb.\n")
    assert rules(lint, root) == set()
    (root/"lib"/"gone.py").write_text("# AUTOGENERATED! DO NOT EDIT! File to edit: ../nbs/99_gone.ipynb.\n")
    (root/"lib"/"loose.py").write_text("x = 1\n")
    assert sorted(f.where for f in lint.check(root, package="lib")) == ["lib/gone.py", "lib/loose.py"]


def test_prose_comments_are_not_dead_code(lint):
    for line in ("# long: one table", "# the mean, not the sum", "# (B,D)", "# see above", "#| hide", "# x", "# shape: (B, D)", "x = 1 # y = 2"):
        assert not list(lint.dead_code(line)), line
    for line in ("# x = 1", "    # return x", "# print(x)", "# import os", "# if x > 3:"): assert list(lint.dead_code(line)), line


def test_a_finding_says_where_and_what_to_do(lint, tree):
    found, = [f for f in lint.check(tree("10_sums.ipynb", BAD["demo-length"]), package="lib") if f.rule == "demo-length"]
    assert "nbs/10_sums.ipynb, cell 6" in str(found) and "shorten the demonstration" in str(found) and str(found).startswith("ERROR")


def test_the_command_fails_on_a_bad_notebook(lint, tree, monkeypatch, capsys):
    root = tree("10_sums.ipynb", BAD["star"])
    monkeypatch.setattr(lint, "ROOT", root)
    monkeypatch.setattr(lint.check, "__defaults__", (root, None, "lib"))
    assert lint.main(["--quiet"]) == 1 and "[star]" in capsys.readouterr().out
    tree("10_sums.ipynb", GOOD)
    assert lint.main([]) == 0
