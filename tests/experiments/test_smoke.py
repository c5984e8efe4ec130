"""Every experiment runs through papermill at preset=smoke, as a user would run it, and leaves what it promises."""
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from helpers.figures import Watched
from helpers.notebooks import saved
from nbclient import NotebookClient
from papermill.exceptions import PapermillExecutionError

from reid_lab.analysis.bias.verdict import in_words
from reid_lab.data.table import ReidTable
from reid_lab.datasets.aerial import cross_view
from reid_lab.datasets.cross_set import build_cross_set
from reid_lab.datasets.export import export_world
from reid_lab.datasets.protocols.dg_splits import TARGETS, world_abc, write_manifest
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.experiments.notebooks import experiments, run_notebook
from reid_lab.experiments.run import git_commit
from reid_lab.models.weights.shipped import card_for
from reid_lab.recipes import camel_settings as camel, cfam, cfan, conditions, dart3, dmg
from reid_lab.recipes.study import settings_frame
from reid_lab.results.conclusions import comparisons, conclusions, recorded_row
from reid_lab.results.endings import PLUMBING, RunEnd, end_lines
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.world.plan import reid_groups
from reid_lab.world.world import World

pytestmark = pytest.mark.whole

ROOT = Path(__file__).resolve().parents[2]
CAMEL = ["main", "ablation", "k", "transfer", "attention", "samples"]
DART3 = ["main", "ablation", "k_tau", "fig5", "samples", "cameras", "noise", "settings"]
DMG = ["main", "inner", "scratch_rates", "regimes", "transfer", "mixed", "scenes"]
CFAM = ["main", "rates"]
CFAN = ["main", "rates", "bridges", "queries", "triplets"]
CONDITIONS = [name for name, study in conditions.STUDIES.items() if not study.chooses]
assert set(CFAM) < set(cfam.STUDIES) and set(CAMEL) < set(camel.STUDIES)
assert set(DART3) < set(dart3.STUDIES) and set(DMG) < set(dmg.STUDIES) and set(CFAN) < set(cfan.STUDIES)


def first_and_further(studies):
    "Cases: each check runs the first study of an experiment, `make test-studies` the others"
    first, *others = studies
    return [first, *(pytest.param(study, marks=pytest.mark.study) for study in others)]


@pytest.fixture(autouse=True)
def own_results(tmp_path, monkeypatch):
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path / "runs.csv"))


@pytest.fixture(autouse=True)
def texts_of_figures(tmp_path, monkeypatch):
    "Every figure that an experiment leaves was looked at: its texts are on the canvas and apart"
    watched = Watched(tmp_path, monkeypatch)
    yield
    seen, left = watched.figures(), {path.stem for path in tmp_path.rglob("figures/*.png")}
    assert left <= set(seen), f"not looked at: {sorted(left - set(seen))}"
    assert {name: faults for name, faults in seen.items() if faults} == {}


def smoke(name, study, tmp_path, **kw):
    "Run it; what every experiment leaves"
    os.environ["REID_LAB_RESULTS"] = str(tmp_path / "runs.csv")   # own_results puts back what was there
    done = run_notebook(name, tmp_path / "run", preset="smoke", study=study, **kw)
    assert done.metrics["status"] == "finished" and done.metrics["params"]["study"] == study
    assert done.rows and all(0 <= r["R1"] <= 100 and 0 <= r["mAP"] <= 100 for r in done.rows)
    stored = pd.read_csv(tmp_path / "runs.csv")
    assert len(stored) == len(done.rows) and (stored.preset == "smoke").all()
    assert stored.commit.notna().all() or not git_commit()   # a copy without git has none
    # these have seen nothing here
    untrained = ("^start$|Start alone.*(?:zeroshot|indomain|test-|coarse|medium|fine$|aerial$|llcm|ltcc|occluded-|"
                 "duke-video)")
    trained = ~stored.variant.str.contains(untrained)
    assert ((stored.images_seen > 0) == trained).all() and set(stored.selection) <= {"last step", "val mAP", "none"}
    outputs = nbformat.read(done.path, 4).cells[-1].outputs
    shown = "".join(o.data.get("text/markdown", "") for o in outputs if "data" in o)
    end = RunEnd.from_dict(done.metrics["ending"])
    settings = {(r["method"], json.dumps(r["options"])) for r in done.metrics["rows"]}
    assert end.plumbing and PLUMBING in end.sentence and PLUMBING in shown and "gain" not in shown and "**" not in shown
    assert {row.variant for row in end.rows} & {"chance", "untrained start"} and len(end.rows) > len(settings)
    assert len(end_lines(end)) <= 18 and all((done.folder / name).is_file() for name in end.figures)
    told = conclusions(map(recorded_row, done.metrics["rows"]))
    assert told or len(settings) == 1      # one setting: nothing to compare
    figures = done.folder / "figures"
    return done, {p.name for p in figures.iterdir()} if figures.exists() else set()


def by_papermill(name, tmp_path, **parameters):
    "Run by the plain command at preset=smoke; the notebook that it saves"
    out, given = tmp_path / "out.ipynb", dict(preset="smoke", out_dir=tmp_path / "run", **parameters)
    cmd = [sys.executable, "-m", "papermill", str(ROOT / f"nbs/experiments/{name}.ipynb"), str(out),
           *(str(x) for k, v in given.items() for x in ("-p", k, v)), "--no-progress-bar", "-k", "python3"]
    done = subprocess.run(cmd, capture_output=True, text=True, cwd=tmp_path,
                          env=dict(os.environ, IPYTHONDIR=str(tmp_path / "ipython")))
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_no_experiment_is_left_out(tmp_path):
    "An experiment without a test of its own here runs its first study"
    found = experiments()
    tested = {"attention_maps", "camel", "camera_bias", "caption_cot", "cfam", "cfan", "conditions", "dart3", "dmg",
              "failure_browser", "finetune", "marked_search", "text_granularity", "word_masking"}
    assert tested <= set(found)
    for name in set(found) - tested:
        smoke(f"run_{name}", next(iter(found[name].studies)), tmp_path / name)


@pytest.mark.parametrize("study", first_and_further(CAMEL))
def test_camel(study, tmp_path):
    done, figures = smoke("run_camel", study, tmp_path)
    assert {r["dataset"] for r in done.rows} == {"world (source)", "world-smoke"}
    trained = {f"camel_{study}_training.{x}" for x in ("pdf", "png")}
    assert trained <= figures if study != "samples" else figures == {f"camel_samples_pairs.{x}" for x in ("pdf", "png")}
    if study == "attention": assert {"camel_attention_word_maps.pdf", "camel_attention_person_maps.png"} <= figures
    if study == "main":
        assert {"camel_main_ranked_lists.pdf", "camel_main_masking.pdf", "camel_main_masked_lists.pdf"} <= figures
        q = Embeddings.load(done.folder / "models" / "camel-0" / "finetuned-queries")
        assert len(q) == 400 and q.caption is not None


@pytest.mark.parametrize("study", first_and_further(DART3))
def test_dart3(study, tmp_path):
    done, figures = smoke("run_dart3", study, tmp_path, **(dict(seeds=2) if study == "ablation" else {}))
    assert {r["dataset"] for r in done.rows} == {"world-smoke-skew"}
    expected = dict(main="dart3_map_cam.pdf", ablation="dart3_ablation_skew_vs_norm.pdf", noise="dart3_noise_hits.pdf",
                    cameras="dart3_cameras_cameras.png")
    if study == "fig5": assert {f"dart3_{part}_skew.pdf" for part in ("k_tau_dart3", "steps", "grounding")} <= figures
    else: assert expected.get(study, f"dart3_{study}_skew.pdf") in figures
    stored = pd.read_csv(tmp_path / "runs.csv")
    known = settings_frame(dart3.STUDIES[study]).set_index("variant")
    for r in stored.itertuples():   # settings are columns of the row
        told = json.loads(r.parameters)
        assert told["method"] == known.method[r.variant]
        assert all(told[k] == v for k, v in known.loc[r.variant].dropna().items() if k != "method")
    if study == "settings": assert set(pd.read_csv(tmp_path / "runs.csv").seed) == {1000}   # never on a test World
    seeds = {p.name for p in (done.folder / "models").iterdir()}
    assert len(seeds) == (2 if study == "ablation" else 1)
    assert len(Embeddings.load(done.folder / "models" / min(seeds) / "queries"))


@pytest.mark.parametrize("study", first_and_further(CONDITIONS))
def test_conditions(study, tmp_path):
    "Every comparison, over two seeds: tables and pairs by each protocol, with chance above them"
    done, figures = smoke("run_conditions", study, tmp_path, seeds=2)
    compared = conditions.STUDIES[study]
    assert {r["dataset"] for r in done.rows} == {f"world-smoke-{study} {name}" for name in compared.protocols}
    assert len(done.rows) == 2*len(compared.settings)*len(compared.protocols)
    for protocol in compared.protocols:
        table = pd.read_csv(done.folder / f"table_{protocol}.csv")
        titles = table.variant.str.removeprefix("'")     # which keeps a plus from spreadsheets
        assert list(titles) == ["chance", *compared.titles.values()]
        for base in compared.bases: assert (done.folder / f"pairs_{protocol}_{base}.csv").is_file()
    assert f"conditions_{study}_{compared.protocols[0]}_vs_{compared.bases[0]}.pdf" in figures


def test_dart3_with_one_method(tmp_path):
    "A study without its base: its settings are compared with the first of them, whatever their labels end in"
    done, figures = smoke("run_dart3", "steps", tmp_path, methods="DART3", seeds=2)
    base, *others = [r["variant"] for r in done.metrics["rows"] if r["seed"] == 0]
    assert base == "DART3, episodic=False, steps=1" and len(others) == 7 and "dart3_steps_skew.pdf" in figures
    found = comparisons(map(recorded_row, done.metrics["rows"]))
    assert [(p.a, p.b) for _, p in found] == [(base, other) for other in others]
    assert all(r["stage"] == "" and r["options"].keys() == {"episodic", "steps"} for r in done.metrics["rows"])


@pytest.mark.parametrize("study", first_and_further(DMG))
def test_dmg(study, tmp_path):
    chooses = dmg.STUDIES[study].chooses
    done, figures = smoke("run_dmg", study, tmp_path, **(dict(seeds=2) if study == "main" else {}))
    tests = {"mixed": list(TARGETS), "transfer": ["world-1", "world-2", "world-3"]}.get(
        study, ["val" if chooses else "test-a", "test-b", "test-c"])
    assert {r["dataset"] for r in done.rows} == {f"world-smoke {t}" for t in tests}
    stored = pd.read_csv(tmp_path / "runs.csv")
    seeds = {1000} if chooses else {0, 1} if study == "main" else {0}     # settings: a validation World
    assert set(stored.seed) == seeds and len(stored) == len(seeds)*len(tests)*len(dmg.STUDIES[study].settings)
    known = settings_frame(dmg.STUDIES[study], dmg.TITLES).set_index("variant")
    for r in stored.itertuples():   # settings are columns of the row
        told = json.loads(r.parameters)
        assert told["method"] == known.method[told["setting"]]
        assert r.variant.lstrip("'") == f"{told['setting']}, {told['test']}"
        own = known.loc[told["setting"]].dropna().drop(["method", "dataset"], errors="ignore")
        assert all(told[k] == (list(v) if isinstance(v, tuple) else v) for k, v in own.items())
    if study == "main":
        assert {"dmg_main_ranked_lists.pdf", "dmg_main_test-b_vs_bot.png",
                "dmg_main_test-c_vs_bot_2x_images.pdf"} <= figures
        images = stored.groupby(stored.parameters.map(lambda p: json.loads(p)["method"])).images_seen.max()
        assert images["dmg"] == images["bot_double"] == 2*images["bot"]
    if study == "inner": assert "dmg_inner_curve.pdf" in figures
    if study == "scenes": assert {f"dmg_scenes_{part}.pdf" for part in ("sets", "sites", "persons")} <= figures
    if study == "transfer": assert pd.read_csv(done.folder / "matrix.csv").shape == (3, 4)


@pytest.mark.parametrize("study", first_and_further(CFAN))
def test_cfan(study, tmp_path):
    kw = dict(methods="cfan") if study == "rates" else dict(seeds=2) if study == "bridges" else {}
    done, figures = smoke("run_cfan", study, tmp_path, **kw)
    stored, known = pd.read_csv(tmp_path / "runs.csv"), cfan.STUDIES[study]
    assert set(stored.dataset) == {"world-smoke-aerial"}
    assert set(stored.seed) == ({1000} if study == "rates" else {0, 1} if study == "bridges" else {0})
    told = stored.parameters.map(json.loads)
    assert len(stored) == (4 if study == "rates" else len(known.settings)*stored.seed.nunique())
    assert all(0 < t["gate_alpha"] < 1 for t in told if t["method"] in ("cda", "cfan"))
    assert all(abs(t["sight_image_before"]) <= 1 for t in told if "fta" in cfan.METHODS[t["method"]].losses)
    images = {t["method"]: n for t, n in zip(told, stored.images_seen)}
    if study == "main":
        assert images["start"] == 0 and images["direct"] < images["cfan"] <= images["direct_long"] == 2*images["direct"]
        names = ("triplets", "gate", "similarity_0", "similarity_7")
        assert {f"cfan_main_{n}.{x}" for n in names for x in ("pdf", "png")} <= figures
    if study == "triplets": assert {f"cfan_triplets_{n}.png" for n in ("triplets", "similarity_0")} <= figures
    if known.axes: assert f"cfan_{study}_curve_RSum.pdf" in figures
    if study == "bridges":
        assert images["alone"] < images["aerial"] < images["cfan"] and "cfan_bridges_paired.pdf" in figures
    assert not list(done.folder.glob("beside_table_*"))


def test_cfan_beside_the_paper(tmp_path):
    "A real set is searched; its published rows are shown, and why ours are not below them"
    table = cross_view(World("smoke", 3, task="aerial").table()).where(split=["train", "test"])
    export_world(table, "aeri-pedes", tmp_path / "AERI-PEDES")
    done, _ = smoke("run_cfan", "ground", tmp_path / "a", dataset="aeri-pedes", data_root=str(tmp_path))
    f = pd.read_csv(done.folder / "beside_table_2.csv")
    assert {*f.dataset} == {"AERI-PEDES"} and {*f.origin} == {"published"}      # fewer captions: not beside
    assert "Not beside the published rows: CFAN" in (done.folder / "run_cfan.ipynb").read_text()
    assert {r["dataset"] for r in done.rows} == {"aeri-pedes"} and len(done.rows) == 2


@pytest.mark.parametrize("study", first_and_further(CFAM))
def test_cfam(study, tmp_path):
    kw = dict(methods="cfam") if study == "rates" else dict(seeds=2)
    done, figures = smoke("run_cfam", study, tmp_path, **kw)
    tests, stored = dict(cfam.STUDIES[study].run)["tests"], pd.read_csv(tmp_path / "runs.csv")
    assert set(stored.dataset) == {f"world-smoke {t}" for t in tests}
    assert set(stored.seed) == ({1000} if study == "rates" else {0, 1})
    told = stored.parameters.map(json.loads)
    assert len(stored) == len(tests)*(4 if study == "rates" else 2*len(cfam.STUDIES[study].settings))
    assert all(t["losses"] == "gs+ls+m+cid" for t in told if "losses" in t)
    if study == "rates":
        assert {t["lr"] for t in told} == {6.25e-5, 1.25e-4, 2.5e-4, 5e-4} and "cfam_rates_curve.pdf" in figures
    else:
        assert {t["trained_on"] for t in told} == {"", "coarse", "fine"}
        names = ("matrix_cfam_mSD", "ranked_lists", "captions", "scores", "board", "images", "toy")
        assert {f"cfam_main_{n}.{x}" for n in names for x in ("pdf", "png")} <= figures
        assert not list(done.folder.glob("beside_table_*"))         # World scores are not put beside published ones
        each = pd.read_csv(done.folder / "models" / "cfam-train=fine-1" / "coarse-scores.csv")
        row = next(r for r in done.metrics["rows"] if (r["seed"], r["variant"]) == (1, "CFAM, train=fine, coarse"))
        assert len(each) == row["extra"]["n_query"] and 100*each.SD.mean() == pytest.approx(row["metrics"]["mSD"])
        matrix = pd.read_csv(done.folder / "matrix_cfam_mAP.csv")
        assert list(matrix.columns) == ["train", *tests] and list(matrix.train) == ["coarse", "fine"]


def test_cfam_captions_alone(tmp_path):
    "Tables 1 and 10 and the figures of captions need no training"
    done, figures = smoke("run_cfam", "captions", tmp_path)
    assert {f"cfam_captions_{n}.{x}" for n in ("captions", "board", "images") for x in ("pdf", "png")} == figures
    assert {r["images_seen"] for r in done.metrics["rows"]} == {0} and (done.folder/"captions.csv").exists()


def test_cfam_on_folders(tmp_path):
    "Tables 3, 5 and 8 on folders in the layouts of the published sets; a folder that is missing is named"
    for name, g in (("cuhk-pedes", "coarse"), ("ufine6926", "fine")):
        table = World("smoke", granularity=g).table().where(domain="real-like", split=["train", "test"])
        export_world(table, name, tmp_path / "data" / DATASETS[name].folder, renumber=True)
    own = dict(data_root=str(tmp_path / "data"), methods="cfam")
    done, figures = smoke("run_cfam", "within", tmp_path / "a", dataset="cuhk-pedes", seeds=2, **own)
    assert {r["dataset"] for r in done.rows} == {"cuhk-pedes"} and len(done.rows) == 2
    beside = pd.read_csv(done.folder / "beside_table_5.csv")
    assert set(beside.origin) == {"published"} and set(beside.dataset) == {"CUHK-PEDES"}    # fewer captions: not beside
    assert {"cfam_within_board.pdf", "cfam_within_ranked_lists.pdf", "cfam_within_captions.pdf"} <= figures
    case = "cuhk-pedes, ufine6926->ufine6926, cuhk-pedes"
    done, figures = smoke("run_cfam", "settings", tmp_path / "b", dataset=case, seeds=2, **own)
    assert {(r["extra"]["trained_on"], r["extra"]["test"]) for r in done.metrics["rows"]} == {
        (a, b) for a in ("cuhk-pedes", "ufine6926") for b in ("cuhk-pedes", "ufine6926")}
    assert pd.read_csv(done.folder / "matrix_cfam_R1.csv").shape == (2, 3)
    assert len(pd.read_csv(done.folder / "both_ways_cfam.csv")) == 3
    chosen = cfam.run_method(dict(name="gs", steps=2), "smoke", train_on="cuhk-pedes", tests=("cuhk-pedes",),
                             root=tmp_path / "data", split="val")       # rates are not chosen on the test split
    assert chosen[0]["split"] == "val" and 0 < chosen[0]["n_query"] < done.metrics["rows"][0]["extra"]["n_query"]
    with pytest.raises(ValueError, match="expected ICFG-PEDES"):
        run_notebook("run_cfam", tmp_path / "d", preset="smoke", study="table6", dataset="icfg-pedes", **own)


def test_cfam_trained_on_several_folders(tmp_path):
    "Table 2: four layouts on disk, three trainings, one cross set that all are searched with"
    table = World("smoke", granularity="fine").table().where(domain="real-like", split=["train", "test"])
    data, test = tmp_path / "data", table.where(split="test")
    for name in ("icfg-pedes", "rstpreid", "ufine6926"):
        export_world(table, name, data / DATASETS[name].folder, renumber=True)
    halves = {k: test.take((test["pid"] % 2 == i).to_numpy()) for i, k in enumerate("AB")}
    export_world(build_cross_set(halves, n_ids=3), "ufine3c", data / DATASETS["ufine3c"].folder)
    done, figures = smoke("run_cfam", "settings", tmp_path, dataset="icfg-pedes, rstpreid, ufine6926->ufine3c",
                          methods="cfam", data_root=str(data))
    assert {(r["extra"]["trained_on"], r["extra"]["test"]) for r in done.metrics["rows"]} == {
        (a, "ufine3c") for a in ("icfg-pedes", "rstpreid", "ufine6926")} and len(done.rows) == 3
    assert {r["dataset"] for r in done.rows} == {"ufine3c"}
    assert {r["extra"]["test_set"]["gallery"]["ids"] for r in done.metrics["rows"]} == {6}
    beside = {p.stem.rpartition("_")[2]: pd.read_csv(p) for p in done.folder.glob("beside_table_*")}
    assert set(beside) == {"2", "4"} and all(set(f.dataset) == {"UFine3C"} for f in beside.values())
    assert {"ICFG-PEDES", "RSTPReid", "UFine6926"} <= set(beside["2"].source)
    assert set(beside["4"].source) == {"UFine6926"}
    page = (done.folder / "run_cfam.ipynb").read_text(encoding="utf-8")     # a part of a test set: named, not beside
    assert page.count("Not beside the published rows: ") == 2 and "published: 2,250" in page
    matrix = pd.read_csv(done.folder / "matrix_cfam_R1.csv")
    assert list(matrix.columns) == ["train", "ufine3c"] and "cfam_settings_matrix_cfam_R1.pdf" in figures


def test_text_granularity(tmp_path):
    "Matrix, both ways, truncation and figures; every training sees the same number of pairs"
    done = run_notebook("text_granularity", tmp_path / "run", preset="smoke", seeds=2)
    levels = ["coarse", "medium", "fine", "mixed"]
    assert done.metrics["status"] == "finished" and len(done.rows) == 2*4*4
    assert {r["dataset"] for r in done.rows} == {f"world-smoke {t}" for t in levels}
    assert len({r["images_seen"] for r in done.metrics["rows"]}) == 1
    matrix = pd.read_csv(done.folder / "matrix_cfam_mSD.csv")
    assert list(matrix.train) == levels and list(matrix.columns) == ["train", *levels]
    gaps, cell = pd.read_csv(done.folder / "both_ways.csv"), matrix.set_index("train")
    assert len(gaps) == 6*3 and gaps.resolves.gt(0).all()
    row = gaps[(gaps.base == "coarse -> fine") & (gaps.metric == "mSD")].iloc[0]
    assert row.variant == "fine -> coarse"
    assert row["diff"] == pytest.approx(cell.coarse["fine"] - cell.fine["coarse"], abs=1e-6)
    cut = pd.read_csv(done.folder / "truncation.csv")
    assert set(cut.tokenizer) == {"of the model", "CLIP"} and set(cut.context) == {56, 77, 168}
    figures = {p.stem for p in (done.folder / "figures").iterdir()}
    names = ("matrix_cfam_R1", "captions", "lists_coarse", "scores_mixed", "granularities_words", "coarse")
    assert {f"granularity_{n}" for n in names} <= figures


@pytest.mark.parametrize("queries", ["text", "images"])
def test_failure_browser(queries, tmp_path):
    "Table of reasons, figures, and pages without a kernel; the saved notebook holds pictures and no widget"
    done = run_notebook("failure_browser", tmp_path / "run", preset="smoke", queries=queries)
    assert done.metrics["status"] == "finished" and [r["dataset"] for r in done.rows] == ["world-smoke"]
    reasons, worst = pd.read_csv(done.folder / "reasons.csv"), pd.read_csv(done.folder / "failures.csv")
    assert {"similar colours" if queries == "text" else "same colours", "occluded"} <= set(reasons.reason)
    assert worst.AP.is_monotonic_increasing and 0 < worst.failed.mean() < 1
    assert 100*(1 - worst.failed.mean()) == pytest.approx(done.rows[0]["R1"], abs=1e-3)
    names = {p.name for p in (done.folder / "figures").iterdir()}
    assert {f"failure_browser_{n}.{x}" for n in ("failures", "search") for x in ("pdf", "png")} <= names
    for page in ("failures.html", "search.html"):
        text = (done.folder / page).read_text(encoding="utf-8")
        assert "https:" not in text.split('<script type="text/plain"')[0] and "data:image/jpeg" in text
    assert len(saved(done.path)) >= 2


def test_failure_browser_of_a_run_from_the_command_line(tmp_path):
    "Plain papermill, Embeddings that a run kept, images in a folder of which one is lost"
    from PIL import Image
    table = World("smoke", seed=3, task="reid").table()
    rng = np.random.default_rng(0)
    for part in ("query", "gallery"):
        t = getattr(table, part)("test")
        emb = np.eye(500)[t.frame.pid % 500, :40] + rng.normal(size=(len(t), 40))
        e = Embeddings(emb.astype("f4"), t.frame.pid, t.frame.cam, path=[f"{part}/{i}.png" for i in range(len(t))])
        e.save(tmp_path / "old" / "models" / {"query": "queries"}.get(part, part))
        (tmp_path / "images" / part).mkdir(parents=True)
        for i in range(1, len(t)): Image.fromarray(t.image(i)).save(tmp_path / "images" / part / f"{i}.png")
    out = by_papermill("failure_browser", tmp_path, run=tmp_path / "old", images=tmp_path / "images")
    assert len(saved(out)) >= 2 and (tmp_path / "run" / "failures.html").exists()
    assert "same camera" in set(pd.read_csv(tmp_path / "run" / "reasons.csv").reason)


def test_camera_bias_from_the_command_line(tmp_path):
    "By papermill alone: a picture of the cockpit, a page, figures and a row for each method; then from files"
    out = by_papermill("camera_bias", tmp_path)
    metrics = json.loads((tmp_path / "run/metrics.json").read_text())
    assert metrics["status"] == "finished" and [r["variant"] for r in metrics["rows"]] == [
        "No adaptation", "Mean subtraction", "Norm", "DART3-LITE", "Norm without cameras"]
    assert all(0 < r["metrics"]["mAP"] <= 100 and r["dataset"].startswith("world") for r in metrics["rows"])
    figures = {p.name for p in (tmp_path / "run/figures").iterdir()}
    assert {f"camera_bias_{n}.pdf" for n in ("scores", "map", "pairs_before", "pairs_after", "sweep")} <= figures
    assert (tmp_path / "run/cockpit.html").read_text(encoding="utf-8").count('<div id="view-') == 5
    shown = [d for d in saved(out) if "CameraBars" in "".join(d.get("text/plain", ""))]
    assert len(shown) == 1 and set(shown[0]) == {"text/plain", "image/png"}


def says_what_bias_says(folder, e):
    "The end of `camera_bias` has the numbers and the verdict of the command `bias` on the same features"
    asked = np.arange(len(e)) % 5 == 0
    for name, rows in (("queries", asked), ("gallery", ~asked)): e[np.flatnonzero(rows)].save(folder / name)
    sides = dict(query=str(folder / "queries"), gallery=str(folder / "gallery"))
    done = run_notebook("camera_bias", folder / "run", preset="smoke", **sides)
    command = [sys.executable, "-m", "reid_lab", "bias", str(folder / "queries"), str(folder / "gallery"), "--json"]
    bias = subprocess.run(command, capture_output=True, text=True, check=True)
    told, end = json.loads(bias.stdout), RunEnd.from_dict(done.metrics["ending"])
    assert end.sentence == told["advice"][0] and not end.plumbing
    rows = [row for row in end.rows if row.compared]
    assert [row.variant for row in rows] == [in_words((r["method"], r["distance"])) for r in told["summary"]]
    for row, r in zip(rows, told["summary"]):
        assert row.scores == pytest.approx(dict(mAP=r["mAP"], R1=r["R1"], nmi_camera=r["nmi_camera"]))
        gain = [r[k] for k in ("gain", "low", "high") if isinstance(r[k], float)]
        assert row.gain == pytest.approx(tuple(gain))
    nmi = {r["variant"]: r["metrics"]["nmi_camera"] for r in done.metrics["rows"]}
    assert nmi == pytest.approx({r["method"]: r["nmi_camera"] for r in told["summary"]})


def test_camera_bias_of_files(tmp_path):
    "Features of a run and of any program; one camera is a sentence, not a traceback"
    rng, pid, cam = np.random.default_rng(0), np.arange(60) % 12, np.arange(60) % 3
    emb = rng.normal(size=(12, 8))[pid] + rng.normal(size=(3, 8))[cam] + rng.normal(size=(60, 8))
    e = Embeddings(emb.astype("float32"), pid, cam)
    folder = tmp_path / "earlier" / "models" / "seed-0"
    for name, part in (("queries", e[:20]), ("gallery", e[20:])): part.save(folder / name)
    done = run_notebook("camera_bias", tmp_path / "a", preset="smoke", run=str(tmp_path / "earlier"))
    assert done.metrics["status"] == "finished" and len(done.rows) == 5     # each person under one camera: no match
    assert "nmi_camera" in done.rows[0] and "mAP" not in done.rows[0]
    says_what_bias_says(tmp_path / "found", Embeddings(e.emb, pid, np.arange(60) // 12 % 3))
    for name, part in (("q", e[:20]), ("g", e[20:])):
        np.savez(tmp_path / f"{name}.npz", emb=part.emb.numpy(), cam=0*part.cam)
    own = dict(query=str(tmp_path / "q.npz"), gallery=str(tmp_path / "g.npz"))
    one = run_notebook("camera_bias", tmp_path / "b", preset="smoke", **own)
    assert one.metrics["status"] == "finished" and one.rows == [] and "single camera" in one.path.read_text()
    with pytest.raises(ValueError, match="need each other"):
        run_notebook("camera_bias", tmp_path / "c", preset="smoke", query=own["query"])


def test_camera_bias_of_a_draw_of_a_protocol(tmp_path):
    "Features without adaptation have the scores of the draw, in the rows and at the end"
    rng, pid, cam = np.random.default_rng(0), np.arange(96) % 4, np.arange(96)//4 % 6 + 1
    emb = np.random.default_rng(1).normal(size=(4, 8))[pid] + rng.normal(size=(96, 8))
    names = [f"cam{c}/{p:04}/{i:04}.jpg" for i, (c, p) in enumerate(zip(cam, pid))]
    e = Embeddings(emb.astype("float32"), pid, cam, names,
                   columns=dict(modality=np.where(np.isin(cam, (3, 6)), "infrared", "visible")))
    e.save(tmp_path / "features.npz")
    own = dict(query=str(tmp_path / "features.npz"), gallery=str(tmp_path / "features.npz"))
    done = run_notebook("camera_bias", tmp_path / "run", preset="smoke", protocol="sysu.all", draw=4, **own)
    want = retrieval_metrics(e, e, protocol="sysu.all").draws[4]
    first, end = done.metrics["rows"][0], RunEnd.from_dict(done.metrics["ending"])
    assert first["dataset"] == "features, protocol sysu.all, draw 4 of 0 to 9"
    assert first["metrics"]["mAP"] == pytest.approx(want["mAP"])
    assert end.rows[1].scores["mAP"] == pytest.approx(want["mAP"])


def test_marked_search(tmp_path):
    "Rounds of marks and further sentences as rows, beside the search without either"
    run_notebook("marked_search", tmp_path / "run", preset="smoke", marks=3)
    stored = json.loads((tmp_path / "run/metrics.json").read_text())["rows"]
    rows = pd.DataFrame([{**r["metrics"], **r["extra"], "variant": r["variant"]} for r in stored])
    rows = rows.set_index("variant")
    assert list(rows.index) == [f"{n} rounds of marks" for n in range(4)] + [
        f"{n} further sentences" for n in (1, 2, 3)]
    assert rows.gain.iloc[0] == 0 and (rows.marked.iloc[:4] == [0, 3, 6, 9]).all()
    assert (rows.mAP - rows.mAP.iloc[0] - rows.gain).abs().max() < 1e-6
    assert rows.people_rest.iloc[0] == 30 and rows.people_rest.iloc[:4].is_monotonic_decreasing


def test_all_cells_run_twice_in_one_kernel(tmp_path):
    "Run all, change a parameter, run all: results follow it, and rows of the first run stay as they were"
    path = experiments()["marked_search"].path
    nb = nbformat.read(path, 4)
    parameters = next(c for c in nb.cells if "parameters" in c.metadata.get("tags", []))

    def give(**values):
        for name, value in values.items():
            parameters.source, n = re.subn(rf"(?m)^{name} = [^#\n]*", f"{name} = {value!r} ", parameters.source)
            assert n == 1, name

    client = NotebookClient(nb, kernel_name="python3", resources=dict(metadata=dict(path=str(tmp_path))))
    give(preset="smoke", marks=2, out_dir=str(tmp_path/"run"))
    with client.setup_kernel():
        for marks in (2, 3):
            give(marks=marks)
            for at, cell in enumerate(nb.cells): client.execute_cell(cell, at)
    kept = [json.loads((tmp_path/name/"metrics.json").read_text()) for name in ("run", "run-2")]
    assert [(run["status"], run["params"]["marks"]) for run in kept] == [("finished", 2), ("finished", 3)]
    marked = [[row["extra"]["marked"] for row in run["rows"][:4]] for run in kept]
    assert marked[0] == [0, 2, 4, 6] and marked[1] == [0, 3, 6, 9]
    stored = pd.read_csv(tmp_path/"runs.csv")
    assert stored.run.value_counts().to_dict() == {run["run"]: len(run["rows"]) for run in kept}
    said = "".join(o.get("text", "") for cell in nb.cells for o in cell.get("outputs", []))
    assert "the run in run is finished and stays as it is; this one is in run-2" in said


def test_caption_cot_from_the_command_line(tmp_path):
    "By papermill alone: error rates before and after as rows, tables, figures and records"
    by_papermill("caption_cot", tmp_path)
    metrics, stored = json.loads((tmp_path / "run/metrics.json").read_text()), pd.read_csv(tmp_path / "runs.csv")
    assert metrics["status"] == "finished" and len(stored) == len(metrics["rows"]) == 8     # two Worlds, four rows each
    rows = pd.DataFrame([{**r["metrics"], **r["extra"], "seed": r["seed"], "variant": r["variant"]}
                         for r in metrics["rows"]]).set_index(["variant", "seed"])
    before, after = rows.loc["draft"], rows.loc["refined, auditor's errors x 0.2"]
    assert (after.omission < before.omission).all() and (rows.n_images == 12).all()
    assert set(stored.dataset) == {"world-smoke aerial"} and set(stored.images_seen) == {0}
    figures = {p.name for p in (tmp_path / "run/figures").iterdir()}
    for name in ("errors", "auditors", "lengths", "examples", "similarity"):
        assert {f"caption_cot_{name}.pdf", f"caption_cot_{name}.png"} <= figures
    for name in ("errors", "attributes", "edits", "lengths", "similarity"):
        assert len(pd.read_csv(tmp_path / "run" / f"{name}.csv"))
    assert len(list((tmp_path / "run/records").glob("*.jsonl"))) == 4


def test_caption_cot_of_a_folder(tmp_path):
    "Own images and a local model: random words are all rejected, which ends the run with reasons and the records"
    from helpers.captioning import build_model
    from PIL import Image

    from reid_lab.datasets.captioning.traces import read_records
    from reid_lab.datasets.image_sets import tiny_table
    (tmp_path / "images").mkdir()
    build_model(tmp_path / "vlm")
    for i, im in enumerate(tiny_table(2, 1).images()): Image.fromarray(im).save(tmp_path / "images" / f"{i}.png")
    own = dict(images=str(tmp_path / "images"), model=str(tmp_path / "vlm"), records=str(tmp_path / "c.jsonl"))
    with pytest.raises(PapermillExecutionError, match="captions were rejected"):
        run_notebook("caption_cot", tmp_path / "run", preset="smoke", retries=1, **own)
    assert [(r.status, r.n_retries) for r in read_records(tmp_path / "c.jsonl")] == [("rejected", 1)]*2
    audited = {**own, "auditor": own["model"], "records": str(tmp_path / "d.jsonl")}
    with pytest.raises(PapermillExecutionError, match="captions were rejected"):
        run_notebook("caption_cot", tmp_path / "two", preset="smoke", retries=0, **audited)
    assert len(read_records(tmp_path / "d.jsonl")) == 2
    for kw, says in ((dict(images=own["images"]), "need each other"), (dict(auditor=own["model"]), "give model")):
        with pytest.raises(ValueError, match=says):
            run_notebook("caption_cot", tmp_path / says[:4], preset="smoke", **kw)


def test_dmg_with_a_manifest_and_a_control(tmp_path, private_cache):
    "Own images: files, and one CSV that says who, where and for what; then a tower that is not trained"
    import timm
    import torch
    from PIL import Image
    table = world_abc("smoke", 0)
    names = [f"{i:05d}.png" for i in range(len(table))]
    (tmp_path / "images").mkdir()
    for i, n in enumerate(names): Image.fromarray(table.image(i)).save(tmp_path / "images" / n)
    write_manifest(table._with(table.frame.assign(path=names)), tmp_path / "people.csv")
    own = dict(dataset=str(tmp_path / "people.csv"), data_root=str(tmp_path / "images"))
    done, _ = smoke("run_dmg", "support", tmp_path / "a", methods="mg", **own)
    assert {r["dataset"] for r in done.rows} == {"people test-a", "people test-b", "people test-c"}
    torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path/"vit.pth")
    done = run_notebook("run_dmg", tmp_path / "b", preset="smoke", study="main", model="frozen:test_vit",
                        weights=str(tmp_path / "vit.pth"), seeds=1, **own)
    rows = pd.read_csv(tmp_path / "a" / "runs.csv").tail(3)
    assert done.metrics["status"] == "finished" and len(done.rows) == 3
    assert set(rows.images_seen) == {0} and set(rows.selection) == {"none"}
    assert rows.variant.str.startswith("No training (control)").all()


@pytest.mark.parametrize("name, study, model, left_out", [("run_camel", "zero_shot", "dual_tiny", None),
                                                          ("run_dart3", "Table 5", "transreid_tiny", "BN statistics")])


def test_another_registered_model(name, study, model, left_out, tmp_path):
    "A model without an ITM head, and one without BatchNorm, to which some settings do not apply"
    done = run_notebook(name, tmp_path / "run", preset="smoke", study=study, model=model)
    rows = pd.read_csv(tmp_path / "runs.csv")
    assert done.metrics["status"] == "finished" and {json.loads(p)["model"] for p in rows.parameters} == {model}
    assert not left_out or not rows.variant.str.contains(left_out).any()


def test_a_frozen_tower_is_a_control(tmp_path):
    import timm
    import torch
    torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), tmp_path/"vit.pth")
    done = run_notebook("run_dart3", tmp_path / "run", preset="smoke", study="ablation", model="frozen:test_vit",
                        weights=str(tmp_path / "vit.pth"), seeds=1)
    rows = pd.read_csv(tmp_path / "runs.csv")
    assert done.metrics["status"] == "finished" and set(rows.images_seen) == {0}
    assert set(rows.selection) == {"none"} and {json.loads(p)["model"] for p in rows.parameters} == {"frozen:test_vit"}
    assert not list(done.folder.rglob("model.safetensors"))


def test_a_study_uses_the_models_of_another(tmp_path):
    first, _ = smoke("run_dart3", "ablation", tmp_path / "a", models="")
    before = {p: p.stat().st_mtime for p in first.folder.rglob("*.safetensors")}
    again, _ = smoke("run_dart3", "distance", tmp_path / "b", models=str(first.folder))
    score = lambda done, name: [r["mAP"] for r in done.rows if r["variant"] == name]
    assert score(first, "DART3-LITE") == score(again, "DART3-LITE, distance=euclidean")
    assert {p: p.stat().st_mtime for p in first.folder.rglob("*.safetensors")} == before
    assert not list(again.folder.rglob("log.jsonl"))


@pytest.mark.parametrize("dataset, asked", [("market1501-5", {5}), ("msmt17-5", {7}),
                                            ("dukemtmc-reid->dukemtmc-reid", set(range(6)))])


def test_dart3_on_folders(dataset, asked, tmp_path, private_cache):
    "Folders in the original layouts, with six cameras of which the paper's subsets leave one out"
    world = World("smoke", task="reid", groups=reid_groups(20, 5, 1, 20, 1)).table().where(split=["train", "test"])
    name = dataset.split("->")[0].removesuffix("-5")
    shifted = ReidTable(world.frame.assign(cam=world.frame.cam + (2 if name == "msmt17" else 0)), world.root,
                        world.reader, world.name)
    export_world(shifted, name, tmp_path / "data" / name, renumber=True)
    done, _ = smoke("run_dart3", "ablation", tmp_path, dataset=dataset, data_root=str(tmp_path / "data" / name))
    assert {r["dataset"] for r in done.rows} == {dataset}
    assert set(Embeddings.load(done.folder / "models" / "seed-0" / "queries").cam) == asked


@pytest.mark.parametrize("layout", ["manifest", "market1501"])
def test_dart3_on_own_cameras(layout, tmp_path, private_cache):
    "Any table with the cameras that are trained on; what cannot be scored is printed"
    f = World("smoke", task="reid", groups=reid_groups(20, 4, 1, 20, 1)).table().where(split=["train", "test"])
    role = f.frame.role.where((f.frame.cam != 3) | (f.frame.split == "train"), "gallery")   # camera 3 asks nothing
    table = ReidTable(f.frame.assign(role=role, scenario="street", subset=f.frame.split.replace("test", "test-a")),
                      f.root, f.reader)
    if layout == "manifest":
        where = dict(dataset=str(write_manifest(table, tmp_path / "mine.csv", images=True)))
    else: where = dict(dataset=layout, data_root=str(export_world(table, layout, tmp_path / layout, renumber=True)))
    done, _ = smoke("run_dart3", "ablation", tmp_path, seen="0,2", **where)
    assert {r["dataset"] for r in done.rows} == {f"{'mine' if layout == 'manifest' else layout} seen 0,2"}
    kept = Embeddings.load(done.folder / "models" / "seed-0" / "queries")
    assert set(kept.cam) == {1, 4} and pd.read_csv(done.folder / "case.csv").cam.tolist() == [1, 4]
    assert "Cameras [3] were not trained on and have no query" in done.path.read_text()


def test_cuhk_pedes_folder_from_the_command_line(tmp_path, private_cache):
    "The command of the README on a folder in the dataset's original layout, with real JPEG files"
    world = load_dataset("world", preset="smoke").where(domain="real-like")
    export_world(world, "cuhk-pedes", tmp_path / "data")
    out = by_papermill("run_camel", tmp_path, dataset="cuhk-pedes", data_root=tmp_path / "data", study="zero_shot")
    rows = json.loads((tmp_path / "run/metrics.json").read_text())["rows"]
    assert sorted(r["dataset"] for r in rows) == ["cuhk-pedes"]*2 + ["world (source)"]*2   # two methods
    ours = {json.dumps(r["extra"]["test_set"]) for r in rows if r["dataset"] == "cuhk-pedes"}
    assert json.loads(*ours)["gallery"]["ids"] == 30     # at smoke, of 1,000: not to be set beside printed scores
    page = out.read_text()
    said = [f"Table {t}: Not beside the published rows" for t in ("I", "II", "III")]
    assert all(t in page for t in said) and "the query has 30 ids, published: 1,000" in page
    assert "cuhk-pedes is not in this table" in page and "**Table I" not in page
    captions = load_dataset("cuhk-pedes", tmp_path / "data").text_queries("test")
    asked = Embeddings.load(tmp_path / "run" / "models" / "camel-0-weights=world" / "zeroshot-queries")
    assert asked.caption == captions[captions.pid.isin(asked.pid)].caption.tolist() and len(asked) == 240
    assert all(0 < r["metrics"]["R1"] <= r["metrics"]["R10"] <= 100 for r in rows)


def test_the_protocol_of_camel_on_folders(tmp_path, private_cache):
    "MALS, which has no test split, trains; CUHK-PEDES is searched before and after tuning; a row a method and phase"
    world, data = World("smoke").table(), tmp_path / "data"
    made = world.where(domain="generated", split="train")
    once = made.frame.assign(captions=made.frame.captions.map(lambda c: c[:1]))
    export_world(made._with(once), "mals", data / "MALS")
    export_world(world.where(domain="real-like"), "cuhk-pedes", data / "CUHK-PEDES")
    done = run_notebook("camel", tmp_path / "run", preset="smoke", study="main", methods="camel", source="mals",
                        source_root=str(data), dataset="cuhk-pedes", data_root=str(data))
    assert [r["variant"] for r in done.rows] == ["CAMeL, zeroshot", "CAMeL, finetuned"]
    table = pd.read_csv(done.folder / "table.csv")
    assert {f"{p} {k}" for p in ("zeroshot", "finetuned") for k in ("R1", "R5", "R10", "mAP")} <= set(table)
    assert "Table I: Not beside the published rows" in done.path.read_text()


def test_dmg_on_folders(tmp_path, private_cache):
    "Direct transfer in the layout of Market-1501: own rows apart from the published ones, and why"
    people = World("smoke", task="reid").table().where(split=["train", "test"])
    export_world(people, "market1501", tmp_path / "data" / DATASETS["market1501"].folder, renumber=True)
    done, _ = smoke("run_dmg", "transfer", tmp_path, dataset="market1501->market1501", data_root=str(tmp_path / "data"))
    own, beside = pd.read_csv(done.folder / "table_market1501.csv"), pd.read_csv(done.folder / "beside_table_3.csv")
    assert {"R1", "R5", "R10", "mAP"} <= set(own) and set(beside.origin) == {"published"}
    assert "Not beside the published rows: BoT" in done.path.read_text()


@pytest.mark.parametrize("name", ["camel", "dart3"])
def test_a_misspelt_parameter_is_refused_before_the_notebook_runs(name, tmp_path):
    with pytest.raises(ValueError, match="parameter='preest' is not known; .*Did you mean 'preset'"):
        run_notebook(name, tmp_path / "run", preest="smoke")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("bad, message", [
    (dict(study="mian"), r"study='mian' is not known; choose one of \['main', .*Did you mean 'main'"),
    (dict(methods="bas"), r"methods?=.*'bas'")])


@pytest.mark.parametrize("name", ["camel", "dart3"])
def test_bad_parameters_are_fatal(name, bad, message, tmp_path):
    with pytest.raises(ValueError, match=message): run_notebook(name, tmp_path / "run", preset="smoke", **bad)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["camel", "dart3"])
def test_a_value_of_another_kind_is_refused_before_the_notebook_runs(name, tmp_path):
    with pytest.raises(ValueError, match="parameter seed='one' must be a whole number"):
        run_notebook(name, tmp_path / "run", preset="smoke", seed="one")
    assert not (tmp_path / "run").exists()


def test_missing_folder_says_what_to_do(tmp_path):
    nowhere = tmp_path / "nowhere"
    with pytest.raises(ValueError) as e:
        run_notebook("camel", tmp_path / "run", preset="smoke", dataset="rstpreid", data_root=str(nowhere))
    assert f"'{nowhere}' is no folder" in str(e.value) and not (tmp_path / "run").exists()
    for way in ("give -p data_root=", "set REID_LAB_DATA", ".reid_lab.toml", "RSTPReid/data_captions.json"):
        assert way in str(e.value)


def test_word_masking(tmp_path):
    "Curves, lists, kinds of words and the laboratory; a folder of a trained model serves as well as a name"
    from reid_lab.recipes.crops import from_package
    from reid_lab.training.folder import Trained
    clip = from_package("clip_tiny")
    Trained(clip, [], 0, 0, 0., dict(model="clip_tiny", model_kw={})).save(tmp_path / "mine")
    clip.tokenizer.save(tmp_path / "mine" / "tokenizer")
    models = f"clip_tiny,{tmp_path / 'mine'}"
    done = run_notebook("word_masking", tmp_path / "run", preset="smoke", models=models, masked=3)
    assert done.metrics["status"] == "finished" and len(done.rows) == 2*3
    by = {r["variant"]: r["mAP"] for r in done.rows}
    for m in range(3): assert by[f"mine, {m} words masked"] == by[f"clip_tiny, {m} words masked"]   # the same weights
    assert by["mine, 2 words masked"] < by["mine, 0 words masked"]
    kinds = pd.read_csv(done.folder / "kinds-0.csv").set_index("kind")
    assert kinds.effect["upper colour"] > 0 and (kinds.low <= kinds.effect).all()
    figures = {p.name for p in (done.folder / "figures").iterdir()}
    assert {f"word_masking_{n}.pdf" for n in ("curves", "lists", "kinds")} <= figures
    page = (done.folder / "words.html").read_text(encoding="utf-8")
    assert '"0/1":' in page and "default-src 'none'" in page and len(saved(done.path)) >= 3


def test_attention_maps(tmp_path):
    "Every method of every model against the truth, chance and random maps"
    kw = dict(preset="smoke", methods="gradcam,rollout,centre", steps=3)
    done = run_notebook("attention_maps", tmp_path / "run", **kw)
    assert done.metrics["status"] == "finished"
    assert {r["variant"] for r in done.rows} == {"clip_tiny, gradcam", "clip_tiny, rollout", "clip_tiny, centre",
                                                 "bot_tiny, gradcam", "bot_tiny, centre"}
    table = pd.read_csv(done.folder / "maps.csv")
    assert (table.believed == (table.points & table.deletes)).all() and table.pointing.between(0, 1).all()
    scores = pd.read_csv(done.folder / "scores" / "0-701.csv")
    row = next(r for r in done.rows if r["variant"] == "clip_tiny, gradcam")
    assert row["pointing"] == pytest.approx(100*scores[scores.method == "gradcam"].pointing.mean())
    assert {f"attention_maps_{n}.pdf" for n in ("table", 0, 1)} <= {p.name for p in (done.folder / "figures").iterdir()}
    assert '"0@' in (done.folder / "maps.html").read_text(encoding="utf-8") and len(saved(done.path)) >= 3
    seen = min(card_for("clip_tiny").seeds)
    for bad, says in ((dict(methods="grad"), "methods='grad'"), (dict(world_seed=seen), "trained on already")):
        with pytest.raises(ValueError, match=says):
            run_notebook("attention_maps", tmp_path / says[:5], preset="smoke", **bad)


@pytest.mark.parametrize("name, parameters, view", [
    ("attention_maps", dict(methods="gradcam,centre", steps=3), "AttentionView"),
    ("failure_browser", {}, "FailureBrowser"), ("word_masking", dict(masked=2), "WordLab")])


def test_a_notebook_of_the_plain_papermill_command_is_read_without_a_kernel(name, parameters, view, tmp_path):
    "`camera_bias` has a test of its own"
    shown = saved(by_papermill(name, tmp_path, **parameters))
    views = [d for d in shown if view in "".join(d["text/plain"])]
    assert len(shown) >= 2 and views and all(set(d) == {"text/plain", "image/png"} for d in views)
