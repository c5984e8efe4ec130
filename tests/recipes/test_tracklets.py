"Tracklets: one vector of a walk"
import numpy as np
import pytest

from reid_lab.models.zoo import create_model
from reid_lab.recipes.arms import arm_world, score_features, searched
from reid_lab.recipes.tracklets import FIRST, TRACKLETS, first_frames, score_tracks
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.tracklets import POOLINGS


@pytest.fixture(scope="module")
def world(): return arm_world(TRACKLETS, "smoke")


@pytest.fixture(scope="module")
def network(): return create_model("bot_tiny", n_ids=2, size=(64, 32), weights="world").eval()


def test_the_mean_is_the_pooling_of_the_protocol(world, network):
    "The protocol pools by itself what has not been pooled"
    assert score_tracks(network, world, ("duke-video",)) == score_features(network, world, ("duke-video",))


def test_one_frame_is_the_search_among_first_images(world, network):
    "By hand: every fourth row, by other cameras"
    q, g = searched(network, world)
    assert np.array_equal(first_frames(q).path, q.path[::4]) and len(first_frames(g)) == len(g)//4
    expected = retrieval_metrics(q[np.arange(0, len(q), 4)], g[np.arange(0, len(g), 4)], protocol="market")
    found = score_tracks(network, world, ("duke-video",), FIRST)["duke-video"]
    assert (found["mAP"], found["R1"]) == (expected["mAP"], expected["R1"])


def test_every_pooling_has_an_arm():
    named = {arm.score.keywords["how"] for arm in TRACKLETS.arms.values() if arm.trained}
    assert named == {*POOLINGS, FIRST} - {"mean"} and TRACKLETS.arms["mean"].score is score_tracks
