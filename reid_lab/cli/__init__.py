"""The command line.

Never here: work.
"""
from ..moved import forward

__getattr__ = forward('cli')
