"""What a step is said to cost is what it takes: memory beside measured allocations, operations beside formulas."""
import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from reid_lab.training.options import read_switches
from reid_lab.training.step_price import GPUS, StepJob, blank, find_gpu, measured_memory, price_step


class Blocks(nn.Module):
    "Attention with dropout, masked words and a hardest negative: what fake tensors find hard"
    def __init__(self, dropout=.1):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout, batch_first=True) for _ in range(2)]
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(64, 100)

    def forward(self, batch):
        "Masked words, and the row that is most similar"
        x = self.embed(batch["tokens"])
        for block in self.blocks: x = block(x)
        chosen = batch["labels"] >= 0
        words = nn.functional.cross_entropy(self.head(x[chosen]), batch["labels"][chosen])
        similar = x.mean(1) @ x.mean(1).T
        hardest = similar.fill_diagonal_(-1) if not similar.requires_grad else similar - 2*torch.eye(len(x))
        value, row = hardest.max(1)
        return dict(mlm_loss=words, pair_loss=value[row >= 0].mean())


def batch(model, n=32):
    tokens = torch.arange(n*20).reshape(n, 20) % 100
    return dict(img=blank(n, 3, 8, 8), tokens=tokens, labels=torch.where(tokens % 4 == 0, tokens, -100))


JOB = StepJob(Blocks, batch)


@pytest.mark.parametrize("speed", ["", "bf16", "checkpointing", "accumulate=4", "ema=.9"])
def test_memory_is_what_torch_allocates(speed):
    switches = read_switches(speed)
    said, found = price_step(JOB, switches), measured_memory(JOB, switches)
    assert .9 < said.memory/found < 1.1, (said.memory, found)


def test_what_follows_from_tokens_is_known_and_the_rest_is_assumed():
    "A quarter of the tokens is masked; a mask that follows from features chooses every row"
    few = price_step(StepJob(Blocks, lambda model: batch(model) | dict(labels=torch.full((32, 20), -100))))
    assert few.flops < price_step(JOB).flops
    assert "mask" in price_step(JOB).assumed


def test_switches_cost_what_they_are_for():
    plain, again = price_step(JOB), price_step(JOB, read_switches("checkpointing"))
    assert again.memory < plain.memory and again.flops > plain.flops    # blocks are computed twice
    assert price_step(JOB, read_switches("ema=.9")).memory > plain.memory


def test_attention_of_a_gpu_stores_no_weights():
    "With dropout a CPU does; a GPU does not"
    def memory(length, device):
        def long(model): return {k: v.repeat(1, length) if k != "img" else v for k, v in batch(model).items()}
        return price_step(StepJob(Blocks, long), device=device).memory
    assert memory(8, "cpu") > 1.5*memory(8, "cuda")


def test_nothing_is_drawn_and_nothing_stays():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    price_step(JOB)
    assert torch.equal(before, torch.get_rng_state())
    assert type(torch.zeros(2)) is torch.Tensor and type(Blocks().head.weight) is nn.Parameter


class Copied(nn.Module):
    "A part and its copy; the number of batches that a norm has seen is a constant, which torch follows by its storage"
    def __init__(self, seen):
        super().__init__()
        part = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        self.parts = nn.ModuleList([part, copy.deepcopy(part)])
        self.seen = seen

    def forward(self, batch):
        self.seen.update(id(buffer.fake_mode) for buffer in self.buffers())
        return dict(own_loss=sum(part(batch["x"]).mean() for part in self.parts))


@pytest.mark.parametrize("speed", ["", "ema=.9"])
def test_a_copied_part_stays_in_the_mode_of_its_model(speed):
    "Modes of their own would release the same weak references twice, which ends a process much later"
    seen = set()
    rows = dict(img=blank(4, 3, 8, 8), x=blank(4, 3))
    price_step(StepJob(lambda: Copied(seen), lambda model: rows), read_switches(speed))
    assert len(seen) == 1


COPY_THAT_TRAINS = """
import os

import torch

from reid_lab.training.step_price import price_step
from test_step_price import JOB

price_step(JOB)
pid = os.fork()
if pid == 0:
    torch.nn.Linear(3, 3)(torch.ones(2, 3)).sum().backward()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_a_copy_of_the_process_can_still_train():
    "In a process of its own: only the first gradient of a process starts the threads of autograd"
    here = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", COPY_THAT_TRAINS], env=here, capture_output=True, text=True)
    assert done.stdout.strip() == "0", done.stderr


def test_cards_are_known_by_key_title_and_maker():
    assert [find_gpu(gpu.title) for gpu in GPUS.values()] == [*GPUS]
    spellings = ("A100", "Tesla T4", "NVIDIA T4", "3090", "NVIDIA GeForce RTX 4090")
    assert [find_gpu(name) for name in spellings] == ["a100", "t4", "t4", "rtx3090", "rtx4090"]
    with pytest.raises(ValueError, match="gpu='GTX 1080' is not known"): find_gpu("GTX 1080")
