"""A CLIP for captions: a plain re-statement of both towers, end tokens, positions, weights, and CLIP-ReID from it."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.data.text import ClipBPE, WordPiece
from reid_lab.losses import text as losses
from reid_lab.models.clip import CLIPPair, clip_b16, clip_tiny, end_positions
from reid_lab.models.clip_reid import clip_reid_tiny, fixed_words
from reid_lab.models.clip_towers import PIXELS, clip_model, resize_text_positions
from reid_lab.models.convert import convert_weights
from reid_lab.models.weights.shipped import Card, save_shipped
from reid_lab.models.zoo import sample_batch

SIZE = (64, 32)
WORDS = ["a photo of a person", "a tall woman in a red coat!", "the man wears a black hat and blue shoes"]
SMALL = dict(dim=32, vision=dict(width=64, layers=2, head_width=32, patch_size=16),
             text=dict(width=32, layers=2, heads=2))


def pieces(**kw): return WordPiece.train(WORDS, 200, context_length=48, min_frequency=1, **kw)


def tiny(tok=None, **kw):
    "A `clip_tiny` whose every number differs from its initial value"
    torch.manual_seed(0)
    model = clip_tiny(tok or pieces(), size=SIZE, **kw).eval()
    with torch.no_grad(): [p.add_(.05*torch.randn_like(p)) for p in model.parameters()]
    return model


def card(tok, **kw):
    words = dict(vocab=tok.vocab, context_length=tok.context_length, clean=tok.clean)
    return Card("clip_tiny", dict(size=SIZE), (("smoke", "text", 900),), "-", "-", 0, 1, 1, 1., tokenizer=words, **kw)


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    "A file with its card, as the package ships them"
    tok = pieces()
    return save_shipped(tiny(tok), card(tok), tmp_path_factory.mktemp("clip")/"clip_tiny.safetensors")


# --- a plain re-statement, from names and shapes ---------------------------------------------------------------------

def norm(s, name, x): return F.layer_norm(x, x.shape[-1:], s[f"{name}.weight"], s[f"{name}.bias"])


def block(s, name, x, heads, causal):
    "Pre-norm attention and QuickGELU, head by head"
    B, L, D = x.shape
    y = norm(s, f"{name}.ln_1", x) @ s[f"{name}.attn.in_proj_weight"].T + s[f"{name}.attn.in_proj_bias"]
    q, k, v = y.split(D, -1)
    out, d = [], D//heads
    for h in range(heads):
        own = slice(h*d, (h + 1)*d)
        a = q[..., own] @ k[..., own].transpose(1, 2)/math.sqrt(d)
        if causal: a = a.masked_fill(torch.ones(L, L).triu(1).bool(), -torch.inf)
        out.append(a.softmax(-1) @ v[..., own])
    x = x + torch.cat(out, -1) @ s[f"{name}.attn.out_proj.weight"].T + s[f"{name}.attn.out_proj.bias"]
    y = norm(s, f"{name}.ln_2", x) @ s[f"{name}.mlp.c_fc.weight"].T + s[f"{name}.mlp.c_fc.bias"]
    return x + (y*torch.sigmoid(1.702*y)) @ s[f"{name}.mlp.c_proj.weight"].T + s[f"{name}.mlp.c_proj.bias"]


def plain_image(s, img, stride=16, heads=3):
    x = F.conv2d((img - .5)/.5, s["visual.conv1.weight"], stride=stride).flatten(2).transpose(1, 2)
    x = torch.cat([s["visual.class_embedding"].expand(len(x), 1, -1), x], 1) + s["visual.positional_embedding"]
    x = norm(s, "visual.ln_pre", x)
    for i in range(3): x = block(s, f"visual.transformer.resblocks.{i}", x, heads, False)
    return norm(s, "visual.ln_post", x) @ s["visual.proj"]


def plain_text(s, rows):
    "Caption by caption, without padding; the last token is the end"
    out = []
    for ids in rows:
        x = (s["token_embedding.weight"][ids] + s["positional_embedding"][:len(ids)])[None]
        for i in range(2): x = block(s, f"transformer.resblocks.{i}", x, 2, True)
        out.append(norm(s, "ln_final", x)[0] @ s["text_projection"])
    return out


@pytest.mark.parametrize("make", [pieces, lambda: ClipBPE(40)], ids=["WordPiece", "BPE"])
def test_embeddings_are_those_of_a_plain_forward(make):
    tok = make()
    model, img, tokens = tiny(tok), torch.rand(3, 3, *SIZE), tok(WORDS)
    s = model.state_dict()
    rows = [[tok.cls_id, *tok.ids(w), tok.sep_id] for w in WORDS]
    with torch.no_grad():
        images, texts = plain_image(s, img), plain_text(s, rows)
        image, regions = model.image_tokens(img)
        text, words, real = model.text_tokens(tokens)
        pairs = [(model.encode_image(img), F.normalize(images[:, 0])), (regions, images), (image, images[:, 0]),
                 (model.encode_text(tokens), F.normalize(torch.stack([t[-1] for t in texts]))),
                 (text, torch.stack([t[-1] for t in texts])), (words[real], torch.cat(texts))]
        for ours, theirs in pairs: assert (ours - theirs).abs().max() < 1e-5*max(1, theirs.abs().max())
    assert real.sum(1).tolist() == [len(r) for r in rows] and regions.shape == (3, 9, 64)


@pytest.mark.parametrize("make", [pieces, lambda: ClipBPE(40)], ids=["WordPiece", "BPE"])
def test_the_end_token_is_that_of_the_tokenizer(make):
    tok = make()
    tokens = tok(WORDS + [""])
    ends = end_positions(tokens, tok.sep_id, tok.pad_id)
    assert ends.tolist() == [len(tok.ids(w)) + 1 for w in WORDS + [""]]
    assert (tokens.gather(1, ends[:, None]) == tok.sep_id).all()
    if make is pieces: assert (tokens.argmax(1) != ends).any()  # what OpenAI's rule would take
    assert tiny(tok).end_id == tok.sep_id


def test_an_exclamation_mark_is_no_padding():
    "CLIP pads with 0, which is also the id of '!'"
    tok = ClipBPE(20)
    tokens = tok(["a red coat!"])
    assert (tokens[0] == tok.pad_id).any() and end_positions(tokens, tok.sep_id, tok.pad_id).item() == 5


def test_a_caption_without_end_token_is_read_at_its_last_token():
    tokens = torch.tensor([[2, 9, 8, 0, 0], [2, 9, 3, 8, 0], [0, 0, 0, 0, 0]])
    assert end_positions(tokens, 3).tolist() == [2, 2, 0] and end_positions(tokens).tolist() == [2, 3, 0]


def test_padding_has_no_influence():
    tok = pieces()
    model, tokens = tiny(tok), tok(WORDS)
    ends = end_positions(tokens, tok.sep_id, tok.pad_id)
    short = tokens[:, :int(ends.max()) + 1]
    long = F.pad(tokens, (0, 168 - tokens.shape[1]), value=tok.pad_id)
    other = torch.where(torch.arange(168) > ends[:, None], torch.randint(5, tok.vocab_size, long.shape), long)
    with torch.no_grad():
        want = model.encode_text(tokens)
        for x in (short, long, other): assert torch.allclose(model.encode_text(x), want, atol=1e-6)
        for i, e in enumerate(ends.tolist()):
            assert torch.allclose(model.encode_text(tokens[i:i + 1, :e + 1]), want[i:i + 1], atol=1e-6)
    with pytest.raises(ValueError, match="captions of 169 tokens do not fit 168 positions"):
        model.encode_text(F.pad(long, (0, 1)))


def test_without_gradients_columns_of_padding_are_not_computed(monkeypatch):
    "Embedding reads the captions of a batch up to the longest; the features are those of the whole width"
    tok, seen = pieces(), []
    model, plain = tiny(tok), CLIPPair.text_hidden
    monkeypatch.setattr(CLIPPair, "text_hidden", lambda self, t: (seen.append(t.shape[1]), plain(self, t))[1])
    for words in (WORDS, WORDS[:1], WORDS[2:]):
        tokens = tok(words)
        whole = model.encode_text(tokens).detach()
        with torch.no_grad(): short = model.encode_text(tokens)
        assert seen[-2:] == [48, int(tok.lengths(tokens).max())] and (whole - short).abs().max() < 1e-6
    with torch.no_grad(): assert model.encode_text(tokens[:0]).shape == (0, model.dim)


def test_the_loss_is_itc_at_a_learnt_temperature():
    model, batch = tiny(), sample_batch(SIZE, vocab_size=60)
    out = model(batch)
    i, t = model.encode_image(batch["img"]), model.encode_text(batch["tokens"])
    assert torch.allclose(out["itc_loss"], losses.itc(i, t, math.exp(-model.logit_scale.item()), batch["pid"]))
    assert not torch.allclose(out["itc_loss"], losses.itc(i, t, .2, batch["pid"]))
    out["itc_loss"].backward()
    assert model.logit_scale.grad != 0
    with torch.no_grad(): model.logit_scale.fill_(9.)
    assert model.temperature.item() == pytest.approx(.01)
    assert clip_tiny(vocab_size=9).temperature.item() == pytest.approx(.07)


def test_sizes():
    model = clip_tiny(vocab_size=1200)
    count = lambda m: sum(p.numel() for p in m.parameters())
    assert count(model) < 2_000_000 and len(model.positional_embedding) == 168
    twin = clip_reid_tiny(4)
    assert {k: v.shape for k, v in model.visual.state_dict().items()} == {
        k: v.shape for k, v in twin.visual.state_dict().items()}
    assert {k: v.shape for k, v in model.transformer.state_dict().items()} == {
        k: v.shape for k, v in twin.text.transformer.state_dict().items()}
    with torch.device("meta"): big = clip_b16(max_len=168)
    assert (big.visual.grid_size, len(big.positional_embedding), big.dim) == ((24, 8), 168, 512)
    assert isinstance(big.tokenizer, ClipBPE) and big.tokenizer.context_length == 168
    longer = WordPiece.train(WORDS, 60, context_length=200)
    assert len(clip_tiny(longer).positional_embedding) == 200


# --- positions and pixels --------------------------------------------------------------------------------------------

def test_text_positions_against_numpy():
    table = torch.randn(77, 5)
    line = lambda n: np.stack([np.interp(np.linspace(0, 76, n), np.arange(77), c) for c in table.numpy().T], 1)
    assert np.abs(resize_text_positions(table, 168).numpy() - line(168)).max() < 1e-6
    rest = resize_text_positions(table, 168, "rest")
    assert torch.equal(rest[:77], table) and np.abs(rest[77:].numpy() - line(91)).max() < 1e-6
    for how in ("all", "rest"):
        assert torch.equal(resize_text_positions(table, 77, how), table)
        assert torch.equal(resize_text_positions(table, 40, how), table[:40])
        assert resize_text_positions(table.half(), 168, how).dtype == torch.float16


@pytest.mark.parametrize("longer", ["all", "rest"])
def test_b16_from_published_weights(longer):
    "A square CLIP of 77 positions; image and text positions are resized, nothing else changes"
    torch.manual_seed(0)
    clip = clip_model((64, 64), **SMALL)
    state = {k: v for k, v in clip.state_dict().items() if not k.startswith("pixels.")}
    openai = state | {k: torch.tensor(1) for k in ("input_resolution", "context_length", "vocab_size")}
    model = clip_b16(size=(96, 32), max_len=168, weights=openai, longer=longer, **SMALL).eval()
    assert not model.loaded.missing and not model.loaded.unused and len(model.loaded.resized) == 2
    assert torch.equal(model.positional_embedding, resize_text_positions(clip.positional_embedding, 168, longer))
    assert model.visual.grid_size == (6, 2) and model.loaded.kept == ("pixels.mean", "pixels.std")
    assert model.pixels.mean.flatten().tolist() == pytest.approx(PIXELS["clip"][0])
    same = clip_b16(size=(64, 64), weights=openai, **SMALL).eval()
    tokens, img = same.tokenizer(WORDS), torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.allclose(same.text_features(tokens), clip.eval().encode_text(tokens), atol=1e-5)
        assert torch.allclose(same.image_features(img), clip.visual(same.pixels(img)), atol=1e-5)


def test_pixels_are_those_of_the_weights(tmp_path):
    "A model trained on other statistics brings them along"
    tok = pieces()
    path = save_shipped(tiny(tok, pixels="clip"), card(tok), tmp_path/"c.safetensors")
    for model in (clip_tiny(weights=path, size=SIZE), clip_reid_tiny(3, SIZE, weights=path)):
        assert model.pixels.std.flatten().tolist() == pytest.approx(PIXELS["clip"][1], abs=2e-4)
    assert clip_tiny(vocab_size=9).pixels.mean.flatten().tolist() == clip_reid_tiny(3).pixels.mean.flatten().tolist()


# --- weights ---------------------------------------------------------------------------------------------------------

def test_a_clip_tiny_from_a_shipped_file(shipped):
    one, tok = tiny(), pieces()
    two = clip_tiny(weights=shipped, size=SIZE).eval()
    assert two.tokenizer.vocab == tok.vocab and two.tokenizer.context_length == 48
    assert two.loaded.matched == two.loaded.total and not two.loaded.kept and not two.loaded.resized
    with torch.no_grad():
        img = torch.rand(2, 3, *SIZE)
        assert torch.allclose(one.encode_image(img), two.encode_image(img), atol=5e-3)  # matrices are halves
        assert torch.allclose(one.encode_text(tok(WORDS)), two.encode_text(tok(WORDS)), atol=5e-3)
    other = clip_tiny(weights=shipped, size=(128, 64), max_len=200, longer="rest")
    assert {r.split()[0] for r in other.loaded.resized} == {"visual.positional_embedding", "positional_embedding"}
    assert torch.equal(other.positional_embedding[:168], two.positional_embedding)


@pytest.fixture(params=["file", "state", "converted"])
def started(request, shipped, tmp_path):
    "(clip_tiny, clip_reid_tiny of four identities from it, tokenizer)"
    tok, kw = pieces(), {}
    if request.param == "file": source = shipped
    elif request.param == "state": source, kw = clip_tiny(weights=shipped, size=SIZE).state_dict(), dict(tokenizer=tok)
    else:
        source, kw = tmp_path/"x.safetensors", dict(tokenizer=tok)
        convert_weights(shipped, source, "clip_tiny", size=SIZE)
    clip = clip_tiny(weights=source, size=SIZE, **kw).eval()
    return clip, clip_reid_tiny(4, SIZE, weights=source, **kw).eval(), tok


def test_clip_reid_from_a_clip_tiny(started):
    clip, model, tok = started
    img = torch.rand(3, 3, *SIZE)
    with torch.no_grad(): assert torch.equal(model.joint_features(img), clip.image_features(img))
    assert model.loaded.matched == model.loaded.total and not model.loaded.missing and not model.loaded.unused
    table, before, after = clip.token_embedding.weight, tok.ids("a photo of a"), tok.ids("person")
    assert torch.equal(model.prompts.prefix, table[[tok.cls_id, *before]])
    assert torch.equal(model.prompts.suffix, table[[*after, tok.sep_id]])
    words = tok.ids("red coat black hat")[:4]
    with torch.no_grad():
        model.prompts.learned[2] = table[words]
        tokens = torch.tensor([[tok.cls_id, *before, *words, *after, tok.sep_id]])
        assert torch.allclose(model.text(model.prompts(torch.tensor([2]))), clip.text_features(tokens), atol=1e-6)
    assert len(model.text.pos) == 168 and model.tokenizer is None


def test_full_stops_and_cleaning_of_prompts():
    for clean in ("keep", "letters"):
        tok = WordPiece.train(["a photo of a person"], 60, clean=clean)
        assert [tok.vocab[i] for i in fixed_words(tok, "A photo of a!")] == [
            tok.vocab[i] for i in tok.ids("a photo of a")]
    bpe = ClipBPE()
    assert fixed_words(bpe, "person.") == bpe.bpe.encode("person.") and len(fixed_words(bpe, "person.")) == 2


def test_without_weights_clip_reid_tiny_is_what_it_was():
    "The same draws as an `open_clip` model of these sizes, prompts behind them"
    from open_clip.model import CLIP
    torch.manual_seed(0)
    model = clip_reid_tiny(5)
    torch.manual_seed(0)
    clip = CLIP(64, dict(image_size=(128, 64), width=96, layers=3, head_width=32, patch_size=16),
                dict(context_length=77, width=64, layers=2, heads=2), quick_gelu=True)
    learned = .02*torch.randn(5, 4, 64)
    assert torch.equal(model.visual.proj, clip.visual.proj) and torch.equal(model.text.pos, clip.positional_embedding)
    assert torch.equal(model.prompts.learned, learned)
    assert torch.equal(model.prompts.prefix[0], clip.token_embedding.weight[49406])
    assert model.loaded is None and sum(p.numel() for p in model.parameters()) == 530_144 + 160 + 4*64


def test_a_trained_clip_reid_is_read_again(shipped, tmp_path):
    "Its file holds prompts and positions of other lengths than a model without weights has"
    model = clip_reid_tiny(4, SIZE, weights=shipped).eval()
    model.text_cache()
    save_weights(model, tmp_path/"m.safetensors")
    again = load_weights(clip_reid_tiny(4, SIZE), tmp_path/"m.safetensors").eval()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
    assert torch.equal(again.text(again.prompts(torch.arange(4))), model.text(model.prompts(torch.arange(4))))
    other = clip_reid_tiny(5, SIZE)
    shapes = {k: v.shape for k, v in other.state_dict().items()}
    with pytest.raises(ValueError, match="differences"): load_weights(other, tmp_path/"m.safetensors")
    assert shapes == {k: v.shape for k, v in other.state_dict().items()}
    plain = clip_reid_tiny(4, SIZE)
    save_weights(plain, tmp_path/"p.safetensors")
    back = load_weights(clip_reid_tiny(4, SIZE, weights=shipped), tmp_path/"p.safetensors")
    assert len(back.text.pos) == 77 and len(back.prompts.prefix) == 5


def test_a_converted_clip_reid_tiny_starts_another(shipped, tmp_path):
    convert_weights(shipped, tmp_path/"r.safetensors", "clip_reid_tiny", size=SIZE)
    first = clip_reid_tiny(4, SIZE, weights=shipped).eval()
    with pytest.warns(UserWarning, match="texts .1, 64. instead of .4, 64."):  # one identity in the file, four here
        model, img = clip_reid_tiny(4, SIZE, weights=tmp_path/"r.safetensors").eval(), torch.rand(2, 3, *SIZE)
    with torch.no_grad(): assert torch.equal(model.joint_features(img), first.joint_features(img))
    assert torch.equal(model.prompts.prefix, first.prompts.prefix) and not model.loaded.missing


@pytest.mark.parametrize("make", [lambda w: clip_tiny(weights=w, size=SIZE), lambda w: clip_reid_tiny(3, weights=w)])
def test_wrong_files_are_refused_in_one_line(make, tmp_path):
    from reid_lab.models.bot import bot_tiny
    save_shipped(bot_tiny(3), replace(card(pieces()), model="bot_tiny"), tmp_path/"bot.safetensors")
    (tmp_path/"empty.safetensors").write_bytes(b"")
    (tmp_path/"cut.safetensors").write_bytes((tmp_path/"bot.safetensors").read_bytes()[:999])
    torch.save(torch.nn.Linear(2, 2), tmp_path/"class.pth")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(ValueError, match="weights of a clip_tiny") as said: make(path)
        assert path.name in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize("stride, size, grid",
                         [(16, (128, 64), (8, 4)), (12, (64, 32), (5, 2)), (16, (64, 64), (4, 4))])
def test_image_positions_of_another_grid(shipped, stride, size, grid):
    "The file has 4 x 2 positions; 2:1 crops are assumed unless the number is the model's own"
    from reid_lab.models.transreid import resize_positions
    old = clip_tiny(weights=shipped, size=SIZE).visual.positional_embedding
    for model in (clip_tiny(weights=shipped, size=size, stride=stride),
                  clip_reid_tiny(3, size, stride, weights=shipped)):
        assert model.visual.grid_size == grid
        assert torch.allclose(model.visual.positional_embedding, resize_positions(old, grid, (4, 2)))


def test_activation_of_a_file_of_ours(tmp_path):
    state = {k: v.clone() for k, v in clip_model((64, 32), **SMALL).state_dict().items()}
    for args, act in (("{}", "gelu"), ('{"act": "gelu"}', "quick_gelu")):
        save_file(state, tmp_path/"b.safetensors", metadata=dict(zoo="clip_b16", arguments=args))
        with pytest.raises(ValueError, match=f"the model has act='{act}'"):
            clip_b16(size=(64, 32), weights=tmp_path/"b.safetensors", act=act, **SMALL)
    model = clip_b16(size=(64, 32), weights=tmp_path/"b.safetensors", act="gelu", **SMALL)
    assert isinstance(model, CLIPPair) and model.pixels.mean.flatten().tolist() == [.5]*3
