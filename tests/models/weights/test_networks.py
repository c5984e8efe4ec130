"""Which network of a file is taken: a loss beside it hides nothing, and a prefix chooses among several."""
import argparse
import sys
import types
import warnings

import numpy as np
import pytest
import timm
import torch
from torch import nn

from reid_lab.core.weight_files import save_weights
from reid_lab.models.bot import bot_r50
from reid_lab.models.convert import convert_weights, inspect_weights, weights_text
from reid_lab.models.weights.formats import networks, open_weights, read_weights
from reid_lab.models.weights.start import load_network
from reid_lab.models.zoo import MODELS, NEEDS, check_weights, create_model

R50 = {k: v for k, v in timm.create_model("resnet50", num_classes=0).state_dict().items()}
NECK = {f"bottleneck.{k}": v + 1 for k, v in nn.BatchNorm1d(2048).state_dict().items()}
BOT = {f"base.{k}": v for k, v in R50.items()} | NECK | {"classifier.weight": torch.randn(4, 2048)}


def _saved(tmp_path, state, name="w.ckpt"):
    torch.save(state, tmp_path/name)
    return tmp_path/name


def _loaded(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bot_r50(n_ids=4, size=(64, 32), weights=path)


@pytest.mark.parametrize("before", ["model.", "module.model.", "net."])
@pytest.mark.parametrize("loss", ["criterion.weight", "loss.centers", "metric.proj"])
def test_a_loss_beside_a_model_hides_nothing(tmp_path, before, loss):
    path = _saved(tmp_path, {"state_dict": {before + k: v for k, v in BOT.items()} | {loss: torch.zeros(4, 9)}})
    model = _loaded(path)
    assert torch.equal(model.neck.weight, NECK["bottleneck.weight"]) and model.loaded.unused == (loss,)
    assert inspect_weights(path)["beside"] == [loss] and "bot_r50" in inspect_weights(path)["fits"]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("names", [("student", "teacher"), ("encoder_q", "encoder_k"), ("model", "model_ema2")])
def test_a_prefix_chooses(tmp_path, names, nested):
    both = {n: {k: v + i if v.is_floating_point() else v for k, v in BOT.items()} for i, n in enumerate(names)}
    flat = {f"{n}.{k}": v for n, s in both.items() for k, v in s.items()}
    if nested and "model" in names: pytest.skip("`model` is a wrapper")
    path = _saved(tmp_path, both if nested else flat)
    for i, n in enumerate(names):
        assert torch.equal(_loaded(f"{path}#{n}.").neck.weight, NECK["bottleneck.weight"] + i)
        assert torch.equal(read_weights(path, n)["bottleneck.weight"], NECK["bottleneck.weight"] + i)
    convert_weights(path, tmp_path/"c.safetensors", "bot_r50", prefix=f"{names[1]}.", size=(64, 32))
    assert torch.equal(_loaded(tmp_path/"c.safetensors").neck.weight, NECK["bottleneck.weight"] + 1)
    if not nested: assert [x.prefix for x in networks(flat)] == [f"{n}." for n in names]


def test_numbers_and_options_of_trainings_are_admitted(tmp_path, monkeypatch):
    module = types.ModuleType("lightning.fabric.utilities.data")
    class AttributeDict(dict): "As Lightning's"
    AttributeDict.__module__, AttributeDict.__qualname__ = module.__name__, "AttributeDict"
    module.AttributeDict = AttributeDict
    for name in ("lightning", "lightning.fabric", "lightning.fabric.utilities"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    rest = dict(best=np.float64(.5), epoch=np.int64(3), flag=np.bool_(True), hyper=AttributeDict(lr=np.float32(.1)),
                args=argparse.Namespace(a=1))
    path = _saved(tmp_path, dict(state_dict={"a.w": torch.ones(2)}, **rest))
    for name in (module.__name__, "lightning"): monkeypatch.delitem(sys.modules, name)
    assert [*open_weights(path).state] == ["a.w"]


def test_a_model_of_this_library_is_no_tower(tmp_path):
    save_weights(bot_r50(n_ids=4, size=(64, 32)), tmp_path/"old.safetensors")
    with pytest.raises(ValueError, match="a whole BoT of this library.*prefix='image.net.'"):
        _loaded(tmp_path/"old.safetensors")


def test_a_prefix_takes_a_tower_without_its_neck(tmp_path):
    path = _saved(tmp_path, {f"backbone.{k}": v for k, v in R50.items()} | {"neck.weight": torch.ones(2)})
    assert torch.equal(_loaded(f"{path}#backbone.").image.net.conv1.weight, R50["conv1.weight"])
    net = nn.Linear(2, 2)
    state = {f"a.{k}": v for k, v in net.state_dict().items()} | {"neck.weight": torch.ones(2)}
    with pytest.warns(UserWarning, match="not used: neck.weight"): assert load_network(net, state, prefix="a.").matched


def test_names_do_not_command_a_terminal(tmp_path):
    path = _saved(tmp_path, {"a\x1b[2J\n.w": torch.ones(2)}, "w\x1b[31m.pth")
    said = weights_text(inspect_weights(path))
    assert "\x1b" not in said and "\\x1b[2J\\n.w" in said


@pytest.mark.parametrize("name", [n for n, m in MODELS.items() if n not in ("frozen_pair",)])
def test_every_model_can_be_asked_about_weights(tmp_path, name):
    more = dict(tower="resnet10t") if name in ("camel_base", "frozen") else {}
    path = _saved(tmp_path, {"base_model.visual.class_embedding": torch.ones(2), "visul_emb_layer.w": torch.ones(2)})
    needs = {k: NEEDS[k] for k in MODELS[name].needs if k != "weights"}
    given = {**needs, **more, "weights": str(path)}
    with pytest.raises(ValueError) as later: create_model(name, size=(64, 32), **given)
    with pytest.raises(ValueError) as first: check_weights(name, str(path), size=(64, 32), **more)
    assert str(first.value) == str(later.value)
