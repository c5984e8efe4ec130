"""CFAM: sizes against open_clip, what each loss trains and logs, hard pairs, towers without the rest, resuming."""
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.data.text import ClipBPE, Masking, WordPiece, mask_tokens
from reid_lab.losses import text as losses
from reid_lab.models.cfam import (
    CFAM,
    HARD_BY,
    L14,
    LOSSES,
    WIRINGS,
    GranularityDecoder,
    GranuleBlock,
    Matcher,
    PairIdentity,
    cfam_b16,
    cfam_l14,
    cfam_tiny,
)
from reid_lab.models.clip import CLIPPair, clip_tiny, end_positions, strip
from reid_lab.models.clip_towers import clip_model, resize_text_positions
from reid_lab.models.zoo import sample_batch
from reid_lab.training.learner import param_groups

SIZE = (64, 32)
WORDS = ["a man in a red coat with a black bag", "a tall woman in blue jeans", "a man with a hat",
         "a boy in white shoes"]
ALL = "gs+ls+m+cid"
TOWERS = {"visual", "transformer", "token_embedding", "positional_embedding", "ln_final", "text_projection"}


def pieces(length=24): return WordPiece.train(WORDS, 120, context_length=length, min_frequency=1)


def build(losses=ALL, seed=0, tok=None, **kw):
    "A `cfam_tiny` whose every number differs from its initial value"
    torch.manual_seed(seed)
    model = cfam_tiny(kw.pop("n_ids", 6), tok or pieces(), losses=losses, size=SIZE, max_len=24, **kw)
    with torch.no_grad(): [p.add_(.05*torch.randn_like(p)) for p in model.parameters()]
    return model


def make_batch(pid=(7, 8, 7, 9), tok=None):
    tok, pid = tok or pieces(), torch.tensor(pid)
    tokens = tok(WORDS)[:len(pid)]
    rng, masking = np.random.default_rng(0), Masking(p=.15, max_masks=24, ngram=0., whole_words=False)
    masked, labels = mask_tokens(tokens, tok, rng, masking)
    img = torch.rand(len(pid), 3, *SIZE, generator=torch.Generator().manual_seed(1))
    return dict(img=img, tokens=tokens, tokens_mlm=masked, labels_mlm=labels, pid=pid,
                label=pid.unique(return_inverse=True)[1])


def count(m): return sum(p.numel() for p in m.parameters())
def prefix(name): return name.split(".")[0]


# --- sizes ------------------------------------------------------------------------------------------------------------

def linear(a, b): return a*b + b
def attention(d): return linear(d, 3*d) + linear(d, d)
def ffn(d): return linear(d, 4*d) + linear(4*d, d)


def heads(dim, n_ids, K=4, depth=2, d=512):
    "Parameters of CFAM's modules, added up by hand"
    decoder = K*d + 2*2*d + depth*(2*attention(d) + ffn(d) + 3*2*d) + (linear(dim, d) if dim != d else 0)
    matcher = 2*d + 2*(attention(d) + ffn(d) + 2*2*d) + 2*d + linear(d, d) + linear(d, 1)
    return decoder + matcher + linear(2*dim, dim) + 2*dim + linear(dim, n_ids + 1)


@pytest.mark.parametrize("make, name, grid", [(cfam_b16, "ViT-B-16-quickgelu", (24, 8)),
                                              (cfam_l14, "ViT-L-14-quickgelu", (27, 9))])
def test_paper_sizes_are_open_clips_towers_and_the_heads(make, name, grid):
    "No number is allocated: all of it on the meta device"
    import open_clip
    with torch.device("meta"):
        model = make(4926)
        theirs = open_clip.CLIP(**{k: v for k, v in open_clip.get_model_config(name).items()})
    n, dim, wide = grid[0]*grid[1] + 1, theirs.visual.output_dim, theirs.visual.conv1.out_channels
    extra = (n - len(theirs.visual.positional_embedding))*wide + (168 - 77)*theirs.token_embedding.weight.shape[1]
    assert count(strip(model)) == count(theirs) + extra and model.visual.grid_size == grid and model.dim == dim
    assert count(model) == count(strip(model)) + heads(dim, 4926)
    same = {k: v.shape for k, v in theirs.named_parameters() if "positional" not in k}
    assert same == {k: v.shape for k, v in strip(model).named_parameters() if "positional" not in k}
    act = model.transformer.resblocks[0].mlp.gelu
    assert type(act).__name__ == "QuickGELU" and isinstance(model.tokenizer, ClipBPE)
    assert model.tokenizer.context_length == len(model.positional_embedding) == 168
    if make is cfam_l14: assert L14["dim"] == dim and model.decoders[0].fit.weight.shape == (512, 768)


def test_table_9_is_arguments():
    with torch.device("meta"):
        for K in (4, 8, 16, 20):
            for depth in (1, 2, 3, 4):
                assert count(cfam_b16(5, queries=K, depth=depth)) - count(strip(cfam_b16(5))) == heads(512, 5, K, depth)
        one, two = cfam_b16(5), cfam_b16(5, shared=False)
    assert count(two) - count(one) == count(one.decoders) and len(two.decoders) == 2


def test_tiny_takes_the_width_of_its_towers():
    model = build()
    assert model.decoders[0].queries.shape == (4, 64) and isinstance(model.decoders[0].fit, torch.nn.Identity)
    assert count(cfam_tiny(200, vocab_size=1200)) < 1_000_000
    assert build(hidden=32).decoders[0].fit.weight.shape == (32, 64)


def test_the_text_table_is_stretched():
    "77 positions to 168: all of them, or those behind a copy of the 77"
    small = dict(dim=32, vision=dict(width=64, layers=1, head_width=32, patch_size=16),
                 text=dict(width=32, layers=1, heads=2))
    torch.manual_seed(0)
    clip = clip_model((64, 64), **small)
    state = {k: v for k, v in clip.state_dict().items() if not k.startswith("pixels.")}
    for longer in ("all", "rest"):
        model = cfam_b16(5, size=(96, 32), weights=state, longer=longer, towers=small, hidden=32, heads=2)
        assert torch.equal(model.positional_embedding, resize_text_positions(clip.positional_embedding, 168, longer))
        assert {k.split(".")[0] for k in model.loaded.kept} == {"pixels", "decoders", "matcher", "cid"}
    assert torch.equal(model.positional_embedding[:77], clip.positional_embedding)


# --- modules ----------------------------------------------------------------------------------------------------------

def plain_attention(m, q, kv, heads):
    "Attention head by head, from its weights"
    D = q.shape[-1]
    w, b = m.in_proj_weight.split(D), m.in_proj_bias.split(D)
    q, k, v = q @ w[0].T + b[0], kv @ w[1].T + b[1], kv @ w[2].T + b[2]
    out, d = [], D//heads
    for h in range(heads):
        own = slice(h*d, (h + 1)*d)
        out.append((q[..., own] @ k[..., own].transpose(-1, -2)/math.sqrt(d)).softmax(-1) @ v[..., own])
    return torch.cat(out, -1) @ m.out_proj.weight.T + m.out_proj.bias


def plain_block(m, x, tokens, heads):
    x = x + plain_attention(m.self_attn, m.ln_self(x), m.ln_self(x), heads)
    if tokens is not None: x = x + plain_attention(m.cross_attn, m.ln_cross(x), tokens, heads)
    y = m.ln_ffn(x) @ m.ffn[0].weight.T + m.ffn[0].bias
    return x + F.gelu(y) @ m.ffn[2].weight.T + m.ffn[2].bias


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize("dim", [32, 48])
def test_decoder_against_a_plain_forward(wiring, dim):
    torch.manual_seed(0)
    m = GranularityDecoder(dim, queries=3, depth=2, width=32, heads=4, wiring=wiring)
    with torch.no_grad(): [p.add_(.1*torch.randn_like(p)) for p in m.parameters()]
    rows = [torch.randn(n, dim) for n in (9, 4, 1)]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=7.)
    real = torch.arange(9) < torch.tensor([[9], [4], [1]])
    got = m(tokens, real)
    for one, row in zip(got, rows):                      # row by row, without padding
        t = m.ln_tokens(row if dim == 32 else row @ m.fit.weight.T + m.fit.bias)
        x = m.queries
        if wiring == "cross-first": x, t = plain_attention(m.first, m.ln_first(x), t, 4), None
        for block in m.blocks: x = plain_block(block, x, t, 4)
        assert torch.allclose(one, m.ln_post(x), atol=1e-5)


def test_matcher_against_a_plain_forward():
    torch.manual_seed(0)
    m = Matcher(32, 4)
    with torch.no_grad(): [p.add_(.1*torch.randn_like(p)) for p in m.parameters()]
    a, b = torch.randn(5, 3, 32), torch.randn(5, 3, 32)
    got = m(a, b)
    for i in range(5):
        x = torch.cat([a[i] + m.kinds[0], b[i] + m.kinds[1]])
        for block in m.blocks: x = plain_block(block, x, None, 4)
        y = F.gelu(m.ln_post(x).mean(0) @ m.mlp[0].weight.T + m.mlp[0].bias)
        assert torch.allclose(got[i], (y @ m.mlp[2].weight.T + m.mlp[2].bias)[0], atol=1e-5)
    assert not torch.allclose(got, m(b, a), atol=1e-3)


def test_one_block_is_pre_norm():
    "The state passes through unchanged if every branch ends in zeros"
    m = GranuleBlock(16, 2, cross=True)
    with torch.no_grad(): [t.zero_() for t in (m.self_attn.out_proj.weight, m.cross_attn.out_proj.weight,
                                               m.ffn[2].weight, m.ffn[2].bias)]
    x = torch.randn(2, 3, 16)
    assert torch.equal(m(x, torch.randn(2, 5, 16)), x)


def test_pair_classifier_has_one_class_more():
    m = PairIdentity(16, 5)
    assert m(torch.randn(3, 16), torch.randn(3, 16)).shape == (3, 6)


# --- losses -----------------------------------------------------------------------------------------------------------

SUBSETS = ["itc", "gs", "ls", "m", "cid", "gs+ls", "gs+ls+m", ALL, "gs+irr", "itc+gs+ls+m+cid+irr"]


@pytest.mark.parametrize("names", SUBSETS)
def test_each_switch_trains_and_logs_exactly_its_terms(names):
    model, batch = build(names), make_batch()
    on = set(names.split("+"))
    has = {prefix(k) for k in model.state_dict()} - TOWERS - {"pixels", "logit_scale"}
    want = dict(ls={"decoders"}, m={"decoders", "matcher"}, cid={"cid"}, irr={"irr"})
    assert has == set().union(*(want.get(n, set()) for n in on))
    out = model(batch)
    assert list(out) == [f"{n}_loss" for n in LOSSES if n in on]
    assert all(v.isfinite() and v.ndim == 0 for v in out.values())
    sum(out.values()).backward()
    learnt = {k: p for k, p in model.named_parameters() if p.requires_grad}
    dead = [k for k, p in learnt.items() if p.grad is None or not p.grad.isfinite().all()]
    assert not dead and model.logit_scale.requires_grad == ("itc" in on)


REACHED = dict(itc={"logit_scale"}, gs=set(), ls={"decoders"}, m={"decoders", "matcher"}, cid={"cid"}, irr={"irr"})


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_reach_what_is_documented_and_nothing_else(name):
    model = build(LOSSES)
    model(make_batch())[f"{name}_loss"].backward()
    got = {prefix(k) for k, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert got == TOWERS | REACHED[name]


@pytest.mark.parametrize("shared", [True, False])
def test_terms_are_their_formulas(shared):
    "Written out once more, from the embeddings of the model"
    model, batch = build("itc+gs+ls+m+cid", shared=shared).eval(), make_batch()
    out = model(batch)
    (v, regions), (t, words, real) = model.image_tokens(batch["img"]), model.text_tokens(batch["tokens_mlm"])
    fv, ft = model.decoders[0](regions), model.decoders[-1](words, real)
    S = F.normalize(v) @ F.normalize(t).T
    fine = sum(F.normalize(fv[:, k]) @ F.normalize(ft[:, k]).T for k in range(4))/4
    pid, B = batch["pid"].tolist(), 4

    def sdm(S):
        y = torch.tensor([[float(a == b) for a in pid] for b in pid])
        q = y/y.sum(1, keepdim=True)
        return sum((s.softmax(1)*(s.log_softmax(1) - (q + 1e-8).log())).sum(1).mean() for s in (S/.02, S.T/.02))
    for key, want in (("gs_loss", sdm(S)), ("ls_loss", sdm(fine)),
                      ("itc_loss", losses.itc(v, t, model.temperature))):
        assert torch.allclose(out[key], want, rtol=1e-3), key
    worst = lambda S, i: max((j for j in range(B) if pid[j] != pid[i]), key=lambda j: S[i, j].item())
    pairs = [(i, i, 1) for i in range(B)] + [(i, worst(S, i), 0) for i in range(B)] + [
        (worst(S.T, j), j, 0) for j in range(B)]
    m = [F.binary_cross_entropy(model.matcher(fv[i:i+1], ft[j:j+1]).sigmoid(), torch.tensor([float(y)]))
         for i, j, y in pairs]
    assert torch.allclose(out["m_loss"], sum(m)/12, atol=1e-4)
    cid = [F.cross_entropy(model.cid(v[i:i+1], t[j:j+1]), batch["label"][i:i+1] if y else torch.tensor([6]))
           for i, j, y in pairs]
    assert torch.allclose(out["cid_loss"], sum(cid)/12, atol=1e-4)


@pytest.mark.parametrize("hard_by", HARD_BY)
@pytest.mark.parametrize("pid", [(7, 8, 7, 9), (1, 1, 1, 2), (1, 2, 3, 4), (5, 5, 5, 5)])
def test_hard_negatives_are_never_of_the_same_identity(monkeypatch, hard_by, pid):
    seen, real = [], losses.hard_pairs
    monkeypatch.setattr(losses, "hard_pairs", lambda *a: seen.append(real(*a)) or seen[-1])
    batch = make_batch(pid)
    out = build(ALL, hard_by=hard_by)(batch)
    (i, t, match), = seen
    assert torch.equal(batch["pid"][i] == batch["pid"][t], match) and match.sum() == 4
    assert len(match) == (4 if len(set(pid)) == 1 else 12) and all(v.isfinite() for v in out.values())


def test_the_choice_follows_the_similarity_that_is_named(monkeypatch):
    seen, real = [], losses.hard_pairs
    monkeypatch.setattr(losses, "hard_pairs", lambda *a: seen.append(a[0]) or real(*a))
    for by in HARD_BY: build(ALL, hard_by=by)(make_batch())
    assert not torch.allclose(*seen, atol=1e-3) and not any(s.requires_grad for s in seen)


def test_a_batch_of_one_identity_has_true_pairs_only():
    "Defined and finite: the matcher sees matches alone, SDM's target is even"
    out = build(ALL)(make_batch((5, 5, 5, 5)))
    assert all(v.isfinite() for v in out.values())
    sum(out.values()).backward()
    one = build(ALL)(make_batch((5,)))
    assert all(v.isfinite() for v in one.values()) and one["gs_loss"].abs() < 1e-5


def test_captions_are_masked_in_training_and_clean_without():
    batch, model = make_batch(), build("gs").eval()
    clean = {k: v for k, v in batch.items() if "mlm" not in k}
    v = model.encode_image(batch["img"])
    want = {k: losses.sdm(v, model.encode_text(batch[k]), batch["pid"]) for k in ("tokens", "tokens_mlm")}
    assert torch.allclose(model(batch)["gs_loss"], want["tokens_mlm"], rtol=1e-4)
    assert torch.allclose(model(clean)["gs_loss"], want["tokens"], rtol=1e-4)
    assert not torch.allclose(want["tokens"], want["tokens_mlm"], rtol=1e-2)
    assert torch.equal(build("gs", mask_text=False).eval()(batch)["gs_loss"], model(clean)["gs_loss"])


def test_words_are_read_from_the_image():
    "The loss of masked words depends on the image, and falls when it is trained"
    model, batch = build("gs+irr"), make_batch()
    first = model(batch)["irr_loss"]
    other = model({**batch, "img": batch["img"].flip(0)})["irr_loss"]
    assert not torch.allclose(first, other, rtol=1e-4)
    opt = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(15):
        opt.zero_grad()
        model(batch)["irr_loss"].backward()
        opt.step()
    assert model(batch)["irr_loss"] < .5*first


@pytest.mark.parametrize("bad, message", [
    (dict(losses="gs+lx"), "losses='lx'"), (dict(losses=()), "leaves nothing to train"),
    (dict(n_ids=None), "pass n_ids"),
    (dict(hard_by="mean"), "hard_by='mean'"), (dict(losses="gs", hard_by="local"), "add 'ls' or 'm'"),
    (dict(wiring="first"), "wiring='first'"), (dict(queries=0), "queries=0"), (dict(depth=0), "depth=0"),
    (dict(loss_weights=dict(irr=2.)), "loss_weights='irr'"), (dict(quries=3), "quries")])
def test_bad_arguments(bad, message):
    with pytest.raises((ValueError, TypeError), match=message): build(**bad)


@pytest.mark.parametrize("change, message", [
    (lambda b: {**b, "label": b["label"] + 6}, "6 identities from 0.*pass n_ids"),
    (lambda b: {k: v for k, v in b.items() if "mlm" not in k}, "holds no tokens_mlm")])
def test_bad_batches(change, message):
    with pytest.raises(ValueError, match=message): build(ALL + "+irr")(change(make_batch()))


# --- captions ---------------------------------------------------------------------------------------------------------

def test_long_captions_raise_or_are_counted():
    "The tokenizer cuts and counts; the model refuses what it has no position for"
    tok = pieces(12)
    model = build(tok=tok)
    assert len(model.positional_embedding) == 24         # `max_len` is the least
    long = " ".join(["red"]*50)
    tokens = tok([long, "a man"])
    assert tok.report()["truncated"] == 1 and tok.report()["longest"] == 52
    assert end_positions(tokens, tok.sep_id, tok.pad_id).tolist() == [11, 3]   # the end token is kept
    with pytest.raises(ValueError, match="captions of 25 tokens do not fit 24 positions"):
        model.encode_text(torch.ones(1, 25, dtype=torch.long))


# --- towers without the rest ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("names", [ALL, ALL + "+irr", "itc"])
def test_embeddings_are_those_of_the_towers_alone(names, tmp_path):
    model, batch = build(names).eval(), make_batch()
    bare = strip(model)
    assert type(bare) is CLIPPair and {prefix(k) for k in bare.state_dict()} == TOWERS | {"pixels", "logit_scale"}
    new = clip_tiny(pieces(), size=SIZE, max_len=24).eval()
    new.load_state_dict(bare.state_dict())               # strict
    save_weights(bare, tmp_path/"towers.safetensors")
    again = load_weights(clip_tiny(pieces(), size=SIZE, max_len=24), tmp_path/"towers.safetensors").eval()
    for other in (bare, new, again):
        assert torch.equal(other.encode_image(batch["img"]), model.encode_image(batch["img"]))
        assert torch.equal(other.encode_text(batch["tokens"]), model.encode_text(batch["tokens"]))


def test_what_only_training_uses_has_no_influence():
    model, batch = build(ALL + "+irr").eval(), make_batch()
    before = model.encode_image(batch["img"]), model.encode_text(batch["tokens"])
    with torch.no_grad():
        for k, p in model.named_parameters():
            if k.startswith(CFAM.new_parts): p.fill_(torch.nan)
    after = model.encode_image(batch["img"]), model.encode_text(batch["tokens"])
    assert all(torch.equal(a, b) for a, b in zip(before, after))
    assert {prefix(k) for k, p in model.named_parameters() if p.isnan().any()} == {"decoders", "matcher", "cid", "irr"}


def test_weights_of_towers_and_of_whole_models_start_one(tmp_path):
    model, tok = build(), pieces()
    kw = dict(tokenizer=tok, size=SIZE, max_len=24)
    save_weights(model, tmp_path/"m.safetensors")
    whole = cfam_tiny(6, weights=tmp_path/"m.safetensors", **kw)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), whole.state_dict().values()))
    assert not whole.loaded.missing and not whole.loaded.kept and not whole.loaded.left
    towers = cfam_tiny(6, weights=strip(model).state_dict(), **kw)
    assert {prefix(k) for k in towers.loaded.kept} == {"decoders", "matcher", "cid"} and not towers.loaded.missing
    assert torch.equal(towers.visual.proj, model.visual.proj)
    fewer = cfam_tiny(weights=model.state_dict(), losses="gs", **kw)
    assert {prefix(k) for k, _ in fewer.loaded.left} == {"decoders", "matcher", "cid"} and not fewer.loaded.unused
    with pytest.warns(UserWarning, match=r"cid.classify.weight \(7, 64\) instead of \(10, 64\)"):
        other = cfam_tiny(9, weights=model.state_dict(), **kw)
    assert torch.equal(other.cid.mlp[0].weight, model.cid.mlp[0].weight)
    with pytest.raises(ValueError, match="missing .first .'decoders.0.blocks.2"):
        cfam_tiny(6, weights=model.state_dict(), depth=3, **kw)      # a decoder of another depth is no part of it
    with pytest.raises(ValueError, match="left over"): clip_tiny(weights=model.state_dict(), **kw)


def test_the_shipped_clip_starts_it():
    from reid_lab.models.weights.shipped import shipped
    from reid_lab.training.folder import start_of
    model = cfam_tiny(6, weights="world")
    assert start_of("cfam_tiny") == "world" and shipped()["cfam_tiny"][0].model == "clip_tiny"
    bare = clip_tiny(weights="world")
    assert model.loaded.matched == bare.loaded.matched and model.tokenizer.vocab == bare.tokenizer.vocab
    img = torch.rand(2, 3, *model.size)
    assert torch.equal(model.eval().encode_image(img), bare.eval().encode_image(img))


# --- training ---------------------------------------------------------------------------------------------------------

def test_new_parts_have_their_own_rate():
    model = build(ALL + "+irr")
    groups = param_groups(model, lr=1e-5, new_mult=5.)
    rate = {id(p): g["lr"] for g in groups for p in g["params"]}
    for k, p in model.named_parameters():
        if p.requires_grad: assert rate[id(p)] == pytest.approx(5e-5 if prefix(k) not in TOWERS else 1e-5), k
    assert len(rate) == sum(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("names", [ALL + "+irr", "itc"])
def test_a_resumed_training_ends_with_the_same_bits(names, whole_and_resumed, three_batches):
    def make():
        torch.manual_seed(0)
        return cfam_tiny(4, vocab_size=60, losses=names, size=SIZE, max_len=12)
    loader = three_batches(lambda seed: sample_batch(SIZE, seed=seed))
    whole, again = whole_and_resumed(make, loader, lr=1e-3, new_mult=5., device="cpu", seed=3)
    assert all(torch.equal(v, again[k]) for k, v in whole.items())
    assert any(not torch.equal(v, make().state_dict()[k]) for k, v in whole.items())
