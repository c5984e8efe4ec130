"""What the pixels of a condition tell a small network: the tower of `bot_tiny`, trained on attributes by name, searched

    python benchmarks/attribute_ceiling.py [--study clothes] [--seed 1000] [--steps 600] [--lr .003]

World and size of images are those of `reid_lab run conditions` at `quick`. The network begins with random numbers and
learns to name what stays under the condition; then people are searched by the probabilities of these names, and by its
features. Beside them stands what identity labels teach, in the results of that experiment. One JSON line.
"""
import argparse
import json

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from reid_lab.data.augment import light
from reid_lab.models.zoo import create_model
from reid_lab.recipes.arms import PRESETS, arm_world, chance_of_protocol
from reid_lab.recipes.conditions import STUDIES
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics

STAYS = dict(
    clothes=("gender", "build", "skin", "hair", "hair_colour", "glasses"),
    infrared=("gender", "build", "hair", "glasses", "upper", "sleeve", "pattern", "lower", "shoes", "bag", "hat",
              "held"))
BATCH, WARM = 64, .1    # images; share of the training in which the rate rises


def pixels(table):
    "All images as a tensor (N,3,H,W) of bytes"
    images = np.stack(table.images(np.arange(len(table)), PRESETS["quick"].images))
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


class Namer(nn.Module):
    "A tower with one classifier an attribute"
    def __init__(self, values):
        super().__init__()
        self.net = create_model("bot_tiny", n_ids=1, size=PRESETS["quick"].images, weights="none")
        self.heads = nn.ModuleDict({name: nn.Linear(self.net.dim, len(words)) for name, words in values.items()})

    def features(self, images): return self.net.features(images)[1]     # (B,3,H,W) in [0,1]

    def forward(self, images):
        emb = self.features(images)
        return {name: head(emb) for name, head in self.heads.items()}


def numbers(table, values):
    "The number of each attribute's word, image by image"
    words = list(table.frame["attrs"])
    return {name: torch.tensor([known.index(own[name]) for own in words]) for name, known in values.items()}


def train(model, table, values, steps, lr):
    "Cross-entropy of every attribute, the rate linear up and down"
    images, labels = pixels(table), numbers(table, values)
    rng = torch.Generator().manual_seed(0)
    opt = torch.optim.AdamW(model.parameters(), lr, weight_decay=5e-4)
    model.train()
    for step in range(steps):
        opt.param_groups[0]["lr"] = lr*min(1, (step + 1)/(WARM*steps))*(1 - step/steps)
        rows = torch.randint(len(images), (BATCH,), generator=rng)
        scores = model(light(images[rows].float()/255, rng))
        loss = sum(F.cross_entropy(scores[name], labels[name][rows]) for name in values)
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()


@torch.no_grad()
def searched(model, table):
    "Probabilities of all names, and features: each (N,D)"
    parts = [(model(part), model.features(part)) for part in (pixels(table).float()/255).split(256)]
    scores = {name: torch.cat([part[name] for part, _ in parts]) for name in model.heads}
    return dict(names=torch.cat([s.softmax(1).sqrt() for s in scores.values()], 1),
                features=torch.cat([emb for _, emb in parts]), scores=scores)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--study", default="clothes", choices=list(STAYS))
    ap.add_argument("--seed", type=int, default=1000)
    ap.add_argument("--steps", type=int, default=600)
    ap.add_argument("--lr", type=float, default=3e-3)
    args = ap.parse_args()
    study = STUDIES[args.study]
    table = arm_world(study, "quick", args.seed).table()
    values = {name: sorted({own[name] for own in table.frame["attrs"]}) for name in STAYS[args.study]}
    torch.manual_seed(0)
    model = Namer(values)
    train(model, table.where(split="train"), values, args.steps, args.lr)
    sides = [table.query("test"), table.gallery("test")]
    found = [searched(model, side) for side in sides]
    labels = numbers(sides[0], values)
    right = {name: float((found[0]["scores"][name].argmax(1) == labels[name]).float().mean()) for name in values}
    most = {name: float(labels[name].bincount().max()/len(labels[name])) for name in values}
    told = dict(study=args.study, seed=args.seed, steps=args.steps, lr=args.lr)
    for protocol in study.protocols:
        told[f"chance {protocol}"] = round(chance_of_protocol(table, protocol)["mAP"], 1)
        for kind in ("names", "features"):
            q, g = (Embeddings(own[kind].numpy(), side.frame.pid, side.frame.cam, path=side.frame.path,
                               columns={c: side.frame[c] for c in ("clothes", "modality") if c in side.frame})
                    for own, side in zip(found, sides))
            told[f"{kind} {protocol}"] = round(retrieval_metrics(q, g, protocol=protocol)["mAP"], 1)
    told["named right (%), and the most frequent name"] = {
        name: [round(100*right[name]), round(100*most[name])] for name in values}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
