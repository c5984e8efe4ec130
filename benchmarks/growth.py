"""How time and memory grow with the data: orders of a PK sampler, cutting a long word, the camera-bias report.

    python benchmarks/growth.py [--curve pk_order wrap_text bias] [--before FOLDER] [--out benchmarks/growth.csv]

Every point runs in a fresh process on one thread, so that its peak memory is its own; seconds are of the process,
which a busy machine does not stretch. `ratio` is the time over that of half the size: 2 is linear, 4 quadratic.
`--before` names a checkout of an older version, which is measured beside this one.
"""
import argparse
import json
import os
import resource
import subprocess
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pandas as pd  # noqa: E402 - threads are set before numpy is imported

CURVES = {  # name -> sizes, what they count; an older version stops at the size where it takes a minute
    "pk_order": ([20_000, 40_000, 80_000, 160_000], "images, 8 an identity"),
    "wrap_text": ([1_000, 2_000, 4_000, 8_000], "letters of one word"),
    "bias": ([12_500, 25_000, 50_000, 100_000], "features of 256 dimensions, 20 an identity"),
}


def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/(1024 if sys.platform != "darwin" else 2**20)


def task(curve, n):
    "A function to be timed"
    import numpy as np
    rng = np.random.default_rng(0)
    if curve == "pk_order":
        from reid_lab.data.loaders import pk_order
        return lambda: pk_order(rng.permutation(n)//8, 64, rng)
    if curve == "wrap_text":
        from reid_lab.figures.style import wrap_text
        word = "".join(rng.choice(list("aeimnorst"), n))
        return lambda: wrap_text(word, 2., 7, max_lines=n)
    import torch

    from reid_lab.analysis.bias.audit import bias_report
    from reid_lab.retrieval.embeddings import Embeddings
    pid = rng.integers(0, n//20, n)
    emb = torch.randn(n, 256, generator=torch.Generator().manual_seed(0)) + torch.randn(n//20, 256)[pid]
    e = Embeddings(emb, pid, rng.integers(0, 6, n))
    return lambda: bias_report(e, map_method="none")


def worker(curve, n):
    "One point of a curve; prints a JSON line"
    run = task(curve, 1_000)  # imports and caches
    run()
    run, before, start = task(curve, n), peak_mb(), time.process_time()
    run()
    print(json.dumps(dict(seconds=time.process_time() - start, more_mb=max(0., peak_mb() - before))))


def measured(curve, n, folder):
    "A point, with the package in `folder` (default: this one)"
    env = dict(os.environ, REID_LAB_QUIET="1", **({"PYTHONPATH": folder} if folder else {}))
    out = subprocess.run([sys.executable, __file__, "--worker", curve, str(n)], check=True, capture_output=True,
                         text=True, env=env).stdout
    return json.loads(out.splitlines()[-1])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--curve", nargs="+", default=list(CURVES), choices=list(CURVES))
    p.add_argument("--before", default="", help="checkout of an older version")
    p.add_argument("--out", default="", help="CSV to write")
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker: return worker(a.worker[0], int(a.worker[1]))
    rows = []
    print(f"{'curve':10}{'version':>9}{'n':>9}{'seconds':>9}{'ratio':>7}{'more MB':>9}")
    for curve in a.curve:
        for version, folder in [("before", a.before)]*bool(a.before) + [("now", "")]:
            last = None
            for n in CURVES[curve][0]:
                r = measured(curve, n, folder)
                ratio = r["seconds"]/last if last else float("nan")
                rows.append(dict(curve=curve, version=version, n=n, seconds=round(r["seconds"], 3),
                                 ratio=round(ratio, 2), more_mb=round(r["more_mb"])))
                print(f"{curve:10}{version:>9}{n:9,}{r['seconds']:9.2f}{ratio:7.2f}{r['more_mb']:9.0f}", flush=True)
                last = r["seconds"]
    print("; ".join(f"{c}: n counts {CURVES[c][1]}" for c in a.curve))
    if a.out: pd.DataFrame(rows).to_csv(a.out, index=False)


if __name__ == "__main__": main()
