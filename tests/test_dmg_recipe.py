"""DMG-Net's recipe: every method trains, settings reach what they name, tests are scored as the protocol says."""
import json

import numpy as np
import pandas as pd
import pytest
import torch

from reid_lab.data.image_sets import write_images
from reid_lab.dg_protocols import abc_case, world_abc, write_manifest
from reid_lab.embeddings import embed_images
from reid_lab.meta.dmg import CameraHalves, DMGStep, DomainRuns
from reid_lab.metrics import retrieval_metrics
from reid_lab.models.zoo import create_model
from reid_lab.published import published_table
from reid_lab.recipes.dmg import (DMG_PRESETS, KEYS, METHODS, STUDIES, TITLES, how_of, load_abc, method_settings,
                                  run_folder,
                                  run_method, score_tests, sort_setting, subset_cases, train_method)
from reid_lab.recipes.reid import reid_key
from reid_lab.recipes.study import label


@pytest.fixture(scope="module")
def table(): return world_abc("smoke", 0)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains(name, table):
    done = train_method(table, dict(name=name, steps=3), "smoke")
    s = method_settings(name, "smoke", steps=3)
    assert done.steps == 3 and done.images == 3*s.batch_size and all(np.isfinite(v) for r in done.log for v
                                                                     in r.values())
    with torch.no_grad(): assert done.model.encode_image(torch.rand(2, 3, 64, 32)).shape == (2, done.model.dim)


def test_the_objective_of_each_method(table):
    "The terms that are logged are those that the method names"
    want = dict(bot={"id_loss", "triplet_loss"}, softmax={"id_loss"}, center={"id_loss", "triplet_loss", "center_loss"},
                circle={"id_loss", "circle_loss"}, agw={"id_loss", "weighted_loss"}, md={"id_loss", "triplet_loss",
                                                                                         "md_loss"},
                mg={"id_loss", "triplet_loss"}, dmg={"id_loss", "triplet_loss", "md_loss"},
                mldg={"id_loss", "triplet_loss", "support_loss"})
    for name, terms in want.items():
        log = train_method(table, dict(name=name, steps=2), "smoke").log
        assert {k for k in log[-1] if k.endswith("_loss")} == terms, name


def test_keys_tell_methods_apart(table):
    "No two methods could be taken for each other in one folder"
    key = lambda n, **kw: json.dumps(reid_key(table, method_settings(n, "smoke"), 0, how_of(n, **kw)), sort_keys=True)
    keys = [key(n) for n in METHODS] + [key("dmg", second_order=True), key("dmg", inner_lr=.1),
                                        key("dmg", virtual_cams=True)]
    assert len(set(keys)) == len(keys)


def test_equal_steps_and_equal_images():
    images = {n: (s := method_settings(n)).steps*s.batch_size for n in METHODS}
    assert {images[n] for n in ("bot_double", "bot_long", "halves", "md", "mg", "dmg")} == {2*images["bot"]}
    assert method_settings("dmg").steps == method_settings("bot").steps
    paper = method_settings("dmg", "paper")
    assert (paper.batch_size, paper.epochs, paper.lr, paper.optimiser, paper.schedule) == (128, 120, 3.5e-4, "adam",
                                                                                           "bot")
    assert all(method_settings(n, "paper").lr == 3.5e-4 for n in METHODS)       # rates of their own are of the World


def test_settings_reach_what_they_name():
    how = how_of("dmg", 2, second_order=True, inner_lr=.5, virtual_cams=True, tries=3)
    step = how.strategy()
    assert isinstance(step, DMGStep) and (step.second_order, step.inner_lr, step.md) == (True, .5, 1.)
    assert isinstance(how.sampler, CameraHalves)
    assert (how.sampler.k, how.sampler.virtual_cams, how.sampler.tries) == (2, True, 3)
    mldg, reptile = how_of("mldg").strategy(), how_of("reptile", eps=.2, run=7, column="cam")
    assert (mldg.md, mldg.support, mldg.second_order) == (0., 1., True)
    assert isinstance(reptile.sampler, DomainRuns) and (reptile.sampler.column, reptile.sampler.run) == ("cam", 7)
    assert (reptile.strategy().eps_fast, reptile.strategy().iters) == (.2, 7)
    assert how_of("md").strategy().virtual is False and how_of("mg").strategy().md == 0.
    name, step, train, world = sort_setting(dict(name="mg", md=.5, steps=7, lr=.1, cams=5, severity=(.1, .2)))
    assert (name, step, train, world) == ("mg", dict(md=.5), dict(steps=7, lr=.1), dict(cams=5, severity=(.1, .2)))


@pytest.mark.parametrize("bad, message", [
    (lambda: how_of("dgm"), "method='dgm'"), (lambda: how_of("bot", inner_lr=1.), "inner_lr"),
    (lambda: sort_setting(dict(name="dmg", inner_rate=1.)), "Did you mean 'inner_lr'"),
    (lambda: method_settings("dmg", "quik"), "Did you mean 'quick'"), (lambda: method_settings("dmg", stepz=1),
                                                                       "Did you mean 'steps'"),
    (lambda: load_abc("smoke", manifest="a.csv", cams=3), "\\['cams'\\] describe the World"),
    (lambda: run_method(dict(name="bot"), "quick", seed=503), "was trained on already")])
def test_wrong_settings(bad, message):
    with pytest.raises(ValueError, match=message): bad()


def test_studies():
    printed = [p for s in STUDIES.values() for p in s.printed]
    assert {"Table 4", "Table 6"} <= set(printed) and len(printed) == len(set(printed))
    for study in STUDIES.values():
        names = [label(s, TITLES) for s in study.settings]
        assert len(set(names)) == len(names) and len({run_folder(s, 0) for s in study.settings}) == len(names)
        for s in study.settings: sort_setting(s)
    methods = {m for t in ("4", "6") for m in published_table("dmg", t).method}
    assert {p for m in METHODS.values() for p in m.published} == methods - {"DFLNet"}


def test_scores_are_those_of_the_protocol(table):
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=4, size=(64, 32)).eval()
    found = score_tests(model, subset_cases(table))
    for subset, (q, g) in subset_cases(table).items():
        assert (q["subset"] == subset).all() and not set(q["path"]) & set(g["path"])
        a, b = (embed_images(model, t, quiet=True) for t in (q, g))
        sim = a.emb @ b.emb.T
        hits = []
        for i in range(len(a)):     # one query at a time: the same person under the same camera does not count
            keep = ~((b.pid == a.pid[i]) & (b.cam == a.cam[i]))
            hits.append(b.pid[keep][sim[i][torch.from_numpy(keep)].argmax()] == a.pid[i])
        assert found[subset]["R1"] == pytest.approx(100*np.mean(hits)) and found[subset]["n_query"] == len(q)
    assert not set(table.where(split="train")["pid"]) & {p for q, g in subset_cases(table).values() for p in g["pid"]}


def test_statistics_of_test_cameras_use_no_queries(table):
    "CBN estimates from gallery images, so that a query's score does not depend on other queries"
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=4, size=(64, 32)).eval()
    q, g = subset_cases(table)["test-b"]
    half = q.take(np.arange(0, len(q), 2))
    whole, part = (score_tests(model, {"test-b": (t, g)}, cameras=True)["test-b"] for t in (q, half))
    assert part["n_query"] < whole["n_query"]
    common = score_tests(model, {"test-b": (q, g)})["test-b"]
    assert common["mAP"] != whole["mAP"]


def test_a_run_goes_on_and_keeps_what_the_figures_read(table, tmp_path):
    setting = dict(name="dmg", steps=3)
    first = run_method(setting, "smoke", keep=tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    again = run_method(setting, "smoke", keep=tmp_path)
    assert [{k: r[k] for k in KEYS} for r in first] == [{k: r[k] for k in KEYS} for r in again] and len(before) >= 1
    assert {r["subset"] for r in first} == {"test-a", "test-b", "test-c"} and first[0]["variant"] == "DMG-Net, steps=3"
    folder = tmp_path / run_folder(setting, 0)
    assert {p.name for p in folder.iterdir()} >= {f"{s}-{x}" for s in ("test-a", "test-b",
                                                                       "test-c") for x in ("queries", "gallery")}
    with pytest.raises(ValueError, match="steps"): run_method(dict(name="dmg", steps=3), "smoke", keep=tmp_path,
                                                              train=dict(lr=.5))


def test_own_images_from_a_manifest(table, tmp_path):
    "The World written as files with a manifest gives the scores of the table that it was read from"
    some = table.where(subset=["train", "test-b"])
    names = [f"{i:05d}.png" for i in range(len(some))]
    from PIL import Image
    (tmp_path / "images").mkdir()
    for i, n in enumerate(names): Image.fromarray(some.image(i)).save(tmp_path / "images" / n)
    listed = some._with(some.frame.assign(path=[f"images/{n}" for n in names]))
    write_manifest(listed, tmp_path / "people.csv")
    rows = run_method(dict(name="md", steps=3), "smoke", manifest=str(tmp_path / "people.csv"), root=str(tmp_path),
                      subsets=("test-b",))
    own = run_method(dict(name="md", steps=3), "smoke", subsets=("test-b",))
    assert rows[0]["n_query"] == own[0]["n_query"] and abs(rows[0]["mAP"] - own[0]["mAP"]) < 8
    assert set(subset_cases(load_abc(manifest=str(tmp_path / "people.csv"), root=str(tmp_path)))) == {"test-b"}
    with pytest.raises(ValueError, match="test-a"): abc_case(load_abc(manifest=str(tmp_path / "people.csv"),
                                                                      root=str(tmp_path)), "test-a")


def test_presets_hold_together():
    assert set(DMG_PRESETS) == {"smoke", "quick", "full", "paper"}
    with pytest.raises(ValueError): method_settings("dmg",
                                                    "full").start        # a start from random numbers must be asked for
    assert method_settings("dmg", "full", weights="none").start == "none"
