"Boards at the widths of a phone, of laptops and of a wide screen: nothing is cut, nothing lies on a neighbour"
from contextlib import contextmanager

import numpy as np
import pytest
from helpers.browser import CHROMIUM, FLAGS, NEEDS_CHROMIUM
from helpers.protocols import features, table_for
from helpers.views import MODEL, VIEWS, make_scene
from PIL import Image

from reid_lab.analysis.bias.maps import project_pair
from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.search import ask, find
from reid_lab.recipes.crops import matches, ready_model
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.attention import AttentionView
from reid_lab.widgets.cameras import cockpit
from reid_lab.widgets.failures import FailureBrowser
from reid_lab.widgets.maps import FeatureMap, ScatterMap
from reid_lab.widgets.scene import RankedList, Scene, SceneView
from reid_lab.widgets.search import SearchPage, answer_page
from reid_lab.widgets.view import Board
from reid_lab.widgets.words import WordLab

playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
pytestmark = NEEDS_CHROMIUM
WIDTHS = (390, 1200, 1366, 1440, 1500, 1920)
# What is cut, sticks out of its card, or lies over something without being meant to
FAULTS = """() => {
  const faults = [], skipped = ".rl-sr, .rl-tip, .rl-strip, .rl-plot, .rl-over";
  const kind = (e) => `${e.closest(".rl").className} > ${e.className || e.tagName}`;
  const name = (e) => `${kind(e)}: ${e.textContent.slice(0, 30)}`;
  const seen = (e) => e.checkVisibility({ visibilityProperty: true }) && !e.closest(skipped);
  const page = document.documentElement;
  if (page.scrollWidth > innerWidth) faults.push(`the page is ${page.scrollWidth} px wide`);
  const cards = [...document.querySelectorAll(".rl")];
  for (const card of cards) {
    const parts = [], edge = card.getBoundingClientRect();
    for (const e of card.querySelectorAll("*")) {
      if (!seen(e)) continue;
      const hides = getComputedStyle(e).overflowX !== "visible" && !e.matches(".rl-what, input, select");
      if (hides && e.scrollWidth > e.clientWidth + 1) faults.push(`cut: ${name(e)}`);
      if (e.matches("img, .rl-none, canvas, input, select, .rl-plot, .rl-curve"))
        parts.push([e, e.getBoundingClientRect()]);
      if (e.matches("option, .rl-none > span")) continue;
      for (const node of e.childNodes) {
        if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        const cut = e.matches(".rl-what"); // ends in an ellipsis; its row says the whole
        for (const box of cut ? [e.getBoundingClientRect()] : range.getClientRects()) parts.push([e, box]);
      }
    }
    const scrolled = (e) => e.closest(".rl-rows, blockquote, .rl-grid");
    const byDesign = (e) => e.matches(".rl-badge, canvas, .rl-value");
    for (const [e, box] of parts)
      if (!scrolled(e) && (box.left < edge.left || box.right > edge.right || box.bottom > edge.bottom + 1))
        faults.push(`out of its card: ${name(e)}`);
    parts.forEach(([a, one], i) => parts.slice(i + 1).forEach(([b, two]) => {
      if (a === b || byDesign(a) || byDesign(b)) return;
      if (scrolled(a) !== scrolled(b)) return; // what is scrolled away is seen by nobody
      const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
      const high = Math.min(one.bottom, two.bottom) - Math.max(one.top, two.top);
      if (wide > 1.5 && high > 2.5) faults.push(`${name(a)} and ${name(b)} lie on each other`);
    }));
  }
  cards.forEach((a, i) => cards.slice(i + 1).forEach((b) => {
    const [one, two] = [a, b].map((card) => card.getBoundingClientRect());
    const wide = Math.min(one.right, two.right) - Math.max(one.left, two.left);
    if (wide > 1 && one.top < two.bottom - 1 && two.top < one.bottom - 1)
      faults.push(`${a.className} and ${b.className} lie on each other`);
  }));
  return [...new Set(faults)];
}"""
# Where the plot of each map is, and by how much what plotly drew is wider and higher
MAPS = """() => [...document.querySelectorAll(".rl-map")].map((card) => {
  const plot = card.querySelector(".rl-plot"), box = plot.getBoundingClientRect(), layout = plot._fullLayout;
  const apart = (a, b) => Math.round(Math.abs(a - b));
  return { top: Math.round(box.top), bottom: Math.round(box.bottom),
    wide: apart(layout.width, box.width), high: apart(layout.height, box.height) };
})"""


def photos(n):
    "Images of several shapes"
    rng = np.random.default_rng(1)
    shapes = [(64, 32), (64, 24), (64, 48)]
    return [rng.integers(0, 255, (*shapes[i % 3], 3), dtype="uint8") for i in range(n)]


def of_cameras(n_cams, n=180):
    "Features with a shift of each camera"
    rng = np.random.default_rng(0)
    pid, cam = np.arange(n) % 30, rng.integers(0, n_cams, n)
    who, shift = rng.normal(size=(30, 16)), rng.normal(size=(n_cams, 16))
    e = Embeddings((who[pid] + shift[cam] + rng.normal(size=(n, 16))).astype("f4"), pid, cam)
    return Scene(e[:60], e[60:], query=1)


def words(folder):
    "A caption of one line and one of eight, its words, its list and its map of heat"
    captions = ["a man in red"]*20
    captions[1] = "a woman with an extraordinarily colourful handbag " * 6
    scene = make_scene("ordinary", photos(40), captions=captions, query=1, gallery=[2])
    return Board(WordLab(scene), RankedList(scene, k=8), AttentionView(scene, MODEL, n=2))


def failures(folder):
    "Images that ask"
    scene = make_scene("ordinary", photos(40), photos(20))
    browser = FailureBrowser(scene, tags=folder/"tags.json", show="all")
    scene.selection.query = int(browser.rows()["query"].iloc[0])
    return Board(browser, RankedList(scene), FeatureMap(scene, project_pair(scene.q, scene.g, "pca")))


def failures_of_text(folder):
    scene = make_scene("ordinary", None, captions=["a woman with a handbag and a green coat " * 4]*20)
    browser = FailureBrowser(scene, show="all")
    scene.selection.query = int(browser.rows()["query"].iloc[0])
    return Board(browser, RankedList(scene))


def search(folder):
    scene = make_scene("ordinary", photos(40), captions=["a man in a red coat"]*20, query=0)
    return SearchPage(scene, threshold=Threshold(.5, .1, .1, 40, 12), marks=folder/"marks.jsonl")


def search_in_page(folder):
    "A page that answers what is typed, which `test_every_view_at_every_width` does"
    model, limit = ready_model("clip_tiny").net, Threshold(.5, .1, .1, 40, 12)
    g = Embeddings(np.random.default_rng(0).normal(size=(40, 64)).astype("f4"), [-1]*40,
                   path=[f"a-long-folder/a_very_long_name_of_an_image_{i}.jpg" for i in range(40)])
    return answer_page(find(ask(model, ["a man in a red coat"]*2), g, 10, limit), model=model, title="Search in crops")


TYPED = "A woman with an extraordinarily-colourful_handbag " * 6


def six_cameras(folder): return cockpit(of_cameras(6), n=120, method="Norm")
def twelve_cameras(folder): return cockpit(of_cameras(12), n=120, method="Norm", lists=True)


def files_of_images(folder, n):
    "Files with long names, one of which is lost"
    files = [folder/f"a_long_name_of_an_image_without_a_space_{i}.jpg" for i in range(n)]
    for file, pixels in zip(files, photos(n)): Image.fromarray(pixels).save(file)
    files[2].unlink()
    return list(map(str, files))


def matches_without_junk(folder):
    "The page of `reid_lab match`: images ask, those of their own camera are left out, one file is lost"
    rng, files = np.random.default_rng(0), files_of_images(folder, 60)
    e = Embeddings(rng.normal(size=(60, 16)).astype("f4"), np.arange(60) % 12, np.arange(60) % 5, path=files)
    found = matches(e[:8], e[8:], 10, Threshold(.5, .1, .1, 40, 12), junk="cam")
    return answer_page(found, folder=folder, title="Matches of a query in a gallery")


def matches_by_protocol(folder):
    e = features(table_for("sysu.all", 7, 160), roles=True)
    return answer_page(matches(e, e, 10, protocol="sysu.all", draw=1), title="Matches by a protocol")


def failures_by_protocol(folder):
    "Sentences on the protocol and its draw stand below the views"
    e = features(table_for("sysu.all", 7, 160), roles=True)
    scene = Scene(e, e, photos(len(e)), photos(len(e)), protocol="sysu.all", draw=1)
    browser = FailureBrowser(scene, show="all")
    scene.selection.query = int(browser.rows()["query"].iloc[0])
    return Board(browser, RankedList(scene))


BOARDS = (words, failures, failures_of_text, failures_by_protocol, search, search_in_page, matches_without_junk,
          matches_by_protocol, six_cameras, twelve_cameras)


def at_width(page, width):
    "Show the page so wide, until its maps have followed"
    page.set_viewport_size(dict(width=width, height=900))
    page.wait_for_timeout(60)
    page.wait_for_function(f"({MAPS})().every((map) => map.wide < 2 && map.high < 2)")


@contextmanager
def plain_page():
    "A page without WebGL, in which maps are drawn as SVG; and the list of its errors"
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, broken = browser.new_page(), []
        page.on("pageerror", lambda e: broken.append(str(e)))
        yield page, broken
        browser.close()


def faults_at_all_widths(page, name, folder):
    "(board, width, theme) -> what is wrong there, with a picture of it"
    found = {}
    for width in WIDTHS:
        at_width(page, width)
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            faults = page.evaluate(FAULTS)
            if not faults: continue
            found[name, width, scheme] = faults
            page.screenshot(path=str(folder/f"{name}-{width}-{scheme}.png"), full_page=True)
    return found


def check_that_maps_stay_level(page):
    "Before and after a pair of cameras is selected, and back again"
    every = "[...document.querySelectorAll('.rl-map')].every((e) => JSON.parse(e.dataset.marks).on"
    clicks = {".rl-pairs [data-at='1,0']": "< 60", ".rl-pairs [aria-label='show all cameras']": "> 60"}
    for width in WIDTHS[1:]:
        at_width(page, width)
        for button, images in clicks.items():
            page.locator(button).first.click()
            page.wait_for_function(f"{every} {images})")
            one, two = page.evaluate(MAPS)
            assert (one["top"], one["bottom"]) == (two["top"], two["bottom"]), width


def kinds_of(view):
    "Classes of the views of a board"
    return {type(view)} if not isinstance(view, Board) else set().union(*map(kinds_of, view.views))


def test_every_view_is_on_a_board(tmp_path):
    "All that a scene has; a cloud of jupyter-scatter is drawn by that library, and only with a kernel"
    def below(kind): return {kind}.union(*map(below, kind.__subclasses__()))
    ours = {kind for kind in below(SceneView) - {SceneView, ScatterMap} if kind.__module__.startswith("reid_lab.")}
    shown = set().union(*(kinds_of(board(tmp_path)) for board in BOARDS))
    assert ours == {kind for kind, _ in VIEWS.values()} and ours <= shown


@pytest.mark.parametrize("board", BOARDS)
def test_every_view_at_every_width(tmp_path, board):
    path = board(tmp_path).to_html(tmp_path/"page.html", title="Board", most=3)
    with plain_page() as (page, broken):
        page.goto(path.as_uri())
        page.wait_for_function("[...document.querySelectorAll('.rl')].every((e) => e.dataset.drawn)")
        page.wait_for_function("[...document.querySelectorAll('.rl-map')].every((e) => e.dataset.marks)")
        if board is search_in_page:
            page.fill("input.rl-ask", TYPED)
            page.keyboard.press("Enter")
            page.wait_for_selector(".rl-asked s")
        found = faults_at_all_widths(page, board.__name__, tmp_path)
        if board is six_cameras: check_that_maps_stay_level(page)
    assert not found and not broken
