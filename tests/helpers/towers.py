"Small models of every kind, and a tokenizer for them"
import math

import torch

from reid_lab.data.text import WordPiece
from reid_lab.models.zoo import MODELS, NEEDS, create_model, list_models

SIZE, SAID = (64, 32), ["a man in a red coat", "a woman with a black bag", "a man"]
TOK = WordPiece.train(SAID*3 + ["the quick brown fox in jeans"], vocab_size=80, context_length=14)
TEXT = list_models(size="tiny", reads="captions")


def tiny(name, **kw):
    "A small model of the zoo, the same at every call"
    torch.manual_seed(0)
    need = NEEDS | dict(tokenizer=TOK)
    return create_model(name, size=SIZE, **{k: need[k] for k in MODELS[name].needs}, **kw)


def hooks(model):
    "Hooks that are left on a model"
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@torch.no_grad()
def randomised(net):
    "Random numbers in every tensor, running statistics too, so that no two places are exchangeable"
    g = torch.Generator().manual_seed(1)
    for k, v in net.state_dict().items():
        if not v.is_floating_point(): continue
        noise = torch.randn(v.shape, generator=g)
        if k.endswith("running_var"): v.copy_(1 + .2*noise.tanh())
        elif v.ndim > 1: v.copy_(noise/math.sqrt(v[0].numel()))
        else: v.copy_(.1*noise + ("weight" in k))
    return net.eval()
