"P values of paired differences, Holm's correction, equivalence: against scipy, statsmodels and plain loops"
import math

import numpy as np
import pytest
from scipy import stats

from reid_lab.results.comparisons import Intervals, paired_scores, paired_table
from reid_lab.results.conclusions import conclusions
from reid_lab.results.endings import end_lines, run_end
from reid_lab.results.run_tables import RunSide, compare_runs
from reid_lab.results.significance import comparisons_note, equivalence, holm, paired_p, resolved_after
from reid_lab.results.tables import p_text, to_markdown


def plain_holm(p):
    "By the definition: the largest of (m - i + 1) p_i over all smaller or equal ones, at most 1"
    order = sorted(p)
    return [min(1., max((len(p) - i)*order[i] for i in range(order.index(value) + 1))) for value in p]


def draws(n=40):
    rng = np.random.default_rng(0)
    return [rng.uniform(size=rng.integers(1, 15))**3 for _ in range(n)] + [[.02, .02, .02], [0., 1.], [.5]]


def test_holm_by_hand():
    assert holm([.01, .04, .03, .005]) == pytest.approx([.03, .06, .06, .02])
    assert holm([.5, .9]) == pytest.approx([1., 1.]) and holm([]) == []


@pytest.mark.parametrize("p", draws())
def test_holm_is_that_of_a_plain_loop(p):
    assert holm(p) == pytest.approx(plain_holm(list(p)))


@pytest.mark.parametrize("p", draws())
def test_holm_is_that_of_statsmodels(p):
    multitest = pytest.importorskip("statsmodels.stats.multitest", reason="statsmodels, the extra mixed")
    assert holm(p) == pytest.approx(multitest.multipletests(p, method="holm")[1])


def test_a_comparison_without_a_p_value_is_counted():
    found = holm([.01, math.nan, .02])
    assert found[0] == pytest.approx(.03) and math.isnan(found[1]) and found[2] == pytest.approx(.04)
    with pytest.raises(ValueError, match="p=-0.1"): holm([-.1])


def test_holm_keeps_the_chance_of_any_false_claim():
    "Ten comparisons without an effect on four seeds: single intervals claim something in a third of tables"
    rng = np.random.default_rng(1)
    alone = corrected = 0
    for _ in range(400):
        values = rng.normal(size=(10, 4))
        p = [paired_p(v.mean(), v.std(ddof=1), 4) for v in values]
        alone += min(p) < .05
        corrected += min(holm(p)) < .05
    assert alone/400 > .3 and corrected/400 < .08


def test_p_is_that_of_scipy():
    a, b = [40., 43., 38., 41., 44.], [42., 44.5, 40.5, 42., 47.]
    assert paired_scores("R1", a, b).p == pytest.approx(stats.ttest_rel(b, a).pvalue)
    assert math.isnan(paired_scores("R1", [1.], [2.]).p) and math.isnan(paired_scores("R1", [1., 2.], [2., 3.]).p)
    assert [p_text(p) for p in (.0004, .04123, 1., None, math.nan)] == ["<.001", ".041", "1.000", "", ""]


def frame(gains, seeds=4, noise=.5):
    import pandas as pd
    rng = np.random.default_rng(11)
    level = 3*rng.normal(size=seeds)
    return pd.DataFrame([dict(variant=v, seed=s, dataset="world", split="test", preset="quick",
                              mAP=40 + level[s] + gain + noise*rng.normal())
                         for v, gain in gains.items() for s in range(seeds)])


GAINS = {"Base": 0., "A": 8., **{f"B{i}": .8 for i in range(8)}}


def test_a_table_says_how_many_comparisons_it_holds_and_adjusts_them():
    table = paired_table(frame(GAINS), "mAP", "Base")
    assert (table.after_holm == [resolved_after(*pair) for pair in zip(table.verdict, table.p_holm)]).all()
    assert table.after_holm[0] == "higher" and (table.verdict[1:] == "higher").any()
    assert (table.after_holm[1:] == "not resolved").all()
    assert "9 comparisons" in to_markdown(table) and "p\\_holm" in to_markdown(table)
    single = paired_table(frame({"Base": 0, "A": 8.}), "mAP", "Base")
    assert "footnote" not in single.attrs and comparisons_note(1) == ""
    wide = paired_table(frame(GAINS), "mAP", "Base", intervals=Intervals(adjust="bonferroni"))
    assert "99.44 %" in wide.attrs["footnote"] and (wide.p_holm == table.p_holm).all()


def test_a_sentence_calls_resolved_only_what_lasts():
    text = conclusions(frame(GAINS))[1]
    corrected, _, alone = text.partition("; each for itself")
    assert corrected.startswith("Resolved at 95 % after Holm's correction for 9 comparisons, in points: A +")
    assert "B" not in corrected and "B" in alone
    none = conclusions(frame({name: gain for name, gain in GAINS.items() if name != "A"}))[1]
    assert none.startswith("No difference is resolved at 95 % after Holm's correction for 8 comparisons; each for")


def test_the_end_of_a_run_and_tables_of_runs_print_adjusted_values():
    import pandas as pd
    rows = [dict(dataset="world", split="test", variant=r.variant, method=r.variant, stage="", options={}, seed=r.seed,
                 extra={}, metrics=dict(mAP=r.mAP)) for r in frame(GAINS).itertuples()]
    end = run_end(dict(notebook="run_new", params=dict(preset="quick"), rows=rows, notes=[]))
    table = paired_table(frame(GAINS), "mAP", "Base")
    assert [row.p_holm for row in end.rows if row.gain] == pytest.approx(table.p_holm.tolist())
    assert any("p (Holm, 9)" in line for line in end_lines(end))
    side = frame(GAINS).assign(method=lambda f: f.variant, run="a", notebook="run_camel", commit="abc", stage="",
                               options=[{}]*40, parameters=[{}]*40)
    found = compare_runs([RunSide("a", pd.DataFrame(side))])
    assert found.lines.p_holm.tolist()[1:] == pytest.approx(table.p_holm.tolist())
    assert "p (Holm, 9)" in found.text() and "adjusted for 9 comparisons" in found.text()


@pytest.mark.parametrize("values, margin", [([.1, .2, -.1, .3], 1.), ([.1, 2., -3., .3], 1.), ([2., 2.2, 2.4, 2.1], 1.),
                                            ([-2., -2.2, -2.4, -2.1], 1.)])
def test_equivalence_is_two_one_sided_tests(values, margin):
    d = np.array(values)
    found = equivalence(d.mean(), d.std(ddof=1), len(d), margin)
    below = stats.ttest_1samp(d, -margin, alternative="greater").pvalue
    above = stats.ttest_1samp(d, margin, alternative="less").pvalue
    assert found.p == pytest.approx(max(below, above)) and found.level == (max(below, above) < .05)
    interval = stats.ttest_1samp(d, 0).confidence_interval(.9)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_equivalence_is_that_of_statsmodels():
    weights = pytest.importorskip("statsmodels.stats.weightstats", reason="statsmodels, the extra mixed")
    a, b = np.array([40., 43., 38., 41.]), np.array([40.3, 42.8, 38.4, 41.1])
    p, _, _ = weights.ttost_paired(b, a, -1., 1.)
    d = b - a
    assert equivalence(d.mean(), d.std(ddof=1), 4, 1.).p == pytest.approx(p)


def test_an_interval_that_holds_zero_is_not_level():
    wide = paired_scores("mAP", [40., 43., 38., 41.], [41., 41., 39., 42.5])
    assert wide.verdict == "not resolved" and wide.equivalence(1.).words == "not resolved"
    assert equivalence(0., 0., 4, 1.).words == equivalence(.1, 1., 1, 1.).words == "not resolved"
    for margin in (0., -1., math.nan, math.inf):
        with pytest.raises(ValueError, match="margin="): equivalence(0., 1., 4, margin)


def test_the_figure_fills_only_what_lasts():
    from reid_lab.figures.charts import bars_paired
    fig = bars_paired(frame(GAINS), "mAP", "Base")
    texts = [text.get_text() for text in fig.legends[0].texts]
    assert "higher" in texts and "not after Holm" in texts
    assert "Holm of 9" in fig.axes[1].get_xlabel().replace("\n", " ")
    points = [line for line in fig.axes[1].get_lines() if line.get_marker() == "o"]
    assert sum(line.get_markerfacecolor() != "white" for line in points) == 1


@pytest.mark.parametrize("call, says", [
    (lambda: resolved_after("better", .01), "verdict='better'.*higher"),
    (lambda: resolved_after("higher", 1.5), "adjusted=1.5 must be a number between 0 and 1"),
    (lambda: resolved_after("higher", "0"), "adjusted='0'"), (lambda: resolved_after("higher", None), "adjusted=None"),
    (lambda: resolved_after("higher", .01, level=1), "level=1 is no interval"),
    (lambda: resolved_after("equal", -.1), "adjusted=-0.1"),
    (lambda: comparisons_note(-1), "n=-1"), (lambda: comparisons_note(4, level=95), "level=95"),
    (lambda: comparisons_note(1, level=0.), "level=0.0 is no interval"),
    *[(lambda bad=bad: equivalence(0., 1., 5, bad), "margin=.*above 0.*such as 1.0")
      for bad in (-1., 0., math.nan, math.inf, "1", None, True)],
    (lambda: equivalence(math.nan, 1., 5, 1.), "diff=nan"), (lambda: equivalence(math.inf, 1., 5, 1.), "diff=inf"),
    (lambda: equivalence(0., -1., 5, 1.), "sd=-1.0"), (lambda: equivalence(0., 1., 0, 1.), "n=0"),
    (lambda: equivalence(0., 1., 5, 1., alpha=0), "alpha=0 leaves an endless interval"),
    (lambda: equivalence(0., 1., 5, 1., alpha=.7), "alpha=0.7")])
def test_what_no_test_can_read_is_refused(call, says):
    with pytest.raises(ValueError, match=says): call()


def test_equivalence_and_correction_are_those_of_naive_rules():
    rng = np.random.default_rng(1)
    for _ in range(200):
        d, margin = rng.normal(rng.uniform(-2, 2), rng.uniform(.1, 2), rng.integers(2, 12)), rng.uniform(.1, 2)
        found = equivalence(d.mean(), d.std(ddof=1), len(d), margin)
        ps = (stats.ttest_1samp(d, -margin, alternative="greater").pvalue,
              stats.ttest_1samp(d, margin, alternative="less").pvalue)
        assert found.p == pytest.approx(max(ps)) and found.level == (max(ps) < .05)
        verdict, p = str(rng.choice(["higher", "lower", "equal", "not resolved"])), rng.uniform(0, .1)
        expected = "not resolved" if verdict in ("higher", "lower") and p >= .05 else verdict
        assert resolved_after(verdict, p) == expected
    assert equivalence(0., math.nan, 1, 1.).words == "not resolved"
    assert resolved_after("higher", math.nan) == "not resolved"
