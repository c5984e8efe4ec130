"Small videos of walking people, and the frames that PyAV decodes from them"
import av

from helpers.walkers import scene

CODECS = {  # name -> (encoder, ending, pixel format)
    "mpeg4": ("mpeg4", "avi", "yuv420p"), "mjpeg": ("mjpeg", "avi", "yuvj420p"), "ffv1": ("ffv1", "mkv", "yuv420p"),
    "h264": ("libx264", "mp4", "yuv420p"), "vp9": ("libvpx-vp9", "webm", "yuv420p"),
    "mpeg2": ("mpeg2video", "mpg", "yuv420p"), "h265": ("libx265", "mkv", "yuv420p")}


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
