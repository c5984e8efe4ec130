"""Reading small image files one by one, and from tar files: seconds as a ratio within one run, and files opened

    python benchmarks/packed.py [--images 4000] [--rounds 5] [--out FILE.csv]

JPEG files of 128 x 64 are made in a temporary folder, packed, and read in one random order, whole rounds of one way
and of the other in turn. `bytes` reads them only, `pixels` decodes them too. What a local disk shows is the least
that is to be won: on the disks of a cluster, opening a file asks a server that many machines share. Files opened are
counted by the audit event `open` of Python.
"""
import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from reid_lab.core.basics import stream
from reid_lab.data.packing import pack_table, packed_table
from reid_lab.data.table import ReidTable

OPENED = dict(n=0, below="\0")


def count_opened(event, arguments):
    "Count files below a folder"
    if event == "open" and str(arguments[0]).startswith(OPENED["below"]): OPENED["n"] += 1


def crops(folder, n):
    "A table of `n` JPEG files in a hundred subfolders"
    for i in range(100): (Path(folder)/f"{i:02d}").mkdir(parents=True)
    paths = [f"{i % 100:02d}/{i:06d}.jpg" for i in range(n)]
    noise = stream(0, "packed").integers(0, 60, (64, 128, 64, 3))
    for i, path in enumerate(paths):
        Image.fromarray((noise[i % 64] + i % 190).astype(np.uint8)).save(Path(folder)/path, quality=85)
    return ReidTable(pd.DataFrame(dict(path=paths, pid=np.arange(n)//4, split="train")), folder, name="crops")


def from_files(table, what):
    "Read one image of a folder"
    if what == "pixels": return lambda path: table.read([path])
    return lambda path: (table.root/path).read_bytes()


def from_shards(table, what):
    "Read one image of a packed folder"
    if what == "pixels": return lambda path: table.read([path])
    return lambda path: table.reader.file(path).data


def seconds(read, paths):
    "Wall time of reading some images"
    begun = time.perf_counter()
    for path in paths: read(path)
    return time.perf_counter() - begun


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--images", type=int, default=4000)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", help="CSV file to write")
    a = p.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = crops(Path(folder)/"crops", a.images)
        pack_table(files, Path(folder)/"packed", quiet=True)
        paths = stream(0, "order").permutation(files["path"].to_numpy()).tolist()
        sys.addaudithook(count_opened)
        for what in ("bytes", "pixels"):
            packed = packed_table(Path(folder)/"packed", "none")
            ways = dict(files=from_files(files, what), shards=from_shards(packed, what))
            packed.reader.places    # the index is read once, before
            OPENED.update(below=folder)
            taken, opened = {way: [] for way in ways}, {}
            for _ in range(a.rounds):
                for way, read in ways.items():
                    OPENED.update(n=0)
                    taken[way].append(seconds(read, paths))
                    opened.setdefault(way, OPENED["n"])
            OPENED.update(below="\0")
            ratios = [f/s for f, s in zip(taken["files"], taken["shards"])]
            rows.append(dict(read=what, images=a.images, files_over_shards=round(statistics.median(ratios), 2),
                             lowest=round(min(ratios), 2), highest=round(max(ratios), 2), files_opened=opened["files"],
                             shards_opened=opened["shards"]))
    frame = pd.DataFrame(rows)
    print(frame.to_string(index=False))
    if a.out: frame.to_csv(a.out, index=False)


if __name__ == "__main__": main()
