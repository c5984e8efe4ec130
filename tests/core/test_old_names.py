"Parameters of the last release, taken with a warning; records, and what is no record"
import inspect
import typing
import warnings
from dataclasses import dataclass

import pytest

from reid_lab.core.old_names import gathered, renamed, renamed_attributes, renamed_names


@dataclass(frozen=True)
class Loss:
    margin: float = .3
    weight: float = 1.


@dataclass(frozen=True)
class Part:
    rank: int = 0


class Net:
    @renamed(width="dim")
    def __init__(self, dim=4): self.dim = dim


@gathered(dict(w="weight"), loss=Loss)
def train(steps, margin_of=None, loss: Loss | None = None, seed: int = 0): return steps, loss


@gathered(loss=Loss, part=Part)
def share(steps, loss: Loss = Loss(), part: Part = Part()): return loss, part


def test_new_names_give_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Net(dim=3).dim == 3 and Net(5).dim == 5 and train(2, loss=Loss(.5))[1].margin == .5
        assert train(2, None, None) == (2, None) and share(1, Loss(.1), Part(2)) == (Loss(.1), Part(2))


def test_old_names_are_taken_and_the_line_is_named():
    with pytest.warns(DeprecationWarning, match=r"^Net: width= is called dim= now") as caught:
        assert Net(width=7).dim == 7
    assert caught[0].filename == __file__


@pytest.mark.parametrize("call, given", [
    (lambda: Net(width=7, dim=8), "width= and dim=,"),
    (lambda: Net(8, width=7), "width= and dim by position,"),
])
def test_a_parameter_by_both_names_is_refused(call, given):
    with pytest.raises(TypeError, match=f"^Net got {given} which are one parameter: leave width= out"): call()


def test_single_fields_go_into_the_record():
    with pytest.warns(DeprecationWarning) as caught: assert train(3, margin=.1, w=2.) == (3, Loss(.1, 2.))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert str(caught[0].message) == ("train: margin= and w= belong into loss=Loss(margin=..., weight=...) now; as "
                                      "parameters of their own they go with the next release")
    with pytest.warns(DeprecationWarning, match=r"^train: w= belongs into loss=Loss\(weight=...\) now; as a parameter"):
        train(3, w=2., loss=None)


def test_fields_of_two_records_give_one_warning():
    with pytest.warns(DeprecationWarning) as caught: assert share(1, rank=3, margin=.1) == (Loss(.1), Part(3))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert "rank= and margin= belong into part=Part(rank=...) and loss=Loss(margin=...)" in str(caught[0].message)


@pytest.mark.parametrize("call, text", [
    (lambda: train(3, loss=Loss(weight=5.), w=.2), r"got loss= and w=: put w= into loss=Loss\(weight=...\)"),
    (lambda: train(3, None, Loss(), margin=.2), r"got loss= and margin=: put margin= into loss=Loss\(margin=...\)"),
    (lambda: train(3, w=1., weight=2.), r"got w= and weight=, where two are one field: write loss=Loss\(weight=...\)"),
    (lambda: train(3, nothing=1), "unexpected keyword"),
    (lambda: train(3, None, .2), r"^train: loss=0.2 is of type float.* write loss=Loss\(margin=0.3\)"),
    (lambda: train(3, None, .2, 1, 2, 3), r"^train: loss=0.2 is of type float"),
    (lambda: train(3, loss=dict(weight=2.)), r"is of type dict, .* write loss=Loss\(weight=2.0\)"),
    (lambda: train(3, loss=Part()), r"is of type Part, and loss takes the record Loss with the fields margin, weight"),
    (lambda: train(3, loss=Loss), "is of type type"),
    (lambda: share(1, loss=None), "is of type NoneType"),
    (lambda: share(1, Loss(), 4), r"^share: part=4 is of type int.* write part=Part\(rank=0\)"),
    (lambda: train(3, None, Loss(), 1, 5), r"got 5 values by position and takes 4, steps, margin_of, loss, seed; "
                                           r"give the others by name, what has moved as loss=Loss\(margin=..., weight"),
])
def test_what_is_no_record_is_refused_with_the_way_to_write_it(call, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")      # nothing is accepted on the way to a refusal
        with pytest.raises(TypeError, match=text): call()


def test_decorators_keep_signature_and_type():
    assert list(inspect.signature(train).parameters) == ["steps", "margin_of", "loss", "seed"]
    for decorator in (renamed, gathered):
        (taken,), given = typing.get_args(typing.get_type_hints(decorator)["return"])
        assert taken is given and isinstance(taken, typing.TypeVar)


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
