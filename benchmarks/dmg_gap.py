"""Is there a gap that DMG-Net could close? BoT trained in the test domains beside BoT and DMG-Net; rows go to a CSV.

    python benchmarks/dmg_gap.py [--seeds 1000 1001] [--out dmg_gap.csv]

The World of the A/B/C schema with more people at the sites of Test-B and Test-C: 25 a site are tested, as in the quick
preset, and the other 90 train the oracle of this test, as many people and images as the source has. Test-A shows new
people under the cameras of the source, so BoT is its own oracle there. Two minutes a training on one core.
"""
import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import pandas as pd  # noqa: E402

from reid_lab.core.basics import stream  # noqa: E402
from reid_lab.datasets.protocols.dg_cases import DGCase, abc_tests  # noqa: E402
from reid_lab.datasets.protocols.dg_splits import ABC_SIZES, pick_queries, world_abc  # noqa: E402
from reid_lab.recipes.dmg import score_case, train_method  # noqa: E402

ORACLES = ("test-b", "test-c")
ALL = ("start", "bot", "dmg")   # trained on the source; an oracle is BoT


def divided(seed):
    "Source, tests, and training images of each test's oracle"
    quick = ABC_SIZES["quick"]
    home, *other = quick.sites
    own = home*quick.ids[0]     # people of the source
    ids = (*quick.ids[:3], *(tested + own//sites for tested, sites in zip(quick.ids[3:], other)))
    table = world_abc("quick", seed, ids=ids).where(pid=lambda pid: pid >= 0)
    frame, further = table.frame, {}
    for subset, n in zip(ORACLES, quick.ids[3:]):
        rows = frame[frame.subset == subset]
        kept = []
        for site, of_site in rows.groupby("site"):
            kept += stream(seed, "tested", int(site)).permutation(np.unique(of_site.pid))[:n].tolist()
        further[subset] = rows.pid[~rows.pid.isin(kept)].unique()
    oracles = {subset: table.where(subset=subset, pid=pids.tolist()).assign(split="train", role="none")
               for subset, pids in further.items()}
    tested = table.where(pid=frame.pid[~frame.pid.isin(np.concatenate([*further.values()]))].unique().tolist())
    return DGCase("source", table.where(split="train"), abc_tests(pick_queries(tested, seed))), oracles


def trainings(seed):
    "A row a training and test"
    case, oracles = divided(seed)
    methods = [(method, "source", case.train) for method in ALL]
    for method, trained_on, table in [*methods, *(("bot", subset, images) for subset, images in oracles.items())]:
        done = train_method(table, dict(name=method), "quick", seed)
        for test, found in score_case(done.model, case).items():
            yield dict(preset="quick", seed=seed, method=method, trained_on=trained_on, test=test,
                       people=table.frame.pid.nunique(), images=len(table), images_seen=done.images,
                       n_query=len(case.tests[test].tasks[0].q), R1=found["R1"], mAP=found["mAP"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1000, 1001])
    parser.add_argument("--out", default=str(Path(__file__).with_suffix(".csv")))
    args = parser.parse_args()
    rows = []
    for seed in args.seeds:
        for row in trainings(seed):
            rows.append(row)
            pd.DataFrame(rows).round(2).to_csv(args.out, index=False)
            print(row["method"], row["trained_on"], row["test"], row["people"], row["images"],
                  round(row["mAP"], 1), flush=True)
