"""Time and memory of the retrieval metrics at the sizes of Market-1501 and MSMT17.

    python benchmarks/evaluation.py [--size market msmt17] [--noise 2 3 1000] [--repeat 3] [--backend auto]

Every size and noise level runs in a fresh process, so that its peak memory is its own. Per repeat, the bare chunked
product and the full evaluation (all metrics, camera rule) run one after the other, each on the clock of the process
(CPU seconds, which a busy machine does not stretch) and on the wall; the ratio is taken within a repeat, and the median
is printed. Features are made: one centre per person plus noise. Low noise is a good model, 1000 is chance, the worst
case for the counting.
"""
import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

SIZES = {  # queries, gallery, ids, cameras
    "small": (500, 2_000, 100, 6),
    "market": (3_368, 15_913, 750, 6),
    "msmt17": (11_659, 82_161, 3_060, 15),
}


def features(n, ids, cams, noise, seed, dim=512):
    "Unit-norm float32 features of `n` images, made in slices so that making them costs no memory worth mentioning"
    import numpy as np
    import torch

    from reid_lab.retrieval.embeddings import Embeddings
    rng = np.random.default_rng(seed)
    pid = rng.permutation(n) % ids
    centre = torch.randn(ids, dim, generator=torch.Generator().manual_seed(0))
    gen, emb = torch.Generator().manual_seed(seed), torch.empty(n, dim)
    for lo in range(0, n, 4096):
        x = emb[lo:lo + 4096].normal_(generator=gen).mul_(noise).add_(centre[pid[lo:lo + 4096]])
        x /= x.norm(dim=1, keepdim=True)
    return Embeddings(emb, pid, rng.integers(0, cams, n))


def clocked(f):
    "Result, CPU seconds, wall seconds"
    cpu, wall = time.process_time(), time.perf_counter()
    out = f()
    return out, time.process_time() - cpu, time.perf_counter() - wall


def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/(1024 if sys.platform != "darwin" else 2**20)


def worker(size, noise, repeat, backend):
    "One size and noise level; prints a JSON line"
    import torch

    from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
    from reid_lab.retrieval.scores import EmbeddingScores, score_blocks
    nq, ng, ids, cams = SIZES[size]
    q, g = features(nq, ids, cams, noise, 1), features(ng, ids, cams, noise, 2)
    before = peak_mb()

    def product():
        for _ in score_blocks(EmbeddingScores(q.emb, g.emb)): pass

    compiled = Scoring(backend="numba" if backend == "auto" else backend)
    _, _, first = clocked(lambda: retrieval_metrics(q[:64], g, scoring=compiled))
    runs = []
    for _ in range(repeat):
        _, pc, pw = clocked(product)
        m, ec, ew = clocked(lambda: retrieval_metrics(q, g, scoring=Scoring(backend=backend)))
        runs.append(dict(product=pw, product_cpu=pc, metrics=ew, metrics_cpu=ec, ratio=ew/pw, ratio_cpu=ec/pc))
    med = {k: statistics.median(r[k] for r in runs) for k in runs[0]}
    print(json.dumps(dict(size=size, noise=noise, first=first, before=before, peak=peak_mb(),
                          threads=torch.get_num_threads(),
                          spread=[min(r["ratio_cpu"] for r in runs), max(r["ratio_cpu"] for r in runs)], **med,
                          **{k: round(m[k], 2) for k in ("R1", "mAP", "mINP", "mSD")})))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--size", nargs="+", default=["market", "msmt17"], choices=list(SIZES))
    p.add_argument("--noise", nargs="+", type=float, default=[2., 3., 1000.])
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--backend", default="auto", choices=["auto", "numba", "torch"])
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker: return worker(a.size[0], a.noise[0], a.repeat, a.backend)
    print(f"{'size':8}{'noise':>6}{'R1':>7}{'mAP':>7}{'product':>10}{'metrics':>10}{'ratio':>7}"
          f"{'CPU ratio (min-max)':>22}{'peak MB':>9}{'first':>8}")
    for size in a.size:
        for noise in a.noise:
            cmd = [sys.executable, __file__, "--worker", "--size", size, "--noise", str(noise),
                   "--repeat", str(a.repeat), "--backend", a.backend]
            r = json.loads(subprocess.run(cmd, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
            print(f"{size:8}{noise:6g}{r['R1']:7.1f}{r['mAP']:7.1f}{r['product']:9.2f}s{r['metrics']:9.2f}s"
                  f"{r['ratio']:7.2f}{r['ratio_cpu']:10.2f} ({r['spread'][0]:.2f}-{r['spread'][1]:.2f})"
                  f"{r['peak']:9.0f}{r['first']:8.1f}s", flush=True)
    print(f"threads {r['threads']}; peak memory includes Python, torch, numba and both sets of features; "
          "first: first call of a process, which imports numba and loads (or, once per machine, compiles) the counter")


if __name__ == "__main__": main()
