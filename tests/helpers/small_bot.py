"A BoT of a few thousand weights, and batches and a loader for it"
import torch

from reid_lab.models.backbones import ResTower
from reid_lab.models.bot import BoT
from reid_lab.models.zoo import sample_batch

SIZE = (32, 16)


def t64(x): return torch.tensor(x, dtype=torch.float64)


def bot(seed=0, **kw):
    torch.manual_seed(seed)
    return BoT(ResTower((4, 8, 8, 12)), 4, SIZE, **kw)


def batch(seed=0, n=8, cams=2):
    b = sample_batch(SIZE, n, seed=seed)
    return b | dict(cam=torch.arange(n) % cams)


class Loader:
    "Three batches an epoch, each drawn from its own seed"
    def __len__(self): return 3
    def epoch(self, e, start=0): return (batch(10*e + i) for i in range(start, 3))


def same(a, b): return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def copied(net): return {k: v.clone() for k, v in net.state_dict().items()}
