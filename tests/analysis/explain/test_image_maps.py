"Heat maps of every tower against loops, and a planted region that they find"
import numpy as np
import pytest
import torch
from helpers.towers import SAID, SIZE, TOK, hooks, tiny
from torch import nn

from reid_lab.analysis.explain.faithfulness import (
    Perturbation,
    against_random,
    chance_level,
    fit_map,
    mass_inside,
    pointing,
    unit_map,
)
from reid_lab.analysis.explain.image_maps import (
    CAMS,
    cross_maps,
    grad_cam,
    occlusion_map,
    query_maps,
    query_word_maps,
    recorded,
    rollout,
    rollout_matrix,
)
from reid_lab.analysis.explain.places import map_grid, place_of, score_of
from reid_lab.models.backbones import ResTower
from reid_lab.models.zoo import list_models

CONTROLS = list_models(trains=False)
NAMES = list_models(size="tiny") + CONTROLS


def bare(model): return {k: (p.requires_grad, p.grad is None) for k, p in model.named_parameters()}


@pytest.mark.parametrize("name", NAMES)
def test_grad_cam_of_every_model(name, img):
    model = tiny(name)
    model.train()
    trained, before = model.training, bare(model)
    score = score_of(model, image=img.flip(0))
    for method in CAMS:
        heat = grad_cam(score, img, method)
        assert heat.shape == (3, *SIZE) and np.isfinite(heat).all() and heat.min() >= 0 and heat.max() <= 1
    assert heat.max() > 0
    assert model.training == trained and bare(model) == before and hooks(model) == 0
    assert map_grid(model, SIZE)[0] >= map_grid(model, SIZE)[1]


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
    big = fit_map(out, SIZE)[0]
    return (big - big.min())/(1e-7 + (big - big.min()).max())


@pytest.mark.parametrize("method", ["gradcam", "hirescam"])
@pytest.mark.parametrize("name, grid", [("bot_tiny", None), ("transreid_tiny", (5, 2)), ("clip_tiny", (4, 2))])
def test_grad_cam_against_loops(name, grid, method, img):
    model = tiny(name).eval()
    score = score_of(model, image=img[1:2])
    got = grad_cam(score, img[:1], method)[0]
    want = naive_cam(model, place_of(model), score, img[:1].requires_grad_(), method, grid)
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
    place = place_of(model)
    with recorded(place.blocks) as found, torch.no_grad(): before = model.encode_image(img)
    assert hooks(model) == 0
    with torch.no_grad(): assert torch.equal(before, model.encode_image(img))
    total = rollout_matrix(found)
    assert torch.allclose(total.sum(-1), torch.ones(total.shape[:2]), atol=1e-5)
    assert np.allclose(total[1], naive_rollout([w[1].numpy() for w in found]), atol=1e-6)
    heat = rollout(model, img)
    grid = total[1, 0, 1:].reshape(place.grid(SIZE)).numpy()
    assert np.allclose(heat[1], unit_map(fit_map(grid, SIZE))[0], atol=1e-6)


def test_recorded_weights_give_the_output_of_the_attention():
    "timm's and torch's attention, from the recorded weights and the values"
    model = tiny("transreid_tiny").eval()
    m, x = model.blocks[0].attn, torch.randn(2, 11, model.cls.shape[-1])
    with recorded([m]) as found, torch.no_grad(): out = m(x)
    v = m.qkv(x).unflatten(2, (3, m.num_heads, -1)).permute(2, 0, 3, 1, 4)[2]
    assert torch.allclose(m.proj((found[0] @ v).transpose(1, 2).flatten(2)), out, atol=1e-5)
    m = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False]*5, [False]*3 + [True]*2])
    with recorded([m]) as found, torch.no_grad(): out = m(x, x, x, key_padding_mask=padding, need_weights=False)[0]
    v = nn.functional.linear(x, m.in_proj_weight[16:], m.in_proj_bias[16:]).unflatten(2, (2, 4)).transpose(1, 2)
    assert torch.allclose(m.out_proj((found[0] @ v).transpose(1, 2).flatten(2)), out, atol=1e-5)
    assert (found[0][1, ..., 3:] == 0).all()
    with pytest.raises(TypeError, match="Linear is not known"):
        with recorded([nn.Linear(2, 2)]): pass


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
    got = cross_maps(model, img, SAID)
    assert got.shape == (3, 14, 4, 2) and np.abs(got.reshape(want.shape) - want).max() < 1e-6
    assert hooks(model) == 0 and all(p.grad is None for p in model.parameters())
    assert np.allclose(cross_maps(model, img, SAID, "attention", layer=0).sum((2, 3)), 1, atol=1e-5)


@pytest.mark.parametrize("name, kw", [("cfam_tiny", {}), ("cfam_tiny", dict(wiring="cross-first")), ("cfan_tiny", {})])
def test_query_maps(name, kw, img):
    model = tiny(name, **kw).eval()
    of_img, of_txt = query_maps(model, img), query_maps(model, texts=SAID)
    assert of_img.shape == (3, 4, 4, 2) and (of_img.sum((2, 3)) < 1).all()
    real = np.array([[i < n for i in range(of_txt.shape[2])] for n in TOK.lengths(TOK(SAID))])
    assert np.allclose(of_txt.sum(2), 1, atol=1e-5) and of_txt.transpose(0, 2, 1)[~real].max() == 0
    both = query_word_maps(model, img, SAID)
    share = of_txt[1, :, 2]/of_txt[1, :, 2].sum()
    assert np.allclose(both[1, 2], sum(s*m for s, m in zip(share, of_img[1])), atol=1e-6)
    if name == "cfan_tiny":
        theirs = model.memberships(img)["attention"][..., 1:].numpy()
        assert np.allclose(of_img.reshape(theirs.shape), theirs, atol=1e-6)


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
    region = np.zeros((16, 8))
    region[4:8, 2:6] = 1
    truth = np.repeat(np.kron(region, np.ones((4, 4)))[None], 3, 0) > 0
    chance = chance_level(truth)[0]
    assert chance == 1/8
    score = score_of(Planted(region), to=[[1.]])
    maps = {m: grad_cam(score, img, m) for m in CAMS}
    maps["occlusion"] = occlusion_map(score, img, patch=8, stride=4, baseline=torch.zeros_like(img))
    for method, heat in maps.items():
        assert (mass_inside(heat, truth) > 4*chance).all() and (pointing(heat, truth) == 1).all(), method
        found = against_random(score, img, heat, n=4,
                               perturbation=Perturbation(8, patch=4, baseline=torch.zeros_like(img)))
        assert found.gain.min() > 0 and found.beats.mean() > .9, method


def test_occlusion_against_a_loop(img):
    score = lambda x: (x**2).sum((1, 2, 3))
    fall, count = np.zeros(SIZE), np.zeros(SIZE)
    for y in range(0, 49, 8):
        for x in (0, 8, 16):
            hidden = img[:1].clone()
            hidden[:, :, y:y + 16, x:x + 16] = .5
            fall[y:y + 16, x:x + 16] += float(score(img[:1]) - score(hidden))
            count[y:y + 16, x:x + 16] += 1
    for some, batch in ((img, 128), (img[:1], 1)):
        got = occlusion_map(score, some, patch=16, stride=8, baseline="grey", batch=batch)
        assert np.abs(got[0] - fall/count).max() < 1e-3
