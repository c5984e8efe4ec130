"""Models and what they are given: images, cameras, augmentation, adaptation, captions."""
import functools

import numpy as np
import torch
from fault import bad, interruption

from reid_lab.core.basics import stream
from reid_lab.data import loaders
from reid_lab.data.augment import Rectangle, erase, rectangles, to_pixels
from reid_lab.data.images import resize_image
from reid_lab.data.table import ReidTable
from reid_lab.data.text import clean_caption, eda, mask_words
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.models.zoo import create_model
from reid_lab.recipes.reid import train_reid
from reid_lab.retrieval.embeddings import Embeddings, embed_images, encode_images
from reid_lab.training.prompts import learn_prompts
from reid_lab.tta import dart3
from reid_lab.tta.base import FeatureStream, ImageStream, adapt_embeddings, adapt_images
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.gradient import Temp, Tent

IMG = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@functools.cache
def _model(name="bot_tiny", **kw):
    torch.manual_seed(0)
    return create_model(name, n_ids=4, size=(32, 32), **kw).eval()


def _sided(): return _model("transreid_tiny", cams=(7, 3))


@functools.cache
def _crops(): return tiny_table(12, 3)


@functools.cache
def _raw(**where): return embed_images(_model(), _crops().where(**where), encode="raw_features", quiet=True)


def _adapt(method, model=None):
    model = model or _model()
    g = embed_images(model, _crops().where(cam=0), encode="raw_features", quiet=True)
    return adapt_images(method, model, _crops().where(cam=2), g)


def _batch(cam): return dict(img=IMG, label=torch.arange(4)//2, pid=torch.arange(4)//2, cam=torch.tensor(cam))


def _frozen():
    model = create_model("bot_tiny", n_ids=4, size=(32, 32)).eval()
    return model.requires_grad_(False)


def _training(): return ReidTable(_crops().frame.assign(split="train"), None, _crops().reader)


def _misnamed():
    model = create_model("bot_tiny", n_ids=4, size=(16, 16))
    model.resample = "bicubik"
    return model


class _Flat(torch.nn.Linear):
    "A model that returns one number an image"
    size = (32, 32)
    def encode_image(self, img): return img.mean((1, 2, 3))


def _ground(tmp):
    ground = ImageStream(_model(), _crops().where(cam=1))
    return _adapt(dart3.Dart3(ground=ground, n_ground=2, stats_from="query"))


class _Stop(Temp):
    "Is interrupted in its third batch, after two updates"
    seen = 0
    def loss(self, rows):
        self.seen += 1
        if self.seen == 3: raise KeyboardInterrupt("Ctrl-C at batch 3")
        return super().loss(rows)


def _everything(model):
    "Weights, buffers, gradients wanted and the mode of each module"
    return ({k: v.clone() for k, v in model.state_dict().items()},
            [(p.requires_grad, p.grad) for p in model.parameters()], [m.training for m in model.modules()])


def _same(a, b): return all(torch.equal(v, b[0][k]) for k, v in a[0].items()) and a[1:] == b[1:]


def _stopped(call, model, before):
    "What a user reads of an interruption, after the model has been compared"
    try: call()
    except KeyboardInterrupt as e: said = str(e)
    else: raise AssertionError("nothing was interrupted")
    assert _same(before, _everything(model))
    return said


def _adaptation_stops(tmp, **kw):
    model = create_model("bot_tiny", n_ids=4, size=(32, 32)).train()
    before, method = _everything(model), _Stop(k=4, lr=.1, batch_size=4, **kw)
    said = _stopped(lambda: adapt_images(method, model, _crops().where(cam=2), _raw(cam=0), keep=True), model, before)
    assert method.seen == 3
    return said


def _embedding_stops(tmp):
    model = create_model("bot_tiny", n_ids=4, size=(32, 32)).train()
    before, table = _everything(model), _crops()

    def stops(paths):
        if "stop" in paths: raise KeyboardInterrupt("Ctrl-C at batch 3")
        return table.reader(paths)

    frame = table.frame.assign(path=[*table.frame.path[:-1], "stop"])
    odd = ReidTable(frame, None, stops)
    return _stopped(lambda: embed_images(model, odd, batch_size=16, quiet=True), model, before)


FAULTS = [
    # models
    bad("models: unknown name", "a misspelt model", lambda tmp: create_model("bot_tinny", n_ids=4),
        "bot_tinny", "Did you mean 'bot_tiny'"),
    bad("models: crops smaller than a patch", "a transformer for crops of 64 x 8",
        lambda tmp: create_model("transreid_tiny", n_ids=4, size=(64, 8)), "size=(64, 8)", "one patch of 16 pixels"),
    bad("models: unknown test feature", "feature='neck'", lambda tmp: create_model("bot_tiny", n_ids=4, feature="neck"),
        "feature='neck'", "'after'"),
    bad("models: weights that are no file", "a misspelt path of pretrained weights",
        lambda tmp: create_model("bot_r50", n_ids=4, weights=str(tmp/"r50.pth")), "r50.pth", "is not a file",
        error=FileNotFoundError),
    bad("models: labels beyond the identities", "prompts for labels that the model lacks",
        lambda tmp: learn_prompts(_model("clip_reid_tiny"), torch.rand(3, 64), [0, 1, 4], epochs=1, quiet=True),
        "from 0 to 3", "use cache_images"),
    # cameras as side information
    bad("cameras: named twice", "side information for cameras 3, 3 and 5",
        lambda tmp: create_model("transreid_tiny", n_ids=4, cams=(3, 3, 5)), "cams=[3, 3, 5]", "give each id once"),
    bad("cameras: a negative number", "side information for -1 cameras",
        lambda tmp: create_model("transreid_tiny", n_ids=4, cams=-1), "cams=-1", "number of cameras, or their ids"),
    bad("cameras: unknown in training", "a training batch holds a camera without side information",
        lambda tmp: _sided()(_batch([7, 7, 3, 5])), "cam=5 has no side information", "[7, 3]", "cams=None"),
    bad("cameras: fewer than images", "one camera number for four images",
        lambda tmp: _sided().encode_image(IMG, torch.tensor([7])), "cam has 1 entries for 4 images"),
    bad("cameras: fewer than images, by name", "two camera numbers for four images",
        lambda tmp: encode_images(_sided(), IMG, [7, 3]), "cam has 2 entries for 4 images"),
    # images to models
    bad("images: floats", "pixels divided by 255 beforehand", lambda tmp: to_pixels(np.zeros((2, 8, 4, 3))),
        "dtype torch.float64", "expected uint8 (N,H,W,3)"),
    bad("images: one without a batch", "a single image", lambda tmp: to_pixels(np.zeros((8, 4, 3), np.uint8)),
        "shape (8, 4, 3)", "expected uint8 (N,H,W,3)"),
    bad("images: unknown interpolation", "resample='linear'",
        lambda tmp: resize_image(np.zeros((8, 4, 3), np.uint8), (4, 2), "linear"), "resample='linear'", "bilinear"),
    bad("images: unknown interpolation of a model", "a model whose attribute resample is misspelt",
        lambda tmp: embed_images(_misnamed(), _crops().take([0]), quiet=True), "resample='bicubik'", "bicubic"),
    bad("images: an empty table", "a split without images",
        lambda tmp: embed_images(_model(), _crops().take([]), quiet=True), "is empty", "check the split"),
    bad("images: not a matrix", "a model that returns one number an image",
        lambda tmp: embed_images(_Flat(1, 1), _crops(), quiet=True), "model.encode_image returned (36,)", "(B,D)"),
    bad("images: no such method", "features that the model does not have",
        lambda tmp: encode_images(_model(), IMG, encode="patch_features"), "BoT has no method 'patch_features'",
        error=AttributeError),
    # augmentation
    bad("augmentation: unknown", "a misspelt augmentation",
        lambda tmp: loaders.Batches(_crops(), 4, augment="bot_release"),
        "augment='bot_release'", "Did you mean 'bot_released'"),
    bad("augmentation: area in per cent", "area=(2, 40)", lambda tmp: Rectangle(area=(2, 40)),
        "area=(2, 40)", "shares of the image"),
    bad("augmentation: area upside down", "area=(.4, .02)", lambda tmp: Rectangle(area=(.4, .02)),
        "area=(0.4, 0.02)", "range"),
    bad("augmentation: ratio below one", "ratio=.3, the smallest instead of the largest",
        lambda tmp: Rectangle(ratio=.3), "ratio=0.3", "1 or more"),
    bad("augmentation: share above one", "p=50", lambda tmp: erase(IMG, torch.Generator(), p=50), "p=50", "0 to 1"),
    bad("augmentation: no draws", "tries=-1", lambda tmp: Rectangle(tries=-1),
        "tries=-1", "0 or more"),
    bad("augmentation: unknown way to draw", "aspect='uniform'",
        lambda tmp: rectangles(4, (8, 4), torch.Generator(), aspect="uniform"), "aspect='uniform'", "'even'"),
    bad("augmentation: unknown colour", "fill='mean'", lambda tmp: erase(IMG, torch.Generator(), fill="mean"),
        "fill='mean'", "three numbers"),
    bad("recipe: unknown interpolation", "test_resample='nearest'",
        lambda tmp: train_reid(_training(), "smoke", test_resample="nearest", quiet=True),
        "test_resample='nearest'", "bilinear"),
    # adaptation
    bad("adaptation: no cameras", "queries without camera numbers",
        lambda tmp: FeatureStream(Embeddings(torch.rand(3, 2), [0, 1, 2])), "no camera numbers", "cam=..."),
    bad("adaptation: a model is needed", "TENT on features alone",
        lambda tmp: adapt_embeddings(Tent(), _raw(cam=2), _raw(cam=0)), "Tent adapts a model", "Dart3Lite"),
    bad("adaptation: features of two models", "a gallery of other width",
        lambda tmp: adapt_embeddings(CameraNorm(), _raw(cam=2), Embeddings(torch.rand(3, 5), [0, 1, 2], [0, 1, 0])),
        "q has 128 dimensions and g has 5"),
    bad("adaptation: all is frozen", "a model with requires_grad=False throughout",
        lambda tmp: _adapt(Temp(k=4), _frozen()), "requires_grad is False for all", "frozen=True"),
    bad("adaptation: no such layers", "BatchNorm wanted of a model that has none",
        lambda tmp: _adapt(Temp(k=4, norm_kinds=("bn2d",)), _model("transreid_tiny", parts=0)),
        "no normalisation layer of kind ['bn2d']", "norm_kinds"),
    bad("adaptation: unknown layers", "norm_kinds=('gn',)", lambda tmp: _adapt(Temp(k=4, norm_kinds=("gn",))),
        "norm_kinds='gn'", "'bn2d'"),
    bad("adaptation: LITE has no layers", "frozen=True for DART3-LITE", lambda tmp: dart3.Dart3Lite(frozen=True),
        "takes no ['frozen']", "use Dart3", error=TypeError),
    bad("adaptation: a batch of one", "batch statistics of single images",
        lambda tmp: _adapt(Tent(bn_mode="batch", batch_size=1)), "at least two images in a batch"),
    bad("adaptation: temperature 0", "tau=0", lambda tmp: dart3.Dart3Lite(tau=0), "tau=0 must be positive"),
    bad("adaptation: grounding without images", "n_ground=8 alone", lambda tmp: dart3.Dart3(n_ground=8),
        "n_ground=8 needs ground"),
    bad("adaptation: grounding cameras without statistics", "statistics of the queries only", _ground,
        "ground has cameras without statistics: [1]", "stats_from='pooled'"),
    bad("adaptation: the loss is not finite", "a rate of 1e30",
        lambda tmp: _adapt(Temp(k=4, lr=1e30, steps=3)), "the loss of Temp is", "lower lr", error=FloatingPointError),
    # captions
    bad("captions: a list", "two captions at once", lambda tmp: clean_caption(["a man", "a hat"]), "is list, not str",
        error=TypeError),
    bad("captions: missing", "None of a table's empty cell", lambda tmp: clean_caption(None), "is NoneType, not str",
        error=TypeError),
    bad("captions: unknown style", "style='letter'", lambda tmp: clean_caption("a man", "letter"), "style='letter'",
        "Did you mean 'letters'"),
    bad("captions: unknown operation", "ops=('shuffle',)", lambda tmp: eda("a man", stream(0), ops=("shuffle",)),
        "ops='shuffle'", "swap"),
    bad("captions: fewer than no words", "m=-1", lambda tmp: mask_words("a man", -1, stream(0)),
        "m=-1", "0 or more words"),
    bad("captions: unknown masking", "how='drop'", lambda tmp: mask_words("a man", 1, stream(0), "drop"),
        "how='drop'", "delete"),
    # interruptions
    interruption("adaptation: Ctrl-C between updates", "an adaptation is stopped in its third batch, with keep=True",
                 "weights, statistics, requires_grad and modes are as before", _adaptation_stops, "Ctrl-C at batch 3"),
    interruption("adaptation: Ctrl-C with batch statistics", "the same while BatchNorm has no running statistics",
                 "running statistics are back", lambda tmp: _adaptation_stops(tmp, bn_mode="batch"),
                 "Ctrl-C at batch 3"),
    interruption("images: Ctrl-C while embedding", "the third batch of images does not come",
                 "the model is in the mode it was in", _embedding_stops, "Ctrl-C at batch 3"),
]
