"Networks of timm and torchvision by the names and shapes of their tensors."
import csv
import random
from pathlib import Path

import pytest
import timm
import torch
from torchvision import models

import reid_lab
from reid_lab.models.weights.towers import Tower, find_towers, tensor_sum

FILE = Path(reid_lab.__file__).parent/"resources"/"towers.csv"


def unbuilt(library, name, **kw):
    "A network without numbers"
    try:
        with torch.device("meta"):
            return timm.create_model(name, **kw) if library == "timm" else models.get_model(name, weights=None, **kw)
    except NotImplementedError: return models.get_model(name, weights=None, **kw)     # it computes while it is built


@pytest.mark.parametrize("library, name", [
    ("timm", "resnet50"), ("timm", "convnext_atto"), ("timm", "vit_small_patch14_dinov2"),
    ("timm", "mobilenetv3_small_050"), ("timm", "beitv2_base_patch16_224"), ("timm", "caformer_s18"),
    ("torchvision", "mobilenet_v2"),
    ("torchvision", "vit_b_32"), ("torchvision", "convnext_tiny"), ("torchvision", "regnet_y_400mf")])
def test_a_file_is_known_by_its_tensors(library, name):
    "With its classifier, with another one and without, wrapped or not; of timm also for another size"
    model = f"{dict(timm='frozen').get(library, library)}:{name}"
    state = unbuilt(library, name).state_dict()
    assert model in [tower.model for tower in find_towers(state)]
    assert model in [tower.model for tower in find_towers(unbuilt(library, name, num_classes=7).state_dict())]
    wrapped = {f"module.backbone.{k}": v for k, v in state.items()}
    assert Tower(model, "module.backbone.") in find_towers(wrapped)
    without = {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}
    assert model in [tower.model for tower in find_towers(without)]


def test_positions_of_another_size_are_no_other_network():
    small, tall = (unbuilt("timm", "vit_tiny_patch16_224", img_size=size).state_dict() for size in (224, (256, 128)))
    assert find_towers(small) == find_towers(tall) and find_towers(small)


@pytest.mark.parametrize("spoil", [
    lambda s: {k: v for k, v in s.items() if k != "stem.0.weight"}, lambda s: s | {"more.weight": torch.zeros(1)},
    lambda s: s | {"stem.0.weight": torch.zeros(41, 3, 4, 4)}, lambda s: {}])
def test_a_network_with_another_tensor_is_not_known(spoil):
    assert find_towers(spoil(unbuilt("timm", "convnext_atto").state_dict())) == []


def test_the_list_is_that_of_the_installed_libraries():
    "Every name is there; a sample is computed again (all of it: tools/tower_names.py --check)"
    with FILE.open(newline="", encoding="utf-8") as f: rows = list(csv.DictReader(f))
    known = {(row["library"], row["name"]): (int(row["tensors"]), int(row["crc"])) for row in rows}
    assert len(known) == len(rows) > 1000
    small = [key for key in known if "giant" not in key[1] and "huge" not in key[1] and "7b" not in key[1]]
    for library, name in random.Random(0).sample(sorted(small), 12):
        assert tensor_sum(unbuilt(library, name).state_dict()) == known[library, name], (library, name)
