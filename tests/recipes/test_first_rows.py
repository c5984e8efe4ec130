"Chance and start above a table: what they are, where they stand, and that nothing is compared with them"
import numpy as np
import pandas as pd
import pytest

from reid_lab.datasets.protocols.camera_cases import camera_case
from reid_lab.datasets.protocols.dg_cases import load_case
from reid_lab.experiments.notebooks import Finished, experiments
from reid_lab.experiments.params import notebook_params
from reid_lab.recipes.first_rows import (
    chance_of_captions,
    chance_of_case,
    chance_of_test,
    first_row,
    plumbing_of,
    reads_own,
    start_of_case,
    start_of_test,
    with_first_rows,
    with_own_start,
)
from reid_lab.recipes.names import PLUMBING
from reid_lab.recipes.reid import reid_settings
from reid_lab.results.conclusions import conclusions, recorded_row
from reid_lab.retrieval.metrics import metrics_from_similarity
from reid_lab.world.world import World


def given(name, **values): return notebook_params(experiments()[name].path, values)


def drawn(q, g, cameras, n=40):
    "Mean mAP of random orders"
    rng, cams = np.random.default_rng(0), (q.cam.to_numpy(), g.cam.to_numpy()) if cameras else (None, None)
    return np.array([metrics_from_similarity(rng.random((len(q), len(g))), q.pid.to_numpy(), g.pid.to_numpy(),
                                             *cams)["mAP"] for _ in range(n)])


def test_chance_is_that_of_the_protocol():
    "Of queries of new cameras, of rankings, and of captions, against drawn orders"
    case = camera_case("smoke", 0)
    q = case.q.frame
    test = next(iter(load_case("world", "smoke").tests.values()))
    text = World("smoke", task="text").table()
    found = [(chance_of_case(case), drawn(q[q.cam.isin(case.cams)], case.g.frame, True)),
             (chance_of_test(test), drawn(test.tasks[0].q.frame, test.tasks[0].g.frame, True)),
             (chance_of_captions(text), drawn(text.text_queries("test"), text.gallery("test").frame, False))]
    for chance, orders in found:
        assert abs(chance["mAP"] - orders.mean()) < 4*orders.std()/len(orders)**.5 + .02
    assert found[2][0]["RSum"] == pytest.approx(sum(found[2][0][k] for k in ("R1", "R5", "R10")))


def test_the_start_is_the_model_before_training_and_a_control_is_its_own():
    case = camera_case("smoke", 0)
    by_start = start_of_case(case, "smoke", weights="world")
    assert by_start["mAP"] > 2*chance_of_case(case)["mAP"]
    assert by_start == start_of_case(case, "smoke", seed=7, weights="world")     # nothing in it is drawn
    control = reid_settings("smoke", model="frozen", model_kw=(("tower", "resnet10t"),), weights="none")
    test = next(iter(load_case("world", "smoke").tests.values()))
    assert start_of_test(test, case.train, control) == {}


@pytest.mark.parametrize("name, own", [("dart3", dict(dataset="market1501-3")), ("cfam", dict(dataset="cuhk-pedes")),
                                       ("dmg", dict(dataset="market1501->msmt17")), ("cfan", dict(dataset="tbapr")),
                                       ("camel", dict(dataset="cuhk-pedes")), ("dart3", dict(dataset="mine.csv"))])
def test_smoke_on_own_data_starts_from_the_package_and_a_world_does_not(name, own):
    p = given(name, preset="smoke", **own)
    assert reads_own(p) and with_own_start(p).weights == "world" and plumbing_of(p) == PLUMBING
    for other in (dict(preset="quick", **own), dict(preset="smoke"), dict(preset="smoke", weights="none", **own)):
        q = given(name, **other)
        assert with_own_start(q).weights == other.get("weights", "")
        assert (plumbing_of(q) == PLUMBING) == (other["preset"] == "smoke" and "dataset" in other)


def test_chance_and_start_stand_first_and_are_compared_with_nothing(tmp_path):
    rows = [dict(variant=v, method=v, stage="", options={}, dataset="mine", split="test", seed=s, extra={},
                 metrics=dict(mAP=m + s)) for v, m in (("a", 40.), ("b", 50.)) for s in (0, 1, 2)]
    first = [first_row(v, "mine", dict(mAP=m, n_query=3)) for v, m in (("chance", 4.), ("start", 20.))]
    done = Finished(tmp_path, tmp_path, dict(rows=rows, first_rows=first))
    assert [r["variant"] for r in done.shown_rows][:3] == ["chance", "untrained start", "a"]
    assert len(done.rows) == 6 and len(done.shown_rows) == 8
    said = " ".join(conclusions(map(recorded_row, done.metrics["rows"])))
    assert "b with a" in said and "chance" not in said and "untrained" not in said
    with_start = dict(rows=[*rows, dict(rows[0], variant="Start alone", method="start")], first_rows=first)
    assert [r["variant"] for r in Finished(tmp_path, tmp_path, with_start).shown_rows][:2] == ["chance", "a"]


def test_a_row_of_the_start_moves_up_and_scores_find_their_columns():
    table = pd.DataFrame({"variant": ["BoT", "Start alone (control), a"], "zeroshot mAP": ["40.0", "30.0"],
                          "ms per query": ["1", "2"]})
    shown = with_first_rows(table, dict(mAP=4., n_query=9), dict(mAP=11.))
    assert shown.variant.tolist() == ["chance", "Start alone (control), a", "BoT"]
    assert shown["zeroshot mAP"].tolist() == ["4.0", "30.0", "40.0"] and shown["ms per query"].iloc[0] == ""
    other = with_first_rows(table.iloc[:1], dict(mAP=4.), dict(mAP=11.))
    assert other.variant.tolist() == ["chance", "untrained start", "BoT"]
