"Towers of other programs through `reid_lab embed`: one command each, equal to a plain forward of their library."
import json

import numpy as np
import open_clip
import pytest
import timm
import torch
from helpers.towers import osnet_file, randomised
from PIL import Image
from torchvision import models

from reid_lab.cli.commands import main
from reid_lab.models.osnet import OSNet
from reid_lab.retrieval.embeddings import Embeddings

N = 60


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    "Sixty JPEG files of several sizes"
    folder = tmp_path_factory.mktemp("crops")
    for i in range(N):
        rng = np.random.default_rng(i)
        small = rng.integers(0, 255, (8, 4, 3), dtype=np.uint8)
        Image.fromarray(small).resize((40 + i % 7, 90 + i % 11), Image.Resampling.BICUBIC).save(folder/f"{i:02}.jpg")
    return folder


def prepared(crops, size, mean, std, resample):
    "Images as the library's own transform makes them: Pillow's resize, scaled, normalised"
    out = []
    for path in sorted(crops.glob("*.jpg")):
        img = Image.open(path).convert("RGB").resize(size[::-1], resample)
        out.append(torch.from_numpy(np.array(img)).permute(2, 0, 1)/255)
    mean, std = (torch.tensor(x)[:, None, None] for x in (mean, std))
    return (torch.stack(out) - mean)/std


def of_timm(name, size):
    kw = dict(img_size=size) if name.startswith("vit") else {}
    net = randomised(timm.create_model(name, num_classes=0, **kw))
    cfg = net.pretrained_cfg
    return net, net, cfg["mean"], cfg["std"], cfg["interpolation"]


def of_torchvision(name, size):
    net = randomised(models.get_model(name))
    own = models.get_model_weights(name).DEFAULT.transforms()
    def feature(img):
        seen = []
        hook = [m for m in net.modules() if isinstance(m, torch.nn.Linear)][-1].register_forward_pre_hook(
            lambda module, given: seen.append(given[0]))
        net(img)
        hook.remove()
        return seen[0]
    return net, feature, own.mean, own.std, own.interpolation.value


def of_open_clip(name, size):
    net = open_clip.create_model(name)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in net.parameters(): p.add_(.01*torch.randn_like(p))
    cfg = open_clip.get_pretrained_cfg("ViT-B-32", "openai")
    return net.eval(), net.eval().encode_image, cfg["mean"], cfg["std"], "bicubic"


def of_osnet(name, size):
    net = randomised(OSNet(name))
    return net, net, (.485, .456, .406), (.229, .224, .225), "bilinear"


@pytest.mark.parametrize("model, make, size", [
    ("frozen:resnet50", of_timm, (256, 128)),
    ("frozen:convnext_atto", of_timm, (256, 128)),
    pytest.param("frozen:vit_small_patch14_dinov2", of_timm, (126, 70), marks=pytest.mark.whole),
    ("torchvision:mobilenet_v2", of_torchvision, (256, 128)),
    pytest.param("frozen:ViT-B-32", of_open_clip, (224, 224), marks=pytest.mark.whole),
    pytest.param("frozen:ViT-B-32-quickgelu", of_open_clip, (224, 224), marks=pytest.mark.whole),
    ("frozen:osnet_x0_25", of_osnet, (256, 128))])
@torch.no_grad()
def test_one_command_embeds_as_the_library_does(model, make, size, crops, tmp_path):
    net, forward, mean, std, interpolation = make(model.split(":")[1], size)
    state = net.state_dict()
    if "osnet" in model: torch.save(osnet_file(net, "osnet_x0_25"), tmp_path/"w.pth")
    else: torch.save(state, tmp_path/"w.pth")
    options = ["--size", f"{size[0]}x{size[1]}"] if size != (224, 224) else []
    assert main(["embed", str(crops), "--model", model, "--weights", str(tmp_path/"w.pth"), "--out", str(tmp_path/"f"),
                 *options]) == 0
    got = Embeddings.load(tmp_path/"f", need=())
    resample = dict(bicubic=Image.Resampling.BICUBIC, bilinear=Image.Resampling.BILINEAR)[interpolation]
    want = torch.nn.functional.normalize(forward(prepared(crops, size, mean, std, resample)), dim=1)
    assert got.path == sorted(p.name for p in crops.glob("*.jpg"))
    assert (torch.as_tensor(got.emb) - want).abs().max() < 1e-4 and len(got) == N
    assert got.meta["model_name"] == model
    assert main(["search", str(tmp_path/"f"), "--image", str(crops/"07.jpg"), "-k", "1", "--json"]) == 0


def test_a_converted_file_keeps_its_arguments(crops, tmp_path):
    "What `weights convert -p` was given is used by `embed` without being repeated, and can be given otherwise"
    from reid_lab.recipes.crops import from_file
    torch.save(timm.create_model("resnet50").state_dict(), tmp_path/"r50.pth")
    assert main(["weights", "convert", str(tmp_path/"r50.pth"), str(tmp_path/"bot.safetensors"), "--model", "bot_r50",
                 "-p", "size=(64, 32)", "-p", "n_ids=5", "-p", "pool=gem"]) == 0
    model = from_file("bot_r50", tmp_path/"bot.safetensors")
    assert model.size == (64, 32) and model.pool.kind == "gem" and model.n_ids == 1
    assert from_file("bot_r50", tmp_path/"bot.safetensors", arguments=dict(size=(96, 48))).size == (96, 48)
    few = tmp_path/"few"
    few.mkdir()
    for path in sorted(crops.glob("*.jpg"))[:3]: (few/path.name).write_bytes(path.read_bytes())
    assert main(["embed", str(few), "--model", "bot_r50", "--weights", str(tmp_path/"bot.safetensors"), "--out",
                 str(tmp_path/"f")]) == 0
    assert len(Embeddings.load(tmp_path/"f", need=())) == 3


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("w")/"convnext.pth"
    torch.save(timm.create_model("convnext_atto").state_dict(), path)
    return str(path)


def embed(crops, out, weights, *more):
    model = ["--model", "frozen:convnext_atto", "--weights", weights]
    return main(["embed", str(crops), *model, "--out", str(out), *more])


def test_questions_are_embedded_as_the_gallery_was(crops, tmp_path, weights, capsys):
    "The size is noted; the same image finds itself; sides of two sizes are refused"
    assert embed(crops, tmp_path/"f", weights, "--size", "64x32") == 0
    noted = Embeddings.load(tmp_path/"f", need=()).meta
    assert json.loads(noted["arguments"]) == dict(size=[64, 32])
    other = tmp_path/"elsewhere.jpg"
    other.write_bytes((crops/"07.jpg").read_bytes())
    capsys.readouterr()
    assert main(["search", str(tmp_path/"f"), "--image", str(other), "-k", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]["results"][0]
    assert found["path"] == "07.jpg" and found["score"] > .9999
    assert embed(crops, tmp_path/"g", weights, "--size", "96x48") == 0
    assert main(["match", str(tmp_path/"f"), str(tmp_path/"g")]) != 0
    assert "model built with" in capsys.readouterr().err
    assert main(["match", str(tmp_path/"f"), str(crops), "--model", "frozen:convnext_atto", "--weights", weights,
                 "--size", "64x32", "--json"]) == 0


@pytest.mark.parametrize("more, words", [
    (["--model", "frozen:convnext_atto"], "comes without weights; give a file with --weights FILE"),
    (["--model", "frozen:convnext_ato", "--weights", "W"], "Did you mean 'convnext_atto'"),
    (["--model", "torchvision:mobilenet_v22", "--weights", "W"], "Did you mean 'mobilenet_v2'"),
    (["--model", "hf:nowhere"], "no config.json"),
    (["--model", "frozen:convnext_atto", "--weights", "W", "--size", "256,128"], "such as 256x128"),
    (["--model", "frozen:convnext_atto", "--weights", "W", "--size", "64", "-p", "size=9"], "one argument"),
    (["--model", "frozen:convnext_atto", "--weights", "W", "-p", "depth=3"], "depth"),
    (["--model", "frozen:vit_small_patch16_dinov3", "--weights", "none", "--size", "252x126"], "(256, 128) does"),
    (["--model", "clip_tiny", "--size", "64x32"], "has those of its training"),
    (["--model", "bot:convnext_atto"], "comes without weights"),
    (["--model", "frozen:resnet50", "--weights", "W"], "expected weights of timm's resnet50")])
def test_what_is_refused(more, words, crops, tmp_path, weights, capsys):
    try: code = main(["embed", str(crops), "--out", str(tmp_path/"f"), *(weights if x == "W" else x for x in more)])
    except SystemExit as e: code = e.code
    said = capsys.readouterr().err
    assert code and words in said and "Traceback" not in said and not (tmp_path/"f").exists(), said
