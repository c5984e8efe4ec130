"Sets of drones and ground cameras: folders written by hand as their loaders describe them, and how each can be wrong"
import os
import pickle

import numpy as np
import pytest
from helpers.by_hand import picture

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.ground_air_sets import track_name, track_number
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS

pytestmark = pytest.mark.usefixtures("no_user_settings")


def rows(t): return [*zip(t["path"], t["pid"], t["cam"], t["view"], t["split"], t["role"])]


def error(name, folder, **kw):
    with pytest.raises(TableError) as e: load_dataset(name, folder, **kw)
    return str(e.value)


# huynguyen792/AG-ReID:agreidtools/datasets/agreid.py; person 1 of two videos is two people
AG = ["bounding_box_train/P0001T04041A0C0F0001.jpg", "bounding_box_train/P0001T04041A0C3F0201.jpg",
      "query_all_c0/P0001T04050A1C0F0011.jpg", "query_all_c3/P0001T04050A1C3F0021.jpg",
      "bounding_box_test_all_c0/P0001T04050A1C0F0013.jpg", "bounding_box_test_all_c3/P0001T04050A1C3F0022.jpg",
      "bounding_box_test_all_c3/P0002T04050A2C3F0007.jpg"]
# AG-ReID.v2: agreidtools/datasets/agreidv2.py; the lists as in SeCap-AGPReID:fastreid/data/datasets/agreidv2.py
ONE, TWO = "P0001T04050A1", "P0002T04050A2"
AG2 = [f"train_all/P0001T04041A0/P0001T04041A0C{cam}F0001.jpg" for cam in (0, 2, 3)] + [
    f"query/{ONE}/{ONE}C0F0011.jpg", f"query/{ONE}/{ONE}C2F0012.jpg", f"query/{ONE}/{ONE}C3F0013a.jpg",
    f"query/{TWO}/{TWO}C0F0014.jpg",
    f"gallery/{ONE}/{ONE}C0F0021.jpg", f"gallery/{ONE}/{ONE}C2F0022.jpg", f"gallery/{ONE}/{ONE}C3F0023.jpg",
    f"gallery/{TWO}/{TWO}C3F0024.jpg"]
AG2_LISTS = {"exp1_aerial_to_cctv.txt": [AG2[3], AG2[9], AG2[10]],  # a query of the folder is not in the list
             "exp2_aerial_to_wearable.txt": [AG2[3], AG2[8]], "exp4_cctv_to_aerial.txt": [AG2[5], AG2[7]],
             "exp5_wearable_to_aerial.txt": [AG2[4], AG2[7]]}
# whucsy/RotTrans:datasets/prai1581.py; the pickle as in huanghoujing/person-reid-triplet-loss-baseline:README.md
PRAI = dict(trainval=["00000000_0001_00000000.jpg", "00000000_0002_00000001.jpg", "00000003_0002_00000007.jpg"],
            train=["00000000_0001_00000000.jpg", "00000000_0002_00000001.jpg"], val=["00000003_0002_00000007.jpg"],
            test=["00000005_0001_00000000.jpg", "00000005_0002_00000003.jpg", "00000005_0002_00000004.jpg"])

# SUTDCV/UAV-Human:uavhumanreidtools/datasets/uavhuman.py: person, outfit, codes, action, replica, time and frame of a
# name; whucsy/RotTrans:datasets/uavhuman.py reads queries and gallery likewise
CODES = "G00B01H00UC071000LC010000"
UAV = {"bounding_box_train": [f"P000S00{CODES}A000R0_08301001_0001_bbx.jpg",
                              f"P000S00{CODES}A000R0_08301001_0007_bbx.jpg",
                              f"P000S09{CODES}A022R1_08301002_0001_bbx.jpg"],
       "query": [f"P031S09{CODES}A000R0_08301003_0001_bbx.jpg", f"P084S05{CODES}A154R1_08301004_12_bbx.jpg"],
       "bounding_box_test": [f"D001S00{CODES}A000R0_08301009_00001_bbx.jpg",
                             f"P031S09{CODES}A000R1_08301005_0001_bbx.jpg",  # action and frame of the query: left out
                             f"P031S09{CODES}A001R1_08301005_0001_bbx.jpg",
                             f"P031S10{CODES}A000R0_08301006_0002_bbx.jpg",
                             f"P084S05{CODES}A154R1_08301004_0112_bbx.jpg"]}


def partitions(**changes):
    held = {f"{part}_im_names": names for part, names in PRAI.items()}
    return held | dict(val_marks=[1], test_marks=np.array([0, 1, 1]), trainval_ids2labels={0: 0, 3: 1},
                       train_ids2labels={0: 0}) | changes


@pytest.fixture
def ag(tmp_path):
    for name in AG: picture(tmp_path/"AG-ReID"/name)
    return tmp_path/"AG-ReID"


@pytest.fixture(params=["", "AG-ReID.v2"])
def ag2(tmp_path, request):
    "The images in the folder, or one level deeper, with the lists beside that folder"
    root = tmp_path/"AG-ReID.v2"
    for name in AG2: picture(root/request.param/name)
    for file, lines in AG2_LISTS.items(): (root/file).write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def prai(tmp_path):
    root = tmp_path/"PRAI-1581"
    for name in PRAI["trainval"] + PRAI["test"]: picture(root/"images"/name)
    (root/"partitions.pkl").write_bytes(pickle.dumps(partitions(), 2))
    return root


@pytest.fixture
def uav(tmp_path):
    root = tmp_path/"UAV-Human"
    for folder, names in UAV.items():
        for name in names: picture(root/folder/name)
    return root


def test_ag_reid(ag):
    t = load_dataset("ag-reid", ag.parent, check="all")
    got = {path: rest for path, *rest in rows(t)}
    assert got[AG[0]] == [1040410, 0, "aerial", "train", "both"]  # P 0001, T 04041, A 0
    assert got[AG[3]] == [1040501, 3, "ground", "test", "query"]
    assert got[AG[6]] == [2040502, 3, "ground", "test", "gallery"]
    assert len(t) == 7 and t["pid"].nunique() == 3
    for protocol, asks, searched in (("ag-reid.a2g", 1, 2), ("ag-reid.g2a", 1, 1)):
        found = {side: getattr(PROTOCOLS[protocol], {"query": "queries"}.get(side, side)).values("view")
                 for side in ("query", "gallery")}
        assert (len(t.query().where(view=list(found["query"]))),
                len(t.gallery().where(view=list(found["gallery"])))) == (asks, searched)
    report = str(doctor("ag-reid", ag))
    assert "query: 1 ids, 2 images; published: 189, 2663 or 2033" in report and "aerial, camera C0: 3 images" in report


def test_faults_of_ag_reid(ag):
    picture(ag/"bounding_box_test_all_c3"/"P0002T04050A2C2F0009.jpg")  # issues 1, 4 and 6 of the repository
    assert "1 images lie in a folder of another camera" in str(doctor("ag-reid", ag))
    picture(ag/"query_all_c0"/"P1T04050A2C0F0009.jpg")
    assert "1 of 2 file names do not parse (expected such as P0001T04041A0C3F0201.jpg)" in error("ag-reid", ag)
    assert len(load_dataset("ag-reid", ag, skip=True)) == 8
    (ag/"query_all_c3").rename(ag/"c3")
    assert "the folder 'query_all_c3' is missing" in error("ag-reid", ag, skip=True)


def test_ag_reid_v2(ag2):
    t = load_dataset("ag-reid-v2", ag2, check="all")
    assert len(t) == len(AG2) and t.further == ["exp1", "exp2", "exp4", "exp5"]
    for protocol, file in zip(DATASETS["ag-reid-v2"].protocols, AG2_LISTS):
        column = protocol.partition(".")[2]
        assert PROTOCOLS[protocol].queries.values(column) == ("1",)
        asked, searched = t.query().where(**{column: True}), t.gallery().where(**{column: True})
        want = [[name for name in AG2_LISTS[file] if name.startswith(side)] for side in ("query", "gallery")]
        assert [sorted(p[-len(q):] for p, q in zip(part["path"], names)) for part, names in
                zip((asked, searched), want)] == [sorted(names) for names in want]
    report = str(doctor("ag-reid-v2", ag2))
    assert "exp1: 1 images ask, 2 are searched" in report and "train: 1 ids, 3 images; published: 807, 51530" in report
    (ag2/"exp2_aerial_to_wearable.txt").write_text(f"{AG2[3]}\ngallery/{ONE}/none.jpg\n")
    assert "1 of 2 lines of exp2_aerial_to_wearable.txt name no image [line 2" in error("ag-reid-v2", ag2)
    (ag2/"exp2_aerial_to_wearable.txt").unlink()
    assert "exp2" not in load_dataset("ag-reid-v2", ag2).frame
    assert "without exp2_aerial_to_wearable.txt their protocols" in str(doctor("ag-reid-v2", ag2))


def test_prai(prai):
    t = load_dataset("prai-1581", prai, check="all")
    assert rows(t)[0] == ("images/00000000_0001_00000000.jpg", 0, 0, "aerial", "train", "both")
    searched = (5, 1, "aerial", "test", "gallery")
    assert [row[1:] for row in rows(t)[3:]] == [(5, 0, "aerial", "test", "query"), searched, searched]
    apart = load_dataset("prai-1581", prai, merge_val=False)
    assert apart["split"].tolist() == ["train", "train", "val", "test", "test", "test"]
    assert "query: 1 ids, 1 images; published: 799, 4680" in str(doctor("prai-1581", prai))


class Harmful:
    def __reduce__(self): return os.mkdir, ("made-by-a-pickle",)


def test_faults_of_prai(prai, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = prai/"partitions.pkl"
    file.write_bytes(pickle.dumps(partitions(train_ids2labels=Harmful())))
    assert "mkdir, which is not loaded because unpickling can run code" in error("prai-1581", prai)
    assert "mkdir" in str(doctor("prai-1581", prai)) and not (tmp_path/"made-by-a-pickle").exists()
    file.write_bytes(pickle.dumps(partitions(test_marks=[0])))
    assert "3 images and 1 marks of test" in error("prai-1581", prai)
    file.write_bytes(pickle.dumps({k: v for k, v in partitions().items() if k != "test_im_names"}))
    assert "lacks 'test_im_names'" in error("prai-1581", prai)
    file.write_bytes(pickle.dumps([1]))
    assert "holds no dict" in error("prai-1581", prai)
    file.write_bytes(pickle.dumps(partitions(test_im_names=["3.jpg", *PRAI["test"][1:]])))
    assert "1 names do not parse" in error("prai-1581", prai)
    file.write_bytes(pickle.dumps(partitions())[:-9])
    assert "expected the lists of PRAI-1581" in error("prai-1581", prai) or "damaged" in error("prai-1581", prai)


def test_uav_human(uav):
    t = load_dataset("uav-human", uav, check="all")
    got = {path: rest for path, *rest in zip(t["path"], t["pid"], t["person"], t["outfit"], t["cam_name"], t["role"])}
    at = {path.rpartition("/")[2]: rest for path, rest in got.items()}
    train, query, gallery = UAV["bounding_box_train"], UAV["query"], UAV["bounding_box_test"]
    assert [at[name] for name in train] == [
        [0, 0, 0, "000+1", "both"], [0, 0, 0, "000+7", "both"], [9, 0, 9, "022+1", "both"]]
    assert [at[name] for name in query] == [[3109, 31, 9, "000+1", "query"], [8405, 84, 5, "154+12", "query"]]
    assert at[gallery[0]] == [50000, -1, -1, "D", "gallery"]
    assert [at[name][:4] for name in gallery[1:]] == [
        [3109, 31, 9, "000+1"], [3109, 31, 9, "001+1"], [3110, 31, 10, "000+2"], [8405, 84, 5, "154+112"]]
    cams = dict(zip(t["cam_name"], t["cam"]))
    assert cams == {"000+1": 0, "000+2": 1, "000+7": 2, "001+1": 3, "022+1": 4, "154+12": 5, "154+112": 6, "D": 7}
    assert (t["view"] == "aerial").all()
    report = str(doctor("uav-human", uav))
    assert "all parts: 5 ids, 1 of 10 images are distractors; published: 1144 ids, 41290 images" in report


def test_protocols_of_uav_human_leave_out_equal_action_and_frame_or_nothing(uav):
    t = load_dataset("uav-human", uav)
    q, g = t.query(), t.gallery()
    order = ["000+1", "D", "001+1", "000+2", "154+112"]   # as far away from the query 3109 as they stand here
    distance = np.array([order.index(name) for name in g["cam_name"]])/10
    e = Embeddings(np.stack([np.cos(distance), np.sin(distance)], 1), pid=g["pid"], cam=g["cam"])
    asked = Embeddings(np.array([[1., 0], np.array([np.cos(.4), np.sin(.4)])]), pid=q["pid"], cam=q["cam"])
    for protocol, ap in (("uav-human", 1/2), ("uav-human.none", (1 + 2/3)/2)):
        drawn, = apply_protocol(q.frame, g.frame, protocol).draws
        assert (len(drawn.queries), len(drawn.gallery)) == (2, 5)
        scored = retrieval_metrics(asked, e, protocol=protocol)
        assert scored["mAP"] == pytest.approx(100*(ap + 1)/2)   # the other query finds its only match first


def test_faults_of_uav_human(uav):
    train = uav/"bounding_box_train"
    picture(train/f"D001S00{CODES}A000R0_08301009_00001_bbx.jpg")  # a distractor is no identity to learn
    assert "1 of 4 file names do not parse (expected such as bounding_box_train/P001S00" in error("uav-human", uav)
    assert len(load_dataset("uav-human", uav, skip=True)) == 10
    for name in UAV["query"]: (uav/"query"/name).unlink()
    picture(uav/"query"/"00000.jpg")
    assert "files of the competition, whose names tell no identity" in error("uav-human", uav, subsets="query")
    (train/f"D001S00{CODES}A000R0_08301009_00001_bbx.jpg").unlink()
    assert set(load_dataset("uav-human", uav, subsets="train")["split"]) == {"train"}   # the remedy
    picture(train/f"P500S00{CODES}A000R0_08301009_0001_bbx.jpg")
    assert "person 500 in outfit 00 would have the number of distractors" in error("uav-human", uav, subsets="train")
    (uav/"bounding_box_test").rename(uav/"gallery")
    assert "the folder 'bounding_box_test' is missing" in error("uav-human", uav, skip=True, subsets="gallery")


def test_names_of_uav_human_have_room_for_99999_people_who_have_cameras(tmp_path):
    t = tiny_table(roles=True).where(split=["train", "test"])
    for changes, row in ((dict(pid=t["pid"] + 100000), "pid 100000"), (dict(cam=-1), "cam -1")):
        with pytest.raises(TableError, match=f"do not fit into a file name.*{row}"):
            export_world(t.assign(**changes), "uav-human", tmp_path/"no")
    cams = t["cam"]*1500   # above 999 the last number counts on
    again = load_dataset("uav-human", export_world(t.assign(cam=cams), "uav-human", tmp_path/"out"))
    rank = {cam: i for i, cam in enumerate(sorted(set(cams), key=lambda cam: (cam % 1000, cam)))}
    assert sorted(zip(again["pid"], again["cam"])) == sorted(zip(t["pid"], cams.map(rank)))


@pytest.mark.parametrize("name", ["ag-reid", "ag-reid-v2", "prai-1581", "uav-human"])
def test_exporter_writes_the_layout_by_hand(name, request, tmp_path):
    if name == "ag-reid-v2":
        root = tmp_path/"AG-ReID.v2"
        for path in AG2: picture(root/path)
        for file, lines in AG2_LISTS.items(): (root/file).write_text("\n".join(lines) + "\n")
    else: root = request.getfixturevalue({"ag-reid": "ag", "prai-1581": "prai", "uav-human": "uav"}[name])
    t = load_dataset(name, root)
    again = load_dataset(name, export_world(t, name, tmp_path/"again"))
    assert rows(again) == rows(t)
    for file in AG2_LISTS if name == "ag-reid-v2" else ():
        assert sorted((tmp_path/"again"/file).read_text().split()) == sorted(AG2_LISTS[file])
    assert all((tmp_path/"again"/path).read_bytes() == (root/path).read_bytes() for path in t["path"])


def test_any_number_is_a_name_and_what_has_no_place_is_told(tmp_path):
    for pid in (0, 7, 1040410, 10**10 - 1): assert track_number(track_name(pid)) == pid
    ground = tiny_table(roles=True).where(split=["train", "test"])
    with pytest.raises(TableError, match="no image has view 'aerial'"): export_world(ground, "ag-reid", tmp_path/"a")
    with pytest.raises(TableError, match="cameras outside 0..1"): export_world(ground, "prai-1581", tmp_path/"b")
    huge = ground.assign(view=np.where(ground["cam"] == 0, "aerial", "ground"), pid=ground["pid"] + 10**10)
    with pytest.raises(TableError, match="do not fit the name"): export_world(huge, "ag-reid-v2", tmp_path/"c")


def test_protocols_on_loaded_folders(ag, prai):
    for protocol, root, asks, searched in (("ag-reid.a2g", ag, 1, 2), ("ag-reid.g2a", ag, 1, 1), ("prai", prai, 1, 2)):
        t = load_dataset({"AG-ReID": "ag-reid"}.get(root.name, "prai-1581"), root)
        drawn, = apply_protocol(t.query().frame, t.gallery().frame, protocol).draws
        assert (len(drawn.queries), len(drawn.gallery)) == (asks, searched)


def test_experiments_on_a_loaded_folder(ag2):
    t = load_dataset("ag-reid-v2", ag2)
    for protocol, searched in (("exp1", 2), ("exp2", 1), ("exp4", 1), ("exp5", 1)):
        drawn, = apply_protocol(t.query().frame, t.gallery().frame, f"ag-reid-v2.{protocol}").draws
        assert (len(drawn.queries), len(drawn.gallery)) == (1, searched)
