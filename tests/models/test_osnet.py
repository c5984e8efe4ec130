"OSNet and OSNet-AIN against a plain functional forward that reads the released names, and against another package."
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from helpers.towers import osnet_file, randomised

from reid_lab.models.frozen import frozen
from reid_lab.models.osnet import FORMS, OSNet, osnet_form

IMG = torch.rand(2, 3, 64, 32, generator=torch.Generator().manual_seed(0))


class Plain:
    "The network as functions of its tensors, under the released names"
    def __init__(self, state, ain): self.s, self.ain = state, ain

    def norm(self, x, at):
        "BatchNorm where there are running statistics, else InstanceNorm, else nothing"
        s = self.s
        if f"{at}.running_mean" in s:
            return F.batch_norm(x, s[f"{at}.running_mean"], s[f"{at}.running_var"], s[f"{at}.weight"], s[f"{at}.bias"])
        if f"{at}.weight" not in s: return x
        return F.instance_norm(x, weight=s[f"{at}.weight"], bias=s[f"{at}.bias"])

    def conv(self, x, at, relu=True, **kw):
        x = self.norm(F.conv2d(x, self.s[f"{at}.conv.weight"], **kw), f"{at}.bn")
        return x.relu() if relu else x

    def light(self, x, at):
        x = F.conv2d(x, self.s[f"{at}.conv1.weight"])
        x = F.conv2d(x, self.s[f"{at}.conv2.weight"], padding=1, groups=x.shape[1])
        return self.norm(x, f"{at}.bn").relu()

    def gate(self, x, at):
        s = self.s
        mean = F.adaptive_avg_pool2d(x, 1)
        hidden = F.conv2d(mean, s[f"{at}.fc1.weight"], s[f"{at}.fc1.bias"]).relu()
        return x*F.conv2d(hidden, s[f"{at}.fc2.weight"], s[f"{at}.fc2.bias"]).sigmoid()

    def stream(self, at, i, layer):
        if self.ain: return f"{at}.conv2.{i}.layers.{layer}"
        return f"{at}.conv2a" if i == 0 else f"{at}.conv2{'abcd'[i]}.{layer}"

    def block(self, x, at):
        narrow, total = self.conv(x, f"{at}.conv1"), 0
        for i in range(4):
            y = narrow
            for layer in range(i + 1): y = self.light(y, self.stream(at, i, layer))
            total = total + self.gate(y, f"{at}.gate")
        y = self.conv(total, f"{at}.conv3", relu=False)
        shortcut = self.conv(x, f"{at}.downsample", relu=False) if f"{at}.downsample.conv.weight" in self.s else x
        if self.ain: return (self.norm(y, f"{at}.IN") + shortcut).relu()
        return self.norm(y + shortcut, f"{at}.IN").relu()

    def __call__(self, img):
        x = F.max_pool2d(self.conv(img, "conv1", stride=2, padding=3), 3, 2, 1)
        for stage in (2, 3, 4):
            for i in range(2): x = self.block(x, f"conv{stage}.{i}")
            at = f"pool{stage}.0" if self.ain else f"conv{stage}.2.0"
            if stage < 4: x = F.avg_pool2d(self.conv(x, at), 2)
        x = self.conv(x, "conv5").mean((2, 3))
        x = F.linear(x, self.s["fc.0.weight"], self.s["fc.0.bias"])
        return self.norm(x, "fc.1").relu()


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
