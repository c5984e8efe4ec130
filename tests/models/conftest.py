"""Image models: the tiny ones, and those of paper size without memory for their weights."""
import pytest
import torch

from reid_lab.models.zoo import create_model, list_models


@pytest.fixture(scope="session")
def tiny():
    "A function: the tiny image model of a family, with four identities and crops of 64x32"
    def make(family, **kw):
        torch.manual_seed(0)
        name, = list_models(reads="images", size="tiny", family=family)
        return create_model(name, n_ids=4, size=(64, 32), **kw)
    return make


@pytest.fixture(scope="session")
def unbuilt():
    "A function: a model of the zoo without memory for its weights"
    def make(name, **kw):
        with torch.device("meta"): return create_model(name, **kw)
    return make


@pytest.fixture(scope="session")
def parameters_and_width(unbuilt):
    "A function: number of parameters and width of a model, after a look at what it gives for two images"
    def measure(name, n_ids, **kw):
        model = unbuilt(name, n_ids=n_ids, **kw)
        raw, scores = model.forward_tta(torch.rand(2, 3, *model.size, device="meta"))
        assert raw.shape == (2, model.dim) and scores.shape == (2, n_ids)
        return sum(p.numel() for p in model.parameters()), model.dim
    return measure
