"Questions of several modalities: found, joined and scored as plain loops do it"
import random
import re

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from reid_lab.retrieval.combinations import as_asked, ask_together
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, retrieval_metrics
from reid_lab.retrieval.protocols import PROTOCOLS, Protocol, Rows
from reid_lab.retrieval.queries import as_one
from reid_lab.retrieval.ranking import rank

KINDS = ("infrared", "colour pencil", "sketch", "text", "visible")
COMBINED = [name for name, protocol in PROTOCOLS.items() if protocol.together]


def parts_of_a_test_split(seed, n=90):
    "Images and sentences of a few people, as they are embedded: apart"
    rng = np.random.default_rng(seed)
    f = pd.DataFrame(dict(pid=rng.integers(-1, 5, n), modality=rng.choice(KINDS, n)))
    f["name"] = [f"{number:03}" for number in rng.permutation(n)]
    emb = rng.normal(size=(n, 6)).astype("float32") + 2*np.eye(6, dtype="float32")[f.pid]
    text = (f.modality == "text").to_numpy()

    def of(rows, **labels): return Embeddings(emb[rows], f.pid[rows].to_numpy(), columns=dict(
        modality=f.modality[rows].to_numpy(str)), **labels)

    images = of(~text, path=[f"{name}.jpg" for name in f.name[~text]], cam=np.zeros((~text).sum(), int))
    return images, of(text, path=["of an image"]*text.sum(), caption=[f"says {name}" for name in f.name[text]])


def naive_questions(rows, modalities, seed=0):
    "Each row of the first modality with one of every other, in the order of people and names"
    rng, found = random.Random(seed), []
    for row in sorted(rows, key=lambda r: (r["pid"], r["name"])):
        if row["modality"] != modalities[0] or row["pid"] < 0: continue
        groups = [sorted((r for r in rows if r["pid"] == row["pid"] and r["modality"] == kind), key=lambda r: r["name"])
                  for kind in modalities[1:]]
        if all(groups): found.append([row, *(rng.choice(group) for group in groups)])
    return found


def unit(x): return x/np.linalg.norm(x)


def as_rows(*parts):
    return [dict(pid=int(e.pid[i]), modality=e.columns["modality"][i], emb=e.emb[i].double().numpy(),
                 name=e.caption[i] if e.caption else e.path[i]) for e in parts for i in range(len(e))]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMBINED)
@given(seed=st.integers(0, 2**20))
@settings(max_examples=2, deadline=None)
def test_every_combination_against_a_plain_loop(name, seed):
    "Vectors of questions, and scores of features given with single modalities"
    images, texts = parts_of_a_test_split(seed)
    protocol = PROTOCOLS[name]
    questions = naive_questions(as_rows(images, texts), protocol.together)
    gallery = images.where(modality="visible")
    known = {int(pid) for pid in gallery.pid if pid >= 0}
    assume(any(parts[0]["pid"] in known for parts in questions))
    asked = ask_together(as_one([images, texts]), protocol.together)
    want = {parts[0]["name"]: unit(sum(unit(part["emb"]) for part in parts)) for parts in questions}
    names = [caption or path for caption, path in zip(asked.caption, asked.path)]
    assert len(names) == len(want) and set(names) == set(want)
    for n, x in zip(names, asked.emb.double().numpy()): assert x == pytest.approx(want[n], abs=1e-5)
    hits, aps, skipped = [], [], 0
    for parts in questions:
        scores = [(float(unit(x.double().numpy()) @ want[parts[0]["name"]]), pid)
                  for x, pid in zip(gallery.emb, gallery.pid) if pid >= 0]
        match = [pid == parts[0]["pid"] for _, pid in sorted(scores, key=lambda pair: -pair[0])]
        if not any(match):
            skipped += 1
            continue
        ranks = [r + 1 for r, m in enumerate(match) if m]
        hits.append(match[0])
        aps.append(np.mean([(k + 1)/r for k, r in enumerate(ranks)]))
    got = retrieval_metrics(as_one([images, texts]), gallery, protocol=name, scoring=Scoring(ties="order"))
    assert (got["n_query"], got["n_skipped"]) == (len(hits), skipped)
    assert got["R1"] == pytest.approx(100*np.mean(hits)) and got["mAP"] == pytest.approx(100*np.mean(aps))
    joined = retrieval_metrics(asked, gallery, protocol=name, scoring=Scoring(ties="order"))
    assert joined["mAP"] == pytest.approx(got["mAP"])


def test_lists_say_which_rows_belong_together():
    images, texts = parts_of_a_test_split(3)
    rows = as_rows(images, texts)
    person = next(pid for pid in range(5) if {"sketch", "text"} <= {r["modality"] for r in rows if r["pid"] == pid})
    of_person = [r for r in rows if r["pid"] == person]
    sketch, text = ([r for r in of_person if r["modality"] == kind][-1] for kind in ("sketch", "text"))
    lists = pd.DataFrame([dict(question=7, pid=person, modality=r["modality"], part=r["name"]) for r in (text, sketch)])
    asked = ask_together(as_one([images, texts]), ("text", "sketch"), lists)
    want = unit(unit(text["emb"]) + unit(sketch["emb"]))
    assert len(asked) == 1 and asked.emb[0].double().numpy() == pytest.approx(want, abs=1e-5)
    assert asked.columns["modality"].tolist() == ["text+sketch"] and asked.meta["questions"] == "lists"
    with pytest.raises(ValueError, match="1 of 2 parts are not among the features, such as 'gone.jpg' .sketch, person"):
        ask_together(as_one([images, texts]), ("text", "sketch"), lists.replace({"part": {sketch["name"]: "gone.jpg"}}))
    with pytest.raises(ValueError, match="not each has one part of text, infrared"):
        ask_together(as_one([images, texts]), ("text", "infrared"), lists)


def test_what_cannot_be_joined_is_refused():
    images, texts = parts_of_a_test_split(5)
    infrared = images.where(modality="infrared")
    with pytest.raises(ValueError, match=r"no person has rows of all of them; there are infrared \(\d+\).*as_one"):
        ask_together(infrared, ("infrared", "text"))
    with pytest.raises(ValueError, match="two or more, each once"): ask_together(images, ("sketch", "sketch"))
    bare = Embeddings(images.emb, images.pid)
    with pytest.raises(ValueError, match="needs the column 'modality', which the features lack"):
        ask_together(bare, ("infrared", "sketch"))
    with pytest.raises(ValueError, match="6 and 5 dimensions"): as_one([images, Embeddings(torch.ones(2, 5), [0, 1])])
    with pytest.raises(ValueError, match="parts is empty"): as_one([])
    alone = images.where(pid=lambda pid: pid >= 0)
    person = alone.where(modality="infrared").pid[0]
    alone = alone[~((alone.pid == person) & (alone.columns["modality"] == "sketch"))]
    n = int(((alone.pid == person) & (alone.columns["modality"] == "infrared")).sum())
    assert n and len(alone.where(modality="sketch"))
    with pytest.warns(UserWarning, match=r"\d+ rows of infrared ask nothing: their person has no row of sketch"):
        ask_together(alone, ("infrared", "sketch"))


def test_lists_of_rows_as_given_want_questions():
    "A list that named positions of joined rows would be read as one of the rows given"
    images, texts = parts_of_a_test_split(9)
    q, g = as_one([images, texts]), images.where(modality="visible")
    with pytest.raises(ValueError, match=re.escape("q = ask_together(q, ['infrared', 'sketch'])")):
        rank(q, g, protocol="orbench.infrared+sketch")
    index, _ = rank(as_asked(q, ("infrared", "sketch")), g, protocol="orbench.infrared+sketch")
    assert (index[:, 0] >= 0).all()


def test_a_record_whose_rows_are_not_its_questions_is_refused():
    with pytest.raises(ValueError, match=re.escape("queries=Rows(modality='infrared+sketch')")):
        Protocol("mine", "Mine.", together=("infrared", "sketch"), queries=Rows(modality="infrared"))
    with pytest.raises(ValueError, match="two or more, each once"):
        Protocol("mine", "Mine.", together=("infrared",), queries=Rows(modality="infrared"))
    assert "joins text and sketch" in str(PROTOCOLS["orbench.text+sketch"])


def test_the_lists_are_those_of_the_program():
    "4, 12, 12 and 4 lists: every set of modalities, each first in turn (README of the authors)"
    sizes = [max(1, len(p.together)) for n, p in PROTOCOLS.items() if n.startswith("orbench.")]
    assert sizes == [1]*4 + [2]*12 + [3]*12 + [4]*4
    assert PROTOCOLS["orbench.colour-pencil+sketch"].together == ("colour pencil", "sketch")
    # R1 of the read-me are whole numbers of queries: the first modality fixes the number
    for name, r1 in {"infrared": 57.554, "colour-pencil": 85.750, "sketch": 71.292, "text": 63.535,
                     "infrared+colour-pencil": 94.235, "text+infrared": 82.055, "sketch+text": 78.083,
                     "text+infrared+colour-pencil+sketch": 96.560}.items():
        n = PROTOCOLS[f"orbench.{name}"].counts.queries
        assert abs(round(r1*n/100)/n*100 - r1) < 6e-4, name
