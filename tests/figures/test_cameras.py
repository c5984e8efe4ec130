"Figures of cameras: every point once, means by hand, what is not defined"
import numpy as np
import pandas as pd
import pytest
from helpers.bias import scene
from helpers.figures import ODD, drawn

from reid_lab.analysis.bias.maps import project
from reid_lab.analysis.bias.per_camera import Binning, error_vs_distance
from reid_lab.core import statistics
from reid_lab.figures import cameras
from reid_lab.retrieval.embeddings import Embeddings


@pytest.fixture(scope="module")
def maps():
    q, g = scene(1., n=30, cams=4)
    e = Embeddings.concat([Embeddings(x.emb, x.pid, x.cam, columns=dict(role=[r]*len(x)))
                           for x, r in ((q, "query"), (g, "gallery"))])
    return {"one": project(e, "pca"), "two": project(e, "pca")}


def test_maps_draw_every_point_once(maps):
    fig = cameras.camera_map(maps)
    assert len(fig.axes) == 4
    for ax in fig.axes: assert sum(len(c.get_offsets()) for c in ax.collections) == 240 and len(ax.collections) == 4
    colours = lambda ax: {tuple(c) for s in ax.collections if len(s.get_offsets()) for c in s.get_facecolor().round(3)}
    assert len(colours(fig.axes[0])) == 4 and len(colours(fig.axes[2])) == 13     # a dozen people and grey
    assert [a.get_title() for a in fig.axes[:2]] == ["one", "two"] and len(fig.legends[0].texts) == 6
    bare = cameras.camera_map(maps["one"].drop(columns="role"), by="pid", identities=3)
    assert len(bare.axes) == 1 and not bare.legends and bare.axes[0].get_ylabel() == "by identity (3 of 30)"


def test_images_that_both_ask_and_are_searched_are_drawn(maps):
    "Features know the roles of a dataset, where `both` is one"
    with_roles = {name: frame.assign(role=np.resize(["both", "query", "gallery"], len(frame)))
                  for name, frame in maps.items()}
    fig = cameras.camera_map(with_roles)
    for ax in fig.axes: assert sum(len(points.get_offsets()) for points in ax.collections) == 240


def test_more_cameras_than_colours(maps):
    m = maps["one"].assign(cam=lambda f: np.arange(len(f)) % 20)
    fig = cameras.camera_map(m.drop(columns="role"), by="cam")
    assert len(fig.legends[0].texts) == 14 and fig.legends[0].texts[-1].get_text() == "7 more"
    assert len(set(cameras.palette(14))) == 14 and cameras.palette(0) == []


@pytest.mark.parametrize("n, last", [(3, "unknown"), (20, "6 more and unknown")])
def test_unknown_cameras_are_grey_and_named_so(maps, n, last):
    m = maps["one"].assign(cam=lambda f: np.arange(len(f)) % n - 1)
    texts = [t.get_text() for t in cameras.camera_map(m.drop(columns="role"), by="cam").legends[0].texts]
    assert texts[-1] == last and "cam -1" not in texts and len(texts) == min(n, 14)


@pytest.mark.parametrize("seen", [(), (1,)])
def test_bars_per_camera(seen):
    f = pd.DataFrame(dict(cam=[0, 1, 2], n_query=[100, 300, 50], mAP=[40., 50., 44.]))
    lacks = f.assign(mAP=[40., np.nan, 44.], n_query=[100, 0, 50])
    fig = cameras.camera_bars({"a": f, "b": lacks}, seen=seen)
    ax, = fig.axes
    assert len(ax.patches) == 2*(3 + 1) and len({p.get_facecolor() for p in ax.patches}) == 2 + 2*bool(seen)
    want = (4000 + 2200)/150 if seen else 47.111111
    assert f"a ({want:.1f})" in [t.get_text() for t in fig.legends[0].texts]
    assert f"b ({(4000 + 2200)/150:.1f})" in fig.legends[0].texts[1].get_text()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0\n(100)", "1\n(300)", "2\n(50)", "mean"]
    with pytest.raises(ValueError, match="Did you mean 'mAP'"): cameras.camera_bars(f, "mAPs")


def test_error_curves_have_counts():
    q, g = scene(1.)
    frame = pd.concat([error_vs_distance(q, g, k, Binning(4)) for k in ("euclidean", "cosine", "entropy")])
    fig = cameras.error_curves(frame)
    assert [len(ax.patches) for ax in fig.axes] == frame.groupby("kind", sort=False).size().tolist()
    for ax, (_, f) in zip(fig.axes, frame.groupby("kind", sort=False)):
        assert np.allclose(ax.lines[0].get_ydata(), f.error) and max(p.get_height() for p in ax.patches) == .25
    low, high = statistics.wilson([.1, 1.], [20, 5])
    np.testing.assert_allclose([low[0], high[0], low[1], high[1]], [.0279, .3010, .5655, 1.], atol=1e-4)
    with pytest.raises(ValueError, match="min_count"): cameras.error_curves(frame[:0])


def test_nmi_bars():
    f = pd.DataFrame(dict(method=["a", "b <$x$>"], camera=[.3, .1], identity=[.5, np.nan], chance=[.1, .12]))
    fig = cameras.nmi_bars(f)
    assert [len(ax.patches) for ax in fig.axes] == [2, 2] and len(fig.axes[0].texts) == 2
    assert len(fig.axes[1].texts) == 1
    assert len(cameras.nmi_bars(f.drop(columns="identity")).axes) == 1
    with pytest.raises(ValueError, match="column='camera' is not known"): cameras.nmi_bars(f.drop(columns="camera"))


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
