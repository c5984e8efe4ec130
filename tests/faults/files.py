"""Feature files and weight files: cut short, foreign, claiming too much, wrapped, not finite."""
import io
import json
import pickle
import zipfile

import numpy as np
import torch
from fault import bad, cli, clutter, interruption, killed, refused
from safetensors.torch import save_file
from torch import nn

from reid_lab.analysis.bias.audit import bias_report
from reid_lab.core.files import wrong_file
from reid_lab.data.loaders import pk_order
from reid_lab.models.clip_towers import load_clip
from reid_lab.models.weights.formats import read_weights
from reid_lab.models.weights.start import begin, load_network
from reid_lab.retrieval.embeddings import Embeddings

ARRAYS = dict(emb=np.eye(4, 3, dtype="f4") + .1, pid=np.arange(4), cam=np.array([0, 1, 0, 1]))


def _npz(change):
    "Load a `.npz` after `change(its path)`"
    def run(tmp):
        np.savez(tmp/"q.npz", **ARRAYS)
        change(tmp/"q.npz")
        Embeddings.load(tmp/"q.npz")
    return run


def _contents(data): return lambda path: path.write_bytes(data)
def _cut(n): return lambda path: path.write_bytes(path.read_bytes()[:n])


def _flip(mark, after):
    "Turn the bits of one byte, counted from the first `mark`"
    def change(path):
        data = bytearray(path.read_bytes())
        data[data.index(mark) + after] ^= 255
        path.write_bytes(data)
    return change


def _claims(shape):
    "An array whose header claims a shape that its bytes do not fill"
    def change(path):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, dict(descr="<f8", fortran_order=False, shape=shape))
        with zipfile.ZipFile(path, "w") as z: z.writestr("emb.npy", head.getvalue() + bytes(64))
    return change


def _claimed_size(path):
    "The directory of the archive claims 8 TB"
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2")
    data[at + 24:at + 28] = b"\xf0\xff\xff\xff"
    path.write_bytes(data)


def _objects(path): np.savez(path, emb=ARRAYS["emb"], pid=np.array(list("abcd"), object))
def _one_array(path): np.save(path.open("wb"), ARRAYS["emb"])


def _folder(write, name="table.json"):
    "Load a folder of features after `write(its table)`"
    def run(tmp):
        Embeddings(**ARRAYS).save(tmp/"f")
        if name != "table.json": (tmp/"f"/"table.json").unlink()
        write(tmp/"f"/name)
        Embeddings.load(tmp/"f")
    return run


def _safetensors(write):
    def run(tmp):
        Embeddings(**ARRAYS).save(tmp/"f.safetensors")
        write(tmp/"f.safetensors")
        Embeddings.load(tmp/"f.safetensors")
    return run


def _net(): return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))


def _weights(change, name="w.pth", state=None):
    "Load a network from a file after `change(its path)`"
    def run(tmp):
        if name.endswith("safetensors"): save_file(_net().state_dict(), tmp/name)
        else: torch.save(_net().state_dict() if state is None else state, tmp/name)
        change(tmp/name)
        load_network(_net(), tmp/name)
    return run


def _holds(state, name="w.pth"):
    "Load a network from a file that holds `state`"
    return _weights(lambda path: None, name, state)


class _Code:
    def __reduce__(self): return print, ("executed",)


def _tower(tmp):
    "The tower of a text model takes the weights of another program"
    from reid_lab.models.timm_towers import TimmTower
    torch.save({"model": {"backbone.a.weight": torch.ones(2)}}, tmp/"w.pth")
    TimmTower("resnet10t", weights=tmp/"w.pth")


def _jit(path):
    torch.jit.script(nn.Linear(3, 4)).save(str(path))


def _features_die(tmp):
    Embeddings(**ARRAYS).save(tmp/"q.npz")
    new = Embeddings(ARRAYS["emb"][:2], [7, 8])
    killed(lambda: new.save(tmp/"q.npz"), "reid_lab.core.files._sync")
    assert len(Embeddings.load(tmp/"q.npz")) == 4
    new.save(tmp/"q.npz")
    assert not clutter(tmp)
    return repr(Embeddings.load(tmp/"q.npz"))


def _report():
    rng = np.random.default_rng(0)
    e = Embeddings(rng.normal(size=(40, 8)).astype("f4"), rng.integers(0, 8, 40), rng.integers(0, 2, 40))
    return bias_report(e, map_method="none", quiet=True)


def _report_dies(tmp):
    report = _report()
    killed(lambda: report.save(tmp/"report"), "pathlib.Path.write_text", nth=2)
    assert not (tmp/"report").exists() and clutter(tmp)
    report.save(tmp/"report")
    assert not clutter(tmp) and (tmp/"report"/"report.html").exists()
    return (tmp/"report"/"report.md").read_text()


def _half_copied(tmp):
    "The folder of features has arrived without its labels' end"
    Embeddings(**ARRAYS, path=list("abcd")).save(tmp/"f")
    _cut(20)(tmp/"f"/"table.json")
    code, _, said = cli("bias", tmp/"f")
    assert code == 2 and said.count("\n") == 1
    return said


DAMAGED = ("q.npz is a damaged .npz file", "copy it again")
FAULTS = [
    bad("npz: cut short", "the last bytes are missing", _npz(_cut(-40)), *DAMAGED),
    bad("npz: cut to its head", "60 bytes are there", _npz(_cut(60)), *DAMAGED),
    bad("npz: a flipped byte", "a byte of the vectors differs", _npz(_flip(b"NUMPY", 130)), *DAMAGED),
    bad("npz: a flipped byte in the header", "the header of an array is damaged", _npz(_flip(b"descr", 2)), *DAMAGED),
    bad("npz: claims 8 TB", "a header claims a million times a million", _npz(_claims((10**6, 10**6))), *DAMAGED,
        "8,000,000,000,000 bytes", "holds 64"),
    bad("npz: claims a negative size", "a header with -1", _npz(_claims((-1, 8))), *DAMAGED),
    bad("npz: archive claims 4 GB", "the archive's directory claims more than it can hold", _npz(_claimed_size),
        *DAMAGED,
        "claims 4,294,967,280 bytes"),
    bad("npz: empty", "0 bytes", _npz(_contents(b"")), "q.npz' is empty (0 bytes); expected a .npz file"),
    bad("npz: web page", "HTML", _npz(_contents(b"<html>")), "is an HTML page; expected a .npz file"),
    bad("npz: pickle", "features pickled by another program", _npz(_contents(pickle.dumps([1, 2]))),
        "is a Python pickle; expected a .npz file", "numpy.savez(path, emb=..., pid=..., cam=...)"),
    bad("npz: gzip", "a compressed file", _npz(_contents(b"\x1f\x8b" + bytes(30))), "is a gzip archive", "numpy.savez"),
    bad("npz: one array", "numpy.save instead of numpy.savez", _npz(_one_array), "holds one array", "numpy.savez"),
    bad("npz: Python objects", "ids are an array of objects", _npz(_objects), "'pid' holds Python objects",
        "numpy.asarray(x, str)"),
    bad("npz: lengths differ", "fewer ids than vectors",
        _npz(lambda p: np.savez(p, emb=ARRAYS["emb"], pid=[1, 2])), "q.npz: pid has shape (2,)"),
    bad("npz: device", "reading would never end", lambda t: (t/"q.npz").symlink_to("/dev/zero") or
        Embeddings.load(t/"q.npz"), "is a pipe, socket or device", "expected a .npz file"),
    bad("features: broken table.json", "JSON that stops", _folder(_cut(9)), "table.json is damaged: no valid JSON",
        "restore it"),
    bad("features: empty table.json", "0 bytes", _folder(_contents(b"")), "table.json' is empty (0 bytes)",
        "labels of"),
    bad("features: table.json of another kind", "a number", _folder(_contents(b"3")),
        "table.json cannot be read as a table"),
    bad("features: table of another length", "two rows for four vectors",
        _folder(_contents(b"path\na\nb\n"), "table.csv"), "f: path has 2 entries"),
    bad("features: damaged table.csv", "no text", _folder(_contents(b"\xff\xfe\0\0"), "table.csv"),
        "table.csv cannot be read as a table"),
    bad("safetensors: torch file", "a .pth under the name .safetensors",
        _safetensors(lambda p: torch.save({"emb": torch.ones(2)}, p)), "is a torch file; expected a safetensors file",
        "name it .pt"),
    bad("safetensors: cut short", "half of the vectors", _safetensors(_cut(-30)),
        "f.safetensors is a damaged safetensors"),
    bad("safetensors: claims too much", "a header of 8 TB",
        _safetensors(_contents((100).to_bytes(8, "little") + json.dumps(
            dict(emb=dict(dtype="F64", shape=[10**6, 10**6], data_offsets=[0, 8*10**12]))).encode().ljust(100))),
        "f.safetensors is a damaged safetensors file"),
    bad("features on the command line: page", "one line, exit code 2",
        lambda t: (t/"q.npz").write_text("<html>") and refused("bias", t/"q.npz"),
        "is an HTML page; expected a .npz file"),
    bad("weights: missing", "no such file", lambda t: read_weights(t/"w.pth"), "does not exist; expected weights",
        error=FileNotFoundError),
    bad("weights: pretrained is no file", "a misspelt path", lambda t: begin("w.pht", (), "a net"),
        "weights='w.pht' is not a file", error=FileNotFoundError),
    bad("weights: empty", "0 bytes", _weights(_contents(b"")), "w.pth' is empty (0 bytes); expected weights"),
    bad("weights: web page", "HTML", _weights(_contents(b"<!doctype html>")), "is an HTML page; expected weights"),
    bad("weights: Git LFS pointer", "a pointer", _weights(_contents(b"version https://git-lfs.github.com/spec/v1")),
        "is a Git LFS pointer", "git lfs pull"),
    bad("weights: torch file as safetensors", "a .pth renamed", lambda t: (torch.save(_net().state_dict(), t/"w.pth"),
        (t/"w.pth").rename(t/"w.safetensors"), read_weights(t/"w.safetensors")),
        "is a torch file; expected a safetensors file", "name it .pt"),
    bad("weights: safetensors as torch file", "renamed the other way", lambda t: (save_file(_net().state_dict(),
        t/"w.pth"),
        read_weights(t/"w.pth")), "is a safetensors file", "name it .safetensors"),
    bad("weights: torch file cut short", "half of it", _weights(_cut(900)), "w.pth' is damaged",
        "copy or download it again"),
    bad("weights: safetensors cut short", "half of it", _weights(_cut(-20), "w.safetensors"),
        "w.safetensors' is damaged"),
    bad("weights: zip archive", "an archive of weights", _weights(_contents(b"PK\3\4" + bytes(50))), "is a zip archive",
        "unpack it"),
    bad("weights: Python objects", "a pickled model", _holds({"model": _Code()}), "Python objects besides tensors",
        "which are not loaded", "model.state_dict()"),
    bad("weights: TorchScript", "a program with other tensors; it is not run", _weights(_jit), "0 of 6 tensors match",
        "same architecture"),
    bad("weights: no tensors", "settings only", _holds({"epoch": 3, "args": {"lr": 1.}}), "holds no named tensors",
        "'epoch'"),
    bad("weights: a list", "tensors without names", _holds([torch.ones(2)]), "holds no named tensors (list)"),
    bad("weights: NaN", "training had diverged", _holds({**_net().state_dict(), "0.bias": torch.full((4,), torch.nan)}),
        "NaN or infinite values in 1 of 7 tensors (first '0.bias')"),
    bad("weights: infinite", "a half overflowed", _holds({**_net().state_dict(), "0.bias": torch.full((4,),
        torch.inf)}),
        "NaN or infinite values", "take another one"),
    bad("weights: another network", "no name is known", _holds({"a.w": torch.ones(2)}), "0 of 6 tensors match",
        "pass weights of the same architecture"),
    bad("weights: another width", "names agree, shapes do not", _holds(nn.Sequential(nn.Linear(3, 5)).state_dict()),
        "of another shape (first 0.weight (5, 3) instead of (4, 3))"),
    bad("weights: a larger network", "a third layer is left over",
        _holds({**_net().state_dict(), "2.weight": torch.ones(1)}), "1 left over (first ['2.weight'])"),
    bad("weights: half a network", "BatchNorm is missing", _holds(nn.Sequential(nn.Linear(3, 4)).state_dict()),
        "2 of 6 tensors match", "4 missing"),
    bad("weights: two networks", "teacher and student",
        _holds({f"{p}.{k}": v for p in ("student", "teacher") for k, v in _net().state_dict().items()}),
        "2 networks of this architecture", "prefix='student.'"),
    bad("weights: foreign file for a tower", "TimmTower does not keep random weights", _tower,
        "cannot be loaded into ResNet: 0 of"),
    bad("weights: foreign file for CLIP", "a page", lambda t: (t/"c.pt").write_text("<html>") and
        load_clip(_net(), t/"c.pt"), "is an HTML page"),
    bad("file kind: unknown", "wrong_file with a kind of one's own", lambda t: wrong_file(t/"x", "an image",
        kind="odd"),
        "kind='odd' is not known"),
    bad("batches: too few identities", "16 of 4", lambda t: pk_order([0, 1, 2, 3], 64, np.random.default_rng(0)),
        "a batch of 16 identities does not fit"),
    bad("batches: size 0", "no sample a batch", lambda t: pk_order([0, 1, 2, 3], 0, np.random.default_rng(0)),
        "batch_size=0 must be a multiple of k=4"),
    interruption("features: killed while saved", "a file is being replaced", "the old one is whole", _features_die,
                 "2 x 3, 2 ids"),
    interruption("bias report: killed while saved", "a folder is being written", "nothing is under the name; a second "
                 "saving works", _report_dies, "Camera bias"),
    interruption("features: copy stopped half-way", "the labels were cut", "one line names the file", _half_copied,
                 "table.json is damaged"),
]
