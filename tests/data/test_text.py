"""Tokenizers, cleaning, augmentation and masking."""
import json
import pickle
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from helpers.released_captions import AWKWARD, released_ids
from hypothesis import example, given, settings, strategies as st

from reid_lab.core.basics import stream
from reid_lab.data.text import (
    EDA_OPS,
    STOP_WORDS,
    THESAURUS,
    ClipBPE,
    Masking,
    UnreadText,
    WordPiece,
    _cleaned,
    clean_caption,
    delete_words,
    eda,
    eda_batch,
    eda_count,
    insert_synonyms,
    load_tokenizer,
    mask_each,
    mask_tokens,
    mask_words,
    notes_together,
    one_note,
    quick_rng,
    read_text,
    replace_synonyms,
    swap_words,
    text_note,
)
from reid_lab.world.captions import caption
from reid_lab.world.people import sample_people

LONG = 'A woman in a red coat, ' + 'walking '*300
ODD = 'A <b>woman</b> in a\nlong-sleeved &quot;red&quot; T-shirt 👕\u200b, it’s café!'


@pytest.fixture(scope="module")
def captions():
    return [caption(p, rng=stream(0, 'test', p.pid), granularity=('coarse', 'medium', 'fine')[p.pid % 3])
            for p in sample_people(240, seed=7)]


@pytest.fixture(scope="module")
def bert(captions): return WordPiece.train(captions, vocab_size=600)


@pytest.fixture(scope="module")
def clip(): return ClipBPE(77)


@pytest.fixture(params=['bert', 'clip'])
def tok(request):
    t = request.getfixturevalue(request.param)
    t.reset_report()
    return t


# ---- tokenizers: one contract

def test_contract(tok, captions):
    ids = tok(captions)
    assert ids.dtype == torch.int64 and ids.shape == (len(captions), tok.context_length)
    assert (ids[:, 0] == tok.cls_id).all() and ids.max() < tok.vocab_size and ids.min() >= 0
    for row, n in zip(ids, tok.lengths(ids)):
        assert row[n - 1] == tok.sep_id and (row[n:] == tok.pad_id).all()
    assert 0 <= tok.mask_id < tok.vocab_size and 0 <= tok.unk_id < tok.vocab_size
    assert torch.equal(tok(captions[0]), ids[:1])   # one string is a list of one


def test_truncation_keeps_the_end_and_is_counted(tok, captions):
    ids = tok([LONG, 'a hat'])
    assert ids[0, -1] == tok.sep_id and tok.truncated == 1
    r = tok.report()
    assert r['texts'] == 2 and r['truncated_share'] == .5
    assert r['longest'] > 300 and r['context_length'] == tok.context_length
    tok.reset_report()
    assert tok.report()['texts'] == tok.truncated == 0


def test_round_trip(tok):
    text = 'a woman in a red coat and black boots'
    assert tok.decode(tok([text])[0]) == text


def test_empty_and_odd_captions(tok):
    ids = tok(['', '   ', ODD])
    assert tok.lengths(ids)[:2].tolist() == [2, 2] and tok.empty == 2 and tok.decode(ids[0]) == ''
    assert tok.lengths(ids)[2] > 8


def test_special_strings_in_captions(tok):
    ids = tok(['a [UNK] hat, [MASK]', 'a [SEP] <end_of_text> [CLS] <start_of_text> hat'])
    assert (ids[0] == tok.unk_id).sum() >= 1 and (ids[0] == tok.mask_id).sum() >= 1
    assert (ids[1] == tok.sep_id).sum() == 1 and (ids[1] == tok.cls_id).sum() == 1   # nobody ends a caption from inside


def test_save_and_load(tok, captions, tmp_path):
    tok.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert type(again) is type(tok) and torch.equal(again(captions), tok(captions))
    assert again.context_length == tok.context_length
    shorter = type(tok).load(tmp_path, context_length=20)
    assert shorter(captions).shape[1] == 20
    assert torch.equal(pickle.loads(pickle.dumps(tok))(captions[:5]), tok(captions[:5]))   # loaders send it to workers


@settings(max_examples=40, deadline=None)
@given(text=st.text(st.characters(max_codepoint=127), max_size=60))
@example(text="0\x0c0")     # a form feed: dropped by BERT, a blank for CLIP
@example(text="0\x0b0")
@example(text="0\x1c0")
def test_the_word_cache_changes_nothing(bert, clip, text):
    for t in (bert, clip): assert t.ids(text) == t.encode(text)


@pytest.mark.parametrize('form', ['letters', 'plain'])
@given(st.lists(st.one_of(st.sampled_from(["[UNK]", "[MASK].", "don't", "T-shirt", "a[UNK]b", "&amp;", "<b>", "red</b>",
                                           "caf\u00e9", "1980s", "it's,", "\t", "\x0b"]),
                          st.text(st.characters(max_codepoint=0x17f), max_size=8)), max_size=12))
def test_words_cleaned_one_by_one_are_those_of_the_cleaned_text(bert, form, words):
    tokenizer = WordPiece(bert.vocab, clean=form)
    text = ' '.join(words)
    whole = tokenizer._ids_of_clean(_cleaned(text, form))
    assert tokenizer.ids(text) == whole == tokenizer.ids(text)      # also from the cache


def test_clip_equals_open_clip(captions):
    import open_clip
    texts = [*captions[:40], LONG, 'A café — 2 p.m. & more!', '!!! §']
    assert torch.equal(ClipBPE(77)(texts), open_clip.tokenize(texts, 77))


@pytest.mark.parametrize('length', [77, 168])
def test_clip_reads_captions_as_the_loaders_of_irra_do(length):
    "Upper case, blanks, entities, accents, apostrophes, line breaks, control characters, what is cut"
    ids = ClipBPE(length)(AWKWARD).tolist()
    assert [c for c, row in zip(AWKWARD, ids) if row != released_ids(c, length)] == []
    assert sum(row[-1] == 49407 for row in ids) == 3


def test_wordpiece_equals_transformers(bert, captions, tmp_path):
    import transformers
    bert.save(tmp_path)
    other = transformers.BertTokenizer(vocab_file=str(tmp_path/'vocab.txt'),
                                       vocab={w: i for i, w in enumerate(bert.vocab)}, do_lower_case=True)
    texts = [*captions[:40], LONG, 'A café — 2 p.m. & more!']
    want = other(texts, padding='max_length', truncation=True, max_length=56, return_tensors='pt')['input_ids']
    assert torch.equal(bert(texts), want)


def test_training_is_the_same_in_another_process(captions, bert):
    code = ("import sys, json; from reid_lab.data.text import WordPiece; "
            "print(json.dumps(WordPiece.train(json.load(sys.stdin), vocab_size=600).vocab))")
    out = subprocess.run([sys.executable, '-c', code], input=json.dumps(captions), capture_output=True, text=True,
                         check=True).stdout
    assert json.loads(out) == bert.vocab
    assert WordPiece.train(captions, vocab_size=600).vocab == bert.vocab and bert.vocab_size <= 600


def test_bert_folder(tmp_path, bert):
    with pytest.raises(FileNotFoundError, match='holds no vocab.txt'): WordPiece.load(tmp_path)
    with pytest.raises(FileNotFoundError, match='reid_lab_tokenizer.json'): load_tokenizer(tmp_path)
    (tmp_path/'vocab.txt').write_text('\n'.join(bert.vocab) + '\n')
    (tmp_path/'tokenizer_config.json').write_text('{"do_lower_case": false}')
    t = WordPiece.load(tmp_path)
    assert not t.lowercase and t.context_length == 56 and t.vocab == bert.vocab
    ClipBPE(77).save(tmp_path)
    with pytest.raises(ValueError, match="holds a 'ClipBPE'"): WordPiece.load(tmp_path)


def test_bad_arguments():
    with pytest.raises(ValueError, match='context_length=2'): ClipBPE(2)
    with pytest.raises(ValueError, match='vocab lacks'): WordPiece(['hat'])
    with pytest.raises(ValueError, match='hold no words'): WordPiece.train([''])


# ---- cleaning

def test_clean_caption():
    assert clean_caption(ODD) == 'A woman in a long-sleeved "red" T-shirt , it\'s café!'
    assert clean_caption('A T-shirt, size 3.', 'plain') == 'a t shirt size 3'
    assert clean_caption('A T-shirt, size 3.', 'letters') == 'a t shirt size'
    assert clean_caption("The man's caf\u00e9, the boys' fa\u00e7ade", 'letters') == 'the mans cafe the boys facade'
    for quote in "'\u2018\u2019\u02bc\u00b4": assert clean_caption(f'a man{quote}s hat', 'letters') == 'a mans hat'
    assert clean_caption("a man\u2019s caf\u00e9, cafe\u0301", 'plain') == 'a man s cafe cafe'
    assert clean_caption('Stra\u00dfe \u00d8re c\u0153ur \u0141ódź 2\u00bd', 'plain') == 'strasse ore coeur lodz 21 2'
    assert clean_caption(LONG, max_words=56).count(' ') == 55
    assert clean_caption('') == clean_caption('👕') == ''
    with pytest.raises(TypeError, match='one string'): clean_caption(['a', 'b'])
    with pytest.raises(ValueError, match="style='lower'"): clean_caption('a', 'lower')


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=80))
def test_cleaning_is_idempotent_without_markup(text):
    once = clean_caption(text.replace('<', '').replace('&', ''))
    assert clean_caption(once) == once or '<' in once or '&' in once   # normalising may bring forth new markup
    assert set(clean_caption(text, 'plain')) <= set('abcdefghijklmnopqrstuvwxyz0123456789 ')


# ---- augmentation

def test_eda_counts(oracles):
    o = oracles['eda_counts']
    assert [eda_count(n, o['inputs']['alpha']) for n in o['inputs']['lengths']] == o['expected']['n']


WORDS = 'the man wears a black jacket and blue jeans with a black backpack near the street'.split()


def test_synonyms_replace_all_occurrences_of_n_words():
    for seed in range(20):
        out = replace_synonyms(WORDS, 2, random.Random(seed))
        changed = {a: b for a, b in zip(WORDS, out) if a != b}
        assert len(out) == len(WORDS) and len(changed) == 2 and all(b in THESAURUS[a] for a, b in changed.items())
        if 'black' in changed: assert 'black' not in out
    assert replace_synonyms(['the', 'of'], 2, random.Random(0)) == ['the', 'of']


def test_insertion_swap_deletion():
    for seed in range(20):
        r = random.Random(seed)
        more = insert_synonyms(WORDS, 3, r)
        rest = list(more)
        for w in WORDS: rest.remove(w)
        assert len(rest) == 3 and all(w in THESAURUS for w in rest)
        assert sorted(swap_words(WORDS, 3, r)) == sorted(WORDS)
        assert sum(a != b for a, b in zip(WORDS, swap_words(WORDS, 1, r))) in (0, 2)
        assert 1 <= len(delete_words(WORDS, .9, r)) <= len(WORDS)
    share = np.mean([len(delete_words(WORDS, .1, random.Random(s)))/len(WORDS) for s in range(400)])
    assert abs(share - .9) < .01
    assert insert_synonyms(['the', 'of'], 3, random.Random(0)) == ['the', 'of']
    for f, n in ((insert_synonyms, 2), (swap_words, 2), (delete_words, .5)): assert f([], n, random.Random(0)) == []
    assert swap_words(['hat'], 2, random.Random(0)) == ['hat'] == delete_words(['hat'], 1., random.Random(0))


def test_eda_draws_each_operation_and_is_deterministic(captions):
    once = eda_batch(captions, stream(0, 'e'))
    assert once == eda_batch(captions, stream(0, 'e')) != eda_batch(captions, stream(1, 'e'))
    text = ' '.join(WORDS)
    delta = [len(eda(text, stream(i)).split()) - len(WORDS) for i in range(300)]
    assert min(delta) < 0 and max(delta) == 1
    assert .15 < np.mean([d > 0 for d in delta]) < .35   # n = 1: one word more in a quarter
    assert 'unk' in eda(text, stream(0), ops=('unk',)).split()
    assert eda('', stream(0)) == eda('123', stream(0)) == ''
    with pytest.raises(ValueError, match="ops='shuffle' is not known"): eda('a hat', stream(0), ops=('shuffle',))
    assert set(eda(LONG, stream(0), ops=('swap',)).split()) == set(clean_caption(LONG, 'letters').split())


def test_thesaurus_is_symmetric():
    assert all(w in THESAURUS[v] for w, vs in THESAURUS.items() for v in vs) and not set(THESAURUS) & STOP_WORDS
    assert len(EDA_OPS) == 4


# ---- masking words

@pytest.mark.parametrize('how', ['unk', 'delete'])
def test_mask_words(how):
    text = 'A man, wearing a long-sleeved red shirt and jeans.'
    previous = None
    for m in range(8):
        out = mask_words(text, m, stream(3, 'q'), how)
        if how == 'unk':
            assert out.count('[UNK]') == min(m, 6)   # man wearing long-sleeved red shirt jeans
            kept = {w for w in ('man', 'wearing', 'long-sleeved', 'red', 'shirt', 'jeans') if w in out}
        else:
            kept = {w for w in ('man', 'wearing', 'long-sleeved', 'red', 'shirt', 'jeans') if w in out}
            assert len(kept) == 6 - min(m, 6) and '  ' not in out and ' .' not in out
        assert previous is None or kept <= previous   # nested
        previous = kept
    assert mask_words(text, 0, stream(0)) == text and mask_words('', 3, stream(0)) == ''
    with pytest.raises(ValueError, match='m=-1'): mask_words(text, -1, stream(0))
    with pytest.raises(ValueError, match="how='drop' is not known"): mask_words(text, 1, stream(0), 'drop')


# ---- masked language modelling

def test_mask_tokens_counts_and_labels(tok, captions):
    ids = tok(captions)
    before = ids.clone()
    for p, most in ((.25, 10), (.2, 10), (.25, 3)):
        masked, labels = mask_tokens(ids, tok, stream(0, 'm'), Masking(p, most))
        at = labels >= 0
        assert torch.equal(ids, before) and torch.equal(torch.where(at, labels, masked), ids)
        assert at.sum(1).tolist() == [min(most, max(1, round(n*p))) for n in tok.lengths(ids).tolist()]
        n = torch.as_tensor(tok.lengths(ids))[:, None]
        pos = torch.arange(ids.shape[1])[None]
        assert not (at & ((pos == 0) | (pos >= n - 1))).any()   # words only
        assert not torch.isin(masked[at], torch.tensor([tok.cls_id, tok.sep_id])).any()
    assert torch.equal(mask_tokens(ids, tok, stream(1))[0], mask_tokens(ids, tok, stream(1))[0])


def test_mask_shares(tok, captions):
    ids = tok(captions).repeat(10, 1)
    masked, labels = mask_tokens(ids, tok, stream(2, 'm'))
    at = labels >= 0
    assert abs((masked[at] == tok.mask_id).float().mean() - .8) < .02
    assert abs((masked[at] == ids[at]).float().mean() - .1) < .02


def test_pads_variant_counts_the_padded_length(bert):
    ids = bert(['a hat', 'a red coat'])
    _, labels = mask_tokens(ids, bert, stream(0), Masking(pads=True))
    assert (labels >= 0).sum(1).tolist() == [10, 10] and (labels == bert.pad_id).any()


def test_whole_words_stay_together(bert):
    text = 'zigzagging quarterbacks'   # in pieces, since the vocabulary knows neither
    ids = bert([text]*200)
    n = int(bert.lengths(ids)[0])
    first = [i for i in range(1, n - 1) if bert.starts[ids[0, i]]]
    assert len(first) == 2 and n > 8
    _, labels = mask_tokens(ids, bert, stream(0), Masking(1., n - 2, 0.))
    assert ((labels >= 0).sum(1) == n - 2).all()
    _, labels = mask_tokens(ids, bert, stream(0), Masking(.01, ngram=0., whole_words=False))
    starts = (labels >= 0).int().argmax(1)
    assert starts.unique().numel() > 5   # single tokens anywhere
    _, labels = mask_tokens(ids, bert, stream(0), Masking(.01, ngram=0.))
    assert set((labels >= 0).int().argmax(1).tolist()) == set(first)   # a word is masked from its first piece


def test_each_token_is_masked_by_itself(tok, captions):
    "The number varies as of independent draws; of those drawn 80 % are masked, 10 % replaced; one token at least"
    ids = tok(captions).repeat(20, 1)
    masked, labels = mask_each(ids, tok, stream(0, 'm'))
    at = labels >= 0
    assert torch.equal(torch.where(at, labels, masked), ids) and at.any(1).all()
    n = torch.as_tensor(tok.lengths(ids)) - 2
    pos = torch.arange(ids.shape[1])[None]
    assert not (at & ((pos == 0) | (pos > n[:, None]))).any()
    long = n >= 20                                   # none is drawn of 20 in 4 % of the cases, then the first is masked
    count = at[long].sum(1).float() - .15*n[long]
    assert abs(count.mean()) < .1 and abs((count**2/(.15*.85*n[long])).mean() - 1) < .1
    assert abs((masked[at] == tok.mask_id).float().mean() - .8) < .02
    assert abs((masked[at] == ids[at]).float().mean() - .1) < .02
    assert not torch.isin(masked[at & (masked != ids)], torch.tensor([tok.cls_id, tok.sep_id, tok.pad_id])).any()
    none, first = mask_each(ids, tok, stream(0), p=0.)
    assert (none[:, 1] == tok.mask_id).all() and torch.equal(none[:, 2:], ids[:, 2:])
    assert ((first >= 0).sum(1) == 1).all()
    masked, labels = mask_each(tok(['']), tok, stream(0))
    assert torch.equal(masked, tok([''])) and (labels == -100).all()


def test_nothing_to_mask(tok):
    ids = tok([''])
    masked, labels = mask_tokens(ids, tok, stream(0))
    assert torch.equal(masked, ids) and (labels == -100).all()


def test_quick_rng():
    r = random.Random(3)
    assert quick_rng(r) is r and quick_rng(stream(0)).random() == quick_rng(stream(0)).random()


@pytest.mark.parametrize('text,words', [
    ('1.80m tall', ['1.80m', 'tall']), ('woman\u2019s hat', ['woman\u2019s', 'hat']),
    ("woman's hat", ["woman's", 'hat']),
    ("a 'red' hat", ['red', 'hat']), ('caf\u00e9', ['caf\u00e9']), ('cafe\u0301 hat', ['cafe\u0301', 'hat']),
    ('T\u2011shirt', ['T\u2011shirt']), ('black--white', ['black', 'white']),
    ('5,000 dots. Red', ['5,000', 'dots', 'Red']),
    ('p.m. hat.', ['p.m', 'hat']), ('red,blue', ['red', 'blue']), ('long-sleeved-', ['long-sleeved'])])
def test_masked_words_are_what_a_reader_sees(text, words):
    for m in range(len(words) + 1):
        out = mask_words(text, m, stream(1, 'q'))
        assert out.count('[UNK]') == m
        gone = [w for w in words if w not in out]
        assert len(gone) == m
    want = text
    for w in words: want = want.replace(w, '[UNK]', 1)
    assert mask_words(text, 99, stream(1, 'q')) == want


@pytest.mark.parametrize("text, unknown, known", [
    ("a man in asdkjh", ("asdkjh",), True), ("\u7a7f\u7ea2\u8272", ("\u7a7f\u7ea2\u8272",), False),
    ("a [UNK] [MASK]", (), False),
    ("a woman \U0001F455", ("\U0001F455",), True), ("!!! ...", (), False)])
def test_unknown_words_are_named(bert, text, unknown, known):
    found = read_text(text, bert)
    assert found.unknown == unknown and bool(found.known) == known


@pytest.mark.parametrize("n", [1, 10, 40, 200])
def test_what_is_cut_is_what_does_not_fit(bert, clip, n):
    text = "a man in a red coat " + "walking along "*n + "and a hat"
    for tok in (bert, clip):
        found, words = read_text(text, tok), text.split()
        assert found.tokens == len(tok.ids(text)) + 2
        assert bool(found.cut) == (found.tokens > tok.context_length)
        fit = words[:found.place - 1] if found.cut else words
        assert list(found.cut) == words[len(fit):] and len(tok.ids(" ".join(fit))) + 2 <= tok.context_length
        if found.cut: assert len(tok.ids(" ".join(words[:found.place]))) + 2 > tok.context_length


def test_many_texts_are_counted(captions, clip):
    note = text_note([*captions[:9], LONG, "\u7a7f\u7ea2 hat", "\u7a7f\u7ea2"], clip)
    assert "2 of 12 texts hold words unknown to the tokenizer, 1 of them no known word" in note
    assert "4 of 12 texts are cut off at 77 tokens" in note and "text 3" in note
    assert text_note(["a red hat"], clip) == text_note([], clip) == text_note(["x"], None) == ""


@pytest.mark.parametrize("mask", ["[UNK]", "[MASK]"])
def test_a_mask_is_no_unknown_word(bert, clip, mask):
    "Also where a full stop or the rest of a word follows it"
    for tok in (bert, clip):
        masked = f"a man in {mask}, {mask}. {mask}"
        assert text_note([masked], tok) == text_note([masked, "a man"], tok) == ""
        assert read_text(f"{mask}hat", tok).known == 1 and read_text(masked, tok).known == 2


def test_parts_of_captions_warn_once_as_a_whole(clip, recwarn):
    unread = ["\u7a7f\u7ea2 hat", "a hat", "\u7a7f"]
    def embed(some): warnings.warn(text_note(some, clip), UnreadText, stacklevel=1)
    with one_note(unread, clip):
        for text in unread[::2]: embed([text])
    assert [str(w.message) for w in recwarn] == [text_note(unread, clip)] and recwarn[0].filename == __file__
    recwarn.clear()
    with notes_together():
        for _ in range(3): embed(unread)
        warnings.warn("another", stacklevel=1)
        embed(unread[:2])
    texts = [str(w.message) for w in recwarn]
    assert texts[0] == "another" and len(texts) == 2 and text_note(unread, clip) in texts[1]
    assert texts[1].startswith("captions of 2 evaluations") and recwarn[1].filename == __file__
    embed(unread)                                                        # outside, as ever
    assert len(recwarn) == 3


@pytest.mark.parametrize("p", [-1, 2, float("nan"), "0.15"])
def test_a_share_that_is_none_is_refused(clip, p):
    with pytest.raises(ValueError, match="p="): mask_each(clip(["a man"]), clip, np.random.default_rng(0), p)


def test_masking_takes_single_settings_of_the_last_release(tok, captions):
    ids, given = tok(captions[:9]), dict(p=.5, max_masks=4, ngram=0., whole_words=False, pads=True)
    with pytest.warns(DeprecationWarning, match=r"masking=Masking\(p") as caught:
        old = mask_tokens(ids, tok, stream(0), **given)
    new = mask_tokens(ids, tok, stream(0), Masking(**given))
    assert caught[0].filename == __file__ and all(map(torch.equal, old, new))
    for name, wrong in (("p", 1.5), ("max_masks", -1), ("ngram", 2.)):
        with pytest.raises(ValueError, match=f"{name}={wrong}"): Masking(**{name: wrong})
