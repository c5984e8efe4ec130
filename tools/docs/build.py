"""The documentation site: all notebooks with their stored outputs, signatures of all modules, changelog; searchable.

    python tools/docs/build.py                              # write _docs/site/index.html, check its links
    python tools/docs/build.py --out DIR --only "02_*/*"    # elsewhere; of the library only notebooks that match

Nothing is executed and nothing is fetched. Directives (`#| export`) and hidden cells are left out; a link to a file
that is not part of the site becomes its name. Warnings of Sphinx and broken links are errors. Two pages are made here:
`map.html`, all notebooks with one line each, and `llms.txt`, the same for language models. Pages of datasets come
from the registry (`dataset_pages.py`), alternative texts of pictures and the search from `page_texts.py`.
"""
import argparse
import ast
import json
import re
import shutil
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MARK = ".written_by_reid_lab"  # in the sources of a site: what this program may remove
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))
from dataset_pages import write_pages  # noqa: E402
from experiment_pages import shown_first, studies_text  # noqa: E402
from layout import library_notebooks, module_of  # noqa: E402 - a tool of this project
from page_texts import pages_script, with_alt_texts  # noqa: E402
from readme import source, title  # noqa: E402

from reid_lab.results.results_page import write_results_page  # noqa: E402

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
HIDDEN = re.compile(r"^#\| *(hide|default_exp)", re.M)


# --- sources ----------------------------------------------------------------------------------------------------------

def relinked(text, page, pages, figures):
    "Markdown whose links lead to pages of the site; a figure is copied, another file becomes its name"
    up = "../"*len(page.parts[:-1])

    def place(target):
        path, _, anchor = target.partition("#")
        if urlsplit(target).scheme: return target
        if not path: return target.lower()
        full = (ROOT/"nbs"/page.parent/path).resolve()
        if full.is_relative_to(ROOT/"figures") and full.exists():
            figures.add(full)
            return f"{up}figures/{full.name}"
        rel = full.relative_to(ROOT/"nbs").as_posix() if full.is_relative_to(ROOT/"nbs") else full.name
        return f"{up}{rel}{'#' + anchor.lower() if anchor else ''}" if rel in pages else None

    def link(m):
        new = place(m[3])
        return f"{m[1]}[{m[2]}]({new})" if new else m[2]
    text = re.sub(r'(<img[^>]*\ssrc=")([^"]+)"', lambda m: f'{m[1]}{place(m[2]) or m[2]}"', text)
    return LINK.sub(link, text)


def drawing_functions():
    "Name -> docstring of the functions of the library that draw"
    found = {}
    for path in sorted((ROOT/"reid_lab").rglob("*.py")):
        for n in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(n, ast.FunctionDef) or n.name.startswith("_"): continue
            draws = n.returns and re.search("Figure|Picture", ast.unparse(n.returns))
            empty = n.name in ("paper_figure", "inch_canvas")
            if draws and not empty and ast.get_docstring(n): found[n.name] = ast.get_docstring(n)
    return found


def tidy(nb, page, pages, figures, functions=()):
    "A notebook for readers: no directives, no hidden cells, outputs that a page can show, pictures with a text"
    cells = []
    for c in nb["cells"]:
        text = source(c)
        if c["cell_type"] == "markdown":
            text = re.sub(r"\A(# .*)\n> (.*)", r"\1\n\n*\2*", relinked(text, page, pages, figures))
            if text.strip(): cells.append(dict(cell_type="markdown", metadata={}, source=text))
        elif c["cell_type"] == "code" and not HIDDEN.search(text):
            directives = "".join(re.findall(r"^#\|.*\n?", text, flags=re.M))
            text = re.sub(r"^#\|.*\n?", "", text, flags=re.M).strip("\n")
            for o in c["outputs"]:
                for k in [k for k in o.get("data", {}) if k.startswith("application/")]: del o["data"][k]
            if text: cells.append(dict(c, source=text, execution_count=None, metadata={}, directives=directives))
    cells = with_alt_texts(cells, page.stem, functions)
    cells = [dict(c, id=f"cell-{i}") for i, c in enumerate(cells)]
    kernel = dict(name="python3", display_name="Python", language="python")
    return dict(cells=cells, nbformat=4, nbformat_minor=5, metadata=dict(kernelspec=kernel))


def tree(caption, entries, depth=1):
    "A part of the navigation"
    lines = "\n".join(e.removesuffix(".ipynb").removesuffix(".md") for e in entries)
    return f":::{{toctree}}\n:hidden:\n:maxdepth: {depth}\n:caption: {caption}\n\n{lines}\n:::" if entries else ""


# --- signatures -------------------------------------------------------------------------------------------------------

def public(module):
    "Names of `__all__`, and what is patched onto classes, with their nodes"
    body = ast.parse(module).body
    names = next((ast.literal_eval(n.value) for n in body if isinstance(n, ast.Assign)
                  and getattr(n.targets[0], "id", "") == "__all__"), [])
    for n in body:
        if not isinstance(n, (ast.FunctionDef, ast.ClassDef)): continue
        patched = isinstance(n, ast.FunctionDef) and any("patch" in ast.unparse(d) for d in n.decorator_list)
        if patched and not n.name.startswith("_"): yield f"{ast.unparse(n.args.args[0].annotation)}.{n.name}", n
        elif n.name in names: yield n.name, n


def signature(n, lines):
    "The lines of a definition up to its docstring, comments on arguments included; of a class with its constructor"
    def head(d):
        end = d.body[0].lineno - 1
        return lines[d.lineno - 1:end] if end >= d.lineno else [lines[d.lineno - 1]]
    out = head(n)
    if isinstance(n, ast.ClassDef):
        fields = [b for b in n.body if isinstance(b, ast.AnnAssign)]
        out += ["", *(lines[b.lineno - 1] for b in fields)]*bool(fields)
        for b in n.body:
            shown = isinstance(b, ast.FunctionDef) and (b.name == "__init__" or not b.name.startswith("_"))
            out += ["", *head(b)] if shown else []
    return "\n".join(out).rstrip()


def notebook_of(module):
    "Path below `nbs` of the notebook that a module's text names, or None"
    made = re.search(r"File to edit: \S*?nbs/(\S+\.ipynb)", module)
    return Path(made[1]) if made else None


def api_page(path):
    "Signatures and docstrings of one module as markdown, or None"
    text = path.read_text("utf-8")
    lines, name = text.split("\n"), ".".join(path.relative_to(ROOT).with_suffix("").parts)
    made = notebook_of(text)
    found = list(public(text))
    if not found: return None
    out = [f"# {name}", ast.get_docstring(ast.parse(text)) or ""]
    if made: out.append(f"Explained and shown in use in [{module_of(made)}](../{made}).")
    for shown, n in found:
        about = ast.get_docstring(n) or ""
        out += [f"## `{shown}`", about, f"```python\n{signature(n, lines)}\n```"]
    return "\n\n".join(out) + "\n"


# --- the site ---------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Entry:
    "A page of the site, as lists of pages name it"
    page: str       # path of its source in the site
    title: str
    about: str      # one line

    @property
    def html(self): return str(PurePosixPath(self.page).with_suffix(".html"))


def notebook_entry(path):
    "A notebook as an entry"
    return Entry(path.relative_to(ROOT/"nbs").as_posix(), *title(path))


def module_entry(name, text):
    "The signatures of a module as an entry; `text` is its page"
    about = next((line for line in text.split("\n")[1:] if line.strip()), "")
    return Entry(f"api/{name}.md", name, about)


def map_page(groups, below=None):
    "All notebooks as Markdown, a table a group; `below` holds what stands under the table of a group"
    parts = ["# All notebooks", "Every page that is made from a notebook, with its one line."]
    for name, entries in groups.items():
        rows = [f"| [{e.title}]({e.page}) | {e.about.replace('|', '&#124;')} |" for e in entries]
        parts.append("\n".join([f"## {name}", "", "| notebook | what is in it |", "|---|---|", *rows]))
        if name in (below or {}): parts.append(below[name])
    return "\n\n".join(parts) + "\n"


def summary(index):
    "What the project is: the first paragraph of the index"
    texts = [source(c) for c in index["cells"] if c["cell_type"] == "markdown"]
    first = texts[1].strip().split("\n\n")[0]
    return " ".join(first.split()).replace("*", "")


def llms_text(index, groups):
    "The site for language models: what it is, and its pages with one line each (llmstxt.org)"
    name, about = title(index)
    parts = [f"# {name}", f"> {about}", summary(json.loads(index.read_text("utf-8")))]
    for group, entries in groups.items():
        lines = [f"- [{e.title}]({e.html}): {e.about}".removesuffix(": ") for e in entries]
        parts.append("\n".join([f"## {group}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def gather(src, only="*"):
    "Write the sources of the site below `src`"
    nbs = ROOT/"nbs"
    library = [nbs/p for p in library_notebooks(ROOT) if p.match(only)]
    parts = {d: sorted((nbs/d).glob("[!_.]*.ipynb")) for d in ("tutorials", "docs", "experiments")}
    books = [nbs/"index.ipynb", *library, *sum(parts.values(), [])]
    pages, figures = {p.relative_to(nbs).as_posix() for p in books}, set()
    modules = {}
    for p in library:
        name = module_of(p.relative_to(nbs))
        page = api_page(ROOT/"reid_lab"/f"{name.replace('.', '/')}.py")
        if page: modules[f"reid_lab.{name}"] = page
    (src/"api").mkdir(parents=True)
    for name, text in modules.items(): (src/"api"/f"{name}.md").write_text(text, "utf-8")
    for p in ("CHANGELOG.md", "CONTRIBUTING.md"):
        text = relinked((ROOT/p).read_text("utf-8"), Path(p), pages, figures)
        (src/p.lower()).write_text(text, "utf-8")
    measured = [p for p in parts["tutorials"] if "_measured_" in p.name]
    guide = [p for p in parts["tutorials"] if p not in measured]
    packages = {}
    for p in library: packages.setdefault(f"reid_lab.{module_of(p.relative_to(nbs)).rpartition('.')[0]}", []).append(p)
    groups = {"Guide": guide, "Measured results": measured, "Experiments": parts["experiments"],
              "Background": parts["docs"], **packages}
    groups = {name: [notebook_entry(p) for p in paths] for name, paths in groups.items() if paths}
    datasets = [Entry(f"datasets/{key}.md", *lines) for key, lines in write_pages(src).items()]
    listed = list(groups.items())
    groups = dict([*listed[:3], ("Datasets", datasets), *listed[3:]])
    (src/"map.md").write_text(map_page(groups, {"Experiments": studies_text()}), "utf-8")
    functions = drawing_functions()
    signatures = [module_entry(name, text) for name, text in modules.items()]
    everything = groups | {"Signatures": signatures} if signatures else groups
    (src/"llms.txt").write_text(llms_text(nbs/"index.ipynb", everything), "utf-8")
    pages_of = {name: [e.page for e in entries] for name, entries in everything.items()}
    pages_of["Guide"] = ["map.md", *pages_of.get("Guide", [])]
    pages_of["Background"] = [*pages_of.get("Background", []), "changelog.md", "contributing.md"]
    trees = [tree(name, entries) for name, entries in pages_of.items()]
    for p in books:
        page = p.relative_to(nbs)
        nb = tidy(json.loads(p.read_text("utf-8")), page, pages, figures, functions)
        if page.parts[0] == "experiments":
            cells = shown_first(page.stem, pages, figures, src/"figures")
            nb["cells"][2:2] = [dict(c, id=f"first-{i}") for i, c in enumerate(cells)]
        if page.as_posix() == "index.ipynb":
            parts_of_it = "\n\n".join(["[All notebooks](map.md), with one line each.", *filter(None, trees)])
            nb["cells"].append(dict(cell_type="markdown", id="trees", metadata={}, source=parts_of_it))
        (src/page).parent.mkdir(parents=True, exist_ok=True)
        (src/page).write_text(json.dumps(nb), "utf-8")
    (src/"figures").mkdir(exist_ok=True)
    for f in figures: shutil.copy(f, src/"figures")
    write_results_page(src/"all_results.html")
    shutil.copytree(HERE/"static", src/"_static")
    shutil.copytree(HERE/"templates", src/"_templates")
    shutil.copy(HERE/"site.css", src/"_static")
    shutil.copy(HERE/"conf.py", src)
    return len(books) + len(modules) + len(datasets) + 3


class Page(HTMLParser):
    "Anchors of a page, what it links to, and what it loads"
    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        a = dict(attrs)
        if a.get("id"): self.ids.add(a["id"])
        if tag == "a" and a.get("href"): self.links.append(a["href"])
        if tag == "link" and a.get("rel") in ("stylesheet", "preload", "icon"): self.loads.append(a["href"])
        if tag in ("script", "img", "iframe") and a.get("src"): self.loads.append(a["src"])


def broken(site):
    "What is wrong with links of a built site, as texts, and how many links lead out of it"
    pages = {p: Page(p.read_text("utf-8")) for p in site.rglob("*.html")}
    out, away = [], 0
    for p, page in pages.items():
        name = p.relative_to(site)
        for target in page.links + page.loads:
            url = urlsplit(target)
            if url.scheme in ("http", "https", "mailto"):
                away += 1
                if target in page.loads: out.append(f"{name} loads {target}")
                continue
            if url.scheme: continue
            there = (p.parent/unquote(url.path)).resolve() if url.path else p
            if not there.exists(): out.append(f"{name}: no file {target}")
            elif url.fragment and there in pages and unquote(url.fragment) not in pages[there].ids:
                out.append(f"{name}: no anchor {target}")
    return out, away


def main(argv=None):
    "Build and check; the exit code"
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("--out", type=Path, default=ROOT/"_docs", help="folder, replaced (default: _docs)")
    a.add_argument("--only", default="*", help="pattern of library notebooks (default: all)")
    a.add_argument("--jobs", default="1", help="processes that read and write pages, or auto (default: 1)")
    a = a.parse_args(argv)
    try:
        from sphinx.cmd.build import build_main
    except ImportError: sys.exit("Sphinx is not installed: pip install -e '.[docs]'")
    if a.out.exists() and {p.name for p in a.out.iterdir()} - {"source", "site", "cache", "jupyter_execute"}:
        sys.exit(f"--out {a.out} holds other things than a site; give a new folder")
    ours = (a.out/"source"/MARK).exists() or a.out.resolve() == ROOT/"_docs"
    if not ours and a.out.exists() and any(a.out.iterdir()):
        sys.exit(f"--out {a.out} was not written by this program; nothing was removed. Give a new folder")
    shutil.rmtree(a.out, ignore_errors=True)
    (a.out/"source").mkdir(parents=True)
    (a.out/"source"/MARK).touch()  # before the rest: a build that is killed is known, too
    n = gather(a.out/"source", a.only)
    places = [str(a.out/"source"), str(a.out/"site")]
    code = build_main(["-q", "-W", "--keep-going", "-j", a.jobs, "-d", str(a.out/"cache"), *places])
    (a.out/"site"/"_static"/"pages.js").write_text(pages_script(a.out/"site"), "utf-8")
    found, away = broken(a.out/"site")
    for text in found: print(text)
    print(f"{n} pages in {a.out/'site'/'index.html'}, {len(found)} broken links, {away} links to other sites")
    return 1 if code or found else 0


if __name__ == "__main__": sys.exit(main())
