"Boxes, the pixels that they cut, and the names of crops"
import numpy as np
import pytest
from hypothesis import given, strategies as st

from reid_lab.data.boxes import Box, Region, cut, file_of, region_of

NUMBERS = st.floats(-50, 200, allow_nan=False).map(lambda v: round(v, 3))
SIZES = st.floats(1, 120).map(lambda v: round(v, 3))


@given(st.integers(0, 59), st.integers(0, 39), st.integers(1, 60), st.integers(1, 40))
def test_a_box_of_whole_numbers_cuts_its_own_pixels(x, y, w, h):
    frame = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    assert np.array_equal(cut(frame, Box(x, y, w, h)), frame[y:y + h, x:x + w])


@given(NUMBERS, NUMBERS, SIZES, SIZES, st.integers(0, 10**6) | st.none(), st.sampled_from([0., .1, .125, 2.]))
def test_a_name_is_read_as_it_was_written(x, y, w, h, frame, margin):
    region = Region("cam 1/a#b.mp4", Box(x, y, w, h), frame, margin)
    assert region_of(str(region)) == region
    assert file_of(str(region)) == "cam 1/a#b.mp4"
    assert region_of(region.image) == Region(region.file, region.box, frame)


@given(NUMBERS, NUMBERS, SIZES, SIZES)
def test_a_clipped_box_lies_in_its_frame_and_can_be_cut(x, y, w, h):
    box, frame = Box(x, y, w, h), np.zeros((90, 70, 3), np.uint8)
    inside = box.clipped(70, 90)
    if inside is None:
        assert min(min(x + w, 70) - max(x, 0), min(y + h, 90) - max(y, 0)) < 1
        return
    assert 0 <= inside.x and inside.x + inside.w <= 70.001 and 0 <= inside.y and inside.y + inside.h <= 90.001
    assert cut(frame, inside).size


def test_a_margin_is_a_share_of_the_box_on_each_side():
    frame = np.arange(100*100*3, dtype=np.uint32).astype(np.uint8).reshape(100, 100, 3)
    assert np.array_equal(cut(frame, Box(40, 30, 20, 40), .1), frame[26:74, 38:62])
    assert np.array_equal(cut(frame, Box(0, 60, 20, 40), .5), frame[40:100, 0:30])     # as far as the frame goes


def test_a_crop_does_not_share_memory_with_its_frame():
    frame = np.zeros((20, 20, 3), np.uint8)
    cut(frame, Box(2, 2, 5, 5))[:] = 9
    assert not frame.any()


@pytest.mark.parametrize("path", ["a.jpg", "b#xywh=1,2,3", "c#xywh=a,2,3,4", "d#frame=-1", "e#frame=1xywh=1,2,3,4",
                                  "f#margin=0.1", "#frame=1", "g.jpg#xywh=1,2,3,4&frame=1"])
def test_other_names_are_plain_files(path):
    assert region_of(path) == Region(path) and file_of(path) == path
