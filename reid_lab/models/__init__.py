"""One file an architecture, the registry of all of them, and checkpoints in and out.

Never here: training loops.
"""
