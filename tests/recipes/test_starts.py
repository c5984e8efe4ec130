"""Starting points: what a training begins with, files that come with the package, and Worlds that they have seen."""
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reid_lab.datasets.protocols import cameras as P
from reid_lab.models.weights import shipped as files
from reid_lab.models.weights.shipped import FOLDER, read_card, shipped, shipped_tokenizer
from reid_lab.models.weights.start import start_key
from reid_lab.models.zoo import MODELS, create_model, list_models
from reid_lab.recipes.camel import CamelSets, load_data, phase_key, run_variant
from reid_lab.recipes.camel_settings import Config
from reid_lab.recipes.dart3 import run_study
from reid_lab.recipes.reid import REID_PRESETS, ReidTrain, new_model, reid_key, reid_settings, train_reid
from reid_lab.recipes.starts import FIRST, LAST, STARTS, Start, run_start, start_table, start_world
from reid_lab.recipes.study import FIRST_VALIDATION_SEED
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.training.folder import start_of
from reid_lab.world.world import World

SHORT = dict(worlds=(500, 501), steps=12)


@pytest.fixture(scope="module", params=list(STARTS))
def made(request, tmp_path_factory):
    "A start of every kind, trained for a few steps: name, row, file"
    folder = tmp_path_factory.mktemp(request.param)
    row = run_start(request.param, "smoke", keep=str(folder), commit="abc", **SHORT)
    return request.param, row, folder/f"{request.param}-{FIRST}"/f"{request.param}.safetensors"


def arguments(name, card):
    return dict(tokenizer=shipped_tokenizer(card)) if card.tokenizer else dict(n_ids=7)


@pytest.fixture(scope="module")
def people(): return World("smoke", task="reid").table()


# ---- files

def test_a_file_starts_its_model(made):
    "All tensors but classifiers; embeddings within the precision of 16 bits"
    name, row, file = made
    card = read_card(file)
    net = create_model(name, weights=file, **card.model_kw, **arguments(name, card)).eval()
    assert net.loaded.missing == net.loaded.unused == net.loaded.misfit == ()
    assert all(k.startswith(card.heads) for k in net.loaded.kept)
    again = create_model(name, weights=str(file), **card.model_kw, **arguments(name, card)).eval()
    x = torch.rand(3, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(net.encode_image(x), again.encode_image(x))
    torch.manual_seed(1)
    other = create_model(name, **card.model_kw, **arguments(name, card)).eval()
    assert not torch.allclose(net.encode_image(x), other.encode_image(x), atol=1e-2)


def test_the_card_says_what_was_done(made):
    name, row, file = made
    card = read_card(file)
    assert (card.model, card.commit, card.seed, card.steps) == (name, "abc", FIRST, 12)
    assert card.seeds == {500, 501} and all(w[:2] == ("smoke", STARTS[name].task) for w in card.worlds)
    assert card.scores == {k: row[k] for k in ("R1", "mAP")} and card.images == row["images_seen"]
    assert f"-p study={name}" in card.command and f"-p seed={FIRST}" in card.command
    assert bool(card.tokenizer) == (MODELS[name].reads == "captions")


def test_the_same_command_gives_the_same_file(made, tmp_path):
    from reid_lab.models.weights.formats import read_weights
    name, _, file = made
    run_start(name, "smoke", keep=str(tmp_path), commit="abc", **SHORT)
    a, b = (read_weights(f) for f in (file, tmp_path/f"{name}-{FIRST}"/file.name))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_every_split_of_the_training_worlds_and_nothing_else():
    start = replace(STARTS["camel_tiny"], worlds=(500, 501))
    table = start_table(start, "smoke")
    parts = [start_world(start, s, "smoke").frame for s in start.worlds]
    assert len(table) == sum((p.pid >= 0).sum() for p in parts) and set(table.frame.split) == {"train"}
    assert table.frame.pid.nunique() == sum(p.pid[p.pid >= 0].nunique() for p in parts)
    assert set(table.frame.domain) == {"generated"}     # CAMeL's gap is never seen before


@pytest.mark.parametrize("worlds", [(0, 500), (499,), (1000,), (LAST,)])
def test_worlds_of_experiments_are_refused(worlds):
    with pytest.raises(ValueError, match="between 500 and 999"): Start(worlds, 10, 1e-3)


def test_seeds_are_kept_apart():
    used = {s for x in STARTS.values() for s in (*x.worlds, x.held_out)}
    assert FIRST <= min(used) and max(used) <= LAST < FIRST_VALIDATION_SEED


# ---- those that come with the package

def test_the_package_has_files():
    assert {"camel_tiny", "bot_tiny", "transreid_tiny"} <= set(shipped())
    assert sum(p.stat().st_size for p in Path(FOLDER).glob("*")) < 6e6


@pytest.mark.parametrize("path", sorted(Path(FOLDER).glob("*.safetensors")), ids=lambda p: p.stem)
def test_a_shipped_file(path):
    card = read_card(path)
    known = STARTS[card.model]
    assert path.stem == card.model and card.seeds == set(known.worlds) and known.held_out not in card.seeds
    assert card.steps == known.steps and card.commit and not card.commit.endswith("+") and card.images > 1e5
    assert card.command.startswith(f"reid_lab run starts -p study={card.model} -p preset=quick")
    assert card.fits == known.fits
    for model in (card.model, *card.fits):
        net = create_model(model, weights="world", **arguments(model, card) if MODELS[model].reads == "captions"
                           else dict(n_ids=3))
        assert net.loaded.missing == () and net.loaded.misfit == () and start_of(model) == "world"


def test_shipped_files_know_more_than_random_numbers(people):
    "The files are not damaged: identities of a small World that they have not seen lie closer together"
    from reid_lab.retrieval.metrics import retrieval_metrics
    for model in ("bot_tiny", "transreid_tiny"):
        kw = dict(n_ids=3, size=(128, 64)) if model == "transreid_tiny" else dict(n_ids=3)
        scores = []
        for weights in ("none", "world"):
            torch.manual_seed(0)
            net = create_model(model, weights=weights, **kw).eval()
            q, g = (embed_images(net, t, quiet=True) for t in (people.query("test"), people.gallery("test")))
            scores.append(retrieval_metrics(q, g)["mAP"])
        assert scores[1] > 1.3*scores[0], (model, scores)


# ---- recipes

@pytest.mark.parametrize("preset", ["full", "paper"])
@pytest.mark.parametrize("model", [m for m in list_models("image", size="paper")])
def test_paper_sizes_refuse_random_numbers(people, preset, model):
    with pytest.raises(ValueError, match=f"{model} .* starts from .* pass the file as weights") as e:
        train_reid(people, preset, model=model, quiet=True)
    assert "\n" not in str(e.value) and "weights='none'" in str(e.value)
    assert reid_settings(preset, model=model, weights="none").start == "none"


@pytest.mark.parametrize("preset", ["full", "paper"])
def test_camel_refuses_random_numbers(preset):
    with pytest.raises(ValueError, match="camel_base .* bert-base-uncased.* weights='none'"): load_data(preset)
    assert Config(preset=preset, weights="none").start == dict(weights="none")
    assert Config(preset=preset, weights="a/r50.pth, bert").start == dict(weights="a/r50.pth", text_weights="bert")


def test_quick_starts_from_the_package():
    assert Config().start == dict(weights="world") and Config(preset="smoke").start == dict(weights="none")
    assert ReidTrain().start == "world" and REID_PRESETS["smoke"].start == "none"
    assert Config(model="dual_tiny").start == dict(weights="none")      # none come with the package
    assert Config().describe()["weights"] == "world"


def test_a_training_knows_its_start(people):
    "Another start is another training; where a file lies is not part of it"
    s = reid_settings("smoke")
    keys = [reid_key(people, replace(s, weights=w)) for w in ("none", "world")]
    assert keys[0] != keys[1] and "start" in keys[1] and "start" not in keys[0]
    torch.manual_seed(0)
    assert new_model(people, replace(s, weights="world")).loaded.missing == ()


def test_a_file_may_move(people, tmp_path):
    file = next(Path(FOLDER).glob("bot_tiny.safetensors"))
    (tmp_path/"there").mkdir()
    copies = [tmp_path/"bot_tiny.safetensors", tmp_path/"there"/"bot_tiny.safetensors"]
    for c in copies: c.write_bytes(file.read_bytes())
    assert len({str(reid_key(people, reid_settings("smoke", weights=str(c)))) for c in copies}) == 1
    assert start_key(copies[0], "bot_tiny") == start_key(copies[1], "bot_tiny") != {}


@pytest.mark.parametrize("seed", sorted(STARTS["camel_tiny"].worlds))
def test_worlds_that_were_seen_are_refused(seed):
    with pytest.raises(ValueError, match=f"world_seed={seed} was trained on already"):
        load_data("smoke", CamelSets(world_seed=seed), weights="world")
    load_data("smoke", CamelSets(world_seed=seed), weights="none")


@pytest.mark.parametrize("protocol", P.PROTOCOLS)
def test_no_network_of_a_case_was_seen_by_a_start(protocol):
    seen = set().union(*(card.seeds for card, _ in shipped().values()))
    assert not seen & {w for s in (*range(500), *range(1000, 1500)) for w in P.case_seeds(s, protocol)}
    case = P.make_case("smoke", 0, protocol=protocol)
    told = {int(s) for s in re.findall(r"seed (\d+)", f"{case.name} {case.q.name} {case.g.name} {case.train.name}")}
    assert told == set(P.case_seeds(0, protocol))


def test_a_new_network_that_was_seen_is_refused(monkeypatch):
    monkeypatch.setattr(P, "OTHER_NETWORK", 500)
    with pytest.raises(ValueError, match="world_seed=500 was trained on already"):
        run_study([dict(name="none")], "smoke", 0, protocol="network", train=dict(model="bot_tiny", weights="world"))


@pytest.mark.parametrize("made", [n for n in STARTS if MODELS[n].reads == "captions"], indirect=True)
def test_text_weights_bring_their_tokenizer(made, tmp_path):
    name, _, file = made
    data = load_data("smoke", weights=str(file), model=name)
    assert data.tokenizer.vocab == read_card(file).tokenizer["vocab"]
    config = Config("base", "smoke", model=name, weights=str(file))
    assert str(tmp_path) not in str(phase_key(config, data, data.source))
    row = run_variant("base", "smoke", weights=str(file), model=name, finetuned=False, train=dict(steps=2))
    assert row["images_seen"] == 32
    with pytest.raises(ValueError, match="bring their own tokenizer"):
        load_data("smoke", CamelSets(vocab_dir=tmp_path), weights=str(file), model=name)


def test_two_text_weights_are_refused():
    with pytest.raises(ValueError, match="camel_tiny takes no weights of a text encoder"):
        load_data("smoke", weights="none,bert")


def test_a_folder_without_files_ships_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "FOLDER", tmp_path)
    assert shipped() == {}
    with pytest.raises(ValueError, match="no weights of bot_tiny come with the package"): start_of("bot_tiny")
    with pytest.raises(ValueError, match="none of this model come with the package"):
        create_model("bot_tiny", n_ids=3, weights="world")


def test_a_pair_of_frozen_towers_is_scored_without_training():
    "The zero-shot control of text-to-image search"
    row = run_variant("camel", "smoke", model="frozen_pair:ViT-S-32-alt", weights="none")
    assert row["images_seen"] == 0 and "zeroshot_mAP" in row and "finetuned_mAP" not in row
    with pytest.raises(ValueError, match="is not trained; weights='' must name"):
        run_variant("base", "smoke", model="frozen_pair:ViT-S-32-alt")


def test_positions_are_resized_to_another_size():
    "The ViT's start is of 128x64 crops; at 64x32 its positions are interpolated, and the report says so"
    net = create_model("transreid_tiny", n_ids=3, size=(64, 32), weights="world")
    assert any("pos" in r and "51" in r and "11" in r for r in net.loaded.resized) and net.loaded.missing == ()


def test_the_rate_of_a_start_is_the_one_that_is_written_there(made):
    "The baseline's own factor quartered that of `camel_tiny` once, and its command no longer gave the shipped file"
    name, _, file = made
    log = [json.loads(line) for line in (file.parent/"trained"/"log.jsonl").read_text().splitlines()]
    falling = (SHORT["steps"] - log[0]["step"])/(SHORT["steps"] - max(1, round(.1*SHORT["steps"])))
    assert log[0]["lr"] == pytest.approx(STARTS[name].lr*falling, rel=.02)
