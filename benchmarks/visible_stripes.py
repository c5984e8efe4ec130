"""How many stripes, and which power of a read visibility: the choice behind the arm `visible` of `occluded`.

    python benchmarks/visible_stripes.py [--worlds 1000 1001] [--stripes 3 6] [--images 500 2000]

World and training of the arm `plain` of `reid_lab run conditions -p study=occluded` at `quick`, on validation Worlds;
one training a World. Each row is one number of stripes and of images that the probe learns from: mAP by
`occluded-duke` with the similarity of all stripes, of stripes by their read visibility to the power 1, 2, 3 and 4, and
of stripes known to be visible; the correlation of read and known visibility; the same power on both sides, where the
gallery is read as well. mAP by one feature stands beside them. Rows go to `--out` (default
`benchmarks/visible_stripes.csv`).
"""
import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import pandas as pd
import torch

from reid_lab.recipes.arms import arm_world, protocol_scores, searched, train_arm
from reid_lab.recipes.occluded import OCCLUDED, known_visibility
from reid_lab.retrieval.scores import MatrixScores
from reid_lab.retrieval.visible_parts import learn_visibility, stripe_features, visible_similarity

PROTOCOL = "occluded-duke"
POWERS = (1., 2., 3., 4.)


def rows_of(seed, stripes, images):
    "One training, scored in every way"
    world = arm_world(OCCLUDED, "quick", seed)
    table = world.table()
    model = train_arm(OCCLUDED, dict(name="plain"), table, "quick", seed).model
    train, sides = table.where(split="train"), (table.query("test"), table.gallery("test"))
    q, g = searched(model, world)

    def score(parts, visible):
        scores = MatrixScores(visible_similarity(*parts, *visible))
        return round(protocol_scores(q, g, (PROTOCOL,), scores=scores)[PROTOCOL]["mAP"], 2)

    whole = round(protocol_scores(q, g, (PROTOCOL,))[PROTOCOL]["mAP"], 2)
    for n_parts in stripes:
        parts = [stripe_features(model, side, n_parts) for side in sides]
        ones = [torch.ones(part.shape[:2]) for part in parts]
        known = [known_visibility(world, side, n_parts) for side in sides]
        of_all, of_known = score(parts, ones), score(parts, known)
        for n_images in images:
            probe = learn_visibility(model, train, n_parts, n_images, power=1.)
            read = [probe(model, side) for side in sides]
            by_power = {f"power {p:g}": score(parts, (read[0]**p, ones[1])) for p in POWERS}
            both = score(parts, [visible**2 for visible in read])
            correlation = np.corrcoef(read[0].flatten(), known[0].flatten())[0, 1]
            yield dict(world=seed, stripes=n_parts, images=n_images, one_feature=whole, all_stripes=of_all, **by_power,
                       **{"power 2, both sides": both}, known=of_known, correlation=round(correlation, 3))


def main(worlds, stripes, images, out):
    "All rows, written as they come"
    rows = []
    for seed in worlds:
        for row in rows_of(seed, stripes, images):
            rows.append(row)
            print(row, flush=True)
            pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1000, 1001])
    parser.add_argument("--stripes", type=int, nargs="+", default=[3, 6])
    parser.add_argument("--images", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".csv")))
    main(**vars(parser.parse_args()))
