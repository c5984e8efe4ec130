"Similarity over parts that both images show, against a plain loop; learned and known visibilities"
import numpy as np
import pytest
import torch

from reid_lab.data.table import ReidTable
from reid_lab.models.zoo import create_model
from reid_lab.retrieval.visible_parts import (
    COVERED,
    NOTHING_SHARED,
    RIDGE,
    cover,
    fit_probe,
    learn_visibility,
    stripe_count,
    stripe_features,
    visible_similarity,
    visible_stripes,
)
from reid_lab.world.world import World


def parts(n, p=4, d=6, seed=0): return torch.randn(n, p, d, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", ["ones", "shares", "binary"])
def test_the_formula_pair_by_pair(kind):
    q, g = parts(3), parts(5, seed=1)
    vq, vg = torch.rand(3, 4), torch.rand(5, 4)
    if kind == "ones": vq, vg = torch.ones(3, 4), torch.ones(5, 4)
    if kind == "binary": vq, vg = (vq > .5).float(), (vg > .5).float()
    found = visible_similarity(q, g, vq, vg)
    for i in range(3):
        for j in range(5):
            weights = [(vq[i, p]*vg[j, p]).item() for p in range(4)]
            cosines = [torch.cosine_similarity(q[i, p], g[j, p], dim=0).item() for p in range(4)]
            expected = sum(w*s for w, s in zip(weights, cosines))/sum(weights) if sum(weights) else NOTHING_SHARED
            assert found[i, j].item() == pytest.approx(expected, abs=1e-5)


def test_what_is_in_front_does_not_count():
    g = parts(8)
    q = g.clone()
    q[:, 3] = parts(1, 1, seed=5)[:, 0]     # one and the same thing in front of everybody's feet
    shown = torch.ones(8, 4)
    hidden = shown.clone()
    hidden[:, 3] = 0
    assert torch.allclose(visible_similarity(q, g, hidden, shown).diagonal(), torch.ones(8), atol=1e-5)
    assert (visible_similarity(q, g, shown, shown).diagonal() < .99).all()


def test_images_without_a_common_part_are_least_alike():
    q, g = parts(1), parts(1)
    upper, lower = torch.tensor([[1., 1., 0., 0.]]), torch.tensor([[0., 0., 1., 1.]])
    assert visible_similarity(q, g, upper, lower).item() == NOTHING_SHARED


@pytest.fixture(scope="module")
def network(): return create_model("bot_tiny", n_ids=2, size=(64, 32), weights="world").eval()


@pytest.fixture(scope="module")
def images(): return World("smoke", seed=0, task="reid").table().where(split="train")


def test_a_cover_leaves_the_other_pixels_as_they_are():
    rng = np.random.default_rng(0)
    image, other = np.full((40, 20, 3), 200, np.uint8), np.zeros((40, 20, 3), np.uint8)
    shares = []
    for _ in range(200):
        covered, free = cover(image, other, rng)
        assert (covered[free] == 200).all() and (covered[~free] < 60).all()     # black, with noise
        shares.append(1 - free.mean())
    assert min(shares) < .3 and max(shares) <= COVERED[1] + .05                 # a band may end at the edge


def test_covered_stripes_are_read_as_hidden(network, images):
    probe = learn_visibility(network, images, n_parts=4, power=1.)
    some = images[np.arange(0, 240, 8)]
    covered = some.images(size=(64, 32)).copy()
    covered[:, 32:] = some.images(size=(64, 32))[::-1, :8].repeat(4, 1)         # the lower half, by the top of another
    by_path = dict(zip(some["path"], covered))
    lower = ReidTable(some.frame, None, lambda paths: [by_path[path] for path in paths])
    free, hidden = probe(network, some), probe(network, lower)
    assert free.mean() > .75 and (free[:, 2:] - hidden[:, 2:]).mean() > .3
    assert (free[:, :2] - hidden[:, :2]).mean() < .15
    squared = learn_visibility(network, images, n_parts=4)
    assert torch.allclose(squared(network, lower), hidden**2, atol=1e-5)


def test_the_probe_is_a_ridge_regression_with_a_free_constant():
    "By rows added to a least-squares problem, in double precision; of two rows the constant is the mean"
    described = torch.randn(500, 2, 12, generator=torch.Generator().manual_seed(0))
    shares = described[..., 0].sigmoid()
    found = fit_probe(described, shares, power=1.)
    for part in range(2):
        x = described[:, part].double().numpy()
        x = (x - x.mean(0))/x.std(0, ddof=1)
        rows = np.concatenate([np.c_[x, np.ones(len(x))], np.c_[RIDGE**.5*np.eye(12), np.zeros(12)]])
        y = np.concatenate([shares[:, part].numpy(), np.zeros(12)])
        assert np.abs(np.linalg.lstsq(rows, y, rcond=None)[0] - found.weights[part].numpy()).max() < 1e-4
    assert torch.allclose(fit_probe(described[:2], shares[:2]).weights[:, -1], shares[:2].mean(0))


def test_a_probe_does_not_depend_on_the_batch(network, images):
    one, other = (learn_visibility(network, images, n_images=33, batch_size=size) for size in (64, 8))
    assert torch.allclose(one.weights, other.weights, atol=1e-4)
    assert torch.allclose(one(network, images[:9]), one(network, images[:9], batch_size=1), atol=1e-4)


def test_modules_are_left_as_they_were_whatever_happens(network, images):
    network.train()
    network.image.eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    with pytest.raises(ValueError, match="does not divide"): stripe_features(network, images[:2], 3)
    with pytest.raises(ValueError, match="does not divide"): learn_visibility(network, images, 3)
    assert stripe_count(network) == 4 and stripe_features(network, images[:2]).shape[:2] == (2, 4)
    assert network.training and not network.image.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    network.eval()


def test_a_probe_reads_its_own_model_alone(network, images):
    probe = learn_visibility(network, images, n_images=20)
    other = create_model("bot_tiny", n_ids=2, size=(64, 32)).eval()
    with pytest.raises(ValueError, match="other weights"): probe(other, images[:2])


@pytest.mark.parametrize("name", ["bot_r50", "agw_tiny"])
def test_towers_of_timm_have_stripes_too(name, images):
    model = create_model(name, n_ids=2, size=(64, 32)).eval()
    parts = stripe_features(model, images[:2], 2)
    assert parts.shape[:2] == (2, 2) and torch.isfinite(parts).all() and not torch.equal(parts[:, 0], parts[:, 1])


def test_a_probe_is_the_same_again_and_leaves_the_model_as_it_was(network, images):
    network.train()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    one, other = (learn_visibility(network, images, n_images=20, seed=seed) for seed in (0, 0))
    assert torch.equal(one.weights, other.weights) and network.training
    assert not torch.equal(one.weights, learn_visibility(network, images, n_images=20, seed=1).weights)
    one(network, images[:3])
    assert network.training and all(torch.equal(v, before[k]) for k, v in network.state_dict().items())
    network.eval()


def test_what_a_probe_cannot_be_learned_from_is_refused(network, images):
    for given, says in [(dict(n_parts=5), "does not divide the 4 rows"), (dict(n_images=1), "n_images=1"),
                        (dict(power=0), "power=0")]:
        with pytest.raises(ValueError, match=says): learn_visibility(network, images, **{"n_parts": 4, **given})
    with pytest.raises(ValueError, match="batch_size=0"): learn_visibility(network, images, 4, batch_size=0)
    with pytest.raises(TypeError, match="crops_table"): stripe_features(network, "folder")
    with pytest.raises(ValueError, match="no images"): stripe_features(network, images[:0])
    with pytest.raises(ValueError, match="cut from another one"): learn_visibility(network, images[:1], 4)
    tokens = create_model("transreid_tiny", n_ids=2)
    with pytest.raises(AttributeError, match="bot_tiny"): learn_visibility(tokens, images)


def test_known_visibility_is_the_share_of_the_body_in_a_stripe():
    free, seen = np.zeros((6, 2), int), np.zeros((6, 2), int)
    free[2:] = 3
    seen[2:4] = 3
    seen[4, 0] = 3
    assert visible_stripes(free, seen, 3).tolist() == [1., 1., .25]


@pytest.mark.parametrize("how, says", [
    (dict(q=parts(3)[:, 0]), "one model|(N,P,D)"), (dict(vq=torch.ones(3, 3)), "give one a part"),
    (dict(q=torch.full((3, 4, 6), torch.nan)), "q has features that are NaN"),
    (dict(vq=-torch.ones(3, 4)), "must lie between"), (dict(vg=torch.full((5, 4), torch.nan)), "visibilities of g")])
def test_wrong_shapes_and_values_are_refused(how, says):
    given = dict(q=parts(3), g=parts(5), vq=torch.ones(3, 4), vg=torch.ones(5, 4)) | how
    with pytest.raises(ValueError, match=says):
        visible_similarity(given["q"], given["g"], given["vq"], given["vg"])
