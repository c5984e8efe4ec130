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

from reid_lab import published
from reid_lab.published import (ALIASES, PAPERS, compare, is_world, load_paper, published_figures, published_table,
                                published_tables)
from reid_lab.results import to_markdown


FOLDER = resources.files("reid_lab")/"resources"/"published"


def test_the_papers_are_the_files():
    assert {f"{k}.json" for k in PAPERS} == {f.name for f in FOLDER.iterdir() if f.name.endswith(".json")}
    assert len(PAPERS) == len(set(PAPERS.values())) and all(load_paper(k)["key"] == k for k in PAPERS)
    assert not set(ALIASES) & set(PAPERS) and {load_paper(a.upper())["key"] for a in ALIASES} <= set(PAPERS)


def test_one_more_file_is_one_more_paper(tmp_path):
    "Without an edit anywhere: in a copy of the package, `reid_lab published` lists and prints it"
    ignore = shutil.ignore_patterns("__pycache__")
    package = Path(shutil.copytree(Path(published.__file__).parent, tmp_path/"reid_lab", ignore=ignore))
    paper = (json.loads((FOLDER/"camel.json").read_text(encoding="utf-8"))
             | dict(key="sixth", paper="A sixth paper", aliases=["6th"], figures=[]))
    (package/"resources"/"published"/"sixth.json").write_text(json.dumps(paper))
    def said(*args):
        run = subprocess.run([sys.executable, "-c", "import sys; from reid_lab.cli import main; sys.exit(main())",
                              "published", *args], capture_output=True, text=True, cwd=tmp_path,
                             env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)
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
                    dict(dataset="CUHK-PEDES", metrics=dict(R1=60., mAP=50.))], "camel", "I")
    assert both.origin.drop_duplicates().tolist() == ["published", "ours", "ours (world)"]
    assert "synthetic" in both.attrs["footnote"]
    text = to_markdown(both, bold=["R1"])
    assert "**77.24**" in text and "**99.00**" in text and "**60.00**" in text  # one best per section


def test_compare_keeps_only_the_dataset_asked_for():
    both = compare(pd.DataFrame([dict(dataset="RSTPReid", R1=60.)]), "camel", "VII", dataset="RSTPReid")
    assert set(both.dataset) == {"RSTPReid"} and both.attrs["footnote"] == ""


@pytest.mark.parametrize("name, synthetic",
                         [("world", True), ("World:aerial", True), ("MSMT17", False), ("the world", False)])
def test_is_world(name, synthetic): assert is_world(name) is synthetic
