"""The index finds and scores as `rank` does, and belongs to one gallery."""
import numpy as np
import pytest

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.index import Index, build_index, index_table, recall
from reid_lab.retrieval.ranking import rank


def test_the_index_finds_and_scores_as_rank_does(on_disk, noisy, tmp_path):
    pytest.importorskip("faiss")
    q, g = noisy(40, 1), on_disk(noisy(4000, 2), tmp_path/"g", rows=1500)
    index = build_index(g, lists=32, probe=32, refine=8)
    (i, s), (j, t) = index.search(q, 5), rank(q, g, 5, junk="none")
    known = Embeddings(g.load().emb, np.full(len(g), -1))
    j, t = rank(Embeddings(q.emb, np.full(len(q), -1)), known, 5)
    assert recall(i, j) > .97 and s[i == j] == pytest.approx(t[i == j], abs=1e-5)
    got = index_table(index, q, 5, probes=(1, 32))
    assert got.probe.tolist() == ["all", 1, 32] and got["recall"].iloc[1] < got["recall"].iloc[2]
    index.save(tmp_path/"i")
    assert (Index.load(tmp_path/"i", g).search(q, 5)[0] == i).all()
    other = on_disk(noisy(4000, 3), tmp_path/"h", rows=1500)
    with pytest.raises(ValueError, match="index of another gallery"): Index.load(tmp_path/"i", other)


def test_a_query_of_the_gallery_is_not_its_own_answer(on_disk, noisy, tmp_path):
    pytest.importorskip("faiss")
    g = on_disk(noisy(2000, 2), tmp_path/"g", rows=700)
    index = build_index(g, lists=16, probe=16, refine=8)
    rows = np.array([3, 700, 1999])
    found, score = index.search(g[rows].load(), 4)
    assert not (found == rows[:, None]).any() and (found >= 0).all()
    assert (found == rank(g[rows].load(), g, 4, junk="none")[0]).mean() > .8
    strangers = Embeddings(g[rows].load().emb, [-1]*3)  # nobody knows that these are rows of the gallery
    assert (index.search(strangers, 4)[0][:, 0] == rows).all()


def test_an_index_and_queries_of_two_models(on_disk, noisy, tmp_path):
    pytest.importorskip("faiss")
    gallery = noisy(500, 2)
    gallery.meta["model"] = "bot_tiny"
    index = build_index(on_disk(gallery, tmp_path/"g", rows=500), lists=4)
    query = noisy(3, 1)
    query.meta["model"] = "camel_tiny"
    with pytest.raises(ValueError, match="camel_tiny, the gallery of bot_tiny"): index.search(query, 2)
