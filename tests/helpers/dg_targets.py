"Made-up target sets of domain generalisation, with the numbers of the published ones"
import numpy as np
import pandas as pd

from reid_lab.data.table import ReidTable


def colours(paths): return [np.full((4, 2, 3), sum(map(ord, p)) % 256, np.uint8) for p in paths]


def table(pid, cam, name="t", **columns):
    frame = pd.DataFrame(dict(path=[f"{i:07d}.png" for i in range(len(pid))], pid=pid, cam=cam))
    return ReidTable(frame.assign(**columns), None, colours, name)


def pairs(ids): return np.repeat(ids, 2), np.tile([0, 1], len(ids))


def target(name, ids, others, shots):
    "A made-up target: `ids` identities, `others` distractors"
    pid, cam = pairs(np.arange(3, 3 + 2*ids, 2))     # numbers with gaps, as those of VIPeR
    if name == "viper": return table(pid, cam)
    if name == "prid2011": return table([*pid, *range(1000, 1000 + others)], [*cam, *[1]*others])
    if name == "ilids":
        return table(np.repeat(np.arange(1, ids + 1), shots), np.tile(range(shots), ids))
    return table([*pid, *[0]*others], [*cam, *[2]*others], role=["query", "gallery"]*ids + ["gallery"]*others)


FULL = dict(viper=(632, 0, 2), prid2011=(200, 549, 2), grid=(250, 775, 2), ilids=(119, 0, 4))
