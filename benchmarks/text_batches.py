"""Random batches beside batches of look-alikes: InfoNCE and CFAM on quick Worlds; rows go to a CSV file.

    python benchmarks/text_batches.py [--seeds 1000 1001] [--methods itc cfam] [--out text_batches.csv]

Trained on fine captions as the study `main` of CFAM is, and searched with fine, medium and coarse ones. A row also
says how many rivals a batch held, and how the same model finds people it was trained on beside people it never saw,
in galleries of equal size. Four minutes a training on one core, behind the rendering of the World.
"""
import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import pandas as pd  # noqa: E402

from reid_lab.analysis.text_ceiling import agreement, rivals_of_batches  # noqa: E402
from reid_lab.analysis.text_scores import evaluate  # noqa: E402
from reid_lab.core.basics import stream  # noqa: E402
from reid_lab.datasets.protocols.text import text_case  # noqa: E402
from reid_lab.recipes.cfam import method_settings  # noqa: E402
from reid_lab.recipes.text import TEXT_BATCHES, new_text_model, text_batches, train_text  # noqa: E402
from reid_lab.world.world import World  # noqa: E402

LEVELS = ("fine", "medium", "coarse")
NEAR = 2        # facts: a rival that fits less well by no more is near
EPOCHS = 3      # that 200 steps of 64 pairs begin


def batch_rivals(train, settings, seed):
    "Look-alikes and rivals of a caption in the batches of the first epochs"
    images = train.where(split="train").assign(role="both")
    found = agreement(World("quick", seed, granularity="fine"), images, "train", only_seen=True)
    loader = text_batches(train, settings, new_text_model(train, settings), seed)
    image = images.text_queries("train").row.to_numpy()
    assert (loader.rows == image).all()     # the same captions in the same order
    batches = [batch for epoch in range(EPOCHS) for batch in loader.order(epoch)]
    family = images.frame.family.to_numpy()
    same = [family[image[b]][:, None] == family[image[b]] for b in batches]
    others = [found.q_pid[b][:, None] != found.q_pid[b] for b in batches]
    alike = [(s & o)[family[image[b]] >= 0].sum()/len(b) for s, o, b in zip(same, others, batches)]
    return dict(look_alikes=np.mean(alike), rivals=rivals_of_batches(found, image, batches),
                near_rivals=rivals_of_batches(found, image, batches, NEAR))


def few_people(table, split, seed, n=400, images=3):
    "Some images each of some people of a split, as a test"
    rows = table.where(split=split)
    pids = stream(seed, "few people", split).permutation(np.unique(rows.frame.pid))[:n]
    rows = rows.where(pid=pids.tolist())
    first = rows.frame.groupby("pid").cumcount() < images
    return rows.where(path=rows.frame.path[first].tolist()).assign(split="test", role="both")


def scores(model, case):
    "Scores with captions of each length, also of people with look-alikes"
    row = {}
    for level in LEVELS:
        table = case.tests[level]
        found = evaluate(model, table, "test", 0, per_query=True)
        itc, family = found["itc"], dict(zip(table.frame.pid, table.frame.family))
        first = np.asarray(itc["per_query"]["first"])
        has_twin = np.array([family[pid] >= 0 for pid in found["q"].pid])
        row |= {f"R1_{level}": itc["R1"], f"mAP_{level}": itc["mAP"],
                f"R1_{level}_alike": 100*np.mean(first[has_twin] == 1)}
    return row


def trainings(seed, methods, names):
    "A row a method and kind of batches"
    case = text_case("fine", LEVELS, "quick", seed, None, "test")
    known = few_people(case.train, "train", seed)
    new = few_people(case.tests["fine"], "test", seed)
    counted = {}
    for method in methods:
        for batches in names if method != "start" else ["random"]:
            settings = method_settings(dict(name=method), "quick", batches=batches)
            done = train_text(case.train, settings, seed, quiet=True)
            if done.steps and batches not in counted: counted[batches] = batch_rivals(case.train, settings, seed)
            seen = dict(batches=batches, **counted[batches]) if done.steps else dict(batches="none")
            row = dict(preset="quick", seed=seed, method=method, steps=done.steps, **seen, **scores(done.model, case))
            for name, table in dict(known=known, new=new).items():
                row[f"R1_{name}_people"] = evaluate(done.model, table, "test", 0)["itc"]["R1"]
            yield row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1000, 1001])
    parser.add_argument("--methods", nargs="+", default=["start", "itc", "cfam"])
    parser.add_argument("--batches", nargs="+", default=list(TEXT_BATCHES), choices=TEXT_BATCHES)
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".csv")))
    args = parser.parse_args()
    rows = []
    for seed in args.seeds:
        for row in trainings(seed, args.methods, args.batches):
            rows.append(row)
            pd.DataFrame(rows).round(3).to_csv(args.out, index=False)
            print(pd.DataFrame(rows[-1:]).round(2).T.to_string(header=False), flush=True)
