"SYNTH-PEDES and LUPerson: folders written by hand as their read-me and programs describe them"
import json

import numpy as np
import pytest
from helpers.by_hand import picture

from reid_lab.data.table import TableError
from reid_lab.datasets.diagnosis import doctor
from reid_lab.datasets.export import export_world
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.datasets.registry import load_dataset
from reid_lab.retrieval.embeddings import Embeddings
from reid_lab.retrieval.metrics import retrieval_metrics

pytestmark = pytest.mark.usefixtures("no_user_settings")

# Zplusdragon/PLIP:README.md, the example of a record and another of a second part
RECORDS = [dict(id=7, file_path="Part1/7/1.jpg",
                attributes=["man,black hair,black shirt,pink shorts,black shoes,unknown"],
                captions=["A man with short hair.", "The man wears pink shorts."], prompt_caption=["A man in shorts."]),
           dict(id=8, file_path="Part2/8/1.jpg",
                attributes=["woman,unknown,white dress,unknown,unknown,handbag"],
                captions=["A woman in white."], prompt_caption=["A woman with a handbag."])]


@pytest.fixture
def synth(tmp_path):
    root = tmp_path/"SYNTH-PEDES"
    for record in RECORDS: picture(root/record["file_path"])
    (root/"synthpedes_dataset.json").write_text(json.dumps(RECORDS))
    return root


def test_synth_pedes(synth):
    t = load_dataset("synth-pedes", synth.parent, check="all")
    assert t["pid"].tolist() == [7, 8] and set(t["split"]) == {"train"}
    assert t["captions"].iat[0] == RECORDS[0]["captions"]
    assert t["attrs"].iat[0] == dict(gender="man", hair="black hair", upper="black shirt", lower="pink shorts",
                                     shoes="black shoes")
    assert t["attrs"].iat[1] == dict(gender="woman", upper="white dress", further="handbag")
    prompt = load_dataset("synth-pedes", synth, captions="prompt", attrs=False)
    assert prompt["captions"].tolist() == [["A man in shorts."], ["A woman with a handbag."]]
    assert prompt["attrs"].isna().all()
    assert [len(c) for c in load_dataset("synth-pedes", synth, captions="both")["captions"]] == [3, 2]
    assert load_dataset("synth-pedes", synth, parts="Part2")["path"].tolist() == ["Part2/8/1.jpg"]
    with pytest.raises(ValueError, match="parts='Part3' is not known"):
        load_dataset("synth-pedes", synth, parts=["Part3"])
    with pytest.raises(ValueError, match="captions='prompts' is not known"):
        load_dataset("synth-pedes", synth, captions="prompts")
    report = doctor("synth-pedes", synth)
    assert report.ok and "train: 2 ids, 2 images, 3 captions; no published number is recorded" in str(report)


def test_numbers_of_people_that_begin_anew_in_each_part(synth):
    again = [RECORDS[0], RECORDS[1] | dict(id=7)]
    (synth/"synthpedes_dataset.json").write_text(json.dumps(again))
    assert load_dataset("synth-pedes", synth)["pid"].nunique() == 2
    assert "numbers of people are used in several parts" in str(doctor("synth-pedes", synth))


def test_a_record_without_sentences_is_refused(synth):
    silent = {key: value for key, value in RECORDS[0].items() if key != "captions"}
    (synth/"synthpedes_dataset.json").write_text(json.dumps([silent]))
    with pytest.raises(TableError, match="key 'captions' is missing"): load_dataset("synth-pedes", synth)


@pytest.fixture
def luperson(tmp_path):
    "DengpanFu/LUPerson:LUP/extract.py writes country/city/<frame>_<object>.jpg; convert_lmdb.py has a folder a video"
    for name in ("France/Paris/00000012_0003.jpg", "France/Paris/00000012_0000.jpg",
                 "Japan/Tokyo/video one/00001000_0001.jpg"): picture(tmp_path/"luperson"/name)
    return tmp_path/"luperson"


def test_luperson_has_no_identities(luperson):
    t = load_dataset("luperson", luperson.parent, check="all")
    assert t["path"].iat[0] == "France/Paris/00000012_0000.jpg" and set(t["pid"]) == {-1}
    assert set(t["split"]) == {"test"} and set(t["role"]) == {"gallery"}
    assert t["scenario"].tolist() == ["France/Paris", "France/Paris", "Japan/Tokyo"]
    report = doctor("luperson", luperson)
    assert report.ok and "3 images, nobody says who is who" in str(report)
    e = Embeddings(np.eye(3), t["pid"].to_numpy(), path=t["path"].tolist())
    with pytest.raises(ValueError, match="pid -1|no query|needs ids"): retrieval_metrics(e, e, junk="none")
    picture(luperson/"notes/a.jpg")
    with pytest.raises(TableError, match="1 of 4 paths do not parse"): load_dataset("luperson", luperson)
    assert len(load_dataset("luperson", luperson, skip=True)) == 3
    assert "left out: 1 images whose paths do not parse" in str(doctor("luperson", luperson, skip=True))


def test_who_is_who_is_not_written(tmp_path):
    root = export_world(tiny_table(3, 2), "luperson", tmp_path/"luperson")
    assert len(load_dataset("luperson", root)) == 6 and set(load_dataset("luperson", root)["pid"]) == {-1}
