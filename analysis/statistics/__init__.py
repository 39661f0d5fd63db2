"""Differences between arms that share their seeds: intervals, corrected p-values, power, factors, and optima."""
