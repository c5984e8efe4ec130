"The documentation site: what pages show, links that hold, and search from a disk"
import ast
import importlib.util
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"tools"/"docs").is_dir(), reason="needs the source tree")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def build():
    sys.path.insert(0, str(ROOT/"tools"))
    spec = importlib.util.spec_from_file_location("docs_build", ROOT/"tools"/"docs"/"build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(build, tmp_path_factory):
    pytest.importorskip("sphinx", reason="Sphinx is not installed: pip install -e '.[docs]'")
    pytest.importorskip("furo")
    out = tmp_path_factory.mktemp("docs")/"site"
    assert build.main(["--out", str(out), "--only", "06_retrieval/*"]) == 0
    return out/"site"


def test_links_lead_to_pages_or_become_names(build):
    pages, figures = {"100_a.ipynb", "docs/01_b.ipynb"}, set()
    text = ("[a](../100_a.ipynb#Some-part) [c](../200_c.ipynb) [t](../../tests/project/test_docs.py) [up](#Here) "
            "[web](https://x.org) ![](../../figures/flow.svg) <img src=\"../../figures/flow.svg\" width=9>")
    new = build.relinked(text, Path("docs/01_b.ipynb"), pages, figures)
    assert new == ("[a](../100_a.ipynb#some-part) c t [up](#here) [web](https://x.org) ![](../figures/flow.svg) "
                   "<img src=\"../figures/flow.svg\" width=9>")
    assert [f.name for f in figures] == ["flow.svg"]


def test_directives_hidden_cells_and_widget_state_are_left_out(build):
    code = lambda text, **data: dict(cell_type="code", source=text, metadata={}, outputs=[
        dict(output_type="display_data", metadata={}, data=data)]*bool(data))
    view = {"image/png": "x", "application/vnd.jupyter.widget-view+json": {}}
    nb = dict(metadata={}, cells=[dict(cell_type="markdown", source="# T\n> one line", metadata={}),
                                  code("#| hide\nsecret"), code("#| default_exp x"),
                                  code("#| export\n#| eval: false\ndef f(): pass"), code("show()", **view)])
    made = build.tidy(nb, Path("100_a.ipynb"), set(), set())["cells"]
    assert [c["source"] for c in made] == ["# T\n\n*one line*", "def f(): pass", "show()"]
    assert made[2]["outputs"][0]["data"] == {"image/png": "x"}


MODULE = '''"About"
__all__ = ['f', 'C']
def f(x:int, # Things
    y=1, # More
    ) -> int:
    "Adds"
    return x
def g(): pass
class C:
    "A class"
    a:int # first
    def __init__(self, a): self.a = a
    def _own(self): pass
@patch
def m(self:C, z): # -> int
    "Method"
    return z
'''


def test_signatures_keep_the_comments_on_arguments(build):
    found, lines = dict(build.public(MODULE)), MODULE.split("\n")
    assert list(found) == ["f", "C", "C.m"]
    assert build.signature(found["f"], lines) == "def f(x:int, # Things\n    y=1, # More\n    ) -> int:"
    assert build.signature(found["C"], lines).split("\n") == ["class C:", "", "    a:int # first", "",
                                                              "    def __init__(self, a): self.a = a"]
    assert ast.get_docstring(found["C.m"]) == "Method"


def test_every_public_name_has_a_signature(build):
    import reid_lab.retrieval.metrics as m
    page = build.api_page(Path(m.__file__))
    assert not [n for n in m.__all__ if callable(getattr(m, n)) and f"## `{n}`" not in page]


def test_broken_links_are_found(build, tmp_path):
    (tmp_path/"a.html").write_text('<h1 id="top"></h1><a href="b.html#no">x</a><a href="c.html">x</a>'
                                   '<a href="#top">x</a><script src="https://cdn.x/y.js"></script>'
                                   '<a href="https://x.org">x</a>')
    (tmp_path/"b.html").write_text("<p>")
    found, away = build.broken(tmp_path)
    assert found == ["a.html: no anchor b.html#no", "a.html: no file c.html", "a.html loads https://cdn.x/y.js"]
    assert away == 2


def site_files(build, folder):
    "The map and the list for language models, as they go into a site of all notebooks"
    build.gather(folder)
    return (folder/"map.md").read_text("utf-8"), (folder/"llms.txt").read_text("utf-8")


def test_the_map_and_the_list_name_every_notebook(build, tmp_path):
    page, listed = site_files(build, tmp_path/"source")
    names = [p.relative_to(ROOT/"nbs") for p in (ROOT/"nbs").rglob("*.ipynb")
             if p.name[0] not in "_." and ".ipynb_checkpoints" not in p.parts]
    assert len(names) > 100
    others = [n for n in names if n.as_posix() != "index.ipynb"]
    assert [n for n in others if f"]({n.as_posix()}) | " not in page] == []
    assert [n for n in others if f"]({n.with_suffix('.html').as_posix()}): " not in listed] == []


def test_the_list_for_language_models_says_what_this_is(build, tmp_path):
    listed = site_files(build, tmp_path/"source")[1]
    head, *sections = listed.split("\n## ")
    assert head.startswith("# reid_lab\n\n> A notebook-first workbench") and "finds one person again" in head
    assert [s.split("\n")[0] for s in sections][:2] == ["Guide", "Measured results"]
    assert sections[-1].startswith("Signatures\n") and "](api/reid_lab.retrieval.metrics.html): " in sections[-1]
    for section in sections:
        lines = section.strip().split("\n")[2:]
        assert lines and all(line.startswith("- [") for line in lines), section[:80]


def test_bars_in_a_line_do_not_break_the_table(build):
    page = build.map_page({"A": [build.Entry("1_a.ipynb", "A", "x | y")]})
    assert page.endswith("| [A](1_a.ipynb) | x &#124; y |\n")


@pytest.fixture(scope="module")
def texts(build):
    return sys.modules["page_texts"]


@pytest.mark.parametrize("source, about, said", [
    ("#| fig-alt: Two lines that cross\ncurves(f)", "Here. More.", "Two lines that cross"),
    ("show(curves(f))", "What a seed changes. More.", "Lines with seed bands. What a seed changes"),
    ("show(f)", "What a seed changes: see.", "What a seed changes: see"), ("show(f)", "", "Part")])
def test_pictures_say_what_is_to_be_seen(texts, source, about, said):
    assert texts.alt_text(source, about, "Part", {"curves": "Lines with seed bands"}).rstrip(".") == said


def test_cells_with_pictures_get_the_text_above(texts):
    outputs = [dict(data={"image/png": "x"})]
    picture = dict(cell_type="code", source="show()", directives="", outputs=outputs, metadata={})
    said = dict(cell_type="markdown", source="## Part\n\nA [map](a.ipynb) of *all* cameras. More.", metadata={})
    cells = texts.with_alt_texts([said, picture], "T", {})
    assert cells[1]["metadata"]["mystnb"]["image"]["alt"] == "A map of all cameras"


def test_sections_of_a_page_are_found_without_its_navigation(texts):
    html = ('<nav>menu</nav><article><section id="t"><h1>Losses<a class="headerlink" href="#t">¶</a></h1><p>Some.</p>'
            '<section id="triplet"><h2>triplet</h2><p>Far &amp; near.<script>x</script></p></section>'
            '</section></article>x')
    assert texts.Sections(html).sections == [["Losses", "t", "Some."], ["triplet", "triplet", "Far & near."]]


def test_every_dataset_has_a_page_of_its_own_facts(build, tmp_path):
    from reid_lab.datasets.registry import DATASETS
    pages = sys.modules["dataset_pages"]
    pages.write_pages(tmp_path)
    assert {p.stem for p in (tmp_path/"datasets").glob("*.md")} == set(DATASETS)
    market = (tmp_path/"datasets"/"market1501.md").read_text("utf-8")
    for part in ("| train | 751 | 12,936 |", "    bounding_box_train/", "Research only",
                 "doctor market1501 --root", "![Twelve"):
        assert part in market, part
    assert pages.NOT_RECORDED in (tmp_path/"datasets"/"viper.md").read_text("utf-8")
    prcc = (tmp_path/"datasets"/"prcc.md").read_text("utf-8")
    for part in ("| query | 71 | 7,416 |", "                    cropped_rgb001.jpg", "![Twelve",
                 "- **`prcc.single-changed`** (default): People ask for", "- **`prcc.all-same`**: ",
                 "Layout and counts after guxinqian/Simple-CCReID:data/datasets/prcc.py"):
        assert part in prcc, part


def test_every_experiment_has_a_picture_and_its_studies(build, tmp_path):
    pages = sys.modules["experiment_pages"]
    stems = [p.stem for p in (ROOT/"nbs"/"experiments").glob("[!_.]*.ipynb")]
    for stem in stems:
        first = pages.shown_first(stem, set(), set(), tmp_path)
        assert first and first[0]["source"].startswith("!["), stem
    studies = pages.shown_first("run_dart3", set(), set(), tmp_path)[1]["source"]
    assert "| `network` | a new network | Table 2 |" in studies and "reid_lab run dart3 -p study=network" in studies
    assert studies.removeprefix("## Studies\n\n") in pages.studies_text()


def test_foreign_folders_are_not_replaced(build, tmp_path):
    (tmp_path/"thesis.txt").write_text("x")
    with pytest.raises(SystemExit, match="holds other things"): build.main(["--out", str(tmp_path)])
    assert (tmp_path/"thesis.txt").exists()


@pytest.mark.whole
@pytest.mark.slow
def test_the_site_has_its_parts(site):
    text = (site/"index.html").read_text("utf-8")
    for part in ("Guide", "Measured results", "Experiments", "Background", "Signatures"): assert part in text, part
    assert "All notebooks" in (site/"map.html").read_text("utf-8")
    listed = [line for line in (site/"llms.txt").read_text("utf-8").splitlines() if line.startswith("- ")]
    targets = [re.search(r"\]\(([^)]+)\)", line)[1] for line in listed]
    assert targets and [t for t in targets if not (site/t).exists()] == []
    metrics = (site/"06_retrieval"/"50_metrics.html").read_text("utf-8")
    assert "<math" in metrics and "#| export" not in metrics and "MathJax" not in metrics
    assert (site/"api"/"reid_lab.retrieval.metrics.html").exists() and (site/"docs"/"02_glossary.html").exists()
    as_text = [p.name for p in site.rglob("*.html") if "<p>|" in p.read_text("utf-8")]
    assert as_text == [] and "<table" in (site/"tutorials"/"10_measured_camel.html").read_text("utf-8")
    images = [m for p in site.rglob("*.html") for m in re.findall(r"<img[^>]*>", p.read_text("utf-8"))]
    silent = [m for m in images if not re.search(r'alt="(?!\.\./|_images|_static)[^"]+"', m)]
    assert len(images) > 50 and silent == []
    pages = {page.stem for page in (site/"06_retrieval").glob("*.html")}
    notebooks = {notebook.stem for notebook in (ROOT/"nbs"/"06_retrieval").glob("*.ipynb")}
    assert pages - {"index"} == notebooks and "50_metrics" in pages


def beside(page):
    "The list of all pages beside a page: targets, and titles of the page that is open"
    text = page.read_text("utf-8")
    start = text.index('<div class="sidebar-tree">')
    tree = text[start:text.index("</div>", start)]
    targets = re.findall(r'<a class="reference internal" href="([^"]+)"', tree)
    is_open = re.findall(r'<li class="[^"]*current-page[^"]*"><a [^>]*href="#">(.*?)</a>', tree)
    return targets, is_open


@pytest.mark.whole
@pytest.mark.slow
def test_beside_each_page_is_the_list_of_all_with_that_page_open(site):
    root, _ = beside(site/"index.html")
    assert len(root) > 100 and len(set(root)) == len(root)
    for name, title in (("06_retrieval/50_metrics.html", "Metrics"), ("map.html", "All notebooks")):
        targets, is_open = beside(site/name)
        assert is_open == [title] and len(targets) == len(root) - 1
        reached = {((site/name).parent/target).resolve().relative_to(site.resolve()).as_posix() for target in targets}
        assert reached == {*root} - {name}
    assert beside(site/"search.html")[1] == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")
def test_searches_and_copies_from_a_disk(site):
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page, asked = browser.new_page(), []
        page.on("request", lambda r: asked.append(r.url) if not r.url.startswith("file:") else None)
        page.on("console", lambda m: asked.append(m.text) if m.type == "error" else None)
        for words, wanted in (("mINP", "Metrics"), ("DART3-LITE", "Measured: DART3")):
            page.goto(f"{(site/'search.html').as_uri()}?q={words}")
            page.wait_for_selector("ul.search li a", timeout=20_000)
            titles = page.locator("ul.search li a").all_text_contents()
            assert wanted in titles
            assert page.locator("ul.search li mark").first.text_content().lower() == words.lower()
        page.goto(f"{(site/'search.html').as_uri()}?q=retrieval_metrics")
        page.wait_for_selector("ul.search li a")
        first = page.locator("ul.search li").first
        assert "retrieval_metrics" in first.text_content().split("·")[1]
        assert "#" in first.locator("a").get_attribute("href")
        page.goto(f"{(site/'search.html').as_uri()}?q=qqqqzz")
        assert "No page holds" in page.locator("#search-summary").text_content()
        page.goto((site/"datasets"/"market1501.html").as_uri())
        button = page.locator("button.copy").last
        button.focus()
        button.click()
        page.wait_for_function("[...document.querySelectorAll('button.copy')].some(b => b.textContent === 'Copied')")
        browser.close()
    assert asked == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.skipif(not CHROMIUM, reason="no chromium on this machine (apt-get install chromium)")
def test_no_page_is_wider_than_the_window(site):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto((site/"index.html").as_uri())
        for width in (390, 1200, 1330, 1366, 1440, 1500, 1552, 1600, 1920):
            page.set_viewport_size(dict(width=width, height=900))
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{wide} px at {width}"
        browser.close()
