"Plain loops that losses are held against"
import math

import torch

TOL = 1e-6


def t64(x): return torch.tensor(x, dtype=torch.float64)


def assert_close(a, b, tol=TOL):
    assert torch.allclose(torch.as_tensor(a, dtype=torch.float64), t64(b), atol=tol, rtol=0), (a, b)


def naive_cos(a, b): return sum(x*y for x, y in zip(a, b))/math.sqrt(sum(x*x for x in a))/math.sqrt(sum(x*x for x in b))


def naive_logsoftmax(row):
    top = max(row)
    z = top + math.log(sum(math.exp(r - top) for r in row))
    return [r - z for r in row]
