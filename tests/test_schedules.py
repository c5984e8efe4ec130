"Learning-rate multipliers against the test vectors"
import pytest

from reid_lab import schedules as S

CASES = {
    "lr_linear_factor": lambda i, e: S.lr_linear(e, i["num_training_steps"], i["num_warmup_steps"]),
    "lr_aptm_step_factor": lambda i, e: S.lr_step(e, i["num_training_steps"], i["num_warmup_steps"]),
    "lr_irra_cosine": lambda i, e: S.lr_irra_cosine(e, i["total_epochs"], i["warmup_epochs"], i["warmup_factor"],
                                                    i["target_lr"]),
    "lr_bot_warmup_multistep": lambda i, e: i["base"]/1e-4*S.lr_bot_warmup_multistep(
        e, tuple(i["steps"]), i["gamma"], i["warmup_epochs"], i["warmup_factor"]),
}


@pytest.mark.parametrize("name", CASES)
def test_vectors(oracles, name):
    inputs, expected = oracles[name]["inputs"], oracles[name]["expected"]
    assert expected
    for at, value in expected.items(): assert CASES[name](inputs, int(at)) == pytest.approx(value, abs=1e-6), (name, at)


@pytest.mark.parametrize("f", [lambda s: S.lr_linear(s, 50, 5), lambda s: S.lr_step(s, 50, 5),
                               lambda s: S.lr_irra_cosine(s, 50, 5),
                               lambda s: S.lr_bot_warmup_multistep(s, (20, 30), warmup=5)])
def test_rises_then_never_rises_again(f):
    y = [f(s) for s in range(60)]
    assert y[:6] == sorted(y[:6]) and y[5:] == sorted(y[5:], reverse=True) and max(y) == y[5] == 1 and min(y) >= 0


def test_warmup_of_nothing_starts_full():
    for start in (S.lr_linear(0, 10), S.lr_step(0, 10), S.lr_irra_cosine(0, warmup=0)): assert start == 1
    assert S.lr_bot_warmup_multistep(0, warmup=0) == 1
    assert S.lr_linear(3, 3, 3) == 0 and S.lr_irra_cosine(7, 5, 5) == 0
