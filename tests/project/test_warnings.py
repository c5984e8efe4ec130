"Warnings name the line of the caller, whatever lies between it and the place that warns"
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from reid_lab.analysis.bias.remedies import both_scores
from reid_lab.analysis.open_set import Threshold, open_set_rates, search_scores
from reid_lab.analysis.search import find
from reid_lab.data.loaders import Batches
from reid_lab.data.table import ReidTable
from reid_lab.experiments.notebooks import check_accepted
from reid_lab.meta.memory import ContrastMemory
from reid_lab.results.rows import load_results
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import metrics_from_similarity, msd, retrieval_metrics
from reid_lab.retrieval.ranking import rank
from reid_lab.retrieval.sides import warn_if_apart
from reid_lab.training.options import Execution
from reid_lab.tta.base import adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.tta.dart3 import Dart3Lite
from reid_lab.world.world import World

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)


def features(n=8, **labels):
    "Features with people and cameras"
    known = dict(pid=np.arange(n) % 4, cam=np.arange(n) % 2) | labels
    return Embeddings(RNG.normal(size=(n, 6)).astype("f4"), **known)


class Choosy:
    "A sampler that leaves somebody out"
    def left_out(self, frame): return [0]
    def __call__(self, frame, batch_size, rng): return [np.arange(batch_size)]


def tiny_table():
    images = np.zeros((8, 4, 4, 3), np.uint8)
    frame = pd.DataFrame(dict(path=[f"{i}.png" for i in range(8)], pid=np.arange(8) % 4, cam=0, split="train",
                              captions=[[]]*8))
    return ReidTable(frame, None, lambda path: images[0])


def damaged_world(folder):
    "A World whose table is cut"
    world = World("smoke", cache=folder)
    (world.build()/"table.json").write_text("[")
    return world


Q, G = features(), features(12)
ZERO = Embeddings(torch.zeros(4, 6), [0, 1, 2, 3], [2, 3, 2, 3])
ONES = Embeddings(torch.ones(8, 6), np.arange(8) % 4, [0]*4 + [1]*4)
ONE = features(pid=np.zeros(8, int))
NAMED, OTHER = (features(4, columns=dict(pid_name=list(names))) for names in ("abcd", "bacd"))
CASES = {
    "metrics: ties": lambda tmp: retrieval_metrics(ONES, ONES),
    "metrics: ties of a matrix": lambda tmp: metrics_from_similarity(np.ones((8, 8)), ONES.pid, ONES.pid),
    "metrics: one person": lambda tmp: retrieval_metrics(ONE, features(pid=np.zeros(8, int))),
    "mSD: one person": lambda tmp: msd(np.eye(3), [0]*3, [0]*3),
    "metrics: zeros": lambda tmp: retrieval_metrics(ZERO, G),
    "ranks: empty lists": lambda tmp: rank(*[features(pid=[0]*8, cam=[0]*8) for _ in "qg"], 3, junk="cam"),
    "sides": lambda tmp: warn_if_apart(NAMED, OTHER),
    "remedies: zeros": lambda tmp: both_scores(ZERO, G),
    "open set": lambda tmp: open_set_rates(search_scores(Q, G), 1e9),
    "search": lambda tmp: find(Q, G, 1, Threshold(.1, .1, .1, 10, 10, gallery=2)),
    "batches": lambda tmp: Batches(tiny_table(), 4, sampler=Choosy()),
    "adaptation: unknown cameras": lambda tmp: adapt_embeddings(CameraNorm(), features(cam=[-1]*8), G),
    "adaptation: rate": lambda tmp: adapt_embeddings(Dart3Lite(lr=1e9), Q, G),
    "execution": lambda tmp: check_accepted(Execution(workers=3), "my notebook"),
    "results": lambda tmp: load_results(torn_rows(tmp)),
    "deprecation of a method": lambda tmp: ContrastMemory(8).ask(0, 0),
}


def torn_rows(folder):
    "A store whose last row was not finished"
    from reid_lab.results.rows import RESULT_COLUMNS
    path = folder/"r.csv"
    path.write_text(",".join(RESULT_COLUMNS) + '\nrun,"torn')
    return path


@pytest.mark.parametrize("name", CASES)
def test_the_line_of_the_call_is_named(name, tmp_path):
    call = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(tmp_path)
    assert caught and {(w.filename, w.lineno) for w in caught} == {(__file__, call.__code__.co_firstlineno)}


def test_the_line_that_builds_a_damaged_world_is_named(tmp_path):
    world = damaged_world(tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        world.build(deep=True)
    assert len(caught) == 1 and caught[0].filename == __file__ and "is damaged and made again" in str(caught[0].message)


def test_nobody_counts_frames():
    "Only the helper says which line is meant"
    for path in (ROOT/"reid_lab").rglob("*.py"):
        if path == ROOT/"reid_lab"/"core"/"basics.py": continue
        assert not re.search(r"stacklevel|warnings\.warn\(", path.read_text(encoding="utf-8")), path
