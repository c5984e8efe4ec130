"""The picture of the read-me: a search page over people of the World, as a browser shows it.

    python tools/picture.py                                  # write figures/search_page.jpg; half a minute
    python tools/picture.py --out page.jpg --question "..."  # elsewhere, another question

The weights of the package are asked with a sentence for people whom they have not seen, rendered larger than in any
preset. Needs playwright (`pip install playwright`) and a chromium on the PATH.
"""
import argparse
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

from reid_lab.core.files import atomic_path
from reid_lab.models.weights.shipped import card_for, check_unseen
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import embed_images, embed_texts
from reid_lab.widgets.scene import Scene
from reid_lab.widgets.search import SearchPage
from reid_lab.world.plan import Group
from reid_lab.world.world import World

ROOT = Path(__file__).resolve().parents[1]
MODEL, SEED, PEOPLE, CAMERAS = "clip_tiny", 3, 150, 3
SIZE = (384, 192)                       # height and width of the images shown
QUESTION = "A woman with blond hair wears a black overcoat with red stripes, black jeans and black shoes."
SHOWN = 8
WIDTH, PIXELS_PER_UNIT, MOST_KB = 1100, 2, 200
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def people(size=SIZE):
    "People whom the weights have not seen, each under three cameras"
    check_unseen(card_for(MODEL), SEED)
    group = Group("test", "real-like", PEOPLE, CAMERAS, CAMERAS)
    return World("quick", seed=SEED, task="text", groups=[group], size=size).table()


def search_page(table, question=QUESTION):
    "The page that answers a question"
    model = create_model(MODEL, weights="world").eval()
    queries = embed_texts(model, table.text_queries("test"), quiet=True)
    gallery = embed_images(model, table, quiet=True)
    scene = Scene(queries, gallery, table, junk="none")
    scene.g_thumb.height = SIZE[0]
    page = SearchPage(scene, model, title="Search", k=SHOWN)
    page.question = question
    return page


def screenshot(path):
    "What a browser shows of the first view of a page, as an image"
    from playwright.sync_api import sync_playwright
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit("no chromium on the PATH; install one (apt-get install chromium)")
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport=dict(width=WIDTH, height=900), color_scheme="light",
                               device_scale_factor=PIXELS_PER_UNIT)
        tab.goto(path.as_uri())
        tab.add_style_tag(content="main > div, main > div > * { max-width: none !important; }")
        view = tab.locator("main > div").first
        view.locator("img").last.wait_for()
        shot = view.screenshot()
        browser.close()
    return Image.open(io.BytesIO(shot)).convert("RGB")


def as_jpeg(image, most_kb=MOST_KB):
    "Bytes of the best JPEG that is no larger than `most_kb`"
    for quality in range(92, 50, -4):
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality, optimize=True, progressive=True)
        if out.tell() <= 1000*most_kb:
            return out.getvalue()
    sys.exit(f"the picture does not fit into {most_kb} kB; make SIZE or PIXELS_PER_UNIT smaller")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT/"figures"/"search_page.jpg", help="file to write")
    parser.add_argument("--question", default=QUESTION, help="a sentence")
    args = parser.parse_args(argv)
    page = search_page(people(), args.question)
    with tempfile.TemporaryDirectory() as folder:
        html = page.to_html(Path(folder)/"page.html", title="", queries=range(1))
        jpeg = as_jpeg(screenshot(html))
    with atomic_path(args.out) as tmp:
        tmp.write_bytes(jpeg)
    print(f"wrote {args.out}, {len(jpeg)//1000} kB: persons {[found['pid'] for found in page.found(None)['items']]}")
    return 0


if __name__ == "__main__": sys.exit(main())
