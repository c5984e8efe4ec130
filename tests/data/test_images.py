"Workers and caches change no pixel; a cache survives several processes, replaced images and damage"
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from reid_lab.data.images import DECODERS, ImageCache, read_image, read_sized, resize_image
from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable
from reid_lab.training.learner import Callback, Learner
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.options import Execution

SIZE = (32, 16)
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    "24 JPEG files of several sizes and qualities"
    root, rng = tmp_path_factory.mktemp("crops"), np.random.default_rng(0)
    for i in range(24):
        shape = (40 + 5*(i % 3), 20 + i % 4, 3)
        shade = np.linspace(0, 200, np.prod(shape)).reshape(shape) + rng.normal(0, 20, shape)
        Image.fromarray(shade.clip(0, 255).astype(np.uint8)).save(root/f"{i:02d}.jpg", quality=70 + i)
    return root


def table(folder):
    frame = pd.DataFrame(dict(path=[f"{i:02d}.jpg" for i in range(24)], pid=np.arange(24) % 6, cam=0, split="train",
                              captions=[[f"person {i}", f"again {i}"] for i in range(24)]))
    return ReidTable(frame, folder)


def seen(folder, start=0, **more):
    "Batches from one on, to the end of the second epoch, as bytes"
    loader = Batches(table(folder), 5, SIZE, seed=2, unit="caption", augment="light", **more)
    out = [(b["img"].numpy().tobytes(), b["caption"], b["index"].tolist())
           for e, first in ((0, start), (1, 0)) for b in loader.epoch(e, first)]
    loader.close()
    return out


@pytest.mark.parametrize("workers, cached", [(0, True), (1, False), (1, True), (3, False), (3, True)])
def test_batches_do_not_depend_on_workers_or_cache(folder, tmp_path, workers, cached):
    "Two epochs, then again from the middle of the first, with what the cache holds by then"
    want, cache = seen(folder, workers=0), tmp_path/"cache" if cached else None
    assert len(want) == 2*(48//5)
    assert seen(folder, workers=workers, cache=cache) == want
    assert seen(folder, 4, workers=workers, cache=cache) == want[4:]
    if cached: assert ImageCache(cache).usage().images.tolist() == [24]


def test_workers_go_on_into_the_next_epoch(folder):
    "The same processes, unless another place is asked for; two epochs at a time do not disturb each other"
    loader = Batches(table(folder), 5, SIZE, workers=1)
    list(loader.epoch(0))
    kept = loader._ahead[1]
    list(loader.epoch(1))
    assert loader._ahead[1] is kept
    pairs = zip(loader.epoch(2), loader.epoch(2))
    assert all(torch.equal(a["img"], b["img"]) for a, b in pairs)
    loader.close()
    assert loader._ahead is None


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_training_resumed_in_mid_epoch_sees_the_rest(folder, tmp_path, workers):
    "Weights after a stop at step 6 of 9 an epoch and a resumption, with a cache and workers, and without either"
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.lin = torch.nn.Linear(3, 6)
        def forward(self, b):
            return dict(id_loss=torch.nn.functional.cross_entropy(self.lin(b["img"].mean((2, 3))), b["label"]))

    def train(where=None, stop=0, **more):
        class Stop(Callback):
            def after_step(self, learn): learn.stop = learn.step == stop
        save = [Checkpoint(where, every=1)] if where else []
        loader = Batches(table(folder), 5, SIZE, unit="caption", augment="light", **more)
        learn = Learner(Net(), loader, callbacks=[*save, Stop()], lr=.1, device="cpu")
        for s in save: s.resume(learn)
        learn.fit(steps=13)
        loader.close()
        return learn.net.lin.weight.detach()
    how = dict(workers=workers, cache=tmp_path/"cache")
    train(tmp_path/"state", 6, **how)
    assert torch.equal(train(tmp_path/"state", **how), train(workers=0))


FILL = """
import sys
from reid_lab.data.images import ImageCache
cache = ImageCache(sys.argv[2])
for i in range(24): cache.read(f'{sys.argv[1]}/{i:02d}.jpg', (32, 16))
"""


def test_several_processes_fill_one_cache(folder, tmp_path):
    "Two processes at once: every entry is whole, and nothing else is left"
    runs = [subprocess.Popen([sys.executable, "-c", FILL, str(folder), str(tmp_path/"c")]) for _ in range(2)]
    assert [r.wait(120) for r in runs] == [0, 0]
    entries = [p for p in (tmp_path/"c").rglob("*") if p.is_file()]
    assert len(entries) == 24 and not [p for p in entries if "." in p.name]
    for i in range(24):
        path = folder/f"{i:02d}.jpg"
        want = resize_image(read_image(path), SIZE)
        path_read = ImageCache(tmp_path/"c").read(path, SIZE)
        assert (path_read == want).all()


def test_a_replaced_or_damaged_image_is_read_anew(tmp_path):
    path, cache = tmp_path/"a.png", ImageCache(tmp_path/"c")
    for shade in (10, 200):
        Image.new("RGB", (20, 40), (shade,)*3).save(path)
        os.utime(path, ns=(shade, shade))
        assert (cache.read(path, SIZE) == shade).all()
    (entry,) = [p for p in cache.folder.rglob("*") if p.is_file()]
    for harm in (entry.read_bytes()[:-1], b"", entry.read_bytes()[:-1] + b"x"):
        entry.write_bytes(harm)
        assert (cache.read(path, SIZE) == 200).all()
    path.unlink()
    with pytest.raises(ValueError, match="a.png' cannot be read|a.png' does not exist"): cache.read(path, SIZE)


@pytest.mark.parametrize("mode", ["L", "CMYK", "turned"])
def test_unusual_jpeg_files_are_the_same_with_both_decoders(tmp_path, mode):
    rng = np.random.default_rng(1)
    im = Image.fromarray(rng.integers(0, 255, (40, 20, 3), dtype=np.uint8))
    exif = Image.Exif()
    if mode == "turned": exif[274] = 6
    (im if mode == "turned" else im.convert(mode)).save(tmp_path/"a.jpg", exif=exif)
    one, other = (read_sized(tmp_path/"a.jpg", SIZE, decoder=d) for d in DECODERS)
    assert (one == other).all()


def test_workers_and_cache_of_a_run(folder, tmp_path):
    want, how = seen(folder, workers=0), Execution(workers=1, image_cache=tmp_path)
    assert seen(folder, **how.loading) == want and ImageCache(tmp_path).usage().images.tolist() == [24]
