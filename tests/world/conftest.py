"Fixtures of the tests of the World"
import pytest

from reid_lab.world.people import sample_people


@pytest.fixture(scope="session")
def crowd():
    "Six hundred people"
    return sample_people(600, seed=11)
