"""Bytes by name: each source of a corpus becomes one flat file, of which training and counting take
windows.
"""
