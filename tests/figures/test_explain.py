"Pages of maps: nothing lies on anything else, and what is no better than random is marked"
import numpy as np
import pytest
from helpers.figures import ODD, drawn
from matplotlib.patches import Rectangle

from reid_lab.figures.explain import MapGroup, MapPanel, map_sheet


@pytest.mark.parametrize("column, n_words", [("cvpr-full", 5), ("cvpr-full", 12), ("cvpr", 3)])
def test_a_page_of_maps(column, n_words):
    img = np.full((64, 32, 3), 120, np.uint8)
    panels = [MapPanel(img), *(MapPanel(img, f"{i} of 19", i % 2 == 0) for i in range(n_words))]
    heads = ("image", *("backpack " + ODD[i % len(ODD)] for i in range(n_words)))
    groups = [MapGroup("A very long caption. "*30, heads, {name: panels for name in (*ODD[:2], "CAMeL")}),
              MapGroup("", heads[:2], {"one": panels[:2]})]
    fig = map_sheet(groups, column)
    ax, (width, height) = fig.axes[0], fig.get_size_inches()
    texts, read_as_maths = drawn(fig)
    assert not read_as_maths and sum(t == "0 of 19" for t in texts) == 4
    assert len(ax.images) == 3*(n_words + 1) + 2
    boxes = [image.get_extent() for image in ax.images]
    assert all(0 < x0 < x1 <= width + 1e-9 and 0 < y0 < y1 < height for x0, x1, y1, y0 in boxes)
    assert len({(round(x, 3), round(y, 3)) for x, _, y, _ in boxes}) == len(boxes)      # none is hidden
    dashed = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_linestyle() not in ("-", "solid")]
    assert len(dashed) == 3*(n_words//2) + 1     # odd ones, and the key
    fig.set_dpi(300)     # as exported
    fig.canvas.draw()
    heads = [h.get_window_extent() for h in ax.texts if (h.get_size(), h.get_ha()) == (6.5, "center")]
    assert len(heads) == n_words + 3
    assert not any(a.overlaps(b) for i, a in enumerate(heads) for b in heads[:i])
    caption = next(t for t in ax.texts if t.get_text().startswith("A very long")).get_window_extent()
    assert caption.x1/fig.dpi < min(x0 for x0, *_ in boxes) and caption.y0 > 0
