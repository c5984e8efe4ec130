"Sweeps resume, collect failures and survive a process that dies"
import json
import os

import pytest
from helpers import ROOT
from helpers.notebooks import RECORD, notebook

from reid_lab.core.stopping import StoppedTraining
from reid_lab.experiments import sweep as sweeps
from reid_lab.experiments.params import params_hash
from reid_lab.experiments.run import write_json
from reid_lab.experiments.sweep import SOURCES_OF_0_1, sweep


def train(gain, seed):
    "A job of a sweep"
    if gain == "die": os._exit(1)
    if gain == "fail": raise ArithmeticError("no luck")
    return [dict(split="val", R1=seed), dict(split="test", R1=seed + gain)]


def quick_train(gain, seed): return dict(R1=gain + seed, threads=os.environ.get("OMP_NUM_THREADS"))


def test_sweep_resumes_and_collects_failures(tmp_path):
    first = sweep(train, dict(gain=[1, "fail"]), seeds=(0, 1), n_jobs=1, folder=tmp_path)
    assert first.status.tolist() == ["ok"]*4 + ["failed"]*2 and "no luck" in first.error.iloc[-1]
    assert first[first.split == "test"].R1.tolist() == [1, 2]
    kept = {f: f.stat().st_mtime_ns for f in tmp_path.iterdir() if '"ok"' in f.read_text()}
    more = sweep(train, dict(gain=[1]), seeds=(0, 1, 2), n_jobs=1, folder=tmp_path)
    assert more[more.split == "test"].R1.tolist() == [1, 2, 3]
    assert all(f.stat().st_mtime_ns == t for f, t in kept.items())
    sweep(train, dict(gain=[1]), seeds=(0,), n_jobs=1, folder=tmp_path, fresh=True)
    assert sum(f.stat().st_mtime_ns == t for f, t in kept.items()) == len(kept) - 1


def undefined(seed): return dict(R1=.5, nmi=float("nan"))


def test_a_metric_that_no_run_defines_is_nan(tmp_path):
    "JSON holds null in its place; a column of None would be no number to `record`"
    for _ in "ab":                                                       # run, then read again
        f = sweep(undefined, [{}], seeds=(0, 1), n_jobs=1, folder=tmp_path)
        assert f.nmi.dtype == float and f.nmi.isna().all() and f.R1.tolist() == [.5, .5]


def where(root, seed, roots=()): return dict(R1=len(str(root)) + len(roots))


def test_outcomes_name_folders_without_their_places(tmp_path):
    "A sweep folder can be handed on; outcomes are found again by the whole paths"
    kw = dict(n_jobs=1, folder=tmp_path/"s", roots=[str(tmp_path/"a"), str(tmp_path/"b")])
    rows = sweep(where, [dict(root=tmp_path/"photos")], **kw)
    (outcome,) = (tmp_path/"s").glob("*.json")
    assert str(tmp_path) not in outcome.read_text()
    assert json.loads(outcome.read_text())["params"] == dict(root="photos", roots=["a", "b"], seed=0)
    before = outcome.stat().st_mtime_ns
    again = sweep(where, [dict(root=tmp_path/"photos")], **kw)
    assert outcome.stat().st_mtime_ns == before and again.R1.tolist() == rows.R1.tolist()
    assert again["root"].tolist() == [tmp_path/"photos"]


@pytest.mark.kill
def test_sweep_in_processes_survives_one_that_dies(tmp_path):
    good = sweep(quick_train, dict(gain=[1, 2]), seeds=(0,), n_jobs=2, folder=tmp_path/"a")
    assert good.R1.tolist() == [1, 2] and set(good.threads.astype(str)) == {"1"}
    bad = sweep(train, [dict(gain="die")], seeds=(0,), n_jobs=2, folder=tmp_path/"b")
    assert bad.status.tolist() == ["lost"] and "out of memory" in bad.error[0]


def test_sweep_of_a_notebook_in_processes(tmp_path):
    frame = sweep(notebook(tmp_path/"n.ipynb", RECORD), [{}], seeds=(1, 2), n_jobs=2, folder=tmp_path/"s",
                    preset="smoke")
    assert frame.R1.tolist() == [41, 42] and frame.status.tolist() == ["ok", "ok"]
    with pytest.raises(ValueError, match="parameter='rl'"):
        sweep(tmp_path/"n.ipynb", dict(rl=[1]), folder=tmp_path/"s")


def test_sweeps_of_experiments_that_0_1_began_go_on(tmp_path, monkeypatch):
    "Notebooks have other texts than in 0.1, and the same results: what is there is not run again"
    hashes = json.loads((ROOT/"tests"/"vectors"/"written_by_0_1"/"source_hashes.json").read_text())["notebooks"]
    assert SOURCES_OF_0_1 == {name: source for name, source in hashes.values()}
    done, missing = (dict(preset="smoke", seed=seed) for seed in (0, 1))
    had = tmp_path/f"{params_hash(done, 'run_dmg', SOURCES_OF_0_1['run_dmg'])}.json"
    write_json(had, dict(status="ok", wall_s=1., rows=[dict(variant="BoT", R1=50.)]))
    ran = []
    monkeypatch.setattr(sweeps, "_run_here", lambda job, name, todo, *more: ran.extend(todo))
    rows = sweep("run_dmg", [dict(preset="smoke")], seeds=(0, 1), n_jobs=1, folder=tmp_path)
    assert rows.status.tolist() == ["ok", "lost"] and rows.R1[0] == 50.
    (params, path), = ran
    assert params == missing and SOURCES_OF_0_1["run_dmg"] not in path.stem


def test_a_notebook_of_the_same_name_is_another_one(tmp_path, monkeypatch):
    mine = notebook(tmp_path/"run_dmg.ipynb", RECORD)
    had = tmp_path/"s"/f"{params_hash(dict(seed=0), 'run_dmg', SOURCES_OF_0_1['run_dmg'])}.json"
    had.parent.mkdir()
    write_json(had, dict(status="ok", wall_s=1., rows=[dict(R1=50.)]))
    ran = []
    monkeypatch.setattr(sweeps, "_run_here", lambda job, name, todo, *more: ran.extend(todo))
    assert sweep(mine, [{}], seeds=(0,), n_jobs=1, folder=tmp_path/"s").status.tolist() == ["lost"] and len(ran) == 1


def stops_first(folder, seed, execution):
    "A job whose training is stopped the first time, for the odd seeds"
    from pathlib import Path
    mark = Path(folder)/f"{seed}"
    if seed % 2 and not mark.exists():
        mark.touch()
        raise StoppedTraining("stopped after step 3 of 9")
    return dict(R1=seed)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_runs_that_stop_in_time_let_the_others_end(tmp_path, n_jobs):
    kw = dict(seeds=(0, 1, 2, 3), n_jobs=n_jobs, folder=tmp_path/"s")
    with pytest.raises(StoppedTraining, match=r"2 of 4 runs are not finished \(the first: stopped after step 3 of 9\)"):
        sweep(stops_first, [dict(folder=str(tmp_path))], **kw)
    again = sweep(stops_first, [dict(folder=str(tmp_path))], **kw)
    assert again.R1.tolist() == [0, 1, 2, 3] and (again.status == "ok").all()


def test_what_has_not_begun_when_the_hours_are_over_is_left(tmp_path):
    with pytest.raises(StoppedTraining, match="4 of 4 runs .* not begun, since its hours are over"):
        sweep(stops_first, [dict(folder=str(tmp_path))], seeds=range(4), n_jobs=1, folder=tmp_path/"s",
              execution="--max-hours 1e-9")
    assert not (tmp_path/"1").exists()
