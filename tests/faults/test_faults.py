"""Every fault of the table, one test each: bad inputs are refused with the right words, interruptions lose nothing."""
import importlib
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from fault import message, warned  # noqa: E402

AREAS = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("fault", "conftest", "test_faults"))
OF_AREA = {area: importlib.import_module(area).FAULTS for area in AREAS}
FAULTS = [f for faults in OF_AREA.values() for f in faults]
AREA_OF = {f.name: area for area, faults in OF_AREA.items() for f in faults}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_fault(fault, tmp_path, record_property):
    record_property("fault", fault.kind)
    record_property("area", AREA_OF[fault.name])
    if fault.kind == "input":
        with pytest.raises(fault.error) as caught, warned(): fault.run(tmp_path)
        assert isinstance(caught.value, fault.error)
        said = message(caught.value)
    else: said = fault.run(tmp_path)
    assert fault.words, "a fault without key words checks too little"
    for word in fault.words: assert word in said, f"{word!r} is missing in: {said}"
    assert " object at 0x" not in said, said


def test_every_fault_is_named_once():
    names = [f.name for f in FAULTS]
    assert len(names) == len(set(names)), sorted(n for n in names if names.count(n) > 1)
    assert {f.kind for f in FAULTS} <= {"input", "interruption"}
