"""Networks that open released files, with random numbers in them: features on both devices."""
import pytest
import torch
from helpers import irra, rde, solider
from helpers.fastreid import released as fastreid_file
from helpers.onnx_files import write_tower
from helpers.towers import osnet_file, randomised
from rehearsal.both import SIZE, check_same, embedded, trained

from reid_lab.models.frozen import frozen, frozen_pair
from reid_lab.models.osnet import OSNet
from reid_lab.models.solider import SOLIDERS, SoliderSizes
from reid_lab.models.zoo import create_model

SMALL = 8, (1, 2, 2, 2), (1, 2, 2, 4)       # width, depths and heads of a small SOLIDER


def write(state, path):
    "A file of weights"
    torch.save(state, path)
    return path


def osnet(name, folder):
    "A released OSNet"
    return frozen(name, write(osnet_file(randomised(OSNet(name)), name), folder/"w.pth"), size=SIZE)


def fastreid(name, folder):
    "A released network of FastReID"
    _, family, backbone = name.split("_")
    return frozen(name, write(fastreid_file(family, backbone), folder/"w.pth"), size=SIZE)


def torchvision(name, folder):
    "A classifier of torchvision"
    from torchvision.models import get_model
    return frozen(f"torchvision:{name}", write(randomised(get_model(name, weights=None)).state_dict(), folder/"w.pth"),
                  SIZE)


def released_solider(folder, **arguments):
    "A released SOLIDER"
    return frozen("solider_tiny", write(solider.released(*SMALL), folder/"w.pth"), size=SIZE, **arguments)


OPENED = {
    "solider": released_solider,
    "solider, semantic": lambda folder: released_solider(folder, semantic=.9),
    "osnet": lambda folder: osnet("osnet_x0_25", folder),
    "osnet with instance norm": lambda folder: osnet("osnet_ain_x1_0", folder),
    "fastreid": lambda folder: fastreid("fastreid_bot_r50", folder),
    "fastreid, split": lambda folder: fastreid("fastreid_sbs_s50", folder),
    "torchvision": lambda folder: torchvision("resnet18", folder),
}


@pytest.fixture(autouse=True)
def small(monkeypatch): monkeypatch.setitem(SOLIDERS, "solider_tiny", SoliderSizes(*SMALL))


@pytest.mark.parametrize("name", OPENED)
def test_features_of_a_released_network(name, tmp_path):
    check_same(lambda device: embedded(OPENED[name](tmp_path), device))


def test_solider_is_trained(tmp_path):
    path = write(solider.released(*SMALL), tmp_path/"w.pth")
    check_same(lambda device: trained(create_model("tuned", n_ids=4, tower="solider_tiny", weights=path, size=SIZE),
                                      device))


def test_both_embeddings_of_rde(tmp_path):
    torch.manual_seed(3)
    path = write(irra.container(randomised(rde.Released())), tmp_path/"w.pth")
    check_same(lambda device: embedded(frozen_pair("rde", path, size=rde.BIG), device, length=77))


def test_a_network_of_onnx(tmp_path):
    path = write_tower(tmp_path/"t.onnx")
    check_same(lambda device: embedded(frozen(f"onnx:{path}", pixels="none"), device))
