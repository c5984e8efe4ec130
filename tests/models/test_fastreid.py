"Networks of FastReID against plain functions of the released names, in double precision."
import importlib.util

import pytest
import torch
import torch.nn.functional as F
from helpers.fastreid import Plain, released, with_old_names

from reid_lab.models.convert import inspect_weights
from reid_lab.models.fastreid import FASTREIDS, fastreid_names, fastreid_parts
from reid_lab.models.frozen import frozen
from reid_lab.models.weights.formats import identify, translate

SIZE = (96, 40) # maps of odd sides on the way
IMG = torch.rand(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))


def same(state, name, plain="gem", **kw):
    "Whether the tower embeds as the plain functions do"
    model = frozen(name, state, size=SIZE, **kw).double()
    with torch.no_grad(): ours, theirs = model.encode_image(IMG.double()), F.normalize(Plain(state, plain)(IMG), dim=1)
    assert not model.loaded.missing and not model.loaded.misfit and not model.loaded.unused
    assert (theirs[0] - theirs[1]).norm() > .01
    assert (ours - theirs).abs().max() < 1e-6 # pixels are divided by 255 in single precision
    return model


@pytest.mark.parametrize("name, inner, pool", [
    ("fastreid_bot_r50", 1, "mean"), ("fastreid_agw_r50_ibn", 1, "gem"), ("fastreid_sbs_r50_ibn", None, "gem"),
    ("fastreid_sbs_s50", 1, "gem"), pytest.param("fastreid_sbs_r101", 1, "gem", marks=pytest.mark.whole),
    pytest.param("fastreid_mgn_r50_ibn", 1, "gem", marks=pytest.mark.whole)])
def test_a_file_embeds_as_fastreid_does(name, inner, pool):
    form = FASTREIDS[name]
    state = released(form.family, form.backbone, inner, gem=form.family in ("sbs", "mgn"))
    assert name in fastreid_names(fastreid_parts(translate(state, identify(state)).state))
    same(state, name, pool)
    with pytest.raises(ValueError, match=f"take tower='{name}'"): frozen("fastreid_bot_r101_ibn", state)


@pytest.mark.parametrize("name, layout", [
    ("fastreid_sbs_r50", "fastreid_old"),
    pytest.param("fastreid_mgn_r50", "fastreid_mgn_old", marks=pytest.mark.whole)])
def test_names_of_the_first_release(name, layout):
    form = FASTREIDS[name]
    state = with_old_names(released(form.family, form.backbone))
    assert identify(state).name == layout
    model = same(state, name)
    assert {"pixel_mean", "pixel_std"} <= {key for key, _ in model.loaded.left}


def test_pixels_and_size_are_those_of_the_file_and_of_the_family():
    state = with_old_names(released("bot", "r50", gem=False))
    state["pixel_mean"] = torch.full((1, 3, 1, 1), 127.5)
    model = frozen("fastreid_bot_r50", state)
    assert model.size == (256, 128) and model.pixels.mean.flatten().tolist() == [.5]*3
    assert (model.pixels.std.flatten() - torch.tensor([.229, .224, .225])).abs().max() < 1e-6
    assert frozen("fastreid_sbs_r50", released("sbs", "r50")).size == (384, 128)


def test_a_reduction_is_read_from_the_file():
    model = same(released("sbs", "r50", reduced=64), "fastreid_sbs_r50")
    assert model.dim == 64


def test_pooling_that_a_file_does_not_state_can_be_given():
    state = released("bot", "r50", gem=False)
    same(state, "fastreid_r50", "max", pool="max")
    same(state, "fastreid_r50", "gem", pool="gem")
    with pytest.raises(ValueError, match="pool='sum'.*'mean'"): frozen("fastreid_r50", state, pool="sum")
    with pytest.raises(ValueError, match="holds the exponent"):
        frozen("fastreid_sbs_r50", released("sbs", "r50"), pool="mean")
    with pytest.raises(ValueError, match="give pool=max"): frozen("fastreid_mgn_r50", released("mgn", "r50", gem=False))


def test_two_networks_of_the_same_tensors_are_both_named(tmp_path):
    torch.save({"model": released("sbs", "r50")}, tmp_path/"w.pth")
    found = inspect_weights(tmp_path/"w.pth")
    assert found["towers"] == ["fastreid_sbs_r50", "fastreid_agw_r50"]
    assert found["arguments"] == dict(tower="fastreid_sbs_r50")


@pytest.mark.parametrize("key, words", [("backbone.layer1.0.se.fc.0.weight", "of a form that is not known"),
                                        ("heads.bnneck.running_mean", "of a form that is not known"),
                                        ("backbone.layer3.6.conv1.weight", "7 blocks in its third stage")])
def test_another_form_is_refused(key, words):
    state = released("bot", "r50", gem=False) | {key: torch.ones(2)}
    with pytest.raises(ValueError, match=words) as e: frozen("fastreid_bot_r50", state)
    assert "\n" not in str(e.value)


@pytest.mark.skipif(not importlib.util.find_spec("reid"), reason="needs Roboflow's reid 0.1.0rc1")
def test_resnest_is_that_of_another_package_once_its_last_stage_is_dilated():
    "`reid` dilates the last two blocks of the last stage, FastReID does not"
    from reid.architectures.fastreid_sbs import FastReIDSBSResNeSt50, remap_fastreid_sbs_state_dict
    state = released("bot", "s50")
    model = frozen("fastreid_sbs_s50", state, size=SIZE).double()
    other = FastReIDSBSResNeSt50().double().eval()
    other.load_state_dict(remap_fastreid_sbs_state_dict(state), strict=False)
    pixels = model.pixels(IMG.double())
    with torch.no_grad():
        theirs = other(pixels)
        assert (model.tower(pixels) - theirs).abs().max() > .01
        for ours, dilated in zip(model.tower.backbone.layer4, other.backbone.layer4):
            ours.conv2.conv.dilation, ours.conv2.conv.padding = dilated.conv2.conv.dilation, dilated.conv2.conv.padding
        assert (model.tower(pixels) - theirs).abs().max() < 1e-8
