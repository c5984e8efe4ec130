"The renderer: two backends draw the same, and part maps, colours and visible areas agree"
import numpy as np
import pytest

from reid_lab.core.basics import stream
from reid_lab.world.bodies import ACTIONS, Shot
from reid_lab.world.people import PARTS, name_colour, sample_people
from reid_lab.world.places import ISP, Camera, Occluder
from reid_lab.world.plan import KINDS, make_camera, sample_shot
from reid_lab.world.render import pick_backend, reference_areas, render

numba = pytest.mark.skipif(pick_backend() != "numba", reason="numba is not installed")


@pytest.fixture(scope="module")
def crowd():
    return sample_people(60, seed=3)


@numba
@pytest.mark.parametrize("size,n", [((128, 64), 2), ((64, 32), 1), ((96, 48), 3)])
def test_numba_and_numpy_draw_the_same(crowd, size, n):
    for i, person in enumerate(crowd[:14]):
        cam = make_camera(1, i, 1, list(KINDS)[i % 4], "real-like", ("campus", "street")[i % 2])
        shot = sample_shot(stream(1, "t", i), cam, .5)
        a, b = (render(person, cam.at(shot.time), shot, size, n, backend) for backend in ("numpy", "numba"))
        assert np.abs(a.image.astype(int) - b.image).max() <= 1
        assert (a.parts != b.parts).sum() == 0
        assert a.visible == b.visible


def test_render_is_deterministic_and_the_noise_follows_the_seed(crowd):
    cam = Camera(isp=ISP(noise=8.))
    one, again, other = (render(crowd[0], cam, Shot(seed=s)).image for s in (1, 1, 2))
    assert (one == again).all() and (one != other).mean() > .5


def test_torso_has_the_colour_of_its_name(crowd):
    checked = 0
    for p in crowd:
        if p.pattern != "plain" or p.opened == "yes" or p.bag == "waist bag": continue
        r = render(p, Camera(ambient=1.), Shot(yaw=.3), reference=np.ones(len(PARTS)))
        colour = np.median(r.image[r.parts == PARTS.index("upper")], 0)
        assert name_colour(colour) == p.upper_colour, p
        if p.lower in ("trousers", "leggings", "shorts", "skirt"):
            colour = np.median(r.image[r.parts == PARTS.index("lower")], 0)
            assert name_colour(colour) == p.lower_colour, p
        checked += 1
    assert checked > 12


def test_part_map_agrees_with_visible(crowd):
    for i, p in enumerate(crowd[:12]):
        r = render(p, Camera(elevation=.1*i), Shot(yaw=i*1.1, action=ACTIONS[i % 3], phase=i))
        for name, v in r.visible.items():
            assert v["pixels"] == (r.parts == PARTS.index(name)).sum()
            assert 0 <= v["fraction"] <= 1
        assert {"upper", "skin"} <= set(r.visible)


def test_what_is_absent_is_not_in_the_map(crowd):
    bare = [p for p in crowd if p.hat == "none" and p.bag == "none" and p.held == "none" and p.glasses == "no"][:5]
    assert bare
    for p in bare:
        seen = {PARTS[i] for i in np.unique(render(p, Camera(), Shot(yaw=.4)).parts)}
        assert not seen & {"hat", "bag", "held", "glasses"}
    dressed = next(p for p in crowd if p.bag == "backpack")
    back = render(dressed, Camera(), Shot(yaw=np.pi)).visible["bag"]["fraction"]
    front = render(dressed, Camera(), Shot(yaw=0.)).visible["bag"]["fraction"]
    assert back > .5 > front > 0


def test_looking_down_hides_the_lower_parts(crowd):
    def shown(elevation, part):
        views = [render(p, Camera(elevation=elevation, distance=14.), Shot(yaw=i)) for i, p in enumerate(crowd[:16])]
        return np.mean([v.visible.get(part, dict(fraction=0))["fraction"] for v in views])
    assert shown(1.1, "lower") < .5*shown(.1, "lower")
    assert shown(1.1, "shoes") < shown(.1, "shoes")
    assert shown(1.1, "hair") > .8


def test_occluder_hides(crowd):
    areas = reference_areas(crowd[0])
    free, hidden = (render(crowd[0], shot=Shot(occluder=o), reference=areas) for o in (None, Occluder("low", at=.5)))
    assert hidden.visible["shoes"]["pixels"] == 0 < free.visible["shoes"]["pixels"]
    assert not hidden.parts[68:].any()


@pytest.mark.parametrize("bad,word", [(dict(camera=Camera(wall="sea")), "wall"),
                                      (dict(camera=Camera(ground="lava")), "ground"),
                                      (dict(shot=Shot(action="flying")), "action"),
                                      (dict(shot=Shot(arms="up")), "arms"),
                                      (dict(backend="gpu"), "backend")])
def test_unknown_names_are_refused(crowd, bad, word):
    with pytest.raises(ValueError, match=f"{word}=.*choose one of"): render(crowd[0], **bad)
