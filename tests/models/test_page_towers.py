"A page computes text towers of two structures, and says which others it cannot"
import numpy as np
import pytest
import torch

from reid_lab.data.text import ClipBPE, WordPiece
from reid_lab.models.page_towers import MOST_BYTES, SAME, NoTower, accents, largest_difference, page_tower
from reid_lab.models.zoo import create_model

TEXTS = ["a man in red", "A woman, with 20 zebras!", "red coat " * 40]
TOK = WordPiece.train(TEXTS*3, vocab_size=90, context_length=12, clean="letters")


def new(name, **how):
    "A model of random 32-bit weights, as a training leaves them"
    torch.manual_seed(0)
    return create_model(name, tokenizer=TOK, **how).eval()


@pytest.mark.parametrize("name, how", [
    ("clip_tiny", {}), ("clip_tiny", dict(text_layers=3, dim=32)), ("irra_tiny", dict(losses="sdm")),
    ("dual_tiny", {}), ("camel_tiny", {}), ("camel_tiny", dict(text_pool="cls", layers=2, heads=4))])
def test_trained_weights_in_16_bits_give_the_features_of_the_model(name, how):
    model = new(name, **how)
    tower = page_tower(model, TEXTS)
    assert 0 < largest_difference(tower, model, TEXTS) < SAME
    kinds = {array.dtype.name for key, array in tower.arrays.items() if array.ndim == 2 and key != "places"}
    assert kinds == {"float16"} and len(tower.arrays["places"]) == TOK.context_length
    assert not model.training
    model.train()
    page_tower(model, TEXTS)
    assert model.training, "its mode stays"


def test_what_is_built_otherwise_is_noticed_by_its_features():
    clip, camel = new("clip_tiny"), new("camel_tiny")
    clip.transformer.resblocks[0].mlp.gelu = torch.nn.ReLU()
    camel.text.layers[0].up.register_forward_hook(lambda layer, given, out: 2*out)
    for model in (clip, camel):
        with pytest.raises(NoTower, match="a number of a feature differs by up to"): page_tower(model, TEXTS)


def test_numbers_beyond_16_bits_are_no_tower():
    model = new("clip_tiny")
    with torch.no_grad(): model.text_projection.mul_(1e7)       # 65,504 is the largest number of 16 bits
    with pytest.raises(NoTower, match="differs by up to nan"): page_tower(model, TEXTS)


def test_a_tower_or_a_tokenizer_that_does_not_fit_is_named():
    large = new("clip_tiny", dim=512, text_layers=6)
    with pytest.raises(NoTower, match=r"takes \d+\.\d MB, and a page holds at most 8.0 MB"):
        page_tower(large, TEXTS)
    model = new("clip_tiny")
    for tokenizer in (ClipBPE(), WordPiece(TOK.vocab, clean="keep"), None):
        model.tokenizer = tokenizer
        with pytest.raises(NoTower, match="of a kind that a page does not compute"): page_tower(model, TEXTS)
    of_images = create_model("bot_tiny", n_ids=1)
    with pytest.raises(NoTower, match="reads no sentences"): page_tower(of_images, TEXTS)


def test_the_package_stays_far_below_the_limit_and_accents_are_those_of_unicode():
    record = page_tower(create_model("clip_tiny", weights="world"), TEXTS).record()
    assert len(record["tower"]["arrays"]) < MOST_BYTES/10
    inside = np.zeros(0x110000, bool)
    for first, last in accents(): inside[first:last + 1] = True
    assert inside[[0x301, 0x345, 0x20d0]].all() and not inside[[0x41, 0x20dd, 0xfe0f, 0x34f]].any()


def test_a_frozen_part_stays_in_evaluation():
    model = create_model("clip_tiny", weights="world").train()
    frozen = next(model.children()).eval()
    page_tower(model, ["a man in red"])
    assert model.training and not frozen.training
