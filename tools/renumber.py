"""Give notebooks other numbers or module names, and everything that refers to them.

    python tools/renumber.py 070_data.text=020_data.text 045_data.render=140_world.render     # one or several
    python tools/renumber.py --dry 200_losses=240_losses                                    # say what would change

For each OLD=NEW the notebook is renamed, its `default_exp` follows the new name, and all references are rewritten at
once (so numbers can be exchanged): links and names of notebooks in prose, imports and dotted names of modules in
notebooks, tests, benchmarks, tools and documents. The old exported module is deleted. Run `make export readme`
afterwards.
"""
import argparse
import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = re.compile(r"(\d{3})_([a-z][\w]*(?:\.[a-z][\w]*)*)$")
TEXTS = ("*.md", "*.py", "*.ini", "*.cff", "Makefile", ".ci/run", "tests/**/*.py", "tools/*.py", "tools/*.md",
         "benchmarks/*.py", "results/*.md", ".github/**/*")


def parse(pairs, nbs):
    "{old name: new name} of checked notebooks, or exit with what is wrong"
    moves = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        for name in (old, new):
            if not NAME.match(name):
                sys.exit(f"{name!r} in {pair!r} is no notebook name such as 040_data.loaders; write OLD=NEW")
        if not (nbs/f"{old}.ipynb").exists(): sys.exit(f"there is no nbs/{old}.ipynb; see `ls nbs`")
        if old in moves: sys.exit(f"{old} is named twice")
        if old != new: moves[old] = new
    for new in moves.values():
        if list(moves.values()).count(new) > 1: sys.exit(f"{new} is the new name of two notebooks")
        if (nbs/f"{new}.ipynb").exists() and new not in moves:
            sys.exit(f"nbs/{new}.ipynb exists; move it too, or choose another name")
        twin = [p.stem for p in nbs.glob(f"{new[:3]}_*.ipynb") if p.stem not in moves and p.stem not in (old, new)]
        if twin: sys.exit(f"number {new[:3]} belongs to {twin[0]}; move it too, or choose another number")
    return moves


def module(name):
    "`data.text` of `070_data.text`"
    return NAME.match(name)[2]


def rewriter(moves, package):
    "A function that rewrites all references in a text"
    names = re.compile(r"(?<![\w.])(" + "|".join(map(re.escape, moves)) + r")(?=\.ipynb\b|(?![\w.]*\w))")
    modules = {module(o): module(n) for o, n in moves.items() if module(o) != module(n)}
    dotted = re.compile(rf"\b{package}\.(" + "|".join(map(re.escape, sorted(modules, key=len, reverse=True)))
                        + r")\b(?!\.py)")
    paths = {f"{package}/{o.replace('.', '/')}.py": f"{package}/{n.replace('.', '/')}.py" for o, n in modules.items()}
    files = re.compile("|".join(map(re.escape, paths)))

    def rewrite(text):
        text = names.sub(lambda m: moves[m[1]], text)
        if not modules: return text
        text = members(text, modules, package)
        text = dotted.sub(lambda m: f"{package}.{modules[m[1]]}", text).replace("\0", "")
        return files.sub(lambda m: paths[m[0]], text)
    return rewrite


def members(text, modules, package):
    "Rewrite `from package.area import module`, where the module moves to another area"
    def one(m):
        area = f"{m[2]}." if m[2] else ""
        parts = [p.strip() for p in m[3].split(",")]
        new = [modules.get(area + re.split(r"\s+as\s+", p)[0], area + re.split(r"\s+as\s+", p)[0]) for p in parts]
        areas = {n.rpartition(".")[0] for n in new}
        if all(n == area + re.split(r"\s+as\s+", p)[0] for n, p in zip(new, parts)): return m[0]
        if len(areas) > 1:
            raise SystemExit(f"{m[0]!r} would import from {sorted(areas)}; split this line by hand, then run again")
        names = []
        for n, p in zip(new, parts):
            last, (was, *alias) = n.rpartition(".")[2], re.split(r"\s+as\s+", p)
            names.append(last if not alias and last == was else f"{last} as {alias[0] if alias else was}")
        where = f"{package}\0.{areas.pop()}".rstrip(".")  # marked, so that it is not rewritten a second time
        return f"{m[1]}from {where} import {', '.join(names)}"
    return re.sub(rf"^(\s*)from {package}(?:\.([\w.]+))? import ([\w ,]+?)$", one, text, flags=re.M)


def notebook(raw, rewrite):
    "The notebook's JSON with every source rewritten"
    for cell in raw["cells"]:
        text = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        new = rewrite(text)
        if cell["cell_type"] == "code" and new != text and not re.search(r"^[%!]", new, re.M): ast.parse(new)
        cell["source"] = new.splitlines(keepends=True)
    return raw


def default_exp(raw, name):
    "Set the module that a notebook exports"
    for cell in raw["cells"]:
        text = "".join(cell["source"])
        if re.match(r"#\|\s*default_exp\b", text):
            cell["source"] = [re.sub(r"(#\|\s*default_exp\s+)\S+", rf"\g<1>{module(name)}", text)]
            return
    sys.exit(f"{name} has no `#| default_exp` cell")


def write(path, data):
    "Replace a file in one step"
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.write_bytes(data)
    os.replace(tmp, path)


def plan(root, moves, package="reid_lab"):
    "({path: new bytes}, [paths to delete]) of a renumbering"
    rewrite, nbs, out, gone = rewriter(moves, package), root/"nbs", {}, []
    for path in sorted(nbs.rglob("*.ipynb")):
        if any(p[0] in "._" for p in path.relative_to(root).parts): continue
        old = path.read_bytes()
        raw = notebook(json.loads(old), rewrite)
        new_path = path
        if path.parent == nbs and path.stem in moves:
            default_exp(raw, moves[path.stem])
            new_path = nbs/f"{moves[path.stem]}.ipynb"
            gone.append(path)
            if module(path.stem) != module(moves[path.stem]):
                gone.append(root/package/f"{module(path.stem).replace('.', '/')}.py")
        new = (json.dumps(raw, indent=1, ensure_ascii=False) + "\n").encode()
        if new_path != path or raw != json.loads(old): out[new_path] = new
    for path in sorted({p for t in TEXTS for p in root.glob(t) if p.is_file() and ".venv" not in p.parts}):
        text = path.read_text(encoding="utf-8")
        if path.name not in ("CHANGELOG.md", "renumber.py", "test_renumber.py") and rewrite(text) != text:
            out[path] = rewrite(text).encode()
    return out, [p for p in gone if p not in out]


def main(args, root=ROOT):
    "Rename, or say what would be renamed"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="OLD=NEW", help="notebooks without `.ipynb`")
    parser.add_argument("--dry", action="store_true", help="say what would be renamed")
    args = parser.parse_args(args)
    moves = parse(args.pairs, root/"nbs")
    out, gone = plan(root, moves)
    for path in out: print(f"{'would write' if args.dry else 'wrote'} {path.relative_to(root)}")
    for path in gone: print(f"{'would remove' if args.dry else 'removed'} {path.relative_to(root)}")
    if args.dry: return 0
    for path, data in out.items(): write(path, data)
    for path in gone: path.unlink(missing_ok=True)
    for folder in sorted((root/"reid_lab").glob("**/"), reverse=True):
        left = [p for p in folder.iterdir() if p.name not in ("__init__.py", "__pycache__")]
        if not left and folder != root/"reid_lab": subprocess.run(["rm", "-r", str(folder)], check=True)
    print("now: make export readme")
    return 0


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
