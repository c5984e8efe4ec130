"""Where the hetero-centre triplet loss acts, on validation Worlds: the choice behind the arm `before` of infrared.

    python benchmarks/hetero_center.py [--worlds 1000 1001] [--places order before ...]

World and training of `reid_lab run conditions -p study=infrared` at `quick`, batches of two images of each modality
of 16 people; a place says which loss is added, and whether the weighted triplets of single images stay. One training
each, of one to two minutes. Rows that `--out` (default `benchmarks/hetero_center.csv`) has are not made again: mAP of
both protocols, the added loss (with its weight) at steps 1, 100, 300 and 600, the identity loss likewise, and the mean
distance of 64 test images before and behind the neck.
"""
import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import pandas as pd
import torch

from reid_lab.recipes.arms import arm_settings, arm_world, score_features
from reid_lab.recipes.infrared import INFRARED, by_modality
from reid_lab.recipes.reid import train_reid
from reid_lab.training.learner import Callback

PLACES = dict( # name -> added losses, loss of the single images
    order=("", "weighted"),
    behind_beside=("2*hetero_center", "weighted"),
    before=("2*hetero_center_before", "none"),
    before_1=("hetero_center_before", "none"),
    before_half=("0.5*hetero_center_before", "none"),
    before_beside=("2*hetero_center_before", "weighted"),
    behind=("2*hetero_center", "none"),
    identity=("", "none"))
STEPS = (1, 100, 300, 600)


class Watch(Callback):
    "Losses at some steps"
    only_watches = True

    def __init__(self): self.n, self.seen = 0, []

    def after_step(self, learn):
        self.n += 1
        if self.n in STEPS: self.seen.append({name: float(value) for name, value in learn.logs.items()})

    def of(self, name): return " ".join(f"{logs[name]:.3f}" for logs in self.seen if name in logs)


@torch.no_grad()
def spread(model, table):
    "Mean distance of two of 64 images before and behind the neck"
    images = np.stack(table.images(np.arange(64), model.size))
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2).float()/255
    return [float(torch.pdist(f).mean()) for f in model.features(pixels)]


def row_of(world, place):
    "One training, scored"
    losses, metric = PLACES[place]
    s = arm_settings(INFRARED, dict(name="order"))
    kw = tuple(dict(s.model_kw, metric=metric).items())
    searched, watch = arm_world(INFRARED, "quick", world), Watch()
    table = searched.table()
    done = train_reid(table, s, world, quiet=True, scheme=by_modality(table, s), callbacks=[watch], losses=losses,
                      model_kw=kw)
    scores = score_features(done.model, searched, INFRARED.protocols)
    before, behind = spread(done.model, table.query("test"))
    name = losses.split("*")[-1]
    return dict(world=world, place=place, losses=losses, metric=metric,
                **{f"mAP {protocol}": round(found["mAP"], 2) for protocol, found in scores.items()},
                added_loss=watch.of(f"{name}_loss"), id_loss=watch.of("id_loss"),
                distance_before=round(before, 3), distance_behind=round(behind, 3))


def main(worlds, places, out):
    "Make the rows that are missing"
    known = pd.read_csv(out, keep_default_na=False).to_dict("records") if Path(out).exists() else []
    for world in worlds:
        for place in places:
            if any((int(row["world"]), row["place"]) == (world, place) for row in known): continue
            known.append(row_of(world, place))
            print(known[-1], flush=True)
            pd.DataFrame(known).to_csv(out, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, nargs="+", default=[1000, 1001])
    parser.add_argument("--places", nargs="+", choices=list(PLACES), default=list(PLACES))
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".csv")))
    main(**vars(parser.parse_args()))
