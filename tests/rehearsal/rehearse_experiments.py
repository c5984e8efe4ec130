"""The experiments at smoke on the shadow device; `run_dart3` is in the core."""
import pandas as pd
import pytest

from reid_lab.experiments.notebooks import run_notebook

LABELS = ["variant", "dataset", "split"]
SCORES = ["mAP", "R1", "R5", "R10"]         # some experiments measure the first two alone


def rows_of(name, device, folder):
    "What an experiment measures on a device"
    done = run_notebook(name, folder/device, preset="smoke", device=device)
    assert done.metrics["status"] == "finished" and done.metrics["params"]["device"] == device
    rows = pd.DataFrame(done.rows)
    scores = [score for score in SCORES if score in rows]
    assert scores[:2] == SCORES[:2]
    return rows[[*LABELS, *scores]]


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch): monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path/"runs.csv"))


NAMES = ["dmg", "cfam", "cfan", "finetune", "conditions", "unsupervised"]


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_has_the_rows_of_the_cpu(name, tmp_path):
    shadow, cpu = (rows_of(name, device, tmp_path) for device in ("shadow", "cpu"))
    pd.testing.assert_frame_equal(shadow, cpu, check_exact=True)


def test_camel(tmp_path): assert len(rows_of("camel", "shadow", tmp_path)) > 1
