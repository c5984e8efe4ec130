"""How long commands take to start, as ratios to `import torch` (or, for models of CLIP, `import open_clip`).

    python benchmarks/start_up.py [--rounds 5]

Bases and commands take turns, so that a machine that is busy for a while slows all of them; what is compared is the CPU
time of the process and its children, the median of the rounds. The last line is one sentence to a gallery that
`reid_lab serve` keeps open.
"""
import argparse
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
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
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
    return [
        Case("list models", [*COMMAND, "list", "models"], most=1/6),
        Case("list weights", [*COMMAND, "list", "weights"], most=1/6),
        Case("list experiments", [*COMMAND, "list", "experiments"], most=1/6),
        Case("list datasets", [*COMMAND, "list", "datasets"], most=1/6),
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of each base and command")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_crops(folder/"crops")
        todo = cases(folder)
        bases = dict.fromkeys(case.base for case in todo)
        seconds = {what: [] for what in [*bases, *(case.name for case in todo)]}
        for _ in range(rounds):
            for base in bases: seconds[base].append(cpu_seconds(["-c", base]))
            for case in todo: seconds[case.name].append(cpu_seconds(case.arguments))
        call = [sys.executable, "-c", OPEN, folder/"clip.npz"]
        one = subprocess.run(call, capture_output=True, text=True, check=True)
    typical = {what: median(values) for what, values in seconds.items()}
    for base in bases: print(f"{base:34} {typical[base]:6.2f} s")
    for case in todo:
        ratio = typical[case.name]/typical[case.base]
        print(f"{case.name:34} {typical[case.name]:6.2f} s   {ratio:5.2f} of {case.base} (aim: {case.most:.2f})")
    sentence = float(one.stdout)
    ratio = sentence/typical["import torch"]
    name = "a sentence to a gallery kept open"
    print(f"{name:34} {sentence:6.3f} s   {ratio:5.3f} of import torch (aim: {1/15:.3f})")


if __name__ == "__main__": main()
