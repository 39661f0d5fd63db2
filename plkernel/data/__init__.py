"""Bytes by name: each corpus becomes one flat file, of which training and counting take windows."""
