"Images of different people, and models that read the captions of `helpers.readers`"
import pytest
from helpers.readers import clip, model  # noqa: F401 - fixtures
from helpers.towers import SIZE

from reid_lab.models.zoo import sample_batch


@pytest.fixture(scope="module")
def img(): return sample_batch(SIZE, n=4)["img"][:3]
