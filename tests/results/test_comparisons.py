"Means over seeds and paired comparisons against a reference: what an interval says, and what it does not"
import math

import numpy as np
import pandas as pd
import pytest

from reid_lab.results.comparisons import Intervals, paired, paired_table, relative_to, smallest_effect, summarise
from reid_lab.results.rows import Setting, settings_of
from reid_lab.results.tables import to_markdown


def rows(values, **more):
    "A frame: variant -> list of R1, one a seed"
    return pd.DataFrame([dict(variant=v, seed=s, R1=x, **more) for v, xs in values.items() for s, x in enumerate(xs)])


@pytest.mark.parametrize("column", ["dataset", "split", "preset"])
def test_rows_of_two_kinds_are_neither_averaged_nor_paired(column):
    frame = rows(dict(a=[1., 2.], b=[3., 4.])).assign(dataset="world", split="test", preset="quick")
    other = frame[frame.variant == "b"].assign(**{column: "x", "seed": [0, 1]})
    message = f"would mix 2 values of {column!r}"
    with pytest.raises(ValueError, match=message): summarise(pd.concat([frame, other]), "R1", by="variant")
    both = pd.concat([frame[frame.variant == "a"], other], ignore_index=True)
    with pytest.raises(ValueError, match=message): paired(both, "R1", "a", "b")
    with pytest.raises(ValueError, match=message): relative_to(both, "R1", "a")
    assert len(summarise(pd.concat([frame, other]), "R1", by=("variant", column))) == 3
    told = paired(both.assign(variant="v"), "R1", {column: frame[column].iat[0]}, {column: "x"})
    assert told.diff == 2     # asked for by name


def test_paired_equals_scipy():
    from scipy import stats
    a, b = [40., 43., 38., 41., 44.], [42., 44.5, 40.5, 42., 47.]
    p = paired(rows(dict(a=a, b=b)), "R1", "a", "b")
    test = stats.ttest_rel(b, a).confidence_interval(.95)
    assert (p.t_low, p.t_high) == pytest.approx((test.low, test.high))
    assert p.diff == pytest.approx(2.) and p.n == 5 and p.verdict == "higher"
    assert paired(rows(dict(a=a, b=b)), "R1", "b", "a").verdict == "lower"
    assert p.t_low < p.boot_low < p.diff < p.boot_high < p.t_high


def test_relative_to_a_variant_of_the_same_seed():
    f = rows(dict(a=[1., 2.], b=[5., 7.])).sample(frac=1, random_state=0)
    f["over"] = relative_to(f, "R1", "a")
    assert f.set_index(["variant", "seed"]).over.to_dict() == {("a", 0): 0, ("a", 1): 0, ("b", 0): 4, ("b", 1): 5}
    alone = f[(f.variant == "b") | (f.seed == 0)]   # seed 1 has no row of `a`
    assert relative_to(alone, "R1", "a").isna().tolist() == (alone.seed == 1).tolist()
    with pytest.raises(ValueError, match="variant='c'"): relative_to(f, "R1", "c")
    with pytest.raises(ValueError, match="more than one row"): relative_to(pd.concat([f, f]), "R1", "a")


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [paired(rows(dict(a=rng.normal(40, 1, 5), b=rng.normal(40, 1, 5))), "R1", "a", "b") for _ in range(150)]
    wrong = sum(p.verdict != "not resolved" for p in found)
    assert 1 <= wrong <= 16  # 5 % nominal; this bound is over three standard deviations above


def test_pairs_are_matched_by_seed_not_by_order():
    frame = rows(dict(a=[10., 20., 30.], b=[11., 21., 31.])).sample(frac=1, random_state=1)
    p = paired(frame, "R1", "a", "b")
    assert p.values == (1., 1., 1.) and p.sd == 0
    lone = paired(frame[(frame.variant == "a") | (frame.seed < 2)], "R1", "a", "b")
    assert (lone.n, lone.unpaired) == (2, 1)


def test_unpaired_and_single():
    assert paired(rows(dict(a=[1.], b=[9.])), "R1", "a", "b").verdict == "not resolved"
    with pytest.raises(ValueError, match="more than one row"):
        paired(pd.concat([rows(dict(a=[1.], b=[2.]))]*2), "R1", "a", "b")
    apart = pd.concat([rows(dict(a=[1.])), rows(dict(b=[2.])).assign(seed=7)])
    with pytest.raises(ValueError, match="share no"): paired(apart, "R1", "a", "b")


@pytest.mark.parametrize("a, b, verdict", [
    ([40.], [41.5], "not resolved"), ([40.], [40.], "not resolved"),            # one pair
    ([40., 42.], [41.5, 43.5], "not resolved"), ([40., 42., 39.], [37., 39., 36.], "not resolved"),
    ([40., 42.], [40., 42.], "equal"), ([0., 0., 0.], [0., 0., 0.], "equal"),
    ([.1, .2], [.1 + .3, .2 + .3], "not resolved"),                             # 0.30000000000000004 and 0.3
    ([40., 42.], [40 + 4e-14, 42 - 1e-14], "equal"), ([40., 42.], [40 - 1e-6, 42.], "equal"),
    ([40., 42.], [41 + 2e-6, 43.], "not resolved")])                            # what float32 rounds
def test_a_spread_that_was_not_seen_is_no_certainty(a, b, verdict):
    "Two seeds with equal differences had an interval of width zero and were called higher"
    for way in (dict(a=a, b=b), dict(a=b, b=a)):
        p = paired(rows(way), "R1", "a", "b")
        assert p.verdict == verdict and (p.t_low, p.boot_low, p.t_high, p.boot_high) == (-math.inf,)*2 + (math.inf,)*2
        assert math.isnan(p.sd) if len(a) == 1 else p.sd == 0
        assert p.diff == (0 if verdict == "equal" else pytest.approx(np.subtract(way["b"], way["a"]).mean()))
        assert smallest_effect(p.n, p.sd) == math.inf and str(p).endswith(verdict)
    table = paired_table(rows(dict(a=a, b=b)), "R1", "a")
    assert table.verdict.tolist() == [verdict] and table.low.tolist() == [-math.inf] and "-inf" in to_markdown(table)


def test_a_small_spread_is_taken_at_its_word():
    "A thousandth of a point is above what rounding does, in one pair or between pairs"
    p = paired(rows(dict(a=[40., 42., 41.], b=[40.5, 42.501, 41.499])), "R1", "a", "b")
    assert p.verdict == "higher" and 0 < p.high - p.low < .01 and 0 < smallest_effect(3, p.sd) < .01
    p = paired(rows(dict(a=[40., 42., 41.], b=[40., 42., 41.001])), "R1", "a", "b")
    assert p.verdict == "not resolved" and p.sd > 0 and math.isfinite(p.low)
    tiny = paired(rows(dict(a=[1e-9, 2e-9, 3e-9], b=[2e-9, 4e-9, 3.5e-9])), "R1", "a", "b")     # relative, not absolute
    assert tiny.sd > 0 and tiny.verdict == "not resolved" and math.isfinite(tiny.low)


def test_bonferroni_is_wider():
    frame = rows(dict(a=[40., 42., 39.], b=[41., 44., 41.], c=[43., 44., 42.]))
    plain, family = (paired_table(frame, "R1", "a", intervals=Intervals(adjust=a)) for a in ("none", "bonferroni"))
    assert plain.variant.tolist() == ["b", "c"] and ((family.high - family.low) > (plain.high - plain.low)).all()


def test_summary():
    frame = summarise(rows(dict(a=[1., 2., 3.], b=[5.]), dataset="world"), "R1")
    assert frame.R1.tolist() == ["2.00 ± 1.00", "5.00"] and frame.n.tolist() == [3, 1]


def test_comparisons_by_setting_keep_to_a_stage():
    "The same table as by labels; equal fields are one setting, however they are printed"
    a, b, c = (Setting(m, "coarse", o) for m, o in (("a", {}), ("b", dict(k=1)), ("b", dict(k=2))))
    f = rows({s.label: [i + x for x in (1., 2.5, 3.)] for i, s in enumerate((a, b, c))})
    f = f.assign(setting=settings_of(f.assign(parameters=[dict(test="coarse", setting=v.removesuffix(", coarse"))
                                                          for v in f.variant])))
    f = pd.concat([f, f.assign(setting=[s.at("fine") for s in f.setting])], ignore_index=True)
    by_label = paired_table(f[:9], "R1", a.label)
    by_field = paired_table(f, "R1", Setting("a", "coarse", name="whatever"))
    pd.testing.assert_frame_equal(by_label.drop(columns="base"), by_field.drop(columns="base"))
    assert by_field.base.tolist() == ["whatever, coarse"]*2
    assert paired(f, "R1", b, c).diff == 1. and relative_to(f[:9], "R1", a).tolist() == [0.]*3 + [1.]*3 + [2.]*3
    with pytest.raises(ValueError, match="setting="): paired(f, "R1", a, Setting("b", "coarse", dict(k=3)))


def started(a, b, models=("m", "m"), **columns):
    "Three seeds of two methods with a clear difference, and what their trainings started from"
    return pd.DataFrame([dict(variant=v, seed=s, dataset="world", R1=40. + s + gain + .1*s*gain, **columns,
                              parameters=dict(weights=start, model=model))
                         for v, start, gain, model in (("a", a, 0, models[0]), ("b", b, 5, models[1]))
                         for s in range(3)])


@pytest.mark.parametrize("a, b, models", [("world", "none", ("m", "m")), ("none", "r50.pth", ("m", "m")),
                                          ("world", "r50.pth", ("m", "n")), ("one.pth", "two.pth", ("m", "m")),
                                          ("world,none", "world,world", ("m", "m")),
                                          ("world", "world (9 of 12 tensors)", ("m", "n"))])
def test_rows_of_other_starts_are_not_resolved(a, b, models):
    p = paired(started(a, b, models), "R1", "a", "b")
    assert p.low > 0 and p.verdict == "not resolved"
    assert p.note == f"other starts: a from {a}, b from {b}; train both from one start" and p.note in str(p)
    table = paired_table(started(a, b, models), "R1", "a")
    assert table.verdict.tolist() == ["not resolved"] and table.note.tolist() == [p.note]
    with pytest.warns(UserWarning, match="rows started from"): relative_to(started(a, b, models), "R1", "a")


@pytest.mark.parametrize("a, b, models", [("world", "world", ("m", "n")), ("r50.pth", "vit.pth", ("m", "n")),
                                          ("", "world", ("m", "m")), ("", "", ("m", "m"))])
def test_one_kind_of_start_is_comparable(a, b, models):
    p = paired(started(a, b, models), "R1", "a", "b")
    assert (p.verdict, p.note) == ("higher", "") and "note" not in paired_table(started(a, b, models), "R1", "a")


def test_starts_may_be_what_is_compared():
    frame = started("world", "none")
    assert paired(frame, "R1", dict(weights="world"), dict(weights="none")).verdict == "higher"
    named = frame.assign(variant=frame.variant.map({"a": "a, weights=world", "b": "a, weights=none"}))
    assert paired(named, "R1", "a, weights=world", "a, weights=none").verdict == "higher"


def test_numbers_called_weights_are_no_start_and_rows_from_before_weights_were_began_at_random():
    frame = started("world", "world").drop(columns="parameters")
    assert paired(frame.assign(weights=[1000]*3 + [1001]*3), "R1", "a", "b").note == ""     # of parameters
    assert paired(frame.assign(weights=["1, 1, 0.5"]*3 + ["1, 2, 0.5"]*3), "R1", "a", "b").note == ""   # of marks
    earlier = frame.assign(parameters=[dict(pretrained="", model="m")]*3 + [dict(weights="world", model="m")]*3)
    assert "a from none, b from world" in paired(earlier, "R1", "a", "b").note
    named = earlier.assign(parameters=[dict(pretrained="w.pth")]*3 + [dict(start="none")]*3)
    assert "from w.pth" in paired(named, "R1", "a", "b").note


def test_starts_are_looked_at_pair_by_pair():
    frame = started("world", "world").assign(weights=["world", "none", "world"]*2)
    assert paired(frame, "R1", "a", "b").note == ""
    assert "a from none, b from world" in paired(frame.assign(weights=["none"] + ["world"]*5), "R1", "a", "b").note


def test_conclusions_do_not_resolve_other_starts():
    from reid_lab.results.conclusions import conclusions, recorded_row
    rows = [dict(variant=r.variant, dataset="world", split="test", seed=r.seed, metrics=dict(mAP=r.R1),
                 extra=dict(weights=r.parameters["weights"])) for r in started("world", "none").itertuples()]
    said = conclusions(map(recorded_row, rows))[1]
    assert said.startswith("No difference is resolved") and "other starts: a from world, b from none" in said


def test_a_table_takes_single_settings_of_the_last_release():
    frame = rows(dict(a=[40., 42., 39.], b=[41., 44., 41.], c=[43., 44., 42.]))
    with pytest.warns(DeprecationWarning, match=r"intervals=Intervals\(level=..., adjust") as caught:
        old = paired_table(frame, "R1", "a", level=.8, adjust="bonferroni")
    assert caught[0].filename == __file__
    pd.testing.assert_frame_equal(old, paired_table(frame, "R1", "a", intervals=Intervals(.8, "bonferroni")))
    assert not old.equals(paired_table(frame, "R1", "a"))
    for wrong, message in ((dict(level=95), "level=95"), (dict(adjust="holm"), "adjust='holm'")):
        with pytest.raises(ValueError, match=message): Intervals(**wrong)
