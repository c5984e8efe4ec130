"Fuzzy alignment against the test vectors, plain loops over the formulas, and where gradients could break"
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from reid_lab.losses import fuzzy as Z, text as losses

FORMS = ["paper", "released"]


def t64(x): return torch.tensor(x, dtype=torch.float64)
def close(a, b, tol=2e-6):
    assert torch.allclose(torch.as_tensor(a, dtype=torch.float64), t64(b), atol=tol, rtol=0), (a, b)


def cos(a, b):
    "Of two lists of numbers"
    dot = lambda x, y: sum(i*j for i, j in zip(x, y))
    return dot(a, b)/math.sqrt(dot(a, a)*dot(b, b))


def unit(a): return [x/math.sqrt(sum(y*y for y in a)) for x in a]


def naive_kl(S, pid, tau=.02, eps=1e-8):
    "Per-row divergence of one direction, from lists"
    out = []
    for i, row in enumerate(S):
        top = max(row)
        z = sum(math.exp((s - top)/tau) for s in row)
        logp = [(s - top)/tau - math.log(z) for s in row]
        same = [float(pid[i] == p) for p in pid]
        out.append(sum(math.exp(lp)*(lp - math.log(y/sum(same) + eps)) for lp, y in zip(logp, same)))
    return out


def flip(S): return [list(c) for c in zip(*S)]
def naive_sdm(X, Y, pid, tau=.02):
    "Per-sample SDM, both directions"
    S = [[cos(x, y) for y in Y] for x in X]
    return [a + b for a, b in zip(naive_kl(S, pid, tau), naive_kl(flip(S), pid, tau))]


def naive_mu(tokens, anchor, sigma): return [math.exp(-(1 - cos(q, anchor))**2/(2*sigma**2)) for q in tokens]


def naive_released_mu(tokens, anchor, sigma):
    "One sample's tokens in any global feature"
    bell = lambda q, c, s: math.exp(-(1 - q*c)**2/(2*s*s))
    return [sum(bell(*x) for x in zip(unit(q), unit(anchor), sigma))/len(sigma) for q in tokens]


def naive_fta(Qa, Qt, A, T, sa, st_, pid, form, tau=.02):
    "Eq. 9 to 13 with loops, mean over rows"
    B, K = len(Qa), len(Qa[0])
    weigh = lambda mu, X, Y, m, n: sum(mu(m, n, k)*cos(X[m][k], Y[n][k]) for k in range(K))/K
    if form == "paper":
        ma, mt = ([naive_mu(q, c, s) for q, c, s in zip(*x)] for x in ((Qa, A, sa), (Qt, T, st_)))
        S = [[weigh(lambda m, n, k: ma[m][k]*mt[n][k], Qa, Qt, m, n) for n in range(B)] for m in range(B)]
        back = flip(S)
    else:
        ma, mt = ([[naive_released_mu(q, c, s) for c, s in zip(C, W)] for q in Q]
                  for Q, C, W in ((Qa, A, sa), (Qt, T, st_)))
        joint = lambda m, n, k: ma[m][n][k]*mt[m][n][k]
        S, back = ([[weigh(joint, X, Y, m, n) for n in range(B)] for m in range(B)] for X, Y in ((Qa, Qt), (Qt, Qa)))
    return sum(naive_kl(S, pid, tau) + naive_kl(back, pid, tau))/2/B


def draw(seed, B=5, K=3, D=4, form="paper", kind=torch.float64):
    "Tokens, global features, widths and identities"
    g = torch.Generator().manual_seed(seed)
    x = lambda *s: torch.randn(*s, generator=g, dtype=kind)
    sigma = lambda: .2 + torch.rand((B,) if form == "paper" else (B, D), generator=g, dtype=kind)
    return [x(B, K, D), x(B, K, D), x(B, D), x(B, D), sigma(), sigma()], torch.randint(0, 3, (B,), generator=g)


# --- test vectors -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("k", [1, 4])
def test_cda_vector(oracles, k):
    i, want = oracles["cfan_cda"]["inputs"], oracles["cfan_cda"]["expected"][f"k{k}"]
    T, A, G = (t64(i[n]) for n in "TAG")
    how = Z.Alignment(k, i["tau"], i["eps"])
    close(Z.paired_cosine(T, A) - Z.paired_cosine(T, G), want["delta"])
    got = Z.cda_terms(T, A, G, torch.tensor(i["pid"]), alignment=how)
    for name in ("alpha", "direct", "bridge"): close(got[name], want[name])
    close(Z.cda(T, A, G, torch.tensor(i["pid"]), alignment=how), want["loss"])


def test_fta_vector(oracles):
    i, want = oracles["cfan_fta"]["inputs"], oracles["cfan_fta"]["expected"]
    Qa, Qt, A, T, sa, st_ = (t64(i[k]) for k in ("Q_a", "Q_t", "A_c", "T_c", "sigma_a", "sigma_t"))
    pid, how = torch.tensor(i["pid"]), dict(tau=i["tau"], eps=i["eps"])
    ma, mt = Z.token_membership(Qa, A, sa), Z.token_membership(Qt, T, st_)
    close(ma, want["mu_a"])
    close(mt, want["mu_t"])
    for mu, r, s in ((ma, want["r_a"], sa), (mt, want["r_t"], st_)):
        close(mu, torch.exp(-(1 - t64(r))**2/(2*s[:, None]**2)).tolist(), 1e-5)
    close(Z.soft_and(ma, mt), want["mu_joint_at"])
    close(Z.weighted_similarity(Qa, Qt, torch.ones(2, 2, 2))*2, np.sum(want["cos_atk"], -1).tolist(), 3e-6)
    close(Z.weighted_similarity(Qa, Qt, Z.soft_and(ma, mt)), want["sim_a2t"])
    close(Z.fta(Qa, Qt, A, T, sa, st_, pid, **how), want["loss_mean_sum_times_half"])
    close(Z.fta(Qa, Qt, A, T, sa, st_, pid, reduce="sum", **how), want["loss_paper_eq13_half_sum"])


def test_released_membership_is_flat(oracles):
    o = oracles["cfan_released_membership_flatness"]
    D, sigma = o["inputs"]["D"], torch.full((1, o["inputs"]["D"]), o["inputs"]["sigma"], dtype=torch.float64)
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((5, D)))
    got = Z.token_membership(x[None, 1:], x[:1], sigma, "released")
    assert (got - o["expected"]["exp(-1/2)"]).abs().max() < 3e-4
    assert max(map(abs, np.array(o["expected"]["random_token"]) - o["expected"]["exp(-1/2)"])) < 3e-4
    c = torch.full((1, D), D**-.5, dtype=torch.float64)      # every unit vector has sum r = 1: nearly the same value
    want = o["expected"]["token_identical_to_class_token"]
    close(Z.token_membership(c[:, None], c, sigma, "released"), [[want]], 4e-6)


# --- plain loops ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("form", FORMS)
def test_fta_naive(seed, form):
    x, pid = draw(seed, form=form)
    for tau in (.02, .2):
        got, want = Z.fta(*x, pid, tau, membership=form), naive_fta(*(v.tolist() for v in x), pid.tolist(), form, tau)
        assert got.item() == pytest.approx(want, rel=1e-9)
    total = Z.fta(*x, pid, membership=form, reduce="sum").item()
    assert total == pytest.approx(5*Z.fta(*x, pid, membership=form).item())


@pytest.mark.parametrize("form", FORMS)
def test_membership_naive(form):
    (q, _, c, _, s, _), _ = draw(7, form=form)
    fn = naive_mu if form == "paper" else naive_released_mu
    close(Z.token_membership(q, c, s, form), [fn(*x) for x in zip(q.tolist(), c.tolist(), s.tolist())], 1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("has", [None, [True]*5, [False, True, True, False, True], [False]*5, [True] + [False]*4])
def test_cda_naive(seed, has):
    "Also with samples that have no ground image: those are left to the direct loss"
    (_, _, T, A, _, _), pid = draw(seed)
    G = torch.randn(5, 4, generator=torch.Generator().manual_seed(seed + 99), dtype=torch.float64)
    k, own = 3., [True]*5 if has is None else has
    direct = naive_sdm(T.tolist(), A.tolist(), pid.tolist())
    at = [i for i in range(5) if own[i]]
    sub = lambda x: [x.tolist()[i] for i in at]
    legs = [naive_sdm(sub(x), sub(y), sub(pid)) for x, y in ((T, G), (G, A))] if at else [[], []]
    bridge = [a + b for a, b in zip(*legs)]
    alpha = [1/(1 + math.exp(-k*(cos(T[i].tolist(), A[i].tolist()) - cos(T[i].tolist(), G[i].tolist())))) for i in at]
    want = dict(alpha=[1.]*5, bridge=[0.]*5, direct=direct)
    for n, i in enumerate(at): want["alpha"][i], want["bridge"][i] = alpha[n], bridge[n]
    got = Z.cda_terms(T, A, G.masked_fill(~torch.tensor(own)[:, None], torch.nan), pid,
                      None if has is None else torch.tensor(has), Z.Alignment(k))
    for name, v in want.items(): close(got[name], v, 1e-9)
    loss = [a*d + (1 - a)*b for a, d, b in zip(want["alpha"], direct, want["bridge"])]
    close(got["loss"], loss, 1e-9)
    whole = Z.cda(T, A, G, pid, None if has is None else torch.tensor(has), Z.Alignment(k))
    assert whole.item() == pytest.approx(sum(loss)/5)


# --- what must hold ---------------------------------------------------------------------------------------------------

def test_a_bridge_that_is_the_image_itself():
    "G = A: the gate is even, and the detour's second leg stops at the bridge"
    (_, _, T, A, _, _), pid = draw(1)
    got = Z.cda_terms(T, A, A, pid, alignment=Z.Alignment(16.))
    assert torch.equal(got["alpha"], torch.full((5,), .5, dtype=torch.float64))
    close(got["bridge"], (losses.sdm_per_sample(T, A, pid) + losses.sdm_per_sample(A, A, pid)).tolist(), 1e-12)


def test_without_ground_images_cda_is_sdm():
    (_, _, T, A, _, _), pid = draw(2)
    want = losses.sdm(T, A, pid)
    none = torch.zeros(5, dtype=torch.bool)
    nothing = torch.full_like(A, torch.nan)
    for got in (Z.cda(T, A, None, pid), Z.cda(T, A, nothing, pid, none), Z.cda(T, A, None, pid, none),
                Z.cda(T, A, None, pid, alignment=Z.Alignment(alpha=0.))):
        assert torch.equal(got, want)
    got, plain = ([x.clone().requires_grad_() for x in (T, A)] for _ in range(2))
    Z.cda(*got, torch.full_like(A, torch.nan), pid, none).backward()
    losses.sdm(*plain, pid).backward()
    for a, b in zip(got, plain): assert torch.allclose(a.grad, b.grad, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_with_all_memberships_1_fta_is_half_of_sdm_on_the_mean_cosine(seed):
    x, pid = draw(seed)
    wide = torch.full((5,), 1e9, dtype=torch.float64)
    half = losses.sdm(losses.granules(x[0]), losses.granules(x[1]), pid)/2
    assert Z.fta(*x[:4], wide, wide, pid).item() == pytest.approx(half.item(), rel=1e-9)
    sims = losses.granularity_similarity(x[0], x[1])
    assert torch.allclose(Z.weighted_similarity(x[0], x[1], torch.ones(5, 5, 3)), sims, atol=1e-12)


def test_a_fixed_alpha_is_one_of_the_two_losses_or_their_mixture():
    (_, _, T, A, _, _), pid = draw(3)
    G = A.flip(1)
    both = [losses.sdm_per_sample(T, A, pid).mean(), Z.bridged(T, G, A, pid).mean()]
    for alpha, want in ((1., both[0]), (0., both[1]), (.25, .25*both[0] + .75*both[1])):
        assert torch.allclose(Z.cda(T, A, G, pid, alignment=Z.Alignment(alpha=alpha)), want, atol=1e-12)


def test_the_bridge_gives_no_way_and_alpha_can_be_fixed():
    (_, _, T, A, _, _), pid = draw(4)
    G = (A + .3*A.flip(0)).requires_grad_()
    losses.sdm_per_sample(T, G, pid).sum().backward()
    first, G.grad = G.grad.clone(), None
    Z.bridged(T, G, A, pid).sum().backward()
    assert torch.equal(G.grad, first)
    grads = {}
    for stop in (False, True):
        t = T.clone().requires_grad_()
        out = Z.cda_terms(t, A, G, pid, alignment=Z.Alignment(8., detach_alpha=stop))
        out["loss"].mean().backward()
        grads[stop] = t.grad
        assert out["alpha"].requires_grad is not stop
    t = T.clone().requires_grad_()
    alpha = Z.gate(T, A, G, 8.).detach()
    (alpha*losses.sdm_per_sample(t, A, pid) + (1 - alpha)*Z.bridged(t, G, A, pid)).mean().backward()
    assert torch.allclose(grads[True], t.grad, atol=1e-12) and not torch.allclose(grads[False], t.grad, atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_against_finite_differences(form):
    x, pid = draw(5, B=3, K=2, D=3, form=form)
    x = [v.requires_grad_() for v in x]
    assert torch.autograd.gradcheck(lambda *v: Z.fta(*v, pid[:3], .5, membership=form), x, eps=1e-6, atol=1e-5)
    share = lambda t, a, g: Z.cda_terms(t, a, g, pid[:3], alignment=Z.Alignment(4., .5))["alpha"]
    assert torch.autograd.gradcheck(share, x[2:4] + x[2:3])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("level", [-1e4, -88., math.log(1e-3), math.log(1e-6), 0., 88., 1e4])
@pytest.mark.parametrize("low", [False, True])
def test_gradients_are_finite_at_the_bounds_of_sigma(form, level, low):
    "In float32 and in bf16 autocast, with a token that is its global feature and one that is its opposite"
    x, pid = draw(6, form=form, kind=torch.float32)
    x = [v.clone() for v in x[:4]]
    x[0][0, 0], x[0][0, 1], x[0][0, 2] = x[2][0], -x[2][0], 0
    x = [v.requires_grad_() for v in x]
    logs = [torch.full((5,) if form == "paper" else (5, 4), level, requires_grad=True) for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16, enabled=low):
        loss = Z.fta(*x, *(Z.width(v, form) for v in logs), pid, membership=form)
    loss.backward()
    assert loss.dtype == torch.float32 and loss.isfinite()
    assert all(v.grad.isfinite().all() for v in (*x, *logs))
    sigma = Z.width(logs[0], form)
    assert Z.FLOOR[form] <= sigma.min() and sigma.max() <= 1e3


def test_autocast_changes_nothing():
    x, pid = draw(8, B=6, K=4, D=64, kind=torch.float32)
    run = lambda: (Z.fta(*x, pid), Z.cda(x[2], x[3], x[2] + .1*x[3], pid), Z.gate(x[2], x[3], x[2]).sum())
    plain = run()
    with torch.autocast("cpu", torch.bfloat16): mixed = run()
    assert all(torch.equal(a, b) for a, b in zip(plain, mixed))
    half = [v.bfloat16() for v in x]
    assert Z.fta(*half, pid).dtype == torch.float32 == Z.cda(half[2], half[3], half[3], pid).dtype


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), scale=st.floats(1e-6, 1e6), form=st.sampled_from(FORMS))
def test_memberships_are_degrees_whatever_the_scale_of_the_features(seed, scale, form):
    (q, _, c, _, s, _), _ = draw(seed, form=form)
    mu = Z.token_membership(q, c, s, form)
    assert ((mu >= 0) & (mu <= 1)).all()
    assert torch.allclose(Z.token_membership(q*scale, c/scale, s, form), mu, atol=1e-9)
    assert (Z.token_membership(q, c, 2*s, form) >= mu - 1e-12).all()             # wider: everything belongs more
    if form == "paper": close(Z.token_membership(c[:, None], c, s), [[1.]]*5, 1e-9)
    joint = Z.soft_and(mu, mu.flip(0))
    assert (joint <= torch.minimum(mu[:, None], mu.flip(0)[None]) + 1e-12).all()


def test_released_directions_share_the_diagonal_only():
    x, _ = draw(9, form="released")
    a, b = Z.fuzzy_similarities(*x, "released")
    assert torch.allclose(a.diag(), b.diag()) and not torch.allclose(a, b.T, atol=1e-3)
    wide = [torch.full((5, 4), 1e9, dtype=torch.float64)]*2
    a, b = Z.fuzzy_similarities(*x[:4], *wide, "released")
    assert torch.allclose(a, b.T, atol=1e-12)


def test_a_suppressed_token_has_no_say():
    "A token far from its global feature: its direction no longer matters"
    (q, t, c, d, s, u), pid = draw(10)
    q[:, 0] = -c                                                        # opposite: r = -1
    narrow = torch.full((5,), .1, dtype=torch.float64)
    other = t.clone()
    other[:, 0] = torch.randn(5, 4, dtype=torch.float64)
    base, _ = Z.fuzzy_similarities(q, t, c, d, narrow, s)
    new, _ = Z.fuzzy_similarities(q, other, c, d, narrow, s)
    assert torch.allclose(base, new, atol=1e-12)
    wide, _ = Z.fuzzy_similarities(q, other, c, d, 1e9*narrow, s)
    assert not torch.allclose(wide, Z.fuzzy_similarities(q, t, c, d, 1e9*narrow, s)[0], atol=1e-3)


# --- one item, none, wrong ones ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("form", FORMS)
def test_empty_and_single_batches(form):
    for B in (0, 1):
        x = [v[:B].clone().requires_grad_() for v in draw(0, form=form)[0]]
        loss = Z.fta(*x, torch.arange(B), membership=form) + Z.cda(x[2], x[3], x[2]*2, torch.arange(B))
        loss.backward()
        assert abs(loss.item()) < 1e-6 and all(v.grad is not None and v.grad.isfinite().all() for v in x[:4])


def test_one_identity_has_an_even_target():
    x, _ = draw(11)
    one = torch.zeros(5, dtype=torch.long)
    out = Z.fta(*x, one), Z.cda(x[2], x[3], x[3].flip(0), one)
    assert all(v.isfinite() and v >= 0 for v in out)


@pytest.mark.parametrize("call, message", [
    (lambda x: Z.token_membership(*x[:1], x[2], x[4], "papers"), "Did you mean 'paper'"),
    (lambda x: Z.width(x[4], "released_form"), "membership='released_form'"),
    (lambda x: Z.token_membership(x[0], x[2], x[4], "released"), r"sigma \(B,D\), got"),
    (lambda x: Z.token_membership(x[0], x[2][:2], x[4][:2]), r"\(5, 3, 4\), \(2, 4\), \(2,\)"),
    (lambda x: Z.soft_and(x[4], x[4]), r"must be \(M,K\) and \(N,K\), got \(5,\)"),
    (lambda x: Z.weighted_similarity(x[0], x[1], x[0]), r"memberships \(M,N,K\), got"),
    (lambda x: Z.paired_cosine(x[2], x[3][:1]), r"\(5, 4\) and \(1, 4\)"),
    (lambda x: Z.fta(*x, reduce="none"), "reduce='none'"),
    (lambda x: Z.fta(*x, torch.arange(3)), "pid has 3 entries for a batch of 5"),
    (lambda x: Z.cda(x[2], x[3], None, None, torch.ones(5, dtype=torch.bool)),
     "5 bridges for 5 samples and ground=None"),
    (lambda x: Z.cda(x[2], x[3], x[3], None, torch.ones(4, dtype=torch.bool)), r"has is \(4,\)")])
def test_wrong_arguments(call, message):
    with pytest.raises(ValueError, match=message): call(draw(0)[0])


def test_single_settings_of_the_last_release():
    (_, _, T, A, _, _), pid = draw(3)
    given = dict(k=2., tau=.1, eps=1e-6, detach_alpha=True)
    for function in (Z.cda, lambda *x, **how: Z.cda_terms(*x, **how)["loss"]):
        with pytest.warns(DeprecationWarning, match=r"alignment=Alignment\(k"):
            old = function(T, A, A.flip(1), pid, **given)
        assert torch.equal(old, function(T, A, A.flip(1), pid, alignment=Z.Alignment(**given)))
    with pytest.raises(TypeError, match="takes the record Alignment"): Z.cda(T, A, A, pid, None, 4.)
    with pytest.raises(ValueError, match="alpha=2"): Z.Alignment(alpha=2)
