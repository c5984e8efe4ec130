"""What each paper trains and measures; own crops; preflight.

Never here: drawing.
"""
