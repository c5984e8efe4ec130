"Scores of maps on a World, and their table"
import math

import numpy as np
import pandas as pd
import pytest
from helpers.towers import SIZE, TOK, tiny

from reid_lab.analysis.explain import map_scores
from reid_lab.analysis.explain.faithfulness import centre_map, pointing
from reid_lab.analysis.explain.map_scores import map_methods, map_table
from reid_lab.analysis.explain.visibility import named_parts, person_pairs


def test_table_of_maps():
    own = dict(pointing=[1, 1, 1, 1, 0, 1, 0, 0], mass=[.6, .7, .6, .65, *[.2]*4],
               deletion_gain=[.1, .12, .11, .1, .1, -.1, .2, -.2], deletion_beats=[1, 1, 1, 1, .5, 0, 1, 0.])
    f = pd.DataFrame(dict(model="m", method=["a"]*4 + ["b"]*4, pid=[1, 1, 2, 3]*2, world=0, part="upper",
                          chance=.2, chance_person=.5, **own))
    t = map_table(f).set_index("method")
    assert (t.n == 4).all() and (t.groups == 3).all() and t.pointing.tolist() == [1, .25]
    assert math.isclose(t.point_person["b"], np.mean([.5, 0, 0]) - .5)
    assert t.points.tolist() == [True, False] and t.in_mask.tolist() == [True, False]
    assert t.deletes.tolist() == [True, False]
    assert len(map_table(f, by=("method", "part"))) == 2
    with pytest.raises(ValueError, match="groups"): map_table(f, "camera")
    one = map_table(f, groups="world")
    assert (one.groups == 1).all() and not one.points.any()                # a single World has no interval


@pytest.mark.whole
def test_scores_of_maps_on_a_world(tmp_path):
    from reid_lab.world.plan import Group
    from reid_lab.world.world import World
    world = World("quick", seed=3, task="text", cache=tmp_path, size=SIZE, groups=[Group("test", "real-like", 3, 2, 2)])
    table = world.table()
    camel, bot = tiny("camel_tiny"), tiny("bot_tiny")
    cells = named_parts(table, world, tokenizer=TOK)
    def settings(name, **more): return map_scores.MapSettings(name, steps=3, n=1, batch=5, **more)
    f = map_scores.map_scores(camel, table, world, ["gradcam", "cross-gradcam", "centre"],
                              settings=settings("camel"), quiet=True)
    assert len(f) == 3*len(cells) and f.deletion_beats.between(0, 1).all()
    masks = {(r.path, r.part): r["mask"] for _, r in cells.iterrows()}
    row = f[f.method == "centre"].iloc[2]
    mask = masks[row.path, row.part]
    assert math.isclose(row.chance, mask.mean()) and row.pointing == pointing(centre_map(SIZE), mask)[0]
    g = map_scores.map_scores(bot, table, world, settings=settings("bot", modes=()), quiet=True)
    assert set(g.part) == {"person"} and set(g.method) == set(map_methods(bot)) and "deletion_gain" not in g
    pairs = person_pairs(table, world)
    assert (table["pid"].iloc[pairs.other].to_numpy() == pairs.pid.to_numpy()).all()
    assert (pairs.other != pairs.row).all()
    assert len(map_table(pd.concat([f, g]))) == 3 + len(map_methods(bot))
