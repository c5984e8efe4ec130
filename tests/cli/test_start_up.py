"What a command imports is what its user waits for: lists and refusals need none of the large libraries"
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

LARGE = ("torch", "torchvision", "transformers", "open_clip", "timm", "pandas", "scipy", "sklearn", "matplotlib",
         "nbformat", "papermill", "IPython")

OF_OTHER_MODELS = ("torchvision.ops", "transformers", "torch._dynamo", "open_clip", "timm", "scipy", "sklearn",
                   "matplotlib", "papermill", "IPython")


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


def test_commands_on_crops_import_only_what_their_model_needs(tmp_path):
    "torchvision.ops, transformers and torch._dynamo take longer than torch; a ResNet of ours needs none of them"
    crops, features = tmp_path/"crops", str(tmp_path/"f.npz")
    crops.mkdir()
    for i, image in enumerate(np.random.default_rng(0).integers(0, 255, (4, 64, 32, 3), dtype=np.uint8)):
        Image.fromarray(image).save(crops/f"{i//2:04d}_c{i % 2 + 1}_{i}.png")
    calls = [["embed", str(crops), "--model", "bot_tiny", "--out", features],
             ["search", features, "--image", str(crops/"0000_c1_0.png")], ["match", features, features]]
    code = ("import sys\nfrom reid_lab.cli.commands import main\n"
            f"assert [main(args) for args in {calls!r}] == [0, 0, 0]\n"
            f"print([name for name in {OF_OTHER_MODELS!r} if name in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
