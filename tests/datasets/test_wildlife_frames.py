"Frames of wildlife-datasets: columns as its docs/dataframe.md states them, rules against plain loops"
import numpy as np
import pandas as pd
import pytest
from helpers.by_hand import picture

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.datasets.wildlife_frames import read_wildlife, wildlife_table
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
    assert table.left_out == [f"{lost.sum()} rows of training or validation whose animal is unknown"] and lost.any()
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
    with pytest.raises(ValueError, match="3 numbers"):
        wildlife_table(frame.assign(bbox=["[1, 2, 3]"]*6), tmp_path, boxes=True)


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
