"""Every parameter of every experiment is refused before a kernel starts, and every good value passes."""
import importlib
import math
import subprocess
import sys

import numpy as np
import pytest

from reid_lab.core.basics import pick_device
from reid_lab.core.declared import declared
from reid_lab.datasets.export import export_world
from reid_lab.experiments.notebooks import check_before_run, experiments, run_notebook
from reid_lab.experiments.params import notebook_params
from reid_lab.recipes import names
from reid_lab.recipes.names import NUMBERS
from reid_lab.recipes.parameters import CHECKS, check_run
from reid_lab.recipes.study import printed_names
from reid_lab.world.world import World

EXPERIMENTS = experiments()
# any text, or tested elsewhere
FREE = {"question", "by", "tags", "records", "out_dir", "install", "execution", "suffix"}
NOT_A_NAME = "wrld"
BAD = {  # parameter -> values that no experiment takes
    "preset": ["quik", "", "paperr"], "study": ["mian", ""], "methods": ["dart4", "mean, nobody"],
    "dataset": [NOT_A_NAME, "market1501x", "mixed C", "->", "a->b"], "data_root": ["/nowhere"],
    "source": [NOT_A_NAME], "source_root": ["/nowhere"], "model": ["resnet51", "bot_tinny", "/nowhere"],
    "weights": ["nope", "/nowhere/w.pt"],
    "device": ["tpu", "cuda:x", "auto:1", "gpu"], "seed": [-1, 2**32, 10**20], "seeds": [-1, 10**9],
    "n_jobs": [-1, 10**20], "world_seed": [-2, 2**40], "seen": ["x", "0,0", "0;1"], "scene": ["skewed"],
    "severity": [-.1, math.nan, math.inf, 3.], "models": ["/nowhere", "bot_tinny"], "steps": [-1], "worlds": [-1],
    "persons": [-1], "draws": [-1], "masked": [1, -3], "variant": ["mask"], "run": ["/nowhere"],
    "query": ["/nowhere.npz"], "gallery": ["/nowhere.npz"], "method": ["DART4", "cfamm"], "tau": [0., -1., math.nan],
    "k": [0, -1],
    "rate": [0., -1., math.nan], "batch": [0], "map": ["umapp"], "queries": ["both"], "images": ["/nowhere"],
    "same_camera": ["maybe"],
    "auditor": ["/nowhere"], "threshold": [-.1, 1.1, math.nan], "retries": [-1],
    "train_on": ["rough"], "tests": ["rough"], "folders": ["identity"], "pattern": ["(?P<pid>x)"],
    "epochs": [-1, 10**9], "lora": [-1, 10**6], "layer_decay": [-.1, 1.1, math.nan],
    "lr": [-1., math.nan, 11.], "freeze": [-.1, 1., math.nan], "repeats": [-1, 10**6],
    "protocol": [NOT_A_NAME, "sysu.al"], "draw": [-1, 10**6],
    "marks": [0, -1], "rounds": [0, -1], "order": ["worst"], "right": [-1., math.nan], "wrong": [-.1, math.inf]}
CASES = [(name, parameter, value) for name, x in EXPERIMENTS.items() for parameter in x.parameters
         if parameter not in FREE for value in BAD[parameter]]


def test_every_experiment_and_parameter_is_in_the_table():
    assert set(CHECKS) == set(EXPERIMENTS)
    assert {p for x in EXPERIMENTS.values() for p in x.parameters} <= set(BAD) | FREE
    assert set(NUMBERS) <= set(BAD)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_defaults_pass(name):
    check_run(name, notebook_params(EXPERIMENTS[name].path, {}), quiet=True)


@pytest.mark.parametrize("name, parameter, value", CASES, ids=lambda v: str(v)[:20])
def test_a_bad_value_is_refused(name, parameter, value):
    x = EXPERIMENTS[name]
    with pytest.raises((ValueError, OSError)) as caught: check_before_run(x.path, {parameter: value})
    assert "\n" not in str(caught.value) or "cannot begin" in str(caught.value) or "invalid values" in str(caught.value)


@pytest.mark.parametrize("name", [n for n, x in EXPERIMENTS.items() if x.studies])
def test_every_study_passes(name):
    "At the sizes that need neither data nor a GPU"
    x = EXPERIMENTS[name]
    for study in x.studies:
        for preset in ("smoke", "quick"):
            given = dict(study=study, preset=preset)
            if name == "camel" and study == "transfer": continue  # two datasets on disk
            check_run(name, notebook_params(x.path, given), quiet=True)


def test_a_refused_run_leaves_no_folder(tmp_path):
    with pytest.raises(ValueError, match="Did you mean 'skew'"): run_notebook("dart3", tmp_path/"out", scene="skewed")
    assert not (tmp_path/"out").exists()


def test_a_severity_that_has_no_effect_is_refused():
    path = EXPERIMENTS["dart3"].path
    with pytest.raises(ValueError, match="severity=0.6 has no effect on scene='views'.*leave it at 0.4"):
        check_before_run(path, dict(scene="views", severity=.6))
    check_before_run(path, dict(scene="views"))


@pytest.mark.parametrize("dataset, seen, says", [
    ("market1501-5", "", "such as seen=0,1"), ("market1501-9", "", "cameras"), ("market1501-2", "", None),
    ("market1501", "0,1", None)])
def test_cameras_that_a_dataset_lacks_are_said_before_the_run(tmp_path, dataset, seen, says):
    table = World("smoke", task="reid").table()
    table = table.where(cam=sorted(set(table.frame.cam))[:3], split=["train", "test"])
    export_world(table, "market1501", tmp_path/"market", renumber=True)
    given = dict(preset="smoke", dataset=dataset, seen=seen, data_root=str(tmp_path/"market"))
    path = EXPERIMENTS["dart3"].path
    if says is None: return check_before_run(path, given)
    with pytest.raises(ValueError, match=says): check_before_run(path, given)


@pytest.mark.parametrize("text, says", [
    ('data_root = "C:\\data"', "single quotes"), ("data_root = 5", "must be a folder"), ("data_root", "can be read")])
def test_a_settings_file_that_cannot_be_read_is_said(tmp_path, monkeypatch, text, says):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("REID_LAB_DATA", raising=False)
    (tmp_path/".reid_lab.toml").write_text(text)
    with pytest.raises(ValueError, match=says): check_run("cfan", notebook_params(
        EXPERIMENTS["cfan"].path, dict(dataset="tbapr")))


def test_remedies_of_a_run_are_options_of_it(tmp_path):
    table = World("smoke", task="reid").table().where(split=["train", "test"])
    folder = export_world(table, "market1501", tmp_path/"market", renumber=True)
    (tmp_path/"market"/"query"/"holiday.jpg").write_bytes(next((tmp_path/"market"/"query").glob("*.jpg")).read_bytes())
    given = dict(preset="smoke", dataset="market1501-2", data_root=str(tmp_path/"market"))
    with pytest.raises(ValueError) as caught: check_before_run(EXPERIMENTS["dart3"].path, given)
    assert "holiday.jpg" in str(caught.value) and "=True" not in str(caught.value), folder


def test_a_name_that_differs_in_case_is_named(tmp_path):
    from PIL import Image

    from reid_lab.data.images import read_image
    Image.new("RGB", (8, 16)).save(tmp_path/"A.JPG")
    with pytest.raises(ValueError, match="A.JPG' does, which differs in capital letters"): read_image(tmp_path/"a.jpg")


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    "Files and folders that are there and are not what is wanted"
    root = tmp_path_factory.mktemp("things")
    (root/"empty").mkdir()
    for name in ("text.pt", "text.npz", "tags.json", "tags.txt"): (root/name).write_text("no content of that kind")
    (root/"table.csv").write_text("a,b\n1,2\n")
    return root


WRONG = [("dart3", dict(models="empty"), "no finished training of seed 0"),
         ("dart3", dict(models="table.csv"), "no finished training"),
         ("dart3", dict(weights="text.pt"), "is text"), ("dmg", dict(weights="empty"), "config.json"),
         ("dart3", dict(dataset="table.csv", seen="0"), "no camera labels"),
         ("dmg", dict(dataset="table.csv"), "column"),
         ("attention_maps", dict(models="empty"), "0 finished models"),
         ("word_masking", dict(models="empty"), "0 finished models"),
         ("word_masking", dict(dataset="cuhk-pedes", data_root="empty"), "cannot be read"),
         ("camera_bias", dict(run="empty"), "queries and gallery"), ("camera_bias", dict(run="table.csv"), "queries"),
         ("camera_bias", dict(query="text.npz", gallery="text.npz"), "text.npz"),
         ("failure_browser", dict(run="empty"), "holds no Embeddings"),
         ("failure_browser", dict(tags="tags.json"), "damaged"), ("failure_browser", dict(tags="tags.txt"), "ending"),
         ("failure_browser", dict(images="table.csv"), "is a file"),
         ("caption_cot", dict(images="empty", model="empty"), "no config.json"),
         ("caption_cot", dict(records="empty"), "is a folder"),
         ("caption_cot", dict(records="table.csv/captions.jsonl"), "is a file")]


@pytest.mark.parametrize("name, given, says", WRONG)
def test_what_is_there_and_is_not_what_is_wanted_is_refused(name, given, says, things):
    paths = {k: v if k in ("seen",) or v == "cuhk-pedes" else str(things/v) for k, v in given.items()}
    with pytest.raises((ValueError, OSError), match=says): check_before_run(EXPERIMENTS[name].path, paths)


@pytest.mark.parametrize("name, given, says", [
    ("dart3", dict(model="frozen:nope", weights="none"), "tower='nope'"),
    ("dmg", dict(model="frozen", weights="none"), "named with its tower"),
    ("camel", dict(model="frozen_pair:nope", weights="none"), "pair='nope'"),
    ("dart3", dict(seen="99"), "cameras of dataset='world'"),
    ("dart3", dict(seen="0,1,2,3,4,5,6,7,8"), "at least one out"),
    ("dart3", dict(study="source", seen="0,1"), "studies on new cameras"),
    ("dart3", dict(seed=498, seeds=3), "trained on already"), ("camel", dict(world_seed=500), "trained on already"),
    ("dmg", dict(seed=500), "trained on already"), ("text_granularity", dict(seed=500), "trained on already"),
    ("attention_maps", dict(world_seed=499, worlds=2), "trained on already"),
    ("word_masking", dict(world_seed=500), "trained on already"), ("camera_bias", dict(seed=500), "trained on already"),
    ("failure_browser", dict(seed=500), "trained on already"), ("caption_cot", dict(seed=500), "trained on already"),
    ("dart3", dict(seed=2**32 - 2, seeds=5), "the last must be"), ("starts", dict(seed=2**32 - 1), "the last must be"),
    ("camera_bias", dict(draw=2), "draw=2 is of a protocol"), ("camera_bias", dict(protocol="sysu.al"), "sysu.all"),
    ("camera_bias", dict(protocol="sysu.all", draw=10), "draw=10"),
    ("camera_bias", dict(tau=math.inf), "tau"), ("camera_bias", dict(k=10**6), "k=1000000"),
    ("attention_maps", dict(models="bot_tiny", methods="queries"), "none of bot_tiny"),
    ("text_granularity", dict(execution="--speed accumulate=3"), "does not divide"),
    ("text_granularity", dict(preset="paper", weights="none"), "has no World"),
    ("dart3", dict(execution="--processes 100000000000000000000"), "from 1 to 1024"),
    ("cfan", dict(execution="--workers 100000000000000000000"), "from 0 to 1024")])
def test_values_that_only_the_code_behind_them_can_judge(name, given, says):
    with pytest.raises((ValueError, OSError), match=says): check_before_run(EXPERIMENTS[name].path, given)


@pytest.mark.skipif(pick_device() != "cpu", reason="there is a GPU")
@pytest.mark.parametrize("name", ["camel", "cfam", "cfan", "dart3", "dmg", "starts", "text_granularity"])
def test_devices_and_switches_that_a_machine_lacks(name):
    path = EXPERIMENTS[name].path
    with pytest.raises(ValueError, match="fp16 needs a GPU"): check_before_run(path, dict(execution="--speed fp16"))
    for device in ("cuda", "cuda:1", "mps") if "device" in EXPERIMENTS[name].parameters else ():
        with pytest.raises(ValueError, match="torch finds no"): check_before_run(path, dict(device=device))


LIGHT = [("dart3", "dataset=wrld"), ("dmg", "device=tpu"), ("camel", "source=wrld"), ("camel", "dataset=market1501"),
         ("cfan", "seed=-1"), ("word_masking", "dataset=viper"), ("dmg", "preset=quik"), ("dmg", "study=mian"),
         ("cfam", "study=table99"), ("dart3", "methods=dart4"), ("dart3", "scene=skewed"), ("dart3", "models=/nowhere"),
         ("camel", "methods=camle"), ("camel", "model=bot_tiny"), ("cfam", "model=bot_tiny"),
         ("cfan", "model=cfam_tiny"),
         ("cfan", "dataset=viper"), ("finetune", "model=osnt"), ("finetune", "preset=paper"),
         ("starts", "study=clip_tyni"),
         ("starts", "preset=full"), ("camera_bias", "map=umapp"), ("camera_bias", "method=DART4"),
         ("text_granularity", "method=cfamm"), ("text_granularity", "tests=rough"),
         ("attention_maps", "methods=gradcm"),
         ("attention_maps", "models=bot_tinny"), ("word_masking", "variant=mask"), ("caption_cot", "images=/nowhere"),
         ("failure_browser", "queries=both"), ("marked_search", "order=worst")]


def test_what_needs_no_model_is_refused_without_torch():
    "Imports are what a refusal costs: torch, and nbformat's checks of links, take seconds"
    heavy = ("torch", "torchvision", "papermill", "nbformat", "matplotlib")
    code = ("import sys; from reid_lab.cli.commands import main\n"
            f"for name, given in {LIGHT!r}:\n"
            "    assert main(['run', name, '-p', given]) == 2\n"
            f"    assert not {{*{heavy}}} & {{*sys.modules}}, given")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    said = done.stderr.splitlines()
    assert done.returncode == 0 and len(said) == len(LIGHT), done.stderr
    for (_, given), line in zip(LIGHT, said): assert given.partition("=")[2] in line


def test_names_are_read_as_they_are_imported():
    "`declared` reads the text of a module; when it is imported, each table has these names and no others"
    tables = [table for ones in names._TABLES.values() for table in ones.values()]
    for table in [*tables, *(names.Table(r.module, r.methods) for r in names._RECIPES.values() if r.methods)]:
        known = vars(importlib.import_module(f"reid_lab.{table.module}"))[table.name]
        assert list(declared(table.module, table.name)) == list(known), table


def test_studies_are_found_as_they_are_when_imported():
    for recipe in names._RECIPES.values():
        studies = vars(importlib.import_module(f"reid_lab.{recipe.module}"))["STUDIES"]
        read = names._read_studies(recipe)
        assert list(read) == list(studies) and printed_names(read) == printed_names(studies)


def test_the_whole_check_imports_neither_torchvision_nor_scipys_statistics():
    code = "import sys, reid_lab.recipes.parameters; print({'torchvision', 'scipy.stats', 'sympy'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


@pytest.mark.parametrize("name, given, says", [
    ("camel", dict(dataset="world,world"), "study='main' takes one"),
    ("camel", dict(dataset="cuhk-pedes,icfg-pedes"), "names 2 datasets"),
    ("camel", dict(study="transfer", dataset="world,world"), "two different datasets"),
    ("camel", dict(study="transfer", dataset="cuhk-pedes"), "two different datasets"),
    ("camel", dict(study="transfer", dataset="world,cuhk-pedes,icfg-pedes"), "two different datasets"),
    ("camel", dict(dataset="world", data_root="a,b"), "names 2 folder.s. for 1 dataset"),
    ("camel", dict(methods="camel,,"), "methods='camel,,': there is an empty name"),
    ("cfam", dict(dataset="fine,,"), "dataset='fine,,' has an empty name"),
    ("cfam", dict(dataset="fine->,coarse"), "has an empty name"),
    ("cfam", dict(dataset="fine,nope"), "^dataset='nope' is not known"),
    ("cfam", dict(dataset="fine/x"), "^dataset='fine/x': style='x'"),
    ("cfam", dict(dataset="fine//nowhere"), "^dataset='fine//nowhere': domain='nowhere'"),
    ("cfam", dict(dataset="fine/generated/real-like/x"), "^dataset='fine/generated/real-like/x' has more"),
    ("text_granularity", dict(suffix="/x"), "^suffix='/x': setting='coarse/x'|^suffix='/x'"),
    ("word_masking", dict(persons=1), "at least 2"), ("attention_maps", dict(persons=1), "at least 2"),
    ("failure_browser", dict(images="."), "goes with run=")])
def test_names_that_a_run_would_leave_out_or_name_otherwise(name, given, says):
    with pytest.raises((ValueError, OSError), match=says): check_before_run(EXPERIMENTS[name].path, given)


def test_images_of_the_failure_browser_are_those_of_its_features(tmp_path):
    from reid_lab.retrieval.embeddings import Embeddings
    emb, pid = np.eye(2, dtype="float32"), np.arange(2)
    (tmp_path/"images").mkdir()
    (tmp_path/"images"/"a.jpg").write_bytes(b"")
    given = dict(run=str(tmp_path), images=str(tmp_path/"images"))
    for name, paths in (("queries", ["a.jpg", "b.jpg"]), ("gallery", ["a.jpg", "c.jpg"])):
        Embeddings(emb, pid, path=paths, meta=dict(model="bot_tiny")).save(tmp_path/name)
    path = EXPERIMENTS["failure_browser"].path
    check_before_run(path, given)       # of three images two are lost: the run shows and counts them
    with pytest.raises(FileNotFoundError, match="lacks all 3 images .* such as 'a.jpg'"):
        check_before_run(path, dict(given, images=str(tmp_path)))


def test_bounds_are_written_in_digits():
    "The largest seed is a number that a user can type"
    assert str(NUMBERS["seed"]).startswith("a number of at least 0 and at most 4294967295")
