"""The ground of every command: command lines, files that are whole or absent, and what this machine is.

Nothing here knows what a corpus, a model or a study is.
"""
