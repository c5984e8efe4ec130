"The table of released checkpoints: every entry names what there is, every number its source"
import pytest

from reid_lab.datasets.registry import DATASETS
from reid_lab.models.frozen import named_tower
from reid_lab.models.weights.formats import LAYOUTS
from reid_lab.models.zoo import MODELS
from reid_lab.results.published import load_paper
from reid_lab.results.reproductions import (
    AGREES,
    DIFFERS,
    OTHER_SET,
    UNPRINTED,
    Compared,
    Protocol,
    beside_printed,
    reproduction,
    reproduction_table,
    reproduction_text,
    reproductions,
    verdict_of,
)

ENTRIES = [*reproductions().values()]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_entry_names_layouts_models_and_datasets_that_there_are(entry):
    assert set(entry.layouts) <= set(LAYOUTS) and entry.paper and entry.release and entry.container
    assert not entry.dataset or entry.dataset in DATASETS
    assert bool(entry.closed) != bool(entry.model)      # it opens, or says why not
    if entry.model:
        model, _ = named_tower(entry.model)
        assert entry.layouts and all(model in LAYOUTS[name].fits for name in entry.layouts)
        assert entry.arguments["size"] and entry.dataset
        facts = DATASETS[entry.dataset]
        assert facts.captions if entry.protocol.queries == "captions" else facts.image_queries
        assert (MODELS[model].reads == "captions") == (entry.protocol.queries == "captions")
        assert bool(entry.tokenizer) == (model == "camel_base")
    for printed in entry.printed:
        assert len(printed.source) > 10 and all(0 < value <= 300 for value in printed.metrics.values())


def test_numbers_of_stored_papers_are_looked_up():
    "As printed in the table that is named"
    table = {t["id"]: t for t in load_paper("camel")["tables"]}["II"]
    row, = [row for row in table["rows"] if row["method"] == "APTM"]
    printed = reproduction("aptm-rstpreid").printed[0]
    assert printed.metrics == row["metrics"] and "Table II" in printed.source
    camel = reproduction("camel-mals-icfg-pedes").printed[0]
    assert camel.metrics == dict(R1=17.5, R5=33.03, R10=41.04, mAP=6.06)


def test_a_checksum_is_of_its_source():
    sums = {entry.name: entry.sha256 for entry in ENTRIES if entry.sha256}
    assert sums["reid-tta-msmt17"] == sums["reid-tta-msmt17-to-market1501"] != sums["reid-tta-market1501"]
    assert all(len(value) == 64 for value in sums.values())


@pytest.mark.parametrize("ours, agrees", [(94.5, True), (94.6, True), (94.44, True), (94.64, True), (94.66, False),
                                          (94.3, False), (94.34, False)])
def test_a_score_agrees_in_the_digits_of_its_source(ours, agrees):
    "BoT prints one digit: 94.64 is 94.6 there"
    one = beside_printed(reproduction("bot-market1501"), dict(R1=ours))[0]
    assert one.agrees == agrees and abs(one.difference - round(ours - 94.5, 1)) < 1e-9


def test_verdicts():
    bot, right = reproduction("bot-market1501"), dict(R1=94.5, mAP=85.9)
    whole = dict(query=dict(ids=750, images=3368), gallery=dict(ids=751, images=15913))
    assert verdict_of(bot, right, whole) == AGREES and verdict_of(bot, right | dict(mAP=80.), whole) == DIFFERS
    few = dict(whole, query=dict(ids=750, images=3367))
    assert verdict_of(bot, right, few) == verdict_of(bot, right, None) == OTHER_SET
    assert verdict_of(reproduction("mllm4text-reid-rstpreid"), dict(R1=1.), "published") == UNPRINTED
    assert beside_printed(bot, dict(mAP=None)) == [] and Compared("R1", 1., 2., .1).difference == -1
    for field, value in dict(queries="words", features="x", score="y", pixels="z").items():
        with pytest.raises(ValueError, match=field): Protocol(**{field: value})


def test_texts_say_what_is_known():
    table = reproduction_table()
    assert list(table.name) == [entry.name for entry in ENTRIES]
    for entry in ENTRIES:
        text = reproduction_text(entry)
        assert entry.release in text and (entry.closed or entry.command) in text
        assert all(printed.source in text for printed in entry.printed) and all(note in text for note in entry.notes)
