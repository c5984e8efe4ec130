"Printed differences beside those on the World: against naive loops, and what the README says of them"
import json
import math
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reid_lab.results.comparisons import paired_scores
from reid_lab.results.published import PAPERS, load_paper
from reid_lab.results.rows import load_results
from reid_lab.results.validity import (
    READINGS,
    agreement,
    agreement_table,
    closed_gaps,
    correspondences_in,
    gap_closed,
    kept_by_transfer,
    load_correspondences,
    no_share_of,
    printed_differences,
    reading,
    share_kept,
    validity_conclusion,
    validity_table,
    world_difference,
)

ROOT = Path(__file__).resolve().parents[2]
KNOWN = load_correspondences()


@pytest.fixture(scope="module")
def rows(): return load_results("measured")


@pytest.fixture(scope="module")
def table(rows): return validity_table(rows)


def fits(row, filters):
    "Whether a printed row has the given values"
    return all(row.get(k) in (v if isinstance(v, list) else [v]) for k, v in filters.items())


def naive_printed(one):
    "All pairs of printed rows that differ in what is compared alone"
    found = []
    printed = next(t for t in load_paper(one.paper)["tables"] if t["id"] == one.table)["rows"]
    free = {*one.printed.base, *one.printed.other, *one.printed.across}
    keys = [k for k in ("dataset", "source", "target", "backbone") if k not in free]
    settings = {}
    for row in printed:
        for side in ("base", "other"):
            if fits(row, {**one.printed.where, **getattr(one.printed, side)}):
                sides = settings.setdefault(tuple(row[k] for k in keys), dict(base=[], other=[]))
                sides[side].append(row["metrics"]["mAP"])
    for sides in settings.values():
        if sides["base"] and sides["other"]: found.append(np.mean(sides["other"]) - np.mean(sides["base"]))
    return found


@pytest.mark.parametrize("one", KNOWN, ids=lambda c: f"{c.paper}-{c.table}-{c.title}")
def test_a_printed_difference_is_that_of_a_naive_loop(one):
    assert sorted(printed_differences(one)) == pytest.approx(sorted(naive_printed(one)))


def test_every_correspondence_is_there_once_and_names_rows(rows):
    assert len(KNOWN) == 68 and {c.paper for c in KNOWN} == set(PAPERS)
    assert len({(c.paper, c.table, c.title) for c in KNOWN}) == len(KNOWN)
    assert all(world_difference(c, rows) is not None for c in KNOWN)
    text = (resources.files("reid_lab")/"resources"/"validity.json").read_text(encoding="utf-8")
    assert sum(len(group["pairs"]) for group in json.loads(text)) == len(KNOWN)


@pytest.mark.parametrize("one", KNOWN[::9], ids=lambda c: f"{c.paper}-{c.table}-{c.title}")
def test_a_world_difference_is_that_of_a_naive_loop(one, rows):
    scores = {}
    for side in ("base", "other"):
        filters = {**one.world.where, **getattr(one.world, side)}
        for row in rows.sort_values("time").to_dict("records"):
            held = {**row["parameters"], **row}
            if fits(held, filters) and not math.isnan(row["mAP"]): scores[side, row["seed"]] = row["mAP"]
    seeds = sorted(s for side, s in scores if side == "base" and ("other", s) in scores)
    gains = [scores["other", s] - scores["base", s] for s in seeds]
    found = world_difference(one, rows)
    assert (found.n, found.diff) == (len(seeds), pytest.approx(np.mean(gains)))


def difference(*values): return paired_scores("mAP", [0.]*len(values), values)


@pytest.mark.parametrize("printed, values, expected", [
    (1., (1., 1.1, .9), "agrees"), (1., (.4, .41, .42), "blind"), (1., (-3., 3.), "blind"),
    (-1., (1., 1.1, .9), "contrary"),
    (.99, (1., 1.1, 1.2), "agrees"), (.99, (.9, .8, .85), "small"), (-.6, (2., 2.1, 2.2), "contrary"),
    (.49, (2., 2.1, 2.2), "invented"), (0., (0., 0., 0.), "small"), (1., (0., 0., 0.), "blind")])
def test_a_reading_follows_its_limits(printed, values, expected):
    assert reading(printed, difference(*values)) == expected and expected in READINGS


def test_nothing_is_read_where_there_are_no_rows(rows):
    none = validity_table(rows[rows.notebook == "run_cfan"])
    assert set(none[none.paper != "cfan"].reading) == {"unseen"} and (none[none.paper != "cfan"].seeds == 0).all()
    assert agreement(none).n == (none.paper == "cfan").sum()


def test_agreement_is_spearman_and_counted_signs(table):
    for (paper, name), lines in table.groupby(["paper", "table"]):
        found = agreement(lines)
        if len(lines) >= 3: assert found.rank == pytest.approx(stats.spearmanr(lines.printed, lines.here).statistic)
        else: assert math.isnan(found.rank)
        assert found.same_sign == sum(a*b > 0 for a, b in zip(lines.printed, lines.here))
        assert found.signed == sum(a*b != 0 for a, b in zip(lines.printed, lines.here))
        if len(lines) < 5: assert math.isnan(found.low)
    whole = agreement(table)
    assert whole.low <= whole.rank <= whole.high and agreement(table) == whole
    assert agreement_table(table).group.is_unique


def test_a_gap_is_closed_by_its_share(rows):
    assert [gap_closed(s, 40., 60.) for s in (40., 50., 70., 38.)] == [0., .5, 1.5, -.1]
    assert math.isnan(gap_closed(50., 60., 60.)) and math.isnan(gap_closed(50., 60., 50.))
    found = closed_gaps(rows).set_index("method")
    printed = next(t for t in load_paper("dart3")["tables"] if t["id"] == "1")["rows"]
    shares = []
    for row in printed:
        if row["method"] != "Norm": continue
        beside = [r for r in printed if (r["target"], r["backbone"]) == (row["target"], row["backbone"])]
        same = {r["method"]: r["metrics"]["mAP"] for r in beside}
        shares.append((same["Norm"] - same["No-adapt"])/(same["Upper Bound"] - same["No-adapt"]))
    assert len(shares) == 8 and found.table_1["Norm"] == pytest.approx(100*np.mean(shares))
    assert (found.low <= found.here).all() and (found.here <= found.high).all()


@pytest.mark.parametrize("oracle, says", [
    (60., "not above the base"), (50., r"not above the base \(-10.00 points\)"),
    (60.4, "gap of 0.40 points is below 1"), (60.999, "below 1"), (math.nan, "a score is missing")])
def test_a_gap_below_a_point_has_no_share_and_says_why(oracle, says):
    assert math.isnan(gap_closed(61., 60., oracle)) and re.search(says, no_share_of(60., oracle))


def test_a_share_is_that_of_a_naive_division():
    rng = np.random.default_rng(0)
    for score, base, oracle in rng.uniform(0, 100, (200, 3)):
        if oracle - base < 1: assert math.isnan(gap_closed(score, base, oracle)) and no_share_of(base, oracle)
        else: assert gap_closed(score, base, oracle)*(oracle - base) == pytest.approx(score - base)
    assert no_share_of(59., 60.) == "" and gap_closed(59.5, 59., 60.) == .5
    assert share_kept(30., 60.) == 50. and all(math.isnan(share_kept(1., inside)) for inside in (0., .9, math.nan))


def test_worlds_without_a_gap_are_left_out_and_counted(rows):
    level = rows.copy()
    seeds = sorted(level[level.run == "dart3_cameras"].seed.unique())
    base = level[(level.run == "dart3_main") & (level.variant == "No adaptation")].set_index("seed").mAP
    oracle = (level.run == "dart3_cameras") & (level.variant == "No adaptation") & (level.seed == seeds[0])
    level.loc[oracle, "mAP"] = base[seeds[0]] + .01
    found, before = closed_gaps(level), closed_gaps(rows)
    assert set(found.seeds) == {len(seeds) - 1} and set(before.seeds) == {len(seeds)}
    assert found.here.notna().all() and (found.here.abs() < 200).all()


def test_gaps_of_a_scene_are_those_of_its_own_rows(rows):
    main = rows[(rows.run == "dart3_main") & (rows.seed < 5)]
    where = dict(dataset="world-quick-elsewhere", preset="quick", split="test", notebook="run_dart3")
    moved = [dict(study=study, model="bot_tiny", weights="world") for study in ("main", "cameras")]
    frames = [main.assign(parameters=[{**p, **m} for p in main.parameters], mAP=main.mAP + add, **where)
              for m, add in zip(moved, (0., 10.))]
    found = closed_gaps(pd.concat([rows, *frames]), "elsewhere").set_index("method")
    gain = main.pivot(index="seed", columns="variant", values="mAP")
    shares = 100*(gain["Norm"] - gain["No adaptation"])/10
    assert found.here["Norm"] == pytest.approx(shares.mean()) and found.seeds["Norm"] == 5
    pd.testing.assert_series_equal(found.table_1, closed_gaps(rows).set_index("method").table_1)
    with pytest.raises(ValueError, match="scene='nowhere' has no rows of the study 'main'"):
        closed_gaps(rows, "nowhere")


def test_correspondences_of_a_scene_are_those_of_one_network():
    found = correspondences_in("views")
    assert len(found) == sum(c.paper == "dart3" for c in KNOWN) - 5     # without the five of TransReID
    assert {c.table for c in found if c.note} == {"1", "6"}
    assert all(c.world.where["dataset"] == "world-quick-views" for c in found)
    assert {c.table for c in correspondences_in("skew") if c.note} == set()


def test_what_is_kept_is_a_share_of_the_score_inside(rows):
    kept = kept_by_transfer(rows)
    printed = kept[kept["where"] == "printed (TransReID)"].set_index(["source", "target"]).kept
    assert len(printed) == 6 and printed["DukeMTMC", "MSMT17"] == pytest.approx(100*15.2/55.9)
    assert (kept["where"] == "World").sum() == 6


def test_the_readme_says_what_the_rows_say(table):
    whole = agreement(table)
    text = (ROOT/"README.md").read_text(encoding="utf-8")
    said = re.search(r"Of (\d+) printed ones that these runs repeat, (\d+) have the same sign", text)
    assert tuple(map(int, said.groups())) == (whole.n, whole.same_sign)
    assert f"Of {whole.n} printed differences" in validity_conclusion(table)
    by_paper = {paper: agreement(lines) for paper, lines in table.groupby("paper")}
    assert by_paper["dart3"].rank > .5 and by_paper["cfan"].rank > .5      # "the order ... agrees"
    silent = table[(table.paper == "cfam") & (table.table == "8")]
    assert set(silent.reading) == {"blind"}                                # "CFAM's losses ... do not show"
    gain = table[(table.paper == "dmg") & table.difference.str.startswith("DMG-Net")]
    shown = gain[gain.reading == "agrees"]                                 # "... shows at one of three test sets"
    assert shown.difference.tolist() == ["DMG-Net (Test-C)"] and (gain.seeds == 10).all() and len(gain) == 3


def test_a_table_without_columns_is_refused():
    from reid_lab.figures.agreement import agreement_chart
    with pytest.raises(ValueError, match="column"): agreement_chart(pd.DataFrame(dict(paper=["a"])))


def test_readings_after_holm_are_those_of_a_plain_loop(rows, table):
    found = [world_difference(one, rows) for one in KNOWN]
    order = sorted(range(len(found)), key=lambda i: found[i].p if found[i].p == found[i].p else 2.)
    largest = 0.
    for rank, i in enumerate(order):
        line, here = table.iloc[i], found[i]
        if math.isnan(here.p): assert math.isnan(line.p_holm)
        else:
            largest = max(largest, min(1., (len(found) - rank)*here.p))
            assert line.p_holm == pytest.approx(largest)
        if line.p_holm < .05 or here.verdict not in ("higher", "lower"): assert line.after_holm == line.reading
        else: assert line.after_holm == ("blind" if abs(line.printed) >= 1 else "small")
    left = (table.after_holm == "agrees").sum()
    assert 0 < left <= (table.reading == "agrees").sum()
    assert f"after Holm's correction for all {len(table)} comparisons {left}." in validity_conclusion(table)
