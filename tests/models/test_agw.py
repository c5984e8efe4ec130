"""Baselines of domain generalisation: meta-discrimination, BoT's losses and centres, AGW, camera-based BatchNorm."""
import math
from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from reid_lab.losses import basics as loss_basics, image as image_losses
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.training.learner import Callback, Learner, Plain
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.training.callbacks import refresh_batchnorm
from reid_lab.meta.camera_batchnorm import (CameraNormed, CameraNorms, CBNStep, camera_batch_norm, camera_batches,
    camera_batchnorm, camera_moments, camera_normed, estimate_camera_stats, pooled_moments)
from reid_lab.meta.dual_speed import DualSpeed, Task
from reid_lab.models.agw import NonLocal, agw_r50, agw_tiny, with_nonlocal
from reid_lab.models.backbones import ResTower, TokenPool, norm_layers, power_mean
from reid_lab.models.bot import METRICS, BoT, bot_r50, bot_tiny, move_centers
from reid_lab.models.weights.shipped import Card, save_shipped
from reid_lab.models.zoo import check_image_model, create_model, sample_batch
from reid_lab.training.folder import start_of
from reid_lab.tta.dart3 import Dart3Lite
from reid_lab.tta.base import adapt_images

SIZE = (32, 16)


def t64(x): return torch.tensor(x, dtype=torch.float64)


def bot(seed=0, **kw):
    torch.manual_seed(seed)
    return BoT(ResTower((4, 8, 8, 12)), 4, SIZE, **kw)


def batch(seed=0, n=8, cams=2):
    b = sample_batch(SIZE, n, seed=seed)
    return b | dict(cam=torch.arange(n) % cams)


class Loader:
    "Three batches an epoch, each drawn from its own seed"
    def __len__(self): return 3
    def epoch(self, e, start=0): return (batch(10*e + i) for i in range(start, 3))


def same(a, b): return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def copied(net): return {k: v.clone() for k, v in net.state_dict().items()}


# ---- meta-discrimination

def test_meta_discrimination_vector(oracles):
    o = oracles["dmg_meta_discrimination"]
    i, e = o["inputs"], o["expected"]
    q, s = t64(i["f_query_l2"]), t64(i["f_support_l2"])
    yq, ys = torch.tensor(i["y_query"]), torch.tensor(i["y_support"])
    assert image_losses.meta_discrimination(q, yq, s, ys, i["scale"]).item() == pytest.approx(e["loss"], abs=1e-6)
    for k, want in enumerate(e["per_query"]):
        assert image_losses.meta_discrimination(q[k:k + 1], yq[k:k + 1], s, ys).item() == pytest.approx(want, abs=1e-6)
    eye, ids = torch.eye(16, dtype=torch.float64), torch.arange(16)
    floor = image_losses.meta_discrimination(eye, ids, eye, ids).item()
    assert floor == pytest.approx(e["floor_P16_ideal"], abs=1e-6) == pytest.approx(math.log(math.e + 15) - 1, abs=1e-6)
    assert image_losses.meta_discrimination(eye, ids, eye, ids, scale=30.).item() < 1e-6


@pytest.mark.parametrize("scale", [1., 5.])
def test_meta_discrimination_naive(scale):
    "Loops over queries and centres, with unequal counts, unordered identities and support of nobody's query"
    g = torch.Generator().manual_seed(1)
    q, s = (3*torch.randn(n, 5, generator=g, dtype=torch.float64) for n in (5, 9))
    yq, ys = [7, 2, 2, 5, 7], [5, 2, 7, 7, 9, 2, 2, 5, 9]
    total = 0.
    for x, y in zip(q.tolist(), yq):
        cos = {}
        for p in set(ys):
            own = [r for r, z in zip(s.tolist(), ys) if z == p]
            m = [sum(c)/len(own) for c in zip(*own)]
            cos[p] = sum(a*b for a, b in zip(x, m))/math.sqrt(sum(a*a for a in x))/math.sqrt(sum(b*b for b in m))
        total -= scale*cos[y] - math.log(sum(math.exp(scale*c) for c in cos.values()))
    got = image_losses.meta_discrimination(q, torch.tensor(yq), s, torch.tensor(ys), scale)
    assert got.item() == pytest.approx(total/5, abs=1e-9)
    order = torch.randperm(9, generator=g)
    assert torch.allclose(got, image_losses.meta_discrimination(7*q, torch.tensor(yq), s[order], torch.tensor(ys)[order], scale))


def test_meta_discrimination_errors_and_empty():
    x, y = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 4])
    with pytest.raises(ValueError, match=r"q_pid has identities without support: \[4\]"):
        image_losses.meta_discrimination(x, y, x[:2], y[:2])
    with pytest.raises(ValueError, match="s_pid has 2 entries for 3 features"): image_losses.meta_discrimination(x, y, x, y[:2])
    with pytest.raises(ValueError, match="q_pid has 2 entries for 3 features"): image_losses.meta_discrimination(x, y[:2], x, y)
    with pytest.raises(ValueError, match="of one width"): image_losses.meta_discrimination(x, y, x[:, :2], y)
    empty = image_losses.meta_discrimination(x[:0], y[:0], x, y)
    empty.backward()
    assert empty.item() == 0 and (x.grad == 0).all()


PID = torch.tensor([0, 0, 1, 1, 2])
TWICE = dict(
    meta_discrimination=lambda x: image_losses.meta_discrimination(x[:3], PID[[0, 2, 4]], x, PID, 2.),
    label_smoothing=lambda x: image_losses.label_smoothing(x, PID), triplet=lambda x: image_losses.triplet(x, PID, 3.),
    soft_triplet=lambda x: image_losses.triplet(x, PID, None), weighted=lambda x: image_losses.weighted_triplet(x, PID),
    center=lambda x: image_losses.center(x[:4], PID[:4], x[2:]), gem=lambda x: power_mean(x.exp()[None], t64(3.)).sum(),
    camera_batch_norm=lambda x: camera_batch_norm(x, PID).sin().sum())


@pytest.mark.parametrize("name", TWICE)
def test_first_and_second_derivatives(name):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(TWICE[name], x) and torch.autograd.gradgradcheck(TWICE[name], x)


def test_gradients_reach_queries_and_centres():
    q, s = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    image_losses.meta_discrimination(q, torch.tensor([0, 0, 1, 1]), s, torch.tensor([0, 1, 1, 0])).backward()
    assert q.grad.abs().min() > 0 and s.grad.abs().min() > 0


# ---- BoT with other losses

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
    want = dict(triplet=dict(triplet_loss=image_losses.triplet(f, b["pid"])), circle=dict(circle_loss=image_losses.circle(f, b["pid"])),
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
        sgd.zero_grad(); loss.backward()
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


def trained(folder, make, strategy=Plain, stop=None, resume=False, steps=7):
    ck = Checkpoint(folder, every=1)
    class Stop(Callback):
        def after_step(self, learn): learn.stop = learn.step == stop
    learn = Learner(make(), Loader(), strategy(), [ck, Stop()], lr=1e-2, clip=1., device="cpu")
    if resume: assert ck.resume(learn)
    return learn.fit(steps=steps).net.state_dict()


@pytest.mark.parametrize("make, strategy", [
    (partial(bot, center=5e-4), Plain), (bot, CBNStep), (partial(bot, center=.1, metric="weighted", pool="gem"),
     lambda: CBNStep(DualSpeed([Task()]*2, iters_per_task=1)))])
def test_resumed_equals_uninterrupted(tmp_path, make, strategy):
    whole = trained(tmp_path/"a", make, strategy)
    trained(tmp_path/"b", make, strategy, stop=4)
    assert same(whole, trained(tmp_path/"b", make, strategy, resume=True))
    assert not same(whole, trained(tmp_path/"c", make, strategy, steps=6))


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
    save_weights(a, tmp_path/"w.safetensors"); load_weights(b, tmp_path/"w.safetensors")
    assert same(a.state_dict(), b.state_dict())
    with pytest.raises(ValueError, match="missing centers|unexpected centers"):
        load_weights(bot(), tmp_path/"w.safetensors")


def test_centres_are_new_in_a_start():
    net = bot_tiny(3, center=5e-4, weights="world")
    assert net.loaded.missing == () and "centers" in net.loaded.kept and net.centers.shape == (3, 128)


# ---- AGW

def test_gem_vector(oracles):
    o = oracles["gem_pool"]
    tok = t64(o["inputs"]["map_2x2"]).view(1, 4, 1)
    assert power_mean(tok, o["inputs"]["p"], o["inputs"]["eps"]).item() == pytest.approx(o["expected"]["gem"], abs=1e-6)
    pool = TokenPool("gem").double()
    assert pool(tok).item() == pytest.approx(o["expected"]["gem"], abs=1e-6)
    assert power_mean(tok + 1, 1.).item() == pytest.approx(2.5)
    assert power_mean(tok, 200.).item() == pytest.approx(3, .01)
    pool(torch.zeros(1, 4, 1).double()).sum().backward()
    assert pool.p.grad.isfinite().all()


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


def test_names_of_the_tower_stay():
    stage = ResTower((4, 8, 8, 12)).stages
    more = with_nonlocal(stage, {0: 8, 2: 12})
    assert [n for n, _ in more.named_children()] == ["0", "nl0", "1", "2", "nl2"]
    x = torch.rand(2, 4, 8, 8)
    assert torch.equal(more(x), stage(x))
    with pytest.raises(ValueError, match=r"blocks \[4\]; this stage has 0 to 2"): with_nonlocal(stage, {4: 8})


def test_agw_is_its_parts():
    net, b = agw_tiny(4, SIZE, (4, 8, 8, 12)), batch()
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
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file
    with safe_open(path, "pt") as f: header = f.metadata()
    save_file({k: v for k, v in load_file(path).items() if ".nl1." not in k}, tmp_path/"cut.safetensors", header)
    with pytest.raises(ValueError, match="missing .*nl1"): agw_tiny(3, weights=tmp_path/"cut.safetensors")


def test_agw_r50_parameters_and_start():
    block = lambda C: 3*(C*C//2 + C//2) + C*C//2 + C + 2*C
    with torch.device("meta"): net, base = agw_r50(7), bot_r50(7)
    count = lambda m: sum(p.numel() for p in m.parameters())
    assert count(net) - count(base) == 2*block(512) + 3*block(1024) + 1
    torch.manual_seed(0)
    source = bot_r50(3, (32, 32))
    net = agw_r50(3, (32, 32), weights={k: v for k, v in source.image.net.state_dict().items() if k != "act1.linear"})
    assert net.loaded.missing == net.loaded.misfit == () and any("layer3.nl5" in k for k in net.loaded.kept)
    assert torch.equal(net.image.net.layer3[0].conv1.weight, source.image.net.layer3[0].conv1.weight)
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad(): assert torch.equal(net.eval().image(x), source.eval().image(x))


# ---- camera-based BatchNorm

def naive_cbn(x, cam, weight=None, bias=None):
    "Torch's BatchNorm, camera after camera"
    out = torch.empty_like(x)
    for c in set(cam.tolist()):
        out[cam == c] = F.batch_norm(x[cam == c], None, None, weight, bias, training=True)
    return out


def test_camera_batch_norm_vector(oracles):
    o = oracles["camera_based_bn"]
    i = o["inputs"]
    got = camera_batch_norm(t64(i["x"]), torch.tensor(i["cam"]), eps=i["eps"])
    assert torch.allclose(got, t64(o["expected"]["y"]), atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 3), (9, 3, 5), (9, 3, 4, 2)])
def test_camera_batch_norm_naive(shape):
    g = torch.Generator().manual_seed(0)
    x, cam = 4 + 3*torch.randn(*shape, generator=g), torch.tensor([5, 5, 2, 9, 2, 9, 9, 5, 2])
    w, b = torch.randn(3, generator=g), torch.randn(3, generator=g)
    assert torch.allclose(camera_batch_norm(x, cam), naive_cbn(x, cam), atol=1e-5)
    assert torch.allclose(camera_batch_norm(x, cam, w, b), naive_cbn(x, cam, w, b), atol=1e-5)
    group = cam.unique(return_inverse=True)[1]
    m, v = pooled_moments(*camera_moments(x, group, 3))
    whole = x.transpose(0, 1).flatten(1)
    assert torch.allclose(m, whole.mean(1), atol=1e-5) and torch.allclose(v, whole.var(1, False), atol=1e-4)


def test_a_lone_value_is_normalised_by_the_batch():
    x, cam = torch.randn(5, 3), torch.tensor([0, 0, 0, 0, 1])
    got = camera_batch_norm(x, cam)
    assert torch.allclose(got[4], F.batch_norm(x, None, None, training=True)[4], atol=1e-5)
    maps = torch.randn(2, 3, 4, 2)
    assert torch.allclose(camera_batch_norm(maps, torch.tensor([0, 1])), F.instance_norm(maps), atol=1e-5)


def test_the_whole_model_by_loops():
    "Features of each camera's rows are those of a batch of that camera alone"
    net, b = bot().train(), batch(n=8, cams=3)
    b["cam"] = torch.tensor([4, 4, 9, 4, 9, 2, 2, 9])
    ref = deepcopy(net)
    with camera_batchnorm(net, b["cam"]), torch.no_grad(): got = net.features(b["img"])[1]
    with torch.no_grad():
        for own in (b["cam"] == c for c in (2, 4, 9)):
            assert torch.allclose(got[own], ref.features(b["img"][own])[1], atol=1e-4)


def test_one_camera_is_ordinary_batchnorm_and_running_statistics_follow_the_batch():
    net, b = bot().train(), batch()
    ref = deepcopy(net)
    with camera_batchnorm(net): a = net(b | dict(cam=torch.zeros(8, dtype=torch.long)))
    out = ref(b)
    assert all(torch.allclose(a[k], out[k], atol=1e-4) for k in out)
    assert all(torch.allclose(v.float(), ref.state_dict()[k].float(), atol=1e-5) for k, v in net.state_dict().items())
    bn, x = nn.BatchNorm2d(3, momentum=None), 5 + torch.randn(8, 3, 4, 2)
    also, cam = deepcopy(bn), torch.arange(8) % 3
    with camera_batchnorm(bn, cam):
        for k in (1, 2): y = bn(k*x)
    for k in (1, 2): also(k*x)
    assert all(torch.allclose(v.float(), also.state_dict()[k].float(), atol=1e-4) for k, v in bn.state_dict().items())
    assert torch.allclose(y, naive_cbn(2*x, cam), atol=1e-5)


def test_gradients_agree_with_loops():
    x, cam = torch.randn(6, 3, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 0, 1, 1, 0])
    probe = torch.randn(6, 3, dtype=torch.float64)
    grads = [torch.autograd.grad((f(x, cam)*probe).sum(), x)[0] for f in (camera_batch_norm, naive_cbn)]
    assert torch.allclose(*grads, atol=1e-9)


def test_the_model_is_as_it_was_afterwards():
    net, b = bot(), batch()
    was, flags = copied(net), [m.training for m in net.modules()]
    stats = estimate_camera_stats(net, [b, batch(1)])
    with camera_batchnorm(net.eval(), b["cam"], stats): net.raw_features(b["img"])
    with pytest.raises(RuntimeError, match="stop"), camera_batchnorm(net): raise RuntimeError("stop")
    with camera_batchnorm(net):
        with camera_batchnorm(net): pass
        assert all("forward" in m.__dict__ for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))
    assert same(was, net.state_dict()) and not net._forward_pre_hooks
    assert not any("forward" in m.__dict__ for m in net.modules())
    net.train(); assert [m.training for m in net.modules()] == flags


def test_parts_of_a_batch_at_other_weights():
    "A meta step calls the model with parts of the batch, other weights and copies of the buffers"
    net, b = bot().train(), batch(n=8)
    was = copied(net)
    half = lambda s: {k: v[s] for k, v in b.items()}
    weights = {k: p + .01 for k, p in net.named_parameters()}
    with camera_batchnorm(net):
        buffers = {k: v.clone() for k, v in net.named_buffers()}
        far = torch.func.functional_call(net, {**weights, **buffers}, (half(slice(0, 4)),))
        assert same(was, net.state_dict())
        assert not torch.equal(buffers["neck.running_mean"], net.neck.running_mean)
        near = net(half(slice(4, 8)))
    assert all(v.isfinite().all() for v in (*far.values(), *near.values())) and not same(was, net.state_dict())
    sum(loss_basics.terms(far).values()).backward()


def test_a_strategy_under_cbn():
    class Same(Plain):
        def step(self, learn, b): return learn.update(b | dict(cam=torch.zeros_like(b["cam"])))
    plain = Learner(bot(), Loader(), device="cpu", lr=1e-3).fit(steps=3).net
    one = Learner(bot(), Loader(), CBNStep(Same()), device="cpu", lr=1e-3).fit(steps=3).net
    two = Learner(bot(), Loader(), CBNStep(), device="cpu", lr=1e-3).fit(steps=3).net
    gap = lambda a, b: max((x - y).abs().max().item() for x, y in zip(a.parameters(), b.parameters()))
    assert gap(plain, one) < .1*gap(plain, two)


# ---- statistics at test time

def test_statistics_merge_as_if_measured_at_once():
    g = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(11, 2, 3, generator=g, dtype=torch.float64)
    cam = torch.tensor([1, 8, 8, 1, 8, 5, 1, 8, 5, 5, 8])
    norms = CameraNorms()
    for part in (slice(0, 2), slice(2, 7), slice(7, 11)):
        cams, group = cam[part].unique(return_inverse=True)
        norms.add("bn", cams, *camera_moments(x[part], group, len(cams)))
    for c, m, v in zip([1, 5, 8], *norms.lookup("bn", [1, 5, 8])):
        flat = x[cam == c].transpose(0, 1).flatten(1)
        assert torch.allclose(m, flat.mean(1)) and torch.allclose(v, flat.var(1, False))
    m, v = norms.lookup("bn", [77])                                     # a camera without statistics: all images
    flat = x.transpose(0, 1).flatten(1)
    assert torch.allclose(m[0], flat.mean(1)) and torch.allclose(v[0], flat.var(1, False))
    again = CameraNorms(); again.load_state_dict(norms.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(norms.lookup("bn", [5, 1, 2]), again.lookup("bn", [5, 1, 2])))
    again.add("bn", torch.tensor([2]), *camera_moments(x[:3], torch.zeros(3, dtype=torch.long), 1))   # goes on
    assert again.cams.tolist() == [1, 2, 5, 8]
    assert not torch.equal(again.lookup("bn", [2])[0], norms.lookup("bn", [2])[0])


def test_a_camera_with_one_image_has_no_variance_of_its_own():
    norms = CameraNorms()
    x = torch.tensor([[1.], [3.], [8.]])
    norms.add("neck", torch.tensor([0, 1]), *camera_moments(x, torch.tensor([0, 0, 1]), 2))
    m, v = norms.lookup("neck", [1])
    assert torch.allclose(m[0], x.mean()) and torch.allclose(v[0], x.var(correction=0))


@pytest.fixture(scope="module")
def crops(): return tiny_table(12, 3, seed=0)


def test_estimation_on_a_table(crops):
    net = bot().eval()
    cams = [int(b["cam"][0]) for b in camera_batches(net, crops, per_camera=5, batch_size=3)]
    count = crops.frame.cam.value_counts()
    assert sorted(set(cams)) == sorted(count.index) and len(cams) == sum(-(-min(5, n)//3) for n in count)
    one, two = (camera_normed(net, crops, per_camera=6, seed=s).stats for s in (0, 0))
    assert all(same(a, two.state_dict()[k]) for k, a in one.state_dict().items())
    alone = next(camera_batches(net, crops, per_camera=6))
    with torch.no_grad():
        ours = CameraNormed(net, estimate_camera_stats(net, [alone])).encode_image(alone["img"], cam=alone["cam"])
        with camera_batchnorm(net.train(), alone["cam"]): theirs = net.encode_image(alone["img"])
    assert torch.allclose(ours, theirs, atol=1e-4)
    with pytest.raises(ValueError, match="per_camera=1"): next(camera_batches(net, crops, per_camera=1))


def test_embed_images_tells_the_camera(crops):
    net = bot().eval()
    both = camera_normed(net, crops, per_camera=8)
    got = embed_images(both, crops, batch_size=7, quiet=True)
    assert torch.allclose(got.emb, embed_images(both, crops, batch_size=3, quiet=True).emb, atol=1e-5)
    off = embed_images(both, crops, quiet=True, cameras=False)
    assert torch.equal(off.emb, embed_images(net, crops, quiet=True).emb)
    assert (got.emb - off.emb).norm(dim=1).min() > 1e-3
    check_image_model(both)


def test_a_new_camera_with_less_contrast_is_undone(crops):
    "Statistics of a camera that was never trained on remove a scale of its (normalised) pixels"
    net = bot().eval()
    img = next(camera_batches(net, crops, per_camera=8))["img"]
    for m in norm_layers(net, ("bn",)).values(): nn.init.normal_(m.bias)     # without shifts the net is homogeneous
    with torch.no_grad(): [net.train().raw_features(img) for _ in range(30)]
    net.eval()
    tint = net.pixels.mean + .3*(img - net.pixels.mean)
    both = lambda x, c: dict(img=x, cam=torch.full((len(x),), c))
    stats = estimate_camera_stats(net, [both(img, 0), both(tint, 99)])
    with torch.no_grad():
        a, b = (CameraNormed(net, stats).encode_image(*both(x, c).values()) for x, c in ((img, 0), (tint, 99)))
        plain = net.encode_image(img) - net.encode_image(tint)
    assert (a - b).norm(dim=1).max() < 2e-2 and plain.norm(dim=1).max() > .2


def test_adaptation_at_test_time_takes_it(crops):
    net = camera_normed(bot().eval(), crops, per_camera=8)
    g = embed_images(net, crops.where(cam=0), encode="raw_features", quiet=True)
    q, _ = adapt_images(Dart3Lite(), net, crops.where(cam=2), g)
    assert isinstance(q, Embeddings) and q.emb.isfinite().all()


def test_errors_name_the_remedy():
    net = bot()
    with camera_batchnorm(net):
        with pytest.raises(ValueError, match="without a batch that has 'cam'.*load batches with cameras"):
            net({k: v for k, v in batch().items() if k != "cam"})
    with camera_batchnorm(net, [0, 1]), pytest.raises(ValueError, match="has 3 rows and cam 2 entries"):
        net.raw_features(torch.rand(3, 3, *SIZE))
    with camera_batchnorm(net, [0]), pytest.raises(ValueError, match="neck got one value of each channel"):
        net.neck(torch.rand(1, 12))
    with pytest.raises(ValueError, match="Linear has no BatchNorm"), camera_batchnorm(nn.Linear(2, 2)): pass
    with pytest.raises(ValueError, match="batches is empty"): estimate_camera_stats(net, [])
    with pytest.raises(TypeError): create_model("agw_tiny")
