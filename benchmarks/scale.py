"""Exact evaluation of galleries on disk, from 100,000 to 10 million images: time, peak memory, and an index beside it.

    python benchmarks/scale.py [--sizes 100000 1000000 10000000] [--queries 512] [--dim 512] [--memory 1] [--threads 2]
                               [--index 100000 1000000] [--folder FOLDER] [--full 3368]

The gallery is synthetic: 20 images a person, a person being a point of 32 dimensions that is projected into `dim`, plus
noise. Two processes write it in float16 (10 million x 512 is 10 GB; the free disk is checked first), and it is removed
at the end. Every size is evaluated in a process of its own, so that its peak memory is its own. The whole gallery is
read and counted; what is cut short is the number of queries. It is done for half of the queries and for all of them;
the difference is what another half costs, and from it the CPU seconds of --full queries are computed: this column is
marked with ~, not measured. `read` is one pass over the gallery without queries, the first one after it was written.
CPU seconds are of the process, which a busy machine does not stretch; `ratio` is theirs over those of the size before.
"""
import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

IMAGES = 20  # a person
CAMS = 6
BLOCK = 10_000  # persons that are drawn together


def peak_mb(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/(1024 if sys.platform != "darwin" else 2**20)


def people(pid, dim, seed, noise=None):
    "Features of images of the given persons; the same person has the same centre in every call"
    import torch
    gen = torch.Generator().manual_seed(seed)
    frame = torch.randn(32, dim, generator=torch.Generator().manual_seed(0))/32**.5
    blocks = range(pid.min()//BLOCK, pid.max()//BLOCK + 1)  # so that a shard draws only its own persons
    centre = [torch.randn(BLOCK, 32, generator=torch.Generator().manual_seed(10_007*b + 1)) for b in blocks]
    z = torch.cat(centre)[torch.from_numpy(pid - blocks[0]*BLOCK)]
    x = (z + .6*torch.randn(z.shape, generator=gen)) @ frame
    return x.add_(noise if noise is not None else .2*torch.randn(x.shape, generator=gen))


def write(folder, n, dim, rank, world):
    "This process's shards of a gallery"
    import numpy as np
    import torch

    from reid_lab.retrieval.embeddings import Embeddings
    from reid_lab.retrieval.shards import ShardWriter
    rows = min(2**16, -(-n//(2*world)))
    to = ShardWriter(folder, n, dim, rows=rows, meta=dict(made="benchmarks/scale.py"))
    noise = .2*torch.randn(rows, dim, generator=torch.Generator().manual_seed(2))
    for i in to.missing(rank, world):
        lo, hi = to.spans[i]
        pid = np.arange(lo, hi)//IMAGES
        x = people(pid, dim, 3 + i, noise[:hi - lo].roll(i % dim, 1))
        to.write(i, Embeddings(x, pid, np.random.default_rng(i).integers(0, CAMS, hi - lo)))


def queries(n, n_query, dim):
    "Four queries a person, of persons all over the gallery"
    import numpy as np
    import torch

    from reid_lab.retrieval.embeddings import Embeddings
    who = np.linspace(0, n//IMAGES - 1, max(1, n_query//4)).astype(int)
    pid = np.repeat(who, 4)[:n_query]
    x = torch.cat([people(np.array([p]), dim, 10**6 + k) for k, p in enumerate(pid)])
    return Embeddings(x, pid, np.arange(len(pid)) % CAMS)


def evaluate(folder, n, n_query, dim, memory):
    "Time and memory of one size; prints a JSON line"
    from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
    from reid_lab.retrieval.scores import ShardScores
    from reid_lab.retrieval.shards import Shards
    clock = lambda: (time.perf_counter(), time.process_time())
    q = queries(n, n_query, dim)
    start = clock()
    g = Shards(folder)
    opened = clock()
    retrieval_metrics(q[:8], g[:2048], scoring=Scoring(backend="numba"))  # imports numba, compiles or loads
    before = clock()
    for _ in ShardScores(q.emb, g, memory=memory).sweep(): pass
    read = clock()
    retrieval_metrics(q[:len(q)//2], g, scoring=Scoring(memory=memory))
    half = clock()
    m = retrieval_metrics(q, g, scoring=Scoring(memory=memory))
    end = clock()
    print(json.dumps(dict(open=opened[0] - start[0], read=read[0] - before[0], seconds=end[0] - half[0],
                          cpu=end[1] - half[1], half_cpu=half[1] - read[1], peak=peak_mb(), n_query=m["n_query"],
                          **{k: round(m[k], 2) for k in ("R1", "mAP", "mINP", "mSD")})))


def index(folder, n, n_query, dim, memory):
    "Recall beside time; prints a JSON line"
    from reid_lab.retrieval.index import build_index, index_table
    from reid_lab.retrieval.shards import Shards
    q, g = queries(n, n_query, dim), Shards(folder)
    start = time.perf_counter()
    made = build_index(g, lists=max(64, min(1024, n//200)))
    built = time.perf_counter()
    made.save(Path(folder).with_name("index"))
    size = (Path(folder).with_name("index")/"lists.faiss").stat().st_size/2**20
    table = index_table(made, q, 10, (1, 4, 16, 64, 256), memory=memory)
    rows = table.to_dict("records")
    print(json.dumps(dict(lists=made.n_lists, build=built - start, mb=size, peak=peak_mb(), rows=rows)))


def child(a, task, n, folder, *more, wait=True):
    "A step in a process of its own -> its JSON line, or the process"
    cmd = [sys.executable, __file__, "--task", task, str(n), str(folder), *map(str, more), "--queries", str(a.queries),
           "--dim", str(a.dim), "--memory", str(a.memory)]
    env = dict(os.environ, OMP_NUM_THREADS=str(1 if task == "write" else a.threads), REID_LAB_QUIET="1")
    if not wait: return subprocess.Popen(cmd, env=env)
    done = subprocess.run(cmd, capture_output=True, text=True, env=env)
    if done.returncode: raise SystemExit(f"{task} of {n:,} images failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def one_size(a, n, home):
    "Write, evaluate, index one gallery -> measured row, index row or None"
    folder, start = home/f"g{n}", time.perf_counter()
    writers = [child(a, "write", n, folder, r, 2, wait=False) for r in (0, 1)]
    if any([p.wait() for p in writers]): raise SystemExit(f"writing {n:,} images failed")
    wrote = time.perf_counter() - start
    row = child(a, "evaluate", n, folder) | dict(write=wrote)
    found = child(a, "index", n, folder) if n in a.index else None
    shutil.rmtree(folder)
    return row, found


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sizes", nargs="+", type=int, default=[10**5, 10**6, 10**7])
    p.add_argument("--index", nargs="*", type=int, default=[10**5, 10**6])
    p.add_argument("--queries", type=int, default=512, help="default: two blocks of 256")
    p.add_argument("--full", type=int, default=3368, help="queries to extrapolate to (default: Market-1501)")
    p.add_argument("--dim", type=int, default=512)
    p.add_argument("--memory", type=float, default=1., help="GiB for vectors and scores in work")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--folder", help="where galleries are written (default: the folder of temporary files)")
    p.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.task:
        task, n, folder, *more = a.task
        if task == "write": return write(folder, int(n), a.dim, *map(int, more))
        return dict(evaluate=evaluate, index=index)[task](folder, int(n), a.queries, a.dim, int(a.memory*2**30))
    home = Path(tempfile.mkdtemp(prefix="scale-", dir=a.folder))
    need, free = 2*max(a.sizes)*a.dim*1.6, shutil.disk_usage(home).free
    if need > free: raise SystemExit(f"{need/2**30:.0f} GiB of disk are needed, {free/2**30:.0f} are free: less --dim?")
    print(f"{a.queries} queries, {a.dim} dimensions in float16, {a.memory:g} GiB in work, {a.threads} threads\n"
          f"{'images':>11}{'disk MB':>9}{'write s':>9}{'open s':>8}{'read s':>8}{'all s':>8}{'half CPU s':>12}"
          f"{'all CPU s':>11}{'ratio':>7}{'peak MB':>9}{'R1':>7}{'mAP':>7}{f'~CPU s, {a.full} q.':>18}", flush=True)
    last, tables = None, []
    try:
        for n in a.sizes:
            r, found = one_size(a, n, home)
            if found: tables.append((n, found))
            ratio = f"{r['cpu']/last:7.1f}" if last else f"{'':7}"
            full = r["cpu"] + max(r["cpu"] - r["half_cpu"], 0)*(a.full - a.queries)/(a.queries - a.queries//2)
            print(f"{n:11,}{n*a.dim*2/2**20:9.0f}{r['write']:9.1f}{r['open']:8.1f}{r['read']:8.1f}{r['seconds']:8.1f}"
                  f"{r['half_cpu']:12.1f}{r['cpu']:11.1f}{ratio}{r['peak']:9.0f}{r['R1']:7.1f}{r['mAP']:7.1f}"
                  f"{'~':>11}{full:7.0f}", flush=True)
            last = r["cpu"]
    finally: shutil.rmtree(home, ignore_errors=True)
    print(f"all: metrics of {a.queries} queries over the whole gallery, measured; half: of {a.queries//2}; read: one "
          f"pass without queries; ~: all + (all - half) for each {a.queries - a.queries//2} queries more, computed; "
          "peak includes Python, torch and numba")
    for n, t in tables:
        print(f"\nindex of {n:,} images: {t['lists']} lists, a byte a number, {t['mb']:.0f} MB, built in "
              f"{t['build']:.1f} s, peak {t['peak']:.0f} MB\n{'lists looked through':>22}{'recall@10':>11}"
              f"{f's, {a.queries} queries':>16}{'times exact':>13}")
        for r in t["rows"]: print(f"{r['probe']!s:>22}{r['recall']:11.3f}{r['seconds']:16.3f}{r['speed']:13.1f}")


if __name__ == "__main__": main()
