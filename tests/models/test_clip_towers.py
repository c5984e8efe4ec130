"""The towers of CLIP: checkpoints on other grids, and sets that cannot be fetched."""
import open_clip
import pytest
import torch

from reid_lab.models.clip_towers import clip_model, load_clip
from reid_lab.models.transreid import resize_positions

TINY_CLIP = dict(dim=48, vision=dict(width=64, layers=2, head_width=32, patch_size=16),
                 text=dict(width=48, layers=2, heads=2))


def test_clip_checkpoints_of_other_grids(tmp_path):
    torch.manual_seed(0)
    wide, model = clip_model((48, 32), **TINY_CLIP), clip_model((64, 32), **TINY_CLIP)   # 3 x 2 and 4 x 2
    torch.save({"state_dict": {f"module.{k}": v for k, v in wide.state_dict().items()}}, tmp_path/"wide.pt")
    with pytest.raises(ValueError, match="7 positions are not a square"): load_clip(model, tmp_path/"wide.pt")
    load_clip(model, tmp_path/"wide.pt", grid=(3, 2))
    pos = resize_positions(wide.visual.positional_embedding, (4, 2), (3, 2))
    assert torch.equal(model.visual.positional_embedding, pos)
    assert torch.equal(model.ln_final.weight, wide.ln_final.weight)
    same = clip_model((64, 32), stride=12, **TINY_CLIP)
    assert same.visual.grid_size == (5, 2) and same.visual(torch.rand(1, 3, 64, 32)).shape == (1, 48)
    with pytest.raises(ValueError, match="Did you mean 'openai'"): load_clip(model, "openaai")


def test_a_failed_download_names_the_way_out(monkeypatch):
    def offline(*a, **kw): raise RuntimeError("no network")
    monkeypatch.setattr(open_clip, "create_model", offline)
    with pytest.raises(OSError, match="'openai' could not be downloaded.*local file"):
        load_clip(clip_model((64, 32), **TINY_CLIP), "openai")
