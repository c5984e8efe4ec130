"Marked words stay in the line, and nothing is read as mathematics"
from helpers.captioning import a_record, captioned, photo_of

from reid_lab.datasets.captioning import traces as T
from reid_lab.figures import captioning


def test_marks_cover_all_words_and_stay_in_the_line():
    truths, records = captioned(6)
    for r in records:
        pieces = T.marked_pieces(r)
        laid = captioning._lay(pieces, 3., 7)
        assert [w.text for w in laid] == [w for _, t in pieces for w in t.split()]
        assert all(w.x + w.width <= 3.0001 or w.x == 0 for w in laid)
        assert [w.line for w in laid] == sorted(w.line for w in laid)
    text = T.marked_pieces(a_record(draft="A $t-shirt$ & <b>x_1</b> t-shirt."))
    fig = captioning.marked_examples([text], [photo_of().pixels])
    assert len(fig.picture()) > 1000                                          # nothing is read as mathematics
