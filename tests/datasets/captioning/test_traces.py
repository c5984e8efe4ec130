"Records of captions hold together, and a file cut anywhere is read"
import pytest
from helpers.captioning import SEEN, WHY, Echo, a_record, photo_of

from reid_lab.core.basics import stream
from reid_lab.datasets.captioning import traces as T
from reid_lab.datasets.captioning.run import caption_image, caption_images
from reid_lab.datasets.image_sets import tiny_table


@pytest.mark.parametrize("change, says", [
    (dict(confidence=1.1), "confidence=1.1"), (dict(confidence=float("nan")), "confidence=nan"),
    (dict(confidence="high"), "confidence='high'"), (dict(visible=1), "visible=1"), (dict(value=""), "value=''"),
    (dict(more=1), "key 'more' is not known"),
    (dict(name="a\ud800"), "name="), (dict(value=None), "value=None")])
def test_an_attribute_that_is_none(change, says):
    with pytest.raises(T.TraceError, match=says): T.Attribute(**{**SEEN, **change})


def test_a_missing_key_is_named_with_its_place():
    with pytest.raises(T.TraceError, match=r"attributes\[1\]: key 'evidence' is missing"):
        T.Perception(image_id="x", model="m", prompt_hash="",
                     attributes=[SEEN, {k: v for k, v in SEEN.items() if k != "evidence"}])


def naive_apply(text, fixes):
    "Character by character; the words around tell no article"
    out = []
    for i in range(len(text) + 1):
        out += [c["to"] for c in fixes if c["span"][0] == i]
        if i < len(text) and not any(c["span"][0] <= i < c["span"][1] for c in fixes): out.append(text[i])
    return "".join(out).strip()


@pytest.mark.parametrize("seed", range(20))
def test_corrections_against_a_naive_reference(seed):
    rng, text = stream(seed, "text"), "one two three four five six seven eight"
    cuts = sorted(rng.choice(len(text), 6, replace=False).tolist())
    fixes = []
    for start, end in zip(cuts[::2], cuts[1::2]):
        kind = ("edit", "drop", "add", "keep")[int(rng.integers(4))]
        end = start if kind == "add" else end
        old = text[start:end]
        new = dict(edit="NEW", drop="", add=" MORE ", keep=old)[kind]
        fixes.append(dict(span=[start, end], op=kind, to=new, **{"from": old}, **WHY))
    rng.shuffle(fixes)
    draft = T.Draft(S_init=text, trace_gen=[])
    got = T.refine(draft, fixes)
    assert got.S_refined == naive_apply(text, fixes)
    seen = T.Perception(image_id="x", model="m", prompt_hash="", attributes=[SEEN])
    full = T.CaptionRecord(image="a", pid=1, key="k", T1=seen, T2=draft, T3=got, status="ok")
    pieces = T.marked_pieces(full)
    assert "".join(t for op, t in pieces if op in ("keep", "drop")) == text
    assert "".join(t for op, t in pieces if op != "drop").strip() == got.S_refined


@pytest.mark.parametrize("fix, says", [("x", "is no object"), (dict(op="keep"), "key 'span' is missing"),
    (dict(span=[0, 3], op="edit", to="b", **{"from": "xyz"}, **WHY), "not from='xyz'"),
    (dict(span=[0, 9], op="edit", to="b", **{"from": "one"}, **WHY), "is not that of from"),
    (dict(span=[0, 3], op="add", to="b", **{"from": "one"}, **WHY), "op 'add' does not go")])
def test_corrections_that_do_not_fit(fix, says):
    with pytest.raises(T.TraceError, match=says): T.refine(T.Draft(S_init="one two", trace_gen=[]), [fix])


def test_text_that_changed_without_a_trace():
    r = dict(a_record())
    r["T3"] = T.Refined(S_refined="A man.", trace_corr=[])
    with pytest.raises(T.TraceError, match="T3.S_refined is not what trace_corr makes"): T.CaptionRecord(**r)


def test_text_of_data_is_escaped():
    tag = "<script>alert(1)</script>"
    pixels = photo_of().pixels
    r = caption_image(T.Photo(f"{tag}.png", 1, pixels, T.digest(pixels)), Echo(f"A t-shirt {tag}."))
    assert r.status == "ok" and "<script" not in r._repr_html_() and "&lt;script" in r._repr_html_()
    rejected = T.CaptionRecord(image=tag, pid=1, key="k", status="rejected", reason=tag)
    assert "<script" not in rejected._repr_html_()


def test_a_file_cut_anywhere_in_its_last_line(tmp_path):
    path, records = tmp_path/"c.jsonl", [a_record(i) for i in range(3)]
    with T.RecordFile(path) as f: [f.add(r) for r in records]
    whole = path.read_bytes()
    last = whole[:-1].rindex(b"\n") + 1
    for cut in [last, last + 1, last + 5, (last + len(whole))//2, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        assert T.read_records(path) == records[:2]
        with T.RecordFile(path) as f: f.add(records[2])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"my notes", b"a,b\n1,2\n", b'{"image": 1}\n', b"\xff\xfe\n", b"[]\nrest",
                                     b"\x89PNG\r\n"])
def test_files_of_others_are_left_alone(content, tmp_path):
    (tmp_path/"x").write_bytes(content)
    with pytest.raises(T.TraceError, match="line [12]"): caption_images(tiny_table(2, 1), Echo(), tmp_path/"x")
    assert (tmp_path/"x").read_bytes() == content


def test_one_writer_at_a_time(tmp_path):
    with T.RecordFile(tmp_path/"c.jsonl"):
        with pytest.raises(RuntimeError, match="in use by process"):
            caption_images(tiny_table(2, 1), Echo(), tmp_path/"c.jsonl")
