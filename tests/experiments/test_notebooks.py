"Experiment notebooks: found, described, run, and what ended them is told"
import importlib
import importlib.util

import nbformat
import pytest
from helpers.notebooks import RECORD, notebook
from nbformat.v4 import new_markdown_cell

from reid_lab.experiments.notebooks import experiments, find_notebook, read_experiment, run_notebook


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
    (tmp_path/"nbs"/"experiments").mkdir(parents=True); (tmp_path/"settings.ini").write_text("")
    notebook(tmp_path/"nbs"/"experiments"/"run_new.ipynb"); notebook(tmp_path/"nbs"/"experiments"/"some_maps.ipynb")
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    assert list(experiments()) == ["new", "some_maps"] and find_notebook("new") == experiments()["new"].path
    with pytest.raises(SystemExit): main(["run", "--help"])
    assert "some_maps" in capsys.readouterr().out
    assert main(["list", "experiments", "new"]) == 0 and "preset = 'quick'" in capsys.readouterr().out


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
    assert (f"studies: {', '.join(x.studies)}" in x.describe()) == bool(studies)


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
