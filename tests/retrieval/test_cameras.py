"Statistics of cameras, and clusters of features at any scale"
import numpy as np
import torch

from reid_lab.retrieval.cameras import CameraStats, camera_rows, cluster, nmi


def test_clusters_at_any_scale():
    x = np.concatenate([np.random.default_rng(0).normal(size=(20, 3)) + 9*i for i in range(3)])
    want = cluster(x, 3)
    for s in (1e-30, 1e30, 1e200): assert (cluster(x*s, 3) == want).all()
    assert (cluster(x*1e25, 3, "dbscan", eps=None) == cluster(x, 3, "dbscan", eps=None)).all()


def test_statistics_are_those_of_each_camera():
    rng = np.random.default_rng(0)
    cam = np.array([7, 2, 7, 2, 2, 7, 7, 9])
    emb = torch.from_numpy(rng.normal(size=(8, 3)))
    stats = CameraStats(emb, cam)
    for row, c in enumerate((2, 7)):
        own = emb[torch.from_numpy(cam == c)]
        torch.testing.assert_close(stats.mean[row], own.mean(0))
        torch.testing.assert_close(stats.std[row], own.std(0, correction=0))
    assert stats.std[2].tolist() == [1, 1, 1]       # a single image
    torch.testing.assert_close(CameraStats(emb, cam, single="global").std[2], emb.std(0, correction=0))
    assert stats.rows([9, 2, 5]).tolist() == camera_rows(np.array([2, 7, 9]), [9, 2, 5]).tolist() == [2, 0, 3]
    unknown = stats.normalise(emb[:1], [5])         # by the statistics of all images
    torch.testing.assert_close(unknown, (emb[:1] - emb.mean(0))/emb.std(0, correction=0))


def test_mutual_information_of_labels():
    assert nmi([0, 0, 1, 1], ["b", "b", "a", "a"]) == 1 and abs(nmi([0, 0, 1, 1], [0, 1, 0, 1])) < 1e-9
