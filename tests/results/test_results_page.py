"The page of all results: sources stay apart, text is escaped, and sorting and filtering in a browser"
import pandas as pd
import pytest
from helpers.browser import CHROMIUM, FLAGS

from reid_lab.cli.commands import main
from reid_lab.results.results_page import ResultTable, all_tables, own_tables, results_page, seeds_text


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
    assert left.note.startswith("6 rows of the store have none of") and len(left.rows) == 2
    assert own_tables(rows().iloc[:0]) == []


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


@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")
def test_sorting_and_filtering_in_a_browser(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    printed = ResultTable("printed", "camel", "Table I", ("method", "R1"), (("b", 9.5), ("a", 70.), ("c", None)))
    path = tmp_path/"page.html"
    path.write_text(results_page([printed, *own_tables(rows())]), encoding="utf-8")
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
        assert page.inner_text("#count") == "1 rows in 1 tables" and page.evaluate(first) == []
        page.fill("#words", "")
        page.uncheck(".source[value=world]")
        assert page.inner_text("#count") == "3 rows in 1 tables" and page.is_hidden("[data-source=world]")
        for width in (390, 1366):
            page.set_viewport_size(dict(width=width, height=800))
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
    assert not broken
