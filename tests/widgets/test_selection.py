"Selections refuse what is not there, and tell those who follow, once"
import gc

import numpy as np
import pytest
from helpers.views import make_scene

from reid_lab.widgets.scene import RankedList
from reid_lab.widgets.selection import Selection


def test_views_that_are_gone_are_not_told():
    scene, told = make_scene(query=1), []
    class Told(RankedList):
        def _selected(self, new): told.append(new)
    view = Told(scene)
    scene.selection.query = 2
    del view
    gc.collect()
    scene.selection.query = 3
    assert told == [dict(query=2)]


def test_a_follower_may_go_while_others_are_told():
    scene, told = make_scene(query=1), []
    class Told(RankedList):
        def _selected(self, new): told.append(new)
        def refresh(self): told.append("ranking")
    class Drops(Told):
        def _selected(self, new):
            later.clear()
            gc.collect()
        refresh = lambda self: self._selected(None)
    first, later = Drops(scene), [Told(scene)]
    scene.selection.query = 2
    later.append(Told(scene))
    scene.scores = -scene.ranker.scores.block(0, 20).clone()
    assert not told and isinstance(first, Drops)


def test_selection_refuses_and_stays():
    sel = Selection(3, 5, [0, 2], n_words=[4, 0, 2], query=0, words=[3])
    for wrong in (dict(query=3), dict(query=True), dict(gallery=[5]), dict(camera=1), dict(camera=(0, 1)),
                  dict(words=[4]), dict(query=1, words=[0]), dict(query=2, gallery=[1], camera="all")):
        with pytest.raises((ValueError, TypeError), match="choose|one of|remain|words|integers"): sel.set(**wrong)
        assert sel.state() == dict(query=0, gallery=[], camera=None, words=[3]), wrong
    sel.query = np.int64(2)
    assert sel.state() == dict(query=2, gallery=[], camera=None, words=[])
