"Trainings as torchrun starts them: on two machines, after a process died, and with a time limit"
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reid_lab.core.distributed import torchrun
from reid_lab.training.folder import DONE, WEIGHTS

PROGRAM = Path(__file__).parent/"torchrun_program.py"
SAVED, STEPS = 50, 60   # of the program


def equal(a, b):
    "Whether two trained folders hold the same weights, bit for bit"
    a, b = load_file(a/WEIGHTS), load_file(b/WEIGHTS)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def states(folder): return sorted(path.name for path in (folder/"state").glob("step-*"))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def node(rank, port, *args):
    "One of two machines, as the documentation starts them"
    line = ["--nnodes", 2, "--node_rank", rank, "--nproc_per_node", 1, "--rdzv_backend", "c10d",
            "--rdzv_endpoint", f"127.0.0.1:{port}", "--rdzv_id", "test", PROGRAM, *args]
    return subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *map(str, line)], text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    "The folder of a training in two processes of one machine"
    folder = tmp_path_factory.mktemp("torchrun")/"whole"
    torchrun(2, PROGRAM, folder)
    return folder


@pytest.mark.whole
def test_two_machines_train_as_two_processes_of_one(undisturbed, tmp_path):
    port = free_port()
    nodes = [node(rank, port, tmp_path/"nodes") for rank in (0, 1)]
    said = [process.communicate(timeout=120) for process in nodes]
    assert [process.returncode for process in nodes] == [0, 0], said
    assert sorted(out.strip() for out, _ in said) == [f"process {rank}: {STEPS} steps" for rank in (0, 1)]
    assert equal(tmp_path/"nodes", undisturbed)


@pytest.mark.kill
def test_a_killed_worker_is_started_again_and_the_training_goes_on(undisturbed, tmp_path):
    folder = tmp_path/"cut"
    line = ["--standalone", "--nproc_per_node", "2", "--max-restarts", "1", str(PROGRAM), str(folder), "dies"]
    run = subprocess.run([sys.executable, "-m", "torch.distributed.run", *line], text=True, capture_output=True,
                         timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    assert (tmp_path/"cut.died").exists() and f"step-{SAVED:08d}" in states(folder)
    assert equal(folder, undisturbed)


@pytest.mark.whole
def test_all_processes_stop_at_one_step_and_go_on_to_the_same_end(undisturbed, tmp_path):
    "Hours that are over, then a signal that only one of the processes gets, then to the end"
    folder = tmp_path/"parts"
    said = torchrun(2, PROGRAM, folder, "hours").split("\n")
    assert sorted(filter(None, said)) == [f"process {rank}: stopped after step 1 of 60, since its hours are over"
                                          for rank in (0, 1)]
    assert states(folder) == ["step-00000001"] and not (folder/DONE).exists()
    said = torchrun(2, PROGRAM, folder, "signal").split("\n")
    at = re.findall(r"process (\d): stopped after step (\d+) of 60, since SIGUSR1 came", "\n".join(sorted(said)))
    assert [rank for rank, _ in at] == ["0", "1"] and len({step for _, step in at}) == 1 and 5 <= int(at[0][1]) <= 9
    torchrun(2, PROGRAM, folder, "signal")
    assert equal(folder, undisturbed)
