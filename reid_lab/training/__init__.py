"""The loop, checkpoints, callbacks, logs, schedules, `--speed`, and a training in a folder of its own.

Never here: papers' protocols.
"""
