"""What version 0.1 (commit b21f2a6) wrote is opened and continued: a small one of everything that users keep.

`tests/vectors/written_by_0_1/make.py` made the files with that commit; each test works on a copy of them.
"""
import importlib.util
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

HERE = Path(__file__).resolve().parents[1]/"vectors"/"written_by_0_1"


@pytest.fixture(scope="session")
def make():
    "The program that made them, with its imports of 0.1: its World, its `Learner`, its job of a sweep"
    spec = importlib.util.spec_from_file_location("old_make", HERE/"make.py")
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def expected(): return json.loads((HERE/"files"/"expected.json").read_text())


@pytest.fixture
def old(tmp_path, monkeypatch, make):
    "A copy of everything; times of change are not kept by git and are set again"
    folder = tmp_path/"old"
    shutil.copytree(HERE/"files", folder)
    for image in (folder/"crops").iterdir(): os.utime(image, ns=(make.CROP_TIME, make.CROP_TIME))
    for name, value in dict(CACHE=folder/"cache", RESULTS=folder/"results.csv").items():
        monkeypatch.setenv(f"REID_LAB_{name}", str(value))
    return folder


def close(a, b): return json.loads(json.dumps(a)) == b or np.allclose(a, b, atol=1e-4)


def same_training(done, want, make):
    "Counts exactly, losses but for rounding on other processors (it moved one of 400 steps by 4e-3)"
    got = make.told(done)
    assert (got["steps"], got["images"]) == (want["steps"], want["images"])
    assert got["last"] == pytest.approx(want["last"], abs=1e-2)


def test_world(old, expected, make):
    want, before = expected["world"], {p: p.stat().st_mtime_ns for p in (old/"cache").rglob("*")}
    world = make.little_world()
    assert world.key == want["key"]
    table = world.table()
    assert {p: p.stat().st_mtime_ns for p in (old/"cache").rglob("*")} == before      # nothing was rendered or written
    images = np.stack([table.image(i) for i in range(len(table))])
    assert make.checksum(dict(images=torch.from_numpy(images))) == want["images"]
    assert make.checksum_of(table["captions"].tolist()) == want["captions"]
    for c in ("path", "pid", "cam"): assert table[c].tolist() == want[c]


def test_trained_folders(old, expected, make):
    from reid_lab.recipes.crops import ready_model
    from reid_lab.recipes.text import load_text
    from reid_lab.retrieval.embeddings import embed_images
    from reid_lab.retrieval.metrics import retrieval_metrics
    from reid_lab.training.folder import load_trained
    done = load_trained(old/"run-finished"/"models"/"bot")
    assert make.told(done) == expected["run-finished"]["trained"]
    assert make.told(load_text(old/"text")) == expected["text"]
    name, model = ready_model(old/"run-finished")
    table = make.little_world().table()
    q, g = (embed_images(model, t, quiet=True) for t in (table.query("test"), table.gallery("test")))
    assert retrieval_metrics(q, g, junk="cam") == pytest.approx(expected["features"]["scores"])
    name, model = ready_model(old/"text", "captions")


def test_a_stopped_text_training_is_the_same_training(old, expected, make):
    "Its key, with all settings, tokenizer and images, is what today's code would write"
    from reid_lab.recipes.text import train_text
    done = train_text(make.little_world("text").table(), "smoke", 0, old/"text", quiet=True, **make.TEXT)
    same_training(done, expected["text"], make)


def test_learner_state(old, expected, make):
    learn, save = make.learner(old/"learner")
    assert save.resume(learn) and learn.step == 4
    got, want = make.learned(learn.fit(steps=11)), expected["learner"]
    assert got["step"] == want["step"] and len(got["scores"]) == len(want["scores"])
    # Rounding of another processor moved the last score by 3e-4; an optimiser that begins anew moves it by 7e-3.
    for a, b in zip(got["scores"] + got["log"], want["scores"] + want["log"]): assert a == pytest.approx(b, abs=1e-3)


def test_interrupted_run(old, expected, make):
    from reid_lab.experiments.notebooks import run_notebook
    from reid_lab.experiments.run import earlier_run
    from reid_lab.training.folder import load_trained
    assert earlier_run(old/"run-interrupted")["status"] == "interrupted"
    first = (old/"run-interrupted"/"models"/"bot"/"log.jsonl").read_text().splitlines()
    done = run_notebook(old/"little.ipynb", old/"run-interrupted", make.STOPPED)
    same_training(load_trained(done.folder/"models"/"bot"), expected["run-interrupted"]["trained"], make)
    again = (old/"run-interrupted"/"models"/"bot"/"log.jsonl").read_text().splitlines()
    assert again[:4] == first[:4]       # with their seconds: these steps were not trained again
    assert [r["variant"] for r in done.rows] == ["bot"]


def test_finished_run(old, expected, make):
    from reid_lab.experiments.notebooks import run_notebook
    from reid_lab.experiments.run import earlier_run
    from reid_lab.results.rows import load_results, run_table
    assert earlier_run(old/"run-finished")["status"] == "finished"
    with pytest.raises(FileExistsError, match="holds a finished run"):
        run_notebook(old/"little.ipynb", old/"run-finished", make.FINISHED)
    rows = load_results()
    assert len(rows) == 4 and set(rows.run) >= {"run-finished"} and len(run_table(rows)) == 4
    mine, want = rows[rows.run == "run-finished"].iloc[0], expected["run-finished"]["rows"][0]
    assert {k: mine[k] for k in want} == want


@pytest.mark.whole
def test_an_experiment_of_the_package_goes_on(old):
    "The key of its training, the digest of its tests and its parameters are those of today's code"
    from reid_lab.experiments.notebooks import run_notebook
    done = run_notebook("dmg", old/"dmg-interrupted", preset="smoke", methods="bot")
    assert done.metrics["status"] == "finished" and len(done.rows) == 3


def count(sweep_job):
    "A job that counts how often it is called"
    calls = []
    def job(**kw):
        calls.append(kw)
        return sweep_job(**kw)
    return job, calls


def test_sweeps(old, expected, make):
    from reid_lab.experiments.sweep import sweep
    for name, job, grid, seeds in (("sweep-function", make.gain, dict(step=[0, 2]), [0]),
                                   ("sweep-notebook", old/"little.ipynb", dict(lr=[.005, .01]), [5])):
        had = {p: p.stat().st_mtime_ns for p in (old/name).glob("*.json")}
        assert len(had) == 1
        rows = make.rows_of(sweep(job, grid, seeds=seeds, n_jobs=1, folder=old/name))
        now = {p: p.stat().st_mtime_ns for p in (old/name).glob("*.json")}
        assert len(now) == 2 and all(now[p] == t for p, t in had.items())       # the first was not run again
        assert rows[0] == expected[name][0] and len(rows) == len(expected[name])
        for a, b in zip(rows, expected[name]): assert set(a) == set(b) and a["status"] == "ok"


def test_features(old, expected):
    from reid_lab.retrieval.embeddings import Embeddings
    from reid_lab.retrieval.metrics import retrieval_metrics
    from reid_lab.retrieval.shards import open_embeddings
    want, g = expected["features"], Embeddings.load(old/"features"/"gallery.safetensors")
    for name in ("query", "query.npz", "query.safetensors"):
        q = open_embeddings(old/"features"/name)
        assert retrieval_metrics(q, g, junk="cam") == pytest.approx(want["scores"])
        assert sorted(q.columns) == want["columns"] and q.meta == want["meta"]


def test_shards_and_index(old, expected, make):
    from reid_lab.retrieval.embeddings import Embeddings
    from reid_lab.retrieval.index import Index
    from reid_lab.retrieval.ranking import rank
    from reid_lab.retrieval.shards import Shards, embed_shards
    from reid_lab.training.folder import load_trained
    want, g, q = expected["shards"], Shards(old/"shards"), Embeddings.load(old/"features"/"query")
    assert (len(g), g.pid.tolist(), g.failed()) == (want["rows"], want["pid"], {})
    assert float(g.read().double().sum()) == pytest.approx(want["sum"])
    found, score = rank(q, g, 3)
    assert found.tolist() == want["first"] and np.allclose(score, want["score"], atol=1e-5)
    index = Index.load(old/"index", g)
    assert np.array_equal(index.search(q, 3)[0], found)
    model = load_trained(old/"run-finished"/"models"/"bot").model
    train = make.little_world().table().where(split="train")
    with pytest.warns(UserWarning, match="earlier version, which did not note size and time of the images"):
        written = embed_shards(model, train, old/"shards-begun", rows=8, dtype="float32")
    assert written == 1     # one of two was missing
    assert torch.allclose(Shards(old/"shards-begun").read(), g.read(), atol=1e-5)


def test_crops(old, expected, make):
    from reid_lab.data.crops import crops_table
    from reid_lab.recipes.crops import embed_crops, open_threshold, search
    from reid_lab.retrieval.embeddings import Embeddings
    want = expected["crops"]
    e = Embeddings.load(old/"crop-features", need=())
    assert e.path == want["path"] and float(e.emb.double().sum()) == pytest.approx(want["sum"])
    found = search(old/"crop-features", "a woman with a white bag", k=3).table()
    assert found.path.tolist() == want["first"] and np.allclose(found.score, want["score"], atol=1e-4)
    from dataclasses import asdict
    kind = expected["threshold"].pop("asked")       # of its file; the field has another name now
    assert asdict(open_threshold(old/"threshold.json")) == expected["threshold"] | dict(
        question_kind=kind, alarms=None, misses=None)       # rates that it did not note
    part = (old/"crop-features-begun.parts"/"0-4"/"features"/"emb.safetensors").stat().st_mtime_ns
    assert not (old/"crop-features-begun").exists() and part
    done = embed_crops(crops_table(old/"crops"), str(old/"run-finished"/"models"/"bot"), old/"crop-features-begun",
                       batch_size=4, quiet=True)
    assert len(done) == 8 and not (old/"crop-features-begun.parts").exists()


def test_image_cache(old, expected):
    "Entries are named by the absolute path of an image, so that this one is moved to the name that it has here"
    import hashlib

    from reid_lab.data.images import ImageCache
    image, kept = old/"crops"/"0.jpg", next(p for p in (old/"image-cache").rglob("*") if p.is_file())
    name = hashlib.sha256(os.fsencode(os.path.abspath(image))).hexdigest()[:32]
    entry = old/"image-cache"/"8x8-bicubic-pil"/name[:3]/name[3:]
    entry.parent.mkdir(exist_ok=True)
    kept.rename(entry)
    before = entry.stat()
    pixels = ImageCache(old/"image-cache").read(image, (8, 8))
    assert pixels.tolist() == expected["crops"]["resized"]
    after = entry.stat()
    assert (before.st_mtime_ns, before.st_ino) == (after.st_mtime_ns, after.st_ino)     # read, not written again


def test_records(old, expected, make):
    from reid_lab.analysis.caption_audit import AuditImages, measure_audit
    from reid_lab.analysis.tags import read_tags
    from reid_lab.data.table import ReidTable
    from reid_lab.datasets.captioning.rules import Rates
    assert read_tags(old/"tags.json").key.tolist() == ["q-1", "q-2"]
    table = ReidTable.load(old/"table.csv", old)
    assert table["captions"].tolist() == expected["table"]
    path = old/"captions"/"world-0-audit-0.2.jsonl"
    before = path.read_text().splitlines()
    frame = measure_audit([0], old/"captions", Rates(), (.2,), images=AuditImages(3), quiet=True)
    after = path.read_text().splitlines()
    assert after[:len(before) - 1] == before[:-1] and len(after) == len(before)     # the last was cut
    assert json.loads(json.dumps(frame.to_dict("records"))) == expected["captions"]
