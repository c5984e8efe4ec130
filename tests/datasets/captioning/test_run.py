"Captioning runs: resumed after a kill, broken inputs, answers that do not hold"
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.captioning import SEEN, STEP, WHY, Echo, Wrong, photo_of
from PIL import Image

from reid_lab.data.table import ReidTable
from reid_lab.datasets.captioning import traces as T
from reid_lab.datasets.captioning.run import caption_image, caption_images, with_captions
from reid_lab.datasets.image_sets import tiny_table


@pytest.fixture()
def photos(tmp_path):
    (tmp_path/"photos").mkdir()
    for i, im in enumerate(tiny_table(6, 1).images()): Image.fromarray(im).save(tmp_path/"photos"/f"{i:04d}_c1_{i}.png")
    return tmp_path/"photos"


def test_contents_decide_not_names(photos, tmp_path):
    echo, path = Echo(), tmp_path/"c.jsonl"
    first = caption_images(photos, echo, path, quiet=True)
    assert [r.pid for r in first] == [*range(6)] and sum(echo.asked.values()) == 6
    (photos/"0000_c1_0.png").rename(photos/"0009_new.png")                  # a new name and id
    (photos/"0005_c1_5.png").write_bytes((photos/"0001_c1_1.png").read_bytes())   # new contents, known from another
    second = caption_images(photos, echo, path, quiet=True)
    assert sum(echo.asked.values()) == 6
    assert [(r.image, r.pid) for r in second][-2:] == [("0005_c1_5.png", 5), ("0009_new.png", 9)]
    assert second[-2].key == second[0].key == first[1].key
    size = path.stat().st_size
    caption_images(photos, echo, path, quiet=True)
    assert path.stat().st_size == size                                       # nothing new, nothing written
    caption_images(photos, Echo("His t-shirt."), path, quiet=True)         # other settings: captioned anew
    assert len(T.read_records(path)) == 6 + 2 + 6


SLOW = """import sys, time
sys.path.insert(0, {tests!r})
from helpers.captioning import Echo
from reid_lab.datasets.captioning.run import caption_images
class Slow(Echo):
    def perceive(self, photo, attempt=0):
        print('asked', photo.image, flush=True); time.sleep(.2); return super().perceive(photo, attempt)
caption_images(sys.argv[1], Slow(), sys.argv[2], quiet=True)
"""


@pytest.mark.kill
def test_a_kill_loses_the_image_in_hand_at_most(photos, tmp_path):
    path, program = tmp_path/"c.jsonl", tmp_path/"slow.py"
    program.write_text(SLOW.format(tests=str(Path(__file__).parents[2])))
    cmd = [sys.executable, str(program), str(photos), str(path)]
    run = subprocess.Popen(cmd, stdout=subprocess.PIPE, text=True)
    asked = [run.stdout.readline() for _ in range(4)]                        # it has just begun the fourth image
    run.kill()
    run.wait()
    run.stdout.close()
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
    if case == "empty":
        source = tmp_path/"empty"
        source.mkdir()
    if case == "nowhere": source = tmp_path/"nowhere"
    if case == "text": (photos/"x.jpg").write_text("no image")
    if case == "zero": (photos/"x.jpg").write_bytes(b"")
    if case in ("leaves", "gone"):
        path = "../c.png" if case == "leaves" else "c.png"
        source = ReidTable(pd.DataFrame(dict(path=["0000_c1_0.png", path], pid=[1, 2])), photos)
    with pytest.raises(ValueError, match=says): caption_images(source, echo, tmp_path/"c.jsonl", quiet=True)
    assert not echo.asked and not (tmp_path/"c.jsonl").exists()


def test_a_link_out_of_the_folder(photos, tmp_path):
    Image.new("RGB", (8, 16)).save(tmp_path/"secret.png")
    (photos/"a.png").symlink_to(tmp_path/"secret.png")
    with pytest.raises(ValueError, match="is a link"): caption_images(photos, Echo(), tmp_path/"c.jsonl", quiet=True)


def test_an_image_that_is_damaged_behind_its_header(photos, tmp_path):
    whole = (photos/"0003_c1_3.png").read_bytes()
    (photos/"0003_c1_3.png").write_bytes(whole[:60])
    with pytest.raises(ValueError, match="0003_c1_3.png.*damaged or cut short"):
        caption_images(photos, Echo(), tmp_path/"c.jsonl", quiet=True)
    assert len(T.read_records(tmp_path/"c.jsonl")) == 3                      # what was done before is kept
    (photos/"0003_c1_3.png").write_bytes(whole)
    echo = Echo()
    assert len(caption_images(photos, echo, tmp_path/"c.jsonl", quiet=True)) == 6 and len(echo.asked) == 3


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
    r = caption_image(photo_of(), Wrong(question, answer), retries=2)
    assert (r.status, r.n_retries) == ("rejected", 2)
    with pytest.raises(ValueError, match=says): raise ValueError(r.reason)
    states = ("perceive", "compose", "audit").index(question)
    assert [s is not None for s in (r.T1, r.T2, r.T3)] == [i < states for i in range(3)]


def test_other_errors_name_the_image(tmp_path):
    class Ill(Echo):
        def audit(self, photo, text, attempt=0): raise RuntimeError("no memory")
    with pytest.raises(RuntimeError) as e: caption_image(photo_of(2), Ill())
    assert e.value.__notes__ == ["while captioning '2.png'"]
    with pytest.raises(TypeError, match="has no"): caption_images(tiny_table(2, 1), object(), tmp_path/"c.jsonl")


def test_captions_for_a_table(tmp_path):
    table = tiny_table(4, 1)
    records = caption_images(table, Echo(), tmp_path/"c.jsonl", quiet=True)
    assert with_captions(table, records)["captions"].tolist() == [["A person in a t-shirt."]]*4
    with pytest.raises(ValueError, match="have none"): with_captions(table, records[:2])
