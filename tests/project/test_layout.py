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


def test_areas_are_not_crowded(layout):
    mods = layout.modules()
    assert max(sum(m.area == a for m in mods) for a in layout.AREAS) <= 20


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
    "Two areas: 100_base and 210_tools.cut, which imports it"
    (tmp_path/"nbs"/"tutorials").mkdir(parents=True)
    (tmp_path/"reid_lab"/"tools").mkdir(parents=True)
    (tmp_path/"tests").mkdir()
    (tmp_path/"nbs"/"100_base.ipynb").write_text(notebook([
        text("# Base\n> Base"), code("#| default_exp base"), code("#| export\nx = 1")]))
    (tmp_path/"nbs"/"210_tools.cut.ipynb").write_text(notebook([
        text("# Cut\n> After [100_base](100_base.ipynb)"), code("#| default_exp tools.cut"),
        code("#| export\nfrom reid_lab.base import x\nfrom reid_lab import base as b")]))
    (tmp_path/"nbs"/"tutorials"/"00_tour.ipynb").write_text(notebook([
        text("See [210_tools.cut](../210_tools.cut.ipynb) and `100_base`, not 1100_base."),
        code("from reid_lab.tools import cut as c")]))
    (tmp_path/"reid_lab"/"base.py").write_text("x = 1\n")
    (tmp_path/"reid_lab"/"tools"/"__init__.py").write_text("")
    (tmp_path/"reid_lab"/"tools"/"cut.py").write_text("from ..base import x\n")
    (tmp_path/"tests"/"test_cut.py").write_text(
        "from reid_lab.tools.cut import x\nimport reid_lab.base\nPATH = 'reid_lab/tools/cut.py'\n")
    (tmp_path/"README.md").write_text("[210_tools.cut](nbs/210_tools.cut.ipynb)\n")
    return tmp_path


def test_an_upward_import_is_found(layout, tree):
    assert layout.upward(layout.modules(tree)) == []
    (tree/"reid_lab"/"base.py").write_text("def f():\n    from .tools.cut import x\n    return x\n")
    assert layout.upward(layout.modules(tree)) == ["100_base imports 210_tools.cut"]
    assert layout.main(["--check"], tree) == 1


def test_the_same_number_twice_is_upward(layout, tree):
    (tree/"nbs"/"210_tools.cut.ipynb").rename(tree/"nbs"/"100_tools.cut.ipynb")
    assert layout.upward(layout.modules(tree)) == ["100_tools.cut imports 100_base"]


def test_the_matrix_has_a_dot_for_each_import(layout, tree):
    svg = layout.draw(layout.modules(tree))
    assert svg.count("<circle") == 1 and "210 tools.cut" in svg and "World and datasets" in svg
    assert "| 2xx | Features and losses | 10 `tools.cut` | 1 (50 %) | 1xx |" in layout.table(layout.modules(tree))


def read(tree):
    "All text of a tree but outputs"
    return {p.relative_to(tree).as_posix(): p.read_text() for p in tree.rglob("*") if p.is_file()}


def test_a_notebook_moves_with_its_module_links_and_imports(renumber, tree, capsys):
    assert renumber.main(["210_tools.cut=350_models.cut"], tree) == 0
    now = read(tree)
    assert "nbs/350_models.cut.ipynb" in now
    assert "nbs/210_tools.cut.ipynb" not in now and "reid_lab/tools/cut.py" not in now
    assert "default_exp models.cut" in now["nbs/350_models.cut.ipynb"]
    assert not any("210_tools" in t for t in now.values())
    tour = now["nbs/tutorials/00_tour.ipynb"]
    assert "[350_models.cut](../350_models.cut.ipynb)" in tour
    assert "from reid_lab.models import cut as c" in tour and "1100_base" in tour
    assert now["tests/test_cut.py"] == ("from reid_lab.models.cut import x\nimport reid_lab.base\n"
                                        "PATH = 'reid_lab/models/cut.py'\n")
    assert "make export readme" in capsys.readouterr().out


def test_a_module_may_become_a_package_of_its_own_name(renumber, tree):
    renumber.main(["100_base=100_base.core"], tree)
    cut = read(tree)["nbs/210_tools.cut.ipynb"]
    assert "from reid_lab.base.core import x" in cut and "from reid_lab.base import core as b" in cut
    assert "import reid_lab.base.core\n" in read(tree)["tests/test_cut.py"]


def test_numbers_can_be_exchanged(renumber, tree):
    renumber.main(["100_base=210_base", "210_tools.cut=100_tools.cut"], tree)
    now = read(tree)
    assert {"nbs/210_base.ipynb", "nbs/100_tools.cut.ipynb"} < set(now) and "reid_lab/base.py" in now
    assert "[210_base](210_base.ipynb)" in now["nbs/100_tools.cut.ipynb"]


def test_a_dry_run_changes_nothing(renumber, tree, capsys):
    before = read(tree)
    assert renumber.main(["--dry", "100_base=110_base"], tree) == 0
    assert read(tree) == before and "would write nbs/110_base.ipynb" in capsys.readouterr().out


@pytest.mark.parametrize("pair, message", [
    ("base=110_base", "is no notebook name"), ("100_base", "write OLD=NEW"),
    ("120_gone=130_gone", "there is no nbs/120_gone.ipynb"),
    ("100_base=210_base", "number 210 belongs to 210_tools.cut"), ("100_base=210_tools.cut", "exists; move it too")])
def test_what_cannot_be_renumbered(renumber, tree, pair, message):
    before = read(tree)
    with pytest.raises(SystemExit, match=message): renumber.main([pair], tree)
    assert read(tree) == before
