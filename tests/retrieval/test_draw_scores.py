"Scores of each draw: by a plain loop over the draws, and equal to plain scores where a draw changes nothing"
import re
import warnings

import numpy as np
import pytest
from helpers.protocols import features, naive_draws, some_table, table_for

from reid_lab.retrieval.draw_scores import score_draws, scores_of_draw
from reid_lab.retrieval.draws import protocol_sides
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.rerank import rerank_itm, rerank_k_reciprocal
from reid_lab.retrieval.scores import MatrixScores, scores_of

ORDER = Scoring(ties="order")
NAMES = ["market", "market.trapezoid", "prcc.single-changed", "ltcc.cc-filtered", "sysu.all", "vehicleid.small",
         "llcm.v2i-released", "mars.torchreid", "mars.official", "cuhk03.single"]


def sides_of(name, seed=7, n=160):
    f = table_for(name, seed, n)
    e = features(f, roles=True)
    return f, (e[:60] if PROTOCOLS[name].without_queries else e), e


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_cosines_draw_by_draw_are_the_protocol(name):
    _, q, g = sides_of(name)
    want = retrieval_metrics(q, g, protocol=name, scoring=ORDER, per_query=True)
    scores = score_draws(q, g, name, scores_of)
    got = retrieval_metrics(q, g, scores=scores, scoring=ORDER, per_query=True)
    assert set(got) >= set(want) - {"n_itself"}
    for k in set(want) - {"n_itself", "per_query", "skipped"}: assert got[k] == pytest.approx(want[k], abs=1e-6), k
    assert got["n_draws"] == PROTOCOLS[name].n_draws == len(got.draws) and got["skipped"] == want["skipped"]
    for column, values in want["per_query"].items():
        np.testing.assert_allclose(got["per_query"][column], values, atol=1e-6)
    assert "protocol" in got.notes()[0]


def mean_of_draws(name, f, q, g, rerank):
    "R1 and mAP as means over draws whose rows a plain loop chooses"
    protocol, found = PROTOCOLS[name], []
    for asks, searched in naive_draws(protocol, f[:len(q)], f):
        a, b = q[sorted(asks)], g[sorted(searched)]
        one = retrieval_metrics(a, b, scores=rerank(a, b), protocol=protocol.of_chosen_rows(), scoring=ORDER)
        found.append([one["R1"], one["mAP"], one["n_query"]])
    return np.mean(found, axis=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["market", "ltcc.cc", "sysu.all", "prcc.single-changed", "vehicleid.small",
                                  "llcm.v2i-released"])
@pytest.mark.parametrize("seed", [1, 2])
def test_re_ranking_looks_at_the_gallery_of_each_draw(name, seed):
    f, q, g = sides_of(name, seed, 120)

    def again(a, b): return rerank_k_reciprocal(a, b, k1=5, k2=2)

    scores = rerank_k_reciprocal(q, g, k1=5, k2=2, protocol=name)
    got = retrieval_metrics(q, g, scores=scores, protocol=name, scoring=ORDER)
    assert [got[k] for k in ("R1", "mAP", "n_query")] == pytest.approx(mean_of_draws(name, f, q, g, again))


@pytest.mark.filterwarnings("ignore")
def test_matches_are_asked_for_by_the_rows_as_given():
    f, q, g = sides_of("sysu.all", 3, 120)
    pid = f.pid.to_numpy()

    def knows(query, image): return 1.*(pid[query] == pid[image])

    scores = rerank_itm(q, g, knows, k_test=500, protocol="sysu.all")
    got = retrieval_metrics(q, g, scores=scores)
    assert got["R1"] == got["mAP"] == 100
    # a first stage that was given is cut to the rows of the draw
    first = MatrixScores(np.random.default_rng(0).random((len(q), len(g))))
    part = rerank_itm(q, g, knows, k_test=1, scores=first, protocol="sysu.all").parts[4]
    rows = part.sides.rows
    best = first.sim[np.ix_(rows.queries, rows.gallery)].argmax(1)
    np.testing.assert_array_equal(part.scores.index[:, 0], best)


@pytest.mark.filterwarnings("ignore")
def test_the_plain_rule_is_the_plain_re_ranking():
    e = features(some_table(7, 160)[0])      # without roles, so that every row asks and is searched
    q, g = e, e
    plain, named = rerank_k_reciprocal(q, g), rerank_k_reciprocal(q, g, protocol="market")
    want, got = retrieval_metrics(q, g, scores=plain, junk="cam"), retrieval_metrics(q, g, scores=named)
    assert got["n_itself"] == retrieval_metrics(q, g, scores=plain, protocol="market")["n_itself"]
    for k in set(want) - {"n_itself"}: assert got[k] == want[k], k


def small():
    _, q, g = sides_of("sysu.all")
    return q, g, score_draws(q, g, "sysu.all", scores_of)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong, says", [
    (lambda q, g, s: retrieval_metrics(q, g, scores=s, protocol="sysu.indoor"), "make them with the same"),
    (lambda q, g, s: retrieval_metrics(q, g, scores=s, junk="cam"), "give one of the two"),
    (lambda q, g, s: retrieval_metrics(q[:9], g, scores=s), "give the sides that they were made of"),
    (lambda q, g, s: s.block(0, 1), "give protocol='sysu.all' beside scores"),
    (lambda q, g, s: rerank_k_reciprocal(q, g, protocol="sysu.al"), "near names are sysu.all"),
    (lambda q, g, s: rerank_itm(q, g, None, protocol="mars.official"), "or rerank_k_reciprocal"),
    (lambda q, g, s: scores_of_draw(MatrixScores(np.eye(2)), protocol_sides(q, g, "sysu.all"), (len(q), len(g))),
     "q and g need"),
])
def test_what_cannot_be_scored_is_refused(wrong, says):
    with pytest.raises(ValueError, match=re.escape(says)): wrong(*small())


def test_features_of_tracks_are_pooled_before_they_are_re_ranked():
    rng = np.random.default_rng(0)
    track, pid, cam = np.repeat(np.arange(24), 3), np.repeat(np.arange(24) % 4, 3), np.repeat(np.arange(24) % 5, 3)
    e = Embeddings(rng.normal(size=(72, 6)).astype("float32"), pid, cam, columns=dict(track=track))
    scores = rerank_k_reciprocal(e, e, k1=4, k2=2, protocol="mars.official")
    got = retrieval_metrics(e, e, scores=scores, per_query=True)
    assert (got["n_gallery"], len(got["per_query"]["AP"]), scores.shape) == (24, 24, (72, 72))


def test_a_re_ranking_among_rows_that_take_no_part_is_said():
    "SYSU: all neighbours of infrared queries may be infrared images, which the protocol does not search"
    e = features(table_for("sysu.all", 3, 200))
    q, g = e, e.assign()
    among_all = rerank_k_reciprocal(q, g, k1=4, k2=2)
    for score in (lambda s: retrieval_metrics(q, g, scores=s, protocol="sysu.all"),
                  lambda s: rank(q, g, scores=s, protocol="sysu.all")):
        with pytest.warns(UserWarning, match="among all rows given.*rerank_k_reciprocal\\(q, g, protocol='sysu.all'"):
            score(among_all)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "these scores were made among all rows")
            score(rerank_k_reciprocal(q, g, k1=4, k2=2, protocol="sysu.all"))
            score(MatrixScores((q.unit().emb @ g.unit().emb.T).numpy()))


def test_scores_of_draws_are_shown_by_protocol_and_size():
    q, g, scores = small()
    assert re.fullmatch(r"DrawScores\(sysu.all: 10 draws, \d+ queries and \d+ images given, \d+ x \d+ in the first\)",
                        repr(scores))
