"""Models that are not trained: names, towers, tokenizers, weights, and what cannot be asked of them."""
import timm
import torch
from fault import bad, cut
from helpers.onnx_files import write_tower

from reid_lab.models.frozen import FrozenPair, clip_tokenizer, frozen, frozen_pair, named_tower
from reid_lab.models.weights.start import begin
from reid_lab.models.zoo import create_model, list_models
from reid_lab.recipes.dart3 import source_settings
from reid_lab.recipes.reid import reid_settings, train_reid

W = torch.ones(2)
SMALL = dict(embed_dim=16, vision_cfg=dict(image_size=64, layers=1, width=32, head_width=16, patch_size=16),
             text_cfg=dict(context_length=77, vocab_size=49408, width=16, heads=2, layers=1))
SIGLIP = dict(SMALL, text_cfg=dict(SMALL["text_cfg"], hf_tokenizer_name="timm/ViT-B-16-SigLIP2"))


def _tokenizer(tmp, name, text):
    for file in ("tokenizer.json", "tokenizer_config.json"): (tmp/file).write_text("{}")
    (tmp/name).write_text(text)
    return clip_tokenizer(SIGLIP, tmp)


def _fastreid(**more):
    "The names of a ResNet-50 of FastReID"
    with torch.device("meta"): names = timm.create_model("resnet50", num_classes=0).state_dict()
    return {f"backbone.{k}": W for k in names} | {"heads.bottleneck.0.running_mean": W, "heads.weight": W} | more


def _onnx(tmp, write, size=None, **more):
    "A tower from a file that `write` writes"
    write(tmp/"t.onnx")
    return frozen(f"onnx:{tmp/'t.onnx'}", size=size, **more)


def _write_words(path):
    import onnx
    from onnx import TensorProto, helper
    info = helper.make_tensor_value_info
    graph = helper.make_graph([helper.make_node("Identity", ["ids"], ["out"])], "g",
                              [info("ids", TensorProto.INT64, ["n", 77])], [info("out", TensorProto.INT64, ["n", 77])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


FAULTS = [
    # names
    bad("control: a tower is missing", "model='frozen'", lambda t: named_tower("frozen"),
        "model='frozen'", "'frozen:vit_base_patch16_224'"),
    bad("control: a tower for a model that is trained", "bot_tiny:resnet50", lambda t: named_tower("bot_tiny:resnet50"),
        "model='bot_tiny:resnet50'", "other models without ':'"),
    bad("control: a misspelt tower", "tower='vit_tiny_patch16_22'", lambda t: frozen("vit_tiny_patch16_22", "none"),
        "tower='vit_tiny_patch16_22' is not known", "Did you mean 'vit_tiny_patch16_224'?", "timm.list_models()"),
    bad("control: a misspelt pair", "pair='ViT-B16'", lambda t: frozen_pair("ViT-B16", "none"),
        "Did you mean 'ViT-B-16'?", "open_clip.list_models()"),
    bad("control: a timm tower has no text tower", "pair='resnet10t'", lambda t: frozen_pair("resnet10t", "none"),
        "pair='resnet10t' is not known", "open_clip.list_models()"),
    bad("control: half a configuration", "vision_cfg alone", lambda t: frozen_pair(dict(vision_cfg={}), "none"),
        "without ['embed_dim', 'text_cfg']", "model_cfg of open_clip_config.json"),
    bad("control: a pair for images", "frozen_pair in an image experiment",
        lambda t: source_settings("smoke", "frozen_pair:ViT-B-16", "w.pth"), "model='frozen_pair'", "'frozen'"),
    bad("control: kind of the zoo", "kind='controls'", lambda t: list_models("controls"), "Did you mean 'control'?"),
    # weights
    bad("control: a source without weights", "weights=''", lambda t: source_settings("quick", "frozen:ViT-B-16"),
        "is not trained", "must name its file or folder"),
    bad("control: a pair without weights", "weights=None", lambda t: frozen_pair(SMALL, None),
        "needs the tower's weights", "'none'"),
    bad("control: arguments of a source", "no model_kw", lambda t: train_reid(None, "smoke", model="frozen"),
        "is not trained and needs tower", "lacks ['tower']"),
    bad("control: a pair is no source", "model='frozen_pair'", lambda t: reid_settings("smoke", model="frozen_pair"),
        "model='frozen_pair'", "bot_tiny"),
    bad("control: published weights of a pair", "open_clip downloads nothing here",
        lambda t: frozen_pair(SMALL, "published"), "weights='published' is not a file or folder",
        error=FileNotFoundError),
    bad("control: weights of another pair", "another width", lambda t: frozen_pair(
        dict(SMALL, embed_dim=8), frozen_pair(SMALL, "none").tower.state_dict()), "instead of",
        "of this configuration"),
    bad("control: a number as weights", "weights=3", lambda t: frozen("resnet10t", 3), "weights is int",
        "a state dict", error=TypeError),
    bad("control: a list as weights", "several files", lambda t: frozen("resnet10t", ["a.pth", "b.pth"]),
        "weights is list", error=TypeError),
    bad("control: no name as weights", "weights=''", lambda t: frozen("resnet10t", ""),
        "weights='' is not a file or folder", error=FileNotFoundError),
    bad("control: a home folder without the file", "weights='~/...'", lambda t: begin("~/no-such.pth", (), "a net"),
        "'~/no-such.pth' is not a file or folder", error=FileNotFoundError),
    # tokenizers
    bad("control: the tokenizer is missing", "SigLIP's words are not here", lambda t: frozen_pair(SIGLIP, "none"),
        "'timm/ViT-B-16-SigLIP2' of Hugging Face, which is not on this machine", "tokenizer.json"),
    bad("control: half a tokenizer", "no tokenizer_config.json beside it",
        lambda t: ((t/"tokenizer.json").write_text("{}"), clip_tokenizer(SIGLIP, t)), "is not on this machine",
        "tokenizer_config.json beside the weights"),
    bad("control: a damaged tokenizer", "cut short",
        lambda t: _tokenizer(t, "tokenizer.json", '{"a'), "cannot be read"),
    bad("control: words of another model", "more words than the text tower has", lambda t: FrozenPair(
        frozen_pair(dict(SMALL), "none").tower, type("Words", (), dict(vocab_size=50000)), (64, 64), [.5]*3, [.5]*3),
        "has 50000 words and the text tower 49408"),
    # what is asked of them
    bad("control: a pair is trained", "a loss is asked of it", lambda t: frozen_pair(SMALL, "none")({}),
        "is not trained", error=RuntimeError),
    bad("control: CAMeL trains a pair", "model='frozen_pair'",
        lambda t: __import__("reid_lab.recipes.camel", fromlist="Config").Config(model="frozen_pair"),
        "model='frozen_pair'", "named with its tower"),
    # FastReID, OSNet
    bad("FastReID: squeeze-and-excitation", "such a block beside a ResNet-50",
        lambda t: frozen("fastreid_r50", _fastreid(**{"backbone.layer2.1.se.fc.0.weight": W})),
        "FastReID of a form that is not known here", "expected a released network of FastReID"),
    bad("FastReID: IBN", "the weights of another backbone",
        lambda t: frozen("fastreid_r50", _fastreid(**{"backbone.layer1.0.bn1.IN.weight": W})),
        "is of 'fastreid_bot_r50_ibn', not of tower='fastreid_r50'"),
    bad("FastReID: non-local blocks", "the weights of another family",
        lambda t: frozen("fastreid_r50", _fastreid(**{"backbone.NL_3.0.g.weight": W})),
        "take tower='fastreid_agw_r50'"),
    bad("FastReID: a pooling beside an exponent", "pool='mean'",
        lambda t: frozen("fastreid_sbs_r50", _fastreid(**{"heads.pool_layer.p": W}), pool="mean"),
        "holds the exponent of a power mean; leave pool out"),
    bad("FastReID: a pooling of a tower of timm", "pool='mean'",
        lambda t: frozen("resnet10t", "none", pool="mean"), "unexpected keyword argument 'pool'", error=TypeError),
    bad("FastReID: another tower", "tower='resnet50'", lambda t: frozen("resnet50", _fastreid()),
        "holds a network of FastReID", "expected weights of timm's resnet50"),
    bad("FastReID: for BoT", "the model of the same backbone",
        lambda t: create_model("bot_r50", n_ids=3, weights=_fastreid()),
        "a network of FastReID", "it fits frozen"),
    bad("FastReID: a ResNet-50 of torchvision", "no neck", lambda t: frozen("fastreid_r50", {
        k.removeprefix("backbone."): v for k, v in _fastreid().items() if k.startswith("backbone.")}),
        "a ResNet-50 of torchvision or timm", "expected a released network of FastReID (fastreid_r50)"),
    # ONNX
    bad("ONNX: no such file", "onnx:none.onnx", lambda t: frozen("onnx:none.onnx"), "there is no such file",
        error=FileNotFoundError),
    bad("ONNX: text", "a page in place of the file", lambda t: _onnx(t, lambda path: path.write_text("<html>")),
        "cannot be read as an ONNX file"),
    bad("ONNX: cut short", "half of the file", lambda t: _onnx(t, lambda path: cut(write_tower(path))),
        "cannot be read as an ONNX file"),
    bad("ONNX: numbers of words", "an input of two dimensions", lambda t: _onnx(t, _write_words), "which is no image",
        "give a file that takes images"),
    bad("ONNX: two inputs", "images and cameras",
        lambda t: _onnx(t, lambda path: write_tower(path, more=["cameras"])), "takes 2 inputs (images", "cameras (1,)"),
    bad("ONNX: a map as output", "no vector an image", lambda t: _onnx(t, lambda path: write_tower(path, flat=False)),
        "none is one vector an image"),
    bad("ONNX: another size", "size=(96, 48) for a file of 64x32", lambda t: _onnx(t, write_tower, size=(96, 48)),
        "takes images of height 64 alone", "leave size out"),
    bad("ONNX: an output that is not there", "output='features'", lambda t: _onnx(t, write_tower, output="features"),
        "output='features'", "Did you mean 'feature'?"),
    bad("ONNX: CUDA without it", "provider='cuda' in an onnxruntime for the processor",
        lambda t: _onnx(t, write_tower, provider="cuda"), "is not in this onnxruntime", "leave provider out"),
    bad("ONNX: weights beside it", "weights='w.pth'",
        lambda t: frozen(f"onnx:{write_tower(t/'t.onnx')}", "w.pth"), "has its own weights; leave weights out"),
    bad("ONNX: for captions", "frozen_pair:onnx:FILE", lambda t: frozen_pair("onnx:t.onnx", "none"),
        "reads no captions"),
    bad("ONNX: pixels of whole numbers, prepared", "pixels='clip' for a file that prepares them itself",
        lambda t: _onnx(t, lambda path: write_tower(path, kind="bytes"), pixels="clip"), "prepares them itself"),
    bad("pixels: half a preparation", "mean without std", lambda t: frozen("resnet10t", "none", mean=.5),
        "mean and std belong together"),
    bad("pixels: of 0 to 255", "mean=123.7", lambda t: frozen("resnet10t", "none", mean=123.7, std=58.),
        "divide it by 255"),
    bad("pixels: no deviation", "std=0", lambda t: frozen("resnet10t", "none", mean=.5, std=0), "must be above 0"),
    bad("pixels: a misspelt name", "pixels='imagnet'", lambda t: frozen("resnet10t", "none", pixels="imagnet"),
        "Did you mean 'imagenet'?"),
    bad("OSNet: for a tower", "names of OSNet", lambda t: frozen("resnet10t", {
        "conv1.conv.weight": W, "conv2.0.gate.fc1.weight": W, "conv5.conv.weight": W}),
        "holds an OSNet", "it fits frozen"),
]
