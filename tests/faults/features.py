"""Features and labels that a user brings."""
import numpy as np
import pandas as pd
import torch
from fault import bad, interruption, killed

from reid_lab.retrieval.embeddings import Embeddings, embed_images, embed_texts


def _features(n=4, **labels):
    return Embeddings(np.eye(n, 3, dtype="f4") + .1, labels.pop("pid", np.arange(n)), **labels)


class _Model(torch.nn.Module):
    size = (4, 2)

    def encode_image(self, img): raise AssertionError("the labels are looked at before the work")

    def encode_text(self, tokens): raise AssertionError("the labels are looked at before the work")


class _Table:
    "What `embed_images` needs of a table"
    name = "t"

    def __init__(self, **columns): self.frame = pd.DataFrame(dict(pid=[0, 1], cam=[0, 1], path=["a", "b"]) | columns,
                                                           dtype=object) # pyarrow's strings refuse lone surrogates


def _no_half_state(tmp):
    "A process dies while it joins parts: the parts, written before, are whole"
    parts = [_features().with_emb(torch.eye(4)), _features().with_emb(2*torch.eye(4))]
    for i, p in enumerate(parts): p.save(tmp/f"{i}.npz")
    killed(lambda: Embeddings.concat(parts).save(tmp/"all.npz"), "numpy.savez", after=True)
    assert not (tmp/"all.npz").exists()
    Embeddings.concat([Embeddings.load(tmp/f"{i}.npz") for i in range(2)]).save(tmp/"all.npz")
    assert len(Embeddings.load(tmp/"all.npz")) == 8
    assert sorted(p.name for p in tmp.iterdir()) == ["0.npz", "1.npz", "all.npz"]
    return "joined again"


def _sheet(tmp):
    "Features as another program may write them: a line an image, its numbers behind its labels"
    path = tmp/"query.csv"
    path.write_text("pid,cam,f0,f1\n1,0,.5,.25\n2,1,.25,1\n")
    return path


FAULTS = [
    bad("features: a sheet", "a .csv with a row an image", lambda tmp: Embeddings.load(_sheet(tmp)),
        "is a table of text", "t = pandas.read_csv('query.csv'", "numpy.savez('query.npz', pid=t.pid"),
    bad("features: string ids", "pid holds names", lambda tmp: _features(pid=np.array(list("abcd"))),
        "pid has dtype", "pandas.factorize", error=TypeError),
    bad("features: one row is NaN", "emb[1] is NaN", lambda tmp: Embeddings(np.array([[1., 2], [np.nan, 1]]), [0, 1]),
        "NaN or infinite", "row 1"),
    bad("features: uint64 ids", "pid is -1 read as uint64", lambda tmp: _features(pid=np.array([0, 1, 2, 2**64 - 1],
        "u8")),
        "pid[3] is 18446744073709551615", "64 bits with a sign cannot hold it", "pandas.factorize"),
    bad("features: ids beyond 64 bits", "pid is 2^70", lambda tmp: _features(pid=[0, 1, 2, 2**70]),
        "pid[3] is 1180591620717411303424", "64 bits"),
    bad("features: below 64 bits", "cam is -2^64", lambda tmp: _features(cam=[0, -2**64, 1, 2]),
        "cam[1] is -18446744073709551616"),
    bad("features: rounded ids", "pid is a float beyond 2^53", lambda tmp: _features(pid=[0., 1, 2, 2.**53 + 2]),
        "pid[3] is 9007199254740994.0", "float64 rounds such numbers"),
    bad("features: ids rounded by float32", "pid is a float32 beyond 2^24",
        lambda tmp: _features(pid=torch.tensor([0., 1, 2, 2**24 + 4])), "pid[3] is 16777220.0", "float32 rounds"),
    bad("features: bool ids", "pid is a mask", lambda tmp: _features(pid=[True, False, True, True]),
        "pid has dtype bool",
        error=TypeError),
    bad("features: bool among numbers", "pid holds True", lambda tmp: _features(pid=np.array([1, True, 2, 3], object)),
        "pid[1] is True", error=TypeError),
    bad("features: half ids", "cam is 0.5", lambda tmp: _features(cam=[0, .5, 1, 1]), "cam[1] is 0.5", error=TypeError),
    bad("features: missing ids", "pid is NaN", lambda tmp: _features(pid=[0, 1, np.nan, 2]), "pid[2] is nan",
        error=TypeError),
    bad("features: infinite ids", "pid is inf", lambda tmp: _features(pid=[0, 1, np.inf, 2]), "pid[2] is inf",
        error=TypeError),
    bad("features: None among ids", "pid is None", lambda tmp: _features(pid=[0, None, 1, 2]), "pid[1] is None",
        error=TypeError),
    bad("features: complex ids", "pid is complex", lambda tmp: _features(pid=np.arange(4)*1j),
        "pid has dtype complex128",
        error=TypeError),
    bad("features: dates for ids", "pid is a date", lambda tmp: _features(pid=np.arange(4).astype("M8[D]")),
        "must hold integers", error=TypeError),
    bad("features: masked ids", "pid is a masked array",
        lambda tmp: _features(pid=np.ma.array(range(4), mask=[0, 0, 1, 0])), "pid has masked values", "filled(-1)"),
    bad("features: ids of two columns", "pid is (4,2)", lambda tmp: _features(pid=np.zeros((4, 2), int)),
        "pid has shape (4, 2)",
        "emb has 4 rows"),
    bad("features: lists of ids", "pid holds lists", lambda tmp: _features(pid=[[0], [1, 2], 3, 4]),
        "pid holds lists of different lengths", error=TypeError),
    bad("features: too few ids", "three pid for four rows", lambda tmp: _features(pid=[0, 1, 2]), "pid has shape (3,)"),
    bad("features: no ids", "pid=None", lambda tmp: _features(pid=None), "pid=None", "-1 for junk"),
    bad("features: path that is not UTF-8", "a file name with byte ff, as os.listdir gives it",
        lambda tmp: _features(path=["a", "b", "p\udcff.jpg", "c"]), "path[2] is 'p\\udcff.jpg'", "character 1",
        "rename"),
    bad("features: half a character", "caption ends in half an emoji", lambda tmp: _features(caption=["a\ud83d", "",
        "", ""]),
        "caption[0]", "lone surrogate", "replace"),
    bad("features: half a character in a column", "columns['site'] holds a lone surrogate",
        lambda tmp: _features(columns=dict(site=["x", "y", "z", "\udc80"])), "columns['site'][3]", "lone surrogate"),
    bad("features: half a character in meta", "meta names a model with a lone surrogate",
        lambda tmp: _features(meta=dict(model="\udc80")), "meta[1]", "lone surrogate"),
    bad("features: bytes for paths", "path holds bytes", lambda tmp: _features(path=[b"a"]*4), "path[0] is bytes",
        error=TypeError),
    bad("features: short columns", "columns['site'] has one value", lambda tmp: _features(columns=dict(site=["x"])),
        "columns['site'] has shape (1,)"),
    bad("features: integer vectors", "emb is int", lambda tmp: Embeddings(np.zeros((2, 2), int), [0, 1]),
        "emb has dtype int64", "astype('float32')", error=TypeError),
    bad("features: complex vectors", "emb is complex", lambda tmp: Embeddings(np.zeros((2, 2), complex), [0, 1]),
        "emb has dtype complex128", error=TypeError),
    bad("features: long doubles", "emb is float128", lambda tmp: Embeddings(np.zeros((2, 2), "g"), [0, 1]),
        "emb has dtype",
        error=TypeError),
    bad("features: flat vectors", "emb is (4,)", lambda tmp: Embeddings(np.zeros(4), [0]*4), "must be (N,D)"),
    bad("features: without dimensions", "emb is (4,0)", lambda tmp: Embeddings(np.zeros((4, 0)), [0]*4),
        "must be (N,D)"),
    bad("features: join nothing", "concat([])", lambda tmp: Embeddings.concat([]), "parts is empty"),
    bad("features: join an array", "a part is an array", lambda tmp: Embeddings.concat([_features(), np.eye(3)]),
        "parts[1] is ndarray, not Embeddings", error=TypeError),
    bad("features: join other columns", "only one part has cameras",
        lambda tmp: Embeddings.concat([_features(), _features(cam=[0]*4)]), "differ in ['cam']"),
    bad("features: mask of another set", "a mask of three for four rows", lambda tmp: _features()[np.ones(3, bool)],
        "mask of shape (3,) for 4 rows", error=IndexError),
    bad("embed: no images at a time", "batch_size=0", lambda tmp: embed_images(_Model(), _Table(), batch_size=0),
        "batch_size=0", "at least 1"),
    bad("embed: path that is not UTF-8", "the table holds one", lambda tmp: embed_images(_Model(), _Table(path=["a",
        "\udcff"])),
        "path[1]", "lone surrogate"),
    bad("embed: ids that are names", "the table holds names", lambda tmp: embed_images(_Model(), _Table(pid=["x",
        "y"])),
        "pid[0] is 'x'", error=TypeError),
    bad("embed: a caption is missing", "caption is NaN",
        lambda tmp: embed_texts(_Model(), pd.DataFrame(dict(caption=["a", np.nan], pid=[0, 1]))), "caption[1] is float",
        error=TypeError),
    bad("embed: no captions at a time", "batch_size=-1",
        lambda tmp: embed_texts(_Model(), pd.DataFrame(dict(caption=["a"], pid=[0])), batch_size=-1), "batch_size=-1"),
    interruption("features: killed while parts are joined and saved", "a process dies with the file written",
                 "the parts are whole, and joining again gives one file", _no_half_state, "joined again"),
]
