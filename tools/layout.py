"""The layout of the library, measured from its imports: packages, what they hold, and who imports whom.

    python tools/layout.py           # print the table; write figures/layout.svg, figures/flow.svg and the page's table
    python tools/layout.py --check   # exit code 1 if that would change anything or a rule is broken

A package of `reid_lab` is a folder of `nbs`, and each of its modules a notebook there. Exported code imports only from
notebooks that come earlier in the order of folders and numbers, so no circle can arise. What a package holds, and what
it never holds, stands in the docstring of its `__init__.py`.
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
AT_ROOT = {"__init__", "__main__", "_modidx", "moved"}   # the only modules outside a package
NUMBERED = re.compile(r"\d\d_\w+")


@dataclass
class Module:
    "One notebook and what it exports"
    name: str                                   # `retrieval.metrics`
    notebook: Path                              # below `nbs`: 06_retrieval/50_metrics.ipynb
    lines: int
    imports: set = field(default_factory=set)   # names of other modules

    @property
    def package(self): return self.name.rpartition(".")[0]

    @property
    def leaf(self): return self.name.rpartition(".")[2]


@dataclass
class Package:
    "A folder of modules"
    name: str
    folder: str
    holds: str
    never: str
    modules: list
    imports: set                                # names of other packages
    floor: int = 0                              # one above the highest package that it imports

    @property
    def lines(self): return sum(m.lines for m in self.modules)


# --- reading ----------------------------------------------------------------------------------------------------------

def library_notebooks(root=ROOT):
    "Notebooks that export the library, in the order of folders and numbers, as paths below `nbs`"
    nbs = root/"nbs"
    found = (p.relative_to(nbs) for p in nbs.rglob("*.ipynb"))
    return sorted((p for p in found if len(p.parts) > 1 and all(NUMBERED.match(part) for part in p.parts)), key=order)


def order(notebook):
    "What decides which of two notebooks comes first: the numbers of its folders, then its own"
    return [part[:2] for part in notebook.parts]


def module_of(notebook):
    "`retrieval.metrics` of 06_retrieval/50_metrics.ipynb"
    return ".".join(part[3:] for part in notebook.with_suffix("").parts)


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
    "Every module that a notebook exports, in order"
    found = {}
    for notebook in library_notebooks(root):
        name = module_of(notebook)
        path = root/package/f"{name.replace('.', '/')}.py"
        if not path.exists(): continue
        found[name] = Module(name, notebook, len(path.read_text(encoding="utf-8").splitlines()))
        found[name].imports = {n.removeprefix(f"{package}.") for n in imported(path, root, package)} - {name}
    for m in found.values(): m.imports &= set(found)
    return list(found.values())


def said(root, package, name):
    "(what a package holds, what it never holds) by the docstring of its `__init__.py`"
    path = root/package/name.replace(".", "/")/"__init__.py"
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else None
    holds, _, rest = (doc or "").partition("\n")
    never = re.search(r"Never here: (.*)\.", rest)
    return holds.rstrip("."), never[1] if never else ""


def packages(mods, root=ROOT, package="reid_lab"):
    "The packages of these modules, in order, each with its floor"
    found = {}
    for m in mods:
        folder = m.notebook.parent.as_posix()
        p = found.setdefault(m.package, Package(m.package, folder, *said(root, package, m.package), [], set()))
        p.modules.append(m)
        p.imports |= {n.rpartition(".")[0] for n in m.imports} - {m.package}
    for _ in found:                                 # a floor rises at most once for each package
        for p in found.values(): p.floor = max((found[n].floor + 1 for n in p.imports), default=0)
    return list(found.values())


# --- rules ------------------------------------------------------------------------------------------------------------

def upward(mods):
    "Imports of a notebook that does not come earlier, in words"
    by_name = {m.name: m for m in mods}
    return [f"{m.notebook} imports {by_name[n].notebook}"
            for m in mods for n in sorted(m.imports) if order(by_name[n].notebook) >= order(m.notebook)]


def circles(mods):
    "Packages that reach themselves through the packages that they import"
    reach = {p.name: set(p.imports) for p in packages(mods)}
    for _ in reach:
        for name in reach: reach[name] |= {far for near in reach[name] for far in reach[near]}
    return sorted(name for name in reach if name in reach[name])


def loose(root=ROOT, package="reid_lab"):
    "Modules at the root of the package that belong into one of its folders"
    return sorted(p.stem for p in (root/package).glob("*.py") if p.stem not in AT_ROOT)


def broken(root=ROOT, package="reid_lab"):
    "Every rule of the layout that does not hold, in words"
    mods = modules(root, package)
    return [*(f"upward: {text}; move the definition down, or give the notebook a later number (tools/move.py)"
              for text in upward(mods)),
            *(f"circle: {name} imports a package that imports it" for name in circles(mods)),
            *(f"loose: {package}/{name}.py belongs into a package" for name in loose(root, package))]


# --- table and drawings -----------------------------------------------------------------------------------------------

def table(mods, root=ROOT):
    "The layout as Markdown, one row a package"
    found = packages(mods, root)
    total = sum(p.lines for p in found)
    rows = []
    for p in found:
        names = ", ".join(f"`{m.leaf}`" for m in p.modules)
        imports = ", ".join(f"`{n}`" for n in sorted(p.imports)) or "nothing"
        share = f"{100*p.lines/total:.0f} %"
        rows.append(f"| `{p.name}` | {p.holds} | {p.never} | {names} | {share} | {imports} |")
    head = "| package | holds | never | modules | lines | imports |\n|---|---|---|---|---|---|"
    floors = 1 + max(p.floor for p in found)
    edges = sum(len(p.imports) for p in found)
    # Shares and thousands: a count of lines would change the committed page with almost every edit.
    sums = (f"{len(found)} packages on {floors} floors, {len(mods)} modules, {total/1000:.0f} thousand lines, "
            f"{edges} imports between packages.")
    return "\n".join([head, *rows, "", sums])


def direct(found):
    "(package, imported package) pairs that no longer way explains: what a drawing has to show"
    imports = {p.name: p.imports for p in found}
    reach = {name: set(near) for name, near in imports.items()}
    for _ in reach:
        for name in reach: reach[name] |= {far for near in reach[name] for far in reach[near]}
    return [(name, near) for name in imports for near in sorted(imports[name])
            if not any(near in reach[other] for other in imports[name] - {near})]


BOX, GAP, FLOOR = (150, 40), 24, 84     # width and height of a box, space between boxes, height of a floor
SHIFT = 60                              # of every second floor, so that lines over a floor pass between its boxes


def places(found, pairs):
    "Package -> (x, y) of its box; packages of a floor stand near those that they import"
    floors = defaultdict(list)
    for p in found: floors[p.floor].append(p.name)
    widest = max(map(len, floors.values()))
    top, at = max(floors), {}
    for floor in sorted(floors):
        def wish(name):
            near = [at[b][0] for a, b in pairs if a == name]
            return sum(near)/len(near) if near else 0
        names = sorted(floors[floor], key=lambda name: (wish(name), name))
        left = (widest - len(names))*(BOX[0] + GAP)/2 + (SHIFT if floor % 2 else 0)
        for i, name in enumerate(names): at[name] = (20 + left + i*(BOX[0] + GAP), 20 + (top - floor)*FLOOR)
    return at


def draw(mods, root=ROOT):
    "The packages as an SVG text: each stands above what it imports; ways over a third package are left out"
    found = packages(mods, root)
    total = sum(p.lines for p in found)
    pairs = direct(found)
    at = places(found, pairs)
    width = max(x for x, _ in at.values()) + BOX[0] + 20
    height = max(y for _, y in at.values()) + BOX[1] + 44
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
           f'height="{height:.0f}" font-family="sans-serif" font-size="12">',
           f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>']
    for a, b in pairs:
        (x1, y1), (x2, y2) = at[a], at[b]
        x1, y1, x2 = x1 + BOX[0]/2, y1 + BOX[1], x2 + BOX[0]/2
        bend = min(30, (y2 - y1)/2)
        curve = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"
        out.append(f'<path d="{curve}" stroke="#7c8b96" fill="none"/>')
    for p in found:
        x, y = at[p.name]
        colour = "#e8f1f7" if "." not in p.name else "#f4f6f8"
        out.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{BOX[0]}" height="{BOX[1]}" rx="5" fill="{colour}" '
                   'stroke="#0b5c8a"/>')
        out.append(f'<text x="{x + BOX[0]/2:.0f}" y="{y + 17:.0f}" text-anchor="middle">{p.name}</text>')
        out.append(f'<text x="{x + BOX[0]/2:.0f}" y="{y + 32:.0f}" text-anchor="middle" font-size="10" fill="#555">'
                   f'{len(p.modules)} modules, {100*p.lines/total:.0f} % of the lines</text>')
    note = "A line: the upper package imports the lower one. Imports that also lead over a third package are not drawn."
    out.append(f'<text x="20" y="{height - 14:.0f}" fill="#555">{note}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


BOXES = {  # text -> (x, y, packages)
    "dataset folder": (0, 0, "datasets"), "World": (0, 60, "world"), "ReidTable": (160, 30, "data"),
    "batches": (310, 30, "data"), "model": (460, 0, "models, losses"), "strategy, Learner": (460, 60, "training, meta"),
    "trained folder": (620, 30, "training"), "Embeddings": (160, 150, "retrieval"), "adaptation": (310, 150, "tta"),
    "ranking, metrics": (460, 150, "retrieval"), "result rows": (620, 150, "results"),
    "tables, figures": (780, 150, "results, figures"), "analysis, views": (310, 220, "analysis, widgets")}
ARROWS = ("dataset folder > ReidTable", "World > ReidTable", "ReidTable > batches", "batches > model",
          "batches > strategy, Learner", "model > trained folder", "strategy, Learner > trained folder",
          "Embeddings > adaptation", "adaptation > ranking, metrics", "ranking, metrics > result rows",
          "result rows > tables, figures", "Embeddings > analysis, views", "analysis, views > tables, figures")
STEERING = (620, 220, "recipes, experiments, cli", "run all of it for a paper")


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
    x, y, where, does = STEERING
    out.append(f'<rect x="{x}" y="{y}" width="280" height="40" rx="5" fill="white" stroke="#0b5c8a" '
               f'stroke-dasharray="4 3"/><text x="{x + 140}" y="{y + 17}" text-anchor="middle">{does}</text>'
               f'<text x="{x + 140}" y="{y + 32}" text-anchor="middle" font-size="9" fill="#666">{where}</text>')
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
            new = text.split(START)[0] + START + "\n\n" + table(mods, root) + "\n\n" + END + text.split(END)[1]
            cell["source"] = new.splitlines(keepends=True)
            return json.dumps(nb, indent=1, ensure_ascii=False) + "\n"
    sys.exit(f"{PAGE} needs one markdown cell with the lines {START} and {END}")


# --- the command ------------------------------------------------------------------------------------------------------

def main(args, root=ROOT):
    "Print, write or check"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if that would change anything")
    parser.add_argument("--quiet", action="store_true", help="no table")
    args = parser.parse_args(args)
    mods, bad = modules(root), broken(root)
    for text in bad: print(text)
    if bad: return 1                                # a circle has no floors to draw
    wanted = {FIGURE: draw(mods, root), FLOW: flow(), PAGE: page(root, mods)}
    stale = [name for name, text in wanted.items() if text is not None and not same(text, root/name)]
    if args.check:
        for name in stale: print(f"{name} is not up to date; run `make readme`")
        return int(bool(stale))
    for name in stale:
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        (root/name).write_text(wanted[name], encoding="utf-8")
        print(f"wrote {name}")
    if not args.quiet: print(table(mods, root))
    return 0


def same(text, path):
    "Whether a file holds this text, spaces aside"
    return path.exists() and re.sub(r"\s", "", text) == re.sub(r"\s", "", path.read_text(encoding="utf-8"))


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
