"""Run a command in a terminal of its own and say what somebody in front of it would have seen.

    python tools/terminal.py make camel                    # any command; its exit code is passed on
    python tools/terminal.py --interrupt 20 make camel     # Ctrl-C after 20 seconds

It prints the screen at the end, the longest time in which nothing new appeared, warnings, and what `git status` says.
"""
import argparse
import codecs
import os
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import time
from dataclasses import dataclass, field

CONTROL = re.compile(r"\x1b\[(\??\d*)([A-Za-z])|([\r\n])")


@dataclass
class Recording:
    "What a command wrote to its terminal, and when"
    events: list = field(default_factory=list)  # (seconds since the start, text)
    seconds: float = 0.
    code: int = 0

    @property
    def text(self): return "".join(t for _, t in self.events)

    def gap(self) -> tuple:
        "Longest time without output, and when it began"
        times = [0., *(t for t, _ in self.events), self.seconds]
        return max((b - a, a) for a, b in zip(times, times[1:]))

    def first(self, words: str) -> float:
        "When a text was there first; infinite if never"
        seen = ""
        for t, text in self.events:
            seen += text
            if words in seen: return t
        return float("inf")

    def screen(self, until: float = float("inf")) -> list:
        "Lines on the screen after the events up to a time (what `reid_lab.experiments.terminal` uses of ANSI, no more)"
        lines, row, col = [""], 0, 0
        for text in (t for at, t in self.events if at <= until):
            at = 0
            for m in [*CONTROL.finditer(text), None]:
                plain = text[at:m.start() if m else len(text)]
                if plain:
                    lines[row] = lines[row][:col].ljust(col) + plain + lines[row][col + len(plain):]
                    col += len(plain)
                if m is None: break
                at = m.end()
                if m[3] == "\r": col = 0
                elif m[3] == "\n":
                    row += 1
                    if row == len(lines): lines.append("")
                elif m[2] == "A": row = max(0, row - int(m[1] or 1))
                elif m[2] == "K": lines[row] = lines[row][:col]
                elif m[2] == "J":
                    lines[row] = lines[row][:col]
                    del lines[row + 1:]
        return [line.rstrip() for line in lines]

    def warnings(self) -> list:
        "Lines with a warning that were ever shown"
        lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[\??\d*[A-Za-z]", "", self.text))
        return [s for s in lines if re.search(r"warning|traceback|unable to parse|zmq", s, re.I)]


def record(command, cwd=None, env=None, interrupt=None, timeout=1200, size=(30, 100)) -> Recording:
    """Run a command in a pseudo-terminal. `interrupt` sends Ctrl-C: seconds, or a text to wait for."""
    import fcntl
    import pty
    import termios
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    def own():
        "A terminal of the command's own, whose Ctrl-C is a signal to it, also if this process ignores that signal"
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    start, out = time.monotonic(), Recording()
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode   # a character may come in two parts
    child = subprocess.Popen(command, cwd=cwd, env=env, stdin=side, stdout=side, stderr=side, preexec_fn=own)
    os.close(side)
    now = lambda: time.monotonic() - start
    while now() < timeout:
        due = interrupt is not None and (interrupt in out.text if isinstance(interrupt, str) else now() > interrupt)
        if due:
            os.write(main, b"\x03")
            interrupt = None
        if not select.select([main], [], [], .1)[0]: continue
        try: data = os.read(main, 65536)
        except OSError: break   # the other side is closed
        if not data: break
        out.events.append((now(), decode(data)))
    else: child.kill()
    os.close(main)
    out.code, out.seconds = child.wait(), now()
    return out


def main(argv=None) -> int:
    "Record, show, judge"
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--interrupt", type=float, help="seconds after which Ctrl-C is pressed")
    p.add_argument("command", nargs=argparse.REMAINDER)
    a = p.parse_args(argv)
    done = record(a.command, interrupt=a.interrupt)
    print(*done.screen(), sep="\n")
    length, at = done.gap()
    print(f"{'-'*60}\n{shlex.join(a.command)}: exit code {done.code}, {done.seconds:.0f} s, {len(done.events)} outputs")
    print(f"longest silence {length:.1f} s, after {at:.1f} s; warnings: {done.warnings() or 'none'}")
    tree = subprocess.run(["git", "status", "--porcelain"], capture_output=True, text=True).stdout
    print("git status: " + (tree.strip() or "clean"))
    return done.code


if __name__ == "__main__": sys.exit(main())
