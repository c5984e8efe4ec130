"Open-set rates by their definitions, and thresholds that keep what they promise"
import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.open_set import bare, people, planted
from hypothesis import given, settings, strategies as st

from reid_lab.analysis import open_set, search
from reid_lab.analysis.open_set import (
    DistanceScores,
    Threshold,
    calibrate,
    comparable,
    each_removed,
    fnir,
    fpir,
    identification_curve,
    open_set_rates,
    search_scores,
    threshold_for,
    verification_rates,
    verification_threshold,
)
from reid_lab.retrieval import scores
from reid_lab.retrieval.embeddings import Embeddings


def plain_fpir(tops, t):
    "NISTIR 8271: nonmated searches with a candidate at or above T, over nonmated searches"
    return sum(1 for s in tops if s >= t)/len(tops)


def plain_fnir(mates, ranks, t, first):
    "NISTIR 8271: mated searches whose mate is outside the top R or below T, over mated searches"
    return sum(1 for s, r in zip(mates, ranks) if r > first or s < t)/len(mates)


few = st.lists(st.integers(-4, 4), min_size=1, max_size=30)   # many equal scores


@settings(max_examples=200, deadline=None)
@given(few, few, st.integers(-5, 5), st.integers(1, 3), st.data())
def test_rates_are_those_of_the_definition(tops, mates, t, first, data):
    ranks = data.draw(st.lists(st.integers(1, 4), min_size=len(mates), max_size=len(mates)))
    assert fpir(tops, t) == pytest.approx(plain_fpir(tops, t))
    assert fnir(mates, ranks, t, first) == pytest.approx(plain_fnir(mates, ranks, t, first))


def test_hand_made_example():
    "Ten nonmated and four mated searches; T between .70 and .65 lets two of ten pass"
    tops = [.91, .70, .65, .6, .55, .5, .45, .4, .35, .3]
    mates, ranks = [.95, .80, .66, .90], [1, 1, 1, 2]
    t = threshold_for(tops, .2)
    assert t == pytest.approx(.675) and fpir(tops, t) == .2
    assert fnir(mates, ranks, t) == .5 and fnir(mates, ranks, t, 2) == .25   # .66 is too low, .90 is second
    assert fnir(mates, ranks, .66, 2) == 0 and fpir(tops, .65) == .3         # at T counts
    assert math.isnan(fpir([], .5)) and math.isnan(fnir([], [], .5))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=4, max_size=40), st.floats(.25, .95))
def test_a_threshold_keeps_its_rate_and_none_lower_does(tops, rate):
    t, s = threshold_for(tops, rate), np.array(tops, float)
    assert plain_fpir(s, t) <= rate + 1e-9
    lower = s[s < t]
    if len(lower): assert plain_fpir(s, lower.max()) > rate


@pytest.mark.parametrize("tops, rate, message", [
    ([.1, .2], .1, "at least 10"), ([], .1, "no nonmated search"), ([.1], 0, "rate=0"), ([.1], 1., "rate=1.0")])
def test_rates_that_cannot_be_shown(tops, rate, message):
    with pytest.raises(ValueError, match=message): threshold_for(tops, rate)


def test_curve_is_the_rates_at_every_threshold():
    rng = np.random.default_rng(0)
    f = pd.DataFrame(dict(present=[True]*40 + [False]*25, mate=np.r_[rng.integers(0, 9, 40)/9, [np.nan]*25],
                          rank=np.r_[rng.integers(1, 4, 40), [0]*25], pid=range(65)))
    f["top"] = np.where(f.present, f.mate, rng.integers(0, 9, 65)/9)
    for first in (1, 2):
        c = identification_curve(f, first)
        for r in c.itertuples():
            assert r.FPIR == pytest.approx(100*plain_fpir(f.top[~f.present], r.threshold))
            assert r.FNIR == pytest.approx(100*plain_fnir(f.mate[:40], f["rank"][:40], r.threshold, first))
    assert c.FPIR.iloc[0] == 0 and c.FPIR.iloc[-1] == 100 and c.FPIR.is_unique


def plain_search(q, g, i, junk, distance):
    "Best score of the person, of others, and the rank of the person"
    a, b = (x.emb.double().numpy() for x in (q, g))
    s = (b @ a[i])/np.linalg.norm(b, axis=1)/np.linalg.norm(a[i]) if distance == "cosine" else \
        -np.linalg.norm(b - a[i], axis=1)
    own = g.pid == q.pid[i]
    hidden = own & (g.cam == q.cam[i]) if junk == "cam" else own & False
    mate = s[own & ~hidden].max(initial=-np.inf)
    others = s[~own & (g.pid != -1)]
    return mate, others.max(initial=-np.inf), 1 + (others >= mate).sum()


@pytest.mark.parametrize("junk", ["cam", "none"])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_scores_are_those_of_single_searches(junk, distance):
    q, g = people(60, 0, dtype="f8"), people(70, 1, dtype="f8")
    g = Embeddings(g.emb, np.where(np.arange(70) % 9 == 0, -1, g.pid), g.cam)
    q = Embeddings(q.emb, np.where(np.arange(60) % 7 == 0, 900 + q.pid, q.pid), q.cam)
    got = search_scores(q, g, junk=junk, distance=distance, chunk=7)
    for i, r in got.iterrows():
        mate, other, rank = plain_search(q, g, i, junk, distance)
        assert r.present == np.isfinite(mate) and r.other == pytest.approx(other)
        assert r.top == pytest.approx(max(mate, other))
        if r.present: assert (r.mate, r["rank"]) == (pytest.approx(mate), rank)
        else: assert np.isnan(r.mate) and r["rank"] == 0
    assert got.present.any() and not got.present.all()


def test_a_removed_person_is_as_searched_again():
    q, g = people(90, 0, dtype="f8"), people(60, 1, dtype="f8")
    both = each_removed(search_scores(q, g, junk="none"))
    twins = both[~both.present].reset_index(drop=True)
    for p in range(30):
        again = search_scores(q[q.pid == p], g[g.pid != p])
        assert not again.present.any() and np.allclose(twins.top[twins.pid == p], again.top)
    assert len(both) == 180 and both.attrs["gallery"] == 60


def test_the_order_of_the_gallery_changes_nothing():
    rng = np.random.default_rng(0)
    q, g = people(80, 0), people(90, 1)
    tied = Embeddings(torch.cat([g.emb, g.emb[:30]]), np.r_[g.pid, (g.pid[:30] + 1) % 30], np.r_[g.cam, g.cam[:30]])
    for gallery in (g, tied):
        p = rng.permutation(len(gallery))
        a, b = (each_removed(search_scores(q, x)) for x in (gallery, gallery[p]))
        pd.testing.assert_frame_equal(a, b, rtol=1e-5)
        t = calibrate(a, .1)
        pd.testing.assert_frame_equal(open_set_rates(a, t, by="cam"), open_set_rates(b, t, by="cam"))
        assert search.find(q, gallery[p], 3, t).present.tolist() == search.find(q, gallery, 3, t).present.tolist()


def test_equal_scores_count_against_us():
    same = Embeddings(np.ones((3, 2)), [0, 1, 2])
    f = search_scores(Embeddings(np.ones((1, 2)), [0]), same)
    assert f["rank"].item() == 3 and fnir(f.mate, f["rank"], .5) == 1 and fnir(f.mate, f["rank"], .5, 3) == 0


def test_open_set_removes_persons():
    q, g = people(90, 0), people(60, 1)
    absent, fewer = open_set.open_set(q, g, .3, seed=4)
    assert len(absent) == 9 and not np.isin(fewer.pid, absent).any() and len(fewer) == 42
    f = search_scores(q, fewer, junk="none")
    assert (f.present.to_numpy() == ~np.isin(q.pid, absent)).all()
    assert open_set.open_set(q, g, .3, seed=5)[0].tolist() != absent.tolist()


def test_planted_scores_give_the_known_rates():
    f = each_removed(search_scores(*planted()))
    assert f.mate[:4].round(6).tolist() == [.9, .8, .7, .6] and f.other[:4].round(6).tolist() == [.5, .85, .3, .65]
    r = open_set_rates(f, .62, by="cam").set_index("group")
    assert r.FPIR.tolist() == [50, 50, 50] and r.FNIR.tolist() == [50, 50, 50]   # .85 and .65; rank of .8, score of .6
    assert r.DIR.tolist() == [50]*3 and r.present.tolist() == [4, 2, 2]
    assert open_set_rates(f, .75).FNIR[0] == 75 and open_set_rates(f, .75, first=2).FNIR[0] == 50
    t = calibrate(f, .25)
    assert t.value == pytest.approx(.75) and t.reached == .25 and (t.n, t.people, t.gallery) == (4, 4, 8)


def test_intervals_are_those_of_drawing_whole_persons():
    rng = np.random.default_rng(0)
    pid = np.repeat(np.arange(50), 6)
    top = .5*rng.normal(size=50)[pid] + rng.normal(size=300)
    f = pd.DataFrame(dict(pid=pid, present=False, top=top, mate=np.nan, rank=0))
    r = open_set_rates(f, .8).iloc[0]
    of = [100*(top[pid == p] >= .8).mean() for p in range(50)]
    draws = [np.mean([of[p] for p in rng.integers(50, size=50)]) for _ in range(3000)]
    assert np.allclose([r.FPIR_low, r.FPIR_high], np.quantile(draws, [.025, .975]), atol=1.5)
    assert np.isnan(r.FNIR) and np.isnan(r.DIR) and r.absent == 300


def test_a_calibrated_rate_holds_on_other_persons():
    reached = []
    for seed in range(12):
        draw = lambda s: each_removed(search_scores(people(300, s, 100), people(200, s + 1, 100)))
        t = calibrate(draw(10*seed), .1)
        reached.append(open_set_rates(draw(10*seed + 5), t).FPIR[0])
    assert 7 < np.mean(reached) < 13, reached


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("rate", [.001, .05, .9])
def test_verification_is_that_of_all_pairs(distance, rate):
    q, g = people(60, 0), people(70, 1)
    g = Embeddings(g.emb, np.where(np.arange(70) % 9 == 0, -1, g.pid), g.cam)
    t = verification_threshold(q, g, rate, distance=distance, chunk=13)
    known = g[g.pid != -1]
    sim = comparable(q, known, distance).block(0, 60).clone().double().numpy()
    same = q.pid[:, None] == known.pid
    hidden = same & (q.cam[:, None] == known.cam)
    s = np.sort(sim[~same])[::-1]
    k = math.floor(rate*len(s))
    assert (s >= t.value).sum() == k and s[k] < t.value <= s[k - 1]
    assert (t.n, t.reached) == (len(s), pytest.approx(k/len(s)))
    r = verification_rates(q, g, t, distance=distance, chunk=11)
    assert r["FMR"] == pytest.approx(100*k/len(s)) and r["different"] == len(s)
    kept = sim[same & ~hidden]
    assert r["FNMR"] == pytest.approx(100*(kept < t.value).mean()) and r["same"] == len(kept)
    assert r["FMR_low"] <= r["FMR"] <= r["FMR_high"]


def test_verification_with_ties_and_both_signs():
    rng = np.random.default_rng(0)
    x = rng.choice([-1., 0., 1.], (80, 2)).astype("f4")
    x[(x == 0).all(1)] = 1.
    q, g = Embeddings(x[:40], range(40)), Embeddings(x[40:], range(100, 140))
    s = np.sort(comparable(q, g).block(0, 40).clone().numpy().ravel())[::-1]
    for rate in (.01, .1, .3, .5, .7, .95):
        t = verification_threshold(q, g, rate, junk="none")
        k = math.floor(rate*len(s))
        assert (s >= t.value).sum() <= k < (s >= s[k]).sum() and t.value == np.nextafter(s[k], np.float32(np.inf))


def test_scores_that_share_their_upper_bits():
    turn = lambda a, pid: Embeddings(np.stack([np.cos(a), np.sin(a)], 1).astype("f4"), pid)
    rng = np.random.default_rng(0)
    q, g = turn(.05*rng.random(20), range(20)), turn(.05*rng.random(20), range(20, 40))
    s = comparable(q, g).block(0, 20).clone().double().numpy()
    for rate in (.1, .5, .8):
        t = verification_threshold(q, g, rate)
        assert t.reached == pytest.approx((s >= t.value).mean()) and 0 <= rate - t.reached < .02


def test_keys_keep_the_order_of_floats():
    x = torch.tensor([-np.inf, -3e38, -1., -1e-30, -0., 0., 1e-45, .5, 1., 3e38, np.inf])
    k = open_set._keys(x)
    assert (k.diff() >= 0).all() and (k.diff() == 0).sum() == 1 and k.min() >= 0 and k.max() < 2**32
    assert [open_set._key_value(int(v)) for v in k] == x.tolist()


def test_distances_far_from_the_origin():
    q, g = (Embeddings(e.emb.double() + 1e4, e.pid) for e in (people(9, 0), people(11, 1)))
    assert torch.allclose(DistanceScores(q.emb, g.emb).block(3, 9), -torch.cdist(q.emb, g.emb)[3:9], atol=1e-6)
    tiny = DistanceScores(q.emb*1e-30, g.emb*1e-30).block(0, 9)
    assert torch.allclose(tiny*1e30, -torch.cdist(q.emb, g.emb), rtol=1e-6)


FOUND = lambda: search_scores(people(60, 0), people(60, 1))


@pytest.mark.parametrize("make, message", [
    (lambda: search_scores(people(9, 0), people(9, 1)[:0]), "gallery is empty"),
    (lambda: search_scores(people(9, 0)[:0], people(9, 1)), "there is no query"),
    (lambda: search.find(people(9, 0), people(9, 1)[:0]), "gallery is empty"),
    (lambda: search.find(people(9, 0, dim=5), people(9, 1)), "5 dimensions, the gallery has 12"),
    (lambda: search_scores(Embeddings(np.eye(2), [-1, 0]), people(9, 1, dim=2)), "has pid -1"),
    (lambda: each_removed(search_scores(people(9, 0, 1, 9), people(9, 1, 1, 9))), "nobody but"),
    (lambda: calibrate(FOUND()[lambda f: f.present]), "no nonmated search"),
    (lambda: calibrate(each_removed(FOUND()), .001), "at least 1000"),
    (lambda: identification_curve(FOUND()[lambda f: f.present]), "0 nonmated"),
    (lambda: open_set_rates(search_scores(bare(people(60, 0)), people(60, 1)), .5, by="cam"), "no such column"),
    (lambda: open_set_rates(FOUND().head(0), .5), "has no search"),
    (lambda: open_set.open_set(people(9, 0, 1), people(9, 1, 1)), "leaves 1 present and 0 absent"),
    (lambda: verification_threshold(people(9, 0, 1), people(9, 1, 1)), "one person only"),
    (lambda: verification_threshold(people(9, 0), people(9, 1)), "less than one"),
    (lambda: verification_rates(Embeddings(np.eye(2), [-1, -1]), people(9, 0, dim=2), .5), "pairs need labels"),
    (lambda: search_scores(people(9, 0), people(9, 1), distance="l1"), "distance='l1'")])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message): make()


def test_all_absent_and_no_cameras():
    q, g = bare(people(60, 0)), bare(people(60, 1))
    f = search_scores(Embeddings(q.emb, 100 + q.pid), g)
    t = calibrate(f, .1)
    r = open_set_rates(f, t).iloc[0]
    assert not f.present.any() and r.FPIR == pytest.approx(10) and np.isnan(r.FNIR) and r.present == 0
    one = search_scores(q, Embeddings(g.emb[:1], g.pid[:1]))   # one person to be found
    assert one.present.sum() == 2 and calibrate(one, .1).people == 29


def test_a_threshold_that_nothing_reaches_is_said():
    f = each_removed(FOUND())
    with pytest.warns(UserWarning, match="no search reaches the threshold 2.000"): r = open_set_rates(f, 2.)
    assert r.FPIR[0] == 0 and r.FNIR[0] == 100 and r.FPIR_high[0] > 1   # thirty persons do not show that it is 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_set_rates(f, -2.)


def test_a_large_gallery_is_never_a_matrix(monkeypatch):
    "20,000 queries and images would have 400 million scores"
    seen, block = [], scores.EmbeddingScores.block
    spy = lambda s, lo, hi: seen.append((hi - lo)*s.shape[1]) or block(s, lo, hi)
    monkeypatch.setattr(scores.EmbeddingScores, "block", spy)
    q, g = people(4000, 0, 500, dim=4), people(20_000, 1, 500, dim=4)
    search_scores(q, g)
    verification_threshold(q[:1000], g, .01)
    search.find(q, g)
    assert len(seen) > 12 and max(seen) <= 2**24


def test_thresholds_are_kept(tmp_path):
    t = calibrate(each_removed(FOUND()), .1)
    assert Threshold.load(t.save(tmp_path/"t.json")) == t and "6 false" not in str(t)
    for text in ("[", json.dumps(dict(value=1))):
        (tmp_path/"t.json").write_text(text)
        with pytest.raises(ValueError, match="saved Threshold"): Threshold.load(tmp_path/"t.json")
    with pytest.raises(FileNotFoundError): Threshold.load(tmp_path/"none.json")


def test_the_kind_of_questions_is_kept_under_its_old_key(tmp_path):
    t = Threshold(.5, .05, .05, 20, 10, question_kind="text")
    path = t.save(tmp_path/"t.json")
    assert json.loads(path.read_text())["asked"] == "text" and Threshold.load(path) == t
    with pytest.warns(DeprecationWarning, match="Threshold.asked is called question_kind"): assert t.asked == "text"
    with pytest.warns(DeprecationWarning, match="asked= is called question_kind="):
        assert Threshold(.5, .05, .05, 20, 10, asked="text") == t
