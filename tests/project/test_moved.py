"Names of version 0.1 (commit b21f2a6): all can still be imported, with a warning that says where they are now"
import importlib
import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import reid_lab
from reid_lab.moved import MOVED, REMOVED, RENAMED, new_module

NAMES = json.loads((Path(__file__).resolve().parents[1]/"vectors"/"names_of_0_1.json").read_text())


def current(old, name):
    "The object that an old name stands for, by its new name"
    module = importlib.import_module(f"reid_lab.{new_module(old, name) if old in MOVED else old}")
    return getattr(module, RENAMED.get(old, {}).get(name, name))


def test_the_list_is_that_of_a_whole_library():
    assert len(NAMES) == 133 and sum(len(names.split()) for names in NAMES.values()) > 1000


@pytest.mark.parametrize("old", NAMES)
def test_an_old_module_gives_all_its_names(old):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = importlib.import_module(f"reid_lab.{old}")
        for name in NAMES[old].split():
            if name in REMOVED.get(old, ()): continue
            assert getattr(module, name) is current(old, name), f"reid_lab.{old}.{name}"


@pytest.mark.parametrize("old, name", [(old, name) for old in REMOVED for name in REMOVED[old]])
def test_a_removed_name_says_what_to_write(old, name):
    module, said = importlib.import_module(f"reid_lab.{old}"), f"reid_lab.{old}.{name} was removed in 0.2.0; "
    with pytest.raises(ImportError, match=said): getattr(module, name)
    with pytest.raises(ImportError, match=said): exec(f"from reid_lab.{old} import {name}")


def test_few_names_are_removed():
    "Each is in the changelog of 0.2.0"
    changelog = (Path(__file__).resolve().parents[2]/"CHANGELOG.md").read_text()
    names = [name for old in REMOVED for name in REMOVED[old]]
    assert len(names) == 4 and all(f"`{name}`" in changelog for name in names)


def test_an_old_name_says_where_it_is():
    with pytest.warns(DeprecationWarning, match="reid_lab.metrics.msd is reid_lab.retrieval.metrics.msd since 0.2.0"):
        from reid_lab.metrics import msd
    from reid_lab.retrieval import metrics
    assert msd is metrics.msd


@pytest.mark.parametrize("line", [
    "from reid_lab import losses; f = losses.triplet", "from reid_lab import learner as L; f = L.Checkpoint",
    "import reid_lab.captioning.run as run; f = run.length_table", "from reid_lab.cli import main as f",
    "from reid_lab.data.loaders import rand_augment as f", "from reid_lab.learner import checksum as f"])
def test_forms_of_import(line):
    space = {}
    with pytest.warns(DeprecationWarning, match="since 0.2.0; the old name ends with 1.0"): exec(line, space)
    assert space["f"]


@pytest.mark.parametrize("module, name", [("metrics", "msdd"), ("losses", "tripplet"), ("data.loaders", "AUGMENTS")])
def test_a_name_that_never_was(module, name):
    with pytest.raises(AttributeError, match=f"module 'reid_lab.{module}' has no attribute '{name}'"):
        getattr(importlib.import_module(f"reid_lab.{module}"), name)


def test_a_module_that_never_was():
    with pytest.raises(ModuleNotFoundError, match="reid_lab.metric"): importlib.import_module("reid_lab.metric")


def test_nothing_of_the_library_uses_an_old_name():
    "Each module is imported in a new process in which a DeprecationWarning of ours is an error"
    code = ("import importlib, pkgutil, warnings, reid_lab\n"
            "warnings.filterwarnings('error', message='reid_lab')\n"
            "found = [m.name for m in pkgutil.walk_packages(reid_lab.__path__, 'reid_lab.')]\n"
            "for name in found:\n"
            "    if not name.endswith('__main__'): importlib.import_module(name)\n"
            "print(len(found))\n")
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 150


def test_public_names_of_0_1_are_there():
    assert set(reid_lab.__all__) >= {
        "World", "load_dataset", "ReidTable", "create_model", "list_models", "embed_crops", "search", "Embeddings",
        "retrieval_metrics", "compare", "fuse", "adapt_embeddings", "bias_report", "refine", "run"}


def test_an_old_module_may_have_the_name_of_a_public_function():
    code = """
import warnings
import reid_lab as rl
assert list(rl.cluster([[0., 0.], [5., 5.]], 2, seed=0)) in ([0, 1], [1, 0])
warnings.simplefilter("ignore")
from reid_lab.cluster import read_backend       # from here on the attribute of the package is the old module
assert type(rl.cluster).__name__ == "AlsoFunction" and read_backend("loky")
assert "retrieval.cameras.cluster" in rl.cluster.__doc__
assert list(rl.cluster([[0., 0.], [5., 5.]], 2, seed=0)) in ([0, 1], [1, 0])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
