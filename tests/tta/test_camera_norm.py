"""Normalisation per camera: vectors, invariances and stated rules."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from reid_lab.analysis.bias.maps import project
from reid_lab.analysis.bias.per_camera import UNCERTAINTIES, camera_share, error_auroc, uncertainty
from reid_lab.retrieval.cameras import CameraStats
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.tta.base import FeatureStream, NoAdapt, adapt_embeddings
from reid_lab.tta.camera_norm import STATS_FROM, CameraNorm
from reid_lab.tta.dart3 import Dart3Lite


def test_camera_normalisation_vector(oracles):
    i, want = (oracles["camera_normalisation"][k] for k in ("inputs", "expected"))
    z, cam = torch.tensor(i["Z"], dtype=torch.float64), np.array(i["cam"])
    for ddof, name in ((0, "population"), (1, "unbiased")):
        s = CameraStats(z, cam, ddof=ddof)
        for c in (0, 1):
            np.testing.assert_allclose(s.mean[c], want[f"mu_cam{c}"], atol=1e-6)
            np.testing.assert_allclose(s.std[c], want[f"sigma_cam{c}_{name}"], atol=1e-6)
    np.testing.assert_allclose(CameraStats(z, cam).normalise(z, cam), want["Z_normalised_population"], atol=1e-6)
    queries = np.array(i["is_query"], bool)
    ids = np.arange(len(z))
    q, g = Embeddings(z[queries], ids[queries], cam[queries]), Embeddings(z[~queries], ids[~queries], cam[~queries])
    q_hat, g_hat = adapt_embeddings(CameraNorm(), q, g)   # pooled: queries and gallery of a camera together
    np.testing.assert_allclose(q_hat.emb, np.array(want["Z_normalised_population"])[queries], atol=1e-6)
    np.testing.assert_allclose(g_hat.emb, np.array(want["Z_normalised_population"])[~queries], atol=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_normalised_features_do_not_know_the_camera(seed):
    "Invariant to a positive scale and a shift per camera and dimension (eq. 3 cancels exactly)"
    rng = np.random.default_rng(seed)
    z, cam = torch.tensor(rng.normal(size=(20, 4))), rng.permutation(np.arange(20) % 3)
    scale, shift = torch.tensor(rng.uniform(.1, 5, (3, 4))), torch.tensor(rng.normal(0, 5, (3, 4)))
    moved = z*scale[cam] + shift[cam]
    torch.testing.assert_close(CameraStats(moved, cam).normalise(moved, cam), CameraStats(z, cam).normalise(z, cam))


def test_adapted_order_does_not_know_the_camera_either(features):
    q, g = features()
    scale, shift = torch.rand(3, 6).double() + .5, torch.randn(3, 6).double()
    move = lambda e: e.with_emb(e.emb*scale[e.cam] + shift[e.cam])
    for stats in STATS_FROM:
        a, b = (adapt_embeddings(CameraNorm(stats), x, y)[0].emb for x, y in ((q, g), (move(q), move(g))))
        torch.testing.assert_close(a, b)


def test_a_camera_with_one_image():
    z, cam = torch.randn(5, 3), [0, 0, 0, 0, 7]
    s = CameraStats(z, cam)
    assert torch.equal(s.std[1], torch.ones(3)) and torch.equal(s.mean[1], z[4])
    assert torch.equal(CameraStats(z, cam, single="global").std[1], s.all_std)


def test_normalisation_without_cameras_is_one_standardisation(features):
    q, g = features()
    q_hat, g_hat = adapt_embeddings(CameraNorm(by_camera=False), q, g)
    x = torch.cat([q.emb, g.emb])
    torch.testing.assert_close(torch.cat([q_hat.emb, g_hat.emb]), (x - x.mean(0))/x.std(0, correction=0))


def test_an_unknown_camera_takes_the_statistics_of_all():
    z, cam = torch.randn(6, 3), [0, 0, 0, 4, 4, 4]
    s = CameraStats(z, cam)
    for unknown in (-3, 2, 9):
        torch.testing.assert_close(s.normalise(z[:1], [unknown]), (z[:1] - z.mean(0))/z.std(0, correction=0))


def test_a_constant_dimension_does_not_divide_by_zero():
    z = torch.randn(6, 2)
    z[:, 1] = 5.
    assert torch.isfinite(CameraStats(z, [0]*6).normalise(z, [0]*6)).all()


def test_first_queries_of_each_camera_count(features):
    q, g = features()
    a = CameraNorm("query", first=2)
    a.configure(FeatureStream(q), g)
    for c in range(3): torch.testing.assert_close(a.q_stats.mean[c], q[q.cam == c].emb[:2].mean(0))
    torch.testing.assert_close(a.g_stats.mean, CameraStats(g.emb, g.cam).mean)


def test_a_query_camera_that_the_gallery_lacks(features):
    q, g = features()
    gone = g[g.cam != 1]
    for stats in STATS_FROM:
        q_hat, _ = adapt_embeddings(CameraNorm(stats), q, gone)
        assert torch.isfinite(q_hat.emb).all()
    from_gallery = adapt_embeddings(CameraNorm("gallery"), q, gone)[0].emb[q.cam == 1]
    rule = (q.emb[q.cam == 1] - gone.emb.mean(0))/gone.emb.std(0, correction=0)
    torch.testing.assert_close(from_gallery, rule)


@pytest.mark.parametrize("make,words", [
    (lambda q, g: CameraNorm("queries"), "stats_from='queries'"),
    (lambda q, g: CameraStats(q.emb, q.cam[:3]), "3 entries")])
def test_bad_input_of_statistics_says_what_to_do(make, words, features):
    with pytest.raises((ValueError, TypeError, FloatingPointError), match=words): make(*features())


@pytest.mark.parametrize("dtype, scale", [("float32", 1e-30), ("float32", 1e-8), ("float32", 1e25), ("float64", 1e-200),
                                          ("float64", 1e200)])
def test_features_of_any_scale(dtype, scale):
    "Statistics, the methods on features, and what the analyses say of them"
    rng = np.random.default_rng(0)
    pid, cam = np.arange(90) % 15, rng.integers(0, 3, 90)
    x = rng.normal(size=(15, 6))[pid] + rng.normal(size=(90, 6))*.7 + cam[:, None]
    one, far = (Embeddings(torch.tensor(x*s, dtype=getattr(torch, dtype)), pid, cam) for s in (1., scale))
    a, b = (CameraStats(e.emb, cam) for e in (one, far))
    torch.testing.assert_close(b.normalise(far.emb, cam), a.normalise(one.emb, cam), rtol=1e-3, atol=1e-3)
    for method in (NoAdapt(), CameraNorm(), CameraNorm(std=False), CameraNorm(unit=True),
                   Dart3Lite(rescale=True, lr=1e-2, batch_size=8)):
        hat = (adapt_embeddings(method, e[:30], e[30:]) for e in (one, far))
        want, got = (retrieval_metrics(*e, distance="euclidean") for e in hat)
        assert got["mAP"] == pytest.approx(want["mAP"], abs=.2), method
    assert camera_share(far) == pytest.approx(camera_share(one), rel=1e-3)
    for kind in UNCERTAINTIES:
        assert error_auroc(far, far, kind, tau=scale) == pytest.approx(error_auroc(one, one, kind), abs=.01)
    flat = lambda e: np.abs(project(e, "pca")[["x", "y"]].to_numpy())
    np.testing.assert_allclose(flat(far)/flat(far).max(), flat(one)/flat(one).max(), atol=1e-3)


def test_uncertainty_needs_no_labels():
    q, g = Embeddings(torch.eye(3), [-1]*3), Embeddings(torch.eye(3)*2, [-1]*3)
    np.testing.assert_allclose(uncertainty(q, g), [1, 1, 1])
