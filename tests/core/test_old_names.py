"Parameters of the last release, taken with a warning"
import warnings
from dataclasses import dataclass

import pytest

from reid_lab.core.old_names import gathered, renamed, renamed_attributes, renamed_names


@dataclass(frozen=True)
class Loss:
    margin: float = .3
    weight: float = 1.


class Net:
    @renamed(width="dim")
    def __init__(self, dim=4): self.dim = dim


@gathered("loss", Loss, w="weight")
def train(steps, margin_of=None, loss=None): return steps, loss


def test_new_names_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Net(dim=3).dim == 3 and Net(5).dim == 5 and train(2, loss=Loss(.5))[1].margin == .5


def test_old_names_are_taken_and_the_line_is_named():
    with pytest.warns(DeprecationWarning, match=r"^Net: width= is called dim= now") as caught:
        assert Net(width=7).dim == 7
    assert caught[0].filename == __file__
    with pytest.raises(TypeError, match=r"leave width= out"): Net(width=7, dim=8)


def test_single_fields_go_into_the_record():
    with pytest.warns(DeprecationWarning, match=r"margin=, weight= belongs into loss=Loss") as caught:
        assert train(3, margin=.1, w=2.) == (3, Loss(.1, 2.))
    assert len(caught) == 1 and caught[0].filename == __file__
    for both in (lambda: train(3, loss=Loss(weight=5.), margin=.2), lambda: train(3, None, Loss(), margin=.2)):
        with pytest.raises(TypeError, match=r"put margin= into loss=Loss\(\.\.\.\)"): both()
    with pytest.raises(TypeError, match="unexpected keyword"): train(3, nothing=1)


@renamed_attributes(gap="margin", total="mean")
@dataclass(frozen=True)
class Distances:
    "A record with a method"
    margin: float = .3

    def mean(self): return self.margin/2


def test_old_attributes_are_read_and_taken():
    assert Distances(.2) == Distances(margin=.2)
    for old in (lambda: Distances(gap=.2).margin, lambda: Distances(.2).gap, lambda: 2*Distances(.2).total()):
        with pytest.warns(DeprecationWarning, match="Distances") as caught: assert old() == .2
        assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.raises(TypeError, match="leave gap= out"): Distances(gap=.2, margin=.2)
    with pytest.raises(TypeError, match="unexpected keyword"): Distances(total=.2)     # a method is no field


def test_old_names_of_a_module():
    find = renamed_names(__name__, Apart="Distances")
    with pytest.warns(DeprecationWarning, match="Apart is called Distances now"): assert find("Apart") is Distances
    with pytest.raises(AttributeError, match="has no attribute 'Other'"): find("Other")
