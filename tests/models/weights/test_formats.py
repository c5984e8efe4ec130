"""Checkpoints of other programs: built here from an independent statement of their modules, loaded, and compared."""
import argparse
import json
import os
import pickle
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.released_images import (
    DEPTH,
    HEADS,
    SIZE,
    ClipVision,
    ReleasedAGW,
    ReleasedBoT,
    ReleasedCLIPReID,
    ReleasedOpenUnReID,
    ReleasedPlain,
    ReleasedTransReID,
    ResNet,
    Texts,
    W,
)
from helpers.towers import randomised
from safetensors.torch import save_file
from torch import nn

from reid_lab.losses.basics import terms
from reid_lab.models.agw import agw_r50
from reid_lab.models.backbones import CrossEncoder, TextEncoder, load_bert
from reid_lab.models.bot import bot_r50
from reid_lab.models.camel import MLMHead, camel_base
from reid_lab.models.clip_reid import CLIPReID, start_clip_reid
from reid_lab.models.clip_towers import clip_model, load_clip
from reid_lab.models.convert import inspect_weights
from reid_lab.models.frozen import FrozenPair, clip_tokenizer, frozen, frozen_pair, named_tower
from reid_lab.models.timm_towers import TimmTower
from reid_lab.models.transreid import overlapping_vit, start_transreid
from reid_lab.models.weights import formats
from reid_lab.models.weights.formats import LAYOUTS, identify, open_weights, read_weights, translate
from reid_lab.models.weights.start import load_network
from reid_lab.models.zoo import MODELS

IMG = torch.rand(3, 3, *SIZE, generator=torch.Generator().manual_seed(0))


WRAPS = dict(bare=lambda s: s, parallel=lambda s: {f"module.{k}": v for k, v in s.items()},
             wrapped=lambda s: dict(model=s, epoch=60, args=argparse.Namespace(lr=.1)))


def saved(net, path, wrap="bare"):
    torch.save(WRAPS[wrap](net.state_dict()), path)
    return path


def explained(loaded, path):
    "Every tensor of the file is taken or left out with a reason (three may become one)"
    assert not loaded.unused and not loaded.head, str(loaded)
    joined = len(loaded.renamed) - len({ours for _, ours in loaded.renamed})
    return loaded.matched + len(loaded.misfit) + len(loaded.left) + joined == len(read_weights(path))


# --- whole checkpoints ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("wrap", WRAPS)
def test_released_bot(tmp_path, wrap):
    released = randomised(ReleasedBoT(n_ids=5))
    path = saved(released, tmp_path/"resnet50_model_120.pth", wrap)
    assert identify(path).name == "bot"
    model = bot_r50(n_ids=5, size=SIZE, weights=path).eval()
    with torch.no_grad(): ours, theirs = model.encode_image(IMG), F.normalize(released(IMG), dim=1)
    assert (ours - theirs).abs().max() < 1e-5 and (theirs[0] - theirs[1]).norm() > .01
    assert model.image.net.act1.linear
    assert explained(model.loaded, path)
    assert not model.loaded.missing and torch.equal(model.classify.weight, released.classifier.weight)
    assert model.loaded.layout == LAYOUTS["bot"].about
    assert ("base.conv1.weight", "image.net.conv1.weight") in model.loaded.renamed
    if wrap == "bare":
        relu = bot_r50(n_ids=5, size=SIZE, weights=path, stem="relu").eval()
        assert (relu.encode_image(IMG) - theirs).norm() > 1e-3


def test_released_agw(tmp_path):
    released = randomised(ReleasedAGW(n_ids=5))
    path = saved(released, tmp_path/"market1501_AGW.pth", "bare")
    assert identify(path).name == "agw" and identify(path).fits == ("agw_r50",)
    model = agw_r50(n_ids=5, size=SIZE, weights=path).eval()
    with torch.no_grad(): ours, theirs = model.encode_image(IMG), F.normalize(released(IMG), dim=1)
    assert (ours - theirs).abs().max() < 1e-5 and (theirs[0] - theirs[1]).norm() > .01
    assert model.image.net.act1.linear and explained(model.loaded, path) and not model.loaded.missing
    assert ("base.NL_3.2.W.1.weight", "image.net.layer3.nl5.norm.weight") in model.loaded.renamed
    assert inspect_weights(path)["arguments"] == dict(n_ids=5)
    with pytest.raises(ValueError, match="of another shape"): agw_r50(n_ids=5, size=SIZE, inner=2, weights=path)
    with pytest.raises(ValueError, match="holds a released AGW .*it fits agw_r50"): bot_r50(5, SIZE, weights=path)


@pytest.mark.parametrize("gem", [True, False])
def test_released_openunreid(tmp_path, gem):
    released = randomised(ReleasedOpenUnReID(n_ids=5, gem=gem))
    path = tmp_path/"checkpoint.pth"
    state = {f"module.{k}": v for k, v in released.state_dict().items()}
    torch.save(dict(state_dict=state, epoch=120, best_mAP=np.float64(.9)), path)
    assert identify(path).name == "openunreid"
    pool = "gem" if gem else "mean"
    assert inspect_weights(path)["arguments"] == dict(dict(n_ids=5), **dict(pool="gem") if gem else {})
    model = bot_r50(n_ids=5, size=SIZE, pool=pool, weights=path).eval()
    with torch.no_grad(): ours, theirs = model.encode_image(IMG), F.normalize(released(IMG), dim=1)
    assert (ours - theirs).abs().max() < 1e-5 and (theirs[0] - theirs[1]).norm() > .01
    assert not model.image.net.act1.linear and explained(model.loaded, path) and not model.loaded.missing
    if gem:
        with pytest.raises(ValueError, match="give pool='gem'"): bot_r50(n_ids=5, size=SIZE, weights=path)


def test_the_switch_of_the_stem_travels_with_the_weights(tmp_path):
    from reid_lab.core.weight_files import load_weights, save_weights
    linear, other = bot_r50(n_ids=3, size=SIZE, stem="linear").eval(), bot_r50(n_ids=3, size=SIZE).eval()
    save_weights(linear, tmp_path/"m.safetensors")
    assert not other.image.net.act1.linear
    load_weights(other, tmp_path/"m.safetensors")
    assert other.image.net.act1.linear and torch.equal(other.encode_image(IMG), linear.encode_image(IMG))


def test_heads_of_other_identities_are_left_out_and_named(tmp_path):
    path = saved(randomised(ReleasedBoT(n_ids=5)), tmp_path/"r.pth")
    with pytest.warns(UserWarning, match=r"classify.weight \(5, 2048\) instead of \(7, 2048\)"):
        model = bot_r50(n_ids=7, size=SIZE, weights=path)
    assert model.loaded.missing == ("classify.weight",) and "left out: 1" in model.loaded.report()
    assert "order of a Python set" in model.loaded.report()


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("stride, n, cams, kind", [(16, 8, 0, ReleasedTransReID), (12, 10, 6, ReleasedTransReID),
                                                   (16, 8, 6, ReleasedPlain), (12, 10, 0, ReleasedPlain)])
def test_released_transreid(tmp_path, wrap, stride, n, cams, kind):
    released, jigsaw = randomised(kind(5, n, stride, cams)), kind is ReleasedTransReID
    path = saved(released, tmp_path/"transformer_120.pth", wrap)
    assert identify(path).name == ("transreid" if jigsaw else "transreid_plain")
    vit = overlapping_vit(SIZE, stride=stride, width=W, depth=DEPTH, heads=HEADS)
    model = start_transreid(vit, 5, SIZE, path, cams=cams or None, parts=4*jigsaw).eval()
    cam = torch.tensor([5, 0, 2])
    with torch.no_grad(): ours, theirs = model.raw_features(IMG, cam), released(IMG, cam)
    assert (ours - theirs).abs().max() < 1e-5 and explained(model.loaded, path) and not model.loaded.missing
    left = {k.split(".")[1] for k, _ in model.loaded.left}
    assert left == ({"fc", "blocks", "norm"} if jigsaw else {"fc"})
    assert torch.equal(model.heads[-1].weight, getattr(released, "classifier_4" if jigsaw else "classifier").weight)


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("stride, n, cams", [(16, 8, 0), (12, 10, 6)])
def test_released_clip_reid(tmp_path, wrap, stride, n, cams):
    released = randomised(ReleasedCLIPReID(5, n, stride, cams))
    path = saved(released, tmp_path/"ViT-B-16_60.pth", wrap)
    assert identify(path).name == "clip_reid"
    model = start_clip_reid(tiny_clip(SIZE, stride), 5, SIZE, path, cams=cams or None).eval()
    cam, label = torch.tensor([5, 0, 2]), torch.tensor([4, 1])
    with torch.no_grad(): ours, theirs = model.raw_features(IMG, cam), released(IMG, cam)
    assert (ours - theirs).abs().max() < 1e-5 and explained(model.loaded, path) and not model.loaded.missing
    with torch.no_grad(): assert (model.text(model.prompts(label)) - released.text(label)).abs().max() < 1e-5
    assert torch.equal(model.heads[1].weight, released.classifier_proj.weight)
    assert model.loaded.resized == ("prompts.suffix (68, 16) -> (3, 16)",)


def tiny_clip(size, stride=16, **kw):
    return clip_model(size, stride, 16, dict(width=W, layers=DEPTH, head_width=W//HEADS, patch_size=16),
                      dict(width=16, layers=2, heads=HEADS), **kw)


def test_positions_of_a_released_checkpoint_come_from_a_grid_of_persons(tmp_path):
    from reid_lab.models.transreid import resize_positions
    released = randomised(ReleasedPlain(5, 128, 16))                       # 16 x 8 of 256 x 128 crops
    vit = overlapping_vit(SIZE, stride=16, width=W, depth=DEPTH, heads=HEADS)
    model = start_transreid(vit, 5, SIZE, released.state_dict(), parts=0)
    assert torch.equal(model.pos[0], resize_positions(released.base.pos_embed[0], (4, 2), (16, 8)))
    assert model.loaded.resized == ("pos (1, 129, 32) -> (1, 9, 32)",)


def test_side_information_needs_its_cameras(tmp_path):
    six = randomised(ReleasedCLIPReID(5, 8, 16, 6)).state_dict()
    for cams in (None, 4):
        with pytest.raises(ValueError, match="side information for 6 cameras, .*pass cams=6"):
            start_clip_reid(tiny_clip(SIZE), 5, SIZE, six, cams=cams)
    with pytest.raises(ValueError, match="side information for 2 cameras"):
        start_transreid(overlapping_vit(SIZE, stride=16, width=W, depth=DEPTH, heads=HEADS), 5, SIZE,
                        ReleasedPlain(5, 8, 16, 2).state_dict(), parts=0)
    with pytest.raises(ValueError, match="without jigsaw branch; pass parts=0"):
        start_transreid(overlapping_vit(SIZE, stride=16, width=W, depth=DEPTH, heads=HEADS), 5, SIZE,
                        ReleasedPlain(5, 8, 16).state_dict())


def test_cameras_of_clip_reid():
    "Training needs known cameras, an unknown one is tested with the mean, and stage 1 does without"
    from reid_lab.models.zoo import sample_batch
    model = CLIPReID(tiny_clip(SIZE), 4, SIZE, cams=(7, 9)).eval()
    one, two, odd = (model.raw_features(IMG, torch.full((3,), c)) for c in (7, 9, 1))
    assert (one - two).abs().max() > 1e-4 and torch.equal(odd, model.raw_features(IMG))
    plain = CLIPReID(tiny_clip(SIZE), 4, SIZE).eval()
    plain.load_state_dict({k: v for k, v in model.state_dict().items() if k != "side_embed"})
    assert torch.equal(model.joint_features(IMG), plain.joint_features(IMG))
    batch = sample_batch(SIZE)
    with pytest.raises(ValueError, match="cam=0 has no side information"): model(batch)
    sum(terms(model({**batch, "cam": batch["cam"]*2 + 7})).values()).backward()
    assert model.side_embed.grad.abs().sum() > 0


# --- towers -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["resnet50-0676ba61.pth", "model.safetensors"])
def test_resnet50_of_torchvision_and_timm(tmp_path, name):
    source = randomised(ResNet(2, relu=True, classes=7))
    if name.endswith("pth"): torch.save(source.state_dict(), tmp_path/name)
    else:
        save_file(source.state_dict(), tmp_path/name)
        (tmp_path/"config.json").write_text(json.dumps(dict(architecture="resnet50",
                                                            pretrained_cfg=dict(mean=[.4]*3, std=[.2]*3))))
    where = tmp_path/name if name.endswith("pth") else tmp_path
    tower = TimmTower("resnet50", SIZE, weights=where).eval()
    with torch.no_grad(): assert (tower(IMG).mean(1) - source(IMG)).abs().max() < 1e-5*source(IMG).abs().max()
    assert dict(tower.loaded.left) == {f"fc.{k}": "classifier of the pretraining" for k in ("weight", "bias")}
    assert explained(tower.loaded, where)
    base = camel_base(vocab_size=40, tower="resnet50", weights=where)
    want = [.4]*3 if name == "model.safetensors" else [.485, .456, .406]
    assert torch.allclose(base.pixels.mean.flatten(), torch.tensor(want))
    model = bot_r50(n_ids=3, size=SIZE, weights=where)
    assert torch.equal(model.image.net.layer4[2].conv3.weight, source.layer4[2].conv3.weight)
    assert not model.image.net.act1.linear


@pytest.mark.parametrize("eps, near", [(1e-6, 1e-5), (1e-12, 1e-4)])  # of LayerNorm: ours and timm's, Hugging Face's
def test_vit_of_hugging_face(tmp_path, eps, near):
    from transformers import ViTConfig, ViTForImageClassification
    cfg = ViTConfig(hidden_size=W, num_hidden_layers=DEPTH, num_attention_heads=HEADS, intermediate_size=4*W,
                    image_size=64, layer_norm_eps=eps)
    theirs = randomised(ViTForImageClassification(cfg))
    theirs.save_pretrained(tmp_path/"vit")
    assert identify(tmp_path/"vit").name == "hf_vit"
    vit = overlapping_vit((64, 64), stride=16, width=W, depth=DEPTH, heads=HEADS)
    model = start_transreid(vit, 4, (64, 64), tmp_path/"vit", parts=0).eval()
    img = torch.rand(2, 3, 64, 64)
    with torch.no_grad(): want = theirs.vit(pixel_values=(img - .5)/.5).last_hidden_state[:, 0]
    assert (model.raw_features(img) - want).abs().max() < near and explained(model.loaded, tmp_path/"vit")
    assert {k for k, _ in model.loaded.left} == {"classifier.weight", "classifier.bias"}
    small = start_transreid(overlapping_vit(SIZE, width=W, depth=DEPTH, heads=HEADS), 4, SIZE, tmp_path/"vit")
    assert small.loaded.resized == ("pos_embed (1, 17, 32) -> (1, 11, 32)",)


class OpenAI(nn.Module):
    "The module in OpenAI's archive: half precision, and three numbers as buffers"
    def __init__(self, n_patches):
        super().__init__()
        self.visual, texts = ClipVision(n_patches, 16, 16), Texts(16)
        self.transformer, self.ln_final = texts.transformer, texts.ln_final
        self.positional_embedding, self.text_projection = texts.positional_embedding, texts.text_projection
        self.token_embedding, self.logit_scale = nn.Embedding(49408, 16), nn.Parameter(torch.zeros(()))
        for k, v in (("input_resolution", 64), ("context_length", 77), ("vocab_size", 49408)):
            self.register_buffer(k, torch.tensor(v))

    def forward(self, img): return self.visual(img)[1] + 0*self.token_embedding.weight.sum()


def test_openais_archive(tmp_path):
    source, img = randomised(OpenAI(16)).half().float(), torch.rand(2, 3, 64, 64)   # numbers that half precision holds
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(source, img, check_trace=False).half().save(str(tmp_path/"ViT-B-16.pt"))
    source.float()
    found = open_weights(tmp_path/"ViT-B-16.pt")
    assert found.kind == "TorchScript archive" and identify(found).name == "openai_clip"
    assert found.state["visual.proj"].dtype == torch.float16
    clip = load_clip(tiny_clip((64, 64)), tmp_path/"ViT-B-16.pt").eval()
    with torch.no_grad(): assert (clip.encode_image(img) - source(img)).abs().max() < 1e-5
    assert {k for k, _ in clip.loaded.left} == {"input_resolution", "context_length", "vocab_size"}
    assert explained(clip.loaded, tmp_path/"ViT-B-16.pt")
    with pytest.raises(ValueError, match="trained with quick_gelu, the model has act='gelu'"):
        load_clip(tiny_clip((64, 64), act="gelu"), tmp_path/"ViT-B-16.pt", act="gelu")


def test_clip_of_open_clip_and_hugging_face(tmp_path):
    from transformers import CLIPConfig, CLIPModel
    sizes = dict(num_attention_heads=HEADS, projection_dim=16)
    cfg = CLIPConfig(projection_dim=16, text_config=dict(hidden_size=16, intermediate_size=64, num_hidden_layers=2,
                                                         vocab_size=49408,
                                                         eos_token_id=49407, **sizes),
                     vision_config=dict(hidden_size=W, intermediate_size=4*W, num_hidden_layers=DEPTH, image_size=64,
                                        patch_size=16, **sizes))
    theirs = randomised(CLIPModel(cfg))
    theirs.save_pretrained(tmp_path/"clip")
    img, tok = torch.rand(2, 3, 64, 64), torch.zeros(2, 77, dtype=torch.long)
    tok[:, 0], tok[:, 1:4], tok[:, 4] = 49406, torch.randint(1, 1000, (2, 3)), 49407
    clip = load_clip(tiny_clip((64, 64)), tmp_path/"clip").eval()
    with torch.no_grad():
        out = theirs(input_ids=tok, pixel_values=img)
        for ours, want in ((clip.encode_image(img), out.image_embeds), (clip.encode_text(tok), out.text_embeds)):
            assert (F.normalize(ours, dim=1) - want).abs().max() < 1e-5
    assert identify(tmp_path/"clip").name == "hf_clip" and explained(clip.loaded, tmp_path/"clip")
    folder = tmp_path/"open"
    folder.mkdir()
    save_file(clip.state_dict(), folder/"open_clip_model.safetensors")
    (folder/"open_clip_config.json").write_text(json.dumps(dict(model_cfg=dict(quick_gelu=True), preprocess_cfg={})))
    again = load_clip(tiny_clip((64, 64)), folder)
    assert again.loaded.layout == LAYOUTS["open_clip"].about and torch.equal(again.visual.proj, clip.visual.proj)
    (folder/"open_clip_config.json").write_text(json.dumps(dict(model_cfg={}, preprocess_cfg={})))
    with pytest.raises(ValueError, match="trained with gelu, the model has act='quick_gelu'; pass act='gelu'"):
        load_clip(tiny_clip((64, 64)), folder)


@pytest.mark.parametrize("old", [False, True])
def test_bert_becomes_both_text_halves(tmp_path, old):
    "Without images the two halves are BERT itself; the head for masked words too"
    from transformers import BertConfig, BertForMaskedLM
    theirs = randomised(BertForMaskedLM(BertConfig(hidden_size=W, num_attention_heads=HEADS, intermediate_size=64,
                                                   vocab_size=50,
                                                   num_hidden_layers=4, max_position_embeddings=20)))
    theirs.save_pretrained(tmp_path)
    if old:  # names of the first checkpoints, with all their heads
        state = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
                 for k, v in read_weights(tmp_path).items()}
        save_file(state | {"bert.pooler.dense.bias": torch.ones(2), "cls.seq_relationship.bias": torch.ones(2),
                           "cls.predictions.decoder.weight": torch.ones(2)}, tmp_path/"model.safetensors")
    text, cross = TextEncoder(50, W, HEADS, 2, 64, 20, dropout=0.), CrossEncoder(W, HEADS, 2, 64, 24, dropout=0.)
    words, tok = MLMHead(W, 50), torch.randint(1, 50, (3, 9))
    done = load_bert(text, tmp_path, cross, words)
    assert explained(done, tmp_path) and len(done.left) == 3*old and not done.missing and len(done.kept) == 20
    for layer in cross.layers: layer.cross = None
    with torch.no_grad():
        mask = tok != 0
        ours = words(cross(text(tok), mask, None), text.word.weight)
        assert (ours - theirs(input_ids=tok, attention_mask=mask.long()).logits).abs().max() < 1e-5
    one = load_bert(TextEncoder(50, W, HEADS, 1, 64, 20), tmp_path)
    assert {why for _, why in one.left} >= {"beyond the 1 layers here", "head for masked words"}
    with pytest.warns(UserWarning, match="not found: words.bias"):
        bare = {k: v for k, v in read_weights(tmp_path).items() if not k.startswith("cls.")}
        load_bert(text, bare, words=words)


def test_frozen_towers_of_open_clip(tmp_path):
    import open_clip

    import reid_lab.models.frozen as module
    small = dict(embed_dim=16, vision_cfg=dict(image_size=64, layers=2, width=W, head_width=16, patch_size=16),
                 text_cfg=dict(context_length=77, vocab_size=60, width=16, heads=2, layers=1))
    (tmp_path/"cfg").mkdir()
    (tmp_path/"cfg"/"tiny-clip.json").write_text(json.dumps(small))
    open_clip.add_model_config(tmp_path/"cfg")
    source = open_clip.create_model("tiny-clip").eval()
    torch.save(source.state_dict(), tmp_path/"w.pt")
    model, img = module.frozen("tiny-clip", tmp_path/"w.pt"), torch.rand(2, 3, 64, 64)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    with torch.no_grad(): want = F.normalize(source.encode_image((img - mean)/std), dim=1)
    assert (model.encode_image(img) - want).abs().max() < 1e-5
    assert {why for _, why in model.loaded.left} == {"no part of the image tower"}
    crops = frozen("tiny-clip", tmp_path/"w.pt", size=SIZE)
    assert crops.encode_image(IMG).shape == (3, 16) and crops.loaded.resized
    with pytest.raises(ValueError, match="names of open_clip; expected weights of timm's resnet10t"):
        frozen("resnet10t", tmp_path/"w.pt")


class ReleasedFastReID(nn.Module):
    "Backbone, pooling, BNNeck and the classifier's weight; the stem's pooling pads nothing"
    def __init__(self, n_ids, gem, old):
        super().__init__()
        self.backbone, self.heads = ResNet(1, relu=True), nn.Module()
        self.heads.pool_layer, self.gem = nn.Module(), gem
        if gem: self.heads.pool_layer.p = nn.Parameter(torch.ones(1)*3)
        if old:
            self.heads.bnneck, self.heads.classifier = nn.BatchNorm1d(2048), nn.Linear(2048, n_ids, bias=False)
            self.register_buffer("pixel_mean", torch.zeros(1, 3, 1, 1))
            self.register_buffer("pixel_std", torch.ones(1, 3, 1, 1))
        else:
            self.heads.bottleneck = nn.Sequential(nn.BatchNorm2d(2048))
            self.heads.weight = nn.Parameter(torch.zeros(n_ids, 2048))

    def forward(self, img):
        mean, std = torch.tensor([123.675, 116.28, 103.53]), torch.tensor([58.395, 57.12, 57.375])
        b, x = self.backbone, (255*img - mean.view(3, 1, 1))/std.view(3, 1, 1)
        x = F.max_pool2d(F.relu(b.bn1(b.conv1(x))), 3, 2, ceil_mode=True)
        x = b.layer4(b.layer3(b.layer2(b.layer1(x))))
        if self.gem: x = F.adaptive_avg_pool2d(x.clamp(min=1e-6).pow(self.heads.pool_layer.p), 1)
        x = x.pow(1/self.heads.pool_layer.p) if self.gem else x.mean((2, 3), keepdim=True)
        return self.heads.bnneck(x[..., 0, 0]) if hasattr(self.heads, "bnneck") else self.heads.bottleneck(x)[..., 0, 0]


@pytest.mark.parametrize("wrap, gem, old", [("bare", False, False), ("wrapped", True, False), ("parallel", True, True)])
def test_fastreids_resnet50(tmp_path, wrap, gem, old):
    released = randomised(ReleasedFastReID(5, gem, old))
    if gem: released.heads.pool_layer.p.data.fill_(2.5)
    if old:
        released.pixel_mean = torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1)
        released.pixel_std = torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1)
    path = saved(released, tmp_path/"market_bot_R50.pth", wrap)
    assert identify(path).name == ("fastreid_old" if old else "fastreid")
    model = frozen("fastreid_sbs_r50" if gem else "fastreid_r50", path, size=SIZE)
    with torch.no_grad(): ours, theirs = model.encode_image(IMG), F.normalize(released(IMG), dim=1)
    assert (ours - theirs).abs().max() < 1e-5 and (theirs[0] - theirs[1]).norm() > .01
    assert explained(model.loaded, path) and not model.loaded.missing and not model.loaded.misfit
    left = {k for k, _ in model.loaded.left}
    old_left = {"heads.classifier.weight", "pixel_mean", "pixel_std"}
    assert left == (old_left if old else {"heads.weight"})
    assert inspect_weights(path)["arguments"] == dict(tower=f"fastreid_{'sbs' if gem else 'bot'}_r50")
    assert frozen("fastreid_r50", path).size == (256, 128)


@pytest.mark.parametrize("name, words", [
    ("backbone.layer1.0.bn1.IN.weight", "take tower='fastreid_bot_r50_ibn'"),
    ("backbone.NL_2.0.theta.weight", "take tower='fastreid_agw_r50'"),
    ("backbone.layer1.0.se.fc.0.weight", "FastReID of a form that is not known here; expected a released network"),
    ("backbone.layer3.6.conv1.weight", "7 blocks in its third stage")])
def test_other_networks_of_fastreid_are_refused(name, words):
    state = ReleasedFastReID(5, False, False).state_dict() | {name: torch.ones(2, 512, 1, 1)}
    with pytest.raises(ValueError, match=words) as e: frozen("fastreid_r50", state)
    assert "\n" not in str(e.value)


def test_osnet_is_recognised_with_the_tower_that_takes_it(tmp_path):
    "Names as in its published files, with the container of their training program; see tests/models/test_osnet.py"
    names = ["conv1.conv.weight", "conv1.bn.weight", "conv2.0.conv1.conv.weight", "conv2.0.conv2a.conv1.weight",
             "conv2.0.gate.fc1.weight", "conv2.0.gate.fc1.bias", "conv5.conv.weight", "fc.0.weight",
             "classifier.weight"]
    state = {f"module.{k}": torch.ones(64, 2) for k in names}
    torch.save(dict(state_dict=state, epoch=60), tmp_path/"osnet_x1_0.pth")
    found = inspect_weights(tmp_path/"osnet_x1_0.pth")
    assert (found["layout"], found["fits"], found["arguments"]) == ("osnet", ["frozen"], dict(tower="osnet_x1_0"))
    with pytest.raises(ValueError, match="holds an OSNet; .*it fits frozen"):
        frozen("resnet50", tmp_path/"osnet_x1_0.pth")


# --- pairs of towers --------------------------------------------------------------------------------------------------

SMALL = dict(embed_dim=16, vision_cfg=dict(image_size=64, layers=2, width=W, head_width=16, patch_size=16),
             text_cfg=dict(context_length=77, vocab_size=49408, width=16, heads=2, layers=1))
CAPTIONS = ["A man in a red coat.", "a woman, with a black bag"]


@pytest.mark.parametrize("wrap", ["bare", "parallel", "wrapped"])
def test_a_frozen_pair_is_both_towers_as_open_clip_runs_them(tmp_path, wrap):
    import open_clip
    source = randomised(open_clip.CLIP(**SMALL))
    path, img = saved(source, tmp_path/"w.pt", wrap), torch.rand(2, 3, 64, 64)
    pair = frozen_pair(SMALL, path)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    tokens = open_clip.get_tokenizer("ViT-B-32")(CAPTIONS)
    assert torch.equal(pair.tokenizer(CAPTIONS), tokens)
    with torch.no_grad():
        for ours, want in ((pair.encode_image(img), source.encode_image((img - mean)/std)),
                           (pair.encode_text(tokens), source.encode_text(tokens))):
            assert (ours - F.normalize(want, dim=1)).abs().max() < 1e-5
    assert explained(pair.loaded, path) and not pair.loaded.missing
    assert not any(p.requires_grad for p in pair.parameters())
    archive = source.state_dict() | {"input_resolution": torch.tensor(64)}   # as OpenAI's, which has QuickGELU
    with pytest.raises(ValueError, match="trained with quick_gelu.*set quick_gelu=True in the configuration"):
        frozen_pair(SMALL, archive)
    quick = frozen_pair(dict(SMALL, quick_gelu=True), archive)
    assert (quick.encode_text(tokens) - pair.encode_text(tokens)).abs().max() > 1e-4
    crops = frozen_pair(SMALL, path, size=SIZE)
    assert crops.encode_image(IMG).shape == (3, 16) and len(crops.loaded.resized) == 1
    torch.save(crops.tower.state_dict(), tmp_path/"crops.pt")
    again = frozen_pair(SMALL, tmp_path/"crops.pt", size=SIZE)
    assert not again.loaded.resized and torch.equal(again.encode_image(IMG), crops.encode_image(IMG))


def test_siglips_pair_takes_timms_trunk_and_the_tokenizer_beside_its_weights(tmp_path):
    "A SigLIP: a ViT of timm, a text tower of its own, sigmoid bias, and words of Hugging Face in the weights' folder"
    import open_clip
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    text = dict(context_length=8, vocab_size=20, hf_tokenizer_name="nobody/siglip", width=16, heads=2, layers=1,
                tokenizer_kwargs=dict(clean="canonicalize"), no_causal_mask=True, proj_bias=True, pool_type="last",
                norm_kwargs=dict(eps=1e-6))
    cfg = dict(embed_dim=64, init_logit_bias=-10, custom_text=True, text_cfg=text,
               vision_cfg=dict(image_size=160, timm_model_name="test_vit", timm_model_pretrained=False, timm_pool="map",
                               timm_proj="none"))
    source = randomised(open_clip.CustomTextCLIP(**{k: dict(v) if isinstance(v, dict) else v for k, v in cfg.items()
                                                    if k != "custom_text"}))
    save_file(source.state_dict(), tmp_path/"open_clip_model.safetensors")
    how = dict(mean=[.5]*3, std=[.5]*3, interpolation="bilinear")
    (tmp_path/"open_clip_config.json").write_text(json.dumps(dict(model_cfg=cfg, preprocess_cfg=how)))
    with pytest.raises(ValueError, match="tokenizer 'nobody/siglip' of Hugging Face, which is not on this machine; put "
                       "its tokenizer.json and tokenizer_config.json beside the weights"): frozen_pair(cfg, tmp_path)
    vocab = {w: i for i, w in enumerate(["<pad>", "</s>", "<unk>", *"a man in red coat woman with black bag".split()])}
    engine = Tokenizer(models.WordLevel(vocab, "<unk>"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=engine, pad_token="<pad>", eos_token="</s>",
                            unk_token="<unk>").save_pretrained(tmp_path)
    pair, img = frozen_pair(cfg, tmp_path), torch.rand(2, 3, 160, 160)
    tokens = pair.tokenizer(CAPTIONS)
    assert tokens.tolist() == [[3, 4, 5, 3, 6, 7, 0, 0], [3, 8, 9, 3, 10, 11, 0, 0]]
    assert pair.tokenizer.pad_id == 0 and pair.resample == "bilinear"
    with torch.no_grad():
        for ours, want in ((pair.encode_image(img), source.encode_image((img - .5)/.5)),
                           (pair.encode_text(tokens), source.encode_text(tokens))):
            assert (ours - F.normalize(want, dim=1)).abs().max() < 1e-5
    assert frozen_pair(cfg, tmp_path, size=(96, 64)).encode_image(torch.rand(1, 3, 96, 64)).shape == (1, 64)
    few = dict(cfg, text_cfg=dict(text, vocab_size=5))
    with pytest.raises(ValueError, match="the tokenizer has 12 words and the text tower 5"):
        FrozenPair(open_clip.CustomTextCLIP(**{k: v for k, v in few.items() if k != "custom_text"}),
                   clip_tokenizer(few, tmp_path), (160, 160), [.5]*3, [.5]*3)
    (tmp_path/"tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="'nobody/siglip' of Hugging Face, which cannot be read"):
        clip_tokenizer(cfg, tmp_path)


def test_a_frozen_pair_is_scored_as_camel_is(tmp_path):
    from reid_lab.analysis.text_scores import evaluate
    from reid_lab.recipes.camel import load_data
    torch.manual_seed(0)
    table = load_data("smoke").target
    pair = frozen_pair(SMALL, "none", size=SIZE)
    out = evaluate(pair, table, "test", k_test=0)
    queries = table.text_queries("test")
    assert 0 <= out["itc"]["mAP"] <= 100 and len(out["q"]) == len(queries) and out["q"].dim == 16 and "itm" not in out
    with torch.no_grad(): one = pair.encode_text(pair.tokenizer(queries.caption.tolist()[:3]))
    assert torch.allclose(out["q"].emb[:3], one, atol=1e-6)


def test_names_of_controls():
    assert named_tower("frozen:vit_small_patch16_224.dino") == ("frozen", dict(tower="vit_small_patch16_224.dino"))
    for name in ("frozen", "frozen:", "frozen_pair", "bot_tiny:x"):
        with pytest.raises(ValueError, match="a control is named with its tower"): named_tower(name)


# --- records ----------------------------------------------------------------------------------------------------------

def test_layouts_name_models_of_the_zoo():
    assert {m for x in LAYOUTS.values() for m in x.fits} <= set(MODELS)
    assert all(bool(x.gives) == bool(x.fits) for x in LAYOUTS.values())


@pytest.mark.parametrize("keys, name", [
    (["base_model.visual.class_embedding", "cross_attn.in_proj_weight", "mlm_head.fc.weight"], "irra"),
    (["base_model.visual.class_embedding", "visul_emb_layer.fc.weight", "texual_emb_layer.fc.weight"], "rde"),
    (["vision_encoder.layers.0.blocks.0.norm1.weight", "itm_head.0.weight", "text_proj.weight",
      "text_encoder.bert.encoder.layer.11.crossattention.self.query.weight"], "aptm"),
    (["vision_encoder.block1.0.norm1.weight", "itm_head.0.weight", "text_proj.weight",
      "text_encoder.encoder.layer.11.crossattention.self.query.weight"], "camel"),
    (["image.block1.0.norm1.weight", "text.word.weight", "cross.layers.0.attn.q.weight", "tau"], "camel_state"),
    (["image.stem.0.weight", "text.word.weight", "cross.layers.0.attn.q.weight", "tau"], None),
    (["vision_encoder.norm.weight", "text_encoder.bert.x", "itm_head.0.weight", "vision_proj.weight", "temp"], None),
    (["image_encoder.attnpool.c_proj.weight", "prompt_learner.cls_ctx", "classifier.weight"], "clip_reid_r50"),
    (["fc.weight", "fc.bias"], None), (["encoder.layers.0.weight"], None)])
def test_recognition(keys, name):
    for wrap in ("", "module."):
        found = identify({wrap + k: torch.zeros(1) for k in keys})
        assert (found and found.name) == name
        fits = dict(irra="irra_b16", rde="frozen_pair", aptm="camel_base", camel="camel_base", camel_state="camel_base")
        assert name is None or found.fits == ((fits[name],) if name in fits else ())


def test_incomplete_parts_are_an_error():
    bert = {"embeddings.cls_token": torch.ones(1), "encoder.layer.0.attention.attention.query.weight": torch.ones(2, 2),
            "encoder.layer.0.attention.attention.value.weight": torch.ones(2, 2)}
    with pytest.raises(ValueError, match=r"of 'blocks.0.attn.qkv.weight' the parts \[0, 2\]"): translate(bert,
                                                                                                         identify(bert))


def test_nothing_is_taken_by_the_end_of_a_name():
    net = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="left over"):
        load_network(net, {"0.weight": torch.ones(2, 2), "0.bias": torch.ones(2), "other.0.gate": torch.ones(2)},
                     prefix="")


def test_places_of_weights_are_found_by_the_names_of_the_last_release():
    for old, new in dict(chosen="weights_place", with_prefix="weights_with_prefix", weights_file="local_weights_file",
                         Chosen="WeightsPlace").items():
        with pytest.warns(DeprecationWarning, match=f"{new}"): assert getattr(formats, old) is getattr(formats, new)
    place = formats.weights_place(formats.weights_with_prefix("two.pth", "teacher."))
    assert (place.path.name, place.prefix) == ("two.pth", "teacher.")


def test_the_refusal_of_a_pickle_with_code_is_all_that_is_said(tmp_path, recwarn):
    "torch warns of the number of the pickle's format, which is no matter of a file that is not read"
    class Code:
        def __reduce__(self): return os.getcwd, ()
    with open(tmp_path/"evil.pth", "wb") as f: pickle.dump(dict(a=Code()), f, protocol=4)
    with pytest.raises(ValueError, match="unpickling can run code"): open_weights(tmp_path/"evil.pth")
    assert not recwarn.list
