"Queries and galleries with known scores"
import math

import numpy as np

from reid_lab.core.basics import stream
from reid_lab.retrieval.embeddings import Embeddings


def people(n, seed, ids=30, cams=3, noise=.8, dim=12, dtype="f4"):
    centre = stream(1, "centres").normal(size=(ids, dim))
    pid = np.arange(n) % ids
    rng = stream(seed, "images")
    return Embeddings((centre[pid] + noise*rng.normal(size=(n, dim))).astype(dtype), pid, rng.integers(cams, size=n))


def planted():
    "Unit vectors in a plane: each query's scores are cosines that are chosen"
    at = lambda c: [c, math.sqrt(1 - c*c)]
    mates, others = [.9, .8, .7, .6], [.5, .85, .3, .65]
    emb, pid, qs = [], [], []
    for i, (m, o) in enumerate(zip(mates, others)):
        plane = np.zeros((2, 8))
        plane[0, 2*i] = plane[1, 2*i + 1] = 1
        qs.append(plane[0])
        emb += [at(m) @ plane, at(o) @ plane]
        pid += [i, 100 + i]
    return Embeddings(np.array(qs), range(4), [0, 0, 1, 1]), Embeddings(np.array(emb), pid, [2]*8)


def bare(e): return Embeddings(e.emb, e.pid)
