"Switches of cost: the same losses and gradients, and a model that is as it was afterwards"
import pytest
import torch
from torch import nn

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
