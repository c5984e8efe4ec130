"README.md is what tools/readme.py makes of nbs/index.ipynb, and says what it must"
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs"/"index.ipynb").exists(), reason="needs the source tree")


@pytest.fixture(scope="module")
def readme(tool):
    "tools/readme.py as a module"
    return tool("readme")


@pytest.fixture(scope="module")
def text(): return (ROOT/"README.md").read_text(encoding="utf-8")


def test_readme_and_map_are_up_to_date(readme, capsys):
    assert readme.main(["--check"]) == 0, capsys.readouterr().out


def test_every_local_link_leads_somewhere(text):
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", text)
    local = [t for pair in targets for t in pair if t and not re.match(r"[a-z]+:", t)]
    assert local and not [t for t in local if not (ROOT/t).exists()]


def test_the_two_commands_and_a_picture_are_there(text):
    assert "make camel" in text and "make test" in text and re.search(r"!\[[^\]]*\]\(figures/", text)


def test_the_map_names_every_notebook(text):
    names = [p.relative_to(ROOT/"nbs").as_posix() for p in (ROOT/"nbs").rglob("*.ipynb")
             if p.name[0] not in "_." and ".ipynb_checkpoints" not in p.parts]
    assert len(names) > 10
    missing = [n for n in names if n != "index.ipynb" and f"(nbs/{n})" not in text]
    assert not missing


def make(folder, cells):
    "A project with one notebook besides the index"
    (folder/"nbs").mkdir()
    one = {"cells": [{"cell_type": "markdown", "metadata": {}, "source": ["# Sums\n", "> Adding things"]}]}
    (folder/"nbs"/"100_sums.ipynb").write_text(json.dumps(one))
    (folder/"nbs"/"index.ipynb").write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4,
                                                        "nbformat_minor": 5}))


def md(source): return {"cell_type": "markdown", "metadata": {}, "source": source}


def code(source, *outputs):
    return {"cell_type": "code", "metadata": {}, "source": source, "outputs": list(outputs), "execution_count": None}


def test_cells_become_markdown(readme, tmp_path):
    picture = {"output_type": "display_data", "data": {"image/png": "aGk=", "text/plain": "<Figure>"}}
    table = {"output_type": "execute_result",
             "data": {"text/html": ["<style>p</style><table></table>"], "text/plain": "x"}}
    make(tmp_path, [md("# T\n> one"),
                    md('<img src="../figures/b.jpg" width="9">\n'
                       "see [a](../figures/a.jpg), [b](100_sums.ipynb), [c](https://x.org)\n"
                       f"{readme.START}\nold\n{readme.END}"),
                    code("#| hide\nsecret = 1"),
                    code("#| eval: true\nprint(1)", {"output_type": "stream", "name": "stdout", "text": "1\n2\n"}),
                    code("plot()", picture, table)])
    files = readme.build(tmp_path)
    out = files["README.md"].decode()
    assert '<img src="figures/b.jpg" width="9">' in out
    assert "[a](figures/a.jpg), [b](nbs/100_sums.ipynb), [c](https://x.org)" in out
    assert "old" not in out and "| [100_sums](nbs/100_sums.ipynb) | Sums: adding things |" in out
    assert "secret" not in out and "```python\nprint(1)\n```\n\n    1\n    2\n" in out
    assert files["figures/readme_4_0.png"] == b"hi" and "![readme_4_0](figures/readme_4_0.png)" in out
    assert "<table></table>" in out and "<style>" not in out


def test_a_stale_readme_is_noticed(readme, tmp_path, monkeypatch, capsys):
    make(tmp_path, [md("# T\n> one"), md(f"{readme.START}\n{readme.END}")])
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main(["--check"]) == 1 and "README.md is not up to date" in capsys.readouterr().out
    assert readme.main([]) == 0 and readme.main(["--check"]) == 0
    (tmp_path/"README.md").write_text("edited by hand")
    assert readme.main(["--check"]) == 1


def test_an_index_without_markers_is_refused(readme, tmp_path):
    make(tmp_path, [md("# T\n> one")])
    with pytest.raises(SystemExit, match="needs one markdown cell"): readme.build(tmp_path)
