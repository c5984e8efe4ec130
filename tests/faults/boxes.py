"Boxes in frames and videos: what would be cut wrongly, or from a frame that is not there"
import json
import os
import sys
from unittest import mock

import av
import numpy as np
from fault import bad, refused
from PIL import Image

from reid_lab.data.box_files import BoxOptions
from reid_lab.data.crops import boxes_table, crops_table, manifest_table


def _frames(tmp, n=3, first=1):
    "A folder of n frames 001.png ..., 40 x 30 pixels"
    (tmp/"frames").mkdir()
    for k in range(n): Image.new("RGB", (40, 30), (40*k, 90, 30)).save(tmp/"frames"/f"{first + k:03}.png")
    return tmp/"frames"


def _video(tmp, n=3):
    "A video of n frames, 40 x 30 pixels"
    with av.open(str(tmp/"v.mkv"), "w") as out:
        stream = out.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = 40, 30, "yuv420p"
        for k in range(n): out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((30, 40, 3), 20*k, np.uint8),
            format="rgb24")))
        out.mux(stream.encode())
    return tmp/"v.mkv"


def _boxes(text, name="b.csv", source=_frames, **options):
    "Read boxes of this text, in frames"
    def read(tmp):
        (tmp/name).write_text(text)
        return boxes_table(source(tmp), BoxOptions(tmp/name, **options))
    return read


def _listed(text, **options):
    "Read a manifest of this text with frames/001.png ..."
    def read(tmp):
        _frames(tmp)
        (tmp/"m.csv").write_text(text)
        return manifest_table(tmp/"m.csv", boxes=BoxOptions(**options) if options else None)
    return read


def _embedded(text, *options, name="b.csv", source=_frames):
    "Embed frames with boxes of this text on the command line"
    def run(tmp):
        (tmp/name).write_text(text)
        refused("embed", source(tmp), "--boxes", tmp/name, "--model", "bot_tiny", "--out", tmp/"o.npz", *options)
    return run


def _without_pyav(tmp):
    with mock.patch.dict(sys.modules, av=None): return _boxes("frame,x,y,w,h\n0,1,1,9,9\n", source=_video)(tmp)


def _cut_video(tmp):
    path = _video(tmp, 12)
    os.truncate(path, path.stat().st_size*2//3)
    (tmp/"b.csv").write_text("frame,x,y,w,h\n11,1,1,9,9\n")
    return boxes_table(tmp/"v.mkv", BoxOptions(tmp/"b.csv")).image(0)


def _coco(**changes):
    content = dict(images=[dict(id=1, file_name="001.png")], categories=[dict(id=1, name="person")],
                   annotations=[dict(id=7, image_id=1, category_id=1, bbox=[1, 1, 9, 9])])
    return json.dumps(content | changes)


def _folder_alone(tmp):
    refused("embed", _frames(tmp), "--margin", ".1", "--model", "bot_tiny", "--out", tmp/"o.npz")


def _plain_tracklets(tmp):
    refused("embed", _frames(tmp), "--tracklets", "mean", "--model", "bot_tiny", "--out", tmp/"o.npz")


def _bare_video(tmp):
    refused("embed", _video(tmp), "--model", "bot_tiny", "--out", tmp/"o.npz")


def _quality_of_png(tmp):
    (tmp/"b.csv").write_text("frame,x,y,w,h\n1,1,1,9,9\n")
    refused("crops", _frames(tmp), "--boxes", tmp/"b.csv", "--quality", 20, "--out", tmp/"crops")


HEAD = "frame,x,y,w,h\n"
FAULTS = [
    bad("boxes: wrong columns", "frame, a, b", _boxes("frame,a,b\n1,2,3\n"), "has the columns ['frame', 'a', 'b']",
            "--column x="),
    bad("boxes: half a box", "x, y, w", _boxes("frame,x,y,w\n1,2,3,4\n"), "x, y, w, which are no whole box"),
    bad("boxes: a frame and a half", "frame 1.5", _boxes(HEAD + "1,1,1,9,9\n1.5,1,1,9,9\n"),
        "frame='1.5' (line 3 of b.csv)",
        "no whole number"),
    bad("boxes: a frame of seconds", "frame 00:01", _embedded(HEAD + "00:01,1,1,9,9\n"),
        "frame='00:01' (line 2 of b.csv)"),
    bad("boxes: no frame in a row", "an empty cell", _boxes(HEAD + ",1,1,9,9\n"), "frame='' (line 2 of b.csv)"),
    bad("boxes: a box without its width", "one cell empty", _boxes(HEAD + "1,1,1,,9\n"),
        "line 2 of b.csv has a box without w"),
    bad("boxes: text for a number", "x=left", _boxes(HEAD + "1,left,1,9,9\n"),
        "x='left' (line 2 of b.csv) is no number"),
    bad("boxes: infinite", "w=inf", _boxes(HEAD + "1,1,1,inf,9\n"), "w='inf' (line 2 of b.csv)"),
    bad("boxes: two boxes in one row", "sides and corners that disagree",
        _boxes("frame,x,y,w,h,x1,y1,x2,y2\n1,1,1,9,9,1,1,9,9\n"), "of line 2 of b.csv are two boxes"),
    bad("boxes: all outside", "beyond the frame", _boxes(HEAD + "1,50,1,9,9\n2,1,31,9,9\n"), "no box is left",
        "2 boxes outside the frame"),
    bad("boxes: a row twice", "the same box of one frame", _boxes(HEAD + "1,1,1,9,9\n2,1,1,9,9\n1,1,1,9,9\n"),
        "listed twice (line 2 of b.csv, line 4 of b.csv", "remove one"),
    bad("boxes: a tracklet in two places", "one id twice in a frame",
        _boxes("frame,x,y,w,h,tracklet\n1,1,1,9,9,4\n1,9,9,9,9,4\n"), "'frames#4' has two boxes in one frame"),
    bad("boxes: frames that are missing", "4 and 9 of 3 frames", _boxes(HEAD + "1,1,1,9,9\n4,1,1,9,9\n9,1,1,9,9\n"),
        "2 frames with boxes missing", ": 4, 9", "--skip-bad"),
    bad("boxes: counted from 0 in a folder from 1", "frames 0 and 1", _boxes(HEAD + "0,1,1,9,9\n1,1,1,9,9\n"),
            "missing",
        ": 0"),
    bad("boxes: counted from 1 in a folder from 0", "frames 1 to 3", lambda t: _boxes(
        HEAD + "1,1,1,9,9\n2,1,1,9,9\n3,1,1,9,9\n", source=lambda tmp: _frames(tmp, first=0))(t), ": 3",
            "--first-frame 1"),
    bad("boxes: counted from 1 in a video", "frames 1 to 3 of 3", _boxes(HEAD + "1,1,1,9,9\n3,1,1,9,9\n",
            source=_video),
        "ends after frame 2", "--first-frame 1"),
    bad("boxes: MOTChallenge counted from 0 in a video", "frame 0",
        _boxes("0,1,1,1,9,9,1\n", "det.txt", source=_video), "frame=0 (line 1) comes before frame 1",
            "--first-frame 0"),
    bad("boxes: no frames", "an empty folder", lambda t: _boxes(HEAD + "1,1,1,9,9\n",
        source=lambda tmp: _frames(tmp, 0))(t), "holds no frames"),
    bad("boxes: frame numbers and no frames", "a manifest alone", _listed(HEAD + "1,1,1,9,9\n"),
            "embed FRAMES --boxes FILE"),
    bad("boxes: a missing image", "a path that is not there", _listed("path,x,y,w,h\nframes/009.png,1,1,9,9\n"),
        "1 frame with boxes missing", "frames/009.png"),
    bad("boxes: a path outside", "..", _listed("path,x,y,w,h\n../009.png,1,1,9,9\n"), "leaves the dataset folder"),
    bad("boxes: a name with a box, and a box", "both",
            _listed('path,x,y,w,h\n"frames/001.png#xywh=1,1,9,9",1,1,9,9\n'),
        "names a box already"),
    bad("boxes: an unreadable video", "text with the ending of a video", _boxes(HEAD + "0,1,1,9,9\n",
        source=lambda t: (t/"v.mp4").write_text("no video") and t/"v.mp4"), "v.mp4' cannot be opened"),
    bad("boxes: a video without its last part", "cut after a few frames", _cut_video, "ends after frame", "frame"),
    bad("boxes: PyAV is missing", "a video without the extra", _without_pyav, "pip install 'reid_lab[video]'",
        error=ImportError),
    bad("boxes: a video of a manifest without frames", "path is a video", lambda t: [_video(t), _listed(
        "path,x,y,w,h\nv.mkv,1,1,9,9\n")(t)], "no column frame"),
    bad("boxes: a video and no boxes", "embed walk.mp4", _bare_video, "is a video", "with --boxes FILE, which"),
    bad("boxes: a file of no kind", "b.xml", _boxes("<x/>", "b.xml"), "boxes='.xml'"),
    bad("boxes: a file that does not exist", "det.txt", lambda t: boxes_table(_frames(t), BoxOptions(t/"det.txt")),
        "does not exist"),
    bad("MOTChallenge: NaN in gt.txt", "a line of ground truth",
            _embedded("1,1,1,1,9,9,1,1,1\n1,2,nan,1,9,9,1,1,1\n", name="gt.txt"),
        "line 2: left='nan' is no number"),
    bad("MOTChallenge: lines of two lengths", "nine and seven fields", _boxes("1,1,1,1,9,9,1,1,1\n1,2,4,1,9,9,1\n",
            "gt.txt"),
        "lines of 7 and of 9 fields"),
    bad("MOTChallenge: too few fields", "four", _boxes("1,1,1,1\n", "gt.txt"), "line 1 has 4 fields"),
    bad("MOTChallenge: nothing is to be scored", "all flags 0", _boxes("1,1,1,1,9,9,0,1,1\n", "gt.txt"),
            "no box is left",
        "1 box not to be scored (flag 0)"),
    bad("MOTChallenge: a class of detections", "--classes for det.txt", _boxes("1,-1,1,1,9,9,1\n", "det.txt",
            classes=("1",)),
        "names no class"),
    bad("MOTChallenge: seqinfo names no folder", "imDir=img2", lambda t: _boxes("1,-1,1,1,9,9,1\n", "det.txt",
            source=lambda tmp: [
        _frames(tmp), (tmp/"frames"/"seqinfo.ini").write_text("[Sequence]\nimDir=img2\n")][0])(t),
            "'img2', which does not exist"),
    bad("COCO: no person", "categories without it", _boxes(_coco(categories=[dict(id=1, name="pedestrian")]),
            "c.json"),
        "no category 'person', only ['pedestrian']", "--classes"),
    bad("COCO: an image that is not listed", "image_id 9",
        _boxes(_coco(annotations=[dict(id=7, image_id=9, category_id=1, bbox=[1, 1, 9, 9])]), "c.json"),
            "annotation 7 is of image 9"),
    bad("COCO: half a box", "bbox of three",
        _boxes(_coco(annotations=[dict(id=7, image_id=1, category_id=1, bbox=[1, 1, 9])]), "c.json"),
            "annotation 7 has bbox=[1, 1, 9]"),
    bad("COCO: no lists", "a list of boxes", _boxes("[]", "c.json"), "has no list 'images'"),
    bad("COCO: for a video", "images by name", _boxes(_coco(), "c.json", source=_video), "name image files (path)"),
    bad("boxes: a margin of percent", "--margin 10", _embedded(HEAD + "1,1,1,9,9\n", "--margin", "10"),
            "--margin 10.0",
        "a share of the box"),
    bad("boxes: a margin without boxes", "a folder of crops", _folder_alone, "need a file of boxes"),
    bad("boxes: a margin of a manifest of crops", "no columns of boxes", _listed("path\nframes/001.png\n",
            margin=.1), "has no boxes"),
    bad("boxes: scores that are not there", "--min-score", _boxes(HEAD + "1,1,1,9,9\n", min_score=.5),
            "have no score"),
    bad("boxes: tracklets of plain crops", "--tracklets mean", _plain_tracklets, "whose crops have no tracklets",
            "--boxes FILE"),
    bad("boxes: tracklets of boxes without ids", "--tracklets mean", _embedded(HEAD + "1,1,1,9,9\n", "--tracklets",
            "mean"),
        "the boxes have no ids"),
    bad("boxes: ids under another name", "--tracklets mean, column id", _embedded("frame,x,y,w,h,id\n1,1,1,9,9,4\n",
        "--tracklets", "mean"), "no column tracklet; the file has id: give --column tracklet=id\n"),
    bad("boxes: a negative width", "w=-9", _boxes(HEAD + "1,1,1,-9,9\n"), "1 box of negative size (line 2 of b.csv)"),
    bad("MOTChallenge: a negative width", "w=-9", _boxes("1,-1,1,1,-9,9,1\n", "det.txt"),
        "1 box of negative size (line 1 of det.txt)"),
    bad("crops: quality of PNG", "--quality without --format jpg", _quality_of_png,
        "--quality is of jpg; give --format jpg"),
    bad("embed: features", "embed features.npz", lambda t: [(t/"f.npz").touch(), refused(
        "embed", t/"f.npz", "--model", "clip_tiny", "--out", t/"o")], "these are features already"),
    bad("boxes: options of crops", "--folders with boxes", _embedded(HEAD + "1,1,1,9,9\n", "--folders", "camera"),
        "--folders camera is for a folder of crops"),
    bad("boxes: a text for a folder", "source is a file", lambda t: [(t/"b.csv").write_text(HEAD), crops_table(
        t/"b.csv", boxes=BoxOptions(t/"b.csv"))], "neither a folder of frames nor a video"),
]


def _detect(*options, weights="ssdlite320_mobilenet_v3_large", source=_frames):
    "Detect on the command line, with random weights of a detector"
    def run(tmp):
        import torch
        from torchvision.models import detection
        torch.manual_seed(0)
        net = getattr(detection, weights)(weights=None, weights_backbone=None,
            num_classes=2) if weights else torch.nn.Linear(2, 2)
        torch.save(net.state_dict(), tmp/"d.pth")
        refused("detect", source(tmp), "--weights", tmp/"d.pth", "--out", tmp/"b.csv", *options)
    return run


FAULTS += [
    bad("detect: weights of something else", "a linear layer", _detect(weights=""), "of no detector of torchvision"),
    bad("detect: a threshold of percent", "--threshold 50", _detect("--threshold", "50"), "threshold 50",
            "from 0 to 1"),
    bad("detect: a folder without images", "empty", _detect(source=lambda t: _frames(t, 0)), "holds no images"),
    bad("detect: text for a video", "a file of another ending",
        _detect(source=lambda t: (t/"v.txt").write_text("x") and t/"v.txt"),
            "neither a folder of photographs nor a video"),
    bad("detect: a broken video", "text with the ending of a video",
        _detect(source=lambda t: (t/"v.mp4").write_text("x") and t/"v.mp4"), "cannot be opened"),
    bad("detect: a class that the file lacks", "--label 7 of 1", _detect("--label", "7"), "label 7"),
    bad("crops: a folder that is there", "--out exists", lambda t: refused(
        "crops", _frames(t), "--boxes", t/"b.csv", "--out", t/"frames"), "exists"),
    bad("crops: frames without boxes", "no --boxes for a video", lambda t: refused(
        "crops", _video(t), "--out", t/"c"), "is a video", "--boxes FILE"),
]
