"""Records with a field that nothing can be done with, and other values in the place of records."""
import re

import numpy as np
import torch
from fault import bad

from reid_lab.analysis.bias.audit import AuditSettings, bias_report
from reid_lab.analysis.explain.evidence import EvidenceSettings, evidence_steps, map_evidence
from reid_lab.analysis.explain.faithfulness import Perturbation, against_random, perturbation_curve
from reid_lab.analysis.explain.map_scores import MapSettings, map_scores
from reid_lab.analysis.explain.word_masking import EffectSearch, MaskedSearch, word_effects, word_masking
from reid_lab.data.loaders import Batches, Loading, Share
from reid_lab.datasets.captioning.vision import Answering, LocalCaptioner
from reid_lab.experiments.execution import given_execution
from reid_lab.recipes.camel import CamelSets, PhasePlan, load_data, train_phase
from reid_lab.recipes.crops import CropOptions, embed_crops
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import Scoring, metrics_from_similarity, msd, retrieval_metrics
from reid_lab.retrieval.ranking import Ranker, rank, rivals
from reid_lab.retrieval.scores import MatrixScores
from reid_lab.training.fit import Ends, Records, fit
from reid_lab.training.folder import training_key
from reid_lab.training.prompts import PromptSettings, learn_prompts
from reid_lab.tta.dart3 import LiteSettings

Q = Embeddings(np.eye(4, dtype="f4"), [0, 0, 1, 1], [0, 1, 0, 1])
TYPE = dict(error=TypeError)


def _call(function, *args, **kwargs):
    "A call that the table makes when its row is tested"
    return lambda tmp: function(*args, **kwargs)


def _field(record, *words, error=ValueError, **fields):
    "A record with one field that it refuses; its other fields may be needed with it"
    name, value = next(iter(fields.items()))
    def shown(value): return re.sub(r" at 0x\w+", "", repr(value))
    return bad(f"{record.__name__}: {name}={shown(value)[:40]}", "the record is made", _call(record, **fields),
               name, *words, error=error)


FIELDS = [
    _field(Scoring, "is no pair", junk="cam=3"),
    _field(Scoring, "whole numbers from 1", ks=()),
    _field(Scoring, "whole numbers from 1", ks=5),
    _field(Scoring, "at least 1", chunk=0),
    _field(Scoring, "at least 1", memory=-1),
    _field(Scoring, "'numba'", backend="cuda"),
    _field(Scoring, "such as (0., 1.)", span=(1, 0)),
    _field(Scoring, "such as (0., 1.)", span=.5),
    _field(Scoring, "such as (0., 1.)", span=(0., float("nan"))),
    _field(AuditSettings, "at least 2", map_images=1),
    _field(AuditSettings, "at least 2", nmi_images=2.5),
    _field(AuditSettings, "at least 2", n_clusters=1),
    _field(AuditSettings, "at least 0", few=-1),
    _field(AuditSettings, "at least 0", splits="2"),
    _field(AuditSettings, "at least 0", open_images=True),
    _field(AuditSettings, "from 0 to", seed=-1),
    _field(AuditSettings, "does not suit Dart3Lite", "stepss", lite=dict(stepss=3)),
    _field(AuditSettings, "settings.arguments()", lite=LiteSettings(), **TYPE),
    _field(AuditSettings, "an open file", file="log.txt", **TYPE),
    _field(Loading, "at least 0", workers=-1),
    _field(Loading, "at least 0", workers="2"),
    _field(Loading, "such as cache='thumbnails'", cache=3, **TYPE),
    _field(Share, "from 0 to 1", rank=2, n_processes=2),
    _field(Share, "at least 1", n_processes=0),
    _field(CropOptions, "at least 1", batch_size=0),
    _field(CropOptions, "[True, False]", skip_bad="no"),
    _field(CropOptions, "[True, False]", cameras=None),
    _field(Records, "at least 1", rows=0),
    _field(Records, "at least 1", saves=-3),
    _field(Records, "must be a text", label=7, **TYPE),
    _field(Ends, "a function of the model", prepare=True, **TYPE),
    _field(Ends, "[True, False]", refresh="no"),
    _field(Ends, "a function of a batch and its number", view="stylised", **TYPE),
    _field(CamelSets, "dataset='cuhk' is not known", dataset="cuhk"),
    _field(CamelSets, "source='mal' is not known", "Did you mean 'mals'?", source="mal"),
    _field(CamelSets, "world_seed=-1", "from 0 to", world_seed=-1),
    _field(CamelSets, "must be a text", scenario=3, **TYPE),
    _field(CamelSets, "[None, True, False]", hold_out="yes"),
    _field(PhasePlan, "a ReidTable", table=dict(), steps=3, lr=.1, **TYPE),
    _field(PhasePlan, "at least 0", steps=-1, table=None, lr=.1),
    _field(PhasePlan, "between 0 and", lr=-.1, table=None, steps=3),
    _field(PhasePlan, "Did you mean 'linear'?", shape="liner", table=None, steps=3, lr=.1),
    _field(PhasePlan, "[True, False]", finetuning="yes", table=None, steps=3, lr=.1),
    _field(PhasePlan, "at least 0", seed=1.5, table=None, steps=3, lr=.1),
    _field(MapSettings, "'contrast', 'phrase'", target="text"),
    _field(MapSettings, "at least 1", batch=0),
    _field(MapSettings, "'deletion', 'insertion'", modes="delete"),
    _field(MapSettings, "at least 1", n=0),
    _field(MapSettings, "at least 1", steps=0),
    _field(MapSettings, "'blur', 'grey', 'mean'", baseline="gray"),
    _field(MapSettings, "must be a text", model_name=3, **TYPE),
    _field(Perturbation, "at least 1", steps=0),
    _field(Perturbation, "at least 1", patch=.5),
    _field(Perturbation, "at least 1", batch=-1),
    _field(Perturbation, "'blur', 'grey', 'mean'", baseline=None),
    _field(EvidenceSettings, "at least 1", per=0),
    _field(EvidenceSettings, "at least 1", steps=0),
    _field(EvidenceSettings, "at least 0", seed=-1),
    _field(PromptSettings, "at least 1", batch_size=0),
    _field(PromptSettings, "between 0 and", lr=float("nan")),
    _field(PromptSettings, "between 0 and", weight_decay="1e-4"),
    _field(MaskedSearch, "such as 'test'", split=3, **TYPE),
    _field(MaskedSearch, "a function of a frame of captions", evaluate="cosine", **TYPE),
    _field(MaskedSearch, "evaluate computes where it will", device="cpu", evaluate=len),
    _field(MaskedSearch, "'cuda'", device="gpu"),
    _field(EffectSearch, "at least 1", n=0),
    _field(EffectSearch, "must be Embeddings", gallery="gallery.npz", **TYPE),
    _field(EffectSearch, "a function of", score=3, **TYPE),
    _field(Answering, "such as max_new_tokens=1", max_new_tokens=0),
    _field(Answering, "a number above 0", temperature=0),
    _field(Answering, "between 0 and", temperature=float("nan")),
    _field(Answering, "at least 0", seed=None),
    _field(LiteSettings, "at least 1", steps=0),
    _field(LiteSettings, "at least 1", batch_size=0),
    _field(LiteSettings, "between 0 and", lr=-1),
    _field(LiteSettings, "[True, False]", rescale="yes"),
]


def _place(function, record, args, **kwargs):
    "A call with another value in the place of a record"
    ways = ", ".join([repr(a) for a in args if isinstance(a, (int, str, dict))] +
                     [f"{name}={value}"[:30] for name, value in kwargs.items()])
    return bad(f"{function.__qualname__.removesuffix('.__init__')}: {ways} for {record.__name__}",
               "a value of another kind", _call(function, *args, **kwargs),
               f"takes the record {record.__name__} with the fields", f"={record.__name__}(", error=TypeError)


IMG, HEAT = torch.zeros(1, 3, 8, 8), np.zeros((1, 8, 8))
PLACES = [
    # by position, as the last release took them
    _place(perturbation_curve, Perturbation, (len, IMG, HEAT, "deletion", 8)),
    _place(perturbation_curve, Perturbation, (len, IMG, HEAT, "deletion", 8, 4, "blur")),
    _place(against_random, Perturbation, (len, IMG, HEAT, "deletion", 4, 0, 8)),
    _place(evidence_steps, EvidenceSettings, (None, IMG, HEAT, "deletion", 19, 6)),
    _place(map_evidence, EvidenceSettings, (None, IMG, HEAT, "deletion", 19, 6)),
    _place(map_scores, MapSettings, (None, None, None, None, None, "deletion")),
    _place(word_masking, MaskedSearch, (None, None, (0,), (0,), "unk", "test")),
    _place(word_effects, EffectSearch, (None, None, "kind", "test", "unk")),
    _place(Batches, Loading, (None, 8, None, None, 0, "image", "shuffle", 4, None, (), 2)),
    _place(Batches, Share, (None, 8, None, None, 0, "image", "shuffle", 4, None, (), Loading(), 2)),
    _place(LocalCaptioner, Answering, (None, None, "name", "sum", None, 7)),
    _place(load_data, CamelSets, ("smoke", dict(world_seed=1))),
    # by name
    _place(retrieval_metrics, Scoring, (Q, Q), scoring=dict(ties="order")),
    _place(metrics_from_similarity, Scoring, (np.eye(2), [0, 1], [0, 1]), scoring="expected"),
    _place(msd, Scoring, (np.eye(2), [0, 1], [0, 1]), scoring=True),
    _place(bias_report, AuditSettings, (Q,), audit=dict(seed=1)),
    _place(bias_report, AuditSettings, (Q, Q), audit=None),
    _place(embed_crops, CropOptions, (None, "clip_tiny", "out"), options=dict(batch_size=8)),
    _place(embed_crops, CropOptions, (None, "clip_tiny", "out", 64)),
    _place(fit, Records, (None, None, 1), records="log"),
    _place(fit, Ends, (None, None, 1), ends=Records()),
    _place(learn_prompts, PromptSettings, (None, None, None), settings=3),
]

FAULTS = FIELDS + PLACES + [
    bad("fit: execution of text", "execution='bf16'", _call(fit, None, None, 1, execution="bf16"),
        "takes the record Execution", "Execution(", error=TypeError),
    bad("train_phase: a dict for the plan", "plan=dict(...)", _call(train_phase, None, None, None, plan=dict(steps=1)),
        "takes the record PhasePlan", "plan=PhasePlan(", error=TypeError),
    bad("train_phase: steps beside the plan", "plan= and steps=",
        _call(train_phase, None, None, None, PhasePlan(None, 3, .1), steps=4), "got plan= and steps=", error=TypeError),
    bad("load_data: places of the last release", "the 3rd and 4th value by position",
        _call(load_data, "smoke", "world", None, "mals"), "got 4 values by position and takes 2", "sets=CamelSets(",
        error=TypeError),
    bad("learn_prompts: places of the last release", "batch_size by position",
        _call(learn_prompts, None, None, None, 3, 32), "got 5 values by position and takes 4",
        "settings=PromptSettings(batch_size=...", error=TypeError),
    bad("word_effects: places of the last release", "a split where the variant stands now",
        _call(word_effects, None, None, "kind", "test"), "variant='test' is not known", "'delete', 'unk'"),
    bad("word_masking: another variant", "variant='mask'", _call(word_masking, None, None, variant="mask"),
        "variant='mask' is not known"),
    bad("training_key: execution of text", "execution='bf16'", _call(training_key, {}, 0, None, execution="bf16"),
        "takes the record Execution", error=TypeError),
    bad("run: a number for the execution", "given_execution(3)", _call(given_execution, 3),
        "execution=3 is of type int", error=TypeError),
    bad("metrics: two answers on cameras", "junk beside another of `scoring`",
        _call(retrieval_metrics, Q, Q, junk="none", scoring=Scoring(junk="cam")),
        "junk='none'", "Scoring(junk='cam')", "give it once"),
    bad("metrics: a distance beside scores", "scores of a re-ranking, distance='euclidean'",
        _call(retrieval_metrics, Q, Q, scores=MatrixScores(np.eye(4)), distance="euclidean"),
        "distance='euclidean'", "leave one of the two out"),
    bad("rank: a distance beside scores", "scores of a re-ranking, distance='euclidean'",
        _call(rank, Q, Q, 1, scores=MatrixScores(np.eye(4)), distance="euclidean"), "leave one of the two out"),
    bad("rivals: a distance beside scores", "scores of a re-ranking, distance='euclidean'",
        _call(rivals, Q, Q, scores=MatrixScores(np.eye(4)), distance="euclidean"), "leave one of the two out"),
    bad("Ranker: a distance beside scores", "scores of a re-ranking, distance='euclidean'",
        _call(Ranker, Q, Q, scores=MatrixScores(np.eye(4)), distance="euclidean"), "leave one of the two out"),
]
