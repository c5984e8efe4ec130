"Curves, pointing, mass and chance against loops, and what is refused"
import math

import numpy as np
import pytest
import torch
from helpers.towers import SIZE

from reid_lab.analysis.explain import faithfulness
from reid_lab.analysis.explain.faithfulness import (
    MODES,
    Perturbation,
    against_random,
    chance_level,
    fit_map,
    mass_inside,
    perturbation_curve,
    pointing,
    random_maps,
    word_curve,
)
from reid_lab.core.statistics import mean_interval


def naive_curve(score, img, heat, mode, steps, patch, plain):
    "One image whose map has no ties; units in a list"
    H, W = heat.shape
    units = [(r, c) for r in range(0, H, patch) for c in range(0, W, patch)]
    units.sort(key=lambda u: -heat[u[0]:u[0] + patch, u[1]:u[1] + patch].mean())
    out = []
    for s in range(steps + 1):
        x = (img if mode == "deletion" else plain).clone()
        for r, c in units[:round(s*len(units)/steps)]:
            x[:, :, r:r + patch, c:c + patch] = (plain if mode == "deletion" else img)[:, :, r:r + patch, c:c + patch]
        out.append(float(score(x)[0]))
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("patch, steps, batch", [(8, 4, 128), (7, 5, 1), (1, 3, 7)])
def test_curves_against_a_loop(mode, patch, steps, batch, img):
    heat = np.random.default_rng(0).random((3, *SIZE))
    weight = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([1., -2., 3.])                                  # one for each image
    score = lambda x: target.repeat(len(x)//3)*(x*weight).sum((1, 2, 3))
    got = perturbation_curve(score, img, heat, mode, Perturbation(steps, patch, "grey", batch))
    for b in range(3):
        one = lambda x: target[b]*(x*weight).sum((1, 2, 3))
        want = naive_curve(one, img[b:b + 1], heat[b], mode, steps, patch, torch.full_like(img[:1], .5))
        assert np.allclose(got[b], want, rtol=1e-4)
        trapezium = sum((want[i] + want[i + 1])/2 for i in range(steps))/steps
        assert math.isclose(faithfulness.area(got[b]), trapezium, rel_tol=1e-4)


def test_random_maps_have_the_spectrum_of_their_map():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:64, :32]
    smooth = np.exp(-((y - 20)**2 + (x - 10)**2)/80.)
    rough = rng.random((64, 32))
    step = lambda m: np.abs(np.diff(m, axis=-1)).mean()/m.std()
    for m in (smooth, rough):
        maps = random_maps(m, 20, seed=1)[:, 0]
        assert maps.shape == (20, 64, 32) and .5 < np.mean([step(r) for r in maps])/step(m) < 2
        assert np.abs(np.corrcoef(maps.reshape(20, -1), m.reshape(1, -1))[-1, :-1].mean()) < .35
    assert np.array_equal(random_maps(smooth, 2, 3), random_maps(smooth, 2, 3))
    assert np.allclose(random_maps(np.full((1, 8, 4), 2.), 3), 2)


def test_a_random_map_does_not_beat_random_maps():
    "No gain where the map has nothing to do with the score; a gain where it is the score"
    x = torch.ones(40, 3, *SIZE)
    weight = torch.zeros(*SIZE)
    weight[10:30, 5:20] = 1
    score = lambda x: (x*weight).sum((1, 2, 3))
    y, c = np.mgrid[:64, :32]
    blob = np.exp(-((y - 50)**2 + (c - 20)**2)/60.)
    noise = random_maps(blob, 40, seed=9)[:, 0]
    kw = dict(modes="deletion", n=4, perturbation=Perturbation(8, baseline="grey"))
    null = mean_interval(against_random(score, x, noise, **kw).gain)
    assert null["low"] < 0 < null["high"]
    right = against_random(score, x[:8], np.repeat(weight.numpy()[None], 8, 0), **kw)
    assert right.gain.min() > 0 and right.beats.mean() > .9


def test_constant_maps_are_chance(img):
    mask = np.zeros((3, *SIZE), bool)
    mask[0, :8] = True
    mask[1, 3:20, 4:9] = True
    flat, area = np.full((3, 5, 7), .3), [8/64, 17*5/2048]
    for fn in (pointing, mass_inside):
        got = fn(flat, mask)
        assert np.allclose(got[:2], area) and np.isnan(got[2])
    assert np.allclose(chance_level(mask)[:2], area) and np.isnan(chance_level(mask)[2])
    within = np.zeros_like(mask)
    within[:, :16] = True
    assert np.allclose(chance_level(mask, within)[:2], [.5, 13*5/512])
    maps = np.random.default_rng(0).random((4000, 4, 2))
    hit = np.zeros((4000, 4, 2), bool)
    hit[:, 1] = True
    assert abs(pointing(maps, hit).mean() - .25) < .03


def test_pointing_and_mass_against_loops():
    rng = np.random.default_rng(0)
    heat, mask = rng.normal(size=(5, 6, 4)).round(1), rng.random((5, 6, 4)) < .3
    for b in range(5):
        top = [(i, j) for i in range(6) for j in range(4) if heat[b, i, j] == heat[b].max()]
        assert math.isclose(pointing(heat, mask)[b], sum(mask[b][p] for p in top)/len(top))
        total = sum(max(v, 0) for v in heat[b].ravel())
        inside = sum(max(heat[b, i, j], 0) for i in range(6) for j in range(4) if mask[b, i, j])
        assert math.isclose(mass_inside(heat, mask)[b], inside/total)


@pytest.mark.parametrize("bad", [np.full((2, 4, 2), np.nan), np.full((2, 4, 2), np.inf)])
def test_nan_is_refused(bad, img):
    with pytest.raises(ValueError, match="NaN or infinite values in the maps"): fit_map(bad)
    with pytest.raises(ValueError, match="NaN or infinite"): pointing(bad, np.ones((2, 4, 2)))
    with pytest.raises(ValueError, match="NaN or infinite"): word_curve(lambda t: torch.zeros(len(t)), "a", [np.nan])


def test_interval_of_groups():
    values, groups = [1., 3., 5., 7., 9.], ["a", "a", "b", "b", "c"]
    found = mean_interval(values, groups)
    means = np.array([2., 6., 9.])
    half = 4.302652729696142*means.std(ddof=1)/math.sqrt(3)               # Student's t, 2 degrees of freedom
    assert math.isclose(found["mean"], means.mean()) and (found["n"], found["groups"]) == (5, 3)
    assert math.isclose(found["low"], means.mean() - half, rel_tol=1e-9) and found["high"] >= means.mean() + half - 1e-9


@pytest.mark.parametrize("mode", MODES)
def test_word_curves_against_a_loop(mode):
    text, saliency = "one two three four five", [.1, .5, -.2, .9, 0.]
    score = lambda texts: torch.tensor([float(sum(len(w) for w in t.split())) for t in texts])
    order, want = [3, 1, 0, 4, 2], []
    for s in range(4):
        first = order[:round(s*5/3)]
        keep = [w for i, w in enumerate(text.split()) if (i in first) == (mode == "insertion")]
        want.append(sum(map(len, keep)))
    assert word_curve(score, text, saliency, mode, steps=3).tolist() == want
