"""Every registered model keeps the contract; paper-size parameter counts; strategies work with any of them."""
import pytest
import torch

from reid_lab.learner import Learner, Plain, load_weights, save_weights
from reid_lab.meta.dual_speed import DualSpeed, ReleasedDualSpeed, Task, TaskCycle
from reid_lab.models.backbones import CrossEncoder, TextEncoder, TextLayer
from reid_lab.models.zoo import check_image_model, check_model, create_model, list_models, sample_batch

SIZE = (64, 32)


def build(name):
    torch.manual_seed(0)
    kw = dict(n_ids=4) if name in list_models("image") else dict(vocab_size=60)
    return create_model(name, size=SIZE, **kw)


class OneBatch:
    "A loader of one batch"
    def __len__(self): return 1
    def epoch(self, e, start=0): return iter([sample_batch(SIZE)][start:])


@pytest.mark.parametrize("name", list_models("tiny"))
def test_contract(name):
    if name in list_models("image"): check_image_model(build(name))
    else: check_model(build(name))


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
                  dual=lambda: DualSpeed([Task()] * 3, iters_per_task=1),
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
                         [(dict(name="camel_tine"), "Did you mean"), (dict(name="bot_tiny"), "missing .*'n_ids'"),
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
