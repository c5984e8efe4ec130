"Scores of runs side by side, and BibTeX"
import io
import math
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from reid_lab.cli.commands import main
from reid_lab.experiments.kept_runs import sides_of, stored_sides
from reid_lab.experiments.run import start_run
from reid_lab.results.citations import REFERENCES, Reference, bibtex
from reid_lab.results.rows import append_results
from reid_lab.results.run_tables import PAPER_OF, RunSide, compare_runs
from reid_lab.results.tables import to_latex

WHOLE = dict(query=dict(ids=750, images=3368, captions=0, cams=6),
             gallery=dict(ids=751, images=19732, captions=0, cams=6))


def run_in(folder, scores, notebook="run_dart3", dataset="world-quick", method="Norm", preset="quick", **params):
    store = Path(f"{folder}.csv")
    with start_run(notebook, dict(preset=preset, seed=0, **params), folder, results=store) as run:
        for seed, score in scores.items():
            run.record(dict(R1=score + 5, mAP=score), dataset=dataset, variant=method, seed=seed)
    return str(folder)


def rows(label, scores, **more):
    row = dict(run=label, notebook="run_dart3", commit="a", preset="quick", split="test", parameters={}, stage="",
               options={}, dataset="world-quick", method="Norm", variant="Norm") | more
    return RunSide(label, pd.DataFrame([row | dict(seed=s, mAP=v, R1=v + 1) for s, v in scores.items()]))


def test_seeds_that_match_are_paired_and_others_are_not():
    base = rows("a", {0: 40., 1: 50., 2: 60.})
    close = compare_runs([base, rows("b", {0: 41., 1: 51.2, 2: 60.9})]).lines.iloc[1]
    assert close.paired and close.verdict == "higher" and math.isclose(close["diff"], 1.0333, abs_tol=1e-3)
    far = compare_runs([base, rows("b", {7: 41., 8: 51.2, 9: 60.9})])
    line = far.lines.iloc[1]
    assert not line.paired and line.verdict == "not resolved" and line.low < -10 and line.high > 10
    assert "share no seed on one World" in far.text() and "to a, unpaired" in far.text()
    worlds = [rows(n, {0: 40., 1: 50.}, parameters=dict(world_seed=w)) for n, w in (("a", 1), ("b", 2))]
    assert not compare_runs(worlds).lines.paired.iloc[1]      # the same seeds on other Worlds


def test_other_starts_and_presets_are_said_and_not_resolved():
    a, b = (rows(n, {0: 40., 1: 50., 2: 60.5}, parameters=dict(weights=w)) for n, w in (("a", "none"), ("b", "world")))
    b.rows["mAP"] += [5., 5.1, 5.2]
    line = compare_runs([a, b]).lines.iloc[1]
    assert line.verdict == "not resolved" and "other starts" in line.note
    for side, file in ((a, "one.pth"), (b, "two.pth")):     # of one model: files of one kind
        side.rows["parameters"] = [dict(weights=file, model="m")]*3
    table = compare_runs([a, b])
    assert table.lines.verdict.iloc[1] == "not resolved" and "a from one.pth, b from two.pth" in table.text()
    preset = compare_runs([a, RunSide("c", a.rows.assign(preset="full", mAP=a.rows["mAP"] + 9))]).lines.iloc[1]
    assert preset.verdict == "not resolved" and "other presets (quick; full)" in preset.note
    params = [RunSide(n, a.rows, dict(lr=lr, seed=lr)) for n, lr in (("a", 1), ("b", 2))]
    assert "b differs from a in its parameters: lr (1; 2)." in compare_runs(params).remarks


def test_datasets_are_never_ranked_together():
    table = compare_runs([rows(n, {0: v, 1: v + 1}, dataset=d) for n, v, d in (
        ("a", 40., "world-quick"), ("b", 90., "market1501"), ("c", 39., "world-quick"), ("d", 89., "market1501"))])
    bold = re.findall(r"\*\*([\d.]+) ± [\d.]+\*\*", table.formatted("md"))
    assert bold == ["41.5", "40.5", "91.5", "90.5"] and table.lines.against.tolist() == ["", "a", "", "b"]
    half = dict(query=WHOLE["query"] | dict(images=9), gallery=WHOLE["gallery"])
    sides = dict(a=WHOLE, b=half)
    sets = [rows(n, {0: 40.}, dataset="market1501", parameters=dict(test_set=t)) for n, t in sides.items()]
    names = compare_runs(sets).lines.dataset.tolist()
    assert names == ["market1501 (3368 in 19732 images)", "market1501 (9 in 19732 images)"]


def test_published_rows_are_of_the_same_test_set_and_in_a_table_of_their_own():
    whole = compare_runs([rows("a", {0: 40.}, dataset="market1501", parameters=dict(test_set=WHOLE))])
    assert set(whole.published.dataset) == {"Market-1501"} and len(whole.published) > 3
    assert whole.formatted("latex").count(r"\begin{tabular}") == 2 and "published on the same test set" in whole.text()
    assert compare_runs([rows("a", {0: 40.})]).published is None
    assert compare_runs([rows("a", {0: 40.}, dataset="market1501")]).published is None   # what was scored is not known


def test_names_from_data_are_escaped():
    odd = r"50 % of R_1 & {x} \a ~ ^ <b>"
    table = compare_runs([rows("a_b", {0: 40.}, method=odd, variant=odd), rows("c", {0: 41.})])
    latex = table.formatted("latex")
    assert r"50 \% of R\_1 \& \{x\} \textbackslash{}a \textasciitilde{} \textasciicircum{} \textless{}b" in latex
    assert "&lt;b&gt;" in table.formatted("html") and "<b>" not in table.formatted("md") and r"a\_b" in latex


def bold_of(table):
    "Rows of a table of runs with the metrics in which they are the best"
    best = table.best()
    return {i: [m for m in best if best[m].iloc[i]] for i in range(len(best))}


def test_the_best_is_chosen_by_number_and_what_is_printed_alike_is_best_too():
    a, b, c, low = (rows(n, {0: v, 1: v}) for n, v in (("a", 57.14), ("b", 57.11), ("c", 57.04), ("low", -101.2)))
    table = compare_runs([a, b, c, low])
    assert bold_of(table) == {0: ["R1", "mAP"], 1: ["R1", "mAP"], 2: [], 3: []}
    assert table.formatted("md").count("**") == 8 and table.text().count("57.1 ± 0.0*") == 2
    assert table.formatted("latex").count(r"\textbf") == 4 and "*: the best of its block. Behind" in table.text()
    assert bold_of(compare_runs([a])) == {0: []} and "*" not in compare_runs([a]).text()   # alone it is no best


def test_the_best_is_never_chosen_across_worlds_and_other_queries():
    a, b = rows("a", {0: 40., 1: 50.}), rows("b", {0: 41., 1: 51.})
    table = compare_runs([a, b, rows("other", {7: 90., 8: 91.}), rows("more", {0: 95., 1: 96., 2: 97.})])
    assert bold_of(table) == {0: [], 1: ["R1", "mAP"], 2: [], 3: []}
    assert "scored on the same Worlds" in table.text()
    assert table.lines.worlds.tolist() == ["0 1", "0 1", "7 8", "0 1 2"]

    gallery = dict(cams=9, images=99, ids=9, captions=0)
    few, *all_of = [rows(n, {0: v, 1: v}, parameters=dict(test_set=dict(
        query=gallery | dict(cams=cams, images=images), gallery=gallery)))
        for n, v, cams, images in (("few", 90., 4, 30), ("x", 40., 9, 90), ("y", 41., 9, 91))]
    lines = compare_runs([few, *all_of]).lines
    assert lines.dataset.nunique() == 2 and lines.difference.iloc[1] == ""    # other queries are not compared
    assert "9 people, queries of 4 of 9 cameras" in lines.dataset.iloc[0] and "to x" in lines.difference.iloc[2]


def test_one_run_with_two_test_sets_of_one_name_keeps_both():
    half = dict(query=WHOLE["query"] | dict(images=9), gallery=WHOLE["gallery"])
    two = [rows("a", {0: v}, dataset="market1501", parameters=dict(test_set=tested)).rows
           for v, tested in ((40., WHOLE), (9., half))]
    assert compare_runs([RunSide("a", pd.concat(two))]).lines.mAP_mean.tolist() == [40., 9.]


def test_smoke_is_shown_and_is_no_result(tmp_path, capsys):
    a, b = (run_in(tmp_path/n, {0: v, 1: v + 2}, preset="smoke") for n, v in (("a", 40.), ("b", 60.)))
    assert main(["compare", a, b]) == 0
    text = capsys.readouterr().out
    assert "61.0 ± 1.4" in text and "test of plumbing" in text and "+20" not in text and "*" not in text
    table = compare_runs([*sides_of(a), *sides_of(run_in(tmp_path/"c", {0: 41., 1: 43.}))])     # with a run at quick
    assert table.lines.difference.tolist() == ["", ""] and table.lines.verdict.tolist() == ["", ""]
    assert not table.best().any(axis=None)


LATEX = shutil.which("pdflatex")
ODD = r"50 % of R_1 & {x} \a ~ ^ <b> #2 $x$ |y| ± → θ ü"


@pytest.mark.skipif(not LATEX, reason="no LaTeX is installed")
def test_tables_compile(tmp_path):
    sides = [rows("a_b [1]", {0: 40., 1: 41., 2: 45.}, method=ODD, variant=ODD), rows("*c*", {0: 41., 1: 42., 2: 46.1})]
    whole = rows("d", {0: 40.}, dataset="market1501", parameters=dict(test_set=WHOLE))
    frame = pd.DataFrame({"[tb] name": [ODD, "*b"], "R_1 (%)": [1.5, 2.5], "gain": ["+1.0 ± 0.2", ""]})
    frame.attrs["footnote"] = ODD
    tables = [compare_runs(sides).formatted("latex"), compare_runs([whole]).formatted("latex"), to_latex(frame, ODD),
              to_latex(frame.iloc[:0]), to_latex(frame, bold=["R_1 (%)"], label="tab:a-b_c")]
    (tmp_path/"t.tex").write_text("\n".join([r"\documentclass{article}\usepackage{booktabs}\begin{document}", *tables,
                                             r"\end{document}"]), "utf-8")
    run = subprocess.run([LATEX, "-interaction=nonstopmode", "-halt-on-error", "t.tex"], cwd=tmp_path,
                         capture_output=True, text=True, errors="replace")
    assert run.returncode == 0 and (tmp_path/"t.pdf").exists(), run.stdout[-2000:]


def test_compare_takes_folders_of_runs(tmp_path, capsys):
    a, b = run_in(tmp_path/"a", {0: 40., 1: 42.}), run_in(tmp_path/"b", {0: 41., 1: 43.2})
    assert main(["compare", a, f"mine={b}"]) == 0
    text = capsys.readouterr().out
    assert "+1.1 [" in text and "to a" in text and "mine" in text and "test of plumbing" not in text
    assert max(map(len, text.split("\n\n")[0].splitlines())) <= 100
    assert main(["compare", a, b, "--csv"]) == 0
    frame = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert frame.mAP_mean.round(1).tolist() == [41., 42.1] and frame.against.tolist()[1] == "a"
    one = compare_runs([rows("a", {0: 40.}), rows("b", {0: 41.})]).lines.iloc[1]
    assert one["diff"] == 1. and math.isnan(one.low) and math.isnan(one.high)     # one draw has no interval
    assert main(["compare", a, b, "--out", str(tmp_path/"t.tex")]) == 0 and "tabular" in (tmp_path/"t.tex").read_text()
    capsys.readouterr()
    assert main(["compare", a, b, "--fuse"]) == 2 and "is for features and models" in capsys.readouterr().err
    assert main(["compare", a, b, "--seed", "7"]) == 2 and "--seed is for features" in capsys.readouterr().err
    for again in ([a, a], [a, f"{a}/"], [f"x={a}", f"y={a}"], [f"x={tmp_path}", f"y={b}"]):
        assert main(["compare", *again]) == 2 and "are the same run; leave one of them out" in capsys.readouterr().err
    for form in (["--format", "latex"], ["--latex"]):
        assert main(["compare", a, b, "--out", str(tmp_path/"t.csv"), *form]) == 2
        assert "ask for two forms" in capsys.readouterr().err and not (tmp_path/"t.csv").exists()
    assert main(["compare", a, b, "--out", str(tmp_path/"u.tex"), "--latex"]) == 0


DAMAGE = {  # what became of the metrics of a run -> what is said of it
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:200]), "its metrics.json cannot be read"),
    "bytes": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "its metrics.json cannot be read"),
    "gone": (lambda path: path.unlink(), "it holds no metrics.json"),
    "other": (lambda path: path.write_text("{}"), "its metrics.json is not that of a run"),
    "no rows": (lambda path: path.write_text(path.read_text().replace('"rows"', '"rws"')),
                "its metrics.json has no rows"),
    "half a row": (lambda path: path.write_text(path.read_text().replace('"metrics"', '"metric"')),
                   "row 1 of its metrics.json has no scores")}


@pytest.mark.parametrize("damage, said", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_named_with_a_remedy(tmp_path, capsys, damage, said):
    whole, bad = run_in(tmp_path/"whole", {0: 40.}), run_in(tmp_path/"bad", {0: 41.})
    damage(tmp_path/"bad"/"metrics.json")
    for words in (["compare", whole, bad], ["compare", bad, whole], ["results", "table", bad], ["cite", bad]):
        assert main(words) == 2
        err = capsys.readouterr().err
        assert f"{bad!r}: {said}" in err and f"`reid_lab run dart3 --out {bad}`" in err, err
    run_in(tmp_path/"sweep"/"0", {0: 40.})
    (tmp_path/"bad").rename(tmp_path/"sweep"/"1")
    assert main(["results", "table", str(tmp_path/"sweep")]) == 2 and said in capsys.readouterr().err


def test_what_is_no_run_is_named_and_not_the_run_beside_it(tmp_path, capsys):
    run = run_in(tmp_path/"run", {0: 40.})
    (tmp_path/"empty").mkdir()
    assert main(["compare", run, str(tmp_path/"empty")]) == 2
    assert f"{str(tmp_path/'empty')!r} is no folder of a run, and {run!r} is one" in capsys.readouterr().err
    assert main(["results", "table", str(tmp_path/"empty")]) == 2
    assert f"{str(tmp_path/'empty')!r} is no folder of a run" in capsys.readouterr().err


def test_unfinished_runs_are_refused_and_sweeps_are_one_side(tmp_path):
    run_in(tmp_path/"sweep"/"0", {0: 40.})
    run_in(tmp_path/"sweep"/"1", {1: 42.})
    (side,) = sides_of(tmp_path/"sweep")
    assert side.rows.seed.tolist() == [0, 1] and side.n_open == 0
    run = start_run("run_dart3", dict(preset="smoke", seed=0), tmp_path/"open")
    with pytest.raises(ValueError, match="is not finished"): sides_of(tmp_path/"open")
    run.end("interrupted")
    with pytest.raises(FileNotFoundError, match="is no folder of a run"): sides_of(tmp_path/"sweep"/"0"/"x")


def test_a_sweep_over_a_parameter_is_a_side_a_value_and_open_runs_are_counted(tmp_path):
    for at, (lr, seed, score) in enumerate([(.1, 0, 40.), (.1, 1, 42.), (.2, 0, 90.), (.2, 1, 92.)]):
        run_in(tmp_path/"sweep"/str(at), {seed: score}, lr=lr)
    open_run = start_run("run_dart3", dict(preset="quick", seed=0, lr=.1), tmp_path/"sweep"/"open", tmp_path/"own.csv")
    open_run.end("interrupted")
    sides = sides_of(tmp_path/"sweep")
    found = [(side.label, len(side.rows), side.n_open) for side in sides]
    assert found == [("sweep lr=0.1", 2, 1), ("sweep lr=0.2", 2, 0)]
    table = compare_runs(sides)
    assert table.lines.mAP_mean.tolist() == [41., 91.] and "sweep lr=0.1: 1 of its runs not finished" in table.text()


def test_two_runs_of_one_name_are_refused_by_every_door(tmp_path, capsys):
    one, other = run_in(tmp_path/"x"/"run", {0: 40.}), run_in(tmp_path/"y"/"run", {0: 90.})
    for command in (["compare"], ["results", "table"]):
        assert main([*command, one, other]) == 2
        assert "two runs are called 'run'; name them, such as first=FOLDER" in capsys.readouterr().err
        assert main([*command, f"first={one}", other]) == 0 and "first" in capsys.readouterr().out


def test_a_difference_of_some_pairs_and_one_of_other_starts_say_so():
    a, b = rows("a", {0: 40., 1: 50., 2: 60.}), rows("b", {2: 61., 3: 70., 4: 90.})
    assert "+1.0 to a, 1 pair only" in compare_runs([a, b]).text()
    starts = [rows(n, {0: 40., 1: 50. + x}, parameters=dict(weights=w))
              for n, w, x in (("a", "none", 0), ("b", "world", .5))]
    assert "not resolved: other starts" in compare_runs(starts).text()


def stored(run, seed, lr=1, **more):
    return dict(run=run, time=f"2026-01-0{seed + 1}", notebook="own", preset="quick", seed=seed, variant="Norm",
                dataset="world-quick", split="test", parameters=dict(lr=lr),
                metrics=dict(R1=40. + seed, mAP=30.)) | more


def test_the_table_of_a_store_joins_what_differs_in_the_seed_alone(tmp_path, capsys, monkeypatch):
    store = tmp_path/"own.csv"
    append_results([stored("a", 0), stored("b", 1), stored("c", 0, lr=2)], store)
    assert [side.label for side in stored_sides(store)] == ["a (+1)", "c"]
    assert main(["results", "table", "--store", str(store), "--markdown"]) == 0
    assert "40.5 ± 0.7" in capsys.readouterr().out
    assert main(["results", "--store", str(store)]) == 0
    assert "30.0 Norm" in capsys.readouterr().out
    assert main(["results", "--store", str(store), "--latex"]) == 2 and "results table" in capsys.readouterr().err
    monkeypatch.delenv("REID_LAB_RESULTS", raising=False)
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    assert main(["results"]) == 2 and "`reid_lab results table FOLDER` shows them" in capsys.readouterr().err
    (Path(run_in(tmp_path/"runs"/"run_dart3-1", {0: 40.}, preset="smoke"))/"results.csv").touch()
    assert main(["results", "list", "a"]) == 2 and "shows them" in capsys.readouterr().err
    assert main(["results"]) == 0, "runs at preset=smoke alone: nothing is wrong, and they are where they belong"
    out, err = capsys.readouterr()
    assert "No rows are stored yet. Rows of preset=smoke are not stored" in out and err == ""
    assert re.search("`reid_lab results table [^`]*run_dart3-1` shows them", out)


def test_bibtex(tmp_path, capsys):
    run = run_in(tmp_path/"a", {0: 40.}, "run_camel")
    assert main(["cite", run]) == 0
    text = capsys.readouterr().out
    assert "@article{camel," in text and "Yu, Hang and Wen, Jiahao and Zheng, Zhedong" in text and "@software" in text
    assert main(["cite", "dart3"]) == 0 and "DART3" in capsys.readouterr().out
    assert main(["cite"]) == 0 and capsys.readouterr().out.count("@") == 1
    assert main(["cite", "camle"]) == 2 and "Did you mean 'camel'" in capsys.readouterr().err
    assert set(PAPER_OF.values()) == set(REFERENCES) and "doi" not in bibtex(REFERENCES).lower()
    entry = Reference("x", "50 % of R_1", ("A, B",)).bibtex()
    assert entry == "@misc{x,\n  title     = {{50 \\% of R\\_1}},\n  author    = {A, B}\n}"
