"""Labels as they come: unknown ones, whole numbers in any form, names, and what stays beside the ids."""
import numpy as np
import pandas as pd
import pytest
from PIL import Image

from reid_lab.data.crops import captions_of, crops_table, manifest_table
from reid_lab.data.labels import is_missing, label_name, named_ids, partly_missing, read_labels
from reid_lab.data.table import ReidTable, join_tables, numbered
from reid_lab.retrieval.embeddings import Embeddings, embed_images


def images(folder, *names):
    for name in names:
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 16), (90, 30, 30)).save(folder/name, "JPEG")
    return folder


class Tiny:
    size = (16, 8)
    def encode_image(self, img): return img.flatten(1)[:, :4]


@pytest.mark.parametrize("values", [["2", "", "0001"], [2., np.nan, 1.], ["2.0", "nan", "1.0"],
                                    [2, None, 1], [2, -1, 1], ["2", "<NA>", "1"],
                                    pd.array([2, None, 1], "Int64"), [" 2 ", "-1.0", "01"]])
def test_one_meaning_in_every_form(values):
    found = read_labels("pid", values)
    assert found.ids.tolist() == [2, -1, 1] and found.names.tolist() == ["2", "", "1"] and found.ids.dtype == np.int64


def test_numbers_beside_names_keep_their_number():
    a, b = read_labels("pid", ["1", "2"]), read_labels("pid", ["0001", "visitor", "2", "3"])
    assert a.ids.tolist() == [1, 2] and b.ids.tolist() == [1, 4, 2, 3] and b.names[0] == a.names[0]
    top = read_labels("pid", [2**63 - 1, "x", "y"])
    assert top.ids.tolist() == [2**63 - 1, 0, 1]


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl"])
def test_unknown_persons_are_nobody_in_every_manifest(tmp_path, ending):
    f = pd.DataFrame(dict(path=["a.jpg", "b.jpg", "c.jpg"], pid=[3, None, 0], cam=[0, 1, 0]))
    images(tmp_path, *f.path)
    write = dict(csv=lambda p: f.to_csv(p, index=False), parquet=f.to_parquet,
                 jsonl=lambda p: f.to_json(p, orient="records", lines=True))
    write[ending](tmp_path/f"m.{ending}")
    t = manifest_table(tmp_path/f"m.{ending}")
    assert t["pid"].tolist() == [3, -1, 0] and t["pid_name"].tolist() == ["3", "", "0"]
    e = embed_images(Tiny(), t, quiet=True)
    assert e.columns["pid_name"].tolist() == ["3", "", "0"] and e.columns["cam_name"].tolist() == ["0", "1", "0"]


@pytest.mark.parametrize("text", [
    "path;pid\nim\\a.jpg;1\n", "path\tpid\nim/a.jpg\t1\n", "sep=;\npath;pid\nim/a.jpg;1\n",
    " path , pid\n./im//a.jpg, 1\n", ",path,pid\n0,im/a.jpg,1.0\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_dialects(tmp_path, text, encoding):
    images(tmp_path, "im/a.jpg")
    (tmp_path/"m.csv").write_bytes(text.encode(encoding))
    t = manifest_table(tmp_path/"m.csv")
    assert t["path"].tolist() == ["im/a.jpg"] and t["pid"].tolist() == [1]


def test_further_columns_and_groups_reach_features(tmp_path):
    root = images(tmp_path, "0001_c1_k5.jpg", "0002_c2_k6.jpg")
    t = ReidTable.from_folder(root, r"(?P<pid>\d+)_c(?P<cam>\d+)_k(?P<clothes>\d+)")
    assert embed_images(Tiny(), t, quiet=True).columns["clothes"].tolist() == ["5", "6"]
    pd.DataFrame(dict(path=t["path"], pid=[1, 2], age=[3, 4], note=["x", None])).to_parquet(root/"m.parquet")
    e = embed_images(Tiny(), manifest_table(root/"m.parquet"), quiet=True)
    assert e.columns["age"].tolist() == [3, 4] and e.columns["note"].tolist() == ["x", ""]
    assert Embeddings.load(e.save(root/"f.npz")).columns["age"].tolist() == [3, 4]


def test_names_of_joined_tables_differ(tmp_path):
    a, b = (crops_table(images(tmp_path/n, "ann/1.jpg"), "identity") for n in "ab")
    both = join_tables([a, b])
    assert both["pid"].tolist() == [0, 1] and both["pid_name"].nunique() == 2


def test_labels_that_other_programs_wrote_beside_vectors(tmp_path):
    np.savez(tmp_path/"f.npz", emb=np.eye(3, dtype="f4"), pid=np.array(["7", "x", ""]), cam=[0, 1, 0])
    e = Embeddings.load(tmp_path/"f.npz")
    assert e.pid.tolist() == [7, 8, -1] and e.columns["pid_name"].tolist() == ["7", "x", ""]


def test_what_is_left_out_is_counted(tmp_path):
    root = images(tmp_path, "a.jpg", "b.jfif", "c.jpe")
    for name in ("x.txt", "y.heic", "z.heic"): (root/name).write_text("x")
    t = crops_table(root)
    assert len(t) == 3 and t.left_out == ["3 files with other endings than those of images (2 .heic, 1 .txt)"]


@pytest.mark.parametrize("cell, want", [
    ("['a man', \"he's here\"]", ["a man", "he's here"]), ("['a man' 'in red']", ["a man", "in red"]), ("NA", []),
    ('["a", "b"]', ["a", "b"]), ("[]", []), ("[a man] walks", ["[a man] walks"]), (np.array(["a", "b"]), ["a", "b"])])
def test_captions_of_a_cell(cell, want): assert captions_of(cell) == want


@pytest.mark.parametrize("value", [None, "", " ", "nan", "NaN", "<NA>", "None", "null", "NA", float("nan"), np.nan,
                                   pd.NA,
                                   pd.NaT, -1, "-1", -1., "-1.0", np.int16(-1)])
def test_nothing_is_unknown(value):
    assert label_name(value) == "" and read_labels("pid", [value, 3]).ids.tolist() == [-1, 3]


@pytest.mark.parametrize("value", [2, 2., "2", "2.0", "0002", "+2", " 2 ", np.uint8(2), np.float32(2)])
def test_two_is_two(value):
    found = read_labels("pid", [value, 7])
    assert found.ids.tolist() == [2, 7] and found.names.tolist() == ["2", "7"]


@pytest.mark.parametrize("values, ids", [
    (["1", "2", "3", "visitor"], [1, 2, 3, 4]), (["visitor", "b", "b"], [1, 0, 0]), (["0002", "x", ""], [2, 3, -1]),
    (pd.Series([0., np.nan, 1.]), [0, -1, 1]), (pd.Series([5, None], dtype="Int64"), [5, -1]),
    (pd.Series(["a", None], dtype="category"), [0, -1]), ([], []), ([None, None], [-1, -1])])
def test_numbers_stay_and_names_are_numbered_behind_them(values, ids):
    assert read_labels("pid", values).ids.tolist() == ids


@pytest.mark.parametrize("value, says", [
    (2**64 - 1, "64 bits"), ("1" + "0"*20, "64 bits"), ("9"*5000, "64 bits"), (-2, "below -1"), ("-7", "below -1"),
    (float("inf"), "infinity"), (2.**60, "round"), (True, "no labels"), ([1], "no label"), (b"a", "no label")])
def test_what_is_no_id_is_refused_with_its_row(value, says):
    with pytest.raises(ValueError, match=says): read_labels("pid", [0, value])


def test_one_side_with_names_keeps_the_numbers_of_the_other():
    few = numbered(pd.DataFrame(dict(pid=["1", "2"])), "pid")
    more = numbered(pd.DataFrame(dict(pid=["2", "visitor", "1"])), "pid")
    assert few.pid.tolist() == [1, 2] and few.pid_name.tolist() == ["1", "2"]
    assert more.pid.tolist() == [2, 3, 1] and more.pid_name.tolist() == ["2", "visitor", "1"]


def test_names_beside_ids_must_agree():
    both = named_ids("pid", [3, 4, -1], ["ann", "", ""])
    assert both.ids.tolist() == [3, 4, -1] and both.names.tolist() == ["ann", "4", ""]
    with pytest.raises(ValueError, match="do not agree"): named_ids("pid", [3, 3], ["ann", "bob"])
    assert partly_missing(both).tolist() == [False, False, True]
    assert not partly_missing(read_labels("cam", [None, -1])).any() and is_missing(pd.NA)


@pytest.mark.parametrize("values", [["1", "1.0", 1, 1.], [1., np.nan, 1.], ["001", "001.0", " 001 ", "+001"],
                                    ["0001", "10000", "0010"], ["1a", "01a"], ["-1", "-01", ""]])
def test_one_spelling_of_a_number_in_any_form(values):
    known = [v for v in read_labels("pid", values).names if v]
    assert len(set(known)) == len({str(v).strip().lstrip("+").partition(".")[0] for v in values if label_name(v)})


@pytest.mark.parametrize("values", [["1", "x", "01"], ["0", "00"], [1, "01"], ["01", "1.0"], ["007", "07", "7"],
                                    pd.Series(["1", "01"], dtype="category")])
def test_a_number_in_two_spellings_is_refused(values):
    with pytest.raises(ValueError, match=r"pid holds both .* one number in two spellings"): read_labels("pid", values)


def test_names_that_look_like_padded_numbers_stay_apart():
    assert read_labels("pid", ["a1", "b01", "2"]).ids.tolist() == [3, 4, 2]


def _frame(root, **columns):
    images(root, "a.jpg", "b.jpg", "c.jpg")
    return pd.DataFrame(dict(path=["a.jpg", "b.jpg", "c.jpg"], **columns))


@pytest.mark.parametrize("pid", [["ann", None, "bob"], [3., np.nan, 1.], ["0003", "", "1.0"], ["1", "visitor", "2"],
                                 pd.array([3, None, 1], "Int64"), [3., 0., 1.]])
@pytest.mark.parametrize("cam", [["gate", "hall", "gate"], [np.nan]*3, ["2", "1", "2"], [2., 1., 2.]])
def test_a_frame_and_its_files_have_the_same_labels(tmp_path, pid, cam):
    f = _frame(tmp_path, pid=pid, cam=cam)
    f.to_csv(tmp_path/"m.csv", index=False)
    given, read = ReidTable.from_dataframe(f, tmp_path), manifest_table(tmp_path/"m.csv")
    for c in ("pid", "cam", "pid_name", "cam_name"): assert given[c].tolist() == read[c].tolist(), c
    e = embed_images(Tiny(), given, quiet=True)
    assert e.columns["pid_name"].tolist() == given["pid_name"].tolist()


def test_whole_numbers_of_a_frame_stay_as_they_are(tmp_path):
    f = _frame(tmp_path, pid=[5, -1, 0], cam=[0, 1, 0])
    t = ReidTable.from_dataframe(f, tmp_path)
    assert t["pid"].tolist() == [5, -1, 0] and "pid_name" not in t.frame and list(f.columns) == ["path", "pid", "cam"]
