"""Camera-based BatchNorm: vectors and loops, statistics at test time, and a model that is as it was afterwards."""
from copy import deepcopy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from helpers.small_bot import SIZE, Loader, batch, bot, copied, same, t64
from torch import nn

from reid_lab.datasets.image_sets import tiny_table
from reid_lab.losses import basics as loss_basics
from reid_lab.meta import camera_batchnorm as module
from reid_lab.meta.camera_batchnorm import (
    CameraBatchNorms,
    CBNStep,
    WithCameraBatchNorm,
    camera_batch_norm,
    camera_batches,
    camera_batchnorm,
    camera_moments,
    estimate_camera_stats,
    pooled_moments,
    with_camera_batchnorm,
)
from reid_lab.meta.dual_speed import DualSpeed, Rounds, Task
from reid_lab.models.backbones import norm_layers
from reid_lab.models.zoo import check_image_model, create_model
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.learner import Callback, Learner, Plain
from reid_lab.tta.base import adapt_images
from reid_lab.tta.dart3 import Dart3Lite


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
    net.train()
    assert [m.training for m in net.modules()] == flags


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


def test_statistics_merge_as_if_measured_at_once():
    g = torch.Generator().manual_seed(0)
    x = 3 + torch.randn(11, 2, 3, generator=g, dtype=torch.float64)
    cam = torch.tensor([1, 8, 8, 1, 8, 5, 1, 8, 5, 5, 8])
    norms = CameraBatchNorms()
    for part in (slice(0, 2), slice(2, 7), slice(7, 11)):
        cams, group = cam[part].unique(return_inverse=True)
        norms.add("bn", cams, *camera_moments(x[part], group, len(cams)))
    for c, m, v in zip([1, 5, 8], *norms.lookup("bn", [1, 5, 8])):
        flat = x[cam == c].transpose(0, 1).flatten(1)
        assert torch.allclose(m, flat.mean(1)) and torch.allclose(v, flat.var(1, False))
    m, v = norms.lookup("bn", [77])                                     # a camera without statistics: all images
    flat = x.transpose(0, 1).flatten(1)
    assert torch.allclose(m[0], flat.mean(1)) and torch.allclose(v[0], flat.var(1, False))
    again = CameraBatchNorms()
    again.load_state_dict(norms.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(norms.lookup("bn", [5, 1, 2]), again.lookup("bn", [5, 1, 2])))
    again.add("bn", torch.tensor([2]), *camera_moments(x[:3], torch.zeros(3, dtype=torch.long), 1))   # goes on
    assert again.cams.tolist() == [1, 2, 5, 8]
    assert not torch.equal(again.lookup("bn", [2])[0], norms.lookup("bn", [2])[0])


def test_a_camera_with_one_image_has_no_variance_of_its_own():
    norms = CameraBatchNorms()
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
    one, two = (with_camera_batchnorm(net, crops, per_camera=6, seed=s).stats for s in (0, 0))
    assert all(same(a, two.state_dict()[k]) for k, a in one.state_dict().items())
    alone = next(camera_batches(net, crops, per_camera=6))
    with torch.no_grad():
        model = WithCameraBatchNorm(net, estimate_camera_stats(net, [alone]))
        ours = model.encode_image(alone["img"], cam=alone["cam"])
        with camera_batchnorm(net.train(), alone["cam"]): theirs = net.encode_image(alone["img"])
    assert torch.allclose(ours, theirs, atol=1e-4)
    with pytest.raises(ValueError, match="per_camera=1"): next(camera_batches(net, crops, per_camera=1))


def test_means_over_batches_and_mirrored_images_as_in_the_released_program(crops):
    "Batches of a camera and their mirrors pass in training mode, where BatchNorm averages means and unbiased variances"
    net = bot().eval()
    how = dict(per_camera=7, batch_size=3)
    plain, twice = [*camera_batches(net, crops, **how)], [*camera_batches(net, crops, **how, flip=True)]
    assert len(twice) == 2*len(plain)
    for a, b, c in zip(plain, twice[::2], twice[1::2]):
        assert torch.equal(a["img"], b["img"]) and torch.equal(b["img"].flip(-1), c["img"])
        assert torch.equal(b["cam"], c["cam"])
    found = with_camera_batchnorm(net, crops, **how, flip=True, form="batches").stats
    for camera in sorted({int(b["cam"][0]) for b in twice}):
        theirs = deepcopy(net)
        for m in norm_layers(theirs, ("bn",)).values():
            m.reset_running_stats()
            m.momentum = None                                           # the mean over all batches
        with torch.no_grad():
            for b in twice:
                if int(b["cam"][0]) == camera: theirs.train().encode_image(b["img"])
        for name, m in norm_layers(theirs, ("bn",)).items():
            mean, var = found.lookup(name, [camera])
            assert torch.allclose(mean[0], m.running_mean, atol=1e-5, rtol=1e-4), name
            assert torch.allclose(var[0], m.running_var, atol=1e-5, rtol=1e-4), name
    pooled = with_camera_batchnorm(net, crops, **how, flip=True).stats
    assert not torch.allclose(pooled.lookup(name, [camera])[1][0], var[0], rtol=1e-3)
    with pytest.raises(ValueError, match="form='batch'.*Did you mean 'batches'"):
        estimate_camera_stats(net, plain, form="batch")


def test_embed_images_tells_the_camera(crops):
    net = bot().eval()
    both = with_camera_batchnorm(net, crops, per_camera=8)
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
        a, b = (WithCameraBatchNorm(net, stats).encode_image(*both(x, c).values()) for x, c in ((img, 0), (tint, 99)))
        plain = net.encode_image(img) - net.encode_image(tint)
    assert (a - b).norm(dim=1).max() < 2e-2 and plain.norm(dim=1).max() > .2


def test_adaptation_at_test_time_takes_it(crops):
    net = with_camera_batchnorm(bot().eval(), crops, per_camera=8)
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


def trained(folder, make, strategy=Plain, stop=None, resume=False, steps=7):
    ck = Checkpoint(folder, every=1)
    class Stop(Callback):
        def after_step(self, learn): learn.stop = learn.step == stop
    learn = Learner(make(), Loader(), strategy(), [ck, Stop()], lr=1e-2, clip=1., device="cpu")
    if resume: assert ck.resume(learn)
    return learn.fit(steps=steps).net.state_dict()


@pytest.mark.parametrize("make, strategy", [
    (partial(bot, center=5e-4), Plain), (bot, CBNStep), (partial(bot, center=.1, metric="weighted", pool="gem"),
     lambda: CBNStep(DualSpeed([Task()]*2, rounds=Rounds(iters_per_task=1))))])
def test_resumed_equals_uninterrupted(tmp_path, make, strategy):
    whole = trained(tmp_path/"a", make, strategy)
    trained(tmp_path/"b", make, strategy, stop=4)
    assert same(whole, trained(tmp_path/"b", make, strategy, resume=True))
    assert not same(whole, trained(tmp_path/"c", make, strategy, steps=6))


def test_names_of_the_last_release_are_found_with_a_warning():
    for old, new in dict(CameraNorms=CameraBatchNorms, CameraNormed=WithCameraBatchNorm,
                         camera_normed=with_camera_batchnorm).items():
        with pytest.warns(DeprecationWarning, match=f"{old} is called {new.__name__} now"):
            assert getattr(module, old) is new
    with pytest.raises(AttributeError, match="no attribute 'camera_norms'"): module.camera_norms
