"Charts: what is drawn is what the rows say, names are text, keys name what occurs"
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from helpers.figures import ODD, drawn

from reid_lab.figures.charts import AxisNames, bars_paired, curves, heat_map, learning_curves, masking_curves, read_log
from reid_lab.figures.style import metric_label
from reid_lab.results import comparisons


def test_no_pyplot_figure_is_left_open(runs):
    code = ("import sys, pandas as pd, reid_lab.figures.charts as F; "
            "F.curves(pd.DataFrame(dict(x=[1, 2], y=[1, 2])), 'x', 'y').picture(); "
            "print('matplotlib.pyplot' in sys.modules)")
    assert subprocess.run([sys.executable, "-c",
                           code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_curves_average_over_seeds(runs):
    frame = runs[runs.dataset == "world"]
    ax = curves(frame, "n_masked", "R1", by="method").axes[0]
    want = frame[frame.method == "a_1"].groupby("n_masked").R1.mean()
    assert np.allclose(ax.lines[0].get_ydata(), want) and len(ax.collections) == 2
    assert len({l.get_marker() for l in ax.lines}) == 2 and len({str(l.get_linestyle()) for l in ax.lines}) == 2


@pytest.mark.parametrize("sharey", [True, False])
def test_panels_share_their_axis_if_told(runs, sharey):
    low = runs[runs.dataset == "world"]
    frame = pd.concat([low.assign(test="a"), low.assign(test="b", R1=low.R1 + 500)])
    a, b = (ax.get_ylim() for ax in curves(frame, "n_masked", "R1", panel="test", sharey=sharey).axes)
    assert (a == b) == sharey and (sharey or b[0] > a[1])


def test_bars_show_what_paired_says(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world")]
    left, right = bars_paired(frame, "R1", "a_1").axes
    p = comparisons.paired(frame, "R1", "a_1", "b & $c$")
    assert left.get_xlim()[0] == 0
    assert right.lines[1].get_xdata().tolist() == [p.low, p.high] and right.lines[2].get_xdata()[0] == p.diff
    assert (right.lines[2].get_markerfacecolor() == "white") == (p.verdict == "not resolved")


def test_bars_without_a_spread_have_no_interval(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world") & (runs.method == "a_1")].assign(variant="a")
    frame = pd.concat([frame, frame.assign(variant="same"), frame.assign(variant="all higher", R1=frame.R1 + 1)])
    right = bars_paired(frame, "R1", "a", column_name="variant").axes[1]
    assert [l.get_xdata()[0] for l in right.lines[1:]] == pytest.approx([0, 1])
    assert {l.get_markerfacecolor() for l in right.lines[1:]} == {"white"}


def test_logs(tmp_path):
    (tmp_path/"log.jsonl").write_text("".join(json.dumps(dict(step=i, loss=1/(i + 1))) + "\n" for i in range(5))
                                      + '{"step": 5, "l')
    assert len(read_log(tmp_path/"log.jsonl")) == 5
    assert len(learning_curves(tmp_path/"log.jsonl", "loss").axes[0].lines) == 1
    with pytest.raises(ValueError, match="Did you mean 'loss'"): learning_curves(tmp_path/"log.jsonl", "lost")


def test_odd_names_are_drawn_as_they_are():
    frame = pd.DataFrame([dict(variant=v, seed=s, R1=40. + i + s, x=s, panel=p) for i, v in enumerate(ODD)
                          for s in range(3) for p in ("$p$ 5%", "_q")])
    one = frame[frame.panel == "_q"]
    for fig in (curves(frame, "x", "R1", by="variant", panel="panel"), bars_paired(one, "R1", ODD[0], width=9.),
                learning_curves({v: [{"step": 1, "$loss$_1": 1.}, {"step": 2, "$loss$_1": 2.}] for v in ODD},
                                  "$loss$_1")):
        shown, maths = drawn(fig)
        assert not maths, maths
        assert set(ODD) <= {t.replace("\n", " ") for t in shown}
    shown, _ = drawn(curves(frame, "x", "R1", by="variant", panel="panel"))
    assert {"$p$ 5%", "_q"} <= set(shown)


def test_infinite_losses_of_a_log_are_numbers(tmp_path):
    from reid_lab.results.rows import json_values
    rows = [dict(step=s, loss=v) for s, v in enumerate((1., np.inf, np.nan))]
    (tmp_path/"log.jsonl").write_text("".join(json.dumps(json_values(r), allow_nan=False) + "\n" for r in rows))
    assert read_log(tmp_path/"log.jsonl").loss.tolist()[:2] == [1., np.inf]


@pytest.mark.parametrize("values", [(.0015, .003, .006, .012, .024), (1, 2), (100, 300, 900, 2700, 8100, 24300, 72900)])
def test_texts_of_ticks_do_not_overlap(values):
    "Every value has a tick on a logarithmic axis; where panels are narrow, only some have a text"
    rows = pd.DataFrame([dict(x=v, y=i, part=p) for i, v in enumerate(values) for p in "abc"])
    fig = curves(rows, "x", "y", panel="part", logx=True, column="cvpr-full")
    fig.canvas.draw()
    for ax in fig.axes:
        ticks = ax.xaxis.get_major_ticks()
        assert [t.get_loc() for t in ticks] == list(values) and ticks[0].label1.get_text() == f"{values[0]:g}"
        boxes = [t.label1.get_window_extent() for t in ticks if t.label1.get_text()]
        assert all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:]))


def test_keys_name_only_the_marks_that_occur(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world")]
    high = pd.concat([frame[frame.method == "a_1"], frame[frame.method == "a_1"].assign(
        variant="up", R1=lambda f: f.R1 + 5 + .1*f.seed)])
    fig = bars_paired(high, "R1", "a_1", label="R@1 (%), World")
    assert [t.get_text() for t in fig.legends[0].texts] == ["one seed", "higher"]
    assert "points, 95" in " ".join(fig.axes[1].get_xlabel().split())


def test_keys_are_labelled_as_papers_write_them(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world")]
    frame = pd.concat([frame[frame.method == "a_1"].assign(variant=v, R1=lambda f: f.R1 + f.seed) for v in ("a", "b")])
    texts = [bars_paired(frame, "R1", "a").axes[0].get_xlabel()]
    texts += [masking_curves(runs).axes[0].get_ylabel(), curves(runs, "n_masked", "R1").axes[0].get_ylabel()]
    assert texts == ["R@1", "R@1 (%)", "R@1"], texts
    assert metric_label("RSum") == "RSum" and metric_label("mAP") == "mAP"


def test_controls_stand_below_the_methods(runs):
    one = runs[(runs.n_masked == 0) & (runs.dataset == "world") & (runs.method == "a_1")]
    frame = pd.concat([one.assign(variant=v, R1=one.R1 + i*one.seed) for i, v in enumerate(("a", "control", "b", "c"))])
    fig = bars_paired(frame, "R1", "a", controls=["control", "not measured"])
    left, right = fig.axes
    at = dict(zip([t.get_text() for t in left.get_yticklabels()], left.get_yticks()))
    assert at == {"a": 0, "b": 1, "c": 2, "controls": 3, "control": 4}
    p = comparisons.paired(frame, "R1", "a", "control", column="variant")
    dot = [l for l in right.lines if len(l.get_xdata()) == 1 and l.get_ydata()[0] == at["control"]]
    assert dot[0].get_xdata()[0] == p.diff


def test_two_seeds_are_points_and_a_level_starts_at_zero(runs):
    frame = runs[(runs.dataset == "world") & (runs.seed < 2)]
    ax = curves(frame, "n_masked", "R1", by="method").axes[0]
    assert not ax.collections and ax.get_legend().get_title().get_text() == "mean; dots: 2 seeds"
    assert sorted(ax.lines[1].get_ydata()) == sorted(frame[frame.method == "a_1"].R1) and ax.get_ylim()[0] > 0
    assert curves(frame, "n_masked", "R1", zero=True).axes[0].get_ylim()[0] == 0
    assert masking_curves(frame).axes[0].get_ylim()[0] == 0


def test_a_legend_covers_no_line():
    cross = pd.DataFrame([dict(x=x, y=y, line=f"line {i}") for i in range(6) for x, y in ((0, i), (1, 5 - i))])
    fig = curves(cross, "x", "y", by="line")
    fig.draw_without_rendering()
    box = fig.legends[0].get_window_extent()
    assert fig.axes[0].get_legend() is None and box.y0 >= fig.axes[0].get_window_extent().y1
    flat = curves(cross[cross.line < "line 2"].assign(y=0), "x", "y", by="line")
    assert flat.axes[0].get_legend() is not None


def test_losses_are_named_as_in_papers():
    fig = learning_curves([dict(step=i, itc_loss=1., triplet_loss=2.) for i in range(3)],
                            ["itc_loss", "triplet_loss"], ylabel="World")
    assert [ax.get_title() for ax in fig.axes] == ["ITC loss", "triplet loss"]
    assert fig.axes[0].get_ylabel() == "World"


def test_a_loss_that_never_acted_is_marked_and_other_zeros_are_not():
    rows = [dict(step=i, met_loss=0., late_loss=float(i == 2), R1=0.) for i in range(3)]
    titles = [ax.get_title() for ax in learning_curves(rows, ["met_loss", "late_loss", "R1"]).axes]
    assert ["never active" in title for title in titles] == [True, False, False]
    both = learning_curves({"a": rows, "b": [dict(row, met_loss=1.) for row in rows]}, "met_loss")   # in one of two
    assert "never active" not in both.axes[0].get_title()


def test_the_legend_counts_seeds_not_rows():
    def title(frame):
        fig = curves(frame, "x", "mAP")
        legend = fig.axes[0].get_legend()
        return "" if legend is None else legend.get_texts()[0].get_text()

    frame = pd.DataFrame(dict(x=[1, 2, 2], mAP=[1., 2., 3.], seed=[0, 0, 0]))
    assert title(frame) == "" and "2 seeds" in title(pd.concat([frame, frame.assign(seed=1)]))


def test_the_name_of_repeats_in_the_last_release_is_taken_with_a_warning(runs):
    with pytest.warns(DeprecationWarning, match="of= is called repeats= now"):
        old = curves(runs, "n_masked", "R1", by="method", of="draws")
    assert old.picture() == curves(runs, "n_masked", "R1", by="method", repeats="draws").picture()


def test_a_heat_map_takes_its_sides_as_the_last_release_did():
    with pytest.warns(DeprecationWarning, match=r"sides=AxisNames\(columns=..., rows") as caught:
        old = heat_map(pd.DataFrame([[1., 2.]]), xlabel="method", ylabel="regime")
    new = heat_map(pd.DataFrame([[1., 2.]]), sides=AxisNames("method", "regime"))
    for fig in (old, new): assert (fig.axes[0].get_xlabel(), fig.axes[0].get_ylabel()) == ("method", "regime")
    assert caught[0].filename == __file__
