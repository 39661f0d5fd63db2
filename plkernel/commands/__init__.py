"""The commands: `python -m plkernel.NAME` or `plkernel NAME` parses arguments and prints."""
