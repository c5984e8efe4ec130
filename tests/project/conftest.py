"What tests of the project share: the wheel that a user installs"
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    "The wheel, built from a copy so that the tree stays as it is"
    if subprocess.run([sys.executable, "-c", "import setuptools, pip"], capture_output=True).returncode:
        pytest.skip("setuptools or pip is not installed here")
    folder = tmp_path_factory.mktemp("build")
    ignore = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.egg-info")
    for name in ("reid_lab", "nbs"): shutil.copytree(ROOT/name, folder/"src"/name, ignore=ignore)
    for name in ("setup.py", "settings.ini", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT/name).exists(): shutil.copy(ROOT/name, folder/"src"/name)
    run = subprocess.run([sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w",
                          str(folder), str(folder/"src")],
                         capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-2000:]
    return zipfile.ZipFile(next(folder.glob("*.whl")))
