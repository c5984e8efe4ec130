"`crops` and `detect` of the command line"
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.video import write_video
from helpers.walkers import mot_lines, scene
from PIL import Image
from torchvision.models import detection

from reid_lab.data.box_files import BoxOptions
from reid_lab.data.crops import crops_table
from reid_lab.models.detectors import open_detector
from reid_lab.recipes.crops import embed_crops

sys.path.insert(0, str(Path(__file__).parents[1]/"faults"))
from fault import cli, killed  # noqa: E402


def test_written_crops_embed_to_the_features_of_the_boxes(tmp_path):
    walk = write_video(tmp_path/"walk.mp4", codec="h264")
    (tmp_path/"gt.txt").write_text(mot_lines())
    code, out, err = cli("crops", walk, "--boxes", tmp_path/"gt.txt", "--margin", .1, "--out", tmp_path/"crops")
    assert code == 0 and "48 crops" in out, err
    boxes = embed_crops(crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt", margin=.1)), "bot_tiny",
            tmp_path/"b", quiet=True)
    files = embed_crops(crops_table(tmp_path/"crops"/"manifest.csv"), "bot_tiny", tmp_path/"f", quiet=True)
    assert torch.equal(files.emb, boxes.emb)
    assert files.columns["tracklet"].tolist() == boxes.columns["tracklet"].tolist()
    assert files.columns["cut_from"].tolist() == boxes.path
    code, _, err = cli("crops", walk, "--boxes", tmp_path/"gt.txt", "--out", tmp_path/"crops")
    assert code == 2 and "exists" in err
    code, _, _ = cli("crops", walk, "--boxes", tmp_path/"gt.txt", "--out", tmp_path/"j", "--format", "jpg")
    assert code == 0 and len(list((tmp_path/"j"/"images").glob("*.jpg"))) == 48
    size = lambda folder: sum(f.stat().st_size for f in (folder/"images").iterdir())  # noqa: E731
    code, _, _ = cli("crops", walk, "--boxes", tmp_path/"gt.txt", "--out", tmp_path/"k", "--format", "jpg",
            "--quality", 20)
    assert code == 0 and size(tmp_path/"k") < size(tmp_path/"j")


def test_a_killed_writing_leaves_no_folder_and_goes_on(tmp_path):
    Image.fromarray(scene(0)).save(tmp_path/"a.png")
    pd.DataFrame(dict(path="a.png", x=[0, 9, 20], y=0, w=20, h=50)).to_csv(tmp_path/"m.csv", index=False)
    call = lambda: cli("crops", tmp_path/"m.csv", "--out", tmp_path/"crops")  # noqa: E731
    killed(call, "PIL.Image.Image.save", nth=2)
    assert not (tmp_path/"crops").exists()
    assert call()[0] == 0 and len(list((tmp_path/"crops"/"images").iterdir())) == 3


@pytest.fixture
def weights(tmp_path):
    torch.manual_seed(0)
    net = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    torch.save(net.state_dict(), tmp_path/"d.pth")
    return tmp_path/"d.pth"


def test_detected_boxes_of_a_folder_are_embedded(tmp_path, weights):
    for k in range(2):
        (tmp_path/"photos"/"day").mkdir(parents=True, exist_ok=True)
        Image.fromarray(scene(k)).save(tmp_path/"photos"/"day"/f"{k}.png")
    code, out, err = cli("detect", tmp_path/"photos", "--weights", weights, "--threshold", .5, "--out",
            tmp_path/"b.csv")
    assert code == 0 and "reid_lab embed" in out, err
    found = pd.read_csv(tmp_path/"b.csv")
    boxes, scores = open_detector(weights)(scene(1))
    kept = (scores >= .5) & (boxes[:, 2:] >= 1).all(1)
    assert kept.any() and np.allclose(found[found.path == "day/1.png"][["x", "y", "w", "h"]], boxes[kept], atol=1e-3)
    code, out, err = cli("embed", tmp_path/"photos", "--boxes", tmp_path/"b.csv", "--model", "bot_tiny", "--out",
            tmp_path/"f")
    assert code == 0 and f"{len(found)} images" in out, err


def test_detected_boxes_of_a_video_are_counted_from_0(tmp_path, weights):
    walk = write_video(tmp_path/"v.mkv", n=5, codec="ffv1")
    assert cli("detect", walk, "--weights", weights, "--every", 2, "--out", tmp_path/"b.csv")[0] == 0
    found = pd.read_csv(tmp_path/"b.csv")
    assert set(found.frame) == {0, 2, 4}
    code, out, err = cli("detect", walk, "--weights", weights, "--threshold", 1, "--out", tmp_path/"none.csv")
    assert code == 0 and "0 boxes in 5 frames" in out and "lower --threshold or name another --label" in out, err
    table = crops_table(walk, boxes=BoxOptions(tmp_path/"b.csv"))
    assert table["path"][0].startswith("v.mkv#frame=0&xywh=") and len(table) == len(found)
