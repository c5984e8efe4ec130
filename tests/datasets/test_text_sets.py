"UFine6926 and UFine3C on disk, and cross sets: chosen, rewritten, checked, corrected, written"
import json
import re
import shutil
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from reid_lab.data.table import ReidTable, TableError
from reid_lab.datasets import cross_set as C
from reid_lab.datasets.cross_set import (
    SAME,
    RuleRewriter,
    build_cross_set,
    check_cross_set,
    edit_caption,
    load_cross_set,
    local_rewriter,
    rewrite_captions,
    stated_facts,
    write_cross_set,
)
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import LAYOUTS, export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import DATASETS, find_root, load_dataset
from reid_lab.datasets.text_sets import TEXT_SETS, annotation_files, first_record, load_text_set
from reid_lab.world.captions import COLOUR_WORDS, GRANULARITY, NOUNS, SAY, STYLES, caption_with_facts
from reid_lab.world.people import sample_people

pytestmark = pytest.mark.usefixtures("no_user_settings")


def named(name, n=8, said=None):
    "A tiny set with a name of its own"
    t = tiny_table(n, 2, seed=sum(map(ord, name)))
    f = t.frame if said is None else t.frame.assign(captions=[[c for c in said] for _ in range(len(t))])
    return ReidTable(f, None, t.reader, name)


@pytest.fixture
def ufine(tmp_path): return export_world(named("u"), "ufine6926", tmp_path / "UFine6926")


@pytest.fixture
def cross():
    "Two sources with two test identities each, every caption rewritten by rules"
    said = ["A man wearing a red shirt and black pants.", "A man in a red shirt carries a black bag."]
    return build_cross_set([named("A", said=said), named("B", said=said[::-1])], n_ids=2)


def edit(path, change):
    records = json.loads(path.read_text())
    out = change(records)
    path.write_text(json.dumps(records if out is None else out))


def errors(found): return [f.what for f in found if f.level == "error"]


# ---- the layout of UFine6926 and UFine3C

def test_records_are_those_of_the_published_examples(ufine, tmp_path):
    rows = json.loads((ufine / "UFine6926.json").read_text())
    assert list(rows[0]) == ["split", "id", "file_path", "captions"]
    assert rows[0]["file_path"] == "images/1.jpg" and min(r["id"] for r in rows) == 1
    assert (ufine / "images/16.jpg").is_file() and len(list(ufine.iterdir())) == 2
    folder = export_world(named("u").where(split="test"), "ufine3c", tmp_path / "UFine3C")
    row = json.loads((folder / "UFine3C.json").read_text())[0]
    assert list(row) == ["id", "source", "split", "file_path", "captions"] and row["source"] == "u"


def test_published_counts():
    assert DATASETS["ufine6926"].counts == dict(train=(4926, 18577, 37154), test=(2000, 7629, 15258))
    assert DATASETS["ufine3c"].counts == dict(test=(3 * 750, 7446, 37939))


@pytest.mark.parametrize("name", ["ufine6926", "ufine3c"])
def test_any_name_of_the_annotation(name, tmp_path):
    folder = export_world(named("u").where(split="test"), name, tmp_path / TEXT_SETS[name].folder)
    (folder / TEXT_SETS[name].annotations[0]).rename(folder / "annotations_v2.json")
    (folder / "notes.json").write_text('[{"by": "me"}]')
    (folder / "meta.json").write_text('{"version": 1}')
    assert len(load_dataset(name, folder, check="all")) == 4 and len(load_dataset(name, tmp_path)) == 4
    assert "found annotations_v2.json" in str(doctor(name, folder))
    shutil.copy(folder / "annotations_v2.json", folder / "b.json")
    with pytest.raises(TableError) as e: load_dataset(name, folder)
    assert "['annotations_v2.json', 'b.json']" in str(e.value) and TEXT_SETS[name].annotations[0] in str(e.value)
    assert not doctor(name, folder).ok
    assert len(load_dataset(name, folder, annotation="b.json")) == 4
    with pytest.raises(ValueError, match=r"annotation='c.json' is no file.*\['annotations_v2.json', 'b.json'"):
        load_dataset(name, folder, annotation="c.json")
    with pytest.raises(ValueError, match="leaves the"): load_dataset(name, folder, annotation="../x.json")
    shutil.copy(folder / "b.json", folder / TEXT_SETS[name].annotations[0])   # the usual name comes first
    assert len(load_dataset(name, folder)) == 4


def test_one_set_is_not_taken_for_the_other(ufine, tmp_path):
    other = export_world(named("u").where(split="test"), "ufine3c", tmp_path / "three" / "UFine3C")
    for folder in (ufine, other):
        for p in folder.glob("*.json"): p.rename(folder / "x.json")
    assert annotation_files(ufine, "ufine3c") == annotation_files(other, "ufine6926") == []
    with pytest.raises(TableError, match="looks like ufine6926"): load_dataset("ufine3c", ufine)
    with pytest.raises(TableError, match="looks like ufine3c"): find_root("ufine6926", other)
    cuhk = export_world(named("u"), "cuhk-pedes", tmp_path / "CUHK-PEDES")
    (cuhk / "reid_raw.json").rename(cuhk / "whatever.json")   # has processed_tokens
    assert annotation_files(cuhk, "ufine6926") == []


@pytest.mark.parametrize("content, says", [("", "the file is empty"), ('[{"id": 1, "spl', "truncated"),
                                           ("<html>", "no valid JSON")])
def test_a_broken_file_of_another_name_is_named(ufine, content, says):
    (ufine / "UFine6926.json").rename(ufine / "data.json")
    (ufine / "data.json").write_text(content)
    with pytest.raises(TableError, match=says) as e: load_dataset("ufine6926", ufine)
    assert "data.json" in str(e.value)


@pytest.mark.parametrize("change, says", [
    (dict(id="x"), "id='x' is not a whole number"), (dict(split="dev"), "split='dev' is not"),
    (dict(captions="A man."), "captions='A man.' is not a list"), (dict(file_path=3), "file_path='3' is not a string"),
    (dict(file_path="../1.jpg"), "path leaves the root"), (dict(file_path="images/2.jpg"), "the same path in several"),
    (dict(file_path="images/99.jpg"), "images: some files are missing, 1 of 16"),
    (dict(captions=["a", " "]), "empty caption"), (dict(id=8), "in both train and test")])
def test_broken_rows(ufine, change, says):
    edit(ufine / "UFine6926.json", lambda rs: rs[0].update(change))
    with pytest.raises(TableError) as e: load_dataset("ufine6926", ufine)
    assert says in str(e.value) and "row 0" in str(e.value) and "->" in str(e.value)
    assert says in str(doctor("ufine6926", ufine))


def test_a_missing_source_is_named(tmp_path):
    folder = export_world(named("u").where(split="test"), "ufine3c", tmp_path / "UFine3C")
    edit(folder / "UFine3C.json", lambda rs: rs[2].pop("source") and None)
    with pytest.raises(TableError, match="key 'source' is missing.*UFine3C.json row 2"): load_dataset("ufine3c", folder)


def test_first_record_reads_no_further(tmp_path):
    p = tmp_path / "a.json"
    p.write_text('\ufeff [ {"a": "\u00e9"}, {"b": ')
    assert first_record(p) == {"a": "\u00e9"}
    for text in ("[]", "[1]", "{}", "", '[{"a"', '["a"]'):
        p.write_text(text)
        assert first_record(p) is None
    p.write_bytes(b'[{"a": 1}, "\xff\xfe"]')
    assert first_record(p) == {"a": 1}


def test_the_doctor_counts_sources(tmp_path):
    t = named("u").where(split="test")
    t = t._with(t.frame.assign(source=["A", "A", "A", "B"]))
    report = str(doctor("ufine3c", export_world(t, "ufine3c", tmp_path / "UFine3C")))
    assert "source A: 2 ids, 3 images, 6 captions; expected: 750 ids" in report
    assert "1 id(s) in two sources: [7]" in report and "published: 2250, 7446, 37939" in report


# ---- reading what a caption says

def test_groups_mean_the_same_in_the_world():
    "Exchangeable words of people, clothes and colours are words of one value in the World's captions"
    own = {}
    for value, forms in {**NOUNS, **COLOUR_WORDS, **{v: f for v, f in SAY["pattern"].items() if v != "plain"}}.items():
        for w in {w for f in forms[:2] for w in f} | {value}: own.setdefault(w, set()).add(value)
    checked = 0
    for group in SAME.values():
        values = [own[w] for w in group if w in own]
        if len(values) > 1:
            checked += 1
            assert set.intersection(*values), group
    assert checked >= 25


PEOPLE = sample_people(200, seed=11)
STOPS = {"upper": "upper_colour", "lower": "lower_colour", "shoes": "shoe_colour", "bag": "bag_colour",
         "hat": "hat_colour", "held": "held_colour"}


def first(word): return next((k for k, g in SAME.items() if word in g), word)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 199), st.sampled_from(list(GRANULARITY)), st.sampled_from(STYLES), st.integers(0, 10**6))
def test_the_reader_finds_what_the_world_said(i, granularity, style, seed):
    text, facts = caption_with_facts(PEOPLE[i], rng=np.random.default_rng(seed), granularity=granularity, style=style)
    said = {(colour, thing) for colour, thing in stated_facts(text)}
    for slot, colour in STOPS.items():
        if not {slot, colour} <= set(facts) or facts[slot] in ("none", "dress") and slot != "upper": continue
        things = {first(w) for forms in NOUNS[facts[slot]] for w in forms}
        colours = {first(w) for forms in COLOUR_WORDS.get(facts[colour], ()) for w in forms} | {facts[colour]}
        near = {(c, t) for c, t in said if t in things or any(x.endswith(t) for x in things)}
        assert any(c in colours or c.split(" and ")[-1] in colours for c, _ in near), (slot, facts, text, said)


@pytest.mark.parametrize("text, want", [
    ("", {}), ("A black and white striped shirt.", {("black and white", "shirt"): 1}),
    ("red, shirt", {("", "shirt"): 1}),
    ("He wears a dark blue coat over blue denims", {("navy", "coat"): 1, ("blue", "jeans"): 1}),
    ("a bluebird and a shirtless man", {}), ("RED TEE", {("red", "t-shirt"): 1})])
def test_facts_by_hand(text, want): assert stated_facts(text) == Counter(want)


# ---- rewriting

@settings(max_examples=150, deadline=None)
@given(st.integers(0, 199), st.sampled_from(list(GRANULARITY)), st.sampled_from(STYLES), st.integers(0, 10**6))
def test_rules_keep_every_fact_and_invent_none(i, granularity, style, seed):
    text, _ = caption_with_facts(PEOPLE[i], rng=np.random.default_rng(seed), granularity=granularity, style=style)
    new = RuleRewriter(seed)(text)
    assert stated_facts(new) == stated_facts(text) and new == RuleRewriter(seed)(text) and new.strip() == new
    lost, added = contents(text) - contents(new), contents(new) - contents(text)
    assert not lost - Counter(FRAME), (text, new)
    assert set(added) <= FRAME | {"he", "she", "is", "the", "person", "and"}, (text, new)


FRAME = set(re.findall("[a-z]+", " ".join(C._FRAMES + C._SHOWN))) | set(
    "in the this a an image picture photo photograph shows depicts of there is person wearing wears dressed "
    "clad".split())


def contents(text):
    "Words, with exchangeable phrases as one, without the words of frames"
    text = C._PHRASE.sub(lambda m: (m[1] + " " if m[1] else "") + first(m[2].lower()).replace(" ", "_"), text.lower())
    return Counter(w for w in re.findall(r"[\w'-]+", text) if w not in FRAME | {"he", "she", "and"})


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from("a man woman red shirt . , wearing carrying He is The bag ! ? 2 \u00e9t\u00e9 <b> and "
                                "with this picture shows pants dark blue".split()), max_size=25), st.integers(0, 3))
def test_rules_take_any_text(words, seed):
    text = " ".join(words)
    new = RuleRewriter(seed)(text)
    assert bool(new) == bool(text)
    assert not set(contents(new)) - set(contents(text)) - {"person"}


def test_seeds_are_styles_and_shortening_shortens():
    text = ("A lady with short hair wearing a teal tank top, carrying a black handbag. She is seen from behind. "
            "Her posture is upright. She wears a cap.")
    assert len({RuleRewriter(s)(text) for s in range(12)}) > 8
    lengths = [len(RuleRewriter(0, shorten=s)(text).split()) for s in (0., .5, 1.)]
    assert lengths[0] > lengths[1] > lengths[2] > 5
    assert contents(RuleRewriter(3, synonyms=0.)(text)) == contents(text)
    for kw in (dict(synonyms=1.2), dict(shorten=-.1)):
        with pytest.raises(ValueError, match="is a share"): RuleRewriter(**kw)


def test_articles_follow_the_exchanged_word():
    text = "A man holding a purse, beside an umbrella, near a gray tee."
    texts = {RuleRewriter(s, synonyms=1.)(text) for s in range(30)}
    assert not [t for t in texts if re.search(r"\ba [aeio]|\ban [^aeiou]", t)] and len(texts) > 10


def test_framing_twice_piles_nothing_up():
    text = "A man wearing a red shirt."
    for s in range(12): text = RuleRewriter(s)(text)
    assert len(text.split()) < 16 and stated_facts(text) == {("red", "shirt"): 1}


def tiny_model(folder, positions=96):
    "A language model with random weights"
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    words = ["<end>", "[UNK]", *"a man woman in red black shirt bag with .".split()]
    engine = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    engine.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=engine, unk_token="[UNK]", eos_token="<end>").save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(GPT2Config(vocab_size=len(words), n_positions=positions, n_embd=16, n_layer=1, n_head=2,
                                   bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def lm_folder(tmp_path_factory): return tiny_model(tmp_path_factory.mktemp("lm") / "tiny")


def test_a_local_model_rewrites_the_same_way_each_time(lm_folder, monkeypatch):
    import socket

    import torch
    monkeypatch.setattr(socket.socket, "connect", lambda *a: pytest.fail("the network was used"))
    one, two, other = (local_rewriter(lm_folder, seed=s, max_new_tokens=12, temperature=1.) for s in (1, 1, 2))
    texts = ["A man in red.", "A woman with a bag."]
    before = torch.random.get_rng_state()
    said = [one(t) for t in texts]
    assert (torch.random.get_rng_state() == before).all()   # the caller's generator is not moved
    assert [two(t) for t in reversed(texts)] == said[::-1] and [other(t) for t in texts] != said
    assert all(s and not s.startswith(t) and len(s.split()) <= 12 for s, t in zip(said, texts))
    sure = local_rewriter(lm_folder, temperature=0, max_new_tokens=5)
    assert sure(texts[0]) == local_rewriter(lm_folder, seed=9, temperature=0, max_new_tokens=5)(texts[0])
    assert one.name == "tiny"


def test_the_prompt_of_a_local_model(lm_folder):
    lm = local_rewriter(lm_folder, prompt="man {caption} woman")
    assert lm.tokenizer.decode(lm._ids("red  bag")[0]) == "man red bag woman"
    lm.tokenizer.chat_template = "{% for m in messages %}shirt {{ m['content'] }}{% endfor %}"
    assert lm.tokenizer.decode(lm._ids("red {bag}")[0]).startswith("shirt man red")
    with pytest.raises(ValueError, match="where the caption goes"): local_rewriter(lm_folder, prompt="x")
    with pytest.raises(ValueError, match="tiny reads 96; use a shorter prompt"): lm("bag " * 100)


def test_a_local_model_that_is_none(tmp_path, lm_folder):
    with pytest.raises(FileNotFoundError, match="holds no config.json; give the folder of a text-generation model"):
        local_rewriter(tmp_path / "none")
    folder = shutil.copytree(lm_folder, tmp_path / "coded")
    config = json.loads((folder / "config.json").read_text())
    ran = tmp_path / "ran"
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w')")
    (folder / "config.json").write_text(json.dumps(config | dict(
        model_type="mine", auto_map=dict(AutoConfig="mine.C", AutoModelForCausalLM="mine.M"))))
    with pytest.raises(ValueError, match="trust_remote_code|model type `mine`"): local_rewriter(folder)
    assert not ran.exists()


# ---- building

def test_identities_follow_the_seed_and_sources_are_disjoint():
    tables = {n: named(n, 40) for n in "ABC"}
    one, again, other = (build_cross_set(tables, n_ids=4, seed=s) for s in (0, 0, 1))
    assert one.frame.equals(again.frame) and one["raw_pid"].tolist() != other["raw_pid"].tolist()
    assert one.frame.groupby("source").pid.nunique().tolist() == [4] * 3
    assert sorted(set(one["pid"])) == list(range(12)) and set(one["split"]) == {"test"}
    assert (one.frame.groupby("pid").source.nunique() == 1).all()
    for name, t in tables.items():
        mine = one.where(source=name)
        raw = t.where(pid=lambda p: p in set(mine["raw_pid"]))
        assert set(raw["split"]) == {"test"} and len(raw) == len(mine)   # all their images
        assert mine["captions"].map(lambda c: c[:2]).tolist() == raw["captions"].tolist()
        assert (mine.images() == raw.images()).all()
    more = build_cross_set(dict(tables, D=named("D", 40)), n_ids=4)   # another source moves none
    assert more.where(source="B")["raw_pid"].tolist() == one.where(source="B")["raw_pid"].tolist()


def test_every_caption_is_rewritten_once_by_each():
    calls = []
    def loud(c):
        calls.append(c)
        return c.upper()
    t = build_cross_set([named("A"), named("B")], 2, rewrite={"loud": loud, "last": lambda c: c[::-1]})
    assert len(calls) == t["captions"].map(len).sum() / 3 == 16
    for said, by in zip(t["captions"], t["provenance"]):
        assert [(p["by"], p["of"]) for p in by] == [(n, i) for n in ("original", "loud", "last") for i in (0, 1)]
        assert said[2:4] == [c.upper() for c in said[:2]] and said[5] == said[1][::-1]


@pytest.mark.parametrize("way, words", [(lambda c: None, "must return a string"), ("loud", "str -> str"),
                                        ({"original": str.upper}, "not 'original'"),
                                        ([RuleRewriter(0), RuleRewriter(0)], "two of one name")])
def test_bad_rewriters(way, words):
    with pytest.raises((TypeError, ValueError), match=words): build_cross_set([named("A"), named("B")], 2, rewrite=way)


def test_bad_sources():
    with pytest.raises(ValueError, match="n_ids=3, but 'A' has 2 test identities"):
        build_cross_set([named("A"), named("B")], 3)
    with pytest.raises(ValueError, match="two sources or more"): build_cross_set([named("A"), named("A")], 1)
    with pytest.raises(ValueError, match="at least one identity"): build_cross_set([named("A"), named("B")], 0)


def test_texts_that_are_there_already_are_left_out():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        t = build_cross_set([named("A"), named("B")], 2, rewrite=[str.strip, lambda c: " ", RuleRewriter(0)])
    assert "32 rewritten captions were empty or there already" in str(seen[0].message)
    assert {p["by"] for ps in t["provenance"] for p in ps} == {"original", "rules 0"}
    assert rewrite_captions([], {"x": str}) == ([], [], 0)


def test_no_word_of_provenance_is_lost_on_disk(cross, tmp_path):
    t = edit_caption(cross, 1, 2, "<b>\u00e9</b> \"quoted\"", by="somebody")
    folder = export_world(t, "ufine3c", tmp_path / "UFine3C")
    assert sorted(p.name for p in folder.iterdir()) == ["UFine3C.json", "images", "provenance.json"]
    back = load_dataset("ufine3c", folder, check="all")
    for c in ("pid", "source", "captions", "provenance", "split"): assert back[c].tolist() == t[c].tolist(), c
    assert errors(check_cross_set(back, 2)) == []
    plain = load_text_set(folder, "ufine3c")   # what another program sees
    assert "provenance" not in plain.frame and plain["captions"].tolist() == t["captions"].tolist()
    again = export_world(back, "ufine3c", tmp_path / "again")
    for name in ("UFine3C.json", "provenance.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()
    edit(folder / "provenance.json", lambda rs: rs[1:])
    with pytest.raises(TableError, match=r"1 images are not in it, such as 'images/1.jpg'.*copy the file"):
        load_cross_set(folder)
    (folder / "provenance.json").unlink()
    assert "provenance" not in load_dataset("ufine3c", folder).frame


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore:2 rewritten captions were empty or there already")
def test_a_set_of_three_worlds_is_whole(tmp_path):
    from reid_lab.world.world import World
    worlds = {g: World("smoke", seed=30 + i, granularity=g, style=s).table().where(domain="real-like", split="test")
              for i, (g, s) in enumerate(dict(coarse="real", medium="generated", fine="real").items())}
    t = build_cross_set(worlds, 20, rewrite=[RuleRewriter(0), RuleRewriter(1)])
    assert errors(check_cross_set(t, 20)) == [] and not [f for f in check_cross_set(t, 20) if "clothes" in f.what]
    words = t.frame.groupby("source").captions.apply(lambda x: np.mean([len(c.split()) for cs in x for c in cs]))
    assert words["coarse"] < 30 < words["medium"] < 60 < words["fine"]
    assert doctor("ufine3c", export_world(t, "ufine3c", tmp_path / "UFine3C")).ok


# ---- checking and correcting

def spoil(cross, **columns): return cross._with(cross.frame.assign(**columns))


@pytest.mark.parametrize("change, says", [
    (lambda f: dict(pid=f.pid % 2), "2 id(s) in two sources: [0, 1]"),
    (lambda f: dict(source=["A"] * 6 + ["B"] * 2), "source B: 1 ids, 2 images, 8 captions; expected: 2 ids"),
    (lambda f: dict(split=["val"] + ["test"] * 7), "not a test row"),
    (lambda f: {c: [[]] + f[c].tolist()[1:] for c in ("captions", "provenance")}, "without a caption"),
    (lambda f: dict(captions=f.captions.map(lambda c: [*c[:-1], " "])), "empty caption"),
    (lambda f: dict(captions=f.captions.map(lambda c: [*c[:-1], c[0]])), "the same caption twice"),
    (lambda f: dict(provenance=f.provenance.map(lambda p: p[:-1])), "provenance is not complete"),
    (lambda f: dict(provenance=f.provenance.map(lambda p: [*p[:-1], {}])), "provenance is not complete"),
    (lambda f: dict(provenance=f.provenance.map(lambda p: [*p[:-1], dict(by="x", of=3)])), "is not complete"),
    (lambda f: dict(provenance=None), "provenance is not complete")])
def test_what_is_wrong_is_found(cross, change, says):
    assert errors(check_cross_set(cross, 2)) == []
    found = errors(check_cross_set(spoil(cross, **change(cross.frame)), 2))
    assert any(says in w for w in found), found


def test_missing_columns(cross):
    drop = lambda c: cross._with(cross.frame.drop(columns=c))
    assert errors(check_cross_set(drop("source"), 2)) == ["no column source"]
    assert errors(check_cross_set(drop("provenance"), 2)) == ["no column provenance"]
    assert errors(check_cross_set(drop("provenance"), 2, provenance=False)) == []
    assert errors(check_cross_set(cross, 3)) and not errors(check_cross_set(cross, 3, level="warn"))
    with pytest.raises(ValueError, match="level='loud'"): check_cross_set(cross, 2, "loud")


def test_invented_clothes_are_named(cross):
    t = edit_caption(cross, 5, 3, "A man in a red shirt carries a green bag.")
    found, = [f for f in check_cross_set(t, 2) if "clothes" in f.what]
    assert found.level == "warn" and found.what.startswith("1 rewritten") and "row 5" in found.where


def test_an_edit_keeps_the_text_before_it(cross):
    before = cross["captions"][1][2]
    one = edit_caption(cross, 1, 2, "First.")
    two = edit_caption(one, 1, 2, "Second.", by="x")
    assert two["provenance"][1][2] == dict(cross["provenance"][1][2], edit="x", before=before)
    assert cross["captions"][1][2] == before and "edit" not in cross["provenance"][1][2]
    assert two["captions"].drop(1).tolist() == cross["captions"].drop(1).tolist()
    assert any("rules, edited: 1" in f.what for f in check_cross_set(two, 2) if f.level == "ok")
    for kw, says in ((dict(number=4, text="x"), "captions 0 to 3"), (dict(number=-1, text="x"), "captions 0 to 3"),
                     (dict(number=0, text=" "), "is empty"), (dict(number=0, text=None), "is empty"),
                     (dict(number=0, text=cross["captions"][1][1]), "another caption")):
        with pytest.raises(ValueError, match=says): edit_caption(cross, 1, **kw)


def test_layout_and_writer_agree(cross, tmp_path):
    assert LAYOUTS["ufine3c"].write is write_cross_set and DATASETS["ufine3c"].load is load_cross_set
    (tmp_path / "a").mkdir()
    write_cross_set(cross, tmp_path / "a")
    b = export_world(cross, "ufine3c", tmp_path / "b")
    files = lambda root: {p.relative_to(root).as_posix(): p.read_bytes() for p in Path(root).rglob("*") if p.is_file()}
    assert files(tmp_path / "a") == files(b) and len(files(b)) == len(cross) + 2
