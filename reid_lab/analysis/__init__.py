"""Audits and explanations of search: open sets, failures, tags, captions and their words.

Never here: widgets.
"""
