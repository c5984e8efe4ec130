"""Give library notebooks other places, numbers or names, and rewrite what refers to them.

    python tools/move.py 03_world/50_render=03_world/35_render                  # another number
    python tools/move.py 03_world/50_render=05_models/90_render 03_world/60_plan=03_world/50_plan
    python tools/move.py --dry 03_world/50_render=03_world/50_draw              # say what would change

For each OLD=NEW (paths below `nbs`, without `.ipynb`) the notebook is renamed and its `default_exp` follows. Links in
notebooks and documents, imports and dotted names of modules are rewritten all at once, so that numbers can be
exchanged. The old exported module is deleted. Run `make export readme` afterwards; where a module has another name, add
the old one to `MOVED` in `reid_lab/moved.py`, so that code of users goes on working.
"""
import argparse
import json
import os
import posixpath
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from layout import NUMBERED, library_notebooks, module_of  # noqa: E402 - a sibling of this file

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("*.md", "tests/**/*.py", "tools/**/*.py", "tools/*.md", "benchmarks/*.py", "results/*.md", ".github/**/*.md")
HISTORY = ("CHANGELOG.md",)     # says what names were at the time


def parse(pairs, root):
    "{old path: new path} below `nbs`, checked, or exit with what is wrong"
    moves = {}
    there = set(library_notebooks(root))
    for pair in pairs:
        old, _, new = (Path(f"{name}.ipynb") if name else None for name in pair.partition("="))
        for path in (old, new):
            if path is None or len(path.parts) < 2 or not all(NUMBERED.match(p) for p in path.parts):
                sys.exit(f"{pair!r} is no OLD=NEW of two paths such as 03_world/50_render, without .ipynb")
        if old not in there: sys.exit(f"there is no nbs/{old}; see `ls nbs/{old.parent}`")
        if old in moves: sys.exit(f"{old} is named twice")
        moves[old] = new
    after = [moves.get(p, p) for p in there]
    for new in moves.values():
        if after.count(new) > 1: sys.exit(f"nbs/{new} exists; move it too, or choose another name")
        twins = [p for p in after if p.parent == new.parent and p.name[:2] == new.name[:2] and p != new]
        if twins: sys.exit(f"number {new.name[:2]} belongs to {twins[0]}; move it too, or choose another number")
    return moves


def relinked(text, here, there, moves):
    "Links of a file at `here` (its place before) as seen from `there` (its place after), both below the root"
    def link(m):
        if re.match(r"[a-z]+:|/", m[2]): return m[0]
        target = Path(posixpath.normpath(posixpath.join(here.parent.as_posix(), m[2])))
        below = target.relative_to("nbs") if target.parts[0] == "nbs" else None
        target = Path("nbs")/moves[below] if below in moves else target
        return f"{m[1]}({posixpath.relpath(target.as_posix(), there.parent.as_posix() or '.')}"
    return re.sub(r"(\[[^\]\n]*\])\(([^)\s#]+)", link, text)


def renamed(text, names, package):
    "Dotted names of modules, in imports, prose and paths, as they are after the move"
    for old, new in names.items():
        (old_package, _, old_leaf), (new_package, _, new_leaf) = old.rpartition("."), new.rpartition(".")

        def member(m):
            kept = [name for name in re.split(r",\s*", m[2]) if name.split(" ")[0] != old_leaf]
            alias = next(name.rpartition(" ")[2] for name in re.split(r",\s*", m[2]) if name.split(" ")[0] == old_leaf)
            moved = new_leaf if alias == new_leaf else f"{new_leaf} as {alias}"
            lines = [f"from {package}.{old_package} import {', '.join(kept)}"]*bool(kept)
            return "\n".join(m[1] + line for line in [*lines, f"from {package}.\0{new_package} import {moved}"])
        listed = rf"^( *)from {package}\.{re.escape(old_package)} import ((?:[\w ]+, )*{old_leaf}\b[\w ,]*)$"
        text = re.sub(listed, member, text, flags=re.M)
        text = re.sub(rf"\b{package}\.{re.escape(old)}\b", f"{package}.\0{new}", text)
        text = re.sub(rf"`{re.escape(old)}\b", f"`\0{new}", text)
        text = re.sub(rf"\b{package}/{old.replace('.', '/')}\.py\b", f"{package}/\0{new.replace('.', '/')}.py", text)
    return text.replace("\0", "")       # the mark keeps a new name from being rewritten again


def notebook(raw, rewrite, module=None):
    "The notebook's JSON with every source rewritten; it exports `module`"
    for cell in raw["cells"]:
        text = rewrite("".join(cell["source"]))
        if module: text = re.sub(r"^(#\|\s*default_exp\s+)\S+", rf"\g<1>{module}", text)
        cell["source"] = text.splitlines(keepends=True)
    return raw


def plan(root, moves, package="reid_lab"):
    "({path: new bytes}, [paths to delete]) of a move"
    names = {module_of(old): module_of(new) for old, new in moves.items() if module_of(old) != module_of(new)}
    out, gone = {}, [root/package/f"{name.replace('.', '/')}.py" for name in names]
    for path in sorted((root/"nbs").rglob("*.ipynb")):
        below = path.relative_to(root/"nbs")
        if any(part[0] in "._" for part in below.parts): continue
        there = moves.get(below, below)

        def rewrite(text): return renamed(relinked(text, Path("nbs")/below, Path("nbs")/there, moves), names, package)
        old = json.loads(path.read_bytes())
        new = notebook(json.loads(path.read_bytes()), rewrite, module_of(there) if below in moves else None)
        if below in moves: gone.append(path)
        if new != old or there != below:
            out[root/"nbs"/there] = (json.dumps(new, indent=1, ensure_ascii=False) + "\n").encode()
    for path in sorted({p for pattern in TEXTS for p in root.glob(pattern) if p.is_file()}):
        below, text = path.relative_to(root), path.read_text(encoding="utf-8")
        new = renamed(relinked(text, below, below, moves) if path.suffix == ".md" else text, names, package)
        if path.name not in HISTORY and new != text: out[path] = new.encode()
    return out, [p for p in gone if p not in out and p.exists()]


def write(path, data):
    "Replace a file in one step"
    path.parent.mkdir(parents=True, exist_ok=True)
    tmp = path.with_name(f".{path.name}.tmp")
    tmp.write_bytes(data)
    os.replace(tmp, path)


def main(args, root=ROOT):
    "Move, or say what would be moved"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="+", metavar="OLD=NEW", help="paths below nbs, without `.ipynb`")
    parser.add_argument("--dry", action="store_true", help="say what would be changed")
    args = parser.parse_args(args)
    out, gone = plan(root, parse(args.pairs, root))
    for path in out: print(f"{'would write' if args.dry else 'wrote'} {path.relative_to(root)}")
    for path in gone: print(f"{'would remove' if args.dry else 'removed'} {path.relative_to(root)}")
    if args.dry: return 0
    for path, data in out.items(): write(path, data)
    for path in gone: path.unlink()
    print("now: make export readme; a module with another name also belongs into MOVED in reid_lab/moved.py")
    return 0


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
