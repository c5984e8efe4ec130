"The released network of RDE, stated again from its program: towers of open_clip, attention and selection written out"
import open_clip
import torch
import torch.nn.functional as F
from torch import nn

BIG, DIM, OUT = (384, 128), 64, 48
VISION = dict(image_size=BIG, width=64, layers=2, head_width=64, patch_size=16)
TEXT = dict(context_length=77, vocab_size=49408, width=128, layers=2, heads=2)


class TwoLayers(nn.Module):
    "Its last BatchNorm is never run"
    def __init__(self, dim, out):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(dim, out//2), nn.Linear(out//2, out)])
        self.bns = nn.ModuleList([nn.BatchNorm1d(out//2), nn.BatchNorm1d(out)])

    def forward(self, x): return self.layers[1](F.relu(self.bns[0](self.layers[0](x))))      # (K,D) -> (K,out)


class Words(nn.Module):
    def __init__(self, dim, out):
        super().__init__()
        self.linear, self.mlp = nn.Linear(dim, out), TwoLayers(dim, out)


class Patches(Words):
    "Its `linear` is never run"
    def __init__(self, dim, out):
        super().__init__(dim, out)
        self.fc = nn.Linear(dim, out)


def attended(blocks, x, causal):
    "States behind the last of the blocks, and its attention: softmax of the products, the mean over the heads"
    for block in blocks[:-1]: x = block(x, attn_mask=causal)
    last, n = blocks[-1], x.shape[1]
    heads, y = last.attn.num_heads, last.ln_1(x)
    q, k, v = (y @ last.attn.in_proj_weight.T + last.attn.in_proj_bias).chunk(3, 2)
    q, k, v = (part.view(len(x), n, heads, -1).transpose(1, 2) for part in (q, k, v))
    products = q @ k.transpose(2, 3)/q.shape[-1]**.5
    attention = (products if causal is None else products + causal).softmax(3)
    x = x + last.attn.out_proj((attention @ v).transpose(1, 2).flatten(2))
    return x + last.mlp(last.ln_2(x)), attention.mean(1)


def best(tokens, attention, left_out, k, head, linear):
    "The maximum over the first `k` tokens of one image or caption, in the order of their attention"
    order = [i for i in attention.argsort(descending=True).tolist() if i not in left_out][:k]
    x = F.normalize(tokens[order], dim=1)
    return (linear(x) + head.mlp(x)).max(0).values


class Released(nn.Module):
    "Modules and names of the released program, around towers of open_clip without their temperature"
    def __init__(self):
        super().__init__()
        self.base_model = open_clip.CLIP(DIM, VISION, TEXT, quick_gelu=True)
        del self.base_model.logit_scale
        self.visul_emb_layer, self.texual_emb_layer = Patches(DIM, OUT), Words(DIM, OUT)

    def image(self, img):
        "Both features of normalised images"
        v = self.base_model.visual
        x = v.conv1(img).flatten(2).transpose(1, 2)
        x = torch.cat([v.class_embedding.expand(len(x), 1, -1), x], 1) + v.positional_embedding
        x, attention = attended(v.transformer.resblocks, v.ln_pre(x), None)
        tokens, head = v.ln_post(x) @ v.proj, self.visul_emb_layer
        k = int((tokens.shape[1] - 1)*.3)
        second = [best(t, a[0], {0}, k, head, head.fc) for t, a in zip(tokens, attention)]
        return tokens[:, 0], torch.stack(second)

    def text(self, tokens):
        "Both features of captions"
        net, n = self.base_model, tokens.shape[1]
        x = net.token_embedding(tokens) + net.positional_embedding[:n]
        causal = torch.zeros(n, n).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
        x, attention = attended(net.transformer.resblocks, x, causal)
        states, head = net.ln_final(x) @ net.text_projection, self.texual_emb_layer
        first, second = [], []
        for state, row, a in zip(states, tokens, attention):
            end = row.argmax().item()
            left_out = {0, end, *(row == 0).nonzero()[:, 0].tolist()}
            first.append(state[end])
            second.append(best(state, a[end], left_out, int((n - 2)*.3), head, head.linear))
        return torch.stack(first), torch.stack(second)


def both(features):
    "The two parts, each of length 1: the product of two is twice the mean of the cosines"
    return torch.cat([F.normalize(part, dim=1) for part in features], 1)
