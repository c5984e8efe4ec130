"""Scores of a gallery on disk: metrics, lists and errors are those of the same vectors in memory."""
import itertools
import warnings

import numpy as np
import pytest

from reid_lab.analysis.search import find
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.ranking import RetrievalResult, rank, retrieve, rivals
from reid_lab.retrieval.scores import EmbeddingScores, ShardScores
from reid_lab.retrieval.shards import Shards

pytest.importorskip("pyarrow")
KEYS = ("R1", "R5", "R10", "mAP", "mINP", "mSD", "RSum", "n_query", "n_skipped")


def naive(sim, q, g):
    "R@1, mAP, mINP by sorting; equal scores keep the order of the gallery"
    r1, ap, inp = [], [], []
    for i in range(len(q)):
        keep = np.flatnonzero((g.pid != -1) & ~((g.pid == q.pid[i]) & (g.cam == q.cam[i])))
        hit = (g.pid[keep] == q.pid[i])[np.argsort(-sim[i, keep], kind="stable")]
        if q.pid[i] == -1 or not hit.any(): continue
        r = np.flatnonzero(hit) + 1
        r1.append(r[0] == 1)
        ap.append(np.mean(np.arange(1, len(r) + 1)/r))
        inp.append(len(r)/r[-1])
    return 100*np.mean(r1), 100*np.mean(ap), 100*np.mean(inp)


@pytest.mark.parametrize("ties, ap, backend, junk", [
    ("order", "step", "numba", "auto"), ("order", "trapezoid", "torch", "auto"), ("expected", "step", "numba", "auto"),
    ("expected", "trapezoid", "torch", "none"), ("order", "step", "torch", "none")])
def test_metrics_from_disk_are_those_of_memory_bit_for_bit(tied, ties, ap, backend, junk):
    q, g, disk = tied
    scoring = Scoring(ties=ties, ap=ap, backend=backend, junk=junk, cmc=20, memory=2**20)
    a, b = (retrieval_metrics(q, gallery, scoring=scoring, per_query=True) for gallery in (g, disk))
    for k in KEYS[:5]: assert a[k] == b[k], k
    assert a["mSD"] == pytest.approx(b["mSD"], abs=1e-4)       # sums of float32 in another order
    assert a["skipped"] == b["skipped"] and (a["CMC"] == b["CMC"]).all() and b["n_skipped"] > 0
    for k in ("first", "AP", "INP", "n_match"): np.testing.assert_array_equal(a["per_query"][k], b["per_query"][k])


def test_metrics_from_disk_are_those_of_a_sort(tied):
    q, g, disk = tied
    m = retrieval_metrics(q, disk, scoring=Scoring(ties="order", memory=2**20))
    want = naive((q.unit().emb.double() @ g.unit().emb.double().T).numpy(), q, g)
    assert [m[k] for k in ("R1", "mAP", "mINP")] == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_random_features_agree_with_memory(on_disk, noisy, tmp_path, dtype, distance):
    q, g = noisy(70, 1), noisy(4000, 2)
    disk = on_disk(g, tmp_path/"g", dtype=dtype, rows=900)
    a, b = retrieval_metrics(q, disk.load(), distance=distance), retrieval_metrics(q, disk, distance=distance)
    for k in KEYS: assert a[k] == pytest.approx(b[k], abs=1e-3, nan_ok=True), k


def test_the_result_does_not_depend_on_memory_or_shards(on_disk, noisy, tmp_path):
    q, g = noisy(300, 1), noisy(7000, 2)
    disks = [on_disk(g, tmp_path/str(rows), rows=rows) for rows in (7000, 999)]
    out = [retrieval_metrics(q, d, scoring=Scoring(memory=m)) for d, m in itertools.product(disks, (1, 2**22, 2**30))]
    for o in out[1:]: assert {k: o[k] for k in KEYS if k != "mSD"} == {k: out[0][k] for k in KEYS if k != "mSD"}
    for o in out[1:]: assert o["mSD"] == pytest.approx(out[0]["mSD"], abs=1e-4)


def test_lists_from_disk_are_those_of_memory(tied):
    q, g, disk = tied
    for kw in (dict(k=7), dict(k=3, junk="none"), dict(k=60, junk="cam")):
        (i, s), (j, t) = rank(q, g, **kw), rank(q, disk, memory=2**20, **kw)
        assert (i == j).all() and (s == t).all()
    assert (disk.pid[rank(q, disk, 60)[0]] != -1).all()       # no junk
    res = retrieve(q, disk, 5)
    assert isinstance(res, RetrievalResult) and (res.correct == retrieve(q, g, 5).correct).all()
    assert res.ranked_list(3).equals(retrieve(q, g, 5).ranked_list(3)[res.ranked_list(3).columns])


def test_few_images_and_few_left(on_disk, exact, tmp_path):
    q, g = exact(5, 1), exact(6, 2)
    disk = on_disk(g, tmp_path/"g", rows=2)
    assert (rank(q, g, 9)[0] == rank(q, disk, 9)[0]).all() and rank(q, disk, 9)[0].shape == (5, 9)


def test_errors_are_those_of_memory(noisy, tied):
    q, g, disk = tied
    away = Embeddings(q.emb, q.pid + 1000, q.cam)
    for e in (away, Embeddings(q.emb, np.full(len(q), -1), q.cam)):
        said = []
        for gallery in (g, disk):
            with pytest.raises(ValueError, match="none of the 300 queries") as err: retrieval_metrics(e, gallery)
            said.append(str(err.value))
        assert said[0] == said[1]
    with pytest.raises(ValueError, match=r"give their bytes, as scoring=Scoring\(memory=268435456\)"):
        retrieval_metrics(q, disk, scoring=Scoring(chunk=5))
    with pytest.raises(TypeError, match=r"g\.load\(\)"): rivals(q, disk)
    with pytest.raises(TypeError, match="q is Shards"): retrieval_metrics(disk, disk)
    with pytest.raises(ValueError, match="gallery vectors 16"): retrieval_metrics(noisy(3, 0), disk)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        retrieval_metrics(q, disk)
    assert any("exactly the score" in str(w.message) for w in seen)


def test_scores_of_a_matrix_with_junk_are_read_from_disk_too(tied):
    q, g, disk = tied
    labels, scoring = (q.pid, g.pid, q.cam, g.cam), Scoring(ties="order")
    a = metrics_from_similarity(ShardScores(q.emb, disk), *labels, scoring=scoring)
    b = metrics_from_similarity(EmbeddingScores(q.emb, g.emb), *labels, scoring=scoring)
    assert {k: a[k] for k in KEYS[:5]} == {k: b[k] for k in KEYS[:5]}


def test_no_piece_is_larger_than_the_memory_allows(tied, monkeypatch):
    q, _, disk = tied
    seen, real = [], Shards.read
    monkeypatch.setattr(Shards, "read", lambda self, lo=0, hi=None: seen.append(hi - lo) or real(self, lo, hi))
    retrieval_metrics(q, disk, scoring=Scoring(memory=2**20))
    assert max(seen) == 1024
    retrieval_metrics(q, disk, scoring=Scoring(memory=2**23))
    assert 1024 < max(seen) <= 2**23//(4*(16*4 + 2*256))


def test_a_question_finds_the_same_answer_on_disk(tied):
    q, g, disk = tied
    a, b = find(q[:9], g, 90), find(q[:9], disk, 90)           # whoever has no label is found too
    assert (a.result.index == b.result.index).all() and (a.result.score == b.result.score).all()
    assert a.table(2).path.tolist() == b.table(2).path.tolist() and (g.pid[a.result.index] == -1).any()
    with pytest.raises(ValueError, match="not offered for a gallery on disk"): find(q, disk, 5, distance="euclidean")
