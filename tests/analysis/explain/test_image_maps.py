"""Heat maps and their faithfulness: naive references, planted truths, every tower of the zoo."""
import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from reid_lab.analysis.explain import image_maps, map_scores, places, word_maps
from reid_lab.analysis.explain import faithfulness
from reid_lab.core import statistics
from reid_lab.analysis.explain.visibility import named_parts, person_pairs, read_words, token_words
from reid_lab.data.text import ClipBPE, WordPiece
from reid_lab.models.backbones import ResTower, TimmTower
from reid_lab.models.bot import BoT
from reid_lab.models.zoo import MODELS, NEEDS, create_model, list_models, sample_batch

SIZE, SAID = (64, 32), ["a man in a red coat", "a woman with a black bag", "a man"]
TOK = WordPiece.train(SAID*3 + ["the quick brown fox in jeans"], vocab_size=80, context_length=14)
CONTROLS = list_models(trains=False)
NAMES = list_models(size="tiny") + CONTROLS
TEXT = list_models(size="tiny", reads="captions")


def tiny(name, **kw):
    torch.manual_seed(0)
    need = NEEDS | dict(tokenizer=TOK)
    return create_model(name, size=SIZE, **{k: need[k] for k in MODELS[name].needs}, **kw)


def frozen_tower(tower):
    torch.manual_seed(0)
    return create_model("frozen", tower=tower, weights="none", size=SIZE)


@pytest.fixture(scope="module")
def img(): return sample_batch(SIZE, n=4)["img"][:3]


def hooks(model): return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def bare(model): return {k: (p.requires_grad, p.grad is None) for k, p in model.named_parameters()}


# --- every tower of the zoo ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_grad_cam_of_every_model(name, img):
    model = tiny(name)
    model.train()
    trained, before = model.training, bare(model)
    score = places.score_of(model, image=img.flip(0))
    for method in image_maps.CAMS:
        heat = image_maps.grad_cam(score, img, method)
        assert heat.shape == (3, *SIZE) and np.isfinite(heat).all() and heat.min() >= 0 and heat.max() <= 1
    assert heat.max() > 0
    assert model.training == trained and bare(model) == before and hooks(model) == 0
    assert places.map_grid(model, SIZE)[0] >= places.map_grid(model, SIZE)[1]


@pytest.mark.parametrize("name", list_models(size="tiny", reads="images"))
def test_identity_is_a_target(name, img):
    model = tiny(name).eval()
    with torch.no_grad(): want = model.logits(img)[torch.arange(3), torch.tensor([0, 2, 1])]
    score = places.score_of(model, label=[0, 2, 1])
    assert torch.allclose(score(img), want, atol=1e-5)
    assert image_maps.grad_cam(score, img).shape == (3, *SIZE)


def test_scores_of_a_model_in_training_are_those_of_evaluation(img):
    model = tiny("bot_tiny").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    score = places.score_of(model, image=img)
    a = faithfulness.perturbation_curve(score, img, np.random.default_rng(0).random((3, 4, 2)), steps=2)
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert np.allclose(a[:, 0], 1, atol=1e-5)


@pytest.mark.parametrize("name", TEXT)
def test_text_is_a_target(name, img):
    model = tiny(name).eval()
    with torch.no_grad():
        t = model.encode_text(model.tokenizer(SAID))
        want = (model.encode_image(img)*t).sum(1)
        less = want - (model.encode_image(img)*model.encode_text(model.tokenizer(["a", "b", "c"]))).sum(1)
    assert torch.allclose(places.score_of(model, text=SAID)(img), want, atol=1e-5)
    assert torch.allclose(places.score_of(model, text=SAID, against=["a", "b", "c"])(img), less, atol=1e-5)
    assert torch.allclose(places.score_of(model, to=t)(img.repeat(2, 1, 1, 1)), want.repeat(2), atol=1e-5)
    assert image_maps.grad_cam(places.score_of(model, text=SAID[0]), img).shape == (3, *SIZE)


@pytest.mark.parametrize("tower", ["test_vit", "test_vit2", "test_resnet", "test_convnext", "test_efficientnet",
                                   "swin_s3_tiny_224", "vit_base_patch16_siglip_224", "vit_wee_patch16_reg1_gap_256"])
def test_timm_towers(tower):
    "CLS, pooled patches, register tokens, channels last, on a rectangle"
    with torch.device("meta"):
        import timm
        small = timm.create_model(tower, num_classes=0, **dict(img_size=(64, 32)) if "vit" in tower else {})
        place = places._timm_place(small)
        if place.prefix is not None: assert place.grid((64, 32)) == (64//place.patch[0], 32//place.patch[0])
    if not tower.startswith("test_"): return
    model, x = frozen_tower(tower), torch.rand(2, 3, *SIZE)
    heat = image_maps.grad_cam(places.score_of(model, image=x.flip(0)), x)
    assert heat.shape == (2, *SIZE) and np.isfinite(heat).all() and heat.max() > 0
    if place.blocks: assert image_maps.rollout(model, x).shape == (2, *SIZE)


def test_channels_last_maps():
    x = torch.rand(2, 4, 3, 7)
    place = places.Place(nn.Identity(), 7)
    assert torch.equal(place.maps(x, SIZE), x.permute(0, 3, 1, 2))
    assert torch.equal(place.maps(x.permute(0, 3, 1, 2), SIZE), x.permute(0, 3, 1, 2))
    tokens = torch.arange(1 + 8.).view(1, 9, 1)
    assert places.Place(nn.Identity(), 1, 1, (16, 16)).maps(tokens, SIZE)[0, 0].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    with pytest.raises(ValueError, match="no map"): place.maps(torch.rand(2, 3, 7), SIZE)


def test_unknown_towers_are_named_with_the_remedy():
    with pytest.raises(TypeError, match="TOWERS"): places.place_of(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="nothing to roll out"): image_maps.rollout(tiny("bot_tiny"), torch.rand(1, 3, *SIZE))


# --- naive references ------------------------------------------------------------------------------------------------

def naive_cam(model, place, score, x, method, grid=None):
    "One image: gradient by torch, the rest in loops"
    kept = []
    handle = place.layer.register_forward_hook(lambda m, a, out: kept.append(out))
    model.eval()
    s = score(x)
    grad, = torch.autograd.grad(s.sum(), kept[0])
    handle.remove()
    act, grad = kept[0][0].detach().numpy(), grad[0].numpy()
    if grid is not None:
        rows, cols = grid
        pick = lambda a: np.array([[a[1 + r*cols + c] for c in range(cols)] for r in range(rows)]).transpose(2, 0, 1)
        act, grad = pick(act), pick(grad)
    out = np.zeros(act.shape[1:])
    for c in range(act.shape[0]):
        for i in range(act.shape[1]):
            for j in range(act.shape[2]):
                if method == "gradcam": out[i, j] += grad[c].mean()*act[c, i, j]
                if method == "hirescam": out[i, j] += grad[c, i, j]*act[c, i, j]
    assert np.abs(out).max() > 1e-3*np.abs(grad*act).sum(0).max() # read before a LayerNorm it would be rounding
    out = np.maximum(out, 0)
    out = (out - out.min())/(1e-7 + (out - out.min()).max())
    big = faithfulness.fit_map(out, SIZE)[0]
    return (big - big.min())/(1e-7 + (big - big.min()).max())


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
@pytest.mark.parametrize("name, grid", [("bot_tiny", None), ("transreid_tiny", (5, 2)), ("clip_tiny", (4, 2))])
def test_grad_cam_against_loops(name, grid, method, img):
    model = tiny(name).eval()
    score = places.score_of(model, image=img[1:2])
    got = image_maps.grad_cam(score, img[:1], method)[0]
    want = naive_cam(model, places.place_of(model), score, img[:1].requires_grad_(), method, grid)
    assert np.abs(got - want).max() < .02  # two libraries resize


def naive_rollout(weights):
    total = np.eye(weights[0].shape[-1])
    for w in weights:
        a = w.mean(0)
        n = len(a)
        mixed = np.array([[.5*a[i, j] + .5*(i == j) for j in range(n)] for i in range(n)])
        total = mixed @ total
    return total


@pytest.mark.parametrize("name", ["transreid_tiny", "clip_reid_tiny", "clip_tiny", "cfan_tiny"])
def test_rollout(name, img):
    model = tiny(name).eval()
    place = places.place_of(model)
    with image_maps.recorded(place.blocks) as found, torch.no_grad(): before = model.encode_image(img)
    assert hooks(model) == 0
    with torch.no_grad(): assert torch.equal(before, model.encode_image(img))
    total = image_maps.rollout_matrix(found)
    assert torch.allclose(total.sum(-1), torch.ones(total.shape[:2]), atol=1e-5)
    assert np.allclose(total[1], naive_rollout([w[1].numpy() for w in found]), atol=1e-6)
    heat = image_maps.rollout(model, img)
    grid = total[1, 0, 1:].reshape(place.grid(SIZE)).numpy()
    assert np.allclose(heat[1], faithfulness.unit_map(faithfulness.fit_map(grid, SIZE))[0], atol=1e-6)


def test_recorded_weights_give_the_output_of_the_attention():
    "timm's and torch's attention, from the recorded weights and the values"
    model = tiny("transreid_tiny").eval()
    m, x = model.blocks[0].attn, torch.randn(2, 11, model.cls.shape[-1])
    with image_maps.recorded([m]) as found, torch.no_grad(): out = m(x)
    v = m.qkv(x).unflatten(2, (3, m.num_heads, -1)).permute(2, 0, 3, 1, 4)[2]
    assert torch.allclose(m.proj((found[0] @ v).transpose(1, 2).flatten(2)), out, atol=1e-5)
    m = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False]*5, [False]*3 + [True]*2])
    with image_maps.recorded([m]) as found, torch.no_grad(): out = m(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    v = nn.functional.linear(x, m.in_proj_weight[16:], m.in_proj_bias[16:]).unflatten(2, (2, 4)).transpose(1, 2)
    assert torch.allclose(m.out_proj((found[0] @ v).transpose(1, 2).flatten(2)), out, atol=1e-5)
    assert (found[0][1, ..., 3:] == 0).all()
    with pytest.raises(TypeError, match="Linear is not known"):
        with image_maps.recorded([nn.Linear(2, 2)]): pass


def test_cross_maps_against_loops(img):
    "Weight times positive gradient of the match, mean over heads; the forward pass is written out"
    model = tiny("camel_tiny", layers=2).eval()
    tokens = TOK(SAID)
    (_, x, mask), tok = model.text_states(tokens), model.image_states(img)[1]
    first, last = model.cross.layers
    y = last.attn(first(x, mask, tok), mask=mask)
    c = last.cross
    w = c.weights(y, tok)
    w.retain_grad()
    mixed = (w @ c._heads(c.v(tok))).transpose(1, 2).flatten(2)
    y = c.norm(y + c.out(mixed))
    y = last.norm(y + last.down(nn.functional.gelu(last.up(y))))
    two = model.match(model.pool_text(y, mask))
    assert torch.allclose(two, model.match_logit(x, mask, tok), atol=1e-4)
    (two[:, 1] - two[:, 0]).sum().backward()
    want = np.zeros((3, tokens.shape[1], tok.shape[1]))
    for b in range(3):
        for l in range(tokens.shape[1]):
            for h in range(w.shape[1]):
                want[b, l] += (w[b, h, l]*w.grad[b, h, l].clamp(min=0)).detach().numpy()/w.shape[1]
    model.zero_grad()
    got = image_maps.cross_maps(model, img, SAID)
    assert got.shape == (3, 14, 4, 2) and np.abs(got.reshape(want.shape) - want).max() < 1e-6
    assert hooks(model) == 0 and all(p.grad is None for p in model.parameters())
    assert np.allclose(image_maps.cross_maps(model, img, SAID, "attention", layer=0).sum((2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize("name, kw", [("cfam_tiny", {}), ("cfam_tiny", dict(wiring="cross-first")), ("cfan_tiny", {})])
def test_query_maps(name, kw, img):
    model = tiny(name, **kw).eval()
    of_img, of_txt = image_maps.query_maps(model, img), image_maps.query_maps(model, texts=SAID)
    assert of_img.shape == (3, 4, 4, 2) and (of_img.sum((2, 3)) < 1).all()
    real = np.array([[i < n for i in range(of_txt.shape[2])] for n in TOK.lengths(TOK(SAID))])
    assert np.allclose(of_txt.sum(2), 1, atol=1e-5) and of_txt.transpose(0, 2, 1)[~real].max() == 0
    both = image_maps.query_word_maps(model, img, SAID)
    share = of_txt[1, :, 2]/of_txt[1, :, 2].sum()
    assert np.allclose(both[1, 2], sum(s*m for s, m in zip(share, of_img[1])), atol=1e-6)
    if name == "cfan_tiny":
        theirs = model.memberships(img)["attention"][..., 1:].numpy()
        assert np.allclose(of_img.reshape(theirs.shape), theirs, atol=1e-6)


# --- planted truths --------------------------------------------------------------------------------------------------

class Planted(nn.Module):
    "Embeds the brightness of one region; channel 0 of its map holds that region, channel 1 the rest"
    def __init__(self, region):
        super().__init__()
        self.tower = ResTower((2, 2, 2, 2))
        self.tower.stem, self.tower.stages = nn.AvgPool2d(4), Split(region)
        self.size, self.dim = SIZE, 1

    def encode_image(self, img): return self.tower.features(img)[:, :1].mean((2, 3))


class Split(nn.Module):
    def __init__(self, region):
        super().__init__()
        self.where = nn.Parameter(torch.as_tensor(region).float()[None, None])

    def forward(self, x):
        bright = x.mean(1, keepdim=True)
        return torch.cat([bright*self.where, bright*(1 - self.where)], 1)


def test_a_planted_region_is_found(img):
    region = np.zeros((16, 8)); region[4:8, 2:6] = 1
    truth = np.repeat(np.kron(region, np.ones((4, 4)))[None], 3, 0) > 0
    chance = faithfulness.chance_level(truth)[0]
    assert chance == 1/8
    score = places.score_of(Planted(region), to=[[1.]])
    maps = {m: image_maps.grad_cam(score, img, m) for m in image_maps.CAMS}
    maps["occlusion"] = image_maps.occlusion_map(score, img, patch=8, stride=4, baseline=torch.zeros_like(img))
    for method, heat in maps.items():
        assert (faithfulness.mass_inside(heat, truth) > 4*chance).all() and (faithfulness.pointing(heat, truth) == 1).all(), method
        found = faithfulness.against_random(score, img, heat, n=4, steps=8, patch=4, baseline=torch.zeros_like(img))
        assert found.gain.min() > 0 and found.beats.mean() > .9, method


def test_occlusion_against_a_loop(img):
    score = lambda x: (x**2).sum((1, 2, 3))
    fall, count = np.zeros(SIZE), np.zeros(SIZE)
    for y in range(0, 49, 8):
        for x in (0, 8, 16):
            hidden = img[:1].clone(); hidden[:, :, y:y + 16, x:x + 16] = .5
            fall[y:y + 16, x:x + 16] += float(score(img[:1]) - score(hidden)); count[y:y + 16, x:x + 16] += 1
    for some, batch in ((img, 128), (img[:1], 1)):
        got = image_maps.occlusion_map(score, some, patch=16, stride=8, baseline="grey", batch=batch)
        assert np.abs(got[0] - fall/count).max() < 1e-3


# --- words -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", TEXT + ["frozen_pair"])
@pytest.mark.parametrize("plain", word_maps.PLAIN)
def test_integrated_gradients_are_complete(name, plain, img):
    model = tiny(name)
    tok = model.tokenizer
    with torch.no_grad(): to = model.eval().encode_image(img)
    values, score, start = word_maps.integrated_gradients(model, SAID, to, steps=48, plain=plain)
    with torch.no_grad(): assert np.allclose(score, (model.encode_text(tok(SAID))*to).sum(1), atol=1e-5)
    assert np.abs(values.sum(1) - (score - start)).max() < 2e-3*max(1, np.abs(score - start).max())
    fixed = torch.isin(tok(SAID), torch.tensor([tok.cls_id, tok.sep_id, tok.pad_id])).numpy()
    assert (values[fixed] == 0).all() and np.abs(values[~fixed]).max() > 0 and hooks(model) == 0
    if plain == "unk":
        with torch.no_grad():
            ids = tok(SAID); ids[torch.as_tensor(~fixed)] = tok.unk_id
            assert np.allclose(start, (model.encode_text(ids)*to).sum(1), atol=1e-4)


class Bag(nn.Module):
    "Captions are the sum of their words: attribution is exact"
    def __init__(self):
        super().__init__()
        self.tokenizer, self.token_embedding = TOK, nn.Embedding(TOK.vocab_size, 4)

    def encode_text(self, tokens): return self.token_embedding(tokens).sum(1)


def test_saliency_of_a_bag_of_words_is_exact():
    torch.manual_seed(0)
    model, to = Bag(), torch.randn(4)
    values, score, start = word_maps.integrated_gradients(model, SAID[0], to, steps=1, plain="zero")
    ids = TOK(SAID[0])[0]
    worth = (model.token_embedding.weight @ to).detach().numpy()
    inner = range(1, 1 + len(TOK.ids(SAID[0])))
    assert np.allclose([values[0, i] for i in inner], worth[ids[list(inner)]], atol=1e-5)
    per_word = word_maps.word_values(TOK, SAID[0], values[0])
    gone = word_maps.word_occlusion(word_maps.text_score(model, to), SAID[0])
    pad = worth[TOK.pad_id]
    pieces = np.array([len(t) for _, t in token_words(TOK, SAID[0])])
    assert np.allclose(gone, per_word - pieces*pad, atol=1e-4)   # a removed token leaves room for padding
    unk = word_maps.word_occlusion(word_maps.text_score(model, to), SAID[0], "unk")
    assert np.allclose(unk, gone - (worth[TOK.unk_id] - pad), atol=1e-4)


def test_word_scores_of_pairs(img):
    model = tiny("camel_tiny").eval()
    one = word_maps.text_score(model, None, match_img=img[:1])
    with torch.no_grad():
        _, x, mask = model.text_states(TOK(SAID))
        two = model.match_logit(x, mask, model.image_states(img[:1])[1].expand(3, -1, -1))
    assert torch.allclose(one(SAID), two[:, 1] - two[:, 0], atol=1e-5)
    with pytest.raises(TypeError, match="reads no captions"): word_maps.text_score(tiny("bot_tiny"), torch.zeros(2))


@pytest.mark.parametrize("tok", [TOK, ClipBPE(12)])
@pytest.mark.parametrize("text", ["a man in a red coat", "A T-shirt, unheard of!", "", "a [UNK] coat " + "fox "*20])
def test_tokens_of_words(tok, text):
    words, row = token_words(tok, text), tok(text)[0].tolist()
    assert [w for w, _ in words] == read_words(tok, text).split()
    flat = [i for _, at in words for i in at]
    inside = [i for i, t in enumerate(row) if t not in (tok.cls_id, tok.sep_id) and 0 < i < row.index(tok.sep_id)]
    assert flat == inside
    for w, at in words:
        if at and max(at) < tok.context_length - 2: assert [row[i] for i in at] == tok.ids(w)


# --- faithfulness ----------------------------------------------------------------------------------------------------

def naive_curve(score, img, heat, mode, steps, patch, plain):
    "One image whose map has no ties; units in a list"
    H, W = heat.shape
    units = [(r, c) for r in range(0, H, patch) for c in range(0, W, patch)]
    units.sort(key=lambda u: -heat[u[0]:u[0] + patch, u[1]:u[1] + patch].mean())
    out = []
    for s in range(steps + 1):
        x = (img if mode == "deletion" else plain).clone()
        for r, c in units[:round(s*len(units)/steps)]:
            x[:, :, r:r + patch, c:c + patch] = (plain if mode == "deletion" else img)[:, :, r:r + patch, c:c + patch]
        out.append(float(score(x)[0]))
    return out


@pytest.mark.parametrize("mode", faithfulness.MODES)
@pytest.mark.parametrize("patch, steps, batch", [(8, 4, 128), (7, 5, 1), (1, 3, 7)])
def test_curves_against_a_loop(mode, patch, steps, batch, img):
    heat = np.random.default_rng(0).random((3, *SIZE))
    weight = torch.rand(3, *SIZE, generator=torch.Generator().manual_seed(1))
    target = torch.tensor([1., -2., 3.])                                  # one for each image
    score = lambda x: target.repeat(len(x)//3)*(x*weight).sum((1, 2, 3))
    got = faithfulness.perturbation_curve(score, img, heat, mode, steps, patch, "grey", batch)
    for b in range(3):
        one = lambda x: target[b]*(x*weight).sum((1, 2, 3))
        want = naive_curve(one, img[b:b + 1], heat[b], mode, steps, patch, torch.full_like(img[:1], .5))
        assert np.allclose(got[b], want, rtol=1e-4)
        trapezium = sum((want[i] + want[i + 1])/2 for i in range(steps))/steps
        assert math.isclose(faithfulness.area(got[b]), trapezium, rel_tol=1e-4)


def test_random_maps_have_the_spectrum_of_their_map():
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:64, :32]
    smooth = np.exp(-((y - 20)**2 + (x - 10)**2)/80.)
    rough = rng.random((64, 32))
    step = lambda m: np.abs(np.diff(m, axis=-1)).mean()/m.std()
    for m in (smooth, rough):
        maps = faithfulness.random_maps(m, 20, seed=1)[:, 0]
        assert maps.shape == (20, 64, 32) and .5 < np.mean([step(r) for r in maps])/step(m) < 2
        assert np.abs(np.corrcoef(maps.reshape(20, -1), m.reshape(1, -1))[-1, :-1].mean()) < .35
    assert np.array_equal(faithfulness.random_maps(smooth, 2, 3), faithfulness.random_maps(smooth, 2, 3))
    assert np.allclose(faithfulness.random_maps(np.full((1, 8, 4), 2.), 3), 2)


def test_a_random_map_does_not_beat_random_maps():
    "No gain where the map has nothing to do with the score; a gain where it is the score"
    x = torch.ones(40, 3, *SIZE)
    weight = torch.zeros(*SIZE); weight[10:30, 5:20] = 1
    score = lambda x: (x*weight).sum((1, 2, 3))
    y, c = np.mgrid[:64, :32]
    blob = np.exp(-((y - 50)**2 + (c - 20)**2)/60.)
    noise = faithfulness.random_maps(blob, 40, seed=9)[:, 0]
    kw = dict(modes="deletion", n=4, steps=8, baseline="grey")
    null = statistics.mean_interval(faithfulness.against_random(score, x, noise, **kw).gain)
    assert null["low"] < 0 < null["high"]
    right = faithfulness.against_random(score, x[:8], np.repeat(weight.numpy()[None], 8, 0), **kw)
    assert right.gain.min() > 0 and right.beats.mean() > .9


def test_constant_maps_are_chance(img):
    mask = np.zeros((3, *SIZE), bool); mask[0, :8] = True; mask[1, 3:20, 4:9] = True
    flat, area = np.full((3, 5, 7), .3), [8/64, 17*5/2048]
    for fn in (faithfulness.pointing, faithfulness.mass_inside):
        got = fn(flat, mask)
        assert np.allclose(got[:2], area) and np.isnan(got[2])
    assert np.allclose(faithfulness.chance_level(mask)[:2], area) and np.isnan(faithfulness.chance_level(mask)[2])
    within = np.zeros_like(mask); within[:, :16] = True
    assert np.allclose(faithfulness.chance_level(mask, within)[:2], [.5, 13*5/512])
    maps = np.random.default_rng(0).random((4000, 4, 2))
    hit = np.zeros((4000, 4, 2), bool); hit[:, 1] = True
    assert abs(faithfulness.pointing(maps, hit).mean() - .25) < .03


def test_pointing_and_mass_against_loops():
    rng = np.random.default_rng(0)
    heat, mask = rng.normal(size=(5, 6, 4)).round(1), rng.random((5, 6, 4)) < .3
    for b in range(5):
        top = [(i, j) for i in range(6) for j in range(4) if heat[b, i, j] == heat[b].max()]
        assert math.isclose(faithfulness.pointing(heat, mask)[b], sum(mask[b][p] for p in top)/len(top))
        total = sum(max(v, 0) for v in heat[b].ravel())
        inside = sum(max(heat[b, i, j], 0) for i in range(6) for j in range(4) if mask[b, i, j])
        assert math.isclose(faithfulness.mass_inside(heat, mask)[b], inside/total)


@pytest.mark.parametrize("bad", [np.full((2, 4, 2), np.nan), np.full((2, 4, 2), np.inf)])
def test_nan_is_refused(bad, img):
    with pytest.raises(ValueError, match="NaN or infinite values in the maps"): faithfulness.fit_map(bad)
    with pytest.raises(ValueError, match="NaN or infinite"): faithfulness.pointing(bad, np.ones((2, 4, 2)))
    with pytest.raises(ValueError, match="NaN or infinite"): faithfulness.word_curve(lambda t: torch.zeros(len(t)), "a", [np.nan])


def test_interval_of_groups():
    values, groups = [1., 3., 5., 7., 9.], ["a", "a", "b", "b", "c"]
    found = statistics.mean_interval(values, groups)
    means = np.array([2., 6., 9.])
    half = 4.302652729696142*means.std(ddof=1)/math.sqrt(3)               # Student's t, 2 degrees of freedom
    assert math.isclose(found["mean"], means.mean()) and (found["n"], found["groups"]) == (5, 3)
    assert math.isclose(found["low"], means.mean() - half, rel_tol=1e-9) and found["high"] >= means.mean() + half - 1e-9


@pytest.mark.parametrize("mode", faithfulness.MODES)
def test_word_curves_against_a_loop(mode):
    text, saliency = "one two three four five", [.1, .5, -.2, .9, 0.]
    score = lambda texts: torch.tensor([float(sum(len(w) for w in t.split())) for t in texts])
    order, want = [3, 1, 0, 4, 2], []
    for s in range(4):
        first = order[:round(s*5/3)]
        keep = [w for i, w in enumerate(text.split()) if (i in first) == (mode == "insertion")]
        want.append(sum(map(len, keep)))
    assert faithfulness.word_curve(score, text, saliency, mode, steps=3).tolist() == want


# --- the table -------------------------------------------------------------------------------------------------------

def test_table_of_maps():
    own = dict(pointing=[1, 1, 1, 1, 0, 1, 0, 0], mass=[.6, .7, .6, .65, *[.2]*4],
               deletion_gain=[.1, .12, .11, .1, .1, -.1, .2, -.2], deletion_beats=[1, 1, 1, 1, .5, 0, 1, 0.])
    f = pd.DataFrame(dict(model="m", method=["a"]*4 + ["b"]*4, pid=[1, 1, 2, 3]*2, world=0, part="upper",
                          chance=.2, chance_person=.5, **own))
    t = map_scores.map_table(f).set_index("method")
    assert (t.n == 4).all() and (t.groups == 3).all() and t.pointing.tolist() == [1, .25]
    assert math.isclose(t.point_person["b"], np.mean([.5, 0, 0]) - .5)
    assert t.points.tolist() == [True, False] and t.in_mask.tolist() == [True, False]
    assert t.deletes.tolist() == [True, False]
    assert len(map_scores.map_table(f, by=("method", "part"))) == 2
    with pytest.raises(ValueError, match="groups"): map_scores.map_table(f, "camera")
    one = map_scores.map_table(f, groups="world")
    assert (one.groups == 1).all() and not one.points.any()                # a single World has no interval


def test_scores_of_maps_on_a_world(tmp_path):
    from reid_lab.world.plan import Group
    from reid_lab.world.world import World
    world = World("quick", seed=3, task="text", cache=tmp_path, size=SIZE, groups=[Group("test", "real-like", 3, 2, 2)])
    table = world.table()
    camel, bot = tiny("camel_tiny"), tiny("bot_tiny")
    cells = named_parts(table, world, tokenizer=TOK)
    kw = dict(steps=3, n=1, quiet=True, batch=5)
    f = map_scores.map_scores(camel, table, world, ["gradcam", "cross-gradcam", "centre"], name="camel", **kw)
    assert len(f) == 3*len(cells) and f.deletion_beats.between(0, 1).all()
    masks = {(r.path, r.part): r["mask"] for _, r in cells.iterrows()}
    row = f[f.method == "centre"].iloc[2]
    mask = masks[row.path, row.part]
    assert math.isclose(row.chance, mask.mean()) and row.pointing == faithfulness.pointing(faithfulness.centre_map(SIZE), mask)[0]
    g = map_scores.map_scores(bot, table, world, name="bot", modes=(), **kw)
    assert set(g.part) == {"person"} and set(g.method) == set(map_scores.map_methods(bot)) and "deletion_gain" not in g
    pairs = person_pairs(table, world)
    assert (table["pid"].iloc[pairs.other].to_numpy() == pairs.pid.to_numpy()).all()
    assert (pairs.other != pairs.row).all()
    assert len(map_scores.map_table(pd.concat([f, g]))) == 3 + len(map_scores.map_methods(bot))
