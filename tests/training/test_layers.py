"Layers of models and rates by layer: earlier trainings stay, recipes take the factor, wrong values are refused"
import pytest
import torch
from torch import nn

from reid_lab.models.zoo import create_model
from reid_lab.recipes import finetune as ft
from reid_lab.recipes.reid import reid_key, reid_optimiser, reid_settings
from reid_lab.recipes.text import text_optimiser, text_settings
from reid_lab.training.layers import HEAD, Layer, parameter_layers, rate_factors
from reid_lab.training.learner import param_groups
from reid_lab.world.world import World


class Serial(nn.Module):
    "Two stages of one tower behind a stem, as a ResNet has them, and a head"
    def __init__(self):
        super().__init__()
        self.net = nn.Module()
        self.net.first = nn.Linear(2, 2)
        self.net.a = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(2)])
        self.net.b = nn.Sequential(*[nn.Sequential(nn.Linear(2, 2), nn.Tanh()) for _ in range(3)])
        self.net.last = nn.Linear(2, 2)
        self.before_the_tower = nn.Linear(2, 2)     # not in the tower: only its name could make it a stem


def test_stages_follow_one_another():
    layers = parameter_layers(Serial())
    above = dict(first=6, **{"a.0.0": 5, "a.1.0": 4, "b.0.0": 3, "b.1.0": 2, "b.2.0": 1}, last=0)
    assert {name: layers[f"net.{name}.weight"].above for name in above} == above
    assert layers["net.first.bias"] == Layer(6, True) and layers["before_the_tower.weight"] == HEAD


@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd"])
def test_rates_of_image_models(optimiser):
    "Without the factor the groups are those of before; with it every rate is that of the layer"
    model = create_model("transreid_tiny", n_ids=4, size=(64, 32))
    s = reid_settings("smoke", optimiser=optimiser, bias_mult=2., lr=1.)
    plain = reid_optimiser(model, s)
    assert [g["lr"] for g in plain.param_groups] == ([1., 1.] if optimiser == "adamw" else [1., 2.])
    by_layer = reid_optimiser(model, reid_settings(s, layer_decay=.5))
    factors, names = rate_factors(model, .5), {id(p): n for n, p in model.named_parameters()}
    found = {names[id(p)]: g["lr"] for g in by_layer.param_groups for p in g["params"]}
    assert {*found} == {n for n, p in model.named_parameters() if p.requires_grad}
    for n, rate in found.items():
        assert rate == factors[n]*(2. if optimiser != "adamw" and n.endswith("bias") else 1.)
    assert by_layer.param_groups[0]["lr"] == 1.     # the one that the log shows


@pytest.mark.parametrize("optimiser", ["adamw", "adam"])
def test_rates_of_text_models(optimiser):
    "New parts keep their multiple in every layer"
    model = create_model("irra_tiny", n_ids=4, vocab_size=60, tokenizer=None, size=(64, 32))
    opt = text_optimiser(model, text_settings("smoke", optimiser=optimiser, layer_decay=.5, new_mult=5., lr=1.))
    names, factors = {id(p): n for n, p in model.named_parameters()}, rate_factors(model, .5)
    found = {names[id(p)]: g["lr"] for g in opt.param_groups for p in g["params"]}
    for n, rate in found.items(): assert rate == (5. if n.startswith(tuple(model.new_parts)) else factors[n])
    assert min(found.values()) < .2


def test_keys_of_earlier_trainings_stay(private_cache):
    table = World("smoke", task="reid").table()
    key = reid_key(table, reid_settings("smoke"))
    assert not {"layer_decay", "lora"} & {*key}
    assert reid_key(table, reid_settings("smoke", layer_decay=.75)) == {**key, "layer_decay": .75}


def test_wrong_factors_are_refused():
    for value in (0, 1.5, -1, ".75"):
        with pytest.raises(ValueError, match="layer_decay="): reid_settings("smoke", layer_decay=value)
    with pytest.raises(ValueError, match="such as layer_decay=.75"): ft.finetune_settings("smoke", layer_decay=2.)
    with pytest.raises(ValueError, match="no layers are known of Linear"): param_groups(nn.Linear(2, 2), layer_decay=.5)
    groups = param_groups(nn.Linear(2, 2), 1e-3)
    assert [(len(g["params"]), g["lr"]) for g in groups] == [(1, 1e-3)]*2


def test_a_step_moves_the_stem_less():
    torch.manual_seed(0)
    model = create_model("transreid_tiny", n_ids=4, size=(64, 32))
    opt = torch.optim.Adam(param_groups(model, 1e-3, 0., layer_decay=.1))
    for p in model.parameters(): p.grad = torch.ones_like(p)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    opt.step()
    step = {n: (p - before[n]).abs().max().item() for n, p in model.named_parameters()}
    layers = parameter_layers(model)
    assert step["cls"] == pytest.approx(1e-3*.1**layers["cls"].above, rel=.1)
    assert step["heads.0.weight"] == pytest.approx(1e-3, rel=.1)
