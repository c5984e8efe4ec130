"Learning-rate multipliers against the test vectors"
import math

import pytest

from reid_lab.training import schedules as S

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


# --- the released programs, factors worked out by hand ----------------------------------------------------------------

def naive_released_cosine(t, total, warmup, start, end):
    "Rate at epoch t, counted from 1, of a cosine that ignores the warm-up"
    if t < warmup: return start + t*(1 - start)/warmup
    return end + (1 - end)*(1 + math.cos(math.pi*t/total))/2


@pytest.mark.parametrize("epoch, factor", [(0, .208), (3, .802), (4, .995731), (59, .501), (119, .002)])
def test_released_cosine_of_transreid(epoch, factor):
    got = S.lr_irra_cosine(epoch, 120, 5, .01, .002, form="released")
    assert got == pytest.approx(factor, abs=1e-6)
    assert got == pytest.approx(naive_released_cosine(epoch + 1, 120, 5, .01, .002))


@pytest.mark.parametrize("epoch, factor", [(0, .222857), (59, (1 + 1/350)/2), (119, 1/350)])
def test_released_cosine_of_prompts(epoch, factor):
    assert S.lr_irra_cosine(epoch, 120, 5, 1/35, 1/350, "released") == pytest.approx(factor, abs=1e-6)


@pytest.mark.parametrize("kw, epochs", [
    (dict(at=(40, 70), start=.01), {0: .109, 8: .901, 9: 1, 38: 1, 39: .1, 69: .01}),
    (dict(at=(30, 50), start=.1), {0: .19, 28: 1, 29: .1, 48: .1, 49: .01})])
def test_released_milestones_cut_one_epoch_earlier(kw, epochs):
    for e, factor in epochs.items():
        assert S.lr_bot_warmup_multistep(e, warmup=10, **kw, form="released") == pytest.approx(factor), e
        assert S.lr_bot_warmup_multistep(e + 1, warmup=10, **kw) == pytest.approx(factor), e


def test_paper_form_is_the_default_and_unchanged():
    for e in range(125):
        assert S.lr_irra_cosine(e, 120, 5) == S.lr_irra_cosine(e, 120, 5, form="paper")
        assert S.lr_bot_warmup_multistep(e) == S.lr_bot_warmup_multistep(e, form="paper")
    assert S.lr_irra_cosine(5, 120, 5) == 1 > S.lr_irra_cosine(5, 120, 5, form="released")


@pytest.mark.parametrize("call, message", [
    (lambda: S.lr_irra_cosine(0, form="code"), "form='code'"),
    (lambda: S.lr_bot_warmup_multistep(0, form="x"), "form='x'"),
    (lambda: S.lr_linear(0, 0), "total=0"), (lambda: S.lr_irra_cosine(0, 60, -1), "warmup=-1")])
def test_bad_schedules(call, message):
    with pytest.raises(ValueError, match=message): call()
