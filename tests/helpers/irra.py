"The released networks of IRRA and CFAN, stated again from their descriptions, at a size for tests"
import argparse

import torch
from torch import nn

SIZE, BIG, DIM, VOCAB, N_IDS = (64, 32), (384, 128), 64, 49408, 7
SMALL = dict(dim=DIM, vision=dict(width=64, layers=2, head_width=32, patch_size=16),
             text=dict(width=32, layers=2, heads=2))
WORDS = ["a man in a red coat with a black bag", "a tall woman in blue jeans", "a man with a hat",
         "a boy in white shoes"]
TOWERS = {"visual", "transformer", "token_embedding", "positional_embedding", "ln_final", "text_projection"}


# --- the released network, stated again -------------------------------------------------------------------------------

class Quick(nn.Module):
    def forward(self, x): return x*torch.sigmoid(1.702*x)


class Block(nn.Module):
    "Pre-norm, length first"
    def __init__(self, width, heads):
        super().__init__()
        self.attn, self.ln_1, self.ln_2 = nn.MultiheadAttention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(width, 4*width), c_proj=nn.Linear(4*width, width)))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp["c_proj"](Quick()(self.mlp["c_fc"](self.ln_2(x))))


class Released(nn.Module):
    "Modules and names of the released program, around towers of open_clip without their temperature"
    def __init__(self, layers=4):
        import open_clip
        super().__init__()
        text = dict(context_length=77, vocab_size=VOCAB, **SMALL["text"])
        self.base_model = open_clip.CLIP(DIM, dict(image_size=BIG, **SMALL["vision"]), text, quick_gelu=True)
        del self.base_model.logit_scale
        self.classifier = nn.Linear(DIM, N_IDS)
        self.cross_attn = nn.MultiheadAttention(DIM, 1, batch_first=True)
        blocks = nn.Sequential(*[Block(DIM, 1) for _ in range(layers)])
        self.cross_modal_transformer = nn.ModuleDict(dict(resblocks=blocks))
        self.ln_pre_t, self.ln_pre_i, self.ln_post = nn.LayerNorm(DIM), nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mlm_head = nn.ModuleDict(dict(dense=nn.Linear(DIM, DIM), ln=nn.LayerNorm(DIM), fc=nn.Linear(DIM, VOCAB)))

    def words(self, states, regions): # (B,L,E), (B,N,E) -> (B,L,V)
        q, k = self.ln_pre_t(states), self.ln_pre_i(regions)
        x = self.cross_attn(q, k, k, need_weights=False)[0].transpose(0, 1)
        x = self.ln_post(self.cross_modal_transformer["resblocks"](x).transpose(0, 1))
        h = self.mlm_head
        return h["fc"](h["ln"](Quick()(h["dense"](x))))


class ReleasedCFAN(Released):
    "The program of CFAN, made from that of IRRA: queries that read either modality, and an MLP for sigma"
    def __init__(self, layers=4, queries=4):
        super().__init__(layers)
        del self.classifier
        self.query = nn.Parameter(torch.randn(queries, DIM))
        self.mlp_logsigma2 = nn.Sequential(nn.Linear(DIM, 2*DIM), nn.ReLU(), nn.Linear(2*DIM, DIM))

    def cross_former(self, tokens): # (B,N,E) -> (B,K,E)
        q, k = self.ln_pre_t(self.query.expand(len(tokens), -1, -1)), self.ln_pre_i(tokens)
        x = self.cross_attn(q, k, k, need_weights=False)[0].transpose(0, 1)
        return self.ln_post(self.cross_modal_transformer["resblocks"](x).transpose(0, 1))

    def sigma(self, anchor): # (B,E) -> (B,E)
        return self.mlp_logsigma2(anchor/anchor.norm(dim=-1, keepdim=True)).exp().clamp(min=1e-6)


def container(net, wrap=""):
    "What the released program saves: halves, with optimiser and schedule beside them"
    state = {wrap + k: v.half() for k, v in net.state_dict().items()}
    opt = torch.optim.Adam([*net.parameters()][-1:], 1e-5).state_dict()
    return dict(model=state, optimizer=opt, scheduler=dict(last_epoch=3, base_lrs=[1e-5]), epoch=60, iteration=100,
                args=argparse.Namespace(lr=1e-5))
