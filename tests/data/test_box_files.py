"Boxes of manifests, MOTChallenge, COCO and videos: crops equal those cut by hand"
import json

import numpy as np
import pandas as pd
import pytest
from helpers.video import CODECS, decoded, write_video
from helpers.walkers import box_of, mot_lines, scene
from PIL import Image

from reid_lab.data.box_files import BoxOptions
from reid_lab.data.crops import boxes_table, crops_table, manifest_table
from reid_lab.data.table import join_tables


def _sequence(tmp_path, n=6, name="MOT-1"):
    "A sequence of MOTChallenge of n frames"
    folder = tmp_path/name
    for part in ("img1", "gt", "det"): (folder/part).mkdir(parents=True, exist_ok=True)
    for k in range(n): Image.fromarray(scene(k)).save(folder/"img1"/f"{k + 1:06}.png")
    (folder/"gt"/"gt.txt").write_text(mot_lines(n))
    (folder/"seqinfo.ini").write_text(f"[Sequence]\nname={name}\nimDir=img1\nseqLength={n}\nimExt=.png\n")
    return folder


def _by_hand(frame, k, p):
    x, y, w, h = box_of(k, p)
    return frame[y:y + h, x:x + w]


def test_crops_of_a_mot_sequence_equal_those_cut_by_hand(tmp_path):
    folder = _sequence(tmp_path)
    table = boxes_table(folder, BoxOptions(folder/"gt"/"gt.txt"))
    assert len(table) == 12 and table.frame.frame.is_monotonic_increasing       # gt.txt is sorted by id
    for i, row in enumerate(table.frame.itertuples()):
        assert np.array_equal(table.image(i), _by_hand(scene(row.frame - 1), row.frame - 1,
            int(row.tracklet[-1]) - 1))


@pytest.mark.parametrize("codec", ["h264", "vp9", "mpeg4"])
def test_crops_of_a_video_equal_those_cut_by_hand_and_each_frame_is_decoded_once(tmp_path, codec):
    path = write_video(tmp_path/f"v.{CODECS[codec][1]}", codec=codec)
    (tmp_path/"gt.txt").write_text(mot_lines())
    table, frames = crops_table(path, boxes=BoxOptions(tmp_path/"gt.txt")), decoded(path)
    crops = table.read(table["path"].tolist())
    for crop, row in zip(crops, table.frame.itertuples()):
        assert np.array_equal(crop, _by_hand(frames[row.frame - 1], row.frame - 1, int(row.tracklet[-1]) - 1))
    assert table._frames._video[1].n_decoded == 24


def test_a_manifest_of_a_video_counts_from_0_and_mot_from_1(tmp_path):
    path = write_video(tmp_path/"v.mp4", codec="h264")
    pd.DataFrame(dict(frame=[0, 7], x=1, y=2, w=30, h=50)).to_csv(tmp_path/"b.csv", index=False)
    (tmp_path/"b.txt").write_text("1,-1,2,3,30,50\n8,-1,2,3,30,50\n")
    own = boxes_table(path, BoxOptions(tmp_path/"b.csv"))
    mot = boxes_table(path, BoxOptions(tmp_path/"b.txt"))
    assert own["path"].tolist() == mot["path"].tolist() == [f"v.mp4#frame={k}&xywh=1,2,30,50" for k in (0, 7)]
    shifted = boxes_table(path, BoxOptions(tmp_path/"b.csv", first_frame=0))
    assert shifted["path"].tolist() == own["path"].tolist()
    with pytest.raises(ValueError, match="comes before frame 1"):
        boxes_table(path, BoxOptions(tmp_path/"b.csv", first_frame=1))


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_manifests_of_all_kinds_give_the_same_crops(tmp_path, ending):
    Image.fromarray(scene(0)).save(tmp_path/"a.png")
    x, y, w, h = box_of(0, 0)
    f = pd.DataFrame(dict(path="a.png", x1=[float(x), 3.25], y1=[y, 4.5], x2=[x + w, 33.25], y2=[y + h, 64.5],
            pid=["ann", "bob"]))
    file = tmp_path/f"m.{ending}"
    if ending == "csv": f.to_csv(file, index=False)
    elif ending == "jsonl": f.to_json(file, orient="records", lines=True)
    else: f.astype(dict(x1="f4", y2="f4")).to_parquet(file)
    table = manifest_table(file, boxes=BoxOptions(margin=.1))
    assert table["path"].tolist() == [f"a.png#xywh={x},{y},{w},{h}&margin=0.1",
            "a.png#xywh=3.25,4.5,30,60&margin=0.1"]
    assert table["pid_name"].tolist() == ["ann", "bob"]
    assert np.array_equal(table.image(1), scene(0)[0:71, 0:36])     # 3.25 - 3 = .25, 4.5 - 6 < 0, 36.25, 70.5 -> 71


def test_coco_boxes_are_cut_and_their_labels_kept(tmp_path):
    for k in (0, 1): Image.fromarray(scene(k)).save(tmp_path/f"{k}.png")
    annotations = [dict(id=10 + k, image_id=k, category_id=1, bbox=list(box_of(k, 0)), track_id=5, person_id="ann",
            iscrowd=0)
                   for k in (0, 1)]
    annotations.append(dict(id=20, image_id=0, category_id=3, bbox=[0, 0, 9, 9]))
    (tmp_path/"c.json").write_text(json.dumps(dict(
        images=[dict(id=k, file_name=f"{k}.png", width=1, height=1) for k in (0, 1)],
            # sizes are those of the files
        annotations=annotations, categories=[dict(id=1, name="person"), dict(id=3, name="car")])))
    table = boxes_table(tmp_path, BoxOptions(tmp_path/"c.json"))
    assert [np.array_equal(table.image(k), _by_hand(scene(k), k, 0)) for k in (0, 1)] == [True, True]
    assert table["pid_name"].tolist() == ["ann", "ann"]
    assert table["tracklet"].tolist() == [f"{tmp_path.name}#5"]*2
    assert table.left_out == ["1 box of other categories"]


def test_boxes_are_clipped_left_out_and_counted(tmp_path):
    Image.fromarray(scene(0)).save(tmp_path/"a.png")       # 160 x 96
    rows = ["-5,10,20,40", "150,80,20,40", "200,0,9,9", "5,5,0,9", "5,5,-3,9", ",,,", "nan,nan,nan,nan",
            "10,10,0.5,20",
            "159.5,0,9,9", "1,1,20,40"]
    (tmp_path/"m.csv").write_text("path,x,y,w,h\n" + "".join(f"a.png,{r}\n" for r in rows))
    table = manifest_table(tmp_path/"m.csv")
    assert table["path"].tolist() == ["a.png#xywh=0,10,15,40", "a.png#xywh=150,80,10,16", "a.png#xywh=1,1,20,40"]
    assert sorted(table.left_out) == ["1 box of negative size (line 6 of m.csv)", "1 box of no size",
                                      "1 box outside the frame", "2 boxes of less than a pixel",
                                      "2 boxes without numbers"]
    assert table.remarks == ["2 boxes reach over the edge of the frame and were clipped"]


def test_tracklets_of_two_sources_stay_two(tmp_path):
    tables = []
    for name in ("a", "b"):
        (tmp_path/name).mkdir()
        path = write_video(tmp_path/name/"v.mkv", n=4, codec="ffv1")
        (tmp_path/"gt.txt").write_text(mot_lines(4, people=1))
        tables.append(boxes_table(path, BoxOptions(tmp_path/"gt.txt")))
    assert not set(tables[0]["tracklet"]) & set(tables[1]["tracklet"])
    assert join_tables(tables)["tracklet"].nunique() == 2
    both = pd.DataFrame(dict(path=["a/v.mkv", "b/v.mkv"]*2, frame=[0, 0, 1, 1], x=0, y=0, w=20, h=40, tracklet=1))
    both.to_csv(tmp_path/"m.csv", index=False)
    assert manifest_table(tmp_path/"m.csv")["tracklet"].nunique() == 2


def test_frames_of_a_folder_are_counted_by_name_or_by_order(tmp_path):
    for name, k in (("shot_b.png", 1), ("shot_a.png", 0)): Image.fromarray(scene(k)).save(tmp_path/name)
    (tmp_path/"b.csv").write_text("frame,x,y,w,h\n5,0,0,30,40\n6,0,0,30,40\n")
    with pytest.raises(ValueError, match="have no numbers.*--first-frame 1"): boxes_table(tmp_path,
            BoxOptions(tmp_path/"b.csv"))
    table = boxes_table(tmp_path, BoxOptions(tmp_path/"b.csv", first_frame=5))
    assert table["path"].tolist() == ["shot_a.png#xywh=0,0,30,40", "shot_b.png#xywh=0,0,30,40"]


def test_scores_leave_boxes_out(tmp_path):
    folder = _sequence(tmp_path, 2)
    (folder/"det"/"det.txt").write_text("1,-1,5,5,20,40,0.9\n1,-1,9,5,20,40,0.3\n2,-1,5,5,20,40,0.8\n")
    table = boxes_table(folder, BoxOptions(folder/"det"/"det.txt", min_score=.5))
    assert table["score"].tolist() == [.9, .8] and table.left_out == ["1 box with a score below 0.5"]
    assert set(table["tracklet"]) == {""}


def test_missing_frames_can_be_left_out_and_are_named(tmp_path):
    folder = _sequence(tmp_path)
    (folder/"img1"/"000003.png").unlink()
    with pytest.raises(ValueError, match="1 frame with boxes missing in .*: 3;"): boxes_table(folder,
            BoxOptions(folder/"gt"/"gt.txt"))
    table = boxes_table(folder, BoxOptions(folder/"gt"/"gt.txt", skip_missing=True))
    assert len(table) == 10 and any("missing in" in text and text.endswith(": 3") for text in table.left_out)
