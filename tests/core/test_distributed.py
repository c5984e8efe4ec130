"""Two processes do what one does: gradients, strategies, memories, metrics, and resuming after a kill."""
import importlib.util
import json
import random
from pathlib import Path

import pytest
import torch

from reid_lab.core.distributed import torchrun
from reid_lab.training.checkpoints import Checkpoint

PROGRAM = Path(__file__).parent/"distributed_program.py"
spec = importlib.util.spec_from_file_location("distributed_program", PROGRAM)
one = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one)
DIED_AT = random.Random().randint(2, 10)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    "Folder in which two processes have run everything"
    out = tmp_path_factory.mktemp("two")
    one.run(out/"from-one", stop=4)
    torchrun(2, PROGRAM, out)
    return out


@pytest.fixture(scope="module")
def two(out): return torch.load(out/"two.pt", weights_only=True)


@pytest.fixture(scope="module")
def alone(): return one.gradients()


def apart(a, b): return max(((x - y).abs().max().item() for x, y in zip(a, b) if x.numel()), default=0.)


@pytest.mark.whole
@pytest.mark.parametrize("name", one.models())
def test_gradients(alone, two, name):
    a, b = alone[name], two["gradients"][name]
    for part in ("losses", "grads", "buffers"):
        assert sorted(a[part]) == sorted(b[part])
        gaps = {k: apart([v], [b[part][k]]) for k, v in a[part].items()}
        worst = max(gaps, key=gaps.get, default="")
        assert gaps.get(worst, 0) < (1e-5 if part == "losses" else 1e-6), (part, worst, gaps[worst])
    assert max(g.abs().max() for g in a["grads"].values()) > 1e-3


@pytest.fixture(scope="module")
def trained(): return one.trained()


@pytest.mark.parametrize("name", one.strategies())
def test_strategies(trained, two, name):
    a, b = trained[name], two["trained"][name]
    assert b["same"], "the processes hold different states"
    assert len(a["state"]) == len(b["state"]) and a["images"] == b["images"]
    assert apart(a["state"], b["state"]) < 1e-5


def test_local_statistics_are_one(two):
    first, second = two["local"]
    assert apart(first, second) == 0 and first[0].abs().max() > 0


def test_metrics(two):
    found = one.metrics()
    assert torch.equal(found["emb"], two["metrics"]["emb"]) and found["metrics"] == two["metrics"]["metrics"]


def test_batches(two):
    whole, (first, second) = one.batches()[0], two["batches"]
    for k in ("img", "index"): assert torch.equal(torch.stack([first[k], second[k]], 1).flatten(0, 1), whole[k])
    assert second["caption"] == whole["caption"][1::2]


def test_a_loader_for_one_process_is_refused(two):
    assert "all 2 processes would train on the same batches of this Same" in two["refused"]


def test_epochs_that_differ_in_length(two, tmp_path):
    whole, both = one.lengths(tmp_path), two["lengths"]
    assert both["counts"] == whole["counts"] == [5, 9, 9*16]
    assert all(torch.equal(a, b) for a, b in zip(both["weights"], two["resumed"]["weights"], strict=True))
    assert two["resumed"]["counts"] == both["counts"]


def test_processes_with_loaders_of_different_length_are_refused(two):
    assert "loaders of [1, 2] batches in epoch 0" in two["unequal"] and "from_all(found)[0]" in two["unequal"]


def test_another_number_of_processes(out, two, tmp_path):
    whole = one.run(tmp_path/"whole")
    assert apart(whole, two["whole"]) < 1e-5                    # uninterrupted
    assert apart(whole, two["other"]) < 1e-5                    # begun by one, ended by two
    with pytest.warns(UserWarning, match=r"was saved by 2 process\(es\) and training goes on in 1"):
        assert apart(whole, one.run(out/"cut")) < 1e-5          # begun by two, ended by one
    assert apart(whole, two["cut"]) > 1e-3                      # which had stopped in between


def test_one_process_writes(out):
    rows = [json.loads(line) for line in (out/"whole"/"log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in rows] == [2, 4, 6, 8, 10, 11]
    assert rows[-1]["images"] == 11*16


@pytest.mark.kill
def test_killed_and_resumed(out, two):
    with pytest.raises(RuntimeError, match="2 processes"): torchrun(2, PROGRAM, out, "killed", DIED_AT)
    saved = [p.name for p in Checkpoint(out/"killed"/"state").saved()]
    assert saved[-1].endswith(f"{DIED_AT:02d}") or saved[-1].endswith(f"{DIED_AT - 1:02d}"), saved
    torchrun(2, PROGRAM, out, "again")
    again = torch.load(out/"again.pt", weights_only=True)
    assert all(torch.equal(a, b) for a, b in zip(again, two["dropout"], strict=True)), DIED_AT
