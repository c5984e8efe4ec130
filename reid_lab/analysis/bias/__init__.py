"""What cameras cost: per camera, maps, remedies, the report.

Never here: widgets.
"""
