"Writing whole or not at all, also where several processes write one name"
from pathlib import Path

import pytest
from PIL import Image, features

from reid_lab.core.files import atomic_path, file_kind


def test_a_workspace_that_another_writer_sweeps_is_made_again(tmp_path, monkeypatch):
    "Writers of one name sweep what killed ones left; a workspace is empty for a moment before it has its lock"
    made, mkdir = [], Path.mkdir
    def swept_once(self, *args, **kw):
        if self.name.startswith(".plan.json.") and not made:
            made.append(self)
            self.rmdir()
            raise FileExistsError(self)     # what mkdir says if the folder goes away while it looks
        return mkdir(self, *args, **kw)
    monkeypatch.setattr(Path, "mkdir", swept_once)
    with atomic_path(tmp_path/"plan.json") as new: new.write_text("{}")
    assert made and [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.bmp", "a.webp", "a.tif", "a.gif", "a.ppm", "a.pgm", "a.pbm",
                                  "a.jp2", "a.j2k", "a.avif"])
def test_each_format_that_is_read_begins_like_an_image(tmp_path, name):
    if name == "a.avif" and not features.check("avif"): pytest.skip("this Pillow has no AVIF")
    Image.new("1" if name == "a.pbm" else "L" if name == "a.pgm" else "RGB", (16, 32)).save(tmp_path/name)
    assert file_kind(tmp_path/name) == "image"


@pytest.mark.parametrize("data, kind", [
    (b"RIFF\x10\0\0\0WAVEfmt \0\0", "binary"), (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom", "binary"),
    (b"P1 walks behind P2", "text"), (b"P6,cam\n1,2\n", "text"), (b"P3\n# by hand\n2 2\n255\n", "image"),
    (b"\0\0\0\x1cftypmif1\0\0\0\0mif1avifmiaf", "image"), (b"\0\0\0\x10ftypheic\0\0\0\0avif", "binary")])
def test_what_begins_nearly_like_an_image(tmp_path, data, kind):
    (tmp_path/"a").write_bytes(data)
    assert file_kind(tmp_path/"a") == kind
