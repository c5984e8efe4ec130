"""DART3 and DART3-LITE: vectors with gradients, properties of the loss, grounding."""
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from reid_lab.core.basics import unit_norm
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.tta.base import TTA, FeatureStream, ImageStream, adapt_embeddings, adapt_images, guarded
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3, Dart3Lite, dart3_loss, distances, external_parameters
from reid_lab.tta.gradient import Gradient


@pytest.mark.parametrize("name",
                         ["dart3_loss_euclidean", "dart3_loss_squared_euclidean", "dart3_loss_euclidean_tau100"])
def test_dart3_vectors_with_gradients(oracles, name):
    i, want = oracles[name]["inputs"], oracles[name]["expected"]
    f64 = lambda x: torch.tensor(x, dtype=torch.float64)
    M, S = f64(i["M_q"]).requires_grad_(), f64(i["Sigma_q"]).requires_grad_()
    cam, G = torch.tensor(i["cam"]), f64(i["G_tilde"])
    z = (f64(i["z"]) - M[cam])/S[cam]
    delta = distances(z, G, "squared" if i["squared"] else "euclidean")
    loss = dart3_loss(delta, i["tau"], i["k"])
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
    method = Dart3Lite(tau=i["tau"], k=i["k"], lr=1., optimiser="sgd", batch_size=2)
    q = Embeddings(f64(i["z"]), [0, 1], i["cam"])
    method.configure(FeatureStream(q), Embeddings(f64(i["z"]), [0, 1], i["cam"]))
    method.reset()
    method.g_tilde = f64(i["G_tilde"])
    M, S = method.norm.M, method.norm.S
    with torch.no_grad(): M[:2], S[:2] = f64(i["M_q"]), f64(i["Sigma_q"])
    method._one_batch(np.arange(2))
    torch.testing.assert_close(f64(i["M_q"]) - M[:2].detach(), f64(want["grad_M_q"]), atol=1e-6, rtol=0)
    torch.testing.assert_close(f64(i["Sigma_q"]) - S[:2].detach(), f64(want["grad_Sigma_q"]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dim,counts",
                         [(1280, (15360, 20480, 38400)), (768, (9216, 12288, 23040)), (3840, (46080, 61440, 115200))])
def test_external_parameter_counts(dim, counts):
    "The published table, and what LITE really collects"
    assert tuple(external_parameters(dim, c) for c in (6, 8, 15)) == counts
    q = Embeddings(torch.randn(30, dim), np.arange(30), np.arange(30) % 15)
    lite = Dart3Lite(stats_from="query")
    lite.configure(FeatureStream(q), q)
    spare = 2*dim   # the entry for cameras without statistics
    assert sum(p.numel() for p in lite.collect_params()) - spare == counts[2]


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
        got = dart3_loss(distances(torch.tensor(z), torch.tensor(G), "squared" if squared else "euclidean"), tau, k)
        np.testing.assert_allclose(got, naive_loss(z, G, tau, k, squared), rtol=1e-9, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(-50, 50), st.sampled_from([.5, 100.]))
def test_the_loss_ignores_a_constant_in_the_distances_of_a_query(seed, shift, tau):
    delta = torch.tensor(np.random.default_rng(seed).uniform(0, 60, (4, 9)))
    moved = delta + torch.tensor([shift, 0., -shift, 2*shift])[:, None]
    torch.testing.assert_close(dart3_loss(moved, tau), dart3_loss(delta, tau), rtol=1e-9, atol=1e-9)


def test_cosine_distance():
    z, g = torch.randn(3, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    torch.testing.assert_close(distances(z, g, "cosine"),
                               1 - torch.nn.functional.cosine_similarity(z[:, None], g[None], dim=-1))


def test_loss_alone_learns_only_the_model_s_layers(scene, features):
    net, table, g = scene
    m = Dart3(lr=.1, camera=False, batch_size=5)
    q_hat, g_hat = adapt_images(m, net, table, g)
    assert sorted(m.state_dict()) == ["bn.bias", "bn.weight", "ln.bias", "ln.weight"]
    torch.testing.assert_close(g_hat.emb, unit_norm(g.emb))
    with pytest.raises(ValueError, match="nothing to learn"): adapt_embeddings(Dart3Lite(camera=False), *features())


def test_all_neighbours_give_the_sum_of_all_H():
    delta = torch.rand(3, 7, dtype=torch.float64)*9
    H = -(-delta/2.).log_softmax(1)
    for k in (7, 50): torch.testing.assert_close(dart3_loss(delta, 2., k), H.sum(1).mean())


def test_far_galleries_do_not_underflow():
    delta = torch.full((2, 5), 4000.) + torch.arange(5)
    assert torch.isfinite(dart3_loss(delta, .01)) and torch.exp(-delta/.01).sum() == 0


def test_the_gradient_is_finite_at_distance_zero():
    z = torch.ones(2, 3, requires_grad=True)
    dart3_loss(distances(z, torch.ones(4, 3)), 1.).backward()
    assert torch.isfinite(z.grad).all()


def scaled(pair, by): return [e.with_emb(by*e.emb) for e in pair]


@pytest.mark.parametrize("by", [2.**-20, 1024., 37.])
def test_rescaled_lite_does_not_know_the_size_of_the_features(by, features):
    pair, how = features(), dict(lr=.05, steps=3, batch_size=8)
    a, b = (adapt_embeddings(Dart3Lite(**how, rescale=True), *p) for p in (pair, scaled(pair, by)))
    for x, y in zip(a, b): torch.testing.assert_close(x.emb, y.emb)
    c, d = (adapt_embeddings(Dart3Lite(**how), *p) for p in (pair, scaled(pair, by)))   # as in the paper: it does
    assert not torch.allclose(c[0].emb, d[0].emb)
    assert not torch.allclose(a[0].emb, adapt_embeddings(CameraNorm(), *pair)[0].emb)


def test_rescaling_does_not_change_norm(features):
    pair = features()
    norm = adapt_embeddings(CameraNorm(), *pair)
    lite = Dart3Lite(rescale=True, steps=0)
    for a, b in zip(norm, adapt_embeddings(lite, *pair)): torch.testing.assert_close(a.emb, b.emb)
    for a, b in zip(norm, adapt_embeddings(CameraNorm(), *scaled(pair, 1024.))):
        torch.testing.assert_close(a.emb, b.emb)
    assert lite.divisor == pytest.approx(float(pair[1].emb.std(0, correction=0).mean())) and Dart3Lite().divisor == 1


def test_rescaled_dart3_works_on_images_and_grounding(scene):
    net, table, g = scene
    known = ImageStream(net, tiny_table(16, 3).where(cam=0))
    q_hat, _ = adapt_images(Dart3(steps=0, rescale=True), net, table, g)
    torch.testing.assert_close(q_hat.emb, adapt_images(CameraNorm(), net, table, g)[0].emb, atol=1e-4, rtol=1e-4)
    image = adapt_images(Dart3Lite(lr=.05, rescale=True, ground=known, n_ground=4), net, table, g)[0].emb
    cached = Dart3Lite(lr=.05, rescale=True, ground=FeatureStream(known.q), n_ground=4)
    torch.testing.assert_close(adapt_embeddings(cached, ImageStream(net, table).q, g)[0].emb, image, atol=1e-4,
                               rtol=1e-4)


def test_one_episodic_step_as_printed_equals_norm(features):
    q, g = features()
    norm = adapt_embeddings(CameraNorm(), q, g)
    same = adapt_embeddings(Dart3Lite(lr=.1, episodic=True, final_forward=False, batch_size=5), q, g)
    for a, b in zip(norm, same): assert torch.equal(a.emb, b.emb)
    other = adapt_embeddings(Dart3Lite(lr=.1, episodic=True, batch_size=5), q, g)
    assert not torch.equal(other[0].emb, norm[0].emb) and torch.equal(other[1].emb, norm[1].emb)


def test_episodic_batches_do_not_know_each_other(features):
    q, g = features()
    how = dict(lr=.1, steps=3, episodic=True, batch_size=8, stats_from="gallery")
    whole = adapt_embeddings(Dart3Lite(**how), q, g)[0].emb
    alone = adapt_embeddings(Dart3Lite(**how), q[8:16], g)[0].emb
    torch.testing.assert_close(whole[8:16], alone)
    carried = adapt_embeddings(Dart3Lite(**{**how, "episodic": False}), q, g)[0].emb
    assert torch.equal(carried[:8], adapt_embeddings(Dart3Lite(**{**how, "episodic": False}), q[:8], g)[0].emb)
    assert not torch.allclose(carried[8:16], alone)


def test_adaptation_lowers_its_loss(features):
    q, g = features(n=40)
    lite = Dart3Lite(lr=.02, tau=1., batch_size=40, stats_from="query", first=4)
    lite.configure(FeatureStream(q), g)
    lite.reset()
    losses = []
    for _ in range(20):
        losses.append(float(lite.loss(np.arange(40))[0].detach()))
        lite._one_batch(np.arange(40))
    assert losses[-1] < losses[0] - .05


def test_unknown_cameras_learn_apart():
    "With statistics of the gallery alone, each camera that it lacks gets an entry of its own, all starting the same"
    g = torch.Generator().manual_seed(0)
    q = Embeddings(torch.randn(12, 4, generator=g), np.arange(12), np.repeat([0, 7, 8], 4))
    gallery = Embeddings(torch.randn(20, 4, generator=g), np.arange(20), np.repeat([0, 1], 10))
    lite = Dart3Lite(stats_from="gallery", lr=.1, batch_size=4, steps=3)
    lite.configure(FeatureStream(q), gallery)
    norm = lite.norm
    assert norm.at.tolist() == [0]*4 + [2]*4 + [3]*4 and len(norm.M) == 4 and torch.equal(norm.M[2], norm.M[3])
    lite.run()
    assert not torch.equal(norm.M[2], norm.M[3])
    assert torch.equal(norm.M[1], norm.q_stats.mean[1])   # camera 1 has no query


def test_grounding_images_steer_but_are_not_returned(scene):
    net, table, g = scene
    known = ImageStream(net, tiny_table(16, 3).where(cam=0))
    with_, without = (adapt_images(Dart3(lr=.1, batch_size=5, **kw), net, table, g)[0].emb
                      for kw in (dict(ground=known, n_ground=4), {}))
    assert with_.shape == without.shape and not torch.allclose(with_, without)
    f = FeatureStream(known.q)
    assert adapt_embeddings(Dart3Lite(lr=.1, ground=f,
                                          n_ground=4), ImageStream(net, table).q, g)[0].emb.shape == with_.shape


@pytest.mark.parametrize("kind", [Dart3, Dart3Lite])
@pytest.mark.parametrize("episodic", [True, False])
def test_every_batch_draws_other_grounding_images_and_every_run_the_same(scene, kind, episodic):
    net, table, g = scene

    class Noted(kind):
        def ground_features(self, rows):
            drawn.append(tuple(sorted(rows.tolist())))
            return super().ground_features(rows)

    known, drawn = ImageStream(net, tiny_table(16, 3).where(cam=0)), []
    method = Noted(lr=.01, batch_size=4, episodic=episodic, final_forward=False, ground=known, n_ground=4)
    queries = ImageStream(net, table)
    with guarded(net):
        method.configure(queries, g)
        runs = [method.run()[0] for _ in range(2)]
    n = len(method.batches())
    assert len(drawn) == 2*n and n > 3 and drawn[:n] == drawn[n:] and torch.equal(*runs)
    assert len(set(drawn[:n])) > n//2
    again = Noted(lr=.01, batch_size=4, episodic=episodic, final_forward=False, ground=known, n_ground=4)
    drawn.clear()
    assert torch.equal(again.adapt(queries, g)[0], runs[0])


def test_state_can_be_read_and_is_reset(scene, features):
    q, g = features()
    lite = Dart3Lite(lr=.1, batch_size=8)
    lite.configure(FeatureStream(q), g)
    start = lite.state_dict()
    lite.run()
    assert not torch.equal(lite.state_dict()["M"], start["M"])
    lite.reset()
    assert all(torch.equal(v, start[k]) for k, v in lite.state_dict().items())


@pytest.mark.parametrize("kind", [Dart3, Dart3Lite])
def test_dart3_has_a_camera_norm_and_configures_once(scene, kind, monkeypatch):
    "One configure, one measurement, one reset and one copy of the features in an adaptation"
    net, table, g = scene
    calls = []
    def count(cls, name):
        real = getattr(cls, name)
        def counted(self, *a, **kw):
            calls.append(f"{cls.__name__}.{name}")
            return real(self, *a, **kw)
        monkeypatch.setattr(cls, name, counted)
    for cls, names in ((TTA, ["configure"]), (Gradient, ["configure", "reset"]),
                       (CameraNorm, ["configure", "measure", "reset"]), (ImageStream, ["raw_features"])):
        for name in names: count(cls, name)
    method = kind(lr=.1, batch_size=5)
    adapt_images(method, net, table, g)
    assert sorted(calls) == ["CameraNorm.measure", "CameraNorm.reset", "Gradient.configure", "Gradient.reset",
                             "ImageStream.raw_features", "TTA.configure"]
    assert not isinstance(method, CameraNorm) and type(method.norm) is CameraNorm
    assert list(method.external()) == ["M", "S"] and method.state_dict().keys() >= {"M", "S"}


def test_grounding_images_have_their_cameras(sided):
    model, table = sided
    ground = ImageStream(model, table.where(cam=[0, 2]))
    method = Dart3(ground=ground, n_ground=4, lr=0.)
    g = embed_images(model, table.where(cam=[0, 2]), encode="raw_features", quiet=True)
    adapt_images(method, model, table.where(cam=1), g)
    rows = np.array([1, 5])
    cam = torch.as_tensor(ground.cam[rows])
    with torch.no_grad(): want = model.raw_features(ground.pixels(rows), cam)
    assert torch.allclose(method.ground_features(rows), want, atol=1e-5)


@pytest.mark.parametrize("make,words", [
    (lambda q, g: Dart3(tau=0), "tau=0"),
    (lambda q, g: Dart3(k=0), "k=0"),
    (lambda q, g: Dart3(n_ground=4), "needs ground"),
    (lambda q, g: Dart3(batch_size=0), "batch_size=0"),
    (lambda q, g: Dart3Lite(ground=FeatureStream(q)), "other way round"),
    (lambda q, g: adapt_embeddings(Dart3Lite(ground=FeatureStream(g), n_ground=2, stats_from="query"),
                                   q.where(cam=int(q.cam[0])), g), "cameras without statistics"),
    (lambda q, g: Dart3Lite(norm_kinds=("bn",)), "norm_kinds.*use Dart3"),
    (lambda q, g: Dart3Lite(bn_mode="batch"), "bn_mode"),
    (lambda q, g: adapt_embeddings(Dart3Lite(tau=1e-310), q, g), "raise tau")])
def test_bad_input_of_dart3_says_what_to_do(make, words, features):
    with pytest.raises((ValueError, TypeError, FloatingPointError), match=words): make(*features())


def test_layers_and_batch_statistics_are_chosen(scene):
    net, table, g = scene
    learned = {}
    for kinds in (("ln",), ("bn",), ("bn", "ln")):
        method = Dart3(norm_kinds=kinds, batch_size=8)
        adapt_images(method, net, table, g)
        learned[kinds] = {name.partition(".")[0] for name in method.layers}
    assert learned == {kinds: set(kinds) for kinds in learned}
    running, batch = (adapt_images(Dart3(steps=0, bn_mode=mode), net, table, g)[0].emb for mode in ("eval", "batch"))
    assert not torch.allclose(running, batch, atol=1e-3)
