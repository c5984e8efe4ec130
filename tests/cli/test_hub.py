"Weights of a hub through `embed`, `search` and `weights`: one process that has a network, and loses it and its cache."
import json
import subprocess
import sys

import numpy as np
import open_clip
import pytest
import timm
import torch
from helpers.hub import COMMIT, Hub, Repo, environment
from helpers.towers import randomised
from PIL import Image
from safetensors.torch import save
from transformers import ViTConfig, ViTModel

from reid_lab.retrieval.embeddings import Embeddings

PAIR = dict(embed_dim=32, vision_cfg=dict(image_size=64, layers=1, width=64, head_width=32, patch_size=16),
            text_cfg=dict(context_length=20, vocab_size=49408, width=64, heads=2, layers=1))
# Lines of JSON are command lines; `offline` and `empty` take away the network and the cache.
CODE = """
import json, os, shutil, socket, sys
from reid_lab.cli.commands import main

def refuse(*args, **kw): raise AssertionError("a socket was opened")

for line in sys.stdin:
    call = json.loads(line)
    if call == "offline": socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
    elif call == "empty": shutil.rmtree(os.environ["HF_HOME"])
    else: print("code", main(call), file=sys.stderr, flush=True)
"""


def bytes_of(net): return save({name: value.contiguous() for name, value in net.state_dict().items()})


def text(value): return json.dumps(value).encode()


@pytest.fixture(scope="module")
def nets():
    vit = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=32,
                    patch_size=16)
    return dict(tower=randomised(timm.create_model("resnet10t", num_classes=10)),
                pair=randomised(open_clip.CLIP(**PAIR)), vit=randomised(ViTModel(vit, add_pooling_layer=False)))


@pytest.fixture(scope="module")
def repos(nets):
    half = dict(mean=[.5]*3, std=[.25]*3, interpolation="bilinear", input_size=[3, 64, 32])
    tower = {"model.safetensors": bytes_of(nets["tower"]),
             "config.json": text(dict(architecture="resnet10t", num_classes=10, pretrained_cfg=half))}
    pair = {"open_clip_model.safetensors": bytes_of(nets["pair"]),
            "open_clip_config.json": text(dict(model_cfg=PAIR, preprocess_cfg=dict(mean=[.4]*3, std=[.3]*3)))}
    vit = {"model.safetensors": bytes_of(nets["vit"]), "config.json": text(nets["vit"].config.to_dict()),
           "preprocessor_config.json": text(dict(image_mean=[.5]*3, image_std=[.25]*3, resample=2)),
           "modeling.py": b"raise SystemExit('run')"}
    return dict(lab__tower=Repo(tower, dict(license="mit")), lab__pair=Repo(pair), lab__vit=Repo(vit))


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")/"crops"
    folder.mkdir()
    for i in range(4):
        pixels = np.random.default_rng(i).integers(0, 255, (64, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder/f"{i}.png")
    return folder


def pixels_of(crops, size, mean, std, resample):
    images = [Image.open(path).resize(size[::-1], resample) for path in sorted(crops.glob("*.png"))]
    return (torch.tensor(np.stack([np.array(image) for image in images])).permute(0, 3, 1, 2)/255 - mean)/std


@torch.no_grad()
def check(features, expected):
    "Equal to a plain forward of the program that the weights are of"
    assert (torch.as_tensor(features.emb) - torch.nn.functional.normalize(expected, dim=1)).abs().max() < 1e-5


def calls(hub, folder, *lines):
    "Standard output, standard error and exit codes of command lines in one process"
    done = subprocess.run([sys.executable, "-c", CODE], input="\n".join(map(json.dumps, lines)), cwd=folder, text=True,
                          capture_output=True, env=environment(hub, folder/"hf"), timeout=600)
    errors = [line for line in done.stderr.splitlines() if not line.startswith("code ")]
    return done.stdout, errors, [int(line[5:]) for line in done.stderr.splitlines() if line.startswith("code ")]


def embed(model, out, *more): return ["embed", "crops", "--model", model, "--out", out, *more]


WEIGHTS, ASK = ("--weights", "hf://lab/tower"), ("--image", "crops/0.png", "-k", "2")
GOOD = [embed("frozen:resnet10t", "file", *WEIGHTS), embed("frozen:hf-hub:lab/tower", "timm"),
        embed("hf-hub:lab/pair", "clip"), embed("hf://lab/vit", "vit"), ["weights", "inspect", "hf://lab/tower"],
        ["weights", "convert", "hf://lab/tower", "ours.safetensors", "--model", "bot", "-p", "tower=resnet10t"]]
REFUSED = [(embed("frozen_pair:hf-hub:lab/tower", "a"), "reads no captions"),
           (embed("hf-hub:lab/vit", "b"), "give hf://lab/vit"),
           (embed("hf://lab/tower", "c"), "a network of timm or open_clip is named hf-hub:lab/tower"),
           (embed("hf://lab/pair", "c"), "a file of weights is given with --weights hf://lab/pair"),
           (embed("frozen:local-dir:crops", "d"), "'local-dir:crops' holds no network of timm"),
           (embed("frozen:resnet10t", "e", "--weights", "hf://lab"), "hf://OWNER/NAME")]
OFFLINE = [["search", "file", *ASK], ["search", "timm", *ASK], ["search", "clip", "a man"], ["search", "vit", *ASK]]
GONE = [["search", "file", *ASK], ["search", "vit", *ASK], ["match", "file", "file"]]       # the last needs no model


@pytest.fixture(scope="module")
def done(repos, crops):
    with Hub(**repos) as hub:
        refused = [line for line, _ in REFUSED]
        out, err, codes = calls(hub, crops.parent, *refused, *GOOD, "offline", *OFFLINE, "empty", *GONE)
    assert not any("modeling.py" in request for request in hub.requests)        # a program is not even downloaded
    return out, err, codes


def test_features_of_the_hub_are_found_again_without_a_network(done, nets, crops):
    out, err, codes = done
    first = len(REFUSED)
    assert codes[first:] == [0]*len(GOOD + OFFLINE) + [2, 2, 0], err[-4:]
    licences = [line for line in err if line.startswith("licence")]
    assert sorted(set(licences)) == ["licence     mit (by its card)", "licence     no licence stated"]
    half = .5, .25, Image.Resampling.BILINEAR
    file, of_timm, clip, vit = (Embeddings.load(crops.parent/name) for name in ("file", "timm", "clip", "vit"))
    net = nets["tower"]
    with torch.no_grad():
        check(file, net.forward_head(net.forward_features(pixels_of(crops, (64, 32), *half)), pre_logits=True))
        check(of_timm, torch.as_tensor(file.emb))
        check(clip, nets["pair"].encode_image(pixels_of(crops, (64, 64), .4, .3, Image.Resampling.BICUBIC)))
        check(vit, nets["vit"](pixels_of(crops, (32, 32), *half)).last_hidden_state[:, 0])
    assert file.meta["weights"] == f"hf://lab/tower@{COMMIT}/model.safetensors"
    assert of_timm.meta["model_name"] == f"frozen:hf-hub:lab/tower@{COMMIT}"
    assert len(of_timm.meta["weights_sha256"]) == 64 and of_timm.meta["weights_sha256"] == file.meta["weights_sha256"]
    assert f"hf://lab/tower@{COMMIT}/model.safetensors" in out      # of convert
    gone = [line for line in err if "no longer in the cache" in line]
    assert len(gone) == 2 and f"`reid_lab weights inspect hf://lab/tower@{COMMIT}/model.safetensors`" in gone[0]
    assert gone[1].endswith(f"name it to download it again (--model hf://lab/vit@{COMMIT})")


def test_a_name_that_does_not_fit_is_refused_before_its_weights_are_downloaded(done):
    _, err, codes = done
    assert codes[:len(REFUSED)] == [2]*len(REFUSED)
    refusals = [line for line in err if line.startswith("reid_lab embed")]
    for (_, words), line in zip(REFUSED, refusals, strict=True): assert words in line
    last = err.index(refusals[-1])
    assert not any("safetensors," in line for line in err[:last])
