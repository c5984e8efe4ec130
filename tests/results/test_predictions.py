"Predictions: what is no prediction is refused, an outcome says what its interval says, and the history tells the order"
import json
import re
import subprocess
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reid_lab.results.predictions import (
    EXPECTED,
    Prediction,
    came_first,
    corrected,
    load_predictions,
    outcome,
    outcomes,
    predictions_table,
    predictions_text,
    registered_at,
)
from reid_lab.results.rows import load_results

ROOT = Path(__file__).resolve().parents[2]
GAIN = Prediction(name="gain", claim="New gains.", where=dict(notebook="run_x"), base="Old", other="New",
                  seeds=(5, 6, 7, 8), expects="higher", low=1., high=3., smallest=.5, written="2026-11-27",
                  seen="nothing")
LOSS = replace(GAIN, name="loss", expects="lower", low=-3., high=-1.)
LEVEL = replace(GAIN, name="level", expects="level", low=-.2, high=.2)


def rows(gains, first=5, **changes):
    "Invented rows of two variants, a seed each"
    made = []
    for n, gain in enumerate(gains):
        for variant, score in (("Old", 40. + n), ("New", 40. + n + gain)):
            row = dict(run="r", time="2026-11-29", commit="abc", notebook="run_x", variant=variant, preset="quick",
                       dataset="world-quick", split="test", seed=first + n, parameters={}, mAP=score)
            made.append(row | changes)
    return pd.DataFrame(made)


@pytest.mark.parametrize("change, message", [
    (dict(expects="more"), "expects"), (dict(seeds=[5]), "two or more different"),
    (dict(seeds=[5, 5]), "two or more different"), (dict(low=5.), "is above high"),
    (dict(smallest=0.), "above 0"), (dict(low=.1, high=.3), "does not fit"),
    (dict(written="yesterday"), "written='yesterday' is no date"), (dict(other_field=1), "field of prediction 1"),
    (dict(seeds="5678"), "are a text"), (dict(seeds=[5, 6.5]), "seed of 'gain'"), (dict(low="2"), "low of 'gain'"),
    (dict(base="New"), "with itself")])
def test_what_is_no_prediction_is_refused(tmp_path, change, message):
    file = tmp_path/"predictions.json"
    file.write_text(json.dumps([asdict(GAIN) | change]))
    with pytest.raises(ValueError, match=message): load_predictions(file)


def test_a_file_names_each_prediction_once(tmp_path):
    file = tmp_path/"predictions.json"
    assert load_predictions(file) == {}
    file.write_text(json.dumps([asdict(GAIN), asdict(LOSS)]))
    assert load_predictions(file) == dict(gain=GAIN, loss=LOSS)
    file.write_text(json.dumps([asdict(GAIN)]*2))
    with pytest.raises(ValueError, match="twice"): load_predictions(file)
    for text, message in (("{", "no JSON"), ("{}", "no list"), ("[1]", "no object")):
        file.write_text(text)
        with pytest.raises(ValueError, match=message): load_predictions(file)


@pytest.mark.parametrize("seed", range(40))
def test_a_verdict_is_that_of_the_plain_t_interval(seed):
    "Against the formulas, written out; the bootstrap may only widen an interval"
    rng = np.random.default_rng(seed)
    gains = rng.normal(rng.uniform(-2, 2), rng.uniform(.05, 1.5), 4)
    mean, step = gains.mean(), gains.std(ddof=1)/2
    half, half90 = stats.t.ppf(.975, 3)*step, stats.t.ppf(.95, 3)*step
    found = {p.name: outcome(p, rows(gains)) for p in (GAIN, LOSS, LEVEL)}
    assert found["level"].verdict == "held" if abs(mean) + half90 < .5 else found["level"].verdict != "held"
    for name, sign in (("gain", 1), ("loss", -1)):
        low, high = sign*mean - half, sign*mean + half
        verdict = found[name].verdict
        if low <= 0 or sign*mean < .5: assert verdict != "held"
        if high >= .5: assert verdict != "failed"
        if verdict == "open": assert not (low > .2 and sign*mean >= .5) or found[name].found.low < low - 1e-9
        assert found[name].in_interval == (found[name].prediction.low <= mean <= found[name].prediction.high)


def test_only_the_predicted_seeds_count():
    known = pd.concat([rows([9.]*5 + [8.], first=-1), rows([2., 2.1, 1.9, 2.])])
    assert outcome(GAIN, known).found.diff == pytest.approx(2.)
    waiting = outcome(GAIN, known[known.seed != 7])
    assert (waiting.verdict, waiting.missing, waiting.in_interval) == ("waiting", (7,), None)
    assert outcome(GAIN, rows([2.]*4, notebook="run_y")).verdict == "waiting"


def test_a_misspelt_variant_is_told_from_a_run_that_is_waited_for(tmp_path):
    found = outcome(replace(GAIN, base="Odl"), rows([2., 2.1, 1.9, 2.]))
    assert (found.verdict, found.unseen) == ("waiting", ("Odl",))
    assert "no variant 'Odl'" in predictions_table([found]).found[0]
    later = outcome(GAIN, rows([2.]*4, first=0))
    assert later.verdict == "waiting" and later.unseen == () and predictions_table([later]).found[0] == ""
    with pytest.raises(ValueError, match="metric of 'gain'='mapp'"): outcome(replace(GAIN, metric="mapp"), rows([2.]*4))
    less = {key: value for key, value in asdict(GAIN).items() if key not in ("claim", "metric")}
    (tmp_path/"predictions.json").write_text(json.dumps([less]))
    with pytest.raises(ValueError, match="prediction 1 of predictions.json lacks claim$"):
        load_predictions(tmp_path/"predictions.json")


def test_a_seed_that_was_run_twice_counts_once_with_its_last_row():
    twice = pd.concat([rows([2., 2.1, 1.9, 2.], time="2026-12-02"), rows([7.]*4, time="2026-12-01")])
    assert outcome(GAIN, twice).found.diff == pytest.approx(2.)


def commit(folder, records):
    (folder/"predictions.json").write_text(json.dumps(records))
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for args in (["add", "."], [*identity, "commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run(["git", "-C", folder, *args], check=True)
    head = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    return head.stdout.strip()


def test_the_history_tells_which_came_first(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    before = commit(tmp_path, [])
    added = commit(tmp_path, [asdict(GAIN)])
    beside = commit(tmp_path, [asdict(GAIN), asdict(LOSS)])
    changed = commit(tmp_path, [asdict(replace(GAIN, high=4.)), asdict(LOSS)])
    back = commit(tmp_path, [asdict(GAIN), asdict(LOSS)])
    at = registered_at(tmp_path/"predictions.json")
    assert at == dict(gain=back, loss=beside)       # the change and its undoing count
    made_at = (before, added, beside, changed[:10] + "+")
    assert [came_first(beside, [c], tmp_path) for c in made_at] == [False, False, True, True]
    assert came_first(beside, [changed, before], tmp_path) is False
    assert came_first(beside, ["0123456789"], tmp_path) is None and came_first(beside, [""], tmp_path) is None
    (tmp_path/"predictions.json").write_text(json.dumps([asdict(replace(LOSS, low=-4.))]))
    assert registered_at(tmp_path/"predictions.json") == {} and came_first(None, [back], tmp_path) is False


def test_without_a_history_nothing_is_said(tmp_path):
    (tmp_path/"predictions.json").write_text(json.dumps([asdict(GAIN)]))
    assert registered_at(tmp_path/"predictions.json") == {}
    shown = predictions_table([outcome(GAIN, rows([2., 2.1, 1.9, 2.]))], {"gain": "0"*40}, tmp_path)
    assert shown.committed.tolist() == ["not known"] and shown.verdict.tolist() == ["held"]


def test_predictions_of_the_project_name_rows_that_exist():
    "Labels and filters are those of earlier rows: a prediction does not wait for ever for a misspelt variant"
    known = load_results("measured")
    own = load_predictions()
    assert len(own) >= 27 and {p.expects for p in own.values()} == set(EXPECTED)
    for expected in (p for p in own.values() if p.seen.startswith("run ")):
        seen = outcome(replace(expected, seeds=(0, 1, 2, 3, 4)), known)
        assert seen.verdict != "waiting", expected.name


@pytest.mark.parametrize("pattern, of_group", [
    (r"of (\d+) for Worlds 5 to 9, (\d+) held, (\d+) failed and (\d+) are open",
     lambda one: set(one.seeds) == {5, 6, 7, 8, 9}),
    (r"of (\d+) for cameras with people of their own, (\d+) held, (\d+) failed and (\d+) are open",
     lambda one: one.where["dataset"] == "world-quick-views"),
    (r"of (\d+) for infrared cameras, (\d+) held, (\d+) failed and (\d+) are open",
     lambda one: one.where.get("study") == "infrared"),
    (r"of (\d+) for hidden bodies and tracklets, (\d+) held, (\d+) failed and (\d+) are open",
     lambda one: one.where.get("study") in ("occluded", "tracklets"))])
def test_the_readme_counts_what_came_out(pattern, of_group):
    text = " ".join((ROOT/"README.md").read_text(encoding="utf-8").split())
    said = re.search(pattern, text)
    found = outcomes(load_results(ROOT/"results"/"runs.csv"), ROOT/"results"/"predictions.json")
    verdicts = Counter(one.verdict for one in found if of_group(one.prediction))
    counts = (verdicts.total(), *(verdicts[name] for name in ("held", "failed", "open")))
    assert tuple(map(int, said.groups())) == counts and verdicts["waiting"] == 0


def test_the_readme_says_how_many_last():
    text = " ".join((ROOT/"README.md").read_text(encoding="utf-8").split())
    said = re.search(r"\(Holm\) leaves (\d+) of the (\d+)\.", text)
    found = outcomes(load_results(ROOT/"results"/"runs.csv"), ROOT/"results"/"predictions.json")
    table = predictions_table(found, {}, ROOT)
    counts = [int((table[column] == "held").sum()) for column in ("after_holm", "verdict")]
    assert [int(number) for number in said.groups()] == counts


def test_a_held_prediction_lasts_by_the_p_values_of_its_study_alone():
    "Against a plain loop over the predictions of one notebook and study"
    rng = np.random.default_rng(3)
    for _ in range(30):
        found = []
        for k in range(6):
            study = f"s{k % 2}"
            one = replace((GAIN, LOSS, LEVEL)[k % 3], name=f"p{k}", where=dict(notebook="run_x", study=study))
            gains = rng.normal((2., -2., 0.)[k % 3], rng.uniform(.2, 1.6), 4)[:3 if k == 5 else 4]
            found.append(outcome(one, rows(gains, parameters=dict(study=study))))
        before = [one.verdict for one in found]
        last = corrected(found)
        assert [one.verdict for one in found] == before and before[5] == "waiting"
        for k, (one, after) in enumerate(zip(found, last)):
            family = [other for j, other in enumerate(found) if j % 2 == k % 2]
            ps = []
            for other in family:
                d = np.array(other.found.values) if other.found else np.array([])
                if not len(d): ps.append(np.nan)
                elif other.prediction.expects == "level":
                    ps.append(max(stats.ttest_1samp(d, -.5, alternative="greater").pvalue,
                                  stats.ttest_1samp(d, .5, alternative="less").pvalue))
                else: ps.append(stats.ttest_1samp(d, 0).pvalue)
            if not one.found: continue
            smaller = sorted(p for p in ps if p <= ps[family.index(one)] + 1e-15)
            p = max(min(1, (len(ps) - rank)*value) for rank, value in enumerate(smaller))
            assert after.p_holm == pytest.approx(p)
            assert after.verdict == ("open" if one.verdict == "held" and p >= .05 else one.verdict)


def test_a_text_holds_every_claim_whole_and_explains_its_words():
    claim = "New gains " + "very "*60 + "much."
    one = outcome(replace(GAIN, claim=claim), rows([2., 2.1, 1.9, 2.]))
    text = predictions_text(predictions_table([one], {}, "."), 60)
    assert claim in " ".join(text.split()) and max(map(len, text.splitlines())) <= 60
    assert "HELD" in text and "1 predictions: 1 held" in text and "after_holm" in text and "open: neither" in text


def test_the_command_hints_at_the_measured_rows(capsys, monkeypatch):
    from reid_lab.cli.commands import main
    from reid_lab.results import rows as store
    known = load_results("measured").iloc[:0]
    monkeypatch.setattr(store, "load_results", lambda *args, **kw: known)
    assert main(["results", "predictions"]) == 0
    said = capsys.readouterr().out
    assert "reid_lab results predictions --store measured" in said and f"{len(load_predictions())} waiting" in said
    assert main(["results", "predictions", "--store", "measured"]) == 0
    assert "No row of your own" not in capsys.readouterr().out
