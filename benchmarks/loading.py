"""Images per second of reading, resizing and augmenting, by decoder, cache and workers, as ratios within one run

    python benchmarks/loading.py [--images 512] [--size 384 128] [--augment light] [--workers 0 1 2] [--out FILE.csv]

JPEG files of two sizes are made in a temporary folder. Every line reads the same two epochs of batches; the second
one is timed, so that a cache is full and workers run. `ratio` compares with the first line: Pillow, no cache, no
workers. No line changes a pixel, except those with the decoder `torch`.
"""
import argparse
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from reid_lab.core.basics import stream
from reid_lab.data.augment import AUGMENT
from reid_lab.data.images import DECODERS
from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable


def crops(folder, n):
    "A table of `n` JPEG files like those of person sets: 128 x 64, and about 400 x 150"
    for i in range(n):
        rng = stream(0, i)
        h, w = ((128, 64), (380 + int(rng.integers(40)), 140 + int(rng.integers(20))))[i % 2]
        waves = [127 + 90*np.sin(np.arange(w)/(5 + c) + c) + 30*np.cos(np.arange(h)/(9 + c))[:, None] for c in range(3)]
        noisy = np.stack(waves, -1) + rng.normal(0, 12, (h, w, 3))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(Path(folder)/f"{i:05d}.jpg", quality=90)
    frame = pd.DataFrame(dict(path=[f"{i:05d}.jpg" for i in range(n)], pid=np.arange(n)//4, split="train"))
    return ReidTable(frame, folder)


def rate(table, **how):
    "Images per second in the second of two epochs"
    loader = Batches(table, 32, **how)
    for _ in loader.epoch(0): pass
    begun, seen = time.perf_counter(), 0
    for batch in loader.epoch(1): seen += len(batch["img"])
    seconds = time.perf_counter() - begun
    loader.close()
    return seen/seconds


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--images", type=int, default=512)
    p.add_argument("--size", type=int, nargs=2, default=(384, 128))
    p.add_argument("--augment", choices=tuple(AUGMENT), default="light")
    p.add_argument("--workers", type=int, nargs="+", default=(0, 1, 2))
    p.add_argument("--out", help="CSV file to write")
    a = p.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        table = crops(folder, a.images)
        for workers, cached, decoder in product(a.workers, (False, True), DECODERS):
            cache = Path(folder)/"cache" if cached else None
            speed = rate(table, size=tuple(a.size), augment=a.augment, workers=workers, decoder=decoder, cache=cache)
            rows.append(dict(decoder=decoder, cache=cached, workers=workers, images_per_s=round(speed),
                             ratio=round(speed/(rows[0]["images_per_s"] if rows else speed), 2)))
            print(rows[-1], flush=True)
    frame = pd.DataFrame(rows)
    if a.out: frame.to_csv(a.out, index=False)
    print(frame.to_string(index=False))


if __name__ == "__main__": main()
