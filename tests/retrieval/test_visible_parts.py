"Similarity over parts that both images show, against a plain loop; estimated and known visibilities"
import numpy as np
import pytest
import torch

from reid_lab.retrieval.visible_parts import (
    NOTHING_SHARED,
    estimated_visibility,
    visible_similarity,
    visible_stripes,
)


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


def test_estimated_visibility_finds_a_part_that_no_gallery_image_has():
    g = torch.ones(40, 3, 6) + .1*parts(40, 3)
    q = torch.ones(10, 3, 6) + .1*parts(10, 3, seed=1)
    q[:5, 1] = -q[:5, 1]
    found = estimated_visibility(q, g)
    assert (found[:5, 1] == 0).all() and found[5:].mean() > .8 and found[:5, [0, 2]].mean() > .8
    assert estimated_visibility(q, g, share=0.).mean() >= found.mean()


def test_known_visibility_is_the_share_of_the_body_in_a_stripe():
    free, seen = np.zeros((6, 2), int), np.zeros((6, 2), int)
    free[2:] = 3
    seen[2:4] = 3
    seen[4, 0] = 3
    assert visible_stripes(free, seen, 3).tolist() == [1., 1., .25]


@pytest.mark.parametrize("how, says", [
    (dict(q=parts(3)[:, 0]), "one model|(N,P,D)"), (dict(vq=torch.ones(3, 3)), "give one a part"),
    (dict(vq=-torch.ones(3, 4)), "must lie between"), (dict(vg=torch.full((5, 4), torch.nan)), "visibilities of g")])
def test_wrong_shapes_and_values_are_refused(how, says):
    given = dict(q=parts(3), g=parts(5), vq=torch.ones(3, 4), vg=torch.ones(5, 4)) | how
    with pytest.raises(ValueError, match=says):
        visible_similarity(given["q"], given["g"], given["vq"], given["vg"])
