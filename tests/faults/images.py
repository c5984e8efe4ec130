"""Image files and dataset folders as they arrive: damaged, foreign, too large, behind links."""
import json
import os
import struct
import zlib

import numpy as np
import pandas as pd
from fault import bad, cli, clutter, interruption, killed, refused, warned
from PIL import Image

from reid_lab.core.files import safe_join
from reid_lab.data.checks import decode_images, file_findings, look_at_files
from reid_lab.data.images import image_header, read_image
from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import load_dataset
from reid_lab.datasets.text_sets import read_json


def _jpeg(path, size=(32, 64)):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (*size[::-1], 3), np.uint8)).save(path)
    return path


def _bytes(data, name="a.jpg"):
    "Read an image file with these contents"
    def run(tmp):
        (tmp/name).write_bytes(data)
        read_image(tmp/name)
    return run


def _cut(share, name="a.png"):
    def run(tmp):
        whole = _jpeg(tmp/name).read_bytes()
        (tmp/name).write_bytes(whole[:int(len(whole)*share)])
        read_image(tmp/name)
    return run


def _png(width, height):
    "A PNG whose header claims a size"
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
            + b"\0\0\0\0IEND\xaeB`\x82")


def _saved(image, name, **options):
    def run(tmp):
        image.save(tmp/name, **options)
        read_image(tmp/name)
    return run


def _fifo(tmp):
    os.mkfifo(tmp/"a.jpg")
    read_image(tmp/"a.jpg")


def _folder(tmp):
    (tmp/"a.jpg").mkdir()
    read_image(tmp/"a.jpg")


def _dangling(tmp):
    (tmp/"a.jpg").symlink_to(tmp/"gone.jpg")
    read_image(tmp/"a.jpg")


def _outside(tmp, folder=False):
    "A table whose image, or folder of images, is a link out of the root"
    (tmp/"data").mkdir()
    (tmp/"far").mkdir()
    _jpeg(tmp/"far"/"0001_c1.jpg")
    if folder: (tmp/"data"/"sub").symlink_to(tmp/"far")
    else: (tmp/"data"/"0001_c1.jpg").symlink_to(tmp/"far"/"0001_c1.jpg")
    path = "sub/0001_c1.jpg" if folder else "0001_c1.jpg"
    return ReidTable(pd.DataFrame(dict(path=[path], pid=[1])), tmp/"data")


def _set(tmp):
    "A dataset folder of 12 images"
    return export_world(tiny_table(), "cuhk-pedes", tmp/"CUHK-PEDES")


def _spoilt(write, **options):
    "Load a dataset after `write(its first image)`"
    def run(tmp):
        root = _set(tmp)
        write(sorted((root/"imgs").rglob("*.jpg"))[0])
        load_dataset("cuhk-pedes", root, **options)
    return run


def _half(path): path.write_bytes(path.read_bytes()[:-60])
def _page(path): path.write_text("<!DOCTYPE html><html>Sign in</html>")


def _pipe(path):
    path.unlink()
    os.mkfifo(path)


def _elsewhere(path):
    path.rename(path.parents[3]/"far.jpg")
    path.symlink_to(path.parents[3]/"far.jpg")


def _doctor(write, **options):
    "Raise what the doctor says of a dataset after `write(its first image)`"
    def run(tmp):
        root = _set(tmp)
        write(sorted((root/"imgs").rglob("*.jpg"))[0])
        report = doctor("cuhk-pedes", root, **options)
        raise ValueError(str(report))
    return run


def _doctor_cli(tmp):
    root = _set(tmp)
    _half(sorted((root/"imgs").rglob("*.jpg"))[0])
    code, out, _ = cli("doctor", "cuhk-pedes", "--root", root, "--all")
    assert code == 1
    raise ValueError(out)


def _annotation(text):
    def run(tmp):
        (tmp/"reid_raw.json").write_bytes(text)
        read_json(tmp/"reid_raw.json")
    return run


def _export_dies(tmp):
    write = lambda: export_world(tiny_table().where(split=["train", "test"]), "icfg-pedes", tmp/"icfg")
    killed(write, "reid_lab.core.files._sync")
    assert not (tmp/"icfg").exists() and clutter(tmp)
    write()
    assert not clutter(tmp)
    return str(load_dataset("icfg-pedes", tmp/"icfg", check="all"))


def _table_dies(tmp):
    table = tiny_table()
    table.take(slice(0, 3)).save(tmp/"t.csv")
    killed(lambda: table.save(tmp/"t.csv"), "reid_lab.core.files._sync")
    assert len(ReidTable.load(tmp/"t.csv", tmp)) == 3
    table.save(tmp/"t.csv")
    assert not clutter(tmp)
    return f"{len(ReidTable.load(tmp/'t.csv', tmp))} rows"


def _copy_dies(tmp):
    "A copy that stopped: later images are missing, one is half there"
    root = _set(tmp)
    images = sorted((root/"imgs").rglob("*.jpg"))
    for p in images[6:]: p.unlink()
    _half(images[5])
    with warned() as said:
        assert len(load_dataset("cuhk-pedes", root, check="all", drop_bad=True)) == 5
    return "\n".join(said)


def _all_kinds(tmp):
    for n in "ab": (tmp/f"{n}.jpg").write_bytes(b"")
    table = ReidTable(pd.DataFrame(dict(path=["a.jpg", "b.jpg", "m/c.jpg"], pid=[0, 1, 2])), tmp)
    raise ValueError("\n".join(map(str, file_findings(table, look_at_files(table)))))


FAULTS = [
    bad("image: missing", "the file is not there", lambda t: read_image(t/"a.jpg"), "a.jpg' does not exist"),
    bad("image: empty file", "0 bytes", _bytes(b""), "a.jpg' cannot be read", "is empty (0 bytes)"),
    bad("image: web page", "HTML under the name of an image", _bytes(b"\n<html>"), "is an HTML page", "a.jpg"),
    bad("image: Git LFS pointer", "a pointer instead of the file",
        _bytes(b"version https://git-lfs.github.com/spec/v1\n"),
        "is a Git LFS pointer", "git lfs pull"),
    bad("image: text", "a text file", _bytes(b"hello"), "is text", "replace it, or leave it out"),
    bad("image: zeros", "a block of zero bytes", _bytes(bytes(500)), "holds only zero bytes"),
    bad("image: zip archive", "an archive of images", _bytes(b"PK\3\4" + bytes(40)), "is a zip archive", "unpack it"),
    bad("image: PDF", "a document", _bytes(b"%PDF-1.7\n"), "is a PDF document"),
    bad("image: PostScript", "a program that Pillow would hand to Ghostscript", _bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n"),
        "is text", "a.jpg"),
    bad("image: PNG cut short", "half of the bytes", _cut(.5), "a.png' cannot be read", "damaged or cut short"),
    bad("image: JPEG cut short", "most of the bytes", _cut(.7, "a.jpg"), "a.jpg' cannot be read",
        "damaged or cut short"),
    bad("image: JPEG head only", "the first bytes", _cut(.02, "a.jpg"), "a.jpg' cannot be read", "damaged"),
    bad("image: 13,000 x 13,000", "a small file that decodes to gigabytes", _bytes(_png(13_000, 13_000), "a.png"),
        "a.png' has 13000 x 13000 pixels", "max_pixels=50,000,000"),
    bad("image: 100,000 x 100,000", "more than Pillow opens", _bytes(_png(100_000, 100_000), "a.png"),
        "a.png' has more than 50,000,000 pixels", "shrink it"),
    bad("image: over a limit of one's own", "a limit of 10 pixels",
        lambda t: read_image(_jpeg(t/"a.png"), max_pixels=10), "has 32 x 64 pixels, more than max_pixels=10"),
    bad("image: named pipe", "reading would wait for ever", _fifo, "is a pipe, socket or device", "a.jpg"),
    bad("image: device", "reading would never end", lambda t: read_image("/dev/zero"), "is a pipe, socket or device"),
    bad("image: folder", "a folder of that name", _folder, "is a folder"),
    bad("image: broken link", "a link to nothing", _dangling, "is a link to a file that does not exist"),
    bad("image: name with a zero byte", "no file can have it", lambda t: read_image("a\0b"), "does not exist"),
    bad("image: floating-point TIFF", "no value is known to be white",
        _saved(Image.fromarray(np.ones((4, 4), np.float32)), "a.tif"), "holds floating-point numbers", "8 or 16 bits"),
    bad("image: 32-bit integers", "no value is known to be white",
        _saved(Image.fromarray(np.ones((4, 4), np.int32)), "a.tif"), "holds 32-bit integers", "a.tif"),
    bad("image: header of a page", "size asked of an HTML page",
        lambda t: image_header((t/"a.png").write_text("<html>") and t/"a.png"), "is an HTML page"),
    bad("image: link out of the root", "one image is a link", lambda t: _outside(t).image(0),
        "leaves the dataset folder", "'0001_c1.jpg' is a link to", "follow_links=True"),
    bad("image: linked folder", "a folder of the root is a link", lambda t: _outside(t, True).image(0),
        "'sub' is a link to", "--follow-links"),
    bad("image: linked folder is walked", "from_folder meets a link out of the root",
        lambda t: ReidTable.from_folder(_outside(t, True).root), "'sub' is a link to", "follow_links=True"),
    bad("path: two dots with links followed", "follow_links does not allow `..`",
        lambda t: safe_join(t, "../x", follow_links=True), "leaves the dataset folder"),
    bad("dataset: empty image", "one of 12 files has 0 bytes", _spoilt(lambda p: p.write_bytes(b"")),
        "1 of 12 image files is empty (0 bytes)", "drop_bad=True", error=TableError),
    bad("dataset: missing image", "one of 12 files is not there", _spoilt(lambda p: p.unlink()),
        "some files are missing, 1 of", error=TableError),
    bad("dataset: cut image", "found by decoding all", _spoilt(_half, check="all"),
        "1 of 12 images decoded cannot be read",
        "cut short", error=TableError),
    bad("dataset: pipe among the images", "not opened", _spoilt(_pipe), "is a pipe, socket or device",
        error=TableError),
    bad("dataset: image behind a link", "refused unless links are allowed", _spoilt(_elsewhere),
        "lies behind a link that leaves the root", "follow_links=True", error=TableError),
    bad("doctor: empty image", "every file is looked at", _doctor(lambda p: p.write_bytes(b""), n=1),
        "1 error", "1 of 12 image files is empty (0 bytes)", "decoded 1 of 12 images; --all decodes every one"),
    bad("doctor: web page", "every header is read", _doctor(_page, n=1), "1 error", "is an HTML page"),
    bad("doctor: cut image", "every image is decoded on request", _doctor(_half, check="all"), "1 error",
        "decoded 12 of 12 images", "cut short"),
    bad("doctor: cut image on the command line", "--all", _doctor_cli, "1 error", "decoded 12 of 12 images"),
    bad("doctor: degenerate crops", "a crop of 1 x 128 pixels", _doctor(lambda p: _jpeg(p, (1, 128))), "0 error",
        "1 degenerate crops", "1 x 128"),
    bad("doctor: pipe", "not opened", _doctor(_pipe), "is a pipe, socket or device"),
    bad("doctor: link", "named with what it leads to", _doctor(_elsewhere), "leaves the root", "-> ", "far.jpg"),
    bad("doctor: unknown dataset", "a misspelt name", lambda t: refused("doctor", "cuhk-pedez", "--root", t),
        "Did you mean 'cuhk-pedes'"),
    bad("doctor: unknown check", "check='some'", lambda t: doctor("world", check="some"), "check='some'", "all"),
    bad("decoding: unknown check", "check='some'", lambda t: decode_images(tiny_table(), "some"), "check='some'"),
    bad("annotation: empty", "0 bytes", _annotation(b""), "the file is empty", error=TableError),
    bad("annotation: cut short", "JSON that stops", _annotation(json.dumps([{"a": 1}]*9)[:40].encode()),
        "truncated", "line 1", error=TableError),
    bad("annotation: not text", "bytes that are no UTF-8", _annotation(b"\xff\xfe\0"), "not a UTF-8", error=TableError),
    bad("annotation: a dict", "records by name", _annotation(b'{"a": 1}'), "expected a list", error=TableError),
    bad("files: kinds of a table", "several faults at once",
        _all_kinds, "2 of 3 image files: each is empty",
        "m: the whole folder is missing"),
    interruption("export: killed while writing", "a dataset folder is being written",
        "nothing is under the name; the next "
                 "export writes it", _export_dies, "9 images", "icfg-pedes"),
    interruption("table: killed while saving", "a CSV is being replaced", "the old one is whole",
        _table_dies, "12 rows"),
    interruption("copy: stopped half-way", "half of the images are missing, one is cut", "drop_bad drops what it says",
                 _copy_dies, "dropped 7 of 12 images", "6 missing", "1 undecodable"),
    bad("images: half a JPEG 2000", "a .jp2 is cut", _cut(.5, "a.jp2"), "damaged or cut short"),
    bad("images: a .ppm cut short", "half of its numbers", _cut(.5, "a.ppm"), "damaged or cut short"),
    bad("images: sound under the name of an image", "RIFF holds both", _bytes(b"RIFF\x10\0\0\0WAVEfmt ", "a.webp"),
        "contents of an unknown kind"),
]
