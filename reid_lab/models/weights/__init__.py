"""Files of weights: released layouts, what ships with the package, where a network starts.

Never here: architectures.
"""
from ...moved import forward

__getattr__ = forward('models.weights')
