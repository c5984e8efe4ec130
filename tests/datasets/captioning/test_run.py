"""Captions in three steps: records that hold together, rules with errors, a local model, runs that resume, reports."""
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from reid_lab.datasets.captioning import rules as R
from reid_lab.analysis import caption_audit
from reid_lab.datasets.captioning import run as caption_run
from reid_lab.figures import captioning
from reid_lab.datasets.captioning import traces as T
from reid_lab.datasets.captioning import vision as V
from reid_lab.core.basics import stream
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.data.table import ReidTable

WHY = dict(evidence="arms", reason="as seen")
SEEN = dict(name="upper", value="t-shirt", evidence="body", confidence=.9, visible=True)
STEP = dict(attribute="upper", used=True, phrase="t-shirt", reason="")


class Echo:
    "Sees a t-shirt everywhere; counts how often it is asked"
    name, prompt_hash = "echo", "0"
    def __init__(self, draft="A person in a t-shirt."): self.draft, self.asked = draft, Counter()
    def settings(self, photo): return dict(model=self.name, draft=self.draft)
    def perceive(self, photo, attempt=0): self.asked[photo.image] += 1; return dict(attributes=[SEEN])
    def compose(self, attributes, attempt=0): return dict(S_init=self.draft, trace_gen=[STEP])
    def audit(self, photo, text, attempt=0): return dict(corrections=[])


def photo_of(i=0):
    pixels = tiny_table(4, 1).image(i)
    return T.Photo(f"{i}.png", i, pixels, T.digest(pixels))


def a_record(i=0, **kw): return caption_run.caption_image(photo_of(i), Echo(**kw))


@pytest.fixture()
def photos(tmp_path):
    (tmp_path/"photos").mkdir()
    for i, im in enumerate(tiny_table(6, 1).images()): Image.fromarray(im).save(tmp_path/"photos"/f"{i:04d}_c1_{i}.png")
    return tmp_path/"photos"


# Records

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
    r = dict(a_record()); r["T3"] = T.Refined(S_refined="A man.", trace_corr=[])
    with pytest.raises(T.TraceError, match="T3.S_refined is not what trace_corr makes"): T.CaptionRecord(**r)


def test_text_of_data_is_escaped():
    tag = "<script>alert(1)</script>"
    pixels = photo_of().pixels
    r = caption_run.caption_image(T.Photo(f"{tag}.png", 1, pixels, T.digest(pixels)), Echo(f"A t-shirt {tag}."))
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
    with pytest.raises(T.TraceError, match="line [12]"): caption_run.caption_images(tiny_table(2, 1), Echo(), tmp_path/"x")
    assert (tmp_path/"x").read_bytes() == content


def test_one_writer_at_a_time(tmp_path):
    with T.RecordFile(tmp_path/"c.jsonl"):
        with pytest.raises(RuntimeError, match="in use by process"):
            caption_run.caption_images(tiny_table(2, 1), Echo(), tmp_path/"c.jsonl")


# Rules

def a_truth(rng):
    values = {a: list(w)[int(rng.integers(len(w)))] for a, w in R.WORDS.items() if rng.random() < .7}
    values = R.speakable(values)
    hidden = frozenset(a for a in R.WORDS if a not in values)
    return R.Truth(values, hidden, {a: f"{a}: there" for a in values}, {a: 1. for a in values})


@pytest.mark.parametrize("seed", range(30))
def test_any_caption_becomes_any_other(seed):
    a, b = (a_truth(stream(seed, k)) for k in "ab")
    text = R.word_caption(a.values)
    assert {k: v for k, (v, *_) in R.read_caption(text).items()} == a.values
    fixes = R.compare(text, b.values, b.evidence)
    assert T.apply_corrections(text, [T.Correction(**c) for c in fixes]) == R.word_caption(b.values)


def test_rates_are_those_that_were_asked_for():
    "Each kind alone, over 400 readings"
    truths = [a_truth(stream(i, "t")) for i in range(400)]
    read = lambda rates: [R.misread(t.values, rates, stream(i, "r")) for i, t in enumerate(truths)]
    top = [sum(a in t.values for t in truths) for a in ("gender", "action")]
    out = read(R.Rates(.3, 0, 0))
    lost = [sum(a in t.values and a not in r for t, (r, _) in zip(truths, out)) for a in ("gender", "action")]
    assert sum(lost)/sum(top) == pytest.approx(.3, abs=.06)
    out = read(R.Rates(0, 0, .2))
    changed = sum(r[a] != t.values[a] for t, (r, _) in zip(truths, out) for a in t.values if len(R.WORDS[a]) > 1)
    assert changed/sum(len(R.WORDS[a]) > 1 for t in truths for a in t.values) == pytest.approx(.2, abs=.03)
    out = read(R.Rates(0, .25, 0))
    free = [(t, r) for t, (r, _) in zip(truths, out) if "hat" not in t.values]
    assert np.mean(["hat" in r for _, r in free]) == pytest.approx(.25, abs=.09)
    assert all(r == t.values for t, (r, _) in zip(truths, read(R.Rates(0, 0, 0))))


def captioned(n=40, seed=0, rates=R.Rates(), factor=.2):
    truths = {f"{i}.png": a_truth(stream(i, "truth")) for i in range(n)}
    backend = R.RuleCaptioner(truths, rates, rates.times(factor), seed)
    pixels = tiny_table(1, 1).image(0)
    return truths, [caption_run.caption_image(T.Photo(p, 1, pixels, p), backend) for p in truths]


def test_error_rates_against_a_naive_count():
    truths, records = captioned()
    table = R.error_table(records, truths).set_index("stage")
    visible = sum(len(t.values) for t in truths.values())
    for stage, text in dict(draft=lambda r: r.T2.S_init, refined=lambda r: r.caption).items():
        lost = made = wrong = said = 0
        for r in records:
            told, true = {a: v for a, (v, *_) in R.read_caption(text(r)).items()}, truths[r.image].values
            said += len(told)
            for a in R.WORDS:
                if a in true and a not in told: lost += 1
                if a in told and a not in true: made += 1
                if a in told and a in true and told[a] != true[a]: wrong += 1
        got = table.loc[stage]
        assert got[list(R.KINDS)].tolist() == pytest.approx([100*lost/visible, 100*made/said, 100*wrong/said])
    repair = R.repair_table(records, truths).set_index("kind")
    assert (repair.before - repair.removed + repair.brought_in == repair.after).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_audit_removes_errors_only_if_it_sees_better(seed):
    rate = lambda factor: R.error_table(*reversed(captioned(60, seed, factor=factor))).set_index("stage")[list(R.KINDS)]
    perfect, good, poor = rate(0.), rate(.2), rate(2.)
    assert (perfect.loc["refined"] == 0).all()
    assert (good.loc["refined"] < good.loc["draft"]).all()
    assert (poor.loc["refined"] > poor.loc["draft"]).all()
    assert good.loc["draft"].equals(poor.loc["draft"])


# A model from a folder

class Words:
    "What a tiny model is built from: its tokenizer, its sizes"
    template = ("{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>{% else %}"
                "{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}<ask>")
    prompts = dict(perceive="What is seen?", compose="Describe {attributes}", audit="Check {caption}")
    answers = dict(perceive=json.dumps(dict(attributes=[SEEN, dict(SEEN, name="bag", value="none")])),
                   compose="Here it is: " + json.dumps(dict(S_init="A person in a t-shirt.", trace_gen=[STEP])),
                   audit=json.dumps(dict(corrections=[{"op": "edit", "from": "t-shirt", "to": "orange coat", **WHY}])))


def build_model(folder, width=32, layers=1, room=1500):
    "A LLaVA with random weights, saved with its processor by the installed transformers"
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import (CLIPImageProcessor, CLIPVisionConfig, LlamaConfig, LlavaConfig,
                              LlavaForConditionalGeneration, LlavaProcessor, PreTrainedTokenizerFast)
    engine = Tokenizer(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<end>", "<ask>", "<image>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    engine.train_from_iterator([*Words.answers.values(), *Words.prompts.values()], trainer)
    tok = PreTrainedTokenizerFast(tokenizer_object=engine, eos_token="<end>", pad_token="<end>",
                                  additional_special_tokens=special[1:])
    small = dict(hidden_size=width, intermediate_size=2*width, num_hidden_layers=layers, num_attention_heads=2)
    config = LlavaConfig(vision_config=CLIPVisionConfig(**small, image_size=32, patch_size=16), vision_feature_layer=-1,
                         text_config=LlamaConfig(**small, vocab_size=len(tok), max_position_embeddings=room,
                                                 bos_token_id=None, eos_token_id=0), image_token_index=2)
    torch.manual_seed(0)
    model = LlavaForConditionalGeneration(config)
    see = CLIPImageProcessor(size=dict(shortest_edge=32), crop_size=dict(height=32, width=32))
    processor = LlavaProcessor(see, tok, patch_size=16, vision_feature_select_strategy="default",
                               num_additional_image_tokens=1, chat_template=Words.template)
    model.save_pretrained(folder); processor.save_pretrained(folder)
    return model, processor


def teach(model, processor, photo, steps=150):
    "Let a tiny model learn its three answers by heart"
    known = json.dumps([dict(name="upper", value="t-shirt")])
    asked = dict(perceive=(Words.prompts["perceive"], photo.pixels), audit=(Words.prompts["audit"].replace(
        "{caption}", "A person in a t-shirt."), photo.pixels),
        compose=(Words.prompts["compose"].replace("{attributes}", known), None))
    batches = []
    for what, (question, pixels) in asked.items():
        made = V._inputs(processor, question, pixels, "cpu", torch.float32)
        answer = torch.tensor([processor.tokenizer(Words.answers[what]).input_ids + [0]])
        ids = torch.cat([made["input_ids"], answer], 1)
        labels = ids.clone(); labels[:, :made["input_ids"].shape[1]] = -100
        extra = dict(pixel_values=made["pixel_values"]) if pixels is not None else {}
        batches.append(dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, **extra))
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        loss = sum(model(**b).loss for b in batches)
        opt.zero_grad(); loss.backward(); opt.step()
    return loss.item()


@pytest.fixture(scope="module")
def random_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vlm")/"tiny-random"
    build_model(folder)
    return folder


@pytest.fixture(scope="module")
def taught_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vlm")/"tiny-taught"
    model, processor = build_model(folder, 64, 2)
    assert teach(model, processor, photo_of()) < .1
    model.save_pretrained(folder)
    return folder


@pytest.fixture()
def no_network(monkeypatch):
    def refuse(*a, **k): raise AssertionError("a connection was opened")
    monkeypatch.setattr(socket.socket, "connect", refuse); monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_random_words_are_rejected_after_the_retries(retries, random_model, no_network, tmp_path):
    backend = V.local_captioner(random_model, max_new_tokens=16, device="cpu")
    asked, answer = [], backend.answer
    def counted(text, pixels, attempt, *names): asked.append(attempt); return answer(text, pixels, attempt, *names)
    backend.answer = counted
    table = tiny_table(2, 1)
    records = caption_run.caption_images(table, backend, tmp_path/"c.jsonl", retries=retries, quiet=True)
    assert asked == [*range(retries + 1)]*len(table)
    for r in T.read_records(tmp_path/"c.jsonl"):
        assert (r.status, r.n_retries, r.T1, r.caption) == ("rejected", retries, None, "")
        assert r.reason.startswith("T1: answer: no") and "JSON" in r.reason
    assert caption_run.caption_images(table, backend, tmp_path/"c.jsonl", retries=retries, quiet=True) == records
    assert len(asked) == (retries + 1)*len(table)                               # rejected ones are remembered
    caption_run.caption_images(table, backend, tmp_path/"c.jsonl", retries=retries + 1, quiet=True)
    assert len(asked) == (retries + 1)*len(table) + (retries + 2)*len(table)     # and asked again with more retries


def test_a_model_that_answers_well(taught_model, no_network, tmp_path):
    "The whole path with real weights: pixels in, three valid answers out"
    backend = V.local_captioner(taught_model, Words.prompts, max_new_tokens=300, device="cpu")
    r = caption_run.caption_image(photo_of(), backend)
    assert (r.status, r.n_retries, r.reason) == ("ok", 0, "")
    assert (r.T2.S_init, r.caption) == ("A person in a t-shirt.", "A person in an orange coat.")
    assert [(s.attribute, s.used) for s in r.T2.trace_gen] == [("upper", True), ("bag", False)]
    assert r.T1.model == "tiny-taught" and r.T3.trace_corr[0].span == (14, 21)
    other = V.local_captioner(taught_model, {**Words.prompts, "perceive": "What?"}, max_new_tokens=300, device="cpu")
    keys = {caption_run.caption_key(photo_of(), b) for b in (backend, other)} | {caption_run.caption_key(photo_of(1), backend),
                                                                       caption_run.caption_key(photo_of(), backend, .7)}
    assert len(keys) == 4


def test_another_model_audits(taught_model, no_network, tmp_path):
    "The second answers the audit only, and the record is another one than without it"
    writer, table = V.local_captioner(taught_model, Words.prompts, max_new_tokens=300, device="cpu"), photo_of()

    class Calm(Echo):
        heard = []
        def audit(self, photo, text, attempt=0): self.heard.append(text); return dict(corrections=[])
        def perceive(self, photo, attempt=0): raise AssertionError("the writer perceives")
        compose = perceive
    r = caption_run.caption_image(table, T.WithAuditor(writer, Calm()))
    assert (r.status, r.caption, Calm.heard) == ("ok", "A person in a t-shirt.", ["A person in a t-shirt."])
    assert r.T1.model == "tiny-taught, audited by echo" and r.key != caption_run.caption_image(table, writer).key
    with pytest.raises(TypeError, match="has no name"): T.WithAuditor(writer, "gpt")


def test_code_of_a_folder_does_not_run(random_model, tmp_path):
    import shutil
    folder = tmp_path/"vlm"; shutil.copytree(random_model, folder)
    config = json.loads((folder/"config.json").read_text())
    own = {"AutoConfig": "evil.Config", "AutoModelForImageTextToText": "evil.Model"}
    config |= dict(model_type="unknown-model", auto_map=own)
    (folder/"config.json").write_text(json.dumps(config))
    (folder/"evil.py").write_text(f"open({str(tmp_path/'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    with pytest.raises(ValueError, match="cannot be read as a vision-language model"):
        V.local_captioner(folder, device="cpu")
    assert not (tmp_path/"ran").exists()


@pytest.mark.parametrize("text, says", [("", "no object"), ("{", "no valid object"), ('{"a": 1}', "key 'b' is missing"),
    ("{"*10_000, "no valid object"), ('{"b": ' + "["*100_000, "no valid object"), ('["b"]', "no object")])
def test_answers_without_json(text, says):
    start = time.monotonic()
    with pytest.raises(T.TraceError, match=says): V.find_json(text, "b")
    assert time.monotonic() - start < 5


# Runs

def test_contents_decide_not_names(photos, tmp_path):
    echo, path = Echo(), tmp_path/"c.jsonl"
    first = caption_run.caption_images(photos, echo, path, quiet=True)
    assert [r.pid for r in first] == [*range(6)] and sum(echo.asked.values()) == 6
    (photos/"0000_c1_0.png").rename(photos/"0009_new.png")                  # a new name and id
    (photos/"0005_c1_5.png").write_bytes((photos/"0001_c1_1.png").read_bytes())   # new contents, known from another
    second = caption_run.caption_images(photos, echo, path, quiet=True)
    assert sum(echo.asked.values()) == 6
    assert [(r.image, r.pid) for r in second][-2:] == [("0005_c1_5.png", 5), ("0009_new.png", 9)]
    assert second[-2].key == second[0].key == first[1].key
    size = path.stat().st_size
    caption_run.caption_images(photos, echo, path, quiet=True)
    assert path.stat().st_size == size                                       # nothing new, nothing written
    caption_run.caption_images(photos, Echo("His t-shirt."), path, quiet=True)         # other settings: captioned anew
    assert len(T.read_records(path)) == 6 + 2 + 6


SLOW = """import sys, time
sys.path.insert(0, {tests!r})
from test_captioning import Echo
from reid_lab.captioning.run import caption_images
class Slow(Echo):
    def perceive(self, photo, attempt=0):
        print('asked', photo.image, flush=True); time.sleep(.2); return super().perceive(photo, attempt)
caption_images(sys.argv[1], Slow(), sys.argv[2], quiet=True)
"""


def test_a_kill_loses_the_image_in_hand_at_most(photos, tmp_path):
    path, program = tmp_path/"c.jsonl", tmp_path/"slow.py"
    program.write_text(SLOW.format(tests=os.path.dirname(__file__)))
    cmd = [sys.executable, str(program), str(photos), str(path)]
    run = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
    asked = [run.stdout.readline() for _ in range(4)]                        # it has just begun the fourth image
    run.kill(); run.wait(); run.stdout.close()
    assert asked[3] == "asked 0003_c1_3.png\n"
    assert [r.image for r in T.read_records(path)] == [f"000{i}_c1_{i}.png" for i in range(3)]
    again = subprocess.run(cmd, capture_output=True, text=True, check=True)
    assert again.stdout.split("\n")[:-1] == [f"asked 000{i}_c1_{i}.png" for i in range(3, 6)]
    assert [r.image for r in T.read_records(path)] == [f"000{i}_c1_{i}.png" for i in range(6)]
    assert not [p for p in tmp_path.iterdir() if p.name not in ("photos", "c.jsonl", "slow.py", ".c.jsonl.lock")]


@pytest.mark.parametrize("case, says", [("empty", "holds no image"), ("nowhere", "is no folder"), ("text", "is text"),
                                        ("zero", "is empty"), ("leaves", "leaves the dataset folder"),
                                        ("gone", "not exist|missing")])
def test_broken_inputs_stop_before_the_first_question(case, says, photos, tmp_path):
    source, echo = photos, Echo()
    if case == "empty": source = tmp_path/"empty"; source.mkdir()
    if case == "nowhere": source = tmp_path/"nowhere"
    if case == "text": (photos/"x.jpg").write_text("no image")
    if case == "zero": (photos/"x.jpg").write_bytes(b"")
    if case in ("leaves", "gone"):
        path = "../c.png" if case == "leaves" else "c.png"
        source = ReidTable(pd.DataFrame(dict(path=["0000_c1_0.png", path], pid=[1, 2])), photos)
    with pytest.raises(ValueError, match=says): caption_run.caption_images(source, echo, tmp_path/"c.jsonl", quiet=True)
    assert not echo.asked and not (tmp_path/"c.jsonl").exists()


def test_a_link_out_of_the_folder(photos, tmp_path):
    Image.new("RGB", (8, 16)).save(tmp_path/"secret.png"); (photos/"a.png").symlink_to(tmp_path/"secret.png")
    with pytest.raises(ValueError, match="is a link"): caption_run.caption_images(photos, Echo(), tmp_path/"c.jsonl", quiet=True)


def test_an_image_that_is_damaged_behind_its_header(photos, tmp_path):
    whole = (photos/"0003_c1_3.png").read_bytes()
    (photos/"0003_c1_3.png").write_bytes(whole[:60])
    with pytest.raises(ValueError, match="0003_c1_3.png.*damaged or cut short"):
        caption_run.caption_images(photos, Echo(), tmp_path/"c.jsonl", quiet=True)
    assert len(T.read_records(tmp_path/"c.jsonl")) == 3                      # what was done before is kept
    (photos/"0003_c1_3.png").write_bytes(whole); echo = Echo()
    assert len(caption_run.caption_images(photos, echo, tmp_path/"c.jsonl", quiet=True)) == 6 and len(echo.asked) == 3


class Wrong(Echo):
    "One answer that does not hold"
    def __init__(self, question, answer): super().__init__(); self.question, self.given = question, answer
    def perceive(self, photo, attempt=0): return self.given if self.question == "perceive" else super().perceive(photo)
    def compose(self, attributes, attempt=0): return self.given if self.question == "compose" else super().compose([])
    def audit(self, photo, text, attempt=0): return self.given if self.question == "audit" else dict(corrections=[])


@pytest.mark.parametrize("question, answer, says", [
    ("perceive", None, "T1: perceive: an object is asked for"),
    ("perceive", {}, "T1: perceive: key 'attributes' is missing"),
    ("perceive", dict(attributes=[]), "T1: attributes is empty"),
    ("perceive", dict(attributes=[SEEN, SEEN]), "more than once"),
    ("perceive", dict(attributes=[SEEN], model="x"), "key 'model' is not known"),
    ("compose", dict(S_init=" ", trace_gen=[STEP]), "T2: S_init=' '"),
    ("compose", dict(S_init="A coat.", trace_gen=[STEP]), "not in S_init"),
    ("compose", dict(S_init="A coat.", trace_gen=[]), "nothing is said about 'upper'"),
    ("compose", dict(S_init="A t-shirt.", trace_gen=[STEP, dict(STEP, attribute="hat")]), "'hat' was not asked for"),
    ("compose", dict(S_init="A t-shirt.", trace_gen=None), "trace_gen='None' is no list"),
    ("audit", dict(corrections=["x"]), "T3: trace_corr\\[0\\]='x' is no object"),
    ("audit", dict(corrections="x"), "is no list"),
    ("audit", dict(corrections=[dict(span=[0, 1], op="drop", to="", **{"from": "Z"}, **WHY)]), "not from='Z'")])
def test_answers_that_do_not_hold(question, answer, says):
    r = caption_run.caption_image(photo_of(), Wrong(question, answer), retries=2)
    assert (r.status, r.n_retries) == ("rejected", 2)
    with pytest.raises(ValueError, match=says): raise ValueError(r.reason)
    states = ("perceive", "compose", "audit").index(question)
    assert [s is not None for s in (r.T1, r.T2, r.T3)] == [i < states for i in range(3)]


def test_other_errors_name_the_image(tmp_path):
    class Ill(Echo):
        def audit(self, photo, text, attempt=0): raise RuntimeError("no memory")
    with pytest.raises(RuntimeError) as e: caption_run.caption_image(photo_of(2), Ill())
    assert e.value.__notes__ == ["while captioning '2.png'"]
    with pytest.raises(TypeError, match="has no"): caption_run.caption_images(tiny_table(2, 1), object(), tmp_path/"c.jsonl")


# Reports

def test_reports_against_naive_counts():
    truths, records = captioned(20)
    records = records + [caption_run.caption_image(photo_of(), Wrong("audit", None), retries=1)]
    ops = Counter(c.op for r in records if r.T3 for c in r.T3.trace_corr)
    edits = caption_audit.edit_table(records).set_index("op")
    assert edits.n.to_dict() == {o: ops[o] for o in T.OPS}
    assert edits.share.tolist() == pytest.approx([100*ops[o]/sum(ops.values()) for o in T.OPS])
    assert edits.captions["edit"] == pytest.approx(100*np.mean([any(c.op == "edit" for c in r.T3.trace_corr)
                                                                 for r in records if r.T3]))
    one = caption_audit.record_summary(records).iloc[0]
    assert (one.images, one.ok, one.rejected) == (21, 20, 1) and one.retries == pytest.approx(1/21)
    words = [len(r.caption.replace("-", " ").split()) for r in records if r.status == "ok"]
    lengths = caption_audit.length_table(records).set_index("captions_of")
    assert lengths.max_words["refined"] == max(words) and lengths.avg_words["refined"] == pytest.approx(np.mean(words))
    assert (lengths.avg_words["AERI-PEDES"], lengths.max_words["AERI-PEDES"]) == (38.6, 105)
    cover = caption_audit.coverage_table(records).set_index("attribute")
    used = sum(any(s.attribute == "gender" and s.used for s in r.T2.trace_gen) for r in records)
    assert cover.said["gender"] == pytest.approx(100*used/21)


def test_similarity_is_the_cosine_of_each_pair():
    from reid_lab.models.weights.shipped import shipped
    from reid_lab.models.zoo import create_model
    clip, table = create_model("clip_tiny", weights=shipped()["clip_tiny"][1]), tiny_table(3, 1)
    said = ["a man in red", "", "a woman with a bag"]
    got = caption_audit.pair_similarity(clip, table, said, quiet=True)
    with torch.inference_mode():
        for i in (0, 2):
            img = torch.from_numpy(table.images([i], clip.size)).permute(0, 3, 1, 2)/255
            a, b = clip.eval().encode_image(img)[0], clip.encode_text(clip.tokenizer([said[i]]))[0]
            assert got[i] == pytest.approx(float(a @ b/(a.norm()*b.norm())), abs=1e-4)
    assert np.isnan(got[1])


def test_marks_cover_all_words_and_stay_in_the_line():
    truths, records = captioned(6)
    for r in records:
        pieces = T.marked_pieces(r)
        laid = captioning._lay(pieces, 3., 7)
        assert [w.text for w in laid] == [w for _, t in pieces for w in t.split()]
        assert all(w.x + w.width <= 3.0001 or w.x == 0 for w in laid)
        assert [w.line for w in laid] == sorted(w.line for w in laid)
    text = T.marked_pieces(a_record(draft="A $t-shirt$ & <b>x_1</b> t-shirt."))
    fig = captioning.marked_examples([text], [photo_of().pixels])
    assert len(fig.picture()) > 1000                                          # nothing is read as mathematics


def test_captions_for_a_table(tmp_path):
    table = tiny_table(4, 1)
    records = caption_run.caption_images(table, Echo(), tmp_path/"c.jsonl", quiet=True)
    assert caption_run.with_captions(table, records)["captions"].tolist() == [["A person in a t-shirt."]]*4
    with pytest.raises(ValueError, match="have none"): caption_run.with_captions(table, records[:2])
