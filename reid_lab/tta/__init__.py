"""Test-time adaptation, one file a method: Norm, TENT, TEMP, DART3, DART3-LITE.

Never here: plotting.
"""
from ..moved import forward

__getattr__ = forward('tta')
