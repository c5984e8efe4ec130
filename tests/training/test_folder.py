"A trained folder says what it holds, and is refused for anything else"
import json

import pytest
import torch

from reid_lab.models.zoo import create_model
from reid_lab.training.folder import (
    DONE,
    TRAINING,
    WEIGHTS,
    Trained,
    claim,
    differences,
    digest,
    load_trained,
    random_start,
    start_of,
    steps_over_epochs,
    training_key,
)
from reid_lab.training.options import Execution
from reid_lab.world.world import World

KEY = dict(model="bot_tiny", model_kw=dict(size=[32, 16], n_ids=2), lr=.1, seed=0)


@pytest.fixture(scope="module")
def people(): return World("smoke", task="reid").table().where(split="train")


@pytest.fixture
def folder(tmp_path):
    model = create_model("bot_tiny", size=(32, 16), n_ids=2)
    Trained(model, [dict(step=1)], 1, 8, 1.26, KEY).save(tmp_path/"t")
    return tmp_path/"t"


@pytest.mark.parametrize("change", [dict(lr=.2), dict(seed=1), dict(model="agw_tiny"), dict(new=1)])
def test_another_key_is_refused_at_both_doors(folder, change):
    with pytest.raises(ValueError, match="another training.*there, here"): claim(folder, {**KEY, **change})
    with pytest.raises(ValueError, match="trained otherwise"): load_trained(folder, {**KEY, **change})
    assert json.loads((folder/TRAINING).read_text()) == KEY and load_trained(folder, KEY).cost["train_s"] == 1.3


@pytest.mark.parametrize("gone", [DONE, TRAINING])
def test_half_a_folder_is_not_loaded(folder, gone):
    (folder/gone).unlink()
    with pytest.raises(FileNotFoundError, match="no finished training"): load_trained(folder)


@pytest.mark.parametrize("left", [WEIGHTS, DONE, "state"])
def test_remains_without_a_key_are_refused(folder, left):
    (folder/TRAINING).unlink()
    for name in {WEIGHTS, DONE} - {left}: (folder/name).unlink()
    if left == "state": (folder/"state").mkdir()
    with pytest.raises(ValueError, match="nobody can tell what was trained"): claim(folder, KEY)


def test_a_key_holds_images_and_switches(people):
    key = training_key(KEY, 0, people)
    assert key["images"] == digest(people) and "speed" not in key
    assert set(differences(key, training_key(KEY, 0, people.take(range(9))))) == {"images"}
    half = training_key(KEY, 0, people, execution=Execution(speed="bf16"))
    assert differences(key, half) == {"speed": (None, "bf16")}
    assert training_key(KEY, 0, people, execution=Execution(workers=3, processes=2)) == key


def test_where_a_training_starts():
    assert (start_of("bot_tiny"), start_of("bot_tiny", "none")) == ("world", "none")
    assert random_start("bot_r50", "none")
    with pytest.raises(ValueError, match="weights='none' for random numbers"): start_of("bot_r50")
    assert steps_over_epochs(dict(steps=9)) == dict(epochs=0, steps=9) and steps_over_epochs(dict(lr=1)) == dict(lr=1)


def test_a_training_prints_three_lines():
    "Not the network"
    done = Trained(torch.nn.Linear(30, 40), [dict(step=9, images=72, id_loss=3.14159)], 9, 72, 1.26, KEY, "sheep")
    first, second, third = repr(done).splitlines()
    assert first == f"Trained({KEY['model']}, 1,240 parameters, on sheep)"
    assert second == "  9 steps, 72 images in 1.3 s; last losses: id_loss 3.142" and "Linear" not in third
    assert "none recorded" in repr(Trained(torch.nn.Linear(1, 1), [], 0, 0, 0.)) and "images without a name" in repr(
        Trained(torch.nn.Linear(1, 1), [], 0, 0, 0.))


def test_a_folder_keeps_the_start_of_its_training(folder):
    assert load_trained(folder).cost["start"] == json.loads((folder/DONE).read_text())["start"] == "none"
    about = json.loads((folder/DONE).read_text())
    del about["start"]
    (folder/DONE).write_text(json.dumps(about))
    assert "start" not in load_trained(folder).cost         # an earlier version, whose key does not say it
    model = create_model("bot_tiny", size=(32, 16), n_ids=2, weights="world")
    assert Trained(model, [], 1, 8, 1.).start == "bot_tiny.safetensors"     # as the file is called
    assert Trained(model, [], 1, 8, 1., dict(weights="world")).cost["start"] == "world"
