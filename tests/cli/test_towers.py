"Towers of other programs through `reid_lab embed`: one command each, equal to a plain forward of their library."
import json

import numpy as np
import open_clip
import pytest
import timm
import torch
from helpers.fastreid import Plain, released
from helpers.onnx_files import WEIGHT, write_tower
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


def embedded(crops, out, *words):
    "Features of one command"
    assert main(["embed", str(crops), "--out", str(out), *map(str, words)]) == 0
    return Embeddings.load(out, need=())


def agrees(got, want):
    "Whether features are those of a plain forward pass, within 1e-4"
    want = torch.nn.functional.normalize(want.float(), dim=1)
    return (torch.as_tensor(got.emb) - want).abs().max() < 1e-4 and len(got) == len(want)


MEAN, STD = (.485, .456, .406), (.229, .224, .225)


@pytest.mark.parametrize("name", ["fastreid_bot_r50_ibn", "fastreid_sbs_r50", "fastreid_sbs_s50",
                                  pytest.param("fastreid_mgn_r50_ibn", marks=pytest.mark.whole)])
@torch.no_grad()
def test_fastreid_in_one_command(name, crops, tmp_path):
    "Images go through Pillow's bicubic resize and the program's normalisation in units of 0 to 255"
    _, family, backbone = name.split("_", 2)
    state = released(family, backbone, gem=family != "bot")
    torch.save({"model": state, "iteration": 7}, tmp_path/"w.pth")
    got = embedded(crops, tmp_path/"f", "--model", f"frozen:{name}", "--weights", tmp_path/"w.pth", "--size", "96x32")
    img = prepared(crops, (96, 32), (0,)*3, (1,)*3, Image.Resampling.BICUBIC)
    plain = Plain(state, "mean" if family == "bot" else "gem")
    assert agrees(got, torch.cat([plain(part) for part in img.split(20)]))


@torch.no_grad()
def test_a_checkpoint_of_lightning_in_one_command(crops, tmp_path):
    "The network below `model.` in a checkpoint with an optimizer and a loss beside it"
    net = randomised(models.mobilenet_v3_small())
    state = {f"model.{k}": v for k, v in net.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, "global_step": 9, "pytorch-lightning_version": "2.5",
                "optimizer_states": [{"state": {}, "param_groups": [{"lr": .1}]}], "hyper_parameters": {"lr": .1}},
               tmp_path/"last.ckpt")
    got = embedded(crops, tmp_path/"f", "--model", "torchvision:mobilenet_v3_small", "--weights", tmp_path/"last.ckpt",
                   "--size", "64x32")
    net.classifier[-1] = torch.nn.Identity()
    assert agrees(got, net(prepared(crops, (64, 32), MEAN, STD, Image.Resampling.BILINEAR)))


@torch.no_grad()
def test_an_onnx_file_in_one_command(crops, tmp_path, capsys):
    "The default preparation is told; another one is given with -p, noted, and used for questions"
    path = write_tower(tmp_path/"tower.onnx", (1, 3, 64, 32))
    net = torch.nn.Conv2d(3, 8, 3, 2, bias=False)
    net.weight.copy_(torch.tensor(WEIGHT))
    img = prepared(crops, (64, 32), MEAN, STD, Image.Resampling.BILINEAR)
    got = embedded(crops, tmp_path/"f", "--model", f"onnx:{path}")
    assert agrees(got, net(img).mean((2, 3)))
    assert "does not state how pixels are normalised, and those of ImageNet" in capsys.readouterr().err
    got = embedded(crops, tmp_path/"g", "--model", f"onnx:{path}", "-p", "mean=.5", "-p", "std=.5,.25,1")
    img = prepared(crops, (64, 32), (.5,)*3, (.5, .25, 1), Image.Resampling.BILINEAR)
    assert agrees(got, net(img).mean((2, 3)))
    assert got.meta["model_name"] == f"onnx:{path.resolve()}" and "std" in got.meta["arguments"]
    capsys.readouterr()
    assert main(["search", str(tmp_path/"g"), "--image", str(crops/"07.jpg"), "-k", "1", "--json"]) == 0
    assert "does not state" not in capsys.readouterr().err
    write_tower(tmp_path/"tower.onnx", (2, 3, 64, 32))
    assert main(["search", str(tmp_path/"g"), "--image", str(crops/"07.jpg")]) != 0
    assert "of other weights than the features" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["clip", "siglip2"])
@torch.no_grad()
def test_a_folder_of_hugging_face_in_one_command(kind, crops, tmp_path, capsys):
    "Images by the processor's numbers; captions by a tokenizer in another folder; both questions find what they should"
    from transformers import AutoTokenizer
    net, folder, words = small_pair(kind, tmp_path)
    got = embedded(crops, tmp_path/"f", "--model", f"hf:{folder}", "--size", "64x32")
    img = prepared(crops, (64, 32), (.48, .46, .41), (.27, .26, .28), Image.Resampling.BICUBIC)
    if kind == "clip": want = net.get_image_features(pixel_values=img, interpolate_pos_encoding=True)
    else:
        patches = img.unfold(2, 16, 16).unfold(3, 16, 16).permute(0, 2, 3, 4, 5, 1).reshape(N, 8, -1)
        want = net.get_image_features(pixel_values=patches, spatial_shapes=torch.tensor([[4, 2]]*N),
                                      pixel_attention_mask=torch.ones(N, 8, dtype=torch.long))
    assert agrees(got, want.pooler_output)
    table = tmp_path/"said.csv"
    table.write_text("path,caption\n" + "".join(f"{i:02}.jpg,{SAID[i]}\n" for i in range(2)))
    model = ["--model", f"hf:{folder}", "--tokenizer", words]
    said = embedded(table, tmp_path/"said", "--captions", "--root", crops, *model)
    given = AutoTokenizer.from_pretrained(words)(SAID, padding="max_length", max_length=8, return_tensors="pt")
    kw = dict(attention_mask=given["attention_mask"]) if kind == "clip" else {}
    assert agrees(said, net.get_text_features(input_ids=given["input_ids"], **kw).pooler_output)
    assert said.meta["tokenizer"] == str(words.resolve()) and said.meta["tokenizer_sum"] not in ("", "0")
    capsys.readouterr()
    assert main(["search", str(tmp_path/"f"), SAID[0], "--size", "64x32", "-k", "1", *map(str, model)]) == 0
    assert main(["search", str(tmp_path/"f"), SAID[0], "--size", "64x32", "--model", f"hf:{folder}"]) != 0
    assert "reads no captions" in capsys.readouterr().err
    assert main(["search", str(tmp_path/"f"), SAID[0], *map(str, model)]) != 0
    assert "build it alike" in capsys.readouterr().err


SAID = ["a woman in red", "a man with a bag"]


def small_pair(kind, tmp_path):
    "A small network of transformers in a folder, and the folder of a tokenizer"
    from tokenizers import Tokenizer, models as kinds, pre_tokenizers
    from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast, Siglip2Config, Siglip2Model
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    text = sizes | dict(vocab_size=20, max_position_embeddings=8, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(0)
    if kind == "clip":
        vision = sizes | dict(image_size=32, patch_size=16)
        net = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
    else:
        vision = sizes | dict(num_patches=16, patch_size=16)
        net = Siglip2Model(Siglip2Config(text_config=text | dict(projection_size=32), vision_config=vision))
    for p in net.parameters(): p.add_(.05*torch.randn_like(p))
    folder, words = tmp_path/"pair", tmp_path/"words"
    net.eval().save_pretrained(folder)
    settings = dict(image_mean=[.48, .46, .41], image_std=[.27, .26, .28], resample=3, do_normalize=True)
    (folder/"preprocessor_config.json").write_text(json.dumps(settings))
    known = "<pad> <bos> <eos> <unk> a woman in red man with bag".split()
    rules = Tokenizer(kinds.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<unk>"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=rules, pad_token="<pad>", unk_token="<unk>",
                            eos_token="<eos>").save_pretrained(words)
    return net, folder, words


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
    (["--model", "frozen:convnext_atto", "--weights", "W", "-p", "tower=resnet10t"], "names its tower"),
    (["--model", "frozen:convnext_atto", "--weights", "W", "-p", "weights=w.pth"], "has a place of its own"),
    (["--model", "frozen:convnext_atto", "--weights", "W", "--tokenizer", "clip"], "reads no captions"),
    (["--model", "onnx:nowhere.onnx"], "there is no such file"),
    (["--model", "onnx:nowhere.onnx", "--weights", "W"], "has its own weights"),
    (["--model", "frozen:vit_small_patch16_dinov3", "--weights", "none", "--size", "252x126"], "(256, 128) does"),
    (["--model", "clip_tiny", "--size", "64x32"], "has those of its training"),
    (["--model", "bot:convnext_atto"], "comes without weights"),
    (["--model", "frozen:resnet50", "--weights", "W"], "expected weights of timm's resnet50")])
def test_what_is_refused(more, words, crops, tmp_path, weights, capsys):
    try: code = main(["embed", str(crops), "--out", str(tmp_path/"f"), *(weights if x == "W" else x for x in more)])
    except SystemExit as e: code = e.code
    said = capsys.readouterr().err
    assert code and words in said and "Traceback" not in said and not (tmp_path/"f").exists(), said


def test_arguments_and_tokenizers_reach_every_command_that_opens_a_model(crops, tmp_path, capsys):
    "An ONNX file of any size, as a side of `match` and an entry of `compare`; a run refuses a second tower"
    from reid_lab.cli.commands import parser
    from reid_lab.cli.compare import entries_of
    path = write_tower(tmp_path/"tower.onnx", ("n", 3, "h", "w"))
    model = ["--model", f"onnx:{path}", "--size", "64x32", "-p", "pixels=half"]
    embedded(crops, tmp_path/"f", *model)
    assert main(["match", str(tmp_path/"f"), str(crops), *model, "--json"]) == 0
    assert main(["match", str(tmp_path/"f"), str(crops), *model[:4], "-p", "pixels=clip"]) != 0
    capsys.readouterr()
    given = parser().parse_args(["compare", f"ours=onnx:{path}", "theirs=bot_tiny", "-p", "ours:pixels=half", "-p",
                                 "size=64x32"])
    ours, theirs = entries_of(given)
    assert dict(ours.arguments) == dict(pixels="half", size=(64, 32)) and theirs.arguments == ()
    run = ["run", "dart3", "-p", "model=frozen:resnet50", "-p", "tower=resnet18", "--out", str(tmp_path/"run")]
    assert main(run) == 2
    assert "'tower' is not known" in capsys.readouterr().err and not (tmp_path/"run").exists()
