"A model that counts words, and captions for it"
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from reid_lab.data.text import WordPiece
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import Embeddings, embed_texts

SAID = ["a man in a red coat with a bag", "a woman in a green coat", "a man in blue jeans with a red bag", "a person"]
EVIL = "<img src=x onerror=alert(1)> red"


class Reader(nn.Module):
    "Counts words; an image is what its name says"
    size, vocab = (8, 4), sorted({w for s in SAID for w in s.split()})
    def __init__(self):
        super().__init__()
        self.one = nn.Parameter(torch.zeros(1))
    def tokenizer(self, texts): return torch.tensor([[t.split().count(w) for w in self.vocab] for t in texts]).long()
    def encode_text(self, tokens): return nn.functional.normalize(tokens.float() + .01, dim=1)


def sets(model):
    "Captions, their embeddings, and a gallery of noisy copies"
    frame = pd.DataFrame(dict(caption=[SAID[i % 4] for i in range(8)], pid=np.arange(8) % 4))
    q = embed_texts(model, frame, quiet=True)
    rng = np.random.default_rng(0)
    noise = torch.tensor(.05*rng.normal(size=(24, q.dim)), dtype=torch.float32)
    g = Embeddings(q.emb.repeat(3, 1) + noise, np.tile(q.pid, 3), np.arange(24) % 3,
                   path=[f"{i}.jpg" for i in range(24)])
    return frame, q, g


TOK = WordPiece.train(SAID*3, vocab_size=80, context_length=14)


# --- fixtures, which a conftest imports

@pytest.fixture(scope="module")
def model(): return Reader().eval()


@pytest.fixture(scope="module")
def clip():
    torch.manual_seed(0)
    return create_model("clip_tiny", tokenizer=TOK, size=(64, 32)).eval()
