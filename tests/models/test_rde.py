"RDE: both embeddings against the released program stated again, its file, and what is refused"
import pytest
import torch
from helpers import irra, rde
from helpers.towers import randomised

from reid_lab.data.text import ClipBPE
from reid_lab.models.convert import inspect_weights, weights_text
from reid_lab.models.frozen import frozen_pair, named_tower
from reid_lab.models.rde import Selected, SelectedTokens, most_attended, rde_tower
from reid_lab.models.weights.formats import identify
from reid_lab.models.zoo import check_control

CAPTIONS = ["a man in a red coat with a black bag", "a woman!", "a boy, " + "and a red bag "*30]


@pytest.fixture(scope="module")
def released():
    torch.manual_seed(3)
    net = randomised(rde.Released())
    for name, p in net.named_parameters():
        if "attn.in_proj" in name: p.data *= 3.     # so that attention differs from place to place
    return net


@pytest.fixture
def path(released, tmp_path):
    torch.save(irra.container(released), tmp_path/"best.pth")
    halves = {name: x.half().float() for name, x in released.state_dict().items()}
    released.load_state_dict(halves)
    return tmp_path/"best.pth"


@torch.no_grad()
def test_both_embeddings_are_those_of_the_released_program(released, path):
    assert identify(path).name == "rde"
    pair = frozen_pair("rde", path, size=rde.BIG)
    assert pair.loaded.matched == pair.loaded.total and not pair.loaded.unused and not pair.loaded.missing
    left = dict(pair.loaded.left)
    assert len(left) == 12 and all("not run" in why for why in left.values())
    img = torch.rand(3, 3, *rde.BIG, generator=torch.Generator().manual_seed(0))
    theirs = rde.both(released.image(pair.pixels(img)))
    assert (pair.encode_image(img)*2**.5 - theirs).abs().max() < 1e-5
    tokens = ClipBPE()(CAPTIONS)
    assert (tokens[1] == 0).sum() > 70 and tokens[2, -1] == 49407      # "!" has the number of the padding; a long one
    words = rde.both(released.text(tokens))
    assert (pair.encode_text(tokens)*2**.5 - words).abs().max() < 1e-5
    # both parts count, and tokens that are not attended to do not
    assert (theirs[:, :rde.DIM] - theirs[:1, :rde.DIM]).norm() > .01 and (theirs[0] - theirs[1])[rde.DIM:].norm() > .01
    other = rde_tower(path, rde.BIG, ratio=.1).net.eval().encode_image(pair.pixels(img))
    assert torch.allclose(other[:, :rde.DIM], theirs[:, :rde.DIM], atol=1e-5) and (other - theirs).norm() > .01


def test_captions_of_any_length(released, path):
    pair = frozen_pair("rde", path, size=rde.BIG)
    with torch.no_grad(): none = pair.encode_text(ClipBPE()(["", "a man"]))
    assert none.isfinite().all() and (none[0, rde.DIM:] == 0).all() and none[1, rde.DIM:].norm() > .5
    tokens = ClipBPE()(["a man in a red coat"])
    with torch.no_grad(): assert torch.allclose(pair.encode_text(tokens[:, :12]), pair.encode_text(tokens), atol=1e-6)
    further = tokens.clone()
    further[:, 1 + int(tokens[0].argmax()):] = 7        # tokens that a caption does not have
    with torch.no_grad(): assert torch.allclose(pair.encode_text(further), pair.encode_text(tokens), atol=1e-6)
    assert check_control(pair) == {}


def test_selection_by_hand():
    attention, allowed = torch.tensor([[.4, .3, .2, .1]]), torch.tensor([[False, True, True, True]])
    found = most_attended(torch.arange(4.).view(1, 4, 1), attention, allowed, 2)
    assert found.tokens[0, :, 0].tolist() == [1, 2] and found.real.all()
    few = most_attended(torch.arange(4.).view(1, 4, 1), attention, torch.tensor([[False, False, False, True]]), 9)
    assert few.real.tolist() == [[True, False, False, False]] and few.tokens[0, 0] == 3
    head = SelectedTokens(3, 4).eval()
    assert head(Selected(torch.rand(2, 5, 3), torch.zeros(2, 5, dtype=torch.bool))).abs().sum() == 0


def test_what_a_file_says_and_what_is_refused(released, path, tmp_path):
    assert named_tower("frozen_pair:rde") == ("frozen_pair", dict(pair="rde"))
    found = inspect_weights(path)
    assert found["arguments"] == dict(pair="rde") and found["fits"] == ["frozen_pair"]
    assert "create_model('frozen_pair', weights='best.pth', pair='rde')" in weights_text(found)
    with pytest.raises(ValueError, match="has the words of CLIP"): frozen_pair("rde", path, tokenizer=tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'rde'"): frozen_pair("rd", path)
    with pytest.raises(ValueError, match="weights=None"): frozen_pair("rde")
    state = {name: x for name, x in released.state_dict().items() if "text_projection" not in name}
    with pytest.raises(ValueError, match="no whole RDE: it holds no 'text_projection'"): frozen_pair("rde", state)
    with pytest.raises(ValueError, match="expected a released RDE"): frozen_pair("rde", irra.Released().state_dict())
    with pytest.raises(ValueError, match="a released RDE; .*it fits frozen_pair"):
        frozen_pair("ViT-S-32-alt", path)
