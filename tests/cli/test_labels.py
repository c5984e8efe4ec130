"`reid_lab labels`: marks as a manifest that embeds"
import json

import numpy as np
import pytest
from PIL import Image

from reid_lab.cli.commands import main
from reid_lab.data.marks import Mark, write_marks
from reid_lab.retrieval.embeddings import Embeddings


@pytest.fixture
def crops(tmp_path):
    "Four crops of two cameras, a manifest with a column of the user's own, and marks"
    rng = np.random.default_rng(0)
    for i in range(4): Image.fromarray(rng.integers(0, 255, (64, 32, 3), np.uint8)).save(tmp_path/f"{i}.png")
    rows = "".join(f"{i}.png,{pid},{i % 2},\"a, b\"\n" for i, pid in enumerate(("ann", "bob", "", "bob")))
    (tmp_path/"m.csv").write_text("path,pid,cam,mine\n" + rows)
    write_marks(tmp_path/"marks.jsonl", [Mark("same", a="0.png", b="2.png"), Mark("split", a="1.png", b="3.png"),
                                         Mark("same", a="0.png", b="lost.png"),
                                         Mark("same", b="0.png", question="a man in red")])
    return tmp_path


def test_marks_become_a_manifest_that_embeds(crops, capsys):
    new = crops/"new.csv"
    assert main(["labels", "apply", str(crops/"m.csv"), str(crops/"marks.jsonl"), "--out", str(new)]) == 0
    printed = capsys.readouterr().out
    assert new.read_text() == "path,pid,cam,mine\n" + "".join(
        f"{i}.png,{pid},{i % 2},\"a, b\"\n" for i, pid in enumerate(("ann", "bob", "ann", "marked-1")))
    assert "0 identities merged into 0 others, 1 new; 2 of 4 rows changed; 2 marks unused" in printed
    assert "lost.png is not there" in printed and "it is of a sentence" in printed
    assert main(["embed", str(new), "--model", "bot_tiny", "--out", str(crops/"f")]) == 0
    features = Embeddings.load(crops/"f")
    assert features.columns["pid_name"].tolist() == ["ann", "bob", "ann", "marked-1"]
    assert features.columns["mine"].tolist() == ["a, b"]*4, "what the labels do not touch is kept"

    # the features become a manifest again, with the root that they note
    write_marks(crops/"more.jsonl", [Mark("merge", a="1.png", b="0.png")])
    capsys.readouterr()
    words = ["labels", "apply", str(crops/"f"), str(crops/"more.jsonl"), "--out", str(crops/"again.csv"), "--json"]
    assert main(words) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["merged"] == {"ann": ["bob"]} and done["changed"] == 1 and done["root"] == str(crops.resolve())
    assert main(["embed", str(crops/"again.csv"), "--root", done["root"], "--model", "bot_tiny", "--out",
                 str(crops/"g")]) == 0
    assert Embeddings.load(crops/"g").columns["pid_name"].tolist() == ["ann", "ann", "ann", "marked-1"]


def test_marks_are_shown_and_files_that_disagree_are_an_error(crops, capsys):
    write_marks(crops/"hers.jsonl", [Mark("different", a="2.png", b="0.png")])
    assert main(["labels", "show", str(crops/"marks.jsonl")]) == 0
    assert "3 same, 1 split" in capsys.readouterr().out
    assert main(["labels", "show", str(crops/"marks.jsonl"), str(crops/"hers.jsonl")]) == 1
    assert "two files disagree: same 0.png 2.png, and different 2.png 0.png" in capsys.readouterr().out
    out = crops/"new.csv"
    assert main(["labels", "apply", str(crops/"m.csv"), str(crops/"marks.jsonl"), str(crops/"hers.jsonl"), "--out",
                 str(out)]) == 2
    assert "1 contradiction in the marks: two files disagree" in capsys.readouterr().err and not out.exists()


def test_numbers_with_names_stay_together(crops, capsys):
    (crops/"n.csv").write_text("path,pid,pid_name\n0.png,4,ann\n1.png,7,bob\n2.png,-1,\n3.png,7,bob\n")
    assert main(["labels", "apply", str(crops/"n.csv"), str(crops/"marks.jsonl"), "--out", str(crops/"o.csv")]) == 0
    assert (crops/"o.csv").read_text() == (
        "path,pid,pid_name\n0.png,4,ann\n1.png,7,bob\n2.png,4,ann\n3.png,8,marked-1\n")


@pytest.mark.parametrize("margin", ["0", ".1"])
def test_boxes_in_frames_are_joined_and_embed_again(tmp_path, capsys, margin):
    "From the features and from the manifest of boxes; two boxes of one frame are two people"
    rng = np.random.default_rng(0)
    for name in "fg": Image.fromarray(rng.integers(0, 255, (120, 200, 3), np.uint8)).save(tmp_path/f"{name}.png")
    (tmp_path/"b.csv").write_text(
        "path,x,y,w,h,pid,note\nf.png,5,5,40,80,1,one\nf.png,100,5,40,80,2,two\ng.png,10,10,40,80,3,three\n")
    words = ["embed", str(tmp_path/"b.csv"), "--model", "bot_tiny", "--margin", margin, "--out", str(tmp_path/"e")]
    assert main(words) == 0
    paths = Embeddings.load(tmp_path/"e").path
    write_marks(tmp_path/"m.jsonl", [Mark("same", a=paths[0], b=paths[2])])
    for source in ("e", "b.csv"):
        features, out = tmp_path/f"again-{source[0]}", tmp_path/f"new-{source[0]}.csv"
        assert main(["labels", "apply", str(tmp_path/source), str(tmp_path/"m.jsonl"), "--out", str(out)]) == 0
        assert main(["embed", str(out), "--root", str(tmp_path), "--model", "bot_tiny", "--out",
                     str(features)]) == 0
        again = Embeddings.load(features)
        assert again.pid.tolist() == [1, 2, 1] and again.columns["note"].tolist() == ["one", "two", "three"]
        if source == "e" or margin == "0": assert again.path == paths, "the same crops"
    write_marks(tmp_path/"bad.jsonl", [Mark("same", a=paths[0], b=paths[1])])
    capsys.readouterr()
    words = ["labels", "apply", str(tmp_path/"b.csv"), str(tmp_path/"bad.jsonl"), "--out", str(tmp_path/"x.csv")]
    assert main(words) == 2
    assert "in one moment (f.png)" in capsys.readouterr().err and not (tmp_path/"x.csv").exists()
