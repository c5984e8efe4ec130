"Records that are checked, and the line that a warning names"
import contextlib
import importlib
import sys
import textwrap
import warnings
from dataclasses import dataclass

import pytest
import torch

from reid_lab.core.basics import MOST_CHOICES, check_choice, check_record, late_library, warn_caller


@dataclass(frozen=True)
class Plan:
    steps: int
    label: str = "training"


@dataclass(frozen=True)
class Rates:
    decay: float | None = None
    lr: float = .1


@pytest.mark.parametrize("value, record, text", [
    (dict(lr=.5), Rates, r"rates=\{'lr': 0.5\} is of type dict, and rates takes the record Rates with the "
                         r"fields decay, lr; write rates=Rates\(lr=0.5\)"),
    (dict(rate=.5), Rates, r"write rates=Rates\(lr=0.1\)"),
    ("fast", Rates, r"rates='fast' is of type str"),
    (Rates(), Plan, r"is of type Rates.*write rates=Plan\(steps=...\)"),
    (None, Plan, "of type NoneType"),
])
def test_another_kind_of_value_is_no_record(value, record, text):
    with pytest.raises(TypeError, match=text): check_record("rates", value, record)


def test_long_values_are_not_printed():
    with pytest.raises(TypeError) as error: check_record("rates", torch.zeros(1000), Rates)
    assert len(str(error.value)) < 300


def refusal(value, choices, **more):
    with pytest.raises(ValueError) as error: check_choice("rule", value, choices, **more)
    return str(error.value)


def test_many_choices_are_left_to_what_lists_them():
    names = [f"rule{number}" for number in range(MOST_CHOICES + 1)]
    for listed_by in ("", "`reid_lab list rules`"):     # few are always named
        assert str(names[1:]) in refusal("role3", names[1:], listed_by=listed_by)
    assert str(names) in refusal("role3", names)
    assert refusal("role3", names, listed_by="`list rules`", hint="Or none.") == \
        "rule='role3' is not known. Did you mean 'rule3'? `list rules` shows all 13. Or none."
    assert refusal("xyz", names, listed_by="`list rules`") == "rule='xyz' is not known. `list rules` shows all 13."


def test_no_choice_at_all_is_said_so():
    assert refusal("a", [], hint="Add one.") == "rule='a' is not known; there is none to choose from. Add one."


@pytest.fixture
def package(tmp_path, monkeypatch):
    "A module that counts as one of the package, and warns behind decorators"
    (tmp_path/"reid_lab_warner.py").write_text(textwrap.dedent("""
        import contextlib, torch
        from reid_lab.core.basics import warn_caller
        __name__ = "reid_lab.warner"
        def inner(): warn_caller("a note")
        @torch.no_grad()
        def decorated(): inner()
        @contextlib.contextmanager
        def managed():
            inner()
            yield
        def calls(function): return function()
    """))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("reid_lab_warner")
    for name in ("reid_lab_warner", "reid_lab.warner"): sys.modules.pop(name, None)


def enter(manager):
    with manager: pass


def test_a_warning_names_the_line_outside_of_the_package(package):
    def callback(): return package.inner()      # of the user: this is the line
    first = callback.__code__.co_firstlineno
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        package.inner()
        package.decorated()
        package.calls(callback)
        enter(package.managed())
    assert {w.filename for w in caught} == {__file__} and len(caught) == 4
    enters = enter.__code__.co_firstlineno + 1
    assert [w.lineno for w in caught] == [first + 4, first + 5, first, enters]


def test_a_warning_is_shown_once_a_line_and_may_be_an_error(package):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3): package.inner()
        package.inner()
    assert len(caught) == 2
    with warnings.catch_warnings(), contextlib.suppress(UserWarning):
        warnings.simplefilter("error")
        package.inner()
        pytest.fail("the warning is no error")


def test_a_warning_of_a_deprecation(package):
    def own(): warn_caller("old", DeprecationWarning)
    with pytest.warns(DeprecationWarning, match="old") as caught: own()
    assert caught[0].filename == __file__


def test_a_late_library_is_imported_when_it_is_used(tmp_path, monkeypatch):
    (tmp_path/"mine").mkdir()
    (tmp_path/"mine"/"__init__.py").write_text("value = 1\n")
    (tmp_path/"mine"/"part.py").write_text("")
    (tmp_path/"users_of_mine.py").write_text("import mine as m\ndef read(): return m.value\n")
    (tmp_path/"hasty.py").write_text("import mine as m\ndef read(x: m.value): pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("mine", "mine.part", "users_of_mine", "hasty"): monkeypatch.delitem(sys.modules, name, raising=False)
    try:
        with late_library("mine"): users = importlib.import_module("users_of_mine")
        assert "mine" not in sys.modules and users.read() == 1
        mine = sys.modules["mine"]
        with late_library("mine"): assert importlib.import_module("mine") is mine   # it is there by now
        del sys.modules["mine"]
        with late_library("mine"), pytest.raises(ModuleNotFoundError, match="'mine' is not a package"):
            importlib.import_module("mine.part")    # would be executed beside the stand-in
        assert "mine" not in sys.modules
        with late_library("mine"):
            hasty = importlib.import_module("hasty")    # its signature uses the library
            assert type(sys.modules["mine"]) is type(sys) and sys.modules["mine"].value == 1
        assert hasty.m.value == 1
    finally:
        for name in ("mine", "mine.part", "users_of_mine", "hasty"): sys.modules.pop(name, None)
