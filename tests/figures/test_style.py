"Style without a trace, exports byte for byte, names of files, lines of text"
import io

import matplotlib
import numpy as np
import pytest
from PIL import Image

from reid_lab.figures import ranked_lists
from reid_lab.figures.charts import bars_paired, curves, masking_curves
from reid_lab.figures.style import export, paper_figure, paper_style, wrap_text


def test_style_is_exact_and_leaves_no_trace():
    matplotlib.rcParams["lines.linewidth"] = 7.7  # a user's own setting
    before = dict(matplotlib.rcParams)
    with paper_style("cvpr") as width:
        assert width == 3.25 and matplotlib.rcParams["pdf.fonttype"] == 42
        assert matplotlib.rcParams["lines.linewidth"] < 2
        assert 7 <= matplotlib.rcParams["xtick.labelsize"] <= matplotlib.rcParams["font.size"] <= 9
    assert dict(matplotlib.rcParams) == before
    matplotlib.rcParams["lines.linewidth"] = matplotlib.rcParamsDefault["lines.linewidth"]
    with pytest.raises(ValueError, match="Did you mean 'ieee'"):
        with paper_style("iee"): pass


def test_a_notebook_shows_a_small_picture_in_the_colours_drawn(runs):
    drawn, shown = io.BytesIO(), curves(runs, "n_masked", "R1", by="method")
    first = shown.picture()
    assert first == shown.picture() == curves(runs, "n_masked", "R1", by="method").picture()
    with paper_style(): shown.savefig(drawn, dpi=110, format="png")
    assert len(first) < .5*len(drawn.getvalue())
    few, all_ = (np.asarray(Image.open(f).convert("RGB")).astype(int) for f in (io.BytesIO(first), drawn))
    assert few.shape == all_.shape and (few[(all_ == 255).all(2)] == 255).all()  # white stays white
    flat, times = np.unique(all_.reshape(-1, 3), axis=0, return_counts=True)
    for colour in flat[np.argsort(-times)[:12]]:  # bands, bars, lines: not the rims of letters
        assert np.abs(few[(all_ == colour).all(2)] - colour).max() <= 4


@pytest.mark.parametrize("kind", ["curves", "masking", "bars", "strips"])
def test_exports_are_stable_and_fonts_are_type_42(kind, runs, strips, tmp_path):
    make = dict(curves=lambda: curves(runs, "n_masked", "R1", by="method"), masking=lambda: masking_curves(runs),
                bars=lambda: bars_paired(runs[(runs.n_masked == 0) & (runs.dataset == "world")], "R1", "a_1"),
                strips=lambda: ranked_lists.ranked_lists(*strips, k=3, column="cvpr"))[kind]
    fig = make()
    first = [p.read_bytes() for p in export(fig, "x", tmp_path, ("pdf", "png", "svg", "jpg"))]
    fig.picture()
    assert first == [p.read_bytes() for p in export(fig, "x", tmp_path, ("pdf", "png", "svg", "jpg"))]
    assert first == [p.read_bytes() for p in export(make(), "x", tmp_path, ("pdf", "png", "svg", "jpg"))]
    assert b"/Type3" not in first[0] and b"CreationDate" not in first[0] and b"<text" in first[2]
    assert b"Exif" not in first[3]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.jpg", "x.pdf", "x.png", "x.svg"]


def test_export_stays_in_its_folder(runs, tmp_path):
    fig = curves(runs, "n_masked", "R1")
    with pytest.raises(ValueError, match="path '../x.pdf' leaves"): export(fig, "../x", tmp_path/"a")
    with pytest.raises(ValueError, match="format='gif' is not known"): export(fig, "x", tmp_path, "gif")


@pytest.mark.parametrize("name", ["$x$", "50%", "a:b", "a\\b", "a\nb", "what?", "q*", "<i>", "x.", "é"*150])
def test_files_have_names_that_every_system_takes(name, tmp_path):
    path, = export(paper_figure(1., 1.), name, tmp_path, "png")
    assert path.exists() and not set(path.name) & set('$%:\\\n?*<>|"~#{}') and len(path.name) < 130
    other, = export(paper_figure(1., 1.), f"{name}%", tmp_path, "png")
    assert other != path, "two names never share a file"


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
            lines += [word[:cut]]
            word = word[cut:]
        if wide(f"{lines[-1]} {word}") <= width: lines[-1] = f"{lines[-1]} {word}".strip()
        else: lines.append(word)
    lines = [x for x in lines if x]
    if len(lines) > max_lines: lines = [*lines[:max_lines - 1], lines[max_lines - 1].rstrip(".,;") + " …"]
    return "\n".join(lines)


def test_lines_are_cut_as_by_the_naive_form_also_long_ones():
    rng = np.random.default_rng(0)
    for _ in range(60):
        words = ["".join(rng.choice(list("iiillmWW.,e"), rng.integers(1, 60))) for _ in range(rng.integers(1, 12))]
        width, most = rng.choice([.3, 1., 3.]), int(rng.integers(1, 9))
        assert wrap_text(" ".join(words), width, 7, most) == wrap_naive(" ".join(words), width, most)
    assert wrap_text("W"*200_000, 1., 7, 4).endswith("…")
    assert "".join(wrap_text("ab"*2_000, 1., 7, 4_000).split("\n")) == "ab"*2_000
