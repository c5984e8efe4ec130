"""Stylisation tasks: one draw gives one batch; who mixes captions, who uses the memory, who is whose partner."""
import numpy as np
import pytest
import torch

from reid_lab.data.augment import IMAGENET_MEAN, IMAGENET_STD
from reid_lab.data.text import WordPiece
from reid_lab.meta.memory import ErrorMemory
from reid_lab.meta.stylise import (
    Illumination,
    ReleasedTask,
    Style,
    StyleTask,
    blur,
    blur_released,
    caption_views,
    draw_lambda,
    illuminate,
    illuminate_released,
    mixup_released,
    random_blur,
    released_tasks,
    style_tasks,
)

NAMES = ("illumination", "blur", "memory")


CAPTIONS = ["a man in a red coat with a large black bag", "a woman wearing blue jeans and white shoes",
            "a young person in a green shirt and grey trousers", "an old man who carries a brown umbrella"]


TOK = WordPiece.train(CAPTIONS, vocab_size=200, context_length=24)


BATCH = dict(img=torch.rand(4, 3, 16, 8, generator=torch.Generator().manual_seed(0)), caption=CAPTIONS,
             pid=torch.tensor([3, 3, 5, 9]))


def styled(task, seed=0): return task(BATCH, np.random.default_rng(seed))


def entry(pid=BATCH["pid"]):
    n = len(pid)
    number = torch.arange(float(n))
    return dict(img=number[:, None], txt=number[:, None], pid=pid, img_tok=number.view(n, 1, 1),
                txt_tok=number.view(n, 1, 1).repeat(1, 5, 1),
                mask=torch.arange(5) <= torch.arange(n)[:, None])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mix", ["embed", "select"])
def test_a_draw_decides_everything(name, mix):
    a, b = (styled(StyleTask(name, TOK, style=Style(mix=mix)), 4) for _ in range(2))
    c = styled(StyleTask(name, TOK, style=Style(mix=mix)), 5)
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a if isinstance(a[k], torch.Tensor))
    assert not torch.equal(a["img"], c["img"])
    assert a["img"].shape == BATCH["img"].shape and 0 <= a["img"].min() and a["img"].max() <= 1
    assert torch.equal(a["pid"], BATCH["pid"]) and a["caption"] == CAPTIONS


def test_the_batch_itself_is_left_alone():
    before = {k: v.clone() if isinstance(v, torch.Tensor) else list(v) for k, v in BATCH.items()}
    for name in NAMES: styled(StyleTask(name, TOK))
    assert BATCH.keys() == before.keys() and torch.equal(BATCH["img"], before["img"])
    assert BATCH["caption"] == before["caption"]


def test_embed_gives_two_views_and_their_weight():
    out = styled(StyleTask("blur", TOK, style=Style(mix="embed")))
    assert out["tokens"].shape == out["tokens_mix"].shape and not torch.equal(out["tokens"], out["tokens_mix"])
    assert out["lam"].shape == (4,) and ((0 <= out["lam"]) & (out["lam"] <= 1)).all()


def test_select_gives_one_view_as_a_whole():
    assert not {"tokens_mix", "lam"} & styled(StyleTask("blur", TOK, style=Style(mix="select"))).keys()
    for seed in range(4):
        both, one = (caption_views(BATCH, np.random.default_rng(seed), TOK, 1., mix) for mix in ("embed", "select"))
        n = one["tokens"].shape[1]
        assert torch.equal(one["tokens"], both["tokens"][:, :n]) and not both["tokens"][:, n:].any()


def test_select_is_distributed_as_a_choice_of_two_views():
    "One draw stands for C_a with probability lambda, else C_b: lengths and words of 600 captions each"
    rng, many = np.random.default_rng(0), dict(BATCH, caption=CAPTIONS*150)
    both = caption_views(many, rng, TOK, 1., "embed")
    first = torch.from_numpy(rng.random(600) < both["lam"].numpy())[:, None]
    chosen = torch.where(first, both["tokens"], both["tokens_mix"])
    one = caption_views(many, rng, TOK, 1., "select")["tokens"]
    assert not torch.equal(chosen[:, :one.shape[1]], one)
    length = lambda t: (t != 0).sum(1).float().mean().item()
    assert abs(length(chosen) - length(one)) < .25
    share = lambda t: torch.bincount(t.flatten(), minlength=TOK.vocab_size)[1:]/len(t)
    assert (share(chosen) - share(one)).abs().max() < .12


def test_no_mixing_weight_takes_the_first_view():
    "delta = 0 is lambda = 1: the memory task's image is the illumination task's, the caption the first"
    light, mixed = (styled(StyleTask(n, TOK, style=Style(delta=0., mix="embed"))) for n in ("illumination", "memory"))
    assert torch.equal(light["img"], mixed["img"]) and torch.equal(mixed["lam"], torch.ones(4))


def test_only_the_memory_task_reads_and_fills():
    memory = ErrorMemory(6)
    for task in style_tasks(TOK, memory)[:2]:
        task.after(dict(memory_entry=entry()))
        assert len(memory) == 0
    last = style_tasks(TOK, memory)[2]
    assert "memory" not in styled(last)  # nothing to read yet
    last.after(dict(memory_entry=entry()))
    assert len(memory) == 4
    assert ["memory" in styled(t) for t in style_tasks(TOK, memory)] == [False, False, True]
    assert styled(last)["memory"]["pid"].tolist() == BATCH["pid"].tolist()


@pytest.mark.parametrize("pid", [[0, 1, 2, 3], [7, 7, 7, 7], [0, 10**6, 2, 2]])
def test_shuffled_partners_belong_to_nobody(pid):
    memory, pid = ErrorMemory(8), torch.tensor(pid)
    task = StyleTask("memory", TOK, memory, style=Style(partner="shuffled"))
    for _ in range(2): task.after(dict(memory_entry=entry(pid)))
    kept = memory.read()
    assert not set(kept["pid"].tolist()) & (set(pid.tolist()) | {-1}) and len(set(kept["pid"][:4].tolist())) == 4
    assert torch.equal(kept["img"][:4, 0], torch.arange(4.))
    assert (kept["txt"][:, 0] != kept["img"][:, 0]).all()  # no image keeps its own caption
    assert torch.equal(kept["txt"][:, 0], kept["txt_tok"][:, 0, 0])
    assert torch.equal(kept["mask"].sum(1) - 1, kept["txt"][:, 0].long())


def test_state_carries_the_memory():
    memory, other = ErrorMemory(6), ErrorMemory(6)
    a, b = StyleTask("memory", TOK, memory), StyleTask("memory", TOK, other)
    a.after(dict(memory_entry=entry()))
    b.load_state_dict(a.state_dict())
    assert torch.equal(other.read()["txt"], memory.read()["txt"]) and StyleTask("blur", TOK, memory).state_dict() == {}


@pytest.mark.parametrize("kw, message", [(dict(name="light"), "name='light'"),
                                         (dict(name="memory", style=Style(partner="shuffled")), "needs a memory")])
def test_bad_settings(kw, message):
    with pytest.raises(ValueError, match=message): StyleTask(tokenizer=TOK, **kw)


@pytest.mark.parametrize("record, kw, message", [(Style, dict(mix="mean"), "mix='mean'"),
                                                 (Style, dict(partner="other"), "partner='other'"),
                                                 (Illumination, dict(later=(2, 1)), r"later=\(2, 1\)")])
def test_bad_records(record, kw, message):
    with pytest.raises(ValueError, match=message): record(**kw)


def test_released_order():
    assert [t.name for t in released_tasks()] == ["blur", "illumination", "mixup"]


def naive_saturation(pixel, factor):
    "A pixel of three channels: normalised, jittered, clipped to [0,1], and back"
    x = [(v - m)/s for v, m, s in zip(pixel, IMAGENET_MEAN, IMAGENET_STD)]
    grey = .2989*x[0] + .587*x[1] + .114*x[2]
    return [m + s*min(1., max(0., grey + factor*(v - grey))) for v, m, s in zip(x, IMAGENET_MEAN, IMAGENET_STD)]


@pytest.mark.parametrize("low, high", [(.8, 1.2), (.6, 1.4)])
def test_illumination_is_one_factor_on_clipped_normalised_pixels(low, high):
    img, factors = BATCH["img"], []
    for seed in range(200):
        g = torch.Generator().manual_seed(seed)
        out = illuminate_released(img, g, low, high)
        g = torch.Generator().manual_seed(seed)
        f = torch.empty(()).uniform_(low, high, generator=g).item()
        factor = torch.empty(()).uniform_(max(0, 1 - f), 1 + f, generator=g).item()
        factors.append(factor)
        if seed < 3:
            for i, y, x in ((0, 3, 2), (3, 15, 7), (2, 0, 0)):
                want = naive_saturation(img[i, :, y, x].tolist(), factor)
                assert out[i, :, y, x].tolist() == pytest.approx(want, abs=1e-5)
    assert max(0, 1 - high) <= min(factors) < .2 and 1.8 < max(factors) <= 1 + high
    assert (out >= torch.tensor(IMAGENET_MEAN).view(3, 1, 1) - 1e-6).all()


def test_illumination_widens_after_three_epochs(monkeypatch):
    from reid_lab.meta import stylise
    asked, task = [], ReleasedTask("illumination")
    monkeypatch.setattr(stylise, "illuminate_released", lambda img, g, low, high, *a: asked.append((low, high)) or img)
    for epoch in (0, 2, 3, 9): task({**BATCH, "epoch": epoch}, np.random.default_rng(0))
    task(BATCH, np.random.default_rng(0))           # without an epoch: the later range
    assert asked == [(.8, 1.2)]*2 + [(.6, 1.4)]*3


def test_blur_has_one_sigma_for_the_batch():
    x = torch.zeros(3, 3, 11, 11)
    x[..., 5, 5] = 1
    out = blur_released(x, torch.Generator().manual_seed(3))
    assert torch.allclose(out[0], out[1], atol=1e-7) and torch.allclose(out[0], out[2], atol=1e-7)
    sigma = torch.empty(()).uniform_(.1, 2., generator=torch.Generator().manual_seed(3))
    k = torch.exp(-torch.arange(-2, 3.)**2/(2*sigma**2))
    k /= k.sum()
    assert torch.allclose(out[0, 0, 3:8, 3:8], k[:, None]*k[None], atol=1e-6)


def test_mixup_takes_one_weight_and_other_rows():
    img = torch.eye(5).view(5, 1, 1, 5).repeat(1, 3, 2, 1)
    weights = []
    for seed in range(300):
        rows = mixup_released(img, np.random.default_rng(seed))[:, 0, 0]
        assert torch.allclose(rows.sum(1), torch.ones(5), atol=1e-6)
        mixed = [r for i, r in enumerate(rows) if r[i] < .999]
        weights += [r.max().item() for r in mixed[:1]]
        assert len({round(r[r > 1e-6].max().item(), 4) for r in mixed}) <= 1       # one lambda for all
    assert 0 < np.mean([w > .9 for w in weights]) < .8 and min(weights) >= .5      # Beta(.6, .6) favours the ends


@pytest.mark.parametrize("name", ["blur", "illumination", "mixup"])
def test_released_tasks_change_images_only(name):
    a, b = (ReleasedTask(name)({**BATCH, "epoch": 1}, np.random.default_rng(4)) for _ in range(2))
    assert torch.equal(a["img"], b["img"]) and not torch.equal(a["img"], BATCH["img"])
    assert {k: v for k, v in a.items() if k not in ("img", "epoch")}.keys() == BATCH.keys() - {"img"}
    assert torch.equal(a["pid"], BATCH["pid"]) and a["caption"] == CAPTIONS


@pytest.mark.parametrize("kw, message", [(dict(name="memory"), "name='memory'"),
                                         (dict(name="mixup", delta=-1), "delta=-1")])
def test_bad_released_tasks(kw, message):
    with pytest.raises(ValueError, match=message): ReleasedTask(**kw)


def test_blur_is_a_gaussian():
    x = torch.zeros(1, 3, 11, 11)
    x[..., 5, 5] = 1
    y = blur(x, torch.tensor([1.]))
    k = torch.exp(-torch.arange(-2, 3.)**2 / 2)
    k /= k.sum()
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
