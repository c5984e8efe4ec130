"""The check of a GPU, without one: what goes wrong with one check stops no other, and is reported."""
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from reid_lab.recipes import device_check
from reid_lab.recipes.device_check import (
    FAILED,
    PASSED,
    Check,
    CheckResult,
    DeviceReport,
    Figure,
    comparable,
    run_checks,
)

ROOT = Path(__file__).resolve().parents[2]


def is_right(device): return [Figure("one", 1., 1., "equal")]
def is_wrong(device): return [Figure("one", 2., 1., "equal", holds=False)]
def ends_its_process(device): os._exit(3)
def hangs(device): time.sleep(600)
def asks_torch(device): return torch.ones(2) @ torch.ones(3)    # here


def outcomes(measures, **how):
    "What checks end with"
    return run_checks([Check("group", measure.__name__, measure) for measure in measures], "cpu", **how)


def test_a_process_that_ends_or_hangs_is_a_failure_and_the_next_check_is_done(monkeypatch):
    monkeypatch.setattr(device_check, "_PATIENCE", 20.)     # the start of a process is part of it
    told = []
    results = outcomes([is_right, ends_its_process, is_wrong, is_right], on_result=told.append)
    assert [result.outcome for result in results] == [PASSED, FAILED, FAILED, PASSED] and told == results
    assert results[1].problem == "the process ended with status 3"
    monkeypatch.setattr(device_check, "_PATIENCE", .2)
    assert "more than 0 s" in outcomes([hangs])[0].problem


def test_the_last_own_line_of_a_failure_is_that_of_the_check_and_not_of_torch():
    failed, = outcomes([asks_torch])
    assert "RuntimeError" in failed.problem and "in asks_torch" in failed.line and "# here" in failed.line
    assert str(Path.home()) not in failed.line


def test_a_report_shows_a_figure_that_does_not_hold_and_what_comes_from_outside_as_text():
    results = [*outcomes([is_wrong], apart=False), CheckResult("a | b", "*c*", FAILED, 1., problem="<b>x</b> | y")]
    page = DeviceReport(dict(device="cuda"), tuple(results)).to_markdown()
    assert "one: 2, expected 1, equal" in page
    assert "<b>" not in page and "a | b" not in page and "*c*" not in page.replace("\\*c\\*", "")


def test_limits_tell_a_wrong_number_from_a_rounded_one(monkeypatch):
    "A device whose features are off by a thousandth is not equal"
    features = device_check._features
    seen = []

    def off(name, device, precision):
        seen.append(device)
        factor = 1.001 if len(seen) == 1 else 1
        return {kind: values*factor for kind, values in features(name, device, precision).items()}

    monkeypatch.setattr(device_check, "_features", off)
    first, *rest = device_check.equal_to_cpu("cpu", "bot_tiny")
    assert not first.holds and all(figure.holds for figure in rest)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_program_refuses_at_once_and_says_what_to_do(tmp_path):
    program = [sys.executable, str(ROOT/"tools/gpu.py"), "--folder", str(tmp_path/"report")]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 2 and "make rehearsal" in done.stderr and not (tmp_path/"report").exists()


def test_tensors_without_numbers_draw_nothing_on_the_cpu():
    "Towers of timm are tried on the meta device before they are made"
    with comparable():
        made = torch.empty(3, device="meta").normal_()
        assert made.device.type == "meta" and torch.rand(2, device="meta").device.type == "meta"
