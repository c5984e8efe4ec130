"Frames of wildlife-datasets: columns as its docs/dataframe.md states them, rules against plain loops"
import re
from collections import Counter

import numpy as np
import pandas as pd
import pytest
from helpers.by_hand import picture

from reid_lab.cli.commands import main
from reid_lab.core.reporting import count_of
from reid_lab.data.table import TableError
from reid_lab.datasets import wildlife_frames
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.datasets.wildlife_frames import check_wildlife, crops_or_frame, is_wildlife, read_wildlife, wildlife_table
from reid_lab.recipes.finetune import Source, load_source
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics

pytestmark = pytest.mark.usefixtures("no_user_settings")


def a_frame(n=40, seed=0):
    "A frame in the form of the library"
    rng = np.random.default_rng(seed)
    return pd.DataFrame(dict(
        image_id=range(n), identity=rng.choice(["t1", "t2", "t3", "t10", "unknown"], n),
        path=[f"images/{k:03d}.png" for k in range(n)], date=rng.choice(["2019-07-01", "2019-07-02", "2020-01-01"], n),
        video=rng.integers(0, 6, n), orientation=rng.choice(["left", "right"], n),
        split=rng.choice(["train", "test"], n)))


@pytest.fixture
def folder(tmp_path):
    root = tmp_path/"wildlife"
    frame = a_frame(8)
    for path in frame.path: picture(root/path)
    frame.to_csv(root/"metadata.csv", index=False)
    return root


def test_a_folder_of_the_library(folder):
    frame = pd.read_csv(folder/"metadata.csv")
    table = load_dataset("wildlife", folder.parent, check="all")
    lost = (frame.identity == "unknown") & (frame.split == "train")
    assert table.left_out == [f"{count_of(int(lost.sum()), 'row')} of training or validation whose animal is unknown"]
    assert lost.any()
    frame = frame[~lost].reset_index(drop=True)
    assert table["identity"].tolist() == frame.identity.tolist() and table["split"].tolist() == frame.split.tolist()
    assert ((table["pid"] == -1) == (frame.identity == "unknown")).all()
    known = frame[frame.identity != "unknown"]
    assert table["pid"][known.index].nunique() == known.identity.nunique()
    assert table["video"].tolist() == frame.video.astype(str).tolist() and (table["cam"] == -1).all()
    closed = read_wildlife(folder, asks="train")    # where the unknown of training are searched, as junk
    n_asks = int((frame.split == "test").sum())
    assert closed["role"].value_counts().to_dict() == dict(query=n_asks, gallery=8 - n_asks)
    assert "no published number is recorded" in str(doctor("wildlife", folder))
    assert DATASETS["wildlife"].protocols[0] == "wildlife"


@pytest.fixture
def large(tmp_path):
    "With several images of each animal in its test"
    frame, root = a_frame(24), tmp_path/"animals"
    for path in frame.path: picture(root/path)
    frame.to_csv(root/"metadata.csv", index=False)
    return root


def embedded(folder, out, *words):
    "Features that `reid_lab embed` wrote"
    assert main(["embed", str(folder), "--model", "bot_tiny", "--out", str(out), *words]) == 0
    return Embeddings.load(out)


def test_the_command_line_takes_the_labels_of_the_frame(large, tmp_path, capsys):
    "Doctor, embed, metrics, search and match of a folder as it was downloaded"
    folder = large
    picture(folder/"images"/"other.png")
    assert main(["doctor", str(folder)]) == 0
    report = capsys.readouterr().out
    assert report.startswith("wildlife: 0 error") and f"--on wildlife --root {folder}" in report
    assert main(["doctor", str(folder/"metadata.csv")]) == 0 and capsys.readouterr().out == report

    table, e = load_dataset("wildlife", folder), embedded(folder, tmp_path/"all.npz")
    said = capsys.readouterr().err
    assert e.pid.tolist() == table["pid"].tolist() and e.columns["date"].tolist() == table["date"].tolist()
    assert f"left out: {table.left_out[0]}" in said and "labels are those of metadata.csv" in said
    assert "1 image of the folder that metadata.csv does not name: 'images/other.png'" in said
    of_file = embedded(folder/"metadata.csv", tmp_path/"file.npz", "--skip-bad")
    assert of_file.pid.tolist() == e.pid.tolist() and "does not name" not in capsys.readouterr().err
    test = str(tmp_path/"test.npz")
    assert embedded(folder, test, "--split", "test").pid.tolist() == table.where(split="test")["pid"].tolist()

    capsys.readouterr()
    assert main(["metrics", test, test, "--protocol", "wildlife.date"]) == 0
    assert main(["match", str(folder), test, "--model", "bot_tiny", "-k", "1"]) == 0
    assert main(["search", test, "--image", str(folder/"images"/"other.png"), "-k", "1"]) == 0
    assert f"{len(table)} images of {folder} in" in capsys.readouterr().out
    assert main(["search", test, "--image", str(folder/"images"/"other.png"), "-k", "5"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " images/" in line]
    name_of = dict(zip(table["path"], table["identity"]))
    assert len(lines) == 5 and {len(line.split()) for line in lines} <= {3, 5}
    for line in lines:      # a name, no number; nothing beside an animal that nobody knows
        path, person = line.split()[2], line.split()[4:]
        assert person == ([] if name_of[path] == "unknown" else [name_of[path]])
    assert main(["pack", str(folder), "--out", str(tmp_path/"packed")]) == 0


def test_a_frame_is_read_and_checked_once(folder, monkeypatch):
    done = Counter()
    def counted(name, call):
        def count(*args, **kw):
            done[name] += kw.get("nrows", 1) != 0   # the columns alone are no reading
            return call(*args, **kw)
        return count
    monkeypatch.setattr(pd, "read_csv", counted("read", pd.read_csv))
    monkeypatch.setattr(wildlife_frames, "_check_frame", counted("checked", wildlife_frames._check_frame))
    for read in (crops_or_frame, read_wildlife):
        done.clear()
        read(folder)
        assert done == dict(read=1, checked=1), (read, done)
    wildlife_table(pd.DataFrame(dict(identity=["a"], path=["a.png"])), folder)
    assert done["checked"] == 2


def test_cameras_are_those_of_the_set(folder):
    "A frame has a camera or none: neither is another set than the one that was meant"
    assert not [f for f in doctor("wildlife", folder, quiet=True).findings if "registered" in f.what]
    frame = pd.read_csv(folder/"metadata.csv").assign(camera=["c1", "c2"]*4)
    frame.to_csv(folder/"metadata.csv", index=False)
    assert load_dataset("wildlife", folder).frame.cam.nunique() == 2
    assert not [f for f in doctor("wildlife", folder, quiet=True).findings if "registered" in f.what]


def test_what_subfolders_stand_for_goes_before_the_frame(folder, tmp_path, capsys):
    by_folder = embedded(folder, tmp_path/"e.npz", "--folders", "identity")   # all are in the folder `images`
    assert len(by_folder) == 8 and set(by_folder.pid) == {0}
    assert main(["doctor", str(folder), "-p", "folders=identity"]) == 0
    assert "8 images, 1 person" in capsys.readouterr().out


def test_compare_names_the_dataset_and_that_command_works(large, capsys):
    assert main(["compare", "bot_tiny", "agw_tiny", "--on", str(large)]) == 2
    assert f"give --on wildlife and --root {large}" in capsys.readouterr().err
    asked = ["compare", "bot_tiny", "agw_tiny", "--on", "wildlife", "--root", str(large)]
    assert main([*asked, "--protocol", "wildlife"]) == 0


def test_boxes_of_the_frame_are_cut_where_it_is_the_file_of_boxes(folder, tmp_path, capsys):
    frame = pd.read_csv(folder/"metadata.csv").assign(bbox="[0, 0, 8, 16]", identity="007")
    frame.loc[0, "identity"] = "7"      # another animal than 007
    frame.to_csv(folder/"metadata.csv", index=False)
    whole = embedded(folder, tmp_path/"whole.npz")
    assert any("bbox is not cut" in f.what for f in check_wildlife(load_dataset("wildlife", folder)))
    assert "its column bbox is not cut" in capsys.readouterr().err and len(set(whole.pid)) == 2
    assert "pid_name" not in whole.columns      # labels are numbers, and 7 and 007 are one number in two spellings
    cut = embedded(folder, tmp_path/"cut.npz", "--boxes", str(folder/"metadata.csv"))
    assert all(path.endswith("#xywh=0,0,8,16") for path in cut.path)
    assert "is not cut" not in capsys.readouterr().err and not np.allclose(cut.emb, whole.emb)


BOXES = [[0, 0, 8, 16], [-3, 2, 8, 8], [12, 20, 30, 30], [200, 200, 5, 5], [0, -40, 8, 40], None, [0, 0, 16, 32],
         [15.5, 0, .5, 9]]


def pixels_of_box(image, box):
    "A plain loop over the pixels of a box of whole numbers"
    x, y, w, h = box
    rows = [[image[j, i] for i in range(x, x + w) if 0 <= i < image.shape[1]]
            for j in range(y, y + h) if 0 <= j < image.shape[0]]
    return np.array(rows, np.uint8)


@pytest.fixture
def boxed(folder):
    frame = pd.read_csv(folder/"metadata.csv").assign(bbox=BOXES, identity="t1", split="test")
    frame.to_csv(folder/"metadata.csv", index=False)
    return folder, frame


def test_boxes_over_the_edge_are_counted_and_those_outside_left_out(boxed, tmp_path, capsys):
    folder, frame = boxed
    table = load_dataset("wildlife", folder, boxes=True)
    height, width = load_dataset("wildlife", folder).image(0).shape[:2]
    assert table["path"].tolist() == ["images/000.png#xywh=0,0,8,16", "images/001.png#xywh=0,2,5,8",
                                      f"images/002.png#xywh=12,20,{width - 12},{height - 20}", "images/005.png",
                                      "images/006.png#xywh=0,0,16,32"]
    assert table.left_out == ["3 boxes outside the image, or with less than a pixel in it: "
                              f"'images/003.png#xywh=200,200,5,5' of {width} x {height} pixels, "
                              f"'images/004.png#xywh=0,-40,8,40' of {width} x {height} pixels, "
                              f"'images/007.png#xywh=15.5,0,0.5,9' of {width} x {height} pixels"]
    assert len(table.remarks) == 1 and table.remarks[0].startswith(
        "2 boxes reach over the edge of the image and were clipped: 'images/001.png#xywh=-3,2,8,8' of ")
    for row, box in ((0, BOXES[0]), (1, BOXES[1]), (2, BOXES[2])):
        whole = load_dataset("wildlife", folder).image(row)
        np.testing.assert_array_equal(table.image(row), pixels_of_box(whole, box))
    of_frame = wildlife_table(frame, folder, boxes=True)
    assert (of_frame["path"].tolist(), of_frame.remarks) == (table["path"].tolist(), table.remarks)

    assert main(["doctor", "wildlife", "--root", str(folder), "-p", "boxes=True"]) == 0
    said = capsys.readouterr().out
    assert f"left out: {table.left_out[0]}" in said and f"WARN  {table.remarks[0]}" in said
    assert embedded(folder, tmp_path/"cut.npz", "--boxes", "metadata.csv").path == table["path"].tolist()
    said = capsys.readouterr().err
    assert f"left out: {table.left_out[0]}" in said and f"note: {table.remarks[0]}" in said


def test_a_frame_whose_boxes_all_lie_outside_is_refused(boxed):
    folder, frame = boxed
    with pytest.raises(TableError, match="all boxes lie outside their images.*and 5 more.*pixels are needed"):
        wildlife_table(frame.assign(bbox="[400, 0, 8, 8]"), folder, boxes=True)
    lost = frame.assign(bbox="[400, 0, 8, 8]", path=[f"gone/{k}.png" for k in range(8)])
    assert len(wildlife_table(lost, folder, boxes=True)) == 8     # files that are lost have a check of their own


def test_whole_images_of_a_frame_with_boxes_are_said_by_all_that_read_it(boxed, tmp_path, monkeypatch, capsys):
    folder, frame = boxed
    assert main(["doctor", str(folder)]) == 0
    said = [line.strip() for line in capsys.readouterr().out.splitlines() if "is not cut" in line]
    assert len(said) == 1
    asked = ["compare", "bot_tiny", "agw_tiny", "--on", "wildlife", "--root", str(folder)]
    assert main(asked) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"wildlife: {said[0].removeprefix('WARN  ')}." in out and "--data boxes=True" in said[0]
    assert main([*asked, "--data", "boxes=True"]) == 0      # what it names is taken
    out = " ".join(capsys.readouterr().out.split())
    assert "is not cut" not in out and "left out: 3 boxes outside the image" in out and "2 boxes reach over" in out
    assert main(["pack", str(folder), "--out", str(tmp_path/"packed")]) == 0
    assert "is not cut" in capsys.readouterr().err
    assert any("is not cut" in text for text in wildlife_table(frame, folder).remarks)
    embedded(folder, tmp_path/"all.npz")
    capsys.readouterr()
    assert main(["match", str(folder), str(tmp_path/"all.npz"), "--model", "bot_tiny", "-k", "1"]) == 0
    assert "note: its column bbox is not cut" in capsys.readouterr().err
    frame.assign(identity=[f"t{k//2}" for k in range(8)]).to_csv(folder/"metadata.csv", index=False)
    monkeypatch.setattr("reid_lab.recipes.finetune.check_people", lambda *a: None)     # too few for a training
    with pytest.warns(UserWarning, match="data_root=.*its column bbox is not cut"):
        load_source(Source(data_root=str(folder)))


def test_lost_files_and_rows_without_a_name_are_named(folder, capsys):
    frame = pd.read_csv(folder/"metadata.csv")
    frame.loc[[1, 3, 4, 6], "identity"] = [None, "", None, None]
    frame.loc[6, "path"] = None
    frame.to_csv(folder/"metadata.csv", index=False)
    assert main(["doctor", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "4 of 8 rows are without an identity or a path" in said
    assert ("line 3 (no identity, path 'images/001.png'), line 5 (no identity, path 'images/003.png'), "
            "line 6 (no identity, path 'images/004.png') and 1 more") in said
    with pytest.raises(TableError, match=r"row 1 \(no identity, path 'images/001.png'\).*and 1 more"):
        wildlife_table(frame.replace("", None), folder)
    a_frame(8).to_csv(folder/"metadata.csv", index=False)
    for k in (0, 2, 5, 7): (folder/f"images/{k:03d}.png").unlink()
    assert main(["doctor", str(folder)]) == 1
    said = capsys.readouterr().out
    rows = load_dataset("wildlife", folder, check="none")["path"].tolist()
    lost = [path for path in rows if not (folder/path).exists()]
    for path in lost[:3]: assert f"({path!r})" in said
    assert f"missing, {len(lost)} of {len(rows)} images" in said
    assert len(lost) <= 3 or f"and {len(lost) - 3} more" in said


@pytest.mark.parametrize("content", ["", "path,pid,identity\na.png,1,x\n", "path,name\na.png,x\n", "\x00\xff"])
def test_other_files_of_that_name_are_no_frame(content, tmp_path):
    picture(tmp_path/"a.png")
    (tmp_path/"metadata.csv").write_text(content, encoding="latin1")
    assert not is_wildlife(tmp_path) and not is_wildlife(tmp_path/"a.png")
    assert crops_or_frame(tmp_path)["path"].tolist() == ["a.png"]
    assert not is_wildlife(tmp_path/"nowhere")


def test_what_is_no_frame_is_refused(tmp_path):
    frame = a_frame(6)
    for column in ("identity", "path"):
        with pytest.raises(ValueError, match=column): wildlife_table(frame.drop(columns=column), tmp_path)
    with pytest.raises(TableError, match="without an identity"):
        wildlife_table(frame.assign(identity=[None] + ["a"]*5), tmp_path)
    with pytest.raises(ValueError, match="'holdout'"): wildlife_table(frame.assign(split="holdout"), tmp_path)
    with pytest.raises(ValueError, match="asks='train' needs"):
        wildlife_table(frame.drop(columns="split"), tmp_path, asks="train")
    with pytest.raises(ValueError, match="metadata.csv"): load_dataset("wildlife", tmp_path)
    with pytest.raises(ValueError, match="bbox"): wildlife_table(frame, tmp_path, boxes=True)
    for box, said in {"[1, 2, 3]": "3 numbers", "hello": "'hello' is no number", "[.1, .1, .8, .8]": "in shares of",
                      "[1, 2, 0, 9]": "is empty", "1 2 3 4px": "'4px' is no number"}.items():
        with pytest.raises(ValueError, match=re.escape(said)):
            wildlife_table(frame.assign(bbox=[box]*6), tmp_path, boxes=True)


def test_the_split_is_that_of_its_column(tmp_path):
    frame = a_frame(6).assign(identity="t1")
    assert set(wildlife_table(frame.drop(columns="split"), tmp_path)["split"]) == {"test"}
    parts = ["train", "valid", "training", "test", "Test", "val"]
    renamed = frame.rename(columns=dict(split="my_split")).assign(my_split=parts)
    named = wildlife_table(renamed, tmp_path, split="my_split")
    assert named["split"].tolist() == ["train", "val", "train", "test", "test", "val"]
    both = frame.assign(original_split="train")
    assert wildlife_table(both, tmp_path)["split"].tolist() == frame.split.tolist()     # `split` comes first
    assert set(wildlife_table(both, tmp_path, split="original_split")["split"]) == {"train"}


def test_queries_and_their_database_are_told_apart(tmp_path):
    "Or all images would ask all, and those of the database be left out"
    frame = a_frame(6).assign(split=["database"]*3 + ["query"]*3, identity=["a", "b", "Unknown"]*2)
    with pytest.raises(ValueError, match="database and query.*asks='train'"): wildlife_table(frame, tmp_path)
    table = wildlife_table(frame, tmp_path, asks="train")
    assert table["role"].tolist() == ["gallery"]*3 + ["query"]*3 and table["pid"].tolist() == [0, 1, -1]*2
    e = Embeddings(np.eye(6, dtype="float32"), table["pid"].to_numpy(), path=table["path"].tolist(),
                   columns={name: table[name].to_numpy() for name in ("role", "split")})
    assert retrieval_metrics(e, e, protocol="wildlife")["n_query"] == 2       # of 3, one is unknown


def test_two_times_of_one_day_are_one_date_and_nothing_is_none(tmp_path):
    frame = a_frame(5).assign(identity="t1")
    dates = ["2020-01-01 10:00:00", "2020-01-01 18:30:00", "2020-01-02", None, "spring"]
    table = wildlife_table(frame.assign(date=dates), tmp_path)
    assert table["date"].tolist() == ["2020-01-01", "2020-01-01", "2020-01-02", "", "spring"]
    boxes = [[1, 2, 3, 4], "[1, 2, 3, 4]", "1 2 3 4", None, ""]
    paths = wildlife_table(frame.assign(bbox=boxes), tmp_path, boxes=True)["path"]
    assert [path.partition("#")[2] for path in paths] == ["xywh=1,2,3,4"]*3 + ["", ""]
    boxes = ["(.5, .25, 3e1, 4.)", "[nan, nan, nan, nan]", "[]", [5, 6, 7, 8], "-1,0,9,9"]
    paths = wildlife_table(frame.assign(bbox=boxes), tmp_path, boxes=True)["path"]
    assert [path.partition("=")[2] for path in paths] == ["0.5,0.25,30,4", "", "", "5,6,7,8", "-1,0,9,9"]


@pytest.mark.parametrize("protocol, column", [
    ("wildlife", None), ("wildlife.date", "date"), ("wildlife.video", "video")])
@pytest.mark.parametrize("seed", range(3))
def test_a_rule_is_that_of_a_plain_loop(protocol, column, seed):
    "Every known image of test asks all others of test; of an animal's own those of the same day or video are left out"
    frame = a_frame(40, seed).query("split == 'test'").reset_index(drop=True)
    table = wildlife_table(frame, ".")
    emb = np.random.default_rng(seed).normal(size=(len(frame), 6)).astype("float32")
    emb /= np.linalg.norm(emb, axis=1, keepdims=True)
    columns = {name: table[name].to_numpy() for name in ("date", "video", "role", "split")}
    e = Embeddings(emb, table["pid"].to_numpy(), path=table["path"].tolist(), columns=columns)
    scores, pid, found = retrieval_metrics(e, e, protocol=protocol), table["pid"].to_numpy(), []
    for q in range(len(frame)):
        if pid[q] < 0: continue
        keep = [g for g in range(len(frame)) if g != q and pid[g] >= 0 and not (
            column and pid[g] == pid[q] and frame[column][g] == frame[column][q])]
        order = sorted(keep, key=lambda g: -float(emb[q]@emb[g]))
        hits = np.array([pid[g] == pid[q] for g in order])
        if hits.any(): found.append((np.cumsum(hits)/np.arange(1, len(hits) + 1))[hits].mean())
    assert (scores["n_query"], scores["mAP"]) == (len(found), pytest.approx(100*np.mean(found), abs=1e-4))
