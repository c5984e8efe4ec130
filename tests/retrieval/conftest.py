"Fixtures of the tests of retrieval: functions that make features, and a folder of shards full of ties"
import numpy as np
import pytest

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.shards import Shards, write_shards


def _people(n, seed, ids=10, cams=3, dim=8):
    rng = np.random.default_rng(seed)
    centre, pid = np.random.default_rng(9).normal(size=(ids, dim)), np.arange(n) % ids
    return Embeddings((centre[pid] + 1.5*rng.normal(size=(n, dim))).astype("float32"), pid, rng.integers(0, cams, n))


def _exact(n, seed, ids=40, cams=4, dim=16, junk=True):
    "Vectors of four halves: their cosines are multiples of a quarter, exact in any order of summing, and full of ties"
    rng = np.random.default_rng(seed)
    x = np.zeros((n, dim), "float32")
    centre = np.random.default_rng(0).integers(0, 4, ids)
    pid = rng.integers(-1 if junk else 0, ids, n)
    for i in range(n):
        at = rng.choice(4, 4, replace=False)*4 + (centre[pid[i]] if rng.random() < .5 else rng.integers(0, 4, 4))
        x[i, at] = rng.choice([-.5, .5, .5], 4)
    return Embeddings(x, pid, rng.integers(0, cams, n), path=[f"{i}.jpg" for i in range(n)])


def _noisy(n, seed, ids=60, cams=4, dim=24):
    rng = np.random.default_rng(seed)
    pid = rng.integers(-1, ids, n)
    x = np.random.default_rng(0).normal(size=(ids + 1, dim))[pid] + 2*rng.normal(size=(n, dim))
    return Embeddings(x.astype("float32"), pid, rng.integers(0, cams, n))


def _on_disk(e, folder, **kw): return Shards(write_shards(e, folder, **kw))


@pytest.fixture
def people():
    "`people(n, seed)`: features of a few people, each around a centre"
    return _people


@pytest.fixture
def exact():
    "`exact(n, seed)`: features whose cosines are exact and full of ties"
    return _exact


@pytest.fixture
def noisy():
    "`noisy(n, seed)`: features of people and junk"
    return _noisy


@pytest.fixture
def on_disk():
    "`on_disk(e, folder)`: the features as shards"
    pytest.importorskip("pyarrow")
    return _on_disk


@pytest.fixture(scope="session")
def tied(tmp_path_factory):
    "Queries, a gallery and the gallery on disk; two blocks of queries, ids 40 to 49 are not in the gallery"
    pytest.importorskip("pyarrow")
    q, g = _exact(300, 1, ids=50), _exact(5000, 2)
    return q, g, _on_disk(g, tmp_path_factory.mktemp("tied")/"g", rows=1700)
