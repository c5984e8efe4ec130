"""Sentences and annotations that mean nothing to the program, other layouts, captions that are all rejected."""
import json
import os

from fault import bad

from reid_lab.analysis.search import ask
from reid_lab.data.text import ClipBPE, check_sentence
from reid_lab.datasets.captioning.run import accepted
from reid_lab.datasets.captioning.traces import CaptionRecord
from reid_lab.datasets.dg_sets import load_cuhk03
from reid_lab.datasets.image_sets import load_image_set, tiny_table, write_image_set
from reid_lab.datasets.registry import load_dataset
from reid_lab.datasets.text_sets import read_json, write_text_set
from reid_lab.models.zoo import create_model

SENTENCES = {"Chinese": "\u7a7f\u7ea2\u8272\u8863\u670d\u7684\u7537\u4eba", "an emoji": "\U0001F600",
             "nonsense": "asdkjh qwe zzz", "punctuation": "... !?",
             "Cyrillic": "\u043c\u0443\u0436\u0447\u0438\u043d\u0430"}


def _ask(sentence): return lambda tmp: ask(create_model("clip_tiny", weights="world"), sentence)


def _json(data): return lambda tmp: ((tmp/"a.json").write_bytes(data), read_json(tmp/"a.json"))


def _market(tmp):
    write_image_set(tiny_table(8, 2, 0, roles=True).where(split=["train", "test"]), tmp, "market1501")
    return tmp


def _not_utf8(tmp):
    here = os.fsencode(_market(tmp)/"query")
    os.rename(here + b"/" + os.listdir(here)[0], here + b"/0009_c1s1_000001_01_\xe9.jpg")
    load_image_set(tmp, "market1501")


def _other_case(tmp):
    (tmp/"RSTPReid").mkdir()
    write_text_set(tiny_table(), tmp/"RSTPReid", "rstpreid")
    for p in (tmp/"RSTPReid"/"imgs").iterdir(): p.rename(p.with_suffix(".JPG"))
    load_dataset("rstpreid", tmp)


def _rejected(n): return [CaptionRecord(image=f"{i}.jpg", pid=0, key=f"{i:064x}", status="rejected", n_retries=0,
                                        reason="T1: no object") for i in range(n)]


RECORD = json.dumps(dict(id=1, split="train"))
FAULTS = [
    *[bad(f"sentence: {name}", f"ask {name}", _ask(text), "no word that the tokenizer")
      for name, text in SENTENCES.items()],
    bad("sentence: Chinese for CLIP", "ask Chinese of CLIP's tokenizer",
        lambda tmp: check_sentence(SENTENCES["Chinese"], ClipBPE()), "no word that the tokenizer"),
    bad("annotation: GB18030", "captions in another encoding", _json("[\"\u7a7f\u7ea2\"]".encode("gb18030")),
        "not a UTF-8 text file", "iconv"),
    bad("annotation: a line that is cut", "JSON lines that end early",
        _json(f"{RECORD}\n{RECORD}\n{RECORD[:9]}".encode()),
        "line 3 of a file with one record a line"),
    bad("annotation: a line that is no JSON", "JSON lines with a comment", _json(f"{RECORD}\n{{x}}\n{RECORD}".encode()),
        "line 2 of a file with one record a line"),
    bad("dataset: a file name that is not UTF-8", "an image with a name in Latin-1", _not_utf8, "not UTF-8", "\\udce9"),
    bad("dataset: names in another case", "images end in .JPG, the annotation says .jpg", _other_case,
        "differ in upper and lower case"),
    bad("dataset: Market-1501 as MSMT17", "the wrong dataset is named",
        lambda tmp: load_image_set(_market(tmp), "msmt17"), "names of market1501"),
    bad("dataset: Market-1501 as CUHK03", "the wrong dataset is named",
        lambda tmp: load_cuhk03(_market(tmp)), "names of market1501"),
    bad("dataset: the classic protocol of a copy", "protocol='classic' of CUHK03-NP",
        lambda tmp: load_cuhk03(_market(tmp), protocol="classic"), "pass protocol='new'"),
    bad("captioning: all rejected", "no answer of the model holds",
        lambda tmp: accepted(_rejected(3), tmp/"c.jsonl"), "all 3 captions were rejected: 3 times", "T1: no object",
        "c.jsonl"),
]
