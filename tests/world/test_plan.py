"The plan of a World: splits share nobody, and a change of one thing leaves the others as they were"
import hashlib
import json
from dataclasses import asdict, replace

import pytest

from reid_lab.world.places import ISP
from reid_lab.world.plan import PLAN_VERSION, PRESETS, TASKS, CameraCounts, Options, Plan, reid_groups, text_groups

FEW = text_groups(6, 2, 3, 4, 4, 3, CameraCounts(3, 3))
OPTIONS = Options(size=(48, 24), supersample=1)


def test_severity_moves_sensors_only():
    a, b = (Plan(FEW, replace(OPTIONS, severity=s), 5).items for s in (.2, .9))
    assert [i.shot for i in a] == [i.shot for i in b] and [i.seen for i in a] == [i.seen for i in b]
    for x, y in zip(a, b):
        assert replace(x.camera.camera, isp=ISP()) == replace(y.camera.camera, isp=ISP())
        assert (x.camera.camera.isp == y.camera.camera.isp) == (x.camera.domain == "generated")


def test_adding_people_keeps_those_before():
    before, more = (Plan(groups, OPTIONS, 5).items for groups in (FEW, (replace(FEW[0], ids=9), *FEW[1:])))
    n = FEW[0].ids*FEW[0].shots
    assert more[:n - 4] == before[:n - 4]


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("preset", PRESETS)
def test_splits_share_nobody(preset, task):
    groups = tuple(replace(g, ids=min(g.ids, 12), shots=min(g.shots, 6)) for g in PRESETS[preset][task])
    plan = Plan(groups, Options(), 0)
    ids = {s: {i.person.pid for i in plan.items if plan.groups[i.group].split == s} for s in ("train", "val", "test")}
    assert all(ids.values())
    assert not (ids["train"] & ids["val"] | ids["train"] & ids["test"] | ids["val"] & ids["test"])
    assert len({i.camera.cam for i in plan.items}) == len(plan.cams)
    domains = {(i.camera.cam, i.camera.domain) for i in plan.items}
    assert len(domains) == len(plan.cams)


PLANS = {  # version -> plan -> sum of all that it draws
    1: dict(text="5d89c2e2c46a", reid="84facebad895", aerial="57bf76f82d26", choosy="709151a7121f",
            **{"aerial-ground": "ea7b2b3529a0"})}


def test_another_plan_has_another_version():
    "Images are cached under a name that holds the version, so that those of another plan are not taken for these"
    groups = {task: PRESETS["smoke"][task] for task in TASKS} | dict(choosy=reid_groups(12, 3, 2, 12, 2, choosy=2.))
    def sum_of(plan):
        items = json.dumps([asdict(item) for item in plan.items], default=float)
        return hashlib.sha256(items.encode()).hexdigest()[:12]
    drawn = {name: sum_of(Plan(g, Options(), seed=3)) for name, g in groups.items()}
    assert drawn == PLANS.get(PLAN_VERSION), "the plan draws other numbers: raise PLAN_VERSION, and add its sums here"


def test_groups_take_single_counts_of_the_last_release():
    with pytest.warns(DeprecationWarning, match=r"cameras=CameraCounts\(generated=..., real") as caught:
        old = text_groups(6, 2, 3, 4, 4, 3, gen_cams=3, cams=6)
    assert caught[0].filename == __file__ and old == text_groups(6, 2, 3, 4, 4, 3, CameraCounts(3, 6))
    with pytest.raises(TypeError, match="takes the record CameraCounts"): text_groups(6, 2, 3, 4, 4, 3, 3, 6)
    with pytest.raises(ValueError, match="real=2"): CameraCounts(3, 2)
