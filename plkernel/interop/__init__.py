"""Checkpoints in the layouts of other people's software, both ways.

Beside `run`, for `plkernel.export` and `plkernel.load`.
"""
