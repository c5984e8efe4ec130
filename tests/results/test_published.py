"Published tables: what the papers print, and ours beside them without mixing"
import json
import os
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pandas as pd
import pytest

from reid_lab.datasets.registry import DATASETS
from reid_lab.results import published
from reid_lab.results.published import (
    ALIASES,
    PAPERS,
    TEST_SETS,
    benchmark,
    comparable,
    compare,
    is_world,
    load_paper,
    published_figures,
    published_table,
    published_tables,
    scored_on,
)
from reid_lab.results.tables import to_markdown
from reid_lab.retrieval.protocols import PROTOCOLS

FOLDER = resources.files("reid_lab")/"resources"/"published"


def test_the_papers_are_the_files():
    assert {f"{k}.json" for k in PAPERS} == {f.name for f in FOLDER.iterdir() if f.name.endswith(".json")}
    assert len(PAPERS) == len(set(PAPERS.values())) and all(load_paper(k)["key"] == k for k in PAPERS)
    assert not set(ALIASES) & set(PAPERS) and {load_paper(a.upper())["key"] for a in ALIASES} <= set(PAPERS)


def test_one_more_file_is_one_more_paper(tmp_path):
    "Without an edit anywhere: in a copy of the package, `reid_lab published` lists and prints it"
    ignore = shutil.ignore_patterns("__pycache__")
    package = Path(shutil.copytree(Path(published.__file__).parents[1], tmp_path/"reid_lab", ignore=ignore))
    paper = (json.loads((FOLDER/"camel.json").read_text(encoding="utf-8"))
             | dict(key="sixth", paper="A sixth paper", aliases=["6th"], figures=[]))
    (package/"resources"/"published"/"sixth.json").write_text(json.dumps(paper))
    def said(*args):
        program = "import sys; from reid_lab.cli.commands import main; sys.exit(main())"
        run = subprocess.run([sys.executable, "-c", program, "published", *args], capture_output=True, text=True,
                             cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)
        return run.stdout
    assert "sixth  A sixth paper" in said() and "77.24" in said("6th", "I") and "sixth" in said("--help")
    assert "Text-to-image retrieval on CUHK-PEDES" in said("sixth")   # its index; a paper may have no figures


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_reads(paper):
    for table, line in published_tables(paper).iterrows():
        frame = published_table(paper, table)
        assert len(frame) == line["rows"] and frame.attrs["caption"] == line["caption"]
        values = frame[frame.attrs["metrics"]]
        assert values.notna().any(axis=0).all()
        assert values.notna().any(axis=1).mean() > .9  # some rows are printed as dashes
    assert len(published_figures(paper)) == len(load_paper(paper)["figures"])


def test_numbers_as_printed():
    best = published_table("camel", "I").query("method == 'CAMeL (Finetuned)'").iloc[0]
    assert (best.R1, best.R5, best.R10, best.mAP) == (77.24, 91.8, 95.16, 68.32)
    dmg = published_table("dmg", "4").iloc[-1]
    assert (dmg.mAP, dmg.R1, dmg.R5) == (64.39, 86.08, 96.78)  # printed as CMC
    assert published_table("ufinebench", "3A").attrs["table"] == "3a"


def test_errors_list_what_there_is():
    with pytest.raises(ValueError, match=", ".join(map(repr, PAPERS))): published_table("resnet", "I")
    with pytest.raises(ValueError, match=r"\['I', 'II', 'III', 'IV', 'V', 'VI', 'VII'\]"): published_table("camel", "8")
    with pytest.raises(ValueError, match="no 'dataset'"): compare(dict(R1=50.), "camel", "I")
    with pytest.raises(ValueError, match="none of the table's metrics"):
        compare(dict(dataset="world", acc=1.), "camel", "I")


def test_world_stands_apart_and_never_wins():
    both = compare([dict(dataset="World-quick", R1=99., mAP=99.),
                    dict(dataset="CUHK-PEDES", test_set="published", metrics=dict(R1=60., mAP=50.))],
                   "camel", "I")
    assert both.origin.drop_duplicates().tolist() == ["published", "ours", "ours (world)"]
    assert "synthetic" in both.attrs["footnote"]
    text = to_markdown(both, bold=["R1"])
    assert "**77.24**" in text and "**99.00**" in text and "**60.00**" in text  # one best per section


def test_compare_keeps_only_the_dataset_asked_for():
    mine = pd.DataFrame([dict(dataset="RSTPReid", test_set="published", R1=60.)])
    both = compare(mine, "camel", "VII", dataset="RSTPReid")
    assert set(both.dataset) == {"RSTPReid"} and both.attrs["footnote"] == ""


@pytest.mark.parametrize("name, synthetic",
                         [("world", True), ("World:aerial", True), ("MSMT17", False), ("the world", False)])
def test_is_world(name, synthetic): assert is_world(name) is synthetic


# --- only the published test set stands beside published numbers ------------------------------------------------------

def sides(q, g, cams=2):
    return dict(query=dict(zip(("ids", "images", "captions"), q), cams=cams),
                gallery=dict(zip(("ids", "images", "captions"), g), cams=cams))


CUHK = sides((1000, 3074, 6156), (1000, 3074, 6156))
FEW = sides((30, 92, 184), (30, 92, 184))


def test_a_subset_is_not_set_beside_printed_rows():
    rows = [dict(method=m, dataset="cuhk-pedes", test_set=t, R1=r)
            for m, t, r in (("whole", CUHK, 60.), ("few", FEW, 99.))]
    both = compare([*rows, dict(method="old", dataset="cuhk-pedes", R1=98.)], "camel", "I")
    assert both[both.origin == "ours"].method.tolist() == ["whole"] and 99 not in both.R1.tolist()
    note = both.attrs["footnote"]
    assert "few (cuhk-pedes: the query has 30 ids, published: 1,000)" in note
    assert "old (cuhk-pedes: its test set is not recorded" in note


@pytest.mark.parametrize("table, shown", [("I", True), ("II", False), ("III", False), ("IV", True), ("VI", False)])
def test_a_row_stands_under_its_own_dataset_only(table, shown):
    both = compare(dict(method="ours", dataset="cuhk-pedes", test_set=CUHK, R1=60., mAP=50.), "camel", table)
    mine = both[both.origin != "published"]
    assert mine.dataset.tolist() == ["CUHK-PEDES"]*shown
    assert ("is not in this table" in both.attrs["footnote"]) is not shown


def test_protocols_of_new_cameras_are_told_apart():
    whole = sides((750, 3368), (751, 15913), 6)
    assert comparable("market1501", whole) == "" and comparable("market1501->market1501", whole, "Market-1501") == ""
    one = sides((200, 700), (750, 15913), 1)
    assert comparable("market1501-5", one, "Market-1501 (1 unseen camera)") == ""
    assert "new cameras only" in comparable("market1501-5", one, "Market-1501")
    assert "all cameras" in comparable("market1501", whole, "Market-1501 (1 unseen camera)")
    assert "other cameras" in comparable("msmt17-10", sides((3060, 900), (3060, 82161), 4), "MSMT17 (5 unseen cameras)")
    few = sides((20, 99), (20, 300), 1)
    assert "the gallery has 20 ids" in comparable("market1501-5", few, "Market-1501 (1 unseen camera)")
    both = compare(dict(dataset="market1501-5", test_set=one, R1=60., mAP=50.), "dart3", "1")
    assert both[both.origin == "ours"].dataset.tolist() == ["Market-1501"]


def test_rows_of_the_store_bring_their_test_set(tmp_path):
    from reid_lab.results.rows import append_result, load_results
    for name, t in (("whole", CUHK), ("few", FEW)):
        append_result(dict(dataset="cuhk-pedes", variant=name, parameters=dict(test_set=t), metrics=dict(R1=60.)),
                      tmp_path/"r.csv")
    fields = dict(method="camel", stage="finetuned", options={})
    append_result(dict(dataset="cuhk-pedes", variant="CAMeL, finetuned", parameters=dict(test_set=CUHK, **fields),
                       metrics=dict(R1=60.)), tmp_path/"r.csv")
    both = compare(load_results(tmp_path/"r.csv"), "camel", "I")
    assert both[both.origin == "ours"].method.tolist() == ["whole", "CAMeL, finetuned"]


def test_the_counts_are_those_of_the_table():
    frame = pd.DataFrame(dict(pid=[0, 0, 1, -1], cam=[0, 1, 1, 1], path=list("abcd"),
                              captions=[["x"], ["y", "z"], [], []]))
    texts = pd.DataFrame(dict(caption=list("xyz"), pid=[0, 0, 0], cam=[0, 1, 1], path=list("abb")))
    assert scored_on(texts, frame) == dict(query=dict(ids=1, images=2, captions=3, cams=2),
                                           gallery=dict(ids=2, images=4, captions=3, cams=2))


def test_the_published_counts_are_those_of_the_registry():
    "`results` imports nothing from `datasets`; its keys, titles and counts are held against the registry here"
    def either(count): return {count} if isinstance(count, int) else set(count)

    def by_a_protocol(d):
        "Whether the default protocol chooses among the rows, so that counts of all rows are those of no score"
        chosen = [PROTOCOLS[name] for name in d.protocols[:1]]
        sides = [rows for protocol in chosen for rows in (protocol.queries, protocol.gallery)]
        columns = {name for rows in sides for name in rows.columns}
        columns -= {"occluded"}     # covered people are the queries, all of them
        pools = any(protocol.measure.pooling for protocol in chosen)    # tracks are counted, not images
        return bool(columns) or pools or any(protocol.draw for protocol in chosen)

    assert {key: t.title for key, t in TEST_SETS.items()} == {key: d.title for key, d in DATASETS.items()}
    for key, d in DATASETS.items():
        counts, query, gallery = d.counts or {}, None, None
        if by_a_protocol(d) or None in counts.get("query", ()): pass
        elif "query" in counts and "gallery" in counts:
            query, gallery = (dict(zip(("ids", "images"), map(either, counts[side]))) for side in ("query", "gallery"))
        elif len(captioned := counts.get("test") or counts.get("gallery", ())) == 3:    # of an aerial set, its gallery
            ids, images, captions = map(either, captioned)
            query, gallery = dict(ids=ids, captions=captions), dict(ids=ids, images=images)
        assert (TEST_SETS[key].query, TEST_SETS[key].gallery) == (query, gallery), key


def test_datasets_are_known_by_key_and_by_title():
    for key, d in DATASETS.items(): assert benchmark(key)[0] == benchmark(d.title)[0] == key
    assert benchmark("DukeMTMC (3 unseen cameras)") == ("dukemtmc-reid", "3 unseen cameras")
    assert benchmark("PRID")[0] == "prid2011" and benchmark("A Set of My Own") == ("asetofmyown", "")
    assert benchmark("world->market1501-2") == ("market1501", "new cameras")
