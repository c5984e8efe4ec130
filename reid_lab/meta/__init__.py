"""CAMeL's Algorithm 1 with its tasks and memory, the step of DMG-Net, camera-based BatchNorm.

Never here: recipes.
"""
