"The audit of camera bias: known answers, and stated rules for odd input"
import json
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.bias import COS, EUC, rows, scene
from helpers.protocols import features, naive_draws, some_table, table_for

from reid_lab.analysis.bias import audit as bias_audit, remedies
from reid_lab.analysis.bias.audit import AuditSettings, bias_report, camera_facts, camera_warnings
from reid_lab.analysis.bias.maps import sample_rows
from reid_lab.analysis.bias.per_camera import camera_share, per_camera
from reid_lab.core import reporting
from reid_lab.retrieval.cameras import camera_nmi
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS
from reid_lab.tta.base import adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3Lite


def test_a_strong_shift_makes_norm_the_advice(strong):
    s = rows(strong)
    assert (strong.advised, strong.ranked_by) == ("Norm", COS)
    assert s.advised["Norm"] and strong.summary.advised.sum() == 1
    assert strong.advice[0].startswith(f"Norm by cosine helps: mAP {s.mAP['Norm']:.1f}, +") and s.low["Norm"] > 10
    assert s.mAP["Norm"] > s.mAP["Mean subtraction"] > s.mAP["No adaptation"]
    assert s.gain[remedies.CONTROL] < s.low["Norm"]
    assert s.camera_share["No adaptation"] > .4 and s.camera_share["Norm"] < 1e-6
    assert s.nmi_camera["No adaptation"] > s.nmi_chance["No adaptation"]
    assert s.nmi_identity["Norm"] > s.nmi_identity["No adaptation"]
    assert not any("control" in a or remedies.CONTROL in a for a in strong.advice)


@pytest.mark.parametrize("seed", range(3))
def test_without_bias_none_helps(seed):
    r = bias_report(*scene(0., seed=seed), map_method="none")
    assert r.advised is None and r.ranked_by == COS and r.advice[0].startswith("None helps clearly: keep the features")
    s = rows(r)
    assert s.advised["No adaptation"] and r.summary.advised.sum() == 1
    assert s.nmi_camera["No adaptation"] <= s.nmi_chance["No adaptation"] + .02


def test_the_numbers_are_those_of_the_library(strong):
    q, g = scene(2.)
    plain, hat = retrieval_metrics(q, g, per_query=True), adapt_embeddings(CameraNorm(), q, g)
    lite = adapt_embeddings(Dart3Lite(lr=1e-2, steps=1, batch_size=64, rescale=True), q, g)
    for d in (COS, EUC):
        s = rows(strong, d)
        norm = retrieval_metrics(*hat, distance=d, per_query=True)
        assert s.mAP["No adaptation"] == pytest.approx(retrieval_metrics(q, g, distance=d)["mAP"])
        assert s.mAP["Norm"] == pytest.approx(norm["mAP"]) and s.R1["Norm"] == pytest.approx(norm["R1"])
        assert s.gain["Norm"] == pytest.approx(norm["mAP"] - plain["mAP"])       # over the features as they are
        assert s.low["Norm"] < s.gain["Norm"] < s.high["Norm"]
        f = strong.per_camera[(strong.per_camera.method == "Norm") & (strong.per_camera.distance == d)]
        pd.testing.assert_frame_equal(f.drop(columns=["method", "distance"]).reset_index(drop=True),
                                      per_camera(*hat, distance=d))
        assert s.mAP["DART3-LITE"] == pytest.approx(retrieval_metrics(*lite, distance=d)["mAP"])
    both = Embeddings.concat(hat)
    told, s = camera_nmi(both), rows(strong)
    assert s.nmi_camera["Norm"] == pytest.approx(told["camera"])
    assert s.nmi_identity["Norm"] == pytest.approx(told["identity"])
    assert s.camera_share["Norm"] == pytest.approx(camera_share(both))


def test_rows_and_rankings_do_not_depend_on_the_scale_of_the_features(strong):
    other = bias_report(*scene(2., scale=1024.), map_method="none")
    assert other.summary[["method", "distance"]].equals(strong.summary[["method", "distance"]])
    for c in ("mAP", "R1", "gain", "low", "high"):
        np.testing.assert_allclose(other.summary[c], strong.summary[c], atol=1e-3)


def test_euclidean_features_are_ranked_by_both_distances_too():
    r = bias_report(*scene(2.), distance=EUC, map_method="none")
    assert r.verdict.first == ("No adaptation", EUC) and list(r.summary.distance[:2]) == [EUC, COS]
    assert np.isnan(r.summary.gain[0]) and r.summary.gain[1:].notna().all()
    assert r.advised == "Norm" and "over no adaptation by Euclidean distance" in r.advice[0]


def test_who_is_scored_is_explained(strong):
    q, g = scene(1., n=30)
    q, g = q[q.pid < 24], g[g.pid >= 4]                          # 0..3 absent, 24..29 without a query
    one = (g.pid >= 20) & (g.pid < 24)
    g, q = g[~one | (g.cam == 0)], q[~((q.pid >= 20) & (q.cam > 0))]      # 20..23 under camera 0 only
    r = bias_report(q, g, map_method="none", audit=AuditSettings(open_images=0))
    assert ("16 of 30 people are scored: those with a query and a gallery image under another camera. The other 14 "
            "cannot be: 6 without a query; 4 with a query but no image in the gallery; 4 with gallery images only "
            "under the cameras of their queries, which do not count.") in r.checks[0]
    assert "not checked on other people: 16 are scored" in r.checks[1] and r.held_out is None
    assert any("Only 16 people are scored" in w for w in r.warnings) and r.open_set is None
    assert strong.checks[0].startswith("20 of 20 people are scored") and "The other" not in strong.checks[0]
    assert "20 of 20 halves advise the same as all" in strong.checks[1] and len(strong.held_out) == 20


def test_the_comparisons_are_counted(strong):
    text = " ".join(strong.notes)
    assert "That makes 7 comparisons" in text and "Simplest first: No adaptation by cosine; No" in text
    two = bias_report(*scene(2., cams=3), map_method="none", audit=AuditSettings(splits=0))
    assert two.held_out is None and len(two.checks) == 1


def test_the_open_set_is_told_before_and_after(strong):
    f = strong.open_set.rates
    assert set(f.ranking) == {"before", "after"} and set(f.group) == {"all", "cam 0", "cam 1", "cam 2"}
    assert set(f.FPIR_asked) == {.1}                    # 1 % needs a hundred searches in each half
    assert any(w.startswith("Open set: FPIR 1 % is not given: half of the people have 30") for w in strong.warnings)
    at = f[f.group == "all"].set_index("ranking")
    assert at.change["after"] == pytest.approx(at.FNIR["after"] - at.FNIR["before"]) and at.change["after"] < 0
    for text in (repr(strong), strong._repr_html_(), strong.to_text()): assert "Open set: who is missed" in text
    calm = bias_report(*scene(0.), map_method="none")
    assert set(calm.open_set.rates.ranking) == {""} and "before" not in calm.open_set.table().to_string()


def test_an_open_set_of_few_or_of_nobody_else_is_said():
    q, g = scene(1., n=8)
    r = bias_report(q[q.pid < 2], g, map_method="none")
    assert r.open_set is None and any("Open set: 2 people have queries; halves need" in w for w in r.warnings)
    sampled = bias_report(*scene(1., n=30), map_method="none", audit=AuditSettings(open_images=45))
    assert any("searched" in n and "45 of 90 queries (whole people)" in n for n in sampled.notes)


def test_queries_alone_are_described():
    q, _ = scene(2.)
    r = bias_report(q)
    s = r.summary.set_index("method")
    assert list(s.index) == ["No adaptation", "Mean subtraction", "Norm", remedies.CONTROL] and s.mAP.isna().all()
    assert r.per_camera is None and (r.ranked_by, r.open_set, r.checks) == (None, None, [])
    assert s.nmi_identity.notna().all() and s.camera_share["Norm"] < 1e-6 < s.camera_share["No adaptation"]
    assert r.advised is None and "Clusters and cameras are related" in r.advice[1]
    assert set(r.figures()) == {"map", "nmi"}
    assert set(r.maps) == {"No adaptation", "Mean subtraction", "Norm"} and (r.maps["Norm"].role == "query").all()
    assert "mAP" not in r.to_text() and "gallery together" in r.to_text()


def test_without_identities_that_part_is_missing():
    q, g = scene(2.)
    nobody = [Embeddings(e.emb, 0*e.pid - 1, e.cam) for e in (q, g)]
    for r in (bias_report(nobody[0]), bias_report(*nobody), bias_report(q, nobody[1])):
        assert r.summary.mAP.isna().all() and r.advised is None and "R1" not in r.table()
        assert json.dumps(r.to_dict(), allow_nan=False)
    assert any("No identity is known on both sides" in w for w in r.warnings) and r.summary.nmi_identity.notna().all()
    r = bias_report(*nobody)
    assert r.summary.nmi_identity.isna().all() and "NMI identity" not in r.table()
    assert "DART3-LITE" in set(r.summary.method)


def test_a_sample_of_unknown_identities_keeps_its_size():
    e = Embeddings(torch.randn(90, 3), np.full(90, -1), np.arange(90) % 3)
    assert len(sample_rows(e, 20)) == 20 and len(set(sample_rows(e, 20))) == 20
    crowd = Embeddings(e.emb, np.zeros(90, int), e.cam)     # one person with more images than the sample holds
    assert len(sample_rows(crowd, 20)) == 20


def test_a_camera_with_one_image():
    q, g = scene(1.)
    q.cam[0] = 9
    r = bias_report(q, g, map_method="none")
    assert any("Cameras with one image: 9." in w and "standard deviation is taken as 1" in w for w in r.warnings)
    assert r.cameras.set_index("cam").std_ratio.isna()[9] and np.isfinite(r.summary.mAP).all()
    hat = adapt_embeddings(CameraNorm(), q, g)[0].emb[0]
    assert torch.equal(hat, torch.zeros_like(hat))          # minus its own mean, divided by 1


def test_query_cameras_that_the_gallery_lacks():
    q, g = scene(1.)
    gone = g[g.cam != 2]
    r = bias_report(q, gone, map_method="none")
    assert any("gallery lacks: 2." in w for w in r.warnings) and np.isfinite(r.summary.mAP).all()
    hat = adapt_embeddings(CameraNorm(), q, gone)[0].emb[q.cam == 2]
    z = q.emb[q.cam == 2]
    torch.testing.assert_close(hat, (z - z.mean(0))/z.std(0, correction=0))


def test_few_images_and_few_identities_are_warned_about():
    q, g = scene(1., n=6)
    w = " ".join(bias_report(q, g, map_method="none").warnings)
    assert "fewer than 16 images: 0, 1, 2" in w and "Only 6 people are scored" in w and "one batch" in w
    q, g = scene(1., n=35)
    told = bias_report(q, g, map_method="none").warnings
    assert all(w.startswith("Open set: ") for w in told)
    assert "fewer than 100 images" in camera_warnings(camera_facts(q, g), 100)[0]


def test_queries_without_a_match_are_counted():
    q, g = scene(1.)
    q.pid[:3] = 777
    q.pid[3] = -1
    r = bias_report(q, g, map_method="none")
    assert any("4 of 60 queries have no match" in w and "absent from the gallery: 3" in w and "junk: 1" in w
               for w in r.warnings)
    f = r.per_camera[r.per_camera.method == "Norm"]
    assert f.groupby("distance").n_query.sum().tolist() == [56, 56]


def test_unit_features_are_noticed():
    q, g = scene(1.)
    assert any("length 1" in w for w in bias_report(q.unit(), g.unit(), map_method="none").warnings)


def test_one_batch_and_one_step_equal_norm():
    q, g = scene(1., n=20)
    few = q[np.arange(0, 60, 2)]
    r = bias_report(few, g, map_method="none")
    s = rows(r)
    assert s.mAP["DART3-LITE"] == s.mAP["Norm"] and any("returns what Norm does" in w for w in r.warnings)
    more = bias_report(few, g, map_method="none", audit=AuditSettings(lite=dict(batch_size=8, lr=.2)))
    assert rows(more).mAP["DART3-LITE"] != s.mAP["Norm"]
    assert not any("one batch" in w for w in more.warnings)
    assert "batch_size=8" in " ".join(more.notes) and "lr=0.2" in " ".join(more.notes)


def test_constant_features_and_identical_images_do_not_break():
    q, g = scene(1.)
    q.emb[:, 3], g.emb[:, 3] = 4., 4.
    assert np.isfinite(bias_report(q, g, map_method="none").summary.select_dtypes("number").iloc[1:]).all(axis=None)


def test_further_columns_of_one_side_do_not_matter():
    q, g = scene(1.)
    r = bias_report(Embeddings(q.emb.double(), q.pid, q.cam, path=["x"]*len(q), columns=dict(view=["a"]*len(q))), g)
    assert list(r.maps) == list(remedies.REMEDIES)


@pytest.mark.parametrize("make, words", [
    (lambda q, g: bias_report(q.emb, g), "wrap features in Embeddings"),
    (lambda q, g: bias_report(q, g.emb), "g is Tensor"),
    (lambda q, g: bias_report(Embeddings(q.emb, q.pid), g), "q has no camera numbers"),
    (lambda q, g: bias_report(q, Embeddings(g.emb, g.pid)), "g has no camera numbers"),
    (lambda q, g: bias_report(q.where(cam=1), g.where(cam=1)),
     "camera 1; with a single camera there is no bias to audit"),
    (lambda q, g: bias_report(q.where(cam=1)), "single camera"),
    (lambda q, g: bias_report(q[:0], g), "q has no rows"),
    (lambda q, g: bias_report(q, Embeddings(g.emb[:, :3], g.pid, g.cam)), "q has 8 dimensions and g has 3"),
    (lambda q, g: bias_report(q, Embeddings(g.emb, g.pid + 500, g.cam)), "none of the 60 queries has a match"),
    (lambda q, g: bias_report(q, g, distance="cosin"), "Did you mean 'cosine'"),
    (lambda q, g: bias_report(q, g, map_method="tsn"), "Did you mean 'tsne'"),
    (lambda q, g: bias_report(q, g, audit=AuditSettings(lite=dict(steps=-1))), "steps=-1")])
def test_bad_input(make, words):
    with pytest.raises((ValueError, TypeError), match=words): make(*scene())


def test_nan_wrong_shapes_and_missing_keys_are_load_s_errors(tmp_path):
    z, pid, cam = np.ones((4, 2), np.float32), np.arange(4), np.arange(4) % 2
    def load(**kw):
        np.savez(tmp_path/"x.npz", **kw)
        return Embeddings.load(tmp_path/"x.npz", need=("cam",))
    assert load(emb=z, cam=cam).pid.tolist() == [-1]*4
    for kw, words in ((dict(emb=z), r"no \['cam'\]"), (dict(cam=cam), r"no \['emb'\]"),
                      (dict(emb=z*np.nan, cam=cam), "4 of 4 rows"),
                      (dict(emb=z[0], cam=cam), "must be"), (dict(emb=z, cam=cam[:3]), r"shape \(4,\)"),
                      (dict(emb=z, pid=pid[:2], cam=cam), "pid has shape")):
        with pytest.raises((KeyError, ValueError), match=words): load(**kw)


def test_one_label_for_all_is_no_identity():
    "pid 0 throughout, as some export unlabelled features: clusters are not one, and the report says what it means"
    rng = np.random.default_rng(0)
    cam = np.arange(80) % 2
    e = Embeddings((rng.normal(size=(80, 5)) + 4*cam[:, None]).astype("f4"), np.zeros(80, int), cam)
    none = bias_report(Embeddings(e.emb, e.pid - 1, cam), map_method="none")
    alone = bias_report(e, map_method="none")
    assert alone.summary.nmi_camera[0] == none.summary.nmi_camera[0] > .2 and np.isnan(alone.summary.nmi_identity).all()
    both = bias_report(e[:20], e[20:], map_method="none")
    assert any("every query and every image has pid 0" in w for w in both.warnings)


def test_the_report_says_how_far_it_is_and_what_it_sampled(capsys):
    rng = np.random.default_rng(0)
    e = Embeddings(rng.normal(size=(120, 8)).astype("f4"), rng.integers(0, 12, 120), rng.integers(0, 3, 120))
    out = __import__("io").StringIO()
    out.isatty = lambda: True
    r = bias_report(e, map_method="none", audit=AuditSettings(nmi_images=60, file=out), quiet=False)
    lines = out.getvalue().split("\r")
    assert "parts of the bias report 16/16" in lines[-1] and capsys.readouterr().out == ""
    assert any("images (whole identities)" in n and "of 120" in n for n in r.notes)
    assert not any("whole identities" in n for n in bias_report(e, map_method="none", quiet=True).notes)


def test_progress_advances_inside_the_long_steps(monkeypatch):
    q, g = scene(1., n=100)                                                       # 300 queries: five batches of LITE
    said, real = [], reporting.progress
    class Each(real):
        def update(self, n, end=False):
            said.append((self.note, n, self.total, end))
            super().update(n, end)
    monkeypatch.setattr(bias_audit, "progress", Each)
    bias_report(q, g, map_method="none", quiet=True)
    parts = [n for _, n, _, _ in said]
    assert type(said[0][2]) is int                                               # another kind has no bar in a terminal
    assert parts == sorted(parts) and said[-1][1:] == (said[0][2], said[0][2], True)
    inside = {what: sorted({n for note, n, _, _ in said if note == what}) for what, *_ in said}
    assert len(inside["DART3-LITE: adapt"]) >= 5 and len(inside["Norm: rank"]) == 2    # the latter is one block here
    shares = []
    many = Embeddings.concat([q]*30), Embeddings.concat([g]*30)                  # 9,000 x 9,000: many blocks
    remedies.both_scores(*many, shares.append)
    assert len(shares) > 5 and shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1


def test_settings_may_stand_alone_as_in_the_last_release():
    with pytest.warns(DeprecationWarning, match=r"belong into audit=AuditSettings\(lite="):
        old = bias_report(*scene(1.), map_method="none", settings=dict(steps=2), splits=0, open_images=0, quiet=True)
    audit = AuditSettings(lite=dict(steps=2), splits=0, open_images=0)
    assert old.to_dict() == bias_report(*scene(1.), map_method="none", audit=audit, quiet=True).to_dict()


BRIEF = AuditSettings(splits=0, open_images=0, nmi_images=80)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, draw", [("market", 0), ("ltcc.cc", 0), ("ag-reid.a2g", 0), ("prcc.single-changed", 4),
                                        ("sysu.all", 9), ("vehicleid.small", 2), ("llcm.v2i-released", 7)])
def test_a_draw_of_a_protocol_is_audited_as_its_rows_chosen_by_a_plain_loop(name, draw):
    f = table_for(name, draw + 1, 150)
    e, protocol = features(f, roles=True), PROTOCOLS[name]
    settings = replace(BRIEF, protocol=name, draw=draw)
    report = bias_report(e, e, map_method="none", audit=settings, quiet=True)
    asks, searched = naive_draws(protocol, f, f)[draw]
    by_hand = bias_report(e[sorted(asks)], e[sorted(searched)], map_method="none", quiet=True,
                          audit=replace(BRIEF, junk=protocol.junk))
    pd.testing.assert_frame_equal(report.summary, by_hand.summary)
    pd.testing.assert_frame_equal(report.per_camera, by_hand.per_camera)
    assert f"rotocol {name}" in report.notes[0] and f"{len(asks):,} queries ask" in report.notes[0]
    assert ("draw" in report.notes[0]) == (protocol.n_draws > 1)
    found = retrieval_metrics(e, e, protocol=name)
    plain = rows(report).mAP["No adaptation"]
    assert plain == pytest.approx(found.draws[draw]["mAP"])
    assert bias_audit.advise(e, e, audit=settings) == report.verdict


def test_what_a_protocol_cannot_audit_is_refused():
    e = features(some_table(3, 40)[0])
    for wrong, says in ((lambda: bias_report(e, protocol="market"), "give both sides, or the same features twice"),
                        (lambda: bias_report(e, e, audit=AuditSettings(draw=2)), "give protocol='sysu.all'"),
                        (lambda: bias_report(e, e, audit=AuditSettings(protocol="sysu.all", draw=10)), "draw=10"),
                        (lambda: AuditSettings(protocol="market", junk="cam"), "give one of the two"),
                        (lambda: bias_report(e, e, protocol="sysu.al"), "near names are sysu.all"),
                        (lambda: bias_report(e, e, protocol="duke", audit=AuditSettings(protocol="market")),
                         "audit=AuditSettings(protocol='market'); give it once")):
        with pytest.raises(ValueError, match=re.escape(says)): wrong()
