"A classifier of three numbers, its batches, and a strategy with a factor"
import torch

from reid_lab.training.learner import Plain


class Scaled(Plain):
    def __init__(self, factor, loss=None): self.factor, self.loss = factor, loss
    def step(self, learn, batch):
        def forward(b): return {k: self.factor*v for k, v in learn.net(b).items()}
        return learn.update(batch, forward=forward)


class Blobs:
    "Three batches an epoch"
    def __init__(self, noise=1.): self.noise = noise
    def __len__(self): return 3
    def epoch(self, e, start=0):
        for i in range(start, 3):
            g = torch.Generator().manual_seed(10*e + i)
            yield dict(img=self.noise*torch.randn(8, 3, generator=g), pid=torch.arange(8) % 2)


class Net(torch.nn.Module):
    def __init__(self, margin=.3):
        super().__init__()
        torch.manual_seed(0)
        self.margin, self.lin = margin, torch.nn.Linear(3, 2)
    def forward(self, b): return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(b["img"]), b["pid"]))
