"The layout that tools/layout.py measures, and the renumbering of tools/renumber.py, on this tree and on small ones."
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs").is_dir(), reason="needs the source tree")


@pytest.fixture(scope="module")
def layout(tool): return tool("layout")


@pytest.fixture(scope="module")
def renumber(tool): return tool("renumber")


# ---- this tree

def test_no_lower_number_imports_a_higher_one(layout): assert layout.upward(layout.modules()) == []


def test_every_module_is_measured(layout):
    "Each exported module belongs to a numbered notebook, and the numbers are unique"
    mods = layout.modules()
    files = {p.relative_to(ROOT/"reid_lab").with_suffix("").as_posix().replace("/", ".")
             for p in (ROOT/"reid_lab").rglob("*.py")}
    assert {m.name for m in mods} == {f for f in files if not f.endswith(("__init__", "__main__", "_modidx"))}
    assert len({m.number for m in mods}) == len(mods) and {m.area for m in mods} <= set(layout.AREAS)


def test_modules_are_small_and_decades_have_room(layout):
    mods = layout.modules()
    assert max(m.lines for m in mods) < 600
    free = {a: 10 - sum(m.area == a for m in mods) for a in layout.AREAS}
    free["1"] += free.pop("0")   # data and World share room: what 18_datasets imports fits below 10 as well
    assert min(free.values()) >= 1, free


def test_the_page_and_the_drawing_are_up_to_date(layout, capsys):
    assert layout.main(["--check"]) == 0, capsys.readouterr().out


def test_the_flow_names_notebooks_that_exist(layout):
    there = {m.number for m in layout.modules()}
    for text, (_, _, where) in layout.BOXES.items():
        first, last = (where.split(" - ")*2)[:2] if " - " in where else (None, None)
        named = where.split(", ") if first is None else [n for n in there if first <= n <= last]
        assert named and set(named) <= there, text
    assert {t for pair in layout.ARROWS for t in pair.split(" > ")} == set(layout.BOXES)


# ---- small trees

def notebook(cells): return json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5), indent=1)


def code(text):
    return dict(cell_type="code", metadata={}, source=text.splitlines(keepends=True), outputs=[], execution_count=None)


def text(t): return dict(cell_type="markdown", metadata={}, source=t.splitlines(keepends=True))


@pytest.fixture
def tree(tmp_path):
    "Two areas: 10_base and 21_tools.cut, which imports it"
    (tmp_path/"nbs"/"tutorials").mkdir(parents=True)
    (tmp_path/"reid_lab"/"tools").mkdir(parents=True)
    (tmp_path/"tests").mkdir()
    (tmp_path/"nbs"/"10_base.ipynb").write_text(notebook([
        text("# Base\n> Base"), code("#| default_exp base"), code("#| export\nx = 1")]))
    (tmp_path/"nbs"/"21_tools.cut.ipynb").write_text(notebook([
        text("# Cut\n> After [10_base](10_base.ipynb)"), code("#| default_exp tools.cut"),
        code("#| export\nfrom reid_lab.base import x\nfrom reid_lab import base as b")]))
    (tmp_path/"nbs"/"tutorials"/"00_tour.ipynb").write_text(notebook([
        text("See [21_tools.cut](../21_tools.cut.ipynb) and `10_base`, not 110_base."),
        code("from reid_lab.tools import cut as c")]))
    (tmp_path/"reid_lab"/"base.py").write_text("x = 1\n")
    (tmp_path/"reid_lab"/"tools"/"__init__.py").write_text("")
    (tmp_path/"reid_lab"/"tools"/"cut.py").write_text("from ..base import x\n")
    (tmp_path/"tests"/"test_cut.py").write_text(
        "from reid_lab.tools.cut import x\nimport reid_lab.base\nPATH = 'reid_lab/tools/cut.py'\n")
    (tmp_path/"README.md").write_text("[21_tools.cut](nbs/21_tools.cut.ipynb)\n")
    return tmp_path


def test_an_upward_import_is_found(layout, tree):
    assert layout.upward(layout.modules(tree)) == []
    (tree/"reid_lab"/"base.py").write_text("def f():\n    from .tools.cut import x\n    return x\n")
    assert layout.upward(layout.modules(tree)) == ["10_base imports 21_tools.cut"]
    assert layout.main(["--check"], tree) == 1


def test_the_same_number_twice_is_upward(layout, tree):
    (tree/"nbs"/"21_tools.cut.ipynb").rename(tree/"nbs"/"10_tools.cut.ipynb")
    assert layout.upward(layout.modules(tree)) == ["10_tools.cut imports 10_base"]


def test_the_matrix_has_a_dot_for_each_import(layout, tree):
    svg = layout.draw(layout.modules(tree))
    assert svg.count("<circle") == 1 and "21 tools.cut" in svg and "World and datasets" in svg
    assert "| 2x | Features and losses | 1 `tools.cut` | 1 (50 %) | 1x | 9 |" in layout.table(layout.modules(tree))


def read(tree):
    "All text of a tree but outputs"
    return {p.relative_to(tree).as_posix(): p.read_text() for p in tree.rglob("*") if p.is_file()}


def test_a_notebook_moves_with_its_module_links_and_imports(renumber, tree, capsys):
    assert renumber.main(["21_tools.cut=35_models.cut"], tree) == 0
    now = read(tree)
    assert "nbs/35_models.cut.ipynb" in now
    assert "nbs/21_tools.cut.ipynb" not in now and "reid_lab/tools/cut.py" not in now
    assert "default_exp models.cut" in now["nbs/35_models.cut.ipynb"] and not any("21_tools" in t for t in now.values())
    tour = now["nbs/tutorials/00_tour.ipynb"]
    assert "[35_models.cut](../35_models.cut.ipynb)" in tour
    assert "from reid_lab.models import cut as c" in tour and "110_base" in tour
    assert now["tests/test_cut.py"] == ("from reid_lab.models.cut import x\nimport reid_lab.base\n"
                                        "PATH = 'reid_lab/models/cut.py'\n")
    assert "make export readme" in capsys.readouterr().out


def test_a_module_may_become_a_package_of_its_own_name(renumber, tree):
    renumber.main(["10_base=10_base.core"], tree)
    cut = read(tree)["nbs/21_tools.cut.ipynb"]
    assert "from reid_lab.base.core import x" in cut and "from reid_lab.base import core as b" in cut
    assert "import reid_lab.base.core\n" in read(tree)["tests/test_cut.py"]


def test_numbers_can_be_exchanged(renumber, tree):
    renumber.main(["10_base=21_base", "21_tools.cut=10_tools.cut"], tree)
    now = read(tree)
    assert {"nbs/21_base.ipynb", "nbs/10_tools.cut.ipynb"} < set(now) and "reid_lab/base.py" in now
    assert "[21_base](21_base.ipynb)" in now["nbs/10_tools.cut.ipynb"]


def test_a_dry_run_changes_nothing(renumber, tree, capsys):
    before = read(tree)
    assert renumber.main(["--dry", "10_base=11_base"], tree) == 0
    assert read(tree) == before and "would write nbs/11_base.ipynb" in capsys.readouterr().out


@pytest.mark.parametrize("pair, message", [
    ("base=11_base", "is no notebook name"), ("10_base", "write OLD=NEW"),
    ("12_gone=13_gone", "there is no nbs/12_gone.ipynb"),
    ("10_base=21_base", "number 21 belongs to 21_tools.cut"), ("10_base=21_tools.cut", "exists; move it too")])
def test_what_cannot_be_renumbered(renumber, tree, pair, message):
    before = read(tree)
    with pytest.raises(SystemExit, match=message): renumber.main([pair], tree)
    assert read(tree) == before
