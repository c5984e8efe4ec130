"""The layout of the library, measured from the imports of its modules: areas, sizes, and who imports whom.

    python tools/layout.py           # print the table; write figures/layout.svg, figures/flow.svg and the page's table
    python tools/layout.py --check   # exit code 1 if that would change anything or a lower number imports a higher one

A hundred of notebook numbers is an area. A module may import modules of lower numbers only, so the numbers are an order
in which the library can be read and tested, and no circle can arise.
"""
import argparse
import ast
import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, FIGURE, FLOW = "nbs/docs/00_architecture.ipynb", "figures/layout.svg", "figures/flow.svg"
START, END = "<!-- layout: made by tools/layout.py -->", "<!-- end of layout -->"
AREAS = {  # hundreds -> (name, what it holds, what it may not hold)
    "0": ("Core and data", "checks, seeds, paths; `ReidTable`, tokenizers, batches, dataset layouts",
          "models, metrics"),
    "1": ("World and datasets", "the rendered benchmark, cross sets, the registry of datasets, protocols", "training"),
    "2": ("Features and losses", "`Embeddings`, metrics, ranking, losses, schedules", "models, state"),
    "3": ("Weights and image models", "where networks start, backbones, BoT, TransReID, CLIP-ReID", "training"),
    "4": ("Text-to-image models, registry", "two towers, CAMeL, the registry of all models", "training"),
    "5": ("Training and adaptation", "the loop, meta-learning, test-time adaptation", "the papers' protocols"),
    "6": ("Results and figures", "published numbers, result rows, paper figures, caption writers",
          "computing metrics"),
    "7": ("Analysis", "maps, camera bias, word masking, the bias report, captioning, visibility, attention and its "
          "faithfulness, failures and tags, search", "widgets"),
    "8": ("Recipes", "studies, trained folders, what each paper trains and measures", "drawing"),
    "9": ("Widgets and running", "interactive views, parameters, runs, sweeps, command line", "methods"),
}


@dataclass
class Module:
    "One notebook and what it exports"
    number: str
    name: str
    lines: int
    imports: set = field(default_factory=set)

    @property
    def area(self): return self.number[0]


def imported(path, root, package):
    "Dotted names that a module imports from its own package, imports inside functions included"
    parts = [package, *path.relative_to(root/package).with_suffix("").parts]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            base = parts[:-node.level] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            if base.split(".")[0] == package: yield from (base, *(f"{base}.{a.name}" for a in node.names))
        elif isinstance(node, ast.Import): yield from (a.name for a in node.names if a.name.split(".")[0] == package)


def modules(root=ROOT, package="reid_lab"):
    "Every numbered notebook, lowest first"
    found = []
    for nb in sorted((root/"nbs").glob("[0-9][0-9][0-9]_*.ipynb")):
        number, name = nb.stem.split("_", 1)
        path = root/package/f"{name.replace('.', '/')}.py"
        if path.exists(): found.append((path, Module(number, name, len(path.read_text(encoding="utf-8").splitlines()))))
    known = {m.name for _, m in found}
    for path, m in found:
        m.imports = {n.removeprefix(f"{package}.") for n in imported(path, root, package)} & known - {m.name}
    return [m for _, m in found]


def upward(mods):
    "Imports of the same or a higher number, in words"
    number = {m.name: m.number for m in mods}
    return [f"{m.number}_{m.name} imports {number[n]}_{n}"
            for m in mods for n in sorted(m.imports) if number[n] >= m.number]


def table(mods):
    "The layout as Markdown, one row an area"
    total, rows = sum(m.lines for m in mods), []
    area_of = {m.name: m.area for m in mods}
    for a, (name, holds, never) in AREAS.items():
        own = [m for m in mods if m.area == a]
        if not own: continue
        uses = sorted({area_of[n] for m in own for n in m.imports} - {a})
        rows.append(f"| {a}xx | {name} | {', '.join(f'{m.number[1:]} `{m.name}`' for m in own)} "
                    f"| {sum(m.lines for m in own)} ({100*sum(m.lines for m in own)/total:.0f} %) "
                    f"| {', '.join(f'{u}xx' for u in uses) or 'none'} | {holds} | {never} |")
    head = ("| numbers | area | modules | lines | imports | holds | never |\n"
            "|---|---|---|---|---|---|---|")
    return "\n".join([head, *rows, "", f"{len(mods)} modules, {total} lines, {sum(len(m.imports) for m in mods)} "
                      f"imports between modules, {len(upward(mods))} of them upward. Largest module: "
                      f"`{max(mods, key=lambda m: m.lines).name}`, {max(m.lines for m in mods)} lines."])


def draw(mods):
    "The import matrix as an SVG text: a dot where a row imports a column; upward imports would lie above the diagonal"
    n, cell, left, top = len(mods), 13, 190, 150
    at = {m.name: i for i, m in enumerate(mods)}
    shade = lambda i: "#f4f6f8" if i % 2 else "#e3e9ee"
    out, w, h = [], left + n*cell + 190, top + n*cell + 30
    spans = defaultdict(list)
    for i, m in enumerate(mods): spans[m.area].append(i)
    for k, (a, rows) in enumerate(spans.items()):
        y, x = top + rows[0]*cell, left + rows[0]*cell
        out.append(f'<rect x="0" y="{y}" width="{left + n*cell}" height="{len(rows)*cell}" fill="{shade(k)}"/>')
        out.append(f'<rect x="{x}" y="{y}" width="{len(rows)*cell}" height="{len(rows)*cell}" fill="#c9d6df"/>')
        out.append(f'<text x="{left + n*cell + 8}" y="{y + len(rows)*cell/2 + 4}" font-weight="bold">'
                   f'{AREAS[a][0]}</text>')
    for i, m in enumerate(mods):
        y, x = top + i*cell + 10, left + i*cell + 9
        out.append(f'<text x="{left - 6}" y="{y}" text-anchor="end">{m.number} {m.name}</text>')
        out.append(f'<text x="{x}" y="{top - 5}" transform="rotate(-60 {x} {top - 5})">{m.name}</text>')
        for name in sorted(m.imports):
            j = at[name]
            colour = "#0b5c8a" if mods[j].number < m.number else "#d55e00"
            out.append(f'<circle cx="{left + j*cell + 6.5}" cy="{y - 3.5}" r="3.6" fill="{colour}"/>')
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
            f'font-family="sans-serif" font-size="10"><rect width="{w}" height="{h}" fill="white"/>')
    note = (f'<text x="{left}" y="{h - 10}" fill="#555">A dot: the row imports the column. An upward import would lie '
            'right of the diagonal.</text>')
    return "\n".join([head, *out, note, "</svg>"]) + "\n"


BOXES = {  # text -> (x, y, numbers of its notebooks)
    "dataset folder": (0, 0, "060 - 090, 180"), "World": (0, 60, "100 - 150"), "ReidTable": (160, 30, "020"),
    "batches": (310, 30, "030, 040"), "model": (460, 0, "300 - 490"), "strategy, Learner": (460, 60, "500 - 530"),
    "trained folder": (620, 30, "810"), "Embeddings": (160, 150, "200"), "adaptation": (310, 150, "560"),
    "ranking, metrics": (460, 150, "220, 230"), "result rows": (620, 150, "610"),
    "tables, figures": (780, 150, "600 - 640"), "analysis, views": (310, 220, "700 - 780")}
ARROWS = ("dataset folder > ReidTable", "World > ReidTable", "ReidTable > batches", "batches > model",
          "batches > strategy, Learner", "model > trained folder", "strategy, Learner > trained folder",
          "Embeddings > adaptation", "adaptation > ranking, metrics", "ranking, metrics > result rows",
          "result rows > tables, figures", "Embeddings > analysis, views", "analysis, views > tables, figures")


def flow():
    "The path of data through the library as an SVG text"
    arrow = '<path d="{}" stroke="#555" fill="none" marker-end="url(#a)"/>'
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="-5 -22 920 292" width="920" '
           'font-family="sans-serif" font-size="12">',
           '<rect x="-5" y="-22" width="920" height="292" fill="white"/>',
           '<defs><marker id="a" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
           '<path d="M0,0 L8,4 L0,8 z" fill="#555"/></marker></defs>',
           '<rect x="150" y="-18" width="140" height="222" fill="#e8f1f7"/>']
    for a, b in (pair.split(" > ") for pair in ARROWS):
        (x1, y1, _), (x2, y2, _) = BOXES[a], BOXES[b]
        out.append(arrow.format(f"M{x1 + 120},{y1 + 20} L{x2},{y2 + 20}"))
    out.append(arrow.format("M680,70 L680,120 L220,120 L220,150"))   # a trained model makes Embeddings
    for text, (x, y, where) in BOXES.items():
        out.append(f'<rect x="{x}" y="{y}" width="120" height="40" rx="5" fill="white" stroke="#0b5c8a"/>'
                   f'<text x="{x + 60}" y="{y + 17}" text-anchor="middle">{text}</text>'
                   f'<text x="{x + 60}" y="{y + 32}" text-anchor="middle" font-size="9" fill="#666">{where}</text>')
    for y, text in ((-6, "interface 1"), (200, "interface 2")):
        out.append(f'<text x="220" y="{y}" text-anchor="middle" font-size="10" fill="#0b5c8a">{text}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def page(root, mods):
    "The architecture notebook with its table renewed; None if there is no such notebook"
    path = root/PAGE
    if not path.exists(): return None
    nb = json.loads(path.read_text(encoding="utf-8"))
    for cell in nb["cells"]:
        text = "".join(cell["source"])
        if START in text and END in text:
            new = text.split(START)[0] + START + "\n\n" + table(mods) + "\n\n" + END + text.split(END)[1]
            cell["source"] = new.splitlines(keepends=True)
            return json.dumps(nb, indent=1, ensure_ascii=False) + "\n"
    sys.exit(f"{PAGE} needs one markdown cell with the lines {START} and {END}")


def main(args, root=ROOT):
    "Print, write or check"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if that would change anything")
    parser.add_argument("--quiet", action="store_true", help="no table")
    args = parser.parse_args(args)
    mods = modules(root)
    bad = upward(mods)
    for b in bad: print(f"upward: {b}; move a definition down, or give the notebook another number (tools/renumber.py)")
    same = lambda text, path: (re.sub(r"\s", "", text) == re.sub(r"\s", "", path.read_text(encoding="utf-8"))
                               if path.exists() else False)
    wanted = {FIGURE: draw(mods), FLOW: flow(), PAGE: page(root, mods)}
    stale = [k for k, text in wanted.items() if text is not None and not same(text, root/k)]
    if args.check:
        for k in stale: print(f"{k} is not up to date; run `make readme`")
        return int(bool(stale or bad))
    for k in stale:
        (root/k).parent.mkdir(parents=True, exist_ok=True)
        (root/k).write_text(wanted[k], encoding="utf-8")
        print(f"wrote {k}")
    if not args.quiet: print(table(mods))
    return int(bool(bad))


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
