"Pickles of plain data come back as they were, from Python 2 and 3; whatever else one asks for is refused and never run"
import pickle

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from reid_lab.core.pickles import read_plain_pickle

SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
PLAIN = st.recursive(SIMPLE, max_leaves=12, extend=lambda inner: (
    st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)))


@pytest.fixture
def path(tmp_path): return tmp_path/"data.pkl"


@settings(max_examples=60, deadline=None)
@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back(value, protocol, tmp_path_factory):
    path = tmp_path_factory.getbasetemp()/"plain.pkl"
    path.write_bytes(pickle.dumps(value, protocol))
    assert read_plain_pickle(path) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("array", [
    np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.arange(6.).reshape(2, 3)), np.array([True, False]),
    np.array(["a", "bcd"]), np.array([b"x", b"yz"]), np.array(["a", None, 3], object), np.zeros((0, 2), np.uint8)])
def test_arrays_come_back(array, protocol, path):
    path.write_bytes(pickle.dumps(dict(deep=[array]), protocol))
    got, = read_plain_pickle(path)["deep"]
    assert got.dtype == array.dtype and got.shape == array.shape and got.tolist() == array.tolist()
    got[...] = got  # it can be written to


def test_an_array_of_python_2(path):
    "numpy.array([0, 1, 1]) as Python 2.7 and NumPy 1.13 wrote it by protocol 2"
    data = np.array([0, 1, 1], "<i8").tobytes()
    path.write_bytes(b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01"
                     b"cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03"
                     b"(K\x01K\x03\x85cnumpy\ndtype\nq\x04U\x02i8K\x00K\x01\x87Rq\x05(K\x03U\x01<NNNJ\xff\xff\xff\xff"
                     b"J\xff\xff\xff\xffK\x00tb\x89U\x18" + data + b"tb.")
    assert read_plain_pickle(path).tolist() == [0, 1, 1]


class Asks:
    def __init__(self, call, *args): self.call, self.args = call, args
    def __reduce__(self): return self.call, self.args


RAN = []


def run(*args): RAN.append(args)


@pytest.mark.parametrize("value", [
    Asks(run, 1), [dict(a=Asks(eval, "1"))], np.array([Asks(run, 2)], object), Asks(getattr, [], "append"),
    Asks(np.fromfile, "x"), Asks(np.ndarray.tofile, np.zeros(1), "x"), np.zeros(1, [("a", "i4")]), range(3), slice(1)])
@pytest.mark.parametrize("protocol", [2, 4])
def test_other_names_are_refused_and_not_run(value, protocol, path, tmp_path):
    path.write_bytes(pickle.dumps(value, protocol))
    with pytest.raises(ValueError, match="data.pkl' asks for .*, which is not loaded"): read_plain_pickle(path)
    assert not RAN and [p.name for p in tmp_path.iterdir()] == ["data.pkl"]


def test_a_file_that_was_cut_is_named(path):
    whole = pickle.dumps(dict(names=["a"]*5, marks=np.arange(5)), 2)
    for n in range(len(whole)):
        path.write_bytes(whole[:n])
        with pytest.raises(ValueError, match="data.pkl"): read_plain_pickle(path)
    path.write_text("<html>")
    with pytest.raises(ValueError, match="is an HTML page; expected the lists"): read_plain_pickle(path, "the lists")
    with pytest.raises(ValueError, match="does not exist"): read_plain_pickle(path.with_name("none.pkl"))
