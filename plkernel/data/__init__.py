"""Bytes by name: each source of a corpus becomes one flat file, of which training and counting take windows.

First on the way of the data; `analysis` measures what comes from here, `run` trains on it.
"""
