"""How information decays with distance in a sequence: counts of pairs, estimates, intervals and laws."""

from plkernel.analysis.information.curve import decay_curves
from plkernel.analysis.information.laws import fit_power_law

__all__ = ["decay_curves", "fit_power_law"]
