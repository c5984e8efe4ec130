"""The comparison page: every parameter that it names exists, and every row is complete."""
import dataclasses
import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1]/"nbs"/"docs"/"01_released_programs.ipynb"
HEAD = ["what", "paper", "released program", "default here", "switch"]
SECTIONS = ("Losses and negatives", "Tasks and meta-learning (CAMeL)", "Schedules", "Images and augmentation",
            "Backbones", "Evaluation and metrics", "Adaptation", "Text")


def sections() -> dict:
    "Heading -> rows of its table"
    found = {}
    for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] != "markdown" or not text.startswith("## "): continue
        lines = [x for x in text.splitlines() if x.startswith("|")]
        found[text.splitlines()[0][3:].strip()] = [[c.strip() for c in x.strip("|").split("|")] for x in lines]
    return found


def parameters(symbol) -> set:
    "Names that a call of `symbol` takes"
    if inspect.isclass(symbol) and dataclasses.is_dataclass(symbol): return {f.name for f in dataclasses.fields(symbol)}
    names, rest = set(), True
    for one in symbol.__mro__ if inspect.isclass(symbol) else (symbol,):  # **kw of a class go to its base
        if not rest or one is object: break
        call = vars(one).get("__init__") if inspect.isclass(one) else one
        if call is None: continue
        taken = inspect.signature(call).parameters.values()
        names |= {p.name for p in taken}
        rest = any(p.kind is p.VAR_KEYWORD for p in taken)
    return names


def unresolved(text) -> list:
    "What `module.symbol(parameter=)` and `module.symbol['key']` in back-ticks name and does not exist"
    lost = []
    for quoted in re.findall(r"`([^`]+)`", text):
        m = re.fullmatch(r"([\w.]+?)(?:\((.*)\)|\[['\"](.+)['\"]\])?", quoted)
        if m is None: lost.append(quoted); continue
        path, call, key = m.groups()
        parts, owner = path.split("."), None
        for n in range(len(parts), 0, -1):
            try: owner = importlib.import_module(".".join(["reid_lab", *parts[:n]]))
            except ModuleNotFoundError: continue
            break
        for part in parts[n:] if owner else (): owner = getattr(owner, part, None)
        if owner is None or owner is importlib.import_module("reid_lab"): lost.append(quoted); continue
        if key and key not in owner: lost.append(quoted)
        named = re.findall(r"(?:^|,)\s*(\w+)\s*=", re.sub(r"\([^()]*\)", "", call or ""))
        if call and not set(named) <= parameters(owner): lost.append(quoted)
    return lost


def test_the_page_has_its_sections():
    found = sections()
    assert list(found) == list(SECTIONS)
    for name, rows in found.items():
        assert rows[0] == HEAD and len(rows) >= 6, name
        assert all(len(r) == 5 and all(r) for r in rows), [r for r in rows if len(r) != 5 or not all(r)]


@pytest.mark.parametrize("section", SECTIONS)
def test_every_switch_exists(section):
    rows = sections()[section][2:]
    assert not [(r[0], x) for r in rows for x in unresolved(r[4])]
    without = [r[0] for r in rows if "`" not in r[4] and "not offered" not in r[4]]
    assert not without, f"neither a parameter nor a reason: {without}"


@pytest.mark.parametrize("text, lost", [
    ("`data.loaders.erase(aspect='log', ratio=1/.3)`", 0), ("`recipes.camel.VARIANTS['released']`", 0),
    ("`data.loaders.erase(aspects='log')`", 1), ("`recipes.camel.VARIANTS['relased']`", 1), ("`losses.no_such`", 1),
    ("`tta.Tent(norm_kinds=(), frozen=True)` and `tta.Temp(fozen=True)`", 1)])
def test_a_misspelt_switch_is_found(text, lost):
    assert len(unresolved(text)) == lost
