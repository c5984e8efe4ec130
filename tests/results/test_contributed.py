"Rows of others: every field is checked, conflicts are named, nothing is overwritten"
import json
from dataclasses import asdict

import pytest

from reid_lab.models.weights.formats import OURS
from reid_lab.results.contributed import (
    FIELDS,
    FORM,
    OWN_LAYOUT,
    check_contribution,
    contributed_path,
    contributed_table,
    load_contributed,
    merge_contributions,
    read_contribution,
)
from reid_lab.results.reproductions import reproduction
from reid_lab.results.tables import to_markdown

SIDES = dict(query=dict(ids=750, images=3368, captions=0, cams=6),
             gallery=dict(ids=751, images=15913, captions=0, cams=6))


TAKEN = dict(layout="bot", model="bot_r50", matched=323, total=324)


def row(**changes):
    "An invented row of BoT on Market-1501"
    bot = reproduction("bot-market1501")
    sent = dict(form=FORM, name=bot.name, time="2026-11-27T12:00:00+00:00", commit="0123456789", dataset="market1501",
                split="test", protocol=asdict(bot.protocol), arguments=dict(size=[256, 128]),
                metrics=dict(R1=94.5, mAP=85.9), test_set=SIDES, taken=TAKEN,
                weights=dict(file="m.pth", bytes=9, sha256="a"*64), lists=dict(query="b"*64, gallery="c"*64),
                environment=dict(reid_lab="0.3.0", gpu="invented"), notes=[])
    return sent | changes


def sent(folder, name, **changes):
    (folder/name).write_text(json.dumps(row(**changes)))
    return folder/name


@pytest.mark.parametrize("changes, message", [
    (dict(form="other"), "form is 'other'"), (dict(name="bot-market"), "Did you mean"),
    (dict(time="today"), "no UTC time"), (dict(time="9999-99-99T99:99:99+00:00"), "no UTC time"),
    (dict(metrics=dict(foo=50.)), "'foo' is no metric such as R1"),
    (dict(weights=dict(file=["m"], bytes=9, sha256="a"*64)), "weights.file"),
    (dict(weights=dict(file="m.pth", bytes=-5, sha256="a"*64)), "weights.bytes=-5 is no whole number above 0"),
    (dict(taken=dict(matched=3)), "taken.total=None is no whole number above 0"),
    (dict(taken=dict(matched=3, total=3)), "taken.layout=None is no name"),
    (dict(taken=TAKEN | dict(layout="agw")), "layout 'agw' for the model 'bot_r50', and those of .* are of 'bot' for"),
    (dict(taken=TAKEN | dict(layout="a released BoT (its stem has no ReLU)")), "'a released BoT .*and those of"),
    (dict(taken=TAKEN | dict(layout="reid_lab", model="agw_r50")), "'reid_lab' for the model 'agw_r50'"),
    (dict(dataset="msmt17"), "dataset is 'msmt17'"), (dict(split="val"), "split is 'val'"),
    (dict(protocol=dict(queries="images")), "protocol is"), (dict(arguments=dict(size=[64, 32])), "arguments is"),
    (dict(metrics={}), "metrics are empty"), (dict(metrics=dict(R1=101.)), "R1=101.0 is no percentage"),
    (dict(metrics=dict(R1=True)), "R1=True is no percentage"), (dict(metrics=dict(R1="94")), "is no percentage"),
    (dict(metrics=dict(R1=float("nan"))), "R1=nan is no percentage"),
    (dict(metrics=[]), "metrics is a list, expected a dict"),
    (dict(test_set={}), "does not count ids"), (dict(test_set=SIDES | dict(query=dict(ids=1))), "does not count"),
    (dict(test_set=SIDES | dict(gallery=dict(ids=751, images=9, captions=0, cams=6))), "the gallery has 9 images"),
    (dict(weights=dict(sha256="A"*64)), "no SHA-256 sum"), (dict(lists=dict(query="b"*64)), "lists.gallery=None"),
    (dict(environment=dict(gpu=["x"])), "neither a number nor a short text"), (dict(notes=["x"*501]), "short text"),
    (dict(more=1), "'more'"), (dict(name="reid-tta-market1501"), "protocol|arguments|the released file has")])
def test_a_field_that_is_wrong_is_refused(changes, message):
    with pytest.raises(ValueError, match=message): check_contribution(row(**changes), "sent.json")


def test_a_file_that_was_written_anew_keeps_its_model():
    "`weights convert` names the layout of this library, under which the model tells what it is"
    assert OWN_LAYOUT == OURS.name
    sent = row(taken=TAKEN | dict(layout=OWN_LAYOUT))
    assert check_contribution(sent) == sent
    old = dict(name="fastreid-bot-market1501", arguments=dict(size=[256, 128]), taken=TAKEN | dict(
        layout="fastreid_old", model="frozen:fastreid_bot_r50"),
        protocol=asdict(reproduction("fastreid-bot-market1501").protocol))
    assert check_contribution(row(**old))["name"] == "fastreid-bot-market1501"
    with pytest.raises(ValueError, match="those of fastreid-bot.* are of 'fastreid' or 'fastreid_old' for"):
        check_contribution(row(**old | dict(taken=TAKEN)))


def test_a_row_of_an_entry_that_does_not_open_is_refused():
    with pytest.raises(ValueError, match="plip-cuhk-pedes cannot be repeated yet"):
        check_contribution(row(name="plip-cuhk-pedes"))


def test_what_is_no_contribution_is_refused(tmp_path):
    assert check_contribution(row()) == row() and set(row()) == set(FIELDS)
    for field in FIELDS:
        less = {k: v for k, v in row().items() if k != field}
        with pytest.raises(ValueError, match=f"lacks '{field}'"): check_contribution(less)
    for text, message in (("no json", "is no JSON"), ("[]", "is no contribution"), (" "*2**21, "more than")):
        (tmp_path/"x.json").write_text(text)
        with pytest.raises(ValueError, match=message): read_contribution(tmp_path/"x.json")


def test_rows_are_merged_all_or_none(tmp_path):
    store = tmp_path/"results"/"rows.json"
    first = sent(tmp_path, "first.json")
    assert load_contributed(store) == [] and contributed_path(store) == store
    assert len(merge_contributions([first], store).added) == 1 and load_contributed(store) == [row()]
    before = store.read_bytes()
    again = merge_contributions([first], store)
    assert (again.added, again.known) == ([], [row()]) and store.read_bytes() == before
    later = "2026-11-28T12:00:00+00:00"
    apart = sent(tmp_path, "apart.json", time=later, metrics=dict(R1=94.5, mAP=85.7))
    fine = sent(tmp_path, "fine.json", time=later, weights=dict(file="other.pth", bytes=9, sha256="d"*64),
                metrics=dict(R1=90., mAP=80.))
    named = "apart.json and the row of bot-market1501 of 2026-11-27.*mAP 85.7 and 85.9; nothing was added"
    with pytest.raises(ValueError, match=named):
        merge_contributions([fine, apart], store)
    with pytest.raises(ValueError, match="is no JSON"): merge_contributions([fine, _broken(tmp_path)], store)
    assert store.read_bytes() == before
    # other weights, and a row that confirms the first one
    confirms = sent(tmp_path, "confirms.json", time=later, metrics=dict(R1=94.45, mAP=85.9))
    assert len(merge_contributions([fine, confirms], store).added) == 2 and len(load_contributed(store)) == 3
    with pytest.raises(ValueError, match="no file is named"): merge_contributions([], store)


def _broken(folder):
    (folder/"broken.json").write_text("{")
    return folder/"broken.json"


def test_rows_of_one_call_may_not_contradict_each_other(tmp_path):
    files = [sent(tmp_path, "a.json"), sent(tmp_path, "b.json", metrics=dict(R1=90.))]
    with pytest.raises(ValueError, match="b.json and the row of"): merge_contributions(files, tmp_path/"rows.json")
    assert not (tmp_path/"rows.json").exists()


def test_a_store_that_was_damaged_is_named(tmp_path):
    for text, message in (("{}", "holds no list"), ("x", "holds no list"), ("[{}]", "row 1 of rows.json lacks 'form'")):
        (tmp_path/"rows.json").write_text(text)
        with pytest.raises(ValueError, match=message): load_contributed(tmp_path/"rows.json")


def test_texts_of_strangers_are_escaped_on_the_page():
    table = contributed_table([row(environment=dict(gpu="<b>|x", reid_lab="0.3.0"))])
    text = to_markdown(table)
    assert "<b>" not in text and table.loc[0, "R1"] == "94.5 (94.5)" and table.loc[0, "verdict"] == "agrees"
    assert contributed_table([]).empty


def test_brackets_without_end_are_no_json(tmp_path):
    (tmp_path/"deep.json").write_text("["*200_000)
    with pytest.raises(ValueError, match="deep.json is no JSON"): read_contribution(tmp_path/"deep.json")


def test_a_store_that_cannot_be_written_is_named(tmp_path):
    "Not the lock file, which the user does not know of"
    first = tmp_path/"first.json"
    first.write_text(json.dumps(row()))
    (tmp_path/"file").write_text("")
    with pytest.raises(IsADirectoryError, match="store=.* is a folder"): merge_contributions([first], tmp_path)
    with pytest.raises(NotADirectoryError, match="store=.*all.json"):
        merge_contributions([first], tmp_path/"file"/"all.json")
