"""Time of a bias report on 100,000 features: 12,400 queries x 87,600 gallery images x 512 numbers, 5,000 people.

    python benchmarks/bias.py [--queries 12400] [--gallery 87600] [--dim 512] [--people 5000] [--threads 2]

Random identities with a shift for each of 6 cameras. Prints the seconds of the whole report (five methods by both
distances, the check on halves, the open set; without the map), of its parts, and the multiple of one bare product of
queries and gallery in the same run. Compiled code is loaded before the clock starts. The default has the proportions of
MSMT17. Aim: a minute on two cores; measured once each, it takes 49 s, 20,000 x 80,000 (half as many pairs more) 67 s.
`both distances` should cost less than two products and `two passes` shows what they cost one after the other.
"""
import argparse
import os
import resource
import time

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import torch  # noqa: E402

from reid_lab.analysis.bias.audit import bias_report  # noqa: E402
from reid_lab.analysis.bias.remedies import LITE, ClosedLite, both_scores  # noqa: E402
from reid_lab.retrieval.embeddings import Embeddings  # noqa: E402
from reid_lab.retrieval.metrics import Scoring, retrieval_metrics  # noqa: E402
from reid_lab.retrieval.scores import DISTANCES, EmbeddingScores, score_blocks
from reid_lab.tta.base import adapt_embeddings  # noqa: E402


def features(n, dim, people, seed, cams=6):
    "Random identities with a shift per camera"
    rng = np.random.default_rng(seed)
    draw = lambda k, *size: torch.randn(*size, generator=torch.Generator().manual_seed(k))
    cam, pid = rng.integers(0, cams, n), rng.integers(0, people, n)
    return Embeddings(draw(1, people, dim)[pid] + draw(2, cams, dim)[cam] + 2*draw(seed + 3, n, dim), pid, cam)


def main(queries, gallery, dim, people, threads):
    torch.set_num_threads(threads)
    q, g = features(queries, dim, people, 0), features(gallery, dim, people, 1)
    retrieval_metrics(q[:200], g[:2000], scoring=Scoring(backend="numba"))
    print(f"{queries} x {gallery} x {dim}, {people} people, {threads} threads, load {os.getloadavg()[0]:.1f} on "
          f"{os.cpu_count()} cores\n{'':22}{'seconds':>9}{'products':>10}")
    base = None
    for name, do in {"product": lambda: [None for _ in score_blocks(EmbeddingScores(q.emb, g.emb))],
                     "both distances": lambda: both_scores(q, g),
                     "two passes": lambda: [retrieval_metrics(q, g, distance=d) for d in DISTANCES],
                     "DART3-LITE": lambda: adapt_embeddings(ClosedLite(**LITE), q, g),
                     "report": lambda: bias_report(q, g, map_method="none", quiet=True)}.items():
        start = time.perf_counter()
        do()
        seconds = time.perf_counter() - start
        base = base or seconds
        print(f"{name:22}{seconds:9.1f}{seconds/base:10.1f}", flush=True)
    print(f"highest memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20:.1f} GB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("queries", 12_400), ("gallery", 87_600), ("dim", 512), ("people", 5_000), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    main(**vars(parser.parse_args()))
