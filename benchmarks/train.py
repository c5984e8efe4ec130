"""Images per second and peak memory of training, with and without each switch, against a plain PyTorch loop.

    python benchmarks/train.py [--model clip_b16 camel_base] [--batch 8] [--steps 3] [--repeat 3] [--device auto]
                               [--size 384 128] [--only bf16 gradcache=4] [--limit 900] [--out FILE.csv]

The dual encoder of CLIP ViT-B/16 at 384 x 128 and CAMeL with 145 million parameters at 224 x 224, unless others are
named. Every model and switch runs in a fresh process, so that its peak memory is its own; all of them are given the
same random images and captions. A switch is what `reid_lab run --speed` takes, and goes the same way, through
`reid_lab.training.fit.fit`; `none` is that without a switch. The plain loop is AdamW on the sum of the losses in a
dozen lines of torch, without our Learner. Within a repeat all switches run one after the other, and the ratio to the
plain loop is taken within the repeat; the median over repeats is printed with the smallest and the largest. Each
measurement is printed, and the CSV written, as soon as it is there; one that takes longer than --limit seconds is ended
and left out. `loss` is that of the first step: equal losses show that a switch computes the same (parts and chunks draw
dropout one after the other, and a contrastive loss of parts has fewer candidates).

Peak memory counts weights, gradients, optimiser and activations. On a GPU it is what torch has allocated at most.
On a CPU it is the largest resident memory since the first step began, less what was held before the model was made.
There take few and small steps, such as `--batch 4 --steps 2 --repeat 1`; fp16 and tf32 need a GPU, and are said to be
left out.
"""
import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

SIZES = {"clip_b16": (384, 128), "camel_base": (224, 224)}


def switches(batch):
    "Names as `--speed` takes them; `plain` is the loop without us, `none` ours without a switch"
    return ["plain", "none", "bf16", "fp16", "tf32", "checkpointing", "channels_last", "compiled", "accumulate=2",
            f"gradcache={max(1, batch//4)}", "ema=0.999", "bf16,channels_last,compiled"]


class Same:
    "A loader that gives one batch of random pairs again and again, two captions of 48 tokens a person"
    def __init__(self, batch, size, words, steps):
        import torch
        g = torch.Generator().manual_seed(0)
        tokens = torch.zeros(batch, 64, dtype=torch.long)
        tokens[:, :48] = torch.randint(words//30, words, (batch, 48), generator=g)
        labels = torch.where(torch.rand(tokens.shape, generator=g) < .15, tokens, -100)
        labels[:, 48:] = -100
        self.n = steps
        self.one = dict(img=torch.rand(batch, 3, *size, generator=g), tokens=tokens, tokens_mlm=tokens,
                        labels_mlm=labels, pid=torch.arange(batch)//2, label=torch.arange(batch)//2)

    def __len__(self): return self.n
    def epoch(self, e, start=0): return (dict(self.one) for _ in range(start, self.n))


def resident(peak=False):
    "Megabytes of this process in memory now, or at most since `forget_peak`"
    status = Path("/proc/self/status")
    if not status.exists():     # elsewhere only the peak of the whole process is known
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/(2**20 if sys.platform == "darwin" else 1024)
    return int(re.search(rf"{'VmHWM' if peak else 'VmRSS'}:\s+(\d+)", status.read_text())[1])/1024


def forget_peak():
    "Let the peak begin at what is held now, where the system can"
    try: Path("/proc/self/clear_refs").write_text("5")
    except OSError: return


def plain(model, loader, device, opt, each):
    "The loop that everybody writes"
    model = model.to(device).train()
    opt = opt(model)
    for batch in loader.epoch(0):
        batch = {k: v.to(device) for k, v in batch.items()}
        loss = sum(v for k, v in model(batch).items() if k.endswith("_loss"))
        loss.backward()
        opt.step()
        opt.zero_grad()
        each(loss)


def ours(model, loader, device, opt, each, speed):
    "The same steps by the function that every recipe calls"
    from reid_lab.training.fit import Ends, fit
    from reid_lab.training.learner import Callback
    from reid_lab.training.options import Execution
    class Clock(Callback):
        def after_step(self, learn): each(sum(learn.logs.values()))
    fit(model, loader, len(loader), callbacks=[Clock()], quiet=True, ends=Ends(refresh=False), opt=opt, device=device,
        execution=Execution(speed=speed))


def worker(name, speed, batch, steps, device, size):
    "One model and switch; prints a JSON line"
    import torch

    from reid_lab.core.basics import pick_device, sensible_threads
    from reid_lab.models.zoo import MODELS, create_model
    torch.manual_seed(0)
    device = pick_device(device)
    torch.set_num_threads(sensible_threads())
    gpu, before = device.startswith("cuda"), resident()
    few = dict(vocab_size=1200) if MODELS[name].size == "tiny" else {}
    model, times, losses = create_model(name, size=size, weights="none", **few), [], []
    parameters = sum(p.numel() for p in model.parameters())
    words = few.get("vocab_size") or getattr(model.tokenizer, "vocab_size", 30522)
    loader = Same(batch, size, words, steps + 1)

    def each(loss):
        losses.append(float(loss))      # waits for the GPU
        if gpu: torch.cuda.synchronize()
        times.append(time.perf_counter())

    def opt(model): return torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=.01)
    forget_peak()
    torch.manual_seed(0)
    if speed == "plain": plain(model, loader, device, opt, each)
    else: ours(model, loader, device, opt, each, speed)
    spent = (times[-1] - times[0])/steps        # the first step pays for what is made once
    held = torch.cuda.max_memory_allocated()/2**20 if gpu else resident(peak=True) - before
    card = torch.cuda.get_device_name() if gpu else f"CPU, {torch.get_num_threads()} threads"
    print(json.dumps(dict(images_per_s=batch/spent, peak_mb=held, loss=losses[0], parameters=parameters, on=card)))


def measure(a, name, speed, size):
    "A fresh process for one model and switch -> what it found, or why there is nothing"
    line = [sys.executable, __file__, "--worker", name, speed, "--batch", str(a.batch), "--steps", str(a.steps),
            "--device", a.device, "--size", *map(str, size)]
    try: done = subprocess.run(line, capture_output=True, text=True, timeout=a.limit)
    except subprocess.TimeoutExpired: return f"longer than {a.limit} s"
    if done.returncode: return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:200]
    return json.loads(done.stdout.splitlines()[-1])


def row(name, size, batch, speed, found, base):
    "Medians over repeats, ratios within a repeat"
    ratio = lambda k: [x[k]/max(b[k], 1e-9) for x, b in zip(found, base)]
    middle, fast = lambda k: statistics.median(x[k] for x in found), ratio("images_per_s")
    return dict(model=name, parameters=found[0]["parameters"], size="x".join(map(str, size)), batch=batch, switch=speed,
                images_per_s=round(middle("images_per_s"), 2), peak_mb=round(middle("peak_mb")),
                speed=round(statistics.median(fast), 3), speed_low=round(min(fast), 3), speed_high=round(max(fast), 3),
                memory=round(statistics.median(ratio("peak_mb")), 3), loss=round(found[0]["loss"], 4),
                repeats=len(fast), on=found[0]["on"])


def table(name, size, a, write):
    "Measure a model; `write` gets its rows after each measurement"
    names = [s for s in switches(a.batch) if not a.only or s in ("plain", "none", *a.only)]
    names += [s for s in a.only if s not in names]      # any other combination
    found, left = {s: [] for s in names}, list(names)
    for i in range(a.repeat):
        for s in list(left):
            began, one = time.monotonic(), measure(a, name, s, size)
            if isinstance(one, str):
                left.remove(s)      # it will not be possible the next time either
                said = one
            else:
                found[s].append(one)
                said = f"{one['images_per_s']:.2f} images/s, {one['peak_mb']:.0f} MB, loss {one['loss']:.4f}"
            print(f"{name} {i + 1}/{a.repeat} {s}: {said} ({time.monotonic() - began:.0f} s)", flush=True)
            write([row(name, size, a.batch, k, v, found["plain"]) for k, v in found.items() if v and found["plain"]])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", nargs="+", default=["clip_b16", "camel_base"], help="keys of the zoo that read captions")
    p.add_argument("--batch", type=int, default=8, help="pairs a step")
    p.add_argument("--steps", type=int, default=3, help="timed steps, after one that is not")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--device", default="auto")
    p.add_argument("--size", nargs=2, type=int, help="height, width (default: 384 128, camel_base 224 224)")
    p.add_argument("--only", nargs="*", default=[], help="some switches, as --speed of `reid_lab run` takes them")
    p.add_argument("--limit", type=int, default=900, help="seconds that one measurement may take")
    p.add_argument("--out", help="CSV file")
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker: return worker(*a.worker, a.batch, a.steps, a.device, tuple(a.size))
    import pandas as pd
    done = {}
    for m in a.model:
        def write(rows, m=m):
            done[m] = rows
            frame = pd.DataFrame([r for rs in done.values() for r in rs])
            if a.out: frame.to_csv(a.out, index=False)
            return frame
        table(m, tuple(a.size or SIZES.get(m, (128, 64))), a, write)
    print(pd.DataFrame([r for rs in done.values() for r in rs]).to_string(index=False))


if __name__ == "__main__": main()
