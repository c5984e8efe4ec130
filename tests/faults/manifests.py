"""Manifests and folders of crops that cannot be read rightly."""
import numpy as np
import pandas as pd
from fault import bad, refused
from PIL import Image
from safetensors.numpy import save_file

from reid_lab.data.crops import crops_table
from reid_lab.data.table import ReidTable
from reid_lab.retrieval.embeddings import Embeddings


def _images(tmp, *names):
    for name in names or ("a.jpg", "b.jpg"):
        (tmp/name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 32), (200, 0, 0)).save(tmp/name)
    return tmp


def _manifest(text, name="m.csv"):
    "A call that reads a manifest of this text"
    def call(tmp):
        (_images(tmp)/name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return crops_table(tmp/name)
    return call


def _parquet(**columns):
    def call(tmp):
        pd.DataFrame(dict(path=["a.jpg", "b.jpg"], **columns)).to_parquet(_images(tmp)/"m.parquet")
        return crops_table(tmp/"m.parquet")
    return call


def _beside(text):
    "A call that loads vectors with a table of labels of this text"
    def call(tmp):
        save_file(dict(emb=np.eye(3, dtype=np.float32)), tmp/"emb.safetensors")
        (tmp/"table.csv").write_text(text)
        return Embeddings.load(tmp)
    return call


def _command(*words):
    def call(tmp):
        _images(tmp/"g", "a.jpg")
        (tmp/"empty").mkdir()
        return refused("embed", *(str(tmp/w[1:]) if w[0] == "@" else w for w in words), "--model", "bot_tiny",
        "--out",
                       tmp/"f.npz")
    return call


FAULTS = [
    bad("manifest: an id of twenty digits", "10^20", _manifest(f"path,pid\na.jpg,1\nb.jpg,1{'0'*20}\n"),
        "pid=1000", "row 1",
        "64 bits"),
    bad("manifest: an id of 2^64 - 1", "parquet", _parquet(pid=np.array([1, 2**64 - 1], "u8")),
        "18446744073709551615",
        "64 bits"),
    bad("manifest: an id below -1", "pid -2", _manifest("path,pid\na.jpg,-2\nb.jpg,1\n"), "pid=-2 (row 0)",
        "below -1"),
    bad("manifest: a camera below -1", "cam -2", _manifest("path,pid,cam\na.jpg,1,-2\nb.jpg,1,0\n"), "cam=-2",
        "below -1"),
    bad("manifest: a camera is missing", "one of two", _manifest("path,pid,cam\na.jpg,1,\nb.jpg,1,3\n"), "no camera",
        "while other rows have one"),
    bad("manifest: a camera is NaN", "parquet", _parquet(pid=[1, 2], cam=[np.nan, 1.]), "no camera"),
    bad("manifest: one field too many", "a comma in a caption", _manifest("path,pid\na.jpg,1\nb.jpg,1,2\n"),
        "line 3 has 3 fields",
        "2 columns"),
    bad("manifest: one field too many everywhere", "pandas takes an index",
        _manifest("path,pid\na.jpg,1,7\nb.jpg,1,7\n"),
        "line 2 has 3 fields"),
    bad("manifest: a column twice", "pid,pid", _manifest("path,pid,pid\na.jpg,1,2\n"), "column 'pid' twice"),
    bad("manifest: boxes, again", "x, y, w, h", _manifest("path,x,y,w,h\na.jpg,0,0,5,5\n"), "has boxes", "the crops"),
    bad("manifest: corners, again", "x1, y1, x2, y2", _manifest("path,X1,Y1,X2,Y2\na.jpg,0,0,5,5\n"),
        "has boxes (X1"),
    bad("manifest: a bbox", "one column", _manifest("path,bbox\na.jpg,0 0 5 5\n"), "has boxes (bbox)"),
    bad("manifest: a file twice", "./a.jpg beside a.jpg", _manifest("path,pid\na.jpg,1\n./a.jpg,2\n"),
        "the same path in several rows"),
    bad("manifest: a number as caption", "parquet", _parquet(caption=[5, 6]), "captions of row 0"),
    bad("manifest: a JSON line that is cut", ".jsonl", _manifest('{"path": "a.jpg"}\n{"path"', "m.jsonl"),
        "line 2 is no JSON"),
    bad("manifest: a JSON line that is a list", ".jsonl", _manifest('["a.jpg"]\n', "m.jsonl"), "line 1 is a list"),
    bad("manifest: another encoding", "Latin-1", _manifest("path,pid\nä.jpg,1\n".encode("latin-1")),
        "is not UTF-8", "save it"),
    bad("manifest: UTF-16 without a mark, again", "zero bytes", _manifest("path,pid\na.jpg,1\n".encode("utf-16-le")),
        "zero bytes"),
    bad("labels: one field too many beside vectors", "table.csv", _beside("pid,cam\n10,0,7\n11,1,7\n12,2,7\n"),
        "line 2 has 3 fields"),
    bad("labels: a column twice beside vectors", "table.csv", _beside("pid,pid\n1,1\n1,1\n1,1\n"),
        "column 'pid' twice"),
    bad("labels: a camera below -1 beside vectors", "table.csv", _beside("pid,cam\n1,-2\n1,1\n1,1\n"),
        "cam=-2 (row 0)"),
    bad("features: masked vectors, again", "numpy.ma", lambda tmp: Embeddings(np.ma.array(np.eye(2),
        mask=np.eye(2)), [0,
        1]),
        "emb has masked values"),
    bad("features: a person below -1", "pid -5", lambda tmp: Embeddings(np.eye(2, dtype=np.float32), [0, -5]),
        "pid[1] is -5"),
    bad("crops: a pattern that is none", "--pattern (", _command("@g", "--pattern", "("), "is no regular expression"),
    bad("crops: an open set in a pattern", "--pattern [", _command("@g", "--pattern", "[a"),
        "is no regular expression"),
    bad("crops: an empty folder", "no image", _command("@empty"), "no images under", ".jpg"),
    bad("crops: a folder without images", "only notes", lambda tmp: ((tmp/"n.txt").write_text("x"), crops_table(tmp)),
        "no images under"),
    bad("crops: a pattern without identities", "(?P<person>..)",
        lambda tmp: ReidTable.from_folder(_images(tmp), r"(?P<person>\w+)", cam=-1), "Did you mean 'pid'"),
]
