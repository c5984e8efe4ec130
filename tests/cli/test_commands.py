"The command line: exit codes, messages, and that it starts at once"
import json
import os
import signal
import subprocess
import sys
import threading
import time

import nbformat
import numpy as np
import pytest
from helpers.notebooks import RECORD, notebook
from nbformat.v4 import new_code_cell, new_notebook

from reid_lab import __version__
from reid_lab.cli.commands import main, parser
from reid_lab.cli.output import LISTS
from reid_lab.retrieval.embeddings import Embeddings


def test_version_and_start_up():
    code = ("import sys, reid_lab.cli.commands as c\ntry: c.main(['--version'])\n"
            "except SystemExit: print(sorted({'torch', 'pandas', 'matplotlib', 'pydantic'} & set(sys.modules)))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == f"reid_lab {__version__}\n[]\n"


def test_arguments_are_read_without_loading_the_library():
    "Otherwise the terminal stays empty for seconds"
    code = ("import sys; from reid_lab.cli.commands import parser\n"
            "for a in (['bias', 'q.npz'], ['metrics', 'q.npz', 'g.npz'], ['run', 'camel'], ['sweep', 'camel']): "
            "parser().parse_args(a)\nimport reid_lab.experiments.terminal\n"
            "print(sorted({'torch', 'numpy', 'pandas', 'papermill', 'pydantic'} & set(sys.modules)))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n"


def test_lists_are_read_without_torch_and_pandas():
    "A module of datasets whose signatures name `pd.DataFrame` without quotes brings pandas into every list"
    code = ("import sys; from reid_lab.cli.commands import main; from reid_lab.cli.output import LISTS\n"
            "for words in (*(['list', what] for what in LISTS), ['datasets']):\n"
            "    main(words)\n"
            "    print(words, {'torch', 'pandas'} & set(sys.modules), file=sys.stderr)\n"
            "from reid_lab.datasets.registry import describe_datasets\n"
            "print(type(describe_datasets()), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lists, kind = done.stderr.splitlines()
    assert len(lists) == len(LISTS) + 1 and all(line.endswith(" set()") for line in lists), done.stderr
    assert kind.endswith("DataFrame'>")     # the stand-in for pandas hands on


@pytest.mark.parametrize("args", [[], ["nothing"], ["run"], ["metrics", "q.npz"], ["bias"],
                                  ["bias", "q.npz", "--map", "x"], ["metrics", "q.npz", "g.npz", "--distance", "x"],
                                  ["sweep", "x", "--seeds", "a"]])
def test_wrong_calls_exit_with_2(args, capsys):
    with pytest.raises(SystemExit) as e: main(args)
    lines = capsys.readouterr().err.splitlines()
    assert e.value.code == 2 and len(lines) == 2 and "--help` says what it takes" in lines[1]


def test_run(tmp_path, capsys):
    nb = notebook(tmp_path/"n.ipynb", RECORD + "\nassert seed < 5, 'too much'")
    assert main(["run", str(nb), "-p", "preset=smoke", "-p", "seed=1", "--out", str(tmp_path/"a")]) == 0
    assert "41.0" in capsys.readouterr().out and (tmp_path/"a"/"metrics.json").exists()
    assert main(["run", str(nb), "-p", "sed=1"]) == 2
    assert "Did you mean 'seed'" in capsys.readouterr().err
    assert main(["run", str(nb), "-p", "seed=9", "-p", "preset=smoke", "--out", str(tmp_path/"b")]) == 1
    assert "AssertionError: too much" in capsys.readouterr().err
    assert main(["run", "no_such_experiment"]) == 2


def test_sweep(tmp_path, capsys):
    nb = notebook(tmp_path/"n.ipynb", RECORD)
    args = ["sweep", str(nb), "--seeds", "0", "--jobs", "1", "--out", str(tmp_path/"s"), "-p", "preset=smoke"]
    assert main(args) == 0 and main(args) == 0  # the second finds everything there
    assert "40.0" in capsys.readouterr().out
    assert main([*args, "--grid", "sed=1"]) == 2
    assert main([*args, "--grid", "seed=1", "-p", "seed=2"]) == 2 and "give it once" in capsys.readouterr().err


@pytest.mark.parametrize("command, what", [("run", "experiments"), ("sweep", "experiments"), ("doctor", "datasets"),
                                           ("world", "worlds"), ("published", "papers"), ("metrics", "metrics")])
def test_help_prints_the_registered_names(command, what, capsys):
    with pytest.raises(SystemExit) as e: main([command, "--help"])
    text = capsys.readouterr().out
    assert e.value.code == 0 and f"\n{what}:\n" in text and all(f"\n  {name} " in text for name in LISTS[what]())


def commands_with_actions():
    commands = next(action for action in parser()._actions if action.dest == "command").choices
    return {name: command for name, command in commands.items() if command.actions_help}


def test_every_command_with_actions_explains_each_of_them():
    commands = next(action for action in parser()._actions if action.dest == "command").choices
    for name, command in commands.items():
        actions = next((action.choices for action in command._actions if action.dest == "action"), ())
        assert list(command.actions_help) == list(actions), name
        for wanted in command.actions_help.values():
            assert {*wanted.takes} | {*wanted.shown_as} <= {action.dest for action in command._actions}
    assert {"results", "reproduce", "labels", "weights"} <= {*commands_with_actions()}


@pytest.mark.parametrize("name", ["results", "reproduce", "labels", "weights"])
def test_the_help_of_an_action_shows_this_action_only(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    command = commands_with_actions()[name]
    with pytest.raises(SystemExit): main([name, "--help"])
    whole = capsys.readouterr().out
    assert f"`reid_lab {name} ACTION --help`" in whole
    for action, wanted in command.actions_help.items():
        for words in ([action, "--help"], ["-h", action], [action, "x", "--json", "-h"]):
            with pytest.raises(SystemExit) as e: main([name, *words])
            text = capsys.readouterr().out
            assert e.value.code == 0 and text.startswith(f"usage: reid_lab {name} {action} [-h]")
        assert max(map(len, text.splitlines())) <= 80
        assert wanted.about in text and wanted.about in whole
        others = [about.about for other, about in command.actions_help.items() if other != action]
        assert not any(f"\n{about}\n" in text for about in others)
        listed = text.partition("options:")[2]
        for argument in command._actions:
            long = [option for option in argument.option_strings if option.startswith("--") and option != "--help"]
            for option in long: assert (f" {option}" in listed) == (argument.dest in wanted.takes), (action, option)


@pytest.mark.parametrize("action", ["list", "table", "publish", "merge", "predictions", "page"])
def test_what_the_help_of_results_leaves_out_is_refused(action, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command = commands_with_actions()["results"]
    for argument in command._actions:
        for option in argument.option_strings:
            if argument.dest in command.actions_help[action].takes or argument.dest == "help": continue
            if not option.startswith("--"): continue
            value = ["a=1"] if option == "--where" else []
            assert main(["results", action, option, *value]) == 2
            assert f"{option} is for" in capsys.readouterr().err, option
    assert not list(tmp_path.iterdir())


def test_help_fits_a_narrow_terminal(monkeypatch, capsys):
    "Long lines of a registry wrap below their names; a list that is asked for has a line each"
    monkeypatch.setenv("COLUMNS", "80")
    commands = next(action for action in parser()._actions if action.dest == "command").choices
    for name, command in commands.items():
        assert max(map(len, command.format_help().splitlines())) <= 80, name
    assert main(["list", "experiments"]) == 0
    assert all(line.startswith("  ") and line[2] != " " for line in capsys.readouterr().out.splitlines())
    assert "; ;" not in commands["doctor"].format_help()


def test_doctor_and_datasets(tmp_path, capsys):
    assert main(["datasets"]) == 0 and "cuhk-pedes" in capsys.readouterr().out
    assert main(["doctor", "cuhk-pedes", "--root", str(tmp_path)]) == 1 and "ERROR" in capsys.readouterr().out
    assert main(["doctor", "cuhk-pede"]) == 2 and "Did you mean 'cuhk-pedes'" in capsys.readouterr().err


def test_world(private_cache, capsys):
    assert main(["world", "--preset", "quik"]) == 2 and "Did you mean 'quick'" in capsys.readouterr().err
    assert main(["world", "--preset", "smoke"]) == 0  # into the session's cache, which other tests use too
    out = capsys.readouterr().out
    assert "train" in out and str(private_cache) in out


def test_warnings_of_the_library_are_lines_of_the_command(tmp_path, capsys):
    "Tied scores, said once, after the scores, with the option instead of the keyword"
    same = Embeddings(np.ones((6, 4), np.float32), np.arange(6)//2, np.arange(6) % 2)
    same.save(tmp_path/"same.npz")
    assert main(["metrics", str(tmp_path/"same.npz"), str(tmp_path/"same.npz")]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("reid_lab metrics: about 100 % of the matches") and said.err.count("\n") == 1
    assert "--ties expected takes" in said.err and "ties=" not in said.err and said.out.startswith("R1 ")
    assert main(["metrics", str(tmp_path/"same.npz"), str(tmp_path/"same.npz"), "--ties", "expected"]) == 0
    said = capsys.readouterr()
    assert said.err == "" and f"R1         {100/5:.2f}" in said.out      # one right of five, in any order


def test_weights_are_inspected_and_converted(tmp_path, capsys):
    import timm
    import torch

    from reid_lab.models.bot import bot_r50
    torch.manual_seed(3)
    state = timm.create_model("resnet50", num_classes=5).state_dict()
    torch.save({"state_dict": {f"module.{k}": v for k, v in state.items()}}, tmp_path/"r50.pth")
    assert main(["weights", "inspect", str(tmp_path/"r50.pth")]) == 0
    out = capsys.readouterr().out
    assert "a ResNet-50 of torchvision or timm" in out and "fits        bot_r50" in out
    assert "left out    2 (fc.weight, fc.bias): classifier of the pretraining" in out
    assert main(["weights", "inspect", str(tmp_path/"r50.pth"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["layout"] == "resnet50" and found["tensors"] == len(state)
    assert found["arguments"] == dict(tower="resnet50")
    args = ["--model", "bot_r50", "-p", "size=(64, 32)", "-p", "n_ids=3"]
    assert main(["weights", "convert", str(tmp_path/"r50.pth"), str(tmp_path/"b.safetensors"), *args]) == 0
    assert "taken: 318 of 318 tensors" in capsys.readouterr().out
    model = bot_r50(n_ids=7, size=(64, 32), weights=tmp_path/"b.safetensors")
    assert torch.equal(model.image.net.layer4[2].conv3.weight, state["layer4.2.conv3.weight"])
    assert main(["weights", "inspect", str(tmp_path/"b.safetensors")]) == 0
    out = capsys.readouterr().out
    assert "weights of this library" in out and "source      r50.pth" in out and "n_ids=3" in out


# ---------------------------------------------------------------- what is shown

def _named(folder, *names):
    "Features of files with these names"
    emb = np.eye(len(names), 8, dtype=np.float32)
    np.savez(folder/"named.npz", emb=emb, pid=np.arange(len(names)), path=np.array(names))
    return str(folder/"named.npz")


def test_names_neither_command_a_terminal_nor_a_spreadsheet(tmp_path, capsys):
    q = _named(tmp_path, "=1+1.jpg", "@x.jpg", "+a.jpg", "-b.jpg", "a\x1b]0;owned\x07.jpg", "c\x9b2J.jpg")
    assert main(["match", q, q, "--out", str(tmp_path/"pairs.csv")]) == 0
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\x9b"} & set(said.out + said.err) and r"a\x1b]0;owned\x07.jpg" in said.out
    cells = [c for line in (tmp_path/"pairs.csv").read_text().splitlines()[1:] for c in line.split(",")]
    assert not any(c.startswith(("=", "@", "+", "-b")) for c in cells) and "'=1+1.jpg" in cells
    assert main(["match", str(tmp_path/"no\x1b[2J.npz"), q]) == 2    # in an error too
    assert r"no\x1b[2J.npz" in (text := capsys.readouterr().err) and "\x1b" not in text


def test_a_tensor_with_an_escape_in_its_name(tmp_path, capsys):
    from safetensors.numpy import save_file
    save_file({"a\x1b[2Jb": np.zeros(2, np.float32)}, tmp_path/"w.safetensors")
    assert main(["weights", "inspect", str(tmp_path/"w.safetensors")]) == 0
    assert "\x1b" not in (text := capsys.readouterr().out) and r"a\x1b[2Jb" in text


def test_a_column_with_an_escape_in_its_name(tmp_path, capsys):
    (tmp_path/"m.csv").write_text("pa\x1b[2Jth\n0.jpg\n")
    assert main(["embed", str(tmp_path/"m.csv"), "--model", "clip_tiny", "--out", str(tmp_path/"e")]) == 2
    assert "\x1b" not in capsys.readouterr().err


def _foreign(folder):
    "Features in got/ that name the folder private/ beside it, with one picture"
    from PIL import Image
    for name in ("got", "private", "asks"): (folder/name).mkdir()
    Image.new("RGB", (16, 32), (200, 0, 0)).save(folder/"private"/"a.jpg")
    e = Embeddings(np.eye(2, 8, dtype=np.float32), [0, 1], path=["a.jpg", "a.jpg"],
        meta=dict(root=str(folder/"private")))
    e.save(folder/"got"/"evil.npz")
    Embeddings(np.eye(2, 8, dtype=np.float32), [0, 1]).save(folder/"asks"/"ask.npz")
    return e, str(folder/"got"/"evil.npz"), str(folder/"asks"/"ask.npz")


def test_a_folder_of_pictures_that_only_the_features_name_is_said(tmp_path, capsys):
    e, evil, ask = _foreign(tmp_path)
    page, private = str(tmp_path/"p.html"), str(tmp_path/"private")
    assert main(["match", ask, evil, "--html", page]) == 0
    assert f"pictures are taken from {private!r}, which the features name" in capsys.readouterr().err
    assert main(["match", ask, evil, "--html", page, "--fresh", "--json"]) == 0 and private in capsys.readouterr().err
    e.save(tmp_path/"mine.npz")        # the folder lies below that of the features
    mine = str(tmp_path/"mine.npz")
    assert main(["match", ask, mine, "--html", page, "--fresh"]) == 0 and capsys.readouterr().err == ""


def test_a_page_holds_no_path_of_the_host(tmp_path, capsys):
    _, evil, ask = _foreign(tmp_path)
    assert main(["match", ask, evil, "--html", str(tmp_path/"p.html")]) == 0
    text = (tmp_path/"p.html").read_text()
    assert "data:image" in text and str(tmp_path) not in text


# ---------------------------------------------------------------- errors

@pytest.mark.parametrize("error, code", [(AttributeError("a\nb"), 1), (TypeError("pid is text"), 2), (MemoryError(), 1),
                                         (ImportError("no pyarrow"), 1), (OverflowError("too large"), 1)])
def test_no_error_leaves_a_traceback_unless_it_is_asked_for(error, code, monkeypatch, capsys):
    def fails(a): raise error
    monkeypatch.setattr("reid_lab.cli.commands._layout_of_datasets", fails)
    assert main(["datasets"]) == code
    text = capsys.readouterr().err
    assert text.startswith("reid_lab datasets: ") and text.count("\n") == 1 and "Traceback" not in text
    with pytest.raises(type(error)): main(["--debug", "datasets"])


def test_options_of_a_list_are_joined(capsys, tmp_path):
    q, g = _named(tmp_path, "a", "b"), str(tmp_path/"g.npz")
    np.savez(g, emb=np.eye(2, 8, dtype=np.float32), pid=np.arange(2))
    assert main(["metrics", q, g, "--ks", "1", "--ks", "2", "--same-camera", "keep"]) == 0
    text = capsys.readouterr().out
    assert "R1 " in text and "R2 " in text
    assert main(["metrics", q, g, "--key", "emb=emb", "--key", "emb=pid"]) == 2
    assert "['emb'] given more than once" in capsys.readouterr().err


WAITS = """
import os, pathlib, time
from reid_lab.core.stopping import StoppedTraining
from reid_lab.experiments.run import start_run
run = start_run('waits', dict(preset=preset, execution=execution, out_dir=out_dir))
watch, end = run.execution.watch(), time.time() + 60
pathlib.Path(out_dir, 'waiting').touch()
while not (why := watch.reason()) and time.time() < end: time.sleep(.05)
if how != 'on': raise StoppedTraining(f'stopped after step 3 of 9, since {why}')
run.record(dict(R1=1.), 'world')
run.finish()
"""


def waits(path):
    "A notebook in the place of a training, which waits until it has to stop"
    nbformat.write(new_notebook(cells=[
        new_code_cell("preset = 'smoke'\nexecution = ''\nout_dir = ''\nhow = 'stop'",
                      metadata=dict(tags=["parameters"])),
        new_code_cell(WAITS)]), path)
    return str(path)


def test_a_run_that_stops_in_time_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("REID_LAB_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    nb = waits(tmp_path/"waits.ipynb")
    assert main(["run", nb, "--max-hours", "1e-6"]) == 75
    said = capsys.readouterr().err
    (folder,) = (tmp_path/"runs").iterdir()
    assert "stopped after step 3 of 9, since its hours are over. What is done is saved" in said
    assert said.strip().endswith(f"reid_lab run {nb} --max-hours 1e-6 --out runs/{folder.name}")
    assert "with more --max-hours than these" in said
    assert json.loads((folder/"metrics.json").read_text())["status"] == "interrupted"


def test_sigusr1_reaches_what_a_run_trains(tmp_path, capsys):
    nb, out, started = waits(tmp_path/"waits.ipynb"), tmp_path/"out", time.time()
    def send():
        while not (out/"waiting").exists() and time.time() < started + 60: time.sleep(.05)
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=send)
    thread.start()
    code = main(["run", nb, "--out", str(out)])
    thread.join()
    said = capsys.readouterr().err
    assert code == 75 and "since it was asked to stop" in said and said.strip().endswith(f"--out {out}")
    assert not (out/".stop").exists()
