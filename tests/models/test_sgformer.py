"""SG-Former against plain loops over its formulas, its numbers, other input sizes, and files in the released layout."""
import math

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from reid_lab.models import sgformer
from reid_lab.models.sgformer import (
    MERGE,
    REDUCE,
    SGFORMERS,
    ConvMLP,
    GuidedAttention,
    HybridAttention,
    PlainAttention,
    SGBlock,
    SGFormer,
    Sizes,
    fits_released,
    sincos,
    stage_grids,
)
from reid_lab.models.weights.formats import identify

SMALL = Sizes((2, 2, 2, 1), (16, 16, 32, 32), (2, 2, 4, 4))


@pytest.fixture
def small(monkeypatch): monkeypatch.setitem(SGFORMERS, "small", SMALL)


def count(*ms): return sum(p.numel() for m in ms for p in m.parameters())


@torch.no_grad()
def randomised(net, seed=0):
    "Every parameter away from its start, so that biases and norms count"
    g = torch.Generator().manual_seed(seed)
    for p in net.parameters(): p.add_(torch.randn(p.shape, generator=g)*.1)
    return net.eval()


# --- numbers of the paper and of the released network -----------------------------------------------------------------

@pytest.mark.parametrize("name, total, head, pos", [
    ("sgformer_s", 22_545_981, 513_000, 200_704), ("sgformer_m", 38_689_316, 513_000, 200_704),
    ("sgformer_b", 77_950_293, 769_000, 301_056)])
def test_parameters(name, total, head, pos):
    with torch.device("meta"): net, tower = SGFormer(name, classes=1000), SGFormer(name)
    assert (count(net), count(net.head), net.pos_embed.numel(), count(tower)) == (total, head, pos, total - head)


def test_parameters_of_the_parts_of_s():
    with torch.device("meta"): net = SGFormer()
    stages = range(1, 5)
    assert [count(getattr(net, f"patch_embed{s}")) for s in stages] == [75_968, 26_496, 102_144, 400_896]
    assert [count(getattr(net, f"norm{s}")) for s in stages] == [128, 256, 512, 1024]
    for j, want in ((0, (319_680, 483_712, 1_131_264)), (1, (57_627, 221_257, 868_357))):
        assert [count(getattr(net, f"block{s}")[j]) for s in (1, 2, 3)] == list(want)
    assert [len(getattr(net, f"block{s}")) for s in stages] == [2, 4, 16, 1] and count(net.block4[0]) == 3_440_640


def test_multiply_adds_at_224():
    "Convolutions, linear layers and both products of every attention, as torch counts them (2 operations each)"
    with torch.device("meta"): net, img = SGFormer(classes=1000), torch.empty(1, 3, 224, 224)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH): net.logits(img)
    assert counter.get_total_flops()/2e9 == pytest.approx(4.784, abs=5e-4)


@pytest.fixture(scope="module")
def s224():
    torch.manual_seed(0)
    net, img = SGFormer().eval(), torch.randn(1, 3, 224, 224)
    with torch.no_grad(): tokens = net(img, maps := [])
    return net, img, tokens, maps


def test_significance_at_224(s224):
    net, img, tokens, maps = s224
    assert tokens.shape == (1, 49, 512) and [s for s, _ in maps] == [1, 2, 2] + [3]*8
    for s, m in maps:
        assert m.shape == (1, 112 >> s, 112 >> s) and not m.requires_grad and m.min() > 0
        assert m.sum().item() == pytest.approx({1: 128, 2: 32, 3: 8}[s], rel=1e-5)


def test_the_extension_changes_nothing_at_224(s224):
    net, img, tokens, _ = s224
    plain = SGFormer(extend=False).eval()
    plain.load_state_dict(net.state_dict())
    with torch.no_grad(): assert torch.equal(plain(img), tokens) and torch.equal(net(img), tokens)


def test_sizes_of_the_released_network():
    assert [n for n in range(16, 900, 8) if fits_released((n, n))] == [224, 448, 672, 896]
    assert not fits_released((224, 448)) and stage_grids((384, 128)) == [(96, 32), (48, 16), (24, 8), (12, 4)]
    for size in ((112, 112), (384, 128), (256, 256)):
        with pytest.raises(ValueError, match=r"choose \(224, 224\) or \(448, 448\), or extend=True"):
            SGFormer(size=size, extend=False)
    with pytest.raises(ValueError, match="Did you mean 'sgformer_s'"): SGFormer("sgformer_z")


# --- plain loops over the formulas ------------------------------------------------------------------------------------

def rows(a): return torch.exp(a - a.max())/torch.exp(a - a.max()).sum()


def lepe(att, x, grid):
    "The convolution of LePE at each place by itself"
    (H, W), z, out = grid, att.lepe_linear(x), torch.zeros_like(x)
    for i in range(H):
        for j in range(W):
            out[i*W + j] = att.lepe_conv.bias
            for a in (-1, 0, 1):
                for b in (-1, 0, 1):
                    if 0 <= i + a < H and 0 <= j + b < W:
                        out[i*W + j] += att.lepe_conv.weight[:, 0, a + 1, b + 1]*z[(i + a)*W + j + b]
    return out


def naive_hybrid(att, x, grid):
    "One image, head by head and query by query: tokens (N,C) -> tokens, map (H,W)"
    (H, W), r, half, C = grid, att.reduce, att.heads//2, x.shape[1]
    d, hr, wr = C//att.heads, -(-H//att.reduce), -(-W//att.reduce)
    padded = torch.zeros(C, hr*r, wr*r, dtype=x.dtype)
    padded[:, :H, :W] = x.T.reshape(C, H, W)
    cells = torch.stack([(att.sr.weight*padded[:, i*r:i*r + r, j*r:j*r + r]).sum((1, 2, 3)) + att.sr.bias
                         for i in range(hr) for j in range(wr)])
    kv1, kv2, y = att.kv1(F.gelu(att.norm(cells))), att.kv2(x), torch.zeros_like(x)
    far, near = torch.zeros(hr*wr, dtype=x.dtype), torch.zeros(H*W, dtype=x.dtype)
    for h in range(half):
        at = slice(h*d, h*d + d)
        low = slice(C//2 + h*d, C//2 + h*d + d)
        for n in range(H*W):
            a = rows(kv1[:, at] @ att.q1(x[n])[at]/math.sqrt(d))
            y[n, at] = a @ kv1[:, low]
            far += a/(half*H*W)
            i, j = n//W//7*7, n % W//7*7
            inside = [p*W + q for p in range(i, min(i + 7, H)) for q in range(j, min(j + 7, W))]
            a = rows(kv2[inside][:, at] @ att.q2(x[n])[at]/math.sqrt(d))
            y[n, low] = a @ kv2[inside][:, low]
            near[inside] += a/(half*49)
    m = torch.stack([far[n//W//r*wr + n % W//r] + near[n] for n in range(H*W)])
    return att.proj(y + lepe(att, x, grid)), m.view(H, W)


def naive_merge(att, x, m):
    "Sort, cut, and sum group by group: (N,C), (N,) -> (M,C)"
    order = sorted(range(len(x)), key=lambda i: m[i].item())
    N, out = len(x), []
    parts = [(0, N//2), (N//2, N)] if att.reduce == 2 else [(0, N//4), (N//4, N//4*3), (N//4*3, N)]
    for i, ((a, b), g) in enumerate(zip(parts, MERGE[att.reduce])):
        f, part = getattr(att, f"f{i + 1}"), order[a:b]
        while part and len(part) % g: part.append(part[-1])
        for k in range(0, len(part), g):
            out.append(sum(f.weight[0, q]*x[part[k + q]] for q in range(g)) + f.bias)
    return torch.stack(out)


def naive_guided(att, x, grid, m):
    (H, W), C = grid, x.shape[1]
    d, down = C//att.heads, [i*W + j for j in range(W) for i in range(H)]
    seq = naive_merge(att, x, m.flatten()), naive_merge(att, x[down], m.flatten()[down])
    y = torch.zeros_like(x)
    for h in range(att.heads):
        kv = (att.kv1, att.kv2)[h >= att.heads//2](seq[h >= att.heads//2])
        at = slice(h % (att.heads//2)*d, h % (att.heads//2)*d + d)
        for n in range(H*W):
            a = rows(kv[:, at] @ att.q(x[n])[h*d:h*d + d]/math.sqrt(d))
            y[n, h*d:h*d + d] = a @ kv[:, C//2 + at.start:C//2 + at.stop]
    return att.proj(y + lepe(att, x, grid))


@pytest.mark.parametrize("grid, reduce", [((14, 7), 2), ((7, 7), 7), ((9, 5), 2), ((4, 2), 4), ((8, 16), 8)])
@torch.no_grad()
def test_hybrid_attention_and_its_map(grid, reduce):
    att = randomised(HybridAttention(8, 4, reduce)).double()
    x = torch.randn(2, grid[0]*grid[1], 8, dtype=torch.float64)
    y, m = att(x, grid)
    for b in range(2):
        want_y, want_m = naive_hybrid(att, x[b], grid)
        assert torch.allclose(y[b], want_y, atol=1e-10) and torch.allclose(m[b], want_m, atol=1e-10)
    _, near = att.near(x, grid)
    assert near.sum().item() == pytest.approx(2*grid[0]*grid[1]/49)          # windows, where nothing is padded


@pytest.mark.parametrize("grid, reduce", [((6, 4), 2), ((14, 7), 4), ((5, 3), 2), ((8, 4), 4), ((16, 8), 8),
                                          ((2, 1), 2), ((1, 1), 2)])
@torch.no_grad()
def test_guided_attention(grid, reduce):
    att = randomised(GuidedAttention(8, 4, reduce)).double()
    N = grid[0]*grid[1]
    x, m = torch.randn(2, N, 8, dtype=torch.float64), torch.rand(2, *grid, dtype=torch.float64)
    y, none = att(x, grid, m)
    assert none is None
    for b in range(2):
        assert torch.allclose(att.merge(x, m.flatten(1))[b], naive_merge(att, x[b], m[b].flatten()), atol=1e-10)
        assert torch.allclose(y[b], naive_guided(att, x[b], grid, m[b]), atol=1e-10)


def test_both_orders_differ_at_ties_only():
    att, x = randomised(GuidedAttention(8, 4, 2)), torch.randn(1, 8, 8)
    m = torch.rand(1, 4, 2)
    down = x.unflatten(1, (4, 2)).transpose(1, 2).flatten(1, 2)
    for m, same in ((torch.rand(1, 4, 2), True), (torch.ones(1, 4, 2), False)):
        one, two = att.merge(x, m.flatten(1)), att.merge(down, m.transpose(1, 2).flatten(1))
        assert torch.allclose(one, two) == same


@torch.no_grad()
def test_plain_attention_block_and_positions():
    att, x, grid = randomised(PlainAttention(8, 2)).double(), torch.randn(1, 6, 8, dtype=torch.float64), (3, 2)
    y, kv = torch.zeros(6, 8, dtype=torch.float64), att.kv(x[0])
    for h in (0, 4):
        for n in range(6): y[n, h:h + 4] = rows(kv[:, h:h + 4] @ att.q(x[0, n])[h:h + 4]/2) @ kv[:, 8 + h:12 + h]
    assert torch.allclose(att(x, grid)[0][0], att.proj(y + lepe(att, x[0], grid)), atol=1e-10)
    block = randomised(SGBlock(8, 2, 1, False)).double()
    z = x + block.attn(block.norm1(x), grid)[0]
    assert torch.allclose(block(x, grid)[0], z + block.mlp(block.norm2(z), grid)) and block.norm1.eps == 1e-6
    mlp = randomised(ConvMLP(8)).double()
    u = mlp.fc1(x)
    conv = mlp.dwconv(u.transpose(1, 2).reshape(1, 32, 3, 2)).reshape(1, 32, 6).transpose(1, 2)
    assert torch.allclose(mlp(x, grid), mlp.fc2(F.gelu(u + conv)))
    pos = sincos((3, 2), 8)[0].view(3, 2, 8)
    for i in range(3):
        for j in range(2):
            want = [f(n*w) for n in (j, i) for f in (math.sin, math.cos) for w in (1, .01)]
            assert pos[i, j].tolist() == pytest.approx(want)


# --- other sizes, gradients, determinism ------------------------------------------------------------------------------

@pytest.mark.parametrize("size", [(64, 32), (256, 128), (384, 128), (100, 52), (32, 16)])
def test_any_size_forward_and_backward(small, size):
    torch.manual_seed(0)
    net = SGFormer("small", size)
    grid = stage_grids(size)[3]
    out = net(torch.randn(2, 3, *size), maps := [])
    assert out.shape == (2, grid[0]*grid[1], 32) and net.width == 32
    assert [tuple(m.shape[1:]) for _, m in maps] == stage_grids(size)[:3]
    out.square().mean().backward()
    gone = [n for n, p in net.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert out.isfinite().all() and not gone
    idle = {n for n, p in net.named_parameters() if not p.grad.any()}       # a part of N//4 or N//2 tokens may be empty
    if size != (32, 16): assert not idle
    with pytest.raises(ValueError, match="for a tower of size"): net(torch.rand(1, 3, 224, 224))


def test_s_on_crops_of_persons():
    torch.manual_seed(0)
    net = SGFormer(size=(64, 32))
    net(torch.randn(2, 3, 64, 32)).square().mean().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())


def test_no_gradient_flows_through_the_map(small):
    "The keys of the hybrid block before matter to the guided one by the order alone"
    hybrid, guided = randomised(HybridAttention(8, 2, 2)), randomised(GuidedAttention(8, 2, 2))
    x = torch.randn(1, 28, 8)
    _, m = hybrid(x, (4, 7))
    guided(x, (4, 7), m)[0].sum().backward()
    assert not m.requires_grad and all(p.grad is None for p in hybrid.parameters())
    assert all(p.grad.any() for p in guided.parameters() if p is not guided.kv1.bias)


def test_gradients_are_those_of_differences(small):
    torch.manual_seed(0)
    net = SGFormer("small", (32, 32)).double()
    img = torch.randn(1, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    net(img).square().sum().backward()
    step, at = 1e-6, (0, 1, 9, 20)
    with torch.no_grad():
        two = [net(img + s*step*F.one_hot(torch.tensor(1*1024 + 9*32 + 20), 3072).view_as(img)).square().sum()
               for s in (1, -1)]
    assert img.grad[at].item() == pytest.approx(((two[0] - two[1])/(2*step)).item(), rel=1e-4, abs=1e-7)


def test_evaluation_is_deterministic_and_alone(small):
    torch.manual_seed(0)
    net, img = SGFormer("small", (64, 32), drop_path=.5), torch.randn(4, 3, 64, 32)
    assert not torch.equal(net(img), net(img))                              # stochastic depth
    net.eval()
    with torch.no_grad():
        a = net(img)
        assert torch.equal(a, net(img)) and torch.allclose(net(img[1:2]), a[1:2], atol=1e-5)
    rates = [b.drop_path.p for s in (1, 2, 3, 4) for b in getattr(net, f"block{s}")]
    assert rates == pytest.approx([.5*i/6 for i in range(7)]) and SGFormer("small", (64, 32)).block4[0].drop_path.p == 0


def test_half_precision_keeps_the_map_in_32_bits(small):
    net = SGFormer("small", (64, 32)).eval()
    with torch.autocast("cpu", torch.bfloat16): net(torch.randn(1, 3, 64, 32), maps := [])
    assert all(m.dtype == torch.float32 for _, m in maps)
    assert maps[0][1].sum().item() == pytest.approx(64 + 128/49, rel=1e-4)   # cells of 8 x 8, 16 x 8 tokens


def test_initialisation():
    torch.manual_seed(0)
    net = SGFormer(classes=10)
    assert torch.equal(net.pos_embed, sincos((56, 56), 64))
    for lin in (net.block3[1].attn.q, net.block4[0].mlp.fc2, net.head):
        assert lin.weight.std().item() == pytest.approx(.02, rel=.1) and not lin.bias.any()
    for conv in (net.block3[0].attn.sr, net.block4[0].mlp.dwconv.dwconv, net.patch_embed1.conv[2].c):
        want = math.sqrt(2*conv.groups/(conv.kernel_size[0]**2*conv.out_channels))
        assert conv.weight.std().item() == pytest.approx(want, rel=.1)
    norm = net.patch_embed2.conv1.bn
    assert norm.num_groups == 1 and norm.weight.eq(1).all() and not norm.bias.any() and norm.eps == 1e-5


# --- files ------------------------------------------------------------------------------------------------------------

CONV, BOTH = ("c.weight", "bn.weight", "bn.bias"), ("weight", "bias")


def released_names(depths=(2, 4, 16, 1)):
    "All names of a released file"
    out = ["pos_embed", *(f"head.{b}" for b in BOTH), *(f"patch_embed1.norm.{b}" for b in BOTH)]
    out += [f"patch_embed1.conv.{i}.{c}" for i in (0, 2, 4) for c in CONV]
    out += [f"patch_embed{s}.conv{i}.{c}" for s in (2, 3, 4) for i in (1, 2, 3) for c in CONV]
    kinds = (("sr", "norm", "q1", "kv1", "q2", "kv2"), ("q", "kv1", "kv2", "f1", "f2"), ("q", "kv"))
    for s, depth in enumerate(depths, 1):
        out += [f"norm{s}.{b}" for b in BOTH]
        for j in range(depth):
            own = kinds[2] if s == 4 else kinds[j % 2] + ("f3",)*(j % 2 and s < 3)
            parts = ["norm1", "norm2", "mlp.fc1", "mlp.fc2", "mlp.dwconv.dwconv"]
            parts += [f"attn.{k}" for k in (*own, "lepe_linear", "lepe_conv", "proj")]
            out += [f"block{s}.{j}.{p}.{b}" for p in parts for b in BOTH]
    return out


def test_names_are_those_of_the_released_files():
    with torch.device("meta"): net = SGFormer(classes=1000)
    assert sorted(net.state_dict()) == sorted(released_names()) and len(net.state_dict()) == 669
    assert {k: tuple(net.state_dict()[k].shape) for k in ("block1.1.attn.f1.weight", "block2.0.attn.sr.weight",
                                                          "patch_embed3.conv2.c.weight")} == {
        "block1.1.attn.f1.weight": (1, 196), "block2.0.attn.sr.weight": (128, 128, 4, 4),
        "patch_embed3.conv2.c.weight": (256, 1, 3, 3)}


def released(small_file, name="small", seed=1):
    "A checkpoint as timm's program writes it: raw weights, their average, optimiser state"
    net = randomised(SGFormer(name, (224, 224), classes=7), seed)
    raw = {f"module.{k}": v + 1 for k, v in net.state_dict().items()}
    torch.save(dict(epoch=299, arch=name, state_dict=raw, optimizer=dict(state={}, param_groups=[dict(lr=1e-3)]),
                    version=2, state_dict_ema=net.state_dict(), metric=83.2), small_file)
    return net


@pytest.mark.parametrize("size", [(224, 224), (384, 128)])
def test_a_released_file_loads(small, tmp_path, size):
    theirs = released(tmp_path/"SG-Former.pth")
    assert identify(tmp_path/"SG-Former.pth").name == "sgformer"
    net = SGFormer("small", size, weights=tmp_path/"SG-Former.pth").eval()
    own = theirs.state_dict()
    assert all(torch.equal(v, own[k]) for k, v in net.state_dict().items() if k != "pos_embed")
    assert net.loaded.matched == len(own) - 2 and not net.loaded.missing and not net.loaded.unused
    assert dict(net.loaded.left) == {f"head.{b}": "classifier of the pretraining" for b in BOTH}
    assert net.stats[0] == pytest.approx((.485, .456, .406))
    if size == (224, 224):
        img = torch.randn(1, 3, 224, 224)
        with torch.no_grad(): assert torch.equal(net(img), theirs(img)) and not net.loaded.resized
        return
    assert net.loaded.resized == ("pos_embed (1, 3136, 16) -> (1, 3072, 16)",)
    old = own["pos_embed"].view(1, 56, 56, 16).permute(0, 3, 1, 2)
    want = F.interpolate(old, (96, 32), mode="bicubic", antialias=True)
    assert torch.allclose(net.pos_embed, want.permute(0, 2, 3, 1).flatten(1, 2), atol=1e-5)


def test_a_file_of_another_size_is_refused(small, monkeypatch, tmp_path):
    released(tmp_path/"w.pth")
    monkeypatch.setitem(sgformer.SGFORMERS, "other", Sizes((2, 4, 2, 1), SMALL.dims, SMALL.heads))
    with pytest.raises(ValueError, match="missing .* expected weights of other of SG-Former"):
        SGFormer("other", (64, 32), weights=tmp_path/"w.pth")
    with pytest.raises(ValueError, match="classes=0"): SGFormer("small", (64, 32)).logits(torch.rand(1, 3, 64, 32))
    bert = dict.fromkeys(("embeddings.word_embeddings.weight", "embeddings.token_type_embeddings.weight",
                          "encoder.layer.0.attention.self.query.weight"), torch.ones(2, 2))
    with pytest.raises(ValueError, match="holds BERT of Hugging Face; expected weights of small of SG-Former: it fits"):
        SGFormer("small", (64, 32), weights=bert)
    assert REDUCE == (8, 4, 2, 1)
