"""Whether queries that an adaptation draws together are told, and others are not."""
import numpy as np
import pandas as pd
import pytest
import torch

from reid_lab.recipes.dart3 import hub_notes
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.tta.base import adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3Lite
from reid_lab.tta.hubs import Hubs, hub_share


@pytest.fixture
def sides():
    "Queries of 40 people under camera 0, and a gallery of them under camera 1"
    rng = np.random.default_rng(0)
    people = rng.normal(size=(40, 16))
    return [Embeddings(torch.tensor(people + .6*rng.normal(size=people.shape), dtype=torch.float32), np.arange(40),
                       np.full(40, cam)) for cam in (0, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_a_naive_count(seed):
    rng = np.random.default_rng(seed)
    q, g = (rng.normal(size=(n, 5)) for n in rng.integers(1, 30, 2))
    nearest = [int(((one - g)**2).sum(1).argmin()) for one in q]
    naive = max(nearest.count(j) for j in nearest)/len(q)
    for rows in (1, 4, 1024): assert hub_share(torch.tensor(q), torch.tensor(g), rows) == pytest.approx(naive)


def test_nothing_to_count():
    g = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="0 queries and 3 gallery images"): hub_share(torch.zeros(0, 4), g)
    with pytest.raises(ValueError, match="rows=0"): hub_share(torch.zeros(1, 4), g, rows=0)
    with pytest.raises(ValueError, match="q has 5 dimensions and g has 4"): hub_share(torch.zeros(1, 5), g)
    with pytest.raises(ValueError, match="g has features that are no finite"): hub_share(torch.zeros(1, 4), g/0)
    with pytest.raises(ValueError, match="before=5"): Hubs(5, 36, 98)


@pytest.mark.parametrize("before, after, grew", [(.05, .1, True), (.05, .09, False), (.55, 1., True), (.55, .6, False),
                                                 (1., 1., False), (.5, .67, True), (.02, .04, False)])
def test_odds_of_a_hub(before, after, grew):
    assert Hubs(before, after, 100).grew is grew


def test_an_adaptation_that_collapses_is_told(sides):
    with pytest.warns(UserWarning, match=r"Dart3Lite: \d+ % of 40 queries have the same nearest gallery image"):
        adapted, g = adapt_embeddings(Dart3Lite(lr=.5, steps=40, batch_size=16, k=1), *sides)
    before = hub_share(sides[0].emb, sides[1].emb)
    assert Hubs(before, hub_share(adapted.emb, g.emb), 40).grew


@pytest.mark.filterwarnings("error")
def test_one_that_does_not_is_not(sides):
    before = hub_share(sides[0].emb, sides[1].emb)
    for method in (Dart3Lite(lr=1e-4, batch_size=16), CameraNorm()):
        q, g = adapt_embeddings(method, *sides)
        assert not Hubs(before, hub_share(q.emb, g.emb), 40).grew


def test_notes_of_a_run_name_the_worst_camera():
    shares = ((0, "No adaptation", .02), (1, "No adaptation", .04), (0, "DART3", .09), (1, "DART3", .3),
              (1, "TEMP", .04))
    frame = pd.DataFrame(shares, columns=["seed", "variant", "hub"]).assign(cam=8, n_query=100)
    (note,) = hub_notes(frame)
    assert note.startswith("DART3 draws the queries of 2 of 2 cameras") and "camera 8 of seed 1: 30 % of 100" in note
    assert hub_notes(frame[frame.variant != "No adaptation"]) == hub_notes(frame.drop(columns="hub")) == []
