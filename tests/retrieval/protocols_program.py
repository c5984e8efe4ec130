"""Features of two processes, in memory and in shards, scored by protocols; started by `test_shards.py`."""
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn

from reid_lab.core.distributed import from_all, processes
from reid_lab.data.table import ReidTable
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.shards import Shards, embed_shards

# drawn galleries, drawn by lists of people, ranks of identities, trapezoids, conditions, pooled tracks, one image each
PROTOCOLS = ("market", "sysu.all", "sysu.indoor-10", "llcm.v2i-released", "veri.trapezoid", "vehicleid.small",
             "cuhk03.single")
OF_TRACKS = ("mars.official", "mars.torchreid")
METRICS = ("R1", "R5", "mAP", "mINP", "n_query", "n_skipped")


class Pixels(nn.Module):
    "A linear model of pixels"
    size = (8, 4)
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3*8*4, 6)
    def encode_image(self, img): return self.lin(img.flatten(1))


def people(n=96):
    "Images of eight people under six cameras, of which 3 and 6 are infrared, two a track"
    rng = np.random.default_rng(0)
    looks = rng.integers(0, 255, (8, 8, 4, 3))
    pid, cam = np.arange(n) % 8, np.arange(n)//8 % 6 + 1
    noisy = (looks[pid] + rng.normal(0, 90, (n, 8, 4, 3))).clip(0, 255).astype(np.uint8)
    paths = [f"{i:03}.jpg" for i in range(n)]
    store = dict(zip(paths, noisy))
    modality, track = np.where(np.isin(cam, (3, 6)), "infrared", "visible"), 8*cam + pid
    role = np.array(["query", "gallery", "both"])[track % 3]
    frame = pd.DataFrame(dict(path=paths, pid=pid, cam=cam, modality=modality, track=track, role=role))
    return ReidTable(frame, None, reader=lambda ps: [store[p] for p in ps])


def scored(q, g):
    "Scores by protocol"
    found = {}
    for name in (*PROTOCOLS, *OF_TRACKS):
        scores = retrieval_metrics(q, g, protocol=name)
        found[name] = [float(scores[metric]) for metric in METRICS]
    return found


def main(out):
    "What both processes score, of features that they made together"
    model, table, folder = Pixels(), people(), Path(out)/"shards"
    e = embed_images(model, table, batch_size=7, share=True, quiet=True)
    wrote = embed_shards(model, table, folder, dtype="float32", rows=10, batch_size=7, quiet=True)
    wrote = from_all(dict(wrote=wrote))     # nobody reads before all have written
    shards = Shards(folder)
    found = from_all(dict(memory=scored(e, e), disk=scored(shards.load(), shards)))
    if processes()[0] == 0: torch.save(dict(wrote=[part["wrote"] for part in wrote], found=found), Path(out)/"two.pt")


if __name__ == "__main__": main(*sys.argv[1:])
