"Fifteen families of towers, as small as they are made: rates by layer, adapters, and blocks that are computed again"
import importlib.util

import open_clip
import pytest
import timm
import torch
from helpers.large_towers import FAMILIES, SIZES, tower_name

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.losses.basics import terms
from reid_lab.models.weights.start import start_key
from reid_lab.models.zoo import create_model, sample_batch
from reid_lab.recipes.finetune import finetune_settings
from reid_lab.training.layers import parameter_layers, rate_factors
from reid_lab.training.learner import param_groups
from reid_lab.training.lora import adapted, lora_targets, merged_state
from reid_lab.training.speedups import tuned

HAS_PEFT = importlib.util.find_spec("peft") is not None
NEEDS_PEFT = pytest.mark.skipif(not HAS_PEFT, reason="peft, the extra lora, is not installed")
DIM = dict(swin=128, clip=16, clip_timm=16, hf_clip=16)    # of features; the others have 32


@pytest.fixture(scope="module")
def places(tmp_path_factory): return tmp_path_factory.mktemp("towers")


def new(name, places, size=SIZES[0]):
    "BoT on a tower with random numbers, the same at every call"
    torch.manual_seed(0)
    return create_model("bot", n_ids=4, tower=tower_name(name, places), size=size, weights="none")


def gradients(model, batch):
    "Gradients of all parameters that train, by name"
    model.zero_grad()
    torch.manual_seed(0)        # of dropout
    sum(terms(model.train()(batch)).values()).backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name, places, tmp_path):
    batch, dim = sample_batch(SIZES[0], n=4), DIM.get(name, 32)
    model = new(name, places)
    with torch.no_grad():
        for size in SIZES:
            model = new(name, places, size).eval()
            assert model.raw_features(sample_batch(size, n=2)["img"]).shape == (2, dim) and model.dim == dim
        model = new(name, places)
    # every parameter that trains has a gradient, which is the same where blocks are computed again
    plain = gradients(model, batch)
    with tuned(model, checkpointing=True): again = gradients(model, batch)
    assert all(torch.allclose(plain[n], again[n], rtol=1e-4, atol=1e-6) for n in plain)
    # layers: stem, blocks, head; each parameter is in one group, and its rate is that of its layer
    layers, factors = parameter_layers(model), rate_factors(model, .5)
    assert {*layers} == {n for n, _ in model.named_parameters()}
    depth = max(layer.above for layer in layers.values())
    assert depth >= 3 and {layer.above for layer in layers.values()} == {*range(depth + 1)}
    assert {layer.above for layer in layers.values() if layer.is_stem} == {depth}
    assert {n for n, layer in layers.items() if not layer.above} >= {"classify.weight", "neck.weight"}
    groups = param_groups(model, 1., layer_decay=.5)
    held = [id(p) for group in groups for p in group["params"]]
    assert len(held) == len({*held}) and {*held} == {id(p) for p in model.parameters() if p.requires_grad}
    by_id = {id(p): n for n, p in model.named_parameters()}
    assert all(group["lr"] == factors[by_id[id(p)]] for group in groups for p in group["params"])
    # a step moves stem and head, and what is saved is what is loaded
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    torch.optim.SGD(groups, .1).step()
    moved = {layers[n].above for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert {0, depth} <= moved
    save_weights(model, tmp_path/"model.safetensors")
    loaded = load_weights(new(name, places), tmp_path/"model.safetensors").eval()
    assert torch.equal(loaded.raw_features(batch["img"]), model.eval().raw_features(batch["img"]))


@NEEDS_PEFT
@pytest.mark.parametrize("name", FAMILIES)
def test_adapters_of_a_family(name, places):
    "All adapters are reached, nothing else of the tower moves, and the merged weights embed as the adapters did"
    batch, model = sample_batch(SIZES[0], n=4), new(name, places)
    names, start = [*model.state_dict()], {n: v.clone() for n, v in model.state_dict().items()}
    before, layers = model.eval().raw_features(batch["img"]).detach(), parameter_layers(model)
    targets = lora_targets(model)
    with adapted(model, 2) as adapters:
        assert torch.allclose(model.eval().raw_features(batch["img"]), before, atol=1e-6)
        opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], .5)
        for _ in range(2):      # the second matrix begins with zeros, so the first one has no gradient at first
            found = gradients(model, batch)
            opt.step()
        assert all(g.abs().sum() > 0 for n, g in found.items() if ".lora_" in n)
        assert adapters.training == sum(g.numel() for g in found.values()) < adapters.total
        kept = merged_state(model)
        after = model.eval().raw_features(batch["img"]).detach()
    assert sorted(model.state_dict()) == sorted(names) == sorted(kept)
    assert torch.allclose(model.raw_features(batch["img"]), after, rtol=1e-3, atol=1e-5)
    assert (after - before).abs().max() > 1e-4
    matrices = {*targets.projections, *(f"{n}.weight" for n in targets.linear)}
    statistics = {n for n, _ in model.named_buffers()}
    changed = {n for n, v in model.state_dict().items() if not torch.equal(v, start[n])} - statistics
    assert matrices <= changed and all(n in matrices or not layers[n].above for n in changed)


def with_weights(name, places):
    "The tower of a folder that holds weights, too; and those"
    from transformers import AutoModel

    from reid_lab.models.hugging_face import folder_config
    tower = tower_name(name, places)
    folder = tower.removeprefix("hf:")
    torch.manual_seed(1)
    net = AutoModel.from_config(folder_config(folder))
    net.save_pretrained(folder)
    return tower, net.state_dict()


@pytest.mark.parametrize("model", ["bot", "tuned"])
def test_a_folder_brings_its_weights_to_trainings(model, places):
    "Of a fine-tuning nothing else has to be named; other weights beside the folder are refused"
    tower, state = with_weights("hf_dinov2", places)
    s = finetune_settings("smoke", f"{model}:{tower}")
    assert (s.model, s.start) == (model, tower.removeprefix("hf:"))
    assert start_key(s.start, model)["start"]["model.safetensors"]
    built = create_model(s.model, n_ids=4, weights=s.start, **dict(s.model_kw))
    for weights in (None, s.start, "published"):
        built = create_model(model, n_ids=4, tower=tower, size=(64, 32), weights=weights)
        assert all(torch.equal(built.image.tower.net.state_dict()[n], v) for n, v in state.items())
    if model == "bot":
        with pytest.raises(ValueError, match="has its own weights"):
            create_model(model, n_ids=4, tower=tower, size=(64, 32), weights="other.pth")


def test_what_is_refused(places, tmp_path):
    with pytest.raises(ValueError, match=r"not whole patches of 16 pixels; \(256, 128\) is"):
        create_model("bot", n_ids=4, tower=tower_name("hf_siglip2", places), size=(250, 128), weights="none")
    with pytest.raises(ValueError, match="Did you mean 'test_vit'"): create_model("bot", n_ids=4, tower="test_vitt")
    with pytest.raises(ValueError, match="leave pool out"):
        create_model("bot", n_ids=4, tower=tower_name("clip", places), pool="gem")
    (tmp_path/"tower.onnx").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot be trained"):
        create_model("bot", n_ids=4, tower=f"onnx:{tmp_path}/tower.onnx")


def test_what_a_pair_has_for_words_does_not_train(places):
    model = new("hf_siglip2", places)
    assert not any(p.requires_grad for n, p in model.named_parameters() if "text_model" in n)
    assert all(p.requires_grad for n, p in model.named_parameters() if "vision_model" in n)


@pytest.mark.parametrize("size", SIZES)
def test_transreid_on_a_tower_of_timm(size, places):
    "Weights of the tower are taken over, positions on the grid of the crops; overlapping patches"
    tower = tower_name("vit", places)
    torch.manual_seed(0)
    state = timm.create_model(tower, num_classes=0).state_dict()
    model = create_model("transreid_b16", n_ids=4, size=size, tower=tower, weights=state, parts=2)
    assert torch.equal(model.blocks[0].attn.qkv.weight, state["blocks.0.attn.qkv.weight"])
    assert model.loaded.missing == () and model.pos.shape[1] == 1 + ((size[0] - 16)//12 + 1)*((size[1] - 16)//12 + 1)
    out = model.train()(sample_batch(size, n=4))
    assert out["emb"].shape == (4, 3*32) and sum(terms(out).values()).isfinite()
    for other in ("dinov3", "eva02", "siglip2", "swin", "dinov2"):
        with pytest.raises(ValueError, match="has other parts than CLS.*the model 'bot'"):
            create_model("transreid_b16", n_ids=4, size=size, tower=tower_name(other, places))


@pytest.mark.parametrize("size", SIZES)
def test_clip_on_a_pair_of_open_clip(size, places):
    "The features of a pair are those of open_clip at its own size, and its positions fit the crops"
    name = tower_name("clip", places)
    torch.manual_seed(0)
    theirs = open_clip.create_model(name).eval()
    square = create_model("clip_b16", tower=name, size=(64, 64), weights=theirs.state_dict()).eval()
    images, tokens = torch.rand(2, 3, 64, 64), torch.tensor([[49406, 320, 49407, 0], [49406, 1125, 2368, 49407]])
    padded = torch.nn.functional.pad(tokens, (0, 77 - 4))
    with torch.no_grad():
        assert torch.allclose(square.image_features(images), theirs.encode_image(square.pixels(images)), atol=1e-5)
        assert torch.allclose(square.text_features(tokens), theirs.encode_text(padded), atol=1e-5)
    model = create_model("clip_b16", tower=name, size=size, weights=theirs.state_dict())
    assert model.visual.grid_size == (size[0]//16, size[1]//16) and model.loaded.resized
    assert model.encode_image(sample_batch(size, n=2)["img"]).shape == (2, 16)
    openai = {**theirs.state_dict(), "input_resolution": torch.tensor(64), "context_length": torch.tensor(77),
              "vocab_size": torch.tensor(49408)}
    with pytest.raises(ValueError, match=f"trained with quick_gelu.*take tower='{name}-quickgelu'"):
        create_model("clip_b16", tower=name, size=size, weights=openai)
    with pytest.raises(ValueError, match="no pair of two transformers.*the model 'bot'"):
        create_model("clip_b16", tower=tower_name("clip_timm", places), size=size)
