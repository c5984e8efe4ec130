"Draws of a protocol as sides: each draw by itself, and both orders of the arguments"
import re

import numpy as np
import pytest
from helpers.protocols import features, naive_draws, some_table, table_for

from reid_lab.retrieval.draws import apply_protocol, chosen_sides, each_draw, protocol_sides
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS

NAMES = ["market", "prcc.single-changed", "ltcc.cc-filtered", "sysu.all", "vehicleid.small", "llcm.v2i-released",
         "mars.torchreid", "mars.official", "market.trapezoid", "cuhk03.single"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_the_sides_of_a_draw_are_those_of_the_draw(name):
    f, protocol = table_for(name, 7, 160), PROTOCOLS[name]
    e = features(f, roles=True)
    q = e[:60] if protocol.without_queries else e
    draws = list(each_draw(q, e, name))
    found = retrieval_metrics(q, e, protocol=name).draws
    assert len(draws) == len(found) == protocol.n_draws
    for sides, (asks, searched), scores in zip(draws, naive_draws(protocol, f[:len(q)], f), found):
        assert sides.rows.queries.tolist() == sorted(asks) and sides.rows.gallery.tolist() == sorted(searched)
        alone = retrieval_metrics(sides.q, sides.g, protocol=sides.rule)
        for k in ("R1", "R10", "mAP", "mINP", "n_query", "n_skipped", "n_gallery"):
            assert alone[k] == pytest.approx(scores[k])
        again = protocol_sides(q, e, name, sides.draw)
        assert again.q.path == sides.q.path and again.g.path == sides.g.path and again.words() == sides.words()


def test_the_protocol_stands_behind_both_sides_or_before_them():
    f, _ = some_table(1)
    e, sysu = features(f, roles=True), PROTOCOLS["sysu.all"]
    want = [draw.gallery.tolist() for draw in apply_protocol(f, f, "sysu.all").draws]
    for plan in (apply_protocol("sysu.all", f, f), apply_protocol(sysu, f, g=f), apply_protocol(sysu, q=f, g=f),
                 apply_protocol(f, f, protocol=sysu), apply_protocol(q=f, g=f, protocol="sysu.all")):
        assert [draw.gallery.tolist() for draw in plan.draws] == want
    for sides in (protocol_sides("sysu.all", e, e, 4), protocol_sides(e, e, sysu, 4),
                  protocol_sides(e, e, draw=4, protocol=sysu)):
        assert sides.rows.gallery.tolist() == want[4]


def test_people_are_numbered_alike_before_they_are_compared():
    q = Embeddings(np.eye(2, dtype="float32"), [0, 1], [0, 0], columns=dict(pid_name=np.array(["ann", "bob"])))
    g = Embeddings(np.eye(2, dtype="float32"), [0, 1], [1, 1], columns=dict(pid_name=np.array(["bob", "ann"])))
    sides = protocol_sides(q, g, "market")
    assert [sides.q.pid[0] == sides.g.pid[n] for n in (0, 1)] == [False, True]


@pytest.mark.parametrize("wrong, says", [
    (lambda e: chosen_sides(e, e, draw=1), "draw=1 is of a protocol, and none is given"),
    (lambda e: chosen_sides(e, e, "market", 1), "draw=1"),
    (lambda e: chosen_sides(e, e, "market", junk="cam"), "give one of the two"),
    (lambda e: each_draw(e, e, "sysu.all"), "needs the column 'modality'"),
])
def test_what_would_be_ignored_is_refused(wrong, says):
    e = Embeddings(np.eye(4, dtype="float32"), [0, 1, 0, 1], [0, 0, 1, 1])
    assert chosen_sides(e, e) is None
    with pytest.raises(ValueError, match=re.escape(says)): wrong(e)
