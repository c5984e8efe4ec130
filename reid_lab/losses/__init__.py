"""Pure functions of tensors: SDM, ITC, triplet, meta-discrimination, the fuzzy alignment of CFAN.

Never here: state.
"""
from ..moved import forward

__getattr__ = forward('losses')
