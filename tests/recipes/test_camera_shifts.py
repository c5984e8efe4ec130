"Trials of camera shifts: the right World, the right oracle, and no test World"
import numpy as np
import pandas as pd
import pytest

from reid_lab.datasets.protocols.cameras import SCENES, Scene, find_scene, make_case, world_case, world_table
from reid_lab.datasets.registry import dataset_title
from reid_lab.recipes.camera_shifts import ShiftTrial, strengths, try_cameras
from reid_lab.recipes.dart3 import PAPER, run_study
from reid_lab.results.validity import gap_closed, no_share_of
from reid_lab.world.shifts import CAMERA_MIXES, CameraShifts


@pytest.mark.parametrize("cameras,message", [
    ("crops=1", "Did you mean 'crop'"), ("crop", "such as crop=.5"), ("crop=much", "such as crop=.5"),
    ("crop=2", "crop=2.0 must be a number between 0 and 1"), ("", "kind of shift=''")])
def test_bad_cameras(cameras, message):
    with pytest.raises(ValueError, match=message): ShiftTrial(cameras)


def test_a_test_world_is_refused():
    with pytest.raises(ValueError, match="seed=7 is a test World"): ShiftTrial("crop=1", seed=7)


def test_cameras_of_a_trial():
    assert ShiftTrial("skew").scene is SCENES["skew"]
    assert ShiftTrial("alike").scene.cameras == CameraShifts() == strengths("alike")
    assert strengths("crop=.5,facing=1") == CameraShifts(crop=.5, facing=1)


def test_a_scene_of_strengths():
    scene = Scene(0., 0., "time", CameraShifts(crop=1))
    table = world_table("smoke", 1000, scene)
    case = world_case("smoke", 1000, scene, table=table)
    assert (table.name, case.name) == ("world smoke+crop1 reid seed 1000", "world smoke +crop1 seed 1000")
    assert (np.diff(case.q.frame.time) >= 0).all()
    with pytest.raises(ValueError, match=r"severity=0.3 has no effect on scene='\+crop1'"):
        world_table("smoke", 1000, scene, severity=.3)


def test_scenes_have_names_in_words_and_their_cameras():
    for name, scene in SCENES.items():
        assert dataset_title(f"world-quick-{name}") != f"World (quick, {name})"
        same = world_table("smoke", 1000, scene).frame
        pd.testing.assert_frame_equal(world_table("smoke", 1000, name).frame, same)
    assert world_table("smoke", 1000, "views").name == "world smoke+views reid seed 1000"
    assert find_scene("views").cameras in CAMERA_MIXES


def test_a_row_is_what_the_studies_of_dart3_give():
    "The oracle of a trial is the row without adaptation of the study with all cameras"
    row = try_cameras(ShiftTrial("skew", preset="smoke"))
    main = {r["variant"]: r["mAP"] for r in run_study([dict(name=n) for n in PAPER], "smoke", 1000)}
    oracle, = run_study([dict(name="No adaptation")], "smoke", 1000, protocol="all cameras")
    for name in PAPER: assert row[name] == pytest.approx(main[name], abs=.006)
    assert row["oracle"] == pytest.approx(oracle["mAP"], abs=.006)
    closes = 100*gap_closed(main["Norm"], main["No adaptation"], oracle["mAP"])
    assert row["Norm closes"] == pytest.approx(closes, abs=.06, nan_ok=True)
    assert row["no_share"] == no_share_of(main["No adaptation"], oracle["mAP"])
    assert bool(row["no_share"]) == np.isnan(row["Norm closes"])
    assert row["n_train"] == len(make_case("smoke", 1000).train)


def test_another_world_of_the_same_cameras():
    row = try_cameras(ShiftTrial("crop=.3", preset="smoke", transfer=True))
    assert row["kept"] == pytest.approx(100*row["arrives"]/row["inside"], abs=.5)
    assert 0 < row["arrives"] < 100
