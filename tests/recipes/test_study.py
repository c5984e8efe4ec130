"""Every table and every data figure of the papers is reached by a name of a study, through the door of the commands."""
import pandas as pd
import pytest

from reid_lab.experiments.notebooks import check_before_run, experiments
from reid_lab.recipes.camel_settings import STUDIES as CAMEL
from reid_lab.recipes.dart3 import STUDIES as DART3
from reid_lab.recipes.study import Axes, Study, find_study, grid, joined, printed_names, setting_of, sweep_frame
from reid_lab.results.published import PAPERS, published_figures, published_tables

EXPERIMENTS = experiments()
TABLES = [(paper, f"Table {table}") for paper in PAPERS for table in published_tables(paper).index]
FIGURES = {kind: [(paper, f"Fig. {figure}") for paper in PAPERS
                  for figure, own in published_figures(paper).kind.items() if own == kind]
           for kind in ("data", "drawing")}


def asked(paper, name):
    "Everything that `reid_lab run` looks at before it starts a kernel"
    check_before_run(EXPERIMENTS[paper].path, dict(preset="smoke", study=name))


def study_of(paper, name):
    studies = EXPERIMENTS[paper].studies
    return studies[find_study(studies, name, paper)]


def repeated(study):
    "What a study and its parts print"
    return {p for one in (study, *(part for _, part in study.parts)) for p in one.printed}


def test_the_records_say_which_figures_are_drawings():
    assert (len(TABLES), len(FIGURES["data"]), len(FIGURES["drawing"])) == (36, 31, 6)
    assert set(FIGURES["drawing"]) == {("camel", "Fig. 2"), ("cfam", "Fig. 3"), ("cfan", "Fig. 2"), ("cfan", "Fig. 4"),
                                       ("dart3", "Fig. 4"), ("dmg", "Fig. 3")}
    for paper in PAPERS: assert set(published_figures(paper).kind) == {"data", "drawing"}


@pytest.mark.parametrize("paper, table", TABLES)
def test_every_table_is_reached(paper, table):
    asked(paper, table)
    study = study_of(paper, table)
    assert table in repeated(study) and table.removeprefix("Table ") in study.tables


@pytest.mark.parametrize("paper, figure", FIGURES["data"])
def test_every_data_figure_is_reached(paper, figure):
    asked(paper, figure)
    study = study_of(paper, figure)
    assert figure in repeated(study)
    always = study is EXPERIMENTS["cfam"].studies["captions"]      # every run draws them
    assert study.shows or study.axes or study.parts or always


@pytest.mark.parametrize("paper, figure", FIGURES["drawing"])
def test_a_drawing_says_that_it_is_one(paper, figure):
    for name in (figure, figure.lower().replace(". ", "")):
        with pytest.raises(ValueError, match=r"is a drawing, which no run repeats \(Diagram") as caught:
            asked(paper, name)
        assert f"study={name!r}" in str(caught.value) and "\n" not in str(caught.value)
        assert "figures that a study repeats are 1, " in str(caught.value)


@pytest.mark.parametrize("paper, name, key", [
    ("camel", "Fig. 1", "samples"), ("camel", "Figure 7", "attention"), ("camel", "fig8", "attention"),
    ("cfam", "Table 10", "captions"), ("cfam", "Fig. 8", "captions"), ("cfan", "Fig. 3", "triplets"),
    ("dmg", "Fig. 2", "scenes"), ("dmg", "Figure 1", "scenes"), ("cfam", "Table 3", "settings"),
    ("cfam", "table3b", "settings"), ("dart3", "Fig. 5", "fig5"), ("dart3", "Fig. 10", "fig10"),
    ("dart3", "Fig. 5a", "k_tau_dart3"), ("dart3", "Fig. 10d", "k_tau"), ("dart3", "Fig. 10f", "steps")])
def test_wholes_and_panels(paper, name, key):
    asked(paper, name)
    assert find_study(EXPERIMENTS[paper].studies, name, paper) == key


@pytest.mark.parametrize("paper, name", [("dart3", "Fig. 5e"), ("cfam", "Table 3c"), ("dart3", "Fig. 12"),
                                         ("camel", "Table 1"), ("dmg", "Fig. 3a"), ("cfan", "Table")])
def test_what_no_paper_prints_is_refused(paper, name):
    with pytest.raises(ValueError, match="is not known; choose one of .* Or name what the paper prints"):
        asked(paper, name)


def test_all_panels_of_a_figure_are_drawn_with_their_own_points():
    "Both sweeps of k and temperature have the same axes; each has the rows of its own method"
    import pandas as pd
    study = DART3["fig10"]
    runs = pd.DataFrame([dict(s, setting=setting_of(s), method=s["name"]) for s in study.settings])
    assert not runs.setting.duplicated().any() and len(runs) == 59 and study.seeds == 5
    drawn = {part: sweep_frame(sweep.axes, sweep.rows) for part, sweep in study.sweeps("fig10", runs).items()}
    assert {part: (len(f), set(f.method)) for part, f in drawn.items()} == dict(
        k_tau_dart3=(20, {"DART3"}), steps=(18, {"DART3", "DART3-LITE"}), k_tau=(20, {"DART3-LITE"}))
    few = runs[runs.method == "DART3-LITE"]
    assert len(few) == len(study.only(["DART3-LITE"])) == 30
    assert list(study.sweeps("fig10", few)) == ["steps", "k_tau"]       # nothing is left of the third panel


def test_joined_studies_agree_in_how_they_are_run():
    one = Study("a", tuple(grid("bot", lr=(1., 2.))), ("Table 1",), 2, axes=Axes("lr", "rate"), shows=("matrix",))
    two = Study("b", tuple(grid("bot", lr=(2., 3.))), ("Table 2",), 5, shows=("maps", "matrix"))
    both = joined("both", ("Fig. 1",), one=one, two=two)
    assert [s["lr"] for s in both.settings] == [1., 2., 3.] and both.seeds == 5
    assert both.shows == ("matrix", "maps") and both.tables == ["1", "2"]
    for name, other in (("protocol", Study("c", (), protocol="source")), ("chooses", Study("c", (), chooses=True)),
                        ("run", Study("c", (), run=(("dataset", "mixed A"),)))):
        with pytest.raises(ValueError, match=f"{name} differs between the studies to be joined"):
            joined("x", (), one=one, other=other)


def test_a_sweep_of_other_methods_and_values_is_drawn_too():
    "Methods that a study does not name, settings that a preset shortens: all rows of the run"
    import pandas as pd
    study = CAMEL["k"]
    base = [s for s in study.only(["base"], ["base", "camel"])]
    runs = pd.DataFrame([dict(s, setting=setting_of(s)) for s in base])
    assert [s["name"] for s in base] == ["base"]*4 and len(study.sweeps("k", runs)["k"].rows) == 4
    short = [dict(s, steps=24) for s in CAMEL["budget"].settings]
    runs = pd.DataFrame([dict(s, setting=setting_of(s)) for s in short])
    assert len(CAMEL["budget"].sweeps("budget", runs)["budget"].rows) == len(short)
    assert study.sweeps("k", runs) == {} == CAMEL["ablation"].sweeps("ablation", runs)


def test_a_whole_is_named_where_one_study_has_its_parts():
    studies = dict(a=Study("", (), ("Table 3a", "Table 3b", "Fig. 5a", "Table IV")), b=Study("", (), ("Fig. 5b",)))
    assert printed_names(studies) == {"table3": "a", "table3a": "a", "table3b": "a", "fig5a": "a", "tableiv": "a",
                                      "fig5b": "b"}
    explicit = studies | dict(c=joined("", ("Fig. 5",), a=studies["a"], b=studies["b"]))
    assert find_study(explicit, "Fig. 5") == "c" and find_study(explicit, "Fig. 5b") == "b"


def test_maps_of_words_need_a_model_that_is_trained(tmp_path):
    weights = tmp_path/"w.pt"
    weights.write_bytes(b"")
    given = dict(preset="smoke", study="Fig. 7", model="frozen_pair:ViT-S-32-alt", weights=str(weights))
    with pytest.raises(ValueError, match="is not trained, and study='Fig. 7' draws what words are seen in"):
        check_before_run(EXPERIMENTS["camel"].path, given)


@pytest.mark.parametrize("paper, name", [("camel", "samples"), ("cfam", "captions"), ("cfan", "triplets"),
                                         ("dmg", "scenes")])
def test_what_needs_no_training_trains_nothing(paper, name):
    study = EXPERIMENTS[paper].studies[name]
    assert study.methods == ["start"] and "nothing is trained" in study.title and study.n_seeds("paper") == 1


@pytest.mark.parametrize("name", ["Fig. 5(d)", "FIGURE 5-d", " fig 5d ", "Fig.\u00a05d", "Figure_5d"])
def test_spellings_of_one_panel_are_one_name(name):
    studies = dict(grounding=Study("images of known cameras", (dict(name="DART3"),), ("Fig. 5d",)))
    assert find_study(studies, name) == find_study(studies, " grounding ") == "grounding"


def test_the_first_of_several_studies_that_repeat_the_same_is_named():
    studies = {key: Study(key, (dict(name=key),), ("Tab. 4",)) for key in ("b", "a")}
    assert find_study(studies, "Table 4") == find_study(studies, "tab4") == "b"


def test_no_study_joins_nothing():
    with pytest.raises(ValueError, match="Both: no study is named"): joined("Both", ("Fig. 5",))


def test_more_queries_than_there_are_is_all_of_them():
    rows = pd.DataFrame(dict(method="Norm", first=[4, 16, 32, 0], mAP=[1., 2., 3., 3.]))
    drawn = sweep_frame(Axes("first", "queries", zero_is_all=True), rows, 17)
    assert drawn["first"].tolist() == [4, 16, 17]


def test_sweeps_without_a_run_are_named(capsys):
    own = dict(grounding=Study("images", tuple(grid("DART3", n_ground=(0, 8))), axes=Axes("n_ground", "images")))
    runs = pd.DataFrame(dict(setting=[setting_of(dict(name="Norm"))], n_ground=[float("nan")], mAP=[50.]))
    assert own["grounding"].sweeps("grounding", runs) == {}
    assert "not drawn, since no setting of it was run: grounding" in capsys.readouterr().out
    assert list(own["grounding"].sweeps("grounding", runs.assign(n_ground=8))) == ["grounding"]
    assert capsys.readouterr().out == ""


def test_a_method_that_is_named_twice_is_refused():
    study = Study("two", tuple(grid("a", "b")), seeds=2)
    with pytest.raises(ValueError, match="methods names 'a' twice"): study.only(["a", "b", "a"])
    assert [setting["name"] for setting in study.only(["b", "a"])] == ["b", "a"]
