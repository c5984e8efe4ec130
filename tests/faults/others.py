"""Nothing of others is deleted: what is replaced or begun anew is looked through first, and refused if it holds more"""
import importlib.util
import sys
from pathlib import Path

import nbformat
import worlds
from fault import bad, cut, flip
from nbformat.v4 import new_code_cell, new_notebook

from reid_lab.core.files import remove_written, write_sums
from reid_lab.experiments.notebooks import run_notebook
from reid_lab.experiments.run import foreign_files
from reid_lab.experiments.sweep import sweep

ROOT = Path(__file__).resolve().parents[2]


def _mine(folder, name="notes.txt"):
    "A file of the user's"
    folder.mkdir(parents=True, exist_ok=True)
    (folder/name).write_text("mine")
    return folder/name


def _kept(mine, call):
    "What is refused leaves the file of the user"
    try: call()
    finally: assert mine.read_text() == "mine"


def _written(tmp):
    "A folder that this program wrote"
    (tmp/"w").mkdir()
    (tmp/"w"/"a.bin").write_bytes(b"a")
    write_sums(tmp/"w")
    return tmp/"w"


def _world(damage, name="images.npy", mine="notes.txt"):
    "A damaged World in whose cache the user keeps something"
    def call(tmp):
        folder = worlds._copied(tmp)
        damage(folder/name)
        _kept(_mine(folder, mine), lambda: worlds._world(tmp).table())
    return call


def _notebook(tmp):
    "A run that writes a figure"
    given = new_code_cell("seed = 0\nout_dir = ''", metadata=dict(tags=["parameters"]))
    body = ("from reid_lab.experiments.run import start_run\nrun = start_run('n', dict(seed=seed), out_dir)\n"
            "(run.folder/'figures').mkdir(exist_ok=True); (run.folder/'figures'/'a.pdf').write_text('a')\n"
            f"run.results = {str(tmp/'rows.csv')!r}\nrun.record(dict(R1=1.), dataset='world')\nrun.finish()")
    nbformat.write(new_notebook(cells=[given, new_code_cell(body)]), tmp/"n.ipynb")
    return tmp/"n.ipynb"


def _fresh_run(tmp):
    "Notes among the figures of a finished run"
    run_notebook(_notebook(tmp), tmp/"r", threads=1)
    assert foreign_files(tmp/"r") == []
    mine = _mine(tmp/"r"/"figures")
    _kept(mine, lambda: run_notebook(tmp/"n.ipynb", tmp/"r", threads=1, fresh=True))


def _fresh_sweep(where):
    "Notes in the run folder of a sweep"
    def call(tmp):
        sweep(_notebook(tmp), {}, seeds=[0], folder=tmp/"s", n_jobs=1)
        run = next(p for p in (tmp/"s").iterdir() if p.is_dir())
        mine = _mine(run/where)
        _kept(mine, lambda: sweep(tmp/"n.ipynb", {}, seeds=[0], folder=tmp/"s", n_jobs=1, fresh=True))
    return call


def _docs(folder):
    "The builder of the documentation, told to replace a folder"
    def call(tmp):
        spec = importlib.util.spec_from_file_location("docs_build", ROOT/"tools"/"docs"/"build.py")
        sys.path.insert(0, str(ROOT/"tools"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        mine = _mine(tmp/"out"/folder)
        try: _kept(mine, lambda: module.main(["--out", str(tmp/"out")]))
        except SystemExit as e: raise ValueError(str(e.code)) from None
    return call


NOTHING = ("nothing was removed", "notes.txt")
FAULTS = [
    bad("others: in a damaged World", "a file beside damaged images", _world(cut), "which reid_lab did not write",
        *NOTHING, error=FileExistsError),
    bad("others: in a World without checksums", "sums.json is gone", _world(Path.unlink, "sums.json"), *NOTHING,
        error=FileExistsError),
    bad("others: in a World without its images", "images.npy is gone", _world(Path.unlink), *NOTHING,
        error=FileExistsError),
    bad("others: in a World with a flipped bit", "a hidden file", _world(flip, mine=".env"), "'.env'",
        error=FileExistsError),
    bad("others: in a folder with checksums", "a file that they do not name",
        lambda tmp: _kept(_mine(_written(tmp)), lambda: remove_written(tmp/"w")), *NOTHING, "Move that away",
        error=FileExistsError),
    bad("others: a folder in a folder with checksums", "with a file in it",
        lambda tmp: _kept(_mine(_written(tmp)/"more"), lambda: remove_written(tmp/"w")), "['more']",
        error=FileExistsError),
    bad("others: run --fresh", "notes among the figures of a finished run", _fresh_run, "figures/notes.txt",
        "which the run did not write", "name a new folder", error=FileExistsError),
    bad("others: sweep --fresh", "notes in a run folder", _fresh_sweep("."), *NOTHING, "the run did not write",
        error=FileExistsError),
    bad("others: sweep --fresh, figures", "notes among the figures of a run", _fresh_sweep("figures"),
        "figures/notes.txt", error=FileExistsError),
    bad("others: documentation in a folder of sources", "--out with a folder named source", _docs("source"),
        "was not written by this program", "nothing was removed"),
    bad("others: documentation in a folder of others", "--out with other files", _docs("."), "holds other things"),
]
