"""Where a model starts: nothing is fetched silently, and what is not used is reported."""
import pytest
import timm
import torch
from torch import nn

from reid_lab.models.weights.start import TrialPassed, begin, load_network, published, start_key
from reid_lab.models.zoo import check_weights, create_model


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


def test_a_state_dict_is_a_start_of_its_own():
    "The key tells values apart, and takes what constructors take"
    state = nn.Linear(2, 2).state_dict()
    other = {k: v + 1 for k, v in state.items()}
    assert start_key(state, "bot_tiny") == start_key({"model": state}, "bot_tiny") != start_key(other, "bot_tiny")
    assert start_key(begin(state, (), "a net"), "bot_tiny") == start_key(state, "bot_tiny")
    assert start_key({**state, "x": torch.ones(1)}, "bot_tiny")["start"]["state dict"][0] == 3


def test_weights_in_memory_are_checked_before_they_are_loaded():
    state = create_model("bot_tiny", n_ids=2, weights="none").state_dict()
    check_weights("bot_tiny", state)
    resnet = timm.create_model("resnet50", num_classes=0).state_dict()
    with pytest.raises(ValueError, match="^the weights holds a ResNet-50"): check_weights("transreid_b16", resnet)


@pytest.mark.parametrize("name", ["it's.pt", "'quoted'.pt", "plain.pt"])
def test_quotes_belong_to_messages_alone(tmp_path, name):
    net = nn.Linear(2, 2)
    torch.save(net.state_dict(), tmp_path/name)
    assert load_network(net, tmp_path/name).source == str(tmp_path/name)
    assert begin(tmp_path/name, (), "a net").name == repr(str(tmp_path/name))


def test_the_names_of_the_last_release():
    import reid_lab.models.weights.start as module
    with pytest.warns(DeprecationWarning, match="Accepted is called TrialPassed"): assert module.Accepted is TrialPassed
