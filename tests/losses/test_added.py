"Losses that are added to those of a model: every family computes them, and what cannot be computed is refused"
import importlib
from functools import partial

import numpy as np
import pytest
import torch

from reid_lab.core.plugins import own_modules
from reid_lab.data.text import WordPiece
from reid_lab.losses import image
from reid_lab.losses.added import (
    LOSSES,
    AddedLoss,
    add_losses,
    added_losses,
    loss_facts,
    register_loss,
)
from reid_lab.losses.basics import terms
from reid_lab.models.zoo import MODELS, create_model, sample_batch
from reid_lab.recipes.reid import reid_key, reid_settings, train_reid
from reid_lab.recipes.text import text_key, text_settings, train_text
from reid_lab.training.learner import Callback
from reid_lab.world.world import World

TINY = [name for name, record in MODELS.items() if record.size == "tiny" and record.trains]
SMOKE = dict(preset="smoke", steps=2, quiet=True)


def spread(emb, scale=1.):
    "Small where features are near their mean"
    return scale*(1 + (emb - emb.mean(0)).pow(2).sum(1)).log().mean()


def nearer(img, txt, pid): return (img - txt).pow(2).sum(1).mean()


@pytest.fixture(autouse=True)
def the_registry(monkeypatch):
    "Names of one test are unknown to the next"
    for name in {*LOSSES}: monkeypatch.setitem(LOSSES, name, LOSSES[name])
    yield
    for name in {*LOSSES} - {"itc", "sdm", "triplet", "weighted_triplet", "circle", "hetero_center",
                             "hetero_center_before"}: del LOSSES[name]


@pytest.fixture(scope="module")
def tokenizer(): return WordPiece.train(["a man in a red coat", "a woman with a bag"]*3, 60, 12)


@pytest.fixture(scope="module")
def people(): return World("smoke", task="reid").table()


@pytest.fixture(scope="module")
def captioned(): return World("smoke", task="text").table()


def made(name, tokenizer):
    "A tiny model in training"
    given = dict(n_ids=4, tokenizer=tokenizer)
    torch.manual_seed(0)
    model = create_model(name, weights="none", **{k: v for k, v in given.items() if k in MODELS[name].needs})
    return model.train()


@pytest.mark.parametrize("name", TINY)
def test_every_family_adds_losses(name, tokenizer):
    model = made(name, tokenizer)
    batch = sample_batch(model.size, vocab_size=len(tokenizer.vocab))
    torch.manual_seed(1)
    before = terms(model(batch))
    add_losses(model, added_losses(dict(spread=(spread, 3., dict(scale=2.)))))
    torch.manual_seed(1)
    after = terms(model(batch))
    assert {*after} - {*before} == {"spread_loss"} and all(torch.equal(before[k], after[k]) for k in before)
    after["spread_loss"].backward()
    moved = [p for p in model.parameters() if p.grad is not None and p.grad.abs().sum() > 0]
    assert moved, "no gradient reaches the model"
    single = made(name, tokenizer)
    add_losses(single, added_losses(dict(spread=spread)))
    torch.manual_seed(1)
    assert torch.allclose(after["spread_loss"], 6*single(batch)["spread_loss"])


def test_it_is_the_loss_of_the_features(tokenizer):
    model = add_losses(made("bot_tiny", tokenizer), added_losses("2*circle(m=.1)"))
    batch = sample_batch(model.size)
    out = model(batch)
    assert torch.equal(out["circle_loss"], 2*image.circle(out["emb"], batch["pid"], m=.1))


def test_text_and_dict_are_the_same():
    assert added_losses(dict(triplet=image.triplet, circle=("circle", .5, dict(m=.1)))) == added_losses(
        "triplet + .5*circle(m=.1)")
    text = "triplet(margin=None) + 0.5*circle(m=0.1, gamma=64.0)"
    assert " + ".join(map(str, added_losses(text))) == text
    assert added_losses("") == added_losses(()) == added_losses({}) == ()


@pytest.mark.parametrize("given, message", [
    ("tripel", "Did you mean 'triplet'"), ("triplet -", "write a sum such as"), ("triplet(.3)", "write a sum such as"),
    ("3", "write a sum such as"), ("triplet(m=1)", "setting of loss triplet='m'"), ("0*triplet", "a number above 0"),
    ("triplet(**{})", "write a sum such as"), (dict(own=[spread, 0]), "a number above 0"),
    (dict(own=(spread, 1., 3)), "dict of settings"), ({"a b": spread}, "cannot be the name of a loss"),
    ("triplet + triplet", "a name for each"), (dict(own="tripel"), "Did you mean 'triplet'"),
    (dict(own=(spread, float("nan"))), "a number above 0"), (dict(own=(spread, True)), "a number above 0")])
def test_what_cannot_be_read_is_refused(given, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(")): added_losses(given)


def test_what_no_batch_has_is_refused(tokenizer):
    with pytest.raises(TypeError, match="needs words, which no batch has"):
        added_losses(dict(own=lambda emb, words: emb.sum()))
    with pytest.raises(TypeError, match="give a function of features"): added_losses(dict(own=3))
    for given in ([spread], ("triplet",), spread):
        with pytest.raises(TypeError, match=r"give a dict such as dict\(own=\(function, 1.\)\)"): added_losses(given)
    with pytest.raises(TypeError, match="needs input, target, which"): added_losses(dict(own=torch.nn.MSELoss()))
    assert added_losses(dict(own=(lambda emb, **more: emb.sum(), np.float32(.5))))[0].weight == .5
    model = add_losses(made("bot_tiny", tokenizer), added_losses(dict(own=nearer)))
    with pytest.raises(ValueError, match="needs img, txt, and this model and its batches have emb"):
        model(sample_batch(model.size))


@pytest.mark.parametrize("loss, said", [
    (lambda emb: emb.mean(1), r"value of shape \(8,\)"), (lambda emb: 1., "value 1.0")])
def test_what_is_no_scalar_is_refused(loss, said, tokenizer):
    model = add_losses(made("bot_tiny", tokenizer), added_losses(dict(own=loss)))
    with pytest.raises(TypeError, match=f"loss 'own' returned a {said}; return a tensor without dimensions"):
        model(sample_batch(model.size))


def test_a_model_that_leaves_them_out_is_refused():
    class Alone(torch.nn.Module):
        def forward(self, batch): return dict(own_loss=batch["img"].sum())
    model = add_losses(Alone(), added_losses("triplet"))
    with pytest.raises(ValueError, match="Alone does not add losses, such as 'triplet'"): model(dict(img=torch.ones(2)))
    with pytest.raises(ValueError, match="Alone does not add losses"): model(dict(img=torch.ones(2)))


def test_a_name_stands_for_one_function():
    register_loss("spread", spread)
    assert str(added_losses("spread(scale=2)")[0]) == "spread(scale=2)"
    with pytest.raises(ValueError, match="is reid_lab.losses.image.triplet; choose"): register_loss("triplet", spread)
    with pytest.raises(ValueError, match="choose another name"): register_loss("spread", nearer)
    with pytest.raises(ValueError, match="cannot be the name of a loss"): register_loss("my loss", spread)


def test_code_decides_the_key():
    "A helper that was edited is another loss; one of the package is named"
    assert loss_facts(added_losses("triplet")) == dict(added_losses=["triplet: triplet"])
    (own,), (other,) = (loss_facts(added_losses(dict(x=f)))["added_losses"] for f in (spread, nearer))
    assert own.startswith("x: x [") and own[-14:] != other[-14:]


def test_what_a_function_was_given_decides_the_key():
    def within(margin):
        def loss(emb): return margin*emb.sum()
        return loss
    facts = [loss_facts(added_losses(dict(x=f)))["added_losses"][0] for f in (
        partial(spread, scale=.3), partial(spread, scale=.9), within(.3), within(.9), image.triplet,
        partial(image.triplet, margin=.9))]
    assert len({*facts}) == 6


def test_a_registered_loss_knows_its_module(tmp_path, monkeypatch):
    "So that sweeps, kernels and colleagues get it"
    (tmp_path/"mine_only.py").write_text("from reid_lab.losses.added import register_loss\n"
                                         "register_loss('only_mine', lambda emb: emb.sum())\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("mine_only")
    assert LOSSES.origin("only_mine") == "mine_only" and "mine_only" in {own.name for own in own_modules()}
    assert LOSSES.origin("triplet") == ""


def test_training_of_images(people):
    "Losses, callbacks and extras reach the training; its key says so, and that of a plain one stays"
    seen = []

    class Watch(Callback):
        def after_step(self, learn): seen.append(dict(learn.logs))

    def mark(batch, rng): batch["marked"] = True

    done = train_reid(people, losses=dict(spread=(spread, .5)), callbacks=[Watch()], extras=[mark], **SMOKE)
    assert len(seen) == 2 and all(log["spread_loss"] > 0 for log in seen) and done.log[-1]["spread_loss"] > 0
    assert done.key["added_losses"][0].startswith("spread: 0.5*spread [")
    plain = reid_key(people, reid_settings("smoke"))
    assert "added_losses" not in plain
    assert reid_key(people, reid_settings("smoke", added_losses="triplet")) == plain | dict(
        added_losses=["triplet: triplet"])


def test_training_of_captions(captioned):
    done = train_text(captioned, model="irra_tiny", losses=dict(soft=(nearer, 2.)), **SMOKE)
    assert done.log[-1]["soft_loss"] > 0 and done.key["added_losses"][0].startswith("soft: 2*soft [")
    plain = text_key(captioned, text_settings("smoke"), tokenizer=WordPiece.train(["a"], 60, 12))
    assert "added_losses" not in plain


def test_another_loss_is_another_training(people, tmp_path):
    train_reid(people, folder=tmp_path/"m", losses="circle", **SMOKE)
    with pytest.raises(ValueError, match="added_losses"): train_reid(people, folder=tmp_path/"m", **SMOKE)


def test_records_are_checked():
    with pytest.raises(ValueError, match="setting of loss x='width'"): AddedLoss("x", spread, 1., (("width", 2),))
