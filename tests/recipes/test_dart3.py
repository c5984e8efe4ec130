"""Protocols of DART3: who is trained on, who is asked, and that every study runs on the smallest World."""
import importlib
import json
import linecache
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from reid_lab.analysis.bias.maps import project, sample_rows
from reid_lab.analysis.bias.per_camera import (
    Binning,
    bias_noise,
    camera_share,
    error_auroc,
    error_vs_distance,
    noise_scores,
    per_camera,
    uncertainty,
)
from reid_lab.core.files import file_sum
from reid_lab.core.statistics import weighted_mean
from reid_lab.data.table import ReidTable
from reid_lab.datasets.export import export_world
from reid_lab.datasets.protocols import cameras as P
from reid_lab.recipes import dart3 as D
from reid_lab.recipes.reid import train_reid
from reid_lab.recipes.study import settings_frame, with_settings
from reid_lab.retrieval.cameras import camera_nmi, nmi
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics
from reid_lab.training.settings import SETTINGS, code_settings
from reid_lab.tta.base import adapt_embeddings
from reid_lab.tta.camera_norm import CameraNorm
from reid_lab.world.plan import reid_groups
from reid_lab.world.world import World


@pytest.fixture(scope="module")
def table(): return P.world_table("smoke", 3)


@pytest.fixture(scope="module")
def source(table):
    case = P.world_case("smoke", 3, table=table)
    return D.Evaluation(train_reid(case.train, "smoke", 3, quiet=True, steps=25).model, case)


# ---- cases

def test_a_new_camera_is_never_trained_on(table):
    case = P.world_case("smoke", 3, table=table)
    assert set(case.train.frame.cam) == set(case.seen) and set(case.q.frame.cam) == set(case.cams)
    assert not set(case.seen) & set(case.cams) and not set(case.train.frame.pid) & set(case.q.frame.pid)
    assert set(case.g.frame.cam) == set(case.seen) | set(case.cams)


def test_the_stream_is_a_day_or_a_shuffle(table):
    assert P.world_case("smoke", 3, table=table).q.frame.time.is_monotonic_increasing
    iid = P.world_case("smoke", 3, "iid")
    assert not iid.q.frame.time.is_monotonic_increasing and not iid.q.frame.pid.is_monotonic_increasing
    again = P.world_case("smoke", 3, "iid")
    assert iid.q.frame.path.tolist() == again.q.frame.path.tolist()


def test_choosy_cameras_see_different_people(table):
    seen = {c: set(table.where(split="test", cam=c).frame.pid) for c in sorted(set(table.frame.cam))}
    known = [seen[c] for c in (0, 1, 2)]
    assert known[0] == known[1] == known[2] and all(seen[c] < known[0] for c in (3, 4))
    assert P.world_table("smoke", 3, "iid").where(split="test").frame.groupby("cam").pid.nunique().nunique() == 1


def test_training_on_all_cameras_changes_nothing_else(table):
    more = P.world_table("smoke", 3, extra=True)
    extra = P.every_camera(more)
    assert set(extra.frame.cam) == set(table.frame.cam) and len(extra) <= len(table.where(split="train"))
    assert not set(extra.frame.pid) & set(table.frame.pid)
    rest = more.frame[~more.frame.path.isin(extra.frame.path)]
    assert rest.path.tolist() == table.frame.path.tolist()
    i = len(table) - 1
    assert (more.image(i) == table.image(i)).all()


@pytest.mark.parametrize("protocol", P.PROTOCOLS)
def test_protocols(protocol):
    case = P.make_case("smoke", 3, protocol=protocol)
    unseen = set(case.cams) - set(case.seen)
    assert bool(unseen) == (protocol in ("camera", "network"))
    assert set(case.train.frame.cam) == set(case.seen) and set(case.q.frame.cam) == set(case.cams)
    assert not set(case.train.frame.pid) & set(case.q.frame.pid) and f"gallery {len(case.g)}" in repr(case)


@pytest.mark.parametrize("dataset,setting",
                         [("market1501", "market1501-5"), ("dukemtmc-reid", "dukemtmc-reid-5"), ("msmt17", "msmt17-5")])
def test_settings_of_the_paper_on_folders(tmp_path, dataset, setting):
    "The World in the dataset's own layout, with cameras numbered as there, read back, split by the paper's cameras"
    t = World("smoke", task="reid", groups=reid_groups(20, 5, 1, 20, 1)).table().where(split=["train", "test"])
    known = P.SEEN[setting][1]
    named = ReidTable(t.frame.assign(cam=t.frame.cam + known[0]), t.root, t.reader, t.name)
    export_world(named, dataset, tmp_path/dataset, renumber=True)
    case = P.dataset_case(setting, tmp_path/dataset)
    assert set(case.train.frame.cam) == set(known) and case.cams == (known[-1] + 1,)
    every = P.dataset_case(setting, tmp_path/dataset, every=True)
    assert len(every.train) == len(case.train) and set(every.train.frame.cam) >= set(known)
    assert len(every.q) == len(case.q)
    whole = P.dataset_case(f"{dataset}->{dataset}", tmp_path/dataset)
    assert len(whole.q) > len(case.q)


def test_a_source_that_other_code_trained_is_no_source_of_today(table, tmp_path, monkeypatch):
    "What `-p models=` names is loaded only if the user's code behind it is as it was, and keeps what it is compared by"
    case = P.world_case("smoke", 3)
    D.trained_on(case, "smoke", 3, tmp_path/"a", steps=1)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    def edited(factor):
        (tmp_path/"own_source.py").write_text(f"def soft(loss): return {factor}*loss\n")
        sys.modules.pop("own_source", None)
        linecache.clearcache()
        importlib.invalidate_caches()
        return importlib.import_module("own_source").soft
    settings = json.loads((tmp_path/"a"/SETTINGS).read_text())
    (tmp_path/"a"/SETTINGS).write_text(json.dumps(settings | code_settings(edited(1))))
    for name in ("b", "c"):
        D.trained_on(case, "smoke", 3, tmp_path/name, tmp_path/("a" if name == "b" else "b"), steps=1)
    edited(2)
    for name in ("a", "c"):
        with pytest.raises(ValueError, match=r"other code, .*\(own_source.soft\).* leave models out to train anew"):
            D.trained_on(case, "smoke", 3, None, tmp_path/name, steps=1)
    sys.modules.pop("own_source", None)


def test_all_cameras_seen_is_an_error(table):
    with pytest.raises(ValueError, match="leave at least one out"): P.new_camera(table, range(5))


# ---- scores

def test_scores_per_camera_add_up(source):
    one = D.score_method(D.METHODS["No adaptation"], source)
    mean = D.over_cameras(one.assign(variant="x"))
    whole = retrieval_metrics(source.q.unit(), source.g.unit())
    for k in ("R1", "mAP", "mINP"): assert abs(mean[k].item() - whole[k]) < .3
    assert one.n_query.sum() == whole["n_query"]


def test_cameras_start_anew_unless_continual(source):
    make = lambda: D.Dart3Lite(lr=.1, steps=3, batch_size=4)
    apart, alone = D.score_method(make, source), D.score_method(make, source, cams=source.case.cams[1:])
    assert apart.mAP.iloc[1] == alone.mAP.iloc[0]
    continual = D.score_method(make, source, continual=True)
    assert set(continual.cam) == set(apart.cam) and continual.mAP.iloc[1] != apart.mAP.iloc[1]


@pytest.mark.parametrize("name", D.METHODS)
def test_every_method(source, name):
    before = {k: v.clone() for k, v in source.model.state_dict().items()}
    f = D.score_settings(source, [name])
    assert f.cam.tolist() == list(source.case.cams) and f.variant.tolist() == f.method.tolist() == [name]*len(f)
    assert f.mAP.between(0, 100).all() and f.n_query.gt(0).all()
    assert all(torch.equal(v, before[k]) for k, v in source.model.state_dict().items())


@pytest.mark.parametrize("study", D.STUDIES)
def test_every_setting_of_every_study_can_be_made(study):
    frame = settings_frame(D.STUDIES[study])
    assert frame.variant.is_unique
    for s in D.STUDIES[study].settings:
        kw = {k: v for k, v in s.items() if k != "name"}
        if kw.get("n_ground"): kw["ground"] = "a stream"
        method = D.METHODS[s["name"]](**kw)
        norm = getattr(method, "norm", method)   # of DART3, which holds one
        assert {k: getattr(method, k, getattr(norm, k, None)) for k in kw} == kw
        assert type(method) is D.METHODS[s["name"]].kind and method.needs_model == (s["name"] in NEED_A_MODEL)


NEED_A_MODEL = {n for n, m in D.METHODS.items() if m.kind in (D.Tent, D.Temp, D.Dart3)}


def test_rows_recorded_before_the_settings_were_columns():
    "A row is completed from the study that made it; its label is not taken apart"
    study = D.STUDIES["k_tau"]
    rows = pd.DataFrame(dict(variant=["Norm", "DART3-LITE, k=3, tau=0.3"], seed=0, mAP=[50., 51.]))
    full = with_settings(rows, study, base="Norm")
    assert full.method.tolist() == ["Norm", "DART3-LITE"]
    assert full.k[1] == 3 and full.tau[1] == .3 and full.over[1] == 1.
    with pytest.raises(ValueError, match="is none of this study"): with_settings(rows.assign(variant="TENT"), study)


def test_batch_statistics_do_not_apply_without_batchnorm(table):
    case = P.world_case("smoke", 3, table=table)
    vit = D.Evaluation(train_reid(case.train, "smoke", 3, quiet=True, steps=2, model="transreid_tiny").model, case)
    left = [n for n in D.METHODS if not D.applies(dict(name=n), vit)]
    assert left == ["BN statistics only", "TENT with BN statistics"]
    assert D.score_settings(vit, ["TENT", "DART3"]).mAP.notna().all()   # LayerNorm learns


@pytest.fixture(scope="module")
def tower(tmp_path_factory):
    "A file of a small ViT"
    import timm
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("tower")/"vit.pth"
    torch.save(timm.create_model("test_vit", num_classes=0).state_dict(), path)
    return path


def test_a_control_is_a_source_that_saw_no_image(tower, tmp_path):
    train = D.source_settings("smoke", "frozen:test_vit", str(tower))
    rows = D.run_study("main", "smoke", 3, keep=tmp_path/"run", train=train)
    assert {r["images_seen"] for r in rows} == {0} and {r["train_s"] for r in rows} == {0}
    left = [n for n in D.METHODS if n not in {r["variant"] for r in rows}]
    assert left == ["TENT", "BN statistics only", "TENT with BN statistics"]
    by = {r["variant"]: r["mAP"] for r in rows}
    assert by["TEMP"] != by["No adaptation"] != by["DART3"]
    kept = tmp_path/"run"/"seed-3"
    key = json.loads((kept/"training.json").read_text())
    assert key["model_kw"] == dict(size=[64, 32], tower="test_vit") and (key["weights"], key["steps"]) == ("vit.pth", 0)
    assert key["start"] == {"vit.pth": file_sum(tower)} and not (kept/"model.safetensors").exists()
    again = D.run_study([dict(name="No adaptation")], "smoke", 3, train=train, models=tmp_path/"run")
    assert again[0]["mAP"] == by["No adaptation"] and again[0]["images_seen"] == 0


def test_a_control_of_other_weights_is_another_source(tower, tmp_path):
    case = P.world_case("smoke", 3)
    done = D.trained_on(case, "smoke", 3, tmp_path/"a", **D.source_settings("smoke", "frozen:test_vit", str(tower)))
    cost = dict(images_seen=0, train_s=0., start="vit.pth")
    assert (done.steps, done.images, done.log, done.cost) == (0, 0, [], cost)
    other = tmp_path/"vit.pth"
    torch.save({k: 2*v for k, v in torch.load(tower).items()}, other)
    with pytest.raises(ValueError, match="holds another training.*'start'"):
        D.trained_on(case, "smoke", 3, tmp_path/"a", **D.source_settings("smoke", "frozen:test_vit", str(other)))
    elsewhere = tmp_path/"b"/"vit.pth"
    elsewhere.parent.mkdir()
    elsewhere.write_bytes(tower.read_bytes())
    moved = D.source_settings("smoke", "frozen:test_vit", str(elsewhere))
    assert D.trained_on(case, "smoke", 5, tmp_path/"a", **moved).key == done.key   # the same file, wherever it lies
    random = D.reid_settings("smoke", **D.source_settings("smoke", "frozen:test_vit", "none"))
    one, two = (D.reid_key(case.train, random, seed) for seed in (0, 1))
    assert one != two   # random numbers follow the seed


@pytest.mark.parametrize("model, weights, message", [
    ("frozen:test_vit", "", "is not trained; weights='' must name its file or folder"),
    ("frozen", "w.pth", "a control is named with its tower"), ("frozen:", "w.pth", "a control is named with its tower"),
    ("frozen_pair:ViT-B-16", "w.pth", "model='frozen_pair'"), ("camel_tiny", "", "model='camel_tiny'"),
    ("bot_tiny:resnet50", "", "other models without ':'")])
def test_sources_that_cannot_be(model, weights, message):
    with pytest.raises(ValueError, match=message) as e: D.source_settings("smoke", model, weights)
    assert "\n" not in str(e.value)


def test_weights_of_a_source():
    assert D.source_settings() == {}
    with pytest.raises(ValueError, match="bot_r50 .* starts from"): D.source_settings("full")
    assert D.source_settings("full", weights="none") == dict(weights="none")
    assert D.source_settings("full", "transreid_b16", "v.pth") == dict(model="transreid_b16", weights="v.pth")
    full = D.source_settings("full", "frozen:ViT-B-16", "v.pth")   # at the tower's own size
    assert full == dict(model="frozen", weights="v.pth", model_kw=(("tower", "ViT-B-16"),))
    with pytest.raises(ValueError, match=r"needs tower; model_kw lacks \['tower'\]"):
        train_reid(P.world_case("smoke", 3).train, "smoke", model="frozen")


def test_methods_that_a_control_cannot_take_are_refused_with_the_others(tower):
    train = D.source_settings("smoke", "frozen:test_vit", str(tower))
    with pytest.raises(ValueError, match=r"methods=\['TENT'\] do not apply.*of \['No adaptation', 'TEMP'"):
        D.run_study([dict(name="TENT")], "smoke", 3, train=train)


def test_cameras_without_a_match_are_left_out(source):
    q = Embeddings(source.q.emb, np.where(source.q.cam == source.case.cams[0], 9999, source.q.pid), source.q.cam)
    odd = D.Evaluation(source.model, source.case, q, source.g)
    assert D.score_method(D.METHODS["Norm"], odd).cam.tolist() == list(source.case.cams[1:])
    nobody = D.Evaluation(source.model, source.case, Embeddings(q.emb, np.full(len(q), 9999), q.cam), source.g)
    with pytest.raises(ValueError, match="no query has a match"): D.score_method(D.METHODS["Norm"], nobody)


def test_bias_is_measured_on_the_scored_cameras(source):
    f = D.score_method(D.METHODS["Norm"], source, bias=True)
    parts = []   # each camera's queries pool their statistics with the gallery images of that camera
    for c in source.case.cams:
        q, g = adapt_embeddings(CameraNorm(), source.q.where(cam=c), source.g)
        parts += [q, g.where(cam=c)]
    both = Embeddings.concat([Embeddings(e.emb, e.pid, e.cam) for e in parts])
    assert abs(f.nmi_camera.iloc[0] - camera_nmi(both)["camera"]) < 1e-9 and f.nmi_camera.nunique() == 1
    assert abs(f.auroc_cosine.iloc[-1] - error_auroc(parts[-2], g, "cosine", "euclidean")) < 1e-9


def test_a_dataset_goes_with_its_protocol():
    for dataset, protocol in (("market1501-5", "source"), ("market1501->msmt17", "source"),
                              ("msmt17->msmt17", "network"),
                              ("market1501->msmt17", "all cameras")):
        with pytest.raises(ValueError, match="protocol='" + protocol):
            P.make_case("smoke", 0, dataset, protocol=protocol)


def test_settings_of_the_paper_by_model():
    assert D.as_in_paper("transreid_b16")["DART3"] == dict(lr=1e-4, steps=1, batch_size=64, tau=200.)
    assert D.as_in_paper("clip_reid_b16")["DART3-LITE"]["tau"] == 100.
    assert D.as_in_paper("bot_r50")["TEMP"] == dict(lr=3.5e-4)
    for name, kw in D.as_in_paper("transreid_b16").items():
        method = D.METHODS[name](**kw)
        assert {k: getattr(method, k) for k in kw} == kw


def test_grounding_takes_images_that_were_trained_on(source, monkeypatch):
    known = source.known(30)
    assert len(set(known.table.frame.path)) == 30 and set(known.table.frame.path) <= set(source.case.train.frame.path)
    given, lite = [], D.METHODS["DART3-LITE"]
    monkeypatch.setitem(D.METHODS, "DART3-LITE", lambda **kw: given.append(kw) or lite(**kw))
    f = D.score_settings(source, [dict(name="DART3-LITE", n_ground=8), dict(name="DART3-LITE")])
    assert f.mAP.notna().all() and given[-1] == {} and given[0]["n_ground"] == 8
    assert given[0]["ground"].table.frame.path.tolist() == source.known().table.frame.path.tolist()


def test_a_run_keeps_what_the_notebook_reads(tmp_path):
    rows = D.run_study([dict(name="No adaptation"), dict(name="DART3-LITE", lr=.05)], "smoke", 1, keep=tmp_path,
                       train=dict(steps=5))
    assert [r["variant"] for r in rows] == ["No adaptation", "DART3-LITE, lr=0.05"] and rows[1]["lr"] == .05
    kept = tmp_path/"seed-1"
    assert len(pd.read_csv(kept/"cameras.csv")) == 2*len(set(pd.read_csv(kept/"cameras.csv").cam))
    assert len(Embeddings.load(kept/"queries")) and (kept/"model.safetensors").exists()
    again = dict(keep=tmp_path, train=dict(steps=5))
    with pytest.raises(ValueError, match="holds other scores.*'settings'"):
        D.run_study([dict(name="No adaptation")], "smoke", 1, **again)
    settings = [dict(name="No adaptation"), dict(name="DART3-LITE", lr=.05)]
    with pytest.raises(ValueError, match="holds another training.*steps.*5, 6"):
        D.run_study(settings, "smoke", 1, keep=tmp_path, train=dict(steps=6))
    assert D.run_study(settings, "smoke", 1, **again)[1]["mAP"] == rows[1]["mAP"]


def test_a_training_goes_on_only_if_it_is_the_same(table, tmp_path):
    rows = P.world_case("smoke", 3, table=table).train
    done = train_reid(rows, "smoke", 0, tmp_path, quiet=True, steps=50)
    again = train_reid(rows, "smoke", 0, tmp_path, quiet=True, steps=50)   # found at its last step
    assert again.images == done.images == 50*16
    assert all(torch.equal(a, b) for a, b in zip(done.model.parameters(), again.model.parameters()))
    for change in (dict(seed=1), dict(lr=.1)):
        with pytest.raises(ValueError, match=f"another training.*{[*change][0]}"):
            train_reid(rows, "smoke", **{**dict(seed=0, folder=tmp_path, quiet=True, steps=50), **change})
    with pytest.raises(ValueError, match="another training.*images"):
        train_reid(rows.take(range(60)), "smoke", 0, tmp_path, quiet=True, steps=50)


# ---- analyses

def test_nmi_vector(oracles):
    i, want = oracles["nmi"]["inputs"], oracles["nmi"]["expected"]
    for how in ("arithmetic", "geometric", "max"):
        assert abs(nmi(i["clusters"], i["cameras"], how) - want[f"NMI_{how}"]) < 1e-6


def test_weighted_mean_vector(oracles):
    i, want = oracles["per_camera_weighted_mean"]["inputs"], oracles["per_camera_weighted_mean"]["expected"]
    assert abs(weighted_mean(i["mAP"], i["n_queries"]) - want["weighted"]) < 1e-6


def biased(seed=0, shift=0., n=30):
    rng = np.random.default_rng(seed)
    who, cam = np.repeat(np.arange(n), 4), np.tile(np.arange(4), n)
    x = rng.normal(size=(n, 8))[who] + .2*rng.normal(size=(4*n, 8)) + shift*rng.normal(size=(4, 8))[cam]
    return Embeddings(torch.tensor(x, dtype=torch.float32), who, cam)


@pytest.mark.parametrize("how", ["kmeans", "dbscan"])
def test_camera_nmi_sees_a_shift(how):
    kw = dict(n_clusters=4) if how == "kmeans" else dict(eps=2.5)
    low, high = (camera_nmi(biased(shift=s), how, **kw)["camera"] for s in (0., 8.))
    assert high > .8 and low < .3
    assert camera_nmi(biased(), "kmeans")["identity"] > .95
    alone = biased()
    alone = camera_nmi(alone[alone.cam == 0])
    assert np.isnan(alone["camera"]) and alone["identity"] > .5     # one camera has nothing to be told apart from
    with pytest.raises(ValueError, match="no camera numbers"): camera_nmi(Embeddings(torch.rand(4, 2), [0]*4))
    with pytest.raises(ValueError, match="n_clusters"): camera_nmi(Embeddings(torch.rand(4, 2), [-1]*4, [0, 0, 1, 1]))


def test_camera_share_is_the_ratio_of_variances():
    e = biased(shift=1.)
    x = e.emb.double().numpy()
    means = np.stack([x[e.cam == c].mean(0) for c in e.cam])
    assert abs(camera_share(e) - ((means - x.mean(0))**2).sum()/((x - x.mean(0))**2).sum()) < 1e-9


def test_uncertainty_skips_the_queries_own_camera():
    e = biased(shift=1., n=6)
    for kind in ("euclidean", "cosine"):
        u = uncertainty(e, e, kind, chunk=5)
        x = e.emb if kind == "euclidean" else torch.nn.functional.normalize(e.emb, dim=1)
        for i in range(len(e)):
            ok = ~((e.pid == e.pid[i]) & (e.cam == e.cam[i]))
            d = torch.cdist(x[i:i + 1], x[ok])[0] if kind == "euclidean" else 1 - (x[ok] @ x[i])
            assert abs(u[i] - float(d.min())) < 2e-3


def test_error_bins_count_every_query():
    e = biased(shift=2.)
    for how in ("width", "quantile"):
        f = error_vs_distance(e, e, binning=Binning(5, how, 1))
        assert f.n.sum() == len(e) and f.error.between(0, 100).all() and (f.high >= f.low).all()
    assert error_vs_distance(e, e, binning=Binning(5, min_count=10**6)).empty


@pytest.mark.parametrize("kind", ["euclidean", "cosine", "entropy"])
def test_error_auroc_counts_pairs(kind):
    e = biased(shift=2.)
    e.emb += 2*torch.randn(e.emb.shape, generator=torch.Generator().manual_seed(0))   # so that some are wrong
    found = retrieval_metrics(e, e, per_query=True)["per_query"]
    wrong, u = found["first"] > 1, uncertainty(e, e, kind)
    assert wrong.any() and not wrong.all()
    pairs = [(a > b) + .5*(a == b) for a in u[wrong] for b in u[~wrong]]
    assert abs(error_auroc(e, e, kind) - np.mean(pairs)) < 1e-9


def test_noise_in_the_statistics_costs_scores():
    e = biased(shift=2.)
    f = noise_scores(e, e, (0., .5, 3.)).groupby("sigma").mAP.mean()
    exact = retrieval_metrics(*adapt_embeddings(CameraNorm(), e, e), distance="euclidean")["mAP"]
    assert abs(f[0.] - exact) < 1e-4 and f[0.] > f[.5] > f[3.]
    hits = bias_noise((0., .01, 1.))
    assert abs(hits.hit_rate[1] - 68.27) < .5 and abs(hits.mean_error[2] - (2/np.pi)**.5) < .01
    assert hits.hit_rate[0] == 100


def test_per_camera_scores(oracles):
    e = biased(shift=2.)
    f = per_camera(e, e)
    for c, r in f.set_index("cam").iterrows(): assert abs(r.mAP - retrieval_metrics(e.where(cam=c), e)["mAP"]) < 1e-6


def test_maps_are_reproducible_and_hold_whole_people():
    e = biased()
    assert len(sample_rows(e, 21)) == 20
    a, b = project(e, "pca", 40, seed=1), project(e, "pca", 40, seed=1)
    pd.testing.assert_frame_equal(a, b)
    assert a.pid.nunique() == 10 and {"x", "y", "cam", "row"} <= set(a)


def test_cameras_are_told_in_their_own_network_only():
    case, far = P.make_case("smoke", 3), P.make_case("smoke", 3, protocol="network")
    home = P.make_case("smoke", 3, protocol="source")
    assert (case.same, home.same, far.same) == (True, True, False)
    known = case.seen
    model = train_reid(case.train, "smoke", 3, quiet=True, steps=2, model="transreid_tiny",
                       model_kw=(("size", (64, 32)), ("cams", known))).model
    for c in (case, home, far):
        ev = D.Evaluation(model, c)
        mean = D.Evaluation(model, D.Case(c.name, c.train, c.q, c.g, c.cams, c.seen, same=False))
        moved = (ev.g.emb - mean.g.emb).norm(dim=1) > 1e-3
        told = np.isin(ev.g.cam, known) & c.same
        assert moved.numpy().tolist() == told.tolist() and (told.any() or c is far)
        stream = ev.stream()
        with torch.no_grad():
            for s in (stream, ev.known(8) if c.same else stream):
                assert torch.allclose(s.features(np.arange(4)), s.raw_features()[:4], atol=1e-5)


def test_a_trained_folder_is_a_source_as_it_is(tmp_path):
    from reid_lab.recipes.names import check_model_name
    people = World("smoke", seed=3, task="reid").table()
    done = train_reid(people, "smoke", folder=tmp_path/"mine", quiet=True, steps=1)
    source = D.source_settings("smoke", str(tmp_path/"mine"))
    again = D.trained_on(SimpleNamespace(train=people), "smoke", **source)
    there, here = done.model.state_dict(), again.model.state_dict()
    assert again.images == 0 and all(torch.equal(there[name], here[name]) for name in there)
    settings = D.reid_settings("smoke", **source)
    assert D.source_title(str(tmp_path/"mine"), settings) == "bot_tiny of mine"
    assert D.source_title("", settings) == "bot_tiny" and D.trained_source("bot_tiny") is None
    check_model_name("dart3", SimpleNamespace(model=str(tmp_path/"mine")))
    with pytest.raises(ValueError, match="not known"):
        check_model_name("dmg", SimpleNamespace(model=str(tmp_path/"mine")))
    with pytest.raises(ValueError, match="leave weights='world' out"):
        D.source_settings("smoke", str(tmp_path/"mine"), "world")
    with pytest.raises(FileNotFoundError, match=r"is a folder and no trained one; name that .*mine'"):
        D.source_settings("smoke", str(tmp_path))
    (tmp_path/"empty").mkdir()
    with pytest.raises(FileNotFoundError, match="one of a training holds training.json"):
        D.source_settings("smoke", str(tmp_path/"empty"))
    (tmp_path/"mine"/"done.json").unlink()
    with pytest.raises(FileNotFoundError, match="not finished"): D.source_settings("smoke", str(tmp_path/"mine"))
