"""Shared fixtures: a private cache, quiet progress, one thread, and the test vectors."""
import json
import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("MPLBACKEND", "Agg")
os.environ["REID_LAB_QUIET"] = "1"


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory):
    "Nothing a test makes may land in the user's cache"
    if "REID_LAB_TEST_CACHE" in os.environ: folder = os.environ["REID_LAB_TEST_CACHE"]
    else: folder = str(tmp_path_factory.mktemp("cache"))
    old = os.environ.get("REID_LAB_CACHE")
    os.environ["REID_LAB_CACHE"] = folder
    yield Path(folder)
    if old is None: os.environ.pop("REID_LAB_CACHE")
    else: os.environ["REID_LAB_CACHE"] = old


@pytest.fixture(scope="session")
def oracles():
    "Test vectors worked out by hand or from public reference implementations (float64, 6 decimals)"
    return json.loads((Path(__file__).parent / "data" / "oracles.json").read_text())
