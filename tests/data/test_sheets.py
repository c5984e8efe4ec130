"Tables of text as programs of all kinds write them"
import json

import pandas as pd
import pytest
from PIL import Image

from reid_lab.data.crops import crops_table, manifest_table
from reid_lab.data.sheets import read_sheet, sheet_of, text_encoding


@pytest.fixture
def root(tmp_path):
    (tmp_path/"g").mkdir()
    for name in ("a.jpg", "b.jpg"): Image.new("RGB", (16, 32), (200, 0, 0)).save(tmp_path/"g"/name)
    return tmp_path


@pytest.mark.parametrize("name, data", [
    ("m.csv", "path;pid\ng/a.jpg;1\ng/b.jpg;2\n".encode()), ("m.csv", "path\tpid\ng/a.jpg\t1\ng/b.jpg\t2\n".encode()),
    ("m.tsv", "path\tpid\ng/a.jpg\t1\ng/b.jpg\t2\n".encode()),
    ("m.csv", "sep=;\npath;pid\ng/a.jpg;1\ng/b.jpg;2".encode()),
    ("m.csv", "path,pid\r\ng\\a.jpg,1\r\n.\\g\\b.jpg,2\r\n".encode()),
    ("m.csv", " path , pid \ng/a.jpg,1\ng/b.jpg,2".encode()),
    ("m.csv", "path,pid\ng/a.jpg,1\n./g/b.jpg,2.0\n".encode("utf-16")),
    ("m.csv", "path,pid\ng/a.jpg,1\ng/b.jpg,0002".encode("utf-32")),
    ("m.csv", b"\xef\xbb\xbf" + "path,pid\ng/a.jpg,1\ng/b.jpg,2\n".encode()),
    ("m.jsonl", b'{"path": "g/a.jpg", "pid": 1}\n\n{"path": "g/b.jpg", "pid": "2"}\n')])
def test_manifests_of_many_programs(root, name, data):
    (root/name).write_bytes(data)
    table = manifest_table(root/name)
    assert table["path"].tolist() == ["g/a.jpg", "g/b.jpg"] and table["pid"].tolist() == [1, 2]


@pytest.mark.parametrize("value, texts", [
    (["a man in red", "he's walking"], ["a man in red", "he's walking"]), ("['a', \"b's\"]", ["a", "b's"]),
    ('["a", "b"]', ["a", "b"]), ("", []), ("NA", []), ("None", []), ("nan", []), ("[unclosed", ["[unclosed"]),
    ("a, b", ["a, b"])])
def test_captions_in_a_cell(root, value, texts):
    pd.DataFrame([dict(path="g/a.jpg", pid=1, captions=value)]).to_csv(root/"m.csv", index=False)
    assert manifest_table(root/"m.csv")["captions"].tolist() == [texts]


def test_columns_of_ones_own_are_kept(root):
    rows = [dict(path="g/a.jpg", pid=1, clothes="red", age=4), dict(path="g/b.jpg", pid=1, clothes="blue", age=5)]
    (root/"m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = crops_table(root/"m.jsonl")
    assert table.further == ["clothes", "age"] and table["clothes"].tolist() == ["red", "blue"]


def test_what_is_no_image_is_counted(root):
    for name in ("g/a.txt", "g/b.TXT", "readme", ".hidden.txt"): (root/name).write_text("x")
    assert crops_table(root).left_out == ["3 files with other endings than those of images (2 .txt, 1 without ending)"]


def test_encodings_and_separators(root):
    (root/"t.csv").write_bytes("a;b,c;d\n1;2;3\n".encode("utf-16"))
    sheet = sheet_of(root/"t.csv")
    assert text_encoding(root/"t.csv") == "utf-16" and sheet.separator == ";" and sheet.names == ("a", "b,c", "d")
    assert read_sheet(root/"t.csv", sheet).to_dict("list") == {"a": [1], "b,c": [2], "d": [3]}


@pytest.mark.parametrize("text", ["path,pid,note\ng/a.jpg,1,\n\n  \ng/b.jpg,2,\n",
                                  "path,pid,note\ng/a.jpg,1,\"\"\ng/b.jpg,2,x",
                                  "path, pid, note\ng/a.jpg, 1, \"x, y\"\ng/b.jpg, 2, \n",
                                  "sep=;\npath;pid;note\ng/a.jpg;1;\"two\nlines\"\ng/b.jpg;2;\n"])
def test_empty_fields_that_are_written_are_no_missing_fields(root, text):
    (root/"m.csv").write_text(text)
    table = manifest_table(root/"m.csv")
    assert table["pid"].tolist() == [1, 2] and "" in table["note"].tolist()


def test_one_column_and_blank_lines(root):
    (root/"m.csv").write_text("path\ng/a.jpg\n\n\ng/b.jpg\n\n")
    assert manifest_table(root/"m.csv")["path"].tolist() == ["g/a.jpg", "g/b.jpg"]


def test_a_field_of_any_length_is_read(root):
    long = "x"*200_000
    (root/"t.csv").write_text(f"a,b\n{long},\n")
    assert read_sheet(root/"t.csv").a.tolist() == [long]
