"Marks and labels from them: damaged and foreign files, marks that contradict, options of other actions"
import errno
import os

import numpy as np
from fault import bad, interruption, refused

from reid_lab.analysis.refine import Rocchio, refine
from reid_lab.data.marks import Mark, read_marks, write_marks
from reid_lab.retrieval.embeddings import Embeddings

GOOD = '{"kind": "same", "a": "a.jpg", "b": "b.jpg", "time": "2026-01-01T00:00:00"}\n'


def _file(text):
    "Show a file of this text, or these bytes"
    def show(tmp):
        (tmp/"m.jsonl").write_bytes(text if isinstance(text, bytes) else text.encode())
        refused("labels", "show", tmp/"m.jsonl")
    return show


def _apply(*marks, table="path,pid\na.jpg,1\nb.jpg,1\nc.jpg,2\n", options=("--out", "o.csv")):
    "Apply marks to a manifest; nothing is written"
    def run(tmp):
        (tmp/"m.csv").write_text(table)
        if marks: write_marks(tmp/"marks.jsonl", marks)
        words = [tmp/word if word == "o.csv" else word for word in options]
        try: refused("labels", "apply", tmp/"m.csv", *([tmp/"marks.jsonl"] if marks else []), *words)
        finally: assert not (tmp/"o.csv").exists()
    return run


def _without_paths(tmp):
    np.savez(tmp/"f.npz", emb=np.eye(2, dtype="f4"), pid=[0, 1])
    write_marks(tmp/"marks.jsonl", [Mark("same", a="a.jpg", b="b.jpg")])
    refused("labels", "apply", tmp/"f.npz", tmp/"marks.jsonl", "--out", tmp/"o.csv")


def _full_disk(tmp):
    "The disk is full while a mark is added: the marks before it are there"
    file = tmp/"m.jsonl"
    write_marks(file, [Mark("same", a="a.jpg", b="b.jpg")])
    before, replace = file.read_bytes(), os.replace

    def full(*args): raise OSError(errno.ENOSPC, "No space left on device")

    os.replace = full
    try: write_marks(file, [Mark("same", a="a.jpg", b="c.jpg")])
    except OSError as error: text = str(error)
    finally: os.replace = replace
    assert file.read_bytes() == before and len(read_marks(file)) == 1
    return text


def _searched(*options, question="a man", marks=(Mark("same", b="a.jpg", question="a man"),)):
    "Search features with marks"
    def run(tmp):
        emb = np.eye(3, 64, dtype="f4")
        Embeddings(emb, [-1]*3, path=["a.jpg", "b.jpg", "c.jpg"]).save(tmp/"f.npz")
        write_marks(tmp/"marks.jsonl", marks)
        refused("search", tmp/"f.npz", question, "--model", "clip_tiny", "--marks", tmp/"marks.jsonl", *options)
    return run


FAULTS = [
    bad("marks: no file", "labels show of a file that is not there",
        lambda tmp: refused("labels", "show", tmp/"m.jsonl"), "m.jsonl", "does not exist"),
    bad("marks: cut off", "labels show of a file whose last line was cut off", _file(GOOD + GOOD[:30]),
        "line 2", "no JSON", "cut off"),
    bad("marks: foreign lines", "labels show of a manifest", _file('{"path": "a.jpg", "pid": 1}\n'), "line 1",
        "has no 'kind'"),
    bad("marks: a field that none has", "labels show of a mark with a score", _file(GOOD.replace("}", ', "s": 1}')),
        "line 1", "'s'", "a, question"),
    bad("marks: an unknown kind", "labels show of a mark 'equal'", _file(GOOD.replace("same", "equal")), "line 1",
        "kind='equal'", "different"),
    bad("marks: one image", "labels show of a pair of one image", _file(GOOD.replace("b.jpg", "./a.jpg")), "line 1",
        "two images"),
    bad("marks: a picture", "labels show of an image file", _file(b"\x89PNG\r\n\x1a\n\0\0"), "m.jsonl", "is an image"),
    bad("marks: not UTF-8", "labels show of a file in Latin-1", _file(GOOD.replace("a.jpg", "ä.jpg").encode("latin-1")),
        "m.jsonl", "unknown kind"),
    bad("labels: joined and parted", "marks that join two people who are marked different",
        _apply(Mark("same", a="b.jpg", b="c.jpg"), Mark("different", a="a.jpg", b="c.jpg")), "1 contradiction",
        "a.jpg and c.jpg", "same b.jpg c.jpg"),
    bad("labels: different in one identity", "two images of one label marked different",
        _apply(Mark("different", a="a.jpg", b="b.jpg")), "their label", "split"),
    bad("labels: two people of one frame", "marks that join two images of one camera and frame",
        _apply(Mark("same", a="a.jpg", b="c.jpg"), table="path,cam,frame\na.jpg,0,7\nb.jpg,0,8\nc.jpg,0,7\n"),
        "one moment", "camera 0, frame 7"),
    bad("labels: no marks", "labels apply without a file of marks", _apply(), "a file of marks"),
    bad("labels: no output", "labels apply without --out", _apply(Mark("same", a="a.jpg", b="c.jpg"), options=()),
        "--out manifest.csv"),
    bad("labels: another ending", "labels apply to a text file",
        _apply(Mark("same", a="a.jpg", b="c.jpg"), options=("--out", "o.txt")), "--out", ".csv"),
    bad("labels: no such column", "labels apply with a column that is not there",
        _apply(Mark("same", a="a.jpg", b="c.jpg"), options=("--column", "pid=who", "--out", "o.csv")), "--column pid",
        "who"),
    bad("labels: features without paths", "labels apply to features that name no image", _without_paths, "no paths"),
    bad("labels: an option of apply", "labels show --out", lambda tmp: (
        write_marks(tmp/"m.jsonl", [Mark("same", a="a.jpg", b="b.jpg")]),
        refused("labels", "show", tmp/"m.jsonl", "--out", tmp/"o.csv")), "--out", "labels apply"),
    bad("search: marks of another question", "search --marks of a sentence that was not marked",
        _searched(question="a woman"), "no mark is of what is asked", "a woman"),
    bad("search: marks and a threshold", "search --marks --threshold", _searched("--threshold", "t.json"),
        "--threshold", "leave one"),
    bad("search: marks and expansion", "search --marks --expand", _searched("--expand", "2"),
        "--expand", "no mark names"),
    bad("refine: no paths", "questions moved in a gallery without paths", lambda tmp: refine(
        Embeddings(np.eye(1, 3), [-1], caption=["x"]), Embeddings(np.eye(2, 3), [-1]*2), []), "no paths"),
    bad("refine: a negative weight", "a weight below 0", lambda tmp: Rocchio(wrong=-.1), "wrong=-0.1", "from 0"),
    interruption("marks: disk full", "the disk is full while a mark is added", "the marks before it are there",
                 _full_disk, "No space left on the disk", "nothing of it stays"),
]
