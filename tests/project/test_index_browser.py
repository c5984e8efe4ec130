"""The index opens and runs in JupyterLab, in a real browser.

Chromium comes from the system (`apt-get install chromium`), its driver from the `playwright` package; nothing is
downloaded.
"""
import json

import pytest
from helpers.browser import CHROMIUM, FLAGS, NEEDS_CHROMIUM, ROOT, serve

pytestmark = NEEDS_CHROMIUM


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    "(address, token) of a JupyterLab on this tree"
    with serve(ROOT, tmp_path_factory.mktemp("jupyter")) as found: yield found


def test_index_runs_in_the_browser(lab, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
    address, token = lab
    before = (ROOT/"nbs"/"index.ipynb").read_bytes()
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page()
        broken = []
        page.on("pageerror", lambda e: broken.append(str(e)))
        page.goto(f"{address}/lab/tree/nbs/index.ipynb?token={token}&reset", wait_until="domcontentloaded")
        panel = "window.jupyterapp?.shell?.currentWidget"
        page.wait_for_function(f"{panel}?.context?.sessionContext?.session?.kernel?.status === 'idle'", timeout=90_000)
        page.evaluate("window.jupyterapp.commands.execute('notebook:run-all-cells')", None)
        outputs = page.evaluate(f"() => Array.from({panel}.content.model.cells).filter(c => c.type === 'code')"
                                ".map(c => c.outputs.toJSON())")
        page.screenshot(path=str(tmp_path/"index.png"))
        browser.close()
    errors = [o for cell in outputs for o in cell if o["output_type"] == "error"]
    assert not errors and not broken, (errors, broken)
    assert any("score" in json.dumps(o) for cell in outputs for o in cell), "the search should print scores"
    assert (ROOT/"nbs"/"index.ipynb").read_bytes() == before
