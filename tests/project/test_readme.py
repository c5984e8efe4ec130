"README.md is what tools/readme.py makes of nbs/index.ipynb, and what it says works"
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not (ROOT/"nbs"/"index.ipynb").exists(), reason="needs the source tree")
OF_A_USER = ("crops", "features", "query.npz", "data")      # what the commands of a reader with files of his own name


@pytest.fixture(scope="module")
def readme(tool):
    "tools/readme.py as a module"
    return tool("readme")


@pytest.fixture(scope="module")
def text(): return (ROOT/"README.md").read_text(encoding="utf-8")


# --- the text ---------------------------------------------------------------------------------------------------------

def test_readme_is_up_to_date(readme, capsys):
    assert readme.main(["--check"]) == 0, capsys.readouterr().out


def test_every_local_link_leads_somewhere(text):
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)|src=\"([^\"]+)\"", text)
    local = [t for pair in targets for t in pair if t and not re.match(r"[a-z]+:", t)]
    assert local and not [t for t in local if not (ROOT/t).exists()]


def test_it_is_short(text):
    assert len(text.encode()) <= 15_000
    assert (ROOT/"nbs"/"index.ipynb").stat().st_size <= 60_000


def prose(markdown):
    "Words of a text, without comments, tags and targets of links"
    plain = re.sub(r"<!--.*?-->|<[^>]+>|\]\([^)]*\)", " ", markdown, flags=re.S)
    return re.findall(r"[\w'-]+", plain)


def first_result(markdown):
    "Words before the first code, and lines of that code; an output follows it"
    found = re.search(r"^(.*?)```python\n(.*?)\n```\n\n {4,}\S", markdown, re.S)
    return (prose(found[1]), found[2].splitlines()) if found else ([], [])


def test_the_first_result_comes_at_once(text):
    words, lines = first_result(text)
    assert 0 < len(words) <= 200 and 0 < len(lines) <= 6
    assert lines[0] == "import reid_lab as rl" and not [line for line in lines[1:] if "import" in line]


def test_a_late_result_is_noticed():
    many = "word "*300 + "\n\n```python\nimport x\n```\n\n    41\n"
    assert [len(part) for part in first_result(many)] == [300, 1] and first_result("```python\nx\n```\n") == ([], [])


def test_the_commands_and_one_picture_are_there(text):
    for command in ("make camel", "make test", "make test-all"): assert command in text, command
    assert re.findall(r'src="(figures/[^"]+)"', text) == ["figures/search_page.jpg", "figures/flow.svg"]


def test_the_packages_are_named_once(text):
    table = re.search(r"^\| package \| holds \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.M)[1]
    names = re.findall(r"^\| `(\w+)` \| \S.* \|$", table, re.M)
    assert len(names) == len(set(names)) == 16 == len(table.splitlines())


def test_the_picture_is_sharp_and_light():
    from PIL import Image
    path = ROOT/"figures"/"search_page.jpg"
    with Image.open(path) as picture: assert picture.format == "JPEG" and picture.width >= 1600
    assert path.stat().st_size <= 200_000


@pytest.mark.whole
@pytest.mark.slow
def test_what_is_said_of_the_picture(text, tool):
    "Six images of two people come first, and these two are all who wear such a coat"
    picture = tool("picture")
    people = picture.people()
    assert len(people) == 450 and "six images come first among 450" in text
    first = [found["pid"] for found in picture.search_page(people).found(None)["items"]][:6]
    captions = {pid: " ".join(sum(some, [])).lower() for pid, some in people.frame.groupby("pid").captions}
    dressed = {pid for pid, said in captions.items() if re.search(r"black \w+ with red stripes", said)}
    assert len(set(first)) == 2 and dressed <= set(first) and sorted(first) == sorted(3*sorted(set(first)))


# --- the commands -----------------------------------------------------------------------------------------------------

def commands(markdown):
    "Lines of the shell blocks, without comments, as lists of words"
    blocks = "\n".join(re.findall(r"^```bash\n(.*?)^```", markdown, re.M | re.S))
    lines = blocks.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def needs_files(words):
    "Whether a command names a file or folder of its user"
    return any(word.partition("=")[2] in OF_A_USER or word in OF_A_USER for word in words)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    "An empty current folder, where runs go as well"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    return tmp_path


def reid_lab(words):
    "One command of the library, in this process"
    from reid_lab.cli.commands import main
    assert words[0] == "reid_lab"
    assert main(words[1:]) == 0, words


def test_every_command_is_tried(text):
    found = commands(text)
    assert {words[0] for words in found} == {"make", "reid_lab"}
    names = {words[1] for words in found if words[0] == "reid_lab" and needs_files(words)}
    assert names == {"embed", "search", "match", "metrics", "bias", "doctor", "run"}


@pytest.mark.whole
@pytest.mark.slow
def test_commands_without_files(text, elsewhere):
    tried = [words for words in commands(text) if words[0] == "reid_lab" and not needs_files(words)]
    for words in tried: reid_lab(words)
    assert {words[1] for words in tried} == {"list", "run", "cite", "published", "reproduce"}
    assert list(elsewhere.glob("runs/*/metrics.json"))


@pytest.fixture
def files_of_a_user(elsewhere):
    "Crops in two folders and a single one, features of two sides, and a dataset in its own layout"
    from PIL import Image

    from reid_lab.datasets.export import export_world
    from reid_lab.datasets.registry import load_dataset
    from reid_lab.world.world import World
    people = World("smoke", task="reid").table().where(split="test")
    of_person = people.frame.groupby("pid").indices
    for folder, pids in (("crops", list(of_person)[:8]), ("other_crops", list(of_person)[8:10])):
        for pid in pids:
            (elsewhere/folder/str(pid)).mkdir(parents=True)
            for row in of_person[pid][:4]:
                Image.fromarray(people.image(row)).save(elsewhere/folder/str(pid)/f"{row}.jpg")
    shutil.copy(next((elsewhere/"crops").glob("*/*.jpg")), elsewhere/"crop.jpg")
    rng = np.random.default_rng(0)
    for name in ("query", "gallery"):
        pid, cam = np.repeat(np.arange(20), 4), np.tile(np.arange(4), 20)
        emb = rng.normal(size=(20, 16))[pid] + rng.normal(size=(4, 16))[cam] + rng.normal(size=(80, 16))
        np.savez(elsewhere/f"{name}.npz", emb=emb, pid=pid, cam=cam)
    captioned = load_dataset("world", preset="smoke").where(domain="real-like")
    export_world(captioned, "cuhk-pedes", elsewhere/"data")
    return elsewhere


@pytest.mark.whole
@pytest.mark.slow
def test_commands_with_files_of_a_user(text, files_of_a_user, capsys):
    tried = [words for words in commands(text) if needs_files(words)]
    for words in tried: reid_lab(words)
    for made in ("features", "page.html", "report/report.html"): assert (files_of_a_user/made).exists(), made
    rows = [row for path in files_of_a_user.glob("runs/*/metrics.json") for row in json.loads(path.read_text())["rows"]]
    assert {"cuhk-pedes", "crops"} <= {row["dataset"] for row in rows}


def test_code_with_files_of_a_user(text, files_of_a_user, capsys):
    (block,) = [code for code in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S) if ".npz" in code]
    exec(compile(block, "README.md", "exec"), {})
    said = capsys.readouterr().out
    assert "'mAP': " in said and "cameras" in said


def test_commands_of_the_documentation_can_be_parsed():
    "Options and names of the page on commands are those of the command line"
    from reid_lab.cli.commands import parser
    from reid_lab.cli.modules import own_code
    page = json.loads((ROOT/"nbs"/"docs"/"05_commands.ipynb").read_text(encoding="utf-8"))
    shown = "\n\n".join("".join(cell["source"]) for cell in page["cells"] if cell["cell_type"] == "markdown")
    found = [words[1:] for words in commands(shown) if words[0] == "reid_lab"]
    assert len(found) > 25
    for words in found: assert parser().parse_args(own_code(words).words)
    with pytest.raises(SystemExit): parser().parse_args(["run", "camel", "--sped", "bf16"])


# --- the tool ---------------------------------------------------------------------------------------------------------

def make(folder, cells):
    "A project with an index"
    (folder/"nbs").mkdir()
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
                       "see [a](../figures/a.jpg), [b](03_world/50_render.ipynb), [c](https://x.org)\n"),
                    code("#| hide\nsecret = 1"),
                    code("#| eval: true\nprint(1)", {"output_type": "stream", "name": "stdout", "text": "1\n2\n"}),
                    code("plot()", picture, table)])
    files = readme.build(tmp_path)
    out = files["README.md"].decode()
    assert '<img src="figures/b.jpg" width="9">' in out
    assert "[a](figures/a.jpg), [b](nbs/03_world/50_render.ipynb), [c](https://x.org)" in out
    assert "secret" not in out and "```python\nprint(1)\n```\n\n    1\n    2\n" in out
    assert files["figures/readme_4_0.png"] == b"hi" and "![readme_4_0](figures/readme_4_0.png)" in out
    assert "<table></table>" in out and "<style>" not in out


def test_a_stale_readme_is_noticed(readme, tmp_path, monkeypatch, capsys):
    make(tmp_path, [md("# T\n> one")])
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main(["--check"]) == 1 and "README.md is not up to date" in capsys.readouterr().out
    assert readme.main([]) == 0 and readme.main(["--check"]) == 0
    (tmp_path/"README.md").write_text("edited by hand")
    assert readme.main(["--check"]) == 1
