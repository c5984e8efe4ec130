"Draws of a protocol as sides: each draw by itself, what each row says of its split, and what does not fit"
import re
from dataclasses import replace

import numpy as np
import pytest
from helpers.protocols import features, naive_draws, some_table, table_for

from reid_lab.datasets.registry import DATASETS
from reid_lab.retrieval.draws import ListRule, apply_protocol, chosen_sides, each_draw, protocol_sides
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


def test_the_protocol_stands_behind_both_sides():
    f, _ = some_table(1)
    e, sysu = features(f, roles=True), PROTOCOLS["sysu.all"]
    want = [draw.gallery.tolist() for draw in apply_protocol(f, f, "sysu.all").draws]
    assert [draw.gallery.tolist() for draw in apply_protocol(q=f, g=f, protocol=sysu).draws] == want
    assert protocol_sides(e, e, sysu, 4).rows.gallery.tolist() == want[4]
    for function in (apply_protocol, protocol_sides, each_draw):
        with pytest.raises(TypeError, match="'sysu.all' is a protocol, which stands behind both sides"):
            list(function("sysu.all", e, e))


def test_people_are_numbered_alike_before_they_are_compared():
    q = Embeddings(np.eye(2, dtype="float32"), [0, 1], [0, 0], columns=dict(pid_name=np.array(["ann", "bob"])))
    g = Embeddings(np.eye(2, dtype="float32"), [0, 1], [1, 1], columns=dict(pid_name=np.array(["bob", "ann"])))
    sides = protocol_sides(q, g, "market")
    assert [sides.q.pid[0] == sides.g.pid[n] for n in (0, 1)] == [False, True]


@pytest.mark.parametrize("wrong, says", [
    (lambda e: chosen_sides(e, e, ListRule(draw=1)), "draw=1 is of a protocol, and none is given"),
    (lambda e: chosen_sides(e, e, ListRule(protocol="market", draw=1)), "draw=1"),
    (lambda e: ListRule("cam", "market"), "give one of the two"),
    (lambda e: ListRule(draw=-1), "draw=-1"),
    (lambda e: each_draw(e, e, "sysu.all"), "needs the column 'modality'"),
])
def test_what_would_be_ignored_is_refused(wrong, says):
    e = Embeddings(np.eye(4, dtype="float32"), [0, 1, 0, 1], [0, 0, 1, 1])
    assert chosen_sides(e, e) is None
    with pytest.raises(ValueError, match=re.escape(says)): wrong(e)


# ---------------------------------------------------------------- the split of each row

def a_whole_set(n=90):
    "Features of a training, a validation and a test split"
    f, _ = some_table(5, n)
    return features(f).assign(split=np.resize(["test", "train", "val"], n))


@pytest.mark.parametrize("name", ["market", "ltcc.cc-filtered", "sysu.all", "vehicleid.small"])
@pytest.mark.filterwarnings("ignore")
def test_rows_of_the_test_split_take_part(name):
    e = a_whole_set()
    tested = e.where(split="test")
    whole, alone = retrieval_metrics(e, e, protocol=name), retrieval_metrics(tested, tested, protocol=name)
    for k in ("R1", "mAP", "n_query", "n_skipped", "n_gallery"): assert whole[k] == pytest.approx(alone[k])
    assert whole.plan.counts()["queries"].left_out["split is not test"] == 60
    assert "queries, split is not test: 60" in whole.notes()[1] and not whole.plan.of_split()


@pytest.mark.filterwarnings("ignore")
def test_another_split_alone_and_an_unknown_one_are_named():
    e = a_whole_set()
    val = e.where(split="val")
    assert apply_protocol(val, val, "market").of_split() == ["split: val, and protocols are of test"]
    bare = e.assign(split=np.full(len(e), ""))
    plan = apply_protocol(bare, bare, "market")
    assert plan.split == "" and plan.of_split()[0].startswith("split: unknown") and len(plan.gallery()) == len(e)
    old = Embeddings(e.emb, e.pid, e.cam, e.path)     # of a file without the column
    plan = apply_protocol(old, e, "market")
    assert (len(plan.queries()), len(plan.gallery())) == (90, 30)
    assert plan.of_split() == ["split: test; unknown for 90 queries and 0 gallery rows, which are taken for it"]
    with pytest.raises(ValueError, match="no row of the queries is of the split test, and the rows of both sides are"):
        apply_protocol(val, e.where(split="train"), "market")
    with pytest.raises(ValueError, match="split='dev' is not known"):
        apply_protocol(e.assign(split=np.full(len(e), "dev")), e, "market")


def test_features_keep_splits_when_they_are_joined():
    e = a_whole_set(6)
    old = Embeddings(e.emb, e.pid, e.cam, e.path, columns={k: v for k, v in e.columns.items() if k != "split"})
    assert Embeddings.concat([e, old]).columns["split"].tolist() == ["test", "train", "val"]*2 + [""]*6


# ---------------------------------------------------------------- what does not fit

@pytest.mark.parametrize("name", ["sysu.all", "sysu.all-official", "llcm.v2i-released", "vehicleid.small"])
def test_rows_of_one_draw_are_not_drawn_from_again(name, tmp_path):
    e = features(table_for(name, 7, 160), roles=True)
    sides = protocol_sides(e, e, name, 3)
    for q, g in ((sides.q, sides.g), (Embeddings.load(sides.q.save(tmp_path/"q.npz")), e)):
        with pytest.raises(ValueError, match="drawn already .*draw 3 of 0 to 9.*features of the whole test split"):
            retrieval_metrics(q, g, protocol=name)
    assert "rows_of" not in e.meta and retrieval_metrics(sides.q, sides.g, protocol=sides.rule)["n_draws"] == 1


@pytest.mark.filterwarnings("ignore")
def test_draws_that_are_all_alike_are_said():
    e = features(table_for("sysu.all", 7, 160), roles=True)
    sides = protocol_sides(e, e, "sysu.all")
    for side in (sides.q, sides.g): del side.meta["rows_of"]      # as in a file of an earlier version
    notes = retrieval_metrics(sides.q, sides.g, protocol="sysu.all").notes()
    assert any("all 10 draws are the same rows, for no person and camera has more than 1" in note for note in notes)
    assert not apply_protocol(e, e, "sysu.all").nothing_drawn and not apply_protocol(e, e, "market").nothing_drawn


def test_a_rule_with_values_of_another_benchmark_is_refused():
    e = features(table_for("sysu.all", 7, 160), roles=True)
    of_regdb = e.with_emb(e.emb, data="regdb")
    for name in ("sysu.all", "prcc.all-changed"):
        with pytest.raises(ValueError, match="these are features of regdb.*of regdb are regdb.v2t, regdb.t2v"):
            apply_protocol(of_regdb, of_regdb, name)
    for fits in ("regdb.t2v", "market", replace(PROTOCOLS["sysu.all"], datasets=())):
        assert len(apply_protocol(of_regdb, of_regdb, fits).gallery())
    assert len(apply_protocol(e.with_emb(e.emb, data="world smoke"), e, "sysu.all").gallery())


def test_protocols_of_datasets_name_them_where_they_name_values():
    for key, dataset in DATASETS.items():
        for protocol in map(PROTOCOLS.get, dataset.protocols):
            assert protocol.names_values == bool(protocol.datasets), f"{protocol.name}: give datasets={(key,)}"
            assert not protocol.datasets or key in protocol.datasets, f"{protocol.name}: give datasets={(key,)}"


def test_sides_the_wrong_way_round_and_other_spellings_have_a_remedy():
    e = features(table_for("sysu.all", 7, 160))
    infrared, visible = (e.where(modality=kind) for kind in ("infrared", "visible"))
    with pytest.raises(ValueError, match="no row of the queries has modality infrared.*The other way round they fit"):
        apply_protocol(visible, infrared, "regdb.t2v")
    thermal = infrared.assign(modality=np.full(len(infrared), "thermal"))
    with pytest.raises(ValueError, match=r"there are thermal \(\d+\).*rename them.*e.assign\(modality=") as error:
        apply_protocol(thermal, visible, "regdb.t2v")
    assert "other way round" not in str(error.value)
