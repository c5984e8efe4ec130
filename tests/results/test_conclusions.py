"Sentences at the end of a run: they say what an interval says, and nothing that the rows do not hold"
import math

import numpy as np
import pytest
from helpers.notebooks import RECORD, notebook
from scipy import stats

from reid_lab.cli.commands import main
from reid_lab.recipes import dart3
from reid_lab.results.conclusions import NOTES, as_printed, as_text, comparisons, conclusions, notes, recorded_row
from reid_lab.results.rows import Setting, load_results, settings_of


def rows(gains, seeds=4, dataset="world-quick", noise=.1):
    rng = np.random.default_rng(0)
    level = rng.normal(size=seeds)*3
    return [dict(variant=v, dataset=dataset, split="test", seed=s, mAP=40 + level[s] + g + noise*rng.normal())
            for v, g in gains.items() for s in range(seeds)]


def test_resolved_differences_are_those_of_the_t_interval():
    given = rows({"Base": 0, "A": 3, "B": .1, "C": -2})
    first, second, third = conclusions(given)
    assert first == "Compared by mAP: A; B; C with Base, on world-quick, 4 seeds."
    value = {v: np.array([r["mAP"] for r in given if r["variant"] == v]) for v in ("Base", "A", "B", "C")}
    open_ = 0
    for v in "ABC":
        d = value[v] - value["Base"]
        half = stats.t.ppf(.975, 3)*d.std(ddof=1)/2
        resolved = abs(d.mean()) > half
        open_ += not resolved
        assert (f"{v} {d.mean():+.1f} ({d.mean() - half:+.1f} to {d.mean() + half:+.1f})" in second) == resolved
    assert open_ == 1 and "1 of 3 differences is not" in second and "World" in third and "photographs" in third


@pytest.mark.parametrize("gains, seeds, text", [
    ({"Base": 0, "A": 9}, 1, "one seed has no interval"),
    ({"Base": 0, "A": 0.}, 5, "No difference is resolved at 95 %")])
def test_nothing_is_claimed_without_an_interval(gains, seeds, text):
    told = conclusions(rows(gains, seeds))
    assert text in told[1] and "Resolved" not in told[1]


def test_nothing_is_said_of_nothing():
    assert conclusions([]) == [] and conclusions(rows({"Base": 0})) == []
    assert conclusions([dict(variant="a", dataset="x", split="test", R1=1.)]*2) == []
    lost = rows({"Base": 0, "A": 1}, 1)
    lost[1]["mAP"] = math.nan
    assert conclusions(lost) == []


def test_real_datasets_are_not_called_rendered():
    assert "World" not in conclusions(rows({"Base": 0, "A": 1}, dataset="market1501"))[2]
    mixed = conclusions(rows({"Base": 0, "A": 1}) + rows({"Base": 0, "A": 1}, dataset="market1501"))
    assert "on market1501" in mixed[1] and "on world-quick" in mixed[1]
    assert "World say nothing of photographs" in mixed[2]


def test_stages_are_compared_with_their_own_base():
    given = rows({"Base, zeroshot": 0, "Base, finetuned": 5, "New, zeroshot": 1, "New, finetuned": 8})
    pairs = {(p.a, p.b): p.diff for _, p in comparisons(given)}
    assert set(pairs) == {("Base, zeroshot", "New, zeroshot"), ("Base, finetuned", "New, finetuned")}
    assert conclusions(given)[0] == "Compared by mAP: New with Base (zeroshot, finetuned), on world-quick, 4 seeds."
    plain = rows({"None": 0, "Norm": 1, "LITE, episodic": 2})
    assert {p.a for _, p in comparisons(plain)} == {"None"}


@pytest.mark.parametrize("with_fields", [False, True])
def test_an_option_is_no_stage(with_fields):
    "Labels of two parts, which a run with one test set writes, and rows that carry fields"
    given = rows({"CFAN, k=1.0": 0, "CFAN, k=8.0": 2}, seeds=5)
    if with_fields: given = [{**r, **s.fields} for r, s in zip(given, settings_of(given))]
    first, second, _ = conclusions(given)
    assert first == "Compared by mAP: CFAN, k=8.0 with CFAN, k=1.0, on world-quick, 5 seeds."
    assert second.startswith("Resolved at 95 %, in points: CFAN, k=8.0 +")


@pytest.mark.parametrize("with_fields", [False, True])
def test_steps_of_one_method_are_compared_with_the_first(with_fields):
    "As `reid_lab run dart3 -p study=steps -p methods=DART3` records them: every label ends in an option"
    settings = [Setting(s["name"], options={k: v for k, v in s.items() if k != "name"})
                for s in dart3.STUDIES["steps"].only(["DART3"])]
    given = rows({s.label: i for i, s in enumerate(settings)}, seeds=3)
    if with_fields:
        of = {s.label: s.fields for s in settings}
        given = [{**r, **of[r["variant"]]} for r in given]
    base, *others = settings
    assert len(others) == 7 and base.label == "DART3, episodic=False, steps=1"
    assert [(p.a, p.b) for _, p in comparisons(given)] == [(base.label, other.label) for other in others]


def test_rows_are_compared_by_their_fields():
    "Whatever the labels are: two trainings of one stage, a label that looks like a stage, and no label at all"
    fields = [Setting("camel", stage, dict(k=k), name="CAMeL, slow").fields for k in (3, 6) for stage in ("a", "b")]
    given = [dict(f, variant="CAMeL, slow", dataset="world", split="test", seed=s, mAP=f["options"]["k"] + s)
             for f in fields for s in range(3)]
    assert [(d, p.diff, p.n) for d, p in comparisons(given)] == [("world", 3., 3)]*2
    for r in given: del r["variant"]
    assert [p.b for _, p in comparisons(given)] == ["camel, k=6, a", "camel, k=6, b"]


# one run of each recipe in `results/runs.csv`: what was compared when labels were split at their commas
EARLIER = {"dart3_steps": (18, "Norm", 1), "run_camel-20261122-174350-01d8e9": (18, "Baseline, zeroshot", 3),
           "transfer": (6, "BoT, dataset=world-1->world-1, world-2, world-3, world-1", 3),
           "cfam_main": (12, "Start alone (control), coarse", 3),
           "cfan_gate": (5, "CFAN, k=1.0, world-quick-aerial", 1)}


@pytest.mark.parametrize("run", EARLIER)
def test_rows_of_earlier_versions_are_compared_as_before(run):
    f = load_results("measured", run=run)
    n, base, n_stages = EARLIER[run]
    found = comparisons(f.to_dict("records"))
    assert len(found) == n and found[0][1].a == base and len({p.a for _, p in found}) == n_stages
    bare = f.drop(columns=["method", "stage", "options", "parameters"]).to_dict("records")
    if run != "transfer":   # its options hold commas, so that its labels alone do not tell the test set
        assert [(p.a, p.b) for _, p in comparisons(bare)] == [(p.a, p.b) for _, p in found]


def test_recorded_rows_of_both_kinds(tmp_path):
    "A row of `metrics.json`: the fields are compared; a label alone still is"
    old = dict(variant="Base, zeroshot", dataset="world", split="test", seed=0, metrics=dict(mAP=1.), extra=dict(k=3))
    assert recorded_row(old) == dict(variant="Base, zeroshot", dataset="world", split="test", seed=0, mAP=1.)
    new = dict(old, **Setting("base", "zeroshot").fields)
    assert settings_of([recorded_row(new)])[0] == Setting("base", "zeroshot") != settings_of([recorded_row(old)])[0]


def test_digits_and_notes():
    some = ((43.849, "R1"), (43.849, "time"), (.000345, "lr"), (7., "n"), (math.nan, "mAP"))
    assert [as_text(v, c) for v, c in some] == ["43.8", "43.8", "0.000345", "7", ""]
    assert as_printed([77.24, 7., math.nan]) == ["77.24", "7.00", ""] and as_printed([30, 5]) == ["30", "5"]
    assert as_printed([.0003, .112]) == ["0.0003", "0.112"] and as_printed(["a", 1.25, None]) == ["a", "1.25", ""]
    assert as_text("`mAP`") == "mAP" and as_text(True) == "True" and as_text(12_345.6, "s") == "12346"
    assert notes(["R1", "mAP"]) == [] and notes(["mSD", "itc_mSD", "RSum"]) == [NOTES["mSD"], NOTES["RSum"]]
    assert notes(["nmi_people"]) == notes(["feature_nmi_people"]) == [NOTES["nmi_people"]]
    assert notes(["nmi_camera", "people"]) == []      # other measures


def test_a_run_ends_with_sentences(tmp_path, capsys):
    path = notebook(tmp_path/"n.ipynb", RECORD)
    assert main(["run", str(path), "-p", "preset=smoke", "--out", str(tmp_path/"a")]) == 0
    out = capsys.readouterr().out
    assert "NaN" not in out and "`" not in out and "Compared" not in out # one row: nothing to compare


def test_published_numbers_are_whole(capsys):
    assert main(["published", "dart3", "5"]) == 0
    out = capsys.readouterr().out
    assert "0.0003" in out and "0.112" in out and "..." not in out
    assert main(["published", "dart3"]) == 0
    assert "..." not in capsys.readouterr().out


def test_rows_of_photographs_speak_of_photographs_and_name_no_page_of_worlds(tmp_path, capsys, monkeypatch):
    from types import SimpleNamespace

    from reid_lab.cli.output import print_conclusions
    gains = {"Base": 0, "A": 5}
    pages = tmp_path/"nbs"/"tutorials"
    pages.mkdir(parents=True)
    (pages/"11_measured_dart3.ipynb").write_text("{}")
    monkeypatch.setattr("reid_lab.core.basics.checkout", lambda: tmp_path)
    for dataset, photographs in (("world-quick", False), ("market1501", True), ("worldwide", True)):
        found = [row | dict(dataset=dataset, metrics=dict(mAP=row["mAP"])) for row in rows(gains, 3)]
        print_conclusions(SimpleNamespace(metrics=dict(rows=found)), "run_dart3")
        out = capsys.readouterr().out
        assert ("scores of photographs; other cameras" in out) == photographs, out
        assert ("rendered World" in out) == ("Measured with more seeds" in out) == (not photographs)
