"""Figures for papers: style, charts, ranked lists, cameras, captions, maps.

Never here: computing what they show.
"""
