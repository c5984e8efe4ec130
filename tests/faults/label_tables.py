"""Labels of other programs in parquet files and in tables beside vectors."""
import numpy as np
import pandas as pd
from fault import bad
from PIL import Image
from safetensors.numpy import save_file

from reid_lab.data.crops import crops_table
from reid_lab.retrieval.embeddings import Embeddings


def _parquet(**columns):
    "A call that reads a manifest with these columns"
    def call(tmp):
        for name in ("a.jpg", "b.jpg"): Image.new("RGB", (16, 32), (200, 0, 0)).save(tmp/name)
        pd.DataFrame(dict(path=["a.jpg", "b.jpg"], **columns)).to_parquet(tmp/"m.parquet")
        return crops_table(tmp/"m.parquet")
    return call


def _beside(text):
    "A call that loads vectors with a table of labels of this text"
    def call(tmp):
        save_file(dict(emb=np.eye(3, dtype=np.float32)), tmp/"emb.safetensors")
        (tmp/"table.csv").write_text(text)
        return Embeddings.load(tmp)
    return call


FAULTS = [
    bad("parquet: an id of 2^64 - 1", "an unsigned type", _parquet(pid=np.array([1, 2**64 - 1], "u8")),
        "18446744073709551615", "64 bits"),
    bad("parquet: a camera is NaN", "one of two", _parquet(pid=[1, 2], cam=[np.nan, 1.]), "no camera"),
    bad("parquet: a number as caption", "whole numbers", _parquet(caption=[5, 6]), "captions of row 0"),
    bad("beside vectors: one field too many", "pandas takes an index", _beside("pid,cam\n10,0,7\n11,1,7\n12,2,7\n"),
        "line 2 has 3 fields"),
    bad("beside vectors: a column twice", "pid,pid", _beside("pid,pid\n1,1\n1,1\n1,1\n"), "column 'pid' twice"),
    bad("beside vectors: a camera below -1", "cam -2", _beside("pid,cam\n1,-2\n1,1\n1,1\n"), "cam=-2 (row 0)"),
    bad("features: a person below -1", "pid -5", lambda tmp: Embeddings(np.eye(2, dtype=np.float32), [0, -5]),
        "pid[1] is -5"),
    bad("beside vectors: 1 and 01", "two spellings", _beside("pid,cam\n1,0\n01,0\n2,1\n"), "pid holds both"),
    bad("beside vectors: one field too few", "pandas fills it up", _beside("pid,cam\n1,0\n1\n2,1\n"),
        "line 3 has 1 field,"),
]
