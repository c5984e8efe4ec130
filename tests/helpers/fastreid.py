"Released networks of FastReID as plain functions of their tensors, and files with random numbers under its names."
import math

import torch
import torch.nn.functional as F

STAGES = {"r50": (3, 4, 6, 3), "r101": (3, 4, 23, 3), "s50": (3, 4, 6, 3)}


class Tensors(dict):
    "A state dict with random numbers, filled by layers"
    def __init__(self):
        super().__init__()
        self.rng = torch.Generator().manual_seed(1)

    def normal(self, *shape, scale=1.): return scale*torch.randn(shape, generator=self.rng)

    def conv(self, name, cout, cin, side=1, bias=False):
        self[f"{name}.weight"] = self.normal(cout, cin, side, side, scale=1/math.sqrt(cin*side*side))
        if bias: self[f"{name}.bias"] = self.normal(cout, scale=.1)

    def norm(self, name, width, running=True):
        self[f"{name}.weight"], self[f"{name}.bias"] = 1 + self.normal(width, scale=.1), self.normal(width, scale=.1)
        if not running: return
        self[f"{name}.running_mean"] = self.normal(width, scale=.1)
        self[f"{name}.running_var"] = 1 + .2*self.normal(width).tanh()

    def first_norm(self, name, width, ibn):
        if not ibn: return self.norm(name, width)
        self.norm(f"{name}.IN", width//2, running=False)
        self.norm(f"{name}.BN", width//2)

    def block(self, name, cin, width, ibn, split, shortcut):
        self.conv(f"{name}.conv1", width, cin)
        self.first_norm(f"{name}.bn1", width, ibn)
        if split:
            inner = max(width//2, 32)
            self.conv(f"{name}.conv2.conv", 2*width, width//2, 3)
            self.norm(f"{name}.conv2.bn0", 2*width)
            self.conv(f"{name}.conv2.fc1", inner, width, bias=True)
            self.norm(f"{name}.conv2.bn1", inner)
            self.conv(f"{name}.conv2.fc2", 2*width, inner, bias=True)
        else:
            self.conv(f"{name}.conv2", width, width, 3)
            self.norm(f"{name}.bn2", width)
        self.conv(f"{name}.conv3", 4*width, width)
        self.norm(f"{name}.bn3", 4*width)
        self[f"{name}.bn3.weight"] *= .3 # so that sums of many blocks stay small
        if shortcut:
            at = 1 if split else 0 # a mean stands before the convolution
            self.conv(f"{name}.downsample.{at}", 4*width, cin)
            self.norm(f"{name}.downsample.{at + 1}", 4*width)

    def non_local(self, name, width, inner):
        for part in ("g", "theta", "phi"): self.conv(f"{name}.{part}", inner, width, bias=True)
        for part in ("theta", "phi"): self[f"{name}.{part}.weight"] *= .1 # no softmax bounds their product
        self.conv(f"{name}.W.0", width, inner, bias=True)
        self.norm(f"{name}.W.1", width)


def released(family, backbone, inner=1, gem=True, reduced=0, n_ids=5):
    "A file of BoT, AGW, SBS or MGN under the names of the last release"
    s = Tensors()
    depth, ibn = backbone.removesuffix("_ibn"), backbone.endswith("_ibn")
    if depth == "s50":
        for at, cout, cin in ((0, 32, 3), (3, 32, 32), (6, 64, 32)): s.conv(f"backbone.conv1.{at}", cout, cin, 3)
        for at in (1, 4): s.norm(f"backbone.conv1.{at}", 32)
    else: s.conv("backbone.conv1", 64, 3, 7)
    s.norm("backbone.bn1", 64)
    cin = 64
    for stage, n_blocks in enumerate(STAGES[depth]):
        width = 64*2**stage
        for i in range(n_blocks):
            s.block(f"backbone.layer{stage + 1}.{i}", cin, width, ibn and stage < 3, depth == "s50", i == 0)
            cin = 4*width
    if family in ("agw", "sbs"):
        for number, width, n in ((2, 512, 2), (3, 1024, 9 if depth == "r101" else 3)):
            for i in range(n): s.non_local(f"backbone.NL_{number}.{i}", width, inner or width//2)
    if family == "mgn": return _branches(s, gem, n_ids)
    _head(s, "heads", gem, reduced, n_ids)
    return dict(s)


def _head(s, name, gem, reduced, n_ids):
    if gem: s[f"{name}.pool_layer.p"] = torch.tensor([2.5])
    if reduced: s.conv(f"{name}.bottleneck.0", reduced, 2048)
    s.norm(f"{name}.bottleneck.{int(reduced > 0)}", reduced or 2048)
    s[f"{name}.weight"] = s.normal(n_ids, reduced or 2048)


HEADS = ("b1", "b2", "b3", "b21", "b22", "b31", "b32", "b33")


def _branches(s, gem, n_ids):
    "The stages of one ResNet as MGN has them: the third from its second block on, and the fourth, thrice"
    out = Tensors()
    at = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5", "layer3.0": "6"}
    for name, x in s.items():
        inner = name.removeprefix("backbone.")
        first = next((part for part in at if inner.startswith(f"{part}.")), None)
        if first: out[f"backbone.{at[first]}{inner.removeprefix(first)}"] = x
    for number in (1, 2, 3):
        for name, x in s.items():
            stage, _, rest = name.removeprefix("backbone.").partition(".")
            if stage not in ("layer3", "layer4"): continue
            block, _, rest = rest.partition(".")
            if stage == "layer3" and block == "0": continue
            place = f"0.{int(block) - 1}" if stage == "layer3" else f"1.{block}"
            out[f"b{number}.{place}.{rest}"] = x + .05*s.normal(*x.shape).abs()*(x.ndim == 1) + .01*s.normal(*x.shape)
    for name in HEADS: _head(out, f"{name}_head", gem, 256, n_ids)
    return dict(out)


def with_old_names(state):
    "The names of the first release: `bnneck`, a classifier below its head, reductions of MGN outside of its heads"
    out = {"pixel_mean": torch.tensor([123.675, 116.28, 103.53]).view(1, 3, 1, 1),
           "pixel_std": torch.tensor([58.395, 57.12, 57.375]).view(1, 3, 1, 1)}
    for name, x in state.items():
        head, _, rest = name.partition(".")
        if head == "heads" and rest.startswith("bottleneck.0."): name = f"heads.bnneck.{rest[13:]}"
        elif head.endswith("_head"):
            if rest == "pool_layer.p": name = f"{head.removesuffix('_head')}_pool.0.p"
            elif rest.startswith("bottleneck.0."): name = f"{head.removesuffix('_head')}_pool.1.{rest[13:]}"
            elif rest.startswith("bottleneck.1."):
                out[f"{head}.bnneck.{rest[13:]}"] = x.flip(0)
                name = f"{head.removesuffix('_head')}_pool.2.{rest[13:]}"
        if rest == "weight": name = f"{head}.classifier.weight"
        out[name] = x
    return out


class Plain:
    "The forward pass in double precision, under the names of `released` or of `with_old_names`"
    def __init__(self, state, pool="gem"):
        self.s, self.pool = {name: x.double() for name, x in state.items()}, pool

    def has(self, start): return any(name.startswith(start) for name in self.s)

    def conv(self, x, at, **kw): return F.conv2d(x, self.s[f"{at}.weight"], self.s.get(f"{at}.bias"), **kw)

    def norm(self, x, at):
        s = self.s
        if f"{at}.IN.weight" in s:
            first, rest = x.chunk(2, 1)
            first = F.instance_norm(first, weight=s[f"{at}.IN.weight"], bias=s[f"{at}.IN.bias"])
            return torch.cat([first, self.norm(rest, f"{at}.BN")], 1)
        return F.batch_norm(x, s[f"{at}.running_mean"], s[f"{at}.running_var"], s[f"{at}.weight"], s[f"{at}.bias"])

    def split_attention(self, x, at):
        halves = self.norm(self.conv(x, f"{at}.conv", padding=1, groups=2), f"{at}.bn0").relu().chunk(2, 1)
        mean = F.adaptive_avg_pool2d(halves[0] + halves[1], 1)
        gates = self.conv(self.norm(self.conv(mean, f"{at}.fc1"), f"{at}.bn1").relu(), f"{at}.fc2").chunk(2, 1)
        share = torch.stack(gates).softmax(0)
        return share[0]*halves[0] + share[1]*halves[1]

    def block(self, x, at, stride, mean):
        "`mean`: ResNeSt's mean of 3x3, in the first block of a stage but the first"
        y = self.norm(self.conv(x, f"{at}.conv1"), f"{at}.bn1").relu()
        shortcut = x
        if self.has(f"{at}.conv2.fc1."):
            y = self.split_attention(y, f"{at}.conv2")
            if mean: y = F.avg_pool2d(y, 3, stride, 1)
            if self.has(f"{at}.downsample."):
                shortcut = F.avg_pool2d(x, stride, stride, ceil_mode=True, count_include_pad=False)
                shortcut = self.norm(self.conv(shortcut, f"{at}.downsample.1"), f"{at}.downsample.2")
        else:
            y = self.norm(self.conv(y, f"{at}.conv2", stride=stride, padding=1), f"{at}.bn2").relu()
            if self.has(f"{at}.downsample."):
                shortcut = self.norm(self.conv(x, f"{at}.downsample.0", stride=stride), f"{at}.downsample.1")
        return (self.norm(self.conv(y, f"{at}.conv3"), f"{at}.bn3") + shortcut).relu()

    def non_local(self, x, at):
        g, theta, phi = (self.conv(x, f"{at}.{part}").flatten(2) for part in ("g", "theta", "phi"))
        weights = theta.transpose(1, 2) @ phi/g.shape[2]         # positions x positions
        y = (weights @ g.transpose(1, 2)).transpose(1, 2).unflatten(2, x.shape[2:])
        return self.norm(self.conv(y, f"{at}.W.0"), f"{at}.W.1") + x

    def blocks(self, x, at, stride, first=0, number=0):
        "All blocks of a stage from `first` on; the last ones have a non-local block behind them"
        n = len({name.removeprefix(f"{at}.").split(".")[0] for name in self.s if name.startswith(f"{at}.")})
        start = f"backbone.NL_{number}."
        extra = len({name.removeprefix(start).split(".")[0] for name in self.s if name.startswith(start)})
        for i in range(n):
            x = self.block(x, f"{at}.{i}", stride if i == first else 1, mean=number > 1 and i == first)
            if i >= n - extra: x = self.non_local(x, f"backbone.NL_{number}.{i - n + extra}")
        return x

    def pooled(self, x, at):
        p = self.s.get(f"{at}.pool_layer.p", self.s.get(f"{at.removesuffix('_head')}_pool.0.p"))
        if p is None and self.pool == "mean": return x.mean((2, 3), keepdim=True)
        if p is None and self.pool == "max": return F.adaptive_max_pool2d(x, 1)
        p = 3. if p is None else float(p)
        return F.adaptive_avg_pool2d(x.clamp(min=1e-6)**p, 1)**(1/p)

    def head(self, x, at):
        x, old = self.pooled(x, at), f"{at.removesuffix('_head')}_pool"
        if self.has(f"{old}.1."):
            x = self.norm(self.conv(x, f"{old}.1"), f"{old}.2").relu()
            return self.norm(x, f"{at}.bnneck")[..., 0, 0]
        if self.has(f"{at}.bnneck."): return self.norm(x, f"{at}.bnneck")[..., 0, 0]
        last = "1" if self.has(f"{at}.bottleneck.1.") else "0"
        if last == "1": x = self.conv(x, f"{at}.bottleneck.0")
        return self.norm(x, f"{at}.bottleneck.{last}")[..., 0, 0]

    def __call__(self, img):
        "`img`: (B,3,H,W) in [0,1]; FastReID normalises in units of 0 to 255"
        mean, std = (torch.tensor(v, dtype=torch.double).view(3, 1, 1)
                     for v in ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)))
        x = (255*img.double() - mean)/std
        if self.has("b1."): return self.branches(x)
        if self.has("backbone.conv1.0."):
            x = self.norm(self.conv(x, "backbone.conv1.0", stride=2, padding=1), "backbone.conv1.1").relu()
            x = self.norm(self.conv(x, "backbone.conv1.3", padding=1), "backbone.conv1.4").relu()
            x = self.norm(self.conv(x, "backbone.conv1.6", padding=1), "backbone.bn1").relu()
            x = F.max_pool2d(x, 3, 2, 1)
        else:
            x = self.norm(self.conv(x, "backbone.conv1", stride=2, padding=3), "backbone.bn1").relu()
            x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        for number, stride in ((1, 1), (2, 2), (3, 2), (4, 1)):
            x = self.blocks(x, f"backbone.layer{number}", stride, number=number)
        return self.head(x, "heads")

    def branches(self, x):
        x = self.norm(self.conv(x, "backbone.0", stride=2, padding=3), "backbone.1").relu()
        x = F.max_pool2d(x, 3, 2, ceil_mode=True)
        x = self.blocks(self.blocks(x, "backbone.4", 1), "backbone.5", 2)
        x = self.block(x, "backbone.6", 2, mean=False)
        maps = {f"b{i}": self.blocks(self.blocks(x, f"b{i}.0", 1), f"b{i}.1", 1) for i in (1, 2, 3)}
        h = maps["b2"].shape[2]
        maps |= {"b21": maps["b2"][:, :, :-(-h//2)], "b22": maps["b2"][:, :, -(-h//2):]}
        third = -(-h//3)
        maps |= {f"b3{i + 1}": maps["b3"][:, :, i*third:(i + 1)*third] for i in range(3)}
        return torch.cat([self.head(maps[name], f"{name}_head") for name in HEADS], 1)
