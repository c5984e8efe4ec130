"""Two sides that do not fit, thresholds that are none, features without spread, files of other programs."""
import json

import numpy as np
import torch
from fault import bad, clutter, refused

from reid_lab.analysis.bias.maps import project
from reid_lab.analysis.open_set import Threshold, calibrate, open_set_rates, search_scores
from reid_lab.retrieval.cameras import CameraStats, cluster
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.sides import one_numbering

RNG = np.random.default_rng(0)
E = Embeddings(RNG.normal(size=(40, 6)).astype("f4"), np.arange(40) % 10, np.arange(40) % 4)
GOOD = dict(value=.5, target=.05, reached=.05, n=20, people=10)


def _two(tmp, a, b, **arrays):
    "Features of two models in two files"
    for name, model in (("q", a), ("g", b)):
        Embeddings(E.emb, E.pid, E.cam, meta=dict(model=model), **arrays).save(tmp/f"{name}.npz")
    return tmp/"q.npz", tmp/"g.npz"


def _files(tmp, **change):
    "Two feature files of another program; `change` replaces arrays of the queries"
    for name, more in (("q", change), ("g", {})):
        np.savez(tmp/f"{name}.npz", **(dict(emb=E.numpy(), pid=E.pid, cam=E.cam) | more))
    return tmp/"q.npz", tmp/"g.npz"


def _threshold(tmp, text=None, **change):
    (tmp/"t.json").write_text(json.dumps(GOOD | change) if text is None else text)
    return refused("match", *_files(tmp), "--threshold", tmp/"t.json")


def _rate(tmp, rate):
    "Nothing is written, visible or hidden"
    q, g = _files(tmp)
    try: refused("calibrate", q, g, "--rate", rate, "--out", tmp/"t.json")
    finally: assert not (tmp/"t.json").exists() and not clutter(tmp)


def _foreign(tmp, suffix):
    path = tmp/f"x{suffix}"
    if suffix == ".npy": np.save(path, E.numpy())
    elif suffix == ".pt": torch.save(dict(features=E.emb), path)
    else: path.write_bytes(b"no MATLAB file at all")
    return refused("metrics", path, _files(tmp)[1])


NAMED = Embeddings(E.emb[:2], [0, 1], columns=dict(pid_name=["ann", "bob"]))
FLAT = Embeddings(np.ones((30, 8), "f4"), np.arange(30)//3, np.arange(30) % 3)

FAULTS = [
    *(bad(f"sides: {command} with two models", "queries of one model, gallery of another",
          lambda tmp, command=command, more=more: refused(command, *_two(tmp, "bot_tiny", "camel_tiny"),
                                                          *(tmp/m if m == "t.json" else m for m in more)),
          "bot_tiny", "camel_tiny", "one model")
      for command, more in (("metrics", ()), ("bias", ()), ("match", ()), ("calibrate", ("--out", "t.json")))),
    bad("sides: names against numbers", "ann and bob against 1 and 2", lambda tmp: one_numbering(NAMED, E),
        "'ann', 'bob'", "no name is a number", "pid_name"),
    bad("sides: metrics of names against numbers", "the same in Python", lambda tmp: retrieval_metrics(E[:4], NAMED),
        "gallery have names"),
    bad("sides: everybody is there only as himself", "one image a person, one file on both sides",
        lambda tmp: refused("metrics", *[_files(tmp, emb=E.numpy()[:10], pid=E.pid[:10], cam=E.cam[:10])[0]]*2,
                            "--same-camera", "keep"), "10 are the only image of their person",
                                "give the gallery others"),
    *(bad(f"threshold: {name}", f"a file with {change}",
          lambda tmp, change=change: _threshold(tmp, **change), "t.json", *words)
      for name, change, words in (
          ("NaN", dict(value=float("nan")), ("value=nan",
              "calibrate anew")), ("null", dict(value=None), ("value=None",)),
          ("text", dict(value="0.5"), ("value='0.5'",)), ("infinite", dict(value=float("inf")), ("value=inf",)),
          ("rate is text", dict(reached="x"), ("reached='x'",)), ("half a person", dict(people=1.5), ("people=1.5",)),
          ("of another kind", dict(kind="roc"), ("kind",
              "fpir")), ("unknown fact", dict(colour="red"), ("['colour']",)))),
    bad("threshold: a list", "JSON of another kind",
        lambda tmp: _threshold(tmp, "[1, 2]"), "lacks", "reid_lab calibrate"),
    bad("threshold: no JSON", "a text file", lambda tmp: _threshold(tmp, "0.5 or so"), "no saved Threshold"),
    bad("threshold: a number on the command line", "--threshold 0.5",
        lambda tmp: refused("match", *_files(tmp), "--threshold", "0.5"), "is a number",
            "reid_lab calibrate QUERY GALLERY"),
    bad("threshold: no such file", "--threshold gone.json",
        lambda tmp: refused("search", _files(tmp)[0], "a man", "--threshold", tmp/"gone.json"), "does not exist"),
    bad("threshold: NaN in Python", "open_set_rates(found, nan)",
        lambda tmp: open_set_rates(search_scores(E[:20], E), float("nan")), "no finite number"),
    bad("threshold: built from NaN", "Threshold(nan, ...)",
        lambda tmp: Threshold(float("nan"), .1, .1, 1, 1), "value=nan"),
    bad("threshold: rate in Python", "calibrate(found, inf)",
        lambda tmp: calibrate(search_scores(E[:20], E), float("inf")),
        "between 0 and 1"),
    *(bad(f"calibrate: --rate {rate}", "no share of searches", lambda tmp, rate=rate: _rate(tmp, rate), "--rate", rate,
          "between 0 and 1") for rate in ("inf", "nan", "0.0", "1.0", "-0.1")),
    bad("labels: calibrate with names on one side", "names in the array pid of the queries",
        lambda tmp: refused("calibrate", *_files(tmp, pid=np.array([f"p{i}" for i in E.pid])), "--out", tmp/"t.json"),
        "have names ('p0'", "cannot be compared"),
    *(bad(f"labels: {command} with integer emb", "codes of whole numbers in an integer type",
          lambda tmp, command=command, more=more: refused(command, *_files(tmp, emb=np.arange(240).reshape(40, 6)),
                                                          *(tmp/m if m == "t.json" else m for m in more)),
          "q.npz", "emb has dtype int64") for command, more in (("match", ()), ("calibrate", ("--out", "t.json")))),
    bad("labels: search with integer emb", "the same",
        lambda tmp: refused("search", _files(tmp, emb=np.ones((40, 6), int))[0],
        "a man"), "emb has dtype int64"),
    *(bad(f"spread: {what}", "all features are equal", lambda tmp, call=call: call(), "all 30 features are equal",
          "collapsed model?") for what, call in (
              ("t-SNE", lambda: project(FLAT, "tsne")), ("PCA", lambda: project(FLAT, "pca")),
              ("k-means", lambda: cluster(FLAT.emb, 3)), ("rounding only", lambda: cluster(FLAT.emb*.1 + 1e-9, 3)))),
    bad("spread: bias report", "all features are equal", lambda tmp: refused(
        "bias", *_files(tmp, emb=np.ones((40, 6), "f4"))), "collapsed model?"),
    bad("cameras: none is known", "cam -1 in all rows", lambda tmp: CameraStats(E.emb, [-1]*40), "unknown, for all 40"),
    *(bad(f"files: {suffix} without identities", "features of another program",
          lambda tmp, suffix=suffix: _foreign(tmp, suffix), "numpy.savez('x.npz'", "pid=") for suffix in (".npy",
              ".pt", ".mat")),
]
