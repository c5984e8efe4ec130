"""BoT, TransReID and CLIP-ReID: parameter counts by our own arithmetic, naive references, weight files, both stages."""
import inspect
import math
import warnings

import pytest
import torch
from hypothesis import given, settings, strategies as st
from safetensors.torch import save_file
from torch import nn

from reid_lab.losses import image as losses
from reid_lab.data.augment import to_pixels
from reid_lab.retrieval.embeddings import embed_images
from reid_lab.losses.image import supcon
from reid_lab.losses.basics import terms
from reid_lab.core.weight_files import load_weights, save_weights
from reid_lab.models.backbones import ResTower, TimmTower, norm_gradients
from reid_lab.models.bot import BoT, bn_neck, id_head, keep_resolution
from reid_lab.models.weights.formats import read_weights
from reid_lab.models.weights.start import begin, load_network, published
from reid_lab.models.clip_reid import CLIPReID
from reid_lab.models.clip_towers import clip_model, load_clip
from reid_lab.training.prompts import learn_prompts, prompt_loss
from reid_lab.models.transreid import (TransReID, half_local, jigsaw, overlapping_vit, patch_grid, resize_positions,
                                       shift_shuffle, start_transreid)
from reid_lab.models.zoo import MODELS, check_image_model, create_model, list_models, sample_batch
from reid_lab.tta.base import influential

SIZE = (64, 32)
IMAGE = [MODELS[name].family for name in list_models(reads="images", size="tiny")]
TINY_CLIP = dict(dim=48, vision=dict(width=64, layers=2, head_width=32, patch_size=16),
                 text=dict(width=48, layers=2, heads=2))


def tiny(family, **kw):
    torch.manual_seed(0)
    name, = list_models(reads="images", size="tiny", family=family)
    return create_model(name, n_ids=4, size=SIZE, **kw)


def count(m): return sum(p.numel() for p in m.parameters())


def meta(name, **kw):
    with torch.device("meta"): return create_model(name, **kw)


# before or after a BNNeck
NECKED = [f for f in IMAGE if "feature" in inspect.signature(type(tiny(f)).__init__).parameters]


# --- size -------------------------------------------------------------------------------------------------------------

def resnet50_parameters():
    "Convolutions without bias, a scale and a shift for each of their outputs"
    conv = lambda cin, cout, k: cin*cout*k*k + 2*cout
    total, cin = conv(3, 64, 7), 64
    for blocks, mid in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for i in range(blocks):
            total += conv(cin, mid, 1) + conv(mid, mid, 3) + conv(mid, 4*mid, 1)
            if i == 0: total += conv(cin, 4*mid, 1)
            cin = 4*mid
    return total


def block(D): return 4*D*D + 4*D + 8*D*D + 5*D + 4*D  # attention, feed-forward of four times the width, two norms


def transreid_parameters(n_ids, n_patches, D=768, depth=12, patch=16, parts=4, cams=0):
    trunk = (3*patch*patch + 1)*D + D + (n_patches + 1)*D + (depth - 1)*block(D) + cams*D
    branches = (1 + (parts > 0))*(block(D) + 2*D)
    return trunk + branches + (1 + parts)*(2*D + n_ids*D)


def clip_reid_parameters(n_ids, n_patches, D, E, layers, T, text_layers, patch=16):
    image = 3*patch*patch*D + D + (n_patches + 1)*D + 2*D + layers*block(D) + 2*D + D*E
    text = 77*T + text_layers*block(T) + 2*T + T*E
    return image + text + 4*T*n_ids + (2 + n_ids)*(D + E)


@pytest.mark.parametrize("name, kw, want, dim", [
    ("bot_r50", dict(n_ids=751), resnet50_parameters() + 2*2048 + 751*2048, 2048),
    ("transreid_b16", dict(n_ids=751), transreid_parameters(751, 21*10), 5*768),
    ("transreid_b16", dict(n_ids=1041, stride=16, cams=15), transreid_parameters(1041, 16*8, cams=15), 5*768),
    ("transreid_b16", dict(n_ids=5, stride=16, parts=0), transreid_parameters(5, 16*8, parts=0), 768),
    ("clip_reid_b16", dict(n_ids=1041), clip_reid_parameters(1041, 16*8, 768, 512, 12, 512, 12), 1280),
    ("clip_reid_b16", dict(n_ids=5, stride=12), clip_reid_parameters(5, 21*10, 768, 512, 12, 512, 12), 1280),
    ("transreid_tiny", dict(n_ids=9), transreid_parameters(9, 50, D=96, depth=3), 5*96),
    ("clip_reid_tiny", dict(n_ids=9), clip_reid_parameters(9, 32, 96, 64, 3, 64, 2), 160)])
def test_parameters_and_width(name, kw, want, dim):
    model = meta(name, **kw)
    assert count(model) == want and model.dim == dim
    raw, scores = model.forward_tta(torch.rand(2, 3, *model.size, device="meta"))
    assert raw.shape == (2, dim) and scores.shape == (2, kw["n_ids"])


def test_normalisation_parameters_of_the_literature():
    "53,120 BatchNorm parameters in ResNet-50; 38,400 LayerNorm parameters in a plain ViT-B/16"
    of = lambda m, kind: sum(p.numel() for x in m.modules() if isinstance(x, kind) for p in x.parameters(recurse=False))
    assert of(meta("bot_r50", n_ids=2).image, nn.BatchNorm2d) == 53_120
    assert of(meta("transreid_b16", n_ids=2, parts=0), nn.LayerNorm) == 38_400


def test_last_stride_of_either_library():
    import torchvision
    with torch.device("meta"):
        net = keep_resolution(torchvision.models.resnet50())
        net.avgpool = net.fc = nn.Identity()
        assert net(torch.rand(1, 3, 256, 128)).shape == (1, 2048*16*8)
        assert meta("bot_r50", n_ids=2).image(torch.rand(1, 3, 256, 128)).shape == (1, 128, 2048)


# --- common contract -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NECKED)
@pytest.mark.parametrize("feature", ["before", "after"])
def test_contract_with_either_feature(name, feature):
    out = check_image_model(tiny(name, feature=feature))
    assert out["norms_of_features"] > 3 and out["norms_of_logits"] > 3


@pytest.mark.parametrize("name", NECKED)
def test_necks_move_the_feature_only_after_them(name):
    img = torch.rand(4, 3, *SIZE)
    for feature in ("before", "after"):
        model = tiny(name, feature=feature).eval()
        reached = norm_gradients(model, model.raw_features(img))
        assert any(n.startswith("neck") for n in reached) == (feature == "after")


@pytest.mark.parametrize("name, kw", [*((f, {}) for f in IMAGE), *((f, dict(feature="after")) for f in NECKED),
                                      *((f, dict(feature="before")) for f in NECKED)])
def test_test_time_adaptation_finds_what_it_needs(name, kw):
    "Scales and shifts that move the feature when they are moved, one by one, and no others"
    model, img, moves = tiny(name, **kw).eval(), torch.rand(4, 3, *SIZE), set()
    norms = [n for n, m in model.named_modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm))]
    with torch.no_grad():
        still = model.raw_features(img)
        for n, p in model.named_parameters():
            if n.rpartition(".")[0] not in norms: continue
            kept = p.clone()
            p += torch.randn_like(p)
            if not torch.equal(model.raw_features(img), still): moves.add(n)
            p.copy_(kept)
    assert set(influential(model, img)) == moves and len(moves) > 3


@pytest.mark.parametrize("name", NECKED)
def test_one_image_in_training_mode(name):
    "The feature before the necks does not need them, whatever their mode"
    model = tiny(name, feature="before").train()
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d): m.eval()
    assert model.raw_features(torch.rand(1, 3, *SIZE)).shape == (1, model.dim)


@pytest.mark.parametrize("name", NECKED)
def test_wrong_feature_is_named(name):
    with pytest.raises(ValueError, match="feature='neck'.*before"): tiny(name, feature="neck")


@pytest.mark.parametrize("broken, message", [
    (dict(raw_features=lambda img: torch.ones(len(img), 3)), "raw_features gave \\(8, 3\\), expected \\(8, 128\\)"),
    (dict(logits=lambda img: torch.rand(len(img), 4)), "logits is not deterministic"),
    (dict(forward_tta=lambda img: (torch.zeros(len(img), 128), torch.zeros(len(img), 4))),
     "forward_tta gives other raw_features")])
def test_conformance_check_can_fail(broken, message):
    model = tiny("bot")
    if "raw_features" in broken: model.encode_image = BoT.encode_image.__get__(tiny("bot").eval())
    for k, v in broken.items(): setattr(model, k, v)
    with pytest.raises(AssertionError, match=message): check_image_model(model)


@pytest.mark.parametrize("change, message", [(lambda out: out.pop("emb"), "forward\\(\\) returns no emb"),
                                             (lambda out: out.update(emb=2*out["emb"]),
                                              "emb is not what raw_features gives")])
def test_training_outputs_hold_the_test_feature(change, message):
    model = tiny("bot")
    plain = model.forward
    def other(batch):
        out = plain(batch)
        change(out)
        return out
    model.forward = other
    with pytest.raises(AssertionError, match=message): check_image_model(model)


def test_no_normalisation_layer_is_an_error():
    "Only the neck has a normalisation layer, and it comes too late"
    model = tiny("bot", norm="group", feature="before")
    for name, m in list(model.named_modules()):
        if isinstance(m, nn.GroupNorm): model.set_submodule(name, nn.Identity())
    with pytest.raises(AssertionError, match="no scale or shift"): check_image_model(model)


def test_neck_and_head():
    torch.manual_seed(0)
    neck, head = bn_neck(8), id_head(8, 500)
    assert not neck.bias.requires_grad and neck.weight.requires_grad and head.bias is None
    assert abs(head.weight.std().item() - .001) < 1e-4


def test_models_with_a_choice_of_feature(): assert {"bot", "transreid", "clip_reid"} <= set(NECKED) <= set(IMAGE)


# --- TransReID --------------------------------------------------------------------------------------------------------

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


def test_transreid_losses_against_loops():
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


def test_branches_start_equal_and_part():
    model = tiny("transreid")
    out = model(sample_batch(SIZE))
    sum(terms(out).values()).backward()
    a, b = (next(m[0].mlp.parameters()) for m in (model.global_branch, model.local_branch))
    assert torch.equal(a, b) and not torch.equal(a.grad, b.grad)


def test_side_information():
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


def test_features_are_those_of_each_images_own_camera():
    from reid_lab.datasets.image_sets import tiny_table
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


def test_weights_are_never_fetched_silently(tmp_path):
    def never(): raise AssertionError("downloaded")
    for none in (None, False, "none"): assert begin(none, (), "", dict(imagenet=never)) is None
    with pytest.raises(FileNotFoundError, match="weights='no.pt' is not a file or folder; pass 'none', 'imagenet'"):
        begin("no.pt", (), "a net", dict(imagenet=never))
    with pytest.raises(ValueError, match="weights=True"): begin(True, (), "a net")
    net = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="1 left over"):
        load_network(net, {**net.state_dict(), "other": torch.zeros(1)})


def test_a_failed_download_names_the_way_out(monkeypatch):
    import open_clip
    import timm
    def offline(*a, **kw): raise RuntimeError("no network")
    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(open_clip, "create_model", offline)
    with pytest.raises(OSError, match="'resnet50.tv_in1k' could not be downloaded.*local file"):
        begin("imagenet", (), "a net", dict(imagenet=published("resnet50.tv_in1k")))
    with pytest.raises(OSError, match="'openai' could not be downloaded.*local file"):
        load_clip(clip_model(SIZE, **TINY_CLIP), "openai")


# --- CLIP-ReID -------------------------------------------------------------------------------------------------------

def test_supcon_against_a_loop():
    g = torch.Generator().manual_seed(0)
    x, y = (3*torch.randn(n, 5, generator=g, dtype=torch.float64) for n in (6, 9))
    a, b = torch.tensor([0, 0, 1, 2, 9, 2]), torch.tensor([0, 1, 1, 2, 2, 2, 0, 5, 1])
    per = []
    for i in range(6):
        positive = [j for j in range(9) if b[j] == a[i]]
        z = sum(math.exp(x[i] @ y[j]) for j in range(9))
        if positive: per.append(-sum(math.log(math.exp(x[i] @ y[j])/z) for j in positive)/len(positive))
    assert len(per) == 5
    assert supcon(x, y, a, b).item() == pytest.approx(sum(per)/5, abs=1e-9)
    big = supcon(1e3*x, 1e3*y, a, b)
    assert big.isfinite()
    x.requires_grad_(True)
    supcon(x, y, a, b).backward()
    assert x.grad.isfinite().all() and (x.grad[4] == 0).all()


def test_f11_f12_fp_are_where_the_paper_takes_them():
    torch.manual_seed(0)
    clip = clip_model(SIZE, **TINY_CLIP).eval()
    model, seen = CLIPReID(clip, 4, SIZE).eval(), {}
    img = torch.rand(2, 3, *SIZE)
    hooks = [b.register_forward_hook(lambda m, i, o, k=k: seen.__setitem__(k, o))
             for k, b in enumerate(clip.visual.transformer.resblocks)]
    joint = clip.visual(model.pixels(img))
    for h in hooks: h.remove()
    f11, f12, fp = model.towers(img)
    assert torch.allclose(f11, seen[0][:, 0], atol=1e-5)
    assert torch.allclose(f12, clip.visual.ln_post(seen[1][:, 0]), atol=1e-5) and torch.allclose(fp, joint, atol=1e-5)
    assert torch.equal(model.raw_features(img), torch.cat(model.towers(img)[1:], 1))


def test_a_prompt_is_the_sentence_it_stands_for():
    from open_clip.tokenizer import SimpleTokenizer
    torch.manual_seed(0)
    clip, bpe = clip_model(SIZE, **TINY_CLIP).eval(), SimpleTokenizer()
    model = CLIPReID(clip, 3, SIZE)
    with torch.no_grad():
        words = [bpe.encode(w)[0] for w in ("red", "hat", "blue", "bag")]
        model.prompts.learned[1] = clip.token_embedding.weight[words]
        ours = model.text(model.prompts(torch.tensor([1])))
        theirs = clip.encode_text(bpe("A photo of a red hat blue bag person."))
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert model.prompts(torch.tensor([0, 1])).shape == (2, 12, 48)


def test_stage_2_losses_against_loops():
    model = tiny("clip_reid").eval()
    batch = sample_batch(SIZE)
    out = model(batch)
    f11, f12, fp = model.towers(batch["img"])
    ce = lambda s: losses.label_smoothing(s, batch["label"], .1)
    assert torch.allclose(out["id_loss"],
                          .25*(ce(model.heads[0](model.necks[0](f12))) + ce(model.heads[1](model.necks[1](fp)))))
    assert torch.allclose(out["triplet_loss"], sum(losses.triplet(f, batch["pid"], .3) for f in (f11, f12, fp)))
    texts = torch.cat([model.text(model.prompts(torch.tensor([i]))) for i in range(4)])
    assert torch.allclose(out["i2t_loss"], ce(fp @ texts.T), atol=1e-4)
    off = tiny("clip_reid", w_id=0., w_triplet=0., w_i2t=0.)(batch)
    assert all(v == 0 for v in terms(off).values())


def test_stage_1_changes_the_prompts_only_and_is_repeatable():
    features, label = torch.randn(20, 64, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 4
    runs = []
    for _ in range(2):
        model = tiny("clip_reid")
        before = {k: v.clone() for k, v in model.state_dict().items()}
        curve = learn_prompts(model, features, label, epochs=6, batch_size=8, lr=.01, quiet=True)
        changed = {k for k, v in model.state_dict().items() if not torch.equal(v, before[k])}
        assert changed == {"prompts.learned", "texts", "texts_ready"}
        assert curve[-1] < curve[0] and all(p.grad is None for p in model.parameters())
        assert not model.prompts.learned.requires_grad and not model.texts.requires_grad
        runs.append(model.prompts.learned)
    assert torch.equal(*runs)
    for bad, n in ((label + 1, 20), (label[:5], 20), (label - 1, 20)):
        with pytest.raises(ValueError, match="label must number 20 features from 0 to 3"):
            learn_prompts(model, features, bad)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_stage_1_in_16_bits_is_that_in_32_within_rounding(precision):
    "The text tower is rounded, prompts and loss are not; with fp16 the first updates are skipped until the scale fits"
    features, label = torch.randn(20, 64, generator=torch.Generator().manual_seed(1)), torch.arange(20) % 4
    def run(precision):
        model = tiny("clip_reid")
        curve = learn_prompts(model, features, label, epochs=6, batch_size=8, lr=.01, quiet=True, precision=precision)
        return curve, model.prompts.learned
    (whole, words), (half, rounded) = run("no"), run(precision)
    assert rounded.dtype == words.dtype == torch.float32 and whole != half and half[-1] < half[0]
    if precision == "fp16": return
    assert half == pytest.approx(whole, rel=.02)
    assert torch.nn.functional.cosine_similarity(rounded.flatten(), words.flatten(), 0) > .98


@pytest.mark.parametrize("form, factors", [("paper", [1/35, 1]), ("released", [(1 + 1/350)/2, 1/350])])
def test_rates_of_stage_1(form, factors, monkeypatch):
    "Two epochs with one of warm-up; the program's are epochs 1 and 2 of a cosine from epoch 0"
    rates, step = [], torch.optim.Adam.step
    def spy(self, *a, **kw):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *a, **kw)
    monkeypatch.setattr(torch.optim.Adam, "step", spy)
    learn_prompts(tiny("clip_reid"), torch.randn(8, 64), torch.arange(8) % 4, 2, 8, lr=.01, quiet=True, form=form)
    assert rates == pytest.approx([.01*f for f in factors])


@pytest.mark.parametrize("kw, message", [(dict(form="code"), "form='code'"), (dict(epochs=0), "epochs=0")])
def test_a_refused_stage_1_leaves_the_model_alone(kw, message):
    model = tiny("clip_reid")
    with pytest.raises(ValueError, match=message):
        learn_prompts(model, torch.randn(8, 64), torch.arange(8) % 4, quiet=True, **kw)
    assert not model.prompts.learned.requires_grad


def test_repeated_people_are_encoded_once_with_the_same_loss():
    model = tiny("clip_reid")
    features, label = torch.randn(6, 64), torch.tensor([3, 0, 3, 1, 3, 0])
    texts = model.text(model.prompts(label))
    want = supcon(features, texts, label) + supcon(texts, features, label)
    assert torch.allclose(prompt_loss(model, features, label), want, atol=1e-4)


def test_sentences_travel_with_the_weights(tmp_path):
    a, b = tiny("clip_reid"), tiny("clip_reid")
    with torch.no_grad(): a.prompts.learned.mul_(9)
    a.text_cache()
    save_weights(a, tmp_path/"m.safetensors")
    load_weights(b, tmp_path/"m.safetensors")
    assert b.texts_ready and torch.equal(a.texts, b.texts)
    batch = sample_batch(SIZE)
    assert torch.equal(a.eval()(batch)["i2t_loss"], b.eval()(batch)["i2t_loss"])


def test_clip_checkpoints_of_other_grids(tmp_path):
    torch.manual_seed(0)
    wide, model = clip_model((48, 32), **TINY_CLIP), clip_model((64, 32), **TINY_CLIP)   # 3 x 2 and 4 x 2
    torch.save({"state_dict": {f"module.{k}": v for k, v in wide.state_dict().items()}}, tmp_path/"wide.pt")
    with pytest.raises(ValueError, match="7 positions are not a square"): load_clip(model, tmp_path/"wide.pt")
    load_clip(model, tmp_path/"wide.pt", grid=(3, 2))
    pos = resize_positions(wide.visual.positional_embedding, (4, 2), (3, 2))
    assert torch.equal(model.visual.positional_embedding, pos)
    assert torch.equal(model.ln_final.weight, wide.ln_final.weight)
    same = clip_model((64, 32), stride=12, **TINY_CLIP)
    assert same.visual.grid_size == (5, 2) and same.visual(torch.rand(1, 3, 64, 32)).shape == (1, 48)
    with pytest.raises(ValueError, match="Did you mean 'openai'"): load_clip(model, "openaai")


def test_bot_takes_any_tower():
    model = BoT(ResTower((8, 16, 16, 32)), n_ids=3, size=SIZE, feature="before").eval()
    before, after = model.features(torch.rand(2, 3, *SIZE))
    raw, scores = model.forward_tta(torch.rand(2, 3, *SIZE))
    assert raw.shape == before.shape == after.shape == (2, 32) and scores.shape == (2, 3)


# --- weights of other programs ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("wrap", [
    lambda s: s, lambda s: {"state_dict": s, "best": torch.tensor(.9)}, lambda s: {"epoch": 3, "model": s},
    lambda s: {f"module.{k}": v for k, v in s.items()}, lambda s: {"model": {"state_dict": s}},
    lambda s: {"state_dict": {f"module.base.{k}": v for k, v in s.items()}}])
def test_a_tower_loads_wrapped_weights_in_full(tmp_path, wrap):
    torch.manual_seed(0)
    source = TimmTower("resnet10t", (64, 32))
    state = {**source.net.state_dict(), "fc.weight": torch.zeros(1000, 512), "fc.bias": torch.zeros(1000)}
    torch.save(wrap(state), tmp_path/"w.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tower = TimmTower("resnet10t", (64, 32), weights=tmp_path/"w.pth")
    assert all(torch.equal(v, source.net.state_dict()[k]) for k, v in tower.net.state_dict().items())
    assert tower.loaded.matched == tower.loaded.total and len(tower.loaded.head) == 2 and not tower.loaded.unused


def test_what_is_not_used_is_reported_and_the_network_is_untouched_by_a_failure(tmp_path):
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    other = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(2, 2)).state_dict()
    with pytest.raises(ValueError, match="4 of 4 tensors match, 2 left over"): load_network(net, other)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    with pytest.warns(UserWarning, match="4 of 4 tensors loaded; prefix 'img.' removed; not used: text.w"):
        load_network(net, {**{f"img.{k}": v for k, v in before.items()}, "text.w": torch.ones(2)})
    with pytest.warns(UserWarning, match="not used: 2.weight, 2.bias"):
        assert load_network(net, other, least=.5).matched == 4


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8), st.floats(.1, 1),
       st.booleans())
def test_mutated_weight_files_raise_one_line_or_load_finite_tensors(tmp_path_factory, changes, keep, safe):
    path = tmp_path_factory.getbasetemp()/("w.safetensors" if safe else "w.pth")
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    if safe: save_file(net.state_dict(), path)
    else: torch.save(net.state_dict(), path)
    data = bytearray(path.read_bytes())
    for at, value in changes: data[int(at*(len(data) - 1))] = value
    path.write_bytes(data[:int(len(data)*keep)] if keep < .6 else data)
    try: state = read_weights(path)
    except ValueError as e: assert path.name in str(e) and "\n" not in str(e)
    else: assert all(v.isfinite().all() for v in state.values() if v.is_floating_point())
