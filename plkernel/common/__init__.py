"""Shared ground of the commands: command lines, whole files, other people's code by name, and this
machine.
"""
