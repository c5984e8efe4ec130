"Folders of Hugging Face against transformers itself: images, captions, preprocessing, and what a folder may lack."
import json

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    AutoModel,
    AutoTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    PreTrainedTokenizerFast,
    ResNetConfig,
    Siglip2Config,
    Siglip2Model,
    SiglipConfig,
    SiglipModel,
    ViTConfig,
    ViTForImageClassification,
)

from reid_lab.models.frozen import frozen, frozen_pair, named_tower
from reid_lab.models.hugging_face import HFTower, folder_config, folder_pixels, hugging_face, reads_captions

SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
VISION = SIZES | dict(image_size=32, patch_size=16)
TEXT = SIZES | dict(vocab_size=20, max_position_embeddings=8, bos_token_id=1, eos_token_id=2, pad_token_id=0)
WORDS = "<pad> <bos> <eos> <unk> a woman in red man with black bag".split()
SAID = ["a woman in red", "a man with a black bag"]
MEAN, STD = [.48, .46, .41], [.27, .26, .28]


def clip(): return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=24))
def siglip(): return SiglipModel(SiglipConfig(text_config=TEXT | dict(projection_size=32), vision_config=VISION))
def vit(): return ViTForImageClassification(ViTConfig(**VISION))


def siglip2():
    vision = {k: v for k, v in VISION.items() if k != "image_size"} | dict(num_patches=16)
    return Siglip2Model(Siglip2Config(text_config=TEXT | dict(projection_size=32), vision_config=vision))


def dino():
    return Dinov2ForImageClassification(Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                                     image_size=28, patch_size=14))


def convolutions(): return AutoModel.from_config(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]))


def written(net, folder, tokenizer=True):
    "A folder as its program leaves it"
    torch.manual_seed(0)
    for p in net.parameters(): p.data.add_(.05*torch.randn_like(p))
    net.eval().save_pretrained(folder)
    settings = dict(image_mean=MEAN, image_std=STD, resample=3, do_normalize=True)
    (folder/"preprocessor_config.json").write_text(json.dumps(settings))
    if tokenizer:
        words = Tokenizer(WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
        words.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>",
                                eos_token="<eos>").save_pretrained(folder)
    return folder


def plain(net, img, **kw):
    "The library's own feature of images"
    net = net.eval()
    if hasattr(net, "get_image_features"): return net.get_image_features(pixel_values=img, **kw).pooler_output
    base = getattr(net, net.base_model_prefix, net)
    out = base(pixel_values=img, **kw)
    pooled = getattr(out, "pooler_output", None)
    return out.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)


def normalised(img):
    mean, std = (torch.tensor(x)[:, None, None] for x in (MEAN, STD))
    return (img - mean)/std


@pytest.mark.parametrize("make, own, tall, kw", [
    (clip, (32, 32), (64, 32), dict(interpolate_pos_encoding=True)),
    (siglip, (32, 32), (64, 32), dict(interpolate_pos_encoding=True)),
    (vit, (32, 32), (64, 32), dict(interpolate_pos_encoding=True)),
    (dino, (28, 28), (56, 28), {}), (convolutions, (224, 224), (64, 32), {})])
@torch.no_grad()
def test_images_as_transformers_embeds_them(make, own, tall, kw, tmp_path):
    net = make()
    written(net, tmp_path, tokenizer=False)
    for size, more in ((own, {}), (tall, kw)):
        model = frozen(f"hf:{tmp_path}", size=size)
        img = torch.rand(3, 3, *size, generator=torch.Generator().manual_seed(0))
        want = plain(net, normalised(img), **more)
        assert torch.allclose(model.raw_features(img), want, atol=1e-4) and want.std() > 1e-3
        assert model.size == size and model.resample == "bicubic"
    assert frozen(f"hf:{tmp_path}").size == own


@torch.no_grad()
def test_free_sizes_of_siglip_2(tmp_path):
    from transformers import Siglip2ImageProcessor
    net = siglip2()
    written(net, tmp_path)
    pixels = np.random.default_rng(0).integers(0, 255, (64, 32, 3), dtype=np.uint8)
    given = Siglip2ImageProcessor(patch_size=16, max_num_patches=8, image_mean=MEAN, image_std=STD)(
        images=[pixels], return_tensors="pt")
    want = net.get_image_features(**given).pooler_output
    model = frozen_pair(f"hf:{tmp_path}", size=(64, 32))
    img = torch.from_numpy(pixels).permute(2, 0, 1)[None]/255
    assert torch.allclose(model.raw_features(img), want, atol=1e-4)
    with pytest.raises(ValueError, match=r"whole patches of 16 pixels; \(64, 32\) is"):
        frozen(f"hf:{tmp_path}", size=(60, 30))


@pytest.mark.parametrize("make", [clip, siglip, siglip2])
@torch.no_grad()
def test_captions_as_transformers_embeds_them(make, tmp_path):
    net = make()
    written(net, tmp_path)
    model = frozen_pair(f"hf:{tmp_path}")
    words = AutoTokenizer.from_pretrained(tmp_path)
    given = words(SAID, padding="max_length", max_length=8, truncation=True, return_tensors="pt")
    kw = {} if make is not clip else dict(attention_mask=given["attention_mask"])
    want = net.get_text_features(input_ids=given["input_ids"], **kw).pooler_output
    got = model.encode_text(model.tokenizer(SAID))
    assert torch.allclose(got, torch.nn.functional.normalize(want, dim=1), atol=1e-4)
    assert not torch.allclose(got[0], got[1], atol=1e-3) and model.tokenizer.context_length == 8
    assert named_tower(f"hf:{tmp_path}") == ("frozen_pair", dict(pair=f"hf:{tmp_path}"))


@torch.no_grad()
def test_a_photograph_through_the_processor_of_transformers(tmp_path):
    "Resizing, scaling and normalisation together: our table of images against CLIPImageProcessor"
    from reid_lab.data.crops import crops_table
    from reid_lab.retrieval.embeddings import embed_images
    net = clip()
    folder = written(net, tmp_path/"model")
    (tmp_path/"crops").mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (10, 6, 3), dtype=np.uint8)
    photograph = Image.fromarray(noise).resize((50, 90), Image.Resampling.BICUBIC)
    photograph.save(tmp_path/"crops"/"1.png")
    processor = CLIPImageProcessor(image_mean=MEAN, image_std=STD, size=dict(height=32, width=32), do_center_crop=False)
    want = net.get_image_features(**processor(images=[photograph], return_tensors="pt")).pooler_output
    got = embed_images(frozen(f"hf:{folder}"), crops_table(tmp_path/"crops"), encode="raw_features", quiet=True)
    cosine = torch.nn.functional.cosine_similarity(torch.as_tensor(got.emb), want)
    assert cosine > .9999


@torch.no_grad()
@pytest.mark.parametrize("make, size", [(clip, (64, 32)), (siglip, (64, 32)), (dino, (56, 28))])
def test_maps_of_a_folder(make, size, tmp_path):
    tower, *_ = hugging_face(written(make(), tmp_path), size)
    place, seen = tower.map_place(), []
    hook = place.layer.register_forward_hook(lambda module, given, out: seen.append(out))
    tower(torch.rand(2, 3, *size))
    hook.remove()
    assert place.maps(seen[0], size).shape == (2, 32, 4, 2)


def test_a_classifier_beside_the_tower_is_named_and_left_out(tmp_path):
    *_, report = hugging_face(written(dino(), tmp_path, tokenizer=False))
    assert report.matched == report.total and all("classifier" in name for name in report.unused) and report.unused


def _without(*names):
    def spoil(folder):
        for name in names: (folder/name).unlink()
    return spoil


def _edited(name, **changes):
    def spoil(folder):
        found = json.loads((folder/name).read_text())
        found = {k: v for k, v in (found | changes).items() if v is not None}
        (folder/name).write_text(json.dumps(found))
    return spoil


def _cut(folder):
    from safetensors.torch import load_file, save_file
    state = load_file(folder/"model.safetensors")
    state.pop("visual_projection.weight")
    save_file(state, folder/"model.safetensors", metadata=dict(format="pt"))


def _not_finite(folder):
    from safetensors.torch import load_file, save_file
    state = load_file(folder/"model.safetensors")
    state["visual_projection.weight"][0, 0] = float("nan")
    save_file(state, folder/"model.safetensors", metadata=dict(format="pt"))


@pytest.mark.parametrize("spoil, words", [
    (_without("preprocessor_config.json"), "no preprocessor_config.json"), (_without("config.json"), "no config.json"),
    (_without("model.safetensors"), "cannot be read"),
    (_edited("preprocessor_config.json", image_std=None), "no image_std"),
    (_edited("config.json", model_type=None), "names no model_type"),
    (_edited("config.json", model_type="own", auto_map={"AutoConfig": "own.Config"}),
     "code that comes with a folder is not run"),
    (_cut, "lacks 1 tensors of its network, such as visual_projection.weight"), (_not_finite, "NaN"),
    (lambda folder: (folder/"config.json").write_text("{"), "cannot be read as JSON")])
def test_a_folder_that_lacks_something_is_refused(spoil, words, tmp_path):
    folder = written(clip(), tmp_path)
    spoil(folder)
    with pytest.raises((ValueError, FileNotFoundError), match=words): frozen(f"hf:{folder}")


def test_a_pair_without_tokenizer_embeds_images_alone(tmp_path):
    folder = written(clip(), tmp_path, tokenizer=False)
    assert reads_captions(folder) and named_tower(f"hf:{folder}") == ("frozen", dict(tower=f"hf:{folder}"))
    with pytest.raises(ValueError, match="put tokenizer.json"): frozen_pair(f"hf:{folder}")


def test_a_tower_is_no_pair(tmp_path):
    folder = written(dino(), tmp_path, tokenizer=False)
    with pytest.raises(ValueError, match="a 'dinov2' is no pair"): frozen_pair(f"hf:{folder}")


def test_random_numbers_on_request(tmp_path):
    folder = written(dino(), tmp_path, tokenizer=False)
    assert frozen(f"hf:{folder}", "none").loaded is None and folder_pixels(folder).std == tuple(STD)
    assert isinstance(frozen(f"hf:{folder}", "none").tower, HFTower) and folder_config(folder).model_type == "dinov2"
