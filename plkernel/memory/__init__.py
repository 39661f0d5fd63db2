"""The memory of sequence models: decays of anybody's checkpoint, and what a model makes of its
context.
"""
