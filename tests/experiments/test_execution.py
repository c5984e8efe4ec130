"How a run is executed is read from one text, and from variables only where that says nothing"
import warnings

import pytest

from reid_lab.experiments.execution import VARIABLES, given_execution
from reid_lab.training.options import Execution


def test_a_record_is_taken_as_it_is():
    mine = Execution(processes=2)
    assert given_execution(mine) is mine
    assert given_execution("--processes 2") == given_execution(dict(processes=2)) == mine


@pytest.mark.parametrize("name, text, value", [("workers", "3", 3), ("speed", "bf16", "bf16"), ("processes", "2", 2)])
def test_a_variable_counts_with_a_warning_unless_the_option_is_given(name, text, value, monkeypatch):
    monkeypatch.setenv(VARIABLES[name], text)
    with pytest.warns(DeprecationWarning, match=f"--{name} {text}"): assert getattr(given_execution(), name) == value
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given_execution({name: text})


@pytest.mark.parametrize("text, word", [("--speed fast", "speed"), ("--workers -1", "workers"),
                                        ("workers 3", "Did you mean '--workers'"), ("--processes 0", "processes"),
                                        ("--wrokers 3", "workers")])
def test_wrong_options(text, word):
    with pytest.raises(ValueError, match=word): given_execution(text)
