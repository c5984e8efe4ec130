"Hidden bodies: what masks say, and stripes compared by it"
import numpy as np
import pytest
import torch

from reid_lab.models.zoo import create_model
from reid_lab.recipes.arms import arm_world
from reid_lab.recipes.occluded import OCCLUDED, known_visibility, score_stripes
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.visible_parts import stripe_features

PROTOCOLS = OCCLUDED.protocols


@pytest.fixture(scope="module")
def world(): return arm_world(OCCLUDED, "smoke")


@pytest.fixture(scope="module")
def network(): return create_model("bot_tiny", n_ids=2, size=(64, 32), weights="world").eval()


def test_visibility_is_that_of_the_masks(world):
    "One stripe is the whole body, whose hidden share the table has"
    queries = world.table().query("test")
    found = known_visibility(world, queries, 1)[:, 0].numpy()
    assert np.allclose(found, 1 - queries["occluded"], atol=1e-3) and found.max() < 1
    free = world.table().where(split="train", occluded=0.)[range(8)]
    assert (known_visibility(world, free, 4) == 1).all()


def test_stripes_that_all_count_are_one_long_feature(world, network):
    "The mean of cosines is the cosine of the stripes, each of length 1, one after another"
    long = []
    for side in (world.table().query("test"), world.table().gallery("test")):
        parts = torch.nn.functional.normalize(stripe_features(network, side, 4), dim=-1).flatten(1)
        long.append(Embeddings(parts, side["pid"], side["cam"], side["path"], columns=dict(occluded=side["occluded"])))
    found = score_stripes(network, world, PROTOCOLS)
    for protocol in PROTOCOLS:
        expected = retrieval_metrics(*long, protocol=protocol)
        assert found[protocol]["mAP"] == pytest.approx(expected["mAP"], abs=.05)
        assert found[protocol]["n_query"] == expected["n_query"] == 48


def test_each_visibility_gives_another_order(world, network):
    found = {how: score_stripes(network, world, PROTOCOLS, how)["occluded-duke"]["mAP"]
             for how in ("all", "learned", "known")}
    assert len(set(found.values())) == 3 and found["known"] > found["all"]


def test_free_queries_are_not_asked_where_the_rule_wants_covered_ones(world):
    "Everybody who asks is covered, and a gallery without covers is smaller"
    queries, gallery = world.table().query("test"), world.table().gallery("test")
    assert (queries["occluded"] > 0).all() and 0 < (gallery["occluded"] > 0).sum() < len(gallery)
