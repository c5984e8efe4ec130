"Notebooks that tests write and run"
import json

import nbformat
from nbformat.v4 import new_code_cell, new_notebook


def notebook(path, body="", parameters="preset = 'quick'\nseed: int | None = 0\nout_dir = ''", tags=("parameters",)):
    "A notebook with one cell of parameters and one of code"
    cells = [new_code_cell(parameters, metadata=dict(tags=list(tags))), new_code_cell(body)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


RECORD = """from reid_lab.experiments.run import start_run
with start_run('demo', dict(preset=preset, seed=seed), out_dir) as run:
    run.record(dict(R1=40. + seed), dataset='world-smoke', selection='none')"""


def saved(path):
    "Outputs with a picture; the notebook is small and without widgets, so that it can be read without a kernel"
    text = path.read_text(encoding="utf-8")
    assert path.stat().st_size < 300_000 and "widget-view" not in text and '"widgets"' not in text
    assert "model not found" not in text and "Loading widget" not in text
    data = [o.get("data", {}) for c in json.loads(text)["cells"] for o in c.get("outputs", [])]
    return [d for d in data if "image/png" in d]
