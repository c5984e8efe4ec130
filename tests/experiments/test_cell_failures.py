"A run that fails says in which cell, by which line of ours, and which file has the rest"
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from reid_lab.cli.commands import main
from reid_lab.experiments.cell_failures import frames_of, last_own

LIBRARY = "import pandas as pd\ndef column(name):\n    return pd.DataFrame(dict(a=[1]))[name]\n\ncolumn('b')"
SWEEP = """from pathlib import Path
from reid_lab.experiments.sweep import sweep
def job(seed): return dict(R1=1/seed)
runs = sweep(job, {}, seeds=[0], n_jobs=1, folder=Path(out_dir)/'sweep')
bad = runs[runs.status != 'ok']
assert bad.empty, f"{len(bad)} of {len(runs)} runs failed; the first: {bad.error.iat[0]}"
"""


def failing(path, body):
    cells = [new_code_cell("preset = 'quick'\\nout_dir = ''".replace("\\n", "\n"), metadata=dict(tags=["parameters"])),
             new_markdown_cell("## Training"), new_code_cell("x = 1"), new_code_cell(body)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


@pytest.mark.parametrize("body, error, line, rest", [
    (LIBRARY, "KeyError: 'b'", "line 3 of the cell, in column: return pd.DataFrame(dict(a=[1]))[name]", "fails.ipynb"),
    ("from reid_lab.core.basics import check_choice\ncheck_choice('way', 'lft', ['left'])", "ValueError: way='lft'",
     "core/basics.py:", "fails.ipynb"),
    (SWEEP, "AssertionError: 1 of 1 runs failed; the first: ZeroDivisionError", ", in job: def job(seed)", ".json")])
def test_a_failed_cell_is_found_from_the_terminal(tmp_path, capfd, body, error, line, rest):
    path, out = failing(tmp_path/"fails.ipynb", body), tmp_path/"out"
    assert main(["run", str(path), "--out", str(out)]) == 1
    told = capfd.readouterr().err.splitlines()
    told = told[next(i for i, text in enumerate(told) if " failed: " in text):]
    assert told[0].startswith(f"{path} failed: {error}")
    assert told[1] == "notebook: fails.ipynb, section 'Training', cell 3"
    assert told[2].startswith("line:     ") and line in told[2]
    assert told[3].startswith("the rest: ") and told[3].endswith(rest) and len(told) == 4
    assert Path(told[3].removeprefix("the rest: ")).is_file()


def test_lines_of_libraries_are_not_ours():
    text = "\n".join(f'  File "{path}", line {i}, in f\n    call_{i}()' for i, path in enumerate((
        "mine/job.py", "env/lib/python3.12/site-packages/torch/x.py", "usr/lib/python3.12/json/__init__.py",
        "<frozen importlib>", "env/lib/python3.12/site-packages/reid_lab/data/table.py", "env/lib/python3.12/enum.py")))
    assert len(frames_of(text)) == 6 and last_own(text).source == "call_4()"
    assert last_own("ValueError: nothing") is None
