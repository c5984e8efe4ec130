"""Protocols: each name against a plain loop over random tables; draws as the cited programs make them"""
import random
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.protocols import features, for_protocol, is_junk, naive_draws, naive_scores, some_table
from hypothesis import assume, given, settings, strategies as st

import reid_lab.retrieval.metrics as metrics
from reid_lab.datasets.registry import DATASETS
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.junk import Junk
from reid_lab.retrieval.left_out import MissingColumn
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.protocols import (
    PROTOCOLS,
    Draw,
    Measure,
    Protocol,
    Rows,
    as_protocol,
    refuse_foreign,
    subject_of,
)
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.shards import Shards, write_shards


def columns(f): return f.drop(columns="pid")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, p in PROTOCOLS.items() if p.measure.cmc != "single"])
@given(seed=st.integers(0, 2**20))
@settings(max_examples=1, deadline=None)
def test_every_name_against_a_plain_loop(name, seed):
    f, rng = some_table(seed)
    f = for_protocol(name, f, rng)
    q, g = (f, f) if rng.random() < .5 or PROTOCOLS[name].identity_column else (f[:20], f[8:].reset_index(drop=True))
    protocol = PROTOCOLS[name]
    one_row = replace(protocol, measure=replace(protocol.measure, pooling=""))   # every track has one row here
    if protocol.without_queries: q = f[:16]
    sim = rng.integers(0, 6, (len(q), len(g)))/6
    try: plan = apply_protocol(q, g, protocol)
    except ValueError: assume(False)
    for draw, (asks, searched) in zip(plan.draws, naive_draws(protocol, q, g)):
        assert draw.queries.tolist() == sorted(asks) and draw.gallery.tolist() == sorted(searched)
    try: want = naive_scores(protocol, sim, q, g)
    except ValueError: assume(False)
    assume(want is not None)
    if protocol.identity_column == "track": one_row = protocol
    scores = Scoring(ties="order", ks=(1, 5), chunk=int(rng.choice([7, 100])))
    if one_row.measure.pooling: return
    got = metrics_from_similarity(sim, q.pid, g.pid, columns(q), columns(g), protocol=one_row, scoring=scores)
    assert {k: got[k] for k in want} == pytest.approx(want)
    assert got["n_draws"] == protocol.n_draws == len(got.draws)


def test_the_rule_of_market_is_that_of_the_camera_bit_for_bit():
    f, _ = some_table(3, 200)
    q, g = features(f[:60]), features(f, seed=1)
    for scoring in (Scoring(), Scoring(ties="expected"), Scoring(ks=(1, 2, 30), cmc=9)):
        today = retrieval_metrics(q, g, junk="cam", scoring=scoring, per_query=True)
        named = retrieval_metrics(q, g, protocol="market", scoring=scoring, per_query=True)
        for name, value in today.items():
            if name == "per_query":
                for column in value: np.testing.assert_array_equal(named[name][column], value[column])
            else: np.testing.assert_array_equal(named[name], value)
        assert set(named) - set(today) == {"n_gallery", "n_draws"}
    plain = retrieval_metrics(q, g, junk="cam")
    assert "n_draws" not in plain and plain.plan is None


@pytest.mark.parametrize("name", ["sysu.all", "sysu.indoor-official-10", "llcm.v2i-released", "vehicleid.small",
                                  "cuhk03.single", "ltcc.cc", "mars.torchreid", "mars.official"])
@pytest.mark.filterwarnings("ignore")
def test_features_matrices_and_shards_agree(name, tmp_path):
    f, _ = some_table(11, 240)
    e = features(f)
    g = features(f, seed=2)
    protocol = PROTOCOLS[name]
    q = e[:50] if protocol.without_queries else e
    sim = (q.unit().emb @ g.unit().emb.T).numpy()
    got = retrieval_metrics(q, g, protocol=protocol, scoring=Scoring(ties="order"))
    on_disk = Shards(write_shards(g, tmp_path/"g", rows=50))
    disk = retrieval_metrics(q, on_disk, protocol=name, scoring=Scoring(ties="order"))
    matrix = got
    if not protocol.measure.pooling:
        matrix = metrics_from_similarity(sim, q.pid, g.pid, columns(q.table()), columns(g.table()), protocol=name,
                                         scoring=Scoring(ties="order"))
    for found in (disk, matrix):      # products of other shapes round otherwise, which may swap two neighbours
        for k in ("n_query", "n_skipped", "n_gallery", "n_draws"): assert found[k] == got[k]
        for k in ("R1", "R10", "mAP", "mINP"): assert found[k] == pytest.approx(got[k], abs=.3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["market.trapezoid", "cuhk03.single", "occluded-reid", "prcc.single-changed",
                                  "ltcc.cc-filtered", "ltcc.same-clothes", "sysu.all", "sysu.indoor-official-10",
                                  "llcm.v2i-released", "ag-reid.a2g", "ag-reid-v2.exp1", "vehicleid.small"])
def test_scores_and_lists_from_shards_are_those_of_memory(name, tmp_path):
    "Vectors of small whole numbers, whose products are exact in any order: nothing may differ"
    f, rng = some_table(11, 240)
    f = for_protocol(name, f, rng)
    whole = rng.integers(-9, 10, (len(f), 6)).astype("float32")
    q, e = (features(f, roles=True).with_emb(torch.from_numpy(whole)) for _ in range(2))
    on_disk = Shards(write_shards(e, tmp_path/"g", rows=50))
    scoring = Scoring(ties="order")
    memory, disk = (retrieval_metrics(q, g, protocol=name, distance="euclidean", scoring=scoring, per_query=True)
                    for g in (e, on_disk))
    assert set(memory) == set(disk)
    for measure in set(memory) - {"per_query", "skipped"}:
        np.testing.assert_array_equal(disk[measure], memory[measure], err_msg=measure)      # mSD is NaN here
    for column, values in memory["per_query"].items():
        np.testing.assert_array_equal(values, disk["per_query"][column], err_msg=column)
    draw = PROTOCOLS[name].n_draws - 1
    for found, want in zip(*(rank(q, g, 7, protocol=name, draw=draw, distance="euclidean") for g in (on_disk, e))):
        np.testing.assert_array_equal(found, want)


def test_draws_are_those_of_the_cited_program():
    "process_gallery_sysu of mangye16/DDAG:data_manager.py, written from its text"
    rows = [dict(pid=pid, cam=cam, modality="infrared" if cam in (3, 6) else "visible",
                 path=f"cam{cam}/{pid:04}/{n:04}.jpg")
            for pid in (100, 6, 31) for cam in (5, 4, 2, 1, 3) for n in (3, 1, 12)]
    f = pd.DataFrame(rows).sample(frac=1, random_state=0).reset_index(drop=True)
    for name, cams in (("sysu.all", (1, 2, 4, 5)), ("sysu.indoor", (1, 2))):
        plan = apply_protocol(f, f, name)
        for trial, draw in enumerate(plan.draws):
            random.seed(trial)
            want = [random.choice(sorted(f"cam{cam}/{pid:04}/{n:04}.jpg" for n in (3, 1, 12)))
                    for pid in (6, 31, 100) for cam in cams]
            assert sorted(f.path[draw.gallery]) == sorted(want)


@pytest.mark.filterwarnings("ignore")
def test_one_image_of_each_identity_is_drawn_evenly(monkeypatch):
    "R@1 of many draws is the chance that the drawn match beats the drawn image of everybody else"
    rng = np.random.default_rng(0)
    sim, q_pid, g_pid = rng.permutation(240).reshape(8, 30)/240, np.arange(8) % 4, np.arange(30) % 5
    g_cam, q_cam = rng.integers(0, 3, 30), rng.integers(0, 3, 8)
    exact = []
    for i in range(8):
        out = (g_pid == q_pid[i]) & (g_cam == q_cam[i])
        own = np.flatnonzero((g_pid == q_pid[i]) & ~out)
        wins = [np.prod([(sim[i, g_pid == p] < sim[i, j]).mean() for p in range(5) if p != q_pid[i]]) for j in own]
        exact.append(np.mean(wins))
    monkeypatch.setattr(metrics, "REPEATS", 3000)
    got = metrics_from_similarity(sim, q_pid, g_pid, q_cam, g_cam, protocol="cuhk03.single")
    assert got["R1"] == pytest.approx(100*np.mean(exact), abs=1.)
    assert got["mAP"] == metrics_from_similarity(sim, q_pid, g_pid, q_cam, g_cam)["mAP"]


def test_similarities_are_computed_once():
    f, _ = some_table(5, 200)
    e, calls = features(f), []

    class Counted(metrics.MatrixScores):
        def block(self, lo, hi):
            calls.append((lo, hi))
            return super().block(lo, hi)

    scores = Counted((e.unit().emb @ e.unit().emb.T).numpy())
    found = retrieval_metrics(e, e, scores=scores, protocol="sysu.all", scoring=Scoring(chunk=64, ties="order"))
    assert len(found.draws) == 10 and len(calls) == len(set(calls)) == 4


def test_tracks_are_pooled_before_they_are_compared():
    rng = np.random.default_rng(0)
    track, pid, cam = np.repeat(np.arange(12), 4), np.repeat(np.arange(12) % 3, 4), np.repeat(np.arange(12) % 4, 4)
    emb = rng.normal(size=(48, 6)).astype("float32")
    e = Embeddings(emb, pid, cam, columns=dict(track=track))
    by_hand = Embeddings(emb.reshape(12, 4, 6).max(1), pid[::4], cam[::4], columns=dict(track=track[::4]))
    with pytest.warns(UserWarning, match="no column 'role'"): got = retrieval_metrics(e, e, protocol="mars.official")
    want = retrieval_metrics(by_hand, by_hand, junk="cam", scoring=Scoring(ap="trapezoid"))
    assert (got["mAP"], got["n_gallery"]) == (pytest.approx(want["mAP"]), 12)


@pytest.mark.parametrize("wrong, says", [
    (lambda e: retrieval_metrics(e, e, protocol="sysu.al"), "near names are sysu.all"),
    (lambda e: retrieval_metrics(e, e, protocol="sysu.all", junk="cam"), "give one of the two"),
    (lambda e: Scoring(protocol="sysu.all", ties="expected"), "give ties='order'"),
    (lambda e: Scoring(protocol="market", ap="trapezoid"), "differ"),
    (lambda e: retrieval_metrics(e, e, protocol="market", scoring=Scoring(protocol="duke")), "give it once"),
    (lambda e: retrieval_metrics(e, e, protocol="sysu.all"), "needs the column 'modality', which the queries lack"),
    (lambda e: retrieval_metrics(e, e, protocol="mars.official"), "no column track"),
    (lambda e: metrics_from_similarity(np.eye(2), [0, 1], [0, 1], protocol="mars.official"), "pools the vectors"),
    (lambda e: retrieval_metrics(e, Embeddings(e.emb, 0*e.pid - 1, e.cam), protocol="market"), "pid -1 throughout"),
])
def test_what_cannot_be_scored_is_refused(wrong, says):
    e = Embeddings(np.eye(6, dtype="float32"), np.arange(6) % 2, np.arange(6) % 3)
    with pytest.raises(ValueError, match=re.escape(says)): wrong(e)


def test_missing_columns_are_a_missing_column():
    with pytest.raises(MissingColumn): apply_protocol(dict(pid=[1], cam=[1]), dict(pid=[1], cam=[1]), "ltcc.cc")


def test_records_read_like_a_methods_section():
    text = str(PROTOCOLS["sysu.indoor"])
    for part in ("of modality infrared", "camera 1 or 2", "random.seed(0) to random.seed(9)", "identities",
                 "1,595 skipped", "After mangye16/DDAG"):
        assert part in text
    assert as_protocol("prcc.all-changed").junk == Junk("cam")
    own = Protocol("own", "Own.", queries=Rows(cam=1), draw=Draw(times=2), measure=Measure("identities"))
    assert not own.is_plain and own.n_draws == 2 and eval(repr(own.queries), dict(Rows=Rows)) == own.queries


def test_printed_counts_have_a_source_and_add_up():
    for name, protocol in PROTOCOLS.items():
        known = protocol.counts.known
        assert not known or protocol.counts.source, name
        if "people" in known and "gallery" in known and protocol.draw and protocol.draw.per == ("pid",):
            assert known["gallery"] == protocol.draw.k*known["people"], name


def test_tracks_that_both_files_number_from_0_are_not_taken_for_each_other():
    q = dict(pid=[1, 2], cam=[0, 0], track=[0, 1])
    g = dict(pid=[2, 1, 2], cam=[1, 1, 0], track=[0, 1, 2])
    with pytest.raises(ValueError, match="track 0 is of person 1 among the queries and of person 2 in the gallery"):
        apply_protocol(q, g, "mars.torchreid")
    numbered_together = dict(g, track=[2, 3, 1])
    plan = apply_protocol(q, numbered_together, "mars.torchreid")
    assert plan.gallery().tolist() == [0, 1]    # the last one is the track that asks


# ---------------------------------------------------------------- which of the test images ask

def a_test_split(n=60):
    "Features of a whole test split with roles, and its two sides"
    f, rng = some_table(7, n)
    f["role"] = np.where(np.arange(n) % 3 == 0, "query", "gallery")
    e = features(f).assign(role=f.role.to_numpy(str))
    return e, e.where(role="query"), e.where(role="gallery")


@pytest.mark.parametrize("name", ["market", "celeb.none", "ltcc.cc", "occluded-duke", "ag-reid-v2.exp1",
                                  "mars.torchreid"])
def test_gallery_images_of_a_whole_test_split_do_not_ask(name):
    e, q, g = a_test_split()
    whole, sides = retrieval_metrics(e, e, protocol=name), retrieval_metrics(q, g, protocol=name)
    for score in ("R1", "mAP", "n_query", "n_skipped", "n_gallery"): assert whole[score] == pytest.approx(sides[score])
    assert whole["n_query"] + whole["n_skipped"] <= len(q)


def test_roles_are_kept_by_files_and_shards(tmp_path):
    e, q, _ = a_test_split()
    want = retrieval_metrics(e, e, protocol="market")
    for name in ("e.npz", "e.safetensors", "folder"):
        back = Embeddings.load(e.save(tmp_path/name))
        assert dict(retrieval_metrics(back, back, protocol="market")) == dict(want)
    on_disk = Shards(write_shards(e, tmp_path/"shards", rows=16))
    found = retrieval_metrics(e, on_disk, protocol="market")
    assert [found[k] for k in ("n_query", "n_gallery")] == [want[k] for k in ("n_query", "n_gallery")]


def test_the_same_rows_without_roles_are_told(recwarn):
    e, q, g = a_test_split()
    bare = Embeddings(e.emb, e.pid, e.cam, e.path)
    with pytest.warns(UserWarning, match="no column 'role', so that all of them ask"):
        retrieval_metrics(bare, bare, protocol="market")
    recwarn.clear()
    retrieval_metrics(q, g, protocol="market")
    retrieval_metrics(e, e, protocol="vehicleid.all")      # of which every image asks
    assert not [w for w in recwarn if "role" in str(w.message)]


def test_roles_that_leave_nobody_or_are_none_are_refused():
    e, q, g = a_test_split()
    with pytest.raises(ValueError, match=re.escape("no row of the queries has role query or both; there are gallery")):
        retrieval_metrics(g, q, protocol="market")
    odd = e.assign(role=np.full(len(e), "probe"))
    with pytest.raises(ValueError, match="role='probe' is not known"): retrieval_metrics(odd, odd, protocol="market")


def test_covered_images_ask_and_whole_ones_are_searched():
    levels = dict(pid=[1, 1, 2, 2, 1], cam=[1]*5, occluded=[.4, 0., 0., .1, np.nan])
    for column in (levels["occluded"], ["True", "False", "no", "1", ""], [True, False, False, True, None]):
        plan = apply_protocol(dict(levels, occluded=column), dict(levels, occluded=column), "p-duke")
        assert (plan.queries().tolist(), plan.gallery().tolist()) == ([0, 3], [1, 2])
    bare = dict(pid=[1], cam=[1])
    with pytest.raises(MissingColumn, match="needs the column 'occluded', which the queries lack"):
        apply_protocol(bare, bare, "occluded-reid")
    with pytest.raises(ValueError, match="no row of the queries has occluded 1; there are 0"):
        apply_protocol(dict(bare, occluded=[0]), dict(bare, occluded=[0]), "occluded-reid")


def test_tracks_of_camera_1_ask_in_ilids():
    tracks = dict(pid=[1, 1, 2, 2], cam=[1, 2, 2, 1], track=[0, 1, 2, 3])
    plan = apply_protocol(tracks, tracks, "ilids-vid")
    assert (plan.queries().tolist(), plan.gallery().tolist()) == ([0, 3], [1, 2])


@pytest.mark.parametrize("name, cams, says", [
    ("sysu.all", [0, 1, 2, 3, 4, 5], "are numbered from 0: column 'cam' has 0, 1, 2"),
    ("sysu.indoor", [0, 1, 2, 3, 4, 5], "(1, 2, 3), and those of the queries are numbered from 0"),
    ("ilids-vid", [0, 1], "are numbered from 0"),
    ("prcc.all-changed", [0, 1, 2], "names cameras as the dataset does (A, C), and those of the queries are numbers"),
    ("prcc.all-changed", [1, 2, 3], "Give the names of the dataset in a column 'cam_name'")])
def test_numbers_of_cameras_that_are_not_those_of_the_dataset_are_refused(name, cams, says):
    n = 6*len(cams)
    names = [f"{i:02}" for i in range(n)]
    f = pd.DataFrame(dict(pid=np.arange(n) % 3, cam=np.resize(cams, n), path=names, track=range(n)))
    f["modality"] = np.where(f.cam.isin([2, 5]), "infrared", "visible")
    with pytest.raises(ValueError, match=re.escape(says)): apply_protocol(f, f, name)
    names = dict(zip(cams, "ABC" if name.startswith("prcc") else map(str, range(1, 7))))
    plan = apply_protocol(*[f.assign(cam_name=f.cam.map(names))]*2, name)
    if name == "sysu.indoor": assert set(f.cam[plan.gallery()]) == {0, 1}
    if name.startswith("prcc"): assert set(f.cam[plan.queries()]) == {cams[2]}


def test_draws_from_equal_paths_or_from_no_places_are_refused():
    f = pd.DataFrame(dict(pid=[1, 1, 2, 2], cam=[1, 1, 1, 1], path=["a", "a", "a", "b"], modality="visible"))
    asks = f.assign(modality="infrared")
    with pytest.raises(ValueError, match="several rows of one pid and cam have 'a': give each row its own path"):
        apply_protocol(asks, f, "sysu.all")
    apply_protocol(asks, f.assign(path=["a", "b", "a", "b"]), "sysu.all")      # of two people they may be equal
    for places, says in (([True, False, True, False], "holds 'True'"), (["first", "", "1", "2"], "holds 'first'")):
        lists = {f"draw{trial}": places for trial in range(1, 11)}
        with pytest.raises(ValueError, match=f"column 'draw1' {says}; it must hold the place"):
            apply_protocol(asks, f.assign(**lists), "sysu.all-official")


def test_a_protocol_says_which_columns_it_reads_and_how_its_parts_are_written():
    text = str(PROTOCOLS["sysu.all"])
    assert "Columns of the queries: pid, modality, cam; of the gallery: pid, modality, cam, path; role" in text
    with pytest.raises(TypeError, match=re.escape("write such as junk=Junk('cam')")): Protocol("own", "", junk="cam")
    with pytest.raises(TypeError, match=re.escape("write such as queries=Rows(modality=")):
        Protocol("own", "", queries=dict(cam=1))


@given(seed=st.integers(0, 2**20))
@settings(max_examples=30, deadline=None)
def test_matches_in_the_same_clothes_are_those_of_the_cited_program(seed):
    "evaluate_with_clothes of guxinqian/Simple-CCReID:tools/eval_metrics.py, mode SC, written from its text"
    rng = np.random.default_rng(seed)
    q, g = (pd.DataFrame(dict(pid=rng.integers(0, 4, n), cam=rng.integers(0, 3, n), clothes=rng.integers(0, 2, n)))
            for n in (8, 40))
    sim = rng.permutation(320).reshape(8, 40)/320
    hits, aps, skipped = [], [], 0
    for i, own in enumerate(q.itertuples()):
        person = set(np.flatnonzero(g.pid == own.pid))
        good = {j for j in person if g.cam[j] != own.cam and g.clothes[j] == own.clothes}
        ranked = [j for j in np.argsort(-sim[i]) if j in good or j not in person]
        ranks = [rank for rank, j in enumerate(ranked, 1) if j in good]
        if not ranks:
            skipped += 1
            continue
        hits.append(ranks[0] == 1)
        aps.append(np.mean([(n + 1)/rank for n, rank in enumerate(ranks)]))
    assume(hits)
    got = metrics_from_similarity(sim, q.pid, g.pid, columns(q), columns(g), protocol="ltcc.same-clothes")
    assert [got["R1"], got["mAP"], got["n_skipped"]] == pytest.approx([100*np.mean(hits), 100*np.mean(aps), skipped])


# ---------------------------------------------------------------- pairs that do not count

def naive_pairs(protocol, q, g, draws):
    "Pairs that do not count, by the first cause that holds; means over draws"
    counts = {}
    for asks, searched in draws:
        for i in asks:
            for j in searched:
                a, b = q.iloc[i], g.iloc[j]
                groups = [c for c in protocol.junk.groups if a.pid != -1 and is_junk(Junk(all=c), a, b)]
                values = [(c, x, y) for c, x, y in protocol.junk.pairs if str(a[c]) == x and str(b[c]) == y]
                if b.pid == -1: cause = "nobody (pid -1)"
                elif groups: cause = "+".join(groups[0])
                elif values: cause = "{}={}:{}".format(*values[0])
                elif a.path == b.path: cause = "itself"
                else: continue
                counts[cause] = counts.get(cause, 0) + 1
    return {cause: n/len(draws) for cause, n in counts.items()}


@pytest.mark.parametrize("rule", [
    Junk("cam"), Junk("cam", "clothes"), Junk("cam+clothes"), Junk(), Junk("cam", "other:clothes"),
    Junk("clothes", pairs=dict(cam=[(3, 2), (4, 2), (3, 3)], view=[("aerial", "ground")]))])
@pytest.mark.parametrize("draw", [None, Draw(("pid",), k=4, times=3)])
@pytest.mark.filterwarnings("ignore")
def test_pairs_that_do_not_count_by_a_plain_loop(rule, draw):
    f, _ = some_table(4)
    e = features(f)
    protocol = Protocol("own", "Own.", junk=rule, draw=draw, by_role=())
    found = retrieval_metrics(e, e, protocol=protocol)
    want = naive_pairs(protocol, f, f, list(naive_draws(protocol, f, f)))
    assert found.pairs_left_out() == pytest.approx(want)
    if draw is None:
        want.pop("nobody (pid -1)")     # of whom nothing is scored without a protocol
        assert retrieval_metrics(e, e, junk=rule).pairs_left_out() == pytest.approx(want)
    assert sum(note.startswith("pairs of a query and an image left out: ") for note in found.notes()) == 1


def test_a_protocol_that_leaves_out_every_match_has_a_remedy_of_its_own():
    e = Embeddings(np.eye(4, dtype="float32"), [0, 0, 1, 1], [0, 0, 1, 1], columns=dict(clothes=[0, 0, 1, 1]))
    for name in ("market", "ltcc.cc"):
        with pytest.raises(ValueError, match=f"only in images that protocol='{name}' leaves out") as error:
            retrieval_metrics(e, e.assign(), protocol=name)
        assert "junk=" not in str(error.value)


def test_every_registered_dataset_has_a_subject():
    "People, vehicles or animals, of which protocols ask for one; the World and unknown names are not refused"
    assert {name for name in DATASETS if not subject_of(name)} == {"world"}
    for name, dataset in DATASETS.items():
        for protocol in dataset.protocols: refuse_foreign(PROTOCOLS[protocol], name)


@pytest.mark.parametrize("names, protocol, says", [
    (("market1501", "wildlife"), "market", "market1501 (people) and wildlife (animals): none is on both sides"),
    (("wildlife", "wildlife"), "market", "asks for people, and these are features of wildlife (animals)"),
    (("veri-776", ""), "wildlife", "asks for animals, and these are features of veri-776 (vehicles)")])
def test_people_are_not_searched_among_animals(names, protocol, says):
    sides = [Embeddings(np.eye(4, dtype="float32"), [0, 1, 0, 1], [0, 0, 1, 1], meta=dict(data=name)) for name in names]
    for score in (retrieval_metrics, rank):
        with pytest.raises(ValueError, match=re.escape(says)): score(*sides, protocol=protocol)
    own = replace(PROTOCOLS[protocol], name="mine")
    if names[0] == names[1]: assert rank(*sides, protocol=own)[0].shape == (4, 10)


def test_a_column_role_that_decides_is_in_the_sentences():
    for protocol in PROTOCOLS.values():
        said = str(protocol).partition("a column role, it says ")[2].partition(".")[0]
        assert ("queries" in protocol.by_role) == ("which of them ask" in said), protocol.name
        assert ("gallery" in protocol.by_role) == ("which are searched" in said), protocol.name
