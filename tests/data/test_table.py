"ReidTable: views, checks, joining, your own images, saving"
import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from PIL import Image

from reid_lab.data.crops import manifest_table
from reid_lab.data.images import resize_image
from reid_lab.data.table import COLUMNS, Finding, JoinedReader, ReidTable, TableError, join_tables


def pixels(*names, size=(16, 8)):
    "A flat colour per name"
    rng = np.random.default_rng(abs(hash(names)) % 2**32)
    return np.broadcast_to(rng.integers(0, 256, 3).astype(np.uint8), (*size, 3)).copy()


def by_path(paths): return [pixels(p) for p in paths]


def frame(n_ids=4, per_id=2):
    n = n_ids * per_id
    return pd.DataFrame(dict(
        path=[f"d/{i:03d}.png" for i in range(n)], pid=np.repeat(range(n_ids), per_id), cam=list(range(per_id)) * n_ids,
        split=["train" if p < n_ids // 2 else "test" for p in np.repeat(range(n_ids), per_id)],
        captions=[[f"person {i}", f"image {i}"] for i in range(n)]))


@pytest.fixture
def folder(tmp_path):
    f = frame()
    (tmp_path / "d").mkdir()
    for i, p in enumerate(f.path): Image.fromarray(pixels(i)).save(tmp_path / p)
    return tmp_path


def table(**changes): return ReidTable(frame().assign(**changes), None, by_path, "t")


def messages(t, **kw): return "\n".join(str(f) for f in t.findings(**kw))


# ---- construction and views

def test_defaults_are_filled_and_extra_columns_kept():
    t = table(style="real")
    assert list(t.frame.columns) == [*COLUMNS, "style"]
    assert t.frame.role.eq("both").all() and t.frame.cam.dtype == "int64"
    assert list(t.where(split="test").frame.columns) == [*COLUMNS, "style"]


def test_views_do_not_share_or_change_the_original():
    t = table()
    before = t.frame.copy()
    v = t.where(split="test")
    v.frame.loc[:, "pid"] = 99
    pd.testing.assert_frame_equal(t.frame, before)
    assert v.frame.index.tolist() == list(range(4)) and v.reader is by_path


def test_where_takes_values_lists_and_functions():
    t = table()
    assert len(t.where(pid=[0, 3])) == 4 and len(t.where(pid=lambda p: p > 2, cam=1)) == 1
    assert len(t.where(split="val")) == 0  # a known split that happens to be empty is no error
    with pytest.raises(ValueError, match="Did you mean 'split'"): t.where(splt="test")
    with pytest.raises(ValueError, match="choose one of"): t.where(domain="martian")


def test_roles_and_junk():
    t = table(role=["query", "gallery"] * 4, pid=[0, 0, 1, 1, -1, 2, 3, -1])
    assert t.query("test")["pid"].tolist() == [3]
    assert t.gallery("test")["pid"].tolist() == [2, -1]
    assert -1 not in t.text_queries(None).pid.tolist()


def test_text_queries_point_at_their_row():
    t = table()
    q = t.text_queries("test")
    assert q.caption.tolist()[:3] == ["person 4", "image 4", "person 5"]
    assert q.row.tolist() == [4, 4, 5, 5, 6, 6, 7, 7] and q.number.tolist() == [0, 1] * 4
    for c, r in zip(q.caption, q.row): assert c in t["captions"].iloc[r]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.text(max_size=8), max_size=3), min_size=1, max_size=12))
def test_every_caption_is_a_query_exactly_once(captions):
    f = pd.DataFrame(dict(path=[str(i) for i in range(len(captions))], pid=range(len(captions)), captions=captions))
    q = ReidTable(f, None, by_path).text_queries("test")
    assert q.caption.tolist() == [c for cs in captions for c in cs]
    assert q.row.tolist() == [i for i, cs in enumerate(captions) for _ in cs]


# ---- images

def test_files_and_reader(folder):
    t = ReidTable(frame(), folder)
    assert np.array_equal(t.image(3), pixels(3))
    assert np.array_equal(t.images([5, 1]), np.stack([pixels(5), pixels(1)]))
    assert np.array_equal(table().image(3), pixels("d/003.png"))
    assert t.images(size=(4, 6)).shape == (8, 4, 6, 3)


def test_sizes_that_differ_need_a_size():
    t = ReidTable(frame(), None, lambda ps: [pixels(p, size=(8 + i, 8)) for i, p in enumerate(ps)])
    with pytest.raises(ValueError, match="pass size="): t.images()
    assert t.images(size=(8, 8)).shape == (8, 8, 8, 3)


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff\xe0 cut"])
def test_unreadable_image_is_named(folder, content):
    (folder / "d/002.png").write_bytes(content)
    t = ReidTable(frame(), folder, name="bad")
    with pytest.raises(ValueError, match="002.png.*cannot be read.*replace it"): t.image(2)
    with pytest.raises(TableError, match=r"row 2 \('d/002.png'\)"): t.validate()


def test_half_an_image_is_named(folder):
    whole = (folder / "d/002.png").read_bytes()
    (folder / "d/002.png").write_bytes(whole[:len(whole) // 2])
    with pytest.raises(ValueError, match="002.png.*cannot be read"): ReidTable(frame(), folder).image(2)


# ---- validation: each problem alone, then all together

@pytest.mark.parametrize("changes, says", [
    (dict(pid=[0, 0, 1, 1, 2, 2, 3, -2]), "pid below -1"),
    (dict(pid=[0.5, 0, 1, 1, 2, 2, 3, 3]), "pid=0.5 is not a whole number"),
    (dict(pid=[0, 0, 1, 1, 2, 2, 1, 3]), r"1 id\(s\) in both train and test: \[1\]"),
    (dict(pid=[-1, 0, 1, 1, 2, 2, 3, 3]), "junk .* in train"),
    (dict(role=["query"] * 8, pid=[0, 0, 1, 1, 2, 2, 3, -1]), "junk .* used as query"),
    (dict(split="dev"), "split='dev' is not one of"),
    (dict(role="probe"), "role='probe' is not one of"),
    (dict(view="satellite"), "view='satellite'"),
    (dict(captions=[["ok"]] * 7 + [[""]]), r"empty caption \[row 7"),
    (dict(captions=[["ok"]] * 7 + [[3]]), r"captions=\[3\] is not a list of strings"),
    (dict(captions=[["ok"]] * 7 + [{"a": 1}]), "is not a list of strings"),
    (dict(attrs=[None] * 7 + [[1]]), "is not a dict or None"),
    (dict(path=["a.png"] * 2 + [f"{i}.png" for i in range(6)]), r"same path in several rows \[row 0 .* row 1"),
    (dict(path=[None] + [f"{i}.png" for i in range(7)]), "path=(None|nan) is not a string"),
    (dict(path=[" "] + [f"{i}.png" for i in range(7)]), "empty path"),
    (dict(cam="north"), "cam=.north. is not a whole number"),
])
def test_each_problem_is_found(changes, says):
    with pytest.raises(TableError, match=says): table(**changes).validate(images="none")


def test_all_problems_in_one_error(tmp_path):
    f = frame().drop(columns="pid").assign(split="dev", role="probe")
    f.at[3, "captions"] = ["  "]
    with pytest.raises(TableError) as e: ReidTable(f, tmp_path, name="mine").validate()
    assert str(e.value).startswith("mine: ") and len(e.value.findings) >= 5
    for word in ("'pid'", "split=", "role=", "empty caption", "does not exist"): assert word in str(e.value)
    assert all(isinstance(x, Finding) and x.remedy for x in e.value.findings)


def test_a_wrong_split_does_not_hide_a_leak():
    t = table(split=["train", "dev", "test"] + ["train"] * 5)
    text = messages(t, images="none")
    assert "split='dev'" in text and "in both train and test" in text


def test_paths_may_not_leave_the_root(folder):
    for p in ("../x.png", "/etc/passwd", "d/../../x.png"):
        t = ReidTable(frame().assign(path=[p] + [f"d/{i:03d}.png" for i in range(1, 8)]), folder)
        assert "path leaves the root [row 0" in messages(t, images="none")
        with pytest.raises(ValueError, match="leaves the dataset folder"): t.image(0)
    assert messages(ReidTable(frame().assign(path=["d/../d/000.png"] + frame().path.tolist()[1:]), folder)) == ""


def test_missing_root_missing_files_and_empty_table(tmp_path):
    assert "is no folder" in messages(ReidTable(frame(), tmp_path / "nowhere"))
    assert "8 of 8 images looked at" in messages(ReidTable(frame(), tmp_path))
    assert "the table is empty" in messages(ReidTable(frame().iloc[:0], tmp_path))


def test_sample_or_all_images(tmp_path):
    n = 60
    f = pd.DataFrame(dict(path=[f"{i}.png" for i in range(n)], pid=range(n)))
    for p in f.path: Image.fromarray(pixels(0)).save(tmp_path / p)
    (tmp_path / "59.png").write_text("text")
    t = ReidTable(f, tmp_path)
    assert "1 of 60 images" in messages(t, images="all")
    assert messages(t, images="none") == ""
    assert messages(t, n=8) == messages(t, n=8)  # the sample is fixed


def test_reader_errors_are_findings():
    def reader(paths):
        if "d/003.png" in paths: raise KeyError("d/003.png")
        return by_path(paths)
    assert "row 3" in messages(ReidTable(frame(), None, reader))


def test_shared_ids_can_be_declared():
    t = table(split=["val", "test"] * 4)
    with pytest.raises(TableError, match="shared="): t.validate()
    assert t.validate(shared=[("test", "val")]) is t


# ---- ids

def test_relabel_keeps_junk_and_raw_ids():
    t = table(pid=[7, 7, 3, 3, -1, 9, 9, 3])
    assert t.relabel()["pid"].tolist() == [1, 1, 0, 0, -1, 2, 2, 0]
    assert t.relabel("seen")["pid"].tolist() == [0, 0, 1, 1, -1, 2, 2, 1]
    assert t.relabel().relabel("seen")["raw_pid"].tolist() == t["pid"].tolist()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-1, 30), min_size=1, max_size=30))
def test_relabel_is_a_bijection_onto_a_range(pids):
    t = ReidTable(pd.DataFrame(dict(path=[str(i) for i in range(len(pids))], pid=pids)), None, by_path)
    new = t.relabel()["pid"].tolist()
    real = {p for p in pids if p >= 0}
    assert set(new) - {-1} == set(range(len(real)))
    assert len(set(zip(pids, new))) == len(set(pids)) == len(set(new))


def test_sampling_people_depends_on_ids_and_seed_only():
    big = ReidTable(frame(40, 3), None, by_path)
    a, b = big.sample_ids(10, seed=1), big.take(np.arange(len(big))[::-1]).sample_ids(10, seed=1)
    assert set(a["pid"]) == set(b["pid"]) and len(a) == 30
    assert set(a["pid"]) != set(big.sample_ids(10, seed=2)["pid"]) and len(big.sample_ids(999)) == len(big)


def test_split_val_moves_whole_people_once():
    big = ReidTable(frame(40, 3), None, by_path)
    v = big.split_val(.25)
    assert v.where(split="val")["pid"].nunique() == 5 and not v.findings()
    assert v.where(split="test")["path"].tolist() == big.where(split="test")["path"].tolist()
    with pytest.raises(ValueError, match="has a val split already"): v.split_val(.1)
    with pytest.raises(ValueError, match="leave at least one"): big.split_val(20)


# ---- joining

def test_join_offsets_and_reads_each_part(folder):
    files, served = ReidTable(frame(), folder, name="files"), table(cam=[2, 5] * 4)
    t = files + served
    assert t["pid"].tolist() == [*files["pid"], *(served["pid"] + 4)]
    assert t["cam"].tolist() == [*files["cam"], *(served["cam"] + 2)]
    assert t["dataset"].tolist() == ["files"] * 8 + ["t"] * 8
    assert np.array_equal(t.images([1, 9, 2]), np.stack([pixels(1), pixels("d/001.png"), pixels(2)]))
    assert not t.findings("all")


def test_join_of_same_names_and_of_joins():
    a = table()
    t = join_tables([a, a, a + a])
    assert t["pid"].nunique() == 16 and t["path"].is_unique
    assert all(np.array_equal(t.image(8 * k + 3), a.image(3)) for k in range(4))


def test_junk_stays_junk_when_joined():
    t = table(pid=[0, 0, 1, 1, -1, 2, 3, 3], split="test") + table(pid=[0, 0, 1, 1, -1, 2, 3, 3], split="test")
    assert (t["pid"] == -1).sum() == 2


def test_joined_reader_names_a_stranger():
    with pytest.raises(ValueError, match="belongs to none"): JoinedReader(dict(a=table()))(["b/x.png"])


# ---- your own images

def test_from_folder_reads_roles_from_subfolders(tmp_path):
    for sub in ("train", "q", "g"):
        (tmp_path / sub).mkdir()
        for pid in range(2):
            Image.fromarray(pixels(sub, pid)).save(tmp_path / sub / f"{pid + (10 if sub == 'train' else 0)}_3_x.JPG",
                                                   "JPEG")
    (tmp_path / "q/readme.txt").write_text("x")
    t = ReidTable.from_folder(tmp_path,
                              folders=dict(train=("train", "both"), q=("test", "query"), g=("test", "gallery")))
    assert (len(t.query()), len(t.gallery()), len(t.where(split="train"))) == (2, 2, 2)
    assert t["cam"].unique().tolist() == [3] and t.name == tmp_path.name


def test_from_folder_numbers_names_and_reports_misfits(tmp_path):
    for n in ("ann-1.png", "bob-2.png", "ann-3.png"): Image.fromarray(pixels(n)).save(tmp_path / n)
    t = ReidTable.from_folder(tmp_path, r"(?P<pid>[a-z]+)-(?P<cam>\d)")
    assert t["pid"].tolist() == [0, 0, 1] and t["cam"].tolist() == [1, 3, 2]
    Image.fromarray(pixels(1)).save(tmp_path / "odd.png")
    with pytest.raises(ValueError, match=r"not 1 \(such as \['odd.png'\]\)"):
        ReidTable.from_folder(tmp_path, r"(?P<pid>[a-z]+)-", cam=-1)
    assert len(ReidTable.from_folder(tmp_path, r"(?P<pid>[a-z]+)-", skip=True, cam=-1)) == 3
    with pytest.raises(ValueError, match="no group .cam.; add .*cam=-1 if cameras are unknown"):
        ReidTable.from_folder(tmp_path, r"(?P<pid>[a-z]+)-")
    with pytest.raises(ValueError, match="has a group .cam."):
        ReidTable.from_folder(tmp_path, r"(?P<pid>[a-z]+)-(?P<cam>\d)", cam=0)
    with pytest.raises(ValueError, match="is no folder"): ReidTable.from_folder(tmp_path / "none")
    with pytest.raises(ValueError, match="Did you mean 'pid'"):
        ReidTable.from_folder(tmp_path, r"(?P<person>\w+)")


def test_from_dataframe_renames_and_checks(folder):
    f = frame().rename(columns=dict(path="file", pid="person"))
    t = ReidTable.from_dataframe(f, folder, dict(path="file", pid="person"), site=3)
    assert t["site"].eq(3).all()
    with pytest.raises(ValueError, match="Did you mean 'file'"): ReidTable.from_dataframe(f, folder, dict(path="files"))
    with pytest.raises(TableError, match="column 'pid'"): ReidTable.from_dataframe(f, folder, dict(path="file"))


# ---- saving and showing

AWKWARD = ['say "hi", NA\r\nnew line', "<b>&amp;</b> \N{GRINNING FACE}", "\u4f60\u597d", "a;b\tc", "'", "\\"]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_save_and_load(tmp_path, ending):
    if ending == ".parquet": pytest.importorskip("pyarrow")
    t = table(captions=[AWKWARD[:i] for i in range(7)] + [["x"]], scenario="NA", attrs=[{"hat": "red"}] + [None] * 7,
              raw_pid=range(8))
    back = ReidTable.load(t.save(tmp_path / f"t{ending}"), None, by_path)
    pd.testing.assert_frame_equal(back.frame, t.frame, check_dtype=False)
    assert [p.name for p in tmp_path.iterdir()] == [f"t{ending}"]


def test_unknown_ending(tmp_path):
    with pytest.raises(ValueError, match="choose one of"): table().save(tmp_path / "t.xlsx")


def test_html_is_escaped_and_small():
    t = ReidTable(frame().assign(captions="<script>alert(1)</script>" * 30, split="test"), None, by_path, "<img src=x>")
    page = t._repr_html_()
    assert "<script>" not in page and "<img" not in page and len(page) < 1500


def test_summary_groups():
    s = table(domain=["a", "b"] * 4).summary(["split", "domain"])
    assert s.loc[("test", "a"), "images"] == 2 and s.loc[("train", "b"), "captions"] == 4
    assert table().summary().index.tolist() == ["train", "test"]
    assert table().summary().loc["test", "words/caption"] == 2.0


def test_a_table_resizes_as_asked():
    noise = np.random.default_rng(0).integers(0, 256, (3, 16, 8, 3), dtype=np.uint8)
    t = ReidTable(pd.DataFrame(dict(path=list("012"), pid=[0, 1, 2])), None, lambda ps: [noise[int(p)] for p in ps])
    sharp, soft = t.images(size=(5, 3)), t.images(size=(5, 3), resample="bilinear")
    assert np.array_equal(sharp, t.images(size=(5, 3), resample="bicubic")) and (sharp != soft).any()
    assert np.array_equal(soft[2], resize_image(t.image(2), (5, 3), "bilinear"))
    with pytest.raises(ValueError, match="resample='linear'.*Did you mean 'bilinear'"):
        t.images(size=(5, 3), resample="linear")


def test_links_out_of_the_root_are_followed_on_request(tmp_path):
    root = tmp_path / "data"
    (tmp_path / "far" / "sub").mkdir(parents=True)
    root.mkdir()
    Image.fromarray(pixels(0)).save(tmp_path / "far" / "sub" / "0001_c1_0.png")
    Image.fromarray(pixels(1)).save(tmp_path / "far" / "0002_c1_0.png")
    (root / "all").symlink_to(tmp_path / "far")
    (root / "one").mkdir()
    (root / "one" / "0003_c2_0.png").symlink_to(tmp_path / "far" / "0002_c1_0.png")
    (tmp_path / "far" / "loop").symlink_to(root)
    with pytest.raises(ValueError, match="'all' is a link to .*far.*follow_links=True"): ReidTable.from_folder(root)
    t = ReidTable.from_folder(root, follow_links=True)
    assert t["path"].tolist() == ["all/0002_c1_0.png", "all/sub/0001_c1_0.png", "one/0003_c2_0.png"]
    assert np.array_equal(t.where(pid=3).image(0), pixels(1)) and t.take([0]).follow_links
    assert ReidTable.from_dataframe(t.frame, root, follow_links=True).images().shape == (3, 16, 8, 3)
    with pytest.raises(TableError, match="leaves the dataset folder"): ReidTable.from_dataframe(t.frame, root)


def test_a_table_of_many_rows_is_checked_without_a_loop_over_paths(tmp_path):
    "100,000 rows from parquet; paths stay inside"
    pytest.importorskip("pyarrow")
    n = 100_000
    f = pd.DataFrame(dict(path=[f"c{i % 50}/{i:06d}.jpg" for i in range(n)], pid=np.arange(n)//10,
                          cam=np.arange(n) % 50, captions=[["a man"]]*n))
    ReidTable(f, tmp_path).save(tmp_path/"t.parquet")
    t = ReidTable.load(tmp_path/"t.parquet", tmp_path)
    assert t.findings(images="none") == []
    assert t.frame.captions.iat[7] == ["a man"] and t["attrs"].iat[7] is None
    for bad in ("../out.jpg", "/etc/passwd", "a/../../b.jpg", "a\\..\\..\\b.jpg"):
        t.frame.loc[99_999, "path"] = bad
        found = [str(x) for x in t.findings(images="none")]
        if bad.startswith("a\\"): continue            # a name, on this system
        assert len(found) == 1 and "path leaves the root [row 99999" in found[0], bad
    with pytest.raises(ValueError, match="leaves the dataset folder"):
        t.frame.loc[0, "path"] = "../x.jpg"
        t.image(0)


def test_cells_that_are_not_one_json_value_are_refused(tmp_path):
    (tmp_path/"t.csv").write_text('path,pid,captions,attrs\na.jpg,1,"[""x""],[""y""]",null\n')
    with pytest.raises(ValueError, match="not one JSON value each"): ReidTable.load(tmp_path/"t.csv", tmp_path)


@pytest.mark.parametrize("name, text, line", [
    ("m.csv", 'path,pid,caption\na.png,1,"a man\nin red"\n\nb.png,1,blue\n', 5),
    ("m.tsv", "path\tpid\na.png\t1\nb.png\t1\n", 3),
    ("m.jsonl", '{"path": "a.png", "pid": 1}\n\n{"path": "b.png", "pid": 1}\n', 3)])
def test_a_row_of_a_manifest_is_named_by_file_and_line(tmp_path, name, text, line):
    "As an editor counts: empty lines and lines within quotes count, and the header is line 1"
    (tmp_path/name).write_text(text)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path/"a.png")
    with pytest.raises(TableError, match=rf"\[line {line} of {name} \('b.png'\)\]"): manifest_table(tmp_path/name)
    table = manifest_table(tmp_path/name, images="none")
    assert pickle.loads(pickle.dumps(table)).row_name(1) == f"line {line} of {name}"
    with pytest.raises(TableError, match=r"row 0 \('b.png'\)"): table.take([1]).validate()   # no line of its own


def test_captions_of_a_manifest_are_named_by_line(tmp_path):
    (tmp_path/"m.jsonl").write_text('{"path": "a.png"}\n{"path": "b.png", "caption": 5}\n')
    with pytest.raises(ValueError, match="captions of line 2 of m.jsonl"): manifest_table(tmp_path/"m.jsonl")


def test_a_table_knows_whether_its_splits_were_said(folder):
    said, unsaid = table(), ReidTable(frame().drop(columns="split"), None, by_path, "u")
    assert said.knows_split and said.where(split="test").knows_split and not unsaid.knows_split
    assert not unsaid.take(slice(2)).knows_split and unsaid.assign(split="train").knows_split
    assert (said + unsaid).knows_split and not (unsaid + unsaid).knows_split
    by_name = ReidTable.from_folder(folder, r"(?P<pid>\d+)", cam=-1)
    assert not by_name.knows_split and (by_name["split"] == "test").all()
    assert ReidTable.from_folder(folder, r"(?P<pid>\d+)", cam=-1, split="train").knows_split


def test_what_a_table_lacks_is_told_in_one_way():
    first, second = (ReidTable(pd.DataFrame(dict(path=[f"{name}.jpg"], pid=[0])), ".", name=name) for name in "ab")
    first.left_out, first.remarks = ["2 images", "2 images"], ["1 box was clipped"]
    second.remarks = ["a column is not read"]
    assert first.notes() == ["left out: 2 images", "note: 1 box was clipped"]
    assert first.notes("") == ["left out: 2 images", "1 box was clipped"]
    assert second.notes() == ["note: a column is not read"]
    found = first.note_findings("look")
    assert [(f.level, f.what, f.remedy) for f in found[1:]] == [("ok", "left out: 2 images", ""),
                                                                ("warn", "1 box was clipped", "look")]
    both = join_tables([first, second])
    assert both.notes() == [*first.notes(), *second.notes()]
    assert first.where(pid=0).notes() == first.notes()
