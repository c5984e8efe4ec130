"Pairs are read by the type of the default; lists are the registries"
import pytest
from helpers.notebooks import notebook

from reid_lab.cli.commands import main
from reid_lab.cli.output import LISTS, pairs, typed


@pytest.mark.parametrize("items, message", [
    (["preset"], "'preset' is not name=value"), (["=x"], "'=x' is not name=value"), (["a b=1"], "'a b=1' is not name="),
    (["seed=1", "seed=2"], r"\['seed'\] given more than once")])
def test_pairs(items, message):
    assert pairs(["preset=smoke", "root=a=b", "x="]) == dict(preset="smoke", root="a=b", x="")
    with pytest.raises(ValueError, match=message): pairs(items)


def test_values_take_the_type_of_the_default(tmp_path):
    nb = notebook(tmp_path/"n.ipynb", parameters="name = ''\nseed = 0\nlr = 1.\non = True\nk = None")
    given = dict(name="007", seed="7", lr="1e-4", on="no", k="[1]")
    assert typed(given, nb) == dict(name="007", seed=7, lr=1e-4, on=False, k=[1])


@pytest.mark.parametrize("what", LISTS)
def test_lists_are_the_registries(what, capsys):
    assert main(["list", what]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == list(LISTS[what]()) and names
    assert main(["list", what, names[0]]) == 0 and capsys.readouterr().out.startswith(f"{names[0]}: ")
    assert main(["list", what, names[0] + "x"]) == 2 and f"Did you mean '{names[0]}'" in capsys.readouterr().err


def test_lists_follow_the_registry(monkeypatch, capsys):
    from reid_lab.models.zoo import MODELS
    monkeypatch.setitem(MODELS, "zebra", MODELS["bot_tiny"])
    assert main(["list", "models"]) == 0 and "zebra" in capsys.readouterr().out
