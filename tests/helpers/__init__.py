"What tests of several packages share (`pytest.ini` puts `tests` on the path)."
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
