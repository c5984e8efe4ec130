"Words and entropy of captions against plain loops, the published tables beside, and what a context length loses"
import math
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings, strategies as st

from reid_lab.analysis.text_stats import (
    STATS,
    all_captions,
    count_words,
    report_lost_tokens,
    stats_table,
    text_histograms,
    text_stats,
    token_lengths,
    truncation_table,
)
from reid_lab.data.text import ClipBPE, WordPiece
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.results.published import published_table

WORDS = "a man A Man's red re-d 2 caf\u00e9 , ! ' \u4f60\u597d \N{GRINNING FACE}".split()
CAPTIONS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), min_size=1, max_size=8)


def loop(texts):
    "The statistics by a plain loop over the formula"
    said = [re.findall("[a-z0-9']+", t.lower()) for t in texts]
    def bits(words):
        n = Counter(words)
        return -sum(k / len(words) * math.log2(k / len(words)) for k in n.values())
    h, every = [bits(w) for w in said], [w for ws in said for w in ws]
    n = [len(w) for w in said]
    return dict(captions=len(texts), max_words=max(n), min_words=min(n), avg_words=sum(n) / len(n),
                unique_words=len(set(every)), max_entropy=max(h), min_entropy=min(h), avg_entropy=sum(h) / len(h),
                all_text_entropy=bits(every))


@settings(max_examples=200, deadline=None)
@given(CAPTIONS)
def test_counts_are_those_of_a_loop(texts):
    got, want = text_stats(texts), loop(texts)
    assert list(got) == list(want) == ["captions", *STATS]
    for k in want: assert got[k] == pytest.approx(want[k], abs=1e-9), k


@settings(max_examples=50, deadline=None)
@given(CAPTIONS, st.randoms())
def test_order_does_not_matter_and_repetition_changes_no_share(texts, rng):
    once, mixed = text_stats(texts), list(texts)
    rng.shuffle(mixed)
    assert text_stats(mixed) == pytest.approx(once)
    twice = text_stats(texts * 2)
    assert all(twice[k] == pytest.approx(once[k]) for k in STATS) and twice["captions"] == 2 * once["captions"]
    assert once["all_text_entropy"] <= math.log2(max(once["unique_words"], 1)) + 1e-9


def test_vector(oracles):
    v = oracles["text_entropy_bits"]
    c, got, want = count_words(v["inputs"]["texts"]), text_stats(v["inputs"]["texts"]), v["expected"]
    assert c.words.tolist() == want["words"] and got["unique_words"] == want["unique_words"]
    assert np.allclose(c.entropy, want["entropy"], atol=1e-6)
    for ours, theirs in dict(max="Max", min="Min", avg="Aver").items():
        assert got[f"{ours}_entropy"] == pytest.approx(want[f"{theirs}Ent"], abs=1e-6)
    assert got["all_text_entropy"] == pytest.approx(want["AllEnt"], abs=1e-6)


def test_sources_of_captions():
    t = tiny_table(4, 2)
    want = [c for cs in t["captions"] for c in cs]
    for source in (t, t.frame, t.text_queries(None), iter(want)): assert all_captions(source) == want
    assert text_stats(count_words(t)) == text_stats(want)
    with pytest.raises(TypeError, match="pass a table, or a list"): all_captions("a man")
    with pytest.raises(ValueError, match="column='captions' is not known"): all_captions(pd.DataFrame(dict(text=["a"])))
    with pytest.raises(ValueError, match="no captions to count"): text_stats(t.take([]))


def test_published_numbers_stand_above_ours():
    table = stats_table({"mine": ["a man", "a red bag"]})
    assert table.index.tolist() == [*published_table("cfam", "1").dataset, "mine"]
    for name, words, entropy in (("CUHK-PEDES", [96, 15, 23.5, 9408], [5.901, 3.057, 4.14, 6.956]),
                                 ("UFine6926", [218, 30, 80.8, 8475], [6.621, 4.201, 5.48, 7.465])):
        assert table.loc[name, [*STATS]].tolist() == words + entropy and table.origin[name] == "published"
    assert table.loc["mine", ["captions", "max_words", "unique_words"]].tolist() == [2, 3, 4]
    assert stats_table({"mine": ["a man"]}, published=False).index.tolist() == ["mine"]


def test_printed_entropies_are_bits():
    "No caption of 80.8 words on average has 5.48 nats: log 218 is the most that the longest could have"
    row = stats_table({"x": ["a"]}).loc["UFine6926"]
    assert math.log(row.avg_words) < row.avg_entropy < math.log2(row.avg_words)
    assert row.max_entropy < math.log2(row.max_words)


def test_histograms_hold_every_caption():
    sources = {"one $a$": ["a " * n for n in (3, 3, 8, 40)], "_two": ["a b"], "none": []}
    fig = text_histograms(sources, words=5)
    left, right = fig.axes
    shares = [p.get_data().values for p in left.patches]
    assert shares[0][:2].tolist() == [50, 25] and [s.sum() for s in shares] == [100, 100, 0]
    assert left.patches[0].get_data().edges[1] == 5 and left.get_xlim()[0] == 0 and left.get_xlim()[1] >= 40
    far = text_histograms({"x": ["a " * 40, "a " * 47]}, words=5).axes[0]
    assert far.get_xlim() == (40, 55) and far.patches[0].get_data().values.sum() == 100
    assert [p.get_data().values.sum() for p in right.patches] == [100, 100, 0]
    assert len(fig.legends) == 1 and fig.picture()[:4] == b"\x89PNG"


@pytest.fixture(scope="module")
def tokenizers():
    said = ["a man in a red shirt carrying a bag"] * 3
    plain, letters = (WordPiece.train(said, 200, clean=c) for c in ("keep", "letters"))
    return dict(CLIP=ClipBPE(), WordPiece=plain, letters=letters)


@settings(max_examples=60, deadline=None)
@given(texts=CAPTIONS)
@example(texts=["\u20ac\x85a man"])   # the mark before `a` becomes an ellipsis: no word by word
def test_lengths_are_those_of_the_tokenizer(tokenizers, texts):
    for tok in tokenizers.values():
        assert token_lengths(texts, tok).tolist() == [len(tok.ids(t)) + 2 for t in texts]


@settings(max_examples=40, deadline=None)
@given(texts=CAPTIONS, length=st.integers(3, 16))
def test_what_is_lost_is_what_the_tokenizer_cuts(tokenizers, texts, length):
    tok = WordPiece(tokenizers["WordPiece"].vocab, length)
    row = truncation_table(texts, dict(x=tok), [length]).iloc[0]
    kept = tok.lengths(tok(texts)).sum() - 2 * len(texts)
    assert row.cut == tok.report()["truncated"] and row.tokens - row.lost == kept and row.captions == len(texts)
    assert row.cut_share == pytest.approx(row.cut / len(texts)) and row.longest == token_lengths(texts, tok).max()
    line = report_lost_tokens(texts, tok)
    assert "\n" not in line and line.startswith("texts: ")
    assert (f"{row.cut} of {len(texts)} captions" if row.cut else f"all {len(texts)} captions fit") in line


def test_table_by_hand():
    tok = WordPiece.train(["a man in red"] * 3, 100)
    t = truncation_table(["a", "a man in red", "a man"], dict(x=tok), (3, 5, 9))
    assert t.cut.tolist() == [2, 1, 0] and t.lost.tolist() == [4, 1, 0] and t.tokens.tolist() == [7] * 3
    assert t.longest.tolist() == [6] * 3 and t.lost_share.tolist() == pytest.approx([4 / 7, 1 / 7, 0])
    with pytest.raises(ValueError, match="lengths=2 leaves no room"): truncation_table(["a"], dict(x=tok), (2,))


def test_a_caption_of_150_words_is_not_cut_silently(tokenizers):
    long = " ".join(["man"] * 150)
    line = report_lost_tokens(["a man", long], tokenizers["CLIP"])
    assert line == ("texts: 1 of 2 captions (50.0%) are longer than 77 tokens of ClipBPE, and 49.3% of all tokens are "
                    "cut off; context_length=152 keeps 99 % of the captions whole, the longest has 152")
    line = report_lost_tokens([long], ClipBPE(168))
    assert line == "texts: all 1 captions fit in 168 tokens of ClipBPE (longest 152)"
    assert report_lost_tokens([], ClipBPE(168)) == "texts: no captions for ClipBPE"


def test_many_captions(tokenizers):
    "80,000 captions of 80 words"
    rng = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(2000)])
    texts = [" ".join(w) for w in words[rng.integers(0, 2000, (4000, 80))]] * 20
    got, lengths = text_stats(texts), token_lengths(texts, tokenizers["CLIP"])
    assert got["captions"] == len(lengths) == 80_000
    assert got["unique_words"] == 2000 and (lengths[:4000] == lengths[4000:8000]).all()
