"""Features of shifted cameras, a small network, and a scene of both."""
import numpy as np
import pytest
import torch
from torch import nn

from reid_lab.core.basics import unit_norm
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import Embeddings, embed_images


@pytest.fixture(scope="session")
def features():
    "A function: Embeddings of queries and a gallery whose cameras shift the features"
    def make(seed=0, n=24, dim=6, cams=3, dtype=torch.float64):
        rng = np.random.default_rng(seed)
        people, cam = rng.normal(size=(n, dim)), np.arange(n) % cams
        shift = rng.normal(size=(cams, dim))
        z = torch.tensor(people + .5*rng.normal(size=people.shape) + shift[cam], dtype=dtype)
        twice, g_cam = np.repeat(people, 2, 0), np.arange(2*n) % cams
        g = torch.tensor(twice + .5*rng.normal(size=twice.shape) + shift[g_cam], dtype=dtype)
        return Embeddings(z, np.arange(n), cam), Embeddings(g, np.repeat(np.arange(n), 2), g_cam)
    return make


class Net(nn.Module):
    "BatchNorm on the way to the feature, a neck and an unused LayerNorm beside it"
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.bn = nn.Conv2d(3, 6, 3, 2, 1), nn.BatchNorm2d(6)
        self.fc, self.ln, self.neck, self.head = nn.Linear(6, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.size, self.dim = (16, 8), 8

    def raw_features(self, img): return self.ln(self.fc(self.bn(self.conv(img)).relu().mean((2, 3))))
    def forward_tta(self, img):
        features = self.raw_features(img)
        return features, self.head(self.neck(features))
    def encode_image(self, img): return unit_norm(self.raw_features(img))


@pytest.fixture(scope="session")
def net_class():
    "The small network of these tests, to make one's own or to inherit from"
    return Net


@pytest.fixture(scope="module")
def scene():
    "A network, a table of queries of a new camera, raw features of a gallery"
    table = tiny_table(16, 3)
    net = Net()
    net.train()                                     # running statistics of their own
    net.raw_features(torch.rand(32, 3, 16, 8))
    net.neck(torch.randn(32, 8))
    net.eval()
    queries = table.where(cam=2)
    return net, queries, embed_images(net, table.where(cam=[0, 1]), encode="raw_features", quiet=True)


@pytest.fixture(scope="module")
def sided():
    "A model with side information of cameras 0 and 2, and a table of three cameras"
    torch.manual_seed(0)
    return create_model("transreid_tiny", n_ids=4, size=(32, 32), cams=(0, 2)).eval(), tiny_table(8, 3)
