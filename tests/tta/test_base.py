"""Test-time adaptation: vectors, properties, and a source model that is never changed."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from reid_lab.models import backbones
from reid_lab.tta import base as tta_base, camera_norm, dart3, gradient
from reid_lab.retrieval.cameras import CameraStats
from reid_lab.core.basics import unit_norm
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.retrieval.metrics import retrieval_metrics


def features(seed=0, n=24, dim=6, cams=3, dtype=torch.float64):
    rng = np.random.default_rng(seed)
    who, cam = rng.normal(size=(n, dim)), np.arange(n) % cams
    shift = rng.normal(size=(cams, dim))
    z = torch.tensor(who + .5*rng.normal(size=who.shape) + shift[cam], dtype=dtype)
    g = torch.tensor(np.repeat(who, 2, 0) + .5*rng.normal(size=(2*n, dim)) + shift[np.arange(2*n) % cams], dtype=dtype)
    return (Embeddings(z, np.arange(n), cam),
            Embeddings(g, np.repeat(np.arange(n), 2), np.arange(2*n) % cams))


class Net(nn.Module):
    "BatchNorm on the way to the feature, a neck and an unused LayerNorm beside it"
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.bn = nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6)
        self.fc, self.ln, self.neck, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.size, self.dim = (16, 8), 8

    def raw_features(self, img): return self.ln(self.fc(self.bn(self.conv(img)).relu().mean((2, 3))))
    def forward_tta(self, img): f = self.raw_features(img); return f, self.head(self.neck(f))
    def encode_image(self, img): return unit_norm(self.raw_features(img))


@pytest.fixture(scope="module")
def scene():
    table = tiny_table(16, 3)
    net = Net()
    net.train(); net.raw_features(torch.rand(32, 3, 16, 8)); net.neck(torch.randn(32, 8)); net.eval()
    queries = table.where(cam=2)
    return net, queries, embed_images(net, table.where(cam=[0, 1]), encode="raw_features", quiet=True)


# ---- vectors

@pytest.mark.parametrize("name",
                         ["dart3_loss_euclidean", "dart3_loss_squared_euclidean", "dart3_loss_euclidean_tau100"])
def test_dart3_vectors_with_gradients(oracles, name):
    i, want = oracles[name]["inputs"], oracles[name]["expected"]
    f64 = lambda x: torch.tensor(x, dtype=torch.float64)
    M, S = f64(i["M_q"]).requires_grad_(), f64(i["Sigma_q"]).requires_grad_()
    cam, G = torch.tensor(i["cam"]), f64(i["G_tilde"])
    z = (f64(i["z"]) - M[cam])/S[cam]
    delta = dart3.distances(z, G, "squared" if i["squared"] else "euclidean")
    loss = dart3.dart3_loss(delta, i["tau"], i["k"])
    loss.backward()
    H = delta/i["tau"] + torch.logsumexp(-delta/i["tau"], 1, keepdim=True)
    for got, key in ((z, "z_hat"), (delta, "delta"), (H, "H"), (loss, "loss"), (M.grad, "grad_M_q"),
                     (S.grad, "grad_Sigma_q")):
        torch.testing.assert_close(got.detach(), f64(want[key]), atol=1e-6, rtol=0)
    for row, top in zip(H, want["topk_idx"]):   # the two nearest, in any order among equals
        torch.testing.assert_close(row[top].sort().values, row.sort().values[:len(top)])


def test_the_whole_method_takes_the_vector_s_step(oracles):
    "One SGD step of DART3-LITE moves M and Sigma by lr times the gradients of the vector"
    i, want = (oracles["dart3_loss_euclidean"][k] for k in ("inputs", "expected"))
    f64 = lambda x: torch.tensor(x, dtype=torch.float64)
    method = dart3.Dart3Lite(tau=i["tau"], k=i["k"], lr=1., optimiser="sgd", batch_size=2)
    q = Embeddings(f64(i["z"]), [0, 1], i["cam"])
    method.configure(tta_base.FeatureStream(q), Embeddings(f64(i["z"]), [0, 1], i["cam"]))
    method.reset()
    method.g_tilde = f64(i["G_tilde"])
    M, S = method.norm.M, method.norm.S
    with torch.no_grad(): M[:2], S[:2] = f64(i["M_q"]), f64(i["Sigma_q"])
    method._one_batch(np.arange(2))
    torch.testing.assert_close(f64(i["M_q"]) - M[:2].detach(), f64(want["grad_M_q"]), atol=1e-6, rtol=0)
    torch.testing.assert_close(f64(i["Sigma_q"]) - S[:2].detach(), f64(want["grad_Sigma_q"]), atol=1e-6, rtol=0)


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
    q_hat, g_hat = tta_base.adapt_embeddings(camera_norm.CameraNorm(), q, g)   # pooled: queries and gallery of a camera together
    np.testing.assert_allclose(q_hat.emb, np.array(want["Z_normalised_population"])[queries], atol=1e-6)
    np.testing.assert_allclose(g_hat.emb, np.array(want["Z_normalised_population"])[~queries], atol=1e-6)


def test_tent_and_temp_vectors(oracles):
    f64 = lambda x: torch.tensor(x, dtype=torch.float64)
    tent = oracles["tent_entropy"]
    np.testing.assert_allclose(gradient.entropy(f64(tent["inputs"]["logits"])), tent["expected"]["entropy"], atol=1e-6)
    i, want = (oracles["temp_reid_entropy"][k] for k in ("inputs", "expected"))
    zq, zg = f64(i["zq"]), f64(i["zg"])
    np.testing.assert_allclose(gradient.temp_loss(zq, zg, i["k"]), want["loss"], atol=1e-6)
    per_query = [float(gradient.temp_loss(z[None], zg, i["k"])) for z in zq]
    np.testing.assert_allclose(per_query, want["entropy"], atol=1e-6)


@pytest.mark.parametrize("dim,counts",
                         [(1280, (15360, 20480, 38400)), (768, (9216, 12288, 23040)), (3840, (46080, 61440, 115200))])
def test_external_parameter_counts(dim, counts):
    "The published table, and what LITE really collects"
    assert tuple(dart3.external_parameters(dim, c) for c in (6, 8, 15)) == counts
    q = Embeddings(torch.randn(30, dim), np.arange(30), np.arange(30) % 15)
    lite = dart3.Dart3Lite(stats_from="query")
    lite.configure(tta_base.FeatureStream(q), q)
    spare = 2*dim   # the entry for cameras without statistics
    assert sum(p.numel() for p in lite.collect_params()) - spare == counts[2]


# ---- properties

def naive_loss(z, G, tau, k, squared):
    "Algorithm 2 as printed: exponentials, a sum, a logarithm"
    total = 0.
    for zi in z:
        d = [((zi - gj)**2).sum() if squared else ((zi - gj)**2).sum()**.5 for gj in G]
        e = [np.exp(-x/tau) for x in d]
        total += sum(sorted(-np.log(x/sum(e)) for x in e)[:k])
    return total/len(z)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 9), st.booleans(), st.sampled_from([.7, 3., 100.]))
def test_loss_equals_the_printed_algorithm(seed, b, n, squared, tau):
    rng = np.random.default_rng(seed)
    z, G = rng.normal(size=(b, 4)), rng.normal(size=(n, 4))
    for k in {1, min(3, n), n}:
        got = dart3.dart3_loss(dart3.distances(torch.tensor(z), torch.tensor(G), "squared" if squared else "euclidean"), tau, k)
        np.testing.assert_allclose(got, naive_loss(z, G, tau, k, squared), rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(-50, 50), st.sampled_from([.5, 100.]))
def test_the_loss_ignores_a_constant_in_the_distances_of_a_query(seed, shift, tau):
    delta = torch.tensor(np.random.default_rng(seed).uniform(0, 60, (4, 9)))
    moved = delta + torch.tensor([shift, 0., -shift, 2*shift])[:, None]
    torch.testing.assert_close(dart3.dart3_loss(moved, tau), dart3.dart3_loss(delta, tau), rtol=1e-9, atol=1e-9)


def test_cosine_distance():
    z, g = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(dart3.distances(z, g, "cosine"),
                               1 - torch.nn.functional.cosine_similarity(z[:, None], g[None], dim=-1))


def test_what_is_no_embeddings_is_named():
    q, g = features()
    for bad, name in (((q.emb, g), "q is Tensor"), ((q, None), "g is NoneType")):
        with pytest.raises(TypeError, match=f"{name}; wrap features"): tta_base.adapt_embeddings(camera_norm.CameraNorm(), *bad)


def test_loss_alone_learns_only_the_model_s_layers(scene):
    net, table, g = scene
    m = dart3.Dart3(lr=.1, camera=False, batch_size=5)
    q_hat, g_hat = tta_base.adapt_images(m, net, table, g)
    assert sorted(m.state_dict()) == ["bn.bias", "bn.weight", "ln.bias", "ln.weight"]
    torch.testing.assert_close(g_hat.emb, unit_norm(g.emb))
    with pytest.raises(ValueError, match="nothing to learn"): tta_base.adapt_embeddings(dart3.Dart3Lite(camera=False), *features())


def test_all_neighbours_give_the_sum_of_all_H():
    delta = torch.rand(3, 7, dtype=torch.float64)*9
    H = -(-delta/2.).log_softmax(1)
    for k in (7, 50): torch.testing.assert_close(dart3.dart3_loss(delta, 2., k), H.sum(1).mean())


def test_far_galleries_do_not_underflow():
    delta = torch.full((2, 5), 4000.) + torch.arange(5)
    assert torch.isfinite(dart3.dart3_loss(delta, .01)) and torch.exp(-delta/.01).sum() == 0


def test_the_gradient_is_finite_at_distance_zero():
    z = torch.ones(2, 3, requires_grad=True)
    dart3.dart3_loss(dart3.distances(z, torch.ones(4, 3)), 1.).backward()
    assert torch.isfinite(z.grad).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6))
def test_normalised_features_do_not_know_the_camera(seed):
    "Invariant to a positive scale and a shift per camera and dimension (eq. 3 cancels exactly)"
    rng = np.random.default_rng(seed)
    z, cam = torch.tensor(rng.normal(size=(20, 4))), rng.permutation(np.arange(20) % 3)
    scale, shift = torch.tensor(rng.uniform(.1, 5, (3, 4))), torch.tensor(rng.normal(0, 5, (3, 4)))
    moved = z*scale[cam] + shift[cam]
    torch.testing.assert_close(CameraStats(moved, cam).normalise(moved, cam), CameraStats(z, cam).normalise(z, cam))


def test_adapted_order_does_not_know_the_camera_either():
    q, g = features()
    scale, shift = torch.rand(3, 6).double() + .5, torch.randn(3, 6).double()
    move = lambda e: e.with_emb(e.emb*scale[e.cam] + shift[e.cam])
    for stats in camera_norm.STATS_FROM:
        a, b = (tta_base.adapt_embeddings(camera_norm.CameraNorm(stats), x, y)[0].emb for x, y in ((q, g), (move(q), move(g))))
        torch.testing.assert_close(a, b)


def scaled(pair, by): return [e.with_emb(by*e.emb) for e in pair]


@pytest.mark.parametrize("by", [2.**-20, 1024., 37.])
def test_rescaled_lite_does_not_know_the_size_of_the_features(by):
    pair, how = features(), dict(lr=.05, steps=3, batch_size=8)
    a, b = (tta_base.adapt_embeddings(dart3.Dart3Lite(**how, rescale=True), *p) for p in (pair, scaled(pair, by)))
    for x, y in zip(a, b): torch.testing.assert_close(x.emb, y.emb)
    c, d = (tta_base.adapt_embeddings(dart3.Dart3Lite(**how), *p) for p in (pair, scaled(pair, by)))   # as in the paper: it does
    assert not torch.allclose(c[0].emb, d[0].emb)
    assert not torch.allclose(a[0].emb, tta_base.adapt_embeddings(camera_norm.CameraNorm(), *pair)[0].emb)


def test_rescaling_does_not_change_norm():
    pair = features()
    norm = tta_base.adapt_embeddings(camera_norm.CameraNorm(), *pair)
    lite = dart3.Dart3Lite(rescale=True, steps=0)
    for a, b in zip(norm, tta_base.adapt_embeddings(lite, *pair)): torch.testing.assert_close(a.emb, b.emb)
    for a, b in zip(norm, tta_base.adapt_embeddings(camera_norm.CameraNorm(), *scaled(pair, 1024.))):
        torch.testing.assert_close(a.emb, b.emb)
    assert lite.divisor == pytest.approx(float(pair[1].emb.std(0, correction=0).mean())) and dart3.Dart3Lite().divisor == 1


def test_rescaled_dart3_works_on_images_and_grounding(scene):
    net, table, g = scene
    known = tta_base.ImageStream(net, tiny_table(16, 3).where(cam=0))
    q_hat, _ = tta_base.adapt_images(dart3.Dart3(steps=0, rescale=True), net, table, g)
    torch.testing.assert_close(q_hat.emb, tta_base.adapt_images(camera_norm.CameraNorm(), net, table, g)[0].emb, atol=1e-4, rtol=1e-4)
    image = tta_base.adapt_images(dart3.Dart3Lite(lr=.05, rescale=True, ground=known, n_ground=4), net, table, g)[0].emb
    cached = dart3.Dart3Lite(lr=.05, rescale=True, ground=tta_base.FeatureStream(known.q), n_ground=4)
    torch.testing.assert_close(tta_base.adapt_embeddings(cached, tta_base.ImageStream(net, table).q, g)[0].emb, image, atol=1e-4,
                               rtol=1e-4)


def test_one_episodic_step_as_printed_equals_norm():
    q, g = features()
    norm = tta_base.adapt_embeddings(camera_norm.CameraNorm(), q, g)
    same = tta_base.adapt_embeddings(dart3.Dart3Lite(lr=.1, episodic=True, final_forward=False, batch_size=5), q, g)
    for a, b in zip(norm, same): assert torch.equal(a.emb, b.emb)
    other = tta_base.adapt_embeddings(dart3.Dart3Lite(lr=.1, episodic=True, batch_size=5), q, g)
    assert not torch.equal(other[0].emb, norm[0].emb) and torch.equal(other[1].emb, norm[1].emb)


def test_episodic_batches_do_not_know_each_other():
    q, g = features()
    how = dict(lr=.1, steps=3, episodic=True, batch_size=8, stats_from="gallery")
    whole = tta_base.adapt_embeddings(dart3.Dart3Lite(**how), q, g)[0].emb
    alone = tta_base.adapt_embeddings(dart3.Dart3Lite(**how), q[8:16], g)[0].emb
    torch.testing.assert_close(whole[8:16], alone)
    carried = tta_base.adapt_embeddings(dart3.Dart3Lite(**{**how, "episodic": False}), q, g)[0].emb
    assert torch.equal(carried[:8], tta_base.adapt_embeddings(dart3.Dart3Lite(**{**how, "episodic": False}), q[:8], g)[0].emb)
    assert not torch.allclose(carried[8:16], alone)


def test_adaptation_lowers_its_loss():
    q, g = features(n=40)
    lite = dart3.Dart3Lite(lr=.02, tau=1., batch_size=40, stats_from="query", first=4)
    lite.configure(tta_base.FeatureStream(q), g)
    lite.reset()
    losses = []
    for _ in range(20):
        losses.append(float(lite.loss(np.arange(40))[0].detach()))
        lite._one_batch(np.arange(40))
    assert losses[-1] < losses[0] - .05


# ---- statistics: stated rules

def test_a_camera_with_one_image():
    z, cam = torch.randn(5, 3), [0, 0, 0, 0, 7]
    s = CameraStats(z, cam)
    assert torch.equal(s.std[1], torch.ones(3)) and torch.equal(s.mean[1], z[4])
    assert torch.equal(CameraStats(z, cam, single="global").std[1], s.all_std)


def test_normalisation_without_cameras_is_one_standardisation():
    q, g = features()
    q_hat, g_hat = tta_base.adapt_embeddings(camera_norm.CameraNorm(by_camera=False), q, g)
    x = torch.cat([q.emb, g.emb])
    torch.testing.assert_close(torch.cat([q_hat.emb, g_hat.emb]), (x - x.mean(0))/x.std(0, correction=0))


def test_unknown_cameras_learn_apart():
    "With statistics of the gallery alone, each camera that it lacks gets an entry of its own, all starting the same"
    g = torch.Generator().manual_seed(0)
    q = Embeddings(torch.randn(12, 4, generator=g), np.arange(12), np.repeat([0, 7, 8], 4))
    gallery = Embeddings(torch.randn(20, 4, generator=g), np.arange(20), np.repeat([0, 1], 10))
    lite = dart3.Dart3Lite(stats_from="gallery", lr=.1, batch_size=4, steps=3)
    lite.configure(tta_base.FeatureStream(q), gallery)
    norm = lite.norm
    assert norm.at.tolist() == [0]*4 + [2]*4 + [3]*4 and len(norm.M) == 4 and torch.equal(norm.M[2], norm.M[3])
    lite.run()
    assert not torch.equal(norm.M[2], norm.M[3])
    assert torch.equal(norm.M[1], norm.q_stats.mean[1])   # camera 1 has no query


def test_an_unknown_camera_takes_the_statistics_of_all():
    z, cam = torch.randn(6, 3), [0, 0, 0, 4, 4, 4]
    s = CameraStats(z, cam)
    for unknown in (-3, 2, 9):
        torch.testing.assert_close(s.normalise(z[:1], [unknown]), (z[:1] - z.mean(0))/z.std(0, correction=0))


def test_a_constant_dimension_does_not_divide_by_zero():
    z = torch.randn(6, 2); z[:, 1] = 5.
    assert torch.isfinite(CameraStats(z, [0]*6).normalise(z, [0]*6)).all()


def test_first_queries_of_each_camera_count():
    q, g = features()
    a = camera_norm.CameraNorm("query", first=2); a.configure(tta_base.FeatureStream(q), g)
    for c in range(3): torch.testing.assert_close(a.q_stats.mean[c], q[q.cam == c].emb[:2].mean(0))
    torch.testing.assert_close(a.g_stats.mean, CameraStats(g.emb, g.cam).mean)


def test_a_query_camera_that_the_gallery_lacks():
    q, g = features()
    gone = g[g.cam != 1]
    for stats in camera_norm.STATS_FROM:
        q_hat, _ = tta_base.adapt_embeddings(camera_norm.CameraNorm(stats), q, gone)
        assert torch.isfinite(q_hat.emb).all()
    from_gallery = tta_base.adapt_embeddings(camera_norm.CameraNorm("gallery"), q, gone)[0].emb[q.cam == 1]
    rule = (q.emb[q.cam == 1] - gone.emb.mean(0))/gone.emb.std(0, correction=0)
    torch.testing.assert_close(from_gallery, rule)


# ---- the model

ALL = dict(tent=gradient.Tent(lr=.1, batch_size=5), tent_feature=gradient.Tent(prediction="feature", lr=.1, batch_size=5),
           tent_batch=gradient.Tent(lr=.1, bn_mode="batch", batch_size=5),
           bn_only=gradient.Tent(steps=0, bn_mode="batch", batch_size=5),
           temp=gradient.Temp(k=5, lr=.1, batch_size=5), dart3=dart3.Dart3(lr=.1, batch_size=5), norm=camera_norm.CameraNorm(),
           none=tta_base.NoAdapt(),
           dart3_episodic=dart3.Dart3(lr=.1, steps=3, episodic=True, batch_size=5), lite=dart3.Dart3Lite(lr=.1, batch_size=5),
           dart3_cosine=dart3.Dart3(lr=.1, distance="cosine", batch_size=5),
           dart3_loss_only=dart3.Dart3(lr=.1, camera=False, batch_size=5),
           dart3_sgd=dart3.Dart3(lr=.1, optimiser="sgd", bn_mode="batch", batch_size=5))


def photograph(net):
    "Everything a user could miss: weights, buffers, switches, modes"
    return ({k: v.clone() for k, v in net.state_dict().items()}, [p.requires_grad for p in net.parameters()],
            [m.training for m in net.modules()],
            [(m.running_mean is None, m.track_running_stats) for m in (net.bn, net.neck)],
            [p.grad is None for p in net.parameters()])


def same(a, b):
    return all(torch.equal(a[0][k], b[0][k]) for k in a[0]) and a[1:] == b[1:] and a[0].keys() == b[0].keys()


@pytest.mark.parametrize("name", ALL)
def test_the_source_model_stays_as_it_was(scene, name):
    net, table, g = scene
    net.neck.train(); before = photograph(net)
    q_hat, g_hat = tta_base.adapt_images(ALL[name], net, table, g)
    assert same(before, photograph(net)) and q_hat.emb.shape == (16, 8) and g_hat.emb.shape == g.emb.shape
    assert torch.isfinite(q_hat.emb).all() and np.isfinite(retrieval_metrics(q_hat, g_hat, distance="euclidean")["mAP"])
    again = tta_base.adapt_images(ALL[name], net, table, g)
    assert torch.equal(q_hat.emb, again[0].emb)   # nothing remembered from the first time
    net.eval()


@pytest.mark.parametrize("name", ["tent", "tent_batch", "temp", "dart3", "dart3_episodic"])
def test_a_failure_in_the_middle_restores_the_model(scene, name, monkeypatch):
    net, table, g = scene
    before, method, calls = photograph(net), ALL[name], []
    real = type(method).loss
    def fails(self, rows):
        calls.append(1)
        if len(calls) == 2: raise RuntimeError("camera unplugged")
        return real(self, rows)
    monkeypatch.setattr(type(method), "loss", fails)
    with pytest.raises(RuntimeError, match="unplugged"): tta_base.adapt_images(method, net, table, g)
    assert same(before, photograph(net)) and len(calls) == 2


def test_keep_leaves_the_adapted_layers_and_nothing_else():
    net, table = Net().eval(), tiny_table(12, 3)
    g, before = embed_images(net, table.where(cam=[0, 1]), encode="raw_features", quiet=True), photograph(net)
    method = dart3.Dart3(lr=.1, batch_size=6)
    tta_base.adapt_images(method, net, table.where(cam=2), g, keep=True)
    after = photograph(net)
    assert {k for k in before[0] if not torch.equal(before[0][k], after[0][k])} == set(method.layers)
    assert before[1:] == after[1:]
    saved = method.state_dict()
    for k, p in net.named_parameters():
        if k in saved: assert torch.equal(saved[k], p)


def test_only_layers_that_matter_learn(scene):
    net, table, g = scene
    img = torch.rand(3, 3, 16, 8)
    assert sorted(tta_base.influential(net, img)) == ["bn.bias", "bn.weight", "ln.bias", "ln.weight"]
    assert sorted(tta_base.influential(net, img, ("bn",))) == ["bn.bias", "bn.weight"]
    bare = nn.Module(); bare.fc, bare.neck = nn.Linear(2, 2), nn.BatchNorm1d(2)
    bare.raw_features = lambda x: bare.fc(x)
    with pytest.raises(ValueError, match="reaches the test feature.*Dart3Lite"): tta_base.influential(bare, torch.rand(2, 2))


def test_batch_statistics_change_the_result_and_need_two_images(scene):
    net, table, g = scene
    a, b = (tta_base.adapt_images(gradient.Tent(steps=0, bn_mode=m), net, table, g)[0].emb for m in ("eval", "batch"))
    assert not torch.allclose(a, b)
    net.train(); expected = unit_norm(net.raw_features(tta_base.ImageStream(net, table).pixels(range(16)))).detach()
    net.eval()
    net.load_state_dict(Net().state_dict() | {k: v for k, v in net.state_dict().items() if "running" not in k})
    torch.testing.assert_close(b, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="at least two images"):
        tta_base.adapt_images(gradient.Tent(bn_mode="batch", batch_size=1), net, table, g)


def test_a_single_leftover_joins_the_batch_before():
    m = gradient.Tent(batch_size=5, bn_mode="batch"); m.stream = range(11)
    assert [len(b) for b in m.batches()] == [5, 6]
    m.bn_mode = "eval"
    assert [len(b) for b in m.batches()] == [5, 5, 1]


def test_grounding_images_steer_but_are_not_returned(scene):
    net, table, g = scene
    known = tta_base.ImageStream(net, tiny_table(16, 3).where(cam=0))
    with_, without = (tta_base.adapt_images(dart3.Dart3(lr=.1, batch_size=5, **kw), net, table, g)[0].emb
                      for kw in (dict(ground=known, n_ground=4), {}))
    assert with_.shape == without.shape and not torch.allclose(with_, without)
    f = tta_base.FeatureStream(known.q)
    assert tta_base.adapt_embeddings(dart3.Dart3Lite(lr=.1, ground=f,
                                          n_ground=4), tta_base.ImageStream(net, table).q, g)[0].emb.shape == with_.shape


@pytest.mark.parametrize("kind", [dart3.Dart3, dart3.Dart3Lite])
@pytest.mark.parametrize("episodic", [True, False])
def test_every_batch_draws_other_grounding_images_and_every_run_the_same(scene, kind, episodic):
    net, table, g = scene

    class Noted(kind):
        def ground_features(self, rows):
            drawn.append(tuple(sorted(rows.tolist())))
            return super().ground_features(rows)

    known, drawn = tta_base.ImageStream(net, tiny_table(16, 3).where(cam=0)), []
    method = Noted(lr=.01, batch_size=4, episodic=episodic, final_forward=False, ground=known, n_ground=4)
    queries = tta_base.ImageStream(net, table)
    with tta_base.guarded(net):
        method.configure(queries, g); runs = [method.run()[0] for _ in range(2)]
    n = len(method.batches())
    assert len(drawn) == 2*n and n > 3 and drawn[:n] == drawn[n:] and torch.equal(*runs)
    assert len(set(drawn[:n])) > n//2
    again = Noted(lr=.01, batch_size=4, episodic=episodic, final_forward=False, ground=known, n_ground=4)
    drawn.clear(); assert torch.equal(again.adapt(queries, g)[0], runs[0])


def test_state_can_be_read_and_is_reset(scene):
    q, g = features()
    lite = dart3.Dart3Lite(lr=.1, batch_size=8)
    lite.configure(tta_base.FeatureStream(q), g); start = lite.state_dict()
    lite.run()
    assert not torch.equal(lite.state_dict()["M"], start["M"])
    lite.reset()
    assert all(torch.equal(v, start[k]) for k, v in lite.state_dict().items())


def test_the_features_given_are_not_changed():
    q, g = features()
    keep = q.emb.clone(), g.emb.clone()
    for m in (camera_norm.CameraNorm(), dart3.Dart3Lite(lr=.5, steps=5), tta_base.NoAdapt()): tta_base.adapt_embeddings(m, q, g)
    assert torch.equal(q.emb, keep[0]) and torch.equal(g.emb, keep[1])


# ---- bad input

@pytest.mark.parametrize("make,words", [
    (lambda q, g: tta_base.adapt_embeddings(gradient.Tent(), q, g), "Dart3Lite"),
    (lambda q, g: tta_base.adapt_embeddings(dart3.Dart3(), q, g), "cannot work on features alone"),
    (lambda q, g: tta_base.adapt_embeddings(camera_norm.CameraNorm(), Embeddings(q.emb, q.pid), g), "q has no camera numbers"),
    (lambda q, g: tta_base.adapt_embeddings(camera_norm.CameraNorm(), q, Embeddings(g.emb, g.pid)), "g has no camera numbers"),
    (lambda q, g: tta_base.adapt_embeddings(camera_norm.CameraNorm(), Embeddings(q.emb[:, :2], q.pid, q.cam), g), "2 dimensions"),
    (lambda q, g: camera_norm.CameraNorm("queries"), "stats_from='queries'"), (lambda q, g: dart3.Dart3(tau=0), "tau=0"),
    (lambda q, g: dart3.Dart3(k=0), "k=0"),
    (lambda q, g: dart3.Dart3(n_ground=4), "needs ground"), (lambda q, g: dart3.Dart3(batch_size=0), "batch_size=0"),
    (lambda q, g: backbones.norm_layers(Net(), ("xn",)), "norm_kinds='xn'"),
    (lambda q, g: dart3.Dart3Lite(ground=tta_base.FeatureStream(q)), "other way round"),
    (lambda q, g: tta_base.adapt_embeddings(dart3.Dart3Lite(ground=tta_base.FeatureStream(g), n_ground=2, stats_from="query"),
                                     q.where(cam=int(q.cam[0])), g),
     "cameras without statistics"),
    (lambda q, g: CameraStats(q.emb, q.cam[:3]), "3 entries"),
    (lambda q, g: dart3.Dart3Lite(norm_kinds=("bn",)), "norm_kinds.*use Dart3"),
    (lambda q, g: dart3.Dart3Lite(bn_mode="batch"), "bn_mode"),
    (lambda q, g: tta_base.adapt_embeddings(dart3.Dart3Lite(tau=1e-310), q, g), "raise tau"),
    (lambda q, g: tta_base.ImageStream(nn.Linear(2, 2), None), "raw_features"),
    (lambda q, g: tta_base.ImageStream(Net(), range(3), q), "raw has .* features and table 3 rows")])
def test_bad_input_says_what_to_do(make, words):
    with pytest.raises((ValueError, TypeError, FloatingPointError), match=words): make(*features())


def test_gradient_methods_define_a_loss():
    "What a subclass must bring is declared on the base class, and the error names it"
    with pytest.raises(NotImplementedError, match=r"Gradient defines no loss\(rows\)"): gradient.Gradient().loss([0])
    with pytest.raises(NotImplementedError): tta_base.TTA().run()
    q, g = features()
    class Still(gradient.Gradient):
        "Learns nothing"
        def loss(self, rows): x = self.features(rows); return x.sum(), x
    still = Still(); still.configure(tta_base.FeatureStream(q), g)
    torch.testing.assert_close(still.gallery_out(), unit_norm(g.emb))


@pytest.mark.parametrize("kind", [dart3.Dart3, dart3.Dart3Lite])
def test_dart3_has_a_camera_norm_and_configures_once(scene, kind, monkeypatch):
    "One configure, one measurement, one reset and one copy of the features in an adaptation"
    net, table, g = scene
    calls = []
    def count(cls, name):
        real = getattr(cls, name)
        def counted(self, *a, **kw): calls.append(f"{cls.__name__}.{name}"); return real(self, *a, **kw)
        monkeypatch.setattr(cls, name, counted)
    for cls, names in ((tta_base.TTA, ["configure"]), (gradient.Gradient, ["configure", "reset"]),
                       (camera_norm.CameraNorm, ["configure", "measure", "reset"]), (tta_base.ImageStream, ["raw_features"])):
        for name in names: count(cls, name)
    method = kind(lr=.1, batch_size=5)
    tta_base.adapt_images(method, net, table, g)
    assert sorted(calls) == ["CameraNorm.measure", "CameraNorm.reset", "Gradient.configure", "Gradient.reset",
                             "ImageStream.raw_features", "TTA.configure"]
    assert not isinstance(method, camera_norm.CameraNorm) and type(method.norm) is camera_norm.CameraNorm
    assert list(method.external()) == ["M", "S"] and method.state_dict().keys() >= {"M", "S"}


METHODS = dict(none=tta_base.NoAdapt, norm=camera_norm.CameraNorm, tent=gradient.Tent, temp=gradient.Temp, dart3=dart3.Dart3, lite=dart3.Dart3Lite)
LAYERS = {"bn.weight", "bn.bias", "ln.weight", "ln.bias"}
LEARNED = dict(none=set(), norm=set(), tent=LAYERS, temp=LAYERS, dart3=LAYERS | {"M", "S"}, lite={"M", "S"})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(scene, name):
    "Default arguments work; what learns has a state that moves and is reset; what needs a model says so"
    net, table, g = scene
    method = METHODS[name]()
    q_hat, g_hat = tta_base.adapt_images(method, net, table, g)
    assert len(q_hat) == len(table) and len(g_hat) == len(g) and q_hat.pid.tolist() == table.frame.pid.tolist()
    with tta_base.guarded(net):
        method.configure(tta_base.ImageStream(net, table), g)
        method.check()
        start = method.state_dict()
        assert set(start) == LEARNED[name] and len(method.collect_params()) == len(start)
        torch.testing.assert_close(method.run()[0].detach(), q_hat.emb)
        learned = method.state_dict()
        assert {k for k in start if not torch.equal(start[k], learned[k])} == LEARNED[name]
        method.reset()
        assert all(torch.equal(start[k], v) for k, v in method.state_dict().items())
    if method.needs_model:
        with pytest.raises(ValueError, match="cannot work on features alone"): tta_base.adapt_embeddings(method, *features())
    else: assert [len(e) for e in tta_base.adapt_embeddings(method, *features())] == [24, 48]
    assert method.needs_model == (name in ("tent", "temp", "dart3")) and type(method).__doc__


# ---- side information

@pytest.fixture(scope="module")
def sided():
    from reid_lab.models.zoo import create_model
    torch.manual_seed(0)
    return create_model("transreid_tiny", n_ids=4, size=(32, 32), cams=(0, 2)).eval(), tiny_table(8, 3)


@pytest.mark.parametrize("method", [gradient.Tent(), gradient.Temp(k=4), dart3.Dart3(), dart3.Dart3(camera=False)],
                         ids=lambda m: type(m).__name__)
def test_adaptation_sees_each_query_with_its_own_camera(sided, method):
    model, table = sided
    g = embed_images(model, table.where(cam=0), encode="raw_features", quiet=True)
    queries = table.where(cam=[1, 2])
    with torch.no_grad():
        stream = tta_base.ImageStream(model, queries)
        cam = torch.tensor([c if c != 1 else -5 for c in queries.frame.cam])   # camera 1 is unknown: the mean
        own = model.raw_features(stream.pixels(range(len(queries))), cam)
        rows = np.array([3, 9, 0])
        for x in (stream.features(rows), stream.raw_features()[rows], stream.scored(rows)[0]):
            assert torch.allclose(x, own[rows], atol=1e-5)
        assert torch.allclose(stream.scored(rows)[1], model.logits(stream.pixels(rows), cam[rows]), atol=1e-5)
        blind = tta_base.ImageStream(model, queries, cameras=False)
        assert (blind.raw_features() - own).norm(dim=1)[(cam == 2).numpy()].min() > 1e-2
    method.lr = 0.
    got, _ = tta_base.adapt_images(method, model, queries, g)
    bare, _ = tta_base.adapt_images(method, model, queries, g, cameras=False)
    want = method.normalise(own, method.norm.at) if isinstance(method, dart3.Dart3) and method.camera else unit_norm(own)
    if not (isinstance(method, dart3.Dart3) and method.camera): assert torch.allclose(got.emb, want.detach(), atol=1e-4)
    assert not torch.allclose(got.emb, bare.emb, atol=1e-3)


def test_grounding_images_have_their_cameras(sided):
    model, table = sided
    ground = tta_base.ImageStream(model, table.where(cam=[0, 2]))
    method = dart3.Dart3(ground=ground, n_ground=4, lr=0.)
    g = embed_images(model, table.where(cam=[0, 2]), encode="raw_features", quiet=True)
    tta_base.adapt_images(method, model, table.where(cam=1), g)
    rows = np.array([1, 5])
    cam = torch.as_tensor(ground.cam[rows])
    with torch.no_grad(): want = model.raw_features(ground.pixels(rows), cam)
    assert torch.allclose(method.ground_features(rows), want, atol=1e-5)


# ---- what training kept fixed

class After(Net):
    "`Net` with the feature after its neck, whose shift training kept at 0"
    def __init__(self):
        super().__init__()
        self.neck.bias.requires_grad_(False)

    def raw_features(self, img): return self.neck(super().raw_features(img))


@pytest.mark.parametrize("make,shift", [(lambda **kw: gradient.Temp(k=4, **kw), False),
                                        (lambda **kw: gradient.Tent("feature", **kw), False), (dart3.Dart3, True)],
                         ids=["TEMP", "TENT", "DART3"])
def test_a_frozen_shift_learns_only_when_asked(scene, make, shift):
    _, queries, _ = scene
    net = After().eval()
    g = embed_images(net, tiny_table(16, 3).where(cam=[0, 1]), encode="raw_features", quiet=True)
    for kw, wanted in ((dict(), shift), (dict(frozen=True), True), (dict(frozen=False), False)):
        method = make(lr=1e-2, batch_size=8, **kw)
        tta_base.adapt_images(method, net, queries, g, keep=True)
        assert {"neck.weight", "bn.bias", "ln.weight"} <= set(method.layers)
        assert ("neck.bias" in method.layers) == wanted
        assert bool(net.neck.bias.any()) == wanted and not net.neck.bias.requires_grad
        net = After().eval()


def test_tents_official_layers(scene):
    _, queries, _ = scene
    net = After().eval()
    g = embed_images(net, queries, encode="raw_features", quiet=True)
    method = gradient.Tent("feature", norm_kinds=("bn2d",), bn_mode="batch", batch_size=8)
    tta_base.adapt_images(method, net, queries, g)
    assert set(method.layers) == {"bn.weight", "bn.bias"}


def test_a_model_frozen_as_a_whole_is_no_silent_start(scene):
    _, queries, _ = scene
    net = After().eval().requires_grad_(False)
    g = embed_images(net, queries, encode="raw_features", quiet=True)
    with pytest.raises(ValueError, match="requires_grad is False for all 6 parameters.*frozen=True"):
        tta_base.adapt_images(gradient.Temp(k=4), net, queries, g)
    assert not any(p.requires_grad for p in net.parameters())
    method = gradient.Temp(k=4, frozen=True)
    tta_base.adapt_images(method, net, queries, g)
    assert len(method.layers) == 6 and not any(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("dtype, scale", [("float32", 1e-30), ("float32", 1e-8), ("float32", 1e25), ("float64", 1e-200),
                                          ("float64", 1e200)])
def test_features_of_any_scale(dtype, scale):
    "Statistics, the methods on features, and what the analyses say of them"
    from reid_lab.analysis.bias.per_camera import UNCERTAINTIES, camera_share, error_auroc
    from reid_lab.analysis.bias.maps import project
    rng = np.random.default_rng(0); pid, cam = np.arange(90) % 15, rng.integers(0, 3, 90)
    x = rng.normal(size=(15, 6))[pid] + rng.normal(size=(90, 6))*.7 + cam[:, None]
    one, far = (Embeddings(torch.tensor(x*s, dtype=getattr(torch, dtype)), pid, cam) for s in (1., scale))
    a, b = (CameraStats(e.emb, cam) for e in (one, far))
    torch.testing.assert_close(b.normalise(far.emb, cam), a.normalise(one.emb, cam), rtol=1e-3, atol=1e-3)
    for method in (tta_base.NoAdapt(), camera_norm.CameraNorm(), camera_norm.CameraNorm(std=False), camera_norm.CameraNorm(unit=True),
                   dart3.Dart3Lite(rescale=True, lr=1e-2, batch_size=8)):
        hat = (tta_base.adapt_embeddings(method, e[:30], e[30:]) for e in (one, far))
        want, got = (retrieval_metrics(*e, distance="euclidean") for e in hat)
        assert got["mAP"] == pytest.approx(want["mAP"], abs=.2), method
    assert camera_share(far) == pytest.approx(camera_share(one), rel=1e-3)
    for kind in UNCERTAINTIES:
        assert error_auroc(far, far, kind, tau=scale) == pytest.approx(error_auroc(one, one, kind), abs=.01)
    flat = lambda e: np.abs(project(e, "pca")[["x", "y"]].to_numpy())
    np.testing.assert_allclose(flat(far)/flat(far).max(), flat(one)/flat(one).max(), atol=1e-3)


def test_uncertainty_needs_no_labels():
    from reid_lab.analysis.bias.per_camera import uncertainty
    q, g = Embeddings(torch.eye(3), [-1]*3), Embeddings(torch.eye(3)*2, [-1]*3)
    np.testing.assert_allclose(uncertainty(q, g), [1, 1, 1])
