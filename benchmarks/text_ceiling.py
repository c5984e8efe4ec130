"""What the captions of quick Worlds allow, and how often a batch holds a rival; rows go to a CSV file.

    python benchmarks/text_ceiling.py [--seeds 1000 1001] [--preset quick] [--out text_ceiling.csv]

Nothing is trained. Two minutes a World on one core, behind its rendering.
"""
import argparse
from pathlib import Path

import pandas as pd

from reid_lab.analysis.text_ceiling import agreement, rivals_in_batch, text_ceiling
from reid_lab.world.world import World


def of_captions(preset, seed, granularity):
    "Both ceilings of one kind of captions"
    world = World(preset, seed, task="text", granularity=granularity)
    table = world.table()
    for only_seen in (False, True):
        found = agreement(world, table, only_seen=only_seen)
        scores = {name: round(value, 2) for name, value in text_ceiling(found).items()}
        yield dict(preset=preset, seed=seed, captions=granularity,
                   known="what the image shows" if only_seen else "every attribute", n_query=len(found.q_pid),
                   n_gallery=len(found.g_pid), facts=round(float(found.n_facts.mean()), 2), **scores,
                   rivals=round(rivals_in_batch(found), 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1000, 1001])
    parser.add_argument("--preset", default="quick", choices=("smoke", "quick"))
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".csv")))
    args = parser.parse_args()
    rows = [row for seed in args.seeds for granularity in ("coarse", "medium", "fine")
            for row in of_captions(args.preset, seed, granularity)]
    pd.DataFrame(rows).to_csv(args.out, index=False)
    print(pd.DataFrame(rows).to_string(index=False))
