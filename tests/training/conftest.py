"""A small problem for trainings: a loader, a late one, and a classifier."""
import time

import pytest
import torch


@pytest.fixture(scope="session")
def ToyBatches():
    "A loader class: two classes, `n` batches an epoch that know the paths of their images"
    class ToyBatches:
        def __init__(self, n=6): self.n = n
        def __len__(self): return self.n
        def epoch(self, e, start=0):
            for i in range(start, self.n):
                g = torch.Generator().manual_seed(10*e + i)
                y = torch.randint(0, 2, (16,), generator=g)
                yield dict(img=torch.randn(16, 2, generator=g) + 2*y[:, None], pid=y,
                           path=[f"{e}-{i}-{j}.jpg" for j in range(16)])
    return ToyBatches


@pytest.fixture(scope="session")
def LateBatches(ToyBatches):
    "The same, each batch 20 ms late"
    class LateBatches(ToyBatches):
        def epoch(self, e, start=0):
            for batch in super().epoch(e, start):
                time.sleep(.02)
                yield batch
    return LateBatches


@pytest.fixture(scope="session")
def ToyModel():
    "A linear model whose loss may be scaled"
    class ToyModel(torch.nn.Module):
        def __init__(self, scale=1.):
            super().__init__()
            torch.manual_seed(0)
            self.lin, self.scale = torch.nn.Linear(2, 2), scale
        def forward(self, b):
            return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(b["img"])*self.scale, b["pid"]))
    return ToyModel
