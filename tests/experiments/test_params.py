"Parameters: values as a command line writes them, misspelt ones, the cell of a notebook"
from typing import Literal, Optional

import pytest
from helpers.notebooks import notebook

from reid_lab.experiments.params import Params, notebook_parameters


class Demo(Params):
    "Parameters of the tests"
    preset: Literal["smoke", "quick"] = "quick"
    lr: float = 1e-3
    steps: int = 10
    root: Optional[str] = None
    k: Optional[int] = None
    ks: tuple[int, ...] = (1, 5)
    amp: bool = False


@pytest.mark.parametrize("given, want", [
    (dict(lr="1e-4"), 1e-4), (dict(steps="1e3"), 1000), (dict(steps=7.0), 7), (dict(root="None"), None),
    (dict(root="a/b"), "a/b"), (dict(k="none"), None), (dict(k="2e1"), 20), (dict(ks="1,10"), (1, 10)),
    (dict(ks="[1, 2]"), (1, 2)), (dict(ks=[3]), (3,)), (dict(amp="True"), True), (dict(amp="0"), False)])


def test_values_from_a_command_line(given, want):
    value = getattr(Demo(**given), next(iter(given)))
    assert value == want and type(value) is type(want)


@pytest.mark.parametrize("given, message", [
    (dict(prest="smoke"), "Did you mean 'preset'"), (dict(preset="full"), "preset='full'"),
    (dict(steps="many"), "steps='many'"), (dict(steps=1.5), "steps=1.5"), (dict(lr=None), "lr=None"),
    (dict(ks="1,x"), "ks.1='x'"), (dict(amp="maybe"), "amp='maybe'")])


def test_wrong_values_are_named(given, message):
    with pytest.raises(ValueError, match=message): Demo(**given)


def test_parameters_are_frozen():
    with pytest.raises(ValueError, match="frozen"): Demo().lr = 2.


def test_a_plain_papermill_typo_is_fatal_in_the_notebook():
    assert Demo.from_notebook(dict(preset="smoke", _i="x", In=[], Demo=Demo)).preset == "smoke"
    with pytest.raises(ValueError, match="parameter='prest' is not known"):
        Demo.from_notebook(dict(preset="quick", prest="smoke"))


def test_parameters_cell(tmp_path):
    assert notebook_parameters(notebook(tmp_path/"a.ipynb")) == dict(preset="quick", seed=0, out_dir="")
    for bad, message in ((dict(tags=()), "0 cells tagged"), (dict(parameters="x = f()"), "'x' is not a literal")):
        with pytest.raises(ValueError, match=message): notebook_parameters(notebook(tmp_path/"b.ipynb", **bad))


@pytest.mark.parametrize("name", ["_seed", "_x", "_i", "_seed_", "__seed"])
def test_a_parameter_with_an_underscore_is_not_ignored(name):
    class Own(Params):
        seed: int = 0
    kernel = dict(_=1, __="", _i1="x = 1", _12=3, _ih=[""], _exit_code=0, __doc__="text")  # what IPython puts there
    assert Own.from_notebook({**kernel, "seed": 1}).seed == 1
    if name in ("_i", "__seed"): return  # names that a kernel may give
    with pytest.raises(ValueError, match=f"parameter='{name}' is not known"): Own.from_notebook({**kernel, name: 5})


@pytest.mark.parametrize("text", ["[", "['a'", "(1,", "{"])
def test_a_list_that_is_not_closed_is_named(text):
    class Own(Params):
        methods: list[str] = []
    with pytest.raises(ValueError, match="methods=.*no list that can be read"): Own(methods=text)
