"Marks of pairs: the file, what counts, identities that are joined and taken apart"
import json
import multiprocessing as mp

import pandas as pd
import pytest

from reid_lab.data.marked_labels import MarksContradict, marked_labels
from reid_lab.data.marks import Mark, boundary_of, by_doubt, counted, read_marks, write_marks

OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00"


def mark(kind, a, b, time=OLD): return Mark(kind, a=f"{a}.jpg", b=f"{b}.jpg", time=time)


def frame(n, **columns): return pd.DataFrame(dict(path=[f"{i}.jpg" for i in range(n)], **columns))


def test_a_file_of_marks_grows_by_whole_lines_and_keeps_odd_texts(tmp_path):
    file = tmp_path/"marks.jsonl"
    odd = Mark("same", b="a\nb.jpg", question="</script> \u2028 Ännchen", time=OLD)
    write_marks(file, [odd])
    before = file.read_text("utf-8")
    write_marks(file, [mark("different", 1, 2)])
    assert file.read_text("utf-8").startswith(before), "nothing that was there is changed"
    assert read_marks(file) == [odd, mark("different", 1, 2)]
    assert len(file.read_text("utf-8").splitlines()) >= 2 and len(list(tmp_path.iterdir())) == 1


def _add(file, first):
    for i in range(first, first + 5): write_marks(file, [mark("same", i, i + 100)])


def test_two_processes_that_mark_at_once_lose_nothing(tmp_path):
    context = mp.get_context("fork")
    workers = [context.Process(target=_add, args=(tmp_path/"m.jsonl", first)) for first in (0, 50)]
    for worker in workers: worker.start()
    for worker in workers: worker.join()
    assert len({m.pair for m in read_marks(tmp_path/"m.jsonl")}) == 10


def test_every_line_that_is_no_mark_is_named(tmp_path):
    file = tmp_path/"m.jsonl"
    good = json.dumps(dict(kind="same", a="1.jpg", b="2.jpg", time=OLD))
    lines = [good, good[:-9], '{"kind": "alike", "a": "1", "b": "2", "time": "%s"}' % OLD, "[1]",
             good.replace("}", ', "score": 1}'), good.replace("same", "none")]
    file.write_text("\n".join(lines))
    with pytest.raises(ValueError) as found: read_marks(file)
    text = str(found.value)
    assert "line 2 is no JSON" in text and "line 3 kind='alike'" in text and "line 4 is a list" in text
    assert "and 1 more lines" in text and "line 1" not in text
    file.write_text("\n".join([good, "", lines[-1]]))
    assert len(read_marks(file)) == 2


def test_the_last_mark_of_a_file_counts_whatever_the_order_of_the_pair():
    found = counted([mark("same", 1, 2, NEW), mark("different", 2, 1, OLD), mark("same", 3, 4),
                     mark("none", 3, 4, NEW)])
    assert [m.kind for m in found.marks] == ["same"] and (found.replaced, found.withdrawn) == (2, 1)
    two = counted([mark("same", 1, 2)], [mark("merge", 1, 2)], [mark("split", 2, 1, NEW)])
    assert len(two.contradictions) == 1 and [m.kind for m in two.marks] == ["same"]


def test_joining_goes_through_labels_and_marks_and_first_labels_stay():
    names = ["7", "7", "ann", "", "bob", ""]
    done = marked_labels(frame(6), names, counted([mark("same", 3, 1), mark("merge", 2, 3)]))
    assert done.names.tolist() == ["7", "7", "7", "7", "bob", ""] and done.merged == {"7": ["ann"]}
    assert done.changed.tolist() == [False, False, True, True, False, False]
    new = marked_labels(frame(6), names, counted([mark("same", 3, 5)]))
    assert new.names.tolist() == ["7", "7", "ann", "marked-1", "bob", "marked-1"] and new.new == ["marked-1"]


@pytest.mark.parametrize("marks, why", [
    ([mark("same", 0, 2), mark("different", 1, 2)],
     "1.jpg and 2.jpg: marked different, and joined by same 0.jpg 2.jpg"),
    ([mark("different", 0, 1)], "0.jpg and 1.jpg: marked different, and joined by their label; mark split"),
    ([mark("split", 0, 1), mark("same", 1, 3), mark("same", 3, 0)], "0.jpg and 1.jpg: marked split"),
    ([mark("same", 0, 4), mark("same", 2, 4)], "0.jpg and 2.jpg: in one moment (camera 1, frame 5)")])
def test_what_cannot_be_true_is_refused_with_its_pair(marks, why):
    rows = frame(5, cam="1", frame=["5", "6", "5", "", ""])
    with pytest.raises(MarksContradict) as found: marked_labels(rows, ["1", "1", "2", "3", ""], counted(marks))
    assert why in str(found.value) and len(found.value.conflicts) >= 1


def test_two_boxes_of_one_frame_are_two_people_unless_the_labels_say_so():
    rows = pd.DataFrame(dict(path=["f.jpg#xywh=0,0,9,9", "f.jpg#xywh=20,0,9,9", "g.jpg#xywh=0,0,9,9"]))
    pair = [Mark("same", a=rows.path[0], b=rows.path[1], time=OLD)]
    with pytest.raises(MarksContradict, match="in one moment"): marked_labels(rows, ["", "", ""], counted(pair))
    other = [Mark("same", a=rows.path[0], b=rows.path[2], time=OLD)]
    assert marked_labels(rows, ["4", "4", ""], counted(other)).names.tolist() == ["4", "4", "4"]


def test_pairs_nearest_to_the_boundary_come_first():
    scores = [.9, .8, .5, .45]
    assert boundary_of(scores) == pytest.approx(.65) and by_doubt(scores) == [1, 2, 3, 0]
    assert by_doubt(scores, .46) == [3, 2, 1, 0] and boundary_of([], .3) == .3
