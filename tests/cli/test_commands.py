"The command line: exit codes, messages, and that it starts at once"
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from helpers.notebooks import RECORD, notebook

from reid_lab import __version__
from reid_lab.cli.output import LISTS, pairs, typed
from reid_lab.cli.commands import main
from reid_lab.retrieval.embeddings import Embeddings


def test_version_and_start_up():
    code = ("import sys, reid_lab.cli.commands as c\ntry: c.main(['--version'])\n"
            "except SystemExit: print(sorted({'torch', 'pandas', 'matplotlib', 'pydantic'} & set(sys.modules)))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"reid_lab {__version__}\n[]\n"


def test_arguments_are_read_without_loading_the_library():
    "Otherwise the terminal stays empty for seconds"
    code = ("import sys; from reid_lab.cli.commands import parser\n"
            "for a in (['bias', 'q.npz'], ['metrics', 'q.npz', 'g.npz'], ['run', 'camel'], ['sweep', 'camel']): "
            "parser().parse_args(a)\nimport reid_lab.experiments.terminal\n"
            "print(sorted({'torch', 'numpy', 'pandas', 'papermill', 'pydantic'} & set(sys.modules)))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"


def test_json_is_standard(tmp_path, capsys):
    "What cannot be computed is null, not NaN"
    emb = np.eye(4, dtype=np.float32)
    np.savez(tmp_path/"q.npz", emb=emb, pid=np.arange(4), cam=np.zeros(4, int))
    args = ["metrics", str(tmp_path/"q.npz"), str(tmp_path/"q.npz"), "--same-camera", "keep", "--json"]
    assert main(args) == 0
    def refuse(word): raise ValueError(word)
    assert json.loads(capsys.readouterr().out, parse_constant=refuse)["R1"] == 100
    from reid_lab.cli.numbers import json_line
    assert json.loads(json_line(dict(a=float("nan"), b=[np.float32(1)])), parse_constant=refuse) == dict(a=None, b=[1.])


@pytest.mark.parametrize("args", [[], ["nothing"], ["run"], ["metrics", "q.npz"], ["bias"],
                                  ["bias", "q.npz", "--map", "x"], ["metrics", "q.npz", "g.npz", "--distance", "x"],
                                  ["sweep", "x", "--seeds", "a"]])
def test_wrong_calls_exit_with_2(args, capsys):
    with pytest.raises(SystemExit) as e: main(args)
    assert e.value.code == 2 and "usage" in capsys.readouterr().err


@pytest.mark.parametrize("items, message", [
    (["preset"], "'preset' is not name=value"), (["=x"], "'=x' is not name=value"), (["a b=1"], "'a b=1' is not name="),
    (["seed=1", "seed=2"], r"\['seed'\] given more than once")])
def test_pairs(items, message):
    assert pairs(["preset=smoke", "root=a=b", "x="]) == dict(preset="smoke", root="a=b", x="")
    with pytest.raises(ValueError, match=message): pairs(items)


def test_values_take_the_type_of_the_default(tmp_path):
    nb = notebook(tmp_path/"n.ipynb", parameters="name = ''\nseed = 0\nlr = 1.\non = True\nk = None")
    given = dict(name="007", seed="7", lr="1e-4", on="no", k="[1]")
    assert typed(given, nb) == dict(name="007", seed=7, lr=1e-4, on=False, k=[1])


def test_run(tmp_path, capsys):
    nb = notebook(tmp_path/"n.ipynb", RECORD + "\nassert seed < 5, 'too much'")
    assert main(["run", str(nb), "-p", "preset=smoke", "-p", "seed=1", "--out", str(tmp_path/"a")]) == 0
    assert "41.0" in capsys.readouterr().out and (tmp_path/"a"/"metrics.json").exists()
    assert main(["run", str(nb), "-p", "sed=1"]) == 2
    assert "Did you mean 'seed'" in capsys.readouterr().err
    assert main(["run", str(nb), "-p", "seed=9", "-p", "preset=smoke", "--out", str(tmp_path/"b")]) == 1
    assert "AssertionError: too much" in capsys.readouterr().err
    assert main(["run", "no_such_experiment"]) == 2


def test_sweep(tmp_path, capsys):
    nb = notebook(tmp_path/"n.ipynb", RECORD)
    args = ["sweep", str(nb), "--seeds", "0", "--jobs", "1", "--out", str(tmp_path/"s"), "-p", "preset=smoke"]
    assert main(args) == 0 and main(args) == 0  # the second finds everything there
    assert "40.0" in capsys.readouterr().out
    assert main([*args, "--grid", "sed=1"]) == 2
    assert main([*args, "--grid", "seed=1", "-p", "seed=2"]) == 2 and "give it once" in capsys.readouterr().err


@pytest.mark.parametrize("what", LISTS)
def test_lists_are_the_registries(what, capsys):
    assert main(["list", what]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == list(LISTS[what]()) and names
    assert main(["list", what, names[0]]) == 0 and capsys.readouterr().out.startswith(f"{names[0]}: ")
    assert main(["list", what, names[0] + "x"]) == 2 and f"Did you mean '{names[0]}'" in capsys.readouterr().err


@pytest.mark.parametrize("command, what", [("run", "experiments"), ("sweep", "experiments"), ("doctor", "datasets"),
                                           ("world", "worlds"), ("published", "papers"), ("metrics", "metrics")])
def test_help_prints_the_registered_names(command, what, capsys):
    with pytest.raises(SystemExit) as e: main([command, "--help"])
    text = capsys.readouterr().out
    assert e.value.code == 0 and f"\n{what}:\n" in text and all(f"\n  {name} " in text for name in LISTS[what]())


def test_lists_follow_the_registry(monkeypatch, capsys):
    from reid_lab.models.zoo import MODELS
    monkeypatch.setitem(MODELS, "zebra", MODELS["bot_tiny"])
    assert main(["list", "models"]) == 0 and "zebra" in capsys.readouterr().out


def test_published(capsys):
    assert main(["published"]) == 0 and "dart3" in capsys.readouterr().out
    assert main(["published", "camel", "I"]) == 0 and "77.24" in capsys.readouterr().out
    assert main(["published", "camel", "I", "--format", "latex"]) == 0 and r"\begin{tabular}" in capsys.readouterr().out
    assert main(["published", "camel", "Z"]) == 2 and "choose one of" in capsys.readouterr().err


def test_metrics_of_own_features(tmp_path, capsys):
    eye = np.eye(4, dtype=np.float32)
    np.savez(tmp_path/"q.npz", features=eye, pid=np.arange(4), cam=np.zeros(4, int))
    np.savez(tmp_path/"g.npz", features=np.vstack([eye, eye[::-1]]), pid=[0, 1, 2, 3, 3, 2, 1, 0], cam=np.ones(8, int))
    assert main(["metrics", str(tmp_path/"q.npz"), str(tmp_path/"g.npz"), "--key", "emb=features", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["R1"] == found["mAP"] == 100 and found["n_query"] == 4
    assert main(["metrics", str(tmp_path/"q.npz"), str(tmp_path/"gone.npz")]) == 2
    assert re.match("reid_lab metrics: .*", capsys.readouterr().err)


def test_metrics_of_an_open_set(tmp_path, capsys):
    rng = np.random.default_rng(0)
    who, pid = rng.normal(size=(60, 24)), np.tile(np.arange(60), 4)
    for name in ("q", "g"):
        np.savez(tmp_path/f"{name}.npz", emb=np.float32(who[pid] + .5*rng.normal(size=(240, 24))), pid=pid,
                 cam=np.repeat([0, 1, 2, 3], 60))
    files = [str(tmp_path/"q.npz"), str(tmp_path/"g.npz")]
    assert main(["metrics", *files, "--open-set"]) == 0
    out = capsys.readouterr().out
    assert "FNIR % [95 %]" in out and "10 %     all" in out and "cam 3" in out and "1 %     all" in out
    assert "Warning: Too few people for FPIR 1 %: a threshold rests on 30" in out
    assert main(["metrics", *files, "--open-set", ".05", ".2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {(r["FPIR_asked"], r["group"]): r for r in found["open_set"]}
    assert len(rows) == 10 and rows[.05, "all"]["FNIR_low"] <= rows[.05, "all"]["FNIR"] <= rows[.05, "all"]["FNIR_high"]
    assert rows[.2, "all"]["FNIR"] <= rows[.05, "all"]["FNIR"] and found["mAP"] > 50
    assert rows[.2, "cam 1"]["present"] == 60
    assert main(["metrics", *files, "--open-set", "5"]) == 2
    assert "--open-set 5.0 must lie between 0 and 1" in capsys.readouterr().err
    assert main(["metrics", *files, "--json"]) == 0 and "open_set" not in json.loads(capsys.readouterr().out)


@pytest.fixture
def features(tmp_path):
    "Files of 12 people under two cameras, the second shifted"
    rng = np.random.default_rng(0)
    who, pid, cam = rng.normal(size=(12, 6)), np.tile(np.arange(12), 2), np.repeat([0, 1], 12)
    for name in ("q", "g"):
        emb = np.float32(np.tile(who, (2, 1)) + .3*rng.normal(size=(24, 6)) + 4*cam[:, None])
        np.savez(tmp_path/f"{name}.npz", emb=emb, pid=pid, cam=cam)
    return tmp_path, dict(emb=emb, pid=pid, cam=cam)


def test_bias_prints_and_writes(features, capsys):
    d, _ = features
    assert main(["bias", str(d/"q.npz"), str(d/"g.npz"), "--out", str(d/"new"/"report")]) == 0
    out = capsys.readouterr().out
    assert "No adaptation" in out and "helps: mAP " in out and "Warning: Cameras with fewer" not in out
    assert "12 of 12 people are scored" in out
    assert "report: " in out
    assert sorted(p.name for p in (d/"new"/"report").iterdir()) == ["figures", "open_set.csv", "per_camera.csv",
                                                                    "report.html", "report.md", "summary.csv"]
    assert "q.npz and g.npz" in (d/"new"/"report"/"report.html").read_text()
    assert main(["bias", str(d/"q.npz"), "--out", str(d/"new"/"report")]) == 2
    assert "exists; choose a new name" in capsys.readouterr().err


def test_bias_opens_a_page(features, capsys, monkeypatch):
    d, e = features
    monkeypatch.chdir(d)
    assert main(["bias", "q.npz", "g.npz", "--open"]) == 0
    assert "page: camera_bias.html" in capsys.readouterr().out
    page = (d/"camera_bias.html").read_text(encoding="utf-8")
    assert page.count('<div id="view-') == 5 and "default-src 'none'" in page and "q.npz and g.npz" in page
    for args, words in ((["g.npz"], "exists; choose a new name"), ([], "give both files")):
        assert main(["bias", "q.npz", *args, "--open"]) == 2
        assert words in capsys.readouterr().err
    np.savez(d/"unknown.npz", emb=e["emb"], cam=e["cam"])
    assert main(["bias", "unknown.npz", "unknown.npz", "--open", "--out", "shown"]) == 0
    assert "mAP is not defined" in (d/"shown"/"cockpit.html").read_text(encoding="utf-8")


def test_bias_as_json_and_without_people(features, capsys):
    d, e = features
    np.savez(d/"theirs.npz", features=e["emb"], camera=e["cam"])
    keys = ["--key", "emb=features", "cam=camera"]
    assert main(["bias", str(d/"theirs.npz"), *keys, "--json", "--distance", "euclidean", "--map", "none"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advised"] is None and found["summary"][0]["mAP"] is None
    assert found["summary"][0]["nmi_identity"] is None
    assert found["summary"][0]["camera_share"] > .3 and [c["n_query"] for c in found["cameras"]] == [12, 12]
    assert main(["bias", str(d/"theirs.npz"), str(d/"theirs.npz"), *keys]) == 0
    assert "No identity is known on both sides" in capsys.readouterr().out


@pytest.mark.parametrize("change, words", [
    (dict(cam=None), r"has no \['cam'\]; it holds"), (dict(emb=None), r"has no \['emb'\]"),
    (dict(emb="nan"), "NaN or infinite values in 1 of 24"),
    (dict(emb="int"), "has dtype int64"), (dict(emb="flat"), r"must be \(N,D\)"),
    (dict(cam="one"), "single camera there is no bias"),
    (dict(cam="short"), r"cam has shape \(3,\)"), (dict(pid="text"), "factorize"),
    (dict(pid="other"), "has a match in the"), (dict(emb="thin"), "did one model make both")])
def test_bias_says_in_one_line_what_is_wrong(features, capsys, change, words):
    d, e = features
    bad = dict(e)
    for k, v in change.items():
        if v is None: del bad[k]
        elif v == "nan": bad[k] = e[k].copy(); bad[k][3, 1] = np.nan
        else:
            bad[k] = {"int": e["emb"].astype(int), "flat": e["emb"][0], "thin": e["emb"][:, :2], "one": 0*e["cam"],
                      "short": e["cam"][:3], "text": np.array(["x"]*24), "other": e["pid"] + 100}[v]
    np.savez(d/"bad.npz", **bad)
    good = "bad.npz" if change == dict(cam="one") else "q.npz"
    assert main(["bias", str(d/good), str(d/"bad.npz"), "--out", str(d/"out")]) == 2
    out, err = capsys.readouterr()
    assert not out and err.count("\n") == 1 and re.match("reid_lab bias: ", err) and re.search(words, err)
    assert not (d/"out").exists()


def test_doctor_and_datasets(tmp_path, capsys):
    assert main(["datasets"]) == 0 and "cuhk-pedes" in capsys.readouterr().out
    assert main(["doctor", "cuhk-pedes", "--root", str(tmp_path)]) == 1 and "ERROR" in capsys.readouterr().out
    assert main(["doctor", "cuhk-pede"]) == 2 and "Did you mean 'cuhk-pedes'" in capsys.readouterr().err


def test_world(private_cache, capsys):
    assert main(["world", "--preset", "quik"]) == 2 and "Did you mean 'quick'" in capsys.readouterr().err
    assert main(["world", "--preset", "smoke"]) == 0  # into the session's cache, which other tests use too
    out = capsys.readouterr().out
    assert "train" in out and str(private_cache) in out


def test_warnings_of_the_library_are_lines_of_the_command(tmp_path, capsys):
    "Tied scores, said once, after the scores, with the option instead of the keyword"
    same = Embeddings(np.ones((6, 4), np.float32), np.arange(6)//2, np.arange(6) % 2)
    same.save(tmp_path/"same.npz")
    assert main(["metrics", str(tmp_path/"same.npz"), str(tmp_path/"same.npz")]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("reid_lab metrics: about 100 % of the matches") and said.err.count("\n") == 1
    assert "--ties expected takes" in said.err and "ties=" not in said.err and said.out.startswith("R1 ")
    assert main(["metrics", str(tmp_path/"same.npz"), str(tmp_path/"same.npz"), "--ties", "expected"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and f"R1         {100/5:.2f}" in said.out      # one right of five, in any order


def test_weights_are_inspected_and_converted(tmp_path, capsys):
    import timm
    import torch
    from reid_lab.models.bot import bot_r50
    torch.manual_seed(3)
    state = timm.create_model("resnet50", num_classes=5).state_dict()
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path/"r50.pth")
    assert main(["weights", "inspect", str(tmp_path/"r50.pth")]) == 0
    out = capsys.readouterr().out
    assert "a ResNet-50 of torchvision or timm" in out and "fits        bot_r50" in out
    assert "left out    2 (fc.weight, fc.bias): classifier of the pretraining" in out
    assert main(["weights", "inspect", str(tmp_path/"r50.pth"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "resnet50" and found["tensors"] == len(state)
    assert found["arguments"] == dict(tower="resnet50")
    args = ["--model", "bot_r50", "-p", "size=(64, 32)", "-p", "n_ids=3"]
    assert main(["weights", "convert", str(tmp_path/"r50.pth"), str(tmp_path/"b.safetensors"), *args]) == 0
    assert "taken: 318 of 318 tensors" in capsys.readouterr().out
    model = bot_r50(n_ids=7, size=(64, 32), weights=tmp_path/"b.safetensors")
    assert torch.equal(model.image.net.layer4[2].conv3.weight, state["layer4.2.conv3.weight"])
    assert main(["weights", "inspect", str(tmp_path/"b.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "weights of this library" in out and "source      r50.pth" in out and "n_ids=3" in out
