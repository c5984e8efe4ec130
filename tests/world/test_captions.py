"""Who lives in the World and what is said about them."""
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from reid_lab.core.basics import stream
from reid_lab.world.captions import (CONFUSED, GRANULARITY, LADDER, STYLES, attribute_oracle, caption, caption_oracle,
                                    caption_with_facts, mentionable)
from reid_lab.world.people import (ATTRIBUTES, COLOURS, HAIR, NEEDS, OPENABLE, PALETTE, PARTS, SKIN, SLEEVES, UNIFORM,
                                  WARDROBE,
                                  change_accessories, differences, look_alike, name_colour, sample_people, shade,
                                  srgb_to_lab)


@pytest.fixture(scope="module")
def crowd(): return sample_people(600, seed=11)


@pytest.fixture(scope="module")
def captions(crowd):
    "style -> granularity -> captions of the first 300 people"
    return {s: {g: [caption(p, style=s, granularity=g, rng=stream(0, s, g, p.pid)) for p in crowd[:300]]
                for g in GRANULARITY} for s in STYLES}


def words(text): return re.findall(r"[a-z'-]+", text.lower())


# ---- people

def test_palette_is_far_apart():
    for palette, least in ((PALETTE, 20), (SKIN, 10), (HAIR, 20)):
        lab = srgb_to_lab(list(palette.values()))
        d = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + 1e3*np.eye(len(lab))
        assert d.min() > least


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PALETTE)), st.floats(-60, 60), st.floats(-20, 20), st.floats(-20, 20))
def test_a_shade_keeps_its_name(name, light, a, b): assert name_colour(shade(name, light, (a, b))) == name


def test_rendered_colours_agree_with_the_words(crowd):
    varied = set()
    for p in crowd[:150]:
        for slot in ('hat', 'upper', 'inner', 'pattern', 'lower', 'shoes', 'bag', 'held'):
            word = getattr(p, {'shoes': 'shoe'}.get(slot, slot) + '_colour')
            if word == 'none': assert p.rgb(slot) is None
            else:
                assert name_colour(p.rgb(slot)) == word
                varied.add((word, p.rgb(slot)))
        assert name_colour(p.rgb('skin'), SKIN) == p.skin and name_colour(p.rgb('hair'), HAIR) == p.hair_colour
    assert len(varied) > 300   # the same word has many shades


def test_values_are_words_of_the_tables(crowd):
    for p in crowd:
        for slot in WARDROBE:
            assert getattr(p, slot) in WARDROBE[slot] or (slot, getattr(p, slot)) == ('lower', 'dress')
        for slot in COLOURS: assert getattr(p, slot) in PALETTE or getattr(p, slot) == 'none'
        assert p.sleeve in SLEEVES[p.upper]
        assert (p.upper == 'dress') == (p.lower == 'dress')
        assert p.upper in OPENABLE or (p.opened, p.inner_colour) == ('no', 'none')
        assert 1.45 <= p.height <= 2.05
        for thing in ('hat', 'bag', 'held'):
            assert (getattr(p, thing) == 'none') == (getattr(p, f'{thing}_colour') == 'none')
        assert p.pattern_colour != p.upper_colour
    assert set(NEEDS) | {'gender', 'build'} == set(ATTRIBUTES) and set(NEEDS.values()) < set(PARTS)


def test_sampling_is_deterministic_and_a_prefix(crowd):
    assert sample_people(50, seed=11) == crowd[:50]
    assert sample_people(50, seed=12) != crowd[:50] and sample_people(50, seed=11, site=1) != crowd[:50]
    assert [p.pid for p in sample_people(5, pid=100)] == [100, 101, 102, 103, 104]


def test_families_resemble_and_strangers_do_not():
    crowd = sample_people(2000, seed=1)
    share = np.mean([p.family >= 0 for p in crowd])
    assert .3 < share < .4
    by_pid = {p.pid: p for p in crowd}
    kin = [len(differences(p, by_pid[p.family])) for p in crowd if p.family not in (-1, p.pid)]
    rng = stream(0, 'pairs')
    strangers = [len(differences(*(crowd[i] for i in rng.choice(2000, 2, replace=False)))) for _ in range(300)]
    assert min(kin) >= 1 and np.mean(kin) < 3 and np.mean(strangers) > 8
    assert not any(p.family >= 0 for p in sample_people(200, family_rate=0.))


def test_uniforms_are_shared_within_a_site_only():
    sites = {s: [p for p in sample_people(300, seed=2, site=s, uniform_rate=.3, family_rate=.3) if p.uniform >= 0]
             for s in (0, 1)}
    outfits = {}
    for s, people in sites.items():
        for p in people: outfits.setdefault((s, p.uniform), set()).add(tuple(getattr(p, a) for a in UNIFORM))
    assert all(len(o) == 1 for o in outfits.values()) and len(outfits) == 4
    assert {u for s, u in outfits if s == 0} & {u for s, u in outfits if s == 1} == set()


def test_skew_moves_the_population():
    plain, red = (np.mean([p.upper_colour == 'red' for p in sample_people(400, skew=s)])
                  for s in (None, {'upper_colour': {'red': 10.}}))
    assert red > 3*plain
    with pytest.raises(ValueError, match="skew\\['upper_colour'\\]='rouge'"):
        sample_people(3, skew={'upper_colour': {'rouge': 2.}})
    with pytest.raises(ValueError, match='uniform_rate=-1 must be a share'): sample_people(3, uniform_rate=-1)


def test_accessories_change_and_nothing_else(crowd):
    for p in crowd[:200]:
        q = change_accessories(p, stream(0, p.pid), p=.5)
        assert set(differences(p, q)) <= {'held', 'held_colour', 'hat', 'hat_colour', 'bag', 'bag_colour', 'opened'}
        assert replace(q, **{a: getattr(p, a) for a in ATTRIBUTES}) == p


def test_a_look_alike_is_never_the_same(crowd):
    for p in crowd[:100]: assert differences(p, look_alike(p, stream(1, p.pid)))


# ---- captions

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
                total += 1; swapped += facts[a] != getattr(p, a)
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
    a = replace(crowd[0], gender='man', upper_colour='red'); b = replace(a, upper_colour='blue')
    assert attribute_oracle([a, a, b, b], ('upper_colour',)) == .5 and attribute_oracle([a, b], ('upper_colour',)) == 1.
    assert caption_oracle([a, a, b], [{'upper_colour': 'red'}]*2 + [{'upper_colour': 'blue'}]) == pytest.approx(2/3)
    assert caption_oracle([a, b], [{'upper_colour': 'blue'}, {'upper_colour': 'blue'}]) == .5   # the first is misled


def test_look_alikes_keep_the_ladder_open():
    independent, real = (sample_people(1000, seed=3, **kw) for kw in (dict(family_rate=0., uniform_rate=0.), dict()))
    for name in ('+ 2 types', '+ bag', '+ shoe colour', 'medium'):
        assert attribute_oracle(real, LADDER[name]) < attribute_oracle(independent, LADDER[name]) - .01
    rungs = [attribute_oracle(real, a) for a in LADDER.values()]
    assert rungs == sorted(rungs) and rungs[0] < .35 and rungs[-1] > .98
