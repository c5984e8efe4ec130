"What tools/marks.py counts, on small texts and on this tree"
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs").is_dir(), reason="needs the source tree")


@pytest.fixture(scope="module")
def marks(tool): return tool("marks")


@pytest.mark.parametrize("text, mark, n", [
    ("a = 1; b = 2; c = 3\n", "statements", 2),
    ("def f():\n    a = 1; return a\n", "statements", 1),
    ("if a: b = 1\nelse: b = 2\n", "statements", 0),
    ("try: a = 1; b = 2\nfinally: c = 1; d = 2\n", "statements", 2),
    ("f = lambda: 1\ng: object = lambda: 2\nh = dict(k=lambda: 3)\nmap(lambda: 4, x)\n", "lambdas", 2),
    ("a = 1 if b else 2 if c else 3\n", "conditions", 2),
    ("a = '" + "x"*105 + "'\n", "long", 1),
    ("a = '" + "x"*104 + "'\n", "long", 0),
    ("__all__ = ['" + "x"*105 + "',\n    '" + "y"*120 + "']\n", "long", 0),
    ("def f(a, b, c, d, e, f, g): pass\n", "functions", 0),
    ("def f(a, b, c, d, *, e, f, g, h): pass\n", "functions", 1),
    ("class A:\n    def f(self, a, b, c, d, e, f, g): pass\n", "functions", 0),
    ("def f(a, b, c, d, e, f, *g, **h): pass\n", "functions", 1)])
def test_what_counts(marks, text, mark, n): assert marks.count(text)[mark] == n


def test_packages_add_up(marks):
    found = marks.by_package(marks.sources(None))
    total = found.pop("in all")
    assert all(sum(package[mark] for package in found.values()) == total[mark] for mark in total)
    assert {"core", "data", "retrieval", "world"} < set(found) and total["lines"] > 10000


def test_a_line_a_package(marks):
    files = {Path("reid_lab/core/a.py"): "a = 1; b = 2\n"*10, Path("reid_lab/_modidx.py"): "a = 1; b = 2\n"}
    lines = marks.table(marks.by_package(files)).splitlines()
    assert [line.split()[0] for line in lines] == ["package", "core", "in"]
    assert lines[1].split()[1:3] == ["10", "1000.0"]
