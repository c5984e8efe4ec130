"""The page on papers and released programs: every row is complete, every switch it names exists"""
import ast
import functools
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest
from helpers.released_rows import ROWS

TESTS = Path(__file__).resolve().parents[1]
PAGE = Path(__file__).resolve().parents[2]/"nbs"/"docs"/"01_released_programs.ipynb"
pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="needs the source tree")
COLUMNS = ["what", "paper", "released program", "default here", "switch"]
SECTIONS = ["Losses and negatives", "Tasks and meta-learning (CAMeL)", "Meta-learning (DMG-Net)", "Schedules",
            "Images and augmentation",
            "Backbones", "Evaluation and metrics", "Adaptation", "Text"]


# --- reading the page -------------------------------------------------------------------------------------------------

def markdown():
    "All text of the page"
    cells = json.loads(PAGE.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


def sections(text):
    "Section -> rows of its tables, each a list of cells; the two lines above the rows included"
    parts = re.split(r"^## (.+)$", text, flags=re.M)
    return {name: [[c.strip() for c in line.strip().strip("|").split("|")]
                   for line in body.splitlines() if line.startswith("|")]
            for name, body in zip(parts[1::2], parts[2::2])}


def place(node):
    "Dotted name of a name or an attribute, as a list"
    if isinstance(node, ast.Name): return [node.id]
    if isinstance(node, ast.Attribute): return [*place(node.value), node.attr]
    raise ValueError(f"{ast.unparse(node)} is no dotted name")


@functools.cache
def find(path):
    "(object, its module) of a dotted name relative to the package"
    names = path.split(".")
    for n in range(len(names) - 1, 0, -1):
        try: module = importlib.import_module(".".join(["reid_lab", *names[:n]]))
        except ModuleNotFoundError as e:
            if not e.name.startswith("reid_lab"): raise
            continue
        return functools.reduce(getattr, names[n:], module), module
    raise ValueError(f"{path} begins with no module")


def parameters(thing):
    "Names that a call takes; of a class with `**kw`, those of its bases too"
    found = inspect.signature(thing).parameters
    names = {k for k, p in found.items() if p.kind is not p.VAR_KEYWORD}
    if inspect.isclass(thing) and len(found) > len(names):
        for base in thing.__mro__[1:-1]: names |= set(inspect.signature(base).parameters)
    return names


def knows(thing, module, value):
    "Whether a value stands in the code of a name: in quotes, or as a key of `dict(...)`; bases of a class included"
    text = re.escape(value) if isinstance(value, str) else ""
    modules = {module, *(inspect.getmodule(base) for base in getattr(thing, "__mro__", ()))}
    ours = [one for one in modules if one.__name__.startswith("reid_lab")]
    return any(re.search(f"['\"`]{text}['\"`]|\\b{text}=", inspect.getsource(one)) for one in ours)


def problem(switch):
    "What is wrong with one switch, or nothing"
    try:
        node = ast.parse(re.sub(r"=(?=\s*[,)])", "=...", switch), mode="eval").body
        named = node.func if isinstance(node, ast.Call) else node.value if isinstance(node, ast.Subscript) else node
        thing, module = find(".".join(place(named)))
    except (SyntaxError, ValueError, AttributeError) as e: return f"{switch}: {e}"
    if isinstance(node, ast.Subscript):
        return None if ast.literal_eval(node.slice) in thing else f"{switch}: no such entry"
    if not isinstance(node, ast.Call): return None
    if node.args: return f"{switch}: name the parameters"
    lost = sorted({k.arg for k in node.keywords} - parameters(thing))
    if lost: return f"{switch}: takes no {lost}"
    for value in (k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)):
        if not knows(thing, module, value): return f"{switch}: {module.__name__} knows no {value!r}"
    return None


def switches(cell): return re.findall(r"`([^`]+)`", cell)


def problems(text, least=4):
    "All that is wrong with the tables of a text"
    out = []
    for name, head in sections(text).items():
        if head[:1] != [COLUMNS] or not all(re.fullmatch("-+", c) for c in head[1]):
            out.append(f"{name}: columns {head[:1]}")
        rows = head[2:]
        if len(rows) < least: out.append(f"{name}: {len(rows)} rows")
        for row in rows:
            at = f"{name}, {row[0]}"
            if len(row) != len(COLUMNS) or not all(row):
                out.append(f"{at}: {len(row)} cells or an empty one")
                continue
            found = switches(row[4])
            why = re.search(r"not offered([:,] \w+.*)?", row[4])
            if why and not why[1]: out.append(f"{at}: not offered, but why?")
            if not found and not why: out.append(f"{at}: neither a switch nor 'not offered: reason'")
            out += [f"{at}: {p}" for p in map(problem, found) if p]
    return out


# --- the test behind each row -----------------------------------------------------------------------------------------

def words(cell):
    "What the switches of a cell are called: names, parameters, values"
    out = set()
    for switch in switches(cell):
        name = re.match(r"[\w.]+", switch)[0]
        out |= {name.rpartition(".")[2], *re.findall(r"(\w+)=", switch), *re.findall(r"'([^']+)'", switch)}
    return out


@functools.cache
def functions(path):
    "Text of a test file, and of its tests by name"
    text = path.read_text(encoding="utf-8")
    found = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]
    return text, {node.name for node in found if node.name.startswith("test_")}


def untested(text, rows=ROWS):
    "What is wrong with the tests of the rows of a text: there is none, or its file uses no switch of the row"
    out = []
    for name, (_, _, *lines) in sections(text).items():
        named = rows.get(name, {})
        out += [f"{name}, {row}: no such row" for row in named.keys() - {cells[0] for cells in lines}]
        for row, *_, cell in lines:
            at, (file, _, test) = f"{name}, {row}", named.get(row, "").partition("::")
            if not file:
                out.append(f"{at}: no test")
                continue
            if not (TESTS/file).is_file():
                out.append(f"{at}: no file {file}")
                continue
            source, tests = functions(TESTS/file)
            if test not in tests: out.append(f"{at}: {file} has no {test}")
            if words(cell) and not any(re.search(rf"\b{re.escape(w)}\b", source) for w in words(cell)):
                out.append(f"{at}: {file} names none of {sorted(words(cell))}")
    return out + [f"{name}: no such section" for name in rows.keys() - sections(text).keys()]


def test_every_row_has_a_test_that_uses_its_switch(): assert untested(markdown()) == []


@pytest.mark.parametrize("rows, message", [
    ({}, "no test"), ({"Part": {"ties": "retrieval/test_metrik.py::test_x"}}, "no file"),
    ({"Part": {"ties": "retrieval/test_metrics.py::test_x"}}, "has no test_x"),
    ({"Part": {"ties": "retrieval/test_metrics.py::naive"}}, "has no naive"),
    ({"Part": {"ties": "models/test_bot.py::test_neck_and_head"}}, "names none of ['Scoring', 'expected', "),
    ({"Part": {"ties": "retrieval/test_metrics.py::test_msd_oracle", "tie": "x"}}, "no such row"),
    ({"Part": {"ties": "retrieval/test_metrics.py::test_msd_oracle"}, "Parts": {}}, "no such section")])
def test_a_row_without_its_test_is_found(rows, message):
    found = untested(page("`retrieval.metrics.Scoring(ties='expected')`"), rows)
    assert len(found) == 1 and message in found[0]


# --- the page ---------------------------------------------------------------------------------------------------------

def test_the_page_has_its_sections_and_every_switch_exists():
    found = sections(markdown())
    assert list(found) == SECTIONS
    assert sum(len(rows) - 2 for rows in found.values()) >= 100
    assert problems(markdown()) == []


def test_no_row_comes_twice_and_inference_is_explained():
    text = markdown()
    for name, rows in sections(text).items():
        what = [r[0] for r in rows[2:]]
        assert len(set(what)) == len(what), name
    assert re.search(r"\*\*\[I\]\*\* marks an inference", text)


# --- the check itself -------------------------------------------------------------------------------------------------

GOOD = ["`tta.dart3.Dart3(bn_mode='batch')`",
        "`retrieval.metrics.Scoring(ties='expected')`",
        "`recipes.camel_settings.Train(schedule='step', warmup=)`",
        "`data.augment.AUGMENT['bot_released']`",
        "`tta.gradient.Tent(norm_kinds=)`",
        "not offered: no source asks for it",
        "`models.backbones.PixelNorm.set_stats(mean=, std=)`",
        "`meta.dual_speed.ReleasedDualSpeed`"]
BAD = {"`metrics.metrics_of_similarity(ties=)`": "no attribute 'metrics_of_similarity'",
       "`metrix.msd(legacy=)`": "begins with no module",
       "`retrieval.metrics.msd(legacies=)`": "takes no ['legacies']",
       "`recipes.camel_settings.Train(schedules=)`": "takes no ['schedules']",
       "`tta.gradient.Tent(norm_kind=)`": "takes no ['norm_kind']",
       "`training.schedules.lr_irra_cosine(form='relesed')`": "knows no 'relesed'",
       "`data.augment.AUGMENT['bot_relesed']`": "no such entry",
       "`tta.dart3.Dart3(optimiser='sdg')`": "knows no 'sdg'",
       "`models.backbones.PixelNorm.set_stat(mean=)`": "no attribute 'set_stat'",
       "not offered": "but why?",
       "the same": "neither a switch",
       "`metrics`": "begins with no module",
       "": "an empty one"}


def page(switch): return "\n".join(["## Part", "", "| " + " | ".join(COLUMNS) + " |", "|---|---|---|---|---|",
                                    f"| ties | not stated | by order | by order | {switch} |"])


@pytest.mark.parametrize("switch", GOOD)
def test_a_switch_that_exists_passes(switch): assert problems(page(switch), least=1) == []


@pytest.mark.parametrize("switch", BAD)
def test_a_misspelt_switch_is_found(switch):
    found = problems(page(switch), least=1)
    assert len(found) == 1 and BAD[switch] in found[0]


def test_too_few_rows_and_other_columns_are_found():
    assert problems(page(GOOD[0])) == ["Part: 1 rows"]
    assert "columns" in problems(page(GOOD[0]).replace("| what |", "| which |"), least=1)[0]
    short = page(GOOD[0]).replace("| by order | by order |", "| by order |")
    assert "4 cells" in problems(short, least=1)[0]
