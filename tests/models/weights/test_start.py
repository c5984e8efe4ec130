"""Where a model starts: nothing is fetched silently, and what is not used is reported."""
import pytest
import timm
import torch
from torch import nn

from reid_lab.models.bot import bot_tiny
from reid_lab.models.weights.shipped import card_for, check_worlds, world_names
from reid_lab.models.weights.start import TrialPassed, begin, load_network, published, start_key, start_own
from reid_lab.models.zoo import MODELS, ModelInfo, check_weights, create_model
from reid_lab.training.folder import Trained, start_of


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


class WithHead(nn.Module):
    "A network of a user's own on the tower of bot_tiny"
    def __init__(self, n_ids, tower=True, wide=False, neck=False):
        super().__init__()
        bot = bot_tiny(n_ids, size=(32, 16))
        if tower: self.image = bot.image
        if neck: self.neck = bot.neck
        if wide: self.image.stem[0] = nn.Conv2d(3, 7, 3)
        self.own_head = nn.Linear(5, n_ids)


@pytest.fixture
def register(monkeypatch):
    "Put a model of a user's own into the zoo -> its key"
    def put(starts_like="", **how):
        def make(n_ids, weights=None): return start_own(WithHead(n_ids, **how), "mine_tiny", weights)
        record = ModelInfo(make, "images", "tiny", "mine", "mine", ("n_ids",), starts_like=starts_like)
        monkeypatch.setitem(MODELS, "mine_tiny", record)
        return "mine_tiny"
    return put


@pytest.mark.parametrize("starts_like", ["bot_tiny", "agw_tiny"])
def test_a_model_of_ones_own_starts_with_the_shipped_tensors_that_fit(register, starts_like):
    name = register(starts_like)
    with pytest.warns(UserWarning, match="not used: .*neck.*not found: own_head.weight, own_head.bias"):
        net = create_model(name, n_ids=3, weights="world")
    theirs = create_model("bot_tiny", n_ids=3, weights="world").state_dict()
    same = [torch.equal(x, theirs[key]) for key, x in net.state_dict().items() if key.startswith("image.")]
    assert len(same) == net.loaded.matched == net.loaded.total - 2 and all(same)
    assert net.loaded.worlds == tuple(card_for("bot_tiny").worlds)
    check_weights(name, "world")
    done = Trained(net, [], 0, 0, 0., dict(weights="world"))
    # the neck of bot_tiny stayed unused
    assert done.cost["start"] == f"world ({len(same)} of {len(same) + 2} tensors)"
    assert done.cost["start"] != Trained(create_model("bot_tiny", n_ids=3, weights="world"), [], 0, 0, 0.).cost["start"]


def test_without_a_statement_the_file_that_fits_best_is_taken(register):
    with pytest.warns(UserWarning, match="tensors loaded.*not found: own_head.weight"):
        net = create_model(register(neck=True), n_ids=3, weights="world")
    assert net.loaded.source.endswith("bot_tiny.safetensors") and net.loaded.matched == net.loaded.total - 2
    with pytest.raises(ValueError, match="of 'mine_tiny' fits 'bot_tiny' as 'camel_tiny'.*starts_like='bot_tiny'"):
        create_model(register(), n_ids=3, weights="world")      # both were trained with this tower


def test_what_does_not_fit_is_counted_and_nothing_at_all_is_refused(register):
    name = register("bot_tiny", wide=True)
    with pytest.warns(UserWarning, match=r"of another shape.*: image.stem.0.weight .* instead of \(7, 3, 3, 3\)"):
        assert len(create_model(name, n_ids=3, weights="world").loaded.misfit) == 1
    for make in (create_model, check_weights):
        with pytest.raises(ValueError, match="no parameter of 'mine_tiny' .*looked at: .*bot_tiny.*pass 'none'"):
            make(register(tower=False), **dict(n_ids=3) if make is create_model else {}, weights="world")
    with pytest.raises(ValueError, match="looked at: clip_tiny"):
        create_model(register("clip_tiny"), n_ids=3, weights="world")


def test_a_start_that_is_stated_is_that_of_the_baseline_everywhere(register):
    name = register("bot_tiny")
    assert start_of(name) == start_of("bot_tiny") == "world"
    assert world_names(name) == world_names("bot_tiny") and start_key("world", name) == start_key("world", "bot_tiny")
    for seen_by in (name, register()):      # without a statement every file may be the one
        with pytest.raises(ValueError, match="world_seed=500 was trained on"): check_worlds("world", seen_by, 500)
    with pytest.raises(ValueError, match="Did you mean 'bot_tiny'"): start_of(register("bot_tny"))
    with pytest.raises(ValueError, match="starts='none' and starts_like='bot_tiny' are two starts; give one"):
        ModelInfo(WithHead, "images", "tiny", "mine", "mine", (), starts="none", starts_like="bot_tiny")
