"Commands that the doctor ends with: each is parsed, the checks of each run pass, and the cheap ones are run"
import shlex
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.layouts import small
from PIL import Image

from reid_lab.cli.commands import main, parser
from reid_lab.datasets.export import export_world
from reid_lab.datasets.registry import DATASETS, load_dataset
from reid_lab.experiments.notebooks import check_before_run, experiments
from reid_lab.models.frozen import frozen
from reid_lab.recipes.next_steps import dataset_steps, known_tower
from reid_lab.world.world import World


def commands(text):
    "Commands below NEXT, as words"
    after = text[text.index("NEXT"):]
    return [shlex.split(line)[1:] for line in after.splitlines() if line.startswith("    reid_lab ")]


def run_parameters(words):
    "Experiment and parameters of `run`"
    given = parser().parse_args(words)
    return given.name, dict(pair.split("=", 1) for pair in given.param)


@pytest.fixture(scope="module")
def crops(tmp_path_factory):
    "Eight people in folders with a space in their names"
    root = tmp_path_factory.mktemp("own")/"my crops"
    table = World("smoke", task="reid").table().where(split="test")
    table = table.where(pid=list(np.unique(table["pid"])[:8]))
    for i, row in enumerate(table.frame.itertuples()):
        path = root/f"person {row.pid}"/f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(table.image(i)).save(path)
    return root


@pytest.fixture(scope="module")
def market(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    table = World("smoke", task="reid").table().where(split=["train", "test"])
    export_world(table, "market1501", root/DATASETS["market1501"].folder, renumber=True)
    return root


def test_the_doctor_of_crops_ends_in_commands_that_work(crops, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert main(["doctor", str(crops), "-p", "folders=identity"]) == 0
    embed, metrics, tune = commands(capsys.readouterr().out)
    (tmp_path/"features").mkdir()
    assert main(["doctor", str(crops), "-p", "folders=identity"]) == 0
    assert embed[-1] == "features"
    embed, metrics, tune = commands(capsys.readouterr().out)
    assert embed[-1] == "features2" and metrics[1:3] == ["features2"]*2
    assert main(embed) == 0
    after_embed = commands(capsys.readouterr().out)
    assert after_embed == [tune] and main(metrics) == 0
    assert "mAP" in capsys.readouterr().out
    name, given = run_parameters(tune)
    check_before_run(experiments()[name].path, given)


def test_without_labels_or_with_few_people_there_is_no_training(crops, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert main(["doctor", str(crops)]) == 0
    text = capsys.readouterr().out
    assert len(commands(text)) == 1 and "give -p folders=identity" in text
    few = sorted(crops.iterdir())[:3]
    listed = [dict(path=str(f.relative_to(crops)), person=f.parent.name) for d in few for f in d.iterdir()]
    pd.DataFrame(listed).to_csv(crops/"list.csv", index=False)
    try:
        assert main(["doctor", str(crops/"list.csv"), "-p", "folders=identity"]) == 2
        pd.DataFrame(listed).rename(columns=dict(person="pid")).to_csv(crops/"list.csv", index=False)
        assert main(["doctor", str(crops/"list.csv")]) == 0
    finally: (crops/"list.csv").unlink()
    assert [words[0] for words in commands(capsys.readouterr().out)] == ["embed", "metrics"]


def test_the_doctor_of_a_dataset_ends_in_runs_that_pass_their_checks(market, tmp_path, monkeypatch, capsys):
    "With a tower of the user's file, which stands beside the weights of the package"
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    torch.save(frozen("osnet_x0_25", "none").tower.state_dict(), tmp_path/"osnet.pth")
    assert main(["doctor", "market1501", "--root", str(market), "--weights", str(tmp_path/"osnet.pth")]) == 0
    found = [run_parameters(words) for words in commands(capsys.readouterr().out)]
    assert [given.get("methods", given.get("model")) for _, given in found] == ["start", "frozen:osnet_x0_25", "bot"]
    for name, given in found:
        check_before_run(experiments()[name].path, dict(given, seeds=int(given["seeds"])))
    assert main(["doctor", "market1501", "--root", str(market), "--weights", "nowhere.pth"]) == 2


NOT_SEARCHED = ("world", "mals", "cuhk02", "cuhk-sysu", "synth-pedes", "luperson", "wildlife")
OWN_RULE = ("prcc", "ltcc", "celeb-reid", "celeb-reid-light", "occluded-reid", "p-dukemtmc-reid", "sysu-mm01", "regdb",
            "llcm", "pku-sketch", "orbench", "ag-reid", "ag-reid-v2", "uav-human", "ilids-vid",
            "vehicleid")   # experiments score by cameras


@pytest.mark.parametrize("name", [n for n in DATASETS if n not in NOT_SEARCHED + OWN_RULE])
def test_steps_of_every_dataset_are_parsed(name, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    steps = dataset_steps(name, tmp_path/"a folder")
    assert len(steps) == 2
    for step in steps:
        experiment, given = run_parameters(shlex.split(step.command)[1:])
        assert set(given) <= set(experiments()[experiment].parameters) and given["data_root"].endswith("a folder")


@pytest.mark.parametrize("name", OWN_RULE)
def test_sets_with_a_rule_of_their_own_are_scored_by_it(name, tmp_path, capsys):
    export_world(small(name), name, tmp_path/DATASETS[name].folder)
    protocol = DATASETS[name].protocols[0]
    for step in dataset_steps(name, tmp_path):
        assert main(shlex.split(step.command)[1:]) == 0
        assert protocol in capsys.readouterr().out


def test_a_tower_in_the_cache_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    assert known_tower() is None
    (tmp_path/"checkpoints").mkdir()
    (tmp_path/"checkpoints"/"a.pth").write_bytes(b"no weights")
    torch.save(frozen("osnet_x0_25", "none").tower.state_dict(), tmp_path/"checkpoints"/"osnet.pth")
    assert known_tower().model == "frozen:osnet_x0_25"


@pytest.mark.whole
def test_the_zero_shot_row_of_a_dataset_stands_below_chance(market, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REID_LAB_RESULTS", str(tmp_path/"rows.csv"))
    words = shlex.split(dataset_steps("market1501", market)[0].command)[1:]
    assert main([*words, "-p", "preset=smoke", "--out", str(tmp_path/"run")]) == 0
    out = capsys.readouterr().out
    assert out.index("test of plumbing") < out.index("chance") < out.index("Start alone")
    table = pd.read_csv(next((tmp_path/"run").glob("table_*.csv")))
    assert table.variant.iloc[0] == "chance" and table.variant.iloc[1].startswith("Start alone")
    assert {row for row in pd.read_csv(tmp_path/"rows.csv").variant} == {table.variant.iloc[1] + ", market1501"}


def test_a_remedy_of_the_doctor_stands_on_a_line_of_its_own(tmp_path, capsys):
    for person in ("a", "b"):
        (tmp_path/person).mkdir()
        Image.fromarray(np.zeros((8, 4, 3), np.uint8)).save(tmp_path/person/"1.png")
    assert main(["doctor", str(tmp_path)]) == 0
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith("of unknown people") and second.startswith("  do: if each subfolder is a person")


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_frame_without_a_test_ends_in_a_command_that_works(split, crops, tmp_path, capsys):
    files = sorted(path.relative_to(crops) for path in crops.rglob("*.png"))
    frame = pd.DataFrame(dict(identity=[path.parts[0] for path in files], path=[str(path) for path in files],
                              split=split, bbox="[0, 0, 30, 60]"))
    root = tmp_path/"animals"
    shutil.copytree(crops, root)
    frame.to_csv(root/"metadata.csv", index=False)
    for options in ([], ["-p", "boxes=True"]):
        assert main(["doctor", "wildlife", "--root", str(root), *options]) == 0
        (step,) = commands(capsys.readouterr().out)
        assert step[step.index("--split") + 1] == split and ("boxes=True" in step) == bool(options)
        assert main(step) == 0
        assert ("is not cut" in capsys.readouterr().out) == (not options)


def test_a_manifest_without_a_test_ends_in_commands_that_work(crops, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    files = sorted(crops.rglob("*.png"))
    frame = pd.DataFrame(dict(path=[path.relative_to(crops) for path in files],
                              pid=[path.parent.name for path in files], split="train"))
    frame.to_csv(crops/"of train.csv", index=False)
    assert main(["doctor", str(crops/"of train.csv")]) == 0
    embed, metrics, *_ = commands(capsys.readouterr().out)
    for words in (embed, metrics): assert main(words) == 0


def test_a_part_of_a_set_without_a_test_gets_no_command_that_fails(market):
    root = market/DATASETS["market1501"].folder
    table = load_dataset("market1501", root)
    assert dataset_steps("market1501", root, table=table) == dataset_steps("market1501", root)
    (step,) = dataset_steps("market1501", root, table=table.where(split="train"))
    words = shlex.split(step.command)[1:]
    assert words[-2:] == ["--split", "train"] and main(words) == 0
    assert dataset_steps("market1501", root, table=table.where(split="train").assign(role="none")) == []


def test_captions_without_a_test_are_asked_of_their_own_split(tmp_path, capsys):
    table = World("smoke", task="text").table().where(domain="real-like", split="val")
    export_world(table, "cuhk-pedes", tmp_path/"CUHK-PEDES", renumber=True)
    assert main(["doctor", "cuhk-pedes", "--root", str(tmp_path)]) == 0
    (words,) = commands(capsys.readouterr().out)
    assert words[-3:] == ["--captions", "--split", "val"] and main(words) == 0


def test_boxes_that_are_clipped_are_said_by_the_doctor(market, capsys):
    with_boxes = small_boxes(market/DATASETS["market1501"].folder)
    assert main(["doctor", str(with_boxes)]) == 0
    said = capsys.readouterr().out
    assert "left out: 1 box outside the frame" in said
    assert "note: 1 box reaches over the edge of the frame and was clipped" in said


def small_boxes(root):
    "A manifest with three boxes in images: inside, over the edge, outside"
    file = sorted((root/"query").glob("*.jpg"))[0].relative_to(root)
    frame = pd.DataFrame(dict(path=str(file), x=[0, -4, 900], y=0, w=12, h=20))
    frame.to_csv(root/"boxes.csv", index=False)
    return root/"boxes.csv"
