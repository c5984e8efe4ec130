"Rules of junk on two sides, against loops over all pairs: metrics, lists, rivals, chance, open set, bias report"
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings, strategies as st

from reid_lab.analysis.bias.audit import AuditSettings, bias_report
from reid_lab.analysis.bias.per_camera import uncertainty
from reid_lab.analysis.bias.remedies import both_scores
from reid_lab.analysis.compare import CompareSettings, ModelFeatures, compare_features
from reid_lab.analysis.failures import REASONS, Reason, Searched, failure_table, same_value
from reid_lab.analysis.open_set import search_scores, verification_rates
from reid_lab.analysis.search import find
from reid_lab.retrieval.chance import list_counts
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.junk import Junk, as_junk
from reid_lab.retrieval.left_out import apply_junk, codes_of, compared_labels
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, msd, retrieval_metrics
from reid_lab.retrieval.ranking import Ranker, rank, rivals
from reid_lab.retrieval.scores import MatrixScores
from reid_lab.retrieval.shards import Shards, write_shards
from reid_lab.widgets.scene import Scene

RULES = ["none", "cam", "clothes", "cam,clothes", "cam+modality", "clothes,cam+modality", "cam=1:0",
         "cam=1:0,cam=0:2,cam", "cam,other:clothes", "other:clothes+modality,cam=1:0"]
LTCC = "cam,clothes"
CLOTHES, MODALITIES = np.array(["red", "blue", "grey", ""]), np.array(["rgb", "ir", ""])


def side(rng, n, ids=5, dim=4):
    "Labels at random, some of each unknown"
    columns = dict(clothes=CLOTHES[rng.integers(0, 4, n)], modality=MODALITIES[rng.integers(0, 3, n)])
    return Embeddings(rng.normal(size=(n, dim)), rng.integers(-1, ids, n), rng.integers(-1, 3, n), columns=columns)


def is_junk(rule, q, i, g, j):
    "One pair, by the words of the rule"
    def value(e, row, name):
        found = e.cam[row] if name == "cam" else e.columns[name][row]
        return None if found in (-1, "") else found

    def equal(name): return value(q, i, name) is not None and value(q, i, name) == value(g, j, name)

    def other(name):
        both = value(q, i, name), value(g, j, name)
        return None not in both and both[0] != both[1]

    def holds(name): return other(name.removeprefix("other:")) if name.startswith("other:") else equal(name)

    person = q.pid[i] == g.pid[j] != -1
    if person and any(all(holds(name) for name in group) for group in rule.groups): return True
    return any((str(value(q, i, name)), str(value(g, j, name))) == (of_query, of_image)
               for name, of_query, of_image in rule.pairs)


def naive_lists(rule, q, g, scores):
    "Images of each query, best first, of those that count"
    rule, lists = as_junk(rule), []
    for i in range(len(q)):
        counts = [j for j in range(len(g)) if g.pid[j] != -1 and not is_junk(rule, q, i, g, j)]
        lists.append(sorted(counts, key=lambda j: (-scores[i, j], j)))
    return lists


def naive_scores(lists, q, g):
    "First rank, average precision, inverse negative penalty; None without a match"
    rows = []
    for i, row in enumerate(lists):
        hits = [n for n, j in enumerate(row, 1) if g.pid[j] == q.pid[i] != -1]
        ap = np.mean([(k + 1)/rank for k, rank in enumerate(hits)]) if hits else None
        rows.append((hits[0], ap, len(hits)/hits[-1]) if hits else None)
    return rows


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q, g = side(rng, draw(st.integers(1, 8))), side(rng, draw(st.integers(2, 30)))
    scores = rng.integers(0, draw(st.sampled_from([2, 5, 1000])), (len(q), len(g))).astype("f4")
    return q, g, scores, draw(st.sampled_from(RULES))


@given(p=problems(), backend=st.sampled_from(["torch", "numba"]))
@settings(max_examples=120, deadline=None)
def test_metrics_and_lists_are_those_of_a_loop(p, backend):
    q, g, scores, rule = p
    assume((g.pid != -1).any())
    lists = naive_lists(rule, q, g, scores)
    rows = naive_scores(lists, q, g)
    matrix = MatrixScores(scores, (0., 1000.))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index = rank(q, g, len(g), junk=rule, scores=matrix)[0]
        near = rivals(q, g, junk=rule, scores=matrix)
    for i, row in enumerate(lists):
        assert index[i][index[i] >= 0].tolist() == row, (rule, i)
        assert Ranker(q, g, junk=rule, scores=matrix)(i, len(g))[0].tolist() == row
        others = [j for j in row if g.pid[j] != q.pid[i] or q.pid[i] == -1]
        assert near.wrong[i] == (others[0] if others else -1)
        assert near["first"][i] == (rows[i][0] if rows[i] else 0) or len({*scores[i]}) < len(g)
    counts = list_counts(q.pid, g.pid, {"cam": q.cam, **q.columns}, {"cam": g.cam, **g.columns}, junk=rule)
    assert counts.n_images.tolist() == [len(row) for row in lists]
    if not any(rows):
        with pytest.raises(ValueError, match="none of the"): retrieval_metrics(q, g, junk=rule, scores=matrix)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = retrieval_metrics(q, g, junk=rule, scores=matrix, per_query=True, scoring=Scoring(backend=backend))
        of_arrays = metrics_from_similarity(
            scores, q.pid, g.pid, {"cam": q.cam, **q.columns}, pd.DataFrame({"cam": g.cam, **g.columns}),
            scoring=Scoring(junk=rule, span=(0., 1000.), backend=backend))
    each = found["per_query"]
    for i, row in enumerate(rows):
        if row is None: assert np.isnan(each["AP"][i])
        else: assert (each["first"][i], each["AP"][i], each["INP"][i]) == pytest.approx(row)
    assert found["n_skipped"] == rows.count(None) and sum(found["skipped"].values()) == rows.count(None)
    assert found.junk == str(as_junk(rule)) and of_arrays == {k: found[k] for k in of_arrays}
    assert msd(scores, q.pid, g.pid, {"cam": q.cam, **q.columns}, {"cam": g.cam, **g.columns},
               scoring=Scoring(junk=rule, span=(0., 1000.), backend=backend)) == pytest.approx(found["mSD"])


def search(seed=0, n_query=40, n_image=160, ids=8):
    "Known labels with unknown clothes, and features that are right in part"
    rng = np.random.default_rng(seed)
    sides = []
    for n in (n_query, n_image):
        e = side(rng, n, ids, 8)
        e.pid, e.cam = rng.integers(0, ids, n), rng.integers(0, 3, n)
        centre = np.random.default_rng(7).normal(size=(ids, 8))[e.pid]
        sides.append(e.with_emb(.4*centre + e.numpy()))
    return sides


def cosines(q, g): return (q.unit().emb @ g.unit().emb.T).numpy()


@pytest.mark.parametrize("rule", [LTCC, "cam+modality", "cam=1:0,cam=0:2"])
def test_failures_are_those_of_a_loop(rule):
    q, g = search()
    lists = naive_lists(rule, q, g, cosines(q, g))
    rows = naive_scores(lists, q, g)
    s = Searched(q, g, junk=rule)
    clothes = Reason("same clothes", same_value("clothes"), .5, "0 or 1", "the wrong image has the query's clothes")
    table = failure_table(s, [REASONS["same camera"], clothes]).set_index("query")
    assert sorted(table.index) == [i for i, row in enumerate(rows) if row]
    for i, row in table.iterrows():
        wrong = next(j for j in lists[i] if g.pid[j] != q.pid[i])
        assert (row["first"], row.AP, row.failed) == (rows[i][0], pytest.approx(rows[i][1]), rows[i][0] > 1)
        assert row.wrong == wrong and row["same camera holds"] == (g.cam[wrong] == q.cam[i])
        known = q.columns["clothes"][i] and g.columns["clothes"][wrong]
        if not known: assert pd.isna(row["same clothes holds"])
        else: assert row["same clothes holds"] == (q.columns["clothes"][i] == g.columns["clothes"][wrong])


@pytest.mark.parametrize("rule", [LTCC, "cam+modality"])
def test_the_bias_report_is_that_of_a_loop(rule):
    q, g = search(1, 60, 300)
    audit = AuditSettings(junk=rule, splits=0, open_images=0, map_images=50, nmi_images=50)
    report = bias_report(q, g, map_method="none", quiet=True, audit=audit)
    row = report.summary[(report.summary.method == "No adaptation") & (report.summary.distance == "cosine")].iloc[0]
    rows = [row for row in naive_scores(naive_lists(rule, q, g, cosines(q, g)), q, g) if row]
    assert row.mAP == pytest.approx(100*np.mean([ap for _, ap, _ in rows]), abs=1e-3)
    assert row.R1 == pytest.approx(100*np.mean([first == 1 for first, *_ in rows]))
    assert any(f"junk='{rule}'" in note for note in report.notes)
    plain = bias_report(q, g, map_method="none", quiet=True, audit=AuditSettings(
        splits=0, open_images=0, map_images=50, nmi_images=50)).summary
    assert plain.mAP[0] == pytest.approx(retrieval_metrics(q, g, junk="cam")["mAP"], abs=1e-3) != row.mAP


def test_ltccs_rule_is_one_loop_in_scores_lists_reasons_and_the_bias_report():
    "Camera or clothes, on random labels: what the four say of one search, from the same naive lists"
    q, g = search(5, 40, 200)
    lists = naive_lists(LTCC, q, g, cosines(q, g))
    rows = naive_scores(lists, q, g)
    scored = [row for row in rows if row]
    mean_ap = 100*np.mean([ap for _, ap, _ in scored])
    junk = Junk("cam", "clothes")
    metrics = retrieval_metrics(q, g, junk=junk)
    index = rank(q, g, len(g), junk=junk)[0]
    reasons = failure_table(Searched(q, g, junk=junk), [REASONS["same camera"]]).set_index("query")
    audit = AuditSettings(junk=junk, splits=0, open_images=0, map_images=50, nmi_images=50)
    report = bias_report(q, g, map_method="none", quiet=True, audit=audit).summary
    plain = report[(report.method == "No adaptation") & (report.distance == "cosine")].iloc[0]
    assert metrics["mAP"] == pytest.approx(mean_ap) and plain.mAP == pytest.approx(mean_ap, abs=1e-3)
    first = 100*np.mean([first == 1 for first, *_ in scored])
    assert metrics["R1"] == pytest.approx(first) == plain.R1
    assert [row[row >= 0].tolist() for row in index] == lists
    assert sorted(reasons.index) == [i for i, row in enumerate(rows) if row]
    for i, row in reasons.iterrows():
        wrong = next(j for j in lists[i] if g.pid[j] != q.pid[i])
        assert (row.wrong, row["first"], row.AP) == (wrong, rows[i][0], pytest.approx(rows[i][1]))
        assert row["same camera holds"] == (g.cam[wrong] == q.cam[i])
    assert mean_ap != pytest.approx(retrieval_metrics(q, g, junk="cam")["mAP"])     # else this test shows nothing


@pytest.mark.parametrize("rule", RULES)
def test_every_door_leaves_out_the_same(rule, tmp_path):
    "Open set, pairs, uncertainty, comparison, scene, shards and search"
    q, g = search(2)
    junk = {(i, j) for i in range(len(q)) for j in range(len(g)) if is_junk(as_junk(rule), q, i, g, j)}
    lists = naive_lists(rule, q, g, cosines(q, g))
    found = search_scores(q, g, junk=rule)
    assert found["rank"].tolist() == [row[0] if row else 0 for row in naive_scores(lists, q, g)]
    pairs = verification_rates(q, g, .5, junk=rule)
    assert pairs["same"] == sum((i, j) not in junk for i, j in zip(*np.nonzero(q.pid[:, None] == g.pid)))
    nearest = [1 - cosines(q, g)[i, row[0]] for i, row in enumerate(lists)]
    assert uncertainty(q, g, "cosine", junk=rule) == pytest.approx(nearest, abs=1e-5)
    whole = retrieval_metrics(q, g, junk=rule)
    of_both, _ = both_scores(q, g, junk=rule)
    assert 100*np.nanmean(of_both["cosine"]["AP"]) == pytest.approx(whole["mAP"], abs=1e-4)
    compared = compare_features([ModelFeatures("a", q, g)], settings=CompareSettings(rule, draws=100))
    assert 100*compared.scored[0].values[:, 1].mean() == pytest.approx(whole["mAP"], abs=1e-4)
    scene = Scene(q, g, junk=rule)
    assert [scene.ranker(i, 200)[0].tolist() for i in range(5)] == lists[:5]
    disk = Shards(write_shards(g, tmp_path/"g", "float32", 50))
    assert retrieval_metrics(q, disk, junk=rule)["mAP"] == pytest.approx(whole["mAP"], abs=1e-4)
    assert (rank(q, disk, 9, junk=rule)[0] == rank(q, g, 9, junk=rule)[0]).all()
    nobody = Embeddings(g.emb, np.where(np.arange(len(g)) < 80, -1, g.pid), g.cam, columns=g.columns)
    index = find(q, nobody, 200, junk=rule).result.index
    for i in range(len(q)):
        left_out = {j for j in range(len(g)) if is_junk(as_junk(rule), q, i, nobody, j)}
        assert {*index[i].tolist()} - {-1} == {*range(len(g))} - left_out


def test_unknown_is_equal_to_nothing_and_counted():
    q = Embeddings(np.eye(3), [1, 1, 2], [-1, 0, 1], columns=dict(clothes=["", "red", "red"]))
    g = Embeddings(np.eye(3), [1, 1, 2], [-1, 0, 0], columns=dict(clothes=["", "", "red"]))
    found = apply_junk("cam,clothes", q, g)
    assert found.unknown == dict(cam=(1, 1), clothes=(1, 2)) and found.n_unknown == 5 and len(found.notes()) == 2
    assert found.of_same_person(np.array([0, 1, 2]), np.array([0, 1, 2])).tolist() == [False, True, True]
    scores = retrieval_metrics(q, g, junk="clothes")
    assert "clothes is unknown for 1 queries and 2 gallery images" in scores.notes()[1]


@pytest.mark.parametrize("query, image, equal", [
    ([3, 4], ["3", "x5"], [True, False]), ([1., np.nan], [1, -1], [True, False]),
    (["a", None], ["a", None], [True, False]),
    ([True, False], [1, 1], [True, False]), (np.array([7, -1], object), [7, -1], [True, False])])
def test_values_are_compared_as_labels_are_read(query, image, equal):
    both = np.arange(2)
    assert codes_of("x", np.asarray(query), np.asarray(image)).equal(both, both).tolist() == equal


def test_cameras_with_names_are_named_in_a_rule_over_both_sides():
    q = Embeddings(np.eye(2), [1, 2], [0, 1], columns=dict(cam_name=["ir3", "hall"]))
    g = Embeddings(np.eye(2), [1, 2], [4, 5], columns=dict(cam_name=["hall", "ir3"]))
    assert rank(q, g, 2, junk="cam=ir3:hall")[0].tolist() == [[1, -1], [1, 0]]
    with pytest.raises(ValueError, match="numbers on one side and texts on the other"):
        sides = [Embeddings(np.eye(2), [1, 2], columns=dict(site=site)) for site in ([1, 2], ["a", "b"])]
        retrieval_metrics(*sides, junk="site")


def test_the_default_is_one_for_all():
    "Cameras of both sides, unless all images are of one camera or of one person; an unknown one is another"
    rng = np.random.default_rng(0)
    cases = [(dict(cam=3), dict(cam=3), "none"), (dict(cam=3), dict(cam=None), "none"),
             (dict(pid=1), dict(pid=1), "none"), ({}, {}, "cam"), (dict(cam=3), dict(cam=[3]*29 + [-1]), "cam")]
    for of_query, of_image, want in cases:
        q, g = side(rng, 30), side(rng, 30)
        for e, changes in ((q, of_query), (g, of_image)):
            for name, value in changes.items():
                setattr(e, name, None if value is None else np.broadcast_to(value, 30).copy())
        q.pid, g.pid = q.pid.clip(0), g.pid.clip(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = retrieval_metrics(q, g)
            assert found.junk == want == str(Scene(q, g).junk) == search_scores(q, g).attrs["junk"]
            assert (rank(q, g, 5)[0] == rank(q, g, 5, junk=want)[0]).all()
            assert rivals(q, g).equals(rivals(q, g, junk=want))
            assert found == retrieval_metrics(q, g, junk=want)
    assert compared_labels("auto") == ("pid", "cam") and compared_labels(Junk("clothes")) == ("pid",)


def test_a_pair_of_values_that_nothing_has_is_said():
    q, g = (Embeddings(np.eye(6), [0, 1, 2]*2, [0, 1, 2]*2) for _ in range(2))
    said = "nothing has cam 'c3', so that cam=c3:2 leaves nothing out; there are 0, 1, 2"
    with pytest.warns(UserWarning, match=said):
        apply_junk("cam=c3:2", q, g)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_junk("cam=1:2", q, g)


def test_unknown_cameras_are_no_single_camera():
    q, g = (Embeddings(np.eye(3), [0, 1, 2], [-1]*3) for _ in range(2))
    left_out = apply_junk("auto", q, g)
    assert not left_out.rule and left_out.why == "the queries have no cameras"


@pytest.mark.parametrize("junk", ["cam", "none"])
def test_reasons_compare_cameras_by_name_whatever_is_junk(junk):
    "Two sides that number the same cameras differently"
    draw = np.random.default_rng(0)
    sides = [Embeddings(draw.normal(size=(40, 8)), np.arange(40) % 5, np.array(order)[np.arange(40) % 4],
                        columns=dict(cam_name=np.array(list("abcd"))[np.arange(40) % 4]))
             for order in ([0, 1, 2, 3], [3, 2, 1, 0])]
    searched = Searched(*sides, junk=junk)
    cameras = [np.asarray(side.columns["cam_name"]) for side in (searched.q, searched.g)]
    wrong = searched.near["wrong"].to_numpy()
    same = failure_table(searched).sort_values("query")["same camera"].to_numpy().astype(bool)
    assert same.tolist() == (cameras[0] == cameras[1][wrong]).tolist()


def test_values_that_the_sides_spell_differently_are_said():
    sides = [Embeddings(np.eye(6), [0, 1, 2]*2, [0, 1, 2]*2, columns=dict(clothes=np.array(list(letters)*2)))
             for letters in ("ABC", "abc")]
    with pytest.warns(UserWarning, match=r"no query has the clothes of an image \(A, B, C against a, b, c\)"):
        apply_junk("clothes", *sides)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_junk("clothes", sides[0], sides[0])


@pytest.mark.parametrize("pair", ["cam=-1:-1", "cam=3:-1", "cam=nan:3", "clothes=None:red"])
def test_a_pair_of_what_is_unknown_is_refused_as_unknown_is_equal_to_nothing(pair):
    with pytest.raises(ValueError, match="which stands for unknown, and .* take the pair"):
        as_junk(pair)
    column, values = pair.split("=")
    with pytest.raises(ValueError, match="stands for unknown"): Junk(pairs={column: [tuple(values.split(":"))]})


def test_what_a_side_keeps_for_a_rule():
    assert Junk("cam", "clothes").columns_and_names == ("cam", "clothes")
    assert as_junk("clothes,cam=3:2,cam=4:2").columns_and_names == ("clothes", "cam", "cam_name")
