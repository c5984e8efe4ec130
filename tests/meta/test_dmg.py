"""DMG-Net's sampler, loss and step: properties over random tables, worked examples, references, nothing left behind."""
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.losses import image as image_losses
from reid_lab.losses.basics import terms
from reid_lab.losses.image import meta_discrimination
from reid_lab.meta.camera_batchnorm import camera_batch_norm
from reid_lab.meta.dmg import (
    CameraHalves,
    DMGStep,
    DomainRuns,
    group_rates,
    halves,
    split_cameras,
    two_sides,
    virtual_weights,
)
from reid_lab.meta.dual_speed import DualSpeed, Rounds, Task
from reid_lab.models.backbones import power_mean
from reid_lab.models.zoo import MODELS, create_model, list_models, sample_batch
from reid_lab.training.learner import Learner
from reid_lab.training.logs import Log

SIZE = (64, 32)


@st.composite
def frames(draw):
    "Random identities under random cameras of one to three datasets"
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, cam, pid = [], 0, 0
    for d in range(draw(st.integers(1, 3))):
        cams = cam + np.arange(draw(st.integers(1, 6)))
        for _ in range(draw(st.integers(1, 12))):
            seen = rng.choice(cams, rng.integers(1, len(cams) + 1), replace=False)
            rows += [dict(pid=pid, cam=int(c), dataset=f"d{d}") for c in seen for _ in range(rng.integers(1, 4))]
            pid += 1
        cam += len(cams)
    return pd.DataFrame(rows).sample(frac=1, random_state=0).reset_index(drop=True)


@settings(max_examples=150, deadline=None)
@given(frames(), st.integers(1, 3), st.integers(2, 4), st.booleans(), st.integers(0, 99))
def test_halves_share_people_and_no_camera(frame, k, P, virtual, seed):
    sampler, rng = CameraHalves(k, virtual), np.random.default_rng(seed)
    try: batches = sampler(frame, 2*k*P, rng)
    except ValueError as e:
        assert "identities have images in both halves" in str(e)
        return
    pid, cam = frame.pid.to_numpy(), frame.cam.to_numpy()
    assert len(batches) == max(1, len(frame)//(2*k*P)) and all(len(b) == 2*k*P for b in batches)
    n_cams = frame.groupby("pid").cam.nunique()
    many = lambda rows: rows[n_cams[pid[rows]].to_numpy() > 1]     # people seen by one camera have virtual ones
    s, q = (np.concatenate([b[h] for b in batches]) for h in (slice(0, k*P), slice(k*P, None)))
    assert not set(cam[many(s)]) & set(cam[many(q)])               # over the whole epoch
    assert not set(s) & set(q)
    if not virtual: assert n_cams[np.unique(pid[np.concatenate(batches)])].min() > 1
    for b in batches:
        a, c = pid[b[:k*P]], pid[b[k*P:]]
        assert sorted(a) == sorted(c) and len(np.unique(a)) == P and (np.unique(a, return_counts=True)[1] == k).all()
        for rows in (b[:k*P], b[k*P:]):    # repeats only where somebody has fewer than k images on that side
            for i in np.unique(a):
                own = rows[pid[rows] == i]
                assert len(np.unique(own)) == k or len(np.unique(own)) < k


@settings(max_examples=100, deadline=None)
@given(frames(), st.integers(0, 99))
def test_every_dataset_with_two_cameras_is_in_both_halves(frame, seed):
    cam, group = frame.cam.to_numpy(), frame.dataset.to_numpy()
    support = split_cameras(cam, np.random.default_rng(seed), group)
    for d in np.unique(group):
        own = cam[group == d]
        sides = [len(np.unique(own[support[group == d] == v])) for v in (True, False)]
        assert sum(sides) == len(np.unique(own)) and abs(sides[0] - sides[1]) <= 1


@settings(max_examples=80, deadline=None)
@given(frames(), st.integers(0, 99))
def test_two_sides_against_loops(frame, seed):
    pid, cam = frame.pid.to_numpy(), frame.cam.to_numpy()
    support = split_cameras(cam, np.random.default_rng(seed))
    found = two_sides(pid, support)
    for i in np.unique(pid):
        own = [r for r in range(len(pid)) if pid[r] == i]
        a, b = [r for r in own if support[r]], [r for r in own if not support[r]]
        if a and b: assert found[i][0].tolist() == a and found[i][1].tolist() == b
        else: assert i not in found
    with_virtual = two_sides(pid, support, cam, np.random.default_rng(seed))
    for i in set(with_virtual) - set(found):    # one camera, two images at least, dealt out evenly
        a, b = map(len, with_virtual[i])
        assert len(set(cam[pid == i])) == 1 and a + b == (pid == i).sum() and abs(a - b) <= 1


def people(n=12, cams=4, each=2):
    rows = [dict(path=f"{i}/{c}/{j}", pid=i, cam=c, split="train", captions=[], site=c//2)
            for i in range(n) for c in range(cams) for j in range(each)]
    grey = lambda pid, cam, shot: np.full((*SIZE, 3), (17*int(pid) + 5*int(cam)) % 256, np.uint8)
    pixels = lambda paths: [grey(*p.split("/")) for p in paths]
    return ReidTable(pd.DataFrame(rows), None, pixels, "people")


def test_a_new_split_every_epoch_and_the_same_one_when_asked_again():
    table = people(cams=6)
    loader = Batches(table, 16, SIZE, sampler=CameraHalves(2))
    split = lambda e: tuple(sorted({int(table.frame.cam[r]) for b in loader.order(e) for r in b[:8]}))
    splits = [split(e) for e in range(12)]
    assert len(set(splits)) > 4 and splits == [split(e) for e in range(12)]
    again = Batches(table, 16, SIZE, sampler=CameraHalves(2))
    assert [b.tolist() for b in again.order(5)] == [b.tolist() for b in loader.order(5)]


def test_identities_are_drawn_without_replacement():
    table = people(n=9)
    batches = CameraHalves(2)(table.frame, 12, np.random.default_rng(0))        # three identities a batch
    drawn = [set(table.frame.pid.to_numpy()[b]) for b in batches]
    for i in range(0, len(drawn) - 2, 3): assert len(set.union(*drawn[i:i + 3])) == 9


@pytest.mark.parametrize("change, batch, message", [
    (dict(), 8*40,
     "12 of 12 identities have images in both halves of the 4 cameras.*a batch needs 80: use batch_size <= 48"),
    (dict(cam=0), 16, "0 of 12 identities.*seen by one camera \\(12\\) take part with virtual_cams=True"),
    (dict(), 18, "batch_size=18 must hold 2 halves of k=2")])
def test_too_few_people(change, batch, message):
    frame = people().frame.assign(**change)
    with pytest.raises(ValueError, match=message): CameraHalves(2)(frame, batch, np.random.default_rng(0))


def joined_sets():
    "Two sets with cameras, one whose images have one camera number; somebody is seen by one camera, somebody once"
    f = people(n=12, cams=3).frame
    f["dataset"] = np.array(["a", "b", "one"])[f.pid//4]
    f["cam"] += 3*f.pid//4*3
    f.loc[f.dataset == "one", "cam"] = 99
    f = f[~((f.pid == 0) & (f.cam != f.cam[f.pid == 0].min()))]     # person 0: one camera of several in its set
    return f[~((f.pid == 11) & f.duplicated("pid"))].reset_index(drop=True) # person 11: one image


def test_sets_with_one_camera_are_dealt_out_beside_others():
    "By default; else they would be in no batch of Mixed A, where CUHK-SYSU has one camera number"
    frame, drawn = joined_sets(), {}
    for choice in (None, False, True):
        sampler = CameraHalves(2, choice)
        rows = np.concatenate([b for e in range(20) for b in sampler(frame, 16, np.random.default_rng(e))])
        drawn[choice] = set(frame.pid.to_numpy()[rows])
        assert set(sampler.left_out(frame)) == set(range(12)) - drawn[choice]
    assert (drawn[None], drawn[False]) == (set(range(1, 11)), set(range(1, 8)))
    assert drawn[True] == set(range(11))
    sampler = CameraHalves(2)
    assert sampler.virtual_sets(frame) == ["one"]
    assert sampler.virtual_sets(frame[frame.dataset == "one"]) == []    # alone it has no second camera to learn from
    assert sampler.virtual_sets(frame.drop(columns="dataset")) == []
    for b in sampler(frame, 16, np.random.default_rng(0)):
        assert not set(b[:8]) & set(b[8:])      # nobody's image is on both sides


def test_who_is_in_no_batch_is_said_once():
    frame = joined_sets()
    pixels = lambda paths: [np.zeros((*SIZE, 3), np.uint8)]*len(paths)
    table = ReidTable(frame, None, pixels, "joined")
    with pytest.warns(UserWarning, match=r"CameraHalves leaves 2 of 12 identities out of all batches \(a 1, one 1\)"):
        Batches(table, 16, SIZE, sampler=CameraHalves(2))
    with pytest.warns(UserWarning, match=r"leaves 5 of 12 identities .*\(a 1, one 4\)"):
        Batches(table, 16, SIZE, sampler=CameraHalves(2, False))


def test_people_of_one_camera_take_part_when_asked():
    frame = people().frame.assign(cam=0)
    batches = CameraHalves(2, virtual_cams=True)(frame, 16, np.random.default_rng(0))
    pid = frame.pid.to_numpy()
    assert all(sorted(pid[b[:8]]) == sorted(pid[b[8:]]) and not set(b[:8]) & set(b[8:]) for b in batches)
    with pytest.raises(ValueError) as e: CameraHalves(9, virtual_cams=True)(frame[:2], 36, np.random.default_rng(0))
    assert "virtual_cams" not in str(e.value)


def test_runs_of_one_domain():
    frame = people(n=8, cams=4).frame
    batches = DomainRuns("site", k=2, run=3)(frame, 8, np.random.default_rng(0))
    site = frame.site.to_numpy()
    runs = [np.concatenate(batches[i:i + 3]) for i in range(0, len(batches), 3)]
    assert len(batches) % 3 == 0 and all(len(set(site[r])) == 1 for r in runs)
    assert {s for b in batches for s in site[b]} == {0, 1}
    with pytest.raises(ValueError, match="site 0: a batch of 16 identities does not fit"):
        DomainRuns("site", k=2)(frame, 32, np.random.default_rng(0))


def test_the_quadratic(oracles):
    case = oracles["maml_quadratic"]
    at, alpha, want = case["inputs"]["theta"], case["inputs"]["alpha"], case["expected"]
    for second in (False, True):
        t = torch.tensor(at, dtype=torch.float64, requires_grad=True)
        new = virtual_weights(dict(t=t), (t - 1)**2, alpha, second)["t"]
        loss = 1.5*(new + .5)**2
        grad, = torch.autograd.grad(loss, t)
        assert new.item() == pytest.approx(want["theta_prime"])
        assert loss.item() == pytest.approx(want["L_G_theta_prime"])
        order = "second_order" if second else "first_order"
        assert grad.item() == pytest.approx(want[f"{order}_grad"])
        assert at - alpha*grad.item() == pytest.approx(want[f"theta_new_{order}"])


class Small(torch.nn.Module):
    "A smooth network with BatchNorm in float64"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.bn, self.b = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 4, bias=False)
        self.double()

    def forward(self, batch):
        h = self.bn(self.a(batch["img"])).tanh()
        return dict(id_loss=torch.nn.functional.cross_entropy(self.b(h), batch["pid"]), emb=h)


def meta_batch(seed=0, n=8):
    g = torch.Generator().manual_seed(seed)
    pid = torch.arange(n//2) % 4
    return dict(img=torch.randn(n, 6, generator=g, dtype=torch.float64), pid=torch.cat([pid, pid]),
                path=[str(i) for i in range(n)])


class Same:
    "One batch again and again"
    def __init__(self, batch): self.batch = batch
    def __len__(self): return 1
    def epoch(self, e, start=0): return iter([self.batch])


def learner(how, net=None, lr=.1, opt=None):
    net = net or Small()
    make = opt or (lambda m: torch.optim.SGD(m.parameters(), lr))
    return Learner(net, Same(meta_batch()), how, opt=make, schedule=lambda step: 1., clip=None)


def objective(theta, batch, inner, md, support=0., scale=1., md_params="theta"):
    "Algorithm 1 written with plain tensors, weights as one vector"
    def run(w, half):
        a, ab, g, b, c = w[:30].view(5, 6), w[30:35], w[35:40], w[40:45], w[45:].view(4, 5)
        h = half["img"] @ a.T + ab
        h = ((h - h.mean(0))/(h.var(0, unbiased=False) + 1e-5).sqrt()*g + b).tanh()
        return torch.nn.functional.cross_entropy(h @ c.T, half["pid"]), h
    s, q = halves(batch)
    L_B, emb_s = run(theta, s)
    g, = torch.autograd.grad(L_B, theta, create_graph=True)
    L_G, emb_q = run(theta - inner*g, q)
    if md_params == "theta": emb_q = run(theta, q)[1]
    return L_G + md*meta_discrimination(emb_q, q["pid"], emb_s, s["pid"], scale) + support*L_B


@pytest.mark.parametrize("kw", [dict(md=0.), dict(), dict(md=.7, scale=8.), dict(support=1., md=0.), dict(support=.5),
                                dict(md_params="theta_prime")])
def test_second_order_against_finite_differences(kw):
    how, batch = DMGStep(second_order=True, inner_lr=.3, **kw), meta_batch()
    learn = learner(how)
    sum(how.losses(learn, batch).values()).backward()
    ours = torch.cat([p.grad.flatten() for p in learn.net.parameters()])
    theta = torch.cat([p.detach().flatten() for p in learn.net.parameters()])
    f = lambda t: objective(t.clone().requires_grad_(), batch, .3, **{"md": 1., **kw}).item()
    eps, n = 1e-5, len(theta)
    naive = torch.tensor([(f(theta + eps*e) - f(theta - eps*e))/(2*eps) for e in torch.eye(n, dtype=torch.float64)],
                         dtype=torch.float64)
    assert torch.allclose(ours, naive, atol=1e-6)
    assert (ours - first_order(batch, **kw)).abs().max() > 1e-4          # the second derivatives are there


def first_order(batch, **kw):
    how = DMGStep(inner_lr=.3, **kw)
    learn = learner(how)
    sum(how.losses(learn, batch).values()).backward()
    return torch.cat([p.grad.flatten() for p in learn.net.parameters()])


def test_first_order_is_the_gradient_at_the_adapted_weights():
    batch, net, moved = meta_batch(), Small(), Small()
    s, q = halves(batch)
    grads = torch.autograd.grad(terms(net(s))["id_loss"], list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(moved.parameters(), grads): p -= .3*g
    moved(q)["id_loss"].backward()
    naive = torch.cat([p.grad.flatten() for p in moved.parameters()])
    assert torch.allclose(first_order(batch, md=0.), naive, atol=1e-12)


def test_second_order_of_attention_whatever_kernel_a_machine_prefers():
    "A fused kernel has no second derivative; here none but such a one is allowed around the step"
    table = tiny_table(16, 4)
    batches = Batches(table, 16, (64, 32), sampler=CameraHalves(2))
    model = create_model("transreid_tiny", size=(64, 32), n_ids=16)
    learn = Learner(model, batches, DMGStep(second_order=True, support=.5), device="cpu")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION): learn.fit(steps=1)
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_both_orders_agree_for_a_small_inner_rate():
    batch, gaps = meta_batch(), []
    for rate in (1e-1, 1e-2, 1e-3, 0.):
        both = []
        for second in (False, True):
            how = DMGStep(second_order=second, inner_lr=rate)
            learn = learner(how)
            sum(how.losses(learn, batch).values()).backward()
            both.append(torch.cat([p.grad.flatten() for p in learn.net.parameters()]))
        gaps.append((both[0] - both[1]).abs().max().item())
    assert gaps[0] > 5*gaps[1] > 25*gaps[2] and gaps[3] < 1e-12


@pytest.mark.parametrize("rate", [None, .05])
def test_the_inner_rate_is_that_of_each_group(rate):
    net = Small()
    groups = lambda m: [dict(params=[*m.a.parameters()], lr=.2),
                        dict(params=[*m.bn.parameters(), *m.b.parameters()], lr=.4)]
    learn, how = learner(DMGStep(), net, opt=lambda m: torch.optim.SGD(groups(m))), DMGStep(inner_lr=rate, md=0.)
    batch = meta_batch()
    rates = group_rates(learn.opt, net.named_parameters())
    assert rates["a.weight"] == .2 and rates["b.weight"] == .4
    s, q = halves(batch)
    grads = dict(zip(dict(net.named_parameters()), torch.autograd.grad(net(s)["id_loss"], list(net.parameters()))))
    moved = Small()
    with torch.no_grad():
        for n, p in moved.named_parameters(): p -= (rates[n] if rate is None else rate)*grads[n]
    assert how.losses(learn, batch)["id_loss"].item() == pytest.approx(moved(q)["id_loss"].item(), abs=1e-12)


def state_of(learn):
    values = [v for s in learn.opt.state_dict()["state"].values() for v in s.values()]
    opt = [v.clone() for v in values if isinstance(v, torch.Tensor)]
    return [torch.get_rng_state(), *(v.clone() for v in learn.net.state_dict().values()), *opt]


IMAGE = [n for n in list_models("tiny") if MODELS[n].reads == "images"]


@pytest.mark.parametrize("name", IMAGE)
@pytest.mark.parametrize("second", [False, True])
def test_the_virtual_step_leaves_no_trace(name, second):
    torch.manual_seed(0)
    net = create_model(name, size=SIZE, n_ids=4)
    batch = sample_batch(SIZE)
    batch = {k: torch.cat([v[::2], v[1::2]]) if isinstance(v, torch.Tensor) else v for k, v in batch.items()}
    learn = Learner(net, Same(batch), DMGStep(), clip=5.)
    learn.fit(steps=1)                                                     # an optimiser state to compare
    net.train()
    s, q = halves(batch)
    out = net(s)
    before = state_of(learn)
    after = DMGStep(second_order=second).query_pass(learn, q, sum(terms(out).values()), False)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(learn)))
    assert all(v.isfinite() for v in terms(after).values()) and after["emb"].shape == (4, net.dim)
    assert all(p.grad is None for p in net.parameters())


@pytest.mark.parametrize("name", IMAGE)
def test_every_image_model_learns_with_the_step(name):
    torch.manual_seed(0)
    net = create_model(name, size=SIZE, n_ids=12)
    learn = Learner(net, Batches(people(), 16, SIZE, sampler=CameraHalves(2)), DMGStep(),
                    [log := Log(every=1, quiet=True)], lr=1e-3, clip=5.)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    learn.fit(steps=2)
    assert learn.images == 32 and {"id_loss", "md_loss"} <= set(log.rows[0])
    assert any(not torch.equal(v, before[k]) for k, v in net.state_dict().items() if v.is_floating_point())


def test_statistics_come_from_clean_passes_only():
    "Running statistics after a step: those of the halves at theta, or of the virtual pass as well"
    batch, seen = meta_batch(), {}
    for name, kw in dict(support=dict(md=0.), clean=dict(), all=dict(md=0., statistics="all")).items():
        learn = learner(DMGStep(inner_lr=.3, **kw))
        learn.net.train()
        learn.strategy.losses(learn, batch)
        seen[name] = learn.net.bn.running_mean.clone(), int(learn.net.bn.num_batches_tracked)
    plain = Small().train()
    s, q = halves(batch)
    plain(s)
    assert torch.equal(plain.bn.running_mean, seen["support"][0]) and seen["support"][1] == 1
    plain(q)
    assert torch.equal(plain.bn.running_mean, seen["clean"][0]) and seen["clean"][1] == 2
    assert seen["all"][1] == 2 and not torch.equal(seen["all"][0], seen["clean"][0])


def test_without_the_virtual_step_it_is_ordinary_training():
    a, b, batch = learner(DMGStep(False, md=0.)), learner(None), meta_batch()
    for learn in (a, b):
        learn.net.train()
        learn.strategy.step(learn, batch)
    assert all(torch.equal(x, y) for x, y in zip(a.net.state_dict().values(), b.net.state_dict().values()))
    both = DMGStep(False).losses(a, batch)
    assert set(both) == {"id_loss", "md_loss"}


def test_mldg_is_the_sum_of_both_losses():
    batch = meta_batch()
    learn = learner(DMGStep(support=1., md=0., inner_lr=.3))
    found = learn.strategy.losses(learn, batch)
    assert found["support_loss"].item() == pytest.approx(Small()(halves(batch)[0])["id_loss"].item())
    assert set(found) == {"id_loss", "support_loss"}


def test_reptile_moves_a_part_of_the_way():
    "theta <- theta + eps (theta_k - theta) after k steps, against a loop"
    table = people()
    torch.manual_seed(0)
    make = lambda: create_model("bot_tiny", size=SIZE, n_ids=12)
    nets = []
    for _ in range(2):
        torch.manual_seed(0)
        nets.append(make())
    loader = Batches(table, 8, SIZE, sampler=DomainRuns("site", 2, 3))
    kw = dict(lr=1e-3, clip=5., schedule=lambda step: 1.)
    dual_speed = DualSpeed([Task()], eps_fast=.4, slow_every_tasks=1, rounds=Rounds(iters_per_task=3), slow=False)
    Learner(nets[0], loader, dual_speed,
            **kw).fit(steps=3)
    plain = {n: p.detach().clone() for n, p in nets[1].named_parameters()}
    Learner(nets[1], loader, **kw).fit(steps=3)
    for (n, p), (_, there) in zip(nets[0].named_parameters(), nets[1].named_parameters()):
        assert torch.allclose(p, plain[n] + .4*(there - plain[n]), atol=1e-6), n


@pytest.mark.parametrize("kw, message", [
    (dict(md=-1), "md=-1"), (dict(inner_lr=-.1), "inner_lr=-0.1"), (dict(scale=float("nan")), "scale=nan"),
    (dict(statistics="none"), "statistics='none'"), (dict(md_params="phi"), "md_params='phi'")])
def test_wrong_settings(kw, message):
    with pytest.raises(ValueError, match=message): DMGStep(**kw)


def test_batches_without_halves_are_refused():
    with pytest.raises(ValueError, match="do not hold the same identities.*CameraHalves"):
        learner(DMGStep()).strategy.step(learner(DMGStep()), {**meta_batch(), "pid": torch.arange(8)})
    with pytest.raises(ValueError, match="precision='fp16'"):
        learn = learner(DMGStep())
        learn.acc = type("A", (), dict(mixed_precision="fp16", num_processes=1))()
        learn.strategy.before_fit(learn)


def t64(x): return torch.tensor(x, dtype=torch.float64)


def test_meta_discrimination_vector(oracles):
    o = oracles["dmg_meta_discrimination"]
    i, e = o["inputs"], o["expected"]
    q, s = t64(i["f_query_l2"]), t64(i["f_support_l2"])
    yq, ys = torch.tensor(i["y_query"]), torch.tensor(i["y_support"])
    assert meta_discrimination(q, yq, s, ys, i["scale"]).item() == pytest.approx(e["loss"], abs=1e-6)
    for k, want in enumerate(e["per_query"]):
        assert meta_discrimination(q[k:k + 1], yq[k:k + 1], s, ys).item() == pytest.approx(want, abs=1e-6)
    eye, ids = torch.eye(16, dtype=torch.float64), torch.arange(16)
    floor = meta_discrimination(eye, ids, eye, ids).item()
    assert floor == pytest.approx(e["floor_P16_ideal"], abs=1e-6) == pytest.approx(math.log(math.e + 15) - 1, abs=1e-6)
    assert meta_discrimination(eye, ids, eye, ids, scale=30.).item() < 1e-6


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
    got = meta_discrimination(q, torch.tensor(yq), s, torch.tensor(ys), scale)
    assert got.item() == pytest.approx(total/5, abs=1e-9)
    order = torch.randperm(9, generator=g)
    assert torch.allclose(got, meta_discrimination(7*q, torch.tensor(yq), s[order], torch.tensor(ys)[order], scale))


def test_meta_discrimination_errors_and_empty():
    x, y = torch.randn(3, 4, requires_grad=True), torch.tensor([0, 1, 4])
    with pytest.raises(ValueError, match=r"q_pid has identities without support: \[4\]"):
        meta_discrimination(x, y, x[:2], y[:2])
    with pytest.raises(ValueError, match="s_pid has 2 entries for 3 features"): meta_discrimination(x, y, x, y[:2])
    with pytest.raises(ValueError, match="q_pid has 2 entries for 3 features"): meta_discrimination(x, y[:2], x, y)
    with pytest.raises(ValueError, match="of one width"): meta_discrimination(x, y, x[:, :2], y)
    empty = meta_discrimination(x[:0], y[:0], x, y)
    empty.backward()
    assert empty.item() == 0 and (x.grad == 0).all()


PID = torch.tensor([0, 0, 1, 1, 2])


TWICE = dict(
    meta_discrimination=lambda x: meta_discrimination(x[:3], PID[[0, 2, 4]], x, PID, 2.),
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
    meta_discrimination(q, torch.tensor([0, 0, 1, 1]), s, torch.tensor([0, 1, 1, 0])).backward()
    assert q.grad.abs().min() > 0 and s.grad.abs().min() > 0


def test_what_is_split_by_itself_is_named():
    "The column `dataset` where there is one, another column, or all cameras together"
    frame = pd.DataFrame(dict(pid=0, cam=range(8), dataset=["a"]*4 + ["b"]*4, site=[0, 1]*4))
    assert CameraHalves().groups_of(frame).tolist() == ["a"]*4 + ["b"]*4
    assert CameraHalves(group="site").groups_of(frame).tolist() == [0, 1]*4
    assert CameraHalves().groups_of(frame.drop(columns="dataset")) is None
    for group in ("dataset", "site"):
        support = split_cameras(frame.cam, np.random.default_rng(0), CameraHalves(group=group).groups_of(frame))
        assert support.sum() == 4 and set(pd.Series(support).groupby(frame[group]).sum()) == {2}
    with pytest.raises(ValueError, match="group='sites'.*Did you mean 'site'"):
        CameraHalves(group="sites").groups_of(frame)
