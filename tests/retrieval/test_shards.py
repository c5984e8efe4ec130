"""Embeddings on disk: what a killed writer leaves, equality with memory, processes, the index, missing extras."""
import itertools
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from reid_lab.data.table import ReidTable
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.core.files import atomic_path
from reid_lab.retrieval.metrics import metrics_from_similarity, retrieval_metrics
from reid_lab.retrieval.ranking import RetrievalResult, rank, retrieve, rivals
from reid_lab.retrieval.scores import EmbeddingScores, ShardScores
from reid_lab.retrieval.shards import Shards, write_shards

pytest.importorskip("pyarrow")
KEYS = ("R1", "R5", "R10", "mAP", "mINP", "mSD", "RSum", "n_query", "n_skipped")
PLAIN = "import warnings; warnings.simplefilter('ignore')\n"


def exact(n, seed, ids=40, cams=4, dim=16, junk=True):
    "Vectors of four halves: their cosines are multiples of a quarter, exact in any order of summing, and full of ties"
    rng = np.random.default_rng(seed)
    x = np.zeros((n, dim), "float32")
    centre = np.random.default_rng(0).integers(0, 4, ids)
    pid = rng.integers(-1 if junk else 0, ids, n)
    for i in range(n):
        at = rng.choice(4, 4, replace=False)*4 + (centre[pid[i]] if rng.random() < .5 else rng.integers(0, 4, 4))
        x[i, at] = rng.choice([-.5, .5, .5], 4)
    return Embeddings(x, pid, rng.integers(0, cams, n), path=[f"{i}.jpg" for i in range(n)])


def noisy(n, seed, ids=60, cams=4, dim=24):
    rng = np.random.default_rng(seed)
    pid = rng.integers(-1, ids, n)
    x = np.random.default_rng(0).normal(size=(ids + 1, dim))[pid] + 2*rng.normal(size=(n, dim))
    return Embeddings(x.astype("float32"), pid, rng.integers(0, cams, n))


def on_disk(e, folder, **kw): return Shards(write_shards(e, folder, **kw))


def test_a_workspace_that_another_writer_sweeps_is_made_again(tmp_path, monkeypatch):
    "Writers of one name sweep what killed ones left; a workspace is empty for a moment before it has its lock"
    made, mkdir = [], Path.mkdir
    def swept_once(self, *args, **kw):
        if self.name.startswith(".plan.json.") and not made:
            made.append(self)
            self.rmdir()
            raise FileExistsError(self)     # what mkdir says if the folder goes away while it looks
        return mkdir(self, *args, **kw)
    monkeypatch.setattr(Path, "mkdir", swept_once)
    with atomic_path(tmp_path/"plan.json") as new: new.write_text("{}")
    assert made and [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    q, g = exact(300, 1, ids=50), exact(5000, 2)     # two blocks of queries; ids 40 to 49 are not in the gallery
    return q, g, on_disk(g, tmp_path_factory.mktemp("tied")/"g", rows=1700)


def naive(sim, q, g):
    "R@1, mAP, mINP by sorting; equal scores keep the order of the gallery"
    r1, ap, inp = [], [], []
    for i in range(len(q)):
        keep = np.flatnonzero((g.pid != -1) & ~((g.pid == q.pid[i]) & (g.cam == q.cam[i])))
        hit = (g.pid[keep] == q.pid[i])[np.argsort(-sim[i, keep], kind="stable")]
        if q.pid[i] == -1 or not hit.any(): continue
        r = np.flatnonzero(hit) + 1
        r1.append(r[0] == 1); ap.append(np.mean(np.arange(1, len(r) + 1)/r)); inp.append(len(r)/r[-1])
    return 100*np.mean(r1), 100*np.mean(ap), 100*np.mean(inp)


# --- equal to memory -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("ties, ap, backend, same_camera", [
    ("order", "step", "numba", None), ("order", "trapezoid", "torch", None), ("expected", "step", "numba", None),
    ("expected", "trapezoid", "torch", "keep"), ("order", "step", "torch", "keep")])
def test_metrics_from_disk_are_those_of_memory_bit_for_bit(tied, ties, ap, backend, same_camera):
    q, g, disk = tied
    kw = dict(ties=ties, ap=ap, backend=backend, same_camera=same_camera, per_query=True, cmc=20)
    a, b = retrieval_metrics(q, g, **kw), retrieval_metrics(q, disk, memory=2**20, **kw)
    for k in KEYS[:5]: assert a[k] == b[k], k
    assert a["mSD"] == pytest.approx(b["mSD"], abs=1e-4)       # sums of float32 in another order
    assert a["skipped"] == b["skipped"] and (a["CMC"] == b["CMC"]).all() and b["n_skipped"] > 0
    for k in ("first", "AP", "INP", "n_match"): np.testing.assert_array_equal(a["per_query"][k], b["per_query"][k])


def test_metrics_from_disk_are_those_of_a_sort(tied):
    q, g, disk = tied
    m = retrieval_metrics(q, disk, ties="order", memory=2**20)
    want = naive((q.unit().emb.double() @ g.unit().emb.double().T).numpy(), q, g)
    assert [m[k] for k in ("R1", "mAP", "mINP")] == pytest.approx(want, abs=1e-9)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_random_features_agree_with_memory(tmp_path, dtype, distance):
    q, g = noisy(70, 1), noisy(4000, 2)
    disk = on_disk(g, tmp_path/"g", dtype=dtype, rows=900)
    a, b = retrieval_metrics(q, disk.load(), distance=distance), retrieval_metrics(q, disk, distance=distance)
    for k in KEYS: assert a[k] == pytest.approx(b[k], abs=1e-3, nan_ok=True), k


def test_the_result_does_not_depend_on_memory_or_shards(tmp_path):
    q, g = noisy(300, 1), noisy(7000, 2)
    disks = [on_disk(g, tmp_path/str(rows), rows=rows) for rows in (7000, 999)]
    out = [retrieval_metrics(q, d, memory=m) for d, m in itertools.product(disks, (1, 2**22, 2**30))]
    for o in out[1:]: assert {k: o[k] for k in KEYS if k != "mSD"} == {k: out[0][k] for k in KEYS if k != "mSD"}
    for o in out[1:]: assert o["mSD"] == pytest.approx(out[0]["mSD"], abs=1e-4)


def test_lists_from_disk_are_those_of_memory(tied):
    q, g, disk = tied
    for kw in (dict(k=7), dict(k=3, same_camera="keep"), dict(k=60, same_camera="drop")):
        (i, s), (j, t) = rank(q, g, **kw), rank(q, disk, memory=2**20, **kw)
        assert (i == j).all() and (s == t).all()
    assert (disk.pid[rank(q, disk, 60)[0]] != -1).all()       # no junk
    res = retrieve(q, disk, 5)
    assert isinstance(res, RetrievalResult) and (res.correct == retrieve(q, g, 5).correct).all()
    assert res.ranked_list(3).equals(retrieve(q, g, 5).ranked_list(3)[res.ranked_list(3).columns])


def test_few_images_and_few_left(tmp_path):
    q, g = exact(5, 1), exact(6, 2)
    disk = on_disk(g, tmp_path/"g", rows=2)
    assert (rank(q, g, 9)[0] == rank(q, disk, 9)[0]).all() and rank(q, disk, 9)[0].shape == (5, 9)


def test_errors_are_those_of_memory(tied):
    q, g, disk = tied
    away = Embeddings(q.emb, q.pid + 1000, q.cam)
    for e in (away, Embeddings(q.emb, np.full(len(q), -1), q.cam)):
        said = []
        for gallery in (g, disk):
            with pytest.raises(ValueError, match="none of the 300 queries") as err: retrieval_metrics(e, gallery)
            said.append(str(err.value))
        assert said[0] == said[1]
    with pytest.raises(ValueError, match="give memory="): retrieval_metrics(q, disk, chunk=5)
    with pytest.raises(TypeError, match=r"g\.load\(\)"): rivals(q, disk)
    with pytest.raises(TypeError, match="q is Shards"): retrieval_metrics(disk, disk)
    with pytest.raises(ValueError, match="gallery vectors 16"): retrieval_metrics(noisy(3, 0), disk)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always"); retrieval_metrics(q, disk)
    assert any("exactly the score" in str(w.message) for w in seen)


def test_scores_of_a_matrix_with_junk_are_read_from_disk_too(tied):
    q, g, disk = tied
    a = metrics_from_similarity(ShardScores(q.emb, disk), q.pid, g.pid, q.cam, g.cam, ties="order")
    b = metrics_from_similarity(EmbeddingScores(q.emb, g.emb), q.pid, g.pid, q.cam, g.cam, ties="order")
    assert {k: a[k] for k in KEYS[:5]} == {k: b[k] for k in KEYS[:5]}


def test_no_piece_is_larger_than_the_memory_allows(tied, monkeypatch):
    q, _, disk = tied
    seen, real = [], Shards.read
    monkeypatch.setattr(Shards, "read", lambda self, lo=0, hi=None: seen.append(hi - lo) or real(self, lo, hi))
    retrieval_metrics(q, disk, memory=2**20)
    assert max(seen) == 1024
    retrieval_metrics(q, disk, memory=2**23)
    assert 1024 < max(seen) <= 2**23//(4*(16*4 + 2*256))


# --- writing ---------------------------------------------------------------------------------------------------------

def run(code, *args, **env):
    return subprocess.Popen([sys.executable, "-c", PLAIN + code, *map(str, args)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ, **env))


WRITER = """
import sys, time, numpy as np
from reid_lab.embeddings import Embeddings
from reid_lab.files import atomic_path
from reid_lab.shards import ShardWriter
folder, rank, world, wait = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
x = np.random.default_rng(0).normal(size=(400, 8)).astype('float32')
to = ShardWriter(folder, 400, 8, rows=20)
print('begun', flush=True)
for i in to.missing(rank, world):
    lo, hi = to.spans[i]
    if wait and i >= 2*world:       # dies while the third shard is half written
        import reid_lab.shards as S
        S.write_sums = lambda tmp: (print('half', flush=True), time.sleep(wait))
    to.write(i, Embeddings(x[lo:hi], np.arange(lo, hi)))
"""


def test_a_killed_writer_loses_its_shard_in_hand_and_another_number_of_processes_goes_on(tmp_path, monkeypatch):
    p = run(WRITER, tmp_path/"g", 0, 2, 60)
    assert [p.stdout.readline().strip() for _ in range(2)] == ["begun", "half"], p.stderr.read()
    p.send_signal(signal.SIGKILL); p.wait()
    with pytest.raises(ValueError, match="holds 2 of 20 shards"): Shards(tmp_path/"g")
    assert len(Shards(tmp_path/"g", partial=True)) == 40
    before = {p: p.stat().st_mtime_ns for p in (tmp_path/"g").glob("0*/emb.npy")}
    p = run(WRITER, tmp_path/"g", 0, 3, 0)
    for r in ("1", "2"):
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path/"g"), r, "3", "0"]); exec(WRITER, {})
    assert p.wait() == 0, p.stderr.read()
    g = Shards(tmp_path/"g")
    x = np.random.default_rng(0).normal(size=(400, 8)).astype("float32")
    assert torch.equal(g.read(), torch.from_numpy(x).half().float()) and (g.pid == np.arange(400)).all()
    assert len(before) == 2 and all(p.stat().st_mtime_ns == t for p, t in before.items()) and g.failed() == {}
    assert not [p for p in (tmp_path/"g").iterdir() if p.name.startswith(".")]    # remains were swept


def test_a_damaged_shard_is_named(tmp_path):
    g = on_disk(noisy(90, 0), tmp_path/"g", rows=40)
    with open(tmp_path/"g"/"000001"/"table.parquet", "r+b") as f: f.seek(9); f.write(b"??")
    assert g.failed() == {"000001/table.parquet": "has other contents than were written"}
    (tmp_path/"g"/"000002"/"sums.json").unlink()
    with pytest.raises(ValueError, match="000002/emb.npy has no checksum.*write them again"): Shards(tmp_path/"g")


def test_arrays_of_objects_are_not_unpickled(tmp_path):
    class Bad:
        def __reduce__(self): return os.mkdir, (str(tmp_path/"pwned"),)
    on_disk(noisy(30, 0), tmp_path/"g")
    np.save(tmp_path/"g"/"000000"/"emb.npy", np.array([[Bad()]], object), allow_pickle=True)
    import reid_lab.core.files as F
    F.write_sums(tmp_path/"g"/"000000")
    with pytest.raises(ValueError, match="emb.npy is damaged"): Shards(tmp_path/"g").read()
    assert not (tmp_path/"pwned").exists()


def test_rows_are_chosen_as_in_memory(tmp_path):
    e = noisy(500, 0); g = on_disk(e, tmp_path/"g", dtype="float32", rows=70)
    rng = np.random.default_rng(0)
    for key in (slice(60, 300, 7), rng.random(500) < .1, rng.permutation(500), np.array([-1, 3, 3]), e.pid == 999):
        a, b = e[key], g[key]
        assert torch.equal(b.read(), a.emb) and (b.pid == a.pid).all() and (b.cam == a.cam).all()
        assert (b.table(["pid"]).pid == a.pid).all()
        half = len(a)//2
        assert torch.equal(b[half:].read(), a[half:].emb) and torch.equal(b.read(1, half), a.emb[1:half])


# --- embedding into shards, the index, extras ------------------------------------------------------------------------

EMBED = """
import sys, numpy as np, pandas as pd, torch
from reid_lab.data.table import ReidTable
from reid_lab.embed_shards import embed_shards
class Net(torch.nn.Module):
    size = (8, 4)
    def __init__(self): super().__init__(); self.w = torch.nn.Parameter(torch.arange(18.).reshape(3, 6))
    def encode_image(self, img): return img.mean((2, 3)) @ self.w
px = np.random.default_rng(0).integers(0, 255, (50, 8, 4, 3), 'uint8')
t = ReidTable(pd.DataFrame(dict(path=[str(i) for i in range(50)], pid=range(50), cam=[0]*20 + [-1]*30)), None,
              lambda paths: [px[int(p)] for p in paths], 'fifty')
print(embed_shards(Net(), t, sys.argv[1], rows=8, dtype='float32'))
"""


def test_processes_of_torchrun_share_a_table(tmp_path, monkeypatch, capsys):
    other = run(EMBED, tmp_path/"g", RANK="0", WORLD_SIZE="2")
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2")): monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path/"g")]); exec(EMBED, {})
    said = other.communicate()
    assert (said[0].strip().splitlines()[-1], capsys.readouterr().out.strip().splitlines()[-1]) == ("4", "3"), said
    g = Shards(tmp_path/"g")
    px = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (50, 8, 4, 3), "uint8")).float()/255
    want = px.mean((1, 2)) @ torch.arange(18.).reshape(3, 6)
    torch.testing.assert_close(g.read(), want, rtol=1e-5, atol=1e-5)
    assert g.cam.tolist() == [0]*20 + [-1]*30 and g.meta["data"] == "fifty"   # shards without a camera keep the column


def test_the_index_finds_and_scores_as_rank_does(tmp_path):
    pytest.importorskip("faiss")
    from reid_lab.retrieval.index import Index, build_index, index_table, recall
    q, g = noisy(40, 1), on_disk(noisy(4000, 2), tmp_path/"g", rows=1500)
    index = build_index(g, lists=32, probe=32, refine=8)
    (i, s), (j, t) = index.search(q, 5), rank(q, g, 5, same_camera="keep")
    known = Embeddings(g.load().emb, np.full(len(g), -1))
    j, t = rank(Embeddings(q.emb, np.full(len(q), -1)), known, 5)
    assert recall(i, j) > .97 and s[i == j] == pytest.approx(t[i == j], abs=1e-5)
    got = index_table(index, q, 5, probes=(1, 32))
    assert got.probe.tolist() == ["all", 1, 32] and got["recall"].iloc[1] < got["recall"].iloc[2]
    index.save(tmp_path/"i")
    assert (Index.load(tmp_path/"i", g).search(q, 5)[0] == i).all()
    other = on_disk(noisy(4000, 3), tmp_path/"h", rows=1500)
    with pytest.raises(ValueError, match="index of another gallery"): Index.load(tmp_path/"i", other)


@pytest.mark.parametrize("module, call, line", [
    ("pyarrow", "from reid_lab.retrieval.shards import Shards; Shards('x')", "pip install 'reid_lab[parquet]'"),
    ("pyarrow", "from reid_lab.data.table import ReidTable; ReidTable.load('t.parquet', '.')",
     "pip install 'reid_lab[parquet]'"),
    ("faiss", "from reid_lab.retrieval.index import build_index; build_index(None)", "pip install 'reid_lab[index]'")])
def test_a_missing_extra_names_itself_and_its_line(module, call, line, monkeypatch):
    for name in [n for n in sys.modules if n.split(".")[0] == module]: monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=module) as err: exec(call, {})
    assert line in str(err.value)


def test_a_table_of_many_rows_is_checked_without_a_loop_over_paths(tmp_path):
    "100,000 rows from parquet in CPU seconds that a slow machine has too; paths stay inside"
    import pandas as pd
    n = 100_000
    f = pd.DataFrame(dict(path=[f"c{i % 50}/{i:06d}.jpg" for i in range(n)], pid=np.arange(n)//10,
                          cam=np.arange(n) % 50, captions=[["a man"]]*n))
    ReidTable(f, tmp_path).save(tmp_path/"t.parquet")
    clock = time.process_time()
    t = ReidTable.load(tmp_path/"t.parquet", tmp_path)
    assert t.findings(images="none") == [] and time.process_time() - clock < 5
    assert t.frame.captions.iat[7] == ["a man"] and t["attrs"].iat[7] is None
    for bad in ("../out.jpg", "/etc/passwd", "a/../../b.jpg", "a\\..\\..\\b.jpg"):
        t.frame.loc[99_999, "path"] = bad
        found = [str(x) for x in t.findings(images="none")]
        if bad.startswith("a\\"): continue            # a name, on this system
        assert len(found) == 1 and "path leaves the root [row 99999" in found[0], bad
    with pytest.raises(ValueError, match="leaves the dataset folder"): t.frame.loc[0, "path"] = "../x.jpg"; t.image(0)


def test_a_question_finds_the_same_answer_on_disk(tied):
    from reid_lab.analysis.search import find
    q, g, disk = tied
    a, b = find(q[:9], g, 90), find(q[:9], disk, 90)           # whoever has no label is found too
    assert (a.result.index == b.result.index).all() and (a.result.score == b.result.score).all()
    assert a.table(2).path.tolist() == b.table(2).path.tolist() and (g.pid[a.result.index] == -1).any()
    with pytest.raises(ValueError, match="not offered for a gallery on disk"): find(q, disk, 5, distance="euclidean")


def test_cells_that_are_not_one_json_value_are_refused(tmp_path):
    (tmp_path/"t.csv").write_text('path,pid,captions,attrs\na.jpg,1,"[""x""],[""y""]",null\n')
    with pytest.raises(ValueError, match="not one JSON value each"): ReidTable.load(tmp_path/"t.csv", tmp_path)
