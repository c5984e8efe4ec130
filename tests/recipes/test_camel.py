"""The CAMeL protocol: settings, data, determinism, what is kept, an interrupted run, and refusal of other data."""
import copy
import inspect
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from reid_lab.analysis.text_scores import Matcher, evaluate
from reid_lab.core.basics import stream
from reid_lab.data.loaders import tokenize
from reid_lab.data.text import WordPiece
from reid_lab.models.backbones import ImageKeys
from reid_lab.models.zoo import create_model, list_models
from reid_lab.recipes import camel, camel_report, cfam, cfan, dart3, dmg
from reid_lab.recipes.camel import (
    CamelSets,
    finetune,
    load_data,
    load_run,
    make_strategy,
    pretrain,
    run_variant,
    train_loader,
)
from reid_lab.recipes.camel_settings import PRESETS, STUDIES, TABLE_IV, TITLES, VARIANTS, Config, run_arguments
from reid_lab.recipes.study import FIGURES, Study, find_study, settings_frame
from reid_lab.retrieval.embeddings import embed_images, image_pixels
from reid_lab.retrieval.rerank import MatchBatches, rerank_itm
from reid_lab.training import checkpoints, fit
from reid_lab.training.callbacks import refresh_batchnorm
from reid_lab.training.learner import Callback
from reid_lab.world.world import World

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def data(private_cache): return load_data("smoke")


def test_table_iv_has_the_papers_five_rows():
    assert [VARIANTS[m].title for m in TABLE_IV] == ["Baseline", "+ ST", "+ ST + ADSU", "+ ST + CMML", "CAMeL"]


@pytest.mark.parametrize("bad", [dict(variant="camle"), dict(preset="quik"), dict(train=(("stepz", 1),)),
                                 dict(meta=(("ordr", 1),)), dict(model="dual_tinny")])
def test_misspelt_settings(bad):
    with pytest.raises(ValueError, match="Did you mean"): Config(**bad)


def test_words_of_the_target_are_known(data):
    "The vocabulary is learned from source captions; fewer than 1 % of the target's words may be unknown to it"
    data.tokenizer.reset_report()
    data.tokenizer([c for cs in data.target.frame.captions for c in cs])
    assert data.tokenizer.report()["unknown_share"] < .01


def test_people_are_in_one_split_and_one_domain(data):
    seen = {}
    for t in (data.source, data.target):
        for split, rows in t.frame.groupby("split"):
            for pid in rows.pid.unique():
                assert seen.setdefault(pid, (t.frame.domain.iat[0], split)) == (rows.domain.iat[0], split)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "start"])
def test_every_variant_trains(variant, data):
    "Six steps are two rounds of three tasks: the first that a slow weight update ends"
    config = Config(variant, "smoke", train=(("steps", 6),))
    torch.manual_seed(config.seed)
    start = create_model(config.budget.model, tokenizer=data.tokenizer, **dict(config.budget.model_kw))
    done = pretrain(config, data, quiet=True)
    updates = 3 if VARIANTS[variant].released else 1   # of the released code for each batch
    assert done.steps == 6 and done.images == 6*16*updates and all(p.isfinite().all() for p in done.model.parameters())
    pairs = zip(done.model.named_parameters(), start.parameters(), strict=True)
    assert [k for (k, a), b in pairs if torch.equal(a, b)] == []


def test_the_start_alone_is_not_changed(data, tmp_path):
    "Weights and BatchNorm statistics are those that training would begin with, and fine-tuning begins with them"
    config = Config("start", "smoke")
    torch.manual_seed(config.seed)
    want = create_model(config.budget.model, tokenizer=data.tokenizer, **dict(config.budget.model_kw)).state_dict()
    done = pretrain(config, data, tmp_path/"start", quiet=True)
    got = done.model.state_dict()
    assert (done.steps, done.images, done.log) == (0, 0, []) and all(torch.equal(got[k], want[k]) for k in want)
    tuned, _ = finetune(config, done, data, quiet=True)
    assert tuned.images == 9*16 and not torch.equal(tuned.model.state_dict()["tau"], want["tau"])


def test_the_released_program_by_name(data):
    "What the variant sets, field by field; every field can be set back, and the paper's variants have none of it"
    config = Config("released", "smoke")
    t, m = config.budget.train, config.settings
    assert (t.schedule, t.eda_first, t.mlm_p, t.mlm_pads, t.clip, t.swa) == ("step", True, .2, True, 0, 0)
    assert (t.negatives, t.ft_negatives, t.drop_cos, t.ft_drop_cos, t.top) == ("top", "", .62, .9, 12)
    assert not t.ft_mlm_image
    assert (config.eps_fast(), config.eps_fast(True), m.eps_slow, m.k, m.delta, m.mix) == (.03, .1, .5, 6, .6, "select")
    for finetuning, rate in ((False, .03), (True, .1)):
        rd, _ = make_strategy(config, data.tokenizer, 900, finetuning)
        assert [x.name for x in rd.tasks] == ["blur", "illumination", "mixup"] and rd.meta_lr == rate
        assert (rd.meta_epochs, rd.epoch_steps, rd.k, rd.alpha, rd.slow_from) == (10, 30, 6, .5, "first step")
        assert rd.memory.capacity == 560
    back = Config("released", "smoke", train=(("schedule", "linear"), ("clip", 5.)), meta=(("eps_fast", 1.),))
    assert (back.budget.train.schedule, back.budget.train.clip, back.eps_fast(True)) == ("linear", 5., .1)
    for name in ("base", *TABLE_IV):
        t, m = Config(name, "smoke").budget.train, Config(name, "smoke").settings
        assert (t.schedule, t.eda_first, t.mlm_pads, t.negatives, t.ft_negatives) == ("linear", False, False, "", "")
        assert (m.eps_fast, m.ft_eps_fast) == (1., 0.) and t.ft_mlm_image and not t.ft_drop_cos
        assert not {"ft_drop_cos", "ft_mlm_image"} & set(Config(name, "smoke").describe())   # keys of 0.2 stay equal
    assert Config("released", "smoke").describe()["ft_drop_cos"] == .9


def test_released_phases_differ_in_negatives_and_masked_words(data):
    "Cosine of .62 in pretraining, .9 in fine-tuning, where masked words do not train the image tower"
    config, seen = Config("released", "smoke", train=(("steps", 2), ("ft_steps", 2))), []
    train = camel.fit
    def spy(model, *args, **kw):
        seen.append((model.negatives, model.drop_cos, model.mlm_image))
        return train(model, *args, **kw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(camel, "fit", spy)
        camel.run_phases(config, data, quiet=True)
    assert seen[0] == ("top", .62, True) and set(seen[1:]) == {("top", .9, False)}


def test_a_model_that_keeps_masked_words_from_its_image_tower_does_so_in_both_phases(data, monkeypatch):
    config, seen = Config("base", "smoke", train=(("steps", 1), ("ft_steps", 1))), []
    own = replace(PRESETS["smoke"], model_kw=(*PRESETS["smoke"].model_kw, ("mlm_image", False)))
    monkeypatch.setitem(PRESETS, "smoke", own)
    train = camel.fit
    monkeypatch.setattr(camel, "fit", lambda model, *a, **kw: seen.append(model.mlm_image) or train(model, *a, **kw))
    camel.run_phases(config, data, quiet=True)
    assert len(seen) > 1 and not any(seen)


def test_a_set_without_val_trains_on_everybody_at_paper(tmp_path, monkeypatch):
    "ICFG-PEDES has no validation split: the paper's preset trains on all identities, the last weights count"
    from reid_lab.datasets.export import export_world
    from reid_lab.recipes import camel_settings
    from reid_lab.recipes.camel_report import CHOSEN
    people = World("smoke", task="text").table().where(domain="real-like", split=["train", "test"])
    export_world(people, "icfg-pedes", tmp_path/"ICFG-PEDES")
    whole = replace(camel_settings.PRESETS["smoke"], max_ids=0)
    for name in ("paper", "smoke"): monkeypatch.setitem(camel_settings.PRESETS, name, whole)
    def load(name): return load_data(name, CamelSets("icfg-pedes", tmp_path), weights="none")
    everybody = people.where(split="train")["pid"].nunique()
    ids = {name: load(name).target.where(split="train")["pid"].nunique() for name in ("paper", "smoke")}
    assert ids["paper"] == everybody > ids["smoke"]
    train = (("steps", 2), ("ft_steps", 2), ("swa", 0))
    chosen = {}
    for name in ids:
        found = camel.run_phases(Config("base", "smoke", train=train), load(name), quiet=True)
        chosen[name] = found["row"]["ft_selection"], bool(found["logs"]["val"])
    assert chosen == dict(paper=("last step", False), smoke=(CHOSEN["finetuned"], True))
    with pytest.raises(ValueError, match=r"split='val', but the target has \['test', 'train'\].*hold_out=True"):
        camel.run_phases(Config("base", "smoke", train=train), load("paper"), split="val", quiet=True)


def test_released_captions(data):
    "The augmented view comes first and is masked, the clean one second; padding may be masked"
    loader = train_loader(Config("released", "smoke"), data.source, data.tokenizer, (64, 32), 0)
    plain = train_loader(Config("camel", "smoke"), data.source, data.tokenizer, (64, 32), 0)
    masked = 0
    for i in range(3):
        a, b = loader.batch(0, i), plain.batch(0, i)
        assert a["caption"] == b["caption"] and torch.equal(a["tokens_eda"], b["tokens"])
        assert "tokens_eda" not in b                      # the tiny model has no second view by default
        shown = a["labels_mlm"] != -100
        assert torch.equal(a["labels_mlm"][shown], a["tokens"][shown])
        masked += (a["tokens"][shown] == data.tokenizer.pad_id).sum().item()
        assert ((b["labels_mlm"] == data.tokenizer.pad_id).sum()) == 0
    assert masked > 0


def test_released_finetuning_is_one_training(tmp_path):
    row = run_variant("released", "smoke", keep=tmp_path, train=dict(steps=30, ft_steps=30))
    assert row["images_seen"] == row["images_seen_ft"] == (10*3 + 20)*16      # tasks in 10 of 30 epochs
    folder = tmp_path / "released-0-steps=30-ft_steps=30"
    assert [p.name for p in sorted((folder / "finetune").iterdir())] == ["plain"]
    assert load_run(folder)["finetuned"].size == (64, 32)


def test_the_cost_of_finetuning_is_that_of_both_parts(data, tmp_path):
    "Images, steps and seconds of the stylised and of the plain part"
    config = Config("camel", "smoke", train=(("steps", 4), ("ft_steps", 6)))
    row = camel.run_phases(config, data, folder=tmp_path, quiet=True)["row"]
    parts = [json.loads((tmp_path/"finetune"/part/"done.json").read_text()) for part in ("stylised", "plain")]
    assert [part["steps"] for part in parts] == [2, 4]
    assert row["images_seen_ft"] == sum(part["images"] for part in parts)
    assert row["train_s_ft"] == round(sum(part["seconds"] for part in parts), 1)


def test_negatives_reach_the_model(data, monkeypatch):
    "Rule, cosine and number come from the settings, in either phase"
    from reid_lab.losses import text as losses
    used, itm_weights = [], losses.itm_weights
    def spy(img, txt, tau, pid, rule, *more):
        used.append(rule)
        return itm_weights(img, txt, tau, pid, rule, *more)
    monkeypatch.setattr(losses, "itm_weights", spy)
    settings = (("steps", 2), ("ft_steps", 2), ("ft_negatives", "top"), ("drop_cos", .8), ("top", 3))
    camel.run_phases(Config("base", "smoke", train=settings), data, quiet=True)
    assert list(dict.fromkeys(used)) == [losses.HardRule("sample", .9, 12), losses.HardRule("top", .8, 3)]


@pytest.mark.parametrize("model", list_models("text", size="tiny", needs=("tokenizer",)))
@pytest.mark.parametrize("variant", ["base", "camel"])
def test_any_model_that_reads_captions(model, variant, tmp_path):
    row = run_variant(variant, "smoke", keep=tmp_path, model=model, train=dict(steps=4, ft_steps=3))
    assert row["images_seen"] == 4*16 and 0 <= row["finetuned_mAP"] <= 100
    folder, = tmp_path.iterdir()
    assert type(load_run(folder)["finetuned"]) is type(create_model(model, vocab_size=60))


@pytest.mark.parametrize("model", ["cfam_tiny", "irra_b16"])
def test_models_that_classify_identities_are_refused(model):
    "Two trainings on different people have no common classifier"
    with pytest.raises(ValueError, match=f"model='{model}' is not known.*need no number of identities"):
        Config(preset="smoke", model=model)


def test_an_interrupted_run_goes_on(data, tmp_path, monkeypatch):
    "Stopped in the middle and started again, a run ends with the same weights"
    config = Config("camel", "smoke", train=(("steps", 12),))
    whole = pretrain(config, data, tmp_path / "a", quiet=True)
    real = checkpoints.Checkpoint
    monkeypatch.setattr(fit, "Checkpoint", lambda folder, every, **options: real(folder, 3, **options))

    class Stop(Callback):
        def after_step(self, learn):
            if learn.step == 8: raise KeyboardInterrupt
    strategy = camel.make_strategy
    monkeypatch.setattr(camel, "make_strategy", lambda *a: (strategy(*a)[0], [Stop()]))
    with pytest.raises(KeyboardInterrupt): pretrain(config, data, tmp_path / "b", quiet=True)
    monkeypatch.setattr(camel, "make_strategy", lambda *a: (strategy(*a)[0], [Callback()]))
    again = pretrain(config, data, tmp_path / "b", quiet=True)
    assert again.steps == 12
    assert all(torch.equal(a, b) for a, b in zip(whole.model.state_dict().values(), again.model.state_dict().values()))


@pytest.mark.parametrize("change, named", [
    (dict(variant="base"), "method"), (dict(train=(("steps", 5),)), "steps"),
    (dict(train=(("steps", 4), ("lr", .1))), "lr"), (dict(train=(("steps", 4), ("batch_size", 8))), "batch_size"),
    (dict(meta=(("k", 3),)), "k"), (dict(seed=1), "seed"),
    (dict(model="dual_tiny"), "model"), (dict(preset="quick"), "model_kw"), (dict(data=dict(world_seed=1)), "images"),
    (dict(data=dict(scenario="street")), None)])
def test_a_folder_refuses_another_training(data, tmp_path, change, named):
    "Data, settings, seed, model and preset; the target's scenario does not touch pretraining"
    config, other = Config("camel", "smoke", train=(("steps", 4),)), data
    pretrain(config, data, tmp_path, quiet=True)
    change = dict(change)
    if "data" in change: other = load_data("smoke", CamelSets(**change.pop("data")))
    if named is None: assert pretrain(config, other, tmp_path, quiet=True).steps == 4
    else:
        if change.get("preset"):
            change |= dict(train=tuple(vars(PRESETS["smoke"].train).items()) + (("steps", 4),), weights="none")
        with pytest.raises(ValueError, match=f"holds another training.*'{named}'"):
            pretrain(Config(**{**dict(variant="camel", preset="smoke", train=(("steps", 4),)), **change}), other,
                     tmp_path, quiet=True)


def test_fine_tuning_refuses_another_target_and_another_start(data, tmp_path):
    "What is tuned, on what, from which weights, with which settings: each difference is named"
    def run(variant="camel", other=data, **train):
        config = Config(variant, "smoke", train=tuple(dict(steps=2, ft_steps=6, **train).items()))
        start = pretrain(config, data, quiet=True)
        return finetune(config, start, other, tmp_path, quiet=True)
    run()
    street = load_data("smoke", CamelSets(scenario="street"))
    for kw, named in ((dict(other=street), "images"), (dict(ft_lr=.1), "ft_lr"),
                      (dict(variant="st"), "method"), (dict(lr=.1), "after")):
        with pytest.raises(ValueError, match=f"holds another training.*'{named}'"): run(**kw)


def test_a_run_folder_refuses_other_scores(tmp_path):
    "Zero-shot on another target or split would replace the Embeddings of the first"
    def run(**kw): return run_variant("base", "smoke", keep=tmp_path, finetuned=False, train=dict(steps=2), **kw)
    first = run()
    for kw, named in ((dict(split="val"), "split"), (dict(scenario="street"), "target")):
        with pytest.raises(ValueError, match=f"holds other scores.*'{named}'"): run(**kw)
    assert load_run(tmp_path/"base-0-steps=2", ["pretrained"])["row"] == first
    again = run()
    timeless = lambda row: {k: v for k, v in row.items() if not k.endswith("_s")}
    assert timeless(again) == timeless(first)
    assert [p for p in tmp_path.rglob(".*")] == []


def test_a_run_is_opened_at_its_own_size(tmp_path):
    "The folder says which model it holds; the caller names no preset"
    run_variant("base", "smoke", keep=tmp_path, train=dict(steps=2, ft_steps=2))
    back = load_run(tmp_path / "base-0-steps=2-ft_steps=2", ["pretrained", "finetuned"])
    assert back["finetuned"].size == back["pretrained"].size == (64, 32)
    with pytest.raises(ValueError, match="models='tuned'"): load_run(tmp_path / "base-0-steps=2-ft_steps=2", ["tuned"])
    with pytest.raises(ValueError, match="image queries|captions"): load_data("smoke", CamelSets("market1501"))


@pytest.mark.parametrize("study", STUDIES)
def test_every_setting_of_every_study_is_a_config(study):
    frame = settings_frame(STUDIES[study], TITLES)
    assert frame.variant.is_unique and len(frame) == len(STUDIES[study].settings)
    for s in STUDIES[study].settings:
        a = run_arguments(s)
        how = {k: tuple(a[k].items()) for k in ("train", "meta")}
        config = Config(a["method"], "smoke", weights=a["weights"], **how)
        assert all(config.describe()[k] == v for k, v in s.items() if k not in ("name", "lr"))
        assert config.budget.train.lr == s.get("lr", PRESETS["smoke"].train.lr)
    for printed in STUDIES[study].printed: assert STUDIES[find_study(STUDIES, printed)].printed.count(printed) == 1


def test_reranking_only_reorders_the_first(data):
    torch.manual_seed(0)
    model = create_model("camel_tiny", tokenizer=data.tokenizer, size=(64, 32))
    e = evaluate(model, data.target, "val", 4)
    for a, b in zip(e["itc_top"][:50], e["itm_top"][:50]):
        assert set(a[:4]) == set(b[:4]) and np.array_equal(a[4:], b[4:])


def test_a_gallery_is_read_once_for_both_ways_to_rank(data, monkeypatch):
    "Embeddings and tokens come from one pass; numbers are those of a pass each, and of any number of pairs at a time"
    torch.manual_seed(0)
    model = create_model("camel_tiny", tokenizer=data.tokenizer, size=(64, 32)).eval()
    gallery, n_read = data.target.gallery("val"), []
    states = type(model).image_states
    def counted(self, img):
        n_read.append(len(img))
        return states(self, img)
    monkeypatch.setattr(type(model), "image_states", counted)
    e = evaluate(model, data.target, "val", 4)
    assert sum(n_read) == len(gallery)
    apart = embed_images(model, gallery, quiet=True)
    assert torch.equal(e["g"].emb, apart.emb) and e["g"].table().equals(apart.table()) and e["g"].meta == apart.meta
    assert e["g"].emb.device.type == "cpu" and not e["g"].emb.is_inference()

    matcher = Matcher(model, gallery, e["q"].caption)
    one, many = (rerank_itm(e["q"], e["g"], matcher, k_test=4, batches=MatchBatches(n)) for n in (7, 1024))
    assert matcher.batches.pairs < 1024 and torch.allclose(one.logit, many.logit, atol=1e-5)


@pytest.mark.parametrize("layers", [1, 2])
def test_matching_with_keys_made_once_an_image(data, layers):
    "The logits of pairs whose tokens are read anew; where keys are larger, tokens are kept"
    torch.manual_seed(0)
    model = create_model("camel_tiny", tokenizer=data.tokenizer, size=(64, 32), layers=layers).eval()
    gallery, captions = data.target.gallery("val"), data.target.text_queries("val").caption
    matcher = Matcher(model, gallery, captions)
    assert isinstance(matcher.image_tokens, ImageKeys) == (layers == 1)
    query, image = np.repeat(np.arange(6), 5), np.arange(30)*7 % len(gallery)
    with torch.inference_mode():
        emb, tokens = model.image_states(image_pixels(model, gallery, range(len(gallery))))
        _, states, mask = model.text_states(tokenize(data.tokenizer, captions.tolist()[:6]))
        anew = model.cross(states[query], mask[query], tokens[image])
        logits = model.match(model.pool_text(anew, mask[query]))[:, 1]
    assert torch.allclose(matcher(query, image), logits, atol=1e-5)
    assert matcher(query, image).std() > 0


def test_statistics_of_batchnorm_need_the_images_alone(data, monkeypatch):
    "The short way of `refresh_batchnorm` gives every layer what whole training steps give it, to the last bit"
    torch.manual_seed(0)
    short = create_model("camel_tiny", tokenizer=data.tokenizer, size=(64, 32))
    whole = copy.deepcopy(short)
    loader = train_loader(Config("camel", "smoke"), data.source, data.tokenizer, short.size, 0)
    with monkeypatch.context() as m:
        m.setattr(type(short), "forward", None)     # losses are not computed
        refresh_batchnorm(short, loader, n=3)
    with monkeypatch.context() as m:
        m.delattr(type(whole), "forward_norms")
        refresh_batchnorm(whole, loader, n=3)
    a, b = short.state_dict(), whole.state_dict()
    assert all(torch.equal(a[name], b[name]) for name in a)
    counts = [int(a[name]) for name in a if name.endswith("num_batches_tracked")]
    assert counts and set(counts) == {3}


def test_statistics_in_16_bits_are_those_of_the_wrapped_forward(data):
    "Accelerate wraps `forward` alone: the short way would estimate them in another precision than training sees"
    torch.manual_seed(0)
    model = create_model("camel_tiny", tokenizer=data.tokenizer, size=(64, 32))
    seen = []
    model._original_forward = model.forward
    model.forward = lambda batch: seen.append(len(batch["img"]))
    refresh_batchnorm(model, train_loader(Config("camel", "smoke"), data.source, data.tokenizer, model.size, 0), n=2)
    assert len(seen) == 2


def test_seconds_of_a_variant_are_those_of_its_parts():
    "Means over seeds in the order of the variants; what an earlier version did not keep is unknown, not nought"
    rows = pd.DataFrame(dict(setting=["+ ST", "+ ST", "CAMeL"], seed=[0, 1, 0], train_s=[10., 12., 20.],
                             wall_s=[30., 40., 50.]))
    found = camel_report.seconds_table(rows)
    assert found.index.tolist() == ["+ ST", "CAMeL"] and found["fine-tuning"].tolist() == [0, 0]
    assert found.loc["+ ST", ["pretraining", "tests", "in all"]].tolist() == [11, 24, 35]
    tuned = camel_report.seconds_table(rows.assign(images_seen_ft=1, train_s_ft=[1., 3., 5.]))
    assert tuned["fine-tuning"].tolist() == [2, 5] and tuned.tests.tolist() == [22, 25]
    assert camel_report.seconds_table(rows.assign(images_seen_ft=1))[["fine-tuning", "tests"]].isna().all(None)


def test_strategies_have_the_papers_order(data):
    strategy, _ = make_strategy(Config("camel", "smoke"), data.tokenizer)
    assert [t.name for t in strategy.tasks] == ["illumination", "blur", "memory"] and strategy.every == 6
    assert strategy.tasks[2].memory.capacity == PRESETS["smoke"].train.batch_size


RECIPES = dict(run_camel=camel, run_dart3=dart3, run_dmg=dmg, run_cfam=cfam, run_cfan=cfan)


@pytest.mark.parametrize("name", RECIPES)
def test_the_notebook_draws_what_its_studies_show(name):
    "Every figure that a study names is asked for by the experiment of its recipe, and by no other name"
    cells = json.loads((ROOT/"nbs"/"experiments"/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    if name == "run_camel": source += inspect.getsource(camel_report)
    drawn = set(re.findall(r"draws\('([^']+)'\)", source))
    shown = {figure for study in RECIPES[name].STUDIES.values() for figure in study.shows}
    assert drawn == shown <= set(FIGURES) and ".shows" not in source


def test_a_misspelt_figure_is_refused_where_the_study_is_defined():
    message = r"shows='ranked list' is not known; choose one of \['ranked lists', .*Did you mean 'ranked lists'"
    with pytest.raises(ValueError, match=message): Study("typo", (), shows=("ranked list",))
    with pytest.raises(ValueError, match="shows='maps' must be a tuple"): Study("no tuple", (), shows="maps")
    with pytest.raises(ValueError, match="figure='map' is not known"): Study("", (), shows=("maps",)).draws("map")


@pytest.mark.parametrize("name", sorted(p.stem for p in (ROOT/"nbs"/"experiments").glob("*.ipynb")))
def test_experiments_take_no_label_apart(name):
    "They name settings by their fields; what joins rows or cuts paths is in a module, where it can be tested"
    cells = json.loads((ROOT/"nbs"/"experiments"/f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
    taken_apart = r"json\.dumps|variant\.str|rpartition\(|split\('[^']*(?:=|->)|\[len\(str"
    assert not re.findall(taken_apart, source)
    for call in re.findall(r"(?:run|log)\.record\((.*?)\)\n", source, re.DOTALL):
        assert "variant=" not in call and ("setting=" in call or "stored_row" in call or call.startswith("**row"))


def test_rates_of_new_parts_and_the_form_of_captions(data, monkeypatch):
    "The factor reaches the optimiser; every caption has the form of the preset, in training and in the test"
    seen = {}
    def fit(model, loader, *a, new_mult, **kw):
        seen.update(new_mult=new_mult, loader=loader)
        raise KeyboardInterrupt
    monkeypatch.setattr(camel, "fit", fit)
    config = Config("base", "smoke", train=(("new_mult", 2.),))
    with pytest.raises(KeyboardInterrupt): camel.pretrain(config, data, quiet=True)
    assert seen["new_mult"] == 2.
    forms = {name: p.clean for name, p in PRESETS.items()}
    assert forms == dict(smoke="letters", quick="letters", full="letters", paper="plain")
    assert data.tokenizer.clean == "letters"
    said = ["A man\u2019s caf\u00e9, 3 bags.", "the lady wears a long coat"]
    for clean, text in (("letters", "a mans cafe bags"), ("plain", "a man s cafe 3 bags")):
        words = WordPiece.train(["a man s mans cafe 3 bags the lady wears coat"]*3, 200, 20, clean=clean)
        train, test = tokenize(words, said), words(said)
        assert words.ids(said[0]) == words.ids(text) and torch.equal(train, test[:, :train.shape[1]])


def test_every_caption_of_the_second_view_is_augmented(data):
    "The parent changes a half of them; the view can come first"
    said = [c for cs in data.source["captions"] for c in cs][:200]
    plain = tokenize(data.tokenizer, said)
    for first in (False, True):
        batch = dict(caption=said, tokens=plain)
        camel.second_view(data.tokenizer, first)(batch, stream(0, "view"))
        view, clean = (batch["tokens"], batch["tokens_eda"]) if first else (batch["tokens_eda"], batch["tokens"])
        assert torch.equal(clean, plain)
        same = [data.tokenizer.decode(a) == data.tokenizer.decode(b) for a, b in zip(view, plain)]
        assert np.mean(same) < .25


def test_arguments_of_the_last_release(data):
    with pytest.warns(DeprecationWarning, match="world_seed= belongs into sets=CamelSets"):
        before = load_data("smoke", world_seed=1, weights="none")
    now = load_data("smoke", CamelSets(world_seed=1), weights="none")
    assert before.target.frame.equals(now.target.frame) and before.tokenizer.vocab == now.tokenizer.vocab
    assert len(load_data("smoke", "world").target) == len(data.target)
    config, after = Config("base", "smoke"), dict(after="x")
    plan = camel.PhasePlan(data.target, 2, 1e-4, seed=3, finetuning=True, after=after, label="short")
    keys = [camel.train_phase(config, create_model("camel_tiny", size=(64, 32), tokenizer=data.tokenizer), data, plan,
                              quiet=True).key]
    with pytest.warns(DeprecationWarning, match="belong into a PhasePlan"):
        model = create_model("camel_tiny", size=(64, 32), tokenizer=data.tokenizer)
        keys.append(camel.train_phase(config, model, data, data.target, 2, 1e-4, camel.Plain(), seed=3, after=after,
                                      finetuning=True, label="short", quiet=True).key)
    assert keys[0] == keys[1]
