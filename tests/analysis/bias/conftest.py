"A report on features with a strong bias"
import pytest
from helpers.bias import scene

from reid_lab.analysis.bias import audit as bias_audit


@pytest.fixture(scope="session")
def strong(): return bias_audit.bias_report(*scene(2.), name="strong")   # 60 queries are one batch: DART3-LITE is Norm
