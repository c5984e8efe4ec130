"Parameters of an experiment are options of its run"
import argparse
import subprocess
import sys

import pytest
from helpers.notebooks import RECORD, notebook

from reid_lab.cli.commands import main
from reid_lab.cli.parameters import as_parameters, named_notebook, parameter_help, parameter_options, parameter_words


def command(*options):
    found = argparse.ArgumentParser()
    for option in options: found.add_argument(option)
    return found


@pytest.mark.parametrize("words, want", [
    (["--seed", "1"], ["-p", "seed=1"]), (["--seed=1", "--name=a=b"], ["-p", "seed=1", "-p", "name=a=b"]),
    (["--world-seed", "-1"], ["-p", "world_seed=-1"]), (["--world_seed", "3"], ["-p", "world_seed=3"]),
    (["--name", ""], ["-p", "name="]), (["--on", "--seed", "1"], ["-p", "on=true", "-p", "seed=1"]),
    (["--on", "no", "x"], ["-p", "on=no", "x"]), (["--out", "a", "--other", "b"], ["--out", "a", "--other", "b"]),
    (["-p", "seed=1"], ["-p", "seed=1"])])
def test_an_option_that_is_a_parameter(words, want):
    defaults = dict(seed=0, world_seed=-1, name="", on=False, out="")
    assert as_parameters(words, ["--out"], defaults) == want


@pytest.mark.parametrize("words", [["--seed"], ["--seed", "--on"], ["--seed", "-p", "a=1"]])
def test_a_missing_value_is_said_with_the_default(words):
    with pytest.raises(ValueError, match="--seed needs a value, such as its default 7"):
        as_parameters(words, [], dict(seed=7, on=False))


@pytest.mark.parametrize("words", [["camel", "--preset", "smoke"], ["--preset", "smoke", "camel"], ["--fresh", "camel"],
                                   ["--preset=smoke", "camel"], ["--preset", "dart3", "camel"]])
def test_the_experiment_is_found_among_the_words(words): assert named_notebook(words).stem == "run_camel"


def test_nothing_is_read_where_all_options_are_known():
    code = ("import sys; from reid_lab.cli.commands import parser\n"
            "parser().parse_args(['run', 'camel', '-p', 'preset=smoke'])\n"
            "print(sorted({'reid_lab.experiments.params', 'pydantic', 'torch'} & set(sys.modules)))\n"
            "a = parser().parse_args(['run', 'camel', '--preset', 'smoke'])\n"
            "print(a.param, 'torch' in sys.modules)")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "[]\n['preset=smoke'] False\n"


def test_a_run_and_a_sweep_take_parameters_as_options(tmp_path, capsys):
    nb = str(notebook(tmp_path/"n.ipynb", RECORD))
    assert main(["run", nb, "--preset", "smoke", "--seed=2", "--out", str(tmp_path/"a")]) == 0
    assert "42.0" in capsys.readouterr().out
    sweep = ["sweep", nb, "--preset", "smoke", "--seeds", "0", "--jobs", "1", "--out", str(tmp_path/"s")]
    assert main(sweep) == 0 and "40.0" in capsys.readouterr().out
    assert main(["run", nb, "--preset", "smoke", "-p", "preset=quick"]) == 2
    assert "['preset'] given more than once" in capsys.readouterr().err


@pytest.mark.parametrize("words, message", [
    (["--presett", "smoke"], "did you mean --preset?"), (["--fersh"], "did you mean --fresh?"),
    (["--zzzzzz", "1"], "unrecognized arguments: --zzzzzz\n"),
    (["--seed"], "--seed needs a value, such as its default 0")])
def test_unknown_options_are_refused_with_the_nearest(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as e: main(["run", str(notebook(tmp_path/"n.ipynb")), *words])
    assert e.value.code == 2 and message in capsys.readouterr().err


def test_help_of_a_run_lists_its_parameters(capsys):
    with pytest.raises(SystemExit) as e: main(["run", "camel", "--help"])
    text = capsys.readouterr().out
    assert e.value.code == 0 and all(f"\n  {option}" in text for option in parameter_options(["camel"]))
    assert "  --preset quick " in text and "smoke, quick, full, paper" in text
    assert max(map(len, parameter_help(["camel"], 70).splitlines())) <= 70


def test_a_notebook_that_cannot_be_read_is_left_to_its_run(tmp_path):
    (tmp_path/"bad.ipynb").write_text("{}")
    words = [str(tmp_path/"bad.ipynb"), "--seed", "1"]
    assert parameter_words(words, command("--out")) == words and parameter_help(words) == ""
