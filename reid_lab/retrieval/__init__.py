"""`Embeddings` in memory and on disk, scores, ranks, metrics, re-ranking, the index.

Never here: models.
"""
from ..moved import forward

__getattr__ = forward('retrieval')
