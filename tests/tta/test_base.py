"""The contract of all methods of test-time adaptation, and a source model that is never changed."""
import numpy as np
import pytest
import torch
from helpers.protocols import features as table_features, naive_draws, some_table, table_for
from torch import nn

from reid_lab.core.basics import unit_norm
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.models.backbones import norm_layers
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS, Draw, Protocol, Rows
from reid_lab.tta.base import (
    ImageStream,
    NoAdapt,
    Reading,
    adapt_embeddings,
    adapt_images,
    adapted_scores,
    guarded,
    influential,
)
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3, Dart3Lite
from reid_lab.tta.gradient import Temp, Tent

ALL = dict(tent=Tent(lr=.1, batch_size=5), tent_feature=Tent(prediction="feature", lr=.1, batch_size=5),
           tent_batch=Tent(lr=.1, bn_mode="batch", batch_size=5),
           bn_only=Tent(steps=0, bn_mode="batch", batch_size=5),
           temp=Temp(k=5, lr=.1, batch_size=5), dart3=Dart3(lr=.1, batch_size=5), norm=CameraNorm(),
           none=NoAdapt(),
           dart3_episodic=Dart3(lr=.1, steps=3, episodic=True, batch_size=5), lite=Dart3Lite(lr=.1, batch_size=5),
           dart3_cosine=Dart3(lr=.1, distance="cosine", batch_size=5),
           dart3_loss_only=Dart3(lr=.1, camera=False, batch_size=5),
           dart3_sgd=Dart3(lr=.1, optimiser="sgd", bn_mode="batch", batch_size=5))


def photograph(net):
    "Everything a user could miss: weights, buffers, switches, modes"
    return ({k: v.clone() for k, v in net.state_dict().items()}, [p.requires_grad for p in net.parameters()],
            [m.training for m in net.modules()],
            [(m.running_mean is None, m.track_running_stats) for m in (net.bn, net.neck)],
            [p.grad is None for p in net.parameters()])


def same(a, b):
    return all(torch.equal(a[0][k], b[0][k]) for k in a[0]) and a[1:] == b[1:] and a[0].keys() == b[0].keys()


def test_what_is_no_embeddings_is_named(features):
    q, g = features()
    for bad, name in (((q.emb, g), "q is Tensor"), ((q, None), "g is NoneType")):
        with pytest.raises(TypeError, match=f"{name}; wrap features"): adapt_embeddings(CameraNorm(), *bad)


@pytest.mark.parametrize("name", ALL)
def test_the_source_model_stays_as_it_was(scene, name):
    net, table, g = scene
    net.neck.train()
    before = photograph(net)
    q_hat, g_hat = adapt_images(ALL[name], net, table, g)
    assert same(before, photograph(net)) and q_hat.emb.shape == (16, 8) and g_hat.emb.shape == g.emb.shape
    assert torch.isfinite(q_hat.emb).all() and np.isfinite(retrieval_metrics(q_hat, g_hat, distance="euclidean")["mAP"])
    again = adapt_images(ALL[name], net, table, g)
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
    with pytest.raises(RuntimeError, match="unplugged"): adapt_images(method, net, table, g)
    assert same(before, photograph(net)) and len(calls) == 2


def test_keep_leaves_the_adapted_layers_and_nothing_else(net_class):
    net, table = net_class().eval(), tiny_table(12, 3)
    g, before = embed_images(net, table.where(cam=[0, 1]), encode="raw_features", quiet=True), photograph(net)
    method = Dart3(lr=.1, batch_size=6)
    adapt_images(method, net, table.where(cam=2), g, keep=True)
    after = photograph(net)
    assert {k for k in before[0] if not torch.equal(before[0][k], after[0][k])} == set(method.layers)
    assert before[1:] == after[1:]
    saved = method.state_dict()
    for k, p in net.named_parameters():
        if k in saved: assert torch.equal(saved[k], p)


def test_only_layers_that_matter_learn(scene):
    net, table, g = scene
    img = torch.rand(3, 3, 16, 8)
    assert sorted(influential(net, img)) == ["bn.bias", "bn.weight", "ln.bias", "ln.weight"]
    assert sorted(influential(net, img, ("bn",))) == ["bn.bias", "bn.weight"]
    bare = nn.Module()
    bare.fc, bare.neck = nn.Linear(2, 2), nn.BatchNorm1d(2)
    bare.raw_features = lambda x: bare.fc(x)
    with pytest.raises(ValueError, match="reaches the test feature.*Dart3Lite"): influential(bare, torch.rand(2, 2))


def test_the_features_given_are_not_changed(features):
    q, g = features()
    keep = q.emb.clone(), g.emb.clone()
    for m in (CameraNorm(), Dart3Lite(lr=.5, steps=5), NoAdapt()): adapt_embeddings(m, q, g)
    assert torch.equal(q.emb, keep[0]) and torch.equal(g.emb, keep[1])


@pytest.mark.parametrize("make,words", [
    (lambda q, g, net: adapt_embeddings(Tent(), q, g), "Dart3Lite"),
    (lambda q, g, net: adapt_embeddings(Dart3(), q, g), "cannot work on features alone"),
    (lambda q, g, net: adapt_embeddings(CameraNorm(), Embeddings(q.emb, q.pid), g), "q has no camera numbers"),
    (lambda q, g, net: adapt_embeddings(CameraNorm(), q, Embeddings(g.emb, g.pid)), "g has no camera numbers"),
    (lambda q, g, net: adapt_embeddings(CameraNorm(), Embeddings(q.emb[:, :2], q.pid, q.cam), g), "2 dimensions"),
    (lambda q, g, net: norm_layers(net, ("xn",)), "norm_kinds='xn'"),
    (lambda q, g, net: ImageStream(nn.Linear(2, 2), None), "raw_features"),
    (lambda q, g, net: ImageStream(net, range(3), q), "raw has .* features and table 3 rows")])
def test_bad_input_says_what_to_do(make, words, features, net_class):
    with pytest.raises((ValueError, TypeError, FloatingPointError), match=words): make(*features(), net_class())


METHODS = dict(none=NoAdapt, norm=CameraNorm, tent=Tent, temp=Temp, dart3=Dart3, lite=Dart3Lite)


LAYERS = {"bn.weight", "bn.bias", "ln.weight", "ln.bias"}


LEARNED = dict(none=set(), norm=set(), tent=LAYERS, temp=LAYERS, dart3=LAYERS | {"M", "S"}, lite={"M", "S"})


@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_the_contract(scene, name, features):
    "Default arguments work; what learns has a state that moves and is reset; what needs a model says so"
    net, table, g = scene
    method = METHODS[name]()
    q_hat, g_hat = adapt_images(method, net, table, g)
    assert len(q_hat) == len(table) and len(g_hat) == len(g) and q_hat.pid.tolist() == table.frame.pid.tolist()
    with guarded(net):
        method.configure(ImageStream(net, table), g)
        method.check()
        start = method.state_dict()
        assert set(start) == LEARNED[name] and len(method.collect_params()) == len(start)
        torch.testing.assert_close(method.run()[0].detach(), q_hat.emb)
        learned = method.state_dict()
        assert {k for k in start if not torch.equal(start[k], learned[k])} == LEARNED[name]
        method.reset()
        assert all(torch.equal(start[k], v) for k, v in method.state_dict().items())
    if method.needs_model:
        with pytest.raises(ValueError, match="cannot work on features alone"): adapt_embeddings(method, *features())
    else: assert [len(e) for e in adapt_embeddings(method, *features())] == [24, 48]
    assert method.needs_model == (name in ("tent", "temp", "dart3")) and type(method).__doc__


@pytest.mark.parametrize("method", [Tent(), Temp(k=4), Dart3(), Dart3(camera=False)],
                         ids=lambda m: type(m).__name__)
def test_adaptation_sees_each_query_with_its_own_camera(sided, method):
    model, table = sided
    g = embed_images(model, table.where(cam=0), encode="raw_features", quiet=True)
    queries = table.where(cam=[1, 2])
    with torch.no_grad():
        stream = ImageStream(model, queries)
        cam = torch.tensor([c if c != 1 else -5 for c in queries.frame.cam])   # camera 1 is unknown: the mean
        own = model.raw_features(stream.pixels(range(len(queries))), cam)
        rows = np.array([3, 9, 0])
        for x in (stream.features(rows), stream.raw_features()[rows], stream.scored(rows)[0]):
            assert torch.allclose(x, own[rows], atol=1e-5)
        assert torch.allclose(stream.scored(rows)[1], model.logits(stream.pixels(rows), cam[rows]), atol=1e-5)
        blind = ImageStream(model, queries, cameras=False)
        assert (blind.raw_features() - own).norm(dim=1)[(cam == 2).numpy()].min() > 1e-2
    method.lr = 0.
    got, _ = adapt_images(method, model, queries, g)
    bare, _ = adapt_images(method, model, queries, g, reading=Reading(cameras=False))
    want = method.normalise(own, method.norm.at) if isinstance(method, Dart3) and method.camera else unit_norm(own)
    if not (isinstance(method, Dart3) and method.camera): assert torch.allclose(got.emb, want.detach(), atol=1e-4)
    assert not torch.allclose(got.emb, bare.emb, atol=1e-3)


def test_images_are_read_as_in_the_last_release(scene):
    net, table, g = scene
    with pytest.warns(DeprecationWarning, match=r"reading=Reading\(cameras=..., resample") as caught:
        old = adapt_images(NoAdapt(), net, table, g, cameras=False, resample="bilinear")
    new = adapt_images(NoAdapt(), net, table, g, reading=Reading(False, "bilinear"))
    assert caught[0].filename == __file__ and torch.equal(old[0].emb, new[0].emb)
    assert not torch.equal(new[0].emb, adapt_images(NoAdapt(), net, table, g)[0].emb)
    with pytest.raises(ValueError, match="resample='nearest'"): Reading(resample="nearest")


ORDER = Scoring(ties="order")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["market", "ltcc.cc", "sysu.all", "prcc.single-changed", "vehicleid.small",
                                  "llcm.v2i-released", "mars.official"])
@pytest.mark.parametrize("method", [NoAdapt(), CameraNorm(), Dart3Lite(lr=.1, batch_size=16)],
                         ids=["none", "norm", "lite"])
def test_each_draw_of_a_protocol_is_adapted_anew(name, method):
    f = table_for(name, 5, 110)
    e, protocol, found = table_features(f, roles=True), PROTOCOLS[name], []
    for draw, (asks, searched) in enumerate(naive_draws(protocol, f, f)):
        hat = adapt_embeddings(method, e[sorted(asks)], e[sorted(searched)])
        one = retrieval_metrics(*hat, distance="euclidean", protocol=protocol.of_chosen_rows(), scoring=ORDER)
        found.append([one["R1"], one["mAP"]])
        if draw in (0, 7):
            for a, b in zip(hat, adapt_embeddings(method, e, e, protocol=name, draw=draw)):
                assert torch.equal(a.emb, b.emb) and a.path == b.path
    got = retrieval_metrics(e, e, scores=adapted_scores(method, e, e, name), scoring=ORDER)
    assert [got["R1"], got["mAP"]] == pytest.approx(np.mean(found, axis=0))


@pytest.mark.filterwarnings("ignore")
def test_the_plain_rule_is_plain_adaptation():
    e, method = table_features(some_table(5, 110)[0]), CameraNorm()      # without roles every row takes part
    got = retrieval_metrics(e, e, scores=adapted_scores(method, e, e, "market"), scoring=ORDER)
    plain = retrieval_metrics(*adapt_embeddings(method, e, e), distance="euclidean", scoring=ORDER)
    for k in ("R1", "R10", "mAP", "mINP", "n_query"): assert plain[k] == got[k]


def test_draws_without_a_protocol_are_refused():
    e = table_features(some_table(1, 40)[0])
    with pytest.raises(ValueError, match="draw=2 is of a protocol"): adapt_embeddings(NoAdapt(), e, e, draw=2)
    with pytest.raises(ValueError, match="draw=10"): adapt_embeddings(NoAdapt(), e, e, protocol="sysu.all", draw=10)
    with pytest.raises(TypeError, match="class NoAdapt"): adapted_scores(NoAdapt, e, e, "market")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["none", "norm", "lite", "temp", "tent_feature", "dart3"])
def test_a_model_is_adapted_to_the_rows_of_a_draw(scene, name):
    net, _, _ = scene
    table, method = tiny_table(16, 3), ALL[name]
    table = table.assign(cam_name=np.array(["a", "b", "c"])[table.frame.cam], asks=np.arange(len(table)) % 3 > 0,
                         split="test")
    raw = embed_images(net, table, encode="raw_features", quiet=True)
    own = Protocol("own", "Some images of c ask for one image of each person by a and b.", Rows(cam="c", asks=True),
                   Rows(cam=("a", "b")), draw=Draw(("pid",), times=3), by_role=())
    seen = [adapt_images(method, net, table, raw, protocol=own, draw=draw) for draw in range(3)]
    for (q, g), (asks, searched) in zip(seen, own_draws(own, raw)):
        want = adapt_images(method, net, table.take(asks), raw[searched], raw[asks])
        for got, of_rows in zip((q, g), want): assert torch.equal(got.emb, of_rows.emb) and got.path == of_rows.path
    assert len({tuple(g.path) for _, g in seen}) > 1
    with pytest.raises(ValueError, match="pools the images of a track"):
        adapt_images(method, net, table, raw, protocol="mars.torchreid")
    with pytest.raises(ValueError, match="draw=1 is of a protocol"): adapt_images(method, net, table, raw, draw=1)


def own_draws(protocol, e):
    "Rows of each draw, from its text"
    import random
    name, asks = e.columns["cam_name"], np.asarray(e.columns["asks"])
    for trial in range(protocol.draw.times):
        rng, rows = random.Random(trial), []
        for pid in sorted(set(e.pid.tolist()), key=int):
            group = sorted((i for i in range(len(e)) if e.pid[i] == pid and name[i] in "ab"), key=lambda i: e.path[i])
            if group: rows.append(rng.choice(group))
        yield np.flatnonzero((name == "c") & asks.astype(bool)), np.sort(rows)
