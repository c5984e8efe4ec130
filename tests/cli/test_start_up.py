"What a command imports is what its user waits for: lists and refusals need none of the large libraries"
import subprocess
import sys

import pytest

LARGE = ("torch", "torchvision", "transformers", "open_clip", "timm", "pandas", "scipy", "sklearn", "matplotlib",
         "nbformat", "papermill", "IPython")


def imported(args, names):
    "Exit code of a command and which of some modules it has imported"
    code = ("import sys\nfrom reid_lab.cli.commands import main\n"
            f"try: code = main({args!r})\nexcept SystemExit as e: code = e.code\n"
            f"print(code, *(name for name in {names!r} if name in sys.modules), sep=',')")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    code, *found = done.stdout.splitlines()[-1].split(",")
    assert code in "012", done.stderr
    return int(code), found


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["list", "--help"], ["embed", "--help"],
                                  ["list", "models"], ["list", "models", "clip_tiny"],
                                  ["list", "weights"], ["list", "experiments"],
                                  ["list", "papers"], ["published", "--help"], ["run", "--help"]])
def test_lists_and_help_import_nothing_large(args):
    assert imported(args, LARGE) == (0, [])


@pytest.mark.parametrize("args", [["list", "models", "clip_tyni"], ["list", "experiments", "camle"],
                                  ["sweep", "camle"], ["run", "camel", "-p", "sed=1"], ["run", "camel", "-p", "preset"],
                                  ["sweep", "dmg", "--grid", "sed=1"]])
def test_misspelt_names_are_refused_without_anything_large(args):
    assert imported(args, LARGE) == (2, [])
