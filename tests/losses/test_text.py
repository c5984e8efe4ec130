"Losses of pairs against test vectors, naive loops and degenerate batches"
import math

import pytest
import torch
import torch.nn.functional as F
from helpers.losses import assert_close, naive_cos, naive_logsoftmax, t64

from reid_lab.losses.basics import cosine
from reid_lab.losses.text import (
    FurtherKeys,
    HardRule,
    granularity_similarity,
    granules,
    hard_keys,
    hard_pairs,
    hardest,
    instance,
    itc,
    itm,
    itm_weights,
    memory_itc,
    mlm,
    pair_identity,
    pair_match,
    sample_negatives,
    sdm,
    sdm_per_sample,
)


def pair(o, name):
    "Embeddings and identities of a cross-modal entry"
    i = o[name]["inputs"]
    return t64(i["V"]), t64(i["T"]), torch.tensor(i["pid"]) if "pid" in i else None


@pytest.mark.parametrize("name", ["itc_single_positive", "itc_multi_positive"])
def test_itc(oracles, name):
    V, T, pid = pair(oracles, name)
    assert_close(itc(V, T, oracles[name]["inputs"]["tau"], pid), oracles[name]["expected"]["loss"])


def test_itm_weights(oracles):
    o = oracles["itm_hard_negative_weights"]
    V, T, pid = pair(oracles, "itm_hard_negative_weights")
    wt, wi = itm_weights(V, T, o["inputs"]["tau"], pid)
    e = o["expected"]
    assert_close(wt, e["w_i2t"])
    assert_close(wi, e["w_t2i"])
    assert_close(wt/wt.sum(1, keepdim=True), e["p_i2t"])
    assert_close(wi/wi.sum(1, keepdim=True), e["p_t2i"])
    at, ai = itm_weights(V, T, o["inputs"]["tau"], pid, HardRule("argmax"))
    assert sample_negatives(at).tolist() == e["argmax_text_for_image"]
    assert sample_negatives(ai).tolist() == e["argmax_image_for_text"]


def test_itm_and_mlm(oracles):
    o = oracles["itm_loss"]
    assert_close(itm(t64(o["inputs"]["logits"]), torch.tensor(o["inputs"]["labels"])), o["expected"]["loss"])
    o = oracles["mlm_loss"]
    assert_close(mlm(t64(o["inputs"]["logits"]), torch.tensor(o["inputs"]["labels"])), o["expected"]["loss"])


@pytest.mark.parametrize("name", ["sdm", "sdm_tau_0.5", "sdm_soft_image_id"])
def test_sdm(oracles, name):
    V, T, pid = pair(oracles, name)
    i, e = oracles[name]["inputs"], oracles[name]["expected"]
    kw = dict(tau=i["tau"], eps=i["eps"])
    if "image_id" in i: kw |= dict(image_id=torch.tensor(i["image_id"]), factor=i["factor"])
    assert_close(sdm(V, T, pid, **kw), e["loss"])
    each = sdm_per_sample(V, T, pid, **kw)
    if "per_sample_loss" in e: assert_close(each, e["per_sample_loss"])
    if "per_row_i2t" in e: assert_close(each, [a + b for a, b in zip(e["per_row_i2t"], e["per_row_t2i"])], 2e-6)


def test_identity_loss(oracles):
    i = oracles["id_loss"]["inputs"]
    loss = instance(t64(i["image_logits"]), t64(i["text_logits"]), torch.tensor(i["labels"]))
    assert_close(loss, oracles["id_loss"]["expected"]["loss"])


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
    assert_close(itc(img, txt, .07, pid), want)
    each = list(range(7))
    want = (naive_itc_direction(img.tolist(), txt.tolist(), each, .1)
            + naive_itc_direction(txt.tolist(), img.tolist(), each, .1))/2
    assert_close(itc(img, txt, .1), want)


def test_itc_with_memory_naive(batch):
    img, txt, pid = batch
    mi, mt = (img.detach()[:3] + .1).requires_grad_(), (txt.detach()[:3] - .1).requires_grad_()
    mp = torch.tensor([pid[0].item(), 8, 9])
    got = itc(img, txt, .07, pid, FurtherKeys(mi, mt, mp))
    ids = pid.tolist()
    want = (naive_itc_direction(img.tolist(), txt.tolist(), ids, .07, mt.tolist(), mp.tolist())
            + naive_itc_direction(txt.tolist(), img.tolist(), ids, .07, mi.tolist(), mp.tolist()))/2
    assert_close(got, want)
    got.backward()
    assert mi.grad is None and mt.grad is None and img.grad.isfinite().all()
    without = itc(img, txt, .07, pid, FurtherKeys(mi[:0], mt[:0], mp[:0]))
    assert_close(without, itc(img, txt, .07, pid).item())


def test_itc_gradient_reaches_the_temperature(batch):
    img, txt, pid = batch
    tau = torch.tensor(.07, dtype=torch.float64, requires_grad=True)
    itc(img, txt, tau, pid).backward()
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
    assert_close(sdm_per_sample(img, txt, pid, tau=.1), want)
    assert_close(sdm(img, txt, pid, tau=.1), sum(want)/7)


def test_sdm_is_nearly_zero_at_its_target_and_positive_elsewhere():
    eye, pid = torch.eye(4, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    assert abs(sdm(eye, eye, pid)) < 1e-6
    assert sdm(eye, eye.roll(1, 0), pid) > 10


# --- hard pairs and granules (CFAM) -----------------------------------------------------------------------------------

def test_hardest_are_the_argmax_of_the_vector(oracles):
    o = oracles["itm_hard_negative_weights"]
    V, T, pid = pair(oracles, "itm_hard_negative_weights")
    i, t, match = hard_pairs(cosine(V, T), pid)
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
    S = cosine(img, txt)
    for ids in (pid, torch.tensor([1]*6 + [2]), torch.ones(7, dtype=torch.long), torch.arange(7)):
        got = [x.tolist() for x in hard_pairs(S, ids)]
        assert list(zip(*got)) == naive_hard(S.tolist(), ids.tolist())
    assert [x.tolist() for x in hard_pairs(S)] == [x.tolist() for x in hard_pairs(S, torch.arange(7))]
    assert not any(x.requires_grad for x in hard_pairs(S, pid))
    assert [len(x) for x in hard_pairs(S[:0, :0], pid[:0])] == [0, 0, 0]
    with pytest.raises(ValueError, match="must be .B,B."): hard_pairs(S[:3], pid[:3])
    with pytest.raises(ValueError, match="pid has 6 entries"): hard_pairs(S, pid[:6])


def test_the_hardest_is_found_where_weights_of_the_softmax_are_equal():
    "Similarities far below the positive: 1e-5 hides their differences, in float32, from the weights"
    S = torch.tensor([[1., -.9, -.8]])
    same = torch.tensor([[True, False, False]])
    w = (F.softmax(S/.02, 1) + 1e-5).masked_fill(same, 0)
    assert w[0, 1] == w[0, 2] and hardest(S, same).tolist() == [2]


def test_pair_losses_naive():
    g = torch.Generator().manual_seed(0)
    logits, scores = (torch.randn(*n, generator=g, dtype=torch.float64) for n in ((6,), (6, 4)))
    match, label = torch.tensor([True, True, False, False, False, True]), torch.tensor([0, 2, 1, 0, 2, 1])
    p = [1/(1 + math.exp(-x)) for x in logits.tolist()]
    assert_close(pair_match(logits, match), -sum(math.log(q if y else 1 - q) for q, y in zip(p, match.tolist()))/6)
    each = [-naive_logsoftmax(row)[c if y else 3] for row, c, y in zip(scores.tolist(), label.tolist(), match.tolist())]
    assert_close(pair_identity(scores, label, match), sum(each)/6)
    assert pair_match(torch.tensor([60., -60.]), torch.tensor([False, True])) == 60    # from logits: no infinity
    for bad in (label + 1, label - 1):
        with pytest.raises(ValueError, match="3 identities from 0"): pair_identity(scores, bad, match)
    empty = scores[:0].clone().requires_grad_()
    loss = pair_identity(empty, label[:0], match[:0]) + pair_match(empty[:, 0], match[:0])
    loss.backward()
    assert loss == 0 and empty.grad.shape == (0, 4)


def test_granularity_similarity_naive():
    g = torch.Generator().manual_seed(0)
    V, W = (torch.randn(n, 3, 5, generator=g, dtype=torch.float64, requires_grad=True) for n in (4, 6))
    want = [[sum(naive_cos(v[k], w[k]) for k in range(3))/3 for w in W.tolist()] for v in V.tolist()]
    assert_close(granularity_similarity(V, W), want)
    assert_close(cosine(granules(V), granules(W)), want)
    assert_close(granularity_similarity(3*V, .1*W), want)                     # the scale of no granule matters
    sdm(granules(V), granules(W[:4]), torch.tensor([0, 0, 1, 2])).backward()
    assert V.grad.isfinite().all() and W.grad[4:].abs().sum() == 0
    by_hand = torch.tensor([[[1., 0], [0, 2]]]), torch.tensor([[[3., 0], [1, 0]]])
    assert granularity_similarity(*by_hand).item() == pytest.approx(.5)
    for bad in (W[:, :2], W[..., :4], W[0]):
        with pytest.raises(ValueError, match="need .B,K,D."): granularity_similarity(V, bad)


def test_granules_keep_their_precision_under_autocast():
    x = torch.randn(3, 2, 8)
    with torch.autocast("cpu", torch.bfloat16): assert granules(x.bfloat16()).dtype == torch.float32


# --- sampling -------------------------------------------------------------------------------------------------------

def test_top_variant_drops_likely_positives_and_keeps_the_heaviest():
    img = torch.eye(4, dtype=torch.float64)
    txt = img.clone()
    txt[1] = t64([.99, .1, 0, 0])             # caption 1 is all but a positive of image 0
    txt[2], txt[3] = t64([.5, 0, .5, 0]), t64([.3, 0, 0, .7])
    w, _ = itm_weights(img, txt, .07, rule=HardRule("top", top=1))
    assert w[0].nonzero()[:, 0].tolist() == [2]
    w, _ = itm_weights(img, txt, .07, rule=HardRule("top", 2., 1))
    assert w[0].nonzero()[:, 0].tolist() == [1]
    same = torch.ones(3, 2, dtype=torch.float64)                 # everything at cosine 1: keep all rather than none
    assert (itm_weights(same, same, rule=HardRule("top"))[0] > 0).sum(1).tolist() == [2, 2, 2]


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
    for w, a, b in zip(itm_weights(img, txt, .07, pid, HardRule("top", drop_cos, top)), (img, txt), (txt, img)):
        for i, row in enumerate(w.tolist()):
            sim = [naive_cos(a.tolist()[i], y) for y in b.tolist()]
            want = naive_top(sim, same[i], .07, drop_cos, top)
            assert row == pytest.approx(want, abs=1e-6)
    if drop_cos is top is None:
        plain = itm_weights(img, txt, .07, pid)
        every = itm_weights(img, txt, .07, pid, HardRule("top", None, None))
        assert all(torch.equal(x, y) for x, y in zip(plain, every))


@pytest.mark.parametrize("kw, message", [(dict(top=0), "top=0"), (dict(drop_cos=-1.), "drop_cos=-1.0"),
                                         (dict(drop_cos=math.nan), "drop_cos=nan"), (dict(how="hard"), "how='hard'")])
def test_bad_rules_of_negatives(kw, message):
    with pytest.raises(ValueError, match=message): HardRule(**{"how": "top", **kw})


def test_parameters_of_the_last_release_are_taken_with_a_warning(batch):
    img, txt, pid = batch
    mem, mp = torch.randn(3, 5, dtype=torch.float64), torch.tensor([pid[0].item(), 8, 9])
    with pytest.warns(DeprecationWarning, match=r"itc: .*further=FurtherKeys\(") as seen:
        old = itc(img, txt, .07, pid, neg_img=mem, neg_txt=mem, neg_pid=mp)
    assert torch.equal(old, itc(img, txt, .07, pid, FurtherKeys(mem, mem, mp))) and seen[0].filename == __file__
    with pytest.warns(DeprecationWarning) as seen:
        old = itm_weights(img, txt, .07, pid, how="top", top=2, neg_img=mem, neg_txt=mem, neg_pid=mp)
    new = itm_weights(img, txt, .07, pid, HardRule("top", top=2), FurtherKeys(mem, mem, mp))
    assert all(torch.equal(a, b) for a, b in zip(old, new)) and {w.filename for w in seen} == {__file__}


def test_memory_itc_naive(batch):
    img, txt, _ = batch
    mem, lam = torch.randn(7, 5, dtype=torch.float64), torch.rand(7, dtype=torch.float64)
    unit = lambda v: [x/math.sqrt(sum(y*y for y in v)) for x in v]
    own, old = [unit(t) for t in txt.tolist()], [unit(m) for m in mem.tolist()]
    keys = own + [[w*x + (1 - w)*y for x, y in zip(t, m)] for t, m, w in zip(own, old, lam.tolist())]
    want = -sum(naive_logsoftmax([naive_cos(v, k)/.07 for k in keys])[i] for i, v in enumerate(img.tolist()))/7
    loss = memory_itc(img, txt, mem, lam)
    assert_close(loss, want)
    loss.backward()
    assert img.grad.abs().sum() > 0 and txt.grad is None


@pytest.mark.parametrize("top", [1, 3, 64])
def test_hard_keys_are_among_the_most_similar_of_others(batch, top):
    img, _, pid = batch
    keys, who = torch.randn(9, 5, dtype=torch.float64), torch.arange(9) % 4
    same = pid[:, None] == who[None]
    drawn = torch.stack([hard_keys(img, keys, same, top, torch.Generator().manual_seed(s)) for s in range(40)])
    for i in range(7):
        others = [j for j in range(9) if not same[i, j]]
        best = sorted(range(9), key=lambda j: -(naive_cos(img.tolist()[i], keys.tolist()[j]) if j in others else -9))
        assert set(drawn[:, i].tolist()) <= set(best[:min(top, len(others))])
        if top == 3: assert len(set(drawn[:, i].tolist())) == min(3, len(others))
    assert 0 <= hard_keys(img, keys, torch.ones(7, 9, dtype=torch.bool), top).min()   # nobody else: any key
    with pytest.raises(ValueError, match="keys is empty"): hard_keys(img, keys[:0], same[:, :0])


def test_memory_candidates_are_drawn_but_never_of_the_same_identity(batch):
    img, txt, pid = batch
    mem, mp = torch.randn(3, 5, dtype=torch.float64), torch.tensor([pid[0].item(), 8, 9])
    wt, wi = itm_weights(img, txt, .07, pid, further=FurtherKeys(mem, mem, mp))
    assert wt.shape == wi.shape == (7, 10)
    for w in (wt, wi):
        everyone = torch.cat([pid, mp])
        assert (w[pid[:, None] == everyone] == 0).all() and (w[pid[:, None] != everyone] > 0).all()
    assert not wt.requires_grad


def test_sampling_is_repeatable_and_follows_the_weights():
    w = t64([[0, 1, 3], [2, 0, 0], [0, 0, 0]])
    draw = lambda: sample_negatives(w, torch.Generator().manual_seed(5))
    assert torch.equal(draw(), draw())
    g = torch.Generator().manual_seed(1)
    d = torch.stack([sample_negatives(w, g) for _ in range(4000)])
    assert set(d[:, 1].tolist()) == {0} and set(d[:, 2].tolist()) == {-1} and set(d[:, 0].tolist()) == {1, 2}
    assert abs((d[:, 0] == 2).double().mean() - .75) < .03


# --- degenerate batches and gradients -------------------------------------------------------------------------------

CROSS = {"itc": lambda a, b, p: itc(a, b, pid=p), "sdm": lambda a, b, p: sdm(a, b, p)}


@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("name", CROSS)
def test_cross_modal_degenerate(name, n):
    img = torch.randn(n, 3, requires_grad=True)
    loss = CROSS[name](img, torch.randn(n, 3), torch.zeros(n, dtype=torch.long))     # one identity only
    loss.backward()
    assert loss.isfinite() and img.grad.isfinite().all()
    if n < 2: assert abs(loss.item()) < 1e-6


def test_gradients_agree_with_finite_differences(batch):
    img, txt, pid = batch
    for f in CROSS.values(): assert torch.autograd.gradcheck(lambda a, b: f(a, b, pid), (img, txt), atol=1e-4)


def test_empty_heads_cost_nothing():
    x = torch.randn(0, 2, requires_grad=True)
    for loss in (itm(x, torch.zeros(0)), instance(x, x, torch.zeros(0, dtype=torch.long))):
        loss.backward()
        assert loss.item() == 0
    w = torch.randn(2, 3, 4, requires_grad=True)
    loss = mlm(w, torch.full((2, 3), -100))
    loss.backward()
    assert loss.item() == 0 and (w.grad == 0).all()


def test_mixed_precision_does_not_round_the_cosines():
    a, b = torch.randn(16, 64), torch.randn(16, 64)
    with torch.autocast("cpu", torch.bfloat16): low = sdm(a, b)
    assert abs(low - sdm(a, b)) < 1e-4


def test_errors_name_the_argument():
    a = torch.randn(4, 3)
    with pytest.raises(ValueError, match="pair up row by row, got 4 and 3"): itc(a, a[:3])
    with pytest.raises(ValueError, match="pid has 2 entries for a batch of 4"): sdm(a, a, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="how='hardest' is not known"): itm_weights(a, a, rule=HardRule("hardest"))
