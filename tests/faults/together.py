"Questions of several parts, and questions that are searched again with their results"
import numpy as np
from fault import bad, refused
from PIL import Image

from reid_lab.analysis.open_set import Threshold
from reid_lab.recipes.crops import from_package
from reid_lab.retrieval.embeddings import Embeddings

BOT = from_package("bot_tiny")


def _gallery(tmp):
    "Features of a model that reads images, one crop, and a threshold"
    Image.fromarray(np.zeros((64, 32, 3), np.uint8)).save(tmp/"a.png")
    Image.fromarray(np.full((64, 32, 3), 90, np.uint8)).save(tmp/"b.png")
    meta = dict(model=type(BOT).__name__, model_name="bot_tiny", kind="image")
    Embeddings(np.eye(4, BOT.dim, dtype="f4") + .1, [0, 0, 1, 1], meta=meta).save(tmp/"g.npz")
    Threshold(.5, .1, .1, 10, 5).save(tmp/"limit.json")


def _search(tmp, *args):
    _gallery(tmp)
    refused("search", tmp/"g.npz", *(tmp/a if str(a).endswith((".png", ".json")) else a for a in args))


TWO = ("--image", "a.png", "b.png")

FAULTS = [
    bad("together: a crop and a sentence apart", "both kinds without --together",
        lambda tmp: _search(tmp, "a man", *TWO), "not both", "--together makes one question of them"),
    bad("together: one crop alone", "--together of one image",
        lambda tmp: _search(tmp, "--image", "a.png", "--together"),
        "--together makes one question of several images", "leave it out"),
    bad("together: a weight of nothing", "--image-weight without --together",
        lambda tmp: _search(tmp, *TWO, "--image-weight", "0"), "--image-weight 0 is of --together"),
    bad("together: a weight without sentences", "--image-weight of images alone",
        lambda tmp: _search(tmp, *TWO, "--together", "--image-weight", ".3"), "--image-weight 0.3", "no sentences"),
    bad("together: a weight beyond 1", "--image-weight 2",
        lambda tmp: _search(tmp, *TWO, "--together", "--image-weight", "2"),
        "argument --image-weight: '2' must be a number from 0 to 1"),
    bad("together: a model that reads no text", "a sentence beside a crop for bot_tiny",
        lambda tmp: _search(tmp, "a man", *TWO, "--together"), "reads no captions"),
    bad("together: a threshold of single questions", "--threshold beside --together",
        lambda tmp: _search(tmp, *TWO, "--together", "--threshold", "limit.json"),
        "calibrated with single questions", "leave it out"),
    bad("expand: a threshold of single questions", "--threshold beside --expand",
        lambda tmp: _search(tmp, *TWO, "--expand", "2", "--threshold", "limit.json"),
        "calibrated with single questions"),
    bad("expand: more than the gallery", "--expand 5 of 4 images", lambda tmp: _search(tmp, *TWO, "--expand", "5"),
        "--expand 5, but the gallery has 4 images"),
    bad("expand: a power of nothing", "--alpha without --expand", lambda tmp: _search(tmp, *TWO, "--alpha", "0"),
        "--alpha 0 is of --expand K"),
    bad("expand: a negative power", "--alpha -1", lambda tmp: _search(tmp, *TWO, "--expand", "2", "--alpha", "-1"),
        "argument --alpha: '-1' must be a number from 0 to 100"),
]
