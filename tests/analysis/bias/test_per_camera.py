"Numbers of each camera against their formulas"
import numpy as np
import pytest
import torch
from helpers.bias import scene

from reid_lab.analysis.bias.per_camera import camera_share


def test_camera_share_is_that_of_its_formula_and_leaves_the_features_alone():
    for dtype, shift in ((torch.float32, 0.), (torch.float64, 1e5)):
        e = scene(1., n=30)[0]
        e = e.with_emb(e.emb.to(dtype) + shift)
        before, x = e.emb.clone(), e.emb.double().numpy()
        means = np.stack([x[e.cam == c].mean(0) for c in e.cam])
        assert camera_share(e) == pytest.approx(((means - x.mean(0))**2).sum()/((x - x.mean(0))**2).sum(), rel=1e-9)
        assert torch.equal(e.emb, before)
