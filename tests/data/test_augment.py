"Pixels, and random erasing as recorded runs and the released programs have it"
import math
import random

import numpy as np
import pytest
import torch

from reid_lab.data import augment
from reid_lab.data.augment import (
    AUGMENT,
    bot,
    bot_released,
    camel,
    channel_exchange,
    erase,
    irra,
    light,
    rand_augment,
    rectangles,
    to_pixels,
    transreid,
)


def test_pixels_are_the_bytes_over_255():
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 4, 3)).astype(np.uint8)
    want = torch.from_numpy(x).permute(0, 3, 1, 2).float()/255
    for batch in (x, np.asfortranarray(x)): assert torch.equal(to_pixels(batch), want)
    assert to_pixels(x).stride() == want.stride()          # the layout that recorded scores were made with
    for wrong in (x/255, x[0]):
        with pytest.raises(ValueError, match=r"expected uint8 \(N,H,W,3\)"): to_pixels(wrong)


def generator(seed=0): return torch.Generator().manual_seed(seed)


def test_erasing_leaves_the_rest_alone():
    x = torch.rand(50, 3, 16, 8)
    y = erase(x, torch.Generator().manual_seed(0), p=1.)
    same = (x == y).all(1)
    assert same.any() and (~same).any() and (same.float().mean((1, 2)) > .4).all()


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
        h.append(first[0])
        w.append(first[1])
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
    x = torch.rand(40, 3, *size, generator=generator(1))
    now = light(x, generator(5))
    monkeypatch.setattr(augment, "erase",
                        lambda img, g, p, rectangle: old_erase(img, g, p, rectangle.area, 3.3, (.45, .43, .42)))
    assert torch.equal(now, light(x, generator(5)))


def test_erasing_of_the_papers(monkeypatch):
    "Area, colour and number of erased images, on black"
    for name in ("flip", "pad_crop", "rand_augment"): monkeypatch.setattr(augment, name, lambda img, *a: img)
    black, seen = torch.zeros(800, 3, 64, 32), {}
    for fn in (bot, bot_released, irra, transreid, camel):
        out = fn(black, generator())
        share = (out != 0).any(1).float().mean((1, 2))
        seen[fn] = float((share > 0).float().mean()), float(share.max()), out
    stated = dict.fromkeys((bot, bot_released, irra), (.5, .4)) | {transreid: (.5, 1/3), camel: (.6, .4)}
    for fn, (p, most) in stated.items():
        assert abs(seen[fn][0] - p) < .05 and most - .04 < seen[fn][1] < most + .02
    colour = lambda fn: seen[fn][2].permute(0, 2, 3, 1)[(seen[fn][2] != 0).any(1)].unique(dim=0)
    mean, std = np.array([.485, .456, .406]), np.array([.229, .224, .225])
    assert np.allclose(colour(bot), mean) and len(colour(bot)) == len(colour(camel)) == 1
    assert np.allclose((colour(bot_released).numpy() - mean)/std, mean, atol=1e-6)   # written after normalisation
    assert np.allclose(colour(irra), [.611, .577, .521], atol=1e-3)                  # of CLIP's mean, too
    assert np.allclose(colour(camel), [.4416847, .41812873, .4237452])
    assert np.allclose(camel(black, generator(), (.1, .2, .3)).amax((0, 2, 3)), [.1, .2, .3])


def test_the_released_form_of_camel_has_no_crop(monkeypatch):
    "Without flip, RandAugment and erasing an image stays as it is; the paper's form moves it by up to ten pixels"
    for name in ("flip", "rand_augment"): monkeypatch.setattr(augment, name, lambda img, *a: img)
    monkeypatch.setattr(augment, "erase", lambda img, *a, **kw: img)
    img = torch.rand(20, 3, 32, 16, generator=generator())
    assert torch.equal(AUGMENT["camel_released"](img, generator()), img)
    assert not torch.equal(AUGMENT["camel"](img, generator()), img)


def test_jitter_of_joined_sets_has_its_strengths(monkeypatch):
    "Brightness of 0.8 to 1.2; contrast of 0.85 to 1.15 about the mean grey; no saturation"
    monkeypatch.setattr(augment, "bot", lambda img, g: img)
    flat = AUGMENT["bot_jitter"](torch.full((4000, 3, 2, 2), .5), generator())
    assert flat.min() >= .4 and flat.max() <= .6 and flat.amax() - flat.amin() > .19
    two = torch.tensor([.4, .6]).repeat(2).view(1, 1, 2, 2).expand(4000, 3, 2, 2)
    out = AUGMENT["bot_jitter"](two, generator())
    contrast = (out[:, 0].amax((1, 2)) - out[:, 0].amin((1, 2)))/(out[:, 0].mean((1, 2))*.4)
    assert .845 < contrast.min() < .86 and 1.14 < contrast.max() < 1.155
    assert torch.allclose(out[:, 0], out[:, 2])


def test_rand_augment_draws_operations_and_applies_a_share():
    img = torch.rand(60, 3, 32, 16, generator=generator())
    def changed(**kw): return (rand_augment(img, generator(), **kw) != img).flatten(1).any(1).float().mean().item()
    assert changed(p=0.) == 0 and changed(n_ops=0) == 0
    assert changed(n_ops=1, p=1.) > .75 and changed() == pytest.approx(1 - (1 - .5*.85)**2, abs=.2)


def test_erasing_takes_single_settings_of_the_last_release():
    x, given = torch.ones(4, 3, 32, 16), dict(area=(.1, .2), ratio=2., aspect="even", tries=9)
    def draw(**how): return augment.erase(x, torch.Generator().manual_seed(3), p=1., **how)
    with pytest.warns(DeprecationWarning, match=r"rectangle=Rectangle\(area") as caught: old = draw(**given)
    assert caught[0].filename == __file__ and torch.equal(old, draw(rectangle=augment.Rectangle(**given)))
    with pytest.raises(TypeError, match="rectangle=.* is of type tuple"):
        augment.erase(x, torch.Generator(), 1., (.1, .2))


# ---- channel augmentation

def test_channels_are_exchanged_as_drawn():
    "The function against a loop over its own draws, image by image"
    img = torch.rand(64, 3, 4, 2, generator=generator())
    channels = torch.randint(3, (64,), generator=(g := generator()))
    exchanged, grey = torch.rand(64, generator=g) < .75, torch.rand(64, generator=g) < .5
    weights = torch.tensor([.299, .587, .114])
    by_hand = img.clone()
    for i, x in enumerate(by_hand):
        if exchanged[i]: x[:] = img[i, channels[i]]
        elif grey[i]: x[:] = torch.einsum("c,chw->hw", weights, img[i])
    out = channel_exchange(img, generator())
    torch.testing.assert_close(out, by_hand)
    changed = (out != img).flatten(1).any(1)
    assert exchanged.sum() < changed.sum() < 64


@pytest.mark.parametrize("p, grey, shares", [
    (.75, .5, (.25, .25, .25, .125, .125)),      # ChannelAdapGray of the program
    (1., .5, (1/3, 1/3, 1/3, 0, 0)),             # its ChannelExchange
    (0., 1., (0, 0, 0, 1, 0)), (0., 0., (0, 0, 0, 0, 1))])
def test_shares_of_exchanged_and_grey_images(p, grey, shares):
    colour = torch.tensor([.1, .5, .9])
    out = channel_exchange(colour[None, :, None, None].repeat(6000, 1, 1, 1), generator(), p, grey)[:, :, 0, 0]
    luma = float(.299*.1 + .587*.5 + .114*.9)
    kinds = [torch.full((3,), v) for v in (.1, .5, .9, luma)] + [colour]
    found = [((out - kind).abs().amax(1) < 1e-5).float().mean().item() for kind in kinds]
    assert found == pytest.approx(shares, abs=.02) and sum(found) == pytest.approx(1)


def test_infrared_images_keep_their_pixels():
    infrared = torch.rand(32, 1, 8, 4, generator=generator()).repeat(1, 3, 1, 1)
    torch.testing.assert_close(channel_exchange(infrared, generator()), infrared)


def test_erasing_of_channel_augmentation_is_in_the_colours_of_paper_and_program():
    black = torch.zeros(400, 3, 64, 32)
    for name, colour in dict(channel=(.485, .456, .406), channel_released=(.5975, .5640, .5065)).items():
        found = AUGMENT[name](black, generator())
        levels = set(found.unique().mul(1e3).round().int().tolist()) - {0}
        luma = .299*colour[0] + .587*colour[1] + .114*colour[2]
        assert levels == {round(1e3*v) for v in (*colour, luma)}, name
    with pytest.raises(ValueError, match="grey=2 is a share"): channel_exchange(black, generator(), grey=2)
