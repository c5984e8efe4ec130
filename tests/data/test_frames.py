"Frames of videos by number, and images of a table by file, box and frame"
import os
import pickle
import signal

import av
import numpy as np
import pytest
from helpers.video import CODECS, decoded, write_video
from helpers.walkers import scene
from PIL import Image

from reid_lab.data.frames import Frames, Video, count_packets, read_frame


@pytest.mark.parametrize("codec", CODECS)
def test_each_frame_is_what_pyav_decodes_in_any_order(tmp_path, codec):
    if CODECS[codec][0] not in av.codecs_available: pytest.skip("PyAV here has no such encoder")
    path = write_video(tmp_path/f"v.{CODECS[codec][1]}", codec=codec)
    frames, video = decoded(path), Video(path)
    assert len(frames) == 24
    for k in range(24): assert np.array_equal(read_frame(video, k), frames[k])
    assert video.n_decoded == 24        # each once
    for k in (5, 20, 20, 3, 0, 23, 11): assert np.array_equal(read_frame(video, k), frames[k])
    fresh = Video(path)                 # and without having passed the others
    assert np.array_equal(read_frame(fresh, 17), frames[17])


def test_frames_are_counted_not_timed(tmp_path):
    times = [0, 1, 2, 10, 11, 50, 51, 52, 53, 90]
    path = write_video(tmp_path/"v.mkv", n=10, codec="ffv1", times=times)
    frames, video = decoded(path), Video(path)
    assert count_packets(path) == len(frames) == 10
    for k in (0, 9, 3, 5): assert np.array_equal(read_frame(video, k), frames[k])


@pytest.mark.parametrize("codec, kept", [("mjpeg", .6), ("ffv1", .5), ("mpeg2", .5)])
def test_a_truncated_video_names_its_last_frame(tmp_path, codec, kept):
    path = write_video(tmp_path/f"v.{CODECS[codec][1]}", codec=codec)
    os.truncate(path, int(kept*path.stat().st_size))
    with av.open(str(path)) as container:
        n = 0
        try:
            for _ in container.decode(video=0): n += 1
        except av.error.FFmpegError: pass
    assert 0 < n < 24
    video = Video(path)
    with pytest.raises(ValueError, match=rf"ends after frame {n - 1} \(the first is frame 0\).*frame 23 is wanted"):
        read_frame(video, 23)
    decoded_then = video.n_decoded
    with pytest.raises(ValueError, match=f"frame {n} is wanted"): read_frame(video, n)
    assert video.n_decoded == decoded_then      # the end is known
    read_frame(video, n - 1)


def test_a_list_of_other_files_is_not_followed(tmp_path):
    (tmp_path/"list.mp4").write_text("#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nhttp://127.0.0.1:9/a.ts\n")
    with pytest.raises(ValueError, match="cannot be opened|holds no pictures"): Video(tmp_path/"list.mp4")


def test_sound_alone_is_refused(tmp_path):
    with av.open(str(tmp_path/"a.mkv"), "w") as out:
        stream = out.add_stream("pcm_s16le", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), layout="mono")
        frame.sample_rate = 8000
        out.mux(stream.encode(frame))
    with pytest.raises(ValueError, match="holds no pictures"): Video(tmp_path/"a.mkv")


def test_many_boxes_of_a_frame_decode_it_once(tmp_path, monkeypatch):
    Image.fromarray(scene(0)).save(tmp_path/"a.png")
    import reid_lab.data.frames as module
    calls = []
    monkeypatch.setattr(module, "read_image", lambda p: calls.append(p) or scene(0))
    read = Frames(tmp_path)
    for k in range(5): assert np.array_equal(read(f"a.png#xywh={k},0,9,20"), scene(0)[:20, k:k + 9])
    assert len(calls) == 1


def test_a_changed_file_is_read_again(tmp_path):
    path = write_video(tmp_path/"v.mkv", n=4, codec="ffv1")
    read, first = Frames(tmp_path), decoded(path)[0]
    assert np.array_equal(read("v.mkv#frame=0"), first)
    write_video(path, n=9, codec="mpeg4")
    assert np.array_equal(read("v.mkv#frame=0"), decoded(path)[0]) and not np.array_equal(first, decoded(path)[0])


def test_a_copy_in_a_forked_process_has_its_own_place_in_the_video(tmp_path):
    frames = decoded(write_video(tmp_path/"v.mp4", codec="h264"))
    read = Frames(tmp_path)
    read("v.mp4#frame=10")
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)        # a hang ends the test, not the suite
        right = all(np.array_equal(read(f"v.mp4#frame={k}"), frames[k]) for k in (20, 3))
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert np.array_equal(read("v.mp4#frame=11"), frames[11])
    assert np.array_equal(pickle.loads(pickle.dumps(read))("v.mp4#frame=12"), frames[12])


def test_a_photograph_is_turned_before_it_is_cut(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(scene(0)).save(tmp_path/"a.png", exif=exif)
    upright = np.asarray(Image.fromarray(scene(0)).transpose(Image.Transpose.ROTATE_270))
    from reid_lab.data.images import upright_size
    assert upright_size(tmp_path/"a.png") == upright.shape[1::-1]
    assert np.array_equal(Frames(tmp_path)("a.png#xywh=50,60,30,90"), upright[60:150, 50:80])
