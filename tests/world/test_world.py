"""The renderer and the World: same bytes from the same seed, separate streams, an atomic cache, disjoint splits."""
import errno
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import joblib
import numpy as np
import pytest

from reid_lab.core.basics import stream
from reid_lab.world import world as world_module
from reid_lab.world.people import PARTS, name_colour, sample_people
from reid_lab.world.bodies import ACTIONS, Shot
from reid_lab.world.places import ISP, Camera, Occluder, develop
from reid_lab.world.render import pick_backend, reference_areas, render
from reid_lab.world.plan import (DOMAINS, KINDS, PRESETS, TASKS, Group, Options, Plan, make_camera, sample_shot,
    text_groups)
from reid_lab.world.world import World, build_cache

FEW = text_groups(6, 2, 3, 4, 4, 3, 3, 3)
TINY = dict(groups=FEW, size=(48, 24), supersample=1)
numba = pytest.mark.skipif(pick_backend() != "numba", reason="numba is not installed")


@pytest.fixture(scope="module")
def crowd():
    return sample_people(60, seed=3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    w = World("smoke", seed=5, cache=tmp_path_factory.mktemp("tiny"), **TINY)
    w.table()
    return w


# ---------------------------------------------------------------- renderer

@numba
@pytest.mark.parametrize("size,n", [((128, 64), 2), ((64, 32), 1), ((96, 48), 3)])
def test_numba_and_numpy_draw_the_same(crowd, size, n):
    for i, person in enumerate(crowd[:14]):
        cam = make_camera(1, i, 1, list(KINDS)[i % 4], "real-like", ("campus", "street")[i % 2])
        shot = sample_shot(stream(1, "t", i), cam, .5)
        a, b = (render(person, cam.at(shot.time), shot, size, n, backend) for backend in ("numpy", "numba"))
        assert np.abs(a.image.astype(int) - b.image).max() <= 1
        assert (a.parts != b.parts).sum() == 0
        assert a.visible == b.visible


def test_render_is_deterministic_and_the_noise_follows_the_seed(crowd):
    cam = Camera(isp=ISP(noise=8.))
    one, again, other = (render(crowd[0], cam, Shot(seed=s)).image for s in (1, 1, 2))
    assert (one == again).all() and (one != other).mean() > .5


def test_torso_has_the_colour_of_its_name(crowd):
    checked = 0
    for p in crowd:
        if p.pattern != "plain" or p.opened == "yes" or p.bag == "waist bag": continue
        r = render(p, Camera(ambient=1.), Shot(yaw=.3), reference=np.ones(len(PARTS)))
        colour = np.median(r.image[r.parts == PARTS.index("upper")], 0)
        assert name_colour(colour) == p.upper_colour, p
        if p.lower in ("trousers", "leggings", "shorts", "skirt"):
            colour = np.median(r.image[r.parts == PARTS.index("lower")], 0)
            assert name_colour(colour) == p.lower_colour, p
        checked += 1
    assert checked > 12


def test_part_map_agrees_with_visible(crowd):
    for i, p in enumerate(crowd[:12]):
        r = render(p, Camera(elevation=.1*i), Shot(yaw=i*1.1, action=ACTIONS[i % 3], phase=i))
        for name, v in r.visible.items():
            assert v["pixels"] == (r.parts == PARTS.index(name)).sum()
            assert 0 <= v["fraction"] <= 1
        assert {"upper", "skin"} <= set(r.visible)


def test_what_is_absent_is_not_in_the_map(crowd):
    bare = [p for p in crowd if p.hat == "none" and p.bag == "none" and p.held == "none" and p.glasses == "no"][:5]
    assert bare
    for p in bare:
        seen = {PARTS[i] for i in np.unique(render(p, Camera(), Shot(yaw=.4)).parts)}
        assert not seen & {"hat", "bag", "held", "glasses"}
    dressed = next(p for p in crowd if p.bag == "backpack")
    back = render(dressed, Camera(), Shot(yaw=np.pi)).visible["bag"]["fraction"]
    front = render(dressed, Camera(), Shot(yaw=0.)).visible["bag"]["fraction"]
    assert back > .5 > front > 0


def test_looking_down_hides_the_lower_parts(crowd):
    def shown(elevation, part):
        views = [render(p, Camera(elevation=elevation, distance=14.), Shot(yaw=i)) for i, p in enumerate(crowd[:16])]
        return np.mean([v.visible.get(part, dict(fraction=0))["fraction"] for v in views])
    assert shown(1.1, "lower") < .5*shown(.1, "lower")
    assert shown(1.1, "shoes") < shown(.1, "shoes")
    assert shown(1.1, "hair") > .8


def test_occluder_hides(crowd):
    areas = reference_areas(crowd[0])
    free, hidden = (render(crowd[0], shot=Shot(occluder=o), reference=areas) for o in (None, Occluder("low", at=.5)))
    assert hidden.visible["shoes"]["pixels"] == 0 < free.visible["shoes"]["pixels"]
    assert not hidden.parts[68:].any()


def test_neutral_sensor_changes_nothing():
    rgb = np.random.default_rng(0).random((16, 8, 3))
    assert np.abs(develop(rgb, ISP()).astype(int) - np.round(rgb*255)).max() <= 1
    assert develop(rgb, ISP(exposure=.4)).mean() > develop(rgb, ISP()).mean() > develop(rgb, ISP(exposure=-.4)).mean()
    assert develop(rgb, ISP(blur=3.)).std() < develop(rgb, ISP()).std()
    assert develop(rgb, ISP(jpeg=30)).shape == (16, 8, 3)


@pytest.mark.parametrize("bad,word", [(dict(camera=Camera(wall="sea")), "wall"),
                                      (dict(camera=Camera(ground="lava")), "ground"),
                                      (dict(shot=Shot(action="flying")), "action"),
                                      (dict(shot=Shot(arms="up")), "arms"),
                                      (dict(backend="gpu"), "backend")])
def test_unknown_names_are_refused(crowd, bad, word):
    with pytest.raises(ValueError, match=f"{word}=.*choose one of"): render(crowd[0], **bad)


# ---------------------------------------------------------------- world

def fewer(task): return tuple(replace(g, ids=10) for g in PRESETS["smoke"][task])


def folder_bytes(folder): return {f.name: f.read_bytes() for f in sorted(folder.iterdir())}


def test_same_seed_same_bytes(tiny, tmp_path):
    again = World("smoke", seed=5, cache=tmp_path, **TINY)
    again.table()
    assert again.key == tiny.key
    assert folder_bytes(again.folder) == folder_bytes(tiny.folder)
    other = World("smoke", seed=6, cache=tmp_path, **TINY)
    assert other.key != tiny.key
    assert (np.load(other.build()/"images.npy") != np.load(tiny.folder/"images.npy")).mean() > .5


def test_parallel_and_numpy_builds_give_the_same_pictures(tiny, tmp_path):
    plan = tiny.plan
    with joblib.parallel_config(backend="threading"):   # processes would take seconds to start
        build_cache(tmp_path/"two", plan, n_jobs=2)
    build_cache(tmp_path/"numpy", plan, backend="numpy")
    want = (tiny.folder/"images.npy").read_bytes()
    assert (tmp_path/"two"/"images.npy").read_bytes() == want
    got = np.load(tmp_path/"numpy"/"images.npy").astype(int)
    assert np.abs(got - np.load(tiny.folder/"images.npy")).max() <= 8   # JPEG may enlarge a difference of one level


def test_words_move_no_pixel(tiny):
    before = (tiny.folder/"images.npy").read_bytes()
    table = tiny.table()
    for wording in (dict(granularity="fine"), dict(granularity="mixed", per_image=3),
                    dict(level="identity", confusion=0.),
                    dict(style="real")):
        w = World("smoke", seed=5, cache=tiny.cache, **TINY, **wording)
        assert w.folder == tiny.folder
        other = w.table()
        assert list(other["path"]) == list(table["path"])
        assert list(other["captions"]) != list(table["captions"])
    assert (tiny.folder/"images.npy").read_bytes() == before


def test_severity_moves_sensors_only(tiny):
    a, b = (World("smoke", seed=5, cache=tiny.cache, **TINY, severity=s).plan.items for s in (.2, .9))
    assert [i.shot for i in a] == [i.shot for i in b] and [i.seen for i in a] == [i.seen for i in b]
    for x, y in zip(a, b):
        assert replace(x.camera.camera, isp=ISP()) == replace(y.camera.camera, isp=ISP())
        assert (x.camera.camera.isp == y.camera.camera.isp) == (x.camera.domain == "generated")


def test_adding_people_keeps_those_before(tiny):
    more = Plan((replace(FEW[0], ids=9), *FEW[1:]), tiny.options, 5)
    n = FEW[0].ids*FEW[0].shots
    assert more.items[:n - 4] == tiny.plan.items[:n - 4]


def test_reader_serves_the_memmap_and_pickles(tiny):
    table = tiny.table()
    images = np.load(tiny.folder/"images.npy")
    copy = pickle.loads(pickle.dumps(table.reader))
    for i in (0, 7, len(table) - 1):
        assert (table.image(i) == images[i]).all() and (copy([table["path"][i]])[0] == images[i]).all()
    real = table.where(domain="real-like", split="test")
    assert (real.image(0) == images[table["path"].tolist().index(real["path"][0])]).all()
    assert len(pickle.dumps(table.reader)) < 1000


def test_pictures_and_parts_can_be_made_again(tiny):
    table = tiny.table()
    for i in (0, 20, 40):
        again = tiny.again(i)
        assert (again.image == table.image(i)).all()
        assert (tiny.parts(table["path"][i]) == again.parts).all()
        got = tiny.visible().iloc[i]
        assert all(abs(got[p] - v["fraction"]) < 1e-6 for p, v in again.visible.items())


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_splits_share_nobody(preset, task):
    groups = tuple(replace(g, ids=min(g.ids, 12), shots=min(g.shots, 6)) for g in PRESETS[preset][task])
    plan = Plan(groups, Options(), 0)
    ids = {s: {i.person.pid for i in plan.items if plan.groups[i.group].split == s} for s in ("train", "val", "test")}
    assert all(ids.values())
    assert not (ids["train"] & ids["val"] | ids["train"] & ids["test"] | ids["val"] & ids["test"])
    assert len({i.camera.cam for i in plan.items}) == len(plan.cams)
    domains = {(i.camera.cam, i.camera.domain) for i in plan.items}
    assert len(domains) == len(plan.cams)


def test_tables_are_valid(tiny):
    table = tiny.table()
    table.validate()
    assert set(table["domain"]) == set(DOMAINS) and set(table["split"]) == {"train", "val", "test"}
    assert all(len(c) == (1 if d == "generated" else 2) for c, d in zip(table["captions"], table["domain"]))


def test_image_task_has_unseen_cameras_and_cross_camera_queries(tmp_path):
    w = World("smoke", cache=tmp_path, groups=fewer("reid"), size=(32, 16), supersample=1)
    f = w.table().frame
    train, test = f[f.split == "train"], f[f.split == "test"]
    unseen = set(test.cam) - set(train.cam)
    assert len(set(train.cam)) == 3 and len(unseen) == 2
    for _, one in test.groupby("pid"):
        assert set(one.cam) >= unseen and (one.role == "query").sum() == one.cam.nunique()
        assert (one.groupby("cam").role.apply(set) == {"query", "gallery"}).all()


def test_aerial_task_hides_lower_parts(tmp_path):
    w = World("smoke", cache=tmp_path, groups=fewer("aerial"), size=(48, 24), supersample=1)
    table = w.table()
    shown = w.visible().groupby(table["view"])[["lower", "shoes"]].mean()
    assert (shown.loc["aerial"] < shown.loc["ground"]).all()
    f = table.frame
    assert set(f[f.view == "ground"].pid) == set(f[f.view == "aerial"].pid)


@pytest.mark.parametrize("kw,message", [
    (dict(preset="quik"), "Did you mean 'quick'"), (dict(severty=.3), "Did you mean 'severity'"),
    (dict(task="txt"), "task='txt'"),
    (dict(severity=-1.), "between 0 and 2"), (dict(size=(8, 4)), "at least 16"), (dict(scenario="beach"), "scenario="),
    (dict(groups=(Group("train", "generated", 0, 1, 1),)), "at least 1")])
def test_bad_options(kw, message):
    with pytest.raises(ValueError, match=message): World(**{"preset": "smoke", **kw})


# ---------------------------------------------------------------- cache

def break_after(monkeypatch, calls, error):
    real, n = world_module._write, [0]

    def write(f, data):
        n[0] += 1
        if n[0] > calls: raise error
        return real(f, data)
    monkeypatch.setattr(world_module, "_write", write)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("killed"), MemoryError()])
def test_a_broken_build_leaves_nothing(monkeypatch, tmp_path, error):
    w = World("smoke", seed=5, cache=tmp_path, **TINY)
    with monkeypatch.context() as m:
        break_after(m, 1, error)
        with pytest.raises(type(error)): w.build()
    assert list(tmp_path.iterdir()) == []
    assert len(w.table()) == len(w.plan.items)


@pytest.mark.parametrize("calls", [0, 1])
def test_full_disk_is_explained(monkeypatch, tmp_path, calls):
    w = World("smoke", seed=5, cache=tmp_path, **TINY)
    with monkeypatch.context() as m:
        break_after(m, calls, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(OSError, match="no space for the world cache.*cache=DIR") as e: w.build()
    assert e.value.errno == errno.ENOSPC and list(tmp_path.iterdir()) == []


def test_too_little_room_is_noticed_before_rendering(monkeypatch, tmp_path):
    monkeypatch.setattr(world_module.shutil, "disk_usage", lambda p: type("U", (), dict(free=10))())
    monkeypatch.setattr(world_module, "_render_chunk", lambda *a: pytest.fail("rendered without room"))
    with pytest.raises(OSError, match="MB are needed"): World("smoke", cache=tmp_path, **TINY).build()


def test_other_io_errors_are_not_hidden(monkeypatch, tmp_path):
    break_after(monkeypatch, 0, OSError(errno.EIO, "broken disk"))
    with pytest.raises(OSError, match="broken disk"): World("smoke", cache=tmp_path, **TINY).build()


def test_two_builders_at_once(tiny, tmp_path):
    gate = threading.Barrier(2)

    def one():
        w = World("smoke", seed=5, cache=tmp_path, **TINY)
        w.plan
        gate.wait(60)
        return len(w.table())
    with ThreadPoolExecutor(2) as pool: made = [pool.submit(one) for _ in range(2)]
    assert [m.result() for m in made] == [len(tiny.table())]*2
    assert [f.name for f in tmp_path.iterdir()] == [tiny.key]
    built, alone = folder_bytes(tmp_path/tiny.key), folder_bytes(tiny.folder)
    built.pop("sums.json"); assert len(built) == 4   # the other also holds captions of other tests
    assert all(alone[name] == data for name, data in built.items())


@pytest.mark.parametrize("harm", ["cut", "remove"])
@pytest.mark.filterwarnings("ignore:the World cache")
def test_a_damaged_cache_is_built_again(tiny, tmp_path, harm):
    w = World("smoke", seed=5, cache=tmp_path, **TINY)
    path = w.build()/"images.npy"
    if harm == "cut": path.write_bytes(path.read_bytes()[:5000])
    else: path.unlink()
    assert (w.table().images([3])[0] == tiny.table().image(3)).all()
