"""What is said about the people of the World."""
import re
from dataclasses import replace

import numpy as np
import pytest

from reid_lab.core.basics import stream
from reid_lab.world.captions import (
    CONFUSED,
    GRANULARITY,
    LADDER,
    STYLES,
    attribute_oracle,
    caption,
    caption_oracle,
    caption_with_facts,
    mentionable,
)
from reid_lab.world.people import sample_people


@pytest.fixture(scope="module")
def captions(crowd):
    "style -> granularity -> captions of the first 300 people"
    return {s: {g: [caption(p, style=s, granularity=g, rng=stream(0, s, g, p.pid)) for p in crowd[:300]]
                for g in GRANULARITY} for s in STYLES}


def words(text): return re.findall(r"[a-z'-]+", text.lower())


@pytest.mark.parametrize('style', STYLES)
@pytest.mark.parametrize('granularity', GRANULARITY)
def test_mean_lengths(captions, style, granularity):
    n = [len(c.split()) for c in captions[style][granularity]]
    goal = {'coarse': 23, 'medium': 37, 'fine': 80}[granularity]
    assert abs(np.mean(n) - goal) < .1*goal


def test_grammar(captions, crowd):
    for style in STYLES:
        for g in GRANULARITY:
            for p, text in zip(crowd, captions[style][g]):
                assert text[0].isupper() and text.endswith('.') and re.fullmatch(r"[A-Za-z' ,.-]+", text), text
                assert not re.search(r"\b[Aa] [aeio]|\b[Aa]n [^aeiou]|\ba pair of a |  |\.\.| ,|\bnone\b", text), text
                assert all(part[0].isupper() for part in text.split('. ')), text
                assert not ({'he', 'his', 'him'} if p.gender == 'woman' else {'she', 'her'}) & set(words(text)), text


def test_styles_share_words_but_not_phrasing(captions):
    crowd = sample_people(1500, seed=21)
    seen = {w for p in crowd for w in words(caption(p, style='generated', rng=stream(1, p.pid),
                                                    granularity=('coarse', 'medium', 'fine')[p.pid % 3]))}
    real = [w for g in GRANULARITY for c in captions['real'][g] for w in words(c)]
    assert np.mean([w not in seen for w in real]) < .01
    gerunds = {s: np.mean([w.endswith('ing') for g in GRANULARITY for c in captions[s][g] for w in words(c)])
               for s in STYLES}
    assert gerunds['generated'] > 1.5*gerunds['real']


def test_deterministic_and_own_stream(crowd):
    p = crowd[0]
    assert caption(p, rng=stream(0, 'a')) == caption(p, rng=stream(0, 'a')) != caption(p, rng=stream(0, 'b'))


def test_facts_are_true_without_confusion(crowd):
    for p in crowd[:200]:
        text, facts = caption_with_facts(p, rng=stream(3, p.pid), granularity='fine', confusion=0.)
        assert facts.items() <= p.attrs().items()
        for a in ('upper', 'lower', 'shoes', 'bag', 'held', 'hat'):   # what the text names is among the facts
            if getattr(p, a) in ('boots', 'backpack', 'handbag', 'phone', 'umbrella', 'skirt', 'leggings', 'beanie'):
                assert (getattr(p, a) in text) <= (a in facts), text


def test_confusion_follows_the_graph(crowd):
    swapped = total = 0
    for p in crowd:
        _, facts = caption_with_facts(p, rng=stream(4, p.pid), granularity='medium', confusion=.05)
        for a in ('upper_colour', 'lower_colour'):
            if a in facts:
                total += 1
                swapped += facts[a] != getattr(p, a)
                assert facts[a] == getattr(p, a) or facts[a] in CONFUSED[getattr(p, a)]
    assert .03 < swapped/total < .07


def test_only_what_is_in_view_is_said(crowd):
    for p in crowd[:200]:
        _, facts = caption_with_facts(p, rng=stream(5, p.pid), granularity='fine', view='back')
        assert not {'glasses', 'opened', 'inner_colour'} & set(facts) and facts.get('pattern') != 'logo'
        text, facts = caption_with_facts(p, rng=stream(6, p.pid), granularity='fine',
                                         visible={'lower': {'fraction': .8, 'pixels': 90}})
        assert set(facts) <= {'gender', 'build', 'lower', 'lower_colour'}
    shoes = [np.mean(['shoes' in mentionable(p, aerial=a, rng=stream(7, p.pid)) for p in crowd]) for a in (False, True)]
    assert shoes[0] == 1 and shoes[1] < .3


def test_nothing_in_view_still_makes_a_sentence(crowd):
    text, facts = caption_with_facts(crowd[0], rng=stream(0), visible={})
    assert text.endswith('.') and set(facts) <= {'gender', 'build'}


@pytest.mark.parametrize('bad', [dict(granularity='finest'), dict(style='human'), dict(view='top'),
                                 dict(action='flying')])
def test_unknown_choices(crowd, bad):
    with pytest.raises(ValueError, match=f"{next(iter(bad))}=.*choose one of"): caption(crowd[0], rng=stream(0), **bad)


# ---- oracles

def test_attribute_oracle_by_hand(crowd):
    a = replace(crowd[0], gender='man', upper_colour='red')
    b = replace(a, upper_colour='blue')
    assert attribute_oracle([a, a, b, b], ('upper_colour',)) == .5 and attribute_oracle([a, b], ('upper_colour',)) == 1.
    assert caption_oracle([a, a, b], [{'upper_colour': 'red'}]*2 + [{'upper_colour': 'blue'}]) == pytest.approx(2/3)
    assert caption_oracle([a, b], [{'upper_colour': 'blue'}, {'upper_colour': 'blue'}]) == .5   # the first is misled


def test_look_alikes_keep_the_ladder_open():
    independent, real = (sample_people(1000, seed=3, **kw) for kw in (dict(family_rate=0., uniform_rate=0.), dict()))
    for name in ('+ 2 types', '+ bag', '+ shoe colour', 'medium'):
        assert attribute_oracle(real, LADDER[name]) < attribute_oracle(independent, LADDER[name]) - .01
    rungs = [attribute_oracle(real, a) for a in LADDER.values()]
    assert rungs == sorted(rungs) and rungs[0] < .35 and rungs[-1] > .98
