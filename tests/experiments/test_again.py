"""Every experiment in one kernel: all cells, all cells with another value, all cells as at first"""
import json
import re

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from reid_lab.experiments.notebooks import experiments

pytestmark = pytest.mark.whole

# What keeps an experiment short, and the value that is changed; of any other experiment it is the seed
SHORT = dict(
    attention_maps=dict(models="clip_tiny", methods="gradcam", steps=2, persons=4), camel=dict(study="zero_shot"),
    caption_cot=dict(seeds=1), cfam=dict(study="captions"), cfan=dict(methods="cfan"), dmg=dict(methods="mg"),
    conditions=dict(seeds=1), marked_search=dict(marks=2), word_masking=dict(masked=2),
    text_granularity=dict(train_on="coarse", tests="coarse,fine"))
CHANGED = dict(
    attention_maps=dict(world_seed=702), camera_bias=dict(method="Norm", seed=1), conditions=dict(study="clothes"),
    dart3=dict(study="distance"), failure_browser=dict(queries="images"),
    marked_search=dict(marks=3), starts=dict(seed=501), word_masking=dict(world_seed=702))


class Notebook:
    "An experiment in one kernel; its results go to `folder`"

    def __init__(self, name, folder):
        self.nb = nbformat.read(experiments()[name].path, 4)
        self.parameters = next(c for c in self.nb.cells if "parameters" in c.metadata.get("tags", []))
        where = dict(metadata=dict(path=str(folder)))
        self.client = NotebookClient(self.nb, kernel_name="python3", resources=where)

    def takes(self, name): return re.search(rf"(?m)^{name} = ", self.parameters.source) is not None

    def give(self, **values):
        "Write values into the cell of parameters, as a user does"
        for name, value in values.items():
            line, found = re.subn(rf"(?m)^{name} = [^#\n]*", f"{name} = {value!r} ", self.parameters.source)
            assert found == 1, name
            self.parameters.source = line

    def run_all(self):
        for at, cell in enumerate(self.nb.cells): self.client.execute_cell(cell, at)

    def printed(self):
        return "".join(o.get("text", "") for cell in self.nb.cells for o in cell.get("outputs", []))


def scores(run):
    "What a run measured, without its times"
    return [(row["variant"], row["seed"], {k: v for k, v in row["metrics"].items() if not k.endswith(("_s", "_ms"))})
            for row in run["rows"]]


def papers_and_others():
    "Cases: each check runs the experiments of the five papers again, `make test-studies` the others"
    papers = ("camel", "cfam", "cfan", "dart3", "dmg")
    return [*papers, *(pytest.param(name, marks=pytest.mark.study) for name in sorted({*experiments()} - {*papers}))]


@pytest.mark.parametrize("name", papers_and_others())
def test_all_cells_run_again_and_with_another_value(name, tmp_path, monkeypatch):
    "No error, a folder and rows for each run, scores that follow the value and come back with it"
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path/"runs.csv"))
    notebook, short, changed = Notebook(name, tmp_path), SHORT.get(name, {}), CHANGED.get(name, dict(seed=1))
    notebook.give(preset="smoke", out_dir=str(tmp_path/"run"), **short)
    if notebook.takes("n_jobs"): notebook.give(n_jobs=1)    # in this kernel, where something could be left behind
    old = {key: value for key, value in notebook_values(notebook).items() if key in changed}
    assert old != changed
    with notebook.client.setup_kernel():
        for values in ({}, changed, old):
            notebook.give(**values)
            notebook.run_all()
    kept = [json.loads((tmp_path/folder/"metrics.json").read_text()) for folder in ("run", "run-2", "run-3")]
    assert {run["status"] for run in kept} == {"finished"}
    for run, values in zip(kept, (old, changed, old)): assert {key: run["params"][key] for key in values} == values
    first, other, again = map(scores, kept)
    assert first and first == again and first != other
    assert pd.read_csv(tmp_path/"runs.csv").run.value_counts().to_dict() == {r["run"]: len(r["rows"]) for r in kept}
    assert "is finished and stays as it is; this one is in run-3" in notebook.printed()


def notebook_values(notebook):
    "Name -> value of the cell of parameters"
    values = {}
    exec(notebook.parameters.source, {}, values)
    return values
