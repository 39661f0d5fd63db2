"""Traces of training in a model: its half-lives and kernels, its logits, and how its activations move."""
