"Comparisons: scores against sorted lists, intervals against a naive bootstrap, labels and pairs that count for all"
from dataclasses import replace

import numpy as np
import pytest
from helpers.compare import bootstrap_by_loop, model, naive_scores

from reid_lab.analysis.compare import (
    METRICS,
    CompareSettings,
    Comparison,
    ModelFeatures,
    bootstrap,
    bootstrap_p,
    compare_features,
    comparison_text,
    latency_figure,
)
from reid_lab.results.significance import holm
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.shards import Shards, write_shards


@pytest.fixture(scope="module")
def three(): return [model("A", 1.6, 0), model("B", 1.3, 1), model("C", 1.6, 2)]


@pytest.fixture(scope="module")
def found(three): return compare_features(three, "demo", CompareSettings(draws=300, seed=5))


def test_scores_are_those_of_sorted_lists(three, found):
    for f, scored in zip(three, found.scored):
        assert np.abs(scored.values - naive_scores(f.q, f.g)).max() < 1e-9
        assert scored.intervals.mean == pytest.approx(100*scored.values.mean(0), abs=1e-9)


def test_intervals_are_those_of_a_naive_bootstrap(three, found):
    base = naive_scores(three[0].q, three[0].g)
    for n, f in enumerate(three[1:]):
        for k, metric in enumerate(METRICS):
            d = found.differences[3*n + k]
            assert (d.model, d.metric) == (f.label, metric)
            diff = naive_scores(f.q, f.g)[:, k] - base[:, k]
            assert d.diff == pytest.approx(100*diff.mean(), abs=1e-9)
            assert (d.low, d.high) == pytest.approx(bootstrap_by_loop(diff, found.pid, 300, 5), abs=1e-9)
            over_queries = bootstrap_by_loop(diff, np.arange(len(diff)), 300, 5)
            assert (d.query_low, d.query_high) == pytest.approx(over_queries, abs=1e-9)


def test_people_with_more_queries_weigh_more():
    values = np.array([[1.], [1.], [1.], [0.], [0.]])
    pid = np.array([4, 4, 4, 9, 9])
    got = bootstrap(values, pid, 200, 1)
    assert got.mean == pytest.approx([60]) and (got.low[0], got.high[0]) == pytest.approx(
        bootstrap_by_loop(values[:, 0], pid, 200, 1), abs=1e-9)
    assert bootstrap(values[:3], pid[:3], 200).low[0] == -np.inf    # of one person no spread is known
    assert bootstrap(np.ones((5, 1)), pid, 200).low[0] == -np.inf
    assert bootstrap(np.zeros((5, 1)), pid, 200).low[0] == 0


def test_p_values_are_those_of_counted_draws_and_agree_with_the_intervals(found):
    rng = np.random.default_rng(2)
    means = rng.normal(.4, 1, (399, 5))
    for column, p in zip(means.T, bootstrap_p(means)):
        below, above = sum(x <= 0 for x in column), sum(x >= 0 for x in column)
        assert p == pytest.approx(min(1, 2*(min(below, above) + 1)/400))
    assert bootstrap_p(np.full((399, 1), 2.))[0] == pytest.approx(2/400)     # no draw on the other side
    for d in found.differences:
        assert (d.p < .05) == (d.verdict in ("higher", "lower")) or .03 < d.p < .07
    pid = np.array([4, 4, 4, 9, 9])
    assert np.isnan(bootstrap(np.ones((5, 1)), pid, 200).p[0]) and np.isnan(bootstrap(np.zeros((5, 1)), pid, 200).p[0])


def test_several_models_against_one_are_corrected_for_their_number(found):
    table = Comparison((found, found)).differences()
    for metric, same in table.groupby("metric"):
        ps = [d.p for part in (found, found) for d in part.differences if d.metric == metric]
        assert same.p_holm.tolist() == pytest.approx(holm(ps)) and len(ps) == 4
    for line in table.itertuples():
        lasts = line.verdict in ("higher", "lower") and line.p_holm < .05
        assert line.after_holm == (line.verdict if lasts or line.verdict == "equal" else "not resolved")
    said = " ".join(Comparison((found,)).remarks())
    assert "2 differences to A in mAP: after Holm's correction" in said
    assert ("B on demo (lower)" in said) == ("lower" in set(table[table.model == "B"].query("metric == 'mAP'").verdict))


def test_rows_in_another_order_give_the_same_numbers(three, found):
    order = np.random.default_rng(3).permutation(len(three[1].q))
    turned = ModelFeatures("B", three[1].q[order], three[1].g[np.arange(len(three[1].g))[::-1]])
    again = compare_features([three[0], turned, three[2]], "demo", CompareSettings(draws=300, seed=5))
    for a, b in zip(found.differences, again.differences): assert a == b
    less = ModelFeatures("B", three[1].q[:-1], three[1].g)
    with pytest.raises(ValueError, match="B lacks 1 of"): compare_features([three[0], less])
    some = compare_features([three[0], less], "demo", CompareSettings(common=True))
    assert len(some.pid) == len(found.pid) - 1 and some.left_out == (("A", 1, 0), ("B", 0, 0))
    assert "1 query and 0 gallery images of A are not in all features" in comparison_text(Comparison((some,)))


def test_a_gallery_on_disk(three, found, tmp_path):
    pytest.importorskip("pyarrow")
    shards = Shards(write_shards(three[1].g, tmp_path/"g", dtype="float32", rows=50))
    got = compare_features([three[0], ModelFeatures("B", three[1].q, shards)], "demo")
    assert got.scored[1].values == pytest.approx(found.scored[1].values, abs=1e-9)


def test_what_one_knows_counts_for_all(three, tmp_path):
    q, g = three[0].q, three[0].g
    bare = ModelFeatures("bare", *(Embeddings(e.emb, [-1]*len(e), path=e.path) for e in (q, g)))
    got = compare_features([bare, three[0]], "demo")
    assert got.drops_camera and {d.verdict for d in got.differences} == {"equal"}
    # paths of the gallery that one model knows to be the files of the queries
    paths = [f"{i}.jpg" for i in range(len(q))]
    here = [Embeddings(q.emb, q.pid, path=paths, meta=dict(root=str(tmp_path), kind="image")) for _ in range(2)]
    twin = ModelFeatures("root", *here)
    free = ModelFeatures("free", Embeddings(q.emb, q.pid, path=paths), Embeddings(q.emb, q.pid, path=paths))
    with pytest.warns(UserWarning, match="have the path of a gallery image"):
        both = compare_features([free, twin], "demo")
    assert both.n_itself == len(q) and {d.verdict for d in both.differences} == {"equal"}


def test_each_image_asks_all_others(three):
    g = three[0].g
    got = compare_features([ModelFeatures("A", g, g)], "demo")
    assert got.each_asks and got.scored[0].values == pytest.approx(naive_scores(g, g, itself=True), abs=1e-9)
    assert "each image asks all others" in comparison_text(Comparison((got,)))


def test_the_text_fits_a_terminal_and_the_world_is_named(three):
    got = Comparison(tuple(compare_features(three, name) for name in ("world quick reid seed 3", "market1501")))
    text = comparison_text(got)
    assert max(map(len, text.splitlines())) <= 80 and "World: rendered images" in text and "unknown" in text
    assert got.scores().world.tolist() == [True]*3 + [False]*3
    table = got.table()
    assert table.shape == (6, 8) and table["mAP - A"].tolist()[0] == "" and "World" in table.attrs["footnote"]
    assert [ax.get_title() for ax in latency_figure(got).axes] == ["world quick reid seed 3", "market1501"]


# --- protocols --------------------------------------------------------------------------------------------------------

def modal(label, noise, seed, n=240):
    "Visible images under cameras 1 to 6, of which 3 and 6 are infrared, as both sides"
    rng = np.random.default_rng(seed)
    pid, cam = np.arange(n) % 20, np.random.default_rng(7).integers(1, 7, n)
    emb = np.random.default_rng(8).normal(size=(20, 8))[pid] + noise*rng.normal(size=(n, 8))
    columns = dict(modality=np.where(np.isin(cam, (3, 6)), "infrared", "visible"))
    sides = []
    for side in "qg":
        path = [f"{side}{i:04d}.jpg" for i in range(n)]
        sides.append(Embeddings(emb.astype("f4"), pid, cam, path, columns=dict(columns)))
    return ModelFeatures(label, *sides)


@pytest.mark.parametrize("protocol", ["sysu.all", "sysu.indoor-10", "regdb.t2v", "prcc.single-changed", "prcc.all-same",
                                      "veri.trapezoid", "market"])
def test_scores_by_a_protocol_are_those_of_the_metrics(protocol):
    both = [modal("A", 1., 0), modal("B", 1.3, 1)]
    if protocol.startswith("prcc"): both = [of_cameras_from_0(f) for f in both]
    found = compare_features(both, "demo", CompareSettings(draws=100, protocol=protocol))
    for f, scored in zip(both, found.scored):
        want = retrieval_metrics(f.q, f.g, protocol=protocol)
        assert scored.intervals.mean == pytest.approx([want["R1"], want["mAP"], want["mINP"]], abs=1e-3)
        assert len(scored.values) == want["n_query"]
    assert f"protocol {protocol}" in comparison_text(Comparison((found,)))


def test_one_draw_of_a_protocol_is_compared_alone():
    both = [modal("A", 1., 0), modal("B", 1.3, 1)]
    found = compare_features(both, "demo", CompareSettings(draws=100, protocol="sysu.all", draw=4))
    for f, scored in zip(both, found.scored):
        want = retrieval_metrics(f.q, f.g, protocol="sysu.all").draws[4]
        # one draw: R1 of images and of identities agree
        assert scored.intervals.mean == pytest.approx([want["R1"], want["mAP"], want["mINP"]], abs=1e-3)
    assert "protocol sysu.all, draw 4 of 0 to 9" in comparison_text(Comparison((found,)))


def of_cameras_from_0(f):
    "The same with three cameras, 0 to 2, and their names in PRCC"
    def named(e): return e.columns | dict(cam_name=np.array([*"ABC"])[e.cam % 3])
    sides = [Embeddings(e.emb, e.pid, e.cam % 3, e.path, columns=named(e)) for e in (f.q, f.g)]
    return ModelFeatures(f.label, *sides)


@pytest.mark.parametrize("settings, says", [
    (dict(junk="cam", protocol="sysu.all"), "give one of the two"), (dict(protocol="cuhk03.single"), "no common lists"),
    (dict(protocol="sysu.al"), "sysu.all"), (dict(draw=3), "draw=3 is of a protocol, and none is given"),
    (dict(protocol="sysu.all", draw=10), "draw=10")])
def test_protocols_that_cannot_be_compared_are_refused(settings, says):
    with pytest.raises(ValueError, match=says): CompareSettings(**settings)


def test_a_protocol_names_the_column_that_features_lack(three):
    with pytest.raises(ValueError, match="needs the column 'modality'"):
        compare_features(three, "demo", CompareSettings(protocol="sysu.all"))


def test_tracks_are_pooled_before_they_are_compared():
    both = [modal("A", 1., 0), modal("B", 1.3, 1)]
    for f in both:
        for first, e in enumerate((f.q, f.g)): e.columns["track"] = 1000*first + 20*e.cam + e.pid
    found = compare_features(both, "demo", CompareSettings(draws=100, protocol="mars.torchreid"))
    want = retrieval_metrics(both[1].q, both[1].g, protocol="mars.torchreid")
    assert found.scored[1].intervals.mean[1] == pytest.approx(want["mAP"], abs=1e-3)


def test_roles_part_the_rows_of_a_whole_test_split_in_a_comparison():
    rng = np.random.default_rng(0)
    role = np.where(np.arange(60) % 3 == 0, "query", "gallery")
    rows = dict(path=[f"{i}.jpg" for i in range(60)], columns=dict(role=role))
    e, other = (Embeddings(rng.normal(size=(60, 8)), np.arange(60) % 5, np.arange(60)//5 % 4, **rows) for _ in range(2))
    both = [ModelFeatures("a", e, e), ModelFeatures("b", other, other)]
    found = compare_features(both, "demo", CompareSettings(draws=100, protocol="market"))
    want = retrieval_metrics(e, e, protocol="market")
    assert found.scored[0].intervals.mean[1] == pytest.approx(want["mAP"], abs=1e-3)
    assert len(found.scored[0].values) == want["n_query"] <= 20


def test_the_side_that_knows_nobody_is_named(three):
    def nobody(e): return Embeddings(e.emb, np.full(len(e), -1), e.cam, e.path)

    def unknown(f, *sides): return replace(f, **{side: nobody(getattr(f, side)) for side in sides})

    a, b = unknown(three[0], "g"), unknown(three[1], "q", "g")
    with pytest.raises(ValueError, match=r"known in A \(gallery\), B \(queries and gallery\): pid is -1"):
        compare_features([a, b])
