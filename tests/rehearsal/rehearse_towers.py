"""The families of large towers on the stand-in device: a step with rates by layer, and the features after it."""
import pytest
import torch
from helpers.large_towers import FAMILIES, SIZES, tower_name
from rehearsal.both import Samples, build, check_same, embedded, on_both, trained

from reid_lab.training.learner import param_groups
from reid_lab.training.speedups import tuned

ROUNDED = ('eva02',)     # sums of its gradients are added in another order: weights differ by 4e-9 after a step


@pytest.fixture(scope="module")
def places(tmp_path_factory): return tmp_path_factory.mktemp("towers")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_step_of_a_family(name, places):
    "Blocks are computed again, too"
    def opt(model): return torch.optim.SGD(param_groups(model, .01, layer_decay=.75), momentum=.9)

    def work(device):
        model = build("bot", tower=tower_name(name, places), size=SIZES[0], weights="none")
        loader = Samples(rows=4, size=SIZES[0])
        with tuned(model, checkpointing=True): done = trained(model, device, loader=loader, opt=opt)
        return done, embedded(model, device)

    if name in ROUNDED:
        (_, ours), (_, theirs) = on_both(work)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    else: check_same(work)
