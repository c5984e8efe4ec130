"Random tables with every column that a protocol reads, and its text as plain loops"
import random

import numpy as np
import pandas as pd

from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.protocols import PROTOCOLS

MODALITIES = ("visible", "infrared", "colour pencil", "sketch", "text")


def some_table(seed, n=72):
    "Rows with every column that a protocol reads, few values each"
    rng = np.random.default_rng(seed)

    def of(values): return rng.choice(values, n)

    f = pd.DataFrame(dict(pid=rng.integers(-1, 5, n), cam=rng.integers(1, 7, n), clothes=rng.integers(-1, 3, n),
                          modality=of(MODALITIES[:2]), view=of(["ground", "aerial"]), first_digit=rng.integers(1, 4, n),
                          video=rng.integers(0, 4, n), date=of(["monday", "tuesday"]), track=rng.permutation(n)))
    f["role"] = rng.choice(["query", "gallery", "both", "none"], n, p=(.3, .3, .35, .05))
    f["occluded"] = of([0., .25, .6])
    for exp in (1, 2, 4, 5): f[f"exp{exp}"] = rng.random(n) < .7
    for trial in range(1, 11): f[f"draw{trial}"] = 0
    f["path"] = [f"{number:03}.jpg" for number in rng.permutation(n)]
    places = f.groupby(["pid", "cam"]).cumcount() + 1
    for trial in range(1, 11): f[f"draw{trial}"] = (places + trial) % 4 + 1
    return f, rng


def for_protocol(name, f, rng):
    "The table with names of cameras, or with other modalities, where a protocol asks for them"
    if name.startswith("prcc"):
        f["cam"] = rng.integers(0, 3, len(f))
        f["cam_name"] = np.array(["A", "B", "C"])[f.cam]
    if name.startswith(("orbench", "pku-sketch")):
        questions = PROTOCOLS[name].together     # rows of a combination are joined already
        f["modality"] = rng.choice([*MODALITIES, "+".join(questions)] if questions else MODALITIES, len(f))
    return f


def table_for(name, seed, n=72):
    "A random table with what a protocol asks for"
    f, rng = some_table(seed, n)
    return for_protocol(name, f, rng)


def is_junk(rule, q, g):
    "Whether a rule leaves a gallery row out of the list of a query, word for word"
    def holds(name):
        column = name.removeprefix("other:")
        if -1 in (q[column], g[column]): return False
        return (q[column] != g[column]) == name.startswith("other:")

    same = g["pid"] == q["pid"]
    for group in rule.groups:
        if same and all(holds(name) for name in group): return True
    return any(str(q[c]) == a and str(g[c]) == b for c, a, b in rule.pairs)


def meets(rows, row, both, roles):
    names = {c: row[f"{c}_name"] if f"{c}_name" in row else row[c] for c, _ in rows.conditions}
    if "occluded" in names: names["occluded"] = names["occluded"] > 0
    texts = {c: str(int(v)) if isinstance(v, (bool, np.bool_)) else str(v) for c, v in names.items()}
    ok = row["role"] in roles and all(text in dict(rows.conditions)[c] for c, text in texts.items())
    if rows.changing:
        own = both[(both.pid == row["pid"]) & (both[rows.changing] != -1)]
        ok = ok and row["pid"] != -1 and own[rows.changing].nunique() > 1
    return ok


def naive_draws(protocol, q, g):
    "Rows of each draw, by the text of the protocol"
    both = pd.concat([q, g])
    may_ask, is_searched = ({role, "both"} if side in protocol.by_role else {"query", "gallery", "both", "none"}
                            for side, role in (("queries", "query"), ("gallery", "gallery")))
    asks = [i for i, row in enumerate(q.to_dict("records")) if meets(protocol.queries, row, both, may_ask)]
    searched = [j for j, row in enumerate(g.to_dict("records")) if meets(protocol.gallery, row, both, is_searched)]
    if protocol.without_queries:
        column = "track" if protocol.measure.pooling else "path"
        searched = [j for j in searched if g[column].iloc[j] not in set(q[column].iloc[asks])]
    draw = protocol.draw
    if draw is None: return [(asks, searched)]
    side, rows, conditions = (g, searched, protocol.gallery) if draw.of == "gallery" else (q, asks, protocol.queries)
    found = []
    for trial in range(draw.times):
        random.seed(trial)
        if draw.list_prefix: drawn = [r for r in rows if 1 <= side[f"{draw.list_prefix}{trial + 1}"].iloc[r] <= draw.k]
        else:
            drawn = []
            cams = conditions.values("cam") or sorted(map(str, side.cam.unique()))
            groups = [(pid, cam) for pid in sorted(set(side.pid.iloc[rows])) if pid != -1
                      for cam in (cams if "cam" in draw.per else [None])]
            for pid, cam in groups:
                group = sorted([r for r in rows if side.pid.iloc[r] == pid and cam in (None, str(side.cam.iloc[r]))],
                               key=lambda r: side.path.iloc[r])
                if not group: continue
                drawn += [random.choice(group)] if draw.k == 1 else random.sample(group, min(draw.k, len(group)))
        rest = asks
        if draw.rest_asks: rest = [i for i in asks if q.path.iloc[i] not in set(g.path.iloc[drawn])]
        found.append((drawn, searched) if draw.of == "queries" else (rest, drawn))
    return found


def naive_scores(protocol, sim, q, g):
    "R1, R5, mAP and counts, query by query, as means over the draws"
    draws = []
    for asks, searched in naive_draws(protocol, q, g):
        hits, aps, skipped = [], [], 0
        asking, images = q.to_dict("records"), g.to_dict("records")
        for i in asks:
            own = asking[i]
            kept = [j for j in sorted(searched)
                    if images[j]["pid"] != -1 and not is_junk(protocol.junk, own, images[j])]
            kept.sort(key=lambda j: -sim[i, j])
            match = [images[j]["pid"] == own["pid"] for j in kept]
            if not any(match) or own["pid"] == -1:
                skipped += 1
                continue
            people = list(dict.fromkeys(images[j]["pid"] for j in kept))
            first = people.index(own["pid"]) if protocol.measure.cmc == "identities" else match.index(True)
            hits.append([first < 1, first < 5])
            ranks = [r + 1 for r, m in enumerate(match) if m]
            ap = [(k + 1)/r for k, r in enumerate(ranks)]
            if protocol.measure.ap == "trapezoid":
                ap = [(a + (k/(r - 1) if r > 1 else 1))/2 for a, (k, r) in zip(ap, enumerate(ranks))]
            aps.append(np.mean(ap))
        if not hits: return None
        draws.append([*100*np.mean(hits, axis=0), 100*np.mean(aps), len(hits), skipped, len(searched)])
    return dict(zip(("R1", "R5", "mAP", "n_query", "n_skipped", "n_gallery"), np.mean(draws, axis=0)))


def features(f, dim=12, seed=0, roles=False):
    "Features of a table; those of a benchmark have the column `role` only where it is asked for"
    rng = np.random.default_rng(seed)
    centre = np.random.default_rng(5).normal(size=(8, dim))
    emb = centre[f.pid] + 1.5*rng.normal(size=(len(f), dim))
    named = {c: f[c].to_numpy() for c in f if c not in ("pid", "cam", "path") and (roles or c != "role")}
    return Embeddings(emb.astype("float32"), f.pid.to_numpy(), f.cam.to_numpy(), f.path.tolist(), columns=named)
