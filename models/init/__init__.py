"""Initialisation: schemes by name as plans, one generator per (seed, parameter name), and power-law decays."""

from plkernel.models.init import schemes
from plkernel.models.init.base import generator_for
from plkernel.models.init.planning import SCHEMES, asked, initialise_, plan
from plkernel.models.init.power_law import apply_nodes_, decays_, projection_
from plkernel.models.init.roles import RoleTable

__all__ = [
    "SCHEMES",
    "RoleTable",
    "apply_nodes_",
    "asked",
    "decays_",
    "generator_for",
    "initialise_",
    "plan",
    "projection_",
    "schemes",
]
