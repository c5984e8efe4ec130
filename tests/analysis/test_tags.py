"Tags survive files and two people"
import json

import pandas as pd
import pytest

from reid_lab.analysis import tags as T


def row(key="a", by="ann", mark="tick", tags="", comment="", time="2026-01-01T00:00:00+00:00"):
    return dict(key=key, by=by, mark=mark, tags=tags, comment=comment, time=time)


def frame(*rows): return pd.DataFrame(rows, columns=list(T.TAG_COLUMNS))


@pytest.mark.parametrize("ending", ["json", "csv"])
def test_tags_survive_a_file(tmp_path, ending):
    f = frame(row("=1+1 | <b>", comment='a "b"\nc, ü', tags="x; y"), row("NaN", "bob", ""), row("a", mark="cross"))
    path = T.write_tags(f, tmp_path/f"t.{ending}")
    assert T.read_tags(path).to_dict("records") == f.to_dict("records")
    assert T.read_tags(T.write_tags(frame(), path)).empty


def test_one_row_a_person_and_query(tmp_path):
    path = tmp_path/"t.json"
    T.tag(path, "a", "ann", "tick")
    T.tag(path, "a", "bob", "cross", ["dark", "far"])
    T.tag(path, "a", "ann", "cross")
    f = T.read_tags(path)
    assert f[["by", "mark", "tags"]].to_numpy().tolist() == [["bob", "cross", "dark; far"], ["ann", "cross", ""]]
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]   # no lock, no remains
    before = path.read_bytes()
    with pytest.raises(ValueError, match="key='b'"): T.tag(path, "b", "ann", known=["a"])
    with pytest.raises(ValueError, match="semicolon"): T.tag(path, "a", "ann", tags=["x;y"])
    with pytest.raises(ValueError, match="`?by`?"): T.tag(path, "a", "")
    assert path.read_bytes() == before


def test_two_people_join_their_files():
    old, new = row(time="2026-01-01T10:00:00+00:00"), row(mark="cross", time="2026-01-01T12:00:00+02:00")
    late = row(mark="cross", time="2026-01-01T12:30:00+02:00")
    a, b = frame(old, row("b")), frame(late, row("b", "bob", "cross"), row("c", "bob"))
    both = T.merge_tags(a, b)
    assert sorted(zip(both.key, both.by, both["mark"])) == [("a", "ann", "cross"), ("b", "ann", "tick"),
                                                           ("b", "bob", "cross"), ("c", "bob", "tick")]
    assert T.disagreements(both).to_dict("records") == [dict(key="b", ann="tick", bob="cross")]
    assert T.disagreements(frame(row(), row(by="bob", mark=""))).empty
    assert T.merge_tags(a, a).equals(T.merge_tags(a, frame()))
    with pytest.raises(ValueError, match="two things about 'a' at the same time"): T.merge_tags(frame(old), frame(new))


@pytest.mark.parametrize("text, message", [
    ("[", "damaged"), ('[{"key": "a"}]', "no column 'by'"), (json.dumps([row(mark="ok")]), "row 0: mark='ok'"),
    (json.dumps([row(), row()]), "two rows"), (json.dumps([row(key="")]), "row 0: key"),
    (json.dumps([row(time="monday")]), "time='monday'")])
def test_a_wrong_file_is_named(tmp_path, text, message):
    (tmp_path/"t.json").write_text(text)
    with pytest.raises(ValueError, match=message) as err: T.read_tags(tmp_path/"t.json")
    assert "t.json" in str(err.value)
    with pytest.raises(FileNotFoundError, match="none.csv"): T.read_tags(tmp_path/"none.csv")
    with pytest.raises(ValueError, match="ending='.txt'"): T.write_tags(frame(row()), tmp_path/"t.txt")
