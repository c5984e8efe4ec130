"""Why a model answers: maps of images and words, and whether they may be believed.

Never here: widgets.
"""
from ...moved import forward

__getattr__ = forward('analysis.explain')
