"Odd names, and the texts that a figure draws"
import json
import os
import re
from pathlib import Path

ODD = ["_private", "$x$ of 50%", "a_b^2 $", r"\alpha $\beta$", "100% & #1 ~{}"]


def drawn(fig):
    "All texts of a figure, those that are read as mathematics apart"
    from matplotlib.cbook import is_math_text
    from matplotlib.text import Text
    fig.picture()
    texts = [t.get_text() for t in fig.findobj(Text) if t.get_text()]
    shown = [t.replace(r"\$", "$").strip("\u200a") for t in texts]
    return shown, [t for t in fig.findobj(Text) if t.get_parse_math() and t.get_text() and is_math_text(t.get_text())
                   and "mathdefault" not in t.get_text()]


def _box(text, renderer):
    "The box of a text in pixels, without the air above and below its letters"
    box = text.get_window_extent(renderer)
    air = min(1.5, .12*box.height, .12*box.width)
    return box.padded(-air)


def _slanted(text):
    return text.get_rotation() % 90 != 0


def _shown_texts(fig):
    "Texts that are drawn; a tick outside its axis keeps a label that is not"
    from matplotlib.text import Text
    hidden = set()
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            drawn = axis._update_ticks() if ax.axison and axis.get_visible() else []
            kept = {id(label) for tick in drawn for label in (tick.label1, tick.label2)}
            every = [label for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]
                     for label in (tick.label1, tick.label2)]
            hidden |= {id(label) for label in every} - kept
            if not ax.axison: hidden |= {id(axis.label), id(axis.offsetText)}
    return [text for text in fig.findobj(Text)
            if text.get_text().strip() and text.get_visible() and id(text) not in hidden]


def _named_by_keys():
    """A pattern of the keys of data sets that no figure should show, since `dataset_title` has words for them

    `train=cuhk-pedes` names a variant by its setting, as tables and commands do, and may be shown.
    """
    from reid_lab.datasets.registry import DATASETS
    keys = [key for key in DATASETS if not key.isalpha()]     # `grid` and `world` are words, too
    worlds = r"world-(?:smoke|quick|full|paper)"
    return re.compile(rf"(?<![\w/.=-])(?:{'|'.join([*map(re.escape, keys), worlds])})(?![\w/.])")


ROUNDED_ZERO = re.compile(r"(?<![\w.])[-\u2212]0(?:\.0+)?(?![\w.])")


def wording_faults(texts):
    "Keys of data sets in place of their names, and zeros with a sign"
    keys = _named_by_keys()
    return [f"{text!r} {what}" for text in texts
            for pattern, what in ((keys, "shows the key of a data set"), (ROUNDED_ZERO, "is a zero with a sign"))
            if pattern.search(text)]


DIFFERENCE, UNIT = re.compile(r"\b(difference|gain|effect|change)s?\b", re.I), re.compile(r"\bpoints\b|%")


def unit_faults(texts):
    "Differences without a unit, in a figure of percentages"
    if not any("%" in text for text in texts): return []
    return [f"{text!r} has no unit" for text in texts if DIFFERENCE.search(text) and not UNIT.search(text)]


def text_faults(fig):
    "What is wrong with the texts of a figure, as sentences: outside its canvas, over each other, ill-worded"
    from reid_lab.figures.style import paper_style
    with paper_style():
        for _ in range(2): fig.draw_without_rendering()      # the second time all places are settled
        renderer = fig.canvas.get_renderer() if hasattr(fig.canvas, "get_renderer") else fig._get_renderer()
        boxes = [(text, _box(text, renderer)) for text in _shown_texts(fig)]
        whole = [text.get_window_extent(renderer) for text, _ in boxes]
    texts = [text.get_text() for text, _ in boxes]
    found, canvas = wording_faults(texts) + unit_faults(texts), fig.bbox
    for (text, box), full in zip(boxes, whole):
        if box.width <= 0 or box.height <= 0: continue
        # Across, letters fill their box; above and below them there is air, which may leave the canvas
        inside = (canvas.x0 - .5 <= full.x0 and full.x1 <= canvas.x1 + .5
                  and canvas.y0 - 1 <= box.y0 and box.y1 <= canvas.y1 + 1)
        if not inside: found.append(f"{text.get_text()!r} leaves the canvas")
    for i, (a, box_a) in enumerate(boxes):
        for b, box_b in boxes[:i]:
            if _slanted(a) and _slanted(b): continue        # neighbours of one axis share their boxes' corners
            wide = min(box_a.x1, box_b.x1) - max(box_a.x0, box_b.x0)
            high = min(box_a.y1, box_b.y1) - max(box_a.y0, box_b.y0)
            if wide > 0 and high > 0: found.append(f"{a.get_text()!r} lies over {b.get_text()!r}")
    return found


def paper_faults(paths):
    "What is wrong with the paper of the pictures among these files: its corner is pure white"
    from PIL import Image
    pictures = [Image.open(path).convert("RGB") for path in paths if path.suffix == ".png"]
    return ["is not on pure white" for picture in pictures if picture.getpixel((0, 0)) != (255, 255, 255)]


class Watched:
    "Programs and kernels that a test starts look at every figure that they export (`watch/sitecustomize.py`)"
    def __init__(self, folder, monkeypatch):
        self.said = folder/"figures_looked_at.jsonl"
        here = Path(__file__).resolve().parent
        monkeypatch.setenv("FIGURE_FAULTS", str(self.said))
        monkeypatch.setenv("FIGURE_HELPERS", str(here/"figures.py"))
        others = os.environ.get("PYTHONPATH", "")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(here/"watch"), others])))

    def figures(self):
        "Name -> what is wrong with its texts, each time that it was exported"
        found = {}
        for line in self.said.read_text("utf-8").splitlines() if self.said.exists() else ():
            one = json.loads(line)
            found.setdefault(one["figure"], []).extend(one["faults"])
        return found
