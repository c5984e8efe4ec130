"""Embeddings: what is refused, what survives a round trip, and what models give."""
import json

import hypothesis
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import settings, strategies as st
from safetensors.numpy import save_file

from reid_lab.core.basics import unit_norm
from reid_lab.data.table import ReidTable
from reid_lab.retrieval.embeddings import Embeddings, as_ids, embed_images, embed_texts, encode_images, image_pixels


def make(n=6, **kw):
    rng = np.random.default_rng(0)
    base = dict(emb=rng.normal(size=(n, 4)).astype("float32"), pid=np.arange(n) % 3, cam=np.arange(n) % 2,
                path=[f"a/{i}.jpg" for i in range(n)], caption=[f"a man, n\u00ba {i} \U0001f600 <b>" for i in range(n)],
                meta=dict(model="m", seed=3),
                columns=dict(view=["ground", "aerial"]*(n//2), severity=np.linspace(0, 1, n)))
    return Embeddings(**base | kw)


@pytest.mark.parametrize("name", ["folder", "one.safetensors", "plain.npz"])
@pytest.mark.parametrize("bare", [False, True])
def test_round_trip(tmp_path, name, bare):
    e = Embeddings(torch.randn(5, 3, dtype=torch.float64), [1, 2, 3, -1, 2]) if bare else make()
    back = Embeddings.load(e.save(tmp_path/name))
    assert torch.equal(back.emb, e.emb) and back.emb.dtype == e.emb.dtype
    pd.testing.assert_frame_equal(back.table(), e.table())
    assert back.meta == e.meta and (back.cam is None) == bare and [p.name for p in tmp_path.iterdir()] == [name]


def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch):
    make().save(tmp_path/"x.npz")
    before = (tmp_path/"x.npz").read_bytes()
    def full(file, **kw):
        file.write_bytes(b"PK half")
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left"): make().save(tmp_path/"x.npz")
    assert (tmp_path/"x.npz").read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["x.npz"]


def test_a_folder_is_replaced_only_if_save_wrote_it(tmp_path):
    make().save(tmp_path/"q")
    make(2).save(tmp_path/"q")
    assert len(Embeddings.load(tmp_path/"q")) == 2 and [p.name for p in tmp_path.iterdir()] == ["q"]
    (tmp_path/"empty").mkdir()
    assert len(Embeddings.load(make(4).save(tmp_path/"empty"))) == 4
    (tmp_path/"q"/"notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"did not write \(it holds \['notes.txt'\]\)"): make().save(tmp_path/"q")
    assert len(Embeddings.load(tmp_path/"q")) == 2 and (tmp_path/"q"/"notes.txt").read_text() == "mine"
    (tmp_path/"x.npz").mkdir()
    with pytest.raises(FileExistsError): make().save(tmp_path/"x.npz")


@pytest.mark.parametrize("kw, message", [
    (dict(emb=np.zeros(6)), r"\(6,\); it must be \(N,D\)"),
    (dict(emb=np.zeros((6, 0))), r"must be \(N,D\)"),
    (dict(emb=np.zeros((6, 2), int)), "astype"),
    (dict(emb=torch.zeros(6, 2).bool()), "floating point"),
    (dict(emb=np.array([[0, np.inf]]*6)), "6 of 6 rows"),
    (dict(pid=[0]*5), r"pid has shape \(5,\)"),
    (dict(pid=list("abcdef")), "factorize"),
    (dict(pid=[0, 1, 2, 3, 4, np.nan]), "must hold integers"),
    (dict(pid=None), "pid=None"),
    (dict(cam=[0, .5, 1, 1, 1, 1]), "cam has dtype"),
    (dict(path=["x"]), "path has 1 entries"),
    (dict(caption=[["a"]]*6), r"caption\[0\] is list"),
    (dict(meta=[1]), "meta must be a dict"),
    (dict(columns=dict(view=["g"])), r"columns\['view'\]"),
    (dict(columns=dict(cam=[0]*6)), "argument of its own"),
])
def test_refused(kw, message):
    with pytest.raises((TypeError, ValueError), match=message): make(**kw)


def test_dtypes():
    for given, kept in (("float16", torch.float32), ("float32", torch.float32), ("float64", torch.float64),
                        (">f4", torch.float32)):
        x = np.arange(8, dtype=given).reshape(2, 4)
        e = Embeddings(x, [0, 1])
        assert e.emb.dtype == kept and np.array_equal(e.numpy(), x.astype("f8"))
    assert Embeddings(torch.ones(1, 2, dtype=torch.bfloat16), [0]).emb.dtype == torch.float32
    assert Embeddings(np.ones((4, 4), "float32")[::-1, ::2], np.array([1., 2., 3., -1.])).pid.tolist() == [1, 2, 3, -1]


def test_select_and_join():
    e = make()
    assert e[2].path == ["a/2.jpg"] and e[-2:].pid.tolist() == [1, 2] and len(e[e.cam == 1]) == 3
    assert e[torch.tensor([3, 0])].caption == [e.caption[3], e.caption[0]] and len(e[[]]) == 0
    assert e.where(view="aerial", severity=lambda s: s > .5).path == ["a/3.jpg", "a/5.jpg"]
    both = Embeddings.concat([e[:2], e[2:]])
    assert torch.equal(both.emb, e.emb) and both.meta == e.meta
    pd.testing.assert_frame_equal(both.table(), e.table())
    with pytest.raises(ValueError, match="dimensions"): Embeddings.concat([e, Embeddings(torch.zeros(1, 9), [0])])
    with pytest.raises(ValueError, match="differ in"): Embeddings.concat([e, Embeddings(e.emb, e.pid, e.cam)])
    with pytest.raises(IndexError): e[99]
    with pytest.raises(IndexError, match="mask"): e[np.ones(3, bool)]
    with pytest.raises(ValueError, match="'view'"): e.where(veiw="aerial")


def test_foreign_files(tmp_path):
    np.savez(tmp_path/"own.npz", features=np.eye(3, dtype="float32"), ids=[4, 5, 6])
    assert Embeddings.load(tmp_path/"own.npz", keys=dict(emb="features", pid="ids")).pid.tolist() == [4, 5, 6]
    with pytest.raises(KeyError, match="it holds"): Embeddings.load(tmp_path/"own.npz")
    with pytest.raises(ValueError, match="keys='feat'"): Embeddings.load(tmp_path/"own.npz", keys=dict(feat="features"))
    np.save(tmp_path/"one.npz", np.eye(3))
    (tmp_path/"one.npz.npy").rename(tmp_path/"one.npz")
    with pytest.raises(ValueError, match="holds one array"): Embeddings.load(tmp_path/"one.npz")
    with pytest.raises(FileNotFoundError, match="does not exist"): Embeddings.load(tmp_path/"none.npz")
    (tmp_path/"empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no emb.safetensors"): Embeddings.load(tmp_path/"empty")


def test_people_may_be_optional(tmp_path):
    e = Embeddings(torch.randn(4, 2), [1, 1, 2, 2], [0, 1, 0, 1])
    arrays = dict(emb=e.numpy(), cam=e.cam)
    np.savez(tmp_path/"x.npz", **arrays)
    save_file(arrays, tmp_path/"x.safetensors")
    (tmp_path/"folder").mkdir()
    save_file(arrays, tmp_path/"folder"/"emb.safetensors")
    for name in ("x.npz", "x.safetensors", "folder"):
        with pytest.raises(KeyError, match=r"has no \['pid'\]; it holds"): Embeddings.load(tmp_path/name)
        back = Embeddings.load(tmp_path/name, need=("cam",))
        assert back.pid.tolist() == [-1]*4 and back.cam.tolist() == [0, 1, 0, 1]
        with pytest.raises(KeyError, match=r"has no \['who'\]"):
            Embeddings.load(tmp_path/name, dict(pid="who"), need=())
        with pytest.raises(ValueError, match="choose one of"): Embeddings.load(tmp_path/name, need=("path",))
    e.save(tmp_path/"full.npz")
    assert Embeddings.load(tmp_path/"full.npz", need=()).pid.tolist() == [1, 1, 2, 2]
    Embeddings(e.emb, e.pid).save(tmp_path/"texts.safetensors")
    with pytest.raises(KeyError, match=r"has no \['cam'\]"):
        Embeddings.load(tmp_path/"texts.safetensors", need=("cam",))


def test_nothing_is_unpickled(tmp_path):
    class Bomb:
        def __reduce__(self): return (open, (str(tmp_path/"boom"), "w"))
    np.savez(tmp_path/"bad.npz", emb=np.eye(2), pid=np.array([Bomb(), 1], object))
    with pytest.raises(ValueError, match="unpickling"): Embeddings.load(tmp_path/"bad.npz")
    (tmp_path/"p.npz").write_bytes(__import__("pickle").dumps([1]))
    with pytest.raises(ValueError, match="is a Python pickle; expected a .npz file"): Embeddings.load(tmp_path/"p.npz")
    assert not (tmp_path/"boom").exists()


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_folder_with_a_persons_own_table(tmp_path, suffix):
    from safetensors.torch import save_file
    save_file(dict(emb=torch.eye(3)), tmp_path/"emb.safetensors")
    t = pd.DataFrame(dict(pid=[7, 8, 9], cam=[0, 1, 0], site=["x", "y", "x"]))
    if suffix == "csv": t.to_csv(tmp_path/"table.csv", index=False)
    else: t.to_json(tmp_path/"table.json", orient="records")
    e = Embeddings.load(tmp_path)
    assert e.pid.tolist() == [7, 8, 9] and e.where(site="y").cam.tolist() == [1]


def test_html_is_escaped():
    e = Embeddings(torch.eye(1), [0], caption=['<img src=x onerror="alert(1)">'], columns={"<i>": ["<script>"]})
    assert "<img" not in e._repr_html_() and "<script" not in e._repr_html_() and "<i>" not in e._repr_html_()


class Tiny(torch.nn.Module):
    "Mean colour, and a count of colour words"
    size, words = (4, 2), ["red", "green", "blue"]
    def __init__(self):
        super().__init__()
        self.drop, self.one = torch.nn.Dropout(.5), torch.nn.Parameter(torch.ones(()))
    def tokenizer(self, texts): return torch.tensor([[t.split().count(w) for w in self.words] for t in texts])
    def encode_image(self, img):
        assert img.dtype == torch.float32 and img.shape[1:] == (3, 4, 2) and 0 <= img.min() and img.max() <= 1
        return torch.nn.functional.normalize(self.drop(img.mean((2, 3))*self.one), dim=1)
    def encode_text(self, tokens): return torch.nn.functional.normalize(self.drop(tokens.float()), dim=1)


@pytest.fixture
def table():
    rgb = np.eye(3, dtype=np.uint8)*255
    frame = pd.DataFrame(dict(path=list("0123"), pid=[0, 1, 2, 0], cam=[0, 0, 1, 1], view=["ground", "aerial"]*2,
                              captions=[["red"], ["green", "so green"], ["blue"], []]))
    return ReidTable(frame, None, reader=lambda ps: [np.tile(rgb[int(p) % 3], (9, 5, 1)) for p in ps], name="flags")


def test_embed(table):
    m = Tiny().train()
    a, b = embed_images(m, table, batch_size=3), embed_images(m, table, batch_size=1)
    assert m.training and torch.equal(a.emb, b.emb) and not a.emb.requires_grad
    assert a.path == list("0123") and a.cam.tolist() == [0, 0, 1, 1]
    assert a.columns["view"].tolist() == ["ground", "aerial"]*2
    t = embed_texts(m, table, batch_size=3)
    assert t.cam is None and t.caption == ["red", "green", "so green", "blue"] and t.pid.tolist() == [0, 1, 1, 2]
    assert (t.emb @ a.emb.T).argmax(1).tolist() == [0, 1, 1, 2]
    assert torch.equal(embed_texts(m, table.text_queries("test")).emb, t.emb)


def test_embed_says_what_a_model_did_wrong(table):
    class Wrong(Tiny):
        def encode_image(self, img): return img
        def encode_text(self, tokens): return tokens.float()*torch.nan
    with pytest.raises(ValueError, match="model.encode_image returned"): embed_images(Wrong(), table)
    with pytest.raises(ValueError, match="NaN"): embed_texts(Wrong(), table)
    with pytest.raises(ValueError, match="is empty; check the split"): embed_images(Tiny(), table.where(split="train"))
    with pytest.raises(ValueError, match="no caption"): embed_texts(Tiny(), table.take([3]))
    with pytest.raises(ValueError, match="column='caption'"): embed_texts(Tiny(), pd.DataFrame(dict(text=["a"])))


def test_with_emb_keeps_the_labels_and_adds_facts():
    e = Embeddings(np.eye(3), [1, 2, -1], [0, 1, 1], ["a", "b", "c"], ["x", "y", "z"], dict(model="m"),
                   dict(view=["u", "v", "w"]))
    new = e.with_emb(2*e.emb[:, :2], adapted="Norm")
    assert new.emb.tolist() == [[2, 0], [0, 2], [0, 0]]
    assert new.meta == dict(model="m", adapted="Norm") and e.meta == dict(model="m")
    pd.testing.assert_frame_equal(new.table(), e.table())
    with pytest.raises(ValueError, match="emb has 2 rows"): e.with_emb(e.emb[:2])


class Cameras(Tiny):
    "`Tiny` that writes each image's camera into its features"
    def encode_image(self, img, cam=None):
        return img.mean((2, 3)) + (0 if cam is None else cam[:, None].float())


def test_a_model_that_takes_cameras_gets_each_images_own(table):
    told, untold = (embed_images(Cameras(), table, batch_size=3, cameras=c).emb for c in (True, False))
    assert torch.allclose(told - untold, torch.tensor([0., 0, 1, 1])[:, None].expand(4, 3))
    assert torch.equal(embed_images(Cameras(), table, batch_size=3).emb, told)
    img = image_pixels(Cameras(), table, [2, 0])
    assert torch.equal(encode_images(Cameras(), img, [1, 0]), told[[2, 0]])
    assert torch.equal(encode_images(Tiny().eval(), img, [1, 0]), Tiny().eval().encode_image(img))


def test_a_model_names_the_interpolation_of_its_test_images():
    noise = np.random.default_rng(0).integers(0, 256, (3, 9, 5, 3), dtype=np.uint8)
    frame = pd.DataFrame(dict(path=list("012"), pid=[0, 1, 2]))
    t = ReidTable(frame, None, reader=lambda ps: [noise[int(p)] for p in ps])
    plain, soft = Tiny(), Tiny()
    soft.resample = "bilinear"
    ways = ((plain, None), (soft, None), (plain, "bilinear"), (soft, "bicubic"))
    got = [embed_images(m, t, resample=r).emb for m, r in ways]
    assert torch.equal(got[0], got[3]) and torch.equal(got[1], got[2]) and not torch.equal(got[0], got[1])


@pytest.mark.parametrize("ids, want", [
    (np.array([0, 2**63 - 1], "u8"), [0, 2**63 - 1]), (np.array([1, 2], object), [1, 2]),
    ([2.**53 - 1, -1.], [2**53 - 1, -1]),
    (torch.tensor([3, 4], dtype=torch.int16), [3, 4]), (pd.Series([5, 6], index=[9, 8]), [5, 6]),
    (np.array([1, 2], ">i4"), [1, 2]), ([-1, 2**63 - 1], [-1, 2**63 - 1])])
def test_ids_survive(ids, want):
    assert as_ids("pid", ids, 2).tolist() == want and as_ids("pid", ids, 2).dtype == np.int64


def test_every_text_that_is_taken_can_be_saved_and_shown(tmp_path):
    "Any character but half of one, in every place"
    odd = ["\u00e9\U0001f600\x00\u2028", "</td>\n", "\ufffd", "'\""]
    e = Embeddings(torch.eye(4), [0]*4, path=odd, caption=odd, columns={odd[0]: odd}, meta={odd[0]: odd[1]})
    back = Embeddings.load(e.save(tmp_path/"x.npz"))
    assert back.path == odd and back.columns[odd[0]].tolist() == odd and back.meta == e.meta
    assert e._repr_html_().encode() and json.dumps(e.meta, ensure_ascii=False).encode()
    for kw in (dict(path=["\udc80"]*4), dict(caption=["a", "b", "c", "\ud800"]), dict(columns={"\udc80": [1]*4}),
               dict(columns=dict(a=["\udc80"]*4)), dict(columns=dict(a=np.array([1, 2, 3, "\udc80"], object))),
               dict(meta={"a": "\udc80"}), dict(meta={"\udc80": 1})):
        with pytest.raises(ValueError, match="lone surrogate") as err: Embeddings(torch.eye(4), [0]*4, **kw)
        assert str(err.value).encode()


def test_join_takes_the_widest_type():
    a, b = Embeddings(torch.ones(1, 2), [0]), Embeddings(torch.full((1, 2), 1e200, dtype=torch.float64), [1])
    assert Embeddings.concat([a, b]).emb.tolist() == [[1, 1], [1e200, 1e200]]


@pytest.mark.parametrize("dtype, scale", [("float32", 1e-40), ("float32", 1e-25), ("float32", 1e25), ("float32", 1e37),
                                          ("float64", 1e-300), ("float64", 1e300)])
def test_unit_length_at_any_scale(dtype, scale):
    x = torch.tensor([[3., -4.], [0., 0.], [1e-2, 0.]], dtype=torch.float64)
    got = Embeddings((x*scale).to(getattr(torch, dtype)), [0, 1, 2])
    np.testing.assert_allclose(got.unit().numpy(), [[.6, -.8], [0, 0], [1, 0]], atol=1e-4)


def test_unit_length_rounds_as_torch_does_and_has_its_gradient():
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x = torch.randn(50, 33, generator=torch.Generator().manual_seed(0)).to(dtype)
        a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
        u, v = unit_norm(a), torch.nn.functional.normalize(b, dim=-1)
        (u*x.flip(0)).sum().backward()
        (v*x.flip(0)).sum().backward()
        assert torch.equal(u, v) and torch.equal(a.grad, b.grad)


@settings(max_examples=300, deadline=None)
@hypothesis.given(st.sampled_from(["q.npz", "z.npz", "q.safetensors"]), st.floats(.1, 1),
       st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_mutated_feature_files_raise_one_documented_error_with_their_name(tmp_path_factory, name, keep, changes):
    path = tmp_path_factory.getbasetemp()/name
    if name == "z.npz": np.savez_compressed(path, emb=np.zeros((40, 30)) + .5, pid=np.arange(40))
    else: make().save(path)
    data = bytearray(path.read_bytes())
    for at, value in changes: data[int(at*(len(data) - 1))] = value
    path.write_bytes(data[:int(len(data)*keep)] if keep < .6 else data)
    try: Embeddings.load(path)
    except (ValueError, TypeError, KeyError) as e: assert name in str(e)


@pytest.mark.parametrize("pid, cam, says", [
    ([0, 0, 5], [0, 1, 1], "2 ids, 2 cameras"), ([7]*3, None, "1 ids"),
    ([-1]*3, [-1]*3, "ids unknown, cameras unknown"),
    ([0, -1, 5], [0, -1, -1], "2 ids (1 row unknown), 1 cameras (2 rows unknown)"),
    ([0, 1, -1], [2, 2, 2], "2 ids (1 row unknown), 1 cameras")])
def test_unknown_labels_are_counted_by_themselves(pid, cam, says):
    e = Embeddings(np.eye(3, dtype="f4"), pid, cam)
    assert repr(e) == f"Embeddings(3 x 3, {says}, torch.float32)"


def test_arrays_of_one_value_a_row_are_columns_and_others_say_why(tmp_path):
    from reid_lab.retrieval.metrics import retrieval_metrics
    arrays = dict(features=np.eye(4, dtype="float32"), pid=[1, 1, 2, 2], tracklet=[0, 1, 0, 1], day=list("abab"),
                  short=[1, 2, 3], boxes=np.zeros((4, 2)), note=np.array([None]*4, object), raw=np.array([b"x"]*4))
    np.savez(tmp_path/"own.npz", **arrays)
    e = Embeddings.load(tmp_path/"own.npz", keys=dict(emb="features"))
    assert {*e.columns} == {"tracklet", "day"} and e.columns["day"].tolist() == list("abab")
    assert e.unread["short"] == "has the shape (3,), and a column of these 4 rows (4,)"
    assert "Python objects" in e.unread["note"] and "holds |S1" in e.unread["raw"] and "(4, 2)" in e.unread["boxes"]
    assert retrieval_metrics(e, e, junk="day")["n_query"] == 4
    for rows in (e, e[[0, 1]]):
        named = r"'short', which the .* \(an array 'short' is in the file, and has the shape"
        with pytest.raises(ValueError, match=named):
            retrieval_metrics(rows, e, junk="short")
    back = Embeddings.load(e.save(tmp_path/"ours.npz"))
    assert back.columns.keys() == e.columns.keys() and not back.unread
    np.savez(tmp_path/"both.npz", q_f=np.eye(4, 3), g_f=np.eye(5, 3), q_pid=[1]*4, g_pid=[1]*5, day=[1]*4)
    both = Embeddings.load(tmp_path/"both.npz", keys=dict(emb="q_f", pid="q_pid"))
    assert not both.columns and "'q_f' or of 'g_f', the file does not say" in both.unread["day"]


def test_captions_in_the_order_of_their_lengths_are_those_of_the_whole_context():
    "`embed_texts` cuts padding that a model masks; the vectors and their order are those of every caption on its own"
    from reid_lab.data.text import WordPiece
    from reid_lab.models.zoo import create_model
    said = ["a man in a red coat with a blue bag", "a woman", "a boy in a green coat", "a girl in blue with a bag"]*3
    tok = WordPiece.train(said, 300, 20)
    torch.manual_seed(0)
    model = create_model("camel_tiny", tokenizer=tok, size=(64, 32)).eval()
    with torch.inference_mode(): whole = model.encode_text(tok(said))
    assert tok(said).shape[1] == 20     # padded to the context
    for size in (1, 5, 256):
        found = embed_texts(model, said, batch_size=size)
        assert found.caption == said
        torch.testing.assert_close(found.emb, whole, atol=1e-6, rtol=0)
