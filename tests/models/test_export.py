"Exported folders: read by the program that they are for, from an image file on, with equal features."
import importlib.util
import json

import numpy as np
import open_clip
import pytest
import timm
import torch
from helpers.towers import SAID, TOK, randomised
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoImageProcessor, AutoModel, ViTConfig, ViTModel

from reid_lab.cli.commands import main
from reid_lab.core.basics import unit_norm
from reid_lab.data.images import read_sized
from reid_lab.models import export
from reid_lab.models.export import About, export_weights, fitting_formats, torchreid_names
from reid_lab.models.osnet import OSNet
from reid_lab.models.zoo import create_model
from reid_lab.recipes.crops import open_embedder
from reid_lab.recipes.exporting import about_model, export_model

ABOUT = About("a model")
PAIR = dict(embed_dim=32, vision_cfg=dict(image_size=64, layers=1, width=64, head_width=32, patch_size=16),
            text_cfg=dict(context_length=20, vocab_size=49408, width=64, heads=2, layers=1))


def changed(net):
    "Random numbers in every tensor but the statistics of the pixels"
    pixels = {name: value.clone() for name, value in net.state_dict().items() if name.startswith("pixels.")}
    randomised(net).load_state_dict(pixels, strict=False)
    return net


def towers():
    yield "frozen", dict(tower="resnet10t", weights="none", size=(64, 32))
    yield "frozen", dict(tower="vit_tiny_patch16_224", weights="none", size=(64, 32))
    yield "bot", dict(tower="convnext_atto", n_ids=3, size=(64, 32), pool="own")
    yield "bot", dict(tower="resnet10t", n_ids=3, size=(64, 32), pool="own", feature="before")


@pytest.fixture
def crop(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 255, (90, 37, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path/"crop.png")
    return tmp_path/"crop.png"


def pixels_of(net, crop):
    return torch.tensor(read_sized(crop, net.size, getattr(net, "resample", "bicubic"))).permute(2, 0, 1)[None]/255


@torch.no_grad()
def ours(net, crop): return net.encode_image(pixels_of(net, crop))


def close(theirs, expected): assert (unit_norm(theirs) - expected).abs().max() < 1e-5


@pytest.mark.parametrize("name, arguments", list(towers()), ids=lambda x: x if isinstance(x, str) else x["tower"])
@torch.no_grad()
def test_timm_reads_a_crop_as_we_do(name, arguments, crop, tmp_path):
    net = changed(create_model(name, **arguments)).eval()
    export_weights(net, tmp_path/"out", "timm", ABOUT)
    model = timm.create_model(f"local-dir:{tmp_path/'out'}", pretrained=True).eval()
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))
    close(model(transform(Image.open(crop))[None]), ours(net, crop))
    again = create_model("frozen", tower=f"local-dir:{tmp_path/'out'}").eval()      # our own door, neck included
    close(again.raw_features(pixels_of(again, crop)), ours(net, crop))
    export_weights(again, tmp_path/"twice", "timm", ABOUT)
    first, second = (json.loads((tmp_path/name/"config.json").read_text()) for name in ("out", "twice"))
    assert first == second


@pytest.mark.parametrize("name", ["clip_tiny", "irra_tiny", "frozen_pair"])
@torch.no_grad()
def test_open_clip_reads_crops_and_captions_as_we_do(name, crop, tmp_path):
    more = dict(n_ids=3) if name == "irra_tiny" else {}
    if name == "frozen_pair": net = create_model(name, pair=PAIR, weights="none")
    else: net = create_model(name, tokenizer=TOK, size=(64, 32), **more)
    net = changed(net).eval()
    export_weights(net, tmp_path/"out", "open_clip", ABOUT)
    model, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path/'out'}")
    tokens = open_clip.get_tokenizer(f"local-dir:{tmp_path/'out'}")
    model.eval()
    close(model.encode_image(transform(Image.open(crop))[None]), ours(net, crop))
    long = " ".join(SAID*9)                 # is cut at the same place
    close(model.encode_text(tokens([*SAID, long])), net.encode_text(net.tokenizer([*SAID, long])))
    assert not any("mlm" in key or "cross" in key for key in load_file(tmp_path/"out/open_clip_model.safetensors"))


@torch.no_grad()
def test_reid_names_osnet_as_its_released_files_do(crop, tmp_path):
    net = changed(create_model("frozen", tower="osnet_x0_25", weights="none")).eval()
    export_weights(net, tmp_path/"out", "reid", ABOUT)
    config = json.loads((tmp_path/"out/reid_config.json").read_text())
    assert config["architecture"] == "osnet_x0_25" and config["preprocessing"]["input_size"] == [256, 128]
    keys = set(load_file(tmp_path/"out/weights.safetensors"))
    assert {"conv2.0.conv2a.conv1.weight", "conv2.1.conv2d.3.bn.bias", "conv3.2.0.conv.weight", "fc.1.bias"} <= keys
    assert not any("streams" in key or key.startswith("pool") for key in keys)
    assert len(torchreid_names(OSNet("osnet_x0_25").state_dict())) == len(keys)     # no two names became one


@pytest.mark.skipif(importlib.util.find_spec("reid") is None, reason="needs the package reid of Roboflow")
@pytest.mark.parametrize("tower", ["osnet_x0_25", "osnet_x1_0", "resnet10t"])
def test_reid_itself_reads_a_crop_as_we_do(tower, crop, tmp_path):
    from reid import ReIDModel
    size = dict(size=(64, 32)) if tower == "resnet10t" else {}
    net = changed(create_model("frozen", tower=tower, weights="none", **size)).eval()
    export_weights(net, tmp_path/"out", "reid", ABOUT)
    model = ReIDModel.from_pretrained(str(tmp_path/"out"), device="cpu")
    close(torch.from_numpy(model.extract_embeddings_from_paths([str(crop)])), ours(net, crop))


@torch.no_grad()
def test_transformers_reads_a_crop_as_we_do(crop, tmp_path):
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32,
                       patch_size=16)
    randomised(ViTModel(config, add_pooling_layer=False)).save_pretrained(tmp_path/"vit")
    pixels = dict(image_mean=[.5]*3, image_std=[.2]*3, resample=2)
    (tmp_path/"vit/preprocessor_config.json").write_text(json.dumps(pixels))
    net = create_model("frozen", tower=f"hf:{tmp_path/'vit'}").eval()
    export_weights(net, tmp_path/"out", "hf", ABOUT)
    model = AutoModel.from_pretrained(tmp_path/"out", add_pooling_layer=False).eval()
    pixels = AutoImageProcessor.from_pretrained(tmp_path/"out", use_fast=False)(Image.open(crop), return_tensors="pt")
    close(model(**pixels).last_hidden_state[:, 0], ours(net, crop))


def test_what_another_program_does_not_build_is_refused_with_what_fits(tmp_path, capsys):
    assert fitting_formats(create_model("bot_tiny", n_ids=2).eval()) == []
    assert fitting_formats(create_model("transreid_tiny", n_ids=2).eval()) == []
    trained = create_model("bot", tower="resnet10t", n_ids=2, size=(64, 32), pool="own").eval()
    assert fitting_formats(trained) == ["timm"]
    assert fitting_formats(create_model("frozen", tower="osnet_ain_x0_25", weights="none").eval()) == []
    assert main(["weights", "export", "clip_tiny", "--out", str(tmp_path/"a"), "--format", "timm"]) == 2
    assert "formats that fit: open_clip" in capsys.readouterr().err
    assert main(["weights", "export", "clip_tiny", "--out", str(tmp_path/"a"), "--format", "onnx"]) == 2
    assert "choose one of ['timm', 'open_clip', 'reid', 'hf']" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_pooling_that_timm_does_not_have_is_found_by_reading_again(tmp_path):
    net = changed(create_model("bot", tower="resnet10t", n_ids=2, size=(64, 32), pool="meanmax")).eval()
    with pytest.raises(ValueError, match="computes other features from these tensors"):
        export_weights(net, tmp_path/"out", "timm", ABOUT)
    assert not list(tmp_path.iterdir())


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def stop(*_): raise KeyboardInterrupt
    monkeypatch.setattr(export, "_compared", stop)
    net = create_model("frozen", tower="resnet10t", weights="none", size=(64, 32)).eval()
    with pytest.raises(KeyboardInterrupt): export_weights(net, tmp_path/"out", "timm", ABOUT)
    assert not list(tmp_path.iterdir())


def test_the_model_card_says_what_is_known(tmp_path):
    export_model("clip_tiny", tmp_path/"clip", "open_clip")
    card = (tmp_path/"clip/README.md").read_text()
    for words in ("license: apache-2.0", "trained on 6 rendered Worlds, on no photograph", "256,000 in 4,000 steps",
                  "seed 500, 501, 502, 503, 504, 505", "World scores", "not comparable with scores on photographs"):
        assert words in card
    torch.save(timm.create_model("resnet10t").state_dict(), tmp_path/"*w*.pth")
    export_model("frozen:resnet10t", tmp_path/"tower", "timm", tmp_path/"*w*.pth", arguments=dict(size=(64, 32)))
    card = (tmp_path/"tower/README.md").read_text()
    assert r"Weights from the file \*w\*.pth." in card      # a name from outside is no Markdown
    assert "license:" not in card and "nobody may pass this folder on" in card and "is not known here" in card
    assert "World" not in card and "rendered" not in card
    about = about_model(open_embedder("frozen:resnet10t", str(tmp_path/"*w*.pth"), arguments=dict(size=(64, 32))))
    assert (about.images, about.scores) == (0, {})
