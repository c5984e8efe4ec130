"""Faults that a GPU would refuse, in code as a user writes it; a rehearsal names the lines with `# here`."""
import torch
from torch import nn


class Linear(nn.Module):
    "A classifier of pixels"
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def scores(self, batch): return self.linear(batch["img"].mean((2, 3)))
    def forward(self, batch):
        return dict(id_loss=nn.functional.cross_entropy(self.scores(batch), batch["pid"] % 2))


class Constant(Linear):
    "A constant that stays on the CPU"
    def scores(self, batch):
        weights = torch.tensor([1., 2.])
        return super().scores(batch)*weights    # here


class Array(Linear):
    "An array of a tensor that is on the device"
    def scores(self, batch):
        scores = super().scores(batch)
        self.seen = scores.detach().numpy()     # here
        return scores


class CpuGenerator(Linear):
    "Draws on the device with a generator of the CPU"
    def scores(self, batch):
        rng, scores = torch.Generator().manual_seed(0), super().scores(batch)
        return scores + torch.randn(scores.shape, generator=rng, device=scores.device)  # here


class Index(Linear):
    "An index of the CPU for an operation that takes none"
    def scores(self, batch):
        return super().scores(batch).index_select(1, torch.tensor([1, 0]))  # here


class NotWaited(Linear):
    "A copy to the CPU that is read at once"
    def scores(self, batch):
        scores = super().scores(batch)
        self.seen = scores.detach().to("cpu", non_blocking=True).sum()  # here
        return scores


class InGradient(torch.autograd.Function):
    "An operation whose gradient reads an array"
    @staticmethod
    def forward(ctx, x): return x.clone()
    @staticmethod
    def backward(ctx, grad):
        return torch.as_tensor(grad.numpy())    # here


class Backward(Linear):
    "A fault that shows only when gradients are computed"
    def scores(self, batch): return InGradient.apply(super().scores(batch))


PLANTED = [Constant, Array, CpuGenerator, Index, NotWaited, Backward]


def check_of_a_device(device):
    "A step of the check of a device, with a fault"
    weights = torch.tensor([1., 2.])
    return [torch.ones(2, device=device)*weights]   # here
