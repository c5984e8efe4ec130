"A repository that `reid_lab new` writes: what it holds, and that it works where it is installed"
import json
import os
import re
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import reid_lab
from reid_lab.experiments.params import notebook_parameters
from reid_lab.experiments.repository import EXAMPLES, new_repository

ROOT = Path(reid_lab.__file__).resolve().parents[1]


def test_it_is_small_and_has_the_name_of_its_folder(tmp_path):
    files = new_repository(tmp_path/"Ring-Lab")
    names = [path.relative_to(tmp_path/"Ring-Lab").as_posix() for path in files]
    assert names == ["README.md", "pyproject.toml", "ring_lab/__init__.py", "ring_lab/model.py",
                     "ring_lab/run_ring_lab.ipynb", "ring_lab/studies.py", "tests/test_ring_lab.py"]
    assert not [path for path in files if "mylab" in path.read_text(encoding="utf-8")]
    assert notebook_parameters(files[4]) == dict(preset="quick", study="main", seed=0, seeds=0, out_dir="")
    template = Path(reid_lab.__file__).parent/"resources"/"new"
    assert sum(len(path.read_text().splitlines()) for path in template.rglob("*.txt")) <= 150


def test_a_name_may_begin_with_that_of_the_template(tmp_path):
    written = new_repository(tmp_path/"mylab2")
    assert tmp_path/"mylab2"/"mylab2"/"__init__.py" in written
    assert all("mylab22" not in path.as_posix() + path.read_text(encoding="utf-8") for path in written)


def code_lines(files):
    "Lines of modules, of the notebook's code and of the test, empty ones left out"
    texts = [path.read_text(encoding="utf-8") for path in files if path.suffix == ".py"]
    for path in files:
        if path.suffix != ".ipynb": continue
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts += ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return [line for text in texts for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_written_by_the_same_rules(example, tmp_path):
    files = new_repository(tmp_path/"ring", example)
    template = {path.relative_to(tmp_path/"plain").as_posix() for path in new_repository(tmp_path/"plain")}
    names = {path.relative_to(tmp_path/"ring").as_posix() for path in files}
    assert {name.replace("plain", "ring") for name in template} <= names
    assert not [path for path in files if "mylab" in path.read_text(encoding="utf-8")]
    assert (tmp_path/"ring"/"pyproject.toml").read_text() == (tmp_path/"plain"/"pyproject.toml").read_text().replace(
        "plain", "ring")
    lines = code_lines(files)
    assert len(lines) <= 120 and max(map(len, lines)) <= 120
    hidden = re.compile(r"import .*\b_(?!_)|\b(?!self|__)\w+\._(?!_)|hook")     # names of the library that begin with _
    assert not [line for line in lines if hidden.search(line)]
    with pytest.raises(ValueError, match="cluster_contrast"): new_repository(tmp_path/"other", "no such example")
    assert not (tmp_path/"other").exists()


def test_nothing_is_written_into_a_folder_in_use(tmp_path):
    (tmp_path/"ring").mkdir()
    (tmp_path/"ring"/"notes").write_text("mine")
    with pytest.raises(FileExistsError, match="is not empty; name a new folder"): new_repository(tmp_path/"ring")
    with pytest.raises(FileExistsError): new_repository(tmp_path/"ring"/"notes")
    assert [path.name for path in (tmp_path/"ring").iterdir()] == ["notes"]
    for name in ("7ring", "class", "json", "numpy", "m\u00ffring", "_ring", "ring_", "camel", "clip"):
        with pytest.raises(ValueError, match="name the folder"): new_repository(tmp_path/name)
        assert not (tmp_path/name).exists()


class Environment:
    "A new virtual environment that sees this one's libraries, without network"
    def __init__(self, folder):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder/"venv"], check=True)
        self.folder, self.bin = folder, folder/"venv"/"bin"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        seen = [str(ROOT), sysconfig.get_paths()["purelib"], *site.getsitepackages()]
        (folder/"venv"/"lib"/version/"site-packages"/"seen.pth").write_text("\n".join(seen))
        gone = ("PYTHONPATH", "REID_LAB_WITH", "REID_LAB_PLUGINS")
        self.env = {**{k: v for k, v in os.environ.items() if k not in gone}, "REID_LAB_HOME": str(folder/"home"),
                    "OMP_NUM_THREADS": "1"}

    def run(self, *args, code=0):
        "What a program of the environment prints"
        done = subprocess.run([self.bin/"python", *map(str, args)], cwd=self.folder, env=self.env, capture_output=True,
                              text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr


def write_crops(folder):
    "Four images of two people"
    folder.mkdir()
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 255, (4, 64, 32, 3), dtype=np.uint8)):
        Image.fromarray(pixels).save(folder/f"{i//2:04d}_c{i % 2 + 1}_{i}.png")


def install(place, name):
    "As its author does it, without network"
    place.run("-m", "pip", "install", "-q", "-e", name, "--no-deps", "--no-build-isolation",
              "--disable-pip-version-check")


@pytest.mark.whole
def test_installed_it_trains_adapts_and_embeds(tmp_path):
    new_repository(tmp_path/"ringlab")
    place = Environment(tmp_path)
    install(place, "ringlab")
    listed = place.run("-m", "reid_lab", "list", "models")
    assert "plug-ins ringlab 0.1.0 (ringlab)" in listed and "; from ringlab" in listed
    assert "how strong it has to be" in place.run("-m", "reid_lab", "list", "experiments", "ringlab")
    place.run("-m", "reid_lab", "run", "ringlab", "--preset", "smoke", "--out", "own")
    metrics = json.loads((tmp_path/"own"/"metrics.json").read_text())
    assert [row["variant"] for row in metrics["rows"]] == ["bot_tiny", "ringlab_tiny"] and metrics["env"]["own"]
    settings = [json.loads(path.read_text()) for path in (tmp_path/"own"/"models").glob("*/training.json")]
    assert len(settings) == 2 and all(kept["model_kw"]["size"] == [64, 32] for kept in settings)   # as at smoke
    place.run("-m", "reid_lab", "run", "dart3", "--preset", "smoke", "--model", "ringlab_tiny", "--methods",
              "Norm,DART3", "--out", "run")
    rows = json.loads((tmp_path/"run"/"metrics.json").read_text())["rows"]
    assert {row["extra"]["model"] for row in rows} == {"ringlab_tiny"}
    assert json.loads((tmp_path/"run"/"models"/"seed-0"/"done.json").read_text())["modules"] == ["ringlab"]

    write_crops(tmp_path/"crops")
    embed = ("-m", "reid_lab", "embed", "crops", "--model", "run", "--out", "f.npz")
    refused = place.run(*embed, "--without-plugins", code=2)
    assert "'ringlab_tiny', which is not registered here" in refused and "--with ringlab" in refused
    assert "features: f.npz" in place.run(*embed)


@pytest.mark.whole
def test_installed_the_example_is_swept_and_what_it_trained_embeds_and_adapts(tmp_path):
    new_repository(tmp_path/"grouped", "cluster_contrast")
    place = Environment(tmp_path)
    install(place, "grouped")
    place.run("-m", "reid_lab", "sweep", "grouped", "-p", "preset=smoke", "-p", "seeds=1", "--seeds", "0", "1",
              "--jobs", "2", "--out", "swept")
    runs = [json.loads(path.read_text()) for path in sorted((tmp_path/"swept").glob("*/metrics.json"))]
    assert sorted(row["seed"] for run in runs for row in run["rows"]) == [0, 0, 0, 1, 1, 1]
    assert {row["extra"]["start"] for run in runs for row in run["rows"]} == {"world"} and len(runs) == 2
    model = next((tmp_path/"swept").glob("*/models/removed-0"))
    assert json.loads((model/"done.json").read_text())["modules"] == ["grouped"]

    write_crops(tmp_path/"crops")
    assert "features: f.npz" in place.run("-m", "reid_lab", "embed", "crops", "--model", model, "--out", "f.npz")
    adapt = ("-m", "reid_lab", "run", "dart3", "--preset", "smoke", "-p", "methods=Norm", "--out", "adapted", "-p")
    assert "--with grouped" in place.run(*adapt, f"model={model}", "--without-plugins", code=2)
    place.run(*adapt, f"model={model}")
    row, = json.loads((tmp_path/"adapted"/"metrics.json").read_text())["rows"]
    assert row["extra"]["model"] == "grouped_tiny of removed-0" and row["images_seen"] == 0
