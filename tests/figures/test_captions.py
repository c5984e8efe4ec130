"Lists of several models side by side"
import numpy as np
import pytest

from reid_lab.figures.captions import lists_beside


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
