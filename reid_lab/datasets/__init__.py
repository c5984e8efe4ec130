"""What a folder holds: loaders of image, text, aerial and mixed sets, the registry, doctor, export.

Never here: models.
"""
from ..moved import forward

__getattr__ = forward('datasets')
