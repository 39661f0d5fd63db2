"""Initialisation: schemes by name as plans, one generator per (seed, parameter name), and power-law decays."""

from plkernel.models.init import frameworks, papers, rwkv  # each registers its schemes
from plkernel.models.init.plan import SCHEMES, RoleTable, asked, generator_for, initialise_, plan
from plkernel.models.init.power_law import apply_nodes_, decays_, projection_

__all__ = [
    "SCHEMES",
    "RoleTable",
    "apply_nodes_",
    "asked",
    "decays_",
    "frameworks",
    "generator_for",
    "initialise_",
    "papers",
    "plan",
    "projection_",
    "rwkv",
]
