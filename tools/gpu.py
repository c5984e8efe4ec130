"""Check this machine's GPU, and write a report to send to whoever maintains this: `make gpu`.

    python tools/gpu.py                             # everything, into runs/gpu-TIME; 15 minutes or more
    python tools/gpu.py --only equal steps          # parts of it; also experiments and tests
    python tools/gpu.py --folder mine --device cuda:1

What is computed on the GPU is compared with the CPU, a step of a training with its plan; then the experiments at smoke
and the tests that can use a device. Nothing is sent anywhere. Exit status: 0 all passed, 1 something failed, 2 no GPU.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path

from reid_lab.core.basics import DEVICES, pick_device
from reid_lab.experiments.cell_failures import last_own
from reid_lab.recipes.device_check import STEPS, Check, DeviceReport, Figure, device_checks, device_facts, run_checks

ROOT = Path(__file__).resolve().parents[1]
PARTS = dict(equal=("equal to the CPU", "equal to the CPU in 16 bits"), steps=("a step beside its plan",),
             experiments=("experiments at smoke",), tests=("tests",))
TESTS = ("core", "training", "reading", "towers", "released")     # rehearse_*.py, which compare with the CPU
NO_GPU = """No GPU: torch {version} finds none of {devices} on this machine, so there is nothing to check.
  make rehearsal    tries the same code on a stand-in for a GPU, without one
  nvidia-smi        says whether the driver sees a card; a torch without CUDA (its version ends in +cpu) sees none"""


def chosen_device(device):
    "The device to check; the program ends where there is none"
    import torch
    kinds = ", ".join(kind for kind in DEVICES if kind != "cpu")
    refusal = NO_GPU.format(version=torch.__version__, devices=kinds)
    try: device = pick_device(device)
    except ValueError as error: refusal, device = str(error), "cpu"
    if device != "cpu": return device
    print(refusal, file=sys.stderr)
    sys.exit(2)


def _test_figure(case):
    "One test of pytest's report that did not pass; None for others"
    trouble = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
    if trouble is None: return None
    frame = last_own(trouble.text or "")
    message = (trouble.get("message") or "").split("\n")[0][:300]
    place = str(frame) if frame else (trouble.text or "").strip().split("\n")[-1]
    return Figure(f"{case.get('name')}: {message}", None, limit="passes", holds=False, note=place)


def tests_on(device, name):
    "The tests of a file, as figures"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder)/"report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "python_files=rehearse_*.py", "--tb=native",
                   "-p", "no:cacheprovider", f"--junitxml={report}", f"tests/rehearsal/rehearse_{name}.py"]
        done = subprocess.run(command, cwd=ROOT, env={**os.environ, "REID_LAB_TEST_DEVICE": device},
                              capture_output=True, text=True)
        if not report.exists(): raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-1000:]}")
        cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [figure for figure in map(_test_figure, cases) if figure]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = len(cases) - len(failed) - skipped
    counts = [Figure("tests passed", passed, limit="at least one", holds=passed > 0), Figure("tests skipped", skipped)]
    return [*counts, *failed]


def chosen_checks(parts, steps):
    "The checks of some parts, in their order"
    checks = [*device_checks(steps), *(Check("tests", name, partial(tests_on, name=name)) for name in TESTS)]
    groups = [group for part in parts for group in PARTS[part]]
    return [check for check in checks if check.group in groups]


def say(result):
    "A line as soon as a check has ended"
    print(f"{result.outcome:8} {result.seconds:7.1f} s  {result.group}: {result.name}", flush=True)
    for line in (result.problem, result.line):
        if line: print(f"{'':20}{line}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="auto", help="such as cuda or cuda:1; default: the first GPU")
    parser.add_argument("--folder", help="where the report is written; default: runs/gpu-TIME")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="parts; default: all")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="trainings; default: all")
    chosen = parser.parse_args()
    device = chosen_device(chosen.device)
    folder = Path(chosen.folder or ROOT/"runs"/time.strftime("gpu-%Y%m%d-%H%M%S"))
    checks = chosen_checks(chosen.only, chosen.steps)
    print(f"{len(checks)} checks of {device}; one that fails stops no other", flush=True)
    with tempfile.TemporaryDirectory() as rows:
        os.environ.setdefault("REID_LAB_RESULTS", str(Path(rows)/"runs.csv"))   # smoke runs are no results
        results = run_checks(checks, device, on_result=say)
    report = DeviceReport(device_facts(device), tuple(results))
    file = report.save(folder)
    print(f"{report.counts}\nreport: {file} (the one file to send)")
    return 0 if report.ok else 1


if __name__ == "__main__": sys.exit(main())
