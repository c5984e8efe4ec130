"Boxes embedded, searched and shown as crops that are files; a killed embedding of a video goes on"
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.video import decoded, write_video
from helpers.walkers import box_of, mot_lines, scene
from PIL import Image

from reid_lab.data.box_files import BoxOptions
from reid_lab.data.crops import boxes_table, crops_table
from reid_lab.recipes.crops import CropOptions, embed_crops, match_table, matches, search
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.sides import same_images
from reid_lab.retrieval.tracklets import pool_tracklets

sys.path.insert(0, str(Path(__file__).parents[1]/"faults"))
from fault import cli, killed  # noqa: E402


@pytest.fixture
def walk(tmp_path):
    "A video with two people, and their boxes"
    path = write_video(tmp_path/"walk.mp4", codec="h264")
    (tmp_path/"gt.txt").write_text(mot_lines())
    return path


def _by_hand(walk, folder):
    "The crops of all boxes as PNG files, named in the order of the table"
    folder.mkdir()
    for k, frame in enumerate(decoded(walk)):
        for p in range(2):
            x, y, w, h = box_of(k, p)
            Image.fromarray(frame[y:y + h, x:x + w]).save(folder/f"{k:03}_{p}.png")
    return folder


def test_boxes_embed_like_crops_cut_by_hand(walk, tmp_path):
    files = embed_crops(crops_table(_by_hand(walk, tmp_path/"crops")), "bot_tiny", tmp_path/"files", quiet=True)
    boxes = embed_crops(crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt")), "bot_tiny", tmp_path/"boxes",
            quiet=True)
    order = np.lexsort((boxes.columns["tracklet"], boxes.columns["frame"]))
    assert torch.equal(boxes.emb[order], files.emb)
    back = Embeddings.load(tmp_path/"boxes")
    assert back.columns["x"][0] == box_of(0, int(back.columns["tracklet"][0][-1]) - 1)[0]


def test_a_box_never_finds_itself_and_finds_the_next_frame(walk, tmp_path):
    table = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt"))
    plain = embed_crops(table, "bot_tiny", tmp_path/"a", quiet=True)
    wide = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt", margin=.1))
    wide = embed_crops(wide, "bot_tiny", tmp_path/"b", quiet=True)
    assert len(same_images(plain, wide)) == len(plain)       # a margin does not make another image
    pairs = match_table(matches(tmp_path/"a", tmp_path/"a"))
    assert (pairs.a != pairs.b).all() and len(pairs) == 48    # boxes of one frame are two images


def test_search_with_a_crop_shows_pictures_cut_from_the_video(walk, tmp_path):
    e = embed_crops(crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt")), "bot_tiny", tmp_path/"a", quiet=True)
    x, y, w, h = box_of(5, 1)
    found = search(e, decoded(walk)[5][y:y + h, x:x + w], 3)
    best = found.table(0).iloc[0]
    assert best.frame == 6 and best.tracklet.endswith("#2")
    from reid_lab.widgets.search import images_of
    pictures = images_of(e, tmp_path)
    assert np.array_equal(pictures([int(best.row)])[0], decoded(walk)[5][y:y + h, x:x + w])
    assert not pictures.notes() and not pictures.lost


def test_the_command_line_pools_tracklets(walk, tmp_path):
    code, out, err = cli("embed", walk, "--boxes", tmp_path/"gt.txt", "--margin", .1, "--model", "bot_tiny", "--out",
                         tmp_path/"t", "--tracklets", "mean")
    assert code == 0 and "2 tracklets of 48 crops" in out, err
    whole = embed_crops(crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt", margin=.1)), "bot_tiny", tmp_path/"w",
                        quiet=True)
    assert torch.equal(Embeddings.load(tmp_path/"t").emb, pool_tracklets(whole).emb)


def test_changed_boxes_or_margins_are_another_plan(walk, tmp_path):
    table = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt"))
    killed(lambda: embed_crops(table, "bot_tiny", tmp_path/"a", CropOptions(8), quiet=True),
           "reid_lab.retrieval.parts.Parts.join")
    wide = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt", margin=.2))
    with pytest.raises(FileExistsError, match="images"): embed_crops(wide, "bot_tiny", tmp_path/"a",
            CropOptions(8), quiet=True)
    write_video(walk, n=24, codec="h264", times=[2*k for k in range(24)])      # the video changed
    with pytest.raises(FileExistsError, match="images"): embed_crops(table, "bot_tiny", tmp_path/"a",
            CropOptions(8), quiet=True)


@pytest.mark.kill
@pytest.mark.parametrize("nth", [1, 3])
def test_a_killed_embedding_of_a_video_goes_on(walk, tmp_path, monkeypatch, nth):
    import reid_lab.recipes.crops as recipe
    monkeypatch.setattr(recipe, "SAVE_EVERY", 0.)       # a part a batch
    table = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt"))
    whole = embed_crops(table, "bot_tiny", tmp_path/"whole", CropOptions(8), quiet=True)
    table = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt"))
    killed(lambda: embed_crops(table, "bot_tiny", tmp_path/"again", CropOptions(8), quiet=True),
           "reid_lab.retrieval.parts.Parts.write", nth=nth, after=True)
    parts = sorted(p.name for p in (tmp_path/"again.parts").iterdir() if "-" in p.name)
    assert len(parts) == nth
    times = [p.stat().st_mtime_ns for p in (tmp_path/"again.parts").glob("*-*")]
    read = []
    table = crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt"))
    monkeypatch.setattr(type(table), "read", _noting(type(table).read, read))
    again = embed_crops(table, "bot_tiny", tmp_path/"again", CropOptions(8), quiet=True)
    assert torch.equal(again.emb, whole.emb) and again.path == whole.path and times
    assert len(read) == 48 - 8*nth                       # crops that were embedded are not read again


def _noting(true, seen):
    "A method that notes the paths it was called with"
    def read(self, paths):
        seen.extend(paths)
        return true(self, paths)
    return read


def test_the_missing_extra_is_named(walk, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"pip install 'reid_lab\[video\]'"):
        crops_table(walk, boxes=BoxOptions(tmp_path/"gt.txt"))


def test_training_reads_boxes_too(tmp_path):
    from reid_lab.data.loaders import Batches
    for k in range(4): Image.fromarray(scene(k)).save(tmp_path/f"{k}.png")
    rows = [(f"{k}.png", *box_of(k, p), f"p{p}", "train") for k in range(4) for p in range(2)]
    pd.DataFrame(rows, columns=["path", "x", "y", "w", "h", "pid", "split"]).to_csv(tmp_path/"m.csv", index=False)
    table = crops_table(tmp_path/"m.csv")
    batch = next(iter(Batches(table, batch_size=4, size=(32, 16)).epoch(0)))
    assert batch["img"].shape[0] == 4
    assert boxes_table(tmp_path, BoxOptions(tmp_path/"m.csv"))["path"].tolist() == table["path"].tolist()
