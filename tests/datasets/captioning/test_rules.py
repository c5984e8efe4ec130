"Captions by rules, whose errors occur at the rates that were asked for"
import numpy as np
import pytest
from helpers.captioning import a_truth, captioned

from reid_lab.core.basics import stream
from reid_lab.datasets.captioning import rules as R, traces as T


@pytest.mark.parametrize("seed", range(30))
def test_any_caption_becomes_any_other(seed):
    a, b = (a_truth(stream(seed, k)) for k in "ab")
    text = R.word_caption(a.values)
    assert {k: v for k, (v, *_) in R.read_caption(text).items()} == a.values
    fixes = R.compare(text, b.values, b.evidence)
    assert T.apply_corrections(text, [T.Correction(**c) for c in fixes]) == R.word_caption(b.values)


def test_rates_are_those_that_were_asked_for():
    "Each kind alone, over 400 readings"
    truths = [a_truth(stream(i, "t")) for i in range(400)]
    read = lambda rates: [R.misread(t.values, rates, stream(i, "r")) for i, t in enumerate(truths)]
    top = [sum(a in t.values for t in truths) for a in ("gender", "action")]
    out = read(R.Rates(.3, 0, 0))
    lost = [sum(a in t.values and a not in r for t, (r, _) in zip(truths, out)) for a in ("gender", "action")]
    assert sum(lost)/sum(top) == pytest.approx(.3, abs=.06)
    out = read(R.Rates(0, 0, .2))
    changed = sum(r[a] != t.values[a] for t, (r, _) in zip(truths, out) for a in t.values if len(R.WORDS[a]) > 1)
    assert changed/sum(len(R.WORDS[a]) > 1 for t in truths for a in t.values) == pytest.approx(.2, abs=.03)
    out = read(R.Rates(0, .25, 0))
    free = [(t, r) for t, (r, _) in zip(truths, out) if "hat" not in t.values]
    assert np.mean(["hat" in r for _, r in free]) == pytest.approx(.25, abs=.09)
    assert all(r == t.values for t, (r, _) in zip(truths, read(R.Rates(0, 0, 0))))


def test_error_rates_against_a_naive_count():
    truths, records = captioned()
    table = R.error_table(records, truths).set_index("stage")
    visible = sum(len(t.values) for t in truths.values())
    for stage, text in dict(draft=lambda r: r.T2.S_init, refined=lambda r: r.caption).items():
        lost = made = wrong = said = 0
        for r in records:
            told, true = {a: v for a, (v, *_) in R.read_caption(text(r)).items()}, truths[r.image].values
            said += len(told)
            for a in R.WORDS:
                if a in true and a not in told: lost += 1
                if a in told and a not in true: made += 1
                if a in told and a in true and told[a] != true[a]: wrong += 1
        got = table.loc[stage]
        assert got[list(R.KINDS)].tolist() == pytest.approx([100*lost/visible, 100*made/said, 100*wrong/said])
    repair = R.repair_table(records, truths).set_index("kind")
    assert (repair.before - repair.removed + repair.brought_in == repair.after).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_audit_removes_errors_only_if_it_sees_better(seed):
    rate = lambda factor: R.error_table(*reversed(captioned(60, seed, factor=factor))).set_index("stage")[list(R.KINDS)]
    perfect, good, poor = rate(0.), rate(.2), rate(2.)
    assert (perfect.loc["refined"] == 0).all()
    assert (good.loc["refined"] < good.loc["draft"]).all()
    assert (poor.loc["refined"] > poor.loc["draft"]).all()
    assert good.loc["draft"].equals(poor.loc["draft"])
