"""AGW: non-local blocks against loops, and a model that is the sum of its parts."""
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from reid_lab.models.agw import NonLocal, agw_r50, agw_tiny, with_nonlocal
from reid_lab.models.backbones import ResTower
from reid_lab.models.bot import bot_r50, bot_tiny
from reid_lab.models.weights.shipped import Card, save_shipped
from reid_lab.models.zoo import check_image_model, sample_batch
from reid_lab.training.folder import start_of

SIZE = (32, 16)


def same(a, b): return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def naive_nonlocal(net, x):
    "Loops over all pairs of positions; x: (C,H,W)"
    C, H, W = x.shape
    p = x.reshape(C, H*W)
    one = lambda conv, v: conv.weight[:, :, 0, 0] @ v + conv.bias
    y = torch.stack([sum((one(net.theta, p[:, i]) @ one(net.phi, p[:, j]))*one(net.g, p[:, j]) for j in range(H*W))
                     for i in range(H*W)], 1)/(H*W)
    z = torch.stack([one(net.out, y[:, i]) for i in range(H*W)], 1)
    n = net.norm
    return x + ((z - n.running_mean[:, None])/(n.running_var[:, None] + n.eps).sqrt()*n.weight[:, None]
                + n.bias[:, None]).view(C, H, W)


def test_nonlocal():
    torch.manual_seed(0)
    net, x = NonLocal(6), torch.randn(3, 6, 4, 2)
    assert torch.equal(net(x), x) and torch.equal(net.eval()(x), x)
    with torch.no_grad():
        for t in (net.norm.weight, net.norm.bias, net.norm.running_mean): t.normal_()
        want = torch.stack([naive_nonlocal(net, m) for m in x])
        assert torch.allclose(net(x), want, atol=1e-5) and not torch.allclose(want, x, atol=.1)
    with pytest.raises(ValueError, match="reduce=7 must lie between 1 and the width, 6"): NonLocal(6, 7)


def test_one_channel_inside_as_in_the_released_program():
    torch.manual_seed(0)
    net, x = NonLocal(6, inner=1).eval(), torch.randn(3, 6, 4, 2)
    with torch.no_grad():
        net.norm.weight.normal_()
        assert torch.allclose(net(x), torch.stack([naive_nonlocal(net, m) for m in x]), atol=1e-5)
    assert [tuple(f.weight.shape[:2]) for f in (net.theta, net.phi, net.g, net.out)] == [(1, 6)]*3 + [(6, 1)]
    for inner in (0, 7):
        with pytest.raises(ValueError, match=f"inner={inner} must lie between 1 and the width, 6"):
            NonLocal(6, inner=inner)
    with torch.device("meta"): net, half, base = agw_r50(7, inner=1), agw_r50(7), bot_r50(7)
    def count(m): return sum(p.numel() for p in m.parameters())
    def block(C): return 3*(C + 1) + 2*C + 2*C
    assert count(net) - count(base) == 2*block(512) + 3*block(1024) + 1 and count(half) > count(net)
    tiny = agw_tiny(4, SIZE, inner=1)
    assert {m.g.out_channels for m in tiny.modules() if isinstance(m, NonLocal)} == {1}
    assert agw_tiny(4, SIZE).image.stages.nl0.g.out_channels == 16


def test_the_center_loss_of_its_program():
    "Off by default, so that AGW and the center loss stand apart in the comparison of DMG-Net"
    b = sample_batch(SIZE)
    assert "center_loss" not in agw_tiny(4, SIZE)(b)
    net = agw_tiny(4, SIZE, center=5e-4)
    assert net.center == 5e-4 and net(b)["center_loss"] > 0


def test_names_of_the_tower_stay():
    stage = ResTower((4, 8, 8, 12)).stages
    more = with_nonlocal(stage, {0: 8, 2: 12})
    assert [n for n, _ in more.named_children()] == ["0", "nl0", "1", "2", "nl2"]
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(more(x), stage(x))
    with pytest.raises(ValueError, match=r"blocks \[4\]; this stage has 0 to 2"): with_nonlocal(stage, {4: 8})


def test_agw_is_its_parts():
    net, b = agw_tiny(4, SIZE, (4, 8, 8, 12)), sample_batch(SIZE)
    plain = bot_tiny(4, SIZE, (4, 8, 8, 12), pool="gem", metric="weighted")
    plain.load_state_dict({k: v for k, v in net.state_dict().items() if ".nl" not in k})
    assert same(plain(b), net(b))
    assert net.metric == "weighted" and net.pool.kind == "gem" and check_image_model(net)["norms_of_features"] > 3
    none = agw_tiny(4, SIZE, behind=(), pool="meanmax", metric="triplet").state_dict()
    assert {k: v.shape for k, v in none.items()} == {k: v.shape for k, v in bot_tiny(4, SIZE).state_dict().items()}


def test_agw_tiny_starts_from_bot_tiny(recwarn):
    net, source = agw_tiny(3, weights="world"), bot_tiny(3, weights="world")
    at = {k: v for k, v in net.state_dict().items() if k in source.state_dict() and not k.startswith("classify")}
    assert all(torch.equal(v, source.state_dict()[k]) for k, v in at.items())
    assert len(at) == len(source.state_dict()) - 1
    new = [k for k in net.state_dict() if k not in source.state_dict() and not k.endswith("num_batches_tracked")]
    assert sorted(net.loaded.kept) == sorted([*new, "classify.weight"])
    assert net.loaded.missing == net.loaded.unused == net.loaded.misfit == () and not len(recwarn)
    assert start_of("agw_tiny") == "world" and "pool.p" in new and "nl0" in net.loaded.report()
    with pytest.raises(ValueError, match="of another shape"): agw_tiny(3, widths=(8, 8, 8, 8), weights="world")


def test_a_file_of_agw_must_have_its_parts(tmp_path):
    net = agw_tiny(3)
    card = Card("agw_tiny", dict(size=(128, 64)), (("smoke", "reid", 500),), "a command", "abc", 0, 1, 16, 1.,
                heads=("classify.",))
    path = save_shipped(net, card, tmp_path/"w.safetensors")
    again = agw_tiny(3, weights=path)
    assert again.loaded.missing == () and again.loaded.kept == ("classify.weight",)
    with pytest.raises(ValueError, match=r"holds weights of this library \(agw_tiny\); expected weights of bot_tiny"):
        bot_tiny(3, weights=path)
    with safe_open(path, "pt") as f: header = {k: v for k, v in f.metadata().items() if k != "crc32"}
    save_file({k: v for k, v in load_file(path).items() if ".nl1." not in k}, tmp_path/"cut.safetensors", header)
    with pytest.raises(ValueError, match="missing .*nl1"): agw_tiny(3, weights=tmp_path/"cut.safetensors")


def test_agw_r50_parameters_and_start():
    def block(C): return 3*(C*C//2 + C//2) + C*C//2 + C + 2*C
    with torch.device("meta"): net, base = agw_r50(7), bot_r50(7)
    def count(m): return sum(p.numel() for p in m.parameters())

    assert count(net) - count(base) == 2*block(512) + 3*block(1024) + 1
    torch.manual_seed(0)
    source = bot_r50(3, (32, 32))
    net = agw_r50(3, (32, 32), weights={k: v for k, v in source.image.net.state_dict().items() if k != "act1.linear"})
    assert net.loaded.missing == net.loaded.misfit == () and any("layer3.nl5" in k for k in net.loaded.kept)
    assert torch.equal(net.image.net.layer3[0].conv1.weight, source.image.net.layer3[0].conv1.weight)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad(): assert torch.equal(net.eval().image(x), source.eval().image(x))
