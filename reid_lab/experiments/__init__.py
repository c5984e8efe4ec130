"""Running notebooks: parameters, run folders, papermill, sweeps, clusters, the terminal.

Never here: methods.
"""
