"""Sequences of a known law: their bytes, their exact information, and the best prediction of each next byte."""
