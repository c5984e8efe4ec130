"""Images packed into tar files: the same bytes, rows, batches, features and trainings; what was changed is refused"""
import csv
import json
import multiprocessing
import os
import pickle
import tarfile

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from reid_lab.core.files import write_sums
from reid_lab.data.crops import crops_table
from reid_lab.data.loaders import Batches, Loading
from reid_lab.data.packed import INDEX, TABLE, PackedError, PackedImages, packed_faults
from reid_lab.data.packing import pack_table, packed_table
from reid_lab.data.table import ReidTable, join_tables
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.retrieval.parts import image_facts
from reid_lab.training.fit import fit
from reid_lab.training.folder import digest


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    "40 image files of ten people in JPEG and PNG, with captions, splits, attributes and a column of texts"
    root, rows = tmp_path_factory.mktemp("crops"), []
    rng = np.random.default_rng(0)
    for i in range(40):
        path = f"c{i % 4}/{i//4:04}_{i}.{'png' if i % 5 == 0 else 'jpg'}"
        (root/path).parent.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (70 + i, 40, 3), dtype=np.uint8)).save(root/path)
        rows.append(dict(path=path, pid=i//4, cam=i % 4, split="train" if i < 28 else "test", coat=f"00{i % 3}",
                         captions=[f"number {i}", "ein Mensch, \u00e4lter"], attrs=dict(hat=i % 2) if i % 3 else None))
    return ReidTable(pd.DataFrame(rows), root).validate()


@pytest.fixture(scope="module")
def folder(crops, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")/"packed"
    pack_table(crops, out, quiet=True)
    return out


@pytest.fixture
def copy(folder, tmp_path):
    "A packed folder to spoil"
    new = tmp_path/"copy"
    new.mkdir()
    for file in folder.iterdir(): (new/file.name).write_bytes(file.read_bytes())
    return new


# ---- what is in a packed folder

def test_bytes_are_copied_and_other_programs_can_take_them_apart(crops, folder):
    "In the convention of WebDataset: files of one sample follow each other and share their name up to the first dot"
    samples = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as tar:
            for member in tar:
                key, _, ending = member.name.partition(".")
                samples.setdefault(key, {})[ending] = tar.extractfile(member).read()
    assert len(samples) == len(crops)
    for sample, row in zip(samples.values(), crops.frame.itertuples()):
        image, label = next(v for k, v in sample.items() if k != "json"), json.loads(sample["json"])
        assert image == (crops.root/row.path).read_bytes() and label["file"] == row.path
        assert label["rows"][0]["pid"] == row.pid and label["rows"][0]["captions"] == row.captions


def test_rows_columns_and_pixels_come_back(crops, folder):
    again = crops_table(folder)
    pd.testing.assert_frame_equal(again.frame, crops.frame, check_dtype=False)
    assert again.further == crops.further and again["coat"].tolist() == crops["coat"].tolist()
    assert all(np.array_equal(again.image(i), crops.image(i)) for i in range(len(crops)))


def test_the_same_images_are_packed_into_the_same_bytes(crops, folder, tmp_path):
    pack_table(crops, tmp_path/"again", quiet=True)
    for file in folder.iterdir(): assert (tmp_path/"again"/file.name).read_bytes() == file.read_bytes()


def test_shards_have_about_one_size_and_packed_tables_are_packed_again(crops, tmp_path):
    rng = np.random.default_rng(0)
    for i in range(4): Image.fromarray(rng.integers(0, 256, (500, 400, 3), dtype=np.uint8)).save(tmp_path/f"{i}.bmp")
    large = ReidTable(pd.DataFrame(dict(path=[f"{i}.bmp" for i in range(4)], pid=range(4))), tmp_path)
    about = pack_table(large, tmp_path/"out", shard_mb=1, quiet=True)
    assert about["shards"] == 2 and len(list((tmp_path/"out").glob("*.tar"))) == 2
    again = packed_table(tmp_path/"out")
    pack_table(again.take([3, 1]), tmp_path/"part", quiet=True)
    assert np.array_equal(packed_table(tmp_path/"part").image(0), large.image(3))
    assert again.reader.n_opened == 2      # once each, whatever the order


def test_boxes_are_cut_from_packed_frames(crops, tmp_path):
    path = crops["path"][0]
    rows = dict(path=[f"{path}#xywh=3,4,20,30", f"{path}#xywh=1,1,9,9&margin=0.5", crops["path"][1]], pid=[1, 2, 3])
    boxes = ReidTable(pd.DataFrame(rows), crops.root)
    assert pack_table(boxes, tmp_path/"boxes", quiet=True)["files"] == 2
    again = packed_table(tmp_path/"boxes")
    assert all(np.array_equal(again.image(i), boxes.image(i)) for i in range(3))


# ---- the same numbers

@pytest.mark.parametrize("loading", [Loading(0), Loading(2), Loading(0, decoder="torch"), Loading(0, cache="thumbs")],
                         ids=["workers 0", "workers 2", "torch", "cache"])
def test_batches_are_bit_equal_to_those_of_the_folder(crops, folder, loading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):      # the second pass finds a cache filled
        both = [Batches(table, 8, (64, 32), augment="light", sampler="pk", loading=loading)
                for table in (crops, packed_table(folder))]
        for a, b in zip(*(loader.epoch(0) for loader in both), strict=True):
            assert torch.equal(a["img"], b["img"]) and a["path"] == b["path"] and a["caption"] == b["caption"]
        for loader in both: loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_training_and_its_features_are_bit_equal_to_those_of_the_folder(crops, folder, workers):
    found = []
    for table in (crops, packed_table(folder)):
        torch.manual_seed(0)
        rows = table.where(split="train")
        model = create_model("bot_tiny", n_ids=7, size=(64, 32), weights="none")
        loader = Batches(rows, 8, model.size, sampler="pk", augment="light", loading=Loading(workers))
        done = fit(model, loader, 3, device="cpu", quiet=True)
        found.append((done.model.state_dict(), embed_images(done.model, table.where(split="test"), quiet=True).emb))
    (a, emb), (b, again) = found
    assert all(torch.equal(a[name], b[name]) for name in a) and torch.equal(emb, again)


def test_a_training_knows_packed_images_as_those_of_the_folder(crops, folder):
    "The key of a training says the name of the folder; features say which bytes they are of"
    named = crops_table(crops.root, pattern=r"c\d/(?P<pid>\d+)_")
    assert digest(ReidTable(named.frame, None, named.read, named.name)) == digest(named)
    packed = packed_table(folder)
    assert image_facts(packed) == image_facts(packed_table(folder))
    packed.reader.places[packed["path"][0]] = packed.reader.places[packed["path"][0]]._replace(crc32=1)
    assert image_facts(packed)["images"] != image_facts(packed_table(folder))["images"]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_for_themselves(crops, folder, method):
    "Copies of a process that has a shard open, and new ones, which get the reader by pickling"
    reader = PackedImages(folder)
    paths = crops["path"].tolist()
    assert np.array_equal(reader(paths[:1])[0], crops.image(0))
    with multiprocessing.get_context(method).Pool(2) as pool:
        images = pool.map(reader, [[path] for path in paths]*3)
    assert all(np.array_equal(image, crops.image(i % len(paths))) for i, (image,) in enumerate(images))
    assert reader.n_opened == 1 and len(pickle.dumps(reader)) < 1000


# ---- what is refused

def test_a_shard_that_was_cut_short_is_refused_when_the_folder_is_opened(copy):
    shard = next(copy.glob("*.tar"))
    shard.write_bytes(shard.read_bytes()[:-600])
    with pytest.raises(PackedError, match="shard-00000.tar has .* bytes instead of"): packed_table(copy)
    shard.unlink()
    with pytest.raises(PackedError, match="shard-00000.tar"): packed_table(copy)


def test_changed_bytes_are_found_when_they_are_read_and_by_a_check(copy):
    reader = PackedImages(copy)
    file, place = next(iter(reader.places.items()))
    with open(copy/place.shard, "r+b") as f:
        f.seek(place.offset + place.length//2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 255]))
    with pytest.raises(PackedError, match="was changed after it was packed"): PackedImages(copy)([file])
    assert not packed_faults(copy) and "shard-00000.tar" in packed_faults(copy, content=True)


@pytest.mark.parametrize("name", [INDEX, TABLE])
def test_changed_rows_and_places_are_refused(copy, name):
    (copy/name).write_text((copy/name).read_text(encoding="utf-8").replace("c1/", "c2/"), encoding="utf-8")
    with pytest.raises(PackedError, match=name): packed_table(copy)


@pytest.mark.parametrize("change", [dict(file="../x.jpg"), dict(file="/etc/x.jpg"), dict(shard="../shard-00000.tar"),
                                    dict(offset=10**9), dict(offset=-1)], ids=str)
def test_places_outside_the_folder_are_refused(copy, change):
    "Also where somebody wrote checksums that fit"
    with open(copy/INDEX, newline="", encoding="utf-8") as f: rows = list(csv.DictReader(f))
    rows[0] |= change
    with open(copy/INDEX, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    write_sums(copy, INDEX)
    with pytest.raises(PackedError, match="outside the packed folder"): PackedImages(copy).places


def test_files_outside_the_root_and_images_that_are_no_files_are_not_packed(crops, tmp_path):
    (tmp_path/"root").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path/"secret.png")
    os.symlink(tmp_path/"secret.png", tmp_path/"root"/"link.png")
    for path in ("../secret.png", "link.png"):
        table = ReidTable(pd.DataFrame(dict(path=[path], pid=[0])), tmp_path/"root")
        with pytest.raises(ValueError, match="leaves|leads out"): pack_table(table, tmp_path/"out", quiet=True)
        assert not (tmp_path/"out").exists()
    with pytest.raises(ValueError, match="'.*gone.png' does not exist"):
        pack_table(ReidTable(pd.DataFrame(dict(path=["gone.png"], pid=[0])), tmp_path), tmp_path/"out", quiet=True)
    linked = ReidTable(pd.DataFrame(dict(path=["link.png"], pid=[0])), tmp_path/"root", follow_links=True)
    assert pack_table(linked, tmp_path/"linked", quiet=True)["files"] == 1
    with pytest.raises(ValueError, match="joins several tables"):
        pack_table(join_tables([crops, crops]), tmp_path/"out", quiet=True)
    with pytest.raises(ValueError, match="frame of a video"):
        pack_table(ReidTable(pd.DataFrame(dict(path=["a.mp4#frame=1"], pid=[0])), tmp_path), tmp_path/"out", quiet=True)


def test_options_of_a_folder_are_refused_for_a_packed_one(folder):
    with pytest.raises(ValueError, match="folders='identity' is for"): crops_table(folder, "identity")
    with pytest.raises(PackedError, match="holds no 'x.jpg'"): PackedImages(folder)(["x.jpg"])


def test_splits_that_nobody_said_are_not_made_up(crops, tmp_path):
    crops = ReidTable(crops.frame.drop(columns="split"), crops.root, name="crops")
    pack_table(crops, tmp_path/"packed", quiet=True)
    back = packed_table(tmp_path/"packed")
    assert not back.knows_split and (back["split"] == "test").all()
