"The screen with which a run ends is made of its rows, fits a screen, and believes nothing at preset smoke"
import json
import math

import pandas as pd
import pytest

from reid_lab.core import plugins
from reid_lab.core.plugins import OwnModule
from reid_lab.results.comparisons import paired
from reid_lab.results.endings import MOST, PLUMBING, Ending, EndRow, RunEnd, end_lines, end_markdown, run_end
from reid_lab.results.rows import Setting

SCORES = dict(Base=(40., 43., 38.), New=(44., 46.8, 42.1), Other=(40.1, 42.8, 38.2))


def rows(names=SCORES, seeds=3, dataset="world-quick", stage="zeroshot"):
    "As `metrics.json` has them"
    def metrics(name, seed):
        mAP = SCORES[name.split()[0]][seed]
        return dict(mAP=mAP, R1=mAP - 3)

    common = dict(dataset=dataset, split="test", extra={})
    return [dict(common, **Setting(name, stage).fields, variant=f"{name}, {stage}", seed=seed,
                 metrics=metrics(name, seed))
            for name in names for seed in range(seeds)]


def record(found, preset="quick", **more):
    return dict(notebook="run_new", params=dict(preset=preset), rows=found, **more)


def test_means_spread_and_paired_differences_are_those_of_the_comparisons():
    end = run_end(record(rows()))
    assert [row.variant for row in end.rows] == list(SCORES) and end.metrics == ("mAP", "R1")
    base, new, other = end.rows
    assert new.scores["mAP"] == pytest.approx(44.3) and new.spread["mAP"] == pytest.approx(2.364, abs=1e-3)
    frame = pd.DataFrame([dict(variant=r["method"], seed=r["seed"], mAP=r["metrics"]["mAP"]) for r in rows()])
    for row in (new, other):
        want = paired(frame, "mAP", "Base", row.variant)
        assert row.gain == pytest.approx((want.diff, want.low, want.high))
    assert base.gain == () and end.sentence == (
        "Resolved at 95 % after Holm's correction for 2 comparisons, in points: New, zeroshot +4.0 (+3.6 to +4.3); "
        "1 of 2 differences is not.")


def test_the_best_is_bold_once_for_each_search_and_chance_never():
    first = [dict(variant="chance", dataset="world-quick", split="test", metrics=dict(mAP=99., R1=99.))]
    found = rows() + rows(stage="finetuned")
    end = run_end(record(found, first_rows=first))
    lines = end_lines(end, strong="*{}*".format)
    bold = [line for line in lines if "*44.3 ± 2.4*" in line]
    assert len(bold) == 2 and all(line.startswith("New") for line in bold) and sum("*" in line for line in lines) == 2
    assert "*99" not in "".join(lines) and "**44.3 ± 2.4**" in end_markdown(end)
    lower = run_end(record(rows()), Ending(lower=True))     # means 40.333 and 40.367
    assert [line.split()[0] for line in end_lines(lower, strong="*{}*".format) if "*" in line] == ["Base"]


def test_names_that_begin_alike_differ_where_they_are_cut():
    long = "world-quick-clothes"
    found = [dict(row, dataset=f"{long} {rule}") for rule in ("ltcc.cc", "ltcc.standard") for row in rows(["Base"])]
    lines = end_lines(run_end(record(found)), width=52)
    shown = [line for line in lines if line.startswith("Base")]
    assert len(shown) == 2 and "…" in shown[1] and ".cc" in shown[0] and "standard" in shown[1]


def test_smoke_believes_nothing():
    first = [dict(variant="chance", dataset="world-quick", split="test", metrics=dict(mAP=2.))]
    end = run_end(record(rows(), "smoke", first_rows=first), Ending(sentence="New is far better."))
    text = "\n".join(end_lines(end, strong="*{}*".format))
    assert PLUMBING in text and "reid_lab run new -p preset=quick" in text and "chance" in text
    for word in ("*", "gain", "Resolved", "better", "+4"): assert word not in text, word
    own = run_end(record(rows(), "smoke"), Ending(sentence="New is far better.", plumbing=False))
    assert own.sentence == "New is far better." and "gain" in "\n".join(end_lines(own))


def test_the_next_command_brings_what_this_process_was_given(monkeypatch):
    ours = [OwnModule("mylab", "", "--with"), OwnModule("hislab"), OwnModule("ringlab", "", "plug-in ringlab 1.2"),
            OwnModule("varlab", "", "REID_LAB_WITH")]
    monkeypatch.setattr(plugins, "own_modules", lambda: ours)
    text = " ".join(" ".join(end_lines(run_end(record(rows(), "smoke")))).split())
    assert "Next: reid_lab --with mylab --with hislab run new -p preset=quick" in text


def test_the_next_command_is_one_line_that_can_be_copied():
    given = dict(preset="smoke", data_root="/a folder/with a rather long name", weights="w"*60, methods=["a", "b c"])
    end = run_end(record(rows(), "smoke", given=given))
    command = "reid_lab run new -p preset=quick -p 'data_root=/a folder/with a rather long name' -p weights=" + "w"*60
    command += " -p 'methods=a,b c'"
    assert end.command == command and f"Next: {command}" in end_lines(end, 60)
    assert f"\n\n    {command}" in end_markdown(end), "a block of code, without signs of Markdown"
    assert run_end(record(rows())).command == "" and "Next" not in "\n".join(end_lines(run_end(record(rows()))))
    kept = end.as_dict()
    assert RunEnd.from_dict(kept) == end
    del kept["command"]     # of a run of the last release
    assert RunEnd.from_dict(kept).command == ""


def test_one_seed_has_no_interval_and_one_setting_no_difference():
    end = run_end(record(rows(seeds=1)))
    assert end.rows[1].gain == (4.,) and "one seed has no interval" in end.sentence
    assert "±" not in "\n".join(end_lines(end))
    alone = run_end(record(rows(["Base"])))
    assert alone.sentence == "" and "gain" not in "\n".join(end_lines(alone))
    assert run_end(record([])) == RunEnd(sentence="") and end_lines(run_end(record([]))) == []


def test_a_long_table_keeps_chance_the_base_and_the_best_on_24_lines():
    names = ["Base", *(f"Other {i}" for i in range(30)), "New"]
    first = [dict(variant="chance", dataset="world-quick", split="test", metrics=dict(mAP=2.))]
    end = run_end(record(rows(names), first_rows=first, notes=["A note."]))
    lines = end_lines(end)
    told = [line.split()[0] for line in lines]
    assert {"chance", "Base", "New"} <= set(told) and f"and {33 - MOST} more, in the file of rows" in lines
    assert len(lines) <= 24 - 6 and max(map(len, lines)) <= 100      # below it: seconds, notebook, two figures, rows
    assert end_markdown(end).count("| Other") == 30


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_lines_fit_the_width(width):
    long = [dict(row, dataset="a dataset with a rather long name") for row in rows()] + rows()
    assert max(len(line) for line in end_lines(run_end(record(long)), width)) <= width


def test_texts_of_data_are_printed_and_not_obeyed():
    end = RunEnd((EndRow("a\x1b[2J|b", dict(mAP=1.)),), ("mAP",), ("x\x1b[2J",), "<b>s</b>")
    assert "\x1b" not in "\n".join(end_lines(end))
    assert "<b>" not in end_markdown(end) and "J|b" not in end_markdown(end)


def test_what_is_kept_is_what_was_made():
    notes = ["one", "preset=smoke is a test of plumbing: old"]
    end = run_end(record(rows(), notes=notes, wall_s=3.), figures=["a.png", "b.png", "c.png"])
    assert RunEnd.from_dict(json.loads(json.dumps(end.as_dict()))) == end
    assert end.notes == ("one",) and end.figures == ("figures/a.png", "figures/b.png")
    missing = rows()
    for row in missing:
        if row["method"] == "New": row["metrics"]["mAP"] = math.nan
    assert "mAP" not in run_end(record(missing)).rows[1].scores


def test_a_gain_over_another_start_is_not_resolved_and_says_so():
    found = rows(("Base", "New"))
    for row in found: row["extra"] = dict(start="none" if row["method"] == "Base" else "world", model="m")
    end = run_end(record(found))
    want = "other starts: Base, zeroshot from none, New, zeroshot from world; train both from one start"
    assert end.rows[1].note == want
    text = "\n".join(end_lines(end))
    assert "+3.97 (other starts)" in text and "[" not in text.replace("[95 %]", "")
    assert "No difference is resolved at 95 %" in text and "from world" in text
    assert "+3.97 (other starts)" in end_markdown(RunEnd.from_dict(json.loads(json.dumps(end.as_dict()))))
    for row in found: row["extra"] = dict(start=f"{row['method']}.pth", model=row["method"])    # each from its own file
    assert run_end(record(found)).rows[1].note == ""


def test_the_base_is_what_is_named_wherever_it_stands():
    last = rows(names=["New", "Other", "Base"])
    end = run_end(record(last), Ending(base="Base"))
    usual = run_end(record(rows()))
    gains = {row.variant: row.gain for row in usual.rows}
    assert {row.variant: row.gain for row in end.rows} == gains and "gains are over Base" in end.about[0]
    assert "gains are over New" in run_end(record(last)).about[0]
    with pytest.raises(ValueError, match="base='Bsae' is not known"): run_end(record(last), Ending(base="Bsae"))


def test_within_compares_what_shares_a_recorded_value():
    found = [{**row, "extra": dict(train_on=name)} for name in ("coarse", "fine") for row in rows()]
    end = run_end(record(found), Ending(base="Base", within="train_on"))
    assert [row.searched.rpartition("=")[2] for row in end.rows] == ["coarse"]*3 + ["fine"]*3
    assert [row.gain == () for row in end.rows] == [True, False, False]*2
    assert found[0]["stage"] == "zeroshot", "rows stay as they were recorded"
    with pytest.raises(ValueError, match="within='trian_on' is not known"):
        run_end(record(found), Ending(within="trian_on"))


@pytest.mark.parametrize("gain, text", [((-.001, -.004, .004), "+0.00 [+0.00, +0.00]"), ((-.001,), "+0.00"),
                                        ((-.2, -.31, -.001), "-0.20 [-0.31, +0.00]")])
def test_no_difference_is_minus_nothing(gain, text):
    rows = (EndRow("a", dict(mAP=40.)), EndRow("b", dict(mAP=40.), gain=gain))
    assert text in end_lines(RunEnd(rows, ("mAP",)))[-1]
