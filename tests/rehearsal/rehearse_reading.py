"""What is done with models that are trained: features, scores, maps, views and captions, on both devices."""
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.captioning import build_model, photo_of
from helpers.towers import SAID, SIZE, osnet_file, randomised, tiny
from helpers.views import VIEWS
from helpers.walkers import scene
from PIL import Image
from rehearsal.both import check_same, differences, on_both
from torchvision.models import detection

from reid_lab.analysis.bias.audit import bias_report
from reid_lab.analysis.caption_audit import pair_similarity
from reid_lab.analysis.explain.evidence import SALIENCY, map_evidence, one_map, one_methods, word_saliency
from reid_lab.analysis.explain.word_masking import MaskedSearch, word_masking
from reid_lab.analysis.open_set import search_scores, verification_threshold
from reid_lab.analysis.search import ask, find
from reid_lab.analysis.text_scores import evaluate
from reid_lab.cli.commands import main
from reid_lab.data.table import ReidTable
from reid_lab.datasets.captioning.vision import local_captioner
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.models.osnet import OSNet
from reid_lab.models.zoo import list_models, sample_batch
from reid_lab.retrieval.embeddings import Embeddings, embed_images, embed_texts
from reid_lab.retrieval.metrics import metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.rerank import rerank_k_reciprocal
from reid_lab.retrieval.tracklets import POOLINGS, pool_tracklets, pool_tracks
from reid_lab.retrieval.visible_parts import learn_visibility, stripe_features, visible_similarity
from reid_lab.widgets.attention import AttentionView
from reid_lab.widgets.cameras import AdaptedScene
from reid_lab.widgets.scene import Scene
from reid_lab.widgets.words import TextScene, WordLab

NAMES = list_models(size="tiny")
TEXT = list_models("text", size="tiny")
MATCHING = list_models(size="tiny", itm=True)
TABLE = tiny_table(8, 3, roles=True)


def on(device, name):
    "A small model in evaluation mode"
    return tiny(name).eval().to(device)


def image(n=2): return sample_batch(SIZE, n=4)["img"][:n]


# --- features and scores ---

@pytest.mark.parametrize("name", NAMES)
def test_tables_are_embedded(name):
    def work(device):
        model = on(device, name)
        found = [embed_images(model, TABLE, 5, quiet=True).emb]
        if hasattr(model, "encode_text"): found.append(embed_texts(model, SAID, quiet=True).emb)
        if hasattr(model, "raw_features"):
            found.append(embed_images(model, TABLE, encode="raw_features", quiet=True).emb)
        assert {emb.device.type for emb in found} == {"cpu"}
        return found

    check_same(work)


def some_features(device="cpu"):
    "Queries and gallery of twelve people under five cameras"
    rng = np.random.default_rng(0)
    emb, pid, cam = rng.normal(size=(60, 8)).astype("float32"), np.arange(60) % 12, np.arange(60)//2 % 5
    sides = slice(0, 20), slice(20, 60)
    return [Embeddings(torch.as_tensor(emb[rows]), pid[rows], cam[rows]).to(device) for rows in sides]


SCORES = {"cosine": lambda q, g: retrieval_metrics(q, g),
          "euclidean": lambda q, g: retrieval_metrics(q, g, distance="euclidean"),
          "similarities": lambda q, g: metrics_from_similarity(q.emb @ g.emb.T, q.pid, g.pid, q.cam, g.cam),
          "by query": lambda q, g: retrieval_metrics(q, g, per_query=True)["per_query"],
          "ranking": lambda q, g: rank(q, g, 5),
          "k-reciprocal": lambda q, g: retrieval_metrics(q, g, scores=rerank_k_reciprocal(q, g)),
          "open set": lambda q, g: search_scores(q, g).to_dict("list"),
          "verification": lambda q, g: verification_threshold(q, g, .1)}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_features_that_are_on_the_device(name):
    "To eight digits: the order of sums in a product of matrices is another"
    cpu, shadow = on_both(lambda device: SCORES[name](*some_features(device)))
    assert differences(cpu, shadow) == []


@pytest.mark.parametrize("how", POOLINGS)
def test_tracks_and_tracklets_are_pooled(how):
    def work(device):
        q, _ = some_features(device)
        e = Embeddings(q.emb, q.pid).assign(track=q.pid, tracklet=[f"t{pid}" for pid in q.pid])
        pooled = pool_tracks(e, how)
        assert len(pooled) == 12 < len(e)
        return pooled.emb, pool_tracklets(e, how).emb, pooled.pid

    check_same(work)


def test_visible_parts():
    def work(device):
        model = on(device, "bot_tiny")
        parts = stripe_features(model, TABLE).to(device)
        visible = learn_visibility(model, TABLE, n_parts=4)(model, TABLE).to(device)
        return parts, visible, visible_similarity(parts[:4], parts[4:], visible[:4], torch.ones_like(visible[4:]))

    check_same(work)


def test_the_audit_of_cameras():
    check_same(lambda device: bias_report(*some_features(device), quiet=True).summary.to_dict("list"))


@pytest.mark.parametrize("name", MATCHING)
def test_retrieval_by_captions(name):
    def work(device):
        found = evaluate(on(device, name), TABLE, k_test=4, fusion=[.1])
        return found["itc"], found["itm"], found["fused"], found["itm_top"]

    check_same(work)


@pytest.mark.parametrize("name", ["bot_tiny", "clip_tiny"])
def test_questions_are_asked(name):
    def work(device):
        model = on(device, name)
        g = embed_images(model, TABLE, quiet=True)
        questions = [TABLE.image(0)] if name == "bot_tiny" else [SAID[0]]
        q = ask(model, questions)
        return q.emb, find(q, g, 3).result.index

    check_same(work)


def test_words_are_masked():
    def work(device):
        model = on(device, "clip_tiny")
        few = MaskedSearch("test")
        masked = word_masking(model, TABLE, [0, 1], [0], search=few, quiet=True)
        return masked.to_dict("list"), pair_similarity(model, TABLE, SAID[:1]*len(TABLE), quiet=True)

    check_same(work)


# --- maps ---

@pytest.mark.parametrize("name", NAMES)
def test_every_map_of_every_model(name):
    def work(device):
        model = on(device, name)
        img, found = image().to(device), {}
        for method in one_methods(model, words=False):
            heat, score = one_map(model, img[:1], method, other=img[1:])
            found[method] = heat
        if hasattr(model, "encode_text"):
            for method in one_methods(model):
                for at in (None, 4): found[method, at] = one_map(model, img[:1], method, SAID[0], at)[0]
        return found

    check_same(work)


@pytest.mark.parametrize("name", ["bot_tiny", "camel_tiny"])
def test_the_evidence_of_a_map(name):
    def work(device):
        model, img = on(device, name), image().to(device)
        heat, score = one_map(model, img[:1], "gradcam", other=img[1:])
        return map_evidence(score, img[:1], heat, n=3)

    check_same(work)


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("how", SALIENCY)
def test_what_words_add(name, how):
    def work(device):
        model = on(device, name)
        with torch.no_grad(): to = model.encode_image(image(1).to(device))[0]
        return word_saliency(model, SAID[0], to.cpu(), how)

    check_same(work)


# --- views ---

def scene_of(device):
    "Captions against images of a model on the device"
    model = on(device, "clip_tiny")
    q = embed_texts(model, pd.DataFrame(dict(caption=SAID, pid=range(len(SAID)))), quiet=True)
    crops = [TABLE.image(i) for i in range(6)]
    g = embed_images(model, TABLE.take(range(6)), quiet=True)
    return model, TextScene(model, q, g, crops, query=0)


def test_the_view_of_maps():
    def work(device):
        model, scene = scene_of(device)
        view = AttentionView(scene, model, n=2)
        found = [view.content(0)]
        view.set(word=4)
        return json.dumps([*found, view.content(0)], default=str)

    check_same(work)


def test_the_word_lab():
    def work(device):
        _, scene = scene_of(device)
        scene.selection.words = (1,)
        scene.text = "a man in a red hat"
        return json.dumps(WordLab(scene).content(0), default=str)

    check_same(work)


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_features_that_are_on_the_device(name):
    "Features that somebody left there"
    def work(device):
        q, g = some_features(device)
        return json.dumps(VIEWS[name][1](Scene(q, g, query=0)).content(0), default=str)

    check_same(work)


def test_a_camera_is_adapted_in_a_view():
    "And the lists that follow from it"
    def work(device):
        scene = AdaptedScene(Scene(*some_features(device), query=0))
        found = scene.found()
        return scene.ranker(0, 5), {name: found[name] for name in ("nmi", "AP", "near")}

    check_same(work)


# --- captions and crops ---

def test_a_captioner_answers(tmp_path):
    build_model(tmp_path)

    def work(device):
        captioner = local_captioner(tmp_path, max_new_tokens=6, device=device)
        assert captioner.model.device.type == torch.device(device).type
        return captioner.answer("What is seen?", photo_of().pixels, 0)

    check_same(work)


def small_market(folder):
    "A folder in the layout of Market-1501, written once"
    target = folder/"Market-1501-v15.09.15"
    if target.exists(): return folder
    people = tiny_table(24, 4, 0, roles=True)
    table = ReidTable(people.frame.assign(cam=people.frame.cam % 3), None, people.reader, "tiny")
    export_world(table.where(split=["train", "test"]), "market1501", target, renumber=True)
    return folder


def people_in_folders(folder):
    "A folder of each person"
    for i in range(6):
        place = folder/"crops"/str(i//2)
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(TABLE.image(i)).resize((32, 64)).save(place/f"{i:02d}.png")
    return folder/"crops"


def embedded_crops(folder, out, device):
    main(["embed", str(people_in_folders(folder)), "--model", "clip_tiny", "--out", str(out), "--device", device])
    return Embeddings.load(out).emb


def compared(folder, out, device):
    words = ["compare", "bot_tiny", "clip_tiny", "--on", str(people_in_folders(folder)), "--out", f"{out}.csv"]
    assert main([*words, "--device", device]) == 0
    return pd.read_csv(f"{out}.csv").filter(regex="mAP|R1").to_dict("list")


def reproduced(folder, out, device):
    torch.save(osnet_file(randomised(OSNet("osnet_x1_0")), "osnet_x1_0"), folder/"w.pth")
    words = ["reproduce", "run", "torchreid-osnet-market1501", "--weights", str(folder/"w.pth")]
    assert main([*words, "--data", str(small_market(folder)), "--out", f"{out}.json", "--device", device]) == 0
    return json.loads(Path(f"{out}.json").read_text())["metrics"]


def detected(folder, out, device):
    torch.manual_seed(0)
    net = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=91)
    torch.save(net.state_dict(), folder/"d.pth")
    (folder/"photos").mkdir(exist_ok=True)
    Image.fromarray(scene(0)).save(folder/"photos"/"a.png")
    words = ["detect", str(folder/"photos"), "--weights", str(folder/"d.pth"), "--threshold", ".001"]
    assert main([*words, "--out", f"{out}.csv", "--device", device]) == 0
    return pd.read_csv(f"{out}.csv").filter(items=["x", "y", "w", "h", "score"]).to_dict("list")


COMMANDS = dict(embed=embedded_crops, compare=compared, detect=detected, reproduce=reproduced)  # that take --device


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_same(lambda device: COMMANDS[name](tmp_path, tmp_path/f"out-{device}", device))
