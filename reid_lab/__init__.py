"""A workbench for person re-identification.

The names below are what most work needs; each is loaded when it is first used, so that `import reid_lab as rl` takes
no time. `help(rl.search)` explains one of them, and the modules hold the rest.

    rl.World, rl.load_dataset, rl.ReidTable     images with identities, cameras and captions
    rl.create_model, rl.list_models             models, with the weights of the package or with your own
    rl.embed_crops, rl.search, rl.refine        features of a folder; sentences and crops in them, moved by marks
    rl.Embeddings, rl.retrieval_metrics         features, also of other programs, and their scores
    rl.compare, rl.fuse                         models on the same queries, with paired intervals; their scores as one
    rl.adapt_embeddings, rl.bias_report         camera bias: what it costs, and methods against it
    rl.run                                      an experiment, as `reid_lab run` does it
"""
from typing import TYPE_CHECKING

from .moved import install

if TYPE_CHECKING:   # editors and type checkers see what `__getattr__` loads
    from .analysis.bias.audit import bias_report
    from .analysis.refine import refine
    from .data.table import ReidTable
    from .datasets.registry import load_dataset
    from .experiments.notebooks import run_notebook as run
    from .models.zoo import create_model, list_models
    from .recipes.compare import compare, fuse
    from .recipes.crops import embed_crops, search
    from .retrieval.embeddings import Embeddings
    from .retrieval.metrics import retrieval_metrics
    from .tta.base import adapt_embeddings
    from .world.world import World

__version__ = "0.3.0"
install()

_HOME = dict(World="world.world", load_dataset="datasets.registry", ReidTable="data.table", create_model="models.zoo",
             list_models="models.zoo", embed_crops="recipes.crops", search="recipes.crops",
             Embeddings="retrieval.embeddings", retrieval_metrics="retrieval.metrics", compare="recipes.compare",
             fuse="recipes.compare", adapt_embeddings="tta.base", bias_report="analysis.bias.audit",
             refine="analysis.refine", run="experiments.notebooks:run_notebook")
__all__ = ["World", "load_dataset", "ReidTable", "create_model", "list_models", "embed_crops", "search", "Embeddings",
           "retrieval_metrics", "compare", "fuse", "adapt_embeddings", "bias_report", "refine",
           "run"]     # the names above, for type checkers, too


def __getattr__(name):
    "Load one of the names above"
    if name not in _HOME:
        raise AttributeError(f"module 'reid_lab' has no attribute {name!r}; it offers {__all__}, its modules the rest")
    from importlib import import_module
    module, _, real = _HOME[name].partition(":")
    value = globals()[name] = getattr(import_module(f"reid_lab.{module}"), real or name)
    _explain(value)
    return value


def _explain(value):
    "Let `help` show what the comments of a definition say of its arguments"
    from fastcore.docments import docments
    comments = docments(value.__init__ if isinstance(value, type) else value, returns=True)
    if "return" in comments: comments["->"] = comments.pop("return")
    lines = [f"    {name}: {' '.join(text.split())}" for name, text in comments.items() if text]
    if lines and "\n" not in value.__doc__: value.__doc__ += "\n\n" + "\n".join(lines)


def __dir__(): return sorted({*globals(), *__all__})
