"""From a released file to a row: random numbers in the container of each layout, small folders in real layouts.

Each row has to equal the metrics of naive lists of features that a forward pass written apart gives; no score is
claimed.
"""
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import fastreid, irra, osnet, rde, released_pairs, solider
from helpers.released_images import (
    DEPTH,
    HEADS,
    ReleasedAGW,
    ReleasedBoT,
    ReleasedCLIPReID,
    ReleasedOpenUnReID,
    ReleasedPlain,
    ReleasedTransReID,
    W,
)
from helpers.towers import osnet_file, randomised
from PIL import Image

from reid_lab.cli.commands import main
from reid_lab.data.table import ReidTable
from reid_lab.datasets.aerial import aerial_table
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.models import camel, clip_reid, transreid
from reid_lab.models.backbones import CrossEncoder, TextEncoder
from reid_lab.models.clip_towers import clip_model
from reid_lab.models.osnet import OSNet
from reid_lab.models.sgformer import SGFORMERS, SGFormer, Sizes
from reid_lab.models.solider import SOLIDERS, SoliderSizes
from reid_lab.models.timm_towers import timm_tower
from reid_lab.recipes.compare import EmbedOptions
from reid_lab.recipes.reproduce import (
    Given,
    check_ready_for,
    identities_finding,
    list_sum,
    open_released,
    reproduce,
    training_ids,
    weights_findings,
)
from reid_lab.results import reproductions as known
from reid_lab.results.contributed import check_contribution, merge_contributions
from reid_lab.results.published import TEST_SETS
from reid_lab.results.reproductions import OTHER_SET, reproduction

CROP = (64, 32)
IMAGENET = (.485, .456, .406), (.229, .224, .225)
CLIP = (.48145466, .4578275, .40821073), (.26862954, .26130258, .27577711)
WORDS = [*("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), "person", "in", "picture", "said", "way", ",", ".",
         *map(str, range(10)), *(f"##{i}" for i in range(10))]
WORDS += [f"word{i}" for i in range(released_pairs.VOCAB - len(WORDS))]


@dataclass
class Case:
    "A released file with random numbers, and what its network computes"
    entry: object
    weights: object
    image: Callable                 # (pixels in [0,1], cameras) -> features
    text: Callable | None = None    # captions -> features
    pairs: Callable | None = None   # (captions, pixels) -> (captions, images) logits
    tokenizer: object = ""


# --- folders ----------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    "Small folders in the layouts of an image benchmark, of two captioned ones, and of an aerial one"
    root = tmp_path_factory.mktemp("data")
    people = tiny_table(24, 4, 0, roles=True)
    frame = people.frame.assign(cam=people.frame.cam % 3)   # the last image of a person is of the query's camera
    tables = {"market1501": ReidTable(frame, None, people.reader, "tiny"), "cuhk-pedes": tiny_table(24, 2),
              "icfg-pedes": tiny_table(24, 2, 1), "aeri-pedes": aerial_table(16)}
    for name, table in tables.items():
        folder, renumber = root/DATASETS[name].folder, name != "aeri-pedes"
        export_world(table.where(split=["train", "test"]), name, folder, renumber=renumber)
    return root


def pixels(table, size, how="bilinear"):
    "Images of a folder at a size, (N,3,H,W) in [0,1]"
    where = getattr(Image.Resampling, how.upper())
    sized = [Image.open(table.root/path).convert("RGB").resize((size[1], size[0]), where) for path in table["path"]]
    return torch.from_numpy(np.stack([np.asarray(image) for image in sized])).permute(0, 3, 1, 2).float()/255


def standard(x, stats):
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in stats)
    return (x - mean)/std


# --- metrics ----------------------------------------------------------------------------------------------------------

def naive_metrics(scores, q_pid, g_pid, q_cam=None, g_cam=None):
    "Percent, query by query from its sorted list; images of the person under the query's camera are left out"
    q_pid, g_pid, rows = np.asarray(q_pid), np.asarray(g_pid), []
    if q_cam is not None: q_cam, g_cam = np.asarray(q_cam), np.asarray(g_cam)
    for i, row in enumerate(scores):
        keep = np.ones(len(g_pid), bool)
        if q_cam is not None: keep = ~((g_pid == q_pid[i]) & (g_cam == q_cam[i]))
        order = np.argsort(-row[keep], kind="stable")
        ranks = 1 + np.flatnonzero((g_pid[keep] == q_pid[i])[order])
        hits = {f"R{k}": float(ranks[0] <= k) for k in (1, 5, 10)}
        precision = np.mean(np.arange(1, len(ranks) + 1)/ranks)
        rows.append(dict(hits, mAP=precision, mINP=len(ranks)/ranks[-1]))
    return {name: 100*np.mean([row[name] for row in rows]) for name in rows[0]}


def unit(x): return F.normalize(x, dim=1)


def matched(logits, cosines):
    "Min-max of the match, and .002 of the cosine, as the released program joins them"
    def scaled(x): return (x - x.min())/(x.max() - x.min())
    return scaled(logits) + .002*scaled(cosines)


@torch.no_grad()
def expected(case, root):
    "The metrics of features from the independent forward"
    p, name = case.entry.protocol, case.entry.dataset
    table = load_dataset(name, root)
    gallery = table.gallery("test")
    size = case.entry.arguments["size"]
    g = case.image(pixels(gallery, size, p.resample), torch.tensor(gallery["cam"].to_numpy()))
    if p.queries == "captions":
        query = table.text_queries("test")
        q = case.text(list(query.caption))
        scores = unit(q).double() @ unit(g).double().T
        if case.pairs: scores = matched(case.pairs(list(query.caption), pixels(gallery, size, p.resample)), scores)
        return naive_metrics(scores.numpy(), query.pid, gallery["pid"])
    query = table.query("test")
    q = case.image(pixels(query, size, p.resample), torch.tensor(query["cam"].to_numpy()))
    if p.distance == "euclidean": scores = -torch.cdist(q.double(), g.double())
    else: scores = unit(q).double() @ unit(g).double().T
    return naive_metrics(scores.numpy(), query["pid"], gallery["pid"], query["cam"], gallery["cam"])


# --- released files ---------------------------------------------------------------------------------------------------

def small(name, **arguments):
    "An entry whose network has the arguments of a test"
    entry = reproduction(name)
    return replace(entry, arguments=entry.arguments | dict(size=CROP) | arguments)


def bot_case(tmp, monkeypatch):
    net = randomised(ReleasedBoT(5))
    torch.save(net.state_dict(), tmp/"market.pth")
    return Case(small("bot-market1501"), tmp/"market.pth", lambda x, cam: net(x))


def agw_case(tmp, monkeypatch):
    net = randomised(ReleasedAGW(5))
    torch.save(net.state_dict(), tmp/"market1501_AGW.pth")
    return Case(small("agw-market1501"), tmp/"market1501_AGW.pth", lambda x, cam: net(x))


def openunreid_case(tmp, monkeypatch):
    net = randomised(ReleasedOpenUnReID(5))
    state = {f"module.{k}": v for k, v in net.state_dict().items()}
    torch.save(dict(state_dict=state, epoch=120, best_mAP=np.float64(.9)), tmp/"checkpoint.pth")
    entry = replace(small("reid-tta-market1501"), sha256="")        # that of the real file
    return Case(entry, tmp/"checkpoint.pth", lambda x, cam: net(x))


def transreid_case(tmp, monkeypatch, jigsaw=True):
    tiny = partial(transreid.overlapping_vit, width=W, depth=DEPTH, heads=HEADS)
    monkeypatch.setattr(transreid, "overlapping_vit", tiny)
    name, net = "transreid-baseline-market1501", ReleasedPlain(5, 8, 16)
    if jigsaw: name, net = "transreid-market1501", ReleasedTransReID(5, 10, 12, cams=6)
    randomised(net)
    torch.save({f"module.{k}": v for k, v in net.state_dict().items()}, tmp/"transformer_120.pth")
    return Case(small(name), tmp/"transformer_120.pth", net)


def clip_reid_case(tmp, monkeypatch):
    def tiny(size, stride=16, **kw):
        return clip_model(size, stride, 16, dict(width=W, layers=DEPTH, head_width=W//HEADS, patch_size=16),
                          dict(width=16, layers=2, heads=HEADS), **kw)
    monkeypatch.setattr(clip_reid, "clip_model", tiny)
    net = randomised(ReleasedCLIPReID(5, 8, 16))
    torch.save(net.state_dict(), tmp/"ViT-B-16_60.pth")
    return Case(small("clip-reid-market1501"), tmp/"ViT-B-16_60.pth", lambda x, cam: net(x))


def fastreid_case(tmp, monkeypatch, family="bot", backbone="r50"):
    state = fastreid.released(family, backbone, gem=family != "bot")
    torch.save(dict(model=state, iteration=9), tmp/"market.pth")
    plain = fastreid.Plain(state)
    if family == "bot": plain.pool = "mean"
    entry = small(f"fastreid-{family}-market1501", size=(96, 32))      # six rows, for three stripes
    return Case(entry, tmp/"market.pth", lambda x, cam: plain(x))


def osnet_case(tmp, monkeypatch):
    state = osnet_file(randomised(OSNet("osnet_x1_0")), "osnet_x1_0")
    torch.save(dict(state_dict=state, epoch=3), tmp/"osnet.pth.tar")
    plain = osnet.Plain(state, ain=False)
    return Case(small("roboflow-osnet-market1501"), tmp/"osnet.pth.tar", lambda x, cam: plain(standard(x, IMAGENET)))


def solider_case(tmp, monkeypatch):
    sizes = 8, (1, 2, 2, 2), (1, 2, 2, 4)
    monkeypatch.setitem(SOLIDERS, "solider_tiny", SoliderSizes(*sizes))
    state = solider.released(*sizes)
    torch.save(state, tmp/"transformer_120.pth")
    plain = solider.Plain(state)
    return Case(small("solider-tiny-market1501"), tmp/"transformer_120.pth", lambda x, cam: plain((x - .5)/.5))


def irra_case(tmp, monkeypatch, name="irra-cuhk-pedes", net=None):
    import open_clip
    torch.manual_seed(3)
    net = net or irra.Released()
    for k, p in net.named_parameters():
        p.data = (torch.randn(p.shape)*(.05 if p.ndim > 1 else .1) + (p.ndim == 1 and "weight" in k)).half().float()
    torch.save(irra.container(net.eval()), tmp/"best.pth")
    entry = small(name, towers=irra.SMALL, size=irra.BIG)
    read, towers = open_clip.get_tokenizer("ViT-B-16"), net.base_model
    return Case(entry, tmp/"best.pth", lambda x, cam: towers.encode_image(standard(x, CLIP)),
                lambda captions: towers.encode_text(read(captions)))


def cfan_case(tmp, monkeypatch): return irra_case(tmp, monkeypatch, "cfan-aeri-pedes", irra.ReleasedCFAN())


def rde_case(tmp, monkeypatch):
    import open_clip
    torch.manual_seed(3)
    net = randomised(rde.Released())
    for name, p in net.named_parameters():
        p.data = (p.data*(3 if "attn.in_proj" in name else 1)).half().float()
    torch.save(irra.container(net), tmp/"best.pth")
    entry, read = small("rde-cuhk-pedes", size=rde.BIG), open_clip.get_tokenizer("ViT-B-16")
    return Case(entry, tmp/"best.pth", lambda x, cam: rde.both(net.image(standard(x, CLIP))),
                lambda captions: rde.both(net.text(read(captions))))


def pair_case(tmp, monkeypatch, kind):
    "APTM with a Swin of timm, captions as they are; CAMeL with an SG-Former, captions cleaned"
    from transformers import BertTokenizer
    width, heads = released_pairs.W, released_pairs.HEADS
    monkeypatch.setitem(SGFORMERS, "small", Sizes((2, 2, 2, 1), (16, 16, 32, 32), (2, 2, 4, 4)))
    sizes = dict(width=width, heads=heads, layers=6, ffn=4*width)
    monkeypatch.setattr(camel, "TextEncoder", partial(TextEncoder, **sizes))
    monkeypatch.setattr(camel, "CrossEncoder", partial(CrossEncoder, **sizes))
    torch.manual_seed(0)
    name = dict(aptm="swin_tiny_patch4_window7_224", camel="small")[kind]
    tower = randomised(timm_tower(name, CROP) if kind == "aptm" else SGFormer(name, CROP))
    own = released_pairs.authors_names(tower.net.state_dict()) if kind == "aptm" else tower.state_dict()
    state = released_pairs.drawn(released_pairs.text_shapes(width, 16, released_pairs.VOCAB, tower.width)
                                 | released_pairs.image_head_shapes(tower.width, 16, False))
    state["text_encoder.bert.embeddings.word_embeddings.weight"] *= 4.     # so that captions are told apart
    state |= {f"vision_encoder.{k}": v for k, v in own.items()}
    if kind == "camel": state["pool_alpha"] = torch.tensor([-4.])
    torch.save(dict(model=state, config=dict(embed_dim=16)), tmp/"checkpoint_best.pth")
    (tmp/"bert").mkdir()
    (tmp/"bert"/"vocab.txt").write_text("\n".join(WORDS) + "\n")
    dataset = dict(aptm="cuhk-pedes", camel="icfg-pedes")[kind]
    stats, words = (DATASETS[dataset].mean, DATASETS[dataset].std), BertTokenizer(str(tmp/"bert"/"vocab.txt"))

    def read(captions):
        if kind == "camel": captions = [re.sub("[^0-9a-z]+", " ", caption.lower()) for caption in captions]
        return words(captions, padding=True, truncation=True, max_length=56, return_tensors="pt").input_ids

    def outputs(x, captions):
        return released_pairs.released_outputs(state, tower(standard(x, stats)), read(captions), False)

    def pairs(captions, x):
        tok, tokens = tower(standard(x, stats)), read(captions)
        rows = [released_pairs.released_outputs(state, tok, row.expand(len(x), -1), False)[2][:, 1] for row in tokens]
        return torch.stack(rows).double()

    blank = torch.zeros(1, 3, *CROP)
    def image(x, cam): return outputs(x, ["person"]*len(x))[1]
    def text(captions): return outputs(blank.expand(len(captions), -1, -1, -1), captions)[0]
    return Case(small(f"{kind}-{dataset}", tower=name), tmp/"checkpoint_best.pth", image, text, pairs, tmp/"bert")


CASES = dict(bot=bot_case, agw=agw_case, openunreid=openunreid_case, transreid=transreid_case,
             transreid_plain=partial(transreid_case, jigsaw=False), clip_reid=clip_reid_case, fastreid=fastreid_case,
             fastreid_mgn=partial(fastreid_case, family="mgn", backbone="r50_ibn"), osnet=osnet_case,
             solider=solider_case, irra=irra_case, rde=rde_case, cfan=cfan_case,
             aptm=partial(pair_case, kind="aptm"), camel=partial(pair_case, kind="camel"))


# --- the pipeline -----------------------------------------------------------------------------------------------------

def test_every_layout_of_an_entry_that_opens_is_run_here():
    opening = [entry for entry in known.reproductions().values() if not entry.closed]
    assert {entry.layouts[0] for entry in opening} == {*CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_that_of_naive_metrics_of_an_independent_forward(name, folders, tmp_path, monkeypatch):
    case = CASES[name](tmp_path, monkeypatch)
    given = Given(case.weights, folders, case.tokenizer)
    ready = check_ready_for(case.entry, given)
    assert ready.ok, ready.text()
    done = reproduce(case.entry, given, EmbedOptions(batch_size=8))
    want = expected(case, folders)
    got = {metric: done.scored.metrics[metric] for metric in want}
    assert got == pytest.approx(want, abs=2e-3), (got, want)
    assert want["mAP"] < 99 and done.scored.counts["n_skipped"] == 0
    # what was scored is no published test set, and nothing else is said of it
    assert done.verdict == OTHER_SET and "may not be compared with" in done.text()
    assert "published" in done.reasons[0] and done.contribution["weights"]["file"] == case.weights.name
    with pytest.raises(ValueError, match="arguments is|another test set than the published one"):
        check_contribution(done.contribution)


def test_what_is_read_of_a_set_is_told_apart_by_its_sum(folders):
    gallery = load_dataset("market1501", folders).gallery("test")
    other = gallery.frame.assign(cam=gallery.frame.cam + 1)
    assert list_sum(gallery) == list_sum(gallery.frame) != list_sum(other) and len(list_sum(other)) == 64
    assert list_sum(gallery.frame[::-1]) != list_sum(gallery)


# --- what is not in place ---------------------------------------------------------------------------------------------

def errors(findings): return [finding.what for finding in findings if finding.level == "error"]


def test_what_a_file_lacks_is_said_before_anything_is_scored(folders, tmp_path, monkeypatch):
    case = bot_case(tmp_path, monkeypatch)
    state = torch.load(case.weights)
    torch.save({k: v for k, v in state.items() if k != "base.layer1.0.conv1.weight"}, case.weights)
    found = check_ready_for(case.entry, Given(case.weights, folders))
    assert not found.ok and "image.net.layer1.0.conv1.weight" in " ".join(errors(found.weights))
    torch.save(state, case.weights)
    other = check_ready_for("transreid-market1501", Given(case.weights, folders))
    assert errors(other.weights) == ["the file holds a released BoT (its stem has no ReLU)"]
    assert "transformer_120.pth" in other.weights[0].remedy and "not ready" in other.text()
    stated = replace(case.entry, sha256="0"*64)
    warned = check_ready_for(stated, Given(case.weights, folders))
    assert warned.ok and any("SHA-256" in finding.what for finding in warned.weights)
    gone = check_ready_for(case.entry, Given(tmp_path/"no.pth", tmp_path/"nowhere"))
    assert not gone.ok and "does not exist" in errors(gone.weights)[0] and errors(gone.data)


def test_the_file_of_another_tower_is_refused_in_the_words_of_this_command(folders, tmp_path, monkeypatch, capsys):
    "An OSNet of another width: nothing printed is stored for it; a network of FastReID that is another entry's"
    torch.save(osnet_file(randomised(OSNet("osnet_x0_25")), "osnet_x0_25"), tmp_path/"narrow.pth")
    words = ["roboflow-osnet-market1501", "--weights", str(tmp_path/"narrow.pth"), "--data", str(folders)]
    assert main(["reproduce", "check", *words]) == 1
    said = capsys.readouterr().out
    assert "narrow.pth is the file of osnet_x0_25, and roboflow-osnet-market1501 is of osnet_x1_0" in said
    assert "`reid_lab embed FOLDER --model frozen:osnet_x0_25 --weights" in said and "tower=" not in said
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "run", *words]) == 2
    said = capsys.readouterr().err
    assert "give the file that roboflow-osnet-market1501 names (released at https" in said and "tower=" not in said
    torch.save(dict(model=fastreid.released("agw", "r50", gem=True)), tmp_path/"agw.pth")
    found = check_ready_for("fastreid-bot-market1501", Given(tmp_path/"agw.pth", folders))
    assert "`reid_lab reproduce` knows it as fastreid-" in errors(found.weights)[0]


@pytest.mark.parametrize("name, without", [("agw-market1501", ""), ("bot-market1501", "bottleneck.")])
def test_a_file_of_another_layout_is_not_scored(name, without, folders, tmp_path, monkeypatch, capsys):
    "A BoT loads into an AGW, and a network without its neck into a BoT: their rows would name another network"
    case = bot_case(tmp_path, monkeypatch)
    state = {k: v for k, v in torch.load(case.weights).items() if not without or not k.startswith(without)}
    torch.save(state, case.weights)
    monkeypatch.chdir(tmp_path)
    words = [name, "--weights", str(case.weights), "--data", str(folders)]
    said = []
    for action, code in (("check", 1), ("run", 2)):
        assert main(["reproduce", action, *words]) == code
        said.append("".join(capsys.readouterr()))
        assert "the file holds a" in said[-1] and "weights inspect" in said[-1]
    assert not (tmp_path/f"{name}.json").exists()


def test_a_converted_file_of_another_model_is_not_scored(tmp_path, monkeypatch, capsys):
    "What `weights convert` wrote says for which model"
    bot_case(tmp_path, monkeypatch)
    files = [str(tmp_path/name) for name in ("market.pth", "ours.safetensors")]
    assert main(["weights", "convert", *files, "--model", "bot_r50"]) == 0
    given = Given(files[1], tmp_path)
    assert errors(weights_findings(known.reproduction("bot-market1501"), given)) == []
    (said,) = errors(weights_findings(known.reproduction("agw-market1501"), given))
    assert said == "the file holds weights of this library for bot_r50"
    with pytest.raises(ValueError, match="for bot_r50; the file of agw-market1501 is a torch file"):
        open_released(known.reproduction("agw-market1501"), given)


@pytest.mark.parametrize("n_ids, level", [(702, ""), (751, "error"), (1041, "warn"), (5, "warn")])
def test_a_file_of_another_training_set_is_named(n_ids, level, folders, tmp_path):
    "BoT is released for Market-1501 (751 people) and DukeMTMC-reID (702): the number of one in the other's place"
    torch.save(randomised(ReleasedBoT(n_ids)).state_dict(), tmp_path/"duke.pth")
    given, entry = Given(tmp_path/"duke.pth", folders), small("bot-dukemtmc-reid")
    assert training_ids(given) == n_ids
    found = identities_finding(entry, given)
    assert (found.level if found else "") == level
    said = [finding.what for finding in weights_findings(entry, given) if "identities, and" in finding.what]
    assert len(said) == bool(level)
    if not level: return
    assert f"on {n_ids:,} identities, and that of bot-dukemtmc-reid on 702 (DukeMTMC-reID)" in said[0]
    if level == "warn": return
    with pytest.raises(ValueError, match="so many has the file of bot-market1501"): open_released(entry, given)


def test_people_of_a_training_are_found_in_every_layout_with_a_classifier(tmp_path, monkeypatch):
    counted = {}
    for name in ("bot", "agw", "openunreid", "transreid", "transreid_plain", "clip_reid", "fastreid", "fastreid_mgn",
                 "osnet", "solider", "irra", "cfan", "aptm"):
        (tmp_path/name).mkdir()
        with monkeypatch.context() as patch: case = CASES[name](tmp_path/name, patch)
        counted[name] = training_ids(Given(case.weights, tmp_path))
    others = dict(osnet=10, irra=irra.N_IDS, cfan=None, aptm=None)      # the last two have no classifier here
    assert counted == dict.fromkeys(counted, 5) | others


def test_a_training_elsewhere_is_expected_where_the_entry_names_it(tmp_path):
    "Of the networks of reid-tta one was trained on MSMT17 and is scored on Market-1501"
    entry, given = reproduction("reid-tta-msmt17-to-market1501"), Given(tmp_path/"m.pth", tmp_path)
    for n_ids, level in ((1041, ""), (751, "error")):
        torch.save(ReleasedOpenUnReID(n_ids).state_dict(), given.weights)
        found = identities_finding(entry, given)
        assert (found.level if found else "") == level
    state = osnet_file(OSNet("osnet_x1_0"), "osnet_x1_0") | {"classifier.weight": torch.zeros(4101, 512)}
    torch.save(state, given.weights)
    assert identities_finding(reproduction("roboflow-osnet-market1501"), given) is None


def test_side_information_belongs_to_an_entry_of_its_own(folders, tmp_path, monkeypatch):
    "A release with cameras in the place of the one without, and the other way round"
    plain = clip_reid_case(tmp_path, monkeypatch)
    torch.save(randomised(ReleasedCLIPReID(5, 10, 12, cams=6)).state_dict(), tmp_path/"sie.pth")
    sided, with_cameras = small("clip-reid-sie-olp-market1501"), Given(tmp_path/"sie.pth", folders)
    (said,) = errors(weights_findings(plain.entry, with_cameras))
    assert "has side information for 6 cameras, and clip-reid-market1501 is of a network with no side" in said
    assert "knows it as clip-reid-sie-olp-market1501" in said
    (said,) = errors(weights_findings(sided, Given(plain.weights, folders)))
    assert "has no side information of cameras" in said and said.endswith("knows it as clip-reid-market1501")
    done = reproduce(sided, with_cameras, EmbedOptions(batch_size=8))
    net = open_released(sided, with_cameras)
    assert len(net.cams) == 6 and done.scored.metrics["mAP"] < 99 and done.contribution["protocol"]["cameras"]


def test_an_entry_without_a_dataset_has_no_heading_for_it(capsys):
    assert main(["reproduce", "check", "sg-former-s", "--weights", "none.pth", "--data", "."]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "weights" in lines and "dataset" not in lines and "a classifier of ImageNet" in lines[-1]


def test_a_pair_needs_its_words(folders, tmp_path, monkeypatch):
    case = pair_case(tmp_path, monkeypatch, "camel")
    assert "--tokenizer" in errors(check_ready_for(case.entry, Given(case.weights, folders)).weights)[0]
    with pytest.raises(ValueError, match="give the folder of bert-base-uncased"):
        open_released(case.entry, Given(case.weights, folders))


# --- the command ------------------------------------------------------------------------------------------------------

def test_the_command_from_a_file_to_a_merged_row(folders, tmp_path, monkeypatch, capsys):
    case = osnet_case(tmp_path, monkeypatch)
    monkeypatch.setattr("reid_lab.results.reproductions.reproductions", lambda: {case.entry.name: case.entry})
    monkeypatch.chdir(tmp_path)
    words = [case.entry.name, "--weights", str(case.weights), "--data", str(folders)]
    assert main(["reproduce", "check", *words]) == 0
    assert "everything is in place" in capsys.readouterr().out
    assert main(["reproduce", "run", *words, "--batch-size", "8"]) == 0
    said = capsys.readouterr().out
    assert all(text in said for text in ("66.6", "may not be compared with", "look at     the query has 6 ids"))
    row = tmp_path/f"{case.entry.name}.json"
    assert main(["reproduce", "run", *words]) == 2 and "exists; give --out another file" in capsys.readouterr().err
    assert main(["results", "merge", str(row), "--store", "rows.json"]) == 2
    assert "another test set than the published one was scored: the query has 6 ids" in capsys.readouterr().err
    assert not (tmp_path/"rows.json").exists()
    # as if this were the published test set
    table = load_dataset("market1501", folders)
    sides = dict(query=table.query("test"), gallery=table.gallery("test"))
    counts = {side: dict(ids={rows.frame.pid.nunique()}, images={len(rows)}) for side, rows in sides.items()}
    monkeypatch.setitem(TEST_SETS, "market1501", replace(TEST_SETS["market1501"], **counts))
    assert main(["results", "merge", str(row), "--store", "rows.json"]) == 0
    assert f"added {case.entry.name}" in capsys.readouterr().out
    assert main(["results", "merge", str(row), "--store", "rows.json"]) == 0
    assert "is there already" in capsys.readouterr().out
    assert merge_contributions([row], tmp_path/"other.json").added[0]["dataset"] == "market1501"
    assert main(["reproduce", "run", *words, "--out", "again.json", "--json"]) == 0
    assert '"verdict": "differs"' in capsys.readouterr().out


@pytest.mark.parametrize("words, message", [
    (["run", "plip-cuhk-pedes", "--weights", "w.pth", "--data", "."], "cannot be repeated yet: a modified ResNet"),
    (["run", "bot-market"], "bot-market1501"), (["check", "bot-market1501", "--data", "."], "needs --weights"),
    (["check"], "needs the name of an entry"), (["list", "--weights", "w.pth"], "--weights is for"),
    (["check", "bot-market1501", "--weights", "w", "--data", ".", "--out", "x"], "--out is for"),
    (["run", "bot-market1501", "--weights", "w", "--data", ".", "--out", "none/x.json"], "is no folder")])
def test_wrong_calls(words, message, capsys):
    assert main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_folder_of_the_datasets_may_be_set(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("REID_LAB_DATA", str(tmp_path))
    assert main(["reproduce", "check", "bot-market1501", "--weights", "none.pth"]) != 0
    said = "".join(capsys.readouterr())
    assert "needs --data" not in said and "none.pth" in said and str(tmp_path) in said


def test_the_help_says_what_each_action_does(capsys):
    with pytest.raises(SystemExit): main(["reproduce", "list", "--help"])
    assert "--weights" not in capsys.readouterr().out
    with pytest.raises(SystemExit): main(["reproduce", "--help"])
    said = "".join(capsys.readouterr().out.split())      # lines are broken where the terminal ends
    assert "list(default):whatisknown;check:iseverythinginplace" in said and "irra-cuhk-pedes" in said


def test_what_is_known_is_listed(capsys):
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in known.reproductions()) and "Cannot be opened yet" in said
    assert main(["reproduce", "list", "plip-cuhk-pedes"]) == 0
    assert "cannot be opened: a modified ResNet" in capsys.readouterr().out
    assert main(["reproduce", "list", "solider-tiny-msmt17"]) == 0
    said = capsys.readouterr().out
    assert "frozen:solider_tiny (size=(384, 128), semantic=0.2)" in said and "mAP 67.4, R1 85.9" in said
