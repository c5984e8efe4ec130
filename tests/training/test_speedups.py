"Switches of cost: the same losses and gradients, and a model that is as it was afterwards"
import shutil

import pytest
import torch
from torch import nn

from reid_lab.models.zoo import create_model
from reid_lab.training.settings import plain_settings
from reid_lab.training.speedups import GradCache, blocks, chunked, tune, tuned


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin, self.act = nn.Linear(4, 4), nn.Tanh()
    def forward(self, x): return self.act(self.lin(x))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Block(), Block()])
    def image_features(self, x):
        for layer in self.layers: x = layer(x)
        return x


def gradients(model, x):
    model.zero_grad()
    model.image_features(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("switch", [dict(checkpointing=True), dict(channels_last=True)])
def test_gradients_are_those_without_a_switch(switch):
    model, x = Towers().train(), torch.randn(6, 4)
    plain, forwards = gradients(model, x), [b.__dict__.get("forward") for b in blocks(model).values()]
    with tuned(model, **switch): own = gradients(model, x)
    assert all(torch.allclose(a, b) for a, b in zip(plain, own))
    assert [b.__dict__.get("forward") for b in blocks(model).values()] == forwards


@pytest.mark.parametrize("size", [1, 4, 9])
def test_chunks_of_any_size(size):
    model, x = Towers().train(), torch.randn(6, 4)
    plain = gradients(model, x)
    with chunked(model, size): own = gradients(model, x)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, own)) and "image_features" not in vars(model)


def test_what_cannot_be_done():
    with pytest.raises(ValueError, match="at least 1 row"):
        with chunked(Towers(), 0): pass
    with pytest.raises(ValueError, match="no repeated blocks"): tune(nn.Linear(2, 2), checkpointing=True)


def test_a_strategy_inside_is_known_with_its_settings():
    class Own(GradCache):
        "A strategy with a factor"
        def __init__(self, factor):
            super().__init__(2)
            self.factor = factor
    assert plain_settings(s=GradCache(4, Own(.5)))["s.inner.factor"] == .5


@pytest.mark.whole
@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="torch.compile needs a C++ compiler")
def test_compiled_blocks_compute_the_same():
    "Features and gradients of an image tower, whose blocks are compiled for this processor"
    import torch._dynamo
    def features(compiled):
        torch.manual_seed(0)
        net = create_model("clip_tiny", vocab_size=40, size=(64, 32), width=32, layers=2, text_layers=1, dim=16)
        image = torch.rand(4, 3, 64, 32, generator=torch.Generator().manual_seed(1))
        with tuned(net.train(), compiled=compiled):
            found = net.encode_image(image)
            found.square().sum().backward()
        return found.detach(), [p.grad for p in net.parameters() if p.grad is not None]

    graphs = torch._dynamo.utils.counters["stats"]
    (a, grads_a), before = features(False), graphs["unique_graphs"]
    (b, grads_b), after = features(True), graphs["unique_graphs"]
    assert after > before, "nothing was compiled"
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    for x, y in zip(grads_a, grads_b, strict=True): torch.testing.assert_close(x, y, rtol=1e-3, atol=1e-4)
