"""The CLIP for captions and CLIP-ReID from it: wrong files, other tokenizers, captions and prompts that do not fit."""
import torch
from fault import bad, cut, empty, refused
from safetensors.torch import save_file
from torch import nn

from reid_lab.data.text import ClipBPE, WordPiece
from reid_lab.models.bot import bot_tiny
from reid_lab.models.clip import clip_b16, clip_tiny
from reid_lab.models.clip_reid import CLIPReID, Prompts, clip_reid_tiny, fixed_words, start_clip_reid
from reid_lab.models.clip_towers import clip_model, resize_text_positions, tiny_towers
from reid_lab.models.weights.shipped import Card, save_shipped

SIZE, W = (64, 32), torch.ones(2)
SMALL = dict(dim=16, vision=dict(width=32, layers=1, head_width=16, patch_size=16),
             text=dict(width=16, layers=1, heads=2))


def _tok(text="a photo of a person", **kw): return WordPiece.train([text], 60, min_frequency=1, **kw)


def _state(rows=None, **kw): return tiny_towers(SIZE, vocab_size=rows or _tok().vocab_size, **kw).state_dict()


def _file(tmp, content):
    torch.save(content, tmp/"w.pth")
    return tmp/"w.pth"


def _shipped(tmp, model=None, tok=None):
    "A file with a card"
    words = dict(vocab=tok.vocab, context_length=24, clean=tok.clean) if tok else {}
    save_shipped(model or clip_tiny(tok or _tok(), size=SIZE),
                 Card("clip_tiny", {}, (), "-", "-", 0, 1, 1, 1., tokenizer=words), tmp/"w.safetensors")
    return tmp/"w.safetensors"


def _carded(tmp, text):
    "A file whose card is `text`"
    save_file(_state(), tmp/"w.safetensors", metadata=dict(card=text))
    return tmp/"w.safetensors"


def _damaged(tmp, how):
    path = _shipped(tmp)
    how(path)
    return path


def _ours(tmp):
    save_file({"w": W}, tmp/"w.safetensors", metadata=dict(zoo="bot_tiny"))
    return tmp/"w.safetensors"


WANTED = "weights of a clip_tiny"
MODELS = {"clip_tiny": lambda w: clip_tiny(weights=w, size=SIZE), "clip_reid_tiny": lambda w: clip_reid_tiny(
    3, SIZE, weights=w)}
WRONG = {  # what is given -> (makes it, words of the message)
    "a bot_tiny": (lambda t: _shipped(t, bot_tiny(3, size=SIZE)), "expected "),
    "a file of ours of another model": (_ours, "(bot_tiny); expected "),
    "a truncated file": (lambda t: _damaged(t, cut), "is damaged"),
    "an empty file": (lambda t: _damaged(t, empty), "is empty (0 bytes)"),
    "a pickled class": (lambda t: _file(t, nn.Linear(2, 2)), "holds Python objects besides tensors"),
    "BERT": (lambda t: {"embeddings.word_embeddings.weight": W, "encoder.layer.0.attention.self.query.weight": W,
                        "embeddings.token_type_embeddings.weight": W}, "holds BERT of Hugging Face; expected "),
    "a CLIP of another width": (lambda t: _shipped(t, clip_tiny(_tok(), size=SIZE, width=64), _tok()),
                                "cannot be loaded into"),
    "a deeper CLIP": (lambda t: _shipped(t, clip_tiny(_tok(), size=SIZE, layers=4), _tok()), "left over")}


def _given(build, make): return lambda tmp: build(make(tmp))


def _tokens(n): return clip_tiny(vocab_size=60, size=SIZE, max_len=8).encode_text(torch.full((2, n), 5))


FAULTS = [
    *[bad(f"clip: {what} for {model}", f"{what} as the weights of {model}", _given(build, make), words, WANTED)
      for model, build in MODELS.items() for what, (make, words) in WRONG.items()],
    bad("clip: a missing file", "a path that is not there", lambda t: clip_tiny(weights=t/"x.safetensors"),
        "is not a file or folder", WANTED, error=FileNotFoundError),
    bad("clip: weights=True", "a switch in place of weights", lambda t: clip_reid_tiny(3, weights=True),
        "weights=True is unknown"),
    bad("clip: clip_tiny for ViT-B/16", "a file of the tiny one for the published size", lambda t: clip_b16(
        size=SIZE, weights=_shipped(t), **SMALL), "(clip_tiny)", "CLIP of OpenAI", "it fits clip_tiny"),
    bad("clip: no vocabulary", "neither tokenizer nor vocab_size nor weights", lambda t: clip_tiny(),
        "needs a tokenizer or a vocab_size"),
    # tokenizers
    bad("clip: other words", "a tokenizer of other captions than in the card", lambda t: clip_tiny(
        _tok("a red coat"), weights=_shipped(t, tok=_tok())), "another tokenizer", "its vocab differs"),
    bad("clip: other cleaning", "captions cleaned otherwise than in the card", lambda t: clip_reid_tiny(
        3, weights=_shipped(t, tok=_tok()), tokenizer=_tok(clean="letters")), "its clean differs"),
    bad("clip: vocabulary of another size", "90 words for a table of fewer", lambda t: clip_tiny(
        vocab_size=90, size=SIZE, weights=_state()), "token_embedding.weight", "instead of (90, 64)"),
    bad("clip: whose tokenizer", "a state dict has no card", lambda t: clip_reid_tiny(3, SIZE, weights=_state()),
        "ClipBPE has 49408", "pass the tokenizer"),
    bad("clip: prompts of another tokenizer", "CLIP's ids for a table of 60 words",
        lambda t: Prompts(nn.Embedding(60, 16), 3), "the text tower has 60 words"),
    bad("clip: letters that the tokenizer does not know", "a vocabulary without 'ph'",
        lambda t: fixed_words(_tok("a red coat"), "A photo of a"), "does not know all words", "'A photo of a'"),
    bad("clip: a card that is no JSON", "a damaged header", lambda t: clip_tiny(weights=_carded(t, "{tokenizer")),
        "w.safetensors", "card that cannot be read"),
    bad("clip: a card that is a list", "a header of another program", lambda t: clip_reid_tiny(
        3, weights=_carded(t, "[]")), "w.safetensors", "card that cannot be read"),
    bad("clip: a card without words", "a tokenizer that lacks its special tokens", lambda t: clip_tiny(
        weights=_carded(t, '{"tokenizer": {"vocab": ["a"]}}')), "card that cannot be read", "vocab lacks"),
    # lengths
    bad("clip: captions that are too long", "9 tokens for 8 positions", lambda t: _tokens(9),
        "captions of 9 tokens do not fit 8 positions", "max_len=9"),
    bad("clip: prompts that are too long", "12 tokens for 8 positions", lambda t: CLIPReID(
        clip_model(SIZE, context_length=8, **SMALL), 3, SIZE), "a prompt has 12 tokens, the text tower 8 positions"),
    bad("clip: how positions are extended", "longer='linear'",
        lambda t: resize_text_positions(torch.zeros(77, 2), 168, "linear"), "longer='linear'", "'all'"),
    bad("clip: image positions of no known grid", "7 positions", lambda t: clip_tiny(
        size=SIZE, weights=_state() | {"visual.positional_embedding": torch.zeros(8, 96)}),
        "visual.positional_embedding misfits", "give rows and columns"),
    # settings
    bad("clip: an unknown activation", "act='relu'", lambda t: clip_b16(size=SIZE, act="relu", **SMALL), "act='relu'"),
    bad("clip: pixels of an unknown kind", "pixels='imagenet'", lambda t: clip_tiny(vocab_size=9, pixels="imagenet"),
        "pixels='imagenet'", "'half'"),
    bad("clip: OpenAI's weights with GELU", "another activation than in training", lambda t: clip_b16(
        size=SIZE, act="gelu", weights={**clip_model(SIZE, **SMALL).state_dict(), "input_resolution": W[0]}, **SMALL),
        "trained with quick_gelu", "act='quick_gelu'"),
    bad("clip: CLIP-ReID from a deeper CLIP", "two layers for one", lambda t: start_clip_reid(
        clip_model(SIZE, **SMALL), 3, SIZE, clip_model(SIZE, **SMALL | dict(text=dict(width=16, layers=2, heads=2)))
        .state_dict(), (4, 2)), "left over"),
    bad("clip: convert to another size", "clip_tiny to ViT-B/16 on the command line", lambda t: refused(
        "weights", "convert", _shipped(t), t/"x.safetensors", "--model", "bot_r50"), "expected a ResNet-50"),
    bad("clip: a tokenizer without room", "ClipBPE of two tokens", lambda t: ClipBPE(2), "context_length=2"),
]
