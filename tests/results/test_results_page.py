"The page of all results: sources stay apart, text is escaped, and sorting and filtering in a browser"
from dataclasses import replace

import pandas as pd
import pytest
from helpers.browser import CHROMIUM, FLAGS

from reid_lab.cli.commands import main
from reid_lab.results.results_page import ResultTable, all_tables, own_tables, results_page, seeds_text

PLACEHOLDER = """() => {
  const input = document.querySelector("#words"), style = getComputedStyle(input);
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${style.fontSize} ${style.fontFamily}`;
  return [pen.measureText(input.placeholder).width, input.clientWidth - parseFloat(style.paddingLeft)
    - parseFloat(style.paddingRight)];
}"""    # pixels that the text in an empty field needs, and those that there are


def rows(**more):
    return pd.DataFrame([dict(run="r", time=f"2026-01-0{s + 1}", commit="abc", notebook="run_camel", variant=v, seed=s,
                              preset="quick", dataset="world-quick", split="test", selection="last step",
                              parameters=dict(study="main"), mAP=40. + s + g) | more
                         for s in range(3) for v, g in (("<script>alert(1)</script>", 0), ("ours", -2))])


def test_means_are_over_seeds_and_reruns_are_told_apart():
    table, = own_tables(rows())
    assert table.source == "world" and table.paper == "camel" and seeds_text([3, 0, 1]) == "0-1, 3"
    assert dict(zip(table.columns, table.rows[0]))["mAP"] == "41.0 ± 1.0"
    twice, = own_tables(pd.concat([rows(), rows(run="s", mAP=10.)], ignore_index=True))
    assert "run" in twice.columns and len(twice.rows) == 4
    left, = own_tables(pd.concat([rows(), rows(mAP=None, variant="none")], ignore_index=True))
    assert left.notes[0].startswith("6 rows of the store have none of") and len(left.rows) == 2
    assert own_tables(rows().iloc[:0]) == []


def line_of(table, **values):
    "Place of the one row that has the values"
    found = [i for i, row in enumerate(table.rows) if values.items() <= dict(zip(table.columns, row)).items()]
    return found[0] if len(found) == 1 else pytest.fail(f"{len(found)} rows have {values}")


def test_a_run_that_a_later_one_of_the_same_setting_repeats_is_superseded():
    later = rows(run="s", time="2026-02-01")
    table, = own_tables(pd.concat([rows(), later], ignore_index=True))
    first, second = (line_of(table, variant="ours", run=run) for run in "rs")
    assert "run s of 2026-02-01" in table.replaced[first] and table.replaced[second] == "" and table.n_replaced == 2
    assert own_tables(rows())[0].n_replaced == 0


@pytest.mark.parametrize("change", [
    lambda f: f[f.seed < 2],                                                        # lacks a seed of the first run
    lambda f: f.assign(parameters=[dict(study="main", lr=.1)]*len(f)),              # another rate
    lambda f: f.assign(selection="val mAP"), lambda f: f.assign(dataset="world-quick fine"),
    lambda f: f.assign(time="2025-01-01")])                                         # the second run is the older one
def test_a_run_of_other_seeds_or_settings_supersedes_nothing(change):
    first = rows().assign(parameters=[dict(study="main", lr=.2)]*6)
    second = change(rows(run="s", time="2026-02-01").assign(parameters=[dict(study="main", lr=.2)]*6))
    tables = own_tables(pd.concat([first, second], ignore_index=True))
    kept = [(dict(zip(t.columns, row)).get("run", "r"), why) for t in tables
            for row, why in zip(t.rows, t.replaced)]
    assert all(not why for run, why in kept if run == "r")


def test_what_was_measured_or_how_it_ran_is_no_setting():
    at = [dict(study="main", lr=.1, train_s=s, methods=m, n_jobs=j) for s, m, j in ((3., ["a"], 1), (9., [], 4))]
    both = [rows(run=run, time=time).assign(parameters=[p]*6)
            for run, time, p in zip("rs", ("2026-01-01", "2026-02-01"), at)]
    table, = own_tables(pd.concat(both, ignore_index=True))
    assert table.n_replaced == 2


def test_a_table_refuses_notes_in_one_text_and_reasons_that_do_not_fit():
    with pytest.raises(ValueError, match="is one text"): ResultTable("printed", "", "t", ("a",), ((1,),), "note")
    with pytest.raises(ValueError, match="2 texts for 1 rows"):
        ResultTable("printed", "", "t", ("a",), ((1,),), replaced=("", "x"))


def test_notes_stand_for_themselves_and_words_are_explained():
    page = results_page([ResultTable("printed", "camel", "T", ("method", "R1"), (("a", 1.),), ("One <b>.", "Two."))])
    assert "<li>One &lt;b&gt;.</li>" in page and "<li>Two.</li>" in page and 'id="old"' not in page
    assert 'title="rank-1 accuracy in percent"' in page and "<dt>selection</dt>" in page


def test_a_table_has_one_source_and_all_text_is_escaped():
    tables = all_tables(rows())
    assert {t.source for t in tables} >= {"printed", "release", "third", "world"}
    page = results_page(tables)
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page and len(page.encode()) < 10**6


def test_the_command_writes_the_page_and_refuses_other_names(tmp_path, capsys):
    assert main(["results", "page", str(tmp_path/"a.html"), "--store", "measured"]) == 0
    assert "Printed in the paper" in (tmp_path/"a.html").read_text()
    assert main(["results", "page", str(tmp_path/"a.pdf")]) != 0
    assert "ends in .html" in capsys.readouterr().err


def test_the_command_says_where_it_wrote_and_what_it_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["results", "page", "new/deep/all.html", "--store", "measured"]) == 0
    assert capsys.readouterr().out == "written to new/deep/all.html, in the new folder new/deep\n"
    assert main(["results", "page", "new/deep/all.html", "--store", "measured"]) == 0
    assert capsys.readouterr().out == "written to new/deep/all.html\n"
    (tmp_path/"file").write_text("x")
    assert main(["results", "page", "file/all.html", "--store", "measured"]) == 2
    assert "is a file, and no folder" in capsys.readouterr().err


def test_marks_of_code_are_no_characters_of_the_page():
    table, = own_tables(rows())
    table = replace(table, notes=("Made by `reid_lab run <x>` and `y`.", "An odd ` stays."))
    text = results_page([table, replace(table, source="contributed", notes=())])
    assert "<li>Made by <code>reid_lab run &lt;x&gt;</code> and <code>y</code>.</li>" in text
    assert "<li>An odd ` stays.</li>" in text and "scored with <code>reid_lab reproduce run</code>" in text
    body = results_page(all_tables()).partition("<body>")[2].rpartition("<script>")[0]
    assert "`" not in body and "Scores on <code>world</code> datasets" in body and body.lstrip().startswith("<h1>")
    assert text.startswith("<!doctype html>")


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")
def test_sorting_and_filtering_in_a_browser(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    printed = ResultTable("printed", "camel", "Table I", ("method", "R1"), (("b", 9.5), ("a", 70.), ("c", None)))
    both = pd.concat([rows(), rows(run="s", time="2026-02-01")], ignore_index=True)
    path = tmp_path/"page.html"
    path.write_text(results_page([printed, *own_tables(both)]), encoding="utf-8")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport=dict(width=390, height=800))
        broken = []
        page.on("pageerror", lambda e: broken.append(str(e)))
        page.goto(path.as_uri())
        page.click("#open")
        shown = "[...document.querySelector('tbody').rows].filter(r => !r.hidden)"
        first = f"() => {shown}.map(r => r.cells[0].textContent)"
        page.click("th:has-text('R1')")
        assert page.evaluate(first) == ["a", "b", "c"]              # down, the empty cell last
        page.click("th:has-text('R1')")
        assert page.evaluate(first) == ["b", "a", "c"]
        page.fill("#words", "ours")
        assert page.inner_text("#count") == "1 row in 1 table" and page.evaluate(first) == []
        page.fill("#words", "")
        page.uncheck(".source[value=world]")
        assert page.inner_text("#count") == "3 rows in 1 table" and page.is_hidden("[data-source=world]")
        page.check(".source[value=world]")
        page.check("#old")
        assert page.inner_text("#count") == "7 rows in 2 tables"
        page.uncheck("#old")
        assert page.inner_text("#count") == "5 rows in 2 tables"    # two are superseded
        page.fill("#words", "no such word")
        assert "No row fits: all of the words" in page.inner_text("#nothing")
        page.click("#reset")
        assert page.is_hidden("#nothing") and page.inner_text("#count") == "5 rows in 2 tables"
        for width in (390, 1366):
            page.set_viewport_size(dict(width=width, height=800))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            needed, there = page.evaluate(PLACEHOLDER)
            assert needed <= there, width
        browser.close()
    assert not broken
