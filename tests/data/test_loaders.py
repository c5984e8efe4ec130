"""Batches depend on seed, epoch and number only; bad data is refused with a reason."""
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from reid_lab.data.augment import AUGMENT
from reid_lab.data.loaders import (
    Batches,
    FamilyOrder,
    FreeOrder,
    Loading,
    ModalityOrder,
    Share,
    clothes_numbers,
    pk_order,
    shuffle_order,
)
from reid_lab.data.table import ReidTable

STORE = {f"{i}.jpg": np.random.default_rng(i).integers(0, 255, (16, 8, 3), dtype=np.uint8) for i in range(30)}


def table(n=30, per=3, captions=2):
    frame = pd.DataFrame(dict(path=[f"{i}.jpg" for i in range(n)], pid=np.arange(n) // per, cam=np.arange(n) % 2,
                              captions=[[f"person {i // per} text {c}" for c in range(captions)] for i in range(n)]))
    return ReidTable(frame, None, reader=lambda ps: [STORE[p] for p in ps])


@pytest.mark.parametrize("augment", AUGMENT)
@pytest.mark.parametrize("unit", ["image", "caption"])
def test_same_batch_again(augment, unit):
    a, b = (Batches(table(), 6, augment=augment, unit=unit, seed=5) for _ in range(2))
    list(a.epoch(0))  # whatever was drawn before must not matter
    x, y = a.batch(2, 1), b.batch(2, 1)
    assert torch.equal(x["img"], y["img"]) and x["caption"] == y["caption"]
    assert x["img"].dtype == torch.float32
    if augment != "transreid": assert 0 <= x["img"].min() and x["img"].max() <= 1   # whose noise is normal, not clipped
    assert not torch.equal(x["index"], Batches(table(), 6, unit=unit, seed=6).batch(2, 1)["index"])


def test_an_epoch_is_every_sample_once():
    loader = Batches(table(), 6, unit="caption")
    seen = [c for b in loader.epoch(3) for c in b["caption"]]
    assert sorted(seen) == sorted(c for cs in table().frame.captions for c in cs) and len(loader) == 10


@given(st.lists(st.integers(1, 7), min_size=3, max_size=12), st.integers(2, 4), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_pk_batches(sizes, k, seed):
    pid = np.repeat(np.arange(len(sizes)), sizes)
    P = 3
    batches = pk_order(pid, P * k, np.random.default_rng(seed), k)
    assert 1 <= len(batches) <= len(sizes) * (1 + max(sizes) // k) // P
    for rows in batches:
        ids, counts = np.unique(pid[rows], return_counts=True)
        assert len(ids) == P and (counts == k).all()


@given(st.lists(st.tuples(st.integers(1, 7), st.integers(0, 7)), min_size=4, max_size=10), st.integers(1, 3),
       st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_batches_of_both_modalities(sizes, k, seed):
    "As many images of each for everybody who is seen in both, about once each; nobody else is drawn"
    names = np.array(["visible", "infrared"])
    pid = np.concatenate([np.full(sum(own), i) for i, own in enumerate(sizes)])
    modality = np.concatenate([np.repeat(names, own) for own in sizes])
    frame = pd.DataFrame(dict(pid=pid, modality=modality)).sample(frac=1, random_state=seed)
    order, usable = ModalityOrder(k), [i for i, (_, infrared) in enumerate(sizes) if infrared]
    if not usable:      # one modality is none
        with pytest.raises(ValueError, match="two modalities or more"): order(frame, 4*k, np.random.default_rng(0))
        return
    assert order.left_out(frame).tolist() == [i for i in range(len(sizes)) if i not in usable]
    if len(usable) < 2:
        with pytest.raises(ValueError, match="a batch of 2 identities does not fit data in which 1"):
            order(frame, 4*k, np.random.default_rng(0))
        return
    batches = order(frame, 4*k, np.random.default_rng(seed))
    assert 1 <= len(batches) <= sum(-(-max(sizes[i])//k) for i in usable)//2
    for rows in batches:
        drawn = frame.iloc[rows]
        assert drawn.groupby(["pid", "modality"]).size().tolist() == [k]*4
        assert (drawn.pid.to_numpy().reshape(2, -1).T == drawn.pid.to_numpy()[[0, 2*k]]).all()  # one after the other
    seen = np.concatenate(batches)
    assert np.array_equal(seen, np.concatenate(order(frame, 4*k, np.random.default_rng(seed))))
    if len(usable) == 2 and len({-(-max(sizes[i])//k) for i in usable}) == 1:       # no identity waits for another
        assert set(seen) == set(np.flatnonzero(frame.pid.isin(usable)))


def test_a_loader_names_who_is_never_in_a_batch_of_both_modalities():
    t = table(18, 3)
    t.frame["modality"] = ["visible", "infrared", "visible"]*5 + ["visible"]*3
    with pytest.warns(UserWarning, match="ModalityOrder leaves 1 of 6 identities out of all batches"):
        loader = Batches(t, 8, sampler=ModalityOrder(2))
    assert loader.batch(0, 0)["modality"].tolist() == [0, 0, 1, 1]*2
    for size in (8, 10):
        with pytest.raises(ValueError, match="k=3 images of each of 2 modalities.*a multiple of 6 from 12"):
            ModalityOrder(3)(t.frame, size, np.random.default_rng(0))


def test_clothes_and_modalities_come_as_numbers():
    "Clothes that a dataset counts by person are told apart, and what is not known is -1"
    t = table(8, 4)
    assert not {"clothes", "modality"} & {*Batches(t, 4).batch(0, 0)}
    t.frame["clothes"] = ["2", "2", "1", None, "2", "7", "7", "7"]
    t.frame["modality"] = ["infrared", "visible"]*4
    by_hand = [1, 1, 0, -1, 2, 3, 3, 3]
    assert clothes_numbers(t.frame).tolist() == by_hand
    b = Batches(t, 8).batch(0, 0)
    assert [by_hand[i] for i in b["index"]] == b["clothes"].tolist()
    assert b["modality"].tolist() == [i % 2 for i in b["index"].tolist()]
    part = Batches(t, 4, part=Share(1, 2)).batch(0, 0)
    assert part["clothes"].tolist() == b["clothes"].tolist()[1::2]


def test_shuffle_drops_the_rest():
    got = np.concatenate(shuffle_order(11, 4, np.random.default_rng(0)))
    assert len(got) == 8 and len(set(got)) == 8


@given(st.lists(st.integers(1, 7), min_size=1, max_size=9), st.integers(0, 4), st.integers(1, 9), st.booleans(),
       st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_free_order_against_counts(sizes, per_id, size, keep_last, seed):
    "Every batch is full but the last that is kept; nobody has more samples than asked for, and none comes twice"
    frame = pd.DataFrame(dict(pid=np.repeat(np.arange(len(sizes)), sizes)))
    wanted = [min(n, per_id or n) for n in sizes]
    draw = lambda: FreeOrder(per_id, keep_last)(frame, size, np.random.default_rng(seed))
    if sum(wanted) < size and not keep_last:
        with pytest.raises(ValueError, match="larger than an epoch"): draw()
        return
    batches = draw()
    rows = np.concatenate(batches)
    assert len(set(rows)) == len(rows) == (sum(wanted) if keep_last else sum(wanted)//size*size)
    assert all(len(b) == size for b in batches[:-1]) and len(batches[-1]) <= size
    counts = np.bincount(frame.pid[rows], minlength=len(sizes))
    assert counts.tolist() == wanted if keep_last else all(c <= w for c, w in zip(counts, wanted))


def test_epochs_in_free_order():
    "Other samples of a person in each epoch; the last batch is trained on; processes cannot share it"
    loader = Batches(table(n=10), 4, unit="caption", sampler=FreeOrder(keep_last=True))
    assert len(loader) == 5 and [len(b) for b in loader.order(1)] == [4]*5     # 20 captions
    loader = Batches(table(n=9), 4, unit="caption", sampler=FreeOrder(keep_last=True))
    assert [len(b["pid"]) for b in loader.epoch(0)] == [4, 4, 4, 4, 2]
    one = Batches(table(n=12), 4, unit="caption", sampler=FreeOrder(1))
    drawn = [np.concatenate(one.order(e)) for e in range(6)]
    assert all(sorted(one.pid[one.rows[d]]) == [0, 1, 2, 3] for d in drawn)
    assert len({tuple(sorted(d)) for d in drawn}) > 1
    with pytest.raises(ValueError, match="n_processes=2 share.*keep_last"):
        Batches(table(n=12), 4, unit="caption", sampler=FreeOrder(keep_last=True), part=Share(n_processes=2))
    with pytest.raises(ValueError, match="per_id=-1"): FreeOrder(-1)


def families(sizes, images):
    "Rows of people in families of these sizes, those of one alone; `images` of everybody"
    first = np.cumsum([0, *sizes[:-1]])
    family = np.concatenate([np.full(n, number if n > 1 else -1) for number, n in zip(first, sizes)])
    return pd.DataFrame(dict(pid=np.repeat(np.arange(sum(sizes)), images), family=np.repeat(family, images)))


@pytest.mark.parametrize("sizes, images, size", [([3, 1, 4, 1, 2, 1, 3, 1], 3, 8), ([2]*10, 2, 7), ([1]*9, 4, 4)])
@pytest.mark.parametrize("seed", range(3))
def test_families_stay_together(sizes, images, size, seed):
    "Everybody once a batch, no sample twice, and only the ends of the batches divide a family"
    frame = families(sizes, images)
    batches = FamilyOrder()(frame, size, np.random.default_rng(seed))
    rows = np.concatenate(batches)
    assert len(batches) == images*(sum(sizes)//size) and len(set(rows)) == len(rows)
    for batch in batches:
        people = frame.iloc[batch]
        assert len(batch) == size == people.pid.nunique()
        there = people.family[people.family >= 0].value_counts()
        divided = sum(n < sizes[list(np.cumsum([0, *sizes])).index(number)] for number, n in there.items())
        assert divided <= 2


def test_families_of_every_epoch_and_of_nobody():
    "Another order in each epoch; a table without families, or with too few people, is refused with what to do"
    frame = families([3, 1, 2, 2], 2)
    first, second = (FamilyOrder()(frame, 4, np.random.default_rng(n)) for n in (0, 1))
    assert not np.array_equal(first, second)
    holes = frame.assign(family=np.where(frame.family < 0, np.nan, frame.family))
    assert np.array_equal(first, FamilyOrder()(holes, 4, np.random.default_rng(0)))
    with pytest.raises(ValueError, match="no column 'family'.*batches='random'"):
        Batches(table(), 6, sampler=FamilyOrder()).order(0)
    with pytest.raises(ValueError, match="use at most 8"): FamilyOrder()(frame, 9, np.random.default_rng(0))


def test_processes_share_a_batch_without_overlap():
    parts = [Batches(table(), 5, part=Share(r, 3)).batch(0, 0)["index"].tolist() for r in range(3)]
    whole = Batches(table(), 15).batch(0, 0)["index"].tolist()
    assert sorted(sum(parts, [])) == sorted(whole)


@pytest.mark.parametrize("make, message", [
    (lambda: Batches(table(), 64), r"batch_size=64 .*larger than the data \(30 samples\)"),
    (lambda: Batches(table(), 6, sampler="pk", k=4), "multiple of k=4"),
    (lambda: list(Batches(table(4, per=4), 4, sampler="pk", k=2).epoch(0)), "does not fit data with 1"),
    (lambda: Batches(table(captions=0), 6, tokenizer=str), "30 rows have no caption"),
    (lambda: Batches(table(), 6, augment="heavy"), "augment='heavy'"),
    (lambda: Batches(table(), 6, sampler="random"), "sampler='random'")])
def test_refused(make, message):
    with pytest.raises(ValueError, match=message):
        loader = make()
        loader.order(0)


def test_training_images_are_resized_as_asked():
    sharp, soft = (Batches(table(), 6, (5, 3), loading=Loading(resample=how)).batch(0, 0)["img"]
                   for how in ("bicubic", "bilinear"))
    assert torch.equal(sharp, Batches(table(), 6, (5, 3)).batch(0, 0)["img"]) and not torch.equal(sharp, soft)


def pk_order_naive(pid, batch_size, rng, k=4):
    "The order as it is defined: a queue of groups, passed over again for every batch (quadratic)"
    pid, P = np.asarray(pid), batch_size // k
    def groups_of(own):
        own = rng.permutation(own)
        if len(own) % k: own = np.concatenate([own, rng.choice(own, -len(own) % k)])
        return own.reshape(-1, k)
    groups = [(i, rows) for i in np.unique(pid) for rows in groups_of(np.flatnonzero(pid == i))]
    queue, out = [groups[j] for j in rng.permutation(len(groups))], []
    while True:
        taken, rest, seen = [], [], set()
        for who, rows in queue:
            if who in seen or len(taken) == P: rest.append((who, rows))
            else:
                taken.append(rows)
                seen.add(who)
        if len(taken) < P: return out
        out.append(np.concatenate(taken))
        queue = rest


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 200), st.integers(1, 5), st.integers(1, 6))
def test_pk_order_is_that_of_the_naive_form_bit_for_bit(seed, ids, n, k, P):
    pid = np.concatenate([np.arange(ids), np.random.default_rng(seed).integers(0, ids, n)]) * 3 - 5
    P, (a, b) = min(P, ids), (np.random.default_rng(seed) for _ in range(2))
    got, want = pk_order(pid, P * k, a, k), pk_order_naive(pid, P * k, b, k)
    assert len(got) == len(want) and all(np.array_equal(x, y) for x, y in zip(got, want))
    assert a.integers(2**62) == b.integers(2**62)   # and as many draws


@pytest.mark.timeout(60)
def test_an_order_of_many_images_has_them_all():
    "A quadratic form would take minutes for so many"
    order = pk_order(np.arange(400_000) // 8, 64, np.random.default_rng(0))
    assert len(np.unique(np.concatenate(order))) == 400_000


def test_a_function_augments_as_well():
    "It takes images and a generator; the parent of CAMeL crops a part of the area in pretraining"
    def crop(img, g): return img[:, :, :2, :2]*torch.rand((), generator=g)
    one, two = (Batches(table(), 6, augment=crop, seed=5).batch(0, 0)["img"] for _ in range(2))
    plain = Batches(table(), 6, seed=5).batch(0, 0)["img"]
    assert torch.equal(one, two) and one.shape[2:] == (2, 2)
    factor = (one/plain[:, :, :2, :2])[plain[:, :, :2, :2] > 0]
    assert torch.allclose(factor, factor[0].expand_as(factor), atol=1e-5)


def test_settings_of_the_last_release_are_taken_with_a_warning_at_the_call():
    with pytest.warns(DeprecationWarning, match="belong into") as caught:
        old = Batches(table(), 5, workers=0, rank=1, world=3, draws="own")
    assert [w.filename for w in caught] == [__file__]       # one warning for both records
    new = Batches(table(), 5, loading=Loading(workers=0), part=Share(1, 3, "own"))
    assert (old.loading, old.part) == (new.loading, new.part)
    with pytest.warns(DeprecationWarning, match="Share.world is called n_processes"): assert new.part.world == 3
    with pytest.warns(DeprecationWarning, match="world= is called n_processes="):
        assert (Share(1, world=3).n_processes, Batches(table(), 6).share(1, world=3).part.n_processes) == (3, 3)
    assert torch.equal(old.batch(1, 0)["img"], new.batch(1, 0)["img"])


def test_an_epoch_says_its_own_length():
    def other_lengths(frame, size, rng): return [np.arange(size)]*int(rng.integers(1, 9))
    loader = Batches(table(), 4, sampler=other_lengths)
    lengths = [loader.n_batches(e) for e in range(6)]
    assert lengths == [len(list(loader.epoch(e))) for e in range(6)] and len(set(lengths)) > 1
    assert len(loader) == lengths[0]


def test_batches_of_families_say_how_much_of_an_epoch_they_leave_out():
    "127 people with 4 images each: a pass over them fills one batch of 64"
    frame = pd.DataFrame(dict(pid=np.repeat(np.arange(127), 4), family=-1))
    with pytest.warns(UserWarning, match="256 of 508 samples are in an epoch"):
        batches = FamilyOrder()(frame, 64, np.random.default_rng(0))
    assert len(batches) == 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(FamilyOrder()(frame, 12, np.random.default_rng(0))) == 40
