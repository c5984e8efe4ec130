"""Towers and pooling: vectors, and weights that other programs wrapped."""
import warnings

import pytest
import torch

from reid_lab.models.backbones import PixelNorm, TokenPool, power_mean
from reid_lab.models.timm_towers import TimmTower


def t64(x): return torch.tensor(x, dtype=torch.float64)


def test_gem_vector(oracles):
    o = oracles["gem_pool"]
    tok = t64(o["inputs"]["map_2x2"]).view(1, 4, 1)
    assert power_mean(tok, o["inputs"]["p"], o["inputs"]["eps"]).item() == pytest.approx(o["expected"]["gem"], abs=1e-6)
    pool = TokenPool("gem").double()
    assert pool(tok).item() == pytest.approx(o["expected"]["gem"], abs=1e-6)
    assert power_mean(tok + 1, 1.).item() == pytest.approx(2.5)
    assert power_mean(tok, 200.).item() == pytest.approx(3, .01)
    pool(torch.zeros(1, 4, 1).double()).sum().backward()
    assert pool.p.grad.isfinite().all()


@pytest.mark.parametrize("wrap", [
    lambda s: s, lambda s: {"state_dict": s, "best": torch.tensor(.9)}, lambda s: {"epoch": 3, "model": s},
    lambda s: {f"module.{k}": v for k, v in s.items()}, lambda s: {"model": {"state_dict": s}},
    lambda s: {"state_dict": {f"module.base.{k}": v for k, v in s.items()}}])
def test_a_tower_loads_wrapped_weights_in_full(tmp_path, wrap):
    torch.manual_seed(0)
    source = TimmTower("resnet10t", (64, 32))
    state = {**source.net.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    torch.save(wrap(state), tmp_path/"w.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tower = TimmTower("resnet10t", (64, 32), weights=tmp_path/"w.pth")
    assert all(torch.equal(v, source.net.state_dict()[k]) for k, v in tower.net.state_dict().items())
    assert tower.loaded.matched == tower.loaded.total and len(tower.loaded.head) == 2 and not tower.loaded.unused


def test_pixels_take_the_statistics_of_another_set():
    "As the program of CAMeL does for MALS and for its targets; they travel with the weights"
    norm, img = PixelNorm(), torch.rand(2, 3, 4, 4)
    norm.set_stats(mean=(.4, .5, .6), std=(.1, .2, .3))
    want = (img - torch.tensor([.4, .5, .6])[:, None, None])/torch.tensor([.1, .2, .3])[:, None, None]
    assert torch.allclose(norm(img), want)
    other = PixelNorm()
    assert not torch.allclose(other(img), want)
    other.load_state_dict(norm.state_dict())
    assert torch.equal(other(img), norm(img))
