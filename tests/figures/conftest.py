"Invented runs and ranked lists"
import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    return pd.DataFrame([dict(variant=v, method=v, seed=s, n_masked=n, dataset=d, R1=40 + gain - 2*n + rng.normal())
                         for v, gain in (("a_1", 0), ("b & $c$", 3)) for s in range(4) for n in range(3)
                         for d in ("world", "world-2")])


@pytest.fixture
def strips():
    images = np.random.default_rng(0).integers(0, 255, (6, 32, 16, 3)).astype(np.uint8)
    order = np.array([[0, 2, 1, 3], [2, 0, 3, 5]])
    return ["A man with a $5 hat_1 \\alpha & <b>bag</b> " * 9,
            "A woman."], dict(one=order, two=order[:, ::-1]), images, [0, 1], np.array([0, 0, 1, 1, 2, 2])
