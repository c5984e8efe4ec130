"Pages that are opened from another folder show their pictures, with and without the folder of these"
import shutil

import numpy as np
from helpers.bias import scene as biased
from helpers.browser import NEEDS_CHROMIUM, opened
from helpers.views import embedded
from PIL import Image

from reid_lab.analysis.bias.audit import bias_report
from reid_lab.analysis.compare import Comparison, ModelFeatures, compare_features
from reid_lab.cli.compare import formatted
from reid_lab.widgets.cameras import cockpit
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.scene import RankedList, Scene
from reid_lab.widgets.search import SearchPage
from reid_lab.widgets.view import Board

pytestmark = NEEDS_CHROMIUM
BLANK = "() => [...document.images].filter((i) => i.offsetParent && !(i.complete && i.naturalWidth)).length"


SENTENCES = ("failures.html", "search.html", "board.html", "cockpit.html")    # of a crop that is lost


def images(crops, n):
    "Files of `n` crops, the fourth of which is lost"
    crops.mkdir(parents=True)
    files = [crops/f"{i}.png" for i in range(n)]
    for i, file in enumerate(files): Image.fromarray(np.full((32, 16, 3), 4*i % 256, np.uint8)).save(file)
    files[3].unlink()
    return files


def written(folder):
    "Each kind of page, of crops in `crops` beside it; one crop is lost before they are written"
    e = embedded("ordinary")
    files = images(folder/"crops", len(e))
    def scene(): return Scene(e[:20], e[20:], files[20:], files[:20], query=3)
    board = scene()
    pages = dict(failures=FailureBrowser(scene()), search=SearchPage(scene()),
                 board=Board(RankedList(board), FailureBrowser(board)))
    for name, page in pages.items(): page.to_html(folder/f"{name}.html", most=4)
    bias_report(e[:20], e[20:], map_method="none").save(folder/"report")
    q, g = biased(2.)
    of_cameras = images(folder/"crops"/"cameras", len(q) + len(g))
    cameras = Scene(q, g, of_cameras[len(q):], of_cameras[:len(q)], query=3)
    cockpit(cameras, n=60).to_html(folder/"cockpit.html", most=4)
    models = [ModelFeatures(label, *biased(shift)) for label, shift in (("café", 0.), ("other", 2.))]
    table = formatted(Comparison((compare_features(models, "own"),)), "html")
    (folder/"table.html").write_text(table, "utf-8")    # as `reid_lab compare --out table.html` does
    return [*(f"{name}.html" for name in pages), "report/report.html", "cockpit.html"]


def test_moved_pages_show_their_pictures_or_name_the_folder(tmp_path):
    from playwright.sync_api import sync_playwright
    pages = written(tmp_path/"made")
    shutil.move(tmp_path/"made", tmp_path/"moved")
    alone = tmp_path/"elsewhere"
    shutil.copytree(tmp_path/"moved", alone, ignore=shutil.ignore_patterns("crops", "figures"))
    with sync_playwright() as p:
        browser, page, broken = opened(p)
        for folder in (tmp_path/"moved", alone):
            for name in pages:
                page.goto((folder/name).as_uri())
                page.wait_for_function("document.images.length > 0")
                page.wait_for_function(f"({BLANK})() === 0")
                text = page.inner_text("body")
                if name in SENTENCES:
                    assert "could not be read when this page was written, such as 3.png" in text, name
                    assert "They are shown by name; put them back and write the page again" in text
            page.goto((folder/"table.html").as_uri())
            assert "café" in page.inner_text("table") and page.locator("img, link, script[src]").count() == 0
        browser.close()
    assert not broken
