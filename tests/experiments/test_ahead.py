"A World that is rendered beside the start of a run"
import os
import time
from types import SimpleNamespace

import pytest

from reid_lab.experiments.ahead import rendered_ahead
from reid_lab.recipes.camel_settings import PRESETS
from reid_lab.recipes.names import world_of
from reid_lab.world.world import World


def is_running(group):
    "Whether a process of the group is there that has not ended"
    try: os.killpg(group, 0)
    except ProcessLookupError: return False
    return True


@pytest.mark.parametrize('preset', PRESETS)
def test_the_world_of_a_preset_is_that_of_the_recipe(preset):
    p = SimpleNamespace(preset=preset, source='world', dataset='cuhk-pedes', seed=2, world_seed=-1)
    assert world_of('camel', p) == dict(preset=PRESETS[preset].world, seed=2)


def test_what_is_rendered_ahead_is_what_a_run_would_render(tmp_path):
    small = dict(preset='smoke', seed=5)
    with rendered_ahead({**small, 'cache': str(tmp_path/'ahead')}) as process: assert process.wait(300) == 0
    ahead, own = (World(**small, cache=tmp_path/name) for name in ('ahead', 'own'))
    written = (ahead.folder/'images.npy').stat().st_mtime_ns
    assert ahead.table().frame.equals(own.table().frame)
    assert (ahead.folder/'images.npy').read_bytes() == (own.folder/'images.npy').read_bytes()
    assert (ahead.folder/'images.npy').stat().st_mtime_ns == written


@pytest.mark.skipif(os.name != 'posix', reason='groups of processes')
def test_a_refusal_ends_the_rendering_and_the_next_opening_renders_anew(tmp_path):
    small = dict(preset='smoke', seed=6, cache=str(tmp_path))
    with pytest.raises(ValueError, match='refused'), rendered_ahead(small) as process:
        deadline = time.monotonic() + 120
        while not any(tmp_path.rglob('images.npy')) and time.monotonic() < deadline: time.sleep(.01)
        raise ValueError('refused')
    assert not is_running(process.pid)
    assert len(World(**small).table()) > 0
    assert not [p for p in World(**small).folder.parent.iterdir() if p.is_dir() and p.name.startswith('.')]
