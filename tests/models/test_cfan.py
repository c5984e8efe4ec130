"""CFAN: sizes against open_clip, switches, bridges, formulas, towers without the rest, resuming."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.data.text import ClipBPE, Masking, WordPiece, mask_tokens
from reid_lab.losses import fuzzy, text as losses
from reid_lab.models.cfan import ALPHA, CFAN, LOSSES, RELEASED_RATES, CrossFormer, cfan_b16, cfan_tiny, sigma_mlp
from reid_lab.models.clip import CLIPPair, clip_b16, clip_tiny, strip
from reid_lab.models.convert import inspect_weights
from reid_lab.models.zoo import sample_batch
from reid_lab.recipes.text import text_optimiser, text_settings
from reid_lab.training.learner import param_groups

SIZE = (64, 32)
WORDS = ["a man in a red coat with a black bag", "a tall woman in blue jeans", "a man with a hat",
         "a boy in white shoes"]
BOTH = "cda+fta"
TOWERS = {"visual", "transformer", "token_embedding", "positional_embedding", "ln_final", "text_projection"}
FORMS = ("paper", "released")


def pieces(length=24): return WordPiece.train(WORDS, 120, context_length=length, min_frequency=1)
def count(m): return sum(p.numel() for p in m.parameters())
def prefix(name): return name.split(".")[0]


def build(losses=BOTH, seed=0, tok=None, **kw):
    "A `cfan_tiny` whose every number differs from its initial value"
    torch.manual_seed(seed)
    model = cfan_tiny(tok or pieces(), losses=losses, size=SIZE, max_len=24, **kw)
    with torch.no_grad(): [p.add_(.05*torch.randn_like(p)) for p in model.parameters()]
    return model


def make_batch(pid=(7, 8, 7, 9), has=(True, True, True, True)):
    tok, pid = pieces(), torch.tensor(pid)
    tokens = tok(WORDS)[:len(pid)]
    masking = Masking(p=.15, max_masks=24, ngram=0., whole_words=False)
    masked, labels = mask_tokens(tokens, tok, np.random.default_rng(0), masking)
    g = torch.Generator().manual_seed(1)
    img, bridge = (torch.rand(len(pid), 3, *SIZE, generator=g) for _ in range(2))
    return dict(img=img, img_bridge=bridge, has_bridge=torch.tensor(has)[:len(pid)], tokens=tokens, tokens_mlm=masked,
                labels_mlm=labels, pid=pid)


# --- sizes ------------------------------------------------------------------------------------------------------------

def linear(a, b): return a*b + b
def attention(d): return linear(d, 3*d) + linear(d, d)


def heads(d=512, K=4, layers=4, released=False):
    "Parameters of CFAN's modules, added up by hand"
    block = attention(d) + linear(d, 4*d) + linear(4*d, d) + 2*2*d
    sigma = linear(d, 2*d) + linear(2*d, d if released else 1)
    return K*d + 3*2*d + attention(d) + layers*block + (1 if released else 2)*sigma


def test_b16_is_open_clips_towers_and_the_heads():
    "No number is allocated: all of it on the meta device"
    import open_clip
    with torch.device("meta"):
        model = cfan_b16()
        theirs = open_clip.CLIP(**{k: v for k, v in open_clip.get_model_config("ViT-B-16-quickgelu").items()})
    extra = (24*8 + 1 - len(theirs.visual.positional_embedding))*theirs.visual.conv1.out_channels
    assert count(strip(model)) == count(theirs) + extra
    assert model.visual.grid_size == (24, 8) and model.dim == 512 and len(model.positional_embedding) == 77
    assert count(model) == count(strip(model)) + heads()
    same = {k: v.shape for k, v in theirs.named_parameters() if "visual.positional" not in k}
    assert same == {k: v.shape for k, v in strip(model).named_parameters() if "visual.positional" not in k}
    assert isinstance(model.tokenizer, ClipBPE) and model.crossformer.cross_attn.num_heads == 8
    assert type(model.crossformer.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"


def test_heads_of_every_setting():
    with torch.device("meta"):
        bare = count(cfan_b16(losses="cda"))
        for K in (1, 4, 16): assert count(cfan_b16(queries=K)) - bare == heads(K=K)
        assert count(cfan_b16(membership="released")) - bare == heads(released=True)
        assert count(cfan_b16(layers=2)) - bare == heads(layers=2)
    assert count(cfan_tiny(vocab_size=1200)) < 1_000_000
    assert count(build()) - count(strip(build())) == heads(64, layers=2)


def test_starting_values():
    torch.manual_seed(0)
    m = CrossFormer(512)
    got = {k: v.std().item() for k, v in m.named_parameters()}
    want = {"queries": 1., "cross_attn.in_proj_weight": 512**-.5, "cross_attn.out_proj.weight": 512**-.5*8**-.5,
            "transformer.resblocks.3.attn.in_proj_weight": 512**-.5,
            "transformer.resblocks.0.mlp.c_fc.weight": 1024**-.5,
            "transformer.resblocks.0.mlp.c_proj.weight": 512**-.5*8**-.5}
    for k, v in want.items(): assert got[k] == pytest.approx(v, rel=.05), k
    anchors = torch.randn(50, 512)
    assert fuzzy.width(sigma_mlp(512)(anchors)).log().abs().max() < 1         # curves start about 1 wide


# --- CrossFormer ------------------------------------------------------------------------------------------------------

def plain_attention(m, q, kv, heads):
    "One row: (K,D) queries, (N,D) keys; output and mean weights"
    D = q.shape[-1]
    d = D//heads
    (wq, wk, wv), (bq, bk, bv) = m.in_proj_weight.chunk(3), m.in_proj_bias.chunk(3)
    q, k, v = q @ wq.T + bq, kv @ wk.T + bk, kv @ wv.T + bv
    out, seen = [], []
    for h in range(heads):
        own = slice(h*d, (h + 1)*d)
        a = (q[:, own] @ k[:, own].T/math.sqrt(d)).softmax(-1)
        out.append(a @ v[:, own])
        seen.append(a)
    return torch.cat(out, -1) @ m.out_proj.weight.T + m.out_proj.bias, sum(seen)/heads


@pytest.mark.parametrize("n_heads", [1, 2])
def test_crossformer_against_a_plain_forward(n_heads):
    torch.manual_seed(0)
    m = CrossFormer(32, 3, 2, n_heads)
    with torch.no_grad(): [p.add_(.1*torch.randn_like(p)) for p in m.parameters()]
    rows = [torch.randn(n, 32) for n in (9, 4, 1)]
    tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=7.)
    real = torch.arange(9) < torch.tensor([[9], [4], [1]])
    got, weights = m(tokens, real), m.read(tokens, real)[1]
    for one, w, row in zip(got, weights, rows):              # row by row, without padding; no residual at the entrance
        x, seen = plain_attention(m.cross_attn, m.ln_q(m.queries), m.ln_kv(row), n_heads)
        assert torch.allclose(w[:, :len(row)], seen, atol=1e-5) and w[:, len(row):].abs().sum() == 0
        for b in m.transformer.resblocks:
            y = b.ln_1(x)
            x = x + plain_attention(b.attn, y, y, n_heads)[0]
            y = b.mlp.c_fc(b.ln_2(x))
            x = x + b.mlp.c_proj(y*torch.sigmoid(1.702*y))
        assert torch.allclose(one, m.ln_post(x), atol=1e-5)


def test_queries_can_read_padding_as_the_released_program_does():
    batch, masks, reads = make_batch(), build(), build(mask_padding=False)
    cut = {**batch, "tokens_mlm": batch["tokens_mlm"][:, :-1]}                # a column of padding less
    assert batch["tokens_mlm"][:, -1].eq(0).all()
    assert torch.allclose(masks(batch)["fta_loss"], masks(cut)["fta_loss"], atol=1e-4)
    assert torch.allclose(reads(batch)["fta_loss"], reads(cut)["fta_loss"], atol=1e-4)      # filled up again
    assert not torch.allclose(masks(batch)["fta_loss"], reads(batch)["fta_loss"], atol=1e-3)
    assert reads.memberships(tokens=batch["tokens"][:, :13])["attention"].shape[-1] == 24
    assert torch.equal(masks(batch)["cda_loss"], reads(batch)["cda_loss"])    # padding never reaches the end token


# --- losses -----------------------------------------------------------------------------------------------------------

SUBSETS = ["direct", "bridge", "cda", "bridge+fta", BOTH, "fta", "direct+fta"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("names", SUBSETS)
def test_each_switch_trains_and_logs_exactly_its_terms(names, form):
    model, on = build(names, membership=form), names.split("+")
    has = {prefix(k) for k in model.state_dict()} - TOWERS - {"pixels", "logit_scale"}
    assert has == ({"crossformer", "sigma"} if "fta" in on else set())
    out = model(make_batch())
    assert list(out) == [f"{n}_loss" for n in LOSSES if n in on]
    assert all(v.isfinite() and v.ndim == 0 for v in out.values())
    for name, loss in out.items():
        model.zero_grad()
        loss.backward(retain_graph=True)
        got = {prefix(k) for k, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        assert got == TOWERS | ({"crossformer", "sigma"} if name == "fta_loss" else set())
    model.zero_grad()
    sum(model(make_batch()).values()).backward()
    learnt = {k: p for k, p in model.named_parameters() if p.requires_grad}
    assert not [k for k, p in learnt.items() if p.grad is None or not p.grad.isfinite().all()]
    assert "logit_scale" not in learnt


@pytest.mark.parametrize("has", [(True,)*4, (True, False, True, True), (False,)*4, (False, False, True, False)])
@pytest.mark.parametrize("names, k", [("direct", 1.), ("bridge", 1.), ("cda", 1.), ("cda", 4.)])
def test_alignment_is_its_formula(names, k, has):
    "Written out once more, from the embeddings of the model"
    model, batch = build(names, k=k).eval(), make_batch(has=has)
    v, g, t = (model.image_features(batch["img"]), model.image_features(batch["img_bridge"]),
               model.text_features(batch["tokens_mlm"]))
    v, g, t = (F.normalize(x).detach() for x in (v, g, t))
    at, pid = [i for i in range(4) if has[i]], batch["pid"].tolist()

    def sdm(x, y, rows):
        out = []
        for i in rows:
            q = torch.tensor([float(pid[i] == pid[j]) for j in rows])
            q = q/q.sum()
            out.append(sum((p.softmax(0)*(p.log_softmax(0) - (q + 1e-8).log())).sum()
                           for p in (x[rows] @ y[i]/.02, y[rows] @ x[i]/.02)))
        return dict(zip(rows, out))
    direct, legs = sdm(t, v, list(range(4))), [sdm(t, g, at), sdm(g, v, at)]
    total = 0
    for i in range(4):
        a = {"direct": 1., "bridge": 0., "cda": 1/(1 + math.exp(-k*float(t[i] @ v[i] - t[i] @ g[i])))}[names]
        a = a if has[i] else 1.
        total = total + a*direct[i] + ((1 - a)*(legs[0][i] + legs[1][i]) if a != 1 else 0)
    assert model(batch)[f"{names}_loss"].item() == pytest.approx(float(total)/4, rel=1e-3)
    found = model.gates(batch)
    assert torch.allclose(found["alpha"][~torch.tensor(has)], torch.ones(()))
    if names == "cda" and any(has): assert (found["alpha"][torch.tensor(has)] - .5).abs().max() > 1e-4


@pytest.mark.parametrize("names", ["bridge", "cda"])
def test_without_bridges_all_ways_are_sdm(names):
    model, batch = build(names), make_batch()
    alone = {k: v for k, v in batch.items() if "bridge" not in k}
    v, t = model.encode_image(batch["img"]), model.encode_text(batch["tokens_mlm"])
    want = losses.sdm(v, t, batch["pid"])
    none = make_batch(has=(False,)*4) | dict(img_bridge=torch.full_like(batch["img"], torch.nan))
    for b in (alone, none): assert torch.allclose(model(b)[f"{names}_loss"], want, rtol=1e-4)


def test_a_bridge_that_is_not_there_has_no_influence():
    model, batch = build(), make_batch(has=(True, False, True, True))
    other = dict(batch, img_bridge=batch["img_bridge"].clone())
    other["img_bridge"][1] = torch.nan
    assert all(torch.equal(a, b) for a, b in zip(model(batch).values(), model(other).values()))
    named = {k: v for k, v in make_batch().items() if k != "has_bridge"}        # no flags: all are there
    assert torch.equal(model(named)["cda_loss"], model(make_batch())["cda_loss"])


def test_the_bridge_is_fixed_on_its_way_to_the_aerial_image():
    "Only the first leg of the bridge moves the ground image"
    model, batch = build("bridge"), make_batch()
    batch["img_bridge"].requires_grad_(True)
    model(batch)["bridge_loss"].backward()
    got = batch["img_bridge"].grad
    g = batch["img_bridge"].detach().requires_grad_(True)
    t = model.encode_text(batch["tokens_mlm"])
    losses.sdm(model.encode_image(g), t, batch["pid"]).backward()
    assert got.abs().sum() > 0 and torch.allclose(got, g.grad, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_fta_is_its_formula(form, reduce):
    model, batch = build("fta", membership=form, reduce=reduce, fta_weight=.5).eval(), make_batch()
    (v, regions), (t, words, real) = model.image_tokens(batch["img"]), model.text_tokens(batch["tokens_mlm"])
    fv, ft = model.crossformer(regions), model.crossformer(words, real)
    mlp = (model.sigma[0], model.sigma[-1])
    if form == "paper": sv, st_ = (m(x)[:, 0].exp() for m, x in zip(mlp, (v, t)))
    else: sv, st_ = (m(F.normalize(x)).exp() for m, x in zip(mlp, (v, t)))
    assert len(model.sigma) == (2 if form == "paper" else 1)
    want = .5*fuzzy.fta(fv, ft, v, t, sv, st_, batch["pid"], .02, membership=form, reduce=reduce)
    assert model(batch)["fta_loss"].item() == pytest.approx(want.item(), rel=1e-4)
    if form == "paper" and reduce == "mean":                  # memberships of 1: half of SDM on mean token similarity
        with torch.no_grad(): [m[-1].bias.fill_(50.) for m in model.sigma]
        sim = sum(F.normalize(fv[:, k]) @ F.normalize(ft[:, k]).T for k in range(4))/4
        y = (batch["pid"][:, None] == batch["pid"]).float()
        rows = losses.sdm_rows(sim, y, .02, 1e-8) + losses.sdm_rows(sim.T, y, .02, 1e-8)
        assert model(batch)["fta_loss"].item() == pytest.approx(.25*rows.mean().item(), rel=1e-3)


def test_gradient_through_the_gate():
    batch = make_batch()
    flows, stops = build("cda", k=8.), build("cda", k=8., detach_alpha=True)
    a, b = flows(batch)["cda_loss"], stops(batch)["cda_loss"]
    assert torch.equal(a, b)
    a.backward()
    b.backward()
    assert not torch.allclose(flows.text_projection.grad, stops.text_projection.grad, rtol=1e-3)
    fixed = build("cda", alpha=.25)
    assert torch.allclose(fixed.gates(batch)["alpha"], torch.tensor(.25))
    found = fixed.gates(batch)
    want = (.25*found["direct"] + .75*found["bridge"]).mean()
    assert torch.allclose(fixed(batch)["cda_loss"], want, rtol=1e-4)
    assert build("bridge").alpha == ALPHA["bridge"] == 0


@pytest.mark.parametrize("form", FORMS)
def test_bf16_and_sigma_at_its_bounds(form):
    model, batch = build(membership=form), make_batch()
    for bias in (-60., 0., 60.):
        with torch.no_grad(): [m[-1].bias.fill_(bias) for m in model.sigma]
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16): out = model(batch)
        sum(out.values()).backward()
        assert all(v.isfinite() for v in out.values())
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)


def test_one_identity_and_one_sample():
    for pid in ((5, 5, 5, 5), (5,)):
        out = build()(make_batch(pid))
        assert all(v.isfinite() for v in out.values())
    assert abs(out["cda_loss"].item()) < 1e-5 and abs(out["fta_loss"].item()) < 1e-5


def test_captions_are_masked_in_training_and_clean_without():
    batch, model = make_batch(), build("direct").eval()
    clean = {k: v for k, v in batch.items() if "mlm" not in k}
    assert not torch.allclose(model(batch)["direct_loss"], model(clean)["direct_loss"], rtol=1e-2)
    assert torch.equal(build("direct", mask_text=False).eval()(batch)["direct_loss"], model(clean)["direct_loss"])


def test_memberships_are_those_of_the_loss():
    model, batch = build().eval(), make_batch()
    for kw, n in ((dict(img=batch["img"]), 9), (dict(tokens=batch["tokens"]), 24)):
        got = model.memberships(**kw)
        assert got["membership"].shape == (4, 4) and got["attention"].shape == (4, 4, n)
        assert torch.allclose(got["attention"].sum(-1), torch.ones(4, 4), atol=1e-5)
        assert ((got["membership"] >= 0) & (got["membership"] <= 1)).all()
    v, x = model.image_tokens(batch["img"])
    r = F.cosine_similarity(model.crossformer(x), v[:, None], dim=-1)
    sigma = model.sigma[0](v).exp()
    want = torch.exp(-(1 - r)**2/(2*sigma**2))
    assert torch.allclose(model.memberships(batch["img"])["membership"], want, atol=1e-5)


@pytest.mark.parametrize("bad, message", [
    (dict(losses="cda+ftb"), "losses='ftb'"), (dict(losses=()), "leaves nothing to train"),
    (dict(losses="cda+direct"), "keep one of"), (dict(losses="fta", alpha=.5), "replaces the gate"),
    (dict(alpha=-.1), "alpha=-0.1"), (dict(membership="papr"), "membership='papr'"),
    (dict(reduce="max"), "reduce='max'"),
    (dict(queries=0), "queries=0"), (dict(depth=0), "layers=0"), (dict(quries=3), "quries")])
def test_bad_arguments(bad, message):
    with pytest.raises((ValueError, TypeError), match=message): build(**bad)


@pytest.mark.parametrize("change, message", [
    (lambda b: {**b, "img_bridge": b["img_bridge"][:3]}, r"img_bridge \(3, 3, 64, 32\)"),
    (lambda b: {**b, "img_bridge": b["img_bridge"][..., :16]}, "do not fit"),
    (lambda b: {**b, "has_bridge": b["has_bridge"].float()}, "one bool a sample")])
def test_bad_bridges(change, message):
    with pytest.raises(ValueError, match=message): build()(change(make_batch()))


# --- towers without the rest ------------------------------------------------------------------------------------------

@pytest.mark.parametrize("form", FORMS)
def test_embeddings_are_those_of_the_towers_alone(form, tmp_path):
    model, batch = build(membership=form).eval(), make_batch()
    bare = strip(model)
    assert type(bare) is CLIPPair and {prefix(k) for k in bare.state_dict()} == TOWERS | {"pixels", "logit_scale"}
    save_weights(bare, tmp_path/"towers.safetensors")
    again = load_weights(clip_tiny(pieces(), size=SIZE, max_len=24), tmp_path/"towers.safetensors").eval()
    for other in (bare, again):
        assert torch.equal(other.encode_image(batch["img"]), model.encode_image(batch["img"]))
        assert torch.equal(other.encode_text(batch["tokens"]), model.encode_text(batch["tokens"]))
    before = model.encode_image(batch["img"]), model.encode_text(batch["tokens"])
    with torch.no_grad():
        for k, p in model.named_parameters():
            if k.startswith(CFAN.new_parts): p.fill_(torch.nan)
    after = model.encode_image(batch["img"]), model.encode_text(batch["tokens"])
    assert all(torch.equal(a, b) for a, b in zip(before, after))


def test_weights_of_towers_and_of_whole_models_start_one(tmp_path):
    model = build()
    kw = dict(tokenizer=pieces(), size=SIZE, max_len=24)
    save_weights(model, tmp_path/"m.safetensors")
    whole = cfan_tiny(weights=tmp_path/"m.safetensors", **kw)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), whole.state_dict().values()))
    assert not whole.loaded.missing and not whole.loaded.kept and not whole.loaded.left
    towers = cfan_tiny(weights=strip(model).state_dict(), **kw)
    assert {prefix(k) for k in towers.loaded.kept} == {"crossformer", "sigma"} and not towers.loaded.missing
    fewer = cfan_tiny(weights=model.state_dict(), losses="bridge", **kw)
    assert {prefix(k) for k, _ in fewer.loaded.left} == {"crossformer", "sigma"} and not fewer.loaded.unused
    with pytest.raises(ValueError, match="missing"): cfan_tiny(weights=model.state_dict(), depth=3, **kw)


def test_the_shipped_clip_starts_it():
    from reid_lab.models.weights.shipped import shipped
    from reid_lab.training.folder import start_of
    model = cfan_tiny(weights="world")
    assert start_of("cfan_tiny") == "world" and shipped()["cfan_tiny"][0].model == "clip_tiny"
    bare, img = clip_tiny(weights="world"), torch.rand(2, 3, *model.size)
    assert model.loaded.matched == bare.loaded.matched and model.tokenizer.vocab == bare.tokenizer.vocab
    assert torch.equal(model.eval().encode_image(img), bare.eval().encode_image(img))


def test_towers_of_a_released_irra_start_it(tmp_path):
    "Only the towers of a file of that line are taken, whatever else it holds, and they embed as they did there"
    from helpers.irra import BIG, N_IDS, SMALL as TOY, Released, container

    from reid_lab.models.irra import irra_b16
    torch.manual_seed(0)
    net = Released().eval()
    file = tmp_path/"best.pth"
    torch.save(container(net), file)
    kw = dict(towers=TOY, size=BIG)
    irra, ours = irra_b16(N_IDS, weights=file, **kw).eval(), cfan_b16(weights=file, **kw).eval()
    assert {prefix(k) for k, _ in ours.loaded.left} == {"irr", "classify"} and not ours.loaded.missing
    img = torch.rand(2, 3, *BIG)
    assert torch.equal(ours.encode_image(img), irra.encode_image(img))
    assert torch.equal(ours.encode_text(ours.tokenizer(WORDS)), irra.encode_text(irra.tokenizer(WORDS)))
    state = {k: v for k, v in container(net)["model"].items() if k != "base_model.visual.proj"}
    with pytest.raises(ValueError, match="visual.proj"): cfan_b16(weights=dict(model=state), **kw)


@pytest.mark.parametrize("wrap", ["", "module."])
def test_a_released_cfan_is_taken_whole(tmp_path, wrap):
    "Towers, queries, CrossFormer and sigma; its form follows from its shapes"
    from helpers.irra import BIG, DIM, SMALL as TOY, ReleasedCFAN, container
    torch.manual_seed(0)
    net, file, kw = ReleasedCFAN(layers=3, queries=5), tmp_path/"best0.pth", dict(towers=TOY, size=BIG)
    for p in net.parameters(): p.data += .02*torch.randn_like(p)
    torch.save(container(net, wrap), file)
    net = net.half().float().eval()             # as it is saved
    found = inspect_weights(file)
    assert (found["layout"], found["fits"]) == ("cfan", ["cfan_b16"])
    assert found["arguments"] == dict(membership="released", mask_padding=False, queries=5, layers=3)
    ours = cfan_b16(weights=file, **kw).eval()
    assert {prefix(k) for k, _ in ours.loaded.left} == {"mlm_head"} and not ours.loaded.missing
    assert {prefix(k) for k in ours.loaded.kept} == {"logit_scale", "pixels"}       # constants of the program
    assert (ours.membership, ours.mask_padding, len(ours.sigma)) == ("released", False, 1)
    tokens, anchor = torch.randn(3, 9, DIM), torch.randn(3, DIM)
    with torch.no_grad():
        queries, sigma = ours.fuzzy_parts(anchor, tokens)
        assert torch.allclose(queries, net.cross_former(tokens), atol=1e-6) and torch.allclose(sigma, net.sigma(anchor))
        img = torch.rand(2, 3, *BIG)
        assert torch.isfinite(ours.encode_image(img)).all()
    with pytest.warns(UserWarning, match="sigma of membership='released'"):
        paper = cfan_b16(weights=file, membership="paper", **kw)
    assert (paper.membership, len(paper.sigma)) == ("paper", 2)
    assert torch.equal(paper.crossformer.queries, ours.crossformer.queries)
    bare = cfan_b16(weights=file, losses="cda", **kw)
    assert not any(k.startswith(CFAN.new_parts) for k in bare.state_dict())
    with pytest.raises(ValueError, match="a released CFAN.*it fits cfan_b16"): clip_b16(weights=file, size=BIG, **TOY)


# --- training ---------------------------------------------------------------------------------------------------------

def test_rates():
    "Of the released program, by the optimiser of the recipe; and those of the paper"
    model = build()
    s = text_settings("paper", model="cfan_tiny", lr=5e-6, new_mult=1., bias_mult=1.)
    groups = text_optimiser(model, replace(s, part_mult=RELEASED_RATES, decay_bias=True)).param_groups
    rate = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    for k, p in model.named_parameters():
        if not p.requires_grad: continue
        # the released program goes by names: cross_attn, cross_modal_transformer, query; norms are ln_pre_*, ln_post
        base = prefix(k) != "crossformer" or k.split(".")[1].startswith("ln_")
        lr = 5e-6 if base else 2.5e-4 if k == "crossformer.queries" else 2.5e-5
        assert rate[id(p)] == pytest.approx((lr, 4e-5)), k
    assert len(rate) == sum(p.requires_grad for p in model.parameters())
    assert {g["lr"] for g in text_optimiser(model, s).param_groups} == {5e-6}
    ours = {id(p): g["lr"] for g in param_groups(model, lr=1e-5, new_mult=5.) for p in g["params"]}
    assert ours[id(model.crossformer.queries)] == ours[id(model.sigma[0][0].weight)] == pytest.approx(5e-5)
    assert ours[id(model.text_projection)] == pytest.approx(1e-5)


class Three:
    "A loader of three batches an epoch, every second sample with a bridge"
    def __len__(self): return 3
    def epoch(self, e, start=0):
        for i in range(start, 3):
            b = sample_batch(SIZE, seed=10*e + i)
            yield b | dict(img_bridge=b["img"].flip(-1), has_bridge=torch.arange(8) % 2 == 0)


@pytest.mark.parametrize("kw", [{}, dict(losses="bridge"), dict(membership="released")])
def test_a_resumed_training_ends_with_the_same_bits(kw, whole_and_resumed):
    def make():
        torch.manual_seed(0)
        return cfan_tiny(vocab_size=60, size=SIZE, max_len=12, **kw)
    whole, again = whole_and_resumed(make, Three(), lr=1e-3, new_mult=5., device="cpu", seed=3)
    assert all(torch.equal(v, again[k]) for k, v in whole.items())
    assert any(not torch.equal(v, make().state_dict()[k]) for k, v in whole.items())


@pytest.mark.parametrize("form", ["paper", "released"])
def test_one_or_two_mlps_of_sigma(form):
    "Of one both modalities take the width; by default the paper's form has two and the released form one"
    assert len(build(membership=form).sigma) == (2 if form == "paper" else 1)
    for shared in (True, False):
        model = build(membership=form, shared_sigma=shared)
        assert len(model.sigma) == 2 - shared
        anchor, tokens = torch.randn(3, model.dim), torch.randn(3, 5, model.dim)
        image, text = (model.fuzzy_parts(anchor, tokens, text=text)[1] for text in (False, True))
        assert torch.equal(image, text) == shared
