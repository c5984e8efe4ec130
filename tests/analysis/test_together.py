"One question of several parts: its images are in no list, its weight is that of the formula, a page shows the answer"
import warnings

import numpy as np
import pytest
import torch
from helpers.open_set import bare
from PIL import Image

from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.search import ask, find
from reid_lab.analysis.together import Together, as_one_picture, ask_together, find_together
from reid_lab.recipes.crops import from_package, search
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.queries import Expansion
from reid_lab.retrieval.shards import Shards, write_shards
from reid_lab.widgets.search import answer_page


@pytest.fixture(scope="module")
def clip(): return from_package("clip_tiny")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    "A folder of twelve crops, and their features with paths"
    root, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    for i in range(12):
        block = rng.integers(0, 256, (8, 4, 3), "u1")
        Image.fromarray(block).resize((32, 64), Image.Resampling.NEAREST).save(root/f"{i:02d}.png")
    return root


@pytest.fixture(scope="module")
def gallery(clip, photos):
    e = ask(clip, [photos/f"{i:02d}.png" for i in range(12)])
    e.path, e.meta = [f"{i:02d}.png" for i in range(12)], dict(e.meta, root=str(photos))
    return e


def unit(x): return x/np.linalg.norm(x)


def test_image_and_sentence_are_the_naive_mean(clip, photos, gallery):
    sentence, rows = "a man with a red shirt", [2, 5]
    images = [photos/f"{r:02d}.png" for r in rows]
    words = ask(clip, sentence).numpy()[0]
    for weight in (0., .3, 1.):
        got = ask_together(clip, [images[0], sentence, images[1]], Together(weight))
        seen = unit(sum(unit(gallery.numpy()[r].astype(float)) for r in rows))
        want = unit(weight*seen + (1 - weight)*unit(words))
        assert np.abs(got.q.numpy()[0] - want).max() < 1e-5
        scores = {j: float(unit(gallery.numpy()[j]) @ want) for j in range(12) if j not in rows}
        answer = find_together(got, gallery, 10)
        assert answer.result.index[0].tolist() == sorted(scores, key=lambda j: -scores[j])
        assert answer.itself == 2 and answer.parts.left_out.tolist() == rows
    assert got.q.caption == [sentence] and got.q.path == ["02.png + 05.png"]


def test_the_own_images_are_left_out_on_disk_too(clip, photos, gallery, tmp_path):
    pytest.importorskip("pyarrow")
    shards = Shards(write_shards(gallery, tmp_path/"s", dtype="float32"))
    question = ask_together(clip, [photos/"02.png", photos/"05.png"])
    for expansion in (None, Expansion(3, 2.)):
        a, b = (find_together(question, g, 6, expansion).result.index for g in (gallery, shards))
        assert (a == b).all() and not {2, 5} & set(a[0])
    with pytest.raises(ValueError, match="nothing is left to be searched"): find_together(question, gallery[[2, 5]])


def test_a_page_shows_the_list_of_the_answer(clip, photos, gallery):
    what = [photos/"02.png", photos/"05.png", "a man with a red shirt"]
    answer = search(gallery, what, 4, clip, together=Together(.4), expand=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        page = answer_page(answer, photos)
    shown = page.content(0)
    assert [item["name"] for item in shown["items"]] == [gallery.path[j] for j in answer.result.index[0]]
    assert shown["query_text"] == "a man with a red shirt" and shown["query_name"] == "02.png + 05.png"
    assert shown["crop"]["uri"].startswith("data:image/jpeg")
    assert page._head(0)["note"] == "a man with a red shirt"


def test_one_picture_holds_all_images(photos):
    values = (250, 0, 0), (0, 250, 0), (0, 0, 250), (90, 90, 0), (0, 9, 9)
    colours = [np.full((40, 20, 3), value, np.uint8) for value in values]
    for n, columns in ((1, 1), (2, 2), (4, 2), (5, 3)):
        page = as_one_picture(colours[:n])
        assert page.shape == (256, 128, 3)
        for place in range(n):
            row, column = divmod(place, columns)
            middle = page[int((row + .5)*256/columns) - 2, int((column + .5)*128/columns) - 2]
            assert np.abs(middle.astype(int) - colours[place][0, 0]).max() < 6


def test_search_of_the_library(clip, photos, gallery):
    first, second = photos/"02.png", photos/"05.png"
    alone = search(gallery, [first, second], 3, clip)
    assert len(alone) == 2 and alone.parts is None
    expanded = search(gallery, first, 3, clip, expand=Expansion(2, 1.))
    assert expanded.itself == 1 and not np.allclose(expanded.result.score, alone.result.score[:1])
    limit = Threshold(.5, .1, .1, 10, 5)
    for how in (dict(together=True), dict(expand=2)):
        with pytest.raises(ValueError, match="calibrated with single questions"):
            search(gallery, [first, second], 3, clip, limit, **how)
    whole = ask_together(clip, [first, second])
    with pytest.raises(ValueError, match="calibrated with single questions"): find(whole.q, gallery, 3, limit)


@pytest.mark.parametrize("what, how, message", [
    (["a man"], True, "one alone"), (["a man", "a hat"], Together(.3), "no images; leave it out"),
    ([np.zeros((8, 4, 3), np.uint8)]*2, Together(.3), "no sentences; leave it out")])
def test_what_has_no_effect(clip, gallery, what, how, message):
    with pytest.raises(ValueError, match=message): search(gallery, what, 3, clip, together=how)


def test_a_model_of_images_reads_no_sentence(photos):
    bot = from_package("bot_tiny")
    with pytest.raises(TypeError, match="reads no text, so that images and sentences are not in one space"):
        ask_together(bot, [photos/"02.png", "a man"])
    e = bare(Embeddings(torch.eye(bot.dim)[:3], [0, 1, 2]))
    with pytest.raises(ValueError, match="reads no captions"):
        search(e, [photos/"02.png", "a man"], 1, bot, together=True)
