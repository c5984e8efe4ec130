"""Records of settings refuse values of another kind where they are made, by the field's name"""
import inspect
import pickle
from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest

from reid_lab.analysis.compare import CompareSettings
from reid_lab.data.box_files import BoxOptions
from reid_lab.meta.dual_speed import Lookahead
from reid_lab.meta.memory import TermSchedule
from reid_lab.meta.stylise import Illumination, Style
from reid_lab.recipes.camel_settings import Config, Meta, Preset, Train
from reid_lab.recipes.compare import EmbedOptions, SetOptions
from reid_lab.recipes.crops import CropOptions
from reid_lab.recipes.detection import DetectOptions
from reid_lab.recipes.finetune import FinetuneTrain, Source
from reid_lab.recipes.reid import ReidTrain
from reid_lab.recipes.starts import STARTS
from reid_lab.recipes.text import TextTrain
from reid_lab.recipes.unsupervised import UnsupervisedTrain
from reid_lab.training.options import Execution

RECORDS = [Lookahead(), TermSchedule(), Illumination(), Style(), Config(), Meta(), Preset("smoke", Train()), Train(),
           FinetuneTrain(), Source(), ReidTrain(), STARTS["bot_tiny"], TextTrain()]
WRONG = {int: (True, 2.5, "3", None), float: (True, "0.5", float("nan"), None), str: (3, None), bool: ("yes", 1),
         tuple: ("ab", None)}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_values_of_another_kind_are_refused_by_name(record):
    assert is_dataclass(record)
    for field in fields(record):
        for value in WRONG.get(field.type, ()):
            with pytest.raises((ValueError, TypeError), match=field.name): replace(record, **{field.name: value})


NAMED = [BoxOptions, CompareSettings, CropOptions, DetectOptions, EmbedOptions, Execution, FinetuneTrain, ReidTrain,
         SetOptions, Source, TextTrain, UnsupervisedTrain]


@pytest.mark.parametrize("record", NAMED, ids=lambda record: record.__name__)
def test_a_keyword_that_is_no_field_is_refused_with_the_nearest(record):
    for name in [field.name for field in fields(record) if field.init and len(field.name) > 3]:
        with pytest.raises(ValueError, match=f"field of {record.__name__}='{name}_' is not known.*Did you mean"):
            record(**{f"{name}_": 1})
    made = pickle.loads(pickle.dumps(record()))
    assert made == record() == replace(made) and list(inspect.signature(record).parameters) == [
        field.name for field in fields(record) if field.init]


def test_numbers_of_numpy_and_whole_rates_are_numbers():
    s = ReidTrain(steps=np.int64(3), lr=1, layer_decay=np.float32(.5))
    assert (s.steps, s.lr) == (3, 1)


@pytest.mark.parametrize("kind, wrong", [(ReidTrain, dict(optimiser="adma")), (ReidTrain, dict(schedule="liner")),
                                         (TextTrain, dict(bridge="nowhere")), (TextTrain, dict(mask=1.)),
                                         (TextTrain, dict(part_mult=(("a", 1.),)))])
def test_choices_are_those_of_the_record_and_not_of_the_training(kind, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))): kind(**wrong)
