"""House rules that a program can check, over the JSON of notebooks and the syntax trees of their code and of scripts.

    python tools/check_nbs.py                 # notebooks under nbs/, modules under reid_lab/, scripts in SCRIPTS
    python tools/check_nbs.py nbs/03_world/*   # some notebooks or scripts
    python tools/check_nbs.py --quiet         # errors only

Each finding names the file, the cell of a notebook (counted from 1) or the line of a script, the rule and what to do.
Errors end with exit code 1; warnings are advice. Which kind a rule is stands in `RULES`.
"""
import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from layout import AT_ROOT, NUMBERED, module_of, order  # noqa: E402 - a sibling of this file

ROOT = Path(__file__).resolve().parents[1]

RULES = {  # rule -> (severity, remedy)
    "json": ("error", "the file is not a notebook; `nbdev_fix FILE` repairs one with merge markers"),
    "syntax": ("error", "this does not parse; correct it"),
    "merge": ("error", "finish the merge; no line may start with a merge marker"),
    "title": ("error", "make the first cell markdown with exactly `# Title` and `> one line` of at most 90 characters"),
    "default-exp": ("error", "give a numbered notebook exactly one `#| default_exp module`, in its second cell"),
    "name": ("error", "put `default_exp package.module` into nbs/NN_package/NN_module.ipynb, NN being two digits"),
    "order": ("error", "import only from notebooks with lower (folder, number), or move one (tools/move.py)"),
    "number": ("error", "give each notebook and folder of a folder a number of its own"),
    "namesake": ("error", "give it another number: failures are reported by the file's name without its folder"),
    "line-length": ("error", "break the line at 120 characters"),
    "docstring": ("error", "give every public function and class a docstring of one line"),
    "docments": ("error", "put each parameter on a line of its own with a trailing comment"),
    "docments-method": ("warning", "put each parameter on a line of its own with a trailing comment"),
    "hidden-share": ("error", "show more: at most 15 % of the code cells may be hidden (two always may)"),
    "hidden": ("error", "hide only imports, cells under `## Edge cases` and the export call"),
    "star": ("error", "import names explicitly; only `from fastcore.test import *` may star, hidden"),
    "import-cell": ("error", "put imports into exported cells of their own: documentation tools run cells that import"),
    "except": ("error", "name the exceptions that can happen, or re-raise"),
    "swallow": ("warning", "say in a comment why the exception does not matter, or handle it"),
    "dead-code": ("error", "delete code that is commented out"),
    "output-size": ("error", "keep a cell's outputs under 60 KB: smaller figures, JPEG for photographs"),
    "notebook-size": ("error", "keep a library notebook under 300 KB"),
    "output-error": ("error", "the stored run failed; correct the cell and run the notebook again"),
    "output-path": ("error", "print no absolute paths of a machine"),
    "source-path": ("error", "write no absolute paths of a machine"),
    "no-output": ("error", "run the notebook and store its outputs (`make notebooks`)"),
    "widget-state": ("error", "drop the saved widget state (`make notebooks`)"),
    "last-cell": ("error", "end a library notebook with a hidden `import nbdev; nbdev.nbdev_export()`"),
    "exports": ("error", "delete the cell: only library notebooks export, others run while tests read the modules"),
    "parameters": ("error", "give an experiment one cell tagged `parameters` with at most 18 plain scalar assignments"),
    "experiment-output": ("error", "store experiments without outputs (`jupyter nbconvert --clear-output --inplace`)"),
    "used": ("error", "call every public function and class in a visible cell of its notebook; naming it is no use"),
    "weak-assert": ("error", "assert a value, not only a type or that something is there"),
    "vacuous": ("error", "an assertion that cannot fail checks nothing: assert what may be wrong"),
    "no-assert": ("error", "let every test assert a value, expect an error or call a helper that does"),
    "raises": ("error", "expect a named exception: any failure at all satisfies this one"),
    "module-docstring": ("error", "say in a docstring at the top what the file is for"),
    "orphan": ("error", "the module names no existing notebook: delete it, or restore the notebook and export"),
    "prose": ("warning", "one markdown cell for every three code cells"),
    "eval-false": ("error", "at most 3 % of the code cells may be `eval: false`, each saying why in a comment"),
}
MAX = dict(line=120, hidden=.15, hidden_free=2, cell_kb=60, nb_kb=300, params=18,
           title=90)
SCRIPTS = ("tests", "benchmarks", "tools")
FOLDERS = ("experiments", "tutorials", "docs")      # folders of notebooks that export nothing
MACHINE = re.compile(r"(?<![\w./-])/(?:work|root|tmp|home|Users)/[\w.-]+")
MARKER = re.compile(r"^`{0,2}(?:<{7}|>{7})(?: |$|`)", re.M)


@dataclass(frozen=True)
class Finding:
    "One broken rule"
    rule: str
    where: str
    cell: int = 0
    text: str = ""
    line: int = 0

    @property
    def error(self): return RULES[self.rule][0] == "error"

    def __str__(self):
        at = self.where + (f", cell {self.cell}" if self.cell else f":{self.line}" if self.line else "")
        said = f"{self.text}: {RULES[self.rule][1]}" if self.text else RULES[self.rule][1]
        return f"{'ERROR' if self.error else 'warn '} {at} [{self.rule}] {said}"


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

    @cached_property
    def lines(self): return [s for s in self.source.splitlines() if not s.startswith("#|")]

    @cached_property
    def plain(self):
        "Python without cell magics and shell lines"
        if self.source.lstrip().startswith("%%"): return ""
        return "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", s) for s in self.source.splitlines())

    @cached_property
    def _tree(self): return ast.parse(self.plain)

    def tree(self): return self._tree


class Notebook:
    "A notebook and its place in the library"
    def __init__(self, path, root):
        self.path, self.where = path, path.relative_to(root).as_posix()
        self.size = path.stat().st_size
        self.raw = json.loads(path.read_text(encoding="utf-8"))
        self.cells = [Cell(i, c) for i, c in enumerate(self.raw["cells"], 1)]
        self.code = [c for c in self.cells if c.kind == "code" and c.lines]
        self.experiment = path.parent.name == "experiments"
        self.place = path.relative_to(root/"nbs")
        self.numbered = len(self.place.parts) > 1 and all(NUMBERED.match(part) for part in self.place.parts)
        self.numbered = self.numbered and self.place.parts[0] not in FOLDERS
        exp = [(c, m) for c in self.code for m in re.findall(r"^#\|\s*default_exp\s+(\S+)", c.source, re.M)]
        exp += [(c, m) for c in self.cells if c.kind == "code" and not c.lines
                for m in re.findall(r"^#\|\s*default_exp\s+(\S+)", c.source, re.M)]
        self.default_exp = exp

    @property
    def module(self): return self.default_exp[0][1] if self.default_exp else None

    def found(self, rule, cell=None, text=""): return Finding(rule, self.where, cell.n if cell else 0, text)


def walk(node):
    "All nodes below one and itself, as of `ast.walk`; the list is kept with the node, since each rule goes through it"
    if not hasattr(node, "below"): node.below = list(ast.walk(node))
    return node.below


def public_defs(tree):
    "Public functions and classes at the top of a cell, and (class, method) pairs, `@patch` methods included"
    tops, methods = [], []
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)): continue
        patched = any("patch" in ast.unparse(d) for d in node.decorator_list)
        if node.name.startswith("_") and not (patched and node.name == "__init__"): continue
        (methods if patched else tops).append(node)
        if isinstance(node, ast.ClassDef):
            methods += [m for m in node.body if isinstance(m, ast.FunctionDef)
                        and (m.name == "__init__" or not m.name.startswith("_"))]
    return tops, methods


@lru_cache(64)      # of a cell several rules ask
def comments(source):
    "Line number -> comment, for lines with code before the comment too"
    out = {}
    for t in tokenize.generate_tokens(io.StringIO(source).readline):
        if t.type == tokenize.COMMENT: out[t.start[0]] = t.string
    return out


# --- what an assertion says -------------------------------------------------------------------------------------------

TYPES = {"isinstance", "issubclass", "callable", "hasattr"}
FASTCORE = {"test_eq", "test_ne", "test_is", "test_close", "test_fail", "test_eq_type", "test_stdout", "test_warns",
            "test_shuffled"}
LITERAL = (ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.Compare, ast.expr_context,
           ast.unaryop, ast.operator, ast.cmpop)


def last_name(node):
    "`c` of `c`, `a.b.c` and `a.b.c(x)`; of anything else nothing"
    if isinstance(node, ast.Call): node = node.func
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def over(call):
    "What `all(x for ...)` or `any([...])` asks of each element"
    inner = call.args[0] if last_name(call) in ("all", "any") and len(call.args) == 1 else None
    return inner.elt if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) else None


def vacuous(test):
    "True if an assertion of this expression cannot fail"
    if isinstance(test, (ast.Lambda, ast.GeneratorExp)): return True
    if isinstance(test, (ast.Tuple, ast.List, ast.Set)): return bool(test.elts)
    if isinstance(test, ast.Dict): return bool(test.keys)
    if isinstance(test, ast.BoolOp): return (any if isinstance(test.op, ast.Or) else all)(map(vacuous, test.values))
    if isinstance(test, ast.IfExp): return vacuous(test.body) or vacuous(test.orelse)
    if isinstance(test, ast.Call) and over(test): return vacuous(over(test))
    if isinstance(test, ast.Constant): return bool(test.value)     # `assert False` always fails
    if all(isinstance(n, LITERAL) for n in walk(test)): return True
    if not isinstance(test, ast.Compare) or len(test.ops) > 1: return False
    left, op, right = test.left, test.ops[0], test.comparators[0]
    if last_name(left) == "len" and ast.unparse(right) == "0": return isinstance(op, ast.GtE)
    same = ast.dump(left) == ast.dump(right) and not any(isinstance(n, ast.Call) for n in walk(left))
    return same and isinstance(op, (ast.Eq, ast.Is, ast.LtE, ast.GtE))


def weak(test):
    "True if an assertion of this expression only asks for a type, or that something is there"
    if isinstance(test, ast.BoolOp): return (any if isinstance(test.op, ast.Or) else all)(map(weak, test.values))
    if isinstance(test, ast.Call): return last_name(test) in TYPES or bool(over(test)) and weak(over(test))
    if not isinstance(test, ast.Compare): return False
    return isinstance(test.ops[-1], ast.IsNot) and ast.unparse(test.comparators[-1]) == "None"


def telling(test):
    "True if an assertion of this expression pins a value down"
    if isinstance(test, ast.BoolOp): return (all if isinstance(test.op, ast.Or) else any)(map(telling, test.values))
    return not (vacuous(test) or weak(test) or isinstance(test, ast.Name))


def checks(tree, helpers=()):
    "True if something in `tree` asserts a value: a statement, a function of a test library, or one of `helpers`"
    for n in walk(tree):
        if isinstance(n, ast.Assert) and telling(n.test): return True
        if isinstance(n, ast.Call) and asserting(last_name(n), helpers): return True
    return False


def asserting(name, helpers=()):
    "True for the name of a function that fails when something is wrong"
    return name in FASTCORE or name in helpers or name.startswith("assert_") or name in ("raises", "warns")


def check_asserts(where, tree):
    "Assertions that cannot fail, and those that only ask for a type; `where(rule, line, text)` makes the finding"
    for n in walk(tree):
        if not isinstance(n, ast.Assert): continue
        if vacuous(n.test): yield where("vacuous", n.lineno, f"`{ast.unparse(n.test)[:60]}`")
        elif weak(n.test): yield where("weak-assert", n.lineno, f"`{ast.unparse(n.test)[:60]}`")


# --- the rules --------------------------------------------------------------------------------------------------------

def check_shape(nb):
    "Title, module name, place of the export call, prose, hidden cells"
    first = nb.cells[0] if nb.cells else None
    title = first.source.strip().split("\n") if first and first.kind == "markdown" else []
    size = len(title[1]) - 2 if len(title) == 2 else 0
    if not size or not re.match(r"# \S", title[0]) or not re.match(r"> \S", title[1]) or size > MAX["title"]:
        yield nb.found("title", first, f"{size} characters" if size > MAX["title"] else "")
    if nb.numbered:
        if len(nb.default_exp) != 1 or nb.default_exp[0][0].n != 2:
            yield nb.found("default-exp", text=f"{len(nb.default_exp)} found")
        if nb.module and module_of(nb.place) != nb.module: yield nb.found("name", text=f"default_exp {nb.module}")
        last = nb.cells[-1]
        if not (last.hidden and "nbdev_export()" in last.source): yield nb.found("last-cell", last)
    else:
        for c in nb.code:
            if "nbdev_export()" in c.source: yield nb.found("exports", c)
    n_md = sum(c.kind == "markdown" for c in nb.cells)
    if nb.code and 3*n_md < len(nb.code): yield nb.found("prose", text=f"{n_md} markdown, {len(nb.code)} code cells")
    off = [c for c in nb.code if re.search(r"^#\|\s*eval:\s*false", c.source, re.M)]
    if len(off) > max(1, .03*len(nb.code)): yield nb.found("eval-false", text=f"{len(off)} of {len(nb.code)}")
    for c in off:
        if not any(s.lstrip().startswith("#") for s in c.lines): yield nb.found("eval-false", c, "no reason given")


def check_hidden(nb):
    "What may be hidden, and how much"
    hidden = [c for c in nb.code if c.hidden and "nbdev_export" not in c.source]
    if len(hidden) > max(MAX["hidden_free"], MAX["hidden"]*len(nb.code)):
        yield nb.found("hidden-share", text=f"{len(hidden)} of {len(nb.code)}, {len(hidden)/len(nb.code):.0%}")
    edge = False
    for c in nb.cells:
        if c.kind == "markdown":
            for head in re.findall(r"^#{1,3} +(.+)", c.source, re.M):
                edge = head.strip().lower().startswith("edge cases")
        elif c.hidden and not edge and "nbdev_export" not in c.source:
            if not all(isinstance(s, (ast.Import, ast.ImportFrom)) for s in c.tree().body): yield nb.found("hidden", c)


def check_code(nb):
    "Imports, exceptions, dead code, assertions"
    for c in nb.code:
        tree = c.tree()
        yield from check_imports(nb, c, tree)
        where = lambda rule, i, text, c=c: nb.found(rule, c, f"line {i} {text}".strip())
        yield from check_text(where, c.source, c.plain)
        yield from check_excepts(where, tree, silent=c.exported)
        if not c.exported: yield from check_asserts(where, tree)
        if re.search(r"(?<![\w./-])/(?:work|root)/", c.source): yield nb.found("source-path", c)


def check_imports(nb, c, tree):
    "Star imports, and cells that import and do"
    imports = [s for s in tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]
    for s in stars(tree):
        if s.module != "fastcore.test" or not c.hidden: yield nb.found("star", c, f"from {s.module} import *")
    rest = [s for s in tree.body if s not in imports and not is_text(s)]
    if c.exported and imports and rest: yield nb.found("import-cell", c)


def is_text(s): return isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant)


def stars(tree):
    "Imports of everything"
    return [s for s in walk(tree) if isinstance(s, ast.ImportFrom) and any(a.name == "*" for a in s.names)]


def check_text(where, source, plain):
    "Long lines and code that is commented out"
    for i, line in enumerate(source.splitlines(), 1):
        if len(line) > MAX["line"]: yield where("line-length", i, f"has {len(line)}")
    for i, text in dead_code(plain): yield where("dead-code", i, f"`{text[:50]}`")


def check_excepts(where, tree, silent=False):
    "Bare and blanket handlers, and where `silent` those that do nothing"
    for h in (x for x in walk(tree) if isinstance(x, ast.ExceptHandler)):
        names = {last_name(n) for n in walk(h.type) if last_name(n)} if h.type else {"(bare)"}
        raises = any(isinstance(x, ast.Raise) for x in walk(h))
        if names & {"(bare)", "Exception", "BaseException"} and not raises:
            yield where("except", h.lineno, f"except {' '.join(sorted(names))}")
        elif silent and len(h.body) == 1 and isinstance(h.body[0], ast.Pass): yield where("swallow", h.lineno, "")


CODE = (ast.Assign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.Return, ast.Delete, ast.Assert, ast.Raise, ast.For,
        ast.If, ast.While, ast.With, ast.FunctionDef, ast.ClassDef)


def dead_code(source):
    "(line, text) of comments of their own that parse as statements; a lone word or `shape: (B,D)` does not"
    if not re.search(r"^\s*#(?![|!])", source, re.M): return
    lines = source.splitlines()
    for i, comment in comments(source).items():
        m = re.match(r"#(?!\||!)\s*(.+)", comment)
        if not m or not lines[i - 1].lstrip().startswith("#"): continue
        text = m[1].strip()
        try: body = ast.parse(text + (" pass" if text.endswith(":") else "")).body
        except (SyntaxError, ValueError): continue
        calls = [s for s in body if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call)]
        if calls or any(isinstance(s, CODE) for s in body): yield i, text


def check_docs(nb):
    "Docstrings and docments of what is exported"
    for c in nb.code:
        if not c.exported: continue
        tops, methods = public_defs(c.tree())
        notes = comments(c.plain)
        for node in tops + methods:
            doc = ast.get_docstring(node)
            name, lines = f"`{node.name}`", len((doc or "").strip().splitlines())
            if node.name != "__init__" and node in tops and not doc: yield nb.found("docstring", c, f"{name} has none")
            if lines > 1: yield nb.found("docstring", c, f"that of {name} has {lines} lines")
            if isinstance(node, ast.ClassDef): continue
            missing, strict = undocumented(node, notes), node in tops or node.name == "__init__"
            rule = "docments" if strict else "docments-method"
            if missing: yield nb.found(rule, c, f"{name} lacks {', '.join(missing)}")


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


def demos(nb): return [c for c in nb.code if not c.exported and not c.hidden]


def used_names(tree):
    "(names that are called, names that are read) in a cell; a type check, an import and `f.__doc__` use nothing"
    calls = [n for n in walk(tree) if isinstance(n, ast.Call)]
    called = {n.func.id for n in calls if isinstance(n.func, ast.Name)}     # a method of that name is another thing
    idle = {id(x) for n in calls if last_name(n) in TYPES for a in n.args for x in walk(a)}
    idle |= {id(n.value) for n in walk(tree) if isinstance(n, ast.Attribute) and n.attr.startswith("__")}
    for n in walk(tree):
        called |= {last_name(d) for d in [*getattr(n, "decorator_list", ()), *getattr(n, "bases", ())]}
        if isinstance(n, ast.Call) and last_name(n) in HANDS: called |= {last_name(a) for a in n.args}
        if isinstance(n, (ast.For, ast.comprehension)) and {last_name(t) for t in walk(n.target)} & called:
            called |= {last_name(x) for x in walk(n.iter)}      # for f in (one, two): f(x)
    read = {last_name(n) for n in walk(tree) if isinstance(n, (ast.Name, ast.Attribute))
            and isinstance(n.ctx, ast.Load) and id(n) not in idle}
    return called, read


HANDS = {"map", "filter", "partial", "test_fail", "interact", "raises"}     # they call the function that they are given


def has_values(cls):
    "True for dataclasses, enumerations and exceptions: what a reader does with them is read them"
    kinds = {last_name(d) for d in cls.decorator_list} | {last_name(b) for b in cls.bases}
    ends = ("dataclass", "Error", "Exception", "Warning", "Enum", "Tuple", "Dict")
    return any(k.endswith(ends) for k in kinds)


def check_used(nb):
    "Each public function and class is called, or made by a function that is, in a visible cell"
    pairs = [used_names(c.tree()) for c in demos(nb)]
    called, read = (set().union(*(p[i] for p in pairs)) for i in (0, 1))
    exported = [(c, n) for c in nb.code if c.exported for n in c.tree().body]
    for _, top in exported:
        for n in walk(top):      # what a called function returns, and what a called class is built on, is used
            if isinstance(n, ast.FunctionDef) and n.returns and n.name in called | read:
                called |= set(re.findall(r"\w+", ast.unparse(n.returns)))
    for _, n in reversed(exported):
        if isinstance(n, ast.ClassDef) and n.name in called: called |= {last_name(b) for b in n.bases}
    for c, n in exported:
        if n in public_defs(ast.Module([n], []))[0]:
            if n.name not in called and not (isinstance(n, ast.ClassDef) and has_values(n) and n.name in read):
                yield nb.found("used", c, f"`{n.name}`")


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
            data = out.get("data", {})
            for t in [out.get("text", ""), *(v for k, v in data.items() if k.startswith("text/") or k.endswith("xml"))]:
                m = MACHINE.search(t if isinstance(t, str) else "".join(t))
                if m: yield nb.found("output-path", c, m[0])


def check_experiment(nb):
    "The cell that papermill fills in"
    cells = [c for c in nb.cells if "parameters" in c.tags]
    if len(cells) != 1:
        yield nb.found("parameters", text=f"{len(cells)} cells carry the tag")
        return
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
    "Exported code imports only from notebooks with lower (folder, number)"
    place = {nb.module: nb.place for nb in nbs if nb.numbered and nb.module}
    for nb in (n for n in nbs if n.numbered and n.module):
        for c in nb.code:
            if not c.exported: continue
            for s in walk(c.tree()):
                if isinstance(s, ast.ImportFrom): names = [s.module, *[f"{s.module}.{a.name}" for a in s.names]]
                elif isinstance(s, ast.Import): names = [a.name for a in s.names]
                else: continue
                for name in names:
                    if not (name or "").startswith(package + "."): continue
                    other = place.get(name.removeprefix(package + "."))
                    if other and order(other) >= order(nb.place):
                        yield nb.found("order", c, f"imports {name} ({other})")


def check_numbers(nbs):
    "No two notebooks or folders of a folder carry the same number, and no two library notebooks the same file name"
    first, names = {}, {}
    for nb in nbs:
        parts = nb.place.parts
        for depth, part in enumerate(parts):
            m = re.match(r"\d+", part)
            if m and (other := first.setdefault((parts[:depth], m[0]), part)) != part:
                yield nb.found("number", text=f"{m[0]} is that of {other}")
        if nb.numbered and (other := names.setdefault(nb.path.name, nb)) is not nb:
            yield nb.found("namesake", text=f"{nb.path.name} is also in {other.place.parent}")


def check_modules(root, package):
    "Every module names a notebook that exists"
    for path in sorted((root/package).rglob("*.py")):
        if path.stem == "__init__" or path.parent == root/package and path.stem in AT_ROOT: continue
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


# --- scripts ----------------------------------------------------------------------------------------------------------

def check_script(path, root):
    "All rules for a Python file that is not made from a notebook"
    source, name = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
    where = lambda rule, line, text="": Finding(rule, name, text=text, line=line)
    try: tree = ast.parse(source)
    except SyntaxError as e:
        yield where("syntax", e.lineno, e.msg)
        return
    if not ast.get_docstring(tree): yield where("module-docstring", 1)
    yield from check_text(where, source, source)
    yield from check_excepts(where, tree)
    for s in stars(tree): yield where("star", s.lineno, f"from {s.module} import *")
    for i, line in enumerate(source.splitlines(), 1):
        if m := MACHINE.search(line): yield where("source-path", i, m[0])
    yield from (f for f in check_asserts(where, tree) if f.rule == "vacuous")
    for n in walk(tree):
        if isinstance(n, ast.Call) and last_name(n) == "raises": yield from check_raises(where, n)
    if path.name.startswith("test_"): yield from check_tests(where, tree)


def check_raises(where, call):
    "`pytest.raises` of any exception, or with a pattern that any message matches"
    kinds = {last_name(x) for a in [*call.args[:1], *(k.value for k in call.keywords if k.arg == "expected_exception")]
             for x in walk(a)}
    if kinds & {"Exception", "BaseException"}: yield where("raises", call.lineno, " ".join(sorted(kinds - {""})))
    for k in call.keywords:
        if k.arg == "match" and isinstance(k.value, ast.Constant) and re.search(k.value.value, ""):
            yield where("raises", call.lineno, f"match={k.value.value!r}")


def check_tests(where, tree):
    "Each test asserts a value, itself or through a helper of its file or one called check_, assert_ or test_ something"
    functions = [n for n in walk(tree) if isinstance(n, ast.FunctionDef)]
    helpers, known = {"fail"}, 0
    while len(helpers) > known:
        known = len(helpers)
        helpers |= {f.name for f in functions if checks(f, helpers)}
    for f in functions:
        if not f.name.startswith("test"): continue
        calls = {last_name(n) for n in walk(f) if isinstance(n, ast.Call)}
        if checks(f, helpers - {f.name}) or any(re.match("(check|assert|test)_", c) for c in calls): continue
        any_weak = any(isinstance(n, ast.Assert) and weak(n.test) for n in walk(f))
        yield where("weak-assert" if any_weak else "no-assert", f.lineno, f"`{f.name}`")


def scripts(root):
    "The Python files of `SCRIPTS`; what lies among test vectors is data of an earlier version"
    return sorted(p for folder in SCRIPTS for p in (root/folder).rglob("*.py") if "vectors" not in p.parts)


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
    whole = [*check_order(loaded, package), *check_numbers(loaded)]
    out += [f for f in whole if not wanted or (root/f.where).resolve() in wanted]
    for path in scripts(root):
        if not wanted or path.resolve() in wanted: out += list(check_script(path, root))
    if not wanted: out += list(check_modules(root, package))
    return out


def main(args):
    "Print what was found; 1 if there is an error"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="notebooks and scripts; none: all")
    parser.add_argument("--quiet", action="store_true", help="errors only")
    args = parser.parse_args(args)
    found = check(paths=args.paths)
    for f in found:
        if f.error or not args.quiet: print(f)
    n = Counter(f.error for f in found)
    print(f"{n[True]} errors, {n[False]} warnings in {len(notebooks(ROOT))} notebooks and {len(scripts(ROOT))} scripts")
    return int(n[True] > 0)


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
