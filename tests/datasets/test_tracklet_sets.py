"MARS, iLIDS-VID and DukeMTMC-VideoReID: folders written by hand as their programs describe them, and what is wrong"
import numpy as np
import pytest
from helpers.by_hand import plain_pictures, values
from scipy.io import savemat

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.datasets.tracklet_sets import thin_tracks, unfit_tracklets
from reid_lab.retrieval.draws import apply_protocol
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS
from reid_lab.world.world import World

pytestmark = pytest.mark.usefixtures("no_user_settings")

# liangzheng06/MARS-evaluation:utils/info_mars.m: person, camera, tracklet and frame in a name; rows of the tables are
# first name, last name, person, camera; 2 trains, 4 and 6 are tested, 0 is a distractor, -1 junk
MARS_TRAIN = ["0002C1T0001F001.jpg", "0002C1T0001F002.jpg", "0002C3T0001F001.jpg"]
MARS_TEST = ["00-1C1T0001F001.jpg", "0000C2T0001F001.jpg", "0000C2T0001F002.jpg",
             "0004C1T0001F001.jpg", "0004C1T0001F002.jpg", "0004C1T0002F001.jpg",
             "0004C2T0001F001.jpg", "0004C2T0001F002.jpg", "0004C2T0001F003.jpg",
             "0006C5T0001F001.jpg", "0006C6T0001F001.jpg"]
TRACKS_TRAIN = [[1, 2, 2, 1], [3, 3, 2, 3]]
TRACKS_TEST = [[1, 1, -1, 1], [2, 3, 0, 2], [4, 5, 4, 1], [6, 6, 4, 1], [7, 9, 4, 2], [10, 10, 6, 5], [11, 11, 6, 6]]
ASK = [3, 5, 6, 7]   # one tracklet of each person and camera


def write_mars(root, tests=TRACKS_TEST, ask=ASK, test_names=MARS_TEST):
    plain_pictures(root, [f"bbox_train/{name[:4]}/{name}" for name in MARS_TRAIN])
    plain_pictures(root, [f"bbox_test/{name[:4]}/{name}" for name in test_names])
    (root/"info").mkdir(exist_ok=True)
    (root/"info/train_name.txt").write_text("\n".join(MARS_TRAIN))
    (root/"info/test_name.txt").write_text("\n".join(test_names) + "\n")
    savemat(root/"info/tracks_train_info.mat", dict(track_train_info=np.array(TRACKS_TRAIN, float)))
    savemat(root/"info/tracks_test_info.mat", dict(track_test_info=np.array(tests, np.uint16 if np.min(tests) >= 0
                                                                            else np.int32)))
    savemat(root/"info/query_IDX.mat", dict(query_IDX=np.array([ask])))
    return root


@pytest.fixture
def mars(tmp_path): return write_mars(tmp_path/"MARS")


def test_mars_is_read_by_its_lists_and_tables(mars):
    t = load_dataset("mars", mars, check="all")
    assert values(t.where(split="train"), "path", "pid", "cam", "cam_name", "track") == [
        ("bbox_train/0002/0002C1T0001F001.jpg", 2, 0, "1", 1), ("bbox_train/0002/0002C1T0001F002.jpg", 2, 0, "1", 1),
        ("bbox_train/0002/0002C3T0001F001.jpg", 2, 2, "3", 2)]
    test = t.where(split="test")
    assert values(test, "pid", "cam", "role", "track") == [
        (-1, 0, "gallery", 3), (0, 1, "gallery", 4), (0, 1, "gallery", 4), (4, 0, "query", 5), (4, 0, "query", 5),
        (4, 0, "gallery", 6), (4, 1, "query", 7), (4, 1, "query", 7), (4, 1, "query", 7), (6, 4, "query", 8),
        (6, 5, "query", 9)]
    assert test["path"].iat[0] == "bbox_test/00-1/00-1C1T0001F001.jpg"
    assert t.further == ["track"] and load_dataset("mars", mars.parent).frame.equals(t.frame)


def features(table):
    "Vectors of frames, at random but for the person"
    rng = np.random.default_rng(0)
    emb = rng.normal(size=(len(table), 6)) + 4*np.eye(6)[table["pid"].clip(lower=0) % 6]
    columns = {name: table[name].to_numpy() for name in ("track", "role", "cam_name")}
    return Embeddings(emb.astype("f4"), table["pid"].to_numpy(), table["cam"].to_numpy(), table["path"].tolist(),
                      columns=columns)


def test_mars_by_both_programs(mars):
    "All tracklets are searched, or those that do not ask: person 6 then has no match, and 4 under camera 1 none either"
    e = features(load_dataset("mars", mars).where(split="test"))
    official, torchreid = (retrieval_metrics(e, e, protocol=name) for name in DATASETS["mars"].protocols)
    assert (official["n_query"], official["n_skipped"], official["n_gallery"]) == (4, 0, 7)
    assert (torchreid["n_query"], torchreid["n_skipped"], torchreid["n_gallery"]) == (1, 3, 3)


def test_the_doctor_counts_tracklets_and_frames(mars):
    report = doctor("mars", mars)
    text = str(report)
    assert report.ok and "query: 4 tracklets of 1 to 3 frames, 1.8 on average; published: 1980 tracklets" in text
    assert "test: 3 ids, 11 images; published: 635, 681089" in text
    assert "published: 635, unstated" in str(doctor("mars", mars, frames=1))


def test_a_tracklet_of_another_person_is_named(tmp_path):
    tests = [row[:] for row in TRACKS_TEST]
    tests[2] = [4, 6, 6, 1]
    with pytest.raises(TableError, match="tracklet 3 is of person 6, camera 1, and holds 0004C1T0001F001.jpg"):
        load_dataset("mars", write_mars(tmp_path/"MARS", tests))


@pytest.mark.parametrize("row", [[0, 1, 4, 1], [5, 4, 4, 1], [4, 12, 4, 1], [4, 5, -2, 1], [4, 5, 4, 7], [4, 5, 4, 0]])
def test_a_row_that_cannot_be_is_named(row, tmp_path):
    with pytest.raises(TableError, match="1 of 7 tracklets of info/tracks_test_info.mat cannot be.*row 3"):
        load_dataset("mars", write_mars(tmp_path/"MARS", [*TRACKS_TEST[:2], row, *TRACKS_TEST[3:]]))


def test_frames_of_no_tracklet_are_counted(tmp_path):
    t = load_dataset("mars", write_mars(tmp_path/"MARS", TRACKS_TEST[:-1], [3]))
    assert t.left_out == ["1 frames that no tracklet of info/tracks_test_info.mat holds"] and len(t) == 13
    assert "left out: 1 frames" in str(doctor("mars", tmp_path/"MARS"))


def test_wrong_files_of_mars_are_named(mars):
    savemat(mars/"info/query_IDX.mat", dict(query_IDX=np.array([[3, 8]])))
    with pytest.raises(TableError, match="counts tracklets 3 to 8, and there are 7"): load_dataset("mars", mars)
    savemat(mars/"info/query_IDX.mat", dict(other=np.array([3])))
    with pytest.raises(TableError, match="'query_IDX.mat' does not hold query_IDX"): load_dataset("mars", mars)
    savemat(mars/"info/tracks_test_info.mat", dict(track_test_info=np.zeros((2, 3))))
    with pytest.raises(TableError, match=r"shape \(2, 3\), not \(tracklets, 4\)"): load_dataset("mars", mars)
    savemat(mars/"info/tracks_test_info.mat", dict(track_test_info=np.array([[1, 1, 4, 1]])))
    (mars/"info/test_name.txt").write_text("0004c1.jpg\n")
    with pytest.raises(TableError, match="1 of 1 names of info/test_name.txt do not parse"): load_dataset("mars", mars)
    (mars/"info/test_name.txt").unlink()
    with pytest.raises(TableError, match="the file 'info/test_name.txt' is missing"): load_dataset("mars", mars)


def test_what_is_written_again_is_the_same_table(mars, tmp_path):
    t = load_dataset("mars", mars)
    again = load_dataset("mars", export_world(t, "mars", tmp_path/"again"))
    assert again.frame.equals(t.frame)


# KaiyangZhou/deep-person-reid:torchreid/data/datasets/video/ilidsvid.py: indices count the sorted folders from 1, the
# first half of a row is tested
ILIDS = [f"i-LIDS-VID/sequences/cam{cam}/person{pid:03d}/cam{cam}_person{pid:03d}_{frame:05d}.png"
         for cam in (1, 2) for pid, frames in {1: (317, 318), 9: (7,), 10: (5, 6, 7), 319: (4,)}.items()
         for frame in frames]


@pytest.fixture
def ilids(tmp_path):
    root = plain_pictures(tmp_path/"ilids-vid", ILIDS)
    (root/"train-test people splits").mkdir()
    rows = [[4, 1, 2, 3], [2, 3, 1, 4], *([1, 2, 3, 4] for _ in range(8))]
    savemat(root/"train-test people splits/train_test_splits_ilidsvid.mat", dict(ls_set=np.array(rows, np.uint16)))
    return root


def test_ilids_is_split_by_the_sorted_folders(ilids):
    t = load_dataset("ilids-vid", ilids, check="all")
    assert set(t.where(split="test")["pid"]) == {1, 319} and set(t.where(split="train")["pid"]) == {9, 10}
    assert values(t.query(), "pid", "cam", "cam_name") == [(1, 0, "1"), (1, 0, "1"), (319, 0, "1")]
    assert set(t.gallery()["cam"]) == {1} and t["track"].nunique() == 8
    assert set(t["track"][t["split"] == "train"]) == {1, 2, 3, 4}
    assert sorted(set(load_dataset("ilids-vid", ilids, trial=2).query()["pid"])) == [9, 10]
    one = load_dataset("ilids-vid", ilids, frames=1)
    assert len(one) == 8 and "person010_00005" in " ".join(one["path"])


def test_ilids_is_scored_by_cameras(ilids):
    e = features(load_dataset("ilids-vid", ilids).where(split="test"))
    found = retrieval_metrics(e, e, protocol="ilids-vid")
    assert (found["n_query"], found["n_gallery"], found["n_skipped"]) == (2, 2, 0)


def test_wrong_files_of_ilids_are_named(ilids):
    splits = ilids/"train-test people splits/train_test_splits_ilidsvid.mat"
    savemat(splits, dict(ls_set=np.array([[1, 2, 2, 4]]*10)))
    with pytest.raises(TableError, match="row 1 does not count each of 4 people once"): load_dataset("ilids-vid", ilids)
    savemat(splits, dict(ls_set=np.zeros((10, 3))))
    with pytest.raises(TableError, match=r"ls_set has shape \(10, 3\)"): load_dataset("ilids-vid", ilids)
    for path in (ilids/"i-LIDS-VID/sequences/cam2/person009").iterdir(): path.unlink()
    with pytest.raises(TableError, match="1 people were seen by one camera only.*person009"):
        load_dataset("ilids-vid", ilids)


# Yu-Wu/DukeMTMC-VideoReID:README.md; the other way of naming is in torchreid's loader; query 5 lies in the gallery too
DUKE = ["train/0001/0003/0001C6F0099X30823.jpg", "train/0001/0003/0001C6F0100X30835.jpg",
        "train/0001/0007/0001C2F0001X00823.jpg", "query/0005/0012/0005C1F0001X00100.jpg",
        "query/0005/0012/0005C1F0002X00112.jpg", "gallery/0005/0012/0005C1F0001X00100.jpg",
        "gallery/0005/0012/0005C1F0002X00112.jpg", "gallery/0005/0013/0005C3F0001X00900.jpg",
        "gallery/7140/0001/7140_C8_F0001_X200413.jpg"]


@pytest.fixture
def duke(tmp_path): return plain_pictures(tmp_path/"DukeMTMC-VideoReID", DUKE)


def test_duke_is_read_by_its_folders(duke):
    t = load_dataset("dukemtmc-videoreid", duke, check="all")
    assert values(t, "pid", "cam", "split", "role", "track") == [
        (1, 5, "train", "both", 1), (1, 5, "train", "both", 1), (1, 1, "train", "both", 2), (5, 0, "test", "query", 3),
        (5, 0, "test", "query", 3), (5, 0, "test", "gallery", 4), (5, 0, "test", "gallery", 4),
        (5, 2, "test", "gallery", 5), (7140, 7, "test", "gallery", 6)]
    assert len(load_dataset("dukemtmc-videoreid", duke, subsets=["query"], frames=1)) == 1
    e = features(t.where(split="test"))
    found = retrieval_metrics(e, e, protocol="duke-video")
    assert (found["n_query"], found["n_gallery"], found["R1"]) == (1, 3, 100)
    assert "gallery: 3 tracklets of 1 to 2 frames" in str(doctor("dukemtmc-videoreid", duke))


def test_duke_keeps_its_numbers_of_tracklets_unless_they_are_others(duke, tmp_path):
    t = load_dataset("dukemtmc-videoreid", duke)
    again = load_dataset("dukemtmc-videoreid", export_world(t, "dukemtmc-videoreid", tmp_path/"again"))
    assert again.frame.equals(t.frame)
    split = t.assign(track=np.arange(len(t)))   # each frame a tracklet of its own
    got = load_dataset("dukemtmc-videoreid", export_world(split, "dukemtmc-videoreid", tmp_path/"other"))
    assert got["track"].nunique() == len(t)


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_spread_evenly(seed):
    "Against a loop over the frames of each track"
    rng = np.random.default_rng(seed)
    track, frames = rng.integers(0, 4, 40), int(rng.integers(1, 9))
    want = np.zeros(40, bool)
    for number in range(4):
        rows = np.flatnonzero(track == number)
        n = min(frames, len(rows))
        for part in range(n): want[rows[next(i for i in range(len(rows)) if i*n//len(rows) == part)]] = True
    assert np.array_equal(thin_tracks(track, frames), want)


@pytest.mark.parametrize("layout", ["mars", "ilids-vid", "dukemtmc-videoreid"])
def test_walks_of_the_world_fit_after_rows(layout, tmp_path):
    world = World("smoke", task="reid", track=2).table().where(split=["train", "test"])
    rows = LAYOUTS[layout].rows(world.assign(pid=world["pid"] + 1))
    t = load_dataset(layout, export_world(rows, layout, tmp_path/"w"))
    assert len(t) == len(rows) > 20 and t["track"].nunique() == rows["track"].nunique()
    test = t.where(split="test")
    plan = apply_protocol(test.frame, test.frame, DATASETS[layout].protocols[0])
    assert len(plan.queries()) and len(plan.gallery())


def test_what_has_no_place_is_refused():
    t = World("smoke", task="reid", track=2).table()
    found = " ".join(map(str, unfit_tracklets(t, "mars")))
    assert "no subset for split val" in found
    mixed = t.where(split="train").assign(track=np.zeros((t["split"] == "train").sum(), int))
    assert "have several people, cameras, splits or roles" in str(unfit_tracklets(mixed, "mars"))
    assert "tracks without" not in found
    with pytest.raises(TableError, match="the layout needs the column 'track'"):
        export_world(World("smoke", task="reid").table(), "mars", "nowhere")


def test_protocols_count_what_the_records_count():
    for name in ("mars", "dukemtmc-videoreid", "ilids-vid"):
        for protocol in DATASETS[name].protocols:
            counts, published = PROTOCOLS[protocol].counts, DATASETS[name].counts
            assert counts.people == published["query"][0]
