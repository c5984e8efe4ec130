"Two sides of features: one model, one numbering, and no image against itself"
import numpy as np
import pytest
import torch

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.ranking import Ranker, rank, rivals
from reid_lab.retrieval.shards import Shards, open_embeddings, write_shards
from reid_lab.retrieval.sides import SameImages, one_model, one_numbering, same_images, two_sides, warn_of_splits


def people(n=60, ids=12, dim=8, noise=1.5, seed=0, cams=None, **more):
    rng = np.random.default_rng(seed)
    pid = np.arange(n) % ids
    centre = np.random.default_rng(9).normal(size=(ids, dim))
    cam = None if cams is None else rng.integers(0, cams, n)
    return Embeddings((centre[pid] + noise*rng.normal(size=(n, dim))).astype("f4"), pid, cam, **more)


def leave_one_out(e):
    "R1 of every image among the others, word for word"
    x = torch.nn.functional.normalize(e.emb.double(), dim=1)
    s = (x @ x.T).numpy()
    np.fill_diagonal(s, -9)
    return 100*np.mean(e.pid[s.argmax(1)] == e.pid)


# --- one model

@pytest.mark.parametrize("a, b", [
    (dict(model="BoT"), dict(model="Camel")), (dict(weights="bot_tiny"), dict(weights="bot_small")),
    (dict(model="BoT", weights="x", checksum="1"), dict(model="BoT", weights="x", checksum="2"))])
def test_two_models_are_refused(a, b):
    q, g = people(meta=a), people(seed=1, meta=b)
    with pytest.raises(ValueError, match="Embed both with one model"): one_model(q, g)
    for f in (retrieval_metrics, rank, rivals, Ranker):
        with pytest.raises(ValueError, match="one model"): f(q, g)


@pytest.mark.parametrize("a, b", [
    ({}, dict(model="BoT")), (dict(model="BoT"), dict(model="BoT")),
    (dict(weights="/a/run", checksum="7"), dict(weights="/b/moved", checksum="7"))])
def test_what_is_not_known_to_differ_passes(a, b):
    one_model(people(meta=a), people(meta=b))
    assert retrieval_metrics(people(meta=a), people(seed=1, meta=b))["n_query"] == 60


# --- one numbering

def named(names, numbers): return Embeddings(np.eye(len(names)), numbers, columns=dict(pid_name=names))


@pytest.mark.parametrize("names, numbers", [
    (["1", "2", "3", "visitor"], [0, 1, 2, 3]), (["0001", "0002", "3", "visitor"], [3, 1, 0, 2]),
    (["1", "2", "3", ""], [5, 6, 7, -1])])
def test_numbers_are_found_by_name(names, numbers):
    g, q = named(names, numbers), Embeddings(np.eye(4)[:2], [1, 2])
    assert retrieval_metrics(q, g)["R1"] == retrieval_metrics(*one_numbering(q, g))["R1"] == 100
    a, b = one_numbering(q, g)
    assert one_numbering(a, b)[0] is a and q.pid.tolist() == [1, 2]


def test_names_that_would_become_one_stay_apart():
    a, b = one_numbering(Embeddings(np.eye(2), [1, 5]), named(["1", "01", "5"], [0, 1, 2]))
    assert b.pid[0] == a.pid[0] == 1 and b.pid[2] == 5 and len(set(b.pid)) == 3


def test_shards_with_names_meet_numbers(tmp_path):
    g = Shards(write_shards(named(["1", "2", "x"], [0, 1, 2]), tmp_path/"g", rows=2))
    q = Embeddings(np.eye(3)[:2], [1, 2])
    assert retrieval_metrics(q, g)["R1"] == 100


# --- no image against itself

def test_a_set_against_itself_is_leave_one_out(tmp_path):
    e = people()
    want = leave_one_out(e)
    np.savez(tmp_path/"f.npz", emb=e.numpy(), pid=e.pid)
    a, b = (open_embeddings(tmp_path/"f.npz") for _ in "ab")
    disk = Shards(write_shards(e, tmp_path/"s", "float32", rows=17))
    for q, g in ((e, e), (a, b), (e.unit(), e), (disk.load(), disk)):
        found = retrieval_metrics(q, g)
        assert found["R1"] == pytest.approx(want) and found["n_itself"] == len(e)
    assert retrieval_metrics(Embeddings(e.emb, e.pid), e)["R1"] == 100      # nothing is known


def test_a_part_against_all_and_junk_between(tmp_path):
    e = people()
    e.pid = np.where(np.arange(len(e)) % 7 == 3, -1, e.pid)
    q, g = e[[40, 2, 9]], e[5:]
    pairs = same_images(q, g)
    assert (pairs.query.tolist(), pairs.image.tolist()) == ([0, 2], [35, 4])
    sim = torch.nn.functional.normalize(q.emb, dim=1) @ torch.nn.functional.normalize(g.emb, dim=1).T
    got = retrieval_metrics(q, g, per_query=True)
    s = sim.clone()
    s[0, 35] = s[2, 4] = -9.
    naive = []
    for i in range(3):
        order = [j for j in np.argsort(-s[i].numpy()) if g.pid[j] != -1]
        naive.append(1 + next(r for r, j in enumerate(order) if g.pid[j] == q.pid[i]))
    assert got["per_query"]["first"].tolist() == naive
    same = SameImages.of_pairs([2, 0], [4, 35])
    assert metrics_from_similarity(sim, q.pid, g.pid, same=same)["mAP"] == pytest.approx(got["mAP"])


@pytest.mark.parametrize("backend", ["numba", "torch"])
@pytest.mark.parametrize("ties", ["order", "expected"])
def test_left_out_images_count_nowhere(backend, ties):
    "As if each query had a gallery without itself"
    e = people(24, 5, cams=3)
    kw = dict(scoring=Scoring(ties=ties, backend=backend, junk="none"), per_query=True)
    got = retrieval_metrics(e, e, **kw)["per_query"]
    for i in range(len(e)):
        rest = e[np.arange(len(e)) != i]
        want = retrieval_metrics(e[[i]], rest, **kw)["per_query"]
        for k in ("first", "AP", "INP", "SD"): assert got[k][i] == pytest.approx(want[k][0], rel=1e-5)


def test_lists_do_not_hold_the_query(tmp_path):
    e = people()
    disk = Shards(write_shards(e, tmp_path/"s", "float32", rows=17))
    rows = np.arange(len(e))[:, None]
    for q, g in ((e, e), (disk.load(), disk)):
        index, _ = rank(q, g, 5)
        assert (index != rows).all() and (index >= 0).all()
    assert (rivals(e, e).right != np.arange(len(e))).all()
    assert 3 not in Ranker(e, e)(3, len(e))[0] and len(Ranker(e, e)(3, 99)[0]) == len(e) - 1


def test_the_same_file_behind_another_folder_and_a_link(tmp_path):
    (tmp_path/"a").mkdir()
    for name in "12": (tmp_path/"a"/f"{name}.jpg").write_bytes(b"")
    (tmp_path/"q").mkdir()
    (tmp_path/"q"/"link.jpg").symlink_to(tmp_path/"a"/"2.jpg")
    def side(root, *paths):
        return Embeddings(np.eye(3)[:len(paths)], [0]*len(paths), path=paths, meta=dict(root=str(root)))

    g = side(tmp_path, "a/1.jpg", "a/2.jpg")
    assert same_images(side(tmp_path/"q", "link.jpg"), g).image.tolist() == [1]
    assert same_images(side(tmp_path/"a", "1.jpg", "../a/2.jpg"), g).image.tolist() == [0, 1]
    text = side(tmp_path, "a/1.jpg")
    text.meta["kind"] = "text"
    assert not len(same_images(text, g))


def test_equal_paths_of_unknown_folders_only_warn():
    a, b = (Embeddings(np.eye(2), [0, 1], path=["x.jpg", "y.jpg"]) for _ in "ab")
    with pytest.warns(UserWarning, match="2 of 2 queries have the path of a gallery image"): two_sides(a, b)
    with pytest.warns(UserWarning): assert retrieval_metrics(a, b)["R1"] == 100


# --- unknown cameras

def test_an_unknown_camera_is_no_camera():
    x = np.eye(2, 8, dtype="f4")[[0, 0, 1, 1]]
    g = Embeddings(x, [0, 0, 1, 1], [-1, -1, 1, 2])
    q = Embeddings(x[[0, 2]], [0, 1], [-1, 1])
    found = retrieval_metrics(q, g, per_query=True)
    assert found["per_query"]["n_match"].tolist() == [2, 1] and found["n_skipped"] == 0
    known = np.array([-1, 0, -1, 2])
    a, b = people(40, 4, cams=3), people(40, 4, seed=1, cams=3)
    a.cam, b.cam = known[a.cam + 1], known[b.cam + 1]
    pairs = (a.pid[:, None] == b.pid) & ((a.cam[:, None] != b.cam) | (a.cam[:, None] == -1))
    assert retrieval_metrics(a, b, per_query=True)["per_query"]["n_match"].tolist() == pairs.sum(1).tolist()
    assert not any(b.cam[j] == a.cam[i] != -1 and b.pid[j] == a.pid[i]
                   for i, row in enumerate(rank(a, b, 30, junk="cam")[0]) for j in row if j >= 0)


# --- exact ties

@pytest.mark.parametrize("values", [(0, 2), (-1, 2), (0, 256), (0, 30000)])
@pytest.mark.parametrize("disk", [False, True])
def test_whole_numbers_at_one_distance_have_one_score(values, disk, tmp_path):
    rng = np.random.default_rng(3)
    x = rng.integers(*values, (40, 24)).astype("f4")
    y = x[:, rng.permutation(24)] if values[0] == 0 else x[::-1].copy()
    q, g = Embeddings(x[:9], np.arange(9)), Embeddings(y, np.arange(40) % 9)
    exact = ((x[:9, None].astype(int) - y[None].astype(int))**2).sum(2)
    gallery = Shards(write_shards(g, tmp_path/"g", "float32", rows=7)) if disk else g
    index, score = rank(q, gallery, 40, distance="euclidean", junk="none")
    for i in range(9):
        assert (np.diff(exact[i, index[i]]) >= 0).all()
        equal = np.diff(exact[i, index[i]]) == 0
        assert (np.diff(score[i])[equal] == 0).all() and (np.diff(score[i])[~equal] < 0).all()


def test_rows_of_several_splits_are_said(recwarn):
    e = Embeddings(np.eye(4, dtype="float32"), [0, 1, 0, 1])
    train, test = (e.assign(split=[split]*4) for split in ("train", "test"))
    for q, g in ((e, e), (train, train), (train, e), (test, None)): warn_of_splits(q, g)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"several splits are compared, train \(4\), test \(4\)"):
        retrieval_metrics(train, test)
