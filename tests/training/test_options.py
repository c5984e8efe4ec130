"""Precision, memory and averaging by `--speed`: reach every recipe, are recorded, and are not mixed in one folder."""
import importlib.util
import json
import os
import pickle
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from reid_lab.cli.commands import main
from reid_lab.core.distributed import torchrun
from reid_lab.core.stopping import StoppedTraining
from reid_lab.datasets.protocols.text import load_setting
from reid_lab.experiments.notebooks import find_notebook, run_notebook
from reid_lab.experiments.params import notebook_parameters, params_hash
from reid_lab.experiments.run import check_folder
from reid_lab.experiments.sweep import sweep
from reid_lab.recipes import cfan, dmg
from reid_lab.recipes.camel import load_data, pretrain, run_phases
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.dart3 import trained_on
from reid_lab.recipes.reid import train_reid
from reid_lab.recipes.starts import train_start
from reid_lab.recipes.text import train_text
from reid_lab.results.rows import load_results
from reid_lab.training import fit as trainings
from reid_lab.training.learner import Callback
from reid_lab.training.options import OPTIONS, SWITCHES, Execution, read_switches
from reid_lab.world.world import World

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def fine(private_cache): return load_setting("fine", "smoke")


@pytest.fixture(scope="module")
def people(private_cache): return World("smoke", task="reid").table()


HALF = Execution(speed="bf16")


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
    half = train_text(fine, "smoke", quiet=True, steps=3, callbacks=[look], execution=HALF)
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
    speed = Execution(speed="bf16,channels_last,accumulate=2")
    done = run_phases(config, data, folder=tmp_path, quiet=True, execution=speed)
    folders = ["pretrain", "finetune/plain", *["finetune/stylised"]*(method == "camel")]
    keys = [json.loads((tmp_path/f/"training.json").read_text()) for f in folders]
    assert {k["speed"] for k in keys} == {"bf16,channels_last,accumulate=2"}
    assert np.isfinite(done["row"]["finetuned_mAP"])
    pickle.dumps(done["models"]["finetuned"])       # as `--processes` does with the model of the first training


def test_starts_image_models_and_aerial_images(people, tmp_path):
    both = Execution(speed="bf16,checkpointing")
    done, _ = train_start("transreid_tiny", "smoke", quiet=True, execution=both, worlds=(500,), steps=2)
    assert done.key["speed"] == "bf16,checkpointing"
    row = cfan.run_method(dict(name="cfan"), "smoke", keep=tmp_path, train=dict(steps=2), execution=both)
    assert row["images_seen"] and json.loads(next(tmp_path.rglob("training.json")).read_text())["speed"]
    case = type("Case", (), dict(train=people))
    done = trained_on(case, "smoke", steps=2, execution=Execution(speed="accumulate=2"))
    assert done.key["speed"] == "accumulate=2" and done.images == 32


def test_parts_of_a_batch_are_the_batch_where_the_loss_is_a_mean_over_rows(fine):
    "Identity loss: the same step. A contrastive loss: each part has half as many negatives, and another step"
    def one(losses, **how):     # the rate of the first step is 0: both steps see the same weights
        kw = (("size", (64, 32)), ("losses", losses))
        return train_text(fine, "smoke", quiet=True, model="irra_tiny", model_kw=kw, steps=2, eps=1e-2, clip=0.,
                          **how)
    for losses, equal in (("id", True), ("itc", False)):
        whole = one(losses)
        parts = one(losses, execution=Execution(speed="accumulate=2"))
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
        done = train_text(fine, "smoke", quiet=True, steps=2, execution=Execution(speed=speed))
        gap = max((a - b).abs().max().item() for a, b in zip(plain.model.parameters(), done.model.parameters()))
        assert gap < 1e-3 and done.key["speed"] == speed
        assert not any("forward" in vars(m) for n, m in done.model.named_modules() if n)     # taken back


def test_an_average_is_what_is_kept(people):
    "Of decay d, naively: the first weights, then d times the mean and the rest of the new weights"
    seen = []
    class Watch(Callback):
        def after_step(self, learn): seen.append([p.detach().clone() for p in learn.net.parameters()])
    mean = Execution(speed="ema=.5")
    done = train_reid(people, "smoke", quiet=True, steps=3, refresh=False, execution=mean)
    train_reid(people, "smoke", quiet=True, steps=3, refresh=False, callbacks=[Watch()])
    want = [.5*(.5*a + .5*b) + .5*c for a, b, c in zip(*seen)]
    assert all(torch.allclose(p, w, atol=1e-6) for p, w in zip(done.model.parameters(), want))


# --- refused ----------------------------------------------------------------------------------------------------------

def test_what_cannot_be_honoured_is_refused_before_anything_is_written(people, tmp_path, private_cache):
    step = dict(preset="smoke", quiet=True)
    refused = {
        "accumulate=2": (lambda d, how: dmg.train_method(people, dict(name="dmg"), folder=d, execution=how, **step),
                         "both halves"),
        "gradcache=4": (lambda d, how: train_reid(people, "smoke", folder=d, quiet=True, execution=how),
                        "gradcache cannot be honoured"),
        "checkpointing": (lambda d, how: train_reid(people, "smoke", folder=d, quiet=True, execution=how),
                          "no repeated blocks"),
        "fp16": (lambda d, how: train_reid(people, "smoke", folder=d, quiet=True, execution=how, device="cpu"),
                 "needs a GPU; use bf16"),
        "ema=.9": (lambda d, how: pretrain(Config("camel", "smoke"), load_data("smoke"), d, True, how), "DualSpeed")}
    for speed, (run, says) in refused.items():
        with pytest.raises(ValueError, match=says): run(tmp_path/speed, Execution(speed=speed))
        assert not (tmp_path/speed).exists(), speed
    with pytest.raises(ValueError, match="virtual step are gone"):
        dmg.train_method(people, dict(name="dmg"), execution=Execution(speed="checkpointing"), **step,
                         model="transreid_tiny")
    with pytest.raises(ValueError, match="fine-tuning averages its weights"):
        run_phases(Config("base", "smoke"), load_data("smoke"), execution=Execution(speed="ema=.9"))


def test_a_folder_is_not_continued_with_other_switches(people, fine, tmp_path):
    train_reid(people, "smoke", folder=tmp_path/"a", quiet=True, steps=2)
    with pytest.raises(ValueError, match=r"'speed': \(None, 'bf16'\)"):
        train_reid(people, "smoke", folder=tmp_path/"a", quiet=True, steps=2, execution=HALF)
    again = dict(folder=tmp_path/"b", quiet=True, steps=2)
    train_text(fine, "smoke", **again, execution=HALF)
    for other in ("bf16,accumulate=2", "none"):
        with pytest.raises(ValueError, match="'speed'"):
            train_text(fine, "smoke", **again, execution=Execution(speed=other))


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
    how = dict(preset="smoke", study="within", methods="itc")
    return run_notebook("cfam", folder/"run", execution="--speed bf16", **how)


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
    def tell(seed, execution): return dict(speed=execution.speed, processes=execution.processes)
    def run(**how): return sweep(tell, [{}], seeds=range(2), n_jobs=2, folder=tmp_path, execution=Execution(**how))
    assert [*run().speed] == ["", ""]
    found = run(speed="bf16", processes=3)
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
    assert all(name in OPTIONS["speed"].about for name in SWITCHES)
    assert [*read_switches("ema=.9,bf16")] == ["bf16", "ema"]


# --- found again ------------------------------------------------------------------------------------------------------

# keys that commit b21f2a6 wrote into trained folders, by speed and training; `sweep` is the name of an outcome there
OLD = json.loads((ROOT/"tests"/"vectors"/"keys_of_0_1.json").read_text())


@pytest.mark.parametrize("speed", OLD)
def test_keys_are_those_of_earlier_versions(speed, fine, people, tmp_path, private_cache):
    "What was trained before is found and continued; how many processes and loaders there are is no part of a key"
    how = Execution(speed=speed, workers=0, trackers="none", image_cache=tmp_path/"cache")
    config = Config("base", "smoke", 3, train=(("steps", 1),))
    done = dict(reid=train_reid(people, "smoke", 3, quiet=True, steps=1, execution=how),
                text=train_text(fine, "smoke", 3, quiet=True, steps=1, execution=how),
                camel=pretrain(config, load_data("smoke"), quiet=True, execution=how),
                vit=train_start("transreid_tiny", "smoke", 3, quiet=True, worlds=(500,), steps=1, execution=how)[0])
    assert {k: d.key for k, d in done.items()} == {k: key for k, key in OLD[speed].items() if k != "sweep"}
    outcome = [dict(a=1, seed=2), "job", "0123abcd", *[how.speed]*bool(how.speed)]
    assert params_hash(*outcome) == OLD[speed]["sweep"]


def test_an_interrupted_run_of_an_earlier_version_goes_on(run, tmp_path):
    "Papermill's record and `metrics.json` know no `execution`; the switches must be the same"
    import shutil
    folder = tmp_path/"run"
    shutil.copytree(run.folder, folder)
    path = folder/"run_cfam.ipynb"
    nb = json.loads(path.read_text())
    given = nb["metadata"]["papermill"]["parameters"]
    assert given.pop("execution") == "--speed bf16"
    given["out_dir"] = str(folder)
    for cell in nb["cells"]:
        lines = cell["source"] if isinstance(cell["source"], list) else cell["source"].splitlines(True)
        cell["source"] = [line for line in lines if not line.startswith("execution = ")]
    path.write_text(json.dumps(nb))
    about = json.loads((folder/"metrics.json").read_text())
    (folder/"metrics.json").write_text(json.dumps({**about, "status": "interrupted"}))
    all_of_it = {**notebook_parameters(find_notebook("cfam")), **given, "execution": "--speed bf16 --workers 2"}
    check_folder(folder, "run_cfam", all_of_it, speed="bf16")
    with pytest.raises(FileExistsError, match="other switches"): check_folder(folder, "run_cfam", all_of_it)


# --- handed down ------------------------------------------------------------------------------------------------------

TELL = """from reid_lab.experiments.params import Params
from reid_lab.experiments.run import start_run
from reid_lab.experiments.sweep import sweep
from reid_lab.training.options import Execution
class P(Params):
    preset: str; execution: Execution; out_dir: str
p = P.from_notebook(globals())
def tell(seed, execution): return dict(**{k: str(v) for k, v in vars(execution).items()}, seed=seed)
with start_run('demo', p) as run:
    frame = sweep(tell, {}, n_jobs=1, seeds=[0, 1], folder=run.folder/'sweep', execution=p.execution)
    assert frame.status.tolist() == ['ok', 'ok'], frame.error[0]
    (run.folder/'told.json').write_text(frame.to_json(orient='records'))
    run.record(dict(R1=1.), dataset='world-smoke')
"""


def teller(path, parameters="preset = 'smoke'\nexecution = ''\nout_dir = ''", code=TELL):
    "A notebook that says how it and its sweep are executed"
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook
    cells = [new_code_cell(parameters, metadata=dict(tags=["parameters"])), new_code_cell(code)]
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_options_reach_a_sweep_in_a_notebook_by_every_way(tmp_path, monkeypatch, capsys):
    "As options of the command, as a parameter, and by old variables, which the kernel does not see"
    nb = str(teller(tmp_path/"teller.ipynb"))
    def told(folder): return json.loads((folder/"told.json").read_text())[1]
    want = dict(processes="1", workers="3", trackers="('none',)", speed="bf16", backend="loky",
                switches="{'bf16': True}")
    text = "--workers 3 --trackers none --speed bf16"
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path/"rows.csv"))
    assert main(["run", nb, "--out", str(tmp_path/"a"), *text.split()]) == 0
    run_notebook(nb, tmp_path/"b", execution=text)
    run_notebook(nb, tmp_path/"c", dict(execution=text))
    capsys.readouterr()
    monkeypatch.setenv("REID_LAB_SPEED", "bf16")
    monkeypatch.setenv("REID_LAB_WORKERS", "9")
    assert main(["run", nb, "--out", str(tmp_path/"d"), "--workers", "3", "--trackers", "none"]) == 0
    err = capsys.readouterr().err
    assert "REID_LAB_SPEED is deprecated; write --speed bf16" in err and "REID_LAB_WORKERS" not in err
    for name in "abcd":
        found = told(tmp_path/name)
        assert {k: found[k] for k in want} == want and found["seed"] == 1, name
        assert json.loads((tmp_path/name/"metrics.json").read_text())["speed"] == "bf16"
    run_notebook(nb, tmp_path/"e", execution=Execution())
    assert told(tmp_path/"e")["speed"] == "" and told(tmp_path/"e")["workers"] == "None"
    with pytest.raises(ValueError, match="give it once"): run_notebook(nb, None, dict(execution=text), execution=text)


def test_papermill_alone_takes_the_same_words(tmp_path):
    import papermill as pm
    given = dict(execution="--workers 2 --speed ema=.9", out_dir=str(tmp_path/"run"))
    pm.execute_notebook(str(teller(tmp_path/"teller.ipynb")), str(tmp_path/"out.ipynb"), given, language="python",
                        kernel_name="python3", progress_bar=False)
    found = json.loads((tmp_path/"run"/"told.json").read_text())[0]
    assert (found["workers"], found["switches"]) == ("2", "{'ema': 0.9}")


def test_what_cannot_be_told_says_so(tmp_path):
    "Switches that would be lost are an error, a number of workers a warning"
    nb = teller(tmp_path/"old.ipynb", "preset = 'smoke'\nout_dir = ''", "x = 1")
    def job(seed): return dict(R1=seed)
    for call in (lambda how: run_notebook(nb, tmp_path/"r", execution=how),
                 lambda how: sweep(job, {}, folder=tmp_path/"s", n_jobs=1, execution=how)):
        for how in ("--speed bf16", "--processes 2"):
            with pytest.raises(ValueError, match=f"has no parameter `execution`: {how} has no effect"): call(how)
        with pytest.warns(UserWarning, match="--workers 2 has no effect"): call("--workers 2")
    assert not list((tmp_path/"r").glob("told.json")) and len(list((tmp_path/"s").glob("*.json"))) == 1
    with pytest.raises(ValueError, match="the same for all runs"): sweep(job, dict(execution=["--workers 1"]))


def test_processes_of_a_training_are_told(people, tmp_path):
    "The record crosses torchrun: two processes, each with its half, and the switches of both"
    how = Execution(processes=2, speed="bf16", trackers="none")
    done = train_reid(people, "smoke", folder=tmp_path, quiet=True, steps=2, execution=how)
    assert done.images == 32 and done.key["speed"] == "bf16" and not (tmp_path/"tensorboard").exists()
    one = train_reid(people, "smoke", quiet=True, steps=2, execution=Execution(speed="bf16"))
    assert one.key == done.key and not same(one, done)      # BatchNorm has statistics of half a batch in each


@pytest.mark.whole
def test_processes_that_a_training_started_stop_in_time(people, tmp_path, monkeypatch):
    "By hours, then by a signal that the process gets which waits for them; then they go on to the same end"
    def train(folder, hours=None):
        how = Execution(processes=2, trackers="none", max_hours=hours)
        return train_reid(people, "smoke", folder=folder, quiet=True, steps=6, execution=how)

    def signalled(*args, **how):
        os.kill(os.getpid(), signal.SIGUSR1)
        return torchrun(*args, **how)

    whole = train(tmp_path/"whole")
    with pytest.raises(StoppedTraining, match="after step 1 of 6, since its hours are over"):
        train(tmp_path/"parts", hours=1e-6)
    with monkeypatch.context() as patch, pytest.raises(StoppedTraining, match="after step 2 of 6, since it was asked"):
        patch.setattr(trainings, "torchrun", signalled)
        train(tmp_path/"parts")
    again = train(tmp_path/"parts")
    assert again.steps == 6 and same(whole, again)


@pytest.mark.parametrize("name, option", [("speed", "bf61"), ("backend", "dusk"), ("trackers", "wandbs"),
                                          ("workers", "many"), ("processes", "0")])
def test_wrong_options_are_refused_before_there_is_a_folder(name, option, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    assert main(["run", str(teller(tmp_path/"t.ipynb")), f"--{name}", option]) == 2
    assert option in capsys.readouterr().err and not (tmp_path/"runs").exists()
