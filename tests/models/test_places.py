"Places of heat maps: grids of patches, and maps out of tokens"
import pytest
import torch
from torch import nn

from reid_lab.models.places import Place, patch_grid, patch_sides


@pytest.mark.parametrize("size, patch, stride, grid", [
    ((256, 128), 16, 16, (16, 8)), ((256, 128), 16, 12, (21, 10)), ((64, 32), 8, 8, (8, 4)),
    ((17, 16), 16, 16, (1, 1))])
def test_a_grid_holds_the_patches_that_fit(size, patch, stride, grid):
    assert patch_grid(size, patch, stride) == grid
    image = torch.zeros(1, 3, *size)
    embed = nn.Conv2d(3, 1, patch, stride)
    assert embed(image).shape[2:] == grid and patch_sides(embed) == (patch, stride)


def test_a_crop_smaller_than_a_patch_is_refused():
    with pytest.raises(ValueError, match=r"size=\(64, 8\) is smaller than one patch of 16"): patch_grid((64, 8))


def test_tokens_become_maps_without_those_before_the_patches():
    place = Place(nn.Identity(), 2, 3, (16, 16))
    tokens = torch.rand(4, 3 + 8, 2)
    maps = place.maps(tokens, (64, 32))
    assert maps.shape == (4, 2, 4, 2) and torch.equal(maps[:, :, 1, 0], tokens[:, 3 + 2])
