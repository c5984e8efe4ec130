"""IRRA: a released container built from an independent statement, its losses, and what a constructor refuses."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.irra import BIG, DIM, N_IDS, SIZE, SMALL, TOWERS, VOCAB, WORDS, Block, Released, container
from torch import nn

from reid_lab.data.text import ClipBPE, Masking, WordPiece, mask_tokens
from reid_lab.losses import text as losses
from reid_lab.models.clip import CLIPPair, ImplicitReasoning, irr_loss, masked_caption, strip
from reid_lab.models.convert import convert_weights, inspect_weights, weights_text
from reid_lab.models.irra import IRRA, LOSSES, RELEASED_RATES, irra_b16, irra_tiny
from reid_lab.models.weights.formats import identify, read_weights
from reid_lab.models.zoo import sample_batch
from reid_lab.recipes.text import text_optimiser, text_settings
from reid_lab.training.learner import param_groups


@pytest.fixture(scope="module")
def released():
    "Random numbers that half precision holds, none of them an initial value"
    g = torch.Generator().manual_seed(1)
    net = Released()
    for k, p in net.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        p.data = (noise*(.05 if p.ndim > 1 else .1) + (p.ndim == 1 and "weight" in k)).half().float()
    return net.eval()


@pytest.fixture(scope="module")
def path(released, tmp_path_factory):
    file = tmp_path_factory.mktemp("irra")/"best.pth"
    torch.save(container(released), file)
    return file


def load(weights, losses="sdm+id+irr", n_ids=N_IDS, **kw):
    torch.manual_seed(0)
    return irra_b16(n_ids, weights=weights, losses=losses, **{**dict(towers=SMALL, size=BIG), **kw}).eval()


# --- released checkpoints ---------------------------------------------------------------------------------------------

@pytest.mark.parametrize("wrap", ["", "module."])
def test_a_released_checkpoint_embeds_as_open_clip_does(released, tmp_path, wrap):
    import open_clip
    file = tmp_path/"best.pth"
    torch.save(container(released, wrap), file)
    held = read_weights(file)
    assert identify(file).name == "irra" and {v.dtype for v in held.values()} == {torch.float16}
    assert len(held[f"{wrap}base_model.visual.positional_embedding"]) == 193
    model = load(file)
    done = model.loaded
    assert not done.missing and not done.unused and not done.left and not done.misfit and not done.resized
    assert done.matched == done.total == len(held) and set(done.kept) == {"pixels.mean", "pixels.std", "logit_scale"}
    assert {p.dtype for p in model.parameters()} == {torch.float32} and model.visual.grid_size == (24, 8)
    img, tokens = torch.rand(3, 3, *BIG), open_clip.get_tokenizer("ViT-B-16")(WORDS[:3])
    assert torch.equal(model.tokenizer(WORDS[:3]), tokens)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD))
    with torch.no_grad():
        for ours, want in ((model.encode_image(img), released.base_model.encode_image((img - mean)/std)),
                           (model.encode_text(tokens), released.base_model.encode_text(tokens))):
            assert (ours - F.normalize(want, dim=1)).abs().max() < 1e-5
            assert (ours[0] - ours[1]).norm() > .01


def test_words_and_classifier_are_those_of_the_released_network(released, path):
    model = load(path)
    states, regions = torch.randn(2, 6, DIM), torch.randn(2, 193, DIM)
    with torch.no_grad(): got, want = model.irr(states, regions), released.words(states, regions)
    assert got.shape == (2, 6, VOCAB) and (got - want).abs().max() < 1e-4*want.abs().max()
    assert torch.equal(model.classify.weight, released.classifier.weight)
    assert torch.equal(model.classify.bias, released.classifier.bias)
    keep = torch.rand(2, 6) > .5
    assert torch.allclose(model.irr(states, regions, keep), want[keep], atol=1e-4*want.abs().max().item())


def test_names_and_shapes_at_the_published_size():
    "B/16 of the released program and ours, on the meta device: every tensor of one has its place in the other"
    import open_clip
    with torch.device("meta"):
        cfg = open_clip.get_model_config("ViT-B-16-quickgelu")
        cfg["vision_cfg"]["image_size"] = BIG
        base, model = open_clip.CLIP(**cfg), irra_b16(11003)
        heads = dict(classifier=nn.Linear(512, 11003), cross_attn=nn.MultiheadAttention(512, 8))
        blocks = nn.Sequential(*[Block(512, 8) for _ in range(4)])
        heads |= {f"ln_{k}": nn.LayerNorm(512) for k in ("pre_t", "pre_i", "post")}
        head = nn.ModuleDict(dict(dense=nn.Linear(512, 512), ln=nn.LayerNorm(512), fc=nn.Linear(512, VOCAB)))
    theirs = {f"base_model.{k}": v for k, v in base.named_parameters() if k != "logit_scale"}
    for name, m in (*heads.items(), ("cross_modal_transformer.resblocks", blocks), ("mlm_head", head)):
        theirs |= {f"{name}.{k}": v for k, v in m.named_parameters()}
    from reid_lab.models.weights.formats import translate
    state = translate(theirs, identify(theirs)).state
    mine = {k: v.shape for k, v in model.named_parameters() if k != "logit_scale"}
    assert {k: v.shape for k, v in state.items()} == mine
    assert mine["visual.positional_embedding"] == (193, 768) and mine["irr.mlm_head.fc.weight"] == (VOCAB, 512)
    assert model.irr.cross_attn.num_heads == 8
    assert type(model.visual.transformer.resblocks[0].mlp.gelu).__name__ == "QuickGELU"


def test_positions_of_other_crops_come_from_24_by_8(released, path):
    from reid_lab.models.transreid import resize_positions
    model = load(path, size=(256, 128))
    want = resize_positions(released.base_model.visual.positional_embedding, (16, 8), (24, 8))
    assert torch.allclose(model.visual.positional_embedding, want, atol=1e-6)
    assert model.loaded.resized == ("visual.positional_embedding (193, 64) -> (129, 64)",)


@pytest.mark.parametrize("gone, named", [("mlm_head.fc.bias", "irr.mlm_head.fc.bias"),
                                         ("ln_post.weight", "irr.ln_post.weight"),
                                         ("base_model.visual.proj", "visual.proj"),
                                         ("cross_modal_transformer.resblocks.3.attn.in_proj_bias",
                                          "irr.cross_modal_transformer.resblocks.3.attn.in_proj_bias")])
def test_a_missing_tensor_is_refused(released, gone, named):
    state = {k: v for k, v in released.state_dict().items() if k != gone}
    with pytest.raises(ValueError, match=f"1 missing .first .'{named}'") as e: load(dict(model=state))
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", ["gate.weight", "base_model.gate.weight", "other.visual.proj",
                                  "base_model.other.ln_final.weight"])
def test_an_unknown_tensor_is_refused_and_no_end_of_a_name_is_matched(released, name):
    state = released.state_dict() | {name: torch.full((2,), 9.)}
    with pytest.raises(ValueError, match="1 left over"): load(dict(model=state))


def test_a_suffix_takes_no_place(released):
    "With `visual.proj` under another prefix only, nothing is loaded there"
    state = released.state_dict()
    state["other.visual.proj"] = state.pop("base_model.visual.proj")
    with pytest.raises(ValueError, match="1 missing .first .'visual.proj'.*1 left over"): load(dict(model=state))


def test_other_layers_identities_and_losses(released, path):
    extra = "left over .first .'irr.cross_modal_transformer.resblocks.2"
    with pytest.raises(ValueError, match=extra): load(path, layers=2)
    with pytest.warns(UserWarning, match=r"classify.weight \(7, 64\) instead of \(9, 64\)"): model = load(path, n_ids=9)
    assert torch.equal(model.irr.mlm_head.fc.weight, released.mlm_head["fc"].weight)
    plain = load(path, "sdm", None)
    assert {k.split(".")[0] for k, _ in plain.loaded.left} == {"classify", "irr"} and not plain.loaded.missing
    assert set(dict(plain.loaded.left).values()) == {"used in training only, and not by the losses here"}
    towers = {k: v for k, v in released.state_dict().items() if k.startswith("base_model.")}
    assert torch.equal(load(dict(model=towers), "sdm", None).visual.proj, plain.visual.proj)
    with pytest.raises(ValueError, match="missing"): load(dict(model=towers))


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    import os

    class Runs:
        def __reduce__(self): return os.getcwd, ()
    torch.save(dict(model={"base_model.visual.proj": torch.ones(2)}, optimizer=Runs()), tmp_path/"best.pth")
    with pytest.raises(ValueError, match="holds Python objects besides tensors"): load(tmp_path/"best.pth")


def test_another_activation_is_refused(path):
    with pytest.raises(ValueError, match="trained with quick_gelu, the model has act='gelu'"): load(path, act="gelu")


def test_inspect_and_convert(released, path, tmp_path):
    found = inspect_weights(path)
    assert (found["layout"], found["fits"], found["types"]) == ("irra", ["irra_b16"], ["float16"])
    assert found["arguments"] == dict(n_ids=N_IDS, stride=16, losses="sdm+id+irr", layers=4) and not found["left"]
    assert "create_model('irra_b16', weights='best.pth', n_ids=7" in weights_text(found)
    card = convert_weights(path, tmp_path/"irra.safetensors", "irra_b16", towers=SMALL, size=BIG)
    assert card["zoo"] == "irra_b16" and card["layout"] == found["about"]
    one, two = load(path), load(tmp_path/"irra.safetensors")
    img, tokens = torch.rand(2, 3, *BIG), ClipBPE()(WORDS[:2])
    assert torch.equal(one.encode_image(img), two.encode_image(img)) and not two.loaded.missing
    assert torch.equal(one.encode_text(tokens), two.encode_text(tokens))
    half = {k: v for k, v in released.state_dict().items() if k.startswith(("base_model", "classifier"))}
    torch.save(dict(model=half), tmp_path/"no_words.pth")
    assert inspect_weights(tmp_path/"no_words.pth")["arguments"] == dict(n_ids=N_IDS, stride=16, losses="sdm+id")


# --- the model --------------------------------------------------------------------------------------------------------

def pieces(): return WordPiece.train(WORDS, 120, context_length=24, min_frequency=1)


def build(losses="sdm+id+irr", **kw):
    torch.manual_seed(0)
    model = irra_tiny(kw.pop("n_ids", 6), pieces(), losses=losses, size=SIZE, max_len=24, **kw)
    with torch.no_grad(): [p.add_(.05*torch.randn_like(p)) for p in model.parameters()]
    return model


def make_batch(pid=(7, 8, 7, 9)):
    tok, pid = pieces(), torch.tensor(pid)
    tokens = tok(WORDS)
    rng, masking = np.random.default_rng(0), Masking(p=.15, max_masks=24, ngram=0., whole_words=False)
    masked, labels = mask_tokens(tokens, tok, rng, masking)
    img = torch.rand(4, 3, *SIZE, generator=torch.Generator().manual_seed(1))
    return dict(img=img, tokens=tokens, tokens_mlm=masked, labels_mlm=labels, pid=pid,
                label=pid.unique(return_inverse=True)[1])


@pytest.mark.parametrize("names", ["itc", "sdm", "id", "irr", "sdm+id", "sdm+irr", "itc+sdm+id+irr"])
def test_each_switch_trains_and_logs_exactly_its_terms(names):
    model, on = build(names), names.split("+")
    out = model(make_batch())
    assert list(out) == [f"{n}_loss" for n in LOSSES if n in on] and all(v.isfinite() for v in out.values())
    sum(out.values()).backward()
    got = {k.split(".")[0] for k, p in model.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    want = ({"logit_scale"} if "itc" in on else set()) | ({"classify"} if "id" in on else set()) | (
        {"irr"} if "irr" in on else set())
    assert got == TOWERS | want
    assert not [k for k, p in model.named_parameters() if p.requires_grad and p.grad is None]


def test_terms_are_their_formulas():
    model, batch = build("itc+sdm+id+irr").eval(), make_batch()
    out = model(batch)
    img, txt = model.image_features(batch["img"]), model.text_features(batch["tokens"])
    assert torch.allclose(out["sdm_loss"], losses.sdm(img, txt, batch["pid"], .02))
    ce = [F.cross_entropy(x @ model.classify.weight.T + model.classify.bias, batch["label"]) for x in (img, txt)]
    assert torch.allclose(out["id_loss"], sum(ce)/2, atol=1e-5)
    scores = model.irr(model.text_tokens(batch["tokens_mlm"])[1], model.image_tokens(batch["img"])[1])
    want = F.cross_entropy(scores.flatten(0, 1), batch["labels_mlm"].flatten(), ignore_index=-100)
    assert torch.allclose(out["irr_loss"], want, atol=1e-4)
    assert torch.allclose(out["itc_loss"], losses.itc(img, txt, model.temperature))
    double = build("sdm+id", loss_weights=dict(id=.5)).eval()(batch)["id_loss"]
    assert torch.allclose(2*double, build("sdm+id").eval()(batch)["id_loss"])


def test_the_released_program_aligns_masked_captions():
    "It masks in the array of the clean caption; the words that are predicted are the same"
    batch = make_batch()
    plain, released = build().eval()(batch), build(mask_text=True).eval()(batch)
    assert torch.equal(plain["irr_loss"], released["irr_loss"])
    masked = build().eval()({**batch, "tokens": batch["tokens_mlm"]})
    for k in ("sdm_loss", "id_loss"):
        assert torch.equal(released[k], masked[k]) and not torch.equal(plain[k], masked[k])


def test_embeddings_are_those_of_the_towers_alone():
    model, batch = build().eval(), make_batch()
    bare = strip(model)
    assert type(bare) is CLIPPair and {k.split(".")[0] for k in bare.state_dict()} == TOWERS | {"pixels", "logit_scale"}
    assert torch.equal(bare.encode_image(batch["img"]), model.encode_image(batch["img"]))
    assert torch.equal(bare.encode_text(batch["tokens"]), model.encode_text(batch["tokens"]))
    with torch.no_grad(): [p.fill_(torch.nan) for k, p in model.named_parameters() if k.startswith(IRRA.new_parts)]
    assert model.encode_image(batch["img"]).isfinite().all() and model.encode_text(batch["tokens"]).isfinite().all()
    again = irra_tiny(6, pieces(), bare.state_dict(), size=SIZE, max_len=24)
    assert {k.split(".")[0] for k in again.loaded.kept} == {"classify", "irr"} and not again.loaded.missing


def test_one_identity_and_no_masked_word():
    out = build()(make_batch((5, 5, 5, 5)))
    assert all(v.isfinite() for v in out.values())
    batch = make_batch()
    none = build()({**batch, "labels_mlm": torch.full_like(batch["labels_mlm"], -100)})
    assert none["irr_loss"].item() == 0
    sum(none.values()).backward()


def test_masked_words_are_learnt_from_the_image():
    torch.manual_seed(0)
    irr = ImplicitReasoning(32, 11, layers=2)
    words, regions = torch.zeros(2, 3, 32), torch.randn(2, 5, 32)      # the captions are the same, the images are not
    labels = torch.tensor([[-100, 4, -100], [-100, 9, -100]])
    batch = dict(tokens_mlm=torch.zeros(2, 3, dtype=torch.long), labels_mlm=labels)
    opt = torch.optim.Adam(irr.parameters(), 3e-3)
    for _ in range(30):
        opt.zero_grad()
        irr_loss(irr, batch, words, regions).backward()
        opt.step()
    assert irr(words, regions)[:, 1].argmax(-1).tolist() == [4, 9] and irr_loss(irr, batch, words, regions) < .1
    assert masked_caption(batch) is batch["tokens_mlm"]


@pytest.mark.parametrize("bad, message", [(dict(losses="mlm"), "losses='mlm'"), (dict(losses=[]), "leaves nothing"),
                                          (dict(n_ids=None), "pass n_ids"), (dict(loss_weights=dict(itc=1.)), "'itc'")])
def test_bad_arguments(bad, message):
    with pytest.raises(ValueError, match=message): build(**bad)


def test_a_batch_without_masked_words_is_refused():
    with pytest.raises(ValueError, match="holds no tokens_mlm.*leave 'irr' out"):
        build()({k: v for k, v in make_batch().items() if "mlm" not in k})


def test_new_parts_have_their_own_rate():
    model = build()
    rate = {id(p): g["lr"] for g in param_groups(model, lr=1e-5, new_mult=5.) for p in g["params"]}
    for k, p in model.named_parameters():
        new = k.startswith(("irr.", "classify."))
        if p.requires_grad: assert rate[id(p)] == pytest.approx(5e-5 if new else 1e-5), k


def test_a_resumed_training_ends_with_the_same_bits(whole_and_resumed, three_batches):
    def make():
        torch.manual_seed(0)
        return irra_tiny(4, vocab_size=60, size=SIZE, max_len=12)
    loader = three_batches(lambda seed: sample_batch(SIZE, seed=seed))
    whole, again = whole_and_resumed(make, loader, lr=1e-3, new_mult=5., device="cpu", seed=3)
    assert all(torch.equal(v, again[k]) for k, v in whole.items())
    assert any(not torch.equal(v, make().state_dict()[k]) for k, v in whole.items())


def program_rate(name):
    "Rate over the base rate and whether there is decay, by the rule of IRRA's program, under its names"
    rate, decay = 1., True
    if "cross" in name: rate = 5.
    if "bias" in name: rate, decay = 2., False
    if "classifier" in name or "mlm_head" in name: rate = 5.
    return rate, decay


@pytest.mark.parametrize("part_mult", [(), RELEASED_RATES])
def test_rates_are_those_of_the_paper_or_of_the_released_program(part_mult):
    "Preset `paper`: 5 times for what starts from random numbers, 2 times and no decay for other biases, eps 1e-3"
    model = build()
    optimiser = text_optimiser(model, text_settings("paper", model="irra_tiny", part_mult=part_mult))
    of = {id(p): (g["lr"]/1e-5, g["weight_decay"]) for g in optimiser.param_groups for p in g["params"]}
    for k, p in model.named_parameters():
        if not p.requires_grad: continue
        if part_mult:
            theirs = k.replace("irr.", "").replace("classify.", "classifier.")
            rate, decay = program_rate(theirs if theirs != k else f"base_model.{k}")
        else:
            bias, new = k.endswith("bias"), k.startswith(("irr.", "classify."))
            rate, decay = 5. if new else 2. if bias else 1., not bias
        assert of[id(p)] == (pytest.approx(rate), 4e-5 if decay else 0.), k
    assert optimiser.defaults["eps"] == 1e-3
    norms = {round(of[id(p)][0], 6) for k, p in model.named_parameters()
             if k.startswith("irr.ln_") and k.endswith("weight")}
    assert norms == {1. if part_mult else 5.}
