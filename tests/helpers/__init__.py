"What tests of several packages share (`pytest.ini` puts `tests` on the path)."
