"""With `REID_LAB_REHEARSAL=1` this process, and those it starts, have the shadow device."""
import os
from pathlib import Path

import pytest

if os.environ.get("REID_LAB_REHEARSAL"):
    site = str(Path(__file__).parent/"site")
    os.environ["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    from rehearsal import shadow
    if not shadow.missing(): shadow.install()


@pytest.fixture(scope="session", autouse=True)
def plain_attention():
    "Attention in plain operations: a GPU, the shadow and the CPU each have a fused one of their own"
    from torch.nn.attention import SDPBackend, sdpa_kernel
    with sdpa_kernel(SDPBackend.MATH): yield
