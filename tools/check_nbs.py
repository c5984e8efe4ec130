"""House rules that a program can check, over the JSON of the notebooks and the syntax tree of their code.

    python tools/check_nbs.py                 # every notebook under nbs/, every module under reid_lab/
    python tools/check_nbs.py nbs/10_*.ipynb  # some notebooks
    python tools/check_nbs.py --quiet         # errors only

Each finding names the notebook, the cell (counted from 1), the rule and what to do. Errors end with exit code 1; warnings
are advice. Which kind a rule is stands in `RULES`.
"""
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

RULES = {  # rule -> (severity, remedy)
    "json": ("error", "the file is not a notebook; `nbdev_fix FILE` repairs one with merge markers"),
    "syntax": ("error", "the cell does not parse; correct it"),
    "merge": ("error", "finish the merge; no line may start with a merge marker"),
    "title": ("error", "make the first cell markdown with exactly `# Title` and `> one line` of at most 90 characters"),
    "default-exp": ("error", "give a numbered notebook exactly one `#| default_exp module`, in its second cell"),
    "name": ("error", "call the file NN_module.ipynb after its `default_exp`, NN being two digits"),
    "order": ("error", "import only from notebooks with lower numbers, or renumber"),
    "export-length": ("error", "split the cell, or say why not in its second line: `# long: reason`"),
    "export-lengths": ("warning", "aim at 25 lines or fewer in nine of ten exported cells"),
    "demo-length": ("error", "shorten the demonstration to 25 lines, or move a part into the library"),
    "line-length": ("error", "break the line at 120 characters"),
    "docstring": ("error", "give every public function and class a docstring of one line"),
    "docments": ("error", "put each parameter on a line of its own with a trailing comment"),
    "docments-method": ("warning", "put each parameter on a line of its own with a trailing comment"),
    "hidden-share": ("error", "show more: at most 25 % of the code cells may be hidden"),
    "hidden": ("error", "hide only imports, cells under `## Edge cases` and the export call"),
    "star": ("error", "import names explicitly; only `from fastcore.test import *` may star, hidden"),
    "import-cell": ("error", "put imports into exported cells of their own: documentation tools run every cell that imports"),
    "except": ("error", "name the exceptions that can happen, or re-raise"),
    "swallow": ("warning", "say in a comment why the exception does not matter, or handle it"),
    "dead-code": ("error", "delete code that is commented out"),
    "output-size": ("error", "keep a cell's outputs under 120 KB: smaller figures, JPEG for photographs"),
    "notebook-size": ("error", "keep a library notebook under 700 KB"),
    "output-error": ("error", "the stored run failed; correct the cell and run the notebook again"),
    "output-path": ("error", "print no absolute paths of a machine"),
    "source-path": ("error", "write no absolute paths of a machine"),
    "no-output": ("error", "run the notebook and store its outputs (`make notebooks`)"),
    "widget-state": ("error", "drop the saved widget state (`make notebooks`)"),
    "last-cell": ("error", "end a library notebook with a hidden `import nbdev; nbdev.nbdev_export()`"),
    "parameters": ("error", "give an experiment one cell tagged `parameters` with at most 14 plain scalar assignments"),
    "experiment-output": ("error", "store experiments without outputs (`jupyter nbconvert --clear-output --inplace`)"),
    "used": ("error", "use every public function and class in a visible cell of its own notebook"),
    "orphan": ("error", "the module names no existing notebook: delete it, or restore the notebook and export"),
    "prose": ("warning", "one markdown cell for every three code cells"),
    "eval-false": ("error", "at most 3 % of the code cells may be `eval: false`, each saying why in a comment"),
}
MAX = dict(export=60, export_aim=25, demo=25, line=120, hidden=.25, cell_kb=120, nb_kb=700, params=14, title=90)
MACHINE = re.compile(r"(?<![\w./-])/(?:work|root|tmp|home|Users)/[\w.-]+")
MARKER = re.compile(r"^`{0,2}(?:<{7}|>{7})(?: |$|`)", re.M)


@dataclass(frozen=True)
class Finding:
    "One broken rule"
    rule: str
    where: str
    cell: int = 0
    text: str = ""

    @property
    def error(self): return RULES[self.rule][0] == "error"

    def __str__(self):
        at = f"{self.where}, cell {self.cell}" if self.cell else self.where
        return f"{'ERROR' if self.error else 'warn '} {at} [{self.rule}] {self.text}{': ' if self.text else ''}{RULES[self.rule][1]}"


# --- reading ----------------------------------------------------------------------------------------------------------

class Cell:
    "A notebook cell with what the rules ask about it"
    def __init__(self, n, raw):
        self.n, self.raw, self.kind = n, raw, raw["cell_type"]
        self.source = raw["source"] if isinstance(raw["source"], str) else "".join(raw["source"])
        self.directives = set(re.findall(r"^#\|\s*([\w-]+)", self.source, re.M)) if self.kind == "code" else set()
        self.exported = bool(self.directives & {"export", "exports", "exporti"})
        self.hidden = "hide" in self.directives
        self.evaluated = not re.search(r"^#\|\s*(eval:\s*false|slow|gpu|notest)\b", self.source, re.M)
        self.tags = raw.get("metadata", {}).get("tags", [])
        self.outputs = raw.get("outputs", [])

    @property
    def lines(self): return [s for s in self.source.splitlines() if not s.startswith("#|")]

    @property
    def plain(self):
        "Python without cell magics and shell lines"
        if self.source.lstrip().startswith("%%"): return ""
        return "\n".join("pass" if re.match(r"[%!]", s) else re.sub(r"^(\s*)[%!].*", r"\1pass", s) for s in self.source.splitlines())

    def tree(self): return ast.parse(self.plain)


class Notebook:
    "A notebook and its place in the library"
    def __init__(self, path, root):
        self.path, self.where = path, path.relative_to(root).as_posix()
        self.size = path.stat().st_size
        self.raw = json.loads(path.read_text(encoding="utf-8"))
        self.cells = [Cell(i, c) for i, c in enumerate(self.raw["cells"], 1)]
        self.code = [c for c in self.cells if c.kind == "code" and c.lines]
        self.experiment = path.parent.name == "experiments"
        self.numbered = path.parent.name == "nbs" and re.match(r"\d", path.name) is not None
        exp = [(c, m) for c in self.code for m in re.findall(r"^#\|\s*default_exp\s+(\S+)", c.source, re.M)]
        exp += [(c, m) for c in self.cells if c.kind == "code" and not c.lines
                for m in re.findall(r"^#\|\s*default_exp\s+(\S+)", c.source, re.M)]
        self.default_exp = exp

    @property
    def module(self): return self.default_exp[0][1] if self.default_exp else None

    def found(self, rule, cell=None, text=""): return Finding(rule, self.where, cell.n if cell else 0, text)


def public_defs(tree):
    "Public functions and classes at the top of a cell, and (class, method) pairs, `@patch` methods included"
    tops, methods = [], []
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): continue
        patched = any("patch" in ast.unparse(d) for d in node.decorator_list)
        if node.name.startswith("_") and not (patched and node.name == "__init__"): continue
        (methods if patched else tops).append(node)
        if isinstance(node, ast.ClassDef):
            methods += [m for m in node.body if isinstance(m, ast.FunctionDef) and (m.name == "__init__" or not m.name.startswith("_"))]
    return tops, methods


def comments(source):
    "Line number -> comment, for lines with code before the comment too"
    out = {}
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        if t.type == tokenize.COMMENT: out[t.start[0]] = t.string
    return out


# --- the rules --------------------------------------------------------------------------------------------------------

def check_shape(nb):
    "Title, module name, place of the export call, prose, hidden cells"
    first = nb.cells[0] if nb.cells else None
    title = first.source.strip().split("\n") if first and first.kind == "markdown" else []
    if len(title) != 2 or not re.match(r"# \S", title[0]) or not re.match(r"> \S", title[1]) or len(title[1]) - 2 > MAX["title"]:
        yield nb.found("title", first, f"{len(title[1]) - 2} characters" if len(title) == 2 and len(title[1]) > 92 else "")
    if nb.numbered:
        name = re.match(r"(\d\d)_(.+)\.ipynb$", nb.path.name)
        if len(nb.default_exp) != 1 or nb.default_exp[0][0].n != 2: yield nb.found("default-exp", text=f"{len(nb.default_exp)} found")
        if not name or (nb.module and name[2] != nb.module): yield nb.found("name", text=f"default_exp {nb.module}")
        last = nb.cells[-1]
        if not (last.hidden and "nbdev_export()" in last.source): yield nb.found("last-cell", last)
    n_md = sum(c.kind == "markdown" for c in nb.cells)
    if nb.code and 3*n_md < len(nb.code): yield nb.found("prose", text=f"{n_md} markdown, {len(nb.code)} code cells")
    off = [c for c in nb.code if re.search(r"^#\|\s*eval:\s*false", c.source, re.M)]
    if len(off) > max(1, .03*len(nb.code)): yield nb.found("eval-false", text=f"{len(off)} of {len(nb.code)}")
    for c in off:
        if not any(s.lstrip().startswith("#") for s in c.lines): yield nb.found("eval-false", c, "no reason given")


def check_hidden(nb):
    "What may be hidden, and how much"
    hidden = [c for c in nb.code if c.hidden and "nbdev_export" not in c.source]
    if len(hidden) > max(2, MAX["hidden"]*len(nb.code)): yield nb.found("hidden-share", text=f"{len(hidden)} of {len(nb.code)}")
    edge = False
    for c in nb.cells:
        if c.kind == "markdown":
            for head in re.findall(r"^#{1,3} +(.+)", c.source, re.M): edge = head.strip().lower().startswith("edge cases")
        elif c.hidden and not edge and "nbdev_export" not in c.source:
            if not all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in c.tree().body): yield nb.found("hidden", c)


def check_code(nb):
    "Lengths, imports, exceptions, dead code"
    long_ok = 0
    for c in nb.code:
        for i, line in enumerate(c.source.splitlines(), 1):
            if len(line) > MAX["line"]: yield nb.found("line-length", c, f"line {i} has {len(line)}")
        n = len(c.lines)
        if c.exported:
            long_ok += n <= MAX["export_aim"]
            reason = any(re.match(r"#\s*long:\s*\S", s) for s in c.source.splitlines()[:2])
            if n > MAX["export"] and not reason: yield nb.found("export-length", c, f"{n} lines, at most {MAX['export']}")
        elif n > MAX["demo"] and not c.hidden and not nb.experiment and not re.search(r"^# long: \S", c.source, re.M):
            yield nb.found("demo-length", c, f"{n} lines")
        tree = c.tree()
        yield from check_imports(nb, c, tree)
        yield from check_excepts(nb, c, tree)
        for i, text in dead_code(c.plain): yield nb.found("dead-code", c, f"line {i} `{text[:50]}`")
        if re.search(r"(?<![\w./-])/(?:work|root)/", c.source): yield nb.found("source-path", c)
    exported = sum(c.exported for c in nb.code)
    if exported and long_ok < .9*exported: yield nb.found("export-lengths", text=f"{exported - long_ok} of {exported} are longer")


def check_imports(nb, c, tree):
    "Star imports, and cells that import and do"
    imports = [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    for s in ast.walk(tree):
        if isinstance(s, ast.ImportFrom) and any(a.name == "*" for a in s.names):
            if s.module != "fastcore.test" or not c.hidden: yield nb.found("star", c, f"from {s.module} import *")
    rest = [s for s in tree.body if s not in imports and not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    if c.exported and imports and rest: yield nb.found("import-cell", c)


def check_excepts(nb, c, tree):
    "Bare, blanket and silent handlers"
    for h in (x for x in ast.walk(tree) if isinstance(x, ast.ExceptHandler)):
        names = {n.id for n in ast.walk(h.type) if isinstance(n, ast.Name)} if h.type else {"(bare)"}
        raises = any(isinstance(x, ast.Raise) for x in ast.walk(h))
        if names & {"(bare)", "Exception", "BaseException"} and not raises: yield nb.found("except", c, f"except {' '.join(sorted(names))}")
        elif c.exported and len(h.body) == 1 and isinstance(h.body[0], ast.Pass): yield nb.found("swallow", c, f"line {h.lineno}")


CODE = (ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.Return, ast.Delete, ast.Assert, ast.Raise, ast.For, ast.If, ast.While,
        ast.With, ast.FunctionDef, ast.ClassDef)


def dead_code(source):
    "(line, text) of comments of their own that parse as statements; a lone word or a note such as `shape: (B,D)` does not"
    for i, line in enumerate(source.splitlines(), 1):
        m = re.match(r"\s*#(?!\||!)\s*(.+)", line)
        if not m: continue
        text = m[1].strip()
        try: body = ast.parse(text + (" pass" if text.endswith(":") else "")).body
        except (SyntaxError, ValueError): continue
        if any(isinstance(s, CODE) or isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) for s in body): yield i, text


def check_docs(nb):
    "Docstrings and docments of what is exported"
    for c in nb.code:
        if not c.exported: continue
        tops, methods = public_defs(c.tree())
        notes = comments(c.plain)
        for node in tops + methods:
            doc = ast.get_docstring(node)
            if node.name != "__init__" and node in tops and not doc: yield nb.found("docstring", c, f"`{node.name}` has none")
            if doc and "\n" in doc.strip(): yield nb.found("docstring", c, f"that of `{node.name}` has {len(doc.splitlines())} lines")
            if isinstance(node, ast.ClassDef): continue
            missing, strict = undocumented(node, notes), node in tops or node.name == "__init__"
            if missing: yield nb.found("docments" if strict else "docments-method", c, f"`{node.name}` lacks {', '.join(missing)}")


def undocumented(node, notes):
    "Parameters that have neither a trailing comment on a line of their own nor a mention in backticks in the docstring"
    a = node.args
    args = [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]
    args = [x for x in args if x.arg not in ("self", "cls")]
    missing = []
    for i, x in enumerate(args):
        end = args[i + 1].lineno if i + 1 < len(args) else node.body[0].lineno
        if not any(n in notes for n in range(x.lineno, end)): missing.append(x.arg)
    doc = ast.get_docstring(node) or ""
    return [m for m in missing if not re.search(rf"`[^`]*\b{re.escape(m)}\b[^`]*`", doc)]


def check_used(nb):
    "Each public function or class appears in a visible cell that is not exported"
    seen = set()
    for c in nb.code:
        if c.exported or c.hidden: continue
        for n in ast.walk(c.tree()):
            if isinstance(n, ast.Name): seen.add(n.id)
            elif isinstance(n, ast.Attribute): seen.add(n.attr)
            elif isinstance(n, ast.alias): seen.add(n.name.split(".")[-1])
    for c in nb.code:
        if not c.exported: continue
        for node in public_defs(c.tree())[0]:
            if node.name not in seen: yield nb.found("used", c, f"`{node.name}`")


def check_outputs(nb):
    "Size and content of what is stored"
    if "widgets" in nb.raw.get("metadata", {}): yield nb.found("widget-state")
    if nb.experiment:
        for c in nb.code:
            if c.outputs or c.raw.get("execution_count"): yield nb.found("experiment-output", c)
        return
    if nb.size > MAX["nb_kb"]*1024: yield nb.found("notebook-size", text=f"{nb.size//1024} KB")
    if len(nb.code) > 3 and not any(c.outputs for c in nb.code): yield nb.found("no-output")
    for c in nb.code:
        size = len(json.dumps(c.outputs))
        if size > MAX["cell_kb"]*1024: yield nb.found("output-size", c, f"{size//1024} KB")
        for out in c.outputs:
            if out["output_type"] == "error": yield nb.found("output-error", c, out.get("ename", ""))
            if "application/vnd.jupyter.widget-view+json" in out.get("data", {}): yield nb.found("widget-state", c)
            texts = [out.get("text", ""), *[v for k, v in out.get("data", {}).items() if k.startswith("text/") or k.endswith("xml")]]
            for t in texts:
                m = MACHINE.search(t if isinstance(t, str) else "".join(t))
                if m: yield nb.found("output-path", c, m[0])


def check_experiment(nb):
    "The cell that papermill fills in"
    cells = [c for c in nb.cells if "parameters" in c.tags]
    if len(cells) != 1: yield nb.found("parameters", text=f"{len(cells)} cells carry the tag"); return
    body = cells[0].tree().body
    bad = [ast.unparse(s) for s in body if not plain_assignment(s)]
    if bad: yield nb.found("parameters", cells[0], f"`{bad[0][:60]}`")
    if len(body) > MAX["params"]: yield nb.found("parameters", cells[0], f"{len(body)} parameters")


def plain_assignment(s):
    "True for `name = number, string, bool or None`"
    if not (isinstance(s, ast.Assign) and len(s.targets) == 1 and isinstance(s.targets[0], ast.Name)): return False
    v = s.value.operand if isinstance(s.value, ast.UnaryOp) and isinstance(s.value.op, ast.USub) else s.value
    return isinstance(v, ast.Constant)


def check_order(nbs, package):
    "Exported code imports only from notebooks with lower numbers"
    number = {nb.module: nb.path.name[:2] for nb in nbs if nb.numbered and nb.module}
    for nb in (n for n in nbs if n.numbered and n.module):
        for c in nb.code:
            if not c.exported: continue
            for s in ast.walk(c.tree()):
                if isinstance(s, ast.ImportFrom): names = [s.module, *[f"{s.module}.{a.name}" for a in s.names]]
                elif isinstance(s, ast.Import): names = [a.name for a in s.names]
                else: continue
                for name in names:
                    low = number.get((name or "").removeprefix(package + "."))
                    if name and name.startswith(package + ".") and low and low >= number[nb.module]:
                        yield nb.found("order", c, f"{number[nb.module]} imports {name} ({low})")


def check_modules(root, package):
    "Every module names a notebook that exists"
    for path in sorted((root/package).rglob("*.py")):
        if path.name in ("__init__.py", "_modidx.py"): continue
        m = re.search(r"File to edit: (\S+?\.ipynb)", path.read_text(encoding="utf-8")[:500])
        where = path.relative_to(root).as_posix()
        if not m: yield Finding("orphan", where, text="no `File to edit` line")
        elif not (path.parent/m[1]).resolve().exists(): yield Finding("orphan", where, text=m[1])


def check_notebook(nb):
    "All rules for one notebook"
    for c in nb.cells:
        if MARKER.search(c.source): yield nb.found("merge", c)
    broken = False
    for c in nb.code:
        try: c.tree()
        except SyntaxError as e:
            broken = True
            yield nb.found("syntax", c, f"line {e.lineno}: {e.msg}")
    yield from check_shape(nb)
    yield from check_outputs(nb)
    if broken: return
    if nb.experiment: yield from check_experiment(nb)
    yield from check_code(nb)
    if nb.numbered:
        yield from check_hidden(nb)
        yield from check_docs(nb)
        yield from check_used(nb)


def notebooks(root):
    "All notebooks under `nbs`, checkpoints and names starting with `_` or `.` left out"
    return sorted(p for p in (root/"nbs").rglob("*.ipynb") if not any(q[0] in "._" for q in p.relative_to(root).parts))


def check(root=ROOT, paths=None, package="reid_lab"):
    "Findings for `paths` (default: all), then those that concern the library as a whole"
    loaded, out = [], []
    for path in notebooks(root):
        try: loaded.append(Notebook(path, root))
        except (json.JSONDecodeError, KeyError, UnicodeDecodeError) as e:
            out.append(Finding("json", path.relative_to(root).as_posix(), text=f"{type(e).__name__} {e}"[:80]))
    wanted = {Path(p).resolve() for p in paths or []}
    for nb in loaded:
        if not wanted or nb.path.resolve() in wanted: out += list(check_notebook(nb))
    out += [f for f in check_order(loaded, package) if not wanted or (root/f.where).resolve() in wanted]
    if not wanted: out += list(check_modules(root, package))
    return out


def main(args):
    "Print what was found; 1 if there is an error"
    quiet = "--quiet" in args
    found = check(paths=[a for a in args if not a.startswith("-")])
    for f in found:
        if f.error or not quiet: print(f)
    n = Counter(f.error for f in found)
    print(f"{n[True]} errors, {n[False]} warnings in {len(notebooks(ROOT))} notebooks")
    return int(n[True] > 0)


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
