"""Decays of anybody's layers, read by the names of their tensors, without running them."""
