"""Algorithm 1 against its worked trace and its limits; memory; stylisation tasks."""
import numpy as np
import pytest
import torch

from reid_lab.meta.dual_speed import DualSpeed, Task, TaskCycle
from reid_lab.meta.memory import ErrorMemory, capacity_for
from reid_lab.meta.stylise import blur, draw_lambda, illuminate, random_blur


@pytest.mark.parametrize("name, sequential", [("sequential", True), ("independent_reptile_variant", False)])
def test_algorithm_1_trace(oracles, name, sequential):
    i, expected = oracles["camel_algorithm1"]["inputs"], oracles["camel_algorithm1"]["expected"][name]
    n = len(i["task_deltas_per_meta_epoch"][0])
    ds = DualSpeed([Task()] * n, i["eps_fast"], i["eps_slow"], slow_every_tasks=n * i["slow_every_meta_epochs"],
                   sequential=sequential)
    w = [torch.full((1,), i["theta"], dtype=torch.float64)]
    ds.begin(w)
    for deltas, row in zip(i["task_deltas_per_meta_epoch"], expected):
        iterates, slow_before = [], ds.theta_slow[0].clone()
        for d in deltas:
            w[0] += d
            iterates.append(w[0].item())
            ds.end_task(w)
        assert iterates == pytest.approx(row["theta_i"], abs=1e-6)
        assert w[0].item() == pytest.approx(row["fast"], abs=1e-6)
        assert ds.theta_slow[0].item() == pytest.approx(row["slow"], abs=1e-6)
        assert (ds.theta_slow[0] != slow_before).item() == row["slow_update"]


def naive_algorithm_1(theta, deltas, eps_fast, eps_slow, k):
    "The listing of the paper, on one number"
    slow, done = theta, 0
    for row in deltas:
        start, iterates = theta, []
        for d in row: theta = theta + d; iterates.append(theta); done += 1
        theta = start + eps_fast * sum(t - start for t in iterates) / len(iterates)
        if done % k == 0: slow = slow + eps_slow * (theta - slow); theta = slow
    return theta, slow


@pytest.mark.parametrize("seed", range(5))
def test_against_the_listing(seed):
    rng = np.random.default_rng(seed)
    n, k = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    deltas, ef, es = rng.normal(size=(7, n)), rng.uniform(.1, 1), rng.uniform(.1, 1)
    ds = DualSpeed([Task()] * n, ef, es, slow_every_tasks=n * k)
    w = [torch.zeros(1, dtype=torch.float64)]
    ds.begin(w)
    for row in deltas:
        for d in row: w[0] += d; ds.end_task(w)
    want = naive_algorithm_1(0., deltas, ef, es, n * k)
    assert (w[0].item(), ds.theta_slow[0].item()) == pytest.approx(want, abs=1e-9)


def test_rates_that_mean_plain_training():
    "eps_slow = 1 after every round without eq. 4: training with the tasks in turn; k = N and eps_slow = 1: eq. 4 alone"
    deltas = np.random.default_rng(0).normal(size=(4, 3))
    def end(**kw):
        ds, w = DualSpeed([Task()] * 3, slow_every_tasks=3, **kw), [torch.zeros(1, dtype=torch.float64)]
        ds.begin(w)
        for row in deltas:
            for d in row: w[0] += d; ds.end_task(w)
        return w[0].item()
    assert end(fast=False, eps_slow=1.) == pytest.approx(deltas.sum())
    assert end(eps_slow=1.) == pytest.approx(end(slow=False))


@pytest.mark.parametrize("kw, message",
                         [(dict(slow_every_tasks=5), "multiple of the 3 tasks"), (dict(order="any"), "order='any'"),
                          (dict(iters_per_task=0), "at least 1")])
def test_bad_settings(kw, message):
    with pytest.raises(ValueError, match=message): DualSpeed([Task()] * 3, **kw)


def test_random_order_is_the_same_again_and_covers_all():
    def orders(seed, order="random"):
        "Which task has its turn, slot by slot, in six rounds"
        cycle, out = TaskCycle([Task(), Task(), Task()], order=order), []
        for cycle.round in range(6):
            turns = []
            for cycle.slot in range(3): turns.append(cycle.tasks.index(cycle.task(seed)))
            out.append(turns)
        return out
    assert orders(3) == orders(3) != orders(4) and len({tuple(o) for o in orders(3)}) > 1
    assert all(sorted(o) == [0, 1, 2] for o in orders(3)) and orders(3, "fixed") == [[0, 1, 2]]*6


def test_memory_is_first_in_first_out():
    mem = ErrorMemory(capacity_for(.5, 4))
    for i in range(5):
        mem.push(dict(img=torch.full((2, 3), float(i)), txt=torch.zeros(2, 3), pid=torch.tensor([2*i, 2*i + 1]),
                      img_tok=torch.zeros(2, 1, 3),
                      txt_tok=torch.zeros(2, i + 1, 3), mask=torch.ones(2, i + 1, dtype=torch.bool)))
    assert len(mem) == 4 and mem.read()["pid"].tolist() == [6, 7, 8, 9]
    assert mem.read()["mask"].sum(1).tolist() == [4, 4, 5, 5]


@pytest.mark.parametrize("share, batch, entries", [(.05, 64, 7), (.5, 64, 64), (1., 10, 20), (0., 64, 0)])
def test_capacity(share, batch, entries): assert capacity_for(share, batch) == entries


def test_blur_is_a_gaussian():
    x = torch.zeros(1, 3, 11, 11); x[..., 5, 5] = 1
    y = blur(x, torch.tensor([1.]))
    k = torch.exp(-torch.arange(-2, 3.)**2 / 2); k /= k.sum()
    assert torch.allclose(y[0, 0, 3:8, 3:8], k[:, None] * k[None], atol=1e-6)
    assert y.sum() == pytest.approx(3., abs=1e-4)


def test_styles_stay_pixels_and_depend_on_the_generator_only():
    x = torch.rand(4, 3, 16, 8)
    for style in (illuminate, random_blur):
        a, b = (style(x, torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(a, b) and a.shape == x.shape and 0 <= a.min() and a.max() <= 1
        assert not torch.equal(a, style(x, torch.Generator().manual_seed(2)))


def test_lambda_is_beta():
    lam = draw_lambda(20_000, 1., np.random.default_rng(0))
    assert abs(lam.mean() - .5) < .01 and abs(lam.var() - 1 / 12) < .005
    assert torch.equal(draw_lambda(3, 0, np.random.default_rng(0)), torch.ones(3))
