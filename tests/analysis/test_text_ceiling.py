"Ceilings of a search by captions: what a caption states beside what an image has and shows"
import numpy as np
import pytest

from reid_lab.analysis.failures import caption_facts
from reid_lab.analysis.text_ceiling import Agreement, agreement, rivals_in_batch, rivals_of_batches, text_ceiling
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.world.world import World


@pytest.fixture(scope="module")
def world(): return World("smoke", 1000, task="text", granularity="coarse")


def test_agreement_is_that_of_a_loop(world):
    table = world.table()
    q, g, found = table.text_queries("test"), table.gallery("test"), agreement(world, table)
    for i in range(0, len(q), 7):
        facts = dict(caption_facts(world, table, [q.path[i]])[q.path[i]])[q.caption[i]]
        want = [sum(attrs[a] == value for a, value in facts.items()) for attrs in g["attrs"]]
        assert found.scores[i].tolist() == want and found.n_facts[i] == len(facts)


def test_what_an_image_does_not_show_does_not_count(world):
    table = world.table()
    every, seen = agreement(world, table), agreement(world, table, only_seen=True)
    assert (np.abs(seen.scores) <= every.n_facts[:, None]).all() and (seen.scores <= every.scores).all()
    assert (seen.scores < every.scores).any()


def by_hand(scores):
    return Agreement(np.array(scores, np.float32), np.array([0, 1]), np.array([0, 1, 1, 2]), np.array([3, 3]))


def test_ceiling_and_rivals_by_hand():
    "The first caption fits its image best; the second fits an image of another person as its own do on average"
    found = by_hand([[3, 1, 0, 2], [1, 3, 1, 2]])
    scores = text_ceiling(found)
    assert scores["R1"] == 100.
    aps = (1 + 2/3)/2, (1 + 2/4)/2      # the second right image is third or fourth, as the order of equal ones is
    assert any(scores["mAP"] == pytest.approx(100*(1 + ap)/2) for ap in aps)
    assert found.others.tolist() == [0., .5]            # own mean 2; of images 0 and 3 the second has 2
    assert rivals_in_batch(found, 5) == pytest.approx(4*.25)


def test_rivals_of_batches_by_hand():
    "Captions of people 0, 1 and 2 with images 0, 1 and 3; what another person's image fits, in the same batch only"
    found = Agreement(np.array([[3, 2, 0, 3], [1, 3, 1, 2], [0, 4, 9, 1]], np.float32), np.array([0, 1, 2]),
                      np.array([0, 1, 1, 2]), np.array([3, 3, 3]))
    image = np.array([0, 1, 3])
    def count(*batches, **how): return rivals_of_batches(found, image, [np.array(b) for b in batches], **how)
    assert count([0, 1, 2]) == pytest.approx(2/3)               # image 3 for caption 0, image 1 for caption 2
    assert count([0, 1, 2], within=1) == pytest.approx(5/3)     # and 1 for 0, 3 for 1, 0 for 2
    assert count([0, 2], [1, 0]) == .25 and count([1]) == 0
    with pytest.raises(ValueError, match="holds no batch"): count()
    with pytest.raises(ValueError, match="within=-1"): count([0, 1], within=-1)


def test_equal_images_are_in_a_random_order():
    equal = by_hand([[1, 1, 1, 1], [1, 1, 1, 1]])
    scores = [text_ceiling(equal, seed)["R1"] for seed in range(60)]
    assert 25 < np.mean(scores) < 50 and text_ceiling(equal, 3) == text_ceiling(equal, 3)    # chance: 25 and 50


def test_tables_without_captions_or_of_others_are_refused(world):
    with pytest.raises(ValueError, match="says nothing of attributes; give `world.table"):
        agreement(world, tiny_table(4, 2))
    with pytest.raises(ValueError, match="has no caption; give a World of task='text'"):
        agreement(world, world.table().assign(captions=[()]*len(world.table())))
    with pytest.raises(ValueError, match="is no caption of .*give its own table"):
        agreement(world, World("smoke", 1000, task="text").table())
