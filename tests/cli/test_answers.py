"What search and calibrate say beside a list: the model, unread words, chance, files that changed"
import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from reid_lab.analysis.open_set import Threshold
from reid_lab.cli.commands import main
from reid_lab.data.marks import Mark, write_marks
from reid_lab.recipes import crops as C
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.world.world import World


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    "Crops of a World, with a column `score` such as that of a detector, and their features"
    root = tmp_path_factory.mktemp("answers")
    table = World("smoke", task="text").table().where(split="test")
    (root/"crops").mkdir()
    rows = [dict(path=f"{i}.png", pid=f"p{table['pid'][i]}", caption=table["captions"][i][0], score=.5 + i/100,
                 accepted="by hand") for i in range(24)]
    for i in range(24): Image.fromarray(table.image(i)).save(root/"crops"/f"{i}.png")
    pd.DataFrame(rows).to_csv(root/"crops"/"m.csv", index=False)
    for more, out in (((), "g"), (("--captions",), "q")):
        assert main(["embed", str(root/"crops"/"m.csv"), "--model", "clip_tiny", "--out", str(root/out), *more]) == 0
    return root


@pytest.fixture
def features(made, tmp_path):
    return shutil.copytree(made, tmp_path/"own", copy_function=shutil.copy2)


def test_search_names_the_model_the_words_and_chance(made, capsys):
    long = " ".join(["a man in a black coat"]*60)
    assert main(["search", str(made/"g"), "a man with a zebra", long, "-k", "2"]) == 0
    out, err = capsys.readouterr()
    assert out.count("best score") == 2 and "unknown to the tokenizer" not in err       # each is said once
    assert main(["search", str(made/"g"), "a man with a zebra", "--expand", "2"]) == 0
    expanded = capsys.readouterr().out
    assert "not compared with random sentences" in expanded and "not read: zebra" in expanded
    assert "model clip_tiny: trained on 6 rendered Worlds, on no photograph" in out and "doubt: in photographs" in out
    assert "not read: zebra (unknown to the model)" in out and "(cut off, the sentence is too long)" in out
    assert out.count("of 200 random sentences") == 2
    assert main(["search", str(made/"g"), "a man with a zebra", "--json", "-k", "2"]) == 0
    said, = json.loads(capsys.readouterr().out)
    assert said["unread"] == ["zebra"] and said["model"]["kind"] == "worlds" and said["random_sentences"]["n"] == 200
    assert 0 <= said["random_sentences"]["share_below"] <= 1 and said["misses"] is None
    assert main(["search", str(made/"g"), "--image", str(made/"crops"/"3.png"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["random_sentences"] is None


def test_a_column_named_score_hides_no_similarity(made, capsys):
    answer = C.search(made/"g", "a man in a black coat", 3)
    f = answer.table()
    assert f.columns.is_unique and np.allclose(f.score, answer.result.score[0])
    assert (f.gallery_score.astype(float) >= .5).all() and (f.gallery_accepted == "by hand").all()
    assert C.search(made/"g", "a man", 3, threshold=Threshold(.1, .1, .1, 9, 9)).table().accepted.all()
    assert main(["search", str(made/"g"), "a man in a black coat", "-k", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]["results"]
    assert np.allclose([row["score"] for row in found], answer.result.score[0], atol=1e-6)


def test_calibrate_prints_both_rates_and_an_older_file_has_none(features, capsys):
    t = str(features/"t.json")
    assert main(["calibrate", str(features/"q"), str(features/"g"), "--rate", ".2", "--out", t]) == 0
    out = capsys.readouterr().out
    people = len({f"p{i}" for i in C.open_features(features/"q").pid})
    assert f"searches of {people} people" in out and "misses of people who are there: " in out and "[" in out
    assert "false alarms for people who are not: " in out and "e+" not in out and "clip_tiny" in out
    assert main(["search", str(features/"g"), "a woman in pink", "--threshold", t, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["misses"]["people"] == people
    facts = json.loads((features/"t.json").read_text())
    facts = {k: v for k, v in facts.items() if k not in ("misses", "alarms")} | dict(value=.9999)
    (features/"t.json").write_text(json.dumps(facts))
    assert main(["search", str(features/"g"), "a woman in pink", "--threshold", t]) == 0
    assert "saved without the share of people that it misses" in capsys.readouterr().out
    facts["misses"] = dict(share=.5, low=.6, high=.7, n=1, people=1)
    (features/"t.json").write_text(json.dumps(facts))
    assert main(["search", str(features/"g"), "a woman in pink", "--threshold", t]) == 2
    assert "no share within its interval" in capsys.readouterr().err


def test_images_that_are_lost_or_newer_are_noted_without_a_page(features, capsys):
    e = Embeddings.load(features/"g")
    e.meta["root"] = str(features/"crops")
    e.save(features/"bare")

    def note():
        assert main(["search", str(features/"bare"), "a man in a black coat", "-k", "2"]) == 0
        return capsys.readouterr().err

    assert "listed images" not in note()
    newer, lost = C.search(features/"bare", "a man in a black coat", 2).table().path
    later = os.path.getmtime(features/"bare"/"emb.safetensors") + 60
    os.utime(features/"crops"/newer, (later, later))
    (features/"crops"/lost).unlink()
    noted = note()
    assert f"1 of 2 listed images is no longer there ({lost}" in noted
    assert f"1 of 2 listed images was written after the features: it may show something else ({newer}" in noted


def test_folders_of_files_to_be_written_are_made(features, tmp_path, capsys):
    g, made = str(features/"g"), tmp_path/"new"
    page, pairs = made/"a"/"page.HTML", made/"b"/"pairs.csv"
    assert main(["match", g, g, "--html", str(page), "--out", str(pairs), "-k", "1"]) == 0, capsys.readouterr().err
    assert page.is_file() and pairs.is_file()


def test_a_page_keeps_its_pictures_or_names_the_folder_that_it_needs(features, tmp_path, monkeypatch, capsys):
    "Features and crops were moved together (`features` is a copy); then the crops alone"
    page = features/"other"/"deep"/"page.html"
    monkeypatch.chdir(tmp_path)

    def written(*more):
        command = ["search", str(features/"g"), "a man in a black coat", "-k", "3", "--html", str(page), "--fresh"]
        assert main([*command, "--answers-only", *more]) == 0
        text = page.read_text(encoding="utf-8")
        notes = [line for line in text.splitlines() if line.startswith('<p class="note"')]
        return len(set(re.findall(r"data:image/jpeg;base64,[^\"]+", text))), notes, capsys.readouterr().err

    assert written()[:2] == (3, [])
    (features/"crops").rename(features/"elsewhere")
    n_images, [note], said = written()
    assert n_images == 0 and "3 of the gallery images could not be read" in note
    assert "in the folder &#39;crops&#39;" in note
    assert str(tmp_path) not in page.read_text(encoding="utf-8") and "with --images" in said
    assert written("--images", str(features/"elsewhere"))[:2] == (3, [])


def test_a_page_says_whether_it_answers_more_sentences(features, tmp_path, capsys):
    page, n = tmp_path/"page.html", len(list((features/"crops").glob("*.png")))
    call = ["search", str(features/"g"), "a man in a black coat", "-k", "3"]

    def written(*more):
        assert main([*call, "--html", str(page), "--fresh", *more]) == 0
        text = page.read_text(encoding="utf-8")
        pictures = re.findall(r"data:image/jpeg;base64,[^\"]+", text)
        assert len(text) - sum(map(len, pictures)) < 8e6
        return len(pictures), "textTower(own.tower)" in text, capsys.readouterr().out

    n_pictures, answers, said = written()
    assert n_pictures == n > 3 and answers and f"it answers any sentence by itself, with all {n} images in it" in said
    assert written("--answers-only")[:2] == (3, False)
    assert main([*call, "--answers-only"]) == 2
    assert "--answers-only says what a page holds; give --html as well" in capsys.readouterr().err


def test_a_threshold_of_strangers_has_unknown_misses(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, first in (("q", 0), ("same", 0), ("others", 50)):
        Embeddings(rng.normal(size=(30, 4)), first + np.arange(30)).save(tmp_path/name)
    for name, is_unknown in (("others", True), ("same", False)):
        assert main(["calibrate", str(tmp_path/"q"), str(tmp_path/name), "--out", str(tmp_path/f"{name}.json")]) == 0
        assert ("the misses of this threshold are unknown" in capsys.readouterr().err) == is_unknown


def test_a_page_of_marks_begins_with_them(made, tmp_path, capsys):
    asked = "a man in a black coat"
    write_marks(tmp_path/"m.jsonl", [Mark("same", "3.png", question=asked)])
    call = ["search", str(made/"g"), asked, "--marks", str(tmp_path/"m.jsonl")]
    assert main([*call, "--html", str(tmp_path/"page.html")]) == 0
    assert "its download holds the marks of --marks too" in capsys.readouterr().out
    assert '"earlier":[{"kind":"same","b":"3.png"' in (tmp_path/"page.html").read_text("utf-8")
