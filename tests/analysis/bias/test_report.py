"The report of camera bias: escaping, saving, figures"
import json
import re

import pandas as pd
import pytest
from helpers.bias import COS, EUC, WAYS, pairs, rows, scene
from matplotlib.backends.backend_agg import FigureCanvasAgg

from reid_lab.analysis.bias import audit as bias_audit, remedies, report as bias_report, verdict as V
from reid_lab.figures.style import export
from reid_lab.retrieval.embeddings import Embeddings


def test_the_map_says_whose_points_have_a_colour(strong):
    text = strong.to_text()
    assert "12 of the 20 people in the map have a colour, those seen under most cameras; all others are grey" in text
    assert "The map holds 120 of 120 images." in text
    few = bias_audit.AuditSettings(map_images=30, splits=0, open_images=0)
    some = bias_audit.bias_report(*scene(1., n=20), audit=few)
    assert "5 of the 5 people" in some.to_text()
    assert "30 of 120 images (whole people, drawn at random)" in some.to_text()
    q, _ = scene(1.)
    nobody = bias_audit.bias_report(Embeddings(q.emb, 0*q.pid - 1, q.cam))
    assert "no identity is known. The map holds 60 of 60 images." in nobody.to_text()


def test_the_figure_of_cameras_shows_the_advice(strong):
    fig = strong.figures()["per_camera"]
    names = [t.get_text() for t in fig.legends[0].texts]
    s = rows(strong)
    assert names == [f"{m}{', advised' if m == 'Norm' else ''} ({s.mAP[m]:.1f})" for m in remedies.REMEDIES]
    assert fig.axes[0].get_ylabel() == "mAP (%), cosine" and "ranked by cosine" in strong.to_text()
    r = bias_report.BiasReport(**vars(strong))
    mAP = dict(zip(WAYS, (50., 49, 50, 60, 50, 50, 50, 50, 50, 50)))
    r.verdict = V.decide(mAP, pairs(mAP), mAP)
    names = [t.get_text() for t in r.figures()["per_camera"].legends[0].texts]
    assert names[0].startswith("No adaptation by cosine (") and names[1].startswith("Mean subtraction, advised (")
    assert f"{rows(strong, EUC).mAP['Mean subtraction']:.1f}" in names[1]
    assert list(r.camera_table())[-1] == "mAP, DART3-LITE"
    mAP = dict(zip(WAYS, (50., 60, 50, 50, 50, 50, 50, 50, 50, 50)))
    r.verdict = V.decide(mAP, pairs(mAP), mAP)
    assert [*r._shown()][:2] == ["No adaptation by cosine", "No adaptation, advised"]


def test_everything_is_escaped(tmp_path):
    rude = "<script>alert(1)</script> & `x` | *y*"
    q, g = scene(1.)
    q = Embeddings(q.emb, q.pid, q.cam, path=[rude]*len(q), caption=[rude]*len(q), columns={rude: [rude]*len(q)},
                   meta={rude: rude})
    r = bias_audit.bias_report(q, g, name=rude)
    r.warnings.append(rude)
    r.advice.append(rude)
    r.notes.append(rude)
    r.checks.append(rude)
    r.open_set.rates.loc[r.open_set.rates.group == "cam 0", "group"] = rude
    r.save(tmp_path/"r")
    page, text = ((tmp_path/"r"/f"report.{s}").read_text() for s in ("html", "md"))
    for written in (page, text, r._repr_html_()): assert "<script" not in written and "&lt;script&gt;" in written
    assert r"\*y\*" in text and page.count("data:image/png;base64,") == 3 and "http" not in page


def test_a_report_that_is_moved_keeps_its_pictures(strong, tmp_path):
    "The page holds them, the text names them from its own folder"
    strong.save(tmp_path/"made"/"report").rename(tmp_path/"moved")
    page, text = ((tmp_path/"moved"/f"report.{s}").read_text() for s in ("html", "md"))
    sources, links = re.findall(r'(?:src|href)="([^"]+)"', page), re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert len(sources) == len(links) == 3 and all(source.startswith("data:image/png") for source in sources)
    assert all((tmp_path/"moved"/link).is_file() for link in links) and str(tmp_path) not in page + text


def test_save_is_complete_and_all_or_nothing(strong, tmp_path, monkeypatch):
    strong.save(tmp_path/"a")
    names = sorted(str(p.relative_to(tmp_path/"a")) for p in (tmp_path/"a").rglob("*") if p.is_file())
    assert names == sorted(["report.html", "report.md", "summary.csv", "per_camera.csv", "open_set.csv", "held_out.csv",
                            *(f"figures/{n}.{s}" for n in ("map", "per_camera", "nmi") for s in ("pdf", "png"))])
    back = pd.read_csv(tmp_path/"a"/"summary.csv")
    assert list(back) == bias_report.SUMMARY_COLUMNS and back.mAP.tolist() == pytest.approx(strong.summary.mAP.tolist())
    f = pd.read_csv(tmp_path/"a"/"per_camera.csv")
    assert len(f) == 5*2*3 and {"method", "distance", "cam", "mAP", "n_query", "n_gallery", "shift"} <= set(f)
    for there in ("a", "report.txt"):
        (tmp_path/"report.txt").write_text("x")
        with pytest.raises(FileExistsError, match=f"{there} exists; choose"): strong.save(tmp_path/there)
    def full(self, *a, **kw): raise OSError(28, "No space left on device")
    monkeypatch.setattr(pd.DataFrame, "to_csv", full)
    with pytest.raises(OSError, match="No space"): strong.save(tmp_path/"c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "report.txt"]


def test_the_report_shows_itself_and_is_json(strong):
    assert "Norm by cosine helps" in repr(strong) and strong._repr_html_().count("<table>") == 3
    d = json.loads(json.dumps(strong.to_dict(), allow_nan=False))
    assert d["advised"] == "Norm" and d["summary"][0]["gain"] is None
    assert d["ranked_by"] == COS and len(d["per_camera"]) == 30 and len(d["held_out"]) == 20 and len(d["open_set"]) == 8
    assert strong.table()["gain in mAP [95 %]"][0] == "" and "[" in strong.table()["gain in mAP [95 %]"][2]


def test_figures_are_stable_and_leave_no_trace(strong, tmp_path):
    import matplotlib
    before = dict(matplotlib.rcParams)
    for name, fig in strong.figures().items():
        first, again = (export(f, name, tmp_path, ("pdf", "png"))
                        and [(tmp_path/f"{name}.{s}").read_bytes() for s in ("pdf", "png")]
                        for f in (fig, strong.figures()[name]))
        assert first == again and b"/Type3" not in first[0]
    assert dict(matplotlib.rcParams) == before


def test_nothing_overlaps(strong):
    "Texts of a figure lie inside it, and tick labels of one axis do not touch"
    for fig in strong.figures().values():
        fig.picture()
        r = FigureCanvasAgg(fig).get_renderer()
        whole = fig.bbox
        for ax in fig.axes:
            boxes = [t.get_window_extent(r) for t in ax.get_xticklabels() if t.get_text() and t.get_visible()]
            inside = [b for b in boxes if ax.bbox.x0 - 1 <= (b.x0 + b.x1)/2 <= ax.bbox.x1 + 1]
            assert all(a.x1 <= b.x0 for a, b in zip(inside, inside[1:]))
            for t in (ax.xaxis.label, ax.yaxis.label, ax.title, *ax.texts):
                b = t.get_window_extent(r)
                if t.get_text(): assert b.x0 >= -1 and b.y0 >= -1 and b.x1 <= whole.x1 + 1 and b.y1 <= whole.y1 + 1, t
