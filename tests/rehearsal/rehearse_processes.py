"""Two processes on the shadow device: what they exchange goes through gloo, as on the CPU; nccl is not tried."""
from pathlib import Path

import torch
from rehearsal.both import DEVICES, differences

from reid_lab.core.distributed import torchrun

PROGRAM = Path(__file__).parent/"two_processes.py"


def test_two_processes_train_and_embed_as_on_the_cpu(tmp_path):
    files = {device: tmp_path/f"{device}.pt" for device in DEVICES}
    for device, file in files.items(): torchrun(2, PROGRAM, device, file)
    found = {device: torch.load(file, weights_only=True) for device, file in files.items()}
    assert list(found["cpu"]) == ["bot_tiny", "clip_tiny", "tasks", "synchronised"]
    assert differences(found["cpu"], found["shadow"]) == []
