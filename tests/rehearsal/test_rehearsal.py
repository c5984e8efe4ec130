"""The core of the rehearsal of a GPU, in a process of its own, since it changes torch."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rehearsal import shadow

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.whole
def test_the_core_of_the_rehearsal(private_cache):
    if shadow.missing(): pytest.skip(shadow.missing())
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= dict(REID_LAB_REHEARSAL="1", REID_LAB_TEST_CACHE=str(private_cache))
    command = [sys.executable, "-m", "pytest", "-q", "-o", "python_files=rehearse_*.py", "--no-header",
               "-p", "no:cacheprovider", "tests/rehearsal/rehearse_core.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def test_this_process_is_left_alone():
    import torch
    assert not hasattr(torch, shadow.NAME) or os.environ.get("REID_LAB_REHEARSAL")
    with pytest.raises(RuntimeError): torch.zeros(1, device=shadow.NAME)


def test_an_older_torch_is_named(monkeypatch):
    import torch
    monkeypatch.setattr(torch, "__version__", "2.8.1+cpu")
    assert "needs torch 2.9 or newer; here is 2.8.1+cpu" in shadow.missing()
    monkeypatch.setattr(torch, "__version__", "2.9.0a0")
    assert shadow.missing() == ""


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
def test_another_rounding_passes_and_another_step_does_not(monkeypatch):
    "What `make gpu` allows a card, tried with other kernels of the CPU"
    import torch
    from rehearsal import both

    from reid_lab.core.basics import seed_everything
    monkeypatch.setattr(both, "IS_SHADOW", False)

    def work(other=False, **settings):
        seed_everything(0)
        with torch.backends.mkldnn.flags(enabled=not other):
            return both.trained(both.build("bot_tiny"), "cpu", 2, **settings)

    ours, other = work(), work(other=True)
    assert not torch.equal(ours["moves"], other["moves"]) and not both.differences(ours, other)
    for wrong in (ours["moves"]*0, -ours["moves"], 1.1*ours["moves"]):
        assert "of their length" in both.differences(ours, dict(ours, moves=wrong))[0]
    assert both.differences(ours, work(lr=2e-5))
