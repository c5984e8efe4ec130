"""CAMeL at paper size: its parameters, its towers, and checkpoints in the layouts of APTM and CAMeL."""
import json
import math

import pytest
import timm
import torch
from helpers.released_pairs import (
    HEADS,
    VOCAB,
    W,
    authors_names,
    drawn,
    image_head_shapes,
    released_outputs,
    text_shapes,
)

from reid_lab.models.backbones import CrossEncoder, TextEncoder
from reid_lab.models.camel import CAMeL, camel_base, heads_of, image_tower, load_camel, whole_checkpoint
from reid_lab.models.convert import convert_weights, inspect_weights, weights_text
from reid_lab.models.sgformer import SGFORMERS, SGFormer, Sizes
from reid_lab.models.timm_towers import SwinTower, TimmTower, swin_windows, timm_tower
from reid_lab.models.weights.formats import identify, translate
from reid_lab.models.weights.start import begin
from reid_lab.models.zoo import MODELS, create_model, sample_batch
from reid_lab.recipes.camel import load_data, pretrain
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.preflight import start_findings

SIZE = (64, 32)
SWIN, TINY = "swin_base_patch4_window7_224", "swin_tiny_patch4_window7_224"


@pytest.fixture(autouse=True)
def small(monkeypatch): monkeypatch.setitem(SGFORMERS, "small", Sizes((2, 2, 2, 1), (16, 16, 32, 32), (2, 2, 4, 4)))


def count(*ms): return sum(p.numel() for m in ms for p in m.parameters())


@torch.no_grad()
def randomised(net, seed=0):
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters(): p.add_(torch.randn(p.shape, generator=g)*(.02 if p.ndim > 1 else .1))
    return net.eval()


# --- parameters -------------------------------------------------------------------------------------------------------

def test_parameters_of_the_paper():
    with torch.device("meta"): model, head = camel_base(), torch.nn.Linear(512, 1000)
    assert count(model.text, model.cross, model.words) == 121_338_426 and count(model.image) == 22_032_981
    assert (count(model.img_proj, model.txt_proj), count(model.match), model.tau.numel()) == (328_192, 1_187_330, 1)
    assert count(model) == 144_886_930 and count(model) + count(head) == 145_399_930
    assert (model.image.name, model.size, model.dim, len(model.text.layers), len(model.cross.layers)) \
        == ("sgformer_s", (224, 224), 256, 6, 6)
    with torch.device("meta"): model.image = SGFormer(classes=1000)      # as the released program builds it
    assert count(model) == 145_399_930


def test_towers_by_name():
    with torch.device("meta"):
        for name, kind in (("sgformer_m", SGFormer), (SWIN, SwinTower), (f"{TINY}.ms_in1k", SwinTower),
                           ("resnet10t", TimmTower), ("vit_tiny_patch16_224", TimmTower)):
            assert type(image_tower(name, (224, 224))) is kind
    with pytest.raises(ValueError, match="tower='sgformer_l' is not known. Did you mean 'sgformer_.'. Choose .*timm"):
        camel_base(tower="sgformer_l")
    assert MODELS["camel_base"].starts.startswith("the tower trained on ImageNet (SG-Former-S.pth")


def test_the_paper_preset_is_the_paper_network():
    from reid_lab.recipes.camel_settings import PRESETS
    kw = dict(PRESETS["paper"].model_kw)
    with torch.device("meta"): model = create_model(PRESETS["paper"].model, **kw)
    assert count(model) == 144_886_930 and model.size == (224, 224) and PRESETS["paper"].model == "camel_base"


# --- Swin as APTM runs it ---------------------------------------------------------------------------------------------

def test_windows_of_the_authors_program():
    assert swin_windows((384, 128)) == (8, 8, 8, 4) and swin_windows((224, 224)) == (7, 7, 7, 7)
    assert swin_windows((384, 384), (12,)*4) == (12, 12, 12, 12) and swin_windows(SIZE) == (8, 4, 2, 1)
    with torch.device("meta"): net = timm_tower(SWIN, (384, 128)).net
    for stage, side, shift in zip(net.layers, (8, 8, 8, 4), (4, 4, 0, 0)):
        for i, b in enumerate(stage.blocks):
            own = shift*(i % 2)
            assert (b.window_size, b.shift_size, b.attn_mask is None) == ((side, side), (own, own), own == 0)
            assert len(b.attn.relative_position_bias_table) == (2*side - 1)**2


def naive_block(b, x):
    "A block of Swin on (H,W,C), token by token; regions that the shift brings together do not mix"
    H, W, C = x.shape
    (w, _), (s, _), heads = b.window_size, b.shift_size, b.attn.num_heads
    qkv, d = b.attn.qkv(b.norm1(x)), C//heads
    part = lambda n, N: ((n - s) % N//w, (n - s) % N >= N - s and s > 0)    # window, and across the border or not
    y = torch.zeros_like(x)
    for i in range(H):
        for j in range(W):
            own = part(i, H), part(j, W)
            same = [(p, q) for p in range(H) for q in range(W) if (part(p, H), part(q, W)) == own]
            where = lambda n, N: (n - s) % N % w
            for h in range(heads):
                q = qkv[i, j, h*d:h*d + d]
                bias = [b.attn.relative_position_bias_table[(where(i, H) - where(p, H) + w - 1)*(2*w - 1)
                                                            + where(j, W) - where(r, W) + w - 1, h] for p, r in same]
                a = torch.stack([q @ qkv[p, r, C + h*d:C + h*d + d]/math.sqrt(d) + z
                                 for (p, r), z in zip(same, bias)]).softmax(0)
                y[i, j, h*d:h*d + d] = sum(t*qkv[p, r, 2*C + h*d:2*C + h*d + d] for t, (p, r) in zip(a, same))
    x = x + b.attn.proj(y)
    return x + b.mlp(b.norm2(x))


@torch.no_grad()
def test_blocks_of_swin_token_by_token():
    "With a shift, and where a window fills the short side and timm alone would shift the long one"
    from timm.models.swin_transformer import SwinTransformer
    net = SwinTransformer(img_size=(32, 32), patch_size=4, embed_dim=8, depths=(2,), num_heads=(2,), window_size=4)
    shifted = randomised(net.layers[0].blocks[1]).double()
    assert shifted.shift_size == (2, 2)
    x = torch.randn(1, 8, 8, 8, dtype=torch.float64)
    assert torch.allclose(shifted(x)[0], naive_block(shifted, x[0]), atol=1e-8)
    still = randomised(timm_tower(TINY, (64, 32)).net.layers[1].blocks[1]).double()
    x = torch.randn(1, 8, 4, 192, dtype=torch.float64)
    assert still.window_size == (4, 4) and still.shift_size == (0, 0)
    assert torch.allclose(still(x)[0], naive_block(still, x[0]), atol=1e-8)


def test_swin_of_its_authors_starts_a_tower(tmp_path):
    name = TINY
    theirs = randomised(timm.create_model(name, num_classes=0, global_pool=""))
    head = {"head.weight": torch.ones(3, 768), "head.bias": torch.ones(3)}
    torch.save(dict(model=authors_names(theirs.state_dict()) | head), tmp_path/"swin.pth")
    torch.save(theirs.state_dict(), tmp_path/"timm.pth")
    assert [identify(tmp_path/f).name for f in ("swin.pth", "timm.pth")] == ["swin", "timm_swin"]
    img = torch.randn(1, 3, 224, 224)
    for file in ("swin.pth", "timm.pth"):
        tower = timm_tower(name).eval()
        tower.start(tmp_path/file)
        with torch.no_grad(): tok, want = tower(img), theirs(img).flatten(1, 2)
        assert torch.allclose(tok[:, 1:], want, atol=1e-5) and torch.allclose(tok[:, 0], want.mean(1), atol=1e-5)
        assert not tower.loaded.missing and not tower.loaded.unused and not tower.loaded.resized
    assert {why for _, why in timm_start(tmp_path/"swin.pth").left} == {"classifier of the pretraining",
                                                                       "follows from the size of the input"}
    crop = timm_tower(name, (384, 128))
    crop.start(tmp_path/"swin.pth")
    assert len(crop.loaded.resized) == 12 and "(169, 3) -> (225, 3)" in crop.loaded.resized[0]
    old, new = (n.layers[0].blocks[0].attn.relative_position_bias_table.detach() for n in (theirs, crop.net))
    assert torch.allclose(new[112], old[84], atol=1e-4)                                # the middle stays the middle
    assert inspect_weights(tmp_path/"swin.pth")["arguments"] == dict(tower=name)


def timm_start(path):
    tower = timm_tower(TINY)
    tower.start(path)
    return tower.loaded


# --- whole checkpoints ------------------------------------------------------------------------------------------------

def small_camel(image, **kw):
    sizes = dict(width=W, heads=HEADS, layers=6, ffn=4*W, dropout=0.)
    model = CAMeL(image, TextEncoder(VOCAB, **sizes), CrossEncoder(img_width=image.width, **sizes), SIZE, **kw)
    model.match.net[1].eps = 1e-5
    return model.eval()


@pytest.fixture(params=["aptm", "camel", "camel-mlp", "aptm-no-words", "aptm-mlp"])
def pair(request, tmp_path):
    "A released checkpoint with a small BERT, and a model for it"
    kind, mlp, mlm = request.param.split("-")[0], "mlp" in request.param, "no" not in request.param
    torch.manual_seed(0)                # the tower's initial numbers do not depend on the tests before
    tower = randomised(timm_tower(TINY, SIZE) if kind == "aptm" else SGFormer("small", SIZE))
    own = authors_names(tower.net.state_dict()) if kind == "aptm" else tower.state_dict() | {
        "head.weight": torch.ones(1000, 32), "head.bias": torch.ones(1000)}
    state = drawn(text_shapes(W, 16, VOCAB, tower.width, mlm) | image_head_shapes(tower.width, 16, mlp))
    tied = "text_encoder.bert.embeddings.word_embeddings.weight"
    if mlm: state["text_encoder.cls.predictions.decoder.weight"] = state[tied]
    state |= {f"vision_encoder.{k}": v for k, v in own.items()}
    if kind == "camel": state["pool_alpha"] = torch.tensor([-4.])
    torch.save(dict(model=state, config=dict(embed_dim=16)), tmp_path/"checkpoint_best.pth")
    return kind, mlp, mlm, tower, state, tmp_path/"checkpoint_best.pth"


def test_a_whole_checkpoint_gives_the_released_outputs(pair):
    kind, mlp, mlm, tower, state, path = pair
    assert identify(path).name == kind and identify(path).fits == ("camel_base",)
    start = begin(path, (kind,), "a pair")
    heads = heads_of(start.state, start.gives)
    pool = "token0" if not mlp else "mix" if kind == "camel" else None      # one linear layer: of the pretraining
    assert heads == dict(dim=16, img_head="mlp" if mlp else "linear", **dict(pool=pool) if pool else {})
    new = timm_tower(TINY, SIZE) if kind == "aptm" else SGFormer("small", SIZE)
    pool = dict(pool="token0")                                       # the released evaluation, for both
    model = small_camel(new, **heads | pool)
    if mlm: loaded = load_camel(model, start)
    else:
        with pytest.warns(UserWarning, match="not found: words"): loaded = load_camel(model, start)
    g = torch.Generator().manual_seed(3)
    img, tokens = torch.randn(2, 3, *SIZE, generator=g), torch.randint(5, VOCAB, (2, 7), generator=g)
    tokens[1, 5:] = 0
    with torch.no_grad():
        tok = tower(img)
        want = released_outputs(state, tok, tokens, mlp, "text_encoder.bert" if mlm else "text_encoder")
        v, mine = model.image_states(img*model.pixels.std + model.pixels.mean)
        t, x, mask = model.text_states(tokens)
        got = [t, v, model.match_logit(x, mask, mine)]
        if mlm: got.append(model.words(model.cross(x, mask, mine), model.text.word.weight))
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, atol=2e-5, rtol=1e-4), (a - b).abs().max()
    assert model.tau.item() == pytest.approx(.05) and tok.shape[1] == 2 + (kind == "aptm")
    why = dict(loaded.left)
    if kind == "camel":
        assert why["pool_alpha"] == "pool='token0' has no gate"
        assert why["vision_encoder.head.bias"] == "classifier of the pretraining"
    assert all(k in why or k in dict(loaded.renamed) for k in state), "every tensor is taken or left out with a reason"
    assert [k for k in loaded.kept if not k.startswith("pixels.")] == [] and not loaded.unused


def test_the_gate_is_read_from_the_checkpoint(pair):
    kind, mlp, mlm, tower, state, path = pair
    if kind != "camel": return
    start = begin(path, (kind,), "a pair")
    heads = heads_of(start.state, start.gives)
    if not mlp:
        assert heads["pool"] == "token0"
        return        # the pretraining reads token 0, whatever its gate says
    model = small_camel(SGFormer("small", SIZE), **heads)
    load_camel(model, start)
    assert model.pool.gate.item() == -4 and model.pool.gate.ndim == 0


def test_names_and_shapes_at_real_size():
    "Every tensor of both models at real size has its place in the released layouts, and the other way round"
    for kind, kw, mlp in (("aptm", dict(tower=SWIN, size=(384, 128)), False), ("camel", {}, False),
                          ("camel", dict(img_head="mlp", dim=512, pool="mix"), True)):
        with torch.device("meta"):
            model = camel_base(**kw)
            own = model.image.net.state_dict() if kind == "aptm" else model.image.state_dict()
            own = authors_names(own) if kind == "aptm" else own
            width, dim = model.image.width, model.dim
            shapes = text_shapes(768, dim, 30522, width) | image_head_shapes(width, dim, mlp)
            state = {k: torch.empty(s) for k, s in shapes.items()} | {f"vision_encoder.{k}": v for k, v in own.items()}
            if mlp: state["pool_alpha"] = torch.empty(1)
            layout = identify({f"module.{k}": v for k, v in state.items()})
            out = translate(state, layout).state
        assert layout.name == kind
        mine = {k: v.shape for k, v in model.state_dict().items() if not k.startswith("pixels.")}
        assert {k: v.shape for k, v in out.items()} == mine


@pytest.mark.whole
def test_camel_at_real_size_loads_and_is_converted(tmp_path):
    "Once, with few words: found by its names, built by the arguments that its shapes state, and written as ours"
    state = drawn(text_shapes(768, 256, VOCAB, 512) | image_head_shapes(512, 256, False))
    own = SGFormer(size=(224, 224)).state_dict()
    torch.save(dict(model={f"module.{k}": v.half() if v.is_floating_point() else v for k, v in (
        state | {f"vision_encoder.{k}": v for k, v in own.items()}).items()}), tmp_path/"checkpoint_best.pth")
    found = inspect_weights(tmp_path/"checkpoint_best.pth")
    assert found["arguments"] == dict(tower="sgformer_s", dim=256, img_head="linear", pool="token0",
                                      vocab_size=VOCAB)
    assert "create_model('camel_base', weights='checkpoint_best.pth', tower='sgformer_s'" in weights_text(found)
    del state, own
    card = convert_weights(tmp_path/"checkpoint_best.pth", tmp_path/"camel.safetensors", "camel_base")
    assert json.loads(card["kept"]) == [] and card["taken"].startswith("940 of 940")
    letters = [chr(97 + i) for i in range(26)]
    (tmp_path/"bert").mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "coat", "red", "hat", "bag", *letters[1:],
             *(f"##{x}" for x in letters[1:])]
    (tmp_path/"bert"/"vocab.txt").write_text("\n".join(words) + "\n")
    name = "module.text_encoder.bert.encoder.layer.9.crossattention.self.key.weight"
    want = torch.load(tmp_path/"checkpoint_best.pth", weights_only=True)["model"][name].float()
    weights = f"{tmp_path/'checkpoint_best.pth'},{tmp_path/'bert'}"
    config = Config("start", "smoke", model="camel_base", weights=weights)
    data = load_data("smoke", model="camel_base", weights=weights)
    assert data.tokenizer.vocab[5:8] == ["a", "coat", "red"] and data.tokenizer.vocab_size == VOCAB
    done = pretrain(config, data, quiet=True)       # no step: what a run starts from
    assert torch.equal(done.model.cross.layers[3].cross.k.weight.detach(), want) and not done.model.loaded.missing
    assert done.model.text_loaded is None and done.model.tokenizer is data.tokenizer
    assert {*done.key["files"]["text_weights"]["start"]} == {"vocab.txt"} and done.key["model_kw"]["dim"] == 256
    del done
    model = create_model("camel_base", weights=tmp_path/"camel.safetensors", vocab_size=VOCAB)
    assert model.pool.kind == "token0"      # what the card says of the converted file
    assert torch.equal(model.cross.layers[3].cross.k.weight.detach(), want)
    assert not model.loaded.missing


def test_heads_of_a_checkpoint_build_the_model_again():
    "What a training key keeps of a fine-tuned checkpoint (its dimensions, gate and projection of two layers) suffices"
    model = small_camel(SGFormer("small", SIZE), dim=24, pool="mix", img_head="mlp")
    with torch.device("meta"): again = camel_base(size=SIZE, **heads_of(model.state_dict()))
    assert again.dim == 24 and again.pool.kind == "mix" and isinstance(again.img_proj, torch.nn.Sequential)


def test_a_plain_state_dict_starts_both_halves(tmp_path):
    "No card tells that it is a whole model; its names do. Under a prefix too; a part of it, or other words, is refused"
    how = dict(tower="small", vocab_size=VOCAB, size=SIZE)
    torch.manual_seed(0)
    state = camel_base(**how).state_dict()
    path = tmp_path/"plain.pt"
    for prefix in ("", "model."):
        torch.save(dict(state_dict={prefix + k: v for k, v in state.items()}, epoch=3), path)
        torch.manual_seed(1)
        again = camel_base(weights=path, **how).state_dict()
        assert all(torch.equal(v, again[k]) for k, v in state.items())
    assert whole_checkpoint(path).words == VOCAB
    with pytest.raises(ValueError, match=f"has {VOCAB} word pieces, the vocabulary here 61"):
        camel_base(weights=path, **how | dict(vocab_size=VOCAB + 1))
    torch.save({k: v for k, v in state.items() if not k.startswith("text.layers.3.")}, path)
    with pytest.raises(ValueError, match=r"plain state dict of this library's camel_base.*16 missing"):
        camel_base(weights=path, **how)


def test_a_pair_of_weights_names_what_it_lacks(pair, tmp_path):
    "A whole checkpoint needs the vocabulary alone, a tower BERT's weights too; sizes have to agree"
    kind, *_, path = pair
    released, tower = dict(aptm="APTM", camel="CAMeL")[kind], tmp_path/"tower.pth"
    torch.save(dict(a=torch.ones(2)), tower)
    whole = whole_checkpoint(path)
    assert released in whole.about and (whole.words, whole.tokenizer) == (VOCAB, False)
    assert whole_checkpoint(tower) is None and whole_checkpoint(tmp_path/"gone") is None
    config = lambda image, text: Config("camel", "paper", weights=f"{image},{text}".rstrip(","))
    for text in ("", "none"):
        said = str(*start_findings(config(path, text)))
        assert f"a released {released}" in said and f"for {VOCAB} word pieces" in said and "vocab.txt" in said
    assert start_findings(config(tower, "none")) == []
    assert "would start from random numbers" in str(*start_findings(config(tower, "")))
    bert = tmp_path/"bert"
    said = [str(f) for w in (path, tower) for f in start_findings(config(w, bert))]
    assert ["is no folder" in x for x in said] == [True, True]
    assert ["config.json" in x for x in said] == [False, True]
    bert.mkdir()
    assert ["no vocab.txt" in str(f) for f in start_findings(config(path, bert))] == [True]
    assert ["no vocab.txt" in str(f) for f in start_findings(config(tower, bert))] == [True, False]
    (bert/"vocab.txt").write_text("[PAD]\n[UNK]\n")
    assert "has 2 word pieces in vocab.txt" in str(*start_findings(config(path, bert)))
    assert "holds no config.json" in str(*start_findings(config(tower, bert)))
    (bert/"vocab.txt").write_text("\n".join(map(str, range(VOCAB))) + "\n")
    assert start_findings(config(path, bert)) == []
    if kind == "camel":
        with pytest.raises(ValueError, match=f"has {VOCAB} word pieces, the vocabulary here 61"):
            camel_base(vocab_size=VOCAB + 1, weights=path, text_weights=bert)


@pytest.mark.parametrize("tower, grid", [("small", (2, 1)), (TINY, (2, 1))])
def test_maps_over_the_image(tower, grid):
    "Grad-CAM and the words' attention lie on the grid of the crop; the mean in front of Swin's tokens is no place"
    from reid_lab.analysis.explain.image_maps import cross_maps, grad_cam
    from reid_lab.analysis.explain.places import map_grid, score_of
    torch.manual_seed(0)
    model = small_camel(image_tower(tower, SIZE), dim=16)
    model.tokenizer = lambda texts: torch.tensor([[2, 7, 9, 3]]*len(texts))
    img = torch.rand(2, 3, *SIZE)
    heat = grad_cam(score_of(model, image=img.flip(0)), img)
    assert map_grid(model) == grid and heat.shape == (2, *SIZE) and math.isfinite(float(heat.sum()))
    words = cross_maps(model, img, ["a coat", "a hat"], "attention")
    assert words.shape == (2, 4, *grid) and (words >= 0).all() and (words.sum((2, 3)) <= 1 + 1e-5).all()


def test_refusals_name_the_tower(pair):
    kind, *_, path = pair
    with pytest.raises(ValueError, match=f"a released {'APTM' if kind == 'aptm' else 'CAMeL'} .*tower='"):
        camel_base(tower="resnet10t", vocab_size=VOCAB, size=SIZE, weights=path)


def test_masked_words_can_leave_the_image_tower_alone():
    torch.manual_seed(0)
    model = small_camel(SGFormer("small", SIZE), dim=16).train()
    batch = sample_batch(SIZE)
    def gradients(mlm_image):
        model.mlm_image = mlm_image
        model.zero_grad()
        model(batch)["mlm_loss"].backward()
        return [any(p.grad is not None and p.grad.abs().sum() > 0 for p in part.parameters())
                for part in (model.image, model.cross)]
    assert gradients(True) == [True, True] and gradients(False) == [False, True]


@pytest.mark.parametrize("tower", ["sgformer_s", "resnet10t"])
def test_losses_reach_every_parameter(tower):
    torch.manual_seed(0)
    image = SGFormer("small", SIZE) if tower == "sgformer_s" else timm_tower(tower, SIZE)
    model = small_camel(image, dim=16, eda_weight=0.).train()
    out = model(sample_batch(SIZE))
    sum(v for k, v in out.items() if k.endswith("_loss")).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_bert_folder_starts_the_text_side_of_the_paper_network(tmp_path):
    from transformers import BertConfig, BertForMaskedLM
    torch.manual_seed(0)
    bert = BertForMaskedLM(BertConfig(vocab_size=VOCAB))
    bert.save_pretrained(tmp_path/"bert")
    model = camel_base(vocab_size=VOCAB, size=SIZE, text_weights=tmp_path/"bert")
    theirs = bert.state_dict()
    for name, at in (("text.layers.5", 5), ("cross.layers.0", 6), ("cross.layers.5", 11)):
        mine = model.get_submodule(name)
        assert torch.equal(mine.attn.k.weight, theirs[f"bert.encoder.layer.{at}.attention.self.key.weight"])
        assert torch.equal(mine.down.weight, theirs[f"bert.encoder.layer.{at}.output.dense.weight"])
    assert not model.text_loaded.missing and len(model.text_loaded.kept) == 60 and model.loaded is None
    assert torch.equal(model.words.bias, theirs["cls.predictions.bias"])


def test_the_temperature_starts_as_set_and_stays_within_bounds():
    model = small_camel(timm_tower(TINY, SIZE), tau=.2)
    assert model.temperature.item() == pytest.approx(.2)
    for far, bound in ((-1., .001), (3., .5)):
        with torch.no_grad(): model.tau.fill_(far)
        assert model.temperature.item() == pytest.approx(bound)
