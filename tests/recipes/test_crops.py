"Own crops: labels are known or said to be unknown, embedding survives interruptions, answers are those of the features"
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from reid_lab.analysis.bias.audit import bias_report
from reid_lab.analysis.open_set import Threshold
from reid_lab.cli.commands import main
from reid_lab.core.basics import stream
from reid_lab.core.weight_files import save_weights
from reid_lab.data.crops import crops_table, folder_pattern, manifest_table
from reid_lab.data.images import ImageError
from reid_lab.data.table import ReidTable, TableError
from reid_lab.models.zoo import create_model
from reid_lab.recipes import crops as C
from reid_lab.recipes.crops import ready_model
from reid_lab.retrieval import parts as P
from reid_lab.retrieval.embeddings import Embeddings, embed_images, embed_texts
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.shards import embed_shards, write_shards
from reid_lab.retrieval.sides import one_numbering
from reid_lab.tta.base import adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.world.world import World


def write(root, names, size=(40, 20)):
    for k, name in enumerate(names):
        (root/name).parent.mkdir(parents=True, exist_ok=True)
        block = stream(0, "crop", k).integers(0, 256, (5, 4, 3), "u1")
        Image.fromarray(block).resize(size[::-1], Image.Resampling.NEAREST).save(root/name)
    return root


@pytest.fixture
def folder(tmp_path): return write(tmp_path/"crops", [f"{i:03d}.png" for i in range(24)])


# ---- tables

def test_labels_come_from_subfolders_or_are_unknown(tmp_path):
    root = write(tmp_path, ["gate/ann/12.png", "gate/bob/12.png", "hall/ann/0001_c3.png"])
    plain = crops_table(root)
    assert plain["pid"].tolist() == plain["cam"].tolist() == [-1]*3 and "unknown cameras" in repr(plain)
    t = crops_table(root, "camera/identity")
    assert t["cam"].tolist() == [0, 0, 1] and t["pid"].tolist() == [0, 1, 0]
    assert t.frame.cam_name.tolist() == ["gate", "gate", "hall"] and t.frame.pid_name.tolist() == ["ann", "bob", "ann"]
    assert crops_table(root, "any/identity")["cam"].tolist() == [-1]*3
    assert crops_table(root, pattern=r"[^/]+/[^/]+/(?P<pid>\d+)")["pid"].tolist() == [12, 12, 1]


def test_images_that_lie_elsewhere_are_named(tmp_path):
    root = write(tmp_path, ["gate/1.png", "2.png"])
    with pytest.raises(ValueError, match=r"folders='camera': 1 images .*\['2.png'\]"): crops_table(root, "camera")
    with pytest.raises(ValueError, match="Did you mean 'identity'"): folder_pattern("camera/identiti")
    with pytest.raises(ValueError, match="names camera twice"): folder_pattern("camera/camera")
    with pytest.raises(ValueError, match="both say what names mean"): crops_table(root, "camera", r"(?P<pid>\d)")
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder"): crops_table(root/"none")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_manifest_gives_what_it_has(tmp_path, kind):
    root = write(tmp_path/"images", ["a.png", "b/c.png"])
    f = pd.DataFrame(dict(file=["a.png", "b/c.png"], person=["x", "7"], camera=["3", "1"], caption=["A man.", ""],
                          age=[1, 2]))
    if kind == "csv": f.to_csv(tmp_path/"m.csv", index=False)
    else:
        pytest.importorskip("pyarrow")
        f.to_parquet(tmp_path/"m.parquet")
    t = manifest_table(tmp_path/f"m.{kind}", root, dict(path="file", pid="person", cam="camera"))
    assert t["pid"].tolist() == [8, 7] and t["pid_name"].tolist() == ["x", "7"]  # what is a number stays
    assert t["cam"].tolist() == [3, 1] and "age" in t.frame
    assert t["captions"].tolist() == [["A man."], []]
    with pytest.raises(ValueError, match="has no column path"): manifest_table(tmp_path/f"m.{kind}", root)
    with pytest.raises(ValueError, match=r"columns\['pid'\]='who' is not known"):
        manifest_table(tmp_path/f"m.{kind}", root, dict(path="file", pid="who"))


def test_a_saved_table_is_a_manifest(tmp_path):
    root = write(tmp_path, ["a.png", "b.png"])
    t = ReidTable(pd.DataFrame(dict(path=["a.png", "b.png"], pid=[4, 5], cam=[1, 2], captions=[["x", "y"], []])), root)
    t.save(tmp_path/"t.csv")
    again = manifest_table(tmp_path/"t.csv").frame
    assert again["pid_name"].tolist() == ["4", "5"] and again["cam_name"].tolist() == ["1", "2"]
    assert again[list(t.frame)].drop(columns="attrs").equals(t.frame.drop(columns="attrs"))


@pytest.mark.parametrize("text, message", [
    ("path\n../out.png\n", "path leaves the root"), ("path\nnone.png\n", "does not exist"), ("", "is empty"),
    ("<!doctype html><html>", "HTML page"), ("path,path\n", "twice")])
def test_broken_manifests(tmp_path, text, message):
    write(tmp_path, ["out.png", "in/a.png"])
    (tmp_path/"in"/"m.csv").write_text(text)
    with pytest.raises((ValueError, TableError), match=message): manifest_table(tmp_path/"in"/"m.csv")


def test_images_that_do_not_fit_can_be_left_out(tmp_path):
    root = write(tmp_path, ["gate/1.png", "hall/7.png", "2.png"])
    for kw in (dict(folders="camera"), dict(pattern=r"(?P<cam>[^/]+)/")):
        with pytest.raises(ValueError, match="skip=True"): crops_table(root, **kw)
        assert crops_table(root, skip=True, **kw)["path"].tolist() == ["gate/1.png", "hall/7.png"]


def test_some_cameras_unknown_is_an_error(tmp_path):
    root = write(tmp_path, ["a.png", "b.png"])
    (root/"m.csv").write_text("path,cam\na.png,2\nb.png,-1\n")
    with pytest.raises(ValueError, match="cam -1.*, while other rows have one"): manifest_table(root/"m.csv")


# ---- features

def test_unknown_cameras_do_not_reach_features_or_models(folder):
    class Sided(torch.nn.Module):
        size, told = (8, 4), []
        def encode_image(self, img, cam=None):
            self.told.append(cam)
            return img.mean((2, 3))
    e = embed_images(Sided(), crops_table(folder), quiet=True)
    assert e.cam is None and Sided.told == [None]


def test_sentences_embed_without_a_table():
    net = ready_model("clip_tiny")[1]
    e = embed_texts(net, ["a man in red", "a woman"], quiet=True)
    assert e.pid.tolist() == [-1, -1] and e.caption == ["a man in red", "a woman"]
    f = pd.DataFrame(dict(caption=e.caption, pid=[3, 4]))
    assert torch.equal(embed_texts(net, f, quiet=True).emb, e.emb)
    said = pd.DataFrame(dict(path=["a", "b"], pid=-1, captions=[["a man in red"], ["a woman"]]))
    captions = ReidTable(said, None, lambda p: [])
    assert torch.equal(embed_texts(net, captions, quiet=True).emb, e.emb)


def test_features_are_those_of_embed_images(folder, tmp_path):
    table = crops_table(folder)
    e = C.embed_crops(table, "clip_tiny", tmp_path/"f", C.CropOptions(batch_size=7), quiet=True)
    want = embed_images(ready_model("clip_tiny")[1], table, quiet=True)
    assert torch.allclose(e.emb, want.emb, atol=1e-6) and e.path == want.path
    assert e.meta["model_name"] == "clip_tiny" and "weights" not in e.meta and e.meta["root"] == str(folder.resolve())
    assert torch.equal(Embeddings.load(tmp_path/"f").emb, e.emb) and not list(tmp_path.glob("*.parts"))
    with pytest.raises(FileExistsError, match="fresh=True"): C.embed_crops(table, "clip_tiny", tmp_path/"f")


def test_what_is_done_is_not_done_again(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(C, "SAVE_EVERY", 0)
    good = (folder/"010.png").read_bytes()
    when = os.stat(folder/"010.png").st_mtime_ns
    (folder/"010.png").write_bytes(good[:60].ljust(len(good), b"x"))
    os.utime(folder/"010.png", ns=(when, when))
    table = ReidTable(pd.DataFrame(dict(path=sorted(os.listdir(folder)), pid=-1)), folder)
    with pytest.raises(ValueError, match="010.png"):
        C.embed_crops(table, "clip_tiny", tmp_path/"f", C.CropOptions(batch_size=4))
    assert not (tmp_path/"f").exists()
    (folder/"010.png").write_bytes(good)
    os.utime(folder/"010.png", ns=(when, when))
    seen, real = [], P.embed_images
    monkeypatch.setattr(P, "embed_images", lambda m, t, *a, **kw: seen.extend(t["path"]) or real(m, t, *a, **kw))
    e = C.embed_crops(table, "clip_tiny", tmp_path/"f", C.CropOptions(batch_size=4))
    assert seen == [f"{i:03d}.png" for i in range(8, 24)] and len(e) == 24
    assert torch.allclose(e.emb, real(ready_model("clip_tiny")[1], table, quiet=True).emb, atol=1e-6)


def test_models_of_the_package_are_the_same_each_time():
    for name in ("bot_tiny", "clip_tiny"):
        (_, a), (_, b) = ready_model(name), ready_model(name)
        assert all(torch.equal(x, b.state_dict()[k]) for k, x in a.state_dict().items())


@pytest.mark.parametrize("change, what", [("model", "model"), ("image", "images"), ("label", "images")])
def test_parts_of_another_run_are_refused(folder, tmp_path, monkeypatch, change, what):
    monkeypatch.setattr(C, "SAVE_EVERY", 0)
    real, calls = P.embed_images, []
    def stop(*a, **kw):
        if calls: raise KeyboardInterrupt
        calls.append(1)
        return real(*a, **kw)
    monkeypatch.setattr(P, "embed_images", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        C.embed_crops(crops_table(folder), "clip_tiny", tmp_path/"f", C.CropOptions(batch_size=4))
    assert "the same call goes on after" in stopped.value.__notes__[0]
    monkeypatch.setattr(P, "embed_images", real)
    if change == "image": Image.new("RGB", (20, 40)).save(folder/"003.png")
    kw = dict(pattern=r"(?P<pid>\d)") if change == "label" else {}
    name = "bot_tiny" if change == "model" else "clip_tiny"
    with pytest.raises(FileExistsError, match=f"other .*{what}.*fresh=True"):
        C.embed_crops(crops_table(folder, **kw), name, tmp_path/"f")
    assert len(C.embed_crops(crops_table(folder, **kw), name, tmp_path/"f", fresh=True)) == 24


def test_interrupted_shards_say_how_they_go_on(folder, tmp_path, monkeypatch):
    real, left = P.embed_images, [1, 1]
    def stop(*a, **kw):
        if not left: raise KeyboardInterrupt
        left.pop()
        return real(*a, **kw)
    monkeypatch.setattr(P, "embed_images", stop)
    table, model = crops_table(folder), C.open_embedder("bot_tiny").net
    with pytest.raises(KeyboardInterrupt) as stopped: embed_shards(model, table, tmp_path/"f", rows=8)
    assert stopped.value.__notes__ == ["1 of 3 shards were written; the same call goes on after them"]
    monkeypatch.setattr(P, "embed_images", real)
    assert embed_shards(model, table, tmp_path/"f", rows=8) == 2


def test_bad_images_are_left_out_on_request(folder, tmp_path):
    for n in ("000.png", "013.png"): (folder/n).write_bytes(b"no image")
    table = ReidTable(pd.DataFrame(dict(path=sorted(os.listdir(folder)), pid=-1)), folder)
    e = C.embed_crops(table, "clip_tiny", tmp_path/"f", C.CropOptions(batch_size=5, skip_bad=True))
    assert len(e) == 22 and "000.png" not in e.path
    assert len(e.meta["left_out"]) == 2 and "013.png" in e.meta["left_out"][1]
    for p in folder.iterdir(): p.write_bytes(b"no image")
    with pytest.raises(ValueError, match="none of the 24 images can be read"):
        C.embed_crops(table, "clip_tiny", tmp_path/"g", C.CropOptions(skip_bad=True))


@pytest.mark.parametrize("write", [C.embed_crops, C.crops_to_shards])
def test_an_image_behind_the_sample_names_what_leaves_it_out(folder, tmp_path, write):
    "Damaged after the first look, or not among the images that were looked at"
    table = crops_table(folder)
    (folder/"013.png").write_bytes(b"no image")
    with pytest.raises(ImageError, match="013.png") as caught: write(table, "bot_tiny", tmp_path/"f")
    assert "skip_bad=True leaves out what cannot be read" in caught.value.__notes__
    e = write(table, "bot_tiny", tmp_path/"f", C.CropOptions(skip_bad=True))
    assert len(e) == 23 and len(e.meta["left_out"]) == 1


def test_a_command_names_its_option_for_such_an_image(folder, tmp_path, monkeypatch, capsys):
    (folder/"013.png").write_bytes(b"no image")
    monkeypatch.setattr(ReidTable, "findings", lambda *a, **kw: [])         # as if it were not in the sample
    assert main(["embed", str(folder), "--model", "bot_tiny", "--out", str(tmp_path/"f")]) == 2
    assert "leave it out; --skip-bad leaves out what cannot be read" in capsys.readouterr().err


def test_a_folder_to_be_matched_with_a_damaged_image_names_the_command_that_leaves_it_out(folder, tmp_path, capsys):
    assert main(["embed", str(folder), "--model", "bot_tiny", "--out", str(tmp_path/"f")]) == 0
    (folder/"013.png").write_bytes(b"no image")
    capsys.readouterr()
    assert main(["match", str(folder), str(tmp_path/"f"), "--model", "bot_tiny"]) == 2
    assert "reid_lab embed --skip-bad leaves them out" in capsys.readouterr().err


@pytest.mark.kill
def test_a_kill_loses_one_part_at_most(tmp_path):
    root = write(tmp_path/"crops", [f"{i:04d}.png" for i in range(600)])
    code = ("import sys, reid_lab.recipes.crops as C; C.SAVE_EVERY = 0\nfrom reid_lab.data.crops import crops_table\n"
            "C.embed_crops(crops_table(sys.argv[1]), 'clip_tiny', sys.argv[2], C.CropOptions(batch_size=4))")
    run = subprocess.Popen([sys.executable, "-c", code, str(root), str(tmp_path/"f")], stdout=subprocess.DEVNULL)
    parts, end = tmp_path/"f.parts", time.monotonic() + 60
    while len(list(parts.glob("[0-9]*-*"))) < 5 and run.poll() is None and time.monotonic() < end: time.sleep(.01)
    run.send_signal(signal.SIGKILL)
    run.wait()
    done = len(list(parts.glob("[0-9]*-*")))
    assert done >= 5 and not (tmp_path/"f").exists()
    e = C.embed_crops(crops_table(root), "clip_tiny", tmp_path/"f", quiet=True)
    want = embed_images(ready_model("clip_tiny")[1], crops_table(root), quiet=True)
    assert e.path == want.path and torch.allclose(e.emb, want.emb, atol=1e-6)


def own_weights(path, name="bot_tiny", **kw):
    torch.save(create_model(name, weights="world", **kw).state_dict(), path)
    return path


def test_weights_of_ones_own(folder, tmp_path):
    file = own_weights(tmp_path/"own.pth", n_ids=7)
    with pytest.warns(UserWarning, match="left out: classify"):
        e = C.embed_crops(crops_table(folder), C.open_embedder("bot_tiny", file), tmp_path/"f", quiet=True)
    assert torch.allclose(e.emb, C.embed_once(folder, "bot_tiny", quiet=True).emb, atol=1e-6)
    asked = shutil.copy(folder/"005.png", tmp_path/"asked.png")      # the image itself would be left out
    with pytest.warns(UserWarning): found = C.search(tmp_path/"f", asked, k=1)
    assert found.table().path[0] == "005.png" and e.meta["weights"] == str(file.resolve())
    other = create_model("bot_tiny", weights="world", n_ids=7)
    other.neck.bias.data += 1
    torch.save(other.state_dict(), file)
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="need one model"): C.search(e, folder/"005.png")


def test_a_model_needs_weights_and_words(folder, tmp_path):
    file = own_weights(tmp_path/"own.pth", n_ids=1)
    for name, kw, message in [("bot_r50", {}, "weights=FILE"), ("bot_r50", dict(weights=file), "own.pth"),
                              ("clip_tiny", dict(weights=file), "own.pth"),
                              ("frozen", dict(weights=file), "not known")]:
        with pytest.raises(ValueError, match=message): ready_model(name, **kw)
    save_weights(ready_model("clip_tiny")[1], tmp_path/"words.safetensors")
    with pytest.raises(ValueError, match="bring no tokenizer.* with tokenizer=FOLDER"):
        ready_model("clip_tiny", weights=tmp_path/"words.safetensors")


def bare_weights(root):
    "Weights of a model that reads captions, in a file without its tokenizer, which lies beside it"
    net = ready_model("clip_tiny")[1]
    save_weights(net, root/"bare.safetensors")
    net.tokenizer.save(root/"words")
    return root/"bare.safetensors", root/"words"


def test_a_tokenizer_may_lie_beside_the_weights(folder, tmp_path, capsys, monkeypatch):
    (file, words), want = bare_weights(tmp_path), tmp_path/"want"
    C.embed_crops(crops_table(folder), "clip_tiny", want, quiet=True)
    monkeypatch.chdir(tmp_path)                                                   # relative paths are noted whole
    call = ["embed", str(folder), "--model", "clip_tiny", "--weights", file.name, "--out"]
    assert main([*call, "none"]) == 2
    assert "--tokenizer FOLDER" in capsys.readouterr().err and not (tmp_path/"none").exists()
    for out, more in (("own", []), ("disk", ["--shards"])):
        assert main([*call, str(tmp_path/out), "--tokenizer", words.name, *more]) == 0
        monkeypatch.chdir(folder)
        found = [C.search(tmp_path/f, "a woman with a white bag", k=5).table() for f in ("want", out)]
        assert found[0].path[0] == found[1].path[0]
        assert found[0].score.tolist() == pytest.approx(found[1].score, abs=2e-3)
        monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main([*call, "clipped", "--tokenizer", "clip"]) == 2                    # words of another number
    assert main([*call, "nowhere", "--tokenizer", "crops"]) == 2
    told = capsys.readouterr().err
    assert "holds no reid_lab_tokenizer.json and no vocab.txt" in told and "Traceback" not in told
    for name in ("dual_tiny", "camel_tiny"):                                        # which cannot be built without
        save_weights(create_model(name, vocab_size=60), tmp_path/f"{name}.safetensors")
        with pytest.raises(ValueError, match="tokenizer=FOLDER"):
            ready_model(name, weights=tmp_path/f"{name}.safetensors")


# ---- galleries on disk

@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    "The same features in a folder, in a file and in shards; identities and cameras in the file names"
    root = tmp_path_factory.mktemp("disk")
    names = [f"cam{c}/{p}_{k}.png" for p in range(12) for c in range(3) for k in range(2)]
    write(root/"crops", names)
    call = ["embed", str(root/"crops"), "--model", "clip_tiny", "--pattern", r"cam(?P<cam>\d)/(?P<pid>\d+)_"]
    assert main([*call, "--out", str(root/"f")]) == main([*call, "--out", str(root/"s"), "--shards"]) == 0
    assert main([*call, "--out", str(root/"s"), "--shards"]) == 0                  # nothing is left to do
    Embeddings.load(root/"f").save(root/"f.npz")
    return root


def said(capsys, *words):
    code = main([str(w) for w in words])
    return code, *capsys.readouterr()


def test_shards_are_features_for_every_command(on_disk, capsys):
    f, s, crop = on_disk/"f", on_disk/"s", shutil.copy(on_disk/"crops"/"cam1"/"5_0.png", on_disk/"asked.png")
    found = [json.loads(said(capsys, "search", g, "--image", crop, "-k", 4, "--json")[1]) for g in (f, s)]
    whole, disk = (answers[0]["results"] for answers in found)
    assert [r["path"] for r in disk] == [r["path"] for r in whole] and disk[0]["path"] == "cam1/5_0.png"
    # what nobody said is left out
    assert set(disk[0]) == {"rank", "row", "score", "pid", "cam", "path", "pid_name", "cam_name"}
    code, out, _ = said(capsys, "search", s, "a man with a bag", "--html", on_disk/"page.html")
    assert code == 0 and "cam" in out and "data:image" in (on_disk/"page.html").read_text("utf-8")
    a, b = (json.loads(said(capsys, "match", f, g, "--json")[1]) for g in (f, s))
    assert [r["b"] for r in a] == [r["b"] for r in b] and all(r["a"] != r["b"] for r in b)   # no image is its own match
    assert said(capsys, "match", s, s, "--out", on_disk/"pairs.csv")[0] == 0
    for more in ([], ["--open-set", ".1"]):
        a, b = (json.loads(said(capsys, "metrics", f, g, "--json", *more)[1]) for g in (f, s))
        assert a["mAP"] == pytest.approx(b["mAP"], abs=.5) and a["n_query"] == b["n_query"] == 72
    a, b = (json.loads(said(capsys, "bias", g, g, "--json")[1]) for g in (f, s))
    assert a["advised"] == b["advised"]
    assert a["cameras"][0]["shift"] == pytest.approx(b["cameras"][0]["shift"], abs=1e-2)
    assert said(capsys, "calibrate", s, s, "--rate", .2, "--out", on_disk/"t.json")[0] == 0


def test_shards_too_large_for_memory_are_named(on_disk, capsys, monkeypatch):
    monkeypatch.setattr("reid_lab.retrieval.shards.free_memory", lambda: 10_000)
    for call in (["bias", on_disk/"s", on_disk/"s"], ["match", on_disk/"s", on_disk/"f"],
                 ["metrics", on_disk/"f", on_disk/"s", "--open-set"]):
        code, out, err = said(capsys, *call)
        assert code == 2 and not out and "72 vectors of 64 numbers" in err and "GB are free" in err
    assert said(capsys, "metrics", on_disk/"f", on_disk/"s")[0] == said(capsys, "search", on_disk/"s", "a man")[0] == 0


@pytest.mark.parametrize("args, message", [
    (["embed", "crops", "--model", "clip_tiny", "--out", "s", "--shards", "--captions"], "goes without --shards"),
    (["embed", "crops", "--model", "bot_tiny", "--out", "s", "--shards"], "write to another place"),
    (["metrics", "s", "s", "--key", "emb=x"], "names of arrays are for"),
    (["bias", "plain"], "--folders camera"), (["bias", "plain.npz"], "--folders camera"),
    (["bias", "disk"], "--folders camera"),
    (["search", "s", "a man", "--tokenizer", "clip"], "goes with --weights FILE")])
def test_wrong_calls_on_shards_and_cameras(on_disk, capsys, monkeypatch, args, message):
    monkeypatch.chdir(on_disk)
    if not (on_disk/"plain").exists():
        e = Embeddings.load(on_disk/"f")
        for name in ("plain", "plain.npz"): Embeddings(e.emb, e.pid).save(name)
        write_shards(Embeddings(e.emb, e.pid), "disk")
    code, out, err = said(capsys, *args)
    assert code == 2 and message in err and err.count("\n") == 1, err


def test_columns_that_say_nothing():
    from reid_lab.cli.crops import empty_columns
    e = Embeddings(np.eye(3, dtype="f4"), [-1]*3, [0, 1, 1], columns=dict(site=[0, 0, 0], scenario=["", "x", ""],
                                                                         view=["ground"]*3, domain=["", "", ""]))
    assert empty_columns(e) == ["site", "view", "domain", "pid"]


def test_progress_counts_all_images(folder, tmp_path, monkeypatch):
    told = tmp_path/"told.jsonl"
    told.touch()
    monkeypatch.setenv("REID_LAB_PROGRESS", str(told))
    C.embed_crops(crops_table(folder), "clip_tiny", tmp_path/"f", C.CropOptions(batch_size=5))
    said = [json.loads(line) for line in told.read_text("utf-8").splitlines()]
    assert {r["total"] for r in said if r["label"] == "images"} == {24} and said[-1]["n"] == 24


# ---- what a file says of its place

@pytest.mark.parametrize("out, more", [("f.npz", []), ("f", []), ("f.safetensors", []), ("s", ["--shards"])])
def test_features_move_with_their_images(tmp_path, monkeypatch, out, more):
    write(tmp_path/"one"/"crops", [f"{i}.png" for i in range(4)])
    own_weights(tmp_path/"one"/"own.pth", n_ids=1)
    monkeypatch.chdir(tmp_path/"one")
    call = ["embed", "crops", "--model", "bot_tiny", "--weights", "own.pth", "--out", out]
    assert main([*call, *more]) == 0
    files = [p for p in (tmp_path/"one").rglob("*") if p.is_file() and p.suffix not in (".png", ".pth")]
    assert files and not any(str(tmp_path).encode() in p.read_bytes() for p in files)
    assert all(p.stat().st_mode & 0o777 == 0o666 & ~umask() for p in files)
    monkeypatch.chdir(tmp_path)
    (tmp_path/"one").rename(tmp_path/"two")
    e = C.open_features(tmp_path/"two"/out)
    assert e.meta["root"] == str(tmp_path/"two"/"crops") and e.meta["weights"] == str(tmp_path/"two"/"own.pth")
    crop = str(tmp_path/"two"/"crops"/"1.png")
    assert main(["search", str(tmp_path/"two"/out), "--image", crop, "--html", "p.html"]) == 0
    assert "data:image" in (tmp_path/"p.html").read_text("utf-8")


def umask():
    now = os.umask(0)
    os.umask(now)
    return now


def test_whole_paths_of_earlier_versions_stay(folder, tmp_path):
    e = C.embed_crops(crops_table(folder), "bot_tiny", tmp_path/"f", quiet=True)
    table = json.loads((tmp_path/"f"/"table.json").read_text("utf-8"))
    assert table["meta"]["root"] == "./crops" and e.meta["root"] == str(folder)
    for place in (str(folder), "/data/market"):
        Embeddings(e.emb, e.pid, meta=dict(root=place)).save(tmp_path/"old.npz")
        assert Embeddings.load(tmp_path/"old.npz").meta["root"] == place


def test_one_model_for_several_folders(folder, tmp_path, monkeypatch):
    opened = C.open_embedder("clip_tiny")
    monkeypatch.setattr(C, "ready_model", None)
    for out in ("a", "b.npz"): C.embed_crops(crops_table(folder), opened, tmp_path/out, quiet=True)
    a, b = (Embeddings.load(tmp_path/out) for out in ("a", "b.npz"))
    assert a.meta == b.meta and a.meta["tokenizer_sum"] == opened.tokenizer_sum != ""


def test_words_need_the_tokenizer_of_the_features(folder, tmp_path):
    file, words = bare_weights(tmp_path)
    C.embed_crops(crops_table(folder), C.open_embedder("clip_tiny", file, words), tmp_path/"f", quiet=True)
    vocab = (words/"vocab.txt").read_text("utf-8").split("\n")
    vocab[-3], vocab[-2] = vocab[-2], vocab[-3]
    (words/"vocab.txt").write_text("\n".join(vocab), "utf-8")
    with pytest.raises(ValueError, match="has another tokenizer than the features"): C.search(tmp_path/"f", "a man")


def test_facts_of_earlier_versions(folder, tmp_path):
    "Before 0.3 `weights` was a name or the folder of a training, and `file` the weights"
    file, words = bare_weights(tmp_path)
    opened = C.open_embedder("clip_tiny", file, words)
    e = C.embed_crops(crops_table(folder), opened, tmp_path/"f", quiet=True)
    earlier = {k: v for k, v in e.meta.items() if k != "model_name"} | dict(weights="clip_tiny", file=str(file))
    assert C.noted_model(earlier) == C.noted_model(e.meta) == ("clip_tiny", str(file), str(words), "")
    before = Embeddings(e.emb, e.pid, path=e.path, meta=earlier)
    for features in (before, e): assert C.search(features, "a man", k=2).table().path.tolist() == \
        C.search(e, "a man", k=2).table().path.tolist()
    assert C.noted_model(dict(weights="/runs/seed-0")) == ("/runs/seed-0", "", "", "")
    assert len(C.matches(before, e).result.index) == len(e)          # one model, however it is noted


def test_shards_that_an_earlier_version_has_begun(folder, tmp_path):
    file = own_weights(tmp_path/"own.pth", n_ids=1)
    for model, facts in ((C.open_embedder("bot_tiny"), dict(weights="bot_tiny")),
                         (C.open_embedder("bot_tiny", file), dict(weights="bot_tiny", file=str(file)))):
        out, table = tmp_path/f"s{len(facts)}", crops_table(folder)
        data = {k: model.facts(table)[k] for k in ("data", "root")}
        embed_shards(model.net, table, out, rows=10, meta=facts | data)
        shutil.rmtree(next(p for p in out.iterdir() if p.is_dir()))
        done = C.crops_to_shards(table, model, out, rows=10)
        assert len(done) == 24 and C.noted_model(done.meta).name == "bot_tiny"


def test_arguments_of_the_last_release(folder, tmp_path):
    file, words = bare_weights(tmp_path)
    table = crops_table(folder)
    now = C.embed_crops(table, C.open_embedder("clip_tiny", file, words), tmp_path/"now", quiet=True)
    with pytest.warns(DeprecationWarning) as caught:
        e = C.embed_crops(table, "clip_tiny", tmp_path/"a", file, tokenizer=words, batch_size=5, quiet=True)
        C.crops_to_shards(table, "clip_tiny", tmp_path/"b", weights=file, tokenizer=words, batch_size=5)
    said = " ".join(str(w.message) for w in caught)
    assert "write open_embedder(model, weights=..., tokenizer=...) as the model" in said
    assert "options=CropOptions(batch_size=...)" in said and {w.filename for w in caught} == {__file__}
    assert torch.allclose(e.emb, now.emb, atol=1e-6) and e.meta == now.meta


@pytest.mark.parametrize("given", [dict(weights="w.safetensors"), dict(tokenizer="clip"), dict(device="cpu")])
def test_what_opens_a_model_is_refused_beside_an_open_one(folder, tmp_path, given):
    (name, value), opened = *given.items(), C.open_embedder("clip_tiny")
    message = f"{name}='{value}': model is the Embedder 'clip_tiny', which is open"
    with pytest.raises(ValueError, match=message): C.open_embedder(opened, **given)
    with pytest.raises(ValueError, match=message), pytest.warns(DeprecationWarning):
        C.embed_crops(crops_table(folder), opened, tmp_path/"f", quiet=True, **given)
    assert not (tmp_path/"f").exists()
    if name == "device": return
    with pytest.raises(ValueError, match=message): C.embed_once(folder, opened, **given)
    with pytest.raises(ValueError, match=f"{name}='{value}': model is a module CLIPPair, which is open"):
        C.search(C.embed_once(folder, opened), "a man", model=C.ModelFiles(opened.net, **given))


def test_a_search_takes_files_beside_its_model_as_before(folder, tmp_path):
    net = C.open_embedder("bot_tiny").net
    e, file = C.embed_once(folder, "bot_tiny"), tmp_path/"w.safetensors"
    save_weights(net, file)
    ask = folder/"005.png"
    want = C.search(e, ask, 3, C.ModelFiles("bot_tiny", file)).result.index
    for old in (lambda: C.search(e, ask, 3, "bot_tiny", weights=file),
                lambda: C.search(e, ask, 3, "bot_tiny", None, file)):
        with pytest.warns(DeprecationWarning, match=r"^search: write model=ModelFiles\(..., weights=...\)") as caught:
            assert (old().result.index == want).all()
        assert {w.filename for w in caught} == {__file__}
    with pytest.raises(TypeError, match="put weights= into it"): C.search(e, ask, 3, C.ModelFiles(), weights=file)
    with pytest.raises(TypeError, match="weights= and weights by position"):
        C.search(e, ask, 3, None, None, file, weights=file)
    with pytest.raises(TypeError, match="five values by position"): C.search(e, ask, 3, None, None, file, None, True)
    with pytest.raises(TypeError, match="tokenizer=3 is of type int"): C.ModelFiles(tokenizer=3)


def test_a_module_is_no_model_to_open(folder, tmp_path):
    net = C.open_embedder("bot_tiny").net
    with pytest.raises(TypeError, match="model is a BoT; give a name.*Embedder"):
        C.embed_crops(crops_table(folder), net, tmp_path/"f")
    with pytest.raises(ValueError, match="is a BoT, which reads no captions"):
        C.open_embedder(C.Embedder(net, "mine"), reads="captions")
    with pytest.raises(ValueError, match="is a BoT, which reads no captions"):
        C.search(C.embed_once(folder, "bot_tiny"), "a man", model=net)


# ---- answers

def test_matches_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    a, b = (Embeddings(rng.normal(size=(n, 5)), [-1]*n) for n in (9, 7))
    pairs = C.match_table(C.matches(a, b, 2))
    unit = lambda e: e.emb.numpy()/np.linalg.norm(e.emb.numpy(), axis=1, keepdims=True)
    s = unit(a) @ unit(b).T
    for r in pairs.itertuples():
        order = np.argsort(-s[r.a])
        assert r.b == order[r.rank - 1] and r.score == pytest.approx(s[r.a, r.b])
        assert r.mutual == (r.rank == 1 and s[:, r.b].argmax() == r.a)
    assert len(pairs) == 18 and pairs.mutual.any() and not pairs.mutual.all()
    a.meta["checksum"], b.meta["checksum"] = "one", "another"
    with pytest.raises(ValueError, match="Embed both with one model"): C.matches(a, b)


def test_questions_need_the_model_of_the_gallery(folder, tmp_path):
    e = C.embed_crops(crops_table(folder), "bot_tiny", tmp_path/"f", quiet=True)
    with pytest.raises(ValueError, match="a BoT, which reads no captions; embed the crops again"):
        C.search(e, "a man")
    found = C.search(tmp_path/"f", folder/"005.png", k=2)
    assert "005.png" not in found.table().path.tolist() and found.itself == 1
    found = C.search(tmp_path/"f", shutil.copy(folder/"005.png", tmp_path/"asked.png"), k=2)
    assert found.table().path[0] == "005.png" and found.table().score[0] == pytest.approx(1, abs=1e-5)
    with pytest.raises(ValueError, match="do not say what embedded them"):
        C.search(Embeddings(e.emb, e.pid), folder/"005.png")
    with pytest.raises(ValueError, match="need one model"): C.search(e, folder/"005.png", model="agw_tiny")


# ---- the command line

@pytest.fixture(scope="module")
def features(tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    write(root/"crops", ["gate/a.png", "gate/<b onclick=alert(1)>.png", "hall/c.png", "hall/d.png"])
    args = ["embed", str(root/"crops"), "--model", "clip_tiny", "--out", str(root/"f")]
    assert main([*args, "--folders", "camera"]) == 0
    return root


def test_search_prints_and_writes(features, capsys):
    sentence, page = "a man <img src=x onerror=alert(1)>", features/"page.html"
    assert main(["search", str(features/"f"), sentence, "--json", "--html", str(page)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said[0]["question"] == sentence and len(said[0]["results"]) == 4 and said[0]["present"] is None
    text = page.read_text("utf-8")
    assert "<img src=x" not in text and "<b onclick" not in text and "https:" not in text and "http:" not in text
    assert main(["search", str(features/"f"), sentence, "--html", str(page)]) == 2
    assert "--fresh" in capsys.readouterr().err


def test_not_present_below_a_threshold(features, capsys):
    Threshold(.9999, .1, .1, 10, 10, gallery=4).save(features/"t.json")
    crop = str(shutil.copy(features/"crops/hall/c.png", features/"asked.png"))
    assert main(["search", str(features/"f"), "--image", crop, "--threshold", str(features/"t.json"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)[0]
    assert said["present"] is True and [r["accepted"] for r in said["results"]] == [True, False, False, False]
    assert main(["search", str(features/"f"), "a man", "--threshold", str(features/"t.json")]) == 0
    assert "nobody clears the threshold" in capsys.readouterr().out


def test_match_of_two_folders(features, capsys):
    args = ["match", str(features/"crops/gate"), str(features/"crops/gate"), "--model", "clip_tiny"]
    assert main([*args, "--out", str(features/"pairs.csv"), "--html", str(features/"m.html")]) == 0
    assert "2 are each other's best" in capsys.readouterr().out
    assert pd.read_csv(features/"pairs.csv").mutual.all()
    assert main(args[:3]) == 2 and "--model says what embeds it" in capsys.readouterr().err


def test_calibrate(tmp_path, capsys):
    rng = np.random.default_rng(0)
    pid = np.arange(60) % 30
    centre = rng.normal(size=(30, 8))
    for n in "qg": Embeddings(centre[pid] + .3*rng.normal(size=(60, 8)), pid).save(tmp_path/f"{n}.npz")
    args = ["calibrate", str(tmp_path/"q.npz"), str(tmp_path/"g.npz"), "--rate", ".1", "--out", str(tmp_path/"t.json")]
    assert main(args) == 0 and Threshold.load(tmp_path/"t.json").reached <= .1
    assert main(args) == 2 and "--fresh" in capsys.readouterr().err


def test_sentences_have_a_threshold_of_their_own(tmp_path, capsys):
    table, root = World("smoke", task="text").table().where(split="test"), tmp_path/"crops"
    root.mkdir()
    rows = [dict(path=f"{i}.png", pid=f"p{table['pid'][i]}", caption=table["captions"][i][0]) for i in range(40)]
    for i in range(40): Image.fromarray(table.image(i)).save(root/f"{i}.png")
    pd.DataFrame(rows).to_csv(root/"m.csv", index=False)
    call = lambda *words: main([str(root/w) if w in ("m.csv", "g", "q", "i.json", "t.json") else w for w in words])
    assert call("embed", "m.csv", "--model", "clip_tiny", "--out", "g") == 0
    assert call("embed", "m.csv", "--captions", "--model", "clip_tiny", "--out", "q") == 0
    e = Embeddings.load(root/"g")
    names = dict(pid_name=e.columns["pid_name"])
    Embeddings(e.emb, e.pid, meta=dict(model=e.meta["model"], kind="image"), columns=names).save(root/"copy.npz")
    assert "40 captions" in capsys.readouterr().out
    for asked, out in ((str(root/"copy.npz"), "i.json"), ("q", "t.json")):
        assert call("calibrate", asked, "g", "--rate", ".2", "--out", out) == 0
    found = C.search(root/"g", rows[3]["caption"], threshold=root/"t.json")
    assert found.threshold.question_kind == "text" and Threshold.load(root/"i.json").question_kind == "image"
    capsys.readouterr()
    assert call("search", "g", "a man", "--threshold", "i.json") == 2
    assert "calibrate one with sentences" in capsys.readouterr().err
    assert call("search", "g", "--image", str(root/"3.png"), "--threshold", "t.json") == 2
    assert "calibrate one with images" in capsys.readouterr().err


@pytest.mark.parametrize("args, message", [
    (["search", "F"], "nothing is asked"), (["search", "F", "x", "--image", "y.png"], "not both"),
    (["search", "none", "x"], "does not exist"), (["search", "F", "--image", "none.png"], "none.png"),
    (["embed", "none", "--model", "clip_tiny", "--out", "O"], "does not exist"),
    (["embed", "F/..", "--model", "clip", "--out", "O"], "Did you mean"),
    (["embed", "F/../crops", "--model", "clip_tiny", "--out", "F"], "--fresh"),
    (["embed", "F/../crops", "--model", "bot_r50", "--out", "O"], "--weights FILE"),
    (["embed", "F/../crops", "--model", "clip_tiny", "--out", "O", "--pattern", r"x(?P<pid>\d)"], r"x(?P<pid>\d) fits"),
    (["embed", "F/../crops", "--model", "clip_tiny", "--out", "O", "--pattern", r"x(?P<pid>\d)"], "pass --skip"),
    (["embed", "F/../crops", "--model", "clip_tiny", "--out", "O", "--folders", "cam"], "--folders cam")])
def test_wrong_calls_say_what_to_do(features, tmp_path, capsys, args, message):
    out = tmp_path/"o"
    args = [str(features/a.replace("F", "f", 1)) if a[0] == "F" else str(out) if a == "O" else a for a in args]
    assert main(args) == 2
    err = capsys.readouterr().err
    assert message in err and "Traceback" not in err and not out.exists() and not list(tmp_path.glob("*.parts"))


def test_captions_are_embedded_without_their_images(tmp_path, monkeypatch, capsys):
    "An image that cannot be read is no matter for captions, and the option for images is not advised"
    monkeypatch.chdir(tmp_path)
    write(tmp_path, ["a.png"])
    (tmp_path/"b.png").write_bytes(b"no image")
    pd.DataFrame(dict(path=["a.png", "b.png"], caption=["a red coat", "a blue bag"])).to_csv("m.csv", index=False)
    assert main(["embed", "m.csv", "--captions", "--model", "clip_tiny", "--out", "q.npz"]) == 0
    assert len(Embeddings.load("q.npz", need=())) == 2 and "--skip-bad" not in capsys.readouterr().err
    assert main(["embed", "m.csv", "--model", "clip_tiny", "--out", "g.npz"]) == 2
    assert "--skip-bad" in capsys.readouterr().err


def test_captions_with_unknown_words_are_counted_once(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    captions = [f"a red coat, qwrtz{i % 3}" if i % 2 else "a red coat" for i in range(12)]
    pd.DataFrame(dict(path=[f"{i}.png" for i in range(12)], caption=captions)).to_csv("m.csv", index=False)
    args = ["embed", "m.csv", "--captions", "--model", "clip_tiny", "--out", "q.npz", "--batch-size", "4"]
    assert main(args) == 0
    noted = [line for line in capsys.readouterr().err.splitlines() if "unknown to the tokenizer" in line]
    assert len(noted) == 1 and "6 of 12 texts" in noted[0]
    assert main([*args[:-4], "--out", "text.npz"]) == 0
    assert "6 of 12 texts" in capsys.readouterr().err


def test_an_unknown_camera_is_not_printed(tmp_path, monkeypatch, capsys):
    "Features of other programs may know the camera of some images only"
    monkeypatch.chdir(tmp_path)
    write(tmp_path/"crops", ["a.png", "b.png"])
    assert main(["embed", "crops", "--model", "bot_tiny", "--out", "g.npz"]) == 0
    e = Embeddings.load("g.npz", need=())
    e.cam = np.array([5, -1])
    e.save("g.npz")
    capsys.readouterr()
    assert main(["search", "g.npz", "--image", "crops/b.png"]) == 0
    assert re.findall(r"camera \S+", capsys.readouterr().out) == ["camera 5"]


# ---- names of the package

def test_names_of_the_package():
    import reid_lab as rl
    for name in rl.__all__:
        value = getattr(rl, name)
        assert callable(value) and inspect.getdoc(value) and name in dir(rl), name
    assert "\nthreshold: `Threshold`, or its file" in inspect.getdoc(rl.search)
    assert re.findall(r"rl\.(\w+)", rl.__doc__.split("\n\n", 2)[2]) == rl.__all__
    with pytest.raises(AttributeError, match="'retrieval_metrics'"): rl.metric


def test_names_are_loaded_when_they_are_used():
    code = ("import sys, reid_lab as rl\nassert 'torch' not in sys.modules\nrl.ReidTable\n"
            "assert 'reid_lab.data.table' in sys.modules and 'reid_lab.tta.base' not in sys.modules; "
            "print(rl.run.__name__)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "run_notebook\n"


# ---- names

def test_names_of_two_folders_are_one_numbering(tmp_path, capsys):
    "`ann` and `bob` are 0 and 1 in one folder, `bob` and `cid` in the other; scores follow the names"
    for side, people in (("q", ["ann", "bob", "cid", "dan"]), ("g", ["bob", "cid", "dan", "eve"])):
        cams = ["hall", "roof"] if side == "q" else ["gate", "hall"]
        write(tmp_path/"crops"/side, [f"{c}/{p}/{i}.png" for c in cams for p in people for i in range(2)])
        for out, more in ((side, []), (side + "s", ["--shards"])):
            assert main(["embed", str(tmp_path/"crops"/side), "--model", "bot_tiny", "--out", str(tmp_path/out),
                         "--folders", "camera/identity", *more]) == 0
    q, g = (Embeddings.load(tmp_path/s) for s in "qg")
    both = lambda c: {n: i for i, n in enumerate(sorted({*q.columns[c], *g.columns[c]}))}
    whom, where = both("pid_name"), both("cam_name")
    want = retrieval_metrics(*(Embeddings(e.emb, [whom[n] for n in e.columns["pid_name"]],
                                          [where[n] for n in e.columns["cam_name"]]) for e in (q, g)))
    misled = retrieval_metrics(*(Embeddings(e.emb, e.pid, e.cam) for e in (q, g)))["mAP"]
    assert (q.pid == g.pid).any() and want["mAP"] != pytest.approx(misled)
    assert retrieval_metrics(q, g)["mAP"] == pytest.approx(want["mAP"])
    assert bias_report(q, g, map_method="none", quiet=True).notes[-1] == "Cameras: 0 is gate, 1 is hall, 2 is roof."
    assert set(adapt_embeddings(CameraNorm(), q, g)[0].cam) == {1, 2}
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*do not agree")
        assert retrieval_metrics(*one_numbering(q, g))["mAP"] == pytest.approx(want["mAP"])
    capsys.readouterr()
    for a, b in (("q", "g"), ("q", "gs"), ("qs", "gs")):
        code, out, _ = said(capsys, "metrics", tmp_path/a, tmp_path/b, "--json")
        assert code == 0 and json.loads(out)["mAP"] == pytest.approx(want["mAP"], abs=.5)
    out = said(capsys, "metrics", tmp_path/"q", tmp_path/"g")[1]
    assert "which do not count (not in the gallery: 4)" in out and want["n_skipped"] == 4
    out = said(capsys, "bias", tmp_path/"q", tmp_path/"gs")[1]
    assert out.rstrip().endswith("Cameras: 0 is gate, 1 is hall, 2 is roof.")
    crop = shutil.copy(tmp_path/"crops"/"g"/"gate"/"bob"/"0.png", tmp_path/"asked.png")
    out = said(capsys, "search", tmp_path/"g", "--image", crop, "-k", 1)[1]
    assert "person bob  camera gate" in out


def test_metrics_of_nobody_say_where_identities_come_from(on_disk, capsys, monkeypatch):
    monkeypatch.chdir(on_disk)
    e = Embeddings.load("f")
    Embeddings(e.emb, [-1]*len(e), e.cam).save("nobody")
    code, _, err = said(capsys, "metrics", "nobody", "f")
    assert code == 2 and "nobody knows nobody" in err and "--folders identity" in err


@pytest.fixture
def page_of(folder, tmp_path, capsys):
    "Function that searches in features of `folder` by `000.png` and returns what is printed and said of the page"
    features, crop = str(tmp_path/"f.safetensors"), str(folder/"000.png")
    assert main(["embed", str(folder), "--out", features, "--model", "bot_tiny"]) == 0

    def page():
        capsys.readouterr()
        assert main(["search", features, "--image", crop, "--model", "bot_tiny", "-k", "23", "--fresh",
                     "--html", str(tmp_path/"p.html")]) == 0
        return capsys.readouterr()

    return page


def _later(path): os.utime(path, ns=(time.time_ns() + 10**10,)*2)


def test_a_page_of_unchanged_images_says_nothing(page_of):
    assert "images shown" not in page_of().err


@pytest.mark.parametrize("change, said", [
    (lambda f: (f/"004.png").unlink(), ["1 of the images shown cannot be read", "004.png"]),
    (lambda f: (f/"004.png").write_bytes(b"no image"), ["1 of the images shown cannot be read", "004.png"]),
    (lambda f: _later(f/"005.png"), ["1 of the images shown was written after the features", "005.png"]),
    (lambda f: [_later(f/"005.png"), _later(f/"006.png")], ["2 of the images shown were written after", "005.png"])])
def test_a_page_says_which_images_are_not_those_that_were_embedded(folder, page_of, change, said):
    change(folder)
    err = page_of().err
    assert all(part in err for part in said)


def test_a_name_with_an_end_of_line_stays_on_one_line(folder, page_of, tmp_path, capsys):
    os.rename(folder/"001.png", folder/"one\nmore.png")
    assert main(["embed", str(folder), "--out", str(tmp_path/"f.safetensors"), "--model", "bot_tiny", "--fresh"]) == 0
    assert "one\\nmore.png" in page_of().out
    (folder/"one\nmore.png").write_bytes(b"no image")
    arguments = ["embed", str(folder), "--out", str(tmp_path/"g.safetensors"), "--model", "bot_tiny"]
    assert main([*arguments, "--skip-bad"]) == 0
    assert all(line.startswith("left out: ") for line in capsys.readouterr().err.splitlines() if "more.png" in line)
    assert main([*arguments, "--fresh"]) == 2 and "--skip-bad to leave them out" in capsys.readouterr().err


def test_people_that_nobody_knows_are_counted(tmp_path, capsys):
    write(tmp_path/"crops", [f"{i}.png" for i in range(4)])
    rows = pd.DataFrame(dict(path=[f"{i}.png" for i in range(4)], pid=["ann", "", "bob", ""]))
    rows.to_csv(tmp_path/"list.csv", index=False)
    assert main(["embed", str(tmp_path/"list.csv"), "--root", str(tmp_path/"crops"), "--model", "bot_tiny",
                 "--out", str(tmp_path/"f.safetensors")]) == 0
    assert "2 identities (2 rows of unknown ones)" in capsys.readouterr().out


def test_a_page_of_a_folder_of_features_notices_a_changed_image(folder, tmp_path, capsys):
    features, crop = str(tmp_path/"features"), str(folder/"000.png")
    assert main(["embed", str(folder), "--out", features, "--model", "bot_tiny"]) == 0
    _later(folder/"007.png")
    assert main(["search", features, "--image", crop, "--model", "bot_tiny", "-k", "23",
                 "--html", str(tmp_path/"p.html")]) == 0
    assert "1 of the images shown was written after the features" in capsys.readouterr().err
