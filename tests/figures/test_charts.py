"Figures: style, no leaking state, stable bytes, the right marks"
import io
import json
import subprocess
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from reid_lab.figures import charts, ranked_lists, style
from reid_lab.results import comparisons
from reid_lab.figures.captions import lists_beside


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    return pd.DataFrame([dict(variant=v, method=v, seed=s, n_masked=n, dataset=d, R1=40 + gain - 2*n + rng.normal())
                         for v, gain in (("a_1", 0), ("b & $c$", 3)) for s in range(4) for n in range(3)
                         for d in ("world", "world-2")])


@pytest.fixture
def strips():
    images = np.random.default_rng(0).integers(0, 255, (6, 32, 16, 3)).astype(np.uint8)
    order = np.array([[0, 2, 1, 3], [2, 0, 3, 5]])
    return ["A man with a $5 hat_1 \\alpha & <b>bag</b> " * 9,
            "A woman."], dict(one=order, two=order[:, ::-1]), images, [0, 1], np.array([0, 0, 1, 1, 2, 2])


def test_style_is_exact_and_leaves_no_trace():
    matplotlib.rcParams["lines.linewidth"] = 7.7  # a user's own setting
    before = dict(matplotlib.rcParams)
    with style.paper_style("cvpr") as width:
        assert width == 3.25 and matplotlib.rcParams["pdf.fonttype"] == 42
        assert matplotlib.rcParams["lines.linewidth"] < 2
        assert 7 <= matplotlib.rcParams["xtick.labelsize"] <= matplotlib.rcParams["font.size"] <= 9
    assert dict(matplotlib.rcParams) == before
    matplotlib.rcParams["lines.linewidth"] = matplotlib.rcParamsDefault["lines.linewidth"]
    with pytest.raises(ValueError, match="Did you mean 'ieee'"):
        with style.paper_style("iee"): pass


def test_no_pyplot_figure_is_left_open(runs):
    code = ("import sys, pandas as pd, reid_lab.figures.charts as F; "
            "F.curves(pd.DataFrame(dict(x=[1, 2], y=[1, 2])), 'x', 'y').picture(); "
            "print('matplotlib.pyplot' in sys.modules)")
    assert subprocess.run([sys.executable, "-c",
                           code], capture_output=True, text=True, check=True).stdout.strip() == "False"


def test_a_notebook_shows_a_small_picture_in_the_colours_drawn(runs):
    drawn, shown = io.BytesIO(), charts.curves(runs, "n_masked", "R1", by="method")
    first = shown.picture()
    assert first == shown.picture() == charts.curves(runs, "n_masked", "R1", by="method").picture()
    with style.paper_style(): shown.savefig(drawn, dpi=110, format="png")
    assert len(first) < .5*len(drawn.getvalue())
    few, all_ = (np.asarray(Image.open(f).convert("RGB")).astype(int) for f in (io.BytesIO(first), drawn))
    assert few.shape == all_.shape and (few[(all_ == 255).all(2)] == 255).all()  # white stays white
    flat, times = np.unique(all_.reshape(-1, 3), axis=0, return_counts=True)
    for colour in flat[np.argsort(-times)[:12]]:  # bands, bars, lines: not the rims of letters
        assert np.abs(few[(all_ == colour).all(2)] - colour).max() <= 4


@pytest.mark.parametrize("kind", ["curves", "masking", "bars", "strips"])
def test_exports_are_stable_and_fonts_are_type_42(kind, runs, strips, tmp_path):
    make = dict(curves=lambda: charts.curves(runs, "n_masked", "R1", by="method"), masking=lambda: charts.masking_curves(runs),
                bars=lambda: charts.bars_paired(runs[(runs.n_masked == 0) & (runs.dataset == "world")], "R1", "a_1"),
                strips=lambda: ranked_lists.ranked_lists(*strips, k=3, column="cvpr"))[kind]
    fig = make()
    first = [p.read_bytes() for p in style.export(fig, "x", tmp_path, ("pdf", "png", "svg", "jpg"))]
    fig.picture()
    assert first == [p.read_bytes() for p in style.export(fig, "x", tmp_path, ("pdf", "png", "svg", "jpg"))]
    assert first == [p.read_bytes() for p in style.export(make(), "x", tmp_path, ("pdf", "png", "svg", "jpg"))]
    assert b"/Type3" not in first[0] and b"CreationDate" not in first[0] and b"<text" in first[2]
    assert b"Exif" not in first[3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.jpg", "x.pdf", "x.png", "x.svg"]


def test_export_stays_in_its_folder(runs, tmp_path):
    fig = charts.curves(runs, "n_masked", "R1")
    with pytest.raises(ValueError, match="path '../x.pdf' leaves"): style.export(fig, "../x", tmp_path/"a")
    with pytest.raises(ValueError, match="format='gif' is not known"): style.export(fig, "x", tmp_path, "gif")


def test_curves_average_over_seeds(runs):
    frame = runs[runs.dataset == "world"]
    ax = charts.curves(frame, "n_masked", "R1", by="method").axes[0]
    want = frame[frame.method == "a_1"].groupby("n_masked").R1.mean()
    assert np.allclose(ax.lines[0].get_ydata(), want) and len(ax.collections) == 2
    assert len({l.get_marker() for l in ax.lines}) == 2 and len({str(l.get_linestyle()) for l in ax.lines}) == 2


@pytest.mark.parametrize("sharey", [True, False])
def test_panels_share_their_axis_if_told(runs, sharey):
    low = runs[runs.dataset == "world"]
    frame = pd.concat([low.assign(test="a"), low.assign(test="b", R1=low.R1 + 500)])
    a, b = (ax.get_ylim() for ax in charts.curves(frame, "n_masked", "R1", panel="test", sharey=sharey).axes)
    assert (a == b) == sharey and (sharey or b[0] > a[1])


def test_bars_show_what_paired_says(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world")]
    left, right = charts.bars_paired(frame, "R1", "a_1").axes
    p = comparisons.paired(frame, "R1", "a_1", "b & $c$")
    assert left.get_xlim()[0] == 0
    assert right.lines[1].get_xdata().tolist() == [p.low, p.high] and right.lines[2].get_xdata()[0] == p.diff
    assert (right.lines[2].get_markerfacecolor() == "white") == (p.verdict == "not resolved")


def test_bars_without_a_spread_have_no_interval(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world") & (runs.method == "a_1")].assign(variant="a")
    frame = pd.concat([frame, frame.assign(variant="same"), frame.assign(variant="all higher", R1=frame.R1 + 1)])
    right = charts.bars_paired(frame, "R1", "a", column_name="variant").axes[1]
    assert [l.get_xdata()[0] for l in right.lines[1:]] == pytest.approx([0, 1])
    assert {l.get_markerfacecolor() for l in right.lines[1:]} == {"white"}


def test_strips_mark_right_and_wrong(strips):
    fig = ranked_lists.ranked_lists(*strips, k=3)
    from matplotlib.patches import Rectangle
    edges = [p for p in fig.axes[0].patches if isinstance(p, Rectangle) and p.get_linewidth() > 1]
    want = [p == q for q, row in zip((0, 1), strips[1]["one"]) for order in (row, row[::-1])
            for p in strips[4][order[:3]]]
    assert [e.get_linestyle() == "-" or e.get_linestyle() == "solid" for e in edges] == want
    with pytest.raises(ValueError, match="2 queries"):
        ranked_lists.ranked_lists(strips[0], strips[1], strips[2], [0], strips[4])


@pytest.mark.parametrize("names, column", [(("one", "a rather long name, which needs two lines"), "cvpr"),
                                           ("abcd", "cvpr-full"), ("abcdef", "cvpr-full")])
def test_lists_of_several_models_stand_side_by_side(strips, names, column):
    "Four models and three captions were 12 inches high"
    images, order = strips[2], np.array([[0, 2, 1, 3, 4, 5], [2, 0, 3, 5, 4, 1], [3, 2, 0, 1, 5, 4]])
    ranked = {n: order[:, ::1 - 2*(i%2)] for i, n in enumerate(names)}
    notes, pid = {n: ["SD 0.10"]*3 for n in names}, strips[4]
    captions = ["word " * 300, "A $5 hat_1.", strips[0][0]]
    fig = lists_beside(captions, ranked, images, [0, 1, 2], pid, notes, column=column)
    ax = fig.axes[0]
    fig.set_dpi(100); fig.canvas.draw()
    assert fig.get_size_inches()[1] < (4.8 if len(names) < 5 else 7)
    for t in ax.texts:
        box = t.get_window_extent()
        assert 0 <= box.x0 and box.x1 <= fig.bbox.x1 + 1 and 0 <= box.y0 and box.y1 <= fig.bbox.y1 + 1, t
    said = [t.get_text() for t in ax.texts]
    assert len(ax.images) == 18*len(names) and sum(t == "SD 0.10" for t in said) == 3*len(names)
    cut = [t for t in said if t.startswith("word")]
    assert cut[0].count("\n") == 2 and cut[0].endswith("…") and "A $5 hat_1." in said
    from matplotlib.patches import Rectangle
    edges = [p for p in ax.patches if isinstance(p, Rectangle)]
    want = [p == q for q in range(3) for m in ranked for p in pid[ranked[m][q]]]
    assert [e.get_linestyle() in ("-", "solid") for e in edges] == want
    boxes = sorted({(round(x, 3), round(y, 3)) for x, _, y, _ in (i.get_extent() for i in ax.images)})
    assert len(boxes) == len(ax.images)      # none is hidden


def test_a_long_caption_is_cut_to_its_row(strips):
    fig = ranked_lists.ranked_lists(*strips, k=3, column="ieee", max_height=9)
    text = max((t.get_text() for t in fig.axes[0].texts), key=len)
    assert text.endswith("…") and "$5" in text
    assert max(map(len, style.wrap_text("word " * 40, 1.).split("\n"))) < 25


def test_logs(tmp_path):
    (tmp_path/"log.jsonl").write_text("".join(json.dumps(dict(step=i, loss=1/(i + 1))) + "\n" for i in range(5))
                                      + '{"step": 5, "l')
    assert len(charts.read_log(tmp_path/"log.jsonl")) == 5
    assert len(charts.learning_curves(tmp_path/"log.jsonl", "loss").axes[0].lines) == 1
    with pytest.raises(ValueError, match="Did you mean 'loss'"): charts.learning_curves(tmp_path/"log.jsonl", "lost")


# --- names are text ---------------------------------------------------------------------------------------------------

ODD = ["_private", "$x$ of 50%", "a_b^2 $", r"\alpha $\beta$", "100% & #1 ~{}"]


def drawn(fig):
    "All texts of a figure, those that are read as mathematics apart"
    from matplotlib.cbook import is_math_text
    from matplotlib.text import Text
    fig.picture()
    texts = [t.get_text() for t in fig.findobj(Text) if t.get_text()]
    shown = [t.replace(r"\$", "$").strip("\u200a") for t in texts]
    return shown, [t for t in fig.findobj(Text) if t.get_parse_math() and t.get_text() and is_math_text(t.get_text())
                   and "mathdefault" not in t.get_text()]


def test_odd_names_are_drawn_as_they_are():
    frame = pd.DataFrame([dict(variant=v, seed=s, R1=40. + i + s, x=s, panel=p) for i, v in enumerate(ODD)
                          for s in range(3) for p in ("$p$ 5%", "_q")])
    one = frame[frame.panel == "_q"]
    for fig in (charts.curves(frame, "x", "R1", by="variant", panel="panel"), charts.bars_paired(one, "R1", ODD[0], width=9.),
                charts.learning_curves({v: [{"step": 1, "$loss$_1": 1.}, {"step": 2, "$loss$_1": 2.}] for v in ODD},
                                  "$loss$_1")):
        shown, maths = drawn(fig)
        assert not maths, maths
        assert set(ODD) <= {t.replace("\n", " ") for t in shown}
    shown, _ = drawn(charts.curves(frame, "x", "R1", by="variant", panel="panel"))
    assert {"$p$ 5%", "_q"} <= set(shown)


def test_odd_names_in_figures_of_cameras():
    from reid_lab.figures.cameras import camera_bars, camera_map, nmi_bars
    points = pd.DataFrame(dict(x=[0., 1, 2], y=[0., 1, 2], cam=[0, 1, 2], pid=[0, 1, 2]))
    cams = pd.DataFrame(dict(cam=[0, 1], n_query=[3, 4], mAP=[40., 50.]))
    nmi = pd.DataFrame(dict(method=ODD, camera=.1, identity=.5))
    for fig in (camera_map({v: points for v in ODD}, width=20.), camera_bars({v: cams for v in ODD}, width=20.),
                nmi_bars(nmi, width=20.)):
        shown, maths = drawn(fig)
        assert not maths and all(any(v in t for t in shown) for v in ODD)


def test_a_blank_nmi_is_drawn_as_blank():
    from reid_lab.figures.cameras import nmi_bars
    fig = nmi_bars(pd.DataFrame(dict(method=["a", "b"], camera=[np.nan, np.nan], identity=[.5, .6])))
    assert "not defined" in drawn(fig)[0] and "0.000" not in drawn(fig)[0]


@pytest.mark.parametrize("name", ["$x$", "50%", "a:b", "a\\b", "a\nb", "what?", "q*", "<i>", "x.", "é"*150])
def test_files_have_names_that_every_system_takes(name, tmp_path):
    path, = style.export(style.paper_figure(1., 1.), name, tmp_path, "png")
    assert path.exists() and not set(path.name) & set('$%:\\\n?*<>|"~#{}') and len(path.name) < 130
    other, = style.export(style.paper_figure(1., 1.), f"{name}%", tmp_path, "png")
    assert other != path, "two names never share a file"


def test_infinite_losses_of_a_log_are_numbers(tmp_path):
    from reid_lab.results.rows import json_values
    rows = [dict(step=s, loss=v) for s, v in enumerate((1., np.inf, np.nan))]
    (tmp_path/"log.jsonl").write_text("".join(json.dumps(json_values(r), allow_nan=False) + "\n" for r in rows))
    assert charts.read_log(tmp_path/"log.jsonl").loss.tolist()[:2] == [1., np.inf]


def wrap_naive(text, width, max_lines):
    "Lines as they were cut before, measuring the whole rest of a word each time (quadratic)"
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path
    font = FontProperties(family="DejaVu Sans", size=7)
    def wide(s): return text_to_path.get_text_width_height_descent(s, font, ismath=False)[0]/72
    lines = [""]
    for word in text.split():
        while wide(word) > width and len(word) > 4:
            cut = max(1, int(len(word)*width/wide(word)) - 1)
            lines += [word[:cut]]; word = word[cut:]
        if wide(f"{lines[-1]} {word}") <= width: lines[-1] = f"{lines[-1]} {word}".strip()
        else: lines.append(word)
    lines = [x for x in lines if x]
    if len(lines) > max_lines: lines = [*lines[:max_lines - 1], lines[max_lines - 1].rstrip(".,;") + " …"]
    return "\n".join(lines)


def test_lines_are_cut_as_before_and_in_linear_time():
    import time
    rng = np.random.default_rng(0)
    for _ in range(60):
        words = ["".join(rng.choice(list("iiillmWW.,e"), rng.integers(1, 60))) for _ in range(rng.integers(1, 12))]
        width, most = rng.choice([.3, 1., 3.]), int(rng.integers(1, 9))
        assert style.wrap_text(" ".join(words), width, 7, most) == wrap_naive(" ".join(words), width, most)
    start = time.process_time()
    assert style.wrap_text("W"*200_000, 1., 7, 4).endswith("…")
    assert time.process_time() - start < 1
    assert "".join(style.wrap_text("ab"*2_000, 1., 7, 4_000).split("\n")) == "ab"*2_000


@pytest.mark.parametrize("values", [(.0015, .003, .006, .012, .024), (1, 2), (100, 300, 900, 2700, 8100, 24300, 72900)])
def test_texts_of_ticks_do_not_overlap(values):
    "Every value has a tick on a logarithmic axis; where panels are narrow, only some have a text"
    rows = pd.DataFrame([dict(x=v, y=i, part=p) for i, v in enumerate(values) for p in "abc"])
    fig = charts.curves(rows, "x", "y", panel="part", logx=True, column="cvpr-full")
    fig.canvas.draw()
    for ax in fig.axes:
        ticks = ax.xaxis.get_major_ticks()
        assert [t.get_loc() for t in ticks] == list(values) and ticks[0].label1.get_text() == f"{values[0]:g}"
        boxes = [t.label1.get_window_extent() for t in ticks if t.label1.get_text()]
        assert all(a.x1 < b.x0 for a, b in zip(boxes, boxes[1:]))


# --- keys, levels and sizes -------------------------------------------------------------------------------------------

def test_keys_name_only_the_marks_that_occur(runs):
    frame = runs[(runs.n_masked == 0) & (runs.dataset == "world")]
    high = pd.concat([frame[frame.method == "a_1"], frame[frame.method == "a_1"].assign(
        variant="up", R1=lambda f: f.R1 + 5 + .1*f.seed)])
    fig = charts.bars_paired(high, "R1", "a_1", label="R@1 (%), World")
    assert [t.get_text() for t in fig.legends[0].texts] == ["one seed", "higher"]
    assert "points, 95" in " ".join(fig.axes[1].get_xlabel().split())


def test_controls_stand_below_the_methods(runs):
    one = runs[(runs.n_masked == 0) & (runs.dataset == "world") & (runs.method == "a_1")]
    frame = pd.concat([one.assign(variant=v, R1=one.R1 + i*one.seed) for i, v in enumerate(("a", "control", "b", "c"))])
    fig = charts.bars_paired(frame, "R1", "a", controls=["control", "not measured"])
    left, right = fig.axes
    at = dict(zip([t.get_text() for t in left.get_yticklabels()], left.get_yticks()))
    assert at == {"a": 0, "b": 1, "c": 2, "controls": 3, "control": 4}
    p = comparisons.paired(frame, "R1", "a", "control", column="variant")
    dot = [l for l in right.lines if len(l.get_xdata()) == 1 and l.get_ydata()[0] == at["control"]]
    assert dot[0].get_xdata()[0] == p.diff


def test_two_seeds_are_points_and_a_level_starts_at_zero(runs):
    frame = runs[(runs.dataset == "world") & (runs.seed < 2)]
    ax = charts.curves(frame, "n_masked", "R1", by="method").axes[0]
    assert not ax.collections and ax.get_legend().get_title().get_text() == "mean; dots: 2 seeds"
    assert sorted(ax.lines[1].get_ydata()) == sorted(frame[frame.method == "a_1"].R1) and ax.get_ylim()[0] > 0
    assert charts.curves(frame, "n_masked", "R1", zero=True).axes[0].get_ylim()[0] == 0
    assert charts.masking_curves(frame).axes[0].get_ylim()[0] == 0


def test_a_legend_covers_no_line():
    cross = pd.DataFrame([dict(x=x, y=y, line=f"line {i}") for i in range(6) for x, y in ((0, i), (1, 5 - i))])
    fig = charts.curves(cross, "x", "y", by="line")
    fig.draw_without_rendering()
    box = fig.legends[0].get_window_extent()
    assert fig.axes[0].get_legend() is None and box.y0 >= fig.axes[0].get_window_extent().y1
    flat = charts.curves(cross[cross.line < "line 2"].assign(y=0), "x", "y", by="line")
    assert flat.axes[0].get_legend() is not None


@pytest.mark.parametrize("kind", ["captions", "images", "beside", "people"])
def test_strips_fit_half_a_page_and_one_megabyte(kind, tmp_path):
    "Two queries, two methods, ten results; crops with the detail and the noise of photographs"
    from reid_lab.figures.captions import people_sheet
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (30, 32, 16, 3)).astype(np.uint8)
    coarse = [Image.fromarray(c).resize((128, 256)) for c in coarse]
    images = (np.stack(coarse) + rng.normal(0, 4, (30, 256, 128, 3))).clip(0, 255).astype(np.uint8)
    order, pid = np.arange(20).reshape(2, 10), np.arange(30) % 7
    ranked, said = dict(before=order, adapted=order[::-1]), ["A man in a red coat with a grey bag. " * 4]*2
    fig = dict(captions=lambda: ranked_lists.ranked_lists(said, ranked, images, [0, 1], pid),
               images=lambda: ranked_lists.ranked_lists(list(images[:2]), ranked, images, [0, 1], pid),
               beside=lambda: lists_beside(said, ranked, images, [0, 1], pid, {m: ["SD 0.1"]*2 for m in ranked}),
               people=lambda: people_sheet(images[:28].reshape(4, 7, 256, 128, 3), said[:1]*7))[kind]()
    assert fig.get_figheight() < 4.5, "half of a page of 9 inches"
    for path in style.export(fig, kind, tmp_path, ("pdf", "png"), dpi=300):
        assert path.stat().st_size < 2**20, (path.name, path.stat().st_size)


def test_losses_are_named_as_in_papers():
    fig = charts.learning_curves([dict(step=i, itc_loss=1., triplet_loss=2.) for i in range(3)],
                            ["itc_loss", "triplet_loss"], ylabel="World")
    assert [ax.get_title() for ax in fig.axes] == ["ITC loss", "triplet loss"]
    assert fig.axes[0].get_ylabel() == "World"
