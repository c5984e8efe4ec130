"""Time of a DART3-LITE re-run in the camera cockpit: 2,000 queries x 10,000 gallery images x 512 numbers, 6 cameras.

    python benchmarks/cockpit.py [--dim 512] [--cams 6] [--batch 64] [--repeat 5] [--threads 2] [--autograd]

Random features with a shift per camera. `adaptation` is the re-run alone (features of all cameras), `with scores` all
cameras with average precisions and neighbours, `answer` all that views draw, with NMI and places on the map. Settings
have changed before each round; what does not depend on them is there, as in a notebook. Cameras are mixed in the order
of the queries, so that all of them are there at the end. Limit: adaptation 1.5 s, on two cores. Beside the best
and the median of `--repeat` stand the least seconds of the processor, which a busy machine does not stretch: with
`--threads 1` they bound what two idle cores need. `--autograd` adds `adapt_embeddings(Dart3Lite(...))` on the same.
"""
import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import torch  # noqa: E402

from reid_lab.analysis.bias.remedies import LITE, LITE_NAME  # noqa: E402
from reid_lab.analysis.bias.reruns import Reruns, SharedMap, bias_nmi  # noqa: E402
from reid_lab.retrieval.embeddings import Embeddings  # noqa: E402
from reid_lab.tta.base import adapt_embeddings  # noqa: E402
from reid_lab.tta.dart3 import Dart3Lite

Q, G, IDS = 2000, 10_000, 500
LIMITS = {"adaptation": 1.5}


def features(n, dim, cams, seed):
    "Random identities with a shift per camera"
    draw = lambda k, *size: torch.randn(*size, generator=torch.Generator().manual_seed(k))
    cam, pid = np.arange(n) % cams, np.random.default_rng(seed).integers(0, IDS, n)
    return Embeddings(draw(1, IDS, dim)[pid] + draw(2, cams, dim)[cam] + 2*draw(seed + 3, n, dim), pid, cam)


def now(): return np.array([time.perf_counter(), time.process_time()])


def times_of(runs, shared, tau, batch):
    "Seconds, and seconds of the processor, until each part of an answer is there"
    out, settings = {}, dict(tau=tau, batch_size=batch)
    start = now()
    for _ in runs.bench.run(**settings): pass
    out["adaptation"], start = now() - start, now()
    q_hat, xy, g = torch.empty_like(runs.q.emb), shared.start(LITE_NAME), runs.gallery(LITE_NAME)
    for step in runs.run(**settings):
        q_hat[step.rows] = step.emb
        shared.moved(xy, step, g)
    out["with scores"] = now() - start
    bias_nmi(q_hat, g, runs, shared)
    return out | {"answer": now() - start}


def main(dim, cams, batch, repeat, threads, autograd):
    torch.set_num_threads(threads)
    q, g = features(Q, dim, cams, 0), features(G, dim, cams, 1)
    runs = Reruns(q, g)
    shared = SharedMap(runs)
    times_of(runs, shared, 100., batch) # compiles and prepares
    rounds = [times_of(runs, shared, 10. + i, batch) for i in range(repeat)]
    print(f"{Q} x {G} x {dim}, {cams} cameras, batches of {batch}, {torch.get_num_threads()} threads, "
          f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':14}{'best s':>8}{'median s':>10}{'processor s':>13}{'limit':>7}")
    for name in rounds[0]:
        wall, cpu = np.transpose([r[name] for r in rounds])
        limit, best, middle = LIMITS.get(name), wall.min(), statistics.median(wall)
        said = lambda v: "met" if v < limit else "NOT MET"
        met = f"{limit:7.1f}  {said(best)} (best), {said(middle)} (median)" if limit else ""
        print(f"{name:14}{best:8.2f}{middle:10.2f}{cpu.min():13.2f}{met}", flush=True)
    if not autograd: return
    start = now()
    adapt_embeddings(Dart3Lite(**{**LITE, "batch_size": batch}), q, g)
    slow = now() - start
    print(f"{'autograd':14}{slow[0]:8.2f}{'':10}{slow[1]:13.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=512, help="of the features")
    parser.add_argument("--cams", type=int, default=6, help="cameras")
    parser.add_argument("--batch", type=int, default=64, help="queries per batch")
    parser.add_argument("--repeat", type=int, default=5, help="rounds")
    parser.add_argument("--threads", type=int, default=2, help="of torch")
    parser.add_argument("--autograd", action="store_true", help="measure the reference too")
    main(**vars(parser.parse_args()))
