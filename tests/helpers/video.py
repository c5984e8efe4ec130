"Small videos of one walking person a row, and the frames that PyAV decodes from them"
import av
import numpy as np

CODECS = {  # name -> (encoder, ending, pixel format)
    "mpeg4": ("mpeg4", "avi", "yuv420p"), "mjpeg": ("mjpeg", "avi", "yuvj420p"), "ffv1": ("ffv1", "mkv", "yuv420p"),
    "h264": ("libx264", "mp4", "yuv420p"), "vp9": ("libvpx-vp9", "webm", "yuv420p"),
    "mpeg2": ("mpeg2video", "mpg", "yuv420p"), "h265": ("libx265", "mkv", "yuv420p")}


def scene(k: int, n_people: int = 2, height: int = 96, width: int = 160) -> np.ndarray:
    "Frame k: people as striped boxes that walk, on a background that changes slowly"
    rng = np.random.default_rng(3)
    frame = np.full((height, width, 3), (190, 200, 205), np.uint8) + rng.integers(0, 20, (height, width, 1), np.uint8)
    for p in range(n_people):
        x, y, w, h = box_of(k, p)
        frame[y:y + h, x:x + w] = (220 - 80*p, 40 + 60*p, 40 + 3*k)
        frame[y + h//2:y + h, x:x + w] = (30, 30 + 40*p, 90)
    return frame


def box_of(k: int, p: int) -> tuple:
    "Box x, y, w, h of person p in frame k, from 0"
    return 4 + 3*k + 50*p, 20 + 4*p, 18, 48


def write_video(path, n: int = 24, codec: str = "mpeg4", times=None):
    "A video of n frames; `times` in 25ths of a second, which may leave gaps"
    encoder, _, pix_fmt = CODECS[codec]
    with av.open(str(path), "w") as out:
        stream = out.add_stream(encoder, rate=25)
        stream.height, stream.width = scene(0).shape[:2]
        stream.pix_fmt = pix_fmt
        stream.codec_context.gop_size = 8
        for k in range(n):
            frame = av.VideoFrame.from_ndarray(scene(k), format="rgb24")
            frame.pts = k if times is None else times[k]
            out.mux(stream.encode(frame))
        out.mux(stream.encode())
    return path


def decoded(path) -> list:
    "All frames as PyAV gives them"
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def mot_lines(n: int = 24, people: int = 2, order: str = "id") -> str:
    "Ground truth of MOT16 for these frames: sorted by id, as the benchmark has it, or by frame"
    rows = [(k, p) for p in range(people) for k in range(n)]
    if order == "frame": rows.sort()
    lines = []
    for k, p in rows:
        x, y, w, h = box_of(k, p)
        lines.append(f"{k + 1},{p + 1},{x + 1},{y + 1},{w},{h},1,1,1.0")
    return "\n".join(lines) + "\n"
