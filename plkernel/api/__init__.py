"""plkernel from Python: the dozen functions that `import plkernel` offers, each thin over what a command does."""
