"Conditions of a World: off by default to the byte; each changes one thing, and its column tells the truth"
import hashlib
import json
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from reid_lab.retrieval.embeddings import image_embeddings
from reid_lab.retrieval.junk import Junk
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.world.bodies import Shot
from reid_lab.world.captions import NOUNS
from reid_lab.world.conditions import (
    CONDITIONS_VERSION,
    ConditionedPlan,
    Conditions,
    InfraredPerson,
    Sighting,
    hidden_share,
    infrared_image,
    outfits_of,
)
from reid_lab.world.people import ATTRIBUTES, differences, sample_people
from reid_lab.world.places import Camera
from reid_lab.world.plan import PRESETS, Options, Plan, aerial_ground_groups, reid_groups
from reid_lab.world.render import render
from reid_lab.world.world import World

FEW = reid_groups(4, 3, 2, 10, 2)
SMALL = Options(size=(64, 32))
BODY = {"gender", "build", "skin", "hair", "hair_colour", "glasses"}
HARD = dict(outfits=2, infrared=1, occluded=.5)


@pytest.fixture(scope="module")
def cache(tmp_path_factory): return tmp_path_factory.mktemp("worlds")


def world(cache, **conditions): return World("smoke", task="reid", cache=cache, groups=FEW, size=(64, 32), **conditions)


@pytest.fixture(scope="module")
def easy(cache):
    made = world(cache)
    made.table()
    return made


@pytest.fixture(scope="module")
def hard(cache):
    made = world(cache, **HARD)
    made.table()
    return made


# ---------------------------------------------------------------- off by default

BEFORE = {  # task -> names and sums of Worlds of 8 people a group, made before there were conditions
    "text": ("smoke-text-0-b2cffeed34b4", "e30f4061ebc8e5c0"),
    "reid": ("smoke-reid-0-b62deb1459be", "a230ae5094084c34"),
    "aerial": ("smoke-aerial-0-a3d85eb80260", "ebdd0f896639fc88")}


@pytest.mark.parametrize("task", BEFORE)
def test_default_worlds_are_those_of_before(task, cache):
    "Name, rows and captions to the byte; pixels are those that the renderer makes of the plan, and nothing else's"
    groups = tuple(replace(g, ids=min(g.ids, 8)) for g in PRESETS["smoke"][task])
    made = World("smoke", task=task, cache=cache, groups=groups)
    table = made.table()
    rows = hashlib.sha256(table.frame.to_json().encode()).hexdigest()[:16]
    assert (made.key, rows) == BEFORE[task]
    assert (made.name, table.name, table.further) == ("world-smoke", f"world smoke {task} seed 0", [])
    assert type(made.plan) is Plan
    for i in range(0, len(table), 7):
        item, o = made.plan.items[i], made.options
        want = render(item.seen, item.camera.at(item.shot.time), item.shot, o.size, o.supersample).image
        assert (table.image(i) == want).all()


def test_conditions_that_are_off_are_no_conditions(easy):
    off = world(easy.cache, outfits=1, infrared=0, occluded=0, track=1)
    assert (off.key, repr(off)) == (easy.key, repr(easy))


def test_names_say_the_conditions(easy, hard):
    assert hard.name == "world-smoke+outfits2+infrared1+occluded0.5"
    assert hard.key.startswith("smoke+outfits2+infrared1+occluded0.5-reid-0-")
    assert hard.table().name == "world smoke+outfits2+infrared1+occluded0.5 reid seed 0"
    keys = {world(hard.cache, **{name: value}).key for name, value in (*HARD.items(), ("track", 2), ("outfits", 3))}
    assert len(keys | {easy.key, hard.key}) == 7


@pytest.mark.parametrize("kw,message", [
    (dict(outfits=0), "outfits=0 must be a whole number from 1 to 8"), (dict(occluded=2), "between 0 and 1"),
    (dict(infrared=2), "infrared=2 would leave no visible camera in a group of 2; give at most infrared=1"),
    (dict(outfit=2), "Did you mean 'outfits'"), (dict(track=True), "track=True")])
def test_bad_conditions(kw, message, cache):
    with pytest.raises(ValueError, match=message): world(cache, **kw)


def test_conditions_of_cameras_need_real_like_images(cache):
    with pytest.raises(ValueError, match="infrared=1 is a condition of the real-like domain"):
        World("smoke", cache=cache, groups=PRESETS["smoke"]["text"][:3], infrared=1)


SUMS = {1: ("066a90ff4c12", "3062a04b65cf")}  # version -> sums of what is drawn, and of greys


def test_other_conditions_have_another_version():
    "Images are cached under a name that holds the version"
    drawn = ConditionedPlan(FEW, Options(size=(48, 24)), 3, Conditions(2, 1, .5, 2))
    def rounded(item): return asdict(replace(item, hidden=0., shot=replace(item.shot, occluder=None)))
    items = json.dumps([rounded(item) for item in drawn.items], default=float)
    recorded = [InfraredPerson.of(p) for p in sample_people(40, 3)]
    greys = json.dumps([p.rgb(slot) for p in recorded for slot in ("upper", "hair", "bag")])
    sums = tuple(hashlib.sha256(text.encode()).hexdigest()[:12] for text in (items, greys))
    assert sums == SUMS.get(CONDITIONS_VERSION), "raise CONDITIONS_VERSION, and add these sums here"


def test_a_condition_moves_nothing_else(easy, hard):
    before, after = easy.table().frame, hard.table().frame
    same = [c for c in before if c not in ("path", "captions", "attrs")]
    assert (before[same] == after[same]).all(axis=None)
    untouched = (after.clothes == 2*after.pid) & (after.modality == "visible")
    shots = [a.shot == b.shot for a, b in zip(easy.plan.items, hard.plan.items)]
    untouched &= np.array(shots)
    assert untouched.sum() > 20
    for i in np.flatnonzero(untouched): assert (easy.table().image(i) == hard.table().image(i)).all()


# ---------------------------------------------------------------- clothes

def test_outfits_keep_the_body_and_change_the_clothes():
    for person in sample_people(60, seed=5):
        days = outfits_of(person, 3, seed=5)
        assert days[0] is person and days == outfits_of(person, 3, seed=5)
        for day in days[1:]:
            assert not BODY & set(differences(person, day))
            assert (day.height, day.pid, day.rgb("skin"), day.rgb("hair")) == \
                (person.height, person.pid, person.rgb("skin"), person.rgb("hair"))
            assert day.upper_colour != person.upper_colour
            assert (day.lower, day.lower_colour) != (person.lower, person.lower_colour)
            assert not (person.gender == "man" and {"dress", "skirt"} & {day.upper, day.lower})


def test_outfits_go_round_over_cameras(hard):
    frame = hard.table().frame
    assert (frame.clothes//2 == frame.pid).all()
    assert (frame.groupby(["pid", "cam"]).clothes.nunique() == 1).all()
    assert (frame.groupby(["pid", "group"]).clothes.nunique() == 2).all()
    for _, own in frame[frame.pid >= 0].groupby("pid"):
        worn = {clothes: attrs["upper_colour"] for clothes, attrs in zip(own.clothes, own["attrs"])}
        assert len(set(worn.values())) == 2


def test_captions_tell_what_is_worn(cache):
    "Of two outfits of one person, each caption has the word for its own trousers, skirt or dress"
    made = world(cache, outfits=2, level="identity", confusion=0., per_image=1)
    table = made.table()
    def says(text, garment): return any(re.search(rf"\b{word}\b", text) for words in NOUNS[garment] for word in words)
    lower = {}
    for clothes, attrs in zip(table["clothes"], table["attrs"]): lower[clothes] = attrs["lower"]
    told = [(texts[0], lower[clothes], lower[clothes ^ 1])
            for clothes, texts in zip(table["clothes"], table["captions"])]
    assert all(says(text, worn) for text, worn, _ in told)
    named = ("skirt", "leggings", "jeans")     # whose words are not those of another garment, as of dress shoes
    absent = [says(text, other) for text, worn, other in told if other in named and worn != other]
    assert len(absent) > 20 and not any(absent)


def test_rules_on_clothes(hard):
    "A feature that knows the outfit and nothing else finds nothing among other clothes"
    table = hard.table()
    def features(some):
        codes = np.eye(2*table["pid"].max() + 2, dtype=np.float32)[some["clothes"]]
        return image_embeddings(torch.nn.Identity(), some, torch.from_numpy(codes))
    q, g = (features(some) for some in (table.query("test"), table.gallery("test")))
    with pytest.warns(UserWarning): known = retrieval_metrics(q, g, junk="cam")
    with pytest.warns(UserWarning): other = retrieval_metrics(q, g, junk=Junk("cam", "clothes"))
    assert known["R1"] > 95 and other["mAP"] < 40 < known["mAP"]
    assert q.columns.keys() >= {"clothes", "modality", "occluded"}


# ---------------------------------------------------------------- infrared

def test_infrared_images_have_equal_channels(hard):
    table = hard.table()
    grey = np.array([(table.image(i) == table.image(i)[..., :1]).all() for i in range(len(table))])
    assert (grey == (table["modality"] == "infrared").to_numpy()).all()
    assert (table.frame.groupby("cam").modality.nunique() == 1).all()
    assert all((len(texts) == 0) == infrared for texts, infrared in zip(table["captions"], grey))
    again = hard.again(int(np.flatnonzero(grey)[3]))
    assert (again.image == table.image(int(np.flatnonzero(grey)[3]))).all()


def test_captions_of_persons_stay(hard):
    table = world(hard.cache, **HARD, level="identity").table()
    assert table["captions"].map(len).eq(2).all()


def mean_of(person, image, part):
    "Mean colour of one part"
    return image[part == 6].mean(0)


def probe(features, labels):
    "Share of the second half whose label a linear probe of the first half finds"
    x = np.concatenate([features, features**2, np.ones((len(features), 1))], 1)
    x = (x - x.mean(0))/(x.std(0) + 1e-9) + (x.std(0) < 1e-9)
    half, names = len(x)//2, sorted(set(labels))
    one_hot = np.array([[label == name for name in names] for label in labels], float)
    weights = np.linalg.lstsq(x[:half].T @ x[:half] + .1*np.eye(x.shape[1]), x[:half].T @ one_hot[:half], rcond=None)[0]
    found = (x[half:] @ weights).argmax(1)
    return float(np.mean([names[k] == label for k, label in zip(found, labels[half:])]))


def test_colours_cannot_be_told_from_infrared_images():
    "A probe of the mean level of the upper garment: black, white, red and blue are as good as drawn by lot"
    colours = ("black", "white", "red", "blue")
    people = [p for p in sample_people(1600, seed=2) if p.upper_colour in colours and p.pattern == "plain"]
    by_colour = [[p for p in people if p.upper_colour == c][:40] for c in colours]
    mixed = [p for four in zip(*by_colour) for p in four]
    camera, look, unused = Camera(distance=8.), Options(size=(48, 24), supersample=1), np.ones(13)
    seen, recorded = [], []
    for k, person in enumerate(mixed):
        shot = Shot(yaw=.3*(k % 5), seed=k)
        visible = render(person, camera, shot, look.size, 1, reference=unused)
        infrared = infrared_image(person, camera, shot, look, reference=unused)
        assert (visible.parts == infrared.parts).all()
        for kept, one in ((seen, visible), (recorded, infrared)): kept.append(mean_of(person, one.image, one.parts))
    labels = [p.upper_colour for p in mixed]
    chance, n = 1/len(colours), len(mixed)//2
    assert n >= 40
    assert probe(np.array(seen), labels) > .85
    assert probe(np.array(recorded), labels) < chance + 2.5*np.sqrt(chance*(1 - chance)/n)


def test_skin_of_every_tone_is_bright_and_black_hair_is_not():
    for person in sample_people(200, seed=4):
        recorded = InfraredPerson.of(person)
        assert 155 < recorded.rgb("skin")[0] < 200
        if person.hair_colour == "black": assert recorded.rgb("hair")[0] < 80
        assert recorded.attrs() == person.attrs()
        assert all(a is None or len(set(a)) == 1 for a in map(recorded.rgb, ("upper", "lower", "bag", "hat", "inner")))


def test_leaves_are_bright_and_greys_stay():
    from reid_lab.world.conditions import _one_channel
    grey = np.full((2, 2, 3), 117, np.uint8)
    assert np.allclose(_one_channel(grey), 117)
    leaves, stone = np.array([[[92, 104, 62]]], np.uint8), np.array([[[104, 98, 90]]], np.uint8)
    assert _one_channel(leaves)[0, 0] > 1.6*_one_channel(stone)[0, 0]


# ---------------------------------------------------------------- occlusion

def test_levels_are_those_of_the_masks(hard):
    "Counted anew with loops over pixels, of images with something in front and without"
    table = hard.table()
    behind = [i for i, item in enumerate(hard.plan.items) if item.shot.occluder]
    for i in (*behind[:12], 0, 1, 2):
        item = hard.plan.items[i]
        free = render(item.seen, item.camera.at(item.shot.time), replace(item.shot, occluder=None), (64, 32), 2).parts
        parts = hard.parts(i)
        body = hidden = 0
        for whole, seen in zip(free.ravel(), parts.ravel()):
            body += whole > 0
            hidden += whole > 0 and seen == 0
        assert table["occluded"][i] == pytest.approx(hidden/body, abs=1e-4)
    assert (table["occluded"][[i for i in range(len(table)) if i not in behind]] == 0).all()


def test_a_share_of_the_test_queries_is_hidden(hard):
    frame = hard.table().frame
    ours = np.array([a.shot.occluder != b.shot.occluder for a, b in zip(hard.plan.items, plain_items())])
    assert set(frame[ours].role) == {"query"} and set(frame[ours].split) == {"test"}
    queries = frame[(frame.split == "test") & (frame.role == "query")]
    assert abs(ours.sum()/len(queries) - .5) < .2
    assert frame[ours].occluded.between(.12, .7).all() and frame[ours].occluded.std() > .05


def plain_items(): return Plan(FEW, replace(PRESETS["smoke"]["options"], size=(64, 32)), 0).items


def test_nothing_hidden_and_all_hidden():
    free = np.array([[0, 3], [4, 4]])
    assert hidden_share(free, free) == 0 and hidden_share(free, 0*free) == 1
    assert hidden_share(free, np.array([[0, 3], [0, 4]])) == pytest.approx(1/3, abs=1e-4)


# ---------------------------------------------------------------- tracklets

def test_tracklets_are_frames_of_one_walk(easy):
    made = world(easy.cache, track=3)
    table, before = made.table(), easy.table()
    frame = table.frame
    assert len(frame) == 3*len(before) and "146" not in repr(made)
    sizes = frame.groupby("track").size()
    assert (sizes == 3).all() and len(sizes) == len(before)
    one = frame.groupby("track")[["pid", "cam", "split", "role", "action"]].nunique()
    assert (one == 1).all(axis=None) and frame.path.is_unique
    images = table.images().astype(int).reshape(-1, 3, *made.options.size, 3)
    assert (images[:, 0] == before.images()).all()
    within = np.abs(images[:, 1] - images[:, 0]).mean((1, 2, 3))
    between = np.abs(images[1:, 0] - images[:-1, 0]).mean((1, 2, 3))
    assert (within < between.mean()).mean() > .95 and within.mean() < .5*between.mean() and within.min() > 0


def test_the_ground_goes_by_as_the_person_walks():
    "Walking to the right of the image, what lies on the ground moves to the left in it"
    from reid_lab.world.conditions import next_shot
    shot = Shot(yaw=np.pi/2, action="walking")
    later = next_shot(shot, np.random.default_rng(0))
    assert later.offset[0] > 0 and later.offset[1] < .01 and later.offset[2] > 0
    assert next_shot(replace(shot, action="standing"), np.random.default_rng(0)).offset == (0., 0., 0.)


def test_conditions_go_together(cache):
    made = ConditionedPlan(FEW, SMALL, 0, Conditions(2, 1, .5, 2))
    columns = made.columns()
    assert set(columns) == {"clothes", "modality", "occluded", "track"}
    assert all(len(values) == len(made.items) for values in columns.values())
    assert all(isinstance(item, Sighting) for item in made.items)
    pairs = zip(made.items[::2], made.items[1::2])
    assert all((a.seen, a.infrared, a.track, a.shot.occluder) == (b.seen, b.infrared, b.track, b.shot.occluder)
               for a, b in pairs)


# ---------------------------------------------------------------- between air and ground

def test_air_and_ground_ask_each_other(cache):
    made = World("smoke", task="aerial-ground", cache=cache, groups=aerial_ground_groups(4, 10, 2), size=(48, 24))
    table = made.table()
    for asked, searched in (("aerial", "ground"), ("ground", "aerial")):
        queries, gallery = table.query("test").where(view=asked), table.gallery("test").where(view=searched)
        assert len(queries) == 20 and len(gallery) == 20
        assert set(queries["pid"]) == set(gallery["pid"]) and not set(queries["cam"]) & set(gallery["cam"])
    assert set(ATTRIBUTES) == set(table["attrs"][0])


# ---------------------------------------------------------------- rules of the field, by name

def sides(made):
    "Random features of queries and gallery, with the columns of the table"
    table, rng = made.table(), np.random.default_rng(0)
    def features(some):
        emb = torch.from_numpy(rng.normal(size=(len(some), 8)).astype(np.float32))
        return image_embeddings(torch.nn.Identity(), some, emb)
    return features(table.query("test")), features(table.gallery("test"))


def test_protocols_find_their_columns(hard, cache):
    "Clothes, modality, view and track as the records of the field name them"
    q, g = sides(hard)
    by_name, by_rule = retrieval_metrics(q, g, protocol="ltcc.cc"), retrieval_metrics(q, g, junk=Junk("cam", "clothes"))
    assert by_name["mAP"] == pytest.approx(by_rule["mAP"])
    assert retrieval_metrics(q, g, protocol="regdb.t2v")["n_query"] == (hard.table().query("test")["modality"]
                                                                        == "infrared").sum()
    from_above = World("smoke", task="aerial-ground", cache=cache, groups=aerial_ground_groups(4, 10, 2), size=(48, 24))
    assert retrieval_metrics(*sides(from_above), protocol="ag-reid.a2g")["n_query"] == 20
    walks = world(cache, track=3)
    assert retrieval_metrics(*sides(walks), protocol="mars.official")["n_query"] == len(sides(walks)[0])//3
