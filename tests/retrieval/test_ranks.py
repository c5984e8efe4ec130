"Counts against a naive reference, and closed forms against plain sums"
import numpy as np
import pytest
import torch

from reid_lab.retrieval import ranks


def naive(x, val, place, out):
    "Images that beat each match, and their sum"
    better = [[i for i in range(len(x)) if i not in out and i != j and (x[i] > a or (x[i] == a and i < j))]
              for a, j in zip(val, place)]
    return [len(b) for b in better], [float(x[b].sum()) for b in better]


def problem(rng, n_rows, n):
    "Scores full of ties; for each row its matches, worst first, and the columns that are left out"
    x = rng.integers(0, 6, (n_rows, n)).astype("float32")/8
    columns = [rng.permutation(n)[:rng.integers(0, 9)] for _ in range(n_rows)]
    matches = [sorted(c[:5].tolist(), key=lambda j: (x[r, j], -j)) for r, c in enumerate(columns)]
    return x, matches, [sorted(c[5:].tolist()) for c in columns]


def flat(parts): return np.concatenate([np.array(p, int) for p in parts]), np.cumsum([0, *map(len, parts)])


@pytest.mark.parametrize("limit", [1, 100, 2**21])
def test_torch_counts_in_pieces_of_any_size(limit):
    "Rows in several pieces, among them rows without a match and with columns left out"
    rng = np.random.default_rng(0)
    for trial in range(20):
        x, matches, out = problem(rng, 7, 30)
        (place, pstart), (left_out, ostart) = flat(matches), flat(out)
        val = np.concatenate([x[r, m] for r, m in enumerate(matches)]).astype(float)
        count, total, rowsum = ranks.count_torch(torch.from_numpy(x), val, place, pstart, left_out, ostart, limit)
        want = [naive(x[r], x[r, m], m, out[r]) for r, m in enumerate(matches)]
        assert count.tolist() == [n for counts, _ in want for n in counts]
        assert total == pytest.approx([s for _, sums in want for s in sums], abs=1e-5)
        assert rowsum == pytest.approx([x[r].sum() - x[r, out[r]].sum() for r in range(7)], abs=1e-4)
        compiled = ranks.count_numba(torch.from_numpy(x), val, place, pstart, left_out, ostart)
        assert compiled[0].tolist() == count.tolist() and compiled[1] == pytest.approx(total, abs=1e-5)


def test_closed_forms_keep_their_digits():
    "Against plain sums, from no image before the group to many, and for groups of many images"
    for b in (0., 1., 99., 101., 1e4, 1e7, 1e12):
        for n in (1, 2, 17, 5000):
            p, c = np.arange(1, n + 1), .3
            assert ranks.harmonic(b, n) == pytest.approx(np.sum(1/(b + p)), rel=1e-11)
            want = np.mean((b/3 + 1 + c*(p - 1))/(b + p))
            assert ranks.group_mean(b/3, b, n, c) == pytest.approx(want, rel=1e-9)
    many = ranks.hit_chance(10, *(np.array([v]) for v in (3, 80_000, 20)))
    assert many == pytest.approx(1 - np.prod([(79_980 - i)/(80_000 - i) for i in range(7)]), rel=1e-6)
