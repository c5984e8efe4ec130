"""Images per second and peak memory of training, with and without each switch, against a plain PyTorch loop.

    python benchmarks/train.py [--model clip_b16 camel_base] [--batch 8] [--steps 3] [--repeat 3] [--device auto]
                               [--size 384 128] [--only bf16 gradcache] [--out FILE.csv]

Every model and switch runs in a fresh process, so that its peak memory is its own; all of them are given the same
random images and captions. The plain loop is AdamW on the sum of the losses in a dozen lines of torch, without our
Learner. Within a repeat all switches run one after the other, and the ratio to the plain loop is taken within the
repeat; the median over repeats is printed with the smallest and the largest. On a GPU peak memory is what torch has
allocated at most; on a CPU it is that of the process, less what it held before the first step.
"""
import argparse
import json
import resource
import statistics
import subprocess
import sys
import time

SIZES = {"clip_b16": (384, 128), "camel_base": (224, 224)}
SWITCHES = {  # name -> (arguments of `tune`, arguments of `Learner`, rows of a chunk as a share of the batch)
    "plain": None,
    "learner": ({}, {}, 0),
    "bf16": ({}, dict(precision="bf16"), 0),
    "fp16": ({}, dict(precision="fp16"), 0),
    "checkpointing": (dict(checkpointing=True), {}, 0),
    "channels_last": (dict(channels_last=True), {}, 0),
    "compiled": (dict(compiled=True), {}, 0),
    "accumulate": ({}, dict(accumulate=2), 0),
    "gradcache": ({}, {}, .25),
    "bf16+compiled+channels_last": (dict(compiled=True, channels_last=True), dict(precision="bf16"), 0)}


class Same:
    "A loader that gives one batch of random pairs again and again, two captions of ten words a person"
    def __init__(self, batch, size, words, steps):
        import torch
        g = torch.Generator().manual_seed(0)
        tokens = torch.zeros(batch, 64, dtype=torch.long)
        tokens[:, :48] = torch.randint(1000, words, (batch, 48), generator=g)
        labels = torch.where(torch.rand(tokens.shape, generator=g) < .15, tokens, -100)
        labels[:, 48:] = -100
        self.n = steps
        self.one = dict(img=torch.rand(batch, 3, *size, generator=g), tokens=tokens, tokens_mlm=tokens,
                        labels_mlm=labels, pid=torch.arange(batch)//2, label=torch.arange(batch)//2)

    def __len__(self): return self.n
    def epoch(self, e, start=0): return (dict(self.one) for _ in range(start, self.n))


def peak_mb(device):
    "What the process, or torch on a GPU, has held at most"
    import torch
    if device.startswith("cuda"): return torch.cuda.max_memory_allocated()/2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss/(1024 if sys.platform != "darwin" else 2**20)


def plain(model, loader, device, steps, each):
    "The loop that everybody writes"
    import torch
    model = model.to(device).train()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=.01)
    batches = loader.epoch(0)
    for _ in range(steps):
        batch = {k: v.to(device) for k, v in next(batches).items()}
        sum(v for k, v in model(batch).items() if k.endswith("_loss")).backward()
        opt.step()
        opt.zero_grad()
        each()


def worker(name, switch, batch, steps, device, size):
    "One model and switch; prints a JSON line"
    import torch
    from reid_lab.core import pick_device, sensible_threads
    from reid_lab.learner import Callback, Learner
    from reid_lab.models.zoo import create_model
    from reid_lab.speed import GradCache, tune
    torch.manual_seed(0)
    device = pick_device(device)
    torch.set_num_threads(sensible_threads())
    model = create_model(name, size=size, weights="none")
    words = getattr(model.tokenizer, "vocab_size", 30522)
    loader, times = Same(batch, size, words, steps + 1), []

    def each():
        if device.startswith("cuda"): torch.cuda.synchronize()
        times.append(time.perf_counter())
    before = 0. if device.startswith("cuda") else peak_mb(device)
    if switch == "plain": plain(model, loader, device, steps + 1, each)
    else:
        tuned, learner, share = SWITCHES[switch]
        class Clock(Callback):
            def after_step(self, learn): each()
        strategy = GradCache(max(1, int(batch*share))) if share else None
        tune(model, **tuned)
        Learner(model, loader, strategy, [Clock()], lr=1e-5, device=device, **learner).fit(steps=steps + 1)
    spent = (times[-1] - times[0])/steps        # the first step pays for what is made once
    parameters = sum(p.numel() for p in model.parameters())
    card = torch.cuda.get_device_name() if device.startswith("cuda") else f"CPU, {torch.get_num_threads()} threads"
    print(json.dumps(dict(images_per_s=batch/spent, peak_mb=peak_mb(device) - before, parameters=parameters, on=card)))


def measure(a, name, switch, size):
    "A fresh process for one model and switch; None if it cannot be done here"
    line = [sys.executable, __file__, "--worker", name, switch, "--batch", str(a.batch), "--steps", str(a.steps),
            "--device", a.device, "--size", *map(str, size)]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        print(f"{name} {switch}: {done.stderr.strip().splitlines()[-1][:160]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def table(name, size, a):
    "Rows of one model: medians over repeats, ratios within a repeat"
    names = ["plain", *[s for s in SWITCHES if s != "plain" and (not a.only or s in a.only)]]
    found, left = {s: [] for s in names}, list(names)
    for _ in range(a.repeat):
        for s in list(left):
            one = measure(a, name, s, size)
            if one is None: left.remove(s)      # it will not be possible the next time either
            else: found[s].append(one)
    base = found["plain"]
    for s in names:
        if not found[s] or not base: continue
        speed = [x["images_per_s"]/b["images_per_s"] for x, b in zip(found[s], base)]
        memory = [x["peak_mb"]/max(b["peak_mb"], 1e-9) for x, b in zip(found[s], base)]
        middle = lambda k: statistics.median(x[k] for x in found[s])
        first = found[s][0]
        yield dict(model=name, parameters=first["parameters"], size="x".join(map(str, size)), batch=a.batch, switch=s,
                   images_per_s=round(middle("images_per_s"), 2), peak_mb=round(middle("peak_mb")),
                   speed=round(statistics.median(speed), 3), speed_low=round(min(speed), 3),
                   speed_high=round(max(speed), 3),
                   memory=round(statistics.median(memory), 3), repeats=len(speed), on=first["on"])


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", nargs="+", default=["clip_b16", "camel_base"], help="keys of the zoo that read captions")
    p.add_argument("--batch", type=int, default=8, help="pairs a step")
    p.add_argument("--steps", type=int, default=3, help="timed steps, after one that is not")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--device", default="auto")
    p.add_argument("--size", nargs=2, type=int, help="height, width (default: 384 128, camel_base 224 224)")
    p.add_argument("--only", nargs="*", default=[], choices=[s for s in SWITCHES if s != "plain"], help="some switches")
    p.add_argument("--out", help="CSV file")
    p.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.worker: return worker(*a.worker, a.batch, a.steps, a.device, tuple(a.size))
    import pandas as pd
    rows = pd.DataFrame([r for m in a.model for r in table(m, tuple(a.size or SIZES.get(m, (128, 64))), a)])
    print(rows.to_string(index=False))
    if a.out: rows.to_csv(a.out, index=False)


if __name__ == "__main__": main()
