"""BoT: parameter counts by our own arithmetic, its losses and centres."""
from copy import deepcopy

import pytest
import torch
import torchvision
from helpers.small_bot import SIZE, Loader, batch, bot, copied, same, t64
from torch import nn

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.losses import basics as loss_basics, image as image_losses
from reid_lab.models.backbones import ResTower
from reid_lab.models.bot import METRICS, BoT, bn_neck, bot_tiny, id_head, keep_resolution, move_centers
from reid_lab.models.zoo import check_image_model, sample_batch
from reid_lab.training.callbacks import refresh_batchnorm
from reid_lab.training.learner import Learner


def resnet50_parameters():
    "Convolutions without bias, a scale and a shift for each of their outputs"
    def conv(cin, cout, k): return cin*cout*k*k + 2*cout

    total, cin = conv(3, 64, 7), 64
    for blocks, mid in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for i in range(blocks):
            total += conv(cin, mid, 1) + conv(mid, mid, 3) + conv(mid, 4*mid, 1)
            if i == 0: total += conv(cin, 4*mid, 1)
            cin = 4*mid
    return total


@pytest.mark.parametrize("name, kw, want, dim", [
    ("bot_r50", dict(n_ids=751), resnet50_parameters() + 2*2048 + 751*2048, 2048)])
def test_parameters_and_width(name, kw, want, dim, parameters_and_width):
    assert parameters_and_width(name, **kw) == (want, dim)


def test_normalisation_parameters_of_the_literature(unbuilt):
    "53,120 BatchNorm parameters in ResNet-50"
    tower = unbuilt("bot_r50", n_ids=2).image
    norms = [m for m in tower.modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(p.numel() for m in norms for p in m.parameters(recurse=False)) == 53_120


def test_last_stride_of_either_library(unbuilt):
    with torch.device("meta"):
        net = keep_resolution(torchvision.models.resnet50())
        net.avgpool = net.fc = nn.Identity()
        assert net(torch.rand(1, 3, 256, 128)).shape == (1, 2048*16*8)
        assert unbuilt("bot_r50", n_ids=2).image(torch.rand(1, 3, 256, 128)).shape == (1, 128, 2048)


def test_neck_and_head():
    torch.manual_seed(0)
    neck, head = bn_neck(8), id_head(8, 500)
    assert not neck.bias.requires_grad and neck.weight.requires_grad and head.bias is None
    assert abs(head.weight.std().item() - .001) < 1e-4


def test_bot_takes_any_tower():
    model = BoT(ResTower((8, 16, 16, 32)), n_ids=3, size=SIZE, feature="before").eval()
    before, after = model.features(torch.rand(2, 3, *SIZE))
    raw, scores = model.forward_tta(torch.rand(2, 3, *SIZE))
    assert raw.shape == before.shape == after.shape == (2, 32) and scores.shape == (2, 3)


def test_the_default_bot_is_what_it_was():
    "Names and numbers of the model before it had switches, stated again"
    net, b = bot(), batch()
    assert not any("center" in k for k in net.state_dict())
    before, after = net.features(b["img"])
    want = dict(id_loss=image_losses.label_smoothing(net.classify(after), b["label"], .1),
                triplet_loss=image_losses.triplet(before, b["pid"]))
    out = loss_basics.terms(net(b))
    assert [*out] == [*want] and all(torch.equal(out[k], want[k]) for k in want)


@pytest.mark.parametrize("place", [None, "before", "after"])
@pytest.mark.parametrize("metric", METRICS)
def test_metric(metric, place):
    net, b = bot(metric=metric, metric_at=place), batch()
    before, after = net.features(b["img"])
    assert not torch.allclose(before, after)
    usual = dict(triplet="before", weighted="before", circle="after", none="before")[metric]
    f = dict(before=before, after=after)[place or usual]
    want = dict(triplet=dict(triplet_loss=image_losses.triplet(f, b["pid"])),
                circle=dict(circle_loss=image_losses.circle(f, b["pid"])),
                weighted=dict(weighted_loss=image_losses.weighted_triplet(f, b["pid"])), none={})[metric]
    out = loss_basics.terms(net(b))
    assert out.keys() - {"id_loss"} == want.keys() and all(torch.allclose(out[k], v) for k, v in want.items())
    check_image_model(net)


def test_centres_are_of_features_before_the_neck():
    net, b = bot(metric="circle", center=.1).eval(), batch()
    before = net.pooled(b["img"])
    assert torch.allclose(net(b)["center_loss"], .1*image_losses.center(before, b["label"], net.centers))


def test_bad_switches():
    with pytest.raises(ValueError, match="metric='triplets'.*Did you mean 'triplet'"): bot(metric="triplets")
    with pytest.raises(ValueError, match="metric_at='behind'.*before.*after"): bot(metric_at="behind")
    with pytest.raises(ValueError, match="center=-1"): bot(center=-1)


def test_centres_move_as_by_the_released_optimiser():
    "Plain SGD of rate 0.5 on centres as parameters, the weight of the loss divided out of their gradient"
    net, weight = bot(center=5e-4), 5e-4
    theirs = net.centers.clone().requires_grad_()
    sgd = torch.optim.SGD([theirs], lr=.5)
    for i in range(3):
        b = batch(i)
        with torch.no_grad(): f = deepcopy(net).pooled(b["img"])
        loss = weight*image_losses.center(f, b["label"], theirs)
        sgd.zero_grad()
        loss.backward()
        theirs.grad *= 1/weight
        assert net(b)["center_loss"].item() == pytest.approx(loss.item(), rel=1e-5)   # at the centres before they move
        sgd.step()
        assert torch.allclose(net.centers, theirs, atol=1e-5)


def test_move_centers_vector(oracles):
    i = oracles["center_loss"]["inputs"]
    x, y, c = t64(i["X"]), i["pid"], t64(i["centers"])
    want = c.clone()
    for k in range(len(c)):
        for f, p in zip(x, y):
            if p == k: want[k] -= .5*2/len(x)*(c[k] - f)
    move_centers(c, x, torch.tensor(y))
    assert torch.allclose(c, want)
    was = c.clone()
    move_centers(c, x[:0], torch.tensor(y)[:0])
    assert torch.equal(c, was)


def test_centres_move_in_training_only():
    net, b = bot(center=.1), batch()
    was = net.centers.clone()
    net.eval()(b)
    net.train()
    refresh_batchnorm(net, Loader(), n=2)
    net.encode_image(b["img"])
    assert torch.equal(net.centers, was) and not isinstance(net.centers, nn.Parameter)
    net(b)
    assert not torch.equal(net.centers, was)


def test_a_virtual_step_on_copies_leaves_the_centres():
    "The loss at other weights, with copies of the buffers, differentiated through the inner step"
    net, b = bot(center=.1), batch()
    params, was = dict(net.named_parameters()), copied(net)
    learn = {k: p for k, p in params.items() if p.requires_grad}
    copies = lambda: {k: v.clone() for k, v in net.named_buffers()}
    call = lambda p: sum(loss_basics.terms(torch.func.functional_call(net, {**p, **copies()}, (b,))).values())
    grads = torch.autograd.grad(call(learn), [*learn.values()], create_graph=True)
    ahead = {k: p - .1*g for (k, p), g in zip(learn.items(), grads)}
    call(ahead).backward()
    assert same(was, net.state_dict()) and all(p.grad.isfinite().all() for p in learn.values())


def test_the_weight_of_the_center_loss_does_not_change_the_rule():
    "The centres of one step are the same at every weight; clipping does not reach them"
    runs = []
    for weight in (1e-4, 1.):
        learn = Learner(bot(center=weight), Loader(), lr=1e-9, clip=1e-3, device="cpu").fit(steps=1)
        runs.append(learn.net.centers)
    assert torch.equal(*runs)


def test_a_file_with_centres(tmp_path):
    a, b = bot(center=.1), bot(1, center=.1)
    a(batch())
    save_weights(a, tmp_path/"w.safetensors")
    load_weights(b, tmp_path/"w.safetensors")
    assert same(a.state_dict(), b.state_dict())
    with pytest.raises(ValueError, match="missing centers|unexpected centers"):
        load_weights(bot(), tmp_path/"w.safetensors")


def test_centres_are_new_in_a_start():
    net = bot_tiny(3, center=5e-4, weights="world")
    assert net.loaded.missing == () and "centers" in net.loaded.kept and net.centers.shape == (3, 128)


@pytest.mark.parametrize("feature", ["before", "after"])
def test_the_feature_of_a_training_is_the_test_feature(feature):
    "What meta-discrimination reads (`emb`), what is ranked, and what is adapted at test time"
    torch.manual_seed(0)
    model, b = BoT(ResTower((8, 16, 16, 32)), n_ids=4, size=SIZE, feature=feature).eval(), sample_batch(SIZE)
    with torch.no_grad():
        want = model.features(b["img"])[feature == "after"]
        assert torch.equal(model(b)["emb"], want) and torch.equal(model.raw_features(b["img"]), want)
