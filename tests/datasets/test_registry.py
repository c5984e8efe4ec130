"Every dataset of the registry on a real folder, and every way in which a folder can be wrong"
import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.layouts import AERIAL, FROM_DISK, small
from hypothesis import given, settings, strategies as st
from PIL import Image

from reid_lab.data.table import SPLITS, ReidTable, TableError
from reid_lab.datasets import diagnosis, registry, text_sets
from reid_lab.datasets.clothes_sets import CLOTHES_SETS
from reid_lab.datasets.dg_sets import DG_SETS
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.ground_air_sets import GROUND_AIR_SETS
from reid_lab.datasets.image_sets import IMAGE_SETS, tiny_table
from reid_lab.datasets.infrared_sets import INFRARED_SETS
from reid_lab.datasets.multimodal_sets import MULTIMODAL_SETS
from reid_lab.datasets.occluded_sets import OCCLUDED_SETS
from reid_lab.datasets.registry import DATASETS, fits, list_datasets, load_dataset, require
from reid_lab.datasets.sketch_sets import SKETCH_SETS
from reid_lab.datasets.text_sets import MALS_ATTRIBUTES, TEXT_SETS, mals_labels
from reid_lab.datasets.tracklet_sets import TRACKLET_SETS
from reid_lab.datasets.unlabelled_sets import UNLABELLED_SETS
from reid_lab.datasets.vehicle_sets import VEHICLE_SETS
from reid_lab.world.plan import TASKS
from reid_lab.world.world import World

pytestmark = pytest.mark.usefixtures("no_user_settings")


def whole(records):
    "Records with the numbering of the published set, whose ids tell the split"
    first = dict(train=0, val=11003, test=12003)
    return [r | dict(id=r["id"] + first[r["split"]]) for r in records]


@pytest.fixture
def cuhk(written, tmp_path): return Path(shutil.copytree(written["cuhk-pedes"], tmp_path / "CUHK-PEDES"))


def edit(folder, change, name="reid_raw.json"):
    "Rewrite the annotation with `change(records)` (or with what it returns)"
    records = json.loads((folder / name).read_text())
    out = change(records)
    (folder / name).write_text(json.dumps(records if out is None else out))


def error(name, folder, **kw):
    with pytest.raises(TableError) as e: load_dataset(name, folder, **kw)
    return str(e.value)


@pytest.mark.parametrize("name", list(DATASETS))
def test_entry_is_complete(name):
    d = DATASETS[name]
    plain = lambda text: re.sub(r"\W", "", text).lower()
    assert plain(d.title) == plain(name) or name == "world"
    assert len(d.mean) == len(d.std) == 3 and all(0 < v < 1 for v in (*d.mean, *d.std))
    assert bool(d.folder) == (name != "world")
    assert d.splits and set(d.splits) <= set(SPLITS) and (
        d.captions or d.image_queries or d.splits == ("train",) or name == "luperson")   # nobody is known there
    if not d.folder: return
    assert d.layout.startswith(d.folder + "/")
    assert re.search(r" (et al\.|and \w+), .* 20[012]\d", d.citation)
    assert d.annotations and d.counts


def test_datasets_that_can_be_written():
    "All of image_sets, dg_sets, text_sets and the families; a dataset that is only read has no layout"
    families = {*CLOTHES_SETS, *MULTIMODAL_SETS, *SKETCH_SETS, *UNLABELLED_SETS, *OCCLUDED_SETS,
                *INFRARED_SETS, *GROUND_AIR_SETS, *TRACKLET_SETS, *VEHICLE_SETS}
    known = {"mals", *AERIAL, *IMAGE_SETS, *DG_SETS, *TEXT_SETS, *families}
    assert {spec.dataset for spec in LAYOUTS.values()} == known < set(DATASETS)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_facts_of_the_record_are_those_of_the_table(layout, written):
    spec, table = DATASETS[LAYOUTS[layout].dataset], load_dataset(LAYOUTS[layout].dataset, written[layout])
    assert spec.captions == bool(table["captions"].map(len).any())
    assert (spec.cameras or spec.index_cameras) == (table["cam"].nunique() > 1)
    assert spec.image_queries == (len(table.query()) > 0)
    assert "registered" not in str(doctor(LAYOUTS[layout].dataset, written[layout]))


@pytest.mark.parametrize("task", TASKS)
def test_facts_of_the_world(task):
    spec, table = DATASETS["world"], load_dataset("world", preset="smoke", task=task)
    assert diagnosis._check_facts(table, spec) == []
    assert spec.splits == SPLITS == tuple(s for s in SPLITS if (table["split"] == s).any())


def test_splits_are_those_with_published_counts():
    two = {"icfg-pedes", "ufine6926", "market1501", "dukemtmc-reid"}
    one = {"mals": ("train",), "ufine3c": ("test",)}
    for n in {"world", "mals", *TEXT_SETS, *IMAGE_SETS}:
        assert DATASETS[n].splits == (("train", "test") if n in two else one.get(n, SPLITS)), n


def test_require_says_what_is_missing_and_what_fits():
    dart3 = dict(cameras=True, image_queries=True)
    assert require("Market1501", "DART3", **dart3) is DATASETS["market1501"] and fits("world", **dart3)
    assert set(list_datasets(**dart3)) >= {"world", *IMAGE_SETS}
    assert not set(list_datasets(**dart3)) & {"mals", *TEXT_SETS}
    assert set(list_datasets(captions=True)) >= {"world", "mals", *TEXT_SETS}
    assert not set(list_datasets(captions=True)) & set(IMAGE_SETS)
    with pytest.raises(ValueError) as e: require("cuhk-pedes", "DART3", **dart3)
    assert str(e.value) == ("DART3 needs a dataset with cameras, image queries; 'cuhk-pedes' has no cameras, no image "
                            f"queries. Registered datasets that fit: {', '.join(list_datasets(**dart3))}")
    with pytest.raises(ValueError, match="CAMeL needs.*'market1501' has no captions.*fit: world, cuhk-pedes"):
        require("market1501", "CAMeL", captions=True)
    with pytest.raises(ValueError, match="'mals' has no split 'test'"):
        require("mals", "a target", captions=True, splits=("train", "test"))
    with pytest.raises(ValueError, match="that fit: none"):
        require("mals", "x", captions=False, splits=("val",), cameras=False)
    with pytest.raises(ValueError, match="Did you mean 'cameras'"): require("world", "x", camera=True)
    with pytest.raises(ValueError, match="Did you mean 'market1501'"): require("market1502", "x")


def test_no_list_of_names_is_kept_beside_the_records():
    assert {spec.dataset for spec in LAYOUTS.values()} <= set(DATASETS)
    assert {*TEXT_SETS, *IMAGE_SETS, *DG_SETS} <= set(DATASETS)
    assert {n for n, spec in LAYOUTS.items() if spec.dataset in TEXT_SETS} == {
        f"{n}{x}" for n, form in TEXT_SETS.items() for x in ("", "-processed")[:1 + bool(form.prefix)]}
    assert {n for n, form in TEXT_SETS.items() if not form.prefix} == {"ufine6926", "ufine3c"}
    assert registry.describe_datasets().index.tolist() == list(DATASETS)


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_parent_folder_environment_and_settings_file_are_found(layout, written, monkeypatch, no_user_settings):
    name, folder = LAYOUTS[layout].dataset, written[layout]
    n = len(load_dataset(name, folder, check="none"))
    assert len(load_dataset(name, folder.parent, check="none")) == n
    (no_user_settings / ".reid_lab.toml").write_text(f"# mine\n  data_root = '{folder.parent}'  # here\n")
    assert len(load_dataset(name, check="none")) == n
    monkeypatch.setenv("REID_LAB_DATA", str(folder.parent / "wrong"))  # the environment comes before the file
    with pytest.raises(TableError, match="is no folder"): load_dataset(name)
    assert len(load_dataset(name, folder, check="none")) == n  # and the argument before both


@pytest.mark.parametrize("name", FROM_DISK)
def test_missing_and_empty_roots_name_all_three_sources(name, tmp_path, monkeypatch):
    for text in (error(name, None), error(name, tmp_path / "nowhere"), error(name, tmp_path)):
        for word in ("argument root", "REID_LAB_DATA", ".reid_lab.toml", DATASETS[name].layout): assert word in text
    (tmp_path / "empty").mkdir()
    assert "the folder is empty" in error(name, tmp_path / "empty")
    assert "'home'" in error(name, tmp_path)  # what is there instead
    monkeypatch.setenv("REID_LAB_DATA", str(tmp_path / "gone"))
    assert "gone' is no folder" in error(name, None)


@pytest.mark.parametrize("name", [*TEXT_SETS, "mals"])
@pytest.mark.parametrize("content, says", [
    ("", "the file is empty"), ("   \n", "the file is empty"), ("[{", "truncated"), ('[{"id": 1, "captio', "truncated"),
    ('{"images": []}', r"expected a list of records, found a dict with keys \['images'\]"), ("3", "found int"),
    ("[1, 2]", "a record is a int, not a dict"), ("[{}]", "key '.*' is missing"), ("<html>", "no valid JSON"),
    ("[]", "lists no image|the table is empty")])


def test_annotation_of_the_wrong_shape(name, content, says, tmp_path):
    form = TEXT_SETS.get(name)
    path = tmp_path / (form.annotations[0] if form else "gene_attrs/g_4x_attrs.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    with pytest.raises(TableError, match=says): load_dataset(name, tmp_path)
    report = doctor(name, tmp_path)
    assert not report.ok and path.name in str(report)


@pytest.mark.parametrize("value", ["no", "maybe", 1, None])
def test_a_switch_is_true_or_false(value, tmp_path):
    for act in (load_dataset, doctor):
        with pytest.raises(ValueError, match=f"skip={value!r} must be True or False"):
            act("market1501", tmp_path, skip=value)


def test_the_world_takes_its_conditions_by_name():
    t = load_dataset("world", preset="smoke", task="reid", outfits=2)
    assert t.further == ["clothes"] and t["clothes"].nunique() == 2*t["pid"].nunique()
    assert load_dataset("world", preset="smoke", task="reid", severity=.1).further == []
    with pytest.raises(ValueError, match="option='outfit' is not known.*Did you mean 'outfits'"):
        load_dataset("world", outfit=2)
    for name in set(inspect.signature(World).parameters) - {"overrides"}:
        with pytest.raises(ValueError, match=f"option='{name}_' is not known.*Did you mean '{name}'"):
            load_dataset("world", **{f"{name}_": 2})


def test_world_loads_by_name():
    t = load_dataset("world", preset="smoke", seed=0)
    assert len(t) > 50 and len(t.text_queries("test")) > 0 and t.image(0).dtype == np.uint8
    assert doctor("world", preset="smoke").ok


NAMES = [(name, other) for name, form in TEXT_SETS.items() if form.prefix for other in form.annotations]


@pytest.mark.parametrize("place", ["", "annotations"])
@pytest.mark.parametrize("name, other", NAMES)
def test_every_name_and_place_of_the_annotation(written, tmp_path, name, other, place):
    folder = Path(shutil.copytree(written[name], tmp_path / DATASETS[name].folder))
    want = load_dataset(name, folder).frame
    (folder / place).mkdir(exist_ok=True)
    (folder / TEXT_SETS[name].annotations[0]).rename(folder / place / other)
    pd.testing.assert_frame_equal(load_dataset(name.upper().replace("-", "_"), folder).frame, want)
    report = doctor(name, folder)
    assert report.ok and report.findings[0].what == f"found {other}" and "not read" not in str(report)


def test_the_annotation_without_splits(cuhk):
    "`caption_all.json`: id, file_path and captions; the split follows from the published numbering"
    edit(cuhk, whole)
    want = load_dataset("cuhk-pedes", cuhk).frame
    edit(cuhk, lambda rs: [{k: r[k] for k in ("id", "file_path", "captions")} for r in rs])
    (cuhk / "reid_raw.json").rename(cuhk / "caption_all.json")
    pd.testing.assert_frame_equal(load_dataset("cuhk-pedes", cuhk).frame, want)
    assert set(want.split) == {"train", "val", "test"} and want.pid.min() == 0
    report = doctor("cuhk-pedes", cuhk)
    assert report.ok and "caption_all.json names no split: ids up to 11003 are train, up to 12003 val" in str(report)


@pytest.mark.parametrize("both, read", [
    (("CUHK-PEDES.json", "reid_raw.json"), "reid_raw.json"),
    (("caption_all.json", "CUHK_PEDES.json"), "CUHK_PEDES.json"),
    (("annotations/reid_raw.json", "CUHK-PEDES.json"), "annotations/reid_raw.json"),
    (("annotations/reid_raw.json", "reid_raw.json"), "reid_raw.json"),
    (("cuhk_train.json", "CUHK-PEDES.json"), "CUHK-PEDES.json")])


def test_of_two_annotations_one_is_read_and_both_are_named(cuhk, both, read):
    "The other one would be refused: its records lack the images"
    good = (cuhk / "reid_raw.json").read_text()
    (cuhk / "reid_raw.json").unlink()
    (cuhk / "annotations").mkdir()
    for name in both: (cuhk / name).write_text(good if name == read else '[{"id": 1}]')
    other = next(n for n in both if n != read)
    assert len(load_dataset("cuhk-pedes", cuhk)) == 16
    report = doctor("cuhk-pedes", cuhk)
    assert report.ok and f"reads {read}, not {other}" in str(report)
    if not other.startswith("cuhk_"): assert "is missing" in error("cuhk-pedes", cuhk, annotation=other)
    (cuhk / other).write_text(good)
    if not other.startswith("cuhk_"):
        assert len(load_dataset("cuhk-pedes", cuhk, annotation=other)) == 16
        assert f"reads {other}, not {read}" in str(doctor("cuhk-pedes", cuhk, annotation=other))


def test_images_one_folder_higher_or_behind_a_link(cuhk, tmp_path):
    (cuhk / "imgs").rename(tmp_path / "elsewhere")
    (cuhk / "imgs").symlink_to(tmp_path / "elsewhere")
    assert len(load_dataset("cuhk-pedes", cuhk, check="all")) == 16
    (cuhk / "imgs").unlink()
    for p in (tmp_path / "elsewhere").iterdir(): p.rename(cuhk / p.name)
    assert len(load_dataset("cuhk-pedes", cuhk, check="all")) == 16


def test_paths_that_repeat_the_dataset_and_backslashes(cuhk):
    edit(cuhk, lambda rs: [r | dict(file_path="CUHK-PEDES\\imgs\\" + r["file_path"].replace("/", "\\")) for r in rs])
    assert len(load_dataset("cuhk-pedes", cuhk, check="all")) == 16


def test_ids_of_cuhk_start_at_one_and_of_the_others_at_zero(written):
    raw = json.loads((written["cuhk-pedes"] / "reid_raw.json").read_text())
    assert min(r["id"] for r in raw) == 1 and load_dataset("cuhk-pedes", written["cuhk-pedes"])["pid"].min() == 0
    assert set(raw[0]) == {"split", "captions", "file_path", "processed_tokens", "id"}
    assert min(r["id"] for r in json.loads((written["icfg-pedes"] / "ICFG-PEDES.json").read_text())) == 0
    rstp = json.loads((written["rstpreid"] / "data_captions.json").read_text())
    assert {"id", "img_path", "captions", "split"} <= set(rstp[0])


def test_processed_form_has_a_row_per_training_caption(written):
    folder, want = written["cuhk-pedes-processed"], small("cuhk-pedes-processed")
    train, test = (json.loads((folder / f"cuhk_{s}.json").read_text()) for s in ("train", "test"))
    assert len(train) == len(want.text_queries("train")) and all(isinstance(r["caption"], str) for r in train)
    assert len(test) == len(want.where(split="test")) and all(isinstance(r["caption"], list) for r in test)
    assert set(train[0]) == {"image", "caption", "image_id"}


def test_forms_agree_and_convert(written, tmp_path):
    raw = load_dataset("rstpreid", written["rstpreid"])
    both = export_world(raw, "rstpreid-processed", tmp_path / "RSTPReid")
    a = load_dataset("rstpreid", both)
    (both / "data_captions.json").write_bytes((written["rstpreid"] / "data_captions.json").read_bytes())
    b, c = load_dataset("rstpreid", both, form="raw"), load_dataset("rstpreid", both, form="processed")
    pd.testing.assert_frame_equal(b.frame, raw.frame)
    pd.testing.assert_frame_equal(a.frame, c.frame)
    pd.testing.assert_frame_equal(a.frame, raw.frame)
    with pytest.raises(ValueError, match="form='row' is not known"): load_dataset("rstpreid", both, form="row")


def test_processed_ids_that_are_words(tmp_path):
    (tmp_path / "imgs").mkdir()
    for n in "ab": Image.new("RGB", (8, 16)).save(tmp_path / "imgs" / f"{n}.jpg")
    (tmp_path / "cuhk_train.json").write_text(json.dumps([dict(image=f"{n}.jpg", caption=c, image_id=f"p_{n}")
                                                          for n in "ab" for c in ("x", "y")]))
    t = load_dataset("cuhk-pedes", tmp_path)
    assert t["pid"].tolist() == [0, 1] and t["captions"].tolist() == [["x", "y"]] * 2


def test_icfg_gets_a_validation_part(written, tmp_path):
    two = tiny_table(8, 2).where(split=["train", "test"])
    folder = export_world(two, "icfg-pedes", tmp_path / "i")
    a, b = (load_dataset("icfg-pedes", folder, val=.4, val_seed=s) for s in (0, 1))
    assert a.where(split="val")["pid"].nunique() == 2 and len(a) == len(two)
    assert a["split"].tolist() == load_dataset("icfg-pedes", folder, val=.4)["split"].tolist() != b["split"].tolist()
    assert a.findings() == []
    with pytest.raises(ValueError, match="has a val split already"):
        load_dataset("cuhk-pedes", written["cuhk-pedes"], val=.1)


def test_mals_chunks_labels_and_identities(tmp_path):
    t = tiny_table(5, 2, 1)
    labels = np.random.default_rng(0).integers(-1, 2, (10, 27))
    t = ReidTable(t.frame.assign(attrs=[dict(zip(MALS_ATTRIBUTES, map(int, r))) for r in labels]), None, t.reader)
    text_sets.write_mals(t, tmp_path, chunk=4)
    got = load_dataset("mals", tmp_path)
    assert sorted(p.name for p in (tmp_path / "gene_crop").iterdir()) == ["c_g_a", "c_g_a_0", "c_g_a_1"]
    assert got["attrs"].tolist() == t["attrs"].tolist() and got["pid"].tolist() == list(range(10))
    one = load_dataset("mals", tmp_path, chunks=["c_g_a_1"], attrs=False)
    assert len(one) == 2 and one["attrs"].isna().all()
    record = json.loads((tmp_path / "gene_attrs/g_c_g_a_attrs.json").read_text())[0]
    assert set(record) == {"image", "caption", "image_id", "label"} and len(record["label"]) == 27
    (tmp_path / "gene_attrs/g_c_g_a_attrs.json").write_text(json.dumps([record | dict(label=[0] * 26)]))
    assert "27 values" in error("mals", tmp_path)


def test_mals_labels_of_a_world_person():
    a = dict(gender="woman", hair="bun", hat="none", bag="handbag", sleeve="short", upper="dress",
             upper_colour="burgundy", lower="trousers", lower_colour="black")
    got = dict(zip(MALS_ATTRIBUTES, mals_labels(a)))
    asked = ("gender", "age", "hair", "hat", "backpack", "handbag", "bag", "sleeve")
    assert [got[k] for k in asked] == [0, -1, 1, 1, 1, 0, 0, 1]
    assert got["lower_type"] == 0 and got["upper_red"] == 0 and got["upper_black"] == 1 and got["lower_black"] == -1
    assert mals_labels(None) == [-1] * 27


@pytest.mark.parametrize("kw, says", [
    (dict(name="cuhk-pedez"), "Did you mean 'cuhk-pedes'"),
    (dict(name="cuhk-pedes", preset="quick"), "option of cuhk-pedes='preset'"),
    (dict(name="cuhk-pedes", dataset="rstpreid"), "option of cuhk-pedes='dataset'"),
    (dict(name="cuhk-pedes", check="some"), "check='some'"), (dict(name="mals", chunks=["9x"]), "chunks='9x'")])


def test_options_are_checked(kw, says, written):
    root = written.get(kw["name"], written["cuhk-pedes"])
    with pytest.raises(ValueError, match=says): load_dataset(root=root, **kw)


def test_bad_rows_are_named_with_key_and_row(cuhk):
    def spoil(rs):
        del rs[3]["captions"]
        rs[5]["captions"] = "A man."
        rs[7]["split"] = "dev"
        rs[9]["id"] = None
        rs[11]["file_path"] = 4
    edit(cuhk, spoil)
    text = error("cuhk-pedes", cuhk)
    for word in ("key 'captions' is missing", "row 3", "captions='A man.' is not a list", "row 5", "split='dev'",
                 "row 7", "id='None' is not a whole number", "row 9", "file_path='4' is not a string", "row 11"):
        assert word in text, word


def test_truncated_at_every_length(cuhk):
    whole = (cuhk / "reid_raw.json").read_text()
    for n in range(1, len(whole), 331):
        (cuhk / "reid_raw.json").write_text(whole[:n])
        assert "truncated" in error("cuhk-pedes", cuhk)


def test_image_that_is_text_is_named(cuhk):
    bad = sorted((cuhk / "imgs").rglob("*.jpg"))[0]
    bad.write_text("hello")
    assert bad.name in error("cuhk-pedes", cuhk) and bad.name in str(doctor("cuhk-pedes", cuhk))
    with pytest.raises(ValueError, match=f"{bad.name}.*cannot be read"):
        export_world(load_dataset("cuhk-pedes", cuhk, check="none"), "rstpreid", cuhk.parent / "out")
    assert not (cuhk.parent / "out").exists()


def test_missing_folder_is_named_and_can_be_dropped(cuhk):
    shutil.rmtree(cuhk / "imgs/val_query")
    sorted((cuhk / "imgs/train_query").iterdir())[0].unlink()
    report = str(doctor("cuhk-pedes", cuhk))
    assert "val_query: the whole folder is missing, 4 of 4" in report
    assert "train_query: some files are missing, 1 of 8" in report
    assert "train_query: some files are missing, 1 of 8" in error("cuhk-pedes", cuhk)
    edit(cuhk, lambda rs: rs[5]["captions"].append(" "))
    with pytest.warns(UserWarning, match=r"dropped 5 of 16 images \(5 missing\) and 1 blank"):
        t = load_dataset("cuhk-pedes", cuhk, drop_bad=True)
    assert len(t) == 11 and not t.findings("all")


def test_no_images_at_all(cuhk):
    shutil.rmtree(cuhk / "imgs")
    assert "imgs" in error("cuhk-pedes", cuhk)
    assert not doctor("cuhk-pedes", cuhk).ok


def test_id_in_two_splits_empty_caption_and_doubled_path(cuhk):
    def spoil(rs):
        rs[0]["id"] = rs[-1]["id"]
        rs[1]["captions"] = ["", "fine"]
        rs[3]["file_path"] = rs[2]["file_path"]
    edit(cuhk, spoil)
    text, report = error("cuhk-pedes", cuhk), str(doctor("cuhk-pedes", cuhk))
    for word in ("in both train and test", "empty caption", "the same path in several rows"):
        assert word in text and word in report


@pytest.mark.parametrize("path",
                         ["../../secret.jpg", "/etc/hostname", "train_query/../../../secret.jpg", "..\\..\\secret.jpg"])


def test_paths_that_leave_the_folder_are_refused(cuhk, path):
    Image.new("RGB", (4, 4)).save(cuhk.parent / "secret.jpg")
    edit(cuhk, lambda rs: rs[0].update(file_path=path))
    assert "path leaves the root [row 0" in error("cuhk-pedes", cuhk)
    t = DATASETS["cuhk-pedes"].load(cuhk)
    with pytest.raises(ValueError, match="leaves the dataset folder"): t.image(0)
    assert "path leaves the root" in str(doctor("cuhk-pedes", cuhk))


@pytest.mark.parametrize("path, says", [
    ("a\0b.jpg", ".: some files are missing, 1 of 1"), ("", "empty path [row 0"),
    ("x" * 5000 + ".jpg", "some files are missing, 1 of 1"), (".", "1 of 16 image files is a folder"),
    ("train_query", "1 of 16 image files is a folder [row 0 ('train_query')"),
    ("\U0001f600.jpg", ".: some files are missing, 1 of 1"), ("a\nb.jpg", ".: some files are missing, 1 of 1"),
    ("~/x.jpg", "~: the whole folder is missing, 1 of 1")])


def test_paths_that_are_no_image_file(cuhk, path, says):
    edit(cuhk, lambda rs: rs[0].update(file_path=path))
    assert "row 0" in error("cuhk-pedes", cuhk, check="all")
    report = doctor("cuhk-pedes", cuhk)
    assert not report.ok and any(says in str(f) for f in report.findings if f.level == "error")
    with pytest.warns(UserWarning, match="dropped 1 of 16"):
        assert len(load_dataset("cuhk-pedes", cuhk, drop_bad=True)) == 15


def test_captions_pass_unchanged(written, tmp_path):
    odd = ["<b>A man</b> & a \"dog\"\n\t", "\N{GRINNING FACE} \u4f60\u597d \u202e", "word " * 300, "{}[]\\",
           "' OR 1=1 --"]
    t = tiny_table(4, 3, 1)
    t = ReidTable(t.frame.assign(captions=[[odd[i % 5], "x"] for i in range(12)]), None, t.reader)
    got = load_dataset("icfg-pedes", export_world(t, "icfg-pedes", tmp_path / "i"))
    assert got["captions"].tolist() == t["captions"].tolist()
    assert "longest 300" in str(doctor("icfg-pedes", tmp_path / "i"))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.text(min_size=1, max_size=20).filter(str.strip), min_size=1, max_size=3), min_size=12,
                max_size=12))


def test_any_text_survives_the_annotation(captions):
    import tempfile
    t = tiny_table(4, 3)
    t = ReidTable(t.frame.assign(captions=captions), None, t.reader)
    with tempfile.TemporaryDirectory() as d:
        got = load_dataset("rstpreid", export_world(t, "rstpreid", Path(d) / "r"), check="none")
    assert got["captions"].tolist() == captions


def test_a_byte_order_mark_and_other_encodings(cuhk):
    text = (cuhk / "reid_raw.json").read_text()
    (cuhk / "reid_raw.json").write_text(text, encoding="utf-8-sig")
    assert len(load_dataset("cuhk-pedes", cuhk)) == 16
    (cuhk / "reid_raw.json").write_bytes(b"\xff\xfe" + text.encode("utf-16-le"))
    assert len(load_dataset("cuhk-pedes", cuhk)) == 16
    (cuhk / "reid_raw.json").write_bytes(text.replace("Person", "P\xe9rson").encode("latin-1"))
    assert "not a UTF-8 text file" in error("cuhk-pedes", cuhk)


def test_import_is_light():
    import subprocess
    code = ("import sys, reid_lab.datasets.registry; "
            "print([m for m in ('torch', 'transformers', 'matplotlib', 'sklearn') if m in sys.modules])")
    assert subprocess.run([sys.executable, "-c",
                           code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.fixture
def linked(cuhk, tmp_path):
    "A dataset with one image, and one folder of images, behind links that leave it"
    first = sorted((cuhk / "imgs/train_query").iterdir())[0]
    first.rename(tmp_path / "far.jpg")
    first.symlink_to(tmp_path / "far.jpg")
    (cuhk / "imgs/val_query").rename(tmp_path / "val")
    (cuhk / "imgs/val_query").symlink_to(tmp_path / "val")
    return cuhk


def test_links_are_refused_and_followed_on_request(linked):
    from reid_lab.cli.commands import main
    text = error("cuhk-pedes", linked)
    assert "5 of 16 image files: each lies behind a link that leaves the root" in text and "follow_links=True" in text
    t = load_dataset("cuhk-pedes", linked, check="all", follow_links=True)
    assert len(t) == 16 and t.follow_links and t.where(split="val").images(size=(8, 4)).shape == (4, 8, 4, 3)
    assert not doctor("cuhk-pedes", linked).ok and doctor("cuhk-pedes", linked, follow_links=True).ok
    assert main(["doctor", "cuhk-pedes", "--root", str(linked)]) == 1
    assert main(["doctor", "cuhk-pedes", "--root", str(linked), "--follow-links", "--all"]) == 0
    with pytest.raises(TableError, match="leaves the root"): load_dataset("cuhk-pedes", linked, drop_bad=True)
    assert len(load_dataset("cuhk-pedes", linked, drop_bad=True, follow_links=True)) == 16


def test_drop_bad_drops_what_it_says(cuhk):
    images = sorted((cuhk / "imgs").rglob("*.jpg"))
    images[0].unlink()
    images[1].write_bytes(b"")
    images[2].write_text("<html>")
    images[3].write_bytes(images[3].read_bytes()[:-40])
    words = r"dropped 4 of 16 images \(1 missing, 1 empty, 1 html, 1 undecodable\)"
    with pytest.warns(UserWarning, match=words) as seen:
        t = load_dataset("cuhk-pedes", cuhk, check="all", drop_bad=True)
    assert len(t) == 12 and not t.findings("all") and len(seen) == 1
    gone = {p.name for p in images[:4]}
    assert not gone & {Path(p).name for p in t["path"]}
    with pytest.warns(UserWarning, match=r"dropped 3 of 16"), pytest.raises(TableError, match="cannot be read"):
        load_dataset("cuhk-pedes", cuhk, drop_bad=True)   # 13 images, all in the sample: the cut one is found
