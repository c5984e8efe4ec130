"What a misspelt command, option or value may have meant"
import argparse

import pytest

from reid_lab.cli.commands import main
from reid_lab.cli.suggestions import experiment_word, unknown_options

MISSPELT = {
    "rum camel": "did you mean run? Choose one of run, sweep,",
    "lables show": "did you mean labels?",
    "cfan": "'cfan' is an experiment; run it with `reid_lab run cfan`",
    "run_camel --preset smoke": "run it with `reid_lab run camel`",
    "camle": "did you mean `reid_lab run camel`?",
    "xyz": "'xyz' is not known; choose one of run, sweep,",
    "--verzion": "did you mean --version?",
    "--debug rum": "did you mean run?",
    "results tabel": "argument action: 'tabel' is not known; did you mean table? Choose one of list, table, publish",
    "list modles": "did you mean models?",
    "metrics a b --ties ordre": "argument --ties: 'ordre' is not known; did you mean order?",
    "embed --modle bot_tiny": "unrecognized arguments: --modle; did you mean --model?",
    "embed x --modle=bot_tiny --out y": "unrecognized arguments: --modle; did you mean --model?",
    "run dart4 --preset smoke": "experiment='dart4' is not known",
    "run --fresh dart4 --preset smoke": "Did you mean 'dart3'?",
    "sweep dart4 --preset smoke": "Did you mean 'dart3'?",
    "run --preset smoke": "the name of an experiment is missing; `reid_lab list experiments` shows them",
    "run": "the following arguments are required: name"}


@pytest.mark.parametrize("line, says", MISSPELT.items())
def test_the_nearest_is_named(line, says, capsys):
    with pytest.raises(SystemExit) as e: main(line.split())
    said = capsys.readouterr().err
    assert e.value.code == 2 and says in said, said
    assert "unrecognized" not in said or line.split()[0] != "run"


@pytest.mark.parametrize("line", ["embed x --mod bot_tiny --ou new", "search f.npz -- --x", "match a b --mod bot_tiny"])
def test_shortened_options_and_words_behind_two_dashes_are_left_to_argparse(line, capsys):
    assert main(line.split()) == 2 and "unrecognized" not in capsys.readouterr().err


def test_options_and_the_word_that_names_an_experiment():
    command = argparse.ArgumentParser()
    command.add_argument("--fresh", action="store_true")
    command.add_argument("--out")
    for words, name in [("camel --out x", "camel"), ("--out x camel", "camel"), ("--out=x camel", "camel"),
                        ("--fresh camel", "camel"), ("--seed 1 camel", "camel"), ("--seed 1", ""), ("", "")]:
        assert experiment_word(words.split(), command) == name
    assert unknown_options(["--fre", "--sed=1", "a b", "--c d", "--", "--x"], ["--fresh", "--out"]) == ["--sed"]
