"""A workbench for person re-identification.

The names below are what most work needs; each is loaded when it is first used, so that `import reid_lab as rl` takes
no time. `help(rl.search)` explains one of them, and the modules hold the rest.

    rl.World, rl.load_dataset, rl.ReidTable     images with identities, cameras and captions
    rl.create_model, rl.list_models             models, with the weights of the package or with your own
    rl.train_reid, rl.train_text                a model trained on a table; rl.load_trained opens its folder
    rl.Learner, rl.Plain, rl.Callback           the loop, a strategy to build on, and calls between its steps
    rl.embed_images, rl.embed_texts             features of a table, rl.Embeddings, also of other programs
    rl.embed_crops, rl.search, rl.refine        features of a folder; sentences and crops in them, moved by marks
    rl.retrieval_metrics, rl.rank               scores, and ranked lists; rl.Junk says what a list leaves out
    rl.Protocol, rl.protocol_sides              the rule of a benchmark by name, and the two sides of one of its draws
    rl.jaccard_distances, rl.cluster            distances within one set of images, and its clusters
    rl.compare, rl.fuse                         models on the same queries, with paired intervals; their scores as one
    rl.adapt_embeddings, rl.bias_report         camera bias: what it costs, and methods against it
    rl.run, rl.sweep                            an experiment, as `reid_lab run` does it; many settings and seeds
    rl.Params, rl.start_run                     an experiment of your own: its parameters and its record
    rl.load_results, rl.paired_table            recorded rows, and their paired differences
    rl.published_table                          what the papers print
"""
from typing import TYPE_CHECKING

from .core.help import install as explain_parameters
from .moved import install as find_old_names

if TYPE_CHECKING:   # editors and type checkers see what `__getattr__` loads
    from .analysis.bias.audit import bias_report
    from .analysis.refine import refine
    from .data.table import ReidTable
    from .datasets.registry import load_dataset
    from .experiments.notebooks import run_notebook as run
    from .experiments.params import Params
    from .experiments.run import start_run
    from .experiments.sweep import sweep
    from .models.zoo import create_model, list_models
    from .recipes.compare import compare, fuse
    from .recipes.crops import embed_crops, search
    from .recipes.reid import train_reid
    from .recipes.text import train_text
    from .results.comparisons import paired_table
    from .results.published import published_table
    from .results.rows import load_results
    from .retrieval.cameras import cluster
    from .retrieval.draws import protocol_sides
    from .retrieval.embeddings import Embeddings, embed_images, embed_texts
    from .retrieval.junk import Junk
    from .retrieval.metrics import retrieval_metrics
    from .retrieval.protocols import Protocol
    from .retrieval.ranking import rank
    from .retrieval.rerank import jaccard_distances
    from .training.folder import load_trained
    from .training.learner import Callback, Learner, Plain
    from .tta.base import adapt_embeddings
    from .world.world import World

__version__ = "0.3.0"
explain_parameters("reid_lab")
find_old_names()

_HOME = dict(World="world.world", load_dataset="datasets.registry", ReidTable="data.table", create_model="models.zoo",
             list_models="models.zoo", train_reid="recipes.reid", train_text="recipes.text",
             load_trained="training.folder", Learner="training.learner", Plain="training.learner",
             Callback="training.learner", embed_images="retrieval.embeddings", embed_texts="retrieval.embeddings",
             Embeddings="retrieval.embeddings", embed_crops="recipes.crops", search="recipes.crops",
             refine="analysis.refine", retrieval_metrics="retrieval.metrics", rank="retrieval.ranking",
             Junk="retrieval.junk", Protocol="retrieval.protocols", protocol_sides="retrieval.draws",
             jaccard_distances="retrieval.rerank", cluster="retrieval.cameras",
             compare="recipes.compare", fuse="recipes.compare", adapt_embeddings="tta.base",
             bias_report="analysis.bias.audit", run="experiments.notebooks:run_notebook",
             sweep="experiments.sweep", Params="experiments.params", start_run="experiments.run",
             load_results="results.rows", paired_table="results.comparisons", published_table="results.published")
__all__ = ["World", "load_dataset", "ReidTable", "create_model", "list_models", "train_reid", "train_text",
           "load_trained", "Learner", "Plain", "Callback", "embed_images", "embed_texts", "Embeddings", "embed_crops",
           "search", "refine", "retrieval_metrics", "rank", "Junk", "Protocol", "protocol_sides", "jaccard_distances",
           "cluster", "compare", "fuse",
           "adapt_embeddings", "bias_report", "run", "sweep", "Params", "start_run", "load_results", "paired_table",
           "published_table"]

def __getattr__(name):
    "Load one of the names above"
    if name not in _HOME:
        raise AttributeError(f"module 'reid_lab' has no attribute {name!r}; it offers {__all__}, its modules the rest")
    from importlib import import_module
    module, _, real = _HOME[name].partition(":")
    value = globals()[name] = getattr(import_module(f"reid_lab.{module}"), real or name)
    return value


def __dir__(): return sorted({*globals(), *__all__})
