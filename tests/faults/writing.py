"""Files and folders that a process was writing when it died."""
import os

from fault import bad, clutter, interruption, killed

from reid_lab.core.files import atomic_path, locked, sweep_remains


def _write(path, text):
    "A folder with one file"
    with atomic_path(path, replace=True) as tmp:
        tmp.mkdir()
        (tmp/"a.txt").write_text(text)


def _dies_before_renaming(tmp):
    _write(tmp/"x", "old")
    killed(lambda: _write(tmp/"x", "new"), "reid_lab.core.files._sync")
    assert (tmp/"x"/"a.txt").read_text() == "old" and clutter(tmp)
    _write(tmp/"x", "newer")
    assert (tmp/"x"/"a.txt").read_text() == "newer" and not clutter(tmp)
    return "newer"


def _dies_between_the_two_names(tmp):
    _write(tmp/"x", "old")
    killed(lambda: _write(tmp/"x", "new"), "pathlib.Path.rename", after=True)
    assert not (tmp/"x").exists() and sweep_remains(tmp/"x") == 1
    assert (tmp/"x"/"a.txt").read_text() == "new" and not clutter(tmp)
    return "new"


def _holder_dies(tmp):
    "The lock of a dead process is free"
    def hold():
        with locked(tmp/"lock"): os.getpid()
    killed(hold, "os.getpid", nth=2)
    with locked(tmp/"lock", wait=False): pass
    return "free"


def _two_holders(tmp):
    with locked(tmp/"lock"), locked(tmp/"lock", wait=False): pass


FAULTS = [
    interruption("folder: killed before it gets its name", "a writer dies with everything written",
                 "the old folder is whole",
                 _dies_before_renaming, "newer"),
    interruption("folder: killed between two renames", "a writer dies when the old folder has lost its name",
                 "the new folder takes the name", _dies_between_the_two_names, "new"),
    interruption("lock: its holder is killed", "a process dies inside a lock", "the next one gets it", _holder_dies,
                 "free"),
    bad("lock: held by another process", "the lock is asked for twice", _two_holders, "in use by process",
        "choose another folder", error=RuntimeError),
]
