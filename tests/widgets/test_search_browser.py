"The page of a search in a browser: nothing is cut, what is not read is struck through, scores stand beside chance"
import numpy as np
import pytest
from helpers.browser import CHROMIUM, FLAGS, NEEDS_CHROMIUM

from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.search import ask, find, with_chance
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.search import answer_page

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = NEEDS_CHROMIUM
SENTENCES = ["a man wearing a black coat and blue jeans", "a woman with a <b>zebra</b> quokka bag",
             "nothing of the and " + "a man in a very long coat "*40]
PARTS = ".rl-caveats span, .rl-asked, .rl-verdict, .rl-chance, .rl-keys span, .rl-item"
CUT = """(parts) => [...document.querySelectorAll(parts)].filter((el) => {
    const box = el.getBoundingClientRect();
    return box.right > innerWidth || box.left < 0 || el.scrollWidth > el.clientWidth + 1;
  }).map((el) => el.className || el.textContent)"""
LAPPED = """() => {
  const boxes = [...document.querySelector(".rl-search .rl-body").children].map((el) => el.getBoundingClientRect());
  return boxes.slice(1).filter((box, i) => box.top < boxes[i].bottom - 1).length;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1366, 390])
def test_a_good_a_doubtful_and_a_nonsense_sentence(tmp_path, width, scheme):
    rng = np.random.default_rng(0)
    g = Embeddings(rng.normal(size=(40, 64)).astype("f4"), np.arange(40), meta=dict(model_name="clip_tiny"))
    model = create_model("clip_tiny", weights="world").eval()
    answer = with_chance(find(ask(model, SENTENCES), g, 8, Threshold(.9, .1, .1, 40, 12, gallery=40)), model)
    answer_page(answer, title="Search").to_html(tmp_path/"search.html")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, broken = browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme), []
        page.on("pageerror", lambda e: broken.append(str(e)))
        page.goto((tmp_path/"search.html").as_uri())
        for i, sentence in enumerate(SENTENCES):
            if i: page.click("button[aria-label='next query']")
            page.wait_for_function("i => document.querySelector('.rl-ask').value === String(i)", arg=i)
            assert page.locator(".rl-ask option:checked").inner_text().startswith(sentence[:18])
            assert "6 rendered Worlds, on no photograph" in page.inner_text(".rl-caveats")
            assert "nobody clears the threshold" in page.inner_text(".rl-verdict")
            struck = page.eval_on_selector_all(".rl-asked s", "all => all.map((el) => el.textContent)")
            if i == 0: assert not struck
            if i == 1:
                assert struck[0].startswith("<b>zebra</b> (not read: unknown to the model)") and "quokka" in struck[1]
            if i == 2:
                assert sum("cut off" in text for text in struck) == 8
                assert "further words, cut off" in page.inner_text(".rl-asked")
            marks = [page.locator(f".rl-strip .rl-{kind}").count() for kind in ("random", "best", "limit")]
            assert marks == [200, 1, 1]
            assert page.get_attribute(".rl-strip", "aria-label") == answer.by_chance(i)
            assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
            assert page.evaluate(CUT, PARTS) == [] and page.evaluate(LAPPED) == 0
        browser.close()
    assert not broken
