"Crops and questions in the forms in which they are at hand; answers that show themselves in a notebook"
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import reid_lab as rl
from reid_lab.analysis.search import as_questions, ask
from reid_lab.cli.commands import main
from reid_lab.core.basics import stream
from reid_lab.data.crops import as_crops, crops_table, frame_table
from reid_lab.data.images import read_image
from reid_lab.data.table import ReidTable
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.parts import image_facts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("crops")
    for k, name in enumerate(["a.png", "b <i>.png", "gate/c.png"]):
        (root/name).parent.mkdir(exist_ok=True)
        Image.fromarray(stream(0, "crop", k).integers(0, 256, (40, 20, 3), "u1")).save(root/name)
    return root


@pytest.fixture(scope="module")
def features(folder): return rl.embed_crops(folder, "clip_tiny", quiet=True)


def test_a_folder_a_list_a_frame_and_a_table_embed_alike(folder, features, tmp_path, monkeypatch):
    files = [folder/"a.png", str(folder/"b <i>.png"), folder/"gate"/"c.png"]
    monkeypatch.chdir(folder)
    table = crops_table(folder)
    forms = dict(path=folder, text=str(folder), files=files, relative=["a.png", "b <i>.png", "gate/c.png"], table=table,
                 frame=pd.DataFrame(dict(path=files)), series=pd.Series(files, [7, 7, 3]), array=np.array(files, str))
    order = [features.path.index(name) for name in ("a.png", "b <i>.png", "gate/c.png")]
    for name, form in forms.items():
        e = rl.embed_crops(form, "clip_tiny", quiet=True)
        rows = order if name in ("path", "text", "table") else [0, 1, 2]
        assert torch.allclose(e.emb[rows], features.emb[order], atol=1e-6), name
        assert sorted(e.path) == sorted(features.path) and e.meta["root"] == str(folder)
    kept = rl.embed_crops(files, "clip_tiny", tmp_path/"out.npz", quiet=True)
    assert torch.equal(rl.Embeddings.load(tmp_path/"out.npz").emb, kept.emb)
    assert len(as_crops(files[1])) == 1


def test_images_in_memory_embed_as_their_files_do(folder, features, tmp_path):
    files = [folder/name for name in features.path]
    pixels = [read_image(file) for file in files]
    forms = dict(arrays=pixels, stack=np.stack(pixels), pil=[Image.open(file) for file in files],
                 mixed=[pixels[0], *map(Image.open, files[1:])], series=pd.Series(pixels))
    for name, form in forms.items():
        e = rl.embed_crops(form, "clip_tiny", quiet=True)
        assert torch.allclose(e.emb, features.emb, atol=1e-6) and e.path == ["image 0", "image 1", "image 2"], name
    assert len(rl.embed_crops(pixels[0], "clip_tiny", quiet=True)) == 1
    out = tmp_path/"f.npz"
    rl.embed_crops(pixels, "clip_tiny", out, quiet=True)
    assert rl.search(out, pixels[1], 1).table().path[0] == "image 1"
    plans = [image_facts(as_crops(form)) for form in (pixels, forms["pil"], pixels[::-1])]
    assert plans[0] == plans[1] != plans[2], "what was begun with other images is not continued"


PIXELS = stream(3, "pixels").integers(0, 256, (40, 20, 3), "u1")
GREY = PIXELS[..., 0]
FLOAT_PIL = Image.fromarray(GREY.astype("f4")/255)


@pytest.mark.parametrize("image, message", [
    (GREY, r"the shape \(40, 20\); .*numpy.stack\(\[x\]\*3, 2\)"), (GREY[..., None], r"x.repeat\(3, 2\)"),
    (np.dstack([PIXELS, GREY]), r"PIL.Image.fromarray\(x\) of RGBA"), (PIXELS/255, r"holds float64; .*\(255\*x\)"),
    (PIXELS.astype("f2"), "holds float16"), (PIXELS.astype("i8"), "holds int64"), (PIXELS > 9, "holds bool"),
    (PIXELS.transpose(2, 0, 1), r"x.transpose\(1, 2, 0\)"), (FLOAT_PIL, "holds floating-point numbers, .*none is")])
def test_arrays_of_another_form_are_refused_with_what_converts_them(image, message, features):
    for call in (lambda: rl.embed_crops([image], "clip_tiny", quiet=True), lambda: rl.search(features, image, 1)):
        with pytest.raises(ValueError, match=message): call()
    with pytest.raises(ValueError, match="image 1 of the reader holds|image 1 of the reader has the shape"):
        table = crops_of(lambda paths: [PIXELS, image])
        table.read(["a", "b"])


def crops_of(reader): return ReidTable(pd.DataFrame(dict(path=["a", "b"], pid=-1, cam=-1, split="test")), None, reader)


def test_what_the_messages_name_converts_as_a_file_does(features, tmp_path):
    alpha = np.where(np.arange(40)[:, None] < 20, 0, 255).astype("u1").repeat(20, 1)
    cases = dict(grey=(GREY, np.stack([GREY]*3, 2)), rgba=(np.dstack([PIXELS, alpha]), None),
                 sixteen=((GREY.astype("u2")*257), np.stack([GREY]*3, 2)))
    for name, (array, wanted) in cases.items():
        Image.fromarray(array).save(tmp_path/f"{name}.png")
        pair = rl.embed_crops([Image.fromarray(array), Image.open(tmp_path/f"{name}.png")], "clip_tiny", quiet=True)
        of_file = rl.embed_crops([tmp_path/f"{name}.png"], "clip_tiny", quiet=True)
        assert torch.allclose(pair.emb, of_file.emb.expand(2, -1), atol=1e-6), name
        if wanted is None: wanted = np.where(alpha[..., None] > 0, PIXELS, 255).astype("u1")
        assert torch.allclose(rl.embed_crops([wanted], "clip_tiny", quiet=True).emb, of_file.emb, atol=1e-6), name
    whole = (255*(PIXELS/255)).round().astype(np.uint8)
    assert (whole == PIXELS).all()
    asked = [rl.search(features, form, 1).table().score[0] for form in (PIXELS, Image.fromarray(PIXELS))]
    assert asked[0] == pytest.approx(asked[1], abs=1e-6)


def test_labels_of_a_frame_stay(folder):
    f = pd.DataFrame(dict(path=["a.png", "gate/c.png"], pid=["ann", "bob"], cam=[3, 5], captions=["A man.", ""]))
    table = frame_table(f, folder)
    assert table.frame.pid_name.tolist() == ["ann", "bob"] and table["cam"].tolist() == [3, 5]
    assert table["captions"].tolist() == [["A man."], []] and list(f) == ["path", "pid", "cam", "captions"]


@pytest.mark.parametrize("source, error, message", [
    (3, TypeError, "crops are a int"), ([1, 2], TypeError, "a list that holds other things than paths"),
    (pd.Series(["a.png", None]), TypeError, r"item 1 is a (float \(nan\)|NoneType)"),
    (iter("ab"), TypeError, "crops are a str"), (torch.zeros(2, 3, 8, 4), TypeError, "crops are a Tensor"),
    (np.zeros((2, 8, 4, 3)), ValueError, "image 0 holds float64; give arrays"),
    (np.zeros((0, 8, 4, 3)), ValueError, "empty"), (np.eye(3), ValueError, "image 0 has the shape"),
    ([np.zeros((8, 4), "u1")], ValueError, r"image 0 has the shape \(8, 4\)"),
    ([np.zeros((8, 4, 3), "u1"), "a"], ValueError, "mix 1 paths and 1 images"),
    ([np.zeros((8, 4, 3), "u1"), torch.zeros(3)], TypeError, "image 1 is a Tensor; give arrays"),
    ([], ValueError, "is empty"), (pd.DataFrame(dict(x=[1])), ValueError, "no column path"),
    (pd.DataFrame(), ValueError, "has no rows"), ("nowhere", FileNotFoundError, "does not exist"),
    (["/nowhere/a.png"], ValueError, "nowhere")])
def test_what_are_no_crops_is_refused(source, error, message):
    with pytest.raises(error, match=message): as_crops(source)


def test_fresh_without_out_is_refused(folder):
    with pytest.raises(ValueError, match="leave fresh out, or give out"):
        rl.embed_crops(folder, "clip_tiny", fresh=True)


def test_the_path_of_an_image_is_the_image(folder, features, monkeypatch, capsys, tmp_path):
    by_text, by_path = (rl.search(features, form(folder/"a.png"), 2) for form in (str, lambda path: path))
    assert by_text.table().path.tolist() == by_path.table().path.tolist()
    assert by_text.itself == by_path.itself == 1    # the question is no answer to itself
    monkeypatch.chdir(folder)
    assert as_questions("a.png")[0].name == "a.png" and as_questions(["a man", "x y.png"]) == ["a man", "x y.png"]
    with pytest.raises(FileNotFoundError, match="'none.JPG' reads like the path of an image"): as_questions("none.JPG")
    with pytest.raises(ValueError, match="mixes"): rl.search(features, ["a man", "a.png"])
    together = rl.search(features, ["a man", "a.png"], 2, together=True)
    assert together.itself == 1
    features.save(tmp_path/"f")
    assert main(["search", str(tmp_path/"f"), "a.png", "-k", "1"]) == 0 and "a.png" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:1 of 2 texts hold words")
def test_an_answer_shows_its_images_and_escapes_texts(features, folder):
    answer = rl.search(features, ["a man in a black coat", "a <script>alert(1)</script> woman in red"], 2)
    page = answer._repr_html_()
    assert page.count("data:image/jpeg;base64,") == 4 and "2 questions in 3 images" in page
    assert "<script>" not in page and "&lt;script&gt;" in page
    assert "b <i>" not in page      # the name of a file is data, too
    by_image = rl.search(features, folder/"a.png", 2)._repr_html_()
    assert by_image.count("data:image/jpeg;base64,") == 2 and "b &lt;i&gt;.png" in by_image


def test_an_answer_without_images_and_of_many_questions(features):
    model = create_model("bot_tiny", n_ids=2, size=(64, 32)).eval()
    q = ask(model, list(np.zeros((5, 40, 20, 3), "u1")))
    g = ask(model, list(stream(1, "g").integers(0, 256, (6, 40, 20, 3), "u1")))
    page = rl.search(g, [np.zeros((40, 20, 3), "u1")]*5, 2, model)._repr_html_()
    assert "<img" not in page and "and 2 more" in page and len(q) == 5


@pytest.mark.parametrize("name", ["bot_tiny", "agw_r50", "transreid_tiny"])
def test_a_missing_number_of_identities_says_what_it_is(name):
    with pytest.raises(TypeError, match=rf"model '{name}' needs .*n_ids is the number of training identities"):
        create_model(name)
