"What a model computes decides whether its features may be searched with those of another, not names and checksums"
import copy

import numpy as np
import pytest
import torch

from reid_lab.models.bot import bot_tiny
from reid_lab.recipes.crops import model_of, open_embedder
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.probes import equal_parts, feature_probe
from reid_lab.retrieval.sides import one_model


def features(model, kind="image", **meta):
    embedder = open_embedder(model)
    facts = dict(model=type(embedder.net).__name__, kind=kind) | embedder.facts() | embedder.sums | meta
    return Embeddings(np.eye(4, embedder.net.dim, dtype="f4"), np.arange(4), meta=facts)


def test_networks_that_embed_alike_are_searched_with_each_other():
    clip, cfam = features("clip_tiny"), features("cfam_tiny", "text")
    assert clip.meta["checksum"] != cfam.meta["checksum"] and clip.meta["model"] != cfam.meta["model"]
    one_model(cfam, clip)
    assert type(model_of(clip, "irra_tiny", "captions")).__name__ == "IRRA"
    without = Embeddings(clip.emb, clip.pid, meta={k: v for k, v in clip.meta.items() if k != "probe"})
    with pytest.raises(ValueError, match="features of CFAM, the gallery of CLIPPair"): one_model(cfam, without)
    with pytest.raises(ValueError, match="of other weights"): model_of(without, "irra_tiny")
    for other in ("camel_tiny", "clip_reid_tiny"):
        with pytest.raises(ValueError, match="Embed both with one model"): one_model(features(other), clip)
        with pytest.raises(ValueError, match="one model"): model_of(clip, other)


def test_one_file_in_two_networks_is_not_one_model():
    bot = features("bot_tiny")
    agw = features("agw_tiny")
    with pytest.raises(ValueError, match="embed one image or sentence differently"): one_model(agw, bot)
    same = {k: v for k, v in bot.meta.items() if k != "probe"}
    plain = Embeddings(bot.emb, bot.pid, meta=same)
    other = Embeddings(bot.emb, bot.pid, meta=same | dict(model_name="agw_tiny"))    # one checksum, no probe
    with pytest.raises(ValueError, match="which read one file of weights"): one_model(other, plain)
    one_model(plain, bot)
    one_model(bot, Embeddings(bot.emb, bot.pid, meta=dict(model="BoT", kind="image")))


def test_probes_see_a_network_that_computes_otherwise_with_equal_weights():
    torch.manual_seed(0)
    model = bot_tiny(n_ids=2, size=(64, 32)).eval()
    other = copy.deepcopy(model)
    probe = feature_probe(model)
    assert equal_parts(probe, feature_probe(other)) == dict(image=True)
    encode = other.encode_image
    other.encode_image = lambda img: encode(img.flip(3).sqrt())
    assert equal_parts(probe, feature_probe(other)) == dict(image=False)


@pytest.mark.parametrize("probe", ["", "{", "[]", "3", '{"image": 1}'])
def test_a_probe_that_is_none_decides_nothing(probe):
    assert equal_parts(probe, feature_probe(bot_tiny(n_ids=2, size=(64, 32)).eval())) == {}


def test_a_model_that_refuses_the_image_has_no_probe():
    class Odd(torch.nn.Module):
        size = (8, 8)
        def encode_image(self, img): raise RuntimeError("a batch of 4 only")
    assert feature_probe(Odd()) == ""
