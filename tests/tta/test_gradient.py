"""TENT and TEMP: vectors, batches, and layers that training kept fixed."""
import numpy as np
import pytest
import torch

from reid_lab.core.basics import unit_norm
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.tta.base import TTA, FeatureStream, ImageStream, adapt_images, guarded
from reid_lab.tta.dart3 import Dart3
from reid_lab.tta.gradient import Gradient, Temp, Tent, entropy, temp_loss


def test_tent_and_temp_vectors(oracles):
    f64 = lambda x: torch.tensor(x, dtype=torch.float64)
    tent = oracles["tent_entropy"]
    np.testing.assert_allclose(entropy(f64(tent["inputs"]["logits"])), tent["expected"]["entropy"], atol=1e-6)
    i, want = (oracles["temp_reid_entropy"][k] for k in ("inputs", "expected"))
    zq, zg = f64(i["zq"]), f64(i["zg"])
    np.testing.assert_allclose(temp_loss(zq, zg, i["k"]), want["loss"], atol=1e-6)
    per_query = [float(temp_loss(z[None], zg, i["k"])) for z in zq]
    np.testing.assert_allclose(per_query, want["entropy"], atol=1e-6)


def test_batch_statistics_change_the_result_and_need_two_images(scene, net_class):
    net, table, g = scene
    a, b = (adapt_images(Tent(steps=0, bn_mode=m), net, table, g)[0].emb for m in ("eval", "batch"))
    assert not torch.allclose(a, b)
    net.train()
    expected = unit_norm(net.raw_features(ImageStream(net, table).pixels(range(16)))).detach()
    net.eval()
    net.load_state_dict(net_class().state_dict() | {k: v for k, v in net.state_dict().items() if "running" not in k})
    torch.testing.assert_close(b, expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="at least two images"):
        adapt_images(Tent(bn_mode="batch", batch_size=1), net, table, g)


def test_a_single_leftover_joins_the_batch_before():
    m = Tent(batch_size=5, bn_mode="batch")
    m.stream = range(11)
    assert [len(b) for b in m.batches()] == [5, 6]
    m.bn_mode = "eval"
    assert [len(b) for b in m.batches()] == [5, 5, 1]


def test_gradient_methods_define_a_loss(features):
    "What a subclass must bring is declared on the base class, and the error names it"
    with pytest.raises(NotImplementedError, match=r"Gradient defines no loss\(rows\)"): Gradient().loss([0])
    with pytest.raises(NotImplementedError): TTA().run()
    q, g = features()
    class Still(Gradient):
        "Learns nothing"
        def loss(self, rows):
            x = self.features(rows)
            return x.sum(), x
    still = Still()
    still.configure(FeatureStream(q), g)
    torch.testing.assert_close(still.gallery_out(), unit_norm(g.emb))


def test_what_each_setting_of_the_loops_does(scene):
    "Rate, layers, predicted values, neighbours, batches and the penalty of staying near the source"
    net, table, g = scene
    stream = ImageStream(net, table)
    with guarded(net):
        tent = Tent(prediction="feature", lr=1e-3, norm_kinds=("ln",))
        tent.configure(stream, g)
        tent.reset()
        assert {p["lr"] for p in tent.opt.param_groups} == {1e-3} and set(tent.layers) == {"ln.weight", "ln.bias"}
        rows = np.arange(4)
        loss, _ = tent.loss(rows)
        torch.testing.assert_close(loss, entropy(stream.features(rows)).mean())
    with guarded(net):
        temp = Temp(k=3, lr=2e-3, batch_size=5, forget=.5, norm_kinds=("bn",))
        temp.configure(stream, g)
        temp.reset()
        assert set(temp.layers) == {"bn.weight", "bn.bias"} and {p["lr"] for p in temp.opt.param_groups} == {2e-3}
        assert [len(b) for b in temp.batches()] == [5, 5, 5, 1]
        loss, _ = temp.loss(rows)
        torch.testing.assert_close(loss, temp_loss(stream.features(rows), g.emb, 3))      # at the start: no penalty
        with torch.no_grad(): net.bn.weight += .1
        loss, _ = temp.loss(rows)
        far = .5*6*.1**2
        torch.testing.assert_close(loss, temp_loss(stream.features(rows), g.emb, 3) + far)


@pytest.fixture
def after_neck(net_class):
    "A network with the feature after its neck, whose shift training kept at 0"
    class After(net_class):
        def __init__(self):
            super().__init__()
            self.neck.bias.requires_grad_(False)

        def raw_features(self, img): return self.neck(super().raw_features(img))
    return After


@pytest.mark.parametrize("make,shift", [(lambda **kw: Temp(k=4, **kw), False),
                                        (lambda **kw: Tent("feature", **kw), False), (Dart3, True)],
                         ids=["TEMP", "TENT", "DART3"])
def test_a_frozen_shift_learns_only_when_asked(scene, make, shift, after_neck):
    _, queries, _ = scene
    net = after_neck().eval()
    g = embed_images(net, tiny_table(16, 3).where(cam=[0, 1]), encode="raw_features", quiet=True)
    for kw, wanted in ((dict(), shift), (dict(frozen=True), True), (dict(frozen=False), False)):
        method = make(lr=1e-2, batch_size=8, **kw)
        adapt_images(method, net, queries, g, keep=True)
        assert {"neck.weight", "bn.bias", "ln.weight"} <= set(method.layers)
        assert ("neck.bias" in method.layers) == wanted
        assert bool(net.neck.bias.any()) == wanted and not net.neck.bias.requires_grad
        net = after_neck().eval()


def test_tents_official_layers(scene, after_neck):
    _, queries, _ = scene
    net = after_neck().eval()
    g = embed_images(net, queries, encode="raw_features", quiet=True)
    method = Tent("feature", norm_kinds=("bn2d",), bn_mode="batch", batch_size=8)
    adapt_images(method, net, queries, g)
    assert set(method.layers) == {"bn.weight", "bn.bias"}


def test_a_model_frozen_as_a_whole_is_no_silent_start(scene, after_neck):
    _, queries, _ = scene
    net = after_neck().eval().requires_grad_(False)
    g = embed_images(net, queries, encode="raw_features", quiet=True)
    with pytest.raises(ValueError, match="requires_grad is False for all 6 parameters.*frozen=True"):
        adapt_images(Temp(k=4), net, queries, g)
    assert not any(p.requires_grad for p in net.parameters())
    method = Temp(k=4, frozen=True)
    adapt_images(method, net, queries, g)
    assert len(method.layers) == 6 and not any(p.requires_grad for p in net.parameters())
