"""Experiments with interactive views: all cells of each run in JupyterLab, in a real browser, and the views follow"""
import json
import re
from contextlib import contextmanager

import nbformat
import pytest
from helpers.browser import NEEDS_CHROMIUM, PANEL, POINT, ROOT, cockpit_is_drawn, dark, execute, lab_page, shoot
from helpers.notebooks import saved

pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
pytestmark = NEEDS_CHROMIUM

LOOK = """() => {
  const all = (selector, read) => [...document.querySelectorAll(selector)].map(read);
  const [before, after] = all(".rl-plot", (e) => e.data?.[2].x.reduce((a, b) => a + Math.abs(b), 0));
  return { before, after,
    bars: all(".rl-cameras .rl-col:first-child .rl-after .rl-bar", (e) => e.style.width),
    nmi: all(".rl-cameras .rl-col:last-child .rl-after .rl-value", (e) => e.textContent),
    shown: all(".rl-map", (e) => JSON.parse(e.dataset.marks).on), marks: all(".rl-over", (e) => e.innerHTML),
    pairs: all(".rl-pairs .rl-grid", (e) => e.innerHTML),
    list: all(".rl-list .rl-body", (e) => e.textContent + [...e.querySelectorAll("img")].map((i) => i.src.slice(-60))),
    words: all(".rl-words .rl-caption-words", (e) => e.innerHTML), heat: all(".rl-heat", (e) => e.toDataURL()),
    failure: all(".rl-one", (e) => e.textContent), found: all(".rl-search ol", (e) => e.textContent) };
}"""
OTHER = f"""([old, parts]) => {{
  const now = ({LOOK})();
  return parts.every((p) => JSON.stringify(now[p]) !== JSON.stringify(old[p]));
}}"""
SLIDE = """([name, position]) => {
  const slider = document.querySelector(`.rl-cameras input[aria-label="${name}"]`);
  slider.value = position;
  for (const kind of ["input", "change"]) slider.dispatchEvent(new Event(kind));
}"""


def follow(page, act, *parts):
    "What is drawn before and after an act: all these parts change"
    from playwright.sync_api import TimeoutError
    old = page.evaluate(LOOK)
    act()
    try: page.wait_for_function(OTHER, arg=[old, parts])
    except TimeoutError:
        now = page.evaluate(LOOK)
        same = {p: str(now[p])[:400] for p in parts if now[p] == old[p]}
        pytest.fail(f"drawn as before: {same} of {parts}")
    page.wait_for_timeout(500)
    return old, page.evaluate(LOOK)


def copy_of(name, folder, *cells, **parameters):
    "A copy of the notebook at preset=smoke with these parameters, and with further cells at its end"
    nb, path = nbformat.read(ROOT/"nbs"/"experiments"/f"{name}.ipynb", 4), folder/f"{name}.ipynb"
    cell = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))
    for key, value in dict(preset="smoke", out_dir=str(folder/"run"), **parameters).items():
        cell.source, n = re.subn(rf"(?m)^{key} = .*$", lambda m: f"{key} = {value!r}", cell.source)
        assert n == 1, f"{name} has no parameter {key}"
    nb.cells += [nbformat.v4.new_code_cell(text) for text in cells]
    nb.metadata.kernelspec = dict(name="python3", display_name="python3", language="python")
    nbformat.write(nb, path)
    return path


@contextmanager
def experiment(name, folder, *kinds, **parameters):
    "A copy of the notebook at preset=smoke, all cells run; then views of these kinds in both themes, and what is saved"
    path = copy_of(name, folder, **parameters)
    with lab_page(path, REID_LAB_RESULTS=str(folder/"runs.csv")) as (page, broken):
        assert json.loads((folder/"run"/"metrics.json").read_text())["status"] == "finished"
        page.wait_for_selector(f".rl-{kinds[0]}[data-drawn]", state="attached")
        shoot(page, folder/"first.png", kinds[0])
        try: yield page
        except BaseException:
            page.screenshot(path=str(folder/"failed.png"))
            raise
        for kind in kinds: shoot(page, folder/f"{name}-{kind}-light.png", kind)
        dark(page)
        for kind in kinds: shoot(page, folder/f"{name}-{kind}-dark.png", kind)
        execute(page, "docmanager:save")
        page.wait_for_function(f"!{PANEL}.context.model.dirty")
    ours = "CameraBars|WordLab|FailureBrowser|AttentionView"
    views = [d for d in saved(path) if re.search(ours, str(d["text/plain"]))]
    assert not broken and views and all(set(d) == {"text/plain", "image/png"} for d in views)


def test_a_slider_of_camera_bias(tmp_path):
    with experiment("camera_bias", tmp_path, "cameras", "map", "pairs", method="DART3-LITE", steps=5, rate=.1) as page:
        cockpit_is_drawn(page)
        method = "JSON.parse(document.querySelector('.rl-cameras').dataset.cockpit).method"
        assert page.evaluate(method) == page.input_value(".rl-cameras select"), "later cells leave it as it was"
        old, new = follow(page, lambda: page.evaluate(SLIDE, ["tau", 10]), "bars", "nmi", "after", "pairs")
        assert new["before"] == old["before"] and new["pairs"][0] == old["pairs"][0]
        old, new = follow(page, lambda: page.click(".rl-pairs >> nth=1 >> [data-at='0,1']"), "shown", "pairs")
        assert all(b < a for a, b in zip(old["shown"], new["shown"]))


def test_a_word_of_word_masking(tmp_path):
    with experiment("word_masking", tmp_path, "words", "list", "attention", masked=2) as page:
        for kind in ("words .rl-word", "list[data-drawn]", "heat[data-sum]"): page.wait_for_selector(f".rl-{kind}")
        word = ".rl-words .rl-word:not(.rl-gone):not(.rl-stop) >> nth=0"
        follow(page, lambda: page.click(word), "words", "list", "heat")
        assert page.locator(".rl-words .rl-gone").count() == 2


def test_a_failure_and_a_point_of_failure_browser(tmp_path):
    with experiment("failure_browser", tmp_path, "failures", "list", "map", "search") as page:
        for kind in ("failures[data-drawn]", "map[data-marks]", "search[data-drawn]"):
            page.wait_for_selector(f".rl-{kind}")
        follow(page, lambda: page.click(".rl-row >> nth=2"), "failure", "list", "marks", "found")
        page.evaluate("document.querySelector('.rl-plot').scrollIntoView({block: 'center'})")
        page.wait_for_timeout(500)

        def point(n):
            x, y = page.evaluate(POINT, n)
            page.mouse.move(x - 2, y)
            page.mouse.move(x, y)
            page.mouse.click(x, y)
        point(0)
        page.wait_for_timeout(1500)
        follow(page, lambda: point(1), "failure", "list", "marks", "found")


def test_a_method_a_word_and_an_image_of_attention_maps(tmp_path):
    with experiment("attention_maps", tmp_path, "list", "attention", methods="gradcam,rollout,centre", steps=3) as page:
        page.wait_for_function("document.querySelectorAll('.rl-heat[data-sum]').length >= 3")
        method = ".rl-attention >> nth=0 >> select[aria-label='method of the map']"
        follow(page, lambda: page.select_option(method, "rollout"), "heat")
        follow(page, lambda: page.select_option(method, "gradcam"), "heat")
        follow(page, lambda: page.click(".rl-attention .rl-word:not(.rl-stop) >> nth=0"), "heat")
        follow(page, lambda: page.click(".rl-list >> nth=0 >> li:nth-child(3)"), "heat")


OUTPUTS = f"""() => Array.from({PANEL}.content.model.cells)
  .map((cell) => cell.type === "code" ? cell.outputs.toJSON() : [])"""
EDIT = f"""([old, text]) => {{
  const cell = Array.from({PANEL}.content.model.cells).find((c) => c.sharedModel.getSource().includes(old));
  cell.sharedModel.setSource(cell.sharedModel.getSource().replace(old, text));
}}"""
SHOWN = ["""import numpy as np
from PIL import Image
from pathlib import Path
import reid_lab as rl
Path("crops").mkdir(exist_ok=True)
rng = np.random.default_rng(0)
for i in range(6): Image.fromarray(rng.integers(0, 255, (96, 48, 3), "u1")).save(f"crops/{i}.png")
features = rl.embed_crops("crops", "clip_tiny", "features", fresh=True, quiet=True)
features""", "rl.search(features, 'a man in a black coat', k=3)"]


def shown_by(outputs):
    "What a cell shows as a table or in sentences; empty where it is the address of an object"
    rich = (o.get("data", {}).get(kind, "") for o in outputs for kind in ("text/html", "text/markdown"))
    return "".join(map(str, rich))


def text_of(outputs): return " ".join(str(o.get("text", "")) + str(o.get("data", "")) for cell in outputs for o in cell)


def test_all_cells_are_run_again_and_with_another_value(tmp_path):
    "Twice as it is and once with another seed, no error; the run, features of crops and an answer show themselves"
    path, runs = copy_of("caption_cot", tmp_path, *SHOWN, seeds=1), []
    with lab_page(path, REID_LAB_RESULTS=str(tmp_path/"runs.csv")) as (page, broken):
        for change in ("", "", "seed = 5"):
            if change: page.evaluate(EDIT, ["seed = 0", change])
            if runs: execute(page, "notebook:run-all-cells")
            runs.append(page.evaluate(OUTPUTS))
            errors = [o for cell in runs[-1] for o in cell if o["output_type"] == "error"]
            assert not errors, errors
        ends = [shown_by(outputs[-3]).split("Finished")[0] for outputs in runs]  # without the time
        page.evaluate(f"{PANEL}.content.scrollToItem({PANEL}.content.widgets.length - 1)")  # else it may not be drawn
        page.locator(".jp-OutputArea-output table img").first.scroll_into_view_if_needed()
        page.screenshot(path=str(tmp_path/"answer.png"))
        shown = [page.locator(f".jp-OutputArea-output {what}").count() for what in ("table", "table img")]
    assert not broken and shown[0] >= 3 and shown[1] == 3       # a list of three images with their pictures
    assert all("omission" in end for end in ends) and ends[0] == ends[1] != ends[2]
    for outputs in runs:
        assert all(shown_by(cell) for cell in outputs[-3:]) and " object at 0x" not in text_of(outputs)
    folders = sorted(p.name for p in tmp_path.glob("run*") if p.is_dir())
    assert len(folders) == 3, folders                            # each run keeps its own
