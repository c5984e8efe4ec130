"""What `rehearse_processes.py` has torchrun start twice over: two processes that share each batch.

    torchrun --standalone --nproc_per_node 2 tests/rehearsal/two_processes.py DEVICE FILE
"""
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
if os.environ.get("REID_LAB_REHEARSAL"):
    from rehearsal import shadow
    if not shadow.missing(): shadow.install()

import torch
from helpers.towers import tiny
from rehearsal.both import SIZE

from reid_lab.core.distributed import processes
from reid_lab.data.loaders import Batches
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.meta.dual_speed import DualSpeed, Rounds, Task
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.training.learner import Learner, Plain

NAMES = ("bot_tiny", "clip_tiny")


def trained(name, device, strategy, batchnorm="local"):
    "Weights after two steps on shared batches, and features that both processes computed"
    model, table = tiny(name), tiny_table(4, 4)
    if name == "bot_tiny": loader = Batches(table, 8, SIZE)
    else: loader = Batches(table, 8, SIZE, tokenizer=model.tokenizer)
    net = Learner(model, loader, strategy, device=device, batchnorm=batchnorm).fit(steps=2).net
    assert {p.device.type for p in net.parameters()} == {device}
    return dict(weights=net.state_dict(), emb=embed_images(net, table, quiet=True, share=True).emb)


def main(device, file):
    "All trainings; process 0 writes the results"
    found = {name: trained(name, device, Plain()) for name in NAMES}
    found["tasks"] = trained("clip_tiny", device, DualSpeed([Task()]*2, rounds=Rounds(iters_per_task=1)))
    found["synchronised"] = trained("bot_tiny", device, Plain(), "sync")
    if processes()[0] == 0: torch.save(found, file)


if __name__ == "__main__": main(*sys.argv[1:])
