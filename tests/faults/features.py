"""Features and labels that a user brings."""
import numpy as np
from fault import bad

from reid_lab.embeddings import Embeddings


def _features(n=4, **labels):
    return Embeddings(np.eye(n, 3, dtype="f4") + .1, labels.pop("pid", np.arange(n)), **labels)


FAULTS = [
    bad("features: string ids", "pid holds names", lambda tmp: _features(pid=np.array(list("abcd"))),
        "pid has dtype", "pandas.factorize", error=TypeError),
    bad("features: one row is NaN", "emb[1] is NaN", lambda tmp: Embeddings(np.array([[1., 2], [np.nan, 1]]), [0, 1]),
        "NaN or infinite", "row 1"),
]
