"""Stage 1 of CLIP-ReID: its loss against a loop, its rates, and what it changes."""
import math

import pytest
import torch

from reid_lab.losses.image import supcon
from reid_lab.models.zoo import create_model
from reid_lab.training.prompts import PromptSettings, learn_prompts, prompt_loss

SIZE = (64, 32)


def clip_reid():
    torch.manual_seed(0)
    return create_model("clip_reid_tiny", n_ids=4, size=SIZE)


def test_supcon_against_a_loop():
    g = torch.Generator().manual_seed(0)
    x, y = (3*torch.randn(n, 5, generator=g, dtype=torch.float64) for n in (6, 9))
    a, b = torch.tensor([0, 0, 1, 2, 9, 2]), torch.tensor([0, 1, 1, 2, 2, 2, 0, 5, 1])
    per = []
    for i in range(6):
        positive = [j for j in range(9) if b[j] == a[i]]
        z = sum(math.exp(x[i] @ y[j]) for j in range(9))
        if positive: per.append(-sum(math.log(math.exp(x[i] @ y[j])/z) for j in positive)/len(positive))
    assert len(per) == 5
    assert supcon(x, y, a, b).item() == pytest.approx(sum(per)/5, abs=1e-9)
    big = supcon(1e3*x, 1e3*y, a, b)
    assert big.isfinite()
    x.requires_grad_(True)
    supcon(x, y, a, b).backward()
    assert x.grad.isfinite().all() and (x.grad[4] == 0).all()


def test_stage_1_changes_the_prompts_only_and_is_repeatable():
    features, label = torch.randn(20, 64, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 4
    runs = []
    for _ in range(2):
        model = clip_reid()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        curve = learn_prompts(model, features, label, epochs=6, settings=PromptSettings(8, .01), quiet=True)
        changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
        assert changed == {"prompts.learned", "texts", "texts_ready"}
        assert curve[-1] < curve[0] and all(p.grad is None for p in model.parameters())
        assert not model.prompts.learned.requires_grad and not model.texts.requires_grad
        runs.append(model.prompts.learned)
    assert torch.equal(*runs)
    for bad, n in ((label + 1, 20), (label[:5], 20), (label - 1, 20)):
        with pytest.raises(ValueError, match="label must number 20 features from 0 to 3"):
            learn_prompts(model, features, bad)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_stage_1_in_16_bits_is_that_in_32_within_rounding(precision):
    "The text tower is rounded, prompts and loss are not; with fp16 the first updates are skipped until the scale fits"
    features, label = torch.randn(20, 64, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 4
    def run(precision):
        model = clip_reid()
        curve = learn_prompts(model, features, label, epochs=6, settings=PromptSettings(8, .01, precision=precision),
                              quiet=True)
        return curve, model.prompts.learned
    (whole, words), (half, rounded) = run("no"), run(precision)
    assert rounded.dtype == words.dtype == torch.float32 and whole != half and half[-1] < half[0]
    if precision == "fp16": return
    assert half == pytest.approx(whole, rel=.02)
    assert torch.nn.functional.cosine_similarity(rounded.flatten(), words.flatten(), 0) > .98


@pytest.mark.parametrize("form, factors", [("paper", [1/35, 1]), ("released", [(1 + 1/350)/2, 1/350])])
def test_rates_of_stage_1(form, factors, monkeypatch):
    "Two epochs with one of warm-up; the program's are epochs 1 and 2 of a cosine from epoch 0"
    rates, step = [], torch.optim.Adam.step
    def spy(self, *a, **kw):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *a, **kw)
    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    learn_prompts(clip_reid(), torch.randn(8, 64), torch.arange(8) % 4, 2, settings=PromptSettings(8, .01, form=form),
                  quiet=True)
    assert rates == pytest.approx([.01*f for f in factors])


@pytest.mark.parametrize("kw, message", [(dict(form="code"), "form='code'"), (dict(epochs=0), "epochs=0")])
def test_a_refused_stage_1_leaves_the_model_alone(kw, message):
    model = clip_reid()
    with pytest.raises(ValueError, match=message):
        learn_prompts(model, torch.randn(8, 64), torch.arange(8) % 4, quiet=True, **kw)
    assert not model.prompts.learned.requires_grad


def test_repeated_people_are_encoded_once_with_the_same_loss():
    model = clip_reid()
    features, label = torch.randn(6, 64), torch.tensor([3, 0, 3, 1, 3, 0])
    texts = model.text(model.prompts(label))
    want = supcon(features, texts, label) + supcon(texts, features, label)
    assert torch.allclose(prompt_loss(model, features, label), want, atol=1e-4)
