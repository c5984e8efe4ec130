"Experiment notebooks: found, described, run, and what ended them is told"
import importlib
import importlib.util
import json
import re
import shutil
import sys
import warnings
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
from helpers.notebooks import RECORD, notebook
from nbformat.v4 import new_markdown_cell
from papermill.exceptions import PapermillExecutionError

from reid_lab.experiments.notebooks import (
    check_before_run,
    experiments,
    find_notebook,
    origin_of,
    read_experiment,
    run_notebook,
)
from reid_lab.experiments.own import EXPERIMENTS, OwnNotebook
from reid_lab.experiments.run import RUN_FILE, kept_parameters
from reid_lab.experiments.sweep import sweep


def test_an_experiment_is_its_notebook(tmp_path):
    cell = ("preset = 'quick'      # smoke, quick\nlr: float = 1e-3\nname = '#1'  # of the run # or not\n"
            "sizes = (1,\n    2)  # two lines")
    nb = nbformat.read(notebook(tmp_path/"run_new.ipynb", parameters=cell), 4)
    x = read_experiment(tmp_path/"run_new.ipynb")
    assert (x.name, x.title, x.about, x.studies) == ("new", "run_new", "", {})
    assert x.parameters == dict(preset="quick", lr=1e-3, name="#1", sizes=(1, 2))
    assert x.notes == dict(preset="smoke, quick", name="of the run # or not", sizes="two lines")
    nb.cells.insert(0, new_markdown_cell("# A title\n> And a line"))
    nbformat.write(nb, tmp_path/"run_new.ipynb")
    assert read_experiment(tmp_path/"run_new.ipynb").describe().splitlines()[:3] == [
        "new: A title", "And a line", "parameters:"]


def test_a_new_notebook_needs_no_list(tmp_path, monkeypatch, capsys):
    from reid_lab.cli.commands import main
    (tmp_path/"nbs"/"experiments").mkdir(parents=True)
    (tmp_path/"settings.ini").write_text("")
    notebook(tmp_path/"nbs"/"experiments"/"run_new.ipynb")
    notebook(tmp_path/"nbs"/"experiments"/"some_maps.ipynb")
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    assert {"new", "some_maps", "camel"} <= {*experiments()} and find_notebook("new") == experiments()["new"].path
    assert origin_of(find_notebook("camel")) == ""
    assert origin_of(find_notebook("new")) == str(tmp_path/"nbs"/"experiments")
    notebook(tmp_path/"nbs"/"experiments"/"run_camel.ipynb")
    assert find_notebook("camel").is_relative_to(tmp_path), "that of the project folder comes first"
    with pytest.raises(SystemExit): main(["run", "--help"])
    assert "some_maps" in capsys.readouterr().out
    for name in ("new", str(tmp_path/"nbs"/"experiments"/"run_new.ipynb")):
        assert main(["list", "experiments", name]) == 0 and "preset = 'quick'" in capsys.readouterr().out
    assert main(["list", "experiments"]) == 0
    assert f"; from {tmp_path}" in capsys.readouterr().out


def registered(monkeypatch, **paths):
    "Notebooks by stem, as modules of a user register them"
    for stem, path in paths.items(): monkeypatch.setitem(EXPERIMENTS, stem, OwnNotebook(path))


@pytest.mark.parametrize("given, says", [
    (dict(preset="quik"), "preset='quik' .*smoke.*quick"), (dict(study="strenght"), "study='strenght' .*strength")])
@pytest.mark.filterwarnings("ignore:experiment")
def test_what_ones_own_notebook_does_not_know_is_refused_before_a_kernel_starts(given, says, tmp_path, monkeypatch):
    from reid_lab.recipes.study import Study
    studies = ModuleType("own_studies")
    studies.STUDIES = {name: Study(name, (dict(name="a"),)) for name in ("main", "strength")}
    monkeypatch.setitem(sys.modules, "own_studies", studies)
    path = notebook(tmp_path/"run_ring.ipynb", parameters="preset = 'own'\nstudy = ''\nseed = 0")
    known = OwnNotebook(path, "own_studies:STUDIES", ("smoke", "quick"))
    monkeypatch.setitem(EXPERIMENTS, "run_ring", known)
    monkeypatch.setattr("reid_lab.experiments.notebooks._locked_run", lambda *a: pytest.fail("it was begun"))
    with pytest.raises(ValueError, match=says): run_notebook("ring", params=given)
    with pytest.raises(ValueError, match=says): sweep("ring", [given], folder=tmp_path/"s")
    check_before_run(Path(path), dict(preset="quick", study="strength"))
    check_before_run(Path(path), dict(preset="own", study=""))      # its defaults are its own affair
    monkeypatch.setitem(EXPERIMENTS, "run_ring", OwnNotebook(path))
    check_before_run(Path(path), given)     # nothing is known of them


@pytest.mark.filterwarnings("ignore:experiment")
def test_an_experiment_that_is_there_twice_is_said(tmp_path, monkeypatch):
    notebook(tmp_path/"run_ring.ipynb")
    registered(monkeypatch, run_ring=tmp_path/"run_ring.ipynb")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert experiments()["ring"].path == find_notebook("ring") == tmp_path/"run_ring.ipynb"
    notebook(tmp_path/"ring.ipynb")
    registered(monkeypatch, ring=tmp_path/"ring.ipynb")
    for ask in (experiments, lambda: find_notebook("ring")):
        twice = r"'ring' is there twice: \S*/ring.ipynb is used, and \S*/run_ring.ipynb "
        with pytest.warns(UserWarning, match=twice):
            ask()
    assert experiments()["ring"].path == find_notebook("ring") == tmp_path/"ring.ipynb"
    notebook(tmp_path/"run_camel.ipynb")
    registered(monkeypatch, run_camel=tmp_path/"run_camel.ipynb")
    with pytest.warns(UserWarning, match="'camel' is there twice: .*give that of .* another name"):
        find_notebook("camel")


def test_a_notebook_that_a_module_lacks_breaks_no_list(tmp_path, monkeypatch, capsys):
    from reid_lab.cli.commands import main
    (tmp_path/"torn.ipynb").write_text("{")
    registered(monkeypatch, run_gone=tmp_path/"run_gone.ipynb", run_torn=tmp_path/"torn.ipynb")
    assert main(["list", "experiments"]) == 0
    out, err = capsys.readouterr()
    assert "camel" in out and "gone" not in out
    assert "'gone' is left out" in err and "does not exist; put it there" in err and "'torn' is left out" in err
    assert main(["run", "gone"]) == 2 and "registers experiment 'gone', and its notebook" in capsys.readouterr().err
    with pytest.raises(SystemExit): main(["run", "--help"])
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", experiments())
def test_records_of_the_experiments(name):
    x = experiments()[name]
    assert find_notebook(name) == x.path and x.title != x.path.stem and x.about and x.parameters["preset"] == "quick"
    assert set(x.notes) == set(x.parameters), "each parameter says behind it what it is"
    places = [f"reid_lab.recipes.{name}_settings", f"reid_lab.recipes.{name}"]
    recipe = next((p for p in places if importlib.util.find_spec(p)), None)
    studies = getattr(importlib.import_module(recipe), "STUDIES", None) if recipe else None
    assert list(x.studies) == list(studies or ())
    assert x.studies or name not in ("camel", "cfam", "cfan", "dart3", "dmg")
    assert ("studies, by name" in x.describe()) == bool(studies)
    assert all(f"  {name}" in x.describe() for name in x.studies)


@pytest.mark.parametrize("name", experiments())
def test_an_experiment_links_to_nothing_beside_it(name):
    "It is executed and read in run folders, which are moved"
    cells = nbformat.read(experiments()[name].path, 4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert not [link for link in links if not link.startswith(("http://", "https://", "#"))]


def test_running_a_notebook(tmp_path):
    done = run_notebook(notebook(tmp_path/"n.ipynb", RECORD), tmp_path/"out", preset="smoke", params=dict(seed=2),
                          threads=1)
    assert done.rows == [dict(variant="", dataset="world-smoke", split="test", R1=42)]
    assert done.path == tmp_path/"out"/"n.ipynb" and done.metrics["params"]["preset"] == "smoke"
    with pytest.raises(ValueError, match="Did you mean 'preset'"): run_notebook(tmp_path/"n.ipynb", prest="smoke")


@pytest.mark.parametrize("end, why", [("os.kill(os.getpid(), 9)", "out of memory"),
                                      ("os.kill(os.getpid(), 15); input()", "ended from outside .SIGTERM"),
                                      ("os._exit(9)", "exit status 9")])


@pytest.mark.kill
def test_what_ended_a_kernel_is_told_by_its_status(end, why, tmp_path):
    with pytest.raises(RuntimeError, match=why):
        run_notebook(notebook(tmp_path/"n.ipynb", f"import os; {end}"), tmp_path/"o")


PRINTS = """import sys, reid_lab
from IPython.display import HTML, display
print('to', out_dir, 'from', data_root, 'by', sys.prefix, reid_lab.__file__)
display(HTML(f'<a href="{out_dir}/figures">figures</a>'))
"""


@pytest.mark.parametrize("end", ["", "raise ValueError(out_dir)", "reid_lab.core.basics.check_choice('a', 'b', ['c'])"])
def test_an_executed_notebook_names_no_folder_of_the_machine(tmp_path, end):
    parameters = "preset = 'smoke'\nseed = 0\ndata_root = ''\nsets = []\nout_dir = ''"
    path = notebook(tmp_path/"n.ipynb", f"{RECORD}\n{PRINTS}{end}", parameters)
    given = dict(data_root=f"{tmp_path}/cuhk,{tmp_path}/icfg", sets=[f"{tmp_path}/a b"])
    if end:
        with pytest.raises(PapermillExecutionError, match="out|choose"): run_notebook(path, tmp_path/"out", given)
    else: run_notebook(path, tmp_path/"out", given)
    text = (tmp_path/"out"/"n.ipynb").read_text(encoding="utf-8")
    for private in (str(tmp_path), sys.prefix, str(Path(__file__).parents[2])): assert private not in text
    nb = nbformat.reads(text, 4)
    nbformat.validate(nb)
    assert nb.metadata.papermill.parameters == dict(data_root="cuhk,icfg", sets=["a b"], out_dir="out")
    assert (nb.metadata.papermill.input_path, nb.metadata.papermill.output_path) == ("n.ipynb", "n.ipynb")
    injected = next(c for c in nb.cells if "injected-parameters" in c.metadata.get("tags", []))
    assert 'data_root = "cuhk,icfg"' in injected.source and 'out_dir = "out"' in injected.source
    assert "to out from cuhk,icfg" in json.dumps(nb.cells) and 'href=\\"out/figures' in json.dumps(nb.cells)
    assert str(tmp_path) not in (tmp_path/"out"/"metrics.json").read_text(encoding="utf-8")
    kept = kept_parameters(tmp_path/"out", "n")         # what a rerun needs
    assert kept["data_root"] == given["data_root"] and kept["sets"] == given["sets"]


STOPS = """import os
from reid_lab.experiments.run import start_run
{}
run = start_run('n', dict(preset=preset, seed=seed), out_dir)
run.record(dict(R1=40.), dataset='world-smoke')
run.finish()
"""


@pytest.mark.kill
@pytest.mark.parametrize("where", ["before the record", "after the record"])
def test_an_interrupted_run_is_known_by_its_record(tmp_path, where):
    "Killed once, then continued; without its record it is the notebook of somebody else"
    die = f"if not os.path.exists({str(tmp_path/'once')!r}): open({str(tmp_path/'once')!r}, 'w'); os._exit(9)"
    body = STOPS.format(die) if where == "before the record" else STOPS.format("").replace("run.finish()", f"{die}\n"
                                                                                        "run.finish()")
    parameters = "preset = 'smoke'\nseed = 0\ndata_root = ''\nout_dir = ''"
    path, given = notebook(tmp_path/"n.ipynb", body, parameters), dict(data_root=str(tmp_path/"a"/"sets"))
    with pytest.raises(RuntimeError, match="exit status 9"): run_notebook(path, tmp_path/"out", given)
    for other in (dict(seed=1), dict(data_root=str(tmp_path/"b"/"sets"))):
        with pytest.raises(FileExistsError, match="other parameters"):
            run_notebook(path, tmp_path/"out", {**given, **other})
    shutil.copytree(tmp_path/"out", tmp_path/"copy")
    (tmp_path/"copy"/RUN_FILE).unlink()
    if where == "before the record":
        with pytest.raises(FileExistsError, match="no run made"): run_notebook(path, tmp_path/"copy", given)
    assert run_notebook(path, tmp_path/"out", given).rows[0]["R1"] == 40


def test_a_cell_that_takes_too_long_ends_in_the_screen_of_a_failed_run(tmp_path, capsys):
    from reid_lab.cli.commands import main
    path = notebook(tmp_path/"n.ipynb", "import time\ntime.sleep(600)")
    assert main(["run", str(path), "--out", str(tmp_path/"out"), "--timeout", "1"]) == 1
    shown = capsys.readouterr().err
    assert "n.ipynb failed: TimeoutError: the cell took longer than the 1 seconds of --timeout" in shown
    assert "cell 2" in shown and f"the rest: {tmp_path/'out'/'n.ipynb'}" in shown and "time.sleep" not in shown
