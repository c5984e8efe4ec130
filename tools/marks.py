"""Marks of squeezed code in the package, counted by syntax tree, by package: `python tools/marks.py [--at REVISION]`

What is counted, a thousand lines (functions: in all):

- `statements`: statements on a line that another statement of the same block is on (`a = 1; b = 2` has one)
- `lambdas`: lambdas that are given a name by an assignment
- `conditions`: conditional expressions (`a if b else c`)
- `long`: lines of more than 110 characters; `__all__`, which the export writes, is left out
- `functions`: functions with more than seven parameters, `self` and `cls` aside
"""
import argparse
import ast
import io
import subprocess
import tarfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "reid_lab"
LONG = 110          # characters
MANY = 7            # parameters
RATES = ("statements", "lambdas", "conditions", "long")
GENERATED = ("_modidx.py",)


def sources(revision):
    "Path in the package -> text, of the working tree or of a revision"
    if revision is None:
        return {p.relative_to(ROOT): p.read_text(encoding="utf-8") for p in (ROOT/PACKAGE).rglob("*.py")}
    archive = subprocess.run(["git", "archive", revision, PACKAGE], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        return {Path(m.name): tar.extractfile(m).read().decode() for m in tar if m.name.endswith(".py")}


def further_statements(block):
    "Statements of a block that begin on the line on which the one before them ends"
    return sum(after.lineno == before.end_lineno for before, after in zip(block, block[1:]))


def n_parameters(function):
    "Parameters of a function, the first one of a method aside"
    a = function.args
    names = [p.arg for p in (*a.posonlyargs, *a.args, *a.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + (a.vararg is not None) + (a.kwarg is not None)


def exported_names(tree):
    "Numbers of the lines of `__all__`"
    lists = [node for node in tree.body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return {line for node in lists for line in range(node.lineno, node.end_lineno + 1)}


def count(text):
    "Marks of one file, and its lines"
    tree = ast.parse(text)
    made = exported_names(tree)
    long = [n for n, line in enumerate(text.splitlines(), 1) if len(line) > LONG and n not in made]
    found = Counter(lines=text.count("\n"), long=len(long))
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list): found["statements"] += further_statements(block)
        if isinstance(node, (ast.Assign, ast.AnnAssign)): found["lambdas"] += isinstance(node.value, ast.Lambda)
        if isinstance(node, ast.IfExp): found["conditions"] += 1
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)): found["functions"] += n_parameters(node) > MANY
    return found


def by_package(files):
    "Package -> marks; `in all` at the end"
    found = {}
    for path, text in sorted(files.items()):
        if path.name in GENERATED: continue
        package = path.parts[1] if len(path.parts) > 2 else "(top)"
        found.setdefault(package, Counter()).update(count(text))
    return found | {"in all": sum(found.values(), Counter())}


def table(found):
    "Lines of text: one a package"
    head = f"{'package':14}{'lines':>8}" + "".join(f"{name:>12}" for name in (*RATES, "functions"))
    rows = [head]
    for package, marks in found.items():
        rates = "".join(f"{1000*marks[name]/marks['lines']:12.1f}" for name in RATES)
        rows.append(f"{package:14}{marks['lines']:8}{rates}{marks['functions']:12}")
    return "\n".join(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--at", metavar="REVISION", help="count another commit (default: the working tree)")
    print(table(by_package(sources(parser.parse_args().at))))
