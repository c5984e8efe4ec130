"""Models at paper size, one step on small images; `cfam_l14` needs more memory than a laptop has, and is left out."""
import pytest
import torch
from rehearsal.both import build, check_same, embedded, trained

from reid_lab.models.zoo import list_models

NAMES = sorted({*list_models(size="paper", trains=True)} - {"bot", "tuned", "cfam_l14"})


def plain_descent(model):
    "An optimiser without a state, which would have twice the size of the weights"
    return torch.optim.SGD(model.parameters(), lr=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_and_the_features_of_a_model_at_paper_size(name):
    def work(device):
        model = build(name)
        losses = trained(model, device, opt=plain_descent)["losses"]
        return losses, embedded(model, device)

    check_same(work)
