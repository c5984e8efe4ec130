"Cosines, pairs of one identity, and means that an empty batch does not break"
import pytest
import torch

from reid_lab.losses.basics import both_ways, cosine, mean_or_zero, pair_mask, same_id, terms


def test_cosine(oracles):
    i = oracles["cosine_similarity"]["inputs"]
    V, T = (torch.tensor(i[k], dtype=torch.float64) for k in "VT")
    want = torch.tensor(oracles["cosine_similarity"]["expected"]["S"], dtype=torch.float64)
    torch.testing.assert_close(cosine(V, T), want, atol=1e-6, rtol=0)


def test_both_ways_are_rows_of_the_whole_table_and_of_its_transpose(batch):
    img, txt, _ = batch
    whole = cosine(img, txt)
    for rows in (slice(None), slice(1, None, 3), slice(0, 0)):
        i2t, t2i = both_ways(img, txt, rows)
        torch.testing.assert_close(i2t, whole[rows])
        torch.testing.assert_close(t2i, whole.T[rows])


def test_pairs_of_one_identity(batch):
    img, txt, pid = batch
    want = [[a == b for b in pid.tolist()] for a in pid.tolist()]
    assert same_id(pid).tolist() == pair_mask(img, txt, pid).tolist() == want
    assert same_id(pid[:2], pid).tolist() == want[:2]
    assert pair_mask(img, txt, None).tolist() == torch.eye(7, dtype=torch.bool).tolist()
    with pytest.raises(ValueError, match="pair up row by row, got 7 and 6"): pair_mask(img, txt[:6], pid)
    with pytest.raises(ValueError, match="pid has 6 entries for a batch of 7"): pair_mask(img, txt, pid[:6])


def test_the_mean_of_nothing_is_a_zero_with_a_gradient():
    x = torch.randn(0, 3, requires_grad=True)
    mean_or_zero(x).backward()
    assert mean_or_zero(x).item() == 0 and x.grad.shape == (0, 3)
    assert mean_or_zero(torch.tensor([1., 3.])).item() == 2


def test_the_objective_is_what_ends_with_loss():
    assert terms(dict(id_loss=1, emb=2, loss_scale=3, itc_loss=4)) == dict(id_loss=1, itc_loss=4)
