"Questions moved by marks, and marks replayed from the truth"
import numpy as np
import pytest
import torch

import reid_lab as rl
from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.refine import Rocchio, marked_rows, moved, refined_answer
from reid_lab.analysis.replay import Replay, mean_question, replay
from reid_lab.analysis.search import find
from reid_lab.data.marks import Mark, counted
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics

TIME = "2026-01-01T00:00:00+00:00"


def gallery(n=40, people=10, dim=12, noise=1., seed=0):
    rng = np.random.default_rng(seed)
    who, pid = rng.normal(size=(people, dim)), np.arange(n) % people
    emb = np.float32(who[pid] + noise*rng.normal(size=(n, dim)))
    q = Embeddings(np.float32(who + 1.5*rng.normal(size=who.shape)), np.arange(people),
                   caption=[f"person {i}" for i in range(people)])
    return q, Embeddings(emb, pid, path=[f"{i}.jpg" for i in range(n)])


def test_a_question_is_moved_as_the_formula_says():
    q, g = gallery()
    weights = Rocchio(.7, 1.3, .4)
    marks = [Mark("same", b="3.jpg", question="person 3", time=TIME), Mark("same", b="13.jpg", question="person 3"),
             Mark("different", b="5.jpg", question="person 3"), Mark("same", b="0.jpg", question="person 0")]
    unit = lambda x: x/np.linalg.norm(x, axis=-1, keepdims=True)
    x, e = unit(q.emb.numpy().astype(float)), unit(g.emb.numpy().astype(float))
    want = unit(.7*x[3] + 1.3*(e[3] + e[13])/2 - .4*e[5])
    after = rl.refine(q, g, marks, weights)
    assert after.emb[3].numpy() == pytest.approx(want, abs=1e-6)
    assert after.emb[0].numpy() == pytest.approx(unit(.7*x[0] + 1.3*e[0]), abs=1e-6)
    assert torch.equal(after.emb[1], q.emb[1]) and after.columns["refined"].tolist() == [1, 0, 0, 3] + [0]*6


def test_a_refined_answer_has_new_scores_and_no_threshold():
    q, g = gallery()
    first = find(q, g, 5, Threshold(.1, .1, .1, 40, 10))
    marks = [Mark("different", b=str(g.path[first.result.index[2, 0]]), question="person 2")]
    after = refined_answer(first, marks)
    assert first.present is not None and after.threshold is None and after.present is None
    assert not np.allclose(after.result.score[2], first.result.score[2])
    assert after.result.score[1] == pytest.approx(first.result.score[1]), "what was not marked stays"
    with pytest.raises(ValueError, match="calibrate"):
        find(after.result.q, g, 5, Threshold(.1, .1, .1, 40, 10, question_kind="text"))


def test_marks_on_two_images_count_for_either_and_a_later_one_replaces():
    q, g = gallery()
    crops = Embeddings(g.emb[:2], [-1]*2, path=["./0.jpg", "1.jpg"])
    marks = counted([Mark("same", a="7.jpg", b="0.jpg", time=TIME), Mark("different", a="0.jpg", b="7.jpg"),
                     Mark("merge", a="1.jpg", b="9.jpg"), Mark("split", a="1.jpg", b="8.jpg")])
    found = marked_rows(crops, g, marks)
    assert [(rows.right, rows.wrong) for rows in found] == [([], [7]), ([9], [8])]


def test_a_replay_counts_marked_images_in_both_ways():
    q, g = gallery()
    table = replay(q, g, Replay(rounds=2, marks=3))
    start = table[table["round"] == 0]
    whole = retrieval_metrics(q, g, junk="none", per_query=True)["per_query"]["AP"]
    assert start.AP.to_numpy() == pytest.approx(whole, abs=1e-6)
    for row in table[table["round"] == 1].itertuples():     # the first three of the list were marked
        scores = (torch.nn.functional.normalize(g.emb, dim=1) @ torch.nn.functional.normalize(q.emb[row.query], dim=0))
        first = scores.argsort(descending=True)[:3].numpy()
        rest = np.delete(np.arange(len(g)), first)
        right = g.pid == row.pid
        assert row.marked_right == right[first].sum()
        after = moved(q.emb[row.query], *(g.emb[first[right[first] == is_right]] for is_right in (True, False)))
        assert row.AP_rest_asked == pytest.approx(_ap(scores.numpy()[rest], right[rest]), nan_ok=True)
        unit = torch.nn.functional.normalize(g.emb, dim=1).numpy()
        assert row.AP_rest == pytest.approx(_ap((unit @ after.numpy())[rest], right[rest]), nan_ok=True)


def _ap(scores, right):
    hits = right[np.argsort(-scores)]
    return np.mean([hits[:k].mean() for k in np.flatnonzero(hits) + 1]) if hits.any() else np.nan


def test_several_sentences_are_their_mean_direction():
    q, g = gallery()
    both = mean_question([q, q.with_emb(3*q.emb)])
    assert both.emb.numpy() == pytest.approx(torch.nn.functional.normalize(q.emb, dim=1).numpy(), abs=1e-6)
