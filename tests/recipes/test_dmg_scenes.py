"""Images of sets, sites and persons: which rows there are, and which images they show."""
import numpy as np
import pytest

from reid_lab.datasets.protocols.dg_cases import load_case
from reid_lab.recipes.dmg_scenes import cameras_in_turn, images_of, persons_of, scene_figures, sets_of, sites_of


@pytest.fixture(scope="module", params=["world", "mixed world", "world-1->world-1, world-2"])
def case(request): return load_case(request.param, preset="smoke", seed=0)


def test_sets_are_the_training_sets_and_the_tests(case):
    sets = sets_of(case)
    assert list(sets)[-len(case.tests):] == list(case.tests)
    train = [table for name, table in sets.items() if name not in case.tests]
    if train: assert sum(map(len, train)) == len(case.train)
    assert all(len(table) for table in sets.values())


def test_every_site_is_a_row_of_its_own(case):
    for name, table in sites_of(case).items():
        assert table.frame.site.nunique() == table.frame.scenario.nunique() == 1
        assert name.endswith(f"{table['scenario'].iat[0]}, site {table['site'].iat[0]}")
    places = {(s, site) for t in images_of(case).values() for s, site in zip(t["scenario"], t["site"])}
    assert {(t["scenario"].iat[0], t["site"].iat[0]) for t in sites_of(case).values()} == places


def test_sites_that_training_and_a_test_share_lose_no_image(case):
    assert sum(map(len, sites_of(case).values())) == sum(map(len, images_of(case).values()))
    assert all(name.startswith(tuple(images_of(case))) for name in sites_of(case))


def test_persons_have_been_seen_by_many_cameras(case):
    found = persons_of(case, 4)
    most = case.train.frame.groupby("pid").cam.nunique().max()
    assert 1 <= len(found) <= 4 and all(t.frame.cam.nunique() == most for t in found.values())
    assert all(set(t["pid"]) == {int(name.split()[1])} for name, t in found.items())


def test_cameras_take_turns(case):
    f = cameras_in_turn(case.train, 10**6).frame
    assert len(f) == len(case.train) and (np.diff(f.cam) >= 0).all()
    few = cameras_in_turn(case.train, case.train.frame.cam.nunique())
    assert not few.frame.cam.duplicated().any()


def test_a_person_of_many_sites_is_shown_at_regular_distances(case):
    figures = scene_figures(case, (32, 16), n=3, most=2)
    assert list(figures) == ["sets", "sites", "persons"]
    assert all(len(fig.axes[0].images) <= 2*3 for fig in figures.values())


def test_junk_is_no_person():
    case = load_case("world", preset="smoke", seed=0)
    frame = case.train.frame.assign(pid=np.where(np.arange(len(case.train)) % 2, -1, case.train["pid"]))
    table = type(case.train)(frame, case.train.root, case.train.reader, case.train.name)
    from dataclasses import replace
    assert "person -1" not in persons_of(replace(case, train=table))
