"The results store: rows under concurrency and damage, two stores, and what is published"
import csv
import json
import math
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from reid_lab.core.files import locked
from reid_lab.recipes import camel, cfam, cfan, dart3, dmg
from reid_lab.recipes.study import setting_of
from reid_lab.results.comparisons import summarise
from reid_lab.results.rows import (
    RESULT_COLUMNS,
    Setting,
    append_result,
    append_results,
    load_results,
    pick,
    publish,
    results_path,
    run_table,
    settings_of,
)

ROOT = Path(__file__).resolve().parents[2]


def test_processes_append_whole_rows(tmp_path):
    code = ("import sys; from reid_lab.results.rows import append_result\n"
            "for i in range(30):\n"
            "    row = dict(dataset='world', variant=sys.argv[2]*200, seed=i, metrics=dict(R1=i))\n"
            "    append_result(row, sys.argv[1])")
    jobs = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path/"runs.csv"), v]) for v in "ab"]
    assert [j.wait(60) for j in jobs] == [0, 0]
    frame = load_results(tmp_path/"runs.csv")
    assert len(frame) == 60 and sorted(frame[frame.variant == "a"*200].seed) == list(range(30))
    assert (tmp_path/"runs.csv").read_text().count("run,time") == 1


def test_values_survive_the_file(tmp_path):
    row = dict(dataset="world", variant='a,"b"\nc — ü', parameters=dict(lr=1e-4, order="fixed", k=None),
               metrics=dict(R1=np.float32(1.5), gap=math.nan))
    append_result(row, tmp_path/"r.csv")
    back = load_results(tmp_path/"r.csv").iloc[0]
    assert back.variant == row["variant"] and back.parameters == row["parameters"] and back.R1 == 1.5
    assert math.isnan(back.gap)
    assert list(RESULT_COLUMNS) == (tmp_path/"r.csv").read_text().splitlines()[0].split(",")


def test_a_torn_row_is_left_out_and_the_next_append_moves_it(tmp_path):
    "In front of it and behind it every row stays, byte for byte"
    path = tmp_path/"r.csv"
    append_result(dict(dataset="world", variant="two\nlines", metrics=dict(R1=1.)), path)
    good = path.read_bytes()
    for torn in (b"torn,row", b'run,"an open quote\nand a second line', b'a,b,"{""lr"": 0.1', "é".encode()[:1]):
        path.write_bytes(good + torn)
        with pytest.warns(UserWarning, match=r"r\.csv: the row that begins at line 4 is torn"):
            assert load_results(path).R1.tolist() == [1]
        append_result(dict(dataset="world", metrics=dict(R1=2.)), path)
        assert path.read_bytes().startswith(good) and load_results(path).R1.tolist() == [1, 2]
        assert (tmp_path/"r.csv.torn").read_bytes().endswith(torn + b"\n")


def test_a_row_torn_at_any_byte_is_mended(tmp_path):
    "Also between the two quotes of a doubled one, where what is left looks like a cell"
    path = tmp_path/"r.csv"
    for seed in (1, 2):
        append_result(dict(dataset="world", seed=seed, parameters=dict(a="x"), metrics=dict(R1=1.)), path)
    text = path.read_bytes()
    start = text[:-1].rindex(b"\n") + 1
    for cut in range(start + 1, len(text) - 1):
        path.write_bytes(text[:cut])
        append_result(dict(dataset="world", seed=3, metrics=dict(R1=1.)), path)
        assert load_results(path).seed.tolist() == [1, 3] and path.read_bytes().startswith(text[:start]), cut
    path.write_bytes(text[:-1])     # only its newline is missing: a whole row
    append_result(dict(dataset="world", seed=3, metrics=dict(R1=1.)), path)
    assert load_results(path).seed.tolist() == [1, 2, 3]


def test_a_torn_row_in_the_middle_hides_no_other(tmp_path):
    "As earlier versions left it: the next row on a line of its own"
    path = tmp_path/"r.csv"
    append_result(dict(dataset="world", metrics=dict(R1=1.)), path)
    one = path.read_bytes().splitlines(keepends=True)[1]
    path.write_bytes(path.read_bytes() + b'torn,"row, {""x\n' + one*2 + b"again,torn\n" + one)
    with pytest.warns(UserWarning, match="line 3, 6 is torn"): assert len(load_results(path)) == 4


def test_a_damaged_row_is_named_by_its_first_line(tmp_path):
    path = tmp_path/"r.csv"
    for variant in ("a", "b\nb\nb"): append_result(dict(dataset="world", variant=variant, metrics=dict(R1=1.)), path)
    path.write_text(path.read_text()[:-10] + "NULL\"\"}\"\n")
    with pytest.raises(ValueError, match="the row that begins at line 3 is damaged.*All other rows can stay"):
        load_results(path)


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    from reid_lab.results import rows as results
    path = tmp_path/"r.csv"
    append_result(dict(dataset="world", metrics=dict(R1=1.)), path)
    good = path.read_bytes()
    def full(f, data):
        f.write(data[:20])
        raise OSError(28, "No space left on device")
    with monkeypatch.context() as m, pytest.raises(OSError, match="No space") as e:
        m.setattr(results, "_write", full)
        append_result(dict(dataset="world", metrics=dict(R1=2.)), path)
    assert "nothing was added to r.csv" in e.value.__notes__ and path.read_bytes() == good


def test_a_wrong_row_of_several_stops_all_of_them(tmp_path):
    rows = [dict(dataset="world", metrics=dict(R1=1.)), dict(dataset="world", metrics=dict(R1=math.inf))]
    with pytest.raises(ValueError, match="metric 'R1' is inf"): append_results(rows, tmp_path/"r.csv")
    assert not (tmp_path/"r.csv").exists() and append_results(rows[:1]*2, tmp_path/"r.csv")
    assert len(load_results(tmp_path/"r.csv")) == 2


def test_cells_of_any_size_and_any_text_come_back(tmp_path):
    long = dict(note="x, \"y\"\n"*40_000)     # csv's own limit is 131,072 characters
    for variant in ("=1+2", "+ ST", "'=quoted", "-1.5", "tab\t", "\tx", "@a", ""):
        append_result(dict(dataset="world", variant=variant, seed=-1, parameters=long, metrics=dict(R1=-2.)),
                      tmp_path/"r")
    back = load_results(tmp_path/"r")
    assert back.variant.tolist() == ["=1+2", "+ ST", "'=quoted", "-1.5", "tab\t", "\tx", "@a", ""]
    assert back.parameters[0] == long and set(back.seed) == {-1} and set(back.R1) == {-2}
    import csv
    limit = csv.field_size_limit(10**7)
    with open(tmp_path/"r", newline="") as f: cells = [c for r in csv.reader(f) for c in r]
    csv.field_size_limit(limit)
    assert not [c for c in cells if c[:1] in "=+@\t" and c]      # nothing that a spreadsheet runs


def test_undefined_metrics_are_null_and_come_back_as_nan(tmp_path):
    append_result(dict(dataset="world", metrics=dict(R1=math.nan, mAP=None, n=np.int64(3))), tmp_path/"r.csv")
    assert '""R1"": null' in (tmp_path/"r.csv").read_text()
    row = load_results(tmp_path/"r.csv").iloc[0]
    assert math.isnan(row.R1) and math.isnan(row.mAP) and row.n == 3
    assert summarise(load_results(tmp_path/"r.csv"), ["R1", "n"]).R1.tolist() == [""]


# --- two stores -------------------------------------------------------------------------------------------------------

def test_a_run_appends_to_the_users_store(tmp_path, monkeypatch):
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    monkeypatch.delenv("REID_LAB_RESULTS", raising=False)
    with pytest.raises(FileNotFoundError, match="measurements are the store 'measured'"): load_results()
    append_result(dict(dataset="world", metrics=dict(R1=1.)))
    assert (tmp_path/"runs"/"results.csv").exists() and not (tmp_path/"results").exists()
    assert len(load_results()) == len(load_results("own")) == 1
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path/"mine.csv"))
    append_result(dict(dataset="world", metrics=dict(R1=1.)))
    assert len(load_results()) == 1 and (tmp_path/"mine.csv").exists()
    assert results_path("measured") == tmp_path/"results"/"runs.csv"


def measured(path, **more):
    row = dict(run="a", time="2026-01-01T00:00:00Z", commit="0123456789", preset="quick", split="test", seed=0,
               dataset="world-quick", metrics=dict(R1=1., gap=math.nan))
    append_result(row | more, path)


def test_rows_of_named_runs_are_published(tmp_path):
    own, to = tmp_path/"own.csv", tmp_path/"to.csv"
    for run in "ab":
        for variant in ("base", "+ ST"): measured(own, run=run, variant=variant)
    assert len(publish("b", own, to, variant="+ ST")) == 1 and len(publish(tmp_path/"runs"/"a", own, to)) == 2
    assert load_results(to).variant.tolist() == ["+ ST", "base", "+ ST"]
    assert run_table(load_results(to))[["run", "rows"]].values.tolist() == [["b", 1], ["a", 2]]


@pytest.mark.parametrize("more, message", [
    (dict(preset="smoke"), "preset=smoke"), (dict(commit="abc+"), "changed files"), (dict(commit=""), "name no commit"),
    (dict(), "already")])
def test_what_is_not_published(tmp_path, more, message):
    own, to = tmp_path/"own.csv", tmp_path/"to.csv"
    measured(own, **more), measured(own, variant="another")
    measured(to, run="a" if not more else "z")
    with pytest.raises(ValueError, match=f"1 of 2 rows .*{message}.*Nothing was added"): publish("a", own, to)
    assert len(load_results(to)) == 1
    if "commit" in more and more["commit"]: assert len(publish("a", own, to, dirty=True)) == 2


def test_one_process_publishes_at_a_time(tmp_path):
    "Two that look for duplicates at once would both add the rows"
    own, to = tmp_path/"own.csv", tmp_path/"to.csv"
    measured(own)
    with locked(tmp_path/".to.csv.publish"):
        other = threading.Thread(target=publish, args=("a", own, to))
        other.start()
        other.join(.3)
        assert other.is_alive() and not to.exists()
    other.join(20)
    assert len(load_results(to)) == 1


def test_published_from_the_command_line(tmp_path, monkeypatch, capsys):
    from reid_lab.cli.commands import main
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    monkeypatch.delenv("REID_LAB_RESULTS", raising=False)
    measured(None, seed=3)
    assert main(["results"]) == 0 and "world-quick" in capsys.readouterr().out
    assert main(["results", "publish", "a", "--where", "seed=3"]) == 0
    assert "added 1 rows to" in capsys.readouterr().out and len(load_results("measured")) == 1
    assert main(["results", "publish", "a"]) == 2 and "already" in capsys.readouterr().err
    assert main(["results", "publish"]) == 2 and "no run is named" in capsys.readouterr().err


def real_rows():
    "What a user's run on a real dataset would have added: the same variants, seeds 0 and 5 to 8"
    return [dict(run="mine", notebook="run_camel", variant="Baseline, zeroshot", preset="quick", seed=s, split="test",
                 dataset="cuhk-pedes", commit="33e811b5bf", metrics=dict(R1=70., mAP=60.), images_seen=57600,
                 parameters=dict(study="ablation", phase="zeroshot", world_seed=0, source="world", model="camel_tiny",
                                 steps=900, ft_steps=150, headline="itc")) for s in (0, 5, 6, 7, 8)]


@pytest.mark.skipif(not (ROOT/"results"/"runs.csv").exists(), reason="needs the source tree")
def test_no_other_rows_enter_the_measured_notebook(tmp_path, monkeypatch):
    "25 World rows and 5 of a real dataset gave n = 6, and a mean of both"
    import shutil
    (tmp_path/"results").mkdir()
    shutil.copy(ROOT/"results"/"runs.csv", tmp_path/"results"/"runs.csv")
    rows = load_results(tmp_path/"results"/"runs.csv", notebook="run_camel", study="ablation", phase="zeroshot")
    before = summarise(rows, "mAP", by="variant")
    append_results(real_rows(), tmp_path/"results"/"runs.csv")
    mixed = load_results(tmp_path/"results"/"runs.csv", notebook="run_camel", study="ablation", phase="zeroshot")
    with pytest.raises(ValueError, match="would mix 2 values of 'dataset'"): summarise(mixed, "mAP", by="variant")
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    page = json.loads((ROOT/"nbs"/"tutorials"/"10_measured_camel.ipynb").read_text(encoding="utf-8"))
    code = ["".join(c["source"]) for c in page["cells"] if c["cell_type"] == "code"]
    space = {}
    for cell in code[:3]: exec(cell, space)
    after = summarise(space["zero"], "mAP", by="variant")
    assert after.n.tolist() == before.n.tolist() == [10]*7 and after.mAP.tolist() == before.mAP.tolist()


@pytest.mark.parametrize("row, message", [(dict(metrics=dict(R1=1.)), "needs 'dataset'"),
                                          (dict(dataset="world"), "needs 'metrics'"),
                                          (dict(dataset="world", metric=dict(R1=1.)), "Did you mean 'metrics'")])
def test_a_bad_row_is_refused_and_nothing_is_written(tmp_path, row, message):
    with pytest.raises(ValueError, match=message): append_result(row, tmp_path/"r.csv")
    assert not (tmp_path/"r.csv").exists()


def test_filters(tmp_path):
    for k in (3, 6):
        append_result(dict(dataset="world", seed=k, parameters=dict(k=k), metrics=dict(R1=k)), tmp_path/"r.csv")
    assert load_results(tmp_path/"r.csv", k=6).R1.tolist() == [6]
    assert load_results(tmp_path/"r.csv", seed=[3, 6]).R1.tolist() == [3, 6]
    with pytest.raises(ValueError, match="filter='kk'"): load_results(tmp_path/"r.csv", kk=6)


def test_pick_without_parameters_column():
    frame = pd.DataFrame([dict(variant="a", seed=0, R1=1.), dict(variant="b", seed=0, R1=2.)])
    assert pick(frame, variant="b").R1.tolist() == [2.]
    assert json.dumps(frame.attrs) == "{}"


# --- fields of rows ---------------------------------------------------------------------------------------------------

RECIPES = dict(run_camel=camel, run_dart3=dart3, run_dmg=dmg, run_cfam=cfam, run_cfan=cfan)


@pytest.mark.parametrize("notebook", RECIPES)
def test_labels_of_published_rows_are_read_as_the_settings_that_made_them(notebook):
    "All rows that earlier versions of a recipe published: the method's key, the stage, every option with its type"
    f, recipe = load_results(ROOT/"results"/"runs.csv", notebook=notebook), RECIPES[notebook]
    titles = getattr(recipe, "TITLES", {})
    known = {s: s.name for study in recipe.STUDIES.values() for s in (setting_of(x, titles) for x in study.settings)}
    assert len(f) >= 200
    for _, run in f.groupby("run"):
        for s, row in zip(settings_of(run), run.to_dict("records")):
            assert s.label == row["variant"] and known[s.at("")] == s.name
            assert s.fields == {k: row[k] for k in ("method", "stage", "options")}
            told = row["parameters"]
            assert s.stage == told.get("phase", told.get("test", "")) and s.method == told.get("method", s.method)


def test_rows_of_other_notebooks_are_read():
    file = ROOT/"results"/"runs.csv"
    with file.open(newline="", encoding="utf-8") as lines: stored = sum(1 for _ in csv.DictReader(lines))
    f = load_results(file)
    assert len(f) == stored >= 4699 and {type(o) for o in f.options} == {dict}
    maps, cot = (f[f.notebook == n] for n in ("attention_maps", "caption_cot"))
    assert all(o == {"model": p["model"]} and m == p["method"]
               for o, m, p in zip(maps.options, maps.method, maps.parameters))
    assert set(cot.method) == set(cot.variant) and set(cot.stage) == {""}


@pytest.mark.parametrize("label, told, fields", [
    ("CAMeL, tuned on park, zeroshot", dict(phase="zeroshot", domain="park", setting="CAMeL", method="camel"),
     ("camel", "zeroshot", dict(domain="park"))),
    ("BoT, ids=(15, 6), test-a", dict(test="test-a", setting="BoT, ids=(15, 6)", method="bot"),
     ("bot", "test-a", dict(ids=[15, 6]))),
    ("BoT, dataset=a->b, c, c", dict(test="c", setting="BoT, dataset=a->b, c", method="bot"),
     ("bot", "c", dict(dataset="a->b, c"))),
    ("CFAM, released form, k=None, coarse", dict(test="coarse", setting="CFAM, released form, k=None"),
     ("CFAM, released form", "coarse", dict(k=None))),
    ("A, zeroshot", dict(phase="finetuned"), ("A", "zeroshot", {})),        # of a user: as in conclusions before
    ("A, lr=1e-05", {}, ("A", "", dict(lr=1e-5))), ("A, ids=(1, 2)", {}, ("A", "", dict(ids=[1, 2]))),
    ("", {}, ("", "", {})), ("a=b", {}, ("a=b", "", {}))])
def test_labels_of_earlier_versions(label, told, fields):
    read, = settings_of([dict(variant=label, parameters=told)])
    assert tuple(read.fields.values()) == fields and read.label == label


def test_a_stage_is_one_of_all_labels_of_a_run():
    "Else a title with a comma would be taken for one; notebooks without stages have none"
    labels = ["LITE, episodic", "DART3, episodic"]
    def stages(labels, **more): return [s.stage for s in settings_of([dict(variant=v, **more) for v in labels])]
    assert stages([*labels, "Norm"]) == [""]*3 and stages(labels) == ["episodic"]*2
    assert stages(labels, notebook="run_dart3") == [""]*2


def test_a_run_stores_fields_and_an_old_store_takes_them(tmp_path):
    "Beside rows of an earlier version, in one file with the header that it wrote; its rows stay byte for byte"
    from reid_lab.experiments.run import start_run
    store = tmp_path/"old.csv"
    lines = (ROOT/"results"/"runs.csv").read_bytes().split(b"\n")
    store.write_bytes(b"\n".join(lines[:3]) + b"\n")
    old = store.read_bytes()
    with start_run("run_demo", dict(preset="quick", method="of the run"), tmp_path/"run", results=store) as run:
        run.record(dict(R1=1.), "world", setting=Setting("st", "finetuned", dict(ids=(15, 6)), "+ ST, ids=(15, 6)"))
    assert store.read_bytes().startswith(old)
    f = load_results(store)
    assert f.variant.tolist()[2] == "+ ST, ids=(15, 6), finetuned" and f.parameters[2]["method"] == "st"
    assert [f.iloc[2][k] for k in ("method", "stage", "options")] == ["st", "finetuned", dict(ids=[15, 6])]
    assert settings_of(f)[2].name == "+ ST, ids=(15, 6)" and f.method.tolist()[:2] == ["Norm", "DART3-LITE"]
    assert len(pick(f, method="st", stage="finetuned")) == 1
