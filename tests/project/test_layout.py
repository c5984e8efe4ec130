"The layout that tools/layout.py measures, and the moves of tools/move.py, on this tree and on small ones."
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs").is_dir(), reason="needs the source tree")


@pytest.fixture(scope="module")
def layout(tool): return tool("layout")


@pytest.fixture(scope="module")
def move(tool): return tool("move")


# ---- this tree

def test_no_rule_of_the_layout_is_broken(layout): assert layout.broken() == []


def test_every_module_is_measured(layout):
    "Each exported module belongs to a numbered notebook in the folder of its package"
    mods = layout.modules()
    files = {p.relative_to(ROOT/"reid_lab").with_suffix("").as_posix().replace("/", ".")
             for p in (ROOT/"reid_lab").rglob("*.py") if p.stem != "__init__"}
    assert {m.name for m in mods} == files - layout.AT_ROOT
    assert len({tuple(layout.order(m.notebook)) for m in mods}) == len(mods)


def test_every_package_says_what_it_holds(layout):
    for p in layout.packages(layout.modules()):
        assert p.holds and p.never, f"reid_lab/{p.name}/__init__.py: say what it holds, and `Never here: ...`"
        assert p.folder.rpartition("/")[2][3:] == p.name.rpartition(".")[2]


def test_packages_are_as_many_as_a_newcomer_can_learn(layout):
    found = layout.packages(layout.modules())
    assert sum("." not in p.name for p in found) == 17
    assert max(p.lines for p in found) < .15*sum(p.lines for p in found)


def test_the_page_and_the_drawings_are_up_to_date(layout, capsys):
    assert layout.main(["--check"]) == 0, capsys.readouterr().out


def test_the_flow_names_packages_that_exist(layout):
    there = {p.name for p in layout.packages(layout.modules())}
    named = [where for _, _, where in layout.BOXES.values()] + [layout.STEERING[2]]
    assert {name for where in named for name in where.split(", ")} <= there
    assert {t for pair in layout.ARROWS for t in pair.split(" > ")} == set(layout.BOXES)


# ---- small trees

def notebook(cells): return json.dumps(dict(cells=cells, metadata={}, nbformat=4, nbformat_minor=5), indent=1)


def code(text):
    return dict(cell_type="code", metadata={}, source=text.splitlines(keepends=True), outputs=[], execution_count=None)


def text(t): return dict(cell_type="markdown", metadata={}, source=t.splitlines(keepends=True))


@pytest.fixture
def tree(tmp_path):
    "Two packages: base.sums, and tools.cut and tools.glue, of which the first imports base.sums"
    files = {
        "nbs/00_base/10_sums.ipynb": notebook([
            text("# Sums\n> Adding"), code("#| default_exp base.sums"), code("#| export\nx = 1")]),
        "nbs/01_tools/10_cut.ipynb": notebook([
            text("# Cut\n> Cutting"), code("#| default_exp tools.cut"),
            text("After [sums](../00_base/10_sums.ipynb#adding)."),
            code("#| export\nfrom reid_lab.base.sums import x\nfrom reid_lab.base import sums as s")]),
        "nbs/01_tools/20_glue.ipynb": notebook([
            text("# Glue\n> Gluing"), code("#| default_exp tools.glue"), code("#| export\ny = 2")]),
        "nbs/tutorials/00_tour.ipynb": notebook([
            text("See [cut](../01_tools/10_cut.ipynb) and `tools.cut.f`, not `tools.cutter`; ![](../../figures/a.svg)"),
            code("from reid_lab.tools import cut as c, glue\nimport reid_lab.tools.cut")]),
        "reid_lab/base/__init__.py": '"""Sums.\n\nNever here: tools.\n"""\n',
        "reid_lab/base/sums.py": "x = 1\n",
        "reid_lab/tools/__init__.py": '"""Tools.\n\nNever here: sums.\n"""\n',
        "reid_lab/tools/cut.py": "from ..base.sums import x\n",
        "reid_lab/tools/glue.py": "y = 2\n",
        "tests/test_cut.py": "from reid_lab.tools.cut import x\nPATH = 'reid_lab/tools/cut.py'\n",
        "README.md": "[cut](nbs/01_tools/10_cut.ipynb)\n"}
    for name, content in files.items():
        (tmp_path/name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path/name).write_text(content)
    return tmp_path


def test_an_upward_import_is_found(layout, tree):
    assert layout.broken(tree) == []
    (tree/"reid_lab"/"base"/"sums.py").write_text("def f():\n    from ..tools.cut import x\n    return x\n")
    assert layout.upward(layout.modules(tree)) == ["00_base/10_sums.ipynb imports 01_tools/10_cut.ipynb"]
    assert layout.circles(layout.modules(tree)) == ["base", "tools"]
    assert layout.main(["--check"], tree) == 1


def test_the_same_number_is_upward(layout, tree):
    (tree/"reid_lab"/"tools"/"cut.py").write_text("from .glue import y\n")
    (tree/"nbs"/"01_tools"/"20_glue.ipynb").rename(tree/"nbs"/"01_tools"/"10_glue.ipynb")
    assert layout.upward(layout.modules(tree)) == ["01_tools/10_cut.ipynb imports 01_tools/10_glue.ipynb"]


def test_a_module_at_the_root_is_found(layout, tree):
    (tree/"reid_lab"/"moved.py").write_text("")
    assert layout.broken(tree) == []
    (tree/"reid_lab"/"helpers.py").write_text("")
    assert layout.broken(tree) == ["loose: reid_lab/helpers.py belongs into a package"]


def test_a_drawing_leaves_out_what_a_third_package_explains(layout, tree):
    (tree/"nbs"/"02_top").mkdir()
    (tree/"nbs"/"02_top"/"10_all.ipynb").write_text(notebook([text("# All\n> All"), code("#| default_exp top.all")]))
    (tree/"reid_lab"/"top").mkdir()
    (tree/"reid_lab"/"top"/"all.py").write_text("from ..tools.cut import x\nfrom ..base.sums import x as y\n")
    mods = layout.modules(tree)
    found = layout.packages(mods, tree)
    assert {p.name: (p.floor, p.imports) for p in found} == {
        "base": (0, set()), "tools": (1, {"base"}), "top": (2, {"base", "tools"})}
    assert layout.direct(found) == [("tools", "base"), ("top", "tools")]
    svg = layout.draw(mods, tree)
    assert svg.count("<path") == 2 and svg.count("modules,") == 3
    assert "| `tools` | Tools | sums | `cut`, `glue` | 40 % | `base` |" in layout.table(mods, tree)


def read(tree):
    "All text of a tree"
    return {p.relative_to(tree).as_posix(): p.read_text() for p in tree.rglob("*") if p.is_file()}


def test_a_notebook_moves_with_its_module_links_and_imports(move, tree, capsys):
    assert move.main(["01_tools/10_cut=05_models/30_saw"], tree) == 0
    now = read(tree)
    assert "nbs/01_tools/10_cut.ipynb" not in now and "reid_lab/tools/cut.py" not in now
    saw = now["nbs/05_models/30_saw.ipynb"]
    assert "default_exp models.saw" in saw and "(../00_base/10_sums.ipynb#adding)" in saw
    tour = now["nbs/tutorials/00_tour.ipynb"]
    assert "[cut](../05_models/30_saw.ipynb)" in tour and "(../../figures/a.svg)" in tour
    assert "`models.saw.f`" in tour and "`tools.cutter`" in tour
    assert "from reid_lab.tools import glue" in tour and "from reid_lab.models import saw as c" in tour
    assert "import reid_lab.models.saw" in tour
    assert now["tests/test_cut.py"] == "from reid_lab.models.saw import x\nPATH = 'reid_lab/models/saw.py'\n"
    assert now["README.md"] == "[cut](nbs/05_models/30_saw.ipynb)\n"
    assert "MOVED" in capsys.readouterr().out


def test_links_follow_a_notebook_into_a_deeper_folder(move, tree):
    move.main(["01_tools/10_cut=01_tools/30_fine/10_cut"], tree)
    assert "(../../00_base/10_sums.ipynb#adding)" in read(tree)["nbs/01_tools/30_fine/10_cut.ipynb"]


def test_numbers_can_be_exchanged(move, tree):
    move.main(["01_tools/10_cut=01_tools/20_cut", "01_tools/20_glue=01_tools/10_glue"], tree)
    now = read(tree)
    assert {"nbs/01_tools/20_cut.ipynb", "nbs/01_tools/10_glue.ipynb", "reid_lab/tools/cut.py"} < set(now)
    assert "[cut](../01_tools/20_cut.ipynb)" in now["nbs/tutorials/00_tour.ipynb"]


def test_a_dry_run_changes_nothing(move, tree, capsys):
    before = read(tree)
    assert move.main(["--dry", "00_base/10_sums=00_base/20_sums"], tree) == 0
    assert read(tree) == before and "would write nbs/00_base/20_sums.ipynb" in capsys.readouterr().out


@pytest.mark.parametrize("pair, message", [
    ("cut=01_tools/30_cut", "is no OLD=NEW"), ("01_tools/10_cut", "is no OLD=NEW"), ("10_cut=20_cut", "is no OLD=NEW"),
    ("01_tools/90_gone=01_tools/91_gone", "there is no nbs/01_tools/90_gone.ipynb"),
    ("01_tools/10_cut=01_tools/20_cut", "number 20 belongs to 01_tools/20_glue.ipynb"),
    ("01_tools/10_cut=01_tools/20_glue", "exists; move it too")])
def test_what_cannot_be_moved(move, tree, pair, message):
    before = read(tree)
    with pytest.raises(SystemExit, match=message): move.main([pair], tree)
    assert read(tree) == before
