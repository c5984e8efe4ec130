"""How long commands take to start, as ratios to `import torch` (or, for models of CLIP, `import open_clip`).

    python benchmarks/start_up.py [--rounds 5]

Bases and commands take turns, so that a machine that is busy for a while slows all of them; what is compared is the CPU
time of the process and its children, the median of the rounds. A round before them, which does not count, writes the
byte code. The last line is one sentence to a gallery that `reid_lab serve` keeps open.
"""
import argparse
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image

COMMAND = ["-m", "reid_lab"]
AS_USERS = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
LISTS = ("experiments", "models", "datasets", "layouts", "worlds", "weights", "papers", "metrics")
HELPS = ("run", "doctor", "world", "compare", "metrics", "published")   # those that print what is registered, too
OPEN = """
import sys, time
from reid_lab.cli.serve import OpenGallery, reply_to
from reid_lab.recipes.crops import model_of, open_features
features = open_features(sys.argv[1])
gallery = OpenGallery(features, model_of(features))
gallery.ask('a man in a black coat', 1)
start = time.process_time()
for i in range(20): assert reply_to(gallery, 'search', f'q=a+woman+in+a+coat+of+{i}').status == 200
print((time.process_time() - start)/20)
"""


@dataclass(frozen=True)
class Case:
    "What is started"
    name: str
    arguments: list             # of Python
    base: str = "import torch"  # what it is compared with
    most: float = 1.5           # ratio that is aimed at


def cpu_seconds(arguments):
    "User and system time of a Python process"
    def spent(): return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    before = spent()
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False,
                   env=AS_USERS)
    return spent() - before


def write_crops(folder, n=20):
    "Crops of random pixels"
    pixels = np.random.default_rng(0).integers(0, 255, (n, 128, 64, 3), dtype=np.uint8)
    folder.mkdir()
    for i, image in enumerate(pixels): Image.fromarray(image).save(folder/f"{i//4:04d}_c{i % 4 + 1}_{i}.jpg")


def cases(folder):
    "Lists, a refusal, and commands on twenty crops"
    crops, images, both = folder/"crops", folder/"bot.npz", folder/"clip.npz"
    clip = "import open_clip"
    lists = [Case(f"list {what}", [*COMMAND, "list", what], most=1/6) for what in LISTS]
    helps = [Case(f"{name} --help", [*COMMAND, name, "--help"], most=1/6) for name in HELPS]
    return [
        Case("--help", [*COMMAND, "--help"], most=1/6), *lists, *helps,
        Case("datasets", [*COMMAND, "datasets"], most=1/6),
        Case("run camel -p sed=1 (refused)", [*COMMAND, "run", "camel", "-p", "sed=1"], most=1/6),
        Case("run dmg -p preset=quik (refused)", [*COMMAND, "run", "dmg", "-p", "preset=quik"], most=1/6),
        Case("run dart3 -p methods=x (refused)", [*COMMAND, "run", "dart3", "-p", "methods=x"], most=1/6),
        Case("run dmg -p study=mian (refused)", [*COMMAND, "run", "dmg", "-p", "study=mian"], most=1/3),
        Case("run cfan -p device=tpu (refused)", [*COMMAND, "run", "cfan", "-p", "device=tpu"], most=1/6),
        Case("embed, bot_tiny", [*COMMAND, "embed", crops, "--model", "bot_tiny", "--out", images, "--fresh"]),
        Case("search --image, bot_tiny", [*COMMAND, "search", images, "--image", crops/"0000_c1_0.jpg"]),
        Case("match, bot_tiny", [*COMMAND, "match", images, images]),
        Case("embed, clip_tiny", [*COMMAND, "embed", crops, "--model", "clip_tiny", "--out", both, "--fresh"], clip),
        Case("search, clip_tiny", [*COMMAND, "search", both, "a man in a coat"], clip)]


def seconds_of_a_sentence(features):
    "CPU time of one sentence to a gallery that is open"
    call = [sys.executable, "-c", OPEN, features]
    return float(subprocess.run(call, capture_output=True, text=True, check=True).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each base and command")
    parser.add_argument("--lists", action="store_true", help="lists and help only, which need no data")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_crops(folder/"crops")
        todo = [case for case in cases(folder) if case.most < .2 or not args.lists]
        bases = dict.fromkeys(case.base for case in todo)
        seconds = {what: [] for what in [*bases, *(case.name for case in todo)]}
        for _ in range(args.rounds + 1):
            for base in bases: seconds[base].append(cpu_seconds(["-c", base]))
            for case in todo: seconds[case.name].append(cpu_seconds(case.arguments))
        sentence = None if args.lists else seconds_of_a_sentence(folder/"clip.npz")
    typical = {what: median(values[1:]) for what, values in seconds.items()}
    for base in bases: print(f"{base:34} {typical[base]:6.2f} s")
    for case in todo:
        ratio = typical[case.name]/typical[case.base]
        print(f"{case.name:34} {typical[case.name]:6.2f} s   {ratio:5.2f} of {case.base} (aim: {case.most:.2f})")
    if sentence is None: return
    ratio = sentence/typical["import torch"]
    name = "a sentence to a gallery kept open"
    print(f"{name:34} {sentence:6.3f} s   {ratio:5.3f} of import torch (aim: {1/15:.3f})")


if __name__ == "__main__": main()
