"Fixtures of the tests of losses"
import pytest
import torch


@pytest.fixture(params=range(3))
def batch(request):
    "A random batch with repeated identities"
    g = torch.Generator().manual_seed(request.param)
    pid = torch.randint(0, 4, (7,), generator=g)
    return (torch.randn(7, 5, generator=g, dtype=torch.float64, requires_grad=True),
            torch.randn(7, 5, generator=g, dtype=torch.float64, requires_grad=True), pid)
