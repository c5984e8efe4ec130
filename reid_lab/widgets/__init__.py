"""Interactive views: one selection, live in JupyterLab or as a page without a kernel.

Never here: computing what they show.
"""
