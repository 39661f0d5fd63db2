"""Runs of equal shape trained as one batched model in one process, each with the rows and the folder it has alone.

After `run`, whose steps it takes for many runs at once; `study` says which.
"""
