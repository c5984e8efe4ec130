"Who lives in the World: colours keep their names, families resemble, and a seed gives the same people"
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from reid_lab.core.basics import stream
from reid_lab.world.people import (
    ATTRIBUTES,
    COLOURS,
    HAIR,
    NEEDS,
    OPENABLE,
    PALETTE,
    PARTS,
    SKIN,
    SLEEVES,
    UNIFORM,
    WARDROBE,
    change_accessories,
    differences,
    look_alike,
    name_colour,
    sample_people,
    shade,
    srgb_to_lab,
)


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
