"""Modules that moved in 0.2.0 (written by hand): their old names work until 1.0, with a DeprecationWarning.

Each package has a subject now (`reid_lab.retrieval.metrics` was `reid_lab.metrics`). `MOVED` says where the names of
each old module are: in one module, or in several, where `'*'` holds the names that are not listed. An old module that
is a package today (`reid_lab.losses`) forwards from its `__init__`; the others are found by `OldModules`.
"""
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {  # old module -> new module, or {new module: names}
    'core': {'*': 'core.basics',
        'core.reporting': 'phase progress report',
        'core.pictures': 'Picture image_grid'},
    'gathering': 'core.distributed',
    'files': 'core.files',
    'data.loaders': {'*': 'data.loaders',
        'data.augment': (
            'ASPECTS AUGMENT IMAGENET_MEAN IMAGENET_STD affine bot bot_jitter bot_released camel camel_released erase '
            'flip jitter light pad_crop pick plain rand_augment rectangles to_pixels transreid uniform')},
    'data.image_sets': 'datasets.image_sets',
    'models.frozen': {'*': 'models.frozen',
        'models.fastreid': 'FastReID'},
    'data.text_sets': 'datasets.text_sets',
    'data.dg_sets': 'datasets.dg_sets',
    'data.aerial': 'datasets.aerial',
    'world.world': {'*': 'world.world',
        'world.plan': (
            'DOMAINS Domain Group Item KINDS Options PRESETS Plan SCENARIOS Scenario SiteCamera TASKS Wording '
            'aerial_groups make_camera reid_groups sample_shot sensor text_groups world_counts')},
    'world.sheet': 'world.world',
    'data.cross_set': 'datasets.cross_set',
    'datasets': {'*': 'datasets.registry',
        'datasets.export': 'LAYOUTS Layout export_world no_junk',
        'datasets.diagnosis': 'Report doctor'},
    'protocols': 'datasets.protocols.cameras',
    'embeddings': 'retrieval.embeddings',
    'shards': {'*': 'retrieval.shards',
        'retrieval.sides': 'one_numbering warn_if_apart'},
    'retrieval.shards': {'*': 'retrieval.shards',
        'retrieval.sides': 'one_numbering warn_if_apart'},
    'scores': 'retrieval.scores',
    'ties': 'retrieval.ranks',
    'counting': 'retrieval.ranks',
    'metrics': {'*': 'retrieval.metrics',
        'retrieval.cameras': 'camera_nmi cluster nmi',
        'core.statistics': 'weighted_mean'},
    'retrieval': {'*': 'retrieval.ranking',
        'retrieval.rerank': 'ITMScores KReciprocalScores rerank_itm rerank_k_reciprocal'},
    'index': 'retrieval.index',
    'losses': {'*': 'losses.text',
        'losses.basics': 'cosine same_id terms',
        'losses.image': (
            'center circle euclidean label_smoothing meta_discrimination supcon triplet weighted_triplet')},
    'dg_protocols': 'datasets.protocols.dg_splits',
    'schedules': 'training.schedules',
    'text_protocols': 'datasets.protocols.text',
    'dg_cases': 'datasets.protocols.dg_cases',
    'camera_cases': 'datasets.protocols.camera_cases',
    'models.layouts': 'models.weights.formats',
    'models.shipped': 'models.weights.shipped',
    'models.weights': 'models.weights.start',
    'models.backbones': {'*': 'models.backbones',
        'models.timm_towers': (
            'SwinTower TimmTower check_vit fit_positions swin_windows timm_tower tower_kinds')},
    'models.clip_reid': {'*': 'models.clip_reid',
        'models.clip_towers': (
            'ACTS CLIP_NAME LONGER PIXELS clip_act clip_model clip_start load_clip resize_text_positions restride '
            'start_grid start_rows start_tokenizer tiny_start tiny_towers'),
        'training.prompts': 'PRECISIONS cache_images learn_prompts prompt_loss'},
    'fuzzy': 'losses.fuzzy',
    'weight_files': 'core.weight_files',
    'learner': {'*': 'training.learner',
        'core.weight_files': 'DamagedFile checksum fingerprint load_weights save_weights',
        'training.checkpoints': 'Checkpoint load_state save_state',
        'training.callbacks': 'Validate eval_weights refresh_batchnorm'},
    'switches': 'training.options',
    'averages': 'training.callbacks',
    'logs': 'training.logs',
    'embed_shards': 'retrieval.shards',
    'speed': 'training.speedups',
    'camera_stats': 'retrieval.cameras',
    'tta': {'*': 'tta.base',
        'tta.dart3': 'Dart3 Dart3Lite LOSS_DISTANCES dart3_loss distances external_parameters',
        'tta.gradient': 'Gradient Temp Tent entropy temp_loss',
        'tta.camera_norm': 'CameraNorm STATS_FROM'},
    'meta.camera_norm': 'meta.camera_batchnorm',
    'published': 'results.published',
    'results': {'*': 'results.rows',
        'results.tables': (
            'TEX latex_escape markdown_escape read_csv sheet_safe sheet_text to_csv to_html to_latex to_markdown'),
        'results.comparisons': 'ONE_OF Paired ROUNDING paired paired_table relative_to smallest_effect summarise'},
    'conclusions': 'results.conclusions',
    'figures.base': {'*': 'figures.charts',
        'figures.style': (
            'COLOURS LINES MARKERS NO_DATE PaperFigure RIGHT STYLE WIDTHS WRONG export file_name inch_canvas literal '
            'paper_figure paper_style text_width wrap_text'),
        'figures.ranked_lists': 'list_key ranked_lists thumbnail'},
    'figures.cameras': {'*': 'figures.cameras',
        'core.statistics': 'wilson'},
    'figures.cockpit': 'figures.cameras',
    'figures.failures': 'figures.views',
    'captioning.traces': 'datasets.captioning.traces',
    'captioning.rules': 'datasets.captioning.rules',
    'captioning.vision': 'datasets.captioning.vision',
    'analysis.maps': 'analysis.bias.maps',
    'analysis.camera_bias': 'analysis.bias.per_camera',
    'analysis.word_masking': 'analysis.explain.word_masking',
    'analysis.remedies': {'*': 'analysis.bias.remedies',
        'core.statistics': 'half_of paired_gain'},
    'analysis.bias_verdict': 'analysis.bias.verdict',
    'analysis.cockpit': 'analysis.bias.reruns',
    'captioning.run': {'*': 'datasets.captioning.run',
        'analysis.caption_audit': (
            'caption_texts coverage_table edit_table length_table measure_audit pair_similarity record_summary'),
        'figures.captioning': 'error_bars marked_examples'},
    'analysis.visibility': 'analysis.explain.visibility',
    'analysis.faithfulness': {'*': 'analysis.explain.faithfulness',
        'core.statistics': 'mean_interval'},
    'analysis.word_effects': 'analysis.explain.word_masking',
    'analysis.attention': {'*': 'analysis.explain.image_maps',
        'analysis.explain.places': 'Place Score TARGETS TOWERS map_grid place_of score_of untouched',
        'analysis.explain.word_maps': 'PLAIN integrated_gradients text_score word_occlusion word_values',
        'analysis.explain.map_scores': 'COLUMNS METHODS OF_PAIRS map_methods map_scores map_table part_score'},
    'analysis.search': {'*': 'analysis.search',
        'analysis.open_set': (
            'DistanceScores Threshold calibrate comparable each_removed fnir fpir identification_curve open_set '
            'open_set_rates search_scores threshold_for verification_rates verification_threshold')},
    'analysis.explain': 'analysis.explain.evidence',
    'analysis.bias_report': {'*': 'analysis.bias.audit',
        'analysis.bias.report': 'BiasReport COLOURED PAGE SUMMARY_COLUMNS'},
    'recipes.training': {'*': 'training.folder',
        'training.fit': 'check_switches fit refuse_ema work'},
    'recipes.camel': {'*': 'recipes.camel',
        'recipes.camel_settings': (
            'Config Meta PHASES PRESETS Preset SHAPES STUDIES TABLE_IV TITLES Train VARIANTS Variant run_arguments')},
    'recipes.ready': 'recipes.crops',
    'widgets.view': {'*': 'widgets.view',
        'widgets.selection': 'NAMES Selection as_if',
        'widgets.page': 'front_file page_html'},
    'widgets.lists': 'widgets.scene',
    'widgets.scatter': 'widgets.maps',
    'runs': {'*': 'experiments.run',
        'experiments.params': 'Params check_type notebook_parameters params_hash parse_value'},
    'terminal': 'experiments.terminal',
    'cluster': 'experiments.cluster',
    'experiment': {'*': 'experiments.notebooks',
        'experiments.params': 'Params',
        'experiments.run': 'Run start_run',
        'experiments.sweep': 'LOST grid_points n_processes sweep'},
    'crop_commands': 'cli.crops',
    'run_options': 'cli.options',
    'cli': {'*': 'cli.commands',
        'cli.output': 'FORMATS LISTS OPTIONS as_options listing pairs typed'},
}
REMOVED = {  # old module -> {name: what to write instead}
    'switches': {
        'in_force': 'give `Execution` of reid_lab.training.options as an argument',
        'telling': 'give `Execution` of reid_lab.training.options as an argument'},
    'run_options': {
        'RUN_OPTIONS': 'read reid_lab.training.options.OPTIONS',
        'run_environment': 'call reid_lab.experiments.execution.given_execution'},
}
RENAMED = {  # old module -> {name: name now}
    'crop_commands': dict(answered='answer_record', known='labels_in_words', silent='empty_columns', told='answer_text'),
    'meta.camera_norm': dict(CameraNorms='CameraBatchNorms', CameraNormed='WithCameraBatchNorm',
                             camera_normed='with_camera_batchnorm'),
    'analysis.visibility': dict(membership_sight='membership_visibility', sight_correlation='visibility_correlation'),
    'captioning.rules': dict(said_by='stated_values'),
    'data.cross_set': dict(facts_said='stated_facts'),
    'recipes.cfan': dict(sight_rows='visibility_rows'),
    'recipes.training': dict(counted='steps_over_epochs'),
}
ALSO_FUNCTIONS = {'cluster': 'retrieval.cameras'}   # old module -> where the function `reid_lab` offers by its name is
OLD_PACKAGES = ('captioning',)  # packages that hold nothing any more


def new_module(old: str, name: str) -> str:
    "Where a name of an old module is defined now, without `reid_lab.`"
    places = MOVED[old]
    if isinstance(places, str): return places
    for module, names in places.items():
        if name in names.split(): return module
    return places['*']


def forward(old: str) -> Callable:
    "A module's `__getattr__` that finds names of an old module where they are now"
    def __getattr__(name):
        if name.startswith('__'): raise AttributeError(f"module 'reid_lab.{old}' has no attribute {name!r}")
        if instead := REMOVED.get(old, {}).get(name):
            # `from ... import` would put its own words in the place of an AttributeError
            raise ImportError(f'reid_lab.{old}.{name} was removed in 0.2.0; {instead}')
        module = new_module(old, name)
        if module == old: raise AttributeError(f"module 'reid_lab.{old}' has no attribute {name!r}")
        now = RENAMED.get(old, {}).get(name, name)
        try: value = getattr(import_module(f'reid_lab.{module}'), now)
        except AttributeError:
            raise AttributeError(f"module 'reid_lab.{old}' has no attribute {name!r}; its names are in reid_lab.{module}"
                                 ) from None
        from .core.basics import warn_caller    # not at the top: this file is read at each import of the package
        warn_caller(f'reid_lab.{old}.{name} is reid_lab.{module}.{now} since 0.2.0; the old name ends with 1.0',
                    DeprecationWarning)
        return value
    return __getattr__


class AlsoFunction(ModuleType):
    "An old module whose name is a function of the package now: once imported it hides that, so it can be called as well"
    def __call__(self, *args, **kw):
        name = self.__name__.partition('.')[2]
        return getattr(import_module(f'reid_lab.{ALSO_FUNCTIONS[name]}'), name)(*args, **kw)


class OldModules(MetaPathFinder, Loader):
    "Finds an old module after all other finders have failed"
    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        package, _, old = fullname.partition('.')
        if package != 'reid_lab' or old not in (*MOVED, *OLD_PACKAGES): return None
        return ModuleSpec(fullname, self, is_package=old in OLD_PACKAGES)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return AlsoFunction(spec.name) if spec.name.partition('.')[2] in ALSO_FUNCTIONS else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.partition('.')[2]
        if old in MOVED: module.__getattr__ = forward(old)
        if old in ALSO_FUNCTIONS:
            module.__doc__ = f'The function `reid_lab.{ALSO_FUNCTIONS[old]}.{old}`, and the names of an old module'


def install() -> None:
    "Let old module names be imported; a second call changes nothing"
    if not any(isinstance(f, OldModules) for f in sys.meta_path): sys.meta_path.append(OldModules())
