"""What a file holds becomes what is seen.

Workers and caches change no pixel; a cache survives several processes, replaced images and damage.
"""
import io
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st
from PIL import Image, ImageOps

from reid_lab.data import images as images_module
from reid_lab.data.images import (
    DECODERS,
    FORMATS,
    ImageCache,
    image_header,
    image_suffixes,
    read_image,
    read_sized,
    resize_image,
)
from reid_lab.data.loaders import Batches, Loading
from reid_lab.data.table import ReidTable
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.learner import Callback, Learner
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


def seen(folder, start=0, loading=None, **fields):
    "Batches from one on, to the end of the second epoch, as bytes"
    loader = Batches(table(folder), 5, SIZE, seed=2, unit="caption", augment="light",
                     loading=loading or Loading(**fields))
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
    loader = Batches(table(folder), 5, SIZE, loading=Loading(workers=1))
    list(loader.epoch(0))
    kept = loader._ahead.batches
    list(loader.epoch(1))
    assert loader._ahead.batches is kept
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

    def train(where=None, stop=0, **loading):
        class Stop(Callback):
            def after_step(self, learn): learn.stop = learn.step == stop
        save = [Checkpoint(where, every=1)] if where else []
        loader = Batches(table(folder), 5, SIZE, unit="caption", augment="light",
                         loading=Loading(**loading))
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


def test_an_emptied_cache_keeps_files_of_others(tmp_path):
    "Also where these lie in a folder that has the name of a size, and what a process that died left is removed"
    path, cache = tmp_path/"a.png", ImageCache(tmp_path/"c")
    Image.new("RGB", (20, 40)).save(path)
    cache.read(path, SIZE)
    (entry,) = [p for p in cache.folder.rglob("*") if p.is_file()]
    entry.with_name(f"{entry.name}.0123abcd").write_bytes(b"half")
    mine = [cache.folder/"mine"/"abc"/"f", cache.folder/entry.parts[-3]/"note.txt", entry.with_name("thesis.pdf"),
            cache.folder/"8x8-bicubic-pil"/"abc"/"notes"]
    for place in mine:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("mine")
    assert cache.usage().images.to_dict() == {"32x16-bicubic-pil": 2, "8x8-bicubic-pil": 0}
    assert cache.clear() == 2
    assert sorted(p for p in cache.folder.rglob("*") if p.is_file()) == sorted(mine)
    for place in mine: place.unlink()
    cache.read(path, SIZE)
    assert cache.clear() == 1 and not (cache.folder/"32x16-bicubic-pil").exists()


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
    assert seen(folder, loading=how.loading) == want and ImageCache(tmp_path).usage().images.tolist() == [24]


# ---- what a file holds becomes what is seen

def pixels(*names, size=(16, 8)):
    "A flat colour per name"
    rng = np.random.default_rng(abs(hash(names)) % 2**32)
    return np.broadcast_to(rng.integers(0, 256, 3).astype(np.uint8), (*size, 3)).copy()


def test_grey_palette_and_alpha_images_become_rgb(tmp_path):
    for mode in ("L", "P", "RGBA", "1"):
        Image.fromarray(pixels(1)).convert(mode).save(tmp_path / "x.png")
        assert read_image(tmp_path / "x.png").shape == (16, 8, 3)


def test_resize_is_pillow_bicubic():
    im = np.random.default_rng(0).integers(0, 256, (20, 10, 3), dtype=np.uint8)
    want = np.asarray(Image.fromarray(im).resize((5, 12), Image.Resampling.BICUBIC))
    assert np.array_equal(resize_image(im, (12, 5)), want) and resize_image(im, (20, 10)) is im
    soft = np.asarray(Image.fromarray(im).resize((5, 12), Image.Resampling.BILINEAR))
    assert np.array_equal(resize_image(im, (12, 5), "bilinear"), soft) and (soft != want).any()


@pytest.mark.parametrize("name", ["a.png", "a.tif"])
def test_sixteen_bits_are_scaled(tmp_path, name):
    values = np.array([[0, 128, 257, 32768], [12850, 40000, 65280, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / name)
    want = np.round(values / 65535 * 255).astype(np.uint8)
    assert np.array_equal(read_image(tmp_path / name), np.repeat(want[:, :, None], 3, 2))


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.tif"])
def test_images_are_turned_as_exif_says(tmp_path, turn, name):
    exif = Image.Exif()
    exif[274] = turn
    Image.fromarray(pixels(3)).save(tmp_path / name, exif=exif)
    with Image.open(tmp_path / name) as im: want = np.asarray(ImageOps.exif_transpose(im))
    assert np.array_equal(read_image(tmp_path / name), want) and want.shape[:2] == ((16, 8), (8, 16))[turn > 4]


def test_hidden_colours_of_transparent_pixels_do_not_show(tmp_path):
    rgba = np.zeros((2, 3, 4), np.uint8)
    rgba[:, :, 0], rgba[:, 1, 3], rgba[:, 2, 3] = 200, 51, 255   # red: hidden, a fifth, in full
    Image.fromarray(rgba).save(tmp_path / "rgba.png")
    assert read_image(tmp_path / "rgba.png")[0].tolist() == [[255] * 3, [244, 204, 204], [200, 0, 0]]
    assert read_image(tmp_path / "rgba.png", background=(0, 0, 90))[0, 0].tolist() == [0, 0, 90]
    Image.fromarray(rgba).convert("LA").save(tmp_path / "la.png")
    assert read_image(tmp_path / "la.png")[0, 0].tolist() == [255] * 3
    p = Image.fromarray(np.array([[0, 1]], np.uint8), "P")
    p.putpalette([200, 0, 0, 0, 200, 0])
    p.save(tmp_path / "p.png", transparency=0)
    assert read_image(tmp_path / "p.png")[0].tolist() == [[255] * 3, [0, 200, 0]]
    p.save(tmp_path / "p.gif", transparency=0)
    assert read_image(tmp_path / "p.gif")[0].tolist() == [[255] * 3, [0, 200, 0]]
    solid = np.dstack([pixels(5), np.full((16, 8), 255, np.uint8)])
    Image.fromarray(solid).save(tmp_path / "solid.png")
    assert np.array_equal(read_image(tmp_path / "solid.png"), pixels(5))


def test_other_modes_and_animations(tmp_path):
    Image.fromarray(pixels(1)).convert("CMYK").save(tmp_path / "cmyk.tif")
    with Image.open(tmp_path / "cmyk.tif") as im: want = np.asarray(im.convert("RGB"))
    assert np.array_equal(read_image(tmp_path / "cmyk.tif"), want)
    Image.fromarray(np.array([[0, 255]], np.uint8)).convert("1").save(tmp_path / "bit.png")
    assert read_image(tmp_path / "bit.png")[0].tolist() == [[0] * 3, [255] * 3]
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue")]
    frames[0].save(tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert read_image(tmp_path / "two.gif")[0, 0].tolist() == [255, 0, 0]
    assert image_header(tmp_path / "two.gif") == (4, 4, True)


def test_a_huge_image_is_refused_before_it_is_decoded(tmp_path):
    import tracemalloc
    Image.new("L", (9000, 9000)).save(tmp_path / "huge.png")
    tracemalloc.start()
    with pytest.raises(ValueError, match="huge.png' has 9000 x 9000 pixels, more than max_pixels=50,000,000"):
        read_image(tmp_path / "huge.png")
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


MUTATED = {}


@settings(max_examples=400, deadline=None)
@given(st.sampled_from([("JPEG", {}), ("JPEG", dict(progressive=True)), ("PNG", {}), ("PNG", dict(bits=4)),
                        ("TIFF", {}), ("WEBP", {}), ("GIF", {})]),
       st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=12), st.floats(.2, 1))
def test_mutated_images_raise_nothing_but_the_documented_error(tmp_path_factory, form, changes, keep):
    kind, options = form
    if str(form) not in MUTATED:
        exif, out = Image.Exif(), io.BytesIO()
        exif[274], exif[271] = 6, "maker"
        Image.fromarray(pixels(7)).save(out, kind, **({} if kind == "GIF" else dict(exif=exif)), **options)
        MUTATED[str(form)] = out.getvalue()
    data = bytearray(MUTATED[str(form)])
    for at, value in changes: data[int(at * (len(data) - 1))] = value
    path = tmp_path_factory.getbasetemp() / f"mutated.{kind.lower()}"
    path.write_bytes(data[:int(len(data) * keep)] if keep < .8 else data)
    for call in (read_image, image_header):
        try: call(path)
        except ValueError as e: assert f"image file '{path}'" in str(e)


def test_avif_without_a_decoder_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(images_module, "image_formats", lambda: FORMATS)
    (tmp_path/"a.jpg").write_bytes(b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miafMA1B\0\0\0\xebmeta")
    with pytest.raises(ValueError, match="is AVIF, which the installed Pillow"): read_image(tmp_path/"a.jpg")
    assert ".avif" not in image_suffixes() and ".jp2" in image_suffixes()
