"One of every view, and models that read the captions of `helpers.readers`"
import pytest
import torch
from helpers.readers import TOK, Reader
from helpers.views import VIEWS

from reid_lab.models.zoo import create_model


@pytest.fixture(scope="module")
def model(): return Reader().eval()


@pytest.fixture(scope="module")
def clip():
    torch.manual_seed(0)
    return create_model("clip_tiny", tokenizer=TOK, size=(64, 32)).eval()


@pytest.fixture(params=VIEWS)
def make(request):
    "A function that makes one of the views of a scene"
    return VIEWS[request.param][1]
