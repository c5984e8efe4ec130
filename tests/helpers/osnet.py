"OSNet and OSNet-AIN as functions of their tensors, under the released names"
import torch.nn.functional as F


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
