"""Embeddings on disk: what a killed writer leaves, rows chosen as in memory, processes, missing extras."""
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from reid_lab.core.distributed import torchrun
from reid_lab.core.files import write_sums
from reid_lab.retrieval.shards import Shards

pytest.importorskip("pyarrow")
PLAIN = "import warnings; warnings.simplefilter('ignore')\n"


def run(code, *args, **env):
    return subprocess.Popen([sys.executable, "-c", PLAIN + code, *map(str, args)], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, env=dict(os.environ, **env))


WRITER = """
import sys, time, numpy as np
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval import shards
from reid_lab.retrieval.shards import ShardLayout, ShardWriter
folder, rank, world, wait = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
x = np.random.default_rng(0).normal(size=(400, 8)).astype('float32')
to = ShardWriter(folder, 400, 8, ShardLayout(rows=20))
print('begun', flush=True)
for i in to.missing(rank, world):
    lo, hi = to.spans[i]
    if wait and i >= 2*world:       # dies while the third shard is half written
        shards.write_sums = lambda tmp: (print('half', flush=True), time.sleep(wait))
    to.write(i, Embeddings(x[lo:hi], np.arange(lo, hi)))
"""


@pytest.mark.kill
def test_a_killed_writer_loses_its_shard_in_hand_and_another_number_of_processes_goes_on(tmp_path, monkeypatch):
    p = run(WRITER, tmp_path/"g", 0, 2, 60)
    assert [p.stdout.readline().strip() for _ in range(2)] == ["begun", "half"], p.stderr.read()
    p.send_signal(signal.SIGKILL)
    p.wait()
    with pytest.raises(ValueError, match="holds 2 of 20 shards"): Shards(tmp_path/"g")
    assert len(Shards(tmp_path/"g", partial=True)) == 40
    before = {p: p.stat().st_mtime_ns for p in (tmp_path/"g").glob("0*/emb.npy")}
    p = run(WRITER, tmp_path/"g", 0, 3, 0)
    for r in ("1", "2"):
        monkeypatch.setattr(sys, "argv", ["", str(tmp_path/"g"), r, "3", "0"])
        exec(WRITER, {})
    assert p.wait() == 0, p.stderr.read()
    g = Shards(tmp_path/"g")
    x = np.random.default_rng(0).normal(size=(400, 8)).astype("float32")
    assert torch.equal(g.read(), torch.from_numpy(x).half().float()) and (g.pid == np.arange(400)).all()
    assert len(before) == 2 and all(p.stat().st_mtime_ns == t for p, t in before.items()) and g.failed() == {}
    assert not [p for p in (tmp_path/"g").iterdir() if p.name.startswith(".")]    # remains were swept


def test_a_damaged_shard_is_named(on_disk, noisy, tmp_path):
    g = on_disk(noisy(90, 0), tmp_path/"g", rows=40)
    with open(tmp_path/"g"/"000001"/"table.parquet", "r+b") as f:
        f.seek(9)
        f.write(b"??")
    assert g.failed() == {"000001/table.parquet": "has other contents than were written"}
    (tmp_path/"g"/"000002"/"sums.json").unlink()
    with pytest.raises(ValueError, match="000002/emb.npy has no checksum.*write them again"): Shards(tmp_path/"g")


def test_arrays_of_objects_are_not_unpickled(on_disk, noisy, tmp_path):
    class Bad:
        def __reduce__(self): return os.mkdir, (str(tmp_path/"pwned"),)
    on_disk(noisy(30, 0), tmp_path/"g")
    file = tmp_path/"g"/"000000"/"emb.npy"
    size = file.stat().st_size
    np.save(file, np.array([[Bad()]], object), allow_pickle=True)
    os.truncate(file, size)             # so that the plan has nothing against it
    write_sums(tmp_path/"g"/"000000")
    with pytest.raises(ValueError, match="emb.npy is damaged"): Shards(tmp_path/"g").read()
    assert not (tmp_path/"pwned").exists()


def test_rows_are_chosen_as_in_memory(on_disk, noisy, tmp_path):
    e = noisy(500, 0)
    g = on_disk(e, tmp_path/"g", dtype="float32", rows=70)
    rng = np.random.default_rng(0)
    for key in (slice(60, 300, 7), rng.random(500) < .1, rng.permutation(500), np.array([-1, 3, 3]), e.pid == 999):
        a, b = e[key], g[key]
        assert torch.equal(b.read(), a.emb) and (b.pid == a.pid).all() and (b.cam == a.cam).all()
        assert (b.table(["pid"]).pid == a.pid).all()
        half = len(a)//2
        assert torch.equal(b[half:].read(), a[half:].emb) and torch.equal(b.read(1, half), a.emb[1:half])


EMBED = """
import sys, numpy as np, pandas as pd, torch
from reid_lab.data.table import ReidTable
from reid_lab.retrieval.shards import embed_shards
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
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path/"g")])
    exec(EMBED, {})
    said = other.communicate()
    assert (said[0].strip().splitlines()[-1], capsys.readouterr().out.strip().splitlines()[-1]) == ("4", "3"), said
    g = Shards(tmp_path/"g")
    px = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (50, 8, 4, 3), "uint8")).float()/255
    want = px.mean((1, 2)) @ torch.arange(18.).reshape(3, 6)
    torch.testing.assert_close(g.read(), want, rtol=1e-5, atol=1e-5)
    assert g.cam.tolist() == [0]*20 + [-1]*30 and g.meta["data"] == "fifty"   # shards without a camera keep the column


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    "What one process scores, and two, which made the features together, in memory and in shards"
    program, out = Path(__file__).parent/"protocols_program.py", tmp_path_factory.mktemp("protocols")
    spec = importlib.util.spec_from_file_location("protocols_program", program)
    one = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(one)
    e = one.embed_images(one.Pixels(), one.people(), batch_size=7, quiet=True)
    torchrun(2, program, out)
    return one.scored(e, e), torch.load(out/"two.pt", weights_only=True)


def test_two_processes_write_the_shards_that_protocols_score(by_two):
    assert by_two[1]["wrote"] == [5, 5]


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("rank", [0, 1])
def test_protocols_of_two_processes_are_those_of_one(by_two, rank, where):
    "Scores of every process, draws too, over features of which each has embedded a half"
    want, found = by_two[0], by_two[1]["found"][rank][where]
    assert list(found) == list(want) and len({tuple(scores) for scores in want.values()}) > 5
    for name, scores in want.items():
        assert found[name] == pytest.approx(scores, rel=1e-5), name


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


def test_unknown_labels_are_counted_by_themselves(tmp_path):
    from reid_lab.retrieval.embeddings import Embeddings
    from reid_lab.retrieval.shards import write_shards
    e = Embeddings(np.eye(4, dtype="f4"), [0, -1, 5, 5], [-1, 0, -1, -1])
    assert "2 ids (1 row unknown), 1 cameras (3 rows unknown)" in repr(Shards(write_shards(e, tmp_path/"s", rows=2)))
