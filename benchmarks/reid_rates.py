"""Learning rates of the tiny image models at preset quick, on validation Worlds; rows go to `reid_rates.csv`.

    python benchmarks/reid_rates.py [--models transreid_tiny clip_reid_tiny] [--weights world] [--seeds 1000 1001]

Each model trains on the known cameras and is scored on the new ones of the same validation World (the scores that
DART3's methods start from, and those after Norm), so no test World is touched.
"""
import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd  # noqa: E402 - threads are set before numpy is imported

from reid_lab.datasets.protocols.cameras import world_case  # noqa: E402
from reid_lab.recipes.dart3 import Evaluation, over_cameras, score_settings  # noqa: E402
from reid_lab.recipes.reid import train_reid  # noqa: E402

POINTS = [
    dict(model="bot_tiny", lr=1.5e-3),
    *[dict(model="transreid_tiny", lr=lr, triplet=w)
      for lr, w in ((5e-4, .1), (5e-4, 1.), (1e-3, 1.), (2e-3, 1.), (4e-3, 1.))],
    *[dict(model="clip_reid_tiny", lr=lr, triplet=w, prompt_epochs=n)
      for lr, w, n in ((1e-3, .1, 0), (1e-3, 1., 0), (2e-3, 1., 0), (2e-3, 1., 10))],
    *[dict(model="clip_reid_tiny", lr=2e-3, triplet=1., prompt_epochs=0, w_id=1., w_i2t=w) for w in (0., 1.)],
    *[dict(model="clip_reid_tiny", lr=lr, triplet=1., prompt_epochs=10, w_id=1., w_i2t=1.)
      for lr in (1e-3, 2e-3, 4e-3)]]
POINTS = [dict(p, weights="none") for p in POINTS] + [dict(p, weights="world") for p in [
    *[dict(model="bot_tiny", lr=lr) for lr in (2.5e-4, 5e-4, 1.5e-3)],
    *[dict(model="transreid_tiny", lr=lr, triplet=1.) for lr in (1.5e-4, 3e-4, 1e-3, 2e-3, 4e-3)],
    *[dict(model="clip_reid_tiny", lr=lr, triplet=1., prompt_epochs=10, w_id=w, w_i2t=1.)
      for lr, w in ((2.5e-4, 1.), (5e-4, 1.), (1e-3, 1.), (2e-3, 1.), (4e-3, 1.), (5e-4, .25))]]]


def one(case, model, lr, weights, triplet=None, prompt_epochs=0, **kw):
    "Train, then score"
    if triplet is not None: kw["w_triplet"] = triplet
    done = train_reid(case.train, "quick", 0, model=model, lr=lr, prompt_epochs=prompt_epochs, weights=weights,
                      model_kw=tuple(kw.items()), quiet=True)
    f = over_cameras(score_settings(Evaluation(done.model, case), ("No adaptation", "Norm"))).set_index("variant")
    return dict(R1=f.R1["No adaptation"], mAP=f.mAP["No adaptation"], mAP_norm=f.mAP["Norm"],
                seconds=round(done.seconds),
                **{k: round(v, 3) for k, v in done.log[-1].items() if k.endswith("_loss")})


def main(models, weights, seeds, out):
    "Every point that the file does not have yet, written as it is done"
    rows = pd.read_csv(out).to_dict("records") if Path(out).exists() else []
    for seed in seeds:
        case = world_case("quick", seed)
        for point in POINTS:
            here = dict(point, seed=seed)
            if point["model"] not in models or point["weights"] not in weights: continue
            if any(all(r.get(k) == v for k, v in here.items()) for r in rows): continue
            rows.append({**here, **one(case, **point)})
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(out, index=False, float_format="%.6g")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = sorted({p["model"] for p in POINTS})
    parser.add_argument("--models", nargs="+", default=names, choices=names)
    parser.add_argument("--weights", nargs="+", default=["none", "world"], choices=["none", "world"], help="starts")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1000], help="of the validation Worlds")
    parser.add_argument("--out", default=str(Path(__file__).with_name("reid_rates.csv")), help="CSV file of the rows")
    main(**vars(parser.parse_args()))
