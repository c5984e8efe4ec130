"What of a process is the user's"
import sys
from types import ModuleType

import pytest
import torch

from reid_lab.core.own_code import code_sum, own_files


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
