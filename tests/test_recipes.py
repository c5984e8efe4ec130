"""The CAMeL protocol: settings, data, determinism, what is kept, an interrupted arm."""
import numpy as np
import pytest
import torch

from reid_lab.learner import Callback
from reid_lab.recipes import camel
from reid_lab.recipes.camel import METHODS, PRESETS, TABLE_IV, Arm, evaluate, load_data, make_strategy, pretrain


@pytest.fixture(scope="module")
def data(private_cache): return load_data("smoke")


def test_table_iv_has_the_papers_five_rows():
    assert [METHODS[m]["label"] for m in TABLE_IV] == ["Baseline", "+ ST", "+ ST + ADSU", "+ ST + CMML", "CAMeL"]


@pytest.mark.parametrize("bad",
                         [dict(method="camle"), dict(preset="quik"), dict(train=(("stepz", 1),)),
                          dict(meta=(("kk", 1),))])
def test_misspelt_settings(bad):
    with pytest.raises(ValueError, match="Did you mean"): Arm(**bad)


def test_words_of_the_target_are_known(data):
    "The vocabulary is learned from source captions; fewer than 1 % of the target's words may be unknown to it"
    data.tokenizer.reset_report()
    data.tokenizer([c for cs in data.target.frame.captions for c in cs])
    assert data.tokenizer.report()["unknown_share"] < .01


def test_people_are_in_one_split_and_one_domain(data):
    seen = {}
    for t in (data.source, data.target):
        for split, rows in t.frame.groupby("split"):
            for pid in rows.pid.unique():
                assert seen.setdefault(pid, (t.frame.domain.iat[0], split)) == (rows.domain.iat[0], split)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method, data):
    "Six steps are two rounds of three tasks: the first that a slow weight update ends"
    arm = Arm(method, "smoke", train=(("steps", 6),))
    torch.manual_seed(arm.seed)
    start = camel.create_model(arm.budget.model, tokenizer=data.tokenizer, **dict(arm.budget.model_kw))
    model, learn = pretrain(arm, data, quiet=True)
    assert learn.step == 6 and learn.images == 6*16*(3 if method == "released" else 1)   # which trains on each task
    assert all(p.isfinite().all() for p in model.parameters())
    pairs = zip(model.named_parameters(), start.parameters(), strict=True)
    assert [k for (k, a), b in pairs if torch.equal(a, b)] == []


def test_an_interrupted_arm_goes_on(data, tmp_path, monkeypatch):
    "Stopped in the middle and started again, an arm ends with the same weights"
    arm = Arm("camel", "smoke", train=(("steps", 12),))
    whole, _ = pretrain(arm, data, tmp_path / "a", quiet=True)
    real = camel.Checkpoint
    monkeypatch.setattr(camel, "Checkpoint", lambda folder, every, keep: real(folder, 3, keep))

    class Stop(Callback):
        def after_step(self, learn):
            if learn.step == 8: raise KeyboardInterrupt
    strategy = camel.make_strategy
    monkeypatch.setattr(camel, "make_strategy", lambda *a: (strategy(*a)[0], [Stop()]))
    with pytest.raises(KeyboardInterrupt): pretrain(arm, data, tmp_path / "b", quiet=True)
    monkeypatch.setattr(camel, "make_strategy", lambda *a: (strategy(*a)[0], [Callback()]))
    again, learn = pretrain(arm, data, tmp_path / "b", quiet=True)
    assert learn.step == 12
    assert all(torch.equal(a, b) for a, b in zip(whole.state_dict().values(), again.state_dict().values()))


def test_reranking_only_reorders_the_first(data):
    torch.manual_seed(0)
    model = camel.create_model("camel_tiny", tokenizer=data.tokenizer, size=(64, 32))
    e = evaluate(model, data.target, "val", 4)
    for a, b in zip(e["itc_top"][:50], e["itm_top"][:50]):
        assert set(a[:4]) == set(b[:4]) and np.array_equal(a[4:], b[4:])


def test_strategies_have_the_papers_order(data):
    strategy, _ = make_strategy(Arm("camel", "smoke"), data.tokenizer)
    assert [t.name for t in strategy.tasks] == ["illumination", "blur", "memory"] and strategy.every == 6
    assert strategy.tasks[2].memory.capacity == PRESETS["smoke"].train.batch_size
