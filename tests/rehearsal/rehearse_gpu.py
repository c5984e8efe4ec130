"""`make gpu` on the stand-in, as it is typed: every small model, and the steps of two small trainings."""
import subprocess
import sys
from pathlib import Path

from rehearsal.both import DEVICE

from reid_lab.recipes.device_check import read_device_report

PROGRAM = Path(__file__).parents[2]/"tools/gpu.py"


def test_all_small_models_are_equal_and_steps_take_what_is_planned(tmp_path):
    command = [sys.executable, PROGRAM, "--device", DEVICE, "--only", "equal", "steps", "--folder", tmp_path,
               "--steps", "bot_tiny", "camel_tiny"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"report: {tmp_path}/report.md" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["report.md"]
    report = read_device_report(tmp_path/"report.md")
    assert report.ok and {result.outcome for result in report.results} == {"passed"} and len(report.results) > 20
    page = (tmp_path/"report.md").read_text()
    assert page.startswith(f"# Check of {DEVICE}: {len(report.results)} passed") and "Nothing failed." in page
    assert all(f"| {fact} |" in page for fact in ("torch", "python", "commit"))
