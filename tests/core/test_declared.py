"Names of tables, read from the text of a module"
import pytest

from reid_lab.core import declared as module
from reid_lab.core.declared import declared


@pytest.fixture
def text(monkeypatch):
    "Let `reid_lab.a` and `reid_lab.b` have a text"
    texts = {}
    monkeypatch.setattr(module, "_body", lambda name: module.ast.parse(texts.get(name, "")).body)
    return texts


@pytest.mark.parametrize("source, names", [
    ("X = dict(a=1, b=2)", "ab"), ("X = {'a': f(), 'b': 2}", "ab"), ("X = ('a', 'b')", "ab"),
    ("X = ['a', *Y]\nY = ('b',)", "ab"),
    ("X = {**Y, 'b': 1}\nY = dict(a=0)", "ab"), ("X = {k: f(k) for k in Y}\nY = 'a', 'b'", "ab"),
    ("X = {**{k: f(k) for k in Y}, 'b': 1}\nY = dict(a=0)", "ab"), ("X = dict(a=1)\nX |= dict(b=2)", "ab"),
    ("A = 'a'\nX = (A, 'b')", "ab"), ("from .b import Z as X", "z")])
def test_names_of_a_table(text, source, names):
    text.update({"reid_lab.a": source, "reid_lab.b": "Z = ('z',)"})
    assert list(declared("a", "X")) == list(names)


def test_texts_that_a_name_stands_for(text):
    text["reid_lab.a"] = "X = dict(a=Study('title', ('Table 1',)), b=3)"
    assert declared("a", "X") == dict(a=["title", "Table 1"], b=[])


def test_names_that_are_no_literals_and_tables_that_are_not_there(text):
    text["reid_lab.a"] = "X = dict(zip(names, values))\nY = {**other()}"
    with pytest.raises(ValueError, match="no table Z"): declared("a", "Z")
    with pytest.raises(ValueError, match=r"`dict\(zip\(names, values\)\)` are no literals"): declared("a", "X")
    with pytest.raises(ValueError, match=r"`other\(\)` are no literals"): declared("a", "Y")


def test_a_module_without_its_text_has_no_names(monkeypatch):
    monkeypatch.setattr(module, "_body", lambda name: [])
    assert declared("recipes.dmg", "METHODS") == {}
