"Remedies: both distances in one pass, the closed form, gains that share their draws"
import numpy as np
import pytest
import torch
from helpers.bias import COS, EUC, rows, scene

from reid_lab.analysis.bias import audit as bias_audit, remedies
from reid_lab.analysis.bias.per_camera import camera_share
from reid_lab.core.basics import stream
from reid_lab.core.statistics import paired_gain, resampled_means
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.scores import LARGE
from reid_lab.tta.base import adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3Lite


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
    settings = bias_audit.AuditSettings(lite=dict(distance="cosine", batch_size=16), splits=0)
    r = bias_audit.bias_report(*scene(1.), map_method="none", audit=settings)
    lite = adapt_embeddings(Dart3Lite(**{**remedies.LITE, "distance": "cosine", "batch_size": 16}), *scene(1.))
    assert rows(r, EUC).mAP["DART3-LITE"] == pytest.approx(retrieval_metrics(*lite, distance=EUC)["mAP"])


def test_all_pairs_of_rankings_share_their_draws():
    AP = {k: stream(i, "AP").uniform(size=90) for i, k in enumerate("abc")}
    pid = np.arange(90) % 23
    for k in AP: AP[k][5] = np.nan
    paired = remedies.PairedScores(AP, pid)
    for new, old in ("ab", "bc", "ca"):
        np.testing.assert_allclose(paired.gain(new, old, 3), paired_gain(AP[new] - AP[old], pid, 3), atol=1e-9)
    some = paired.of([1, 2, 3])
    np.testing.assert_allclose(some.gain("a", "b"), paired_gain((AP["a"] - AP["b"])[np.isin(pid, [1, 2, 3])],
                                                                  pid[np.isin(pid, [1, 2, 3])]), atol=1e-9)
    assert len(resampled_means(np.ones((7, 2)), np.ones(7), 50, 0)) == 50


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
