"The command line: exit codes, messages, and that it starts at once"
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from reid_lab import __version__
from reid_lab.cli import main, pairs, typed
from test_experiment import RECORD, notebook


def test_version_and_start_up():
    code = "import sys, reid_lab.cli as c\ntry: c.main(['--version'])\nexcept SystemExit: print(sorted({'torch', 'pandas', 'matplotlib', 'pydantic'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"reid_lab {__version__}\n[]\n"


@pytest.mark.parametrize("args", [[], ["nothing"], ["run"], ["metrics", "q.npz"], ["sweep", "x", "--seeds", "a"]])
def test_wrong_calls_exit_with_2(args, capsys):
    with pytest.raises(SystemExit) as e: main(args)
    assert e.value.code == 2 and "usage" in capsys.readouterr().err


@pytest.mark.parametrize("items", [["preset"], ["=x"], ["a b=1"], ["seed=1", "seed=2"]])
def test_bad_pairs(items):
    with pytest.raises(ValueError): pairs(items)


def test_values_take_the_type_of_the_default(tmp_path):
    nb = notebook(tmp_path/"n.ipynb", parameters="name = ''\nseed = 0\nlr = 1.\non = True\nk = None")
    assert typed(dict(name="007", seed="7", lr="1e-4", on="no", k="[1]"), nb) == dict(name="007", seed=7, lr=1e-4, on=False, k=[1])


def test_run(tmp_path, capsys):
    nb = notebook(tmp_path/"n.ipynb", RECORD + "\nassert seed < 5, 'too much'")
    assert main(["run", str(nb), "-p", "preset=smoke", "-p", "seed=1", "--out", str(tmp_path/"a")]) == 0
    assert "41.00" in capsys.readouterr().out and (tmp_path/"a"/"metrics.json").exists()
    assert main(["run", str(nb), "-p", "sed=1"]) == 2
    assert "Did you mean 'seed'" in capsys.readouterr().err
    assert main(["run", str(nb), "-p", "seed=9", "-p", "preset=smoke", "--out", str(tmp_path/"b")]) == 1
    assert "AssertionError: too much" in capsys.readouterr().err
    assert main(["run", "no_such_experiment"]) == 2


def test_sweep(tmp_path, capsys):
    nb = notebook(tmp_path/"n.ipynb", RECORD)
    args = ["sweep", str(nb), "--seeds", "0", "--jobs", "1", "--out", str(tmp_path/"s"), "-p", "preset=smoke"]
    assert main(args) == 0 and main(args) == 0  # the second finds everything there
    assert "40.00" in capsys.readouterr().out
    assert main([*args, "--grid", "sed=1"]) == 2


def test_published(capsys):
    assert main(["published"]) == 0 and "dart3" in capsys.readouterr().out
    assert main(["published", "camel", "I"]) == 0 and "77.24" in capsys.readouterr().out
    assert main(["published", "camel", "I", "--format", "latex"]) == 0 and r"\begin{tabular}" in capsys.readouterr().out
    assert main(["published", "camel", "Z"]) == 2 and "choose one of" in capsys.readouterr().err


def test_metrics_of_own_features(tmp_path, capsys):
    eye = np.eye(4, dtype=np.float32)
    np.savez(tmp_path/"q.npz", features=eye, pid=np.arange(4), cam=np.zeros(4, int))
    np.savez(tmp_path/"g.npz", features=np.vstack([eye, eye[::-1]]), pid=[0, 1, 2, 3, 3, 2, 1, 0], cam=np.ones(8, int))
    assert main(["metrics", str(tmp_path/"q.npz"), str(tmp_path/"g.npz"), "--key", "emb=features", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["R1"] == found["mAP"] == 100 and found["n_query"] == 4
    assert main(["metrics", str(tmp_path/"q.npz"), str(tmp_path/"gone.npz")]) == 2
    assert re.match("reid_lab metrics: .*", capsys.readouterr().err)


def test_doctor_and_datasets(tmp_path, capsys):
    assert main(["datasets"]) == 0 and "cuhk-pedes" in capsys.readouterr().out
    assert main(["doctor", "cuhk-pedes", "--root", str(tmp_path)]) == 1 and "ERROR" in capsys.readouterr().out
    assert main(["doctor", "cuhk-pede"]) == 2 and "Did you mean 'cuhk-pedes'" in capsys.readouterr().err


def test_world(private_cache, capsys):
    assert main(["world", "--preset", "quik"]) == 2 and "Did you mean 'quick'" in capsys.readouterr().err
    assert main(["world", "--preset", "smoke"]) == 0  # into the session's cache, which other tests use too
    out = capsys.readouterr().out
    assert "train" in out and str(private_cache) in out
