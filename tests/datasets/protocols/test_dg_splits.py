"Protocols of domain generalisation: target splits, averages, joined sources, manifests, Test-A/B/C, transfer"
import json
from collections import Counter, defaultdict
from importlib import resources
from statistics import mean, stdev

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.dg_targets import FULL, colours, table, target
from hypothesis import given, settings, strategies as st
from PIL import Image

from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets.export import export_world
from reid_lab.datasets.protocols.dg_splits import (
    ABC_SIZES,
    ABC_SUBSETS,
    MANIFEST,
    MANIFEST_RULES,
    MIXED,
    TARGETS,
    abc_case,
    abc_worlds,
    average_splits,
    check_manifest,
    dg_splits,
    load_manifest,
    load_mixed,
    make_splits,
    mixed_table,
    no_identity,
    pick_queries,
    single_shot_cases,
    subset_stats,
    target_cases,
    transfer_cases,
    world_abc,
    write_manifest,
)
from reid_lab.datasets.registry import DATASETS
from reid_lab.results.published import load_paper
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import metrics_from_similarity, retrieval_metrics
from reid_lab.world.world import World

few = settings(max_examples=25, deadline=None, derandomize=True)


COUNTS = dict(viper=(20, 316, 316), prid2011=(10, 100, 649), grid=(10, 125, 900), ilids=(10, 60, 60))


# ---- one gallery image a person

def several_shots(ids=12, shots=5):
    "A table of two cameras, several images an identity and camera, and a feature for each"
    rows = [dict(path=f"{p:02d}-{c}-{i}", pid=p, cam=c, split="test", role="none", captions=[])
            for p in range(ids) for c in (0, 1) for i in range(shots)]
    t = ReidTable(pd.DataFrame(rows), None, lambda paths: [np.zeros((4, 2, 3), np.uint8)]*len(paths), "several")
    rng = np.random.default_rng(0)
    person, pose, noise = (rng.normal(size=(*n, 8)) for n in ((ids,), (ids, shots), (len(t),)))
    shot = np.array([int(p[-1]) for p in t["path"]])        # the poses of a person are the same in both cameras
    return t, person[t["pid"]] + pose[t["pid"], shot] + .5*noise


def test_single_shot_against_loops():
    "CUHK03's classic rule: one gallery image a person; with all five poses in the gallery rank 1 is higher"
    t, features = several_shots()
    feature = dict(zip(t["path"], features))
    def rank_1(q, g): # Share of queries whose nearest gallery image is of the same person
        hits = []
        for p, pid in zip(q["path"], q["pid"]):
            nearest = min(range(len(g)), key=lambda i: np.linalg.norm(feature[p] - feature[g["path"].iloc[i]]))
            hits.append(g["pid"].iloc[nearest] == pid)
        return np.mean(hits)

    cases = single_shot_cases(t, repeats=6)
    for c in cases:
        assert (len(c.q), len(c.g), c.g["pid"].nunique()) == (60, 12, 12)
        assert set(c.q["cam"]) == {0} and set(c.g["cam"]) == {1}
    def of(table):
        emb = torch.tensor(np.stack([feature[p] for p in table["path"]]))
        return Embeddings(emb, pid=table["pid"].to_numpy(), cam=table["cam"].to_numpy())

    ours = [retrieval_metrics(of(c.q), of(c.g), distance="euclidean")["R1"]/100 for c in cases]
    assert ours == pytest.approx([rank_1(c.q, c.g) for c in cases]) and len(set(ours)) > 1
    assert rank_1(t.where(cam=0), t.where(cam=1)) > max(ours)
    shuffled = t.take(np.random.default_rng(2).permutation(len(t)))
    assert [c.g["path"].tolist() for c in single_shot_cases(shuffled, 6)] == [c.g["path"].tolist() for c in cases]
    lacking = t.take(~((t["pid"] == 3) & (t["cam"] == 1)).to_numpy())       # no image in the gallery's camera
    assert {(len(c.q), len(c.g)) for c in single_shot_cases(lacking)} == {(55, 11)}
    with pytest.raises(ValueError, match="repeats=0 must be at least 1"): single_shot_cases(t, 0)
    with pytest.raises(ValueError, match="has two cameras"): single_shot_cases(t.where(cam=0))


# ---- splits and cases of the targets

@pytest.mark.parametrize("name", TARGETS)
def test_shipped_splits_are_those_that_the_program_draws(name):
    assert dg_splits(name) == make_splits(name, seed=0, n=10)
    assert dg_splits(name) != make_splits(name, seed=1)
    halves = [tuple(s["test"]) for s in dg_splits(name)]
    assert len(set(halves)) == 10 and all(list(h) == sorted(set(h)) for h in halves)
    assert all(len(h) == (FULL[name][0] + 1)//2 and 0 <= h[0] and h[-1] < FULL[name][0] for h in halves)


def test_the_file_of_splits_is_small_and_holds_the_targets():
    path = resources.files("reid_lab")/"resources"/"dg_splits.json"
    assert len(path.read_bytes()) < 200_000
    assert tuple(json.loads(path.read_text())) == TARGETS


def test_a_longer_draw_begins_with_the_shorter_one():
    assert make_splits("ilids", n=3) == make_splits("ilids", n=5)[:3]


@pytest.mark.parametrize("name", TARGETS)
def test_published_counts_hold_at_full_size(name):
    cases = target_cases(target(name, *FULL[name]), name)
    n, q, g = COUNTS[name]
    assert len(cases) == n and {(len(c.q), len(c.g)) for c in cases} == {(q, g)}
    assert [c.split for c in cases] == sorted([*range(10)]*(n//10))


def test_viper_is_tested_in_both_directions_with_the_same_identities():
    cases = target_cases(target("viper", *FULL["viper"]), "viper")
    assert [c.direction for c in cases[:2]] == ["0->1", "1->0"]
    for there, back in zip(cases[::2], cases[1::2]):
        assert there.split == back.split
        assert sorted(there.q["path"]) == sorted(back.g["path"]) and sorted(there.g["path"]) == sorted(back.q["path"])


def test_the_gallery_of_prid_has_all_distractors_and_no_untested_pair():
    t = target("prid2011", *FULL["prid2011"])
    for c in target_cases(t, "prid2011"):
        extra = set(c.g["pid"]) - set(c.q["pid"])
        assert extra == set(range(1000, 1549)) and set(c.g["cam"]) == {1} and set(c.q["cam"]) == {0}


def test_partitions_of_grid_name_the_training_half():
    t = target("grid", 6, 4, 2)
    ids = sorted(set(t["pid"]) - {0})
    case, = target_cases(t, "grid", partitions=[np.array(ids[:2])])
    assert sorted(case.q["pid"]) == ids[2:] and Counter(case.g["pid"]) == Counter({0: 4, **dict.fromkeys(ids[2:], 1)})
    with pytest.raises(ValueError, match="those of GRID"): target_cases(t, "viper", partitions=[ids[:2]])
    with pytest.raises(ValueError, match="training half"): target_cases(t, "grid", partitions=[ids])
    with pytest.raises(ValueError, match=r"\[998\]"): target_cases(t, "grid", partitions=[[ids[0], 998]])


@given(st.sampled_from(TARGETS), st.integers(2, 30), st.integers(0, 9), st.integers(2, 5), st.integers(0, 99))
@few
def test_no_case_shares_an_image_and_every_query_has_a_match(name, ids, others, shots, seed):
    t = target(name, ids, others, shots)
    splits = make_splits(name, seed, n=3, ids=ids)
    cases = target_cases(t, name, splits)
    assert len(cases) == 3*(2 if name == "viper" else 1)
    for c in cases:
        assert len(c.q) == len(set(c.q["pid"])) == (ids + 1)//2
        assert not set(c.q["path"]) & set(c.g["path"])
        assert set(c.q["role"]) == {"query"} and set(c.g["role"]) == {"gallery"} and not no_identity(c.q).any()
        match = Counter(zip(c.g["pid"]))
        assert all(match[(p,)] == 1 for p in c.q["pid"])     # single shot
        of_cam = {p: k for p, k in zip(c.g["pid"], c.g["cam"])}
        assert all(of_cam[p] != k for p, k in zip(c.q["pid"], c.q["cam"]))     # not dropped as the query's own camera
        extra = len(c.g) - len(c.q)
        assert extra == (others if name in ("prid2011", "grid") else 0)


@given(st.sampled_from(TARGETS), st.integers(2, 12), st.integers(0, 99))
@few
def test_the_order_of_rows_does_not_matter(name, ids, seed):
    t = target(name, ids, 3, 3)
    mixed = t.take(np.random.default_rng(seed).permutation(len(t)))
    for a, b in zip(target_cases(t, name), target_cases(mixed, name), strict=True):
        assert a.q["path"].tolist() == b.q["path"].tolist() and sorted(a.g["path"]) == sorted(b.g["path"])


def test_ilids_draws_each_image_of_an_identity_and_never_the_same_twice():
    t = target("ilids", 4, 0, 3)
    used = defaultdict(set)
    for c in target_cases(t, "ilids", make_splits("ilids", n=100, ids=4)):
        for p, q in zip(c.q["pid"], c.q["path"]): used[p].add((q, *c.g["path"][c.g["pid"] == p]))
    assert len(used) == 4 and all(len(v) == 6 for v in used.values())     # all ordered pairs of three images


def test_ilids_without_camera_numbers_keeps_its_matches():
    t = table([1, 1, 2, 2], [0, 0, 0, 0])
    for c in target_cases(t, "ilids"): assert (c.q["cam"].tolist(), c.g["cam"].tolist()) == ([0], [1])


def test_two_images_per_camera_are_one_shot():
    t = table([1, 1, 1, 2, 2, 3, 3], [0, 0, 1, 0, 1, 0, 1])
    case = target_cases(t, "viper", [dict(test=[0, 1, 2])])[0]
    assert case.q["path"].tolist() == ["0000000.png", "0000003.png", "0000005.png"]


@pytest.mark.parametrize("make, name, words", [
    (lambda: table([1, 1, 2, 2], [0, 1, 2, 0]), "viper", "two cameras"),
    (lambda: table([1, 2, 3], [0, 0, 1]), "prid2011", "0 identities with a query and a match"),
    (lambda: table([1, 1, 2, 2], [0, 1, 0, 1]), "grid", "roles query and gallery"),
    (lambda: table([1, 2, 2], [0, 1, 2]), "ilids", "1 identities"),
    (lambda: table([1, 1], [0, 1]), "vipers", "Did you mean 'viper'")])
def test_tables_that_are_no_such_target_are_refused(make, name, words):
    with pytest.raises(ValueError, match=words): target_cases(make(), name)


def test_splits_of_another_size_are_refused_with_the_remedy():
    t = target("viper", 5, 0, 2)
    with pytest.raises(ValueError, match=r"make_splits\('viper', ids=5\)"): target_cases(t, "viper", dg_splits("viper"))
    with pytest.raises(ValueError, match="names identity None"): target_cases(t, "viper", [dict(test=[])])
    with pytest.raises(ValueError, match="ids=1 cannot be halved"): make_splits("viper", ids=1)


def test_no_identity_is_junk_and_distractors_only():
    assert no_identity(table([-1, 0, 1], [0]*3, role="gallery")).tolist() == [True, True, False]
    mixed = table([-1, 0, 0, 1], [0]*4, role=["none", "gallery", "query", "both"])
    assert no_identity(mixed).tolist() == [True] + [False]*3
    assert no_identity(table([0, 1], [0]*2, role="gallery", split="train")).tolist() == [False]*2
    assert no_identity(table([], [])).tolist() == []


# ---- averages

@given(st.lists(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=3), min_size=1, max_size=6))
@few
def test_averages_equal_the_plain_loops(values):
    rows = [dict(split=s, direction=str(d), R1=a, mAP=b) for s, v in enumerate(values) for d, (a, b) in enumerate(v)]
    found = average_splits(rows)
    for k, name in enumerate(("R1", "mAP")):
        per_split = [mean(pair[k] for pair in v) for v in values]
        assert found.loc[name, "mean"] == pytest.approx(mean(per_split))
        if len(values) > 1: assert found.loc[name, "std"] == pytest.approx(stdev(per_split), abs=1e-12)
        else: assert np.isnan(found.loc[name, "std"])
        assert found.loc[name, ["splits", "cases"]].tolist() == [len(values), len(rows)]


@pytest.mark.parametrize("rows, words", [
    ([], "key 'split'"), ([dict(R1=1.)], "key 'split'"), ([dict(split=0, R1=1.)]*2, "occurs twice"),
    ([dict(split=0, R1=1., model="a")], "are no numbers"),
    ([dict(split=0, R1=1.), dict(split=1, mAP=1.)], "missing or nan"),
    ([dict(split=0, R1=float("nan"))], "missing or nan")])
def test_rows_that_cannot_be_averaged_are_refused(rows, words):
    with pytest.raises(ValueError, match=words): average_splits(rows)


def test_a_target_is_scored_and_averaged_from_end_to_end():
    t = target("viper", 8, 0, 2)
    rows = []
    for c in target_cases(t, "viper"):
        sim = (c.q["pid"].to_numpy()[:, None] == c.g["pid"].to_numpy()[None]).astype(float)
        if c.direction == "1->0": sim = -sim     # one direction perfect, the other as bad as can be
        found = metrics_from_similarity(sim, *[x[k].to_numpy() for k in ("pid", "cam") for x in (c.q, c.g)])
        rows.append(dict(split=c.split, direction=c.direction, R1=found["R1"], mAP=found["mAP"]))
    found = average_splits(rows)
    assert found["mean"].R1 == pytest.approx(50) and found["mean"].mAP == pytest.approx((100 + 100/4)/2)
    assert found["splits"].R1 == 10 and found["cases"].R1 == 20 and found["std"].R1 == pytest.approx(0)


# ---- joined sources

@given(st.lists(st.lists(st.tuples(st.integers(-1, 6), st.integers(0, 5), st.booleans()), min_size=1, max_size=12),
                min_size=1, max_size=4))
@few
def test_offsets_never_collide_and_nobody_trains(sources):
    tables = [table([p for p, _, _ in s] + [7], [c for _, c, _ in s] + [0], f"s{k}", role="gallery",
                    split=["train" if p > 0 and tr else "test" for p, _, tr in s] + ["train"])
              for k, s in enumerate(sources)]
    mixed = mixed_table(tables).frame
    assert len(mixed) == sum((~no_identity(t)).sum() for t in tables)
    owner = mixed.groupby("pid").dataset.nunique()
    assert owner.max() == 1 and mixed.groupby("cam").dataset.nunique().max() == 1
    assert sorted(set(mixed.pid)) == list(range(mixed.pid.nunique()))     # running totals, no gaps
    assert sorted(set(mixed.cam)) == list(range(mixed.cam.nunique()))
    for name, g in mixed.groupby("dataset"):     # one number per old number and back
        assert len(g.drop_duplicates(["pid", "raw_pid"])) == g.pid.nunique() == g.raw_pid.nunique()
        assert len(g.drop_duplicates(["cam", "raw_cam"])) == g.cam.nunique() == g.raw_cam.nunique()
    assert (mixed.raw_pid > 0).all() and set(mixed.split) == {"train"}


def test_market_gives_the_image_count_of_joined_training():
    sizes = [("train", "both", 12936), ("test", "query", 3368), ("test", "gallery", 13115)]
    rows = [(1 + i % 751 if s == "train" else 1000 + i % 750, s, r) for s, r, n in sizes for i in range(n)]
    rows += [(0, "test", "gallery")]*2798 + [(-1, "test", "gallery")]*3819
    pid, split, role = zip(*rows)
    t = table(pid, [0]*len(pid), "market1501", split=split, role=role)
    mixed = mixed_table([t])
    assert len(t) == 12936 + 3368 + 19732 and len(mixed) == 29419 and mixed["pid"].nunique() == 1501
    assert len(mixed_table([t], splits="train")) == 12936
    assert set(MIXED["A"]) & set(MIXED["B"]) >= {"market1501", "dukemtmc-reid"} <= set(DATASETS)


def test_images_come_from_their_own_roots_and_paths_stay_inside(tmp_path):
    tables = []
    for k in range(2):
        (tmp_path/str(k)).mkdir()
        Image.fromarray(np.full((4, 2, 3), 50*k + 10, np.uint8)).save(tmp_path/str(k)/"a.png")
        frame = pd.DataFrame(dict(path=["a.png"], pid=[4], cam=[1], split="train"))
        tables.append(ReidTable(frame, tmp_path/str(k), name="x/y"))
    mixed = mixed_table(tables, ("one", "two"))
    assert [int(mixed.image(i)[0, 0, 0]) for i in range(2)] == [10, 60] and mixed["pid"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="leaves the dataset folder"): mixed.read(["one/../1/a.png"])
    with pytest.raises(ValueError, match="none of the joined tables"): mixed.read(["three/a.png"])


def test_joining_refuses_names_that_clash_and_empty_sources():
    a = table([1], [0], "a", split="train")
    with pytest.raises(ValueError, match="name of its own"): mixed_table([a, a])
    with pytest.raises(ValueError, match="name of its own"): mixed_table([a], ("a", "b"))
    with pytest.raises(ValueError, match="no image of a person"): mixed_table([table([0], [0], "b", role="gallery")])
    with pytest.raises(ValueError, match="try 'all'"): mixed_table([table([1], [0], "b")], splits="train")
    with pytest.raises(ValueError, match="splits='test'"): mixed_table([a], splits="test")


def test_sources_are_read_from_disk_with_the_validation_part_of_msmt17(tmp_path):
    people = World("smoke", 0, task="reid").table()
    export_world(people, "msmt17", tmp_path/"MSMT17_V1", renumber=True)
    export_world(people.where(split=["train", "test"]), "market1501", tmp_path/"Market-1501", renumber=True)
    mixed = load_mixed(("msmt17", "market1501"), tmp_path, check="none")
    n = people.frame.pid.nunique()
    assert mixed.frame[mixed["dataset"] == "msmt17"].pid.nunique() == n and len(mixed) > len(people)
    train = load_mixed(("msmt17",), tmp_path, splits="train", check="none")
    assert len(train) == len(people.where(split=["train", "val"]))
    with pytest.raises(ValueError, match="'A', 'B'"): load_mixed("a", tmp_path)


# ---- manifests

def manifest(**changes):
    "A small table that keeps all rules; `changes` are {(subset, column): value} over the subset's first image"
    subsets = np.repeat(list(ABC_SUBSETS), 4)     # two identities of two images each
    site = np.repeat([0, 0, 0, 1, 2], 4)
    t = table(np.repeat(np.arange(1, 11), 2), np.tile([0, 1], 10) + 10*site, "made.csv", site=site, subset=subsets,
              scenario=np.where(subsets == "test-c", "mall", "market"), split=[ABC_SUBSETS[s] for s in subsets],
              role=np.where(subsets == "train", "both", np.tile(["query", "gallery"], 10)))
    f = t.frame.copy()
    for (subset, column), value in changes.get("at", {}).items():
        f.loc[f.index[f.subset == subset][0], column] = value
    for (subset, column), value in changes.get("all", {}).items(): f.loc[f.subset == subset, column] = value
    return t._with(f)


def named(findings): return {f.what.split(":")[0] for f in findings}


def test_a_good_manifest_has_no_findings():
    assert check_manifest(manifest()) == check_manifest(manifest(), ("market", "mall")) == []


BROKEN = {  # rule -> changes, rules that then also break
    "subset": (dict(all={("train", "subset"): "val"}), set()),
    "split": (dict(at={("test-b", "split"): "train"}), set()),
    "ids": (dict(at={("test-b", "pid"): 1}), set()),
    "camera at one site": (dict(at={("test-b", "cam"): 20}), {"cameras of test-c"}),
    "site of one scenario": (dict(at={("test-c", "scenario"): "market"}), {"scenario of test-c"}),
    "sites of val": (dict(all={("val", "site"): 9, ("val", "cam"): 90}), set()),
    "sites of test-a": (dict(all={("test-a", "site"): 9, ("test-a", "cam"): 90}), {"cameras of test-a"}),
    "sites of test-b": (dict(all={("test-b", "site"): 0}), set()),
    "sites of test-c": (dict(all={("test-c", "site"): 1}), {"site of one scenario"}),
    "cameras of test-b": (dict(all={("test-b", "cam"): 0}), {"camera at one site"}),
    "cameras of test-c": (dict(all={("test-c", "cam"): 1}), {"camera at one site"}),
    "scenario of train": (dict(at={("train", "scenario"): "fair"}), {"site of one scenario"}),
    "scenario of val": (dict(at={("val", "scenario"): "mall"}), {"site of one scenario"}),
    "scenario of test-a": (dict(at={("test-a", "scenario"): "mall"}), {"site of one scenario"}),
    "scenario of test-b": (dict(all={("test-b", "scenario"): "mall"}), set()),
    "scenario of test-c": (dict(all={("test-c", "scenario"): "market"}), set()),
    "cameras of test-a": (dict(all={("test-a", "cam"): 5}), set()),
    "roles": (dict(all={("test-b", "role"): "gallery"}), set())}


@pytest.mark.parametrize("rule", [r for r in MANIFEST_RULES if r != "totals"])
def test_each_rule_is_found_by_name(rule):
    changes, also = BROKEN[rule]
    found = check_manifest(manifest(**changes))
    assert named(found) == {rule} | also
    one = next(f for f in found if f.what.startswith(f"{rule}:"))
    assert one.remedy and "made.csv" in one.where
    assert one.level == ("warn" if rule in ("roles", "cameras of test-a") else "error")


@pytest.mark.parametrize("subset, what", [("test-a", "site=9 of test-a"), ("train", "site=9 of train")])
def test_test_a_has_all_sites_of_train_and_no_other(subset, what):
    found, = check_manifest(manifest(at={(subset, "site"): 9, (subset, "cam"): 90}))
    assert found.what.startswith(f"sites of test-a: {what};") and found.where.endswith("column site; 1 row(s)")


def test_a_finding_names_line_column_value_and_choices(tmp_path):
    path = write_manifest(manifest(), tmp_path/"m.csv")
    lines = path.read_text().splitlines()
    lines[17] = lines[17].replace(",20,2,", ",77,0,")     # the first image of test-c, now at site 0
    path.write_text("\n".join([lines[0], "", *lines[1:]]) + "\n\n")     # blank lines are counted, not read
    found, = [f for f in check_manifest(load_manifest(path)) if f.what.startswith("sites of test-c")]
    assert found.where == "m.csv line 19, column site; 1 row(s)"
    assert "site=0 of test-c" in found.what and "none of [0, 1]" in found.what and "no site of train" in found.remedy


def test_rules_do_not_take_distractors_for_identities():
    t = manifest()
    extra = t.frame[t["subset"].isin(["test-a", "test-b"])].assign(pid=0, role="gallery")
    assert check_manifest(t._with(pd.concat([t.frame, extra]))) == []


def test_a_table_without_subsets_is_an_error_not_a_crash():
    assert "column is missing" in check_manifest(table([1], [0]))[0].what
    assert named(check_manifest(manifest(at={("val", "subset"): "test-d"}))) == {"subset"}
    assert named(check_manifest(manifest().take([]))) == {"subset"}


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_manifest_comes_back_as_it_was(tmp_path, ending):
    if ending == "parquet": pytest.importorskip("pyarrow")
    t = manifest()
    again = load_manifest(write_manifest(t, tmp_path/f"m.{ending}"), reader=colours)
    for c in [*MANIFEST.values(), "split"]: assert again[c].tolist() == t[c].tolist()
    assert again.image(3).tolist() == t.image(3).tolist()
    assert again["line"].tolist() == [i + (2 if ending == "csv" else 1) for i in range(len(t))]


def test_images_are_written_beside_the_manifest(tmp_path):
    t = manifest()
    again = load_manifest(write_manifest(t, tmp_path/"deep"/"m.csv", images=True))
    assert again.root == tmp_path/"deep" and all((again.image(i) == t.image(i)).all() for i in range(len(t)))


GOOD = "a.png,1,0,0,market,train,both"


@pytest.mark.parametrize("row, column, words", [
    ("../a.png,1,0,0,market,train,both", "path", "inside the root"),
    ("x/../../a.png,1,0,0,market,train,both", "path", "inside the root"),
    ("/a.png,1,0,0,market,train,both", "path", "inside the root"),
    ("C:\\a.png,1,0,0,market,train,both", "path", "inside the root"),
    ("..\\a.png,1,0,0,market,train,both", "path", "inside the root"),
    (" ,1,0,0,market,train,both", "path", "inside the root"),
    ("b.png,x1,0,0,market,train,both", "pid", "'x1' is not a whole number"),
    ("b.png,,0,0,market,train,both", "pid", "'' is not a whole number"),
    ("b.png,1,1.5,0,market,train,both", "camid", "a whole number"),
    ("b.png,1,0,99999999999999999999,market,train,both", "site", "a whole number"),
    ("b.png,1,0,0, ,train,both", "scenario", "type of location"),
    ("b.png,1,0,0,market,Train,both", "subset", "test-a"),
    ("b.png,1,0,0,market,train,probe", "role", "gallery")])
def test_a_bad_value_is_named_with_line_column_and_choices(tmp_path, row, column, words):
    path = tmp_path/"m.csv"
    path.write_text("\n".join([",".join(MANIFEST), GOOD, row, row]) + "\n")
    with pytest.raises(TableError) as e: load_manifest(path)
    found, = e.value.findings
    assert found.where == f"m.csv line 3, column {column}; 2 row(s)" and words in found.what and found.remedy


@pytest.mark.parametrize("text, words", [
    ("path,pid\na,1\n", "column 'camid' is missing"), (",".join(MANIFEST) + "\n", "no image is listed"),
    (",".join(MANIFEST) + ",cam\n" + GOOD + ",1\n", "column 'cam' occurs twice or has another meaning"),
    (",".join(MANIFEST) + ",pid\n" + GOOD + ",1\n", "column 'pid' occurs twice"),
    (",".join(MANIFEST) + "\na.png,1,0\n", "1 rows have not 7 values"),
    (",".join(MANIFEST) + '\n"a.png,1,0,0,market,train,both\n', "cannot be read"),
    (b"\xff\xfe\x00", "cannot be read")])
def test_what_is_no_manifest_is_refused(tmp_path, text, words):
    path = tmp_path/"m.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(TableError, match=words): load_manifest(path)


def test_missing_empty_and_misnamed_files(tmp_path):
    with pytest.raises(ValueError, match="does not exist"): load_manifest(tmp_path/"m.csv")
    (tmp_path/"m.csv").touch()
    with pytest.raises(ValueError, match="is empty"): load_manifest(tmp_path/"m.csv")
    with pytest.raises(ValueError, match=r"'\.csv', '\.parquet'"): load_manifest(tmp_path/"m.txt")
    with pytest.raises(ValueError, match="ending"): write_manifest(manifest(), tmp_path/"m.json")
    with pytest.raises(ValueError, match="A manifest needs it"): write_manifest(table([1], [0]), tmp_path/"m.csv")


def test_further_columns_are_kept_and_links_out_of_the_root_are_refused(tmp_path):
    (tmp_path/"in").mkdir()
    Image.fromarray(np.zeros((4, 2, 3), np.uint8)).save(tmp_path/"secret.png")
    (tmp_path/"in"/"a.png").symlink_to(tmp_path/"secret.png")
    (tmp_path/"in"/"m.csv").write_text(",".join(MANIFEST) + ",season\n" + GOOD + ",winter\n")
    t = load_manifest(tmp_path/"in"/"m.csv")
    assert t["season"].tolist() == ["winter"]
    with pytest.raises(ValueError, match="is a link to"): t.image(0)


def person30k():
    "Rows with exactly the printed numbers: ids, images, sites, cameras and cameras per id"
    rows = {r["dataset"].split()[-1].lower(): r["metrics"] for r in load_paper("dmg")["tables"][1]["rows"]}
    parts, pid, cam0, site0 = [], 1, 0, 0
    for s, m in rows.items():
        ids, cams, sites, per_id = m["identities"], m["cameras"], m["sites"], m["avg_cameras_per_identity"]
        if s in ("test-a",): cam0, site0 = 0, 0
        low, n = int(per_id), round(per_id*ids)
        count = np.full(ids, low)
        count[:n - low*ids] += 1
        who = np.repeat(np.arange(ids), count)
        where = np.arange(n) % cams     # consecutive: all different within an identity, all cameras used
        spare = m["images"] - n
        who, where = np.r_[who, np.repeat(who[:1], spare)], np.r_[where, np.repeat(where[:1], spare)]
        parts.append(pd.DataFrame(dict(pid=who + pid, cam=where + cam0, site=where % sites + site0, subset=s,
                                       scenario="mall" if s == "test-c" else "market")))
        pid += ids
        cam0 += max(cams, 3749 if s != "test-b" else cams)
        site0 += sites
    f = pd.concat(parts, ignore_index=True)
    return ReidTable(f.assign(path="x.png", split=f.subset.map(ABC_SUBSETS), role="both"), None, colours, "30k")


@pytest.mark.whole
def test_totals_are_compared_at_full_size_only():
    t = person30k()
    stats = subset_stats(t)
    assert stats.loc["all", ["ids", "images", "sites"]].tolist() == [30000, 1384940, 89]
    assert stats.loc["all", "cams/id"] == pytest.approx(16.01, abs=.005)
    found, = check_manifest(t.take(np.r_[:1000, 1001:len(t)]), ("market", "mall"))     # one image is missing
    assert str(found).startswith("warn  totals: train has 568,976 images, published 568,977 [30k]")
    small = t.take(np.flatnonzero(t["pid"] % 50 == 0))
    assert len(small) < 40_000 and "totals" not in named(check_manifest(small))


# ---- queries

splits = st.sampled_from(["train", "val", "test"])
crowds = st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 3), splits), max_size=40)


@given(crowds, st.integers(0, 5))
@few
def test_drawn_queries_have_matches_and_at_most_one_image_a_camera(rows, seed):
    split = {p: s for p, _, s in rows}     # an identity has one split
    t = table([p for p, _, _ in rows], [c for _, c, _ in rows], split=[split[p] for p, _, _ in rows],
              role=["gallery" if p <= 0 else "both" for p, _, _ in rows])
    out = pick_queries(t, seed).frame
    assert out.drop(columns="role").equals(t.frame.drop(columns="role"))
    assert out.role[out.split == "train"].tolist() == t["role"][t["split"] == "train"].tolist()
    test = out[out.split != "train"]
    assert not (test.role == "both").any() and (test.role[test.pid < 0] == "none").all()
    q, g = test[test.role == "query"], test[test.role == "gallery"]
    assert not q.duplicated(["pid", "cam"]).any() and not q.pid.isin([-1]).any()
    for pid, cam in zip(q.pid, q.cam): assert ((g.pid == pid) & (g.cam != cam)).any()
    for pid, person in test[~no_identity(t.take(np.flatnonzero(out.split != "train")))].groupby("pid"):
        asks = set(q.cam[q.pid == pid])
        if person.cam.nunique() == 1: assert not asks
        elif (person.groupby("cam").size() > 1).all(): assert asks == set(person.cam)
        else: assert asks     # an identity of two cameras is never lost


@pytest.mark.parametrize("cams, queries",
                         [([0, 1], 1), ([0, 1, 2], 2), ([0, 0, 1], 1), ([0, 0, 1, 1], 2), ([0, 0, 0], 0)])
def test_one_of_single_images_becomes_the_match(cams, queries):
    for seed in range(8):
        drawn = pick_queries(table([4]*len(cams), cams), seed)
        assert len(drawn.where(role="query")) == queries


def test_queries_depend_on_the_seed_and_not_on_the_order_of_rows():
    t = table(np.repeat(range(1, 9), 8), np.tile([0, 0, 0, 0, 1, 1, 1, 1], 8))
    asked = lambda x, seed: set(pick_queries(x, seed).where(role="query")["path"])
    shuffled = t.take(np.random.default_rng(0).permutation(len(t)))
    assert asked(t, 0) == asked(shuffled, 0) != asked(t, 1) and len(asked(t, 0)) == 16
    some = t.take(np.flatnonzero(t["pid"] < 5))
    assert asked(some, 0) < asked(t, 0)     # other identities change nothing


# ---- Test-A, Test-B, Test-C

@pytest.fixture(scope="module")
def abc(): return world_abc("smoke")


def test_the_world_keeps_the_rules(abc):
    assert check_manifest(abc, ("campus", "street")) == [] and abc.findings() == []
    size, f = ABC_SIZES["smoke"], abc.frame
    sites = [size.sites[0]]*3 + [*size.sites[1:]]
    ids = dict(zip(ABC_SUBSETS, np.multiply(size.ids, sites)))
    assert f.groupby("subset").pid.nunique().to_dict() == ids and f.pid.min() == 1
    assert (f.groupby("pid").cam.nunique() == size.cams_per_id).all()
    assert (f.groupby(["pid", "cam"]).size() == size.shots).all()
    assert (f.groupby(["subset", "site"]).cam.nunique() == size.cams).all()
    assert set(f.site) == set(range(sum(size.sites)))
    assert set(f.split[f.subset == "val"]) == {"val"}


def test_images_are_those_of_the_two_worlds(abc):
    (near, _), (far, _) = abc_worlds("smoke")
    n = len(near.plan.items)
    assert (abc.image(5) == near.table().image(5)).all() and (abc.image(n + 3) == far.table().image(3)).all()
    assert len(abc) == n + len(far.plan.items) and abc.image(0).shape == (64, 32, 3)
    family = abc.frame[abc["family"] >= 0].groupby("family")
    assert family.subset.nunique().max() == 1 and family.pid.min().tolist() == [*family.groups]


def test_test_a_is_seen_by_the_very_cameras_of_train_and_c_by_steeper_and_stranger_ones():
    (near, subset), (far, _) = abc_worlds("smoke", seed=3)
    seen = lambda x: {it.camera for it in near.plan.items if subset[it.group] == x}
    assert seen("train") == seen("test-a") == seen("val") and not seen("test-b") & seen("train")
    away = {it.camera for it in far.plan.items}
    assert {c.kind for c in away} == {"steep"} and {c.kind for c in seen("train")} == {"ground", "steep"}
    assert {c.scenario for c in away} == {"street"}
    assert {c.scenario for c in seen("train") | seen("test-b")} == {"campus"}
    assert (near.options.severity, far.options.severity) == (.4, .9)
    assert not {c.site for c in away} & {it.camera.site for it in near.plan.items}
    kinds = Counter((c.site, c.kind) for c in seen("train"))
    assert kinds == {(0, "ground"): 3, (0, "steep"): 1, (1, "ground"): 3, (1, "steep"): 1}


def test_the_training_set_does_not_change_with_the_test_sets():
    def plan(**size):
        (near, subset), _ = abc_worlds("smoke", **size)
        return [(it.person, it.camera, it.shot) for it in near.plan.items if subset[it.group] == "train"]
    assert plan() == plan(ids=(15, 3, 4, 9, 9)) == plan(sites=(2, 3, 2))
    assert plan() != plan(ids=(14, 5, 8, 15, 15))


@pytest.mark.parametrize("preset", ABC_SIZES)
def test_presets_have_the_size_they_are_meant_to(preset):
    size = ABC_SIZES[preset]
    planned = sum(g.ids*g.shots for w, _ in abc_worlds(preset) for g in w.groups)
    sites = [size.sites[0]]*3 + [*size.sites[1:]]
    assert planned == sum(np.multiply(size.ids, sites))*size.cams_per_id*size.shots
    assert planned <= dict(smoke=600, quick=6000, full=200_000)[preset]


def test_sizes_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="cams_per_id=1"): abc_worlds("smoke", cams_per_id=1)
    with pytest.raises(ValueError, match="cams_per_id=5 must be from 2 to cams=4"): abc_worlds("smoke", cams_per_id=5)
    with pytest.raises(ValueError, match="two different"): abc_worlds("smoke", scenarios=("street", "street"))
    with pytest.raises(ValueError, match="size='people'"): abc_worlds("smoke", people=3)
    with pytest.raises(ValueError, match="preset='tiny'"): abc_worlds("tiny")


def test_a_subset_without_identities_is_left_out():
    (near, subset), (far, _) = abc_worlds("smoke", ids=(4, 0, 2, 2, 2))
    assert "val" not in subset and "train" in subset and len(far.groups) == 2


@pytest.mark.parametrize("subset", ["val", "test-a", "test-b", "test-c"])
def test_queries_and_gallery_of_a_subset(abc, subset):
    q, g = abc_case(abc, subset)
    f = abc.frame[abc["subset"] == subset]
    assert sorted([*q["path"], *g["path"]]) == sorted(f.path) and not set(q["path"]) & set(g["path"])
    assert len(q) == len(f.drop_duplicates(["pid", "cam"]))
    for pid, cam in zip(q["pid"], q["cam"]): assert ((g["pid"] == pid) & (g["cam"] != cam)).any()
    assert not set(q["pid"]) & set(abc.where(subset="train")["pid"])


def test_a_case_needs_drawn_queries_and_images(abc):
    with pytest.raises(ValueError, match="pick_queries"):
        abc_case(abc._with(abc.frame.assign(role="both")), "test-a")
    with pytest.raises(ValueError, match="0 images"): abc_case(abc.where(subset="train"), "test-b")
    with pytest.raises(ValueError, match="subset='train'"): abc_case(abc, "train")


def test_a_world_becomes_a_manifest_and_back(abc, tmp_path):
    some = abc.take(np.flatnonzero(abc["pid"] % 4 == 1))
    again = load_manifest(write_manifest(some, tmp_path/"w.csv", images=True))
    assert check_manifest(again) == [] and (again.image(7) == some.image(7)).all()
    assert subset_stats(again).equals(subset_stats(some))


# ---- transfer and statistics

def test_every_dataset_meets_every_other_and_itself():
    tables = {n: table([1, 1, 2, 2], [0, 1, 0, 1], n, split=["train", "train", "test", "test"]) for n in "abc"}
    cases = transfer_cases(tables)
    assert [*cases] == [(a, b) for a in "abc" for b in "abc"]
    for (a, b), c in cases.items():
        assert c.name == f"{a} -> {b}" and c.same == (a == b)
        assert c.train["path"].tolist() == ["0000000.png", "0000001.png"] and set(c.q["pid"]) == set(c.g["pid"]) == {2}
    assert transfer_cases({}) == {}


@given(crowds)
@few
def test_statistics_equal_the_plain_loops(rows):
    t = table([p for p, _, _ in rows], [c for _, c, _ in rows], split=[s for _, _, s in rows], role="gallery",
              site=[c//2 for _, c, _ in rows], scenario=["xy"[c//2] for _, c, _ in rows])
    out = subset_stats(t)
    off = no_identity(t)
    for s in [*dict.fromkeys(["train", "val", "test"]), "all"]:
        at = [i for i, r in enumerate(rows) if s in (r[2], "all")]
        if not at and s != "all":
            assert s not in out.index
            continue
        people = [rows[i] for i in at if not off[i]]
        ids = {p for p, _, _ in people}
        per_id = [len({c for q, c, _ in people if q == p}) for p in ids]
        assert out.loc[s, ["ids", "images", "distractors"]].tolist() == [len(ids), len(at), sum(off[i] for i in at)]
        assert out.loc[s, "cameras"] == len({rows[i][1] for i in at})
        assert out.loc[s, "sites"] == len({rows[i][1]//2 for i in at})
        assert out.loc[s, "cams/id"] == pytest.approx(mean(per_id) if ids else 0, abs=.00501)
        assert out.loc[s, "images/id"] == pytest.approx(len(people)/len(ids) if ids else 0, abs=.00501)
        train = {c for _, c, x in rows if x == "train"}
        if s in ("val", "test") and train: assert out.loc[s, "shared cameras"] == len({rows[i][1] for i in at} & train)
        else: assert out.loc[s, "shared cameras"] == "-"


def test_statistics_go_by_any_column_and_count_distractors_as_images():
    t = table([1, 1, 0, -1], [0, 1, 0, 0], role="gallery", dataset=["a", "a", "b", "b"])
    out = subset_stats(t, "dataset")
    assert out.index.tolist() == ["a", "b", "all"]
    assert out["images"].tolist() == [2, 2, 4] and out["ids"].tolist() == [1, 0, 1]
    assert out["distractors"].tolist() == [0, 2, 2]
    with pytest.raises(ValueError, match="by='colour'"): subset_stats(t, "colour")
