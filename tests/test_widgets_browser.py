"""Views in a real browser: JupyterLab with a kernel, and a page without one"""
import json

import nbformat
import pytest
from test_browser import CHROMIUM, FLAGS, serve
from test_widgets import ROOT, VIEWS, make_scene, write_notebook

from reid_lab.widgets.view import Board

playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
pytestmark = [pytest.mark.browser,
              pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")]
WEBGL = ["--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]    # drawn by the processor
PANEL = "window.jupyterapp?.shell?.currentWidget"
ANSWER = """async () => {
  const list = document.querySelector(".rl-list"), map = document.querySelector(".rl-map"), old = list.dataset.drawn;
  const marks = map.dataset.marks, start = performance.now();
  list.querySelector('button[aria-label="next query"]').click();
  const seen = () => list.dataset.drawn !== old && list.querySelector("figure") && map.dataset.marks !== marks;
  while (!seen() && performance.now() - start < 30000) await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""
POINT = """() => {
  const plot = document.querySelector(".rl-plot"), layout = plot._fullLayout, trace = plot.data[2];
  const box = plot.getBoundingClientRect();
  const place = (i) => [layout.xaxis.l2p(trace.x[i]) + layout._size.l, layout.yaxis.l2p(trace.y[i]) + layout._size.t];
  const apart = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);
  const far = (i) => Math.min(...trace.x.map((_, j) => j === i ? 1e9 : apart(place(i), place(j))));
  const best = [...trace.x.keys()].slice(0, 200).reduce((a, b) => far(b) > far(a) ? b : a);
  return place(best).map((v, d) => v + (d ? box.top : box.left));
}"""


def opened(p, **kw):
    browser = p.chromium.launch(executable_path=CHROMIUM, args=[f for f in FLAGS if f != "--disable-gpu"] + WEBGL)
    page, broken = browser.new_page(viewport=dict(width=1280, height=1000), **kw), []
    page.on("pageerror", lambda e: broken.append(str(e)))
    page.set_default_timeout(150_000)
    return browser, page, broken


def marks(page): return json.loads(page.evaluate("document.querySelector('.rl-map').dataset.marks"))


def wait_for_mark(page, test):
    page.wait_for_function(f"JSON.parse(document.querySelector('.rl-map').dataset.marks).{test}")


def head(page): return page.evaluate("document.querySelector('.rl-list .rl-head').textContent")


def test_map_and_list_follow_each_other_in_jupyterlab(tmp_path, capsys):
    notebook = write_notebook(tmp_path/"views.ipynb")
    home = tmp_path/"home"
    home.mkdir()
    with serve(tmp_path, home, PYTHONPATH=str(ROOT)) as (address, token), playwright.sync_playwright() as p:
        browser, page, broken = opened(p)
        page.goto(f"{address}/lab/tree/views.ipynb?token={token}&reset", wait_until="domcontentloaded")
        page.wait_for_function(f"{PANEL}?.context?.sessionContext?.session?.kernel?.status === 'idle'")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')", None)
        page.wait_for_selector(".rl-map[data-marks]")
        page.wait_for_selector(".rl-list[data-drawn]")
        times = [page.evaluate(ANSWER) for _ in range(4)]
        assert marks(page)["query"] == 5 and "query 5" in head(page)
        page.focus(".rl-list")
        for key in ("ArrowRight", "Enter"): page.keyboard.press(key)
        wait_for_mark(page, "chosen === 1")
        x, y = page.evaluate(POINT)
        page.mouse.move(x - 2, y)
        page.mouse.move(x, y)
        page.wait_for_selector(".rl-tip:not([hidden])")
        page.screenshot(path=str(tmp_path/"light.png"))
        page.mouse.click(x, y)
        page.wait_for_function("!document.querySelector('.rl-list .rl-head').textContent.includes('query 5')")
        assert f"query {marks(page)['query']}o" in head(page).replace("›", "")
        page.click(".rl-map button.rl-key")
        wait_for_mark(page, "on < 1000")
        page.select_option(".rl-map select", "correctness")
        wait_for_mark(page, "colour === 'correctness'")
        page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})", None)
        page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
        page.wait_for_timeout(6000)     # the theme's splash goes away
        page.evaluate("document.querySelector('.rl-map').scrollIntoView()")
        page.screenshot(path=str(tmp_path/"dark.png"))
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        page.wait_for_timeout(1500)
        browser.close()
    saved = json.loads(notebook.read_text())
    with capsys.disabled():
        later = ", ".join(f"{t:.0f}" for t in times[1:])
        print(f"\n    5,000 points: first answer {times[0]:.0f} ms, then {later} ms; "
              f"saved notebook {notebook.stat().st_size/1000:.0f} kB")
    assert not broken and "widgets" not in saved["metadata"] and notebook.stat().st_size < 300_000
    assert "image/png" in saved["cells"][1]["outputs"][0]["data"]


LAB = ["""from reid_lab.embeddings import embed_images, embed_texts
from reid_lab.recipes.ready import from_package
from reid_lab.widgets.attention import AttentionView
from reid_lab.widgets.lists import RankedList
from reid_lab.widgets.view import Board
from reid_lab.widgets.words import TextScene, WordLab
from reid_lab.world.world import Group, World
table = World('smoke', seed=3, task='text', groups=[Group('test', 'real-like', 10, 3, 3)]).table()
model, gallery = from_package('clip_tiny'), table.gallery('test')
texts = table.text_queries('test')
texts.loc[0, 'caption'] = 'A man in blue jeans <img src=x onerror=alert(1)> and a red jacket'
q, g = embed_texts(model, texts, quiet=True), embed_images(model, gallery, quiet=True)
scene = TextScene(model, q, g, gallery, query=0)
""", "Board(WordLab(scene), RankedList(scene), AttentionView(scene, model, method='gradcam'))"]
MASK = """async (at) => {
  const list = document.querySelector(".rl-list"), map = document.querySelector(".rl-attention");
  const old = [list.textContent, map.dataset.drawn], start = performance.now();
  document.querySelector(`.rl-words [data-at="${at}"]`).click();
  const wait = async (seen) => {
    while (!seen() && performance.now() - start < 60000) await new Promise(requestAnimationFrame);
    return performance.now() - start;
  };
  return [await wait(() => list.textContent !== old[0]), await wait(() => map.dataset.drawn !== old[1])];
}"""


def heat(page): return page.evaluate("document.querySelector('.rl-heat').dataset.sum")


def test_a_word_re_ranks_the_list_and_changes_the_map(tmp_path, capsys):
    cells = [nbformat.v4.new_code_cell(c) for c in LAB]
    kernel = dict(name="python3", display_name="python3", language="python")
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=dict(kernelspec=kernel)), tmp_path/"words.ipynb")
    home = tmp_path/"home"
    home.mkdir()
    with serve(tmp_path, home, PYTHONPATH=str(ROOT)) as (address, token), playwright.sync_playwright() as p:
        browser, page, broken = opened(p)
        page.goto(f"{address}/lab/tree/words.ipynb?token={token}&reset", wait_until="domcontentloaded")
        page.wait_for_function(f"{PANEL}?.context?.sessionContext?.session?.kernel?.status === 'idle'")
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')", None)
        page.wait_for_selector(".rl-words .rl-word")
        page.wait_for_selector(".rl-heat[data-sum]")
        text = page.inner_text(".rl-words .rl-said-words")
        assert "<img" in text and not page.evaluate("document.querySelector('img[src=x]')")
        first, times = heat(page), [page.evaluate(MASK, at) for at in (3, 4, 10)]
        assert heat(page) != first and "[UNK]" in page.inner_text(".rl-list blockquote")
        assert page.locator(".rl-words .rl-gone").count() == 3 and "3 of" in page.inner_text(".rl-words .rl-sum")
        page.screenshot(path=str(tmp_path/"words-light.png"))
        before = heat(page)
        page.click('.rl-attention [data-at="11"]')              # explain one word
        page.wait_for_function(f"document.querySelector('.rl-heat').dataset.sum !== '{before}'")
        assert "jacket" in page.inner_text(".rl-attention figcaption")
        before = heat(page)
        page.click('.rl-list li:nth-child(4)')                  # and on another image
        page.wait_for_function(f"document.querySelector('.rl-heat').dataset.sum !== '{before}'")
        page.focus(".rl-words .rl-word")
        page.keyboard.press("Escape")
        page.wait_for_function("!document.querySelector('.rl-words .rl-gone')")
        page.fill(".rl-own", "a woman with a green bag")
        page.keyboard.press("Enter")
        said = "document.querySelector('.rl-list blockquote').textContent"
        page.wait_for_function(f"{said} === 'a woman with a green bag'")
        page.evaluate("window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})", None)
        page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
        page.wait_for_timeout(6000)
        page.evaluate("document.querySelector('.rl-words').scrollIntoView()")
        page.screenshot(path=str(tmp_path/"words-dark.png"))
        browser.close()
    with capsys.disabled():
        print("\n    a word goes: list after " + ", ".join(f"{a:.0f}" for a, _ in times) + " ms, map after " +
              ", ".join(f"{b:.0f}" for _, b in times) + " ms")
    assert not broken


def test_a_page_of_words_without_a_kernel(tmp_path):
    exec(LAB[0], space := {})
    exec(f"board = {LAB[1]}", space)
    path = space["board"].to_html(tmp_path/"words.html", title="Words", theme="dark", queries=[0, 1])
    with playwright.sync_playwright() as p:
        browser, page, broken = opened(p)
        page.goto(path.as_uri())
        page.wait_for_selector(".rl-heat[data-sum]")
        whole = page.inner_text(".rl-list ol")
        page.click('.rl-words [data-at="10"]')
        page.wait_for_function("document.querySelector('.rl-list blockquote').textContent.includes('[UNK]')")
        assert page.inner_text(".rl-list ol") != whole
        page.click('.rl-words [data-at="3"]')                   # one word at a time
        page.wait_for_function("document.querySelectorAll('.rl-words .rl-gone').length === 1")
        page.keyboard.press("Escape")
        before = heat(page)
        page.click('.rl-attention [data-at="10"]')
        page.wait_for_function(f"document.querySelector('.rl-heat').dataset.sum !== '{before}'")
        page.screenshot(path=str(tmp_path/"page.png"), full_page=True)
        assert "<img" in page.inner_text(".rl-words") and not page.evaluate("document.querySelector('img[src=x]')")
        browser.close()
    assert not broken


def test_a_page_without_a_kernel(tmp_path):
    scene = make_scene(query=1)
    board = Board(*(make(scene) for _, make in VIEWS.values()))
    path = board.to_html(tmp_path/"board.html", title="Both", theme="dark")
    with playwright.sync_playwright() as p:
        browser, page, broken = opened(p)
        asked = []
        page.on("request", lambda r: asked.append(r.url))
        page.goto(path.as_uri())
        page.wait_for_selector(".rl-map[data-marks]")
        before = head(page)
        page.focus(".rl-list")
        page.keyboard.press("ArrowDown")
        wait_for_mark(page, "query === 2")
        assert "query 2" in head(page) != before and "null" not in page.inner_text("main")
        dark = page.evaluate("getComputedStyle(document.querySelector('.rl-list')).backgroundColor")
        browser.close()
    asked = [a for a in asked if a[:5] not in ("data:", "blob:")]
    assert not broken and asked == [path.as_uri()] and dark == "rgb(21, 24, 28)"
