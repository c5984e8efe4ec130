"""What each kind of shift between cameras costs on validation Worlds, and who repairs it; rows go to a CSV file.

    python benchmarks/camera_shifts.py [--kinds alike skew crop ...] [--strengths .5 1] [--mixes crop=.5,facing=1]
        [--seeds 1000 1001] [--preset quick] [--share 1] [--steps 0] [--methods Norm DART3 ...] [--transfer]
        [--start] [--device cpu] [--workers 16] [--out camera_shifts.csv]

One process a trial, one thread each. A trial trains a model on the known cameras of a World and scores the methods of
DART3's Table 1 on the others; a second one, trained on as many images of all cameras, is the oracle. With --start it
takes the shipped weights as they are, without a training and without an oracle. Rows that the file holds already are
not run again, so a run that was cut off goes on. Test Worlds (seeds below 1000) are refused.
"""
import argparse
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("LOKY_MAX_CPU_COUNT", "1")   # a World is rendered by the process of its trial

import pandas as pd  # noqa: E402 - threads are set before numpy is imported

from reid_lab.datasets.protocols.cameras import SCENES, SEVERITY, new_camera  # noqa: E402
from reid_lab.models.weights.shipped import check_worlds  # noqa: E402
from reid_lab.models.zoo import create_model  # noqa: E402
from reid_lab.recipes.camera_shifts import ShiftTrial, try_cameras  # noqa: E402
from reid_lab.recipes.dart3 import PAPER, Evaluation, over_cameras, score_settings  # noqa: E402
from reid_lab.recipes.reid import reid_settings  # noqa: E402
from reid_lab.world.plan import PRESETS  # noqa: E402
from reid_lab.world.shifts import CameraShifts  # noqa: E402
from reid_lab.world.world import World  # noqa: E402

WHOLE = ("alike", *SCENES)      # without a strength
KINDS = tuple(CameraShifts.__dataclass_fields__)


def one(trial, device, start):
    "A row, in a process of its own"
    import torch
    torch.set_num_threads(1)
    if start: return of_start(trial) | dict(device="cpu")
    return try_cameras(trial, dict(device=device)) | dict(device=device)


def of_start(trial):
    "What the cameras of a World cost a model that was not trained on them, and what normalisation regains"
    scene, start = trial.scene, time.perf_counter()
    groups = [replace(group, ids=round(trial.share*group.ids), choosy=scene.choosy if group.first_cam else 0.)
              for group in PRESETS[trial.preset]['reid'] if group.split == 'test']
    differences = dict(cameras=scene.cameras) if scene.cameras else dict(drift=scene.drift, severity=SEVERITY)
    world = World(trial.preset, trial.seed, task='reid', groups=groups, n_jobs=1, **differences)
    case = new_camera(world.table(), range(groups[-1].first_cam), trial.cameras, scene.order, trial.seed)
    s = reid_settings(trial.preset, steps=0, weights='world')
    check_worlds(s.start, s.model, trial.seed)
    model = create_model(s.model, n_ids=1, weights=s.start, **dict(s.model_kw)).eval()
    frame = over_cameras(score_settings(Evaluation(model, case), ('No adaptation', 'Norm')))
    scores = dict(zip(frame.variant, frame.mAP))
    row = dict(cameras=trial.cameras, seed=trial.seed, preset=trial.preset, share=trial.share, steps=0,
               n_query=len(case.q))
    return row | {name: round(score, 2) for name, score in scores.items()} | dict(
        seconds=round(time.perf_counter() - start))


def trials(args):
    "Those that are asked for"
    names = [name for name in args.kinds if name in WHOLE] + args.mixes
    names += [f"{kind}={strength:g}" for strength in args.strengths for kind in args.kinds if kind in KINDS]
    how = dict(transfer=args.transfer, share=args.share, steps=args.steps, methods=tuple(args.methods))
    return [ShiftTrial(name, seed, args.preset, **how) for seed in args.seeds for name in names]


def size(trial, start):
    "What tells rows of one size from those of another"
    if start: return 0, trial.share
    return reid_settings(trial.preset, **(dict(steps=trial.steps) if trial.steps else {})).steps, trial.share


def main(args):
    "Every trial that the file does not have yet, written as it is done"
    out = Path(args.out)
    rows = pd.read_csv(out).to_dict("records") if out.exists() else []
    done = {(r["cameras"], r["seed"], r["preset"], r["steps"], r["share"]) for r in rows}
    todo = [t for t in trials(args) if (t.cameras, t.seed, t.preset, *size(t, args.start)) not in done]
    print(f"{len(todo)} trials, {args.workers} at a time", flush=True)
    with ProcessPoolExecutor(args.workers, get_context("spawn")) as pool:
        waiting = {pool.submit(one, trial, args.device, args.start): trial for trial in todo}
        for future in as_completed(waiting):
            if error := future.exception():
                print(f"{waiting[future]} failed: {error!r}", flush=True)
                continue
            rows.append(future.result())
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(out, index=False)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", default=[*WHOLE, *KINDS], choices=[*WHOLE, *KINDS])
    parser.add_argument("--mixes", nargs="*", default=[], help="such as crop=.5,facing=1")
    parser.add_argument("--strengths", nargs="+", type=float, default=[.5, 1.])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1000, 1001], help="of the validation Worlds")
    parser.add_argument("--transfer", action="store_true", help="also between two Worlds, with a third training")
    parser.add_argument("--preset", default="quick", choices=("smoke", "quick"))
    parser.add_argument("--share", type=float, default=1., help="of the preset's identities, where time is short")
    parser.add_argument("--steps", type=int, default=0, help="of training; 0: the preset's")
    parser.add_argument("--start", action="store_true", help="the shipped weights as they are, without an oracle")
    parser.add_argument("--methods", nargs="+", default=list(PAPER), choices=PAPER)
    parser.add_argument("--device", default="cpu", help="cpu or cuda, of training and scoring")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", default=str(Path(__file__).with_name("camera_shifts.csv")), help="CSV file")
    main(parser.parse_args())
