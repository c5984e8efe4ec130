"""Marks on pairs in views: written into a file with a kernel, kept and downloaded in a page without one"""
import json

import numpy as np
import pytest
from helpers.browser import NEEDS_CHROMIUM, opened
from helpers.views import EVIL, embedded, make_scene

from reid_lab.analysis.search import find
from reid_lab.cli.commands import main
from reid_lab.data.marks import Mark, counted, read_marks
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.scene import Scene
from reid_lab.widgets.search import SearchPage, answer_page


def sent(view, item, kind):
    "A mark as the front end sends it"
    pair = {name: item["pair"][name] for name in ("a", "b", "question", "a_pid", "b_pid")}
    view.receive(dict(pair=pair | dict(kind=kind)))


def test_a_mark_of_a_view_is_in_the_file_at_once_and_shown(tmp_path):
    page = SearchPage(make_scene(query=3), marks=tmp_path/"m.jsonl")
    first, second = page.content(3)["items"][:2]
    assert first["pair"] | dict(mark="") == dict(a="folder/3.jpg", question="", a_pid="3", mark="",
                                                 b=f"folder/{first['row'] + 20}.jpg", b_pid=str(first["pid"]))
    sent(page, first, "same")
    sent(page, second, "different")
    assert [(m.kind, m.a, m.b) for m in read_marks(tmp_path/"m.jsonl")] == [
        ("same", "folder/3.jpg", first["pair"]["b"]), ("different", "folder/3.jpg", second["pair"]["b"])]
    assert [item["pair"]["mark"] for item in page.content(3)["items"][:3]] == ["same", "different", ""]
    sent(page, first, "none")
    assert page.content(3)["items"][0]["pair"]["mark"] == ""
    failures = FailureBrowser(make_scene(query=3), marks=tmp_path/"m.jsonl")
    wrong = failures.one(3)["wrong"]
    sent(failures, wrong, "different")
    assert failures.one(3)["wrong"]["pair"]["mark"] == "different" and len(read_marks(tmp_path/"m.jsonl")) == 4
    before = (tmp_path/"m.jsonl").read_bytes()
    sent(page, first, "alike")
    page.receive(dict(pair="same"))
    assert (tmp_path/"m.jsonl").read_bytes() == before, "what is no mark changes nothing"


def test_a_refined_page_ranks_by_the_moved_question_and_drops_the_threshold(tmp_path):
    from reid_lab.analysis.open_set import Threshold
    page = SearchPage(make_scene(query=3), threshold=Threshold(.5, .1, .1, 40, 12), marks=tmp_path/"m.jsonl")
    asked = page.content(3)
    sent(page, asked["items"][0], "different")
    page.set(refined=True)
    moved = page.content(3)
    assert asked["present"] is not None and moved["present"] is None
    assert {item["accepted"] for item in moved["items"]} == {None} and "moved by 1 mark" in moved["remarks"]
    assert [i["score"] for i in moved["items"]] != [i["score"] for i in asked["items"]]
    assert moved["items"][0]["row"] != asked["items"][0]["row"]
    assert page.content(4)["items"] and "moved by" not in page.content(4)["remarks"], "another query has no mark"


def test_uncertain_pairs_are_those_nearest_to_the_boundary():
    from reid_lab.analysis.open_set import Threshold
    for threshold in (None, Threshold(.5, .1, .1, 40, 12)):
        items = SearchPage(make_scene(query=3), threshold=threshold).content(3)["items"]
        scores = np.array([item["score"] for item in items])
        gap = np.argmax(scores[:-1] - scores[1:])
        boundary = .5 if threshold else scores[gap:gap + 2].mean()
        away = [abs(item["score"] - boundary) for item in sorted(items, key=lambda item: item["doubt"])]
        assert away == sorted(away)


def test_features_without_paths_say_why_nothing_can_be_marked():
    e = embedded()
    scene = Scene(Embeddings(e.emb[:20], e.pid[:20]), Embeddings(e.emb[20:], e.pid[20:]), query=0)
    page = SearchPage(scene)
    assert page.fixed()["pairs"]["can"] is False and page.content(0)["items"][0]["pair"] is None


def crops(folder):
    "Twelve images of four people, embedded: features with paths and identities of which one is split in two"
    from PIL import Image
    rng = np.random.default_rng(0)
    (folder/"crops").mkdir()
    for i in range(12):
        Image.fromarray(np.full((64, 32, 3), 20*(i % 4) + 40, np.uint8)).save(folder/"crops"/f"{i}.png")
    who = np.eye(4, 8)
    emb = np.float32(who[np.arange(12) % 4] + .1*rng.normal(size=(12, 8)))
    pid = np.where(np.arange(12) < 8, np.arange(12) % 4, 4 + np.arange(12) % 4)     # the last four are named anew
    return Embeddings(emb, pid, path=[f"{i}.png" for i in range(12)], meta=dict(root=str(folder/"crops")))


@pytest.mark.browser
@pytest.mark.skipif(NEEDS_CHROMIUM[1].args[0], reason="no chromium on this machine (apt-get install chromium)")
@pytest.mark.parametrize("storage", ["kept", "refused"])
def test_marks_of_a_page_are_downloaded_and_applied(tmp_path, storage):
    "Clicks and keys, a download, and `labels apply`: two identities are one; with and without a storage"
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    e = crops(tmp_path)
    e.save(tmp_path/"features")
    page_file = answer_page(find(e[:4], e[4:], 6), tmp_path/"crops").to_html(tmp_path/"page.html", title="Pairs")
    with playwright.sync_playwright() as p:
        browser, page, broken = opened(p, accept_downloads=True)
        if storage == "refused":
            page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('no'); } })")
        page.goto(page_file.as_uri())
        page.wait_for_selector(".rl-search[data-drawn]")
        assert page.locator(".rl-count").inner_text().startswith("0 marks")
        assert page.get_by_role("button", name="download the marks as marks.jsonl").is_disabled()
        page.set_default_timeout(20_000)
        anew = page.locator(".rl-item", has_text="id 4").first      # image 8 shows person 0 under another number
        anew.get_by_role("button", name="merge their identities: rank").click()
        assert page.locator(".rl-mark-merge[aria-pressed=true]").count() == 1
        page.locator(".rl-item").nth(2).focus()     # of other people, as the fourth is
        page.keyboard.press("d")
        assert page.locator(".rl-mark-different[aria-pressed=true]").count() == 1
        page.locator(".rl-item").nth(3).focus()
        page.keyboard.press("s")
        page.keyboard.press("s")                                    # withdrawn again
        assert page.locator(".rl-mark-same[aria-pressed=true]").count() == 0
        assert page.locator(".rl-count").inner_text().startswith("2 marks")
        kept = "kept until" not in page.locator(".rl-count").inner_text()
        assert kept == (storage == "kept")
        order = page.locator(".rl-item").evaluate_all("all => all.map((e) => e.dataset.row)")
        page.get_by_role("button", name="images nearest to the boundary first").click()
        doubtful = page.locator(".rl-item").evaluate_all("all => all.map((e) => e.dataset.row)")
        assert sorted(order) == sorted(doubtful) and order != doubtful
        with page.expect_download() as download: page.get_by_role("button", name="download the marks").click()
        download.value.save_as(tmp_path/"marks.jsonl")
        page.reload()
        page.wait_for_selector(".rl-search[data-drawn]")
        assert page.locator(".rl-mark-merge[aria-pressed=true]").count() == (storage == "kept")
        browser.close()
    assert not broken and [m.kind for m in read_marks(tmp_path/"marks.jsonl")] == ["merge", "different", "same", "none"]
    out = tmp_path/"new.csv"
    assert main(["labels", "apply", str(tmp_path/"features"), str(tmp_path/"marks.jsonl"), "--out", str(out)]) == 0
    names = [line.split(",")[1] for line in out.read_text().splitlines()[1:]]
    assert names == ["0", "1", "2", "3", "0", "1", "2", "3", "0", "5", "6", "7"]


@pytest.mark.browser
@pytest.mark.skipif(NEEDS_CHROMIUM[1].args[0], reason="no chromium on this machine (apt-get install chromium)")
def test_marks_of_a_failure_page_and_a_sentence_that_would_be_a_script(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    view = FailureBrowser(make_scene(captions=[EVIL]*20, query=0))
    path = view.to_html(tmp_path/"failures.html", title="Failures")
    with playwright.sync_playwright() as p:
        browser, page, broken = opened(p, accept_downloads=True)
        page.goto(path.as_uri())
        page.wait_for_selector(".rl-failures[data-drawn]")
        page.set_default_timeout(20_000)
        page.locator(".rl-failures").focus()
        page.keyboard.press("d")
        page.keyboard.press("Shift+S")
        assert page.locator(".rl-mark-different[aria-pressed=true], .rl-mark-same[aria-pressed=true]").count() == 2
        page.select_option("select[aria-label=order]", "doubt")
        rows = page.locator(".rl-row").evaluate_all("all => all.map((e) => Number(e.dataset.q))")
        with page.expect_download() as download: page.get_by_role("button", name="download the marks").click()
        download.value.save_as(tmp_path/"marks.jsonl")
        browser.close()
    away = (view.frame.wrong_score - view.frame.right_score).abs().groupby(view.frame["query"]).first()
    assert [away[q] for q in rows] == sorted(away[q] for q in rows) and not broken
    marks = read_marks(tmp_path/"marks.jsonl")
    one = view.one(0)
    assert [(m.kind, m.question, m.b) for m in marks] == [
        ("different", EVIL, one["wrong"]["pair"]["b"]), ("same", EVIL, one["right"]["pair"]["b"])]
    assert json.loads((tmp_path/"marks.jsonl").read_text().splitlines()[0])["question"] == EVIL


@pytest.mark.browser
@pytest.mark.skipif(NEEDS_CHROMIUM[1].args[0], reason="no chromium on this machine (apt-get install chromium)")
def test_a_page_begins_with_the_marks_of_files_and_its_download_holds_them(tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    e = crops(tmp_path)
    earlier = counted([Mark("different", "./5.png", "0.png"), Mark("same", "8.png", "0.png")])
    page_file = answer_page(find(e[:4], e[4:], 6), tmp_path/"crops", marks=earlier).to_html(tmp_path/"page.html")
    with playwright.sync_playwright() as p:
        browser, page, broken = opened(p, accept_downloads=True)
        page.goto(page_file.as_uri())
        page.wait_for_selector(".rl-search[data-drawn]")
        assert page.locator(".rl-count").inner_text().startswith("2 marks")
        assert page.locator(".rl-mark-same[aria-pressed=true]").count() == 1
        page.locator(".rl-mark-same[aria-pressed=true]").click()            # withdrawn
        page.locator('.rl-item[data-row="2"] .rl-mark-same').click()        # another one
        for _ in range(2):      # after a reload the storage holds the earlier ones as well
            assert page.locator(".rl-count").inner_text().startswith("2 marks")
            page.reload()
            page.wait_for_selector(".rl-search[data-drawn]")
        with page.expect_download() as download: page.get_by_role("button", name="download the marks").click()
        download.value.save_as(tmp_path/"marks.jsonl")
        browser.close()
    marks = read_marks(tmp_path/"marks.jsonl")
    assert not broken and [m.kind for m in marks] == ["different", "same", "none", "same"]
    assert marks[1].time == earlier.marks[1].time and counted(marks).withdrawn == 1
