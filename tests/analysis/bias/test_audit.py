"""The camera-bias report: known answers, stated rules for odd input, escaping, and the figures."""
import json

import numpy as np
import pandas as pd
import pytest
import torch

from matplotlib.backends.backend_agg import FigureCanvasAgg

from reid_lab.core import statistics
from reid_lab.figures import cameras
from reid_lab.analysis.bias import audit as bias_audit, remedies, report as bias_report
from reid_lab.core import reporting
from reid_lab.analysis.bias import verdict as V
from reid_lab.analysis.bias import remedies
from reid_lab.core import statistics
from reid_lab.analysis.bias.per_camera import camera_share, error_vs_distance, per_camera
from reid_lab.analysis.bias.maps import project, sample_rows
from reid_lab.core.basics import stream
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.figures.style import export
from reid_lab.retrieval.cameras import camera_nmi
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.scores import LARGE
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3Lite
from reid_lab.tta.base import adapt_embeddings

COS, EUC = "cosine", "euclidean"


def scene(bias=0., n=20, dim=8, cams=3, seed=0, scale=1.):
    "Queries and gallery; cameras scale and shift every dimension"
    rng = stream(seed, "scene")
    who, shift, std = (rng.normal(size=(n, dim)), bias*rng.normal(size=(cams, dim)),
                       np.exp(.4*bias*rng.normal(size=(cams, dim))))
    def side():
        z = np.concatenate([(who + .6*rng.normal(size=who.shape))*std[c] + shift[c] for c in range(cams)])
        return Embeddings(torch.tensor(scale*z, dtype=torch.float32), np.tile(np.arange(n), cams),
                          np.repeat(np.arange(cams), n))
    return side(), side()


@pytest.fixture(scope="module")
def strong(): return bias_audit.bias_report(*scene(2.), name="strong")   # 60 queries are one batch: DART3-LITE is Norm


# ---- known answers

def rows(report, distance=COS):
    "One row a method under one distance"
    return report.summary[report.summary.distance == distance].set_index("method")


def test_a_strong_shift_makes_norm_the_advice(strong):
    s = rows(strong)
    assert (strong.advised, strong.ranked_by) == ("Norm", COS)
    assert s.advised["Norm"] and strong.summary.advised.sum() == 1
    assert strong.advice[0].startswith(f"Norm by cosine helps: mAP {s.mAP['Norm']:.1f}, +") and s.low["Norm"] > 10
    assert s.mAP["Norm"] > s.mAP["Mean subtraction"] > s.mAP["No adaptation"] and s.gain[remedies.CONTROL] < s.low["Norm"]
    assert s.camera_share["No adaptation"] > .4 and s.camera_share["Norm"] < 1e-6
    assert s.nmi_camera["No adaptation"] > s.nmi_chance["No adaptation"]
    assert s.nmi_identity["Norm"] > s.nmi_identity["No adaptation"]
    assert not any("control" in a or remedies.CONTROL in a for a in strong.advice)


@pytest.mark.parametrize("seed", range(3))
def test_without_bias_none_helps(seed):
    r = bias_audit.bias_report(*scene(0., seed=seed), map_method="none")
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
    other = bias_audit.bias_report(*scene(2., scale=1024.), map_method="none")
    assert other.summary[["method", "distance"]].equals(strong.summary[["method", "distance"]])
    for c in ("mAP", "R1", "gain", "low", "high"):
        np.testing.assert_allclose(other.summary[c], strong.summary[c], atol=1e-3)


def test_euclidean_features_are_ranked_by_both_distances_too():
    r = bias_audit.bias_report(*scene(2.), distance=EUC, map_method="none")
    assert r.verdict.first == ("No adaptation", EUC) and list(r.summary.distance[:2]) == [EUC, COS]
    assert np.isnan(r.summary.gain[0]) and r.summary.gain[1:].notna().all()
    assert r.advised == "Norm" and "over no adaptation by Euclidean distance" in r.advice[0]


# ---- one pass for both distances, gradients in closed form

@pytest.mark.parametrize("move", [lambda x: x, lambda x: x + 40, lambda x: 1e-25*x, lambda x: 1e20*x + 1e20,
                                  lambda x: x*torch.logspace(-8, 0, len(x))[:, None].to(x), lambda x: x.half().float()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_distances_are_those_of_two_passes(move, dtype):
    q, g = (e.with_emb(move(e.emb.to(dtype))) for e in scene(1.))
    found, skipped = remedies.both_scores(q, g)
    for d in (COS, EUC):
        want = retrieval_metrics(q, g, distance=d, per_query=True)
        np.testing.assert_allclose(found[d]["AP"], want["per_query"]["AP"], atol=2e-2)
        assert abs(found[d]["AP"].mean() - want["per_query"]["AP"].mean()) < 2e-4 and skipped == want["skipped"]


def test_both_distances_with_junk_zeros_and_lost_queries():
    q, g = scene(1.)
    q.pid[:3], q.pid[3], g.pid[:5] = 777, -1, -1
    q.emb[6], g.emb[9] = 0., 0.
    with pytest.warns(UserWarning, match="1 query vectors are all zeros"): found, skipped = remedies.both_scores(q, g)
    assert skipped["absent"] >= 3 and skipped["junk"] == 1 and np.isnan(found[COS]["AP"][:4]).all()
    with pytest.warns(UserWarning, match="all zeros"): want = retrieval_metrics(q, g, per_query=True)
    np.testing.assert_allclose(found[COS]["AP"], want["per_query"]["AP"], atol=1e-6)
    blocks = remedies.BothDistances(q.emb, g.emb)
    whole = blocks.block(0, 2*len(q)).clone()
    for lo, hi in ((0, 1), (1, 2), (3, 8), (2, 9)): torch.testing.assert_close(blocks.block(lo, hi), whole[lo:hi])
    assert (whole[13] == 0).all()   # a query of zeros has no cosine
    with pytest.raises(ValueError, match="8 dimensions, gallery vectors 3"): remedies.BothDistances(q.emb, g.emb[:, :3])


@pytest.mark.parametrize("kw", [dict(), dict(steps=3, tau=20., k=5), dict(episodic=True), dict(steps=0),
                                dict(steps=2, final_forward=True), dict(optimiser="sgd")])
def test_the_closed_form_is_dart3_lite(kw):
    pair = [e.with_emb(e.emb.double()) for e in scene(1.)]
    how = {**dict(lr=1e-2, batch_size=16, rescale=True), **kw}
    a, b = (adapt_embeddings(kind(**how), *pair)[0].emb for kind in (remedies.ClosedLite, Dart3Lite))
    torch.testing.assert_close(a, b, atol=1e-9, rtol=0)
    assert kw.get("steps") == 0 or not torch.equal(a, adapt_embeddings(CameraNorm(), *pair)[0].emb)


def test_settings_without_a_closed_form_are_taken_as_they_are():
    r = bias_audit.bias_report(*scene(1.), map_method="none", settings=dict(distance="cosine", batch_size=16), splits=0)
    lite = adapt_embeddings(Dart3Lite(**{**remedies.LITE, "distance": "cosine", "batch_size": 16}), *scene(1.))
    assert rows(r, EUC).mAP["DART3-LITE"] == pytest.approx(retrieval_metrics(*lite, distance=EUC)["mAP"])


# ---- the rule

def pairs(mAP, half=1.5):
    "A function for `decide` in which all intervals have one width"
    return lambda a, b: (mAP[a] - mAP[b], mAP[a] - mAP[b] - half, mAP[a] - mAP[b] + half)


WAYS = V.rankings(methods=(*remedies.REMEDIES, remedies.CONTROL))


def test_simpler_comes_first():
    assert WAYS[:3] == [("No adaptation", COS), ("No adaptation", EUC), ("Mean subtraction", COS)]
    assert V.rankings(EUC)[0] == ("No adaptation", EUC) and WAYS[-2:] == [(remedies.CONTROL, COS), (remedies.CONTROL, EUC)]


@pytest.mark.parametrize("mAP, advised, steps", [
    ((88, 87, 91.1, 79, 91.3, 80.4, 91.4, 80.4, 88, 80), ("Mean subtraction", COS), 1),  # Euclidean LITE is no advice
    ((50, 50, 50, 50, 51, 51, 51.4, 51.4, 50, 50), None, 0),
    ((50, 53, 50, 50, 50, 50, 50, 50, 50, 50), ("No adaptation", EUC), 1),
    ((50, 49, 52, 47, 53, 48, 55, 51, 50, 50), ("DART3-LITE", COS), 2),  # Norm is not clearly better than the mean
    ((50, 49, 52, 47, 54, 48, 55, 51, 50, 50), ("Norm", COS), 2)])
def test_the_simplest_that_no_other_clearly_beats_is_advised(mAP, advised, steps):
    mAP = dict(zip(WAYS, map(float, mAP)))
    v = V.decide(mAP, pairs(mAP), mAP)
    assert v.advised == advised and len(v.steps) == steps and v.tests == 7 and v.take == (advised or WAYS[0])
    at = WAYS.index(v.take)
    assert all(pairs(mAP)(w, v.take)[1] <= 0 for w in WAYS[at + 1:8])  # nothing more complicated clearly beats it
    with pytest.raises(AttributeError): v.advised = None     # frozen
    says = V.sentences(v)
    if advised:
        assert says[0].startswith(f"{V.in_words(advised)} helps: mAP {mAP[advised]:.1f}, +")
        assert f"({mAP[WAYS[0]]:.1f})" in says[0]
    else: assert says[0].startswith("None helps clearly: keep the features as they are, ranked by cosine (mAP 50.0)")


def test_where_none_differs_few_reports_advise_one():
    advised = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        base = rng.uniform(size=40)
        AP = {w: np.clip(base + .1*rng.standard_t(3, size=40), 0, 1) for w in WAYS}
        advised += V.verdict_of(remedies.PairedScores(AP, range(40), draws=2000)).advised is not None
    assert advised <= 4     # 5 % of 80; the seven comparisons hold together


def test_sentences_say_control_rival_and_what_lowers():
    mAP = dict(zip(WAYS, (50., 50, 52, 47, 52.2, 48, 53., 51, 51.8, 46)))
    v = V.decide(mAP, pairs(mAP), mAP)
    text = " ".join(V.sentences(v))
    assert v.advised == ("Mean subtraction", COS) and v.best == ("DART3-LITE", COS) and v.rival[0] == pytest.approx(1)
    assert "gains most, +3.00" in text and "not clearly more than Mean subtraction by cosine, which is simpler" in text
    assert v.control_similar and "not the cameras that matters" in text
    assert v.lowering == [("Mean subtraction", EUC), ("Norm", EUC)]
    assert f"{remedies.CONTROL} by Euclidean distance lowers it too" in text
    assert "By Euclidean distance instead, Mean subtraction has mAP 47.0, -3.00" in text


def test_the_bootstrap_draws_identities():
    d = stream(1, "gain").normal(.03, .2, 60)
    one, many = statistics.paired_gain(d, range(60)), statistics.paired_gain(np.repeat(d, 5), np.repeat(range(60), 5))
    np.testing.assert_allclose(one, many, atol=.5)
    naive = statistics.paired_gain(np.repeat(d, 5), range(300))
    assert naive[2] - naive[1] < .6*(many[2] - many[1])
    sd = 100*d.std(ddof=1)/60**.5
    np.testing.assert_allclose(one[1:], [100*d.mean() - 1.96*sd, 100*d.mean() + 1.96*sd], atol=.8)
    assert statistics.paired_gain([.5, np.nan], [3, 4]) == (50., -np.inf, np.inf)
    for same in (.25, 0.):      # all identities gain the same: a spread that was not seen is no certainty
        assert statistics.paired_gain([same]*5, [0, 1, 1, 2, 2]) == (100*same, -np.inf, np.inf)
    v = V.verdict_of(remedies.PairedScores({w: np.full(4, .5 if w[0] == "Norm" else .25) for w in WAYS}, range(4)))
    assert v.advised is None and "+25.00 (no interval" in V.sentences(v)[0]
    six = statistics.paired_gain(d, range(60), tests=6)
    np.testing.assert_allclose(six[1:], [100*d.mean() - 2.638*sd, 100*d.mean() + 2.638*sd], atol=1.2)


def test_all_pairs_of_rankings_share_their_draws():
    AP = {k: stream(i, "AP").uniform(size=90) for i, k in enumerate("abc")}
    pid = np.arange(90) % 23
    for k in AP: AP[k][5] = np.nan
    paired = remedies.PairedScores(AP, pid)
    for new, old in ("ab", "bc", "ca"):
        np.testing.assert_allclose(paired.gain(new, old, 3), statistics.paired_gain(AP[new] - AP[old], pid, 3), atol=1e-9)
    some = paired.of([1, 2, 3])
    np.testing.assert_allclose(some.gain("a", "b"), statistics.paired_gain((AP["a"] - AP["b"])[np.isin(pid, [1, 2, 3])],
                                                                  pid[np.isin(pid, [1, 2, 3])]), atol=1e-9)
    assert len(statistics.resampled_means(np.ones((7, 2)), np.ones(7), 50, 0)) == 50


# ---- on other people

def test_halves_are_of_people_and_do_not_depend_on_order():
    pid = stream(0, "pid").integers(0, 41, 300)
    h = statistics.half_of(pid, 3)
    assert all(len(set(h[pid == p])) == 1 for p in set(pid)) and (statistics.half_of(pid[::-1], 3) == h[::-1]).all()
    n = [len(set(pid[h == k])) for k in (0, 1)]
    assert abs(n[0] - n[1]) <= 1 and (statistics.half_of(pid, 4) != h).any()


def test_an_advice_that_rests_on_a_few_people_does_not_hold():
    pid, base = np.arange(80), stream(0, "AP").uniform(.2, .4, 80)
    noise = stream(1, "AP").normal(0, .01, (len(WAYS), 80))
    real = {w: base + noise[i] + (.1 if w == ("Norm", COS) else 0.) for i, w in enumerate(WAYS)}
    f = V.held_out(remedies.PairedScores(real, pid), splits=3)
    assert f.same.all() and (f.low > 0).all() and len(f) == 6 and (f.people == 40).all()
    assert "6 of 6 halves advise the same as all; on the other half" in V.held_out_sentence(f, None, 80)
    half = .2*(statistics.half_of(pid, 0) == 0)
    lucky = {w: base + noise[i] + (half if w == ("Norm", COS) else 0.) for i, w in enumerate(WAYS)}
    f = V.held_out(remedies.PairedScores(lucky, pid), splits=1).set_index("advises")
    assert f.method[0] == "Norm" and not f.low[0] > 0       # what half 0 advised gains nothing on half 1
    assert f["first"][1] and not f.same[1] and "1 of 2 halves advise the same" in V.held_out_sentence(f, None, 80)
    pd.testing.assert_frame_equal(V.held_out(remedies.PairedScores(lucky, pid), splits=2),
                                  V.held_out(remedies.PairedScores(lucky, pid), splits=2))


def test_who_is_scored_is_explained(strong):
    q, g = scene(1., n=30)
    q, g = q[q.pid < 24], g[g.pid >= 4]                          # 0..3 absent, 24..29 without a query
    one = (g.pid >= 20) & (g.pid < 24)
    g, q = g[~one | (g.cam == 0)], q[~((q.pid >= 20) & (q.cam > 0))]      # 20..23 under camera 0 only
    r = bias_audit.bias_report(q, g, map_method="none", open_images=0)
    assert ("16 of 30 people are scored: those with a query and a gallery image under another camera. The other 14 "
            "cannot be: 6 without a query; 4 with a query but no image in the gallery; 4 with gallery images only "
            "under the cameras of their queries, which do not count.") in r.checks[0]
    assert "not checked on other people: 16 are scored" in r.checks[1] and r.held_out is None
    assert any("Only 16 people are scored" in w for w in r.warnings) and r.open_set is None
    assert strong.checks[0].startswith("20 of 20 people are scored") and "The other" not in strong.checks[0]
    assert "20 of 20 halves advise the same as all" in strong.checks[1] and len(strong.held_out) == 20


def test_the_map_says_whose_points_have_a_colour(strong):
    text = strong.to_text()
    assert "12 of the 20 people in the map have a colour, those seen under most cameras; all others are grey" in text
    assert "The map holds 120 of 120 images." in text
    some = bias_audit.bias_report(*scene(1., n=20), map_images=30, splits=0, open_images=0)
    assert "5 of the 5 people" in some.to_text()
    assert "30 of 120 images (whole people, drawn at random)" in some.to_text()
    q, _ = scene(1.)
    nobody = bias_audit.bias_report(Embeddings(q.emb, 0*q.pid - 1, q.cam))
    assert "no identity is known. The map holds 60 of 60 images." in nobody.to_text()


def test_the_comparisons_are_counted(strong):
    text = " ".join(strong.notes)
    assert "That makes 7 comparisons" in text and "Simplest first: No adaptation by cosine; No" in text
    two = bias_audit.bias_report(*scene(2., cams=3), map_method="none", splits=0)
    assert two.held_out is None and len(two.checks) == 1


def test_the_figure_of_cameras_shows_the_advice(strong):
    fig = strong.figures()["per_camera"]
    names = [t.get_text() for t in fig.legends[0].texts]
    s = rows(strong)
    assert names == [f"{m}{', advised' if m == 'Norm' else ''} ({s.mAP[m]:.1f})" for m in remedies.REMEDIES]
    assert fig.axes[0].get_ylabel() == "mAP (%), cosine" and "ranked by cosine" in strong.to_text()
    r = bias_report.BiasReport(**{**vars(strong)})
    mAP = dict(zip(WAYS, (50., 49, 50, 60, 50, 50, 50, 50, 50, 50)))
    r.verdict = V.decide(mAP, pairs(mAP), mAP)
    names = [t.get_text() for t in r.figures()["per_camera"].legends[0].texts]
    assert names[0].startswith("No adaptation by cosine (") and names[1].startswith("Mean subtraction, advised (")
    assert f"{rows(strong, EUC).mAP['Mean subtraction']:.1f}" in names[1]
    assert list(r.camera_table())[-1] == "mAP, DART3-LITE"
    mAP = dict(zip(WAYS, (50., 60, 50, 50, 50, 50, 50, 50, 50, 50)))
    r.verdict = V.decide(mAP, pairs(mAP), mAP)
    assert [*r._shown()][:2] == ["No adaptation by cosine", "No adaptation, advised"]


# ---- open set

def test_the_open_set_is_told_before_and_after(strong):
    f = strong.open_set.rates
    assert set(f.ranking) == {"before", "after"} and set(f.group) == {"all", "cam 0", "cam 1", "cam 2"}
    assert set(f.FPIR_asked) == {.1}                    # 1 % needs a hundred searches in each half
    assert any(w.startswith("Open set: FPIR 1 % is not told: half of the people have 30") for w in strong.warnings)
    at = f[f.group == "all"].set_index("ranking")
    assert at.change["after"] == pytest.approx(at.FNIR["after"] - at.FNIR["before"]) and at.change["after"] < 0
    for text in (repr(strong), strong._repr_html_(), strong.to_text()): assert "Open set: who is missed" in text
    calm = bias_audit.bias_report(*scene(0.), map_method="none")
    assert set(calm.open_set.rates.ranking) == {""} and "before" not in calm.open_set.table().to_string()


def test_an_open_set_of_few_or_of_nobody_else_is_said():
    q, g = scene(1., n=8)
    r = bias_audit.bias_report(q[q.pid < 2], g, map_method="none")
    assert r.open_set is None and any("Open set: 2 people have queries; halves need" in w for w in r.warnings)
    sampled = bias_audit.bias_report(*scene(1., n=30), map_method="none", open_images=45)
    assert any("searched" in n and "45 of 90 queries (whole people)" in n for n in sampled.notes)


# ---- without gallery, without identities

def test_queries_alone_are_described():
    q, _ = scene(2.)
    r = bias_audit.bias_report(q)
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
    for r in (bias_audit.bias_report(nobody[0]), bias_audit.bias_report(*nobody), bias_audit.bias_report(q, nobody[1])):
        assert r.summary.mAP.isna().all() and r.advised is None and "R@1" not in r.table()
        assert json.dumps(r.to_dict(), allow_nan=False)
    assert any("No identity is known on both sides" in w for w in r.warnings) and r.summary.nmi_identity.notna().all()
    r = bias_audit.bias_report(*nobody)
    assert r.summary.nmi_identity.isna().all() and "NMI identity" not in r.table()
    assert "DART3-LITE" in set(r.summary.method)


def test_a_sample_of_unknown_identities_keeps_its_size():
    e = Embeddings(torch.randn(90, 3), np.full(90, -1), np.arange(90) % 3)
    assert len(sample_rows(e, 20)) == 20 and len(set(sample_rows(e, 20))) == 20
    crowd = Embeddings(e.emb, np.zeros(90, int), e.cam)     # one person with more images than the sample holds
    assert len(sample_rows(crowd, 20)) == 20


# ---- odd cameras: stated rules

def test_a_camera_with_one_image():
    q, g = scene(1.)
    q.cam[0] = 9
    r = bias_audit.bias_report(q, g, map_method="none")
    assert any("Cameras with one image: 9." in w and "standard deviation is taken as 1" in w for w in r.warnings)
    assert r.cameras.set_index("cam").std_ratio.isna()[9] and np.isfinite(r.summary.mAP).all()
    hat = adapt_embeddings(CameraNorm(), q, g)[0].emb[0]
    assert torch.equal(hat, torch.zeros_like(hat))          # minus its own mean, divided by 1


def test_query_cameras_that_the_gallery_lacks():
    q, g = scene(1.)
    gone = g[g.cam != 2]
    r = bias_audit.bias_report(q, gone, map_method="none")
    assert any("gallery lacks: 2." in w for w in r.warnings) and np.isfinite(r.summary.mAP).all()
    hat = adapt_embeddings(CameraNorm(), q, gone)[0].emb[q.cam == 2]
    z = q.emb[q.cam == 2]
    torch.testing.assert_close(hat, (z - z.mean(0))/z.std(0, correction=0))


def test_few_images_and_few_identities_are_warned_about():
    q, g = scene(1., n=6)
    w = " ".join(bias_audit.bias_report(q, g, map_method="none").warnings)
    assert "fewer than 16 images: 0, 1, 2" in w and "Only 6 people are scored" in w and "one batch" in w
    q, g = scene(1., n=35)
    told = bias_audit.bias_report(q, g, map_method="none").warnings
    assert all(w.startswith("Open set: ") for w in told)
    assert "fewer than 100 images" in bias_audit.camera_warnings(bias_audit.camera_facts(q, g), 100)[0]


def test_queries_without_a_match_are_counted():
    q, g = scene(1.)
    q.pid[:3] = 777
    q.pid[3] = -1
    r = bias_audit.bias_report(q, g, map_method="none")
    assert any("4 of 60 queries have no match" in w and "absent from the gallery: 3" in w and "junk: 1" in w
               for w in r.warnings)
    f = r.per_camera[r.per_camera.method == "Norm"]
    assert f.groupby("distance").n_query.sum().tolist() == [56, 56]


def test_unit_features_are_noticed():
    q, g = scene(1.)
    assert any("length 1" in w for w in bias_audit.bias_report(q.unit(), g.unit(), map_method="none").warnings)


def test_one_batch_and_one_step_equal_norm():
    q, g = scene(1., n=20)
    few = q[np.arange(0, 60, 2)]
    r = bias_audit.bias_report(few, g, map_method="none")
    s = rows(r)
    assert s.mAP["DART3-LITE"] == s.mAP["Norm"] and any("returns what Norm does" in w for w in r.warnings)
    more = bias_audit.bias_report(few, g, map_method="none", settings=dict(batch_size=8, lr=.2))
    assert rows(more).mAP["DART3-LITE"] != s.mAP["Norm"]
    assert not any("one batch" in w for w in more.warnings)
    assert "batch_size=8" in " ".join(more.notes) and "lr=0.2" in " ".join(more.notes)


def test_constant_features_and_identical_images_do_not_break():
    q, g = scene(1.)
    q.emb[:, 3], g.emb[:, 3] = 4., 4.
    assert np.isfinite(bias_audit.bias_report(q, g, map_method="none").summary.select_dtypes("number").iloc[1:]).all(axis=None)


def test_further_columns_of_one_side_do_not_matter():
    q, g = scene(1.)
    r = bias_audit.bias_report(Embeddings(q.emb.double(), q.pid, q.cam, path=["x"]*len(q), columns=dict(view=["a"]*len(q))), g)
    assert list(r.maps) == list(remedies.REMEDIES)


@pytest.mark.parametrize("make, words", [
    (lambda q, g: bias_audit.bias_report(q.emb, g), "wrap features in Embeddings"),
    (lambda q, g: bias_audit.bias_report(q, g.emb), "g is Tensor"),
    (lambda q, g: bias_audit.bias_report(Embeddings(q.emb, q.pid), g), "q has no camera numbers"),
    (lambda q, g: bias_audit.bias_report(q, Embeddings(g.emb, g.pid)), "g has no camera numbers"),
    (lambda q, g: bias_audit.bias_report(q.where(cam=1), g.where(cam=1)),
     "camera 1; with a single camera there is no bias to audit"),
    (lambda q, g: bias_audit.bias_report(q.where(cam=1)), "single camera"),
    (lambda q, g: bias_audit.bias_report(q[:0], g), "q has no rows"),
    (lambda q, g: bias_audit.bias_report(q, Embeddings(g.emb[:, :3], g.pid, g.cam)), "q has 8 dimensions and g has 3"),
    (lambda q, g: bias_audit.bias_report(q, Embeddings(g.emb, g.pid + 500, g.cam)), "none of the 60 queries has a match"),
    (lambda q, g: bias_audit.bias_report(q, g, distance="cosin"), "Did you mean 'cosine'"),
    (lambda q, g: bias_audit.bias_report(q, g, map_method="tsn"), "Did you mean 'tsne'"),
    (lambda q, g: bias_audit.bias_report(q, g, settings=dict(steps=-1)), "steps=-1")])
def test_bad_input(make, words):
    with pytest.raises((ValueError, TypeError), match=words): make(*scene())


def test_nan_wrong_shapes_and_missing_keys_are_load_s_errors(tmp_path):
    z, pid, cam = np.ones((4, 2), np.float32), np.arange(4), np.arange(4) % 2
    def load(**kw): np.savez(tmp_path/"x.npz", **kw); return Embeddings.load(tmp_path/"x.npz", need=("cam",))
    assert load(emb=z, cam=cam).pid.tolist() == [-1]*4
    for kw, words in ((dict(emb=z), r"no \['cam'\]"), (dict(cam=cam), r"no \['emb'\]"),
                      (dict(emb=z*np.nan, cam=cam), "4 of 4 rows"),
                      (dict(emb=z[0], cam=cam), "must be"), (dict(emb=z, cam=cam[:3]), r"shape \(4,\)"),
                      (dict(emb=z, pid=pid[:2], cam=cam), "pid has shape")):
        with pytest.raises((KeyError, ValueError), match=words): load(**kw)


# ---- on paper

def test_everything_is_escaped(tmp_path):
    rude = "<script>alert(1)</script> & `x` | *y*"
    q, g = scene(1.)
    q = Embeddings(q.emb, q.pid, q.cam, path=[rude]*len(q), caption=[rude]*len(q), columns={rude: [rude]*len(q)},
                   meta={rude: rude})
    r = bias_audit.bias_report(q, g, name=rude)
    r.warnings.append(rude); r.advice.append(rude); r.notes.append(rude)
    r.checks.append(rude); r.open_set.rates.loc[r.open_set.rates.group == "cam 0", "group"] = rude
    r.save(tmp_path/"r")
    page, text = ((tmp_path/"r"/f"report.{s}").read_text() for s in ("html", "md"))
    for written in (page, text, r._repr_html_()): assert "<script" not in written and "&lt;script&gt;" in written
    assert r"\*y\*" in text and page.count("data:image/png;base64,") == 3 and "http" not in page


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


# ---- figures

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


def test_more_cameras_than_colours(maps):
    m = maps["one"].assign(cam=lambda f: np.arange(len(f)) % 20)
    fig = cameras.camera_map(m.drop(columns="role"), by="cam")
    assert len(fig.legends[0].texts) == 14 and fig.legends[0].texts[-1].get_text() == "7 more"
    assert len(set(cameras.palette(14))) == 14 and cameras.palette(0) == []


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
    frame = pd.concat([error_vs_distance(q, g, k, bins=4) for k in ("euclidean", "cosine", "entropy")])
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


# ---- maps: each method takes its own library's options and refuses others

@pytest.mark.parametrize("method, option", [("umap", dict(n_neighbors=4)), ("tsne", dict(perplexity=4)),
                                            ("pca", dict(whiten=True))])
def test_every_map_takes_the_options_of_its_library(method, option):
    e = Embeddings.concat(scene(1., n=8))
    plain, changed, again = project(e, method), project(e, method, **option), project(e, method, **option)
    assert np.isfinite(changed[["x", "y"]]).all(axis=None) and (changed.x == again.x).all()
    assert not np.allclose(changed.x, plain.x)


@pytest.mark.parametrize("method, option, words", [
    ("pca", dict(perplexity=5), "option of pca='perplexity' is not known.*Its value was 5"),
    ("umap", dict(perplexity=5), "option of umap='perplexity'"),
    ("tsne", dict(perplexty=5), "Did you mean 'perplexity'"), ("tsne", dict(n_neighbors=5), "choose one of"),
    ("umap", dict(random_state=1), "random_state=1: project sets.*use seed"),
    ("pca", dict(n_components=3), "two dimensions"), ("umap", dict(n_jobs=2), "n_jobs=2"),
    ("tnse", {}, "Did you mean 'tsne'")])
def test_maps_refuse_other_options(method, option, words):
    with pytest.raises(ValueError, match=words): project(scene(1.)[0], method, **option)


def test_pca_is_the_singular_value_decomposition():
    e = scene(2.)[0]
    x = e.numpy() - e.numpy().mean(0)
    _, _, v = np.linalg.svd(x, full_matrices=False)
    v = v[:2]*np.sign(v[:2][np.arange(2), abs(v[:2]).argmax(1)])[:, None]
    np.testing.assert_allclose(project(e, "pca")[["x", "y"]], x @ v.T, atol=1e-4)


def test_one_label_for_all_is_no_identity():
    "pid 0 throughout, as some export unlabelled features: clusters are not one, and the report says what it means"
    rng = np.random.default_rng(0); cam = np.arange(80) % 2
    e = Embeddings((rng.normal(size=(80, 5)) + 4*cam[:, None]).astype("f4"), np.zeros(80, int), cam)
    none = bias_audit.bias_report(Embeddings(e.emb, e.pid - 1, cam), map_method="none")
    alone = bias_audit.bias_report(e, map_method="none")
    assert alone.summary.nmi_camera[0] == none.summary.nmi_camera[0] > .2 and np.isnan(alone.summary.nmi_identity).all()
    both = bias_audit.bias_report(e[:20], e[20:], map_method="none")
    assert any("every query and every image has pid 0" in w for w in both.warnings)


def test_a_sample_of_rows_is_that_of_the_naive_form():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        e = Embeddings(rng.normal(size=(200, 3)), rng.integers(-1, 30, 200))
        real, keep, draw = np.flatnonzero(e.pid >= 0), [], stream(seed, "map")
        for pid in draw.permutation(np.unique(e.pid[real])):
            own = np.flatnonzero(e.pid == pid)
            if keep and len(keep) + len(own) > 60: break
            keep += own.tolist()
        assert sample_rows(e, 60, seed).tolist() == sorted(keep)


def test_the_report_says_how_far_it_is_and_what_it_sampled(capsys):
    rng = np.random.default_rng(0)
    e = Embeddings(rng.normal(size=(120, 8)).astype("f4"), rng.integers(0, 12, 120), rng.integers(0, 3, 120))
    out = __import__("io").StringIO()
    out.isatty = lambda: True
    r = bias_audit.bias_report(e, map_method="none", nmi_images=60, quiet=False, file=out)
    lines = out.getvalue().split("\r")
    assert "parts of the bias report 16/16" in lines[-1] and capsys.readouterr().out == ""
    assert any("images (whole identities)" in n and "of 120" in n for n in r.notes)
    assert not any("whole identities" in n for n in bias_audit.bias_report(e, map_method="none", quiet=True).notes)


def test_progress_advances_inside_the_long_steps(monkeypatch):
    q, g = scene(1., n=100)                                                       # 300 queries: five batches of LITE
    said, real = [], reporting.progress
    class Each(real):
        def update(self, n, end=False):
            said.append((self.note, n, self.total, end))
            super().update(n, end)
    monkeypatch.setattr(bias_audit, "progress", Each)
    bias_audit.bias_report(q, g, map_method="none", quiet=True)
    parts = [n for _, n, _, _ in said]
    assert type(said[0][2]) is int                                               # another kind has no bar in a terminal
    assert parts == sorted(parts) and said[-1][1:] == (said[0][2], said[0][2], True)
    inside = {what: sorted({n for note, n, _, _ in said if note == what}) for what, *_ in said}
    assert len(inside["DART3-LITE: adapt"]) >= 5 and len(inside["Norm: rank"]) == 2    # the latter is one block here
    shares = []
    remedies.both_scores(Embeddings.concat([q]*30), Embeddings.concat([g]*30), shares.append)  # 9,000 x 9,000: many blocks
    assert len(shares) > 5 and shares == sorted(shares) and shares[0] == 0 and shares[-1] < 1


def test_camera_share_is_that_of_its_formula_and_leaves_the_features_alone():
    for dtype, shift in ((torch.float32, 0.), (torch.float64, 1e5)):
        e = scene(1., n=30)[0]
        e = e.with_emb(e.emb.to(dtype) + shift)
        before, x = e.emb.clone(), e.emb.double().numpy()
        means = np.stack([x[e.cam == c].mean(0) for c in e.cam])
        assert camera_share(e) == pytest.approx(((means - x.mean(0))**2).sum()/((x - x.mean(0))**2).sum(), rel=1e-9)
        assert torch.equal(e.emb, before)


def test_large_products_give_the_numbers_of_small_ones():
    "A gallery that one library multiplies, against 64 bits, where the other one does"
    q, g = scene(1., n=1000, dim=400)
    assert g.emb.numel() >= LARGE and g.emb.dtype == torch.float32
    a, b = (q[:100], g), [e.with_emb(e.emb.double()) for e in (q[:100], g)]
    for x, y in zip(remedies.adapted(*a), remedies.adapted(*b)):
        fast, slow = remedies.both_scores(*x[1:])[0], remedies.both_scores(*y[1:])[0]
        for d in (COS, EUC):
            assert np.abs(fast[d]["AP"] - slow[d]["AP"]).mean() < 1e-4, (x[0], d)
            want = retrieval_metrics(*y[1:], distance=d, per_query=True)["per_query"]["AP"]
            assert slow[d]["AP"] == pytest.approx(want, abs=1e-6)


def test_without_a_gallery_norm_is_that_of_the_set_pooled_with_itself():
    rng = np.random.default_rng(0)
    e = Embeddings(rng.normal(size=(20_000, 6)).astype("f4") + 3, rng.integers(0, 12, 20_000),
                   rng.integers(0, 3, 20_000))
    got = {name: a for name, a, *_ in remedies.adapted(e)}
    for name, method in (("Norm", CameraNorm()), ("Mean subtraction", CameraNorm(std=False))):
        assert torch.allclose(got[name].emb, adapt_embeddings(method, e, e)[0].emb, atol=1e-4)
    x, per = e.emb.double().numpy(), [e.emb.double().numpy()[e.cam == c] for c in range(3)]
    between = sum(len(p)*((p.mean(0) - x.mean(0))**2).sum() for p in per)/((x - x.mean(0))**2).sum()
    assert abs(camera_share(e) - between) < 1e-12
