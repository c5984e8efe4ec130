"A training on labels that the model gives itself before each epoch, whose epochs differ in length"
import random

import numpy as np
import torch

from reid_lab.training.learner import Callback

G = torch.Generator().manual_seed(5)
TRUE = torch.arange(40) % 2
X = torch.randn(40, 3, generator=G) + 1.5*TRUE[:, None]


class Points:
    "Batches of four points, in another order in each epoch; of several processes each has its rows"
    def __init__(self, rows, labels, rank=0, world=1):
        self.rows, self.labels, self.rank, self.world, self.closed = rows, labels, rank, world, False
    def __len__(self): return len(self.rows)//4
    def share(self, rank, world): return Points(self.rows, self.labels, rank, world)
    def close(self): self.closed = True
    def epoch(self, e, start=0):
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(e))
        for i in range(start, len(self)):
            own = order[4*i:4*i + 4][self.rank::self.world]
            yield dict(img=X[self.rows[own]], pid=self.labels[own])


def start(): return Points(torch.arange(12), TRUE[:12])


class Net(torch.nn.Module):
    "BatchNorm, and dropout from the global generator"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.drop = torch.nn.BatchNorm1d(3), torch.nn.Dropout(.2)
        self.lin = torch.nn.Linear(3, 2)
    def scores(self, x): return self.lin(self.drop(self.norm(x)))
    def forward(self, b): return dict(id_loss=torch.nn.functional.cross_entropy(self.scores(b["img"]), b["pid"]))


class PseudoLabels(Callback):
    "Labels of the points of which the model is most certain, decided once an epoch; also draws from global generators"
    def __init__(self, remembers=True): self.remembers, self.rows, self.labels = remembers, [], []
    def before_epoch(self, learn):
        noise = float(torch.rand(())) + np.random.rand() + random.random()
        if learn.number == 0: self.decide(learn, noise)
        learn.loader = Points(torch.tensor(self.rows), torch.tensor(self.labels))
    @torch.no_grad()
    def decide(self, learn, noise):
        learn.net.eval()
        sure, labels = (learn.net.scores(X)*(1 + .01*noise)).softmax(1).max(1)
        self.rows = sure.argsort(descending=True)[:(8, 21, 16)[learn.epoch % 3]].tolist()
        self.labels = labels[self.rows].tolist()
    def state_dict(self): return dict(rows=self.rows, labels=self.labels) if self.remembers else {}
    def load_state_dict(self, state):
        if state: self.rows, self.labels = state["rows"], state["labels"]


LENGTHS = [2, 5, 4]     # batches of the epochs
