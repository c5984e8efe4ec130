"The rule of junk as a record and as text"
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings, strategies as st

from reid_lab.retrieval.junk import AUTO, Junk, as_junk, junk_words, of_same_camera, read_junk

NAMES = st.text("abcxyz_019 -é", min_size=1, max_size=6).filter(lambda t: t == t.strip() and t not in ("auto", "none"))
PARTS = st.builds(lambda sign, name: sign + name, st.sampled_from(["", "", "other:"]), NAMES)
GROUPS = st.lists(st.lists(PARTS, min_size=1, max_size=3).map("+".join), max_size=3)
VALUES = NAMES.filter(lambda t: not re.fullmatch("-[019]+", t))       # numbers below 0 are no labels, see below
PAIRS = st.dictionaries(NAMES, st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=2), max_size=2)


@given(columns=GROUPS, together=st.lists(NAMES, max_size=3), pairs=PAIRS)
@settings(max_examples=100, deadline=None)
def test_text_and_repr_give_the_rule_again(columns, together, pairs):
    rule = Junk(*columns, all=together, pairs=pairs)
    assert read_junk(str(rule)) == rule == eval(repr(rule)) and hash(read_junk(str(rule))) == hash(rule)
    assert bool(rule) == bool(columns or together or pairs) and (str(rule) == "none") == (not rule)
    assert junk_words(rule) and set(rule.columns) >= set(together)


@pytest.mark.parametrize("value, says", [("-1", "stands for unknown"), ("-9", "below -1 are no labels")])
def test_a_pair_of_no_label_is_refused(value, says):
    with pytest.raises(ValueError, match=says): Junk(pairs={"cam": [("0", value)]})


@pytest.mark.parametrize("given_, want", [
    (None, Junk()), ("none", Junk()), ("auto", AUTO), (" auto ", AUTO), ("cam", Junk("cam")),
    ("cam, clothes", Junk("cam", "clothes")), ("cam + mod", Junk(all=("cam", "mod"))),
    ("cam,other:clothes", Junk("cam", "other:clothes")), ("cam + other: mod", Junk(all=("cam", "other:mod"))),
    ("cam=3:2,cam=6:5", Junk(pairs={"cam": [(3, 2), (6, 5)]})), (Junk("cam"), Junk("cam"))])
def test_what_a_rule_may_be_given_as(given_, want): assert as_junk(given_) == want


@pytest.mark.parametrize("wrong, says", [
    ("", "no name"), ("cam,,x", "no name"), ("cam=3", "such as cam=3:2"), ("none,cam", "a rule of its own"),
    ("cam=3:2:1", "holds ':'"), ("other:", "no name"), ("others:cam", "holds ':'"), (True, "must be a rule")])
def test_what_no_rule_is(wrong, says):
    with pytest.raises((ValueError, TypeError), match=says): as_junk(wrong)


def test_values_of_the_last_release_are_taken_with_a_warning():
    for old, new in (("drop", Junk("cam")), ("keep", Junk())):
        with pytest.warns(DeprecationWarning, match="the old value goes"): found = as_junk(old)
        assert found == new == of_same_camera(old)


def test_the_record_needs_no_torch():
    code = "import sys, reid_lab.retrieval.junk; print({'torch', 'pandas', 'numpy'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout.strip() == b"set()"
