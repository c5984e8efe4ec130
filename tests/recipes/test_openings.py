"Commands that open a file of weights: each that is printed works, the best one first, and none is made up."
import shlex
import warnings

import numpy as np
import pytest
import timm
import torch
from helpers.fastreid import released, with_old_names
from helpers.onnx_files import write_tower
from helpers.towers import osnet_file, randomised
from PIL import Image
from torchvision import models
from transformers import CLIPConfig, CLIPModel

from reid_lab.cli.commands import main
from reid_lab.core.weight_files import save_weights
from reid_lab.models.fastreid import FASTREIDS, FastReIDParts, fastreid_names, fastreid_parts, fastreid_tower
from reid_lab.models.osnet import OSNet
from reid_lab.recipes.crops import from_package
from reid_lab.recipes.openings import Opening, openings
from reid_lab.retrieval.embeddings import Embeddings


@pytest.fixture
def crops(tmp_path):
    folder = tmp_path/"crops"
    folder.mkdir()
    for i in range(3):
        pixels = np.random.default_rng(i).integers(0, 255, (64, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder/f"{i}.png")
    return folder


def of_timm(path): torch.save(timm.create_model("convnext_atto").state_dict(), path)
def without_head(path): torch.save(timm.create_model("vit_tiny_patch16_224", num_classes=0).state_dict(), path)
def of_osnet(path): torch.save(osnet_file(randomised(OSNet("osnet_ain_x0_25")), "osnet_ain_x0_25"), path)


def of_onnx(path): return write_tower(path.with_suffix(".onnx"))


def of_hugging_face(path):
    folder = path.parent/"a pair"
    net = CLIPModel(CLIPConfig(text_config=SMALL | dict(vocab_size=20), projection_dim=24,
                               vision_config=SMALL | dict(image_size=32, patch_size=16)))
    net.save_pretrained(folder)
    (folder/"preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}')
    return folder


SMALL = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2)


def of_fastreid(path): torch.save({"model": with_old_names(released("bot", "r50_ibn", gem=False))}, path)


def lightning(path):
    state = {f"model.{k}": v for k, v in models.mobilenet_v3_small().state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, "optimizer_states": [{}]}, path)


def ours(path):
    path = path.with_suffix(".safetensors")
    save_weights(from_package("bot_tiny"), path, zoo="bot_tiny")
    return path


@pytest.mark.parametrize("write, model", [
    (of_timm, "frozen:convnext_atto"), (without_head, "frozen:vit_tiny_patch16_224"),
    (of_osnet, "frozen:osnet_ain_x0_25"), (lightning, "torchvision:mobilenet_v3_small"),
    (of_fastreid, "frozen:fastreid_bot_r50_ibn"), (of_onnx, "'onnx:"), (of_hugging_face, "'hf:"),
    (ours, "bot_tiny")])
def test_each_printed_command_embeds(write, model, crops, tmp_path, capsys):
    path = write(tmp_path/"a file.pth") or tmp_path/"a file.pth"
    assert main(["weights", "inspect", str(path)]) == 0
    lines = [line[12:] for line in capsys.readouterr().out.splitlines() if line.startswith("open        ")]
    assert lines and f"--model {model}" in " ".join(lines)
    for i, line in enumerate(lines[:2]):
        words = shlex.split(line)
        assert words[:3] == ["reid_lab", "embed", "CROPS"]
        words[2], words[-1] = str(crops), str(tmp_path/f"features{i}")
        assert main(words[1:]) == 0, line
        assert len(Embeddings.load(tmp_path/f"features{i}", need=())) == 3


def test_the_model_that_is_held_whole_comes_first_and_one_held_in_part_is_left_out(tmp_path):
    "A ResNet-50 of ImageNet is a tiny part of CAMeL, and lacks the neck of BoT"
    torch.save(models.resnet50().state_dict(), tmp_path/"r50.pth")
    found = openings(tmp_path/"r50.pth")
    assert [o.share for o in found] == sorted((o.share for o in found), reverse=True)
    names = [o.model for o in found]
    assert names[0] in ("frozen:resnet50", "torchvision:resnet50") and "bot_r50" in names and "camel_base" not in names
    assert found[0].share == 1 > next(o.share for o in found if o.model == "bot_r50") > .9


@pytest.mark.parametrize("state", [{"a.weight": torch.zeros(3, 3), "b.bias": torch.ones(3)},
                                   {"conv1.weight": torch.zeros(64, 3, 7, 7)}])
def test_nothing_is_proposed_for_what_nobody_takes(state, tmp_path, capsys):
    torch.save(state | {"a.weight": torch.ones(3, 3)}, tmp_path/"w.pth")
    assert openings(tmp_path/"w.pth") == []
    assert main(["weights", "inspect", str(tmp_path/"w.pth")]) == 0
    said = capsys.readouterr().out
    assert "embed CROPS" not in said and said.endswith("open        no model of `reid_lab embed` takes this file\n")


def test_a_detector_is_opened_by_detect(tmp_path, capsys):
    net = models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    torch.save(net.state_dict(), tmp_path/"ssd.pth")
    assert main(["weights", "inspect", str(tmp_path/"ssd.pth")]) == 0
    line = capsys.readouterr().out.splitlines()[-1].removeprefix("open        ")
    words = ["reid_lab", "detect", "FRAMES", "--weights", str(tmp_path/"ssd.pth"), "--out", "boxes.csv"]
    assert shlex.split(line) == words


def test_a_tower_in_a_file_with_others_is_opened_by_its_prefix(crops, tmp_path, capsys):
    student, teacher = (timm.create_model("convnext_atto").state_dict() for _ in range(2))
    torch.save({f"student.{k}": v for k, v in student.items()} | {f"teacher.{k}": v for k, v in teacher.items()},
               tmp_path/"two.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = openings(tmp_path/"two.pth", "student.")
    assert [o.model for o in found] == ["frozen:convnext_atto"]
    words = shlex.split(found[0].command(tmp_path/"two.pth", "student."))
    assert words[words.index("--prefix") + 1] == "student."
    words[2], words[-1] = str(crops), str(tmp_path/"f")
    assert main(words[1:]) == 0


def test_networks_of_the_same_tensors_are_all_proposed(tmp_path, capsys):
    torch.save(released("sbs", "s50"), tmp_path/"w.pth")
    assert [o.model for o in openings(tmp_path/"w.pth")] == ["frozen:fastreid_sbs_s50", "frozen:fastreid_agw_s50"]
    assert main(["weights", "inspect", str(tmp_path/"w.pth")]) == 0
    assert "2 networks have these tensors" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(set(FASTREIDS) - {"fastreid_r50"}))
def test_every_network_of_fastreid_is_known_by_its_tensors(name):
    "The right tower is the first; an AGW has the tensors of an SBS where its exponent is learnt"
    with torch.device("meta"): tower, *_ = fastreid_tower(name, "none", "")
    names = fastreid_names(fastreid_parts(tower.state_dict()))
    assert names == ([name, name.replace("sbs", "agw")] if "sbs" in name else [name])


def test_an_mgn_on_a_backbone_that_was_not_published_has_no_name():
    assert fastreid_names(FastReIDParts("s50", branches=True)) == []


def test_words_of_a_command_are_quoted():
    line = Opening("frozen:convnext_atto", dict(size=(64, 32)), "", 1.).command("my file.pth")
    assert shlex.split(line)[5:9] == ["--weights", "my file.pth", "-p", "size=(64, 32)"]
