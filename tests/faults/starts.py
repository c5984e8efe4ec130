"""Starting points: weights that come with the package, cards, Worlds that were seen, recipes that need a file."""
import json
from dataclasses import replace

import torch
from fault import bad, cut, refused
from safetensors.torch import save_file

from reid_lab.models.convert import convert_weights
from reid_lab.models.weights.shipped import (
    Card,
    card_for,
    check_unseen,
    check_worlds,
    read_card,
    save_shipped,
    world_names,
)
from reid_lab.models.weights.start import start_own
from reid_lab.models.zoo import MODELS, create_model
from reid_lab.recipes.camel import load_data
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.reid import reid_settings
from reid_lab.recipes.starts import Start, run_start, train_start
from reid_lab.training.folder import Trained, start_of

CARD = Card("bot_tiny", dict(size=(64, 32)), (("smoke", "reid", 500),), "a command", "abc", 0, 1, 16, 1.)


def _file(folder, card=CARD):
    "A file with a card"
    return save_shipped(torch.nn.ModuleDict(dict(classify=torch.nn.Linear(2, 3))), card, folder/"w.safetensors")


def _header(folder, **header):
    "A file of tensors with another header"
    save_file(dict(w=torch.ones(2)), folder/"w.safetensors", metadata=header)
    return folder/"w.safetensors"


def _damaged(folder):
    cut(path := _file(folder))
    return path


def _trained(folder):
    "A training that began with the shipped weights"
    model = create_model("bot_tiny", n_ids=2, weights="world")
    Trained(model, [], 1, 1, 1., dict(model="bot_tiny", model_kw=dict(n_ids=2))).save(folder/"run")


def _own(folder):
    MODELS["mine_tiny"] = replace(MODELS["bot_tiny"], family="mine")
    try: start_of("mine_tiny")
    finally: del MODELS["mine_tiny"]


FAULTS = [
    bad("starts: a paper size without its file", "weights=''", lambda t: start_of("bot_r50"), "bot_r50",
        "resnet50-0676ba61.pth", "weights='none'"),
    bad("starts: a state dict, which no record can name", "weights is dict",
        lambda t: reid_settings("smoke", weights=dict(w=torch.ones(2))).start, "records where it started", "torch.save",
        error=TypeError),
    bad("starts: a ViT without its file", "preset paper",
        lambda t: reid_settings("paper", model="transreid_b16").start, "ImageNet-21k", "pass the file as weights"),
    bad("starts: CLIP-ReID without its file", "preset full",
        lambda t: reid_settings("full", model="clip_reid_b16").start, "ViT-B-16.pt"),
    bad("starts: CAMeL without its files", "preset paper", lambda t: load_data("paper"), "camel_base",
        "bert-base-uncased", "with a comma between"),
    bad("starts: text weights for a tiny model", "weights='none,bert'", lambda t: Config(weights="none,bert").start,
        "camel_tiny takes no weights of a text encoder", "comma"),
    bad("starts: a World that was seen", "seed 500", lambda t: check_unseen(CARD, 500), "world_seed=500",
        "choose another World"),
    bad("starts: Worlds of experiments", "World 0 among them", lambda t: Start((0, 500), 10, 1e-3), "worlds=(0, 500)",
        "between 500 and 999"),
    bad("starts: the held-out World is trained on", "999 in both", lambda t: Start((999,), 10, 1e-3), "held_out=999"),
    bad("starts: no such start", "camel_tny", lambda t: train_start("camel_tny", "smoke"), "name='camel_tny'",
        "Did you mean 'camel_tiny'?"),
    bad("starts: no such setting", "stepz=3", lambda t: run_start("bot_tiny", "smoke", stepz=3), "stepz",
        error=TypeError),
    bad("starts: no such preset", "preset=smke", lambda t: run_start("bot_tiny", "smke"), "smke", "smoke"),
    bad("starts: nothing that comes with the package fits", "one layer from the World",
        lambda t: start_own(torch.nn.Linear(2, 3), "mine_tiny", "world"), "no parameter of 'mine_tiny'",
        "looked at", "pass 'none', or a file"),
    bad("starts: no card of this model", "the tokenizer of dual_tiny", lambda t: card_for("dual_tiny"), "dual_tiny",
        "weights='none' starts from random numbers"),
    bad("cards: a file without one", "weights of another program", lambda t: read_card(_header(t)),
        "weights with a card"),
    bad("cards: no JSON", "an edited header", lambda t: read_card(_header(t, card="{")), "weights with a card"),
    bad("cards: fields are missing", "a card of another version",
        lambda t: read_card(_header(t, card=json.dumps(dict(model="bot_tiny")))), "weights with a card"),
    bad("cards: cut short", "half of the file", lambda t: read_card(_damaged(t)), "w.safetensors"),
    bad("starts: weights of another model", "bot_tiny's file for TransReID",
        lambda t: create_model("transreid_tiny", n_ids=3, weights=_file(t)), "(bot_tiny)",
        "expected weights of transreid_tiny"),
    bad("starts: a file cut short", "half of the file",
        lambda t: create_model("bot_tiny", n_ids=3, weights=_damaged(t)), "w.safetensors",
        "needed here: weights of bot_tiny"),
    bad("starts: tensors are missing", "a file of one layer", lambda t: create_model("bot_tiny", n_ids=3,
        weights=_file(t)), "cannot be loaded into BoT", "missing"),
    bad("starts: no such file", "a misspelt path",
        lambda t: create_model("camel_tiny", vocab_size=60, weights=t/"x.pth"), "x.pth", "is not a file or folder",
        error=FileNotFoundError),
    bad("run starts: no such study", "camel_big", lambda t: refused("run", "starts", "-p", "preset=smoke", "-p",
        "study=camel_big"), "study='camel_big'", "camel_tiny"),
    bad("starts: a World that a file has seen", "a copy of the shipped weights",
        lambda t: check_worlds(_file(t), "bot_tiny", 0, 500), "world_seed=500", "weights='w.safetensors'"),
    bad("starts: a World that a converted file has seen", "`weights convert` keeps the card", lambda t: (
        convert_weights(world_names("bot_tiny")["world"], t/"c.safetensors", "bot_tiny"),
        check_worlds(t/"c.safetensors", "bot_tiny", 501)), "world_seed=501"),
    bad("starts: a World that a training's start has seen", "its folder", lambda t: (
        _trained(t), check_worlds(t/"run", "bot_tiny", 502)), "world_seed=502"),
    bad("starts: CAMeL on a World that a file has seen", "the shipped weights by their path", lambda t: load_data(
        "smoke", weights=str(world_names("camel_tiny")["world"]), world_seed=500), "world_seed=500"),
    bad("starts: a model of one's own", "its record says nothing", _own, "mine_tiny",
        "weights='none'", "starts='none'", "starts_like='bot_tiny'"),
]
