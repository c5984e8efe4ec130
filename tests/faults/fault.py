"""What a row of the fault table is, and the means to cause one: a bad call, a command line, a process that dies.

The rows are in the other modules of this folder, one module an area, each with a list `FAULTS`; `test_faults.py` runs
them all.
"""
import contextlib
import importlib
import io
import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DIED = 137  # exit code of a process that was killed here


@dataclass(frozen=True)
class Fault:
    "One row: what is done to the program, and what must hold"
    name: str                   # short and unique: `embeddings: string ids`
    kind: str                   # `input` or `interruption`
    does: str                   # what is done, for a reader of the table
    holds: str                  # what must hold afterwards
    run: Callable               # takes an empty folder; an input raises, an interruption returns the message it saw
    words: tuple                # key words of the message
    error: type = ValueError    # that an input raises


def bad(name: str, does: str, call: Callable, *words: str, error: type = ValueError) -> Fault:
    "A bad input: `call(folder)` must raise `error` with all `words` in its message"
    return Fault(name, "input", does, "an error names what was wrong and what to do", call, words, error)


def interruption(name: str, does: str, holds: str, check: Callable, *words: str) -> Fault:
    "An interruption: `check(folder)` causes it, asserts that `holds`, and returns the message that the user saw"
    return Fault(name, "interruption", does, holds, check, words)


def message(error: BaseException) -> str:
    "What a user reads of an error"
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@contextlib.contextmanager
def warned():
    "Collect what is warned in a list of texts"
    texts = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield texts
    texts += [str(w.message) for w in seen]


def cut(path: Path):
    "Half of a file is gone"
    os.truncate(path, path.stat().st_size//2)


def empty(path: Path):
    "A file lost its content"
    path.write_bytes(b"")


def flip(path: Path):
    "One bit near the end is another"
    data = bytearray(path.read_bytes())
    data[-9] ^= 8
    path.write_bytes(data)


def cli(*argv) -> tuple:
    "Run the command line in this process: exit code, standard output, standard error"
    from reid_lab.cli.commands import main
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try: code = main([str(a) for a in argv])
        except SystemExit as e: code = e.code
    return code or 0, out.getvalue(), err.getvalue()


def refused(*argv) -> None:
    "Run the command line, which must fail, and raise its message (for `bad`)"
    code, out, err = cli(*argv)
    assert code, f"the command ended with 0: {out}"
    raise ValueError(err)


def replaced(target: str) -> tuple:
    "`package.module.attribute`, or `package.module.Class.attribute` -> owner and attribute name"
    parts = target.split(".")
    for n in range(len(parts) - 1, 0, -1):
        try: owner = importlib.import_module(".".join(parts[:n]))
        except ModuleNotFoundError: continue
        for part in parts[n:-1]: owner = getattr(owner, part)
        return owner, parts[-1]
    raise ValueError(f"{target} cannot be imported")


def _until_death(call, owner, name, nth, after):
    "Run `call` and die at a call of `owner.name`"
    true, count = getattr(owner, name), [0]

    def dies(*args, **kw):
        count[0] += 1
        if count[0] == nth and not after: os._exit(DIED)
        result = true(*args, **kw)
        if count[0] == nth: os._exit(DIED)
        return result

    setattr(owner, name, dies)
    call()


def killed(call: Callable, at: str, nth: int = 1, after: bool = False) -> None:
    """Run `call` in a copy of this process that dies at the `nth` call of the function `at`, without any clean-up.

    `after=True` lets that call finish first. The process must die there: an end of `call` before that is an error.
    """
    pid = os.fork()
    if pid == 0:
        try: _until_death(call, *replaced(at), nth, after)
        finally:
            traceback.print_exc()
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == DIED, f"the process ended with {code} before call {nth} of {at}"


def clutter(folder) -> list:
    "Names of hidden files below a folder: what an interrupted write leaves"
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob(".*"))
