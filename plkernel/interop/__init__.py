"""Checkpoints in the official format of RWKV, both ways."""
