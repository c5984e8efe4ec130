"OSNet and OSNet-AIN against a plain functional forward that reads the released names, and against another package."
import importlib.util

import pytest
import torch
from helpers.osnet import Plain
from helpers.towers import osnet_file, randomised

from reid_lab.models.frozen import frozen
from reid_lab.models.osnet import FORMS, OSNet, osnet_form

IMG = torch.rand(2, 3, 64, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", FORMS)
@torch.no_grad()
def test_a_released_file_gives_the_features_of_its_formula(name, tmp_path):
    net = randomised(OSNet(name))
    state = osnet_file(net, name)
    torch.save(dict(state_dict={f"module.{k}": v for k, v in state.items()}, epoch=3, rank1=.9), tmp_path/"w.pth.tar")
    model = frozen(name, tmp_path/"w.pth.tar", size=(64, 32))
    mean, std = (torch.tensor(x)[:, None, None] for x in ((.485, .456, .406), (.229, .224, .225)))
    want = Plain(state, "ain" in name)((IMG - mean)/std)
    assert torch.allclose(model.raw_features(IMG), want, atol=1e-4) and want.std() > 1e-2
    assert model.loaded.matched == model.loaded.total and model.resample == "bilinear"
    assert frozen(name, tmp_path/"w.pth.tar").size == (256, 128)


@pytest.mark.parametrize("name, n", [("osnet_x1_0", 2_169_508), ("osnet_x0_25", 201_864)])
def test_sizes(name, n):
    "2.2 and 0.2 million in table 2 of the paper (ICCV 2019), without a classifier"
    with torch.device("meta"): net = OSNet(name)
    assert sum(p.numel() for p in net.parameters()) == n and osnet_form(net.state_dict()) == name


@pytest.mark.parametrize("of, asked", [("osnet_x0_5", "osnet_x1_0"), ("osnet_ain_x1_0", "osnet_x1_0"),
                                       ("osnet_ibn_x1_0", "osnet_ain_x1_0")])
def test_a_file_of_another_form_is_refused_with_the_name_of_its_own(of, asked):
    state = osnet_file(OSNet(of), of)
    with pytest.raises(ValueError, match=f"take tower={of!r}"): frozen(asked, state)
    assert frozen(of, state).dim == 512


@pytest.mark.skipif(importlib.util.find_spec("reid") is None, reason="the package reid (0.1.0rc1) is not installed")
@pytest.mark.parametrize("variant", ["x1_0", "x0_75", "x0_5", "x0_25"])
@torch.no_grad()
def test_the_network_of_another_package_gives_the_same(variant):
    from reid.architectures.osnet import build_osnet
    theirs = randomised(build_osnet(variant))
    ours = frozen(f"osnet_{variant}", theirs.state_dict(), size=(64, 32))
    assert torch.allclose(ours.tower(IMG), theirs(IMG), atol=1e-5)
