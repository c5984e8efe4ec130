"""README.md from nbs/index.ipynb.

    python tools/readme.py           # write README.md and the pictures that stored outputs hold
    python tools/readme.py --check   # exit code 1 if that would change anything

Cells with `#| hide` and the title's `>` line are treated as nbdev would; outputs are taken as stored.
"""
import argparse
import base64
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGES = {"image/png": "png", "image/jpeg": "jpg"}


def source(cell):
    "A cell's text, however it was stored"
    return cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])


def title(path):
    "(title, one line) of a notebook"
    first = source(json.loads(path.read_text(encoding="utf-8"))["cells"][0]).strip().split("\n")
    one = next((s[2:] for s in first if s.startswith("> ")), "")
    return first[0].removeprefix("# ").strip(), one.strip()


def links(text):
    "Links of a notebook in nbs/, as seen from the repository's root"
    def move(m):
        target = m[2]
        if re.match(r"[a-z]+:|#|/", target): return m[0]
        return f"{m[1]}({target[3:] if target.startswith('../') else 'nbs/' + target})"
    text = text.replace('<img src="../', '<img src="')
    return re.sub(r"(\[[^\]\n]*\])\(([^)\s]+)\)", move, text)


def output_text(out, name, files):
    "Markdown for one stored output; pictures are added to `files`"
    if out["output_type"] == "stream": return "    " + "".join(out["text"]).rstrip().replace("\n", "\n    ")
    data = {k: v if isinstance(v, str) else "".join(v)
            for k, v in out.get("data", {}).items() if not k.endswith("json")}
    for kind, ext in IMAGES.items():
        if kind in data:
            files[f"figures/{name}.{ext}"] = base64.b64decode(data[kind])
            return f"![{name}](figures/{name}.{ext})"
    if "text/markdown" in data: return links(data["text/markdown"]).strip()
    if "text/html" in data: return re.sub(r"<style.*?</style>", "", data["text/html"], flags=re.S).strip()
    return "    " + data.get("text/plain", "").rstrip().replace("\n", "\n    ")


def readme(nb):
    "(text of README.md, {path: bytes} of the pictures that come from stored outputs)"
    out, files = [], {}
    for i, cell in enumerate(nb["cells"]):
        text = source(cell)
        if cell["cell_type"] == "markdown":
            out.append(links(text).strip())
            continue
        if re.search(r"^#\|\s*hide\b", text, re.M) or "nbdev_export" in text: continue
        code = "\n".join(s for s in text.splitlines() if not s.startswith("#|")).strip()
        if code: out.append(f"```python\n{code}\n```")
        out += [t for j, o in enumerate(cell.get("outputs", []))
                if (t := output_text(o, f"readme_{i}_{j}", files)).strip()]
    note = "<!-- Made from nbs/index.ipynb by `make readme`; edit the notebook. -->"
    return "\n\n".join([note, *out]) + "\n", files


def build(root):
    "{path: bytes} of everything this tool writes"
    text, files = readme(json.loads((root/"nbs"/"index.ipynb").read_text(encoding="utf-8")))
    return {"README.md": text.encode(), **files}


def same(path, new):
    "Whether a file already says this"
    return path.exists() and path.read_bytes() == new


def main(args):
    "Write or check"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if that would change anything")
    args = parser.parse_args(args)
    wanted = build(ROOT)
    stale = [name for name, new in wanted.items() if not same(ROOT/name, new)]
    extra = [p for p in (ROOT/"figures").glob("readme_*") if f"figures/{p.name}" not in wanted]
    if args.check:
        for name in [*stale, *(f"figures/{p.name}" for p in extra)]:
            print(f"{name} is not up to date; run `make readme`")
        return int(bool(stale or extra))
    for p in extra: p.unlink()
    for name in stale:
        (ROOT/name).parent.mkdir(exist_ok=True)
        (ROOT/name).write_bytes(wanted[name])
        print(f"wrote {name}")
    return 0


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
