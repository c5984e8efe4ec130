"What people compare with on infrared cameras and changed clothes, trained by its settings on small Worlds"
from functools import partial

import numpy as np
import pytest

from reid_lab.data.loaders import ModalityOrder
from reid_lab.meta.clothes import CALStep, clothes_owners
from reid_lab.recipes.reid import Scheme, evaluate_reid, train_reid
from reid_lab.training.learner import Callback
from reid_lab.world.world import World

SMOKE = dict(preset="smoke", steps=4, batch_size=16, quiet=True)


class Seen(Callback):
    "The losses of the first step"
    only_watches = True

    def __init__(self): self.losses = {}

    def after_step(self, learn): self.losses = self.losses or {**learn.logs}


@pytest.mark.whole
def test_hetero_centres_and_channel_augmentation_on_infrared_cameras():
    table, seen = World("smoke", task="reid", infrared=1).table(), Seen()
    scheme = Scheme(ModalityOrder(k=2), facts=(("modality_order", 2),))
    done = train_reid(table, losses="2*hetero_center", augment="channel", scheme=scheme, callbacks=[seen], **SMOKE)
    assert seen.losses["hetero_center_loss"] > 0 and done.key["augment"] == "channel"
    assert done.key["added_losses"] == ["hetero_center: 2*hetero_center"] and "modality_order" in done.key["scheme"]
    assert 0 <= evaluate_reid(done.model, table, "test")["mAP"] <= 100


@pytest.mark.whole
def test_clothes_adversarial_training_on_changed_clothes():
    table, seen = World("smoke", task="reid", outfits=2).table(), Seen()
    owner = clothes_owners(table.where(split="train"))
    scheme = Scheme(strategy=partial(CALStep, owner), facts=(("cal", 1.),))
    done = train_reid(table, scheme=scheme, callbacks=[seen], **SMOKE)
    assert seen.losses["clothes_adversarial_loss"] > 0 and done.key["scheme"] == {"cal": 1.}
    assert 0 <= evaluate_reid(done.model, table, "test")["mAP"] <= 100


@pytest.mark.parametrize("wrong", [lambda owner: np.roll(owner, 1), lambda owner: owner[:2]])
def test_owners_of_other_rows_are_refused(wrong):
    table = World("smoke", task="reid", outfits=2).table()
    owner = wrong(clothes_owners(table.where(split="train")))
    with pytest.raises(ValueError, match="are not of person .* very table that is trained on"):
        train_reid(table, scheme=Scheme(strategy=partial(CALStep, owner), facts=(("cal", 1.),)), **SMOKE)


def test_a_scheme_takes_what_makes_a_strategy():
    with pytest.raises(TypeError, match=r"strategy is a CALStep; give a function.*partial\(CALStep"):
        Scheme(strategy=CALStep(np.array([0, 0, 1])))
