"""Every registered model keeps the contract; paper-size parameter counts; strategies work with any of them."""
import inspect
from dataclasses import replace

import pytest
import torch
from torch import nn

from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.meta.dual_speed import DualSpeed, ReleasedDualSpeed, Rounds, Task, TaskCycle
from reid_lab.models.backbones import CrossEncoder, TextEncoder, TextLayer, norm_gradients
from reid_lab.models.bot import BoT
from reid_lab.models.zoo import (
    KINDS,
    MODELS,
    NEEDS,
    TINY,
    ModelInfo,
    check_entry,
    check_image_model,
    create_model,
    describe_models,
    list_models,
    observed_facts,
    sample_batch,
)
from reid_lab.training.learner import Learner, Plain
from reid_lab.tta.base import influential

SIZE = (64, 32)


def build(name, **kw):
    torch.manual_seed(0)
    return create_model(name, size=SIZE, **{k: NEEDS[k] for k in MODELS[name].needs}, **kw)


def change(monkeypatch, name, **facts):
    "The registry with another record for `name`"
    monkeypatch.setitem(MODELS, name, replace(MODELS[name], **facts))


class OneBatch:
    "A loader of one batch"
    def __len__(self): return 1
    def epoch(self, e, start=0): return iter([sample_batch(SIZE)][start:])


@pytest.mark.parametrize("name", list_models(size="tiny"))
def test_contract_and_record(name): check_entry(name, SIZE)


@pytest.mark.parametrize("name", list_models(trains=False))
def test_a_control_embeds_and_is_not_trained(name):
    assert check_entry(name, SIZE) == {} and name not in list_models("image")
    with pytest.raises(RuntimeError, match="not trained"): build(name)({})


@pytest.mark.parametrize("name", list_models(size="paper"))
def test_record_of_a_model_at_paper_size(name): check_entry(name, SIZE, contract=False)


@pytest.mark.parametrize("name", MODELS)
def test_needs_are_what_the_constructor_cannot_do_without(name):
    info = MODELS[name]
    assert info.needs and info.paper and info.family
    if info.size == "tiny":  # at paper size a vocabulary may have a default
        with pytest.raises((TypeError, ValueError), match="|".join(info.needs)): create_model(name)
    model = build(name) if info.size == "tiny" else None
    if model is not None:
        assert model.size == SIZE
        assert getattr(model, "tokenizer", None) is (NEEDS["tokenizer"] if "tokenizer" in info.needs else None)


@pytest.mark.parametrize("name, fact, wrong", [
    ("dual_tiny", "reads", "images"), ("bot_tiny", "size", "paper"), ("bot_tiny", "itm", True),
    ("camel_tiny", "itm", False), ("camel_tiny", "mlm", False), ("camel_tiny", "eda", True)])
def test_a_wrong_record_is_found(monkeypatch, name, fact, wrong):
    change(monkeypatch, name, **{fact: wrong})
    with pytest.raises(AssertionError, match="raw_features" if fact == "reads" else f"{fact}.*{wrong}"):
        check_entry(name, SIZE)
    with pytest.raises(AssertionError, match=f"{fact}.*{wrong}"): check_entry(name, SIZE, contract=False)


def test_needs_that_the_constructor_does_not_take_are_found(monkeypatch):
    change(monkeypatch, "bot_tiny", needs=("tokenizer",))
    with pytest.raises(AssertionError, match="takes no argument"): check_entry("bot_tiny", SIZE)


def test_a_second_caption_view_is_observed():
    assert not observed_facts(build("camel_tiny"))["eda"] and observed_facts(build("camel_tiny", eda_weight=.8))["eda"]


def test_models_are_listed_by_facts():
    assert (sorted(list_models(reads="images") + list_models(reads="captions"))
            == sorted(list_models(size="tiny") + list_models(size="paper")) == sorted(MODELS))
    for kind, facts in KINDS.items(): assert list_models(kind) == list_models(**facts)
    assert (list_models(itm=True, size="tiny") == [n for n in list_models("tiny") if MODELS[n].itm]
            == list_models("tiny", itm=True))
    assert describe_models().index.tolist() == list(MODELS)
    for bad, message in ((dict(kind="img"), "kind='img'"), (dict(red="images"), "Did you mean 'reads'"),
                         (dict(size="small"), "size='small'")):
        with pytest.raises(ValueError, match=message): list_models(**bad)


def test_a_name_says_nothing(monkeypatch):
    "A model of any name is what its record says"
    monkeypatch.setitem(MODELS, "zebra", MODELS["bot_tiny"])
    assert "zebra" in list_models("image") and "zebra" not in list_models("text") and "zebra" in list_models("tiny")
    check_entry("zebra", SIZE)


@pytest.mark.parametrize("bad, message", [(dict(reads="text"), "reads='text'"), (dict(size="big"), "size='big'"),
                                          (dict(needs=("n_id",)), "Did you mean 'n_ids'")])
def test_records_are_checked_when_made(bad, message):
    good = dict(make=print, reads="images", size="tiny", family="x", paper="x", needs=("n_ids",))
    with pytest.raises(ValueError, match=message): ModelInfo(**{**good, **bad})


def test_tiny_models_leave_room_below_the_bound():
    assert all(sum(p.numel() for p in build(n).parameters()) < TINY/2 for n in list_models("tiny"))


@pytest.mark.parametrize("name", list_models("tiny"))
def test_weights_survive_a_file(name, tmp_path):
    a, b = build(name), build(name)
    with torch.no_grad(): [p.add_(.01) for p in a.parameters()]
    save_weights(a, tmp_path / "m.safetensors")
    load_weights(b, tmp_path / "m.safetensors")
    assert all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


def test_checkpoint_of_another_model_is_refused(tmp_path):
    save_weights(build("dual_tiny"), tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="holds a DualEncoder, not this CAMeL.*differences"):
        load_weights(build("camel_tiny"), tmp_path / "m.safetensors")


STRATEGIES = dict(plain=Plain, cycle=lambda: TaskCycle([Task(), Task(), Task()]),
                  dual=lambda: DualSpeed([Task()] * 3, rounds=Rounds(iters_per_task=1)),
                  released=lambda: ReleasedDualSpeed([Task()] * 2))


@pytest.mark.parametrize("name", list_models("tiny"))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_strategy_trains_any_model(name, strategy):
    model = build(name)
    before = [p.detach().clone() for p in model.parameters()]
    learn = Learner(model, OneBatch(), STRATEGIES[strategy](), lr=1e-3, device="cpu").fit(steps=6)
    assert learn.step == 6
    assert any(not torch.equal(a, b) for a, b in zip(before, learn.net.parameters()))
    assert all(p.isfinite().all() for p in learn.net.parameters())


def test_text_side_has_the_papers_parameters():
    with torch.device("meta"):
        text, cross, layer = TextEncoder(), CrossEncoder(), TextLayer(768, 12, 3072)
    count = lambda m: sum(p.numel() for p in m.parameters())
    assert count(layer) == 7_087_872
    assert count(text) + count(cross) == 121_338_426 - 622_650


@pytest.mark.parametrize("bad, message",
                         [(dict(name="camel_tine"), "Did you mean"), (dict(name="bot_tiny"), "needs n_ids"),
                          (dict(name="dual_tiny"), "needs a tokenizer or a vocab_size")])
def test_bad_arguments(bad, message):
    with pytest.raises((ValueError, TypeError), match=message): create_model(**bad)


def test_one_identity_gives_finite_losses():
    batch = sample_batch(SIZE)
    batch["pid"] = batch["label"] = torch.zeros(8, dtype=torch.long)
    for name in list_models("tiny"):
        losses = {k: v for k, v in build(name)(batch).items() if k.endswith("_loss")}
        assert losses and all(v.isfinite() for v in losses.values()), (name, losses)


def test_memory_negatives_are_used():
    "A memory whose entries are far harder than the batch must be what the matcher is given"
    model = build("camel_tiny").eval()
    batch = sample_batch(SIZE)
    entry = model(batch)["memory_entry"]
    clone = {**entry, "pid": entry["pid"] + 50}  # the batch's own pairs under other names: as hard as can be
    torch.manual_seed(1)
    with_memory = model({**batch, "memory": clone})["itm_loss"]
    torch.manual_seed(1)
    without = model(batch)["itm_loss"]
    assert with_memory.isfinite() and not torch.equal(with_memory, without)


IMAGE = [MODELS[name].family for name in list_models(reads="images", size="tiny")]


def has_feature(family):
    "Whether the test feature of a model may lie before or after its BNNeck"
    name, = list_models(reads="images", size="tiny", family=family)
    return "feature" in inspect.signature(type(create_model(name, n_ids=4)).__init__).parameters


NECKED = [family for family in IMAGE if has_feature(family)]


def test_models_with_a_choice_of_feature(): assert {"bot", "transreid", "clip_reid"} <= set(NECKED) <= set(IMAGE)


@pytest.mark.parametrize("name", NECKED)
@pytest.mark.parametrize("feature", ["before", "after"])
def test_contract_with_either_feature(name, feature, tiny):
    out = check_image_model(tiny(name, feature=feature))
    assert out["norms_of_features"] > 3 and out["norms_of_logits"] > 3


@pytest.mark.parametrize("name", NECKED)
def test_necks_move_the_feature_only_after_them(name, tiny):
    img = torch.rand(4, 3, *SIZE)
    for feature in ("before", "after"):
        model = tiny(name, feature=feature).eval()
        reached = norm_gradients(model, model.raw_features(img))
        assert any(n.startswith("neck") for n in reached) == (feature == "after")


@pytest.mark.parametrize("name, kw", [*((f, {}) for f in IMAGE), *((f, dict(feature="after")) for f in NECKED),
                                      *((f, dict(feature="before")) for f in NECKED)])
def test_test_time_adaptation_finds_what_it_needs(name, kw, tiny):
    "Scales and shifts that move the feature when they are moved, one by one, and no others"
    model, img, moves = tiny(name, **kw).eval(), torch.rand(4, 3, *SIZE), set()
    norms = [n for n, m in model.named_modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm))]
    with torch.no_grad():
        still = model.raw_features(img)
        for n, p in model.named_parameters():
            if n.rpartition(".")[0] not in norms: continue
            kept = p.clone()
            p += torch.randn_like(p)
            if not torch.equal(model.raw_features(img), still): moves.add(n)
            p.copy_(kept)
    assert set(influential(model, img)) == moves and len(moves) > 3


@pytest.mark.parametrize("name", NECKED)
def test_one_image_in_training_mode(name, tiny):
    "The feature before the necks does not need them, whatever their mode"
    model = tiny(name, feature="before").train()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d): m.eval()
    assert model.raw_features(torch.rand(1, 3, *SIZE)).shape == (1, model.dim)


@pytest.mark.parametrize("name", NECKED)
def test_wrong_feature_is_named(name, tiny):
    with pytest.raises(ValueError, match="feature='neck'.*before"): tiny(name, feature="neck")


@pytest.mark.parametrize("broken, message", [
    (dict(raw_features=lambda img: torch.ones(len(img), 3)), "raw_features gave \\(8, 3\\), expected \\(8, 128\\)"),
    (dict(logits=lambda img: torch.rand(len(img), 4)), "logits is not deterministic"),
    (dict(forward_tta=lambda img: (torch.zeros(len(img), 128), torch.zeros(len(img), 4))),
     "forward_tta gives other raw_features")])
def test_conformance_check_can_fail(broken, message, tiny):
    model = tiny("bot")
    if "raw_features" in broken: model.encode_image = BoT.encode_image.__get__(tiny("bot").eval())
    for k, v in broken.items(): setattr(model, k, v)
    with pytest.raises(AssertionError, match=message): check_image_model(model)


@pytest.mark.parametrize("change, message", [(lambda out: out.pop("emb"), "forward\\(\\) returns no emb"),
                                             (lambda out: out.update(emb=2*out["emb"]),
                                              "emb is not what raw_features gives")])
def test_training_outputs_hold_the_test_feature(change, message, tiny):
    model = tiny("bot")
    plain = model.forward
    def other(batch):
        out = plain(batch)
        change(out)
        return out
    model.forward = other
    with pytest.raises(AssertionError, match=message): check_image_model(model)


def test_no_normalisation_layer_is_an_error(tiny):
    "Only the neck has a normalisation layer, and it comes too late"
    model = tiny("bot", norm="group", feature="before")
    for name, m in list(model.named_modules()):
        if isinstance(m, nn.GroupNorm): model.set_submodule(name, nn.Identity())
    with pytest.raises(AssertionError, match="no scale or shift"): check_image_model(model)


def test_an_entry_is_checked_from_random_numbers(monkeypatch):
    "The shipped weights of a model are neither needed nor read to look at its network"
    from reid_lab.models import zoo
    given, create = {}, zoo.create_model
    def noted(name, **arguments):
        given.update(arguments)
        return create(name, **arguments)
    monkeypatch.setattr(zoo, "create_model", noted)
    zoo.check_entry("bot_tiny", contract=False)
    assert given["weights"] == "none"
