"""CFAN's recipe: settings, data of both kinds, bridges, gate, memberships, stopping and resuming."""
import json

import numpy as np
import pytest
import torch

from reid_lab.datasets.aerial import cross_view, triplets
from reid_lab.datasets.export import export_world
from reid_lab.datasets.registry import DATASETS
from reid_lab.models.cfan import RELEASED_RATES
from reid_lab.recipes.cfan import (
    METHODS,
    STUDIES,
    TITLES,
    GateLog,
    aerial_case,
    gate_batches,
    gate_values,
    method_settings,
    run_method,
    triplet_rows,
    triplet_similarities,
    visibility_rows,
)
from reid_lab.recipes.text import captioned, new_text_model, text_key, train_text
from reid_lab.training.learner import Callback
from reid_lab.world.world import World


@pytest.fixture(scope="module")
def case(): return aerial_case("world", "smoke", 0)


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory):
    "Folders in the layouts of both aerial sets"
    root = tmp_path_factory.mktemp("sets")
    table = cross_view(World("smoke", 3, task="aerial").table())
    table = table.where(split=["train", "test"])
    for name in ("aeri-pedes", "tbapr"): export_world(table, name, root / DATASETS[name].folder)
    return root


# ---- settings

def test_each_method_states_its_form_whatever_weights_bring():
    "A released CFAN as the start does not turn the paper's form into the released one"
    form = lambda name, **kw: {k: v for k, v in method_settings(dict(name=name), **kw).model_kw
                               if k in ("membership", "mask_padding")}
    assert form("cfan", preset="paper") == dict(membership="paper", mask_padding=True)
    assert form("released", preset="paper") == dict(membership="released", mask_padding=False)
    assert form("cda", preset="paper") == form("cfan", preset="quick") == {}        # no FTA; no such weights


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_sets(name):
    s, m = method_settings(dict(name=name), "quick"), METHODS[name]
    assert (s.bridge, dict(s.model_kw)["losses"], s.steps) == (m.bridge, m.losses, 300*m.steps)
    paper = method_settings(dict(name=name), "paper")
    assert paper.part_mult == (RELEASED_RATES if name == "released" else ()) and paper.decay_bias
    assert paper.keep_last == (name == "released") and paper.per_id == 0
    assert (paper.lr, paper.epochs, paper.optimiser, paper.eps) == (5e-6, 60*m.steps, "adam", 1e-3)


def test_methods_are_the_rows_of_the_ablation():
    "Table 3: the baseline has the bridge alone; CDA and FTA are added to it one by one and together"
    assert [METHODS[k].losses for k in ("bridge", "cda", "fta", "cfan")] == ["bridge", "cda", "bridge+fta", "cda+fta"]
    assert {METHODS[k].bridge for k in ("bridge", "cda", "fta", "cfan")} == {"pair"}
    assert [s["k"] for s in STUDIES["gate"].settings] == [1., 2., 4., 8., 12., 16.]


def test_the_released_form_weighs_fta_as_its_program_does(case):
    "Half of SDM, like the paper's form; a half of that half was a misreading"
    for name in ("cfan", "released"):
        model = new_text_model(case.table, method_settings(dict(name=name), "smoke"))
        assert (model.fta_weight, model.membership) == (1., "released" if name == "released" else "paper")


@pytest.mark.parametrize("setting, match", [
    (dict(name="cfann"), "Did you mean 'cfan'"), (dict(name="cfan", que=3), "setting of cfan"),
    (dict(name="start", steps=3), "is not trained"), (dict(name="cfan", bridge="air"), "bridge='air'")])
def test_bad_settings(setting, match):
    with pytest.raises(ValueError, match=match): method_settings(setting)


def test_keys_tell_methods_and_settings_apart(case):
    tok = new_text_model(case.table, method_settings(dict(name="direct"), "smoke")).tokenizer
    key = lambda s: json.dumps(text_key(case.table, method_settings(s, "smoke"), 0, tok), sort_keys=True)
    settings = [*(dict(name=n) for n in METHODS), *(dict(name="cfan", **kw) for kw in (
        dict(k=2.), dict(queries=2), dict(alpha=.5), dict(detach_alpha=True), dict(fta_weight=.5),
        dict(bridge="ground"), dict(membership="released"), dict(mask_padding=False), dict(steps=9),
        dict(part_mult=RELEASED_RATES, optimiser="adam")))]
    assert len({key(s) for s in settings}) == len(settings)


# ---- data

def test_the_world_needs_the_bridge(case):
    "Captions come from the ground, elevations differ, and the ground images are searched by nobody"
    f = captioned(case.table).frame
    assert set(f["view"]) == {"aerial"} and np.ptp(f.elevation) > .2
    assert (case.table.frame[case.table["view"] == "ground"].role == "none").all()
    assert set(case.table.gallery("test").frame["view"]) == {"aerial"}
    assert "60 captions search 60 aerial images" in repr(case)


@pytest.mark.parametrize("name", ["aeri-pedes", "tbapr"])
def test_sets_on_disk(name, on_disk, tmp_path):
    case = aerial_case(name, root=on_disk)
    assert case.world is None and {*captioned(case.table).frame["view"]} == {"aerial"}
    held = aerial_case(name, root=on_disk, split="val")
    assert held.split == "val" and len(held.table.text_queries("val"))
    kw = dict(dataset=name, root=on_disk, train=dict(steps=2))
    row = run_method(dict(name="cfan"), "smoke", keep=tmp_path, **kw)
    assert row["test"] == name and np.isfinite(row["mAP"]) and "sight_image_after" not in row
    assert row["images_seen"] > 32 and 0 < row["gate_alpha"] < 1 and "gate_elevation" not in row
    assert len(triplet_rows(case, 2)) == 2


def test_a_set_without_views_is_refused(tmp_path):
    with pytest.raises(ValueError, match="aerial|captions"): aerial_case("market1501", root=tmp_path)
    with pytest.raises(ValueError, match="preset='quik'"): aerial_case("world", "quik")
    with pytest.raises(ValueError, match="split='train'"): aerial_case("world", "smoke", split="train")


# ---- training

@pytest.mark.parametrize("name", METHODS)
def test_every_method_runs(name, case):
    row, m = run_method(dict(name=name), "smoke", train=dict() if name == "start" else dict(steps=2)), METHODS[name]
    terms, gated = m.losses.split("+"), m.steps and "cda" in m.losses and m.bridge != "none"
    assert ("gate_alpha" in row) == bool(gated) and ("sight_image_after" in row) == ("fta" in terms)
    plain = 0 if name == "start" else 32
    assert row["images_seen"] == plain if m.bridge == "none" else plain < row["images_seen"] <= 2*plain
    assert row["RSum"] == pytest.approx(row["R1"] + row["R5"] + row["R10"])
    assert row["variant"] == TITLES[name]


def test_without_bridges_cda_is_plain_sdm(case):
    "The gate has nothing to choose, and the weights are those of the direct loss"
    s = [method_settings(dict(name=n), "smoke", steps=3, bridge="none") for n in ("direct", "cda")]
    one, two = (train_text(case.table, x, quiet=True).model.state_dict() for x in s)
    assert all(torch.equal(one[k], two[k]) for k in one)


def test_the_gate_is_that_of_the_formula(case):
    s = method_settings(dict(name="cda", k=3.), "smoke")
    model = new_text_model(case.table, s).eval()
    batches = gate_batches(case, model, s)
    with torch.no_grad():
        want = []
        for b in batches:
            t = model.encode_text(b["tokens"])
            a, g = model.encode_image(b["img"]), model.encode_image(b["img_bridge"])
            want += torch.sigmoid(3*((t*a).sum(1) - (t*g).sum(1)))[b["has_bridge"]].tolist()
    assert np.allclose(gate_values(model, batches), want, atol=1e-5) and len(want) > 50


def test_the_record_of_the_gate_survives_a_stop(case, tmp_path, monkeypatch):
    s = method_settings(dict(name="cda"), "smoke", steps=60)
    new = lambda: GateLog(gate_batches(case, new_text_model(case.table, s), s, 32), 20)
    whole = new()
    done = train_text(case.table, s, quiet=True, callbacks=[whole])

    class Stop(Callback):
        at = 55
        def after_step(self, learn):
            if learn.step == self.at: raise KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        train_text(case.table, s, folder=tmp_path, quiet=True, callbacks=[new(), Stop()])
    monkeypatch.setattr(Stop, "at", None)
    rest = new()
    again = train_text(case.table, s, folder=tmp_path, quiet=True, callbacks=[rest, Stop()])
    assert [r["step"] for r in rest.rows] == [0, 20, 40, 60]
    for a, b in zip(rest.rows, whole.rows): assert a == pytest.approx(b, abs=1e-6)
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in done.model.state_dict().items())


def test_looking_at_the_gate_does_not_change_a_training(case):
    s = method_settings(dict(name="cfan"), "smoke", steps=4)
    model = new_text_model(case.table, s)
    with_log = train_text(case.table, s, quiet=True, callbacks=[GateLog(gate_batches(case, model, s, 32), 1)])
    without = train_text(case.table, s, quiet=True)
    assert all(torch.equal(v, without.model.state_dict()[k]) for k, v in with_log.model.state_dict().items())


def test_similarities_of_pairs(case):
    s = method_settings(dict(name="direct"), "smoke")
    model = new_text_model(case.table, s).eval()
    found = triplet_similarities(model, case, 5)
    f = triplets(case.table.where(split="train")).drop_duplicates("pid")[:5]
    row = dict(zip(case.table["path"], range(len(case.table))))
    img = torch.stack([torch.from_numpy(case.table.images([row[p]], model.size)[0].copy()).permute(2, 0, 1)/255.
                       for p in f.aerial])
    with torch.no_grad(): want = (model.encode_text(model.tokenizer(f.caption.tolist()))*model.encode_image(img)).sum(1)
    assert np.allclose(found["own, from above"], want, atol=1e-4) and len(found["others, from above"]) == 20


def test_memberships_are_scored_for_both_sides(case):
    model = new_text_model(case.table, method_settings(dict(name="cfan"), "smoke")).eval()
    f = visibility_rows(model, case, "before", 12)
    assert [*f.side] == ["image", "caption"] and set(f.stage) == {"before"} and f.within.abs().max() <= 1
