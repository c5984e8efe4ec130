"One folder a layout"
import pytest
from helpers.layouts import small

from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.registry import DATASETS


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    "One folder per layout, written once"
    base = tmp_path_factory.mktemp("layouts")
    return {name: export_world(small(name), name, base / name / DATASETS[spec.dataset].folder)
            for name, spec in LAYOUTS.items()}
