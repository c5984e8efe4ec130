"""Precision, memory and averaging by `--speed`: reach every recipe, are recorded, and are not mixed in one folder."""
import importlib.util
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from reid_lab.cli.commands import main
from reid_lab.experiments.notebooks import run_notebook
from reid_lab.experiments.sweep import sweep
from reid_lab.training.learner import Callback
from reid_lab.recipes import cfan, dmg
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.camel import load_data, pretrain, run_phases
from reid_lab.recipes.dart3 import trained_on
from reid_lab.recipes.reid import train_reid
from reid_lab.recipes.starts import train_start
from reid_lab.recipes.text import train_text
from reid_lab.results.rows import load_results
from reid_lab.training.options import SWITCHES, read_switches, telling
from reid_lab.datasets.protocols.text import load_setting
from reid_lab.world.world import World

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fine(private_cache): return load_setting("fine", "smoke")


@pytest.fixture(scope="module")
def people(private_cache): return World("smoke", task="reid").table()


def same(a, b): return all(torch.equal(x, y) for x, y in zip(a.model.parameters(), b.model.parameters()))


class Look(Callback):
    "Kinds of numbers that linear layers give in training"
    def __init__(self): self.kinds = set()
    def before_fit(self, learn):
        for m in learn.net.modules():
            if isinstance(m, torch.nn.Linear): m.register_forward_hook(self.note)
    def note(self, module, args, out):
        if module.training: self.kinds.add(str(out.dtype))
    def __deepcopy__(self, memo): return self


# --- every recipe honours them ----------------------------------------------------------------------------------------

def test_bfloat16_through_a_recipe(fine):
    "Layers compute in 16 bits, weights are float32, the model that comes back can be pickled, and the key says it"
    plain, look, seen = train_text(fine, "smoke", quiet=True, steps=3), Look(), Look()
    with telling(speed="bf16"): half = train_text(fine, "smoke", quiet=True, steps=3, callbacks=[look])
    train_text(fine, "smoke", quiet=True, steps=1, callbacks=[seen])
    assert "torch.bfloat16" in look.kinds and seen.kinds == {"torch.float32"}
    assert {p.dtype for p in half.model.parameters()} == {torch.float32} and not same(plain, half)
    gap = max((a - b).abs().max().item() for a, b in zip(plain.model.parameters(), half.model.parameters()))
    assert gap < .05
    assert half.key["speed"] == "bf16" and "speed" not in plain.key
    assert half.key == {**plain.key, "speed": "bf16"}
    assert "forward" not in vars(half.model) or pickle.dumps(half.model.forward.__func__)


@pytest.mark.parametrize("method", ["base", "camel"])
def test_both_trainings_of_camel(method, tmp_path, private_cache):
    "With a memory, tasks and slow weights; the second training begins with a copy of the first one's model"
    data, config = load_data("smoke"), Config(method, "smoke", train=(("steps", 6), ("ft_steps", 6), ("swa", 0)))
    with telling(speed="bf16,channels_last,accumulate=2"):
        done = run_phases(config, data, folder=tmp_path, quiet=True)
    folders = ["pretrain", "finetune/plain", *["finetune/stylised"]*(method == "camel")]
    keys = [json.loads((tmp_path/f/"training.json").read_text()) for f in folders]
    assert {k["speed"] for k in keys} == {"bf16,channels_last,accumulate=2"}
    assert np.isfinite(done["row"]["finetuned_mAP"])
    pickle.dumps(done["models"]["finetuned"])       # as `--processes` does with the model of the first training


def test_starts_image_models_and_aerial_images(people, tmp_path):
    with telling(speed="bf16,checkpointing"):
        done, _ = train_start("transreid_tiny", "smoke", quiet=True, worlds=(500,), steps=2)
        assert done.key["speed"] == "bf16,checkpointing"
        row = cfan.run_method(dict(name="cfan"), "smoke", keep=tmp_path, train=dict(steps=2))
    assert row["images_seen"] and json.loads(next(tmp_path.rglob("training.json")).read_text())["speed"]
    case = type("Case", (), dict(train=people))
    with telling(speed="accumulate=2"): done = trained_on(case, "smoke", steps=2)
    assert done.key["speed"] == "accumulate=2" and done.images == 32


def test_parts_of_a_batch_are_the_batch_where_the_loss_is_a_mean_over_rows(fine):
    "Identity loss: the same step. A contrastive loss: each part has half as many negatives, and another step"
    def one(losses, **how):     # the rate of the first step is 0: both steps see the same weights
        kw = (("size", (64, 32)), ("losses", losses))
        return train_text(fine, "smoke", quiet=True, model="irra_tiny", model_kw=kw, steps=2, eps=1e-2, clip=0.,
                          **how)
    for losses, equal in (("id", True), ("itc", False)):
        whole = one(losses)
        with telling(speed="accumulate=2"): parts = one(losses)
        start = one(losses, lr=0.)
        pairs = lambda a, b: max((x - y).abs().max().item() for x, y in zip(a.model.parameters(), b.model.parameters()))
        moved = pairs(whole, start)
        assert moved > 1e-4 and (pairs(whole, parts) < 1e-3*moved) == equal, losses
        ours, theirs = (d.log[-1][f"{losses}_loss"] for d in (parts, whole))
        assert parts.images == whole.images == 32
        if equal: assert abs(ours - theirs) < 1e-5
        else: assert theirs - ours == pytest.approx(np.log(2), abs=.3)      # eight candidates in place of sixteen


def test_chunks_and_blocks_change_nothing_but_rounding(fine):
    plain = train_text(fine, "smoke", quiet=True, steps=2)
    for speed in ("gradcache=4", "checkpointing"):
        with telling(speed=speed): done = train_text(fine, "smoke", quiet=True, steps=2)
        gap = max((a - b).abs().max().item() for a, b in zip(plain.model.parameters(), done.model.parameters()))
        assert gap < 1e-3 and done.key["speed"] == speed
        assert not any("forward" in vars(m) for n, m in done.model.named_modules() if n)     # taken back


def test_an_average_is_what_is_kept(people):
    "Of decay d, naively: the first weights, then d times the mean and the rest of the new weights"
    seen = []
    class Watch(Callback):
        def after_step(self, learn): seen.append([p.detach().clone() for p in learn.net.parameters()])
    with telling(speed="ema=.5"): done = train_reid(people, "smoke", quiet=True, steps=3, refresh=False)
    from reid_lab.recipes import reid
    fit, reid.fit = reid.fit, lambda *a, **kw: fit(*a, **kw, callbacks=[Watch()])
    try: train_reid(people, "smoke", quiet=True, steps=3, refresh=False)
    finally: reid.fit = fit
    want = [.5*(.5*a + .5*b) + .5*c for a, b, c in zip(*seen)]
    assert all(torch.allclose(p, w, atol=1e-6) for p, w in zip(done.model.parameters(), want))


# --- refused ----------------------------------------------------------------------------------------------------------

def test_what_cannot_be_honoured_is_refused_before_anything_is_written(people, tmp_path, private_cache):
    step = dict(preset="smoke", quiet=True)
    refused = {
        "accumulate=2": (lambda d: dmg.train_method(people, dict(name="dmg"), folder=d, **step), "both halves"),
        "gradcache=4": (lambda d: train_reid(people, "smoke", folder=d, quiet=True), "gradcache cannot be honoured"),
        "checkpointing": (lambda d: train_reid(people, "smoke", folder=d, quiet=True), "no repeated blocks"),
        "fp16": (lambda d: train_reid(people, "smoke", folder=d, quiet=True, device="cpu"), "needs a GPU; use bf16"),
        "ema=.9": (lambda d: pretrain(Config("camel", "smoke"), load_data("smoke"), d, True), "DualSpeed")}
    for speed, (run, says) in refused.items():
        with telling(speed=speed), pytest.raises(ValueError, match=says): run(tmp_path/speed)
        assert not (tmp_path/speed).exists(), speed
    virtual = dict(name="dmg"), dict(model="transreid_tiny")
    with telling(speed="checkpointing"), pytest.raises(ValueError, match="virtual step are gone"):
        dmg.train_method(people, virtual[0], **step, **virtual[1])
    with telling(speed="ema=.9"), pytest.raises(ValueError, match="fine-tuning averages its weights"):
        run_phases(Config("base", "smoke"), load_data("smoke"))


def test_a_folder_is_not_continued_with_other_switches(people, fine, tmp_path):
    train_reid(people, "smoke", folder=tmp_path/"a", quiet=True, steps=2)
    with telling(speed="bf16"), pytest.raises(ValueError, match=r"'speed': \(None, 'bf16'\)"):
        train_reid(people, "smoke", folder=tmp_path/"a", quiet=True, steps=2)
    with telling(speed="bf16"): train_text(fine, "smoke", folder=tmp_path/"b", quiet=True, steps=2)
    with telling(speed="bf16,accumulate=2"), pytest.raises(ValueError, match="'speed'"):
        train_text(fine, "smoke", folder=tmp_path/"b", quiet=True, steps=2)
    with telling(speed="none"), pytest.raises(ValueError, match="'speed'"):
        train_text(fine, "smoke", folder=tmp_path/"b", quiet=True, steps=2)


@pytest.mark.parametrize("speed, says", [("bf61", "Did you mean 'bf16'?"), ("accumulate", "lacks a value (parts)"),
                                         ("bf16,fp16", "two precisions"), ("ema=2", "below 1")])
def test_the_command_names_the_choices(speed, says, capsys):
    assert main(["run", "cfam", "-p", "preset=smoke", "--speed", speed]) == 2
    err = capsys.readouterr().err
    assert f"--speed {speed}" in err and says in err and ("choose one of ['bf16'" in err) == (speed == "bf61")


# --- recorded ---------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def run(tmp_path_factory, private_cache):
    "An experiment at smoke with a switch"
    folder = tmp_path_factory.mktemp("run")
    with telling(speed="bf16"): return run_notebook("cfam", folder/"run", preset="smoke", study="within", methods="itc")


def test_a_row_says_it(run):
    row = load_results(run.folder/"results.csv").iloc[0]
    assert row.parameters["speed"] == "bf16" and row.env["processes"] == 1
    assert {json.loads(p.read_text())["speed"] for p in run.folder.rglob("training.json")} == {"bf16"}


def test_a_run_is_not_continued_with_other_switches(run):
    about = json.loads((run.folder/"metrics.json").read_text())
    (run.folder/"metrics.json").write_text(json.dumps({**about, "status": "interrupted"}))
    with pytest.raises(FileExistsError, match=r"other switches .*\(--speed there, here\): \('bf16', ''\)"):
        run_notebook("cfam", run.folder, preset="smoke", study="within", methods="itc")
    (run.folder/"metrics.json").write_text(json.dumps(about))


def test_a_sweep_keeps_them_apart(tmp_path):
    "Outcomes with other switches are others, also in processes that an earlier sweep left running"
    def tell(seed):
        from reid_lab.training.options import in_force
        return in_force()
    def run(): return sweep(tell, [{}], seeds=range(2), n_jobs=2, folder=tmp_path)
    assert [*run().speed] == ["", ""]
    with telling(speed="bf16", processes=3): found = run()
    assert [*found.speed] == ["bf16", "bf16"] and [*found.processes] == [3, 3]
    assert len(list(tmp_path.glob("*.json"))) == 4 and [*run().processes] == [1, 1]


def test_the_benchmark_has_every_switch():
    "Of one process: batchnorm=sync is a matter of several"
    spec = importlib.util.spec_from_file_location("benchmark_of_training", ROOT/"benchmarks"/"train.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    names = {k for text in benchmark.switches(8) if text != "plain" for k in read_switches(text)}
    assert names == {*SWITCHES} - {"batchnorm"} and benchmark.switches(8)[:2] == ["plain", "none"]


def test_names_are_those_of_the_command():
    from reid_lab.cli.options import RUN_OPTIONS
    assert all(name in RUN_OPTIONS["speed"][2] for name in SWITCHES)
    assert [*read_switches("ema=.9,bf16")] == ["bf16", "ema"]
