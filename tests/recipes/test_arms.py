"Comparisons under a condition: settings of arms, rows, and what is refused"
import threading
import time
from functools import partial

import numpy as np
import pytest

from reid_lab.core.files import locked
from reid_lab.data.loaders import ModalityOrder
from reid_lab.recipes.arms import (
    PRESETS,
    START,
    Arm,
    arm_settings,
    arm_world,
    chance_of_protocol,
    comparison,
    rates_of,
    run_arm,
    score_features,
    stored_row_of_arm,
    train_arm,
)
from reid_lab.recipes.conditions import STUDIES, run_study
from reid_lab.retrieval.protocols import PROTOCOLS

COMPARED = [study for study in STUDIES.values() if not study.chooses]


@pytest.mark.parametrize("study", COMPARED, ids=lambda s: s.title)
def test_arms_share_everything_but_what_they_name(study):
    "Start, images, batches and rate are those of the first base, unless the arm says otherwise"
    base = arm_settings(study, dict(name=study.bases[0]))
    assert base.weights == "" and base.start.endswith("world") and study.arms["start"] is START
    for name, arm in study.arms.items():
        s = arm_settings(study, dict(name=name))
        named = {field for field, _ in arm.train} | {"added_losses"} | ({"model_kw"} if arm.of_bot else set())
        differ = {f for f in vars(s) if getattr(s, f) != getattr(base, f)}
        assert differ <= named | ({"lr"} if arm.lr != study.arms[study.bases[0]].lr else set())
    assert arm_settings(study, dict(name="start")).steps == 0


def test_the_losses_and_orders_of_infrared():
    arms = STUDIES["infrared"].arms
    s = {name: arm_settings(STUDIES["infrared"], dict(name=name)) for name in arms}
    assert [n for n in arms if s[n].augment == "channel"] == ["channel", "both"]
    losses = {n: str(*s[n].added_losses) for n in arms if s[n].added_losses}
    at_neck, behind = "2*hetero_center_before", "2*hetero_center"
    assert losses == dict(centre=behind, before=at_neck, both=at_neck)
    assert {n: dict(s[n].model_kw)["metric"] for n in losses} == dict(centre="weighted", before="none", both="none")
    samplers = {n: arm.scheme(None, s[n]).sampler for n, arm in arms.items()}
    ordered = [n for n in arms if isinstance(samplers[n], ModalityOrder)]
    assert ordered == ["order", "centre", "before", "channel", "both"]


def test_cal_begins_at_its_share_of_the_training():
    table = arm_world(STUDIES["clothes"], "smoke").table().where(split="train")
    s = arm_settings(STUDIES["clothes"], dict(name="cal"), "smoke")
    scheme = STUDIES["clothes"].arms["cal"].scheme(table, s)
    assert isinstance(scheme.strategy, partial) and dict(scheme.facts)["begin"] == 0     # six batches: no whole epoch
    assert len(table) == 160 and len(scheme.strategy.args[0]) == 60                     # three outfits each


def test_a_search_is_on_validation_worlds_and_no_other_study_is():
    for name, study in STUDIES.items():
        assert study.chooses == name.endswith("_rates") and study.first_seed(0) == (1000 if study.chooses else 0)
        assert all(protocol in PROTOCOLS for protocol in study.protocols) and study.seeds == (2 if study.chooses else 5)


def test_rows_name_arm_protocol_and_budget():
    rows = run_study(dict(name="start"), "infrared", "smoke", seed=1)
    study = STUDIES["infrared"]
    assert [row["test"] for row in rows] == ["llcm.i2v", "llcm.v2i"] and {row["images_seen"] for row in rows} == {0}
    kept = stored_row_of_arm(study, dict(rows[0], seed=1), dict(name="start"), "smoke", "world-smoke-infrared")
    assert kept["dataset"] == "world-smoke-infrared llcm.i2v" and kept["selection"] == "none" and kept["steps"] == 0
    assert str(kept["setting"]) == "Start alone (control), llcm.i2v" and "metric" not in kept
    both = stored_row_of_arm(study, dict(rows[0], seed=1), dict(name="both"), "smoke", "world-smoke-infrared")
    assert (both["losses"], both["metric"]) == ("2*hetero_center_before", "none")


@pytest.mark.parametrize("protocol", ["ltcc.cc", "ltcc.standard"])
def test_chance_is_the_mean_of_one_over_people(protocol):
    "By hand: a list without images of the own camera, or of the own outfit, has a known share of matches"
    table = arm_world(STUDIES["clothes"], "smoke").table()
    people = 12
    gallery = people*4                              # one image a camera
    alone, shared = (3, 1), (2, 2)                  # matches, left out; the first and last camera share an outfit
    of_cameras = [shared, alone, alone, shared] if protocol == "ltcc.cc" else [alone]*4
    expected = np.mean([100*matches/(gallery - left_out) for matches, left_out in of_cameras])
    assert chance_of_protocol(table, protocol)["R1"] == pytest.approx(expected)


def test_chance_counts_tracks_where_they_are_pooled():
    "By hand: two walks at each of four cameras; one asks, the other is searched, and the own camera is left out"
    table = arm_world(STUDIES["tracklets"], "smoke").table()
    people, matches = 12, 3
    assert len(table.gallery("test")) == 4*4*people
    expected = 100*matches/(4*people - 1)
    assert chance_of_protocol(table, "duke-video")["R1"] == pytest.approx(expected)


def test_quick_takes_weighted_triplets_for_bot_alone():
    "Batch-hard triplets collapse in so short a training; other models have no such argument"
    given = {model: arm_settings(STUDIES["clothes"], dict(name="plain"), model=model).model_kw
             for model in ("bot_tiny", "agw_tiny")}
    assert given == dict(bot_tiny=(("size", (96, 48)), ("metric", "weighted")), agw_tiny=(("size", (96, 48)),))
    own = (("size", (64, 32)),)
    assert arm_settings(STUDIES["clothes"], dict(name="plain"), model_kw=own).model_kw == own


def test_what_is_refused():
    with pytest.raises(ValueError, match="protocols="): comparison("", dict(a=Arm("A")))
    arms = dict(a=Arm("A"))
    with pytest.raises(ValueError, match="bases='c'"): comparison("", arms, protocols=("market",), bases=("c",))
    with pytest.raises(ValueError, match="Did you mean 'quick'"):
        arm_settings(STUDIES["infrared"], dict(name="plain"), "quik")
    assert set(PRESETS) == {"smoke", "quick", "full"} and np.prod(PRESETS["full"].people) > 0


def own_scores(model, world, protocols):
    "Another way to compare: its mAP is 0"
    return {name: scores | dict(mAP=0.) for name, scores in score_features(model, world, protocols).items()}


SHARED = comparison("one training, two scores", dict(
    plain=Arm("BoT"), other=Arm("BoT, otherwise", score=own_scores, trained="plain", families=("bot",))),
    world=(("outfits", 2),), protocols=("ltcc.cc",))


def test_arms_that_share_a_training_train_once(tmp_path):
    (one,), (other,) = (run_arm(SHARED, dict(name=name), "smoke", keep=tmp_path) for name in ("plain", "other"))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == ["plain-0"]
    assert (one["images_seen"], one["train_s"]) == (other["images_seen"], other["train_s"]) and one["mAP"] > 0
    assert (other["mAP"], other["R1"]) == (0, one["R1"]) and (one["method"], other["method"]) == ("plain", "other")
    (alone,) = run_arm(SHARED, dict(name="other"), "smoke")
    assert alone["R1"] == one["R1"]                                 # without a folder it is trained again
    with pytest.raises(ValueError, match="was trained otherwise"):
        run_arm(SHARED, dict(name="other"), "smoke", keep=tmp_path, train=dict(lr=.1))
    rows = [stored_row_of_arm(SHARED, dict(row, seed=0), dict(name=row["method"]), "smoke", "world")
            for row in (one, other)]
    assert rows[0]["setting"] != rows[1]["setting"] and rows[0]["lr"] == rows[1]["lr"]


def test_an_arm_waits_for_the_training_that_it_shares(tmp_path):
    table, folder = arm_world(SHARED, "smoke").table(), tmp_path/"plain-0"
    train_arm(SHARED, dict(name="plain"), table, "smoke", folder=folder)
    held = threading.Event()

    def hold():
        with locked(tmp_path/".plain-0.shared"):
            held.set()
            time.sleep(1)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(10)
    began = time.monotonic()
    train_arm(SHARED, dict(name="other"), table, "smoke", folder=folder)
    assert time.monotonic() - began > .8
    other.join()


def test_what_a_shared_training_cannot_have_is_refused():
    assert [setting["name"] for setting in rates_of(SHARED).settings] == ["plain"]*2
    with pytest.raises(ValueError, match="trained='plain', and losses, scheme"):
        Arm("A", losses="triplet", trained="plain", scheme=lambda rows, s: None)
    for trained in ("plane", "other"):
        with pytest.raises(ValueError, match=f"trained='{trained}'"):
            comparison("", dict(plain=Arm("A"), other=Arm("B", trained="plain"), third=Arm("C", trained=trained)),
                       protocols=("market",))
    with pytest.raises(ValueError, match="cannot read model='transreid_tiny'.*methods=start,plain"):
        arm_settings(SHARED, dict(name="other"), model="transreid_tiny")
    assert arm_settings(SHARED, dict(name="plain"), model="transreid_tiny").model == "transreid_tiny"
