"SOLIDER's released file with random numbers, and its network as functions of the tensors under the released names"
import torch
import torch.nn.functional as F

SIDE, SHIFT = 7, 3


def linear(name, rows, columns): return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
def norm(name, width): return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def block_shapes(at, width, heads):
    "Of one block"
    found = {**norm(f"{at}.norm1", width), **norm(f"{at}.norm2", width)}
    found |= {f"{at}.attn.w_msa.relative_position_bias_table": ((2*SIDE - 1)**2, heads)}
    found |= {**linear(f"{at}.attn.w_msa.qkv", 3*width, width), **linear(f"{at}.attn.w_msa.proj", width, width)}
    return found | {**linear(f"{at}.ffn.layers.0.0", 4*width, width), **linear(f"{at}.ffn.layers.1", width, 4*width)}


def shapes(width, depths, heads):
    "Of the tower, under the names of its program; a control stands behind the last stage, too"
    found = {"patch_embed.projection.weight": (width, 3, 4, 4), "patch_embed.projection.bias": (width,)}
    found |= norm("patch_embed.norm", width)
    for stage, (depth, n) in enumerate(zip(depths, heads)):
        wide = width*2**stage
        for block in range(depth): found |= block_shapes(f"stages.{stage}.blocks.{block}", wide, n)
        behind = wide if stage == len(depths) - 1 else 2*wide
        if behind > wide:
            found |= norm(f"stages.{stage}.downsample.norm", 4*wide)
            found |= {f"stages.{stage}.downsample.reduction.weight": (behind, 4*wide)}
        for sign in "wb": found |= linear(f"semantic_embed_{sign}.{stage}", behind, 2)
        found |= norm(f"norm{stage}", wide)
    return found


def drawn(named, seed=0):
    "Random numbers, large enough that each tensor counts"
    draw = torch.Generator().manual_seed(seed)
    state = {}
    for name, shape in named.items():
        scale = .3 if len(shape) == 1 or "semantic" in name else 1.5*shape[-1]**-.5
        is_scale = len(shape) == 1 and "norm" in name and name.endswith("weight")
        state[name] = torch.randn(shape, generator=draw)*scale + is_scale
        if name.endswith("relative_position_bias_table"):
            state[name] = torch.randn(shape, generator=draw)
            state[name.replace("bias_table", "index")] = torch.zeros(SIDE**2, SIDE**2, dtype=torch.long)
    return state


def released(width, depths, heads, n_ids=5):
    "The state dict of a released re-identification model"
    state = {f"base.{name}": x for name, x in drawn(shapes(width, depths, heads)).items()}
    wide = width*2**(len(depths) - 1)
    state |= {"classifier.weight": torch.randn(n_ids, wide), "bottleneck.weight": torch.rand(wide),
              "bottleneck.bias": torch.zeros(wide), "bottleneck.running_mean": torch.randn(wide),
              "bottleneck.running_var": torch.rand(wide), "bottleneck.num_batches_tracked": torch.tensor(9)}
    return state


class Plain:
    "The network of the program, window by window and head by head"
    def __init__(self, state, semantic=.2):
        self.s = {name.removeprefix("base."): x for name, x in state.items()}
        self.both = torch.tensor([semantic, 1 - semantic])

    def linear(self, x, at): return F.linear(x, self.s[f"{at}.weight"], self.s.get(f"{at}.bias"))

    def norm(self, x, at):
        return F.layer_norm(x, x.shape[-1:], self.s[f"{at}.weight"], self.s[f"{at}.bias"])

    def bias(self, at):
        "What is added to the products of each pair of places, (heads,49,49)"
        table = self.s[f"{at}.relative_position_bias_table"]
        rows = [[(a//SIDE - b//SIDE + SIDE - 1)*(2*SIDE - 1) + a % SIDE - b % SIDE + SIDE - 1 for b in range(SIDE**2)]
                for a in range(SIDE**2)]
        return torch.stack([torch.stack([table[row] for row in line]) for line in rows]).permute(2, 0, 1)

    def attention(self, x, at, may, bias):
        "One window, (49,C); `may` says which place may look at which"
        heads, out = len(bias), []
        q, k, v = self.linear(x, f"{at}.qkv").chunk(3, 1)
        for head, (ours, theirs, values) in enumerate(zip(*(part.chunk(heads, 1) for part in (q, k, v)))):
            products = ours @ theirs.T/ours.shape[1]**.5 + bias[head]
            out.append((products - 100.*~may).softmax(1) @ values)
        return self.linear(torch.cat(out, 1), f"{at}.proj")

    def block(self, x, at, shift):
        "A map of one image, (H,W,C)"
        height, width, _ = x.shape
        y = F.pad(self.norm(x, f"{at}.norm1"), (0, 0, 0, -width % SIDE, 0, -height % SIDE))
        rows, columns, _ = y.shape
        y = y.roll((-shift, -shift), (0, 1))
        # a place has come round if the shift moved it over the edge; it is no neighbour of those that have not
        down = (torch.arange(rows) + shift >= rows)[:, None].expand(rows, columns)
        right = (torch.arange(columns) + shift >= columns).expand(rows, columns)
        out, bias = torch.zeros_like(y), self.bias(f"{at}.attn.w_msa")
        for top in range(0, rows, SIDE):
            for left in range(0, columns, SIDE):
                here = slice(top, top + SIDE), slice(left, left + SIDE)
                a, b = down[here].flatten(), right[here].flatten()
                may = (a[:, None] == a) & (b[:, None] == b)
                window = y[here].flatten(0, 1)
                out[here] = self.attention(window, f"{at}.attn.w_msa", may, bias).unflatten(0, (SIDE, SIDE))
        x = x + out.roll((shift, shift), (0, 1))[:height, :width]
        y = self.linear(self.norm(x, f"{at}.norm2"), f"{at}.ffn.layers.0.0")
        return x + self.linear(F.gelu(y), f"{at}.ffn.layers.1")

    def down(self, x, stage):
        "Merged and controlled"
        height, width, _ = x.shape
        x = F.pad(x, (0, 0, 0, width % 2, 0, height % 2)).permute(2, 0, 1)[None]
        grid = x.shape[2]//2, x.shape[3]//2
        x = self.norm(F.unfold(x, 2, stride=2)[0].T, f"stages.{stage}.downsample.norm")
        x = self.linear(x, f"stages.{stage}.downsample.reduction").unflatten(0, grid)
        scale, shift = (self.linear(self.both, f"semantic_embed_{sign}.{stage}") for sign in "wb")
        return x*F.softplus(scale) + shift

    def one(self, img):
        height, width = img.shape[1:]
        x = F.pad(img, (0, -width % 4, 0, -height % 4))[None]
        x = F.conv2d(x, self.s["patch_embed.projection.weight"], self.s["patch_embed.projection.bias"], 4)
        x = self.norm(x[0].permute(1, 2, 0), "patch_embed.norm")
        stages = 1 + max(int(name.split(".")[1]) for name in self.s if name.startswith("stages."))
        for stage in range(stages):
            depth = len({name.split(".")[3] for name in self.s if name.startswith(f"stages.{stage}.blocks.")})
            for block in range(depth): x = self.block(x, f"stages.{stage}.blocks.{block}", SHIFT*(block % 2))
            if stage < stages - 1: x = self.down(x, stage)
        return self.norm(x, f"norm{stages - 1}").mean((0, 1))

    def __call__(self, img): return torch.stack([self.one(one) for one in img])     # (B,3,H,W) -> (B,D)
