"""CAMeL's Algorithm 1 with its tasks and memory, the step of DMG-Net, camera-based BatchNorm, cluster contrast.

Never here: recipes.
"""
