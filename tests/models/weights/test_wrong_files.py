"""Wrong files for every tower: one line that says what the file is and what was expected there."""
import inspect
import json
import re
from functools import cache

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file
from torch import nn

from reid_lab.models.weights.formats import read_weights
from reid_lab.models.zoo import MODELS, NEEDS, create_model

W, SIZE = torch.ones(2), (64, 32)
RDE = {"base_model.visual.class_embedding": W, "visul_emb_layer.fc.weight": W}  # no model here takes it
TAKES = [(n, a) for n, m in MODELS.items() for a in inspect.signature(m.make).parameters if a.endswith("weights")]
MORE = dict(camel_base=[dict(tower="resnet10t")],  # a small tower; every kind of tower of a control
            frozen=[dict(tower="resnet10t"), dict(tower="test_vit"), dict(tower="fastreid_r50")])
TOWERS = [(n, a, kw) for n, a in TAKES for kw in MORE.get(n, [{}])]
EVERY = pytest.mark.parametrize("model, argument, more", TOWERS,
                                ids=lambda x: "-".join(x.values()) if isinstance(x, dict) else str(x))


class Net(nn.Linear):
    "A class that only this file knows"


def _saved(folder, content, name="w.pth"):
    torch.save(content, folder/name)
    return folder/name


def _written(folder, content, name="w.pth"):
    (folder/name).write_bytes(content)
    return folder/name


def _cut(path):
    data = path.read_bytes()
    path.write_bytes(data[:len(data)//2])
    return path


def _safetensors(folder, state):
    save_file(state, folder/"w.safetensors")
    return folder/"w.safetensors"


WRONG = dict(  # what is given -> (makes it, what the message says it is)
    another_program=(lambda t: _saved(t, {"model": RDE}), "holds a released RDE"),
    another_program_safe=(lambda t: _safetensors(t, {f"module.{k}": v.clone() for k, v in RDE.items()}),
                          "holds a released RDE"),
    no_known_program=(lambda t: _saved(t, {"state_dict": {"enc.0.w": W, "enc.1.w": W}}),
                      r"0 of \d+ tensors match|holds no table"),
    wrapped_twice=(lambda t: _saved(t, {"ema": {"student": {"conv1.weight": W}}}),
                   r"holds no named tensors \(a dict with keys \['ema'\]\)"),
    wrapped_below_a_wrapper=(lambda t: _saved(t, {"model": {"student": {"conv1.weight": W}}}),
                             r"holds no named tensors \(a dict with keys \['student'\]\)"),
    a_list=(lambda t: _saved(t, [W, W]), r"holds no named tensors \(list\)"),
    one_tensor=(lambda t: _saved(t, W), r"holds no named tensors \(Tensor\)"),
    truncated=(lambda t: _cut(_saved(t, {"w": torch.rand(2000)})), "is damaged"),
    truncated_safe=(lambda t: _cut(_safetensors(t, {"w": torch.rand(2000)})), "is damaged"),
    pickled_class=(lambda t: _saved(t, Net(2, 2)), "holds Python objects besides tensors"),
    pickled_class_in_a_dict=(lambda t: _saved(t, {"model": RDE, "net": Net(2, 2)}),
                             "holds Python objects besides tensors"),
    not_finite=(lambda t: _saved(t, {"w": W*torch.nan}), "holds NaN or infinite values in 1 of 1 tensors"),
    empty_file=(lambda t: _written(t, b""), r"is empty \(0 bytes\)"),
    empty_safetensors=(lambda t: _written(t, b"", "w.safetensors"), r"is empty \(0 bytes\)"),
    empty_dict=(lambda t: _saved(t, {}), "holds no named tensors"),
    text=(lambda t: _written(t, b"lr: 0.1\nsteps: 3\n", "configs.yaml"), "is text"),
    page=(lambda t: _written(t, b"<!doctype html><html></html>"), "is an HTML page"),
    pointer=(lambda t: _written(t, b"version https://git-lfs.github.com/spec/v1\n", "model.safetensors"),
             "is a Git LFS pointer"),
    renamed=(lambda t: _saved(t, {"w": W}).rename(t/"w.safetensors"), "is a torch file; expected a safetensors file"),
    empty_folder=(lambda t: t, "holds no config.json"),
    folder_of_a_config=(lambda t: _written(t, json.dumps({}).encode(), "config.json").parent,
                        "lacks model.safetensors beside config.json"),
    folder_of_others=(lambda t: _written(t, b"x", "readme.md").parent, "holds no config.json"))


def _message(model, argument, more, weights):
    "What a model says to wrong weights"
    needs = {k: NEEDS[k] for k in MODELS[model].needs if k != argument}
    kw = {**needs, "size": SIZE, **more, argument: weights}
    with pytest.raises(ValueError) as e: create_model(model, **kw)
    return str(e.value)


@cache
def _wanted(model, argument, more):
    "What a model says it expects, from its message about the weights of another program"
    return re.search("expected (.+?)(: it fits|: no model)", _message(model, argument, dict(more), RDE))[1]


def test_every_model_that_takes_weights_is_here():
    assert {"bot_r50", "transreid_b16", "clip_reid_b16", "camel_base", "frozen", "frozen_pair"} <= {n for n, _ in TAKES}
    assert ("camel_base", "text_weights") in TAKES


@EVERY
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_one_line(model, argument, more, wrong, tmp_path):
    make, words = WRONG[wrong]
    said = _message(model, argument, more, path := make(tmp_path))
    assert re.search(words, said), said
    assert "\n" not in said and repr(str(path)) in said and len(said) < 700, said
    assert _wanted(model, argument, tuple(more.items())) in said, said   # whatever is wrong


@EVERY
def test_a_missing_file_is_one_line(model, argument, more, tmp_path):
    needs = {k: NEEDS[k] for k in MODELS[model].needs if k != argument}
    with pytest.raises((FileNotFoundError, ValueError), match="is not a file or folder|local file or folder") as e:
        create_model(model, **{**needs, "size": SIZE, **more, argument: str(tmp_path/"gone.pth")})
    assert "\n" not in str(e.value) and "gone.pth" in str(e.value)


def test_a_home_folder_is_found(tmp_path, monkeypatch):
    "`~` is the same folder for what is looked at, read and remembered"
    import timm

    from reid_lab.core.files import file_sum
    from reid_lab.recipes.dart3 import source_settings
    from reid_lab.recipes.reid import control_key, reid_settings
    monkeypatch.setenv("HOME", str(tmp_path))
    _saved(tmp_path, timm.create_model("test_vit", num_classes=0).state_dict(), "vit.pth")
    assert create_model("frozen", tower="test_vit", weights="~/vit.pth").loaded.matched > 10
    s = reid_settings("smoke", **source_settings("smoke", "frozen:test_vit", "~/vit.pth"))
    assert control_key(s)["start"] == {"vit.pth": file_sum(tmp_path/"vit.pth")}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8), st.floats(.1, 1),
       st.booleans())
def test_mutated_weight_files_raise_one_line_or_load_finite_tensors(tmp_path_factory, changes, keep, safe):
    path = tmp_path_factory.getbasetemp()/("w.safetensors" if safe else "w.pth")
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    if safe: save_file(net.state_dict(), path)
    else: torch.save(net.state_dict(), path)
    data = bytearray(path.read_bytes())
    for at, value in changes: data[int(at*(len(data) - 1))] = value
    path.write_bytes(data[:int(len(data)*keep)] if keep < .6 else data)
    try: state = read_weights(path)
    except ValueError as e: assert path.name in str(e) and "\n" not in str(e)
    else: assert all(v.isfinite().all() for v in state.values() if v.is_floating_point())
