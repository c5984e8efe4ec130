"Labels as they come become ids once, the same for lists, frames, CSV, parquet and folders"
import numpy as np
import pandas as pd
import pytest

from reid_lab.data.labels import is_missing, label_name, named_ids, partly_missing, read_labels
from reid_lab.data.table import numbered


@pytest.mark.parametrize("value", [None, "", " ", "nan", "NaN", "<NA>", "None", "null", "NA", float("nan"), np.nan,
                                   pd.NA,
                                   pd.NaT, -1, "-1", -1., "-1.0", np.int16(-1)])
def test_nothing_is_unknown(value):
    assert label_name(value) == "" and read_labels("pid", [value, 3]).ids.tolist() == [-1, 3]


@pytest.mark.parametrize("value", [2, 2., "2", "2.0", "0002", "+2", " 2 ", np.uint8(2), np.float32(2)])
def test_two_is_two(value):
    found = read_labels("pid", [value, 7])
    assert found.ids.tolist() == [2, 7] and found.names.tolist() == ["2", "7"]


@pytest.mark.parametrize("values, ids", [
    (["1", "2", "3", "visitor"], [1, 2, 3, 4]), (["visitor", "b", "b"], [1, 0, 0]), (["0002", "x", ""], [2, 3, -1]),
    (pd.Series([0., np.nan, 1.]), [0, -1, 1]), (pd.Series([5, None], dtype="Int64"), [5, -1]),
    (pd.Series(["a", None], dtype="category"), [0, -1]), ([], []), ([None, None], [-1, -1])])
def test_numbers_stay_and_names_are_numbered_behind_them(values, ids):
    assert read_labels("pid", values).ids.tolist() == ids


@pytest.mark.parametrize("value, says", [
    (2**64 - 1, "64 bits"), ("1" + "0"*20, "64 bits"), ("9"*5000, "64 bits"), (-2, "below -1"), ("-7", "below -1"),
    (float("inf"), "infinity"), (2.**60, "round"), (True, "no labels"), ([1], "no label"), (b"a", "no label")])
def test_what_is_no_id_is_refused_with_its_row(value, says):
    with pytest.raises(ValueError, match=says): read_labels("pid", [0, value])


def test_one_side_with_names_keeps_the_numbers_of_the_other():
    few = numbered(pd.DataFrame(dict(pid=["1", "2"])), "pid")
    more = numbered(pd.DataFrame(dict(pid=["2", "visitor", "1"])), "pid")
    assert few.pid.tolist() == [1, 2] and "pid_name" not in few
    assert more.pid.tolist() == [2, 3, 1] and more.pid_name.tolist() == ["2", "visitor", "1"]


def test_names_beside_ids_must_agree():
    both = named_ids("pid", [3, 4, -1], ["ann", "", ""])
    assert both.ids.tolist() == [3, 4, -1] and both.names.tolist() == ["ann", "4", ""]
    with pytest.raises(ValueError, match="do not agree"): named_ids("pid", [3, 3], ["ann", "bob"])
    assert partly_missing(both).tolist() == [False, False, True]
    assert not partly_missing(read_labels("cam", [None, -1])).any() and is_missing(pd.NA)
