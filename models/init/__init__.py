"""Initialisation: schemes by name as plans, and power-law decays.

There is one generator per (seed, parameter name).
"""

from plkernel.models.init import schemes  # the import registers them
from plkernel.models.init.jacobians import tune_jacobians_
from plkernel.models.init.plan import SCHEMES, asked, generator_for, initialise_, plan
from plkernel.models.init.roles import RoleTable
from plkernel.models.power_law import decays_, projection_

__all__ = [
    "SCHEMES",
    "RoleTable",
    "asked",
    "decays_",
    "generator_for",
    "initialise_",
    "plan",
    "projection_",
    "schemes",
    "tune_jacobians_",
]
