"""Models that are not trained: names, towers, tokenizers, weights, and what cannot be asked of them."""
import timm
import torch
from fault import bad

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
    *[bad(f"FastReID: {what}", f"{key} beside a ResNet-50",
          lambda t, key=key: frozen("fastreid_r50", _fastreid(**{key: W})),
          "FastReID of another form", "expected a released ResNet-50 of FastReID")
      for what, key in (("IBN", "backbone.layer1.0.bn1.IN.weight"), ("non-local blocks", "backbone.NL_3.0.g.weight"),
                        ("squeeze-and-excitation", "backbone.layer2.1.se.fc.0.weight"))],
    bad("FastReID: another tower", "tower='resnet50'", lambda t: frozen("resnet50", _fastreid()),
        "a ResNet-50 of FastReID (tower 'fastreid_r50')", "expected weights of timm's resnet50"),
    bad("FastReID: for BoT", "the model of the same backbone",
        lambda t: create_model("bot_r50", n_ids=3, weights=_fastreid()),
        "a ResNet-50 of FastReID", "it fits frozen"),
    bad("FastReID: a ResNet-50 of torchvision", "no neck", lambda t: frozen("fastreid_r50", {
        k.removeprefix("backbone."): v for k, v in _fastreid().items() if k.startswith("backbone.")}),
        "a ResNet-50 of torchvision or timm", "expected a released ResNet-50 of FastReID"),
    bad("OSNet: for a tower", "names of OSNet", lambda t: frozen("resnet10t", {
        "conv1.conv.weight": W, "conv2.0.gate.fc1.weight": W, "conv5.conv.weight": W}),
        "holds an OSNet", "it fits frozen"),
]
