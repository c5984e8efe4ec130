"Training without labels: the example of 120 lines is repeated number by number, rows and histories are complete"
import sys

import pytest
import torch

from reid_lab.experiments.repository import new_repository
from reid_lab.meta.cluster_contrast import Clustering
from reid_lab.models.zoo import MODELS
from reid_lab.recipes.study import label
from reid_lab.recipes.unsupervised import (
    SCORES,
    STUDIES,
    read_histories,
    run_unsupervised,
    train_unsupervised,
    unsupervised_settings,
    unsupervised_table,
)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    "The training of the example repository"
    from reid_lab.experiments.own import EXPERIMENTS
    folder = tmp_path_factory.mktemp("own")/"unsupervised-example"
    new_repository(folder, example="cluster_contrast")
    sys.path.insert(0, str(folder))
    known, notebooks = set(MODELS), set(EXPERIMENTS)
    from unsupervised_example.contrast import train
    yield train
    sys.path.remove(str(folder))
    for name in set(MODELS) - known: del MODELS[name]
    for name in set(EXPERIMENTS) - notebooks: del EXPERIMENTS[name]


@pytest.mark.parametrize("cameras", ["kept", "removed"])
def test_the_example_is_repeated_number_by_number(example, cameras, tmp_path):
    rows = unsupervised_table("smoke", 3).where(split="train")
    how = dict(epochs=2, size=(64, 32), batch_size=16, k1=8, cameras=cameras)
    theirs, memory = example(rows, 0, str(tmp_path/"theirs"), **how)
    ours, strategy = train_unsupervised(rows, "smoke", 0, clustering=Clustering(cameras, k1=8), quiet=True)
    assert ours.steps == theirs.steps and strategy.labels == memory.labels
    for a, b in zip(ours.model.image.parameters(), theirs.model.image.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_rows_and_histories_of_a_study(tmp_path):
    study = STUDIES["main"]
    how = dict(preset="smoke", seed=4, keep=tmp_path, train=dict(epochs=1))
    rows = {label(s): run_unsupervised(**s, **how) for s in study.settings}
    assert list(rows) == ["start", "clusters, cameras=kept", "clusters, cameras=removed", "people"]
    assert all({*SCORES, "images_seen", "train_s", "start"} == {*row} for row in rows.values())
    assert rows["start"]["images_seen"] == 0 < rows["people"]["images_seen"]
    kept = rows["clusters, cameras=kept"]
    assert kept["nmi_cameras"] == kept["feature_nmi_cameras"]
    history = read_histories(tmp_path, study, [4])
    assert history.groupby("variant").epoch.apply(list).to_dict() == {v: [0] for v in rows if v != "start"}
    again = run_unsupervised("people", "smoke", 4, tmp_path, train=dict(epochs=1))
    assert again["mAP"] == rows["people"]["mAP"]     # from its folder
    with pytest.raises(ValueError, match="another training"):
        run_unsupervised("people", "smoke", 4, tmp_path, train=dict(epochs=2))


def test_what_is_refused():
    with pytest.raises(ValueError, match="setting='lrate'"): unsupervised_settings("quick", lrate=1.)
    with pytest.raises(ValueError, match="epochs=-1"): unsupervised_settings("quick", epochs=-1)
    with pytest.raises(ValueError, match="name='clusterz'"): run_unsupervised("clusterz", "smoke")
