"""Who is trained on and who is searched: cameras, domain splits, captions.

Never here: training.
"""
