"""What a run lacks is said at once, from the parameters cell of each experiment, before any work."""
import re

import numpy as np
import pytest
from nbformat import read

from reid_lab.core.basics import pick_device
from reid_lab.data.table import TableError
from reid_lab.datasets.aerial import cross_view
from reid_lab.datasets.export import export_world
from reid_lab.datasets.registry import DATASETS
from reid_lab.experiments.notebooks import find_notebook
from reid_lab.experiments.params import notebook_parameters
from reid_lab.recipes.preflight import PLANS, check_ready
from reid_lab.world.world import World

pytestmark = pytest.mark.usefixtures("no_user_settings")
REAL = dict(camel=dict(dataset="cuhk-pedes", source="mals"), cfam=dict(dataset="cuhk-pedes->ufine6926"),
            cfan=dict(dataset="aeri-pedes"), dart3=dict(dataset="market1501-5"),
            dmg=dict(dataset="market1501->market1501"))
STARTS = dict(camel="bert-base-uncased", cfam="ViT-B-16.pt", cfan="HAM", dart3="ViT-B-16.pt",
              dmg="resnet50-0676ba61.pth")
NAMES = "from reid_lab.experiments.params import Params\nfrom reid_lab.training.options import Execution\n"
no_gpu = pick_device() == "cpu"


def parameters(name, **changes):
    "`p` of a notebook, as its first cells make it"
    path = find_notebook(name)
    space = {**notebook_parameters(path), **changes}
    cell = next(c.source for c in read(path, 4).cells if "from_notebook(globals())" in c.source)
    exec(NAMES + cell, space)
    return space["p"]


def problems(name, **changes):
    with pytest.raises(TableError) as e: check_ready(name, parameters(name, **changes))
    return e.value.findings, str(e.value)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory, private_cache):
    "The main datasets of the papers as folders"
    root, text = tmp_path_factory.mktemp("data"), World("smoke", granularity="fine").table()
    real, made = text.where(domain="real-like", split=["train", "test"]), text.where(domain="generated", split="train")
    people = World("smoke", task="reid").table().where(split=["train", "test"])
    tables = {"cuhk-pedes": real, "ufine6926": real, "market1501": people,
              "mals": made._with(made.frame.assign(captions=made.frame.captions.map(lambda c: c[:1]))),
              "aeri-pedes": cross_view(World("smoke", task="aerial").table()).where(split=["train", "test"])}
    for n, t in tables.items(): export_world(t, n, root / DATASETS[n].folder, renumber=n not in ("mals", "aeri-pedes"))
    return root


def at(name, root):
    "The datasets of a paper below `root`"
    return dict(REAL[name], data_root=str(root), **(dict(source_root=str(root)) if name == "camel" else {}))


@pytest.mark.parametrize("name", PLANS)
def test_an_empty_machine(name, tmp_path):
    "Every dataset, the start and the GPU in one message, each with a remedy; nothing is written"
    found, said = problems(name, preset="paper", **at(name, tmp_path/"nowhere"))
    sets = {"camel": 2, "cfam": 2}.get(name, 1)
    assert said.count("is no folder") == sets and STARTS[name] in said and "weights='none'" in said
    assert ("no GPU" in said and "-p device=cpu" in said) == no_gpu and all(f.remedy for f in found)
    assert "data_root=" in said and {p.name for p in tmp_path.iterdir()} <= {"home"} and len(found) == sets + 1 + no_gpu


@pytest.mark.parametrize("name", PLANS)
def test_a_complete_layout_runs_once_the_start_is_named(name, layouts):
    "Random numbers must be asked for, and a CPU; then only warnings remain"
    found, said = problems(name, preset="paper", device="cpu", **at(name, layouts))
    assert len(found) == 1 and STARTS[name] in said
    told = check_ready(name, parameters(name, preset="paper", weights="none", device="cpu", **at(name, layouts)))
    assert {f.level for f in told} == {"warn"} and any("published" in f.what for f in told)
    found, said = problems(name, preset="paper", weights="gone/tower.pth,none" if name == "camel" else "gone/tower.pth",
                           device="cpu", **at(name, layouts))
    assert len(found) == 1 and "gone/tower.pth" in said and STARTS[name] in said


@pytest.mark.parametrize("name", PLANS)
def test_the_defaults_lack_nothing(name, capsys):
    assert check_ready(name, parameters(name)) == [] and not capsys.readouterr().out


def test_a_half_of_camel_that_would_be_random_is_refused(tmp_path, layouts):
    (tmp_path/"tower.pth").touch()
    tower = str(tmp_path/"tower.pth")
    found, said = problems("camel", preset="paper", weights=tower, device="cpu", **at("camel", layouts))
    assert len(found) == 1 and "text encoder of camel_base would start from random numbers" in said


def test_a_half_complete_folder(tmp_path):
    "Images of a part are missing: the doctor's findings, beside what else is missing"
    table = World("smoke").table().where(domain="real-like", split=["train", "test"])
    root = export_world(table, "rstpreid", tmp_path/"RSTPReid", renumber=True)
    for f in sorted(root.rglob("*.jpg"))[::2]: f.unlink()
    found, said = problems("cfam", preset="paper", dataset="rstpreid", data_root=str(tmp_path), device="cpu")
    assert re.search(r"rstpreid: .*files are missing, \d+ of \d+ images", said) and "CLIP ViT-B/16" in said


@pytest.mark.parametrize("name", ["cfam", "cfan", "dart3", "dmg"])
def test_paper_is_for_real_datasets(name):
    assert "means a World" in problems(name, preset="paper", weights="none", device="cpu")[1]


def test_tables_of_ones_own(tmp_path):
    said = problems("dart3", dataset=str(tmp_path/"people.csv"), seen="0,1")[1]
    assert "is no file" in said and "people.csv" in said


def test_full_wants_a_gpu_and_says_how_long_it_takes_without():
    if not no_gpu: pytest.skip("there is a GPU")
    found, said = problems("cfam", preset="full", weights="none")
    assert len(found) == 1 and "days on two cores" in said and np.all([f.level == "error" for f in found])
    told = check_ready("cfam", parameters("cfam", preset="full", weights="none", device="cpu"))
    assert [f.level for f in told] == ["warn"]
