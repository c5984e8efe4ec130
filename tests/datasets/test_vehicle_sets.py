"Vehicles on a folder written by hand, after the program and the loaders that the record cites"
import pytest
from helpers.by_hand import plain_pictures, values

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
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
