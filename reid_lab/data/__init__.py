"""`ReidTable`, texts and tokenizers, images, batches and their augmentation, crops, checks of content.

Never here: a dataset's layout, models.
"""
