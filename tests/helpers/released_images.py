"""Released image networks, stated again from their descriptions, at a size for tests."""
import math

import torch
import torch.nn.functional as F
from torch import nn

SIZE, W, DEPTH, HEADS = (64, 32), 32, 3, 2


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv2, self.bn2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.conv3, self.bn3 = nn.Conv2d(mid, 4*mid, 1, bias=False), nn.BatchNorm2d(4*mid)
        self.downsample = None
        if cin != 4*mid:
            self.downsample = nn.Sequential(nn.Conv2d(cin, 4*mid, 1, stride, bias=False), nn.BatchNorm2d(4*mid))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    "ResNet-50 with `last` stride in the last stage; the released BoT has no ReLU in its stem"
    def __init__(self, last, relu, classes=0):
        super().__init__()
        self.conv1, self.bn1, self.relu = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), relu
        cin = 64
        for i, (n, mid, stride) in enumerate(((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, last)), 1):
            blocks = []
            for j in range(n):
                blocks.append(Bottleneck(cin, mid, stride if j == 0 else 1))
                cin = 4*mid
            setattr(self, f"layer{i}", nn.Sequential(*blocks))
        if classes: self.fc = nn.Linear(2048, classes)

    def stem(self, x):
        x = self.bn1(self.conv1(x))
        return F.max_pool2d(F.relu(x) if self.relu else x, 3, 2, 1)

    def maps(self, x): return self.layer4(self.layer3(self.layer2(self.layer1(self.stem(x)))))

    def forward(self, x): return self.maps(x).mean((2, 3))


def as_imagenet(img):
    mean, std = torch.tensor([.485, .456, .406]).view(3, 1, 1), torch.tensor([.229, .224, .225]).view(3, 1, 1)
    return (img - mean)/std


class GeM(nn.Module):
    "The mean of cubes at first, under the root"
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.ones(1)*3)

    def forward(self, x): return (x.clamp(min=1e-6)**self.p).mean((2, 3))**(1/self.p)


class ReleasedBoT(nn.Module):
    def __init__(self, n_ids):
        super().__init__()
        self.base, self.bottleneck = ResNet(1, relu=False), nn.BatchNorm1d(2048)
        self.classifier = nn.Linear(2048, n_ids, bias=False)

    def forward(self, img): return self.bottleneck(self.base(as_imagenet(img)))


class EveryPosition(nn.Module):
    "A non-local block with one channel inside, as ReID-Survey has it"
    def __init__(self, width):
        super().__init__()
        self.g, self.theta, self.phi = (nn.Conv2d(width, 1, 1) for _ in range(3))
        self.W = nn.Sequential(nn.Conv2d(1, width, 1), nn.BatchNorm2d(width))

    def forward(self, x):
        a, b, values = (f(x).flatten(1) for f in (self.theta, self.phi, self.g))
        mean = (a[:, :, None]*b[:, None, :]*values[:, None, :]).mean(2)
        return x + self.W(mean.view(len(x), 1, *x.shape[2:]))


class ResNetNL(ResNet):
    "Two blocks at the end of the second stage, three at that of the third"
    def __init__(self):
        super().__init__(1, relu=False)
        self.NL_2 = nn.ModuleList([EveryPosition(512) for _ in range(2)])
        self.NL_3 = nn.ModuleList([EveryPosition(1024) for _ in range(3)])

    def maps(self, x):
        x = self.layer1(self.stem(x))
        for stage, extra in ((self.layer2, self.NL_2), (self.layer3, self.NL_3)):
            for i, block in enumerate(stage):
                x = block(x)
                if len(stage) - i <= len(extra): x = extra[len(extra) - len(stage) + i](x)
        return self.layer4(x)


class ReleasedAGW(nn.Module):
    def __init__(self, n_ids):
        super().__init__()
        self.base, self.global_pool, self.bottleneck = ResNetNL(), GeM(), nn.BatchNorm1d(2048)
        self.classifier = nn.Linear(2048, n_ids, bias=False)

    def forward(self, img): return self.bottleneck(self.global_pool(self.base.maps(as_imagenet(img))))


class ReleasedOpenUnReID(nn.Module):
    "The source networks of reid-tta, pooled by a power mean; `gem=False`: by the mean"
    def __init__(self, n_ids, gem=True):
        super().__init__()
        self.backbone, self.global_pooling = ResNet(1, relu=True), GeM() if gem else nn.AdaptiveAvgPool2d(1)
        self.head = nn.ModuleDict(dict(feat_bn=nn.BatchNorm1d(2048)))
        self.classifier = nn.Linear(2048, n_ids, bias=False)

    def forward(self, img):
        return self.head["feat_bn"](self.global_pooling(self.backbone.maps(as_imagenet(img))).flatten(1))


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3*width), nn.Linear(width, width)

    def forward(self, x):
        B, N, D = x.shape
        q, k, v = self.qkv(x).view(B, N, 3, self.heads, D//self.heads).permute(2, 0, 3, 1, 4)
        w = (q @ k.transpose(-1, -2)/math.sqrt(D//self.heads)).softmax(-1)
        return self.proj((w @ v).transpose(1, 2).reshape(B, N, D))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, 4*width), nn.Linear(4*width, width)

    def forward(self, x): return self.fc2(F.gelu(self.fc1(x)))


class ViTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width, 1e-6), SelfAttention(width, heads)
        self.norm2, self.mlp = nn.LayerNorm(width, 1e-6), Mlp(width)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self, width, stride):
        super().__init__()
        self.proj = nn.Conv2d(3, width, 16, stride)

    def forward(self, img): return self.proj(img).flatten(2).transpose(1, 2)


class ReleasedViT(nn.Module):
    def __init__(self, n_patches, stride, cams=0, classes=10):
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, W))
        self.pos_embed = nn.Parameter(torch.zeros(1, n_patches + 1, W))
        self.patch_embed, self.norm = Patches(W, stride), nn.LayerNorm(W, 1e-6)
        self.blocks, self.fc = nn.ModuleList([ViTBlock(W, HEADS) for _ in range(DEPTH)]), nn.Linear(W, classes)
        if cams: self.sie_embed = nn.Parameter(torch.zeros(cams, 1, W))

    def forward(self, img, cam, last):
        x = self.patch_embed((img - .5)/.5)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        if hasattr(self, "sie_embed"): x = x + 3.*self.sie_embed[cam]
        for block in self.blocks[:None if last else -1]: x = block(x)
        return self.norm(x) if last else x


class ReleasedTransReID(nn.Module):
    "With the jigsaw branch: parts of the shuffled patches one after the other, as the released program runs them"
    def __init__(self, n_ids, n_patches, stride, cams=0):
        super().__init__()
        self.base = ReleasedViT(n_patches, stride, cams)
        self.b1 = nn.Sequential(ViTBlock(W, HEADS), nn.LayerNorm(W, 1e-6))
        self.b2 = nn.Sequential(ViTBlock(W, HEADS), nn.LayerNorm(W, 1e-6))
        for i in ("", "_1", "_2", "_3", "_4"):
            setattr(self, f"bottleneck{i}", nn.BatchNorm1d(W))
            setattr(self, f"classifier{i}", nn.Linear(W, n_ids, bias=False))

    def forward(self, img, cam=None):
        x = self.base(img, cam, last=False)
        cls, n = x[:, :1], x.shape[1] - 1
        y = torch.cat([x[:, 5:], x[:, 1:5]], 1)
        if n % 2: y = torch.cat([y, y[:, -2:-1]], 1)
        y = y.view(len(y), 2, -1, W).transpose(1, 2).reshape(len(y), -1, W)
        local = [self.b2(torch.cat([cls, y[:, i*(n//4):(i + 1)*(n//4)]], 1))[:, 0]/4 for i in range(4)]
        return torch.cat([self.b1(x)[:, 0], *local], 1)


class ReleasedPlain(nn.Module):
    def __init__(self, n_ids, n_patches, stride, cams=0):
        super().__init__()
        self.base, self.bottleneck = ReleasedViT(n_patches, stride, cams), nn.BatchNorm1d(W)
        self.classifier = nn.Linear(W, n_ids, bias=False)

    def forward(self, img, cam=None): return self.base(img, cam, last=True)[:, 0]


class Quick(nn.Module):
    def forward(self, x): return x*torch.sigmoid(1.702*x)


class ClipBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attn, self.ln_1, self.ln_2 = nn.MultiheadAttention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(width, 4*width), c_proj=nn.Linear(4*width, width)))

    def forward(self, x, mask=None): # (L,B,D)
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False, attn_mask=mask)[0]
        return x + self.mlp["c_proj"](Quick()(self.mlp["c_fc"](self.ln_2(x))))


class Blocks(nn.Module):
    def __init__(self, width, heads, n):
        super().__init__()
        self.resblocks = nn.Sequential(*[ClipBlock(width, heads) for _ in range(n)])


class ClipVision(nn.Module):
    def __init__(self, n_patches, stride, dim):
        super().__init__()
        self.class_embedding = nn.Parameter(torch.zeros(W))
        self.positional_embedding = nn.Parameter(torch.zeros(n_patches + 1, W))
        self.conv1 = nn.Conv2d(3, W, 16, stride, bias=False)
        self.ln_pre, self.ln_post = nn.LayerNorm(W), nn.LayerNorm(W)
        self.transformer, self.proj = Blocks(W, HEADS, DEPTH), nn.Parameter(torch.zeros(W, dim))

    def forward(self, x, cv=None):
        x = self.conv1(x).flatten(2).transpose(1, 2)
        cls = self.class_embedding.expand(len(x), 1, -1)
        if cv is not None: cls = cls + cv[:, None]
        x = self.ln_pre(torch.cat([cls, x], 1) + self.positional_embedding).transpose(0, 1)
        x = self.ln_post(self.transformer.resblocks(x)[0])
        return x, x @ self.proj


class Texts(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.transformer, self.ln_final = Blocks(dim, HEADS, 2), nn.LayerNorm(dim)
        self.positional_embedding = nn.Parameter(torch.zeros(77, dim))
        self.text_projection = nn.Parameter(torch.zeros(dim, dim))


class Learner(nn.Module):
    def __init__(self, n_ids, dim):
        super().__init__()
        self.cls_ctx = nn.Parameter(torch.zeros(n_ids, 4, dim))
        self.register_buffer("token_prefix", torch.zeros(1, 5, dim))
        self.register_buffer("token_suffix", torch.zeros(1, 68, dim))


class ReleasedCLIPReID(nn.Module):
    def __init__(self, n_ids, n_patches, stride, cams=0, dim=16):
        super().__init__()
        self.image_encoder, self.text_encoder = ClipVision(n_patches, stride, dim), Texts(dim)
        self.prompt_learner = Learner(n_ids, dim)
        self.classifier, self.classifier_proj = nn.Linear(W, n_ids, bias=False), nn.Linear(dim, n_ids, bias=False)
        self.bottleneck, self.bottleneck_proj = nn.BatchNorm1d(W), nn.BatchNorm1d(dim)
        if cams: self.cv_embed = nn.Parameter(torch.zeros(cams, W))

    def forward(self, img, cam=None):
        cv = 1.*self.cv_embed[cam] if hasattr(self, "cv_embed") else None
        return torch.cat(self.image_encoder((img - .5)/.5, cv), 1)

    def text(self, label): # with the words of the prompts, 77 positions, features at the end token
        p, t = self.prompt_learner, self.text_encoder
        prefix, suffix = (v.expand(len(label), -1, -1) for v in (p.token_prefix, p.token_suffix))
        x = torch.cat([prefix, p.cls_ctx[label], suffix], 1)
        x = (x + t.positional_embedding).transpose(0, 1)
        for block in t.transformer.resblocks: x = block(x, torch.full((77, 77), -torch.inf).triu(1))
        return t.ln_final(x[5 + 4 + 2]) @ t.text_projection
