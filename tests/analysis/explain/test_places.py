"Where each tower is looked into, and the number that is explained"
import numpy as np
import pytest
import torch
from helpers.towers import SAID, SIZE, TEXT, tiny
from torch import nn

from reid_lab.analysis.explain import faithfulness
from reid_lab.analysis.explain.image_maps import grad_cam, rollout
from reid_lab.analysis.explain.places import Place, place_of, score_of
from reid_lab.models.places import timm_place
from reid_lab.models.zoo import create_model, list_models


def frozen_tower(tower):
    torch.manual_seed(0)
    return create_model("frozen", tower=tower, weights="none", size=SIZE)


@pytest.mark.parametrize("name", list_models(size="tiny", reads="images"))
def test_identity_is_a_target(name, img):
    model = tiny(name).eval()
    with torch.no_grad(): want = model.logits(img)[torch.arange(3), torch.tensor([0, 2, 1])]
    score = score_of(model, label=[0, 2, 1])
    assert torch.allclose(score(img), want, atol=1e-5)
    assert grad_cam(score, img).shape == (3, *SIZE)


def test_scores_of_a_model_in_training_are_those_of_evaluation(img):
    model = tiny("bot_tiny").train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    score = score_of(model, image=img)
    maps = np.random.default_rng(0).random((3, 4, 2))
    a = faithfulness.perturbation_curve(score, img, maps, perturbation=faithfulness.Perturbation(steps=2))
    assert model.training and all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert np.allclose(a[:, 0], 1, atol=1e-5)


@pytest.mark.parametrize("name", TEXT)
def test_text_is_a_target(name, img):
    model = tiny(name).eval()
    with torch.no_grad():
        t = model.encode_text(model.tokenizer(SAID))
        want = (model.encode_image(img)*t).sum(1)
        less = want - (model.encode_image(img)*model.encode_text(model.tokenizer(["a", "b", "c"]))).sum(1)
    assert torch.allclose(score_of(model, text=SAID)(img), want, atol=1e-5)
    assert torch.allclose(score_of(model, text=SAID, against=["a", "b", "c"])(img), less, atol=1e-5)
    assert torch.allclose(score_of(model, to=t)(img.repeat(2, 1, 1, 1)), want.repeat(2), atol=1e-5)
    assert grad_cam(score_of(model, text=SAID[0]), img).shape == (3, *SIZE)


@pytest.mark.parametrize("tower", ["test_vit", "test_vit2", "test_resnet", "test_convnext", "test_efficientnet",
                                   "swin_s3_tiny_224", "vit_base_patch16_siglip_224", "vit_wee_patch16_reg1_gap_256"])
def test_timm_towers(tower):
    "CLS, pooled patches, register tokens, channels last, on a rectangle"
    with torch.device("meta"):
        import timm
        small = timm.create_model(tower, num_classes=0, **dict(img_size=(64, 32)) if "vit" in tower else {})
        place = timm_place(small)
        if place.prefix is not None: assert place.grid((64, 32)) == (64//place.patch[0], 32//place.patch[0])
    if not tower.startswith("test_"): return
    model, x = frozen_tower(tower), torch.rand(2, 3, *SIZE)
    heat = grad_cam(score_of(model, image=x.flip(0)), x)
    assert heat.shape == (2, *SIZE) and np.isfinite(heat).all() and heat.max() > 0
    if place.blocks: assert rollout(model, x).shape == (2, *SIZE)


def test_channels_last_maps():
    x = torch.rand(2, 4, 3, 7)
    place = Place(nn.Identity(), 7)
    assert torch.equal(place.maps(x, SIZE), x.permute(0, 3, 1, 2))
    assert torch.equal(place.maps(x.permute(0, 3, 1, 2), SIZE), x.permute(0, 3, 1, 2))
    tokens = torch.arange(1 + 8.).view(1, 9, 1)
    assert Place(nn.Identity(), 1, 1, (16, 16)).maps(tokens, SIZE)[0, 0].tolist() == [[1, 2], [3, 4], [5, 6], [7, 8]]
    with pytest.raises(ValueError, match="no map"): place.maps(torch.rand(2, 3, 7), SIZE)


def test_unknown_towers_are_named_with_the_remedy():
    with pytest.raises(TypeError, match="map_place"): place_of(nn.Linear(2, 2))
    with pytest.raises(TypeError, match="nothing to roll out"): rollout(tiny("bot_tiny"), torch.rand(1, 3, *SIZE))


def test_every_tower_of_the_library_names_its_place():
    unnamed = []
    for name in list_models(size="tiny"):
        model = tiny(name)
        tower = next((getattr(model, part) for part in ("tower", "image", "visual") if hasattr(model, part)), model)
        if not hasattr(tower, "map_place"): unnamed.append(type(tower).__module__)
    assert set(unnamed) == {"open_clip.transformer"}


def test_a_tower_of_ones_own_names_its_place():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Conv2d(3, 5, 4, 4)

        def map_place(self): return Place(self.last, 5)

    own = Own()
    assert place_of(own).layer is own.last and place_of(own).width == 5
