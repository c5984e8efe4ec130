"""Cost of adaptation at Market-1501 size, on features alone and with the tiny model.

    python benchmarks/tta.py [--dim 1280] [--batch 64] [--repeat 3]

Features: 3,368 queries and 15,913 gallery images from 6 cameras, random, of `--dim` numbers. Model: `bot_tiny` on
128x64 crops of noise, 512 queries, the same gallery size at its own 128 numbers. Prints milliseconds per query (best of
`--repeat`), the ratio to the bare distance product of all queries with the gallery in the same run, and the highest
memory of the process so far. Aim: DART3-LITE under 5 ms per query at batch 64, and under 1.5 GB.
"""
import argparse
import os
import resource

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np  # noqa: E402 - threads are set before numpy is imported
import torch  # noqa: E402
from timing import best  # noqa: E402

from reid_lab.retrieval.embeddings import Embeddings  # noqa: E402
from reid_lab.tta.base import FeatureStream, NoAdapt
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3, Dart3Lite, distances
from reid_lab.tta.gradient import Temp, Tent  # noqa: E402

Q, G, CAMS = 3368, 15913, 6


def features(n, dim, seed):
    "Random features with a shift per camera"
    g = torch.Generator().manual_seed(seed)
    cam = np.arange(n) % CAMS
    shift = torch.randn(CAMS, dim, generator=torch.Generator().manual_seed(99))
    return Embeddings(torch.randn(n, dim, generator=g) + shift[cam], np.arange(n) % 750, cam)


def memory(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**20   # GB


class Noise:
    "Images that are noise, as a stream of a model"
    def __init__(self, model, n):
        self.model, self.cam, self.img = model, np.arange(n) % CAMS, torch.rand(n, 3, *model.size)
        with torch.inference_mode(): emb = torch.cat([model.raw_features(x) for x in self.img.split(64)])
        self.q = Embeddings(emb.clone(), np.arange(n) % 750, self.cam)

    def __len__(self): return len(self.cam)
    def pixels(self, rows): return self.img[torch.as_tensor(rows)]
    def features(self, rows): return self.model.raw_features(self.pixels(rows))
    def scored(self, rows): return self.model.forward_tta(self.pixels(rows))
    def raw_features(self): return self.q.emb


def line(name, seconds, n, base):
    "One row of the table"
    print(f"{name:34} {1e3*seconds/n:>10.3f} {seconds/base:>12.1f} {memory():>10.2f}", flush=True)


def head(name, base):
    "Header of a table"
    print(f"\n{name:34} {'ms/query':>10} {'x ' + base:>12} {'peak GB':>10}")


def on_features(dim, batch, repeat):
    "Methods that need features only"
    q, g = features(Q, dim, 0), features(G, dim, 1)
    head(f"features, {Q} x {G} x {dim}", "product")
    base = best(lambda: [distances(z, g.emb) for z in q.emb.split(batch)], repeat)
    line("distances alone", base, Q, base)
    for name, make in (("No adaptation", NoAdapt), ("Norm", CameraNorm),
                       ("DART3-LITE", lambda: Dart3Lite(batch_size=batch)),
                       ("DART3-LITE, episodic", lambda: Dart3Lite(batch_size=batch, episodic=True)),
                       ("DART3-LITE, 5 steps", lambda: Dart3Lite(batch_size=batch, steps=5))):
        line(name, best(lambda: make().adapt(FeatureStream(q), g), repeat), Q, base)


def with_model(batch, repeat, n=512):
    "Methods that run the tiny model"
    from reid_lab.models.zoo import create_model
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=751).eval()
    stream, g = Noise(model, n), features(G, model.dim, 1)
    head(f"bot_tiny, {n} queries", "forward")
    with torch.inference_mode():
        base = best(lambda: [stream.features(r) for r in np.split(np.arange(n), n//batch)], repeat)
    line("forward pass alone", base, n, base)
    for name, make in (("DART3-LITE (features cached)", lambda: Dart3Lite(batch_size=batch)),
                       ("DART3", lambda: Dart3(batch_size=batch)), ("TENT", lambda: Tent(batch_size=batch)),
                       ("TEMP", lambda: Temp(batch_size=batch))):
        line(name, best(lambda: make().adapt(stream, g), repeat), n, base)


def main(dim, batch, repeat):
    "Both tables"
    print(f"torch threads: {torch.get_num_threads()}; memory after imports {memory():.2f} GB")
    on_features(dim, batch, repeat)
    with_model(batch, repeat)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dim", type=int, default=1280, help="of the features")
    parser.add_argument("--batch", type=int, default=64, help="queries per batch")
    parser.add_argument("--repeat", type=int, default=3, help="rounds; the best counts")
    main(**vars(parser.parse_args()))
