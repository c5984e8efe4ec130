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


def crossed(n_worlds=10, n_seeds=6, by_world=1., seed=0):
    "Rows of 3 variants in Worlds with several seeds each"
    rng = np.random.default_rng(seed)
    worlds, seeds = 3*rng.normal(size=n_worlds), .8*rng.normal(size=(n_worlds, n_seeds))
    differ = by_world*rng.normal(size=(3, n_worlds))
    return pd.DataFrame([dict(variant=f"v{v}", world=w, seed=s,
                              mAP=40 + worlds[w] + seeds[w, s] + gain + differ[v, w] + .3*rng.normal())
                         for w in range(n_worlds) for s in range(n_seeds) for v, gain in enumerate((0., .5, 2.))])


def naive_components(frame):
    "Of a table without gaps by sums of squares: World, variant by World, seed within World, residual (variances)"
    n_variants, n_worlds, n_seeds = (frame[c].nunique() for c in ("variant", "world", "seed"))
    y = np.array([[[frame[(frame.variant == v) & (frame.world == w) & (frame.seed == s)].mAP.item()
                    for s in sorted(set(frame.seed))] for w in sorted(set(frame.world))]
                  for v in sorted(set(frame.variant))])
    cell, of_seed, world, variant = y.mean(2), y.mean(0), y.mean((0, 2)), y.mean((1, 2))
    between = sum((cell[v, w] - world[w] - variant[v] + y.mean())**2 for v in range(n_variants)
                  for w in range(n_worlds))
    by_world = n_seeds*between/((n_variants - 1)*(n_worlds - 1))
    within = n_variants*((of_seed - world[:, None])**2).sum()/(n_worlds*(n_seeds - 1))
    rest = ((y - cell[:, :, None] - of_seed[None] + world[None, :, None])**2).sum()
    residual = rest/((n_variants - 1)*n_worlds*(n_seeds - 1))
    worlds = n_variants*n_seeds*((world - y.mean())**2).sum()/(n_worlds - 1)
    return {"world": (worlds - by_world - within + residual)/(n_variants*n_seeds),
            "variant:world": (by_world - residual)/n_seeds, "seed within world": (within - residual)/n_variants,
            "residual": residual}


@pytest.mark.parametrize("seed", range(3))
def test_components_of_a_table_without_gaps_are_those_of_sums_of_squares(seed):
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    frame = crossed(seed=seed)
    found = mixed_effects(frame, "mAP", "v0", random=("world", "seed"))
    expected = naive_components(frame)
    assert list(found.attrs["components"]) == list(expected) and min(expected.values()) > 0
    for name, variance in expected.items():
        assert found.attrs["components"][name] == pytest.approx(variance**.5, rel=.02)


def test_with_several_seeds_intervals_are_those_of_the_means_of_each_world():
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    frame = crossed()
    whole = mixed_effects(frame, "mAP", "v0", random=("world", "seed"))
    means = mixed_effects(frame.groupby(["variant", "world"], as_index=False).mAP.mean(), "mAP", "v0", random="world")
    assert whole.attrs["degrees"] == means.attrs["degrees"] == 2*9
    for name in ("diff", "low", "high", "p_holm"):
        assert whole[name].tolist() == pytest.approx(means[name].tolist(), abs=5e-3)
    assert "is the residual" in means.attrs["footnote"] and "is the residual" not in whole.attrs["footnote"]


def test_scores_in_percent_and_as_shares_give_one_model():
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    frame = crossed(n_worlds=4, n_seeds=2)
    percent = mixed_effects(frame, "mAP", "v0", random=("world", "seed"))
    shares = mixed_effects(frame.assign(mAP=frame.mAP/100), "mAP", "v0", random=("world", "seed"))
    assert (100*shares["diff"]).tolist() == pytest.approx(percent["diff"].tolist(), abs=1e-6)
    assert (100*shares.low).tolist() == pytest.approx(percent.low.tolist(), abs=1e-6)


def test_intervals_hold_the_truth_where_each_world_has_several_seeds():
    "Forty tables without a difference; without the component variant by World 25 % of such intervals exclude 0"
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    tables = [crossed(n_worlds=6, n_seeds=3, seed=100 + k) for k in range(40)]
    for frame in tables: frame["mAP"] -= frame.variant.map(dict(v0=0., v1=.5, v2=2.))
    found = [mixed_effects(frame, "mAP", "v0", random=("world", "seed")) for frame in tables]
    assert sum(((t.low <= 0) & (t.high >= 0)).sum() for t in found) >= 70      # of 80; 76 are expected


def test_seed_and_world_that_go_together_are_one_effect():
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    together = mixed_effects(rows(), "mAP", "v0", random=("world", "seed"))
    assert list(together.attrs["components"]) == ["world", "residual"]
    assert "both are one" in together.attrs["footnote"]
    apart = rows().assign(seed=range(24))       # a number for each row: what seeds add is the residual
    found = mixed_effects(apart, "mAP", "v0", random=("world", "seed"))
    assert list(found.attrs["components"]) == ["world", "residual"]


def test_a_missing_row_keeps_the_others():
    pytest.importorskip("statsmodels", reason="statsmodels, the extra mixed")
    frame = crossed(n_worlds=5, n_seeds=2)
    lacking = frame[~((frame.variant == "v1") & (frame.world == 0))]
    found = mixed_effects(lacking, "mAP", "v0", random=("world", "seed"))
    assert dict(zip(found.variant, found.n)) == dict(v1=8, v2=10) and found.attrs["degrees"] == 14 - 3 - 5 + 1


@pytest.mark.parametrize("change, message", [
    (lambda f: f[f.seed == 0], "'seed' has 1 values"),
    (lambda f: f[f.seed < 2], "needs 3 or more; run more seeds"),
    (lambda f: f.assign(mAP=40.), "all 24 scores of 'mAP' are 40: there is no spread"),
    (lambda f: f.assign(mAP=40. + f.seed + (f.variant == "v1")), "every difference is the same in each seed"),
    (lambda f: f.assign(mAP="good"), "no numbers"), (lambda f: f.assign(mAP=f.mAP > 40), "bool, no numbers"),
    (lambda f: f.assign(mAP=f.mAP.where(f.seed > 0, np.inf)), "infinite in 3 rows"),
    (lambda f: f.assign(variant=f.variant.where(f.variant != "v2", None)), "'variant' is empty in 8 rows"),
    (lambda f: f[(f.variant == "v0") == (f.seed < 4)], "share no seed with the others"),
    (lambda f: f[f.variant == "v0"], "'v0' alone"),
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
    (lambda f: f, dict(random=()), "names no column"), (lambda f: f, dict(random=("seed", "seed")), "twice"),
    (lambda f: f, dict(random="mAP"), "their scores"), (lambda f: f, dict(level=1), "no interval"),
    (lambda f: f.assign(seed=f.seed.where(f.seed > 0)), {}, "empty in 2")])
def test_rows_that_would_mislead_are_refused(change, kw, says):
    frame = pd.DataFrame([dict(variant=v, seed=s, mAP=40. + s + (v == "b")) for s in range(5) for v in "ab"])
    with pytest.raises(ValueError, match=says): mixed_effects(change(frame), "mAP", "a", **kw)


@pytest.mark.parametrize("random", ["world", "seed"])
def test_several_seeds_of_a_world_are_named_together(random):
    frame = pd.DataFrame([dict(variant=v, world=w, seed=s, mAP=40. + w + s + (v == "b"))
                          for v in "ab" for w in range(4) for s in range(2)])
    with pytest.raises(ValueError, match="name both, random=.'world', 'seed'., or leave one"):
        mixed_effects(frame, "mAP", "a", random=random)
