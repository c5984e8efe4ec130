"Columns of the user's own are found again behind every door, in the order of the rows"
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from reid_lab.analysis.search import find
from reid_lab.cli.commands import main
from reid_lab.core.basics import unit_norm
from reid_lab.data.crops import manifest_table
from reid_lab.data.cut_files import write_crops
from reid_lab.data.table import ReidTable, join_tables
from reid_lab.recipes.crops import match_table, matches
from reid_lab.retrieval.embeddings import Embeddings, embed_images, embed_texts
from reid_lab.retrieval.shards import Shards, embed_shards, write_shards
from reid_lab.world.world import World

CLOTHES = ["red", "", "blue", "a, \"b\"", "red", "grün"]
AGE = [31., np.nan, 7., 44., np.nan, 9.]
NIGHT = [True, False, True, True, False, False]
OWN = dict(clothes=CLOTHES, age=AGE, night=NIGHT)


class Tiny:
    size = (16, 8)
    def encode_image(self, img): return img.flatten(1)[:, :4]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crops")
    for i in range(6):
        pixels = np.full((16, 8, 3), 20 + 30*i, "u1")
        pixels[0, :i + 1] = 255 - 20*i
        Image.fromarray(pixels).save(folder/f"{i//2:04d}_c{i % 2}_{i}.png")
    return folder


@pytest.fixture
def table(folder):
    t = ReidTable.from_folder(folder, r"(?P<pid>\d+)_c(?P<cam>\d+)_\d")
    return t.assign(**OWN, captions=[[f"person {i}", "another"][:1 + i % 2] for i in range(6)])


def check(got, rows=range(6)):
    "The three columns of some rows, whatever type a file gave them"
    rows = list(rows)
    assert [str(v) for v in got["clothes"]] == [CLOTHES[i] for i in rows]
    ages = pd.to_numeric(pd.Series(list(got["age"])).replace("", np.nan)).to_numpy(float)
    assert np.array_equal(ages, np.array(AGE)[rows], equal_nan=True)
    assert [str(v) in ("True", "1") for v in got["night"]] == [NIGHT[i] for i in rows]


def test_assign_keeps_reader_and_root_and_says_what_is_wrong(table, folder):
    check(table)
    assert table.root == folder and np.array_equal(table.image(3), np.asarray(Image.open(folder/table["path"][3])))
    assert table.further == [*OWN] and table.assign(clothes="x").further == [*OWN]
    served = ReidTable(table.frame[["path", "pid"]], None, lambda paths: [np.zeros((16, 8, 3), "u1") for _ in paths])
    assert served.assign(night=NIGHT).image(2).shape == (16, 8, 3)
    moved = pd.Series(CLOTHES, index=range(10, 16))     # by position, as the rows of a part are numbered anew
    check(table.take([5, 0]).assign(clothes=moved.iloc[[5, 0]]), [5, 0])
    assert table.assign(pid=["x", "y", "", "x", "y", "y"])["pid"].tolist() == [0, 1, -1, 0, 1, 1]
    with pytest.raises(ValueError, match="clothes has 2 values for a table of 6 rows"): table.assign(clothes=["a", "b"])
    with pytest.raises(ValueError, match="caption=... is a name of features"): table.assign(caption="x")


def test_missing_values_are_counted_and_named(table):
    lost = table.unlabelled()
    assert lost[["column", "missing", "rows"]].values.tolist() == [["clothes", 1, 6], ["age", 2, 6]]
    assert "0000_c1_1.png" in lost["first"][0] and len(table.unlabelled(["night"])) == 0
    with pytest.raises(ValueError, match="Did you mean 'clothes'"): table.unlabelled(["cloths"])


def test_tables(table, folder, tmp_path):
    check(table.where(night=True), [0, 2, 3])
    check(table.take([4, 1]), [4, 1])
    check(table.query(), range(6))
    few = table.sample_ids(2, seed=0)
    check(few, [i for i in range(6) if table["path"][i] in set(few["path"])])
    joined = join_tables([table, table.take([2, 0])])
    check(joined, [*range(6), 2, 0])
    assert joined.further == [*OWN]
    mixed = join_tables([table, ReidTable(table.frame[["path", "pid", "cam"]], folder)])
    check(mixed.take(range(6)))
    assert mixed.unlabelled(["clothes"]).missing.tolist() == [7]
    frame = table.frame[["path", "pid", "cam", *OWN]]
    check(ReidTable.from_dataframe(frame, folder))
    for kind in (".csv", ".parquet"):
        saved = ReidTable.load(table.save(tmp_path/f"t{kind}"), folder)
        check(saved)
        assert saved.further == [*OWN]
    check(manifest_table(write_crops(table, tmp_path/"cut", quiet=True)))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
def test_manifests(table, folder, kind, tmp_path):
    frame, path = table.frame[["path", "pid", "cam", *OWN]], tmp_path/f"m.{kind}"
    if kind == "jsonl": path.write_text("\n".join(json.dumps(r) for r in json.loads(frame.to_json(orient="records"))))
    elif kind == "parquet": frame.to_parquet(path)
    else: frame.to_csv(path, index=False, sep="\t" if kind == "tsv" else ",")
    read = manifest_table(path, folder)
    check(read)
    check(embed_images(Tiny(), read, quiet=True).columns)


def test_features(table, folder, tmp_path):
    e = embed_images(Tiny(), table, quiet=True)
    check(e.columns)
    for name in ("f.npz", "f.safetensors", "folder"):
        check(Embeddings.load(e.save(tmp_path/name)).columns)
    for ending in ("csv", "parquet"):       # labels beside vectors, as other programs write them
        own = tmp_path/ending
        own.mkdir()
        from safetensors.torch import save_file
        save_file(dict(emb=e.emb), own/"emb.safetensors")
        labels = table.frame[["path", "pid", "cam", *OWN]]
        labels.to_csv(own/"table.csv", index=False) if ending == "csv" else labels.to_parquet(own/"table.parquet")
        assert Embeddings.load(own).columns["night"].tolist() == NIGHT
    check(e[[5, 2]].columns, [5, 2])
    check(e.where(clothes="red").columns, [0, 4])
    check(Embeddings.concat([e[:2], e[4:]]).columns, [0, 1, 4, 5])
    check(e.unit().columns)
    write_shards(e, tmp_path/"shards", rows=4)
    check(Shards(tmp_path/"shards").table())
    check(Shards(tmp_path/"shards").load().columns)
    embed_shards(Tiny(), table, tmp_path/"direct", quiet=True)
    check(Shards(tmp_path/"direct").table())


def test_some_columns_or_none_go_along(table, folder):
    def own(**how): return [c for c in embed_images(Tiny(), table, quiet=True, **how).columns if c in OWN]
    assert own() == [*OWN] and own(columns=["night"]) == ["night"] and own(columns=[]) == []
    with pytest.raises(ValueError, match="columns='nigt'.*Did you mean 'night'"): own(columns=["nigt"])
    direct = ReidTable(table.frame, folder)     # without a door that names them
    check(embed_images(Tiny(), direct, quiet=True).columns)
    world = World("smoke").table()
    assert world.further == [] and "facing" in world.frame      # what only a renderer knows stays out


def test_captions_and_answers(table):
    class Words:
        size = (16, 8)
        class tokenizer:
            def __call__(self, texts): return torch.tensor([[len(t)] for t in texts])
        tokenizer = tokenizer()
        def encode_text(self, ids): return torch.cat([ids.float()]*4, 1)
    rows = [i for i in range(6) for _ in range(1 + i % 2)]
    check(embed_texts(Words(), table, quiet=True).columns, rows)
    e = embed_images(Tiny(), table, quiet=True)
    answer = find(e[:2], e, 3)
    check(answer.table(0), answer.table(0).row)


def test_command_line(table, folder, tmp_path):
    table.frame[["path", "pid", "cam", *OWN]].to_csv(tmp_path/"m.csv", index=False)
    features = str(tmp_path/"f.npz")
    assert main(["embed", str(tmp_path/"m.csv"), "--out", features, "--root", str(folder), "--model", "bot_tiny"]) == 0
    check(Embeddings.load(features).columns)
    assert main(["match", features, features, "--out", str(tmp_path/"pairs.csv")]) == 0
    pairs = pd.read_csv(tmp_path/"pairs.csv", keep_default_na=False)
    for side in "ab": check({c: pairs[f"{c}_{side}"] for c in OWN}, pairs[side])
    write_shards(Embeddings.load(features), tmp_path/"shards", rows=4)
    found = matches(features, tmp_path/"shards", 2)
    table = match_table(found)
    check({c: table[f"{c}_b"] for c in OWN}, table.b)


def naive_pool(e, column, how, weights):
    "A loop over rows: each value in the order of its first row, a row without one for itself"
    keys = []
    for i, value in enumerate(e.columns[column].tolist()): keys.append(value if value else i)
    out = []
    for key in dict.fromkeys(keys):
        rows = [i for i, k in enumerate(keys) if k == key]
        unit = {i: (e.emb[i]/e.emb[i].norm()).double() for i in rows}
        total = sum(weights[i] for i in rows)
        mean = sum(weights[i]*unit[i] for i in rows)/total
        best = rows[int(np.argmax([round(float(unit[i]@mean), 6) for i in rows]))]
        out.append(mean.float() if how == "mean" else e.emb[best])
    return torch.stack(out)


@pytest.mark.parametrize("how", ["mean", "medoid"])
@pytest.mark.parametrize("seed", range(4))
def test_pooling_equals_a_plain_loop(how, seed):
    rng = np.random.default_rng(seed)
    pid = rng.integers(0, 5, 50)
    names = np.array([f"t{p}" if keep else "" for p, keep in zip(pid, rng.random(50) < .8)])
    e = Embeddings(rng.normal(size=(50, 6)).astype("f4")*9, pid, pid % 3, [f"{i}.jpg" for i in range(50)],
                   columns=dict(tracklet=names, clothes=[f"c{p}" for p in pid], frame=np.arange(50),
                                w=rng.random(50) + .1))
    for weights in (None, "w"):
        with pytest.warns(UserWarning, match="left out what differs within one: frame, w$"):
            pooled = e.pool("tracklet", how, weights)
        given = np.ones(50) if weights is None else e.columns["w"]
        assert torch.allclose(pooled.emb, naive_pool(e, "tracklet", how, given), atol=1e-5)
        assert pooled.columns["clothes"].tolist() == [f"c{p}" for p in pooled.pid] and "frame" not in pooled.columns
        assert pooled.columns["n_pooled"].sum() == 50 and (pooled.cam == pooled.pid % 3).all()
        if how == "medoid": assert all(torch.equal(v, e.emb[int(p[:-4])]) for v, p in zip(pooled.emb, pooled.path))


def test_pooling_refuses_what_is_no_tracklet():
    e = Embeddings(unit_norm(torch.eye(4)), [0, 0, 1, 1], [0, 1, 2, 2], columns=dict(tracklet=["a", "a", "b", "b"]))
    with pytest.raises(ValueError, match=r"tracklet='a' has the cam values \[0, 1\]"): e.pool()
    with pytest.raises(ValueError, match="tracklet='x' has the pid values"): e.assign(tracklet=["x"]*4).pool()
    with pytest.raises(ValueError, match="column='clothes'.*assign"): e.pool("clothes")
    with pytest.raises(ValueError, match=r"weights\[1\] is 0.0"): e[2:].pool(weights=[1, 0])
    with pytest.raises(ValueError, match=r"weights has shape \(1,\)"): e[2:].pool(weights=[1])
    with pytest.raises(ValueError, match="Did you mean 'medoid'"): e.pool(how="medoids")
    assert len(e[:0].pool()) == 0
