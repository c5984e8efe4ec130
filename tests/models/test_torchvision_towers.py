"Classifiers of torchvision as towers: torchvision's own features, with its own normalisation, from its own files."
import pytest
import torch
from helpers.towers import randomised
from torchvision import models

from reid_lab.models.frozen import frozen, named_tower
from reid_lab.models.torchvision_towers import TorchvisionTower, check_torchvision_name, torchvision_tower

NAMES = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "densenet121", "shufflenet_v2_x0_5",
         "regnet_y_400mf", "swin_t", "vit_b_32", "convnext_tiny")
SQUARE = ("vit_b_32",)


def entering_last(net, img):
    "What enters the last linear layer of a classifier, caught by a hook"
    seen = []
    last = [module for module in net.modules() if isinstance(module, torch.nn.Linear)][-1]
    hook = last.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    net(img)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_file_of_torchvision_gives_its_own_features(name, tmp_path):
    net = randomised(models.get_model(name, weights=None))
    torch.save(net.state_dict(), tmp_path/"w.pth")
    size = (224, 224) if name in SQUARE else (256, 128)
    model = frozen(f"torchvision:{name}", tmp_path/"w.pth", size)
    img = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    published = models.get_model_weights(name).DEFAULT.transforms()
    mean, std = (torch.tensor(x)[:, None, None] for x in (published.mean, published.std))
    want = entering_last(net, (img - mean)/std)
    assert torch.allclose(model.raw_features(img), want, atol=1e-4) and want.std() > 1e-3
    assert model.loaded.matched == model.loaded.total and len(model.loaded.head) == 2
    assert model.resample == published.interpolation.value


@pytest.mark.parametrize("name, channels", [
    ("resnet18", 512), ("mobilenet_v2", 1280), ("swin_t", 768), ("vit_b_32", 768)])
@torch.no_grad()
def test_maps_of_a_tower(name, channels):
    tower = TorchvisionTower(name)
    place, seen = tower.map_place(), []
    hook = place.layer.register_forward_hook(lambda module, given, out: seen.append(out))
    tower(torch.rand(1, 3, 224, 224))
    hook.remove()
    assert place.maps(seen[0], (224, 224)).shape == (1, channels, 7, 7)


@pytest.mark.parametrize("call, words", [
    (lambda: check_torchvision_name("resnet5"), "Did you mean 'resnet50'"),
    (lambda: TorchvisionTower("squeezenet1_0"), "no linear layer"),
    (lambda: TorchvisionTower("shufflenet_v2_x0_5").map_place(), "heat maps of it are not available"),
    (lambda: torchvision_tower("vit_b_32", "none", (256, 128)), "(224, 224) does"),
    (lambda: frozen("torchvision:resnet18", None), "weights=None"),
    (lambda: torchvision_tower("resnet18", models.get_model("resnet50").state_dict()),
     "expected weights of torchvision's")])
def test_what_is_refused(call, words):
    with pytest.raises((ValueError, TypeError), match=words.replace("(", r"\(").replace(")", r"\)")): call()


def test_the_library_names_a_control():
    assert named_tower("torchvision:resnet18") == ("frozen", dict(tower="torchvision:resnet18"))
