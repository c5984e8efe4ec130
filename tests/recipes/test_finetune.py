"Fine-tuning on a folder: who is held out, which epoch is kept, what an interval is over, and what is refused"
import importlib
import json
import linecache
import shlex
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from reid_lab.cli.commands import main, parser
from reid_lab.core.distributed import torchrun
from reid_lab.data.table import ReidTable
from reid_lab.experiments.notebooks import experiments, run_notebook
from reid_lab.experiments.params import notebook_params
from reid_lab.models.zoo import MODELS
from reid_lab.recipes import finetune as ft, parameters
from reid_lab.recipes.crops import from_folder, from_package
from reid_lab.recipes.parameters import check_run
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.world.world import World

PATH = experiments()["finetune"].path


@pytest.fixture(scope="module")
def people():
    "Ten people under five cameras"
    table = World("smoke", task="reid").table().where(split="test")
    return table.where(pid=list(np.unique(table["pid"])[:10]))


def write(table, root, name):
    "Crops as files; `name(row)` is the path of each"
    for i, row in enumerate(table.frame.itertuples()):
        path = root/name(row, i)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(table.image(i)).save(path)
    return root


def checked(**given): check_run("finetune", notebook_params(PATH, given), quiet=True)


# ---- who is held out

@pytest.mark.parametrize("n, folds, repeats", [(6, 3, 1), (7, 3, 2), (10, 3, 3), (10, 5, 1)])
def test_each_person_is_held_out_once_in_a_round_and_never_trained_on_then(people, n, folds, repeats):
    table = people.where(pid=list(np.unique(people["pid"])[:n]))
    rounds = ft.divisions(table, folds, repeats, seed=4)
    assert len(rounds) == repeats
    for some in rounds:
        assert sorted(p for d in some for p in d.test) == sorted(np.unique(table["pid"]))
        for d in some:
            parts = [set(d.train), set(d.val), set(d.test)]
            assert sum(map(len, parts)) == len(set.union(*parts)) == n and min(map(len, parts)) >= 2
    if repeats > 1: assert [d.test for d in rounds[0]] != [d.test for d in rounds[1]]
    assert rounds == ft.divisions(table, folds, repeats, seed=4)


def test_who_cannot_be_searched_for_is_trained_on_and_not_scored(people):
    "Single crops, and people of one camera where others have two"
    pid = np.unique(people["pid"])
    f = people.frame
    single = f[f.pid == pid[0]].index[:1]
    one_camera = f.index[(f.pid == pid[1]) & (f.cam == f[f.pid == pid[1]].cam.iloc[0])]
    rest = f.index[~f.pid.isin(pid[:2])]
    table = ReidTable(f.loc[[*single, *one_camera, *rest]], None, people.reader, "some")
    for some in ft.divisions(table):
        for d in some:
            assert set(pid[:2]) <= set(d.train)
    assert set(pid[:2]) <= set(ft.last_division(table).train)


@pytest.mark.parametrize("cams, rule", [("several", "drop"), ("one", "keep"), ("unknown", "keep"),
                                        ("a person each", "keep")])
def test_without_two_cameras_a_person_there_is_no_camera_filter(people, cams, rule):
    f = people.frame
    cam = dict(several=f.cam, one=0, unknown=-1).get(cams, f.pid)
    table = ReidTable(f.assign(cam=cam), None, people.reader, "cams")
    assert ft.camera_rule(table) == rule
    queries = ft.search_among(from_package("bot_tiny"), table, rule)
    assert queries["n_query"] == len(table)


# ---- which epoch

class Net(torch.nn.Module):
    "A model whose validation scores are given"
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize("scores, patience, best, seen", [
    ([50, 60, 55, 54, 90], 2, 1, 4), ([50, 40, 30, 20], 2, 0, 3), ([100, 100, 100], 2, 2, 3), ([10, 20, 30], 1, 2, 3)])
def test_the_best_epoch_is_kept_of_equal_ones_the_last_and_the_start_is_one(monkeypatch, scores, patience, best, seen):
    given = iter(scores)
    monkeypatch.setattr(ft, "search_among", lambda *a, **how: dict(mAP=next(given)))
    keep, net = ft.KeepBest(None, "keep", patience), Net()
    learn = type("Learn", (), dict(net=net, images=0, stop=False))()
    keep.before_fit(learn)
    while not learn.stop and len(keep.scores) < len(scores):
        with torch.no_grad(): net.weight += 1
        learn.images += 10
        keep.after_epoch(learn)
    assert (keep.epoch, len(keep.scores), keep.images) == (best, seen, 10*best)
    assert keep.best_state["weight"].item() == best


def test_a_rate_that_ruins_the_model_returns_the_start(people):
    "Nothing worse than the start on the people who choose is ever returned"
    division = ft.divisions(people)[0][0]
    s = ft.finetune_settings("smoke", lr=3., epochs=2)
    tuned = ft.finetune(people, division, s)
    val = people.where(pid=list(division.val))
    scores = [ft.search_among(m, val, "drop")["mAP"] for m in (tuned.start, tuned.model)]
    assert tuned.scores[tuned.epoch] == max(tuned.scores) >= tuned.scores[0]
    assert scores == pytest.approx([tuned.scores[0], tuned.scores[tuned.epoch]], abs=1e-3)
    assert tuned.scores[1] < tuned.scores[0] and tuned.epoch == 0


def test_the_start_embeds_as_the_weights_of_the_package_do(people):
    s = ft.finetune_settings("quick", epochs=0)
    tuned = ft.finetune(people, ft.divisions(people)[0][0], replace(s, epochs=0))
    a, b = (embed_images(m, people, quiet=True).emb for m in (tuned.start, from_package("bot_tiny")))
    assert torch.allclose(a, b, atol=1e-5) and tuned.done.images == 0


def test_frozen_parts_stay_as_they_are(people):
    s = ft.finetune_settings("smoke", freeze=.5)
    tuned = ft.finetune(people, ft.divisions(people)[0][0], replace(s, patience=9))
    pairs = zip(tuned.start.image.named_parameters(), tuned.model.image.named_parameters())
    changed = [name for (name, a), (_, b) in pairs if not torch.equal(a, b)]
    if tuned.epoch: assert changed and not any(name.startswith("stem") for name in changed)


@pytest.mark.parametrize("model, weights", [("transreid_tiny", ""), ("frozen:osnet_x0_25", "none"),
                                            ("torchvision:resnet18", "none"), ("bot:resnet10t", "none")])
def test_any_tower_is_trained_and_kept(people, tmp_path, model, weights):
    "The folder gives the model back, and a second fine-tuning starts from it"
    s = replace(ft.finetune_settings("smoke", model, weights), epochs=1)
    made = ft.keep_model(people, s, tmp_path/"model")
    net = from_folder(tmp_path/"model")
    again = ft.finetune_settings("smoke", str(tmp_path/"model"))
    tuned = ft.finetune(people, ft.last_division(people), replace(again, epochs=0))
    a, b = (embed_images(m, people, quiet=True).emb for m in (net, tuned.start))
    assert torch.allclose(a, b, atol=1e-5) and made["images_seen"] > 0
    assert again.model == s.model and again.weights.endswith("model.safetensors")


@pytest.fixture
def own_tower(tmp_path, monkeypatch):
    "A registered model whose constructor stands in a module of the user's, imported as after an edit"
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    def edited(heads):
        (tmp_path/"own_tower.py").write_text(
            "from reid_lab.models.transreid import transreid_tiny\n"
            f"def start(net): return [net, {heads}][0]\ndef make(**kw): return start(transreid_tiny(**kw))\n")
        sys.modules.pop("own_tower", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        info = replace(MODELS["transreid_tiny"], make=importlib.import_module("own_tower").make, starts="none")
        monkeypatch.setitem(MODELS, "own_tower", info)
    yield edited
    sys.modules.pop("own_tower", None)


def test_a_finished_model_whose_own_code_changed_is_not_taken_for_todays(people, tmp_path, own_tower):
    own_tower(1)
    s = replace(ft.finetune_settings("smoke", "own_tower", "none"), epochs=1)
    made = ft.keep_model(people, s, tmp_path/"model")
    assert ft.keep_model(people, s, tmp_path/"model")["epoch"] == made["epoch"]
    own_tower(2)
    with pytest.raises(ValueError, match=r"other code, which changed since \(own_tower.start\).*use a new folder"):
        ft.keep_model(people, s, tmp_path/"model")


# ---- the interval

def queries(gains, rounds=2, each=4):
    "Queries of people with given gains"
    rows = [dict(pid=p, round=r, n_images=20, n_match=3, start_ap=.4, finetuned_ap=.4 + g)
            for p, g in enumerate(gains) for r in range(rounds) for _ in range(each)]
    return pd.DataFrame(rows)


def test_the_interval_is_over_people_and_not_over_queries():
    "More queries of the same people make it no narrower; it is that of a bootstrap by hand"
    gains = np.random.default_rng(3).normal(.05, .2, 15)
    few, many = (ft.gain_of(queries(gains, each=n)) for n in (2, 50))
    assert few.mean == pytest.approx(100*gains.mean()) and few[:3] == pytest.approx(many[:3])
    rng = np.random.default_rng(0)
    drawn = 100*rng.choice(gains, (20_000, 15)).mean(1)
    assert (few.low, few.high) == pytest.approx(np.quantile(drawn, [.025, .975]), abs=.6)
    assert few.verdict == "not resolved" or few.low > 0


def test_rounds_are_drawn_too():
    "A round of which all people gain, and one of which all lose"
    f = queries([.1]*8)
    f.loc[f["round"] == 1, "finetuned_ap"] = .3
    gain = ft.gain_of(f)
    assert gain.mean == pytest.approx(0) and gain.low == pytest.approx(-10) and gain.high == pytest.approx(10)
    assert "not resolved" in ft.verdict(gain)


def test_rows_begin_with_chance_and_say_which_matches_count():
    f = queries([.1]*6).assign(start_hit=True, finetuned_hit=False)
    rows = ft.score_rows(f, "keep", dict(images_seen=10, train_s=2.))
    assert rows.row.tolist() == ["chance", "start", "finetuned"] and set(rows.matches) == {"no camera filter"}
    assert rows.R1.tolist() == pytest.approx([15, 100, 0]) and rows.mAP.iloc[1:].tolist() == pytest.approx([40, 50])
    stored = ft.stored_rows(rows, ft.gain_of(f), ft.finetune_settings(), ft.Source("crops"), 0)
    assert [r["setting"].stage for r in stored] == ["start", "finetuned"]       # chance is no method


# ---- refused before any work

def test_too_few_people_and_nobody_are_refused(people, tmp_path):
    five = people.where(pid=list(np.unique(people["pid"])[:5]))
    write(five, tmp_path/"few", lambda row, i: f"p{row.pid}/{i}.png")
    with pytest.raises(ValueError, match="5 people, of whom 5 have two crops or more; fine-tuning needs 6"):
        checked(data_root=str(tmp_path/"few"))
    write(five, tmp_path/"flat", lambda row, i: f"{i}.png")
    with pytest.raises(ValueError, match="do not lie that deep"): checked(data_root=str(tmp_path/"flat"))
    pd.DataFrame(dict(path=[f"{i}.png" for i in range(len(five))])).to_csv(tmp_path/"flat"/"list.csv", index=False)
    with pytest.raises(ValueError, match="nobody is known"): checked(data_root=str(tmp_path/"flat"/"list.csv"))


@pytest.mark.parametrize("given, says", [
    (dict(preset="paper"), "no published protocol"), (dict(model="clip_tiny"), "model='clip_tiny'"),
    (dict(model="frozen:osnet_x0_25"), "comes without weights"), (dict(model="frozen_pair:ViT-B-16"), "frozen_pair"),
    (dict(weights="nope"), "nope"), (dict(seed=500), "world_seed=500"), (dict(folders="identity"), "data_root=FOLDER")])
def test_wrong_parameters_are_refused(given, says):
    with pytest.raises((ValueError, OSError), match=says): checked(**given)


@pytest.mark.parametrize("given, says", [
    (dict(lora=8), "BoT has no linear layers"),
    (dict(lora=8, model="transreid_tiny", weights="none"), "random numbers"),
    (dict(lora=500, model="transreid_tiny"), "lora=500 is no low rank"), (dict(lora=-1), "lora=-1"),
    (dict(layer_decay=1.5), "layer_decay=1.5")])
def test_adapters_that_nothing_carries_are_refused_before_images_are_read(given, says, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", sys)       # as if it were there
    monkeypatch.setattr(parameters, "load_source", lambda *a: pytest.fail("images were looked at"))
    with pytest.raises(ValueError, match=says): checked(**given)


def test_without_peft_a_run_with_adapters_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ImportError, match=r"lora=8: .*pip install 'reid_lab\[lora\]'"): checked(lora=8)


def test_adapters_and_rates_of_layers_reach_settings_rows_and_the_next_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", sys)
    own = dict(model="transreid_tiny", lora=4, layer_decay=.75)
    p = notebook_params(PATH, dict(own, preset="smoke", data_root="crops"))
    s = ft.finetune_settings(**ft.own_settings(p))
    assert (s.lora, s.layer_decay) == (4, .75) and ft.finetune_settings("smoke").layer_decay == 1
    assert "-p lora=4 -p layer_decay=0.75" in ft.next_commands(p, "model")[0]
    table, gain = pd.DataFrame([dict(row="start", R1=1., mAP=1., matches="all", people=2, queries=2, images_seen=0,
                                     train_s=0.)]), ft.Gain(1., 0., 2., 2, 1)
    rows = [ft.stored_rows(table, gain, settings, ft.Source(), 0)[0] for settings in (s, ft.finetune_settings("smoke"))]
    assert (rows[0]["lora"], rows[0]["layer_decay"]) == (4, .75) and not {"lora", "layer_decay"} & {*rows[1]}


SHARED = '''
import json
from types import SimpleNamespace
import torch
from reid_lab.core.distributed import from_all, processes
from reid_lab.data.table import ReidTable
from reid_lab.models.zoo import create_model
from reid_lab.recipes import finetune as ft
from reid_lab.world.world import World

rank, _ = processes()
table = World("smoke", task="reid").table().where(split="test")
read = []
counted = ReidTable(table.frame, None, lambda paths: read.extend(paths) or table.reader(paths), "counted")
torch.manual_seed(rank)
model = create_model("bot_tiny", n_ids=4, size=(64, 32), weights="none").train()
torch.manual_seed(rank)
model.encode_image(torch.rand(8, 3, 64, 32))     # statistics that differ between processes
alone = float(ft.search_among(model.eval(), table, "drop")["mAP"]) if not rank else None
best = ft.KeepBest(counted, "drop")
best.before_fit(SimpleNamespace(net=model, images=0))
total = sum(t.double().sum().item() for t in best.best_state.values())
said = from_all(dict(read=len(read), score=best.scores[0], alone=alone, total=total))
if not rank: print(json.dumps(said))
'''


def test_processes_share_the_search_that_chooses_the_epoch(tmp_path):
    "Each embeds its part, by the weights and statistics of process 0, and all have the score of one process"
    (tmp_path/"shared.py").write_text(SHARED)
    first, second = json.loads(torchrun(2, tmp_path/"shared.py"))
    n = len(World("smoke", task="reid").table().where(split="test"))
    assert first["read"] + second["read"] == n and max(first["read"], second["read"]) < n
    assert first["score"] == second["score"] == first["alone"] and first["total"] == second["total"]


# ---- a whole run on a folder

@pytest.mark.whole
def test_a_run_on_a_folder_ends_in_a_model_and_the_command_that_uses_it(people, tmp_path, monkeypatch):
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path/"rows.csv"))
    write(people, tmp_path/"crops", lambda row, i: f"camera-{row.cam}/person {row.pid}/{i}.png")
    done = run_notebook("finetune", tmp_path/"run", preset="smoke", data_root=str(tmp_path/"crops"),
                        folders="camera/identity")
    notes = "\n".join(done.metrics["notes"])
    assert "test of plumbing" in notes and "held-out people" in notes and done.metrics["status"] == "finished"
    table = pd.read_csv(done.folder/"table.csv")
    assert table.row.tolist() == ["chance", "start", "finetuned"] and set(table.matches) == {"other cameras only"}
    assert {row["dataset"] for row in done.metrics["rows"]} == {"crops"}
    line = next(line.strip() for line in notes.splitlines() if "reid_lab embed" in line)
    words = shlex.split(line)[1:]
    words[words.index("--out") + 1] = str(tmp_path/"features")
    assert main(words) == 0 and (tmp_path/"features").exists()
    for line in notes.splitlines():
        if line.strip().startswith("reid_lab"): parser().parse_args(shlex.split(line)[1:])


def test_people_of_a_test_split_are_named_before_they_are_trained_on(tmp_path, recwarn):
    rows = [dict(path=f"{i}.png", pid=i // 2, split="test" if i < 4 else "train") for i in range(16)]
    for row in rows: Image.new("RGB", (16, 32), (row["pid"]*9, 0, 0)).save(tmp_path/row["path"])
    pd.DataFrame(rows).drop(columns="split").to_csv(tmp_path/"unsaid.csv", index=False)
    ft.load_source(ft.Source(data_root=str(tmp_path/"unsaid.csv")))
    assert not [w for w in recwarn if "split test" in str(w.message)]
    pd.DataFrame(rows).to_csv(tmp_path/"m.csv", index=False)
    with pytest.warns(UserWarning, match="4 of 16 rows are of the split test"):
        ft.load_source(ft.Source(data_root=str(tmp_path/"m.csv")))
