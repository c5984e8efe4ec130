"Networks of timm as towers: timm's own features, sizes that fit, weights of another size, none lost."
import pytest
import timm
import torch
from helpers.towers import randomised

from reid_lab.models.bot import BoT, bot
from reid_lab.models.frozen import frozen, named_tower
from reid_lab.models.timm_towers import TimmTower, fit_positions, timm_features, timm_tower
from reid_lab.models.zoo import create_model

SMALL = ("resnet18", "convnext_atto", "convnextv2_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
         "mobilenetv3_small_050", "mobilenetv4_conv_small", "regnety_002", "efficientnet_b0", "xcit_nano_12_p16_224",
         "eva02_tiny_patch14_224", "tiny_vit_5m_224", "fastvit_t8")
LARGE = ("vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_small_patch16_dinov3",
         "beitv2_base_patch16_224", "swinv2_tiny_window8_256", "hiera_tiny_224", "maxvit_nano_rw_256", "caformer_s18")
NAMES = (*SMALL, *(pytest.param(name, marks=pytest.mark.whole) for name in LARGE))
BOUND = ("swinv2", "maxvit", "vit_", "deit", "eva02", "beit", "hiera")     # built for one size


def size_of(name):
    "Tall crops that suit the network's patches"
    return (252, 126) if "patch14" in name else (256, 128)


@pytest.fixture(scope="module")
def img(): return torch.rand(2, 3, 256, 128, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_tower_gives_the_feature_of_timm(name, img):
    size = size_of(name)
    tower = TimmTower(name, size)
    randomised(tower.net).eval()
    x = img[..., :size[0], :size[1]]
    want = tower.net.forward_head(tower.net.forward_features(x), pre_logits=True)
    kw = dict(img_size=size) if name.startswith(BOUND) else {}
    plain = timm.create_model(name, num_classes=0, **kw).eval()
    plain.load_state_dict(tower.net.state_dict())
    assert torch.allclose(plain(x), want, atol=1e-4) and want.std() > 1e-3
    assert want.shape == (2, tower.out_width)
    tokens = tower.eval()(x)
    assert tokens.ndim == 3 and tokens.shape[2] == tower.width
    if getattr(tower.net, "global_pool", "") == "token": pooled = tokens[:, 0]
    else: pooled = tokens[:, getattr(tower.net, "num_prefix_tokens", 0):].mean(1)
    assert torch.allclose(tower.finish(pooled), want, atol=1e-4)
    model = BoT(tower, 3, size, pool="own", feature="before").eval()
    model.pixels.set_stats((0, 0, 0), (1, 1, 1))
    assert torch.allclose(model.raw_features(x), want, atol=1e-4)
    assert model.image.map_place().maps(_output(model.image.map_place().layer, tower, x), size).ndim == 4


def _output(layer, tower, x):
    "What a layer gives while a tower runs"
    seen = []
    hook = layer.register_forward_hook(lambda module, given, out: seen.append(out))
    tower(x)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize("name", NAMES)
def test_no_tensor_of_published_weights_is_lost(name, tmp_path):
    "A file as timm writes it, of the published size, in a tower for tall crops"
    kw = dict(img_size=224) if "dinov2" in name else {}
    source = timm.create_model(name, **kw)
    torch.save(source.state_dict(), tmp_path/"w.pth")
    tower = timm_tower(name, size_of(name))
    if type(tower) is not TimmTower: pytest.skip("has a test of its own")
    tower.start(str(tmp_path/"w.pth"))
    done = tower.loaded
    assert done.matched == done.total and not (done.missing or done.misfit or done.unused), done.report()
    control = frozen(name, str(tmp_path/"w.pth"), size_of(name))
    assert control.loaded.matched == control.loaded.total and control.dim == tower.out_width


@pytest.mark.parametrize("name, size, words", [
    ("vit_small_patch16_dinov3", (252, 126), "(256, 128) does"), ("maxvit_nano_rw_256", (252, 126), "(256, 128) does"),
    ("hiera_tiny_224", (112, 112), "(128, 128) does")])
@pytest.mark.parametrize("make", [timm_features, TimmTower, lambda name, size: bot(3, name, size),
                                  lambda name, size: frozen(name, "none", size)])
def test_a_size_that_does_not_suit_is_refused_with_one_that_does(name, size, words, make):
    with pytest.raises(ValueError) as e: make(name, size)
    assert f"size={size} does not suit timm's {name}" in str(e.value) and words in str(e.value)
    fitting = tuple(int(n) for n in words.removesuffix(" does").strip("()").split(", "))
    assert timm_features(name, fitting)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_dinov2", "hiera_tiny_224"])
def test_positions_of_another_grid_are_bicubic_and_keep_what_has_no_place(name):
    "Each channel against `interpolate` on its own, the tokens before the patches untouched"
    size = size_of(name)
    with torch.device("meta"): source, tower = timm.create_model(name), TimmTower(name, size)
    positions = torch.randn(source.pos_embed.shape)
    side = source.patch_embed.grid_size[0] if hasattr(source.patch_embed, "grid_size") else 56
    first = positions.shape[1] - side**2
    fitted = fit_positions(tower.net)["pos_embed"](positions)
    assert torch.equal(fitted[:, :first], positions[:, :first])
    grid = positions[0, first:].T.view(-1, 1, side, side)[5]
    n_rows = fitted.shape[1] - first
    rows = next(r for r in range(1, n_rows) if r*(n_rows//r) == n_rows and abs(r/(n_rows//r) - size[0]/size[1]) < .2)
    want = torch.nn.functional.interpolate(grid[None], (rows, n_rows//rows), mode="bicubic", antialias=True)
    assert torch.allclose(fitted[0, first:, 5], want.flatten(), atol=1e-5)


def test_sixteen_by_sixteen_positions_are_not_taken_for_thirty_two_by_eight():
    with torch.device("meta"): tower = TimmTower("vit_tiny_patch16_224", (512, 128))
    positions = torch.randn(1, 257, 192)
    assert tower.net.pos_embed.shape == positions.shape
    assert not torch.equal(fit_positions(tower.net)["pos_embed"](positions), positions)


@pytest.mark.parametrize("pool, own", [("own", True), ("mean", True), ("token0", False)])
@torch.no_grad()
def test_bot_on_a_tower_finishes_what_it_pooled(pool, own, img):
    model = create_model("bot", n_ids=4, tower="mobilenetv3_small_050", size=(256, 128), pool=pool).eval()
    of_timm = model.image.net(model.pixels(img))
    assert model.dim == 1024 and torch.allclose(model.pooled(img), of_timm, atol=1e-4) == own


def test_bot_on_a_tower_trains_is_saved_and_comes_back(tmp_path):
    from reid_lab.core.weight_files import save_weights
    from reid_lab.models.zoo import check_image_model
    torch.manual_seed(0)
    model = create_model("bot", n_ids=4, tower="convnext_atto", size=(64, 32))
    assert check_image_model(model)["norms_of_features"] > 10
    save_weights(model, tmp_path/"bot.safetensors", zoo="bot")
    again = create_model("bot", n_ids=4, tower="convnext_atto", size=(64, 32), weights=tmp_path/"bot.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))


@pytest.mark.parametrize("name, want", [
    ("bot:convnext_atto", ("bot", dict(tower="convnext_atto"))), ("bot", ("bot", {}))])
def test_a_tower_is_named_with_its_model(name, want): assert named_tower(name) == want


def test_an_unknown_tower_is_refused_with_the_nearest_name():
    with pytest.raises(ValueError, match="Did you mean 'convnext_atto'"):
        create_model("bot", n_ids=3, tower="convnext_ato")


@pytest.mark.parametrize("name, words", [
    ("vit_small_patch16_224", "weights of dino want another mean and deviation"), ("vit_small_patch16_224.dino", None),
    ("resnet18", None)])
def test_a_file_whose_normalisation_the_name_does_not_tell_is_warned_of(name, words, recwarn):
    "timm has weights of one architecture for other pixels; the tag in the name tells them apart"
    net = timm.create_model(name.partition(".")[0], num_classes=0)
    model = frozen(name, net.state_dict(), (64, 32))
    said = [str(w.message) for w in recwarn if "normalised as" in str(w.message)]
    assert len(said) == (words is not None) and all(words in s and "such as" in s for s in said)
    if name.endswith("dino"): assert model.pixels.mean.flatten().tolist() == pytest.approx([.485, .456, .406])
    frozen(name, "none", (64, 32))
    assert len([w for w in recwarn if "normalised as" in str(w.message)]) == len(said)
