"Feature files of other programs: read under their usual names, or refused with the lines that convert them"
import numpy as np
import pytest
import torch
from scipy.io import savemat

from reid_lab.cli.commands import main
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.shards import open_embeddings
from reid_lab.retrieval.sides import same_images

RNG = np.random.default_rng(0)
X, PID, CAM = RNG.normal(size=(12, 6)).astype("f4"), np.arange(12) % 4, np.arange(12) % 3


@pytest.mark.parametrize("names", [
    ("features", "pids", "camids"), ("feat", "labels", "cams"), ("emb", "ids", "cam_ids"),
    ("embeddings", "person_ids", "cameras")])
@pytest.mark.parametrize("suffix", [".npz", ".pt", ".mat"])
def test_usual_names_are_read(names, suffix, tmp_path):
    arrays, path = dict(zip(names, (X, PID, CAM))), tmp_path/f"f{suffix}"
    if suffix == ".npz": np.savez(path, **arrays)
    elif suffix == ".pt": torch.save({k: torch.as_tensor(v) for k, v in arrays.items()}, path)
    else: savemat(path, arrays)
    e = open_embeddings(path)
    assert np.array_equal(e.numpy(), X) and e.pid.tolist() == PID.tolist() and e.cam.tolist() == CAM.tolist()
    assert len(same_images(open_embeddings(path, side="query"), open_embeddings(path, side="gallery"))) == 12


@pytest.mark.parametrize("suffix", [".npz", ".mat"])
def test_one_file_with_both_sides(suffix, tmp_path, capsys):
    both = dict(query_f=X[:4], query_label=PID[:4], query_cam=CAM[:4], gallery_f=X, gallery_label=PID, gallery_cam=CAM)
    path = tmp_path/f"result{suffix}"
    savemat(path, both) if suffix == ".mat" else np.savez(path, **both)
    q, g = (open_embeddings(path, side=s) for s in ("query", "gallery"))
    assert len(q) == 4 and len(g) == 12 and not len(same_images(q, g))
    with pytest.raises(ValueError, match="queries and a gallery"): open_embeddings(path)
    assert main(["metrics", str(path), str(path)]) == 0
    assert f"{retrieval_metrics(q, g)['mAP']:.2f}" in capsys.readouterr().out


def test_an_array_without_identities_can_be_matched(tmp_path, capsys):
    np.save(tmp_path/"a.npy", X[:3])
    np.savez(tmp_path/"b.npz", emb=X, pid=PID)
    assert main(["match", str(tmp_path/"a.npy"), str(tmp_path/"b.npz")]) == 0
    assert "3 images of" in capsys.readouterr().out


def test_keys_name_what_has_no_usual_name(tmp_path):
    torch.save(dict(x=torch.tensor(X), who=torch.tensor(PID)), tmp_path/"f.pt")
    assert open_embeddings(tmp_path/"f.pt", dict(emb="x", pid="who")).pid.tolist() == PID.tolist()
