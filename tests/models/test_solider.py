"SOLIDER: its file against a plain forward that reads the released names, what its tensors say, and what is refused"
import argparse

import pytest
import torch
import torch.nn.functional as F
from helpers import solider as helper
from helpers.towers import randomised

from reid_lab.models import solider
from reid_lab.models.convert import inspect_weights, weights_text
from reid_lab.models.frozen import frozen
from reid_lab.models.solider import SOLIDERS, Solider, SoliderSizes, window_index
from reid_lab.models.zoo import create_model, sample_batch
from reid_lab.training.layers import parameter_layers
from reid_lab.training.lora import lora_targets
from reid_lab.training.speedups import tuned

SMALL = 8, (1, 2, 2, 2), (1, 2, 2, 4)


@pytest.fixture(autouse=True)
def small(monkeypatch): monkeypatch.setitem(SOLIDERS, "solider_tiny", SoliderSizes(*SMALL))


@pytest.mark.parametrize("size", [(64, 32), (100, 36), (112, 56)])      # odd maps; maps of whole windows
@torch.no_grad()
def test_a_released_file_gives_the_features_of_its_formula(size, tmp_path):
    state = helper.released(*SMALL)
    torch.save(state, tmp_path/"transformer_120.pth")
    model = frozen("solider_tiny", tmp_path/"transformer_120.pth", size=size)
    assert model.loaded.matched == model.loaded.total and not model.loaded.unused and not model.loaded.missing
    img = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    want = helper.Plain(state)((img - .5)/.5)
    assert torch.allclose(model.raw_features(img), want, atol=1e-4) and (want[0] - want[1]).abs().mean() > 1e-2
    assert torch.allclose(model.encode_image(img), F.normalize(want, dim=1), atol=1e-4)
    other = frozen("solider_tiny", tmp_path/"transformer_120.pth", size=size, semantic=.9).raw_features(img)
    assert torch.allclose(other, helper.Plain(state, .9)((img - .5)/.5), atol=1e-4) and (other - want).abs().max() > .1


@torch.no_grad()
def test_what_a_timm_swin_has_is_the_same_where_maps_are_whole_windows():
    "Without control, and without a shift in a map of one window; four places are merged in another order there"
    import timm
    torch.manual_seed(0)
    depths, heads = (1, 2, 2, 1), SMALL[2]
    theirs = randomised(timm.create_model("swin_tiny_patch4_window7_224", embed_dim=8, depths=depths, num_classes=0,
                                          num_heads=heads, img_size=(224, 224))).eval()
    ours, state = Solider(SoliderSizes(8, depths, heads)).eval(), {}
    for name, x in theirs.state_dict().items():
        if ".relative_position_index" in name or "attn_mask" in name: continue
        name = name.replace("patch_embed.proj", "patches.conv").replace("patch_embed.", "patches.")
        for old, new in ((".downsample.", ".merge."), ("layers.", "stage"), ("fc1", "0"), ("fc2", "2")):
            name = name.replace(old, new)
        if "merge" in name:
            parts = x.unflatten(-1, (2, 2, -1))                 # (.., column, row, channel)
            x = parts.movedim(-1, -3).transpose(-1, -2).flatten(-3)
        state[name.replace("relative_position_bias_table", "bias")] = x
    for name, x in ours.state_dict().items():
        if ".control." not in name: continue
        state[name] = torch.zeros_like(x)
        if name.endswith("scale.bias"): state[name] += torch.tensor(1.).expm1().log()    # softplus gives 1
    ours.load_state_dict(state)
    img = torch.randn(1, 3, 224, 224)
    assert torch.allclose(ours(img), theirs(img), atol=1e-4) and theirs(img).std() > .1


def test_the_index_of_a_window_by_hand():
    index = window_index(3)
    for a in range(9):
        for b in range(9): assert index[a, b] == (a//3 - b//3 + 2)*5 + a % 3 - b % 3 + 2


@pytest.mark.parametrize("name, n", [("solider_small", 49.6), ("solider_base", 87.6)])
def test_sizes(name, n):
    "Swin-S and Swin-B have 49.6 and 87.8 million with a classifier of ImageNet; the controls have few"
    with torch.device("meta"): net = Solider(SOLIDERS[name])
    assert sum(p.numel() for k, p in net.named_parameters() if "control" not in k)/1e6 == pytest.approx(n, abs=1)
    assert solider.solider_names(net.state_dict()) == [name]


def test_what_a_file_says(tmp_path):
    torch.save({f"module.{k}": v for k, v in helper.released(*SMALL).items()}, tmp_path/"w.pth")
    found = inspect_weights(tmp_path/"w.pth")
    assert found["layout"] == "solider" and found["arguments"] == dict(tower="solider_tiny")
    assert {name: len(left) for name, left in found["left"].items()} == {
        "its program tests with the feature before BNNeck": 5, "classifier of its training identities": 1,
        "norm of an earlier stage, which the feature does not use": 6, "follows from the size of the input": 7,
        "acts behind the last map, which the feature does not use": 4}
    text = weights_text(found)
    assert "create_model('frozen', weights='w.pth', tower='solider_tiny')" in text and "-p semantic=.2" in text
    model = frozen("solider_tiny", tmp_path/"w.pth")
    assert (model.size, model.resample, model.dim) == ((384, 128), "bilinear", 64)


def test_the_pretraining_is_named_and_opens(tmp_path):
    "Its checkpoint holds student and teacher with their heads, options and an optimiser; its converted one the teacher"
    state = {f"backbone.{k}": v for k, v in helper.drawn(helper.shapes(*SMALL)).items()}
    teacher = state | {"head.mlp.0.weight": torch.rand(4, 64), "head.last_layer.weight_g": torch.rand(4, 1)}
    checkpoint = dict(student={f"module.{k}": v for k, v in teacher.items()}, teacher=teacher, epoch=100,
                      optimizer=dict(state={}, param_groups=[dict(lr=.1)]), args=argparse.Namespace(arch="swin_tiny"))
    torch.save(checkpoint, tmp_path/"checkpoint.pth")
    torch.save(teacher, tmp_path/"checkpoint_tea.pth")
    with pytest.raises(ValueError, match="choose one of .'student.', 'teacher.'"):
        frozen("solider_tiny", tmp_path/"checkpoint.pth")
    nets = [frozen("solider_tiny", f"{tmp_path}/{name}", size=(64, 32), semantic=1.)
            for name in ("checkpoint.pth#teacher", "checkpoint_tea.pth")]
    img = torch.rand(1, 3, 64, 32)
    with torch.no_grad():
        assert torch.equal(nets[0].raw_features(img), nets[1].raw_features(img))
        assert torch.allclose(nets[0].raw_features(img), helper.Plain(
            {k.removeprefix("backbone."): v for k, v in state.items()}, 1.)((img - .5)/.5), atol=1e-4)
    assert inspect_weights(tmp_path/"checkpoint_tea.pth")["about"] == "a pretrained SOLIDER"


def test_what_is_refused(tmp_path):
    state = helper.released(*SMALL)
    with pytest.raises(ValueError, match="is of 'solider_tiny', not of tower='solider_base'"):
        frozen("solider_base", state)
    with pytest.raises(ValueError, match="which is not known; solider_tiny, solider_small, solider_base are"):
        frozen("solider_tiny", helper.released(8, (1, 1, 1, 1), (1, 1, 1, 1)))
    with pytest.raises(ValueError, match="holds a re-identification model of SOLIDER; .*it fits frozen"):
        frozen("swin_tiny_patch4_window7_224", state)
    lost = {k: v for k, v in state.items() if "patch_embed.projection.weight" not in k}
    with pytest.raises(ValueError, match="no whole SOLIDER: it holds no 'patches.conv.weight'; download it again"):
        frozen("solider_tiny", lost)
    for semantic in (20, -.1, "much", True):
        with pytest.raises(ValueError, match="semantic=.*from 0 to 1"):
            frozen("solider_tiny", "none", semantic=semantic)
    torch.save(dict(state_dict=state, config=SoliderSizes(*SMALL)), tmp_path/"objects.pth")
    with pytest.raises(ValueError, match="holds Python objects besides tensors .*torch.save.model.state_dict"):
        frozen("solider_tiny", tmp_path/"objects.pth")


@pytest.mark.parametrize("model", ["bot", "tuned"])
def test_it_trains_as_other_towers_do(model):
    "Every parameter but those of the control has a gradient, also where blocks are computed again; layers and adapters"
    torch.manual_seed(0)
    net = create_model(model, n_ids=4, tower="solider_tiny", size=(64, 32), weights="none").train()
    batch, gradients = sample_batch((64, 32), n=4), []
    for again in (False, True):
        net.zero_grad()
        with tuned(net, checkpointing=again):
            out = net(batch)
            (out["id_loss"] + out["triplet_loss"]).backward()
        gradients.append({n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None})
    still = {n for n, p in net.named_parameters() if not p.requires_grad}
    assert {n.partition(".control.")[0] for n in still} == {*(f"image.tower.stage{i}" for i in (1, 2, 3)), "neck.bias"}
    assert gradients[0].keys() == gradients[1].keys() == {n for n, p in net.named_parameters()} - still
    assert all(torch.allclose(gradients[0][n], gradients[1][n], rtol=1e-4, atol=1e-6) for n in gradients[0])
    layers = parameter_layers(net)
    assert max(layer.above for layer in layers.values()) == 1 + sum(SMALL[1])
    assert not any("control" in name for name in lora_targets(net).linear)
