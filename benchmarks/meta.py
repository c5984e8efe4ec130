"""Cost of a training step: DMG-Net's virtual step, in first and second order, against ordinary training.

    python benchmarks/meta.py [--model bot_tiny] [--images 128] [--repeat 8] [--device cpu]

Every variant trains on `--images` random crops a step (16 identities in two camera halves). Prints seconds per step
(best of `--repeat`), the ratio to BoT in the same run, and the peak memory over that of the process before the steps:
allocated memory on a GPU, resident memory of a fresh process on a CPU.
"""
import argparse
import os
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402 - threads are set before torch is imported
from timing import best  # noqa: E402

from reid_lab.meta.camera_batchnorm import CBNStep  # noqa: E402
from reid_lab.meta.dmg import DMGStep  # noqa: E402
from reid_lab.models.zoo import create_model  # noqa: E402
from reid_lab.training.learner import Learner, Plain  # noqa: E402

VARIANTS = {
    "BoT": Plain, "CBN": CBNStep, "both halves + md": lambda: DMGStep(False), "mg, first order": lambda: DMGStep(md=0.),
    "mg, second order": lambda: DMGStep(md=0., second_order=True), "DMG-Net, first order": DMGStep,
    "DMG-Net, second order": lambda: DMGStep(second_order=True),
    "DMG-Net, md at theta'": lambda: DMGStep(md_params="theta_prime"),
    "MLDG": lambda: DMGStep(md=0., support=1., second_order=True)}


class Same:
    "One batch again and again"
    def __init__(self, batch): self.batch = batch
    def __len__(self): return 1
    def epoch(self, e, start=0): return iter([self.batch])


def measure(name, model, images, repeat, device):
    "Seconds per step and peak memory in MiB over the model's own"
    torch.manual_seed(0)
    torch.set_num_threads(1 if device == "cpu" else torch.get_num_threads())
    net = create_model(model, n_ids=100)
    half = torch.arange(16).repeat_interleave(images//32)
    pid = torch.cat([half, half])
    batch = dict(img=torch.rand(images, 3, *net.size), pid=pid, label=pid,
                 cam=torch.arange(images) % 4 + 4*(torch.arange(images) >= images//2))
    learn = Learner(net, Same(batch), VARIANTS[name](), lr=1e-4, clip=5., device=device)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**10
    gpu = device != "cpu"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()/2**20

    def step():
        learn.fit(steps=learn.step + 1)
        if gpu: torch.cuda.synchronize()

    step()
    seconds = best(step, repeat)
    peak = torch.cuda.max_memory_allocated()/2**20 if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/2**10
    return seconds, peak - before


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--model", default="bot_tiny")
    ap.add_argument("--images", type=int, default=128, help="a multiple of 32")
    ap.add_argument("--repeat", type=int, default=8)
    ap.add_argument("--device", default="cpu")
    a = ap.parse_args()
    if a.images % 32 or a.images < 64:
        ap.error(f"--images {a.images} must be a multiple of 32 from 64: 16 identities in two halves")
    print(f"{a.model}, {a.images} images a step, {a.device}\n")
    print(f"{'variant':24} {'s/step':>8} {'x BoT':>7} {'MiB':>8} {'x BoT':>7}")
    base = None
    for name in VARIANTS:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:     # a peak of its own
            seconds, peak = pool.submit(measure, name, a.model, a.images, a.repeat, a.device).result()
        base = base or (seconds, peak)
        print(f"{name:24} {seconds:8.3f} {seconds/base[0]:7.2f} {peak:8.0f} {peak/base[1]:7.2f}", flush=True)


if __name__ == "__main__": main()
