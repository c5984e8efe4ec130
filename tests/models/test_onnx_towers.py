"ONNX files against plain functions: layouts, kinds, batches, sizes, and what is refused."
import sys
import warnings

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from helpers.onnx_files import WEIGHT, write_tower
from helpers.towers import randomised

from reid_lab.models.frozen import frozen
from reid_lab.models.onnx_towers import OnnxTower, onnx_files, onnx_sum
from reid_lab.recipes.openings import openings

IMG = torch.rand(5, 3, 64, 32, generator=torch.Generator().manual_seed(0))
MEAN, STD = (torch.tensor(x).view(3, 1, 1) for x in ((.485, .456, .406), (.229, .224, .225)))


def plain(img): return F.conv2d(img, torch.tensor(WEIGHT), stride=2).mean((2, 3))


def same(got, want, eps=1e-5): return (got - want).abs().max() < eps*want.abs().max()


@pytest.mark.parametrize("shape", [("batch", 3, 64, 32), (1, 3, 64, 32), (2, 3, 64, 32), ("n", 64, 32, 3),
                                   ("n", 3, "h", "w"), (1, "h", "w", 3)])
def test_shapes_are_read_from_the_file(shape, tmp_path):
    tower = OnnxTower(write_tower(tmp_path/"t.onnx", shape), (64, 32))
    assert tower.size == (64, 32) and tower.n == (shape[0] if isinstance(shape[0], int) else None)
    assert same(tower(IMG), plain(IMG))


def test_a_number_of_images_that_is_fixed_inside_is_found(tmp_path):
    "The file says that it takes any number, and reshapes to one image"
    path = write_tower(tmp_path/"t.onnx")
    model = onnx.load(path)
    shape = onnx.numpy_helper.from_array(np.array([1, 8]), "one")
    model.graph.initializer.append(shape)
    model.graph.node[-1].op_type = "Reshape"
    model.graph.node[-1].input.append("one")
    onnx.save(model, path)
    tower = OnnxTower(path)
    assert tower.n == 1 and same(tower(IMG), plain(IMG))


@pytest.mark.parametrize("kind, pixels, want", [
    ("float", {}, lambda img: (img - MEAN)/STD), ("half", dict(pixels="imagenet"), lambda img: (img - MEAN)/STD),
    ("bytes", {}, lambda img: (255*img).round()), ("float", dict(pixels="bytes"), lambda img: 255*img),
    ("float", dict(pixels="none"), lambda img: img), ("float", dict(mean=.5, std=(.5, .25, 1)), lambda img: (
        img - .5)/torch.tensor([.5, .25, 1]).view(3, 1, 1))])
@pytest.mark.filterwarnings("ignore:onnx.*does not state")
def test_pixels_are_prepared_as_the_caller_says(kind, pixels, want, tmp_path):
    model = frozen(f"onnx:{write_tower(tmp_path/'t.onnx', kind=kind)}", **pixels)
    img = (255*IMG).round()/255
    assert same(model.raw_features(img), plain(want(img)), 1e-2 if kind == "half" else 1e-5)


def test_a_default_preparation_is_told(tmp_path):
    path = write_tower(tmp_path/"t.onnx")
    with pytest.warns(UserWarning, match=r"does not state how pixels are normalised.*ImageNet.*pixels=clip"):
        frozen(f"onnx:{path}")


def test_one_output_is_chosen(tmp_path):
    path = write_tower(tmp_path/"t.onnx", scores=True)
    with pytest.raises(ValueError, match=r"2 outputs that may be the feature \(feature, scores\); choose one"):
        frozen(f"onnx:{path}", pixels="none")
    model = frozen(f"onnx:{path}", pixels="none", output="scores")
    assert same(model.raw_features(IMG), plain(IMG).softmax(1))
    assert [(o.model, o.arguments) for o in openings(path)] == [(f"onnx:{path}", dict(output="feature")),
                                                               (f"onnx:{path}", dict(output="scores"))]


def test_the_checksum_is_that_of_the_file_and_of_its_outside_tensors(tmp_path):
    path = write_tower(tmp_path/"t.onnx")
    alone = onnx_sum(path)
    onnx.save(onnx.load(path), tmp_path/"u.onnx", save_as_external_data=True, location="u.data", size_threshold=0)
    assert onnx_files(tmp_path/"u.onnx") == [tmp_path/"u.onnx", tmp_path/"u.data"]
    before = onnx_sum(tmp_path/"u.onnx")
    assert same(OnnxTower(tmp_path/"u.onnx")(IMG), plain(IMG)) and before != alone
    data = bytearray((tmp_path/"u.data").read_bytes())
    data[100] ^= 8
    (tmp_path/"u.data").write_bytes(data)
    assert onnx_sum(tmp_path/"u.onnx") != before
    (tmp_path/"u.data").unlink()
    with pytest.raises(ValueError, match="cannot be read as an ONNX file.*with the .data file beside it"):
        OnnxTower(tmp_path/"u.onnx")


def test_a_file_of_another_program_is_no_tower(tmp_path):
    path = write_tower(tmp_path/"t.onnx", ("n", 3, 64, 32), flat=False)
    assert openings(path) == []


def test_a_missing_onnxruntime_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ImportError, match=r"pip install 'reid_lab\[onnx\]'"):
        OnnxTower(write_tower(tmp_path/"t.onnx"))


def test_features_do_not_depend_on_how_many_images_go_in(tmp_path):
    tower = OnnxTower(write_tower(tmp_path/"t.onnx", (4, 3, 64, 32)))
    assert torch.equal(tower(IMG)[:3], tower(IMG[:3]))


def test_a_network_exported_by_torch(tmp_path):
    "ResNet-18 of torchvision with random numbers, as its own exporter writes it"
    from torchvision import models
    net = randomised(models.resnet18())
    net.fc = torch.nn.Identity()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (IMG,), tmp_path/"r18.onnx", dynamo=False, input_names=["img"], output_names=["f"],
                          dynamic_axes=dict(img={0: "n"}, f={0: "n"}))
    model = frozen(f"onnx:{tmp_path/'r18.onnx'}", pixels="imagenet")
    with torch.no_grad(): want = F.normalize(net((IMG - MEAN)/STD), dim=1)
    assert (model.encode_image(IMG) - want).abs().max() < 1e-4 and model.size == (64, 32)
