"Cluster contrast: loss and memory against plain loops, labels, and a training that goes on in the middle of an epoch"
import math

import numpy as np
import pytest
import torch

from reid_lab.data.loaders import Batches
from reid_lab.meta.cluster_contrast import (
    ClusterContrast,
    Clustering,
    Contrast,
    cluster_centres,
    cluster_loss,
    move_centres,
    pseudo_labels,
    without_camera_means,
)
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.training.checkpoints import load_state, save_state
from reid_lab.training.learner import Callback, Learner
from reid_lab.world.world import World

SIZE = (64, 32)


def unit(*shape, seed=0):
    return torch.nn.functional.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=1)


@pytest.mark.parametrize("tau", [.05, 1.])
def test_loss_is_the_formula_and_its_gradient_leaves_the_memory_alone(tau):
    emb, centres, label = unit(5, 3).mul(7).requires_grad_(), unit(4, 3, seed=1).requires_grad_(), [0, 3, 1, 3, 2]
    loss = cluster_loss(emb, centres.detach(), torch.tensor(label), tau)
    total = 0.
    for i, k in enumerate(label):
        scores = [(emb[i]@centres[j]).item()/7/tau for j in range(4)]
        total += math.log(sum(map(math.exp, scores))) - scores[k]
    assert loss.item() == pytest.approx(total/5, abs=1e-4)
    move_centres(held := centres.detach().clone(), emb, torch.tensor(label))
    assert not torch.equal(held, centres)
    loss.backward()     # of the centres as they were
    assert emb.grad.abs().sum() > 0 and centres.grad is None


def test_centres_move_one_feature_after_the_other():
    centres, emb = unit(3, 4, seed=2), unit(4, 4, seed=3)
    label = torch.tensor([1, 0, 1, 1])
    moved, first_last = centres.clone(), centres.clone()
    move_centres(moved, emb, label, .3)
    expected = centres.clone()
    for q, k in zip(emb, label.tolist()):
        x = .3*expected[k] + .7*q
        expected[k] = x/x.norm()
    torch.testing.assert_close(moved, expected)
    assert torch.equal(moved[2], centres[2])            # no feature of it in the batch
    move_centres(first_last, emb.flip(0), label.flip(0), .3)
    assert not torch.allclose(first_last[1], moved[1])  # the order counts, as in the program


def test_the_hard_form_takes_the_least_alike():
    centres = torch.eye(2)
    emb = torch.tensor([[1., 0.], [.6, .8], [0., 1.]])
    move_centres(centres, emb, torch.tensor([0, 0, 1]), .5, "hard")
    torch.testing.assert_close(centres[0], torch.tensor([.8, .4])/.8**.5)
    torch.testing.assert_close(centres[1], torch.tensor([0., 1.]))


def test_unknown_cameras_lose_the_mean_of_all():
    emb = torch.tensor([[1., 0.], [3., 0.], [5., 6.]])
    found = without_camera_means(Embeddings(emb, [0, 1, 2], [4, 4, -1]))
    torch.testing.assert_close(found.emb, torch.tensor([[-1., 0.], [1., 0.], [2., 4.]]))
    with pytest.raises(ValueError, match="cameras='kept'"): without_camera_means(Embeddings(emb, [0, 1, 2]))


def test_centres_are_means_and_outliers_count_nowhere():
    emb = torch.tensor([[2., 0.], [2., 2.], [0., 5.], [9., -9.]])
    centres = cluster_centres(emb, np.array([0, 0, 1, -1]))
    torch.testing.assert_close(centres, torch.tensor([[2., 1.], [0., 1.]])/torch.tensor([[5.], [1.]]).sqrt())


WRONG = [(dict(eps=2.), "eps=2"), (dict(k1=0), "k1=0"), (dict(cameras="all"), "cameras='all'")]


@pytest.mark.parametrize("how, says", WRONG)
def test_wrong_settings_are_refused(how, says):
    with pytest.raises(ValueError, match=says): Clustering(**how)


@pytest.fixture(scope="module")
def table(): return World("smoke", seed=3, task="reid").table().where(split="train")


def learner(table, **how):
    torch.manual_seed(0)
    net = create_model("bot_tiny", n_ids=1, size=SIZE, weights="world")
    return Learner(net, Batches(table, 16, SIZE, sampler="pk"), ClusterContrast(table, Clustering(k1=8), **how),
                   device="cpu", lr=3e-4)


class SaveInSecondEpoch(Callback):
    "What `Checkpoint` does, after three batches of the second epoch"
    def __init__(self, path): self.path = path

    def after_all(self, learn):
        if (learn.epoch, learn.number) == (1, 3): save_state(learn, self.path)


def test_a_training_that_goes_on_in_the_middle_of_an_epoch_ends_as_one_without_a_stop(table, tmp_path):
    whole = learner(table)
    whole.cbs.append(SaveInSecondEpoch(tmp_path/"state"))
    whole.fit(epochs=2)
    again = learner(table)
    again.cbs.append(Callback())
    load_state(again, tmp_path/"state").fit(epochs=2)
    assert again.strategy.history == whole.strategy.history and len(again.strategy.history) == 2
    assert torch.equal(again.strategy.centres, whole.strategy.centres)
    for a, b in zip(again.net.parameters(), whole.net.parameters()): assert torch.equal(a, b)


def test_only_clusters_are_trained_on_and_the_classifier_is_not(table):
    learn = learner(table)
    before = learn.net.classify.weight.detach().clone()
    learn.fit(epochs=1)
    labels = np.array(learn.strategy.labels)
    assert (labels < 0).any() and len(learn.loader.table) == (labels >= 0).sum()
    assert learn.loader.n_ids == labels.max() + 1 == len(learn.strategy.centres)
    assert torch.equal(learn.net.classify.weight.detach(), before)
    assert {*learn.logs} >= {"contrast_loss"} and "id_loss" not in learn.logs


def test_people_are_an_upper_line(table):
    learn = learner(table, labels="people").fit(epochs=1)
    assert [row["outliers"] for row in learn.strategy.history] == [0.]
    assert learn.loader.n_ids == table.frame.pid.nunique()
    with pytest.raises(ValueError, match="Did you mean 'people'"): ClusterContrast(table, labels="peopel")


def test_the_memory_settings_reach_the_step(table):
    usual, slow = learner(table), learner(table, contrast=Contrast(momentum=1.))
    for learn in (usual, slow):
        learn.strategy.relabel(learn.net)
        loader = learn.strategy.batches(learn)
        before = learn.strategy.centres.clone()
        learn.strategy.forward(learn, next(iter(loader.epoch(0))))
        assert torch.allclose(before, learn.strategy.centres, atol=1e-6) == (learn is slow)


def test_a_radius_that_finds_nothing_is_named(table):
    e = Embeddings(unit(30, 8), np.arange(30), np.zeros(30, int))
    with pytest.raises(ValueError, match="raise eps"): pseudo_labels(e, Clustering(k1=3, min_samples=31))
