"`help` explains parameters by the comments in signatures, and the names of the front door stay"
import importlib
import inspect
import json
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import reid_lab as rl
from reid_lab.core.help import explain, install, parameters_text

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = json.loads((ROOT/"tests"/"vectors"/"public_names.json").read_text())     # release -> names


def shown(value):
    "What `help` prints"
    return pydoc.plain(pydoc.render_doc(value))


@pytest.mark.parametrize("module, name", [("recipes.reid", "train_reid"), ("recipes.text", "train_text"),
                                          ("retrieval.metrics", "retrieval_metrics"), ("experiments.sweep", "sweep"),
                                          ("losses.text", "itc"), ("tta.base", "adapt_embeddings")])
def test_help_explains_every_parameter(module, name):
    function = getattr(importlib.import_module(f"reid_lab.{module}"), name)
    lines = [line.strip() for line in shown(function).splitlines()]
    for parameter in inspect.signature(function).parameters:
        assert any(line.startswith(f"{parameter}: ") for line in lines), parameter


def test_it_is_read_late():
    "Importing must not read sources; the sentence alone is kept until somebody asks"
    code = ("from reid_lab.core.statistics import wilson\nimport sys\n"
            "print(type(wilson.__doc__).__name__, 'fastcore.docments' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["_Docstring", "False"]


def test_fields_and_methods_of_classes_are_explained():
    from reid_lab.recipes.reid import ReidTrain
    from reid_lab.retrieval.embeddings import Embeddings
    assert "clip: gradient norm; 0: none" in shown(ReidTrain)
    assert "path: " in shown(Embeddings.save)


def test_a_second_look_shows_the_same(tmp_path):
    def crop(image, # H x W x 3
        ): "Cut\tto size"
    explain(crop)
    assert crop.__doc__ == "Cut\tto size"
    first = inspect.getdoc(crop)
    assert first == inspect.getdoc(crop) == "Cut     to size\n\nimage: H x W x 3"


def test_what_has_no_source_keeps_its_sentence():
    space = {}
    exec('def typed(x):\n    "Typed at a prompt"', space)
    explain(space["typed"])
    assert inspect.getdoc(space["typed"]) == "Typed at a prompt" and parameters_text(len) == ""


def test_it_is_installed_once():
    before = list(sys.meta_path)
    install("reid_lab")
    assert sys.meta_path == before and [type(f).__name__ for f in before].count("_Modules") == 1


def test_public_names_are_kept_for_two_minor_versions():
    "A name that goes is left here until two minor versions without it are out"
    minor = [tuple(map(int, release.split(".")[:2])) for release in PUBLIC]
    assert minor == sorted(minor) and rl.__version__.rsplit(".", 1)[0] in {r.rsplit(".", 1)[0] for r in PUBLIC}
    for release in list(PUBLIC)[-3:]:
        for name in PUBLIC[release]: assert callable(getattr(rl, name)), f"rl.{name} of {release}"


def test_the_page_of_public_names_lists_them_all():
    page = json.loads((ROOT/"nbs"/"docs"/"07_public_names.ipynb").read_text())
    text = "".join(line for cell in page["cells"] for output in cell.get("outputs", ())
                   for line in output.get("data", {}).get("text/markdown", ()))
    listed = [line.split("`")[1].removeprefix("rl.") for line in text.splitlines() if line.startswith("| `rl.")]
    assert listed == rl.__all__


def test_rules_and_clusters_have_short_names():
    from reid_lab.retrieval import cameras, draws, junk, protocols, rerank
    assert (rl.Junk, rl.jaccard_distances) == (junk.Junk, rerank.jaccard_distances)
    # once the old module of this name is imported, `rl.cluster` is that, which can be called as well
    assert rl.__getattr__("cluster") == cameras.cluster
    assert (rl.Protocol, rl.protocol_sides) == (protocols.Protocol, draws.protocol_sides)
    assert {"Junk", "Protocol", "jaccard_distances", "cluster"} <= {*rl.__all__}
