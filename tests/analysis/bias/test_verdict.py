"The advice: simplest first, clear gains only, and whether it holds on other people"
import numpy as np
import pandas as pd
import pytest
from helpers.bias import COS, EUC, WAYS, pairs

from reid_lab.analysis.bias import remedies, verdict as V
from reid_lab.core.basics import stream
from reid_lab.core.statistics import half_of, paired_gain


def test_simpler_comes_first():
    assert WAYS[:3] == [("No adaptation", COS), ("No adaptation", EUC), ("Mean subtraction", COS)]
    assert V.rankings(EUC)[0] == ("No adaptation", EUC)
    assert WAYS[-2:] == [(remedies.CONTROL, COS), (remedies.CONTROL, EUC)]


@pytest.mark.parametrize("mAP, advised, steps", [
    ((88, 87, 91.1, 79, 91.3, 80.4, 91.4, 80.4, 88, 80), ("Mean subtraction", COS), 1),  # Euclidean LITE is no advice
    ((50, 50, 50, 50, 51, 51, 51.4, 51.4, 50, 50), None, 0),
    ((50, 53, 50, 50, 50, 50, 50, 50, 50, 50), ("No adaptation", EUC), 1),
    ((50, 49, 52, 47, 53, 48, 55, 51, 50, 50), ("DART3-LITE", COS), 2),  # Norm is not clearly better than the mean
    ((50, 49, 52, 47, 54, 48, 55, 51, 50, 50), ("Norm", COS), 2)])
def test_the_simplest_that_no_other_clearly_beats_is_advised(mAP, advised, steps):
    mAP = dict(zip(WAYS, map(float, mAP)))
    v = V.decide(mAP, pairs(mAP), mAP)
    assert v.advised == advised and len(v.steps) == steps and v.tests == 7 and v.take == (advised or WAYS[0])
    at = WAYS.index(v.take)
    assert all(pairs(mAP)(w, v.take)[1] <= 0 for w in WAYS[at + 1:8])  # nothing more complicated clearly beats it
    with pytest.raises(AttributeError): v.advised = None     # frozen
    says = V.sentences(v)
    if advised:
        assert says[0].startswith(f"{V.in_words(advised)} helps: mAP {mAP[advised]:.1f}, +")
        assert f"({mAP[WAYS[0]]:.1f})" in says[0]
    else: assert says[0].startswith("None helps clearly: keep the features as they are, ranked by cosine (mAP 50.0)")


def test_where_none_differs_few_reports_advise_one():
    advised = 0
    for seed in range(80):
        rng = np.random.default_rng(seed)
        base = rng.uniform(size=40)
        AP = {w: np.clip(base + .1*rng.standard_t(3, size=40), 0, 1) for w in WAYS}
        advised += V.verdict_of(remedies.PairedScores(AP, range(40), draws=2000)).advised is not None
    assert advised <= 4     # 5 % of 80; the seven comparisons hold together


def test_sentences_say_control_rival_and_what_lowers():
    mAP = dict(zip(WAYS, (50., 50, 52, 47, 52.2, 48, 53., 51, 51.8, 46)))
    v = V.decide(mAP, pairs(mAP), mAP)
    text = " ".join(V.sentences(v))
    assert v.advised == ("Mean subtraction", COS) and v.best == ("DART3-LITE", COS) and v.rival[0] == pytest.approx(1)
    assert "gains most, +3.00" in text and "not clearly more than Mean subtraction by cosine, which is simpler" in text
    assert v.control_similar and "not the cameras that matters" in text
    assert v.lowering == [("Mean subtraction", EUC), ("Norm", EUC)]
    assert f"{remedies.CONTROL} by Euclidean distance lowers it too" in text
    assert "By Euclidean distance instead, Mean subtraction has mAP 47.0, -3.00" in text


def test_the_bootstrap_draws_identities():
    d = stream(1, "gain").normal(.03, .2, 60)
    one, many = paired_gain(d, range(60)), paired_gain(np.repeat(d, 5), np.repeat(range(60), 5))
    np.testing.assert_allclose(one, many, atol=.5)
    naive = paired_gain(np.repeat(d, 5), range(300))
    assert naive[2] - naive[1] < .6*(many[2] - many[1])
    sd = 100*d.std(ddof=1)/60**.5
    np.testing.assert_allclose(one[1:], [100*d.mean() - 1.96*sd, 100*d.mean() + 1.96*sd], atol=.8)
    assert paired_gain([.5, np.nan], [3, 4]) == (50., -np.inf, np.inf)
    for same in (.25, 0.):      # all identities gain the same: a spread that was not seen is no certainty
        assert paired_gain([same]*5, [0, 1, 1, 2, 2]) == (100*same, -np.inf, np.inf)
    v = V.verdict_of(remedies.PairedScores({w: np.full(4, .5 if w[0] == "Norm" else .25) for w in WAYS}, range(4)))
    assert v.advised is None and "+25.00 (no interval" in V.sentences(v)[0]
    six = paired_gain(d, range(60), tests=6)
    np.testing.assert_allclose(six[1:], [100*d.mean() - 2.638*sd, 100*d.mean() + 2.638*sd], atol=1.2)


def test_halves_are_of_people_and_do_not_depend_on_order():
    pid = stream(0, "pid").integers(0, 41, 300)
    h = half_of(pid, 3)
    assert all(len(set(h[pid == p])) == 1 for p in set(pid)) and (half_of(pid[::-1], 3) == h[::-1]).all()
    n = [len(set(pid[h == k])) for k in (0, 1)]
    assert abs(n[0] - n[1]) <= 1 and (half_of(pid, 4) != h).any()


def test_an_advice_that_rests_on_a_few_people_does_not_hold():
    pid, base = np.arange(80), stream(0, "AP").uniform(.2, .4, 80)
    noise = stream(1, "AP").normal(0, .01, (len(WAYS), 80))
    real = {w: base + noise[i] + (.1 if w == ("Norm", COS) else 0.) for i, w in enumerate(WAYS)}
    f = V.held_out(remedies.PairedScores(real, pid), splits=3)
    assert f.same.all() and (f.low > 0).all() and len(f) == 6 and (f.people == 40).all()
    assert "6 of 6 halves advise the same as all; on the other half" in V.held_out_sentence(f, None, 80)
    half = .2*(half_of(pid, 0) == 0)
    lucky = {w: base + noise[i] + (half if w == ("Norm", COS) else 0.) for i, w in enumerate(WAYS)}
    f = V.held_out(remedies.PairedScores(lucky, pid), splits=1).set_index("advises")
    assert f.method[0] == "Norm" and not f.low[0] > 0       # what half 0 advised gains nothing on half 1
    assert f["first"][1] and not f.same[1] and "1 of 2 halves advise the same" in V.held_out_sentence(f, None, 80)
    pd.testing.assert_frame_equal(V.held_out(remedies.PairedScores(lucky, pid), splits=2),
                                  V.held_out(remedies.PairedScores(lucky, pid), splits=2))
