"""What every other package uses: seeds, checks of arguments, paths, progress, atomic files, processes, intervals.

Never here: people, models.
"""
from ..moved import forward

__getattr__ = forward('core')
