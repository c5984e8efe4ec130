"""The metrics against a naive reference, published hand examples and bad input."""
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from reid_lab.retrieval import metrics, ranks
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, msd, retrieval_metrics, rsum, why_skipped
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.scores import DISTANCES, EmbeddingScores, MatrixScores

BACKENDS = ["torch", "numba"]
KEYS = ("R1", "R5", "R10", "mAP", "mINP", "mSD")


def naive(sim, q_pid, g_pid, q_cam=None, g_cam=None, trapezoid=False):
    "Sort, walk down the list, apply the definitions; one dict per query, None without a match"
    rows = []
    for i in range(len(sim)):
        order = sorted(range(sim.shape[1]), key=lambda j: (-sim[i, j], j))
        kept = [j for j in order if g_pid[j] != -1
                and not (q_cam is not None and g_pid[j] == q_pid[i] and g_cam[j] == q_cam[i])]
        hit = [g_pid[j] == q_pid[i] for j in kept]
        if q_pid[i] == -1 or not any(hit):
            rows.append(None)
            continue
        s = [(float(sim[i, j]) + 1)/2 for j in kept]
        found = ap = asp = mass = good = 0.
        for r, (h, x) in enumerate(zip(hit, s), 1):
            mass += x
            if not h: continue
            found += 1
            good += x
            ap += (found/r + ((found - 1)/(r - 1) if r > 1 else 1))/2 if trapezoid else found/r
            asp += good/mass if mass else 0
            last = r
        rest = [x for h, x in zip(hit, s) if not h]
        pnr = 1.
        if rest and sum(rest): pnr = 1 - np.exp(-(good/found)/(sum(rest)/len(rest)))
        elif rest: pnr = 1. if good else 0.
        rows.append(dict(first=hit.index(True) + 1, AP=ap/found, INP=found/last, SD=pnr*asp/found, n_match=found))
    return rows


def summary(rows):
    "Percent over the queries that count"
    ok = [r for r in rows if r]
    mean = lambda f: 100*float(np.mean([f(r) for r in ok]))
    return {f"R{k}": mean(lambda r: r["first"] <= k) for k in (1, 5, 10)} | {
        "m" + k: mean(lambda r: r[k]) for k in ("AP", "INP", "SD")} | {"n_skipped": len(rows) - len(ok)}


@st.composite
def problems(draw):
    "Small problems, many of them full of ties, junk and people seen by one camera"
    Q, G = draw(st.integers(1, 7)), draw(st.integers(1, 30))
    ids, cams, levels = draw(st.integers(1, 5)), draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 4, 1000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    sim = (rng.integers(0, levels + 1, (Q, G))/levels*2 - 1).astype(dtype)
    low = -1 if draw(st.booleans()) else 0
    q_pid, g_pid = rng.integers(low, ids, Q), rng.integers(low, ids, G)
    with_cams = draw(st.booleans())
    cam = (rng.integers(0, cams, Q), rng.integers(0, cams, G)) if with_cams else (None, None)
    return sim, q_pid, g_pid, *cam


def rule_of(problem): return "none" if problem[3] is None else "cam"


@pytest.mark.parametrize("backend", BACKENDS)
@given(p=problems(), chunk=st.sampled_from([None, 1, 2, 5]), trapezoid=st.booleans())
@settings(max_examples=150, deadline=None)
def test_equals_the_naive_reference(backend, p, chunk, trapezoid):
    rows = naive(*p, trapezoid=trapezoid)
    scoring = Scoring(chunk=chunk, backend=backend, ap="trapezoid" if trapezoid else "step", junk=rule_of(p))
    if not any(rows):
        with pytest.raises(ValueError, match="none of the"): metrics_from_similarity(*p, scoring=scoring)
        return
    got, want = metrics_from_similarity(*p, per_query=True, scoring=scoring), summary(rows)
    for k in want: assert got[k] == pytest.approx(want[k], abs=1e-4), k
    one = got["per_query"]
    for i, r in enumerate(rows):
        if r is None: assert np.isnan(one["AP"][i]) and one["n_match"][i] == 0
        else:
            assert one["first"][i] == r["first"] and one["n_match"][i] == r["n_match"]
            for k in ("AP", "INP"): assert one[k][i] == pytest.approx(r[k], abs=1e-12)
    assert sum(got["skipped"].values()) == got["n_skipped"] == rows.count(None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_segments_of_the_compiled_loop(backend):
    "Galleries longer than a segment, with ties across segment borders, cut-outs in every place and exact ranks"
    rng = np.random.default_rng(0)
    for G in (1023, 1024, 1025, 3000):
        sim = (rng.integers(0, 9, (6, G))/8).astype("float32")
        p = sim, rng.integers(0, 40, 6), rng.integers(-1, 40, G), rng.integers(0, 3, 6), rng.integers(0, 3, G)
        got, want = metrics_from_similarity(*p, scoring=Scoring(backend=backend), per_query=True), naive(*p)
        for i, r in enumerate(want):
            for k in ("first", "AP", "INP"): assert got["per_query"][k][i] == pytest.approx(r[k], abs=1e-12)
            assert got["per_query"]["SD"][i] == pytest.approx(r["SD"], abs=1e-6)


def test_backends_and_chunks_agree_on_real_valued_scores():
    rng = np.random.default_rng(1)
    p = rng.normal(size=(40, 2500)).astype("float32").clip(-1, 1), rng.integers(0, 50, 40), rng.integers(-1, 50, 2500)
    base = metrics_from_similarity(*p, scoring=Scoring(backend="torch"))
    for scoring in (Scoring(backend="numba"), Scoring(backend="numba", chunk=7), Scoring(backend="torch", chunk=3)):
        other = metrics_from_similarity(*p, scoring=scoring)
        for k in KEYS: assert other[k] == pytest.approx(base[k], abs=1e-6)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        compiled = metrics_from_similarity(*p, scoring=Scoring(backend="numba"))
        assert compiled["mAP"] == pytest.approx(base["mAP"], abs=1e-9)
    finally: torch.set_num_threads(threads)


def test_reid_oracle(oracles):
    o = oracles["reid_cmc_map_minp"]
    i, want = o["inputs"], o["expected"]
    args = -np.array(i["dist"]), *(np.array(i[k]) for k in ("q_pid", "g_pid", "q_cam", "g_cam"))
    got = metrics_from_similarity(*args, scoring=Scoring(ks=(1, 2), cmc=5), per_query=True)
    for k in ("R1", "R2", "mAP", "mINP"): assert got[k] == pytest.approx(want[k], abs=1e-4)
    assert (got["n_query"], got["n_skipped"]) == (want["valid_queries"], 1)
    trapezoid = metrics_from_similarity(*args, scoring=Scoring(ap="trapezoid"))
    assert trapezoid["mAP"] == pytest.approx(want["mAP_trapezoid"], abs=1e-4)
    valid = [q for q in want["per_query"] if q]
    assert got["per_query"]["AP"][:2] == pytest.approx([q["AP"] for q in valid])
    assert got["per_query"]["INP"][:2] == pytest.approx([q["INP"] for q in valid])
    assert got["CMC"] == pytest.approx(100*np.mean([q["cmc"] for q in valid], 0))


def test_text_to_image_oracle(oracles):
    o = oracles["t2i_retrieval"]
    i, want = o["inputs"], o["expected"]
    got = metrics_from_similarity(np.array(i["sim"]), i["q_pid"], i["g_pid"], scoring=Scoring(ks=(1, 2, 3)),
                                  per_query=True)
    for k in ("R1", "R2", "R3", "mAP", "mINP"): assert got[k] == pytest.approx(want[k], abs=1e-4)
    assert got["per_query"]["AP"] == pytest.approx(want["AP"], abs=1e-5)
    assert got["per_query"]["INP"] == pytest.approx(want["INP"], abs=1e-5)


def test_rsum_oracle(oracles):
    o = oracles["rsum"]
    assert rsum(o["inputs"]) == pytest.approx(o["expected"]["RSum"])
    m = metrics_from_similarity(np.eye(3), [0, 1, 2], [0, 1, 2])
    assert m["RSum"] == rsum(m) == 300


def test_msd_oracle(oracles):
    o = oracles["msd"]
    i, want = o["inputs"], o["expected"]
    sim, q, g = (np.array(i[k]) for k in ("sim_cosine", "q_pid", "g_pid"))
    perm = np.array(i["gallery_permutation_for_invariance_check"])
    sd = metrics_from_similarity(sim, q, g, per_query=True)["per_query"]["SD"]
    assert sd == pytest.approx(want["SD"], abs=2e-6)
    assert msd(sim, q, g) == msd(sim[:, perm], q, g[perm]) == pytest.approx(want["mSD"], abs=1e-4)
    assert msd(sim, q, g, legacy=True) == pytest.approx(want["released_calculator_mSD"], abs=1e-4)
    other = want["released_calculator_mSD_after_gallery_permutation"]
    assert msd(sim[:, perm], q, g[perm], legacy=True) == pytest.approx(other, abs=1e-4)


def test_sd_hand_example(oracles):
    o = oracles["sd_hand_example"]
    i, want = o["inputs"], o["expected"]
    got = metrics_from_similarity(np.array([i["s_sorted"]]), [1], i["match"], scoring=Scoring(span=(0., 1.)))
    assert got["mSD"] == pytest.approx(100*want["SD"], abs=1e-4)
    assert got["mAP"] == pytest.approx(100*want["AP"], abs=1e-4)


def test_sd_properties():
    flat = metrics_from_similarity(np.full((4, 20), .3), np.arange(4), np.arange(20) % 4)
    assert flat["mSD"] == pytest.approx(flat["mAP"]*(1 - np.exp(-1)))
    one = lambda row, g_pid: metrics_from_similarity(np.array([row]), [0], g_pid)["mSD"]
    assert one([.3, .3, .3], [0, 0, 0]) == pytest.approx(100)   # nothing unmatched
    assert one([.5, -1.], [0, 1]) == pytest.approx(100)         # unmatched mass is zero
    assert one([-1., -1.], [0, 1]) == 0                         # no mass at all


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_gallery_order_does_not_matter_without_ties(seed):
    rng = np.random.default_rng(seed)
    sim = rng.permutation(300).reshape(6, 50)/300.  # all different
    q, g, perm = np.arange(6) % 4, rng.integers(-1, 4, 50), rng.permutation(50)
    if not np.isin(q, g).any(): return
    a, b = metrics_from_similarity(sim, q, g), metrics_from_similarity(sim[:, perm], q, g[perm])
    for k in KEYS: assert a[k] == pytest.approx(b[k], abs=1e-9)


def test_one_match_and_all_match():
    one = metrics_from_similarity(np.array([[.1, .9, .5]]), [7], [7, 1, 2])
    assert (one["R1"], one["R5"]) == (0, 100) and one["mAP"] == pytest.approx(100/3)
    assert one["mINP"] == pytest.approx(100/3)
    every = metrics_from_similarity(np.random.default_rng(0).normal(size=(3, 400)).clip(-1, 1), [1]*3, [1]*400,
                                    scoring=Scoring(backend="numba"))
    assert all(every[k] == pytest.approx(100) for k in KEYS)


def embeddings(n, rng, ids=9, cams=3, dtype="float32"):
    return Embeddings(rng.normal(size=(n, 8)).astype(dtype), np.arange(n) % ids, rng.integers(0, cams, n))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_embeddings_door(distance):
    rng = np.random.default_rng(3)
    q, g = embeddings(30, rng, dtype="float64"), embeddings(200, rng, dtype="float64")
    a, b = q.numpy(), g.numpy()
    if distance == "cosine": sim = (a/np.linalg.norm(a, axis=1)[:, None]) @ (b/np.linalg.norm(b, axis=1)[:, None]).T
    else: sim = -np.linalg.norm(a[:, None] - b[None], axis=2)
    want = summary(naive(sim, q.pid, g.pid, q.cam, g.cam))
    got = retrieval_metrics(q, g, distance=distance)
    for k in ("R1", "R5", "R10", "mAP", "mINP"): assert got[k] == pytest.approx(want[k], abs=1e-9)
    if distance == "cosine": assert got["mSD"] == pytest.approx(want["mSD"], abs=1e-6)
    else: assert np.isnan(got["mSD"])
    in_fours = retrieval_metrics(q, g, distance=distance, scoring=Scoring(chunk=4))
    assert in_fours["mAP"] == pytest.approx(got["mAP"], abs=1e-9)


def test_scale_of_vectors_and_integer_ties():
    "Cosine ignores length; exact arithmetic (small integers) makes real ties, which go by index"
    rng = np.random.default_rng(0)
    q, g = embeddings(20, rng), embeddings(100, rng)
    scaled = Embeddings(g.emb*torch.rand(100, 1).add(.5), g.pid, g.cam)
    assert retrieval_metrics(q, scaled)["mAP"] == pytest.approx(retrieval_metrics(q, g)["mAP"], abs=1e-3)
    a, b = rng.integers(-1, 2, (8, 4)).astype("float32"), rng.integers(-1, 2, (90, 4)).astype("float32")
    a, b = (np.where((x == 0).all(1, keepdims=True), 1, x)*[1, 1, 1, 1] for x in (a, b))
    sim = EmbeddingScores(torch.tensor(a), torch.tensor(b), "euclidean").block(0, 8).numpy().copy()
    want = summary(naive(sim, np.arange(8) % 3, np.arange(90) % 3))
    got = metrics_from_similarity(MatrixScores(sim), np.arange(8) % 3, np.arange(90) % 3)
    for k in ("R1", "mAP", "mINP"): assert got[k] == pytest.approx(want[k], abs=1e-9)


def test_own_npz(tmp_path):
    "Features of any codebase, one .npz a side"
    rng = np.random.default_rng(0)
    q, g = embeddings(20, rng), embeddings(150, rng)
    for name, e in (("q", q), ("g", g)): np.savez(tmp_path/f"{name}.npz", emb=e.numpy(), pid=e.pid, cam=e.cam)
    got = retrieval_metrics(Embeddings.load(tmp_path/"q.npz"), Embeddings.load(tmp_path/"g.npz"))
    sim = (q.unit().emb @ g.unit().emb.T).numpy()
    want = summary(naive(sim, q.pid, g.pid, q.cam, g.cam))
    for k in ("R1", "R5", "R10", "mAP", "mINP"): assert got[k] == pytest.approx(want[k], abs=1e-6)
    assert got["mSD"] == pytest.approx(want["mSD"], abs=1e-3)


def test_camera_rule_defaults():
    rng = np.random.default_rng(0)
    q, g = embeddings(30, rng), embeddings(120, rng)
    texts = Embeddings(q.emb, q.pid)
    assert retrieval_metrics(q, g) == retrieval_metrics(q, g, junk="cam")
    assert retrieval_metrics(texts, g) == retrieval_metrics(q, g, junk="none")
    assert retrieval_metrics(q, g)["mAP"] != retrieval_metrics(texts, g)["mAP"]
    assert [retrieval_metrics(*sides).junk for sides in ((q, g), (texts, g))] == ["cam", "none"]
    assert "the queries have no cameras" in retrieval_metrics(texts, g).notes()[0]
    with pytest.raises(ValueError, match="needs the column 'cam', which the queries lack"):
        retrieval_metrics(texts, g, junk="cam")
    one = [Embeddings(e.emb, e.pid, np.zeros(len(e), int)) for e in (q, g)]
    with pytest.warns(UserWarning, match="all images are of one camera"): found = retrieval_metrics(*one)
    assert found == retrieval_metrics(*one, junk="none") and "one camera" in found.notes()[0]


def test_the_name_of_the_last_release_is_taken():
    rng = np.random.default_rng(0)
    q, g = embeddings(30, rng), embeddings(120, rng)
    for old, new in (("drop", "cam"), ("keep", None), (None, "auto")):
        for call in (lambda **kw: retrieval_metrics(q, g, **kw),
                     lambda **kw: retrieval_metrics(q, g, scoring=Scoring(**kw)),
                     lambda **kw: rank(q, g, 5, **kw)[0].tolist()):
            with pytest.warns(DeprecationWarning, match="is written junk="): found = call(same_camera=old)
            assert found == call(junk=new)
    with pytest.warns(DeprecationWarning): assert Scoring(junk="cam").same_camera == "drop"
    with pytest.raises(TypeError, match="leave same_camera= out"): rank(q, g, same_camera="drop", junk="cam")
    with pytest.raises(ValueError, match="same_camera='dorp' is not known"): rank(q, g, same_camera="dorp")



def test_the_message_says_why_and_what_to_change():
    rng = np.random.default_rng(0)
    q, g = embeddings(9, rng, ids=3, cams=1), embeddings(30, rng, ids=3, cams=1)
    why = "none of the 9 queries has a match.*9 are seen only by their own camera.*junk='none'"
    with pytest.raises(ValueError, match=why): retrieval_metrics(q, g, junk="cam")
    with pytest.raises(ValueError, match="9 show a person that the gallery does not hold"):
        retrieval_metrics(Embeddings(q.emb, q.pid + 100, q.cam), g)
    with pytest.raises(ValueError, match="30 of 30 gallery images are junk"):
        retrieval_metrics(q, Embeddings(g.emb, g.pid*0 - 1))
    mixed = np.array([0, 1, 2, -1, 50])
    some = metrics_from_similarity(rng.uniform(size=(5, 30)), mixed, g.pid, per_query=True)
    assert some["n_skipped"] == 2 and some["skipped"] == dict(junk=1, absent=1, same_camera=0)
    assert why_skipped([0, 1], [0, 1, 1], [0, 0], [0, 0, 1]) == dict(junk=0, absent=0, same_camera=1)


@pytest.mark.parametrize("call, message", [
    (lambda s: metrics_from_similarity(s, [0, 1], [0, 1]), r"g_pid has shape \(2,\)"),
    (lambda s: metrics_from_similarity(s, [.5, 1], [0, 1, 2]), "must hold integers"),
    (lambda s: metrics_from_similarity(s*np.nan, [0, 1], [0, 1, 2]), "NaN or infinite"),
    (lambda s: metrics_from_similarity(s[0], [0], [0]), r"must be \(Q,G\)"),
    (lambda s: Scoring(ap="area"), "ap='area' is not known"),
    (lambda s: metrics_from_similarity(s, [0, 1], [0, 1, 2], scoring=Scoring(backend="cuda")),
     "backend='cuda' is not known"),
    (lambda s: metrics_from_similarity(s, [0, 1], [0, 1, 2], scoring=Scoring(chunk=-1)), "at least 1"),
    (lambda s: metrics_from_similarity(s[:, :0], [0, 1], []), "nothing to rank"),
    (lambda s: msd(s, [0, 1], [0, 1, 2], [0, 0], [0, 0, 0], legacy=True), "knows no cameras"),
])
def test_bad_input(call, message):
    with pytest.raises((ValueError, TypeError), match=message): call(np.zeros((2, 3)))


def test_no_matrix_is_held(monkeypatch):
    "The largest block that is ever made is the asked-for chunk"
    seen, real = [], EmbeddingScores.block
    monkeypatch.setattr(EmbeddingScores, "block", lambda self, lo, hi: seen.append(hi - lo) or real(self, lo, hi))
    rng = np.random.default_rng(0)
    retrieval_metrics(embeddings(50, rng), embeddings(60, rng), scoring=Scoring(chunk=8))
    assert max(seen) == 8 and sum(seen) == 50


def test_without_numba(monkeypatch):
    "A machine without numba gets the torch version, and the same numbers"
    rng = np.random.default_rng(0)
    q, g = embeddings(700, rng), embeddings(30_000, rng, ids=400)
    picked, real = [], ranks.counter
    monkeypatch.setattr(metrics, "counter", lambda *a: picked.append(real(*a)) or picked[-1])
    a = retrieval_metrics(q, g)
    monkeypatch.setattr(ranks.importlib.util, "find_spec", lambda name: None)
    b = retrieval_metrics(q, g)
    assert picked == [ranks.count_numba, ranks.count_torch]
    for k in KEYS: assert a[k] == pytest.approx(b[k], abs=1e-5)


def test_single_keywords_of_the_last_release():
    "Fields of `Scoring` as parameters of their own: the same result, and a warning at the line of the call"
    rng = np.random.default_rng(0)
    q, g = embeddings(20, rng), embeddings(60, rng)
    with pytest.warns(DeprecationWarning, match=r"ties= and ks= belong into scoring=Scoring\(ties=") as found:
        old = retrieval_metrics(q, g, ties="expected", ks=(1, 3))
    assert old == retrieval_metrics(q, g, scoring=Scoring(ties="expected", ks=(1, 3))) and "R3" in old
    assert found[0].filename == __file__


def test_integer_and_half_and_tensor_inputs():
    sim = torch.tensor([[2, 1, 0], [0, 1, 2]])
    assert metrics_from_similarity(sim, torch.tensor([0, 1]), torch.tensor([0, 2, 1]))["R1"] == 100
    assert metrics_from_similarity(sim.half()/2, [0, 1], [0, 2, 1])["R1"] == 100


def test_what_does_not_apply_is_refused():
    "A span belongs to a matrix; other scores have their own"
    q = Embeddings(np.eye(4, dtype="float32"), np.arange(4))
    with pytest.raises(ValueError, match="span of their own"): retrieval_metrics(q, q, scoring=Scoring(span=(0., 1.)))
    with pytest.raises(TypeError, match="perquery"): retrieval_metrics(q, q, perquery=True)


def reorder(p, o):
    "The same problem with the gallery in another order"
    sim, q_pid, g_pid, q_cam, g_cam = p
    return sim[:, o], q_pid, g_pid[o], q_cam, g_cam[o] if g_cam is not None else None


@given(p=problems(), backend=st.sampled_from(BACKENDS), trapezoid=st.booleans())
@settings(max_examples=25, deadline=None)
def test_expected_ties_are_the_mean_over_every_order(p, backend, trapezoid):
    "All orders of a small gallery, scored as listed, against the closed forms"
    p = reorder(p, np.arange(min(5, p[0].shape[1])))
    G = p[0].shape[1]
    fixed = Scoring(ties="order", cmc=G, backend=backend, ap="trapezoid" if trapezoid else "step")
    assume(any(naive(*p)))
    got = metrics_from_similarity(*p, scoring=replace(fixed, ties="expected"), per_query=True)
    every = [metrics_from_similarity(*reorder(p, list(o)), scoring=fixed, per_query=True)
             for o in permutations(range(G))]
    for k in (*KEYS, "RSum"): assert got[k] == pytest.approx(np.mean([m[k] for m in every]), abs=1e-4), k
    assert got["CMC"] == pytest.approx(np.mean([m["CMC"] for m in every], 0), abs=1e-6)
    for k in ("first", "AP", "INP", "SD"):
        mean = np.mean([m["per_query"][k] for m in every], 0)
        assert got["per_query"][k] == pytest.approx(mean, abs=1e-6, nan_ok=True)


@given(p=problems(), seed=st.integers(0, 2**32 - 1), backend=st.sampled_from(BACKENDS),
       chunk=st.sampled_from([None, 2]))
@settings(max_examples=60, deadline=None)
def test_expected_ties_do_not_depend_on_the_order_of_the_gallery(p, seed, backend, chunk):
    assume(any(naive(*p)))
    other = reorder(p, np.random.default_rng(seed).permutation(p[0].shape[1]))
    scoring = Scoring(ties="expected", cmc=7, backend=backend, chunk=chunk)
    a, b = (metrics_from_similarity(*case, scoring=scoring) for case in (p, other))
    assert a.pop("CMC") == pytest.approx(b.pop("CMC"), abs=1e-9)
    assert a == pytest.approx(b, abs=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_expected_ties_of_a_large_group(backend):
    "Constant features of 3,000 images: chance, against drawn orders; and no ties, no difference"
    rng = np.random.default_rng(0)
    g = np.arange(3000) % 300
    expected = Scoring(ties="expected", backend=backend)
    flat = metrics_from_similarity(np.zeros((2, 3000), "f4"), [0, 7], g, scoring=expected)
    assert flat["R1"] == pytest.approx(100/300) and flat["tied"] == 100
    in_order = Scoring(ties="order")
    drawn = [metrics_from_similarity(rng.random((50, 3000)), [7]*50, g, scoring=in_order) for _ in range(20)]
    for k in ("R5", "R10", "mAP", "mINP"):
        values = [m[k] for m in drawn]
        assert abs(flat[k] - np.mean(values)) < 4*np.std(values)/20**.5, k
    p = rng.permutation(5*900).reshape(5, 900)/4500., np.arange(5), np.arange(900) % 30
    a, b = (metrics_from_similarity(*p, scoring=Scoring(ties=t, backend=backend)) for t in (None, "expected"))
    assert b.pop("tied") == 0 and a == pytest.approx(b, abs=1e-5)


def warns(call):
    import warnings
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in seen]


def test_ties_are_said_with_their_share_and_others_are_not():
    rng = np.random.default_rng(0)
    q, g = np.arange(40) % 8, np.arange(400) % 8
    assert not warns(lambda: metrics_from_similarity(rng.random((40, 400)), q, g))
    coarse = rng.integers(0, 20, (40, 400))
    said = warns(lambda: metrics_from_similarity(coarse, q, g))
    assert len(said) == 1 and "about 100 %" in said[0]
    assert not warns(lambda: metrics_from_similarity(coarse, q, g, scoring=Scoring(ties="order")))
    assert not warns(lambda: metrics_from_similarity(coarse, q, g, scoring=Scoring(ties="expected")))
    half = rng.random((40, 400))
    half[::2] = 0
    said = warns(lambda: metrics_from_similarity(half, q, g))
    assert len(said) == 1 and 40 <= int(said[0].split()[1]) <= 60
    twins = rng.random((40, 50)).repeat(8, 1)   # equal images, but of one person
    assert not warns(lambda: metrics_from_similarity(twins, q, np.arange(50).repeat(8) % 8))
    assert set(metrics_from_similarity(half, q, g)) == set(metrics_from_similarity(rng.random((40, 400)), q, g))


@given(power=st.floats(-30, 30), seed=st.integers(0, 50), distance=st.sampled_from(DISTANCES),
       dtype=st.sampled_from(["float32", "float64"]))
@settings(max_examples=60, deadline=None)
def test_metrics_do_not_depend_on_the_scale_of_the_features(power, seed, distance, dtype):
    "From 1e-30 to 1e30; by a power of two to the bit, by any other number but for rounding"
    rng = np.random.default_rng(seed)
    q, g = embeddings(20, rng, dtype="float64"), embeddings(80, rng, dtype="float64")
    q, g = (e.with_emb(e.emb.to(getattr(torch, dtype))) for e in (q, g))
    want = retrieval_metrics(q, g, distance=distance)
    by = lambda s: retrieval_metrics(q.with_emb(q.emb*s), g.with_emb(g.emb*s), distance=distance)
    np.testing.assert_equal(by(2.**round(power/np.log10(2))), want)
    assert by(10.**power) == pytest.approx(want, abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dtype, scale", [("float32", 1e-42), ("float32", 1e-25), ("float32", 1e25), ("float32", 1e37),
                                          ("float64", 1e-300), ("float64", 1e300), ("float16", 1e-4), ("float16", 1e4)])
def test_extreme_scales(distance, dtype, scale):
    rng = np.random.default_rng(0)
    q, g = embeddings(30, rng, dtype="float64"), embeddings(200, rng, dtype="float64")
    kind = getattr(torch, dtype)
    want = retrieval_metrics(q, g, distance=distance)
    got = retrieval_metrics(*(e.with_emb((e.emb*scale).to(kind)) for e in (q, g)), distance=distance)
    coarse = scale == 1e-42 or dtype == "float16"   # few digits are left
    for k in ("R1", "R10", "mAP"): assert got[k] == pytest.approx(want[k], abs=.5 if coarse else .01)


def test_a_row_of_another_scale_ranks_by_its_direction():
    rng = np.random.default_rng(0)
    q, g = embeddings(30, rng), embeddings(200, rng)
    scale = torch.tensor([1e-25, 1., 1e25, 1e-40, 1e37]*40)[:, None]
    assert retrieval_metrics(q, g.with_emb(g.emb*scale))["mAP"] == pytest.approx(retrieval_metrics(q, g)["mAP"], abs=.5)


def test_wide_integers_are_not_rounded():
    sim = 2**40 + np.arange(30).reshape(2, 15)
    assert metrics_from_similarity(sim, [14, 0], np.arange(15))["mAP"] == pytest.approx(100*(1 + 1/15)/2)


def test_unlabelled_features_are_told_what_is_missing():
    rng = np.random.default_rng(0)
    q, g = embeddings(9, rng), embeddings(30, rng)
    bare = lambda e, pid: Embeddings(e.emb, np.full(len(e), pid), e.cam)
    for a, b in ((bare(q, -1), bare(g, -1)), (bare(q, -1), g)):
        with pytest.raises(ValueError, match="scoring needs ids, `rank` and `retrieve` do not"): retrieval_metrics(a, b)
    said = warns(lambda: retrieval_metrics(bare(q, 0), bare(g, 0)))
    assert any("every query and every image has pid 0" in w for w in said)


def test_euclidean_distance_of_unit_features_ranks_as_the_cosine():
    "Released programs rank by squared distances of unit features; of raw features the order is another one"
    rng = np.random.default_rng(0)
    def make(n, unit):
        x = torch.tensor(rng.normal(size=(n, 6)), dtype=torch.float32)*torch.linspace(.2, 5, n)[:, None]
        return Embeddings(torch.nn.functional.normalize(x) if unit else x, np.arange(n) % 7, np.arange(n) % 3)
    for unit in (True, False):
        q, g = make(20, unit), make(60, unit)
        one, two = (retrieval_metrics(q, g, distance=d) for d in ("cosine", "euclidean"))
        assert (abs(one["mAP"] - two["mAP"]) < 1e-4 and one["R1"] == two["R1"]) == unit
