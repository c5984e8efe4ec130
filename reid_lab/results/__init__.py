"""Result rows and their store, paired comparisons, tables, published numbers, sentences.

Never here: drawing.
"""
from ..moved import forward

__getattr__ = forward('results')
