"Features with a known camera bias, and rankings with known gains"
import numpy as np
import torch

from reid_lab.analysis.bias import remedies, verdict as V
from reid_lab.core.basics import stream
from reid_lab.retrieval.embeddings import Embeddings

COS, EUC = "cosine", "euclidean"


def scene(bias=0., n=20, dim=8, cams=3, seed=0, scale=1.):
    "Queries and gallery; cameras scale and shift every dimension"
    rng = stream(seed, "scene")
    who, shift, std = (rng.normal(size=(n, dim)), bias*rng.normal(size=(cams, dim)),
                       np.exp(.4*bias*rng.normal(size=(cams, dim))))
    def side():
        z = np.concatenate([(who + .6*rng.normal(size=who.shape))*std[c] + shift[c] for c in range(cams)])
        return Embeddings(torch.tensor(scale*z, dtype=torch.float32), np.tile(np.arange(n), cams),
                          np.repeat(np.arange(cams), n))
    return side(), side()


def rows(report, distance=COS):
    "One row a method under one distance"
    return report.summary[report.summary.distance == distance].set_index("method")


def pairs(mAP, half=1.5):
    "A function for `decide` in which all intervals have one width"
    return lambda a, b: (mAP[a] - mAP[b], mAP[a] - mAP[b] - half, mAP[a] - mAP[b] + half)


WAYS = V.rankings(methods=(*remedies.REMEDIES, remedies.CONTROL))
