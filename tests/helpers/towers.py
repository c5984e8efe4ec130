"Small models of every kind, and a tokenizer for them"
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
