"""Every parameter of every experiment is refused before a kernel starts, and every good value passes."""
import math
from types import SimpleNamespace

import pytest

from reid_lab.experiments.notebooks import check_before_run, experiments, run_notebook
from reid_lab.experiments.params import notebook_params
from reid_lab.recipes.parameters import (
    check_camera_dataset, check_dg_dataset, check_numbers, check_run, CHECKS, NUMBERS, protocols_of)

EXPERIMENTS = experiments()
FREE = {"question", "by", "tags", "records", "out_dir", "install", "execution", "suffix"}  # any text, or tested elsewhere
NOT_A_NAME = "wrld"
BAD = {  # parameter -> values that no experiment takes
    "preset": ["quik", "", "paperr"], "study": ["mian", ""], "methods": ["dart4", "mean, nobody"],
    "dataset": [NOT_A_NAME, "market1501x", "mixed C", "->", "a->b"], "data_root": ["/nowhere"], "source": [NOT_A_NAME],
    "source_root": ["/nowhere"], "model": ["resnet51", "bot_tinny", "/nowhere"], "weights": ["nope", "/nowhere/w.pt"],
    "device": ["tpu", "cuda:x", "auto:1", "gpu"], "seed": [-1, 2**32, 10**20], "seeds": [-1, 10**9],
    "n_jobs": [-1, 10**20], "world_seed": [-2, 2**40], "seen": ["x", "0,0", "0;1"], "scene": ["skewed"],
    "severity": [-.1, math.nan, math.inf, 3.], "models": ["/nowhere", "bot_tinny"], "steps": [-1], "worlds": [-1],
    "persons": [-1], "draws": [-1], "masked": [1, -3], "variant": ["mask"], "run": ["/nowhere"], "query": ["/nowhere.npz"],
    "gallery": ["/nowhere.npz"], "method": ["DART4", "cfamm"], "tau": [0., -1., math.nan], "k": [0, -1],
    "rate": [0., -1., math.nan], "batch": [0], "map": ["umapp"], "queries": ["both"], "images": ["/nowhere"],
    "same_camera": ["maybe"], "auditor": ["/nowhere"], "threshold": [-.1, 1.1, math.nan], "retries": [-1],
    "train_on": ["rough"], "tests": ["rough"]}
CASES = [(name, parameter, value) for name, x in EXPERIMENTS.items() for parameter in x.parameters if parameter not in FREE
         for value in BAD[parameter]]


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
