"""Preset `paper` of every experiment against what the papers print, read from the trainings it sets up.

One table a paper: what, the stated value, where it is stated, how it is read. `I:` marks an inference, `program` a
released program, `parent` the system that CAMeL extends (APTM): the preset has these where the paper is silent.
"""
import inspect
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.dg_targets import FULL, target

from reid_lab.analysis.text_scores import FUSION
from reid_lab.data.augment import AUGMENT
from reid_lab.datasets.aerial import cross_view
from reid_lab.datasets.protocols.cameras import SEEN
from reid_lab.datasets.protocols.dg_cases import RankingTest
from reid_lab.datasets.protocols.dg_splits import MIXED as SETS, TARGETS, mixed_table, no_identity, target_cases
from reid_lab.meta.dmg import split_cameras
from reid_lab.models.zoo import MODELS, create_model
from reid_lab.recipes import camel, camel_settings, cfam, cfan, dart3, dmg
from reid_lab.recipes.reid import REID_PRESETS, Scheme, reid_settings, train_reid
from reid_lab.recipes.text import TEXT_PRESETS, train_text
from reid_lab.results.published import compare, published_table
from reid_lab.retrieval.cameras import CameraStats
from reid_lab.training.callbacks import Average
from reid_lab.training.folder import Trained, model_of
from reid_lab.training.learner import Callback
from reid_lab.training.prompts import PromptSettings
from reid_lab.world.world import World

Fact = namedtuple("Fact", "what said where read")
SGFORMER = "reid_lab.models.sgformer"


class Begun(Exception): "Carries the learner of a training that is about to take its first step"


class Stop(Callback):
    def before_fit(self, learn): raise Begun(learn)


def learner(train, *args, **kw):
    "The learner that a recipe sets up"
    with pytest.raises(Begun) as e: train(*args, **kw)
    return e.value.args[0]


def peaks(learn):
    "Peak rate and decay -> number of tensors"
    out = {}
    for g in learn.opt.param_groups: out[g["initial_lr"], g["weight_decay"]] = len(g["params"])
    return out


def factors(learn, epochs):
    "Factor of the rate at the beginning of epochs"
    return [round(learn.sched.lr_lambdas[0](e*len(learn.loader)), 6) for e in epochs]


def rate_of(learn, part):
    "Peak rates of parameters whose name begins so"
    at = {id(p): g["initial_lr"] for g in learn.opt.param_groups for p in g["params"]}
    return {at[id(p)] for n, p in learn.net.named_parameters() if n.startswith(part) and p.requires_grad}


def check(facts, seen):
    wrong = {}
    for f in facts:
        got = f.read(seen)
        close = isinstance(f.said, float) or isinstance(f.said, list) and all(isinstance(x, float) for x in f.said)
        same = got == pytest.approx(f.said) if close else got == f.said
        if not same: wrong[f.what] = (f.said, got, f.where)
    assert not wrong, f"what: (stated, preset, where): {wrong}"
    assert all(f.where for f in facts) and len({f.what for f in facts}) == len(facts)


# ---- CAMeL: IEEE TIFS 2025, section IV-A "Implementation Details" (IV-A), Algorithm 1, Table VI, Fig. 4

@pytest.fixture(scope="module")
def of_camel():
    data, start = camel.load_data("smoke", weights="none"), dict(weights="none", device="cpu")
    c = camel_settings.Config("camel", "paper", **start)
    torch.manual_seed(0)
    model = model_of(dict(model=c.budget.model, model_kw=dict(c.budget.model_kw)), tokenizer=data.tokenizer, **c.start)
    strategy = camel.make_strategy(c, data.tokenizer)[0]
    n = 32*(1_510_330//80)      # batches of MALS
    plan = camel.PhasePlan(data.source, n, c.rates["lr"], strategy, [Stop()])
    train = learner(camel.train_phase, c, model, data, plan)
    return SimpleNamespace(c=c, t=c.budget.train, m=c.settings, learn=train, net=model, strategy=strategy, n=n)


CAMEL = [
    Fact("epochs of pretraining", 32, "IV-A", lambda s: s.t.epochs),
    Fact("batch", 80, "IV-A; I: of all four GPUs together, and of fine-tuning", lambda s: s.learn.loader.B),
    Fact("optimiser", "AdamW", "IV-A", lambda s: type(s.learn.opt.optimizer).__name__),
    Fact("rate and decay of matrices, of vectors", {(1e-4, .01), (1e-4, 0.)}, "IV-A; no decay of vectors: program",
         lambda s: {*peaks(s.learn)}),
    Fact("betas and eps", {((.9, .98), 1e-8)}, "program",
         lambda s: {(g["betas"], g["eps"]) for g in s.learn.opt.param_groups}),
    Fact("warm-up batches", 2600, "parent", lambda s: s.t.warmup_steps),
    Fact("decay", [.5, 1., .5, 0.], "IV-A: linear",
         lambda s: [s.learn.sched.lr_lambdas[0](x) for x in (1300, 2600, (s.n + 2600)//2, s.n)]),
    Fact("clipping", None, "not stated; program: none", lambda s: s.learn.clip),
    Fact("image size", (224, 224), "IV-A", lambda s: s.learn.loader.size),
    Fact("image augmentation", AUGMENT["camel"], "IV-A: flip, RandAugment, erasing, crop",
         lambda s: s.learn.loader.augment),
    Fact("caption length", 56, "IV-A", lambda s: s.c.budget.words),
    Fact("captions changed", .1, "IV-A: 10 % of the tokens", lambda s: s.m.eda_alpha),
    Fact("operations on captions", 4, "IV-A: replacement, insertion, swap, deletion",
         lambda s: len(s.m.eda_ops.split())),
    Fact("joint space", 256, "IV-A", lambda s: s.net.dim),
    Fact("text layers", (6, 6, 768), "IV-A: BERT's halves",
         lambda s: (len(s.net.text.layers), len(s.net.cross.layers), s.net.text.width)),
    Fact("temperature", .07, "program", lambda s: s.net.tau.item()),
    Fact("masked words", .25, "parent", lambda s: s.t.mlm_p),
    Fact("second caption", .8, "parent", lambda s: s.net.eda_weight),
    Fact("ITM negatives", "sample", "III: drawn by hardness", lambda s: s.net.negatives),
    Fact("delta", 1., "IV-A", lambda s: s.strategy.tasks[2].delta),
    Fact("tasks", ["illumination", "blur", "memory"], "III, Algorithm 1", lambda s: [t.name for t in s.strategy.tasks]),
    Fact("tasks in sequence", True, "Algorithm 1", lambda s: s.strategy.sequential),
    Fact("slow rate", .5, "III: smoothing factor", lambda s: s.strategy.eps_slow),
    Fact("fast rate", 1., "I: not stated", lambda s: s.strategy.eps_fast),
    Fact("tasks between slow updates", 6, "IV-A, Table VI", lambda s: s.strategy.every),
    Fact("a round of tasks", "a pass", "I: an epoch, so that k = 30 is reached in 10 stylised epochs",
         lambda s: "a pass" if s.m.iters_per_task == 0 and s.strategy.iters == max(1, len(s.learn.loader)//3) else s.m),
    Fact("memory", .5*2*80, "Fig. 4: half the samples of two tasks", lambda s: s.strategy.tasks[2].memory.capacity),
    Fact("epochs of fine-tuning", 30, "IV-A", lambda s: s.t.ft_epochs),
    Fact("rates", dict(lr=1e-4, styled_ft_lr=1e-4, ft_lr=2e-4), "IV-A; I: stylised epochs as in pretraining",
         lambda s: s.c.rates),
    Fact("same rates in all variants", True, "IV-A: one rate is given", lambda s: len(
        {tuple(camel_settings.Config(v, "paper").rates.values()) for v in camel_settings.VARIANTS}) == 1),
    Fact("rate of the last 20 epochs", "fixed", "IV-A", lambda s: s.t.ft_schedule),
    Fact("epochs between snapshots", 3, "IV-A", lambda s: Average(s.t.swa).every),
    Fact("images read by the matcher", 128, "parent, program", lambda s: s.c.budget.k_test),
    Fact("score", ("itm", .002), "parent, program: matching score, cosine breaks ties",
         lambda s: (s.c.budget.headline, FUSION[0])),
]
TOWER = [   # SG-Former-S (ICCV 2023) in CAMeL
    Fact("parameters with BERT's words", True, "IV-B: 145M; 513,000 of them are the unused classifier of ImageNet",
         lambda m: sum(p.numel() for p in m.parameters()) in (145_399_930, 144_886_930)),
    Fact("image width", 512, "SG-Former-S", lambda m: m.image.width),
    Fact("joint space", 256, "IV-A", lambda m: m.dim)]


def test_camel(of_camel): check(CAMEL, of_camel)


def test_camel_tower():
    pytest.importorskip(SGFORMER)
    check(TOWER, create_model("camel_base", weights="none", text_weights="none"))


def test_epochs_of_camel_follow_the_data():
    "Passes over the captions; a third of fine-tuning is stylised, with a rate of its own; then the rate is fixed"
    data = camel.load_data("smoke", weights="none")
    ids = data.target.where(split="train")["pid"].unique()[:12]
    target = data.target.take((data.target["pid"].isin(ids) | (data.target["split"] != "train")).to_numpy())
    captions = sum(map(len, target.where(split="train")["captions"]))
    small = (("ft_epochs", 6), ("batch_size", 16), ("augment", "none"))
    c = camel_settings.Config("camel", "paper", 0, small, model="camel_tiny", weights="none", device="cpu")
    torch.manual_seed(0)
    model = model_of(dict(model="camel_tiny", model_kw=dict(size=(64, 32))), tokenizer=data.tokenizer, weights="none")
    done, _ = camel.finetune(c, Trained(model, [], 0, 0, 0.), replace(data, target=target), quiet=True)
    rates, each = [r["lr"] for r in done.log], captions//16
    assert done.images == 6*each*16
    assert len(rates) == 6*each and max(rates[:2*each]) == pytest.approx(1e-4) and set(rates[2*each:]) == {2e-4}
    with pytest.raises(ValueError, match="ft_schedule='fix'"): camel_settings.Config(train=(("ft_schedule", "fix"),))


def of_captions(recipe, method, table):
    "Settings and learner of a method that trains on captions"
    s = recipe.method_settings(dict(name=method), "paper", weights="none", device="cpu")
    return SimpleNamespace(s=s, learn=learner(train_text, table, s, callbacks=[Stop()], quiet=True))


# ---- CFAM: CVPR 2024, section 5.1; Table 9 of the supplement; SDM and what is not stated: IRRA

@pytest.fixture(scope="module")
def of_cfam(): return of_captions(cfam, "cfam", World("smoke", granularity="fine").table().where(domain="real-like"))


CFAM = [
    Fact("towers", "cfam_b16", "5.1: CLIP ViT-B/16", lambda s: s.s.model),
    Fact("start", True, "5.1: pretrained", lambda s: "CLIP" in MODELS["cfam_b16"].starts),
    Fact("image size", (384, 128), "5.1", lambda s: s.learn.loader.size),
    Fact("caption length", 168, "5.1", lambda s: s.learn.net.tokenizer.context_length),
    Fact("text positions", 168, "5.1", lambda s: len(s.learn.net.positional_embedding)),
    Fact("batch", 64, "5.1", lambda s: s.learn.loader.B),
    Fact("epochs", 60, "5.1", lambda s: s.learn.n_steps//len(s.learn.loader)),
    Fact("optimiser", "Adam", "5.1", lambda s: type(s.learn.opt.optimizer).__name__),
    Fact("rates", {1e-5, 2e-5, 5e-5}, "5.1; biases twice: IRRA", lambda s: {k for k, _ in peaks(s.learn)}),
    Fact("rate of new parts", {5e-5}, "5.1", lambda s: rate_of(s.learn, ("decoders.", "matcher.", "cid."))),
    Fact("decay", {4e-5, 0.}, "I: IRRA, no decay of biases", lambda s: {k for _, k in peaks(s.learn)}),
    Fact("eps", {1e-3}, "I: IRRA", lambda s: {g["eps"] for g in s.learn.opt.param_groups}),
    Fact("schedule", [.1, .82, 1., .5, 0.], "5.1: linear warm-up of 5 epochs, cosine; I: from 0.1, to 0",
         lambda s: [*factors(s.learn, (0, 4, 5)), *np.round([s.learn.sched.lr_lambdas[0](
             int(e*len(s.learn.loader))) for e in (32.5, 60)], 1)]),
    Fact("clipping", None, "not stated", lambda s: s.learn.clip),
    Fact("image augmentation", AUGMENT["irra"], "5.1: erasing, flip, crop with padding; form: IRRA",
         lambda s: s.learn.loader.augment),
    Fact("masked and replaced tokens", (.15, True), "5.1; I: the share of IRRA, each by itself",
         lambda s: (s.s.mask, s.s.mask_each)),
    Fact("order", "shuffle", "I: IRRA", lambda s: s.learn.loader.sampler),
    Fact("losses", {"gs", "ls", "m", "cid"}, "eq. 7", lambda s: {*s.learn.net.losses}),
    Fact("weights of the losses", {}, "4.4: all 1", lambda s: s.learn.net.loss_weights),
    Fact("temperature of SDM", .02, "IRRA", lambda s: s.learn.net.tau),
    Fact("queries", 4, "Table 9, best and default row (5.1 says 16)", lambda s: s.learn.net.queries),
    Fact("decoder", (1, 2, 512, 8), "5.1: shared, 2 blocks, width 512, 8 heads", lambda s: (
        len(s.learn.net.decoders), len(s.learn.net.decoders[0].blocks), s.learn.net.decoders[0].queries.shape[1],
        s.learn.net.decoders[0].blocks[0].self_attn.num_heads)),
    Fact("matcher", (2, 8), "5.1", lambda s: (len(s.learn.net.matcher.blocks),
                                             s.learn.net.matcher.blocks[0].self_attn.num_heads)),
]


def test_cfam(of_cfam): check(CFAM, of_cfam)


# ---- CFAN: CVPR 2026, section 5.2; Table 5, Fig. 5

@pytest.fixture(scope="module")
def of_cfan(): return of_captions(cfan, "cfan", cross_view(World("smoke", task="aerial").table()))


CFAN = [
    Fact("towers", "cfan_b16", "3.1: CLIP ViT-B/16", lambda s: s.s.model),
    Fact("start", True, "5.2: weights of HAM", lambda s: "HAM" in MODELS["cfan_b16"].starts),
    Fact("image size", (384, 128), "5.2", lambda s: s.learn.loader.size),
    Fact("caption length", 77, "3.1: CLIP", lambda s: s.learn.net.tokenizer.context_length),
    Fact("batch", 64, "5.2", lambda s: s.learn.loader.B),
    Fact("epochs", 60, "5.2", lambda s: s.learn.n_steps//len(s.learn.loader)),
    Fact("optimiser", "Adam", "5.2", lambda s: type(s.learn.opt.optimizer).__name__),
    Fact("rate and decay", {(5e-6, 4e-5)}, "5.2: one rate; decay of all: program", lambda s: {*peaks(s.learn)}),
    Fact("betas and eps", {((.9, .999), 1e-3)}, "program", lambda s: {(g["betas"], g["eps"])
                                                                  for g in s.learn.opt.param_groups}),
    Fact("schedule", [.1, 1., 0.], "5.2: cosine; warm-up of 5 epochs from 0.1: program",
         lambda s: factors(s.learn, (0, 5, 60))),
    Fact("rates of the program over the base", [50., 1., 1., 1., 5.], "program, a named variant: norms keep the base",
         lambda s: [m for _, m in cfan.method_settings(dict(name="released"), "paper", weights="none").part_mult]),
    Fact("image augmentation", AUGMENT["irra"], "5.2: standard; program: flip, crop, erasing",
         lambda s: s.learn.loader.augment),
    Fact("masked tokens", (.15, True), "5.2; the share, each by itself: program",
         lambda s: (s.s.mask, s.s.mask_each)),
    Fact("bridge", "pair", "3.2: the ground image of the sample", lambda s: s.s.bridge),
    Fact("losses", {"cda", "fta"}, "3.2, 3.3", lambda s: {*s.learn.net.losses}),
    Fact("steepness of the gate", 1., "Table 5", lambda s: s.learn.net.k),
    Fact("gradient through the gate", False, "I: not excluded", lambda s: s.learn.net.detach_alpha),
    Fact("queries", (4, 512), "5.2, Fig. 5", lambda s: tuple(s.learn.net.crossformer.queries.shape)),
    Fact("blocks and heads", (4, 8), "program", lambda s: (
        len(s.learn.net.crossformer.transformer.resblocks), s.learn.net.crossformer.cross_attn.num_heads)),
    Fact("temperature", .02, "program", lambda s: s.learn.net.tau),
    Fact("weight of FTA", 1., "I: not stated (program: 0.5, in the variant released)",
         lambda s: s.learn.net.fta_weight),
    Fact("memberships", ("paper", 1), "eq. 8 and 9: one sigma a sample", lambda s: (
        s.learn.net.membership, s.learn.net.sigma[0][-1].out_features)),
]


def test_cfan(of_cfan): check(CFAN, of_cfan)


# ---- DMG-Net: CVPR 2021, section 5; BoT: strong baseline (CVPRW 2019)

@pytest.fixture(scope="module")
def of_dmg():
    people = World("smoke", task="reid").table()
    s = dmg.method_settings("dmg", "paper", weights="none", device="cpu")
    scheme = dmg.scheme_of("dmg", s.k)
    small = replace(s, batch_size=16)       # the World has too few people for 16 of both halves
    learn = learner(train_reid, people, small, 0, None, True, replace(scheme, strategy=Stop))
    return SimpleNamespace(s=s, learn=learn, net=learn.net, scheme=scheme, step=scheme.strategy())


DMG = [
    Fact("backbone", "bot_r50", "5: ResNet-50", lambda s: s.s.model),
    Fact("image size", (256, 128), "5", lambda s: s.learn.loader.size),
    Fact("batch", 128, "5: 64 and 64", lambda s: s.s.batch_size),
    Fact("images a person and half", (4, 4), "5: 4 x 16", lambda s: (s.s.k, s.scheme.sampler.k)),
    Fact("batch of the baselines", 64, "BoT: 16 x 4", lambda s: dmg.method_settings("bot", "paper").batch_size),
    Fact("epochs", 120, "5", lambda s: s.s.epochs),
    Fact("optimiser", "Adam", "5", lambda s: type(s.learn.opt.optimizer).__name__),
    Fact("rate and decay", {(3.5e-4, 5e-4)}, "5; decay: BoT", lambda s: {*peaks(s.learn)}),
    Fact("schedule", [.01, 1., 1., .1, .1, .01], "5: 0.1 at epochs 40 and 70; warm-up of 10 epochs from 0.01: BoT",
         lambda s: factors(s.learn, (0, 10, 39, 40, 69, 70))),
    Fact("image augmentation", AUGMENT["bot"], "BoT: flip, pad 10 and crop, erasing", lambda s: s.learn.loader.augment),
    Fact("colour jitter on joined sets", [dict(augment="bot_jitter")]*2 + [{}]*2, "5", lambda s: [
        dmg.joined_augment(*x.split(":")) for x in ("mixed A:paper", "mixed B:paper", "a.csv:paper", "mixed A:full")]),
    Fact("label smoothing and margin", (.1, .3), "BoT", lambda s: (s.net.smoothing, s.net.margin)),
    Fact("last stride", (1, 1), "BoT", lambda s: s.net.image.net.layer4[0].conv2.stride),
    Fact("shift of the neck", False, "BoT: fixed", lambda s: s.net.neck.bias.requires_grad),
    Fact("test feature", "after", "BoT", lambda s: s.net.feature),
    Fact("virtual step", (True, False), "eq. 2 to 4; I: first order", lambda s: (s.step.virtual, s.step.second_order)),
    Fact("rate of the virtual step", None, "Algorithm 1: the same symbol; I: the current rate",
         lambda s: s.step.inner_lr),
    Fact("support loss in the objective", 0., "eq. 7", lambda s: s.step.support),
    Fact("meta-discrimination", (1., 1., "theta"), "eq. 5 to 7: weight 1, no temperature", lambda s: (
        s.step.md, s.step.scale, s.step.md_params)),
    Fact("weight of the center loss", 5e-4, "BoT", lambda s: dict(dmg.METHODS["center"].loss)["center"]),
]


def test_dmg(of_dmg): check(DMG, of_dmg)


# ---- Table 5 of DMG-Net: joined training sets, four small targets (section 5; the targets' usual protocols)

TABLE_5 = {  # method and joined set -> mAP and R1 of PRID, GRID, VIPeR, i-LIDS, as printed
    ("DMG-Net", "Mixed A"): [68.38, 60.60, 56.62, 50.96, 60.38, 53.91, 83.94, 79.33],
    ("BoT", "Mixed A"): [61.25, 51.40, 49.62, 40.48, 56.66, 48.20, 81.27, 74.67],
    ("DMG-Net", "Mixed B"): [69.73, 59.70, 47.18, 37.28, 70.93, 62.34, 88.20, 83.00],
    ("BoT", "Mixed B"): [59.12, 48.50, 38.72, 29.52, 66.34, 60.06, 85.57, 80.83]}


@pytest.fixture(scope="module")
def of_mixed():
    "Two Worlds as the joined sets, trained as `dmg.run_method` trains on `mixed A` at preset `paper`"
    worlds = [World("smoke", task="reid", seed=i).table() for i in (0, 1)]
    joined = mixed_table(worlds, ("one", "two"))
    s = dmg.method_settings("dmg", "paper", weights="none", device="cpu", **dmg.joined_augment("mixed A", "paper"))
    scheme = dmg.scheme_of("dmg", s.k)
    learn = learner(train_reid, joined, replace(s, batch_size=16), 0, None, True, replace(scheme, strategy=Stop))
    tests = {n: RankingTest(t, tuple(target_cases(t, n))) for n in TARGETS for t in [target(n, *FULL[n])]}
    return SimpleNamespace(s=s, learn=learn, joined=joined, worlds=worlds, scheme=scheme, tests=tests)


def halves_by_set(s):
    "Cameras of each set in the two halves of a split"
    f = s.joined.frame
    support = split_cameras(f.cam.to_numpy(), np.random.default_rng(0), s.scheme.sampler.groups_of(f))
    return {(n, side): f.cam[(f.dataset == n).to_numpy() & (support == side)].nunique()
            for n in ("one", "two") for side in (True, False)}


MIXED = [
    Fact("joined sets", dict(A=("cuhk02", "cuhk03", "market1501", "dukemtmc-reid", "cuhk-sysu"),
                             B=("msmt17", "cuhk03", "market1501", "dukemtmc-reid")), "5, Table 5", lambda s: SETS),
    Fact("targets", ("viper", "prid2011", "grid", "ilids"), "Table 5", lambda s: TARGETS),
    Fact("images that train", True, "I: train and test of each set, as in the DIMN protocol",
         lambda s: len(s.joined) == sum(int((~no_identity(t)).sum()) for t in s.worlds)),
    Fact("persons and cameras of two sets are others", True, "I: numbered through", lambda s: all(
        s.joined.frame.groupby(c).dataset.nunique().max() == 1 for c in ("pid", "cam"))),
    Fact("each set is in both halves of the cameras", True, "I: a split in every set",
         lambda s: min(halves_by_set(s).values()) > 0),
    Fact("people of sets with one camera", None, "I: dealt out to both halves",
         lambda s: s.scheme.sampler.virtual_cams),
    Fact("rankings, queries and gallery", dict(viper=(20, 316, 316), prid2011=(10, 100, 649), grid=(10, 125, 900),
                                               ilids=(10, 60, 60)),
         "derived: every R1 is a multiple of 1/6320, 1/1000, 1/1250 and 1/600", lambda s: {
             n: (len(t.tasks), *{(len(c.q), len(c.g)) for c in t.tasks}.pop()) for n, t in s.tests.items()}),
    Fact("test sets count as published", {"published"}, "as above", lambda s: {
        dmg.test_set_of(n, t) for n, t in s.tests.items()}),
    Fact("augmentation", AUGMENT["bot_jitter"], "5: colour jitter on joined sets, its strengths are an inference",
         lambda s: s.learn.loader.augment),
    Fact("epochs and batch", (120, 128), "5: as on Person30K", lambda s: (s.s.epochs, s.s.batch_size)),
    Fact("rate and decay", {(3.5e-4, 5e-4)}, "5; decay: BoT", lambda s: {*peaks(s.learn)}),
    Fact("schedule", [.01, 1., .1, .01], "5: 0.1 at epochs 40 and 70", lambda s: factors(s.learn, (0, 10, 40, 70))),
    Fact("what else differs from one set", set(), "nothing is stated", lambda s: {
        k for k, v in vars(s.s).items() if v != getattr(dmg.method_settings(
            "dmg", "paper", weights="none", device="cpu"), k)} - {"augment"}),
    Fact("compared methods", {"BoT", "DMG-Net"}, "Table 5: ours of its rows", lambda s: {
        n for m in dmg.STUDIES["mixed"].methods for n in dmg.METHODS[m].published} & {"BoT", "DMG-Net"}),
]


def test_table_5(of_mixed): check(MIXED, of_mixed)


def test_rates_of_table_5_fit_the_number_of_queries():
    "The first rank of n queries is a multiple of 100/n: of 20 rankings of VIPeR, not of 10"
    multiple = lambda r, n: abs(r*n/100 - round(r*n/100)) <= .005*n/100 + 1e-9
    numbers = dict(zip(("prid2011", "grid", "viper", "ilids"), range(1, 8, 2)))
    for name, at in numbers.items():
        rankings, queries, _ = dmg.TARGET_SIZES[name]
        assert all(multiple(r[at], rankings*queries) for r in TABLE_5.values()), name
    assert not multiple(53.91, 10*316) and multiple(53.91, 20*316)


@pytest.mark.parametrize("joined", ["A", "B"])
def test_our_rows_stand_below_table_5(joined):
    "What `run_dmg -p dataset=mixed\\ A -p preset=paper` compares: the four targets, at the published sizes"
    printed = published_table("dmg", "5")
    for (method, source), want in TABLE_5.items():
        rows = printed[(printed.method == method) & (printed.source == source)].set_index("target")
        assert rows.loc[["PRID", "GRID", "VIPeR", "i-LIDS"], ["mAP", "R1"]].to_numpy().ravel().tolist() == want
    ours = [dict(method="DMG-Net", dataset=f"mixed {joined}->{t}", test_set="published", mAP=50., R1=40., R5=60.)
            for t in TARGETS]
    both = compare(ours, "dmg", "5")
    assert len(both) == len(printed) + 4 and not both.attrs["footnote"]
    mine = both[both.origin == "ours"]
    assert {*mine.dataset} == {"PRID", "GRID", "VIPeR", "i-LIDS"} and {*mine.source} == {f"mixed {joined}"}
    other = compare([dict(ours[0], test_set=None)], "dmg", "5")
    assert len(other) == len(printed) and "viper" in other.attrs["footnote"]


# ---- DART3, 2025: "Implementation Details", Algorithms 1 and 2; source models: their own papers

@pytest.fixture(scope="module")
def of_dart3():
    people, out = World("smoke", task="reid").table(), {}
    for name in ("transreid_b16", "clip_reid_b16"):
        s = reid_settings("paper", model=name, weights="none", device="cpu")
        learn = learner(train_reid, people, replace(s, prompt_epochs=0), 0, None, True, Scheme(strategy=Stop))
        usual = dart3.as_in_paper(name)
        out[name] = SimpleNamespace(s=s, learn=learn, net=learn.net, made={
            k: m(**usual.get(k, {})) for k, m in dart3.METHODS.items()})
    return SimpleNamespace(t=out["transreid_b16"], c=out["clip_reid_b16"])


_OURS = ("lr", "steps", "batch_size", "k", "distance", "episodic", "optimiser")
DART3 = [
    Fact("source model", "clip_reid_b16", "Table 4 to 7 (TransReID is named by model)",
         lambda s: dart3.SOURCES["paper"]),
    *[Fact(f"{m}, {x}", (1e-4, 1, 64, 3, "euclidean", False, "adam"),
           "Implementation Details: rate, step, k, not episodic; I: 64 a batch, plain distance, Adam",
           lambda s, m=m, x=x: tuple(getattr(getattr(s, x).made[m], k) for k in _OURS))
      for m in ("DART3", "DART3-LITE") for x in "tc"],
    Fact("temperature of TransReID and CLIP-ReID", (200., 100.), "Implementation Details",
         lambda s: (s.t.made["DART3"].tau, s.c.made["DART3-LITE"].tau)),
    Fact("layers that learn", ("bn", "ln"), "3: normalisation layers; I: both kinds",
         lambda s: s.c.made["DART3"].norm_kinds),
    Fact("statistics", "pooled", "Algorithm 1: queries and gallery", lambda s: s.c.made["DART3"].norm.stats_from),
    Fact("deviation", 0, "eq. 6; I: population", lambda s: inspect.signature(CameraStats).parameters["ddof"].default),
    Fact("Norm", "pooled", "Algorithm 1", lambda s: s.c.made["Norm"].stats_from),
    Fact("TENT", (1e-4, 1, "classifier"), "I: the rate of DART3", lambda s: (
        s.c.made["TENT"].lr, s.c.made["TENT"].steps, s.c.made["TENT"].prediction)),
    Fact("TEMP", (3.5e-4, 16, 50, 1e-4), "its program", lambda s: tuple(
        getattr(s.c.made["TEMP"], k) for k in ("lr", "batch_size", "k", "forget"))),
    Fact("cameras", {"msmt17-5": (2, 3, 4, 5, 6), "msmt17-10": tuple(range(10)), "dukemtmc-reid-5": tuple(range(5)),
                     "market1501-5": tuple(range(5))}, "supplement: 2 to 6; I: the others",
         lambda s: {k: v for k, (_, v) in SEEN.items()}),
    # TransReID
    Fact("TransReID: optimiser", ("SGD", {.9}), "its paper", lambda s: (
        type(s.t.learn.opt.optimizer).__name__, {g["momentum"] for g in s.t.learn.opt.param_groups})),
    Fact("TransReID: rates and decay", {(8e-3, 1e-4), (1.6e-2, 1e-4)}, "its paper; biases twice: program",
         lambda s: {*peaks(s.t.learn)}),
    Fact("TransReID: schedule", [.01, 1., .002], "its paper: cosine; warm-up of 5 epochs, end: program",
         lambda s: factors(s.t.learn, (0, 5, 120))),
    Fact("TransReID: epochs and batch", (120, 64, 4), "its paper: 16 x 4",
         lambda s: (s.t.s.epochs, s.t.learn.loader.B, s.t.s.k)),
    Fact("TransReID: size and features", ((256, 128), 3840), "its paper: jigsaw branch", lambda s: (
        s.t.learn.loader.size, s.t.net.dim)),
    Fact("TransReID: losses", (None, 0., 1.), "its paper: soft margin, no smoothing", lambda s: (
        s.t.net.margin, s.t.net.smoothing, s.t.net.w_triplet)),
    Fact("TransReID: side information", (), "I: unknown cameras are tested", lambda s: s.t.net.cams),
    # CLIP-ReID
    Fact("CLIP-ReID: stage 1", (120, 64, 3.5e-4), "its paper", lambda s: (s.c.s.prompt_epochs, *(
        getattr(PromptSettings(), k) for k in ("batch_size", "lr")))),
    Fact("CLIP-ReID: stage 2", (60, 64, 4, "Adam"), "its paper: 16 x 4", lambda s: (
        s.c.s.epochs, s.c.learn.loader.B, s.c.s.k, type(s.c.learn.opt.optimizer).__name__)),
    Fact("CLIP-ReID: rates and decay", {(5e-6, 1e-4), (1e-5, 1e-4)}, "its paper; biases twice: program",
         lambda s: {*peaks(s.c.learn)}),
    Fact("CLIP-ReID: schedule", [.1, 1., .1, .01], "its paper: warm-up of 10 epochs from 0.1, 0.1 at 30 and 50",
         lambda s: factors(s.c.learn, (0, 10, 30, 50))),
    Fact("CLIP-ReID: weights of the losses", dict(id=.25, triplet=1., i2t=1.), "its paper", lambda s: s.c.net.weights),
    Fact("CLIP-ReID: smoothing and margin", (.1, .3), "its paper", lambda s: (s.c.net.smoothing, s.c.net.margin)),
    Fact("CLIP-ReID: features and grid", (1280, (16, 8)), "its paper: 768 + 512, stride 16", lambda s: (
        s.c.net.dim, tuple(s.c.net.visual.grid_size))),
    Fact("image augmentation", [AUGMENT["transreid"]]*2, "flip, pad 10 and crop, erasing",
         lambda s: [x.learn.loader.augment for x in (s.t, s.c)]),
]


def test_dart3(of_dart3): check(DART3, of_dart3)


# ---- all five

def test_every_experiment_has_the_four_presets():
    for found in (camel_settings.PRESETS, TEXT_PRESETS, cfan.CFAN_PRESETS, REID_PRESETS):
        assert list(found) == ["smoke", "quick", "full", "paper"]
        assert all(MODELS[found[k].model].size == ("paper" if k in ("full", "paper") else "tiny") for k in found)


def test_batches_that_are_named_replace_the_epochs_of_a_paper():
    assert reid_settings("paper", steps=9).epochs == 0 and reid_settings("paper", steps=9, epochs=3).epochs == 3
    t = camel_settings.Config("camel", "paper", train=(("steps", 9),)).budget.train
    assert (t.epochs, t.steps, t.ft_epochs) == (0, 9, 30)
    assert camel_settings.Config("start", "paper").budget.train.epochs == 0
    assert dmg.method_settings("dmg", "paper", steps=900).epochs == 0
