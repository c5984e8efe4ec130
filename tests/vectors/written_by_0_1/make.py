"""Small artefacts of every kind that users keep, as reid_lab 0.1.0 (commit b21f2a6) wrote them.

    python make.py FOLDER        with that commit on the Python path; half a minute, FOLDER must not exist

The test beside it opens and continues all of them with today's code. They are not made again: another commit would write
what another commit writes. `NOTES.md` says which call opens each, and `expected.json` what must come out.
"""
import json
import os
import shutil
import signal
import sys
import threading
import time
import zlib
from dataclasses import asdict
from pathlib import Path

import nbformat
import numpy as np
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from PIL import Image

from reid_lab.analysis.search import calibrate, each_removed, search_scores
from reid_lab.analysis.tags import tag
from reid_lab.averages import Average
from reid_lab.captioning.rules import Rates
from reid_lab.captioning.run import measure_audit
from reid_lab.core import checkout
from reid_lab.data.crops import crops_table
from reid_lab.data.images import ImageCache
from reid_lab.embed_shards import embed_shards
from reid_lab.embeddings import embed_images
from reid_lab.experiment import run_notebook, sweep
from reid_lab.index import build_index
from reid_lab.learner import Callback, Checkpoint, Learner, Validate
from reid_lab.logs import TIMES, Log
from reid_lab.meta.dual_speed import DualSpeed, Task
from reid_lab.metrics import retrieval_metrics
from reid_lab.recipes import crops as own_crops
from reid_lab.recipes.text import train_text
from reid_lab.recipes.training import load_trained
from reid_lab.retrieval import rank
from reid_lab.shards import Shards
from reid_lab.weight_files import checksum
from reid_lab.world.world import Group, World

GROUPS = (Group("train", "real-like", ids=4, shots=4, cams=2),
          Group("val", "real-like", ids=2, shots=4, cams=2, role="first"),
          Group("test", "real-like", ids=4, shots=4, cams=2, role="first"))
SIZE = (16, 16)
TEXT = dict(model="dual_tiny", weights="none", batch_size=8, steps=20, vocab=200,
            model_kw=(("size", SIZE), ("widths", (2, 2, 4, 4)), ("text_width", 4)))
FINISHED, STOPPED = dict(seed=3), dict(seed=4, steps=400, lr=.0005)     # a state is written after 80 batches
CROP_TIME = 1_700_000_000*10**9                 # of change, in nanoseconds: what is embedded is known by it
HOME = "/home/somebody/old"                     # in the place of folders of the machine that made this


# --- Worlds, trainings

def little_world(task="reid"):
    "The World in the folder `cache` (that is what REID_LAB_CACHE names)"
    return World("smoke", task=task, size=SIZE, groups=GROUPS)


def told(training):
    "What is compared of a training: its weights and its last losses"
    last = {k: v for k, v in training.log[-1].items() if k not in TIMES}
    return dict(weights=checksum(training.model.state_dict()), steps=training.steps, images=training.images, last=last)


class Net(torch.nn.Module):
    "A classifier with dropout, which draws from the global generator, and BatchNorm"
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.drop = torch.nn.Linear(3, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(.3)
        self.b = torch.nn.Linear(6, 2)

    def forward(self, batch):
        h = self.drop(self.norm(self.a(batch["img"])).relu())
        return dict(id_loss=torch.nn.functional.cross_entropy(self.b(h), batch["pid"]), emb=h)


class Blobs:
    "Four batches an epoch of two classes"
    def __len__(self): return 4

    def epoch(self, e, start=0):
        for i in range(start, 4):
            g = torch.Generator().manual_seed(10*e + i)
            pid = torch.arange(8) % 2
            yield dict(img=torch.randn(8, 3, generator=g) + 2*pid[:, None], pid=pid)


class Noise(Task):
    "Draws from the step's own generator"
    def __call__(self, batch, rng): return {**batch, "img": batch["img"]*float(rng.uniform(.5, 1.5))}


class StopAt(Callback):
    "Ends a training early"
    def __init__(self, step): self.step = step

    def after_step(self, learn): learn.stop = learn.step == self.step


def error(net): return dict(mAP=-float(net(next(Blobs().epoch(9)))["id_loss"].detach()))


def learner(folder, stop=0):
    "A `Learner` with state in everything that can have one, and its `Checkpoint`"
    save = Checkpoint(folder, every=4, keep=1)
    callbacks = [Log(None, 2, quiet=True), Average(1, "ema", .7), Validate(error, every=3, unit="step"), save, StopAt(stop)]
    learn = Learner(Net(), Blobs(), DualSpeed([Task(), Noise()], iters_per_task=1), callbacks, lr=.03, clip=1.,
                    device="cpu", schedule=lambda step: 1/(1 + step))
    return learn, save


def learned(learn):
    "What is compared of a `Learner` at its end"
    return dict(weights=checksum(learn.net.state_dict()), step=learn.step,
                scores=learn.cbs[2].rows, log=[{k: v for k, v in r.items() if k not in TIMES} for r in learn.cbs[0].rows])


def make_trainings(out):
    "The folders `text` and `learner` -> what is expected of them"
    words = train_text(little_world("text").table(), "smoke", 0, out/"text", quiet=True, **TEXT)
    stopped, _ = learner(out/"learner", stop=6)
    stopped.fit(steps=11)
    whole, _ = learner(out/"learner-whole")
    whole.fit(steps=11)
    shutil.rmtree(out/"learner-whole")
    return dict(text=told(words), learner=learned(whole))


# --- Features

def make_features(out):
    "Embeddings in three forms, shards, an index and a threshold -> what is expected of them"
    table, model = little_world().table(), load_trained(out/"run-finished"/"models"/"bot").model
    q, g = (embed_images(model, t, quiet=True) for t in (table.query("test"), table.gallery("test")))
    for name in ("query", "query.npz", "query.safetensors"): q.save(out/"features"/name)
    g.save(out/"features"/"gallery.safetensors")
    train = table.where(split="train")
    embed_shards(model, train, out/"shards", rows=8, dtype="float32")
    shutil.copytree(out/"shards", out/"shards-begun")
    shutil.rmtree(out/"shards-begun"/"000001")       # as if its writer had been stopped
    shards = Shards(out/"shards")
    build_index(shards, lists=2, probe=2).save(out/"index")
    threshold = calibrate(each_removed(search_scores(q, g)), .5)
    threshold.save(out/"threshold.json")
    found, score = rank(q, shards, 3)
    return dict(features=dict(scores=retrieval_metrics(q, g, same_camera="drop"), columns=sorted(q.columns), meta=q.meta),
                shards=dict(rows=len(shards), sum=float(shards.read().double().sum()), pid=shards.pid.tolist(),
                            first=found.tolist(), score=score.tolist()),
                threshold=asdict(threshold))


def make_crops(out):
    "A folder of eight crops, features of it that are finished and begun, and a cache of one resized image"
    table = little_world().table().gallery("test")
    (out/"crops").mkdir()
    for i in range(8):
        path = out/"crops"/f"{i}.jpg"
        Image.fromarray(table.image(i)).save(path, quality=90)
        os.utime(path, ns=(CROP_TIME, CROP_TIME))
    crops = crops_table(out/"crops")
    done = own_crops.embed_crops(crops, "clip_tiny", out/"crop-features", quiet=True)
    begin_crops(crops, out)
    cache = ImageCache(out/"image-cache")
    resized = cache.read(out/"crops"/"0.jpg", (8, 8))
    found = own_crops.search(done, "a woman with a white bag", k=3)
    return dict(crops=dict(sum=float(done.emb.double().sum()), path=done.path, first=found.table().path.tolist(),
                           score=found.table().score.tolist(), resized=np.asarray(resized).tolist()))


def begin_crops(crops, out):
    "Features of which the last part is missing, since its images could not be read for a time"
    last = out/"crops"/"7.jpg"
    image, own_crops.SAVE_EVERY = last.read_bytes(), 0.
    try:
        last.write_bytes(bytes(len(image)))
        os.utime(last, ns=(CROP_TIME, CROP_TIME))
        own_crops.embed_crops(crops, str(out/"run-finished"/"models"/"bot"), out/"crop-features-begun", batch_size=4, quiet=True)
    except ValueError: pass
    finally:
        last.write_bytes(image)
        os.utime(last, ns=(CROP_TIME, CROP_TIME))
        own_crops.SAVE_EVERY = 10.


# --- Runs

TRAINS = """from reid_lab.experiment import start_run
from reid_lab.recipes.reid import evaluate_reid, train_reid
from reid_lab.world.world import Group, World"""
WHAT = """groups = (Group('train', 'real-like', ids=4, shots=4, cams=2),
          Group('val', 'real-like', ids=2, shots=4, cams=2, role='first'),
          Group('test', 'real-like', ids=4, shots=4, cams=2, role='first'))
table = World('smoke', task='reid', size=(16, 16), groups=groups).table()
kw = (('size', (16, 16)), ('widths', (2, 2, 4, 4)))"""
RUN = """run = start_run('little', dict(preset=preset, lr=lr, steps=steps, seed=seed, out_dir=out_dir))
done = train_reid(table, 'smoke', seed, run.folder/'models'/'bot', steps=steps, lr=lr, model_kw=kw, batch_size=8, k=2,
                  optimiser='sgd', quiet=True)
run.record(evaluate_reid(done.model, table, 'test'), dataset='world-little', variant='bot', selection='last step',
           images_seen=done.images)
run.finish()"""


def little_notebook(path):
    "An experiment of a user: a small training and one scored row"
    given = "preset = 'quick'    # size\nlr = .005\nsteps = 20\nseed = 0\nout_dir = ''"
    cells = [new_markdown_cell("# Little\n> A small training"), new_code_cell(given, metadata=dict(tags=["parameters"])),
             *map(new_code_cell, (TRAINS, WHAT, RUN))]
    for i, cell in enumerate(cells): cell.id = f"cell-{i}"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def gain(step, seed):
    "A job of a sweep"
    return [dict(split="val", R1=40. + seed), dict(split="test", R1=40. + seed + step)]


def interrupt(when):
    "Ctrl-C for this process as soon as `when()` holds"
    def watch():
        while not when(): time.sleep(.005)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=watch, daemon=True).start()


def interrupted_run(name, folder, when, **params):
    "A run that Ctrl-C stops"
    interrupt(lambda: when(folder))
    try: run_notebook(name, folder, params)
    except KeyboardInterrupt: return
    raise AssertionError(f"{name} was not interrupted")


def make_runs(out):
    "A finished and an interrupted run, sweeps of which one job is missing, and the user's store of rows"
    little = little_notebook(out/"little.ipynb")
    done = run_notebook(little, out/"run-finished", FINISHED)
    begun = lambda folder: any(folder.glob("models/bot/state/step-*"))
    interrupted_run(little, out/"run-interrupted", begun, **STOPPED)
    dmg = lambda folder: any(folder.glob("models/*/model/training.json"))
    interrupted_run("dmg", out/"dmg-interrupted", dmg, preset="smoke", methods="bot")
    of_notebook = sweep(little, dict(lr=[.005, .01]), seeds=[5], n_jobs=1, folder=out/"sweep-notebook")
    of_function = sweep(gain, dict(step=[0, 2]), seeds=[0], n_jobs=1, folder=out/"sweep-function")
    drop_second(out/"sweep-notebook", lambda d: d["params"]["lr"] == .01)
    drop_second(out/"sweep-function", lambda d: d["params"]["step"] == 2)
    whole = run_notebook(little, out/"run-whole", STOPPED)
    trained = {name: told(load_trained(out/name/"models"/"bot")) for name in ("run-finished", "run-whole")}
    shutil.rmtree(out/"run-whole")
    return {"run-finished": dict(rows=done.rows, trained=trained["run-finished"]),
            "run-interrupted": dict(rows=whole.rows, trained=trained["run-whole"]),
            "sweep-notebook": rows_of(of_notebook), "sweep-function": rows_of(of_function)}


def rows_of(frame):
    "What is compared of a sweep"
    return frame.drop(columns=["wall_s", "error"]).to_dict("records")


def drop_second(folder, which):
    "Remove an outcome and the run behind it, as if it had never been begun"
    for path in folder.glob("*.json"):
        if which(json.loads(path.read_text())):
            path.unlink()
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)


# --- What people write

def make_records(out):
    "Tags, a table, captions with their traces"
    table = little_world().table()
    table[:4].save(out/"table.csv")
    tag(out/"tags.json", "q-1", "a person", "tick", ("dark", "bag"), "seen twice")
    tag(out/"tags.json", "q-2", "a person", "cross")
    frame = measure_audit([0], out/"captions", Rates(), (.2,), n=3, quiet=True)
    whole = out/"captions"/"world-0-audit-0.2.jsonl"
    lines = whole.read_text().splitlines(keepends=True)
    whole.write_text("".join(lines[:-1]) + lines[-1][:40])      # as if killed while it wrote
    return dict(tags=2, table=table["captions"].tolist()[:4], captions=frame.to_dict("records"))


def checksum_of(texts):
    "CRC-32 of anything that JSON can hold"
    return zlib.crc32(json.dumps(texts).encode())


def world_facts():
    "What is expected of the World"
    world = little_world()
    table = world.table()
    images = np.stack([table.image(i) for i in range(len(table))])
    return dict(key=world.key, images=checksum(dict(images=torch.from_numpy(images))), rows=len(table),
                path=table["path"].tolist(), captions=checksum_of(table["captions"].tolist()),
                pid=table["pid"].tolist(), cam=table["cam"].tolist())


# --- Without what is large, and without the traces of a machine

def keep_small(out):
    "Remove what is rendered or trained again in a second"
    for world in (out/"cache"/"worlds").iterdir():
        if world.name != little_world().key: shutil.rmtree(world)
    for models in (out/"sweep-notebook").glob("*/models"): shutil.rmtree(models)


def neutral(out):
    "Folders of this machine in texts become one that nobody has; locks and empty folders go"
    for path in sorted(out.rglob("*"), reverse=True):
        if path.is_dir():
            if not any(path.iterdir()): path.rmdir()
        elif path.name.startswith("."): path.unlink()
        elif path.suffix in (".json", ".jsonl", ".csv", ".ipynb"):
            text = path.read_text()
            new = text.replace(str(out), HOME).replace(str(checkout()), f"{HOME}/reid_lab")
            if path.suffix == ".ipynb": new = without_outputs(new)
            if new != text: path.write_text(new)


def without_outputs(text):
    "An executed notebook with papermill's notes of how it was run, without what its cells showed"
    nb = json.loads(text)
    for cell in nb["cells"]:
        if "outputs" in cell: cell["outputs"] = []
    return json.dumps(nb, indent=1, ensure_ascii=False) + "\n"


def main(out):
    "Write everything into a new folder"
    out = Path(out).resolve()
    out.mkdir(parents=True)
    os.environ.update(REID_LAB_CACHE=str(out/"cache"), REID_LAB_RESULTS=str(out/"results.csv"), REID_LAB_TRACKERS="none",
                      REID_LAB_QUIET="1", OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    expected = dict(world=world_facts())
    for make in (make_trainings, make_runs, make_features, make_crops, make_records): expected |= make(out)
    keep_small(out)
    lines = [f' {json.dumps(k)}: {json.dumps(v)}' for k, v in expected.items()]
    (out/"expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    neutral(out)


if __name__ == "__main__": main(sys.argv[1])
