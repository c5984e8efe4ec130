"""Training of image models: the papers' schedules and optimisers, augmentation, stage 1 of CLIP-ReID, resuming."""
from dataclasses import replace

import pytest
import torch

from reid_lab.data.augment import bot, erase, pad_crop, to_pixels, transreid
from reid_lab.data.loaders import Batches
from reid_lab.models.zoo import MODELS, create_model, list_models
from reid_lab.recipes.reid import (
    BY_MODEL,
    REID_PRESETS,
    ReidTrain,
    evaluate_reid,
    new_model,
    reid_optimiser,
    reid_schedule,
    reid_settings,
    train_reid,
)
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.training.folder import load_trained
from reid_lab.world.world import World

SMALL = dict(model_kw=(("size", (64, 32)),), batch_size=16, device="cpu")


@pytest.fixture(scope="module")
def people(): return World("smoke", task="reid").table()


def paper(name): return reid_settings("paper", model=name)


def tiny(name): return list_models("tiny", family=MODELS[name].family)[0]


# ---- settings

def test_a_model_brings_its_own_settings():
    assert paper("transreid_b16").optimiser == "sgd" and paper("bot_r50") == REID_PRESETS["paper"]
    assert reid_settings("paper", model="transreid_b16", lr=1.).lr == 1.
    s = ReidTrain(steps=3)
    assert reid_settings(s) == s and reid_settings(s, lr=.1).steps == 3
    assert {p for p, _ in BY_MODEL} <= set(REID_PRESETS)


# factors by hand: epoch -> factor
@pytest.mark.parametrize("name,wanted", [
    ("bot_r50", {0: .01, 5: .505, 10: 1., 39: 1., 40: .1, 69: .1, 70: .01, 119: .01}),
    ("transreid_b16", {0: .01, 5: 1., 62.5: .501, 119: .002}),
    ("clip_reid_b16", {0: .1, 5: .55, 10: 1., 29: 1., 30: .1, 50: .01, 59: .01})])
def test_schedules_of_the_papers(name, wanted):
    f = reid_schedule(paper(name), 2)   # two batches an epoch
    for epoch, factor in wanted.items():
        if epoch == int(epoch): assert f(2*epoch) == f(2*epoch + 1) == pytest.approx(factor, abs=2e-4)
        else: assert (f(2*int(epoch)) + f(2*int(epoch) + 2))/2 == pytest.approx(factor, abs=2e-4)


def test_a_schedule_by_steps():
    f = reid_schedule(ReidTrain(steps=100), 7)
    assert f(0) == 0 and f(5) == .5 and f(10) == 1 and f(55) == .5 and f(100) == 0


@pytest.mark.parametrize("name,kind,lr", [("bot_r50", torch.optim.Adam, (3.5e-4, 3.5e-4)),
                                          ("transreid_b16", torch.optim.SGD, (8e-3, 16e-3)),
                                          ("clip_reid_b16", torch.optim.Adam, (5e-6, 1e-5))])
def test_optimisers_of_the_papers(name, kind, lr):
    model = create_model(tiny(name), n_ids=4, size=(64, 32))
    opt = reid_optimiser(model, paper(name))
    assert type(opt) is kind and [g["lr"] for g in opt.param_groups] == pytest.approx(lr)
    biases = {id(p) for n, p in model.named_parameters() if n.endswith("bias") and p.requires_grad}
    assert {id(p) for p in opt.param_groups[1]["params"]} == biases
    assert sum(len(g["params"]) for g in opt.param_groups) == sum(p.requires_grad for p in model.parameters())
    if kind is torch.optim.SGD: assert opt.param_groups[0]["momentum"] == .9


@pytest.mark.parametrize("kw,message", [(dict(optimiser="lion"), "optimiser='lion'"),
                                        (dict(schedule="step"), "schedule='step'"), (dict(form="code"), "form='code'"),
                                        (dict(augment="heavy"), "augment='heavy'"),
                                        (dict(stepz=1), "Did you mean 'steps'")])
def test_refused(people, kw, message):
    with pytest.raises(ValueError, match=message): train_reid(people, "smoke", quiet=True, **kw)


BY_HAND = dict(bot_r50={0: .109, 38: 1, 39: .1, 69: .01}, clip_reid_b16={0: .19, 28: 1, 29: .1, 49: .01},
               transreid_b16={0: .208, 3: .802, 4: .995731, 59: .501, 119: .002})


@pytest.mark.parametrize("name", BY_HAND)
def test_released_schedules(name):
    "Factors at the start of an epoch, worked out by hand; the paper's form is the default"
    s, per_epoch = paper(name), 7
    assert s.form == "paper"
    plain, released = (reid_schedule(replace(s, form=f), per_epoch) for f in ("paper", "released"))
    for e, factor in BY_HAND[name].items():
        for step in (e*per_epoch, e*per_epoch + per_epoch - 1): assert released(step) == pytest.approx(factor, abs=1e-6)
    if name != "transreid_b16":
        assert all(released(e*per_epoch) == pytest.approx(plain((e + 1)*per_epoch)) for e in range(s.epochs - 1))
    else: assert plain(5*per_epoch) == 1 > released(5*per_epoch)


# ---- training

@pytest.mark.parametrize("name", ["bot_r50", "transreid_b16", "clip_reid_b16"])
def test_paper_recipes_run_on_tiny_models(people, name):
    s = replace(paper(name), model=tiny(name), epochs=1,
                prompt_epochs=min(1, paper(name).prompt_epochs), **SMALL)
    torch.manual_seed(0)
    before = {k: v.clone() for k, v in new_model(people, s).state_dict().items()}
    done = train_reid(people, s, quiet=True)
    an_epoch = len(Batches(people.where(split="train"), 16, (64, 32), seed=0, sampler="pk", k=s.k))
    assert done.steps == an_epoch and done.images == 16*an_epoch
    assert all(v == v and abs(v) < 1e6 for r in done.log for k, v in r.items() if k.endswith("_loss"))
    after = done.model.state_dict()
    changed = {k for k in after if not torch.equal(after[k], before[k])}
    assert any("neck" in k for k in changed)
    if name.startswith("clip"):   # stage 1 learned prompts, stage 2 left them and the text tower alone
        assert {k for k in changed if k.startswith(("prompts", "text"))} >= {"prompts.learned", "texts"}
        assert not any(p.requires_grad for n, p in done.model.named_parameters() if n.startswith(("prompts", "text")))


def test_the_prompts_see_the_precision_of_the_run(people, monkeypatch):
    import reid_lab.recipes.reid as R
    from reid_lab.training.options import Execution
    seen, real = [], R.learn_prompts
    monkeypatch.setattr(R, "learn_prompts", lambda *a, **k: seen.append(k["settings"].precision) or real(*a, **k))
    s = ReidTrain("clip_reid_tiny", steps=2, prompt_epochs=1, **SMALL)
    for speed in ("none", "bf16"):
        train_reid(people, s, quiet=True, execution=Execution(speed=speed))
    assert seen == ["no", "bf16"]


def test_prompts_are_not_learned_again_on_resuming(people, tmp_path, monkeypatch):
    import reid_lab.recipes.reid as R
    s = ReidTrain("clip_reid_tiny", steps=50, prompt_epochs=1, **SMALL)
    model = train_reid(people, s, folder=tmp_path, quiet=True).model
    def never(*a, **k): raise AssertionError("stage 1 ran again")
    monkeypatch.setattr(R, "learn_prompts", never)
    again = train_reid(people, s, folder=tmp_path, quiet=True).model
    assert torch.equal(model.texts, again.texts) and again.texts_ready
    assert torch.equal(model.prompts.learned, again.prompts.learned)


# ---- augmentation

def test_pad_crop_moves_by_whole_pixels():
    x = torch.arange(1., 1 + 4*3*12*8).reshape(4, 3, 12, 8)
    y = pad_crop(x, torch.Generator().manual_seed(0), 3)
    for a, b in zip(x, y):
        places = [(i, j) for i in range(7) for j in range(7)
                  if torch.equal(torch.nn.functional.pad(a, [3]*4)[:, i:i + 12, j:j + 8], b)]
        assert len(places) == 1
    assert torch.equal(pad_crop(x, torch.Generator(), 0), x)


def test_noise_is_standard_normal_after_normalisation():
    x = torch.zeros(64, 3, 64, 32)
    y = erase(x, torch.Generator().manual_seed(0), p=1., fill="noise")
    drawn = (y[y != 0] - .5)/.5
    assert abs(drawn.mean()) < .02 and abs(drawn.std() - 1) < .02
    with pytest.raises(ValueError, match="fill='salt'"): erase(x, torch.Generator(), fill="salt")


@pytest.mark.parametrize("fn", [bot, transreid])
def test_recipes_are_reproducible(fn):
    x = torch.rand(8, 3, 64, 32)
    a, b = (fn(x, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(a, b) and a.shape == x.shape


# ---- test images

def test_interpolation_of_the_papers_and_of_the_world():
    ways = lambda *a, **k: (lambda s: (s.resample, s.test_resample))(reid_settings(*a, **k))
    assert ways("paper", model="bot_r50") == ways("full") == ("bilinear", "bilinear")
    for name in ("transreid_b16", "clip_reid_b16"): assert ways("paper", model=name) == ("bicubic", "bilinear")
    for preset in ("smoke", "quick"):
        assert ways(preset) == ways(preset, model="transreid_tiny") == ("bicubic", "bicubic")


def test_interpolation_is_part_of_the_training(people, tmp_path):
    s = ReidTrain("bot_tiny", steps=2, test_resample="bilinear", **{**SMALL, "model_kw": (("size", (48, 40)),)})
    done = train_reid(people, s, folder=tmp_path, quiet=True)
    back = load_trained(tmp_path)
    assert done.key["test_resample"] == "bilinear" and done.key["resample"] == "bicubic"
    assert done.model.resample == back.model.resample == "bilinear"
    want = evaluate_reid(done.model, people, resample="bilinear")
    assert evaluate_reid(back.model, people) == want != evaluate_reid(back.model, people, resample="bicubic")
    with pytest.raises(ValueError, match="'resample': \\('bicubic', 'bilinear'\\)"):
        train_reid(people, replace(s, resample="bilinear"), folder=tmp_path, quiet=True)
    with pytest.raises(ValueError, match="test_resample='lanczos'"):
        train_reid(people, s, test_resample="lanczos", quiet=True)


def test_evaluation_takes_the_rule_and_columns_of_the_user(people):
    worn = people.assign(clothes=[f"{a['upper_colour']} {a['opened']} {a['hat']}" for a in people["attrs"]])
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=2, weights="none", size=(64, 32)).eval()
    usual, either = evaluate_reid(model, worn), evaluate_reid(model, worn, junk="cam,clothes")
    assert usual == evaluate_reid(model, worn, junk="cam") and either["n_skipped"] > usual["n_skipped"] == 0
    with pytest.raises(ValueError, match="clothes"): evaluate_reid(model, people, junk="cam,clothes")


def test_evaluation_tells_a_model_the_cameras(people, tmp_path):
    s = ReidTrain("transreid_tiny", steps=2, **{**SMALL, "model_kw": (("size", (64, 32)), ("cams", (0, 1, 2)))})
    model = train_reid(people, s, folder=tmp_path, quiet=True).model
    with torch.no_grad(): model.side_embed.mul_(30)     # far apart, as after a long training
    own, mean = evaluate_reid(model, people), evaluate_reid(model, people, cameras=False)
    def one_by_one(t):
        img = to_pixels(t.images(size=model.size))
        emb = [model.encode_image(x[None], torch.tensor([c])).detach() for x, c in zip(img, t.frame.cam)]
        return Embeddings(torch.cat(emb), t.frame.pid, t.frame.cam)
    want = retrieval_metrics(one_by_one(people.query("val")), one_by_one(people.gallery("val")))
    assert own["mAP"] == pytest.approx(want["mAP"], abs=.05) and abs(own["mAP"] - mean["mAP"]) > .1
    assert load_trained(tmp_path).model.cams == (0, 1, 2)
