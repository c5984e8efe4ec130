"What a model has seen is read from its file, not from its name"
import json
import shutil

import pytest
import torch

from reid_lab.core.weight_files import save_weights
from reid_lab.models.bot import bot_tiny
from reid_lab.models.weights.seen import Seen, is_world, seen_by, seen_in
from reid_lab.models.weights.shipped import shipped
from reid_lab.training.folder import Trained


def test_a_copy_of_the_package_s_weights_is_known_and_other_files_are_not(tmp_path):
    copy = shutil.copy(shipped()["bot_tiny"][1], tmp_path/"release.safetensors")
    assert seen_by(dict(model_name="bot_tiny", weights=copy)).kind == "worlds"
    torch.manual_seed(0)
    foreign = tmp_path/"other.safetensors"
    save_weights(bot_tiny(n_ids=2), foreign)
    for facts in (dict(model_name="bot_tiny", weights=str(foreign)), dict(model_name="bot_tiny", weights="lost.pth"),
                  dict(model="CLIP"), {}, dict(model_name=3), dict(weights=str(tmp_path))):
        assert seen_by(facts).kind == "unknown" and "not known here" in str(seen_by(facts)), facts
    assert seen_by(dict(weights="clip_tiny")).worlds == 6      # as a version before 0.3 noted the name


@pytest.mark.parametrize("data, worlds, kind", [
    ("market1501", (), "photographs"), ("world quick text seed 3", (), "worlds"),
    ("market1501", [["quick", "text", 1]], "both"),
    ("world quick reid seed 3+market1501", (), "both"), ("", [["quick", "text", 1]], "unknown")])
def test_a_training_notes_its_images_and_those_of_its_start(tmp_path, data, worlds, kind):
    torch.manual_seed(0)
    model, key = bot_tiny(n_ids=2), dict(model="bot_tiny", model_kw=dict(n_ids=2))
    Trained(model, [], 1, 8, 1., key, data).save(tmp_path/"a")
    if worlds:
        save_weights(model, tmp_path/"a"/"model.safetensors", zoo="bot_tiny", worlds=json.dumps(worlds),
                     **(dict(data=json.dumps([data])) if data else {}))
    seen = seen_by(dict(weights=str(tmp_path/"a")))
    assert seen.kind == kind and len(seen.lines()) <= 2
    if kind == "both": assert seen.data == "market1501"


def test_the_data_of_the_start_of_a_training_are_kept(tmp_path):
    torch.manual_seed(0)
    key = dict(model="bot_tiny", model_kw=dict(n_ids=2))
    Trained(bot_tiny(n_ids=2), [], 1, 8, 1., key, "world quick reid seed 3").save(tmp_path/"a")
    further = bot_tiny(n_ids=2, weights=str(tmp_path/"a"/"model.safetensors"))
    Trained(further, [], 1, 8, 1., key, "my crops").save(tmp_path/"b")
    assert seen_by(dict(weights=str(tmp_path/"b"))).kind == "both"


def test_names_of_worlds():
    assert is_world("world quick text seed 3") and is_world("worlds")
    for name in ("world", "worldcup", "world quick", "", "my world quick text seed 3"): assert not is_world(name), name


def test_a_damaged_header_claims_nothing():
    for texts in (dict(data="[1"), dict(data="{}"), dict(card="x", data="[3]"), dict(worlds="x")):
        assert seen_in(texts, "m") == Seen("m")
