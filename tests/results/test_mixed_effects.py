"Mixed-effects models: two-way analysis of variance by hand, components of variance, the message without statsmodels"
import sys

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reid_lab.results.mixed_effects import mixed_effects


def rows(n_worlds=8, gains=(0., .5, 2.), noise=.4, seed=0):
    rng = np.random.default_rng(seed)
    levels = rng.normal(40, 3, n_worlds)
    return pd.DataFrame([dict(variant=f"v{i}", seed=w, world=w, mAP=levels[w] + gain + noise*rng.normal())
                         for w in range(n_worlds) for i, gain in enumerate(gains)])


def test_one_row_a_variant_and_world_is_the_two_way_analysis_of_variance():
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    frame = rows()
    wide = frame.pivot(index="seed", columns="variant", values="mAP")
    rest = wide.sub(wide.mean(axis=1), axis=0) - wide.mean() + wide.to_numpy().mean()
    degrees = (8 - 1)*(3 - 1)
    error = np.sqrt(2*(rest.to_numpy()**2).sum()/degrees/8)
    found = mixed_effects(frame, "mAP", "v0")
    for line in found.itertuples():
        diff = (wide[line.variant] - wide.v0).mean()
        assert line.diff == pytest.approx(diff, abs=1e-6)
        assert line.high - line.low == pytest.approx(2*stats.t.ppf(.975, degrees)*error, rel=1e-3)
    assert found.attrs["degrees"] == degrees


def test_world_and_seed_are_two_effects_where_they_are_crossed_and_one_where_they_go_together():
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    rng = np.random.default_rng(0)
    worlds, seeds = 3*rng.normal(size=10), rng.normal(size=10)
    crossed = pd.DataFrame([dict(variant=v, world=w, seed=s, mAP=40 + worlds[w] + seeds[s] + g + .3*rng.normal())
                            for w in range(10) for s in range(10) for v, g in (("a", 0.), ("b", 1.))])
    parts = mixed_effects(crossed, "mAP", "a", random=("world", "seed")).attrs["components"]
    assert parts["world"] == pytest.approx(worlds.std(ddof=1), rel=.15)
    assert parts["seed"] == pytest.approx(seeds.std(ddof=1), rel=.15) and parts["residual"] == pytest.approx(.3, rel=.2)
    together = mixed_effects(rows(), "mAP", "v0", random=("world", "seed"))
    assert list(together.attrs["components"]) == ["world", "residual"] and "both are one" in together.attrs["footnote"]


@pytest.mark.parametrize("change, message", [
    (lambda f: f[f.seed == 0], "run more seeds"), (lambda f: f[f.variant == "v0"], "'v0' alone"),
    (lambda f: f.assign(dataset=f.seed), "would mix 8 values of 'dataset'"),
    (lambda f: f.drop(columns="seed"), "seed")])
def test_rows_that_allow_no_model_are_refused(change, message):
    with pytest.raises(ValueError, match=message): mixed_effects(change(rows()), "mAP", "v0")


def test_without_statsmodels_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels", None)
    monkeypatch.setitem(sys.modules, "statsmodels.regression.mixed_linear_model", None)
    with pytest.raises(ImportError, match=r"reid_lab\[mixed\].*paired_table compares without it"):
        mixed_effects(rows(), "mAP", "v0")


@pytest.mark.parametrize("change, kw, says", [
    (lambda f: pd.concat([f, f]), {}, "rows have the variant"),
    (lambda f: f, dict(random="variant"), "that are compared"),
    (lambda f: f, dict(random=()), "names no column"),
    (lambda f: f.assign(seed=f.seed.where(f.seed > 0)), {}, "empty in 2")])
def test_rows_that_would_mislead_are_refused(change, kw, says):
    frame = pd.DataFrame([dict(variant=v, seed=s, mAP=40. + s + (v == "b")) for s in range(5) for v in "ab"])
    with pytest.raises(ValueError, match=says): mixed_effects(change(frame), "mAP", "a", **kw)


def test_several_seeds_of_a_world_are_said():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame([dict(variant=v, world=w, seed=s, mAP=40. + w + s + (v == "b") + rng.normal())
                          for w in range(4) for s in range(3) for v in "ab"])
    assert "too narrow" in mixed_effects(frame, "mAP", "a", random=("world", "seed")).attrs["footnote"]
    of_worlds = frame.groupby(["variant", "world"], as_index=False).mAP.mean()
    assert "too narrow" not in mixed_effects(of_worlds, "mAP", "a", random="world").attrs["footnote"]
