"Which attention goes through `scaled_dot_product_attention`, whose kernels keep no weights, and which does not"
from collections import Counter

import pytest
import torch
from helpers import irra, rde
from helpers.towers import randomised, tiny
from torch.overrides import TorchFunctionMode

from reid_lab.models.frozen import frozen_pair
from reid_lab.models.sgformer import HybridAttention, SGAttention, SGFormer
from reid_lab.models.solider import Solider, SoliderSizes
from reid_lab.models.zoo import MODELS, create_model, list_models, sample_batch

KERNEL, WEIGHTS = "kernel", "weights"
SIZE = (64, 32)
# Blocks whose attention weights are computed as a matrix, and why: nothing else may
OTHERS = dict(cfan_tiny=2,      # the four queries of CFAN read images and captions, and their weights are its maps
              rde=2)            # the last block of each side: its weights choose tokens
NO_ATTENTION = {"bot_tiny", "agw_tiny"}


class Calls(TorchFunctionMode):
    "Counts attention by how it is computed"
    def __init__(self):
        super().__init__()
        self.found = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "scaled_dot_product_attention": self.found[KERNEL] += 1
        elif name == "multi_head_attention_forward": self.found[WEIGHTS if kwargs["need_weights"] else KERNEL] += 1
        elif name == "softmax" and args[0].ndim > 2: self.found[WEIGHTS] += 1
        return func(*args, **kwargs)


def counted(work):
    "How often attention is computed in which way"
    with Calls() as calls: work()
    return calls.found


@pytest.mark.parametrize("name", list_models(size="tiny"))
def test_a_step_of_a_model(name):
    model = tiny(name).train()      # in evaluation torch has a path of its own for whole layers
    found = counted(lambda: model(sample_batch(SIZE)))
    assert found[WEIGHTS] == OTHERS.get(name, 0)
    assert (found[KERNEL] > 0) == (name not in NO_ATTENTION)


@pytest.mark.parametrize("name", ["transreid_b16", "clip_b16"])
def test_a_model_at_paper_size(name):
    model = create_model(name, size=SIZE, weights="none", **(dict(n_ids=4) if "n_ids" in MODELS[name].needs else {}))
    found = counted(lambda: model.train().encode_image(sample_batch(SIZE, n=2)["img"]))
    assert found[KERNEL] >= 12 and not found[WEIGHTS]


def test_towers_with_windows():
    solider = Solider(SoliderSizes(8, (1, 2, 2, 2), (1, 2, 2, 4)))
    assert counted(lambda: solider(torch.rand(1, 3, *SIZE))) == {KERNEL: 7}
    sgformer = SGFormer(size=SIZE).train()
    found = counted(lambda: sgformer(torch.rand(2, 3, *SIZE)))
    # what a token gets from two kinds of attention is its significance, by which the next block merges tokens
    hybrid = sum(isinstance(module, HybridAttention) for module in sgformer.modules())
    others = sum(isinstance(module, SGAttention) for module in sgformer.modules()) - hybrid
    assert found == {WEIGHTS: 2*hybrid, KERNEL: others}


def test_rde_computes_the_weights_that_it_needs_and_no_others(tmp_path):
    torch.manual_seed(3)
    torch.save(irra.container(randomised(rde.Released())), tmp_path/"w.pth")
    pair = frozen_pair("rde", tmp_path/"w.pth", size=rde.BIG).train()
    batch = sample_batch(rde.BIG, n=1, length=77)
    found = counted(lambda: (pair.encode_image(batch["img"]), pair.encode_text(batch["tokens"])))
    assert found[WEIGHTS] == OTHERS["rde"] and found[KERNEL] > 0


def test_attention_that_is_computed_as_a_matrix_is_found():
    "A control of the count"
    layer, x = torch.nn.MultiheadAttention(8, 2), torch.rand(3, 1, 8)
    assert counted(lambda: layer(x, x, x)) == {WEIGHTS: 1}
    assert counted(lambda: torch.rand(1, 2, 3, 3).softmax(-1)) == {WEIGHTS: 1}
    assert counted(lambda: layer(x, x, x, need_weights=False)) == {KERNEL: 1}
