"""With `REID_LAB_REHEARSAL=1` this process, and those it starts, have the shadow device."""
import os
from pathlib import Path

import pytest
from rehearsal import shadow

if os.environ.get("REID_LAB_REHEARSAL") and not shadow.missing():
    site = str(Path(__file__).parent/"site")
    os.environ["PYTHONPATH"] = os.pathsep.join([site, *filter(None, [os.environ.get("PYTHONPATH")])])
    shadow.install()


def pytest_collection_modifyitems(items):
    "Without a torch that can have the device, its tests are skipped, and say why; a GPU needs none"
    if not shadow.missing() or os.environ.get("REID_LAB_TEST_DEVICE"): return
    for item in items:
        if item.path.name.startswith("rehearse_"): item.add_marker(pytest.mark.skip(reason=shadow.missing()))
