"Losses against test vectors, naive loops and degenerate batches"
import math

import pytest
import torch
import torch.nn.functional as F

from reid_lab.losses import basics as loss_basics, image as image_losses, text as text_losses

TOL = 1e-6


def t64(x): return torch.tensor(x, dtype=torch.float64)


def pair(o, name):
    "Embeddings and identities of a cross-modal entry"
    i = o[name]["inputs"]
    return t64(i["V"]), t64(i["T"]), torch.tensor(i["pid"]) if "pid" in i else None


def close(a, b, tol=TOL):
    assert torch.allclose(torch.as_tensor(a, dtype=torch.float64), t64(b), atol=tol, rtol=0), (a, b)


def naive_cos(a, b): return sum(x*y for x, y in zip(a, b))/math.sqrt(sum(x*x for x in a))/math.sqrt(sum(x*x for x in b))


def naive_logsoftmax(row):
    top = max(row)
    z = top + math.log(sum(math.exp(r - top) for r in row))
    return [r - z for r in row]


@pytest.fixture(params=range(3))
def batch(request):
    "A random batch with repeated identities"
    g = torch.Generator().manual_seed(request.param)
    pid = torch.randint(0, 4, (7,), generator=g)
    return (torch.randn(7, 5, generator=g, dtype=torch.float64, requires_grad=True),
            torch.randn(7, 5, generator=g, dtype=torch.float64, requires_grad=True), pid)


# --- test vectors ---------------------------------------------------------------------------------------------------

def test_cosine(oracles):
    V, T, _ = pair(oracles, "cosine_similarity")
    close(loss_basics.cosine(V, T), oracles["cosine_similarity"]["expected"]["S"])


@pytest.mark.parametrize("name", ["itc_single_positive", "itc_multi_positive"])
def test_itc(oracles, name):
    V, T, pid = pair(oracles, name)
    close(text_losses.itc(V, T, oracles[name]["inputs"]["tau"], pid), oracles[name]["expected"]["loss"])


def test_itm_weights(oracles):
    o = oracles["itm_hard_negative_weights"]
    V, T, pid = pair(oracles, "itm_hard_negative_weights")
    wt, wi = text_losses.itm_weights(V, T, o["inputs"]["tau"], pid)
    e = o["expected"]
    close(wt, e["w_i2t"]); close(wi, e["w_t2i"])
    close(wt/wt.sum(1, keepdim=True), e["p_i2t"]); close(wi/wi.sum(1, keepdim=True), e["p_t2i"])
    at, ai = text_losses.itm_weights(V, T, o["inputs"]["tau"], pid, how="argmax")
    assert text_losses.sample_negatives(at).tolist() == e["argmax_text_for_image"]
    assert text_losses.sample_negatives(ai).tolist() == e["argmax_image_for_text"]


def test_itm_and_mlm(oracles):
    o = oracles["itm_loss"]
    close(text_losses.itm(t64(o["inputs"]["logits"]), torch.tensor(o["inputs"]["labels"])), o["expected"]["loss"])
    o = oracles["mlm_loss"]
    close(text_losses.mlm(t64(o["inputs"]["logits"]), torch.tensor(o["inputs"]["labels"])), o["expected"]["loss"])


@pytest.mark.parametrize("name", ["sdm", "sdm_tau_0.5", "sdm_soft_image_id"])
def test_sdm(oracles, name):
    V, T, pid = pair(oracles, name)
    i, e = oracles[name]["inputs"], oracles[name]["expected"]
    kw = dict(tau=i["tau"], eps=i["eps"])
    if "image_id" in i: kw |= dict(image_id=torch.tensor(i["image_id"]), factor=i["factor"])
    close(text_losses.sdm(V, T, pid, **kw), e["loss"])
    each = text_losses.sdm_per_sample(V, T, pid, **kw)
    if "per_sample_loss" in e: close(each, e["per_sample_loss"])
    if "per_row_i2t" in e: close(each, [a + b for a, b in zip(e["per_row_i2t"], e["per_row_t2i"])], 2e-6)


def test_identity_losses(oracles):
    o = oracles["id_loss"]; i = o["inputs"]
    close(text_losses.instance(t64(i["image_logits"]), t64(i["text_logits"]), torch.tensor(i["labels"])), o["expected"]["loss"])
    o = oracles["label_smoothing"]; i, e = o["inputs"], o["expected"]
    x, y = t64(i["logits"]), torch.tensor(i["labels"])
    close(image_losses.label_smoothing(x, y, i["eps"]), e["eps_over_C"])
    close(image_losses.label_smoothing(x, y, i["eps"], over="others"), e["eps_over_C_minus_1"])
    close(image_losses.label_smoothing(x, y, 0.), e["no_smoothing"])


@pytest.mark.parametrize("name", ["triplet_batch_hard", "triplet_batch_hard_2"])
def test_triplet(oracles, name):
    i, e = oracles[name]["inputs"], oracles[name]["expected"]
    X, pid = t64(i["X"]), torch.tensor(i["pid"])
    close(image_losses.triplet(X, pid, i["margin"]), e["margin_loss"])
    close(image_losses.triplet(X, pid, None), e["soft_margin_loss"])


def test_other_metric_losses(oracles):
    o = oracles["weighted_regularised_triplet"]; X, pid = t64(o["inputs"]["X"]), torch.tensor(o["inputs"]["pid"])
    close(image_losses.weighted_triplet(X, pid), o["expected"]["loss_excluding_self"])
    close(image_losses.weighted_triplet(X, pid, include_self=True), o["expected"]["loss_including_self"])
    o = oracles["center_loss"]; i, e = o["inputs"], o["expected"]
    close(image_losses.center(t64(i["X"]), torch.tensor(i["pid"]), t64(i["centers"])), e["sum_over_batch_div_B"])
    close(image_losses.center(t64(i["X"]), torch.tensor(i["pid"]), t64(i["centers"]), "half_sum"), e["half_sum"])


@pytest.mark.parametrize("name", ["circle_loss_pairwise", "circle_loss_pairwise_gamma8"])
def test_circle(oracles, name):
    i, e = oracles[name]["inputs"], oracles[name]["expected"]
    close(image_losses.circle(t64(i["F_l2"]), torch.tensor(i["pid"]), i["m"], i["gamma"]), e["loss"])


# --- naive loops ----------------------------------------------------------------------------------------------------

def naive_itc_direction(A, B, pid, tau, extra=(), extra_pid=()):
    total = 0
    for i, a in enumerate(A):
        keys = [(b, pid[j] == pid[i], True) for j, b in enumerate(B)]
        keys += [(b, False, p != pid[i]) for b, p in zip(extra, extra_pid)]
        keys = [k for k in keys if k[2]]
        logp = naive_logsoftmax([naive_cos(a, b)/tau for b, _, _ in keys])
        right = [lp for lp, (_, y, _) in zip(logp, keys) if y]
        total -= sum(right)/len(right)
    return total/len(A)


def test_itc_naive(batch):
    img, txt, pid = batch
    ids = pid.tolist()
    want = (naive_itc_direction(img.tolist(), txt.tolist(), ids, .07)
            + naive_itc_direction(txt.tolist(), img.tolist(), ids, .07))/2
    close(text_losses.itc(img, txt, .07, pid), want)
    each = list(range(7))
    want = (naive_itc_direction(img.tolist(), txt.tolist(), each, .1)
            + naive_itc_direction(txt.tolist(), img.tolist(), each, .1))/2
    close(text_losses.itc(img, txt, .1), want)


def test_itc_with_memory_naive(batch):
    img, txt, pid = batch
    mi, mt = (img.detach()[:3] + .1).requires_grad_(), (txt.detach()[:3] - .1).requires_grad_()
    mp = torch.tensor([pid[0].item(), 8, 9])
    got = text_losses.itc(img, txt, .07, pid, neg_img=mi, neg_txt=mt, neg_pid=mp)
    ids = pid.tolist()
    want = (naive_itc_direction(img.tolist(), txt.tolist(), ids, .07, mt.tolist(), mp.tolist())
            + naive_itc_direction(txt.tolist(), img.tolist(), ids, .07, mi.tolist(), mp.tolist()))/2
    close(got, want)
    got.backward()
    assert mi.grad is None and mt.grad is None and img.grad.isfinite().all()
    close(text_losses.itc(img, txt, .07, pid, neg_img=mi[:0], neg_txt=mt[:0], neg_pid=mp[:0]), text_losses.itc(img, txt, .07, pid).item())


def test_itc_gradient_reaches_the_temperature(batch):
    img, txt, pid = batch
    tau = torch.tensor(.07, dtype=torch.float64, requires_grad=True)
    text_losses.itc(img, txt, tau, pid).backward()
    assert tau.grad.isfinite() and tau.grad != 0


def test_sdm_naive(batch):
    img, txt, pid = batch
    ids = pid.tolist()

    def kl(A, B, i):
        logp = naive_logsoftmax([naive_cos(A[i], b)/.1 for b in B])
        n = sum(p == ids[i] for p in ids)
        return sum(math.exp(lp)*(lp - math.log((ids[j] == ids[i])/n + 1e-8)) for j, lp in enumerate(logp))
    a, b = img.tolist(), txt.tolist()
    want = [kl(a, b, i) + kl(b, a, i) for i in range(7)]
    close(text_losses.sdm_per_sample(img, txt, pid, tau=.1), want)
    close(text_losses.sdm(img, txt, pid, tau=.1), sum(want)/7)


def test_sdm_is_nearly_zero_at_its_target_and_positive_elsewhere():
    eye, pid = torch.eye(4, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    assert abs(text_losses.sdm(eye, eye, pid)) < 1e-6
    assert text_losses.sdm(eye, eye.roll(1, 0), pid) > 10


def naive_metric(X, ids):
    d = [[math.sqrt(max(sum((p - q)**2 for p, q in zip(a, b)), 1e-12)) for b in X] for a in X]
    rows = []
    for i in range(len(X)):
        pos = [d[i][j] for j in range(len(X)) if ids[j] == ids[i] and j != i]
        neg = [d[i][j] for j in range(len(X)) if ids[j] != ids[i]]
        rows.append((pos, neg))
    return rows


def test_metric_losses_naive(batch):
    X, _, pid = batch
    rows = naive_metric(X.tolist(), pid.tolist())
    gaps = [max(pos + [1e-6]) - min(neg) for pos, neg in rows if neg]
    close(image_losses.triplet(X, pid, .3), sum(max(0, g + .3) for g in gaps)/len(gaps), 1e-5)
    close(image_losses.triplet(X, pid, None), sum(math.log1p(math.exp(g)) for g in gaps)/len(gaps), 1e-5)

    def mean(d, sign):
        w = [math.exp(sign*x) for x in d]
        return sum(a*b for a, b in zip(w, d))/sum(w)
    terms = [math.log1p(math.exp(mean(pos, 1) - mean(neg, -1))) for pos, neg in rows if pos and neg]
    close(image_losses.weighted_triplet(X, pid), sum(terms)/len(terms))


def test_circle_naive(batch):
    X, _, pid = batch
    x, ids, m, g = X.tolist(), pid.tolist(), .25, 8.
    terms = []
    for i in range(7):
        p = [naive_cos(x[i], x[j]) for j in range(7) if ids[j] == ids[i] and j != i]
        n = [naive_cos(x[i], x[j]) for j in range(7) if ids[j] != ids[i]]
        if not p or not n: continue
        near = sum(math.exp(g*max(0, s + m)*(s - m)) for s in n)
        terms.append(math.log1p(near*sum(math.exp(-g*max(0, 1 + m - s)*(s - 1 + m)) for s in p)))
    close(image_losses.circle(X, pid, m, g), sum(terms)/len(terms))


def test_circle_weights_are_constants_of_the_gradient():
    X = t64([[1, .1], [.9, .3], [.2, 1], [.6, .8]]).requires_grad_()
    pid, g, m = torch.tensor([0, 0, 1, 1]), 8., .25
    got, = torch.autograd.grad(image_losses.circle(X, pid, m, g), X)
    s = loss_basics.cosine(X, X); w = s.detach()
    pos = (pid[:, None] == pid) & ~torch.eye(4, dtype=torch.bool)
    neg = pid[:, None] != pid
    rows = [F.softplus(torch.logsumexp((g*(w + m).relu()*(s - m))[i][neg[i]], 0)
                       + torch.logsumexp((-g*(1 + m - w).relu()*(s - 1 + m))[i][pos[i]], 0)) for i in range(4)]
    want, = torch.autograd.grad(sum(rows)/4, X)
    close(got, want.tolist())


def test_center_and_smoothing_naive(batch):
    X, C, pid = batch
    d2 = [sum((a - b)**2 for a, b in zip(x, C.tolist()[p])) for x, p in zip(X.tolist(), pid.tolist())]
    close(image_losses.center(X, pid, C), sum(d2)/7); close(image_losses.center(X, pid, C, "half_sum"), sum(d2)/2)
    for over, n in (("all", 5), ("others", 4)):
        total = 0
        for row, y in zip(X.tolist(), pid.tolist()):
            lp = naive_logsoftmax(row)
            total -= sum(((.9 if c == y else 0) + (.1/n if over == "all" or c != y else 0))*lp[c] for c in range(5))
        close(image_losses.label_smoothing(X, pid, .1, over), total/7)
    close(image_losses.label_smoothing(X, pid, .1), F.cross_entropy(X, pid, label_smoothing=.1).item())


# --- hard pairs and granules (CFAM) -----------------------------------------------------------------------------------

def test_hardest_are_the_argmax_of_the_vector(oracles):
    o = oracles["itm_hard_negative_weights"]
    V, T, pid = pair(oracles, "itm_hard_negative_weights")
    i, t, match = text_losses.hard_pairs(loss_basics.cosine(V, T), pid)
    assert i[:4].tolist() == t[:4].tolist() == [0, 1, 2, 3] and match.tolist() == [True]*4 + [False]*8
    assert t[4:8].tolist() == o["expected"]["argmax_text_for_image"] and i[4:8].tolist() == [0, 1, 2, 3]
    assert i[8:].tolist() == o["expected"]["argmax_image_for_text"] and t[8:].tolist() == [0, 1, 2, 3]


def naive_hard(S, ids):
    "Pairs one by one, (image, caption, match)"
    n = range(len(ids))
    pairs = [(i, i, True) for i in n]
    for row, flip in ((S, False), ([[S[i][j] for i in n] for j in n], True)):
        for i in n:
            others = [j for j in n if ids[j] != ids[i]]
            if others:
                j = max(others, key=lambda j: row[i][j])
                pairs.append((j, i, False) if flip else (i, j, False))
    return pairs


def test_hard_pairs_naive(batch):
    img, txt, pid = batch
    S = loss_basics.cosine(img, txt)
    for ids in (pid, torch.tensor([1]*6 + [2]), torch.ones(7, dtype=torch.long), torch.arange(7)):
        got = [x.tolist() for x in text_losses.hard_pairs(S, ids)]
        assert list(zip(*got)) == naive_hard(S.tolist(), ids.tolist())
    assert [x.tolist() for x in text_losses.hard_pairs(S)] == [x.tolist() for x in text_losses.hard_pairs(S, torch.arange(7))]
    assert not any(x.requires_grad for x in text_losses.hard_pairs(S, pid))
    assert [len(x) for x in text_losses.hard_pairs(S[:0, :0], pid[:0])] == [0, 0, 0]
    with pytest.raises(ValueError, match="must be .B,B."): text_losses.hard_pairs(S[:3], pid[:3])
    with pytest.raises(ValueError, match="pid has 6 entries"): text_losses.hard_pairs(S, pid[:6])


def test_the_hardest_is_found_where_weights_of_the_softmax_are_equal():
    "Similarities far below the positive: 1e-5 hides their differences, in float32, from the weights"
    S = torch.tensor([[1., -.9, -.8]])
    same = torch.tensor([[True, False, False]])
    w = (F.softmax(S/.02, 1) + 1e-5).masked_fill(same, 0)
    assert w[0, 1] == w[0, 2] and image_losses.hardest(S, same).tolist() == [2]


def test_pair_losses_naive():
    g = torch.Generator().manual_seed(0)
    logits, scores = (torch.randn(*n, generator=g, dtype=torch.float64) for n in ((6,), (6, 4)))
    match, label = torch.tensor([True, True, False, False, False, True]), torch.tensor([0, 2, 1, 0, 2, 1])
    p = [1/(1 + math.exp(-x)) for x in logits.tolist()]
    close(text_losses.pair_match(logits, match), -sum(math.log(q if y else 1 - q) for q, y in zip(p, match.tolist()))/6)
    each = [-naive_logsoftmax(row)[c if y else 3] for row, c, y in zip(scores.tolist(), label.tolist(), match.tolist())]
    close(text_losses.pair_identity(scores, label, match), sum(each)/6)
    assert text_losses.pair_match(torch.tensor([60., -60.]), torch.tensor([False, True])) == 60    # from logits: no infinity
    for bad in (label + 1, label - 1):
        with pytest.raises(ValueError, match="3 identities from 0"): text_losses.pair_identity(scores, bad, match)
    empty = scores[:0].clone().requires_grad_()
    loss = text_losses.pair_identity(empty, label[:0], match[:0]) + text_losses.pair_match(empty[:, 0], match[:0])
    loss.backward()
    assert loss == 0 and empty.grad.shape == (0, 4)


def test_granularity_similarity_naive():
    g = torch.Generator().manual_seed(0)
    V, W = (torch.randn(n, 3, 5, generator=g, dtype=torch.float64, requires_grad=True) for n in (4, 6))
    want = [[sum(naive_cos(v[k], w[k]) for k in range(3))/3 for w in W.tolist()] for v in V.tolist()]
    close(text_losses.granularity_similarity(V, W), want)
    close(loss_basics.cosine(text_losses.granules(V), text_losses.granules(W)), want)
    close(text_losses.granularity_similarity(3*V, .1*W), want)                     # the scale of no granule matters
    text_losses.sdm(text_losses.granules(V), text_losses.granules(W[:4]), torch.tensor([0, 0, 1, 2])).backward()
    assert V.grad.isfinite().all() and W.grad[4:].abs().sum() == 0
    by_hand = torch.tensor([[[1., 0], [0, 2]]]), torch.tensor([[[3., 0], [1, 0]]])
    assert text_losses.granularity_similarity(*by_hand).item() == pytest.approx(.5)
    for bad in (W[:, :2], W[..., :4], W[0]):
        with pytest.raises(ValueError, match="need .B,K,D."): text_losses.granularity_similarity(V, bad)


def test_granules_keep_their_precision_under_autocast():
    x = torch.randn(3, 2, 8)
    with torch.autocast("cpu", torch.bfloat16): assert text_losses.granules(x.bfloat16()).dtype == torch.float32


# --- sampling -------------------------------------------------------------------------------------------------------

def test_top_variant_drops_likely_positives_and_keeps_the_heaviest():
    img = torch.eye(4, dtype=torch.float64)
    txt = img.clone(); txt[1] = t64([.99, .1, 0, 0])             # caption 1 is all but a positive of image 0
    txt[2], txt[3] = t64([.5, 0, .5, 0]), t64([.3, 0, 0, .7])
    w, _ = text_losses.itm_weights(img, txt, .07, how="top", top=1)
    assert w[0].nonzero()[:, 0].tolist() == [2]
    w, _ = text_losses.itm_weights(img, txt, .07, how="top", drop_cos=2., top=1)
    assert w[0].nonzero()[:, 0].tolist() == [1]
    same = torch.ones(3, 2, dtype=torch.float64)                 # everything at cosine 1: keep all rather than none
    assert (text_losses.itm_weights(same, same, how="top")[0] > 0).sum(1).tolist() == [2, 2, 2]


def naive_top(sim_row, same_row, tau, drop_cos, top, eps=1e-5):
    "Which candidates of one row remain, one by one"
    p = [math.exp(x) for x in naive_logsoftmax([s/tau for s in sim_row])]
    left = [j for j, y in enumerate(same_row) if not y]
    kept = [j for j in left if drop_cos is None or sim_row[j] < drop_cos] or left
    kept = sorted(kept, key=lambda j: -p[j])[:top]
    return [p[j] + eps if j in kept else 0. for j in range(len(p))]


@pytest.mark.parametrize("drop_cos, top", [(.9, 12), (.5, 2), (.2, 3), (None, 2), (.3, None), (None, None), (-.99, 1)])
def test_top_variant_naive(batch, drop_cos, top):
    img, txt, pid = batch
    same = (pid[:, None] == pid[None]).tolist()
    for w, a, b in zip(text_losses.itm_weights(img, txt, .07, pid, "top", drop_cos=drop_cos, top=top), (img, txt), (txt, img)):
        for i, row in enumerate(w.tolist()):
            sim = [naive_cos(a.tolist()[i], y) for y in b.tolist()]
            want = naive_top(sim, same[i], .07, drop_cos, top)
            assert row == pytest.approx(want, abs=1e-6)
    if drop_cos is top is None:
        plain = text_losses.itm_weights(img, txt, .07, pid)
        assert all(torch.equal(x, y) for x, y in zip(plain, text_losses.itm_weights(img, txt, .07, pid, "top", drop_cos=None,
                                                                         top=None)))


@pytest.mark.parametrize("kw, message", [(dict(top=0), "top=0"), (dict(drop_cos=-1.), "drop_cos=-1.0"),
                                         (dict(drop_cos=math.nan), "drop_cos=nan"), (dict(how="hard"), "how='hard'")])
def test_bad_rules_of_negatives(kw, message):
    with pytest.raises(ValueError, match=message): text_losses.itm_weights(torch.eye(3), torch.eye(3), **{"how": "top", **kw})


def test_memory_itc_naive(batch):
    img, txt, _ = batch
    mem, lam = torch.randn(7, 5, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    unit = lambda v: [x/math.sqrt(sum(y*y for y in v)) for x in v]
    own, old = [unit(t) for t in txt.tolist()], [unit(m) for m in mem.tolist()]
    keys = own + [[w*x + (1 - w)*y for x, y in zip(t, m)] for t, m, w in zip(own, old, lam.tolist())]
    want = -sum(naive_logsoftmax([naive_cos(v, k)/.07 for k in keys])[i] for i, v in enumerate(img.tolist()))/7
    loss = text_losses.memory_itc(img, txt, mem, lam)
    close(loss, want)
    loss.backward()
    assert img.grad.abs().sum() > 0 and txt.grad is None


@pytest.mark.parametrize("top", [1, 3, 64])
def test_hard_keys_are_among_the_most_similar_of_others(batch, top):
    img, _, pid = batch
    keys, who = torch.randn(9, 5, dtype=torch.float64), torch.arange(9) % 4
    same = pid[:, None] == who[None]
    drawn = torch.stack([text_losses.hard_keys(img, keys, same, top, torch.Generator().manual_seed(s)) for s in range(40)])
    for i in range(7):
        others = [j for j in range(9) if not same[i, j]]
        best = sorted(range(9), key=lambda j: -(naive_cos(img.tolist()[i], keys.tolist()[j]) if j in others else -9))
        assert set(drawn[:, i].tolist()) <= set(best[:min(top, len(others))])
        if top == 3: assert len(set(drawn[:, i].tolist())) == min(3, len(others))
    assert 0 <= text_losses.hard_keys(img, keys, torch.ones(7, 9, dtype=torch.bool), top).min()   # nobody else: any key
    with pytest.raises(ValueError, match="keys is empty"): text_losses.hard_keys(img, keys[:0], same[:, :0])


def test_memory_candidates_are_drawn_but_never_of_the_same_identity(batch):
    img, txt, pid = batch
    mem, mp = torch.randn(3, 5, dtype=torch.float64), torch.tensor([pid[0].item(), 8, 9])
    wt, wi = text_losses.itm_weights(img, txt, .07, pid, neg_img=mem, neg_txt=mem, neg_pid=mp)
    assert wt.shape == wi.shape == (7, 10)
    for w in (wt, wi):
        everyone = torch.cat([pid, mp])
        assert (w[pid[:, None] == everyone] == 0).all() and (w[pid[:, None] != everyone] > 0).all()
    assert not wt.requires_grad


def test_sampling_is_repeatable_and_follows_the_weights():
    w = t64([[0, 1, 3], [2, 0, 0], [0, 0, 0]])
    draw = lambda: text_losses.sample_negatives(w, torch.Generator().manual_seed(5))
    assert torch.equal(draw(), draw())
    g = torch.Generator().manual_seed(1)
    d = torch.stack([text_losses.sample_negatives(w, g) for _ in range(4000)])
    assert set(d[:, 1].tolist()) == {0} and set(d[:, 2].tolist()) == {-1} and set(d[:, 0].tolist()) == {1, 2}
    assert abs((d[:, 0] == 2).double().mean() - .75) < .03


# --- degenerate batches and gradients -------------------------------------------------------------------------------

CROSS = {"itc": lambda a, b, p: text_losses.itc(a, b, pid=p), "sdm": lambda a, b, p: text_losses.sdm(a, b, p)}
SINGLE = {"triplet": image_losses.triplet, "soft": lambda x, p: image_losses.triplet(x, p, None), "weighted": image_losses.weighted_triplet,
          "weighted_self": lambda x, p: image_losses.weighted_triplet(x, p, True), "circle": image_losses.circle}


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("name", CROSS)
def test_cross_modal_degenerate(name, n):
    img = torch.randn(n, 3, requires_grad=True)
    loss = CROSS[name](img, torch.randn(n, 3), torch.zeros(n, dtype=torch.long))     # one identity only
    loss.backward()
    assert loss.isfinite() and img.grad.isfinite().all()
    if n < 2: assert abs(loss.item()) < 1e-6


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("name", SINGLE)
def test_metric_losses_without_negatives_cost_nothing(name, n):
    x = torch.randn(n, 3, requires_grad=True)
    loss = SINGLE[name](x, torch.zeros(n, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0 and x.grad.isfinite().all()


@pytest.mark.parametrize("name", ["weighted", "circle"])
def test_anchors_without_positives_are_left_out(name):
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert SINGLE[name](x, torch.arange(5)).item() == 0
    loss = SINGLE[name](x, torch.tensor([0, 0, 1, 2, 3]))
    loss.backward()
    assert loss > 0 and x.grad.isfinite().all()


@pytest.mark.parametrize("name", SINGLE)
def test_coincident_points_keep_finite_gradients(name):
    x = torch.ones(4, 3, requires_grad=True)
    SINGLE[name](x, torch.tensor([0, 0, 1, 1])).backward()
    assert x.grad.isfinite().all()


def test_gradients_agree_with_finite_differences(batch):
    img, txt, pid = batch
    for f in CROSS.values(): assert torch.autograd.gradcheck(lambda a, b: f(a, b, pid), (img, txt), atol=1e-4)
    for name in ("soft", "weighted", "weighted_self"):
        assert torch.autograd.gradcheck(lambda a: SINGLE[name](a, pid), (img,), atol=1e-4)
    x, _, pid = batch
    assert torch.autograd.gradgradcheck(lambda a: image_losses.triplet(a, pid, None), (x,), atol=1e-4)


def test_empty_heads_cost_nothing():
    x = torch.randn(0, 2, requires_grad=True)
    for loss in (text_losses.itm(x, torch.zeros(0)), text_losses.instance(x, x, torch.zeros(0, dtype=torch.long)),
                 image_losses.label_smoothing(x, torch.zeros(0, dtype=torch.long)),
                 image_losses.center(x, torch.zeros(0, dtype=torch.long), torch.ones(3, 2))):
        loss.backward()
        assert loss.item() == 0
    w = torch.randn(2, 3, 4, requires_grad=True)
    loss = text_losses.mlm(w, torch.full((2, 3), -100)); loss.backward()
    assert loss.item() == 0 and (w.grad == 0).all()


def test_mixed_precision_does_not_round_the_cosines():
    a, b = torch.randn(16, 64), torch.randn(16, 64)
    with torch.autocast("cpu", torch.bfloat16): low = text_losses.sdm(a, b)
    assert abs(low - text_losses.sdm(a, b)) < 1e-4


def test_errors_name_the_argument():
    a = torch.randn(4, 3)
    with pytest.raises(ValueError, match="pair up row by row, got 4 and 3"): text_losses.itc(a, a[:3])
    with pytest.raises(ValueError, match="pid has 2 entries for a batch of 4"): text_losses.sdm(a, a, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="how='hardest' is not known"): text_losses.itm_weights(a, a, how="hardest")
    with pytest.raises(ValueError, match="scale='half' is not known"):
        image_losses.center(a, torch.zeros(4, dtype=torch.long), a, scale="half")
