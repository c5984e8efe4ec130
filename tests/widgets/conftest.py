"One of every view, and models that read the captions of `helpers.readers`"
import pytest
from helpers.readers import clip, model  # noqa: F401 - fixtures
from helpers.views import VIEWS


@pytest.fixture(params=VIEWS)
def make(request):
    "A function that makes one of the views of a scene"
    return VIEWS[request.param][1]
