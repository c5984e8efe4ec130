"Pages of datasets, one template for all: facts of the registry, and the rendered World written in each layout"
import sys
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
from reid_lab.data.table import TableError  # noqa: E402 - of this folder, not of another one that is installed
from reid_lab.datasets.aerial import cross_view  # noqa: E402
from reid_lab.datasets.diagnosis import loader_options  # noqa: E402
from reid_lab.datasets.export import LAYOUTS, export_world  # noqa: E402
from reid_lab.datasets.registry import DATASETS  # noqa: E402
from reid_lab.retrieval.protocols import PROTOCOLS  # noqa: E402
from reid_lab.world.world import World  # noqa: E402

PEOPLE = 3      # of each split, in the example of a layout
SHOWN = 12      # images of the picture
UNITS = ("identities", "images", "captions")
NOT_RECORDED = "Not recorded here. Ask its authors; the paper below names them."


def few(table):
    "The first people of each split"
    people = table.frame.groupby("split").pid.unique()
    kept = {pid for pids in people for pid in sorted(p for p in pids if p >= 0)[:PEOPLE]}
    return table.where(pid=sorted(kept))


@cache
def changed_world(infrared):
    "People in two outfits, some of them behind something, or before infrared cameras as well"
    options = dict(infrared=1) if infrared else dict(outfits=2, occluded=.6)
    return World("smoke", 0, task="reid", **options).table()


def with_columns(layout):
    "The World with the columns that a layout needs, its rows that have a place"
    table = World("smoke", 0, task="reid").table()
    if layout.needs: table = changed_world("modality" in layout.needs)
    if set(layout.needs) <= {*table.frame}: yield few(layout.rows(table))


def candidates(spec, layout):
    "Small tables of the World, the fullest first; a layout takes one of them"
    if layout.rows is not None: yield from with_columns(layout)
    for task in ("text", "reid") if spec.captions else ("reid", "text"):
        table = few(World("smoke", 0, task=task).table())
        yield table
        for splits in (["train", "test"], ["test"], ["train"]): yield table.where(split=splits)
    yield cross_view(few(World("smoke", 0, task="aerial").table()).where(split=["train", "test"]))


def example(name, folder):
    "The World in the layout of a dataset, or None where no small table of it has a place there"
    if name not in LAYOUTS: return None
    for i, table in enumerate(candidates(DATASETS[name], LAYOUTS[name])):
        if not len(table): continue
        try: return export_world(table, name, folder/str(i)/(DATASETS[name].folder or name))
        except (TableError, ValueError): continue
    return None


def tree(folder, most=2):
    "A folder as text: of each kind of file in it the first few, and how many more"
    lines = [f"{folder.name}/"]

    def walk(at, indent):
        entries = sorted(at.iterdir(), key=lambda p: (p.is_dir(), p.name))
        files, folders = ([p for p in entries if p.is_dir() == kind] for kind in (False, True))
        for suffix in dict.fromkeys(p.suffix for p in files):
            same = [p for p in files if p.suffix == suffix]
            lines.extend(f"{indent}{p.name}" for p in same[:most])
            if len(same) > most: lines.append(f"{indent}… {len(same) - most} more *{suffix}")
        for p in folders[:6]:
            lines.append(f"{indent}{p.name}/")
            walk(p, indent + "    ")
        if len(folders) > 6: lines.append(f"{indent}… {len(folders) - 6} more folders")
    walk(folder, "    ")
    return "\n".join(lines)


def picture(folder, height=128):
    "Some images of a folder, evenly spaced, side by side"
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in (".jpg", ".png", ".jpeg", ".bmp"))
    chosen = [files[i] for i in np.unique(np.linspace(0, len(files) - 1, SHOWN).astype(int))]
    images = [Image.open(p).convert("RGB") for p in chosen]
    images = [im.resize((max(1, round(im.width*height/im.height)), height)) for im in images]
    sheet = Image.new("RGB", (sum(im.width + 4 for im in images) - 4, height), "white")
    x = 0
    for im in images:
        sheet.paste(im, (x, 0))
        x += im.width + 4
    return sheet


def number(count):
    "A published number, several where sources disagree, or that there is none"
    if count is None: return "unstated"
    return " or ".join(f"{n:,}" for n in np.atleast_1d(count))


def count_table(counts):
    "Published counts as Markdown"
    most = max(map(len, counts.values()))
    rows = [f"| {part} | {' | '.join(map(number, [*count, *[None]*(most - len(count))]))} |"
            for part, count in counts.items()]
    return "\n".join([f"| part | {' | '.join(UNITS[:most])} |", "|---"*(most + 1) + "|", *rows])


def protocol(spec):
    "Who is trained on, who asks and who is searched, in sentences"
    splits = f"Published splits: {', '.join(spec.splits)}."
    if "test" not in spec.splits: return f"{splits} It is trained on only; nothing is searched."
    if spec.image_queries: asks = "Queries are images, the gallery is images"
    else: asks = "Queries are captions, the gallery is the images of the test split"
    if spec.image_queries and spec.cameras: asks += "; a match under the query's own camera does not count"
    shared = "".join(f" Identities of {a} and {b} are the same people by design." for a, b in spec.shared)
    numbered = " Its camera numbers count the images of a person." if spec.index_cameras else ""
    if spec.protocols: asks = "Queries are images, the gallery is images" if spec.image_queries else asks
    return f"{splits} {asks}.{shared}{numbered}"


def named_protocols(spec):
    "The protocols of a dataset that are records, the default first"
    lines = []
    for i, name in enumerate(n for n in spec.protocols if n in PROTOCOLS):
        about, *rules = PROTOCOLS[name].sentences()
        default = " (default)" if i == 0 else ""
        lines.append(f"- **`{name}`**{default}: {about} {' '.join(rules)}")
    return "\n".join(lines)


def commands(name):
    "What to type"
    command = f"reid_lab doctor {name} --root FOLDER"
    parts = [f"```bash\n{command}      # what is missing or unusual, and what to do\n```"]
    options = loader_options(name)
    names = ", ".join(f"`{option}`" for option in options)
    if options: parts.append(f"Other forms of it are read with `-p NAME=VALUE`: {names}.")
    return "\n\n".join(parts)


def sentence(text):
    "A fact of the registry as a sentence"
    return text[:1].upper() + text[1:] + "." if text else NOT_RECORDED


def page(name, folder):
    "The page of a dataset; `folder` takes its picture"
    spec = DATASETS[name]
    parts = [f"# {spec.title}", f"*{spec.citation}*"]
    with tempfile.TemporaryDirectory() as tmp:
        made = example("rstpreid" if name == "world" else name, Path(tmp))
        if made:
            file = folder/f"dataset_{name}.jpg"
            picture(made).save(file, quality=82)
            about = f"Twelve crops of rendered people, written in the layout of {spec.title}"
            parts += [f"![{about}](../figures/{file.name})",
                      "People of our own rendered World: no image of any dataset is shown or shipped."]
        parts += ["## Folder", f"`{spec.layout}`"]
        if made and name != "world":
            parts += [f"A small World in exactly this tree, {PEOPLE} people of a split:", f"```text\n{tree(made)}\n```"]
    if spec.counts: parts += ["## Counts as published", count_table(spec.counts)]
    parts += ["## Protocol", protocol(spec)]
    if spec.protocols: parts.append(named_protocols(spec))
    if spec.source: parts.append(f"Layout and counts after {spec.source}.")
    if name != "world":
        parts += ["## Access", sentence(spec.access), "## Licence", sentence(spec.licence),
                  "reid_lab downloads no dataset: the folder is yours to get and to name.",
                  "## Commands", commands(name)]
    return "\n\n".join(parts) + "\n"


def write_pages(src):
    "Pages of all datasets below the sources `src`; key -> (title, line)"
    (src/"datasets").mkdir()
    (src/"figures").mkdir(exist_ok=True)
    for name in DATASETS:
        (src/"datasets"/f"{name}.md").write_text(page(name, src/"figures"), "utf-8")
    return {name: (spec.title, f"{protocol(spec)} {spec.citation}") for name, spec in DATASETS.items()}
