"Pages that are opened from another folder show their pictures, with and without the folder of these"
import shutil

import numpy as np
from helpers.browser import NEEDS_CHROMIUM, opened
from helpers.views import embedded
from PIL import Image

from reid_lab.analysis.bias.audit import bias_report
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.scene import RankedList, Scene
from reid_lab.widgets.search import SearchPage
from reid_lab.widgets.view import Board

pytestmark = NEEDS_CHROMIUM
BLANK = "() => [...document.images].filter((i) => i.offsetParent && !(i.complete && i.naturalWidth)).length"


def written(folder):
    "Each kind of page, of crops in `crops` beside it; one crop is lost before they are written"
    e, crops = embedded("ordinary"), folder/"crops"
    crops.mkdir(parents=True)
    files = [crops/f"{i}.png" for i in range(len(e))]
    for i, file in enumerate(files): Image.fromarray(np.full((32, 16, 3), 4*i, np.uint8)).save(file)
    files[3].unlink()
    def scene(): return Scene(e[:20], e[20:], files[20:], files[:20], query=3)
    board = scene()
    pages = dict(failures=FailureBrowser(scene()), search=SearchPage(scene()),
                 board=Board(RankedList(board), FailureBrowser(board)))
    for name, page in pages.items(): page.to_html(folder/f"{name}.html", most=4)
    bias_report(e[:20], e[20:], map_method="none").save(folder/"report")
    return [*(f"{name}.html" for name in pages), "report/report.html"]


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
                if name in ("failures.html", "search.html", "board.html"):
                    assert "could not be read when this page was written, such as 3.png" in text, name
                    assert "They are shown by name; put them back and write the page again" in text
        browser.close()
    assert not broken
