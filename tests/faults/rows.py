"""Result rows, tables beside published numbers, and figures of them."""
import csv
import math
import os
import time

import numpy as np
import pandas as pd
from fault import DIED, bad, interruption, killed, refused, warned

from reid_lab.figures.captions import image_rows
from reid_lab.figures.charts import bars_paired, curves, learning_curves
from reid_lab.figures.explain import map_sheet
from reid_lab.figures.style import export, paper_figure
from reid_lab.recipes.dmg import STUDIES as DMG
from reid_lab.recipes.study import Study, find_study, joined, register_figure, with_setting
from reid_lab.results import rows as results
from reid_lab.results.comparisons import paired, paired_table, relative_to, summarise
from reid_lab.results.published import compare, published_table
from reid_lab.results.rows import Setting, append_result, append_results, load_results, publish
from reid_lab.results.tables import to_latex, to_markdown


def _row(**more):
    return dict(dataset="world-quick", split="test", preset="quick", run="a", commit="0123456789", seed=0,
                metrics=dict(R1=40.)) | more


def _add(tmp, **more): return append_result(_row(**more), tmp/"r.csv")


def _frame(**more): return pd.DataFrame([dict(variant=v, seed=s, R1=40. + s, dataset="world") | more
                                         for v in "ab" for s in (0, 1)])


def _file(tmp, text, first=True):
    "A results file with a row, and `text` in place of its end"
    if first: _add(tmp)
    with open(tmp/"r.csv", "a") as f: f.write(text)
    return tmp/"r.csv"


def _damaged(tmp):
    _add(tmp, variant="two\nlines")
    _add(tmp)
    path = tmp/"r.csv"
    path.write_text(path.read_text().replace('{""R1"": 40.0}', '{""R1"": [1]}'))
    return load_results(path)


def _published(tmp, store="own.csv", **more):
    append_result(_row(**more), tmp/store)
    return publish("a", tmp/store, tmp/"to.csv")


def _mixed(): return pd.concat([_frame(), _frame(dataset="cuhk-pedes", seed=7)], ignore_index=True)


def _twice(tmp):
    _published(tmp)
    return publish("a", tmp/"own.csv", tmp/"to.csv")


BAD = [
    bad("row: no dataset", "dataset is empty", lambda tmp: _add(tmp, dataset=""), "needs 'dataset'"),
    bad("row: no metrics", "metrics is {}", lambda tmp: _add(tmp, metrics={}), "needs 'metrics'"),
    bad("row: a misspelt column", "datset=", lambda tmp: _add(tmp, datset="x"), "datset", "Did you mean 'dataset'"),
    bad("row: an infinite metric", "R1 is inf", lambda tmp: _add(tmp, metrics=dict(mAP=1., R1=math.inf)),
        "metric 'R1' is inf", "JSON", "NaN"),
    bad("row: a list as a metric", "R1 is [1, 2]", lambda tmp: _add(tmp, metrics=dict(R1=[1, 2])),
        "metric 'R1' is [1, 2] (list)", "no number"),
    bad("row: an array as a metric", "R1 has two values", lambda tmp: _add(tmp, metrics=dict(R1=np.ones(2))),
        "metric 'R1'", "(ndarray)", "no number"),
    bad("row: a dict as a metric", "R1 is {}", lambda tmp: _add(tmp, metrics=dict(R1={})), "metric 'R1'", "(dict)"),
    bad("row: a text as a metric", "R1 is '40'", lambda tmp: _add(tmp, metrics=dict(R1="40")), "metric 'R1'", "(str)"),
    bad("row: a metric named as a column", "a metric is called seed", lambda tmp: _add(tmp, metrics=dict(seed=1)),
        "metric 'seed'", "none of the columns"),
    bad("row: metrics is a list", "metrics=[40]", lambda tmp: _add(tmp, metrics=[40.]), "metrics=[40.0]", "a dict"),
    bad("row: a seed that is no number", "seed='first'", lambda tmp: _add(tmp, seed="first"), "'seed' is 'first'",
        "no number"),
    bad("row: half a character", "a lone surrogate", lambda tmp: _add(tmp, variant="a\ud800"), "'variant'",
        "half a character"),
    bad("row: one of two is wrong", "the second has no dataset; nothing is written",
        lambda tmp: append_results([_row(), _row(dataset="")], tmp/"r.csv"), "needs 'dataset'"),
    bad("run: a metric is None", "record(R1=None)", lambda tmp: _run(tmp).record(dict(R1=None), "world"),
        "metric 'R1' is None", "no number", "NaN"),
    bad("run: an infinite metric", "record(R1=-inf)", lambda tmp: _run(tmp).record(dict(R1=-math.inf), "world"),
        "metric 'R1' is -inf"),
    bad("run: a field of the setting twice", "record(setting=, method=)",
        lambda tmp: _run(tmp).record(dict(R1=1.), "world", setting=Setting("a"), method="b"),
        "method='b' is a field of", "leave it out"),
    bad("results: settings of another stage", "CAMeL finetuned against Baseline zeroshot",
        lambda tmp: paired(_frame().assign(setting=[Setting("a")]*2 + [Setting("b", "x")]*2), "R1", Setting("a"),
                           Setting("b")), "setting="),
    bad("study: a figure that is not registered", "shows=('map',)", lambda tmp: Study("", (), shows=("map",)),
        "shows='map'", "Did you mean 'maps'", "register_figure"),
    bad("study: figures as one text", "shows='maps'", lambda tmp: Study("", (), shows="maps"), "must be a tuple"),
    bad("study: a figure's name that is taken", "register_figure('maps')", lambda tmp: register_figure("maps", "x"),
        "'maps' is registered as"),
    bad("study: a drawing of the paper", "find_study('Figure 3')", lambda tmp: find_study(DMG, "Figure 3", "dmg"),
        "study='Figure 3' is a drawing", "no run repeats", "1, 2, 4"),
    bad("study: a drawing, asked of the command", "`run dart3 -p study='Fig. 4'`",
        lambda tmp: refused("run", "dart3", "-p", "study=Fig. 4", "-p", "preset=smoke", "--out", tmp/"o"),
        "study='Fig. 4' is a drawing", "1, 2, 3, 5"),
    bad("study: a panel that no figure has", "`run dart3 -p study='Fig. 5e'`",
        lambda tmp: refused("run", "dart3", "-p", "study=Fig. 5e", "-p", "preset=smoke", "--out", tmp/"o"),
        "study='Fig. 5e' is not known", "fig5d"),
    bad("study: maps of a model that is not trained", "`run camel -p study='Fig. 7' -p model=frozen_pair:...`",
        lambda tmp: [(tmp/"w.pt").write_bytes(b""), refused("run", "camel", "-p", "study=Fig. 7", "-p", "preset=smoke",
            "-p", "model=frozen_pair:ViT-S-32-alt", "-p", f"weights={tmp/'w.pt'}", "--out", tmp/"o")],
        "is not trained", "study='Fig. 7'", "leave model out"),
    bad("study: joined studies of several protocols", "protocol 'camera' and 'source'",
        lambda tmp: joined("", (), a=Study("", (), protocol="camera"), b=Study("", (), protocol="source")),
        "protocol differs", "'a': 'camera', 'b': 'source'"),
    bad("figures: rows without an image", "image_rows({'a': []})", lambda tmp: image_rows({"a": []}), "hold no image",
        "give at least one"),
    bad("figures: a page without maps", "map_sheet([])", lambda tmp: map_sheet([]), "groups is empty"),
    bad("study: a row of no setting", "variant='TENT'",
        lambda tmp: with_setting(_frame(), [dict(name="a")]), "variant='b'", "['a']"),
    bad("results: no such file", "nothing was run", lambda tmp: load_results(tmp/"r.csv"), "no results at",
        "store 'measured'", error=FileNotFoundError),
    bad("results: another table", "a CSV of something else",
        lambda tmp: load_results((tmp/"r.csv").write_text("a,b\n1,2\n") and tmp/"r.csv"), "header='a,b'",
        "run,time,commit"),
    bad("results: append to another table", "a CSV of something else",
        lambda tmp: (tmp/"r.csv").write_text("a,b\n1,2\n") and _add(tmp), "header is 'a,b'", "move the file away"),
    bad("results: a damaged row", "a metric was edited to a list", _damaged, "begins at line 2", "metric 'R1' is [1]",
        "All other rows can stay"),
    bad("results: a filter that is no column", "load_results(varient=)",
        lambda tmp: _add(tmp) and load_results(tmp/"r.csv", varient="x"), "filter='varient'", "Did you mean 'variant'"),
    bad("results: a mean over two datasets", "World and CUHK-PEDES", lambda tmp: summarise(_mixed(), "R1", "variant"),
        "would mix 2 values of 'dataset'", "cuhk-pedes", "pick"),
    bad("results: pairs of two datasets", "World against CUHK-PEDES",
        lambda tmp: paired(pd.concat([_frame()[:2], _frame(dataset="x")[2:]], ignore_index=True), "R1", "a", "b"),
        "would mix 2 values of 'dataset'"),
    bad("results: differences over two splits", "val and test",
        lambda tmp: relative_to(_frame().assign(split=["val", "val", "test", "test"]), "R1", "a"), "'split'", "val"),
    bad("results: two rows of a seed", "a run was repeated",
        lambda tmp: paired(pd.concat([_frame()]*2), "R1", "a", "b"),
        "more than one row", "pick"),
    bad("results: no common seed", "other seeds", lambda tmp: paired(_frame().assign(seed=range(4)), "R1", "a", "b"),
        "share no ['seed']"),
    bad("results: an unknown baseline", "base='c'", lambda tmp: paired_table(_frame(), "R1", "c"), "variant='c'"),
    bad("publish: a smoke run", "preset=smoke", lambda tmp: _published(tmp, preset="smoke"), "preset=smoke",
        "Nothing was added"),
    bad("publish: changed files", "commit with a +", lambda tmp: _published(tmp, commit="0123+"), "changed files",
        "dirty"),
    bad("publish: no commit", "a run outside a checkout", lambda tmp: _published(tmp, commit=""), "name no commit"),
    bad("publish: twice", "the same rows again", _twice, "are in to.csv already"),
    bad("publish: a run that is not there", "publish('b')",
        lambda tmp: _published(tmp) and publish("b", tmp/"own.csv", tmp/"to.csv"), "run='b'", "['a']"),
    bad("publish: no run named", "publish([])", lambda tmp: _published(tmp) and publish([], tmp/"own.csv"),
        "no run is named"),
    bad("cli: results of a file that is not there", "--store none.csv",
        lambda tmp: refused("results", "--store", tmp/"none.csv"), "no results at", "reid_lab results"),
    bad("cli: publish a smoke run", "results publish",
        lambda tmp: (append_result(_row(preset="smoke"), tmp/"o.csv"),
                     refused("results", "publish", "a", "--store", tmp/"o.csv")), "preset=smoke", "Nothing was added"),
    bad("published: a table that is not there", "Table IX", lambda tmp: published_table("camel", "IX"), "table='IX'"),
    bad("published: no dataset", "compare(R1=40)", lambda tmp: compare(dict(R1=40.), "camel", "I"), "ours[0]",
        "'dataset'"),
    bad("published: no metric of the table", "compare(acc=40)",
        lambda tmp: compare(dict(dataset="world", acc=40.), "camel", "I"), "none of the table's metrics", "acc"),
    bad("published: a dataset of another table", "dataset='MSMT17'",
        lambda tmp: compare(dict(dataset="world", R1=40.), "camel", "I", dataset="MSMT17"), "dataset='MSMT17'"),
    bad("table: a label that LaTeX would run", r"label='a}\input{b'",
        lambda tmp: to_latex(_frame(), label=r"a}\input{b"), "label=", "letters, digits"),
    bad("table: bold of no column", "bold=['R2']", lambda tmp: to_markdown(_frame(), bold=["R2"]), "bold='R2'"),
    bad("figure: a name that leaves the folder", "export('../x')",
        lambda tmp: export(paper_figure(1, 1), "../x", tmp), "leaves the dataset folder"),
    bad("figure: an unknown format", "gif", lambda tmp: export(paper_figure(1, 1), "x", tmp, "gif"), "format='gif'",
        "pdf"),
    bad("figure: an unknown column", "x='sed'", lambda tmp: curves(_frame(), "sed", "R1"), "x='sed'", "'seed'"),
    bad("figure: an unknown log column", "metrics='los'", lambda tmp: learning_curves([dict(step=1, loss=1.)], "los"),
        "log column='los'", "loss"),
    bad("figure: bars over two datasets", "World and CUHK-PEDES",
        lambda tmp: bars_paired(pd.concat([_frame()[:2], _frame(dataset="x")[2:]], ignore_index=True), "R1", "a"),
        "would mix 2 values of 'dataset'"),
]


def _run(tmp):
    from reid_lab.experiments.run import start_run
    return start_run("run_demo", dict(preset="quick"), tmp/"run", results=tmp/"r.csv")


def _half(f, data):
    "A write that dies in the middle"
    f.write(bytes(data[:len(data)*3//5]))
    os._exit(DIED)


def _write_dies(tmp, rows=1):
    "A process that is killed while it writes rows"
    pid = os.fork()
    if pid == 0:
        try:
            results._write = _half
            append_results([_row(variant="torn, by a kill", seed=9)]*rows, tmp/"r.csv")
        finally: os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == DIED


def _killed_in_a_row(tmp):
    _add(tmp)
    good = (tmp/"r.csv").read_bytes()
    _write_dies(tmp)
    assert (tmp/"r.csv").read_bytes() != good
    with warned() as said: assert load_results(tmp/"r.csv").seed.tolist() == [0]
    _add(tmp, seed=1)
    assert (tmp/"r.csv").read_bytes().startswith(good) and load_results(tmp/"r.csv").seed.tolist() == [0, 1]
    assert "torn, by a kill" in (tmp/"r.csv.torn").read_text()
    return said[0]


def _killed_in_the_first_row(tmp):
    _write_dies(tmp)
    text = (tmp/"r.csv").read_text()
    (tmp/"r.csv").write_text(text[:50])     # not even the header is whole
    assert len(load_results(tmp/"r.csv")) == 0
    _add(tmp)
    assert load_results(tmp/"r.csv").seed.tolist() == [0]
    return (tmp/"r.csv").read_text()[:20]


def _killed_after_the_write(tmp):
    "Rows that are written count, although the writer did not live to say so"
    killed(lambda: _add(tmp), "os.fsync")
    _add(tmp, seed=1)
    assert load_results(tmp/"r.csv").seed.tolist() == [0, 1] and not (tmp/"r.csv.torn").exists()
    return "two rows"


def _disk_full(tmp):
    _add(tmp)
    good = (tmp/"r.csv").read_bytes()
    def full(f, data):
        f.write(data[:30])
        raise OSError(28, "No space left on device")
    true, results._write = results._write, full
    try: _add(tmp, seed=1)
    except OSError as e: said = f"{e} {e.__notes__}"
    finally: results._write = true
    assert (tmp/"r.csv").read_bytes() == good
    return said


def _interrupted(tmp):
    "Ctrl-C in a write"
    _add(tmp)
    good = (tmp/"r.csv").read_bytes()
    def stop(f, data):
        f.write(data[:30])
        raise KeyboardInterrupt
    true, results._write = results._write, stop
    try: _add(tmp, seed=1)
    except KeyboardInterrupt as e: said = str(e.__notes__)
    finally: results._write = true
    assert (tmp/"r.csv").read_bytes() == good
    return said


def _eight_writers(tmp):
    "Forks add a row each until they are killed, which tears every third row"
    _add(tmp, variant="first")
    def work(me):
        for n in range(6):
            if n % 3 == 2 and me % 2:
                results._write = _half
            append_result(_row(run=f"w{me}", seed=n), tmp/"r.csv")
    pids = []
    for me in range(8):
        pid = os.fork()
        if pid == 0:
            try:
                work(me)
                os._exit(0)
            finally: os._exit(1)
        pids.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]
    assert codes == [0, DIED]*4
    _add(tmp, variant="last")
    frame = load_results(tmp/"r.csv")
    assert len(frame) == 2 + 4*6 + 4*2 and not frame.duplicated(["run", "seed", "variant"]).any()
    with open(tmp/"r.csv", newline="") as f: assert {len(r) for r in csv.reader(f)} == {15}
    return f"{len(frame)} rows, {(tmp/'r.csv.torn').read_text().count('world-quick')} torn"


def _killed_while_publishing(tmp):
    append_results([_row(variant=v) for v in "abc"], tmp/"own.csv")
    _add(tmp)
    good = (tmp/"r.csv").read_bytes()
    pid = os.fork()
    if pid == 0:
        try:
            results._write = _half
            publish("a", tmp/"own.csv", tmp/"r.csv", variant=["a", "b", "c"])
        finally: os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == DIED
    with warned() as said: left = publish("a", tmp/"own.csv", tmp/"r.csv", variant=["b", "c"])
    assert len(left) == 2 and load_results(tmp/"r.csv").variant.tolist() == ["", "a", "b", "c"]
    assert (tmp/"r.csv").read_bytes().startswith(good)
    return said[0]


def _reader_beside_a_writer(tmp):
    "A reader waits for a write that is under way, and sees no torn row"
    _add(tmp)
    pid = os.fork()
    if pid == 0:
        def slow(f, data):
            f.write(data[:40])
            (tmp/"writing").touch()
            time.sleep(.3)
            f.write(data[40:])
        try:
            results._write = slow
            _add(tmp, seed=1)
            os._exit(0)
        finally: os._exit(1)
    while not (tmp/"writing").exists(): time.sleep(.01)
    with warned() as said: seeds = load_results(tmp/"r.csv").seed.tolist()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 and seeds == [0, 1] and not said
    return f"seeds {seeds}"


def _figure_dies(tmp):
    "A figure that is replaced keeps its old file"
    fig = paper_figure(1, 1)
    export(fig, "a", tmp, "png")
    old = (tmp/"a.png").read_bytes()
    killed(lambda: export(fig, "a", tmp, "png", dpi=50), "reid_lab.core.files._sync")
    assert (tmp/"a.png").read_bytes() == old
    return "old file"


FAULTS = [
    *BAD,
    interruption("row: killed in the middle of it", "a writer dies with three fifths of a row written",
                 "loading says so, the next append moves it away, no other byte changes", _killed_in_a_row,
                 "r.csv", "begins at line 3 is torn", "r.csv.torn"),
    interruption("row: killed in the first one", "a writer dies in the header", "the next append starts the file",
                 _killed_in_the_first_row, "run,time,commit"),
    interruption("row: killed before it is said to be safe", "a writer dies in fsync", "the row counts",
                 _killed_after_the_write, "two rows"),
    interruption("row: the disk is full", "the write fails after 30 bytes", "the file is cut back", _disk_full,
                 "No space left", "nothing was added to r.csv"),
    interruption("row: Ctrl-C in a write", "an interrupt after 30 bytes", "the file is cut back", _interrupted,
                 "nothing was added to r.csv"),
    interruption("rows: eight writers, four killed", "each second one dies in its third row",
                 "every other row is there once", _eight_writers, "34 rows, 4 torn"),
    interruption("rows: killed while publishing", "three rows of one call, killed in them",
                 "no part of a row stays, and it can be repeated", _killed_while_publishing, "torn"),
    interruption("rows: read while one is written", "a writer sleeps in its row", "the reader waits",
                 _reader_beside_a_writer, "seeds [0, 1]"),
    interruption("figure: killed while it is replaced", "export dies with everything written", "the old file is whole",
                 _figure_dies, "old file"),
]
