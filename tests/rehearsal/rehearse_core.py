"""The core of the rehearsal: each model a step, each adaptation, an experiment, and faults that are found."""
import inspect

import numpy as np
import pytest
import torch
from rehearsal import planted
from rehearsal.both import DEVICE, IS_SHADOW, Samples, build, check_same, embedded, trained
from rehearsal.shadow import DeviceFault

from reid_lab.core.basics import pick_device
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.experiments.notebooks import run_notebook
from reid_lab.models.zoo import check_image_model, check_model, create_model, list_models
from reid_lab.recipes.device_check import Check, DeviceReport, device_checks, device_facts, run_checks
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.training.learner import Learner
from reid_lab.tta.base import NoAdapt, adapt_embeddings, adapt_images
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3, Dart3Lite
from reid_lab.tta.gradient import Temp, Tent

TINY = list_models(size="tiny")
WITH_TOWERS = ["bot", "tuned"]      # around any tower of timm: here a small one
CONTROLS = list_models(trains=False)


only_shadow = pytest.mark.skipif(not IS_SHADOW, reason="a property of the stand-in for a GPU")


@only_shadow
def test_the_device_is_chosen_as_a_gpu_is():
    assert pick_device("auto") == "shadow"
    with pytest.raises(ValueError, match="shadow"): pick_device("tpu")


@pytest.mark.parametrize("name", [*TINY, *WITH_TOWERS])
def test_one_step_and_the_features_of_a_model(name):
    def work(device):
        model = build(name)
        return trained(model, device), embedded(model, device)

    check_same(work)


@pytest.mark.parametrize("name", CONTROLS)
def test_features_of_a_control(name): check_same(lambda device: embedded(build(name), device, length=20))


# --- adaptation ---

# "lite": Adam moves by its rate also where the gradient is mere rounding, so that features may come out apart by twice
# the way it goes. Two steps of 1e-4 stay below what is allowed on a GPU: there this case shows that the steps run.
FEATURES = {"none": NoAdapt,
            "norm": CameraNorm,
            "norm, one camera": lambda: CameraNorm(by_camera=False),
            "lite": lambda: Dart3Lite(lr=1e-4, steps=2, batch_size=4),
            "lite, rescaled": lambda: Dart3Lite(rescale=True)}
IMAGES = FEATURES | {"tent": Tent,
                     "tent, as released": lambda: Tent(bn_mode="batch", batch_size=4),
                     "temp": Temp,
                     "dart3": lambda: Dart3(lr=1e-3, batch_size=4),
                     "dart3, episodic": lambda: Dart3(episodic=True)}


@pytest.mark.parametrize("name", FEATURES)
def test_an_adaptation_of_features_that_are_on_the_device(name):
    rng = np.random.default_rng(0)
    emb, pid, cam = rng.normal(size=(24, 6)).astype("float32"), np.arange(24) % 6, np.arange(24) % 3

    def work(device):
        q, g = (Embeddings(torch.as_tensor(emb[rows]), pid[rows], cam[rows]).to(device)
                for rows in (slice(0, 12), slice(12, 24)))
        return [e.emb for e in adapt_embeddings(FEATURES[name](), q, g)]

    check_same(work)


@pytest.mark.parametrize("name", IMAGES)
def test_an_adaptation_of_a_model_that_is_on_the_device(name):
    table = tiny_table(16, 3)

    def work(device):
        torch.manual_seed(0)
        model = create_model("bot_tiny", n_ids=4, size=(32, 16)).eval().to(device)
        g = embed_images(model, table.where(cam=[0, 1]), encode="raw_features", quiet=True)
        return [e.emb for e in adapt_images(IMAGES[name](), model, table.where(cam=2), g)]

    check_same(work)


# --- faults are found, with their place ---

def marked_line(kind):
    "File and line of `# here` in a planted class, or in what it applies"
    source = planted.InGradient if kind is planted.Backward else kind
    lines, first = inspect.getsourcelines(source)
    number = next(i for i, line in enumerate(lines) if "# here" in line)
    return f"{planted.__file__}:{first + number} in "


@only_shadow
@pytest.mark.parametrize("kind", planted.PLANTED)
def test_a_planted_fault_is_found_where_it_is(kind):
    Learner(kind(), Samples(), device="cpu").fit(steps=1)    # the CPU sees nothing
    with pytest.raises(DeviceFault) as found: Learner(kind(), Samples(), device="shadow").fit(steps=1)
    assert marked_line(kind) in str(found.value)


@only_shadow
def test_a_fault_of_the_package_has_a_line_of_the_package():
    "The batch of a model on the CPU, given to one on the device"
    model = build("bot_tiny").to("shadow")
    line = r"reid_lab/models/\w+\.py:\d+ in "
    with pytest.raises(DeviceFault, match=line): model.encode_image(torch.rand(2, 3, 64, 32))


# --- the loop ---

def test_the_optimiser_is_made_of_weights_that_have_moved():
    seen = []

    def opt(model):
        seen.extend(p.device.type for p in model.parameters())
        return torch.optim.AdamW(model.parameters())

    Learner(build("bot_tiny"), Samples(), device=DEVICE, opt=opt)
    assert set(seen) == {torch.device(DEVICE).type}


def test_one_process_may_train_on_the_cpu_and_on_the_device():
    for device, precision in ((DEVICE, "no"), ("cpu", "no"), (DEVICE, "bf16"), ("cpu", "bf16")):
        learn = Learner(build("bot_tiny"), Samples(), device=device, precision=precision).fit(steps=1)
        kind = torch.device(device).type
        assert {p.device.type for p in learn.net.parameters()} == {kind} and learn.acc.device.type == kind


@pytest.mark.parametrize("name", ["bot_tiny", "camel_tiny"])
def test_the_contract_of_a_model_can_be_checked_on_the_device(name):
    model = build(name).to(DEVICE)
    assert check_model(model, text=name == "camel_tiny")
    if name == "bot_tiny": assert check_image_model(model)


# --- the check of a GPU, as `make gpu` does it ---

@only_shadow
def test_the_check_of_a_device_goes_on_after_a_failure_and_shows_it(tmp_path):
    plain = [check for check in device_checks(["bot_tiny"], ["bot_tiny"]) if check.group != "experiments at smoke"]
    broken = Check("planted", "a constant of the CPU", planted.check_of_a_device)
    report = DeviceReport(device_facts(DEVICE), tuple(run_checks([broken, *plain], DEVICE)))
    assert [result.name for result in report.results if result.outcome != "passed"] == [broken.name]
    failed, *rest = report.results
    memory = [figure for result in rest for figure in result.figures if figure.name == "memory, GiB"]
    assert len(memory) == 2 and all(.75 < figure.measured/figure.expected < 1.25 for figure in memory)
    lines, first = inspect.getsourcelines(planted.check_of_a_device)
    place = f"planted.py:{first + len(lines) - 1} in check"
    page = report.save(tmp_path).read_text("utf-8")
    assert "DeviceFault" in failed.problem and place in failed.problem and place in page.partition("What failed")[2]


# --- a whole run ---

def test_an_experiment(tmp_path, monkeypatch):
    "Its kernel is another process, which has the device, too"
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path / "runs.csv"))
    done = run_notebook("dart3", tmp_path / "run", preset="smoke", device=DEVICE)
    assert done.metrics["status"] == "finished" and done.metrics["params"]["device"] == DEVICE
    assert len(done.rows) > 5
