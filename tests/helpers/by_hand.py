"Folders of small images, written by hand as the loaders of a benchmark describe them"
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def picture(path):
    "A small image of coarse blocks, which its name decides"
    path.parent.mkdir(parents=True, exist_ok=True)
    block = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 256, (4, 2, 3), np.uint8)
    Image.fromarray(np.kron(block, np.ones((8, 8, 1), np.uint8))).save(path)


def plain_pictures(folder, names):
    "One image of a single colour for each name; names may be equal in several folders -> `folder`"
    for i, name in enumerate(names):
        path = Path(folder)/name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((24, 12, 3), 9*i % 255, np.uint8)).save(path)
    return folder


def values(table, *columns):
    "The rows of some columns, as tuples"
    return list(zip(*(table[column].tolist() for column in columns)))
