"Ranked lists: right and wrong marked, captions cut to their row, small enough for a page"
import numpy as np
import pytest
from PIL import Image

from reid_lab.figures import ranked_lists, style
from reid_lab.figures.captions import lists_beside


def test_strips_mark_right_and_wrong(strips):
    fig = ranked_lists.ranked_lists(*strips, k=3)
    from matplotlib.patches import Rectangle
    edges = [p for p in fig.axes[0].patches if isinstance(p, Rectangle) and p.get_linewidth() > 1]
    want = [p == q for q, row in zip((0, 1), strips[1]["one"]) for order in (row, row[::-1])
            for p in strips[4][order[:3]]]
    assert [e.get_linestyle() == "-" or e.get_linestyle() == "solid" for e in edges] == want
    with pytest.raises(ValueError, match="2 queries"):
        ranked_lists.ranked_lists(strips[0], strips[1], strips[2], [0], strips[4])


def test_a_long_caption_is_cut_to_its_row(strips):
    fig = ranked_lists.ranked_lists(*strips, k=3, column="ieee", max_height=9)
    text = max((t.get_text() for t in fig.axes[0].texts), key=len)
    assert text.endswith("…") and "$5" in text
    assert max(map(len, style.wrap_text("word " * 40, 1.).split("\n"))) < 25


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
