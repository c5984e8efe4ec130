"The command compare: features of other images, options without effect, forms that do not exist"
import numpy as np
from fault import bad, refused

from reid_lab.retrieval.embeddings import Embeddings


def _file(tmp, name, n=8, shift=0, paths=True):
    "Features of a set, as `embed` writes them"
    e = Embeddings(np.eye(n, 4, dtype="f4") + .1, np.arange(n)//2 + shift, np.arange(n) % 2)
    if paths: e.path = [f"{i}.jpg" for i in range(n)]
    e.save(tmp/name)
    return tmp/name


def _compare(tmp, *args):
    "With three files: `b.npz` lacks rows, `c.npz` has no paths and other people"
    _file(tmp, "a.npz")
    _file(tmp, "b.npz", n=6)
    _file(tmp, "c.npz", shift=3, paths=False)
    (tmp/"there.md").write_text("mine")
    (tmp/"empty").mkdir()
    names = ("a.npz", "b.npz", "c.npz", "there.md", "empty")
    refused("compare", *(tmp/arg if arg in names else arg.replace("=b.npz", f"={tmp}/b.npz") for arg in args))


ON = ("--on", "world", "--data", "preset=smoke")
FAULTS = [
    bad("compare: fewer images", "features of six of eight images", lambda tmp: _compare(tmp, "a.npz", "b.npz"),
        "queries: b lacks 2 of the 8 rows of a", "--common"),
    bad("compare: other people", "rows of other people", lambda tmp: _compare(tmp, "a.npz", "c.npz"),
        "person of row 0 is 0 in a and 3 in c", "8 of 8 rows differ"),
    bad("compare: a model on nothing", "a model without --on", lambda tmp: _compare(tmp, "bot_tiny"),
        "bot_tiny is a model", "--on DATASET"),
    bad("compare: features on a dataset", "--on of features alone",
        lambda tmp: _compare(tmp, "a.npz", "--on", "world"),
        "--on world names datasets", "leave it out"),
    bad("compare: --split of features", "a split where nothing is read", lambda tmp: _compare(tmp, "a.npz", "--split",
        "val"), "--split is for models", "leave it out"),
    bad("compare: --root of a folder", "a root where no dataset is named",
        lambda tmp: _compare(tmp, "bot_tiny", "--on", "empty", "--root", "empty"), "--root is for datasets by name"),
    bad("compare: --folders of a dataset", "subfolders where no folder is named",
        lambda tmp: _compare(tmp, "bot_tiny", *ON, "--folders", "identity"), "--folders is for folders of people"),
    bad("compare: a folder of nothing", "an empty folder as features",
        lambda tmp: _compare(tmp, "empty", "--on", "world"),
        "holds no features of 'world'"),
    bad("compare: an empty set", "an empty folder as a dataset",
        lambda tmp: _compare(tmp, "bot_tiny", "--on", "empty"),
        "empty"),
    bad("compare: a set that is not there", "a misspelt dataset",
        lambda tmp: _compare(tmp, "bot_tiny", "--on", "wrld"),
        "--on wrld is no dataset and does not exist", "market1501"),
    bad("compare: weights of nobody", "--weights of a label that is not there",
        lambda tmp: _compare(tmp, "bot_tiny", *ON, "--weights", "bt=x.pth"), "--weights", "'bt' is not known",
        "write LABEL=MODEL"),
    bad("compare: a tower without weights", "a network of timm by its name alone",
        lambda tmp: _compare(tmp, "frozen:resnet50", *ON), "comes without weights", "--weights LABEL=FILE"),
    bad("compare: arguments of nobody", "-p without --weights", lambda tmp: _compare(tmp, "bot_tiny", *ON, "-p",
        "pool=gem"), "-p is for models with --weights LABEL=FILE"),
    bad("compare: a size that is none", "-p size=big",
        lambda tmp: _compare(tmp, "b=bot_r50", *ON, "--weights", "b=none", "-p", "size=big"),
        "-p size", "no height and width"),
    bad("compare: a tokenizer alone", "--tokenizer without --weights",
        lambda tmp: _compare(tmp, "clip_tiny", *ON, "--tokenizer", "clip_tiny=clip"), "is of --weights clip_tiny=FILE"),
    bad("compare: a table of no known form", "--out table.doc", lambda tmp: _compare(tmp, "a.npz", "--out", "t.doc"),
        "--out t.doc", ".tex"),
    bad("compare: a table that is there", "--out of a file of the user", lambda tmp: _compare(tmp, "a.npz", "--out",
        "there.md"), "exists; give another --out, or --fresh"),
    bad("compare: a figure of no known form", "--figure f.gif",
        lambda tmp: _compare(tmp, "a.npz", "--figure", "f.gif"),
        "--figure f.gif", ".svg"),
    bad("compare: fusion of one model", "--fuse of one set of features", lambda tmp: _compare(tmp, "a.npz", "--fuse"),
        "--fuse needs two models at least"),
    bad("compare: fusion of too few people", "--fuse of three people",
        lambda tmp: _compare(tmp, "b.npz", "x=b.npz", "--fuse", "--same-camera", "keep"),
        "3 have queries that count", "two in each half"),
    bad("compare: two forms of one output", "--json --format md",
        lambda tmp: _compare(tmp, "a.npz", "--json", "--format", "md"), "give one of them"),
    bad("compare: --fresh of nothing", "--fresh without files", lambda tmp: _compare(tmp, "a.npz", "--fresh"),
        "--fresh replaces the files of --out and --figure"),
    bad("compare: captions of a dataset without any", "--captions of a folder",
        lambda tmp: _compare(tmp, "clip_tiny", "--on", "empty", "--captions"), "--captions", "holds no captions"),
    bad("compare: no such argument of a loader", "--data prest=smoke",
        lambda tmp: _compare(tmp, "bot_tiny", "--on", "world", "--data", "prest=smoke"), "prest",
        "Did you mean 'preset'"),
]
