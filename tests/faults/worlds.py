"""The World's cache: killed builds, damaged files, and several processes that mend it at once."""
import functools
import os
import shutil
import tempfile
import traceback
from pathlib import Path
from unittest import mock

import numpy as np
from fault import bad, clutter, cut, empty, flip, interruption, killed, warned

from reid_lab.world import world as module
from reid_lab.world.plan import CameraCounts, Group, text_groups
from reid_lab.world.world import World

TINY = dict(groups=text_groups(3, 2, 2, 2, 2, 2, CameraCounts(2, 3)), size=(32, 16), supersample=1, backend="numpy")


def _world(folder): return World("smoke", seed=5, cache=folder, n_jobs=1, **TINY)


@functools.cache
def _built():
    "A whole cache, and what its table and images are"
    folder = Path(tempfile.mkdtemp())
    t = _world(folder).table()
    return folder, t.frame, np.stack(t.images(range(len(t))))


def _copied(folder):
    "A copy of the whole cache -> its folder"
    for p in _built()[0].iterdir(): shutil.copytree(p, folder/p.name)
    return _world(folder).folder


def _right(folder, deep=False):
    "The World opens with the right table and pixels -> what was warned"
    with warned() as said:
        w = _world(folder)
        if deep: w.build(deep=True)
        t = w.table()
    _, frame, images = _built()
    assert t.frame.equals(frame) and (np.stack(t.images(range(len(t)))) == images).all()
    assert all(name.endswith(".lock") and name.count("/") == 0 for name in clutter(folder)), clutter(folder)
    assert [p.name for p in folder.iterdir() if p.is_dir()] == [w.key]
    assert sorted(p.name.split("-")[0] for p in w.folder.iterdir()) == ["captions", "images.npy", "sums.json",
                                                                         "table.json", "visible.npy"]
    return "\n".join(said)


def _dies(at, nth=1, after=False, harm=None):
    "Killed there while the cache is made (or, after `harm`, mended): the next process makes it"
    def check(folder):
        if harm: harm(_copied(folder))
        def table():
            with warned(): _world(folder).table()
        killed(table, at, nth, after)
        _right(folder)
        return "right"
    return check


def _other_world(folder):
    "Remains of a killed build are removed when any World is built"
    killed(lambda: World("smoke", seed=6, cache=folder, n_jobs=1, **TINY).table(), "reid_lab.core.files._sync")
    assert len(clutter(folder)) >= 2
    return str(_right(folder) == "")


def _harmed(harm, deep=False):
    "A damaged cache is named in a warning and made again"
    def check(folder):
        harm(_copied(folder))
        return _right(folder, deep)
    return check


def _on(name, do):
    def harm(folder): do(next(folder.glob(name)))
    return harm


def _table_alone(folder):
    "A damaged table is written again without rendering"
    cut(_copied(folder)/"table.json")
    with mock.patch.object(module, "_render_chunk", side_effect=AssertionError("rendered")): return _right(folder)


def _four(folder):
    "Four processes mend at once: all end well and with the right World; one of them mends"
    flip(_copied(folder)/"visible.npy")
    gate, pids = folder.parent/f"{folder.name}.gate", []
    _built()
    for _ in range(4):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                while not gate.exists(): pass
                with warned() as said: t = _world(folder).table()
                if t.frame.equals(_built()[1]) and (np.stack(t.images(range(len(t)))) == _built()[2]).all():
                    code = 10 + len(said)
            finally:
                if code == 1: traceback.print_exc()
                os._exit(code)
        pids.append(pid)
    gate.touch()
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids)
    assert codes == [10, 10, 10, 11], codes
    _right(folder)
    return "one of four mended"


def _zeros(path):
    "The second half of a file is zeros"
    data = path.read_bytes()
    path.write_bytes(data[:len(data)//2] + bytes(len(data) - len(data)//2))


def _swapped(path):
    "Two images have changed places: the same bytes in another order"
    images = np.load(path)
    images[[0, -1]] = images[[-1, 0]]
    np.save(path, images)


def _same_time(path):
    "A byte of the pixels is another, and the time of the file is as before"
    then = path.stat()
    flip(path)
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns))


def _after_it_was_opened(folder):
    "A file that has changed since this process compared it is compared again"
    path = _copied(folder)
    assert _right(folder) == ""
    _zeros(path/"images.npy")
    return _right(folder)


def _read_only(folder):
    "A whole cache that nobody may write to is used as it is"
    path = _copied(folder)
    modes = [path, *path.iterdir()]
    for p in modes: p.chmod(0o555 if p.is_dir() else 0o444)
    try:
        with mock.patch.object(module, "locked", side_effect=AssertionError("locked")): return str(_right(folder) == "")
    finally:
        for p in modes: p.chmod(0o755)


REPAIR = _on("visible.npy", flip)
FAULTS = [
    *(interruption(f"world: killed {when}", f"a process that makes the cache dies {when}", "the next one makes it",
                   check, "right") for when, check in (
        ("while rendering", _dies("reid_lab.world.world._write")),
        ("before the visible areas", _dies("numpy.save")),
        ("before the checksums", _dies("reid_lab.world.world.write_sums")),
        ("before it is on the disk", _dies("reid_lab.core.files._sync", 2)),
        ("before it has its name", _dies("pathlib.Path.replace", 2)),
        ("before the captions", _dies("reid_lab.world.world._captions")),
        ("when it has its name", _dies("reid_lab.core.files._sync", 4)),
        ("in the captions", _dies("reid_lab.core.files._sync", 5)),
        ("before the checksum of the captions", _dies("reid_lab.world.world.write_sums", 2)),
        ("when the damaged cache is removed", _dies("shutil.rmtree", after=True, harm=REPAIR)),
        ("while it is made again", _dies("reid_lab.world.world._write", harm=REPAIR)))),
    interruption("world: remains of another build", "another World's build was killed", "its remains are removed",
                 _other_world, "True"),
    *(interruption(f"world: {file} {harm.__name__}", f"{harm.__name__} of {file}", "a warning, and the right World",
                   _harmed(_on(file, harm)), *words) for file, harm, *words in (
        ("table.json", cut, "made again", "table.json", "bytes instead of"),
        ("table.json", flip, "made again", "table.json", "other contents"),
        ("visible.npy", flip, "made again", "visible.npy", "other contents"),
        ("visible.npy", empty, "made again", "visible.npy", "has 0 bytes"),
        ("visible.npy", Path.unlink, "made again", "visible.npy", "is missing"),
        ("images.npy", cut, "made again", "images.npy", "bytes instead of"),
        ("images.npy", Path.unlink, "made again", "images.npy", "is missing"),
        ("sums.json", cut, "made again", "has no checksum"),
        ("captions-*.json", cut, "captions-", "is damaged and written again"),
        ("captions-*.json", flip, "captions-", "is damaged and written again"))),
    interruption("world: a pixel flipped", "one bit of an image", "build(deep=True) finds it",
                 _harmed(_on("images.npy", flip), deep=True), "images.npy", "other contents"),
    interruption("world: only the table", "table.json is cut", "it is written again without rendering", _table_alone,
                 "table.json"),
    interruption("world: four mend at once", "four processes open a damaged cache", "one mends it, all get it", _four,
                 "one of four"),
    interruption("world: a cache that cannot be written", "a read-only cache", "it is used without a lock",
                 _read_only, "True"),

    bad("world: preset", "misspelt", lambda tmp: World("quik"), "preset='quik'", "Did you mean 'quick'?"),
    bad("world: task", "misspelt", lambda tmp: World("smoke", task="rid"), "task='rid'", "Did you mean 'reid'?"),
    bad("world: option", "misspelt", lambda tmp: World("smoke", severty=1.), "'severty'", "Did you mean 'severity'?"),
    bad("world: size", "too small", lambda tmp: World("smoke", size=(8, 8)), "size=(8, 8)", "at least 16 pixels"),
    bad("world: severity", "beyond 2", lambda tmp: World("smoke", severity=3.), "severity=3.0", "between 0 and 2"),
    bad("world: seed of a fraction", "seed=1.5", lambda tmp: World("smoke", seed=1.5),
        "seed=1.5 must be a whole number",
        "from 0 to 4294967295"),
    bad("world: seed of a switch", "seed=True", lambda tmp: World("smoke", seed=True), "seed=True must be a whole"),
    bad("world: negative seed", "seed=-1", lambda tmp: World("smoke", seed=-1), "seed=-1 must be a whole number"),
    bad("world: seed of text", "seed='7'", lambda tmp: World("smoke", seed="7"), "seed='7' must be a whole number"),
    bad("world: seed that the streams cannot hold", "2**32", lambda tmp: World("smoke", seed=2**32),
        "from 0 to 4294967295"),
    bad("world: seed of NaN", "nan", lambda tmp: World("smoke", seed=float("nan")), "seed=nan must be a whole number"),
    bad("world: no process", "n_jobs=0", lambda tmp: World("smoke", n_jobs=0), "n_jobs=0 must be a whole number"),
    bad("world: half a sample", "supersample=1.5", lambda tmp: World("smoke", supersample=1.5), "supersample=1.5"),
    bad("world: share above one", "occluders=2", lambda tmp: World("smoke", occluders=2), "occluders=2",
        "between 0 and 1"),
    bad("world: share of NaN", "confusion=nan", lambda tmp: World("smoke", confusion=float("nan")), "confusion=nan"),
    bad("world: severity of text", "severity='x'", lambda tmp: World("smoke", severity="x"),
        "severity='x' must be a number"),
    bad("world: half a pixel", "size=(64.5, 32)", lambda tmp: World("smoke", size=(64.5, 32)),
        "size=(64.5, 32) must be"),
    bad("world: one side", "size=64", lambda tmp: World("smoke", size=64), "size=64 must be (height, width)"),
    bad("world: backend", "backend='gpu'", lambda tmp: World("smoke", backend="gpu"), "backend='gpu'", "choose one of"),
    bad("world: a number as cache", "cache=5", lambda tmp: World("smoke", cache=5),
        "cache=5 must be the name of a folder"),
    bad("world: cache below a file", "cache='a.txt/x'",
        lambda tmp: ((tmp/"a.txt").write_text(""), World("smoke", cache=tmp/"a.txt"/"x")),
        "a.txt' is a file; name a folder",
        error=NotADirectoryError),
    bad("world: groups of numbers", "groups=[3]", lambda tmp: World("smoke", groups=[3]), "groups[0] is int"),
    bad("world: group of an unknown split", "split='tst'", lambda tmp: World("smoke", groups=[Group("tst",
        "real-like", 2, 2, 2)]),
        "groups[0].split='tst'", "Did you mean 'test'?"),
    bad("world: group with a fraction of people", "ids=2.5", lambda tmp: World("smoke", groups=[Group("test",
        "real-like", 2.5, 2, 2)]),
        "groups[0].ids=2.5 must be a whole number"),
    *(interruption(f"world: images.npy {harm.__name__.strip('_')}", harm.__doc__.lower(),
        "a warning, and the right World",
                   _harmed(_on("images.npy", harm)), "made again", "images.npy", "other contents")
      for harm in (_zeros, _swapped, _same_time)),
    interruption("world: changed after it was opened", "half of the images becomes zeros between two openings",
                 "the second opening notices", _after_it_was_opened, "made again", "images.npy"),
]
