"What strategy, callbacks and loader are set to decides whether a folder goes on"
import importlib
import json
import linecache
import sys
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.small_training import Blobs, Net, Scaled

from reid_lab.data.loaders import Batches, masked_words
from reid_lab.data.text import WordPiece
from reid_lab.losses.added import add_losses, added_losses
from reid_lab.training.callbacks import Average, Validate
from reid_lab.training.fit import fit
from reid_lab.training.learner import Callback, Plain
from reid_lab.training.settings import (
    NOT_COMPARED,
    SETTINGS,
    changed_settings,
    claim_settings,
    plain_settings,
    refuse_changed_code,
    refuse_settings,
    training_settings,
)
from reid_lab.world.world import World


class Clip(Callback):
    "A callback of the user's that changes weights and has no state"
    def __init__(self, most): self.most = most
    def after_step(self, learn):
        for p in learn.net.parameters(): p.data.clamp_(-self.most, self.most)


def train(folder, model=None, loader=None, steps=60, **how):
    return fit(model or Net(), loader or Blobs(), steps, folder, dict(lr=.1), lr=.1, device="cpu", quiet=True, **how)


@pytest.mark.parametrize("first, then, name", [
    (dict(strategy=Scaled(1.)), dict(strategy=Scaled(.05)), "strategy.factor"),
    (dict(strategy=Scaled(1.)), dict(), "'strategy': \\('Scaled', None\\)"),
    (dict(strategy=Scaled(1., torch.nn.CrossEntropyLoss())),
     dict(strategy=Scaled(1., torch.nn.CrossEntropyLoss(label_smoothing=.1))), "strategy.loss.label_smoothing"),
    (dict(callbacks=[Clip(.5)]), dict(callbacks=[Clip(.1)]), "callback 0.most"),
    (dict(callbacks=[Clip(.5)]), dict(), "'callbacks'"),
    (dict(callbacks=[Average(1, "ema", .5)]), dict(callbacks=[Average(1, "ema", .9)]), "callback 0.decay"),
    (dict(loader=Blobs(1.)), dict(loader=Blobs(2.)), "loader.noise"),
    (dict(model=Net(.3)), dict(model=Net(.5)), "model.margin")])
def test_another_training_is_refused_with_the_difference(first, then, name, tmp_path):
    train(tmp_path/"t", **first)
    weights = (tmp_path/"t"/"model.safetensors").read_bytes()
    with pytest.raises(ValueError, match=name) as told: train(tmp_path/"t", **then)
    assert "use a new folder" in str(told.value) and "(there, here)" in str(told.value)
    assert (tmp_path/"t"/"model.safetensors").read_bytes() == weights
    train(tmp_path/"t", **first)        # the same may go on
    train(tmp_path/"u", **then)


def test_what_reaches_no_weights_may_change(tmp_path):
    class Look(Callback):
        only_watches = True
        def __init__(self, every): self.every = every
    class Bare(Callback): "No settings and no state"
    class Other(Callback): "Another one"
    train(tmp_path/"t", callbacks=[Look(5), Bare()])
    assert train(tmp_path/"t", callbacks=[Look(9), Other()]).steps == 60


def test_a_folder_of_an_earlier_version_goes_on_and_knows_its_settings_then(tmp_path):
    train(tmp_path/"t", strategy=Scaled(1.))
    (tmp_path/"t"/SETTINGS).unlink()
    train(tmp_path/"t", strategy=Scaled(1.))
    assert json.loads((tmp_path/"t"/SETTINGS).read_text())["strategy.factor"] == 1.
    with pytest.raises(ValueError, match="strategy.factor"): train(tmp_path/"t", strategy=Scaled(2.))


def test_a_training_without_a_state_begins_as_it_is_called(tmp_path):
    class Die(Callback):
        def after_step(self, learn): raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt): train(tmp_path/"t", strategy=Scaled(1.), callbacks=[Die()])
    assert train(tmp_path/"t", strategy=Scaled(.5)).steps == 60


def test_what_holds_no_plain_values_is_said(tmp_path):
    class Odd(Plain):
        def __init__(self): self.stream = iter([1])
    train(tmp_path/"t", strategy=Odd())
    with pytest.warns(UserWarning, match=r"strategy.stream.*hold no plain values.*key_settings"):
        train(tmp_path/"t", strategy=Odd())


def test_another_class_may_name_what_counts(tmp_path):
    class Own(Plain):
        def __init__(self, seen): self.seen = seen
        @property
        def key_settings(self): return dict(kind="own")
    assert plain_settings(s=Own(3)) == plain_settings(s=Own(4)) == {"s": "Own", "s.kind": "own"}


@pytest.mark.kill
def test_another_strategy_is_refused_by_the_process_that_asked(tmp_path):
    from reid_lab.training.options import Execution
    train(tmp_path/"t", strategy=Scaled(1.))
    with pytest.raises(ValueError, match="strategy.factor"):
        train(tmp_path/"t", strategy=Scaled(2.), execution=Execution(processes=2))


def test_state_and_counters_are_no_settings():
    a, b = Validate(lambda m: {}, every=2), Validate(lambda m: {}, every=2)
    a.rows, a.best = [dict(step=1)], 3.
    assert plain_settings(cb=a, f=1) == plain_settings(cb=b, f=1) and plain_settings(cb=a)["cb.every"] == 2


def test_a_loader_counts_with_images_captions_and_masks_but_not_with_its_workers(tmp_path):
    table = World("smoke", task="text").table().where(split="train")
    words = WordPiece.train([c for cs in table.frame.captions for c in cs], vocab_size=200)
    def loader(t=table, p=.25, **how):
        return plain_settings(loader=Batches(t, 8, (32, 16), words, extras=[masked_words(words, p)], **how))
    here = loader()
    words([table.frame.captions.iloc[0][0]])      # a tokenizer counts what it has read
    assert loader(workers=2, cache=tmp_path/"c") == here
    assert set(changed_settings(here, loader(p=.5))) == {"loader.extras.0.p"}
    assert set(changed_settings(here, loader(seed=1))) == {"loader.seed"}
    fewer = set(changed_settings(here, loader(table.take(range(40)))))
    assert "loader.table" in fewer and "loader.captions" in fewer


@pytest.mark.parametrize("x, value", [(np.float32(.5), .5), (float("inf"), "inf"), ({1, 2}, [1, 2]),
                                      ((1, "a"), [1, "a"]),
                                      (torch.float16, "torch.float16"), ("/a/b/c.json", "c.json"),
                                      (np.arange(3), [0, 1, 2]), (np.zeros(99), "array (99,) of float64"),
                                      (dict(a=1), {"a": 1})])
def test_plain_values(x, value): assert plain_settings(x=x) == {"x": value}


def test_functions_by_name_and_what_they_close_over():
    def rate(factor, log=None): return lambda step: factor*step + len(log or [])
    assert plain_settings(f=rate(.1))["f.factor"] == .1
    assert plain_settings(f=rate(.1, [1])) == plain_settings(f=rate(.1, [2]))      # a list may grow meanwhile
    assert plain_settings(f=partial(rate, factor=2.))["f.factor"] == 2.
    one = plain_settings(a=lambda x: x)
    assert one != plain_settings(a=lambda x: x + 1)


@dataclass(frozen=True)
class Margin:
    "A record of settings"
    most: float
    names: tuple = ()


@dataclass
class Changing:
    "A record that a training may write into"
    most: float
    seen: list = field(default_factory=list)


def test_functions_by_the_records_that_they_close_over():
    def loss(settings): return lambda scores: scores.clamp(max=settings.most)
    described = plain_settings(f=loss(Margin(.1, ("a",))))
    assert described["f.settings"] == "Margin" and described["f.settings.most"] == .1
    assert set(changed_settings(described, plain_settings(f=loss(Margin(.2, ("a",)))))) == {"f.settings.most"}
    assert described != plain_settings(f=loss(Margin(.1, ("b",))))
    assert plain_settings(f=loss(Changing(.1))) != plain_settings(f=loss(Changing(.2)))
    assert plain_settings(f=loss(Changing(.1, [1]))) == plain_settings(f=loss(Changing(.1, [1, 2])))    # it may grow
    without = {name: value for name, value in described.items() if not name.startswith("f.settings")}
    assert not changed_settings(without, described)     # a folder of an earlier version goes on


def test_classes_that_lead_to_themselves_end():
    class Loop: "A ring"
    a = Loop()
    a.other = Loop()
    a.other.other = a
    assert len(plain_settings(a=a)) < 5


def test_settings_are_refused_only_where_there_is_something_to_go_on_with(tmp_path):
    a, b = (training_settings(Net(), Blobs(), Scaled(f), []) for f in (1., 2.))
    claim_settings(tmp_path, a)
    refuse_settings(tmp_path, b)
    (tmp_path/"done.json").write_text("{}")
    with pytest.raises(ValueError, match="strategy.factor"): claim_settings(tmp_path, b)
    (tmp_path/SETTINGS).write_text("[1")
    with pytest.raises(ValueError, match="is damaged"): claim_settings(tmp_path, a)
    assert NOT_COMPARED


OWN = '''
from reid_lab.training.learner import Callback, Plain
RATE = {rate}
def soft(loss): return loss*{factor}
def picture(log): return {drawn}
class Own(Plain):
    def step(self, learn, batch):
        def forward(b): return {{name: soft(loss)*RATE for name, loss in learn.net(b).items()}}
        return learn.update(batch, forward=forward)
class Most(Callback):
    def __init__(self, most=1.): self.most = most
    def after_step(self, learn): self.most = {most}
'''


@pytest.fixture
def own(tmp_path, monkeypatch):
    "The module of a user, imported as another process would import it after an edit"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    def write(rate=1., factor=1., drawn="log", most=1., text=OWN):
        (tmp_path/"own_training.py").write_text(text.format(rate=rate, factor=factor, drawn=drawn, most=most))
        sys.modules.pop("own_training", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module("own_training")
    yield write
    sys.modules.pop("own_training", None)


@pytest.mark.parametrize("change, piece", [(dict(factor=2.), "own_training.soft"), (dict(rate=2.), "own_training.RATE"),
                                           (dict(most=.1), "own_training.Most")])
def test_changed_code_with_the_same_settings_is_refused(change, piece, own, tmp_path):
    def go():
        module = sys.modules["own_training"]
        return train(tmp_path/"t", strategy=module.Own(), callbacks=[module.Most()])
    own()
    go()
    own(**change)
    with pytest.raises(ValueError, match=rf"other code, which changed since \({piece}\), with the same settings"): go()
    own(drawn="2*log", text=OWN + "# a note\n\ndef later(): return picture(1)\n")  # what reaches no weights, a comment
    assert go().steps == 60
    own(**change)
    (tmp_path/"t"/SETTINGS).unlink()        # as the message says
    assert go().steps == 60


HIDDEN = """
from reid_lab.training.learner import Plain
def scaled(by): return lambda f: lambda loss: by*f(loss)
def soft(loss): return {factor}*loss
TABLE = dict(soft=soft)
@scaled({by})
def whole(loss): return loss
class Own(Plain):
    def step(self, learn, batch):
        from own_later import late
        def forward(b): return {{name: late(whole(TABLE['soft'](loss))) for name, loss in learn.net(b).items()}}
        return learn.update(batch, forward=forward)
"""


@pytest.mark.parametrize("change, piece", [
    (dict(factor=2.), "own_training.soft"), (dict(by=2.), "own_training.whole"), (dict(late=2.), "own_later")])
def test_code_behind_tables_decorators_and_imports_in_functions_is_noticed(change, piece, own, tmp_path):
    def go(factor=1., by=1., late=1.):
        (tmp_path/"own_later.py").write_text(f"def late(loss): return {late}*loss\n")
        sys.modules.pop("own_later", None)
        module = own(text=HIDDEN.replace("{factor}", str(factor)).replace("{by}", str(by)))
        return train(tmp_path/"t", strategy=module.Own())
    go()
    assert go().steps == 60
    with pytest.raises(ValueError, match=rf"other code, which changed since \(.*{piece}.*\), with"): go(**change)


def test_the_code_of_an_added_loss_is_noticed_with_what_it_calls(own, tmp_path):
    text = "def helper(x): return {factor}*x\ndef soft(emb): return helper(emb.mean())\n"
    def settings(factor):
        model = add_losses(Net(), added_losses(dict(soft=own(factor=factor, text=text).soft)))
        return training_settings(model, Blobs(), None, [])
    assert changed_settings(settings(1.), settings(1.)) == {}
    assert "code own_training.helper" in changed_settings(settings(1.), settings(2.))


def test_a_module_that_changed_elsewhere_is_said_and_not_refused(own, tmp_path):
    def go(): return train(tmp_path/"t", strategy=sys.modules["own_training"].Own())
    own()
    go()
    own(text=OWN + "\ndef later(): return 1\n")
    with pytest.warns(UserWarning, match="own_training changed since it was trained, though no function or class"):
        assert go().steps == 60
    with pytest.warns(UserWarning, match="own_training changed .* give another"):
        refuse_changed_code(tmp_path/"t", "give another")


def test_what_is_only_loaded_is_compared_by_the_names_in_its_folder(own, tmp_path):
    own()
    train(tmp_path/"t", strategy=sys.modules["own_training"].Own())
    refuse_changed_code(tmp_path/"t", "train anew")
    own(factor=3.)
    with pytest.raises(ValueError, match=r"other code, which changed since \(own_training.soft\).*; train anew, or"):
        refuse_changed_code(tmp_path/"t", "train anew")
    sys.modules.pop("own_training")         # in a process that does not import it
    with pytest.warns(UserWarning, match="own_training changed"): refuse_changed_code(tmp_path/"t")
    (tmp_path/"t"/SETTINGS).unlink()
    refuse_changed_code(tmp_path/"t")


def test_what_a_class_of_ones_own_keeps_under_hidden_names_counts(tmp_path):
    class Hidden(Plain):
        def __init__(self, factor, weights=None):
            self._factor, self.weights, self._count = factor, weights, 0
        def step(self, learn, batch):
            self._count += 1
            return super().step(learn, batch)
    many = torch.linspace(0, 1, 100)
    strategy = Hidden(1., many)
    train(tmp_path/"t", strategy=strategy)
    train(tmp_path/"t", strategy=strategy)      # what it counts decides nothing
    with pytest.raises(ValueError, match=r"strategy._factor': \(1.0, 0.05\)"):
        train(tmp_path/"t", strategy=Hidden(.05, many))
    for other in (many.flip(0), 1.01*many):
        with pytest.raises(ValueError, match="strategy.weights values"): train(tmp_path/"t", strategy=Hidden(1., other))
    train(tmp_path/"t", strategy=Hidden(1., many*(1 + 1e-8)))


def test_numbers_of_the_learner_count(tmp_path):
    fit(Net(), Blobs(), 60, tmp_path/"t", {}, lr=.1, clip=1., device="cpu", quiet=True)
    with pytest.raises(ValueError, match=r"learner.lr': \(0.1, 0.2\)"):
        fit(Net(), Blobs(), 60, tmp_path/"t", {}, lr=.2, clip=1., device="cpu", quiet=True)


def test_signs_of_a_large_array_are_a_setting():
    values = np.random.default_rng(0).normal(size=(50, 50))
    first, other, again = (plain_settings(callback=SimpleNamespace(values=x)) for x in (values, -values, values.copy()))
    assert first == again and first != other
