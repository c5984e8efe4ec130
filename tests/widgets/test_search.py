"A search page says what it cannot do"
import numpy as np
import pytest
import torch
from helpers.protocols import table_for
from helpers.views import MODEL, make_scene

from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.search import ask, find, image_notes, with_chance
from reid_lab.models.zoo import create_model
from reid_lab.recipes.crops import matches
from reid_lab.retrieval.embeddings import Embeddings, embed_images
from reid_lab.retrieval.shards import Shards, write_shards
from reid_lab.widgets.failures import FailureBrowser, _drawn
from reid_lab.widgets.scene import RankedList, Scene
from reid_lab.widgets.search import SearchPage, answer_page, images_of
from reid_lab.world.plan import Group
from reid_lab.world.world import World


def test_a_search_page_says_what_it_cannot_do():
    scene = make_scene(query=1)
    page = SearchPage(scene, threshold=Threshold(2., .1, .1, 40, 12, gallery=40))
    assert page.content(1)["present"] is False
    assert page.content(1)["remarks"].startswith("2.000, which was saved without the share of people")
    assert not any(i["accepted"] for i in page.content(1)["items"])
    page.receive(dict(ui=dict(question="a man")))
    assert "No model was given" in page.content(1)["message"] and "no answer" in repr(page)
    scene.selection.query = 5
    assert page.question == "" and "5.jpg" in repr(page)
    pairs = SearchPage(scene, threshold=Threshold(.1, .1, .1, 9, 9, "fmr"))
    assert "threshold is one for pairs" in pairs.content(1)["message"]


def test_captions_of_pictures_name_the_file_or_the_person():
    scene = make_scene(query=1)
    assert scene.query_name(1) == "1.jpg"
    nameless = Scene(Embeddings(scene.q.emb, scene.q.pid, scene.q.cam), scene.g)
    assert nameless.query_name(1) == f"query 1 (id {scene.q.pid[1]} · cam {scene.q.cam[1]})"
    assert Scene(Embeddings(scene.q.emb, [-1]*20), scene.g).query_name(1) == "query 1"
    files = [f"gate/{i}.jpg" for i in range(len(scene.q))]
    named = Scene(scene.q, scene.g, q_images=files, query=1)
    views = (RankedList(named), SearchPage(named), FailureBrowser(named))
    assert all("1.jpg" in view.content(1)["label"] and "query 1" not in view.content(1)["label"] for view in views)
    assert SearchPage(named).fixed()["names"][2] == SearchPage(named).content(2)["query_text"] == "2.jpg"
    assert RankedList(named).content(1)["query"]["name"] == "1.jpg"
    assert _drawn(FailureBrowser(named), 1)["head"].startswith("1.jpg · id ")


def test_a_page_names_the_model_and_places_a_sentence(tmp_path):
    g = Embeddings(torch.eye(64)[:12], range(12), meta=dict(model_name="clip_tiny", data="my crops"))
    model = create_model("clip_tiny", weights="world").eval()
    page = SearchPage(Scene(g[:2], g), model, question="a man with a zebra <b>")
    now = page.content(None)
    assert ["zebra", "u"] in now["words"] and len(now["words"]) == 6
    assert "of 200 random sentences" in now["by_chance"] and len(page.fixed()["chance"]["best"]) == 200
    assert page.fixed()["caveats"][0].startswith("model clip_tiny: trained on 6 rendered Worlds")
    page.question = ""
    assert page.content(1)["by_chance"] == "" and page.content(1)["words"] == []     # an image asks
    found = with_chance(find(ask(model, ["a man in black", "a red coat zebra"]), g, 3), model)
    shown = answer_page(found)
    assert shown.content(1)["by_chance"] == found.by_chance(1) != "" and shown.content(1)["words"][-1] == ["zebra", "u"]
    assert "6 rendered Worlds" in shown.to_html(tmp_path/"p.html").read_text() and shown.picture()


def test_a_model_that_does_not_fit_is_refused_once_and_nothing_is_placed():
    model = create_model("clip_tiny", weights="world").eval()
    page = SearchPage(make_scene(query=1), model, question="a man")
    assert "dimensions" in page.content(1)["message"] and page.fixed()["chance"] is None
    assert "not known here" in page.fixed()["caveats"][0]


def test_images_of_a_world_are_shown_though_none_is_a_file(tmp_path):
    world = World("smoke", seed=3, task="text", cache=tmp_path, groups=[Group("test", "real-like", 4, 2, 2)])
    table = world.table()
    model = create_model("clip_tiny", weights="world").eval()
    g = embed_images(model, table, quiet=True)
    g.meta["root"] = str(table.root)
    found = find(ask(model, ["a man in black"]), g, 3)
    page = answer_page(found, beside=[tmp_path])
    assert len(page.content(0)["items"]) == 3 and page.scene.g_thumb.lost == []
    assert found._repr_html_().count("data:image/jpeg") == 3 and image_notes(found) == []
    pictures = images_of(g, beside=[tmp_path])
    assert (pictures([5])[0] == table.image(5)).all()
    (table.root/"images.npy").unlink()
    gone = images_of(g, beside=[tmp_path])
    with pytest.raises((OSError, ValueError)): gone([5])
    assert pictures.notes() == [] and "1 of the images shown cannot be read" in gone.notes()[0]


def crops(n, **meta):
    return Embeddings(np.random.default_rng(0).normal(size=(n, 64)).astype("f4"), [-1]*n,
                      path=[f"{i}.jpg" for i in range(n)], meta=dict(model_name="clip_tiny") | meta)


def test_a_page_says_why_it_answers_no_sentence(tmp_path):
    clip, images = create_model("clip_tiny", weights="world").eval(), create_model("bot_tiny", n_ids=1).eval()
    small, other = crops(5), Embeddings(np.eye(5), [-1]*5)
    pairs, apart = Threshold(.1, .1, .1, 9, 9, "fmr"), Threshold(.1, .1, .1, 9, 9, distance="euclidean")
    for model, g, limit, words in (
            (MODEL, small, None, "the tokenizer of the model is of a kind that a page does not compute"),
            (images, small, None, "reads no sentences"), (clip, other, None, "queries have 64 dimensions"),
            (clip, small, pairs, "threshold is one for pairs"), (clip, small, apart, "a page computes cosines"),
            (clip, crops(2001), None, "2,001 images are searched, and a page holds at most 2,000")):
        page = SearchPage(Scene(g[:1], g), model, limit)
        facts = page.page_facts()
        assert list(facts) == ["why"] and words in facts["why"] and page.why_not in facts["why"], facts
        assert "textTower" not in page.to_html(tmp_path/"p.html").read_text("utf-8")
    assert SearchPage(Scene(small[:1], small)).page_facts() == {}
    assert "own" not in SearchPage(Scene(small[:1], small), clip).fixed(), "a kernel answers by itself"


def test_a_page_holds_all_images_or_only_what_was_found(tmp_path):
    clip, g = create_model("clip_tiny", weights="world").eval(), crops(30)
    answer = find(ask(clip, "a man in black"), g, 3)
    whole, alone = answer_page(answer, model=clip), answer_page(answer)
    assert len(whole.page_facts()["own"]["rows"]) == 30 and alone.page_facts() == {} and alone.why_not is None
    own = whole.page_facts()["own"]
    assert own["gallery"]["n"] == 30 and len(own["chance"]["percents"]) == 401 and own["threshold"] is None
    assert all(set(row) == {"pid", "cam", "name", "b", "b_pid", "thumb"} for row in own["rows"])


def test_a_gallery_on_disk_is_in_the_page_if_it_is_small(tmp_path, monkeypatch):
    clip = create_model("clip_tiny", weights="world").eval()
    write_shards(crops(30), tmp_path/"g")
    answer = find(ask(clip, "a man in black"), Shards(tmp_path/"g"), 3)
    assert len(answer_page(answer, model=clip).page_facts()["own"]["rows"]) == 30
    monkeypatch.setattr("reid_lab.widgets.search.MOST_IMAGES", 20)
    page = answer_page(answer, model=clip)
    assert len(page.scene.g) == 3 and "30 images are searched" in page.page_facts()["why"]


@pytest.mark.parametrize("junk, protocol, draw", [
    ("cam", None, 0), ("none", None, 0), (None, "market", 0), (None, "ltcc.cc", 0), (None, "sysu.all", 3)])
def test_a_page_lists_what_the_answer_lists(junk, protocol, draw):
    "What a rule leaves out of the lists is left out of the page, too"
    f = table_for(protocol or "market", 3, 90).reset_index(drop=True)
    own = {name: f[name].to_numpy() for name in f if name not in ("path", "pid", "cam")}
    e = Embeddings(torch.randn(len(f), 8, generator=torch.manual_seed(0)), f.pid.to_numpy(), f.cam.to_numpy(),
                   path=[f"{n}.jpg" for n in range(len(f))], columns=own)
    answer = matches(e, e, 5, junk=junk, protocol=protocol, draw=draw)
    page = answer_page(answer)
    for row in range(len(answer)):
        listed = [int(item["row"]) for item in page.found(row)["items"]]
        assert listed == [i for i in answer.result.index[row].tolist() if i >= 0], row
