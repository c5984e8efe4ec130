"""Learning rates of the CAMeL variants on a validation World: the search behind `lr` and `lr_mult` of the recipe.

    python benchmarks/camel_rates.py [--jobs 2] [--steps 900] [--out benchmarks/camel_rates.csv]

World seed 1000 (never used for results), training seed 0, pretraining only; about 200 s a run on one core. Results are
kept in `runs/camel-rates`, so a second call goes on where the first stopped.
"""
import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from reid_lab.experiment import sweep  # noqa: E402 - threads are set before numpy is imported
from reid_lab.recipes.camel import VARIANTS, run_variant  # noqa: E402

RATES = dict(base=(1e-3, 1.5e-3, 3e-3, 5.25e-3), st=(1e-3, 1.5e-3, 3e-3), camel=(2.25e-3, 4.5e-3, 7.5e-3, 12e-3))
SCORES = ["indomain_R1", "indomain_mAP", "zeroshot_R1", "zeroshot_mAP"]


def main(jobs, steps, out):
    "Run the grid and print it, best rate first"
    grid = [dict(method=m, train=dict(steps=steps, lr=rate/VARIANTS[m].lr_mult))
            for m, rs in RATES.items() for rate in rs]
    frame = sweep(run_variant, grid, n_jobs=jobs, folder="runs/camel-rates", preset="quick", finetuned=False,
                  world_seed=1000)
    frame["lr"] = [t["lr"]*VARIANTS[m].lr_mult for t, m in zip(frame.train, frame.method)]
    table = frame[["method", "lr", *SCORES]].sort_values(["method", "zeroshot_mAP"], ascending=[True, False]).round(4)
    print(table.to_string(index=False))
    if out: table.to_csv(out, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--steps", type=int, default=900, help="pretraining batches of 64")
    parser.add_argument("--out", default="", help="CSV to write")
    main(**vars(parser.parse_args()))
