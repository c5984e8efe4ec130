"""Shared fixtures: a private cache, quiet progress, one thread, the programs of tools/, and the test vectors."""
import gc
import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["REID_LAB_QUIET"] = "1"


def pytest_collection_finish(session):
    "What is there before the first test stays: later collections of garbage, of libraries too, pass it over"
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    "What was run of the fault table, and how much of it held; also where other processes ran it"
    known = {"input": "bad inputs", "interruption": "interruptions"}
    ran = {outcome: [dict(report.user_properties) for report in terminalreporter.stats.get(outcome, [])]
           for outcome in ("passed", "failed")}
    rows = [row for found in ran.values() for row in found if row.get("fault") in known]
    if not rows: return
    counts = [f"{sum(row['fault'] == kind for row in rows)} {text}" for kind, text in known.items()]
    areas = {row["area"] for row in rows}
    terminalreporter.write_line(f"fault table: {', '.join(counts)} in {len(areas)} area{'s'*(len(areas) != 1)}")
    failed = sum(row.get("fault") in known for row in ran["failed"])
    if failed: terminalreporter.write_line(f"fault table: {failed} did not hold")


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    "Nothing a test makes may land in the user's cache"
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ: base = base.parent      # of all workers: each World is rendered once
    folder = os.environ.get("REID_LAB_TEST_CACHE", str(base/"cache"))
    old = os.environ.get("REID_LAB_CACHE")
    os.environ["REID_LAB_CACHE"] = folder
    yield Path(folder)
    if old is None: os.environ.pop("REID_LAB_CACHE")
    else: os.environ["REID_LAB_CACHE"] = old


@pytest.fixture(scope="session", autouse=True)
def unhurried_disk():
    "Files are handed to the system and not waited for: a process that is killed loses none, and no test cuts the power"
    def only_looked_at(file):
        "A closed file still is an error"
        os.fstat(file if isinstance(file, int) else file.fileno())

    true, os.fsync = os.fsync, only_looked_at
    yield
    os.fsync = true


@pytest.fixture(scope="session")
def tool():
    "A program of tools/ as a module of its own: `tool('check_nbs')`"
    def load(name):
        path = Path(__file__).resolve().parents[1]/"tools"/f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"tool_{name}", path)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    return load


@pytest.fixture
def outside_make():
    """Environment variables without those of a `make` that runs the tests and of an environment of its user.

    Make exports what its command line sets (`make VENV=... test`), so an inner `make` would use the outer one's folder.
    """
    gone = ("VENV", "PYTHON", "PRESET", "ARGS", "WORKERS", "TORCH", "TORCH_INDEX", "LABFLAGS", "CONDA_PREFIX",
            "CONDA_DEFAULT_ENV")
    return {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("MFLAGS", *gone)}


@pytest.fixture(scope="session")
def oracles():
    "Test vectors worked out by hand or from public reference implementations (float64, 6 decimals)"
    return json.loads((Path(__file__).parent / "vectors" / "oracles.json").read_text())


@pytest.fixture
def no_user_settings(monkeypatch, tmp_path):
    "The machine's own data and settings must not decide a test; gives the home folder in their place"
    monkeypatch.delenv("REID_LAB_DATA", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    return home


@pytest.fixture
def three_batches():
    "A loader of three batches an epoch, from a function that makes one from a seed"
    class Three:
        def __init__(self, batch): self.batch = batch
        def __len__(self): return 3
        def epoch(self, e, start=0): return (self.batch(10*e + i) for i in range(start, 3))
    return Three


@pytest.fixture
def whole_and_resumed(tmp_path):
    "Weights after five steps in a row, and after two steps, a checkpoint and three more"
    from reid_lab.training.checkpoints import Checkpoint
    from reid_lab.training.learner import Learner
    def train(make, loader, **learner):
        whole = Learner(make(), loader, **learner).fit(steps=5).net.state_dict()
        Learner(make(), loader, callbacks=[Checkpoint(tmp_path, 2)], **learner).fit(steps=2)
        saved = Checkpoint(tmp_path, 2)
        again = Learner(make(), loader, callbacks=[saved], **learner)
        saved.resume(again)
        assert again.step == 2
        return whole, again.fit(steps=5).net.state_dict()
    return train
