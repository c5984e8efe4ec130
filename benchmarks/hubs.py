"""How many queries of a camera have the same nearest image, before and after adaptation; rows go to a CSV file.

    python benchmarks/hubs.py RUN [RUN ...] [--methods Norm DART3] [--out hubs.csv]

RUN is a folder of `reid_lab run dart3` on the World at preset quick, with its trained models. Nothing is trained; a
camera and a method take some seconds on one core. With several runs, rows of all are in one file.
"""
import argparse
import json
from pathlib import Path

import pandas as pd

from reid_lab.core.basics import pick_device
from reid_lab.datasets.protocols.camera_cases import camera_case
from reid_lab.recipes.dart3 import METHODS, PAPER, Evaluation, score_settings
from reid_lab.recipes.reid import reid_key, reid_settings
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.training.folder import load_trained


def trained_case(run, params, seed):
    "The model of a seed with the features that the run kept"
    folder = run/"models"/f"seed-{seed}"
    case = camera_case("quick", seed, dataset="world", scene=params["scene"], severity=params["severity"])
    settings = reid_settings("quick", model=params["model"] or "bot_tiny")
    done = load_trained(folder, reid_key(case.train, settings, seed), pick_device("cpu"))
    sides = (Embeddings.load(folder/name) for name in ("queries", "gallery"))
    return Evaluation(done.model, case, *sides)


def of_run(run, methods):
    "A row a camera and a method"
    params = json.loads((run/"metrics.json").read_text())["params"]
    if params["dataset"] != "world" or params["preset"] != "quick":
        raise SystemExit(f"{run} is of {params['dataset']} at {params['preset']}; give a run on the World at quick")
    for seed in range(params["seed"], params["seed"] + params["seeds"]):
        frame = score_settings(trained_case(run, params, seed), methods)
        where = dict(scene=params["scene"], model=params["model"] or "bot_tiny", seed=seed)
        yield frame.assign(**where)[[*where, "cam", "n_query", "method", "R1", "mAP", "hub"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--methods", nargs="+", default=list(PAPER), choices=list(METHODS))
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".csv")))
    args = parser.parse_args()
    rows = pd.concat([frame for run in args.runs for frame in of_run(run, args.methods)])
    rows.round(dict(R1=2, mAP=2, hub=6)).to_csv(args.out, index=False)
