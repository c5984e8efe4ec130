"""A training that `test_torchrun.py` starts by torchrun, on one machine and as on two.

    torchrun --standalone --nproc_per_node 2 tests/training/torchrun_program.py FOLDER HOW
"""
import os
import signal
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))    # torchrun gives only the program's own folder

import torch
from helpers.shared_rows import SharedRows
from torch import nn

from reid_lab.core.distributed import gathered, processes
from reid_lab.core.stopping import StoppedTraining
from reid_lab.losses.image import triplet
from reid_lab.training import checkpoints
from reid_lab.training.fit import fit
from reid_lab.training.learner import Callback
from reid_lab.training.options import Execution

STEPS, SAVED, DIES = 60, 50, 56
KEY = dict(lr=.05)


class Net(nn.Module):
    "Dropout that each process draws for itself, and a loss of pairs of all rows"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.last = nn.Linear(3, 6), nn.Linear(6, 2)
    def forward(self, batch):
        h = nn.functional.dropout(self.inner(batch["img"]).tanh(), .3, self.training)
        return dict(id_loss=nn.functional.cross_entropy(self.last(h), batch["pid"]),
                    triplet_loss=triplet(*gathered(h, batch["pid"])))


class Dies(Callback):
    "The last process is killed after a step, the first time only"
    only_watches = True
    def __init__(self, mark): self.mark = mark
    def after_step(self, learn):
        if learn.step != DIES or learn.rank != learn.world - 1 or self.mark.exists(): return
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


class Signalled(Callback):
    "The last process alone gets the signal of a queue, the first time only"
    only_watches = True
    def __init__(self, mark): self.mark = mark
    def after_step(self, learn):
        if learn.step != 5 or learn.rank != learn.world - 1 or self.mark.exists(): return
        self.mark.touch()
        os.kill(os.getpid(), signal.SIGUSR1)


def main(folder, how="whole"):
    "Train in a folder, which is resumed; the loss of a killed process, or a signal, is part of `how`"
    folder = Path(folder)
    watching = dict(whole=[], dies=[Dies(folder.with_suffix(".died"))],
                    signal=[Signalled(folder.with_suffix(".signalled"))], hours=[Callback()])[how]
    execution = Execution(max_hours=1e-6 if how == "hours" else None)
    checkpoints._MOST_STEPS = 4     # a step of this model takes a millisecond, and processes agree about once a second
    model = Net()
    try: done = fit(model, SharedRows(7), STEPS, folder, KEY, lr=.05, device="cpu", quiet=True, callbacks=watching,
                    execution=execution)
    except StoppedTraining as stopped:
        print(f"process {processes()[0]}: {stopped}", flush=True)
        sys.exit(0)     # torchrun would start a process again that ends otherwise
    print(f"process {processes()[0]}: {done.steps} steps", flush=True)


if __name__ == "__main__": main(*sys.argv[1:])
