"A local model that writes captions: what it answers is checked, and nothing is fetched or run"
import json
import socket

import pytest
import torch
from helpers.captioning import Echo, Words, build_model, photo_of

from reid_lab.datasets.captioning import traces as T, vision as V
from reid_lab.datasets.captioning.run import caption_image, caption_images, caption_key
from reid_lab.datasets.image_sets import tiny_table


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
        labels = ids.clone()
        labels[:, :made["input_ids"].shape[1]] = -100
        extra = dict(pixel_values=made["pixel_values"]) if pixels is not None else {}
        batches.append(dict(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels, **extra))
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(steps):
        loss = sum(model(**b).loss for b in batches)
        opt.zero_grad()
        loss.backward()
        opt.step()
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
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_random_words_are_rejected_after_the_retries(retries, random_model, no_network, tmp_path):
    backend = V.local_captioner(random_model, max_new_tokens=16, device="cpu")
    asked, answer = [], backend.answer
    def counted(text, pixels, attempt, *names):
        asked.append(attempt)
        return answer(text, pixels, attempt, *names)
    backend.answer = counted
    table = tiny_table(2, 1)
    records = caption_images(table, backend, tmp_path/"c.jsonl", retries=retries, quiet=True)
    assert asked == [*range(retries + 1)]*len(table)
    for r in T.read_records(tmp_path/"c.jsonl"):
        assert (r.status, r.n_retries, r.T1, r.caption) == ("rejected", retries, None, "")
        assert r.reason.startswith("T1: answer: no") and "JSON" in r.reason
    assert caption_images(table, backend, tmp_path/"c.jsonl", retries=retries, quiet=True) == records
    assert len(asked) == (retries + 1)*len(table)                               # rejected ones are remembered
    caption_images(table, backend, tmp_path/"c.jsonl", retries=retries + 1, quiet=True)
    assert len(asked) == (retries + 1)*len(table) + (retries + 2)*len(table)     # and asked again with more retries


def test_a_model_that_answers_well(taught_model, no_network, tmp_path):
    "The whole path with real weights: pixels in, three valid answers out"
    backend = V.local_captioner(taught_model, Words.prompts, max_new_tokens=300, device="cpu")
    r = caption_image(photo_of(), backend)
    assert (r.status, r.n_retries, r.reason) == ("ok", 0, "")
    assert (r.T2.S_init, r.caption) == ("A person in a t-shirt.", "A person in an orange coat.")
    assert [(s.attribute, s.used) for s in r.T2.trace_gen] == [("upper", True), ("bag", False)]
    assert r.T1.model == "tiny-taught" and r.T3.trace_corr[0].span == (14, 21)
    other = V.local_captioner(taught_model, {**Words.prompts, "perceive": "What?"}, max_new_tokens=300, device="cpu")
    keys = {caption_key(photo_of(), b) for b in (backend, other)} | {caption_key(photo_of(1), backend),
                                                                       caption_key(photo_of(), backend, .7)}
    assert len(keys) == 4


def test_another_model_audits(taught_model, no_network, tmp_path):
    "The second answers the audit only, and the record is another one than without it"
    writer, table = V.local_captioner(taught_model, Words.prompts, max_new_tokens=300, device="cpu"), photo_of()

    class Calm(Echo):
        heard = []
        def audit(self, photo, text, attempt=0):
            self.heard.append(text)
            return dict(corrections=[])
        def perceive(self, photo, attempt=0): raise AssertionError("the writer perceives")
        compose = perceive
    r = caption_image(table, T.WithAuditor(writer, Calm()))
    assert (r.status, r.caption, Calm.heard) == ("ok", "A person in a t-shirt.", ["A person in a t-shirt."])
    assert r.T1.model == "tiny-taught, audited by echo" and r.key != caption_image(table, writer).key
    with pytest.raises(TypeError, match="has no name"): T.WithAuditor(writer, "gpt")


def test_code_of_a_folder_does_not_run(random_model, tmp_path):
    import shutil
    folder = tmp_path/"vlm"
    shutil.copytree(random_model, folder)
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
    with pytest.raises(T.TraceError, match=says): V.find_json(text, "b")
