"Images of different people, and models that read the captions of `helpers.readers`"
import pytest
import torch
from helpers.readers import TOK, Reader
from helpers.towers import SIZE

from reid_lab.models.zoo import create_model, sample_batch


@pytest.fixture(scope="module")
def model(): return Reader().eval()


@pytest.fixture(scope="module")
def clip():
    torch.manual_seed(0)
    return create_model("clip_tiny", tokenizer=TOK, size=(64, 32)).eval()


@pytest.fixture(scope="module")
def img(): return sample_batch(SIZE, n=4)["img"][:3]
