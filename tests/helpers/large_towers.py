"Families of large image towers at the smallest widths: random weights, depth 2, width 32"
import json
from dataclasses import dataclass
from pathlib import Path

SIZES = ((256, 128), (384, 128))    # (H,W) that persons are trained at
HALF = dict(image_mean=[.5]*3, image_std=[.5]*3)


@dataclass(frozen=True)
class Family:
    "One family, and how a small tower of it is named"
    library: str        # timm, open_clip or hf
    settings: dict      # of timm's `create_model`, of open_clip's config, of a Hugging Face config
    base: str = ''      # timm: the architecture that is made small; Hugging Face: the model type


_VIT = dict(embed_dim=32, depth=2, num_heads=2)
_SCALED = dict(_VIT, init_values=.1)    # published ones begin with 1e-5, which hides what a block does
_PLAIN = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=64)
_TEXT = dict(context_length=77, vocab_size=49408, width=32, heads=2, layers=2)
_WORDS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=99,
              max_position_embeddings=12, bos_token_id=1, eos_token_id=2)
_STAGES = dict(depths=(1, 1, 2, 1), dims=(8, 16, 24, 32))

FAMILIES = dict(
    vit=Family('timm', _VIT, 'vit_tiny_patch16_224'),
    dinov2=Family('timm', dict(_SCALED, img_size=64), 'vit_small_patch14_reg4_dinov2'),
    dinov3=Family('timm', _SCALED, 'vit_small_patch16_dinov3'),
    eva02=Family('timm', _VIT, 'eva02_tiny_patch14_224'),
    siglip2=Family('timm', _VIT, 'vit_base_patch16_siglip_224'),
    pe=Family('timm', _VIT, 'vit_pe_core_tiny_patch16_384'),
    beit=Family('timm', _VIT, 'beitv2_base_patch16_224'),
    swin=Family('timm', dict(embed_dim=16, depths=(1, 1, 2, 1), num_heads=(1, 2, 2, 4)),
                'swin_tiny_patch4_window7_224'),
    convnext=Family('timm', _STAGES, 'convnext_tiny'),
    clip=Family('open_clip', dict(embed_dim=16, text_cfg=_TEXT, vision_cfg=dict(
        image_size=64, layers=2, width=32, head_width=16, patch_size=16))),
    clip_timm=Family('open_clip', dict(embed_dim=16, vision_cfg=dict(
        image_size=64, timm_model_name='test_vit', timm_model_pretrained=False, timm_pool='avg', timm_proj='linear'),
        text_cfg=_TEXT)),
    hf_clip=Family('hf', dict(vision_config=dict(_PLAIN, patch_size=16), projection_dim=16,
                              text_config=_WORDS), 'clip'),
    hf_dinov2=Family('hf', dict(_PLAIN, patch_size=14, mlp_ratio=2, num_register_tokens=2), 'dinov2_with_registers'),
    hf_dinov3=Family('hf', dict(_PLAIN, patch_size=16, num_register_tokens=2), 'dinov3_vit'),
    hf_siglip2=Family('hf', dict(vision_config=dict(_PLAIN, patch_size=16, num_patches=16),
                                 text_config=dict(_WORDS, projection_size=32)), 'siglip2'),
)


def _small(made, settings):
    "An architecture of timm with other sizes"
    def build(pretrained=False, **kw): return made(pretrained=False, **{**settings, **kw})
    return build


def _timm(name, family):
    "Name of a small architecture, which timm knows from now on"
    import timm
    from timm.models import _registry
    small = f'small_{name}'
    if timm.is_model(small): return small
    made = timm.model_entrypoint(family.base)
    build = _small(made, family.settings)
    build.__name__ = small
    build.__module__ = made.__module__
    _registry._model_entrypoints[small] = build
    _registry._model_to_module[small] = _registry._model_to_module[family.base]
    _registry._module_to_models[_registry._model_to_module[family.base]].add(small)
    return small


def _open_clip(name, family, folder):
    "Name of a small pair, which open_clip knows from now on"
    import open_clip
    path = Path(folder)/f'small-{name}.json'
    path.write_text(json.dumps(family.settings))
    if path.stem not in open_clip.list_models(): open_clip.add_model_config(path)
    return path.stem


def _hugging_face(name, family, folder):
    "Name of a folder with a config"
    place = Path(folder)/f'hf-{name}'
    place.mkdir(exist_ok=True)
    (place/'config.json').write_text(json.dumps(dict(family.settings, model_type=family.base)))
    (place/'preprocessor_config.json').write_text(json.dumps(HALF))
    return f'hf:{place}'


def tower_name(name, folder):
    "What `tower=` takes for a small tower of a family; files of its libraries are in the folder"
    family = FAMILIES[name]
    if family.library == 'timm': return _timm(name, family)
    if family.library == 'open_clip': return _open_clip(name, family, folder)
    return _hugging_face(name, family, folder)
