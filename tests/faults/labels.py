"Labels, manifests and folders of crops: what no id can be, tables that cannot be read, what would be embedded wrongly"
import numpy as np
import pandas as pd
from fault import bad, refused
from PIL import Image

from reid_lab.data.crops import captions_of, crops_table, manifest_table
from reid_lab.data.labels import read_labels
from reid_lab.data.table import ReidTable, numbered
from reid_lab.retrieval.embeddings import Embeddings


def _image(folder, *names):
    "The folder with small images"
    for name in names:
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 16), (90, 30, 30)).save(folder/name, "JPEG")
    return folder


def _manifest(text, name="m.csv", **kw):
    "Read a manifest of this text, or these bytes, beside a.jpg"
    def read(tmp):
        (_image(tmp, "a.jpg", "b.jpg")/name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return manifest_table(tmp/name, **kw)
    return read


def _embedded(text, *options):
    "Embed a manifest of this text on the command line"
    def run(tmp):
        (_image(tmp, "a.jpg", "b.jpg")/"m.csv").write_text(text)
        refused("embed", tmp/"m.csv", "--model", "bot_tiny", "--out", tmp/"o.npz", *options)
    return run


def _folder(*options):
    "Embed a folder with one text and no image on the command line"
    def run(tmp):
        (tmp/"crops").mkdir()
        (tmp/"crops"/"note.txt").write_text("x")
        refused("embed", tmp/"crops", "--model", "bot_tiny", "--out", tmp/"o.npz", *options)
    return run


def _features(table=b"[1, 2]", **arrays):
    "Load a .npz with these arrays"
    def load(tmp):
        have = dict(emb=np.eye(2, dtype="f4"), pid=[0, 1]) | arrays
        np.savez(tmp/"f.npz", table=np.frombuffer(table, np.uint8), **have)
        return Embeddings.load(tmp/"f.npz")
    return load


def _frame(**columns):
    "A table of a frame with these columns"
    return lambda tmp: ReidTable.from_dataframe(
        pd.DataFrame(dict(path=["a.jpg", "b.jpg"], **columns)), _image(tmp, "a.jpg", "b.jpg"))


def _captions(values):
    "A parquet manifest with these captions"
    def read(tmp):
        _image(tmp, "a.jpg", "b.jpg")
        pd.DataFrame(dict(path=["a.jpg", "b.jpg"], caption=values)).to_parquet(tmp/"m.parquet")
        return manifest_table(tmp/"m.parquet")
    return read


FAULTS = [
    bad("labels: twenty digits", "an id of twenty digits", lambda t: read_labels("pid", ["1", "9"*20]), "pid=9999",
        "64 bits"),
    bad("labels: 2^64 - 1", "-1 read as uint64", lambda t: read_labels("pid", np.array([2**64 - 1], "u8")), "row 0",
        "64 bits"),
    bad("labels: camera -2", "below unknown", lambda t: read_labels("cam", [0, -2]), "cam=-2 (row 1)", "below -1"),
    bad("labels: rounded", "a fraction beyond 2^53", lambda t: read_labels("pid", [1., 2.**60]), "row 1", "round"),
    bad("labels: infinite", "pid is inf", lambda t: read_labels("pid", [1., np.inf]), "row 1", "infinity"),
    bad("labels: lists", "a label is a list", lambda t: read_labels("pid", [[1], [2]]), "pid holds lists"),
    bad("labels: names that disagree", "one name for two ids",
        lambda t: numbered(pd.DataFrame(dict(pid=[0, 1], pid_name=["x", "x"])), "pid"),
        "pid and pid_name do not agree"),
    bad("manifest: twenty digits", "on the command line", _embedded(f"path,pid\na.jpg,{'9'*20}\n"), "64 bits",
        "line 2 of m.csv"),
    bad("manifest: camera -2", "on the command line", _embedded("path,cam\na.jpg,0\nb.jpg,-2\n"), "cam=-2", "below -1"),
    bad("manifest: a missing camera", "an empty cell among cameras", _manifest("path,cam\na.jpg,2\nb.jpg,\n"),
        "no camera (cam -1), while other rows have one"),
    bad("manifest: a field too many", "every line", _embedded("path,pid\na.jpg,1,7\nb.jpg,2,7\n"),
        "line 2 has 3 fields"),
    bad("manifest: a field too many in one line", "the last", _manifest("path,pid\na.jpg,1\nb.jpg,2,7\n"),
        "line 3 has 3 fields", "(path, pid)"),
    bad("manifest: a header with a column twice", "pid, pid", _embedded("path,pid,pid\na.jpg,1,2\n"), "'pid' twice"),
    bad("manifest: a column given twice", "--column a=x a=y",
        _embedded("path,x,y\na.jpg,1,2\n", "--column", "pid=x", "--column", "pid=y"), "gives pid twice"),
    bad("manifest: two columns from one", "--column a=x b=x",
        _embedded("path,x\na.jpg,1\n", "--column", "pid=x", "--column", "cam=x"), "'x' is given for both"),
    bad("manifest: a column that is there too", "--column pid=who beside pid",
        _embedded("path,pid,who\na.jpg,1,2\n", "--column", "pid=who"), "there is a column 'pid' too"),
    bad("manifest: boxes under other names", "left, top, width, height",
        _embedded("path,left,top,width,height\na.jpg,0,0,4,4\n"), "has boxes (left, top, width, height)",
        "--column x=left --column y=top --column w=width --column h=height"),
    bad("manifest: corners under other names", "xmin, ymin, xmax, ymax",
        _manifest("path,xmin,ymin,xmax,ymax\na.jpg,0,0,4,4\n"),
        "has boxes (xmin, ymin, xmax, ymax)", "x2=xmax"),
    bad("manifest: a column bbox", "a list a row", _manifest('path,bbox\na.jpg,"[0, 0, 4, 4]"\n'), "has boxes (bbox)",
        "four columns x, y, w, h"),
    bad("manifest: Latin-1", "an umlaut of another encoding", _manifest("path,pid\na.jpg,Jürg\n".encode("latin-1")),
        "is not UTF-8", "save it as UTF-8"),
    bad("manifest: UTF-16 without a mark", "every second byte is zero", _manifest("path\na.jpg\n".encode("utf-16-le")),
        "zero bytes", "UTF-16"),
    bad("manifest: one file twice", "./a.jpg beside a.jpg", _manifest("path\na.jpg\n./a.jpg\n"),
        "the same path in several rows"),
    bad("manifest: another case", "A.JPG for a.jpg", _manifest("path\nA.JPG\n"), "differs in capital letters only",
        "a.jpg"),
    bad("manifest: cut JSON lines", "half a record",
        _manifest('{"path": "a.jpg"}\n{"path', "m.jsonl"), "line 2 is no JSON"),
    bad("manifest: JSON lines of lists", "no record", _manifest("[1]\n", "m.jsonl"), "line 1 is a list"),
    bad("manifest: numbers as captions", "in parquet", _captions([5, 6]), "captions of row 0", "captions are texts"),
    bad("manifest: fractions as captions", "in parquet", _captions([.5, 2.]), "captions of row 0",
        "captions are texts"),
    bad("captions: half a list", "a cell that was cut", lambda t: captions_of("['a man', 'he"), "begins like a list"),
    bad("folder: no image", "an empty folder of crops", _folder(), "no images under", "endings read are .jpg"),
    bad("folder: no image, with a pattern", "words about files, not the pattern", _folder("--pattern", r"(?P<pid>\d+)"),
        "no images under", "1 files with other endings"),
    bad("folder: no expression", "--pattern '('", _folder("--pattern", "("), "is no regular expression"),
    bad("folder: no expression in Python", "pattern='[a'", lambda t: crops_table(_image(t, "a.jpg"), pattern="[a"),
        "pattern='[a' is no regular expression"),
    bad("folder: a misspelt group", "camera instead of cam",
        lambda t: ReidTable.from_folder(_image(t, "1_2.jpg"), r"(?P<pid>\d+)_(?P<camera>\d+)", cam=-1),
        "Did you mean 'cam'"),
    bad("features: masked vectors", "emb is a masked array",
        lambda t: Embeddings(np.ma.array(np.eye(2), mask=np.eye(2)), [0, 1]), "emb has masked values"),
    bad("features: camera -2", "below unknown", lambda t: Embeddings(np.eye(2), [0, 1], [0, -2]), "cam[1] is -2"),
    bad("features: JSON that is no record", "a list in a .npz", _features(), "f.npz", "no record"),
    bad("features: JSON that is cut", "in a .npz", _features(b'{"meta'), "table in", "f.npz", "no valid JSON"),
    bad("features: a missing camera", "NaN among cameras", _features(b"{}", cam=[0., np.nan]), "f.npz",
        "cam of row 1 is missing"),
    bad("labels: 1 and 01 in a manifest", "two persons, or one", _embedded("path,pid\na.jpg,1\nb.jpg,01\n"),
        "pid holds both '1' (line 2 of m.csv) and '01' (line 3 of m.csv)", "two spellings"),
    bad("labels: 1 and 01 as folders", "--folders identity",
        lambda t: refused("embed", _image(t/"in", "1/a.jpg", "01/b.jpg"), "--folders", "identity", "--model",
                          "bot_tiny", "--out", t/"o.npz"), "pid holds both", "two spellings"),
    bad("labels: cameras 1 and 01 in names", "one camera, or two",
        lambda t: ReidTable.from_folder(_image(t, "5_c1.jpg", "6_c01.jpg")),
        "cam holds both '1' (row 0) and '01' (row 1)"),
    bad("labels: 1 and 01 in a frame", "texts", _frame(pid=["1", "01"]), "pid holds both", "two spellings"),
    bad("labels: 1 and 01 in JSON lines", "a number and a text",
        _manifest('{"path": "a.jpg", "pid": 1}\n{"path": "b.jpg", "pid": "01"}\n', "m.jsonl"), "pid holds both"),
    bad("labels: 1 and 01 in features", "texts in a .npz", _features(b"{}", pid=np.array(["1", "01"])), "f.npz",
        "pid holds both"),
    bad("labels: true as an id of a frame", "a column of truth values", _frame(pid=[True, False]), "no labels"),
    bad("labels: an id of 2^64 - 1 in a frame", "an unsigned type", _frame(pid=np.array([1, 2**64 - 1], "u8")),
        "64 bits"),
    bad("labels: a missing camera of a frame", "NaN among cameras", _frame(pid=[0, 1], cam=[0., np.nan]),
        "no camera (cam -1)"),
    bad("manifest: a field too few", "the last line", _embedded("path,pid,cam\na.jpg,1,0\nb.jpg,2\n"),
        "line 3 has 2 fields", "write the fields that are empty too"),
    bad("manifest: a field too few after blank lines", "and after quotes over two lines",
        _manifest('path,pid,note\na.jpg,1,"x\ny"\n\nb.jpg,2\n'), "line 5 has 2 fields"),
    bad("manifest: a field too few in a .tsv", "tabs at the end of a line were cut",
        _manifest("path\tpid\tcaption\na.jpg\t1\ta man\nb.jpg\t2\n", "m.tsv"), "line 3 has 2 fields"),
    bad("manifest: too few fields in UTF-16", "every line", _manifest("path;pid\na.jpg\n".encode("utf-16")),
        "line 2 has 1 field,"),
]
