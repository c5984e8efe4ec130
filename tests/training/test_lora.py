"Adapters in trainings: resumed bit for bit, an ordinary file at the end, through recipes; the message without peft"
import importlib.util
import sys

import pytest
import torch
from torch import nn

from reid_lab.core.weight_files import load_weights
from reid_lab.data.loaders import Batches
from reid_lab.models.zoo import create_model
from reid_lab.recipes import finetune as ft
from reid_lab.recipes.reid import reid_settings, train_reid
from reid_lab.recipes.text import text_settings
from reid_lab.training.fit import Ends, fit
from reid_lab.training.folder import load_trained, training_key
from reid_lab.training.learner import Callback
from reid_lab.training.lora import adapted, check_lora, lora_targets
from reid_lab.training.options import Execution
from reid_lab.world.world import World

HAS_PEFT = importlib.util.find_spec("peft") is not None
NEEDS_PEFT = pytest.mark.skipif(not HAS_PEFT, reason="peft, the extra lora, is not installed")
TINY = (("size", (64, 32)), ("width", 32), ("heads", 2), ("depth", 3))


@pytest.fixture(scope="module")
def people(private_cache): return World("smoke", task="reid").table()


class Stop(Callback):
    only_watches = True
    def __init__(self, step): self.step = step
    def after_all(self, learn):
        if learn.step == self.step: raise KeyboardInterrupt


def train(people, folder=None, stop=0, **more):
    "52 steps of a small TransReID with adapters; a state is written at step 50"
    torch.manual_seed(0)
    model, rows = create_model("transreid_tiny", n_ids=40, **dict(TINY)), people.where(split="train")
    key = training_key(dict(model="transreid_tiny", model_kw=dict(TINY, n_ids=40), lora=2), 0, rows)
    loader = Batches(rows, 8, model.size, sampler="pk")
    return fit(model, loader, 52, folder, key, ends=Ends(lora=2), lr=1e-3, device="cpu", callbacks=[Stop(stop)],
               quiet=True, **more)


@NEEDS_PEFT
def test_resumed_bit_for_bit(people, tmp_path):
    whole = train(people)
    with pytest.raises(KeyboardInterrupt): train(people, tmp_path, stop=51)
    again = train(people, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters()))
    # the file is one of an ordinary model, which needs no peft
    plain = load_weights(create_model("transreid_tiny", n_ids=40, **dict(TINY)), tmp_path/"model.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), plain.parameters()))
    assert [p.requires_grad for p in whole.model.parameters()] == [p.requires_grad for p in plain.parameters()]


@NEEDS_PEFT
def test_of_two_processes_the_weights_are_merged_too(people, tmp_path):
    rows = people.where(split="train")
    torch.manual_seed(0)
    model = create_model("transreid_tiny", n_ids=40, **dict(TINY))
    names, start = [*model.state_dict()], model.blocks[0].mlp.fc1.weight.detach().clone()
    loader, two = Batches(rows, 8, model.size, sampler="pk"), Execution(processes=2)
    done = fit(model, loader, 2, ends=Ends(lora=2), lr=1e-2, device="cpu", quiet=True, execution=two)
    assert sorted(done.model.state_dict()) == sorted(names)
    assert torch.linalg.matrix_rank((done.model.blocks[0].mlp.fc1.weight - start).detach(), rtol=1e-3) == 2


@NEEDS_PEFT
def test_through_recipes(people, tmp_path, capsys):
    "The key names the rank, and how many parameters train is printed; with a decay of rates and recomputed blocks"
    tiny = dict(model="transreid_tiny", model_kw=TINY, steps=2)
    with pytest.warns(UserWarning, match="lora=2 with weights='none'.*starts from random numbers"):
        done = train_reid(people, "smoke", folder=tmp_path, quiet=False, **tiny, lora=2, layer_decay=.75,
                          execution=Execution(speed="checkpointing"))
    assert (done.key["lora"], done.key["layer_decay"]) == (2, .75)
    assert "LoRA of rank 2 in" in (said := capsys.readouterr().out) and "parameters train" in said
    loaded = load_trained(tmp_path)
    assert torch.equal(loaded.model.cls, done.model.cls)
    with pytest.raises(ValueError, match="lora"):
        train_reid(people, "smoke", folder=tmp_path, quiet=True, **tiny)


@NEEDS_PEFT
@pytest.mark.filterwarnings("ignore:lora=2 with weights")
def test_the_best_epoch_of_a_fine_tuning_is_kept_merged(people):
    crops = people.where(split="test")
    s = ft.finetune_settings("smoke", "transreid_tiny", "none", epochs=2, lora=2, lr=1e-2)
    s = ft.replace(s, model_kw=TINY)
    division = ft.divisions(crops)[0][0]
    tuned = ft.finetune(crops, division, s)
    score = ft.search_among(tuned.model, crops.where(pid=list(division.val)), ft.camera_rule(crops))["mAP"]
    assert score == pytest.approx(tuned.scores[tuned.epoch], abs=.5)
    assert sorted(tuned.model.state_dict()) == sorted(tuned.start.state_dict())


def test_without_peft_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    for ask in (lambda: Ends(lora=8), lambda: reid_settings("smoke", lora=8), lambda: text_settings("smoke", lora=8),
                lambda: ft.finetune_settings("smoke", lora=8)):
        with pytest.raises(ImportError, match=r"lora=8: .*pip install 'reid_lab\[lora\]'"): ask()
    check_lora(0)


def test_wrong_ranks_and_models_are_refused():
    for rank in (-1, 2.5, True, "8"):
        with pytest.raises(ValueError, match="is the rank of adapters"): Ends(lora=rank)
    convolutions = create_model("bot_tiny", n_ids=4, size=(64, 32))
    with pytest.raises(ValueError, match="leave lora out"): lora_targets(convolutions)
    transformer = create_model("transreid_tiny", n_ids=4, **dict(TINY))
    assert lora_targets(transformer, 8) == lora_targets(transformer)
    with pytest.raises(ValueError, match="lora=5000 is no low rank: the widest layer that is adapted has"):
        lora_targets(transformer, 5000)


def test_frozen_blocks_get_no_adapters():
    model = create_model("transreid_tiny", n_ids=4, **dict(TINY))
    before = lora_targets(model).linear
    for p in model.blocks[0].parameters(): p.requires_grad_(False)
    assert {*before} - {*lora_targets(model).linear} == {n for n in before if n.startswith("blocks.0.")}
    assert isinstance(model.get_submodule(before[0]), nn.Linear)


@NEEDS_PEFT
def test_what_starts_from_random_numbers_trains_whole():
    model = create_model("irra_tiny", n_ids=4, vocab_size=60, tokenizer=None, size=(64, 32))
    with adapted(model, 2):
        train = {n for n, p in model.named_parameters() if p.requires_grad}
        new = {n for n, p in model.named_parameters() if n.startswith(tuple(model.new_parts))}
    assert new <= train and not any(".lora_" in n for n in new)
    assert any(n.startswith("visual") and ".lora_" in n for n in train) and "token_embedding.weight" not in train


@pytest.mark.filterwarnings("ignore:lora=2 with weights")
def test_a_folder_is_not_claimed_where_nothing_can_be_adapted(people, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", sys)       # as if it were there
    with pytest.raises(ValueError, match="BoT has no linear layers"):
        train_reid(people, "smoke", folder=tmp_path/"bot", quiet=True, lora=2, steps=2)
    assert not (tmp_path/"bot").exists()
