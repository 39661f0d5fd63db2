"""Initialisation: one generator per (seed, parameter name), and power-law decays and projections."""

from plkernel.models.init.base import generator_for, normal_
from plkernel.models.init.power_law import apply_nodes_, decays_, projection_

__all__ = ["apply_nodes_", "decays_", "generator_for", "normal_", "projection_"]
