"""DMG-Net's recipe: every method trains, settings reach what they name, tests are scored as the protocol says."""
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from reid_lab.data.table import ReidTable
from reid_lab.datasets.protocols.dg_cases import KEYS, load_case, score_test
from reid_lab.datasets.protocols.dg_splits import TARGETS, world_abc, write_manifest
from reid_lab.meta.dmg import CameraHalves, DMGStep, DomainRuns
from reid_lab.models.zoo import create_model, list_models
from reid_lab.recipes.dmg import (
    METHODS,
    STUDIES,
    TITLES,
    method_settings,
    people_of,
    run_method,
    scheme_of,
    score_case,
    sort_setting,
    stored_row,
    train_method,
)
from reid_lab.recipes.reid import new_model, reid_key
from reid_lab.recipes.study import label, setting_folder
from reid_lab.results.published import published_table
from reid_lab.retrieval.embeddings import embed_images

TRAINED = [n for n in METHODS if n not in ("none", "start")]


@pytest.fixture(scope="module")
def case(): return load_case("world", "smoke", 0)


@pytest.mark.parametrize("name", TRAINED)
def test_every_method_trains(name, case):
    done = train_method(case.train, dict(name=name, steps=3), "smoke")
    s = method_settings(name, "smoke", steps=3)
    assert done.steps == 3 and done.images == 3*s.batch_size and all(np.isfinite(v) for r in done.log for v
                                                                     in r.values())
    with torch.no_grad(): assert done.model.encode_image(torch.rand(2, 3, 64, 32)).shape == (2, done.model.dim)


def test_the_objective_of_each_method(case):
    "The terms that are logged are those that the method names"
    want = dict(bot={"id_loss", "triplet_loss"}, softmax={"id_loss"}, center={"id_loss", "triplet_loss", "center_loss"},
                circle={"id_loss", "circle_loss"}, agw={"id_loss", "weighted_loss"}, md={"id_loss", "triplet_loss",
                                                                                         "md_loss"},
                mg={"id_loss", "triplet_loss"}, dmg={"id_loss", "triplet_loss", "md_loss"},
                mldg={"id_loss", "triplet_loss", "support_loss"})
    for name, terms in want.items():
        log = train_method(case.train, dict(name=name, steps=2), "smoke").log
        assert {k for k in log[-1] if k.endswith("_loss")} == terms, name


def test_keys_tell_methods_apart(case):
    "No two methods could be taken for each other in one folder"
    key = lambda n, **kw: json.dumps(reid_key(case.train, method_settings(n, "smoke"), 0, scheme_of(n, **kw)),
                                     sort_keys=True)
    keys = [key(n) for n in TRAINED] + [key("dmg", second_order=True), key("dmg", inner_lr=.1),
                                        key("dmg", virtual_cams=True)]
    assert len(set(keys)) == len(keys)


def test_equal_steps_and_equal_images():
    images = {n: (s := method_settings(n)).steps*s.batch_size for n in TRAINED}
    assert {images[n] for n in ("bot_double", "bot_long", "halves", "md", "mg", "dmg")} == {2*images["bot"]}
    assert method_settings("dmg").steps == method_settings("bot").steps
    paper = method_settings("dmg", "paper")
    assert (paper.batch_size, paper.epochs, paper.lr, paper.optimiser, paper.schedule) == (128, 120, 3.5e-4, "adam",
                                                                                           "bot")
    assert all(method_settings(n, "paper").lr == 3.5e-4 for n in TRAINED)       # rates of their own are of the World


def test_the_start_alone_is_not_trained(case, tmp_path):
    "Its scores are those of the weights that every method begins with, and the same again from the folder"
    setting = dict(name="start")
    done = train_method(case.train, setting, "smoke", 3)
    torch.manual_seed(3)
    first = new_model(case.train, method_settings("start", "smoke"))
    assert all(torch.equal(v, done.model.state_dict()[k]) for k, v in first.state_dict().items())
    assert done.cost == dict(images_seen=0, train_s=0., start="none")
    a, b = (run_method(setting, "smoke", 3, keep=tmp_path) for _ in range(2))
    assert [r["mAP"] for r in a] == [r["mAP"] for r in b]
    paper = method_settings("start", "paper", weights="none")
    assert paper.steps == paper.epochs == 0


def test_rates_by_method_and_start():
    "A method's own rate is that of the start, only where rates were searched, and never of a rate that was given"
    for name in TRAINED:
        m, base = METHODS[name], method_settings("bot").lr / METHODS["bot"].lr_mult
        assert method_settings(name).lr == pytest.approx(base*m.lr_mult)
        assert method_settings(name, weights="none").lr == pytest.approx(base*m.scratch_mult)
        assert method_settings(name, lr=.01).lr == .01
    other = method_settings("dmg", model="clip_reid_tiny")      # brings its own settings of that preset
    assert (other.prompt_epochs, dict(other.model_kw)["w_id"], other.steps) == (10, 1., 300)


def test_a_set_with_one_camera_takes_part_and_the_row_says_so(case):
    "Else Mixed A trains on no image of CUHK-SYSU"
    f = case.train.frame.assign(dataset=np.where(case.train.frame.pid % 2, "several", "one"))
    f.loc[f.dataset == "one", "cam"] = f.cam.max() + 1
    joined = ReidTable(f, case.train.root, case.train.reader, "joined")
    lost = f.pid[(f.dataset == "one") & (f.split == "train")].nunique()
    assert people_of(scheme_of("dmg", 2), joined) == dict(virtual_sets="one")
    assert people_of(scheme_of("dmg", 2, virtual_cams=False), joined) == dict(left_out=lost)
    assert people_of(scheme_of("bot"), joined) == people_of(scheme_of("dmg", 2), case.train) == {}
    key = train_method(joined, dict(name="dmg", steps=1), "smoke").key
    assert ["virtual_sets", "one"] in [list(x) for x in key["scheme"].items()]     # tells it from one of another rule
    about = dict(images_seen=64, seed=0, train_s=1., test="a", splits=1, n_query=3, model="bot_tiny")
    row = dict(dict.fromkeys(KEYS, 0.), **about, virtual_sets="one", left_out=float("nan"))
    stored = stored_row(row, dict(name="dmg"), "smoke", "joined", "joined")
    assert stored["virtual_sets"] == "one" and "left_out" not in stored


def test_settings_reach_what_they_name():
    scheme = scheme_of("dmg", 2, second_order=True, inner_lr=.5, virtual_cams=True, tries=3)
    step = scheme.strategy()
    assert isinstance(step, DMGStep) and (step.second_order, step.inner_lr, step.md) == (True, .5, 1.)
    assert isinstance(scheme.sampler, CameraHalves)
    assert (scheme.sampler.k, scheme.sampler.virtual_cams, scheme.sampler.tries) == (2, True, 3)
    mldg, reptile = scheme_of("mldg").strategy(), scheme_of("reptile", eps=.2, run=7, column="cam")
    assert (mldg.md, mldg.support, mldg.second_order) == (0., 1., True)
    assert isinstance(reptile.sampler, DomainRuns) and (reptile.sampler.column, reptile.sampler.run) == ("cam", 7)
    assert (reptile.strategy().eps_fast, reptile.strategy().iters) == (.2, 7)
    assert scheme_of("md").strategy().virtual is False and scheme_of("mg").strategy().md == 0.
    name, step, train, world = sort_setting(dict(name="mg", md=.5, steps=7, lr=.1, cams=5, severity=(.1, .2)))
    assert (name, step, train, world) == ("mg", dict(md=.5), dict(steps=7, lr=.1), dict(cams=5, severity=(.1, .2)))


@pytest.mark.parametrize("bad, message", [
    (lambda: scheme_of("dgm"), "method='dgm'"), (lambda: scheme_of("bot", inner_lr=1.), "inner_lr"),
    (lambda: sort_setting(dict(name="dmg", inner_rate=1.)), "Did you mean 'inner_lr'"),
    (lambda: method_settings("dmg", "quik"), "Did you mean 'quick'"), (lambda: method_settings("dmg", stepz=1),
                                                                       "Did you mean 'steps'"),
    (lambda: run_method(dict(name="bot", cams=3), "smoke", dataset="mixed world"), "\\['cams'\\] describe the World"),
    (lambda: method_settings("dmg", "smoke", model="frozen"), "method='none' goes with a control"),
    (lambda: method_settings("none", "smoke"), "model='bot_tiny' is trained"),
    (lambda: method_settings("start", "smoke", steps=5), "steps=5, but method='start' is not trained"),
    (lambda: run_method(dict(name="bot"), "quick", seed=0, dataset="mixed wrld"), "Did you mean 'mixed world'"),
    (lambda: run_method(dict(name="bot"), "quick", seed=503), "was trained on already")])
def test_wrong_settings(bad, message):
    with pytest.raises(ValueError, match=message): bad()


def test_studies():
    printed = [p for s in STUDIES.values() for p in s.printed]
    assert {"Table 4", "Table 6"} <= set(printed) and len(printed) == len(set(printed))
    for study in STUDIES.values():
        names = [label(s, TITLES) for s in study.settings]
        assert len(set(names)) == len(names) and len({setting_folder(s, 0) for s in study.settings}) == len(names)
        for s in study.settings: sort_setting(s)
    methods = {m for t in ("4", "6") for m in published_table("dmg", t).method}
    assert {p for m in METHODS.values() for p in m.published} == methods - {"DFLNet"}


def test_scores_are_those_of_the_protocol(case):
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=4, size=(64, 32)).eval()
    found = score_case(model, case)
    for name, test in case.tests.items():
        q, g = test.tasks[0].q, test.tasks[0].g
        assert not set(q["path"]) & set(g["path"]) and len(test.images) == len(q) + len(g)
        a, b = (embed_images(model, t, quiet=True) for t in (q, g))
        sim, hits = a.emb @ b.emb.T, []
        for i in range(len(a)):     # one query at a time: the same person under the same camera does not count
            keep = ~((b.pid == a.pid[i]) & (b.cam == a.cam[i]))
            hits.append(b.pid[keep][sim[i][torch.from_numpy(keep)].argmax()] == a.pid[i])
        assert found[name]["R1"] == pytest.approx(100*np.mean(hits)) and found[name]["n_query"] == len(q)
    assert not set(case.train["pid"]) & {p for t in case.tests.values() for p in t.images["pid"]}


def test_statistics_of_test_cameras_use_no_queries(case):
    "CBN estimates from gallery images, so that a query's score does not depend on other queries"
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=4, size=(64, 32)).eval()
    test = case.tests["test-b"]
    task = test.tasks[0]
    def score(rows):
        "mAP of some queries of the test"
        part = replace(test, tasks=(replace(task, q=task.q.take(np.asarray(rows))),))
        return score_case(model, replace(case, tests=dict(t=part)), cameras=True)["t"]
    n = len(task.q)
    one_by_one = [score([i])["mAP"] for i in range(n)]
    for rows in (range(n), range(0, n, 2)):
        assert score(rows)["mAP"] == pytest.approx(np.mean([one_by_one[i] for i in rows]), abs=1e-3)
    assert score_test(model, test)[0]["mAP"] != score(range(n))["mAP"]


def test_a_run_goes_on_and_keeps_what_the_figures_read(tmp_path):
    setting = dict(name="dmg", steps=3)
    first = run_method(setting, "smoke", keep=tmp_path)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    again = run_method(setting, "smoke", keep=tmp_path)
    assert [{k: r[k] for k in KEYS} for r in first] == [{k: r[k] for k in KEYS} for r in again] and len(before) >= 1
    assert {r["test"] for r in first} == {"test-a", "test-b", "test-c"} and first[0]["variant"] == "DMG-Net, steps=3"
    kept = {p.name for p in (tmp_path / setting_folder(setting, 0)).iterdir()}
    assert kept >= {f"{s}-{x}" for s in ("test-a", "test-b", "test-c") for x in ("queries", "gallery")}
    with pytest.raises(ValueError, match="lr"): run_method(setting, "smoke", keep=tmp_path, train=dict(lr=.5))


def write_world(table, folder):
    "Images as files beside a manifest"
    from PIL import Image
    names = [f"images/{i:05d}.png" for i in range(len(table))]
    (folder / "images").mkdir(parents=True)
    for i, n in enumerate(names): Image.fromarray(table.image(i)).save(folder / n)
    write_manifest(table._with(table.frame.assign(path=names)), folder / "people.csv")
    return str(folder / "people.csv")


def test_own_images_from_a_manifest(case, tmp_path):
    "The World written as files with a manifest gives the tests of the table that it was read from"
    some = world_abc("smoke", 0).where(subset=["train", "test-b"])
    path = write_world(some, tmp_path)
    own, theirs = load_case(path, root=str(tmp_path)), case.tests["test-b"]
    assert set(own.tests) == {"test-b"} and len(own.train) == len(case.train)
    assert sorted(own.tests["test-b"].tasks[0].q["pid"]) == sorted(theirs.tasks[0].q["pid"])
    row, = run_method(dict(name="md", steps=3), "smoke", dataset=path, root=str(tmp_path))
    same, = (r for r in run_method(dict(name="md", steps=3), "smoke") if r["test"] == "test-b")
    assert [row[k] for k in ("n_query", "mAP", "R1")] == [same[k] for k in ("n_query", "mAP", "R1")]
    with pytest.raises(ValueError, match="test-a"): load_case(path, root=str(tmp_path), subsets=["test-a"])


def test_joined_and_single_sets():
    mixed = run_method(dict(name="dmg", steps=3), "smoke", dataset="mixed world")
    assert [r["test"] for r in mixed] == [*TARGETS] and {r["splits"] for r in mixed} == {10}
    single = run_method(dict(name="bot", steps=3, dataset="world-1->world-2, world-1"), "smoke")
    assert [r["test"] for r in single] == ["world-2", "world-1"] and {r["splits"] for r in single} == {1}


def test_worlds_of_every_case_are_checked_against_the_start():
    "A case whose second World is that of the shipped weights is refused"
    for dataset, seed in (("world", 500), ("mixed world", 500), ("world-1->world-2", 501), ("world-1->world-1", 502)):
        with pytest.raises(ValueError, match="was trained on already"):
            run_method(dict(name="bot"), "quick", seed=seed, dataset=dataset)


@pytest.mark.parametrize("name", list_models("tiny", reads="images"))
def test_any_image_model(name, case):
    row, = (r for r in run_method(dict(name="dmg", steps=2), "smoke", train=dict(model=name)) if r["test"] == "test-a")
    assert row["model"] == name and row["images_seen"] == 2*method_settings("dmg", "smoke").batch_size


def test_presets_hold_together():
    for preset in ("smoke", "quick"): assert method_settings("dmg", preset).start
    with pytest.raises(ValueError): method_settings("dmg", "full").start    # a start from random numbers is asked for
    with pytest.raises(ValueError, match="preset='fast'"): method_settings("dmg", "fast")
    assert method_settings("dmg", "full", weights="none").start == "none"
