"""What a command is given and what it shows: options, numbers, notebooks, names and pictures of others."""
import os

import numpy as np
from fault import bad, refused

from reid_lab.results.rows import load_results
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.search import images_of


def _features(tmp, **more):
    np.savez(tmp/"q.npz", **dict(emb=np.eye(4, 3, dtype="f4") + .1, pid=np.arange(4), cam=np.arange(4) % 2) | more)
    return str(tmp/"q.npz")


def _usage(*argv):
    "What argparse prints when it refuses"
    import contextlib
    import io

    from reid_lab.cli.commands import main
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try: main([str(a) for a in argv])
        except SystemExit as e: assert e.code == 2
        else: raise AssertionError("the command was not refused")
    raise ValueError(err.getvalue())


def _notebook(tmp, content):
    (tmp/"x.ipynb").write_bytes(content)
    return refused("run", tmp/"x.ipynb", "--out", tmp/"run")


def _below_a_file(tmp, command, *more):
    q = _features(tmp)
    return refused(command, q, q, "--out", f"{q}/x", *more)


def _crops(tmp, name="crops", file="a.jpg"):
    from PIL import Image
    (tmp/name).mkdir()
    Image.new("RGB", (16, 32)).save(tmp/name/file)
    return tmp/name


def _bytes(tmp):
    "A folder of crops with an image whose name is no UTF-8"
    return _crops(tmp, file=os.fsdecode(b"caf\xe9.jpg"))


def _twice(option, *values):
    return lambda tmp: _usage("match", "a.npz", "b.npz", *(x for v in values for x in (option, v)))


SYNTAX = (b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code", "id": "a", '
          b'"outputs": [], "execution_count": null, "metadata": {"tags": ["parameters"]}, "source": "seed = ("}]}')

FAULTS = [
    bad("shown: an option twice", "`--model a --model b`", _twice("--model", "a", "b"),
        "argument --model: is given twice"),
    bad("shown: a number twice", "`-k 1 -k 1`", _twice("-k", "1", "1"), "argument -k: is given twice; give it once"),
    bad("shown: a threshold twice", "`--threshold a --threshold b`", _twice("--threshold", "a", "b"), "is given twice"),
    bad("shown: a column twice", "`--column path=a --column path=b`", lambda tmp: _usage("embed", tmp, "--model",
        "clip_tiny",
        "--out", "e", "--column", "path=a", "--column", "path=b"), "argument --column: gives path twice"),
    bad("shown: an empty option", "`--out ''`", _twice("--out", ""), "argument --out: is empty; give a value"),
    bad("shown: an empty file name", "`match '' b.npz`", lambda tmp: _usage("match", "", "b.npz"),
        "argument a: is empty"),
    bad("shown: an empty model", "`--model ''`", _twice("--model", ""), "argument --model: is empty"),
    *(bad(f"shown: {option} {value}", f"`{command} {option} {value}`",
          lambda tmp, command=command, option=option, value=value: _usage(command, "camel", option, value),
          f"argument {option}: '{value}' must be a whole number from")
      for command, option, value in (("run", "--threads", "0"), ("run", "--threads", "1.5"), ("run", "--timeout", "-1"),
                                     ("sweep", "--jobs", "0"), ("sweep", "--jobs", str(10**20)),
                                     ("sweep", "--seeds", "-1"), ("sweep", "--seeds", str(2**32)))),
    bad("shown: a World of a negative seed", "`world --seed -1`", lambda tmp: _usage("world", "--seed", "-1"),
        "argument --seed: '-1' must be a whole number from 0"),
    *(bad(f"shown: {command} {option} {value}", f"`{command} {option} {value}`",
          lambda tmp, command=command, option=option, value=value: _usage(command, "q.npz", "g.npz", option, value),
          f"argument {option}: '{value}' must be a whole number from", f"`reid_lab {command} --help`")
      for command, option, value in (("bias", "--seed", "-1"), ("metrics", "--ks", "0"), ("search", "-k", "-1"),
                                     ("match", "-k", "0"))),
    bad("shown: batches of no image", "`embed --batch-size 0`", lambda tmp: _usage("embed", tmp, "--model", "clip_tiny",
        "--out", "e", "--batch-size", "0"), "argument --batch-size: '0' must be a whole number from 1"),
    bad("shown: half an expression", "`--pattern '('`", lambda tmp: refused("embed", _crops(tmp), "--model",
        "clip_tiny",
        "--out", tmp/"e", "--pattern", "("), "is no", "missing )"),
    bad("shown: a notebook cut short", "half of its JSON", lambda tmp: _notebook(tmp, b'{"cells": ['),
        "x.ipynb' is no notebook that can be read", "open it in Jupyter"),
    bad("shown: a notebook that is a list", "`[]`", lambda tmp: _notebook(tmp, b"[]"),
        "is no notebook that can be read"),
    bad("shown: a notebook of bytes", "a picture's first bytes", lambda tmp: _notebook(tmp, b"\x89PNG\xff\xd8"),
        "is no notebook that can be read"),
    bad("shown: a notebook without cells", "`{}`", lambda tmp: _notebook(tmp, b"{}"),
        "is no notebook that can be read"),
    bad("shown: parameters that are no Python", "`seed = (`", lambda tmp: _notebook(tmp, SYNTAX),
        "the cell tagged 'parameters' is no Python", "line 1", "'seed = ('"),
    bad("shown: --out of calibrate below a file", "`--out q.npz/x`",
        lambda tmp: _below_a_file(tmp, "calibrate", "--rate", ".5"),
        "--out", "q.npz' is a file, and no folder", "choose another place"),
    bad("shown: --out of match below a file", "`--out q.npz/x`", lambda tmp: _below_a_file(tmp, "match"),
        "--out", "q.npz' is a file, and no folder", "choose another place"),
    bad("shown: no run yet", "`results` of a store that is not there", lambda tmp: refused("results", "--store",
        tmp/"none.csv"), "no results at", "`reid_lab run camel`", "--store measured"),
    bad("shown: a store without rows", "`results` of an empty file", lambda tmp: ((tmp/"none.csv").write_text(""),
        refused("results", "--store", tmp/"none.csv")), "none.csv holds no row yet", "--store measured"),
    bad("shown: no row of such a preset", "`results --where preset=nope`", lambda tmp: refused("results", "--store",
        "measured", "--where", "preset=nope"), "rows of --store measured meets --where preset=nope", "its runs are"),
    bad("shown: no row of such a run", "`results list nope`", lambda tmp: refused("results", "list", "nope", "--store",
        "measured"), "rows of --store measured meets RUN nope", "its runs are"),
    bad("shown: no rows yet, in Python", "load_results of a file that is not there",
        lambda tmp: load_results(tmp/"none.csv"),
        "no results at", "`reid_lab run camel`", "store='measured'", error=FileNotFoundError),
    *(bad(f"shown: {option} {name} of match", f"`{option} {name}`",
          lambda tmp, option=option, name=name: refused("match", q := _features(tmp), q, option, tmp/name),
          option, f"{name}: the name says the form", ending)
      for option, name, ending in (("--html", "page.txt", "one of the endings .html, .htm"),
                                   ("--html", "page", "one of the endings .html, .htm"),
                                   ("--out", "pairs.xlsx", "the ending .csv"))),
    bad("shown: --images that is no folder", "`--images missing --html p.html`",
        lambda tmp: refused("match", q := _features(tmp, path=np.array(list("abcd"))), q, "--images", tmp/"missing",
        "--html",
                            tmp/"p.html"), "--images", "missing is no folder"),
    bad("shown: --images without a page", "`--images missing`", lambda tmp: refused("match", q := _features(tmp), q,
        "--images", tmp/"missing"), "--images", "give --html as well"),
    bad("shown: --images of features without paths", "`--images . --html p.html`", lambda tmp: refused("match",
        q := _features(tmp), q, "--images", tmp, "--html", tmp/"p.html"), "--images", "hold no paths"),
    bad("shown: weights that embed nothing", "`match --weights w` of two files of features",
        lambda tmp: refused("match", q := _features(tmp), q, "--weights", "w"), "--weights is for a folder of crops"),
    bad("shown: captions of a folder", "`embed FOLDER --captions`", lambda tmp: refused("embed", _crops(tmp), "--model",
        "clip_tiny", "--out", tmp/"e", "--captions"), "--captions:", "is a folder", "a manifest"),
    bad("shown: --images that is a file", "`--images q.npz --html p.html`",
        lambda tmp: refused("match", q := _features(tmp, path=np.array(list("abcd"))), q, "--images", q, "--html",
                            tmp/"p.html"), "--images", "q.npz is no folder"),
    bad("shown: a folder of pictures that is none, in Python", "folder='missing'",
        lambda tmp: images_of(Embeddings(np.eye(2), [0, 1], path=["a", "b"]), tmp/"missing"), "folder=",
        "is no folder"),
    bad("shown: a name that is no UTF-8", "a folder named by bytes", lambda tmp: refused("embed", _bytes(tmp),
        "--model",
        "clip_tiny", "--out", tmp/"e"), "caf\\udce9", "rename"),
    bad("shown: an escape in a path", "an escape in the name of a file that is missing",
        lambda tmp: refused("metrics", tmp/"a\x1b[2J.npz", tmp/"b.npz"), r"a\x1b[2J.npz does not exist"),
]
