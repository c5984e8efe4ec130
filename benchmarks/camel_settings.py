"""Settings of the CAMeL variants on validation Worlds: the search behind `lr`, `ft_lr`, their multipliers and `Meta`.

    python benchmarks/camel_settings.py start       # the weights that all methods begin with, not trained
    python benchmarks/camel_settings.py rates       # peak rate of each method
    python benchmarks/camel_settings.py tasks       # strength, mixing, eq. 4 and 5, BatchNorm statistics
    python benchmarks/camel_settings.py text        # how the tasks augment captions
    python benchmarks/camel_settings.py steps       # batches of pretraining
    python benchmarks/camel_settings.py tuning      # rate of fine-tuning

World and training seeds 1000, 1001 and 1002 (never used for results), from the weights that come with the package.
Runs are kept in `runs/camel-settings`, so a second call goes on where the first stopped. The tables stand in
`benchmarks/camel_settings.csv`.
"""
import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd  # noqa: E402 - threads are set before numpy is imported

from reid_lab.experiments.sweep import sweep  # noqa: E402
from reid_lab.recipes.camel import run_variant  # noqa: E402
from reid_lab.recipes.camel_settings import VARIANTS

SEEDS = (1000, 1001, 1002)
RATES = dict(base=(2.5e-4, 5e-4, 1e-3), st=(1e-3, 2e-3, 4e-3), camel=(4e-3, 8e-3, 16e-3), st_adsu=(2e-3, 4e-3, 8e-3),
             st_cmml=(2e-3, 4e-3, 8e-3))
FIRST = dict(strength=.4) # before `tasks` had shown that .6 is better: `rates` and `tasks` were searched with it
TASKS = (dict(), dict(strength=.2), dict(strength=.6), dict(strength=.8), dict(mix="embed"), dict(refresh="plain"),
         dict(k=3), dict(k=15), dict(eps_fast=.5))
TEXT = (dict(), dict(eda_alpha=0.), dict(eda_alpha=.05), dict(eda_alpha=.2), dict(eda_ops="swap delete"))
STEPS = (100, 200, 400)
TUNING = dict(base=(5e-4, 1e-3, 2e-3, 4e-3), st=(5e-4, 1e-3, 2e-3), camel=(5e-4, 1e-3, 2e-3))
RATE = dict(rates=("lr", "lr_mult", RATES), tuning=("ft_lr", "ft_mult", TUNING))
SCORES = ["indomain_mAP", "zeroshot_R1", "zeroshot_mAP", "zeroshot_itm_mAP", "zeroshot_fused_mAP"]


def points(stage):
    "What a stage compares: method, settings of training, settings of the tasks, whether it is fine-tuned"
    if stage == "start": return [dict(method="start")]
    if stage in RATE:
        rate, mult, grid = RATE[stage]
        meta = dict(meta=FIRST) if stage == "rates" else {}
        return [dict(method=m, train={rate: VARIANTS[m].rate_for(r, mult)}, **meta)
                for m, rates in grid.items() for r in rates]
    if stage == "text": return [dict(method=m, meta=t) for m in ("st", "camel") for t in TEXT]
    if stage == "steps": return [dict(method=m, train=dict(steps=n)) for m in ("base", "st", "camel") for n in STEPS]
    meta = {"k", "eps_fast"} # of Algorithm 1, which `st` leaves out
    return [dict(method=m, meta={**FIRST, **t}) for m in ("st", "camel") for t in TASKS
            if m == "camel" or not meta & {*t}]


def main(stage, jobs, weights, out):
    "Run one stage, print means over Worlds, best zero-shot mAP first, and add the table to a file"
    tuned = stage == "tuning"
    frame = sweep(run_variant, points(stage), seeds=SEEDS, n_jobs=jobs, preset="quick", finetuned=tuned,
                  folder=f"runs/camel-settings/{stage}", weights=weights)
    failed = frame[frame.status != "ok"]
    if len(failed): raise SystemExit(f"{len(failed)} runs failed; the first: {failed.error.iat[0]}")
    if stage in RATE: # of the method, not of `Train`
        rate, mult, _ = RATE[stage]
        frame["train"] = [{rate: t[rate]*getattr(VARIANTS[m], mult)} for t, m in zip(frame.train, frame.method)]
    for c in ("train", "meta"):
        frame[c] = [", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in d.items())
                    if isinstance(d, dict) else "" for d in frame.get(c, [None]*len(frame))]
    scores = ["finetuned_R1", "finetuned_mAP", "finetuned_fused_mAP"] if tuned else SCORES
    table = frame.groupby(["method", "train", "meta"], sort=False)[scores].mean().round(2).reset_index()
    table = table.sort_values(["method", scores[-2 if tuned else 2]], ascending=[True, False])
    print(table.to_string(index=False))
    if out:
        known = pd.read_csv(out) if Path(out).exists() else pd.DataFrame(columns=["stage"])
        pd.concat([known[known.stage != stage], table.assign(stage=stage)]).to_csv(out, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("start", "rates", "tasks", "text", "steps", "tuning"))
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--weights", default="world", help="where the runs start")
    parser.add_argument("--out", default="", help="CSV that the table is added to")
    main(**vars(parser.parse_args()))
