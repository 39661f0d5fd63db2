"""Initialisations of Mamba-2, by the name that specs and run folders know them by."""

from plkernel.models.init.mamba2 import log_spaced_, power_law_, unit_a_

__all__ = ["log_spaced_", "power_law_", "unit_a_"]
