"""Captions written in steps: records, rules, a vision-language model, a run that resumes.

Never here: drawing.
"""
