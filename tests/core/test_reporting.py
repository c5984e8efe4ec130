"""Text from data is shown and not obeyed."""
import io

import pytest

from reid_lab.core.reporting import Plain, beneath, count_of, printable, progress
from reid_lab.experiments.terminal import Activity, Display


@pytest.mark.parametrize("text, want", [
    ("a\x1b]0;owned\x07.jpg", r"a\x1b]0;owned\x07.jpg"), ("\x9b2J", r"\x9b2J"), ("a\rb", r"a\rb"), ("a\nb", r"a\nb"),
    ("a\x7fb\x08", r"a\x7fb\x08"), ("gpj.\u202eexe", r"gpj.\u202eexe"), ("a\u2028b", r"a\u2028b"),
    ("caf\udce9", r"caf\udce9"), ("張三 é ✓", "張三 é ✓"), (7, "7")])
def test_printable(text, want): assert printable(text) == want


def test_lines_and_tabs_stay_where_asked():
    assert printable("a\n\tb\x1b", lines=True) == "a\n\tb\\x1b"
    out = io.StringIO()
    print("one\ntwo\x1b[2J", file=Plain(out))
    assert out.getvalue() == "one\ntwo\\x1b[2J\n" and beneath(Plain(out)) is out and beneath(out) is out


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_escaped(encoding):
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, write_through=True)
    print("✓ caf\udce9", file=Plain(out))
    want = "✓" if encoding == "utf-8" else "\\u2713"
    assert out.buffer.getvalue().decode(encoding) == want + " caf\\udce9\n"


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self): return True


def test_progress_sends_its_own_sequences_and_no_others():
    screen = Screen()
    for _ in progress(range(2), "a\x1b[31mred", every=0, quiet=False, file=Plain(screen)): pass
    assert "\x1b[31m" not in screen.getvalue() and r"a\x1b[31mred" in screen.getvalue()
    assert "\r\x1b[K" in screen.getvalue()     # of the line that is redrawn


def test_a_line_fits_the_terminal(monkeypatch):
    "One that wraps cannot be drawn over; the last one stays, and is whole"
    monkeypatch.setenv("COLUMNS", "30")
    screen = Screen()
    loop = progress(range(2), "captions", every=0, quiet=False, file=screen)
    for _ in loop: loop.note = "x"*99
    lines = [line for line in screen.getvalue().split("\r\x1b[K") if line]
    assert max(map(len, lines[:-1])) == 29 and lines[-1].endswith("x"*99 + "\n")


def test_the_display_takes_in_text_from_data():
    what = Activity(pid=1)
    for more in (dict(label="run \x1b[2J", run="runs/\x1b"), dict(label="cell \x1b", cell=1, total=2)):
        what.take(dict(pid=1, time=0., end=False, n=0) | more)
    what.take(dict(pid=2, time=0., end=False, n=0, label="images of \x9b", note="\x07"))
    shown = [what.title, what.folder, what.section, what.tasks[0].label, what.tasks[0].note]
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for text in shown for c in text), shown
    assert "\x1b" not in Display("sweep \x1b]0;x", quiet=True).what.title


@pytest.mark.parametrize("n, said", [(0, "0 boxes"), (1, "1 box"), (2, "2 boxes"), (1200, "1,200 boxes")])
def test_a_number_has_its_noun(n, said):
    assert count_of(n, "box", "boxes") == said and count_of(n, "frame") == said.replace("boxes", "frames").replace(
        "box", "frame")
