"""Scoring and retrieval of features and labels that do not fit, and of scores that decide nothing."""
import numpy as np
import torch
from fault import bad, interruption, killed, warned

from reid_lab.analysis.bias.audit import AuditSettings, bias_report
from reid_lab.analysis.bias.per_camera import camera_share, per_camera
from reid_lab.retrieval.cameras import CameraStats, camera_nmi
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, msd, retrieval_metrics
from reid_lab.retrieval.ranking import RetrievalResult, rank, retrieve
from reid_lab.retrieval.rerank import jaccard_distances, jaccard_pairs, rerank_itm, rerank_k_reciprocal
from reid_lab.retrieval.scores import MatrixScores
from reid_lab.tta.base import NoAdapt, adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3, Dart3Lite
from reid_lab.tta.gradient import Tent

RNG = np.random.default_rng(0)
Q = Embeddings(RNG.normal(size=(6, 4)).astype("f4"), [0, 0, 1, 1, 2, 2], [0, 1]*3)
G = Embeddings(RNG.normal(size=(12, 4)).astype("f4"), np.arange(12) % 3, [0, 1, 1, 0]*3)
WIDE = Embeddings(torch.ones(3, 9), [0, 1, 2], [0, 1, 0])


def _with(e, emb=None, pid=None, cam=True):
    "`e` with other vectors or labels"
    cam = e.cam if cam is True else cam
    return Embeddings(e.emb if emb is None else emb, e.pid if pid is None else np.full(len(e), pid),
                      None if cam is None else np.broadcast_to(cam, len(e)))


def _sim(dtype="f4", **fields):
    return metrics_from_similarity(np.zeros((2, 3), dtype), [0, 1], [0, 1, 2], scoring=Scoring(**fields))


def _complaint(call):
    "A warning, raised as the error that the table wants"
    with warned() as texts: call()
    raise ValueError("\n".join(texts))


def _said(name, does, call, *words):
    "A bad input that is worked on, with a warning"
    return bad(name, does, lambda tmp: _complaint(call), *words)


def _killed_while_scoring(tmp):
    "A process dies between two blocks; another one scores as if nothing had been"
    def score(): return retrieval_metrics(Q, G, scoring=Scoring(chunk=2))

    want = score()
    killed(score, "reid_lab.retrieval.scores.EmbeddingScores.block", nth=2)
    assert score() == want
    return "the same scores"


FAULTS = [
    bad("metrics: no query has a label", "all query pids are -1", lambda tmp: retrieval_metrics(_with(Q, pid=-1), G),
        "6 queries have pid -1", "scoring needs ids", "`rank` and `retrieve` do not"),
    bad("metrics: no image has a label", "all pids are -1",
        lambda tmp: retrieval_metrics(_with(Q, pid=-1), _with(G, pid=-1)),
        "scoring needs ids", "12 of 12 gallery images are junk"),
    bad("metrics: gallery without labels", "all gallery pids are -1",
        lambda tmp: retrieval_metrics(Q, _with(G, pid=-1)),
        "12 of 12 gallery images are junk"),
    bad("metrics: one camera", "all cam are 0, junk='cam'",
        lambda tmp: retrieval_metrics(_with(Q, cam=0), _with(G, cam=0), junk="cam"),
        "6 are seen only by their own camera", "junk='none'"),
    _said("metrics: one camera by default", "all cam are 0",
          lambda: retrieval_metrics(_with(Q, cam=0), _with(G, cam=0)),
          "all images are of one camera", "check the camera ids", "junk='none'"),
    bad("metrics: one camera and one pid", "all pid and cam are 0, junk='cam'",
        lambda tmp: retrieval_metrics(_with(Q, pid=0, cam=0), _with(G, pid=0, cam=0), junk="cam"),
        "seen only by their own camera"),
    bad("metrics: a rule without its column", "junk='clothes'",
        lambda tmp: retrieval_metrics(Q, G, junk="clothes"),
        "needs the column 'clothes'", "both sides have cam", "junk='none'"),
    bad("metrics: ids numbered apart", "query ids are not in the gallery",
        lambda tmp: retrieval_metrics(_with(Q, pid=9), G),
        "6 show a person that the gallery does not hold", "a number from one table"),
    bad("metrics: cameras on one side", "junk='cam' without cameras",
        lambda tmp: retrieval_metrics(_with(Q, cam=None), G, junk="cam"),
        "needs the column 'cam', which the queries lack",
        "junk='none'"),
    bad("metrics: arrays for Embeddings", "q is an array", lambda tmp: retrieval_metrics(Q.numpy(), G),
        "q is ndarray", "wrap features", error=TypeError),
    bad("metrics: other dimensions", "q has 9 dimensions", lambda tmp: retrieval_metrics(WIDE, G),
        "query vectors have 9",
        "gallery vectors 4"),
    bad("metrics: empty gallery", "g has no rows", lambda tmp: retrieval_metrics(Q, G[:0]), "nothing to rank"),
    bad("metrics: unknown ties", "ties='random'", lambda tmp: _sim(ties="random"), "ties='random'", "'expected'"),
    bad("metrics: unknown distance", "distance='l1'", lambda tmp: retrieval_metrics(Q, G, distance="l1"),
        "distance='l1'", "euclidean"),
    bad("metrics: rank 0", "ks=(0, 5)", lambda tmp: _sim(ks=(0, 5)), "ks=(0, 5)", "whole numbers from 1"),
    bad("metrics: ks is a number", "ks=5", lambda tmp: _sim(ks=5), "ks=5", "such as (1, 5, 10)"),
    bad("metrics: ks as text", "ks='1'", lambda tmp: _sim(ks="1"), "ks='1'", "whole numbers from 1"),
    bad("metrics: half a rank", "cmc=2.5", lambda tmp: _sim(cmc=2.5), "cmc=2.5", "the last rank of the curve"),
    bad("metrics: complex scores", "sim is complex", lambda tmp: _sim("c8"), "complex64", "real numbers",
        error=TypeError),
    bad("metrics: scores as text", "sim holds strings", lambda tmp: _sim("U3"), "sim has dtype <U3", error=TypeError),
    bad("metrics: long doubles", "sim is float128", lambda tmp: _sim("g"), "real numbers", "astype('f8')",
        error=TypeError),
    bad("metrics: infinite scores", "pairs hidden by -inf",
        lambda tmp: metrics_from_similarity(np.full((1, 2), -np.inf), [0], [0, 1]), "NaN or infinite", "use pid -1"),
    bad("metrics: ids beyond 64 bits", "q_pid is 2^63 as uint64",
        lambda tmp: metrics_from_similarity(np.eye(2), np.array([0, 2**63], np.uint64), [0, 1]),
        "q_pid[1] is 9223372036854775808", "pandas.factorize"),
    bad("metrics: span of embeddings", "span with EmbeddingScores",
        lambda tmp: retrieval_metrics(Q, G, scoring=Scoring(span=(0, 1))),
        "span of their own"),
    bad("metrics: scores of others", "a re-ranking of another gallery",
        lambda tmp: retrieval_metrics(Q, G, scores=MatrixScores(np.eye(3))), "scores have shape (3, 3)", "(6, 12)"),
    bad("mSD: legacy with cameras", "msd(legacy=True) with cameras",
        lambda tmp: msd(np.eye(2), [0, 1], [0, 1], [0, 0], [1, 1], legacy=True), "knows no cameras"),
    _said("metrics: constant features", "all features are equal",
          lambda: retrieval_metrics(_with(Q, emb=np.ones((6, 4))), _with(G, emb=np.ones((12, 4)))),
          "about 100 % of the matches have exactly the score", "scoring=Scoring(ties='expected')"),
    _said("metrics: scores in steps", "a matrix of zeros and ones",
          lambda: metrics_from_similarity(np.arange(60).reshape(4, 15) % 2, np.arange(4), np.arange(15) % 4),
          "order of the gallery ranks them", "scoring=Scoring(ties='order')"),
    _said("metrics: zero vectors", "two query vectors are zero",
          lambda: retrieval_metrics(_with(Q, emb=Q.emb*torch.tensor([0., 0, 1, 1, 1, 1])[:, None]), G),
          "2 of 6 query vectors are all zeros", "Find what made them"),
    _said("metrics: one label for all", "pid is 0 throughout",
          lambda: retrieval_metrics(_with(Q, pid=0), _with(G, pid=0)), "every query and every image has pid 0",
          "pid -1 is for images without a label"),
    bad("camera NMI: one identity", "pid is 0 throughout", lambda tmp: camera_nmi(_with(G, pid=0)),
        "1 identities are known", "n_clusters="),
    bad("camera NMI: no cameras", "cam is None", lambda tmp: camera_nmi(_with(G, cam=None)), "no camera numbers"),
    bad("camera share: no cameras", "cam is None", lambda tmp: camera_share(_with(G, cam=None)), "no camera numbers"),
    bad("scores per camera: no cameras", "cam is None", lambda tmp: per_camera(_with(Q, cam=None), G),
        "q has no camera numbers"),
    bad("rank: k is 0", "k=0", lambda tmp: rank(Q, G, 0), "k=0", "at least one"),
    bad("rank: half an image", "k=2.5", lambda tmp: rank(Q, G, 2.5), "k=2.5", "number of images"),
    bad("rank: a tensor", "g is a tensor", lambda tmp: rank(Q, G.emb), "g is Tensor", "wrap features", error=TypeError),
    bad("rank: empty gallery", "g has no rows", lambda tmp: retrieve(Q, G[:0]), "g has no rows"),
    bad("rank: scores of others", "a matrix of another gallery", lambda tmp: rank(Q, G, scores=MatrixScores(np.eye(2))),
        "scores have shape (2, 2)", "(6, 12)"),
    _said("rank: empty lists", "one person, one camera, junk='cam'",
          lambda: rank(_with(Q, pid=0, cam=0), _with(G, pid=0, cam=0), junk="cam"),
          "6 of 6 queries have an empty list",
          "junk='none'"),
    bad("ranked lists: position outside", "index holds 99",
        lambda tmp: RetrievalResult(np.full((6, 1), 99), np.zeros((6, 1)), Q, G), "positions 0 to 11"),
    bad("ranked lists: no failures at 0", "failures(0)", lambda tmp: retrieve(Q, G).failures(0), "k=0"),
    bad("re-ranking: no pairs", "k_test=0", lambda tmp: rerank_itm(Q, G, lambda i, j: i, k_test=0), "k_test=0"),
    bad("re-ranking: logits are NaN", "the head returns NaN",
        lambda tmp: rerank_itm(Q, G, lambda i, j: i*np.nan, k_test=2), "NaN or infinite logits"),
    bad("k-reciprocal: other dimensions", "q has 9 dimensions", lambda tmp: rerank_k_reciprocal(WIDE, G),
        "q has 9 dimensions and g has 4"),
    bad("k-reciprocal: no neighbours", "k1=0", lambda tmp: rerank_k_reciprocal(Q, G, k1=0), "k1=0", "k1 >= 1"),
    bad("distances within a set: no neighbours", "k1=0", lambda tmp: jaccard_distances(G, k1=0), "k1=0", "k1=1"),
    bad("distances within a set: a form", "form='spcl'", lambda tmp: jaccard_distances(G, form="spcl"), "form='spcl'",
        "'cluster_contrast'"),
    bad("distances within a set: a tensor", "e is a tensor", lambda tmp: jaccard_distances(G.emb), "e is Tensor",
        "wrap features", error=TypeError),
    bad("distances within a set: collapsed", "all features are equal",
        lambda tmp: jaccard_distances(_with(G, emb=np.ones((12, 4)))), "all 12 features are equal", "collapsed model?"),
    bad("near pairs: all of them", "within=1", lambda tmp: jaccard_pairs(G, 1), "within=1", "jaccard_distances"),
    bad("near pairs: a percentage", "within=60", lambda tmp: jaccard_pairs(G, 60), "within=60", "between 0 and 1"),
    bad("adaptation: a class", "CameraNorm without brackets", lambda tmp: adapt_embeddings(CameraNorm, Q, G),
        "the class CameraNorm", "CameraNorm()", error=TypeError),
    bad("adaptation: an array", "q is an array", lambda tmp: adapt_embeddings(NoAdapt(), Q.numpy(), G),
        "q is ndarray", "wrap features", error=TypeError),
    bad("adaptation: gallery without cameras", "g has no cam",
        lambda tmp: adapt_embeddings(CameraNorm(), Q, _with(G, cam=None)),
        "g has no camera numbers"),
    bad("adaptation: no queries", "q has no rows", lambda tmp: adapt_embeddings(CameraNorm(), Q[:0], G),
        "q has no rows"),
    bad("adaptation: no gallery", "g has no rows", lambda tmp: adapt_embeddings(CameraNorm(), Q, G[:0]),
        "g has no rows"),
    bad("adaptation: two models", "q and g differ in dimensions", lambda tmp: adapt_embeddings(NoAdapt(), WIDE, G),
        "q has 9 dimensions and g has 4"),
    bad("adaptation: a type too narrow", "g is float64 of scale 1e200, q float32",
        lambda tmp: adapt_embeddings(CameraNorm(), Q, _with(G, emb=G.emb.double()*1e200)), "float64 values that",
        "cannot hold"),
    bad("adaptation: TENT on features", "no model", lambda tmp: adapt_embeddings(Tent(), Q, G),
        "cannot work on features alone"),
    bad("adaptation: fewer than no queries", "first=-1", lambda tmp: CameraNorm(first=-1), "first=-1"),
    bad("adaptation: tau is 0", "tau=0", lambda tmp: Dart3(tau=0), "tau=0 must be positive"),
    bad("adaptation: half a camera", "cam is 0.5", lambda tmp: CameraStats(G.emb, np.full(12, .5)), "cam[0] is 0.5",
        error=TypeError),
    _said("adaptation: a rate for other features", "features of scale 1e-25",
          lambda: adapt_embeddings(Dart3Lite(), _with(Q, emb=Q.emb*1e-25), _with(G, emb=G.emb*1e-25)),
          "lr=0.0001 is a length in feature space", "look at its weights first"),
    bad("bias report: one camera", "all cam are 3", lambda tmp: bias_report(_with(Q, cam=3)),
        "all images come from camera 3"),
    bad("bias report: no cameras", "cam is None", lambda tmp: bias_report(_with(Q, cam=None)), "no camera numbers"),
    bad("bias report: an array", "g is an array", lambda tmp: bias_report(Q, G.numpy()), "g is ndarray",
        error=TypeError),
    bad("bias report: nothing to cluster", "nmi_images=0",
        lambda tmp: bias_report(Q, G, audit=AuditSettings(nmi_images=0)), "nmi_images=0"),
    bad("bias report: one cluster", "n_clusters=1",
        lambda tmp: bias_report(Q, G, audit=AuditSettings(n_clusters=1)), "n_clusters=1",
        "at least 2"),
    bad("bias report: other distance", "distance='l1'", lambda tmp: bias_report(Q, G, distance="l1"), "distance='l1'"),
    interruption("metrics: killed between blocks", "a process dies in its second block", "another scores the same",
                 _killed_while_scoring, "the same scores"),
]
