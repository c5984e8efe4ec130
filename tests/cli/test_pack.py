"`pack` of the command line, and commands that take a packed folder where they took a folder"
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.registry import load_dataset
from reid_lab.experiments.notebooks import experiments
from reid_lab.experiments.params import notebook_params
from reid_lab.recipes import finetune as ft
from reid_lab.recipes.parameters import check_run
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.world.world import World

sys.path.insert(0, str(Path(__file__).parents[1]/"faults"))
from fault import cli  # noqa: E402


@pytest.fixture(scope="module")
def people(): return World("smoke", task="reid").table()


@pytest.fixture(scope="module")
def crops(people, tmp_path_factory):
    "camera/person/file"
    root, some = tmp_path_factory.mktemp("own")/"crops", people.where(split="test")
    for i, row in enumerate(some.frame.itertuples()):
        path = root/f"camera {row.cam}"/f"person {row.pid}"/f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(some.image(i)).save(path)
    return root


def test_a_folder_is_packed_checked_embedded_and_fine_tuned(crops, tmp_path):
    code, out, err = cli("pack", crops, "--folders", "camera/identity", "--out", tmp_path/"is packed")
    assert code == 0 and "300 image files" in out and "next: reid_lab embed" in out, err
    next_line = out.splitlines()[-1].removeprefix("next: ")
    assert shlex.split(next_line)[2].endswith("is packed")      # a path with a space is quoted
    code, out, _ = cli("pack", tmp_path/"is packed", "--check")
    assert code == 0 and "all bytes as they were written" in out
    for source, name, more in ((crops, "a", ["--folders", "camera/identity"]), (tmp_path/"is packed", "b", [])):
        code, _, err = cli("embed", source, *more, "--model", "bot_tiny", "--out", tmp_path/f"{name}.npz")
        assert code == 0, err
    a, b = Embeddings.load(tmp_path/"a.npz"), Embeddings.load(tmp_path/"b.npz")
    assert np.array_equal(a.emb, b.emb) and list(a.path) == list(b.path) and a.pid.tolist() == b.pid.tolist()
    code, out, err = cli("doctor", tmp_path/"is packed")
    assert code == 0 and "300" in out, err
    p = notebook_params(experiments()["finetune"].path, dict(data_root=str(tmp_path/"is packed"), preset="smoke"))
    check_run("finetune", p, quiet=True)
    both = [ft.load_source(ft.Source(str(root), folders)).crops
            for root, folders in ((crops, "camera/identity"), (tmp_path/"is packed", ""))]
    assert ft.divisions(both[0]) == ft.divisions(both[1])
    assert not any("--folders" in line for line in ft.next_commands(p, "model"))


def test_what_pack_cannot_do_is_refused_with_a_remedy(crops, tmp_path):
    for words, says in [((crops,), "--out is missing"), (("nowhere", "--out", tmp_path/"o"), "datasets are"),
                        ((crops, "--out", crops), "exists; give another"),
                        ((crops, "--check", "--out", tmp_path/"o"), "--check looks at what is packed"),
                        ((crops, "--check"), "no record of a packed folder")]:
        code, _, err = cli("pack", *words)
        assert code == 2 and says in err, err
    assert not (tmp_path/"o").exists()


def test_a_packed_benchmark_is_loaded_by_name_and_no_other(people, tmp_path):
    export_world(people.where(split=["train", "test"]), "market1501", tmp_path/"market")
    code, out, err = cli("pack", "market1501", "--root", tmp_path/"market", "--out", tmp_path/"packed")
    assert code == 0 and "-p dataset=market1501" in out, err
    shutil.move(tmp_path/"market", tmp_path/"away")
    files, packed = load_dataset("market1501", tmp_path/"away"), load_dataset("market1501", tmp_path/"packed")
    assert packed.frame.equals(files.frame) and packed.further == files.further
    assert np.array_equal(packed.image(5), files.image(5)) and doctor("market1501", tmp_path/"packed").ok
    with pytest.raises(ValueError, match="packed folder of market1501, not of msmt17"):
        load_dataset("msmt17", tmp_path/"packed")
    assert not doctor("msmt17", tmp_path/"packed").ok
