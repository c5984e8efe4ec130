"""Every experiment runs through papermill at preset=smoke, as a user would run it, and leaves what it promises."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from reid_lab.data.datasets import export_world, load_dataset
from reid_lab.embeddings import Embeddings
from reid_lab.experiment import notebooks, run_notebook

ROOT = Path(__file__).parents[1]
STUDIES = {"run_camel": ["main", "ablation", "k", "transfer"]}


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path / "runs.csv"))


@pytest.mark.parametrize("name, study", [(n, s) for n in notebooks() for s in STUDIES.get(n, ["main"])])
def test_smoke(name, study, tmp_path):
    done = run_notebook(name, tmp_path / "run", preset="smoke", study=study)
    assert done.metrics["status"] == "finished" and done.metrics["params"]["study"] == study
    assert done.rows and all(0 <= r["R1"] <= 100 and 0 <= r["mAP"] <= 100 for r in done.rows)
    assert {r["dataset"] for r in done.rows} == {"world (source)", "world-smoke"}
    figures = sorted(p.name for p in (done.folder / "figures").iterdir())
    assert f"camel_{study}_training.pdf" in figures and f"camel_{study}_training.png" in figures
    stored = pd.read_csv(tmp_path / "runs.csv")
    assert len(stored) == len(done.rows) and (stored.preset == "smoke").all() and stored.commit.notna().all()
    assert (stored.images_seen > 0).all() and set(stored.selection) <= {"last step", "val mAP"}
    if study == "main":
        assert "camel_main_strips.pdf" in figures and "camel_main_masking.pdf" in figures
        q = Embeddings.load(done.folder / "arms" / "camel-0" / "finetuned-queries")
        assert len(q) == 400 and q.caption is not None


def test_cuhk_pedes_folder_from_the_command_line(tmp_path, private_cache):
    "The command of the README on a folder in the dataset's original layout, with real JPEG files"
    world = load_dataset("world", preset="smoke").where(domain="real-like")
    export_world(world, "cuhk-pedes", tmp_path / "data")
    cmd = [sys.executable, "-m", "papermill", str(ROOT / "nbs/experiments/run_camel.ipynb"), str(tmp_path / "out.ipynb"), "-p", "dataset",
           "cuhk-pedes", "-p", "data_root", str(tmp_path / "data"), "-p", "preset", "smoke", "-p", "study", "zero_shot",
           "-p", "out_dir", str(tmp_path / "run"), "--no-progress-bar", "-k", "python3"]
    done = subprocess.run(cmd, capture_output=True, text=True, cwd=tmp_path, env=dict(os.environ, IPYTHONDIR=str(tmp_path / "ipython")))
    assert done.returncode == 0, done.stderr[-3000:]
    rows = json.loads((tmp_path / "run/metrics.json").read_text())["rows"]
    assert {r["dataset"] for r in rows} == {"world (source)", "cuhk-pedes"}
    assert all(r["metrics"]["n_query"] > 0 if "n_query" in r["metrics"] else True for r in rows)


@pytest.mark.parametrize("bad, message", [(dict(preest="smoke"), "preest"), (dict(study="mian"), "main"), (dict(seed="one"), "seed")])
def test_bad_parameters_are_fatal(bad, message, tmp_path):
    with pytest.raises(Exception, match=message): run_notebook("camel", tmp_path / "run", **{"preset": "smoke", **bad})


def test_missing_folder_says_what_to_do(tmp_path):
    with pytest.raises(Exception, match="data_root|folder|root"):
        run_notebook("camel", tmp_path / "run", preset="smoke", dataset="rstpreid", data_root=str(tmp_path / "nowhere"))
