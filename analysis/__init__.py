"""Exponential sums, nodes, statistics and figures: numpy and scipy only, never torch."""
