"""Public Python functions; `import plkernel` offers them with `fit`, `place` and `load_spec`.

Each is thin over what the command of the same purpose does. A module loads what its functions need,
torch the functions that need it.
"""
