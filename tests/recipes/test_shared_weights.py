"Models of the package that read one file are listed as such, with what comes out of them"
import pytest
import torch

from reid_lab.cli.output import listing
from reid_lab.models.weights.shipped import shipped
from reid_lab.recipes.crops import from_package
from reid_lab.recipes.shared_weights import shared_with


def test_what_is_listed_is_what_the_models_compute():
    img = torch.rand(3, 3, 128, 64, generator=torch.Generator().manual_seed(0))
    for name, (card, _) in shipped().items():
        shared = shared_with(name)
        assert (shared is None) == (name == card.model)
        if shared is None: continue
        with torch.inference_mode(): ours, theirs = (from_package(n).encode_image(img) for n in (name, card.model))
        same = ours.shape == theirs.shape and torch.allclose(ours, theirs, atol=1e-5)
        assert shared.equal["image"] == same, name
    lines = dict(line.split(None, 1) for line in listing("weights").splitlines())
    assert lines["cfam_tiny"].endswith("weights of clip_tiny, equal image and text features")
    assert lines["agw_tiny"].endswith("weights of bot_tiny, other image features")
    assert "weights of" not in lines["bot_tiny"]
    with pytest.raises(ValueError, match="name='bot_r50'"): shared_with("bot_r50")
