"What of a process is the user's"
import importlib
import linecache
import sys
from types import ModuleType

import pytest
import torch

from reid_lab.core.own_code import code_behind, code_sum, is_own, own_files, reached_code


def test_modules_whose_file_is_nowhere_are_nobodys(tmp_path, monkeypatch):
    "torch.classes and torch.ops name files relative to no folder; a file that is gone was another run's"
    assert not torch.classes.__file__.startswith("/")       # else this test shows nothing
    monkeypatch.chdir(tmp_path)
    (tmp_path/torch.classes.__file__).write_text("")        # nor a file of the user's that is called so
    gone = ModuleType("gone_lab")
    gone.__file__ = str(tmp_path/"gone_lab.py")
    monkeypatch.setitem(sys.modules, "gone_lab", gone)
    found = own_files()
    assert not {"torch.classes", "torch.ops", "gone_lab"} & found.keys()
    (tmp_path/"gone_lab.py").write_text("")
    assert own_files()["gone_lab"] == tmp_path/"gone_lab.py"


def test_a_program_may_be_named_as_it_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path/"mine.py").write_text("")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "mine.py", raising=False)
    assert [str(own_files()[name]) for name in ("__main__",)] == ["mine.py"]


@pytest.mark.parametrize("mark", ["\f", "\u2028", "\x0b"])
def test_marks_that_end_a_line_elsewhere_hide_nothing(mark):
    first, other = (f"s = '{mark}'  # one\ndef f(x, margin={m}):\n    return x*margin\n" for m in (.3, .9))
    assert code_sum(first) != code_sum(other)
    assert code_sum(first) == code_sum(first.replace("# one", "# another word"))


@pytest.fixture
def write(tmp_path, monkeypatch):
    "Write modules of the user's and import the first anew, as another process would"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = []
    def make(**texts):
        for name, text in texts.items(): (tmp_path/f"{name}.py").write_text(text)
        names.extend(texts)
        for name in names: sys.modules.pop(name, None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module([*texts][0])
    yield make
    for name in names: sys.modules.pop(name, None)


OTHER = "def soft(loss): return {}*loss\ndef hard(loss): return 1.*loss\nTABLE = dict(soft=soft)\n"


@pytest.mark.parametrize("text", [
    "from mine_other import soft\ndef step(x): return soft(x)\n",
    "import mine_other\ndef step(x): return mine_other.soft(x)\n",
    "def step(x):\n    from mine_other import soft\n    return soft(x)\n",
    "def step(x):\n    import importlib\n    return importlib.import_module('mine_other').soft(x)\n",
    "from mine_other import TABLE\ndef step(x): return TABLE['soft'](x)\n",
    "from mine_other import soft\nSTEPS = [[len, soft]]\ndef step(x): return STEPS[0][1](x)\n",
    "from mine_other import soft\ndef by(f): return lambda g: lambda x: g(f(x))\n@by(soft)\ndef step(x): return x\n",
    "from mine_other import soft\ndef step(x, then=soft): return then(x)\n",
    "from mine_other import soft\nclass Base: first = soft(1.)\nclass step(Base): pass\n",
    "from functools import partial\nfrom mine_other import soft\nlater = partial(soft)\ndef step(x): return later()\n",
    "from mine_other import soft\nclass Box:\n    def __init__(self): self.f = soft\nBOX = Box()\n"
    "def step(x): return BOX.f(x)\n",
    "from mine_other import soft\nRATE = [soft(2.)]\ndef step(x): return RATE[0]*x\n"])
def test_what_a_function_reaches_is_followed(text, write):
    first = code_behind(write(mine_step=text, mine_other=OTHER.format(.1)).step)
    assert code_behind(write(mine_step=text, mine_other="# a note\n" + OTHER.format(.1)).step) == first
    then = code_behind(write(mine_step=text, mine_other=OTHER.format(.9)).step)
    changed = {name for name in first if name in then and first[name] != then[name]}
    assert changed and all("mine_other" in name for name in changed)


@pytest.mark.parametrize("before, after", [
    ("TABLE = dict(a=abs)", "TABLE = dict(a=round)"),
    ("TABLE = {}\nTABLE['a'] = abs", "TABLE = {}\nTABLE['a'] = round"),
    ("TABLE = {}\nTABLE.update(a=abs)", "TABLE = {}\nTABLE.update(a=round)"),
    ("TABLE = [abs]\nif True: TABLE = [round]", "TABLE = [abs]\nif True: TABLE = [pow]"),
    ("from math import floor as TABLE", "from math import ceil as TABLE"),
    ("from mine_other import soft as TABLE", "from mine_other import hard as TABLE"), ("TABLE = abs", "TABLE = round")])
def test_what_a_name_stands_for_counts(before, after, write):
    body = "\nNOTE = [1]\ndef step(x): return TABLE, x\n"
    first, then = (code_behind(write(mine_step=text + body, mine_other=OTHER).step) for text in (before, after))
    assert [name for name in first if first[name] != then.get(name)][0] in ("mine_step.TABLE", "mine_other.soft")
    assert first["mine_step.TABLE"] != then["mine_step.TABLE"] and first["mine_step.step"] == then["mine_step.step"]
    assert code_behind(write(mine_step=before + body.replace("[1]", "[2]"), mine_other=OTHER).step) == first


def test_what_a_function_changes_counts_as_it_was_written(write):
    text = "SEEN = {}\ndef step(x):\n    global SEEN\n    SEEN = SEEN + x\n    return SEEN\n"
    module = write(mine_step=text.format(0))
    first = code_behind(module.step)
    module.step(3)
    assert code_behind(module.step) == first
    assert code_behind(write(mine_step=text.format(7)).step) != first


def test_the_modules_around_the_pieces_are_known(write):
    texts = dict(mine_step="import mine_start\ndef step(x): return x\n", mine_start="import torch\n", mine_else="")
    reached = reached_code(write(**texts).step)
    assert ([*reached.pieces], [*reached.files]) == (["mine_step.step"], ["mine_start", "mine_step"])
    first = reached.modules
    texts["mine_start"] = "import torch\ntorch.set_default_dtype(torch.float32)\n"
    then = reached_code(write(**texts).step).modules
    assert then["mine_start"] != first["mine_start"] and then["mine_step"] == first["mine_step"]


def test_what_an_installer_noted_is_not_the_users_wherever_it_is(tmp_path, monkeypatch):
    "As after `pip install --target FOLDER`; what the user keeps in the same folder is the user's"
    for name in ("library.py", "mine.py"): (tmp_path/name).write_text("x = 1\n")
    noted = tmp_path/"library-1.0.dist-info"
    noted.mkdir()
    (noted/"METADATA").write_text("Metadata-Version: 2.1\nName: library\nVersion: 1.0\n")
    (noted/"RECORD").write_text("library.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not is_own(tmp_path/"library.py") and is_own(tmp_path/"mine.py")
