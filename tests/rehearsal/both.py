"""The same work on the CPU and on the shadow device, and the comparison of what it gives.

`REID_LAB_TEST_DEVICE=cuda` takes a real GPU instead (`make gpu` does): results are then equal but for rounding.
"""
import json
import os
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch.utils._pytree import tree_map

from reid_lab.core.basics import seed_everything
from reid_lab.models.zoo import MODELS, NEEDS, create_model, sample_batch
from reid_lab.recipes.device_check import comparable
from reid_lab.training.learner import Learner, to_device

SIZE = (64, 32)
DEVICE = os.environ.get("REID_LAB_TEST_DEVICE", "shadow")
DEVICES = ("cpu", DEVICE)
IS_SHADOW = DEVICE == "shadow"


def allowed(at, largest):
    "How far values of a real GPU may be from those of the CPU; the stand-in's are equal"
    if IS_SHADOW: return 0.
    if ".weights" in at: return 1e-3    # whatever they did; how they moved is compared as a whole, see `MOVES`
    return 1e-3*max(largest, 1e-3)


# AdamW moves a weight by its rate whatever the size of its gradient, so also where that is mere rounding and has
# another sign on another device. Two of its steps at a rate of 1e-5 leave everything else as it is: with convolutions
# and products of another library the moves of small models differ by .01 to .4 % of their length. Steps that are not
# taken differ by 100 %, those in the wrong direction by 200 %.
MOVES, SMALL_RATE = .05, 1e-5


def on_both(work: Callable[[str], object]) -> tuple:
    "What `work(device)` gives on the CPU and on the shadow device, from the same random states"
    found = []
    for device in DEVICES:
        seed_everything(0)
        with nullcontext() if IS_SHADOW else comparable(): found.append(work(device))
    return tuple(found)


def plain(value):
    "A tensor on the CPU; other values as they are"
    return value.detach().cpu() if isinstance(value, torch.Tensor) else value


def differences(ours, theirs, at="") -> list[str]:
    "Where two nested results are not equal: to the last bit on the stand-in, but for rounding on a GPU"
    ours, theirs = plain(ours), plain(theirs)
    if isinstance(ours, dict):
        if ours.keys() != theirs.keys(): return [f"{at}: keys {ours.keys() ^ theirs.keys()}"]
        return [line for key in ours for line in differences(ours[key], theirs[key], f"{at}.{key}")]
    if isinstance(ours, (list, tuple)):
        if len(ours) != len(theirs): return [f"{at}: {len(ours)} and {len(theirs)} items"]
        return [line for i, pair in enumerate(zip(ours, theirs)) for line in differences(*pair, f"{at}[{i}]")]
    if isinstance(ours, torch.Tensor):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return [f"{at}: {tuple(ours.shape)} {ours.dtype} and {tuple(theirs.shape)} {theirs.dtype}"]
        if torch.equal(ours.nan_to_num(), theirs.nan_to_num()): return []
        if at.endswith(".moves") and not IS_SHADOW:
            share = float((ours - theirs).norm()/ours.norm())
            return [] if share <= MOVES else [f"{at}: differ by {share:.2g} of their length"]
        far = float((ours.double() - theirs.double()).nan_to_num().abs().max())
        if far <= allowed(at, float(ours.double().nan_to_num().abs().max())): return []
        return [f"{at}: differs by up to {far:.3g}"]
    if isinstance(ours, np.ndarray): return differences(torch.as_tensor(ours), torch.as_tensor(theirs), at)
    if not IS_SHADOW and isinstance(ours, float): return differences(torch.tensor(ours), torch.tensor(theirs), at)
    if not IS_SHADOW and isinstance(ours, str) and ours != theirs and ours[:1] in ("[", "{"):
        return differences(json.loads(ours), json.loads(theirs), at)
    same = ours == theirs or (ours != ours and theirs != theirs)
    return [] if same else [f"{at}: {ours} and {theirs}"]


def check_same(work: Callable[[str], object]):
    "Assert that `work` gives the same on both devices; what it gave on the CPU"
    cpu, there = on_both(work)
    found = differences(cpu, there)
    assert not found, f"{len(found)} differences: {'; '.join(found[:4])}"
    return cpu


def build(name, **arguments):
    "A model of the zoo, small where it has no size of its own"
    needed = {need: NEEDS[need] for need in MODELS[name].needs}
    return create_model(name, **{"size": SIZE, **needed, **arguments})


class Samples:
    "A loader of `n` batches"
    def __init__(self, n=1, rows=8, size=SIZE):
        self.n, self.rows, self.size = n, rows, size

    def __len__(self): return self.n
    def epoch(self, epoch, start=0):
        return (sample_batch(self.size, self.rows, seed=10*epoch + i) for i in range(start, self.n))


def trained(model, device, steps=1, loader=None, **settings):
    "Weights of a model after some steps, how its parameters moved, and the losses of the last step"
    rate = {} if IS_SHADOW else dict(lr=SMALL_RATE)
    before = {name: plain(p).clone() for name, p in model.named_parameters()}
    learn = Learner(model, loader or Samples(steps), device=device, **rate | settings).fit(steps=steps)
    assert all(p.device.type == torch.device(device).type for p in learn.net.parameters())
    after = {name: plain(p) for name, p in learn.net.named_parameters() if name in before}
    moves = torch.cat([(p - before[name]).double().flatten() for name, p in after.items()])
    return dict(weights=learn.net.state_dict(), moves=moves, losses=dict(learn.logs))


def embedded(model, device, length=10):
    "Features of a batch, whose captions have so many tokens"
    model, batch = model.eval().to(device), to_device(sample_batch(model.size, length=length), device)
    with torch.no_grad():
        found = dict(images=model.encode_image(batch["img"]))
        if hasattr(model, "encode_text"): found["texts"] = model.encode_text(batch["tokens"])
    return tree_map(plain, found)
