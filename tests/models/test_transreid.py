"""TransReID: parameter counts by our own arithmetic, naive references, side information, positions."""
import pytest
import torch
from torch import nn

from reid_lab.data.augment import to_pixels
from reid_lab.datasets.image_sets import tiny_table
from reid_lab.losses.basics import terms
from reid_lab.models.transreid import (
    half_local,
    jigsaw,
    overlapping_vit,
    patch_grid,
    resize_positions,
    shift_shuffle,
    start_transreid,
)
from reid_lab.models.zoo import sample_batch
from reid_lab.retrieval.embeddings import embed_images

SIZE = (64, 32)


def block(D): return 4*D*D + 4*D + 8*D*D + 5*D + 4*D  # attention, feed-forward of four times the width, two norms


def transreid_parameters(n_ids, n_patches, D=768, depth=12, patch=16, parts=4, cams=0):
    trunk = (3*patch*patch + 1)*D + D + (n_patches + 1)*D + (depth - 1)*block(D) + cams*D
    branches = (1 + (parts > 0))*(block(D) + 2*D)
    return trunk + branches + (1 + parts)*(2*D + n_ids*D)


@pytest.mark.parametrize("name, kw, want, dim", [
    ("transreid_b16", dict(n_ids=751), transreid_parameters(751, 21*10), 5*768),
    ("transreid_b16", dict(n_ids=1041, stride=16, cams=15), transreid_parameters(1041, 16*8, cams=15), 5*768),
    ("transreid_b16", dict(n_ids=5, stride=16, parts=0), transreid_parameters(5, 16*8, parts=0), 768),
    ("transreid_tiny", dict(n_ids=9), transreid_parameters(9, 50, D=96, depth=3), 5*96)])
def test_parameters_and_width(name, kw, want, dim, parameters_and_width):
    assert parameters_and_width(name, **kw) == (want, dim)


def test_normalisation_parameters_of_the_literature(unbuilt):
    "38,400 LayerNorm parameters in a plain ViT-B/16"
    norms = [m for m in unbuilt("transreid_b16", n_ids=2, parts=0).modules() if isinstance(m, nn.LayerNorm)]
    assert sum(p.numel() for m in norms for p in m.parameters(recurse=False)) == 38_400


def naive_shuffle(patches, shift=5, groups=2):
    "Card by card: cut the pack, deal it into `groups` piles one after the other, pick one card from each pile in turn"
    pack = patches[shift - 1:] + patches[:shift - 1]
    spare = pack[-2]
    while len(pack) % groups: pack = pack + [spare]
    size = len(pack)//groups
    piles = [pack[i*size:(i + 1)*size] for i in range(groups)]
    return [pile[i] for i in range(size) for pile in piles]


@pytest.mark.parametrize("n", [*range(4, 24), 128, 210])
@pytest.mark.parametrize("groups", [2, 3])
def test_shift_and_shuffle_against_a_naive_reference(n, groups):
    tok = torch.stack([torch.arange(n), 1000 + torch.arange(n)])[..., None].float()
    want = naive_shuffle(list(range(n)), groups=groups)
    got = shift_shuffle(tok, groups=groups)
    assert got[0, :, 0].tolist() == want and got[1, :, 0].tolist() == [1000 + i for i in want]
    parts = jigsaw(tok, groups=groups)
    assert parts[0, ..., 0].tolist() == [want[i*(n//4):(i + 1)*(n//4)] for i in range(4)]


def test_each_part_has_patches_of_both_halves():
    parts = jigsaw(torch.arange(210.).view(1, 210, 1))[0, ..., 0]
    assert parts.shape == (4, 52) and all((p < 105).any() and (p >= 105).any() for p in parts)


def test_transreid_losses_against_loops(tiny):
    model = tiny("transreid", w_triplet=1.)
    batch = sample_batch(SIZE)
    model.eval()
    out = model(batch)
    before, after = model.features(batch["img"])
    def ce(i): return nn.functional.cross_entropy(after[i] @ model.heads[i].weight.T, batch["label"])
    def tri(f):
        d, pid, total = torch.cdist(f, f), batch["pid"], 0.
        for i in range(len(f)):
            far = max(d[i, j] for j in range(len(f)) if pid[j] == pid[i])
            near = min(d[i, j] for j in range(len(f)) if pid[j] != pid[i])
            total += (1 + (far - near).exp()).log()/len(f)
        return total
    assert torch.allclose(out["id_loss"], .5*ce(0) + .5*sum(ce(i) for i in range(1, 5))/4, atol=1e-5)
    assert torch.allclose(out["triplet_loss"], .5*tri(before[0]) + .5*sum(map(tri, before[1:]))/4, atol=1e-4)
    assert half_local([torch.tensor(2.)]) == 2


def test_branches_start_equal_and_part(tiny):
    model = tiny("transreid")
    out = model(sample_batch(SIZE))
    sum(terms(out).values()).backward()
    a, b = (next(m[0].mlp.parameters()) for m in (model.global_branch, model.local_branch))
    assert torch.equal(a, b) and not torch.equal(a.grad, b.grad)


def test_side_information(tiny):
    model = tiny("transreid", cams=[7, 3]).eval()
    img = torch.rand(2, 3, *SIZE)
    with torch.no_grad():
        base = model.tokens(img, torch.tensor([3, 3]))
        model.side = 0.
        off = model.tokens(img, torch.tensor([7, 7]))
        plain = model.tokens(img)
    assert torch.equal(off, plain) and not torch.allclose(base, off, atol=1e-4)
    model.side = 3.
    with torch.no_grad():   # an unknown camera gets the mean, image by image
        mixed, own = (model.tokens(img, torch.tensor(c)) for c in ([3, 5], [3, 3]))
        mean = model.tokens(img)
    assert torch.allclose(mixed, torch.stack([own[0], mean[1]]), atol=1e-5)
    assert not torch.allclose(own[1], mean[1], atol=1e-3)
    with pytest.raises(ValueError, match="cam has 3 entries for 2 images"): model.tokens(img, torch.tensor([3, 3, 7]))
    batch = {**sample_batch(SIZE), "cam": torch.tensor([7, 3]*4)}
    model.train()
    sum(terms(model(batch)).values()).backward()
    assert model.side_embed.grad.abs().sum() > 0
    assert not hasattr(tiny("transreid"), "side_embed")
    with pytest.raises(ValueError, match="cam=0 has no side information; the model knows \\[7, 3\\]"):
        model(sample_batch(SIZE))
    for wrong in ([3, 3], -2):
        with pytest.raises(ValueError, match="cams="): tiny("transreid", cams=wrong)


def test_features_are_those_of_each_images_own_camera(tiny):
    torch.manual_seed(0)
    model, table = tiny("transreid", cams=[0, 2]).eval(), tiny_table(4, 3)     # camera 1 is unknown
    for encode in ("encode_image", "raw_features"):
        got = embed_images(model, table, batch_size=5, quiet=True, encode=encode)
        with torch.no_grad():
            img = to_pixels(table.images(size=model.size))
            want = torch.cat([getattr(model, encode)(x[None], torch.tensor([c]) if c != 1 else None)
                              for x, c in zip(img, got.cam)])
            mean = getattr(model, encode)(img)
        assert torch.allclose(got.emb, want, atol=1e-5)
        apart = (got.emb - mean).norm(dim=1)
        assert (apart[got.cam == 1] < 1e-4).all() and (apart[got.cam != 1] > 1e-2).all()
        assert torch.allclose(embed_images(model, table, quiet=True, encode=encode, cameras=False).emb, mean, atol=1e-5)


def test_positions_on_another_grid():
    assert patch_grid((256, 128), 16, 12) == (21, 10) and patch_grid((384, 128), 16, 16) == (24, 8)
    row = torch.arange(14.).repeat_interleave(14)[:, None]
    pos = torch.cat([torch.full((1, 1), -5.), row])
    as_is = resize_positions(pos, (28, 7), old=(28, 7))          # 196 tokens that really are 28 rows of 7
    assert torch.equal(as_is, pos)
    new = resize_positions(pos, (28, 7))                         # 14 x 14 squeezed into the same number
    assert new[0] == -5 and torch.allclose(new[1:].view(28, 7).diff(dim=1), torch.zeros(28, 6), atol=1e-5)
    assert (new[1:].view(28, 7)[:, 0].diff() >= 0).all()
    with pytest.raises(ValueError, match="not a square grid"): resize_positions(torch.zeros(129, 2), (21, 10))
    with pytest.raises(ValueError, match="needs 200 positions"):
        resize_positions(torch.zeros(129, 2), (21, 10), old=(20, 10))
    with pytest.raises(ValueError, match="smaller than one patch"): patch_grid((8, 32))


def test_a_vit_from_a_file(tmp_path):
    kw = dict(width=24, depth=2, heads=2)
    source = overlapping_vit((64, 64), stride=16, **kw)          # 4 x 4, a square
    state = {**source.state_dict(), "head.weight": torch.zeros(3, 24)}
    torch.save(state, tmp_path/"vit.pt")
    vit = overlapping_vit((64, 32), stride=12, **kw)
    model = start_transreid(vit, 4, (64, 32), tmp_path/"vit.pt")
    for branch in (model.global_branch, model.local_branch):
        assert torch.equal(branch[0].mlp.fc1.weight, source.blocks[1].mlp.fc1.weight)
    assert torch.allclose(model.pos[0], resize_positions(source.pos_embed[0], (5, 2)))
    assert model.loaded.left == (("head.weight", "classifier of the pretraining"),) and len(model.loaded.resized) == 1
    model.raw_features(torch.rand(1, 3, 64, 32))
    with pytest.raises(ValueError, match="cannot be loaded into VisionTransformer: .* missing"):
        start_transreid(overlapping_vit((64, 32), width=24, depth=3, heads=2), 4, (64, 32), tmp_path/"vit.pt")


def test_the_shift_counts_the_class_token():
    "5 as configured moves 4 patches to the end, 6 moves the 5 of the paper"
    tok = torch.arange(12.)[None, :, None]
    one = {shift: shift_shuffle(tok, shift=shift, groups=1)[0, :, 0].tolist() for shift in (5, 6)}
    assert one[5] == [*range(4, 12), *range(4)] and one[6] == [*range(5, 12), *range(5)]


def test_scores_are_those_of_the_global_branch(tiny):
    model, img = tiny("transreid").eval(), torch.rand(2, 3, *SIZE)
    with torch.no_grad():
        before, after = model.features(img)
        assert torch.equal(model.logits(img), model.heads[0](after[0])) and len(model.heads) > 1
