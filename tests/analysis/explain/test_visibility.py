"What images of the World show, what words speak of, and memberships against both"
import re

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from scipy.stats import spearmanr

from reid_lab.analysis.explain import visibility as V
from reid_lab.core.basics import stream
from reid_lab.data.text import ClipBPE, WordPiece
from reid_lab.models.cfan import cfan_tiny
from reid_lab.models.weights.shipped import card_for, shipped_tokenizer
from reid_lab.world.captions import STYLES, caption_with_facts
from reid_lab.world.people import NEEDS, PARTS, sample_people
from reid_lab.world.plan import KINDS
from reid_lab.world.world import World


@pytest.fixture(scope="module")
def world(private_cache): return World("smoke", seed=0, task="aerial")


@pytest.fixture(scope="module")
def table(world): return V.with_elevation(world.table(), world)


@pytest.fixture(scope="module")
def tok(): return shipped_tokenizer(card_for("cfan_tiny"))


# ---- images

def test_elevations_are_those_of_the_kinds(table):
    for kind, g in table.frame.groupby("camera"):
        (lo, hi), _, view = KINDS[kind]
        assert g.elevation.between(lo, hi).all() and set(g.view) == {view}
    assert set(table["camera"]) == {"ground", "steep", "low drone", "aerial"}


def test_shares_are_those_of_the_renderer(world, table):
    some = table.take([0, 7, 100, 200, len(table) - 1])
    shown = V.attribute_visibility(world, some)
    assert shown.index.tolist() == some["path"].tolist() and shown.columns.tolist() == list(NEEDS)
    for path, attrs in zip(some["path"], some["attrs"]):
        rendered = world.again(path).visible
        for a, part in NEEDS.items():
            got = shown.loc[path, a]
            if a in ("hat", "bag", "held", "glasses") and attrs[a] in ("none", "no"): assert np.isnan(got)
            elif a in ("upper", "hair", "shoes", "skin", "upper_colour"):
                assert got == pytest.approx(rendered.get(part, dict(fraction=0.))["fraction"], abs=1e-6)


def test_what_nobody_has_has_no_value(world, table):
    shown = V.attribute_visibility(world)
    attrs = pd.DataFrame(table["attrs"].tolist(), index=table["path"])
    assert (shown.bag.isna() == (attrs.bag == "none")).all()
    assert (shown.inner_colour.isna() == ((attrs.opened == "no") | (attrs.inner_colour == "none"))).all()
    seen = world.visible().set_index(table["path"])
    logo, dress = attrs.pattern == "logo", attrs.lower == "dress"
    assert logo.any() and np.allclose(shown.pattern[logo], seen.logo[logo]) and np.allclose(shown.upper, seen.upper)
    if dress.any(): assert np.allclose(shown.lower[dress], seen.upper[dress])


def test_from_above_less_is_seen(world, table):
    shown = V.attribute_visibility(world, table).groupby(table["camera"].to_numpy()).mean()
    for a in ("lower", "glasses", "upper"): assert shown.loc["aerial", a] < shown.loc["ground", a] - .1


# ---- words

@pytest.mark.parametrize("text, attrs, want", [
    ("A man with short black hair.", None, dict(hair="short black hair")),
    ("She wears a long-sleeved, plaid t-shirt with a white logo on the chest.", None,
     dict(upper="long sleeved plaid t shirt", logo="white logo")),
    ("He wears no hat. Blue jeans and a pair of dark brown ankle boots.", None,
     dict(lower="blue jeans", shoes="pair of dark brown ankle boots")),
    ("He does not wear glasses and carries no bag.", None, {}),
    ("An open navy blue coat over a light blue shirt.", dict(upper="coat"),
     dict(upper="open navy blue coat", inner="light blue shirt")),
    ("A light blue shirt.", dict(upper="shirt"), dict(upper="light blue shirt")),
    ("A man with a shaved head holds a paper cup.", None, dict(hair="shaved head", held="paper cup")),
    ("The tank top", None, dict(upper="tank top")), ("shirt", dict(upper="coat"), dict(inner="shirt")), ("", None, {})])
def test_words_by_hand(text, attrs, want):
    found = V.word_parts(text, attrs)
    assert [w for w, _ in found] == re.findall("[a-z]+", text.lower())
    got = {p: " ".join(w for w, q in found if q == p) for p in dict.fromkeys(p for _, p in found) if p}
    assert got == want


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), style=st.sampled_from(STYLES), level=st.sampled_from(["coarse", "medium", "fine"]))
def test_parts_in_words_are_those_of_the_facts(seed, style, level):
    "The grammar says what it mentioned; objects it mentions are found, and nothing that it did not mention"
    person = sample_people(1, seed)[0]
    text, facts = caption_with_facts(person, rng=stream(seed, "said"), granularity=level, style=style)
    found = {p for _, p in V.word_parts(text, person.attrs())} - {""}
    absent = {"none", "no"}
    said = {NEEDS[a] for a, v in facts.items() if a in NEEDS and v not in absent}
    named = {a for a in ("upper", "lower", "shoes", "bag", "held", "hat") if facts.get(a, "none") not in absent}
    if facts.get("lower") == "dress": named -= {"lower"}
    assert named <= found | ({"upper"} if "inner" in found else set()), text
    more = {"upper", "logo", "inner", "lower"}          # garments that a clause on sleeves, legs or jackets names again
    assert found <= said | more, (text, found, said)


def test_clauses_of_absence_speak_of_nothing():
    n = 0
    for seed in range(300):
        person = sample_people(1, seed)[0]
        text, facts = caption_with_facts(person, rng=stream(seed, "x"), granularity="fine", style="real")
        for slot in ("hat", "bag", "held"):
            if facts.get(slot) == "none":
                n += 1
                assert slot not in {p for _, p in V.word_parts(text, person.attrs())}, text
    assert n > 20


@pytest.mark.parametrize("make", [lambda tok: tok, lambda tok: ClipBPE(77),
                                  lambda tok: WordPiece.train(["a red t-shirt, and jeans."]*3, 60, 20, 1)])
def test_tokens_follow_their_words(make, tok):
    tok, text = make(tok), "A woman in a turquoise t-shirt, jeans and sandals."
    parts, ids = V.token_parts(tok, text), tok(text)[0]
    assert len(parts) == int((ids != tok.pad_id).sum()) and parts[0] == parts[-1] == ""
    pieces = [tok.decode([i]) for i in ids[:len(parts)].tolist()]
    own = lambda part: re.sub("[^a-z]", "", "".join(p for p, q in zip(pieces, parts) if q == part).replace("</w>", ""))
    if "[UNK]" not in " ".join(pieces): assert own("upper") == "turquoisetshirt" and own("lower") == "jeans"


def test_long_captions_are_cut_like_their_tokens():
    tok = WordPiece.train(["red coat jeans"]*3, 60, context_length=8, min_frequency=1)
    text = "red coat " * 10
    assert len(V.token_parts(tok, text)) == int((tok(text)[0] != tok.pad_id).sum()) == 8


def test_values_of_tokens(tok):
    texts = ["A man in a red coat and jeans.", "Nobody"]
    got = V.token_visibility(tok, texts, [dict(upper=.75, lower=.25), {}])
    parts = V.token_parts(tok, texts[0])
    want = [dict(upper=.75, lower=.25).get(p, np.nan) for p in parts]
    assert np.array_equal(got[0], want, equal_nan=True) and np.isnan(got[1]).all()
    assert V.token_visibility(tok, ["a bag"], [{}])[0, 2] == 0      # what the image lacks is not visible


# ---- queries

@pytest.mark.parametrize("seed", range(5))
def test_seen_by_queries_naive(seed):
    rng = np.random.default_rng(seed)
    att, val = rng.dirichlet(np.ones(7), (4, 3)), np.where(rng.random((4, 7)) < .5, np.nan, rng.random((4, 7)))
    got = V.seen_by_queries(torch.tensor(att), val, least=.3)
    for b in range(4):
        for k in range(3):
            at = [n for n in range(7) if not np.isnan(val[b, n])]
            w = sum(att[b, k, n] for n in at)
            want = sum(att[b, k, n]*val[b, n] for n in at)/w if w >= .3 else np.nan
            assert got[b, k] == pytest.approx(want, nan_ok=True)


@pytest.mark.parametrize("grid", [(4, 2), (8, 4), (3, 2), (1, 1)])
def test_patches_naive(grid, world):
    parts, share = world.parts(3), {p: i/20 for i, p in enumerate(PARTS)}
    got, (H, W) = V.patch_visibility(parts, share, grid), parts.shape
    for r in range(grid[0]):
        for c in range(grid[1]):
            own = [parts[y, x] for y in range(H) for x in range(W) if y*grid[0]//H == r and x*grid[1]//W == c]
            most, body = max(range(1, len(PARTS)), key=own.count), len(own) - own.count(0)
            want = share[PARTS[most]] if body >= .2*len(own) else np.nan
            assert got[r*grid[1] + c] == pytest.approx(want, nan_ok=True)
    assert np.isnan(V.patch_visibility(np.zeros((8, 4), int), share, (2, 2))).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=30))
def test_rank_correlation_is_spearmans(pairs):
    a, b = map(list, zip(*pairs))
    want = spearmanr(a, b).statistic if len(set(a)) > 1 < len(set(b)) else np.nan
    assert V.rank_correlation(a, b) == pytest.approx(want, nan_ok=True, abs=1e-12)
    assert V.rank_correlation([*a, np.nan], [*b, 3]) == pytest.approx(want, nan_ok=True, abs=1e-12)


@pytest.fixture(scope="module")
def pairs(table):
    f = table.where(split="test").frame
    said = f[f.view == "ground"].explode("captions").groupby("pid").captions.first()
    above = f[f.view == "aerial"]
    return above.path.tolist(), said[above.pid].tolist()


@pytest.mark.parametrize("knows", ["nothing", "everything", "the contrary"])
def test_a_model_whose_memberships_are_the_visibility(knows, world, table, pairs):
    "Correlations of 1, -1 and about 0 for a model that knows, inverts, or draws what is visible"
    torch.manual_seed(0)
    model = cfan_tiny(weights="world", size=(64, 32)).eval()
    truth = V.membership_visibility(model, world, table, *pairs)
    rng = np.random.default_rng(0)
    seen = truth.visibility
    mu = {"nothing": rng.random(len(truth)), "everything": seen, "the contrary": 1 - seen}[knows]
    got = V.visibility_correlation(truth.assign(membership=mu))
    want = dict(nothing=0, everything=1, **{"the contrary": -1})[knows]
    assert set(got.index) == {"image", "caption"} and got.n.min() > 50
    assert np.allclose(got.within, want, atol=.25 if knows == "nothing" else 1e-9)
    assert np.allclose(got.pooled, want, atol=.2 if knows == "nothing" else 1e-9)
    if knows != "nothing": assert np.allclose(got.own, got.own_seen, atol=1e-9) and got.own.between(.01, .99).all()


@pytest.mark.parametrize("seed", range(4))
def test_shares_within_groups_naive(seed):
    rng = np.random.default_rng(seed)
    v, g = rng.normal(size=60), rng.integers(7, size=60)
    means = {k: np.mean([a for a, b in zip(v, g) if b == k]) for k in set(g.tolist())}
    inner = sum((a - means[b])**2 for a, b in zip(v, g.tolist()))
    assert np.isclose(V.share_within(v, g), inner/sum((a - v.mean())**2 for a in v))
    assert np.isclose(V.share_within(g.astype(float), g), 0) and np.isclose(V.share_within(v, np.zeros(60)), 1)


def test_sight_is_that_of_the_model(world, table, pairs, tok):
    "One pair computed once more from its parts, and independent of the batch"
    torch.manual_seed(0)
    model = cfan_tiny(weights="world", size=(64, 32)).eval()
    (paths, said), i = pairs, 9
    found = V.membership_visibility(model, world, table, paths[:i + 3], said[:i + 3], batch=4)
    alone = V.membership_visibility(model, world, table, paths[i:i + 1], said[i:i + 1])
    mine = found[found.path == paths[i]].reset_index(drop=True)
    assert np.allclose(mine.membership, alone.membership, atol=1e-4)
    assert np.allclose(mine.visibility, alone.visibility, atol=1e-4, equal_nan=True)
    row = table["path"].tolist().index(paths[i])
    share = dict(world.visible().iloc[int(paths[i][-11:-4])])
    values = [share.get(p, np.nan) if p else np.nan for p in V.token_parts(tok, said[i], table["attrs"].iat[row])]
    looks = model.memberships(tokens=tok([said[i]]))
    want = V.seen_by_queries(looks["attention"][..., :len(values)], [values])[0]
    assert np.allclose(alone[alone.side == "caption"].visibility, want, atol=1e-5, equal_nan=True)
    assert np.allclose(alone[alone.side == "caption"].membership, looks["membership"][0], atol=1e-5)
    img = torch.from_numpy(table.images([row], (64, 32))).permute(0, 3, 1, 2)/255
    looks = model.memberships(img)                       # the first token is CLS, which shows no part
    patches = V.patch_visibility(world.parts(paths[i]), share, model.visual.grid_size)
    want = V.seen_by_queries(looks["attention"][..., 1:], patches[None])[0]
    assert len(set(patches[~np.isnan(patches)])) > 1     # else every query would see the same
    assert looks["attention"].shape[-1] == len(patches) + 1
    assert np.allclose(alone[alone.side == "image"].visibility, want, atol=1e-5, equal_nan=True)
    assert np.allclose(alone[alone.side == "image"].membership, looks["membership"][0], atol=1e-5)


def test_edges(world, table):
    torch.manual_seed(0)
    model = cfan_tiny(weights="world", size=(64, 32)).eval()
    none = V.membership_visibility(model, world, table, [], [])
    assert len(none) == 0 and len(V.visibility_correlation(none)) == 0
    with pytest.raises(ValueError, match=r"\(B,K,N\) with values \(B,N\)"):
        V.seen_by_queries(np.zeros((2, 3)), np.zeros((2, 3)))
    plain = cfan_tiny(weights="world", losses="cda", size=(64, 32))
    with pytest.raises(ValueError, match="add 'fta'"):
        V.membership_visibility(plain, world, table, table["path"][:1].tolist(), ["a man"])
