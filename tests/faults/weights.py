"""Weights of other programs: wrong files for every tower, other architectures, missing parts, the commands."""
import io
import json
import pickle
import zipfile
from collections import OrderedDict

import torch
from fault import bad, cut, flip, refused
from safetensors.torch import save_file
from torch import nn

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.models.backbones import TextEncoder, load_bert
from reid_lab.models.clip_reid import start_clip_reid
from reid_lab.models.clip_towers import clip_model, load_clip
from reid_lab.models.transreid import overlapping_vit, start_transreid
from reid_lab.models.weights.formats import open_weights
from reid_lab.models.weights.start import begin, load_network
from reid_lab.models.zoo import check_weights, create_model
from reid_lab.recipes.crops import from_file

W = torch.ones(2)
TOWERS = dict(  # tower -> (builds it, what its message says was expected)
    bot=(lambda w: create_model("bot_r50", n_ids=4, weights=w), "a ResNet-50 of torchvision or timm"),
    transreid=(lambda w: create_model("transreid_b16", n_ids=4, weights=w), "a vision transformer of timm"),
    clip_reid=(lambda w: create_model("clip_reid_b16", n_ids=4, weights=w), "CLIP of OpenAI"),
    camel=(lambda w: create_model("camel_base", tower="resnet10t", weights=w), "weights of timm's resnet10t"),
    bert=(lambda w: create_model("camel_base", tower="resnet10t", text_weights=w), "BERT of Hugging Face"),
    frozen=(lambda w: create_model("frozen", tower="resnet10t", weights=w), "weights of timm's resnet10t"))
IRRA = {"base_model.visual.class_embedding": W, "cross_attn.in_proj_weight": W}
VIT = {"cls_token": W, "pos_embed": W, "patch_embed.proj.weight": W, "blocks.0.attn.qkv.weight": W}


class Net(nn.Linear):
    "A class that only this file knows"


def _file(tmp, content, name="w.pth"):
    torch.save(content, tmp/name)
    return tmp/name


def _cut(tmp):
    path = _file(tmp, {"w": torch.rand(2000)})
    cut(path)
    return path


def _empty(tmp):
    (tmp/"w.pth").write_bytes(b"")
    return tmp/"w.pth"


def _folder(tmp, config=None, weights=None, name="model.safetensors"):
    "A folder of Hugging Face's form, or a part of it"
    if config is not None: (tmp/"config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if weights is not None: save_file(weights, tmp/name)
    return tmp


WRONG = dict(  # what is given -> (makes it, words of the message)
    empty=(_empty, "is empty (0 bytes)"), truncated=(_cut, "is damaged"),
    pickled=(lambda t: _file(t, Net(2, 2)), "holds Python objects besides tensors"),
    wrapped=(lambda t: _file(t, {"student": {"w": W}, "teacher": {"w": W}}), "keys ['student', 'teacher']"),
    other=(lambda t: _file(t, {"model": IRRA}), "holds a released IRRA"),
    bare_folder=(lambda t: _folder(t, weights={"w": W}), "lacks config.json beside model.safetensors"))


def _wrong(build, make): return lambda tmp: build(make(tmp))


def _tiny_clip(**kw): return clip_model((64, 32), 16, 16, dict(width=32, layers=1, head_width=16, patch_size=16),
                                        dict(width=16, layers=1, heads=2), **kw)


def _transreid(state, **kw):
    return start_transreid(overlapping_vit((64, 32), width=32, depth=2, heads=2), 4, (64, 32), state, **kw)


def _released(**more):
    "The names of a released TransReID without jigsaw branch"
    model = start_transreid(overlapping_vit((64, 32), stride=16, width=32, depth=2, heads=2), 4, (64, 32), parts=0)
    names = (("cls", "base.cls_token"), ("pos", "base.pos_embed"), ("patches.", "base.patch_embed."),
             ("blocks.", "base.blocks."),
             ("global_branch.0.", "base.blocks.1."), ("global_branch.1.", "base.norm."), ("necks.0.", "bottleneck."),
             ("heads.0.", "classifier."))
    return {next(k.replace(a, b, 1) for a, b in names if k.startswith(a)): v for k, v in model.state_dict().items()
            if not k.startswith("pixels.")} | more


def _vit(): return overlapping_vit((64, 64), stride=16, width=32, depth=2, heads=2).state_dict()


def _bomb(tmp):
    "A TorchScript archive with a tensor that claims a terabyte of one stored number"
    class Storage: pass

    class Big:
        def __reduce__(self): return torch._utils._rebuild_tensor_v2, (Storage(), 0, (10**12,), (0,), False,
                                                                       OrderedDict())

    class Pickler(pickle.Pickler):
        def persistent_id(self, x):
            return ("storage", torch.FloatStorage, "0", "cpu", 1) if isinstance(x, Storage) else None

    data = io.BytesIO()
    Pickler(data, 2).dump({"w": Big()})
    with zipfile.ZipFile(tmp/"clip.pt", "w") as z:
        z.writestr("a/data.pkl", data.getvalue())
        z.writestr("a/constants.pkl", b"")
        z.writestr("a/data/0", bytes(4))
    return open_weights(tmp/"clip.pt")


def _evil(tmp):
    "A TorchScript archive whose pickle calls a function"
    with zipfile.ZipFile(tmp/"clip.pt", "w") as z:
        z.writestr("a/data.pkl", b"cposix\nsystem\n(S'true'\ntR.")
        z.writestr("a/constants.pkl", b"")
    return open_weights(tmp/"clip.pt")


def _openai(tmp): return load_clip(_tiny_clip(act="gelu"), {**_tiny_clip().state_dict(), "input_resolution": W[0]},
                                   act="gelu")


def _gelu(tmp):
    folder = _folder(tmp, weights=_tiny_clip().state_dict(), name="open_clip_model.safetensors")
    (tmp/"open_clip_config.json").write_text(json.dumps(dict(model_cfg=dict(embed_dim=16))))
    return load_clip(_tiny_clip(), folder)


def _bert(tmp, layers=2, **config):
    "A BERT of one file with its config"
    from transformers import BertConfig, BertModel
    sizes = dict(hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=30, max_position_embeddings=12)
    BertModel(BertConfig(num_hidden_layers=layers, **sizes | config)).save_pretrained(tmp)
    return tmp


def _text(tmp, layers=2, vocab=30, **config):
    return load_bert(TextEncoder(vocab, 16, 2, layers, 32, 12), _bert(tmp, **config))


def _clip_of_other_pixels(tmp):
    from reid_lab.models.frozen import clip_pixels
    return clip_pixels("ViT-B-16-SigLIP", begin(_file(tmp, {"visual.trunk.x": W}), ("clip",), "SigLIP"))


R50 = {k: v for k, v in __import__("timm").create_model("resnet50", num_classes=0).state_dict().items()}
KINDS = dict(bool=lambda t: _tiny(t, lambda v: v > 0), int8=lambda t: _tiny(t, lambda v: v.to(torch.int8)),
             complex=lambda t: _tiny(t, lambda v: v*1j))
DOORS = {  # where weights are given
    "create_model": lambda f: create_model("bot_tiny", n_ids=1, weights=f),
    "load_weights": lambda f: load_weights(create_model("bot_tiny", n_ids=1), f),
    "inspect": lambda f: refused("weights", "inspect", f),
    "convert": lambda f: refused("weights", "convert", f, f.with_name("x.safetensors"), "--model", "bot_tiny"),
    "from_file": lambda f: from_file("bot_tiny", f)}


def _tiny(tmp, change=None):
    "A file of bot_tiny whose float tensors are changed"
    state = create_model("bot_tiny", n_ids=1).state_dict()
    save_file({k: change(v) if v.is_floating_point() else v for k, v in state.items()}, tmp/"w.safetensors")
    return tmp/"w.safetensors"


def _flipped(tmp):
    save_weights(create_model("bot_tiny", n_ids=1), tmp/"w.safetensors")
    flip(tmp/"w.safetensors")
    return tmp/"w.safetensors"


def _flipped_torch(tmp):
    path = _file(tmp, {"w": torch.arange(2000.)})
    data = bytearray(path.read_bytes())
    data[data.find(torch.arange(2000.).numpy().tobytes()) + 4001] ^= 32
    path.write_bytes(data)
    return open_weights(path)


def _two(*names): return {f"{n}.{k}": v for n in names for k, v in R50.items()}


def _pair_without_sizes(tmp):
    (tmp/"open_clip_config.json").write_text("{}")
    save_file({"a": W}, tmp/"open_clip_model.safetensors")
    return create_model("frozen_pair", pair=f"local-dir:{tmp}")


FAULTS = [
    *[bad(f"weights of {tower}: {what}", f"{what.replace('_', ' ')} weights for the tower of {tower}",
          _wrong(build, make),
          words, wanted) for tower, (build, wanted) in TOWERS.items() for what, (make, words) in WRONG.items()],
    # another architecture
    bad("weights: BERT for BoT", "a text encoder for an image tower",
        lambda t: TOWERS["bot"][0](_bert(t)), "holds BERT of Hugging Face", "it fits camel_base"),
    bad("weights: ViT for BoT", "a transformer for a ResNet", lambda t: TOWERS["bot"][0](_file(t, VIT)),
        "holds a vision transformer of timm", "expected a ResNet-50", "it fits transreid_b16"),
    bad("weights: nothing that is known", "names of no layout", lambda t: TOWERS["bot"][0](_file(t, {"enc.0.w": W})),
        "0 of 265 tensors match", "expected a ResNet-50"),
    bad("weights: two networks in a file", "student and teacher side by side in one state dict",
        lambda t: load_network(nn.Linear(2, 2), {f"{p}.{k}": v for p in "st" for k,
                                                 v in nn.Linear(2, 2).state_dict().items()}),
        "2 networks of this architecture are there", "choose one with prefix='s.'"),
    bad("weights: a part of query, key, value", "Hugging Face's ViT without its keys", lambda t: begin({
        "embeddings.cls_token": W, "encoder.layer.0.attention.attention.query.weight": W,
        "encoder.layer.0.attention.attention.value.weight": W}, ("vit",), "a ViT"), "the parts [0, 2] are there",
        "incomplete"),
    bad("weights: True", "the switch of earlier versions", lambda t: TOWERS["bot"][0](True), "weights=True",
        "'imagenet'"),
    bad("weights: a misspelt name", "weights='imagnet'", lambda t: TOWERS["bot"][0]("imagnet"),
        "weights='imagnet' is not a file or folder", "'imagenet' (downloads once)", error=FileNotFoundError),
    bad("weights: a misspelt tag", "weights='openia'", lambda t: TOWERS["clip_reid"][0]("openia"),
        "Did you mean 'openai'"),
    # folders
    bad("weights: a config alone", "no weights beside it", lambda t: TOWERS["bert"][0](_folder(t, {})),
        "lacks model.safetensors beside config.json"),
    bad("weights: an empty folder", "nothing in it", lambda t: TOWERS["bert"][0](t), "holds no config.json"),
    bad("weights: a config that is no JSON", "cut short", lambda t: TOWERS["bert"][0](_folder(t, '{"a": ', {"w": W})),
        "config.json", "is damaged"),
    bad("weights: a config that is a list", "JSON of another kind",
        lambda t: TOWERS["bert"][0](_folder(t, [1], {"w": W})),
        "config.json", "a config (a JSON object)"),
    # archives
    bad("weights: a program that calls", "a TorchScript archive whose pickle runs a command", _evil, "posix.system",
        "unpickling can run code"),
    bad("weights: a tensor larger than its storage", "a TorchScript archive of a terabyte", _bomb,
        "clip.pt' is damaged"),
    bad("weights: arrays of NumPy", "features instead of weights",
        lambda t: (__import__("numpy").savez(t/"w.npz", a=[1]),
        TOWERS["bot"][0](t/"w.npz")), "is a NumPy .npz archive", "give the weights of the model"),
    # whole checkpoints
    bad("weights: side information without cameras", "a checkpoint of six cameras", lambda t: _transreid(
        _released(**{"base.sie_embed": torch.zeros(6, 1, 32)}), parts=0),
        "side information for 6 cameras", "pass cams=6"),
    bad("weights: side information of other cameras", "four wanted, six there", lambda t: _transreid(
        _released(**{"base.sie_embed": torch.zeros(6, 1, 32)}), parts=0, cams=4),
        "the model for 4", "in the order of its training"),
    bad("weights: no jigsaw branch", "a plain checkpoint for a model with parts", lambda t: _transreid(_released()),
        "without jigsaw branch", "pass parts=0"),
    bad("weights: a key that no rule explains", "an unknown branch", lambda t: _transreid(_released(gate=W), parts=0),
        "1 left over (first ['gate'])"),
    bad("weights: positions of no known grid", "13 positions", lambda t: _transreid(
        _released(**{"base.pos_embed": torch.zeros(1, 14, 32)}), parts=0), "pos misfits", "give rows and columns"),
    bad("weights: CLIP-ReID on a ResNet", "the released convolutional variant",
        lambda t: TOWERS["clip_reid"][0](_file(t, {
        "image_encoder.attnpool.c_proj.weight": W, "prompt_learner.cls_ctx": W})),
        "CLIP-ReID (ResNet-50)", "no model of this zoo"),
    bad("weights: an unknown stem", "stem='tanh'", lambda t: create_model("bot_r50", n_ids=4, stem="tanh"),
        "stem='tanh'", "'linear'"),
    bad("weights: deeper CLIP", "two layers for one", lambda t: start_clip_reid(_tiny_clip(), 4, (64, 32),
                                                                                clip_model((64, 64), 16, 16,
        dict(width=32, layers=2, head_width=16, patch_size=16), dict(width=16, layers=1,
                                                                     heads=2)).state_dict()), "left over", "CLIP"),
    # what no tensor says
    bad("weights: another activation by origin", "OpenAI's CLIP for GELU", _openai, "trained with quick_gelu",
        "act='quick_gelu'"),
    bad("weights: another activation by config", "GELU in open_clip_config.json", _gelu, "trained with gelu",
        "pass act='gelu'"),
    bad("weights: BERT of other heads", "four heads for two", lambda t: _text(t, num_attention_heads=4),
        "num_attention_heads=4",
        "the network here 2"),
    bad("weights: a ViT of other heads", "four heads for two",
        lambda t: _transreid(_folder(t, dict(num_attention_heads=4), _vit())),
        "num_attention_heads=4 in its config", "the network here 2"),
    bad("weights: BERT of other activation", "ReLU", lambda t: _text(t, hidden_act="relu"), "hidden_act='relu'"),
    bad("weights: BERT of another vocabulary", "30 words for 40", lambda t: _text(t, vocab=40),
        "word.weight (30, 16) instead of (40, 16)"),
    bad("weights: BERT that is too shallow", "two layers for three", lambda t: _text(t, layers=3), "missing",
        "text.layers.2."),
    bad("weights: pixels that are not stated", "a bare file of SigLIP", _clip_of_other_pixels,
        "does not state its preprocessing",
        "open_clip_config.json"),
    bad("weights: a control without weights", "frozen, weights=None",
        lambda t: create_model("frozen", tower="resnet10t", weights=None),
        "needs the tower's weights"),
    bad("weights: an unknown tower", "a misspelt name", lambda t: create_model("frozen", tower="resnet10",
                                                                               weights="none"),
        "tower='resnet10'", "Did you mean"),
    bad("weights: a control is trained", "a loss is asked of it",
        lambda t: create_model("frozen", tower="resnet10t", weights="none")({}),
        "is not trained", error=RuntimeError),
    # commands
    bad("weights inspect: a page", "HTML", lambda t: ((t/"w.pth").write_text("<html>"),
                                                      refused("weights", "inspect", t/"w.pth")),
        "reid_lab weights", "is an HTML page"),
    bad("weights convert: no model", "the option is missing",
        lambda t: refused("weights", "convert", _file(t, VIT), t/"x.safetensors"),
        "needs a file to write and --model"),
    bad("weights convert: an unknown model", "--model bot_r5",
        lambda t: refused("weights", "convert", _file(t, VIT), t/"x.safetensors",
        "--model", "bot_r5"), "--model bot_r5", "bot_r50"),
    bad("weights convert: another ending", "OUT is .pth",
        lambda t: refused("weights", "convert", _file(t, VIT), t/"x.pth", "--model",
        "bot_r50"), "must end in .safetensors"),
    bad("weights convert: another architecture", "a ViT for BoT", lambda t: refused("weights", "convert", _file(t, VIT),
        t/"x.safetensors", "--model", "bot_r50"), "holds a vision transformer of timm", "it fits transreid_b16"),
    bad("weights convert: a model that takes none", "--model frozen", lambda t: refused("weights", "convert",
        _file(t, {"w": W}), t/"x.safetensors", "--model", "frozen"), "--model frozen", "bot_r50"),
    bad("weights convert: an unknown argument", "-p siez=3", lambda t: refused("weights", "convert",
        _bert(t), t/"x.safetensors", "--model", "bot_r50", "-p", "siez"), "'siez' is not name=value"),
    # kinds, damage, several networks
    *[bad(f"weights: {kind} at {door}", f"{kind} tensors where a network has floats", lambda t, m=make, d=use: d(m(t)),
          "where a network has float numbers", "float32")
      for kind, make in KINDS.items() for door, use in DOORS.items()],
    *[bad(f"weights: one byte at {door}", "a byte of a file of this library is another",
          lambda t, d=use: d(_flipped(t)), "holds other weights than were written", "copy or train it again")
      for door, use in DOORS.items()],
    *[bad(f"weights: all zero at {door}", "every matrix is zero", lambda t, d=use: d(_tiny(t, lambda v: v*0)),
          "nothing but zeros", "take another one") for door, use in DOORS.items()],
    bad("weights: one byte of a torch file", "the checksum in the archive differs", _flipped_torch,
        "w.pth' is damaged"),
    bad("weights: float32 as a whole number table", "int64 for a projection under another name",
        lambda t: load_network(nn.ParameterDict(dict(proj=torch.ones(2, 2))), {"proj": torch.ones(2, 2).long()}),
        "int64 where a network has float numbers"),
    bad("weights: teacher and student", "neither is taken",
        lambda t: TOWERS["bot"][0](_file(t, _two("student", "teacher"))),
        "holds 2 networks: student.", "--prefix student."),
    bad("weights: two encoders", "encoder_q and encoder_k",
        lambda t: TOWERS["bot"][0](_file(t, _two("encoder_q", "encoder_k"))),
        "encoder_k.", "prefix='encoder_q.'"),
    bad("weights: nested teacher and student", "two dicts", lambda t: TOWERS["bot"][0](
        _file(t, dict(student=dict(w=W), teacher=dict(w=W)))), "choose one of ['student.', 'teacher.']"),
    bad("weights: a prefix that is not there", "student. for encoder_q.",
        lambda t: TOWERS["bot"][0](f"{_file(t, _two('encoder_q', 'encoder_k'))}#student."),
        "no tensor under prefix='student.'", "'encoder_q.'"),
    bad("weights: a neck that would stay unused", "a tower with a neck of another name", lambda t: TOWERS["bot"][0](
        _file(t, {f"backbone.{k}": v for k, v in R50.items()} | {"bnneck.weight": W})), "would stay unused",
        "--prefix backbone."),
    bad("weights: BatchNorm beside the tower", "statistics of an unknown head", lambda t: TOWERS["bot"][0](
        _file(t, {f"net.{k}": v for k, v in R50.items()} | {"embed.1.running_mean": W})), "embed.1.running_mean"),
    bad("weights: NumPy array in a pickle", "arrays are not admitted", lambda t: open_weights(
        _file(t, dict(model=dict(w=W), best=__import__("numpy").ones(2)))), "numpy", "not loaded"),
    bad("weights convert: no identities", "-p n_ids=0", lambda t: refused("weights", "convert", _file(t, R50),
        t/"x.safetensors", "--model", "bot_r50", "-p", "n_ids=0"), "n_ids=0 is not a count"),
    bad("models: half an identity", "n_ids=2.5", lambda t: create_model("bot_tiny", n_ids=2.5), "n_ids=2.5"),
    bad("models: no height", "size=(0, 32)", lambda t: create_model("bot_tiny", n_ids=2, size=(0, 32)), "size=(0, 32)"),
    bad("models: no words", "vocab_size=0", lambda t: create_model("dual_tiny", vocab_size=0), "vocab_size=0"),
    bad("embed: a prefix without weights", "--prefix alone", lambda t: refused("embed", t, "--model", "bot_tiny",
        "--prefix", "a.", "--out", t/"x.npz"), "--weights FILE"),
    bad("check_weights: a misspelt name", "before any work", lambda t: check_weights("bot_r50", "nope"),
        "weights='nope' is not a file or folder", error=FileNotFoundError),
    bad("check_weights: another architecture", "a ViT for BoT", lambda t: check_weights("bot_r50", _file(t, VIT)),
        "holds a vision transformer of timm"),
    bad("check_weights: no such argument", "text weights for an image model",
        lambda t: check_weights("bot_tiny", text_weights="bert"), "bot_tiny takes no text_weights"),
    # names of a hub, and folders for other programs
    bad("hub: no owner", "hf://bert", lambda t: open_weights("hf://bert"), "no repository of models", "OWNER/NAME"),
    bad("hub: a way out of the cache", "a name with ..", lambda t: open_weights("hf://a/b/../../../etc/passwd"),
        "no repository of models"),
    bad("hub: no network", "a file that is not in the cache", lambda t: create_model("bot_r50", n_ids=2,
        weights="hf://lab/absent"), "is not in the cache", "HF_HUB_OFFLINE is set", "give its path",
        error=FileNotFoundError),
    bad("hub: a data set", "hf://datasets/...", lambda t: refused("weights", "inspect", "hf://datasets/a/b"),
        "no repository of models"),
    bad("hub: a file as a model", "--model hf://a/b/w.pt", lambda t: refused("embed", t, "--model", "hf://a/b/w.pt",
        "--out", t/"x"), "names a file", "--weights"),
    bad("local-dir: no folder", "a path that is none", lambda t: refused("embed", t, "--model", f"local-dir:{t}/none",
        "--out", t/"x"), "is no folder"),
    bad("local-dir: no network of timm or open_clip", "an empty folder", lambda t: refused("embed", t, "--model",
        f"local-dir:{t}", "--out", t/"x"), "holds no network of timm", "--weights FILE"),
    bad("local-dir: a network of transformers", "its config.json", lambda t: create_model("frozen",
        tower=f"local-dir:{_folder(t, dict(model_type='vit'), {'a': W})}"), "of transformers; give hf:"),
    bad("local-dir: an architecture that timm does not have", "a misspelt one", lambda t: create_model("frozen",
        tower=f"local-dir:{_folder(t, dict(architecture='resnet10x'), {'a': W})}"), "resnet10x"),
    bad("local-dir: a pair without sizes", "open_clip_config.json without model_cfg", _pair_without_sizes,
        "has no model_cfg"),
    bad("export: another program's network", "bot_tiny for timm", lambda t: refused("weights", "export", "bot_tiny",
        "--out", t/"x", "--format", "timm"), "no network of timm", "no other format takes it either"),
    bad("export: no such format", "--format onxn", lambda t: refused("weights", "export", "clip_tiny", "--out", t/"x",
        "--format", "onxn"), "--format onxn is not known", "open_clip"),
    bad("export: a folder that holds something", "--out twice", lambda t: refused("weights", "export", "clip_tiny",
        "--out", _folder(t, {}), "--format", "open_clip"), "exists; give a new folder"),
    bad("export: no folder", "without --out", lambda t: refused("weights", "export", "clip_tiny"), "--out FOLDER"),
    bad("export: a folder as for convert", "OUT without --out", lambda t: refused("weights", "export", "clip_tiny",
        t/"x"), "is given as --out"),
]
