"""Losses, schedules, tasks, memories, strategies, and the settings of the two recipes."""
import numpy as np
import torch
from fault import bad

from reid_lab.losses import basics as loss_basics
from reid_lab.losses.text import HardRule, hard_keys, itc
from reid_lab.meta.dual_speed import DualSpeed, Lookahead, ReleasedDualSpeed, Task, TaskCycle
from reid_lab.meta.memory import ErrorMemory, TermSchedule, capacity_for
from reid_lab.meta.stylise import Illumination, ReleasedTask, Style, StyleTask, draw_lambda
from reid_lab.models.zoo import create_model
from reid_lab.recipes.camel import make_strategy, run_variant, set_negatives
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.reid import ReidTrain, reid_optimiser, reid_schedule, reid_settings
from reid_lab.training import schedules

THREE, EYE = [Task()]*3, torch.eye(3)
TOWERS = dict(vocab_size=60, size=(32, 16))


def _entry(**parts): return {k: torch.zeros(2, 3) for k in ("img", "txt")} | {"pid": torch.arange(2)} | parts


def _other_entry(tmp):
    memory = ErrorMemory(4)
    memory.push(_entry())
    memory.push(_entry(mask=torch.ones(2, 5, dtype=torch.bool)))


def _two_towers(tmp):
    set_negatives(Config(model="dual_tiny", train=(("negatives", "top"),)), create_model("dual_tiny", **TOWERS))


def _config(variant="camel", **kw): return lambda tmp: Config(variant, "smoke", **kw)


FAULTS = [
    bad("losses: no such rule of negatives", "how='hardest'", lambda tmp: HardRule("hardest"),
        "how='hardest'", "sample", "argmax", "top"),
    bad("losses: no candidate may remain", "top=0", lambda tmp: HardRule("top", top=0),
        "top=0", "at least 1", "None to keep all"),
    bad("losses: every pair is dropped", "drop_cos=-1",
        lambda tmp: HardRule("top", -1),
        "drop_cos=-1", "would drop every pair", "None to drop nothing"),
    bad("losses: drop_cos is NaN", "drop_cos=nan",
        lambda tmp: HardRule("top", float("nan")), "drop_cos=nan"),
    bad("losses: images and captions do not pair up", "3 images, 2 captions", lambda tmp: itc(EYE, EYE[:2]),
        "pair up row by row", "3 and 2 rows"),
    bad("losses: widths differ", "image features of 3, captions of 2", lambda tmp: loss_basics.cosine(EYE, EYE[:, :2]),
        "of one width", "(3, 3) and (3, 2)"),
    bad("losses: too few identities", "5 identities for 3 rows", lambda tmp: itc(EYE, EYE, pid=torch.arange(5)),
        "pid has 5 entries", "3 rows"),
    bad("losses: hard keys of an empty memory", "no key", lambda tmp: hard_keys(EYE, EYE[:0], EYE[:, :0] > 0),
        "keys is empty", "nothing to draw"),
    bad("schedules: no such form", "form='code'", lambda tmp: schedules.lr_irra_cosine(0, form="code"),
        "form='code'", "paper", "released"),
    bad("schedules: a training of no steps", "total=0", lambda tmp: schedules.lr_linear(0, 0), "total=0", "at least 1"),
    bad("schedules: a negative warm-up", "warmup=-5", lambda tmp: schedules.lr_bot_warmup_multistep(0, warmup=-5),
        "warmup=-5", "0 leaves the warm-up out"),
    bad("schedules: one factor too few", "two factors for two cuts",
        lambda tmp: schedules.lr_step(0, 10, factors=(1., .5)), "one entry more than at", "2 and 2"),
    bad("tasks: no such task", "name='colour'", lambda tmp: StyleTask("colour", None), "name='colour'", "illumination"),
    bad("tasks: no such caption rule", "mix='mean'", lambda tmp: StyleTask("blur", None, style=Style(mix="mean")),
        "mix='mean'", "embed"),
    bad("tasks: partners without a memory", "partner='shuffled'",
        lambda tmp: StyleTask("memory", None, style=Style(partner="shuffled")), "partner='shuffled'", "needs a memory"),
    bad("tasks: a paper's task under the program's names", "ReleasedTask('memory')", lambda tmp: ReleasedTask("memory"),
        "name='memory'", "mixup"),
    bad("tasks: a range upside down", "early=(1.2, 0.8)", lambda tmp: Illumination(early=(1.2, .8)),
        "early=(1.2, 0.8)", "range"),
    bad("tasks: a negative Beta parameter", "delta=-1", lambda tmp: draw_lambda(2, -1, np.random.default_rng(0)),
        "delta=-1", "not be negative"),
    bad("memory: half an entry", "capacity=2.5", lambda tmp: ErrorMemory(2.5), "capacity=2.5", "whole number"),
    bad("memory: a negative share", "share=-0.5", lambda tmp: capacity_for(-.5, 64), "share=-0.5", "between 0"),
    bad("memory: a batch of none", "batch_size=0", lambda tmp: capacity_for(.5, 0), "batch_size=0", "at least 1"),
    bad("memory: entries of two kinds", "an entry with states joins one without", _other_entry,
        "'mask'", "the memory"),
    bad("memory: a ramp of no epochs", "ramp=0", lambda tmp: TermSchedule(ramp=0), "ramp=0", "at least 1"),
    bad("strategies: no task", "an empty list", lambda tmp: TaskCycle([]), "tasks is empty", "at least one Task"),
    bad("strategies: names in place of tasks", "tasks=['blur']", lambda tmp: TaskCycle(["blur"]),
        "tasks[0] is a str", "give a Task", error=TypeError),
    bad("strategies: no such order", "order='shuffled'", lambda tmp: TaskCycle(THREE, "shuffled"),
        "order='shuffled'", "random"),
    bad("strategies: slow steps between tasks", "k=4 with three tasks",
        lambda tmp: DualSpeed(THREE, slow_every_tasks=4),
        "slow_every_tasks=4", "multiple of the 3 tasks", "try 3"),
    bad("strategies: a slow rate above 1", "eps_slow=1.5", lambda tmp: DualSpeed(THREE, eps_slow=1.5),
        "eps_slow=1.5", "between 0", "and 1"),
    bad("strategies: a Lookahead of no steps", "lookahead_steps=0",
        lambda tmp: ReleasedDualSpeed(THREE, lookahead=Lookahead(steps=0)), "lookahead_steps=0", "at least 1"),
    bad("strategies: no such slow copy", "slow_from='end'", lambda tmp: Lookahead(slow_from="end"),
        "slow_from='end'", "creation"),
    bad("camel: no such variant", "variant='camle'", _config("camle"), "variant='camle'", "Did you mean 'camel'?"),
    bad("camel: no such setting of Algorithm 1", "meta=dict(kk=3)", _config(meta=(("kk", 3),)), "meta='kk'"),
    bad("camel: no such budget", "train=dict(stepz=3)", _config(train=(("stepz", 3),)), "Did you mean 'steps'?"),
    bad("camel: no such schedule", "train=dict(schedule='cosine')", _config(train=(("schedule", "cosine"),)),
        "schedule='cosine'", "linear", "step"),
    bad("camel: no such rule of negatives", "train=dict(ft_negatives='hard')",
        _config(train=(("ft_negatives", "hard"),)),
        "'hard'", "sample", "top"),
    bad("camel: a model without captions", "model='bot_tiny'", _config(model="bot_tiny"), "model='bot_tiny'",
        "others read captions"),
    bad("camel: negatives of a model without a matcher", "two towers with ITM negatives", _two_towers,
        "negatives='top'", "needs a model with an ITM head", "leave it out"),
    bad("camel: a memory of negative size", "meta=dict(contrast=-1)",
        lambda tmp: make_strategy(Config("released", "smoke", meta=(("contrast", -1),)), None), "capacity=-1"),
    bad("camel: no such preset", "preset='tiny'", lambda tmp: run_variant("camel", "tiny"), "preset='tiny'", "smoke"),
    bad("reid: no such schedule", "schedule='cosine'", lambda tmp: reid_schedule(ReidTrain(schedule="cosine"), 10),
        "schedule='cosine'", "transreid"),
    bad("reid: no such form of the schedule", "form='code'", lambda tmp: reid_schedule(ReidTrain(form="code"), 10),
        "form='code'", "released"),
    bad("reid: no such optimiser", "optimiser='lion'",
        lambda tmp: reid_optimiser(torch.nn.Linear(1, 1), ReidTrain(optimiser="lion")), "optimiser='lion'", "sgd"),
    bad("reid: a setting that does not exist", "stepz=3", lambda tmp: reid_settings("smoke", stepz=3),
        "Did you mean 'steps'?"),
    bad("reid: a model that reads captions", "model='camel_tiny'",
        lambda tmp: reid_settings("smoke", model="camel_tiny"),
        "model='camel_tiny'", "bot_tiny"),
]
