"A page that answers sentences by itself says what Python says: tokens, features, lists, words"
import random
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.browser import CHROMIUM, FLAGS, NEEDS_CHROMIUM

from reid_lab.analysis.open_set import Threshold
from reid_lab.analysis.search import ask, find, with_chance
from reid_lab.data.text import WordPiece, read_text
from reid_lab.models.page_towers import MOST_BYTES, page_tower
from reid_lab.recipes.crops import ready_model, ready_names
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.widgets.page import front_file
from reid_lab.widgets.search import answer_page

playwright = pytest.importorskip("playwright.sync_api", reason="the dev extra is not installed")
pytestmark = NEEDS_CHROMIUM
COLOURS = ("black", "white", "red", "blue", "green", "grey", "yellow", "purple", "brown", "pink")
SENTENCES = [
    *(f"a man in a {colour} coat and {other} trousers" for colour, other in zip(COLOURS, COLOURS[::-1])),
    *(f"A WOMAN with a {colour} bag, and a {colour} hat!" for colour in COLOURS),
    *(f"{n} people; one of them is {n*7} years old & tall" for n in range(10)),
    "a zebra with a quokka bag", "t-shirt", "it's the 90's", "a man's coat", "(red) [blue] {green}", "red,blue,green",
    "a man wearing " + "a very long black coat and " * 60, "red " * 54, "red " * 55, "red " * 166, "red " * 167,
    "man"*40, "x" * 101, "café, naïve, Ångström, straße, İstanbul, ﬁne, ½", "“quoted” ‘twice’ ´so´", "漢字 man Жук",
    "a\u200bb re\ufe0fd so\u00adft", "e\u0301te\u0301 o\u0308l", "😀 man 👩‍🦰", "<b>red</b> coat <i x=1>",
    "&eacute;t&eacute; &lt;b&gt; &notit; red &amp; blue", "a [UNK] in a [MASK] coat", "[UNK].",
    "\u00a0\u3000red\u2028coat\x1cman", "a", "?!", "back\\slash 'and' \"quotes\"",
]
READ = """([record, texts]) => {
  const reader = sentenceReader(record.tokenizer);
  const feature = textTower(record.tower);
  return texts.map((text) => {
    const { ids, known, unknown, marks, note } = reader.read(text);
    const signs = marks.map(([, mark]) => mark).join("");
    return { ids, known, unknown, marks: signs, note, feature: [...feature(ids)] };
  });
}"""


@contextmanager
def new_page(**how):
    "A page of chromium, and the list of its errors"
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page, broken = browser.new_page(**how), []
        page.on("pageerror", lambda e: broken.append(str(e)))
        yield page, broken
        browser.close()


def check_same_words(read, text, tokenizer):
    "What the page reads of a text is what Python reads"
    ids = tokenizer([text])[0].tolist()
    assert read["ids"] == ids[:ids.index(tokenizer.sep_id) + 1], text
    own = read_text(text, tokenizer)
    found = read["known"], tuple(read["unknown"]), read["marks"], read["note"]
    assert found == (own.known, own.unknown, own.marks(), str(own)), text


def drawn_texts(n):
    "Texts of odd words and signs, some of them joined"
    rng = random.Random(5)
    odd = " ".join(sentence for sentence in SENTENCES[30:] if len(sentence) < 100)
    words = [*odd.split(" "), "red", "coat", "&", "<", "'", "\u0300", "&#39;", "&bogus;"]
    for _ in range(n):
        text = " ".join(rng.choice(words) for _ in range(rng.choice((1, 3, 9, 40))))
        if rng.random() < .3: text = text.replace(" ", "", rng.randint(1, 4))
        yield "".join(chr(rng.randrange(32, 0x370)) if rng.random() < .03 else sign for sign in text)


def test_features_and_words_of_every_shipped_tower_are_those_of_python():
    names = [name for name in ready_names() if hasattr(ready_model(name).net, "encode_text")]
    assert {"clip_tiny", "camel_tiny", "irra_tiny"} <= set(names) and len(SENTENCES) >= 50
    with new_page() as (page, broken):
        for file in ("view.js", "tokens.js", "tower.js"): page.add_script_tag(content=front_file(file))
        for name in names:
            model = ready_model(name).net
            tower = page_tower(model, SENTENCES[:3])
            found = page.evaluate(READ, [tower.record(), SENTENCES])
            for read, text in zip(found, SENTENCES): check_same_words(read, text, model.tokenizer)
            with torch.inference_mode(): own = model.encode_text(model.tokenizer(SENTENCES))
            features = torch.tensor([read["feature"] for read in found])
            assert torch.allclose(features, own, atol=1e-5, rtol=0), name
        plain = WordPiece(tower.tokenizer.vocab, 20, clean="plain")    # another form, a shorter room
        texts = [*SENTENCES, *drawn_texts(300)]
        for read, text in zip(page.evaluate(READ, [replace(tower, tokenizer=plain).record(), texts]), texts):
            check_same_words(read, text, plain)
    assert not broken


TYPED = ["a man in a red coat", "A WOMAN with a quokka bag, 20 years old!", "a man in a very long coat " * 40,
         "nothing of the"]
CUT_SHOWN = 8       # words of the end that is cut off, as search.js shows them
LIMITS = [("clip_tiny", Threshold(.1, .1, .1, 40, 12, gallery=40)),
          ("camel_tiny", Threshold(.9, .1, .1, 40, 12, gallery=10)), ("clip_tiny", None)]
LABELLED = "text => document.querySelector('.rl-search').getAttribute('aria-label').includes(text)"
REFUSED = "text => document.querySelector('.rl-message')?.textContent.includes(text)"


def listed(page):
    "(row, score as written) of each image of the page"
    return page.eval_on_selector_all(".rl-item", """(all) => all.map((item) =>
      [Number(item.dataset.row), item.querySelector(".rl-line span").textContent])""")


def type_sentence(page, text):
    page.fill("input.rl-ask", text)
    page.keyboard.press("Enter")


@pytest.mark.filterwarnings("ignore::UserWarning")  # the page says them
@pytest.mark.parametrize("name, limit", LIMITS)
def test_a_typed_sentence_has_the_answer_of_python(tmp_path, name, limit):
    model = ready_model(name).net
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, model.dim))*rng.uniform(.5, 2, (40, 1))      # of any length
    g = Embeddings(vectors.astype("f4"), np.arange(40) - 1, np.arange(40) % 3, path=[f"a/{i}.jpg" for i in range(40)],
                   meta=dict(model_name=name))
    stored = find(ask(model, ["a man", "a woman"]), g, 8, limit)
    board = answer_page(stored, title="Search", model=model)
    text = board.to_html(tmp_path/"page.html").read_text("utf-8")
    assert board.why_not == "" and len(text) < MOST_BYTES
    with new_page() as (page, broken):
        page.goto((tmp_path/"page.html").as_uri())
        page.wait_for_selector(".rl-item")
        assert "computed in this page, and nothing is sent" in page.inner_text(".rl-foot")
        for sentence in TYPED:
            answer = with_chance(find(ask(model, sentence.strip()), g, 8, limit), model)
            type_sentence(page, sentence)
            page.wait_for_function(LABELLED, arg=sentence[:15])
            table = answer.table()
            assert listed(page) == [[row, f"{score:z.3f}"] for row, score in zip(table.row, table.score)]
            verdict, chance = page.inner_text(".rl-verdict"), page.get_attribute(".rl-strip", "aria-label")
            assert chance == answer.by_chance()
            python = answer.sentence().removeprefix("present: ").removeprefix("nobody clears the threshold ")
            if limit is None: python = python.partition("; ")[2]   # the score stands above the strip
            assert python in verdict, (python, verdict)
            if limit: assert ("✓ present" in verdict) == bool(answer.present[0])
            struck = page.eval_on_selector_all(".rl-asked s", "all => all.map((el) => el.firstChild.textContent)")
            words, marks = zip(*answer.words()) if answer.words() else ((), ())
            first_cut = marks.index("c") if "c" in marks else len(marks)
            shown = first_cut + CUT_SHOWN
            assert struck == [word for word, mark in zip(words[:shown], marks) if mark != "."]
            cut_off = len(words) - shown
            if cut_off > 0: assert f"and {cut_off} further words, cut off" in page.inner_text(".rl-asked")
            assert page.inner_text(".rl-search .rl-mute[role=status]") == "computed in this page"
        for refused, words in (("  ", "sentence is empty"), ("quokka", "unknown: 'quokka'"), ("?!", "holds no word")):
            type_sentence(page, refused)
            page.wait_for_function(REFUSED, arg=words)
            assert not listed(page)
        page.click("button[aria-label='next query']")       # back to what is stored
        page.wait_for_selector(".rl-item")
        assert page.input_value("input.rl-ask") == "a woman" and listed(page)[0][0] == stored.table(1).row[0]
    assert not broken


def test_a_mark_on_a_typed_sentence_is_in_the_download(tmp_path):
    model = ready_model("clip_tiny").net
    g = Embeddings(np.eye(12, 64, dtype="f4"), [-1]*12, path=[f"a/{i}.jpg" for i in range(12)])
    answer_page(find(ask(model, "a man"), g, 4), model=model).to_html(tmp_path/"page.html")
    with new_page(accept_downloads=True) as (page, broken):
        page.goto((tmp_path/"page.html").as_uri())
        type_sentence(page, "a red coat")
        page.click(".rl-item >> nth=1 >> .rl-mark-same")
        row = page.get_attribute(".rl-item >> nth=1", "data-row")
        assert page.get_attribute(".rl-item >> nth=1 >> .rl-mark-same", "aria-pressed") == "true"
        below = page.inner_text(".rl-item >> nth=1 >> small")
        assert not below.strip(), "its name stands in place of the picture, once"
        with page.expect_download() as download: page.click("text=download marks")
        text = download.value.path().read_text("utf-8")
    assert f'"b":"a/{row}.jpg"' in text and '"question":"a red coat"' in text and not broken
