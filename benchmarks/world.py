"""Speed of the World on one core: images per second by backend and size, and the time to open a cached world.

    python benchmarks/world.py [--people 12] [--repeat 5]
    python benchmarks/world.py --presets [--full]     # minutes a World takes, into world_minutes.csv

Times are those of the best of `--repeat` rounds (the machine may be shared); everything is included: pose, solids,
rays, cloth, background, occluder, sensor, JPEG, part map and visible areas.
"""
import argparse
import csv
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from timing import best  # noqa: E402

from reid_lab.world.plan import PRESETS, TASKS, CameraCounts, Options, Plan, text_groups, world_counts
from reid_lab.world.render import pick_backend, reference_areas, render  # noqa: E402 - threads come before numpy
from reid_lab.world.world import World


def draw(items, options, backend):
    "Planned images one after the other; areas of a person who comes again are not measured again, as in a World"
    last, areas = None, None
    for it in items:
        if it.seen != last: last, areas = it.seen, reference_areas(it.seen, backend)
        render(it.seen, it.camera.at(it.shot.time), it.shot, options.size, options.supersample, backend, areas)


def rendering(people, repeat):
    "One line per backend and size"
    print("aim at 128x64: numba < 3 ms, numpy < 6 ms")
    print(f"{'backend':8} {'size':>9} {'samples':>7} {'ms/image':>9} {'images/s':>9}")
    for backend in dict.fromkeys(("numpy", pick_backend())):
        for size, n in (((64, 32), 2), ((128, 64), 2), ((384, 128), 1)):
            cameras = CameraCounts(16, 6)
            items = Plan(text_groups(people, 3, 1, 1, people, 3, cameras), Options(size=size, supersample=n), 0).items
            draw(items, Options(size=size, supersample=n), backend)   # compile, paint the backgrounds
            blocks = [items[i:i + 12] for i in range(0, len(items) - 11, 12)]
            took = [best(lambda b=b: draw(b, Options(size=size, supersample=n), backend), repeat)
                    for b in blocks]
            ms = 1e3*sum(took)/(12*len(took))
            print(f"{backend:8} {size[0]:>5}x{size[1]:<3} {n*n:>7} {ms:>9.2f} {1e3/ms:>9.0f}")


def opening(people, repeat):
    "Build and open a small world"
    with tempfile.TemporaryDirectory() as cache:
        w = World("quick", cache=cache, groups=text_groups(people, 3, 20, 20, 20, 3, CameraCounts(16, 6)))
        start = time.perf_counter()
        n = len(w.table())
        took = time.perf_counter() - start
        print(f"\nfirst table(): {took:.1f} s for {n} images (plan, rendering, captions, writing)")
        took = best(lambda: World("quick", cache=cache, groups=w.groups).table(), repeat)
        t = w.table()
        read = best(lambda: t.images(range(len(t))), repeat)
        print(f"from cache:    {took*1e3:.0f} ms to open, {read*1e6/n:.0f} us to read a picture")


def seconds(preset, **how):
    "Render a World from nothing with all cores -> (seconds, images)"
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        n = len(World(preset, cache=cache, n_jobs=os.cpu_count(), **how).table())
        return time.perf_counter() - start, n


def presets(names, path):
    "Minutes of whole Worlds; those that are not rendered follow from a sample of the same image size"
    rows, rate = [], {}
    for preset in PRESETS:
        for task in TASKS:
            n, how = world_counts(preset, task)["images"], "rendered"
            if preset in names: took, _ = seconds(preset, task=task)
            else:
                if preset not in rate:
                    some, of = seconds(preset, groups=text_groups(400, 3, 20, 20, 400, 3, CameraCounts(20, 6)))
                    rate[preset], sample = some/of, of
                took, how = rate[preset]*n, f"from {sample} images"
            rows.append(dict(preset=preset, task=task, minutes=round(took/60, 2), cores=os.cpu_count(), how=how))
            print(rows[-1])
    with open(path, "w", newline="", encoding="utf-8") as f:
        out = csv.DictWriter(f, list(rows[0]), lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=12, help="people per domain")
    parser.add_argument("--repeat", type=int, default=5, help="rounds; the best counts")
    parser.add_argument("--presets", action="store_true", help="time whole Worlds, smoke and quick, and nothing else")
    parser.add_argument("--full", action="store_true", help="with --presets: render full as well")
    args = parser.parse_args()
    if args.presets:
        presets(("smoke", "quick") + ("full",)*args.full, Path(__file__).with_name("world_minutes.csv"))
        raise SystemExit
    rendering(args.people, args.repeat)
    opening(10*args.people, args.repeat)
