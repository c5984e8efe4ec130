"""The embedded benchmark: people, captions, bodies, places, rendering, and the plan of who is seen where.

Never here: dataset layouts.
"""
