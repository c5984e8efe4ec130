"""`run --plan`: the length of each training, what a step takes, and switches that were tried first."""
import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch.profiler import ProfilerActivity, profile

from reid_lab.cli.commands import main
from reid_lab.datasets.image_sets import tiny_table, write_images
from reid_lab.experiments.notebooks import experiments
from reid_lab.meta.clothes import CALStep
from reid_lab.recipes import finetune as ft, price as module
from reid_lab.recipes.arms import arm_settings, arm_world, train_arm
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.conditions import STUDIES as CONDITIONS
from reid_lab.recipes.preflight import PLANS
from reid_lab.recipes.price import LADDER, PRICED, camel_job, opening_lines, price_lines, price_run, propose, reid_job
from reid_lab.recipes.reid import ReidTrain
from reid_lab.recipes.starts import STARTS, start_table
from reid_lab.recipes.unsupervised import UNSUPERVISED_PRESETS, train_unsupervised, unsupervised_table
from reid_lab.training.options import Execution
from reid_lab.training.step_price import GPUS, Gpu, price_step, train_steps
from reid_lab.world.plan import PRESETS as WORLDS

pytestmark = pytest.mark.usefixtures("no_user_settings")
ASKED = dict(preset="smoke", study="main", dataset="world", data_root="", source="world", source_root="", model="",
             weights="none", methods=[], seeds=1, device="")


def priced(name, execution=Execution(), **changes):
    own = {} if name in ("camel", "cfan", "dart3") else dict(dataset="")
    return price_run(name, SimpleNamespace(**{**ASKED, **own, **changes}), execution)


def measured(job):
    "Bytes at the peak of what torch's CPU allocator gave out in two real steps"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen: train_steps(job, {})
    events = seen.profiler.kineto_results.events()
    now = peak = 0
    for _, size in sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"):
        now += size
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("job", [reid_job(ReidTrain(batch_size=32), 60), camel_job(Config(preset="smoke"))],
                         ids=["bot_tiny", "camel_tiny"])
def test_memory_of_recipes_is_what_torch_allocates(job):
    "Strategy, optimiser and losses with it; six models: benchmarks/step_memory.py"
    assert .85 < price_step(job).memory/measured(job) < 1.15


METHODS = dict(camel=["base", "camel"], cfam=["cfam"], cfan=["cfan"], dart3=[], dmg=["bot", "dmg"])


@pytest.mark.parametrize("name", PLANS)
def test_every_training_has_a_price_and_the_images_of_the_plan(name):
    own = dict(methods=METHODS[name])
    price = priced(name, **own)
    if name in ("cfam", "dmg"): own["dataset"] = ""
    plan = PLANS[name](SimpleNamespace(**{**ASKED, **own}))
    assert not price.unpriced and len(price.trainings) == sum(part.images > 0 for part in plan.parts)
    seen = sum(training.images for training in price.trainings)
    assert seen == plan.images == sum(part.images for part in plan.parts)
    assert all(training.steps*training.step.images == training.images for training in price.trainings)
    assert {training.step.device for training in price.trainings} == {"cpu"}


def test_processes_share_a_batch_and_switches_are_priced():
    one, two = priced("dart3"), priced("dart3", Execution(processes=2))
    assert two.dearest.step.images*2 == one.dearest.step.images and two.dearest.steps == one.dearest.steps
    assert two.hours(GPUS["t4"], share=1e-5) < .6*one.hours(GPUS["t4"], share=1e-5)     # the card computes all the time
    assert priced("dart3", Execution(speed="bf16")).hours(GPUS["t4"]) is None
    assert "take fp16" in "\n".join(price_lines(priced("dart3", Execution(speed="bf16")), ["t4"]))


def test_proposals_were_tried(monkeypatch):
    "Each is priced; what a strategy refuses, or does not divide the batch, is not proposed"
    seen = []
    def noted(job, switches, device):
        seen.append(switches)
        return price_step(job, switches, device)
    monkeypatch.setattr(module, "price_step", noted)
    training = priced("dmg", methods=["dmg"]).dearest
    seen.clear()
    tried = propose(training, Gpu("none", 0, 1., 1., 1., "made up"), {})
    assert [proposal.switches for proposal in tried] == [x for x in seen if x in [p.switches for p in tried]]
    refused = {"accumulate", "checkpointing", "gradcache"}
    assert tried and not refused & {name for switches in seen for name in switches}
    assert {next(iter(extra)) for extra in LADDER} >= refused


def test_what_fits_is_said_with_the_switches_that_make_it_fit():
    price = priced("dart3")
    step = price.dearest.step
    small = replace(price.trainings[0], step=replace(step, device="cpu", memory=20*2**30))
    lines = "\n".join(price_lines(replace(price, trainings=(small,)), ["t4", "a100"]))
    assert "T4" in lines and "does not fit (20.0 GiB" in lines and "fits T4 with --speed fp16" in lines


def test_a_run_opens_with_its_price_and_none_is_stopped_by_it():
    assert opening_lines("dart3", SimpleNamespace(**ASKED)) == []
    wrong = SimpleNamespace(**{**ASKED, "preset": "full", "study": "no such"})
    assert "is not known: ValueError" in opening_lines("dart3", wrong)[0]


class Begun(BaseException):
    "The run itself would begin"


def test_a_long_run_that_is_typed_opens_with_its_price_and_a_short_one_does_not(capsys, monkeypatch, tmp_path):
    "The run is stopped where its kernel would start"
    def begin(*arguments): raise Begun

    monkeypatch.setattr("reid_lab.experiments.notebooks.run_notebook", begin)
    words = ["run", "dart3", "-p", "model=bot_tiny", "-p", "weights=none", "-p"]
    with pytest.raises(Begun): main([*words, "preset=full"])
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("price of run_dart3 at preset full") and any("A100" in line for line in rest)
    own = tiny_table(24, 4, 0)
    write_images(own, tmp_path, [f"{path}.jpg" for path in own["path"]])
    words_of_own = ["run", "finetune", "-p", f"data_root={tmp_path}", "-p", "folders=identity", "-p", "model=bot_tiny"]
    with pytest.raises(Begun): main([*words_of_own, "-p", "preset=full", "-p", "device=cpu"])
    assert capsys.readouterr().out.startswith("price of run_finetune at preset full")
    with pytest.raises(Begun): main([*words, "preset=smoke"])
    assert "price of" not in capsys.readouterr().out
    assert main(["run", "dart3", "-p", "preset=full"]) == 2     # its weights are missing: refused before it is priced
    assert "price of" not in capsys.readouterr().out


def test_the_command_line(capsys):
    assert main(["run", "dart3", "--plan", "--preset", "smoke", "--gpu", "a100", "--share", ".5"]) == 0
    said = capsys.readouterr().out
    assert "price of run_dart3 at preset smoke" in said and "50% of the peak" in said and said.count("SXM") == 1
    for words, says in ((["--gpu", "a10"], "Did you mean 'a100'"), (["--share", "30"], "at most 1")):
        assert main(["run", "dart3", "--plan", "--preset", "smoke", *words]) != 0
        assert says in capsys.readouterr().err
    for words in (["--gpu", "t4"], ["--share", ".5"]):      # no plan is asked for, and no run begins
        assert main(["run", "dart3", "--preset", "smoke", *words]) != 0
        assert f"{words[0]} is of --plan" in capsys.readouterr().err
    assert main(["run", "attention_maps", "--plan"]) != 0
    assert "Leave --plan out" in capsys.readouterr().err


# ---- trainings outside PLANS

FINETUNE = dict(preset="smoke", data_root="", folders="", pattern="", model="", weights="", epochs=0, lr=0., freeze=0.,
                lora=0, layer_decay=0., severity=1.2, seed=0, repeats=0, device="")


def test_fine_tuning_is_priced_by_the_steps_that_it_takes():
    "At most: here nothing ends an epoch early"
    price = price_run("finetune", SimpleNamespace(**FINETUNE))
    crops = ft.load_source(ft.Source(preset="smoke")).crops
    s = ft.finetune_settings("smoke")
    parts = [part for some in ft.divisions(crops, s.folds, s.repeats) for part in some]
    done = ft.finetune(crops, parts[1], s, seed=1).done
    assert ft.budget_of(crops, parts[1], s, seed=1).steps == done.steps
    assert price.trainings[0].name == f"{len(parts)} divisions, at most" and not price.unpriced
    assert price.trainings[0].images == sum(b.batch_size*b.steps for b in
                                            (ft.budget_of(crops, part, s, i) for i, part in enumerate(parts)))
    assert price.trainings[1].name == "kept model, at most" and price.trainings[1].images


@pytest.mark.skipif(not importlib.util.find_spec("peft"), reason="peft, the extra lora, is not installed")
def test_adapters_are_priced_as_they_train():
    own = dict(FINETUNE, model="transreid_tiny")
    whole, adapted = (price_run("finetune", SimpleNamespace(**own | more)) for more in ({}, dict(lora=4)))
    assert not adapted.unpriced
    assert adapted.dearest.step.parameters > whole.dearest.step.parameters
    assert adapted.dearest.step.flops < 1.2*whole.dearest.step.flops


@pytest.mark.parametrize("study", ["bot_tiny", "transreid_tiny", "camel_tiny"])
def test_starting_points_are_priced(study):
    price = price_run("starts", SimpleNamespace(preset="smoke", study=study, steps=7, seeds=2))
    training, = price.trainings
    assert training.steps == 14 and not price.unpriced and training.step.parameters > 1e5
    two = price_run("starts", SimpleNamespace(preset="smoke", study=study, steps=7, seeds=2), Execution(processes=2))
    assert two.dearest.step.images*2 == training.step.images and two.dearest.steps == 14


def test_the_people_of_a_starting_point_are_those_of_its_worlds():
    start = replace(STARTS["bot_tiny"], worlds=(500, 501))
    assert start_table(start, "smoke")["pid"].nunique() == 2*module._people_of(WORLDS["smoke"]["reid"])


def test_a_plan_of_finetune_and_starts_is_printed(capsys):
    assert main(["run", "starts", "--plan", "-p", "preset=smoke", "-p", "study=bot_tiny", "--gpu", "t4"]) == 0
    assert "bot_tiny, 1 seed(s)" in capsys.readouterr().out
    assert main(["run", "finetune", "--plan", "-p", "preset=smoke", "--gpu", "t4"]) == 0
    assert "kept model, at most" in capsys.readouterr().out
    assert main(["run", "attention_maps", "--plan"]) == 2 and "finetune, starts" in capsys.readouterr().err
    words = ["-p", "preset=smoke", "-p", "lora=4"]      # a network of convolutions has nothing that adapters are for
    assert main(["run", "finetune", "--plan", *words]) == 1 and "no linear layers" in capsys.readouterr().out


# Experiments without a price: they train nothing, or a model of a tutorial's size whatever the preset
UNPRICED = {"attention_maps", "camera_bias", "caption_cot", "failure_browser", "marked_search", "text_granularity",
            "word_masking"}


def test_every_experiment_is_priced_or_named_here(): assert {*experiments()} == set(PRICED) | UNPRICED


CONDITION = dict(preset="smoke", study="clothes", model="", weights="", methods=[], seeds=2, device="")


def test_the_arms_of_a_comparison_are_priced_as_they_are_trained():
    study, price = CONDITIONS["clothes"], price_run("conditions", SimpleNamespace(**CONDITION))
    assert [training.name for training in price.trainings] == ["BoT", "+ CAL"] and not price.unpriced
    assert isinstance(price.trainings[1].job.strategy(), CALStep) and price.trainings[1].job.strategy().begin == 0
    setting = dict(name="cal")
    done = train_arm(study, setting, arm_world(study, "smoke").table(), "smoke", weights="none")
    assert price.trainings[1].images == 2*done.images
    plain, cal = (training.step for training in price.trainings)
    assert cal.launches > plain.launches and cal.flops > plain.flops and cal.parameters == plain.parameters
    two = price_run("conditions", SimpleNamespace(**CONDITION), Execution(processes=2))
    assert two.dearest.step.images*2 == cal.images and two.dearest.steps == price.dearest.steps


def test_rates_of_an_arm_are_one_line():
    own = dict(CONDITION, study="infrared_rates", methods=["centre", "both"])
    price = price_run("conditions", SimpleNamespace(**own))
    s = arm_settings(CONDITIONS["infrared_rates"], dict(name="centre"), "smoke")
    assert len(price.trainings) == 2 and not price.unpriced
    assert price.trainings[0].images == 2*2*s.steps*s.batch_size          # two rates, two seeds


def test_arms_that_share_a_training_are_priced_once():
    own = dict(CONDITION, study="occluded", methods=["plain", "stripes", "known"])
    price = price_run("conditions", SimpleNamespace(**own))
    s = arm_settings(CONDITIONS["occluded"], dict(name="plain"), "smoke")
    assert [(training.name, training.images) for training in price.trainings] == [("BoT", 2*s.steps*s.batch_size)]
    alone = price_run("conditions", SimpleNamespace(**dict(own, methods=["visible"])))
    assert alone.trainings[0].images == price.trainings[0].images


def test_training_without_labels_is_priced_as_if_clusters_were_people():
    asked = dict(preset="smoke", study="main", dataset="world", data_root="", model="", weights="", epochs=0, seeds=1,
                 device="")
    price = price_run("unsupervised", SimpleNamespace(**asked))
    training, = price.trainings
    done, strategy = train_unsupervised(unsupervised_table("smoke"), "smoke", labels="people", quiet=True)
    assert training.images == 3*done.images and not price.unpriced
    assert training.job.make().dim == strategy.centres.shape[1]
    assert .85 < training.step.memory/measured(training.job) < 1.15
    assert training.name == "3 ways, 1 seed(s), about"
    market = price_run("unsupervised", SimpleNamespace(**asked | dict(dataset="market1501")))
    batch, epochs = UNSUPERVISED_PRESETS["smoke"].batch_size, UNSUPERVISED_PRESETS["smoke"].epochs
    assert market.trainings[0].images == 3*epochs*(751*20//batch*batch)      # 17.2 images a person, filled up to 20
    assert "clusters of each epoch" in price_lines(price, ["t4"])[-1]
