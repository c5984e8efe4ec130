"Vehicles on a folder written by hand, after the program and the loaders that the record cites"
import numpy as np
import pytest
from helpers.by_hand import plain_pictures, values

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS

# names as in VehicleReId/VeRi: vehicle, camera, time, number
VERI = ["image_train/0001_c001_00016450_0.jpg", "image_train/0001_c020_00016460_1.jpg",
        "image_query/0002_c002_00030600_0.jpg", "image_query/0005_c010_00047865_0.jpg",
        "image_test/0002_c002_00030605_0.jpg", "image_test/0002_c003_00084280_0.jpg",
        "image_test/0005_c009_00047880_1.jpg", "image_test/0009_c016_00050460_0.jpg"]


@pytest.fixture
def veri(tmp_path):
    "A folder of small images, each of a colour of its own"
    return plain_pictures(tmp_path / "VeRi", VERI)


def test_names_tell_vehicle_and_one_of_twenty_cameras(veri):
    t = load_dataset("veri-776", veri, check="all")
    assert values(t.where(split="train"), "pid", "cam") == [(1, 0), (1, 19)]
    assert values(t.query(), "pid", "cam") == [(2, 1), (5, 9)]
    assert values(t.gallery(), "pid", "cam") == [(2, 1), (2, 2), (5, 8), (9, 15)]
    assert load_dataset("veri-776", veri.parent).frame.equals(t.frame)    # found by its name


def test_the_doctor_counts_vehicles_and_images(veri):
    text = str(doctor("veri-776", veri))
    assert "query: 2 ids, 2 images; published: 200, 1678" in text
    assert "gallery: 3 images of the query identities, 1 of others" in text


def test_the_protocol_counts_what_the_record_counts():
    spec = DATASETS["veri-776"]
    for name in spec.protocols:
        counts = PROTOCOLS[name].counts
        assert (counts.queries, counts.gallery) == (spec.counts["query"][1], spec.counts["gallery"][1])
    assert [PROTOCOLS[name].measure.ap for name in spec.protocols] == ["trapezoid", "step"]


def test_a_camera_that_there_is_not_is_no_name_of_this_set(veri):
    (veri / VERI[0]).rename(veri / "image_train" / "0001_c021_00016450_0.jpg")
    with pytest.raises(TableError, match="1 of 2 file names do not parse"): load_dataset("veri-776", veri)
    assert len(load_dataset("veri-776", veri, skip=True)) == len(VERI) - 1


def test_a_missing_folder_is_named(veri):
    (veri / "image_query").rename(veri.parent / "elsewhere")
    with pytest.raises(TableError, match="the folder 'image_query' is missing"): load_dataset("veri-776", veri)


def test_what_is_written_again_is_the_same_table(veri, tmp_path):
    t = load_dataset("veri-776", veri)
    again = load_dataset("veri-776", export_world(t, "veri-776", tmp_path / "again"))
    assert again.frame.drop(columns="path").equals(t.frame.drop(columns="path"))
    assert again["path"].tolist() == t["path"].tolist() == sorted(VERI, key=lambda name: (
        ["image_train", "image_query", "image_test"].index(name.split("/")[0]), name))


def test_a_camera_above_twenty_has_no_name(tmp_path):
    t = tiny_table(8, 4, 0, roles=True).where(split=["train", "test"])
    t = t.assign(cam=t["cam"] + 19)
    with pytest.raises(TableError, match="rows do not fit into a file name"):
        export_world(t, "veri-776", tmp_path / "VeRi")


# JDAI-CV/fast-reid:fastreid/data/datasets/vehicleid.py: lines of image and vehicle, images in one folder
VEHICLEID = {"train_list.txt": "0000001 7\n0000002 7\n",
             "test_list_800.txt": "0000010 3\n0000011 3\n0000012 3\n0000020 4\n0000021 4\n",
             "test_list_2400.txt": "0000010 3\n0000011 3\n0000030 5\n0000031 5\n"}


@pytest.fixture
def vehicleid(tmp_path):
    names = sorted({line.split()[0] for text in VEHICLEID.values() for line in text.splitlines()})
    root = plain_pictures(tmp_path/"VehicleID_V1.0", [f"image/{name}.jpg" for name in names])
    (root/"train_test_split").mkdir()
    for name, text in VEHICLEID.items(): (root/"train_test_split"/name).write_text(text)
    return root


def features(table):
    "Random vectors of a table"
    emb = np.random.default_rng(0).normal(size=(len(table), 5)).astype("f4")
    columns = dict(role=table["role"].to_numpy())
    return Embeddings(emb, table["pid"].to_numpy(), table["cam"].to_numpy(), table["path"].tolist(), columns=columns)


def test_vehicleid_is_a_list_of_a_size(vehicleid):
    t = load_dataset("vehicleid", vehicleid, check="all")
    assert values(t, "path", "pid", "split", "role")[:3] == [
        ("image/0000001.jpg", 7, "train", "both"), ("image/0000002.jpg", 7, "train", "both"),
        ("image/0000010.jpg", 3, "test", "both")]
    assert set(load_dataset("vehicleid", vehicleid, size=2400).query()["pid"]) == {3, 5}
    with pytest.raises(TableError, match="the list 'test_list_3200.txt' is missing"):
        load_dataset("vehicleid", vehicleid, size=3200)
    with pytest.raises(ValueError, match="size=900 is not known"): load_dataset("vehicleid", vehicleid, size=900)
    assert "test: 2 ids, 5 images; published: 800, 6493" in str(doctor("vehicleid", vehicleid))
    (vehicleid/"train_test_split/train_list.txt").write_text("0000001\n")
    with pytest.raises(TableError, match="1 of 1 lines of train_list.txt do not parse"):
        load_dataset("vehicleid", vehicleid)


def test_vehicleid_draws_one_image_of_each_vehicle_and_the_others_ask(vehicleid):
    "Against a loop over the draws"
    t = load_dataset("vehicleid", vehicleid).where(split="test")
    e = features(t)
    plan = apply_protocol(e, e, "vehicleid.small")
    assert len(plan.draws) == 10
    for drawn in plan.draws:
        assert sorted(e.pid[drawn.gallery]) == [3, 4] and len(drawn.queries) == 3
        assert not set(drawn.queries) & set(drawn.gallery)
    found = retrieval_metrics(e, e, protocol="vehicleid.small")
    scores = (e.emb/e.emb.norm(dim=1, keepdim=True)).numpy() @ (e.emb/e.emb.norm(dim=1, keepdim=True)).numpy().T
    naive = []
    for asks, searched in plan.draws:
        ranks = [1 + sum(scores[q, g] > scores[q, own] for g in searched) for q in asks
                 for own in searched if e.pid[own] == e.pid[q]]
        naive.append((np.mean([rank == 1 for rank in ranks]), np.mean([1/rank for rank in ranks])))
    r1, mean_ap = 100*np.mean(naive, axis=0)
    assert abs(found["R1"] - r1) < 1e-6 and abs(found["mAP"] - mean_ap) < 1e-6   # with one match AP is 1/rank


# JDAI-CV/fast-reid:fastreid/data/datasets/veriwild.py: lines of vehicle and image; the camera is the second field of
# vehicle_info.txt, whose first line is a head
WILD = {"train_list.txt": "00001/000001\n00001/000002\n", "test_3000_query.txt": "00005/000010\n00006/000020\n",
        "test_3000.txt": "00005/000011\n00005/000010\n00006/000021\n",
        "vehicle_info.txt": "id/image;Camera ID;Time;Model;Type;Color\n" + "".join(
            f"{image};{cam};2018-03-11 15:36:16;Audi;SUV;white\n" for image, cam in {
                "00001/000001": 84, "00001/000002": 3, "00005/000010": 2, "00005/000011": 174, "00006/000020": 7,
                "00006/000021": 7}.items())}


def write_wild(root, lists):
    names = sorted({line.split()[0] for name, text in WILD.items() if "info" not in name for line in text.splitlines()})
    plain_pictures(root, [f"images/{name}.jpg" for name in names])
    (root/"train_test_split").mkdir()
    for name, text in lists.items(): (root/"train_test_split"/name).write_text(text)
    return root


def test_veri_wild_takes_cameras_from_the_file_of_vehicles(tmp_path):
    root = write_wild(tmp_path/"VERI-Wild", WILD)
    t = load_dataset("veri-wild", root, check="all")
    assert values(t, "pid", "cam_name", "cam", "split", "role") == [
        (1, "84", 83, "train", "both"), (1, "3", 2, "train", "both"), (5, "2", 1, "test", "both"),
        (6, "7", 6, "test", "query"), (5, "174", 173, "test", "gallery"), (6, "7", 6, "test", "gallery")]
    e = features(t.where(split="test"))
    own, any_camera = (retrieval_metrics(e, e, protocol=f"veri-wild.{name}") for name in ("small", "any-camera"))
    assert (own["n_query"], own["n_skipped"]) == (1, 1) and (any_camera["n_query"], any_camera["n_skipped"]) == (2, 0)
    assert "query: 2 ids, 2 images; published: 3000, 3000" in str(doctor("veri-wild", root))
    (root/"train_test_split/vehicle_info.txt").write_text("id/image;Camera ID\n00001/000001;84\n")
    with pytest.raises(TableError, match="6 of 7 images have no camera"): load_dataset("veri-wild", root)
    (root/"train_test_split/vehicle_info.txt").unlink()
    with pytest.raises(TableError, match="the lists name no cameras"): load_dataset("veri-wild", root)


def test_veri_wild_with_cameras_in_its_lists(tmp_path):
    "The other names and lines of the lists"
    cameras = {line.split(";")[0]: line.split(";")[1] for line in WILD["vehicle_info.txt"].splitlines()[1:]}
    lists = {name.replace("3000", "3000_id"): "".join(
        f"{line}.jpg {int(line[:5])} {cameras[line]}\n" for line in text.splitlines())
        for name, text in WILD.items() if "info" not in name}
    t = load_dataset("veri-wild", write_wild(tmp_path/"VERI-Wild", lists))
    want = load_dataset("veri-wild", write_wild(tmp_path/"other"/"VERI-Wild", WILD))
    assert t.frame.equals(want.frame)
    (tmp_path/"VERI-Wild/train_test_split/train_list.txt").write_text("00001/000001.jpg 2 84\n")
    with pytest.raises(TableError, match="1 lines name another vehicle than the folder"):
        load_dataset("veri-wild", tmp_path/"VERI-Wild")


@pytest.mark.parametrize("name", ["vehicleid", "veri-wild"])
def test_lists_come_back_as_they_were(name, vehicleid, tmp_path):
    root = vehicleid if name == "vehicleid" else write_wild(tmp_path/"VERI-Wild", WILD)
    t = load_dataset(name, root)
    again = load_dataset(name, export_world(t, name, tmp_path/"again"))
    key = lambda table: sorted(values(table, "path", "pid", "cam", "split", "role"))
    assert key(again) == key(t)


def test_protocols_of_lists_count_what_the_records_count():
    for size, n in (("small", 800), ("medium", 1600), ("large", 2400)):
        counts, published = PROTOCOLS[f"vehicleid.{size}"].counts, DATASETS["vehicleid"].counts_of(size=n)["test"]
        assert (counts.people, counts.queries + counts.gallery) == published
    for size, n in (("small", 3000), ("medium", 5000), ("large", 10000)):
        assert PROTOCOLS[f"veri-wild.{size}"].counts.queries == DATASETS["veri-wild"].counts_of(size=n)["query"][1]
