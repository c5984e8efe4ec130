"""Features written in parts: two writers, changed images, damaged parts, full disks, folders of others, wrong plans."""
import contextlib
import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from fault import bad, cli, clutter, cut, flip, interruption, killed, refused, warned
from PIL import Image

from reid_lab.core.files import atomic_path, locked
from reid_lab.core.weight_files import save_weights
from reid_lab.data.crops import crops_table
from reid_lab.recipes import crops
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.index import Index, build_index
from reid_lab.retrieval.parts import Parts, naming_memory
from reid_lab.retrieval.shards import Shards, write_shards

N = 12


def _folder(tmp):
    "Twelve crops"
    (tmp/"im").mkdir()
    for i in range(N):
        pixels = np.random.default_rng(i).integers(0, 255, (32, 16, 3), "u1")
        Image.fromarray(pixels).save(tmp/"im"/f"{i:02d}.png")
    return tmp/"im"


def _embed(tmp, *more, out="f.npz", source="im"):
    "`reid_lab embed`, which must be refused"
    return refused("embed", tmp/source, "--model", "bot_tiny", "--out", tmp/out, *more)


def _call(tmp, out="f.npz", **kw):
    "Features of the folder, a part a batch of four"
    with patch.object(crops, "SAVE_EVERY", 0):
        return crops.embed_crops(crops_table(tmp/"im"), "bot_tiny", tmp/out, batch_size=4, quiet=True, **kw)


def _shards(tmp, out="s", **kw): return crops.crops_to_shards(crops_table(tmp/"im"), "bot_tiny", tmp/out, rows=4, **kw)


def _begun(tmp, out="f.npz", **kw):
    "A call that dies when it begins its third part"
    _folder(tmp)
    killed(lambda: _call(tmp, out, **kw), "reid_lab.retrieval.parts.Parts.write", nth=3)
    return tmp/f"{out}.parts"


def _features(n=N, dim=8): return Embeddings(np.random.default_rng(0).normal(size=(n, dim)).astype("f4"), np.arange(n))


def _rewrite(path, **change):
    "Other entries of a plan; None removes one"
    plan = json.loads(path.read_text()) | change
    path.write_text(json.dumps({k: v for k, v in plan.items() if v is not None}))


def _replace(path, same_time=False, same_size=False):
    "Another picture of the same name"
    before, size = path.stat(), path.stat().st_size
    Image.new("RGB", (16, 32), (9, 200, 9)).save(path)
    if same_size: path.write_bytes(path.read_bytes().ljust(size, b"\0"))
    if same_time: os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# --- bad inputs: before the work --------------------------------------------------------------------------------------

def _foreign(tmp, name, *more, plan=None, out="f.npz"):
    "A folder of the user's own has the name of the parts; it must stay"
    _folder(tmp)
    (tmp/name).mkdir()
    (tmp/name/"mine.txt").write_text("x")
    if plan is not None: (tmp/name/"plan.json").write_text(json.dumps(plan))
    try: _embed(tmp, *more, out=out)
    finally: assert (tmp/name/"mine.txt").exists() and not (tmp/"f.npz").exists()


def _foreign_among_shards(tmp):
    _folder(tmp)
    _shards(tmp)
    (tmp/"s"/"mine.txt").write_text("x")
    try: _shards(tmp, fresh=True)
    finally: assert len(Shards(tmp/"s")) == N


def _file_beside(tmp, *more, out="q.npz/x"):
    _features().save(tmp/"q.npz")
    _embed(tmp, *more, out=out)


def _plan(command, **change):
    "A command on shards whose plan was changed"
    def run(tmp):
        _features().save(tmp/"q.npz")
        write_shards(_features(), tmp/"s", rows=4)
        _rewrite(tmp/"s"/"plan.json", **change)
        words = dict(metrics=("metrics", tmp/"q.npz", tmp/"s"), match=("match", tmp/"q.npz", tmp/"s"),
                     search=("search", tmp/"s", "a man"), bias=("bias", tmp/"s"))
        refused(*words[command])
    return run


# --- bad inputs: changed images, two writers, memory -----------------------------------------------------------------

def _changed_shards(tmp, **how):
    _folder(tmp)
    _shards(tmp)
    _replace(tmp/"im"/"03.png")
    _shards(tmp, **how)


def _changed_parts(tmp):
    _begun(tmp)
    _replace(tmp/"im"/"03.png")
    _call(tmp)


def _changed_content(tmp):
    "Size and time are as before, which only a look at the content finds"
    _folder(tmp)
    _shards(tmp, check_content=True)
    _replace(tmp/"im"/"03.png", same_time=True, same_size=True)
    _shards(tmp)                                                                # by size and time: nothing is noticed
    _shards(tmp, check_content=True)


def _content_unknown(tmp):
    _begun(tmp)
    _call(tmp, check_content=True)


def _changed_meanwhile(tmp):
    "An image is replaced while others are embedded"
    _folder(tmp)
    real = Parts.write
    def write(self, lo, hi, *rest):
        if lo == 8: _replace(tmp/"im"/"03.png")
        real(self, lo, hi, *rest)
    try:
        with patch.object(Parts, "write", write): _call(tmp)
    finally: assert not (tmp/"f.npz").exists()


def _second(call):
    "A call while another process writes"
    def run(tmp):
        _folder(tmp)
        name = ".s.0.lock" if call is _shards else ".f.npz.lock"
        with locked(tmp/name):
            try: call(tmp)
            except RuntimeError as e: raise RuntimeError(str(e).replace(str(os.getpid()), "FIRST")) from None
    return run


def _captions(tmp):
    frame = pd.DataFrame([dict(path=f"{i:02d}.png", caption=f"a man with bag {i}") for i in range(N)])
    frame.to_csv(tmp/"im"/"m.csv", index=False)
    with patch.object(crops, "SAVE_EVERY", 0):
        return crops.embed_captions(crops_table(tmp/"im"/"m.csv"), "clip_tiny", tmp/"f.npz", batch_size=4, quiet=True)


def _listed(tmp, what, **columns):
    "Features of a manifest with these columns"
    frame = pd.DataFrame(dict(path=[f"{i:02d}.png" for i in range(N)], caption="a man", **columns))
    frame.to_csv(tmp/"im"/"m.csv", index=False)
    table = crops_table(tmp/"im"/"m.csv")
    if what == "shards": return crops.crops_to_shards(table, "bot_tiny", tmp/"s", rows=4)
    with patch.object(crops, "SAVE_EVERY", 0):
        if what == "captions":
            return crops.embed_captions(table, "clip_tiny", tmp/"f.npz", batch_size=4, quiet=True)
        return crops.embed_crops(table, "bot_tiny", tmp/"f.npz", batch_size=4, quiet=True)


def _dies_at_its_third(tmp, what, **columns):
    _folder(tmp)
    write = "shards.ShardWriter.write" if what == "shards" else "parts.Parts.write"
    killed(lambda: _listed(tmp, what, **columns), f"reid_lab.retrieval.{write}", nth=3)


def _relabelled(what, before, after):
    "Labels change between two calls, and neither paths nor ids"
    def run(tmp):
        _dies_at_its_third(tmp, what, **before)
        try: _listed(tmp, what, **after)
        finally: assert not (tmp/"f.npz").exists() and not (tmp/"s"/"000002").exists()
    return run


def _same_labels(what, earlier=False):
    "The same labels again, also where an earlier version has begun, whose plan does not hold them"
    def check(tmp):
        columns = dict(pid=["ann", "bob"]*6, note=[*"abcdefghijkl"])
        _dies_at_its_third(tmp, what, **columns)
        plan = tmp/("s" if what == "shards" else "f.npz.parts")/"plan.json"
        if earlier:
            there = json.loads(plan.read_text())
            assert there.pop("columns", None) or there["meta"].pop("columns")
            plan.write_text(json.dumps(there))
        found = _listed(tmp, what, **columns)
        assert list(found.table().pid_name) == columns["pid"]
        return f"{len(found)} rows"
    return check


def _no_memory(tmp):
    def full(*args, **kw): raise RuntimeError("CUDA out of memory. Tried to allocate 9 GiB")
    _folder(tmp)
    with patch("reid_lab.retrieval.parts.embed_images", full): _embed(tmp)


def _no_memory_for_all(tmp):
    _folder(tmp)
    with patch.object(crops, "free_memory", lambda: 100): _embed(tmp)


def _array_too_large(tmp):
    with naming_memory(64): raise MemoryError("Unable to allocate 9 GiB")


# --- bad inputs: bytes that have changed -----------------------------------------------------------------------------

def _flipped(name, file=""):
    def run(tmp):
        place = Embeddings(np.eye(4, 3, dtype="f4"), range(4), path=list("abcd"), meta=dict(data="x")).save(tmp/name)
        file_ = place/file if file else place
        if file == "table.json": file_.write_text(file_.read_text().replace('"a"', '"b"'))
        else: flip(file_)
        Embeddings.load(tmp/name)
    return run


# --- interruptions ---------------------------------------------------------------------------------------------------

def _embedded_again(tmp):
    "Rows that a continued call embeds"
    from reid_lab.retrieval import parts
    seen, real = [], parts.embed_images
    def embed(net, table, *args, **kw):
        seen.extend(table["path"])
        return real(net, table, *args, **kw)
    with patch.object(parts, "embed_images", embed), warned() as said: e = _call(tmp)
    want = _call(tmp, "whole.npz")
    assert e.path == want.path and torch.allclose(e.emb, want.emb, atol=1e-6)
    assert not clutter(tmp) and sorted(p.name for p in tmp.iterdir()) == ["f.npz", "im", "whole.npz"]
    return len(seen), " ".join(said)


def _killed(tmp):
    _begun(tmp)
    n, _ = _embedded_again(tmp)
    return f"{n} rows"


def _damaged(change, name="features.safetensors"):
    def run(tmp):
        change(_begun(tmp)/"0-4"/name)
        n, said = _embedded_again(tmp)
        return f"{n} rows {said}"
    return run


def _gone(tmp):
    shutil.rmtree(_begun(tmp)/"0-4")
    n, _ = _embedded_again(tmp)
    return f"{n} rows"


def _overlapping(tmp):
    "What a second writer on a disk without locks left"
    folder = _begun(tmp)
    shutil.copytree(folder/"4-8", folder/"3-7")
    n, _ = _embedded_again(tmp)
    return f"{n} rows"


def _fresh_goes_on(tmp):
    _folder(tmp)
    _call(tmp)
    killed(lambda: _call(tmp, fresh=True), "reid_lab.retrieval.parts.Parts.write", nth=3)
    assert len(Embeddings.load(tmp/"f.npz", need=())) == N                      # the old features, until all are there
    written, real = [], Parts.write
    def write(self, lo, hi, *rest):
        written.append((lo, hi))
        real(self, lo, hi, *rest)
    with patch.object(Parts, "write", write): _call(tmp, fresh=True)
    return str(written)


def _captions_killed(tmp):
    _folder(tmp)
    killed(lambda: _captions(tmp), "reid_lab.retrieval.parts.Parts.write", nth=3)
    assert Parts(tmp/"f.npz.parts", N).missing() == [(8, N)]
    return f"{len(_captions(tmp))} captions"


def _two_calls(tmp):
    "A second process while the first writes, then the first is killed and its lock taken over"
    _folder(tmp)
    code = ("import sys, time\nfrom reid_lab.recipes import crops\nfrom reid_lab.retrieval import parts\n"
            "from reid_lab.data.crops import crops_table\nreal = parts.Parts.write\n"
            "def write(*args): real(*args); print('written', flush=True); time.sleep(60)\n"
            "parts.Parts.write, crops.SAVE_EVERY = write, 0\n"
            "crops.embed_crops(crops_table(sys.argv[1]), 'bot_tiny', sys.argv[2], batch_size=4, quiet=True)")
    first = subprocess.Popen([sys.executable, "-c", code, str(tmp/"im"), str(tmp/"f.npz")], stdout=subprocess.PIPE,
                             text=True)
    try:
        assert first.stdout.readline().strip() == "written"
        status, _, said = cli("embed", tmp/"im", "--model", "bot_tiny", "--out", tmp/"f.npz")
        assert status == 1 and said.count("\n") == 1 and not (tmp/"f.npz").exists()
    finally:
        first.kill()
        first.wait()
        first.stdout.close()
    n, _ = _embedded_again(tmp)
    return f"{said.replace(str(first.pid), 'FIRST')} {n} rows"


def _shard_killed(at, nth=2, after=False):
    def run(tmp):
        _folder(tmp)
        killed(lambda: _shards(tmp), at, nth=nth, after=after)
        with contextlib.suppress(ValueError): Shards(tmp/"s")
        e = _shards(tmp)
        assert torch.equal(e.read(), _shards(tmp, "whole").read()) and not clutter(tmp)
        return f"{len(e)} rows, {e.failed()}"
    return run


def _shard_damaged(change, name="emb.npy"):
    def run(tmp):
        _folder(tmp)
        before = _shards(tmp).read()
        change(tmp/"s"/"000001"/name)
        with warned() as said: after = _shards(tmp)
        assert torch.equal(after.read(), before) and after.failed() == {}
        return " ".join(said)
    return run


def _fresh_shards_killed(tmp):
    "An interrupted `fresh` goes on, and the next one begins anew"
    _folder(tmp)
    _shards(tmp)
    _replace(tmp/"im"/"03.png")
    killed(lambda: _shards(tmp, fresh=True), "reid_lab.retrieval.shards.ShardWriter.write", nth=3)
    first = (tmp/"s"/"000000"/"emb.npy").stat().st_mtime_ns
    e = _shards(tmp, fresh=True)
    assert (tmp/"s"/"000000"/"emb.npy").stat().st_mtime_ns == first
    _shards(tmp, fresh=True)
    assert (tmp/"s"/"000000"/"emb.npy").stat().st_mtime_ns != first
    return f"{len(e)} rows"


def _bad_images_in_shards(tmp):
    _folder(tmp)
    for i in (0, 1, 2, 3, 6): (tmp/"im"/f"{i:02d}.png").write_bytes(b"no image")
    table = crops_table(tmp/"im", images="none")
    e = crops.crops_to_shards(table, "bot_tiny", tmp/"s", rows=4, skip_bad=True, batch_size=2)
    assert len(e) == len(e.load()) == N - 5 and "06.png" not in e.path and str(tmp) not in str(e.meta["left_out"])
    return f"{len(e.meta['left_out'])} left out"


# a reader beside a writer

def _half_written(tmp):
    _folder(tmp)
    killed(lambda: _shards(tmp), "reid_lab.retrieval.shards.ShardWriter.write", nth=3)
    assert len(Shards(tmp/"s", partial=True)) == 8
    return cli("search", tmp/"s", "--image", tmp/"im"/"00.png")[2]


def _removed_while_open(tmp):
    g = Shards(write_shards(_features(), tmp/"s", rows=4))
    shutil.rmtree(tmp/"s"/"000002")
    assert g.read(0, 8).shape == (8, 8)
    try: g.read()
    except ValueError as e: return str(e)


def _replaced_while_read(tmp):
    "A reader has the file open while it is replaced: it reads the old one to its end"
    old = _features()
    old.save(tmp/"f.npz")
    with np.load(tmp/"f.npz") as z:
        Embeddings(-old.emb, old.pid).save(tmp/"f.npz")
        assert np.array_equal(z["emb"], old.numpy())
    return repr(Embeddings.load(tmp/"f.npz"))


# the index

def _gallery(tmp, seed=0):
    x = np.random.default_rng(seed).normal(size=(200, 8)).astype("f4")
    return Shards(write_shards(Embeddings(x, np.arange(200)), tmp/f"s{seed}", rows=50))


def _index_killed(tmp):
    g = _gallery(tmp)
    build_index(g, lists=2).save(tmp/"ix")
    killed(lambda: build_index(g, lists=4).save(tmp/"ix"), "reid_lab.core.files._sync")
    assert Index.load(tmp/"ix", g).n_lists == 2
    build_index(g, lists=4).save(tmp/"ix")
    assert not clutter(tmp)
    return f"{Index.load(tmp/'ix', g).n_lists} lists"


def _index_cut(tmp):
    g = _gallery(tmp)
    build_index(g, lists=2).save(tmp/"ix")
    cut(tmp/"ix"/"lists.faiss")
    try: Index.load(tmp/"ix", g)
    except ValueError as e: said = str(e)
    build_index(g, lists=2).save(tmp/"ix")
    assert len(Index.load(tmp/"ix", g)) == 200
    return said


def _index_of_old_gallery(tmp):
    "The gallery was written anew since the index was built"
    g = _gallery(tmp)
    build_index(g, lists=2).save(tmp/"ix")
    x = np.random.default_rng(7).normal(size=(200, 8)).astype("f4")
    new = Shards(write_shards(Embeddings(x, np.arange(200)), tmp/"s0", rows=50, fresh=True))
    try: Index.load(tmp/"ix", new)
    except ValueError as e: return str(e)


# full disks

@contextlib.contextmanager
def _files_up_to(size):
    "The system refuses larger files, as a full disk does"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try: yield
    finally: resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def _full(write, name):
    "A writer finds no room, says so in one line and leaves nothing; then it has room"
    def run(tmp):
        e = Embeddings(np.random.default_rng(0).normal(size=(500, 32)).astype("f4"), np.arange(500))
        try:
            with _files_up_to(4000): write(e, tmp)
        except OSError as error: said = str(error)
        assert "\n" not in said and not clutter(tmp) and not (tmp/name).exists(), os.listdir(tmp)
        write(e, tmp)
        assert (tmp/name).exists()
        return said
    return run


def _weights(e, tmp): save_weights(torch.nn.Linear(60, 60), tmp/"w.safetensors")


def _state(e, tmp):
    with atomic_path(tmp/"step-4") as new:
        new.mkdir()
        torch.save(torch.nn.Linear(60, 60).state_dict(), new/"state.pt")


def _page(e, tmp):
    with atomic_path(tmp/"page.html") as new: new.write_text("x"*9999)


def _full_disk_of_embed(tmp):
    "The disk is full when the second part is written; one line, and the same call goes on"
    from safetensors import SafetensorError
    _folder(tmp)
    real, calls = Embeddings.save, []
    def save(self, path):
        calls.append(path)
        if len(calls) != 2: return real(self, path)
        with atomic_path(path): raise SafetensorError("I/O error: No space left on device (os error 28)")
    call = ("embed", tmp/"im", "--model", "bot_tiny", "--out", tmp/"f.npz", "--batch-size", 4)
    with patch.object(crops, "SAVE_EVERY", 0), patch.object(Embeddings, "save", save): status, _, said = cli(*call)
    assert status == 2 and said.count("\n") == 1 and not clutter(tmp)
    assert Parts(tmp/"f.npz.parts", N).spans() == [(0, 4)]
    assert cli(*call)[0] == 0 and len(Embeddings.load(tmp/"f.npz", need=())) == N
    return said


def _full_disk_and_locks(tmp):
    "A lock can be held without room for the number of its holder"
    def full(*args): raise OSError(errno.ENOSPC, "No space left on device")
    with patch("os.ftruncate", full), locked(tmp/"lock"):
        try:
            with locked(tmp/"lock", wait=False): pass
        except RuntimeError as e: return str(e)


OWN = dict(model="bot_tiny", weights="1", n=N, images="x")
SAYS = "which reid_lab did not write"
NO_ROOM = ("(ulimit -f)", "nothing of it stays", "the same call goes on")
FAULTS = [
    bad("embed: --out x.csv", "another ending; nothing is read before", lambda t: _embed(t, out="x.csv", source="none"),
        "--out", "x.csv", "`.safetensors` or `.npz`"),
    bad("embed: --out x.pt", "likewise", lambda t: _embed(t, out="x.pt", source="none"), "--out", "x.pt"),
    bad("embed: --out q.npz/x", "below a file", _file_beside, "q.npz", "is a file, and no folder"),
    bad("embed: --out q.npz/x/y", "further below", lambda t: _file_beside(t, out="q.npz/x/y"), "is a file"),
    bad("embed: --shards --out q.npz/x", "shards below a file", lambda t: _file_beside(t, "--shards"), "is a file"),
    bad("embed: --shards --out q.npz", "shards in place of a file", lambda t: _file_beside(t, "--shards", out="q.npz"),
        "is a file, and shards are a folder"),
    bad("embed: unknown model", "nothing is read before", lambda t: refused("embed", t/"none", "--model", "bot_tine",
        "--out", t/"f"), "--model bot_tine", "Did you mean 'bot_tiny'"),
    bad("embed: model without captions", "nothing is read before", lambda t: refused("embed", t/"none", "--captions",
        "--model", "bot_tiny", "--out", t/"f"), "reads no captions"),
    bad("embed: captions and skip-bad", "an option that would do nothing",
        lambda t: _embed(t, "--captions", "--skip-bad"), "--captions goes without --skip-bad"),
    bad("embed: parts of others", "a folder OUT.parts of the user's", lambda t: _foreign(t, "f.npz.parts"),
        "holds ['mine.txt']", "move it away"),
    bad("embed: parts of others, --fresh", "likewise, to be replaced", lambda t: _foreign(t, "f.npz.parts", "--fresh"),
        "['mine.txt']", SAYS, "nothing was removed"),
    bad("embed: own file among parts, --fresh", "a file of the user's among our parts",
        lambda t: _foreign(t, "f.npz.parts", "--fresh", plan=OWN), "['mine.txt']", SAYS),
    bad("embed: plan of others, --fresh", "another program's plan.json",
        lambda t: _foreign(t, "f.npz.parts", "--fresh", plan=dict(steps=3)), "'mine.txt'", SAYS),
    bad("embed: folder of others for shards, --fresh", "`--shards --fresh --out own`",
        lambda t: _foreign(t, "s", "--shards", "--fresh", out="s"), "['mine.txt']", SAYS),
    bad("shards: own file among them, fresh", "a file of the user's among our shards", _foreign_among_shards,
        "['mine.txt']", SAYS, error=FileExistsError),
    bad("shards: a plan of 10^12 rows, metrics", "n is wrong", _plan("metrics", n=10**12),
        "holds 3 of 250,000,000,000"),
    bad("shards: a plan of 10^12 rows, match", "n is wrong", _plan("match", n=10**12),
        "holds 3 of 250,000,000,000"),
    bad("shards: a plan of 10^12 rows, search", "n is wrong", _plan("search", n=10**12),
        "holds 3 of 250,000,000,000"),
    bad("shards: a plan of -1 rows", "n is negative", _plan("metrics", n=-1), "n is -1", "restore it"),
    bad("shards: a plan of text", "n is text", _plan("metrics", n="12"), "n is '12'"),
    bad("shards: a plan of a fraction", "rows is 4.5", _plan("match", rows=4.5), "rows is 4.5"),
    bad("shards: a plan without rows", "rows is missing", _plan("bias", rows=None), "rows is None"),
    bad("shards: a plan of too few rows", "n is 9", _plan("metrics", n=9), "says 1 rows"),
    bad("shards: a plan of long vectors", "dim is 10^12", _plan("metrics", dim=10**12), "1,000,000,000,000 numbers"),
    bad("shards: a plan without a type", "dtype is int8", _plan("search", dtype="int8"), "lacks dtype"),
    bad("shards: an image was replaced", "another picture, size and time", _changed_shards, "other images",
        "fresh=True", error=FileExistsError),
    bad("embed: an image was replaced", "between two parts of a call", _changed_parts, "other images", "fresh=True",
        error=FileExistsError),
    bad("shards: content replaced", "size and time are as before", _changed_content, "other content",
        error=FileExistsError),
    bad("embed: content is not known", "begun without check_content", _content_unknown,
        "begun without check_content=True", error=FileExistsError),
    bad("embed: an image is replaced meanwhile", "while others are embedded", _changed_meanwhile,
        "images changed while", "fresh=True"),
    bad("embed: a second call", "another process writes the file", _second(_call), "in use by process FIRST",
        error=RuntimeError),
    bad("embed: a second call, shards", "another process writes the shards", _second(_shards),
        "in use by process FIRST", error=RuntimeError),
    bad("embed: a second call, captions", "another process writes the file", _second(_captions),
        "in use by process FIRST", error=RuntimeError),
    bad("embed: a GPU without memory", "a batch is too large", _no_memory, "--batch-size 64", "give a smaller"),
    bad("embed: features larger than memory", "100 bytes are free", _no_memory_for_all, "write shards", "--shards"),
    bad("embed: an array too large", "NumPy has no memory", _array_too_large, "batch_size=64", error=RuntimeError),
    bad("safetensors: a flipped bit", "of the labels in it", _flipped("f.safetensors"),
        "checksum in its header differs"),
    bad("features: a flipped bit", "of the vectors in a folder", _flipped("f", "emb.safetensors"), "emb.safetensors",
        "checksum in its header differs"),
    bad("features: another table.json", "a path was edited", _flipped("f", "table.json"), "is not what was written",
        "table.csv"),
    bad("npz: a flipped bit", "near the end", _flipped("f.npz"), "f.npz"),
    *[bad(f"embed: other names, {what}", "ids and paths are the same",
          _relabelled(what, dict(pid=["ann", "bob"]*6), dict(pid=["cat", "dog"]*6)), "with other columns",
          error=FileExistsError) for what in ("images", "shards", "captions")],
    *[bad(f"embed: another column, {what}", "its values changed", _relabelled(what, dict(note="old"), dict(note="new")),
          "with other columns", error=FileExistsError) for what in ("images", "shards")],
    bad("embed: a column that is gone", "it was there before", _relabelled("images", dict(note="old"), {}),
        "with other columns", error=FileExistsError),
    bad("embed: a column that is new", "it was not there before", _relabelled("shards", {}, dict(note="new")),
        "with other columns", error=FileExistsError),
    bad("embed: another site", "a column of the table", _relabelled("images", dict(site="1"), dict(site="2")),
        "with other columns", error=FileExistsError),
    *[interruption(f"embed: the same labels{', begun by an earlier version' if old else ''}, {what}",
                   "a call dies at its third part", "it goes on", _same_labels(what, old), "12 rows")
      for what in ("images", "shards", "captions") for old in (False, True)],
    interruption("embed: killed", "a call dies at its third part", "its other parts are not embedded again", _killed,
                 "4 rows"),
    interruption("embed: a part cut short", "half of its features are gone", "it is embedded again and said",
                 _damaged(cut), "8 rows", "part 0-4", "bytes instead of", "embedded again"),
    interruption("embed: a flipped bit in a part", "one bit of its features", "it is embedded again and said",
                 _damaged(flip), "8 rows", "other contents than were written"),
    interruption("embed: a damaged list in a part", "what was left out is cut", "it is embedded again and said",
                 _damaged(cut, "bad.json"), "8 rows", "bad.json"),
    interruption("embed: a part is gone", "the first of two", "its rows are embedded", _gone, "8 rows"),
    interruption("embed: parts that overlap", "two writers without locks", "each row is there once", _overlapping,
                 "rows"),
    interruption("embed: --fresh killed", "a replacement dies", "the old features stay, the next call goes on",
                 _fresh_goes_on, "[(8, 12)]"),
    interruption("embed: captions killed", "a call dies at its third part", "it goes on", _captions_killed,
                 "12 captions"),
    interruption("embed: two calls, the first killed", "two processes with one --out", "the second is refused with the "
                 "number of the first; a later one takes over and all rows are there", _two_calls,
                 "in use by process FIRST", "8 rows"),
    interruption("embed: the disk is full", "no room for the second part", "one line; the same call goes on",
                 _full_disk_of_embed, "No space left on the disk at", "the same call goes on"),
    interruption("lock: the disk is full", "no room for its holder's number", "it is held", _full_disk_and_locks,
                 "in use by process"),
    interruption("shards: killed in a shard", "its checksums are not written", "it is written again",
                 _shard_killed("reid_lab.retrieval.shards.write_sums"), "12 rows, {}"),
    interruption("shards: killed before a shard has its name", "everything is written", "it is written again",
                 _shard_killed("reid_lab.core.files._install"), "12 rows, {}"),
    interruption("shards: killed between two", "a shard is complete", "the others are written",
                 _shard_killed("reid_lab.retrieval.shards.ShardWriter.write", 1, True), "12 rows, {}"),
    interruption("shards: one cut short", "half of its vectors are gone", "it is written again and said",
                 _shard_damaged(cut), "000001 is damaged", "written again"),
    interruption("shards: a flipped bit", "in the vectors", "it is written again and said", _shard_damaged(flip),
                 "000001 is damaged", "other contents"),
    interruption("shards: a flipped bit in labels", "in the table", "it is written again and said",
                 _shard_damaged(flip, "table.parquet"), "table.parquet"),
    interruption("shards: checksums are gone", "sums.json was not copied", "it is written again and said",
                 _shard_damaged(Path.unlink, "sums.json"), "has no checksum"),
    interruption("shards: --fresh killed", "a replacement dies", "it goes on, the next begins anew",
                 _fresh_shards_killed, "12 rows"),
    interruption("shards: bad images", "one shard has none that can be read", "they are left out and counted",
                 _bad_images_in_shards, "5 left out"),
    interruption("shards: read while they are written", "two of three are there", "one line; partial=True reads them",
                 _half_written, "holds 2 of 3 shards"),
    interruption("shards: removed while they are open", "another process replaces them", "an error says so",
                 _removed_while_open, "was removed since the shards were opened"),
    interruption("features: replaced while they are read", "a reader has the file open", "it reads the old one",
                 _replaced_while_read, "12 x 8"),
    interruption("index: killed while it is replaced", "everything is written", "the old one is whole", _index_killed,
                 "4 lists"),
    interruption("index: cut short", "half of its lists are gone", "an error says so", _index_cut, "is damaged",
                 "build the index again"),
    interruption("index: its gallery was written anew", "vectors are others", "it is refused", _index_of_old_gallery,
                 "index of another gallery"),
    *[interruption(f"full disk: {name}", "the file is larger than there is room", "one line, nothing half-written",
                   _full(write, name), *NO_ROOM) for name, write in {
        "f.safetensors": lambda e, t: e.save(t/"f.safetensors"), "f": lambda e, t: e.save(t/"f"),
        "f.npz": lambda e, t: e.save(t/"f.npz"), "w.safetensors": _weights, "step-4": _state, "page.html": _page,
        "s/000000": lambda e, t: write_shards(e, t/"s")}.items()],
]
