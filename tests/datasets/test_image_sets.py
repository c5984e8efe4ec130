"Market-1501, DukeMTMC-reID and MSMT17: exact names, both ways, and every way in which a folder can be wrong"
import os
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image, features

from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets import dg_sets, diagnosis as D
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import (
    IMAGE_SETS,
    SUBSETS,
    check_image_set,
    load_image_set,
    tiny_table,
    unfit_rows,
    write_images,
)
from reid_lab.datasets.registry import DATASETS, load_dataset

pytestmark = pytest.mark.usefixtures("no_user_settings")

BOXES = dict(train="bounding_box_train", query="query", gallery="bounding_box_test")
MARKET = ["bounding_box_train/0002_c1s1_000451_03.jpg", "bounding_box_train/0002_c6s4_000476_02.jpg",
          "bounding_box_train/0007_c2s3_070952_01.jpg", "query/0001_c1s1_001051_00.jpg",
          "query/1501_c3s3_086567_00.jpg",
          "bounding_box_test/-1_c1s1_000401_03.jpg", "bounding_box_test/0000_c4s6_000151_01.jpg",
          "bounding_box_test/0001_c2s1_000301_01.jpg", "bounding_box_test/1501_c6s4_001902_01.jpg"]
DUKE = ["bounding_box_train/0001_c2_f0046182.jpg", "bounding_box_train/0001_c8_f0046302.jpg",
        "query/0005_c2_f0046985.jpg",
        "bounding_box_test/0005_c5_f0051341.jpg", "bounding_box_test/7140_c7_f0112233.jpg"]
LISTS = dict(train=[("0000/0000_000_01_0303morning_0015_0.jpg", 0), ("0001/0001_003_14_0113noon_0451_1.jpg", 1)],
             val=[("0001/0001_004_15_0302afternoon_1188_0.jpg", 1)],
             query=[("0000/0000_002_05_0303morning_0113_0.jpg", 0), ("0002/0002_000_01_0303morning_0015_2.jpg", 2)],
             gallery=[("0000/0000_003_06_0303noon_0113_0.jpg", 0), ("0001/0001_001_09_0303noon_0002_0.jpg", 1),
                      ("0002/0002_009_15_0303noon_0113_0.jpg", 2)])
NAMES = list(IMAGE_SETS)


def picture(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    block = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 256, (4, 2, 3), np.uint8)
    Image.fromarray(np.kron(block, np.ones((8, 8, 1), np.uint8))).save(path)


def make(name, root, version="v1"):
    "A folder of the benchmark with names as published"
    if name != "msmt17":
        for n in MARKET if name == "market1501" else DUKE: picture(root / n)
        return root
    for part, rows in LISTS.items():
        for p, _ in rows: picture(root / IMAGE_SETS["msmt17"].folders[version][part] / p)
        (root / f"list_{part}.txt").write_text("".join(f"{p} {i}\n" for p, i in rows))
    return root


@pytest.fixture
def market(tmp_path): return make("market1501", tmp_path / "Market-1501-v15.09.15")


@pytest.fixture
def msmt(tmp_path): return make("msmt17", tmp_path / "MSMT17_V1")


def error(name, folder, **kw):
    with pytest.raises(TableError) as e: load_dataset(name, folder, **kw)
    return str(e.value)


def rows(t, up=0): return [*zip(t["path"], t["pid"] + up, t["cam"], t["split"], t["role"])]


def facts(t, up=0): return sorted(zip(t["pid"] + up, t["cam"], t["split"], t["role"]))


# ---- reading what is published

def test_market_by_hand(market):
    t = load_dataset("market1501", market, check="all")
    assert rows(t)[:4] == [("bounding_box_train/0002_c1s1_000451_03.jpg", 2, 0, "train", "both"),
                           ("bounding_box_train/0002_c6s4_000476_02.jpg", 2, 5, "train", "both"),
                           ("bounding_box_train/0007_c2s3_070952_01.jpg", 7, 1, "train", "both"),
                           ("query/0001_c1s1_001051_00.jpg", 1, 0, "test", "query")]
    assert t.gallery()["pid"].tolist() == [-1, 0, 1, 1501] and t.query()["pid"].tolist() == [1, 1501]
    assert t["captions"].map(len).sum() == 0 and t.name == "market1501" and t["path"].is_unique
    assert load_dataset("market1501", market, junk=False).gallery()["pid"].tolist() == [0, 1, 1501]


def test_duke_by_hand(tmp_path):
    t = load_dataset("dukemtmc-reid", make("dukemtmc-reid", tmp_path / "d"), check="all")
    assert t["pid"].tolist() == [1, 1, 5, 5, 7140] and t["cam"].tolist() == [1, 7, 1, 4, 6]
    assert t["role"].tolist() == ["both"] * 2 + ["query"] + ["gallery"] * 2


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_msmt_by_hand(version, tmp_path):
    t = load_dataset("msmt17", make("msmt17", tmp_path / "m", version), check="all")
    assert t["pid"].tolist() == [0, 1, 1, 2, 4, 2, 3, 4]  # test people counted on from those of training
    assert t["cam"].tolist() == [0, 13, 14, 4, 0, 5, 8, 14]
    assert t["split"].tolist() == ["train"] * 2 + ["val"] + ["test"] * 5 and t["role"].tolist()[3:5] == ["query"] * 2
    assert t["path"][0] == {"v1": "train/", "v2": "mask_train_v2/"}[version] + LISTS["train"][0][0]
    merged = load_dataset("msmt17", tmp_path / "m", merge_val=True)
    assert merged["split"].value_counts().to_dict() == dict(train=3, test=5)
    assert merged["pid"].tolist() == t["pid"].tolist()


def test_an_empty_list_leaves_numbers_numbers(msmt):
    "A val list without a line used to turn person ids into objects"
    (msmt / "list_val.txt").write_text("")
    t = load_dataset("msmt17", msmt)
    assert t.frame.pid.dtype == t.frame.cam.dtype == np.int64 and "val" not in set(t.frame.split)


def test_other_readers_agree(tmp_path):
    "The rules that loaders elsewhere use: search of `([-\\d]+)_c(\\d)`, and the third field of an MSMT17 name"
    t = ReidTable(tiny_table(12, 4, 0, roles=True).frame, None, tiny_table(12, 4).reader)
    two = t.where(split=["train", "test"])
    for name in ("market1501", "dukemtmc-reid"):
        root = export_world(two, name, tmp_path / name)
        got = [(int(m[1]), int(m[2]) - 1, part) for part, d in BOXES.items() for p in sorted((root / d).glob("*.jpg"))
               for m in [re.search(r"([-\d]+)_c(\d)", p.name)]]
        want = [(p + 1, c, "train" if s == "train" else r)
                for p, c, s, r in zip(two["pid"], two["cam"], two["split"], two["role"])]
        assert sorted(got) == sorted(want)
    for layout, d in (("msmt17", ("train", "test")), ("msmt17-v2", ("mask_train_v2", "mask_test_v2"))):
        root = export_world(t, layout, tmp_path / layout)
        for part, (split, role) in SUBSETS.items():
            lines = [line.split(" ") for line in (root / f"list_{part}.txt").read_text().splitlines()]
            assert all((root / d[split == "test"] / p).is_file() and p.split("/")[0] == f"{int(i):04d}"
                       for p, i in lines)
            f = t.frame[(t.frame.split == split) & ((t.frame.role == role) | (split != "test"))]
            first = 9 if split == "test" else 0
            assert [(int(i), int(p.split("/")[1].split("_")[2]) - 1) for p, i in lines] == [*zip(f.pid - first, f.cam)]


@pytest.mark.parametrize("name, pattern", [("market1501", r"^(-1|\d{4})_c\ds\d_\d{6}_\d{2}\.jpg$"),
                                           ("dukemtmc-reid", r"^\d{4}_c\d_f\d{7}\.jpg$"),
                                           ("msmt17", r"^\d{4}_\d{3}_\d{2}_\d{4}[a-z]+_\d{4}_\d\.jpg$")])
def test_names_have_the_published_form(name, pattern, tmp_path):
    listed = [p for rows in LISTS.values() for p, _ in rows]
    published = {"market1501": MARKET, "dukemtmc-reid": DUKE, "msmt17": listed}[name]
    assert all(re.match(pattern, p.rpartition("/")[2]) and re.match(IMAGE_SETS[name].pattern, p.rpartition("/")[2])
               for p in published)
    t = tiny_table(roles=True).where(split=["train", "test"])
    root = export_world(t, name, tmp_path / name)
    files = [p for p in root.rglob("*.jpg")]
    assert len(files) == len(t) and all(re.match(pattern, p.name) and p.read_bytes()[:2] == b"\xff\xd8" for p in files)


# ---- round trips

@pytest.mark.parametrize("name", NAMES)
def test_a_published_folder_comes_out_as_it_went_in(name, tmp_path):
    root = make(name, tmp_path / "in")
    out = export_world(load_dataset(name, root), name, tmp_path / "out")
    files = lambda d: {p.relative_to(d).as_posix(): p.read_bytes() for p in d.rglob("*") if p.is_file()}
    assert files(out) == files(root)


def test_v1_to_v2_and_back(msmt, tmp_path):
    v2 = export_world(load_dataset("msmt17", msmt), "msmt17-v2", tmp_path / "v2")
    assert (v2 / "mask_test_v2" / LISTS["query"][0][0]).is_file() and not (v2 / "train").exists()
    assert facts(load_dataset("msmt17", v2)) == facts(load_dataset("msmt17", msmt))
    assert (v2 / "list_val.txt").read_bytes() == (msmt / "list_val.txt").read_bytes()


def test_a_subset_keeps_its_names(market, tmp_path):
    t = load_dataset("market1501", market, junk=False).where(cam=[0, 1, 2, 5])
    names = lambda d: sorted(p.relative_to(d).as_posix() for p in d.rglob("*.jpg"))
    assert names(export_world(t, "market1501", tmp_path / "s")) == sorted(t["path"])


def test_between_the_sets(market, tmp_path):
    t = load_dataset("market1501", market)
    with pytest.raises(TableError, match="junk"): export_world(t, "msmt17", tmp_path / "no")
    clean = t.where(pid=lambda p: p >= 0)
    got = load_dataset("msmt17", export_world(clean, "msmt17", tmp_path / "m"))
    assert got.where(split="train")["pid"].tolist() == [0, 0, 1]
    assert sorted(set(got.where(split="test")["pid"])) == [2, 3, 4]
    assert got["cam"].tolist() == clean["cam"].tolist() and len(got.query()) == 2
    asked = set(got.query()["pid"])
    assert [p in asked for p in got.gallery()["pid"]] == [False, True, True]  # the distractor is still nobody's match


def test_person_zero_moves_up_and_a_distractor_stays(tmp_path):
    t = tiny_table(4, 3, 0, roles=True).where(split=["train", "test"])
    person = t.frame
    nobody = person.assign(pid=person.pid + 5)
    nobody.loc[nobody.index[-1], "pid"] = 0
    for k, (f, up) in enumerate([(person, 1), (nobody, 0)]):
        got = load_dataset("market1501", export_world(ReidTable(f, None, t.reader), "market1501", tmp_path / str(k)))
        assert facts(got) == facts(ReidTable(f, None, t.reader), up)
    mixed = person.assign(pid=[-1 if i == len(person) - 1 else p for i, p in enumerate(person.pid)])
    got = load_dataset("market1501", export_world(ReidTable(mixed, None, t.reader), "market1501", tmp_path / "j"))
    assert sorted(set(got["pid"])) == [-1, 1, 2, 4] and got["role"][got["pid"] == -1].tolist() == ["gallery"]


def test_an_image_of_both_roles_is_query_and_gallery(tmp_path):
    t = tiny_table(4, 3, 0)
    t = ReidTable(t.frame.assign(role="both"), None, t.reader).where(split=["train", "test"])
    got = load_dataset("market1501", export_world(t, "market1501", tmp_path / "b"))
    assert len(got.query()) == len(got.gallery()) == 3 and len(got) == len(t) + 3
    for q, g in zip(got.query()["path"], got.gallery()["path"]):
        assert (got.root / q).read_bytes() == (got.root / g).read_bytes()
    junk = changed(t, pid=[-1 if i == len(t) - 1 else p for i, p in enumerate(t["pid"])])
    got = load_dataset("market1501", export_world(junk, "market1501", tmp_path / "j"))
    assert got["role"][got["pid"] == -1].tolist() == ["gallery"]  # junk never asks


def test_names_are_kept_only_while_they_are_true(market, tmp_path):
    t = load_dataset("market1501", market)
    for k, f in enumerate((t.frame.assign(cam=t["cam"].map({0: 1, 1: 0}).fillna(t["cam"]).astype(int)),
                           t.frame.assign(pid=t["pid"].where(t["pid"] < 1, t["pid"] + 9)))):
        got = load_dataset("market1501", export_world(ReidTable(f, t.root), "market1501", tmp_path / str(k)))
        assert facts(got) == facts(ReidTable(f, t.root)) != facts(t)


def test_names_that_collide_or_are_no_jpeg_are_made_anew(market, tmp_path):
    t = load_dataset("market1501", market)
    twice = t.frame.assign(path=lambda f: "a/" + f.path)
    both = ReidTable(pd.concat([twice, t.frame.assign(path=lambda f: "b/" + f.path)]), None,
                     lambda ps: [np.zeros((8, 4, 3), np.uint8)] * len(ps))
    assert len(load_dataset("market1501", export_world(both, "market1501", tmp_path / "two"))) == 2 * len(t)
    png = ReidTable(t.frame.assign(path=lambda f: f.path.str.replace(".jpg", ".png")), None, both.reader)
    assert {p.suffix for p in export_world(png, "market1501", tmp_path / "png").rglob("*.*")} == {".jpg"}


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 8), st.sampled_from(["train", "query", "gallery"])),
                min_size=3, max_size=12),
       st.sampled_from([name for name, spec in LAYOUTS.items() if spec.dataset in IMAGE_SETS]))
def test_any_table_survives(items, layout):
    import tempfile
    items = [(p + 10 * (k == "train"), c, k) for p, c, k in items]
    items += [(1, 0, "query"), (2, 1, "gallery"), (11, 2, "train")]
    f = pd.DataFrame(dict(path=[f"{i}" for i in range(len(items))], pid=[p for p, *_ in items],
                          cam=[c for _, c, _ in items],
                          split=["train" if k == "train" else "test" for *_, k in items],
                          role=["both" if k == "train" else k for *_, k in items]))
    t = ReidTable(f, None, lambda ps: [np.full((8, 4, 3), int(p) * 9 % 256, np.uint8) for p in ps])
    with tempfile.TemporaryDirectory() as d:
        got = load_dataset(LAYOUTS[layout].dataset, export_world(t, layout, Path(d) / "x"), check="none")
        seen = [(p, c, s, r, int(im.mean()) // 9)
                for p, c, s, r, im in zip(got["pid"], got["cam"], got["split"], got["role"], got.images())]
    want = [(p, c, s, r, i) for i, (p, c, s, r) in enumerate(zip(t["pid"], t["cam"], t["split"], t["role"]))]
    seen.sort(key=lambda x: (x[4], x[1:4]))
    want.sort(key=lambda x: (x[4], x[1:4]))
    assert [x[1:4] for x in seen] == [x[1:4] for x in want]  # cameras, splits, roles
    pairs = {(a[0], b[0]) for a, b in zip(want, seen)}
    assert len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})  # people: one to one


def test_writing_keeps_the_pixels(tmp_path):
    t = tiny_table(roles=True)
    write_images(t, tmp_path, [f"{i}.jpg" for i in range(len(t))])
    for i in range(len(t)):
        assert np.abs(np.asarray(Image.open(tmp_path / f"{i}.jpg")).astype(int) - t.image(i)).mean() < 8
    with pytest.raises(ValueError, match="leaves the dataset folder"): write_images(t, tmp_path, ["../x.jpg"] * len(t))


def test_a_rendered_world_of_this_task(tmp_path):
    w = load_dataset("world", preset="smoke", task="reid").where(split=["train", "test"])
    w = w.take(np.sort(np.random.default_rng(0).permutation(len(w))[:60]))
    for layout in ("market1501", "msmt17"):
        got = load_dataset(LAYOUTS[layout].dataset, export_world(w, layout, tmp_path / layout, renumber=True),
                           check="all")
        assert sorted(zip(got["cam"], got["split"], got["role"])) == sorted(zip(w["cam"], w["split"], w["role"]))
        assert got["pid"].nunique() == w["pid"].nunique() and doctor(LAYOUTS[layout].dataset, tmp_path / layout).ok


# ---- what has no place

def changed(t, **columns): return ReidTable(t.frame.assign(**columns), None, t.reader)


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_place_are_refused_with_a_remedy(name, tmp_path):
    t = tiny_table(4, 3, 0, roles=True)
    two = t.where(split=["train", "test"])
    most = IMAGE_SETS[name].most
    bad = [(changed(two, role="gallery"), "no test image can be query", "give test images the role"),
           (changed(two, role="query"), "no test image can be gallery", "give test images the role"),
           (changed(two, role=["both"] * 6 + ["query", "gallery", "none"]), "role 'none'", "give them a role"),
           (changed(two, cam=[most] * 9), f"cameras outside 0..{most - 1}", rf"table.where\(cam=range\({most}\)\)"),
           (changed(two, cam=[-1] * 9), "do not fit the file name", "table.where")]
    if name != "msmt17": bad.append((t, "no subset for split val", "or call them train"))
    if name != "market1501": bad.append((changed(two, pid=two["pid"].tolist()[:8] + [-1]), "junk", "p >= 0"))
    for k, (table, what, remedy) in enumerate(bad):
        with pytest.raises(TableError, match=f"(?s){re.escape(what)}.*{remedy}"):
            export_world(table, name, tmp_path / str(k))
        assert not (tmp_path / str(k)).exists()
    assert unfit_rows(two, name) == [] and unfit_rows(two.where(split="train"), name) == []


def test_twelve_cameras_go_to_msmt(tmp_path):
    wide = tiny_table(4, 12, 0, roles=True).where(split=["train", "test"])
    with pytest.raises(TableError, match="or the layout msmt17"): export_world(wide, "market1501", tmp_path / "m")
    assert load_dataset("msmt17", export_world(wide, "msmt17", tmp_path / "m"))["cam"].max() == 11


def test_text_layouts_still_refuse_junk_and_mals_silence(tmp_path):
    t = tiny_table()
    junk = changed(t, pid=[-1] + t["pid"].tolist()[1:], split="test")
    for layout in ("cuhk-pedes", "mals"):
        with pytest.raises(TableError, match="junk"): export_world(junk, layout, tmp_path / layout)


# ---- folders

@pytest.mark.parametrize("name", NAMES)
def test_the_folder_is_found_under_each_name(name, tmp_path):
    spec = DATASETS[name]
    for k, folder in enumerate((spec.folder, *spec.also)):
        make(name, tmp_path / str(k) / folder)
        n = len(load_dataset(name, tmp_path / str(k), check="none"))
        assert n == len(load_dataset(name.upper(), tmp_path / str(k) / folder)) > 4


def test_upper_case_of_the_second_version(tmp_path):
    root = make("msmt17", tmp_path / "m", "v2")
    (root / "mask_train_v2").rename(root / "mask_train_V2")
    assert load_dataset("msmt17", root, check="all")["path"][0].startswith("mask_train_V2/")


def test_two_versions_in_one_folder_ask_which(msmt):
    make("msmt17", msmt, "v2")
    assert "pass one of version=['v1', 'v2']" in error("msmt17", msmt) and not doctor("msmt17", msmt).ok
    for v, d in (("v1", "test"), ("v2", "mask_test_v2")):
        assert load_dataset("msmt17", msmt, version=v).query()["path"][0].startswith(f"{d}/")
    with pytest.raises(ValueError, match="version='v3'"): load_dataset("msmt17", msmt, version="v3")


def test_a_text_set_in_that_folder_is_recognised(tmp_path):
    export_world(tiny_table(), "cuhk-pedes", tmp_path / "CUHK-PEDES")
    for name in NAMES: assert "looks like cuhk-pedes" in error(name, tmp_path / "CUHK-PEDES")
    export_world(tiny_table(roles=True), "msmt17", tmp_path / "m")
    assert "looks like msmt17" in error("market1501", tmp_path / "m")
    with pytest.raises(ValueError, match="is no folder"): load_image_set(tmp_path / "gone", "market1501")


def test_market_and_duke_mixed_up(market, tmp_path):
    text = error("dukemtmc-reid", market)
    assert "names of market1501: is this the right folder?" in text and "0002_c1s1_000451_03.jpg" in text
    assert "expected such as 0001_c2_f0046182.jpg" in str(doctor("dukemtmc-reid", market))
    assert "names of dukemtmc-reid" in error("market1501", make("dukemtmc-reid", tmp_path / "d"))


@pytest.mark.parametrize("bad",
                         ["photo.jpg", "0002.jpg", "c1s1_000451_03.jpg", "0002_c0s1_000451_03.jpg",
                          "-2_c1s1_000451_03.jpg", "0002_cxs1_0_0.png"])
def test_names_that_do_not_parse_are_named(market, bad):
    picture(market / "bounding_box_train" / bad)
    text = error("market1501", market)
    assert f"bounding_box_train/{bad}" in text and "1 of 4 file names do not parse" in text and "skip=True" in text
    assert bad in str(doctor("market1501", market))
    assert len(load_dataset("market1501", market, skip=True)) == len(MARKET)


def test_other_files_are_passed_over(market):
    for n in ("Thumbs.db", ".DS_Store", "._0002_c1s1_000451_03.jpg", "readme.txt"):
        (market / "query" / n).write_text("x")
    (market / "gt_bbox").mkdir()
    (market / "gt_bbox/x.jpg").write_text("x")
    os.rename(market / MARKET[0], market / (MARKET[0] + ".jpg"))
    assert len(load_dataset("market1501", market, check="all")) == len(MARKET)


@pytest.mark.parametrize("name, part",
                         [(n, p) for n in ("market1501", "msmt17") for p in ("train", "query", "gallery")])
def test_missing_and_empty_parts(name, part, tmp_path):
    root = make(name, tmp_path / "x")
    form = IMAGE_SETS[name]
    gone = root / (form.lists or BOXES)[part]
    others = [p for p in form.folders["v1"] if p != part]
    for empty in (True, False):
        if gone.is_dir():
            shutil.rmtree(gone)
            if empty: gone.mkdir()
        elif empty: gone.write_text("\n")
        else: gone.unlink()
        text, report = error(name, root), doctor(name, root)
        assert gone.name in text and f"subsets={others}" in text
        assert ("is empty" in text or "no image in" in text) == empty
        assert "is missing" in text or empty
        assert not report.ok and gone.name in str(report)
        t = load_dataset(name, root, subsets=others)
        assert len(t) > 0 and (part == "train" or len(t.where(split="test")) > 0)
        assert doctor(name, root, subsets=others).ok


def test_all_parts_that_are_missing_are_named_at_once(market):
    shutil.rmtree(market / "query")
    shutil.rmtree(market / "bounding_box_train")
    assert "2 problem(s)" in error("market1501", market)


@pytest.mark.parametrize("kw, says", [
    (dict(subsets="val"), "subsets='val'"), (dict(subsets=["train", "tets"]), "subsets='tets' is not known"),
    (dict(merge_val=True), "needs the subset val"),
    (dict(form="raw"), "option of market1501='form'"), (dict(dataset="msmt17"), "option of market1501='dataset'")])
def test_options_are_checked(kw, says, market):
    with pytest.raises(ValueError, match=says): load_dataset("market1501", market, **kw)


# ---- lists

def edit(root, change, name="list_gallery.txt"):
    lines = (root / name).read_text().splitlines()
    change(lines)
    (root / name).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize("line",
                         ["0000/0000_003_06_0303noon_0113_0.jpg", "0000/0000_003_06_0303noon_0113_0.jpg x", "7",
                          "a b c", "<html>"])
def test_lines_of_another_form_are_named(msmt, line):
    edit(msmt, lambda ls: ls.insert(1, line))
    text = error("msmt17", msmt)
    assert "list_gallery.txt line 2" in text and line in text
    assert "a line looks like 0000/0000_000_01_0303morning_0015_0.jpg 0" in text
    assert not doctor("msmt17", msmt).ok


def test_a_listed_name_that_does_not_parse(msmt):
    edit(msmt, lambda ls: ls.insert(2, "0000/0000_c14_0030.jpg 0"))
    text = error("msmt17", msmt)
    assert "list_gallery.txt line 3" in text and "do not parse" in text
    assert len(load_dataset("msmt17", msmt, skip=True)) == 8


def test_a_listed_image_that_is_not_there(msmt):
    for part in ("train", "gallery"): (msmt / IMAGE_SETS["msmt17"].folders["v1"][part] / LISTS[part][1][0]).unlink()
    text, report = error("msmt17", msmt), str(doctor("msmt17", msmt))
    for said in (text, report):
        for word in ("2 of 8 listed images do not exist", "list_train.txt line 2", "list_gallery.txt line 2",
                     LISTS["gallery"][1][0], "drop_bad=True"):
            assert word in said
    with pytest.warns(UserWarning, match="dropped 2 of 8 images"):
        assert len(load_dataset("msmt17", msmt, drop_bad=True)) == 6
    assert len(load_dataset("msmt17", msmt, check="none")) == 8
    picture(msmt / "test" / LISTS["train"][1][0])  # the same name on the other side
    edit(msmt, lambda ls: ls.append(LISTS["train"][1][0] + " 1"))
    assert "list_train.txt line 2 ('train/0001" in error("msmt17", msmt)
    shutil.rmtree(msmt / "test")
    assert "the folder 'test' is missing" in error("msmt17", msmt)


def test_lists_of_other_hands(msmt):
    "Windows line ends, a byte order mark, backslashes, blank lines, no newline at the end"
    want = rows(load_dataset("msmt17", msmt))
    for p in msmt.glob("list_*.txt"):
        p.write_bytes(b"\xef\xbb\xbf" + p.read_text().replace("/", "\\").replace("\n", "\r\n\r\n").strip().encode())
    assert rows(load_dataset("msmt17", msmt, check="all")) == want
    (msmt / "list_query.txt").write_bytes(bytes(range(256)) * 4)
    assert "list_query.txt line 1" in error("msmt17", msmt)


@pytest.mark.parametrize("path",
                         ["../../secret_0_01_a_0_0.jpg", "/etc/0000_000_01_a_0_0.jpg", "..\\..\\0000_000_01_a_0_0.jpg",
                          "x" * 300 + "/0000_000_01_a_0_0.jpg", "a\0/0000_000_01_a_0_0.jpg"])
def test_listed_paths_that_leave_the_folder_or_cannot_be(msmt, path):
    edit(msmt, lambda ls: ls.append(f"{path} 0"))
    assert re.search("leaves the root|do not exist|do not parse", error("msmt17", msmt))
    assert not doctor("msmt17", msmt).ok


def test_no_validation_list(msmt):
    (msmt / "list_val.txt").write_text("")
    assert len(load_dataset("msmt17", msmt)) == 7  # empty is fine
    (msmt / "list_val.txt").unlink()
    assert "'list_val.txt' is missing" in error("msmt17", msmt)
    assert len(load_dataset("msmt17", msmt, subsets=["train", "query", "gallery"])) == 7


def test_test_ids_do_not_depend_on_the_parts_read(msmt):
    t = load_dataset("msmt17", msmt)
    tested = load_dataset("msmt17", msmt, subsets=["query", "gallery"])
    assert tested["pid"].tolist() == t.where(split="test")["pid"].tolist()


# ---- content

def test_an_id_in_train_and_test(market):
    picture(market / "bounding_box_test" / "0002_c3s1_000999_01.jpg")
    text, report = error("market1501", market), doctor("market1501", market)
    for word in ("1 id(s) in both train and test: [2]", "bounding_box_train/0002_c1s1_000451_03.jpg",
                 "move or renumber"):
        assert word in text and word in str(report)
    assert not report.ok


def test_validation_people_of_msmt_are_training_people(msmt):
    assert load_dataset("msmt17", msmt).findings() != [] and doctor("msmt17", msmt).ok  # shared by design


def test_an_image_that_is_text(market):
    (market / MARKET[4]).write_text("hello")
    assert "1501_c3s3_086567_00.jpg" in error("market1501", market)
    assert "1501_c3s3_086567_00.jpg" in str(doctor("market1501", market))
    with pytest.raises(ValueError, match="1501_c3s3_086567_00.jpg.*cannot be read"):
        export_world(load_dataset("market1501", market, check="none"), "market1501", market.parent / "out")
    assert not (market.parent / "out").exists()


def test_junk_and_distractors_in_the_wrong_place(market):
    picture(market / "query/0000_c1s1_000001_01.jpg")
    assert "distractors (id 0) among training images or queries" in error("market1501", market)
    (market / "query/0000_c1s1_000001_01.jpg").rename(market / "bounding_box_train/0000_c1s1_000001_01.jpg")
    text = [f for f in check_image_set(load_image_set(market, "market1501"), "market1501") if f.level == "error"]
    assert "distractors (id 0)" in text[0].what and "bounding_box_train/0000_c1s1_000001_01.jpg" in text[0].where
    (market / "bounding_box_train/0000_c1s1_000001_01.jpg").rename(market / "query/0000_c1s1_000001_01.jpg")
    (market / "query/0000_c1s1_000001_01.jpg").rename(market / "query/-1_c1s1_000001_01.jpg")
    assert "junk (pid -1) used as query" in error("market1501", market)
    (market / "query/-1_c1s1_000001_01.jpg").rename(market / "bounding_box_train/-1_c1s1_000001_01.jpg")
    assert "junk (pid -1) in train" in error("market1501", market)


def test_cameras_and_queries_that_are_odd_are_warnings(market):
    picture(market / "bounding_box_train/0007_c7s1_000001_01.jpg")
    picture(market / "query/0003_c1s1_000001_01.jpg")
    picture(market / "bounding_box_test/0003_c1s1_000002_01.jpg")  # its own camera does not count
    report = doctor("market1501", market)
    assert report.ok and "cameras [7] beyond the 6" in str(report)
    assert "1 of 3 queries have no match under another camera" in str(report)
    assert "3 images of the query identities, 1 distractors, 1 junk" in str(report)


def test_junk_never_changes_a_score(market):
    from reid_lab.retrieval.embeddings import Embeddings
    from reid_lab.retrieval.metrics import retrieval_metrics
    t, rng = load_dataset("market1501", market), np.random.default_rng(0)
    emb = rng.normal(size=(len(t), 8)).astype(np.float32)
    def score(mask_g):
        q, g = (t["role"] == "query").to_numpy(), (t["role"] == "gallery").to_numpy() & mask_g
        return retrieval_metrics(*[Embeddings(emb[m], t["pid"][m].to_numpy(), t["cam"][m].to_numpy()) for m in (q, g)])
    full, clean = score(np.ones(len(t), bool)), score((t["pid"] >= 0).to_numpy())
    assert full["mAP"] == clean["mAP"] and full["R1"] == clean["R1"] and full["n_query"] == 2


# ---- counts, doctor, command line

def published(name):
    "A table with the published numbers of ids and images"
    out = []
    for part, (ids, images) in DATASETS[name].counts.items():
        ids, images = (np.atleast_1d(v)[0] if v is not None else 1041 for v in (ids, images))
        split, role = SUBSETS[part]
        start = 2000 if split == "test" else 1
        pid = start + np.arange(images) % ids
        if name == "market1501" and part == "gallery":
            pid = np.concatenate([np.full(3819, -1), np.zeros(2798, int), start + np.arange(13115) % 750])
        out.append(pd.DataFrame(dict(path=[f"{part}/{i}" for i in range(images)], pid=pid, cam=0, split=split,
                                     role=role)))
    return ReidTable(pd.concat(out), "nowhere", name=name)


@pytest.mark.parametrize("name", NAMES)
def test_published_counts_are_recognised(name):
    t, counts = published(name), DATASETS[name].counts
    found = D._check_counts(t, counts)
    assert [f.level for f in found] == ["ok"] * len(counts), found
    less = D._check_counts(t[1:], counts)
    assert less[0].level == "warn" and "published: " in less[0].what
    if name == "market1501":
        assert "13115 images of the query identities, 2798 distractors, 3819 junk" in str(check_image_set(t, name)[0])
        assert all(f.level == "ok" for f in D._check_counts(t[(t["pid"] >= 0).to_numpy()], counts))
    if name == "msmt17":
        merged = ReidTable(t.frame.assign(split=t["split"].replace("val", "train")), "nowhere")
        assert all(f.level == "ok" for f in D._check_counts(merged, counts))
    extra = ReidTable(t.frame.assign(split=["val"] + t["split"].tolist()[1:]), "nowhere")
    assert any(f.what.startswith("val: ") and f.level == "warn" for f in D._check_counts(extra, counts))


def test_the_published_totals():
    "Images of each set; MSMT17 is told with its val list apart, and merged into train"
    images = {n: {part: np.atleast_1d(c[1]).tolist() for part, c in DATASETS[n].counts.items()} for n in NAMES}
    total = {n: sum(max(v) for v in of.values()) for n, of in images.items()}
    assert (total["market1501"], total["dukemtmc-reid"]) == (32668 + 3368, 36411)
    (apart, merged), val = images["msmt17"]["train"], max(images["msmt17"]["val"])
    assert apart + val == merged == 32621 and total["msmt17"] - val == 126441


@pytest.mark.parametrize("name", NAMES)
def test_doctor_on_a_sound_folder(name, tmp_path):
    root = make(name, tmp_path / "x")
    report = doctor(name, root)
    assert report.ok and "published" in str(report)
    assert "caption" not in str(report).replace("ids, captions and paths", "")
    assert f"query: {1 if name == 'dukemtmc-reid' else 2} ids" in str(report)
    for f in ("a", "b"): (tmp_path / f).mkdir()
    assert not doctor(name, tmp_path / "a").ok and doctor(name).table is None


def test_command_line(market, capsys):
    from reid_lab.cli.commands import main
    assert main(["doctor", "market1501", "--root", str(market)]) == 0
    assert "gallery: 3 ids, 4 images; published: 751, 19732 or 15913" in capsys.readouterr().out
    shutil.rmtree(market / "query")
    assert main(["doctor", "market1501", "--root", str(market)]) == 1
    assert "'query' is missing" in capsys.readouterr().out
    assert main(["datasets"]) == 0 and "DukeMTMC-reID/{bounding_box_train" in capsys.readouterr().out


def test_camera_subsets(msmt):
    t = load_dataset("msmt17", msmt)
    source, other = range(2, 7), [c for c in range(15) if c not in range(2, 7)]
    assert t.query().where(cam=source)["cam"].tolist() == [4] and t.query().where(cam=other)["cam"].tolist() == [0]
    assert len(t.where(split="train", cam=source)) == 0 and len(t.gallery()) == 3


def test_import_is_light():
    code = ("import sys, reid_lab.datasets.image_sets; "
            "print([m for m in ('torch', 'transformers', 'matplotlib', 'sklearn') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c",
                           code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


# ---- copies in the folders of Market-1501, and endings

def copied(root, name, train=("0000_c1_0001", "0001_c15_0002"), suffix=".jpg"):
    "MSMT17 or CUHK03 in the folders of Market-1501; ids of testing begin at 0 again"
    names = [f"bounding_box_train/{n}{suffix}" for n in train]
    names += [f"query/0000_c1_0001{suffix}", f"bounding_box_test/0000_c2_0002{suffix}"]
    for n in names: picture(root / n)
    return root


@pytest.mark.parametrize("suffix", [".jp2", ".gif", ".ppm", ".jfif", ".avif"])
def test_endings_of_datasets_are_those_of_crops(tmp_path, suffix):
    if suffix == ".avif" and not features.check("avif"): pytest.skip("this Pillow has no AVIF")
    t = load_dataset("msmt17", copied(tmp_path / "MSMT17", "msmt17", suffix=suffix))
    assert len(t) == 4 and t.image(0).shape == (32, 16, 3)
    assert "decoded" in str(doctor("msmt17", t.root)) and doctor("msmt17", t.root).ok


@pytest.mark.parametrize("images, val, path, levels", [
    (30248, 2373, "train/", "ok ok"), (32621, 0, "train/", "ok"), (30248, 0, "train/", "warn"),
    (32621, 2373, "train/", "warn ok"), (32621, 0, "bounding_box_train/", "ok"),
    (30248, 0, "bounding_box_train/", "ok"), (32620, 0, "bounding_box_train/", "warn")])
def test_counts_of_msmt17_by_its_layout(images, val, path, levels):
    f = pd.DataFrame(dict(path=[f"{path}{i}.jpg" for i in range(images + val)], split=["train"]*images + ["val"]*val,
                          pid=np.arange(images + val) % 1041, cam=0))
    t = ReidTable(f, "nowhere")
    counts = {k: v for k, v in DATASETS["msmt17"].counts_of(t).items() if k in ("train", "val")}
    assert [x.level for x in D._check_counts(t, counts)] == levels.split()


def test_parts_that_were_not_asked_for_have_no_count(msmt):
    found = [f.what for f in doctor("msmt17", msmt, subsets=["query", "gallery"]).findings if "published" in f.what]
    assert [f.split(":")[0] for f in found] == ["query", "gallery"]
    assert any(f.what.startswith("train: ") for f in doctor("msmt17", msmt).findings)


@pytest.mark.parametrize("images, name, labels", [
    ((2, 1), "cuhk03", "detected"), ((3, 1), "cuhk03", "labeled"), ((9, 9), "labeled", "labeled"),
    ((9, 9), "detected", "detected"), ((3, 1), "detected", "detected"), ((9, 9), "cuhk03", "")])
def test_a_flat_copy_of_cuhk03_says_which_boxes_it_holds(tmp_path, monkeypatch, images, name, labels):
    known = dict(detected=(2, 1), labeled=(3, 1))
    monkeypatch.setattr(dg_sets, "CUHK03_IMAGES", known)
    train = [f"{i + 1:04d}_c1_1" for i in range(images[0])]
    root = copied(tmp_path / name, "cuhk03", train, ".png")
    for k in range(images[1] - 1): picture(root / f"bounding_box_test/0000_c2_{k + 5}.png")
    for asked in known:
        if asked == labels or (not labels and asked == "detected"):
            assert len(load_dataset("cuhk03", root, labels=asked, check="none")) == sum(images) + 1
            continue
        says = f"pass labels='{labels}'" if labels else "move its folders into one that is called labeled"
        with pytest.raises(ValueError, match=says): load_dataset("cuhk03", root, labels=asked)
    notes = str(doctor("cuhk03", root, labels=labels or "detected"))
    assert ("nothing says whether its boxes are detected or labeled" in notes) == (not labels)
