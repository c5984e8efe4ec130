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
        elif k.endswith(".p"): v.copy_(2.5 + .2*noise.tanh())       # the exponent of a power mean
        elif v.ndim > 1: v.copy_(noise/math.sqrt(v[0].numel()))
        else: v.copy_(.1*noise + ("weight" in k))
    return net.eval()


def osnet_file(net, name):
    "A state dict under the names of torchreid's files, from one under ours; a classifier beside it"
    out = {"classifier.weight": torch.zeros(10, 512), "classifier.bias": torch.zeros(10)}
    for key, value in net.state_dict().items():
        parts = key.split(".")
        if "streams" in parts:
            at = parts.index("streams")
            stream, layer = int(parts[at + 1]), parts[at + 2]
            if "ain" in name: parts[at:at + 3] = ["conv2", str(stream), "layers", layer]
            elif stream == 0: parts[at:at + 3] = ["conv2a"]
            else: parts[at:at + 3] = [f"conv2{'abcd'[stream]}", layer]
        elif "ain" not in name and parts[0] in ("pool2", "pool3"): parts[:1] = [f"conv{parts[0][-1]}", "2"]
        out[".".join(parts)] = value.clone()
    return out
