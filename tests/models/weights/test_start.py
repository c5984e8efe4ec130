"""Where a model starts: nothing is fetched silently, and what is not used is reported."""
import pytest
import timm
import torch
from torch import nn

from reid_lab.models.weights.start import begin, load_network, published


def test_weights_are_never_fetched_silently(tmp_path):
    def never(): raise AssertionError("downloaded")
    for none in (None, False, "none"): assert begin(none, (), "", dict(imagenet=never)) is None
    with pytest.raises(FileNotFoundError, match="weights='no.pt' is not a file or folder; pass 'none', 'imagenet'"):
        begin("no.pt", (), "a net", dict(imagenet=never))
    with pytest.raises(ValueError, match="weights=True"): begin(True, (), "a net")
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="1 left over"):
        load_network(net, {**net.state_dict(), "other": torch.zeros(1)})


def test_a_failed_download_names_the_way_out(monkeypatch):
    def offline(*a, **kw): raise RuntimeError("no network")
    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(OSError, match="'resnet50.tv_in1k' could not be downloaded.*local file"):
        begin("imagenet", (), "a net", dict(imagenet=published("resnet50.tv_in1k")))


def test_what_is_not_used_is_reported_and_the_network_is_untouched_by_a_failure(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)).state_dict()
    with pytest.raises(ValueError, match="4 of 4 tensors match, 2 left over"): load_network(net, other)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    with pytest.warns(UserWarning, match="4 of 4 tensors loaded; prefix 'img.' removed; not used: text.w"):
        load_network(net, {**{f"img.{k}": v for k, v in before.items()}, "text.w": torch.ones(2)})
    with pytest.warns(UserWarning, match="not used: 2.weight, 2.bias"):
        assert load_network(net, other, least=.5).matched == 4
