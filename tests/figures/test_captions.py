"Lists of several models side by side, and rows of images"
import numpy as np
import pytest
from helpers.figures import ODD, drawn

from reid_lab.figures.captions import image_rows, lists_beside


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
    fig.set_dpi(100)
    fig.canvas.draw()
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


@pytest.mark.parametrize("column, shape", [("cvpr", (64, 32, 3)), ("cvpr-full", (64, 32, 3)),
                                           ("cvpr-full", (30, 60, 3))])
def test_rows_of_images_stay_on_the_page(column, shape):
    "Rows of unequal length, names and notes of any text"
    names = (*ODD, "a name of many words "*3, "world-2, street, site 1")
    rows = {name: [np.full(shape, 90, np.uint8)]*(i + 1) for i, name in enumerate(names)}
    fig = image_rows(rows, {name: "12 cameras, 1,234,567 images" for name in rows}, column)
    ax = fig.axes[0]
    texts, read_as_maths = drawn(fig)
    assert not read_as_maths and set(ODD) <= set(texts) and len(ax.images) == 28
    width, height = fig.get_size_inches()
    boxes = [image.get_extent() for image in ax.images]
    assert all(0 < x0 < x1 <= width + 1e-9 and 0 < y0 < y1 < height for x0, x1, y1, y0 in boxes)
    assert all((x1 - x0)/(y1 - y0) == pytest.approx(shape[1]/shape[0]) for x0, x1, y1, y0 in boxes)
    fig.set_dpi(300)     # as exported
    fig.canvas.draw()
    names = [t.get_window_extent() for t in ax.texts if t.get_text()]
    assert not any(a.overlaps(b) for i, a in enumerate(names) for b in names[:i])
    assert all(a.x1/fig.dpi < min(x0 for x0, *_ in boxes) for a in names)      # bold letters too
