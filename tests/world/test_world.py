"""The World: same bytes from the same seed, words that move no pixel, an atomic cache."""
import errno
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import joblib
import numpy as np
import pytest

from reid_lab.world import world as world_module
from reid_lab.world.plan import DOMAINS, PRESETS, CameraCounts, Group, text_groups
from reid_lab.world.world import World, build_cache

FEW = text_groups(6, 2, 3, 4, 4, 3, CameraCounts(3, 3))
TINY = dict(groups=FEW, size=(48, 24), supersample=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    w = World("smoke", seed=5, cache=tmp_path_factory.mktemp("tiny"), **TINY)
    w.table()
    return w


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


def test_another_plan_has_another_name(tiny, monkeypatch):
    key = tiny.key
    monkeypatch.setattr(world_module, "PLAN_VERSION", 2)
    assert World("smoke", seed=5, cache=tiny.cache, **TINY).key != key


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
    built.pop("sums.json")
    assert len(built) == 4   # the other also holds captions of other tests
    assert all(alone[name] == data for name, data in built.items())


@pytest.mark.parametrize("harm", ["cut", "remove"])
@pytest.mark.filterwarnings("ignore:the World cache")
def test_a_damaged_cache_is_built_again(tiny, tmp_path, harm):
    w = World("smoke", seed=5, cache=tmp_path, **TINY)
    path = w.build()/"images.npy"
    if harm == "cut": path.write_bytes(path.read_bytes()[:5000])
    else: path.unlink()
    assert (w.table().images([3])[0] == tiny.table().image(3)).all()
