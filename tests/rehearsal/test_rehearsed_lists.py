"What there is of each kind is rehearsed, or is named here with a reason: something new cannot be missed"
import importlib
import inspect
import pkgutil

import pytest
from rehearsal import (
    rehearse_core,
    rehearse_experiments,
    rehearse_paper_size,
    rehearse_reading,
    rehearse_released,
    rehearse_towers,
    rehearse_training,
)

import reid_lab
from reid_lab.cli.commands import parser
from reid_lab.experiments.notebooks import experiments
from reid_lab.losses import clothes, fuzzy, image, modality, text
from reid_lab.losses.added import LOSSES
from reid_lab.models.frozen import LIBRARIES, PAIR_TOWERS, TOWERS
from reid_lab.models.zoo import list_models
from reid_lab.training.learner import Plain
from reid_lab.tta.base import TTA

TRAINED, CORE = (inspect.getsource(module) for module in (rehearse_training, rehearse_core))
READ, RELEASED = (inspect.getsource(module) for module in (rehearse_reading, rehearse_released))
TOO_LARGE = {"cfam_l14"}            # a step of it needs more memory than a laptop has
BASES = {"Around", "Gradient"}      # of strategies and of adaptations, which are rehearsed as what they are bases of
IN_REPORT = {"ClosedLite"}          # of the bias report, which is rehearsed with its features on the device


def modules():
    "Every module of the package, so that all classes are known"
    for found in pkgutil.walk_packages(reid_lab.__path__, "reid_lab."):
        if not found.name.endswith("__main__"): importlib.import_module(found.name)


def below(kind):
    "Names of the package's classes below another"
    found = set()
    for child in kind.__subclasses__():
        found |= {child.__name__} if child.__module__.startswith("reid_lab.") else set()
        found |= below(child)
    return {name for name in found if not name.startswith("_")}


def test_every_model():
    rehearsed = {*rehearse_core.TINY, *rehearse_core.CONTROLS, *rehearse_core.WITH_TOWERS, *rehearse_paper_size.NAMES}
    assert {*list_models()} == rehearsed | TOO_LARGE


def test_every_strategy():
    modules()
    assert {name for name in below(Plain) if f"{name}(" not in TRAINED} == BASES & below(Plain)


def test_every_adaptation():
    modules()
    rehearsed = {getattr(made, "__name__", "") for made in rehearse_core.IMAGES.values()}
    left = {name for name in below(TTA) if name not in rehearsed and f"{name}(" not in CORE}
    assert left == (BASES | IN_REPORT) & below(TTA)


# What losses are made of; a step of the models that use it is rehearsed
PARTS = {
    image: {"euclidean"},
    modality: {"Centers", "modality_centers"},
    clothes: set(),
    # hard negatives and memories of CAMeL, IRRA and CFAM, granules of CFAM
    text: {"FurtherKeys", "HardRule", "check_negatives", "itm_weights", "sample_negatives", "hard_keys", "memory_itc",
           "sdm_rows", "hardest", "hard_pairs", "pair_match", "pair_identity", "granules", "granularity_similarity"},
    # of the alignments of CFAN
    fuzzy: {"FLOOR", "REDUCE", "paired_cosine", "width", "token_membership", "soft_and", "weighted_similarity",
            "fuzzy_similarities", "gate", "bridged", "Alignment", "cda_terms", "cda"}}


@pytest.mark.parametrize("module", PARTS, ids=lambda module: module.__name__)
def test_every_loss(module):
    kind = module.__name__.rpartition(".")[2]
    assert {name for name in module.__all__ if f"{kind}.{name}(" not in TRAINED} == PARTS[module]


def test_every_loss_that_is_named(): assert {name for name in LOSSES if name not in rehearse_training.LOSSES} == set()


def test_every_experiment_that_takes_a_device():
    with_device = {name for name, record in experiments().items() if "device" in record.parameters}
    assert with_device == {*rehearse_experiments.NAMES, "camel", "dart3"} and "name=\"dart3\"" not in CORE
    assert 'run_notebook("dart3"' in CORE and "test_camel" in vars(rehearse_experiments)


def test_every_kind_of_tower_that_opens_files():
    "A network of each kind; families of the libraries that train are in the rehearsal of towers"
    for name in TOWERS: assert name.split("_")[0] in RELEASED
    for name in PAIR_TOWERS: assert f'frozen_pair("{name}"' in RELEASED
    of_hub = {"hf-hub", "local-dir"}    # the networks of timm and open_clip, from other places
    libraries = {family.library for family in rehearse_towers.FAMILIES.values()}
    assert {name for name in LIBRARIES if f"{name}:" not in RELEASED and name not in libraries} == of_hub


def test_every_command_that_takes_a_device():
    commands = parser()._subparsers._group_actions[0].choices
    takes = {name for name, parser in commands.items() if "--device" in parser._option_string_actions}
    assert takes == {*rehearse_reading.COMMANDS}
