"""Maps of words: which captions and persons, by which models, and what is said below each."""
import numpy as np
import pytest
import torch

from reid_lab.models.zoo import create_model
from reid_lab.recipes.camel import load_data
from reid_lab.recipes.camel_maps import caption_panel, paper_method, person_maps, word_maps


@pytest.fixture(scope="module")
def data(): return load_data("smoke")


@pytest.fixture(scope="module")
def net(data):
    torch.manual_seed(0)
    return create_model("camel_tiny", size=(64, 32), tokenizer=data.tokenizer).eval()


def texts(fig): return [t.get_text() for t in fig.axes[0].texts[:-1]]    # without the key


def test_the_paper_reads_the_cross_attention(data, net):
    other = create_model("clip_tiny", weights="none", tokenizer=data.tokenizer)
    assert (paper_method(net), paper_method(other)) == ("cross-gradcam", "gradcam")
    image = np.full((*other.size, 3), 120, np.uint8)
    assert caption_panel(other, image, "A man in a coat.", n=1).image.shape == image.shape


def test_a_panel_leaves_the_model_as_it_was_and_is_the_same_again(data, net):
    test = data.target.where(split="test")
    image, text = test.images([3], net.size)[0], test["captions"].iat[3][0]
    before = {k: v.clone() for k, v in net.state_dict().items()}
    one, two = (caption_panel(net, image, text, 3, n=2) for _ in range(2))
    assert (one.image == two.image).all() and one.note == two.note and not one.believed      # two say nothing
    assert one.note.endswith(" of 2") and not net.training
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


def test_every_model_has_a_row_with_the_same_words(data, net):
    fig = word_maps({"A": net, "B": net}, data.target, n=2, most=2, draws=1)
    said = texts(fig)
    assert said.count("A") == said.count("B") == said.count("image") == 2 and len(fig.axes[0].images) == 2*2*3
    queries = data.target.text_queries("test")
    shown = [" ".join(t.split()) for t in said if len(t) > 60]
    assert shown[0] == queries.caption.iloc[0] and shown[1] == queries.caption.iloc[-1]       # at regular distances


def test_captions_and_images_are_those_of_one_person(data, net):
    fig = person_maps("CAMeL", net, data.target, n_images=3, n_captions=2, draws=1)
    test = data.target.where(split="test")
    shown = [" ".join(t.split()) for t in texts(fig) if len(t) > 60]
    own = {p for p, cs in zip(test["pid"], test["captions"]) for c in cs if c in shown}
    assert len(shown) == 2 and len(own) == 1 and len(fig.axes[0].images) == 3*(1 + 2)


def test_a_person_with_one_image_and_one_caption(data, net):
    "As in sets with a single image a person"
    test = data.target.where(split="test")
    single = test.take(~test.frame.pid.duplicated().to_numpy())
    single = type(single)(single.frame.assign(captions=[cs[:1] for cs in single.frame.captions]), single.root,
                          single.reader, single.name)
    fig = person_maps("CAMeL", net, single, draws=1)
    assert len(fig.axes[0].images) == 2
