"""`make gpu` on the stand-in, as it is typed: every small model, and the steps of two small trainings."""
import json
import subprocess
import sys
from pathlib import Path

from rehearsal.both import DEVICE

PROGRAM = Path(__file__).parents[2]/"tools/gpu.py"


def test_all_small_models_are_equal_and_steps_take_what_is_planned(tmp_path):
    command = [sys.executable, PROGRAM, "--device", DEVICE, "--only", "equal", "steps", "--folder", tmp_path,
               "--steps", "bot_tiny", "camel_tiny"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path/"report.json").read_text())
    assert report["ok"] and {result["outcome"] for result in report["results"]} == {"passed"}
    assert len(report["results"]) > 20 and f"report: {tmp_path}" in done.stdout
