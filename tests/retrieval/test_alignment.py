"Rows of several models: by path, by row, or refused"
import numpy as np
import pytest

from reid_lab.retrieval.alignment import align
from reid_lab.retrieval.embeddings import Embeddings


def features(n=12, order=None, seed=0, **more):
    order = np.arange(n) if order is None else np.asarray(order)
    x = np.random.default_rng(seed).normal(size=(40, 4)).astype("f4")[order]
    given = dict(cam=order % 2, path=[f"im/{i}.jpg" for i in order]) | more
    return Embeddings(x, order//3, **given)


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_any_order_meet_by_path(seed):
    a, order = features(), np.random.default_rng(seed).permutation(12)
    b = features(order=order, path=[f"./im//{i}.jpg" for i in order])
    got = align([a, b], ["A", "B"])
    assert got.sides[0] is a and (got.sides[1].pid == a.pid).all() and got.left_out == [0, 0]
    assert np.array_equal(got.sides[1].numpy(), a.numpy())


def test_shards_are_aligned_where_they_lie(on_disk, tmp_path):
    a, order = features(), np.random.default_rng(0).permutation(12)
    b = on_disk(features(order=order), tmp_path/"b", rows=5, dtype="float32")
    got = align([a, b], ["A", "B"]).sides[1]
    assert np.array_equal(got.read().numpy(), a.numpy()) and (got.pid == a.pid).all()


def test_what_some_lack_is_counted_and_left_out_on_request():
    a, b, c = features(), features(order=[3, 1, 0, 5, 20]), features(order=range(4))
    with pytest.raises(ValueError, match="B lacks 8 of the 12 rows of A and has 1 that A lacks; common=True"):
        align([a, b], ["A", "B"])
    got = align([a, b, c], ["A", "B", "C"], common=True)
    assert [e.path for e in got.sides] == [["im/0.jpg", "im/1.jpg", "im/3.jpg"]]*3 and got.left_out == [9, 2, 1]


def test_captions_meet_by_path_and_text():
    paths, texts = ["a.jpg", "a.jpg", "b.jpg"], ["one", "two", "one"]
    a = Embeddings(np.eye(3), [0, 0, 1], path=paths, caption=texts)
    b = Embeddings(np.eye(3)[::-1].copy(), [1, 0, 0], path=paths[::-1], caption=texts[::-1])
    assert np.array_equal(align([a, b], ["A", "B"]).sides[1].numpy(), np.eye(3))


def test_rows_without_paths_need_equal_labels():
    a, b = features(path=None), features(seed=1, path=None)
    assert align([a, b], ["A", "B"]).sides[1] is b
    wrong = features(seed=1, path=None, cam=np.arange(12)//6)
    with pytest.raises(ValueError, match="camera of row 1 is 1 in A and 0 in B"): align([a, wrong], ["A", "B"])
    swapped = Embeddings(b.emb, b.pid[::-1].copy(), b.cam)
    with pytest.raises(ValueError, match="person of row 0 is 0 in A and 3 in B .12 of 12"):
        align([a, swapped], ["A", "B"])
    with pytest.raises(ValueError, match="A has 12 rows and B 11, and A and B holds no paths"):
        align([a, b[:11]], ["A", "B"])


def test_other_images_and_images_twice():
    a = features()
    far = features(path=[f"x/{i}.jpg" for i in range(12)])
    with pytest.raises(ValueError, match="no path in common .such as 'im/0.jpg' and 'x/0.jpg'"):
        align([a, far], ["A", "B"])
    twice = features(path=["im/0.jpg"]*2 + [f"im/{i}.jpg" for i in range(2, 12)])
    with pytest.raises(ValueError, match="2 rows are 'im/0.jpg'"): align([a, twice], ["A", "B"])
    assert align([twice, twice[:]], ["A", "B"]).left_out == [0, 0]


def test_labels_that_one_side_does_not_know_contradict_nothing():
    a, bare = features(), Embeddings(features().emb, [-1]*12, path=features().path)
    assert align([a, bare], ["A", "B"]).left_out == [0, 0]
    named = features(columns=dict(pid_name=[f"p{i//3}" for i in range(12)]))
    renumbered = Embeddings(named.emb, 3 - named.pid, named.cam, named.path, columns=named.columns)
    assert align([named, renumbered], ["A", "B"]).left_out == [0, 0]
    other = Embeddings(a.emb, 3 - a.pid, a.cam, a.path)
    with pytest.raises(ValueError, match="person of row 0"): align([a, other], ["A", "B"])
