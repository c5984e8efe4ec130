"Answers for any gallery, with and without a threshold"
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.open_set import bare, people, planted
from PIL import Image

from reid_lab.analysis.open_set import Threshold, verification_threshold
from reid_lab.analysis.search import ask, find
from reid_lab.core.statistics import ErrorRate
from reid_lab.models.bot import bot_tiny
from reid_lab.retrieval.embeddings import Embeddings


def test_lists_hide_nothing_and_need_no_labels():
    q, g = people(40, 0), people(90, 1)
    part = Embeddings(g.emb, np.where(np.arange(90) % 2, -1, g.pid), g.cam)
    want = torch.nn.functional.cosine_similarity(q.emb[:, None], g.emb[None], dim=2)
    for gallery in (g, part, Embeddings(g.emb, [-1]*90), bare(g)):
        a = find(q, gallery, 5)
        assert np.allclose(a.result.score, want.topk(5).values, atol=1e-5) and a.present is None
    assert find(q, g, 500).result.index.shape == (40, 90)
    far = find(q, g, 2, distance="euclidean").result
    assert np.allclose(-far.score, torch.cdist(q.emb, g.emb).topk(2, largest=False).values, atol=1e-4)


def test_answers_follow_the_threshold():
    q, g = planted()
    t = Threshold(.82, .1, .1, 10, 5, gallery=8, model="m")
    a = find(q, g, 3, t)
    assert a.present.tolist() == [True, True, False, False] and len(a) == 4
    assert a.table(1).accepted.tolist() == [True, False, False] and a.table(1).pid[0] == 101
    assert a.sentence(0).startswith("present: 1 of the first 3")
    assert a.sentence(0).endswith("0.820, as 10 % of searches for somebody absent do")
    without = "nobody clears the threshold 0.820, which was saved without the share of people that it misses"
    assert a.sentence(2).startswith(without) and "best score 0.700" in a.sentence(2)
    rates = replace(t, misses=ErrorRate(.966, .941, .985, 736, 12), alarms=ErrorRate(.1, .05, .2, 10, 5))
    b = find(q, g, 3, rates)
    assert "which misses 97 % [94, 98] of people who are there" in b.sentence(2)
    assert "as 10 % [5, 20] of searches" in b.sentence(0) and "not present" not in b.sentence(2)
    with pytest.raises(ValueError, match="calibrated with m"): find(q.with_emb(q.emb, model="n"), g, 3, t)
    with pytest.raises(ValueError, match="calibrated with 'cosine'"): find(q, g, 3, t, distance="euclidean")
    with pytest.raises(ValueError, match="one for pairs"): find(q, g, 3, verification_threshold(q, g, .5))
    with pytest.warns(UserWarning, match="calibrated on 3 images and 8"):
        find(q, g, 3, Threshold(.8, .1, .1, 10, 5, gallery=3))


def test_questions(tmp_path):
    torch.manual_seed(0)
    model = bot_tiny(n_ids=2, size=(64, 32))
    im = np.random.default_rng(0).integers(0, 256, (100, 40, 3)).astype(np.uint8)
    Image.fromarray(im).save(tmp_path/"a.png")
    model.train()
    one, both = ask(model, im), ask(model, [tmp_path/"a.png", im[::-1].copy()])
    assert model.training and one.emb.shape == (1, model.dim) and torch.allclose(one.emb, both.emb[:1], atol=1e-5)
    assert not torch.allclose(both.emb[0], both.emb[1]) and both.pid.tolist() == [-1, -1]
    for what, message in [([], "is empty"), (["a", im], "mixes"), ("a man", "reads no text"), (im[..., 0], "uint8"),
                          (str, "give text"), (im/255, "uint8")]:
        with pytest.raises((ValueError, TypeError), match=message): ask(model, what)
    with pytest.raises(FileNotFoundError, match="none.png"): ask(model, tmp_path/"none.png")


def test_an_answer_names_the_model_and_what_it_has_seen():
    q, g = planted()
    ours = dict(model_name="clip_tiny", data="my crops")
    a = find(q, Embeddings(g.emb, g.pid, meta=ours), 2)
    assert a.seen.kind == "worlds" and a.caveats()[0].startswith("model clip_tiny: trained on 6 rendered Worlds")
    assert len(a.caveats()) == 2 and "clip_tiny" in repr(a) and "doubt" in repr(a)
    on_world = find(q, Embeddings(g.emb, g.pid, meta=ours | dict(data="world quick reid seed 3")), 2)
    assert "photographs are harder" in on_world.caveats()[1]
    foreign = find(q, bare(g), 2)
    assert "what it has seen is not known here" in foreign.caveats()[0]


def test_nobody_is_junk_for_nobody():
    "Images without a label on both sides are people of their own: no rule takes one out of another's list"
    draw = np.random.default_rng(0)
    q = Embeddings(draw.normal(size=(3, 8)), [-1, -1, 5], [0, 1, 0])
    g = Embeddings(draw.normal(size=(6, 8)), [-1, -1, -1, 5, 5, 6], [0, 1, 0, 0, 1, 0])
    listed = find(q, g, k=6, junk="cam").result.index
    assert [sorted(row) for row in listed[:2].tolist()] == [[*range(6)]]*2
    assert sorted(listed[2].tolist()) == [-1, 0, 1, 2, 4, 5]     # of its own person and camera: row 3
