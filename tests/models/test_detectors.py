"Detectors with random weights: the boxes are those of a plain forward of torchvision"
import numpy as np
import pytest
import torch
from helpers.walkers import scene
from safetensors.torch import save_file
from torch import nn
from torchvision.models import detection
from torchvision.ops import FrozenBatchNorm2d

from reid_lab.models.detectors import open_detector

FRAME = scene(0)


def _random(name, n_classes, seed=0):
    "A detector whose random weights give boxes"
    torch.manual_seed(seed)
    net = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=n_classes)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d): part.running_mean.normal_(0, .05)
    if hasattr(net, "roi_heads"): net.roi_heads.box_predictor.cls_score.bias.data[1] += 6.
    if name.startswith("fcos"): net.head.classification_head.cls_logits.bias.data[1] += 2.
    return net.eval()


def _plain(net, label):
    "Boxes x1, y1, x2, y2 and scores of torchvision's own forward"
    with torch.inference_mode(): found = net([torch.from_numpy(FRAME).permute(2, 0, 1).float()/255])[0]
    person = found["labels"] == label
    return found["boxes"][person].double().numpy(), found["scores"][person].double().numpy()


def _same(detector, net, label):
    boxes, scores = detector(FRAME)
    expected, of_expected = _plain(net, label)
    assert len(scores) and np.array_equal(scores, of_expected)
    assert np.array_equal(boxes[:, :2], expected[:, :2]) and np.allclose(boxes[:, :2] + boxes[:, 2:], expected[:, 2:])


@pytest.mark.parametrize("name, n_classes", [("ssdlite320_mobilenet_v3_large", 91),
                                             ("fasterrcnn_mobilenet_v3_large_320_fpn", 2)])
def test_boxes_are_those_of_torchvision(tmp_path, name, n_classes):
    net = _random(name, n_classes)
    torch.save(net.state_dict(), tmp_path/"d.pth")
    _same(open_detector(tmp_path/"d.pth", name), net, 1)


@pytest.mark.whole
@pytest.mark.parametrize("name", ["fasterrcnn_resnet50_fpn", "fasterrcnn_resnet50_fpn_v2", "retinanet_resnet50_fpn",
                                  "retinanet_resnet50_fpn_v2", "fcos_resnet50_fpn"])
def test_large_detectors_are_recognised_and_give_the_boxes_of_torchvision(tmp_path, name):
    net = _random(name, 2)
    net.score_thresh = 0.           # of the dense ones: random weights give low scores
    net.transform.min_size = (128,)
    save_file(net.state_dict(), tmp_path/"d.safetensors")
    detector = open_detector(tmp_path/"d.safetensors")
    assert detector.name == name
    detector.net.score_thresh, detector.net.transform.min_size = 0., (128,)
    _same(detector, net, 1)


@pytest.mark.parametrize("name, n_classes, eps", [
    ("fasterrcnn_mobilenet_v3_large_320_fpn", 91, 1e-5),
    pytest.param("fasterrcnn_resnet50_fpn", 91, 0., marks=pytest.mark.whole),
    pytest.param("fasterrcnn_resnet50_fpn", 2, 1e-5, marks=pytest.mark.whole)])
def test_frozen_statistics_are_computed_as_torchvision_does(tmp_path, name, n_classes, eps):
    net = _random(name, n_classes)
    state = {k: v for k, v in net.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save(state, tmp_path/"d.pth")

    def freeze(module):
        for key, part in module.named_children():
            if isinstance(part, nn.BatchNorm2d): setattr(module, key, FrozenBatchNorm2d(part.num_features, eps))
            else: freeze(part)
    freeze(net)
    net.load_state_dict(state)
    detector = open_detector(tmp_path/"d.pth", name)
    detector.net.transform.min_size = net.transform.min_size = (128,)
    _same(detector, net, 1)


def test_classes_that_nothing_says_are_asked_for(tmp_path):
    net = _random("ssdlite320_mobilenet_v3_large", 5)
    torch.save(net.state_dict(), tmp_path/"d.pth")
    with pytest.raises(ValueError, match="know 4 classes.*--label 1"): open_detector(tmp_path/"d.pth")
    _same(open_detector(tmp_path/"d.pth", label=3), net, 3)


def test_two_detectors_of_the_same_tensors_are_named(tmp_path):
    torch.save(_random("fasterrcnn_mobilenet_v3_large_fpn", 2).state_dict(), tmp_path/"d.pth")
    with pytest.raises(ValueError,
            match="--detector fasterrcnn_mobilenet_v3_large_fpn"): open_detector(tmp_path/"d.pth")


def test_other_weights_are_refused(tmp_path):
    torch.save(nn.Linear(3, 3).state_dict(), tmp_path/"d.pth")
    with pytest.raises(ValueError, match="of no detector of torchvision"): open_detector(tmp_path/"d.pth")
