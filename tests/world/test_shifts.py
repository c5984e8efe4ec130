"Cameras of strengths of their own: off to the byte, each kind alone, further with its strength"
import hashlib
import json
import re
from ast import literal_eval
from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from reid_lab.datasets.protocols.cameras import Scene
from reid_lab.recipes.camera_shifts import ShiftTrial
from reid_lab.world.conditions import ConditionedPlan, Conditions
from reid_lab.world.plan import PRESETS, CameraCounts, Group, Options, Plan, Wording, reid_groups
from reid_lab.world.shifts import (
    CAMERA_MIXES,
    SHIFTS,
    SHIFTS_VERSION,
    CameraShifts,
    _comes_by,
    _Numbers,
    camera_shifts,
    shifted,
)
from reid_lab.world.world import World

FEW = reid_groups(4, 3, 2, 10, 2)
MANY = reid_groups(60, 6, 1, 2, 1)
SMALL = Options(size=(64, 32))
KINDS = tuple(CameraShifts.__dataclass_fields__)


@pytest.fixture(scope="module")
def cache(tmp_path_factory): return tmp_path_factory.mktemp("worlds")


def world(cache, **options): return World("smoke", task="reid", cache=cache, groups=FEW, size=(64, 32), **options)


@pytest.fixture(scope="module")
def many(): return Plan(MANY, SMALL, 3).items


def isp(item): return item.camera.camera.isp


MEASURES = {  # kind -> a number of an image that it moves
    "colour": lambda i: isp(i).exposure, "light": lambda i: i.camera.camera.light[0], "noise": lambda i: isp(i).noise,
    "blur": lambda i: isp(i).blur, "resolution": lambda i: isp(i).resolution, "compression": lambda i: isp(i).jpeg,
    "crop": lambda i: i.shot.box[1], "viewpoint": lambda i: i.camera.camera.elevation,
    "facing": lambda i: np.cos(i.shot.yaw), "background": lambda i: i.camera.camera.wall_distance,
    "occlusion": lambda i: i.shot.occluder is not None}


def spread(items, value):
    "Deviation over cameras of their mean"
    cameras = sorted({i.camera.cam for i in items})
    return np.std([np.mean([value(i) for i in items if i.camera.cam == cam]) for cam in cameras[:6]])


def test_cameras_that_are_off_change_nothing(cache):
    plain = world(cache)
    for off in ("", None):
        other = world(cache, cameras=off)
        assert (other.key, repr(other), other.name) == (plain.key, repr(plain), plain.name)
        assert type(other.plan) is Plan
    text = World("smoke", task="text", cache=cache, groups=PRESETS["smoke"]["text"])
    assert (text.cameras, "+" in text.key) == (None, False)


def test_every_kind_has_a_function_and_a_measure():
    assert set(SHIFTS) | {"passers"} == set(KINDS) == set(MEASURES) | {"passers"}


def test_names_say_the_cameras(cache):
    keys = {world(cache, cameras=CameraShifts(**{kind: s})).key for kind in KINDS for s in (.5, 1)}
    alike = world(cache, cameras=CameraShifts())
    assert len(keys | {alike.key, world(cache).key}) == 2*len(KINDS) + 2
    both = world(cache, cameras=CameraShifts(crop=.5, facing=1), outfits=2)
    assert both.name == "world-smoke+crop0.5+facing1+outfits2"
    assert both.key.startswith("smoke+crop0.5+facing1+outfits2-reid-0-")
    assert alike.name == "world-smoke+alike"
    assert repr(alike).startswith("World(smoke+alike, reid, seed 0")


def test_strengths_that_differ_have_names_that_differ(cache):
    strengths = .5, .5000001, float(np.nextafter(.5, 1)), 1, 1e-5
    names = [str(CameraShifts(crop=s)) for s in strengths]
    assert names == ["+crop0.5", "+crop0.5000001", "+crop0.5000000000000001", "+crop1", "+crop1e-05"]
    assert [CameraShifts(crop=float(name.removeprefix("+crop"))) for name in names] == \
        [CameraShifts(crop=s) for s in strengths]


def test_every_choice_that_the_error_names_is_taken(cache):
    with pytest.raises(ValueError) as error: world(cache, cameras="outdoors")
    named = literal_eval(re.search(r"\[.*?\]", str(error.value))[0])
    assert named == [*CAMERA_MIXES, "alike"]
    assert [world(cache, cameras=name).name for name in named] == [f"world-smoke+{name}" for name in named]


def test_cameras_alike_are_those_without_a_strength(cache):
    assert camera_shifts("alike") == CameraShifts()
    assert world(cache, cameras="alike").key == world(cache, cameras=CameraShifts()).key


def test_a_world_explains_its_two_numbers_of_images(tmp_path):
    made = world(tmp_path, cameras=CameraShifts(passers=1))
    planned = sum(group.ids*group.shots for group in FEW)
    why = "left out: people whom a camera does not see, passers=1)"
    assert repr(made) == f"World(smoke+passers1, reid, seed 0: at most {planned} images (64, 32); {why}"
    n = len(made.table())
    assert 0 < n < planned
    assert repr(made) == f"World(smoke+passers1, reid, seed 0: {n} of {planned} images (64, 32); {why}"
    again = world(tmp_path, cameras=CameraShifts(passers=1))     # from the cache, without a plan
    again.table()
    assert "plan" not in vars(again) and repr(again) == repr(made)
    tracks = world(tmp_path, cameras=CameraShifts(passers=1), track=2)
    assert repr(tracks).count(f"{2*planned} images") == 1 and len(tracks.plan.items) == 2*n
    assert f"{2*n} of {2*planned} images" in repr(tracks)
    whole = world(tmp_path, cameras=CameraShifts(crop=1))
    assert repr(whole) == f"World(smoke+crop1, reid, seed 0: {planned} images (64, 32))"
    assert len(whole.plan.items) == planned


RECORDS = {CameraShifts: dict(croping=.5), Conditions: dict(outfit=2), Options: dict(super_sample=1),
           Wording: dict(granularty="fine"), Group: dict(first_camera=1), CameraCounts: dict(reall=3),
           Scene: dict(driftt=0.), ShiftTrial: dict(presett="smoke")}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_names_its_fields_where_a_keyword_is_none(record):
    (wrong, value), names = next(iter(RECORDS[record].items())), [field.name for field in fields(record)]
    with pytest.raises(ValueError, match=f"field of {record.__name__}='{wrong}'.*Did you mean") as error:
        record(**{wrong: value})
    assert str(names) in str(error.value)
    with pytest.raises(ValueError, match="field of CameraShifts='people'"): CameraShifts(people=.5)
    with pytest.raises(ValueError, match="field of CameraShifts='people'"): replace(CameraShifts(), people=.5)


def test_a_mix_is_its_strengths(cache):
    for name, strengths in CAMERA_MIXES.items():
        made = world(cache, cameras=name)
        assert made.key == world(cache, cameras=strengths).key
        assert made.name == f"world-smoke+{name}"


@pytest.mark.parametrize("kw,message", [
    (dict(cameras="outdoors"), r"cameras='outdoors' is not known; choose one of \['views', 'alike'\]"),
    (dict(cameras=3), r"cameras=3 must be a name of \['views', 'alike'\]"),
    (dict(cameras="alyke"), "Did you mean 'alike'"),
    (dict(cameras="outdoors"), "CameraShifts\\(colour=.5, crop=.5\\).*or '' for cameras by severity"),
    (dict(cameras=CameraShifts(), severity=.4), "severity=0.4 belongs to cameras by severity"),
    (dict(cameras=CameraShifts(), drift=2), "drift=2 belongs to cameras by severity"),
    (dict(camera=1), "Did you mean 'cameras'")])
def test_bad_cameras(kw, message, cache):
    with pytest.raises(ValueError, match=message): world(cache, **kw)


def test_bad_strengths():
    for value in (-.1, 1.1, float("nan"), True, "much"):
        with pytest.raises(ValueError, match="crop=.* must be a number between 0 and 1"): CameraShifts(crop=value)


def test_generated_images_have_no_such_cameras(cache):
    with pytest.raises(ValueError, match="all groups are 'generated'"):
        World("smoke", cache=cache, groups=PRESETS["smoke"]["text"][:3], cameras=CameraShifts(crop=1))
    groups = tuple(replace(g, ids=4) for g in PRESETS["smoke"]["text"])
    plain, other = Plan(groups, SMALL, 1).items, ConditionedPlan(groups, SMALL, 1, Conditions(), CameraShifts(crop=1))
    moved = [a.shot != b.shot for a, b in zip(plain, other.items, strict=True)]
    assert [m for m, item in zip(moved, plain) if item.camera.domain == "generated"] == [False]*24
    assert all(m for m, item in zip(moved, plain) if item.camera.domain != "generated")


def test_the_same_world_twice(cache, tmp_path):
    strong = CameraShifts(**{kind: .7 for kind in KINDS})
    one, two = world(cache, cameras=strong), world(tmp_path, cameras=strong)
    a, b = one.table(), two.table()
    assert a.frame.drop(columns="captions").equals(b.frame.drop(columns="captions"))
    assert (one.folder/"images.npy").read_bytes() == (two.folder/"images.npy").read_bytes()
    assert (one.again(5).image == a.image(5)).all()
    assert world(cache, cameras=strong, seed=1).plan.items[3] != one.plan.items[3]


@pytest.mark.parametrize("kind", MEASURES)
def test_a_kind_grows_with_its_strength(kind, many):
    spreads = [spread(shifted(many, CameraShifts(**{kind: s}), 3), MEASURES[kind]) for s in (0, .5, 1)]
    assert spreads[0] < spreads[1] < spreads[2]


@pytest.mark.parametrize("kind", MEASURES)
def test_a_kind_moves_nothing_else(kind, many):
    before = shifted(many, CameraShifts(), 3)
    after = shifted(many, CameraShifts(**{kind: 1.}), 3)
    for other, value in MEASURES.items():
        same = [value(a) == value(b) for a, b in zip(before, after, strict=True)]
        assert all(same) == (other != kind), other


def test_cameras_that_are_alike_differ_in_nothing(many):
    items = shifted(many, CameraShifts(), 3)
    assert len({isp(i) for i in items}) == 1
    assert {i.camera.drift for i in items} == {(0., 0., 0.)}
    assert len(items) == len(many)
    by_camera = {i.camera.cam: 0 for i in items}
    assert len(by_camera) == 7      # numbers and people stay
    assert [(i.person, i.role, i.number) for i in items] == [(i.person, i.role, i.number) for i in many]


def test_a_strength_of_one_has_the_cameras_own(many):
    items = shifted(many, CameraShifts(background=1, viewpoint=1), 3)
    places = {(i.camera.cam, i.camera.camera.wall, i.camera.camera.seed, i.camera.camera.elevation) for i in items}
    assert len(places) == 7


def test_crops_stay_in_sight_and_bodies_are_cut(many):
    boxes = np.array([i.shot.box for i in shifted(many, CameraShifts(crop=1), 3)])
    assert (abs(boxes) <= (.30, .50, .45, .40)).all()
    usual = np.array([i.shot.box for i in many])
    assert abs(boxes[:, 1]).max() > .2 > abs(usual[:, 1]).max()


def test_who_comes_by_is_a_matter_of_strength_and_kind(many):
    seen = [{(i.person.pid, i.camera.cam) for i in shifted(many, CameraShifts(passers=s), 3)} for s in (0, .4, .8, 1)]
    assert seen[3] < seen[2] < seen[1] < seen[0]
    assert .3 < len(seen[3])/len(seen[0]) < .7
    people = [item.person for item in many]
    likes_women = _Numbers(np.array([0., 9., 0., 0., 0., 0.]), np.zeros(6))
    for person in people: assert _comes_by(person, 1., likes_women, .5) == (person.gender == "woman")
    assert all(_comes_by(person, 0., likes_women, 0.) for person in people)


def test_conditions_go_on_top(cache):
    made = world(cache, cameras=CameraShifts(crop=1, passers=.5), outfits=2, infrared=1, occluded=.5)
    frame = made.table().frame
    assert {"clothes", "modality", "occluded"} <= set(frame)
    assert len(frame) == len(made.plan.items) < sum(g.ids*g.shots for g in FEW)


def test_a_mix_by_name_or_as_it_is():
    assert camera_shifts(CameraShifts(crop=.5)) == CameraShifts(crop=.5)
    assert camera_shifts("") is None


SUMS = {1: "145e1e953b17"}     # version -> sum of what is drawn


def test_other_shifts_have_another_version():
    "Images are cached under a name that holds the version"
    items = shifted(Plan(FEW, SMALL, 3).items, CameraShifts(**{kind: .6 for kind in KINDS}), 3)
    text = json.dumps([asdict(item) for item in items], default=float)
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == SUMS.get(SHIFTS_VERSION), \
        "raise SHIFTS_VERSION, and add this sum here"
