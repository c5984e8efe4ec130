"""What `tests/core/test_distributed.py` runs in one process and, started by torchrun, in two: the results must agree.

    torchrun --standalone --nproc_per_node 2 tests/core/distributed_program.py OUT
"""
import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))    # torchrun gives only the program's own folder

import numpy as np
import pandas as pd
import torch
from helpers.shared_rows import SharedRows
from torch import nn

from reid_lab.core.distributed import from_all, gathered, mean_gradients, means, own_rows, processes, sync_batchnorm
from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable
from reid_lab.losses.image import triplet
from reid_lab.meta.dmg import DMGStep
from reid_lab.meta.dual_speed import DualSpeed, ReleasedDualSpeed, Rounds, Task, TaskCycle
from reid_lab.meta.memory import ErrorMemory
from reid_lab.models.bot import bot_tiny
from reid_lab.models.camel import camel_tiny
from reid_lab.models.cfam import cfam_tiny
from reid_lab.models.cfan import cfan_tiny
from reid_lab.models.clip import clip_tiny
from reid_lab.models.dual import dual_tiny
from reid_lab.models.irra import irra_tiny
from reid_lab.models.transreid import transreid_tiny
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.training.callbacks import Validate
from reid_lab.training.checkpoints import Checkpoint
from reid_lab.training.learner import Callback, Learner, Plain
from reid_lab.training.logs import Log

SIZE, N, WORDS, STEPS = (64, 32), 8, 40, 6
_NET = dict(size=SIZE, width=32, layers=1, text_layers=1, dim=16, max_len=16)


def models():
    "Name -> model without dropout; BatchNorm, where there is any, over all rows"
    words = dict(vocab_size=WORDS, size=SIZE)
    dual, clip = dict(words, norm="group", widths=(8, 8, 16, 16), text_width=16), dict(_NET, vocab_size=WORDS)
    camel = dict(words, norm="group", widths=(8, 8, 16, 16), text_width=16, negatives="argmax", hard_share=1.)
    bot = dict(size=SIZE, widths=(8, 8, 16, 16))
    return {
        "itc": lambda: dual_tiny(loss="itc", **dual), "sdm": lambda: dual_tiny(loss="sdm", **dual),
        "clip": lambda: clip_tiny(**clip), "camel": lambda: camel_tiny(eda_weight=.8, **camel),
        "camel, memory": lambda: camel_tiny(match_share=1., **camel),
        "irra": lambda: irra_tiny(n_ids=4, losses="itc+sdm+id+irr", **clip),
        "cfam": lambda: cfam_tiny(n_ids=4, losses="itc+gs+ls+m+cid+irr", **clip),
        "cfan": lambda: cfan_tiny(losses="cda+fta", **clip),
        "triplet": lambda: bot_tiny(4, center=.1, **bot), "weighted": lambda: bot_tiny(4, metric="weighted", **bot),
        "circle": lambda: bot_tiny(4, metric="circle", **bot),
        "transreid": lambda: transreid_tiny(4, size=SIZE, width=24, depth=2)}


def whole_batch():
    "Eight rows of four people, in float64; numbers of masked words differ from row to row"
    g = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)
    tokens = torch.randint(5, WORDS, (N, 10), generator=g)
    tokens[torch.arange(10) > torch.arange(3, 3 + N)[:, None]] = 0
    labels = torch.where((draw(N, 10) < .3) & (tokens > 0), tokens, -100)
    pid = torch.tensor([3, 3, 5, 5, 7, 7, 9, 9])
    return dict(img=draw(N, 3, *SIZE), tokens=tokens, tokens_eda=tokens.flip(0), tokens_mlm=tokens, labels_mlm=labels,
                pid=pid, label=(pid - 3)//2, cam=torch.arange(N) % 2, img_bridge=draw(N, 3, *SIZE),
                has_bridge=torch.tensor([1, 1, 0, 1, 0, 1, 1, 1]).bool())


def memory():
    "Five entries of an error memory of `camel_tiny`"
    g = torch.Generator().manual_seed(2)
    draw = lambda *shape: torch.rand(*shape, generator=g, dtype=torch.float64)
    return dict(img=draw(5, 128), txt=draw(5, 128), pid=torch.tensor([3, 9, 11, 12, 13]), img_tok=draw(5, 8, 16),
                txt_tok=draw(5, 12, 16), mask=draw(5, 12) < .9)


def gradients():
    "Losses and gradients of every model: means over processes"
    batch, own, out = whole_batch(), own_rows(), {}
    for name, make in models().items():
        torch.manual_seed(0)
        net = sync_batchnorm(make().double().train())
        given = {k: v[own] for k, v in batch.items() if name != "camel, memory" or k != "tokens_eda"}
        if name == "camel, memory": given = {**given, "memory": memory()}
        losses = {k: v for k, v in net(given).items() if k.endswith("_loss")}
        sum(losses.values()).backward()
        mean_gradients(net.parameters(), bucket=5000)
        grads = {k: p.grad for k, p in net.named_parameters() if p.grad is not None}
        buffers = {k: b for k, b in net.named_buffers() if b.is_floating_point()}
        out[name] = dict(losses={k: v.double() for k, v in means(losses).items()}, grads=grads, buffers=buffers)
    return out


def rows(n): return SharedRows(n, apart=2)


class Net(nn.Module):
    "A classifier with triplet loss over all rows; BatchNorm and dropout on request"
    def __init__(self, norm=False, p=0.):
        super().__init__()
        torch.manual_seed(0)
        self.norm = nn.BatchNorm1d(6) if norm else nn.Identity()
        self.a = nn.Linear(3, 6, bias=not norm)
        self.b, self.p = nn.Linear(6, 2), p
    def forward(self, batch):
        h = nn.functional.dropout(self.norm(self.a(batch["img"])).tanh(), self.p, self.training)
        out = dict(id_loss=nn.functional.cross_entropy(self.b(h), batch["pid"]),
                   triplet_loss=triplet(*gathered(h, batch["pid"])))
        if "memory" in batch: out["memory_loss"] = .1*(h @ batch["memory"]["img"].T).square().mean()
        mask = torch.ones(len(h), 3 + processes()[0], dtype=torch.bool)     # captions differ in length
        return {**out, "emb": h, "memory_entry": dict(img=h.detach(), pid=batch["pid"], mask=mask)}


class Remember(Task):
    "A memory that the next batches read"
    def __init__(self): self.memory = ErrorMemory(24)
    def __call__(self, batch, rng): return {**batch, "memory": self.memory.read()} if len(self.memory) else batch
    def after(self, out): self.memory.push(out["memory_entry"])
    def state_dict(self): return dict(memory=self.memory.state_dict())
    def load_state_dict(self, state): self.memory.load_state_dict(state["memory"])


def strategies():
    "Name -> strategy"
    tasks = lambda: [Task(), Remember()]
    return dict(plain=Plain, cycle=lambda: TaskCycle(tasks()), released=lambda: ReleasedDualSpeed(tasks()),
                dual_speed=lambda: DualSpeed(tasks(), slow_every_tasks=2, rounds=Rounds(iters_per_task=1)),
                dmg=lambda: DMGStep(support=.3),
                second_order=lambda: DMGStep(second_order=True, md_params="theta_prime"))


def flat(x):
    "All tensors of a state, in order"
    if isinstance(x, torch.Tensor): return [x.detach().clone()]
    if isinstance(x, dict): return [t for k in sorted(x) if k != "mask" for t in flat(x[k])]
    return [t for v in x for t in flat(v)] if isinstance(x, (list, tuple)) else []


def learner(strategy=None, callbacks=(), **net): # 16 rows a batch, whatever the number of processes
    return Learner(Net(**net), rows(4), strategy, callbacks, lr=.02, clip=1., device="cpu", batchnorm="sync")


def trained():
    "Weights and states of strategies after a few steps, and whether they are bit for bit the same in all processes"
    out = {}
    for name, make in strategies().items():
        strategy = make()
        learn = learner(strategy, norm=True).fit(steps=STEPS)
        state = [*flat(learn.net.state_dict()), *flat(strategy.state_dict())]
        others = from_all(state)
        same = all(len(o) == len(state) and all(torch.equal(a, b) for a, b in zip(o, state)) for o in others)
        out[name] = dict(same=same, state=state, images=learn.images)
    return out


def local_statistics():
    "With BatchNorm of the own rows: running statistics in every process, after averaging"
    learn = Learner(Net(norm=True), rows(4), lr=.02, device="cpu").fit(steps=3)
    return from_all([learn.net.norm.running_mean, learn.net.norm.running_var])


class Shorten(Callback):
    "A loader of another length in every epoch, decided by process 0; or by each"
    def __init__(self, together=True): self.n, self.together = 0, together
    def before_epoch(self, learn):
        own = 1 + (learn.epoch + learn.rank) % 3
        if learn.number == 0: self.n = from_all(own)[0] if self.together else own
        learn.loader = rows(self.n)
    def state_dict(self): return dict(n=self.n)
    def load_state_dict(self, state): self.n = state["n"]


def lengths(folder, stop=0):
    "Epochs of 1, 2, 3, 1 ... batches with a checkpoint a step, which go on from the newest"
    save = Checkpoint(Path(folder), every=1)
    learn = learner(None, [Shorten(), save, StopAt(stop)], norm=True, p=.3)
    save.resume(learn)
    learn.fit(epochs=5)
    return dict(weights=flat(learn.net.state_dict()), counts=[learn.epoch, learn.step, learn.images])


def stopped_and_resumed(folder):
    lengths(folder, stop=5)
    return lengths(folder)


def unequal():
    "Processes that decide on their own"
    try: learner(None, [Shorten(together=False)]).fit(epochs=1)
    except ValueError as e: return str(e)


class StopAt(Callback):
    "Ends the loop after a step, or the process"
    def __init__(self, step, kill=False): self.at, self.kill = step, kill
    def after_all(self, learn):
        if learn.step == self.at and self.kill: os._exit(17)
        learn.stop = learn.step == self.at


def run(folder, stop=0, kill=False, p=0.):
    "A training with a checkpoint a step, which goes on from the newest"
    val = Validate(lambda m: dict(mAP=-float(m.a.weight.abs().sum().detach())), every=3, unit="step", select=False)
    save, log = Checkpoint(Path(folder)/"state", every=1), Log(Path(folder)/"log.jsonl", 2, quiet=True)
    learn = learner(None, [log, val, save, StopAt(stop, kill)], p=p)
    save.resume(learn)
    learn.fit(steps=11)
    return [*flat(learn.net.state_dict()), torch.tensor([r["mAP"] for r in val.rows])]


class Colour(nn.Module):
    "A linear model of pixels"
    size = (16, 8)
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3*16*8, 5)
    def encode_image(self, img): return self.lin(img.flatten(1))


def people():
    "Thirty images of ten people under three cameras"
    store = {f"{i}.jpg": np.random.default_rng(i).integers(0, 255, (16, 8, 3), dtype=np.uint8) for i in range(30)}
    frame = pd.DataFrame(dict(path=list(store), pid=np.arange(30)//3, cam=np.arange(30) % 3,
                              captions=[[f"person {i}"] for i in range(30)]))
    return ReidTable(frame, None, reader=lambda ps: [store[p] for p in ps])


def metrics():
    "Embeddings and metrics, the work divided"
    e = embed_images(Colour(), people(), batch_size=7, share=True)
    return dict(emb=e.emb, metrics={k: float(v) for k, v in retrieval_metrics(e, e).items() if k in ("mAP", "R1")})


def batches():
    "What the own part of a batch holds"
    rank, world = processes()
    part = Batches(people(), 6, augment="light").share(rank, world).batch(1, 2)
    return from_all(dict(img=part["img"], index=part["index"], caption=part["caption"]))


def refused():
    "A loader that cannot be shared"
    class Same:
        def __len__(self): return 1
    try: Learner(Net(), Same(), device="cpu")
    except ValueError as e: return str(e)


def main(out, *how):
    "All of it; with `killed` the training that dies at a step"
    out = Path(out)
    if how and how[0] == "killed": return run(out/"killed", int(how[1]), True, p=.3)
    if how: return save(out/"again.pt", run(out/"killed", p=.3))
    found = dict(gradients=gradients(), trained=trained(), local=local_statistics(), metrics=metrics(),
                 batches=batches(), refused=refused(), whole=run(out/"whole"), dropout=run(out/"dropout", p=.3),
                 cut=run(out/"cut", 5), other=run(out/"from-one"), lengths=lengths(out/"lengths"),
                 resumed=stopped_and_resumed(out/"lengths-cut"), unequal=unequal())
    save(out/"two.pt", found)


def save(path, found):
    "What process 0 found"
    if processes()[0] == 0: torch.save(found, path)


if __name__ == "__main__": main(*sys.argv[1:])
