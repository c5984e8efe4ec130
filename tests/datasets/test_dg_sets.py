"Sets of mixed-dataset generalisation: published folders, round trips, and what can be wrong in them"
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings, strategies as st
from PIL import Image
from scipy.io import loadmat, savemat

from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets.dg_sets import (
    DG_SETS,
    PAIR,
    check_dg_set,
    dg_rows,
    extract_cuhk03,
    grid_partitions,
    load_cuhk03,
    load_dg_set,
    unfit_dg_rows,
    write_dg_set,
)
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.protocols.dg_splits import single_shot_cases
from reid_lab.datasets.registry import DATASETS, list_datasets, load_dataset

pytestmark = pytest.mark.usefixtures("no_user_settings")

NAMES = list(DG_SETS)
TESTED, TRAINED = ["viper", "prid2011", "grid", "ilids"], ["cuhk02", "cuhk-sysu"]
PAIRS03 = (843, 440, 77, 58, 49)  # identities of CUHK03 under each pair of cameras
KINDS = dict(bmp="BMP", png="PNG", jpg="JPEG", jpeg="JPEG")


def error(name, folder, **kw):
    with pytest.raises(TableError) as e: load_dataset(name, folder, **kw)
    return str(e.value)


def facts(t): return sorted(zip(t["pid"], t["cam"], t["split"], t["role"]))


def rows(t): return [*zip(t["path"], t["pid"], t["cam"], t["split"], t["role"])]


def changed(t, **columns): return ReidTable(t.frame.assign(**columns), t.root, t.reader, t.name)


# ---- folders as they are published, at full size

def names03(per_id):
    "Names of CUHK03 with a number of images (at most 10) per identity"
    ids = [(pair, i + 1) for pair, n in enumerate(PAIRS03, 1) for i in range(n)]
    return [[f"{pair}_{i:03d}_{1 + k//5}_{k + 1:02d}.png" for k in range(n)] for (pair, i), n in zip(ids, per_id)]


def config03(labels):
    "Names per identity, and the contents of the `.mat` file of the new protocol"
    train, gallery = dict(detected=(7365, 5332), labeled=(7368, 5328))[labels]
    few = [7670 - train, 7000 - gallery - 1400]  # identities with nine images
    names = names03([9 if i < few[0] or 767 <= i < 767 + few[1] else 10 for i in range(1467)])
    flat = [(n, pid + 1) for pid, ns in enumerate(names) for n in ns]
    number = {n: i + 1. for i, (n, _) in enumerate(flat)}
    asked = [n for ns in names[767:] for n in (ns[0], ns[5])]
    cells = np.empty((len(flat), 1), object)
    for i, (n, _) in enumerate(flat): cells[i, 0] = n
    column = lambda ns: np.array([[number[n]] for n in ns])
    return names, dict(filelist=cells, labels=np.array([[float(p)] for _, p in flat]),
                       camId=np.array([[float(n.split("_")[2])] for n, _ in flat]),
                       train_idx=column([n for ns in names[:767] for n in ns]), query_idx=column(asked),
                       gallery_idx=column([n for ns in names[767:] for n in ns if n not in set(asked)]))


def published(name):
    "Relative paths of all images of a set"
    if name == "viper":
        return [f"cam_{c}/{i:03d}_{a}.bmp" for c, a in (("a", 0), ("b", 90)) for i in range(632)]
    if name == "prid2011":
        return [f"single_shot/cam_{c}/person_{i:04d}.png" for c, n in (("a", 385), ("b", 749)) for i in range(1, n + 1)]
    if name == "grid":
        paired = [f"{d}/{i:04d}_{(i + k) % 8 + 1}_{25000 + i}_107_32_106_221.jpeg" for k, d in enumerate(
            ("probe", "gallery")) for i in range(1, 251)]
        return paired + [f"gallery/0000_{i % 8 + 1}_{i:05d}_107_32_106_221.jpeg" for i in range(775)]
    if name == "ilids": return [f"Persons/{i:04d}{k:03d}.jpg" for i in range(1, 120) for k in range(1, 5)]
    if name == "cuhk02":
        return [f"Dataset/P{p}/cam{v}/{i:03d}_{k:03d}.png" for p, n in enumerate((971, 306, 107, 193, 239), 1)
                for v in (1, 2) for i in range(1, n + 1) for k in (1, 2)]
    if name == "cuhk-sysu":
        return [f"cropped_images/p{i}_s{3*i + k}_{k}.jpg" for i in range(11934) for k in range(3 if i < 10706 else 2)]
    return [f"images_{lab}/{n}" for lab in ("detected", "labeled") for ns in config03(lab)[0] for n in ns]


def partitions(root, ids=range(1, 251), n=125):
    "The records of GRID's file: cells of structures with three fields, the third one the training ids"
    cells = np.empty((1, 10), object)
    for k in range(10):
        mixed = np.random.default_rng(k).permutation(list(ids)).astype(float)
        cells[0, k] = dict(a=mixed[None, n:], b=mixed[None, n:], train=mixed[None, :n])
    savemat(root / "features_and_partitions.mat", dict(trainIdxAll=cells, features=np.zeros((3, 4))))


def full(name, base):
    "A folder of the published size; all images are links to one file"
    root, first = base / DG_SETS[name].folder, {}
    for p in published(name):
        f, suffix = root / p, p.rpartition(".")[2]
        f.parent.mkdir(parents=True, exist_ok=True)
        if suffix in first:
            os.link(first[suffix], f)
            continue
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 8, 3), np.uint8)).save(f, KINDS[suffix])
        first[suffix] = f
    if name == "grid": partitions(root)
    if name == "cuhk03":
        for lab in ("detected", "labeled"): savemat(root / f"cuhk03_new_protocol_config_{lab}.mat", config03(lab)[1])
        ids = [[pair, i + 1] for pair, n in enumerate(PAIRS03[:3], 1) for i in range(n)]
        tests = [random.Random(k).sample(ids, 100) for k in range(20)]
        (root / "cuhk03_testsets.json").write_text(json.dumps(tests))
    return root


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    "Full-size folders, made when first needed"
    base, made = tmp_path_factory.mktemp("full"), {}
    def get(name):
        if name not in made: made[name] = full(name, base)
        return made[name]
    return get


@pytest.mark.parametrize("name", NAMES)
def test_the_doctor_finds_the_published_counts(name, sizes):
    report = doctor(name, sizes(name))
    assert [str(f) for f in report.findings if f.level != "ok"] == []
    n = sum(np.max(c[1]) for c in DATASETS[name].counts.values())
    assert str(report).count("as published") >= len(DATASETS[name].counts) and len(report.table) == n


@pytest.mark.parametrize("kw, says", [
    (dict(labels="labeled"), ["train: 767 ids, 7368 images, as", "gallery: 700 ids, 5328 images, as"]),
    (dict(protocol="classic"), ["train: 1367 ids", "test: 100 ids"]),
    (dict(protocol="classic", split_id=19), ["train: 1367 ids"])])
def test_the_other_versions_of_cuhk03(kw, says, sizes):
    report = doctor("cuhk03", sizes("cuhk03"), **kw)
    assert [str(f) for f in report.findings if f.level != "ok"] == [] and all(s in str(report) for s in says)
    if "protocol" not in kw: return
    tests = json.loads((sizes("cuhk03") / "cuhk03_testsets.json").read_text())[kw.get("split_id", 0)]
    t = report.table
    assert set(t.where(split="test")["pid"]) == {PAIR*a + b for a, b in tests}
    assert len(t) == 14097
    assert len(t.query()) == len(t.gallery()) == 0      # no gallery of ten images a person is searched by mistake
    cases = single_shot_cases(t, split=kw.get("split_id", 0))
    assert {(len(c.g), c.g["pid"].nunique()) for c in cases} == {(100, 100)} and len(cases) == 10
    assert all(set(c.q["cam"]) == {0} and set(c.g["cam"]) == {1} for c in cases)


def test_what_the_protocols_need_is_in_the_tables(sizes):
    "Numbers of the mixed-dataset protocol: pairs of VIPeR, 549 and 775 distractors, images of i-LIDS"
    viper, prid, grid, ilids = [load_dataset(n, sizes(n), check="none") for n in TESTED]
    assert viper.frame.groupby("cam").pid.nunique().tolist() == [632, 632] and set(viper["role"]) == {"both"}
    shared = set(prid.query()["pid"])
    assert shared == set(range(1, 201)) and (~prid.gallery()["pid"].isin(shared)).sum() == 549
    assert set(prid["pid"][prid["cam"] == 0]) == shared and set(prid.gallery()["cam"]) == {1}
    assert (grid["pid"] == 0).sum() == 775 and set(grid["role"][grid["pid"] == 0]) == {"gallery"}
    assert 0 not in set(grid.query()["pid"]) and set(grid["cam"]) == set(range(8))
    assert not ilids.frame.duplicated(["pid", "cam"]).any() and set(ilids["cam"]) == set(range(4))
    halves = grid_partitions(sizes("grid"))
    assert [len(h) for h in halves] == [125]*10 and all(h.dtype == np.int64 for h in halves)
    want = np.sort(np.random.default_rng(3).permutation(range(1, 251))[:125])
    assert halves[3].tolist() == want.tolist()


def test_ids_of_a_pair_of_cameras_are_unique(sizes):
    t = load_dataset("cuhk02", sizes("cuhk02"), check="none")
    assert t["pid"].nunique() == 1816 and set(t["cam"]) == set(range(10))
    assert (t["pid"]//PAIR == t["cam"]//2 + 1).all() and t.frame.groupby("pid").cam.nunique().eq(2).all()
    one = t.frame[t["path"] == "Dataset/P3/cam2/017_001.png"].iloc[0]
    assert (one.pid, one.cam, one.split) == (3*PAIR + 17, 5, "train")


def test_a_part_of_a_set_keeps_its_names(sizes, tmp_path):
    for name in ("prid2011", "grid", "viper", "cuhk03"):
        t = load_dataset(name, sizes(name), check="none")
        some = t.take(np.isin(t["pid"], [0, *np.unique(t["pid"])[1:30:3], 500, 1300]))
        out = load_dataset(name, export_world(some, name, tmp_path / name))
        assert rows(out) == rows(some)
    was, now = grid_partitions(sizes("grid")), grid_partitions(tmp_path / "grid")
    ids = load_dataset("grid", tmp_path / "grid").query()["pid"]
    assert [h.tolist() for h in now] == [np.intersect1d(h, ids).tolist() for h in was]


# ---- by hand

def test_names_are_read_as_they_are_meant(tmp_path):
    def make(name, *paths):
        for p in paths:
            (tmp_path / name / p).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / p).write_bytes(b"")
        return [r[1:] for r in rows(load_dg_set(tmp_path / name, name))]
    assert make("viper", "cam_a/000_45.bmp", "cam_b/000_90.bmp", "cam_b/873_0.bmp") == [
        (0, 0, "test", "both"), (0, 1, "test", "both"), (873, 1, "test", "both")]
    assert make("prid2011", *(f"single_shot/cam_{c}/person_{i:04d}.png" for c in "ab" for i in (200, 201))) == [
        (200, 0, "test", "query"), (200, 1, "test", "gallery"), (201, 1, "test", "gallery")]
    assert make("grid", "probe/0001_1_25004_107_32_106_221.jpeg", "gallery/0001_8_3_1_1_1_1.jpeg",
                "gallery/0000_3_1_1_1_1_1.jpeg") == [
        (1, 0, "test", "query"), (0, 2, "test", "gallery"), (1, 7, "test", "gallery")]
    assert make("ilids", "Persons/0001001.jpg", "Persons/0001004.jpg", "Persons/0119001.jpg") == [
        (1, 0, "test", "both"), (1, 1, "test", "both"), (119, 0, "test", "both")]
    assert make("cuhk-sysu", "cropped_images/p11422_s16929_1.jpg") == [(11422, 0, "train", "both")]


def test_loading_opens_no_image(tmp_path):
    for name in NAMES:
        write_dg_set(dg_rows(tiny_table(8, 2, 0, roles=True), name), tmp_path / name, name)
        want = rows(load_dg_set(tmp_path / name, name))
        for p in (tmp_path / name).rglob("*.*"):
            if p.suffix in (".bmp", ".png", ".jpg", ".jpeg"): p.write_bytes(b"")
        assert rows(load_dg_set(tmp_path / name, name)) == want != []


# ---- round trips

@pytest.fixture(scope="module")
def world(): return load_dataset("world", preset="smoke")


@pytest.mark.parametrize("name", NAMES)
def test_a_world_survives(name, world, tmp_path):
    t = dg_rows(world, name)
    assert len(t) and unfit_dg_rows(t, name) == []
    root = export_world(t, name, tmp_path / "x")
    got = load_dataset(name, root, check="all")
    keys = [*zip(t["pid"], got_ids(t, name), t["cam"], t["split"], t["role"])]
    assert sorted(k[1:] for k in keys) == facts(got)
    assert len({k[:2] for k in keys}) == len({k[0] for k in keys}) == len({k[1] for k in keys})  # one to one
    assert doctor(name, root).ok
    if name in ("viper", "cuhk03"):  # no loss in BMP and PNG
        pixels = lambda t: sorted(im.tobytes() for im in t.read(t["path"].tolist()))
        assert pixels(got) == pixels(t)


def got_ids(t, name):
    "Identities as the layout counts them"
    count = lambda x: np.unique(x, return_inverse=True)[1] + 1
    pid, cam = t["pid"].to_numpy(), t["cam"].to_numpy()
    if name == "prid2011":
        asked = np.isin(pid, t.query()["pid"])
        out = pid.copy()
        out[asked], out[~asked] = count(pid[asked]), 200 + count(pid[~asked])
        kept = asked.sum() and set(pid[asked]) <= set(range(1, 201)) and not set(pid[~asked]) & set(range(1, 201))
        return pid if kept else out
    if name == "cuhk02":
        out = pid.copy()
        for p in set(cam//2): out[cam//2 == p] = PAIR*(p + 1) + count(pid[cam//2 == p])
        return out
    return pid


def person(items):
    f = pd.DataFrame(items, columns=["pid", "cam", "split", "role"])
    return ReidTable(f.assign(path=[f"{i}.jpg" for i in range(len(f))]), None,
                     lambda ps: [np.full((8, 4, 3), int(p[:-4]) * 7 % 256, np.uint8) for p in ps])


TABLES = st.lists(st.tuples(st.integers(-1, 9), st.integers(0, 5), st.sampled_from(["train", "val", "test"]),
                            st.sampled_from(["query", "gallery", "both", "none"])), min_size=1, max_size=24)


@settings(max_examples=60, deadline=None)
@example([(7, 0, "test", "query"), (7, 4, "test", "none")], "cuhk03", True)   # an image without a role chose cameras
@given(TABLES, st.sampled_from(NAMES), st.booleans())
def test_what_fits_comes_back(items, name, choose):
    "Any table: `dg_rows` fits and is its own result, and whatever has no finding survives the disk"
    t = person([(p + 20*(s == "test" and p > 0), c, s, r) for p, c, s, r in items])
    if choose:
        t = dg_rows(t, name)
        assert facts(dg_rows(t, name)) == facts(t) and (not len(t) or unfit_dg_rows(t, name) == [])
    if not len(t) or unfit_dg_rows(t, name): return
    with tempfile.TemporaryDirectory() as d:
        write_dg_set(t, Path(d) / "x", name)
        got = load_dg_set(d + "/x", name)
        colours = {p: int(im[0, 0, 0]) for p, im in zip(got["path"], got.images())}
    keep = [c for c in ("cam", "split", "role") if c in LAYOUTS[name].keeps]
    columns = lambda t: [*zip(*(t[c].mask(t["split"] == "train", "") if c == "role" else t[c] for c in keep))]
    by = lambda t, key: sorted(zip(key, columns(t), t["pid"]))
    want, have = by(t, [int(p[:-4])*7 % 256 for p in t["path"]]), by(got, [colours[p] for p in got["path"]])
    if name in ("grid", "ilids", "cuhk-sysu"):  # JPEG: colours move by a little
        want, have = (sorted((c, p) for _, c, p in x) for x in (want, have))
        up = int(name == "grid" and 0 in set(t.query()["pid"]))  # a person 0 moves up
        assert have == [(c, p + up) for c, p in want]
    else:
        assert [x[:2] for x in have] == [x[:2] for x in want]
        pairs = {(a[2], b[2]) for a, b in zip(want, have)}
        assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_the_disk_does_not_matter(name, tmp_path):
    write_dg_set(dg_rows(tiny_table(12, 4, 0, roles=True), name), tmp_path / "x", name)
    want = rows(load_dg_set(tmp_path / "x", name))
    whole = os.listdir
    @settings(max_examples=20, deadline=None)
    @given(st.randoms(use_true_random=False))
    def other_orders(r):
        def mixed(path):
            names = whole(path)
            r.shuffle(names)
            return names
        with pytest.MonkeyPatch.context() as m:
            m.setattr(os, "listdir", mixed)
            assert rows(load_dg_set(tmp_path / "x", name)) == want
    other_orders()
    paths = [r[0] for r in want]
    if name not in ("cuhk03", "grid"): assert paths == sorted(paths)


def test_files_of_matlab_can_be_read_by_others(tmp_path):
    "As other loaders do: names in `filelist`, indices from 1, the third field of each partition"
    t = dg_rows(tiny_table(12, 4, 0, roles=True), "cuhk03")
    t = changed(t, pid=t["pid"] + 5000)
    m = loadmat(export_world(t, "cuhk03", tmp_path / "c") / "cuhk03_new_protocol_config_detected.mat")
    for part, want in (("train", t.where(split="train")), ("query", t.query()), ("gallery", t.gallery())):
        index = m[f"{part}_idx"].flatten().astype(int) - 1
        got = [(int(m["labels"].flatten()[i]), int(m["filelist"].flatten()[i][0].split("_")[2]) - 1) for i in index]
        assert sorted(got) == sorted(zip(want["pid"], want["cam"])) != []
    g = dg_rows(tiny_table(24, 4, 0, roles=True), "grid")
    cells = loadmat(export_world(g, "grid", tmp_path / "g") / "features_and_partitions.mat")["trainIdxAll"][0]
    train = [sorted(c[0][0][2][0].tolist()) for c in cells]
    assert train == [h.tolist() for h in grid_partitions(tmp_path / "g")] and set(train[0]) <= set(g.query()["pid"])


def test_partitions_in_other_forms(tmp_path):
    cells = np.empty((1, 2), object)
    cells[0, :] = [np.arange(3, 0, -1.)[None], np.arange(4, 6.)[None]]
    savemat(tmp_path / "features_and_partitions.mat", dict(trainIdxAll=cells))
    assert [h.tolist() for h in grid_partitions(tmp_path)] == [[1, 2, 3], [4, 5]]
    for bad in (np.empty((1, 0), object), np.array([["a"]], object), np.array([[0.]])):
        savemat(tmp_path / "features_and_partitions.mat", dict(trainIdxAll=bad))
        with pytest.raises(TableError, match="'trainIdxAll' of 'features_and_part"): grid_partitions(tmp_path)


# ---- what has no place

def unfit(t, name): return "; ".join(map(str, unfit_dg_rows(t, name)))


def test_rows_without_a_place_are_named():
    t = tiny_table(8, 3, 0, roles=True)
    test = t.where(split="test")
    both = changed(test, role="both")
    says = unfit(changed(both, cam=[4, 5, 6]*2), "viper")
    assert "cameras outside 0..1" in says and "6 rows: row 0 ('6/0')" in says and "dg_rows(table, 'viper')" in says
    assert "images of test only" in unfit(t, "viper") and "images of train only" in unfit(test, "cuhk02")
    assert "images of train and test only [2 rows: row 0" in unfit(changed(test[:2], split="val"), "cuhk03")
    assert "junk" in unfit(changed(t, pid=-1), "grid")
    assert "several images of an identity in one folder" in unfit(changed(both, cam=0), "viper")
    assert "several images of an identity in one folder" in unfit(test, "grid")
    assert "identities in two pairs" in unfit(t.where(split="train"), "cuhk02")
    assert "queries outside camera 0" in unfit(changed(test, cam=1), "prid2011")
    assert "query and gallery" in unfit(both, "grid") and "query and gallery" in unfit(both, "prid2011")
    assert "role 'none'" in unfit(changed(test, role="none"), "ilids")
    assert "never ask" in unfit(changed(test, pid=[1, 1, 1, 2, 2, 2], role=["query"] + ["gallery"]*5), "ilids")
    many = person([(i, c, "test", "gallery" if c else "query") for i in range(201) for c in (0, 1)])
    assert "more than 200 query identities" in unfit(many, "prid2011")
    assert unfit(many.where(pid=lambda p: p < 200), "prid2011") == ""
    assert "ids beyond 9999" in unfit(changed(both, pid=10000, cam=[0, 1, 2, 3, 4, 5]), "ilids")
    assert "identities beyond 8991" in unfit(person([(i, 0, "train", "both") for i in range(8992)]), "cuhk03")
    assert "more than 99 images" in unfit(person([(1, i % 2, "train", "both") for i in range(100)]), "cuhk03")
    assert "more than 999 images" in unfit(person([(1, i, "test", "both") for i in range(1000)]), "ilids")


@pytest.mark.parametrize("name", NAMES)
def test_export_names_what_does_not_fit(name, tmp_path):
    with pytest.raises(TableError, match=f"export to {name}"):
        export_world(changed(tiny_table(8, 3, 0), split="val"), name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


# ---- what can be wrong on disk

@pytest.fixture
def made(tmp_path):
    "A small sound folder of a set"
    def get(name):
        root = tmp_path / DG_SETS[name].folder
        write_dg_set(dg_rows(tiny_table(12, 4, 0, roles=True), name), root, name)
        return root
    return get


def first(root, pattern): return sorted(root.glob(pattern))[0]


def renamed(name):
    def fault(root):
        p = first(root, "*/*.*")
        p.rename(p.with_name(name))
    return fault


def copied(pattern, suffix):
    def fault(root):
        p = first(root, pattern)
        shutil.copy(p, p.with_suffix(suffix))
    return fault


FAULTS = [  # set, what is done, words of the error
    ("viper", renamed("photo.bmp"), ["do not parse", "cam_a/photo.bmp", "000_45.bmp", "skip=True"]),
    ("prid2011", lambda r: first(r, "single_shot/cam_b/*").rename(r / "single_shot/cam_b/x_1.png"),
     ["do not parse", "single_shot/cam_b/x_1.png"]),
    ("grid", renamed("1_2.jpeg"), ["do not parse", "gallery/1_2.jpeg"]),
    ("ilids", renamed("12.jpg"), ["do not parse", "Persons/12.jpg"]),
    ("cuhk02", lambda r: first(r, "Dataset/P1/cam2/*").rename(r / "Dataset/P1/cam2/12345_1.png"),
     ["do not parse", "Dataset/P1/cam2/12345_1.png"]),
    ("cuhk-sysu", renamed("s1.jpg"), ["do not parse", "cropped_images/s1.jpg"]),
    ("grid", renamed("0007_9_00001.jpeg"), ["camera outside 1..8", "gallery/0007_9_00001.jpeg", "rename"]),
    ("grid", renamed("0007_0_00001.jpeg"), ["camera outside 1..8", "gallery/0007_0_00001.jpeg"]),
    ("viper", copied("cam_a/*", ".png"), ["1 base names occur twice", "cam_a/009_00.bmp and cam_a/009_00.png", "keep"]),
    ("grid", lambda r: shutil.copy(first(r, "probe/*"), r / "gallery"), ["base names occur twice", "and gallery/"]),
    ("ilids", copied("Persons/*", ".png"), ["base names occur twice", "Persons/0009001.jpg and Persons/0009001.png"]),
    ("cuhk-sysu", copied("cropped_images/*", ".JPEG"), ["base names occur twice"]),
    ("viper", lambda r: shutil.rmtree(r / "cam_b"), ["the folder 'cam_b' is missing", "copy it again"]),
    ("cuhk02", lambda r: shutil.rmtree(r / "Dataset/P4"), ["'Dataset/P4/cam1' is missing", "'Dataset/P4/cam2'"]),
    ("cuhk02", lambda r: [p.unlink() for p in r.rglob("*.png")], ["no image in the folders"]),
    ("grid", lambda r: [p.unlink() for p in (r / "gallery").iterdir()], ["no image in the folder 'gallery'"]),
    ("grid", lambda r: first(r, "probe/*").rename(r / "probe/0000_1_7.jpeg"), [
        "distractors among the queries", "probe/0000_1_7.jpeg", "move them to the gallery"]),
    ("viper", lambda r: shutil.copy(first(r, "cam_b/*"), r / "cam_b/9_9.bmp"), [
        "several in one folder", "cam_b/009_00.bmp", "cam_b/9_9.bmp", "keep one"]),
    ("prid2011", lambda r: first(r, "single_shot/cam_a/*").write_text("hello"), ["cam_a/person_0009.png", "is text"]),
    ("cuhk03", lambda r: first(r, "images_detected/*").unlink(), ["images_detected", "1_001_1_01.png", "missing"]),
    ("cuhk03", lambda r: first(r, "*.mat").unlink(), [
        "'cuhk03_new_protocol_config_detected.mat' is missing", "person-re-ranking"]),
    ("cuhk03", lambda r: first(r, "*.mat").write_text("no"), ["config_detected.mat' cannot be read as a MATLAB file"]),
    ("cuhk03", lambda r: first(r, "*.mat").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0"*600), [
        "config_detected.mat' cannot"]),
    ("cuhk03", lambda r: shutil.rmtree(r / "images_detected"), [
        "the folder 'images_detected' is missing", "extract_cuhk03(", "cuhk-03.mat", "needs h5py"])]


@pytest.mark.parametrize("name, fault, words", FAULTS)
def test_faults_name_the_file_and_the_remedy(name, fault, words, made):
    root = made(name)
    assert doctor(name, root).ok
    fault(root)
    text, report = error(name, root), doctor(name, root)
    assert not report.ok
    for word in words: assert word in text and word in str(report), word


def test_faults_that_are_warnings(made):
    grid, viper, ilids, cuhk02 = [made(n) for n in ("grid", "viper", "ilids", "cuhk02")]
    (grid / "features_and_partitions.mat").write_bytes(b"MATLAB 5.0 MAT-file" + b"\0"*300)
    report = doctor("grid", grid)
    assert report.ok and "'features_and_partitions.mat' " in str(report) and "archive of GRID" in str(report)
    (grid / "features_and_partitions.mat").unlink()
    assert "'features_and_partitions.mat' is missing" in str(doctor("grid", grid)) and len(load_dataset("grid", grid))
    partitions(grid, range(1, 7), 3)
    said = str(doctor("grid", grid))
    assert "10 partitions of 3 training ids" in said and "without a probe image" in said
    for root, name, part in ((viper, "viper", "cam_a"), (cuhk02, "cuhk02", "Dataset/P1/cam1")):
        first(root, f"{part}/*").unlink()
        if name == "cuhk02": [p.unlink() for p in (root / part).glob("001_*")]
        report = doctor(name, root)
        assert report.ok and "have no match under another camera" in str(report)
        alone = next(f for f in report.findings if "another camera" in f.what)
        assert part.replace("cam_a", "cam_b").replace("cam1", "cam2") in alone.where
    [p.unlink() for p in sorted((ilids / "Persons").glob("0009*"))[1:]]
    assert "1 of" in (s := str(doctor("ilids", ilids))) and "Persons/0009001.jpg" in s
    prid = str(doctor("prid2011", made("prid2011")))
    assert "0 distractors; published: 549 distractors" in prid and "query: 3 ids, 3 images; published: 200" in prid


def config(root, **new):
    "The `.mat` file of the new protocol with other arrays"
    path = root / "cuhk03_new_protocol_config_detected.mat"
    old = {k: v for k, v in loadmat(path).items() if k[0] != "_"}
    savemat(path, {k: v for k, v in (old | {k: f(old) for k, f in new.items()}).items() if v is not None})


@pytest.mark.parametrize("new, says", [
    (dict(camId=lambda m: 3 - m["camId"]), "'camId' of .* images is not the camera in the name .1_001_1_01.png"),
    (dict(labels=lambda m: m["labels"][:-1]), "config_detected.mat': .* labels"),
    (dict(query_idx=lambda m: m["query_idx"] + 1000), "an index outside 1.."),
    (dict(query_idx=lambda m: None), "config_detected.mat' lacks .'query_idx'"),
    (dict(filelist=lambda m: m["labels"]), "do not parse"),
    (dict(filelist=lambda m: np.vstack([m["filelist"][1:], m["filelist"][1:2]])), "base names occur twice"),
    (dict(filelist=lambda m: np.array([["../../1_001_1_01.png"]]*len(m["labels"]), object)), "twice|leaves"),
    (dict(filelist=lambda m: np.array([["1_001_3_01.png"]]*len(m["labels"]), object)), "camera outside 1..2")])
def test_a_wrong_configuration_of_cuhk03(new, says, made):
    root = made("cuhk03")
    config(root, **new)
    with pytest.raises(TableError, match=says) as e: load_dataset("cuhk03", root)
    assert "config_detected.mat" in str(e.value) or "leaves" in str(e.value)
    assert not doctor("cuhk03", root).ok


def test_roles_of_cuhk03_may_overlap(made):
    root = made("cuhk03")
    n = len(load_dataset("cuhk03", root).query())
    config(root, gallery_idx=lambda m: np.vstack([m["gallery_idx"], m["query_idx"]]))
    t = load_dataset("cuhk03", root)
    assert (t["role"][t["split"] == "test"] == "both").sum() == n and t["path"].is_unique


def test_classic_protocol_says_what_is_missing(made):
    root = made("cuhk03")
    (root / "cuhk03_testsets.json").write_text("[[[1]]]")
    with pytest.raises(TableError, match="'cuhk03_testsets.json' is no list"): load_cuhk03(root, protocol="classic")
    (root / "cuhk03_testsets.json").unlink()
    (root / "cuhk03_release").mkdir()
    (root / "cuhk03_release/cuhk-03.mat").write_bytes(b"")
    with pytest.raises(TableError, match="extract_cuhk03.*cuhk03_release/cuhk-03.mat"):
        load_cuhk03(root, protocol="classic")
    renamed("photo.png")(root)
    with pytest.raises(TableError, match="'cuhk03_testsets.json'"): load_cuhk03(root, protocol="classic", skip=True)


def test_only_the_authors_file_is_there(tmp_path):
    (tmp_path / "cuhk03").mkdir()
    (tmp_path / "cuhk03/cuhk-03.mat").write_bytes(b"x")
    text = error("cuhk03", tmp_path)
    for word in ("'images_detected' is missing", "extract_cuhk03(", "cuhk-03.mat", "needs h5py"): assert word in text


def test_extraction_from_the_authors_file(tmp_path):
    "A file of the same structure, as MATLAB 7.3 stores it: references, and axes in reverse order"
    h5py = pytest.importorskip("h5py")
    rng, people = np.random.default_rng(0), (2, 1, 1, 1, 1)
    pixels, ref = {}, h5py.special_dtype(ref=h5py.Reference)
    with h5py.File(tmp_path / "cuhk-03.mat", "w") as h:
        n = iter(range(10**6))
        put = lambda a: h.create_dataset(f"#refs#/{next(n)}", data=a).ref
        for labels in ("detected", "labeled"):
            cells = h.create_dataset(labels, (1, 5), ref)
            for pair, size in enumerate(people):
                group = h.create_dataset(f"#refs#/{next(n)}", (10, size), ref)
                for pid in range(size):
                    for i in range(10):
                        image = rng.integers(0, 256, (20, 10, 3), np.uint8)
                        if i == 9:
                            group[i, pid] = put(np.zeros(2, np.uint64))
                            continue  # an empty cell
                        pixels[f"images_{labels}/{pair + 1}_{pid + 1:03d}_{1 + i//5}_{i + 1:02d}.png"] = image
                        group[i, pid] = put(image.transpose(2, 1, 0))
                cells[0, pair] = group.ref
        tests = h.create_dataset("testsets", (1, 20), ref)
        for k in range(20): tests[0, k] = put(np.array([[1, 2.], [1 + k % 2, 1]]).T)
    out = extract_cuhk03(tmp_path / "cuhk-03.mat", tmp_path / "cuhk03")
    assert {p.relative_to(out).as_posix() for p in out.rglob("*.png")} == set(pixels)
    assert all((np.asarray(Image.open(out / p)) == im).all() for p, im in pixels.items())
    t = load_dataset("cuhk03", out, protocol="classic", split_id=1, check="all")
    assert set(t.where(split="test")["pid"]) == {PAIR + 2, 2*PAIR + 1} and len(t) == 54


def test_without_h5py_the_extraction_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match="pip install h5py"): extract_cuhk03(tmp_path / "x.mat", tmp_path)


# ---- options, records, imports

@pytest.mark.parametrize("name, kw, says", [
    ("viper", dict(labels="detected"), "option of viper='labels'"), ("viper", dict(dataset="grid"), "option of viper"),
    ("cuhk03", dict(labels="label"), "Did you mean 'labeled'"), ("cuhk03", dict(protocol="old"), "protocol='old'"),
    ("cuhk03", dict(split_id=3), "needs protocol='classic'"), ("cuhk03", dict(form="raw"), "option of cuhk03='form'"),
    ("cuhk03", dict(protocol="classic", split_id=20), "split_id=20")])
def test_options_are_checked(name, kw, says, made):
    with pytest.raises(ValueError, match=says): load_dataset(name, made(name), **kw)


def test_files_that_are_passed_over(made):
    root = made("ilids")
    want = rows(load_dataset("ilids", root))
    for n in ("Thumbs.db", ".hidden.jpg", "readme.txt"): (root / "Persons" / n).write_text("x")
    assert rows(load_dataset("ilids", root)) == want
    (root / "Persons/note.jpg").write_bytes(first(root, "Persons/0*").read_bytes())
    assert rows(load_dataset("ilids", root, skip=True)) == want
    (root / "Persons").rename(root / "persons2")
    (root / "persons2").rename(root / "PERSONS")
    assert [r[1:] for r in rows(load_dg_set(root, "ilids", skip=True))] == [r[1:] for r in want]


def test_facts_of_the_records():
    for n in NAMES:
        form, d = DG_SETS[n], DATASETS[n]
        assert re.match(form.pattern, form.example) and form.example.rpartition(".")[2] == form.name.rpartition(".")[2]
        assert d.splits == (("test",) if n in TESTED else ("train",) if n in TRAINED else ("train", "test"))
        assert d.cameras == (n not in ("ilids", "cuhk-sysu")) and d.image_queries == (n not in TRAINED)
    fit = list_datasets(cameras=True, image_queries=True, splits=("train", "test"))
    assert "cuhk03" in fit and not {*TESTED, *TRAINED} & set(fit)


def test_an_image_that_cannot_be_decoded_is_named(made):
    root = made("cuhk02")
    p = first(root, "Dataset/P1/cam1/*")
    p.write_bytes(p.read_bytes()[:60])
    assert p.name in error("cuhk02", root, check="all") and p.name in str(doctor("cuhk02", root, check="all"))


def test_the_second_export_has_the_same_bytes(made, tmp_path):
    for name in ("grid", "cuhk03"):
        root = made(name)
        again = export_world(load_dataset(name, root), name, tmp_path / f"again-{name}")
        files = lambda d: {p.relative_to(d).as_posix(): p.read_bytes() for p in d.rglob("*") if p.is_file()}
        assert files(again) == files(root)


def test_command_line(made, capsys):
    from reid_lab.cli.commands import main
    assert main(["doctor", "grid", "--root", str(made("grid"))]) == 0
    assert "published: 775 distractors" in capsys.readouterr().out
    assert main(["datasets"]) == 0 and "underground_reid/{probe,gallery}" in capsys.readouterr().out


def test_check_sees_distractors_that_ask():
    t = person([(205, 0, "test", "query"), (205, 1, "test", "gallery")])
    found = [f for f in check_dg_set(t, "prid2011", files=False) if "distractors among" in f.what]
    assert [(f.level, f.where) for f in found] == [("error", "0.jpg")]


def test_import_is_light():
    heavy = ("torch", "transformers", "matplotlib", "sklearn", "scipy", "h5py")
    code = f"import sys, reid_lab.datasets.dg_sets; print([m for m in {heavy} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
