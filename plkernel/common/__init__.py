"""Shared ground of the commands: command lines, whole files, code by name, this machine."""
