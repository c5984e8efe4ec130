"The hetero-centre triplet loss: by hand, against a loop over its formula, with unequal counts, and in a model"
import pytest
import torch
from helpers.losses import assert_close, t64

from reid_lab.losses.added import add_losses, added_losses
from reid_lab.losses.modality import hetero_center, modality_centers
from reid_lab.models.zoo import create_model

FOUR = t64([[1, 0], [1, 2], [4, 0], [4, 4]]), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])


def naive(emb, pid, modality, margin):
    "The formula, centre by centre"
    images = {}
    for x, i, m in zip(emb, pid.tolist(), modality.tolist()): images.setdefault((i, m), []).append(x)
    centers = {key: sum(found)/len(found) for key, found in images.items()}
    losses = []
    for (i, m), anchor in centers.items():
        positives = [(anchor - c).norm() for (j, n), c in centers.items() if j == i and n != m]
        negatives = [(anchor - c).norm() for (j, n), c in centers.items() if j != i]
        if positives and negatives: losses.append(max(margin + max(positives) - min(negatives), torch.tensor(0.)))
    return sum(losses)/len(losses) if losses else torch.tensor(0.)


@pytest.mark.parametrize("margin, terms", [
    (.3, (0, 0, 1.3, 4.3 - 13**.5)),            # 2 - 3, 2 - sqrt(13), 4 - 3, 4 - sqrt(13), each with .3
    (1.5, (.5, 0, 2.5, 5.5 - 13**.5)),
    (0., (0, 0, 1, 4 - 13**.5))])
def test_four_centres_by_hand(margin, terms):
    assert_close(hetero_center(*FOUR, margin=margin), sum(terms)/4)


def test_centres_are_means_whatever_the_order_and_the_counts():
    emb = t64([[4, 4], [0, 0], [4, 1], [2, 0], [1, 2], [4, -1]])
    pid, modality = torch.tensor([1, 0, 1, 0, 0, 1]), torch.tensor([1, 0, 0, 0, 1, 0])
    centers = modality_centers(emb, pid, modality)
    assert centers.emb.tolist() == [[1, 0], [1, 2], [4, 0], [4, 4]]
    assert_close(hetero_center(emb, pid, modality), hetero_center(*FOUR).item())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("n_modalities", [2, 3])
def test_the_loss_is_its_formula(seed, n_modalities):
    "Identities with unequal counts, some of them in one modality only"
    g = torch.Generator().manual_seed(seed)
    emb = torch.randn(12, 3, generator=g, dtype=torch.float64)
    pid, modality = torch.randint(4, (12,), generator=g), torch.randint(n_modalities, (12,), generator=g)
    for margin in (.3, 2.):
        by_loop = naive(emb, pid, modality, margin).item()
        assert_close(hetero_center(emb, pid, modality, margin), by_loop)


def test_gradients_reach_every_image_of_an_anchor():
    emb = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    pid, modality = torch.arange(8)//4, torch.arange(8) % 2
    assert torch.autograd.gradcheck(lambda x: hetero_center(x, pid, modality, 5.), (emb,))
    grad, = torch.autograd.grad(hetero_center(emb, pid, modality, 5.), emb)
    assert (grad.abs().sum(1) > 0).all()


def test_nothing_to_compare_costs_nothing():
    emb, pid, modality = FOUR
    assert hetero_center(emb, pid, torch.zeros(4, dtype=torch.long)) == 0
    assert hetero_center(emb[:2], pid[:2], modality[:2]) == 0
    empty = emb[:0].clone().requires_grad_()
    hetero_center(empty, pid[:0], modality[:0]).backward()
    assert empty.grad.shape == (0, 2)
    with pytest.raises(ValueError, match="pid has 3 entries for 4 features"): hetero_center(emb, pid[:3], modality)


def test_a_model_adds_it_to_its_own_losses_and_refuses_batches_without_modalities():
    torch.manual_seed(0)
    model = add_losses(create_model("bot_tiny", n_ids=2, size=(32, 16)), added_losses("2*hetero_center(margin=1.)"))
    batch = dict(img=torch.rand(8, 3, 32, 16), pid=torch.arange(8)//4, label=torch.arange(8)//4)
    with pytest.raises(ValueError, match="needs modality, and the table has no such column; .*World with infrared=1"):
        model(batch)
    out = model(batch | dict(modality=torch.arange(8) % 2))
    assert_close(out["hetero_center_loss"], 2*hetero_center(out["emb"], batch["pid"], torch.arange(8) % 2, 1.).item())


def test_it_acts_on_either_side_of_the_neck():
    "Before it, `hetero_center_before` sees the pooled feature, which is not the one that is searched with"
    torch.manual_seed(0)
    model = create_model("bot_tiny", n_ids=2, size=(32, 16), metric="none")
    add_losses(model, added_losses("2*hetero_center_before(margin=1.) + hetero_center(margin=1.)"))
    modality = torch.arange(8) % 2
    batch = dict(img=torch.rand(8, 3, 32, 16), pid=torch.arange(8)//4, label=torch.arange(8)//4, modality=modality)
    out, (before, after) = model(batch), model.features(batch["img"])
    assert {k for k in out if k.endswith("_loss")} == {"id_loss", "hetero_center_before_loss", "hetero_center_loss"}
    by_loop = [naive(f.double(), batch["pid"], modality, 1.).item() for f in (before, after)]
    assert_close(out["hetero_center_before_loss"], 2*by_loop[0], 1e-4)
    assert_close(out["hetero_center_loss"], by_loop[1], 1e-4)
    assert by_loop[0] != by_loop[1]
    other = add_losses(create_model("transreid_tiny", n_ids=2), added_losses("hetero_center_before"))
    with pytest.raises(ValueError, match="needs before, and this model and its batches have emb"):
        other(batch | dict(img=torch.rand(8, 3, *other.size)))
