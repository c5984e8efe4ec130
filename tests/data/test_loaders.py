"""Batches depend on seed, epoch and number only; bad data is refused with a reason."""
import math
import random

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

from reid_lab.data.augment import AUGMENT, bot, bot_released, camel, erase, light, rectangles, to_pixels, transreid
from reid_lab.data.loaders import Batches, pk_order, shuffle_order
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


def test_shuffle_drops_the_rest():
    got = np.concatenate(shuffle_order(11, 4, np.random.default_rng(0)))
    assert len(got) == 8 and len(set(got)) == 8


def test_processes_share_a_batch_without_overlap():
    parts = [Batches(table(), 5, rank=r, world=3).batch(0, 0)["index"].tolist() for r in range(3)]
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


def test_erasing_leaves_the_rest_alone():
    x = torch.rand(50, 3, 16, 8)
    y = erase(x, torch.Generator().manual_seed(0), p=1.)
    same = (x == y).all(1)
    assert same.any() and (~same).any() and (same.float().mean((1, 2)) > .4).all()


def test_pixels_are_the_bytes_over_255():
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 4, 3)).astype(np.uint8)
    want = torch.from_numpy(x).permute(0, 3, 1, 2).float()/255
    for batch in (x, np.asfortranarray(x)): assert torch.equal(to_pixels(batch), want)
    assert to_pixels(x).stride() == want.stride()          # the layout that recorded scores were made with
    for wrong in (x/255, x[0]):
        with pytest.raises(ValueError, match=r"expected uint8 \(N,H,W,3\)"): to_pixels(wrong)


# ---- random erasing

def generator(seed=0): return torch.Generator().manual_seed(seed)


def one_rectangle(rng, size, area, ratio, aspect, tries):
    "As the released programs draw it, one image and one attempt at a time; None if nothing fitted"
    H, W = size
    for _ in range(tries):
        part = rng.uniform(*area)*H*W
        low, high = (1/ratio, ratio) if aspect == "even" else (-math.log(ratio), math.log(ratio))
        shape = rng.uniform(low, high) if aspect == "even" else math.exp(rng.uniform(low, high))
        h, w = int(round(math.sqrt(part*shape))), int(round(math.sqrt(part/shape)))
        if h < H and w < W: return rng.randint(0, H - h), rng.randint(0, W - w), h, w


@pytest.mark.parametrize("aspect,tries,area,ratio", [("even", 100, (.02, .4), 1/.3), ("log", 10, (.02, 1/3), 1/.3),
                                                     ("log", 1, (.3, .4), 5.)])
@pytest.mark.parametrize("size", [(64, 32), (16, 40)])
def test_rectangles_are_distributed_as_in_the_released_programs(aspect, tries, area, ratio, size):
    n, rng = 6000, random.Random(7)
    want = [one_rectangle(rng, size, area, ratio, aspect, tries) or (0, 0, 0, 0) for _ in range(n)]
    want, got = np.array(want), torch.stack(rectangles(n, size, generator(), area, ratio, aspect, tries), 1).numpy()
    missed, lost = (float((x[:, 2] == 0).mean()) for x in (want, got))
    assert abs(missed - lost) < .035 and (lost > .1) == (tries == 1)
    want, got = want[want[:, 2] > 0], got[got[:, 2] > 0]
    assert (got[:, :2] >= 0).all() and (got[:, :2] + got[:, 2:] <= size).all() and (got[:, 2:] < size).all()
    parts = lambda r: [r[:, 2]*r[:, 3], np.log(r[:, 2]/r[:, 3]), *(r[:, k]/(size[k] - r[:, 2 + k]) for k in (0, 1))]
    for a, b in zip(parts(want), parts(got)):   # largest distance of the two distributions; 0.035 has p = 0.001 here
        at = np.sort(np.concatenate([a, b]))
        steps = [np.searchsorted(np.sort(x), at, side="right")/len(x) for x in (a, b)]
        assert np.abs(steps[0] - steps[1]).max() < .04


def test_aspects_differ():
    tall = {}
    for aspect in ("even", "log"):
        top, left, h, w = rectangles(8000, (400, 400), generator(), aspect=aspect)
        tall[aspect] = float((h > w).float().mean())
    assert abs(tall["log"] - .5) < .02 and abs(tall["even"] - (1/.3 - 1)/(1/.3 - .3)) < .02   # 0.77


def test_the_first_draw_that_fits_is_taken():
    "The loop of the released programs on the same draws"
    n, tries, (H, W) = 50, 20, (30, 12)
    got = rectangles(n, (H, W), generator(3), (.1, .4), 4., "even", tries)
    g = generator(3)
    part, shape = (torch.empty(n, tries).uniform_(a, b, generator=g) for a, b in ((.1, .4), (.25, 4.)))
    h, w = [], []
    for i in range(n):
        draws = zip(part[i].tolist(), shape[i].tolist())
        sides = [(round(math.sqrt(p*H*W*s)), round(math.sqrt(p*H*W/s))) for p, s in draws]
        first = next(((a, b) for a, b in sides if a < H and b < W), (0, 0))
        h.append(first[0]); w.append(first[1])
    assert got[2].tolist() == h and got[3].tolist() == w
    assert all(0 <= t <= H - a and 0 <= le <= W - b for t, le, a, b in zip(*(x.tolist() for x in got)))


def old_erase(img, g, p, area, ratio, fill):
    "The form of `light`, with which recorded scores were trained: one draw, cut to the image"
    n, (H, W) = len(img), img.shape[-2:]
    draw = lambda low, high: torch.empty(n, 1, 1, 1).uniform_(low, high, generator=g).view(n, 1, 1)
    part = draw(*area)*H*W
    shape = torch.exp(draw(-np.log(ratio), np.log(ratio)))
    h, w = (part*shape).sqrt().clamp(1, H - 1), (part/shape).sqrt().clamp(1, W - 1)
    top, left = (draw(0, 1) for _ in range(2))
    top, left = top*(H - h), left*(W - w)
    y, x = torch.arange(H)[:, None], torch.arange(W)[None]
    on = torch.rand(n, generator=g) < p
    inside = (y >= top) & (y < top + h) & (x >= left) & (x < left + w) & on.view(n, 1, 1)
    return torch.where(inside[:, None], torch.tensor(fill).view(1, 3, 1, 1), img)


@pytest.mark.parametrize("size", [(64, 32), (37, 19)])
def test_light_erases_as_recorded_runs_did(size, monkeypatch):
    import reid_lab.data.loaders as L
    x = torch.rand(40, 3, *size, generator=generator(1))
    now = light(x, generator(5))
    monkeypatch.setattr(L, "erase", lambda img, g, p, area: old_erase(img, g, p, area, 3.3, (.45, .43, .42)))
    assert torch.equal(now, light(x, generator(5)))


def test_erasing_of_the_papers(monkeypatch):
    "Area, colour and number of erased images, on black"
    import reid_lab.data.loaders as L
    for name in ("flip", "pad_crop", "rand_augment"): monkeypatch.setattr(L, name, lambda img, *a: img)
    black, seen = torch.zeros(800, 3, 64, 32), {}
    for fn in (bot, bot_released, transreid, camel):
        out = fn(black, generator())
        share = (out != 0).any(1).float().mean((1, 2))
        seen[fn] = float((share > 0).float().mean()), float(share.max()), out
    for fn, p, most in ((bot, .5, .4), (bot_released, .5, .4), (transreid, .5, 1/3), (camel, .6, .4)):
        assert abs(seen[fn][0] - p) < .05 and most - .04 < seen[fn][1] < most + .02
    colour = lambda fn: seen[fn][2].permute(0, 2, 3, 1)[(seen[fn][2] != 0).any(1)].unique(dim=0)
    mean, std = np.array([.485, .456, .406]), np.array([.229, .224, .225])
    assert np.allclose(colour(bot), mean) and len(colour(bot)) == len(colour(camel)) == 1
    assert np.allclose((colour(bot_released).numpy() - mean)/std, mean, atol=1e-6)   # written after normalisation
    assert np.allclose(colour(camel), [.4416847, .41812873, .4237452])
    assert np.allclose(camel(black, generator(), (.1, .2, .3)).amax((0, 2, 3)), [.1, .2, .3])


def test_training_images_are_resized_as_asked():
    sharp, soft = (Batches(table(), 6, (5, 3), resample=r).batch(0, 0)["img"] for r in ("bicubic", "bilinear"))
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
            else: taken.append(rows); seen.add(who)
        if len(taken) < P: return out
        out.append(np.concatenate(taken)); queue = rest


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 200), st.integers(1, 5), st.integers(1, 6))
def test_pk_order_is_that_of_the_naive_form_bit_for_bit(seed, ids, n, k, P):
    pid = np.concatenate([np.arange(ids), np.random.default_rng(seed).integers(0, ids, n)]) * 3 - 5
    P, (a, b) = min(P, ids), (np.random.default_rng(seed) for _ in range(2))
    got, want = pk_order(pid, P * k, a, k), pk_order_naive(pid, P * k, b, k)
    assert len(got) == len(want) and all(np.array_equal(x, y) for x, y in zip(got, want))
    assert a.integers(2**62) == b.integers(2**62)   # and as many draws


def test_an_order_of_many_images_takes_little_time():
    import time
    start = time.process_time()
    pk_order(np.arange(40_000) // 8, 64, np.random.default_rng(0))
    assert time.process_time() - start < 2   # 3 s when quadratic, 40 s for 160,000
