"""Run library notebooks in place and store tidy outputs (no widget state, no paths of this machine, no timings).

    python tools/execute_nbs.py nbs/03_world/50_render.ipynb [more ...]   # default: every library notebook, in order
    python tools/execute_nbs.py --check nbs/tutorials/00_tour.ipynb       # store nothing; say which numbers have moved
"""
import argparse
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from traitlets.config import Config

ROOT = Path(__file__).resolve().parents[1]
NOISE = re.compile(r"Kernel is running over TCP|FutureWarning|UserWarning|DeprecationWarning|^\s*warnings\.warn")


def library_notebooks():
    "The notebooks that keep their outputs: everything outside `experiments`"
    return sorted(p for p in (ROOT / "nbs").rglob("*.ipynb")
                  if "experiments" not in p.parts and ".ipynb_checkpoints" not in p.parts and p.name[0] not in "_.")


def skip(cell):
    "True for a cell that nbdev would not evaluate either"
    return re.search(r"^#\|\s*(eval:\s*false|slow|gpu|notest)\b", cell.source, re.M) is not None


def tidy(nb):
    "Drop what changes from run to run or names this machine"
    home = str(ROOT)
    for cell in nb.cells:
        if cell.cell_type != "code": continue
        cell.execution_count = None
        cell.metadata.pop("execution", None)
        kept = []
        for out in cell.outputs:
            if out.output_type == "stream":
                if out.name == "stderr": continue
                out.text = re.sub(r" at 0x[0-9a-f]+", "", out.text).replace(home, ".")
                if NOISE.search(out.text): continue
            if "execution_count" in out: out["execution_count"] = None
            data = out.get("data", {})
            data.pop("application/vnd.jupyter.widget-view+json", None)
            for key, value in data.items():
                if isinstance(value, str) and key.startswith("text/"):
                    value = re.sub(r" at 0x[0-9a-f]+", "", value).replace(home, ".")
                    data[key] = value
            if out.output_type in ("display_data", "execute_result") and not data: continue
            last = kept[-1] if kept else out
            if last is not out and out.output_type == last.output_type == "stream" and out.name == last.name:
                last.text += out.text   # one print may arrive in two parts
            else: kept.append(out)
        cell.outputs = kept
    nb.metadata.pop("widgets", None)
    nb.metadata = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"},
                   "language_info": {"name": "python"}}
    return nb


def run(path):
    "A notebook executed, cells in order, honouring nbdev's `eval: false`"
    nb = nbformat.read(path, 4)
    runnable = nbformat.v4.new_notebook(metadata=nb.metadata)
    runnable.cells = [c for c in nb.cells if c.cell_type != "code" or not skip(c)]
    with tempfile.TemporaryDirectory() as d:
        # socket files instead of ports, where there are such: nobody else can connect, and the kernel does not warn
        local = dict(transport="ipc", ip=f"{d}/socket", connection_file=f"{d}/kernel.json")
        config = Config(KernelManager=local if os.name == "posix" else {})
        client = NotebookClient(runnable, timeout=600, kernel_name="python3", config=config,
                                resources={"metadata": {"path": str(path.parent)}})
        client.execute()
    return tidy(nb)


NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")
# lines that differ in every run
TIMES = re.compile(r"seconds?\b|\bms per query|times the product|\d s after the run was opened")
PROCESSOR = re.compile(r"^\d+ threads?, .+$", re.M)                    # printed by notebooks that train


def said(nb):
    "Texts of the outputs of a notebook, cell by cell, without lines about time"
    for number, cell in enumerate(nb.cells):
        for out in cell.get("outputs", ()):
            data = out.get("data", {})
            text = out.get("text") or data.get("text/markdown") or data.get("text/plain", "")
            lines = ("".join(text) if isinstance(text, list) else text).splitlines()
            yield number, "\n".join(line for line in lines if not TIMES.search(line))


def moved(stored, again):
    """What a run says otherwise than the stored outputs, as texts.

    Wording and numbers must agree to the last digit, up to the output with the line on threads and processor, which
    notebooks print that train. From there on scores must agree within 2 and a quarter, and wording is not compared:
    processors of one instruction set round in several ways, and a training follows the rounding.
    """
    old, new = list(said(stored)), list(said(again))
    if len(old) != len(new): return [f"{len(new)} outputs, stored are {len(old)}"]
    found, exact = [], True
    for (cell, a), (_, b) in zip(old, new):
        exact = exact and not PROCESSOR.search(a)
        a, b = (PROCESSOR.sub("", t) for t in (a, b))
        if NUMBER.sub("#", a).split() != NUMBER.sub("#", b).split():
            if exact: found.append(f"cell {cell}: {b[:200]!r}, stored: {a[:200]!r}")
            continue
        for x, y in zip(NUMBER.findall(a), NUMBER.findall(b)):
            digit = 10.**-len(x.partition(".")[2].partition("e")[0]) if "." in x else 0.
            far = 1.01*digit if exact else 2 + .25*max(abs(float(x)), abs(float(y)))
            if abs(float(x) - float(y)) > far: found.append(f"cell {cell}: {y}, stored: {x}, in {a[:120]!r}")
    return found


def execute(path):
    "Execute one notebook and store its outputs"
    nb = run(path)
    tmp = path.with_suffix(".ipynb.tmp")
    nbformat.write(nb, tmp)
    os.replace(tmp, path)
    return sum(len(nbformat.v4.writes(nbformat.v4.new_notebook(cells=[c]))) for c in nb.cells)


def main(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--check", action="store_true", help="store nothing; say which numbers have moved")
    p.add_argument("notebooks", nargs="*", type=Path, help="default: those of the library")
    args = p.parse_args(argv)
    quiet = dict(TOKENIZERS_PARALLELISM="false", REID_LAB_QUIET="1")   # progress lines are not results
    for key, value in dict(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", IN_TEST="1", **quiet).items():
        os.environ.setdefault(key, value)
    # With another backend than the notebook's own no picture would be stored.
    for name in ("PYTHONDONTWRITEBYTECODE", "MPLBACKEND"): os.environ.pop(name, None)
    failed = 0
    for path in [a.resolve() for a in args.notebooks] or library_notebooks():
        try:
            if args.check:
                found = moved(nbformat.read(path, 4), run(path))
                failed += bool(found)
                print(f"{'MOVED' if found else 'ok':7} {path.relative_to(ROOT)}", *found, sep="\n    ", flush=True)
            else: print(f"ok      {path.relative_to(ROOT)}  {execute(path) // 1024} KB", flush=True)
        except CellExecutionError as e:
            failed += 1
            print(f"FAILED  {path.relative_to(ROOT)}\n{str(e)[-3000:]}", flush=True)
    return failed > 0


if __name__ == "__main__": sys.exit(main())
